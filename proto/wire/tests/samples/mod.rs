//! A sample, at the least, of each structure and of each variant that somebody says: what they are on the wire is in `protocol-N.txt`.
//!
//! A field that is new has its default in the first sample, for the release before does not say it; a second one has a value in it.

mod agent;
mod asker;
pub mod declared;
mod helper;
mod job;
mod node;
mod rank;

use ft_wire::{FRAME_HEADER, FrameError, decode, encode};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;

/// Reads bytes; what is read must be the sample.
type Reads = Box<dyn Fn(&[u8]) -> Result<(), FrameError>>;

pub struct Sample {
    /// What it is a sample of, as [`declared`] has it.
    pub name: String,
    /// It is a variant around something without a name, which has samples of its own if it has fields.
    pub wraps: bool,
    pub body: Vec<u8>,
    pub reads: Reads,
}

impl Sample {
    pub fn module(&self) -> &str {
        self.name.split("::").next().unwrap()
    }

    /// Of a variant, and not of a structure or function.
    pub fn is_variant(&self) -> bool {
        self.name.split("::").count() == 3
    }
}

/// Samples of these messages, one of each.
macro_rules! samples {
    ($($message:expr),* $(,)?) => {
        vec![$($crate::samples::sample($message)),*]
    };
}
use samples;

fn sample<M: Serialize + DeserializeOwned + PartialEq + Debug + 'static>(message: M) -> Sample {
    named(declared::name(&message), message)
}

fn named<M: Serialize + DeserializeOwned + PartialEq + Debug + 'static>(name: String, message: M) -> Sample {
    let body = encode(&message, 0).unwrap()[FRAME_HEADER..].to_vec();
    let wraps = format!("{message:?}").trim_start_matches(char::is_alphanumeric).starts_with('(');
    let read = name.clone();
    let reads = move |body: &[u8]| decode::<M>(body).map(|found| assert_eq!(found, message, "{read}"));
    Sample { name, wraps, body, reads: Box::new(reads) }
}

pub fn all() -> Vec<Sample> {
    [job::all(), rank::all(), helper::all(), node::all(), agent::all(), asker::all()].into_iter().flatten().collect()
}
