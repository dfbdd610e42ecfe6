//! How the job is to end, as far as this node may say.

use super::end::Verdict;
use super::{Agent, Stage};
use crate::ids::{EpochId, Micros, Share};
use crate::plan::{self, Unrecoverable};
use crate::record::{EpochRecord, Outcome};

/// Of the time for which an end waits for the store.
const ROOT_SAYS: Share = Share::quarters(1);

impl Agent {
    /// The job is to end with this. `cancelled`: whatever others have agreed meanwhile.
    pub(super) fn conclude(&mut self, outcome: Outcome, cancelled: bool) {
        self.changed = true;
        let over = matches!(self.run.stage, Stage::Ending | Stage::Over);
        if over || self.end.verdict.as_ref().is_some_and(|verdict| verdict.cancelled || !cancelled) {
            return;
        }
        self.report_last_recovery(outcome.status == 0);
        (self.end.verdict, self.end.waits) = (Some(Verdict { outcome, cancelled }), None);
        self.drop_batch();
        if cancelled {
            self.end.last_words = None;
            self.stop_worlds(None);
        }
    }

    /// The record of a job that ends before its first one.
    pub(super) fn only_record(&self, outcome: Outcome) -> EpochRecord {
        let policy = &self.config.policy;
        let last = self.predecessor.as_ref().map_or(EpochId(0), |predecessor| predecessor.reported);
        let nodes = self.config.nodes.clone();
        let record = plan::only_record(self.config.mode, policy.terms(), self.config.world_size, nodes, outcome);
        EpochRecord { epoch: last.next(), ..record }
    }

    /// All ranks of all nodes ended cleanly: the job is complete, whatever fails now. The root says so for all; who does not hear that from it
    /// in time, or would write something else, does so, too.
    pub(super) fn guard_clean_end(&mut self) {
        if !self.tree.decree().finished || self.end.is_near() {
            return;
        }
        let since = *self.run.finished.get_or_insert(self.now);
        if self.tree.is_root() || self.due(since, self.root_patience()) || self.fails() {
            self.conclude(Outcome::clean(), false);
        }
    }

    /// So long the root may take to write that all is done.
    pub(super) fn root_patience(&self) -> Micros {
        ROOT_SAYS.of(self.config.policy.end_timeout)
    }

    /// When that is over.
    pub(super) fn clean_end_deadline(&self) -> Option<Micros> {
        self.run.finished.map(|since| since.after(self.root_patience()))
    }

    pub(super) fn conclude_now(&mut self, error: &Unrecoverable, record: &EpochRecord) {
        self.conclude(Outcome::failed(error.status(), error.to_string()), false);
        if let Some(verdict) = self.end.verdict.clone() {
            self.write(plan::last_record(record, verdict.outcome));
        }
    }
}
