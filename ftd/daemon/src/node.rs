//! The node's place in etcd: a key with its name, on a lease that this daemon keeps. Who has the key is the node; there are never two.

mod memory;
mod record;

pub use memory::{Memory, MemoryError, life};
pub use record::Record;

use crate::etcd::Asked;
use crate::metrics;
use ft_store::{Expected, Lease, Store, StoreError, Swap, Versioned};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Before what was not answered is asked again. etcd itself has had its time by then.
const PAUSE: Duration = Duration::from_millis(500);
/// A lease is kept alive three times as often as must be.
const THIRD: u32 = 3;
/// So many times the lease is kept alive before the key is looked at: somebody may have removed it by hand.
const LOOK: u32 = 10;
/// A key of this machine's former life goes with its lease; etcd is late with that after a change of its leader.
const LATE: Duration = Duration::from_secs(10);

/// Why this is no node of the cluster.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// There is one of this name.
    #[error(
        "node.name: the name {name} is taken: {holder} has it in etcd ({key}), and this is {own}; one of the two needs another name"
    )]
    Taken {
        /// The name.
        name: String,
        /// Where it stands.
        key: String,
        /// Who has it.
        holder: String,
        /// Who wants it.
        own: String,
    },
    /// It cannot remember who it is.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// A node and its key.
pub struct Node<S> {
    etcd: Asked<S>,
    memory: Memory,
    record: Record,
    key: String,
    ttl: Duration,
    /// It has had its place since the daemon began: jobs may stand on it.
    was_held: bool,
}

/// What became of an attempt to take the place.
enum Claim {
    Held,
    /// The lease is gone.
    NoLease,
    /// Somebody else has it.
    Taken(String),
    /// This machine's former life has it.
    Former,
}

impl<S: Store> Node<S> {
    /// A node that has no place yet.
    pub fn new(etcd: Asked<S>, memory: Memory, record: Record, key: String, ttl: Duration) -> Node<S> {
        etcd.state().is_node(&memory.id);
        Node { etcd, memory, record, key, ttl, was_held: false }
    }

    /// Takes the node's place and keeps it, for ever.
    ///
    /// # Errors
    /// [`NodeError::Taken`] if somebody else has it at the start. A daemon that once had it tries on: jobs may be on its node.
    pub async fn hold(mut self) -> Result<std::convert::Infallible, NodeError> {
        loop {
            let lease = self.take().await?;
            self.was_held = true;
            self.keep(lease).await;
            metrics::lease_lost();
            self.etcd.state().lease_gone();
            self.memory.keep(None)?;
        }
    }

    /// Until the place is had.
    async fn take(&mut self) -> Result<Lease, NodeError> {
        let begun = Instant::now();
        let mut said = false;
        loop {
            let lease = self.lease().await?;
            match self.claim(lease).await {
                Claim::Held => {
                    // Known for longer than they need be, they harm nobody.
                    if let Err(error) = self.memory.forget_former() {
                        tracing::warn!("{error}");
                    }
                    metrics::lease_held(true);
                    tracing::info!(lease = %lease.id, "this is node {} of the cluster: {}", self.record.name, self.record);
                    return Ok(lease);
                }
                Claim::NoLease => self.memory.keep(None)?,
                Claim::Former if begun.elapsed() < self.ttl + LATE => {
                    if !said {
                        tracing::info!(
                            "{} is this machine's from before its restart, and goes with its lease",
                            self.key
                        );
                    }
                    said = true;
                    sleep(PAUSE).await;
                }
                Claim::Former => {
                    let holder = "who has this machine's memory from before its restart (a copy of its disk?)";
                    self.refused(lease, holder.into(), &mut said).await?;
                }
                Claim::Taken(holder) => self.refused(lease, holder, &mut said).await?,
            }
        }
    }

    /// The name is somebody else's.
    async fn refused(&mut self, lease: Lease, holder: String, said: &mut bool) -> Result<(), NodeError> {
        // Nothing hangs on it; unanswered, it lapses.
        let _ = self.etcd.revoke(lease.id).await;
        self.memory.keep(None)?;
        let (name, key, own) = (self.record.name.clone(), self.key.clone(), self.record.to_string());
        let error = NodeError::Taken { name, key, holder, own };
        if !self.was_held {
            return Err(error);
        }
        if !*said {
            tracing::error!("{error}; until then this node is none of the cluster");
        }
        *said = true;
        sleep(self.ttl / THIRD).await;
        Ok(())
    }

    /// The lease that there is, or a new one.
    async fn lease(&mut self) -> Result<Lease, NodeError> {
        loop {
            let asked = crate::state::boot_time();
            let (answer, stored) = match self.memory.lease {
                Some(lease) => (self.etcd.adopt(lease).await, true),
                None => (self.etcd.grant(self.ttl).await, false),
            };
            match answer {
                Ok(lease) => {
                    // Before anything hangs on it: of a daemon that dies now the next one must know.
                    self.memory.keep(Some(lease.id))?;
                    self.etcd.state().lease(lease, asked);
                    return Ok(lease);
                }
                Err(StoreError::NoLease(lease)) if stored => {
                    tracing::warn!(%lease, "the lease that the daemon before this one has left is gone; another one is asked for");
                    self.memory.keep(None)?;
                }
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    /// Puts the node's key on its lease, whatever it takes but what is another node's.
    async fn claim(&mut self, lease: Lease) -> Claim {
        loop {
            let Ok(read) = self.etcd.get(&self.key).await else {
                sleep(PAUSE).await;
                continue;
            };
            if let Some(found) = &read.found
                && let Some(other) = self.other(found)
            {
                return other;
            }
            let expected = Expected::at(read.found.map_or(0, |found| found.revision));
            let swap = Swap::on(&self.key, expected).put_leased(&self.key, self.record.encode(), lease.id);
            match self.etcd.swap(swap).await {
                Ok(_) => return Claim::Held,
                Err(StoreError::NoLease(_)) => return Claim::NoLease,
                // Somebody was faster, or nobody knows: it is read again.
                Err(StoreError::Lost { .. }) => {}
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    /// Whose the key is, if it is not this node's.
    fn other(&self, found: &Versioned) -> Option<Claim> {
        match Record::decode(&found.value) {
            Some(other) if other.id == self.record.id => None,
            Some(other) if self.memory.former.contains(&other.id) => Some(Claim::Former),
            Some(other) => Some(Claim::Taken(other.to_string())),
            None => Some(Claim::Taken("what this release cannot read".into())),
        }
    }

    /// Keeps the lease alive until it is gone, or the key is.
    async fn keep(&mut self, lease: Lease) {
        let third = lease.ttl / THIRD;
        let (mut held, mut over) = (crate::state::boot_time(), false);
        let mut rest = third;
        for count in 1u32.. {
            sleep(rest).await;
            rest = third;
            let asked = crate::state::boot_time();
            match self.etcd.keep_alive(lease.id, third).await {
                Ok(()) => {
                    metrics::lease_renewed();
                    metrics::lease_held(true);
                    (held, over) = (asked, false);
                    self.etcd.state().lease(lease, asked);
                }
                Err(StoreError::NoLease(_)) => {
                    tracing::warn!(lease = %lease.id, "the node's lease in etcd was lost, and with it the node's place; it is taken anew");
                    return;
                }
                // Whether it is held still etcd alone can say, when it is back.
                Err(_) => {
                    if !over && crate::state::boot_time() > held + lease.ttl {
                        tracing::warn!(lease = %lease.id, "the node's lease was not kept alive for its whole time: others may take the node for gone");
                        metrics::lease_held(false);
                        over = true;
                    }
                    // Two thirds may be over.
                    rest = third.min(PAUSE);
                    continue;
                }
            }
            if count % LOOK == 0
                && let Ok(read) = self.etcd.get(&self.key).await
                && read.found.as_ref().is_none_or(|found| self.other(found).is_some())
            {
                tracing::warn!("somebody has removed the node's key {} from etcd; it is written anew", self.key);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
