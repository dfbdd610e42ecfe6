//! Who computes at this instant: looked at anew where something has changed, so that a cluster of ten thousand nodes can be
//! checked after every step.

use ftd_core::{Process, Rank, WorldId};
use std::collections::{BTreeMap, BTreeSet};

/// The processes that compute, by node.
#[derive(Debug, Default)]
pub struct Computing {
    /// Nodes on which somebody may have begun or ceased to compute; all of them with `all`.
    changed: BTreeSet<usize>,
    all: bool,
    on: Vec<Vec<Process>>,
    /// How many processes of each rank compute.
    of_rank: Vec<u32>,
    of_world: BTreeMap<WorldId, u32>,
    /// Ranks of which more than one does.
    twins: u32,
}

impl Computing {
    /// Something may have changed on every node.
    pub fn look(&mut self) {
        self.all = true;
    }

    /// Something may have changed on this node.
    pub fn look_at(&mut self, node: usize) {
        self.changed.insert(node);
    }

    /// The nodes to be looked at, of so many.
    pub fn changed(&mut self, nodes: usize) -> Vec<usize> {
        self.on.resize_with(nodes.max(self.on.len()), Vec::new);
        let changed = std::mem::take(&mut self.changed);
        if std::mem::take(&mut self.all) { (0..nodes).collect() } else { changed.into_iter().collect() }
    }

    /// These compute on this node.
    pub fn set(&mut self, node: usize, processes: Vec<Process>) {
        let before = std::mem::replace(&mut self.on[node], processes);
        let after = self.on[node].clone();
        before.iter().filter(|name| !after.contains(name)).for_each(|name| self.count(*name, false));
        after.iter().filter(|name| !before.contains(name)).for_each(|name| self.count(*name, true));
    }

    fn count(&mut self, name: Process, begins: bool) {
        let (rank, world) = (name.rank.0 as usize, self.of_world.entry(name.world).or_default());
        self.of_rank.resize(self.of_rank.len().max(rank + 1), 0);
        let of_rank = &mut self.of_rank[rank];
        if begins {
            (*of_rank, *world) = (*of_rank + 1, *world + 1);
            self.twins += u32::from(*of_rank == 2);
        } else {
            (*of_rank, *world) = (*of_rank - 1, *world - 1);
            self.twins -= u32::from(*of_rank == 1);
        }
        if *world == 0 {
            self.of_world.remove(&name.world);
        }
    }

    /// Two that must not compute at the same time: of one rank, or of two worlds.
    pub fn clash(&self) -> Option<(Process, Process)> {
        if self.twins == 0 && self.of_world.len() < 2 {
            return None;
        }
        let mut seen: BTreeMap<Rank, Process> = BTreeMap::new();
        let all = self.on.iter().flatten();
        all.copied().find_map(|name| {
            let other = seen.insert(name.rank, name);
            let other = other.or_else(|| seen.values().find(|other| other.world != name.world).copied());
            other.map(|other| (name, other))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(world: u64, rank: u32) -> Process {
        Process::primary(WorldId(world), Rank(rank))
    }

    #[test]
    fn two_of_one_rank_or_of_two_worlds_clash_as_long_as_both_compute() {
        let mut computing = Computing::default();
        assert_eq!(computing.changed(3).len(), 0);
        computing.set(0, vec![process(1, 0), process(1, 1)]);
        computing.set(1, vec![process(1, 2)]);
        assert_eq!(computing.clash(), None);
        computing.set(2, vec![process(1, 1)]);
        assert_eq!(computing.clash(), Some((process(1, 1), process(1, 1))));
        computing.set(2, Vec::new());
        assert_eq!(computing.clash(), None);
        computing.set(1, vec![process(2, 2)]);
        assert!(computing.clash().is_some_and(|(one, other)| one.world != other.world));
        computing.set(0, Vec::new());
        assert_eq!(computing.clash(), None);
    }

    #[test]
    fn only_what_changed_is_looked_at() {
        let mut computing = Computing::default();
        computing.look_at(2);
        computing.look_at(0);
        assert_eq!(computing.changed(3), [0, 2]);
        assert_eq!(computing.changed(3), []);
        computing.look();
        assert_eq!(computing.changed(3), [0, 1, 2]);
    }
}
