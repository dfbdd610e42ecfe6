//! A job over several nodes: what the launcher's part on each node tells its agent of the others.

use crate::{Slot, path};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Something that is written down nowhere.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hidden<T>(pub T);

impl<T> fmt::Debug for Hidden<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// The nodes of a job, and what its agents have in common. The same for every agent of the job but for `me`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// This node, in `nodes`.
    pub me: u32,
    /// All nodes that the job begins with; a node's number is its place here. Spare ones come last.
    pub nodes: Vec<ClusterNode>,
    /// What only the agents of this job know.
    pub secret: Hidden<[u8; 32]>,
    /// Where the job's record is.
    pub store: StoreAddress,
    /// T: milliseconds after which a silent node may be given up. Heartbeats go five times as often.
    pub heartbeat_ms: u64,
    /// `--ft-wait`: milliseconds for which a job that has not slots enough waits for another node.
    pub wait_ms: u64,
    /// Milliseconds for which what the ranks of one node wait for from another may come by no way, before the job ends.
    pub path_ms: u64,
}

impl Cluster {
    /// This node.
    pub fn own(&self) -> Option<&ClusterNode> {
        self.nodes.get(self.me as usize)
    }
}

/// A node of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterNode {
    /// What people call it; no two of a job have the same.
    pub name: String,
    /// What the machine calls itself, and MPI libraries it.
    pub host: String,
    /// Where it is in the network that MPI uses.
    pub address: IpAddr,
    /// Its agent's port there, with TCP and with UDP.
    pub port: u16,
    /// How many slots it has when the job begins.
    pub slots: u32,
    /// The first of them; slots are numbered through the job, and those of spare nodes are the last.
    pub first_slot: Slot,
    /// It holds no rank before another node is lost.
    pub spare: bool,
    /// Its failure domain.
    pub domain: String,
    /// The key in the store that is there as long as the node's daemon holds its lease; nothing is known of a node without one.
    pub lease: Option<String>,
}

impl ClusterNode {
    /// Where its agent is reached.
    pub fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }
}

/// Who is asked for the store, and where the job's keys are in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreAddress {
    /// The socket of this node's `ftd` for the agents of jobs.
    #[serde(with = "path")]
    pub socket: PathBuf,
    /// Beginning of the names of the job's keys, with the slash at its end.
    pub prefix: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_is_not_written_down() {
        assert_eq!(format!("{:?} {:?}", Hidden([7u8; 32]), Hidden("password".to_string())), "… …");
    }
}
