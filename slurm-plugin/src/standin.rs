//! Another process in this one's place.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What srun waits for, and has blocked since before it read its options (22.05: `sig_array` and `pty_sigarray`).
const BLOCKED: [libc::c_int; 10] = [
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGCONT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGALRM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGPIPE,
    libc::SIGWINCH,
];

/// The file of the program that this is.
///
/// # Errors
/// Without /proc.
pub fn own_file() -> io::Result<PathBuf> {
    std::fs::read_link("/proc/self/exe")
}

/// Executes a program in the place of this one, with no signal blocked. Why that was not possible.
pub fn execute(program: &Path, words: impl IntoIterator<Item = OsString>) -> String {
    unblock();
    let error = Command::new(program).args(words).exec();
    format!("{} cannot be executed: {error}", program.display())
}

fn unblock() {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is made before it is used, and the numbers are signals'.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in BLOCKED {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), std::ptr::null_mut());
    }
}
