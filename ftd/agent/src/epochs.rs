//! The job's record in the store: one machine's own, which never waits, or etcd, whose answers come as news: the agent is a user's, and asks
//! it through `ftd`.

use crate::job::Job;
use crate::outlet::Outlet;
use crate::ways::Ways;
use ft_store::{
    Change, Embedded, Expected, Follow, MAX_KEYS, Scope, Store, StoreError, Swap, Through, Unmet, decode_record,
    encode_record,
};
use ft_wire::cluster::Cluster;
use ftd_core::{EpochRecord, Event, NodeId, Revision};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The record's key, behind the job's prefix where it has one.
const KEY: &str = "epoch";
/// The embedded store does not wait.
const AT_ONCE: Duration = Duration::from_secs(1);
/// So long etcd has for an answer; then it is asked anew.
const WITHIN: Duration = Duration::from_secs(3);
/// Watches are backed by a read (DESIGN §10).
const READ_AGAIN: Duration = Duration::from_secs(2);
/// … which is not all that tells of a new epoch while observers answer this node's heartbeats: who knows of it says so instead.
const SELDOM: Duration = Duration::from_secs(10);

/// What the store says.
#[derive(Debug)]
pub struct News {
    /// For ftd-core.
    event: Option<Event>,
    /// For people, once.
    notice: Option<String>,
}

/// The store, as this job sees it.
#[derive(Debug)]
pub enum Epochs {
    /// Of one machine.
    Own(Embedded),
    /// Of several.
    Shared(Shared),
}

/// The record in etcd.
#[derive(Debug)]
pub struct Shared {
    me: NodeId,
    store: Through<Ways>,
    key: String,
    /// The keys that are there as long as the nodes' daemons hold their leases.
    leases: Vec<Option<String>>,
    /// Whether the node's observers answer it.
    hears: watch::Sender<bool>,
    news: Outlet<News>,
}

impl Epochs {
    /// On one machine.
    pub fn own(store: Embedded) -> Epochs {
        Epochs::Own(store)
    }

    /// On several. What etcd says leaves through `news`; how the record changes is told from now on.
    pub fn shared(ways: Ways, cluster: &Cluster, news: Outlet<News>) -> Epochs {
        let store = Through(ways);
        let key = format!("{}{KEY}", cluster.store.prefix);
        let leases = cluster.nodes.iter().map(|node| node.lease.clone()).collect();
        let (hears, told_otherwise) = watch::channel(false);
        let follows = Follow::new(store.clone(), Scope::Key(key.clone()), READ_AGAIN, WITHIN);
        tokio::spawn(follow(follows.seldom_while(told_otherwise, SELDOM), news.clone()));
        Epochs::Shared(Shared { me: NodeId(cluster.me), store, key, leases, hears, news })
    }

    /// Whether the node's observers answer it.
    pub fn hears(&self, hears: bool) {
        if let Epochs::Shared(shared) = self {
            shared.hears.send_if_modified(|before| std::mem::replace(before, hears) != hears);
        }
    }

    /// A node comes into the job, behind those that there are: this key is there as long as its daemon holds its lease.
    pub fn add(&mut self, lease: Option<String>) {
        if let Epochs::Shared(shared) = self {
            shared.leases.push(lease);
        }
    }

    /// Says when what is kept there does not outlive this agent.
    pub fn warn(&self, job: &Job) {
        if let Epochs::Own(store) = self
            && store.is_volatile()
        {
            let sentence = "the file-size limit (ulimit -f) leaves no room to keep the job's record outside of the agent: should the agent \
                 die, no other one could go on with the job";
            job.notice(sentence.into());
        }
    }

    /// Reads the record. Nothing: the answer comes later.
    pub async fn read(&self) -> Option<News> {
        match self {
            Epochs::Own(store) => Some(read(store, KEY, AT_ONCE).await),
            Epochs::Shared(Shared { store, key, news, .. }) => {
                let (store, key, news) = (store.clone(), key.clone(), news.clone());
                tokio::spawn(async move { news.send(read(&store, &key, WITHIN).await) });
                None
            }
        }
    }

    /// Writes the record, if it is still at this revision and these nodes' leases are held. Nothing: the answer comes later.
    pub async fn swap(&self, expected: Revision, record: &EpochRecord, leases: &[NodeId]) -> Option<News> {
        ft_sys::gate::reach(if record.epoch.0 > 1 { "agent.noticed" } else { "agent.complete" }, None);
        let first = record.epoch.0 == 1;
        match self {
            Epochs::Own(store) => {
                let swap = Swap::on(KEY, Expected::at(expected.0)).put(KEY, encode_record(record));
                let answer = answer(store.compare_and_swap(swap, AT_ONCE).await, KEY, &[]);
                ft_sys::gate::reach(if first { "agent.recorded" } else { "agent.agreed" }, None);
                Some(answer)
            }
            Epochs::Shared(shared) => {
                let (swap, asked) = shared.swap(expected, record, leases);
                let (store, key, news) = (shared.store.clone(), shared.key.clone(), shared.news.clone());
                let me = Some(shared.me.0);
                tokio::spawn(async move {
                    let answer = answer(store.compare_and_swap(swap, WITHIN).await, &key, &asked);
                    if !first && matches!(answer.event, Some(Event::CasDone { .. })) {
                        ft_sys::gate::reach("agent.proposes", me);
                        // The first one of a job stands there, and no other one beside it.
                        ft_sys::gate::reach("agent.proposed", None);
                    }
                    ft_sys::gate::reach(if first { "agent.recorded" } else { "agent.agreed" }, None);
                    news.send(answer)
                });
                None
            }
        }
    }

    /// What the store has said.
    pub fn take(&self, job: &mut Job, news: News) {
        news.notice.into_iter().for_each(|notice| job.notice_once(notice));
        news.event.into_iter().for_each(|event| job.report(event));
    }
}

impl Shared {
    /// What is to be written, and of which nodes the leases are demanded.
    fn swap(&self, expected: Revision, record: &EpochRecord, leases: &[NodeId]) -> (Swap, Vec<(NodeId, String)>) {
        let key = |node: &NodeId| Some((*node, self.leases.get(node.0 as usize)?.clone()?));
        // What a transaction has no room for is not demanded: a node that is dead all the same is left out by its observers.
        let asked: Vec<(NodeId, String)> = leases.iter().filter_map(key).take(MAX_KEYS - 1).collect();
        let swap = Swap::on(&self.key, Expected::at(expected.0)).put(&self.key, encode_record(record));
        (asked.iter().fold(swap, |swap, (_, key)| swap.and_on(key, Expected::Present)), asked)
    }
}

/// Tells how the record changes, for ever.
async fn follow(mut follow: Follow<Through<Ways>>, news: Outlet<News>) {
    loop {
        let changes = match follow.next().await {
            Ok(changes) => changes,
            Err(error) => {
                tracing::debug!(%error, "the record is not followed at this moment");
                if !news.send(News { event: None, notice: to_be_said(&error) }) {
                    return;
                }
                continue;
            }
        };
        for change in changes {
            if !news.send(watched(change)) {
                return;
            }
        }
    }
}

fn watched(change: Change) -> News {
    let revision = Revision(change.revision);
    match change.value.map(|value| decode_record(&value)).transpose() {
        Ok(record) => News { event: Some(Event::Watched { revision, record: record.map(Arc::new) }), notice: None },
        Err(error) => News { event: None, notice: Some(unreadable(&error)) },
    }
}

fn unreadable(error: &ft_store::CodecError) -> String {
    format!("the job's record cannot be read: {error}")
}

/// What people can do something about. That the store does not answer ftd-core says.
fn to_be_said(error: &StoreError) -> Option<String> {
    match error {
        StoreError::Unanswered { .. } | StoreError::Unknown { .. } => None,
        error => Some(format!("the job's record in the store: {error}")),
    }
}

async fn read(store: &impl Store, key: &str, within: Duration) -> News {
    let event = match store.get(key, within).await.map(|read| read.found) {
        Ok(None) => Event::StoreRead { revision: Revision(0), record: None },
        Ok(Some(found)) => match decode_record(&found.value) {
            Ok(record) => Event::StoreRead { revision: Revision(found.revision), record: Some(Arc::new(record)) },
            Err(error) => return News { event: Some(Event::StoreUnavailable), notice: Some(unreadable(&error)) },
        },
        Err(error) => {
            tracing::warn!(%error, "the store");
            return News { event: Some(Event::StoreUnavailable), notice: to_be_said(&error) };
        }
    };
    News { event: Some(event), notice: None }
}

/// What the answer to a write means. A write of which nothing is known may still be done.
fn answer(written: Result<u64, StoreError>, key: &str, asked: &[(NodeId, String)]) -> News {
    let event = match written {
        Ok(revision) => Event::CasDone { revision: Revision(revision) },
        Err(StoreError::Lost { unmet }) => lost(unmet, key, asked),
        Err(error) => {
            let notice = to_be_said(&error).map(|_| format!("the epoch could not be agreed: {error}"));
            return News { event: Some(Event::StoreUnavailable), notice };
        }
    };
    News { event: Some(event), notice: None }
}

/// Another was first, or nodes are not there any more.
fn lost(unmet: Vec<Unmet>, key: &str, asked: &[(NodeId, String)]) -> Event {
    let of_record = |unmet: &Unmet| unmet.key == key;
    if !unmet.iter().any(of_record) && !unmet.is_empty() {
        let unfit = |(_, lease): &&(NodeId, String)| unmet.iter().any(|unmet| unmet.key == *lease);
        return Event::CasUnfit { nodes: asked.iter().filter(unfit).map(|(node, _)| *node).collect() };
    }
    let Some(found) = unmet.into_iter().filter(of_record).find_map(|unmet| unmet.found) else {
        return Event::CasLost { revision: Revision(0), record: None };
    };
    match decode_record(&found.value) {
        Ok(record) => Event::CasLost { revision: Revision(found.revision), record: Some(Arc::new(record)) },
        Err(_) => Event::StoreUnavailable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unmet(key: &str) -> Unmet {
        Unmet { key: key.into(), expected: Expected::Present, found: None }
    }

    #[test]
    fn nodes_without_a_lease_are_named_unless_the_record_is_another_one_already() {
        let asked = [(NodeId(2), "n/c".to_string()), (NodeId(5), "n/f".to_string())];
        let lost = |keys: &[&str]| lost(keys.iter().map(|key| unmet(key)).collect(), "epoch", &asked);
        assert_eq!(lost(&["n/f"]), Event::CasUnfit { nodes: vec![NodeId(5)] });
        assert_eq!(lost(&["epoch", "n/f"]), Event::CasLost { revision: Revision(0), record: None });
        assert_eq!(lost(&[]), Event::CasLost { revision: Revision(0), record: None });
    }
}
