//! Agreement: where a job's one key lives (DESIGN §10). Decisions are fenced by revision, never by a lock.
//!
//! This store is [`Embedded`]: one machine. Watches and leases join the trait together with etcd, for on one
//! machine nobody else writes and the node that would lose its lease is the one that asks.

mod codec;
mod embedded;

pub use codec::{CodecError, decode_record, encode_record};
pub use embedded::Embedded;

/// A value and the revision at which it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned {
    /// Grows with every write of the key; never 0.
    pub revision: u64,
    /// The bytes.
    pub value: Vec<u8>,
}

/// What a compare-and-swap demands of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// The key was never written.
    Absent,
    /// The key is at this revision.
    Revision(u64),
}

/// Why the store did not do it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Someone else wrote first; this is what is there now.
    #[error("the key is at another revision: {:?}", .0.as_ref().map(|v| v.revision))]
    Lost(Option<Versioned>),
    /// It was in the memory of an agent that has ended.
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
    /// The store cannot be reached.
    #[error("the store cannot be read or written: {0}")]
    Io(#[from] std::io::Error),
}

/// One job's key: get and compare-and-swap.
pub trait Store {
    /// The value and its revision, linearizable; `None` when it was never written.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    fn get(&self) -> impl Future<Output = Result<Option<Versioned>, StoreError>>;

    /// Replaces the value if the key is as `expected`; returns the new revision.
    ///
    /// # Errors
    /// [`StoreError::Lost`] with the present value; [`StoreError::TooLong`]; [`StoreError::Io`].
    fn compare_and_swap(&mut self, expected: Expected, value: Vec<u8>)
    -> impl Future<Output = Result<u64, StoreError>>;
}
