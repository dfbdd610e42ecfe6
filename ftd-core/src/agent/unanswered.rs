//! Who has been asked whether it is there before the first record, and who has answered.

use crate::ids::{Micros, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// Who has been asked, and who was ever heard.
#[derive(Debug, Clone, Default)]
pub(super) struct Unanswered {
    /// Their agents have said something.
    heard: BTreeSet<NodeId>,
    /// So many questions each has not answered.
    unanswered: BTreeMap<NodeId, u64>,
    /// Nobody whose turn to begin the job would come before this node's has answered.
    pub(super) first: bool,
    /// When somebody was asked last, and who.
    pub(super) asked: Option<Micros>,
    turn: Option<NodeId>,
}

impl Unanswered {
    /// It is there.
    pub(super) fn hear(&mut self, node: NodeId) {
        self.heard.insert(node);
        self.unanswered.remove(&node);
    }

    /// Whose turn it is before this node's is there.
    pub(super) fn is_not_first(&mut self) {
        self.first = false;
    }

    /// Whether its agent ever said something.
    pub(super) fn was_heard(&self, node: NodeId) -> bool {
        self.heard.contains(&node)
    }

    /// How many questions it has not answered since.
    pub(super) fn unanswered(&self, node: NodeId) -> u64 {
        self.unanswered.get(&node).copied().unwrap_or(0)
    }

    /// Whom of these to ask now: all in turn, `width` at a time.
    pub(super) fn ask(&mut self, missing: &BTreeSet<NodeId>, width: usize) -> Vec<NodeId> {
        let after = |node: &&NodeId| self.turn.is_none_or(|turn| **node > turn);
        let (rest, first): (Vec<&NodeId>, Vec<&NodeId>) = missing.iter().partition(after);
        let next: Vec<NodeId> = rest.into_iter().chain(first).take(width).copied().collect();
        self.turn = next.last().copied().or(self.turn);
        next.iter().for_each(|node| *self.unanswered.entry(*node).or_default() += 1);
        next
    }
}
