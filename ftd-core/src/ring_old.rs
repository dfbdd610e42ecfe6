//! Who observes whom, when a node is silent, and when a node must stop itself.
//!
//! The members of a job stand in a ring, ordered by a hash. Each sends heartbeats to the next *k* members, its observers,
//! and they acknowledge them. With the time-out T:
//!
//! - An observer that has heard nothing from a node for T may propose its death.
//! - A node counts an observer's acknowledgement from the moment it *sent* the heartbeat. When that is ¾ T ago for any
//!   observer, the node is *stale*: it stops its ranks, and acknowledges nobody. So it stands still before the observer,
//!   which received that heartbeat no earlier than it was sent, may act.
//! - A stale node that can reach the store *vouches* for itself: it counts up its number in the record, by
//!   compare-and-swap, and goes on as if every observer had acknowledged a heartbeat sent when the write was asked for.
//!   An observer proposes a death on top of the record it has seen for T without that number growing, so either its
//!   proposal fails or the vouching did. A look at the record alone would not do: the proposal could follow the look.
//! - While an observer's own proposal against a node is on its way to the store, it does not acknowledge that node.
//!
//! Members leave and never come back, so observers only move nearer. A node may believe in an older record than its
//! observer does, and then count on other observers. Hence: an observer acts on a node that it has *heard* since it
//! observes it, or whose nearest surviving successor it is: then the older observers are all out, and stood still
//! before they were; heartbeats of an older epoch are not acknowledged; and no world is released before every node of
//! the epoch was acknowledged by all its observers in it.
//!
//! A node that none of its observers acknowledges waits half a time-out longer before it accuses anybody: it is
//! likelier to be the one that is cut off.

use crate::ids::{EpochId, Micros, NodeId};
use crate::policy::Policy;
use crate::record::EpochRecord;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What an observer knows of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Watch {
    /// Heard, or the time-out started anew.
    since: Micros,
    /// The epoch in which the observer began to observe.
    from: EpochId,
    /// Heard a heartbeat that was sent in that epoch or later.
    heard: bool,
}

/// What a node knows of one of its observers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Observer {
    /// When the newest acknowledged heartbeat was sent, or when the observer became one.
    acknowledged: Micros,
    /// Whether it ever acknowledged one.
    confirmed: bool,
}

/// One node's place in the ring.
#[derive(Debug, Clone)]
pub struct Ring {
    me: NodeId,
    period: Micros,
    timeout: Micros,
    width: usize,
    epoch: EpochId,
    members: Vec<NodeId>,
    watched: BTreeMap<NodeId, Watch>,
    observers: BTreeMap<NodeId, Observer>,
    vouched: BTreeMap<NodeId, u64>,
    sequence: u64,
    sent: VecDeque<(u64, Micros)>,
    next_beat: Micros,
}

/// A fixed mixing function (the finaliser of splitmix64), so that every node orders the ring alike.
fn hash(node: NodeId) -> u64 {
    let mut x = u64::from(node.0).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The members in ring order.
pub fn order(members: impl IntoIterator<Item = NodeId>) -> Vec<NodeId> {
    let mut order: Vec<NodeId> = members.into_iter().collect();
    order.sort_by_key(|node| (hash(*node), *node));
    order
}

/// The observers of the node at `at` in a ring of `members`, nearest first.
fn successors(members: &[NodeId], at: usize, width: usize) -> impl Iterator<Item = NodeId> + '_ {
    (1..members.len().min(width + 1)).map(move |step| members[(at + step) % members.len()])
}

impl Ring {
    /// Before the first record: nobody is observed.
    pub fn new(me: NodeId, policy: &Policy) -> Self {
        Ring {
            me,
            period: policy.heartbeat_period,
            timeout: policy.heartbeat_timeout,
            width: policy.observers.max(1),
            epoch: EpochId(0),
            members: Vec::new(),
            watched: BTreeMap::new(),
            observers: BTreeMap::new(),
            vouched: BTreeMap::new(),
            sequence: 0,
            sent: VecDeque::new(),
            next_beat: Micros(0),
        }
    }

    /// A record was read or written. A node that vouched for itself since is given a whole time-out again.
    pub fn adopt(&mut self, record: &EpochRecord, now: Micros) {
        if record.epoch > self.epoch {
            self.epoch = record.epoch;
            self.members = order(record.members());
            let (members, width) = (&self.members, self.width);
            let observes = |observer: NodeId, node: NodeId| {
                members
                    .iter()
                    .position(|member| *member == node)
                    .is_some_and(|at| successors(members, at, width).any(|next| next == observer))
            };
            self.watched.retain(|node, _| observes(self.me, *node));
            self.observers.retain(|node, _| observes(*node, self.me));
            for node in members.iter().filter(|node| **node != self.me) {
                if observes(self.me, *node) {
                    let new = Watch { since: now, from: record.epoch, heard: false };
                    self.watched.entry(*node).or_insert(new);
                }
                if observes(*node, self.me) {
                    self.observers.entry(*node).or_insert(Observer { acknowledged: now, confirmed: false });
                }
            }
            // New observers are to hear at once.
            self.next_beat = now;
        }
        for (node, vouched) in &record.vouched {
            let before = self.vouched.insert(*node, *vouched);
            if let (true, Some(watch)) = (before != Some(*vouched), self.watched.get_mut(node)) {
                watch.since = now;
            }
        }
    }

    /// The heartbeat to send, and to whom, when one is due.
    pub fn beat(&mut self, now: Micros) -> Option<(u64, Vec<NodeId>)> {
        if self.observers.is_empty() || now < self.next_beat {
            return None;
        }
        self.next_beat = now.after(self.period);
        self.sequence += 1;
        self.sent.push_back((self.sequence, now));
        while self.sent.front().is_some_and(|(_, sent)| now.since(*sent) > self.timeout) {
            self.sent.pop_front();
        }
        Some((self.sequence, self.observers.keys().copied().collect()))
    }

    /// A heartbeat came; says whether to acknowledge it.
    pub fn heartbeat(&mut self, from: NodeId, epoch: EpochId, now: Micros) -> bool {
        let stale = self.stale(now);
        let Some(watch) = self.watched.get_mut(&from) else { return false };
        watch.since = now;
        watch.heard |= epoch >= watch.from;
        epoch >= self.epoch && !stale
    }

    /// An acknowledgement came.
    pub fn acknowledge(&mut self, from: NodeId, sequence: u64) {
        let sent = self.sent.iter().find(|(number, _)| *number == sequence).map(|(_, sent)| *sent);
        if let (Some(sent), Some(observer)) = (sent, self.observers.get_mut(&from)) {
            observer.acknowledged = observer.acknowledged.max(sent);
            observer.confirmed = true;
        }
    }

    /// The own vouching, asked for at `asked`, was written.
    pub fn vouched_for_me(&mut self, asked: Micros) {
        for observer in self.observers.values_mut() {
            observer.acknowledged = observer.acknowledged.max(asked);
            observer.confirmed = true;
        }
    }

    /// Some observer has not acknowledged this node for ¾ of the time-out: its ranks must stand still.
    pub fn stale(&self, now: Micros) -> bool {
        let limit = self.timeout.quarters(3);
        self.observers.values().any(|observer| now.since(observer.acknowledged) >= limit)
    }

    /// Every observer has acknowledged this node since it is one, and none is overdue.
    pub fn confirmed(&self, now: Micros) -> bool {
        self.observers.values().all(|observer| observer.confirmed) && !self.stale(now)
    }

    /// The nodes that this one may propose dead now.
    pub fn accused(&self, now: Micros) -> BTreeSet<NodeId> {
        let patience = self.patience(now);
        let silent = |watch: &Watch| now.since(watch.since) >= patience;
        self.watched
            .iter()
            .filter(|(node, watch)| silent(watch) && (watch.heard || self.nearest(**node)))
            .map(|(node, _)| *node)
            .collect()
    }

    fn patience(&self, now: Micros) -> Micros {
        let limit = self.timeout.quarters(3);
        let alone = self.observers.len() > 1
            && self.observers.values().all(|observer| now.since(observer.acknowledged) >= limit);
        if alone { self.timeout.after(self.timeout.quarters(2)) } else { self.timeout }
    }

    fn nearest(&self, node: NodeId) -> bool {
        let at = self.members.iter().position(|member| *member == node);
        at.and_then(|at| successors(&self.members, at, self.width).next()) == Some(self.me)
    }

    /// The moments at which something of this may change.
    pub fn deadlines(&self) -> impl Iterator<Item = Micros> + '_ {
        let beat = (!self.observers.is_empty()).then_some(self.next_beat);
        let (limit, timeout) = (self.timeout.quarters(3), self.timeout);
        let stale = self.observers.values().map(move |observer| observer.acknowledged.after(limit));
        let silent = self
            .watched
            .values()
            .flat_map(move |watch| [watch.since.after(timeout), watch.since.after(timeout).after(timeout.quarters(2))]);
        beat.into_iter().chain(stale).chain(silent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::Members;
    use crate::placement::Placement;

    fn record(epoch: u64, members: &[u32]) -> EpochRecord {
        let slots = (0..8).map(|slot| (crate::SlotId(slot), NodeId(slot))).collect();
        let nodes: Vec<NodeId> = (0..8).map(NodeId).collect();
        let first = crate::plan::first_record(crate::Mode::Reinit, 1, &nodes, &slots, Micros(0)).unwrap();
        let nodes = Members::of(members.iter().copied().map(NodeId));
        EpochRecord { epoch: EpochId(epoch), nodes, placement: Placement::default(), ..first }
    }

    #[test]
    fn a_node_stands_still_before_its_observer_may_act() {
        let policy = Policy::default();
        let mut node = Ring::new(NodeId(0), &policy);
        let mut observer = Ring::new(NodeId(1), &policy);
        for ring in [&mut node, &mut observer] {
            ring.adopt(&record(1, &[0, 1]), Micros(0));
        }
        let (sequence, to) = node.beat(Micros(1000)).unwrap();
        assert_eq!(to, [NodeId(1)]);
        assert!(observer.heartbeat(NodeId(0), EpochId(1), Micros(1500)));
        assert!(!node.confirmed(Micros(1500)));
        node.acknowledge(NodeId(1), sequence);
        assert!(node.confirmed(Micros(2000)));
        assert!(!node.stale(Micros(375_999)));
        assert!(node.stale(Micros(376_000)), "three quarters of 500 ms after the heartbeat was sent");
        assert!(observer.accused(Micros(501_499)).is_empty());
        assert_eq!(observer.accused(Micros(501_500)), BTreeSet::from([NodeId(0)]));
    }

    #[test]
    fn only_the_nearest_accuses_a_node_that_was_never_heard() {
        let policy = Policy { observers: 3, ..Policy::default() };
        let members: Vec<u32> = (0..8).collect();
        let silent = NodeId(3);
        let accusers = (0..8).map(NodeId).filter(|me| {
            let mut ring = Ring::new(*me, &policy);
            ring.adopt(&record(1, &members), Micros(0));
            ring.accused(Micros::from_secs(2)).contains(&silent)
        });
        assert_eq!(accusers.count(), 1);
    }

    #[test]
    fn vouching_gives_a_whole_timeout() {
        let mut ring = Ring::new(NodeId(0), &Policy::default());
        let first = record(1, &[0, 1]);
        ring.adopt(&first, Micros(0));
        ring.adopt(&crate::plan::vouch(&first, NodeId(1)), Micros(400_000));
        assert!(ring.accused(Micros(899_999)).is_empty());
        assert!(!ring.accused(Micros(900_000)).is_empty());
    }
}
