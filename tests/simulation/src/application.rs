//! The program: ranks that need each other. Step n + 1 of a rank needs what its neighbours had after step n, sent over the
//! network, so that a cut stalls it, a dead peer makes it hang or abort, and a wrong state is seen in the result.

use crate::invariants::Violation;
use crate::node::Machine;
use crate::rng::mix;
use crate::setup::{Setup, Temper};
use crate::world::{Act, Packet, World};
use ftd_core::{EpochId, Event, Exit, GroupId, Micros, OwnEnd, Process, Rank, SlotId, Stamp, Version, WorldId};
use std::collections::{BTreeMap, BTreeSet};

/// A process, whichever agent launched it.
pub type ProcId = usize;

/// What is computed, and what has to come out.
pub struct Program {
    neighbours: Vec<Vec<u32>>,
    /// Per step the value of each rank, as far as anybody wanted to know.
    truth: Vec<Vec<u64>>,
    steps: u32,
}

impl Program {
    pub fn new(setup: &Setup) -> Self {
        let neighbours = (0..setup.ranks).map(|rank| neighbours(setup, rank)).collect();
        let first = (0..setup.ranks).map(|rank| mix(u64::from(rank) + 1)).collect();
        Program { neighbours, truth: vec![first], steps: setup.steps }
    }

    /// What a rank has after a step.
    pub fn value(&mut self, rank: Rank, step: u32) -> Option<u64> {
        while self.truth.len() <= step.min(self.steps) as usize {
            let (at, values) = (self.truth.len() - 1, self.truth.last()?);
            let next = |rank: usize| {
                let of_peers = self.neighbours[rank].iter().map(|peer| values[*peer as usize]);
                next_value(values[rank], at as u32, of_peers)
            };
            let next = (0..values.len()).map(next).collect();
            self.truth.push(next);
        }
        self.truth.get(step as usize)?.get(rank.0 as usize).copied()
    }

    pub fn neighbours(&self, rank: Rank) -> &[u32] {
        &self.neighbours[rank.0 as usize]
    }
}

fn neighbours(setup: &Setup, rank: u32) -> Vec<u32> {
    let (group, groups) = (setup.group(rank), setup.groups);
    let (size, at) = ((setup.ranks - group).div_ceil(groups), rank / groups);
    let member = |at: u32| group + at % size * groups;
    let mut near = BTreeSet::new();
    for step in 1..=setup.width {
        near.extend([member(at + step), member(at + size - step % size)]);
    }
    near.remove(&rank);
    near.into_iter().collect()
}

fn next_value(value: u64, step: u32, of_peers: impl Iterator<Item = u64>) -> u64 {
    of_peers.fold(mix(value ^ u64::from(step)), |sum, peer| mix(sum.rotate_left(7) ^ peer))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// In `MPI_Init`: waits for its neighbours.
    Init,
    /// Waits for its state.
    Restoring,
    /// Waits for its neighbours' values.
    Waiting,
    /// Computes the next step.
    Working,
    /// Waits for a free place in the arena.
    Placing,
    /// Copies a version into it.
    Copying,
    /// Behind `MPI_Finalize`.
    Finalized,
}

#[derive(Debug, Clone)]
pub struct Proc {
    pub name: Process,
    pub node: usize,
    pub slot: SlotId,
    pub epoch: EpochId,
    pub parked: bool,
    pub loaded: bool,
    pub dead: Option<Exit>,
    pub died_at: Option<u64>,
    /// It ended by its own call.
    pub own_exit: bool,
    /// Its shepherd has waited for it.
    pub reaped: bool,
    pub phase: Phase,
    /// Past `MPI_Init`.
    pub initialized: bool,
    /// An act of its own is on the way.
    busy: bool,
    /// What it was busy with was done while it stood still.
    due: bool,
    greeted: bool,
    pub aborting: bool,
    nerve: Nerve,
    pub step: u32,
    value: u64,
    hellos: u64,
    /// Questions whether a checkpoint is due: asked, and answered.
    questions: (u64, u64),
    /// Per neighbour the values after an even and an odd step.
    got: Vec<[Option<(u32, u64)>; 2]>,
}

impl Proc {
    /// It has called `MPI_Init`.
    pub fn joined(&self) -> bool {
        self.greeted
    }

    /// It is dead from now on, if it was not before.
    pub fn dies(&mut self, exit: Exit, now: u64) {
        self.dead.get_or_insert(exit);
        self.died_at.get_or_insert(now);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nerve {
    Calm,
    Losing,
    Lost,
}

/// All processes there ever were.
#[derive(Default)]
pub struct Ranks {
    all: Vec<Proc>,
    by_name: BTreeMap<Process, ProcId>,
    pub finished: BTreeSet<Process>,
    /// What ranks did by their own wish, with nobody dead, and when.
    pub wishes: Vec<(Process, OwnEnd, u64)>,
    /// How ranks ended by themselves, whyever, and when.
    pub ends: Vec<(Process, OwnEnd, u64)>,
    /// What was answered to which question.
    pub due: BTreeMap<(WorldId, u64), bool>,
    /// Ranks of the newest world that have computed a step.
    ran: (WorldId, BTreeSet<Rank>),
    /// The furthest step of the newest world.
    furthest: (WorldId, u32),
}

impl Ranks {
    pub fn get(&self, id: ProcId) -> &Proc {
        &self.all[id]
    }

    pub fn get_mut(&mut self, id: ProcId) -> &mut Proc {
        &mut self.all[id]
    }

    pub fn all(&self) -> impl Iterator<Item = &Proc> {
        self.all.iter()
    }

    pub fn named(&self, name: Process) -> Option<ProcId> {
        self.by_name.get(&name).copied()
    }

    /// Whether any process lives on this machine.
    pub fn lives_on(&self, machine: &Machine) -> bool {
        machine.procs.iter().any(|id| self.all[*id].dead.is_none())
    }

    pub fn of<'a>(&'a self, machine: &'a Machine) -> impl Iterator<Item = (ProcId, &'a Proc)> {
        machine.procs.iter().map(|id| (*id, &self.all[*id]))
    }

    /// How many ranks of this world have computed.
    pub fn ran(&self, world: WorldId) -> u32 {
        if self.ran.0 == world { self.ran.1.len() as u32 } else { 0 }
    }

    fn add(&mut self, proc: Proc) -> ProcId {
        self.by_name.insert(proc.name, self.all.len());
        self.all.push(proc);
        self.all.len() - 1
    }
}

impl World {
    /// A process is forked, before `main`.
    pub fn fork(&mut self, node: usize, name: Process, slot: SlotId, epoch: EpochId, parked: bool) {
        // The agent's SIGSTOP was for those that it stopped.
        if !self.ranks.lives_on(&self.machines[node]) {
            self.machines[node].stopped.by_agent = false;
        }
        let neighbours = self.program.neighbours(name.rank).len();
        let proc = Proc {
            name,
            node,
            slot,
            epoch,
            parked,
            loaded: false,
            dead: None,
            died_at: None,
            own_exit: false,
            reaped: false,
            phase: Phase::Init,
            initialized: false,
            busy: false,
            due: false,
            greeted: false,
            aborting: false,
            nerve: Nerve::Calm,
            step: 0,
            value: 0,
            hellos: 0,
            questions: (0, 0),
            got: vec![[None; 2]; neighbours],
        };
        let id = self.ranks.add(proc);
        self.machines[node].procs.push(id);
        let delay = self.rng.range(300, 3000);
        self.push(delay, Act::Load(id));
    }

    pub fn load(&mut self, id: ProcId) {
        let proc = self.ranks.get_mut(id);
        if proc.dead.is_none() {
            proc.loaded = true;
            let (node, name) = (proc.node, proc.name);
            self.checks.look_at(node);
            self.local(node, Event::Started(name));
            self.go(id);
        }
    }

    /// All ranks of a node look whether they can go on.
    pub fn go_all(&mut self, node: usize) {
        for id in self.machines[node].procs.clone() {
            self.go(id);
        }
    }

    /// The rank does what it can.
    pub fn go(&mut self, id: ProcId) {
        let proc = self.ranks.get(id);
        if proc.dead.is_some() || proc.parked || !proc.loaded || proc.busy || proc.aborting {
            return;
        }
        if self.machines[proc.node].still(self.now) {
            return;
        }
        if proc.nerve == Nerve::Lost {
            return self.abort(id, 1);
        }
        if std::mem::take(&mut self.ranks.get_mut(id).due) {
            return self.stepped(id);
        }
        match self.ranks.get(id).phase {
            Phase::Init => self.initialize(id),
            Phase::Restoring => self.take_state(id),
            Phase::Waiting => self.begin_step(id),
            Phase::Placing => self.begin_copy(id),
            Phase::Working | Phase::Copying | Phase::Finalized => {}
        }
    }

    fn busy(&mut self, id: ProcId, low: u64, high: u64) {
        self.ranks.get_mut(id).busy = true;
        let delay = self.fate.range(low, high);
        self.push(delay, Act::Step(id));
    }

    /// What the rank was busy with is done.
    pub fn stepped(&mut self, id: ProcId) {
        let proc = self.ranks.get_mut(id);
        proc.busy = false;
        if proc.dead.is_some() || proc.aborting {
            return;
        }
        if self.machines[proc.node].still(self.now) {
            proc.due = true;
            return;
        }
        match proc.phase {
            Phase::Working => self.end_step(id),
            Phase::Copying => self.end_copy(id),
            Phase::Finalized => self.finish(id),
            _ => {}
        }
        self.go(id);
    }

    fn initialize(&mut self, id: ProcId) {
        let proc = self.ranks.get_mut(id);
        let (name, node, group) = (proc.name, proc.node, proc.got.len());
        let first = !proc.greeted;
        let absent = if first { self.absent.remove(&name.rank) } else { None };
        if absent == Some(false) {
            return self.die(id, Exit::Code(0), true);
        }
        if !std::mem::replace(&mut self.ranks.get_mut(id).greeted, true) {
            self.local(node, Event::Initializing(name));
            self.local(node, Event::Joined { process: name, family: ftd_core::Family::OpenMpi });
            for peer in self.program.neighbours(name.rank).to_vec() {
                self.send_to_peer(id, Packet::Hello { from: id, to: Rank(peer) }, Rank(peer));
            }
        }
        if absent == Some(true) {
            self.ranks.wishes.push((name, OwnEnd::NoFinalize, self.now));
            // That it was there is known by then.
            let delay = self.rng.range(300, 3000);
            return self.push(delay, Act::Leave(id, 0));
        }
        let proc = self.ranks.get_mut(id);
        if proc.hellos.count_ones() as usize == group {
            proc.phase = Phase::Restoring;
            proc.initialized = true;
            self.local(node, Event::Initialized(name));
            self.local(node, Event::RestoreAsked(name));
            self.busy(id, 50, 500);
        }
    }

    /// To where the neighbour is, if it is anywhere yet.
    fn send_to_peer(&mut self, id: ProcId, packet: Packet, peer: Rank) {
        let (from, world) = (self.ranks.get(id).node, self.ranks.get(id).name.world);
        match self.ranks.named(Process::primary(world, peer)) {
            Some(other) => {
                let to = self.ranks.get(other).node;
                self.send_reliably(from, to, packet);
            }
            // The connection is refused until it is: its own node knows no better than this one.
            None => self.push(20_000, Act::Again { from, to: from, packet, tries: 0 }),
        }
    }

    /// The process that this is for; the sender tries again, or hears that it is dead.
    fn receiver(&mut self, node: usize, from: ProcId, rank: Rank, packet: impl FnOnce() -> Packet) -> Option<ProcId> {
        let world = self.ranks.get(from).name.world;
        let Some(id) = self.ranks.named(Process::primary(world, rank)) else {
            self.push(20_000, Act::Again { from: node, to: node, packet: packet(), tries: 0 });
            return None;
        };
        let proc = self.ranks.get(id);
        if proc.node != node {
            let (from_node, to) = (self.ranks.get(from).node, proc.node);
            self.send_reliably(from_node, to, packet());
            return None;
        }
        if proc.dead.is_some() {
            let back = self.ranks.get(from).node;
            if proc.dead != Some(Exit::Code(0)) {
                self.send_reliably(node, back, Packet::Reset { to: from });
            }
            return None;
        }
        Some(id)
    }

    pub fn hello(&mut self, node: usize, from: ProcId, rank: Rank) {
        let Some(id) = self.receiver(node, from, rank, || Packet::Hello { from, to: rank }) else { return };
        let at = self.place_of(id, from);
        self.ranks.get_mut(id).hellos |= 1 << at;
        self.go(id);
    }

    pub fn halo(&mut self, node: usize, from: ProcId, rank: Rank, step: u32, value: u64) {
        let Some(id) = self.receiver(node, from, rank, || Packet::Halo { from, to: rank, step, value }) else { return };
        let at = self.place_of(id, from);
        self.ranks.get_mut(id).got[at][step as usize % 2] = Some((step, value));
        self.go(id);
    }

    fn place_of(&self, id: ProcId, from: ProcId) -> usize {
        let (mine, theirs) = (self.ranks.get(id).name.rank, self.ranks.get(from).name.rank);
        self.program.neighbours(mine).iter().position(|peer| *peer == theirs.0).unwrap_or(0)
    }

    // ---- computing

    fn take_state(&mut self, id: ProcId) {
        let proc = self.ranks.get(id);
        let (node, name) = (proc.node, proc.name);
        let group = GroupId(self.setup.group(name.rank.0));
        let Some(stamp) = self.machines[node].restore.get(&(proc.epoch, group)).copied() else { return };
        let (step, value) = match stamp {
            None => (0, self.program.value(name.rank, 0).unwrap_or_default()),
            Some(stamp) => match self.bytes_here(node, name.rank, stamp) {
                Some(value) => (stamp.version.0 as u32, value),
                None => return,
            },
        };
        if self.program.value(name.rank, step) != Some(value) {
            self.violated(Violation::Bytes(format!("{name} restored wrong bytes as version {step}")));
        }
        let proc = self.ranks.get_mut(id);
        (proc.phase, proc.step, proc.value) = (Phase::Waiting, step, value);
        if let Some(stamp) = stamp {
            self.local(node, Event::Restored { process: name, version: stamp.version });
        }
        self.tell_neighbours(id);
        self.go(id);
    }

    fn tell_neighbours(&mut self, id: ProcId) {
        let proc = self.ranks.get(id);
        let (rank, step, value) = (proc.name.rank, proc.step, proc.value);
        for peer in self.program.neighbours(rank).to_vec() {
            self.send_to_peer(id, Packet::Halo { from: id, to: Rank(peer), step, value }, Rank(peer));
        }
    }

    fn begin_step(&mut self, id: ProcId) {
        let proc = self.ranks.get(id);
        if proc.step >= self.setup.steps {
            let (node, name) = (proc.node, proc.name);
            self.ranks.get_mut(id).phase = Phase::Finalized;
            self.local(node, Event::Finalized(name));
            return self.busy(id, 400, 900);
        }
        let at = proc.step as usize % 2;
        if proc.got.iter().all(|got| got[at].is_some_and(|(step, _)| step == proc.step)) {
            self.ranks.get_mut(id).phase = Phase::Working;
            let pace = self.setup.pace;
            self.busy(id, pace / 2, pace + pace / 2);
        }
    }

    fn end_step(&mut self, id: ProcId) {
        let proc = self.ranks.get_mut(id);
        let at = proc.step as usize % 2;
        let of_peers = proc.got.iter().map(|got| got[at].map_or(0, |(_, value)| value));
        proc.value = next_value(proc.value, proc.step, of_peers);
        proc.step += 1;
        proc.phase = Phase::Waiting;
        let (world, step, rank) = (proc.name.world, proc.step, proc.name.rank);
        if self.ranks.ran.0 < world {
            self.ranks.ran = (world, BTreeSet::new());
        }
        if self.ranks.ran.0 == world {
            self.ranks.ran.1.insert(rank);
        }
        if (world, step) > self.ranks.furthest {
            self.ranks.furthest = (world, step);
            self.last_sign = self.now;
        }
        let its_turn = self.crash_in_turn && world.0 % u64::from(self.setup.ranks) == u64::from(rank.0);
        let crashes = its_turn || self.crashing.contains(&rank);
        if crashes && step % self.setup.every == self.setup.every / 2 {
            return self.die(id, Exit::Signal(11), false);
        }
        self.tell_neighbours(id);
        if self.setup.asks {
            self.ask_due(id);
        }
        if step < self.setup.steps && step.is_multiple_of(self.setup.every) {
            self.ranks.get_mut(id).phase = Phase::Placing;
        }
    }

    /// Asks whether the next checkpoint is due, unless it waits for an answer.
    fn ask_due(&mut self, id: ProcId) {
        let (every, proc) = (self.setup.every, self.ranks.get_mut(id));
        let (asked, answered) = proc.questions;
        if asked == answered {
            proc.questions.0 += 1;
            let (node, process) = (proc.node, proc.name);
            let cost = (proc.step % every == 1).then_some(Micros(2000));
            self.local(node, Event::DueAsked { process, cost });
        }
    }

    /// Every rank's n-th question has the same answer, or they would checkpoint at different steps.
    pub fn answer_due(&mut self, name: Process, yes: bool) {
        let Some(id) = self.ranks.named(name) else { return };
        let proc = self.ranks.get_mut(id);
        proc.questions.1 += 1;
        let question = proc.questions.1;
        let known = *self.ranks.due.entry((name.world, question)).or_insert(yes);
        if known != yes {
            let what = format!("{name} is told {yes} to question {question}, and another rank {known}");
            self.violated(Violation::Due(what));
        }
    }

    fn begin_copy(&mut self, id: ProcId) {
        let proc = self.ranks.get(id);
        let (node, rank) = (proc.node, proc.name.rank);
        let stamp = Stamp { version: Version(u64::from(proc.step)), epoch: proc.epoch };
        if self.machines[node].arena.has_version(rank, stamp.version) {
            self.ranks.get_mut(id).phase = Phase::Waiting;
            return self.begin_step(id);
        }
        if !self.machines[node].arena.begin(rank, stamp) {
            return self.busy(id, 3000, 6000);
        }
        self.ranks.get_mut(id).phase = Phase::Copying;
        let long = self.fate.chance(200);
        let most = if long { self.setup.copying } else { 400 };
        self.busy(id, 50, most);
    }

    fn end_copy(&mut self, id: ProcId) {
        let proc = self.ranks.get_mut(id);
        proc.phase = Phase::Waiting;
        let (node, rank, value) = (proc.node, proc.name.rank, proc.value);
        let stamp = Stamp { version: Version(u64::from(proc.step)), epoch: proc.epoch };
        self.copied(node, id, rank, stamp, value);
    }

    fn finish(&mut self, id: ProcId) {
        let proc = self.ranks.get(id);
        let name = proc.name;
        if self.program.value(name.rank, self.setup.steps) != Some(proc.value) {
            self.violated(Violation::Bytes(format!("{name} ends with a wrong result")));
        }
        self.ranks.finished.insert(name);
        self.last_sign = self.now;
        self.die(id, Exit::Code(0), true);
    }

    // ---- ends

    pub fn die(&mut self, id: ProcId, exit: Exit, own: bool) {
        let proc = self.ranks.get_mut(id);
        if proc.dead.is_some() {
            return;
        }
        proc.dies(exit, self.now);
        proc.own_exit = own;
        let (node, name, initialized) = (proc.node, proc.name, proc.initialized);
        let end = match exit {
            _ if !own || proc.aborting => None,
            Exit::Code(0) if proc.greeted && proc.phase != Phase::Finalized => Some(OwnEnd::NoFinalize),
            Exit::Code(0) => None,
            Exit::Code(code) => Some(OwnEnd::ExitCode(code)),
            _ => None,
        };
        self.ranks.ends.extend(end.map(|end| (name, end, self.now)));
        self.checks.look_at(node);
        // The memory of a large process takes long to tear down; the futex does not wait for it.
        let (share, most) = self.setup.reaping;
        let slow = self.rng.chance(share);
        let delay = if slow { self.rng.range(20_000, most) } else { self.rng.range(50, 2000) };
        self.push(delay, Act::Reap(id));
        if initialized && !own && self.rng.chance(900) {
            self.local(node, Event::Dying(name));
        }
        if exit != Exit::Code(0) {
            self.reset_peers(name, node);
        }
    }

    /// The kernel closes the connections of a dead process.
    pub fn reset_peers(&mut self, name: Process, node: usize) {
        for peer in self.program.neighbours(name.rank).to_vec() {
            if let Some(other) = self.ranks.named(Process::primary(name.world, Rank(peer))) {
                let to = self.ranks.get(other).node;
                self.send_reliably(node, to, Packet::Reset { to: other });
            }
        }
    }

    /// The rank learns that a neighbour is dead.
    pub fn peer_is_dead(&mut self, id: ProcId) {
        let proc = self.ranks.get_mut(id);
        if proc.dead.is_some() || proc.nerve != Nerve::Calm || self.setup.temper == Temper::Hangs {
            return;
        }
        proc.nerve = Nerve::Losing;
        let at_once = self.fate.chance(300);
        let delay = if at_once { 100 } else { self.fate.range(1000, 300_000) };
        self.push(delay, Act::Nerve(id));
    }

    pub fn loses_its_nerve(&mut self, id: ProcId) {
        self.ranks.get_mut(id).nerve = Nerve::Lost;
        let proc = self.ranks.get(id);
        if proc.dead.is_none() && !proc.aborting && !self.machines[proc.node].still(self.now) {
            self.abort(id, 1);
        }
    }

    /// Calls `MPI_Abort`, or exits with the code.
    pub fn abort(&mut self, id: ProcId, code: i32) {
        if self.fate.chance(500) {
            return self.die(id, Exit::Code(code), true);
        }
        self.call_abort(id, code);
    }

    pub fn call_abort(&mut self, id: ProcId, code: i32) {
        let proc = self.ranks.get_mut(id);
        proc.aborting = true;
        let (node, process) = (proc.node, proc.name);
        self.ranks.ends.push((process, OwnEnd::Abort(code), self.now));
        self.local(node, Event::AbortRequested { process, code });
    }

    /// Every rank notices at once that somebody died.
    pub fn all_abort(&mut self) {
        for node in 0..self.machines.len() {
            for id in self.machines[node].procs.clone() {
                if self.ranks.get(id).dead.is_none() {
                    self.call_abort(id, 1);
                }
            }
        }
    }

    /// `MPI_Abort` returns to the library, which ends the process.
    pub fn abort_goes_on(&mut self, name: Process) {
        if let Some(id) = self.ranks.named(name).filter(|id| self.ranks.get(*id).aborting) {
            self.die(id, Exit::Code(1), true);
        }
    }

    pub fn reap(&mut self, id: ProcId) {
        let proc = self.ranks.get_mut(id);
        if !std::mem::replace(&mut proc.reaped, true) {
            let delay = self.rng.range(0, 1000);
            return self.push(delay, Act::Reap(id));
        }
        let (node, process, Some(exit)) = (proc.node, proc.name, proc.dead) else { return };
        self.machines[node].procs.retain(|other| *other != id);
        let incarnation = self.machines[node].incarnation;
        let event = Box::new(Event::Exited { process, exit, limit: None });
        // Straight to the agent: a slot's events stay in order.
        self.push(0, Act::Tell { node, incarnation, event });
    }
}
