//! How many ranks there are, and how many tasks and nodes the step has for them, where some nodes are spare.

use ftd_core::counted;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Asked {
    /// `-N`: all nodes, the spare ones included.
    pub nodes: Option<u32>,
    /// `-n`: ranks.
    pub ranks: Option<u32>,
    /// `--ntasks-per-node`.
    pub per_node: Option<u32>,
    /// `--ft-spares`, at least 1.
    pub spares: u32,
}

/// What comes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct World {
    /// Ranks of the program.
    pub ranks: u32,
    /// Nodes of the step.
    pub nodes: u32,
    /// Tasks of each node.
    pub per_node: u32,
    /// Tasks of the step.
    pub tasks: u32,
}

/// Why there is no such world; one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorldError {
    /// Nobody says how many nodes.
    #[error("--ft-spares={0}: of how many nodes? Say so with -N, the spare ones included")]
    NoNodes(u32),
    /// All of them.
    #[error("--ft-spares={spares} leaves none of {} for the ranks: -N counts the spare nodes too", counted(*nodes, "node"))]
    AllSpare {
        /// `--ft-spares`.
        spares: u32,
        /// `-N`.
        nodes: u32,
    },
    /// More ranks than there is room for.
    #[error(
        "{ranks} ranks do not fit: {} less {spares} spare, with {} each, hold {room}; ask for more nodes or tasks of a node",
        counted(*nodes, "node"),
        counted(*per_node, "task")
    )]
    DoNotFit {
        /// `-n`.
        ranks: u32,
        /// `-N`.
        nodes: u32,
        /// `--ft-spares`.
        spares: u32,
        /// `--ntasks-per-node`.
        per_node: u32,
        /// What would fit.
        room: u64,
    },
    /// No number of tasks at all, or more than can be counted.
    #[error("{} with {} each: no job comes of that", counted(*nodes, "node"), counted(*per_node, "task"))]
    NoTasks {
        /// `-N`.
        nodes: u32,
        /// `--ntasks-per-node`.
        per_node: u32,
    },
}

impl Asked {
    /// The world is `-n`, else the tasks of the nodes that are not spare.
    ///
    /// # Errors
    /// If there is no room for it.
    pub fn world(self) -> Result<World, WorldError> {
        let spares = self.spares;
        let nodes = self.nodes.ok_or(WorldError::NoNodes(spares))?;
        let working =
            nodes.checked_sub(spares).filter(|left| *left > 0).ok_or(WorldError::AllSpare { spares, nodes })?;
        let per_node = self.per_node.or(self.ranks.map(|ranks| ranks.div_ceil(working))).unwrap_or(1);
        let tasks =
            nodes.checked_mul(per_node).filter(|tasks| *tasks > 0).ok_or(WorldError::NoTasks { nodes, per_node })?;
        let room = u64::from(working) * u64::from(per_node);
        match self.ranks {
            Some(ranks) if u64::from(ranks) > room => {
                Err(WorldError::DoNotFit { ranks, nodes, spares, per_node, room })
            }
            Some(ranks) => Ok(World { ranks, nodes, per_node, tasks }),
            None => Ok(World { ranks: working.saturating_mul(per_node), nodes, per_node, tasks }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(
        nodes: u32,
        ranks: Option<u32>,
        per_node: Option<u32>,
        spares: u32,
    ) -> Result<(u32, u32, u32), WorldError> {
        let world = Asked { nodes: Some(nodes), ranks, per_node, spares }.world()?;
        assert_eq!((world.nodes, world.tasks), (nodes, nodes * world.per_node));
        Ok((world.ranks, world.tasks, world.per_node))
    }

    #[test]
    fn the_world_is_n_or_what_is_not_spare() {
        assert_eq!(world(5, None, Some(4), 1), Ok((16, 20, 4)));
        assert_eq!(world(5, Some(16), None, 1), Ok((16, 20, 4)));
        assert_eq!(world(5, Some(14), None, 1), Ok((14, 20, 4)));
        assert_eq!(world(5, Some(10), Some(4), 2), Ok((10, 20, 4)));
        assert_eq!(world(3, None, None, 1), Ok((2, 3, 1)));
        assert_eq!(world(3, Some(1), None, 2), Ok((1, 3, 1)));
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        assert_eq!(world(3, None, None, 3), Err(WorldError::AllSpare { spares: 3, nodes: 3 }));
        assert_eq!(world(3, None, None, 4), Err(WorldError::AllSpare { spares: 4, nodes: 3 }));
        assert!(matches!(world(5, Some(17), Some(4), 1), Err(WorldError::DoNotFit { room: 16, .. })));
        let said = |error: Result<_, WorldError>| error.unwrap_err().to_string();
        let one = said(world(3, Some(3), Some(1), 1));
        assert!(one.starts_with("3 ranks do not fit: 3 nodes less 1 spare, with 1 task each, hold 2;"), "{one}");
        assert!(said(world(1, None, None, 1)).starts_with("--ft-spares=1 leaves none of 1 node for the ranks"));
        assert!(matches!(world(5, None, Some(0), 1), Err(WorldError::NoTasks { .. })));
        assert!(matches!(world(u32::MAX, None, Some(4), 1), Err(WorldError::NoTasks { .. })));
        let unknown = Asked { ranks: Some(4), spares: 1, ..Asked::default() };
        assert_eq!(unknown.world(), Err(WorldError::NoNodes(1)));
    }
}
