//! What has a form of fixed length between agents: hellos, proofs, seals of frames and heartbeats are as they were, for neighbouring releases.

#![allow(clippy::unwrap_used)]

use ft_peer::beat::{Envelope, Said, Sealer};
use ft_peer::frame::{HEADER, Lane};
use ft_peer::hello::{HELLO, Hello, Proofs};
use ft_peer::secret::{KEY, Secret};
use ft_wire::{OLDEST, VERSION};
use ftd_core::fence::Beat;
use ftd_core::{EpochId, NodeId};
use std::fmt::Write;
use std::path::PathBuf;

const JOB: &str = "12.0";

fn secret() -> Secret {
    Secret::new([7; KEY])
}

fn hello() -> Hello {
    Hello { from: NodeId(1), to: NodeId(2), incarnation: 3 << 33, port: 4711, nonce: [9; 16] }
}

fn envelope() -> Envelope {
    Envelope { from: NodeId(1), to: NodeId(2), incarnation: 3 << 33, addressed: 4, number: 5 }
}

fn said() -> [(&'static str, Said); 5] {
    let (beat, answered) = (Beat { incarnation: 6, sequence: 7 }, Beat { incarnation: 8, sequence: 9 });
    let epoch = EpochId(10);
    [
        ("heartbeat", Said::Heartbeat { beat, epoch, unheard: true }),
        ("acknowledge", Said::Acknowledge { beat, epoch, still: true }),
        ("both", Said::Both { beat, answered, epoch, unheard: false, still: true }),
        ("heard", Said::Heard { epoch }),
        ("greeting", Said::Greeting),
    ]
}

/// Of nothing but what is said: the same in all releases that are neighbours.
fn proofs() -> [(&'static str, [u8; KEY]); 4] {
    let Proofs { dialler, acceptor, from_dialler, from_acceptor } =
        Proofs::of(&secret(), JOB, &[1; HELLO], &[2; HELLO]);
    [("dialler", dialler), ("acceptor", acceptor), ("from dialler", from_dialler), ("from acceptor", from_acceptor)]
}

fn frames() -> [(&'static str, [u8; HEADER]); 2] {
    let mut lane = Lane::new([5; KEY]);
    [("first frame", lane.header(b"one")), ("second frame", lane.header(&[2; 300]))]
}

fn forms() -> Vec<(&'static str, Vec<u8>)> {
    let sealer = Sealer::new(&secret(), JOB);
    let beats = said().map(|(name, said)| (name, sealer.seal(envelope(), said).to_vec()));
    let proofs = proofs().map(|(name, proof)| (name, proof.to_vec()));
    let frames = frames().map(|(name, header)| (name, header.to_vec()));
    let hello = [("hello", hello().to_bytes(JOB).to_vec())];
    hello.into_iter().chain(beats).chain(proofs).chain(frames).collect()
}

fn recorded(protocol: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests").join(format!("forms-{protocol}.txt"))
}

fn bytes(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

/// Reads what a neighbour, or this release, says: by its name.
fn read(name: &str, bytes: &[u8]) {
    if name == "hello" {
        assert_eq!(Hello::from_bytes(bytes.try_into().unwrap(), JOB), Ok(hello()));
    } else if let Some((_, said)) = said().into_iter().find(|(other, _)| *other == name) {
        assert_eq!(Sealer::new(&secret(), JOB).open(bytes), Ok((envelope(), said)), "{name}");
    } else {
        let (_, own) = forms().into_iter().find(|(other, _)| *other == name).unwrap();
        assert_eq!(own, bytes, "{name}");
    }
}

#[test]
fn forms_are_as_they_were_and_those_of_neighbours_are_read() {
    let now = forms().iter().fold(String::new(), |mut text, (name, bytes)| {
        let _ = write!(text, "{name}: ");
        bytes.iter().for_each(|byte| {
            let _ = write!(text, "{byte:02x}");
        });
        text + "\n"
    });
    if std::env::var_os("FT_TEST_WRITE").is_some() {
        std::fs::write(recorded(VERSION), &now).unwrap();
    }
    for protocol in OLDEST.max(VERSION - 1)..=VERSION {
        let text = std::fs::read_to_string(recorded(protocol)).unwrap();
        assert!(
            protocol != VERSION || text == now,
            "protocol {VERSION} has another form: it needs another magic, and a release that has both (docs/decisions/protocol-numbers.md, 5); \
             of a new number FT_TEST_WRITE=1 writes the forms"
        );
        for line in text.lines() {
            let (name, form) = line.split_once(": ").unwrap();
            read(name, &bytes(form));
        }
    }
}
