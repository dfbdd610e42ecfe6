//! What neighbouring releases say to each other: a sample of each link's messages as protocols that this release understands say them, and
//! fields that it does not know.

#![allow(clippy::unwrap_used)]

use ft_wire::cluster::{Cluster, ClusterNode, Hidden, StoreAddress};
use ft_wire::history::History;
use ft_wire::launcher::{Before, JobSpec, Program};
use ft_wire::part::{Begin, Host, Share};
use ft_wire::toll::{Noticed, Sums, Toll};
use ft_wire::{FRAME_HEADER, Flavour, FrameError, OLDEST, VERSION, decode, encode};
use ft_wire::{ask, between, client, control, copies, injection, launcher, part, pmix, rank, shepherd, ship, step};
use rmpv::Value;
use serde::{Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::path::PathBuf;
use std::time::Duration;

/// Reads bytes; what is read must be the sample.
type Reads = Box<dyn Fn(&[u8]) -> Result<(), FrameError>>;

struct Sample {
    link: &'static str,
    body: Vec<u8>,
    reads: Reads,
}

fn sample<M: Serialize + DeserializeOwned + PartialEq + Debug + 'static>(link: &'static str, message: M) -> Sample {
    let body = encode(&message, 0).unwrap()[FRAME_HEADER..].to_vec();
    let reads = move |body: &[u8]| decode::<M>(body).map(|read| assert_eq!(read, message, "{link}"));
    Sample { link, body, reads: Box::new(reads) }
}

fn cluster() -> Cluster {
    let node = ClusterNode {
        name: "a".into(),
        host: "a.site".into(),
        address: "198.18.1.2".parse().unwrap(),
        port: 7,
        slots: 2,
        first_slot: 0,
        spare: false,
        domain: "rack".into(),
        lease: Some("/ftd/nodes/a".into()),
    };
    let address = "::1".parse().unwrap();
    Cluster {
        me: 0,
        nodes: vec![node.clone(), ClusterNode { name: "b".into(), address, lease: None, first_slot: 2, ..node }],
        first: 2,
        secret: Hidden([200; 32]),
        store: StoreAddress { socket: "/s".into(), prefix: "/ftd/jobs/j/".into() },
        heartbeat_ms: 500,
        wait_ms: 0,
        oversubscribe: true,
        path_ms: 3000,
    }
}

fn spec() -> JobSpec {
    JobSpec {
        job: "j".into(),
        world_size: 2,
        mode: "reinit".into(),
        programs: vec![Program {
            ranks: 2,
            argv: vec![b"/bin/x".to_vec(), b"\xff".to_vec()],
            env: vec![(b"A".to_vec(), b"1".to_vec())],
            cwd: b"/".to_vec(),
            linked_in: Some(Flavour::Mpich),
            held: 0,
        }],
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
        verbose: false,
        nice: Some(-10),
        summary: true,
        binding: Some(launcher::Binding { policy: "core".into(), report: false, note: None }),
        injections: vec![injection::Injection { rank: 1, after_ms: 5, at: Some(injection::Place::Copied) }],
        cluster: Some(cluster()),
    }
}

fn event() -> ask::Event {
    let text = "rank 1 died".into();
    ask::Event { at_ms: 9, epoch: 2, world: 1, kind: ask::Kind::Failed, text, version: Some(4), status: None }
}

fn toll() -> Toll {
    let second = Duration::from_millis(1500);
    let noticed = Noticed { age: second, dead: vec![(1, 77)], complete: Some((7, None)), taken: Some(8) };
    Toll { sums: Sums { recovering: second, ..Sums::default() }, noticed: Some(noticed), ..Toll::default() }
}

fn of_launcher() -> Vec<Sample> {
    let mut history = History::default();
    history.add(event());
    let before = Before {
        died: 1,
        reported: 2,
        mpi: true,
        toll: toll(),
        injections: Some(Vec::new()),
        history,
        said: ["once".to_string()].into(),
    };
    let recovered = launcher::ToLauncher::Recovered { epoch: 2, block: "ftd: recovery".into(), toll: Box::new(toll()) };
    vec![
        sample(
            "launcher to agent",
            launcher::ToAgent::Job { spec: spec(), slots: vec![(0, 41)], before: Some(before) },
        ),
        sample("launcher to agent", launcher::ToAgent::Ask),
        sample("agent to launcher", recovered),
    ]
}

fn of_ranks() -> Vec<Sample> {
    let start = shepherd::Start {
        world: 1,
        epoch: 2,
        rank: 3,
        argv: vec![b"/bin/x".to_vec()],
        env: Vec::new(),
        cwd: b"/".to_vec(),
        processors: vec![0, 300],
        held: 0,
        stdin: true,
        fd_at: None,
    };
    let hello = rank::ToAgent::Hello {
        world: 1,
        rank: 3,
        pid: 5,
        flavour: Flavour::OpenMpi,
        library: "Open MPI".into(),
        session: false,
    };
    let env = vec![("A".to_string(), Some(vec![0; 40])), ("B".to_string(), None)];
    let jobs = vec![event(), event()];
    vec![
        sample("shepherd to agent", shepherd::ToAgent::Hello { slot: 1, pid: 5, arenas: vec![3] }),
        sample("agent to shepherd", shepherd::ToShepherd::Start(start)),
        sample("rank to agent", hello),
        sample("agent to rank", rank::ToRank::Welcome { env, pmi_fd: true }),
        sample("client to agent", client::ToAgent::Hello { world: 1, rank: 3, pid: 5, layout: 6 }),
        sample("agent to client", client::ToClient::Restore { found: Some((7, 2)) }),
        sample("asker to agent", ask::ToAgent::Events { follow: true }),
        sample("agent to asker", jobs),
    ]
}

fn of_helpers() -> Vec<Sample> {
    let proc = pmix::Proc { nspace: "n".into(), rank: 1 };
    let world = pmix::WorldInfo {
        nspace: "n".into(),
        world_size: 2,
        nodes: vec![("a".into(), vec![0, 1])],
        me: 0,
        tmpdir: "/t".into(),
        incarnation: 1,
        apps: vec![pmix::App { ranks: 2, argv0: b"x".to_vec(), cwd: b"/".to_vec() }],
    };
    let target = ship::Target { base: 1 << 40, key: 2, bytes: 3 };
    let (direction, arena) = (ship::Direction::Get, 1);
    let moved = ship::ToShip::Move { id: 1, direction, arena, offset: 0, bytes: 3, node: 1, target, patience_ms: 9 };
    vec![
        sample("agent to ft-pmix", pmix::ToPmix::Register(world)),
        sample("ft-pmix to agent", pmix::ToAgent::Fence { token: 1, procs: vec![proc], data: vec![255; 3] }),
        sample("agent to ft-ship", moved),
        sample("ft-ship to agent", ship::ToAgent::Ready { provider: "tcp".into(), address: vec![1, 2] }),
    ]
}

fn of_daemons() -> Vec<Sample> {
    let status = control::Status {
        version: "0.1.0".into(),
        pid: 1,
        up_ms: 2,
        node: "a".into(),
        id: "i".into(),
        label: "rack".into(),
        host: "a.site".into(),
        config: "/etc/ftd/ftd.toml".into(),
        later: Vec::new(),
        refused: None,
        etcd: control::Etcd::Answers { ago_ms: 3 },
        lease: Some(control::NodeLease { id: -4, left_ms: 5, ttl_ms: 6 }),
        jobs: vec!["j".into()],
    };
    let request = part::Request {
        protocol: 7,
        ranks: 2,
        heartbeat_ms: None,
        hosts: vec![Host { name: "a".into(), slots: 2 }],
        spares: 0,
        survives: true,
        wait_ms: 1,
        oversubscribe: false,
    };
    let image =
        part::Image { words: b"ftrun\0x\0".to_vec(), cwd: "/w".into(), limits: [u64::MAX; 9], ..Default::default() };
    let share = Share { job: "j".into(), me: 0, slots: 2, bind: Some("198.18.1.2".parse().unwrap()) };
    let (from, to, user) = ("a".to_string(), "b".to_string(), "u".to_string());
    let start = part::Start { protocol: 7, from, to, uid: 1000, user, window: 9, share: share.clone() };
    let begin = Begin {
        node: "a".into(),
        store: "/run/s".into(),
        share,
        words: b"ftrun\0".to_vec(),
        cwd: PathBuf::from("/"),
        umask: 0o22,
        limits: [1; 9],
        nice: 0,
        copy_rate: 0,
    };
    let word = part::FromPart::Output { world: 1, slot: 0, rank: Some(1), err: false, bytes: b"x\n".to_vec() };
    vec![
        sample("asker to daemon", control::ToDaemon::Status),
        sample("daemon to asker", control::FromDaemon::Status(Box::new(status))),
        sample("daemon to asker", control::FromDaemon::Refused("no".into())),
        sample("launcher to daemon", part::ToJobs::Launch(Box::new(request))),
        sample("launcher to daemon", image),
        sample("daemon to launcher", part::FromJobs::Said { node: 1, word }),
        sample("daemon to daemon", part::ToPeer::Start(Box::new(start))),
        sample("daemon to daemon", part::Carried::Bytes(vec![7; 300])),
        sample("daemon to part", part::ToPart::Begin(Box::new(begin))),
        sample("daemon to part", part::ToPart::Order(part::Order::Input(b"in".to_vec()))),
    ]
}

fn of_steps() -> Vec<Sample> {
    let layout = step::Layout { node: 0, nodes: 2, first: 0, tasks: 2, all: 4 };
    let node = step::Node {
        step: step::StepId { job: 7, step: 0 },
        layout,
        domain: "rack".into(),
        lease: "/ftd/nodes/a".into(),
        prefix: "/ftd/jobs/j/".into(),
        heartbeat_ms: 500,
        path_ms: 3000,
    };
    let (name, host) = ("a".to_string(), "a.site".to_string());
    let address = Some("198.18.1.2".parse().unwrap());
    let member = step::Member { node, name, host, address, port: 9, protocol: 7 };
    let place = step::Place {
        socket: "/s".into(),
        soft_limits: (1, u64::MAX),
        nice: None,
        then: "x".into(),
        is_binary: true,
        stdin: step::Stdin::File(3),
    };
    vec![
        sample("task to daemon", step::Request { protocol: 7, word: "w".into(), layout }),
        sample("front to part", step::Challenge { nonce: [9; 32] }),
        sample("part to front", step::Hello { nonce: [8; 32], proof: [255; 32], what: vec![1] }),
        sample("part to front", step::What::Part(Box::new(member))),
        sample("front to part", step::Go { ranks: 4, cluster: Some(Box::new(cluster())) }),
        sample("task to part", step::Task { slot: 3 }),
        sample("part to task", step::Answer::Seat(place)),
    ]
}

fn of_agents() -> Vec<Sample> {
    let fence = between::Fence { protocol: between::Protocol::Group(5), ranks: vec![(0, 4)], turn: 7 };
    let copy = copies::CopyName { epoch: 1, rank: 2, version: 3, committed: 1, turn: 0 };
    let facts = copies::CopyFacts { bytes: 4, regions: 1, table_check: u64::MAX, checksum: 6 };
    let answer = between::UserAnswer::Noted(Err("no".into()));
    vec![
        sample("agent to agent", between::Word::Up { fence, parts: vec![b"a".to_vec(), Vec::new()] }),
        sample("agent to agent", between::Word::Copy(copies::CopyWord::Offer { copy, facts })),
        sample("agent to agent", between::Word::User(between::UserWord::Answer { token: 1, answer })),
    ]
}

fn samples() -> Vec<Sample> {
    [of_launcher(), of_ranks(), of_helpers(), of_daemons(), of_steps(), of_agents()].into_iter().flatten().collect()
}

fn recorded(protocol: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests").join(format!("protocol-{protocol}.txt"))
}

/// Bytes of what `escape_ascii` has written.
fn unescaped(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, more)) = rest.split_first() {
        let (byte, length) = match (first, more.first()) {
            (b'\\', Some(b'x')) => (u8::from_str_radix(std::str::from_utf8(&more[1..3]).unwrap(), 16).unwrap(), 3),
            (b'\\', Some(b't')) => (b'\t', 1),
            (b'\\', Some(b'n')) => (b'\n', 1),
            (b'\\', Some(b'r')) => (b'\r', 1),
            (b'\\', Some(other)) => (*other, 1),
            _ => (*first, 0),
        };
        bytes.push(byte);
        rest = &more[length..];
    }
    bytes
}

/// A release in which these bytes are other ones has the next number, and reads those of this one all the same.
#[test]
fn what_neighbours_say_is_read_and_what_this_release_says_is_as_it_was() {
    let said = samples().iter().fold(String::new(), |mut text, sample| {
        let _ = writeln!(text, "{}: {}", sample.link, sample.body.escape_ascii());
        text
    });
    if std::env::var_os("FT_TEST_WRITE").is_some() {
        std::fs::write(recorded(VERSION), &said).unwrap();
    }
    for protocol in OLDEST.max(VERSION - 1)..=VERSION {
        let text = std::fs::read_to_string(recorded(protocol)).unwrap();
        // Links that are newer come last.
        for (line, sample) in text.lines().zip(samples()) {
            let (link, body) = line.split_once(": ").unwrap();
            assert_eq!(link, sample.link);
            (sample.reads)(&unescaped(body)).unwrap();
        }
        assert!(protocol != VERSION || text == said, "what protocol {VERSION} says is another than it was");
    }
}

/// Maps of which the keys are names of fields, and not that of a variant.
fn with_more(value: Value, added: &mut usize) -> Value {
    match value {
        Value::Map(pairs) => {
            let is_field =
                |key: &Value| key.as_str().is_some_and(|key| key.starts_with(|c: char| c.is_ascii_lowercase()));
            // Serde's own form of a time has these two and no others, ever.
            let is_time = |key: &Value| key.as_str() == Some("nanos");
            let fields = pairs.iter().all(|(key, _)| is_field(key) && !is_time(key));
            let mut pairs: Vec<_> = pairs.into_iter().map(|(key, value)| (key, with_more(value, added))).collect();
            if fields {
                *added += 1;
                let inner =
                    Value::Map(vec![("of".into(), Value::Array(vec![1.into(), Value::Nil])), (7.into(), true.into())]);
                pairs.insert(0, ("unheard_of".into(), inner));
                pairs.push(("never_heard_of".into(), Value::Binary(vec![0; 70])));
            }
            Value::Map(pairs)
        }
        Value::Array(values) => Value::Array(values.into_iter().map(|value| with_more(value, added)).collect()),
        other => other,
    }
}

#[test]
fn fields_that_nobody_knows_are_passed_over() {
    let mut all = BTreeMap::new();
    for sample in samples() {
        let (value, mut added) = (rmpv::decode::read_value(&mut &sample.body[..]).unwrap(), 0);
        let mut more = Vec::new();
        rmpv::encode::write_value(&mut more, &with_more(value, &mut added)).unwrap();
        (sample.reads)(&more).unwrap();
        *all.entry(sample.link).or_insert(0) += added;
    }
    let without: Vec<_> = all.iter().filter(|(_, added)| **added == 0).map(|(link, _)| *link).collect();
    assert_eq!(without, ["asker to daemon"]);
    assert!(all.values().sum::<usize>() > 60, "{all:?}");
}

/// As it is on the wire, so is it in memory: a gigabyte of arrays of numbers would be two.
#[test]
fn bytes_are_said_as_they_are() {
    for many in [vec![0xffu8; 100_000], Vec::new(), vec![0]] {
        let word = between::Word::Up {
            fence: between::Fence { protocol: between::Protocol::Pmi, ranks: Vec::new(), turn: 0 },
            parts: vec![many.clone(), many.clone()],
        };
        let frame = encode(&word, 0).unwrap();
        assert!(frame.len() < 2 * many.len() + 100, "{} for twice {}", frame.len(), many.len());
        assert_eq!(decode::<between::Word>(&frame[FRAME_HEADER..]), Ok(word));
    }
}

#[test]
fn what_is_cut_or_is_no_message_is_an_error() {
    for sample in samples() {
        for end in 0..sample.body.len() {
            let read = (sample.reads)(&sample.body[..end]);
            assert!(matches!(read, Err(FrameError::Malformed(_))), "{} up to {end}", sample.link);
        }
    }
    for wrong in
        [&b""[..], b"\xc1", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x81\xa4None\xc0", b"\xa8Unheard of"]
    {
        assert!(decode::<part::FromPart>(wrong).is_err(), "{wrong:?}");
    }
}
