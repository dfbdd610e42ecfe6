//! Which nodes a job ever had, and which of them are in it: run-length, so that 10 000 nodes of which some have died are a
//! few runs.

use crate::ids::NodeId;

/// `count` nodes from `node` on, all in the job or all out of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeRun {
    /// The first node.
    pub node: NodeId,
    /// How many; never 0.
    pub count: u32,
    /// Whether they are in the job; a node that was left out never comes back.
    pub member: bool,
}

impl NodeRun {
    fn end(&self) -> u32 {
        self.node.0.saturating_add(self.count)
    }
}

/// Every node that the job ever had, by id.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Members {
    runs: Vec<NodeRun>,
}

impl Members {
    /// These nodes, all in the job; their order and doubles do not matter.
    pub fn of(nodes: impl IntoIterator<Item = NodeId>) -> Self {
        let mut nodes: Vec<NodeId> = nodes.into_iter().collect();
        nodes.sort_unstable();
        nodes.dedup();
        let runs = nodes.into_iter().map(|node| NodeRun { node, count: 1, member: true }).collect();
        Members { runs: joined(runs) }
    }

    /// These runs; `None` unless they are in order, do not overlap and are not empty.
    pub fn from_runs(runs: Vec<NodeRun>) -> Option<Self> {
        let valid = runs.iter().all(|run| run.count > 0 && run.node.0.checked_add(run.count - 1).is_some());
        let ordered = runs.windows(2).all(|pair| pair[0].end() <= pair[1].node.0);
        (valid && ordered).then_some(Members { runs })
    }

    /// The runs, by id.
    pub fn runs(&self) -> &[NodeRun] {
        &self.runs
    }

    /// Whether `node` is in the job.
    pub fn contains(&self, node: NodeId) -> bool {
        self.run_of(node).is_some_and(|at| self.runs[at].member)
    }

    /// Whether the job ever had `node`.
    pub fn knows(&self, node: NodeId) -> bool {
        self.run_of(node).is_some()
    }

    /// The nodes that are in the job, by id.
    pub fn iter(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.present().flat_map(|run| (run.node.0..run.end()).map(NodeId))
    }

    /// How many nodes are in the job.
    pub fn len(&self) -> u32 {
        self.present().map(|run| run.count).sum()
    }

    /// Whether no node is in the job.
    pub fn is_empty(&self) -> bool {
        self.present().next().is_none()
    }

    /// How many members have a lower id, if `node` is one.
    pub fn position(&self, node: NodeId) -> Option<u32> {
        let at = self.run_of(node).filter(|at| self.runs[*at].member)?;
        let before: u32 = self.runs[..at].iter().filter(|run| run.member).map(|run| run.count).sum();
        Some(before + (node.0 - self.runs[at].node.0))
    }

    /// The member that `position` others stand before, by id.
    pub fn at(&self, position: u32) -> Option<NodeId> {
        let mut left = position;
        self.present().find_map(|run| match left.checked_sub(run.count) {
            None => Some(NodeId(run.node.0 + left)),
            Some(rest) => {
                left = rest;
                None
            }
        })
    }

    /// The greatest id that the job ever had.
    pub fn last_known(&self) -> Option<NodeId> {
        self.runs.last().map(|run| NodeId(run.end() - 1))
    }

    /// A node that the job never had is in it from now on; one that was left out stays out.
    pub fn join(&mut self, node: NodeId) {
        if self.knows(node) {
            return;
        }
        let at = self.runs.partition_point(|run| run.node < node);
        self.runs.insert(at, NodeRun { node, count: 1, member: true });
        self.runs = joined(std::mem::take(&mut self.runs));
    }

    /// Leaves `node` out.
    pub fn leave(&mut self, node: NodeId) {
        let Some(at) = self.run_of(node).filter(|at| self.runs[*at].member) else { return };
        let run = self.runs[at];
        let before = NodeRun { count: node.0 - run.node.0, ..run };
        let alone = NodeRun { node, count: 1, member: false };
        let after = NodeRun { node: NodeId(node.0 + 1), count: run.end() - node.0 - 1, ..run };
        self.runs.splice(at..=at, [before, alone, after].into_iter().filter(|run| run.count > 0));
        self.runs = joined(std::mem::take(&mut self.runs));
    }

    fn present(&self) -> impl Iterator<Item = &NodeRun> + '_ {
        self.runs.iter().filter(|run| run.member)
    }

    fn run_of(&self, node: NodeId) -> Option<usize> {
        let at = self.runs.partition_point(|run| run.node <= node).checked_sub(1)?;
        (node.0 < self.runs[at].end()).then_some(at)
    }
}

/// The same with neighbours of one kind joined.
fn joined(runs: Vec<NodeRun>) -> Vec<NodeRun> {
    let mut joined: Vec<NodeRun> = Vec::with_capacity(runs.len());
    for run in runs {
        match joined.last_mut() {
            Some(last) if last.end() == run.node.0 && last.member == run.member => last.count += run.count,
            _ => joined.push(run),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn nodes_in_order_are_one_run_and_a_death_makes_three() {
        let mut members = Members::of((0..10_000).map(NodeId));
        assert_eq!(members.runs().len(), 1);
        members.leave(NodeId(77));
        assert_eq!(members.runs().len(), 3);
        assert_eq!(members.len(), 9_999);
        assert_eq!(members.at(77), Some(NodeId(78)));
        assert_eq!(members.position(NodeId(78)), Some(77));
        members.join(NodeId(77));
        assert!(!members.contains(NodeId(77)), "a node that was left out never comes back");
    }

    proptest! {
        #[test]
        fn runs_say_what_a_map_says(acts in proptest::collection::vec((0u32..40, any::<bool>()), 0..80)) {
            let (mut members, mut map) = (Members::default(), BTreeMap::new());
            for (node, join) in acts {
                if join {
                    members.join(NodeId(node));
                    map.entry(node).or_insert(true);
                } else {
                    members.leave(NodeId(node));
                    map.entry(node).and_modify(|member| *member = false);
                }
                let present: Vec<NodeId> = map.iter().filter(|(_, member)| **member).map(|(node, _)| NodeId(*node)).collect();
                prop_assert_eq!(members.iter().collect::<Vec<_>>(), present.clone());
                prop_assert_eq!(members.len() as usize, present.len());
                for (position, node) in present.iter().enumerate() {
                    prop_assert_eq!(members.position(*node), Some(position as u32));
                    prop_assert_eq!(members.at(position as u32), Some(*node));
                }
                prop_assert_eq!(members.at(present.len() as u32), None);
                for node in 0..40 {
                    prop_assert_eq!(members.contains(NodeId(node)), map.get(&node) == Some(&true));
                    prop_assert_eq!(members.knows(NodeId(node)), map.contains_key(&node));
                }
                prop_assert_eq!(members.last_known(), map.keys().last().map(|node| NodeId(*node)));
                prop_assert_eq!(Members::from_runs(members.runs().to_vec()), Some(members.clone()));
            }
        }
    }
}
