//! What of everybody's inventories goes up the [tree](crate::tree), and what is restored.
//!
//! Copies of a rank's data may lie anywhere. Whoever has some tells the node on which the rank is placed now; when everybody has,
//! that node alone knows of which versions its ranks have copies, and says of which all of them do, per group. What all ranks of all
//! nodes have is what is common to those: a few versions, however many ranks and nodes there are, and however their copies are
//! spread at the moment at which something fails.

use crate::ids::{GroupId, Rank};
use crate::inventory::{Choice, Groups, Stamp};
use crate::ranks::RankSet;
use std::collections::{BTreeMap, BTreeSet};

/// Copies: of each version those whose data it is.
pub type Copies = BTreeMap<Stamp, RankSet>;

/// How many copies that are.
pub fn count(copies: &Copies) -> u64 {
    copies.values().map(|ranks| u64::from(ranks.len())).sum()
}

/// The versions of which every rank has a copy, of those of a group that are placed on some nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Held {
    /// Wherever that lies.
    pub somewhere: BTreeSet<Stamp>,
    /// On another node than the rank's own, or where any node can fetch it.
    pub elsewhere: BTreeSet<Stamp>,
}

/// The same of every group that has ranks there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Holdings {
    of: BTreeMap<GroupId, Held>,
}

/// What an epoch restores.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Restoration {
    /// Per group the newest version of which every rank has a copy somewhere, committed in one and the same epoch.
    pub choice: Choice,
    /// Per group the newest version of which every rank has a copy on another node than its own, be it the only one, since
    /// its node has died: what is left when another node dies before the chosen one has partners.
    pub safe: BTreeMap<GroupId, Stamp>,
}

impl FromIterator<(GroupId, Held)> for Holdings {
    fn from_iter<T: IntoIterator<Item = (GroupId, Held)>>(all: T) -> Self {
        Holdings { of: all.into_iter().collect() }
    }
}

impl Holdings {
    /// What the ranks of one node have: copies that lie `here` and copies `elsewhere`.
    pub fn of_node(ranks: impl IntoIterator<Item = Rank>, groups: &Groups, here: &Copies, elsewhere: &Copies) -> Self {
        let mut placed: BTreeMap<GroupId, Vec<Rank>> = BTreeMap::new();
        ranks.into_iter().for_each(|rank| placed.entry(groups.of(rank)).or_default().push(rank));
        let mut somewhere = here.clone();
        elsewhere.iter().for_each(|(stamp, ranks)| somewhere.entry(*stamp).or_default().extend(ranks));
        let of_group = |(group, ranks): (GroupId, Vec<Rank>)| {
            let ranks: RankSet = ranks.into_iter().collect();
            let whole = |copies: &Copies| {
                copies.iter().filter(|(_, of)| of.contains_all(&ranks)).map(|(stamp, _)| *stamp).collect()
            };
            (group, Held { somewhere: whole(&somewhere), elsewhere: whole(elsewhere) })
        };
        placed.into_iter().map(of_group).collect()
    }

    /// What the ranks of these nodes and of those have in common.
    pub fn and(mut self, other: &Holdings) -> Self {
        for (group, theirs) in &other.of {
            match self.of.get_mut(group) {
                Some(held) => {
                    held.somewhere.retain(|stamp| theirs.somewhere.contains(stamp));
                    held.elsewhere.retain(|stamp| theirs.elsewhere.contains(stamp));
                }
                None => drop(self.of.insert(*group, theirs.clone())),
            }
        }
        self
    }

    /// What each group restores, when these are all ranks'.
    pub fn choose(&self) -> Restoration {
        let newest = |stamps: &BTreeSet<Stamp>| stamps.last().copied();
        Restoration {
            choice: self.of.iter().map(|(group, held)| (*group, newest(&held.somewhere))).collect(),
            safe: self.of.iter().filter_map(|(group, held)| Some((*group, newest(&held.elsewhere)?))).collect(),
        }
    }

    /// All of it, for the wire.
    pub fn groups(&self) -> impl Iterator<Item = (GroupId, &Held)> {
        self.of.iter().map(|(group, held)| (*group, held))
    }

    /// About how many bytes it takes on the wire.
    pub fn size(&self) -> u64 {
        self.of.values().map(|held| 8 + 16 * (held.somewhere.len() + held.elsewhere.len()) as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{EpochId, Version};
    use crate::inventory::{Inventory, choose};
    use proptest::prelude::*;

    fn stamp(version: u64) -> Stamp {
        Stamp { version: Version(version), epoch: EpochId(1) }
    }

    fn copies(all: &[(u32, u64)]) -> Copies {
        let mut copies = Copies::new();
        all.iter().for_each(|(rank, version)| copies.entry(stamp(*version)).or_default().insert(Rank(*rank)));
        copies
    }

    /// Of one node with these ranks, in one group.
    fn node(ranks: &[u32], here: &[(u32, u64)], elsewhere: &[(u32, u64)]) -> Holdings {
        let ranks = ranks.iter().copied().map(Rank);
        Holdings::of_node(ranks, &Groups::one(), &copies(here), &copies(elsewhere))
    }

    #[test]
    fn what_a_partner_holds_is_restored() {
        // Rank 1 was on a node that died; it is placed on the first node now, the second one was its partner.
        let first = node(&[0, 1], &[(0, 10), (0, 20)], &[(1, 10)]);
        let chosen = first.and(&node(&[2], &[(2, 10), (2, 20)], &[])).choose();
        assert_eq!(chosen.choice, Choice::from([(GroupId(0), Some(stamp(10)))]));
    }

    #[test]
    fn what_is_left_when_another_node_dies_is_known() {
        // Of version 20 only the first rank's copy has reached its partner.
        let first = node(&[0], &[(0, 10), (0, 20)], &[(0, 10), (0, 20)]);
        let chosen = first.and(&node(&[1], &[(1, 10), (1, 20)], &[(1, 10)])).choose();
        assert_eq!((chosen.choice[&GroupId(0)], chosen.safe[&GroupId(0)]), (Some(stamp(20)), stamp(10)));
    }

    #[test]
    fn what_is_left_when_another_node_dies_is_known_also_of_a_rank_that_has_moved() {
        // The second rank's node has died; it is on the first one's now, and its copies are on a third.
        let chosen = node(&[0, 1], &[(0, 10), (0, 20)], &[(0, 10), (1, 10), (1, 20)]).choose();
        assert_eq!((chosen.choice[&GroupId(0)], chosen.safe[&GroupId(0)]), (Some(stamp(20)), stamp(10)));
    }

    #[test]
    fn a_node_without_ranks_takes_nothing_from_the_others() {
        let both = node(&[], &[], &[]).and(&node(&[0], &[(0, 10)], &[])).and(&Holdings::default());
        assert_eq!(both.choose().choice[&GroupId(0)], Some(stamp(10)));
        let third = node(&[1], &[], &[]);
        assert_eq!(
            both.and(&third).choose(),
            Restoration { choice: [(GroupId(0), None)].into(), ..Restoration::default() }
        );
    }

    /// Copies on their way: of each node's ranks any part has reached the partner, and no two nodes' are alike.
    #[test]
    fn however_many_nodes_there_are_and_however_copies_are_spread_it_is_a_few_versions() {
        let holdings = |nodes: u32| {
            let of_node = |node: u32| {
                let ranks = || node * 64..node * 64 + 64;
                let odd = |rank: &u32, version: u64| (rank.wrapping_mul(0x9e37_79b1) >> 16) as u64 % 7 > version;
                let pairs = |versions: std::ops::Range<u64>| {
                    let of = |version| ranks().filter(move |rank| odd(rank, version)).map(move |rank| (rank, version));
                    versions.flat_map(of).collect::<Vec<_>>()
                };
                super::tests::node(&ranks().collect::<Vec<_>>(), &pairs(0..4), &pairs(0..4))
            };
            (1..nodes).fold(of_node(0), |all, node| all.and(&of_node(node)))
        };
        let (few, many) = (holdings(4), holdings(400));
        assert!(many.size() <= few.size() && few.size() < 200, "{} and {} bytes", few.size(), many.size());
    }

    proptest! {
        /// Whatever lies wherever: it is what a look at all inventories at once finds.
        #[test]
        fn nodes_that_know_their_own_ranks_choose_what_all_inventories_say(
            held in proptest::collection::vec((0u32..4, 0u32..8, 0u64..5), 0..60),
            colours in proptest::collection::vec(0u32..2, 8),
        ) {
            let groups = Groups::coloured(colours.into_iter().map(GroupId).collect());
            let home = |rank: u32| rank / 2;
            let nodes = (0..4u32).map(|node| {
                let of = |here: bool| {
                    let mine = held.iter().filter(|(at, rank, _)| home(*rank) == node && (*at == node) == here);
                    copies(&mine.map(|(_, rank, version)| (*rank, *version)).collect::<Vec<_>>())
                };
                Holdings::of_node([Rank(2 * node), Rank(2 * node + 1)], &groups, &of(true), &of(false))
            });
            let all = nodes.reduce(|all, node| all.and(&node)).unwrap();
            let inventories = |elsewhere: bool| {
                let of = held.iter().filter(move |(at, rank, _)| !elsewhere || home(*rank) != *at);
                Inventory::own(of.map(|(_, rank, version)| (Rank(*rank), stamp(*version))))
            };
            let chosen = all.choose();
            prop_assert_eq!(&chosen.choice, &choose([&inventories(false)], &groups, 8));
            let safe = choose([&inventories(true)], &groups, 8).into_iter().filter_map(|(group, stamp)| Some((group, stamp?)));
            prop_assert_eq!(chosen.safe, safe.collect());
        }
    }
}
