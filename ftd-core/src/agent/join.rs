//! Nodes that come into a running job: how one asks to be taken in, and what the members do with that.
//!
//! A node that the record never had tells the lowest members of its slots, again and again. Those tell everybody through the
//! tree. It is in the job with the next epoch, whatever makes that: a failure, or that a rank without a slot waits for it. Before
//! the first record its slots are gathered like those of the job's own nodes, of which one may be dead.

use super::{Agent, Joiners, Stage};
use crate::breach::Breach;
use crate::ids::{EpochId, Micros, NodeId, SlotId};
use crate::message::PeerMessage;
use crate::record::{EpochRecord, Outcome};
use std::collections::BTreeSet;
use std::sync::Arc;

/// So often who waits to be taken in asks whether those are there who could do that.
const CALLS: Micros = Micros::from_secs(15);

impl Agent {
    /// Whether this node was never in the job of this record.
    pub(super) fn is_stranger(&self, record: &EpochRecord) -> bool {
        record.outcome.is_none() && !record.nodes.knows(self.me)
    }

    /// A record of a job that this node is not in yet.
    pub(super) fn adopt_as_stranger(&mut self, record: Arc<EpochRecord>) {
        self.record = Some(record);
        if self.run.stage != Stage::Joining {
            self.enter(Stage::Joining);
        }
    }

    /// The job is others' to begin.
    pub(super) fn is_outsider(&self) -> bool {
        !self.config.nodes.contains(self.me)
    }

    /// Asks to be taken in.
    pub(super) fn guard_join(&mut self) {
        let waits = match self.run.stage {
            Stage::Joining => true,
            Stage::Gathering => self.started() && self.record.is_none() && self.is_outsider(),
            _ => false,
        };
        if !waits || self.joining.asked.is_some_and(|asked| !self.due(asked, self.join_period())) {
            return;
        }
        let Some(slots) = self.own_slots() else { return };
        self.slots.announced = true;
        self.joining.asked = Some(self.now);
        let epoch = self.epoch();
        let calls = self.joining.called.is_none_or(|called| self.due(called, CALLS));
        for to in self.hosts() {
            self.send(to, PeerMessage::Join { epoch, slots: slots.clone() });
            if calls {
                // Everybody has a newer one to answer with, once there is one.
                self.send(to, PeerMessage::AskForRecord { epoch: EpochId(0) });
            }
        }
        if calls {
            self.joining.called = Some(self.now);
            let since = *self.joining.unanswered.get_or_insert(self.now);
            self.guard_lonely(since);
        }
    }

    /// A job that has ended without the store has nobody left who could say so to a node that waits to be taken in.
    fn guard_lonely(&mut self, since: Micros) {
        let policy = &self.config.policy;
        // Before there is one nobody answers: those whom it is to begin with give up when they have waited for all, and then for the store.
        let begins = if self.record.is_none() { policy.start_timeout.after(policy.end_timeout) } else { Micros(0) };
        let patience = policy.store_timeout.after(begins);
        if self.due(since, patience) && self.config.breach != Breach::EndWaitsForEver {
            let reason =
                format!("nobody of the job has answered {} for {patience}, which was to come into it", self.me);
            self.end.unrecorded = Some(Outcome::failed(1, reason));
            self.enter_ending();
        }
    }

    /// Whom it asks now: those of whom one writes what others find silent; before the first record one after the other.
    fn hosts(&mut self) -> Vec<NodeId> {
        if let Some(record) = &self.record {
            return record.members().take(record.terms.observers as usize + 1).collect();
        }
        let nodes = &self.config.nodes;
        let first = self.joining.hosts;
        let last = first.saturating_add((self.config.policy.observers as u32 + 1).min(nodes.len()));
        self.joining.hosts = last;
        (first..last).filter_map(|at| nodes.at(at % nodes.len())).collect()
    }

    fn join_period(&self) -> Micros {
        self.record.as_ref().map_or(self.config.policy.heartbeat_timeout, |record| record.terms.timeout)
    }

    /// When it asks again.
    pub(super) fn join_deadline(&self) -> Option<Micros> {
        let asked = self.joining.asked.filter(|_| matches!(self.run.stage, Stage::Joining | Stage::Gathering));
        asked.map(|asked| asked.after(self.join_period()))
    }

    /// A node asks to be taken in.
    pub(super) fn take_join(&mut self, from: NodeId, epoch: EpochId, slots: BTreeSet<SlotId>) {
        let Some(record) = &self.record else { return self.take_first_join(from, slots) };
        let known = record.nodes.knows(from);
        if epoch < record.epoch || known {
            self.send_record(from);
        }
        if !known && self.joining.joiners.get(&from) != Some(&slots) {
            self.joining.joiners.insert(from, slots);
            self.changed = true;
        }
    }

    /// Those who want to come in and may, as far as this node has heard.
    pub(super) fn all_joiners(&self, record: &EpochRecord, unfit: &BTreeSet<NodeId>) -> Joiners {
        let mut all = self.tree.decree().joiners.clone();
        all.extend(self.joining.joiners.iter().map(|(node, slots)| (*node, slots.clone())));
        all.retain(|node, _| !record.nodes.knows(*node) && !unfit.contains(node));
        all
    }
}
