//! Processes of a job that no parent of ftd's is left to find: they have left their session, their shepherd was killed and
//! so was the launcher, and the kernel gave them to somebody else. What they still have is the environment of their rank.

use crate::death::is_past_user_code;
use crate::process::{everybody, pidfd_open, pidfd_send_signal};
use ft_wire::AGENT_SOCKET;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long they are looked for.
const PATIENCE: Duration = Duration::from_secs(2);
/// Looks in a row that must find nothing: one that forks and ends can be missed by a single one.
const QUIET: u32 = 3;

/// Kills all processes of this user whose environment says that they belong to the job with this directory
/// (`FT_SOCKET=<job_dir>/agent.sock`), until none is found. To be called only when the launcher of that job is dead.
pub fn end_strays(job_dir: &Path) {
    let mut entry = b"FT_SOCKET=".to_vec();
    entry.extend_from_slice(job_dir.join(AGENT_SOCKET).as_os_str().as_bytes());
    let until = Instant::now() + PATIENCE;
    let mut quiet = 0;
    while quiet < QUIET && Instant::now() < until {
        quiet = if end_found(&entry) { 0 } else { quiet + 1 };
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// One look; whether it found any.
fn end_found(entry: &[u8]) -> bool {
    let mut found = false;
    let own = std::process::id() as i32;
    for pid in everybody().into_iter().filter(|pid| *pid != own) {
        // First the descriptor: what is read after that is about the same process, or about none.
        let Ok(pidfd) = pidfd_open(pid) else { continue };
        let Ok(environment) = std::fs::read(format!("/proc/{pid}/environ")) else { continue };
        if environment.split(|byte| *byte == 0).any(|variable| variable == entry)
            && !is_past_user_code(pid).unwrap_or(true)
            && pidfd_send_signal(pidfd.as_fd(), libc::SIGKILL).is_ok()
        {
            found = true;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    #[test]
    fn processes_of_that_job_end_and_others_stay() {
        let sleeper = |directory: &str| {
            Command::new("sleep").arg("60").env("FT_SOCKET", format!("{directory}/{AGENT_SOCKET}")).spawn().unwrap()
        };
        let directory = format!("/nonexistent/ftd-stray-{}", std::process::id());
        let mut mine = [sleeper(&directory), sleeper(&directory)];
        let mut other = sleeper(&format!("{directory}0"));
        end_strays(Path::new(&directory));
        for child in &mut mine {
            assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        }
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
