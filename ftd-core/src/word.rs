//! What goes up and what comes down the [tree](crate::tree) of an epoch.
//!
//! Up goes what a subtree's nodes have in common, as facts that are never taken back: they are empty, their checkpoints are
//! these, their ranks have ended. Down comes what follows from everybody's: the world may be released, this version is
//! restored, nobody had died before that abort, the job is complete. Only the root draws those conclusions
//! ([`Decree::of`]), so no two nodes ever draw different ones.

use crate::due::{Asked, Granted};
use crate::failure::Cause;
use crate::holdings::{Holdings, Restoration};
use crate::ids::{GroupId, NodeId, Process, SlotId, Version};
use crate::inventory::{Committed, Level};
use crate::joined::Joined;
use crate::tree::Word;
use std::collections::{BTreeMap, BTreeSet};

/// Nodes that want to come in, with their slots.
pub type Joiners = BTreeMap<NodeId, BTreeSet<SlotId>>;

/// So many late causes of deaths are told of; a recovery's report names no more.
const MOST_CAUSES: usize = 16;

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
    /// The frozen checkpoints are verified, and each node for whose ranks there are copies here knows of them.
    pub offered: bool,
    /// Some are still being verified, or others do not know of them yet: what was told of is not all.
    pub reading: bool,
    /// Of which versions the ranks have copies, once all have been told of, until it is known what is restored.
    pub holdings: Option<Holdings>,
    /// These were counted while somebody was reading.
    pub early: bool,
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
    /// A rank has answered this signal by its end.
    pub answered: Option<i32>,
    /// True causes of deaths that became known after they were agreed.
    pub causes: BTreeMap<Process, Cause>,
    /// Nodes that have asked to be taken in.
    pub joiners: Joiners,
}

impl Word for NodeWord {
    fn merged<'a>(own: &Self, children: impl Iterator<Item = Option<&'a Self>>) -> Self {
        let mut word = own.clone();
        for child in children {
            match child {
                Some(child) => word.and(child),
                None => word.without_one(),
            }
        }
        word
    }
}

impl NodeWord {
    fn and(&mut self, child: &NodeWord) {
        self.ready &= child.ready;
        self.offered &= child.offered;
        self.reading |= child.reading;
        self.early |= child.early;
        self.holdings = match (self.holdings.take(), &child.holdings) {
            (Some(own), Some(theirs)) => Some(own.and(theirs)),
            _ => None,
        };
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
        self.answered = self.answered.or(child.answered);
        for (process, cause) in &child.causes {
            if self.causes.len() < MOST_CAUSES {
                self.causes.entry(*process).or_insert(*cause);
            }
        }
        self.joiners.extend(child.joiners.iter().map(|(node, slots)| (*node, slots.clone())));
    }

    /// A subtree is missing: nothing can be said of all.
    fn without_one(&mut self) {
        let NodeWord { joined, due, wanted, dead, answered, causes, joiners, .. } = std::mem::take(self);
        *self = NodeWord { joined, due, wanted, dead, answered, causes, joiners, ..NodeWord::default() };
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
    /// Who has not been offered a copy by now will not be.
    pub offered: bool,
    /// But for what somebody is still verifying.
    pub reading: bool,
    /// What is restored.
    pub restoration: Option<Restoration>,
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
    /// A rank has answered this signal by its end: the job is told to end.
    pub answered: Option<i32>,
    /// True causes of deaths that became known after they were agreed.
    pub causes: BTreeMap<Process, Cause>,
    /// Nodes that have asked to be taken in.
    pub joiners: Joiners,
}

impl Decree {
    /// The root's conclusion from everybody's word and from what it has said before.
    pub fn of(word: &NodeWord, before: &Decree) -> Decree {
        let mut complete = before.complete.clone();
        for (key, versions) in word.committed.iter().flatten() {
            if let Some(newest) = versions.last() {
                let known = complete.entry(*key).or_insert(*newest);
                *known = (*known).max(*newest);
            }
        }
        // As long as somebody reads, nobody loses all his state: there may be some. What else is complete is newer, or nothing is.
        let of_all = |found: &Restoration| !word.early || found.choice.values().all(Option::is_some);
        let restoration = before.restoration.clone();
        Decree {
            release: before.release | word.ready,
            offered: before.offered | word.offered,
            reading: word.offered && word.reading,
            restoration: restoration.or_else(|| word.holdings.as_ref().map(Holdings::choose).filter(of_all)),
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
            answered: before.answered.or(word.answered),
            causes: word.causes.clone(),
            joiners: word.joiners.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_said_of_all_while_one_is_missing() {
        let word = NodeWord {
            ready: true,
            finished: true,
            wanted: 3,
            answered: Some(15),
            surveyed: 2,
            committed: Some(Committed::new()),
            holdings: Some(Holdings::default()),
            left: Some(Left::default()),
            ..NodeWord::default()
        };
        let both = NodeWord::merged(&word, [Some(&word)].into_iter());
        assert_eq!(both, word);
        let missing = NodeWord::merged(&word, [Some(&word), None].into_iter());
        assert_eq!(missing, NodeWord { wanted: 3, answered: Some(15), ..NodeWord::default() });
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
        let decree = Decree::of(&word, &Decree::default());
        assert_eq!(decree.complete, [(key(Level::Own), Version(20)), (key(Level::Partner), Version(10))].into());
    }

    #[test]
    fn an_end_that_is_held_during_a_survey_waits_for_the_next_one() {
        let word = |wanted, surveyed| NodeWord { wanted, surveyed, ..NodeWord::default() };
        let first = Decree::of(&word(1, 0), &Decree::default());
        assert_eq!((first.survey, first.surveyed), (1, 0));
        let during = Decree::of(&word(2, 0), &first);
        assert_eq!((during.survey, during.surveyed), (1, 0));
        let second = Decree::of(&word(2, 1), &during);
        assert_eq!((second.survey, second.surveyed), (2, 1));
    }
}
