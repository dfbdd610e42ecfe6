//! What is seen of this node's processes: how far they are, and how they end.

use super::{Agent, Local, LocalEnd, Stage};
use crate::blame::{self, Ended, Exit, Limit, Phase, verdict};
use crate::breach::Breach;
use crate::failure::{Cause, OwnEnd, Subject};
use crate::ids::{EpochId, Process, WorldId};
use crate::passed_on::judged;
use crate::record::Outcome;

const SIGKILL: i32 = 9;

impl Agent {
    pub(super) fn take_start_failed(&mut self, process: Process, reason: String, status: i32) {
        // Who was told to end needs not start.
        let leaves = self.left(process, Exit::Unseen);
        if !leaves && self.run.locals.contains_key(&process) && !self.worlds.ended(process.world) {
            self.telling.progress.iter_mut().for_each(|progress| progress.stuck = true);
            let reason = format!("{} cannot be started: {reason}", process.rank);
            self.end.refused |= self.end.verdict.is_none();
            self.conclude(Outcome::failed(status, reason), false);
        }
    }

    pub(super) fn take_cannot_begin(&mut self, reason: String, status: i32) {
        let begun =
            self.epoch() > EpochId(1) || matches!(self.run.stage, Stage::Computing | Stage::Ending | Stage::Over);
        if !begun {
            self.telling.progress.iter_mut().for_each(|progress| progress.stuck = true);
            self.end.refused |= self.end.verdict.is_none();
            self.conclude(Outcome::failed(status, format!("the job does not begin: {reason}")), false);
        }
    }

    pub(super) fn take_cannot_go_on(&mut self, world: WorldId, reason: String) {
        if self.run.locals.keys().any(|process| process.world == world) && !self.worlds.ended(world) {
            self.telling.progress.iter_mut().for_each(|progress| progress.stuck = true);
            self.end.refused |= self.end.verdict.is_none();
            self.conclude(Outcome::failed(1, reason), false);
        }
    }

    pub(super) fn take_phase(&mut self, process: Process, phase: Phase) {
        if let Some(local) = self.run.locals.get_mut(&process) {
            local.phase = local.phase.max(phase);
            self.memory.speaks_mpi = true;
            // A process whose futex fired before it was known to be past `MPI_Init` was past it after all.
            let died = local.dying && local.end.is_none() && local.phase == Phase::Initialized;
            self.sign(process);
            if died {
                self.take_dying(process, None);
            }
        }
    }

    /// `signal`: it is known to die of that, wherever it was and whether it calls MPI or not.
    pub(super) fn take_dying(&mut self, process: Process, signal: Option<i32>) {
        let held = self.holds.holds(process);
        let ended = self.worlds.ended(process.world);
        let Some(local) = self.run.locals.get_mut(&process) else { return };
        if local.end.is_some() || held || ended || self.end.leaving.is_some() {
            return;
        }
        local.dying = true;
        let known = local.phase == Phase::Initialized || signal.is_some();
        if known && self.is_awaited(process, signal) {
            return;
        }
        let Some(local) = self.run.locals.get_mut(&process).filter(|_| known) else { return };
        local.end = Some(LocalEnd::Failed);
        let slot = self.record.as_ref().and_then(|record| record.placement.slot(process.rank));
        if slot.is_some_and(|slot| self.slots.is_lost(slot)) {
            return;
        }
        // Whose a SIGKILL was is known when it has been waited for.
        let cause = signal.filter(|signal| *signal != SIGKILL).map_or(Cause::Unknown, Cause::Signal);
        self.fail(Subject::Process(process), cause);
    }

    pub(super) fn take_ended(&mut self, process: Process, ended: Ended) {
        if ended.tells_of_death() {
            self.take_dying(process, None);
        }
        let (exit, limit) = ended.of_rank();
        self.take_exit(process, exit, limit, ended.of_script());
    }

    pub(super) fn take_exited(&mut self, process: Process, exit: Exit, limit: Option<Limit>) {
        self.take_exit(process, exit, limit, None);
    }

    fn take_exit(&mut self, process: Process, exit: Exit, limit: Option<Limit>, script: Option<i32>) {
        let ended = self.worlds.ended(process.world);
        let held = self.holds.holds(process);
        self.memory.exited.insert(process);
        self.end.has_spoken(process);
        let Some(local) = self.run.locals.get_mut(&process) else {
            return self.cause_known(process, blame::verdict(Phase::Initialized, true, exit, limit));
        };
        local.gone = true;
        let own = script.map(|signal| blame::Verdict::Own(OwnEnd::Script(signal)));
        let verdict = own.unwrap_or_else(|| verdict(local.phase, local.dying, exit, limit));
        let verdict = judged(&self.passing.heard, exit, verdict, self.now);
        if !ended {
            self.take_answer(process, verdict);
        }
        if !ended && self.left(process, exit) {
            return;
        }
        let Some(local) = self.run.locals.get_mut(&process) else { return };
        if local.end == Some(LocalEnd::Failed) || ended {
            return self.cause_known(process, verdict);
        }
        if held || local.end.is_some() {
            return;
        }
        local.end = Some(match verdict {
            blame::Verdict::Clean => LocalEnd::Clean,
            blame::Verdict::Failure(_) => LocalEnd::Failed,
            blame::Verdict::Own(_) => LocalEnd::Own,
        });
        match verdict {
            blame::Verdict::Clean => {}
            blame::Verdict::Failure(cause) => self.fail(Subject::Process(process), cause),
            blame::Verdict::Own(end) => self.take_own_end(process, end),
        }
    }

    pub(super) fn take_survey(&mut self, dying: &[Process], leaving: &[Process]) {
        for process in leaving {
            if let Some(local) = self.run.locals.get_mut(process) {
                local.leaving = true;
            }
        }
        for process in dying {
            self.take_dying(*process, None);
        }
        if self.holds.looked() {
            self.batch_is_surveyed();
        }
    }

    /// A process that is dying or dead, nobody knows why: its exit will say, however long that takes.
    pub(super) fn uncertain(&self) -> Option<Process> {
        let uncertain = |local: &Local| (local.dying || local.leaving) && local.end.is_none();
        let early = self.config.breach == Breach::ExitNotAwaited;
        if early && self.due(self.holds.uncertain_since(), self.config.policy.exit_timeout) {
            return None;
        }
        self.run.locals.iter().find(|(_, local)| uncertain(local)).map(|(process, _)| *process)
    }

    /// One that never ends is beyond ftd, as one is that outlives SIGKILL: what others have done by their own will is not decided
    /// without it.
    pub(super) fn guard_undead(&mut self) {
        let timeout = self.config.policy.stop_timeout;
        if !self.holds.waits() || !self.due(self.holds.uncertain_since(), timeout) {
            return;
        }
        let Some(process) = self.uncertain() else { return };
        let reason = format!(
            "the job cannot continue, because {} on {} is dying, and how it ended is not known {timeout} after others ended by \
             their own will",
            process.rank, self.me
        );
        self.conclude(Outcome::failed(1, reason), false);
    }

    pub(super) fn take_server_lost(&mut self, world: WorldId) {
        if world == self.world()
            && !self.worlds.ended(world)
            && self.run.locals.values().any(|local| local.end != Some(LocalEnd::Clean))
        {
            self.fail(Subject::Node(self.me), Cause::WorldServerLost);
        }
    }

    /// A sign of life of a recovery, for the patience of its report.
    pub(super) fn sign(&mut self, process: Process) {
        let world = self.world();
        if let Some(progress) = self.telling.progress.as_mut().filter(|_| process.world == world) {
            progress.last_sign = self.now;
        }
    }
}
