//! etcd: a cluster's store.
//!
//! One connection, to one member; what is not answered there is asked at the next one, until its time is over. A compare-and-swap alone is
//! sent once: only what was certainly not looked at (there was no connection, the member knew no leader, the token had lapsed) is sent
//! again. Who has asked for less time than a member may take leaves the connection as it is, and so do [`Guests`]. See docs/decisions/store.md.

mod answer;
mod guests;
mod line;
mod options;
mod watch;

pub use guests::Guests;
pub use options::{EtcdOptions, Login, Tls};
pub use watch::EtcdWatch;

use crate::error::Trouble;
use crate::store::{Lease, LeaseId, Read, Scope, Store, Versioned};
use crate::swap::{Expected, Swap, Write};
use crate::{StoreError, Unmet};
use answer::Answer;
use etcd_client::{
    Client, Compare, CompareOp, Error, GetOptions, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use guests::{Guest, Kind, Place};
use line::{Connected, Line, Tried};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// The longest message that is read: all nodes of a large cluster.
const MESSAGE: usize = 64 << 20;
/// A member that fails at once is not asked as fast as it can fail.
const PAUSE: Duration = Duration::from_millis(20);

/// A cluster of etcd, 3.4 or newer.
#[derive(Clone)]
pub struct Etcd {
    line: Arc<Line>,
    /// How long one member may take to answer.
    attempt: Duration,
    /// Whose the questions are, if they are not those of whom the connection is for.
    guest: Option<Guest>,
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Etcd")
    }
}

impl Etcd {
    /// What the options name is read; nothing is connected yet.
    ///
    /// # Errors
    /// [`StoreError::Options`], [`StoreError::File`].
    pub fn new(options: &EtcdOptions) -> Result<Etcd, StoreError> {
        Ok(Etcd { line: Arc::new(Line::new(options)?), attempt: options.attempt, guest: None })
    }

    /// Others who ask over the same connection, and ask again when a member has not answered after this time, or the configuration's. Whether a
    /// member serves that they doubt is seen by asking it for this key, which need not be there.
    pub fn guests(&self, attempt: Duration, key: &str) -> Guests {
        Guests::new(self.clone(), attempt, key)
    }

    /// Connects to a member that has a leader; returns which.
    ///
    /// # Errors
    /// [`StoreError::Refused`] at once when certificates or password are wrong; [`StoreError::Unanswered`].
    pub async fn check(&self, within: Duration) -> Result<String, StoreError> {
        let mut tried = Tried::default();
        match self.line.connected(&mut tried, Instant::now() + within).await {
            Some(connected) => Ok(connected.endpoint),
            None => Err(self.line.failed("let this node in".into(), within, tried)),
        }
    }

    /// Asks until it is answered or the time is over, one member after the other. Not for what must not be done twice.
    async fn ask<T, F>(
        &self,
        what: String,
        within: Duration,
        call: impl Fn(Client) -> F + Send + Sync,
    ) -> Result<Option<T>, StoreError>
    where
        F: Future<Output = Result<T, Error>> + Send,
        T: Send,
    {
        self.ask_each((what, within), self.attempt, call).await
    }

    /// As [`ask`](Self::ask); `attempt`: how long one member may take.
    async fn ask_each<T, F>(
        &self,
        (what, within): (String, Duration),
        attempt: Duration,
        call: impl Fn(Client) -> F + Send + Sync,
    ) -> Result<Option<T>, StoreError>
    where
        F: Future<Output = Result<T, Error>> + Send,
        T: Send,
    {
        let until = Instant::now() + within;
        let mut tried = Tried::default();
        while let Some(connected) = self.line.connected(&mut tried, until).await {
            let Connected { client, generation, endpoint } = connected;
            let Some(mut place) = self.place(Kind::Question, &mut tried, until).await else { break };
            if !self.line.is_current(generation) {
                continue;
            }
            let enough = place.until(attempt);
            let answered = tokio::select! {
                answered = timeout_at(until.min(enough), call(client)) => answered.map_err(|_| "no answer"),
                () = self.left(generation) => Err("no answer, and others have left it"),
                () = self.doubts(attempt / 2, generation) => Err("no answer"),
            };
            place.leave(answered.is_ok());
            let error = match answered {
                Ok(Ok(value)) => return Ok(Some(value)),
                Ok(Err(error)) => answer::of(&error),
                Err(reason) => Answer::Nothing(reason.into()),
            };
            match error {
                Answer::NoLease => return Ok(None),
                Answer::Refused(reason) | Answer::TooLong(reason) => return Err(refused(what, endpoint, reason)),
                Answer::Token(reason) => {
                    tried.note(&endpoint, reason, false);
                    self.line.renew(generation);
                }
                Answer::Unseen(reason) | Answer::Nothing(reason) => {
                    tracing::debug!(endpoint, reason, what, "not answered");
                    tried.note(&endpoint, reason, false);
                    // Who had little time knows nothing of a member that is slow.
                    if Instant::now() < until || until >= enough {
                        self.give_up(generation, until).await;
                    }
                }
            }
            sleep(PAUSE).await;
        }
        Err(self.line.failed(what, within, tried))
    }

    /// A guest waits for one; nothing, when the time is over.
    async fn place(&self, kind: Kind, tried: &mut Tried, until: Instant) -> Option<Place> {
        let Some(guest) = &self.guest else { return Some(Place::default()) };
        let place = guest.place(kind, until).await;
        if place.is_none() {
            tried.note("ftd", guests::full(), false);
        }
        place
    }

    /// Waits until a guest need not wait any more for what was asked on this connection, if it may be asked again.
    async fn left(&self, generation: u64) {
        match self.guest {
            Some(_) => self.line.left(generation).await,
            None => std::future::pending().await,
        }
    }

    /// Never ends. After this time a guest doubts whether the connection serves.
    async fn doubts(&self, after: Duration, generation: u64) {
        if let Some(guest) = &self.guest {
            sleep(after).await;
            drop(self.line.doubt(generation, &guest.key));
        }
        std::future::pending().await
    }

    /// This connection does not serve, or so it seems to a guest.
    fn found_wanting(&self, generation: u64) {
        match &self.guest {
            Some(guest) => drop(self.line.doubt(generation, &guest.key)),
            None => self.line.give_up(generation),
        }
    }

    /// As [`found_wanting`](Self::found_wanting); a guest waits until that is known.
    async fn give_up(&self, generation: u64, until: Instant) {
        match &self.guest {
            Some(guest) => self.line.doubted(generation, &guest.key, until).await,
            None => self.line.give_up(generation),
        }
    }
}

fn refused(what: String, endpoint: String, reason: String) -> StoreError {
    StoreError::Refused { what, by: vec![Trouble { endpoint, reason, lasting: true }] }
}

fn versioned(pair: &KeyValue) -> Versioned {
    Versioned { revision: pair.mod_revision() as u64, value: pair.value().to_vec() }
}

/// etcd takes whole seconds.
fn seconds(ttl: Duration) -> i64 {
    ttl.as_secs() as i64 + i64::from(ttl.subsec_nanos() > 0)
}

fn transaction(swap: &Swap) -> Txn {
    let compare = |(key, expected): &(String, Expected)| match expected {
        Expected::Absent => Compare::version(key.as_str(), CompareOp::Equal, 0),
        Expected::Revision(revision) => Compare::mod_revision(key.as_str(), CompareOp::Equal, *revision as i64),
        Expected::Present => Compare::version(key.as_str(), CompareOp::Greater, 0),
    };
    let write = |(key, write): &(String, Write)| match write {
        Write::Put { value, lease } => {
            let options = lease.map(|lease| PutOptions::new().with_lease(lease.0));
            TxnOp::put(key.as_str(), value.as_slice(), options)
        }
        Write::Delete => TxnOp::delete(key.as_str(), None),
    };
    let look = |(key, _): &(String, Expected)| TxnOp::get(key.as_str(), None);
    Txn::new()
        .when(swap.demands().iter().map(compare).collect::<Vec<_>>())
        .and_then(swap.writes().iter().map(write).collect::<Vec<_>>())
        .or_else(swap.demands().iter().map(look).collect::<Vec<_>>())
}

/// What came of a compare-and-swap that was answered.
fn outcome(swap: &Swap, response: &TxnResponse) -> Result<u64, StoreError> {
    if response.succeeded() {
        return Ok(response.header().map_or(0, |header| header.revision() as u64));
    }
    let looked = response.op_responses().into_iter().map(|looked| match looked {
        TxnOpResponse::Get(got) => got.kvs().first().map(versioned),
        _ => None,
    });
    let unmet = swap.demands().iter().zip(looked).filter(|((_, expected), found)| !expected.is_met(found.as_ref()));
    let unmet = unmet.map(|((key, expected), found)| Unmet { key: key.clone(), expected: *expected, found });
    Err(StoreError::Lost { unmet: unmet.collect() })
}

impl Store for Etcd {
    type Watch = EtcdWatch;

    async fn read(&self, scope: &Scope, within: Duration) -> Result<Read<BTreeMap<String, Versioned>>, StoreError> {
        let options = match scope {
            Scope::Key(_) => GetOptions::new(),
            Scope::Prefix(_) => GetOptions::new().with_prefix(),
        };
        let call = |client: Client| {
            let (mut client, options) = (client.kv_client().max_decoding_message_size(MESSAGE), options.clone());
            async move { client.get(scope.name(), Some(options)).await }
        };
        // Without a lease in the question there is none in the answer.
        let got = self.ask(format!("read {scope}"), within, call).await?.ok_or(StoreError::NoLease(LeaseId(0)))?;
        let pair = |pair: &KeyValue| Some((pair.key_str().ok()?.to_string(), versioned(pair)));
        let found = got.kvs().iter().filter_map(pair).collect();
        let at = got.header().map_or(0, |header| header.revision() as u64);
        Ok(Read { at, found })
    }

    async fn compare_and_swap(&self, swap: Swap, within: Duration) -> Result<u64, StoreError> {
        swap.check()?;
        let what = || format!("write what depends on {}", swap.key());
        let until = Instant::now() + within;
        let mut tried = Tried::default();
        while let Some(connected) = self.line.connected(&mut tried, until).await {
            let Connected { client, generation, endpoint } = connected;
            let Some(mut place) = self.place(Kind::Question, &mut tried, until).await else { break };
            if !self.line.is_current(generation) {
                continue;
            }
            let enough = place.until(self.attempt);
            let mut client = client.kv_client().max_decoding_message_size(MESSAGE);
            // Who waits for longer waits for a member that is gone: what became of the write is to be read from another one.
            let answered = tokio::select! {
                answered = timeout_at(until.min(enough), client.txn(transaction(&swap))) => answered.ok(),
                () = self.doubts(self.attempt / 2, generation) => None,
            };
            place.leave(answered.is_some());
            let said = match answered {
                Some(Ok(response)) => return outcome(&swap, &response),
                Some(Err(error)) => answer::of(&error),
                None => Answer::Nothing("no answer".into()),
            };
            let unknown = |endpoint, reason| {
                let (key, within) = (swap.key().to_string(), within.min(self.attempt));
                Err(StoreError::Unknown { key, endpoint, within, reason })
            };
            match said {
                Answer::Unseen(reason) => {
                    tried.note(&endpoint, reason, false);
                    self.give_up(generation, until).await;
                }
                Answer::Token(reason) => {
                    tried.note(&endpoint, reason, false);
                    self.line.renew(generation);
                }
                Answer::NoLease => return Err(StoreError::NoLease(swap.lease().unwrap_or(LeaseId(0)))),
                Answer::Refused(reason) => return Err(refused(what(), endpoint, reason)),
                Answer::TooLong(reason) => return unknown(endpoint, reason),
                Answer::Nothing(reason) => {
                    if Instant::now() < until || until >= enough {
                        self.found_wanting(generation);
                    }
                    return unknown(endpoint, reason);
                }
            }
            sleep(PAUSE).await;
        }
        Err(self.line.failed(what(), within, tried))
    }

    fn watch(&self, scope: &Scope, from: u64) -> EtcdWatch {
        EtcdWatch::new(self.clone(), scope.clone(), from)
    }

    async fn grant(&self, ttl: Duration, within: Duration) -> Result<Lease, StoreError> {
        let seconds = seconds(ttl);
        let call = |mut client: Client| async move { client.lease_grant(seconds, None).await };
        let granted = self.ask("grant a lease".into(), within, call).await?;
        let granted = granted.ok_or(StoreError::NoLease(LeaseId(0)))?;
        Ok(Lease { id: LeaseId(granted.id()), ttl: Duration::from_secs(granted.ttl().max(0) as u64) })
    }

    async fn keep_alive(&self, lease: LeaseId, within: Duration) -> Result<(), StoreError> {
        let call = |mut client: Client| async move { client.lease_keep_alive(lease.0).await.map(drop) };
        // A short lease has no time for one member alone.
        let attempt = self.attempt.min(within / 2);
        self.ask_each((format!("keep lease {lease} alive"), within), attempt, call)
            .await?
            .ok_or(StoreError::NoLease(lease))
    }

    async fn adopt(&self, lease: LeaseId, within: Duration) -> Result<Lease, StoreError> {
        let until = Instant::now() + within;
        self.keep_alive(lease, within).await?;
        let call = |mut client: Client| async move { client.lease_time_to_live(lease.0, None).await };
        let left = self.ask(format!("look at lease {lease}"), until - Instant::now(), call).await?;
        match left {
            Some(left) if left.ttl() > 0 => {
                Ok(Lease { id: lease, ttl: Duration::from_secs(left.granted_ttl().max(0) as u64) })
            }
            _ => Err(StoreError::NoLease(lease)),
        }
    }

    async fn revoke(&self, lease: LeaseId, within: Duration) -> Result<(), StoreError> {
        let call = |mut client: Client| async move { client.lease_revoke(lease.0).await.map(drop) };
        self.ask(format!("end lease {lease}"), within, call).await.map(drop)
    }
}
