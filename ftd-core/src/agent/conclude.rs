//! How the job is to end, as far as this node may say.

use super::end::Verdict;
use super::{Agent, Stage};
use crate::ids::EpochId;
use crate::plan::{self, Unrecoverable};
use crate::record::{EpochRecord, Outcome};

impl Agent {
    /// The job is to end with this. `cancelled`: whatever others have agreed meanwhile.
    pub(super) fn conclude(&mut self, outcome: Outcome, cancelled: bool) {
        self.changed = true;
        let over = matches!(self.run.stage, Stage::Ending | Stage::Over);
        if over || self.end.verdict.as_ref().is_some_and(|verdict| verdict.cancelled || !cancelled) {
            return;
        }
        self.report_last_recovery(outcome.status == 0);
        self.end.verdict = Some(Verdict { outcome, cancelled });
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

    /// All ranks of all nodes ended cleanly: the job is complete. The root says so for all.
    pub(super) fn guard_clean_end(&mut self) {
        let done = self.tree.is_root() && self.tree.decree().finished;
        if done && self.batch.is_none() && self.end.verdict.is_none() && self.end.leaving.is_none() {
            self.conclude(Outcome::clean(), false);
        }
    }

    pub(super) fn conclude_now(&mut self, error: &Unrecoverable, record: &EpochRecord) {
        self.conclude(Outcome::failed(error.status(), error.to_string()), false);
        if let Some(verdict) = self.end.verdict.clone() {
            self.write(plan::last_record(record, verdict.outcome));
        }
    }
}
