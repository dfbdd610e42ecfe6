//! A store whose watches can be made to say nothing, as versions of etcd have done, and whose leases late; everything else is the store's
//! own.

use ft_store::{Change, Lease, LeaseId, Read, Scope, Store, StoreError, Swap, Versioned, Watch, WatchEnd};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Watches that were begun while it is set lose everything.
#[derive(Debug, Clone)]
pub struct Deaf<S> {
    pub store: S,
    pub deaf: Arc<AtomicBool>,
    /// So many calls that keep a lease alive are not answered in time.
    pub slow: Arc<AtomicUsize>,
}

pub struct DeafWatch<W> {
    watch: W,
    deaf: bool,
}

impl<W: Watch> Watch for DeafWatch<W> {
    async fn next(&mut self) -> Result<Vec<Change>, WatchEnd> {
        loop {
            let changes = self.watch.next().await?;
            if !self.deaf {
                return Ok(changes);
            }
        }
    }
}

impl<S: Store> Store for Deaf<S> {
    type Watch = DeafWatch<S::Watch>;

    async fn read(&self, scope: &Scope, within: Duration) -> Result<Read<BTreeMap<String, Versioned>>, StoreError> {
        self.store.read(scope, within).await
    }

    async fn compare_and_swap(&self, swap: Swap, within: Duration) -> Result<u64, StoreError> {
        self.store.compare_and_swap(swap, within).await
    }

    fn watch(&self, scope: &Scope, from: u64) -> Self::Watch {
        DeafWatch { watch: self.store.watch(scope, from), deaf: self.deaf.load(Ordering::Relaxed) }
    }

    async fn grant(&self, ttl: Duration, within: Duration) -> Result<Lease, StoreError> {
        self.store.grant(ttl, within).await
    }

    async fn keep_alive(&self, lease: LeaseId, within: Duration) -> Result<(), StoreError> {
        if self.slow.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
            tokio::time::sleep(within).await;
            return Err(StoreError::Unanswered { what: "keep it alive".into(), within, tried: Vec::new() });
        }
        self.store.keep_alive(lease, within).await
    }

    async fn adopt(&self, lease: LeaseId, within: Duration) -> Result<Lease, StoreError> {
        self.store.adopt(lease, within).await
    }

    async fn revoke(&self, lease: LeaseId, within: Duration) -> Result<(), StoreError> {
        self.store.revoke(lease, within).await
    }
}
