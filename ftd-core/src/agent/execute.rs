//! Bringing an epoch about on this node.

use super::{Agent, Effect, LocalEnd, Stage};
use crate::failure::{Cause, Subject};
use crate::ids::{GroupId, SlotId, WorldId};
use crate::inventory::{Inventory, Stamp, choose};
use crate::plan::signal_status;
use crate::record::Outcome;
use crate::report::{Notice, Report};

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
            self.go_on();
        }
    }

    pub(super) fn enter_ending(&mut self) {
        self.report_last_recovery();
        self.batch = None;
        self.enter(Stage::Ending);
    }

    /// Ends the job on this node without a word in the store, because there is none, or no record yet.
    pub(super) fn end_unrecorded(&mut self, outcome: Outcome) {
        self.verdict = Some(super::Verdict { outcome, since: self.now, cancelled: true });
        self.enter_ending();
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
                Stage::Gathering | Stage::Restarted | Stage::Computing | Stage::Over => {}
            }
            if self.stage == before {
                break;
            }
        }
        self.guard_choice();
        self.guard_retire();
        self.note_complete();
        self.guard_cancelled();
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
        self.end_unrecorded(Outcome::failed(1, reason));
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
            self.drained = true;
            self.inventory = Some(Inventory::default());
            return;
        }
        let old = WorldId(world.0 - 1);
        self.inventory_asked = Some(self.now);
        self.emit(Effect::Drain(old));
        self.emit(Effect::TakeInventory { epoch, world: old });
    }

    fn guard_draining(&mut self) {
        let Some(record) = &self.record else { return };
        // What is superseded already is not started.
        if self.batch.is_some() || self.verdict.is_some() {
            return;
        }
        if !self.drained {
            if !self.due(self.stage_since, self.config.policy.drain_timeout) {
                return;
            }
            self.drained = true;
            let old = WorldId(record.world.0.saturating_sub(1));
            return self.report(Report::Notice(Notice::DrainTimedOut(old)));
        }
        let mine: Vec<_> = record.processes().filter(|(_, slot)| self.is_mine(*slot)).collect();
        if mine.iter().any(|(_, slot)| !self.slots.get(slot).is_some_and(|known| known.up)) {
            return;
        }
        let (epoch, world) = (record.epoch, record.world);
        self.enter(Stage::Parked);
        let parked = !self.may_release();
        for (process, slot) in &mine {
            debug_assert!(self.slots.get(slot).is_some_and(|known| known.world.is_none()), "{slot} is not empty");
            self.locals.insert(*process, super::Local::default());
            if let Some(known) = self.slots.get_mut(slot) {
                known.world = Some(world);
            }
        }
        if !mine.is_empty() {
            self.worlds.insert(world, None);
            self.emit(Effect::Launch { world, epoch, processes: mine, parked });
        }
    }

    fn is_mine(&self, slot: SlotId) -> bool {
        self.record.as_ref().and_then(|record| record.slot(slot)).is_some_and(|entry| entry.node == self.me)
    }

    /// Every node has emptied its slots of older worlds, and every observer has acknowledged every node in this epoch:
    /// invariant 2.
    fn may_release(&self) -> bool {
        self.all_peers(|status| status.ready) && self.ring.confirmed(self.now)
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
        if self.inventory_asked.is_some_and(|since| self.due(since, timeout)) {
            self.inventory_asked = None;
            let reason = format!(
                "the job cannot continue, because the checkpoints on {} were not verified within {timeout}",
                self.me
            );
            self.conclude(Outcome::failed(1, reason), false);
        }
        let executing = matches!(self.stage, Stage::Draining | Stage::Parked | Stage::Computing);
        if self.choice.is_some() || !executing || !self.all_peers(|status| status.inventory.is_some()) {
            return;
        }
        let Some(own) = &self.inventory else { return };
        let theirs = self.peers_now().flatten().filter_map(|status| status.inventory.as_ref());
        let choice = choose(theirs.chain([own]), &self.config.groups, self.config.world_size);
        let epoch = self.epoch();
        for (group, stamp) in &choice {
            self.effects.push(Effect::Restore { epoch, group: *group, stamp: *stamp });
        }
        let newer = |(group, stamp): (&GroupId, &Option<Stamp>)| {
            let before = self.restored_last.as_ref().and_then(|last| last.get(group).copied().flatten());
            stamp.map(|stamp| stamp.version) > before.map(|stamp| stamp.version)
        };
        self.late_progress = choice.iter().any(newer);
        self.restored_last = Some(choice.clone());
        self.choice = Some(choice);
    }

    /// Once every agent knows what is restored, what is older is needed no more. (All places may hold complete versions
    /// when an epoch ends; the next checkpoint needs one of them.)
    fn guard_retire(&mut self) {
        if self.retired || !self.all_peers(|status| status.chosen) {
            return;
        }
        let Some(choice) = &self.choice else { return };
        self.retired = true;
        for (group, stamp) in choice {
            if let Some(stamp) = stamp {
                self.effects.push(Effect::Retire { group: *group, complete: stamp.version });
            }
        }
    }

    /// Which versions have become complete everywhere.
    pub(super) fn note_complete(&mut self) {
        if self.stage != Stage::Computing {
            return;
        }
        let Some(record) = &self.record else { return };
        let epoch = record.epoch;
        for (group, ranks) in self.config.groups.ranks(self.config.world_size) {
            let mut nodes: Vec<_> = ranks.iter().filter_map(|rank| record.node_of(*rank)).collect();
            nodes.sort_unstable();
            nodes.dedup();
            let mut common: Option<std::collections::BTreeSet<_>> = None;
            for node in nodes {
                let held = if node == self.me {
                    self.ledger.local().get(&group)
                } else {
                    let status = self.peers.get(&node).filter(|status| status.epoch == epoch);
                    status.and_then(|status| status.committed.get(&group))
                };
                let held = held.cloned().unwrap_or_default();
                common = Some(match common {
                    None => held,
                    Some(common) => common.intersection(&held).copied().collect(),
                });
            }
            let Some(complete) = common.and_then(|common| common.last().copied()) else { continue };
            if self.ledger.completed(group, complete, &self.config.groups) {
                self.effects.push(Effect::Retire { group, complete });
                for status in self.peers.values_mut() {
                    if let Some(committed) = status.committed.get_mut(&group) {
                        committed.retain(|version| *version >= complete);
                    }
                }
            }
        }
    }

    /// All ranks of this node have ended cleanly in the running epoch.
    pub(super) fn finished(&self) -> bool {
        self.stage == Stage::Computing
            && self.batch.is_none()
            && self.holds.is_empty()
            && self.locals.values().all(|local| local.end == Some(LocalEnd::Clean))
    }

    /// A cancelled job ends although the store does not answer.
    fn guard_cancelled(&mut self) {
        let Some(verdict) = self.verdict.as_ref().filter(|verdict| verdict.cancelled) else { return };
        let waited = self.due(verdict.since, self.config.policy.store_retry);
        if waited && !matches!(self.stage, Stage::Ending | Stage::Over) {
            self.enter_ending();
            self.guard_ending();
        }
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
        let wanted = self.verdict.take().map(|verdict| verdict.outcome);
        let epoch = self.epoch();
        let outcome = recorded.or(wanted).unwrap_or_else(|| {
            Outcome::failed(signal_status(9).0, format!("{} was left out of the job in {epoch}", self.me))
        });
        self.enter(Stage::Over);
        self.emit(Effect::End { status: outcome.status, reason: outcome.reason });
    }
}
