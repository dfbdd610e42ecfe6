//! The signals that Slurm sends a task: they are for its rank, which is there in the task's place.

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::{AsFd, BorrowedFd};

/// They are blocked, all that can be, so that this process ends and stops by none of them. A fault of its own ends it all the same: the
/// kernel asks nobody then.
#[derive(Debug)]
pub struct ForRank(SignalFd);

impl ForRank {
    /// From now on they are heard.
    ///
    /// # Errors
    /// What the system said.
    pub fn hear() -> Result<ForRank, Errno> {
        let mut signals = SigSet::all();
        // That one tells of this process's own children.
        signals.remove(Signal::SIGCHLD);
        signals.thread_block()?;
        SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).map(ForRank)
    }

    /// The next one.
    pub fn next(&self) -> Option<i32> {
        loop {
            let info = self.0.read_signal().ok().flatten()?;
            // What this process has from a write to nobody, or beyond a limit of its own, is no rank's.
            if info.ssi_pid != std::process::id() && info.ssi_code <= 0 {
                return Some(info.ssi_signo as i32);
            }
        }
    }
}

impl AsFd for ForRank {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether a process stops by this signal, or goes on, unless it says what else it is to do.
pub fn is_job_control(signal: i32) -> bool {
    matches!(signal, libc::SIGCONT | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
}

/// Whether a process ends by this signal unless it handles it: the end of its rank may then be the answer.
pub fn may_end(signal: i32) -> bool {
    !is_job_control(signal) && !matches!(signal, libc::SIGURG | libc::SIGWINCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_ends_by_is_told_from_the_rest() {
        let harmless: Vec<i32> = (1..=64).filter(|signal| !may_end(*signal)).collect();
        assert_eq!(harmless, [18, 20, 21, 22, 23, 28]);
    }
}
