//! What has failed, as far as this node knows, and what of it is agreed next: a failure set is decided here, and nowhere else.
//!
//! What is known of its own node, and nobody else may know ([`fail`](Agent::fail)), waits in the batch until the window for what
//! belongs to it is over and the node's processes have been looked at. Nodes that are to be given up come from the
//! [fence](crate::fence), which decides when. Whoever writes puts both into one set ([`failure_set`](Agent::failure_set)), and what was
//! not agreed with the record that came first is looked at anew ([`renew_batch`](Agent::renew_batch)).

use super::{Agent, Batch, Stage};
use crate::failure::{Cause, Collateral, Failure, FailureSet, Subject};
use crate::ids::{Micros, Rank, SlotId};
use crate::plan::{self, relevant};
use crate::record::EpochRecord;
use crate::report::Report;
use crate::slots::SlotState;

impl Agent {
    /// Notes a failure and begins a recovery with the first.
    pub(super) fn fail(&mut self, subject: Subject, cause: Cause) {
        self.changed = true;
        let Some(record) = &self.record else { return };
        if self.verdict.is_some() || self.leaving.is_some() || matches!(self.stage, Stage::Ending | Stage::Over) {
            return;
        }
        let node = match subject {
            Subject::Node(node) => node,
            _ => self.me,
        };
        let mut failures = FailureSet::new();
        failures.insert(Failure { subject, cause, node });
        if relevant(record, &failures).is_empty() {
            return;
        }
        // A parked slot's loss ends no epoch; it is written down with the next one.
        let active = |slot| record.slot(slot).is_some_and(|entry| entry.state == SlotState::Active);
        if matches!(subject, Subject::Slot(slot) if !active(slot)) {
            return;
        }
        for hold in std::mem::take(&mut self.holds) {
            failures.insert_collateral(Collateral { process: hold.process, end: hold.end });
        }
        let epoch = record.epoch;
        match &mut self.batch {
            Some(batch) => batch.failures.merge(&failures),
            None => {
                self.end_recovery();
                self.run.denied = None;
                self.begin_progress();
                self.report(Report::RecoveryBegun { epoch, failures: failures.clone(), at: self.now });
                self.batch = Some(Batch { failures, since: self.now, surveyed: false });
                self.looks.wanted = true;
            }
        }
    }

    /// Of the failures that were not agreed yet, those count on that concern the new record: the deaths of slots and
    /// nodes. Deaths of processes ended with their world.
    pub(super) fn renew_batch(&mut self, record: &EpochRecord) {
        let batch = self.batch.take();
        let mut remaining = plan::relevant(record, &batch.map(|batch| batch.failures).unwrap_or_default());
        remaining.retain(|failure| match failure.subject {
            Subject::Process(_) => false,
            Subject::Slot(_) => true,
            Subject::Node(_) => failure.cause.takes_node(),
        });
        for failure in remaining.failures() {
            self.fail(failure.subject, failure.cause);
        }
        self.fail_absent_slots();
    }

    /// Slots that the record counts on and that do not exist (any more): a predecessor had announced them.
    pub(super) fn fail_absent_slots(&mut self) {
        let Some(record) = &self.record else { return };
        let mine = record.slots.of_node(self.me).filter(|entry| entry.state != SlotState::Lost);
        let absent = mine.map(|entry| entry.slot).filter(|slot| !self.slots.contains_key(slot));
        let absent: Vec<SlotId> = absent.collect();
        for slot in absent {
            self.lost_slots.insert(slot);
            self.fail(Subject::Slot(slot), Cause::SlotLost);
        }
    }

    /// The rank of a lost slot has died of that: one death is one failure.
    pub(super) fn forget_explained(&mut self, rank: Option<Rank>) {
        if let Some(batch) = &mut self.batch {
            batch.failures.retain(|failure| match failure.subject {
                Subject::Process(process) => failure.cause != Cause::Unknown || Some(process.rank) != rank,
                _ => true,
            });
        }
    }

    /// Nodes that are to be left out now.
    fn silent_nodes(&self) -> FailureSet {
        let mut silent = FailureSet::new();
        if self.stage != Stage::Restarted && self.fenced.is_none() {
            for node in self.fence.to_write(self.now) {
                silent.insert(Failure { subject: Subject::Node(node), cause: Cause::NodeSilent, node });
            }
        }
        silent
    }

    /// The failure set that is to be agreed now, and whether somebody is accused in it; nothing as long as there is none, or what is
    /// known is not ripe: more that belongs to it is on its way.
    pub(super) fn failure_set(&self, record: &EpochRecord) -> Option<(FailureSet, bool)> {
        let mut failures = self.silent_nodes();
        let accuses = !failures.is_empty();
        let ripe = |batch: &&Batch| self.now >= self.batch_due(batch) && batch.surveyed && !self.await_lost_slots();
        match self.batch.as_ref().filter(ripe) {
            Some(batch) => failures.merge(&batch.failures),
            None if !accuses => return None,
            None => {}
        }
        for slot in &self.lost_slots {
            failures.insert(Failure { subject: Subject::Slot(*slot), cause: Cause::SlotLost, node: self.me });
        }
        Some((plan::relevant(record, &failures), accuses))
    }

    pub(super) fn batch_due(&self, batch: &Batch) -> Micros {
        batch.since.after(self.config.policy.batch_window)
    }

    /// A slot is about to be lost: the epoch that is proposed without that ends with the launcher's word on it.
    fn await_lost_slots(&self) -> bool {
        self.dying_slots.values().any(|since| !self.due(*since, self.config.policy.exit_timeout))
    }

    /// When the failure that is to be proposed was noticed.
    pub(super) fn noticed(&self) -> Micros {
        self.batch.as_ref().map_or(self.now, |batch| batch.since)
    }
}
