//! What is to be agreed, and cannot be, because the store is away: nothing of that waits without an end. A recovery, or a start, gives up after
//! a while, and so does an end of the job that the store does not take. An agent that ends so is to the others a node that is lost. They
//! may go on, if the store answers them; if it does not, they end likewise.

use super::end::Verdict;
use super::{Agent, Standing};
use crate::breach::Breach;
use crate::ids::Micros;
use crate::plan::signal_status;
use crate::record::Outcome;
use crate::report::{Notice, Report};

impl Agent {
    /// Gives up when the store has been needed, and away, for too long.
    pub(super) fn guard_storeless(&mut self) {
        let Some(down) = self.store.down.filter(|_| self.needs_store()) else {
            self.run.needs = None;
            return;
        };
        let since = *self.run.needs.get_or_insert(self.now);
        let timeout = self.config.policy.store_timeout;
        if self.due(since.max(down), timeout) {
            // Unless somebody else has gone on meanwhile, that is written when it answers again.
            let reason = format!("the job cannot continue, because the store has not answered for {timeout}");
            self.conclude(Outcome::failed(1, reason), false);
            if !self.worlds.all_stopping() {
                self.stop_worlds(None);
            }
        }
    }

    /// Whether something is to be agreed now: an end, a failure, that there was none.
    fn needs_store(&self) -> bool {
        // Who was told to end has a time of its own for it.
        if self.end.leaving.is_some() && self.end.verdict.is_none() {
            return false;
        }
        let waits = self.end.verdict.is_some() || self.batch.is_some() || self.run.fenced.is_some();
        let fails = waits || self.record.is_none() || self.fails() || self.takes_back();
        fails || self.store.is_unwritten()
    }

    /// When that is so.
    pub(super) fn storeless_deadline(&self) -> Option<Micros> {
        let (needs, down) = (self.run.needs?, self.store.down?);
        Some(needs.max(down).after(self.config.policy.store_timeout))
    }

    /// Ends without a record when the store has been away for too long.
    pub(super) fn guard_unrecorded(&mut self) {
        let Some(Verdict { outcome, .. }) = self.end.verdict.clone() else { return };
        self.end.waits.get_or_insert(self.now);
        let over = self.unrecorded_deadline().is_some_and(|at| self.now >= at);
        let Some(down) = self.store.down.filter(|_| over && self.config.breach != Breach::EndWaitsForEver) else {
            return;
        };
        // That all is done is said once, as one says all else that concerns all.
        let well = outcome == Outcome::clean();
        if !well || self.tells_people() {
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
