//! Waiting for descriptors that tokio has no type for.

use std::io;
use std::os::fd::OwnedFd;
use tokio::io::{Interest, unix::AsyncFd};

/// Registers a descriptor (pidfd, inotify) for reading.
///
/// # Errors
/// When the runtime cannot watch it.
pub fn readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // tokio deprecates the call for types that may close their descriptor early; an OwnedFd cannot. Its replacement leaves
    // that promise to the caller, in a way that is not for this crate (DESIGN §12).
    #[allow(deprecated)]
    AsyncFd::with_interest(fd, Interest::READABLE)
}
