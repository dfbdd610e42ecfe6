//! A job over several nodes: what the launcher's part on each node tells its agent of the others.

use crate::{Slot, path};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// So many periods of the heartbeats fit into T at least: of the lease, which is three quarters of it, one may be lost and the next one late.
pub const LEAST_PERIODS: u32 = 4;

/// Something that is written down nowhere.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hidden<T>(pub T);

impl<T> fmt::Debug for Hidden<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// Slots of nodes that come into a job after its beginning are numbered from here on …
const LATE_SLOTS: Slot = 1 << 30;
/// … and this is room for one of them. (From 1 << 31 on ftd-core gives the numbers of slots that nodes have beyond these.)
const LATE_ROOM: Slot = 1 << 18;

/// The nodes of a job, and what its agents have in common. The same for every agent of the job but for `me`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// This node, in `nodes`.
    pub me: u32,
    /// All nodes of the job; a node's number is its place here. Of those that it begins with spare ones come last.
    pub nodes: Vec<ClusterNode>,
    /// It begins with so many of them; those behind came later.
    pub first: u32,
    /// What only the agents of this job know.
    pub secret: Hidden<[u8; 32]>,
    /// Where the job's record is.
    pub store: StoreAddress,
    /// T: milliseconds after which a silent node may be given up.
    pub heartbeat_ms: u64,
    /// Milliseconds between heartbeats; nothing from a release that says no period: a fifth of T.
    #[serde(default)]
    pub heartbeat_period_ms: Option<u64>,
    /// `--ft-wait`: milliseconds for which a job that has not slots enough waits for another node.
    pub wait_ms: u64,
    /// `--ft-oversubscribe`: the ranks of a lost node for which no slot is free go on beyond the slots of others.
    pub oversubscribe: bool,
    /// Milliseconds for which what the ranks of one node wait for from another may come by no way, before the job ends.
    pub path_ms: u64,
}

impl Cluster {
    /// This node.
    pub fn own(&self) -> Option<&ClusterNode> {
        self.nodes.get(self.me as usize)
    }

    /// The first slot of a node that comes later, by its number: each of them has a range of its own, where no other node's are.
    pub fn late_slot(&self, number: u32) -> Slot {
        LATE_SLOTS.saturating_add(number.saturating_sub(self.first).saturating_mul(LATE_ROOM))
    }

    /// The slot that follows this one on this node: no two nodes ever give the same number.
    pub fn slot_after(&self, slot: Slot) -> Slot {
        let Some(node) = self.own().filter(|_| self.me < self.first) else { return slot + 1 };
        let total: u32 = self.nodes.iter().take(self.first as usize).map(|node| node.slots).sum();
        match slot + 1 {
            next if next < node.first_slot + node.slots => next,
            _ if slot < total => total + self.me,
            _ => slot + self.first,
        }
    }
}

/// A node of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterNode {
    /// What people call it; no two that a job begins with have the same.
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
    fn no_two_nodes_give_the_same_slot() {
        let node = |first_slot, slots| ClusterNode {
            name: String::new(),
            host: String::new(),
            address: IpAddr::from([127, 0, 0, 1]),
            port: 1,
            slots,
            first_slot,
            spare: false,
            domain: String::new(),
            lease: None,
        };
        let store = StoreAddress { socket: PathBuf::new(), prefix: String::new() };
        let late = [3, 4].map(|number| node(LATE_SLOTS + (number - 3) * LATE_ROOM, 2));
        let nodes = [vec![node(0, 2), node(2, 1), node(3, 4)], late.to_vec()].concat();
        let of = |me| Cluster {
            me,
            nodes: nodes.clone(),
            first: 3,
            secret: Hidden([0; 32]),
            store: store.clone(),
            heartbeat_ms: 1,
            heartbeat_period_ms: None,
            wait_ms: 0,
            oversubscribe: false,
            path_ms: 1,
        };
        let given = |me: u32, count| {
            let cluster = of(me);
            let first = nodes[me as usize].first_slot;
            std::iter::successors(Some(first), |slot| Some(cluster.slot_after(*slot))).take(count).collect::<Vec<_>>()
        };
        assert_eq!(given(0, 4), [0, 1, 7, 10]);
        assert_eq!(given(1, 4), [2, 8, 11, 14]);
        assert_eq!(given(2, 6), [3, 4, 5, 6, 9, 12]);
        assert_eq!((of(0).late_slot(3), of(0).late_slot(4)), (nodes[3].first_slot, nodes[4].first_slot));
        assert_eq!(given(4, 3), [0, 1, 2].map(|nth| nodes[4].first_slot + nth));
    }

    #[test]
    fn what_is_hidden_is_not_written_down() {
        assert_eq!(format!("{:?} {:?}", Hidden([7u8; 32]), Hidden("password".to_string())), "… …");
    }
}
