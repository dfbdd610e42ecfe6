//! The driver around the agent: effects become acts, acts become events. This file and `invariants` alone know the
//! interface of `ftd_core` in detail.

use crate::application::{Phase, Proc};
use crate::breach::Breach;
use crate::fetches::Fetching;
use crate::invariants::Violation;
use crate::net::Kind;
use crate::node::Command;
use crate::setup::{SECOND, Setup};
use crate::world::{Act, Packet, World};
use ftd_core::agent::Stage;
use ftd_core::fence::Lease;
use ftd_core::{
    Agent, Effect, EpochId, EpochRecord, Event, GroupId, Groups, JobConfig, Level, Members, Micros, NodeId, Notice,
    Outcome, Patience, PeerMessage, Predecessor, Process, Report, Revision, SlotId, Standing,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Watches are backed by a linearizable re-read (DESIGN §10).
const REREAD: u64 = 2 * SECOND;

/// … more seldom while all observers answer: they would know.
const SELDOM: u64 = 10 * SECOND;

/// A node's lease in the store (its daemon's, not the fence's) lasts so long after its death.
const LEASE: u64 = SECOND;

/// No more machines than this; sets of them are bits of a number.
const MOST_MACHINES: usize = 60;

/// What is to be written to the store.
#[derive(Debug)]
pub struct Write {
    expected: Revision,
    leases: Vec<NodeId>,
    record: Arc<EpochRecord>,
}

/// Before its first linearizable read an agent's watch may show the past.
const STALE_WATCH: (u64, u64) = (10, 300);

/// What the agents of the job have in common.
pub fn job(setup: &Setup) -> JobConfig {
    let groups = match setup.groups {
        0 | 1 => Groups::one(),
        _ => Groups::coloured((0..setup.ranks).map(|rank| GroupId(setup.group(rank))).collect()),
    };
    JobConfig {
        nodes: Members::of((0..setup.nodes).map(NodeId)),
        world_size: setup.ranks,
        mode: setup.mode,
        policy: setup.policy.clone(),
        renewable_slots: setup.renewable,
        groups,
        safe: if setup.partners > 0 { Level::Partner } else { Level::Own },
        breach: Breach::rule(setup.breach),
    }
}

/// The nodes of the job as this agent knows it.
pub fn members(agent: Option<&Agent>) -> Members {
    agent.and_then(Agent::record).map(|record| record.nodes.clone()).unwrap_or_default()
}

/// The observers of `node` in a job of these members.
pub fn observers(setup: &Setup, node: usize) -> Vec<usize> {
    let members = Members::of((0..setup.nodes).map(NodeId));
    let observers = ftd_core::ring::observers(&members, NodeId(node as u32), setup.policy.observers);
    observers.into_iter().map(|node| node.0 as usize).collect()
}

/// The nodes that `joiner` will observe when it has come into the job.
pub fn observed_by_joiner(setup: &Setup, joiner: usize) -> Vec<usize> {
    let members = ftd_core::Members::of((0..=joiner as u32).map(NodeId));
    let observed = ftd_core::ring::observed(&members, NodeId(joiner as u32), setup.policy.observers);
    observed.into_iter().map(|node| node.0 as usize).collect()
}

/// When the agent's lease ends, on its clock.
fn lease(agent: &Agent) -> Option<Micros> {
    match agent.fence().lease() {
        Lease::None => Some(Micros(0)),
        Lease::Until(end) => Some(end),
        Lease::Endless => Some(Micros(u64::MAX)),
    }
}

/// About how many bytes a message has on the wire.
pub fn size(message: &PeerMessage) -> u64 {
    let many = |count: usize, each: u64| count as u64 * each;
    match message {
        PeerMessage::Up { word, .. } => {
            let committed: u64 = word.committed.iter().flatten().map(|(_, versions)| 5 + many(versions.len(), 8)).sum();
            let holdings = word.holdings.as_ref().map_or(0, ftd_core::holdings::Holdings::size);
            32 + holdings + committed + many(word.causes.len(), 20)
        }
        PeerMessage::Down { decree, .. } => {
            let restored = decree.restoration.as_ref();
            let groups = restored.map_or(0, |restored| many(restored.choice.len() + restored.safe.len(), 20));
            32 + groups + many(decree.complete.len(), 13) + many(decree.causes.len(), 20)
        }
        PeerMessage::Record { record, .. } => record_size(record),
        PeerMessage::Slots { nodes, slots } => {
            many(nodes.runs().len() + slots.homes().len() + slots.states().len(), RUN)
        }
        PeerMessage::Offer { copies, .. } => {
            24 + copies.values().map(|ranks| 16 + many(ranks.runs().len(), 8)).sum::<u64>()
        }
        PeerMessage::Accuse { accused, .. } => 24 + many(accused.len(), 4),
        PeerMessage::Relay { message, .. } => 8 + size(message),
        _ => 24,
    }
}

/// About as many a run has: three or four numbers.
const RUN: u64 = 14;

fn record_size(record: &EpochRecord) -> u64 {
    let runs = record.placement.runs().len() + record.slots.homes().len() + record.slots.states().len();
    let sets = record.history.iter().map(|entry| &entry.failures).chain([&record.failures]);
    let failures: usize = sets.map(|set| set.failures().len() + set.collateral().len()).sum();
    64 + (runs + record.nodes.runs().len()) as u64 * RUN + 20 * (failures + record.history.len()) as u64
}

/// What it is as a datagram.
fn kind(message: &PeerMessage) -> Kind {
    match message {
        PeerMessage::Heartbeat { .. } | PeerMessage::Acknowledge { .. } => Kind::Beat,
        PeerMessage::Heard { .. }
        | PeerMessage::AskForRecord { .. }
        | PeerMessage::Received { .. }
        | PeerMessage::SlotsNoted { .. }
        | PeerMessage::StoreMissed { .. }
        | PeerMessage::OfferNoted { .. } => Kind::Small,
        _ => Kind::Large,
    }
}

/// Whether the agent executes the newest epoch: its world is released.
fn computes(agent: &Agent, record: &EpochRecord) -> bool {
    agent.stage() == Stage::Computing && agent.record().is_some_and(|own| own.epoch == record.epoch)
}

impl World {
    /// What only concerns agents.
    pub fn drive(&mut self, act: Act) {
        match act {
            Act::Tell { node, incarnation, event } if self.is(node, incarnation) => self.tell(node, *event),
            Act::Wake { node, incarnation, at } if self.is(node, incarnation) => self.wake(node, at),
            Act::StoreAnswer { node, request, event } => self.answered(node, request, *event),
            Act::StoreDeadline { node, request } => self.answered(node, request, Event::StoreUnavailable),
            Act::Watch { node, incarnation, revision, value } if self.is(node, incarnation) => {
                // Changes soon after one another come as one.
                if revision < self.machines[node].watched && self.rng.chance(300) {
                    return;
                }
                self.tell(node, Event::Watched { revision: Revision(revision), record: value });
            }
            Act::Reread { node, incarnation } if self.is(node, incarnation) => self.reread(node, incarnation),
            Act::StartAgent { node, incarnation } => self.start_agent(node, incarnation),
            Act::DialIn { node, incarnation, slot } if self.is(node, incarnation) => {
                self.dial_in(node, incarnation, slot);
            }
            Act::StoreLands { node, request, incarnation, write, answer } => {
                self.at_store(node, request, incarnation, write, answer);
            }
            Act::Empty { node, incarnation, world } if self.is(node, incarnation) => {
                self.look_if_empty(node, incarnation, world);
            }
            Act::Inventory { node, incarnation, epoch } if self.is(node, incarnation) => {
                self.take_inventory(node, epoch);
            }
            Act::NewSlot { node, incarnation, named } if self.is(node, incarnation) => self.new_slot(node, named),
            _ => {}
        }
    }

    fn wake(&mut self, node: usize, at: u64) {
        if self.machines[node].wake.take_if(|due| *due == at).is_some() {
            self.tell(node, Event::Timer);
        }
    }

    /// What comes first counts: the store's answer or the deadline.
    fn answered(&mut self, node: usize, request: u64, event: Event) {
        if self.machines[node].asked.take_if(|asked| *asked == request).is_some() {
            self.tell(node, event);
        }
    }

    fn is(&self, node: usize, incarnation: u64) -> bool {
        self.machines[node].incarnation == incarnation
    }

    fn start_agent(&mut self, node: usize, incarnation: u64) {
        if !self.is(node, incarnation) || self.machines[node].ended.is_some() {
            return;
        }
        // A machine that was off is on again, with new slots and nothing in its memory.
        if !self.machines[node].alive {
            self.machines[node].alive = true;
            let slots = self.setup.slots;
            self.machines[node].slots = (self.next_slot..self.next_slot + slots).map(SlotId).collect();
            self.next_slot += slots;
        }
        self.machines[node].since = self.now;
        let config = JobConfig { policy: self.setup.policy_of(node), ..self.job.clone() };
        let machine = &mut self.machines[node];
        let predecessor = machine.predecessor.map(|(died, reported)| (Micros(died + machine.offset), reported));
        let predecessor = predecessor.map(|(failed, reported)| Predecessor {
            failed,
            reported,
            speaks_mpi: true,
            untold: BTreeSet::new(),
            progress: None,
        });
        machine.agent = Some(Agent::new(NodeId(node as u32), config).incarnation(incarnation).succeeding(predecessor));
        let slots: Vec<SlotId> = machine.slots.iter().copied().collect();
        self.note(|| format!("n{node} starts agent {incarnation}"));
        self.tell(node, Event::Start { slots: slots.clone() });
        for slot in slots {
            let delay = self.rng.range(1, 300);
            self.push(delay, Act::DialIn { node, incarnation, slot });
        }
        if let Some((signal, _)) = self.cancelled {
            self.local(node, Event::Cancel { signal });
        }
        if self.setup.stale_watch && self.rng.chance(700) {
            let (revision, value) = self.store.stale();
            let delay = self.rng.range(STALE_WATCH.0, STALE_WATCH.1);
            self.push(delay, Act::Watch { node, incarnation, revision, value });
        }
        self.push(REREAD, Act::Reread { node, incarnation });
    }

    /// Shepherds dial in when nothing runs below them any more.
    fn dial_in(&mut self, node: usize, incarnation: u64, slot: SlotId) {
        if self.ranks.of(&self.machines[node]).any(|(_, proc)| proc.slot == slot) {
            return self.push(500, Act::DialIn { node, incarnation, slot });
        }
        if self.machines[node].slots.contains(&slot) {
            self.tell(node, Event::SlotUp(slot));
        }
    }

    fn new_slot(&mut self, node: usize, named: Option<SlotId>) {
        let slot = named.unwrap_or(SlotId(self.next_slot));
        self.next_slot += u32::from(named.is_none());
        self.machines[node].slots.insert(slot);
        self.local(node, Event::SlotAdded(slot));
        self.local(node, Event::SlotUp(slot));
    }

    /// A slot is empty when nothing runs there any more; how it ended may be told much later.
    fn look_if_empty(&mut self, node: usize, incarnation: u64, world: ftd_core::WorldId) {
        let reaped = self.rng.chance(300);
        let of_world = |proc: &Proc| proc.name.world == world && (reaped || proc.dead.is_none());
        let busy = self.ranks.of(&self.machines[node]).any(|(_, proc)| of_world(proc));
        if busy && self.setup.breach != Some(Breach::EarlyEmptied) {
            let delay = self.rng.range(50, 300);
            return self.push(delay, Act::Empty { node, incarnation, world });
        }
        self.local(node, Event::WorldEmptied(world));
    }

    /// An event of the own node, a little later.
    pub fn local(&mut self, node: usize, event: Event) {
        let incarnation = self.machines[node].incarnation;
        let delay = self.rng.range(1, 300);
        self.push(delay, Act::Tell { node, incarnation, event: Box::new(event) });
    }

    /// One step of an agent.
    pub fn tell(&mut self, node: usize, event: Event) {
        let machine = &mut self.machines[node];
        let now = Micros(self.now + machine.offset);
        if machine.ended.is_some() {
            return;
        }
        let Some(agent) = machine.agent.as_mut() else { return };
        if self.history.wanted() && !is_chatter(&event) {
            self.history.note(self.now, || format!("n{node} <- {event:?}"));
        }
        if let Some(meter) = &mut self.meter {
            meter.hears(node, now, &event);
        }
        let before = agent.record().map(|record| record.epoch);
        let effects = agent.step(now, event);
        let known = agent.record().map(|record| record.epoch).filter(|_| before.is_some());
        let runs = agent.fence().lease().runs(now);
        let missed = if agent.rested() { agent.slept_through() } else { Vec::new() };
        let stands = agent.paused() && agent.stage() == Stage::Computing && runs;
        let lease = lease(agent).map(|until| until.0.saturating_sub(machine.offset));
        if let Some(meter) = &mut self.meter {
            meter.wants(node, &effects);
        }
        if let Some(epoch) = known.filter(|epoch| Some(*epoch) > before) {
            self.check_told(node, epoch);
        }
        if !missed.is_empty() {
            self.violated(Violation::Order(format!("n{node} rests, and has something to do: {missed:?}")));
        }
        if stands {
            self.violated(Violation::Order(format!("n{node} stands still although its lease runs")));
        }
        if !runs && effects.iter().any(|effect| matches!(effect, Effect::Release(_))) {
            self.violated(Violation::Order(format!("n{node} releases its world without a lease")));
        }
        for effect in effects {
            self.effect(node, effect);
        }
        let written = !matches!(self.setup.breach, Some(Breach::NoPause | Breach::NoTimers));
        if let Some(until) = lease.filter(|_| written) {
            self.write_lease(node, until);
        }
    }

    #[allow(clippy::too_many_lines, reason = "a table: one entry for each effect")]
    fn effect(&mut self, node: usize, effect: Effect) {
        if self.history.wanted() && !matches!(effect, Effect::WakeAt(_) | Effect::Send { .. } | Effect::ReadStore) {
            self.history.note(self.now, || format!("n{node} -> {effect:?}"));
        }
        let incarnation = self.machines[node].incarnation;
        match effect {
            Effect::ReadStore => self.ask_store(node, None),
            Effect::Cas { expected, leases, record } => self.ask_store(node, Some(Write { expected, leases, record })),
            Effect::Send { to, message } => {
                self.check_offer(node, to, &message);
                let kind = kind(&message);
                let packet = Packet::Peer { from: NodeId(node as u32), message: Box::new(message) };
                self.send_datagram(node, to.0 as usize, kind, &packet);
            }
            Effect::WakeAt(at) => {
                let at = at.0.saturating_sub(self.machines[node].offset);
                self.machines[node].wake = Some(at);
                self.queue.push(at.max(self.now), Act::Wake { node, incarnation, at });
            }
            Effect::Launch { epoch, processes, parked, .. } => self.launch(node, epoch, processes, parked),
            Effect::Release(world) => self.command(node, Command::Release(world)),
            Effect::StopWorld(world) => self.command(node, Command::Stop(world)),
            Effect::Pause if self.setup.breach == Some(Breach::NoPause) => {}
            Effect::Pause => self.command(node, Command::Pause),
            Effect::Continue => self.command(node, Command::Continue),
            Effect::Survey => self.survey(node),
            Effect::Drain(world) => self.local(node, Event::Drained(world)),
            Effect::TakeInventory { epoch, world } => {
                self.machines[node].frozen = epoch;
                self.machines[node].fetches.clear();
                self.check_frozen(node, world);
                let (slow, up_to) = self.setup.verifying;
                let slow = slow > 0 && self.rng.chance(slow);
                let delay = self.rng.range(50, if slow { up_to } else { 5000 });
                self.push(delay, Act::Inventory { node, incarnation, epoch });
            }
            Effect::ListVerified { epoch } => self.list_verified((node, incarnation), epoch),
            Effect::Restore { epoch, group, stamp, away: _ } => self.restore(node, epoch, group, stamp),
            Effect::Fetch { epoch, rank, stamp, from } => {
                self.fetch(node, Fetching { epoch, rank, stamp, from: from.0 as usize });
            }
            Effect::Keep { group, stamps } => self.keep(node, group, &stamps),
            Effect::Retire { group, complete, level: _ } => self.retire(node, group, complete),
            Effect::AnswerDue { process, yes } => self.answer_due(process, yes),
            Effect::Proceed { process, .. } => self.abort_goes_on(process),
            Effect::Signal { signal } => self.signal(node, None, signal),
            Effect::PassOn { slot, signal, patience } => {
                if patience == Patience::Caught {
                    self.local(node, Event::Repeated { signal });
                }
                self.signal(node, Some(slot), signal);
            }
            Effect::Leave => {}
            Effect::NeedSlot => {
                let delay = self.rng.range(500, 10_000);
                self.push(delay, Act::NewSlot { node, incarnation, named: None });
            }
            Effect::MakeSlot(slot) => {
                let delay = self.rng.range(500, 10_000);
                self.push(delay, Act::NewSlot { node, incarnation, named: Some(slot) });
            }
            Effect::Report(Report::RecoveryDone(done)) => self.checks.reports.push(*done),
            Effect::Report(Report::Notice(Notice::NotVerified { unread, restored: Some(_), .. })) => {
                self.check_left_out((node, incarnation), &unread);
            }
            Effect::Report(Report::Notice(Notice::StoreUnavailable)) => {
                self.checks.storeless.insert(node);
            }
            Effect::Report(Report::Notice(Notice::StoreBack)) => {
                self.checks.storeless.remove(&node);
            }
            Effect::Report(_) => {}
            Effect::End { status, reason, standing } => {
                let end = Outcome { status, reason };
                self.check_end(node, &end, standing);
                self.machines[node].ended = Some((end, standing));
                if self.setup.breach == Some(Breach::KeyRemoved) {
                    self.store.delete();
                }
                let goes_on = self.store.value().is_some_and(|record| record.outcome.is_none());
                if standing == Standing::LeftOut && goes_on && self.setup.returns && self.machines.len() < MOST_MACHINES
                {
                    let (delay, place) = (self.rng.range(1000, 200_000), self.machines[node].place);
                    self.push(delay, Act::Return { place });
                }
                self.last_sign = self.now;
            }
        }
    }

    fn launch(&mut self, node: usize, epoch: EpochId, processes: Vec<(Process, SlotId)>, parked: bool) {
        // Shepherds take everything in order.
        self.shepherds(node);
        for (name, slot) in processes {
            // Without its shepherd nothing is launched; the agent will hear of it.
            if self.machines[node].slots.contains(&slot) {
                self.check_launch(node, name, slot);
                self.fork(node, name, slot, epoch, parked);
            }
        }
    }

    /// Whoever has been waited for has no wait status to look at any more.
    fn survey(&mut self, node: usize) {
        let (mut dying, mut leaving) = (Vec::new(), Vec::new());
        for (_, proc) in self.ranks.of(&self.machines[node]).filter(|(_, proc)| proc.dead.is_some()) {
            if proc.own_exit || proc.reaped { &mut leaving } else { &mut dying }.push(proc.name);
        }
        self.local(node, Event::Surveyed { dying, leaving });
    }

    // ---- the store

    fn ask_store(&mut self, node: usize, write: Option<Write>) {
        self.requests += 1;
        let (request, incarnation) = (self.requests, self.machines[node].incarnation);
        self.machines[node].asked = Some(request);
        let course = self.store.course(self.machines[node].place, write.is_some(), self.now);
        if let Some(after) = course.lands {
            let answer = course.answer;
            self.push(after, Act::StoreLands { node, request: Some(request), incarnation, write, answer });
        }
        self.push(self.setup.deadline, Act::StoreDeadline { node, request });
    }

    /// A read behind the agent's back.
    fn reread(&mut self, node: usize, incarnation: u64) {
        self.push(REREAD, Act::Reread { node, incarnation });
        let machine = &mut self.machines[node];
        let told = machine.agent.as_ref().is_some_and(Agent::hears);
        if told && self.now < machine.reread_at + SELDOM {
            return;
        }
        machine.reread_at = self.now;
        let course = self.store.course(self.machines[node].place, false, self.now);
        if let (Some(after), Some(_)) = (course.lands, course.answer) {
            let answer = course.answer;
            self.push(after, Act::StoreLands { node, request: None, incarnation, write: None, answer });
        }
    }

    fn at_store(
        &mut self,
        node: usize,
        request: Option<u64>,
        incarnation: u64,
        write: Option<Write>,
        answer: Option<u64>,
    ) {
        let event = match write {
            Some(write) => self.write(node, write),
            None => {
                let (revision, value) = self.store.read();
                match request {
                    Some(_) => Event::StoreRead { revision: Revision(revision), record: value },
                    None => Event::Watched { revision: Revision(revision), record: value },
                }
            }
        };
        let Some(after) = answer else { return };
        let event = Box::new(event);
        match request {
            Some(request) => self.push(after, Act::StoreAnswer { node, request, event }),
            None => self.push(after, Act::Tell { node, incarnation, event }),
        }
    }

    /// Whether its daemon has been there lately, and has renewed the lease.
    pub fn holds_lease(&self, node: NodeId) -> bool {
        let machine = &self.machines[node.0 as usize];
        let lives = machine.alive || machine.crashed_at.is_none_or(|at| self.now <= at + LEASE);
        lives && machine.lapsed_until <= self.now
    }

    fn write(&mut self, node: usize, write: Write) -> Event {
        let Write { expected, leases, record } = write;
        let unfit: Vec<NodeId> = leases.into_iter().filter(|node| !self.holds_lease(*node)).collect();
        if !unfit.is_empty() && expected.0 == self.store.read().0 {
            return Event::CasUnfit { nodes: unfit };
        }
        let before = self.store.value().cloned();
        let blind = self.setup.breach == Some(Breach::BlindStore);
        match self.store.swap(expected.0, record.clone(), blind) {
            Some(revision) => {
                self.note(|| {
                    let out = record.outcome.as_ref().map(|outcome| format!(", the job's end: {outcome:?}"));
                    let (failures, out) = (&record.failures, out.unwrap_or_default());
                    format!(
                        "store: revision {revision} by n{node}: {}, {}: {failures}{out}",
                        record.epoch, record.world
                    )
                });
                self.check_written(node, before.as_deref(), &record);
                self.tell_watches(revision, &record);
                Event::CasDone { revision: Revision(revision) }
            }
            None => {
                let (revision, record) = self.store.read();
                Event::CasLost { revision: Revision(revision), record }
            }
        }
    }

    fn tell_watches(&mut self, revision: u64, record: &Arc<EpochRecord>) {
        for node in 0..self.machines.len() {
            let incarnation = self.machines[node].incarnation;
            let after = self.store.watch(self.machines[node].place, self.now).filter(|_| self.machines[node].alive);
            if let Some(after) = after {
                let value = Some(record.clone());
                self.machines[node].watched = revision;
                self.push(after, Act::Watch { node, incarnation, revision, value });
            }
        }
    }

    // ---- what is seen from outside

    /// All ranks of the newest epoch compute, or are through.
    pub fn computing(&self) -> bool {
        let Some(record) = self.store.value().filter(|record| record.outcome.is_none()) else { return false };
        let executes = |node: NodeId| {
            let agent = self.machines[node.0 as usize].agent.as_ref();
            agent.is_some_and(|agent| computes(agent, record))
        };
        let ready = |process| {
            let computes = |id| {
                let proc = self.ranks.get(id);
                proc.dead.is_none() && proc.initialized && proc.phase != Phase::Restoring
            };
            self.ranks.finished.contains(&process) || self.ranks.named(process).is_some_and(computes)
        };
        record.members().all(executes) && record.processes().all(|(process, _)| ready(process))
    }

    /// Whether a node is not in the job: left out, or not in yet.
    pub fn is_out(&self, node: usize) -> bool {
        self.store.value().is_some_and(|record| !record.is_member(NodeId(node as u32)))
    }
}

fn is_chatter(event: &Event) -> bool {
    let word = |message: &PeerMessage| {
        matches!(
            message,
            PeerMessage::Heartbeat { .. } | PeerMessage::Acknowledge { .. } | PeerMessage::Received { .. }
        )
    };
    matches!(event, Event::Message { message, .. } if word(message)) || *event == Event::Timer
}
