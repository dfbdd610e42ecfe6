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
            Some(_) if !computing => self.paused = None,
            Some(_) if !stale => {
                self.paused = None;
                self.emit(Effect::Continue);
                self.report(Report::Notice(Notice::Continued));
            }
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

    /// A stale node that can reach the store vouches for itself.
    pub(super) fn vouch(&mut self) -> Option<crate::record::EpochRecord> {
        let record = self.record.as_ref()?;
        let waits = self.batch.is_some() || self.verdict.is_some();
        (self.ring.stale(self.now) && !waits).then(|| plan::vouch(record, self.me))
    }
}
