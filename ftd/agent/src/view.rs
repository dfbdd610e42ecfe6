//! The job as its user may see it, put together when he asks.

use crate::hear::injections;
use crate::rooms::Rooms;
use crate::world::Member;
use ft_sys::job_time;
use ft_wire::ask::{Complete, Failures, Job, Node, Past, Process, RankPlace, State};
use ft_wire::injection::Injection;
use ft_wire::{Epoch, Rank};
use ftd_core::agent::Stage;
use ftd_core::{Agent, EpochRecord, Micros, NodeId, Suspect};
use std::time::Instant;

/// All that this node's agent knows, but for what [`look`] finds.
pub fn of(core: &Agent, rooms: &Rooms, now: Micros) -> Job {
    let (spec, record) = (&rooms.job.spec, core.record());
    let here = spec.cluster.as_ref().map_or(0, |cluster| cluster.me);
    let (processes, copies, injections) = processes(rooms);
    let complete = rooms
        .checkpoints
        .newest()
        .map(|(version, since)| Complete { version, age_ms: since.map(|since| age(since, job_time::now())) });
    Job {
        name: spec.job.clone(),
        mode: spec.mode.clone(),
        argv: spec.words(),
        world_size: spec.world_size,
        launcher: nix::unistd::getppid().as_raw(),
        agent: nix::unistd::getpid().as_raw(),
        state: state(core, rooms),
        up_ms: record.map_or(0, |record| milliseconds(now.since(record.began))),
        epoch: record.map_or(0, |record| record.epoch.0),
        world: record.map_or(0, |record| record.world.0),
        nodes: nodes(rooms, record),
        here,
        ranks: record.map(places).unwrap_or_default(),
        copies,
        processes,
        complete,
        failures: failures(core, rooms, now),
        injections,
    }
}

/// The processes of this node, but for what [`look`] finds, bytes of memory that hold copies of other nodes' checkpoints, and deaths that
/// are to come about here.
pub fn processes(rooms: &Rooms) -> (Vec<Process>, u64, Vec<Injection>) {
    let world = rooms.worlds.newest().and_then(|number| rooms.worlds.get(number));
    let members =
        world.into_iter().flat_map(|world| world.members.iter().map(move |(rank, member)| (world, *rank, member)));
    let processes: Vec<Process> =
        members.map(|(world, rank, member)| process(rooms, world.epoch, rank, member)).collect();
    let copies = rooms.checkpoints.memory_of_others(&processes.iter().map(|process| process.rank).collect());
    let injections = injections::waiting(rooms, processes.iter().map(|process| process.rank));
    (processes, copies, injections)
}

/// Adds what another node says of its ranks, and of copies that it holds.
pub fn add(job: &mut Job, from: NodeId, (processes, copies, injections): (Vec<Process>, u64, Vec<Injection>)) {
    let there = |process: &Process| job.ranks.iter().any(|place| (place.rank, place.node) == (process.rank, from.0));
    // It may have heard of less, or of more, than this node.
    let processes: Vec<Process> = processes.into_iter().filter(there).collect();
    job.processes.extend(processes);
    job.processes.sort_by_key(|process| process.rank);
    job.copies += copies;
    job.injections.extend(injections);
}

/// The node of a rank, as the newest record has it.
pub fn node_of(core: &Agent, rank: Rank) -> Option<NodeId> {
    let place = places(core.record()?).into_iter().find(|place| place.rank == rank)?;
    Some(NodeId(place.node))
}

fn age(since: Instant, now: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(since).as_millis()).unwrap_or(u64::MAX)
}

fn state(core: &Agent, rooms: &Rooms) -> State {
    match core.stage() {
        Stage::Ending | Stage::Over => State::Ending,
        Stage::Joining => State::Joining,
        _ if core.paused() || job_time::is_stopped() => State::Paused,
        _ if core.recovers() => State::Recovering,
        // The agent before this one has died, and its ranks with it.
        _ if core.record().is_none() && rooms.costs.epoch() > 0 => State::Recovering,
        Stage::Computing => State::Computing,
        _ if core.record().is_none_or(|record| record.epoch.0 <= 1) => State::Starting,
        _ => State::Recovering,
    }
}

fn nodes(rooms: &Rooms, record: Option<&EpochRecord>) -> Vec<Node> {
    let names = match &rooms.job.spec.cluster {
        None => vec![rooms.job.spec.node.clone().or_else(|| ft_sys::process::host_name().ok()).unwrap_or_default()],
        Some(cluster) => cluster.nodes.iter().map(|node| node.name.clone()).collect(),
    };
    let member = |number: u32| record.is_none_or(|record| record.is_member(NodeId(number)));
    (0..).zip(names).map(|(number, name)| Node { name, member: member(number) }).collect()
}

fn places(record: &EpochRecord) -> Vec<RankPlace> {
    let node = |slot| record.slot(slot).map_or(0, |entry| entry.node.0);
    record.placement.iter().map(|(rank, slot)| RankPlace { rank: rank.0, node: node(slot), slot: slot.0 }).collect()
}

fn process(rooms: &Rooms, epoch: Epoch, rank: Rank, member: &Member) -> Process {
    let pid = member.pid.or(member.child).filter(|_| !member.ended);
    let checkpoints = rooms.checkpoints.of_rank(rank, epoch);
    Process { rank, pid, processor: None, allowed: String::new(), checkpoints }
}

fn failures(core: &Agent, rooms: &Rooms, now: Micros) -> Failures {
    let most = rooms.job.spec.max_failures;
    let Some(record) = core.record() else {
        let number = rooms.costs.epoch().saturating_sub(1);
        return Failures { number, most, in_a_row: Vec::new(), past: Vec::new() };
    };
    // What nodes do that do not get together has a limit of its own.
    let counts = core.deaths_that_count(now).into_iter().filter(|(suspect, _)| *suspect != Suspect::Nodes);
    let past = record.history.iter().map(|entry| Past {
        epoch: entry.epoch.0,
        at_ms: milliseconds(entry.at.since(record.began)),
        what: rooms.job.said(&core.as_known(&entry.failures).to_string()),
    });
    Failures {
        // The record of a job's end is no failure's.
        number: record.epoch.0.saturating_sub(1 + u64::from(record.outcome.is_some())),
        most,
        in_a_row: counts.map(|(suspect, deaths)| (rooms.job.said(&suspect.to_string()), deaths)).collect(),
        past: past.collect(),
    }
}

fn milliseconds(time: Micros) -> u64 {
    time.0 / 1000
}

/// Adds what the kernel says of a process.
pub fn look(process: &mut Process) {
    let Some(directory) = process.pid.map(ft_sys::proc::of) else { return };
    let stat = ft_sys::proc::stat(&directory).ok().flatten();
    process.processor = stat.and_then(|stat| u32::try_from(stat.processor?).ok());
    process.allowed = ft_sys::proc::allowed_processors(&directory).ok().flatten().unwrap_or_default();
}
