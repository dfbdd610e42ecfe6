//! Who asks a job's agent how the job is.

use super::job::{event, injection};
use super::{Sample, samples};
use ft_wire::ask::ToAgent;
use ft_wire::ask::{Checkpoints, Complete, Failures, FromAgent, Job, Kind, Node, Past, Process, RankPlace, State};

fn node() -> Node {
    Node { name: "a".into(), member: true }
}

fn place() -> RankPlace {
    RankPlace { rank: 1, node: 0, slot: 2 }
}

fn checkpoints() -> Checkpoints {
    Checkpoints { number: 3, bytes: 4096, spent_us: 5, copy_us: 6, newest: Some(7), memory: 8192 }
}

pub fn process() -> Process {
    Process { rank: 1, pid: Some(41), processor: Some(2), allowed: "0-3".into(), checkpoints: Some(checkpoints()) }
}

fn complete() -> Complete {
    Complete { version: 7, age_ms: Some(9) }
}

fn past() -> Past {
    Past { epoch: 2, at_ms: 9, what: "rank 1 died".into() }
}

fn failures() -> Failures {
    Failures { number: 1, most: 3, in_a_row: vec![("a".into(), 1)], past: vec![past()] }
}

fn job() -> Job {
    Job {
        name: "j".into(),
        mode: "reinit".into(),
        argv: vec![b"/bin/x".to_vec()],
        world_size: 2,
        launcher: 40,
        agent: 41,
        state: State::Computing,
        up_ms: 9,
        epoch: 2,
        world: 1,
        nodes: vec![node()],
        here: 0,
        ranks: vec![place()],
        processes: vec![process()],
        complete: Some(complete()),
        copies: 1,
        failures: failures(),
        injections: vec![injection()],
    }
}

fn words() -> Vec<Sample> {
    samples![
        ToAgent::Show,
        ToAgent::Events { follow: true },
        ToAgent::Inject(injection()),
        ToAgent::Name,
        FromAgent::Job(Box::new(job())),
        FromAgent::Event(event()),
        FromAgent::Told,
        FromAgent::Noted("n".into()),
        FromAgent::Refused("no".into()),
    ]
}

fn parts() -> Vec<Sample> {
    samples![
        State::Starting,
        State::Computing,
        State::Recovering,
        State::Paused,
        State::Joining,
        State::Ending,
        job(),
        node(),
        place(),
        process(),
        checkpoints(),
        complete(),
        failures(),
        past(),
        event(),
        Kind::Released,
        Kind::Failed,
        Kind::Agreed,
        Kind::Cause,
        Kind::Recovered,
        Kind::Interrupted,
        Kind::Complete,
        Kind::Notice,
        Kind::Injected,
        Kind::Ended,
    ]
}

pub fn all() -> Vec<Sample> {
    [words(), parts()].into_iter().flatten().collect()
}
