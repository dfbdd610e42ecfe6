//! When a node gives up a silent one that it observes: that is decided here, and nowhere else. (Whom it
//! observes, [`ring`](crate::ring) says.)
//!
//! T and P themselves stand in the record ([`Terms`]); `policy.rs` has what they are by default.

use super::lease::LEASE;
use crate::breach::Breach;
use crate::ids::{Micros, NodeId, Share};
use crate::policy::Terms;
use std::collections::{BTreeMap, BTreeSet};

/// Of T. "An observer that has heard nothing for T may propose the node's death."
const SILENT: Share = Share::times(1);

/// Of T. "An agent that finds that it has not run for ¼ T gives all whom it observes a new T."
const SLEPT: Share = Share::quarters(1);

/// Of T. "Alone is who has been acknowledged by no observer for ¾ T, counted from the adoption of the epoch at the earliest."
pub(super) const ALONE: Share = Share::quarters(3);

/// "It accuses nobody until P after its last acknowledgement in whatever epoch (30 s; 0 with two members, whose whole patience is
/// T)": of two, nobody else is there to say whose link it is, and the one goes on that reaches the store first.
const WITHOUT_PATIENCE: u32 = 2;

/// Of T. "After being alone it gives everyone it observes 4 T anew": links and ports return one by one.
const ANEW: Share = Share::times(4);

/// Of T. Who has been acknowledged by nobody for so long has been cut off, and gives the others those 4 T, alone or not: "a disturbance
/// under ½ T costs a stall and no node" when it is one node's, and what is longer and everybody's has to be known from that. (With ¾ T a
/// switch whose first ports return after 0.6 T has made nobody alone, and the nodes behind the last ones would be given up.)
const CUT_OFF: Share = Share::quarters(2);

/// Of the period. What came from a node within so long of what came before came in time.
const IN_TIME: Share = Share::quarters(6);

/// Of P. "Who joined in this epoch accuses only whom it has heard in it", for so long: it may be its own link that is not there
/// yet. But the others who observe that node may be dead or have joined as well, and nobody would ever give it up.
const OF_A_JOINER: Share = Share::times(1);

/// "So that an observer's T never ends before the lease": it heard that heartbeat after it was sent. And who is alone, and may be
/// patient, has no lease that runs meanwhile.
const _: () = assert!(LEASE.is_shorter_than(SILENT) && !ALONE.is_shorter_than(LEASE));

/// Whoever is alone has been cut off.
const _: () = assert!(!ALONE.is_shorter_than(CUT_OFF));

/// What an observer knows of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Watch {
    /// When its time-out began.
    since: Micros,
    /// A heartbeat of this epoch has counted.
    heard: bool,
}

/// What a node knows of its own link.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    /// Somebody observes this node.
    pub(super) observed: bool,
    /// When one of those acknowledged it last, in whatever epoch.
    pub(super) acknowledged: Micros,
}

/// The nodes that a node observes.
#[derive(Debug, Clone)]
pub(super) struct Watches {
    breach: Breach,
    terms: Terms,
    watched: BTreeMap<NodeId, Watch>,
    /// When the epoch was adopted.
    adopted: Micros,
    /// How many the job has.
    members: u32,
    /// This node came into the job with this epoch.
    joined: bool,
    /// When it came, or nothing if it was there from the first epoch that it knows.
    came: Micros,
    was_cut_off: bool,
    /// Who was cut off lets nobody's time-out begin before this, in whatever epoch: others may still be cut off.
    anew: Micros,
    last_ran: Micros,
}

impl Watches {
    pub(super) fn new(breach: Breach) -> Self {
        Watches {
            breach,
            terms: Terms::NONE,
            watched: BTreeMap::new(),
            adopted: Micros(0),
            members: 0,
            joined: false,
            came: Micros(0),
            was_cut_off: false,
            anew: Micros(0),
            last_ran: Micros(0),
        }
    }

    /// An epoch of so many members begins in which this node observes these. `joined`: it is new itself. `follows`: this node was in the one
    /// before it.
    pub(super) fn begin(
        &mut self,
        terms: Terms,
        members: u32,
        watched: Vec<NodeId>,
        (joined, follows): (bool, bool),
        now: Micros,
    ) {
        let had_joined = std::mem::replace(&mut self.joined, joined);
        (self.terms, self.members, self.adopted) = (terms, members, now);
        if joined {
            self.came = now;
        }
        // "For a newly observed node from the adoption of the epoch."
        let at_once = self.breach == Breach::NewlyObservedAtOnce;
        let new = if at_once { Micros(now.since(terms.timeout).0) } else { now.max(self.anew) };
        let since = |node| follows.then(|| self.running_on(node, had_joined)).flatten().unwrap_or(new);
        self.watched = watched.into_iter().map(|node| (node, Watch { since: since(node), heard: false })).collect();
    }

    /// "T runs from the last heartbeat that counted", also over an epoch: who observed the node before goes on. `had_joined`: this node came
    /// with the epoch that ends, in which it may never have heard that one. (Not over an epoch that this node has left out: in that one others may
    /// have observed the node and acknowledged it.)
    fn running_on(&self, node: NodeId, had_joined: bool) -> Option<Micros> {
        let watch = self.watched.get(&node).filter(|watch| watch.heard || !had_joined)?;
        (!matches!(self.breach, Breach::NewlyObservedAtOnce | Breach::NewTEachEpoch)).then_some(watch.since)
    }

    pub(super) fn watched(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.watched.keys().copied()
    }

    pub(super) fn watches(&self, node: NodeId) -> bool {
        self.watched.contains_key(&node)
    }

    /// It is there, in an epoch that this node does not know yet. T goes on where that one begins here, and it did not hear nothing.
    pub(super) fn knows_more(&mut self, node: NodeId, now: Micros) {
        self.watched.entry(node).and_modify(|watch| watch.since = watch.since.max(now));
    }

    /// A heartbeat of this epoch has counted, and another one that comes now is the next.
    pub(super) fn is_in_time(&self, node: NodeId, now: Micros) -> bool {
        let in_time = |since: Micros| since <= now && now.since(since) <= IN_TIME.of(self.terms.period);
        self.watched.get(&node).is_some_and(|watch| watch.heard && in_time(watch.since))
    }

    /// A heartbeat counts: "T runs from the last heartbeat that counted".
    pub(super) fn hears(&mut self, node: NodeId, now: Micros) {
        if let Some(watch) = self.watched.get_mut(&node) {
            watch.since = watch.since.max(now);
            watch.heard = true;
        }
    }

    pub(super) fn ran(&mut self, link: Link, now: Micros) {
        let slept = now.since(self.last_ran) > SLEPT.of(self.terms.timeout);
        self.last_ran = now;
        if slept && self.breach != Breach::SleeperAccuses {
            self.give_anew(now);
        }
        if self.is_cut_off(link, now) {
            self.was_cut_off = true;
        } else if self.was_cut_off {
            self.was_cut_off = false;
            if self.has_patience() && self.breach != Breach::NothingAnew {
                // One of them is theirs anyway.
                self.anew = now.after(ANEW.less(SILENT).of(self.terms.timeout));
                self.give_anew(self.anew);
            }
        }
    }

    fn give_anew(&mut self, since: Micros) {
        self.watched.values_mut().for_each(|watch| watch.since = watch.since.max(since));
    }

    /// An epoch that comes while nobody acknowledges this node does not end that: who was alone before and after it waits for the
    /// others as everybody does.
    fn is_cut_off(&self, link: Link, now: Micros) -> bool {
        let came = if self.breach == Breach::AloneBefore { Micros(0) } else { self.came };
        let share = if self.breach == Breach::AnewWhenAlone { ALONE } else { CUT_OFF };
        link.observed && now.since(link.acknowledged.max(came)) >= share.of(self.terms.timeout)
    }

    /// "Counted from the adoption of the epoch at the earliest": of that with which it came. In those that follow T runs on, and so must this.
    fn is_alone(&self, link: Link, now: Micros) -> bool {
        let adopted = if self.breach == Breach::AloneAnew { self.adopted } else { self.came };
        link.observed && now.since(link.acknowledged.max(adopted)) >= ALONE.of(self.terms.timeout)
    }

    fn has_patience(&self) -> bool {
        self.members > WITHOUT_PATIENCE || self.breach == Breach::TwoWait
    }

    fn time_out_of(&self, watch: &Watch) -> Micros {
        let hears = watch.heard || !self.joined || self.breach == Breach::JoinerAccuses;
        if !hears && self.breach == Breach::JoinerNever {
            return Micros(u64::MAX);
        }
        let silent = if self.breach == Breach::SilentSooner { Share::quarters(2) } else { SILENT };
        let silent = silent.of(self.terms.timeout);
        if hears { silent } else { silent.max(OF_A_JOINER.of(self.terms.patience)) }
    }

    /// The silent nodes that are given up.
    pub(super) fn accused(&self, link: Link, now: Micros) -> BTreeSet<NodeId> {
        let anew = if self.breach == Breach::PatienceAnew { self.adopted } else { Micros(0) };
        let patient = self.has_patience() && now.since(link.acknowledged.max(anew)) < self.terms.patience;
        if patient && self.is_alone(link, now) && self.breach != Breach::AloneAccuses {
            return BTreeSet::new();
        }
        self.watched
            .iter()
            .filter(|(_, watch)| now.since(watch.since) >= self.time_out_of(watch))
            .map(|(node, _)| *node)
            .collect()
    }

    pub(super) fn deadlines(&self, link: Link) -> impl Iterator<Item = Micros> + '_ {
        let silent = self.watched.values().map(|watch| watch.since.after(self.time_out_of(watch)));
        let alone = ALONE.of(self.terms.timeout);
        let waits = [alone, self.terms.patience].map(|span| link.acknowledged.after(span));
        silent.chain(waits).chain([self.came.after(alone)])
    }
}
