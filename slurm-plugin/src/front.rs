//! The process that stands in srun's place, with the real srun as its child.

use crate::place;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
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

/// Executes the front in the place of this srun. Why that was not possible.
pub fn stand_in(options: &[OsString]) -> String {
    let Some(front) = place::front() else { return "--ft: the loader does not know where the plugin lies".to_string() };
    let own = std::fs::read_link("/proc/self/exe").and_then(|srun| Ok((srun, words()?)));
    let (srun, words) = match own {
        Ok(own) => own,
        Err(error) => return format!("--ft: srun's own command line cannot be read: {error}"),
    };
    let mut command = Command::new(&front);
    command.arg("--step").args(options).arg("--").arg(srun).args(words);
    unblock();
    failed(&front, &command.exec())
}

/// srun's words as they were typed, its own name left out.
fn words() -> io::Result<Vec<OsString>> {
    let text = std::fs::read("/proc/self/cmdline")?;
    let text = text.strip_suffix(b"\0").unwrap_or(&text);
    Ok(text.split(|byte| *byte == 0).skip(1).map(|word| OsStr::from_bytes(word).to_os_string()).collect())
}

/// Who is executed would have blocked what srun has.
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

fn failed(front: &Path, error: &io::Error) -> String {
    format!("--ft: {} cannot be executed: {error}: is ftd installed on this machine?", front.display())
}
