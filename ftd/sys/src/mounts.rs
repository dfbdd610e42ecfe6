//! What another process sees mounted.

use std::fs::{File, metadata};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::fs::MetadataExt;

/// `NS_GET_USERNS`: the user name space to which a name space belongs.
const OWNER: libc::c_ulong = 0xb701;

/// The mount name space of a process. Whoever asks sees to it that the process was there all the time.
///
/// # Errors
/// It has ended, or is none of this user's.
pub fn of(pid: i32) -> io::Result<OwnedFd> {
    Ok(File::open(format!("/proc/{pid}/ns/mnt"))?.into())
}

/// Whether it belongs to this process's own user name space. Who makes a user name space is root there, and decides what all paths in its
/// mount name space lead to: nothing of root's outside may be done in one.
///
/// # Errors
/// What the system said.
pub fn are_of_this_machine(mounts: &OwnedFd) -> io::Result<bool> {
    // SAFETY: takes no argument, and returns a descriptor or -1.
    let owner = unsafe { libc::ioctl(mounts.as_raw_fd(), OWNER) };
    if owner < 0 {
        let error = io::Error::last_os_error();
        // The owner is one that this process may not see: not its own.
        return if error.raw_os_error() == Some(libc::EPERM) { Ok(false) } else { Err(error) };
    }
    // SAFETY: the kernel has just made it for this process.
    let owner = unsafe { File::from_raw_fd(owner) }.metadata()?;
    let own = metadata("/proc/self/ns/user")?;
    Ok((owner.st_dev(), owner.st_ino()) == (own.st_dev(), own.st_ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn those_of_a_user_name_space_of_somebodys_own_are_not_this_machines() {
        assert!(are_of_this_machine(&of(std::process::id() as i32).unwrap()).unwrap());
        let script = ["--user", "--map-root-user", "--mount", "sh", "-c", "echo ready; read end"];
        let mut child =
            Command::new("unshare").args(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "ready\n", "user name spaces are not to be had here");
        assert!(!are_of_this_machine(&of(child.id() as i32).unwrap()).unwrap());
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
