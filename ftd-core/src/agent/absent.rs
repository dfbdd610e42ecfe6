//! Nodes of the job that nothing is known of yet, before the first record: whether they are slow, or gone.
//!
//! Who is to begin the job asks those whose slots it does not know whether they are there. An agent answers as soon as it runs,
//! however long its shepherds take, so who answers is waited for. Who does not, for as many questions in a row as
//! [`Policy`](crate::Policy) has, is not, if the others have slots enough: it comes in later, as a spare, if it is alive. What
//! counts is questions and not time: an agent that has stood still has asked nobody meanwhile.

use super::{Agent, Effect, Stage};
use crate::ids::{EpochId, Micros, NodeId};
use crate::members::Members;
use crate::message::PeerMessage;
use crate::record::EpochRecord;
use crate::report::{Notice, Report};
use crate::slots::Slots;
use std::collections::BTreeSet;

/// So long at least who was heard is waited for, however short the time-out is: at a start much is read from disks.
const LEAST: Micros = Micros::from_secs(2);

impl Agent {
    /// Somebody has said something.
    pub(super) fn is_heard(&mut self, node: NodeId) {
        self.joining.unanswered = None;
        if self.record.is_none() {
            self.gather.absent.hear(node);
        }
    }

    /// Whether it is for this node to begin the job, and it has not begun. Who has passed over all before it tells the first of
    /// them again, and is still to begin while that one says nothing.
    fn is_to_begin(&self) -> bool {
        self.record.is_none()
            && self.run.stage == Stage::Gathering
            && self.started()
            && !self.is_outsider()
            && self.gather.absent.first
    }

    fn missing(&self) -> BTreeSet<NodeId> {
        let known = |node: &NodeId| *node == self.me || self.gather.nodes.knows(*node);
        self.config.nodes.iter().filter(|node| !known(node)).collect()
    }

    /// Asks some of those whose slots are not known, once in a period.
    pub(super) fn guard_absent(&mut self) {
        self.gather.absent.first |= self.gatherer().is_none();
        if !self.is_to_begin() {
            return;
        }
        let Some(asked) = self.gather.absent.asked else {
            // Most say their slots before the first question.
            self.gather.absent.asked = Some(self.now);
            return;
        };
        if !self.due(asked, self.config.policy.heartbeat_period) {
            return;
        }
        self.gather.absent.asked = Some(self.now);
        let (missing, width) = (self.missing(), self.gather_fan_out() as usize);
        for to in self.gather.absent.ask(&missing, width) {
            self.emit(Effect::Send { to, message: Self::question() });
        }
    }

    /// No slots of no node: noted, and so answered, by whoever runs.
    fn question() -> PeerMessage {
        PeerMessage::Slots { nodes: Members::default(), slots: Slots::default() }
    }

    /// Whether all whose slots are not known are taken for gone.
    pub(super) fn absent_are_gone(&self) -> bool {
        if !self.is_to_begin() {
            return false;
        }
        let policy = &self.config.policy;
        let period = policy.heartbeat_period.0.max(1);
        let gone = |node: NodeId| {
            let absent = &self.gather.absent;
            let silent = policy.heartbeat_timeout.0.saturating_mul(4).max(LEAST.0);
            let patience = if absent.was_heard(node) { silent } else { policy.absent_timeout.0 };
            absent.unanswered(node) > patience.div_ceil(period).max(2)
        };
        let missing = self.missing();
        !missing.is_empty() && missing.into_iter().all(gone)
    }

    /// One for all says who is not in the first record.
    pub(super) fn tell_absent(&mut self, record: &EpochRecord) {
        let first = self.record.is_none() && record.epoch == EpochId(1) && record.outcome.is_none();
        if !first || record.members().next() != Some(self.me) {
            return;
        }
        let absent: Vec<NodeId> = self.config.nodes.iter().filter(|node| !record.nodes.knows(*node)).collect();
        if !absent.is_empty() {
            self.report(Report::Notice(Notice::BegunWithout { absent }));
        }
    }

    /// When somebody is asked next.
    pub(super) fn absent_deadline(&self) -> Option<Micros> {
        let asked = self.gather.absent.asked.filter(|_| self.is_to_begin());
        asked.map(|asked| asked.after(self.config.policy.heartbeat_period))
    }
}
