//! The nodes of a job: where they are, and having a part of the job made ready on one.

use crate::dial::Way;
use crate::etcd::Asked;
use crate::frames::Stream;
use crate::node::Record;
use crate::peers;
use crate::state::State;
use ft_store::{Etcd, Scope};
use ft_wire::part::{FromPart, Host, Start};
use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;

/// Where nodes are looked up.
#[derive(Clone)]
pub struct Places {
    state: Arc<State>,
    etcd: Asked<Etcd>,
}

/// A node of a job.
pub struct Place {
    /// As the user names it.
    pub host: Host,
    /// As it says itself.
    pub record: Record,
}

/// A part that waits for the others.
pub struct Prepared {
    /// The link to it.
    pub stream: Box<dyn Stream>,
    /// What it has carried until now, in bytes.
    pub came: u64,
    /// Its number.
    pub link: u64,
    /// Where the node's daemon is.
    pub way: Way,
    /// Where its agent will be reached.
    pub port: u16,
    /// What the machine calls itself.
    pub host: String,
    /// The number that is spoken there.
    pub protocol: u32,
}

/// There is no job.
pub struct Refusal {
    /// The exit status that says so.
    pub status: u8,
    /// Why.
    pub sentence: String,
}

impl From<String> for Refusal {
    fn from(sentence: String) -> Refusal {
        Refusal { status: 1, sentence }
    }
}

impl Places {
    /// In etcd.
    pub fn new(state: Arc<State>, etcd: Asked<Etcd>) -> Places {
        Places { state, etcd }
    }

    /// What this daemon is.
    pub fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// Whether a node's daemon holds its lease, as far as etcd has it.
    ///
    /// # Errors
    /// One sentence: etcd does not answer.
    pub async fn has(&self, name: &str) -> Result<bool, String> {
        let key = format!("{}/nodes/{name}", self.state.config().prefix());
        match self.etcd.get(&key).await {
            Ok(read) => Ok(read.found.is_some()),
            Err(error) => Err(format!("node {name} cannot be looked up: {error}")),
        }
    }

    /// The nodes that there are, but for those that a later release has written.
    ///
    /// # Errors
    /// One sentence: etcd does not answer.
    pub async fn all(&self) -> Result<Vec<Record>, String> {
        let nodes = format!("{}/nodes/", self.state.config().prefix());
        match self.etcd.read(&Scope::Prefix(nodes)).await {
            Ok(read) => Ok(read.found.values().filter_map(|found| Record::decode(&found.value)).collect()),
            Err(error) => Err(format!("which nodes there are cannot be looked up: {error}")),
        }
    }

    /// What a node says of itself.
    ///
    /// # Errors
    /// One sentence.
    pub async fn find(&self, name: &str) -> Result<Record, String> {
        let config = self.state.config();
        if name == config.node() {
            return Ok(Record::of(&config, ""));
        }
        let key = format!("{}/nodes/{name}", config.prefix());
        match self.etcd.get(&key).await {
            Ok(read) => match read.found.as_ref().map(|found| Record::decode(&found.value)) {
                Some(Some(record)) => Ok(record),
                Some(None) => {
                    Err(format!("node {name}: its ftd is of a later release: install the same one everywhere"))
                }
                None => Err(format!(
                    "there is no node {name}: no ftd has that name in etcd ({key}); `ftd status` on the node says which it has"
                )),
            },
            Err(error) => Err(format!("node {name} cannot be looked up: {error}")),
        }
    }
}

/// Bytes that nobody can guess.
///
/// # Errors
/// One sentence.
pub fn random<const N: usize>() -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map(|()| bytes).map_err(|error| format!("/dev/urandom: {error}"))
}

/// Has one part made ready.
///
/// # Errors
/// One sentence, and the status that it means.
pub async fn prepare(
    mut start: Start,
    image: &peers::Sent,
    record: Record,
    state: &State,
) -> Result<Prepared, Refusal> {
    let config = state.config();
    let node = start.to.clone();
    // What is to outlive this process is not started by it, on this node either.
    let way = if node == config.node() { Way::Here } else { Way::At(record.addresses()) };
    start.link = u64::from_ne_bytes(random()?);
    let link = start.link;
    let (stream, word, came) = peers::ask(&way, start, image, &config).await?;
    match word {
        FromPart::Prepared { port, host, protocol } => Ok(Prepared { stream, came, link, way, port, host, protocol }),
        FromPart::Refused { status, sentence } => {
            let sentence = if sentence.starts_with("node ") { sentence } else { format!("node {node}: {sentence}") };
            Err(Refusal { status, sentence })
        }
        _ => Err(format!("node {node}: ftrun says something else there than that it is ready").into()),
    }
}

/// Where the node is in the network that MPI uses.
///
/// # Errors
/// One sentence.
pub fn address(name: &str, record: &Record) -> Result<SocketAddr, String> {
    record.mpi.parse().map_err(|_| {
        format!("node {name} does not say where it is in the network that MPI uses: set peers.mpi in its ftd.toml")
    })
}
