//! Reading and proposing records.

use super::{Agent, Asked, Effect, Predecessor, Stage};
use crate::failure::{Cause, Failure, FailureSet, Subject};
use crate::ids::{GroupId, NodeId, Process, Revision, SlotId, Version};
use crate::plan::{self, Cluster, Unrecoverable};
use crate::record::{EpochRecord, Outcome, SlotState};
use crate::report::{Episode, Notice, Report};
use std::collections::{BTreeMap, BTreeSet};

impl Agent {
    /// Wants the record read; at once if the store is idle.
    pub(super) fn read(&mut self) {
        self.link.want_read = true;
    }

    /// Issues a wanted read, and gives up on a store that is needed and has been unreachable for too long.
    pub(super) fn guard_store(&mut self) {
        if self.link.want_read && self.link.asked == Asked::Nothing && self.now >= self.link.retry_at {
            self.link.want_read = false;
            self.link.asked = Asked::Read;
            self.emit(Effect::ReadStore);
        }
    }

    fn write(&mut self, record: EpochRecord) {
        self.announced = true;
        let record = Box::new(record);
        self.link.asked = Asked::Write { record: record.clone(), at: self.now };
        self.emit(Effect::Cas { expected: self.link.revision, record });
    }

    fn store_idle(&self) -> bool {
        self.link.asked == Asked::Nothing && !self.link.want_read && self.now >= self.link.retry_at
    }

    /// Takes a record that was read or written.
    pub(super) fn adopt(&mut self, revision: Revision, record: EpochRecord) {
        if revision < self.link.revision || revision == Revision(0) {
            return;
        }
        self.link.revision = revision;
        if self.link.uncertain.as_ref().is_some_and(|(at, _)| revision > *at) {
            self.link.uncertain = None;
        }
        let known = self.epoch();
        if record.epoch < known {
            return;
        }
        self.ring.adopt(&record, self.now);
        if record.epoch == known {
            // Only the vouching differs: invariant 1.
            let placed = |record: &EpochRecord| (record.world, record.placement.clone(), record.outcome.clone());
            debug_assert_eq!(self.record.as_ref().map(placed), Some(placed(&record)), "two records of {known}");
            self.record = Some(record);
            return;
        }
        // A record that nobody could have written without a word from this node, and this agent has not said it yet: it
        // was a predecessor's.
        if self.record.is_none() && !self.announced {
            self.adopt_predecessors(record);
        } else {
            self.adopt_next(record);
        }
    }

    /// A record was there when this agent started: its predecessor is dead, and with it the node's ranks.
    fn adopt_predecessors(&mut self, record: EpochRecord) {
        let world = record.world;
        self.worlds.insert(world, None);
        let over = record.outcome.is_some() || !record.is_member(self.me);
        self.record = Some(record);
        if over {
            return self.enter_ending();
        }
        self.enter(Stage::Restarted);
        self.stop_worlds(None);
        self.fail(Subject::Node(self.me), Cause::AgentLost);
        self.fail_absent_slots();
        self.noticed_since(self.predecessor.map(|predecessor| predecessor.died));
        self.resume_reports();
    }

    /// Recoveries that were agreed, and that the predecessor did not live to report, are part of this one's report.
    fn resume_reports(&mut self) {
        let Some(Predecessor { reported, .. }) = self.predecessor else { return };
        let (Some(record), Some(progress)) = (&self.record, &mut self.progress) else { return };
        for entry in record.history.iter().filter(|entry| entry.epoch >= reported) {
            let (epoch, failures) = (entry.epoch.next(), plan::completed(&entry.failures, &self.causes));
            progress.episodes.push(Episode { epoch, failures, placement: record.placement.clone() });
        }
    }

    /// Slots that the record counts on and that do not exist (any more): a predecessor had announced them.
    fn fail_absent_slots(&mut self) {
        let Some(record) = &self.record else { return };
        let mine = record.slots.iter().filter(|entry| entry.node == self.me && entry.state != SlotState::Lost);
        let absent = mine.map(|entry| entry.slot).filter(|slot| !self.slots.contains_key(slot));
        let absent: Vec<SlotId> = absent.collect();
        for slot in absent {
            self.lost_slots.insert(slot);
            self.fail(Subject::Slot(slot), Cause::SlotLost);
        }
    }

    fn adopt_next(&mut self, record: EpochRecord) {
        debug_assert!(record.check().is_ok(), "{:?}", record.check());
        if record.outcome.is_some() || !record.is_member(self.me) {
            self.report_last_recovery();
        } else {
            self.end_recovery();
        }
        let old = self.record.replace(record);
        let Some(record) = self.record.clone() else { return };
        let held = std::mem::take(&mut self.holds);
        let mut failures = plan::completed(&record.failures, &self.causes);
        let remembered =
            |process: &Process| record.history.iter().any(|entry| entry.failures.of_process(*process).is_some());
        self.causes.retain(|process, _| remembered(process));
        self.exited.retain(remembered);
        if let Some(batch) = &self.batch {
            batch.failures.collateral().iter().for_each(|collateral| failures.insert_collateral(*collateral));
        }
        for hold in held {
            failures.insert_collateral(crate::failure::Collateral { process: hold.process, end: hold.end });
        }
        // Inventories and commits belong to their epoch.
        self.locals.clear();
        self.askers.clear();
        self.inventory = None;
        self.inventory_asked = None;
        self.choice = None;
        self.denied = None;
        self.late_progress = false;
        self.retired = false;
        self.drained = false;
        self.ledger = crate::inventory::Ledger::default();
        if self.verdict.as_ref().is_some_and(|verdict| !verdict.cancelled) {
            self.verdict = None;
        }
        if record.outcome.is_some() || !record.is_member(self.me) {
            return self.enter_ending();
        }
        self.last_words = None;
        if old.is_some() {
            self.begin_progress();
            self.report(Report::RecoveryAgreed {
                epoch: record.epoch,
                world: record.world,
                failures: failures.clone(),
                at: self.now,
            });
        }
        if let Some(progress) = &mut self.progress {
            progress.times.agreed = Some(self.now);
            progress.last_sign = self.now;
            let placement = old.map_or_else(|| record.placement.clone(), |old| old.placement);
            progress.episodes.push(Episode { epoch: record.epoch, failures, placement });
        }
        self.stop_worlds(Some(record.world));
        self.enter(Stage::Emptying);
        self.renew_batch(&record);
    }

    /// Of the failures that were not agreed yet, those count on that concern the new record: the deaths of slots and
    /// nodes. Deaths of processes ended with their world.
    fn renew_batch(&mut self, record: &EpochRecord) {
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

    /// Proposes what is to be agreed: the first record, the next epoch, the job's end.
    pub(super) fn guard_agreement(&mut self) {
        if matches!(self.stage, Stage::Ending | Stage::Over) {
            return;
        }
        self.guard_clean_end();
        self.guard_accusations();
        let needed = self.verdict.is_some()
            || self.batch.is_some()
            || self.record.is_none()
            || self.paused.is_some()
            || self.fenced;
        let timeout = self.config.policy.store_timeout;
        if needed && self.link.down.is_some_and(|since| self.due(since, timeout)) {
            let reason = format!("the job cannot continue, because the store has not answered for {timeout}");
            return self.end_unrecorded(Outcome::failed(1, reason));
        }
        if !self.store_idle() {
            return;
        }
        let verdict = self.verdict.clone();
        match (verdict, self.record.clone()) {
            (Some(verdict), Some(record)) => self.write(plan::last_record(&record, verdict.outcome)),
            (Some(verdict), None) => self.end_unrecorded(verdict.outcome),
            (None, None) => self.propose_first(),
            (None, Some(record)) => self.propose_next(&record),
        }
        if let (Some(vouched), true) = (self.vouch(), self.store_idle()) {
            self.write(vouched);
        }
    }

    /// All ranks of all nodes ended cleanly: the job is complete.
    fn guard_clean_end(&mut self) {
        let done = self.finished() && self.all_peers(|status| status.finished);
        if done && self.batch.is_none() && self.verdict.is_none() && self.leaving.is_none() {
            self.conclude(Outcome::clean(), false);
        }
    }

    fn guard_accusations(&mut self) {
        let accused = self.ring.accused(self.now);
        if let Some(batch) = &mut self.batch {
            // A node that was heard again, or vouched for itself, is not dead.
            batch.failures.retain(|failure| match failure.subject {
                Subject::Node(node) => !failure.cause.takes_node() || accused.contains(&node),
                _ => true,
            });
            if batch.failures.is_empty() {
                self.dissolve_batch();
            }
        }
        if self.stage == Stage::Restarted || self.fenced {
            return;
        }
        for node in accused {
            self.fail(Subject::Node(node), Cause::NodeSilent);
        }
    }

    fn propose_first(&mut self) {
        self.renew_first_slots();
        let since = self.stage_since.max(self.silent_at);
        let overdue = self.silent.is_empty() && self.due(since, self.config.policy.start_timeout);
        let mine = self.own_slots();
        let mut slots: BTreeMap<SlotId, NodeId> = BTreeMap::new();
        let mut nodes = vec![self.me];
        slots.extend(mine.iter().flatten().map(|slot| (*slot, self.me)));
        for node in self.others() {
            if let Some(theirs) = self.peers.get(&node).and_then(|status| status.slots.as_ref()) {
                slots.extend(theirs.iter().map(|slot| (*slot, node)));
                nodes.push(node);
            }
        }
        let complete = mine.is_some() && nodes.len() == self.config.nodes.len().max(1);
        if !(complete || overdue) {
            return;
        }
        if !complete {
            let up = self.slots.iter().filter(|(_, slot)| slot.up).map(|(slot, _)| (*slot, self.me));
            slots.extend(up);
        }
        let first = plan::first_record(self.config.mode, self.config.world_size, &nodes, &slots, self.now);
        match first {
            Ok(record) => self.write(record),
            Err(_) if self.config.renewable_slots && !overdue => {}
            Err(error) => self.end_unrecorded(Outcome::failed(error.status(), error.to_string())),
        }
    }

    /// This node's slots, once all of them are up.
    pub(super) fn own_slots(&self) -> Option<std::collections::BTreeSet<SlotId>> {
        // Not a word before the store has said that there is no record: a predecessor may have spoken for this node.
        let up = self.slots.values().all(|slot| slot.up) && self.started && self.link.answered;
        let enough = !self.config.renewable_slots || self.slots_missing() == 0;
        (up && enough).then(|| self.slots.keys().copied().collect())
    }

    /// Slots that this node was promised and that do not exist: their shepherds died before the first record, perhaps
    /// together with an agent before this one.
    fn slots_missing(&self) -> u32 {
        self.slots_promised.saturating_sub(self.slots.len() as u32)
    }

    /// Asks for what is missing before the first record. (Not before the store has said that there is none.)
    fn renew_first_slots(&mut self) {
        if !self.config.renewable_slots || !self.started || !self.link.answered {
            return;
        }
        for _ in self.slots_asked..self.slots_missing() {
            self.need_slot();
        }
    }

    fn need_slot(&mut self) {
        self.slots_asked += 1;
        self.slots_since = self.now;
        self.emit(Effect::NeedSlot);
    }

    fn propose_next(&mut self, record: &EpochRecord) {
        let Some(batch) = &self.batch else { return };
        if self.now < self.batch_due(batch) || !batch.surveyed || self.await_lost_slots() {
            return;
        }
        let mut failures = batch.failures.clone();
        for slot in &self.lost_slots {
            let subject = Subject::Slot(*slot);
            failures.insert(Failure { subject, cause: Cause::SlotLost, node: self.me });
        }
        let failures = plan::relevant(record, &failures);
        let cluster = Cluster {
            new_slots: self
                .slots
                .iter()
                .filter(|(slot, known)| known.up && record.slot(**slot).is_none())
                .map(|(slot, _)| (*slot, self.me))
                .collect(),
            checkpointed: !self.ledger.complete().is_empty(),
            computed: self.computed(),
            late_progress: self.late_progress,
            causes: self.causes.clone(),
            at: self.noticed(),
            restored: self.taken_back(),
        };
        match plan::plan(record, &failures, &cluster, &self.config.policy) {
            Ok(_) if self.may_be_a_loop(record, &failures, &cluster) => {}
            Ok(next) => self.write(next),
            Err(Unrecoverable::NothingFailed(_)) => self.dissolve_batch(),
            Err(Unrecoverable::NoSlot { missing, .. }) if self.await_slots(&failures, missing) => {}
            Err(_) if self.await_causes(&failures) => {}
            Err(error) => self.conclude_now(&error, record),
        }
    }

    /// A slot is about to be lost: the epoch that is proposed without that ends with the launcher's word on it.
    fn await_lost_slots(&self) -> bool {
        self.dying_slots.values().any(|since| !self.due(*since, self.config.policy.exit_timeout))
    }

    fn conclude_now(&mut self, error: &Unrecoverable, record: &EpochRecord) {
        self.conclude(Outcome::failed(error.status(), error.to_string()), false);
        if let Some(verdict) = self.verdict.clone() {
            self.write(plan::last_record(record, verdict.outcome));
        }
    }

    /// Whether a death whose cause is on its way would end the job if it came from outside.
    fn may_be_a_loop(&self, record: &EpochRecord, failures: &FailureSet, cluster: &Cluster) -> bool {
        if !self.await_causes(failures) {
            return false;
        }
        let mut killed = FailureSet::new();
        for failure in failures.failures() {
            let cause = if failure.cause == Cause::Unknown { Cause::Signal(9) } else { failure.cause };
            killed.insert(Failure { cause, ..*failure });
        }
        matches!(plan::plan(record, &killed, cluster, &self.config.policy), Err(Unrecoverable::CrashLoop { .. }))
    }

    /// The job ends with how a process died: that is worth waiting for, a while.
    fn await_causes(&self, failures: &FailureSet) -> bool {
        let unknown = failures.failures().iter().any(|failure| failure.cause == Cause::Unknown);
        unknown && !self.due(self.noticed(), self.config.policy.exit_timeout)
    }

    /// Asks for replacements of this node's lost slots and stops the world meanwhile; false when there is nothing to wait
    /// for. (A lost slot stays lost, so the world that is stopped before anything is agreed ends for certain.)
    fn await_slots(&mut self, failures: &FailureSet, missing: u32) -> bool {
        let lost: Vec<SlotId> = failures
            .failures()
            .iter()
            .filter_map(|failure| match failure.subject {
                Subject::Slot(slot) => Some(slot),
                _ => None,
            })
            .collect();
        let Some(newest) = lost.last().copied().filter(|_| missing as usize <= lost.len()) else { return false };
        if !self.config.renewable_slots {
            return false;
        }
        let coming = self.slots_asked + self.slots_coming();
        if coming > 0 && self.silent.is_empty() && self.due(self.slots_since, self.config.policy.slot_timeout) {
            return false;
        }
        if missing > coming {
            self.report(Report::Notice(Notice::WaitingForSlot { lost: newest }));
        }
        // A replacement may die before it has dialled in: then another one is asked for.
        for _ in coming..missing {
            self.need_slot();
        }
        self.stop_worlds(None);
        true
    }

    /// Slots that exist, are in no record, and whose shepherds have not dialled in.
    fn slots_coming(&self) -> u32 {
        let of_record = |slot| self.record.as_ref().is_some_and(|record| record.slot(slot).is_some());
        self.slots.iter().filter(|(slot, known)| !known.up && !of_record(**slot)).count() as u32
    }

    /// The epoch computed long enough before its failures.
    fn computed(&self) -> bool {
        self.stage == Stage::Computing && self.noticed().since(self.stage_since) >= self.config.policy.progress_after
    }

    /// What ranks of this node have taken back in this epoch, per group.
    fn taken_back(&self) -> BTreeMap<GroupId, Version> {
        let took = self.locals.iter().filter(|(_, local)| local.restored);
        let groups: BTreeSet<GroupId> = took.map(|(process, _)| self.config.groups.of(process.rank)).collect();
        let chosen = |group| self.choice.as_ref().and_then(|choice| choice.get(&group).copied().flatten());
        groups.into_iter().filter_map(|group| Some((group, chosen(group)?.version))).collect()
    }
}
