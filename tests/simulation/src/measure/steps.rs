//! What single steps take in a large cluster: those that change nothing, and those that plan.

use super::costs::median;
use super::tape::processor_time;
use super::{Held, Size};
use crate::world::World;
use ftd_core::fence::Beat;
use ftd_core::plan::first_record;
use ftd_core::{
    Cause, Cluster, EpochRecord, Event, Failure, FailureSet, Micros, Mode, NodeId, PeerMessage, Policy, SlotId,
    Subject, Terms, plan, ring,
};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

/// What a step costs in which nothing changes, in microseconds: a timer, a heartbeat, the record that is known; of the tree's root,
/// of the next node and of the last one, whichever is dearest.
pub fn idle(world: &World) -> Result<f64, String> {
    let record = world.store.value().cloned().ok_or("there is no record")?;
    let mut dearest = 0f64;
    for node in [0, 1, world.machines.len() - 1] {
        let observed = ring::observed(&record.nodes, NodeId(node as u32), world.setup.policy.observers);
        let from = observed.first().copied().ok_or("it observes nobody")?;
        let beat = Beat { incarnation: 0, sequence: u64::MAX };
        let beats = PeerMessage::Heartbeat { beat, epoch: record.epoch, unheard: false };
        let revision = ftd_core::Revision(world.store.read().0);
        let events = [
            Event::Timer,
            Event::Message { from, message: beats },
            Event::Watched { revision, record: Some(record.clone()) },
        ];
        for event in events {
            dearest = dearest.max(step(world, node, &event)?);
        }
    }
    Ok(dearest)
}

fn step(world: &World, node: usize, event: &Event) -> Result<f64, String> {
    const STEPS: usize = 10_000;
    let machine = &world.machines[node];
    let now = Micros(world.now + machine.offset);
    let round = |_| {
        let mut agent = machine.agent.clone()?;
        let events = vec![event.clone(); STEPS];
        let began = processor_time();
        for event in events {
            black_box(agent.step(now, event));
        }
        Some((processor_time() - began).as_secs_f64() * 1e6 / STEPS as f64)
    };
    let rounds: Option<Vec<f64>> = (0..5).map(round).collect();
    Ok(median(rounds.ok_or("there is no agent")?.into_iter()))
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

/// The median of so many; the next record of each death is planned as often.
const TIMES: usize = 5;

/// What it comes to, and in how many milliseconds of processor.
fn timed<T>(plan: impl Fn() -> Result<T, String>) -> Result<(T, f64), String> {
    let mut took = Vec::new();
    let mut planned = plan()?;
    for _ in 0..TIMES {
        let began = processor_time();
        planned = plan()?;
        took.push(processor_time() - began);
    }
    Ok((planned, median(took.iter().map(Duration::as_secs_f64)) * 1e3))
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
    let begin = || first_record(Mode::Reinit, terms, ranks, &members, &slots, Micros(0));
    let (mut record, first) = timed(|| begin().map_err(|error| error.to_string()))?;
    let mut longest = 0f64;
    for death in 0..nodes / 40 {
        let node = NodeId(death * 29 % nodes);
        let mut failures = FailureSet::new();
        failures.insert(Failure { subject: Subject::Node(node), cause: Cause::NodeSilent, node });
        let next = || plan(&record, &failures, &Cluster::default(), &Policy::default());
        let (next, took) = timed(|| next().map_err(|error| error.to_string()))?;
        longest = longest.max(took);
        record = next;
    }
    let runs = record.placement.runs().len() + record.slots.homes().len() + record.slots.states().len();
    Ok(Planning { first, next: longest, runs, kilobytes: kilobytes(&Arc::new(record), held) })
}

/// What a record holds.
pub fn kilobytes(record: &Arc<EpochRecord>, held: Held) -> f64 {
    let before = held();
    let copy = EpochRecord::clone(record);
    let bytes = held() - before + size_of::<EpochRecord>();
    drop(copy);
    bytes as f64 / 1e3
}
