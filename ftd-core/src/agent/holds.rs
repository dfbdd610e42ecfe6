//! Ends by a process's own will are held until it is known that no death came before them.
//!
//! That is asked of everybody, in numbered surveys of the epoch ([`Decree::survey`](crate::word::Decree)): an end that is held
//! during one waits for the next. No clock decides: a node that does not answer is left out, which makes the end collateral.

use super::{Agent, Effect, LocalEnd, Stage};
use crate::breach::Breach;
use crate::failure::{Cause, OwnEnd, Subject};
use crate::ids::Process;
use crate::record::{EpochRecord, Outcome};

impl Agent {
    /// An end by a process's own will: collateral when a failure is known, otherwise held.
    pub(super) fn take_own_end(&mut self, process: Process, end: OwnEnd) {
        if self.worlds.ended(process.world) || self.holds.holds(process) {
            return;
        }
        let Some(local) = self.run.locals.get_mut(&process) else { return };
        if matches!(end, OwnEnd::Abort(_)) && local.end.is_some() {
            return;
        }
        if self.end.leaving.is_some() {
            return self.leaves_by_itself(process, end);
        }
        local.end = Some(LocalEnd::Own);
        // Found dead when another's end was looked into: this one was first.
        let first = local.leaving;
        if self.is_collateral(process, end) {
            return;
        }
        self.hold(process, end);
        if first {
            self.holds.last_was_first(self.next_survey());
        }
    }

    /// The next survey that has not begun.
    fn next_survey(&self) -> u64 {
        let decree = self.tree.decree();
        let under_way = decree.survey > decree.surveyed && self.config.breach == Breach::RoundNotAwaited;
        decree.survey + u64::from(!under_way)
    }

    pub(super) fn hold(&mut self, process: Process, end: OwnEnd) {
        self.changed = true;
        self.holds.hold(process, end, self.next_survey(), self.now);
    }

    /// Looks at this node's processes when everybody is asked to, and says so when it is known what they are.
    pub(super) fn guard_survey(&mut self) {
        self.holds.ask(self.tree.decree().survey, self.now);
        self.guard_undead();
        if self.holds.looks() {
            self.emit(Effect::Survey);
        }
        let unlooked = self.config.breach == Breach::OwnNodeUnlooked;
        if self.holds.is_to_answer(unlooked) && self.uncertain().is_none() {
            self.changed = true;
            self.holds.answer();
        }
    }

    /// One whose death this node is going to propose, or that stands for something else which will end the epoch.
    pub(super) fn known_dead(&self) -> Option<Process> {
        let of_process = |subject| match subject {
            Subject::Process(process) => Some(process),
            Subject::Slot(_) | Subject::Node(_) => None,
        };
        let noted = self.noted();
        let dead = noted.and_then(|noted| noted.failures().iter().find_map(|failure| of_process(failure.subject)));
        let ends =
            noted.is_some() || self.run.fenced.is_some() || self.end.verdict.is_some() || self.end.leaving.is_some();
        dead.or_else(|| ends.then(|| Process::primary(self.world(), crate::ids::Rank(0))))
    }

    /// Ends of which it is known now whose they are.
    pub(super) fn guard_holds(&mut self) {
        let none = self.holds.is_empty() || self.end.verdict.is_some() || self.run.stage != Stage::Computing;
        if none || self.uncertain().is_some() {
            return;
        }
        let decree = self.tree.decree();
        // A death that is known makes the next epoch, and these ends its collateral.
        if decree.dead.is_some() {
            return;
        }
        let long = |record: &EpochRecord| self.due(self.holds.uncertain_since(), record.terms.timeout.quarters(16));
        let by_clock = self.config.breach == Breach::HeldByClock && self.record.as_deref().is_some_and(long);
        let at_once = self.config.breach == Breach::NothingHeld || by_clock;
        let Some(hold) = self.holds.settle(decree.surveyed, at_once) else { return };
        self.changed = true;
        if self.is_answer(hold.process, hold.end) {
            return;
        }
        if self.config.policy.recover_aborts {
            return self.fail(Subject::Process(hold.process), Cause::Own(hold.end));
        }
        let node = self.me;
        let reason = match hold.end {
            OwnEnd::NoFinalize => format!(
                "{} on {node} exited with code 0 but without MPI_Finalize, and nobody had died before it",
                hold.process.rank
            ),
            end => format!("{} on {node} {end}", hold.process.rank),
        };
        self.conclude(Outcome::failed(hold.end.status(), reason), false);
        if matches!(hold.end, OwnEnd::Abort(_)) {
            let until = self.now.after(self.config.policy.abort_grace);
            self.end.last_words = Some((hold.process, until));
            self.emit(Effect::Proceed { process: hold.process, end: hold.end });
        }
    }
}
