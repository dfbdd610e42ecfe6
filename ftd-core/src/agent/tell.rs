//! Telling peers how far this agent is, and people what happened.

use super::block::blame;
use super::telling::Progress;
use super::{Agent, Local, LocalEnd, Stage};
use crate::blame::Phase;
use crate::breach::Breach;
use crate::ids::{Micros, NodeId, Rank};
use crate::message::PeerMessage;
use crate::placement::{Placement, Shift};
use crate::record::EpochRecord;
use crate::report::{Move, Recovery, Report};
use crate::ring;
use crate::tree::{Direction, Sending};
use crate::word::{Decree, NodeWord};
use std::collections::{BTreeMap, BTreeSet};

impl Agent {
    /// What this node has to say in the epoch.
    fn own_word(&self) -> NodeWord {
        let executing = matches!(self.run.stage, Stage::Draining | Stage::Parked | Stage::Computing);
        let computing = self.run.stage == Stage::Computing;
        NodeWord {
            ready: executing && self.fence.confirmed(),
            offered: self.has_offered(),
            reading: self.run.copies.is_reading(),
            holdings: self.run.holdings.clone().filter(|_| executing && self.run.choice.is_none()),
            early: self.run.early,
            chosen: self.has_copies(),
            initialized: computing && self.initialized(),
            restored: computing && self.restored(),
            joined: self.joined_here(),
            finished: self.finished(),
            left: self.left_with(),
            committed: Some(self.run.ledger.committed().clone()),
            due: self.run.questions.told,
            wanted: self.holds.awaited(),
            surveyed: self.holds.answered(),
            dead: self.known_dead(),
            answered: self.answered_signal(),
            causes: self.memory.causes.clone(),
            joiners: self.joining.joiners.clone(),
        }
    }

    /// Says what there is to say, and concludes from everybody's word when this node is the root.
    pub(super) fn speak(&mut self) {
        if self.record.is_none()
            || !self.started()
            || matches!(self.run.stage, Stage::Restarted | Stage::Joining | Stage::Ending | Stage::Over)
        {
            return;
        }
        // What ends the epoch comes to be known in many places.
        self.changed |= self.tree.own().dead != self.known_dead() || self.tree.own().finished != self.finished();
        if !std::mem::take(&mut self.changed) {
            debug_assert_eq!(self.tree.own(), &self.own_word(), "a change was not told");
            return;
        }
        self.tree.say(self.own_word());
        self.conclude_for_all();
    }

    /// The root concludes from everybody's word.
    pub(super) fn conclude_for_all(&mut self) {
        if self.tree.is_root() {
            let (word, before) = (self.tree.word(), self.tree.decree());
            let mut decree = Decree::of(word, before);
            let asked = word.due;
            self.grant_due(asked, &mut decree.due);
            self.tree.decide(decree);
            self.take_causes();
        }
    }

    /// Sends what the neighbours in the tree have not acknowledged.
    pub(super) fn guard_tree(&mut self) {
        let silent = matches!(self.run.stage, Stage::Restarted | Stage::Joining | Stage::Ending | Stage::Over);
        if self.record.is_none() || silent {
            return;
        }
        let (epoch, now) = (self.epoch(), self.now);
        if let Some(Sending { to, number, detour, what }) = self.tree.send_up(now) {
            self.send_by(to, detour, PeerMessage::Up { epoch, number, word: Box::new(what) });
            if self.config.breach == Breach::SaidOnce {
                self.tree.acknowledged(to, epoch, Direction::Up, number);
            }
        }
        for Sending { to, number, detour, what } in self.tree.send_down(now) {
            self.send_by(to, detour, PeerMessage::Down { epoch, number, decree: Box::new(what) });
        }
    }

    /// Sends straight, and with `detour` also through those who observe one of the two.
    pub(super) fn send_by(&mut self, to: NodeId, detour: bool, message: PeerMessage) {
        let detour = detour && self.config.breach != Breach::NoDetour;
        if detour && let Some(record) = self.record.clone() {
            let theirs = ring::observers(&record.nodes, to, record.terms.observers as usize);
            let mut through: BTreeSet<NodeId> = self.fence.observers().chain(theirs).collect();
            through.retain(|node| *node != to && *node != self.me);
            let origin = self.me;
            for node in through {
                let message = Box::new(message.clone());
                self.send(node, PeerMessage::Relay { origin, to, message });
            }
        }
        self.send(to, message);
    }

    fn initialized(&self) -> bool {
        // A program without MPI that has its state back has nothing before it.
        let past = |local: &Local| local.phase >= Phase::Initialized || (local.restored && !self.memory.speaks_mpi);
        self.run.locals.values().all(|local| local.end == Some(LocalEnd::Clean) || past(local))
    }

    /// All ranks of this node that have something to restore have restored it.
    fn restored(&self) -> bool {
        self.run.choice.is_some() && self.initialized() && self.without_state().is_empty()
    }

    /// Ranks of this node that have something to restore, and have not.
    fn without_state(&self) -> Vec<Rank> {
        let Some(choice) = &self.run.choice else { return Vec::new() };
        let groups = &self.config.groups;
        let waits = |rank| choice.get(&groups.of(rank)).is_some_and(Option::is_some);
        let without = self
            .run
            .locals
            .iter()
            .filter(|(process, local)| local.end.is_none() && !local.restored && waits(process.rank));
        without.map(|(process, _)| process.rank).collect()
    }

    /// Ranks of this node that were not seen past `MPI_Init`; of a program that was never seen to use MPI that says nothing.
    pub(super) fn before_init(&self) -> Vec<Rank> {
        self.short_of_init(|end| end.is_none())
    }

    /// … with these ends.
    fn short_of_init(&self, of: impl Fn(Option<LocalEnd>) -> bool) -> Vec<Rank> {
        let short = |local: &Local| self.memory.speaks_mpi && of(local.end) && local.phase < Phase::Initialized;
        self.run.locals.iter().filter(|(_, local)| short(local)).map(|(process, _)| process.rank).collect()
    }

    /// Reports a recovery when all ranks compute again, or when there has been no sign of it for a while.
    pub(super) fn guard_reports(&mut self) {
        if self.run.stage != Stage::Computing || self.batch.is_some() || self.end.verdict.is_some() {
            return;
        }
        if self.telling.progress.is_none() {
            return;
        }
        let initialized = self.tree.decree().initialized && self.initialized();
        let restored = initialized && self.restored() && self.tree.decree().restored;
        let (now, computes) = (self.now, self.gives_no_sign());
        let patience = self.report_patience();
        let Some(progress) = &mut self.telling.progress else { return };
        // Who has ended without it counts as past it, and there may be nobody else.
        if initialized && self.memory.speaks_mpi && progress.times.initialized.is_none() {
            (progress.times.initialized, progress.last_sign) = (Some(now), now);
        }
        // Who gives no sign has computed since the release.
        if restored && !computes {
            progress.times.restored.get_or_insert(now);
        }
        if restored {
            self.report_recovery(true);
        } else if now.since(progress.last_sign) >= patience && !self.telling.stopped {
            let noticed = progress.times.noticed;
            let reports = !progress.episodes.is_empty();
            progress.waited = true;
            self.report_recovery(false);
            self.run.denied = (reports && !self.taken()).then_some(noticed);
        }
    }

    /// Nothing was ever seen of an MPI, in no epoch, and there is nothing to restore that a rank could take back.
    pub(super) fn gives_no_sign(&self) -> bool {
        let nothing = self.run.choice.as_ref().is_some_and(|choice| choice.values().all(Option::is_none));
        nothing && self.batch.is_none() && !self.memory.speaks_mpi && !self.memory.others_speak_mpi
    }

    /// How long a recovery may go without a sign before it is reported as it is.
    pub(super) fn report_patience(&self) -> Micros {
        let policy = &self.config.policy;
        let inside = |local: &Local| local.end.is_none() && local.phase == Phase::Initializing;
        let waits = self.run.locals.values().any(inside) || self.is_ahead();
        if waits { policy.init_patience } else { policy.report_patience }
    }

    /// What this node's ranks have behind them those of other nodes have before them. They are on their way there, and of how far they are
    /// nothing is heard before all of them have it behind them.
    fn is_ahead(&self) -> bool {
        let decree = self.tree.decree();
        let uses_mpi = self.memory.speaks_mpi && !self.run.locals.is_empty();
        let through = uses_mpi && self.initialized() && !decree.initialized;
        through || self.taken() && self.restored() && !decree.restored
    }

    fn taken(&self) -> bool {
        self.run.locals.values().any(|local| local.restored)
    }

    fn refused(&self) -> Vec<(Rank, String)> {
        let refused =
            self.run.locals.iter().filter_map(|(process, local)| Some((process.rank, local.refused.clone()?)));
        refused.collect()
    }

    /// Reports the recovery that is on its way, if one is agreed: now, or before the next one.
    pub(super) fn report_recovery(&mut self, complete: bool) {
        if let Some(recovery) = self.recovery(complete).map(Box::new) {
            self.report(match self.tells_people() {
                true => Report::RecoveryDone(recovery),
                false => Report::RecoveryDoneElsewhere(recovery),
            });
        }
    }

    /// A recovery whose world runs has come to its end with what happens now; one whose world was not released yet is
    /// superseded, and goes on.
    pub(super) fn end_recovery(&mut self) {
        if self.run.stage == Stage::Computing {
            self.interrupt_recovery();
            self.report_recovery(false);
        }
    }

    /// What happens now comes before the ranks were known to compute: until now they did not.
    pub(super) fn interrupt_recovery(&mut self) {
        let (now, computes) = (self.now, self.run.stage == Stage::Computing && self.gives_no_sign());
        if let Some(progress) = self.telling.progress.as_mut().filter(|progress| !progress.stuck && !computes) {
            progress.times.interrupted = Some(now);
        }
    }

    /// One agent speaks for all.
    pub fn tells_people(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.members().next() == Some(self.me))
    }

    /// What there is to report of the recovery that is on its way. It is over with that.
    pub(super) fn recovery(&mut self, complete: bool) -> Option<Recovery> {
        self.record.as_ref()?;
        let progress = self.telling.progress.take_if(|progress| !progress.episodes.is_empty())?;
        self.recovery_of(progress, complete)
    }

    /// The recovery from which ranks that give no sign compute already, as it would be reported if nothing more came.
    pub fn unreported(&self) -> Option<Recovery> {
        let progress = self.telling.progress.as_ref().filter(|progress| !progress.episodes.is_empty())?;
        let computes = self.run.stage == Stage::Computing && self.gives_no_sign();
        computes.then(|| self.recovery_of(progress.clone(), false)).flatten()
    }

    fn recovery_of(&self, progress: Progress, complete: bool) -> Option<Recovery> {
        let record = self.record.as_ref()?;
        let blame = blame(&progress.episodes, &self.config.policy);
        let moved = progress.episodes.first().map(|episode| moves(record, &episode.placement)).unwrap_or_default();
        Some(Recovery {
            epoch: record.epoch,
            world: record.world,
            episodes: progress.episodes,
            blame,
            restored: self.run.choice.clone(),
            moved,
            times: progress.times,
            stuck: progress.stuck,
            waited: progress.waited,
            asked: self.run.locals.values().any(|local| local.asked),
            taken: self.taken(),
            refused: self.refused(),
            before_init: self.short_of_init(|end| end != Some(LocalEnd::Clean)),
            without_state: self.without_state(),
            complete,
        })
    }
}

/// Who is on another node than they were.
fn moves(record: &EpochRecord, before: &Placement) -> Vec<Move> {
    let mut moved: BTreeMap<(NodeId, NodeId, bool), Vec<Rank>> = BTreeMap::new();
    for (rank, was, slot) in record.placement.shifts(before).into_iter().flat_map(Shift::ranks) {
        let from = was.and_then(|slot| record.slots.node(slot));
        if let Some((from, to)) = from.zip(record.slots.node(slot)).filter(|(from, to)| from != to) {
            moved.entry((from, to, slot.is_beyond())).or_default().push(rank);
        }
    }
    moved.into_iter().map(|((from, to, beyond), ranks)| Move { ranks, from, to, beyond }).collect()
}
