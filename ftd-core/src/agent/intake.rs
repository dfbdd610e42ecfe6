//! What an event means for what the agent knows: whose it is.

use super::{Agent, Event, Stage};
use crate::blame::Phase;
use crate::failure::{Cause, OwnEnd, Subject};
use crate::ids::{NodeId, Revision, SlotId, WorldId};
use crate::record::EpochRecord;
use std::sync::Arc;

impl Agent {
    pub(super) fn take(&mut self, event: Event) {
        match event {
            Event::Start { slots } => self.take_start(slots),
            Event::SlotAdded(slot) => self.slots.added(slot),
            Event::SlotUp(slot) => self.slots.dialled_in(slot),
            // One death is one failure: what is known is not proposed before the launcher has said that the slot is lost.
            Event::SlotDying(slot) => self.slots.is_dying(slot, self.now),
            Event::SlotLost(slot) => self.take_slot_lost(slot),
            Event::SlotsSilent(slots) => self.slots.fall_silent(slots, self.now),
            Event::Started(process) => self.sign(process),
            Event::StartFailed { process, reason, status } => self.take_start_failed(process, reason, status),
            Event::CannotBegin { reason, status } => self.take_cannot_begin(reason, status),
            Event::CannotGoOn { world, reason } => self.take_cannot_go_on(world, reason),
            Event::Initializing(process) => self.take_phase(process, Phase::Initializing),
            Event::Joined { process, family } => self.take_joined(process, family),
            Event::Initialized(process) => self.take_phase(process, Phase::Initialized),
            Event::Finalized(process) => self.take_phase(process, Phase::Finalized),
            Event::Dying(process) => self.take_dying(process, None),
            Event::Killed { process, signal } => self.take_dying(process, Some(signal)),
            Event::Seen { process, sight } => {
                if !sight.announced {
                    self.take_dying(process, sight.signal);
                }
            }
            Event::Ended { process, ended } => self.take_ended(process, ended),
            Event::Exited { process, exit, limit } => self.take_exited(process, exit, limit),
            Event::AbortRequested { process, code } => self.take_own_end(process, OwnEnd::Abort(code)),
            Event::Surveyed { dying, leaving } => self.take_survey(&dying, &leaving),
            Event::WorldServerLost(world) => self.take_server_lost(world),
            Event::WorldEmptied(world) => self.take_emptied(world),
            Event::Lingers(world) => self.worlds.linger(&[world], self.now),
            Event::Drained(world) => {
                self.run.drained |= self.run.stage == Stage::Draining && world.next() == self.world()
            }
            Event::Committed { .. }
            | Event::InventoryTaken { .. }
            | Event::InventorySoFar { .. }
            | Event::DueAsked { .. }
            | Event::Fetched { .. }
            | Event::NotFetched { .. }
            | Event::RestoreAsked(_)
            | Event::Restored { .. }
            | Event::NotRestored { .. } => self.take_of_checkpoints(event),
            Event::StoreRead { revision, record } => self.take_read(revision, record),
            Event::CasDone { revision } => self.take_written(revision),
            Event::Watched { revision, record } => self.take_watched(revision, record),
            Event::CasLost { revision, record } => self.take_lost(revision, record),
            Event::CasUnfit { nodes } => self.take_unfit(nodes),
            Event::StoreUnavailable => self.take_unavailable(),
            Event::Message { from, message } => self.take_message(from, message),
            Event::Timer => {}
            Event::Cancel { signal } => self.take_cancel(signal),
            Event::Signalled { slot, signal } => self.take_signalled(slot, signal),
            Event::Remembered { signal, ago } => self.take_remembered(signal, ago),
            Event::Repeated { signal } => self.take_repeated(signal),
            Event::Suspended(stopped) => self.telling.suspended(stopped, self.now),
        }
    }

    fn take_unfit(&mut self, nodes: Vec<NodeId>) {
        self.store.written();
        self.answered();
        self.run.unfit.found(nodes, self.now);
        self.fence.not_written(self.now);
    }

    fn take_lost(&mut self, revision: Revision, record: Option<Arc<EpochRecord>>) {
        let asked = self.store.written().map(|(asked, _)| asked);
        self.answered();
        self.take_key(revision, record, asked);
    }

    fn take_of_checkpoints(&mut self, event: Event) {
        match event {
            Event::Committed { process, version, level } => self.take_committed(process, version, level),
            Event::InventoryTaken { epoch, inventory } => self.take_inventory(epoch, &inventory),
            Event::InventorySoFar { epoch, inventory, unread } => self.take_so_far(epoch, &inventory, unread),
            Event::DueAsked { process, cost } => self.take_due_asked(process, cost),
            Event::Fetched { epoch, rank } => self.take_fetched(epoch, rank),
            Event::NotFetched { epoch, rank, from } => self.take_not_fetched(epoch, rank, from),
            Event::RestoreAsked(process) => {
                if let Some(local) = self.run.locals.get_mut(&process) {
                    local.asked = true;
                    self.sign(process);
                }
            }
            Event::Restored { process, version } => self.take_restored(process, version),
            Event::NotRestored { process, reason } => self.take_not_restored(process, reason),
            _ => {}
        }
    }

    fn take_start(&mut self, slots: Vec<SlotId>) {
        self.run.since = self.now;
        self.began = Some(self.now);
        let alone = self.config.nodes.len() <= 1;
        self.slots.begin(slots, alone.then_some(self.config.world_size), self.now);
        self.store.want();
    }

    fn take_slot_lost(&mut self, slot: SlotId) {
        let (news, since) = self.slots.lose(slot);
        if !news || self.left_with_slot(slot) {
            return;
        }
        // Its rank has died of that, and nobody is left who could say more.
        let rank = self.record.as_ref().and_then(|record| record.placement.rank(slot));
        self.forget_explained(rank);
        self.fail(Subject::Slot(slot), Cause::SlotLost);
        self.noticed_since(since);
    }

    fn take_emptied(&mut self, world: WorldId) {
        if self.worlds.emptied(world) {
            self.slots.emptied(world);
        }
    }
}
