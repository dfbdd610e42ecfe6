//! A cluster in one thread: nodes with agents (the shipped state machine), slots and ranks of a small application, a store
//! with compare-and-swap, a network that delays, reorders, doubles and drops. Everything happens in one queue, ordered by
//! a seed; the invariants of the design are checked after every step.

#![allow(dead_code, clippy::unwrap_used, clippy::print_stdout)]

use ftd_core::agent::Stage;
use ftd_core::*;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// splitmix64: the whole randomness of a run.
#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// From `low` to `high`, `high` included.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.next() % 1000 < per_mille
    }
}

/// A run that needs more steps than this goes in circles.
const MOST_ACTS: u64 = 3_000_000;

/// Rules of ftd that a run can be told to break, to prove that the checks notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    Nothing,
    /// Nodes do not stop their ranks when cut off.
    NoPause,
    /// Inventories list half-copied versions.
    PartialInventory,
    /// Worlds are reported empty before they are.
    EarlyEmptied,
    /// The store lets every compare-and-swap pass.
    BlindStore,
}

#[derive(Debug, Clone)]
pub struct Setup {
    pub seed: u64,
    pub nodes: u32,
    pub slots: u32,
    pub ranks: u32,
    pub policy: Policy,
    pub mode: Mode,
    pub renewable: bool,
    pub steps: u64,
    pub every: u64,
    /// Per mille of messages that are lost, and that come twice.
    pub drop: u64,
    pub double: u64,
    /// Per mille of messages, and of requests to the store, that take longer than a heartbeat time-out may.
    pub slow_network: u64,
    pub slow_store: u64,
    /// Per mille of requests that reach a store that cannot be reached, some time.
    pub late_writes: u64,
    /// Survivors of a death abort themselves after a while, as some MPI libraries do.
    pub nervous: bool,
    pub broken: Broken,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            seed: 1,
            nodes: 3,
            slots: 2,
            ranks: 4,
            policy: Policy::default(),
            mode: Mode::Reinit,
            renewable: false,
            steps: 1000,
            every: 20,
            drop: 0,
            double: 0,
            slow_network: 0,
            slow_store: 0,
            late_writes: 0,
            nervous: false,
            broken: Broken::Nothing,
        }
    }
}

#[derive(Debug, Clone)]
enum Act {
    Tell { node: usize, generation: u64, event: Event },
    Wake { node: usize, generation: u64, at: u64 },
    Store { node: usize, generation: u64, write: Option<(Revision, EpochRecord)> },
    Load { node: usize, process: Process },
    Step { node: usize, process: Process },
    Reap { node: usize, process: Process },
    Empty { node: usize, generation: u64, world: WorldId },
    Hash { node: usize, process: Process, version: u64 },
    Inventory { node: usize, generation: u64, epoch: EpochId },
    StartAgent { node: usize, generation: u64 },
    NewSlot { node: usize, generation: u64 },
    SlotGone { node: usize, slot: SlotId, process: Option<Process> },
    Leave { node: usize, process: Process, code: i32 },
    Resume { node: usize },
    Fault(Fault),
}

#[derive(Debug, Clone)]
pub enum Fault {
    KillRank {
        rank: u32,
        signal: i32,
    },
    ExitRank {
        rank: u32,
        code: i32,
    },
    AbortRank {
        rank: u32,
        code: i32,
    },
    KillServer {
        node: usize,
    },
    KillAgent {
        node: usize,
    },
    KillNode {
        node: usize,
    },
    LoseSlot {
        slot: SlotId,
    },
    Suspend {
        node: usize,
        us: u64,
    },
    /// Messages from the first to the second node are lost.
    Cut {
        from: usize,
        to: usize,
    },
    /// Messages between this node and all others are lost, and the store is out of reach if `store`.
    Isolate {
        node: usize,
        store: bool,
    },
    StoreDown,
    Heal,
    Cancel {
        signal: i32,
    },
}

/// What a rank does with a signal that ends the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obedience {
    /// It has no handler.
    Dies,
    /// Its handler takes a second, and exits with this code.
    Saves(i32),
    /// It ignores the signal.
    Ignores,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copied {
    Partly,
    Whole,
    Hashed,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    stamp: Stamp,
    data: u64,
    copied: Copied,
}

#[derive(Debug, Clone)]
struct Proc {
    slot: SlotId,
    epoch: EpochId,
    parked: bool,
    loaded: bool,
    dead: Option<Exit>,
    own_exit: bool,
    /// Its shepherd has waited for it; the word of its exit is on the way.
    reaped: bool,
    initialized: bool,
    restored: bool,
    finalized: bool,
    aborting: bool,
    step: u64,
    copying: bool,
    stalled: bool,
    dead_peer_since: Option<u64>,
}

pub struct Node {
    pub alive: bool,
    pub agent: Option<Agent>,
    generation: u64,
    offset: u64,
    wake: Option<u64>,
    pub slots: BTreeSet<SlotId>,
    procs: BTreeMap<Process, Proc>,
    paused: bool,
    suspended_until: u64,
    /// Was suspended and its agent has not run since.
    drowsy: bool,
    arena: BTreeMap<Rank, Vec<Entry>>,
    frozen: EpochId,
    restore: BTreeMap<EpochId, Option<Stamp>>,
    pub ended: Option<(i32, Option<String>)>,
    pub restarts: u32,
}

pub struct Cluster {
    pub setup: Setup,
    pub now: u64,
    rng: Rng,
    serial: u64,
    queue: BinaryHeap<std::cmp::Reverse<(u64, u64)>>,
    acts: BTreeMap<u64, Act>,
    pub nodes: Vec<Node>,
    pub revision: u64,
    pub record: Option<EpochRecord>,
    records: BTreeMap<EpochId, EpochRecord>,
    store_down: bool,
    store_cut: BTreeSet<usize>,
    cuts: BTreeSet<(usize, usize)>,
    choices: BTreeMap<EpochId, Option<Stamp>>,
    inventories: BTreeMap<EpochId, BTreeMap<usize, Inventory>>,
    pub done_reports: Vec<Recovery>,
    pub notices: Vec<(usize, Notice)>,
    finished: BTreeSet<Process>,
    pub own_wish: bool,
    pub crashing: BTreeSet<Rank>,
    next_slot: u32,
    pub trace: Vec<String>,
    pub traced: bool,
    pub error: Option<String>,
    /// Processes that lived when ftd ended their world.
    put_down: BTreeSet<Process>,
    /// The signal that ended the job, and when.
    pub cancelled: Option<(i32, u64)>,
    /// What ranks do when the job is told to end; at random without.
    pub obedience: Option<Obedience>,
    released: BTreeSet<(usize, WorldId)>,
}

impl Cluster {
    pub fn new(setup: Setup) -> Self {
        let mut rng = Rng(setup.seed);
        let count = setup.nodes as usize;
        let nodes = (0..count).map(|node| Node {
            alive: true,
            agent: None,
            generation: 0,
            offset: rng.range(0, 10_000_000),
            wake: None,
            slots: (0..setup.slots).map(|slot| SlotId(node as u32 * setup.slots + slot)).collect(),
            procs: BTreeMap::new(),
            paused: false,
            suspended_until: 0,
            drowsy: false,
            arena: BTreeMap::new(),
            frozen: EpochId(0),
            restore: BTreeMap::new(),
            ended: None,
            restarts: 0,
        });
        let nodes = nodes.collect();
        let next_slot = setup.nodes * setup.slots;
        let mut cluster = Cluster {
            setup,
            now: 0,
            rng,
            serial: 0,
            queue: BinaryHeap::new(),
            acts: BTreeMap::new(),
            nodes,
            revision: 0,
            record: None,
            records: BTreeMap::new(),
            store_down: false,
            store_cut: BTreeSet::new(),
            cuts: BTreeSet::new(),
            choices: BTreeMap::new(),
            inventories: BTreeMap::new(),
            done_reports: Vec::new(),
            notices: Vec::new(),
            finished: BTreeSet::new(),
            own_wish: false,
            crashing: BTreeSet::new(),
            next_slot,
            trace: Vec::new(),
            traced: false,
            error: None,
            put_down: BTreeSet::new(),
            cancelled: None,
            obedience: None,
            released: BTreeSet::new(),
        };
        for node in 0..count {
            let delay = cluster.rng.range(0, 20_000);
            cluster.push(delay, Act::StartAgent { node, generation: 0 });
        }
        cluster
    }

    fn push(&mut self, delay: u64, act: Act) {
        self.serial += 1;
        self.queue.push(std::cmp::Reverse((self.now + delay, self.serial)));
        self.acts.insert(self.serial, act);
    }

    pub fn fault_in(&mut self, delay: u64, fault: Fault) {
        self.push(delay, Act::Fault(fault));
    }

    fn violated(&mut self, what: String) {
        if self.error.is_none() {
            self.error = Some(format!("at {} µs: {what}", self.now));
        }
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if self.traced {
            let line = line();
            self.trace.push(format!("{:>10} {line}", self.now));
        }
    }

    /// Runs until the condition holds; false when `limit` microseconds passed or a rule was broken first.
    pub fn run_until(&mut self, limit: u64, condition: impl Fn(&Cluster) -> bool) -> bool {
        let end = self.now + limit;
        while self.error.is_none() {
            if condition(self) {
                return true;
            }
            match self.queue.peek() {
                Some(std::cmp::Reverse((at, _))) if *at <= end => {}
                _ => break,
            }
            if self.serial > MOST_ACTS {
                self.violated("agents keep each other busy and get nowhere".to_string());
                break;
            }
            self.advance();
        }
        if self.error.is_none() {
            self.now = self.now.max(end);
        }
        condition(self)
    }

    pub fn paused(&self, node: usize) -> bool {
        self.nodes[node].paused
    }

    /// Every agent that is alive has ended the job.
    pub fn over(&self) -> bool {
        self.nodes.iter().all(|node| !node.alive || node.ended.is_some())
    }

    pub fn computing(&self) -> bool {
        let epoch = self.record.as_ref().map(|record| record.epoch);
        let settled = |node: &Node| {
            let agent = node.agent.as_ref();
            agent.is_some_and(|agent| agent.stage() == Stage::Computing && agent.record().map(|r| r.epoch) == epoch)
        };
        let record = self.record.as_ref();
        let member = |node: usize| record.is_some_and(|record| record.is_member(NodeId(node as u32)));
        let Some(record) = record else { return false };
        let ready = |process: Process| {
            let of = self.nodes.iter().filter(|node| node.alive).find_map(|node| node.procs.get(&process));
            let computes = of.is_some_and(|proc| proc.dead.is_none() && proc.initialized && proc.restored);
            computes || self.finished.contains(&process)
        };
        self.nodes.iter().enumerate().all(|(i, node)| !member(i) || (node.alive && settled(node)))
            && record.processes().all(|(process, _)| ready(process))
    }

    fn advance(&mut self) {
        let Some(std::cmp::Reverse((at, serial))) = self.queue.pop() else { return };
        self.now = self.now.max(at);
        let Some(act) = self.acts.remove(&serial) else { return };
        let node = match &act {
            Act::Tell { node, .. }
            | Act::Wake { node, .. }
            | Act::Load { node, .. }
            | Act::Step { node, .. }
            | Act::Reap { node, .. }
            | Act::Empty { node, .. }
            | Act::Hash { node, .. }
            | Act::Inventory { node, .. }
            | Act::NewSlot { node, .. }
            | Act::SlotGone { node, .. }
            | Act::Leave { node, .. }
            | Act::StartAgent { node, .. } => Some(*node),
            Act::Store { .. } | Act::Resume { .. } | Act::Fault(_) => None,
        };
        if let Some(node) = node {
            if !self.nodes[node].alive {
                return;
            }
            let until = self.nodes[node].suspended_until;
            if until > self.now {
                return self.push(until - self.now, act);
            }
        }
        self.act(act);
        self.check();
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Tell { node, generation, event } => {
                if generation == self.nodes[node].generation {
                    self.tell(node, event);
                }
            }
            Act::Wake { node, generation, at } => {
                if generation == self.nodes[node].generation && self.nodes[node].wake == Some(at) {
                    self.nodes[node].wake = None;
                    self.tell(node, Event::Timer);
                }
            }
            Act::Store { node, generation, write } => self.at_store(node, generation, write),
            Act::Load { node, process } => self.load(node, process),
            Act::Step { node, process } => self.step(node, process),
            Act::Reap { node, process } => self.reap(node, process),
            Act::SlotGone { node, slot, process } => self.slot_gone(node, slot, process),
            Act::Empty { node, generation, world } => {
                // A slot is empty when nothing runs there any more; how it ended may be told much later.
                let reaped = self.rng.chance(300);
                let busy =
                    self.nodes[node].procs.iter().any(|(p, proc)| p.world == world && (reaped || proc.dead.is_none()));
                if busy && self.setup.broken != Broken::EarlyEmptied {
                    let delay = self.rng.range(50, 300);
                    self.push(delay, Act::Empty { node, generation, world });
                } else {
                    self.local(node, Event::WorldEmptied(world));
                }
            }
            Act::Hash { node, process, version } => self.hash(node, process, version),
            Act::Inventory { node, generation, epoch } => {
                if generation == self.nodes[node].generation {
                    self.inventory(node, epoch);
                }
            }
            Act::StartAgent { node, generation } => self.start_agent(node, generation),
            Act::NewSlot { node, generation } => {
                if generation == self.nodes[node].generation {
                    let slot = SlotId(self.next_slot);
                    self.next_slot += 1;
                    self.nodes[node].slots.insert(slot);
                    self.local(node, Event::SlotAdded(slot));
                    self.local(node, Event::SlotUp(slot));
                }
            }
            Act::Leave { node, process, code } => self.die(node, process, Exit::Code(code), true),
            Act::Resume { node } => {
                if self.nodes[node].suspended_until <= self.now {
                    self.note(|| format!("n{node} resumes"));
                }
            }
            Act::Fault(fault) => self.fault(fault),
        }
    }

    // ---- the agent and its driver

    fn config(&self) -> JobConfig {
        JobConfig {
            nodes: (0..self.setup.nodes).map(NodeId).collect(),
            world_size: self.setup.ranks,
            mode: self.setup.mode,
            policy: self.setup.policy.clone(),
            renewable_slots: self.setup.renewable,
            groups: Groups::one(),
            breach: ftd_core::breach::Breach::Nothing,
        }
    }

    fn start_agent(&mut self, node: usize, generation: u64) {
        if generation != self.nodes[node].generation || self.nodes[node].ended.is_some() {
            return;
        }
        if !self.nodes[node].procs.is_empty() {
            return self.push(500, Act::StartAgent { node, generation });
        }
        let config = self.config();
        let incarnation = u64::from(self.nodes[node].restarts) + 1;
        self.nodes[node].agent = Some(Agent::new(NodeId(node as u32), config).incarnation(incarnation));
        self.nodes[node].paused = false;
        let slots: Vec<SlotId> = self.nodes[node].slots.iter().copied().collect();
        self.tell(node, Event::Start { slots: slots.clone() });
        for slot in slots {
            self.local(node, Event::SlotUp(slot));
        }
        if let Some((signal, _)) = self.cancelled {
            self.local(node, Event::Cancel { signal });
        }
    }

    /// An event of the own node, a little later.
    fn local(&mut self, node: usize, event: Event) {
        let generation = self.nodes[node].generation;
        let delay = self.rng.range(1, 300);
        self.push(delay, Act::Tell { node, generation, event });
    }

    fn tell(&mut self, node: usize, event: Event) {
        let now = Micros(self.now + self.nodes[node].offset);
        if self.nodes[node].ended.is_some() {
            return;
        }
        let Some(agent) = self.nodes[node].agent.as_mut() else { return };
        let told = if self.traced { format!("{event:?}") } else { String::new() };
        let effects = agent.step(now, event);
        self.nodes[node].drowsy = false;
        if !told.contains("Heartbeat") && !told.contains("Acknowledge") {
            self.note(|| format!("n{node} <- {told}"));
        }
        for effect in effects {
            let quiet = matches!(effect, Effect::WakeAt(_) | Effect::Send { .. });
            if !quiet {
                self.note(|| format!("n{node} -> {effect:?}"));
            }
            self.effect(node, effect);
        }
    }

    #[allow(clippy::too_many_lines, reason = "a table: one entry for each effect")]
    fn effect(&mut self, node: usize, effect: Effect) {
        let generation = self.nodes[node].generation;
        match effect {
            Effect::ReadStore => self.ask_store(node, None),
            Effect::Cas { expected, record } => self.ask_store(node, Some((expected, EpochRecord::clone(&record)))),
            Effect::Send { to, message } => self.send(node, to.0 as usize, message),
            Effect::WakeAt(at) => {
                let at = at.0 - self.nodes[node].offset;
                self.nodes[node].wake = Some(at);
                self.push(at.saturating_sub(self.now), Act::Wake { node, generation, at });
            }
            Effect::Launch { world, epoch, processes, parked } => self.launch(node, world, epoch, processes, parked),
            Effect::Release(world) => {
                self.released.insert((node, world));
                let released = self.nodes[node].procs.iter_mut().filter(|(process, _)| process.world == world);
                released.for_each(|(_, proc)| proc.parked = false);
                self.poke(node);
            }
            Effect::StopWorld(world) => {
                let spared = self.setup.broken == Broken::EarlyEmptied;
                let doomed: Vec<Process> =
                    self.nodes[node].procs.keys().filter(|process| process.world == world).copied().collect();
                for process in if spared { Vec::new() } else { doomed } {
                    if self.nodes[node].procs.get(&process).is_some_and(|proc| proc.dead.is_none()) {
                        self.put_down.insert(process);
                    }
                    self.die(node, process, Exit::Signal(9), false);
                }
                let delay = self.rng.range(10, 300);
                self.push(delay, Act::Empty { node, generation, world });
            }
            Effect::Pause => {
                if self.setup.broken != Broken::NoPause {
                    self.nodes[node].paused = true;
                }
            }
            Effect::Continue => {
                self.nodes[node].paused = false;
                self.poke(node);
            }
            Effect::Survey => {
                // Whoever has been waited for has no wait status to look at any more.
                let (mut dying, mut leaving) = (Vec::new(), Vec::new());
                for (process, proc) in self.nodes[node].procs.iter().filter(|(_, proc)| proc.dead.is_some()) {
                    if proc.own_exit || proc.reaped { &mut leaving } else { &mut dying }.push(*process);
                }
                self.local(node, Event::Surveyed { dying, leaving });
            }
            Effect::Drain(world) => self.local(node, Event::Drained(world)),
            Effect::TakeInventory { epoch, world } => {
                self.nodes[node].frozen = epoch;
                if self.nodes[node].procs.iter().any(|(p, proc)| p.world <= world && proc.dead.is_none()) {
                    self.violated(format!("n{node} takes its inventory while {world} is still there"));
                }
                let delay = self.rng.range(50, 5000);
                self.push(delay, Act::Inventory { node, generation, epoch });
            }
            Effect::Restore { epoch, stamp, .. } => self.restore(node, epoch, stamp),
            Effect::Retire { complete, .. } => self.retire(node, complete),
            Effect::Proceed { process, .. } => self.abort_goes_on(node, process),
            Effect::Signal { signal } => self.signal(node, signal),
            Effect::NeedSlot => {
                let delay = self.rng.range(500, 10_000);
                self.push(delay, Act::NewSlot { node, generation });
            }
            Effect::Report(Report::RecoveryDone(done)) => self.done_reports.push(done),
            Effect::Report(Report::Notice(notice)) => self.notices.push((node, notice)),
            Effect::Report(_) => {}
            Effect::End { status, reason } => {
                if self.nodes[node].procs.values().any(|proc| proc.dead.is_none()) {
                    self.violated(format!("n{node} ends the job while processes of it are there"));
                }
                // Who was told to end may have ended well.
                if status == 0 && reason.as_ref().is_some_and(|reason| !reason.contains("was cancelled by")) {
                    self.violated(format!("n{node} ends a job that failed with 0: {reason:?}"));
                }
                self.nodes[node].ended = Some((status, reason));
            }
        }
    }

    fn send(&mut self, from: usize, to: usize, message: PeerMessage) {
        if self.cuts.contains(&(from, to)) || self.rng.chance(self.setup.drop) {
            return;
        }
        let copies = if self.rng.chance(self.setup.double) { 2 } else { 1 };
        for _ in 0..copies {
            let slow = self.rng.chance(20);
            let mut delay = if slow { self.rng.range(500, 50_000) } else { self.rng.range(50, 500) };
            if self.rng.chance(self.setup.slow_network) {
                delay = self.rng.range(50_000, 900_000);
            }
            let generation = self.nodes[to].generation;
            let event = Event::Message { from: NodeId(from as u32), message: message.clone() };
            self.push(delay, Act::Tell { node: to, generation, event });
        }
    }

    // ---- the store

    fn ask_store(&mut self, node: usize, write: Option<(Revision, EpochRecord)>) {
        let generation = self.nodes[node].generation;
        if self.store_down || self.store_cut.contains(&node) {
            // The request may be lost, or reach the store although its answer does not come, much later perhaps.
            if self.rng.chance(self.setup.late_writes) {
                let delay = self.rng.range(100, 800_000);
                self.push(delay, Act::Store { node, generation: u64::MAX, write });
            }
            self.push(50_000, Act::Tell { node, generation, event: Event::StoreUnavailable });
            return;
        }
        let slow = self.rng.chance(30);
        let mut delay = if slow { self.rng.range(1000, 100_000) } else { self.rng.range(50, 2000) };
        if self.rng.chance(self.setup.slow_store) {
            delay = self.rng.range(100_000, 900_000);
        }
        self.push(delay, Act::Store { node, generation, write });
    }

    fn at_store(&mut self, node: usize, generation: u64, write: Option<(Revision, EpochRecord)>) {
        let answer = match write {
            None => Event::StoreRead {
                revision: Revision(self.revision),
                record: self.record.clone().map(std::sync::Arc::new),
            },
            Some((expected, record)) if expected.0 == self.revision || self.setup.broken == Broken::BlindStore => {
                self.written(&record);
                self.revision += 1;
                self.record = Some(record);
                Event::CasDone { revision: Revision(self.revision) }
            }
            Some(_) => match self.record.clone() {
                Some(record) => {
                    Event::CasLost { revision: Revision(self.revision), record: Some(std::sync::Arc::new(record)) }
                }
                None => Event::StoreUnavailable,
            },
        };
        if generation != u64::MAX {
            let delay = self.rng.range(50, 1000);
            self.push(delay, Act::Tell { node, generation, event: answer });
        }
    }

    fn written(&mut self, record: &EpochRecord) {
        self.note(|| format!("store: {} {} by {:?}", record.epoch, record.world, record.failures.to_string()));
        if let Err(error) = record.check() {
            self.violated(format!("a wrong record was written: {error}"));
        }
        // Once every agent has heard that the job ends (and what was on its way to the store is there) none recovers.
        let awake = self.nodes.iter().all(|node| node.suspended_until + 2_000_000 < self.now);
        if self.cancelled.is_some_and(|(_, at)| self.now > at + 2_000_000) && awake && record.outcome.is_none() {
            let new = self.record.as_ref().is_none_or(|known| known.epoch < record.epoch);
            if new {
                self.violated(format!("{} recovers a job that was told to end", record.epoch));
            }
        }
        // A node that vouches for itself writes the epoch once more, whatever ftd has ended since.
        let new = self.record.as_ref().is_none_or(|known| known.epoch < record.epoch);
        for failure in record.failures.failures().iter().filter(|_| new) {
            if matches!(failure.subject, Subject::Process(process) if self.put_down.contains(&process)) {
                self.violated(format!("{failure} is blamed, but ftd ended it"));
            }
        }
        let Some(before) = self.record.clone() else {
            if record.epoch != EpochId(1) {
                self.violated(format!("the first record is of {}", record.epoch));
            }
            self.records.insert(record.epoch, record.clone());
            return;
        };
        // Invariant 1: epochs only grow, and each has one record; vouching changes nothing else.
        let same = *record == before;
        if !(same || record.epoch == before.epoch.next()) {
            self.violated(format!("{} was written after {}", record.epoch, before.epoch));
        }
        if record.outcome.is_none() && record.epoch > before.epoch && record.world <= before.world {
            self.violated(format!("{} names {} after {}", record.epoch, record.world, before.world));
        }
        for entry in record.slots.iter() {
            let was = before.slot(entry.slot).map(|entry| entry.state);
            if was == Some(SlotState::Lost) && entry.state != SlotState::Lost {
                self.violated(format!("{} was lost and is {:?} in {}", entry.slot, entry.state, record.epoch));
            }
        }
        self.records.insert(record.epoch, record.clone());
        // Invariant 5: a node that is left out stands still.
        for node in before.members().filter(|node| !record.is_member(*node)) {
            let index = node.0 as usize;
            if let Some(process) = self.computing_on(index).first() {
                let (process, epoch) = (*process, record.epoch);
                self.violated(format!("{process} computes on {node}, which {epoch} leaves out"));
            }
        }
    }

    // ---- the ranks

    /// The processes that compute on a node at this moment, but for those of a node that was suspended whole and whose
    /// agent has not run since.
    fn computing_on(&self, node: usize) -> Vec<Process> {
        let state = &self.nodes[node];
        if !state.alive || state.suspended_until > self.now || state.drowsy || state.paused {
            return Vec::new();
        }
        let computes = |proc: &Proc| proc.loaded && !proc.parked && proc.dead.is_none();
        state.procs.iter().filter(|(_, proc)| computes(proc)).map(|(process, _)| *process).collect()
    }

    fn launch(&mut self, node: usize, world: WorldId, epoch: EpochId, processes: Vec<(Process, SlotId)>, parked: bool) {
        // Only processes are stopped; these are others.
        self.nodes[node].paused = false;
        for (process, slot) in processes {
            if !self.nodes[node].slots.contains(&slot) {
                // The shepherd is gone; the agent will hear of it.
                continue;
            }
            let runs = |proc: &Proc| proc.slot == slot && proc.dead.is_none();
            if let Some((other, _)) = self.nodes[node].procs.iter().find(|(_, proc)| runs(proc)) {
                let other = *other;
                self.violated(format!("{process} is launched on {slot}, where {other} still is"));
            }
            debug_assert_eq!(process.world, world);
            let proc = Proc {
                slot,
                epoch,
                parked,
                loaded: false,
                dead: None,
                own_exit: false,
                reaped: false,
                initialized: false,
                restored: false,
                finalized: false,
                aborting: false,
                step: 0,
                copying: false,
                stalled: false,
                dead_peer_since: None,
            };
            self.nodes[node].procs.insert(process, proc);
            let delay = self.rng.range(300, 3000);
            self.push(delay, Act::Load { node, process });
        }
    }

    fn load(&mut self, node: usize, process: Process) {
        if let Some(proc) = self.nodes[node].procs.get_mut(&process).filter(|proc| proc.dead.is_none()) {
            proc.loaded = true;
            self.local(node, Event::Started(process));
            self.push(10, Act::Step { node, process });
        }
    }

    /// Processes that stood still go on.
    fn poke(&mut self, node: usize) {
        let stalled: Vec<Process> = self.nodes[node]
            .procs
            .iter_mut()
            .filter_map(|(process, proc)| std::mem::take(&mut proc.stalled).then_some(*process))
            .collect();
        for process in stalled {
            self.push(10, Act::Step { node, process });
        }
    }

    /// The other processes of a world, wherever they are: rank, process.
    fn peers(&self, world: WorldId) -> impl Iterator<Item = (&Process, &Proc)> {
        self.nodes
            .iter()
            .filter(|node| node.alive)
            .flat_map(|node| node.procs.iter())
            .filter(move |(process, _)| process.world == world)
    }

    fn step(&mut self, node: usize, process: Process) {
        let paused = self.nodes[node].paused;
        let Some(proc) = self.nodes[node].procs.get_mut(&process) else { return };
        if proc.dead.is_some() || proc.aborting {
            return;
        }
        if paused || proc.parked {
            proc.stalled = true;
            return;
        }
        let again = self.compute(node, process);
        if again > 0 {
            self.push(again, Act::Step { node, process });
        }
    }

    /// One piece of the application's work; returns when it goes on, 0 for never.
    fn compute(&mut self, node: usize, process: Process) -> u64 {
        let proc = self.nodes[node].procs[&process].clone();
        if !proc.initialized {
            return self.initialize(node, process);
        }
        if !proc.restored {
            return self.take_state(node, process, proc.epoch);
        }
        if self.crashing.contains(&process.rank) && proc.step % self.setup.every == self.setup.every / 2 {
            self.die(node, process, Exit::Signal(11), false);
            return 0;
        }
        if proc.step >= self.setup.steps {
            return self.finish(node, process);
        }
        // A collective in each step: nobody is more than one step ahead.
        let (all_present, dead_peer) = self.meets_peers(process, proc.step);
        if !all_present {
            if dead_peer && self.loses_its_nerve(node, process) {
                return 0;
            }
            return self.rng.range(200, 600);
        }
        if proc.step.is_multiple_of(self.setup.every)
            && proc.step > 0
            && !proc.copying
            && let Some(busy) = self.begin_checkpoint(node, process, proc.step, proc.epoch)
        {
            return busy;
        }
        if proc.copying {
            self.end_checkpoint(node, process, proc.step, proc.epoch);
        }
        self.nodes[node].procs.get_mut(&process).unwrap().step += 1;
        self.rng.range(200, 1500)
    }

    /// `MPI_Init`: waits for all.
    fn initialize(&mut self, node: usize, process: Process) -> u64 {
        let inside = self.peers(process.world).filter(|(_, peer)| peer.loaded && !peer.parked && peer.dead.is_none());
        if (inside.count() as u32) < self.setup.ranks {
            if self.peers(process.world).any(|(_, peer)| peer.dead.is_some()) && self.loses_its_nerve(node, process) {
                return 0;
            }
            return self.rng.range(200, 1000);
        }
        self.nodes[node].procs.get_mut(&process).unwrap().initialized = true;
        self.local(node, Event::Initialized(process));
        self.rng.range(50, 500)
    }

    /// Takes its state back, if there is one.
    fn take_state(&mut self, node: usize, process: Process, epoch: EpochId) -> u64 {
        let Some(stamp) = self.nodes[node].restore.get(&epoch).copied() else { return 500 };
        let step = match stamp {
            None => 0,
            Some(stamp) => match self.find(process.rank, stamp) {
                Some(data) => data,
                None => return 1000,
            },
        };
        let proc = self.nodes[node].procs.get_mut(&process).unwrap();
        proc.restored = true;
        proc.step = step;
        if let Some(stamp) = stamp {
            if step != stamp.version.0 {
                self.violated(format!("{process} restored {step} as {}", stamp.version));
            }
            self.local(node, Event::Restored { process, version: stamp.version });
        }
        50
    }

    /// `MPI_Finalize`, and then the end.
    fn finish(&mut self, node: usize, process: Process) -> u64 {
        let proc = self.nodes[node].procs.get_mut(&process).unwrap();
        if !proc.finalized {
            proc.finalized = true;
            self.local(node, Event::Finalized(process));
            return self.rng.range(400, 900);
        }
        self.finished.insert(process);
        self.die(node, process, Exit::Code(0), true);
        0
    }

    /// Whether every rank has come to this step or is through, and whether one died before.
    fn meets_peers(&self, process: Process, step: u64) -> (bool, bool) {
        let finished = |rank: &Rank| self.finished.contains(&Process::primary(process.world, *rank));
        let mut present: BTreeSet<Rank> = (0..self.setup.ranks).map(Rank).filter(finished).collect();
        let mut dead_peer = false;
        for (peer, state) in self.peers(process.world) {
            dead_peer |= state.dead.is_some() && !self.finished.contains(peer);
            if state.step >= step && state.restored {
                present.insert(peer.rank);
            }
        }
        (present.len() as u32 >= self.setup.ranks, dead_peer)
    }

    /// Begins to copy a version, unless it is there; returns when the copy is over, or a place may be free.
    fn begin_checkpoint(&mut self, node: usize, process: Process, version: u64, epoch: EpochId) -> Option<u64> {
        let entries = self.nodes[node].arena.entry(process.rank).or_default();
        if entries.iter().any(|entry| entry.stamp.version.0 == version) {
            return None;
        }
        if entries.len() >= 3 {
            return Some(1000);
        }
        let stamp = Stamp { version: Version(version), epoch };
        entries.push(Entry { stamp, data: 0, copied: Copied::Partly });
        self.nodes[node].procs.get_mut(&process).unwrap().copying = true;
        let long = self.rng.chance(200);
        Some(self.rng.range(50, if long { 4000 } else { 400 }))
    }

    fn end_checkpoint(&mut self, node: usize, process: Process, version: u64, epoch: EpochId) {
        self.nodes[node].procs.get_mut(&process).unwrap().copying = false;
        let entries = self.nodes[node].arena.entry(process.rank).or_default();
        let mine = |entry: &&mut Entry| entry.stamp == Stamp { version: Version(version), epoch };
        for entry in entries.iter_mut().filter(mine) {
            (entry.copied, entry.data) = (Copied::Whole, version);
        }
        let delay = self.rng.range(20, 2000);
        self.push(delay, Act::Hash { node, process, version });
    }

    /// A library that aborts because a peer is dead: some at once, some after a few attempts.
    fn loses_its_nerve(&mut self, node: usize, process: Process) -> bool {
        let (now, patience) = (self.now, if self.rng.chance(300) { 0 } else { 3000 });
        let proc = self.nodes[node].procs.get_mut(&process).unwrap();
        let since = *proc.dead_peer_since.get_or_insert(now);
        let aborts = self.setup.nervous && now - since >= patience && self.rng.chance(300);
        if aborts {
            self.abort(node, process, 1);
        }
        aborts
    }

    /// The bytes of a version, on any node that is alive.
    fn find(&self, rank: Rank, stamp: Stamp) -> Option<u64> {
        let arenas = self.nodes.iter().filter(|node| node.alive).filter_map(|node| node.arena.get(&rank));
        let broken = self.setup.broken == Broken::PartialInventory;
        let whole = |entry: &&Entry| entry.stamp == stamp && (entry.copied == Copied::Hashed || broken);
        arenas.flatten().find(whole).map(|entry| entry.data)
    }

    fn die(&mut self, node: usize, process: Process, exit: Exit, own: bool) {
        let Some(proc) = self.nodes[node].procs.get_mut(&process).filter(|proc| proc.dead.is_none()) else { return };
        proc.dead = Some(exit);
        proc.own_exit = own;
        let noticed = proc.initialized && !own;
        // The memory of a large process takes long to tear down; the futex does not wait for it.
        let slow = self.rng.chance(50);
        let delay = if slow { self.rng.range(20_000, 200_000) } else { self.rng.range(50, 2000) };
        self.push(delay, Act::Reap { node, process });
        if noticed && self.rng.chance(900) {
            self.local(node, Event::Dying(process));
        }
    }

    fn abort(&mut self, node: usize, process: Process, code: i32) {
        let Some(proc) = self.nodes[node].procs.get_mut(&process).filter(|proc| proc.dead.is_none()) else { return };
        if self.rng.chance(500) {
            proc.aborting = true;
            self.local(node, Event::AbortRequested { process, code });
        } else {
            self.die(node, process, Exit::Code(code), true);
        }
    }

    fn abort_goes_on(&mut self, node: usize, process: Process) {
        if let Some(proc) = self.nodes[node].procs.get(&process).filter(|proc| proc.aborting) {
            debug_assert!(proc.dead.is_none() || proc.aborting);
            self.die(node, process, Exit::Code(1), true);
        }
    }

    fn reap(&mut self, node: usize, process: Process) {
        let Some(proc) = self.nodes[node].procs.get_mut(&process) else { return };
        if !std::mem::replace(&mut proc.reaped, true) {
            let delay = self.rng.range(0, 1000);
            return self.push(delay, Act::Reap { node, process });
        }
        let Some(proc) = self.nodes[node].procs.remove(&process) else { return };
        let Some(exit) = proc.dead else { return };
        if self.nodes[node].agent.is_some() {
            // Straight to the agent: a slot's events stay in order.
            let generation = self.nodes[node].generation;
            self.push(0, Act::Tell { node, generation, event: Event::Exited { process, exit, limit: None } });
        }
    }

    /// The job is told to end.
    fn signal(&mut self, node: usize, signal: i32) {
        let alive = self.nodes[node].procs.iter().filter(|(_, proc)| proc.dead.is_none());
        let told: Vec<Process> = alive.map(|(process, _)| *process).collect();
        for process in told {
            let chance = self.rng.range(0, 9);
            let at_random = [Obedience::Dies, Obedience::Saves(0), Obedience::Saves(3), Obedience::Ignores];
            let choice = self.obedience.unwrap_or(at_random[(chance as usize).saturating_sub(6)]);
            let (code, most) = match choice {
                Obedience::Dies => {
                    self.die(node, process, Exit::Signal(signal), false);
                    continue;
                }
                Obedience::Saves(code) => (code, if self.obedience.is_some() { 1_000_000 } else { 15_000_000 }),
                Obedience::Ignores => continue,
            };
            let delay = self.rng.range(0, most);
            self.push(delay, Act::Leave { node, process, code });
        }
    }

    // ---- checkpoints

    fn hash(&mut self, node: usize, process: Process, version: u64) {
        let frozen = self.nodes[node].frozen;
        let entries = self.nodes[node].arena.entry(process.rank).or_default();
        let whole = |entry: &&mut Entry| entry.stamp.version.0 == version && entry.copied == Copied::Whole;
        let Some(entry) = entries.iter_mut().find(whole) else { return };
        if frozen > entry.stamp.epoch {
            return;
        }
        entry.copied = Copied::Hashed;
        let entry = *entry;
        // A partner's copy, unless the partner is in a later epoch.
        let count = self.nodes.len();
        let partner = (1..count)
            .map(|step| (node + step) % count)
            .find(|other| *other != node && self.nodes[*other].alive && self.nodes[*other].ended.is_none());
        let takes = |node: &Node| node.frozen <= entry.stamp.epoch;
        if let Some(partner) = partner {
            // Committed is what is whole at both levels: otherwise the older partner's copies were given up too early.
            if !takes(&self.nodes[partner]) {
                return;
            }
            self.nodes[partner].arena.entry(process.rank).or_default().push(entry);
        }
        self.local(node, Event::Committed { process, version: Version(version), level: Level::Partner });
    }

    fn inventory(&mut self, node: usize, epoch: EpochId) {
        if self.nodes[node].frozen != epoch {
            return;
        }
        let broken = self.setup.broken;
        let mut inventory = Inventory::default();
        for (owner, entries) in &mut self.nodes[node].arena {
            for entry in entries.iter_mut().filter(|entry| entry.copied == Copied::Whole) {
                entry.copied = Copied::Hashed;
            }
            if broken != Broken::PartialInventory {
                entries.retain(|entry| entry.copied == Copied::Hashed);
            }
            for entry in entries.iter() {
                let stamp = entry.stamp;
                inventory.holdings.insert(Holding { owner: *owner, stamp, level: Level::Own });
            }
        }
        self.inventories.entry(epoch).or_default().insert(node, inventory.clone());
        self.local(node, Event::InventoryTaken { epoch, inventory });
    }

    /// Invariant 4: what is restored is complete, the newest that is, and the same everywhere.
    fn restore(&mut self, node: usize, epoch: EpochId, stamp: Option<Stamp>) {
        let taken = self.inventories.get(&epoch).cloned().unwrap_or_default();
        let mut held: BTreeMap<Stamp, BTreeSet<Rank>> = BTreeMap::new();
        for holding in taken.values().flat_map(|inventory| &inventory.holdings) {
            held.entry(holding.stamp).or_default().insert(holding.owner);
        }
        let newest =
            held.iter().rev().find(|(_, ranks)| ranks.len() as u32 == self.setup.ranks).map(|(stamp, _)| *stamp);
        if stamp != newest {
            self.violated(format!("n{node} restores {stamp:?} in {epoch} although the newest complete is {newest:?}"));
        }
        let chosen = *self.choices.entry(epoch).or_insert(stamp);
        if chosen != stamp {
            self.violated(format!("n{node} restores {stamp:?} in {epoch}, another node {chosen:?}"));
        }
        self.nodes[node].restore.insert(epoch, stamp);
        for entries in self.nodes[node].arena.values_mut() {
            entries.retain(|entry| stamp.is_some_and(|stamp| entry.stamp <= stamp) || entry.stamp.epoch >= epoch);
        }
    }

    fn retire(&mut self, node: usize, complete: Version) {
        // What a node that was left out holds is lost already; it may act on what it heard before.
        if self.record.as_ref().is_some_and(|record| !record.is_member(NodeId(node as u32))) {
            return;
        }
        for rank in (0..self.setup.ranks).map(Rank) {
            let all = self.nodes.iter().filter_map(|node| node.arena.get(&rank)).flatten();
            if !all.clone().any(|entry| entry.stamp.version >= complete && entry.copied == Copied::Hashed) {
                self.violated(format!("n{node} retires what is older than {complete}, which {rank} does not hold"));
            }
        }
        for entries in self.nodes[node].arena.values_mut() {
            entries.retain(|entry| entry.stamp.version >= complete || entry.copied != Copied::Hashed);
        }
    }

    // ---- faults

    fn place_of(&self, rank: u32) -> Option<(usize, Process)> {
        let procs = self.nodes.iter().enumerate().filter(|(_, node)| node.alive);
        procs
            .flat_map(|(i, node)| node.procs.iter().map(move |(process, proc)| (i, *process, proc)))
            .filter(|(_, process, proc)| process.rank == Rank(rank) && proc.dead.is_none())
            .map(|(i, process, _)| (i, process))
            .max_by_key(|(_, process)| process.world)
    }

    #[allow(clippy::too_many_lines, reason = "a table: one entry for each fault")]
    pub fn fault(&mut self, fault: Fault) {
        self.note(|| format!("fault: {fault:?}"));
        match fault {
            Fault::KillRank { rank, signal } => {
                if let Some((node, process)) = self.place_of(rank) {
                    self.die(node, process, Exit::Signal(signal), false);
                }
            }
            Fault::ExitRank { rank, code } => {
                if let Some((node, process)) = self.place_of(rank) {
                    self.own_wish = true;
                    self.die(node, process, Exit::Code(code), true);
                }
            }
            Fault::AbortRank { rank, code } => {
                if let Some((node, process)) = self.place_of(rank) {
                    self.own_wish = true;
                    if let Some(proc) = self.nodes[node].procs.get_mut(&process) {
                        proc.aborting = true;
                        self.local(node, Event::AbortRequested { process, code });
                    }
                }
            }
            Fault::KillServer { node } => {
                if let Some(world) = self.nodes[node].procs.keys().map(|process| process.world).max() {
                    self.local(node, Event::WorldServerLost(world));
                }
            }
            Fault::KillAgent { node } => self.kill_agent(node),
            Fault::KillNode { node } => {
                let state = &mut self.nodes[node];
                state.alive = false;
                state.agent = None;
                state.procs.clear();
                state.slots.clear();
            }
            Fault::LoseSlot { slot } => self.lose_slot(slot),
            Fault::Suspend { node, us } => {
                let until = self.now + us;
                self.nodes[node].suspended_until = until;
                self.nodes[node].drowsy = true;
                self.push(us, Act::Resume { node });
            }
            Fault::Cut { from, to } => {
                self.cuts.insert((from, to));
            }
            Fault::Isolate { node, store } => {
                for other in (0..self.nodes.len()).filter(|other| *other != node) {
                    self.cuts.insert((node, other));
                    self.cuts.insert((other, node));
                }
                if store {
                    self.store_cut.insert(node);
                }
            }
            Fault::StoreDown => self.store_down = true,
            Fault::Heal => {
                self.cuts.clear();
                self.store_cut.clear();
                self.store_down = false;
            }
            Fault::Cancel { signal } => {
                self.own_wish = true;
                self.cancelled.get_or_insert((signal, self.now));
                for node in 0..self.nodes.len() {
                    if self.nodes[node].alive {
                        self.local(node, Event::Cancel { signal });
                    }
                }
            }
        }
    }

    fn kill_agent(&mut self, node: usize) {
        if !self.nodes[node].alive || self.nodes[node].agent.is_none() || self.nodes[node].ended.is_some() {
            return;
        }
        self.nodes[node].agent = None;
        self.nodes[node].generation += 1;
        self.nodes[node].restarts += 1;
        self.nodes[node].wake = None;
        let orphans: Vec<Process> = self.nodes[node].procs.keys().copied().collect();
        for process in orphans {
            self.die(node, process, Exit::Signal(9), false);
        }
        let (delay, generation) = (self.rng.range(5000, 50_000), self.nodes[node].generation);
        self.push(delay, Act::StartAgent { node, generation });
    }

    fn lose_slot(&mut self, slot: SlotId) {
        let Some(node) = self.nodes.iter().position(|node| node.alive && node.slots.contains(&slot)) else { return };
        self.nodes[node].slots.remove(&slot);
        let found = self.nodes[node].procs.iter_mut().find(|(_, proc)| proc.slot == slot);
        let dies =
            found.map(|(process, proc)| (*process, proc.initialized, proc.dead.replace(Exit::Signal(9)).is_some()));
        // The rank dies of its shepherd's death, and that is seen, as a rule, long before the launcher has swept behind them.
        if let Some((process, true, false)) = dies
            && self.rng.chance(900)
        {
            let (generation, delay) = (self.nodes[node].generation, self.rng.range(1, 300));
            for event in [Event::SlotDying(slot), Event::Dying(process)] {
                self.push(delay, Act::Tell { node, generation, event });
            }
        }
        let delay = self.rng.range(300, 8000);
        self.push(delay, Act::SlotGone { node, slot, process: dies.map(|(process, ..)| process) });
    }

    fn slot_gone(&mut self, node: usize, slot: SlotId, process: Option<Process>) {
        if let Some(process) = process {
            self.nodes[node].procs.remove(&process);
        }
        self.local(node, Event::SlotLost(slot));
    }

    // ---- the invariants that hold at every moment

    fn check(&mut self) {
        // Invariant 2: no two processes of one rank compute; in this mode, not even two worlds.
        let mut seen: BTreeMap<Rank, Process> = BTreeMap::new();
        for node in 0..self.nodes.len() {
            for process in self.computing_on(node) {
                let other = seen.insert(process.rank, process);
                let of_another_world = || seen.values().find(|other| other.world != process.world).copied();
                if let Some(other) = other.or_else(of_another_world) {
                    return self.violated(format!("{process} and {other} compute at the same time"));
                }
            }
        }
    }

    /// What must hold when a job is over; an error otherwise.
    pub fn verdict(&self) -> Result<(i32, String), String> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        if !self.over() {
            let waiting: Vec<String> = self
                .nodes
                .iter()
                .enumerate()
                .filter(|(_, node)| node.alive && node.ended.is_none())
                .map(|(i, node)| {
                    let agent = node.agent.as_ref();
                    let epoch = agent.and_then(Agent::record).map(|record| record.epoch.0);
                    format!("n{i} {:?} in epoch {epoch:?}", agent.map(Agent::stage))
                })
                .collect();
            if self.traced {
                for (i, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.alive) {
                    println!(
                        "n{i}: paused {} procs {:?} arena {:?} {:?}",
                        node.paused,
                        node.procs,
                        node.arena,
                        node.agent.as_ref().map(Agent::fence)
                    );
                }
            }
            return Err(format!("at {} µs: the job hangs: {}", self.now, waiting.join(", ")));
        }
        let outcome = self.record.as_ref().and_then(|record| record.outcome.clone());
        let alive: Vec<&Node> = self.nodes.iter().filter(|node| node.alive).collect();
        let Some(outcome) = outcome else {
            let said = alive.iter().find_map(|node| node.ended.clone());
            let (status, reason) = said.unwrap_or((1, Some("every node is dead".into())));
            return Ok((status, reason.unwrap_or_default()));
        };
        if outcome.status == 0 && outcome.reason.is_none() {
            let world = self.record.as_ref().map_or(WorldId(0), |record| record.world);
            for rank in (0..self.setup.ranks).map(Rank) {
                if !self.finished.contains(&Process::primary(world, rank)) {
                    return Err(format!("the job ended well, but {rank} of {world} did not"));
                }
            }
        }
        Ok((outcome.status, outcome.reason.unwrap_or_default()))
    }
}
