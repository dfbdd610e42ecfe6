//! Starting one of ftd's own programs: it inherits exactly the descriptors that it is told about, and outlives its parent
//! for as long as it takes to clean up.

use std::ffi::{CString, NulError, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// Signals that are for the ranks and reach them through ftrun. Batch systems, `systemctl stop` and people send them to all
/// processes of a job: a helper that died of one would take the ranks' time to save, or their checkpoints, with it.
const FOR_THE_RANKS: [i32; 9] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGXCPU,
    libc::SIGTSTP,
];

/// A program of ftd's to be started.
#[derive(Debug)]
pub struct Helper<'a> {
    /// The program's file.
    pub program: &'a Path,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Variables besides those of this process.
    pub environment: Vec<(&'static str, String)>,
    /// Descriptors that it finds under their present numbers.
    pub descriptors: &'a [BorrowedFd<'a>],
    /// Standard output and standard error; those of this process without.
    pub output: Option<(OwnedFd, OwnedFd)>,
    /// A session of its own, or only a process group. The kernel shares processors out by session, and a yield gives way
    /// within one only: what must not stand behind spinning ranks needs its own, and ranks must share theirs.
    pub own_session: bool,
}

impl Helper<'_> {
    /// Starts it with a short time slice, signals that are for the ranks ignored and all others as they are by default, an
    /// empty signal mask and `/dev/null` as standard input. What it starts itself without [`crate::spawn::Spawn`] ignores
    /// them as well. Returns its pid; the caller waits for it.
    ///
    /// # Errors
    /// What `fork` or `exec` said.
    pub fn start(self) -> io::Result<i32> {
        let program = CString::new(self.program.as_os_str().as_bytes())?;
        let arguments = self.arguments.into_iter().map(|argument| CString::new(argument.into_vec()));
        let argv = std::iter::once(Ok(program.clone())).chain(arguments).collect::<Result<Vec<_>, NulError>>()?;
        let env = environment(&self.environment)?;
        let (argv, env) = (crate::spawn::pointers(&argv), crate::spawn::pointers(&env));
        let null = File::open("/dev/null")?;
        let output = self.output.as_ref().map(|(out, err)| (out.as_raw_fd(), err.as_raw_fd()));
        let descriptors: Vec<RawFd> = self.descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let mut failed = None;
        let child = || {
            let prepared = in_child(self.own_session, null.as_raw_fd(), output, &descriptors);
            failed = Some(prepared.err().unwrap_or_else(|| {
                // SAFETY: null-terminated lists of strings that live above.
                unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr()) };
                io::Error::last_os_error()
            }));
            127
        };
        // SAFETY: only system calls that are safe there are made, nothing is allocated or locked, and no handler is left when
        // signals are unblocked.
        let pid = unsafe { crate::vfork::vfork(child) }?;
        match failed {
            None => Ok(pid),
            Some(error) => {
                crate::wait::wait_for(pid);
                Err(error)
            }
        }
    }
}

/// This process's environment with these variables.
fn environment(own: &[(&'static str, String)]) -> io::Result<Vec<CString>> {
    let others = std::env::vars_os().filter(|(name, _)| own.iter().all(|(other, _)| name != other));
    let own = own.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let entry = |(name, value): (OsString, OsString)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat());
    Ok(others.chain(own).map(entry).collect::<Result<Vec<_>, NulError>>()?)
}

/// Runs before `exec`.
fn in_child(own_session: bool, stdin: RawFd, output: Option<(RawFd, RawFd)>, descriptors: &[RawFd]) -> io::Result<()> {
    if own_session {
        nix::unistd::setsid()?;
    } else {
        nix::unistd::setpgid(nix::unistd::Pid::from_raw(0), nix::unistd::Pid::from_raw(0))?;
    }
    crate::slice::shorten();
    crate::spawn::default_signals();
    FOR_THE_RANKS.into_iter().for_each(crate::process::ignore_signal);
    let streams = output.map(|(out, err)| [(out, 1), (err, 2)]).into_iter().flatten();
    for (fd, number) in std::iter::once((stdin, 0)).chain(streams) {
        // SAFETY: these are the standard streams, and the parent holds the other open.
        if unsafe { libc::dup2(fd, number) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    crate::process::close_on_exec_from(3)?;
    for fd in descriptors {
        // SAFETY: changes a flag of a descriptor that the parent holds open.
        if unsafe { libc::fcntl(*fd, libc::F_SETFD, 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;

    #[test]
    fn a_helper_has_its_descriptors_and_no_others() {
        let (mut read, write) = io::pipe().unwrap();
        let kept = crate::memory::create_memfd("kept", 0).unwrap();
        let stray = crate::memory::create_memfd("stray", 0).unwrap();
        crate::process::pass_through_exec(stray.as_fd()).unwrap();
        let helper = Helper {
            program: Path::new("/bin/sh"),
            arguments: vec!["-c".into(), "readlink /proc/$$/fd/*; echo $PROBE".into()],
            environment: vec![("PROBE", "probe".into())],
            descriptors: &[kept.as_fd()],
            output: Some((write.try_clone().unwrap().into(), write.into())),
            own_session: true,
        };
        let pid = helper.start().unwrap();
        let mut text = String::new();
        read.read_to_string(&mut text).unwrap();
        nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None).unwrap();
        assert!(text.contains("/memfd:kept") && text.contains("/dev/null") && text.ends_with("probe\n"), "{text}");
        assert!(!text.contains("/memfd:stray"), "{text}");
    }

    #[test]
    fn a_missing_program_is_an_error_of_the_start() {
        let helper = Helper {
            program: Path::new("/no/such/program"),
            arguments: Vec::new(),
            environment: Vec::new(),
            descriptors: &[],
            output: None,
            own_session: false,
        };
        assert_eq!(helper.start().unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
