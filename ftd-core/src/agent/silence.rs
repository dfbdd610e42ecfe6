//! The agent's side of the [fence](crate::fence): heartbeats, standing still without a lease, and handing on who is silent.
//! A node that is alone in its job has no observers, and none of this happens.

use super::{Agent, Effect, Stage};
use crate::breach::Breach;
use crate::failure::{Cause, Subject};
use crate::fence::{Lease, Reply};
use crate::ids::{EpochId, Micros, NodeId, Share};
use crate::message::PeerMessage;
use crate::report::{Notice, Report};

/// Of the minute ([`fence_kill`](crate::Policy::fence_kill)) after which "one that has had no lease and could not read the record
/// kills them too": so often it looks at the record, since it may have been left out.
const LOOKS: Share = Share::quarters(1);

/// Of the period, in parts: so long the record of an epoch that was heard of may be on its way. A heartbeat of the epoch is a datagram, and
/// overtakes it.
const RECORD_COMES: u64 = 10;

/// Until when this node's ranks may compute, and from when on they are killed, for those who see to it should this agent not:
/// its shepherds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leased {
    /// Nothing runs from this moment on.
    pub until: Micros,
    /// What is stopped is killed from this moment on.
    pub kill: Micros,
}

impl Leased {
    /// Nothing runs.
    pub const NONE: Leased = Leased { until: Micros(0), kill: Micros(u64::MAX) };
    /// Nobody sees to it: the node is alone in its job, or the job is over.
    pub const ENDLESS: Leased = Leased { until: Micros(u64::MAX), kill: Micros(u64::MAX) };
}

impl Agent {
    /// What the node's shepherds have to know of its lease. It changes with each step.
    pub fn lease(&self) -> Leased {
        let over = self.record.as_ref().is_some_and(|record| record.outcome.is_some());
        let until = match self.fence.lease() {
            _ if over => return Leased::ENDLESS,
            Lease::Endless => return Leased::ENDLESS,
            Lease::Until(end) => end,
            Lease::None => Micros(0),
        };
        let since = self.standstill.unleased.unwrap_or(until).max(self.store.read_at);
        Leased { until, kill: since.after(self.config.policy.fence_kill) }
    }

    /// Whether all its observers have answered it in this epoch of late: none of them knew of a newer one, and who comes to know of one
    /// tells it. That the revision moves nobody tells; it does not wait for that.
    pub fn hears(&self) -> bool {
        matches!(self.fence.lease(), Lease::Until(end) if self.now < end) && !self.fence.awaits_revision()
    }

    pub(super) fn guard_fence(&mut self) {
        let out = matches!(self.run.stage, Stage::Ending | Stage::Over);
        if self.record.is_none() || out {
            return;
        }
        self.fence.ran(self.now);
        self.guard_pause();
        self.guard_blind();
        let epoch = self.epoch();
        if let Some((beat, to)) = self.fence.beat(self.now) {
            for (to, unheard) in to {
                self.send(to, PeerMessage::Heartbeat { beat, epoch, unheard });
                if let Some(beat) = self.fence.held(to) {
                    let still = !self.fence.lease().runs(self.now);
                    self.send(to, PeerMessage::Acknowledge { beat, epoch, still });
                }
            }
        }
        if self.fence.wants_read(self.now) {
            self.store.want();
        }
        // What its predecessor had heard is not known.
        if self.run.stage == Stage::Restarted {
            return;
        }
        if let Some((to, accused)) = self.fence.hand_over(self.now) {
            self.send(to, PeerMessage::Accuse { epoch, revision: self.store.revision, accused });
        }
    }

    fn guard_pause(&mut self) {
        let unread = self.standstill.unleased.is_some_and(|since| self.store.read_at <= since);
        let waits = self.config.breach == Breach::ContinuedByStore && unread;
        let runs = self.fence.lease().runs(self.now) && !waits;
        // Where all have ended well there is nobody to stop.
        let finished = self.tree.decree().finished;
        let computing = self.run.stage == Stage::Computing && !self.worlds.all_stopping() && !finished;
        if !self.standstill.paused && !runs && computing {
            self.standstill.paused = true;
            if self.config.breach != Breach::AgentPauses {
                self.emit(Effect::Pause);
            }
            self.report(Report::Notice(Notice::Paused));
        } else if self.standstill.paused && !computing {
            // Nobody is continued who is to be killed.
            self.standstill.paused = false;
        } else if self.standstill.paused && runs {
            self.standstill.paused = false;
            self.emit(Effect::Continue);
            self.report(Report::Notice(Notice::Continued));
        }
        self.standstill.lease(runs, self.now);
    }

    fn blind_since(&self) -> Option<Micros> {
        self.standstill.blind_since(self.store.read_at)
    }

    /// Whether this node has neither had a lease nor read the record for as long as its ranks may stand still.
    pub(super) fn is_blind(&self) -> bool {
        self.blind_since().is_some_and(|since| self.due(since, self.config.policy.fence_kill))
    }

    /// A node that has no lease looks at the record now and then: it may have been left out. One that cannot for long enough
    /// kills its ranks, and the world begins anew when it is heard again.
    fn guard_blind(&mut self) {
        let limit = self.config.policy.fence_kill;
        if let Some(since) = self.blind_since() {
            if self.due(since, LOOKS.of(limit)) && self.store.is_idle(self.now) {
                self.store.want();
            }
            let kills = self.config.breach != Breach::BlindStays && !self.worlds.all_stopping();
            if self.is_blind() && self.run.fenced.is_none() && kills {
                self.run.fenced = Some(self.now);
                self.stop_worlds(None);
            }
        }
        if self.run.fenced.take_if(|killed| self.store.read_at > *killed).is_some() {
            self.fail(Subject::Node(self.me), Cause::Fenced);
        }
    }

    /// When that is due.
    pub(super) fn blind_deadlines(&self) -> impl Iterator<Item = Micros> + use<> {
        let limit = self.config.policy.fence_kill;
        let since = self.blind_since().into_iter();
        since.flat_map(move |since| [since.after(LOOKS.of(limit)), since.after(limit)])
    }

    pub(super) fn take_heartbeat(&mut self, from: NodeId, message: &PeerMessage) {
        let PeerMessage::Heartbeat { beat, epoch, unheard } = *message else { return };
        let beats = !matches!(self.run.stage, Stage::Ending | Stage::Over);
        let may_wait = beats && self.fence.answer_may_wait(from, self.now);
        match self.fence.heartbeat(from, epoch, unheard, self.now) {
            Reply::Nothing => {}
            Reply::Acknowledge { still: false } if may_wait => self.fence.hold(from, beat),
            Reply::Acknowledge { still } => self.send(from, PeerMessage::Acknowledge { beat, epoch, still }),
            Reply::Heard => self.send(from, PeerMessage::Heard { epoch }),
            Reply::Record => self.send_record(from),
            Reply::AskForRecord => self.hear_of(epoch, from),
        }
    }

    /// Tells those who observe this node, and whom it observes, of a record that they may not have read yet.
    pub(super) fn pass_on_record(&mut self) {
        if self.config.breach == Breach::RecordKept {
            return;
        }
        for to in self.fence.neighbours() {
            self.give_record(to);
        }
    }

    /// Answers one that is behind.
    pub(super) fn send_record(&mut self, to: NodeId) {
        if self.config.breach != Breach::BehindUntold {
            self.give_record(to);
        }
    }

    fn give_record(&mut self, to: NodeId) {
        if let Some(record) = self.record.clone() {
            let revision = self.store.revision;
            self.send(to, PeerMessage::Record { revision, record });
        }
    }

    /// A node knows a newer epoch than this one. Its record comes as well, by the watch or from a neighbour; if it does not, it is asked for.
    pub(super) fn hear_of(&mut self, epoch: EpochId, from: NodeId) {
        self.store.hears_of(epoch, from, self.now);
    }

    /// Asks for a record that does not come: the node that knows it, and the store.
    pub(super) fn guard_rumour(&mut self) {
        if let Some(from) = self.store.asks(self.record_patience(), self.now) {
            self.store.want();
            self.send(from, PeerMessage::AskForRecord { epoch: self.epoch() });
        }
    }

    /// When that is due.
    pub(super) fn rumour_deadline(&self) -> Option<Micros> {
        self.store.asks_at(self.record_patience())
    }

    fn record_patience(&self) -> Micros {
        self.record.as_ref().map_or(Micros(0), |record| Micros(record.terms.period.0 / RECORD_COMES))
    }

    pub(super) fn send(&mut self, to: NodeId, message: PeerMessage) {
        self.emit(Effect::Send { to, message });
    }
}
