//! Copies that a node has brought from another one, because the core said so: asked for again and again for a while, sent in
//! some time, compared with their hashes. They come from nowhere but where the core said.

use crate::arenas::Copied;
use crate::breach::Breach;
use crate::setup::MS;
use crate::world::{Act, Packet, World};
use ftd_core::{EpochId, Event, Level, NodeId, Rank, Stamp};

/// A copy that a node waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetching {
    pub epoch: EpochId,
    pub rank: Rank,
    pub stamp: Stamp,
    pub from: usize,
}

/// What was not answered is asked for again after so long.
const AGAIN: u64 = 100 * MS;

impl World {
    /// The core wants this copy from there.
    pub fn fetch(&mut self, node: usize, fetching: Fetching) {
        self.check_fetch(node, fetching);
        let fetches = &mut self.machines[node].fetches;
        fetches.retain(|other| other.rank != fetching.rank);
        fetches.push(fetching);
        self.push(0, Act::Ask { node, fetching });
        self.push(self.setup.fetching, Act::AskNoMore { node, fetching });
    }

    pub fn ask(&mut self, node: usize, fetching: Fetching) {
        if !self.machines[node].fetches.contains(&fetching) {
            return;
        }
        self.send_once(node, fetching.from, Packet::Want { by: node, fetching });
        self.push(AGAIN, Act::Ask { node, fetching });
    }

    pub fn ask_no_more(&mut self, node: usize, fetching: Fetching) {
        if self.machines[node].fetches.contains(&fetching) {
            self.not_fetched(node, fetching);
        }
    }

    /// Another node asks for a copy.
    pub fn wanted(&mut self, node: usize, by: usize, fetching: Fetching) {
        if self.machines[node].agent.is_some() {
            let delay = self.rng.range(self.setup.sending / 4, self.setup.sending);
            self.push(delay, Act::Sent { node, to: by, fetching });
        }
    }

    /// Its last bytes go out, as they are now.
    pub fn sent(&mut self, node: usize, to: usize, fetching: Fetching) {
        let copy = self.machines[node].arena.find(fetching.rank, fetching.stamp);
        let bytes = copy.map(|copy| (copy.value, !copy.rotten));
        self.send_once(node, to, Packet::Copy { fetching, bytes });
    }

    /// It came.
    pub fn brought(&mut self, node: usize, fetching: Fetching, bytes: Option<(u64, bool)>) {
        if !self.machines[node].fetches.contains(&fetching) {
            return;
        }
        let Fetching { epoch, rank, .. } = fetching;
        let unchecked = self.setup.breach == Some(Breach::UncheckedCopies);
        match bytes {
            Some((value, sound)) if sound || unchecked => {
                self.machines[node].fetches.retain(|other| *other != fetching);
                self.put(node, rank, fetching.stamp, value);
                self.local(node, Event::Fetched { epoch, rank });
                self.go_all(node);
            }
            _ => self.not_fetched(node, fetching),
        }
    }

    fn not_fetched(&mut self, node: usize, fetching: Fetching) {
        let Fetching { epoch, rank, from, .. } = fetching;
        self.machines[node].fetches.retain(|other| *other != fetching);
        self.checks.in_vain(epoch, rank, from);
        self.local(node, Event::NotFetched { epoch, rank, from: NodeId(from as u32) });
    }

    /// The bytes that a rank restores, if they are on its node; what lay there for another node is its own now.
    pub fn bytes_here(&mut self, node: usize, rank: Rank, stamp: Stamp) -> Option<u64> {
        let arena = &mut self.machines[node].arena;
        if let Some(own) = arena.find_mut(rank, stamp, Level::Own).filter(|copy| copy.copied == Copied::Hashed) {
            return Some(own.value);
        }
        let value = arena.find(rank, stamp)?.value;
        self.put(node, rank, stamp, value);
        Some(value)
    }

    /// A whole copy gets a place; if there is none it takes that of what is oldest here.
    fn put(&mut self, node: usize, rank: Rank, stamp: Stamp, value: u64) {
        let arena = &mut self.machines[node].arena;
        while !arena.take(rank, stamp, value, Level::Own) {
            let oldest = arena.hashed().filter(|(owner, copy)| *owner == rank && copy.level == Level::Own);
            let Some(oldest) = oldest.map(|(_, copy)| copy.stamp).min() else { break };
            arena.retain(|owner| owner == rank, |copy| copy.level != Level::Own || copy.stamp != oldest);
        }
        self.holds(node, rank, stamp);
        self.ship_soon(node, rank, stamp);
    }

    /// Copies that this node keeps for others are not any more what their hashes say.
    pub fn rot(&mut self, node: usize) {
        let placed = |rank| self.store.value().and_then(|record| record.node_of(rank));
        let here: Vec<Rank> =
            (0..self.setup.ranks).map(Rank).filter(|rank| placed(*rank) == Some(NodeId(node as u32))).collect();
        for rank in self.machines[node].arena.rot(|rank| !here.contains(&rank)) {
            self.checks.spoilt(rank, node, self.now);
        }
    }
}
