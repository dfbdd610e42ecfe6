//! What a node says of itself in etcd.

use crate::config::Config;
use ft_proto::v1;
use prost::Message;
use std::fmt;

/// A node, as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Made anew at each start of the machine.
    pub id: String,
    /// The node's name.
    pub name: String,
    /// Its failure domain.
    pub label: String,
    /// The machine's own name.
    pub host: String,
    /// Where it is in MPI's network; empty if it is not told.
    pub mpi: String,
    /// Where it is in the store's network; empty if it is not told.
    pub store: String,
    /// Its daemon's release.
    pub version: String,
    /// What Slurm calls it; empty: by its name.
    pub slurm: String,
}

impl Record {
    /// This node's.
    pub fn of(config: &Config, id: &str) -> Record {
        let told = |address: Option<std::net::SocketAddr>| address.map(|a| a.to_string()).unwrap_or_default();
        Record {
            id: id.into(),
            name: config.node().into(),
            label: config.label().into(),
            host: config.host().into(),
            mpi: told(config.peer_mpi()),
            store: told(config.peer_store()),
            version: env!("CARGO_PKG_VERSION").into(),
            slurm: config.slurm_node().into(),
        }
    }

    /// The bytes for etcd.
    pub fn encode(&self) -> Vec<u8> {
        v1::Node {
            format: v1::NODE_FORMAT,
            id: self.id.clone(),
            name: self.name.clone(),
            label: self.label.clone(),
            host: self.host.clone(),
            mpi: self.mpi.clone(),
            store: self.store.clone(),
            version: self.version.clone(),
            slurm: self.slurm.clone(),
        }
        .encode_to_vec()
    }

    /// From etcd's bytes; nothing when they are no node's, or a later release's.
    pub fn decode(bytes: &[u8]) -> Option<Record> {
        let v1::Node { format, id, name, label, host, mpi, store, version, slurm } = v1::Node::decode(bytes).ok()?;
        let record = Record { id, name, label, host, mpi, store, version, slurm };
        (format == v1::NODE_FORMAT && !record.id.is_empty()).then_some(record)
    }

    /// Where its daemon is reached, the store's network first.
    pub fn addresses(&self) -> Vec<std::net::SocketAddr> {
        [&self.store, &self.mpi].into_iter().filter_map(|address| address.parse().ok()).collect()
    }

    /// What Slurm calls it.
    pub fn slurm(&self) -> &str {
        if self.slurm.is_empty() { &self.name } else { &self.slurm }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host {} (id {}", self.host, self.id)?;
        for (network, address) in [("MPI", &self.mpi), ("store", &self.store)] {
            if !address.is_empty() {
                write!(f, ", {network} {address}")?;
            }
        }
        write!(f, ")")
    }
}
