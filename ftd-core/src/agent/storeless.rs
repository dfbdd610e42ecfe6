//! What is to be agreed, and cannot be, because the store is away: nothing of that waits without an end. A recovery, or a start, gives up after
//! a while, and so does an end of the job that the store does not take. An agent that ends so is to the others a node that is lost. They
//! may go on, if the store answers them; if it does not, they end likewise.

use super::end::Verdict;
use super::{Agent, Standing};
use crate::breach::Breach;
use crate::ids::{EpochId, Micros, NodeId, Share};
use crate::message::PeerMessage;
use crate::plan::signal_status;
use crate::policy::Terms;
use crate::record::Outcome;
use crate::report::{Notice, Report};

/// For so many time-outs it counts that somebody has missed the store. Each node that passes word of it on adds a period of the heartbeats, and up to a time-out for
/// which the word lay there.
const MISSED_FOR: u64 = 20;
/// … and for no longer than this part of the time for which the store is waited for.
const MISSED_AT_MOST: Share = Share::quarters(1);
/// Of that time: so often who has only heard of it looks whether the store is away from here, too.
const LOOKS: Share = Share::quarters(1);

impl Agent {
    /// Gives up when the store has been needed, by this node or by another one, and away, for too long.
    pub(super) fn guard_storeless(&mut self) {
        self.break_silence();
        self.tell_missed();
        let Some(down) = self.store.down.filter(|_| self.needs_store()) else {
            self.run.needs = None;
            return;
        };
        let since = *self.run.needs.get_or_insert(self.now);
        if self.due(since.max(down), self.storeless_patience()) {
            let timeout = self.config.policy.store_timeout;
            // Unless somebody else has gone on meanwhile, that is written when it answers again.
            let reason = format!("the job cannot continue, because the store has not answered for {timeout}");
            self.conclude(Outcome::failed(1, reason), false);
            if !self.worlds.all_stopping() {
                self.stop_worlds(None);
            }
        }
    }

    /// So long that is waited for. Who needs the store knows why the job ends, and is to say so first.
    fn storeless_patience(&self) -> Micros {
        let timeout = self.config.policy.store_timeout;
        if self.needs_itself() { timeout } else { timeout.after(self.root_patience()) }
    }

    /// Whether something is to be agreed now, here or elsewhere.
    fn needs_store(&self) -> bool {
        self.needs_itself() || (self.hears_missed() && !self.leaves_without_verdict())
    }

    /// Who was told to end has a time of its own for it.
    fn leaves_without_verdict(&self) -> bool {
        self.end.leaving.is_some() && self.end.verdict.is_none()
    }

    /// Whether this node has something to agree: an end, a failure, that there was none; or has no lease until it has read the record.
    pub(super) fn needs_itself(&self) -> bool {
        if self.leaves_without_verdict() {
            return false;
        }
        let waits = self.end.verdict.is_some() || self.batch.is_some() || self.run.fenced.is_some();
        let fails = waits || self.record.is_none() || self.fails() || self.takes_back();
        fails || self.store.is_unwritten() || self.is_blind()
    }

    /// Somebody else has something to agree, and does not reach the store.
    pub(super) fn hears_missed(&self) -> bool {
        self.run.missed.ago(self.missed_life(), self.now).is_some()
    }

    fn job_terms(&self) -> Terms {
        self.record.as_ref().map_or(Terms::NONE, |record| record.terms)
    }

    fn missed_life(&self) -> Micros {
        Micros(self.job_terms().timeout.0.saturating_mul(MISSED_FOR))
            .min(MISSED_AT_MOST.of(self.config.policy.store_timeout))
    }

    /// A node says that this was so, and so long ago.
    pub(super) fn hear_missed(&mut self, from: NodeId, epoch: EpochId, ago: Micros) {
        if !self.knows_epoch(from, epoch) {
            return;
        }
        self.run.missed.hears(Micros(self.now.0.saturating_sub(ago.0)));
        // Who does not need it does not know whether it is away.
        let look = self.due(self.store.read_at, self.missed_looks()) && self.store.is_idle(self.now);
        if look && self.store.down.is_none() {
            self.store.want();
        }
    }

    /// So long who has only heard of it waits between two looks at the store.
    pub(super) fn missed_looks(&self) -> Micros {
        LOOKS.of(self.missed_life())
    }

    /// Who had only heard that the store is missed has said nothing of it, and does so when it needs the store itself.
    fn break_silence(&mut self) {
        if self.store.quiet && self.store.down.is_some() && self.end.verdict.is_none() && self.needs_itself() {
            self.store.quiet = false;
            self.report(Report::Notice(Notice::StoreUnavailable));
        }
    }

    /// Tells the neighbours, in the ring and in the tree, that this node misses the store, or that it has heard of who does. Who can read it passes nothing on,
    /// and does not end for others' sake.
    fn tell_missed(&mut self) {
        let Some(ago) = self.misses() else { return };
        let Terms { period, timeout, .. } = self.job_terms();
        if self.run.missed.told.is_some_and(|told| !self.due(told, timeout)) {
            return;
        }
        self.run.missed.told = Some(self.now);
        let mut neighbours = self.fence.neighbours();
        neighbours.extend(self.tree.neighbours());
        let (epoch, ago) = (self.epoch(), ago.after(period));
        for to in neighbours {
            self.send(to, PeerMessage::StoreMissed { epoch, ago });
        }
    }

    /// How long ago somebody missed the store, where this node does not reach it, either.
    fn misses(&self) -> Option<Micros> {
        self.record.as_ref().and(self.store.down)?;
        if self.needs_itself() { Some(Micros(0)) } else { self.run.missed.ago(self.missed_life(), self.now) }
    }

    /// When the neighbours are told again, and when what was heard is over.
    pub(super) fn missed_deadlines(&self) -> impl Iterator<Item = Micros> + use<> {
        let told = self.misses().and(self.run.missed.told).map(|told| told.after(self.job_terms().timeout));
        told.into_iter().chain(self.run.missed.expires(self.missed_life()))
    }

    /// When this node gives up.
    pub(super) fn storeless_deadline(&self) -> Option<Micros> {
        let (needs, down) = (self.run.needs?, self.store.down?);
        Some(needs.max(down).after(self.storeless_patience()))
    }

    /// Ends without a record when the store has been away for too long.
    pub(super) fn guard_unrecorded(&mut self) {
        let Some(Verdict { outcome, .. }) = self.end.verdict.clone() else { return };
        self.end.waits.get_or_insert(self.now);
        let over = self.unrecorded_deadline().is_some_and(|at| self.now >= at);
        let Some(down) = self.store.down.filter(|_| over && self.config.breach != Breach::EndWaitsForEver) else {
            return;
        };
        // That all is done is said once, as one says all else that concerns all; the rest by those who have said that the store is away.
        let well = outcome == Outcome::clean();
        if self.tells_people() || (!well && !self.store.quiet) {
            self.report(Report::Notice(Notice::EndUnrecorded { away: self.now.since(down), well }));
        }
        self.end.unrecorded = Some(outcome);
        self.enter_ending();
    }

    /// When that is so. What others have to learn from the record alone is worth the wait that a recovery is.
    pub(super) fn unrecorded_deadline(&self) -> Option<Micros> {
        let (verdict, waits, down) = (self.end.verdict.as_ref()?, self.end.waits?, self.store.down?);
        let known = verdict.cancelled || verdict.outcome == Outcome::clean();
        let policy = &self.config.policy;
        let since = if known { down } else { self.run.needs?.max(down).after(policy.store_timeout) };
        // Who has waited for the root first ends with it.
        let for_root = self.run.finished.map_or(Micros(0), |finished| waits.since(finished));
        let patience = Micros(policy.end_timeout.0 - for_root.min(self.root_patience()).0);
        Some(waits.max(since).after(patience))
    }

    /// How the job ends here, once nothing of it runs here any more.
    pub(super) fn end_here(&self) -> (Outcome, Standing) {
        if let Some(recorded) = self.record.as_ref().and_then(|record| record.outcome.clone()) {
            return (recorded, Standing::Agreed);
        }
        match self.end.unrecorded.clone() {
            Some(outcome) => (outcome, Standing::Unrecorded),
            None => {
                let reason = format!("{} was left out of the job in {}", self.me, self.epoch());
                (Outcome::failed(signal_status(9).0, reason), Standing::LeftOut)
            }
        }
    }
}
