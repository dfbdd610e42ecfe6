//! Reading and proposing records.

use super::missed::Missed;
use super::{Agent, Effect, Run, Stage};
use crate::breach::Breach;
use crate::failure::{Cause, Failure, FailureSet, Subject};
use crate::ids::{EpochId, GroupId, Micros, NodeId, Process, Rank, Revision, Version};
use crate::inventory::Level;
use crate::plan::{self, Cluster, Unrecoverable};
use crate::policy::Terms;
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
        self.slots.announced = true;
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
        let all = self.config.breach == Breach::LeasesOfAll;
        let moved = if all {
            record.placement.iter().map(|(_, slot)| slot).collect()
        } else {
            record.placement.differs(&old.placement)
        };
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
        // It has ended without the store, and there is no way back from that.
        if self.end.unrecorded.is_some() && record.outcome.is_none() {
            return;
        }
        let moved = revision > self.store.revision;
        self.store.knows(revision, self.now);
        self.store.has(record.epoch);
        if self.record.is_none() && !self.slots.announced {
            self.fence.succeed();
        }
        if let Some(terms) = self.own_terms(record.terms) {
            self.fence.adopt(&EpochRecord { terms, ..EpochRecord::clone(&record) }, revision, self.now);
        }
        self.fence.adopt(&record, revision, self.now);
        if record.epoch == known && !ends {
            // Written once more, to take back an accusation: invariant 1.
            if moved {
                (self.run.short, self.run.missed) = (None, Missed::default());
            }
            debug_assert_eq!(self.record.as_ref(), Some(&record), "two records of {known}");
            return;
        }
        let said = self.tree.decree().clone();
        self.tree.adopt(record.epoch, &record.nodes, record.terms);
        if self.config.breach == Breach::OldWordsCount {
            self.tree.decide(said);
        }
        // Nothing of it is needed any more, and its author knows all slots of all nodes.
        self.gather = super::gathered::Gather::default();
        self.tell_absent(&record);
        // A record that nobody could have written without a word from this node, and this agent has not said it yet: it
        // was a predecessor's.
        let restarted = self.run.stage == Stage::Restarted && self.config.breach != Breach::WatchBelieved;
        let waits = self.record.is_none() || self.run.stage == Stage::Joining;
        let predecessors = if waits { !self.slots.announced } else { restarted };
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

    /// What a breach has an agent take for the job's terms.
    fn own_terms(&self, of_job: Terms) -> Option<Terms> {
        let own = self.config.policy.terms();
        match self.config.breach {
            Breach::OwnTerms => Some(own),
            Breach::OwnPatience => Some(Terms { patience: own.patience, ..of_job }),
            Breach::OwnObservers => Some(Terms { observers: own.observers, ..of_job }),
            _ => None,
        }
    }

    /// A record was there when this agent started: its predecessor is dead, and with it the node's ranks.
    fn adopt_predecessors(&mut self, record: Arc<EpochRecord>) {
        let world = record.world;
        self.worlds.begin(world);
        let over = record.outcome.is_some() || !record.is_member(self.me);
        self.record = Some(record);
        if over {
            return self.enter_ending();
        }
        self.enter(Stage::Restarted);
        self.stop_worlds(None);
        self.fail(Subject::Node(self.me), Cause::AgentLost);
        self.fail_absent_slots();
        self.noticed_since(self.predecessor.as_ref().map(|predecessor| predecessor.failed));
        self.resume_reports();
    }

    /// Recoveries that were agreed, and that the predecessor did not live to report, are part of this one's report.
    fn resume_reports(&mut self) {
        let Some(reported) = self.predecessor.as_ref().map(|predecessor| predecessor.reported) else { return };
        let (Some(record), Some(progress)) = (&self.record, &mut self.telling.progress) else { return };
        // What a newer record says it says of these, too.
        progress.episodes.clear();
        for entry in record.history.iter().filter(|entry| entry.epoch >= reported) {
            let (epoch, failures) = (entry.epoch.next(), plan::completed(&entry.failures, &self.memory.causes));
            progress.episodes.push(Episode { epoch, failures, placement: record.placement.clone() });
        }
    }

    fn adopt_next(&mut self, record: Arc<EpochRecord>) {
        debug_assert!(record.check().is_ok(), "{:?}", record.check());
        if record.outcome.is_some() || !record.is_member(self.me) {
            self.report_last_recovery(record.outcome.as_ref().is_some_and(|outcome| outcome.status == 0));
        } else {
            self.end_recovery();
        }
        let old = self.record.replace(record);
        let Some(record) = self.record.clone() else { return };
        let held = self.holds.begin();
        let mut failures = plan::completed(&record.failures, &self.memory.causes);
        let remembered =
            |process: &Process| record.history.iter().any(|entry| entry.failures.of_process(*process).is_some());
        self.joining.joiners.retain(|node, _| !record.nodes.knows(*node));
        self.memory.keep(remembered);
        failures.add_known(&self.collateral(&held));
        self.run = Run::of(&record, self.now);
        self.end.superseded();
        if record.outcome.is_some() || !record.is_member(self.me) {
            return self.enter_ending();
        }
        (self.end.last_words, self.end.refused) = (None, false);
        if old.is_some() {
            self.signals_begin_anew();
            let noticed = Micros(self.now.0.saturating_sub(record.agreed_after.0));
            self.telling.begin(noticed);
            self.telling.noticed_since(Some(noticed));
            self.report(Report::RecoveryAgreed {
                epoch: record.epoch,
                world: record.world,
                failures: failures.clone(),
                known_for: record.agreed_after,
                at: self.now,
            });
        }
        if let Some(progress) = &mut self.telling.progress {
            progress.times.agreed = Some(self.now);
            progress.last_sign = self.now;
            let placement = old.as_ref().unwrap_or(&record).placement.clone();
            progress.episodes.push(Episode { epoch: record.epoch, failures, placement });
        }
        self.stop_worlds(Some(record.world));
        self.enter(Stage::Emptying);
        self.make_slots(&record);
        self.renew_batch(&record);
    }

    /// Proposes what is to be agreed: the first record, the next epoch, the job's end.
    pub(super) fn guard_agreement(&mut self) {
        if matches!(self.run.stage, Stage::Joining | Stage::Ending | Stage::Over) {
            return;
        }
        self.note_accused();
        self.guard_clean_end();
        self.guard_storeless();
        self.guard_unrecorded();
        if !self.store.is_idle(self.now) || self.run.stage == Stage::Ending {
            return;
        }
        let verdict = self.end.verdict.clone();
        if verdict.is_some() && self.config.breach == Breach::EndUnrecorded {
            return self.enter_ending();
        }
        match (verdict, self.record.clone()) {
            (Some(verdict), Some(record)) => self.write(plan::last_record(&record, verdict.outcome)),
            (Some(verdict), None) => self.write(self.only_record(verdict.outcome)),
            (None, None) => self.propose_first(),
            (None, Some(record)) => self.propose_next(&record),
        }
        self.guard_take_back();
        if self.store.is_content(self.now) {
            self.report(Report::Notice(Notice::StoreBack));
        }
    }

    /// An accusation that may still be written, of nodes that are heard again: the record is written once more as it is.
    fn guard_take_back(&mut self) {
        let Some(record) = self.record.clone().filter(|_| self.store.is_idle(self.now)) else { return };
        if self.takes_back() && self.end.verdict.is_none() {
            self.write(EpochRecord::clone(&record));
        }
    }

    /// Whether it has one to take back.
    pub(super) fn takes_back(&self) -> bool {
        let yields = self.run.yields_until.is_some_and(|until| self.now < until);
        let waits = yields || self.run.short.as_ref().is_some_and(|short| !short.lapsed);
        self.fence.takes_back(waits, self.now)
    }

    fn propose_next(&mut self, record: &EpochRecord) {
        let Some((failures, accuses)) = self.failure_set(record) else {
            return self.lapse();
        };
        self.resume(&failures);
        let unfit = self.unfit(record);
        let cluster = Cluster {
            new_slots: self
                .slots
                .up()
                .filter(|slot| record.slot(*slot).is_none())
                .map(|slot| (slot, self.me))
                .collect(),
            joiners: self.all_joiners(record, &unfit),
            unfit,
            checkpointed: self.checkpointed(),
            computed: self.computed(),
            late_progress: self.run.late_progress,
            vain: !self.tree.decree().release,
            causes: self.memory.causes.clone(),
            at: self.noticed(),
            noticed_ago: self.noticed_ago(),
            restored: self.taken_back(),
        };
        let cluster = self.as_progress(cluster, record, &failures);
        if (accuses && self.yields(record, &failures))
            || self.waits_still(&failures, &cluster)
            || (!accuses && self.await_own_slots(record, &failures, &cluster))
        {
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
                let error = self.having_waited(error);
                let outcome = Outcome::failed(error.status(), error.to_string());
                self.write(plan::last_record(record, outcome));
            }
            Err(error) => self.conclude_now(&self.having_waited(error), record),
        }
    }

    /// A newer version than the restored one has become complete in this epoch. (That one is shipped to new partners.)
    pub(super) fn checkpointed(&self) -> bool {
        let restored =
            |group: &GroupId| self.run.choice.as_ref().and_then(|choice| choice.get(group).copied().flatten());
        let newer = |((group, _), version): (&(GroupId, Level), &Version)| {
            restored(group).is_none_or(|stamp| *version > stamp.version)
        };
        self.tree.decree().complete.iter().any(newer) || self.checkpointed_before()
    }

    /// One had become complete before this node's agent died, which ends the epoch.
    fn checkpointed_before(&self) -> bool {
        let before = self.predecessor.as_ref().and_then(|predecessor| predecessor.progress);
        self.run.stage == Stage::Restarted && before == Some(self.epoch())
    }

    /// The newest epoch in which a newer version is complete than the one that it restored: for the agent that comes after this one.
    pub fn progress(&self) -> Option<EpochId> {
        let before = || self.predecessor.as_ref().and_then(|predecessor| predecessor.progress);
        if self.record.is_some() && self.checkpointed() { Some(self.epoch()) } else { before() }
    }

    /// What a breach takes for progress.
    fn as_progress(&self, known: Cluster, record: &EpochRecord, failures: &FailureSet) -> Cluster {
        match self.config.breach {
            Breach::CountedPerRank => {
                let ranks = |set: &FailureSet| -> BTreeSet<Rank> {
                    let of = |failure: &Failure| match failure.subject {
                        Subject::Process(process) => Some(process.rank),
                        _ => None,
                    };
                    set.failures().iter().filter_map(of).collect()
                };
                let another = ranks(failures).is_disjoint(&ranks(&record.failures));
                Cluster { checkpointed: known.checkpointed | another, ..known }
            }
            Breach::NeverGivesUp => Cluster { checkpointed: true, ..known },
            Breach::ComputingIsProgress => Cluster { checkpointed: known.checkpointed | known.computed, ..known },
            Breach::NothingIsProgress => {
                Cluster { checkpointed: false, computed: false, late_progress: false, ..known }
            }
            _ => known,
        }
    }

    /// The epoch computed long enough before its failures.
    fn computed(&self) -> bool {
        self.run.stage == Stage::Computing && self.noticed().since(self.run.since) >= self.config.policy.progress_after
    }

    /// What ranks of this node have taken back in this epoch, per group.
    fn taken_back(&self) -> BTreeMap<GroupId, Version> {
        let took = self.run.locals.iter().filter(|(_, local)| local.restored);
        let groups: BTreeSet<GroupId> = took.map(|(process, _)| self.config.groups.of(process.rank)).collect();
        let chosen = |group| self.run.choice.as_ref().and_then(|choice| choice.get(&group).copied().flatten());
        groups.into_iter().filter_map(|group| Some((group, chosen(group)?.version))).collect()
    }
}
