//! What is told of this node's checkpoints: committed, frozen, taken back.

use super::{Agent, Stage};
use crate::ids::{EpochId, Micros, Process, Version};
use crate::inventory::{Choice, Inventory, Level};
use crate::report::{Notice, Report};

impl Agent {
    pub(super) fn take_inventory(&mut self, epoch: EpochId, inventory: &Inventory) {
        // What is restored is chosen once: what is found later is too late for it.
        if epoch == self.epoch() && !self.run.copies.read && self.run.choice.is_none() {
            self.run.inventory_asked = None;
            self.run.left_out = Inventory::default();
            self.run.copies.read = true;
            self.list_copies(inventory);
        }
    }

    /// Not everything was read in time: the others are told what there is for certain, and that more may come. That is told once; how far
    /// the reading is people hear again.
    pub(super) fn take_so_far(&mut self, epoch: EpochId, inventory: &Inventory, unread: Inventory) {
        if epoch != self.epoch() || self.run.copies.read || self.run.choice.is_some() {
            return;
        }
        let again = self.run.copies.listed;
        if !again {
            self.run.copies.late = true;
            self.list_copies(inventory);
            self.run.left_out = unread.clone();
        }
        self.notice_unread(unread, again, None);
    }

    /// What is restored is chosen without what the others were not told of, however much of that was verified since.
    pub(super) fn notice_left_out(&mut self, restored: Choice) {
        self.notice_unread(self.run.left_out.clone(), false, Some(restored));
    }

    /// `again`: of this reading people have heard.
    fn notice_unread(&mut self, unread: Inventory, again: bool, restored: Option<Choice>) {
        let looks = if again { self.run.inventory_looks } else { 1 };
        let timeout = Micros(self.config.policy.inventory_timeout.0 * u64::from(looks));
        if !unread.holdings.is_empty() {
            self.report(Report::Notice(Notice::NotVerified { unread, timeout, again, restored }));
        }
    }

    pub(super) fn take_committed(&mut self, process: Process, version: Version, level: Level) {
        // Before it is released nothing is new, but what is restored may be shipped to another partner.
        let of_epoch = matches!(self.run.stage, Stage::Parked | Stage::Computing);
        if !of_epoch || !self.run.locals.contains_key(&process) || self.worlds.ended(process.world) {
            return;
        }
        // Of what was there before, only what is restored counts.
        let restored = |choice: &Choice| choice.get(&self.config.groups.of(process.rank)).copied().flatten();
        let restored = self.run.choice.as_ref().and_then(restored).map(|stamp| stamp.version);
        if restored.is_some_and(|restored| version < restored)
            || (self.run.stage == Stage::Parked && restored.is_none())
        {
            return;
        }
        // What is older than what is complete is not told any more, from the next word on.
        let group = self.config.groups.of(process.rank);
        let complete = Level::ALL.map(|level| self.run.complete.get(&(group, level)).copied());
        self.run.ledger.forget(group, complete, &self.config.groups);
        self.run.ledger.commit(group, process.rank, version, level);
    }

    pub(super) fn take_restored(&mut self, process: Process, version: Version) {
        let Some(local) = self.run.locals.get_mut(&process) else { return };
        local.restored = true;
        local.refused = None;
        self.sign(process);
        if let Some(noticed) = self.run.denied.take() {
            let (epoch, took) = (self.epoch(), self.now.since(noticed));
            self.report(Report::Notice(Notice::RestoredLate { epoch, version, took }));
        }
    }

    pub(super) fn take_not_restored(&mut self, process: Process, reason: String) {
        let Some(local) = self.run.locals.get_mut(&process).filter(|local| !local.restored) else { return };
        local.refused = Some(reason.clone());
        self.sign(process);
        if self.run.denied.is_some() {
            let (epoch, rank) = (self.epoch(), process.rank);
            self.report(Report::Notice(Notice::RefusedLate { epoch, rank, reason }));
        }
    }
}
