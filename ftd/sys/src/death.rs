//! Death notices that do not grow with the memory of the dead (DESIGN §5): robust futexes, and what `/proc` says of a
//! process that is on its way out.

use crate::proc;
use procfs_core::process::Stat;
use rustix::thread::futex::{self, ClockId, Wait, WaitFlags, WaitPtr, WaitvFlags};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Set by the kernel in a robust futex whose owner ended.
pub const OWNER_DIED: u32 = futex::OWNER_DIED;
/// Set by whoever waits, so that the kernel wakes.
pub const WAITERS: u32 = futex::WAITERS;
/// `PF_EXITING` of `/proc/<pid>/stat`'s flags.
const EXITING: u32 = 0x4;
/// Most futexes that one call can wait on.
const MOST: usize = 128;

/// Waits until one of the words is no longer as expected, or something wakes its waiters. At most 128 words.
///
/// # Errors
/// `ENOSYS` on kernels before 5.16; `InvalidInput` for too many words.
pub fn wait_any(words: &[(&AtomicU32, u32)]) -> io::Result<()> {
    if words.len() > MOST {
        return Err(ErrorKind::InvalidInput.into());
    }
    let mut entries = [Wait::new(); MOST];
    for (entry, (word, expected)) in entries.iter_mut().zip(words) {
        entry.val = u64::from(*expected);
        entry.uaddr = WaitPtr::new(word.as_ptr().cast());
        entry.flags = WaitFlags::SIZE_U32;
    }
    match futex::waitv(&entries[..words.len()], WaitvFlags::empty(), None, ClockId::Monotonic) {
        Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Waits until `word` is no longer as expected, something wakes its waiters, or `timeout` is over. In any process.
pub fn wait_until_changed(word: &AtomicU32, expected: u32, timeout: Duration) {
    let timeout = futex::Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // Whatever it says: who waits looks at the word.
    let _ = futex::wait(word, futex::Flags::empty(), expected, Some(&timeout));
}

/// Wakes all that wait on `word`, in any process.
pub fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
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
    every_task(pid, |task, stat| Ok(is_exiting(stat) || kill_is_pending(task)?))
}

/// Whether the process runs no user code any more: every task is exiting, or it is a zombie, or it is gone. Its memory may
/// still be being torn down. Stricter than [`is_dying`]: a task with SIGKILL pending may be on its last instructions.
///
/// # Errors
/// As [`is_dying`].
pub fn is_past_user_code(pid: i32) -> io::Result<bool> {
    every_task(pid, |_, stat| Ok(is_exiting(stat)))
}

fn every_task(pid: i32, holds: impl Fn(&Path, &Stat) -> io::Result<bool>) -> io::Result<bool> {
    let tasks = match proc::tasks(pid) {
        Ok(Some(tasks)) => tasks,
        Ok(None) => return Ok(has_ended(pid)),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok(has_ended(pid)),
        Err(error) => return Err(error),
    };
    for task in tasks {
        if let Some(stat) = proc::stat(&task)?
            && !holds(&task, &stat)?
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What `/proc` shows nothing of may be another user's that is hidden (`hidepid`). A descriptor needs no permission.
fn has_ended(pid: i32) -> bool {
    let Ok(fd) = crate::process::pidfd_open(pid) else { return true };
    nix::poll::poll(
        &mut [nix::poll::PollFd::new(fd.as_fd(), nix::poll::PollFlags::POLLIN)],
        nix::poll::PollTimeout::ZERO,
    ) != Ok(0)
}

/// The signal that a dying process or zombie dies of; `None` when it lives, is gone, or ends by its own will.
pub fn signal_of_dying(pid: i32) -> Option<i32> {
    if !is_dying(pid).ok()? {
        return None;
    }
    let stat = proc::stat(&proc::of(pid)).ok()??;
    // The wait status; readable for processes of the same user.
    let status = stat.exit_code?;
    // Tasks that have SIGKILL pending have no status yet.
    match status & 0x7f {
        0 if status == 0 && !is_exiting(&stat) => Some(libc::SIGKILL),
        0 => None,
        signal => Some(signal),
    }
}

/// Whether a process, dead and not waited for, or dying, had used all the CPU time that its hard limit (`ulimit -t`) allows.
/// The kernel then sends SIGKILL, which looks like anybody's. It counts the time by ticks, and what it shows is measured: a
/// process that shared its processor was seen to die at 0.87 of its limit, so three quarters count.
pub fn is_at_cpu_limit(pid: i32) -> bool {
    let used = || proc::stat(&proc::of(pid)).ok()?.map(|stat| stat.utime + stat.stime);
    cpu_limit(pid).zip(used()).is_some_and(|(limit, used)| uses_up(limit, used))
}

/// The same of a process that the dead one had waited for, which had this limit: nobody else knows its time any more.
pub fn waited_for_cpu_limit(pid: i32, limit: u64) -> bool {
    let of_others = |stat: Stat| u64::try_from(stat.cutime + stat.cstime).unwrap_or(0);
    proc::stat(&proc::of(pid)).ok().flatten().is_some_and(|stat| uses_up(limit, of_others(stat)))
}

/// Whether a process, dead and not waited for, had itself waited for one: no process runs without touching memory, and what the
/// waited-for have touched is counted.
pub fn has_waited(pid: i32) -> bool {
    proc::stat(&proc::of(pid)).ok().flatten().is_some_and(|stat| stat.cminflt > 0)
}

/// The hard limit of a process's CPU time, in seconds; `None` when it has none.
pub fn cpu_limit(pid: i32) -> Option<u64> {
    let limits = String::from_utf8(proc::read(&proc::of(pid).join("limits")).ok()??).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max cpu time"))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn uses_up(limit: u64, ticks: u64) -> bool {
    // SAFETY: no memory is involved.
    let per_second = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100);
    ticks.saturating_mul(4) >= limit.saturating_mul(per_second).saturating_mul(3)
}

fn is_exiting(stat: &Stat) -> bool {
    proc::has_left(stat) || stat.flags & EXITING != 0
}

fn kill_is_pending(task: &Path) -> io::Result<bool> {
    let pending = proc::signals(task, &["SigPnd", "ShdPnd"])?;
    Ok(pending.is_none_or(|set| set & 1 << (libc::SIGKILL - 1) != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    fn eventually(what: impl Fn() -> bool) -> bool {
        (0..20_000).any(|_| {
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
    fn a_real_time_signal_is_one() {
        for signal in [libc::SIGRTMIN() + 3, libc::SIGRTMAX()] {
            let mut child = Command::new("sleep").arg("60").spawn().unwrap();
            let pid = child.id() as i32;
            crate::process::kill(pid, signal);
            assert!(eventually(|| signal_of_dying(pid) == Some(signal)));
            child.wait().unwrap();
        }
    }

    /// A process is called what its file is called, as far as 15 bytes go.
    #[test]
    fn a_name_that_is_no_text_makes_no_difference() {
        use std::os::unix::ffi::OsStrExt;
        let directory = tempfile::tempdir().unwrap();
        for name in [&b"\xff\xfe) Z 1"[..], "vierzehn-bytesé".as_bytes(), b"\xc3"] {
            let program = directory.path().join(std::ffi::OsStr::from_bytes(name));
            // Not by this process: what another test starts at that moment would have it open for writing, and it could not run.
            assert!(Command::new("cp").arg("/bin/sleep").arg(&program).status().unwrap().success());
            let mut child = Command::new(&program).arg("60").spawn().unwrap();
            let pid = child.id() as i32;
            let comm = [&name[..name.len().min(15)], b"\n"].concat();
            assert!(eventually(|| std::fs::read(format!("/proc/{pid}/comm")).unwrap() == comm), "{name:?}");
            assert!(!is_dying(pid).unwrap() && !is_past_user_code(pid).unwrap(), "{name:?}");
            assert_eq!(signal_of_dying(pid), None);
            crate::process::kill(pid, libc::SIGKILL);
            assert!(eventually(|| is_past_user_code(pid).unwrap()), "{name:?}");
            assert_eq!(signal_of_dying(pid), Some(libc::SIGKILL), "{name:?}");
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_death_at_the_limit_of_cpu_time_is_told_from_a_kill() {
        use std::os::unix::process::ExitStatusExt;
        let run = |script: &str| {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let pid = child.id() as i32;
            // A second of processor time is more than one on a busy machine.
            assert!((0..3).any(|_| eventually(|| is_dying(pid).unwrap())));
            let at_limit = is_at_cpu_limit(pid);
            (child.wait().unwrap().signal(), at_limit)
        };
        assert_eq!(run("ulimit -t 1; while :; do :; done"), (Some(libc::SIGKILL), true));
        assert_eq!(run("ulimit -t 10; kill -9 $$"), (Some(libc::SIGKILL), false));
        assert_eq!(run("kill -9 $$"), (Some(libc::SIGKILL), false));
        assert!(!is_at_cpu_limit(std::process::id() as i32));
    }

    #[test]
    fn a_death_at_the_limit_is_known_of_who_waited_for_it() {
        let mut wrapper =
            Command::new("sh").args(["-c", "(ulimit -t 1; while :; do :; done); exec sleep 60"]).spawn().unwrap();
        let pid = wrapper.id() as i32;
        assert_eq!(cpu_limit(pid), None);
        assert!((0..3).any(|_| eventually(|| proc::stat(&proc::of(pid)).unwrap().unwrap().cutime > 0)));
        wrapper.kill().unwrap();
        assert!(eventually(|| is_past_user_code(pid).unwrap()));
        assert!(waited_for_cpu_limit(pid, 1) && !waited_for_cpu_limit(pid, 10));
        wrapper.wait().unwrap();
    }

    #[test]
    fn who_has_waited_for_a_process_is_told_from_who_has_not() {
        for (script, waited) in [("exit 137", false), ("sleep 60 & exit 137", false), ("/bin/true; exit 137", true)] {
            let mut child = Command::new("sh").args(["-c", script]).process_group(0).spawn().unwrap();
            let pid = child.id() as i32;
            assert!(eventually(|| is_past_user_code(pid).unwrap()));
            assert_eq!(has_waited(pid), waited, "{script}");
            child.wait().unwrap();
            crate::process::kill(-pid, libc::SIGKILL);
        }
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
