//! The agent's side of the [fence](crate::fence): heartbeats, standing still without a lease, and handing on who is silent.
//! A node that is alone in its job has no observers, and none of this happens.

use super::{Agent, Effect, Stage};
use crate::failure::{Cause, Subject};
use crate::fence::Reply;
use crate::ids::NodeId;
use crate::message::PeerMessage;
use crate::report::{Notice, Report};

impl Agent {
    pub(super) fn guard_fence(&mut self) {
        let out = matches!(self.stage, Stage::Ending | Stage::Over);
        if self.record.is_none() || out {
            return;
        }
        self.fence.ran(self.now);
        self.guard_pause();
        if self.stage == Stage::Restarted {
            return;
        }
        let epoch = self.epoch();
        if let Some((beat, to)) = self.fence.beat(self.now) {
            for (to, unheard) in to {
                self.send(to, PeerMessage::Heartbeat { beat, epoch, unheard });
            }
        }
        if self.fence.wants_read(self.now) {
            self.store.want();
        }
        if let Some((to, accused)) = self.fence.hand_over(self.now) {
            self.send(to, PeerMessage::Accuse { epoch, revision: self.store.revision, accused });
        }
    }

    fn guard_pause(&mut self) {
        let runs = self.fence.lease().runs(self.now);
        let computing = self.stage == Stage::Computing && !self.stopping(self.world());
        match self.paused {
            None if !runs && computing => {
                self.paused = Some(self.now);
                self.emit(Effect::Pause);
                self.report(Report::Notice(Notice::Paused));
            }
            // Nobody is continued who is to be killed.
            Some(_) if !computing => self.paused = None,
            Some(_) if runs => {
                self.paused = None;
                self.emit(Effect::Continue);
                self.report(Report::Notice(Notice::Continued));
            }
            Some(since) if self.due(since, self.config.policy.fence_kill) && self.store.down.is_some() => {
                self.fenced = true;
                self.stop_worlds(None);
            }
            _ => {}
        }
        if self.fenced && self.store.down.is_none() && self.store.is_idle(self.now) {
            self.fenced = false;
            self.fail(Subject::Node(self.me), Cause::Fenced);
        }
    }

    pub(super) fn take_heartbeat(&mut self, from: NodeId, message: &PeerMessage) {
        let PeerMessage::Heartbeat { beat, epoch, unheard } = *message else { return };
        match self.fence.heartbeat(from, epoch, unheard, self.now) {
            Reply::Nothing => {}
            Reply::Acknowledge { still } => self.send(from, PeerMessage::Acknowledge { beat, epoch, still }),
            Reply::Heard => self.send(from, PeerMessage::Heard { epoch }),
            Reply::Record => self.send_record(from),
            Reply::AskForRecord => self.ask_for_record(from),
        }
    }

    /// Tells those who observe this node, and whom it observes, of a record that they may not have read yet.
    pub(super) fn pass_on_record(&mut self) {
        for to in self.fence.neighbours() {
            self.send_record(to);
        }
    }

    pub(super) fn send_record(&mut self, to: NodeId) {
        if let Some(record) = self.record.clone() {
            let revision = self.store.revision;
            self.send(to, PeerMessage::Record { revision, record });
        }
    }

    pub(super) fn ask_for_record(&mut self, from: NodeId) {
        self.store.want();
        self.send(from, PeerMessage::AskForRecord { epoch: self.epoch() });
    }

    pub(super) fn send(&mut self, to: NodeId, message: PeerMessage) {
        self.emit(Effect::Send { to, message });
    }
}
