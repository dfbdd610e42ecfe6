//! Processes: descriptors that name them, their descendants, and what ties children to parents.

use nix::sys::signal::Signal;
use rustix::process::{Pid, PidfdFlags};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A time that all processes of this machine share, and that goes on while it is suspended.
pub fn micros_since_boot() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
}

/// A descriptor that names a process for as long as it is open; readable when the process has ended.
///
/// # Errors
/// `ESRCH` when there is no such process.
pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).filter(|pid| pid.as_raw_nonzero().get() > 0);
    Ok(rustix::process::pidfd_open(pid.ok_or(rustix::io::Errno::SRCH)?, PidfdFlags::empty())?)
}

/// Sends a signal to the process that the descriptor names, and to no other that got its number.
///
/// # Errors
/// `ESRCH` when it has ended; `InvalidInput` for what is no signal.
pub fn pidfd_send_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    if !(1..=libc::SIGRTMAX()).contains(&signal) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: it is a signal's number; what the C library keeps for itself does no harm to this process.
    let signal = unsafe { rustix::process::Signal::from_raw_unchecked(signal) };
    Ok(rustix::process::pidfd_send_signal(pidfd, signal)?)
}

/// Sends a signal to a process by number; one that is gone is no error.
pub fn kill(pid: i32, signal: i32) {
    if pid > 0 {
        // SAFETY: takes two numbers.
        unsafe { libc::kill(pid, signal) };
    }
}

/// The direct children of a process.
pub fn children(pid: i32) -> Vec<i32> {
    let tasks = crate::proc::tasks(pid).ok().flatten().unwrap_or_default();
    tasks
        .iter()
        .filter_map(|task| crate::proc::read(&task.join("children")).ok().flatten())
        .flat_map(|list| numbers(&list))
        .collect()
}

/// The direct children of this process, which is cheap when there are none.
pub fn own_children() -> Vec<i32> {
    if crate::wait::has_children() { children(std::process::id() as i32) } else { Vec::new() }
}

/// All descendants of this process, as [`descendants`].
pub fn own_descendants() -> Vec<i32> {
    with_descendants(own_children())
}

fn numbers(list: &[u8]) -> Vec<i32> {
    let list = std::str::from_utf8(list).unwrap_or_default();
    list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// The child of this process that a descendant stands below, or is; `None` for any other process.
pub fn child_above(mut pid: i32) -> Option<i32> {
    let me = std::process::id() as i32;
    loop {
        match parent(pid)? {
            parent if parent == me => return Some(pid),
            0 | 1 => return None,
            parent => pid = parent,
        }
    }
}

fn parent(pid: i32) -> Option<i32> {
    Some(crate::proc::stat(&crate::proc::of(pid)).ok()??.ppid)
}

/// Why a process may not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Condition {
    /// The kernel's letter for its state: `T` is stopped, `D` waits for a device.
    pub state: char,
    /// Who traces it, or 0.
    pub tracer: i32,
}

/// What keeps a process from running; `None` when it is gone.
pub fn condition(pid: i32) -> Option<Condition> {
    let status = crate::proc::read(&crate::proc::living(pid).join("status")).ok()??;
    let status = String::from_utf8_lossy(&status);
    let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let state = value("State:")?.chars().next()?;
    Some(Condition { state, tracer: value("TracerPid:")?.parse().ok()? })
}

/// The number that was last given to a process or thread: while it stays the same nobody has forked. `None` when `/proc` does
/// not tell.
pub fn last_number() -> Option<i32> {
    LastNumber::default().now()
}

/// The same for who asks again and again.
#[derive(Debug)]
pub struct LastNumber(Option<crate::proc::Open>);

impl Default for LastNumber {
    fn default() -> Self {
        LastNumber(crate::proc::Open::new(Path::new("/proc/loadavg")))
    }
}

impl LastNumber {
    /// Which it is now.
    pub fn now(&mut self) -> Option<i32> {
        let load = self.0.as_mut()?.look()?;
        std::str::from_utf8(load).ok()?.split_ascii_whitespace().nth(4)?.parse().ok()
    }
}

/// What `gethostname` says; `/proc` may show nothing but processes (`subset=pid`).
///
/// # Errors
/// As `gethostname`.
pub fn host_name() -> std::io::Result<String> {
    Ok(nix::unistd::gethostname()?.to_string_lossy().into_owned())
}

/// The parent of a process; `None` when it is gone.
pub fn parent_of(pid: i32) -> Option<i32> {
    parent(pid).filter(|parent| *parent > 0)
}

/// All descendants of a process, parents before children. A snapshot: more may be forked while it is taken.
pub fn descendants(pid: i32) -> Vec<i32> {
    with_descendants(children(pid))
}

/// A process and its descendants, parents before children, but none of which this is true, and nobody below such a one.
pub fn tree_without(pid: i32, mut skip: impl FnMut(i32) -> bool) -> Vec<i32> {
    let mut found = vec![pid];
    found.retain(|pid| !skip(*pid));
    let mut next = 0;
    while next < found.len() {
        let more = children(found[next]);
        found.extend(more.into_iter().filter(|pid| !skip(*pid)));
        next += 1;
    }
    found
}

/// These processes and everything below them, parents before children.
pub(crate) fn with_descendants(mut found: Vec<i32>) -> Vec<i32> {
    let mut next = 0;
    while next < found.len() {
        let more = children(found[next]);
        found.extend(more);
        next += 1;
    }
    found
}

/// Sends a signal to all descendants of this process.
pub fn signal_descendants(signal: i32) {
    for pid in own_descendants() {
        // What is gone needs none.
        let _ = crate::individual::signal_below(pid, signal);
    }
}

/// Ignores a signal in this process. [`crate::spawn::Spawn`] gives children the default again.
pub fn ignore_signal(signal: i32) {
    // SAFETY: SIG_IGN runs no code of ours.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Has SIGSEGV and SIGBUS end this process. Rust's run-time looks at their cause first, and one that somebody sent would do
/// nothing.
pub fn die_of_faults() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: SIG_DFL runs no code of ours.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Has a write beyond the file-size limit (`ulimit -f`) fail in this process instead of killing it. Memfds are files.
pub fn survive_file_size_limit() {
    ignore_signal(libc::SIGXFSZ);
}

/// As [`survive_file_size_limit`], and lifts the limit as far as this process may. Not for what starts ranks: they have the
/// user's limit.
pub fn lift_file_size_limit() {
    use nix::sys::resource::{Resource::RLIMIT_FSIZE, getrlimit, setrlimit};
    survive_file_size_limit();
    if let Ok((_, hard)) = getrlimit(RLIMIT_FSIZE) {
        let _ = setrlimit(RLIMIT_FSIZE, hard, hard);
    }
}

/// Keeps the memory of a process with short-lived threads together: one heap for all of them, and free memory goes back
/// to the system. For processes whose memory must not creep.
pub fn one_heap() {
    // SAFETY: both take two numbers, and are called before other threads exist.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 128 << 10);
    }
}

/// Gives free memory between what is in use back to the system: trimming alone gives back what lies above it.
pub fn give_memory_back() {
    // SAFETY: takes a number; the allocator locks itself.
    unsafe { libc::malloc_trim(0) };
}

/// What the calling thread has used of a processor up to now. Time that others had it meanwhile does not count.
pub fn processor_time() -> Duration {
    use nix::time::{ClockId, clock_gettime};
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Makes this process the parent of all orphans below it.
///
/// # Errors
/// As `prctl`.
pub fn set_subreaper() -> io::Result<()> {
    Ok(nix::sys::prctl::set_child_subreaper(true)?)
}

/// Has this process killed when the thread that forked it ends.
///
/// # Errors
/// As `prctl`.
pub fn set_pdeathsig() -> io::Result<()> {
    Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?)
}

/// Takes a descriptor that a parent left open under a known number, and marks it close-on-exec. It can be taken once, and
/// only if it came through `exec`: what this process opened itself belongs to somebody already, and is marked so
/// (close-on-exec), as everything is that Rust's standard library or this crate opens.
///
/// # Errors
/// `EBADF` when there is none; `InvalidInput` for the standard descriptors, and for one that was taken or is no heirloom.
pub fn take_inherited_fd(number: RawFd) -> io::Result<OwnedFd> {
    static TAKEN: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: F_GETFD fails with EBADF on a number that is no descriptor.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    if number <= libc::STDERR_FILENO || flags & libc::FD_CLOEXEC != 0 || taken.contains(&number) {
        let text = format!("descriptor {number} was not handed over by the program that started this one");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    // SAFETY: changes a flag of an open descriptor.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    taken.insert(number);
    // SAFETY: it is open, it was there before this program, and nobody has taken it before.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Lets a descriptor through `exec`, under its present number.
///
/// # Errors
/// As `fcntl`.
pub fn pass_through_exec(fd: BorrowedFd<'_>) -> io::Result<()> {
    nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()))?;
    Ok(())
}

/// Has a descriptor at that number in what this process executes, whatever was there.
///
/// # Errors
/// As `dup2`.
pub fn put_at(fd: BorrowedFd<'_>, number: RawFd) -> io::Result<()> {
    if fd.as_raw_fd() == number {
        return pass_through_exec(fd);
    }
    // SAFETY: this process owns nothing at that number by its type: it is about to execute a program.
    if unsafe { libc::dup2(fd.as_raw_fd(), number) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Marks every descriptor from `first` on close-on-exec.
///
/// # Errors
/// As `close_range`.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: changes flags of descriptors only.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Raises this process's soft limit of open files to `count`, as far as the hard one allows.
pub fn allow_descriptors(count: u64) {
    use nix::sys::resource::{Resource::RLIMIT_NOFILE, getrlimit, setrlimit};
    if let Ok((soft, hard)) = getrlimit(RLIMIT_NOFILE)
        && soft < count
    {
        let _ = setrlimit(RLIMIT_NOFILE, count.min(hard), hard);
    }
}

/// Makes this process's table of descriptors large enough for `count` of them, as far as its soft limit allows: to be called
/// while it has one thread. Where several threads share a table that has to grow, the kernel waits for a grace period of
/// RCU, which is 10 ms and more.
///
/// # Errors
/// As `fcntl`; the process has lost nothing.
pub fn make_room_for_descriptors(count: u64) -> io::Result<()> {
    let (soft, _) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)?;
    let Some(last) = count.min(soft).checked_sub(1) else { return Ok(()) };
    // SAFETY: the descriptor, of nothing that can be read or written, is this function's own.
    unsafe {
        let path = libc::open(c"/".as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
        let high = libc::fcntl(path, libc::F_DUPFD_CLOEXEC, last as libc::c_int);
        let error = io::Error::last_os_error();
        for fd in [path, high].into_iter().filter(|fd| *fd >= 0) {
            libc::close(fd);
        }
        if high < 0 { Err(error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_table_with_room_is_as_large_as_asked_and_no_larger_than_allowed() {
        let size = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap().trim().parse::<u64>().unwrap()
        };
        let before = size();
        make_room_for_descriptors(0).unwrap();
        make_room_for_descriptors(2 * before).unwrap();
        assert_eq!(size(), 2 * before);
        let (soft, _) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
        if soft <= 1 << 20 {
            make_room_for_descriptors(u64::MAX).unwrap();
            assert!(size() >= soft);
        }
    }

    #[test]
    fn descendants_are_found_below_a_shell() {
        let mut shell = Command::new("sh").args(["-c", "sleep 60 & sleep 60 & wait"]).spawn().unwrap();
        let pid = shell.id() as i32;
        for _ in 0..2000 {
            if descendants(pid).len() == 2 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let below = descendants(pid);
        assert_eq!(below.len(), 2);
        assert_eq!((child_above(below[1]), child_above(pid)), (Some(pid), Some(pid)));
        assert_eq!(child_above(std::process::id() as i32), None);
        assert!(descendants(std::process::id() as i32).contains(&below[0]));
        shell.kill().unwrap();
        below.into_iter().for_each(|pid| kill(pid, libc::SIGKILL));
        shell.wait().unwrap();
    }

    #[test]
    fn a_stopped_process_says_so() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id() as i32;
        kill(pid, libc::SIGSTOP);
        let stopped = || condition(pid) == Some(Condition { state: 'T', tracer: 0 });
        for _ in 0..2000 {
            if stopped() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(stopped());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(condition(pid), None);
    }

    #[test]
    fn a_pidfd_signals_its_process_and_no_later_one() {
        use std::os::fd::AsFd;
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pidfd = pidfd_open(child.id() as i32).unwrap();
        pidfd_send_signal(pidfd.as_fd(), libc::SIGKILL).unwrap();
        child.wait().unwrap();
        assert_eq!(pidfd_send_signal(pidfd.as_fd(), libc::SIGTERM).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
