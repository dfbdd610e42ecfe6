//! How a process ended that another one waits for: a rank below a wrapper.
//!
//! From the start of its end until its parent has waited for it, `/proc` tells. Linux 6.15 and later keep it for who holds a
//! descriptor; before that what was not asked for in time cannot be known any more.

use crate::death::{is_dying, is_past_user_code};
use crate::individual::Held;
use crate::proc;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// What a descriptor tells of the process.
enum Kept {
    /// It has been waited for, and this was its raw wait status.
    Status(i32),
    /// It has not been waited for.
    Nothing,
    /// It is gone, or the kernel is too old to tell.
    Unknown,
}

/// The raw wait status of a process that is dying or dead; `None` while it lives, and where nobody can tell.
pub fn status(of: &Held) -> Option<i32> {
    if let Kept::Status(status) = kept(of.as_fd()) {
        return Some(status);
    }
    let told = foretold(of.identity.pid);
    match kept(of.as_fd()) {
        Kept::Status(status) => Some(status),
        // It was there all the time: the number was its own.
        Kept::Nothing => told,
        Kept::Unknown => told.filter(|_| of.identity.exists()),
    }
}

/// How a process ended that runs no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Its raw wait status.
    Status(i32),
    /// It has not been waited for, and whether it is status 0 is known when it has.
    NotYet,
    /// It has been waited for, and this kernel is too old to tell.
    Unknown,
}

/// How it ended; `None` while it has not.
pub fn end(of: &Held) -> Option<End> {
    if of.lives() {
        return None;
    }
    if let Some(status) = status(of) {
        return Some(End::Status(status));
    }
    // Its body first: it may be waited for between two questions, and then the descriptor tells.
    let body = zombie(of.identity.pid).filter(|_| of.identity.exists());
    match kept(of.as_fd()) {
        Kept::Status(status) => Some(End::Status(status)),
        _ => Some(body.unwrap_or(End::Unknown)),
    }
}

/// The same of one that has not been waited for, by its number.
pub fn zombie(pid: i32) -> Option<End> {
    let stat = proc::stat(&proc::of(pid)).ok()??;
    // The kernel asks for the same right before it says what its program was; of a body it has forgotten that.
    let shown =
        || std::fs::read_link(proc::of(pid).join("exe")).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    match stat.exit_code {
        // While it is being waited for it is an `X`.
        _ if !proc::has_left(&stat) => None,
        // Its first thread alone has left.
        _ if !is_past_user_code(pid).unwrap_or(true) => None,
        // Also what is not shown to this process is a 0.
        Some(0) | None if !shown() => Some(End::NotYet),
        status => Some(End::Status(status.unwrap_or(0))),
    }
}

/// What the process with this number will be waited for with, as soon as that is decided.
fn foretold(pid: i32) -> Option<i32> {
    if !is_dying(pid).ok()? {
        return None;
    }
    // Nothing is shown as 0 to who may not see it, and before it is decided.
    proc::stat(&proc::of(pid)).ok()??.exit_code.filter(|status| *status != 0)
}

fn kept(process: BorrowedFd<'_>) -> Kept {
    // SAFETY: an all-zero value is valid: numbers.
    let mut info: libc::pidfd_info = unsafe { std::mem::zeroed() };
    info.mask = u64::from(libc::PIDFD_INFO_EXIT);
    // SAFETY: the structure is of the size that the request says.
    if unsafe { libc::ioctl(process.as_raw_fd(), libc::PIDFD_GET_INFO, &raw mut info) } != 0 {
        return Kept::Unknown;
    }
    if info.mask & u64::from(libc::PIDFD_INFO_EXIT) == 0 { Kept::Nothing } else { Kept::Status(info.exit_code) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::Command;

    /// Whether this kernel keeps it.
    fn is_kept() -> bool {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().unwrap_or(0));
        (numbers.next(), numbers.next()) >= (Some(6), Some(15))
    }

    #[test]
    fn the_moment_at_which_its_parent_waits_for_it_hides_nothing() {
        for _ in 0..2000 {
            let (wait, mut go) = std::io::pipe().unwrap();
            // SAFETY: the child calls nothing but these two, and ends.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let mut byte = 0_u8;
                // SAFETY: a byte is read into one.
                unsafe { libc::read(wait.as_raw_fd(), (&raw mut byte).cast(), 1) };
                // SAFETY: ends the child without running anything of the test's.
                unsafe { libc::_exit(0) };
            }
            let held = Held::of(pid).unwrap();
            let child = nix::unistd::Pid::from_raw(pid);
            let parent = std::thread::spawn(move || nix::sys::wait::waitpid(child, None).unwrap());
            go.write_all(b"x").unwrap();
            let end = std::iter::repeat_with(|| end(&held)).flatten().find(|end| *end != End::NotYet);
            parent.join().unwrap();
            assert!(end == Some(End::Status(0)) || !is_kept(), "{end:?}");
        }
    }

    #[test]
    fn how_it_ended_is_known_before_and_after_its_parent_has_waited_for_it() {
        for (how, expected) in [("kill -9 $$", 9), ("kill -37 $$", 37), ("kill -11 $$", 11), ("exit 3", 3 << 8)] {
            let mut command = Command::new("bash");
            command.args(["-c", &format!("read; {how}")]).stdin(std::process::Stdio::piped());
            let mut child = command.spawn().unwrap();
            let held = Held::of(child.id() as i32).unwrap();
            assert_eq!(status(&held), None, "it lives");
            drop(child.stdin.take());
            while held.lives() {
                std::thread::yield_now();
            }
            // A core dump is not how, but what came of it.
            assert_eq!(status(&held).map(|status| status & !0x80), Some(expected), "{how}");
            child.wait().unwrap();
            let after = status(&held).map(|status| status & !0x80);
            assert_eq!(after, is_kept().then_some(expected), "{how}");
        }
    }
}
