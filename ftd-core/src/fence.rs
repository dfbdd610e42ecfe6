//! The fence: until when a node may compute, when a silent one may be given up, and who writes that down.
//!
//! Each node sends heartbeats to its observers ([`ring`]), which acknowledge them. With the time-out T and the patience P of
//! the record:
//!
//! - `fence/lease.rs`: a node's right to compute is a *lease*. It ends ¾ T after the earliest, over all its observers, of the
//!   sending times of the newest heartbeat that each has acknowledged in this epoch. An acknowledgement says whether its sender
//!   stands still. From one that does it counts only when this node has read the record since it sent that heartbeat: the
//!   observers of a node may all have been left out with it.
//! - `fence/rhythm.rs`: when a heartbeat leaves, a period after the one before at the latest.
//! - `fence/watch.rs`: an observer may propose the node's death T after the last heartbeat that counted: later than that lease
//!   ends, since it got that heartbeat after it was sent. A heartbeat that says "I do not hear you" (a cut of one direction), or
//!   of an older epoch, does not count as heard and is not acknowledged. *Alone* is who has had no acknowledgement from anybody
//!   for ¾ T: a switch restarts, or it is this node's own link. It accuses nobody for P. Who has had none for ½ T gives everybody
//!   4 T when it is back: links return one by one.
//! - `fence/accusations.rs`: an accusation is made on a revision of the record and dies with it. It is handed to the lowest member
//!   that its author does not accuse, which writes what reaches it within a heartbeat period; so a rack is one epoch, of two
//!   islands one wins, and of two nodes between which alone a link is cut one is given up. Its author writes it itself when nothing has come of it. One that was handed over, or whose write is
//!   under way, may still be written: until the revision moves its author acknowledges none of the accused. It moves it, when
//!   they are heard again, by writing the record unchanged.
//!
//! A node that comes in accuses whom it has heard in the epoch; whom it has not heard it has not acknowledged either, so that one has no
//! lease, and P is time enough. What the agent does with all this, and when one without a lease kills its ranks, stands in
//! `agent/silence.rs`.
//!
//! Every quantity of this argument is a constant of its file, with the sentence of DESIGN §5 that it serves, and has a test that is
//! called after that sentence (`tests/fence_sentences.rs`). `reference/fence_model.py` beside the design is a model of these rules.
//! (CONTRIBUTING.md says where the design is.)

mod accusations;
mod lease;
mod rhythm;
mod watch;

pub use lease::{Beat, Lease};

use crate::breach::Breach;
use crate::ids::{EpochId, Micros, NodeId, Revision};
use crate::record::EpochRecord;
use crate::ring;
use accusations::Accusations;
use lease::Heartbeats;
use std::collections::{BTreeMap, BTreeSet};
use watch::{Link, Watches};

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

/// One node's part in the fence.
#[derive(Debug, Clone)]
pub struct Fence {
    me: NodeId,
    breach: Breach,
    epoch: EpochId,
    revision: Revision,
    /// This node is in the job.
    member: bool,
    heartbeats: Heartbeats,
    watches: Watches,
    accusations: Accusations,
    /// Answers that leave with the next heartbeat.
    held: BTreeMap<NodeId, Beat>,
    /// Those whose last heartbeat of this epoch counted, and was acknowledged by a node that runs.
    answered: BTreeSet<NodeId>,
}

impl Fence {
    /// Before the first record: nobody is observed. `incarnation`: of this agent of the node; another one has another.
    pub fn new(me: NodeId, incarnation: u64, breach: Breach) -> Self {
        Fence {
            me,
            breach,
            epoch: EpochId(0),
            revision: Revision(0),
            member: false,
            heartbeats: Heartbeats::new(incarnation, breach),
            watches: Watches::new(breach),
            accusations: Accusations::new(me, breach),
            held: BTreeMap::new(),
            answered: BTreeSet::new(),
        }
    }

    /// There was an agent of this node before this one, and it may have accused somebody.
    pub fn succeed(&mut self) {
        self.accusations.succeed();
    }

    /// This agent's first linearizable read that was answered has shown this revision.
    pub fn read_first(&mut self, revision: Revision) {
        self.accusations.read_first(revision);
    }

    /// A record was read, written or received.
    pub fn adopt(&mut self, record: &EpochRecord, revision: Revision, now: Micros) {
        if record.epoch < self.epoch || revision <= self.revision {
            return;
        }
        self.revision = revision;
        self.accusations.moved(revision);
        if record.epoch == self.epoch {
            return;
        }
        if self.epoch == EpochId(0) {
            self.heartbeats.come_to_know(now);
        }
        let follows = record.epoch == self.epoch.next();
        self.epoch = record.epoch;
        self.member = record.is_member(self.me);
        let (terms, width) = (record.terms, record.terms.observers as usize);
        let around = |nodes: Vec<NodeId>| if self.member { nodes } else { Vec::new() };
        let observers = around(ring::observers(&record.nodes, self.me, width));
        let watched = around(ring::observed(&record.nodes, self.me, width));
        self.heartbeats.begin(terms, observers, now);
        self.watches.begin(terms, record.nodes.len(), watched, (record.joined.contains(&self.me), follows), now);
        self.accusations.begin(terms, record.members());
        self.held.clear();
        self.answered.clear();
    }

    /// Those whom this node observes and who observe it: they are told of a new record.
    pub fn neighbours(&self) -> BTreeSet<NodeId> {
        self.heartbeats.observers().chain(self.watches.watched()).collect()
    }

    /// The observers of this node.
    pub fn observers(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.heartbeats.observers()
    }

    fn link(&self) -> Link {
        let observed = self.heartbeats.observers().next().is_some();
        Link { observed, acknowledged: self.heartbeats.last_acknowledged() }
    }

    /// Whether fewer than half of its observers have acknowledged this node for ¾ T.
    pub fn few_acknowledge(&self, timeout: Micros, now: Micros) -> bool {
        self.heartbeats.few_acknowledge(Micros(now.0.saturating_sub(watch::ALONE.of(timeout).0)))
    }

    /// To be called before anything else whenever the agent runs: one that did not run for a while does not blame others for
    /// it.
    pub fn ran(&mut self, now: Micros) {
        self.watches.ran(self.link(), now);
    }

    /// The heartbeats to send now: to whom, and whether this node does not hear that one.
    pub fn beat(&mut self, now: Micros) -> Option<(Beat, Vec<(NodeId, bool)>)> {
        self.heartbeats.beat(now)
    }

    /// Whether the answer to a heartbeat that comes now may leave with this node's next one to the same node, in one datagram, for which nobody is
    /// woken once more: where both beat in time, and nobody waits for anything else. Its sender's lease is renewed by as much later, and ends no
    /// later than it would: it counts from when the heartbeat was sent. To be asked before that is heard.
    pub fn answer_may_wait(&self, from: NodeId, now: Micros) -> bool {
        self.answered.contains(&from)
            && self.is_calm()
            && self.heartbeats.answers_with_next(from)
            && self.watches.is_in_time(from, now)
    }

    /// Keeps an answer until the next heartbeat to that node, which answers the newest of those that have come.
    pub fn hold(&mut self, to: NodeId, beat: Beat) {
        self.held.insert(to, beat);
    }

    /// The answer that leaves with a heartbeat to this node.
    pub fn held(&mut self, to: NodeId) -> Option<Beat> {
        self.held.remove(&to).filter(|_| !self.accusations.is_bound(to))
    }

    /// A heartbeat came. `unheard`: its sender does not hear this node.
    pub fn heartbeat(&mut self, from: NodeId, epoch: EpochId, unheard: bool, now: Micros) -> Reply {
        // A newer one came: either that is answered at once, or it is kept instead.
        self.held.remove(&from);
        let older = epoch < self.epoch && self.breach == Breach::OlderEpochCounts;
        if epoch > self.epoch {
            if !unheard {
                self.watches.knows_more(from, now);
            }
            return Reply::AskForRecord;
        }
        if epoch < self.epoch && !older {
            return Reply::Record;
        }
        if !self.watches.watches(from) {
            return Reply::Nothing;
        }
        if unheard && self.breach != Breach::UnheardCounts {
            return if self.breach == Breach::UnheardUnanswered { Reply::Nothing } else { Reply::Heard };
        }
        self.watches.hears(from, now);
        self.heartbeats.hears(from > self.me, now);
        let still = !self.lease().runs(now);
        let acknowledges = self.accusations.acknowledges(from);
        if acknowledges && !still {
            self.answered.insert(from);
        } else {
            self.answered.remove(&from);
        }
        if acknowledges { Reply::Acknowledge { still } } else { Reply::Heard }
    }

    /// An acknowledgement came.
    pub fn acknowledged(&mut self, from: NodeId, beat: Beat, epoch: EpochId, still: bool, now: Micros) {
        self.heartbeats.acknowledged(from, beat, epoch == self.epoch, still, now);
    }

    /// "I do hear you" came.
    pub fn heard(&mut self, from: NodeId, epoch: EpochId, now: Micros) {
        if epoch == self.epoch {
            self.heartbeats.heard(from, now);
        }
    }

    /// A neighbour says that it knows this epoch's record: an observer that has not acknowledged anything in it yet will do so
    /// now.
    pub fn knows(&mut self, from: NodeId, epoch: EpochId, now: Micros) {
        if epoch == self.epoch {
            self.heartbeats.knows(from, now);
        }
    }

    /// Whether the record is to be read now, for acknowledgements to count; once in a period, or at once where the first lease of an
    /// epoch waits for nothing else.
    pub fn wants_read(&mut self, now: Micros) -> bool {
        self.heartbeats.wants_read(now)
    }

    /// A linearizable read that was begun at `asked` has shown the record that this node knows.
    pub fn read(&mut self, asked: Micros) {
        self.heartbeats.read(asked);
    }

    /// This node's right to compute.
    pub fn lease(&self) -> Lease {
        match self.member {
            true => self.heartbeats.lease(),
            false if self.breach == Breach::LeftOutContinued => Lease::Endless,
            false => Lease::None,
        }
    }

    /// Every observer has acknowledged this node in this epoch: no older observer can accuse it any more.
    pub fn confirmed(&self) -> bool {
        self.epoch > EpochId(0) && self.heartbeats.confirmed()
    }

    /// The silent nodes that this one accuses.
    pub fn accused(&self, now: Micros) -> BTreeSet<NodeId> {
        let mut accused = self.watches.accused(self.link(), now);
        if self.breach == Breach::OthersAccused {
            accused.extend(self.heartbeats.unheard(now));
        }
        if self.breach == Breach::SilentApart {
            accused = accused.into_iter().take(1).collect();
        }
        accused
    }

    /// What this node accuses and has not handed over yet, and to whom it goes: to this node itself when it is the lowest
    /// member that it does not accuse.
    pub fn hand_over(&mut self, now: Micros) -> Option<(NodeId, BTreeSet<NodeId>)> {
        let accused = self.accused(now);
        self.accusations.hand_over(&accused, now)
    }

    /// Accusations were handed to this node by their author.
    pub fn collect(
        &mut self,
        author: NodeId,
        accused: &BTreeSet<NodeId>,
        epoch: EpochId,
        revision: Revision,
        now: Micros,
    ) {
        self.accusations.collect(author, accused, (epoch, revision) == (self.epoch, self.revision), now);
    }

    /// The accused that this node is to write now, once one accusation has waited for a period: as many as leave nobody whom anybody who stays
    /// accuses.
    pub fn to_write(&self, now: Micros) -> BTreeSet<NodeId> {
        self.accusations.to_write(now)
    }

    /// A write that leaves these nodes out is under way.
    pub fn writing(&mut self, out: impl IntoIterator<Item = NodeId>) {
        self.accusations.writing(out);
    }

    /// Nothing was written, and nobody else wrote.
    pub fn not_written(&mut self, now: Micros) {
        self.accusations.not_written(now);
    }

    /// Whether the record is to be written unchanged: who was accused is heard again, and accused by this node no more. `waits`: what
    /// it accuses besides waits for a node.
    pub fn takes_back(&self, waits: bool, now: Micros) -> bool {
        self.accusations.regrets(|| self.accused(now), waits)
    }

    /// Nobody has been accused, and every observer has acknowledged this node in this epoch: with heartbeats that come, and are answered,
    /// nothing of this changes for others to see but how long the lease runs.
    pub fn is_calm(&self) -> bool {
        self.accusations.are_none() && self.confirmed()
    }

    /// Whether something here changes when the revision moves: somebody is accused, or may have been by an agent before this one.
    pub fn awaits_revision(&self) -> bool {
        !self.accusations.are_none() || self.accusations.is_mute()
    }

    /// The moments at which something of this may change by itself.
    pub fn deadlines(&self) -> impl Iterator<Item = Micros> + '_ {
        let lease = match self.lease() {
            Lease::Until(end) => Some(end),
            Lease::None | Lease::Endless => None,
        };
        let beat = self.heartbeats.deadline().into_iter();
        beat.chain(lease).chain(self.watches.deadlines(self.link())).chain(self.accusations.deadlines())
    }
}
