//! An agent's helpers: `ft-pmix` and `ft-ship`.

use super::{Sample, samples};
use ft_wire::pmix::{self, App, Proc, Raised, WorldInfo};
use ft_wire::ship::{self, Direction, Target};

pub fn proc() -> Proc {
    Proc { nspace: "n".into(), rank: 1 }
}

pub fn raised() -> Raised {
    Raised { source: proc(), status: -3, range: 4, infos: vec![("k".into(), vec![1])] }
}

pub fn target() -> Target {
    Target { base: 1 << 40, key: 2, bytes: 3 }
}

fn app() -> App {
    App { ranks: 2, argv0: b"x".to_vec(), cwd: b"/".to_vec() }
}

fn world() -> WorldInfo {
    WorldInfo {
        nspace: "n".into(),
        world_size: 2,
        nodes: vec![("a".into(), vec![0, 1])],
        me: 0,
        tmpdir: "/t".into(),
        incarnation: 1,
        apps: vec![app()],
    }
}

fn to_pmix() -> Vec<Sample> {
    use pmix::ToPmix;
    let (token, status, data) = (1, -46, vec![255; 3]);
    samples![
        proc(),
        raised(),
        world(),
        app(),
        ToPmix::Register(world()),
        ToPmix::FenceDone { token, status, data: data.clone() },
        ToPmix::ModexDone { token, status, data: data.clone() },
        ToPmix::ModexRequest { token, proc: proc() },
        ToPmix::GroupDone { token, status, context: 5, shared: data.clone() },
        ToPmix::Raise(raised()),
        ToPmix::Ask,
        ToPmix::Done { token, status },
        ToPmix::Found { token, status, found: vec![(proc(), "k".into(), data)] },
    ]
}

fn from_pmix() -> Vec<Sample> {
    use pmix::ToAgent;
    let (token, rank, status, data) = (1, 3, -46, vec![255; 3]);
    let (procs, keys) = (vec![proc()], vec!["k".to_string()]);
    let values = vec![("k".to_string(), data.clone())];
    samples![
        ToAgent::Ready { version: "5".into() },
        ToAgent::Registered { env: vec![(rank, values.clone())] },
        ToAgent::Here,
        ToAgent::Failed { reason: "r".into() },
        ToAgent::TooLong { rank: Some(rank), error: "e".into() },
        ToAgent::Group { token, name: "g".into(), procs: procs.clone(), context: 5, shared: data.clone() },
        ToAgent::Raised(raised()),
        ToAgent::Connected { rank },
        ToAgent::Finalized { token, rank },
        ToAgent::LostConnection { rank },
        ToAgent::Abort { token, rank, status, message: "m".into() },
        ToAgent::Fence { token, procs: procs.clone(), data: data.clone() },
        ToAgent::Modex { token, proc: proc() },
        ToAgent::ModexData { token, rank: Some(rank), status, data },
        ToAgent::Publish { token, proc: proc(), values, once: true },
        ToAgent::Lookup { token, proc: proc(), keys: keys.clone(), wait: true, seconds: 6 },
        ToAgent::Unpublish { token, proc: proc(), keys },
        ToAgent::Connect { token, procs, connect: true },
        ToAgent::Spawn { token, proc: proc(), command: "c".into() },
    ]
}

fn of_ship() -> Vec<Sample> {
    use ship::{ToAgent, ToShip};
    let (arena, window, id, node, offset, bytes) = (1, 2, 3, 4, 0, 5);
    let (address, target, direction) = (vec![1, 2], target(), Direction::Get);
    let reason = || "r".to_string();
    samples![
        target,
        Direction::Put,
        Direction::Get,
        ToShip::Open {
            provider: Some("tcp".into()),
            address: "198.18.1.2".parse().unwrap(),
            among: Some("tcp".into())
        },
        ToShip::Map { arena, bytes },
        ToShip::Unmap { arena },
        ToShip::Expose { window, arena, offset, bytes, writable: true },
        ToShip::Hide { window },
        ToShip::Finish { window },
        ToShip::Peer { node, address: address.clone() },
        ToShip::Gone { node },
        ToShip::Move { id, direction, arena, offset, bytes, node, target, patience_ms: 9 },
        ToShip::Cancel { id },
        ToShip::Rate { bytes },
        ToShip::Ask,
        ToAgent::Ready { provider: "tcp".into(), address, not: Some("verbs".into()) },
        ToAgent::Failed { reason: reason() },
        ToAgent::Exposed { window, target },
        ToAgent::NotExposed { window, reason: reason() },
        ToAgent::Hidden { window },
        ToAgent::Moved { id },
        ToAgent::NotMoved { id, reason: reason() },
        ToAgent::Progress { id, bytes },
        ToAgent::Here,
    ]
}

pub fn all() -> Vec<Sample> {
    [to_pmix(), from_pmix(), of_ship()].into_iter().flatten().collect()
}
