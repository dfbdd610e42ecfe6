//! This node's slots.

use crate::ids::{Micros, SlotId, WorldId};
use crate::record::EpochRecord;
use std::collections::{BTreeMap, BTreeSet};

/// A slot of this node.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// Its shepherd has dialled in.
    up: bool,
    /// The world whose process is there.
    world: Option<WorldId>,
}

/// This node's slots: those that exist, and those that did.
#[derive(Debug, Clone, Default)]
pub(super) struct LocalSlots {
    known: BTreeMap<SlotId, Slot>,
    lost: BTreeSet<SlotId>,
    /// Slots whose shepherds are dying, since when that is known: they are lost in a moment.
    dying: BTreeMap<SlotId, Micros>,
    /// Slots that this node has from the start of the job on, whoever of them dies.
    promised: u32,
    /// Slots that were asked for and do not exist yet.
    asked: u32,
    /// When one was asked for last.
    pub since: Micros,
    /// Slots whose shepherds do not answer.
    silent: BTreeSet<SlotId>,
    /// When that changed.
    pub silent_at: Micros,
    /// Peers may know of these slots: a record may be written that counts on them.
    pub announced: bool,
}

impl LocalSlots {
    /// These exist when the agent begins. `promised`: so many there are to be, if that is known.
    pub fn begin(&mut self, slots: Vec<SlotId>, promised: Option<u32>, now: Micros) {
        // Slots of this list that are in no record were asked for by an agent before this one.
        self.since = now;
        for slot in slots {
            self.known.entry(slot).or_default();
        }
        self.promised = promised.unwrap_or(self.known.len() as u32);
    }

    /// Another one is asked for.
    pub fn ask(&mut self, now: Micros) {
        self.asked += 1;
        self.since = now;
    }

    /// One that the record names is to be made.
    pub fn expect(&mut self, slot: SlotId) {
        self.known.entry(slot).or_default();
    }

    /// One that was asked for exists.
    pub fn added(&mut self, slot: SlotId) {
        // Those beyond the node's own are asked for by name.
        self.asked = self.asked.saturating_sub(u32::from(!slot.is_beyond()));
        if !self.lost.contains(&slot) {
            self.known.entry(slot).or_default();
        }
    }

    /// Its shepherd dialled in.
    pub fn dialled_in(&mut self, slot: SlotId) {
        if !self.lost.contains(&slot) {
            self.known.entry(slot).or_default().up = true;
        }
    }

    /// It is about to be lost.
    pub fn is_dying(&mut self, slot: SlotId, now: Micros) {
        if self.known.contains_key(&slot) {
            self.dying.entry(slot).or_insert(now);
        }
    }

    /// It is gone. Whether that is news, and since when it was dying.
    pub fn lose(&mut self, slot: SlotId) -> (bool, Option<Micros>) {
        self.known.remove(&slot);
        (self.lost.insert(slot), self.dying.remove(&slot))
    }

    /// The shepherds of these do not answer, and of no others. What a silent shepherd owes is due again when it is heard.
    pub fn fall_silent(&mut self, slots: Vec<SlotId>, now: Micros) {
        self.silent = slots.into_iter().collect();
        self.silent_at = now;
        self.since = now;
    }

    /// Whether a shepherd does not answer.
    pub fn any_silent(&self) -> bool {
        !self.silent.is_empty()
    }

    /// Whether the shepherd of one of these does not answer.
    pub fn silent_of(&self, slots: &[SlotId]) -> bool {
        slots.iter().any(|slot| self.silent.contains(slot))
    }

    /// The worlds whose processes are below shepherds that do not answer.
    pub fn silent_worlds(&self) -> Vec<WorldId> {
        self.silent.iter().filter_map(|slot| self.known.get(slot)?.world).collect()
    }

    /// A process of this world is there from now on.
    pub fn occupy(&mut self, slot: SlotId, world: WorldId) {
        let slot_of = self.known.get_mut(&slot);
        debug_assert!(slot_of.as_ref().is_some_and(|known| known.world.is_none()), "{slot} is not empty");
        if let Some(known) = slot_of {
            known.world = Some(world);
        }
    }

    /// No process of this world is left.
    pub fn emptied(&mut self, world: WorldId) {
        self.known.values_mut().filter(|slot| slot.world == Some(world)).for_each(|slot| slot.world = None);
    }

    /// Whether it exists.
    pub fn exists(&self, slot: SlotId) -> bool {
        self.known.contains_key(&slot)
    }

    /// Whether it exists, and its shepherd has dialled in.
    pub fn is_up(&self, slot: SlotId) -> bool {
        self.known.get(&slot).is_some_and(|known| known.up)
    }

    /// Those whose shepherds have dialled in.
    pub fn up(&self) -> impl Iterator<Item = SlotId> + '_ {
        self.known.iter().filter(|(_, slot)| slot.up).map(|(slot, _)| *slot)
    }

    /// Those whose shepherds have not.
    pub fn absent(&self) -> impl Iterator<Item = SlotId> + '_ {
        self.known.iter().filter(|(_, slot)| !slot.up).map(|(slot, _)| *slot)
    }

    /// Those that are gone.
    pub fn lost(&self) -> impl Iterator<Item = SlotId> + '_ {
        self.lost.iter().copied()
    }

    /// Whether it is gone.
    pub fn is_lost(&self, slot: SlotId) -> bool {
        self.lost.contains(&slot)
    }

    /// Those that will be gone in a moment: since when that is known.
    pub fn dying(&self) -> impl Iterator<Item = Micros> + '_ {
        self.dying.values().copied()
    }

    /// So many of those that it was promised do not exist: their shepherds died before the first record, perhaps together with
    /// an agent before this one.
    pub fn missing(&self) -> u32 {
        self.promised.saturating_sub(self.known.len() as u32)
    }

    /// So many of those have not even been asked for.
    pub fn to_ask(&self) -> u32 {
        self.missing().saturating_sub(self.asked)
    }

    /// So many are on their way: asked for, or there and not dialled in, and in no record.
    pub fn coming(&self, record: Option<&EpochRecord>) -> u32 {
        let of_record = |slot: &SlotId| record.is_some_and(|record| record.slot(*slot).is_some());
        self.asked + self.absent().filter(|slot| !of_record(slot)).count() as u32
    }
}
