//! A world that can never be complete: `MPI_Init` returns nowhere before every rank has called it, with an MPI that understands
//! the others', and nobody tells the MPIs that one will not come.

use super::{Agent, LocalEnd, Stage};
use crate::blame::Phase;
use crate::failure::{Cause, Subject};
use crate::ids::Process;
use crate::joined::{Family, Joined};
use crate::record::Outcome;

impl Agent {
    pub(super) fn take_joined(&mut self, process: Process, family: Family) {
        if let Some(local) = self.run.locals.get_mut(&process) {
            local.joined = Some(family);
            self.memory.speaks_mpi = true;
        }
    }

    /// Ranks of this node that have called `MPI_Init`.
    pub(super) fn joined_here(&self) -> Joined {
        self.run.locals.iter().filter_map(|(process, local)| Some((local.joined?, *process))).collect()
    }

    /// Looks, as soon as somebody waits in `MPI_Init`, whether all can come there.
    pub(super) fn guard_incomplete(&mut self) {
        let decree = self.tree.decree();
        self.memory.others_speak_mpi |= !decree.joined.is_empty();
        if decree.joined.is_empty() || decree.finished || self.end.verdict.is_some() || self.end.leaving.is_some() {
            return;
        }
        if !matches!(self.run.stage, Stage::Parked | Stage::Computing) {
            return;
        }
        if let Some(mixed) = decree.joined.mixed().filter(|_| self.tree.is_root() && self.batch.is_none()) {
            return self.conclude_mixed(&mixed);
        }
        let absent = |local: &super::Local| local.end == Some(LocalEnd::Clean) && local.phase == Phase::Launched;
        let absent = self.run.locals.iter_mut().filter(|(_, local)| absent(local) && local.joined.is_none());
        let mut never = Vec::new();
        for (process, local) in absent {
            local.end = Some(LocalEnd::Failed);
            never.push(*process);
        }
        if never.is_empty() || self.take_absence() {
            return;
        }
        for process in never {
            self.fail(Subject::Process(process), Cause::NeverJoined);
        }
    }

    fn conclude_mixed(&mut self, mixed: &[(Process, Family)]) {
        let node = |process: &Process| {
            let record = self.record.as_ref()?;
            record.slots.node(record.placement.slot(process.rank)?)
        };
        let each = mixed.iter().map(|(process, family)| {
            let on = node(process).map(|node| format!(" on {node}")).unwrap_or_default();
            format!("{}{on} uses {family}", process.rank)
        });
        let each: Vec<String> = each.collect();
        let reason = format!("the ranks use MPIs that do not understand each other: {}", each.join(", "));
        self.conclude(Outcome::failed(1, reason), false);
    }
}
