//! Who is in the job: the parts that are ready, until all are.

use crate::options::Options;
use ft_sys::channel::Channel;
use ft_wire::cluster::{Cluster, ClusterNode, Hidden, StoreAddress};
use ft_wire::step::{KEY, Member};
use ftd_core::counted;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

/// What does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// More spare nodes than nodes.
    #[error(
        "--ft-spares={spares}: the step has {} (-N), and one at least has to hold ranks: ask for more, or for fewer spare ones",
        counted(*nodes as u64, "node")
    )]
    AllSpare {
        /// How many are to be spare.
        spares: u32,
        /// How many there are.
        nodes: usize,
    },
    /// More ranks than tasks.
    #[error(
        "-n {ranks} needs as many tasks, and the nodes that are not spare have {tasks}: ask for more nodes or tasks (-N, --ntasks-per-node)"
    )]
    TooFew {
        /// Ranks.
        ranks: u32,
        /// Tasks of those nodes.
        tasks: u32,
    },
    /// Slots are numbered through the nodes.
    #[error("--ft needs the tasks of a node to follow each other: leave --distribution at block")]
    NoBlocks,
    /// A node has no address.
    #[error("node {0} has not said where its agent can be reached")]
    NoAddress(String),
    /// Each node is a neighbour of the front, and these are none of each other.
    #[error("{0}")]
    Strangers(String),
}

/// What all parts are told.
#[derive(Debug)]
pub struct Layout {
    /// Number of ranks.
    pub ranks: u32,
    /// The nodes; nothing if there is but one.
    pub cluster: Option<Cluster>,
}

/// The parts that are ready.
#[derive(Debug, Default)]
pub struct Members {
    ready: BTreeMap<u32, (Member, Channel)>,
    since: Option<Instant>,
}

impl Members {
    /// One more is ready.
    pub fn add(&mut self, member: Member, channel: Channel) {
        self.since.get_or_insert_with(Instant::now);
        self.ready.insert(member.node.layout.node, (member, channel));
    }

    /// Whether all are.
    pub fn are_all(&self) -> bool {
        let all = self.ready.values().next().map(|(member, _)| member.node.layout.nodes);
        all.is_some_and(|all| self.ready.len() as u64 >= u64::from(all))
    }

    /// Since when the first one is.
    pub fn since(&self) -> Option<Instant> {
        self.since.filter(|_| !self.ready.is_empty())
    }

    /// Their connections.
    pub fn channels(&self) -> impl Iterator<Item = &Channel> {
        self.ready.values().map(|(_, channel)| channel)
    }

    /// Whoever says something now has ended: what it was is not ready any more.
    pub fn listen(&mut self) {
        self.ready.retain(|_, (_, channel)| matches!(channel.try_receive::<ft_wire::part::FromPart>(), Ok(None)));
    }

    /// Those that are not.
    pub fn missing(&self) -> String {
        let all = self.ready.values().next().map_or(0, |(member, _)| member.node.layout.nodes);
        let missing: Vec<String> =
            (0..all).filter(|node| !self.ready.contains_key(node)).map(|node| node.to_string()).collect();
        format!("node number {}", missing.join(", "))
    }

    /// The parts by number: names and connections.
    pub fn into_seats(self) -> impl Iterator<Item = (String, Channel)> {
        self.ready.into_values().map(|(member, channel)| (member.name, channel))
    }

    /// Who is where.
    ///
    /// # Errors
    /// What does not fit.
    pub fn layout(&self, options: &Options, secret: [u8; KEY]) -> Result<Layout, LayoutError> {
        let nodes: Vec<&Member> = self.ready.values().map(|(member, _)| member).collect();
        layout(&nodes, options, secret)
    }
}

fn layout(nodes: &[&Member], options: &Options, secret: [u8; KEY]) -> Result<Layout, LayoutError> {
    let Some(first_spare @ 1..) = nodes.len().checked_sub(options.spares as usize) else {
        return Err(LayoutError::AllSpare { spares: options.spares, nodes: nodes.len() });
    };
    if let Some(sentence) = ft_wire::strangers(nodes.iter().map(|member| (member.name.as_str(), member.protocol))) {
        return Err(LayoutError::Strangers(sentence));
    }
    let mut first_slot = 0;
    for member in nodes {
        let layout = member.node.layout;
        if layout.first != first_slot {
            return Err(LayoutError::NoBlocks);
        }
        first_slot += layout.tasks;
    }
    let tasks = nodes[..first_spare].iter().map(|member| member.node.layout.tasks).sum();
    let ranks = if options.ranks == 0 { tasks } else { options.ranks };
    if ranks > tasks {
        return Err(LayoutError::TooFew { ranks, tasks });
    }
    let [first, _, ..] = nodes else { return Ok(Layout { ranks, cluster: None }) };
    let node = |(number, member): (usize, &&Member)| {
        Ok(ClusterNode {
            name: member.name.clone(),
            host: member.host.clone(),
            address: member.address.ok_or_else(|| LayoutError::NoAddress(member.name.clone()))?,
            port: member.port,
            slots: member.node.layout.tasks,
            first_slot: member.node.layout.first,
            spare: number >= first_spare,
            domain: member.node.domain.clone(),
            lease: Some(member.node.lease.clone()),
        })
    };
    let all = nodes.iter().enumerate().map(node).collect::<Result<Vec<_>, _>>()?;
    let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let (heartbeat_period_ms, heartbeat_ms) = match options.heartbeat {
        Some((period, timeout)) => (Some(ms(period)), ms(timeout)),
        None => (first.node.heartbeat_period_ms, first.node.heartbeat_ms),
    };
    let cluster = Cluster {
        me: 0,
        first: all.len() as u32,
        nodes: all,
        secret: Hidden(secret),
        // Where it is asked each part knows.
        store: StoreAddress { socket: PathBuf::new(), prefix: first.node.prefix.clone() },
        heartbeat_ms,
        heartbeat_period_ms,
        wait_ms: ms(options.wait),
        oversubscribe: options.oversubscribe,
        path_ms: first.node.path_ms,
    };
    Ok(Layout { ranks, cluster: Some(cluster) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Request, parse_step};
    use ft_wire::step::{self, StepId};
    use std::ffi::OsString;

    fn member(node: u32, first: u32, tasks: u32) -> Member {
        let layout = step::Layout { node, nodes: 3, first, tasks, all: 6 };
        let name = format!("n{node}");
        Member {
            node: step::Node {
                step: StepId { job: 1, step: 0 },
                layout,
                domain: String::new(),
                lease: format!("ftd/nodes/{name}"),
                prefix: "ftd/jobs/x/".into(),
                heartbeat_ms: 500,
                heartbeat_period_ms: Some(50),
                path_ms: 1000,
            },
            host: name.clone(),
            name,
            address: Some([198, 18, 0, 1 + node as u8].into()),
            port: 1000,
            protocol: 8,
        }
    }

    fn of(words: &str, nodes: &[Member]) -> Result<Layout, LayoutError> {
        let words = format!("ftrun --ft=reinit {words} -- srun");
        let Ok(Request::Run(options)) = parse_step(words.split_whitespace().map(OsString::from)) else {
            panic!("{words}")
        };
        layout(&nodes.iter().collect::<Vec<_>>(), &options, [0; KEY])
    }

    #[test]
    fn heartbeats_go_as_the_option_says_and_else_as_the_first_node_does() {
        let nodes = [member(0, 0, 2), member(1, 2, 2)];
        for (words, expected) in [("", (Some(50), 500)), ("--ft-heartbeat=20ms,1s", (Some(20), 1000))] {
            let cluster = of(words, &nodes).unwrap().cluster.unwrap();
            assert_eq!((cluster.heartbeat_period_ms, cluster.heartbeat_ms), expected, "{words}");
        }
    }

    #[test]
    fn nodes_that_are_no_neighbours_of_each_other_have_no_job() {
        let of_release = |number, protocol| Member { protocol, ..member(number, 2 * number, 2) };
        assert!(of("", &[of_release(0, 7), of_release(1, 8)]).is_ok());
        let apart = of("", &[of_release(0, 7), of_release(1, 8), of_release(2, 9)]);
        assert!(
            matches!(apart, Err(LayoutError::Strangers(sentence)) if sentence.contains("7 on node n0, and 9 on node n2"))
        );
    }

    #[test]
    fn the_world_is_what_is_not_spare_unless_it_is_said() {
        let nodes = [member(0, 0, 2), member(1, 2, 2), member(2, 4, 2)];
        assert_eq!(of("", &nodes).unwrap().ranks, 6);
        let layout = of("--ft-spares=1", &nodes).unwrap();
        assert_eq!(layout.ranks, 4);
        let spare: Vec<bool> = layout.cluster.unwrap().nodes.iter().map(|node| node.spare).collect();
        assert_eq!(spare, [false, false, true]);
        assert_eq!(of("--ft-spares=1 -n 3", &nodes).unwrap().ranks, 3);
        assert_eq!(of("--ft-spares=1 -n 5", &nodes).unwrap_err(), LayoutError::TooFew { ranks: 5, tasks: 4 });
        assert_eq!(of("--ft-spares=3", &nodes).unwrap_err(), LayoutError::AllSpare { spares: 3, nodes: 3 });
        assert_eq!(of("", &[member(0, 0, 2), member(1, 1, 2)]).unwrap_err(), LayoutError::NoBlocks);
        assert!(of("", &nodes[..1]).unwrap().cluster.is_none());
    }
}
