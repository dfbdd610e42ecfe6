//! Ends by a process's own will are held until it is known that no death came before them.
//!
//! That is asked of everybody, in numbered surveys of the epoch ([`Decree::survey`](crate::word::Decree)): an end that is held
//! during one waits for the next. No clock decides: a node that does not answer is left out, which makes the end collateral.

use super::held::Hold;
use super::{Agent, Effect, LocalEnd, Stage};
use crate::breach::Breach;
use crate::failure::Cause;
use crate::failure::{Collateral, OwnEnd, Subject};
use crate::ids::Process;
use crate::record::Outcome;

impl Agent {
    /// An end by a process's own will: collateral when a failure is known, otherwise held.
    pub(super) fn take_own_end(&mut self, process: Process, end: OwnEnd) {
        if self.ended(process.world) || self.holds.iter().any(|hold| hold.process == process) {
            return;
        }
        let Some(local) = self.run.locals.get_mut(&process) else { return };
        if matches!(end, OwnEnd::Abort(_)) && local.end.is_some() {
            return;
        }
        if self.leaving.is_some() {
            return self.leaves_by_itself(process, end);
        }
        local.end = Some(LocalEnd::Own);
        // Found dead when another's end was looked into: this one was first.
        let first = local.leaving;
        if let Some(batch) = &mut self.batch {
            batch.failures.insert_collateral(Collateral { process, end });
            return;
        }
        self.hold(process, end);
        if first {
            self.holds.rotate_right(1);
            let survey = self.next_survey();
            self.holds.iter_mut().for_each(|hold| hold.survey = survey);
        }
    }

    /// The next survey that has not begun.
    fn next_survey(&self) -> u64 {
        self.tree.decree().survey + 1
    }

    pub(super) fn hold(&mut self, process: Process, end: OwnEnd) {
        self.changed = true;
        self.uncertain_since = self.now;
        let survey = self.next_survey();
        self.holds.push(Hold { process, end, survey });
    }

    /// Nothing failed after all: what was taken for collateral is held again.
    pub(super) fn dissolve_batch(&mut self) {
        self.changed = true;
        let Some(batch) = self.batch.take() else { return };
        for collateral in batch.failures.collateral() {
            self.hold(collateral.process, collateral.end);
        }
    }

    /// Looks at this node's processes when everybody is asked to, and says so when it is known what they are.
    pub(super) fn guard_survey(&mut self) {
        let asked = self.tree.decree().survey;
        if asked > self.looks.asked {
            self.looks.asked = asked;
            self.looks.wanted = true;
            if self.holds.is_empty() {
                self.uncertain_since = self.now;
            }
        }
        if self.looks.wanted {
            self.looks.wanted = false;
            self.looks.under_way += 1;
            self.emit(Effect::Survey);
        }
        let due = self.looks.answered != self.looks.asked && self.looks.under_way == 0;
        if due && !self.uncertain() {
            self.changed = true;
            self.looks.answered = self.looks.asked;
        }
    }

    /// One whose death this node is going to propose, or that stands for something else which will end the epoch.
    pub(super) fn known_dead(&self) -> Option<Process> {
        let of_process = |subject| match subject {
            Subject::Process(process) => Some(process),
            Subject::Slot(_) | Subject::Node(_) => None,
        };
        let batch = self.batch.as_ref();
        let dead =
            batch.and_then(|batch| batch.failures.failures().iter().find_map(|failure| of_process(failure.subject)));
        let ends = batch.is_some() || self.fenced.is_some() || self.verdict.is_some() || self.leaving.is_some();
        dead.or_else(|| ends.then(|| Process::primary(self.world(), crate::ids::Rank(0))))
    }

    /// Ends of which it is known now whose they are.
    pub(super) fn guard_holds(&mut self) {
        let none = self.holds.is_empty() || self.verdict.is_some() || self.stage != Stage::Computing;
        if none || self.uncertain() {
            return;
        }
        let decree = self.tree.decree();
        // A death that is known makes the next epoch, and these ends its collateral.
        if decree.dead.is_some() {
            return;
        }
        let at_once = self.config.breach == Breach::NothingHeld;
        let known = |hold: &Hold| at_once || hold.survey <= decree.surveyed;
        let Some(at) = self.holds.iter().position(known) else { return };
        let hold = self.holds.remove(at);
        self.changed = true;
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
            self.last_words = Some((hold.process, until));
            self.emit(Effect::Proceed { process: hold.process, end: hold.end });
        }
    }
}
