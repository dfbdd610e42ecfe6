//! Bringing an epoch about on this node.

use super::fetch::FIRST;
use super::{Agent, Effect, LocalEnd, Stage};
use crate::breach::Breach;
use crate::failure::{Cause, Subject};
use crate::holdings::{Copies, Restoration};
use crate::ids::{GroupId, SlotId, WorldId};
use crate::inventory::{Inventory, Ledger, Level, Stamp};
use crate::record::{EpochRecord, Outcome};
use crate::report::{Notice, Report};
use std::collections::BTreeSet;

impl Agent {
    /// Kills the processes of every world on this node, but for `except`.
    pub(super) fn stop_worlds(&mut self, except: Option<WorldId>) {
        for world in self.worlds.stop(except, self.now) {
            self.emit(Effect::StopWorld(world));
        }
        if self.worlds.all_stopping() {
            // Who is to be killed is not continued first.
            if std::mem::take(&mut self.standstill.paused) && self.config.breach == Breach::LeftOutContinued {
                self.emit(Effect::Continue);
            }
        }
    }

    pub(super) fn enter_ending(&mut self) {
        let well = |record: &EpochRecord| record.outcome.as_ref().is_some_and(|outcome| outcome.status == 0);
        self.report_last_recovery(self.record.as_deref().is_some_and(well));
        self.drop_batch();
        self.enter(Stage::Ending);
    }

    /// Takes the epoch on by as many stages as its conditions allow.
    pub(super) fn guard_stage(&mut self) {
        self.guard_kill();
        loop {
            let before = self.run.stage;
            match self.run.stage {
                Stage::Emptying => self.guard_emptying(),
                Stage::Draining => self.guard_draining(),
                Stage::Parked => self.guard_parked(),
                Stage::Ending => self.guard_ending(),
                Stage::Gathering | Stage::Restarted | Stage::Joining | Stage::Computing | Stage::Over => {}
            }
            if self.run.stage == before {
                break;
            }
        }
        self.speak();
        self.guard_holdings();
        self.speak();
        self.guard_verifying();
        self.guard_choice();
        self.guard_copies();
        self.speak();
        self.guard_retire();
        self.note_complete();
    }

    /// Processes that outlive SIGKILL are beyond ftd.
    fn guard_kill(&mut self) {
        let timeout = self.config.policy.stop_timeout;
        self.worlds.linger(&self.slots.silent_worlds(), self.now);
        let Some(world) = self.worlds.stuck(self.now, timeout) else { return };
        self.worlds.forget(world);
        // The job is over as it is; the launcher says who is left.
        if self.run.stage == Stage::Ending {
            return;
        }
        let reason = format!(
            "the job cannot continue, because processes of {world} on {} are still there {timeout} after SIGKILL",
            self.me
        );
        self.conclude(Outcome::failed(1, reason), true);
    }

    fn guard_emptying(&mut self) {
        let Some(record) = &self.record else { return };
        if self.worlds.older(record.world) {
            return;
        }
        // After an agent's death its shepherds kill their ranks, dial in again and bring the arenas: not before all have
        // is anything known to be empty, or what there is to restore.
        let absent: Vec<SlotId> = self.slots.absent().collect();
        let since = self.run.since.max(self.slots.silent_at);
        let silent = self.slots.silent_of(&absent);
        if !absent.is_empty() && (silent || !self.due(since, self.config.policy.slot_timeout)) {
            return;
        }
        let (epoch, world) = (record.epoch, record.world);
        for slot in absent {
            self.slots.lose(slot);
            self.fail(Subject::Slot(slot), Cause::SlotLost);
        }
        if self.batch.is_some() {
            return;
        }
        if let Some(progress) = &mut self.telling.progress {
            progress.times.emptied = Some(self.now);
        }
        self.enter(Stage::Draining);
        if world == FIRST {
            self.run.drained = true;
            return self.list_copies(&Inventory::default());
        }
        let old = WorldId(world.0 - 1);
        self.run.inventory_asked = Some(self.now);
        self.emit(Effect::Drain(old));
        self.emit(Effect::TakeInventory { epoch, world: old });
    }

    fn guard_draining(&mut self) {
        let Some(record) = &self.record else { return };
        // What is superseded already is not started.
        if self.batch.is_some() || self.end.verdict.is_some() {
            return;
        }
        if !self.run.drained {
            if !self.due(self.run.since, self.config.policy.drain_timeout) {
                return;
            }
            self.run.drained = true;
            let old = WorldId(record.world.0.saturating_sub(1));
            return self.report(Report::Notice(Notice::DrainTimedOut(old)));
        }
        let mine: Vec<_> = record.processes_on(self.me).collect();
        if mine.iter().any(|(_, slot)| !self.slots.is_up(*slot)) {
            return;
        }
        let (epoch, world) = (record.epoch, record.world);
        self.enter(Stage::Parked);
        let parked = !self.may_release();
        self.changed = true;
        self.run.ledger = Ledger::of(&self.config.groups, mine.iter().map(|(process, _)| process.rank));
        for (process, slot) in &mine {
            self.run.locals.insert(*process, super::Local::default());
            self.slots.occupy(*slot, world);
        }
        if !mine.is_empty() {
            self.worlds.begin(world);
            self.emit(Effect::Launch { world, epoch, processes: mine, parked });
        }
    }

    /// Every node has emptied its slots of older worlds, and every observer has acknowledged every node in this epoch:
    /// invariant 2.
    fn may_release(&mut self) -> bool {
        self.speak();
        let all_empty = self.tree.decree().release || self.config.breach == Breach::ReleasedEarly;
        all_empty && (self.fence.lease().runs(self.now) || self.config.breach == Breach::ReleasedUnleased)
    }

    fn guard_parked(&mut self) {
        let world = self.world();
        if self.worlds.stopping(world) || self.batch.is_some() || self.end.verdict.is_some() || !self.may_release() {
            return;
        }
        debug_assert!(!self.worlds.others(world), "another world than {world} is still here");
        self.enter(Stage::Computing);
        self.emit(Effect::Release(world));
        if let Some(progress) = &mut self.telling.progress {
            progress.times.released = Some(self.now);
            progress.last_sign = self.now;
        }
    }

    /// A node that needs long for its checksums says what it has verified by then.
    fn guard_verifying(&mut self) {
        let timeout = self.config.policy.inventory_timeout;
        if self.run.inventory_asked.is_some_and(|since| self.due(since, timeout)) {
            // As long as something is read it is asked again, and said again.
            (self.run.inventory_asked, self.run.inventory_looks) = (Some(self.now), self.run.inventory_looks + 1);
            self.emit(Effect::ListVerified { epoch: self.epoch() });
        }
    }

    /// The version to restore, as soon as every node's inventory is in.
    fn guard_choice(&mut self) {
        if self.run.choice.is_some() {
            return;
        }
        let alone = self.run.copies.listed && self.config.breach == Breach::ChosenAlone;
        let own = alone.then(|| self.holdings(&Copies::new()).choose());
        let Some(Restoration { choice, .. }) = own.or(self.tree.decree().restoration.clone()) else { return };
        let lacks = self.begin_copies(&choice);
        for (group, stamp) in &choice {
            let away = lacks.iter().copied().filter(|rank| self.config.groups.of(*rank) == *group).collect();
            self.emit(Effect::Restore { epoch: self.epoch(), group: *group, stamp: *stamp, away });
        }
        let newer = |(group, stamp): (&GroupId, &Option<Stamp>)| {
            let before = self.memory.restored.as_ref().and_then(|last| last.get(group).copied().flatten());
            stamp.map(|stamp| stamp.version) > before.map(|stamp| stamp.version)
        };
        self.run.late_progress = choice.iter().any(newer);
        self.memory.restored = Some(choice.clone());
        self.run.inventory_asked = None;
        self.notice_left_out(choice.clone());
        self.run.choice = Some(choice);
    }

    /// Once every agent knows what is restored, and has it, what is older is needed no more. (All places may hold complete versions
    /// when an epoch ends; the next checkpoint needs one of them.)
    fn guard_retire(&mut self) {
        if self.run.retired || !(self.tree.decree().chosen || self.config.breach == Breach::KeptEarly) {
            return;
        }
        let Some(Restoration { choice, safe, .. }) = self.tree.decree().restoration.clone() else { return };
        self.run.retired = true;
        for (group, stamp) in choice {
            if let Some(stamp) = stamp {
                let stamps: BTreeSet<Stamp> = safe.get(&group).copied().into_iter().chain([stamp]).collect();
                self.emit(Effect::Keep { group, stamps: stamps.into_iter().collect() });
            }
        }
    }

    /// At this level, or a safer one, a version has to be complete before older ones are given up. (A job of one node has nobody
    /// who could keep copies.)
    fn safe_level(&self) -> Level {
        let others = self.record.as_ref().is_some_and(|record| record.nodes.len() > 1);
        if others && self.config.breach != Breach::LevelsMixed { self.config.safe } else { Level::Own }
    }

    /// Which versions have become complete everywhere. What has a partner is kept until something newer has one as well.
    pub(super) fn note_complete(&mut self) {
        if self.run.stage != Stage::Computing {
            return;
        }
        let mut all = self.tree.decree().complete.clone();
        if self.config.breach == Breach::CompleteHere {
            let here = self.run.ledger.committed().iter();
            all = here.filter_map(|(key, versions)| Some((*key, *versions.last()?))).collect();
        }
        for (key, complete) in all {
            if self.run.complete.get(&key).is_some_and(|known| *known >= complete) {
                continue;
            }
            self.run.complete.insert(key, complete);
            let (group, level) = key;
            if level >= self.safe_level() {
                self.emit(Effect::Retire { group, level, complete });
            }
        }
    }

    /// All ranks of this node have ended cleanly in the running epoch, and it has said of what the dead of the epochs before died:
    /// what had much memory may be torn down for longer than a short job goes on.
    pub(super) fn finished(&self) -> bool {
        self.run.stage == Stage::Computing
            && self.cause_deadline().is_none()
            && self.batch.is_none()
            && self.holds.is_empty()
            && self.run.locals.values().all(|local| local.end == Some(LocalEnd::Clean))
    }

    fn guard_ending(&mut self) {
        if self.end.is_spoken(self.now) {
            return;
        }
        let out = self.record.as_ref().is_some_and(|record| !record.is_member(self.me));
        if !(out && self.config.breach == Breach::LeftOutStays) {
            self.stop_worlds(None);
        }
        if !self.worlds.is_empty() || self.last_block_waits() {
            return;
        }
        let (Outcome { status, reason }, standing) = self.end_here();
        self.enter(Stage::Over);
        self.emit(Effect::End { status, reason, standing });
    }
}
