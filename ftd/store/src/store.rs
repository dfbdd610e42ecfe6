//! What every store does.

use crate::error::StoreError;
use crate::swap::Swap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// A value and the revision at which it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versioned {
    /// Of the store when the key was written last; never 0.
    pub revision: u64,
    /// The bytes.
    pub value: Vec<u8>,
}

/// What was read, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read<T> {
    /// The store's revision then: a watch from the next one on misses nothing.
    pub at: u64,
    /// What was there.
    pub found: T,
}

/// Which keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scope {
    /// This one.
    Key(String),
    /// All whose names begin like this.
    Prefix(String),
}

impl Scope {
    /// Whether it is one of them.
    pub fn covers(&self, key: &str) -> bool {
        match self {
            Scope::Key(only) => key == only,
            Scope::Prefix(prefix) => key.starts_with(prefix.as_str()),
        }
    }

    /// The key, or what all their names begin with.
    pub fn name(&self) -> &str {
        match self {
            Scope::Key(name) | Scope::Prefix(name) => name,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::Key(key) => write!(f, "{key}"),
            Scope::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}

/// What became of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Which.
    pub key: String,
    /// The store's revision since.
    pub revision: u64,
    /// Its value; nothing when it was removed, or went with its lease.
    pub value: Option<Vec<u8>>,
}

/// A lease's name in the store. It can be stored, and adopted by who comes after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LeaseId(pub i64);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As etcdctl writes it.
        write!(f, "{:016x}", self.0)
    }
}

/// A lease that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Its name.
    pub id: LeaseId,
    /// How long it is held after it was kept alive last. The store may have made it longer than was asked.
    pub ttl: Duration,
}

/// Why a watch ends.
#[derive(Debug, thiserror::Error)]
pub enum WatchEnd {
    /// What happened since `from` is forgotten: the keys must be read, and watched from that revision on.
    #[error("what happened from revision {from} to {oldest} is not known any more: the keys must be read again")]
    Compacted {
        /// The first that is missing.
        from: u64,
        /// The oldest that is not.
        oldest: u64,
    },
    /// The store does not let them be watched.
    #[error(transparent)]
    Failed(#[from] StoreError),
}

/// A watch. It lasts as long as it can tell everything; interruptions it bridges by itself. It may be late, and, stores being what they
/// are, miss something: [`Follow`](crate::Follow) reads as well.
pub trait Watch: Send {
    /// Waits for the next changes, oldest first; those of one revision come together. May be given up and called again.
    ///
    /// # Errors
    /// [`WatchEnd`]; then it is over.
    fn next(&mut self) -> impl Future<Output = Result<Vec<Change>, WatchEnd>> + Send;
}

/// Keys with values, compare-and-swap, watches and leases. Clones are the same store.
///
/// Every call ends `within` a time. It may be given up, too: of a compare-and-swap that is given up nothing is known, as of one that was
/// not answered.
pub trait Store: Clone + Send + Sync + 'static {
    /// Its watches.
    type Watch: Watch;

    /// Reads keys, linearizable.
    ///
    /// # Errors
    /// [`StoreError::Unanswered`], [`StoreError::Refused`]; [`StoreError::Io`] of the embedded store.
    fn read(
        &self,
        scope: &Scope,
        within: Duration,
    ) -> impl Future<Output = Result<Read<BTreeMap<String, Versioned>>, StoreError>> + Send;

    /// Reads one key, linearizable.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn get(
        &self,
        key: &str,
        within: Duration,
    ) -> impl Future<Output = Result<Read<Option<Versioned>>, StoreError>> + Send {
        let scope = Scope::Key(key.to_string());
        async move {
            let Read { at, mut found } = self.read(&scope, within).await?;
            Ok(Read { at, found: found.remove(scope.name()) })
        }
    }

    /// Writes all of it if all that it demands holds; returns the new revision. It is carried out at most once: nothing below repeats it
    /// but when it was certainly not looked at.
    ///
    /// # Errors
    /// [`StoreError::Lost`] with what is there; [`StoreError::Unknown`] when it may have happened, or happen yet; all other errors mean
    /// that nothing was written.
    fn compare_and_swap(&self, swap: Swap, within: Duration) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Watches keys from this revision on, that one included.
    fn watch(&self, scope: &Scope, from: u64) -> Self::Watch;

    /// A new lease.
    ///
    /// # Errors
    /// [`StoreError::Unanswered`]: one that was granted all the same lapses by itself.
    fn grant(&self, ttl: Duration, within: Duration) -> impl Future<Output = Result<Lease, StoreError>> + Send;

    /// Makes it last its whole time from now on.
    ///
    /// # Errors
    /// [`StoreError::NoLease`] when it is too late.
    fn keep_alive(&self, lease: LeaseId, within: Duration) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Takes over a lease of which only the name is known, and keeps it alive once.
    ///
    /// # Errors
    /// [`StoreError::NoLease`] when it is too late.
    fn adopt(&self, lease: LeaseId, within: Duration) -> impl Future<Output = Result<Lease, StoreError>> + Send;

    /// Ends a lease, and removes its keys. That it ended before is no error.
    ///
    /// # Errors
    /// [`StoreError::Unanswered`]: then it lapses.
    fn revoke(&self, lease: LeaseId, within: Duration) -> impl Future<Output = Result<(), StoreError>> + Send;
}
