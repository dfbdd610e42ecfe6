//! What an event means for what the agent knows.

use super::{Agent, Event, LocalEnd, Predecessor, Progress, Stage};
use crate::blame::{self, Ended, Exit, Limit, Phase, verdict};
use crate::failure::{Cause, Failure, FailureSet, OwnEnd, Subject};
use crate::ids::{EpochId, Micros, NodeId, Process, Revision, SlotId, Version, WorldId};
use crate::inventory::{Inventory, Level};
use crate::message::PeerMessage;
use crate::record::{EpochRecord, Outcome};
use crate::report::{Notice, PhaseTimes, Report};
use crate::tree::Direction;
use crate::word::Holdings;
use std::sync::Arc;

const SIGKILL: i32 = 9;

impl Agent {
    pub(super) fn take(&mut self, event: Event) {
        match event {
            Event::Start { slots } => self.take_start(slots),
            Event::SlotAdded(slot) => self.take_slot_added(slot),
            Event::SlotUp(slot) => self.take_slot_up(slot),
            Event::SlotDying(slot) => self.take_slot_dying(slot),
            Event::SlotLost(slot) => self.take_slot_lost(slot),
            Event::SlotsSilent(slots) => self.take_silent(slots),
            Event::Started(process) => self.sign(process),
            Event::StartFailed { process, reason, status } => self.take_start_failed(process, reason, status),
            Event::Initializing(process) => self.take_phase(process, Phase::Initializing),
            Event::Joined { process, family } => self.take_joined(process, family),
            Event::Initialized(process) => self.take_phase(process, Phase::Initialized),
            Event::Finalized(process) => self.take_phase(process, Phase::Finalized),
            Event::Dying(process) => self.take_dying(process, None),
            Event::Killed { process, signal } => self.take_dying(process, Some(signal)),
            Event::Seen { process, sight } => {
                if !sight.announced {
                    self.take_dying(process, sight.signal);
                }
            }
            Event::Ended { process, ended } => self.take_ended(process, ended),
            Event::Exited { process, exit, limit } => self.take_exited(process, exit, limit),
            Event::AbortRequested { process, code } => self.take_own_end(process, OwnEnd::Abort(code)),
            Event::Surveyed { dying, leaving } => self.take_survey(&dying, &leaving),
            Event::WorldServerLost(world) => self.take_server_lost(world),
            Event::WorldEmptied(world) => self.take_emptied(world),
            Event::Lingers(world) => {
                if let Some(Some(since)) = self.worlds.get_mut(&world) {
                    *since = self.now;
                }
            }
            Event::Drained(world) => self.run.drained |= self.stage == Stage::Draining && world.next() == self.world(),
            Event::Committed { .. }
            | Event::InventoryTaken { .. }
            | Event::DueAsked { .. }
            | Event::Fetched { .. }
            | Event::NotFetched { .. }
            | Event::RestoreAsked(_)
            | Event::Restored { .. }
            | Event::NotRestored { .. } => self.take_of_checkpoints(event),
            Event::StoreRead { revision, record } => self.take_read(revision, record),
            Event::CasDone { revision } => self.take_written(revision),
            Event::Watched { revision, record } => self.take_watched(revision, record),
            Event::CasLost { revision, record } => {
                self.answered();
                let asked = self.store.written().map(|(asked, _)| asked);
                self.take_key(revision, record, asked);
            }
            Event::CasUnfit { nodes } => {
                self.answered();
                self.store.written();
                self.unfit.extend(nodes);
            }
            Event::StoreUnavailable => self.take_unavailable(),
            Event::Message { from, message } => self.take_message(from, message),
            Event::Timer => {}
            Event::Cancel { signal } => self.take_cancel(signal),
        }
    }

    fn take_of_checkpoints(&mut self, event: Event) {
        match event {
            Event::Committed { process, version, level } => self.take_committed(process, version, level),
            Event::InventoryTaken { epoch, inventory } => self.take_inventory(epoch, &inventory),
            Event::DueAsked { process, cost } => self.take_due_asked(process, cost),
            Event::Fetched { epoch, rank } => self.take_fetched(epoch, rank),
            Event::NotFetched { epoch, rank, from } => self.take_not_fetched(epoch, rank, from),
            Event::RestoreAsked(process) => {
                if let Some(local) = self.run.locals.get_mut(&process) {
                    local.asked = true;
                    self.sign(process);
                }
            }
            Event::Restored { process, version } => self.take_restored(process, version),
            Event::NotRestored { process, reason } => self.take_not_restored(process, reason),
            _ => {}
        }
    }

    fn take_start(&mut self, slots: Vec<SlotId>) {
        self.stage_since = self.now;
        self.began = self.now;
        // Slots of this list that are in no record were asked for by an agent before this one.
        self.slots_since = self.now;
        self.started = true;
        for slot in slots {
            self.slots.entry(slot).or_default();
        }
        self.slots_promised = match self.config.nodes.len() {
            0 | 1 => self.config.world_size,
            _ => self.slots.len() as u32,
        };
        self.store.want();
    }

    fn take_inventory(&mut self, epoch: EpochId, inventory: &Inventory) {
        if epoch == self.epoch() && self.run.holdings.is_none() {
            self.run.inventory_asked = None;
            let here: Vec<_> =
                self.record.iter().flat_map(|record| record.ranks_on(self.me)).map(|(rank, _)| rank).collect();
            self.run.holdings = Some(Holdings::of(inventory, |rank| here.contains(&rank)));
        }
    }

    fn take_slot_up(&mut self, slot: SlotId) {
        if self.lost_slots.contains(&slot) {
            return;
        }
        self.slots.entry(slot).or_default().up = true;
    }

    fn take_slot_added(&mut self, slot: SlotId) {
        self.slots_asked = self.slots_asked.saturating_sub(1);
        if !self.lost_slots.contains(&slot) {
            self.slots.entry(slot).or_default();
        }
    }

    /// Its rank is seen dying before the launcher says that the slot is lost. One death is one failure: what is known is not
    /// proposed before both are.
    fn take_slot_dying(&mut self, slot: SlotId) {
        if self.slots.contains_key(&slot) {
            self.dying_slots.entry(slot).or_insert(self.now);
        }
    }

    fn take_slot_lost(&mut self, slot: SlotId) {
        self.slots.remove(&slot);
        let since = self.dying_slots.remove(&slot);
        if !self.lost_slots.insert(slot) || self.left_with_slot(slot) {
            return;
        }
        // Its rank has died of that, and nobody is left who could say more.
        let rank = self.record.as_ref().and_then(|record| record.placement.rank(slot));
        self.forget_explained(rank);
        self.fail(Subject::Slot(slot), Cause::SlotLost);
        self.noticed_since(since);
    }

    /// What fails was noticed so early already.
    pub(super) fn noticed_since(&mut self, since: Option<Micros>) {
        if let Some((progress, since)) = self.progress.as_mut().zip(since) {
            progress.times.noticed = progress.times.noticed.min(since);
        }
    }

    fn take_restored(&mut self, process: Process, version: Version) {
        let Some(local) = self.run.locals.get_mut(&process) else { return };
        local.restored = true;
        local.refused = None;
        self.sign(process);
        if let Some(noticed) = self.run.denied.take() {
            let (epoch, took) = (self.epoch(), self.now.since(noticed));
            self.report(Report::Notice(Notice::RestoredLate { epoch, version, took }));
        }
    }

    fn take_not_restored(&mut self, process: Process, reason: String) {
        let Some(local) = self.run.locals.get_mut(&process).filter(|local| !local.restored) else { return };
        local.refused = Some(reason.clone());
        self.sign(process);
        if self.run.denied.is_some() {
            let (epoch, rank) = (self.epoch(), process.rank);
            self.report(Report::Notice(Notice::RefusedLate { epoch, rank, reason }));
        }
    }

    /// What a silent shepherd owes is due again when it is heard.
    fn take_silent(&mut self, slots: Vec<SlotId>) {
        self.silent = slots.into_iter().collect();
        self.silent_at = self.now;
        self.slots_since = self.now;
    }

    fn take_start_failed(&mut self, process: Process, reason: String, status: i32) {
        // Who was told to end needs not start.
        let leaves = self.left(process, Exit::Unseen);
        if !leaves && self.run.locals.contains_key(&process) && !self.ended(process.world) {
            self.progress.iter_mut().for_each(|progress| progress.stuck = true);
            let reason = format!("{} cannot be started: {reason}", process.rank);
            self.conclude(Outcome::failed(status, reason), false);
        }
    }

    /// A sign of life of a recovery, for the patience of its report.
    fn sign(&mut self, process: Process) {
        let world = self.world();
        if let Some(progress) = self.progress.as_mut().filter(|_| process.world == world) {
            progress.last_sign = self.now;
        }
    }

    fn take_phase(&mut self, process: Process, phase: Phase) {
        if let Some(local) = self.run.locals.get_mut(&process) {
            local.phase = local.phase.max(phase);
            self.speaks_mpi = true;
            // A process whose futex fired before it was known to be past `MPI_Init` was past it after all.
            let died = local.dying && local.end.is_none() && local.phase == Phase::Initialized;
            self.sign(process);
            if died {
                self.take_dying(process, None);
            }
        }
    }

    /// `signal`: it is known to die of that, wherever it was and whether it calls MPI or not.
    fn take_dying(&mut self, process: Process, signal: Option<i32>) {
        let held = self.holds.iter().any(|hold| hold.process == process);
        let ended = self.ended(process.world);
        let Some(local) = self.run.locals.get_mut(&process) else { return };
        if local.end.is_some() || held || ended || self.leaving.is_some() {
            return;
        }
        local.dying = true;
        if local.phase == Phase::Initialized || signal.is_some() {
            local.end = Some(LocalEnd::Failed);
            let slot = self.record.as_ref().and_then(|record| record.placement.slot(process.rank));
            if slot.is_some_and(|slot| self.lost_slots.contains(&slot)) {
                return;
            }
            // Whose a SIGKILL was is known when it has been waited for.
            let cause = signal.filter(|signal| *signal != SIGKILL).map_or(Cause::Unknown, Cause::Signal);
            self.fail(Subject::Process(process), cause);
        }
    }

    fn take_ended(&mut self, process: Process, ended: Ended) {
        if ended.tells_of_death() {
            self.take_dying(process, None);
        }
        let (exit, limit) = ended.of_rank();
        self.take_exited(process, exit, limit);
    }

    fn take_exited(&mut self, process: Process, exit: Exit, limit: Option<Limit>) {
        let ended = self.ended(process.world);
        let held = self.holds.iter().any(|hold| hold.process == process);
        self.exited.insert(process);
        if self.last_words.is_some_and(|(speaker, _)| speaker == process) {
            self.last_words = None;
        }
        let Some(local) = self.run.locals.get_mut(&process) else {
            return self.cause_known(process, blame::verdict(Phase::Initialized, true, exit, limit));
        };
        local.gone = true;
        let verdict = verdict(local.phase, local.dying, exit, limit);
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

    /// The true cause of a death that has been noted, and perhaps agreed, without one.
    fn cause_known(&mut self, process: Process, verdict: blame::Verdict) {
        let blame::Verdict::Failure(cause) = verdict else { return };
        if self.record.is_none() && cause != Cause::Unknown {
            // A shepherd says again what it said to an agent that is dead; whether that was agreed will be read in a moment.
            self.causes.insert(process, cause);
            return;
        }
        let failure = Failure { subject: Subject::Process(process), cause, node: self.node_of(process) };
        let unknown = |set: &FailureSet| set.of_process(process).is_some_and(|known| known.cause == Cause::Unknown);
        let noted = self.batch.as_ref().is_some_and(|batch| unknown(&batch.failures));
        let agreed = self.record.as_ref().is_some_and(|record| {
            unknown(&record.failures) || record.history.iter().any(|entry| unknown(&entry.failures))
        });
        let told = cause != Cause::Unknown && self.completes_last_block(process, &failure);
        if cause == Cause::Unknown || !(noted || agreed) {
            return;
        }
        if let Some(batch) = self.batch.as_mut().filter(|_| noted) {
            batch.failures.insert(failure);
        }
        if self.causes.insert(process, cause).is_some() || !agreed || told {
            return;
        }
        let episodes = self.progress.iter_mut().flat_map(|progress| &mut progress.episodes);
        match episodes.into_iter().find(|episode| unknown(&episode.failures)) {
            Some(episode) => episode.failures.insert(failure),
            None => self.report(Report::Notice(Notice::CauseKnown { process, sentence: failure.to_string() })),
        }
    }

    /// Where a process of this world, or of one that is remembered, was.
    fn node_of(&self, process: Process) -> NodeId {
        let Some(record) = &self.record else { return self.me };
        let sets = record.history.iter().map(|entry| &entry.failures).chain([&record.failures]);
        let mut known = sets.filter_map(|set| set.of_process(process)).map(|failure| failure.node);
        known.next().unwrap_or(self.me)
    }

    fn take_survey(&mut self, dying: &[Process], leaving: &[Process]) {
        self.looks.under_way = self.looks.under_way.saturating_sub(1);
        for process in leaving {
            if let Some(local) = self.run.locals.get_mut(process) {
                local.leaving = true;
            }
        }
        for process in dying {
            self.take_dying(*process, None);
        }
        // A later survey is on its way: its answer counts for what was noted after this one was asked for.
        if self.looks.under_way > 0 || self.looks.wanted {
            return;
        }
        if let Some(batch) = &mut self.batch {
            batch.surveyed = true;
        }
    }

    /// Processes that are dying or dead, nobody knows why: their exits will say.
    pub(super) fn uncertain(&self) -> bool {
        let uncertain = self.run.locals.values().any(|local| (local.dying || local.leaving) && local.end.is_none());
        uncertain && !self.due(self.uncertain_since, self.config.policy.exit_timeout)
    }

    fn take_server_lost(&mut self, world: WorldId) {
        if world == self.world()
            && !self.ended(world)
            && self.run.locals.values().any(|local| local.end != Some(LocalEnd::Clean))
        {
            self.fail(Subject::Node(self.me), Cause::WorldServerLost);
        }
    }

    fn take_emptied(&mut self, world: WorldId) {
        // A world that was not told to stop may be launching anew at this moment.
        if self.worlds.get(&world).is_some_and(Option::is_some) {
            self.worlds.remove(&world);
            self.slots.values_mut().filter(|slot| slot.world == Some(world)).for_each(|slot| slot.world = None);
        }
    }

    fn take_committed(&mut self, process: Process, version: Version, level: Level) {
        // Before it is released nothing is new, but what is restored may be shipped to another partner.
        let of_epoch = matches!(self.stage, Stage::Parked | Stage::Computing);
        if !of_epoch || !self.run.locals.contains_key(&process) || self.ended(process.world) {
            return;
        }
        // Of what was there before, only what is restored counts.
        let restored =
            |choice: &crate::inventory::Choice| choice.get(&self.config.groups.of(process.rank)).copied().flatten();
        let restored = self.run.choice.as_ref().and_then(restored).map(|stamp| stamp.version);
        if restored.is_some_and(|restored| version < restored) || (self.stage == Stage::Parked && restored.is_none()) {
            return;
        }
        // What is older than what is complete is not told any more, from the next word on.
        let group = self.config.groups.of(process.rank);
        let complete = Level::ALL.map(|level| self.run.complete.get(&(group, level)).copied());
        self.run.ledger.forget(group, complete, &self.config.groups);
        self.run.ledger.commit(group, process.rank, version, level);
    }

    /// Whether this world was told to stop, or is gone altogether: what its processes do is no failure of theirs any more.
    /// (How one ended may be told long after its slot was empty.)
    pub(super) fn ended(&self, world: WorldId) -> bool {
        self.worlds.get(&world).is_none_or(Option::is_some)
    }

    /// Whether this world was told to stop.
    pub(super) fn stopping(&self, world: WorldId) -> bool {
        self.worlds.get(&world).is_some_and(Option::is_some)
    }

    /// A recovery whose world runs has come to its end with what happens now; one whose world was not released yet is
    /// superseded, and goes on.
    pub(super) fn end_recovery(&mut self) {
        if self.stage == Stage::Computing {
            self.report_recovery(false);
        }
    }

    pub(super) fn begin_progress(&mut self) {
        let times = PhaseTimes { noticed: self.now, ..PhaseTimes::default() };
        let fresh = Progress { episodes: Vec::new(), times, last_sign: self.now, stuck: false, waited: false };
        let progress = self.progress.get_or_insert(fresh);
        // A superseded recovery starts over, but was noticed when it was noticed.
        progress.times = PhaseTimes { noticed: progress.times.noticed, ..PhaseTimes::default() };
    }

    fn answered(&mut self) {
        if self.store.answered() {
            self.report(Report::Notice(Notice::StoreBack));
        }
    }

    fn take_read(&mut self, revision: Revision, record: Option<Arc<EpochRecord>>) {
        self.answered();
        let asked = self.store.read(revision);
        let before = self.epoch();
        self.take_key(revision, record, asked);
        if let Some(asked) = asked.filter(|_| before == self.epoch()) {
            self.fence.read(asked);
        }
    }

    /// What the watch says may be older than what this agent's predecessor knew.
    fn take_watched(&mut self, revision: Revision, record: Option<Arc<EpochRecord>>) {
        match record {
            Some(record) => self.adopt(revision, record),
            None => self.store.want(),
        }
    }

    /// What the key is, says the store to one who asked at this time.
    fn take_key(&mut self, revision: Revision, record: Option<Arc<EpochRecord>>, asked: Option<Micros>) {
        match record {
            Some(record) => self.adopt(revision, record),
            // Somebody has removed it: what is agreed is not known any more, and must not be agreed anew from the beginning.
            None if self.knew_record() && asked.is_some_and(|asked| self.store.is_removed(asked)) => {
                let reason = "the job cannot continue, because its record was deleted from the store".to_string();
                self.conclude(Outcome::failed(1, reason), true);
            }
            None => {}
        }
    }

    /// This agent has read a record, or the one before it had.
    fn knew_record(&self) -> bool {
        let before = |predecessor: &Predecessor| predecessor.reported > EpochId(0);
        self.record.is_some() || self.predecessor.as_ref().is_some_and(before)
    }

    fn take_written(&mut self, revision: Revision) {
        self.answered();
        if let Some((_, record)) = self.store.written() {
            self.adopt(revision, record);
        }
    }

    fn take_unavailable(&mut self) {
        if self.store.unavailable(self.now, self.config.policy.store_retry) {
            self.report(Report::Notice(Notice::StoreUnavailable));
        }
    }

    fn take_message(&mut self, from: NodeId, message: PeerMessage) {
        if !self.is_member(from) {
            // Whoever knows less is told: the node that it is out, or this one that more has happened since.
            return match message {
                PeerMessage::Record { revision, record } => self.adopt(revision, record),
                PeerMessage::Heartbeat { epoch, .. } | PeerMessage::AskForRecord { epoch } if epoch < self.epoch() => {
                    self.send_record(from);
                }
                PeerMessage::Heartbeat { epoch, .. } if epoch > self.epoch() => self.ask_for_record(from),
                PeerMessage::Join { epoch, slots } => self.take_join(from, epoch, slots),
                _ => {}
            };
        }
        match message {
            PeerMessage::Heartbeat { .. } => self.take_heartbeat(from, &message),
            PeerMessage::Acknowledge { beat, epoch, still } => {
                self.fence.acknowledged(from, beat, epoch, still, self.now);
            }
            PeerMessage::Heard { epoch } => self.fence.heard(from, epoch, self.now),
            PeerMessage::AskForRecord { epoch } => {
                if epoch < self.epoch() {
                    self.send_record(from);
                }
            }
            PeerMessage::Record { revision, record } => {
                self.fence.knows(from, record.epoch, self.now);
                self.adopt(revision, record);
            }
            PeerMessage::Accuse { epoch, revision, accused } => {
                self.fence.collect(&accused, epoch, revision, self.now);
            }
            PeerMessage::Up { epoch, number, word } => {
                if self.knows_epoch(from, epoch) && self.tree.take_up(from, epoch, number, *word) {
                    self.conclude_for_all();
                    self.send(from, PeerMessage::Received { epoch, direction: Direction::Up, number });
                }
            }
            PeerMessage::Down { epoch, number, decree } => {
                if self.knows_epoch(from, epoch) && self.tree.take_down(from, epoch, number, *decree) {
                    self.send(from, PeerMessage::Received { epoch, direction: Direction::Down, number });
                    self.take_causes();
                }
            }
            PeerMessage::Received { epoch, direction, number } => {
                self.tree.acknowledged(from, epoch, direction, number)
            }
            PeerMessage::Offer { epoch, ranks } => self.take_offer(from, epoch, ranks),
            PeerMessage::OfferNoted { epoch } => self.take_offer_noted(from, epoch),
            PeerMessage::Slots { nodes, slots } => self.take_slots(from, &nodes, &slots),
            PeerMessage::SlotsNoted { nodes } => self.take_slots_noted(from, nodes),
            PeerMessage::Join { epoch, slots } => self.take_join(from, epoch, slots),
            PeerMessage::Relay { origin, to, message } => self.take_relay(from, origin, to, message),
        }
    }

    fn take_relay(&mut self, from: NodeId, origin: NodeId, to: NodeId, message: Box<PeerMessage>) {
        let nested = matches!(*message, PeerMessage::Relay { .. });
        if to == self.me && !nested {
            self.take_message(origin, *message);
        } else if origin == from && self.is_member(to) && !nested {
            self.send(to, PeerMessage::Relay { origin, to, message });
        }
    }

    /// Whether both are in the same epoch; who is behind is helped.
    pub(super) fn knows_epoch(&mut self, from: NodeId, epoch: EpochId) -> bool {
        if epoch > self.epoch() {
            self.ask_for_record(from);
        } else if epoch < self.epoch() {
            self.send_record(from);
        }
        epoch == self.epoch()
    }

    /// True causes that others know.
    pub(super) fn take_causes(&mut self) {
        let causes = self.tree.decree().causes.iter();
        let news: Vec<(Process, Cause)> =
            causes.filter(|(process, _)| !self.causes.contains_key(process)).map(|(p, cause)| (*p, *cause)).collect();
        for (process, cause) in news {
            self.cause_known(process, blame::Verdict::Failure(cause));
        }
    }

    pub(super) fn conclude(&mut self, outcome: Outcome, cancelled: bool) {
        self.changed = true;
        let over = matches!(self.stage, Stage::Ending | Stage::Over);
        if over || self.verdict.as_ref().is_some_and(|verdict| verdict.cancelled || !cancelled) {
            return;
        }
        self.report_last_recovery();
        self.verdict = Some(super::Verdict { outcome, cancelled });
        self.batch = None;
        if cancelled {
            self.last_words = None;
            self.stop_worlds(None);
        }
    }
}
