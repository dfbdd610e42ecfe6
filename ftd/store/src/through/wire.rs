//! What is said between who asks for a store and who has it: frames of [`ft_wire`], whose bodies are these.

use crate::error::{Trouble, Unmet};
use crate::store::{Change, Lease, LeaseId, Read, Scope, Store, Versioned};
use crate::{StoreError, Swap};
use ft_wire::{FRAME_HEADER, FrameError, Role};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Of all that is said here. A daemon may be newer than an agent whose job it finds, or older than one that was started again: any change of
/// these messages increases it, and leaves those of the version before as they are; but for a field that may be missing, which a neighbour passes over.
pub const VERSION: u32 = 3;
/// The oldest that this release speaks, too: neighbours work together, so that daemons are upgraded while jobs run. (From 4 on `VERSION - 1`: 3 is the
/// first with names.)
pub const OLDEST: u32 = 3;
/// The longest that may be asked: etcd takes 1.5 MiB in a request.
pub const MOST_ASKED: usize = 4 << 20;

/// Who asks, at first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`] of who asks.
    pub version: u32,
    /// For which job.
    pub job: String,
}

/// The answer to that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Welcome {
    /// It may ask.
    Served,
    /// It may not, and why. The connection ends.
    Refused(String),
    /// Of that version nothing is known here, but of these. The connection ends.
    Speaks {
        /// [`OLDEST`] of who has the store.
        oldest: u32,
        /// [`VERSION`] of it.
        newest: u32,
    },
}

/// The newest version that both sides speak.
pub fn common(ours: RangeInclusive<u32>, theirs: RangeInclusive<u32>) -> Option<u32> {
    let newest = *ours.end().min(theirs.end());
    Some(newest).filter(|both| ours.contains(both) && theirs.contains(both))
}

/// Agent → ftd, after that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToFtd {
    /// Something is to be answered.
    Question {
        /// For the answer; no two on a connection have the same.
        number: u64,
        /// In this time.
        within: Duration,
        /// What.
        question: Question,
    },
    /// Keys are to be watched.
    Watch {
        /// As with a question.
        number: u64,
        /// Which.
        scope: Scope,
        /// From this revision on.
        from: u64,
    },
    /// And are not any more.
    Unwatch {
        /// As it was begun.
        number: u64,
    },
    /// For the daemon's numbers: what the job has copied from this node, and what its agent has refused. It is not answered.
    Copied(Copied),
}

/// What an agent has had copied from its node to others, and what it has refused, since it said so last.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// Copies that other nodes have taken.
    pub copies: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Copies that no other node takes.
    pub failures: u64,
    /// Bytes that are on their way now, or wait for it.
    pub waiting: u64,
    /// What came in the name of the job's agents and was not made with the job's secret.
    #[serde(default)]
    pub forged: u64,
    /// What came a second time.
    #[serde(default)]
    pub replayed: u64,
    /// Who sent the last of these, as far as the network knows.
    #[serde(default)]
    pub stranger: Option<IpAddr>,
}

impl Copied {
    /// What of this came after that.
    pub fn since(self, before: Copied) -> Copied {
        Copied {
            copies: self.copies.saturating_sub(before.copies),
            bytes: self.bytes.saturating_sub(before.bytes),
            failures: self.failures.saturating_sub(before.failures),
            waiting: self.waiting,
            forged: self.forged.saturating_sub(before.forged),
            replayed: self.replayed.saturating_sub(before.replayed),
            stranger: self.stranger,
        }
    }
}

/// Ftd → agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromFtd {
    /// To a question.
    Answer {
        /// Its number.
        number: u64,
        /// What became of it.
        answer: Answer,
    },
    /// A watch says this.
    Changed {
        /// Its number.
        number: u64,
        /// What.
        changes: Vec<Change>,
    },
    /// A watch says nothing more.
    Ended {
        /// Its number.
        number: u64,
        /// Why.
        end: End,
    },
}

/// Why a watch says nothing more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// What happened from the first revision to the second is not known any more.
    Compacted(u64, u64),
    /// It may not be watched.
    Failed(Failure),
}

/// What a store may be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// [`Store::read`].
    Read(Scope),
    /// [`Store::compare_and_swap`].
    Swap(Swap),
    /// [`Store::grant`].
    Grant(Duration),
    /// [`Store::keep_alive`].
    KeepAlive(LeaseId),
    /// [`Store::adopt`].
    Adopt(LeaseId),
    /// [`Store::revoke`].
    Revoke(LeaseId),
}

impl Question {
    /// Whether it may be asked again when nothing is known of the first time.
    pub fn is_harmless(&self) -> bool {
        matches!(self, Question::Read(_) | Question::KeepAlive(_) | Question::Adopt(_) | Question::Revoke(_))
    }

    /// Asks a store that.
    pub async fn put_to(self, store: &impl Store, within: Duration) -> Answer {
        let answer = match self {
            Question::Read(scope) => {
                store.read(&scope, within).await.map(|Read { at, found }| Answer::Found { at, found })
            }
            Question::Swap(swap) => store.compare_and_swap(swap, within).await.map(Answer::Written),
            Question::Grant(ttl) => store.grant(ttl, within).await.map(Answer::Lease),
            Question::KeepAlive(lease) => store.keep_alive(lease, within).await.map(|()| Answer::Done),
            Question::Adopt(lease) => store.adopt(lease, within).await.map(Answer::Lease),
            Question::Revoke(lease) => store.revoke(lease, within).await.map(|()| Answer::Done),
        };
        answer.unwrap_or_else(|error| Answer::Failed(error.into()))
    }

    /// Nobody has said what became of it, and it was sent.
    pub fn unanswered(&self, endpoint: &str, reason: &str, within: Duration) -> Failure {
        let (endpoint, reason) = (endpoint.to_string(), reason.to_string());
        match self {
            Question::Swap(_) => Failure::Unknown { endpoint, within, reason },
            _ => Failure::Unanswered(vec![Trouble { endpoint, reason, lasting: false }]),
        }
    }
}

/// What became of a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// What was read, and the store's revision then.
    Found {
        /// The revision.
        at: u64,
        /// What was there.
        found: BTreeMap<String, Versioned>,
    },
    /// It was written, at this revision.
    Written(u64),
    /// The lease is held.
    Lease(Lease),
    /// It is so.
    Done,
    /// It was not done, or nobody knows.
    Failed(Failure),
}

/// [`StoreError`], as far as it concerns somebody else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// [`StoreError::Lost`].
    Lost(Vec<Unmet>),
    /// [`StoreError::Unknown`].
    Unknown {
        /// Who was asked.
        endpoint: String,
        /// How long the answer was waited for.
        within: Duration,
        /// What came instead.
        reason: String,
    },
    /// [`StoreError::Unanswered`]: nothing was written.
    Unanswered(Vec<Trouble>),
    /// [`StoreError::Refused`]: nothing was written.
    Refused(Vec<Trouble>),
    /// [`StoreError::NoLease`].
    NoLease(LeaseId),
}

impl Failure {
    /// Somebody does not do it, and this is why.
    pub fn refused(endpoint: &str, reason: String) -> Failure {
        Failure::Refused(vec![Trouble { endpoint: endpoint.into(), reason, lasting: true }])
    }

    /// Whether somebody else may be asked the same: it was certainly not done, and not for what the store has said of it.
    pub fn leaves_it_open(&self) -> bool {
        matches!(self, Failure::Unanswered(_) | Failure::Refused(_))
    }

    /// The error of who asked `what`, a compare-and-swap on `key` if it was one.
    pub fn into_error(self, what: String, key: &str, waited: Duration) -> StoreError {
        match self {
            Failure::Lost(unmet) => StoreError::Lost { unmet },
            Failure::Unknown { endpoint, within, reason } => {
                StoreError::Unknown { key: key.into(), endpoint, within, reason }
            }
            Failure::Unanswered(tried) => StoreError::Unanswered { what, within: waited, tried },
            Failure::Refused(by) => StoreError::Refused { what, by },
            Failure::NoLease(lease) => StoreError::NoLease(lease),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        match error {
            StoreError::Lost { unmet } => Failure::Lost(unmet),
            StoreError::Unknown { endpoint, within, reason, .. } => Failure::Unknown { endpoint, within, reason },
            StoreError::Unanswered { tried, .. } => Failure::Unanswered(tried),
            StoreError::Refused { by, .. } => Failure::Refused(by),
            StoreError::NoLease(lease) => Failure::NoLease(lease),
            // None of these is of a write that may have been done.
            other => Failure::refused("ftd", other.to_string()),
        }
    }
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The other end is gone.
    #[error("the connection was closed")]
    Closed,
    /// It sends what is no message.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// It is somebody else.
    #[error("{0:?} has no business here")]
    Role(Role),
    /// It speaks another language.
    #[error(
        "it speaks version {theirs} of what is said about the store, and this side version {VERSION}: end its job, which began with \
             another release of ftd, and start it again"
    )]
    Version {
        /// Its [`VERSION`].
        theirs: u32,
    },
    /// This side may not ask.
    #[error("{0}")]
    Refused(String),
    /// It says or reads nothing.
    #[error("nothing went through for {} s", .0.as_secs())]
    Idle(Duration),
    /// The connection failed.
    #[error("{0}")]
    Io(io::Error),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Broken {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Broken::Closed,
            _ => Broken::Io(error),
        }
    }
}

/// The next message, of at most so many bytes.
pub async fn receive<M: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin + ?Sized),
    most: usize,
) -> Result<M, Broken> {
    let mut header = [0; FRAME_HEADER];
    stream.read_exact(&mut header).await?;
    let bytes = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    if bytes > most {
        return Err(FrameError::TooLong { bytes, most }.into());
    }
    let mut body = vec![0; bytes];
    stream.read_exact(&mut body).await?;
    Ok(ft_wire::decode(&body)?)
}

#[cfg(test)]
mod tests;
