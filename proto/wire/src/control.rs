//! Programs of a node → the node's daemon and back, over its control socket. Who asks is known by the socket's credentials; anybody may
//! ask how the node is.

use crate::path;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The longest message to a daemon.
pub const MAX_REQUEST: usize = 64 << 10;

/// Asker → daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToDaemon {
    /// How is the node?
    Status,
}

/// Daemon → asker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromDaemon {
    /// How the node is.
    Status(Box<Status>),
    /// Nothing is answered, and why. The connection ends. Read as [`crate::part::FromJobs::Away`] by who asked for a job.
    #[serde(rename = "Away")]
    Refused(String),
}

/// How a node is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The daemon's release.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// For how long it has run, in milliseconds.
    pub up_ms: u64,
    /// The node's name.
    pub node: String,
    /// Which node of that name it is: another one after each start of the machine. Empty until it is known.
    pub id: String,
    /// Its failure domain.
    pub label: String,
    /// The machine's own name.
    pub host: String,
    /// The configuration file.
    #[serde(with = "path")]
    pub config: PathBuf,
    /// Keys whose new values count from the next start on.
    pub later: Vec<String>,
    /// Why the file as it is now is not used, if it was read again and is wrong.
    pub refused: Option<String>,
    /// Whether etcd answers.
    pub etcd: Etcd,
    /// The node's lease, if it has one.
    pub lease: Option<NodeLease>,
    /// The node's jobs.
    pub jobs: Vec<String>,
}

/// Whether etcd answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Etcd {
    /// It was not asked yet.
    Unasked,
    /// It answered last so many milliseconds ago.
    Answers {
        /// How long that is ago.
        ago_ms: u64,
    },
    /// It does not answer.
    Away {
        /// For how many milliseconds.
        for_ms: u64,
        /// What came instead.
        reason: String,
    },
}

/// The lease of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLease {
    /// Its name in etcd.
    pub id: i64,
    /// How long it is held at least, in milliseconds.
    pub left_ms: u64,
    /// The whole time of it, in milliseconds.
    pub ttl_ms: u64,
}
