//! What is known of the slots of the job before there is a record.

use super::unanswered::Unanswered;
use crate::ids::{Micros, NodeId, SlotId};
use crate::members::Members;
use crate::slots::{SlotEntry, SlotState, Slots};
use std::collections::{BTreeMap, BTreeSet};

/// What is known of the slots of the job, and to whom it is told.
#[derive(Debug, Clone, Default)]
pub(super) struct Gather {
    /// This node's, once all are up.
    pub(super) mine: Option<BTreeSet<SlotId>>,
    /// Other nodes whose slots are known, and these: run-length, since the root comes to know all.
    pub(super) nodes: Members,
    pub(super) slots: Slots,
    /// Nodes that are none of the job's own and want to come in.
    pub(super) outside: BTreeMap<NodeId, BTreeSet<SlotId>>,
    /// How many who should have been told did not answer.
    pub(super) passed: usize,
    /// Since when the one who is told now has not answered, and when it was told last.
    pub(super) since: Micros,
    /// Since when somebody else is at work on it: as long as that one answers, it is not for this node to begin.
    pub(super) answered: Micros,
    pub(super) told: Option<Micros>,
    /// When others were asked for the record, and how far around.
    pub(super) asked: Option<Micros>,
    pub(super) turn: u32,
    /// The slots of so many nodes have been noted by whom they were told.
    pub(super) noted: u32,
    /// Who is missing.
    pub(super) absent: Unanswered,
}

impl Gather {
    /// The slots of so many nodes are known.
    pub(super) fn known(&self) -> u32 {
        self.nodes.len() + u32::from(self.mine.is_some())
    }

    /// Whether all that is known has been noted.
    pub(super) fn is_noted(&self) -> bool {
        self.noted >= self.known() + self.outside.len() as u32
    }

    /// Adds a node with these slots.
    pub(super) fn add(nodes: &mut Members, slots: &mut Slots, node: NodeId, of_node: impl IntoIterator<Item = SlotId>) {
        nodes.join(node);
        of_node.into_iter().for_each(|slot| slots.insert(SlotEntry { slot, node, state: SlotState::Parked }));
    }

    /// All that is known, with this node's slots and those of nodes that want to come in.
    pub(super) fn with(&self, me: NodeId, mine: Option<&BTreeSet<SlotId>>) -> (Members, Slots) {
        let (mut nodes, mut slots) = (self.nodes.clone(), self.slots.clone());
        if let Some(mine) = mine {
            Gather::add(&mut nodes, &mut slots, me, mine.iter().copied());
        }
        for (node, of_node) in &self.outside {
            Gather::add(&mut nodes, &mut slots, *node, of_node.iter().copied());
        }
        (nodes, slots)
    }

    /// Notes the slots of nodes that were not known; whether there are any.
    pub(super) fn note(&mut self, me: NodeId, job: &Members, nodes: &Members, slots: &Slots) -> bool {
        let known = |node: NodeId| node == me || self.nodes.knows(node) || self.outside.contains_key(&node);
        let fresh: Vec<NodeId> = nodes.iter().filter(|node| !known(*node)).collect();
        if fresh.is_empty() {
            return false;
        }
        for home in slots.homes() {
            for row in 0..home.nodes {
                let (node, first) = (NodeId(home.node.0 + row), home.slot.0 + row * home.each);
                if fresh.binary_search(&node).is_ok() {
                    let of_node = (first..first + home.each).map(SlotId);
                    if job.contains(node) {
                        Gather::add(&mut self.nodes, &mut self.slots, node, of_node);
                    } else {
                        self.outside.entry(node).or_default().extend(of_node);
                    }
                }
            }
        }
        // Some have none.
        fresh.into_iter().filter(|node| job.contains(*node)).for_each(|node| self.nodes.join(node));
        true
    }
}

/// How many nodes stand at this place of a tree and below it.
pub(super) fn subtree(place: u32, nodes: u32, fan_out: u32) -> u32 {
    let (mut first, mut end, mut size) = (place, place.saturating_add(1), 0);
    while first < nodes {
        size += end.min(nodes) - first;
        (first, end) = (first.saturating_mul(fan_out).saturating_add(1), end.saturating_mul(fan_out).saturating_add(1));
    }
    size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subtree_is_its_top_and_the_subtrees_below_it() {
        for (nodes, fan_out) in [(1, 1), (7, 1), (20, 2), (1000, 16), (5000, 3)] {
            for place in 0..nodes {
                let children = (place * fan_out + 1..=place * fan_out + fan_out).map(|at| subtree(at, nodes, fan_out));
                assert_eq!(subtree(place, nodes, fan_out), 1 + children.sum::<u32>(), "{place} of {nodes}");
            }
            assert_eq!(subtree(0, nodes, fan_out), nodes);
        }
        assert_eq!(subtree(4_000_000_000, u32::MAX, 16), 1);
    }

    #[test]
    fn what_is_known_of_many_nodes_is_a_few_runs() {
        let me = NodeId(0);
        let told = |from: u32, end: u32| {
            let (mut nodes, mut slots) = (Members::default(), Slots::default());
            for node in from..end {
                Gather::add(&mut nodes, &mut slots, NodeId(node), (node * 4..node * 4 + 4).map(SlotId));
            }
            (nodes, slots)
        };
        let (job, mut gather) = (Members::of((0..1000).map(NodeId)), Gather::default());
        for (from, end) in [(500, 1000), (1, 300), (250, 600)] {
            let (nodes, slots) = told(from, end);
            assert!(gather.note(me, &job, &nodes, &slots));
            assert!(!gather.note(me, &job, &nodes, &slots), "it is known");
        }
        gather.mine = Some((0..4).map(SlotId).collect());
        assert_eq!(gather.known(), 1000);
        let (nodes, slots) = gather.with(me, gather.mine.as_ref());
        assert_eq!((nodes.clone(), slots.clone()), told(0, 1000));
        assert_eq!((nodes.runs().len(), slots.homes().len()), (1, 1));
    }
}
