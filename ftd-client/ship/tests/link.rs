//! `ft-ship` and its link, without other nodes.

#![allow(clippy::unwrap_used)]

mod driver;

use driver::{HERE, Memory, Ship, TCP, program, wait_end};
use ft_wire::ship::{ToAgent, ToShip};
use std::io::{Read, Write};
use std::process::{Command, Stdio};

/// What it says on standard error when its agent says this, and its end's success.
fn words(said: &[u8]) -> (String, bool) {
    let (mut process, mut link) = Ship::spawn(program(), &[], Stdio::piped());
    link.write_all(said).unwrap();
    let status = wait_end(&mut process);
    let mut text = String::new();
    process.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    (text, status.success())
}

fn preamble(role: ft_wire::Role) -> Vec<u8> {
    ft_wire::Preamble::ours(role).to_bytes().to_vec()
}

#[test]
fn it_ends_with_its_link() {
    let mut ship = Ship::start(TCP);
    ship.settle();
    let (other, _) = std::os::unix::net::UnixStream::pair().unwrap();
    ship.channel = ft_sys::channel::Channel::from_stream(other);
    assert!(wait_end(&mut ship.process).success());
}

#[test]
fn it_is_there_before_and_after_it_has_an_endpoint() {
    let mut ship = Ship::greeted(program(), &[]);
    ship.settle();
    ship.send(ToShip::Open { provider: None, address: HERE, among: None });
    let ToAgent::Ready { provider, address, not: None } = ship.next() else { panic!("it is not ready") };
    assert!(!provider.is_empty() && !address.is_empty());
    ship.settle();
}

#[test]
fn the_first_that_can_be_opened_is_taken_and_what_is_missing_before_it_is_said() {
    for (among, found, missing) in [
        ("tcp", TCP, None),
        ("shm,tcp", "shm", None),
        ("nowhere,tcp", TCP, Some("nowhere (fi_getinfo: No data available)")),
    ] {
        let mut ship = Ship::greeted(program(), &[]);
        ship.send(ToShip::Open { provider: None, address: HERE, among: Some(among.into()) });
        let ToAgent::Ready { provider, not, .. } = ship.next() else { panic!("{among}: it is not ready") };
        assert_eq!((provider.as_str(), not.as_deref()), (found, missing));
        ship.settle();
    }
}

#[test]
fn what_there_is_no_endpoint_for_is_said() {
    for (provider, address, part) in [
        (
            Some("none such"),
            "127.0.0.1",
            "libfabric has no provider for 127.0.0.1: none such (fi_getinfo: No data available)",
        ),
        (Some(TCP), "198.18.255.254", "libfabric has no provider for 198.18.255.254: tcp;ofi_rxm ("),
        (None, "198.18.255.254", "cxi (fi_getinfo: "),
        (Some("a\0b"), "::1", "a\0b (provider: Invalid argument)"),
    ] {
        let mut ship = Ship::greeted(program(), &[]);
        ship.send(ToShip::Open {
            provider: provider.map(str::to_string),
            address: address.parse().unwrap(),
            among: None,
        });
        let ToAgent::Failed { reason } = ship.next() else { panic!("{provider:?} at {address} is ready") };
        assert!(reason.contains(part), "{reason}");
        let (other, _) = std::os::unix::net::UnixStream::pair().unwrap();
        ship.channel = ft_sys::channel::Channel::from_stream(other);
        assert!(wait_end(&mut ship.process).success());
    }
}

#[test]
fn a_window_has_one_name_and_a_move_as_well() {
    let mut ship = Ship::start(TCP);
    let memory = Memory::new(10_000);
    ship.map(1, &memory, 10_000);
    let (window, target) = ship.expose(1, 0, 10_000, true);
    ship.send(ToShip::Expose { window, arena: 1, offset: 0, bytes: 1, writable: false });
    let reason = format!("window {window} is open already");
    assert_eq!(ship.next(), ToAgent::NotExposed { window, reason });
    let mut nobody = Ship::start(TCP);
    ship.peer(1, &nobody);
    nobody.kill();
    let id = ship.begin(driver::Wanted::put(1, 10, 1, target));
    let (direction, node) = (ft_wire::ship::Direction::Put, 1);
    ship.send(ToShip::Move { id, direction, arena: 1, offset: 0, bytes: 1, node, target, patience_ms: 1 });
    assert_eq!(ship.end_of(id).unwrap_err(), format!("move {id} is under way already"));
}

#[test]
fn who_is_no_agent_is_refused_with_a_sentence() {
    let (text, success) = words(b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(text, "ft-ship: the link to ft-agent: the peer does not speak ftd's protocol\n");
    assert!(!success);
    let (text, _) = words(&preamble(ft_wire::Role::Rank));
    assert_eq!(text, "ft-ship: the agent is a Rank\n");
    let frame = ft_wire::encode(&ToShip::Hide { window: 1 }, 0).unwrap();
    let (text, _) = words(&[preamble(ft_wire::Role::Agent), frame].concat());
    assert_eq!(text, "ft-ship: the agent has not said first, and once, where the endpoint is to be opened\n");
    let (text, success) = words(&[preamble(ft_wire::Role::Agent), vec![0xff; 64]].concat());
    assert!(text.contains("longer than the limit") && !success, "{text}");
}

#[test]
fn who_starts_it_by_hand_is_told() {
    for (name, value) in [("FT_NOTHING", ""), ("FT_SHIP_FD", "x"), ("FT_SHIP_FD", "77"), ("FT_SHIP_FD", "0")] {
        let output = Command::new(program()).env(name, value).stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.starts_with("ft-ship: FT_SHIP_FD") && !output.status.success(), "{text}");
    }
}
