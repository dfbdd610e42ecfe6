//! The cluster as a whole: one queue of acts, and who is to do each.

use crate::application::{ProcId, Program, Ranks};
use crate::driver::{self, Write};
use crate::fetches::Fetching;
use crate::history::History;
use crate::invariants::{Checks, Violation};
use crate::measure::Meter;
use crate::net::{Kind, Net};
use crate::node::Machine;
use crate::promises::Kept;
use crate::queue::Queue;
use crate::rng::Rng;
use crate::setup::{SECOND, Setup};
use crate::store::Store;
use ftd_core::agent::Stage;
use ftd_core::{EpochId, EpochRecord, Event, Exit, JobConfig, NodeId, PeerMessage, Rank, SlotId, Stamp, WorldId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A run that needs more steps than this for each hundred nodes goes in circles.
const MOST_ACTS: u64 = 2_000_000;

/// What travels between nodes.
#[derive(Debug, Clone)]
pub enum Packet {
    /// Between agents: a datagram.
    Peer { from: NodeId, message: Box<PeerMessage> },
    /// `MPI_Init` of a neighbour.
    Hello { from: ProcId, to: Rank },
    /// A neighbour's value after this step.
    Halo { from: ProcId, to: Rank, step: u32, value: u64 },
    /// The peer is dead.
    Reset { to: ProcId },
    /// A checkpoint on its way to the partner of the sender, who is in `epoch`.
    Ship { from: usize, rank: Rank, stamp: Stamp, value: u64, epoch: EpochId },
    /// It is there.
    Shipped { rank: Rank, stamp: Stamp },
    /// A node asks another one for a copy.
    Want { by: usize, fetching: Fetching },
    /// The copy: its bytes, and whether they are what its hash says. Nothing where it is not.
    Copy { fetching: Fetching, bytes: Option<(u64, bool)> },
}

/// Something that happens.
#[derive(Debug)]
pub enum Act {
    /// For the agent.
    Tell {
        node: usize,
        incarnation: u64,
        event: Box<Event>,
    },
    Wake {
        node: usize,
        incarnation: u64,
        at: u64,
    },
    StoreAnswer {
        node: usize,
        request: u64,
        event: Box<Event>,
    },
    StoreDeadline {
        node: usize,
        request: u64,
    },
    Watch {
        node: usize,
        incarnation: u64,
        revision: u64,
        value: Option<Arc<EpochRecord>>,
    },
    Reread {
        node: usize,
        incarnation: u64,
    },
    StartAgent {
        node: usize,
        incarnation: u64,
    },
    DialIn {
        node: usize,
        incarnation: u64,
        slot: SlotId,
    },
    /// For the machine.
    Shepherds {
        node: usize,
    },
    Lease {
        node: usize,
    },
    Kill {
        node: usize,
        world: WorldId,
    },
    Orphans {
        node: usize,
        incarnation: u64,
    },
    Empty {
        node: usize,
        incarnation: u64,
        world: WorldId,
    },
    Inventory {
        node: usize,
        incarnation: u64,
        epoch: EpochId,
    },
    NewSlot {
        node: usize,
        incarnation: u64,
        named: Option<SlotId>,
    },
    SlotGone {
        node: usize,
        slot: SlotId,
    },
    Hash {
        node: usize,
        process: ProcId,
        stamp: Stamp,
    },
    Ship {
        node: usize,
        rank: Rank,
        stamp: Stamp,
    },
    /// A copy is asked for, again; the time for that is over.
    Ask {
        node: usize,
        fetching: Fetching,
    },
    AskNoMore {
        node: usize,
        fetching: Fetching,
    },
    /// The copy that this machine has been sending is out.
    Sent {
        node: usize,
        to: usize,
        fetching: Fetching,
    },
    Arrive {
        to: usize,
        packet: Packet,
    },
    Resume {
        node: usize,
    },
    /// For a rank.
    Load(ProcId),
    Step(ProcId),
    Reap(ProcId),
    Nerve(ProcId),
    Leave(ProcId, i32),
    /// For nobody on a node.
    Again {
        from: usize,
        to: usize,
        packet: Packet,
        tries: u32,
    },
    StoreLands {
        node: usize,
        request: Option<u64>,
        incarnation: u64,
        write: Option<Write>,
        answer: Option<u64>,
    },
    Fault(usize),
    /// A machine is given to the job as a new node, where it was before.
    Return {
        place: usize,
    },
}

/// Who is to do an act, and waits for whom.
enum Whose {
    Agent(usize),
    Machine(usize),
    Nobody,
}

/// A run.
pub struct World {
    pub setup: Setup,
    pub job: JobConfig,
    pub now: u64,
    pub queue: Queue<Act>,
    /// Delays within machines.
    pub rng: Rng,
    /// What ranks do.
    pub fate: Rng,
    pub machines: Vec<Machine>,
    pub net: Net,
    pub store: Store<EpochRecord>,
    pub program: Program,
    pub ranks: Ranks,
    pub checks: Checks,
    pub kept: Kept,
    pub history: History,
    pub requests: u64,
    pub next_slot: u32,
    /// The signal that ended the job, and when.
    pub cancelled: Option<(i32, u64)>,
    /// Signals that the tasks were sent, and when.
    pub signalled: Vec<(i32, u64)>,
    /// Ranks whose next process ends before it calls `MPI_Init`, or within it.
    pub absent: BTreeMap<Rank, bool>,
    /// Ranks that die by themselves in every world.
    pub crashing: BTreeSet<Rank>,
    /// One rank of each world does, one after the other.
    pub crash_in_turn: bool,
    /// The last sign that the job gets on, or that something happens to it.
    pub last_sign: u64,
    pub last_fault: u64,
    /// Counts, if somebody wants to know.
    pub meter: Option<Meter>,
}

impl World {
    pub fn new(setup: &Setup, traced: bool) -> Self {
        let seed = setup.seed;
        let mut rng = Rng::of(seed, 1);
        let machine = |node: u32, offset| {
            let slots = (0..setup.slots).map(|slot| SlotId(node * setup.slots + slot)).collect();
            Machine::new(node as usize, offset, slots)
        };
        let mut world = World {
            now: 0,
            queue: Queue::new(),
            fate: Rng::of(seed, 2),
            machines: (0..setup.nodes).map(|node| machine(node, rng.range(0, 10 * SECOND))).collect(),
            net: Net::new(setup.weather, Rng::of(seed, 3)),
            store: Store::new(Rng::of(seed, 4), setup.weather.even),
            program: Program::new(setup),
            ranks: Ranks::default(),
            checks: Checks::new(setup),
            kept: Kept::default(),
            history: History::new(traced),
            requests: 0,
            next_slot: setup.nodes * setup.slots,
            cancelled: None,
            signalled: Vec::new(),
            absent: BTreeMap::new(),
            crashing: BTreeSet::new(),
            crash_in_turn: false,
            last_sign: 0,
            last_fault: 0,
            meter: None,
            rng,
            job: driver::job(setup),
            setup: setup.clone(),
        };
        for node in 0..world.machines.len() {
            let delay = world.rng.range(0, 20_000);
            world.push(delay, Act::StartAgent { node, incarnation: 0 });
        }
        for index in 0..world.setup.faults.len() {
            let at = world.setup.faults[index].at;
            world.push(at, Act::Fault(index));
        }
        world
    }

    pub fn push(&mut self, delay: u64, act: Act) {
        self.queue.push(self.now + delay, act);
    }

    pub fn note(&mut self, line: impl FnOnce() -> String) {
        self.history.note(self.now, line);
    }

    pub fn violated(&mut self, violation: Violation) {
        let now = self.now;
        self.history.note(now, || format!("VIOLATION: {violation}"));
        self.checks.violated(now, violation);
    }

    /// The next act; false when there is none, or a rule was broken.
    pub fn advance(&mut self) -> bool {
        let Some((at, act)) = self.queue.pop() else { return false };
        self.now = self.now.max(at);
        if self.queue.count() > MOST_ACTS * (1 + self.machines.len() as u64 / 100) {
            self.violated(Violation::Hang("agents keep each other busy and get nowhere".to_string()));
            return false;
        }
        if let Some(act) = self.may(act) {
            self.act(act);
            self.check_instant();
        }
        self.checks.first().is_none()
    }

    /// The act, unless it is void or has to wait.
    fn may(&mut self, act: Act) -> Option<Act> {
        let (node, until) = match self.whose(&act) {
            Whose::Nobody => return Some(act),
            Whose::Machine(node) => (node, self.machines[node].suspended_until),
            Whose::Agent(node) => (node, self.machines[node].suspended_until.max(self.machines[node].stalled_until)),
        };
        let starts = matches!(act, Act::StartAgent { .. });
        if !self.machines[node].alive && !starts {
            return None;
        }
        if until <= self.now {
            return Some(act);
        }
        // A machine that stands still takes few datagrams into its buffers.
        let datagram = matches!(&act, Act::Arrive { packet: Packet::Peer { .. }, .. });
        if !(datagram && self.rng.chance(500)) {
            self.queue.push(until, act);
        }
        None
    }

    fn whose(&self, act: &Act) -> Whose {
        match act {
            Act::Tell { node, .. }
            | Act::Wake { node, .. }
            | Act::StoreAnswer { node, .. }
            | Act::StoreDeadline { node, .. }
            | Act::Watch { node, .. }
            | Act::Reread { node, .. }
            | Act::Inventory { node, .. }
            | Act::Hash { node, .. }
            | Act::StartAgent { node, .. } => Whose::Agent(*node),
            Act::Shepherds { node }
            | Act::Lease { node }
            | Act::Kill { node, .. }
            | Act::Orphans { node, .. }
            | Act::Empty { node, .. }
            | Act::NewSlot { node, .. }
            | Act::DialIn { node, .. }
            | Act::SlotGone { node, .. }
            | Act::Ship { node, .. }
            | Act::Ask { node, .. }
            | Act::AskNoMore { node, .. }
            | Act::Sent { node, .. }
            | Act::Resume { node }
            | Act::Arrive { to: node, .. } => Whose::Machine(*node),
            Act::Load(id) | Act::Step(id) | Act::Reap(id) | Act::Nerve(id) | Act::Leave(id, _) => {
                Whose::Machine(self.ranks.get(*id).node)
            }
            Act::Again { .. } | Act::StoreLands { .. } | Act::Fault(_) | Act::Return { .. } => Whose::Nobody,
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Load(id) => self.load(id),
            Act::Step(id) => self.stepped(id),
            Act::Reap(id) => self.reap(id),
            Act::Nerve(id) => self.loses_its_nerve(id),
            Act::Leave(id, code) => self.die(id, Exit::Code(code), true),
            Act::Arrive { to, packet } => self.arrive(to, packet),
            Act::Again { from, to, packet, tries } => self.send_again(from, to, packet, tries),
            Act::Hash { node, process, stamp } => self.hash(node, process, stamp),
            Act::Ship { node, rank, stamp } => self.ship(node, rank, stamp),
            Act::Fault(index) => self.fault(self.setup.faults[index].fault),
            Act::Return { place } => self.join(Some(place)),
            Act::Ask { node, fetching } => self.ask(node, fetching),
            Act::AskNoMore { node, fetching } => self.ask_no_more(node, fetching),
            Act::Sent { node, to, fetching } => self.sent(node, to, fetching),
            Act::Shepherds { node } => self.shepherds(node),
            Act::Lease { node } => self.lease_timer(node),
            Act::Kill { node, world } => self.kill_world(node, world),
            Act::Orphans { node, incarnation } => self.orphans(node, incarnation),
            Act::Resume { node } => self.resumed(node),
            Act::SlotGone { node, slot } => self.slot_gone(node, slot),
            other => self.drive(other),
        }
    }

    // ---- between nodes

    /// Where two nodes are plugged in.
    fn places(&self, from: usize, to: usize) -> (usize, usize) {
        (self.machines[from].place, self.machines[to].place)
    }

    /// A datagram: lost, late, or twice.
    pub fn send_datagram(&mut self, from: usize, to: usize, kind: Kind, packet: &Packet) {
        let (here, there) = self.places(from, to);
        for delay in self.net.datagram(here, there, kind, self.now).into_iter().flatten() {
            self.push(delay, Act::Arrive { to, packet: packet.clone() });
        }
    }

    /// Over a connection that breaks.
    pub fn send_once(&mut self, from: usize, to: usize, packet: Packet) {
        let (here, there) = self.places(from, to);
        if self.net.passes(here, there, Kind::Large, self.now) {
            let delay = self.net.delay(self.now);
            self.push(delay, Act::Arrive { to, packet });
        }
    }

    /// Over a connection: sent again until it gets through.
    pub fn send_reliably(&mut self, from: usize, to: usize, packet: Packet) {
        self.send_again(from, to, packet, 0);
    }

    fn send_again(&mut self, from: usize, to: usize, packet: Packet, tries: u32) {
        if !self.machines[from].alive || self.is_void(&packet) {
            return;
        }
        let (here, there) = self.places(from, to);
        if self.net.passes(here, there, Kind::Large, self.now) {
            let delay = self.net.delay(self.now);
            return self.push(delay, Act::Arrive { to, packet });
        }
        let wait = (100_000u64 << tries.min(3)).min(500_000);
        self.push(wait, Act::Again { from, to, packet, tries: tries + 1 });
    }

    /// Whoever sent it is dead, and its kernel sends it no more.
    fn is_void(&self, packet: &Packet) -> bool {
        match packet {
            Packet::Hello { from, .. } | Packet::Halo { from, .. } => {
                !matches!(self.ranks.get(*from).dead, None | Some(Exit::Code(0)))
            }
            _ => false,
        }
    }

    fn arrive(&mut self, to: usize, packet: Packet) {
        match packet {
            Packet::Peer { from, message } => {
                let incarnation = self.machines[to].incarnation;
                let event = Box::new(Event::Message { from, message: *message });
                // The socket's queue: an agent that stands still reads it later.
                self.push(0, Act::Tell { node: to, incarnation, event });
            }
            Packet::Hello { from, to: rank } => self.hello(to, from, rank),
            Packet::Halo { from, to: rank, step, value } => self.halo(to, from, rank, step, value),
            Packet::Reset { to } => self.peer_is_dead(to),
            Packet::Ship { from, rank, stamp, value, epoch } => self.take_copy(to, from, rank, stamp, value, epoch),
            Packet::Shipped { rank, stamp } => self.shipped(to, rank, stamp),
            Packet::Want { by, fetching } => self.wanted(to, by, fetching),
            Packet::Copy { fetching, bytes } => self.brought(to, fetching, bytes),
        }
    }

    // ---- the run

    /// Runs until the condition holds; false when so much time passed, or a rule was broken, first.
    pub fn run_until(&mut self, limit: u64, condition: impl Fn(&World) -> bool) -> bool {
        let end = self.now + limit;
        let mut look = 0;
        while self.checks.first().is_none() {
            // Looking costs as much as a few acts.
            if look == 0 || self.queue.next_at().is_none_or(|at| at > end) {
                if condition(self) {
                    return true;
                }
                look = self.machines.len().max(8);
            }
            look -= 1;
            if self.queue.next_at().is_none_or(|at| at > end) {
                self.now = end;
                return condition(self);
            }
            self.advance();
        }
        false
    }

    /// Runs to the end of the job, and says how it ended.
    pub fn run(&mut self) -> Result<(i32, String), Violation> {
        let patience = self.setup.hangs_after();
        while self.checks.first().is_none() {
            for _ in 0..64 {
                if !self.advance() {
                    break;
                }
            }
            if self.over() {
                break;
            }
            self.last_fault = self.last_fault.max(self.setup.quiet_from().min(self.now));
            if self.now > self.last_sign.max(self.last_fault) + patience || self.queue.next_at().is_none() {
                let where_ = self.whereabouts();
                self.violated(Violation::Hang(format!("the job hangs: {where_}")));
            } else if self.now > self.setup.quiet_from() + 4 * patience {
                self.violated(Violation::Hang("the job goes in circles".to_string()));
            }
        }
        self.verdict()
    }

    /// Every agent has ended, but for those that were left out of the job and have no process left. Who waits in vain to be taken in ends, too, but
    /// mostly after minutes.
    pub fn over(&self) -> bool {
        let waits = self.setup.is_store_given_up();
        let joining = |machine: &Machine| machine.agent.as_ref().is_some_and(|agent| agent.stage() == Stage::Joining);
        let joins = |machine: &Machine| waits && joining(machine);
        self.machines.iter().enumerate().all(|(node, machine)| {
            let out = self.is_out(node) && !self.ranks.lives_on(machine) && !joins(machine);
            !machine.alive || machine.ended.is_some() || out
        })
    }
}
