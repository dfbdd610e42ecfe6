//! The node's own fence: heartbeats, standing still when cut off, vouching for itself. Single-node jobs have no observers
//! and none of this happens.

use super::{Agent, Asked, Effect, Stage};
use crate::failure::{Cause, Subject};
use crate::message::PeerMessage;
use crate::plan;
use crate::report::{Notice, Report};

impl Agent {
    pub(super) fn guard_fence(&mut self) {
        let out = matches!(self.stage, Stage::Ending | Stage::Over);
        if self.record.is_none() || out {
            return;
        }
        self.guard_pause();
        if let Some((sequence, observers)) = self.ring.beat(self.now) {
            let epoch = self.epoch();
            for to in observers {
                self.emit(Effect::Send { to, message: PeerMessage::Heartbeat { sequence, epoch } });
            }
        }
    }

    fn guard_pause(&mut self) {
        let stale = self.ring.stale(self.now);
        let computing = self.stage == Stage::Computing && !self.stopping(self.world());
        match self.paused {
            None if stale && computing => {
                self.paused = Some(self.now);
                self.emit(Effect::Pause);
                self.report(Report::Notice(Notice::Paused));
            }
            Some(_) if !computing || !stale => self.go_on(),
            Some(since) if self.due(since, self.config.policy.fence_kill) => {
                self.fenced = true;
                self.stop_worlds(None);
            }
            _ => {}
        }
        if self.fenced && self.link.down.is_none() && self.link.asked == Asked::Nothing {
            self.fenced = false;
            self.fail(Subject::Node(self.me), Cause::Fenced);
        }
    }

    /// Lets the ranks go on, if they were stopped. Those that were killed meanwhile do not notice.
    pub(super) fn go_on(&mut self) {
        if self.paused.take().is_some() {
            self.emit(Effect::Continue);
            self.report(Report::Notice(Notice::Continued));
        }
    }

    /// A stale node that can reach the store vouches for itself. So does one whose accusation of another was not answered:
    /// with the key at a newer revision, that write can happen no more, and the other is acknowledged again.
    pub(super) fn vouch(&mut self) -> Option<crate::record::EpochRecord> {
        let record = self.record.as_ref()?;
        let waits = self.batch.is_some() || self.verdict.is_some();
        let unsure = self.link.uncertain.as_ref().is_some_and(|(_, nodes)| !nodes.is_empty());
        ((self.ring.stale(self.now) || unsure) && !waits).then(|| plan::vouch(record, self.me))
    }
}
