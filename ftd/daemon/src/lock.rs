//! That there is one ftd and not two: a lock, which the kernel takes back from whoever dies. What stands in a file, or which socket is
//! there, proves nothing.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Why the lock is not had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody else has it.
    #[error("another ftd, {}, already runs here: it holds {}", Process(*.0), .1.display())]
    Taken(i32, PathBuf),
    /// The file cannot be used.
    #[error("{} cannot be locked: {error}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

struct Process(i32);

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            // It is in a name space that this one does not see.
            ..=0 => write!(f, "which cannot be seen from here"),
            pid => write!(f, "pid {pid}"),
        }
    }
}

/// A lock that this process holds until it ends.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Lock {
    /// Takes the lock of a file, which is made if it is not there.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn take(path: &Path) -> Result<Lock, LockError> {
        let failed = |error: io::Error| LockError::Io { path: path.into(), error };
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let file = options.custom_flags(libc::O_NOFOLLOW).open(path).map_err(failed)?;
            // Of records, not of the whole file: the kernel says who holds such a one. It lasts until this process closes the file, in
            // whichever descriptor: who holds one does not ask for it by [`noted`] or [`is_taken`].
            match fcntl(&file, FcntlArg::F_SETLK(&record())) {
                Ok(_) => {}
                Err(Errno::EAGAIN | Errno::EACCES) => return Err(LockError::Taken(holder(&file), path.into())),
                Err(errno) => return Err(failed(errno.into())),
            }
            // Somebody may have taken the file away meanwhile: then this lock keeps nobody out.
            let (mine, there) = (file.metadata().map_err(failed)?, std::fs::symlink_metadata(path));
            if there.is_ok_and(|there| (there.dev(), there.ino()) == (mine.dev(), mine.ino())) {
                return Ok(Lock { file });
            }
        }
    }
}

impl Lock {
    /// Writes this into the file, for who looks.
    ///
    /// # Errors
    /// What the system says.
    pub fn note(&self, text: &str) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.write_all_at(text.as_bytes(), 0)
    }
}

/// What the file says, if somebody else holds its lock.
pub fn noted(path: &Path) -> Option<String> {
    let mut file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path).ok()?;
    let mut text = String::new();
    (is_held(&file)? && file.read_to_string(&mut text).is_ok()).then_some(text)
}

/// Whether somebody else holds the lock of a file.
pub fn is_taken(path: &Path) -> bool {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path);
    file.ok().and_then(|file| is_held(&file)).unwrap_or(false)
}

/// Whether somebody else holds the lock of this file, if that can be known.
fn is_held(file: &File) -> Option<bool> {
    let mut asked = record();
    fcntl(file, FcntlArg::F_GETLK(&mut asked)).ok()?;
    Some(asked.l_type != libc::F_UNLCK as i16)
}

fn record() -> libc::flock {
    libc::flock { l_type: libc::F_WRLCK as i16, l_whence: libc::SEEK_SET as i16, l_start: 0, l_len: 0, l_pid: 0 }
}

/// Who holds it; 0 for nobody any more, and for who is in another name space.
fn holder(file: &File) -> i32 {
    let mut asked = record();
    match fcntl(file, FcntlArg::F_GETLK(&mut asked)) {
        Ok(_) if asked.l_type != libc::F_UNLCK as i16 => asked.l_pid,
        _ => 0,
    }
}
