//! How processes end: the raw wait status, for it alone can say of every signal that it was one (real-time signals too).

use rustix::process::{Pid, WaitOptions, WaitStatus};

/// What a shell ends with when what it ran was killed by SIGKILL.
pub const KILLED_BELOW: i32 = 128 + libc::SIGKILL;

/// A raw wait status.
#[derive(Debug, Clone, Copy)]
pub struct Status(WaitStatus);

impl Status {
    /// The number that the kernel gave.
    pub fn as_raw(self) -> i32 {
        self.0.as_raw()
    }

    /// The exit status of a process that ended by itself.
    pub fn code(self) -> Option<i32> {
        self.0.exit_status()
    }

    /// The signal that ended it.
    pub fn signal(self) -> Option<i32> {
        self.0.terminating_signal()
    }
}

/// A child of this process that has ended, and how; `None` when there is none for now.
pub fn next_ended() -> Option<(i32, Status)> {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => return Some((pid.as_raw_nonzero().get(), Status(status))),
            Err(rustix::io::Errno::INTR) => {}
            Ok(None) | Err(_) => return None,
        }
    }
}

/// A child that has ended and was not waited for: its body tells more than its end.
#[derive(Debug, Clone, Copy)]
pub struct Body {
    /// Its number.
    pub pid: i32,
    /// It was killed by SIGKILL, or has the status with which a shell tells that something below it was.
    pub killed: bool,
}

/// The child of which [`next_ended`] would tell, left as it is.
pub fn next_body() -> Option<Body> {
    // SAFETY: an all-zero siginfo is a valid value of the type.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid for the call.
    let result = unsafe { libc::waitid(libc::P_ALL, 0, &mut info, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT) };
    // SAFETY: waitid filled in what belongs to a child's death, or left it zero.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    let killed = if info.si_code == libc::CLD_EXITED { status == KILLED_BELOW } else { status == libc::SIGKILL };
    (result == 0 && pid > 0).then_some(Body { pid, killed })
}

/// Whether this process has children that nobody has waited for, living or dead.
pub fn has_children() -> bool {
    // SAFETY: an all-zero siginfo is a valid value of the type.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: the pointer is valid for the call.
    let result = unsafe { libc::waitid(libc::P_ALL, 0, &mut info, options) };
    result == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ECHILD)
}

/// Whether this is a child of this process that nobody has waited for, living or dead.
pub fn is_child(pid: i32) -> bool {
    let Ok(id) = libc::id_t::try_from(pid) else { return false };
    // SAFETY: an all-zero siginfo is a valid value of the type.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid for the call.
    unsafe { libc::waitid(libc::P_PID, id, &mut info, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT) == 0 }
}

/// How this child has ended, if it has.
///
/// # Errors
/// As `waitpid`: it is no child of this process, or somebody else has waited for it.
pub fn look_for(pid: i32) -> std::io::Result<Option<Status>> {
    let pid = Pid::from_raw(pid).ok_or(std::io::ErrorKind::InvalidInput)?;
    loop {
        match rustix::process::waitpid(Some(pid), WaitOptions::NOHANG) {
            Ok(ended) => return Ok(ended.map(|(_, status)| Status(status))),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits for this child; `None` when it is no child of this process, or somebody else waited for it.
pub fn wait_for(pid: i32) -> Option<Status> {
    let pid = Pid::from_raw(pid)?;
    loop {
        match rustix::process::waitpid(Some(pid), WaitOptions::empty()) {
            Ok(ended) => return ended.map(|(_, status)| Status(status)),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn every_signal_and_every_status_is_told() {
        let end = |how: &str| {
            #[expect(clippy::zombie_processes, reason = "it is waited for below")]
            let child = Command::new("bash").args(["-c", how]).spawn().unwrap();
            wait_for(child.id() as i32).unwrap()
        };
        for signal in [libc::SIGKILL, libc::SIGRTMIN(), libc::SIGRTMIN() + 3, libc::SIGRTMAX()] {
            let status = end(&format!("kill -{signal} $$"));
            assert_eq!((status.signal(), status.code(), status.as_raw() & 0x7f), (Some(signal), None, signal));
        }
        assert_eq!((end("exit 7").code(), end("exit 7").signal()), (Some(7), None));
        assert!(wait_for(1).is_none());
    }
}
