//! Who is at the other end of a unix socket, as the kernel tells it: what the peer says of itself counts for nothing, and in
//! a name space of processes of its own it does not know better.

use crate::individual::Held;
use crate::process::pidfd_open;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

/// `SO_PEERPIDFD` (Linux 6.5), where libc does not know it.
const SO_PEERPIDFD: libc::c_int = 77;

/// The process that connected, or made a socket pair.
#[derive(Debug)]
pub struct Peer {
    /// Its user.
    pub uid: u32,
    /// Its number in this process's name space; 0 when it has none there.
    pub pid: i32,
    /// Held, if it lives.
    pub held: Option<Held>,
}

impl Peer {
    /// Of a connected socket.
    ///
    /// # Errors
    /// As `getsockopt`.
    pub fn of(socket: impl AsFd) -> io::Result<Peer> {
        let socket = socket.as_fd().as_raw_fd();
        let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
        // SAFETY: a ucred is what this option writes.
        unsafe { option(socket, libc::SO_PEERCRED, &mut who)? };
        let mut number: RawFd = -1;
        // SAFETY: an integer is what this option writes.
        let descriptor = match unsafe { option(socket, SO_PEERPIDFD, &mut number) } {
            // SAFETY: the kernel has just made this descriptor for us.
            Ok(()) => Some(unsafe { OwnedFd::from_raw_fd(number) }),
            // Before 6.5. The number is as old as the connection; who is asked where it stands answers for it.
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => pidfd_open(who.pid).ok(),
            Err(_) => None,
        };
        let held = descriptor.and_then(|descriptor| Held::from_descriptor(who.pid, descriptor));
        Ok(Peer { uid: who.uid, pid: who.pid, held })
    }
}

/// # Safety
/// `T` is what the option writes.
unsafe fn option<T>(socket: RawFd, name: libc::c_int, value: &mut T) -> io::Result<()> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the buffer is as long as is said.
    let result =
        unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, name, std::ptr::from_mut(value).cast(), &raw mut length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::{Command, Stdio};

    #[test]
    fn who_connected_is_known() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let _own = UnixStream::connect(&path).unwrap();
        let peer = Peer::of(listener.accept().unwrap().0).unwrap();
        assert_eq!((peer.pid, peer.uid), (std::process::id() as i32, nix::unistd::getuid().as_raw()));
        assert!(peer.held.is_some_and(|held| held.is_below(nix::unistd::getppid().as_raw())));
        let script = format!("import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect('{}')", path.display());
        let mut child =
            Command::new("python3").args(["-c", &format!("{script}; sys.stdin.read()")]).stdin(Stdio::piped()).spawn();
        let child = child.as_mut().unwrap();
        let peer = Peer::of(listener.accept().unwrap().0).unwrap();
        let held = peer.held.unwrap();
        assert!(
            peer.pid == child.id() as i32 && held.is_below(std::process::id() as i32) && !held.is_below(peer.pid + 1)
        );
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!held.lives());
    }
}
