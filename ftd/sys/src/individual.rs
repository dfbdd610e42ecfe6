//! Which process a number means: the number alone is given to another process soon after; number and start time are not.

use crate::process::{children, pidfd_open, pidfd_send_signal};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Longest way up that is followed: no tree of processes is as deep.
const DEPTH: usize = 4096;

/// A process, from its start to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Individual {
    /// Its number.
    pub pid: i32,
    /// When it was started, in clock ticks since the machine was.
    pub start: u64,
}

/// A process that is held by a descriptor: signals reach it, or nobody.
#[derive(Debug)]
pub struct Held {
    /// Which.
    pub identity: Individual,
    fd: OwnedFd,
}

/// Who the parent is now, and when the process was started.
fn stat(pid: i32) -> Option<(i32, u64)> {
    let stat = crate::proc::stat(&crate::proc::of(pid)).ok()??;
    Some((stat.ppid, stat.starttime))
}

impl Individual {
    /// Whoever has this number now.
    pub fn of(pid: i32) -> Option<Individual> {
        Some(Individual { pid, start: stat(pid)?.1 })
    }

    /// Whether this process is there still, be it as a zombie.
    pub fn exists(self) -> bool {
        Individual::of(self.pid) == Some(self)
    }

    /// Takes hold of the process; `None` when it is gone.
    pub fn hold(self) -> Option<Held> {
        Held::of(self.pid).filter(|held| held.identity == self)
    }

    /// Its children now; none when it is gone.
    pub fn children(self) -> Vec<Individual> {
        let found: Vec<Individual> = children(self.pid).into_iter().filter_map(Individual::of).collect();
        // A child that lives has told its parent's number, and the parent was there before and after that.
        let is_child = |child: &Individual| stat(child.pid).is_some_and(|(parent, _)| parent == self.pid);
        let found: Vec<Individual> = found.into_iter().filter(is_child).collect();
        if self.exists() { found } else { Vec::new() }
    }
}

impl Held {
    /// Takes hold of whoever has this number now.
    pub fn of(pid: i32) -> Option<Held> {
        // First the descriptor: what is read after that is about the same process, or about none.
        let fd = pidfd_open(pid).ok()?;
        Self::from_descriptor(pid, fd)
    }

    /// As [`of`](Self::of), with a descriptor that somebody else made.
    pub fn from_descriptor(pid: i32, fd: OwnedFd) -> Option<Held> {
        let held = Held { identity: Individual::of(pid)?, fd };
        held.lives().then_some(held)
    }

    /// Whether it has not ended: then its number is its own still.
    pub fn lives(&self) -> bool {
        poll(&mut [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(0)
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// `ESRCH` when it is gone, `EPERM` when it belongs to somebody else.
    pub fn signal(&self, signal: i32) -> std::io::Result<()> {
        pidfd_send_signal(self.fd.as_fd(), signal)
    }

    /// Whether it stands below the process `above` (or is it).
    pub fn is_below(&self, above: i32) -> bool {
        // A parent's number may be given away between two looks; not twice to one that is below.
        let stands_below = || {
            let mut pid = self.identity.pid;
            for _ in 0..DEPTH {
                if pid == above {
                    return true;
                }
                let Some((parent, _)) = stat(pid).filter(|(parent, _)| *parent > 0) else { return false };
                pid = parent;
            }
            false
        };
        stands_below() && stands_below() && self.lives()
    }

    /// Its parent now.
    pub fn parent(&self) -> Option<Held> {
        let held = Held::of(stat(self.identity.pid)?.0)?;
        self.is_child_of(held.identity.pid).then_some(held)
    }

    /// Whether it is a child of the process `parent`.
    pub fn is_child_of(&self, parent: i32) -> bool {
        stat(self.identity.pid).is_some_and(|(above, _)| above == parent) && self.lives()
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Sends a signal to a descendant of this process, and to nobody else that got its number.
///
/// # Errors
/// `ESRCH` when it is gone, or stands below no more; `EPERM` when it belongs to somebody else.
pub fn signal_below(pid: i32, signal: i32) -> std::io::Result<()> {
    let fd = pidfd_open(pid)?;
    // A child's number is its own until it is waited for. This needs nothing of `/proc`, which may hide it (`hidepid`).
    if crate::wait::is_child(pid) {
        return pidfd_send_signal(fd.as_fd(), signal);
    }
    match Held::from_descriptor(pid, fd) {
        Some(held) if held.is_below(std::process::id() as i32) => held.signal(signal),
        _ => Err(std::io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

/// The process and those above it, as far as they can be seen.
pub fn ancestors(pid: i32) -> Vec<i32> {
    let mut found = vec![pid];
    while let Some((parent, _)) = found.last().and_then(|pid| stat(*pid))
        && parent > 0
        && found.len() < DEPTH
    {
        found.push(parent);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_is_known_by_number_and_start() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let identity = Individual::of(child.id() as i32).unwrap();
        let held = identity.hold().unwrap();
        assert!(held.is_below(std::process::id() as i32) && !held.is_below(child.id() as i32 + 1));
        assert!(held.is_child_of(std::process::id() as i32) && !held.is_child_of(child.id() as i32));
        assert!(Individual { start: identity.start + 1, ..identity }.hold().is_none());
        held.signal(libc::SIGKILL).unwrap();
        child.wait().unwrap();
        assert!(!identity.exists() && identity.hold().is_none());
        assert!(!held.is_below(std::process::id() as i32));
    }
}
