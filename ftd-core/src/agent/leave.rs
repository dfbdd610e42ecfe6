//! The job's end by a signal of its user: the ranks hear it first and have a while to end by themselves (`--ft-grace`). From
//! then on no death is a failure and no recovery begins.

use super::end::{Leaving, Limit};
use super::{Agent, Effect, LocalEnd, Stage};
use crate::blame::Exit;
use crate::breach::Breach;
use crate::failure::{OwnEnd, signal_name};
use crate::ids::{Micros, Process, SlotId};
use crate::plan::signal_status;
use crate::record::Outcome;
use crate::word::Left;

impl Agent {
    /// The user ends the job. Ranks that compute are told, whether they have asked for their state already or not; of those that
    /// are still to come out of `MPI_Init` after a failure, however long ago and whoever noticed it, there is nothing that they
    /// could save.
    pub(super) fn take_cancel(&mut self, signal: i32) {
        if self.end.leaving.is_some() {
            return;
        }
        let at_once = self.config.policy.grace == Micros(0) || self.config.breach == Breach::NoGrace;
        if !self.computes() || at_once {
            let reason = format!("the job was cancelled by {}", signal_name(signal));
            return self.conclude(Outcome::cancelled(signal_status(signal).0, reason), true);
        }
        self.emit(Effect::Signal { signal });
        if self.config.breach == Breach::CancelledRecovers {
            return;
        }
        let until = self.now.after(self.config.policy.grace);
        self.end.leaving =
            Some(Leaving { signal, until, status: 0, killed: false, answered: false, limit: Limit::Grace });
        for hold in self.holds.let_go() {
            self.leaves_by_itself(hold.process, hold.end);
        }
    }

    /// A process ends by its own will after the job was told to end: that is what it was told.
    pub(super) fn leaves_by_itself(&mut self, process: Process, end: OwnEnd) {
        let Some(leaving) = &mut self.end.leaving else { return };
        let status = if end == OwnEnd::NoFinalize { 0 } else { end.status() };
        if leaving.status == 0 {
            leaving.status = status;
        }
        if let Some(local) = self.run.locals.get_mut(&process) {
            local.end = Some(LocalEnd::Own);
        }
        if matches!(end, OwnEnd::Abort(_)) {
            self.aborts_leaving();
            self.emit(Effect::Proceed { process, end });
        }
    }

    /// Notes an exit after the job was told to end; false when it was not.
    pub(super) fn left(&mut self, process: Process, exit: Exit) -> bool {
        let Some(leaving) = &mut self.end.leaving else { return false };
        let Some(local) = self.run.locals.get_mut(&process) else { return false };
        // An abort has said already what it is.
        if local.end != Some(LocalEnd::Own) {
            match exit {
                Exit::Signal(_) | Exit::Unseen => leaving.killed = true,
                // So a wrapper tells of the signal.
                Exit::Code(code) if code == signal_status(leaving.signal).0 => leaving.killed = true,
                Exit::Code(code) if leaving.status == 0 => leaving.status = code & 0xff,
                Exit::Code(_) => {}
            }
        }
        local.end.get_or_insert(LocalEnd::Own);
        true
    }

    /// A slot is gone after the job was told to end, and with it whoever ran there; false when the job was not.
    pub(super) fn left_with_slot(&mut self, slot: SlotId) -> bool {
        if self.end.leaving.is_none() {
            return false;
        }
        let here = self.record.iter().flat_map(|record| record.processes_on(self.me)).find(|(_, at)| *at == slot);
        let local = here.and_then(|(process, _)| self.run.locals.get_mut(&process)).filter(|local| !local.gone);
        if let (Some(local), Some(leaving)) = (local, &mut self.end.leaving) {
            local.gone = true;
            leaving.killed = true;
        }
        true
    }

    /// How this node's ranks left, once all are gone.
    pub(super) fn left_with(&self) -> Option<Left> {
        let leaving = self.end.leaving.as_ref()?;
        let gone = self.run.stage == Stage::Computing && self.run.locals.values().all(|local| local.gone);
        gone.then_some(Left { killed: leaving.killed, status: leaving.status })
    }

    /// Ends a job that was told to end: when all ranks are gone, or their time is over.
    pub(super) fn guard_leaving(&mut self) {
        let Some(leaving) = self.end.leaving.clone() else { return };
        if self.end.verdict.is_some() || matches!(self.run.stage, Stage::Ending | Stage::Over) {
            return;
        }
        let (grace, name) = (self.config.policy.grace, signal_name(leaving.signal));
        let killed = signal_status(leaving.signal).0;
        // No recovery begins any more: a node that is lost ends the job at once, where that can be agreed.
        let broken = self.config.breach == Breach::CancelledRecovers;
        let fails = !broken && self.store.down.is_none() && self.fails();
        if let Some(all) = self.tree.decree().left.filter(|_| self.tree.is_root() || fails) {
            let (status, reason) = if all.killed {
                (killed, format!("the job was cancelled by {name}"))
            } else {
                (all.status, format!("the job was cancelled by {name}, and its ranks ended by themselves"))
            };
            return self.conclude(Outcome::cancelled(status, reason), true);
        }
        // A record of another agent that had not heard of it yet.
        let recovers = fails || self.run.stage != Stage::Computing;
        if !recovers && self.now < leaving.until {
            return;
        }
        let left =
            self.run.locals.iter().filter(|(_, local)| !local.gone).map(|(process, _)| process.rank.0.to_string());
        let left: Vec<String> = left.collect();
        let reason = if recovers || left.is_empty() {
            format!("the job was cancelled by {name}")
        } else {
            let ranks = if left.len() == 1 { "rank" } else { "ranks" };
            let ranks = format!("{ranks} {}", left.join(", "));
            let since = match leaving.limit {
                Limit::Grace => format!("{grace} later (--ft-grace)"),
                Limit::Signal => "in time".into(),
                Limit::Abort => "after an MPI_Abort".into(),
            };
            format!("the job was cancelled by {name}; {ranks} had not ended {since}: killed")
        };
        self.conclude(Outcome::cancelled(killed, reason), true);
    }

    /// When the time of the ranks is over.
    pub(super) fn leave_deadline(&self) -> Option<Micros> {
        self.end.leaving.as_ref().map(|leaving| leaving.until)
    }
}
