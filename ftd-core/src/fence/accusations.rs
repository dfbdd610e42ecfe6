//! Who writes down that a silent node is given up, and what becomes of an accusation that nobody has written.

use crate::breach::Breach;
use crate::ids::{Micros, NodeId, Revision, Share};
use crate::policy::Terms;
use std::collections::{BTreeMap, BTreeSet};

/// Of the period. The lowest member that its author does not accuse "writes all that come within a heartbeat period, so that a
/// rack is one epoch and of two islands one wins".
const COLLECTED: Share = Share::times(1);

/// Of the period. "What is not in the record a period later its author writes": one for the collector, and one more.
const HANDED: Share = Share::times(2);

/// Of T. What was handed over and is not in the record is handed over again so often: it may have been lost, and that its author
/// writes it, too, is not enough. Where no slot is left, who writes waits for a node that comes in, and that tells the lowest
/// members; its author hears of it through the tree alone, and may stand below the dead.
const AGAIN: Share = Share::times(1);

/// Of T. Who collects an accusation keeps it for so long after it was handed over last, two of which may be lost: its author has died,
/// or hears the accused again, and nobody else can tell while nothing can be written.
const KEPT: Share = Share::times(3);

/// One more than the k that a node observes: "Accusations of silent nodes go to the lowest member that the accuser does not accuse",
/// and it does not accuse all of so many.
const fn collectors(observers: u32) -> usize {
    observers as usize + 1
}

/// When an accusation was handed to this node by its author first, and last.
#[derive(Debug, Clone, Copy)]
struct Collected {
    since: Micros,
    last: Micros,
}

impl Collected {
    fn counts(&self, kept: Micros, now: Micros) -> bool {
        now.since(self.last) < kept
    }
}

/// A node's accusations, and those that others have handed to it.
#[derive(Debug, Clone)]
pub(super) struct Accusations {
    me: NodeId,
    breach: Breach,
    terms: Terms,
    /// The lowest members, one more than this node can ever accuse.
    lowest: Vec<NodeId>,
    /// Accused at this revision by this node: not acknowledged before it moves.
    bound: BTreeSet<NodeId>,
    /// Those of them that were heard again.
    regretted: BTreeSet<NodeId>,
    /// The newest revision that is known.
    revision: Revision,
    /// There was an agent of this node before this one, and what that may have accused is not known.
    successor: bool,
    /// What this agent's first linearizable read has shown: no agent before it knew a later one.
    first_read: Option<Revision>,
    /// When each of this node's accusations was handed over.
    handed: BTreeMap<NodeId, Micros>,
    /// To whom, and when something was handed to that one last.
    collector: Option<NodeId>,
    told: Micros,
    /// Accusations that others handed to this node: of whom, and by whom.
    collected: BTreeMap<(NodeId, NodeId), Collected>,
    /// Its own that it is to write itself, and since when.
    own: BTreeMap<NodeId, Micros>,
}

impl Accusations {
    pub(super) fn new(me: NodeId, breach: Breach) -> Self {
        Accusations {
            me,
            breach,
            terms: Terms::NONE,
            lowest: Vec::new(),
            bound: BTreeSet::new(),
            regretted: BTreeSet::new(),
            revision: Revision(0),
            successor: false,
            first_read: None,
            handed: BTreeMap::new(),
            collector: None,
            told: Micros(0),
            collected: BTreeMap::new(),
            own: BTreeMap::new(),
        }
    }

    pub(super) fn succeed(&mut self) {
        self.successor = self.breach != Breach::SuccessorAcknowledges;
    }

    pub(super) fn read_first(&mut self, revision: Revision) {
        self.first_read.get_or_insert(revision);
    }

    /// "Its restarted successor (acknowledges) nobody until the revision moves": beyond the one on which its predecessor may have
    /// accused somebody. A watch or a neighbour may show an older one first, and that the next one follows says nothing then; a
    /// read that was begun after the predecessor's death shows none that is older than what that knew.
    pub(super) fn is_mute(&self) -> bool {
        let moves = |first| self.revision <= first && self.breach != Breach::SuccessorBelievesWatch;
        self.successor && self.first_read.is_none_or(moves)
    }

    /// The revision has moved: "an accusation names the revision on which it was made and dies with it".
    pub(super) fn moved(&mut self, revision: Revision) {
        self.revision = revision;
        self.bound.clear();
        self.handed.clear();
        if self.breach != Breach::AccusationLives {
            self.collected.clear();
        }
        self.own.clear();
        self.regretted.clear();
    }

    /// An epoch of these members begins.
    pub(super) fn begin(&mut self, terms: Terms, members: impl Iterator<Item = NodeId>) {
        self.terms = terms;
        self.lowest = members.take(collectors(terms.observers)).collect();
    }

    /// Whether this node may acknowledge that one in no case.
    pub(super) fn is_bound(&self, node: NodeId) -> bool {
        self.is_mute() || self.bound.contains(&node)
    }

    /// Whether a node that is heard may be acknowledged: "its author acknowledges none of the accused, and its restarted successor
    /// nobody, until the revision moves, and moves it, when it wants to take the accusation back".
    pub(super) fn acknowledges(&mut self, node: NodeId) -> bool {
        if self.bound.contains(&node) && self.breach != Breach::AccusedAcknowledged {
            self.regretted.insert(node);
            return false;
        }
        !self.is_mute()
    }

    /// The accused, when they are to be handed over, and to whom they go; nothing when this node is to write it.
    pub(super) fn hand_over(&mut self, accused: &BTreeSet<NodeId>, now: Micros) -> Option<(NodeId, BTreeSet<NodeId>)> {
        self.handed.retain(|node, _| accused.contains(node));
        self.own.retain(|node, _| accused.contains(node));
        let collector = self.lowest.iter().find(|node| !accused.contains(node)).copied();
        let collector = collector.filter(|_| self.breach != Breach::NothingCollected).unwrap_or(self.me);
        // What was handed to one that is accused now has to be handed on.
        let another = self.collector.replace(collector) != Some(collector);
        let again = now.since(self.told) >= AGAIN.of(self.terms.timeout) && self.breach != Breach::HandedOnce;
        let hands = another || again || accused.iter().any(|node| !self.handed.contains_key(node));
        self.take_over(accused, now);
        if accused.is_empty() || !hands {
            return None;
        }
        let forgets = if collector == self.me { Breach::WrittenForgotten } else { Breach::HandedForgotten };
        if self.breach != forgets {
            self.bound.extend(accused);
        }
        for node in accused {
            self.handed.entry(*node).or_insert(now);
        }
        self.told = now;
        if collector != self.me {
            return Some((collector, accused.clone()));
        }
        for node in accused {
            self.own.entry(*node).or_insert(now);
        }
        None
    }

    /// What nothing has come of is this node's to write, and has waited long enough.
    fn take_over(&mut self, accused: &BTreeSet<NodeId>, now: Micros) {
        let (overdue, waited) = (HANDED.of(self.terms.period), COLLECTED.of(self.terms.period));
        for node in accused {
            let handed = self.handed.get(node).filter(|_| self.breach != Breach::NeverWrittenItself);
            if handed.is_some_and(|since| now.since(*since) >= overdue) {
                self.own.entry(*node).or_insert(now.since(waited));
            }
        }
    }

    /// Their author hands these over. `current`: on the revision that is.
    pub(super) fn collect(&mut self, author: NodeId, accused: &BTreeSet<NodeId>, current: bool, now: Micros) {
        if current || self.breach == Breach::AccusationLives {
            let me = self.me;
            accused.iter().filter(|node| **node != me).for_each(|node| self.take(*node, author, now));
        }
    }

    fn take(&mut self, node: NodeId, author: NodeId, now: Micros) {
        let kept = KEPT.of(self.terms.timeout);
        let before = self.collected.get(&(node, author)).filter(|each| each.counts(kept, now));
        let since = before.map_or(now, |each| each.since);
        self.collected.insert((node, author), Collected { since, last: now });
    }

    pub(super) fn to_write(&self, now: Micros) -> BTreeSet<NodeId> {
        let kept = KEPT.of(self.terms.timeout);
        let collected = || self.collected.iter().filter(|(_, each)| each.counts(kept, now));
        let own = self.own.iter().map(|(node, since)| ((*node, self.me), *since));
        let all: Vec<_> = collected().map(|(pair, each)| (*pair, each.since)).chain(own).collect();
        let waited = COLLECTED.of(self.terms.period);
        if !all.iter().any(|(_, since)| now.since(*since) >= waited) {
            return BTreeSet::new();
        }
        let all = all.into_iter().map(|(pair, _)| pair);
        if self.breach == Breach::BothOfTwo { all.map(|(node, _)| node).collect() } else { enough(all) }
    }

    /// Nobody is accused, by this node or by others of which it knows, since the revision moved.
    pub(super) fn are_none(&self) -> bool {
        let of_others = self.collected.is_empty() && self.bound.is_empty() && self.regretted.is_empty();
        of_others && self.own.is_empty() && self.handed.is_empty()
    }

    pub(super) fn writing(&mut self, out: impl IntoIterator<Item = NodeId>) {
        if self.breach != Breach::WrittenForgotten {
            self.bound.extend(out);
        }
        self.collected.clear();
        self.own.clear();
    }

    /// The store took nothing, because a node newly used has no lease: who is accused is still to be written, without that node.
    pub(super) fn not_written(&mut self, now: Micros) {
        let silent: Vec<NodeId> = self.bound.difference(&self.regretted).copied().collect();
        silent.into_iter().for_each(|node| self.take(node, self.me, now));
    }

    /// Whether one that this node had accused is heard again, and is not accused any more. `waits`: what else it accuses is not going to
    /// be written soon. (If it is, that moves the revision.)
    pub(super) fn regrets(&self, accused: impl FnOnce() -> BTreeSet<NodeId>, waits: bool) -> bool {
        if self.regretted.is_empty() || self.breach == Breach::NeverTakenBack {
            return false;
        }
        let accused = accused();
        (waits || accused.is_empty()) && self.regretted.iter().any(|node| !accused.contains(node))
    }

    pub(super) fn deadlines(&self) -> impl Iterator<Item = Micros> + '_ {
        let (overdue, waited) = (HANDED.of(self.terms.period), COLLECTED.of(self.terms.period));
        let handed = self.handed.values().map(move |since| since.after(overdue));
        let again = (!self.handed.is_empty()).then(|| self.told.after(AGAIN.of(self.terms.timeout)));
        let since = self.collected.values().map(|each| &each.since).chain(self.own.values());
        let kept = self.collected.values().map(|each| each.last.after(KEPT.of(self.terms.timeout)));
        handed.chain(again).chain(since.map(move |since| since.after(waited))).chain(kept)
    }
}

/// Of whom and by whom: who is to be given up, so that nobody who stays accuses somebody who stays. Where two do not hear each other one
/// of them is enough, and who is accused by most goes first: of a node whose links are cut one after the other that node alone.
fn enough(accusations: impl Iterator<Item = (NodeId, NodeId)>) -> BTreeSet<NodeId> {
    let mut authors: BTreeMap<NodeId, BTreeSet<NodeId>> = BTreeMap::new();
    for (node, author) in accusations {
        authors.entry(node).or_default().insert(author);
    }
    let mut out = BTreeSet::new();
    loop {
        let stands = |node: &NodeId| authors[node].difference(&out).count();
        let worst = authors.keys().filter(|node| !out.contains(*node) && stands(node) > 0);
        let Some(worst) = worst.max_by_key(|node| (stands(node), **node)).copied() else { return out };
        out.insert(worst);
    }
}
