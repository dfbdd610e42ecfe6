//! Checkpoints in memory: the ranks' own copies and those that partners hold, with their hashes.

use crate::setup::Setup;
use ftd_core::{Holding, Inventory, Level, Members, NodeId, Rank, Stamp, Version};
use std::collections::BTreeMap;

/// Places per rank: one being written, one being shipped, one safe.
const PLACES: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copied {
    /// The copy is going on, or its writer died in it.
    Half,
    /// All bytes are there.
    Whole,
    /// The checksum is made: it counts.
    Hashed,
}

/// One version of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copy {
    pub stamp: Stamp,
    /// The bytes.
    pub value: u64,
    pub copied: Copied,
    pub level: Level,
    /// A partner has it.
    pub shipped: bool,
}

/// What one machine holds.
#[derive(Debug, Clone, Default)]
pub struct Arena {
    copies: BTreeMap<Rank, Vec<Copy>>,
}

impl Arena {
    /// Begins to write a version; false when no place is free.
    pub fn begin(&mut self, rank: Rank, stamp: Stamp) -> bool {
        let copies = self.copies.entry(rank).or_default();
        // What a dead process left half written is free.
        copies.retain(|copy| copy.copied != Copied::Half);
        if copies.iter().filter(|copy| copy.level == Level::Own).count() >= PLACES {
            return false;
        }
        copies.push(Copy { stamp, value: 0, copied: Copied::Half, level: Level::Own, shipped: false });
        true
    }

    /// Whether this version, or a newer one of the same epoch, is here already.
    pub fn has_version(&self, rank: Rank, version: Version) -> bool {
        self.of(rank)
            .any(|copy| copy.stamp.version == version && copy.level == Level::Own && copy.copied != Copied::Half)
    }

    pub fn find(&self, rank: Rank, stamp: Stamp) -> Option<&Copy> {
        self.of(rank).find(|copy| copy.stamp == stamp && copy.copied == Copied::Hashed)
    }

    pub fn find_mut(&mut self, rank: Rank, stamp: Stamp, level: Level) -> Option<&mut Copy> {
        let mut copies = self.copies.get_mut(&rank)?.iter_mut();
        copies.find(|copy| copy.stamp == stamp && copy.level == level)
    }

    fn of(&self, rank: Rank) -> impl Iterator<Item = &Copy> {
        self.copies.get(&rank).into_iter().flatten()
    }

    /// All copies that count.
    pub fn hashed(&self) -> impl Iterator<Item = (Rank, &Copy)> {
        let all = self.copies.iter().flat_map(|(rank, copies)| copies.iter().map(|copy| (*rank, copy)));
        all.filter(|(_, copy)| copy.copied == Copied::Hashed)
    }

    /// Takes a whole copy from elsewhere; false when no place is free.
    pub fn take(&mut self, rank: Rank, stamp: Stamp, value: u64, level: Level) -> bool {
        let copies = self.copies.entry(rank).or_default();
        if copies.iter().any(|copy| copy.stamp == stamp && copy.level == level && copy.copied == Copied::Hashed) {
            return true;
        }
        if copies.iter().filter(|copy| copy.level == level).count() >= PLACES {
            return false;
        }
        copies.push(Copy { stamp, value, copied: Copied::Hashed, level, shipped: false });
        true
    }

    /// Finishes checksums, drops half copies, and lists what counts. `half`: as if those counted, too.
    pub fn inventory(&mut self, half: bool) -> Inventory {
        let mut inventory = Inventory::default();
        for (owner, copies) in &mut self.copies {
            copies
                .iter_mut()
                .filter(|copy| half || copy.copied == Copied::Whole)
                .for_each(|copy| copy.copied = Copied::Hashed);
            copies.retain(|copy| copy.copied == Copied::Hashed);
            let holdings = copies.iter().map(|copy| Holding { owner: *owner, stamp: copy.stamp, level: copy.level });
            inventory.holdings.extend(holdings);
        }
        inventory
    }

    /// Keeps of these ranks what `keep` wants.
    pub fn retain(&mut self, ranks: impl Fn(Rank) -> bool, keep: impl Fn(&Copy) -> bool) {
        for (_, copies) in self.copies.iter_mut().filter(|(rank, _)| ranks(**rank)) {
            copies.retain(&keep);
        }
    }
}

/// The node that keeps copies for `node`: the next member in another rack, else the next member.
pub fn partner(setup: &Setup, members: &Members, node: usize) -> Option<usize> {
    let (me, count) = (NodeId(node as u32), members.len());
    let lower = || members.iter().take_while(|other| *other < me).count() as u32;
    let first = members.position(me).map_or_else(lower, |at| at + 1);
    let around = |step| members.at((first + step) % count).map(|other| other.0 as usize);
    let after = || (0..count).filter_map(around).filter(|other| *other != node);
    after().find(|other| setup.rack(*other) != setup.rack(node)).or_else(|| after().next())
}
