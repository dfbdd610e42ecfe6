//! What neighbouring releases say to each other: samples of all messages as protocols that this release understands say them, and fields that it
//! does not know.

#![allow(clippy::unwrap_used)]

mod samples;

use ft_wire::{FRAME_HEADER, FrameError, OLDEST, VERSION, between, decode, encode, part, step};
use rmpv::Value;
use samples::{all, declared};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;

/// What is to be done about it.
const HOW: &str = "samples are in proto/wire/tests/samples, FT_TEST_WRITE=1 writes down what they are on the wire, and \
                   docs/decisions/protocol-numbers.md says what may change";

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

/// Names and bodies of samples that are written down.
fn lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().map(|line| line.split_once(": ").unwrap())
}

/// A release in which these bytes are other ones has the next number, and reads those of this one all the same.
#[test]
fn what_neighbours_say_is_read_and_what_this_release_says_is_as_it_was() {
    let samples = all();
    let said = samples.iter().fold(String::new(), |mut text, sample| {
        let _ = writeln!(text, "{}: {}", sample.name, sample.body.escape_ascii());
        text
    });
    if std::env::var_os("FT_TEST_WRITE").is_some() {
        std::fs::write(recorded(VERSION), &said).unwrap();
    }
    for protocol in OLDEST.max(VERSION - 1)..=VERSION {
        let text = std::fs::read_to_string(recorded(protocol)).unwrap();
        if protocol == VERSION {
            let (then, now): (BTreeSet<_>, BTreeSet<_>) = (lines(&text).collect(), lines(&said).collect());
            let changed: BTreeSet<_> = then.symmetric_difference(&now).map(|(name, _)| name).collect();
            assert!(changed.is_empty(), "what protocol {VERSION} says is another than it was: {changed:?}; {HOW}");
        }
        let mut before = BTreeMap::new();
        for (name, body) in lines(&text) {
            let turn = before.entry(name).or_insert(0);
            let sample = samples.iter().filter(|sample| sample.name == name).nth(*turn);
            let sample = sample.unwrap_or_else(|| panic!("protocol {protocol} says {name}, and no sample reads it"));
            let read = (sample.reads)(&unescaped(body));
            assert_eq!(read, Ok(()), "{name} of protocol {protocol}");
            *turn += 1;
        }
    }
}

#[test]
fn of_all_that_can_be_said_there_is_a_sample() {
    let samples = all();
    let have: BTreeSet<_> = samples.iter().map(|sample| sample.name.as_str()).collect();
    let declared = declared::all();
    let without: Vec<_> = declared.iter().filter(|name| !have.contains(name.as_str())).collect();
    assert!(without.is_empty(), "no sample of {without:?}: {HOW}");
    // Who reads the sources reads them all.
    assert!(declared.contains(&"ft_wire::Flavour::Mpich".to_string()) && declared.len() > 300, "{}", declared.len());
}

/// The fields of a structure or of a variant, and what a variant has without names.
fn fields(sample: &samples::Sample) -> Vec<(String, Value)> {
    let value = rmpv::decode::read_value(&mut &sample.body[..]).unwrap();
    let one = |value| vec![("0".to_string(), value)];
    let named = |value| match value {
        Value::Map(pairs) => pairs.into_iter().map(|(key, value)| (key.as_str().unwrap().into(), value)).collect(),
        other => one(other),
    };
    match value {
        Value::Map(mut pairs) if sample.is_variant() => match pairs.pop() {
            Some((_, value)) if sample.wraps => one(value),
            Some((_, value)) => named(value),
            None => Vec::new(),
        },
        value => named(value),
    }
}

/// A field that is absent or empty in each sample may have become another without a word.
#[test]
fn each_field_has_a_value_in_a_sample() {
    let mut says = BTreeMap::new();
    for sample in all() {
        for (field, value) in fields(&sample) {
            let is_empty = match &value {
                Value::Nil => true,
                Value::Array(values) => values.is_empty(),
                Value::Map(pairs) => pairs.is_empty(),
                Value::Binary(bytes) => bytes.is_empty(),
                _ => false,
            };
            *says.entry(format!("{}.{field}", sample.name)).or_insert(false) |= !is_empty;
        }
    }
    let empty: Vec<_> = says.iter().filter(|(_, says)| !**says).map(|(field, _)| field).collect();
    assert!(empty.is_empty(), "no sample has a value in {empty:?}: {HOW}");
    assert!(says.len() > 500, "{}", says.len());
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
    let mut modules = BTreeMap::new();
    for sample in all() {
        let (value, mut added) = (rmpv::decode::read_value(&mut &sample.body[..]).unwrap(), 0);
        let mut more = Vec::new();
        rmpv::encode::write_value(&mut more, &with_more(value, &mut added)).unwrap();
        assert_eq!((sample.reads)(&more), Ok(()), "{}", sample.name);
        *modules.entry(sample.module().to_string()).or_insert(0) += added;
    }
    let without: Vec<_> = modules.iter().filter(|(_, added)| **added == 0).map(|(module, _)| module).collect();
    assert_eq!(without, ["ft_wire"], "{modules:?}");
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
    for sample in all() {
        for end in 0..sample.body.len() {
            let read = (sample.reads)(&sample.body[..end]);
            assert!(matches!(read, Err(FrameError::Malformed(_))), "{} up to {end}", sample.name);
        }
    }
    for wrong in
        [&b""[..], b"\xc1", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x81\xa4None\xc0", b"\xa8Unheard of"]
    {
        assert!(decode::<part::FromPart>(wrong).is_err(), "{wrong:?}");
    }
}

/// As a shepherd says it that was built before the field came.
#[test]
fn a_request_may_say_nothing_of_the_front() {
    #[derive(serde::Serialize)]
    struct Before {
        protocol: u32,
        word: String,
        layout: step::Layout,
    }
    let layout = step::Layout { node: 0, nodes: 2, first: 0, tasks: 2, all: 4 };
    let body = encode(&Before { protocol: 7, word: "w".into(), layout }, 0).unwrap();
    let read = decode::<step::Request>(&body[FRAME_HEADER..]).unwrap();
    assert_eq!(read, step::Request { protocol: 7, front: 0, word: "w".into(), layout });
}
