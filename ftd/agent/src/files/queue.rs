//! The kernel's notices of what happens in the directory (inotify).

use rustix::fs::inotify::{self, ReadFlags, WatchFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Names one watch; never reused.
pub type WatchId = i32;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// In this directory a name appeared: made, linked or moved there.
    Appeared {
        /// The directory's watch.
        directory: WatchId,
        /// The name.
        name: OsString,
        /// Whether it is a directory.
        is_directory: bool,
        /// Not moved there.
        made: bool,
    },
    /// In this directory a name was deleted, or moved away.
    Left {
        /// The directory's watch.
        directory: WatchId,
        /// The name.
        name: OsString,
        /// Not moved away.
        deleted: bool,
    },
    /// A descriptor or mapping with which this file could be written is gone, whichever name it was opened by.
    Closed(WatchId),
    /// This file was written to or cut, first of all.
    Changed(WatchId),
    /// The watch is gone with what was watched.
    Ended(WatchId),
    /// Notices were lost.
    Overflow,
}

/// An inotify instance.
#[derive(Debug)]
pub struct Queue(OwnedFd);

impl Queue {
    /// Takes it over.
    pub fn new(instance: OwnedFd) -> Self {
        Queue(instance)
    }

    /// Watches a directory for names that appear and go.
    ///
    /// # Errors
    /// When it is none, is gone, or there are too many watches.
    pub fn watch_directory(&self, path: &Path) -> io::Result<WatchId> {
        let names = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE | WatchFlags::MOVED_FROM;
        Ok(inotify::add_watch(&self.0, path, names | WatchFlags::ONLYDIR)?)
    }

    /// Watches a file for writers that close it.
    ///
    /// # Errors
    /// When there are too many watches.
    pub fn watch_file(&self, path: &Path) -> io::Result<WatchId> {
        Ok(inotify::add_watch(&self.0, path, WatchFlags::CLOSE_WRITE)?)
    }

    /// Watches a file also for its next change. Each change would be a notice, so it is to be [`watch_file`](Self::watch_file)d
    /// without after the first.
    ///
    /// # Errors
    /// As [`watch_file`](Self::watch_file).
    pub fn watch_change(&self, path: &Path) -> io::Result<WatchId> {
        Ok(inotify::add_watch(&self.0, path, WatchFlags::CLOSE_WRITE | WatchFlags::MODIFY)?)
    }

    /// Watches no longer.
    pub fn forget(&self, watch: WatchId) {
        // It may be gone already.
        let _ = inotify::remove_watch(&self.0, watch);
    }

    /// Whether there are notices.
    pub fn is_ready(&self) -> bool {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        use std::os::fd::AsFd;
        poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(1)
    }

    /// Takes all notices out of the queue.
    pub fn take(&self) -> Vec<Notice> {
        let mut buffer = [MaybeUninit::uninit(); 64 << 10];
        let mut reader = inotify::Reader::new(&self.0, &mut buffer);
        let mut notices = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => notices.extend(notice(&event)),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return notices,
                Err(errno) => {
                    tracing::error!(%errno, "notices of restart files cannot be read");
                    notices.push(Notice::Overflow);
                    return notices;
                }
            }
        }
    }
}

fn notice(event: &inotify::Event<'_>) -> Option<Notice> {
    let kind = event.events();
    if kind.contains(ReadFlags::QUEUE_OVERFLOW) {
        Some(Notice::Overflow)
    } else if kind.contains(ReadFlags::IGNORED) {
        Some(Notice::Ended(event.wd()))
    } else if kind.contains(ReadFlags::CLOSE_WRITE) {
        Some(Notice::Closed(event.wd()))
    } else if kind.contains(ReadFlags::MODIFY) {
        Some(Notice::Changed(event.wd()))
    } else {
        let name = OsStr::from_bytes(event.file_name()?.to_bytes()).to_os_string();
        let deleted = kind.contains(ReadFlags::DELETE);
        if deleted || kind.contains(ReadFlags::MOVED_FROM) {
            return Some(Notice::Left { directory: event.wd(), name, deleted });
        }
        let is_directory = kind.contains(ReadFlags::ISDIR);
        let made = kind.contains(ReadFlags::CREATE);
        Some(Notice::Appeared { directory: event.wd(), name, is_directory, made })
    }
}
