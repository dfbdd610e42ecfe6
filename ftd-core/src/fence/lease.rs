//! Until when a node may compute: its heartbeats, and what its observers have acknowledged of them.

use super::rhythm::Rhythm;
use crate::breach::Breach;
use crate::ids::{Micros, NodeId, Share};
use crate::policy::Terms;
use std::collections::{BTreeMap, VecDeque};

/// Of T. "A node's right to compute is a lease, which ends ¾ T after the earliest, over all its observers, of the sending times of
/// the newest heartbeat that each has acknowledged in this epoch." What is left to T is for its ranks to stop.
pub(super) const LEASE: Share = Share::quarters(3);

/// Of T. "A heartbeat that says 'I have not heard from you for ¾ T' (a one-way cut)": who hears nothing for so long has no lease
/// by this observer's acknowledgements either.
const UNHEARD: Share = Share::quarters(3);

/// Of the period. "From one that stands still it counts only if the node has read the record": it reads it so often, and at once
/// when the first lease of an epoch waits for nothing else.
const READS: Share = Share::times(1);

/// Of the period. An answer waits for the next heartbeat to the same node where T is so long at least: a lease that is renewed by a period later still
/// outlives a heartbeat that is lost.
const LONG: Share = Share::times(5);

/// Of T. An acknowledgement of an older heartbeat is not waited for: it would make no lease.
const REMEMBERED: Share = Share::times(2);

/// Names a heartbeat. Numbers begin anew with an agent, so its incarnation belongs to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Beat {
    /// The sender's incarnation.
    pub incarnation: u64,
    /// Counted from 1 within it.
    pub sequence: u64,
}

/// How long a node may compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lease {
    /// An observer has not acknowledged it in this epoch yet.
    None,
    /// Until this moment.
    Until(Micros),
    /// It has no observers.
    Endless,
}

impl Lease {
    /// Whether it runs at this moment.
    pub fn runs(self, now: Micros) -> bool {
        match self {
            Lease::None => false,
            Lease::Until(end) => now < end,
            Lease::Endless => true,
        }
    }
}

/// What a node knows of one of its observers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Observer {
    /// When the newest heartbeat that it acknowledged in this epoch was sent.
    acknowledged: Option<Micros>,
    /// The same of those that count once the record has been read: the first and the last of them.
    pending: Option<(Micros, Micros)>,
    /// When anything came from it.
    heard: Micros,
}

/// A node's heartbeats, and what its observers say to them.
#[derive(Debug, Clone)]
pub(super) struct Heartbeats {
    incarnation: u64,
    breach: Breach,
    terms: Terms,
    observers: BTreeMap<NodeId, Observer>,
    /// When an acknowledgement came last, in whatever epoch, whether it counted or not.
    last_acknowledged: Micros,
    sequence: u64,
    sent: VecDeque<(u64, Micros)>,
    rhythm: Rhythm,
    /// When the newest read of this epoch was wanted.
    wanted: Option<Micros>,
    /// When the newest one that has shown this epoch was asked for.
    read: Option<Micros>,
}

impl Heartbeats {
    pub(super) fn new(incarnation: u64, breach: Breach) -> Self {
        Heartbeats {
            incarnation,
            breach,
            terms: Terms::NONE,
            observers: BTreeMap::new(),
            last_acknowledged: Micros(0),
            sequence: 0,
            sent: VecDeque::new(),
            rhythm: Rhythm::default(),
            wanted: None,
            read: None,
        }
    }

    /// This agent has come to know of a job.
    pub(super) fn come_to_know(&mut self, now: Micros) {
        self.last_acknowledged = now;
    }

    /// An epoch begins in which these observe this node.
    pub(super) fn begin(&mut self, terms: Terms, observers: Vec<NodeId>, now: Micros) {
        let acknowledged = (self.breach == Breach::LeaseAtOnce).then_some(now);
        let observer = Observer { acknowledged, pending: None, heard: now };
        self.terms = terms;
        self.observers = observers.into_iter().map(|node| (node, observer)).collect();
        // New observers are to hear at once.
        self.rhythm.at_once(now);
        (self.wanted, self.read) = (None, None);
    }

    pub(super) fn observers(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.observers.keys().copied()
    }

    /// When an acknowledgement came last.
    pub(super) fn last_acknowledged(&self) -> Micros {
        self.last_acknowledged
    }

    pub(super) fn beat(&mut self, now: Micros) -> Option<(Beat, Vec<(NodeId, bool)>)> {
        if self.observers.is_empty() || now < self.rhythm.due() {
            return None;
        }
        self.rhythm.beats(self.terms.period, now);
        self.sequence += 1;
        self.sent.push_back((self.sequence, now));
        let remembered = REMEMBERED.of(self.terms.timeout);
        while self.sent.front().is_some_and(|(_, sent)| now.since(*sent) > remembered) {
            self.sent.pop_front();
        }
        let to = self.observers.iter().map(|(node, observer)| (*node, self.is_unheard(observer, now))).collect();
        Some((Beat { incarnation: self.incarnation, sequence: self.sequence }, to))
    }

    /// The observers that this node does not hear.
    pub(super) fn unheard(&self, now: Micros) -> impl Iterator<Item = NodeId> {
        self.observers.iter().filter(move |(_, observer)| self.is_unheard(observer, now)).map(|(node, _)| *node)
    }

    fn is_unheard(&self, observer: &Observer, now: Micros) -> bool {
        now.since(observer.heard) >= UNHEARD.of(self.terms.timeout)
    }

    /// Whether an answer to this node may leave with the next heartbeat: that is to it, too, comes soon, and nothing was lost of late. Who has
    /// not acknowledged the last one may not have got what left with it.
    pub(super) fn answers_with_next(&self, node: NodeId) -> bool {
        let long = LONG.of(self.terms.period) <= self.terms.timeout;
        let newest = self.sent.back().map(|(_, sent)| *sent);
        let acknowledged = self.observers.get(&node).and_then(|observer| observer.acknowledged);
        long && self.rhythm.is_punctual() && acknowledged.is_some() && acknowledged == newest
    }

    /// An acknowledgement came. `of_epoch`: it is of the epoch that is.
    pub(super) fn acknowledged(&mut self, from: NodeId, beat: Beat, of_epoch: bool, still: bool, now: Micros) {
        let sent = self.sent.iter().find(|(number, _)| *number == beat.sequence).map(|(_, sent)| *sent);
        let older = self.breach == Breach::OlderEpochCounts;
        let mine = beat.incarnation == self.incarnation && (of_epoch || older);
        let (Some(sent), Some(observer), true) = (sent, self.observers.get_mut(&from), mine) else { return };
        let sent = if self.breach == Breach::LeaseFromReceipt { now } else { sent };
        observer.heard = now;
        // Whether it counts or not, the link is there.
        self.last_acknowledged = now;
        // The record may have been read between that heartbeat and this answer.
        let read = self.read.is_some_and(|asked| sent <= asked) || self.breach == Breach::StillCounts;
        if still && !read {
            let (first, last) = observer.pending.unwrap_or((sent, sent));
            observer.pending = Some((first, last.max(sent)));
        } else {
            observer.acknowledged = observer.acknowledged.max(Some(sent));
        }
    }

    /// Another node's heartbeat came, and counts. `behind`: that node comes behind this one.
    pub(super) fn hears(&mut self, behind: bool, now: Micros) {
        self.rhythm.hears(behind, self.terms.period, now);
    }

    /// "I do hear you" came in this epoch.
    pub(super) fn heard(&mut self, from: NodeId, now: Micros) {
        let Some(observer) = self.observers.get(&from) else { return };
        if self.is_unheard(observer, now) {
            // It waits for a heartbeat that counts.
            self.rhythm.at_once(now);
        }
        self.observers.entry(from).and_modify(|observer| observer.heard = now);
    }

    /// A neighbour knows of this epoch.
    pub(super) fn knows(&mut self, from: NodeId, now: Micros) {
        let waits = |observer: &&Observer| observer.acknowledged.is_none() && observer.pending.is_none();
        if self.observers.get(&from).filter(waits).is_some() {
            self.rhythm.at_once(now);
        }
    }

    pub(super) fn wants_read(&mut self, now: Micros) -> bool {
        let newer = |observer: &Observer| observer.pending.is_some_and(|(_, last)| Some(last) > observer.acknowledged);
        let next = self.wanted.map(|wanted| wanted.after(READS.of(self.terms.period)));
        let due = next.is_none_or(|next| now >= next) || self.waits_for_read();
        let wants = due && self.observers.values().any(newer);
        if wants {
            self.wanted = Some(now);
        }
        wants
    }

    /// All observers have answered, and of some it counts only with a read later than the one that was wanted last.
    fn waits_for_read(&self) -> bool {
        let mut later = false;
        for observer in self.observers.values().filter(|observer| observer.acknowledged.is_none()) {
            let Some((first, _)) = observer.pending else { return false };
            later |= Some(first) > self.wanted;
        }
        later
    }

    pub(super) fn read(&mut self, asked: Micros) {
        self.read = self.read.max(Some(asked));
        for observer in self.observers.values_mut() {
            let Some((first, last)) = observer.pending.take() else { continue };
            let any = self.breach == Breach::OldReadCounts;
            let counts = [last, first].into_iter().find(|sent| *sent <= asked || any);
            observer.acknowledged = observer.acknowledged.max(counts);
            observer.pending = match counts {
                Some(sent) if sent == last => None,
                Some(_) => Some((last, last)),
                None => Some((first, last)),
            };
        }
    }

    pub(super) fn lease(&self) -> Lease {
        let one = self.breach == Breach::LeaseOfOne;
        let mut earliest: Option<Micros> = None;
        for observer in self.observers.values() {
            let Some(acknowledged) = observer.acknowledged else { return Lease::None };
            let of_both = |other: Micros| if one { other.max(acknowledged) } else { other.min(acknowledged) };
            earliest = Some(earliest.map_or(acknowledged, of_both));
        }
        let share = if self.breach == Breach::LongLease { Share::quarters(6) } else { LEASE };
        earliest.map_or(Lease::Endless, |sent| Lease::Until(sent.after(share.of(self.terms.timeout))))
    }

    /// Whether fewer than half of those that observe this node have acknowledged a heartbeat of so late: it may be on the smaller side of a cut.
    pub(super) fn few_acknowledge(&self, since: Micros) -> bool {
        let late = |observer: &&Observer| observer.acknowledged.is_some_and(|sent| sent >= since);
        // One alone tells nothing.
        self.observers.len() > 1 && 2 * self.observers.values().filter(late).count() < self.observers.len()
    }

    pub(super) fn confirmed(&self) -> bool {
        self.observers.values().all(|observer| observer.acknowledged.is_some())
    }

    pub(super) fn deadline(&self) -> Option<Micros> {
        (!self.observers.is_empty()).then_some(self.rhythm.due())
    }
}
