//! What one recovery costs in a large cluster: messages and bytes, store operations, simulated time, and the processor
//! time of the agents' own steps, per node.

use crate::driver;
use crate::faults::{Fault, Planned};
use crate::net::{Barrier, Set};
use crate::setup::{MS, SECOND, Setup};
use crate::world::World;
use ftd_core::{Effect, Micros};
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
