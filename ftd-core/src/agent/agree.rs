//! Reading and proposing records.

use super::short::Short;
use super::{Agent, Effect, Predecessor, Run, Stage};
use crate::breach::Breach;
use crate::failure::{Cause, Collateral, Failure, FailureSet, Subject};
use crate::ids::{EpochId, GroupId, NodeId, Process, Revision, SlotId, Version};
use crate::inventory::Level;
use crate::plan::{self, Cluster, Unrecoverable};
use crate::record::{EpochRecord, Outcome};
use crate::report::{Episode, Notice, Report};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl Agent {
    /// Issues a wanted read.
    pub(super) fn guard_store(&mut self) {
        if self.store.reads(self.now) {
            self.emit(Effect::ReadStore);
        }
    }

    pub(super) fn write(&mut self, record: EpochRecord) {
        self.announced = true;
        let record = Arc::new(record);
        let lost = record.failures.failures().iter().filter_map(|failure| match failure.subject {
            Subject::Node(node) => Some(node),
            Subject::Slot(_) | Subject::Process(_) => None,
        });
        let out: Vec<NodeId> = lost.filter(|node| !record.is_member(*node)).collect();
        let leases = self.newly_used(&record);
        self.fence.writing(out);
        self.store.writes(record.clone(), self.now);
        self.emit(Effect::Cas { expected: self.store.revision, leases, record });
    }

    /// Nodes on which ranks are placed anew, this one included: what it writes may land when it is dead.
    fn newly_used(&self, record: &EpochRecord) -> Vec<NodeId> {
        let asks = record.outcome.is_none() && self.config.breach != Breach::LeasesForgotten;
        let Some(old) = self.record.as_ref().filter(|_| asks) else { return Vec::new() };
        let moved = record.placement.differs(&old.placement);
        let used = moved.into_iter().filter_map(|slot| record.slots.node(slot));
        let nodes: BTreeSet<NodeId> = used.chain(record.joined.iter().copied()).collect();
        nodes.into_iter().collect()
    }

    /// Takes a record that was read, written or received.
    pub(super) fn adopt(&mut self, revision: Revision, record: Arc<EpochRecord>) {
        let known = self.epoch();
        // The end of a job whose record was deleted may be written by one who does not know how far it was.
        let ends = record.outcome.is_some() && self.record.as_ref().is_some_and(|record| record.outcome.is_none());
        if revision < self.store.revision || revision == Revision(0) || (record.epoch < known && !ends) {
            return;
        }
        self.store.knows(revision, self.now);
        if self.record.is_none() && !self.announced {
            self.fence.succeed();
        }
        if self.config.breach == Breach::OwnTerms {
            let own = EpochRecord { terms: self.config.policy.terms(), ..EpochRecord::clone(&record) };
            self.fence.adopt(&own, revision, self.now);
        }
        self.fence.adopt(&record, revision, self.now);
        if record.epoch == known && !ends {
            // Written once more, to take back an accusation: invariant 1.
            debug_assert_eq!(self.record.as_ref(), Some(&record), "two records of {known}");
            return;
        }
        self.tree.adopt(record.epoch, &record.nodes, record.terms);
        // Nothing of it is needed any more, and its author knows all slots of all nodes.
        self.gather = super::gathered::Gather::default();
        // A record that nobody could have written without a word from this node, and this agent has not said it yet: it
        // was a predecessor's.
        let predecessors = if self.record.is_none() { !self.announced } else { self.stage == Stage::Restarted };
        let waits = self.record.is_none() || self.stage == Stage::Joining;
        if waits && self.is_stranger(&record) {
            return self.adopt_as_stranger(record);
        }
        if predecessors && self.store.is_first_read(revision) {
            self.adopt_predecessors(record);
        } else {
            self.adopt_next(record);
        }
        self.pass_on_record();
    }

    /// A record was there when this agent started: its predecessor is dead, and with it the node's ranks.
    fn adopt_predecessors(&mut self, record: Arc<EpochRecord>) {
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
        // What a newer record says it says of these, too.
        progress.episodes.clear();
        for entry in record.history.iter().filter(|entry| entry.epoch >= reported) {
            let (epoch, failures) = (entry.epoch.next(), plan::completed(&entry.failures, &self.causes));
            progress.episodes.push(Episode { epoch, failures, placement: record.placement.clone() });
        }
    }

    fn adopt_next(&mut self, record: Arc<EpochRecord>) {
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
        self.fenced = None;
        self.unfit.clear();
        self.short = None;
        self.joiners.retain(|node, _| !record.nodes.knows(*node));
        self.causes.retain(|process, _| remembered(process));
        self.exited.retain(remembered);
        let mut ends: Vec<Collateral> =
            self.batch.iter().flat_map(|batch| batch.failures.collateral()).copied().collect();
        ends.extend(held.into_iter().map(|hold| Collateral { process: hold.process, end: hold.end }));
        failures.add_known(&ends);
        self.run = Run::of(&record);
        (self.looks.asked, self.looks.answered) = (0, 0);
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
            let placement = old.as_ref().unwrap_or(&record).placement.clone();
            progress.episodes.push(Episode { epoch: record.epoch, failures, placement });
        }
        self.stop_worlds(Some(record.world));
        self.enter(Stage::Emptying);
        self.renew_batch(&record);
    }

    /// Proposes what is to be agreed: the first record, the next epoch, the job's end.
    pub(super) fn guard_agreement(&mut self) {
        if matches!(self.stage, Stage::Joining | Stage::Ending | Stage::Over) {
            return;
        }
        self.guard_clean_end();
        let needed = self.verdict.is_some() || self.batch.is_some() || self.record.is_none() || self.fenced.is_some();
        let timeout = self.config.policy.store_timeout;
        if needed && self.store.down.is_some_and(|since| self.due(since, timeout)) {
            // Unless somebody else has gone on meanwhile, that is written when it answers again.
            let reason = format!("the job cannot continue, because the store has not answered for {timeout}");
            self.conclude(Outcome::failed(1, reason), false);
            self.stop_worlds(None);
        }
        if !self.store.is_idle(self.now) {
            return;
        }
        let verdict = self.verdict.clone();
        match (verdict, self.record.clone()) {
            (Some(verdict), Some(record)) => self.write(plan::last_record(&record, verdict.outcome)),
            (Some(verdict), None) => self.write(self.only_record(verdict.outcome)),
            (None, None) => self.propose_first(),
            (None, Some(record)) => self.propose_next(&record),
        }
        self.guard_take_back();
    }

    /// The record of a job that ends before its first one.
    fn only_record(&self, outcome: Outcome) -> EpochRecord {
        let policy = &self.config.policy;
        let last = self.predecessor.map_or(EpochId(0), |predecessor| predecessor.reported);
        let nodes = self.config.nodes.clone();
        let record = plan::only_record(self.config.mode, policy.terms(), self.config.world_size, nodes, outcome);
        EpochRecord { epoch: last.next(), ..record }
    }

    /// All ranks of all nodes ended cleanly: the job is complete. The root says so for all.
    fn guard_clean_end(&mut self) {
        let done = self.tree.is_root() && self.tree.decree().finished;
        if done && self.batch.is_none() && self.verdict.is_none() && self.leaving.is_none() {
            self.conclude(Outcome::clean(), false);
        }
    }

    /// An accusation that may still be written, of nodes that are heard again: the record is written once more as it is.
    fn guard_take_back(&mut self) {
        let Some(record) = self.record.clone().filter(|_| self.store.is_idle(self.now)) else { return };
        if self.fence.takes_back(self.now) && self.verdict.is_none() {
            self.write(EpochRecord::clone(&record));
        }
    }

    pub(super) fn need_slot(&mut self) {
        self.slots_asked += 1;
        self.slots_since = self.now;
        self.emit(Effect::NeedSlot);
    }

    fn propose_next(&mut self, record: &EpochRecord) {
        let Some((failures, accuses)) = self.failure_set(record) else {
            self.short = None;
            return;
        };
        let cluster = Cluster {
            new_slots: self
                .slots
                .iter()
                .filter(|(slot, known)| known.up && record.slot(**slot).is_none())
                .map(|(slot, _)| (*slot, self.me))
                .collect(),
            joiners: self.all_joiners(record),
            unfit: self.unfit.clone(),
            checkpointed: self.checkpointed(),
            computed: self.computed(),
            late_progress: self.run.late_progress,
            vain: !self.tree.decree().release,
            causes: self.causes.clone(),
            at: self.noticed(),
            restored: self.taken_back(),
        };
        if self.waits_still(&failures, &cluster) {
            return;
        }
        match plan::plan(record, &failures, &cluster, &self.config.policy) {
            Ok(_) if self.may_be_a_loop(record, &failures, &cluster) => {}
            Ok(next) => self.write(next),
            Err(Unrecoverable::NothingFailed(_)) => self.dissolve_batch(),
            Err(Unrecoverable::NoSlot { missing, .. }) if self.await_slots(&failures, missing) => {}
            Err(Unrecoverable::NoSlot { missing, .. }) if self.await_node(&failures, &cluster, missing) => {}
            Err(_) if self.await_causes(&failures) => {}
            // It dies with the accusation: when somebody else's write comes first, all is looked at anew.
            Err(error) if accuses => {
                let outcome = Outcome::failed(error.status(), error.to_string());
                self.write(plan::last_record(record, outcome));
            }
            Err(error) => self.conclude_now(&error, record),
        }
    }

    /// Whether what cannot be placed is what could not be placed before.
    fn waits_still(&self, failures: &FailureSet, cluster: &Cluster) -> bool {
        let same = |short: &&Short| short.failures == *failures && short.offered == Short::offered(cluster);
        let waits = |short: &Short| !self.due(short.since, self.config.policy.node_timeout);
        self.short.as_ref().filter(same).is_some_and(waits)
    }

    /// Waits for another node, or for one that is silent, a while: nothing is agreed meanwhile. False when there is nobody to
    /// wait for.
    fn await_node(&mut self, failures: &FailureSet, cluster: &Cluster, missing: u32) -> bool {
        if self.config.nodes.len() < 2 {
            return false;
        }
        if self.short.is_none() {
            self.report(Report::Notice(Notice::WaitingForNode { missing }));
        }
        let since = self.short.as_ref().map_or(self.now, |short| short.since);
        self.short = Some(Short { since, failures: failures.clone(), offered: Short::offered(cluster) });
        !self.due(since, self.config.policy.node_timeout)
    }

    /// Likewise before the first record, when a node of the job has not been heard of.
    pub(super) fn await_first(&mut self, missing: u32) -> bool {
        self.await_node(&FailureSet::new(), &Cluster::default(), missing)
    }

    /// A newer version than the restored one has become complete in this epoch. (That one is shipped to new partners.)
    fn checkpointed(&self) -> bool {
        let restored =
            |group: &GroupId| self.run.choice.as_ref().and_then(|choice| choice.get(group).copied().flatten());
        let newer = |((group, _), version): (&(GroupId, Level), &Version)| {
            restored(group).is_none_or(|stamp| *version > stamp.version)
        };
        self.tree.decree().complete.iter().any(newer)
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
        let took = self.run.locals.iter().filter(|(_, local)| local.restored);
        let groups: BTreeSet<GroupId> = took.map(|(process, _)| self.config.groups.of(process.rank)).collect();
        let chosen = |group| self.run.choice.as_ref().and_then(|choice| choice.get(&group).copied().flatten());
        groups.into_iter().filter_map(|group| Some((group, chosen(group)?.version))).collect()
    }
}
