//! Checkpoints that exist, and which version is to be restored.
//!
//! When an epoch ends, every agent freezes what it holds and says so in an [`Inventory`]. The version to restore is a pure
//! function of the inventories ([`choose`]): per group, the greatest version of which every rank's data still exists at
//! some level. So the choice needs no agreement of its own, and cannot name bytes that are gone.

use crate::ids::{EpochId, GroupId, Rank, Version};
use crate::ranks::RankSet;
use std::collections::{BTreeMap, BTreeSet};

/// Where a copy of a checkpoint lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Level {
    /// L1: the arena of the rank, on its own node.
    #[default]
    Own,
    /// L2: a partner node's arena, or parity.
    Partner,
    /// L3: a file system or object store.
    Stable,
}

/// A version and the epoch in which it was committed. The number alone does not name the bytes: after a recovery the
/// application computes a version anew, perhaps differently, while copies from the epoch before may still be somewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// The application's number.
    pub version: Version,
    /// The epoch of the process that committed it.
    pub epoch: EpochId,
}

/// One whole, verified copy of one rank's version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holding {
    /// Whose data.
    pub owner: Rank,
    /// Which version.
    pub stamp: Stamp,
    /// At which level.
    pub level: Level,
}

/// What one node holds, frozen: nothing is added, changed or reused until the next epoch is running. A copy that failed
/// its checksum is not in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Inventory {
    /// The copies.
    pub holdings: BTreeSet<Holding>,
}

impl Level {
    /// From the least safe to the safest.
    pub const ALL: [Level; 3] = [Level::Own, Level::Partner, Level::Stable];
}

impl Inventory {
    /// An inventory of copies in the ranks' own arenas.
    pub fn own(copies: impl IntoIterator<Item = (Rank, Stamp)>) -> Self {
        let holding = |(owner, stamp)| Holding { owner, stamp, level: Level::Own };
        Inventory { holdings: copies.into_iter().map(holding).collect() }
    }
}

/// Which ranks checkpoint together: run-length.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Groups {
    /// From this rank on, up to the next entry's; ranks before the first are of group 0. Empty: one group.
    runs: Vec<(Rank, GroupId)>,
}

impl Groups {
    /// All ranks in one group.
    pub fn one() -> Self {
        Self::default()
    }

    /// Rank `i` is in group `colours[i]`; ranks beyond its end are of group 0.
    pub fn coloured(colours: Vec<GroupId>) -> Self {
        let mut runs: Vec<(Rank, GroupId)> = Vec::new();
        for (rank, group) in (0u32..).map(Rank).zip(colours.into_iter().chain([GroupId(0)])) {
            if runs.last().map_or(GroupId(0), |(_, last)| *last) != group {
                runs.push((rank, group));
            }
        }
        Groups { runs }
    }

    /// The group of `rank`.
    pub fn of(&self, rank: Rank) -> GroupId {
        let at = self.runs.partition_point(|(first, _)| *first <= rank).checked_sub(1);
        at.map_or(GroupId(0), |at| self.runs[at].1)
    }

    /// The groups of a world of this size, with their ranks.
    pub fn ranks(&self, world_size: u32) -> BTreeMap<GroupId, RankSet> {
        let mut groups: BTreeMap<GroupId, RankSet> = BTreeMap::new();
        let ends = self.runs.iter().map(|(first, _)| first.0).chain([world_size]);
        let starts = [(Rank(0), GroupId(0))].into_iter().chain(self.runs.iter().copied());
        for ((first, group), end) in starts.zip(ends) {
            let run = RankSet::run(first, Rank(end.min(world_size)));
            if !run.is_empty() {
                groups.entry(group).or_default().extend(&run);
            }
        }
        groups
    }
}

/// Per group the version to restore, or `None`: that group starts from the beginning.
pub type Choice = BTreeMap<GroupId, Option<Stamp>>;

/// The version each group restores: the greatest of which every rank of the group has a copy, committed in one and the
/// same epoch, in one of the inventories.
pub fn choose<'a>(inventories: impl IntoIterator<Item = &'a Inventory>, groups: &Groups, world_size: u32) -> Choice {
    let mut owners: BTreeMap<Stamp, Vec<Rank>> = BTreeMap::new();
    for holding in inventories.into_iter().flat_map(|inventory| &inventory.holdings) {
        owners.entry(holding.stamp).or_default().push(holding.owner);
    }
    let held: BTreeMap<Stamp, RankSet> =
        owners.into_iter().map(|(stamp, ranks)| (stamp, ranks.into_iter().collect())).collect();
    let newest =
        |ranks: &RankSet| held.iter().rev().find(|(_, holders)| holders.contains_all(ranks)).map(|(stamp, _)| *stamp);
    groups.ranks(world_size).into_iter().map(|(group, ranks)| (group, newest(&ranks))).collect()
}

/// The copies of `held` that are to be read next, and compared with their checksums, before a node says what it holds; of those that
/// are not as they should be it has none. Where it is `alone`, these are what would be restored, and nothing else is read as
/// long as that is whole; where others may hold less, all.
pub fn to_verify(
    held: &Inventory,
    verified: &Inventory,
    groups: &Groups,
    world_size: u32,
    alone: bool,
) -> BTreeSet<Holding> {
    let choice = choose([held], groups, world_size);
    let chosen = |holding: &Holding| choice.get(&groups.of(holding.owner)) == Some(&Some(holding.stamp));
    let unread = held.holdings.difference(&verified.holdings).copied();
    unread.filter(|holding| !alone || chosen(holding)).collect()
}

/// What this node's ranks have committed in the running epoch. What all of them hold is kept beside it: it is asked for far more
/// often than it changes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ledger {
    held: BTreeMap<Rank, BTreeMap<Version, Level>>,
    /// How many ranks of each group are here, and how many of them hold each version, at a level or a safer one.
    ranks: BTreeMap<GroupId, u32>,
    holders: BTreeMap<(GroupId, Level, Version), u32>,
    committed: Committed,
    /// What was complete when older versions were forgotten last.
    forgotten: BTreeMap<GroupId, [Option<Version>; 3]>,
}

impl Ledger {
    /// These ranks have committed nothing yet.
    pub fn of(groups: &Groups, ranks: impl IntoIterator<Item = Rank>) -> Self {
        let mut ledger = Ledger::default();
        for rank in ranks {
            let group = groups.of(rank);
            *ledger.ranks.entry(group).or_default() += 1;
            ledger.committed.extend(Level::ALL.map(|level| ((group, level), BTreeSet::new())));
        }
        ledger
    }

    /// `rank` of this group holds `version` whole, at this level and at all that are less safe.
    pub fn commit(&mut self, group: GroupId, rank: Rank, version: Version, level: Level) {
        let known = self.held.entry(rank).or_default().insert(version, level);
        if let Some(safer) = known.filter(|known| *known >= level) {
            self.held.entry(rank).or_default().insert(version, safer);
            return;
        }
        for at in Level::ALL.into_iter().filter(|at| *at <= level && known.is_none_or(|known| *at > known)) {
            let holders = self.holders.entry((group, at, version)).or_default();
            *holders += 1;
            if self.ranks.get(&group) == Some(holders) {
                self.committed.entry((group, at)).or_default().insert(version);
            }
        }
    }

    /// The versions that all ranks hold, per group and level.
    pub fn committed(&self) -> &Committed {
        &self.committed
    }

    /// These versions of a group are complete, each at its level: of its ranks' older ones only those are remembered that a
    /// level has still to come to, or that are at least as new as what is complete there.
    pub fn forget(&mut self, group: GroupId, complete: [Option<Version>; 3], groups: &Groups) {
        if self.forgotten.insert(group, complete) == Some(complete) {
            return;
        }
        let counts = |version: Version, level: Level| {
            let levels = Level::ALL.into_iter().zip(complete).filter(|(at, _)| *at <= level);
            levels.into_iter().any(|(_, complete)| complete.is_none_or(|complete| version >= complete))
        };
        let mut gone: Vec<(Version, Level)> = Vec::new();
        for (_, versions) in self.held.iter_mut().filter(|(rank, _)| groups.of(**rank) == group) {
            gone.extend(versions.iter().map(|(version, level)| (*version, *level)).filter(|(v, at)| !counts(*v, *at)));
            versions.retain(|version, level| counts(*version, *level));
        }
        for (version, level) in gone {
            for at in Level::ALL.into_iter().filter(|at| *at <= level) {
                self.committed.entry((group, at)).and_modify(|held| _ = held.remove(&version));
                let holders = self.holders.entry((group, at, version)).or_default();
                *holders = holders.saturating_sub(1);
                if *holders == 0 {
                    self.holders.remove(&(group, at, version));
                }
            }
        }
    }
}

/// The versions that all ranks of some nodes hold whole, per group and level: at that level or a safer one.
pub type Committed = BTreeMap<(GroupId, Level), BTreeSet<Version>>;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stamp(version: u64, epoch: u64) -> Stamp {
        Stamp { version: Version(version), epoch: EpochId(epoch) }
    }

    #[test]
    fn the_newest_version_that_everybody_holds_is_chosen() {
        let node0 = Inventory::own([(Rank(0), stamp(10, 1)), (Rank(0), stamp(20, 1)), (Rank(1), stamp(10, 1))]);
        let node1 = Inventory::own([(Rank(2), stamp(10, 1)), (Rank(2), stamp(20, 1))]);
        let choice = choose([&node0, &node1], &Groups::one(), 3);
        assert_eq!(choice, Choice::from([(GroupId(0), Some(stamp(10, 1)))]));
    }

    #[test]
    fn a_rank_without_a_copy_means_the_beginning() {
        let node0 = Inventory::own([(Rank(0), stamp(10, 1))]);
        assert_eq!(choose([&node0], &Groups::one(), 2), Choice::from([(GroupId(0), None)]));
    }

    #[test]
    fn copies_of_one_number_from_two_epochs_do_not_mix() {
        let node0 = Inventory::own([(Rank(0), stamp(20, 1)), (Rank(0), stamp(10, 1))]);
        let node1 = Inventory::own([(Rank(1), stamp(20, 2)), (Rank(1), stamp(10, 1))]);
        assert_eq!(choose([&node0, &node1], &Groups::one(), 2)[&GroupId(0)], Some(stamp(10, 1)));
    }

    #[test]
    fn a_node_that_is_alone_reads_what_it_restores_and_others_all_that_they_hold() {
        let copies = |copies: &[(u32, u64)]| {
            Inventory::own(copies.iter().map(|(rank, version)| (Rank(*rank), stamp(*version, 1))))
        };
        let all = copies(&[(0, 10), (0, 20), (0, 30), (1, 10), (1, 20)]);
        let read = |held: &Inventory, verified: &Inventory, alone| Inventory {
            holdings: to_verify(held, verified, &Groups::one(), 2, alone),
        };
        let none = Inventory::default();
        let newest = copies(&[(0, 20), (1, 20)]);
        assert_eq!(read(&all, &none, true), newest, "30 is not complete");
        assert_eq!(read(&all, &newest, true), none);
        // One of them is damaged.
        let left = copies(&[(0, 10), (0, 20), (0, 30), (1, 10)]);
        assert_eq!(read(&left, &copies(&[(0, 20)]), true), copies(&[(0, 10), (1, 10)]));
        assert_eq!(read(&copies(&[(0, 10)]), &none, true), none, "nobody else has the other rank's");
        assert_eq!(read(&copies(&[(0, 10)]), &none, false), copies(&[(0, 10)]), "somebody else may have it");
        assert_eq!(read(&all, &newest, false), copies(&[(0, 10), (0, 30), (1, 10)]));
    }

    #[test]
    fn groups_are_what_their_colours_say() {
        let colours: Vec<GroupId> = [0, 0, 3, 3, 1, 0, 3].into_iter().map(GroupId).collect();
        let groups = Groups::coloured(colours.clone());
        for (rank, colour) in (0u32..).map(Rank).zip(colours.iter().chain(&[GroupId(0), GroupId(0)])) {
            assert_eq!(groups.of(rank), *colour, "{rank}");
        }
        let ranks = groups.ranks(9);
        assert_eq!(ranks[&GroupId(0)].iter().map(|rank| rank.0).collect::<Vec<_>>(), [0, 1, 5, 7, 8]);
        assert_eq!(ranks[&GroupId(3)].runs(), [(2, 4), (6, 7)]);
        assert_eq!(groups.ranks(4).len(), 2);
        assert_eq!(Groups::one().ranks(640_000)[&GroupId(0)].runs(), [(0, 640_000)]);
    }

    #[test]
    fn groups_restore_different_versions() {
        let groups = Groups::coloured(vec![GroupId(0), GroupId(1)]);
        let node0 = Inventory::own([(Rank(0), stamp(7, 1)), (Rank(1), stamp(3, 1))]);
        let choice = choose([&node0], &groups, 2);
        assert_eq!(choice, Choice::from([(GroupId(0), Some(stamp(7, 1))), (GroupId(1), Some(stamp(3, 1)))]));
    }

    #[test]
    fn a_version_counts_when_all_hold_it_at_a_level() {
        let (groups, group) = (Groups::one(), GroupId(0));
        let mut ledger = Ledger::of(&groups, [Rank(0), Rank(1)]);
        let held = |ledger: &Ledger, level| {
            ledger.committed()[&(group, level)].iter().map(|version| version.0).collect::<Vec<_>>()
        };
        ledger.commit(group, Rank(0), Version(1), Level::Partner);
        ledger.commit(group, Rank(0), Version(2), Level::Own);
        assert!(held(&ledger, Level::Own).is_empty());
        ledger.commit(group, Rank(1), Version(1), Level::Own);
        ledger.commit(group, Rank(1), Version(2), Level::Own);
        assert_eq!((held(&ledger, Level::Own), held(&ledger, Level::Partner)), (vec![1, 2], vec![]));
        ledger.commit(group, Rank(1), Version(1), Level::Partner);
        assert_eq!(held(&ledger, Level::Partner), [1]);
        let newest = |own, partner| [own, partner, None].map(|version: Option<u64>| version.map(Version));
        ledger.forget(group, newest(Some(2), None), &groups);
        assert_eq!(
            held(&ledger, Level::Partner),
            [1],
            "a newer one that partners do not have is no reason to forget it"
        );
        ledger.forget(group, newest(Some(2), Some(2)), &groups);
        assert_eq!((held(&ledger, Level::Own), held(&ledger, Level::Partner)), (vec![2], vec![]));
    }

    proptest! {
        #[test]
        fn what_all_hold_is_what_a_look_at_each_finds(
            acts in proptest::collection::vec((0u32..5, 0u64..6, 0usize..3, 0u32..8), 0..80),
        ) {
            let groups = Groups::coloured([0, 0, 1, 0, 1].map(GroupId).to_vec());
            let ranks = (0..5).map(Rank);
            let mut ledger = Ledger::of(&groups, ranks.clone());
            for (rank, version, level, act) in acts {
                let (rank, version, group) = (Rank(rank), Version(version), groups.of(Rank(rank)));
                match act {
                    0 => ledger.forget(group, [Some(version), (level > 0).then_some(version), None], &groups),
                    1 => ledger.forget(group, [Some(version); 3], &groups),
                    _ => ledger.commit(group, rank, version, Level::ALL[level]),
                }
                let mut all: Committed = BTreeMap::new();
                for rank in ranks.clone() {
                    for level in Level::ALL {
                        let held = ledger.held.get(&rank).into_iter().flatten().filter(|(_, at)| **at >= level);
                        let held: BTreeSet<Version> = held.map(|(version, _)| *version).collect();
                        let common = all.entry((groups.of(rank), level)).or_insert_with(|| held.clone());
                        common.retain(|version| held.contains(version));
                    }
                }
                prop_assert_eq!(ledger.committed(), &all);
            }
        }
    }
}
