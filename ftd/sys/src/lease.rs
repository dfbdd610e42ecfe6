//! Who has a file open for writing, asked of the kernel itself.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Whether nobody on this machine has the file open for writing, or mapped so, at this instant. Says it by a lease for
/// reading, which the kernel gives only then, and which is given back at once: who opens the file for writing meanwhile
/// waits for these microseconds. `file` is open for reading only, and its owner is this process's user. SIGIO must be
/// ignored: it is how the kernel asks for a lease back. `meanwhile` is done before it is given back.
///
/// # Errors
/// What the kernel says where it gives no leases.
pub fn nobody_writes(file: BorrowedFd<'_>, meanwhile: impl FnOnce()) -> io::Result<bool> {
    match set(file, libc::F_RDLCK) {
        Ok(()) => {
            meanwhile();
            set(file, libc::F_UNLCK).map(|()| true)
        }
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(false),
        Err(error) => Err(error),
    }
}

fn set(file: BorrowedFd<'_>, lease: libc::c_int) -> io::Result<()> {
    // SAFETY: changes a lease of a descriptor that is borrowed for the call; no memory is passed.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, lease) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsFd;

    #[test]
    fn writers_are_seen_however_they_hold_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, [0; 4096]).unwrap();
        let free = || nobody_writes(File::open(&path).unwrap().as_fd(), || ()).unwrap();
        // What another test starts has, between `fork` and `exec`, all that this process had open.
        let soon_free = || {
            (0..20_000).any(|_| {
                free() || {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    false
                }
            })
        };
        assert!(soon_free());
        let reader = File::open(&path).unwrap();
        assert!(soon_free());
        let writer = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        assert!(!free());
        let duplicate = writer.try_clone().unwrap();
        drop(writer);
        assert!(!free());
        let map = crate::memory::SharedMap::map(&duplicate, 0, 4096).unwrap();
        drop(duplicate);
        assert!(!free(), "a shared mapping writes, too");
        drop(map);
        assert!(soon_free());
        drop(reader);
    }
}
