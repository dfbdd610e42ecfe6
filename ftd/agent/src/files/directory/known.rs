//! What is known of the files of the directory, and of their names.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Instant;

/// What is known of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// Nobody has opened it for writing since everybody was alive and nobody had it open for writing.
    Whole,
    /// It has just been looked at, and would be whole if everybody were alive.
    Looked,
    /// Somebody had it open for writing when it was looked at.
    Open,
    /// The same, and it was closed since.
    OpenAtLast,
    /// It was closed, and not looked at since.
    Closed,
    /// Who had it open for writing has died, for this reason.
    Torn {
        /// For people.
        why: Arc<str>,
        /// Whether nobody had it open after that. Who opens it then answers for it.
        free: bool,
    },
    /// Notices were lost, and it has not been looked at since.
    Lost,
    /// It cannot be looked at.
    Unseen(String),
}

/// A name in a directory, which is known by its inode.
pub(super) type Name = (u64, OsString);

/// A name that stands for something else than what is kept under it, or for nothing.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) since: Instant,
    /// By the program's own wish, not only because something else was renamed to it.
    pub(super) deleted: bool,
    /// After that it was made anew: what it stood for before was not to come back.
    pub(super) given_up: bool,
}
