//! The shepherds and their slots.

use crate::link::{ConnectionId, Link};
use ft_wire::shepherd::ToShepherd;
use ft_wire::{Rank, Slot};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

#[derive(Debug)]
struct Shepherd {
    connection: ConnectionId,
    link: Link,
}

/// One that dialled before the launcher has named its slot, and what it holds.
#[derive(Debug)]
pub struct Early {
    /// Its connection.
    pub connection: ConnectionId,
    /// Its slot, as it says.
    pub slot: Slot,
    /// Whose arenas it holds.
    pub ranks: Vec<Rank>,
    /// Their descriptors.
    pub fds: Vec<OwnedFd>,
}

/// Those of this node.
#[derive(Debug, Default)]
pub struct Shepherds {
    here: BTreeMap<Slot, Shepherd>,
    /// The process of each slot that exists, whether it has dialled in or not.
    slots: BTreeMap<Slot, i32>,
    early: Vec<Early>,
}

impl Shepherds {
    /// A slot exists, and this process is its shepherd.
    pub fn expect(&mut self, slot: Slot, pid: i32) {
        self.slots.insert(slot, pid);
    }

    /// The process that the launcher started for a slot.
    pub fn process(&self, slot: Slot) -> Option<i32> {
        self.slots.get(&slot).copied()
    }

    /// The processes of all slots.
    pub fn processes(&self) -> impl Iterator<Item = i32> {
        self.slots.values().copied()
    }

    /// Keeps one whose slot is not known yet; false when it has been kept before, or there are too many of them.
    pub fn keep_early(&mut self, early: Early, most: usize) -> bool {
        let room = !self.is_early(early.connection) && self.early.len() < most;
        if room {
            self.early.push(early);
        }
        room
    }

    /// Whether this is the connection of one of them.
    pub fn is_early(&self, connection: ConnectionId) -> bool {
        self.early.iter().any(|early| early.connection == connection)
    }

    /// All of them: more slots are known now.
    pub fn take_early(&mut self) -> Vec<Early> {
        std::mem::take(&mut self.early)
    }

    /// The connection has ended.
    pub fn forget_early(&mut self, connection: ConnectionId) {
        self.early.retain(|early| early.connection != connection);
    }

    /// The shepherd of a slot is there.
    pub fn admit(&mut self, slot: Slot, connection: ConnectionId, link: Link) {
        self.here.insert(slot, Shepherd { connection, link });
    }

    /// The slot is gone, and its shepherd. Returns the connection of that one.
    pub fn gone(&mut self, slot: Slot) -> Option<ConnectionId> {
        self.slots.remove(&slot);
        self.here.remove(&slot).map(|shepherd| shepherd.connection)
    }

    /// Slots whose shepherds have not dialled in.
    pub fn absent(&self) -> Vec<Slot> {
        self.slots.keys().filter(|slot| !self.here.contains_key(slot)).copied().collect()
    }

    /// Whether the shepherd of a slot is there.
    pub fn is_here(&self, slot: Slot) -> bool {
        self.here.contains_key(&slot)
    }

    /// Whether the shepherd of a slot is dying: its rank dies of that.
    pub fn is_dying(&self, slot: Slot) -> bool {
        self.slots.get(&slot).is_some_and(|pid| ft_sys::death::is_dying(*pid).unwrap_or(false))
    }

    /// All that are there, from this slot on and round.
    pub fn from(&self, slot: Slot) -> impl Iterator<Item = (ConnectionId, &Link)> {
        let round = self.here.range(slot..).chain(self.here.range(..slot));
        round.map(|(_, shepherd)| (shepherd.connection, &shepherd.link))
    }

    /// Tells the shepherd of a slot, if it is there.
    pub fn tell(&self, slot: Slot, message: &ToShepherd) {
        self.tell_with(slot, message, Vec::new());
    }

    /// The same, with descriptors.
    pub fn tell_with(&self, slot: Slot, message: &ToShepherd, fds: Vec<OwnedFd>) {
        if let Some(shepherd) = self.here.get(&slot) {
            shepherd.link.send_with(message, fds);
        }
    }

    /// Tells all that are there.
    pub fn tell_all(&self, message: &ToShepherd) {
        for shepherd in self.here.values() {
            shepherd.link.send(message);
        }
    }
}
