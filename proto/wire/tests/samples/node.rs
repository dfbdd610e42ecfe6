//! Nodes: their daemons, the launcher's part on each, and steps of Slurm's.

use super::job::{cluster, cluster_node};
use super::{Sample, samples};
use ft_wire::cluster::Hidden;
use ft_wire::control::{Etcd, FromDaemon, NodeLease, Status, ToDaemon};
use ft_wire::part::{self, About, Begin, Carried, FromJobs, FromPart, FromPeer, Host, Image, Order, Question};
use ft_wire::part::{Mark, Resume, Running, Share, Sought, ToJobs, ToPart, ToPeer};
use ft_wire::step::{self, Answer, Challenge, Go, Hello, Layout, Member, Place, Stdin, StepId, Task, Welcome, What};

fn text(text: &str) -> String {
    text.into()
}

fn lease() -> NodeLease {
    NodeLease { id: -4, left_ms: 5, ttl_ms: 6 }
}

fn status() -> Status {
    Status {
        version: text("0.1.0"),
        pid: 1,
        up_ms: 2,
        node: text("a"),
        id: text("i"),
        label: text("rack"),
        host: text("a.site"),
        config: "/etc/ftd/ftd.toml".into(),
        later: vec![text("l")],
        refused: Some(text("r")),
        etcd: Etcd::Answers { ago_ms: 3 },
        lease: Some(lease()),
        jobs: vec![text("j")],
    }
}

fn of_control() -> Vec<Sample> {
    samples![
        ToDaemon::Status,
        FromDaemon::Status(Box::new(status())),
        FromDaemon::Refused(text("no")),
        status(),
        Etcd::Unasked,
        Etcd::Answers { ago_ms: 3 },
        Etcd::Away { for_ms: 3, reason: text("r") },
        lease(),
    ]
}

fn request() -> part::Request {
    part::Request {
        protocol: 7,
        ranks: 2,
        heartbeat_ms: Some(500),
        heartbeat_period_ms: Some(100),
        hosts: vec![Host { name: text("a"), slots: 2 }],
        spares: 0,
        survives: true,
        wait_ms: 1,
        oversubscribe: false,
    }
}

fn image() -> Image {
    let (words, env) = (b"ftrun\0x\0".to_vec(), b"A=1\0".to_vec());
    Image { words, env, cwd: "/w".into(), umask: 0o22, limits: [u64::MAX; 9], nice: 5 }
}

fn sought() -> Sought {
    Sought { job: text("j"), nodes: vec![text("a")], memory: "/dev/shm".into() }
}

fn resume() -> Resume {
    Resume { protocol: 7, job: text("j"), nodes: 2, open: vec![0], lost: vec![1] }
}

fn begun() -> FromJobs {
    let cluster = Some(Box::new(cluster()));
    FromJobs::Begun { job: text("j"), nodes: vec![text("a")], came: vec![7], window: 9, cluster }
}

fn running() -> Running {
    Running { job: text("j"), uid: 1000, nodes: vec![text("a")], launcher: Some(41) }
}

fn of_launchers() -> Vec<Sample> {
    let (node, why, mark) = (1, text("w"), Mark { came: 5, passed: 3 });
    samples![
        request(),
        Host { name: text("a"), slots: 2 },
        image(),
        sought(),
        running(),
        ToJobs::Launch(Box::new(request())),
        resume(),
        ToJobs::Resume(Box::new(resume())),
        ToJobs::Carry { node, word: Carried::End },
        ToJobs::Mark { node, turn: 2, mark },
        ToJobs::Lost(1),
        ToJobs::Ends,
        ToJobs::Leave,
        ToJobs::Ask,
        ToJobs::Step(Box::new(step_request())),
        ToJobs::Node(text("a")),
        ToJobs::Jobs,
        ToJobs::Agent(Box::new(sought())),
        FromJobs::Refused { status: 2, sentence: text("s") },
        FromJobs::Away(text("s")),
        begun(),
        FromJobs::Joined { node, name: text("b"), came: 7, of: Some(Box::new(cluster_node())) },
        FromJobs::Resumed,
        FromJobs::Carried { node, word: Carried::End },
        FromJobs::Another { node, turn: 2 },
        FromJobs::Agreed { node, mark },
        FromJobs::Lost { node, why },
        FromJobs::Here,
        FromJobs::Gone,
        FromJobs::Running { jobs: vec![running()], silent: vec![text("b")] },
    ]
}

fn share() -> Share {
    Share { job: text("j"), me: 0, slots: 2, bind: Some("198.18.1.2".parse().unwrap()) }
}

fn start() -> part::Start {
    let (from, to, user) = (text("a"), text("b"), text("u"));
    part::Start { protocol: 7, from, to, uid: 1000, user, window: 9, share: share(), link: 11 }
}

fn question() -> Question {
    let (from, to, user) = (text("a"), text("b"), text("u"));
    Question { protocol: 7, from, to, uid: 1000, user, window: 9, about: About::Jobs }
}

fn of_daemons() -> Vec<Sample> {
    samples![
        start(),
        share(),
        question(),
        About::Jobs,
        About::Agent { job: text("j"), memory: "/dev/shm".into() },
        ToPeer::Start(Box::new(start())),
        ToPeer::Ask(Box::new(question())),
        ToPeer::Resume(11),
        Mark { came: 5, passed: 3 },
        FromPeer::Jobs(vec![(text("j"), 1000)]),
        FromPeer::Here,
        FromPeer::Refused(text("no")),
        Carried::Bytes(vec![7; 300]),
        Carried::Taken(5),
        Carried::End,
        Carried::Ask,
        Carried::Here,
    ]
}

fn begin() -> Begin {
    Begin {
        node: text("a"),
        store: "/run/s".into(),
        share: share(),
        words: b"ftrun\0".to_vec(),
        cwd: "/".into(),
        umask: 0o22,
        limits: [1; 9],
        nice: 0,
        copy_rate: 0,
        fabric: Some("tcp".into()),
    }
}

fn to_parts() -> Vec<Sample> {
    samples![
        begin(),
        ToPart::Begin(Box::new(begin())),
        ToPart::Go { cluster: Some(Box::new(cluster())) },
        ToPart::Order(Order::Input(b"in".to_vec())),
        ToPart::BeginStep { begin: Box::new(begin()), node: Box::new(step_node()) },
        ToPart::Find { job: text("j"), owner: 1000, memory: "/dev/shm".into() },
        Order::Signal(10),
        Order::Cancel(15),
        Order::Kill(text("k")),
        Order::Input(b"in".to_vec()),
        Order::InputEnd,
        Order::Announced(2),
        Order::Joins(Box::new(cluster_node())),
        Order::Pulse,
        Order::Ask,
    ]
}

fn from_parts() -> Vec<Sample> {
    let (world, slot, rank, epoch) = (1, 0, 1, 2);
    samples![
        FromPart::Refused { status: 2, sentence: text("s") },
        FromPart::Prepared { port: 9, host: text("a.site"), protocol: 7 },
        FromPart::Output { world, slot, rank: Some(rank), err: false, bytes: b"x\n".to_vec() },
        FromPart::Mark { world, slot, rank, version: 7, epoch, placed: true },
        FromPart::Restores { world, restored: Some((7, epoch)) },
        FromPart::Line(text("l")),
        FromPart::Notice(text("n")),
        FromPart::Block { epoch, text: text("b") },
        FromPart::Room { world, bytes: 4096 },
        FromPart::Ended { status: 1, of_job: false, unrecorded: true, lost_output: false, reason: Some(text("r")) },
        FromPart::Here,
    ]
}

fn layout() -> Layout {
    Layout { node: 0, nodes: 2, first: 0, tasks: 2, all: 4 }
}

fn step_request() -> step::Request {
    step::Request { protocol: 7, front: 0, word: text("w"), layout: layout() }
}

fn step_node() -> step::Node {
    step::Node {
        step: StepId { job: 7, step: 0 },
        layout: layout(),
        domain: text("rack"),
        lease: text("/ftd/nodes/a"),
        prefix: text("/ftd/jobs/j/"),
        heartbeat_ms: 500,
        heartbeat_period_ms: Some(100),
        path_ms: 3000,
    }
}

fn member() -> Member {
    let address = Some("198.18.1.2".parse().unwrap());
    Member { node: step_node(), name: text("a"), host: text("a.site"), address, port: 9, protocol: 7 }
}

fn place() -> Place {
    Place {
        socket: "/s".into(),
        soft_limits: (1, u64::MAX),
        nice: Some(5),
        then: text("x"),
        is_binary: true,
        stdin: Stdin::File(3),
    }
}

fn of_steps() -> Vec<Sample> {
    let addresses = vec!["198.18.1.2:9".parse().unwrap(), "[::1]:9".parse().unwrap()];
    samples![
        step::Step { addresses, secret: Hidden([9; 32]), options: vec![b"-v".to_vec()] },
        StepId { job: 7, step: 0 },
        layout(),
        step_request(),
        step::Request { front: 7, ..step_request() },
        step_node(),
        Challenge { nonce: [9; 32] },
        Hello { nonce: [8; 32], proof: [255; 32], what: vec![1] },
        Welcome { proof: [255; 32] },
        What::Part(Box::new(member())),
        What::Refused { status: 2, sentence: text("s") },
        member(),
        Go { ranks: 4, cluster: Some(Box::new(cluster())) },
        Task { slot: 3 },
        place(),
        Answer::Seat(place()),
        Answer::No(text("no")),
        Stdin::Null,
        Stdin::File(3),
        Stdin::Spool,
    ]
}

pub fn all() -> Vec<Sample> {
    let parts = [to_parts(), from_parts()].into_iter().flatten();
    [of_control(), of_launchers(), of_daemons(), of_steps()].into_iter().flatten().chain(parts).collect()
}
