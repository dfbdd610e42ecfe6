//! Checkpoints in memory: the ranks' own copies and those that partners hold, with their hashes.

use ftd_core::{GroupId, Holding, Inventory, Level, Rank, Stamp, Version};
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
    /// The bytes are not what the hash says; nobody has looked.
    pub rotten: bool,
}

/// What one machine holds.
#[derive(Debug, Clone, Default)]
pub struct Arena {
    copies: BTreeMap<Rank, Vec<Copy>>,
    /// What is older than this was given up, but for these: a copy of it that was on its way is not taken any more.
    given_up: BTreeMap<GroupId, (Stamp, Vec<Stamp>)>,
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
        copies.push(Copy { stamp, value: 0, copied: Copied::Half, level: Level::Own, shipped: false, rotten: false });
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
        copies.push(Copy { stamp, value, copied: Copied::Hashed, level, shipped: false, rotten: false });
        true
    }

    /// What is older than this is needed no more, but for these.
    pub fn give_up(&mut self, group: GroupId, older: Stamp, kept: &[Stamp]) {
        self.given_up.insert(group, (older, kept.to_vec()));
    }

    /// An epoch restores something: what is needed will be said anew.
    pub fn begin_anew(&mut self, group: GroupId) {
        self.given_up.remove(&group);
    }

    /// Whether a copy of this is still needed.
    pub fn needs(&self, group: GroupId, stamp: Stamp) -> bool {
        self.given_up.get(&group).is_none_or(|(older, kept)| stamp >= *older || kept.contains(&stamp))
    }

    /// Finishes checksums, drops half copies, and lists what counts. `half`: as if those counted, too.
    pub fn inventory(&mut self, half: bool) -> Inventory {
        let mut inventory = Inventory::default();
        for (owner, copies) in &mut self.copies {
            copies
                .iter_mut()
                .filter(|copy| half || copy.copied == Copied::Whole)
                .for_each(|copy| copy.copied = Copied::Hashed);
            copies.retain(|copy| copy.copied == Copied::Hashed && !copy.rotten);
            let holdings = copies.iter().map(|copy| Holding { owner: *owner, stamp: copy.stamp, level: copy.level });
            inventory.holdings.extend(holdings);
        }
        inventory
    }

    /// Spoils the partner copies of these ranks, and says whose those were.
    pub fn rot(&mut self, ranks: impl Fn(Rank) -> bool) -> Vec<Rank> {
        let spoilt = self.copies.iter_mut().filter(|(rank, _)| ranks(**rank));
        let spoil = |(rank, copies): (&Rank, &mut Vec<Copy>)| {
            for copy in copies.iter_mut().filter(|copy| copy.level == Level::Partner && !copy.rotten) {
                (copy.rotten, copy.value) = (true, !copy.value);
            }
            *rank
        };
        spoilt.map(spoil).collect()
    }

    /// Keeps of these ranks what `keep` wants.
    pub fn retain(&mut self, ranks: impl Fn(Rank) -> bool, keep: impl Fn(&Copy) -> bool) {
        for (_, copies) in self.copies.iter_mut().filter(|(rank, _)| ranks(**rank)) {
            copies.retain(&keep);
        }
    }
}
