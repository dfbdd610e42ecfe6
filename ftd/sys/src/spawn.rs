//! Starting a process the way a resource manager would: clean signals, no stray descriptors, tied to its parent's life.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

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
    /// A descriptor to be had at a given number.
    pub extra: Option<(BorrowedFd<'a>, RawFd)>,
}

impl Spawn<'_> {
    /// Starts it: own process group, default signal dispositions, empty signal mask, standard output and error of this
    /// process, no other descriptors; killed when the calling thread ends. Returns its pid; the caller waits for it.
    ///
    /// # Errors
    /// What `chdir` or `exec` said.
    pub fn start(self) -> io::Result<i32> {
        let bytes = |bytes: &[u8]| OsStr::from_bytes(bytes).to_os_string();
        let program = self.argv.first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(bytes(program));
        command
            .args(self.argv[1..].iter().map(|arg| bytes(arg)))
            .env_clear()
            .envs(self.env.iter().map(|(key, value)| (bytes(key), bytes(value))))
            .current_dir(bytes(self.cwd))
            .process_group(0)
            .stdin(self.stdin.map_or_else(Stdio::null, Stdio::from));
        let parent = std::process::id() as i32;
        let extra = self.extra.map(|(fd, number)| (fd.as_raw_fd(), number));
        // SAFETY: F_GETFD reads a flag, and fails where no descriptor is.
        if extra.is_some_and(|(_, number)| unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0) {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        // SAFETY: between fork and exec only system calls that are safe there are made; nothing is allocated or locked.
        unsafe { command.pre_exec(move || in_child(parent, extra)) };
        Ok(command.spawn()?.id() as i32)
    }
}

/// Runs between fork and exec.
fn in_child(parent: i32, extra: Option<(RawFd, RawFd)>) -> io::Result<()> {
    crate::process::set_pdeathsig()?;
    // SAFETY: takes nothing. A parent that died before the call above is not noticed by it.
    if unsafe { libc::getppid() } != parent {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    for signal in 1..32 {
        // SAFETY: SIG_DFL runs no code of ours; SIGKILL and SIGSTOP are refused, and that is fine.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    nix::sys::signal::SigSet::empty().thread_set_mask()?;
    crate::process::close_on_exec_from(3)?;
    if let Some((fd, number)) = extra {
        // SAFETY: takes two numbers; `start` has checked that nothing stands at `number`.
        if unsafe { libc::dup2(fd, number) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
