//! What a run promises beyond the invariants that hold everywhere: how soon something is done, and how often.

use crate::invariants::Violation;
use crate::world::World;
use ftd_core::{Cause, EpochId, EpochRecord, Failure, Outcome, Process};
use std::collections::BTreeMap;

/// What is remembered for that.
#[derive(Debug, Default)]
pub struct Kept {
    /// When the first record of each epoch was written.
    written: BTreeMap<EpochId, u64>,
    /// The end that was recorded, whatever has become of the key since.
    ended: Option<Outcome>,
}

impl World {
    /// A node that died is out soon, and no more epochs than necessary say so.
    pub fn check_pace(&mut self, before: Option<&EpochRecord>, record: &EpochRecord) {
        self.kept.written.entry(record.epoch).or_insert(self.now);
        self.kept.ended = record.outcome.clone().or(self.kept.ended.take());
        let promises = self.setup.promises;
        let left = before.into_iter().flat_map(EpochRecord::members).filter(|node| !record.is_member(*node));
        let late = left.filter_map(|node| Some((node, self.now - self.machines[node.0 as usize].crashed_at?)));
        let late = late.into_iter().find(|(_, took)| promises.prompt.is_some_and(|limit| *took > limit));
        if let Some((node, took)) = late {
            let sentence = format!("{} leaves {node} out {} ms after its death", record.epoch, took / 1000);
            self.violated(Violation::Late(sentence));
        }
        if let Some(wrong) = self.blames_collateral(record) {
            self.violated(Violation::Untrue(wrong));
        }
        if let Some(wrong) = self.ended_by_another(record) {
            self.violated(Violation::Untrue(wrong));
        }
        if promises.grace && self.cancelled.is_some() && record.outcome.is_none() {
            self.violated(Violation::Untrue(format!("{} recovers a job that was told to end", record.epoch)));
        }
        if record.outcome.is_none() && promises.epochs.is_some_and(|most| record.epoch.0 > most) {
            self.violated(Violation::Late(format!("it takes {} to say what happened at once", record.epoch)));
        }
    }

    /// When the first record of this epoch was written.
    pub fn written_at(&self, epoch: EpochId) -> u64 {
        self.kept.written.get(&epoch).copied().unwrap_or(0)
    }

    fn ended_by_another(&self, record: &EpochRecord) -> Option<String> {
        let first = self.setup.promises.ended_by?;
        let reason = record.outcome.as_ref()?.reason.as_deref()?;
        let other = reason.starts_with("rank ") && !reason.starts_with(&format!("rank {first} "));
        other.then(|| format!("the job ended ({reason}), but that rank did so because a peer had died"))
    }

    /// Where an end by a process's own will is not recovered from it ends the job, or it is collateral.
    fn blames_collateral(&self, record: &EpochRecord) -> Option<String> {
        let own = |failure: &&Failure| matches!(failure.cause, Cause::Own(_)) && !self.setup.policy.recover_aborts;
        let blamed = record.failures.failures().iter().find(own)?;
        Some(format!("{blamed} is blamed, and not what it followed from"))
    }

    /// An agent knows a record.
    pub fn check_told(&mut self, node: usize, epoch: EpochId) {
        let Some(limit) = self.setup.promises.told else { return };
        let took = self.kept.written.get(&epoch).map_or(0, |at| self.now - at);
        if took > limit {
            self.violated(Violation::Late(format!(
                "n{node} is told of {epoch} {} ms after it was written",
                took / 1000
            )));
        }
    }

    /// Who is told to end has a while to do it.
    pub fn check_grace(&mut self, name: Process) {
        let ends = self.cancelled.map(|(_, at)| at + self.setup.policy.grace.0);
        if self.setup.promises.grace && ends.is_some_and(|ends| self.now < ends) {
            self.violated(Violation::Order(format!("{name} is killed before its grace is over")));
        }
    }

    /// How the job ended, says its record, or the one that was there.
    pub fn recorded_end(&self) -> Option<Outcome> {
        let there = self.store.value().and_then(|record| record.outcome.clone());
        there.or_else(|| self.kept.ended.clone())
    }
}
