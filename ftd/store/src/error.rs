//! Why the store did not do it.

use crate::swap::{Expected, MAX_KEYS};
use crate::{LeaseId, Versioned};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Why the store did not do it, or does not say whether it did.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A compare-and-swap wrote nothing: the keys are not as it demands.
    #[error("not written: {}", Sentences(.unmet))]
    Lost {
        /// The demands that are not met, and what is there instead.
        unmet: Vec<Unmet>,
    },
    /// A compare-and-swap was sent and not answered.
    #[error(
        "{endpoint} was sent a write of {key} and did not say within {within:.1?} whether it is done ({reason}): it may have been done, or be \
         done yet; {key} must be read before anything else is decided"
    )]
    Unknown {
        /// The first key that it compares.
        key: String,
        /// Who was asked.
        endpoint: String,
        /// How long the answer was waited for.
        within: Duration,
        /// What came instead.
        reason: String,
    },
    /// Nobody answered. Nothing was written.
    #[error(
        "the store was asked to {what} and did not answer within {within:.1?}; {}. Does etcd run there with a majority of its members, and \
         does the network let this node reach it?",
        Sentences(.tried)
    )]
    Unanswered {
        /// What was asked.
        what: String,
        /// How long the answer was waited for.
        within: Duration,
        /// What came of it at each member that was tried.
        tried: Vec<Trouble>,
    },
    /// The store does not do it, and will not if it is asked again. Nothing was written.
    #[error("the store refuses to {what}; {}. {}", Sentences(.by), advice(.by))]
    Refused {
        /// What was asked.
        what: String,
        /// Who refuses, and why.
        by: Vec<Trouble>,
    },
    /// The lease lapsed or was revoked, and the keys with it.
    #[error(
        "lease {0} is not held any more: it lapsed or was revoked, and its keys are gone; a new one must be granted"
    )]
    NoLease(LeaseId),
    /// The embedded store's record was in the memory of an agent that has ended.
    #[error("the job's record ended with its agent: the file-size limit (ulimit -f) left no room for it elsewhere")]
    Gone,
    /// The value does not fit.
    #[error("a record of {bytes} bytes is longer than the store's limit of {limit}")]
    TooLong {
        /// Length of the value.
        bytes: usize,
        /// Longest value.
        limit: usize,
    },
    /// More than etcd takes at a time (`--max-txn-ops`).
    #[error("{keys} keys are more than the {MAX_KEYS} that one compare-and-swap may compare or write")]
    TooMany {
        /// How many.
        keys: usize,
    },
    /// A compare-and-swap writes a key more than once.
    #[error("{key} is written twice by one compare-and-swap")]
    Twice {
        /// Which.
        key: String,
    },
    /// What the configuration says of the store cannot be used.
    #[error("the store's configuration: {0}")]
    Options(String),
    /// A file that the configuration names cannot be read.
    #[error("the store's configuration names {}, which cannot be read: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The embedded store cannot be read or written.
    #[error("the store cannot be read or written: {0}")]
    Io(#[from] std::io::Error),
}

/// A demand of a compare-and-swap that is not met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmet {
    /// Of which key.
    pub key: String,
    /// What it was to be.
    pub expected: Expected,
    /// What is there.
    pub found: Option<Versioned>,
}

impl fmt::Display for Unmet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unmet { key, expected, found } = self;
        match (expected, found) {
            (Expected::Revision(revision), None) => {
                write!(f, "{key} is not there and should be at revision {revision}")
            }
            (_, None) => write!(f, "{key} is not there"),
            (Expected::Revision(revision), Some(found)) => {
                write!(f, "{key} is at revision {}, not {revision}", found.revision)
            }
            (_, Some(found)) => write!(f, "{key} is there already, at revision {}", found.revision),
        }
    }
}

/// What came of asking one member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// Who was asked.
    pub endpoint: String,
    /// What it said, or what happened.
    pub reason: String,
    /// Asking it again will not help.
    pub lasting: bool,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.endpoint, self.reason)
    }
}

/// What a person can do about it.
fn advice(by: &[Trouble]) -> &'static str {
    let says = |word: &str| by.iter().any(|trouble| trouble.reason.to_lowercase().contains(word));
    if says("certificate") || says("tls") || says("corrupt message") {
        "Look at the certificates: this node's CA file must have signed etcd's, and etcd's CA this node's"
    } else if says("password") || says("user name") || says("permission denied") {
        "Look at the user and password that the configuration names, and at that user's role in etcd"
    } else if says("space exceeded") {
        "etcd is full: compact and defragment it, or raise its quota, and disarm its alarm"
    } else if says("longer than") {
        "Nothing is wrong with etcd: more is stored there than is read at a time"
    } else {
        "Look at etcd's log"
    }
}

struct Sentences<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for Sentences<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return write!(f, "no member was reached");
        }
        for (index, one) in self.0.iter().enumerate() {
            write!(f, "{}{one}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_who_what_and_what_to_do() {
        let by =
            |reason: &str| vec![Trouble { endpoint: "https://n1:2379".into(), reason: reason.into(), lasting: true }];
        let refused = |reason| StoreError::Refused { what: "read jobs/7/epoch".into(), by: by(reason) }.to_string();
        let sentence = refused("invalid peer certificate: UnknownIssuer");
        assert!(sentence.contains("https://n1:2379") && sentence.contains("read jobs/7/epoch"), "{sentence}");
        assert!(sentence.contains("Look at the certificates"), "{sentence}");
        assert!(refused("etcdserver: permission denied").contains("user and password"));
        assert!(refused("etcdserver: mvcc: database space exceeded").contains("etcd is full"));
    }

    #[test]
    fn who_lost_hears_what_is_there() {
        let found = Some(Versioned { revision: 9, value: Vec::new() });
        let unmet = vec![
            Unmet { key: "epoch".into(), expected: Expected::Revision(7), found: found.clone() },
            Unmet { key: "nodes/4".into(), expected: Expected::Present, found: None },
            Unmet { key: "new".into(), expected: Expected::Absent, found },
        ];
        let sentence = StoreError::Lost { unmet }.to_string();
        assert_eq!(
            sentence,
            "not written: epoch is at revision 9, not 7; nodes/4 is not there; new is there already, at revision 9"
        );
    }
}
