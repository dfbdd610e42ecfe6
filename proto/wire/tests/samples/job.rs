//! A job: what its launcher and its agent say, with what the next agent is told.

use super::{Sample, samples};
use ft_wire::cluster::{Cluster, ClusterNode, Hidden, StoreAddress};
use ft_wire::history::History;
use ft_wire::injection::{Injection, Pending, Place};
use ft_wire::launcher::{Before, Binding, JobSpec, Program, ToAgent, ToLauncher};
use ft_wire::toll::{Late, Noticed, Sums, Toll};
use ft_wire::{Flavour, ask};
use std::time::Duration;

const SECOND: Duration = Duration::from_millis(1500);

pub fn cluster_node() -> ClusterNode {
    ClusterNode {
        name: "a".into(),
        host: "a.site".into(),
        address: "198.18.1.2".parse().unwrap(),
        port: 7,
        slots: 2,
        first_slot: 0,
        spare: false,
        domain: "rack".into(),
        lease: Some("/ftd/nodes/a".into()),
    }
}

fn store() -> StoreAddress {
    StoreAddress { socket: "/s".into(), prefix: "/ftd/jobs/j/".into() }
}

pub fn cluster() -> Cluster {
    let address = "::1".parse().unwrap();
    let second = ClusterNode { name: "b".into(), address, lease: None, first_slot: 2, ..cluster_node() };
    Cluster {
        me: 0,
        nodes: vec![cluster_node(), second],
        first: 2,
        secret: Hidden([200; 32]),
        store: store(),
        heartbeat_ms: 500,
        heartbeat_period_ms: Some(100),
        wait_ms: 0,
        oversubscribe: true,
        path_ms: 3000,
    }
}

pub fn injection() -> Injection {
    Injection { rank: 1, after_ms: 5, at: Some(Place::Copied) }
}

fn pending() -> Pending {
    Pending { injection: injection(), by: "u".into() }
}

fn program() -> Program {
    Program {
        ranks: 2,
        argv: vec![b"/bin/x".to_vec(), b"\xff".to_vec()],
        env: vec![(b"A".to_vec(), b"1".to_vec())],
        cwd: b"/".to_vec(),
        linked_in: Some(Flavour::Mpich),
        held: 0,
    }
}

fn binding() -> Binding {
    Binding { policy: "core".into(), report: false, note: Some("n".into()) }
}

fn spec() -> JobSpec {
    JobSpec {
        job: "j".into(),
        world_size: 2,
        mode: "reinit".into(),
        programs: vec![program()],
        env: vec![(b"PATH".to_vec(), b"/bin".to_vec())],
        job_dir: "/dev/shm/j".into(),
        max_failures: 3,
        grace_ms: 10_000,
        recover_aborts: false,
        mpi: "auto".into(),
        preload: "/p".into(),
        ft_pmix: "/x".into(),
        ft_ship: "/y".into(),
        expect_pmix: true,
        copy_rate: 0,
        fabric: Some("tcp".into()),
        verbose: false,
        nice: Some(-10),
        summary: true,
        binding: Some(binding()),
        injections: vec![injection()],
        node: Some("a".into()),
        cluster: Some(cluster()),
    }
}

pub fn event() -> ask::Event {
    let text = "rank 1 died".into();
    ask::Event { at_ms: 9, epoch: 2, world: 1, kind: ask::Kind::Failed, text, version: Some(4), status: Some(9) }
}

fn history() -> History {
    let mut history = History::default();
    history.add(event());
    history
}

fn noticed() -> Noticed {
    Noticed { age: SECOND, dead: vec![(1, 77)], complete: Some((7, None)), taken: Some(8) }
}

fn sums() -> Sums {
    Sums { recovering: SECOND, ..Sums::default() }
}

fn late() -> Late {
    let time = Some(SECOND);
    Late { noticed: noticed(), end: SECOND, computed: time, kept: time, number: 2, between: SECOND }
}

fn toll() -> Toll {
    Toll {
        sums: sums(),
        computed: Some(SECOND),
        complete: Some((7, Some(SECOND))),
        noticed: Some(noticed()),
        late: Some(late()),
        untold: vec![(1, 2)],
        progress: Some(3),
    }
}

fn before() -> Before {
    Before {
        died: 1,
        reported: 2,
        mpi: true,
        toll: toll(),
        injections: Some(vec![pending()]),
        history: history(),
        said: ["once".to_string()].into(),
    }
}

fn to_agent() -> Vec<Sample> {
    samples![
        ToAgent::Job { spec: spec(), slots: vec![(0, 41)], before: Some(before()) },
        ToAgent::SlotDying { slot: 1 },
        ToAgent::SlotGone { slot: 1 },
        ToAgent::SlotAdded { slot: 1, pid: 41 },
        ToAgent::Joins(Box::new(cluster_node())),
        ToAgent::Signal(10),
        ToAgent::Cancel { signal: 15 },
        ToAgent::Ask,
        ToAgent::Silent { slots: vec![1] },
        ToAgent::Drained { world: 1 },
    ]
}

fn to_launcher() -> Vec<Sample> {
    let block = "ftd: recovery".to_string();
    samples![
        ToLauncher::NeedSlot,
        ToLauncher::Input { world: 1, here: true },
        ToLauncher::MakeSlot { slot: 1 },
        ToLauncher::Drain { world: 1 },
        ToLauncher::Restores { world: 1, restored: Some((7, 2)) },
        ToLauncher::Recovered { epoch: 2, block: block.clone(), toll: Box::new(toll()) },
        ToLauncher::Here { absent: vec![1], complete: true },
        ToLauncher::Arenas,
        ToLauncher::Mpi,
        ToLauncher::Complete { version: 7 },
        ToLauncher::Toll(Box::new(toll())),
        ToLauncher::Unreported { epoch: 2, block: Some(block), toll: Box::default() },
        ToLauncher::Injections(vec![pending()]),
        ToLauncher::Notice("n".into()),
        ToLauncher::NoticeOnce("n".into()),
        ToLauncher::Happened(event()),
        ToLauncher::End { status: 1, reason: Some("r".into()), left_out: true, unrecorded: true },
    ]
}

fn parts() -> Vec<Sample> {
    samples![
        spec(),
        program(),
        binding(),
        Flavour::OpenMpi,
        Flavour::Mpich,
        cluster(),
        cluster_node(),
        Hidden([200u8; 32]),
        store(),
        before(),
        history(),
        toll(),
        sums(),
        noticed(),
        late(),
        pending(),
        injection(),
    ]
}

fn places() -> Vec<Sample> {
    samples![
        Place::Copying,
        Place::Copied,
        Place::Committed,
        Place::Restoring,
        Place::AsksForState,
        Place::Finalizes,
        Place::Fence,
        Place::Noticed,
        Place::Released,
    ]
}

pub fn all() -> Vec<Sample> {
    [to_agent(), to_launcher(), parts(), places()].into_iter().flatten().collect()
}
