//! What programs read: `docs/ftctl.schema.json` describes it.

use crate::find::Found;
use ft_wire::ask::{Checkpoints, Event, Job, Kind, State};
use ft_wire::injection::{Injection, Place};
use serde_json::{Value, json};

/// What `state` may be.
pub fn state(state: State) -> &'static str {
    match state {
        State::Starting => "starting",
        State::Computing => "computing",
        State::Recovering => "recovering",
        State::Paused => "paused",
        State::Joining => "joining",
        State::Ending => "ending",
    }
}

/// What `event` may be.
pub fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Released => "released",
        Kind::Failed => "failed",
        Kind::Agreed => "agreed",
        Kind::Cause => "cause",
        Kind::Recovered => "recovered",
        Kind::Interrupted => "interrupted",
        Kind::Complete => "complete",
        Kind::Notice => "notice",
        Kind::Injected => "injected",
        Kind::Ended => "ended",
    }
}

/// What the events are.
pub const EVENTS: [(Kind, &str); 10] = [
    (Kind::Released, "the processes of a world run"),
    (Kind::Failed, "a failure is known"),
    (Kind::Agreed, "what is done about it is agreed, and begins"),
    (Kind::Cause, "it is known of what somebody has died, which it was not when that was told"),
    (Kind::Recovered, "the recovery is over: its block, as on ftrun's standard error"),
    (Kind::Interrupted, "the next failure, or the job's end, came before the recovery was over: its block"),
    (Kind::Complete, "every rank has taken a version; these are told with --follow, and not remembered"),
    (Kind::Notice, "a sentence, as on ftrun's standard error"),
    (Kind::Injected, "a failure is brought about that was asked for"),
    (Kind::Ended, "the job is over, with its exit status"),
];

fn line(value: &Value) -> String {
    format!("{value}\n")
}

fn summary(found: &Found, job: &Job) -> Value {
    let argv: Vec<_> = job.argv.iter().map(|word| String::from_utf8_lossy(word)).collect();
    json!({
        "job": job.name,
        "user": found.uid,
        "ftrun_pid": found.ftrun(job),
        "agent_pid": job.agent,
        "program": argv,
        "mode": job.mode,
        "ranks": job.world_size,
        "state": state(job.state),
        "running_ms": job.up_ms,
        "epoch": job.epoch,
        "world": job.world,
        "complete": job.complete.map(|complete| json!({ "version": complete.version, "age_ms": complete.age_ms })),
        "failures": job.failures.number,
        "max_failures": job.failures.most,
        "failures_left": left(job),
    })
}

/// Whether the job survives none.
pub fn survives_none(job: &Job) -> bool {
    job.mode == "none"
}

/// So many more deaths in a row end the job.
pub fn left(job: &Job) -> u32 {
    if survives_none(job) {
        return 1;
    }
    let worst = job.failures.in_a_row.iter().map(|(_, deaths)| *deaths).max().unwrap_or(0);
    job.failures.most.saturating_sub(worst)
}

/// `ftctl jobs`.
pub fn jobs(jobs: &[(Found, Job)]) -> String {
    let jobs: Vec<Value> = jobs.iter().map(|(found, job)| summary(found, job)).collect();
    line(&json!({ "jobs": jobs }))
}

fn checkpoints(of: Option<Checkpoints>) -> Value {
    of.map_or(Value::Null, |of| {
        json!({
            "number": of.number,
            "bytes": of.bytes,
            "in_call_us": of.spent_us,
            "last_copy_us": of.copy_us,
            "newest": of.newest,
            "memory_bytes": of.memory,
        })
    })
}

fn node(job: &Job, number: u32) -> Value {
    job.nodes.get(number as usize).map_or(Value::Null, |node| json!(node.name))
}

/// The nodes of ranks of which nothing is known: their agents have not answered.
pub fn silent(job: &Job) -> Vec<&str> {
    let known = |rank| job.processes.iter().any(|process| process.rank == rank);
    let silent = |number: u32| job.ranks.iter().any(|place| place.node == number && !known(place.rank));
    let others = (0..).zip(&job.nodes).filter(|(number, _)| *number != job.here && silent(*number));
    others.map(|(_, node)| node.name.as_str()).collect()
}

fn injection(injection: &Injection) -> Value {
    json!({ "rank": injection.rank, "after_ms": injection.after_ms, "at": injection.at.map(Place::name) })
}

/// `ftctl show`.
pub fn job(found: &Found, job: &Job) -> String {
    let ranks = job.ranks.iter().map(|place| {
        let process = job.processes.iter().find(|process| process.rank == place.rank);
        json!({
            "rank": place.rank,
            "node": node(job, place.node),
            "slot": place.slot,
            "pid": process.and_then(|process| process.pid),
            "processor": process.and_then(|process| process.processor),
            "allowed_processors": process.map(|process| process.allowed.as_str()),
            "checkpoints": checkpoints(process.and_then(|process| process.checkpoints)),
        })
    });
    let in_a_row = job.failures.in_a_row.iter().map(|(who, deaths)| json!({ "who": who, "deaths": deaths }));
    let past = job.failures.past.iter();
    let past = past.map(|past| json!({ "epoch": past.epoch, "at_ms": past.at_ms, "what": past.what }));
    let mut value = summary(found, job);
    value["node"] = node(job, job.here);
    value["nodes"] = job.nodes.iter().map(|node| json!({ "name": node.name, "member": node.member })).collect();
    value["silent_nodes"] = json!(silent(job));
    value["rank"] = ranks.collect();
    value["copies_bytes"] = json!(job.copies);
    value["in_a_row"] = in_a_row.collect();
    value["past"] = past.collect();
    value["injections"] = job.injections.iter().map(injection).collect();
    line(&value)
}

/// What those ranks together have checkpointed of which it is known.
#[derive(Debug, Default)]
pub struct Total {
    /// So many ranks.
    pub ranks: u64,
    /// Checkpoints, each rank's for itself.
    pub number: u64,
    /// Their bytes.
    pub bytes: u64,
    /// So long the ranks were in `ft_checkpoint`, in microseconds.
    pub spent_us: u64,
}

/// The sum over the ranks that use `ft_checkpoint`.
pub fn total(job: &Job) -> Total {
    let each = job.processes.iter().filter_map(|process| process.checkpoints);
    each.fold(Total::default(), |sum, of| Total {
        ranks: sum.ranks + 1,
        number: sum.number + u64::from(of.number),
        bytes: sum.bytes + of.bytes,
        spent_us: sum.spent_us + of.spent_us,
    })
}

/// Which part that is of the time for which so many ranks have run.
pub fn share(job: &Job, ranks: u64, spent_us: u64) -> f64 {
    spent_us as f64 / 1e3 / (ranks.max(1) * job.up_ms.max(1)) as f64
}

/// `ftctl checkpoint-cost`.
pub fn cost(found: &Found, job: &Job) -> String {
    let ranks = job.processes.iter();
    let ranks =
        ranks.map(|process| json!({ "rank": process.rank, "checkpoints": checkpoints(process.checkpoints) })).collect();
    let mut value = summary(found, job);
    let total = total(job);
    value["cost"] = ranks;
    value["total"] = json!({
        "ranks": total.ranks,
        "number": total.number,
        "bytes": total.bytes,
        "in_call_us": total.spent_us,
        "of_the_time": share(job, total.ranks, total.spent_us),
    });
    value["silent_nodes"] = json!(silent(job));
    line(&value)
}

/// `ftctl inject`.
pub fn noted(job: &Job, said: &str) -> String {
    line(&json!({ "job": job.name, "noted": said }))
}

/// `ftctl events`, one line each.
pub fn event(job: &Job, event: &Event) -> String {
    line(&json!({
        "job": job.name,
        "time_ms": event.at_ms,
        "epoch": event.epoch,
        "world": event.world,
        "event": kind(event.kind),
        "text": event.text,
        "version": event.version,
        "status": event.status,
    }))
}
