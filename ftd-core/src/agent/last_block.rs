//! The block of a recovery that the job's end cuts short. It names the cause of every death, so it waits for what is still on its
//! way: a process is seen dying before anybody can know of what, and the end may follow at once.

use super::Agent;
use super::block::{LastBlock, blame};
use crate::failure::{Cause, Failure, Subject};
use crate::ids::{Micros, Process};
use crate::report::Report;

impl Agent {
    /// Reports the recovery that is on its way, if one is agreed, before the job's end: when it is known who died of what. A job that
    /// ends `well` has recovered.
    pub(super) fn report_last_recovery(&mut self, well: bool) {
        if !well {
            self.interrupt_recovery();
        }
        if !self.tells_people() {
            return self.report_recovery(false);
        }
        let Some(recovery) = self.recovery(false) else { return };
        self.telling.last_block = Some(LastBlock { recovery, since: self.now });
        self.guard_last_block();
    }

    /// Whether the job's end has to wait for the block before it.
    pub(super) fn last_block_waits(&self) -> bool {
        self.telling.last_block.is_some()
    }

    pub(super) fn guard_last_block(&mut self) {
        let Some(LastBlock { recovery, since }) = &self.telling.last_block else { return };
        let on_its_way = |failure: &Failure| match failure.subject {
            Subject::Process(process) => failure.cause == Cause::Unknown && !self.memory.exited.contains(&process),
            _ => false,
        };
        let failures = recovery.episodes.iter().flat_map(|episode| episode.failures.failures());
        let waits = failures.into_iter().any(on_its_way);
        if waits && !self.due(*since, self.config.policy.exit_timeout) {
            return;
        }
        if let Some(LastBlock { mut recovery, .. }) = self.telling.last_block.take() {
            recovery.blame = blame(&recovery.episodes, &self.config.policy);
            self.report(Report::RecoveryDone(Box::new(recovery)));
        }
    }

    /// When the block does not wait any longer.
    pub(super) fn last_block_deadline(&self) -> Option<Micros> {
        self.telling.last_block.as_ref().map(|block| block.since.after(self.config.policy.exit_timeout))
    }

    /// The cause of a death that the block tells of; false when it does not.
    pub(super) fn completes_last_block(&mut self, process: Process, failure: &Failure) -> bool {
        let episodes = self.telling.last_block.iter_mut().flat_map(|block| &mut block.recovery.episodes);
        let unknown = |known: &Failure| known.cause == Cause::Unknown;
        let of = episodes.into_iter().find(|episode| episode.failures.of_process(process).is_some_and(unknown));
        of.map(|episode| episode.failures.insert(*failure)).is_some()
    }
}
