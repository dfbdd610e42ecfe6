//! What one recovery costs in a large cluster, per node: messages and bytes, store operations, simulated time, processor time and
//! memory. Every agent is the shipped one, and every heartbeat is sent.

mod costs;
mod meter;
mod steps;
mod table;
mod tape;

pub use costs::{Costs, Each};
pub use meter::{Meter, Tapes};
pub use steps::{Planning, planning};
pub use table::{Column, Table};

use crate::driver;
use crate::faults::{Fault, Planned};
use crate::net::{Barrier, Set};
use crate::node::Machine;
use crate::setup::{MS, SECOND, Setup};
use crate::world::World;
use ftd_core::{Agent, EpochId, Micros};
use std::fmt;

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
    fn setup(self, seed: u64) -> Setup {
        let Size { nodes, slots } = self;
        let mut setup = Setup {
            seed,
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

/// What came of a recovery.
#[derive(Debug)]
pub struct Recovered {
    /// What it cost, but for processor time.
    pub costs: Costs,
    /// What some agents were told, for that.
    pub tapes: Tapes,
    /// Microseconds of a step that changes nothing, before the failure.
    pub idle: f64,
}

/// Measures the recovery from this failure in a cluster of this size: from the failure until all compute, everybody knows that, and
/// people are told.
///
/// # Errors
/// The job did not come to compute, before or after the failure, or nobody told people.
pub fn recovery(size: Size, case: Case, seed: u64, held: Held) -> Result<Recovered, String> {
    let setup = size.setup(seed);
    let mut world = settled(&setup)?;
    let idle = steps::idle(&world)?;
    world.meter = Some(Meter::new(&world.machines));
    let Times { computes, told } = fail(&mut world, &setup, case)?;
    let meter = world.meter.take().unwrap_or_default();
    let record = world.store.value().cloned().ok_or("there is no record")?;
    let mut costs = meter.costs();
    costs.put(Column::Time, Each::alone(computes));
    costs.put(Column::Told, Each::alone(told));
    costs.put(Column::Record, Each::alone(steps::kilobytes(&record, held)));
    costs.put(Column::Memory, memory(&mut world, held));
    Ok(Recovered { costs, tapes: meter.tapes(), idle })
}

/// Adds how long the same recovery takes where no packet and no request takes much longer than others: what of that grows is the
/// protocol's, and not the slowest of many packets'. `fan_out`: of the tree, where it is not the shipped one.
///
/// # Errors
/// As [`recovery`].
pub fn take_even_times(costs: &mut Costs, size: Size, case: Case, fan_out: Option<u32>) -> Result<(), String> {
    let mut setup = size.setup(1);
    setup.weather.even = true;
    setup.policy.fan_out = fan_out.unwrap_or(setup.policy.fan_out);
    let Times { computes, told } = fail(&mut settled(&setup)?, &setup, case)?;
    costs.put(Column::EvenTime, Each::alone(computes));
    costs.put(Column::EvenTold, Each::alone(told));
    Ok(())
}

/// How long a recovery took, in milliseconds.
struct Times {
    computes: f64,
    told: f64,
}

/// A cluster whose job computes and has a version that is complete at both levels.
fn settled(setup: &Setup) -> Result<World, String> {
    let mut world = World::new(setup, false);
    reach(&mut world, EpochId(0))?;
    world.run_until(SETTLES, |_| false);
    Ok(world)
}

/// Lets it fail, and come back.
fn fail(world: &mut World, setup: &Setup, case: Case) -> Result<Times, String> {
    let (began, epoch) = (world.now, world.store.value().map_or(EpochId(0), |record| record.epoch));
    for fault in case.faults(setup) {
        world.setup.faults.push(Planned { at: began, fault });
        world.fault(fault);
    }
    match case {
        Case::Aborts => world.all_abort(),
        Case::Cut => _ = world.run_until(CUT, |_| false),
        _ => {}
    }
    let (began, after) = if case == Case::Cut { (world.now, epoch) } else { (began, epoch.next()) };
    reach(world, after)?;
    let since = |world: &World| (world.now - began) as f64 / 1e3;
    let computes = since(world);
    if case != Case::Cut {
        tell(world, after)?;
    }
    Ok(Times { computes, told: since(world) })
}

/// A median of so many.
const ROUNDS: usize = 21;

/// Adds processor times: what each agent was told is told again to it alone, in turns with those of the other clusters.
pub fn take_times<'a>(all: impl IntoIterator<Item = &'a mut Recovered>) {
    let mut all: Vec<&mut Recovered> = all.into_iter().collect();
    for _ in 0..ROUNDS {
        all.iter_mut().for_each(|one| one.tapes.play());
    }
    all.into_iter().for_each(|one| one.tapes.took(&mut one.costs));
}

/// So long the job computes before the failure: a checkpoint is complete at both levels, and another one on its way.
const SETTLES: u64 = 2 * SECOND;

/// Runs until the job computes in an epoch not before this one, and nobody stands still.
fn reach(world: &mut World, epoch: EpochId) -> Result<(), String> {
    let moves = |world: &World| {
        let still = |machine: &Machine| machine.still(world.now) && world.ranks.lives_on(machine);
        !world.machines.iter().any(still)
    };
    let there = |world: &World| {
        world.store.value().is_some_and(|record| record.epoch >= epoch) && world.computing() && moves(world)
    };
    come(world, "the job does not compute", there)
}

/// Runs until people have been told of the recovery that led to this epoch, or a later one, and to every member it is over.
fn tell(world: &mut World, epoch: EpochId) -> Result<(), String> {
    let over = |machine: &Machine| machine.agent.as_ref().is_none_or(|agent| !agent.recovers());
    let there = |world: &World| {
        let told = world.checks.reports.iter().any(|done| done.complete && done.epoch >= epoch);
        told && world.machines.iter().all(over)
    };
    come(world, "nobody tells of the recovery", there)
}

/// Runs until it is so, which is looked at once in a millisecond: between two heartbeats there may be few acts to look after.
fn come(world: &mut World, what: &str, there: impl Fn(&World) -> bool) -> Result<(), String> {
    let (end, mut looked) = (world.now + 120 * SECOND, None);
    while let Some(next) = world.queue.next_at().filter(|next| *next <= end) {
        if looked.is_none_or(|looked| next >= looked + MS) {
            if there(world) {
                return Ok(());
            }
            looked = Some(world.now);
        }
        if !world.advance() {
            break;
        }
    }
    let broken = world.checks.first().map(|(_, violation)| violation.to_string());
    Err(broken.unwrap_or_else(|| format!("{what}: {}", world.whereabouts())))
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
