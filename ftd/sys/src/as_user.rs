//! Becoming another user, as a resource manager's processes do: with nothing of the daemon from which they come but a link. To be done in
//! a process of its own, which the daemon does not wait for: from this moment on its user may stop it.

use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Uid, chdir, setgroups, setresgid, setresuid};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::ffi::{CString, NulError};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What the kernel has in the place of a new session keyring's name.
const NO_NAME: *const libc::c_char = std::ptr::null();

/// Who a process is to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// The user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// All its groups.
    pub groups: Vec<u32>,
}

/// Makes this process, which has one thread and a session of its own, that user's; without one it stays who it is. Ranks are killed before
/// daemons where memory runs out, and may not change that: what root sets is the least that others can set. Its [priority](crate::priority)
/// is one that the user may not be able to have: it is to be put back for whatever is the user's.
///
/// # Errors
/// What the system said to one of the steps.
pub fn become_user(who: Option<&Credentials>, nice: i32) -> io::Result<()> {
    crate::spawn::default_signals();
    crate::slice::restore();
    if let Err(error) = crate::priority::set(nice)
        && who.is_some()
    {
        let what = "the job's agent has no priority above its ranks, and may be late where they take all processors";
        crate::log::say(format_args!("ftd: {what}: nice {nice}: {error} (jobs.agent-nice in ftd.toml; CAP_SYS_NICE)"));
    }
    // Where it cannot be set it was not set for the daemon either.
    let _ = std::fs::write("/proc/self/oom_score_adj", "0");
    umask(Mode::from_bits_truncate(0o022));
    chdir("/")?;
    let Some(who) = who else { return Ok(()) };
    let groups: Vec<Gid> = who.groups.iter().copied().map(Gid::from_raw).collect();
    let (uid, gid) = (Uid::from_raw(who.uid), Gid::from_raw(who.gid));
    setgroups(&groups)?;
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)?;
    // Keys that the daemon was given are not the user's, and those of two jobs are not each other's. Where keyrings are not to be had
    // (containers) nobody has any.
    // SAFETY: takes a number and a null pointer.
    unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_JOIN_SESSION_KEYRING, NO_NAME) };
    Ok(())
}

/// Executes a program with this environment (`NAME=value`, each with a zero behind it), `/dev/null` as its standard streams, and no other
/// descriptors than `link`, which it finds under `number`.
///
/// # Errors
/// Why it is not executed: it returns only then.
pub fn execute(
    program: &Path,
    argv: &[&str],
    env: &[u8],
    (link, number): (BorrowedFd<'_>, RawFd),
) -> io::Result<Infallible> {
    let program = CString::new(program.as_os_str().as_bytes())?;
    let argv = argv.iter().map(|word| CString::new(*word)).collect::<Result<Vec<_>, NulError>>()?;
    let env = env.strip_suffix(&[0]).into_iter().flat_map(|all| all.split(|byte| *byte == 0));
    let env = env.map(CString::new).collect::<Result<Vec<_>, NulError>>()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    for stream in 0..=2 {
        crate::process::put_at(null.as_fd(), stream)?;
    }
    drop(null);
    crate::process::close_on_exec_from(3)?;
    crate::process::put_at(link, number)?;
    Ok(nix::unistd::execve(&program, &argv, &env)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    /// In a child that was forked: the test's own process has more threads.
    fn executed(env: &[u8], script: &str) -> String {
        let (mut read, write) = std::io::pipe().unwrap();
        let other = File::open("/proc/self/stat").unwrap();
        // SAFETY: the child makes system calls and allocates, which this C library allows after a fork; it leaves by _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let argv = ["sh", "-c", script];
            let _ = become_user(None, crate::priority::own())
                .and_then(|()| execute(Path::new("/bin/sh"), &argv, env, (write.as_fd(), 5)));
            // SAFETY: as above.
            unsafe { libc::_exit(1) };
        }
        drop((write, other));
        let mut said = String::new();
        read.read_to_string(&mut said).unwrap();
        crate::wait::wait_for(pid);
        said
    }

    #[test]
    fn it_has_the_link_and_the_environment_and_nothing_else() {
        // It has one more while it looks: the directory.
        let script = "printf '%s,%s,' \"$WORD\" \"${HOME-none}\" >&5; ls /proc/self/fd >&5; pwd >&5; cat /proc/self/oom_score_adj >&5";
        assert_eq!(executed(b"WORD=a b\0PATH=/usr/bin:/bin\0", script), "a b,none,0\n1\n2\n3\n5\n/\n0\n");
    }
}
