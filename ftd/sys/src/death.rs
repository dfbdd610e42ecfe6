//! Death notices that do not grow with the memory of the dead (DESIGN §5): robust futexes, and what `/proc` says of a
//! process that is on its way out.

use std::fs;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU32, Ordering};

/// Set by the kernel in a robust futex whose owner ended.
pub const OWNER_DIED: u32 = 0x4000_0000;
/// Set by whoever waits, so that the kernel wakes.
pub const WAITERS: u32 = 0x8000_0000;
/// `PF_EXITING` of `/proc/<pid>/stat`'s flags.
const EXITING: u64 = 0x4;
/// Most futexes that one call can wait on.
const MOST: usize = 128;
const FUTEX_32: u32 = 2;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct WaitEntry {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

/// Waits until one of the words is no longer as expected, or something wakes its waiters. At most 128 words.
///
/// # Errors
/// `ENOSYS` on kernels before 5.16; `InvalidInput` for too many words.
pub fn wait_any(words: &[(&AtomicU32, u32)]) -> io::Result<()> {
    if words.len() > MOST {
        return Err(ErrorKind::InvalidInput.into());
    }
    let mut entries = [WaitEntry::default(); MOST];
    for (entry, (word, expected)) in entries.iter_mut().zip(words) {
        *entry = WaitEntry { value: u64::from(*expected), address: word.as_ptr() as u64, flags: FUTEX_32, reserved: 0 };
    }
    // SAFETY: `entries` holds `words.len()` initialised entries whose addresses are borrowed for the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex_waitv,
            entries.as_ptr(),
            words.len() as libc::c_uint,
            0,
            std::ptr::null::<u8>(),
            0,
        )
    };
    if result >= 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => Ok(()),
        error => Err(error),
    }
}

/// Wakes all that wait on `word`, in any process.
pub fn wake(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE reads nothing but the address.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX, 0, 0, 0) };
}

/// Marks a robust futex as waited for and returns the value to wait with; `None` when its owner has died.
pub fn watch_robust(word: &AtomicU32) -> Option<u32> {
    let seen = word.fetch_or(WAITERS, Ordering::AcqRel) | WAITERS;
    (seen & OWNER_DIED == 0).then_some(seen)
}

/// Whether the process has no way back to user code: every task is exiting or has SIGKILL pending, or it is a zombie, or
/// it is gone. A robust futex also fires when a single thread ends or the process calls `exec`; this tells.
///
/// # Errors
/// When `/proc` cannot be read for another reason than the process being gone.
pub fn is_dying(pid: i32) -> io::Result<bool> {
    every_task(pid, |task, stat| Ok(stat.exiting || kill_is_pending(task)?))
}

/// Whether the process runs no user code any more: every task is exiting, or it is a zombie, or it is gone. Its memory may
/// still be being torn down. Stricter than [`is_dying`]: a task with SIGKILL pending may be on its last instructions.
///
/// # Errors
/// As [`is_dying`].
pub fn is_past_user_code(pid: i32) -> io::Result<bool> {
    every_task(pid, |_, stat| Ok(stat.exiting))
}

fn every_task(pid: i32, holds: impl Fn(&std::path::Path, &Stat) -> io::Result<bool>) -> io::Result<bool> {
    let tasks = match fs::read_dir(format!("/proc/{pid}/task")) {
        Err(error) if is_gone(&error) => return Ok(true),
        other => other?,
    };
    for task in tasks {
        let task = match task {
            Err(error) if is_gone(&error) => continue,
            other => other?.path(),
        };
        let stat = match fs::read_to_string(task.join("stat")) {
            Err(error) if is_gone(&error) => continue,
            other => other?,
        };
        if let Some(stat) = Stat::parse(&stat)
            && !holds(&task, &stat)?
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The signal that a dying process or zombie dies of; `None` when it lives, is gone, or ends by its own will.
pub fn signal_of_dying(pid: i32) -> Option<i32> {
    if !is_dying(pid).ok()? {
        return None;
    }
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let status = Stat::parse(&stat)?.status;
    // Tasks that have SIGKILL pending have no status yet.
    match status & 0x7f {
        0 if status == 0 && !Stat::parse(&stat)?.exiting => Some(libc::SIGKILL),
        0 => None,
        signal => Some(signal),
    }
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

fn kill_is_pending(task: &std::path::Path) -> io::Result<bool> {
    let status = match fs::read_to_string(task.join("status")) {
        Err(error) if is_gone(&error) => return Ok(true),
        other => other?,
    };
    let pending = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    let bit = 1 << (libc::SIGKILL - 1);
    Ok(["SigPnd:", "ShdPnd:"].iter().any(|name| pending(name).is_some_and(|set| set & bit != 0)))
}

/// The parts of `/proc/<pid>/stat` that matter here.
struct Stat {
    exiting: bool,
    /// Wait status; readable for processes of the same user.
    status: i32,
}

impl Stat {
    fn parse(text: &str) -> Option<Stat> {
        // The name stands in parentheses and may contain anything.
        let mut fields = text[text.rfind(')')? + 1..].split_ascii_whitespace();
        let state = fields.next()?;
        let flags: u64 = fields.nth(5)?.parse().ok()?;
        let status = fields.next_back()?.parse().ok()?;
        Some(Stat { exiting: matches!(state, "Z" | "X") || flags & EXITING != 0, status })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn eventually(what: impl Fn() -> bool) -> bool {
        (0..2000).any(|_| {
            let done = what();
            if !done {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            done
        })
    }

    #[test]
    fn a_living_process_is_not_dying_and_a_killed_one_tells_its_signal() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id() as i32;
        assert!(!is_dying(pid).unwrap());
        child.kill().unwrap();
        assert!(eventually(|| is_dying(pid).unwrap()));
        assert!(eventually(|| signal_of_dying(pid) == Some(libc::SIGKILL)));
        child.wait().unwrap();
        assert!(is_dying(pid).unwrap(), "a process that is gone does not come back");
        assert_eq!(signal_of_dying(pid), None);
    }

    #[test]
    fn an_exit_by_own_will_has_no_signal() {
        let mut child = Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap();
        assert!(eventually(|| is_dying(child.id() as i32).unwrap()));
        assert_eq!(signal_of_dying(child.id() as i32), None);
        child.wait().unwrap();
    }

    #[test]
    fn a_stopped_process_is_not_dying() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = nix::unistd::Pid::from_raw(child.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::SIGSTOP).unwrap();
        assert!(!is_dying(child.id() as i32).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_wake_or_a_change_ends_the_wait() {
        let (word, other) = (AtomicU32::new(0), AtomicU32::new(5));
        wait_any(&[(&word, 1), (&other, 5)]).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                while word.load(Ordering::SeqCst) == 0 {
                    wait_any(&[(&other, 5), (&word, 0)]).unwrap();
                }
            });
            std::thread::sleep(std::time::Duration::from_millis(20));
            word.store(1, Ordering::SeqCst);
            wake(&word);
            waiter.join().unwrap();
        });
    }
}
