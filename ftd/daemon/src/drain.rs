//! Nodes that are drained in Slurm because their own `ftd` is gone: its lease in etcd has expired, and jobs with `--ft` cannot run there.
//! Nothing else drains a node, and nothing here takes one down: agents that accuse a node speak of a job, and Slurm itself sees who is dead.

mod slurm;

use crate::etcd::Asked;
use crate::node::Record;
use ft_store::{Change, Expected, Follow, Read, Scope, Store, StoreError, Swap};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// Where it has not come back within so many times of a lease, nobody is there: a daemon looks for its key more often than that, and writes
/// it anew where somebody has removed it by hand.
const LEASES: u32 = 4;
/// How often what is watched is read again.
const READ_AGAIN: Duration = Duration::from_secs(60);
/// Before what was not answered is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// A node whose key has gone.
#[derive(Debug, Clone)]
struct Gone {
    record: Record,
    since: Instant,
    /// What becomes of it is settled. It counts as gone until it is back.
    judged: bool,
}

/// What is to become of a node that has gone.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// It is back, or another one has its name.
    Back,
    /// This daemon drains it.
    Drained,
    /// Another one does.
    Others,
    /// This daemon has no place itself, or most nodes are gone: it is this one, or the network, that fails.
    Doubtful,
}

/// Watches the nodes' places in etcd, and drains.
pub struct Drain<S: Store> {
    etcd: Asked<S>,
    follow: Follow<S>,
    nodes: String,
    scontrol: PathBuf,
    wait: Duration,
    seen: BTreeMap<String, Record>,
    gone: BTreeMap<String, Gone>,
}

impl<S: Store> Drain<S> {
    /// `store` is `etcd`'s own.
    pub fn new(etcd: Asked<S>, store: S) -> Drain<S> {
        let config = etcd.state().config();
        let nodes = format!("{}/nodes/", config.prefix());
        let follow = Follow::new(store, Scope::Prefix(nodes.clone()), READ_AGAIN, config.etcd_within());
        let (scontrol, wait) = (config.scontrol(), config.lease() * LEASES);
        Drain { etcd, follow, nodes, scontrol, wait, seen: BTreeMap::new(), gone: BTreeMap::new() }
    }

    /// For ever.
    pub async fn run(mut self) {
        loop {
            let next = self.gone.values().filter(|gone| !gone.judged).map(|gone| gone.since + self.wait).min();
            let until = next.unwrap_or_else(|| Instant::now() + READ_AGAIN);
            match timeout_at(until, self.follow.next()).await {
                Ok(Ok(changes)) => changes.into_iter().for_each(|change| self.hear(change)),
                Ok(Err(error)) => {
                    tracing::debug!(%error, "which nodes there are cannot be followed now");
                    sleep(PAUSE).await;
                }
                Err(_) => self.judge_all().await,
            }
        }
    }

    fn hear(&mut self, change: Change) {
        let Some(name) = change.key.strip_prefix(&self.nodes) else { return };
        match change.value {
            Some(value) => {
                self.gone.remove(name);
                // What a later release has written says nothing of Slurm's name for it.
                match Record::decode(&value) {
                    Some(record) => drop(self.seen.insert(name.into(), record)),
                    None => drop(self.seen.remove(name)),
                }
            }
            None => {
                if let Some(record) = self.seen.remove(name) {
                    self.gone.insert(name.into(), Gone { record, since: Instant::now(), judged: false });
                }
            }
        }
    }

    /// Those that have been gone for long enough.
    async fn judge_all(&mut self) {
        let due = |gone: &&Gone| !gone.judged && gone.since.elapsed() >= self.wait;
        let due: Vec<Record> = self.gone.values().filter(due).map(|gone| gone.record.clone()).collect();
        for record in due {
            match self.judge(&record).await {
                Ok(fate) => {
                    let settled = self.act(&record, &fate).await;
                    if let Some(gone) = self.gone.get_mut(&record.name) {
                        (gone.judged, gone.since) = (settled, Instant::now());
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, node = record.name, "whether this node is gone cannot be asked now");
                    sleep(PAUSE).await;
                    return;
                }
            }
        }
    }

    async fn judge(&self, record: &Record) -> Result<Fate, StoreError> {
        let (config, status) = (self.etcd.state().config(), self.etcd.state().status());
        let Read { found, .. } = self.etcd.read(&Scope::Prefix(self.nodes.clone())).await?;
        let key = |name: &str| format!("{}{name}", self.nodes);
        if found.contains_key(&key(&record.name)) {
            return Ok(Fate::Back);
        }
        let is_own = |value: &[u8]| Record::decode(value).is_some_and(|own| own.id == status.id);
        let own = key(config.node());
        let (true, Some(lease)) = (found.get(&own).is_some_and(|found| is_own(&found.value)), status.lease) else {
            return Ok(Fate::Doubtful);
        };
        if self.gone.len() > found.len() {
            return Ok(Fate::Doubtful);
        }
        let (mark, by) = (format!("{}/drains/{}", config.prefix(), record.id), status.id.into_bytes());
        let swap = Swap::on(&mark, Expected::Absent).and_on(own, Expected::Present);
        let swap = swap.and_on(key(&record.name), Expected::Absent);
        match self.etcd.swap(swap.put_leased(&mark, by.clone(), ft_store::LeaseId(lease.id))).await {
            Ok(_) => Ok(Fate::Drained),
            // This daemon may have written it itself, and not have heard so.
            Err(StoreError::Lost { .. }) => match self.etcd.get(&mark).await?.found {
                Some(found) if found.value == by => Ok(Fate::Drained),
                Some(_) => Ok(Fate::Others),
                None => Ok(Fate::Doubtful),
            },
            Err(error) => Err(error),
        }
    }

    /// Whether there is no more to be done.
    async fn act(&self, record: &Record, fate: &Fate) -> bool {
        let node = &record.name;
        match fate {
            Fate::Drained => match slurm::drain(&self.scontrol, record.slurm()).await {
                Ok(slurm::Done::Drained) => {
                    tracing::warn!(
                        node,
                        "this node's ftd is gone, its lease has expired: the node was drained in Slurm"
                    );
                }
                Ok(slurm::Done::Left(state)) => {
                    tracing::info!(node, state, "this node's ftd is gone, and Slurm has it out of service already");
                }
                Ok(slurm::Done::Silent) => {
                    tracing::debug!(
                        node,
                        "this node's ftd is gone, and nobody answers at its slurmd's port: Slurm will see that"
                    );
                    return false;
                }
                Err(error) => {
                    tracing::error!(
                        node,
                        "this node's ftd is gone, and the node could not be drained in Slurm: {error}"
                    );
                    return !error.may_pass();
                }
            },
            Fate::Doubtful => {
                let (gone, there) = (self.gone.len(), self.follow.known().len());
                tracing::warn!(
                    node,
                    gone,
                    there,
                    "this node is gone from etcd, and is not drained: so are too many, or this one"
                );
            }
            Fate::Back | Fate::Others => {}
        }
        true
    }
}

#[cfg(test)]
mod tests;
