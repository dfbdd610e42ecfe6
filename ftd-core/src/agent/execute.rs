//! Bringing an epoch about on this node.

use super::{Agent, Effect, LocalEnd, Stage};
use crate::breach::Breach;
use crate::failure::{Cause, Subject};
use crate::ids::{GroupId, SlotId, WorldId};
use crate::inventory::{Ledger, Level, Stamp};
use crate::plan::signal_status;
use crate::record::Outcome;
use crate::report::{Notice, Report};
use crate::word::{Holdings, Restoration};
use std::collections::BTreeSet;

impl Agent {
    /// Kills the processes of every world on this node, but for `except`.
    pub(super) fn stop_worlds(&mut self, except: Option<WorldId>) {
        let now = self.now;
        let stop: Vec<WorldId> = self
            .worlds
            .iter_mut()
            .filter(|(world, stopping)| Some(**world) != except && stopping.is_none())
            .map(|(world, stopping)| {
                *stopping = Some(now);
                *world
            })
            .collect();
        for world in stop {
            self.emit(Effect::StopWorld(world));
        }
        if self.worlds.values().all(Option::is_some) {
            // Who is to be killed is not continued first.
            self.paused = false;
        }
    }

    pub(super) fn enter_ending(&mut self) {
        self.report_last_recovery();
        self.batch = None;
        self.enter(Stage::Ending);
    }

    /// Takes the epoch on by as many stages as its conditions allow.
    pub(super) fn guard_stage(&mut self) {
        self.guard_kill();
        loop {
            let before = self.stage;
            match self.stage {
                Stage::Emptying => self.guard_emptying(),
                Stage::Draining => self.guard_draining(),
                Stage::Parked => self.guard_parked(),
                Stage::Ending => self.guard_ending(),
                Stage::Gathering | Stage::Restarted | Stage::Joining | Stage::Computing | Stage::Over => {}
            }
            if self.stage == before {
                break;
            }
        }
        self.speak();
        self.guard_choice();
        self.guard_copies();
        self.speak();
        self.guard_retire();
        self.note_complete();
    }

    /// Processes that outlive SIGKILL are beyond ftd.
    fn guard_kill(&mut self) {
        let timeout = self.config.policy.stop_timeout;
        let silent: Vec<_> = self.silent.iter().filter_map(|slot| self.slots.get(slot)?.world).collect();
        for since in self.worlds.iter_mut().filter(|(world, _)| silent.contains(world)).filter_map(|(_, s)| s.as_mut())
        {
            *since = self.now;
        }
        let stuck = self.worlds.iter().find(|(_, since)| since.is_some_and(|since| self.due(since, timeout)));
        let Some(world) = stuck.map(|(world, _)| *world) else { return };
        self.worlds.remove(&world);
        // The job is over as it is; the launcher says who is left.
        if self.stage == Stage::Ending {
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
        if self.worlds.keys().any(|world| *world < record.world) {
            return;
        }
        // After an agent's death its shepherds kill their ranks, dial in again and bring the arenas: not before all have
        // is anything known to be empty, or what there is to restore.
        let absent: Vec<SlotId> = self.slots.iter().filter(|(_, slot)| !slot.up).map(|(id, _)| *id).collect();
        let since = self.stage_since.max(self.silent_at);
        let silent = absent.iter().any(|slot| self.silent.contains(slot));
        if !absent.is_empty() && (silent || !self.due(since, self.config.policy.slot_timeout)) {
            return;
        }
        let (epoch, world) = (record.epoch, record.world);
        for slot in absent {
            self.slots.remove(&slot);
            self.lost_slots.insert(slot);
            self.fail(Subject::Slot(slot), Cause::SlotLost);
        }
        if self.batch.is_some() {
            return;
        }
        if let Some(progress) = &mut self.progress {
            progress.times.emptied = Some(self.now);
        }
        self.enter(Stage::Draining);
        if world == WorldId(1) {
            // Nothing ran before the first world.
            self.run.drained = true;
            self.run.holdings = Some(Holdings::default());
            return;
        }
        let old = WorldId(world.0 - 1);
        self.run.inventory_asked = Some(self.now);
        self.emit(Effect::Drain(old));
        self.emit(Effect::TakeInventory { epoch, world: old });
    }

    fn guard_draining(&mut self) {
        let Some(record) = &self.record else { return };
        // What is superseded already is not started.
        if self.batch.is_some() || self.verdict.is_some() {
            return;
        }
        if !self.run.drained {
            if !self.due(self.stage_since, self.config.policy.drain_timeout) {
                return;
            }
            self.run.drained = true;
            let old = WorldId(record.world.0.saturating_sub(1));
            return self.report(Report::Notice(Notice::DrainTimedOut(old)));
        }
        let mine: Vec<_> = record.processes_on(self.me).collect();
        if mine.iter().any(|(_, slot)| !self.slots.get(slot).is_some_and(|known| known.up)) {
            return;
        }
        let (epoch, world) = (record.epoch, record.world);
        self.enter(Stage::Parked);
        let parked = !self.may_release();
        self.changed = true;
        self.run.ledger = Ledger::of(&self.config.groups, mine.iter().map(|(process, _)| process.rank));
        for (process, slot) in &mine {
            debug_assert!(self.slots.get(slot).is_some_and(|known| known.world.is_none()), "{slot} is not empty");
            self.run.locals.insert(*process, super::Local::default());
            if let Some(known) = self.slots.get_mut(slot) {
                known.world = Some(world);
            }
        }
        if !mine.is_empty() {
            self.worlds.insert(world, None);
            self.emit(Effect::Launch { world, epoch, processes: mine, parked });
        }
    }

    /// Every node has emptied its slots of older worlds, and every observer has acknowledged every node in this epoch:
    /// invariant 2.
    fn may_release(&mut self) -> bool {
        self.speak();
        let all_empty = self.tree.decree().release || self.config.breach == Breach::ReleasedEarly;
        all_empty && self.fence.lease().runs(self.now)
    }

    fn guard_parked(&mut self) {
        let world = self.world();
        if self.stopping(world) || self.batch.is_some() || self.verdict.is_some() || !self.may_release() {
            return;
        }
        debug_assert!(self.worlds.keys().all(|other| *other == world), "another world than {world} is still here");
        self.enter(Stage::Computing);
        self.emit(Effect::Release(world));
        if let Some(progress) = &mut self.progress {
            progress.times.released = Some(self.now);
            progress.last_sign = self.now;
        }
    }

    /// The version to restore, as soon as every node's inventory is in.
    fn guard_choice(&mut self) {
        let timeout = self.config.policy.inventory_timeout;
        if self.run.inventory_asked.is_some_and(|since| self.due(since, timeout)) {
            self.run.inventory_asked = None;
            let reason = format!(
                "the job cannot continue, because the checkpoints on {} were not verified within {timeout}",
                self.me
            );
            self.conclude(Outcome::failed(1, reason), false);
        }
        if self.run.choice.is_some() {
            return;
        }
        let Some(Restoration { choice, away, .. }) = self.tree.decree().restoration.clone() else { return };
        let (epoch, groups) = (self.epoch(), self.config.groups.ranks(self.config.world_size));
        for (group, stamp) in &choice {
            let of_group = groups.get(group).map(|ranks| away.common(ranks)).unwrap_or_default();
            self.effects.push(Effect::Restore { epoch, group: *group, stamp: *stamp, away: of_group });
        }
        let newer = |(group, stamp): (&GroupId, &Option<Stamp>)| {
            let before = self.restored_last.as_ref().and_then(|last| last.get(group).copied().flatten());
            stamp.map(|stamp| stamp.version) > before.map(|stamp| stamp.version)
        };
        self.run.late_progress = choice.iter().any(newer);
        self.begin_copies(&choice, &away);
        self.restored_last = Some(choice.clone());
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

    /// Which versions have become complete everywhere.
    pub(super) fn note_complete(&mut self) {
        if self.stage != Stage::Computing {
            return;
        }
        for (key, complete) in self.tree.decree().complete.clone() {
            if self.run.complete.get(&key).is_some_and(|known| *known >= complete) {
                continue;
            }
            self.run.complete.insert(key, complete);
            let (group, level) = key;
            let level = if self.config.breach == Breach::LevelsMixed { Level::Partner } else { level };
            self.emit(Effect::Retire { group, level, complete });
        }
    }

    /// All ranks of this node have ended cleanly in the running epoch.
    pub(super) fn finished(&self) -> bool {
        self.stage == Stage::Computing
            && self.batch.is_none()
            && self.holds.is_empty()
            && self.run.locals.values().all(|local| local.end == Some(LocalEnd::Clean))
    }

    fn guard_ending(&mut self) {
        if let Some((_, until)) = self.last_words {
            if self.now < until {
                return;
            }
            self.last_words = None;
        }
        self.stop_worlds(None);
        if !self.worlds.is_empty() || self.last_block_waits() {
            return;
        }
        let recorded = self.record.as_ref().and_then(|record| record.outcome.clone());
        let epoch = self.epoch();
        let outcome = recorded.unwrap_or_else(|| {
            Outcome::failed(signal_status(9).0, format!("{} was left out of the job in {epoch}", self.me))
        });
        self.enter(Stage::Over);
        self.emit(Effect::End { status: outcome.status, reason: outcome.reason });
    }
}
