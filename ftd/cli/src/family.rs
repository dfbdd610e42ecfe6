//! The processes that ftrun has started, and those that it inherits when one of them dies.

use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With an exit status.
    Status(i32),
    /// By a signal.
    Signal(i32),
}

impl End {
    /// For a sentence.
    pub fn words(self) -> String {
        match self {
            End::Status(status) => format!("status {status}"),
            End::Signal(signal) => crate::signals::name(signal),
        }
    }
}

/// Children of this process that have ended since the last call.
pub fn reap() -> Vec<(i32, End)> {
    let mut ended = Vec::new();
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, status)) => ended.push((pid.as_raw(), End::Status(status))),
            Ok(WaitStatus::Signaled(pid, signal, _)) => ended.push((pid.as_raw(), End::Signal(signal as i32))),
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return ended,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return ended,
        }
    }
}

/// Ends the processes that the dead left behind: children of this process that are not in `own`, and all below them.
#[derive(Debug, Default)]
pub struct Sweep {
    /// Scans in a row that found nobody alive. One is not enough: while it is made, an orphan may move up.
    clean: u32,
}

impl Sweep {
    /// One look; what is alive is killed. Returns whether nobody is left.
    pub fn step(&mut self, own: &BTreeSet<i32>) -> bool {
        let mut alive = false;
        let strays = ft_sys::process::children(std::process::id() as i32).into_iter().filter(|pid| !own.contains(pid));
        for stray in strays {
            for pid in std::iter::once(stray).chain(ft_sys::process::descendants(stray)) {
                // Past its last instruction it does no harm; the kernel may need long to take its memory apart.
                if !ft_sys::death::is_past_user_code(pid).unwrap_or(false) {
                    ft_sys::process::kill(pid, nix::libc::SIGKILL);
                    alive = true;
                }
            }
        }
        self.clean = if alive { 0 } else { self.clean + 1 };
        self.clean >= 2
    }
}

/// Kills everything below this process and waits for it, but not for ever.
pub fn end_all(patience: Duration) {
    let until = Instant::now() + patience;
    loop {
        ft_sys::process::signal_descendants(nix::libc::SIGKILL);
        reap();
        if ft_sys::process::children(std::process::id() as i32).is_empty() || Instant::now() >= until {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
