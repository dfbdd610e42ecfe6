//! One process that becomes two: the one that was started, which keeps its number, and its child, which does the work and
//! does not outlive it.

use nix::sys::signal::SigSet;
use std::io;

/// Which of the two this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// The process that was started.
    Parent {
        /// The other one.
        child: i32,
    },
    /// The other one; killed when the parent ends.
    Child,
}

/// What has become of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It ended with this exit status.
    Exited(i32),
    /// It was ended by this signal.
    Killed(i32),
    /// It was stopped.
    Stopped,
}

/// Divides this process, which must have one thread: another one's locks would be held for ever in the child.
///
/// # Errors
/// `Unsupported` when there are more threads; what `fork` said.
pub fn divide() -> io::Result<Half> {
    if std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() > 1) {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "a process with several threads cannot be divided"));
    }
    let parent = std::process::id() as i32;
    // SAFETY: this process has one thread, so the child has all of it, and no lock is held in it.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            crate::process::set_pdeathsig()?;
            // SAFETY: takes nothing.
            if unsafe { libc::getppid() } != parent {
                // A parent that died before the call above is not noticed by it.
                std::process::exit(1);
            }
            Ok(Half::Child)
        }
        child => Ok(Half::Parent { child }),
    }
}

/// The next thing that happened to a child; `None` when there is nothing new.
pub fn fate(child: i32) -> Option<Fate> {
    let mut status = 0;
    // SAFETY: the status is an integer on the stack.
    let waited = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG | libc::WUNTRACED) };
    match waited {
        0 => None,
        pid if pid == child => Some(if libc::WIFSTOPPED(status) {
            Fate::Stopped
        } else if libc::WIFSIGNALED(status) {
            Fate::Killed(libc::WTERMSIG(status))
        } else {
            Fate::Exited(libc::WEXITSTATUS(status))
        }),
        _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => None,
        // Somebody else waited for it.
        _ => Some(Fate::Exited(1)),
    }
}

/// Waits for a child that has been killed.
pub fn bury(child: i32) {
    crate::wait::wait_for(child);
}

/// Whether a signal that is blocked has come, and has not been read.
pub fn is_pending(signal: i32) -> bool {
    // SAFETY: a set of signals is plain numbers, of which the kernel writes all; and it is only read.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigpending(&raw mut set) == 0 && libc::sigismember(&raw const set, signal) == 1
    }
}

/// The signal that carries others from parent to child. A real-time signal: it is queued, where a second SIGTERM would
/// melt into one that is waiting to be read and take its sender with it.
fn carrier() -> i32 {
    libc::SIGRTMAX() - 7
}

/// A signal that the parent passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carried {
    /// Its number.
    pub signal: i32,
    /// The process that it came from; 0 is the kernel.
    pub origin: u32,
}

impl Carried {
    /// Reads it from what a signalfd told, if it is one.
    pub fn read(number: u32, sender: u32, value: u64) -> Option<Carried> {
        // SAFETY: takes nothing.
        let parent = unsafe { libc::getppid() } as u32;
        let ours = number == carrier() as u32 && sender == parent;
        ours.then_some(Carried { signal: (value >> 32) as i32, origin: value as u32 })
    }

    /// Sends it to a child that has not been waited for.
    pub fn send(self, child: i32) {
        if self.signal == libc::SIGCONT {
            // Nothing else brings back a process that is stopped; twice is no more than once.
            return crate::process::kill(child, self.signal);
        }
        let value = (self.signal as u64) << 32 | u64::from(self.origin);
        let value = libc::sigval { sival_ptr: value as usize as *mut libc::c_void };
        // SAFETY: takes two numbers and a value that is only handed on. A child that has ended is still this process's own.
        if unsafe { libc::sigqueue(child, carrier(), value) } != 0 {
            crate::process::kill(child, self.signal);
        }
    }
}

/// These signals and the one that carries others.
pub fn with_carrier(set: SigSet) -> SigSet {
    let mut raw = *set.as_ref();
    // SAFETY: an initialised set, and a number that is a signal's.
    unsafe {
        libc::sigaddset(&raw mut raw, carrier());
        SigSet::from_sigset_t_unchecked(raw)
    }
}

/// Gives a signal its default meaning in this process. A parent may have had SIGCHLD ignored, and then nothing is told of
/// children.
pub fn default_signal(signal: i32) {
    // SAFETY: SIG_DFL runs no code of ours.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}
