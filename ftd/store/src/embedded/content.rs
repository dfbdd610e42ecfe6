//! What the embedded store holds, and what is done to it.

use crate::store::{Change, LeaseId, Versioned};
use crate::swap::{Swap, Write};
use crate::{Scope, StoreError};
use prost::Message;
use std::collections::BTreeMap;
use std::time::Duration;

/// As it is written to the file.
#[derive(Clone, PartialEq, Message)]
struct Stored {
    #[prost(uint64, tag = "1")]
    revision: u64,
    #[prost(message, repeated, tag = "2")]
    entries: Vec<StoredEntry>,
    #[prost(message, repeated, tag = "3")]
    leases: Vec<StoredLease>,
    #[prost(int64, tag = "4")]
    last_lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct StoredEntry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(uint64, tag = "2")]
    revision: u64,
    #[prost(bytes = "vec", tag = "3")]
    value: Vec<u8>,
    #[prost(int64, tag = "4")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct StoredLease {
    #[prost(int64, tag = "1")]
    id: i64,
    #[prost(uint64, tag = "2")]
    ttl: u64,
    #[prost(uint64, tag = "3")]
    ends: u64,
}

#[derive(Debug, Clone)]
struct Entry {
    versioned: Versioned,
    lease: Option<LeaseId>,
}

/// A lease: how long it lasts, and until when, in microseconds of the clock that counts a suspended machine's time as well.
#[derive(Debug, Clone, Copy)]
struct Term {
    ttl: u64,
    ends: u64,
}

/// Keys, leases, and the revision.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    pub revision: u64,
    entries: BTreeMap<String, Entry>,
    leases: BTreeMap<i64, Term>,
    last_lease: i64,
}

impl Content {
    pub fn decode(bytes: &[u8]) -> Result<Content, StoreError> {
        let stored = Stored::decode(bytes).map_err(std::io::Error::other)?;
        let entry = |entry: StoredEntry| {
            let versioned = Versioned { revision: entry.revision, value: entry.value };
            (entry.key, Entry { versioned, lease: (entry.lease != 0).then_some(LeaseId(entry.lease)) })
        };
        Ok(Content {
            revision: stored.revision,
            entries: stored.entries.into_iter().map(entry).collect(),
            leases: stored
                .leases
                .into_iter()
                .map(|lease| (lease.id, Term { ttl: lease.ttl, ends: lease.ends }))
                .collect(),
            last_lease: stored.last_lease,
        })
    }

    pub fn encode(&self) -> Vec<u8> {
        let entry = |(key, entry): (&String, &Entry)| StoredEntry {
            key: key.clone(),
            revision: entry.versioned.revision,
            value: entry.versioned.value.clone(),
            lease: entry.lease.map_or(0, |lease| lease.0),
        };
        let lease = |(id, term): (&i64, &Term)| StoredLease { id: *id, ttl: term.ttl, ends: term.ends };
        Stored {
            revision: self.revision,
            entries: self.entries.iter().map(entry).collect(),
            leases: self.leases.iter().map(lease).collect(),
            last_lease: self.last_lease,
        }
        .encode_to_vec()
    }

    pub fn read(&self, scope: &Scope) -> BTreeMap<String, Versioned> {
        let from = self.entries.range(scope.name().to_string()..).take_while(|(key, _)| key.starts_with(scope.name()));
        let covered = from.filter(|(key, _)| scope.covers(key));
        covered.map(|(key, entry)| (key.clone(), entry.versioned.clone())).collect()
    }

    /// Carries out all of it, or nothing.
    pub fn swap(&mut self, swap: &Swap) -> Result<Vec<Change>, StoreError> {
        let unmet = swap.unmet(|key| self.entries.get(key).map(|entry| &entry.versioned));
        if !unmet.is_empty() {
            return Err(StoreError::Lost { unmet });
        }
        for (_, write) in swap.writes() {
            match write {
                Write::Put { lease: Some(lease), .. } if !self.leases.contains_key(&lease.0) => {
                    return Err(StoreError::NoLease(*lease));
                }
                Write::Put { .. } | Write::Delete => {}
            }
        }
        let revision = self.revision + 1;
        let mut changes = Vec::new();
        for (key, write) in swap.writes() {
            let value = match write {
                Write::Put { value, lease } => {
                    let versioned = Versioned { revision, value: value.clone() };
                    self.entries.insert(key.clone(), Entry { versioned, lease: *lease });
                    Some(value.clone())
                }
                Write::Delete if self.entries.remove(key).is_none() => continue,
                Write::Delete => None,
            };
            changes.push(Change { key: key.clone(), revision, value });
        }
        if !changes.is_empty() {
            self.revision = revision;
        }
        Ok(changes)
    }

    pub fn grant(&mut self, ttl: Duration, now: u64) -> LeaseId {
        self.last_lease += 1;
        let ttl = ttl.as_micros() as u64;
        self.leases.insert(self.last_lease, Term { ttl, ends: now + ttl });
        LeaseId(self.last_lease)
    }

    pub fn keep_alive(&mut self, lease: LeaseId, now: u64) -> Result<Duration, StoreError> {
        let term = self.leases.get_mut(&lease.0).ok_or(StoreError::NoLease(lease))?;
        term.ends = now + term.ttl;
        Ok(Duration::from_micros(term.ttl))
    }

    /// Ends it; its keys go with it.
    pub fn end(&mut self, lease: LeaseId) -> Vec<Change> {
        self.leases.remove(&lease.0);
        let hang = |(key, entry): (&String, &Entry)| (entry.lease == Some(lease)).then(|| key.clone());
        let keys: Vec<String> = self.entries.iter().filter_map(hang).collect();
        if keys.is_empty() {
            return Vec::new();
        }
        self.revision += 1;
        let gone = |key: String| {
            self.entries.remove(&key);
            Change { key, revision: self.revision, value: None }
        };
        keys.into_iter().map(gone).collect()
    }

    /// A lease that has lapsed.
    pub fn lapsed(&self, now: u64) -> Option<LeaseId> {
        self.leases.iter().find(|(_, term)| term.ends <= now).map(|(id, _)| LeaseId(*id))
    }

    /// When the next one lapses.
    pub fn lapses(&self) -> Option<u64> {
        self.leases.values().map(|term| term.ends).min()
    }
}
