//! Signals that are passed on to the ranks, as often as they come: the ranks may go on after them. The job is told to end, as by a
//! [`Cancel`](super::Event::Cancel), when a rank has answered one by its end ([`passed_on`](crate::passed_on)), and on all nodes then.
//!
//! What died is not known as soon as that it died. While a signal counts the exit is waited for, however long the kernel takes over the
//! memory of the dead. And what is killed after SIGTERM may be killed with all of the job, by who has sent both: on other nodes that is
//! a moment later.

use super::end::{Leaving, Limit};
use super::{Agent, Effect, LocalEnd, Patience, Stage};
use crate::blame::Verdict;
use crate::failure::{Cause, Failure, OwnEnd, Subject, signal_name};
use crate::ids::{Micros, Process, SlotId, WorldId};
use crate::passed_on::answered;
use crate::plan::signal_status;
use crate::record::Outcome;

/// So long after one that was killed the others may be, if it is the job that is ended so: nodes hear of that one after the other.
const KILLED_TOGETHER: Micros = Micros::from_millis(1500);
/// When a rank aborts in a job that has been told to end, the others have no longer than this: those that talk with it will not come far.
const ABORTED: Micros = Micros::from_secs(10);
/// When a rank answers a signal that was long ago, the others have so long at least.
const LEAST: Micros = Micros::from_secs(10);

/// So long after it computes a rank of a later world that catches no signal may still be about to: its user knows of no other start than the
/// first.
const STARTS: Micros = Micros::from_secs(10);

const KILL: i32 = 9;

impl Agent {
    /// Somebody has sent this signal to the task of a slot, for its rank.
    pub(super) fn take_signalled(&mut self, slot: SlotId, signal: i32) {
        self.passing.heard.hears(signal, self.now);
        self.passing.waiting.insert((slot, signal));
    }

    /// It was sent while an agent was here before this one, whose ranks are no more.
    pub(super) fn take_remembered(&mut self, signal: i32, ago: Micros) {
        let within = self.passing.heard.within();
        if ago <= within {
            self.passing.heard.remembers(signal, Micros(self.now.0.saturating_sub(ago.0)));
            self.passing.owed.remembered(signal);
        }
    }

    /// A rank has this one again.
    pub(super) fn take_repeated(&mut self, signal: i32) {
        self.passing.heard.hears_again(signal, self.now);
        self.passing.owed.repeated(signal);
    }

    /// Other processes play the ranks from now on. What failed may have been known for long, without a node on which to go on.
    pub(super) fn signals_begin_anew(&mut self) {
        let failed = self.batch.as_ref().map_or(self.now, |batch| batch.since);
        self.passing.owed.begins_anew(failed, self.passing.heard.within());
        self.passing.heard.begins_anew();
        self.passing.computing = None;
    }

    /// Whether ranks compute to which something could be said.
    pub(super) fn computes(&self) -> bool {
        let starts = self.world() > WorldId(1) && !self.before_init().is_empty();
        let recovers = self.batch.is_some() || starts || self.standstill.paused || self.run.fenced.is_some();
        self.run.stage == Stage::Computing && !recovers && self.end.verdict.is_none()
    }

    /// Gives the ranks what came for them; joins in the job's end; and does not wait for an exit that does not come.
    pub(super) fn guard_passing(&mut self) {
        if let Some(signal) = self.tree.decree().answered.filter(|_| !self.end.is_near() && self.is_in_epoch()) {
            self.begin_to_leave(signal);
        }
        let computes = self.computes();
        if computes {
            self.passing.computing.get_or_insert(self.now);
        }
        // Few jobs are ever sent any.
        let passing = &self.passing;
        if passing.heard.is_empty() && passing.owed.is_empty() && passing.waiting.is_empty() {
            return;
        }
        let silent = !self.fence.to_write(self.now).is_empty();
        self.passing.silent = silent.then(|| self.passing.silent.unwrap_or(self.now));
        if computes {
            self.give_signals();
        }
        self.guard_awaited();
    }

    /// What has come, and what the ranks are owed.
    fn give_signals(&mut self) {
        let waiting = std::mem::take(&mut self.passing.waiting);
        let starts = self.passing.computing.is_some_and(|since| !self.due(since, STARTS));
        let patience = if self.world() > WorldId(1) && starts { Patience::Start } else { Patience::None };
        for (slot, signal) in &waiting {
            // One that has waited for the ranks counts from now on.
            self.passing.heard.hears(*signal, self.now);
            self.passing.owed.came(*signal, self.now);
            self.emit(Effect::PassOn { slot: *slot, signal: *signal, patience });
        }
        let owed = self.passing.owed.due(self.now);
        if owed.is_empty() {
            return;
        }
        let record = self.record.clone();
        let slots: Vec<SlotId> =
            record.iter().flat_map(|record| record.processes_on(self.me)).map(|(_, slot)| slot).collect();
        for signal in owed {
            let gets = slots.iter().filter(|slot| !waiting.contains(&(**slot, signal)));
            for slot in gets {
                // Whoever ends now may have had it.
                self.passing.heard.hears_again(signal, self.now);
                self.emit(Effect::PassOn { slot: *slot, signal, patience: Patience::Caught });
            }
        }
    }

    /// Exits are waited for as long as the kernel may take, and no longer.
    fn guard_awaited(&mut self) {
        let timeout = self.config.policy.stop_timeout;
        let late = |since: Option<Micros>| since.is_some_and(|since| self.due(since, timeout));
        let awaited = self.run.locals.iter().filter(|(_, local)| local.end.is_none() && late(local.awaited));
        let late: Vec<Process> = awaited.map(|(process, _)| *process).collect();
        for process in late {
            if self.end.is_near() {
                return;
            }
            self.run.locals.entry(process).and_modify(|local| local.end = Some(LocalEnd::Failed));
            self.fail(Subject::Process(process), Cause::Unknown);
        }
    }

    /// The signal that a rank of this node has answered by its end, or one of another node, as this one knows.
    pub(super) fn answered_signal(&self) -> Option<i32> {
        self.end.leaving.as_ref().filter(|leaving| leaving.answered).map(|leaving| leaving.signal)
    }

    fn is_in_epoch(&self) -> bool {
        !matches!(self.run.stage, Stage::Restarted | Stage::Joining | Stage::Ending | Stage::Over)
    }

    /// Whether it is to be waited for how a process ended that is dying, of this if that is known; when it is known to have answered a
    /// signal the job is told to end.
    pub(super) fn is_awaited(&mut self, process: Process, signal: Option<i32>) -> bool {
        let heard = &self.passing.heard;
        if let Some(signal) = signal.filter(|signal| heard.counts(*signal, self.now)) {
            self.begin_to_leave(signal);
            return true;
        }
        let waits = signal.is_none() && heard.newest(self.now).is_some();
        if let Some(local) = self.run.locals.get_mut(&process).filter(|_| waits) {
            local.awaited.get_or_insert(self.now);
        }
        waits
    }

    /// A process of the running world has died, of whom nothing was known: perhaps that was its answer.
    pub(super) fn take_answer(&mut self, process: Process, verdict: Verdict) {
        let unknown = self.run.locals.get(&process).is_some_and(|local| local.end.is_none());
        if !unknown || !matches!(verdict, Verdict::Failure(_)) || self.holds.holds(process) || self.end.is_near() {
            return;
        }
        if let Some(signal) = answered(&self.passing.heard, verdict, self.now) {
            self.begin_to_leave(signal);
        }
    }

    /// Nobody had died before a process ended by its own will: perhaps that was its answer.
    pub(super) fn is_answer(&mut self, process: Process, end: OwnEnd) -> bool {
        let Some(signal) = answered(&self.passing.heard, Verdict::Own(end), self.now) else { return false };
        self.begin_to_leave(signal);
        match &mut self.end.leaving {
            // So a script tells of the signal.
            Some(leaving) if end == OwnEnd::ExitCode(128 + signal) => leaving.killed = true,
            _ => self.leaves_by_itself(process, end),
        }
        true
    }

    /// Whether one that ended well, and never called the `MPI_Init` in which the others wait, may have been told to.
    pub(super) fn take_absence(&mut self) -> bool {
        let signal = self.passing.heard.newest(self.now);
        signal.into_iter().for_each(|signal| self.begin_to_leave(signal));
        signal.is_some()
    }

    /// A rank, here or elsewhere, has answered a signal by its end: the others have time to do so, and nothing is a failure any more.
    fn begin_to_leave(&mut self, signal: i32) {
        self.changed = true;
        self.emit(Effect::Leave);
        if self.run.stage != Stage::Computing || self.config.policy.grace == Micros(0) {
            let reason = format!("the job was cancelled by {}", signal_name(signal));
            return self.conclude(Outcome::cancelled(signal_status(signal).0, reason), true);
        }
        // What was killed meanwhile was killed.
        let killed = self.batch.is_some();
        self.dissolve_batch();
        // All have the same time after the signal, however late one has answered it.
        let answered = self.passing.heard.until(signal).map_or(Micros(u64::MAX), |at| at.max(self.now.after(LEAST)));
        let grace = self.now.after(self.config.policy.grace);
        let limit = if answered < grace { Limit::Signal } else { Limit::Grace };
        self.end.leaving =
            Some(Leaving { signal, until: grace.min(answered), status: 0, killed, answered: true, limit });
        for hold in self.holds.let_go() {
            self.leaves_by_itself(hold.process, hold.end);
        }
        let lost: Vec<SlotId> = self.slots.lost().collect();
        for slot in lost {
            self.left_with_slot(slot);
        }
    }

    /// One has aborted that was told to end.
    pub(super) fn aborts_leaving(&mut self) {
        if let Some(leaving) = self.end.leaving.as_mut().filter(|leaving| leaving.answered) {
            let until = self.now.after(ABORTED);
            if until < leaving.until {
                (leaving.until, leaving.limit) = (until, Limit::Abort);
            }
        }
    }

    /// So much later than otherwise what is known of these failures is ripe: a kill that follows SIGTERM may be that of the whole job.
    pub(super) fn killed_together<'a>(&self, since: Micros, failures: impl IntoIterator<Item = &'a Failure>) -> Micros {
        let by_kill = |failure: &Failure| {
            matches!(
                failure.cause,
                Cause::Signal(KILL) | Cause::Unknown | Cause::SlotLost | Cause::WorldServerLost | Cause::NodeSilent
            )
        };
        let waits = self.passing.heard.is_followed_by_kill(since) && failures.into_iter().any(by_kill);
        if waits { KILLED_TOGETHER } else { Micros(0) }
    }

    /// Whether nodes that are to be left out are to be now.
    pub(super) fn leaves_out(&self) -> bool {
        let Some(since) = self.passing.silent else { return true };
        !self.passing.heard.is_followed_by_kill(since) || self.due(since, KILLED_TOGETHER)
    }

    /// When something of this is to be looked at again.
    pub(super) fn passing_deadlines(&self) -> Vec<Micros> {
        let timeout = self.config.policy.stop_timeout;
        let awaited = self.run.locals.values().filter(|local| local.end.is_none());
        let awaited = awaited.filter_map(|local| Some(local.awaited?.after(timeout)));
        awaited.chain(self.passing.silent.map(|since| since.after(KILLED_TOGETHER))).collect()
    }
}
