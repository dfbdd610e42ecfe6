//! Signals as things to read.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Signals that end the job: those with which people, batch systems and `timeout` end processes.
const ENDING: [Signal; 6] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGXCPU, Signal::SIGALRM];
/// Signals that go to the ranks.
const FORWARDED: [Signal; 4] = [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGCONT, Signal::SIGTSTP];

/// What a signal means to the launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// A child has ended.
    Child,
    /// The job is to end.
    End(i32),
    /// The ranks are to have it.
    Forward(i32),
    /// The ranks are to have it, and this process is to stop.
    Stop,
    /// The ranks are to have it; this process runs again.
    Continue,
}

/// The signals of this process, from now on.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
    echoes: crate::front::Echoes,
}

impl Signals {
    /// Blocks the signals and makes them readable.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn open() -> io::Result<Signals> {
        // SIGTTIN: a read from a terminal that was taken away fails instead of stopping the job.
        for signal in [Signal::SIGPIPE, Signal::SIGTTIN] {
            ft_sys::process::ignore_signal(signal as i32);
        }
        let set = ft_sys::divide::with_carrier(heeded());
        set.thread_block()?;
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Signals { fd, echoes: crate::front::Echoes::default() })
    }

    /// The next signal that came.
    pub fn next(&mut self) -> Option<Meaning> {
        let number = loop {
            let info = self.fd.read_signal().ok().flatten()?;
            if let Some(number) = self.echoes.hear(&info) {
                break number;
            }
        };
        if number == Signal::SIGCONT as i32 {
            crate::front::wake();
        }
        Some(match Signal::try_from(number) {
            Ok(Signal::SIGCHLD) => Meaning::Child,
            Ok(Signal::SIGTSTP) => Meaning::Stop,
            Ok(Signal::SIGCONT) => Meaning::Continue,
            Ok(signal) if ENDING.contains(&signal) => Meaning::End(number),
            _ => Meaning::Forward(number),
        })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// All signals that mean something to the launcher, and so to the front before it.
pub fn heeded() -> SigSet {
    let mut set = SigSet::empty();
    set.add(Signal::SIGCHLD);
    for signal in ENDING.into_iter().chain(FORWARDED) {
        // Under nohup, SIGHUP is not for us.
        if signal != Signal::SIGHUP || !is_ignored(signal) {
            set.add(signal);
        }
    }
    set
}

/// Whether this process was started with that signal ignored.
fn is_ignored(signal: Signal) -> bool {
    let mask = ft_sys::proc::signals(std::path::Path::new("/proc/self"), &["SigIgn"]);
    mask.ok().flatten().unwrap_or(0) & 1 << (signal as i32 - 1) != 0
}

/// The name of a signal for a sentence.
pub fn name(number: i32) -> String {
    ftd_core::failure::signal_name(number)
}
