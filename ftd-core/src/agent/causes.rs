//! True causes that come to be known after a death was noted, or even agreed.

use super::{Agent, Predecessor, Stage};
use crate::blame;
use crate::failure::{Cause, Failure, FailureSet, Subject};
use crate::ids::{Micros, NodeId, Process};
use crate::plan::{self, Cluster};
use crate::record::Suspect;
use crate::report::{Episode, Notice, Report};
use std::collections::{BTreeMap, BTreeSet};

impl Agent {
    /// These failures, with the true causes that became known after they were agreed.
    pub fn as_known(&self, failures: &FailureSet) -> FailureSet {
        plan::completed(failures, &self.memory.causes)
    }

    /// Deaths in a row without progress of those that have died in these, likewise.
    pub fn deaths_in_a_row(&self, episodes: &[Episode]) -> BTreeMap<Suspect, u32> {
        let died: BTreeSet<Suspect> = episodes
            .iter()
            .flat_map(|episode| plan::suspects(&episode.placement, &self.as_known(&episode.failures)))
            .collect();
        let all = self.record().map(|record| plan::in_a_row(record, &self.memory.causes)).unwrap_or_default();
        all.into_iter().filter(|(suspect, _)| died.contains(suspect)).collect()
    }

    /// Processes that have died, of what is not known: for the agent that comes after this one.
    pub fn untold(&self) -> BTreeSet<Process> {
        let Some(record) = &self.record else {
            return self.predecessor.as_ref().map(|before| before.untold.clone()).unwrap_or_default();
        };
        let sets = record.history.iter().map(|entry| &entry.failures).chain([&record.failures]);
        let unknown = sets.flat_map(FailureSet::failures).filter_map(|failure| match failure.subject {
            Subject::Process(process) if failure.cause == Cause::Unknown => Some(process),
            _ => None,
        });
        unknown.filter(|process| !self.memory.causes.contains_key(process) && !self.is_told(*process)).collect()
    }

    /// An agent that is dead had told people of what this process died: its shepherd says it once more.
    fn is_told(&self, process: Process) -> bool {
        let (Some(record), Some(Predecessor { reported, untold, .. })) = (&self.record, &self.predecessor) else {
            return false;
        };
        let told = record.history.iter().filter(|entry| entry.epoch < *reported);
        !untold.contains(&process) && told.into_iter().any(|entry| entry.failures.of_process(process).is_some())
    }

    /// Of these, those that count on if something dies now: none after a newer version is complete.
    pub fn deaths_that_count(&self, now: Micros) -> BTreeMap<Suspect, u32> {
        let after = self.config.policy.progress_after;
        let cluster = Cluster {
            checkpointed: self.checkpointed(),
            computed: self.run.stage == Stage::Computing && now.since(self.run.since) >= after,
            late_progress: self.run.late_progress,
            causes: self.memory.causes.clone(),
            ..Cluster::default()
        };
        self.record().map(|record| plan::deaths_so_far(record, &cluster)).unwrap_or_default()
    }

    /// The true cause of a death that has been noted, and perhaps agreed, without one.
    pub(super) fn cause_known(&mut self, process: Process, verdict: blame::Verdict) {
        let blame::Verdict::Failure(cause) = verdict else { return };
        if self.record.is_none() && cause != Cause::Unknown {
            // A shepherd says again what it said to an agent that is dead; whether that was agreed will be read in a moment.
            self.memory.causes.insert(process, cause);
            return;
        }
        let failure = Failure { subject: Subject::Process(process), cause, node: self.node_of(process) };
        let unknown = |set: &FailureSet| set.of_process(process).is_some_and(|known| known.cause == Cause::Unknown);
        let noted = self.noted().is_some_and(unknown);
        let agreed = self.record.as_ref().is_some_and(|record| {
            unknown(&record.failures) || record.history.iter().any(|entry| unknown(&entry.failures))
        });
        let told = cause != Cause::Unknown && self.completes_last_block(process, &failure);
        if cause == Cause::Unknown || !(noted || agreed) {
            return;
        }
        if noted {
            self.correct_batch(failure);
        }
        if self.memory.causes.insert(process, cause).is_some() || !agreed || told || self.is_told(process) {
            return;
        }
        let episodes = self.telling.progress.iter_mut().flat_map(|progress| &mut progress.episodes);
        match episodes.into_iter().find(|episode| unknown(&episode.failures)) {
            Some(episode) => episode.failures.insert(failure),
            None => self.report(Report::Notice(Notice::CauseKnown { process, sentence: failure.to_string() })),
        }
    }

    /// Until when a running epoch waits for the word on how a process of this node died; `None` when all is said.
    pub(super) fn cause_deadline(&self) -> Option<Micros> {
        let record = self.record.as_ref().filter(|_| self.run.stage == Stage::Computing)?;
        let until = self.run.since.after(self.config.policy.exit_timeout);
        let on_its_way = |failure: &Failure| match failure.subject {
            Subject::Process(process) => {
                failure.cause == Cause::Unknown
                    && failure.node == self.me
                    && !self.memory.causes.contains_key(&process)
                    && !self.memory.exited.contains(&process)
            }
            _ => false,
        };
        let mut sets = record.history.iter().map(|entry| &entry.failures).chain([&record.failures]);
        (self.now < until && sets.any(|set| set.failures().iter().any(on_its_way))).then_some(until)
    }

    /// Where a process of this world, or of one that is remembered, was.
    pub(super) fn node_of(&self, process: Process) -> NodeId {
        let Some(record) = &self.record else { return self.me };
        let sets = record.history.iter().map(|entry| &entry.failures).chain([&record.failures]);
        let mut known = sets.filter_map(|set| set.of_process(process)).map(|failure| failure.node);
        known.next().unwrap_or(self.me)
    }

    /// True causes that others know.
    pub(super) fn take_causes(&mut self) {
        let causes = self.tree.decree().causes.iter();
        let news: Vec<(Process, Cause)> = causes
            .filter(|(process, _)| !self.memory.causes.contains_key(process))
            .map(|(p, cause)| (*p, *cause))
            .collect();
        for (process, cause) in news {
            self.cause_known(process, blame::Verdict::Failure(cause));
        }
    }
}
