//! The fence: until when a node may compute, when a silent one may be given up, and who writes that down.
//!
//! Each node sends heartbeats to its observers ([`ring`]), which acknowledge them. With the time-out T and the patience P of
//! the record:
//!
//! - A node's right to compute is a *lease*. It ends ¾ T after the earliest, over all its observers, of the sending times
//!   of the newest heartbeat that each has acknowledged in this epoch. An observer may propose the node's death T after the
//!   last heartbeat that counted: later than that lease ends, since it got that heartbeat after it was sent.
//! - An acknowledgement says whether its sender stands still. From one that does it counts only when this node has read
//!   the record since it sent that heartbeat: the observers of a node may all have been left out with it.
//! - A heartbeat that says "I do not hear you" (a cut of one direction), or of an older epoch, does not count as heard and
//!   is not acknowledged.
//! - *Alone* is who has had no acknowledgement from anybody for ¾ T: a switch restarts, or it is this node's own link. It accuses
//!   nobody for P, and gives everybody a new time-out when it is back.
//! - An accusation is made on a revision of the record and dies with it. It is handed to the lowest member that its author
//!   does not accuse, which writes all that reach it within a heartbeat period; so a rack is one epoch, and of two islands
//!   one wins. Its author writes it itself when nothing has come of it.
//! - An accusation that was handed over, or whose write is under way, may still be written: until the revision moves its
//!   author acknowledges none of the accused. It moves it, when they are heard again, by writing the record unchanged.
//!
//! `reference/fence_model.py` beside the design is a model of these rules.

use crate::breach::Breach;
use crate::ids::{EpochId, Micros, NodeId, Revision};
use crate::record::EpochRecord;
use crate::ring;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

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

/// What is to be answered to a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// Nothing.
    Nothing,
    /// It counts. `still`: the ranks of this node stand still at this moment.
    Acknowledge {
        /// See there.
        still: bool,
    },
    /// "I do hear you", and no more.
    Heard,
    /// The sender does not know the newest record.
    Record,
    /// The sender knows a newer record than this node.
    AskForRecord,
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

/// What an observer knows of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Watch {
    /// When its time-out began.
    since: Micros,
    /// A heartbeat of this epoch has counted.
    heard: bool,
}

/// One node's part in the fence.
#[derive(Debug, Clone)]
pub struct Fence {
    me: NodeId,
    incarnation: u64,
    breach: Breach,
    period: Micros,
    timeout: Micros,
    patience: Micros,
    epoch: EpochId,
    revision: Revision,
    adopted: Micros,
    members: u32,
    /// The lowest members, one more than this node can ever accuse.
    lowest: Vec<NodeId>,
    /// This node is in the job.
    member: bool,
    /// It came into it with this epoch.
    joined: bool,
    observers: BTreeMap<NodeId, Observer>,
    watched: BTreeMap<NodeId, Watch>,
    /// When an acknowledgement came last, in whatever epoch, whether it counted or not.
    last_acknowledged: Micros,
    was_alone: bool,
    /// Accused at this revision by this node: not acknowledged before it moves.
    bound: BTreeSet<NodeId>,
    /// One of those was heard again.
    regretted: bool,
    /// What a predecessor of this agent may have accused is not known: nobody is acknowledged before the revision moves.
    mute: bool,
    /// When each of this node's accusations was handed over.
    handed: BTreeMap<NodeId, Micros>,
    /// To whom.
    collector: Option<NodeId>,
    /// Accusations that others handed to this node, and since when.
    collected: BTreeMap<NodeId, Micros>,
    /// Its own that it is to write itself, and since when.
    own: BTreeMap<NodeId, Micros>,
    sequence: u64,
    sent: VecDeque<(u64, Micros)>,
    next_beat: Micros,
    next_read: Micros,
    last_ran: Micros,
}

impl Fence {
    /// Before the first record: nobody is observed. `incarnation`: of this agent of the node; another one has another.
    pub fn new(me: NodeId, incarnation: u64, breach: Breach) -> Self {
        Fence {
            me,
            incarnation,
            breach,
            period: Micros(0),
            timeout: Micros(0),
            patience: Micros(0),
            epoch: EpochId(0),
            revision: Revision(0),
            adopted: Micros(0),
            members: 0,
            lowest: Vec::new(),
            member: false,
            joined: false,
            observers: BTreeMap::new(),
            watched: BTreeMap::new(),
            last_acknowledged: Micros(0),
            was_alone: false,
            bound: BTreeSet::new(),
            regretted: false,
            mute: false,
            handed: BTreeMap::new(),
            collector: None,
            collected: BTreeMap::new(),
            own: BTreeMap::new(),
            sequence: 0,
            sent: VecDeque::new(),
            next_beat: Micros(0),
            next_read: Micros(0),
            last_ran: Micros(0),
        }
    }

    /// There was an agent of this node before this one, and it may have accused somebody.
    pub fn succeed(&mut self) {
        self.mute = self.breach != Breach::SuccessorAcknowledges;
    }

    /// A record was read, written or received.
    pub fn adopt(&mut self, record: &EpochRecord, revision: Revision, now: Micros) {
        if record.epoch < self.epoch || revision <= self.revision {
            return;
        }
        // Nothing that was accused before can be written any more.
        self.mute &= self.revision == Revision(0);
        self.revision = revision;
        self.bound.clear();
        self.handed.clear();
        if self.breach != Breach::AccusationLives {
            self.collected.clear();
        }
        self.own.clear();
        self.regretted = false;
        if record.epoch == self.epoch {
            return;
        }
        if self.epoch == EpochId(0) {
            self.last_acknowledged = now;
        }
        let terms = record.terms;
        (self.period, self.timeout, self.patience) = (terms.period, terms.timeout, terms.patience);
        self.member = record.is_member(self.me);
        self.joined = record.joined.contains(&self.me);
        self.epoch = record.epoch;
        self.adopted = now;
        self.members = record.nodes.len();
        let width = terms.observers as usize;
        self.lowest = record.members().take(width + 1).collect();
        let observer = Observer { acknowledged: None, pending: None, heard: now };
        let at_once = self.breach == Breach::NewlyObservedAtOnce;
        let since = if at_once { Micros(now.since(self.timeout).0) } else { now };
        let watch = Watch { since, heard: false };
        let around = |nodes: Vec<NodeId>| if self.member { nodes } else { Vec::new() };
        let observers = around(ring::observers(&record.nodes, self.me, width));
        let watched = around(ring::observed(&record.nodes, self.me, width));
        self.observers = observers.into_iter().map(|node| (node, observer)).collect();
        self.watched = watched.into_iter().map(|node| (node, watch)).collect();
        // New observers are to hear at once.
        (self.next_beat, self.next_read) = (now, now);
    }

    /// Those whom this node observes and who observe it: they are told of a new record.
    pub fn neighbours(&self) -> BTreeSet<NodeId> {
        self.observers.keys().chain(self.watched.keys()).copied().collect()
    }

    /// The observers of this node.
    pub fn observers(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.observers.keys().copied()
    }

    /// To be called before anything else whenever the agent runs: one that did not run for a while does not blame others for
    /// it.
    pub fn ran(&mut self, now: Micros) {
        let slept = now.since(self.last_ran) > self.timeout.quarters(1);
        self.last_ran = now;
        if slept && self.breach != Breach::SleeperAccuses {
            self.give_anew(now);
        }
        if self.alone(now) {
            self.was_alone = true;
        } else if self.was_alone && now.since(self.last_acknowledged) < self.timeout.quarters(3) {
            self.was_alone = false;
            if self.members > 2 && self.breach != Breach::NothingAnew {
                self.give_anew(now.after(self.timeout.quarters(12)));
            }
        }
    }

    fn give_anew(&mut self, since: Micros) {
        self.watched.values_mut().for_each(|watch| watch.since = watch.since.max(since));
    }

    /// The heartbeats to send now: to whom, and whether this node does not hear that one.
    pub fn beat(&mut self, now: Micros) -> Option<(Beat, Vec<(NodeId, bool)>)> {
        if self.observers.is_empty() || now < self.next_beat {
            return None;
        }
        self.next_beat = now.after(self.period);
        self.sequence += 1;
        self.sent.push_back((self.sequence, now));
        while self.sent.front().is_some_and(|(_, sent)| now.since(*sent) > self.timeout.quarters(8)) {
            self.sent.pop_front();
        }
        let unheard = |observer: &Observer| now.since(observer.heard) >= self.timeout.quarters(3);
        let to = self.observers.iter().map(|(node, observer)| (*node, unheard(observer))).collect();
        Some((Beat { incarnation: self.incarnation, sequence: self.sequence }, to))
    }

    /// A heartbeat came. `unheard`: its sender does not hear this node.
    pub fn heartbeat(&mut self, from: NodeId, epoch: EpochId, unheard: bool, now: Micros) -> Reply {
        let older = epoch < self.epoch && self.breach == Breach::OlderEpochCounts;
        if epoch != self.epoch && !older {
            return if epoch < self.epoch { Reply::Record } else { Reply::AskForRecord };
        }
        let still = !self.lease().runs(now);
        let Some(watch) = self.watched.get_mut(&from) else { return Reply::Nothing };
        if unheard && self.breach != Breach::UnheardCounts {
            return Reply::Heard;
        }
        watch.since = watch.since.max(now);
        watch.heard = true;
        if self.bound.contains(&from) && self.breach != Breach::AccusedAcknowledged {
            self.regretted = true;
            return Reply::Heard;
        }
        if self.mute { Reply::Heard } else { Reply::Acknowledge { still } }
    }

    /// An acknowledgement came.
    pub fn acknowledged(&mut self, from: NodeId, beat: Beat, epoch: EpochId, still: bool, now: Micros) {
        let sent = self.sent.iter().find(|(number, _)| *number == beat.sequence).map(|(_, sent)| *sent);
        let older = self.breach == Breach::OlderEpochCounts;
        let mine = beat.incarnation == self.incarnation && (epoch == self.epoch || older);
        let (Some(sent), Some(observer), true) = (sent, self.observers.get_mut(&from), mine) else { return };
        observer.heard = now;
        // Whether it counts or not, the link is there.
        self.last_acknowledged = now;
        if still && self.breach != Breach::StillCounts {
            let (first, last) = observer.pending.unwrap_or((sent, sent));
            observer.pending = Some((first, last.max(sent)));
        } else {
            observer.acknowledged = observer.acknowledged.max(Some(sent));
        }
    }

    /// "I do hear you" came.
    pub fn heard(&mut self, from: NodeId, epoch: EpochId, now: Micros) {
        let limit = self.timeout.quarters(3);
        if let Some(observer) = self.observers.get_mut(&from).filter(|_| epoch == self.epoch) {
            if now.since(observer.heard) >= limit {
                // It waits for a heartbeat that counts.
                self.next_beat = now;
            }
            observer.heard = now;
        }
    }

    /// A neighbour says that it knows this epoch's record: an observer that has not acknowledged anything in it yet will do so
    /// now.
    pub fn knows(&mut self, from: NodeId, epoch: EpochId, now: Micros) {
        let waits = |observer: &&Observer| observer.acknowledged.is_none() && observer.pending.is_none();
        if epoch == self.epoch && self.observers.get(&from).filter(waits).is_some() {
            self.next_beat = now;
        }
    }

    /// Whether the record is to be read now, for acknowledgements to count; once in a period.
    pub fn wants_read(&mut self, now: Micros) -> bool {
        let newer = |observer: &Observer| observer.pending.is_some_and(|(_, last)| Some(last) > observer.acknowledged);
        let wants = self.observers.values().any(newer);
        let due = wants && now >= self.next_read;
        if due {
            self.next_read = now.after(self.period);
        }
        due
    }

    /// A linearizable read that was begun at `asked` has shown the record that this node knows.
    pub fn read(&mut self, asked: Micros) {
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

    /// This node's right to compute.
    pub fn lease(&self) -> Lease {
        if !self.member {
            return Lease::None;
        }
        let mut earliest: Option<Micros> = None;
        for observer in self.observers.values() {
            let Some(acknowledged) = observer.acknowledged else { return Lease::None };
            earliest = Some(earliest.map_or(acknowledged, |earliest| earliest.min(acknowledged)));
        }
        let quarters = if self.breach == Breach::LongLease { 6 } else { 3 };
        earliest.map_or(Lease::Endless, |sent| Lease::Until(sent.after(self.timeout.quarters(quarters))))
    }

    /// Every observer has acknowledged this node in this epoch: no older observer can accuse it any more.
    pub fn confirmed(&self) -> bool {
        self.epoch > EpochId(0) && self.observers.values().all(|observer| observer.acknowledged.is_some())
    }

    fn alone(&self, now: Micros) -> bool {
        let since = self.adopted.max(self.last_acknowledged);
        !self.observers.is_empty() && now.since(since) >= self.timeout.quarters(3)
    }

    /// Who came into the job with this epoch and has not heard a node in it waits for P: it may be its own link, but there may
    /// be no other observer who is older.
    fn time_out_of(&self, watch: &Watch) -> Micros {
        let hears = watch.heard || !self.joined || self.breach == Breach::JoinerAccuses;
        if hears { self.timeout } else { self.timeout.max(self.patience) }
    }

    /// The silent nodes that this one accuses.
    pub fn accused(&self, now: Micros) -> BTreeSet<NodeId> {
        let waits = self.members > 2 && self.alone(now) && now.since(self.last_acknowledged) < self.patience;
        if waits && self.breach != Breach::AloneAccuses {
            return BTreeSet::new();
        }
        self.watched
            .iter()
            .filter(|(_, watch)| now.since(watch.since) >= self.time_out_of(watch))
            .map(|(node, _)| *node)
            .collect()
    }

    /// What this node accuses and has not handed over yet, and to whom it goes: to this node itself when it is the lowest
    /// member that it does not accuse.
    pub fn hand_over(&mut self, now: Micros) -> Option<(NodeId, BTreeSet<NodeId>)> {
        let accused = self.accused(now);
        self.handed.retain(|node, _| accused.contains(node));
        self.own.retain(|node, _| accused.contains(node));
        let collector = self.lowest.iter().find(|node| !accused.contains(node)).copied().unwrap_or(self.me);
        // What was handed to one that is accused now has to be handed on.
        let another = self.collector.replace(collector) != Some(collector);
        let is_fresh = |node: &&NodeId| another || !self.handed.contains_key(node);
        let fresh: BTreeSet<NodeId> = accused.iter().filter(is_fresh).copied().collect();
        let overdue = self.period.quarters(8);
        for node in &accused {
            if self.handed.get(node).is_some_and(|since| now.since(*since) >= overdue) {
                // Nothing has come of it: it has waited long enough.
                self.own.entry(*node).or_insert(Micros(now.0.saturating_sub(self.period.0)));
            }
        }
        if fresh.is_empty() {
            return None;
        }
        self.bound.extend(&fresh);
        for node in &fresh {
            self.handed.entry(*node).or_insert(now);
        }
        if collector != self.me {
            return Some((collector, fresh));
        }
        for node in fresh {
            self.own.entry(node).or_insert(now);
        }
        None
    }

    /// Accusations were handed to this node.
    pub fn collect(&mut self, accused: &BTreeSet<NodeId>, epoch: EpochId, revision: Revision, now: Micros) {
        let lives = self.breach == Breach::AccusationLives;
        if (epoch, revision) != (self.epoch, self.revision) && !lives {
            return;
        }
        for node in accused.iter().filter(|node| **node != self.me) {
            self.collected.entry(*node).or_insert(now);
        }
    }

    /// The accusations that this node is to write now: all of them, once one has waited for a period.
    pub fn to_write(&self, now: Micros) -> BTreeSet<NodeId> {
        let all = || self.collected.iter().chain(&self.own);
        let due = all().any(|(_, since)| now.since(*since) >= self.period);
        if due { all().map(|(node, _)| *node).collect() } else { BTreeSet::new() }
    }

    /// A write that leaves these nodes out is under way.
    pub fn writing(&mut self, out: impl IntoIterator<Item = NodeId>) {
        self.bound.extend(out);
        self.collected.clear();
        self.own.clear();
    }

    /// Whether the record is to be written unchanged: who was accused is heard again, and accused by this node no more.
    pub fn takes_back(&self, now: Micros) -> bool {
        self.regretted && self.accused(now).is_empty() && self.breach != Breach::NeverTakenBack
    }

    /// The moments at which something of this may change by itself.
    pub fn deadlines(&self) -> impl Iterator<Item = Micros> + '_ {
        let beat = (!self.observers.is_empty()).then_some(self.next_beat);
        let lease = match self.lease() {
            Lease::Until(end) => Some(end),
            Lease::None | Lease::Endless => None,
        };
        let silent = self.watched.values().map(|watch| watch.since.after(self.time_out_of(watch)));
        let waits = [self.timeout.quarters(3), self.patience].map(|span| self.last_acknowledged.after(span));
        let alone = self.adopted.after(self.timeout.quarters(3));
        let handed = self.handed.values().map(|since| since.after(self.period.quarters(8)));
        let collected = self.collected.values().chain(self.own.values()).map(|since| since.after(self.period));
        beat.into_iter().chain(lease).chain(silent).chain(waits).chain([alone]).chain(handed).chain(collected)
    }
}
