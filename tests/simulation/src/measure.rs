//! What one recovery costs in a large cluster: messages and bytes, store operations, simulated time, and the processor
//! time of the agents' own steps, per node.

use crate::driver;
use crate::faults::{Fault, Planned};
use crate::net::{Barrier, Set};
use crate::setup::{MS, SECOND, Setup};
use crate::world::World;
use ftd_core::plan::first_record;
use ftd_core::{
    Cause, Cluster, Effect, Event, Failure, FailureSet, Micros, Mode, NodeId, Policy, SlotId, Subject, Terms, plan,
};
use std::time::{Duration, Instant};

/// What the agents did since the counting began.
#[derive(Debug, Default, Clone)]
pub struct Meter {
    /// Per node: messages sent, their bytes, requests to the store.
    nodes: Vec<[u64; 3]>,
    steps: u64,
    spent: Duration,
    longest: Duration,
}

impl Meter {
    /// Nothing yet, of so many nodes.
    pub fn new(nodes: usize) -> Self {
        Meter { nodes: vec![[0; 3]; nodes], ..Meter::default() }
    }

    /// One step of the agent of `node`, begun at `began`, wants this done.
    pub fn step(&mut self, node: usize, began: Instant, effects: &[Effect]) {
        let took = began.elapsed();
        self.steps += 1;
        self.spent += took;
        self.longest = self.longest.max(took);
        let Some([messages, bytes, requests]) = self.nodes.get_mut(node) else { return };
        for effect in effects {
            match effect {
                Effect::Send { message, .. } => {
                    *messages += 1;
                    *bytes += driver::size(message);
                }
                Effect::ReadStore | Effect::Cas { .. } => *requests += 1,
                _ => {}
            }
        }
    }

    fn column(&self, at: usize) -> (f64, u64) {
        let all = self.nodes.iter().map(|node| node[at]);
        (all.clone().sum::<u64>() as f64 / self.nodes.len() as f64, all.max().unwrap_or(0))
    }
}

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

impl Case {
    /// All of them.
    pub const ALL: [Case; 5] = [Case::Process, Case::Node, Case::Rack, Case::Aborts, Case::Cut];

    fn faults(self, setup: &Setup) -> Vec<Fault> {
        let dies = |node| Fault::KillNodes(Set::one(node));
        match self {
            Case::Process | Case::Aborts => vec![Fault::KillRank { rank: 1, signal: 9 }],
            Case::Node => vec![dies(1)],
            Case::Rack => driver::observers(setup, 1).into_iter().chain([1]).map(dies).collect(),
            Case::Cut => vec![Fault::Net { barrier: Barrier::Ports { spread: 0, draw: 1 }, span: 3 * SECOND }],
        }
    }
}

/// A line for people: the recovery from this failure in a cluster of so many nodes.
///
/// # Errors
/// The job did not come to compute, before or after the failure.
pub fn recovery(nodes: u32, case: Case) -> Result<String, String> {
    let mut setup = Setup {
        nodes,
        slots: 1,
        ranks: nodes - (nodes / 10).max(4),
        racks: nodes,
        steps: 1_000_000,
        every: u32::MAX,
        pace: 500 * MS,
        ..Setup::default()
    };
    setup.policy.progress_after = Micros(0);
    let faults = case.faults(&setup);
    let mut world = World::new(&setup, false);
    reach(&mut world, 0)?;
    world.run_until(3 * SECOND, |_| false);
    world.meter = Some(Meter::new(nodes as usize));
    let (began, epoch) = (world.now, world.store.value().map_or(0, |record| record.epoch.0));
    for fault in faults {
        world.setup.faults.push(Planned { at: began, fault });
        world.fault(fault);
    }
    if case == Case::Aborts {
        world.all_abort();
    }
    match case {
        Case::Cut => world.run_until(3500 * MS, |_| false),
        _ => true,
    };
    let after = if case == Case::Cut { 0 } else { epoch + 1 };
    reach(&mut world, after)?;
    let took = world.now - began;
    let meter = world.meter.take().unwrap_or_default();
    let [(messages, most), (bytes, _), (requests, _)] = [meter.column(0), meter.column(1), meter.column(2)];
    let each = meter.spent.as_secs_f64() * 1e3 / f64::from(nodes);
    let longest = meter.longest.as_secs_f64() * 1e3;
    Ok(format!(
        "{nodes:>6} {:<8} {:>8.1} ms {messages:>10.1} messages (at most {most}), {:>9.1} kB, {requests:>6.1} store \
         operations, {each:>9.3} ms of processor, longest step {longest:.3} ms",
        format!("{case:?}"),
        took as f64 / 1e3,
        bytes / 1e3
    ))
}

/// Runs until the job computes in an epoch not before this one.
fn reach(world: &mut World, epoch: u64) -> Result<(), String> {
    let there = |world: &World| world.store.value().is_some_and(|record| record.epoch.0 >= epoch) && world.computing();
    if world.run_until(120 * SECOND, there) {
        return Ok(());
    }
    let broken = world.checks.first().map(|(_, violation)| violation.to_string());
    Err(broken.unwrap_or_else(|| "the job does not compute".to_string()))
}

/// A line for people: how long the next record takes to plan for so many nodes of 64 slots, when a node dies.
///
/// # Errors
/// There is no next record.
pub fn planning(nodes: u32) -> Result<String, String> {
    const EACH: u32 = 64;
    let members: Vec<NodeId> = (0..nodes).map(NodeId).collect();
    let slots = (0..nodes * EACH).map(|slot| (SlotId(slot), NodeId(slot / EACH))).collect();
    let (terms, ranks) = (Terms::default(), (nodes - nodes / 20 - 1) * EACH);
    let mut record =
        first_record(Mode::Reinit, terms, ranks, &members, &slots, Micros(0)).map_err(|error| error.to_string())?;
    let deaths = nodes / 40;
    let mut longest = Duration::ZERO;
    for death in 0..deaths {
        let node = NodeId(death * 29 % nodes);
        let mut failures = FailureSet::new();
        failures.insert(Failure { subject: Subject::Node(node), cause: Cause::NodeSilent, node });
        let began = Instant::now();
        record =
            plan(&record, &failures, &Cluster::default(), &Policy::default()).map_err(|error| error.to_string())?;
        longest = longest.max(began.elapsed());
    }
    let runs = record.placement.runs().len() + record.slots.homes().len() + record.slots.states().len();
    Ok(format!(
        "{nodes:>6} nodes of {EACH} slots, {deaths} of which died one after the other: planned in {:.1} ms at most, {runs} runs",
        longest.as_secs_f64() * 1e3
    ))
}

/// A line for people: what one step costs in which nothing changes, in a cluster of so many nodes.
///
/// # Errors
/// The job did not come to compute.
pub fn idle_step(nodes: u32) -> Result<String, String> {
    const STEPS: u32 = 10_000;
    let setup = Setup { nodes, slots: 1, ranks: nodes, every: u32::MAX, pace: 500 * MS, ..Setup::default() };
    let mut world = World::new(&setup, false);
    reach(&mut world, 0)?;
    let (now, machine) = (world.now, &mut world.machines[0]);
    let agent = machine.agent.as_mut().ok_or("there is no agent")?;
    let began = Instant::now();
    for _ in 0..STEPS {
        agent.step(Micros(now + machine.offset), Event::Timer);
    }
    let each = began.elapsed().as_secs_f64() * 1e6 / f64::from(STEPS);
    Ok(format!("{nodes:>6} nodes: a step that changes nothing takes {each:.2} us"))
}
