//! A rank: its shepherd, the preload and the client library in it, and their agent.

use super::{Sample, samples};
use ft_wire::{Flavour, client, rank, shepherd};

fn start() -> shepherd::Start {
    shepherd::Start {
        world: 1,
        epoch: 2,
        rank: 3,
        argv: vec![b"/bin/x".to_vec()],
        env: vec![(b"A".to_vec(), b"1".to_vec())],
        cwd: b"/".to_vec(),
        processors: vec![0, 300],
        held: 0,
        stdin: true,
        fd_at: Some(5),
    }
}

fn of_shepherds() -> Vec<Sample> {
    use shepherd::{Pipes, ToAgent, ToShepherd};
    let (world, rank, pid) = (1, 3, 5);
    samples![
        Pipes { world, rank },
        start(),
        ToShepherd::Start(start()),
        ToShepherd::Stop { world, over: true, refused: false },
        ToShepherd::Signal(10),
        ToShepherd::SignalWhenCaught { signal: 10, again: true },
        ToShepherd::Joined { world, rank, pid },
        ToShepherd::Lease,
        ToShepherd::LookAtLease { turn: 1 },
        ToShepherd::KeepArena { rank },
        ToShepherd::Exit,
        ToAgent::Hello { slot: 1, pid, arenas: vec![3] },
        ToAgent::Started { world, rank, pid },
        ToAgent::StartFailed { world, rank, what: "x".into(), status: 127 },
        ToAgent::Notice("n".into()),
        ToAgent::Orphaned { world, rank, pid, heir: 1 },
        ToAgent::LeftAlone { world, rank },
        ToAgent::Exited { world, rank, pid, status: 9, oom: true, cpu_limit: false, waited: true },
        ToAgent::Signalled { signal: 15 },
        ToAgent::Remembered { signal: 10, ago: 300 },
        ToAgent::Repeated { signal: 10 },
        ToAgent::Emptied { world },
        ToAgent::Lingers { world },
    ]
}

fn of_preload() -> Vec<Sample> {
    use rank::{ToAgent, ToRank};
    let (flavour, library) = (Flavour::OpenMpi, "Open MPI".into());
    let env = vec![("A".to_string(), Some(vec![0; 40])), ("B".to_string(), None)];
    samples![
        ToAgent::Hello { world: 1, rank: 3, pid: 5, flavour, library, session: false },
        ToAgent::Initialized,
        ToAgent::Abort { code: 2 },
        ToAgent::Finalized,
        ToAgent::Astray { why: "w".into() },
        ToAgent::Unable { why: "w".into() },
        ToRank::Welcome { env, pmi_fd: true },
        ToRank::Refused { reason: "r".into() },
        ToRank::Proceed,
    ]
}

fn of_client() -> Vec<Sample> {
    use client::{ToAgent, ToClient};
    samples![
        ToAgent::Hello { world: 1, rank: 3, pid: 5, layout: 6 },
        ToAgent::Reserve { place_bytes: 4096 },
        ToAgent::Restore,
        ToAgent::Restored { version: 7 },
        ToAgent::Due,
        ToAgent::NotRestored { reason: "r".into() },
        ToAgent::Finalized { last: Some(7) },
        ToAgent::Waits { version: 7 },
        ToClient::Welcome { restarted: true, world_size: 4, epoch: 2 },
        ToClient::Refused { reason: "r".into() },
        ToClient::Reserved,
        ToClient::NoMemory { reason: "r".into() },
        ToClient::Restore { found: Some((7, 2)) },
        ToClient::Due { yes: true },
        ToClient::Finalized,
        ToClient::Left { rank: 3, last: Some(7), how: "h".into() },
        ToClient::WaitsFor { version: 7, words: "w".into() },
    ]
}

pub fn all() -> Vec<Sample> {
    [of_shepherds(), of_preload(), of_client()].into_iter().flatten().collect()
}
