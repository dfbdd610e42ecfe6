//! What one recovery costs in a large cluster, per node: messages and bytes, store operations, simulated time, processor time and
//! memory. Every agent is the shipped one, and every heartbeat is sent.

mod meter;
mod table;
mod tape;

pub use meter::Meter;
pub use table::{Column, Table};

use crate::driver;
use crate::faults::{Fault, Planned};
use crate::net::{Barrier, Set};
use crate::node::Machine;
use crate::setup::{SECOND, Setup};
use crate::world::World;
use ftd_core::plan::first_record;
use ftd_core::{
    Agent, Cause, Cluster, EpochRecord, Event, Failure, FailureSet, Micros, Mode, NodeId, Policy, SlotId, Subject,
    Terms, plan,
};
use std::fmt;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Says how many bytes of memory this process holds, as its allocator counts them.
pub type Held = fn() -> usize;

/// So long all links are cut.
const CUT: u64 = 3 * SECOND;

/// A failure whose recovery is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// One process dies.
    Process,
    /// One node dies.
    Node,
    /// A node dies with all its observers.
    Rack,
    /// All ranks abort because one died.
    Aborts,
    /// All links are cut for three seconds.
    Cut,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Case::Process => "process",
            Case::Node => "node",
            Case::Rack => "rack",
            Case::Aborts => "all abort",
            Case::Cut => "cut",
        })
    }
}

impl Case {
    /// All of them.
    pub const ALL: [Case; 5] = [Case::Process, Case::Node, Case::Rack, Case::Aborts, Case::Cut];

    fn faults(self, setup: &Setup) -> Vec<Fault> {
        let dies = |node| Fault::KillNodes(Set::one(node));
        match self {
            Case::Process | Case::Aborts => vec![Fault::KillRank { rank: 1, signal: 9 }],
            Case::Node => vec![dies(1)],
            Case::Rack => driver::observers(setup, 1).into_iter().chain([1]).map(dies).collect(),
            Case::Cut => vec![Fault::Net { barrier: Barrier::Ports { spread: 0, draw: 1 }, span: CUT }],
        }
    }
}

/// A cluster: how many nodes, and slots on each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Nodes; a tenth of them, four at least, stand by.
    pub nodes: u32,
    /// Slots of each.
    pub slots: u32,
}

impl Size {
    fn setup(self) -> Setup {
        let Size { nodes, slots } = self;
        let mut setup = Setup {
            nodes,
            slots,
            ranks: (nodes - (nodes / 10).max(4)) * slots,
            racks: nodes,
            steps: 1_000_000,
            every: EVERY,
            pace: SECOND,
            ..Setup::default()
        };
        setup.policy.progress_after = Micros(0);
        setup
    }
}

/// A checkpoint after so many steps of a second.
const EVERY: u32 = 1;

/// What something costs a node: on the average, and the one that pays most.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Each {
    /// The average.
    pub mean: f64,
    /// The most.
    pub most: f64,
}

impl Each {
    fn of(values: impl Iterator<Item = f64>) -> Each {
        let (mut count, mut sum, mut most) = (0.0, 0.0, 0f64);
        for value in values {
            (count, sum, most) = (count + 1.0, sum + value, most.max(value));
        }
        Each { mean: if count > 0.0 { sum / count } else { 0.0 }, most }
    }
}

/// What one recovery costs.
#[derive(Debug, Clone, Default)]
pub struct Costs {
    /// Simulated milliseconds from the failure (of a cut: from its end) until all ranks compute.
    pub time: f64,
    /// Messages per node, without heartbeats and what answers them.
    pub messages: Each,
    /// Heartbeats and what answers them.
    pub beats: Each,
    /// Kilobytes of all of these, without the records in them.
    pub kilobytes: Each,
    /// Kilobytes of the longest of them.
    pub longest: Each,
    /// Kilobytes of records.
    pub records: Each,
    /// Reads and writes of the store.
    pub requests: Each,
    /// Milliseconds of processor of the agent's steps, but for those that plan.
    pub processor: Each,
    /// Milliseconds of processor of the steps that plan a record and write it.
    pub planning: Each,
    /// Kilobytes that the agent holds when all compute again, without the record.
    pub memory: Each,
    /// Kilobytes of the record in memory.
    pub record: f64,
    /// Microseconds of a step that changes nothing, before the failure.
    pub idle: f64,
}

/// Measures the recovery from this failure in a cluster of this size.
///
/// # Errors
/// The job did not come to compute, before or after the failure.
pub fn recovery(size: Size, case: Case, held: Held) -> Result<Costs, String> {
    let setup = size.setup();
    let faults = case.faults(&setup);
    let mut world = World::new(&setup, false);
    reach(&mut world, 0)?;
    world.run_until(SETTLES, |_| false);
    let idle = idle_step(&world)?;
    world.meter = Some(Meter::new(&world.machines));
    let (began, epoch) = (world.now, world.store.value().map_or(0, |record| record.epoch.0));
    for fault in faults {
        world.setup.faults.push(Planned { at: began, fault });
        world.fault(fault);
    }
    match case {
        Case::Aborts => world.all_abort(),
        Case::Cut => _ = world.run_until(CUT, |_| false),
        _ => {}
    }
    let (began, after) = if case == Case::Cut { (world.now, epoch) } else { (began, epoch + 1) };
    reach(&mut world, after)?;
    let time = (world.now - began) as f64 / 1e3;
    let meter = world.meter.take().unwrap_or_default();
    let record = world.store.value().cloned().ok_or("there is no record")?;
    let before = held();
    let copy = EpochRecord::clone(&record);
    let record = (held() - before + size_of::<EpochRecord>()) as f64 / 1e3;
    drop(copy);
    let memory = memory(&mut world, held);
    Ok(Costs { time, idle, memory, record, ..meter.costs() })
}

/// So long the job computes before the failure: a checkpoint is complete at both levels, and another one on its way.
const SETTLES: u64 = 2 * SECOND;

/// Runs until the job computes in an epoch not before this one, and nobody stands still.
fn reach(world: &mut World, epoch: u64) -> Result<(), String> {
    let moves = |world: &World| {
        let still = |machine: &Machine| machine.still(world.now) && world.ranks.lives_on(machine);
        !world.machines.iter().any(still)
    };
    let there = |world: &World| {
        world.store.value().is_some_and(|record| record.epoch.0 >= epoch) && world.computing() && moves(world)
    };
    if world.run_until(120 * SECOND, there) {
        return Ok(());
    }
    let broken = world.checks.first().map(|(_, violation)| violation.to_string());
    Err(broken.unwrap_or_else(|| format!("the job does not compute: {}", world.whereabouts())))
}

/// What each agent holds of its own: what is free when it is gone. (The record is shared, and others hold it still.)
fn memory(world: &mut World, held: Held) -> Each {
    let of_agent = |agent: Agent| {
        let before = held();
        drop(agent);
        (before - held() + size_of::<Agent>()) as f64 / 1e3
    };
    let agents: Vec<Agent> = world.machines.iter_mut().filter_map(|machine| machine.agent.take()).collect();
    Each::of(agents.into_iter().map(of_agent))
}

/// What a step costs in which nothing changes: of the tree's root and of a leaf, whichever is dearer.
fn idle_step(world: &World) -> Result<f64, String> {
    const STEPS: u32 = 10_000;
    let mut dearest = 0f64;
    for node in [0, world.machines.len() - 1] {
        let machine = &world.machines[node];
        let now = Micros(world.now + machine.offset);
        let round = |_| {
            let mut agent = machine.agent.clone()?;
            let began = Instant::now();
            for _ in 0..STEPS {
                black_box(agent.step(now, Event::Timer));
            }
            Some(began.elapsed())
        };
        let least: Option<Duration> = (0..5).filter_map(round).min();
        let least = least.ok_or("there is no agent")?;
        dearest = dearest.max(least.as_secs_f64() * 1e6 / f64::from(STEPS));
    }
    Ok(dearest)
}

/// How long it takes to plan in a large cluster.
#[derive(Debug, Clone, Copy)]
pub struct Planning {
    /// Milliseconds of the first record.
    pub first: f64,
    /// Milliseconds of the next one, after a node has died; the longest of some.
    pub next: f64,
    /// How many runs the last of them has.
    pub runs: usize,
    /// Kilobytes of it in memory.
    pub kilobytes: f64,
}

/// How long it takes to plan for a cluster of this size, of which one node in forty dies, one after the other.
///
/// # Errors
/// There is no next record.
pub fn planning(size: Size, held: Held) -> Result<Planning, String> {
    let Size { nodes, slots: each } = size;
    let members: Vec<NodeId> = (0..nodes).map(NodeId).collect();
    let slots = (0..nodes * each).map(|slot| (SlotId(slot), NodeId(slot / each))).collect();
    let (terms, ranks) = (Terms::default(), (nodes - nodes / 20 - 1) * each);
    let began = Instant::now();
    let first = first_record(Mode::Reinit, terms, ranks, &members, &slots, Micros(0));
    let mut record = first.map_err(|error| error.to_string())?;
    let first = began.elapsed();
    let mut longest = Duration::ZERO;
    for death in 0..nodes / 40 {
        let node = NodeId(death * 29 % nodes);
        let mut failures = FailureSet::new();
        failures.insert(Failure { subject: Subject::Node(node), cause: Cause::NodeSilent, node });
        let began = Instant::now();
        record =
            plan(&record, &failures, &Cluster::default(), &Policy::default()).map_err(|error| error.to_string())?;
        longest = longest.max(began.elapsed());
    }
    let runs = record.placement.runs().len() + record.slots.homes().len() + record.slots.states().len();
    let before = held();
    let copy = record.clone();
    let kilobytes = (held() - before + size_of::<EpochRecord>()) as f64 / 1e3;
    drop(copy);
    let ms = |span: Duration| span.as_secs_f64() * 1e3;
    Ok(Planning { first: ms(first), next: ms(longest), runs, kilobytes })
}
