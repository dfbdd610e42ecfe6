//! What a compare-and-swap demands and writes.

use crate::error::{StoreError, Unmet};
use crate::{LeaseId, Versioned};
use serde::{Deserialize, Serialize};

/// So many keys may be compared, and so many written, at a time: etcd's default (`--max-txn-ops`).
pub const MAX_KEYS: usize = 128;

/// What a compare-and-swap demands of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Expected {
    /// The key is not there.
    Absent,
    /// The key is at this revision.
    Revision(u64),
    /// The key is there, whatever its revision: a node whose key hangs on its lease is fit.
    Present,
}

impl Expected {
    /// The key is at this revision; 0 is that of a key that is not there.
    pub fn at(revision: u64) -> Expected {
        if revision == 0 { Expected::Absent } else { Expected::Revision(revision) }
    }

    /// Whether this is what is demanded.
    pub fn is_met(self, found: Option<&Versioned>) -> bool {
        match (self, found) {
            (Expected::Absent, found) => found.is_none(),
            (Expected::Revision(revision), Some(found)) => found.revision == revision,
            (Expected::Present, Some(_)) => true,
            (Expected::Revision(_) | Expected::Present, None) => false,
        }
    }
}

/// What becomes of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Write {
    /// It has this value, as long as this lease is held.
    Put {
        /// The bytes.
        value: Vec<u8>,
        /// The key goes with it.
        lease: Option<LeaseId>,
    },
    /// It is removed.
    Delete,
}

/// A compare-and-swap over several keys: all is written at one revision if all that is demanded holds, else nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swap {
    demands: Vec<(String, Expected)>,
    writes: Vec<(String, Write)>,
}

impl Swap {
    /// One that demands this; there is none that demands nothing, for decisions are fenced by revision.
    pub fn on(key: impl Into<String>, expected: Expected) -> Swap {
        Swap { demands: vec![(key.into(), expected)], writes: Vec::new() }
    }

    /// Demands this as well.
    #[must_use]
    pub fn and_on(mut self, key: impl Into<String>, expected: Expected) -> Swap {
        self.demands.push((key.into(), expected));
        self
    }

    /// Writes this.
    #[must_use]
    pub fn put(mut self, key: impl Into<String>, value: Vec<u8>) -> Swap {
        self.writes.push((key.into(), Write::Put { value, lease: None }));
        self
    }

    /// Writes this, for as long as the lease is held.
    #[must_use]
    pub fn put_leased(mut self, key: impl Into<String>, value: Vec<u8>, lease: LeaseId) -> Swap {
        self.writes.push((key.into(), Write::Put { value, lease: Some(lease) }));
        self
    }

    /// Removes this.
    #[must_use]
    pub fn delete(mut self, key: impl Into<String>) -> Swap {
        self.writes.push((key.into(), Write::Delete));
        self
    }

    /// The key that it compares first: messages name it.
    pub fn key(&self) -> &str {
        self.demands.first().map_or("", |(key, _)| key)
    }

    /// What it demands.
    pub fn demands(&self) -> &[(String, Expected)] {
        &self.demands
    }

    /// What it writes.
    pub fn writes(&self) -> &[(String, Write)] {
        &self.writes
    }

    /// The lease that its keys hang on, if one does.
    pub(crate) fn lease(&self) -> Option<LeaseId> {
        self.writes.iter().find_map(|(_, write)| match write {
            Write::Put { lease, .. } => *lease,
            Write::Delete => None,
        })
    }

    /// What every store refuses alike, before it is sent.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let keys = self.demands.len().max(self.writes.len());
        if keys > MAX_KEYS {
            return Err(StoreError::TooMany { keys });
        }
        let mut written: Vec<&str> = self.writes.iter().map(|(key, _)| key.as_str()).collect();
        written.sort_unstable();
        match written.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(StoreError::Twice { key: pair[0].into() }),
            None => Ok(()),
        }
    }

    /// The demands that are not met by what is there.
    pub(crate) fn unmet<'a>(&self, there: impl Fn(&str) -> Option<&'a Versioned>) -> Vec<Unmet> {
        let met = |(key, expected): &(String, Expected)| {
            let found = there(key);
            (!expected.is_met(found)).then(|| Unmet { key: key.clone(), expected: *expected, found: found.cloned() })
        };
        self.demands.iter().filter_map(met).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_keys_than_etcd_takes_are_refused_before_it_is_asked() {
        let mut swap = Swap::on("epoch", Expected::Revision(1)).put("epoch", Vec::new());
        for node in 1..MAX_KEYS {
            swap = swap.and_on(format!("nodes/{node}"), Expected::Present);
        }
        assert!(swap.check().is_ok());
        let swap = swap.and_on("nodes/one-more", Expected::Present);
        assert!(matches!(swap.check(), Err(StoreError::TooMany { keys: 129 })));
        let twice = Swap::on("a", Expected::Absent).put("a", vec![1]).delete("a");
        assert!(twice.check().unwrap_err().to_string().contains("a is written twice"));
    }
}
