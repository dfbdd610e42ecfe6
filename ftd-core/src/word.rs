//! What goes up and what comes down the [tree](crate::tree) of an epoch.
//!
//! Up goes what a subtree's nodes have in common, as facts that are never taken back: they are empty, their checkpoints are
//! these, their ranks have ended. Down comes what follows from everybody's: the world may be released, this version is
//! restored, nobody had died before that abort, the job is complete. Only the root draws those conclusions
//! ([`Decree::of`]), so no two nodes ever draw different ones.

use crate::due::{Asked, Granted};
use crate::failure::Cause;
use crate::ids::{GroupId, NodeId, Process, Rank, SlotId, Version};
use crate::inventory::{Choice, Committed, Groups, Inventory, Level, Stamp};
use crate::joined::Joined;
use crate::ranks::RankSet;
use crate::tree::Word;
use std::collections::{BTreeMap, BTreeSet};

/// Nodes that want to come in, with their slots.
pub type Joiners = BTreeMap<NodeId, BTreeSet<SlotId>>;

/// So many late causes of deaths are told of; a recovery's report names no more.
const MOST_CAUSES: usize = 16;

/// Everybody's frozen checkpoints, run-length.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Holdings {
    /// Per version those of whose data a whole copy exists, on the node where they are placed now, or elsewhere.
    copies: BTreeMap<(Stamp, Lies), RankSet>,
}

/// Where a copy lies, seen from the rank whose data it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lies {
    /// On the node on which the rank is placed in this epoch.
    Here,
    /// On another one, or where any node can fetch it.
    Elsewhere,
}

impl Holdings {
    /// What one node holds; `here` says whether a rank is placed on it.
    pub fn of(inventory: &Inventory, here: impl Fn(Rank) -> bool) -> Self {
        let mut owners: BTreeMap<(Stamp, Lies), Vec<Rank>> = BTreeMap::new();
        for holding in &inventory.holdings {
            let near = here(holding.owner) && holding.level != Level::Stable;
            let lies = if near { Lies::Here } else { Lies::Elsewhere };
            owners.entry((holding.stamp, lies)).or_default().push(holding.owner);
        }
        Holdings { copies: owners.into_iter().map(|(key, ranks)| (key, ranks.into_iter().collect())).collect() }
    }

    /// About how many bytes it takes on the wire.
    pub fn size(&self) -> u64 {
        self.copies.values().map(|ranks| 18 + 8 * ranks.runs().len() as u64).sum()
    }

    /// Adds another's.
    pub fn merge(&mut self, other: &Holdings) {
        for (key, ranks) in &other.copies {
            self.copies.entry(*key).or_default().extend(ranks);
        }
    }

    /// Of whose data a copy of this version lies so.
    pub fn held(&self, stamp: Stamp, lies: Lies) -> RankSet {
        self.copies.get(&(stamp, lies)).cloned().unwrap_or_default()
    }

    /// Leaves out copies that lie elsewhere and that nobody can send to where they are needed.
    fn without(mut self, not_fetched: &BTreeSet<(Rank, Stamp)>) -> Self {
        for (rank, stamp) in not_fetched {
            if let Some(held) = self.copies.get_mut(&(*stamp, Lies::Elsewhere)) {
                *held = held.without(&RankSet::from_iter([*rank]));
            }
        }
        self
    }

    /// What each group restores.
    pub fn choose(&self, groups: &Groups, world_size: u32) -> Restoration {
        let stamps: BTreeSet<Stamp> = self.copies.keys().map(|(stamp, _)| *stamp).collect();
        let newest = |suits: &dyn Fn(Stamp) -> bool| stamps.iter().rev().copied().find(|stamp| suits(*stamp));
        let mut restoration = Restoration::default();
        for (group, ranks) in groups.ranks(world_size) {
            let here = |stamp| self.held(stamp, Lies::Here);
            let elsewhere = |stamp| self.held(stamp, Lies::Elsewhere);
            let somewhere = |stamp| {
                let mut held = here(stamp);
                held.extend(&elsewhere(stamp));
                held.contains_all(&ranks)
            };
            let stamp = newest(&somewhere);
            if let Some(stamp) = stamp {
                restoration.away.extend(&ranks.without(&here(stamp)));
            }
            let safe = |stamp| here(stamp).contains_all(&ranks) && elsewhere(stamp).contains_all(&ranks);
            restoration.safe.extend(newest(&safe).map(|stamp| (group, stamp)));
            restoration.choice.insert(group, stamp);
        }
        restoration
    }
}

/// What an epoch restores.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Restoration {
    /// Per group the newest version of which every rank has a copy somewhere, committed in one and the same epoch.
    pub choice: Choice,
    /// The ranks whose copy must be brought to their node first.
    pub away: RankSet,
    /// Per group the newest version of which every rank has a copy on its own node and another one elsewhere: what is left
    /// when a node dies before the chosen one has partners.
    pub safe: BTreeMap<GroupId, Stamp>,
}

/// How a job that was told to end has been left by its ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Left {
    /// Somebody was killed by the signal.
    pub killed: bool,
    /// The first status other than 0 with which one ended by itself.
    pub status: i32,
}

impl Left {
    fn and(self, other: Left) -> Left {
        Left { killed: self.killed | other.killed, status: if self.status == 0 { other.status } else { self.status } }
    }
}

/// What a node, or a subtree, has to say in an epoch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeWord {
    /// No process of an older epoch is left, and every observer has acknowledged every node once in this epoch.
    pub ready: bool,
    /// The frozen checkpoints, once verified, until it is known what is restored.
    pub holdings: Option<Holdings>,
    /// It is known what is restored, and who is to have a copy from this node has been told so.
    pub offered: bool,
    /// It is known what is restored, and every copy is on the node of its rank.
    pub chosen: bool,
    /// The ranks are out of `MPI_Init`.
    pub initialized: bool,
    /// The ranks have their state back.
    pub restored: bool,
    /// Who has called `MPI_Init`.
    pub joined: Joined,
    /// All ranks ended cleanly.
    pub finished: bool,
    /// The job was told to end, and all ranks are gone.
    pub left: Option<Left>,
    /// What has been committed in this epoch.
    pub committed: Option<Committed>,
    /// What the ranks have asked of their next checkpoint.
    pub due: Asked,
    /// An end that is held waits for this survey.
    pub wanted: u64,
    /// This survey has been answered, and all before it.
    pub surveyed: u64,
    /// One that was dead or dying in a survey of this epoch, or when it was proposed that something else had failed.
    pub dead: Option<Process>,
    /// True causes of deaths that became known after they were agreed.
    pub causes: BTreeMap<Process, Cause>,
    /// Nodes that have asked to be taken in.
    pub joiners: Joiners,
}

impl Word for NodeWord {
    fn merged<'a>(own: &Self, children: impl Iterator<Item = Option<&'a Self>>) -> Self {
        let mut word = own.clone();
        let mut below = Some(Vec::new());
        for child in children {
            below = below.zip(child.and_then(|child| child.holdings.as_ref())).map(|(mut below, holdings)| {
                below.push(holdings);
                below
            });
            match child {
                Some(child) => word.and(child),
                None => word.without_one(),
            }
        }
        // The longest part of a word is looked at once all are there.
        word.holdings = word.holdings.zip(below).map(|(mut all, below)| {
            below.into_iter().for_each(|holdings| all.merge(holdings));
            all
        });
        word
    }
}

impl NodeWord {
    fn and(&mut self, child: &NodeWord) {
        self.ready &= child.ready;
        self.offered &= child.offered;
        self.chosen &= child.chosen;
        self.initialized &= child.initialized;
        self.restored &= child.restored;
        self.joined.merge(&child.joined);
        self.finished &= child.finished;
        self.left = self.left.zip(child.left).map(|(own, theirs)| own.and(theirs));
        self.committed = match (self.committed.take(), &child.committed) {
            (Some(own), Some(theirs)) => Some(in_common(own, theirs)),
            _ => None,
        };
        self.due = self.due.and(child.due);
        self.wanted = self.wanted.max(child.wanted);
        self.surveyed = self.surveyed.min(child.surveyed);
        self.dead = self.dead.or(child.dead);
        for (process, cause) in &child.causes {
            if self.causes.len() < MOST_CAUSES {
                self.causes.entry(*process).or_insert(*cause);
            }
        }
        self.joiners.extend(child.joiners.iter().map(|(node, slots)| (*node, slots.clone())));
    }

    /// A subtree is missing: nothing can be said of all.
    fn without_one(&mut self) {
        let NodeWord { joined, due, wanted, dead, causes, joiners, .. } = std::mem::take(self);
        *self = NodeWord { joined, due, wanted, dead, causes, joiners, ..NodeWord::default() };
    }
}

/// A group that only one of the two has ranks of is as that one says.
fn in_common(mut own: Committed, theirs: &Committed) -> Committed {
    for (key, versions) in theirs {
        own.entry(*key)
            .and_modify(|held| held.retain(|version| versions.contains(version)))
            .or_insert_with(|| versions.clone());
    }
    own
}

/// What follows from everybody's word. Only gets more within an epoch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decree {
    /// The epoch's world may run.
    pub release: bool,
    /// What is restored.
    pub restoration: Option<Restoration>,
    /// Who has not been offered a copy by now will not be.
    pub offered: bool,
    /// Everybody knows what is restored, and has it: what is older is needed no more.
    pub chosen: bool,
    /// All ranks are out of `MPI_Init`.
    pub initialized: bool,
    /// All ranks have their state back.
    pub restored: bool,
    /// Who has called `MPI_Init`.
    pub joined: Joined,
    /// All ranks ended cleanly: the job is complete.
    pub finished: bool,
    /// The job was told to end, and all its ranks are gone.
    pub left: Option<Left>,
    /// The newest version that is complete, per group and level.
    pub complete: BTreeMap<(GroupId, Level), Version>,
    /// Whether the next checkpoints are due.
    pub due: Granted,
    /// This survey is to be made.
    pub survey: u64,
    /// This survey is over, and nobody's death came out in it unless [`dead`](Self::dead) says so.
    pub surveyed: u64,
    /// One whose death was found.
    pub dead: Option<Process>,
    /// True causes of deaths that became known after they were agreed.
    pub causes: BTreeMap<Process, Cause>,
    /// Nodes that have asked to be taken in.
    pub joiners: Joiners,
}

impl Decree {
    /// The root's conclusion from everybody's word and from what it has said before. `not_fetched`: copies on other nodes that
    /// do not count, says the record.
    pub fn of(
        word: &NodeWord,
        before: &Decree,
        groups: &Groups,
        world_size: u32,
        not_fetched: &BTreeSet<(Rank, Stamp)>,
    ) -> Decree {
        let mut complete = before.complete.clone();
        for (key, versions) in word.committed.iter().flatten() {
            if let Some(newest) = versions.last() {
                let known = complete.entry(*key).or_insert(*newest);
                *known = (*known).max(*newest);
            }
        }
        let restoration = before.restoration.clone();
        let choose = |held: &Holdings| held.clone().without(not_fetched).choose(groups, world_size);
        Decree {
            release: before.release | word.ready,
            restoration: restoration.or_else(|| word.holdings.as_ref().map(choose)),
            offered: before.offered | word.offered,
            chosen: before.chosen | word.chosen,
            initialized: before.initialized | word.initialized,
            restored: before.restored | word.restored,
            joined: word.joined.clone(),
            finished: before.finished | word.finished,
            left: before.left.or(word.left),
            complete,
            due: before.due.clone(),
            // A survey begins when the one before it is over.
            survey: if word.surveyed >= before.survey { before.survey.max(word.wanted) } else { before.survey },
            surveyed: before.surveyed.max(word.surveyed),
            dead: before.dead.or(word.dead),
            causes: word.causes.clone(),
            joiners: word.joiners.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::EpochId;
    use crate::inventory::Holding;

    fn stamp(version: u64, epoch: u64) -> Stamp {
        Stamp { version: Version(version), epoch: EpochId(epoch) }
    }

    fn holdings(copies: &[(u32, u64, Level)], here: &[u32]) -> Holdings {
        let holding = |(owner, version, level): &(u32, u64, Level)| Holding {
            owner: Rank(*owner),
            stamp: stamp(*version, 1),
            level: *level,
        };
        let inventory = Inventory { holdings: copies.iter().map(holding).collect() };
        Holdings::of(&inventory, |rank| here.contains(&rank.0))
    }

    #[test]
    fn what_a_partner_holds_is_restored_and_must_be_brought() {
        // Rank 1 was on a node that died; it is placed on the first node now, the second one was its partner.
        let mut all = holdings(&[(0, 10, Level::Own), (0, 20, Level::Own)], &[0, 1]);
        all.merge(&holdings(&[(2, 10, Level::Own), (2, 20, Level::Own), (1, 10, Level::Partner)], &[2]));
        let chosen = all.choose(&Groups::one(), 3);
        assert_eq!(chosen.choice, Choice::from([(GroupId(0), Some(stamp(10, 1)))]));
        assert_eq!(chosen.away.runs(), [(1, 2)]);
    }

    #[test]
    fn what_is_left_when_another_node_dies_is_known() {
        // Of version 20 only the first rank's copy has reached its partner.
        let mut all = holdings(&[(0, 10, Level::Own), (0, 20, Level::Own), (1, 10, Level::Partner)], &[0]);
        let second = [(1, 10, Level::Own), (1, 20, Level::Own), (0, 10, Level::Partner), (0, 20, Level::Partner)];
        all.merge(&holdings(&second, &[1]));
        let chosen = all.choose(&Groups::one(), 2);
        assert_eq!(chosen.choice[&GroupId(0)], Some(stamp(20, 1)));
        assert_eq!(chosen.safe[&GroupId(0)], stamp(10, 1));
    }

    #[test]
    fn what_could_not_be_fetched_is_not_chosen_again() {
        let mut all = holdings(&[(0, 10, Level::Own), (0, 20, Level::Own)], &[0, 1]);
        all.merge(&holdings(&[(1, 10, Level::Partner), (1, 20, Level::Partner)], &[2]));
        let word = NodeWord { holdings: Some(all), ..NodeWord::default() };
        let chosen = |gone: &[(Rank, Stamp)]| {
            let gone = gone.iter().copied().collect();
            let decree = Decree::of(&word, &Decree::default(), &Groups::one(), 2, &gone);
            decree.restoration.and_then(|restoration| restoration.choice[&GroupId(0)])
        };
        assert_eq!(chosen(&[]), Some(stamp(20, 1)));
        assert_eq!(chosen(&[(Rank(1), stamp(20, 1))]), Some(stamp(10, 1)));
        // What lies on the rank's own node needs nobody to send it.
        assert_eq!(chosen(&[(Rank(0), stamp(20, 1))]), Some(stamp(20, 1)));
        assert_eq!(chosen(&[(Rank(1), stamp(20, 1)), (Rank(1), stamp(10, 1))]), None);
    }

    #[test]
    fn nothing_is_said_of_all_while_one_is_missing() {
        let word = NodeWord {
            ready: true,
            finished: true,
            wanted: 3,
            surveyed: 2,
            committed: Some(Committed::new()),
            holdings: Some(Holdings::default()),
            left: Some(Left::default()),
            ..NodeWord::default()
        };
        let both = NodeWord::merged(&word, [Some(&word)].into_iter());
        assert_eq!(both, word);
        let missing = NodeWord::merged(&word, [Some(&word), None].into_iter());
        assert_eq!(missing, NodeWord { wanted: 3, ..NodeWord::default() });
    }

    #[test]
    fn a_version_is_complete_at_the_level_at_which_everybody_has_it() {
        let key = |level| (GroupId(0), level);
        let committed = |own: &[u64], partner: &[u64]| {
            let versions = |list: &[u64]| list.iter().copied().map(Version).collect::<BTreeSet<_>>();
            let committed =
                Committed::from([(key(Level::Own), versions(own)), (key(Level::Partner), versions(partner))]);
            NodeWord { committed: Some(committed), ..NodeWord::default() }
        };
        // The third node has no ranks of the group.
        let none = NodeWord { committed: Some(Committed::new()), ..NodeWord::default() };
        let words = [committed(&[10, 20], &[10, 20]), none];
        let word = NodeWord::merged(&committed(&[10, 20, 30], &[10]), words.iter().map(Some));
        let decree = Decree::of(&word, &Decree::default(), &Groups::one(), 2, &BTreeSet::new());
        assert_eq!(decree.complete, [(key(Level::Own), Version(20)), (key(Level::Partner), Version(10))].into());
    }

    #[test]
    fn an_end_that_is_held_during_a_survey_waits_for_the_next_one() {
        let groups = Groups::one();
        let word = |wanted, surveyed| NodeWord { wanted, surveyed, ..NodeWord::default() };
        let first = Decree::of(&word(1, 0), &Decree::default(), &groups, 1, &BTreeSet::new());
        assert_eq!((first.survey, first.surveyed), (1, 0));
        let during = Decree::of(&word(2, 0), &first, &groups, 1, &BTreeSet::new());
        assert_eq!((during.survey, during.surveyed), (1, 0));
        let second = Decree::of(&word(2, 1), &during, &groups, 1, &BTreeSet::new());
        assert_eq!((second.survey, second.surveyed), (2, 1));
    }
}
