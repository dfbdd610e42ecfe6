//! The kernel's notices of what happens in the directory (inotify).

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use std::collections::HashMap;
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
pub struct Queue {
    notices: OwnedFd,
    opened: Opened,
}

/// Another one, which says that some file was opened: reading tens of thousands of files overflows it, and nothing is lost with
/// that.
#[derive(Debug, Default)]
struct Opened {
    /// `None` where this user has too many.
    instance: Option<OwnedFd>,
    /// Its watches, by those of the same directories.
    watches: HashMap<WatchId, WatchId>,
}

impl Queue {
    /// Takes it over.
    pub fn new(instance: OwnedFd) -> Self {
        let opened = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).inspect_err(|errno| {
            tracing::warn!(%errno, "who opens restart files is not told at once");
        });
        Queue { notices: instance, opened: Opened { instance: opened.ok(), watches: HashMap::new() } }
    }

    /// Readable when a file was opened, to be read or written; by whom is not told.
    pub fn opened(&self) -> io::Result<Option<OwnedFd>> {
        self.opened.instance.as_ref().map(OwnedFd::try_clone).transpose()
    }

    /// Watches a directory for names that appear and go.
    ///
    /// # Errors
    /// When it is none, is gone, or there are too many watches.
    pub fn watch_directory(&self, path: &Path) -> io::Result<WatchId> {
        let names = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE | WatchFlags::MOVED_FROM;
        Ok(inotify::add_watch(&self.notices, path, names | WatchFlags::ONLYDIR)?)
    }

    /// Watches a directory that has this watch for files in it that are opened, all by one more watch. Where there are too many
    /// nothing is missed but the moment.
    pub fn watch_opening(&mut self, path: &Path, watch: WatchId) {
        if let Some(instance) = &self.opened.instance
            && let Ok(opened) = inotify::add_watch(instance, path, WatchFlags::OPEN | WatchFlags::ONLYDIR)
        {
            self.opened.watches.insert(watch, opened);
        }
    }

    /// Watches a file for writers that close it.
    ///
    /// # Errors
    /// When there are too many watches.
    pub fn watch_file(&self, path: &Path) -> io::Result<WatchId> {
        Ok(inotify::add_watch(&self.notices, path, WatchFlags::CLOSE_WRITE)?)
    }

    /// Watches a file also for its next change. Each change would be a notice, so it is to be [`watch_file`](Self::watch_file)d
    /// without after the first.
    ///
    /// # Errors
    /// As [`watch_file`](Self::watch_file).
    pub fn watch_change(&self, path: &Path) -> io::Result<WatchId> {
        Ok(inotify::add_watch(&self.notices, path, WatchFlags::CLOSE_WRITE | WatchFlags::MODIFY)?)
    }

    /// Watches no longer.
    pub fn forget(&mut self, watch: WatchId) {
        // It may be gone already.
        let _ = inotify::remove_watch(&self.notices, watch);
        let opened = self.opened.watches.remove(&watch);
        if let Some((instance, opened)) = self.opened.instance.as_ref().zip(opened) {
            let _ = inotify::remove_watch(instance, opened);
        }
    }

    /// Whether there are notices.
    pub fn is_ready(&self) -> bool {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        use std::os::fd::AsFd;
        poll(&mut [PollFd::new(self.notices.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(1)
    }

    /// Takes all notices out of the queue.
    pub fn take(&self) -> Vec<Notice> {
        let mut buffer = [MaybeUninit::uninit(); 64 << 10];
        let mut reader = inotify::Reader::new(&self.notices, &mut buffer);
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

/// Takes out what says that files were opened, and tells no more; whether anything did.
pub fn hear(opened: &OwnedFd) -> bool {
    let mut buffer = [0; 64 << 10];
    rustix::io::read(opened, &mut buffer).is_ok_and(|read| read > 0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_opens_a_file_is_heard_until_nobody_listens() {
        let directory = tempfile::tempdir().unwrap();
        let instance = || inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
        let mut queue = Queue::new(instance());
        let watch = queue.watch_directory(directory.path()).unwrap();
        queue.watch_opening(directory.path(), watch);
        let opened = queue.opened().unwrap().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "whole").unwrap();
        assert!(hear(&opened) && !hear(&opened));
        std::fs::read(&path).unwrap();
        assert!(hear(&opened));
        assert_eq!(queue.take().len(), 1, "that it was made");
        queue.forget(watch);
        hear(&opened);
        std::fs::read(&path).unwrap();
        assert!(!hear(&opened));
    }
}
