//! What is said of this version, and of the one before, is written down, and so is what has to be read.

// What a crate's sources say is looked for in one way.
#[path = "../../../../../proto/wire/tests/samples/declared.rs"]
mod declared;

use super::*;
use crate::{Expected, Write};
use std::collections::BTreeSet;
use std::fmt::{Debug, Write as _};
use std::path::PathBuf;

/// Reads bytes, which must be the same message.
type Reads = Box<dyn Fn(&[u8])>;

struct Sample {
    name: String,
    body: Vec<u8>,
    reads: Reads,
}

fn sample<M: Serialize + DeserializeOwned + PartialEq + Debug + 'static>(message: M) -> Sample {
    let name = declared::name(&message);
    let body = ft_wire::encode(&message, 0).unwrap()[FRAME_HEADER..].to_vec();
    Sample { name, body, reads: Box::new(move |body| assert_eq!(ft_wire::decode::<M>(body).unwrap(), message)) }
}

macro_rules! samples {
    ($($message:expr),* $(,)?) => { vec![$(sample($message)),*] };
}

const SECOND: Duration = Duration::from_millis(1500);
const LEASE: LeaseId = LeaseId(7);

fn swap() -> Swap {
    let swap = Swap::on("k", Expected::Revision(3)).and_on("n", Expected::Present).put("k", vec![9]).delete("d");
    swap.put_leased("l", Vec::new(), LEASE)
}

fn versioned() -> Versioned {
    Versioned { revision: 5, value: vec![1] }
}

fn change() -> Change {
    Change { key: "k".into(), revision: 8, value: Some(vec![1]) }
}

fn lease() -> Lease {
    Lease { id: LEASE, ttl: SECOND }
}

fn unmet() -> Unmet {
    Unmet { key: "k".into(), expected: Expected::Absent, found: Some(versioned()) }
}

fn trouble() -> Trouble {
    Trouble { endpoint: "e".into(), reason: "r".into(), lasting: true }
}

fn copied() -> Copied {
    let stranger = Some(std::net::IpAddr::from([198, 18, 0, 1]));
    Copied { copies: 1, bytes: 2, failures: 3, waiting: 4, forged: 5, replayed: 6, stranger }
}

fn asked() -> Vec<Sample> {
    let (scope, question) = (Scope::Key("k".into()), Question::Read(Scope::Prefix("p".into())));
    samples![
        Hello { version: 3, job: "j".into() },
        ToFtd::Question { number: 1, within: SECOND, question: question.clone() },
        ToFtd::Watch { number: 2, scope: scope.clone(), from: 7 },
        ToFtd::Unwatch { number: 2 },
        ToFtd::Copied(copied()),
        copied(),
        question,
        Question::Swap(swap()),
        Question::Grant(SECOND),
        Question::KeepAlive(LEASE),
        Question::Adopt(LEASE),
        Question::Revoke(LEASE),
        scope,
        Scope::Prefix("p".into()),
        swap(),
        Expected::Absent,
        Expected::Revision(3),
        Expected::Present,
        Write::Put { value: vec![9], lease: Some(LEASE) },
        Write::Delete,
        LEASE,
    ]
}

fn said() -> Vec<Sample> {
    let (number, endpoint, reason) = (1, "e".to_string(), "r".to_string());
    samples![
        Welcome::Served,
        Welcome::Refused("w".into()),
        Welcome::Speaks { oldest: 1, newest: 2 },
        FromFtd::Answer { number, answer: Answer::Done },
        FromFtd::Changed { number, changes: vec![change(), Change { value: None, ..change() }] },
        FromFtd::Ended { number, end: End::Compacted(1, 2) },
        End::Compacted(1, 2),
        End::Failed(Failure::NoLease(LEASE)),
        Answer::Found { at: 5, found: BTreeMap::from([("k".to_string(), versioned())]) },
        Answer::Written(6),
        Answer::Lease(lease()),
        Answer::Done,
        Answer::Failed(Failure::NoLease(LEASE)),
        Failure::Lost(vec![unmet()]),
        Failure::Unknown { endpoint, within: SECOND, reason },
        Failure::Unanswered(vec![trouble()]),
        Failure::Refused(vec![trouble()]),
        Failure::NoLease(LEASE),
        versioned(),
        change(),
        lease(),
        unmet(),
        trouble(),
    ]
}

fn recorded(version: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests").join(format!("through-{version}.txt"))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

/// A release that says the same with other bytes, or other things with the same, has another version.
#[test]
fn the_bytes_of_this_version_stay_as_they_are_and_those_of_the_one_before_are_read() {
    let samples: Vec<_> = asked().into_iter().chain(said()).collect();
    let now = samples.iter().fold(String::new(), |mut text, sample| {
        let _ = writeln!(text, "{}: {}", sample.name, hexadecimal(&sample.body));
        text
    });
    if std::env::var_os("FT_TEST_WRITE").is_some() {
        std::fs::write(recorded(VERSION), &now).unwrap();
    }
    for version in OLDEST..=VERSION {
        let text = std::fs::read_to_string(recorded(version)).unwrap();
        let changed: Vec<_> = now.lines().filter(|line| text.lines().all(|other| other != *line)).collect();
        assert!(
            version != VERSION || text == now,
            "version {VERSION} was another, without {changed:#?}: it has another number then, of which FT_TEST_WRITE=1 writes what is said"
        );
        for line in text.lines() {
            let (name, body) = line.split_once(": ").unwrap();
            let sample = samples.iter().find(|sample| sample.name == name);
            (sample.unwrap_or_else(|| panic!("version {version} says {name}")).reads)(&bytes(body));
        }
    }
}

#[test]
fn of_all_that_can_be_said_there_is_a_sample() {
    let have: BTreeSet<_> = asked().into_iter().chain(said()).map(|sample| sample.name).collect();
    let all: BTreeSet<_> = declared::all().into_iter().collect();
    let without: Vec<_> = all.difference(&have).collect();
    assert!(without.is_empty(), "no sample of {without:?}: FT_TEST_WRITE=1 writes down what it is on the wire");
    assert!(all.contains("swap::Write::Put") && all.len() > 40, "{}", all.len());
}

#[test]
fn neighbours_find_the_newest_version_that_both_speak() {
    let speaks = |theirs| common(8..=9, theirs);
    assert_eq!([8..=9, 9..=10, 7..=8, 8..=8, 9..=9].map(speaks), [Some(9), Some(9), Some(8), Some(8), Some(9)]);
    assert_eq!([10..=11, 6..=7].map(speaks), [None; 2]);
}
