//! What has failed, as far as this node knows, and what of it is agreed next: the failure set that is proposed is put together here, and
//! nowhere else.
//!
//! Others notice what goes into it, and call [`fail`](Agent::fail): `deaths` and `holds`, for whose a death is ([`blame`](crate::blame)),
//! `incomplete`, `fetch`, `intake`, `execute`, `silence` and `agree` (this node's own). The [planner](crate::plan) leaves out what the
//! record knows already, lists the first eight of the ends that are nobody's fault and counts the others, and brings causes that became
//! known after an agreement into the record's history.
//!
//! What is known of its own node, and nobody else may know ([`fail`](Agent::fail)), waits in the batch until the window for what
//! belongs to it is over and the node's processes have been looked at. Nodes that are to be given up come from the
//! [fence](crate::fence), which decides when. Whoever writes puts both into one set ([`failure_set`](Agent::failure_set)), and what was
//! not agreed with the record that came first is looked at anew ([`renew_batch`](Agent::renew_batch)).

use super::batch::Batch;
use super::held::Hold;
use super::{Agent, Stage};
use crate::breach::Breach;
use crate::failure::{Cause, Collateral, Failure, FailureSet, OwnEnd, Subject};
use crate::ids::{Micros, Process, Rank, SlotId};
use crate::plan::{self, relevant};
use crate::record::EpochRecord;
use crate::report::Report;
use crate::slots::SlotState;

impl Agent {
    /// Notes a failure and begins a recovery with the first.
    pub(super) fn fail(&mut self, subject: Subject, cause: Cause) {
        self.changed = true;
        let Some(record) = &self.record else { return };
        if self.end.is_near() || matches!(self.run.stage, Stage::Ending | Stage::Over) {
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
        for hold in self.holds.let_go() {
            failures.insert_collateral(Collateral { process: hold.process, end: hold.end });
        }
        let epoch = record.epoch;
        match &mut self.batch {
            Some(batch) => batch.failures.merge(&failures),
            None => {
                self.end_recovery();
                self.run.denied = None;
                self.telling.begin(self.now);
                self.report(Report::RecoveryBegun { epoch, failures: failures.clone(), at: self.now });
                self.batch = Some(Batch { failures, since: self.now, noticed: self.now, surveyed: false });
                self.holds.want_look();
            }
        }
    }

    /// An end by a process's own will is collateral of a failure that is known; false when none is.
    pub(super) fn is_collateral(&mut self, process: Process, end: OwnEnd) -> bool {
        if let Some(batch) = &mut self.batch {
            if self.config.breach == Breach::CollateralBlamed {
                let (subject, cause) = (Subject::Process(process), Cause::Own(end));
                batch.failures.insert(Failure { subject, cause, node: self.me });
            }
            batch.failures.insert_collateral(Collateral { process, end });
        }
        self.batch.is_some()
    }

    /// The ends of this node's processes that are collateral of what is agreed: noted with a failure, or held.
    pub(super) fn collateral(&self, held: &[Hold]) -> Vec<Collateral> {
        let noted = self.noted().into_iter().flat_map(FailureSet::collateral).copied();
        noted.chain(held.iter().map(|hold| Collateral { process: hold.process, end: hold.end })).collect()
    }

    /// What has failed on this node and is not agreed yet.
    pub(super) fn noted(&self) -> Option<&FailureSet> {
        self.batch.as_ref().map(|batch| &batch.failures)
    }

    /// What is known of one of these was not all.
    pub(super) fn correct_batch(&mut self, failure: Failure) {
        if let Some(batch) = &mut self.batch {
            batch.failures.insert(failure);
        }
    }

    /// This node's processes have been looked at.
    pub(super) fn batch_is_surveyed(&mut self) {
        if let Some(batch) = &mut self.batch {
            batch.surveyed = true;
        }
    }

    /// Nothing of it is to be agreed any more.
    pub(super) fn drop_batch(&mut self) {
        self.batch = None;
    }

    /// Nothing failed after all: what was taken for collateral is held again.
    pub(super) fn dissolve_batch(&mut self) {
        self.changed = true;
        let Some(batch) = self.batch.take() else { return };
        for collateral in batch.failures.collateral() {
            self.hold(collateral.process, collateral.end);
        }
    }

    /// Of the failures that were not agreed yet, those count on that concern the new record: the deaths of slots and
    /// nodes. Deaths of processes ended with their world.
    pub(super) fn renew_batch(&mut self, record: &EpochRecord) {
        let batch = self.batch.take();
        if self.config.breach == Breach::LoserForgets {
            return;
        }
        let mut remaining = plan::relevant(record, &batch.map(|batch| batch.failures).unwrap_or_default());
        remaining.retain(|failure| match failure.subject {
            Subject::Process(_) => false,
            Subject::Slot(_) => true,
            Subject::Node(_) => failure.cause.takes_node() || self.config.breach == Breach::FailureAgain,
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
        let absent = mine.map(|entry| entry.slot).filter(|slot| !self.slots.exists(*slot));
        let absent: Vec<SlotId> = absent.collect();
        for slot in absent {
            self.slots.lose(slot);
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
        if self.config.breach == Breach::SilentStay || !self.leaves_out() {
            return silent;
        }
        if self.run.stage != Stage::Restarted && self.run.fenced.is_none() {
            for node in self.fence.to_write(self.now) {
                silent.insert(Failure { subject: Subject::Node(node), cause: Cause::NodeSilent, node });
            }
        }
        silent
    }

    /// Remembers since when there are any.
    pub(super) fn note_accused(&mut self) {
        let accuses = !self.silent_nodes().is_empty();
        self.run.accused = if accuses { Some(self.run.accused.unwrap_or(self.now)) } else { None };
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
        for slot in self.slots.lost() {
            failures.insert(Failure { subject: Subject::Slot(slot), cause: Cause::SlotLost, node: self.me });
        }
        Some((plan::relevant(record, &failures), accuses))
    }

    /// Whether something is to be agreed on now.
    pub(super) fn fails(&self) -> bool {
        self.record.as_ref().is_some_and(|record| self.failure_set(record).is_some())
    }

    /// When more may be agreed, or not waited for any longer.
    pub(super) fn batch_deadlines(&self) -> Vec<Micros> {
        let (Some(batch), policy) = (&self.batch, &self.config.policy) else { return Vec::new() };
        let mut at = vec![self.batch_due(batch), batch.since.after(policy.exit_timeout)];
        at.push(self.slots.since.after(policy.slot_timeout));
        at.extend(self.slots.dying().map(|since| since.after(policy.exit_timeout)));
        at
    }

    fn batch_due(&self, batch: &Batch) -> Micros {
        let together = self.killed_together(batch.since, batch.failures.failures());
        batch.since.after(self.config.policy.batch_window).after(together)
    }

    /// A slot is about to be lost: the epoch that is proposed without that ends with the launcher's word on it.
    fn await_lost_slots(&self) -> bool {
        self.slots.dying().any(|since| !self.due(since, self.config.policy.exit_timeout))
    }

    /// When the failure that is to be proposed was noticed.
    pub(super) fn noticed(&self) -> Micros {
        self.batch.as_ref().map_or(self.now, |batch| batch.since)
    }

    /// So long this agent, or the one before it, has known of what is to be proposed.
    pub(super) fn noticed_ago(&self) -> Micros {
        let batch = self.batch.as_ref().map(|batch| batch.noticed);
        let first = batch.into_iter().chain(self.run.accused).min();
        first.map_or(Micros(0), |first| self.now.since(first))
    }

    /// What fails was noticed so early already.
    pub(super) fn noticed_since(&mut self, since: Option<Micros>) {
        self.telling.noticed_since(since);
        if let Some((batch, since)) = self.batch.as_mut().zip(since) {
            batch.noticed = batch.noticed.min(since);
        }
    }
}
