//! Telling peers how far this agent is, and people what happened.

use super::{Agent, Effect, Local, Stage};
use crate::blame::Phase;
use crate::ids::{Micros, NodeId, Rank};
use crate::message::{PeerMessage, Status};
use crate::plan::sentences;
use crate::report::{Recovery, Report};

/// A settled agent repeats its status once in so many heartbeat periods.
const SETTLED_PERIODS: u64 = 10;

impl Agent {
    fn status(&self) -> Status {
        let executing = matches!(self.stage, Stage::Draining | Stage::Parked | Stage::Computing);
        let settled = self.choice.is_some() && self.all_peers(|status| status.chosen);
        Status {
            epoch: self.epoch(),
            slots: if self.record.is_none() { self.own_slots() } else { None },
            ready: executing && self.ring.confirmed(self.now),
            inventory: self.inventory.clone().filter(|_| executing && !settled),
            committed: self.ledger.local().clone(),
            chosen: self.choice.is_some(),
            initialized: self.stage == Stage::Computing && self.initialized(),
            restored: self.stage == Stage::Computing && self.restored(),
            finished: self.finished(),
            left: self.left_with(),
            causes: self.causes.clone(),
        }
    }

    /// Tells the other agents how far this one is: when that changed, and again while anybody may wait for it.
    pub(super) fn guard_status(&mut self) {
        let others = self.others();
        if others.is_empty() || !self.started || self.stage == Stage::Restarted || self.stage == Stage::Over {
            return;
        }
        let status = self.status();
        let changed = self.told.as_ref() != Some(&status);
        if !changed && self.now < self.tell_at {
            return;
        }
        let period = self.config.policy.heartbeat_period;
        let settled = status.restored && self.all_peers(|status| status.restored);
        let repeat = if settled { Micros(period.0 * SETTLED_PERIODS) } else { period };
        self.tell_at = self.now.after(repeat);
        self.announced |= status.slots.is_some();
        for to in others {
            self.emit(Effect::Send { to, message: PeerMessage::Status(status.clone()) });
        }
        self.told = Some(status);
    }

    /// Tells one agent, which seems not to know.
    pub(super) fn tell(&mut self, to: NodeId) {
        if self.stage != Stage::Restarted {
            let status = self.status();
            self.emit(Effect::Send { to, message: PeerMessage::Status(status) });
        }
    }

    fn initialized(&self) -> bool {
        // A program without MPI that has its state back has nothing before it.
        let past = |local: &Local| local.phase >= Phase::Initialized || (local.restored && !self.speaks_mpi);
        self.locals.values().all(|local| local.end.is_some() || past(local))
    }

    /// All ranks of this node that have something to restore have restored it.
    fn restored(&self) -> bool {
        self.choice.is_some() && self.initialized() && self.without_state().is_empty()
    }

    /// Ranks of this node that have something to restore, and have not.
    fn without_state(&self) -> Vec<Rank> {
        let Some(choice) = &self.choice else { return Vec::new() };
        let groups = &self.config.groups;
        let waits = |rank| choice.get(&groups.of(rank)).is_some_and(Option::is_some);
        let without =
            self.locals.iter().filter(|(process, local)| local.end.is_none() && !local.restored && waits(process.rank));
        without.map(|(process, _)| process.rank).collect()
    }

    /// Ranks of this node that were not seen past `MPI_Init`; of a program that was never seen to use MPI that says nothing.
    fn before_init(&self) -> Vec<Rank> {
        let before = |local: &Local| self.speaks_mpi && local.end.is_none() && local.phase < Phase::Initialized;
        self.locals.iter().filter(|(_, local)| before(local)).map(|(process, _)| process.rank).collect()
    }

    /// Reports a recovery when all ranks compute again, or when there has been no sign of it for a while.
    pub(super) fn guard_reports(&mut self) {
        if self.stage != Stage::Computing || self.batch.is_some() || self.verdict.is_some() {
            return;
        }
        let initialized = self.initialized() && self.all_peers(|status| status.initialized);
        let restored = initialized && self.restored() && self.all_peers(|status| status.restored);
        let now = self.now;
        let patience = self.report_patience();
        let Some(progress) = &mut self.progress else { return };
        // Who has ended without it counts as past it, and there may be nobody else.
        if initialized && self.speaks_mpi {
            progress.times.initialized.get_or_insert(now);
        }
        if restored {
            progress.times.restored.get_or_insert(now);
        }
        if restored {
            self.report_recovery(true);
        } else if now.since(progress.last_sign) >= patience {
            let noticed = progress.times.noticed;
            let reports = !progress.episodes.is_empty();
            progress.waited = true;
            self.report_recovery(false);
            self.denied = (reports && !self.taken()).then_some(noticed);
        }
    }

    /// How long a recovery may go without a sign before it is reported as it is.
    pub(super) fn report_patience(&self) -> Micros {
        let policy = &self.config.policy;
        let inside = |local: &Local| local.end.is_none() && local.phase == Phase::Initializing;
        if self.locals.values().any(inside) { policy.init_patience } else { policy.report_patience }
    }

    fn taken(&self) -> bool {
        self.locals.values().any(|local| local.restored)
    }

    fn refused(&self) -> Vec<(Rank, String)> {
        let refused = self.locals.iter().filter_map(|(process, local)| Some((process.rank, local.refused.clone()?)));
        refused.collect()
    }

    /// Reports the recovery that is on its way, if one is agreed: now, or before the next one.
    pub(super) fn report_recovery(&mut self, complete: bool) {
        if let Some(recovery) = self.recovery(complete) {
            self.report(Report::RecoveryDone(recovery));
        }
    }

    /// What there is to report of the recovery that is on its way. It is over with that.
    pub(super) fn recovery(&mut self, complete: bool) -> Option<Recovery> {
        let record = self.record.as_ref()?;
        let progress = self.progress.take_if(|progress| !progress.episodes.is_empty())?;
        let blame = progress
            .episodes
            .iter()
            .flat_map(|episode| sentences(&episode.placement, &episode.failures, &self.config.policy))
            .collect();
        let recovery = Recovery {
            epoch: record.epoch,
            world: record.world,
            episodes: progress.episodes,
            blame,
            restored: self.choice.clone(),
            times: progress.times,
            stuck: progress.stuck,
            waited: progress.waited,
            asked: self.locals.values().any(|local| local.asked),
            taken: self.taken(),
            refused: self.refused(),
            before_init: self.before_init(),
            without_state: self.without_state(),
            complete,
        };
        // One agent speaks for all.
        (record.members().next() == Some(self.me)).then_some(recovery)
    }
}
