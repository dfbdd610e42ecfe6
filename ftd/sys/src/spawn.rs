//! Starting a process the way a resource manager would: clean signals, no stray descriptors, tied to its parent's life.

use crate::own_number::OwnNumber;
use std::ffi::{CString, NulError};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// A process to be.
#[derive(Debug)]
pub struct Spawn<'a> {
    /// Program (absolute path), then arguments.
    pub argv: &'a [Vec<u8>],
    /// The whole environment.
    pub env: &'a [(Vec<u8>, Vec<u8>)],
    /// Working directory.
    pub cwd: &'a [u8],
    /// Standard input; `/dev/null` without.
    pub stdin: Option<OwnedFd>,
    /// Standard output and standard error; those of this process without.
    pub output: Option<(OwnedFd, OwnedFd)>,
    /// The [cgroup](crate::cgroup) that it and all that it starts are in.
    pub group: Option<BorrowedFd<'a>>,
    /// A descriptor to be had at a given number, 3 or more.
    pub extra: Option<(BorrowedFd<'a>, RawFd)>,
    /// Soft limits of open files and of processes; those of this process without.
    pub soft_limits: Option<(u64, u64)>,
    /// Its nice value; that of this process without.
    pub nice: Option<i32>,
    /// The variable of its environment that has its number, whatever `env` has there.
    pub own_number: Option<&'a str>,
    /// The processors that it may run on; those of this process when there are none, or none of them is there.
    pub processors: &'a [u32],
    /// The program, where it is not to be looked up by its path. No script: that needs a name.
    pub image: Option<BorrowedFd<'a>>,
    /// The working directory, where it is not to be looked up by its path.
    pub directory: Option<BorrowedFd<'a>>,
}

/// Which step failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// A process, a descriptor or memory was not to be had, or a string has a zero byte.
    Prepare = 1,
    /// The working directory.
    Directory = 2,
    /// The program.
    Exec = 3,
}

/// A start that failed.
#[derive(Debug, thiserror::Error)]
#[error("{step:?}: {error}")]
pub struct SpawnError {
    /// Where.
    pub step: Step,
    /// What the system said.
    pub error: io::Error,
}

impl<E: Into<io::Error>> From<E> for SpawnError {
    fn from(error: E) -> Self {
        SpawnError { step: Step::Prepare, error: error.into() }
    }
}

impl Spawn<'_> {
    /// Starts it: own process group, ordinary time slice, default signal dispositions, empty signal mask, no other
    /// descriptors than those named; killed when the calling thread ends. Returns its pid when its program is loaded; the
    /// caller waits for it.
    ///
    /// It may fork: to be called in a process that has one thread.
    ///
    /// # Errors
    /// Which step failed, and what the system said.
    pub fn start(self) -> Result<i32, SpawnError> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        if self.argv.is_empty() || self.extra.is_some_and(|(_, number)| number < 3) {
            return Err(invalid().into());
        }
        let argv = self.argv.iter().map(|word| CString::new(&word[..])).collect::<Result<Vec<_>, NulError>>()?;
        let entry = |(key, value): &(Vec<u8>, Vec<u8>)| CString::new([&key[..], b"=", &value[..]].concat());
        let env = self.env.iter().map(entry).collect::<Result<Vec<_>, NulError>>()?;
        let cwd = CString::new(self.cwd)?;
        let stdin = match self.stdin {
            Some(stdin) => stdin,
            None => File::open("/dev/null")?.into(),
        };
        let mut number = self.own_number.map(OwnNumber::new);
        let (argv_pointers, mut env_pointers) = (pointers(&argv), pointers(&env));
        let number = number.as_mut().map(|number| number.stand_in(&mut env_pointers));
        let (mut report, theirs) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).map(|(r, w)| (File::from(r), w))?;
        let image = Image {
            argv: &argv_pointers,
            env: &env_pointers,
            cwd: &cwd,
            stdin: stdin.as_raw_fd(),
            output: self.output.as_ref().map(|(out, err)| (out.as_raw_fd(), err.as_raw_fd())),
            extra: self.extra.map(|(fd, number)| (fd.as_raw_fd(), number)),
            soft_limits: self.soft_limits,
            nice: self.nice,
            number,
            processors: &mask(self.processors),
            image: self.image.map(|fd| fd.as_raw_fd()),
            directory: self.directory.map(|fd| fd.as_raw_fd()),
            // SAFETY: takes nothing.
            parent: unsafe { libc::getpid() },
        };
        // SAFETY: the pointers are null-terminated lists of strings that live above.
        let child = || -> i32 { unsafe { image.become_it(theirs.as_raw_fd()) } };
        let pid = match self.group {
            // SAFETY: the child makes async-signal-safe calls only, and no handler is left when signals are unblocked.
            None => unsafe { crate::vfork::vfork(child) }?,
            // SAFETY: the same.
            Some(group) => match unsafe { crate::cgroup::fork_into(group) } {
                -1 => return Err(io::Error::last_os_error().into()),
                0 => child(),
                pid => pid,
            },
        };
        drop(theirs);
        let mut bytes = [0; 5];
        let failed = loop {
            match report.read(&mut bytes) {
                Ok(5) => break true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The pipe closes when the program is loaded, or when something has killed the child.
                _ => break false,
            }
        };
        if !failed {
            return Ok(pid);
        }
        crate::wait::wait_for(pid);
        let step = match bytes[0] {
            2 => Step::Directory,
            3 => Step::Exec,
            _ => Step::Prepare,
        };
        let errno = i32::from_ne_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]);
        Err(SpawnError { step, error: io::Error::from_raw_os_error(errno) })
    }
}

/// A set of processors as the kernel takes it.
fn mask(processors: &[u32]) -> Vec<u64> {
    let words = processors.iter().max().map_or(0, |greatest| *greatest as usize / 64 + 1);
    let mut mask = vec![0; words];
    for processor in processors {
        mask[*processor as usize / 64] |= 1 << (processor % 64);
    }
    mask
}

/// The null-terminated list that the kernel wants.
pub(crate) fn pointers(list: &[CString]) -> Vec<*const libc::c_char> {
    list.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
}

/// What the child needs, ready made: it must not allocate.
struct Image<'a> {
    argv: &'a [*const libc::c_char],
    env: &'a [*const libc::c_char],
    cwd: &'a std::ffi::CStr,
    stdin: RawFd,
    output: Option<(RawFd, RawFd)>,
    extra: Option<(RawFd, RawFd)>,
    soft_limits: Option<(u64, u64)>,
    nice: Option<i32>,
    /// Where it writes its number, in decimal digits with a zero behind them.
    number: Option<*mut u8>,
    processors: &'a [u64],
    image: Option<RawFd>,
    directory: Option<RawFd>,
    parent: i32,
}

impl Image<'_> {
    /// # Safety
    /// To be called in a child that has descriptors of its own; `argv` and `env` are null-terminated lists of strings.
    unsafe fn become_it(&self, mut report: RawFd) -> ! {
        // SAFETY: system calls with numbers, and with pointers that the caller vouches for.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            // A parent that died before the call above is not noticed by it.
            if libc::getppid() != self.parent {
                libc::_exit(127);
            }
            if let Some(number) = self.number {
                crate::own_number::write(libc::getpid(), number);
            }
            libc::setpgid(0, 0);
            crate::slice::restore();
            if let Some(nice) = self.nice {
                // It is refused only where nobody could raise this process, and then there is nothing to put back.
                let _ = crate::priority::set(nice);
            }
            if !self.processors.is_empty() {
                // A processor that was taken away meanwhile is no reason not to start.
                let (size, mask) = (size_of_val(self.processors), self.processors.as_ptr());
                libc::syscall(libc::SYS_sched_setaffinity, 0, size, mask);
            }
            default_signals();
            let entered = match self.directory {
                Some(fd) => libc::fchdir(fd),
                None => libc::chdir(self.cwd.as_ptr()),
            };
            if entered < 0 {
                fail(report, Step::Directory);
            }
            let mut image = self.image;
            if let Some((_, number)) = self.extra {
                for fd in [Some(&mut report), image.as_mut()].into_iter().flatten().filter(|fd| **fd == number) {
                    *fd = libc::fcntl(*fd, libc::F_DUPFD_CLOEXEC, number + 1);
                }
            }
            if libc::dup2(self.stdin, 0) < 0 {
                fail(report, Step::Prepare);
            }
            if let Some((out, err)) = self.output
                && (libc::dup2(out, 1) < 0 || libc::dup2(err, 2) < 0)
            {
                fail(report, Step::Prepare);
            }
            libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
            if let Some((fd, number)) = self.extra
                && ((fd != number && libc::dup2(fd, number) < 0) || libc::fcntl(number, libc::F_SETFD, 0) < 0)
            {
                fail(report, Step::Prepare);
            }
            // Descriptors above the limit stay what they are.
            if let Some((files, tasks)) = self.soft_limits {
                soften(libc::RLIMIT_NOFILE, files);
                soften(libc::RLIMIT_NPROC, tasks);
            }
            if let Some(image) = image {
                let (argv, env) = (self.argv.as_ptr(), self.env.as_ptr());
                libc::syscall(libc::SYS_execveat, image, c"".as_ptr(), argv, env, libc::AT_EMPTY_PATH);
                fail(report, Step::Exec);
            }
            libc::execve(self.argv[0], self.argv.as_ptr(), self.env.as_ptr());
            fail(report, Step::Exec)
        }
    }
}

/// Default dispositions and an empty mask. Safe between `fork` and `exec`.
pub(crate) fn default_signals() {
    // Below libc: it hides two signals, which a parent may have had ignored.
    let (default, none) = ([0u64; 8], 0u64);
    // SAFETY: SIG_DFL runs no code of ours, and the buffers are as large as the kernel expects; SIGKILL and SIGSTOP are
    // refused, and that is fine.
    unsafe {
        for signal in 1..=64 {
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), std::ptr::null::<u8>(), 8usize);
        }
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const none, std::ptr::null::<u8>(), 8usize);
    }
}

/// Lowers a soft limit; the hard one stays. Safe between `fork` and `exec`.
fn soften(resource: libc::__rlimit_resource_t, soft: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is as the kernel expects it.
    unsafe {
        if libc::getrlimit(resource, &raw mut limit) == 0 {
            limit.rlim_cur = soft.min(limit.rlim_max);
            libc::setrlimit(resource, &raw const limit);
        }
    }
}

/// # Safety
/// To be called in a forked child.
unsafe fn fail(report: RawFd, step: Step) -> ! {
    // SAFETY: errno is this thread's own; the buffer outlives the call.
    unsafe {
        let errno = (*libc::__errno_location()).to_ne_bytes();
        let bytes = [step as u8, errno[0], errno[1], errno[2], errno[3]];
        libc::write(report, bytes.as_ptr().cast(), bytes.len());
        libc::_exit(127)
    }
}
