//! What etcd is asked: measured, counted, and how it goes said when that changes.

use crate::metrics::{self, Call};
use crate::state::State;
use ft_store::{Etcd, EtcdOptions, Lease, LeaseId, Read, Scope, Store, StoreError, Swap, Versioned};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Who asks now and then has no connection in between.
const IDLE: Duration = Duration::from_secs(2);

/// etcd, for who asks it now and then, and has a connection of its own as long: a process that serves one of a job's, and who reads what users have
/// written, which is nothing to be waited for on the lease's.
///
/// # Errors
/// The configuration cannot be used; it was checked before.
pub fn now_and_then(state: &Arc<State>) -> Result<Asked<Etcd>, String> {
    let config = state.config();
    let options = EtcdOptions { idle: Some(IDLE), ..config.etcd()? };
    let etcd = Etcd::new(&options).map_err(|error| error.to_string())?;
    Ok(Asked::new(etcd, state.clone(), config.etcd_within()))
}

/// etcd, as this daemon asks it.
#[derive(Debug, Clone)]
pub struct Asked<S> {
    store: S,
    state: Arc<State>,
    within: Duration,
}

impl<S: Store> Asked<S> {
    /// Each call has so much time.
    pub fn new(store: S, state: Arc<State>, within: Duration) -> Asked<S> {
        Asked { store, state, within }
    }

    /// What this daemon is, for others to be told.
    pub fn state(&self) -> &State {
        &self.state
    }

    async fn ask<T>(&self, call: Call, answer: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let begun = Instant::now();
        let answer = answer.await;
        let reason = match &answer {
            Ok(_) | Err(StoreError::Lost { .. } | StoreError::NoLease(_)) => None,
            Err(error) => Some(error.to_string()),
        };
        metrics::asked(call, begun.elapsed(), reason.is_none());
        self.state.etcd(reason);
        answer
    }

    /// One key.
    pub async fn get(&self, key: &str) -> Result<Read<Option<Versioned>>, StoreError> {
        self.ask(Call::Read, self.store.get(key, self.within)).await
    }

    /// Several keys.
    pub async fn read(&self, scope: &Scope) -> Result<Read<BTreeMap<String, Versioned>>, StoreError> {
        self.ask(Call::Read, self.store.read(scope, self.within)).await
    }

    /// A compare-and-swap.
    pub async fn swap(&self, swap: Swap) -> Result<u64, StoreError> {
        self.ask(Call::Write, self.store.compare_and_swap(swap, self.within)).await
    }

    /// A new lease.
    pub async fn grant(&self, ttl: Duration) -> Result<Lease, StoreError> {
        self.ask(Call::Grant, self.store.grant(ttl, self.within)).await
    }

    /// A lease that a daemon before this one has left.
    pub async fn adopt(&self, lease: LeaseId) -> Result<Lease, StoreError> {
        self.ask(Call::Adopt, self.store.adopt(lease, self.within)).await
    }

    /// That a lease lasts.
    pub async fn keep_alive(&self, lease: LeaseId, within: Duration) -> Result<(), StoreError> {
        self.ask(Call::KeepAlive, self.store.keep_alive(lease, within.min(self.within))).await
    }

    /// That a lease ends, and its keys with it.
    pub async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.ask(Call::Revoke, self.store.revoke(lease, self.within)).await
    }
}
