//! The process that hosts libpmix.

use std::ffi::{c_int, c_void};
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Takes over the unix socket that this process inherited as descriptor `fd`, and arms SIGKILL for the parent's death.
///
/// # Errors
/// It was asked for before; the descriptor is not an open socket, or the signal cannot be armed.
pub fn take_inherited_socket(fd: RawFd) -> std::io::Result<UnixStream> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Err(std::io::Error::new(
            std::io::ErrorKind::InvalidInput,
            format!("descriptor {fd} is asked for once more"),
        ));
    }
    // SAFETY: plain system calls; the numbers are checked by the kernel.
    unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let mut kind: c_int = 0;
        let mut length = size_of::<c_int>() as libc::socklen_t;
        let at: *mut c_void = ptr::from_mut(&mut kind).cast();
        if fd == 1 || fd == 2 || libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_DOMAIN, at, &mut length) != 0 {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, format!("descriptor {fd} is no socket")));
        }
        if kind != libc::AF_UNIX {
            return Err(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                format!("descriptor {fd} is no unix socket"),
            ));
        }
        if libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    // SAFETY: an open socket that the parent left for this process, which takes no more than one, once.
    Ok(unsafe { UnixStream::from_raw_fd(fd) })
}

/// Ends the process at once: libpmix's own exit handlers can deadlock after a client's death.
pub fn leave(code: i32) -> ! {
    // SAFETY: ends the process without running anything.
    unsafe { libc::_exit(code) }
}
