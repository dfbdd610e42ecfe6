//! What a proposal waits for: slots, nodes, causes of deaths.

use super::short::{Offered, Short};
use super::{Agent, Effect};
use crate::breach::Breach;
use crate::failure::{Cause, Failure, FailureSet, Subject};
use crate::ids::{Micros, NodeId, SlotId};
use crate::plan::{self, Cluster, Unrecoverable};
use crate::record::EpochRecord;
use crate::report::{Notice, Report};
use crate::slots::{SlotEntry, SlotState};
use std::collections::BTreeSet;

impl Agent {
    pub(super) fn need_slot(&mut self) {
        self.slots.ask(self.now);
        self.emit(Effect::NeedSlot);
    }

    /// Slots of this node beyond its own that the record names, and that do not exist yet.
    pub(super) fn make_slots(&mut self, record: &EpochRecord) {
        let used = |entry: &SlotEntry| entry.state != SlotState::Lost && entry.slot.is_beyond();
        let new = |slot: &SlotId| !self.slots.exists(*slot) && !self.slots.is_lost(*slot);
        let mine = record.slots.of_node(self.me).filter(used).map(|entry| entry.slot);
        let new: Vec<SlotId> = mine.filter(new).collect();
        for slot in new {
            self.slots.expect(slot);
            self.emit(Effect::MakeSlot(slot));
        }
    }

    /// Whether what cannot be placed is what could not be placed before.
    pub(super) fn waits_still(&self, failures: &FailureSet, cluster: &Cluster) -> bool {
        let same = |short: &&Short| short.failures == *failures && short.offered == Offered::by(cluster);
        self.run.short.as_ref().filter(same).is_some_and(|short| self.now < self.awaits_until(short))
    }

    /// Nobody is known to have failed: who is alone for a moment accuses nobody. What could not be placed is not forgotten for that, unless who was
    /// silent is heard again, which moves the revision: it is waited for a node no longer than if all had been silent all the time.
    pub(super) fn lapse(&mut self) {
        if self.config.breach == Breach::WaitBegunAnew {
            self.run.short = None;
        } else if let Some(short) = &mut self.run.short {
            short.lapsed = true;
        }
    }

    /// Somebody is known to have failed: what lapsed goes on, if it is the same.
    pub(super) fn resume(&mut self, failures: &FailureSet) {
        let Some(short) = &mut self.run.short else { return };
        let known = |failure: &Failure| short.failures.failures().iter().any(|other| other.subject == failure.subject);
        if short.lapsed && !failures.failures().iter().any(known) {
            self.run.short = None;
        } else {
            short.lapsed = false;
        }
    }

    /// Until when it is waited for a node. Nobody can come in as long as the store is away. Where somebody is silent it is waited for the others as
    /// well, which may find this node silent, and go on without it.
    fn awaits_until(&self, short: &Short) -> Micros {
        let silent = short.failures.failures().iter().any(|failure| failure.cause == Cause::NodeSilent);
        let yields = if silent { self.yields_for() } else { Micros(0) };
        short.since.max(self.store.back).after(self.config.policy.node_timeout.max(yields))
    }

    /// So long who may be on the smaller side of a cut leaves it to the other one to write, when the store was away.
    fn yields_for(&self) -> Micros {
        if self.config.breach == Breach::NobodyYields {
            return Micros(0);
        }
        let timeout = self.record.as_ref().map_or(Micros(0), |record| record.terms.timeout);
        self.config.policy.yield_timeout.max(Micros(timeout.0.saturating_mul(4)))
    }

    /// Until when this node does not write that these are given up: where few of its own observers hear it, and these are half of the job or more, or it
    /// could not be told that it is left out itself, since the store was away. It may be on the smaller side of a cut, and the other one, which
    /// writes at once, is the one to go on. (Of two nodes nobody is on a smaller side.)
    fn yields_until(&self, record: &EpochRecord, failures: &FailureSet) -> Option<Micros> {
        let (timeout, accused, back) = (record.terms.timeout, self.run.accused?, self.store.back);
        let silent = |failure: &&Failure| failure.cause == Cause::NodeSilent;
        let (out, members) = (failures.failures().iter().filter(silent).count(), record.nodes.len() as usize);
        let untold = back > accused;
        let few = members > 2 && (untold || 2 * out >= members) && self.fence.few_acknowledge(timeout, self.now);
        if !few || self.config.breach == Breach::NobodyYields {
            return None;
        }
        Some(if untold { back.after(self.yields_for()) } else { accused.after(timeout) })
    }

    /// Whether it leaves that to others for a while.
    pub(super) fn yields(&mut self, record: &EpochRecord, failures: &FailureSet) -> bool {
        self.run.yields_until = self.yields_until(record, failures).filter(|until| self.now < *until);
        self.run.yields_until.is_some()
    }

    /// When that is over, or a node may be tried again.
    pub(super) fn short_deadlines(&self) -> Vec<Micros> {
        let Some(short) = self.run.short.as_ref().filter(|short| !short.lapsed) else { return Vec::new() };
        let tried = self.record.iter().flat_map(|record| self.run.unfit.deadlines(record.terms.timeout));
        tried.chain([self.awaits_until(short)]).collect()
    }

    /// Nodes that are not tried at this moment, because their leases were not held.
    pub(super) fn unfit(&self, record: &EpochRecord) -> BTreeSet<NodeId> {
        let ever = Micros(u64::MAX / 4);
        let timeout = if self.config.breach == Breach::UnfitForGood { ever } else { record.terms.timeout };
        self.run.unfit.now(timeout, self.now)
    }

    /// Waits for another node, or for one that is silent, a while: nothing is agreed meanwhile. False when there is nobody to
    /// wait for.
    pub(super) fn await_node(&mut self, failures: &FailureSet, cluster: &Cluster, missing: u32) -> bool {
        if self.config.nodes.len() < 2 {
            return false;
        }
        let (since, said) = self.run.short.as_ref().map_or((self.now, 0), |short| (short.since, short.missing));
        let (failures, offered) = (failures.clone(), Offered::by(cluster));
        let lost = failures.lost_nodes();
        let short = Short { since, missing: missing.max(said), lapsed: false, failures, offered };
        let until = self.awaits_until(&short);
        let waited = self.now.since(since.max(self.store.back).min(self.now));
        let patience = Micros(self.config.policy.node_timeout.0.saturating_sub(waited.0));
        if missing > said && patience > Micros(0) {
            self.report(Report::Notice(Notice::WaitingForNode { missing, patience, lost }));
        }
        self.run.short = Some(short);
        self.now < until
    }

    /// How long was waited in vain, in the error that ends the job.
    pub(super) fn having_waited(&self, error: Unrecoverable) -> Unrecoverable {
        match error {
            Unrecoverable::NoSlot { missing, world_size, failures, shared, .. } if self.config.nodes.len() > 1 => {
                let (waited, nodes) = (self.config.policy.node_timeout, self.config.nodes.len());
                Unrecoverable::NoSlot { missing, world_size, failures, waited, nodes, shared }
            }
            error => error,
        }
    }

    /// Likewise before the first record, when a node of the job has not been heard of.
    pub(super) fn await_first(&mut self, missing: u32) -> bool {
        self.await_node(&FailureSet::new(), &Cluster::default(), missing)
    }

    /// Whether a death whose cause is on its way would end the job if it came from outside.
    pub(super) fn may_be_a_loop(&self, record: &EpochRecord, failures: &FailureSet, cluster: &Cluster) -> bool {
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
    pub(super) fn await_causes(&self, failures: &FailureSet) -> bool {
        let unknown = failures.failures().iter().any(|failure| failure.cause == Cause::Unknown);
        unknown && !self.due(self.noticed(), self.config.policy.exit_timeout)
    }

    /// Lost slots of this node are replaced on it, when that can be, though others had room: a rank that moves leaves behind what is in
    /// this node's memory for it.
    pub(super) fn await_own_slots(&mut self, record: &EpochRecord, failures: &FailureSet, cluster: &Cluster) -> bool {
        if record.nodes.len() < 2 {
            return false;
        }
        let used = |failure: &&Failure| match failure.subject {
            Subject::Slot(slot) => record.placement.rank(slot).is_some(),
            _ => false,
        };
        let lost = failures.failures().iter().filter(used).count();
        let stands_by = |entry: &SlotEntry| entry.state == SlotState::Parked && self.slots.is_up(entry.slot);
        let free = record.slots.of_node(self.me).filter(stands_by).count() + cluster.new_slots.len();
        let missing = lost.saturating_sub(free);
        missing > 0 && self.await_slots(failures, u32::try_from(missing).unwrap_or(u32::MAX))
    }

    /// Asks for replacements of this node's lost slots and stops the world meanwhile; false when there is nothing to wait
    /// for. (A lost slot stays lost, so the world that is stopped before anything is agreed ends for certain.)
    pub(super) fn await_slots(&mut self, failures: &FailureSet, missing: u32) -> bool {
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
        let coming = self.slots.coming(self.record.as_deref());
        let overdue = self.due(self.slots.since, self.config.policy.slot_timeout);
        if coming > 0 && !self.slots.any_silent() && overdue {
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
}
