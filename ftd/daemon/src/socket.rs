//! The control socket's place in the file system.

use crate::lock::{Lock, LockError};
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another one is there.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Somebody who is no ftd, or whose lock file was taken away, listens there.
    #[error("control.socket: process {pid} already listens on {} and holds no lock on it: it is left alone", path.display())]
    Lives {
        /// Which socket.
        path: PathBuf,
        /// Who.
        pid: i32,
    },
    /// There is something else.
    #[error("control.socket: {} is there and is no socket: it is left alone", .0.display())]
    Other(PathBuf),
    /// It cannot be made.
    #[error("control.socket: {} cannot be made: {error}", path.display())]
    Io {
        /// What.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

/// The control socket. It is taken away when this is dropped.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    inode: (u64, u64),
    // Kept as long as the socket is there.
    _lock: Lock,
}

impl Socket {
    /// Makes it, in the place of one that a dead ftd has left.
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn make(path: &Path) -> Result<(Socket, UnixListener), SocketError> {
        let failed = |what: &Path| {
            let path = what.to_path_buf();
            move |error| SocketError::Io { path, error }
        };
        let directory = path.parent().unwrap_or(Path::new("/"));
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(directory);
        made.map_err(failed(directory))?;
        let lock = Lock::take(&beside(path, "lock"))?;
        match std::fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => return Err(SocketError::Other(path.into())),
            // Whoever made it had the lock and is dead; unless it was somebody else, who then answers.
            Ok(_) => {
                if let Ok(stream) = UnixStream::connect(path) {
                    let pid = ft_sys::peer::Peer::of(&stream).map_or(0, |peer| peer.pid);
                    return Err(SocketError::Lives { path: path.into(), pid });
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(path)(error)),
        }
        // Renamed into its place: whoever dials finds a socket there at any time.
        let draft = beside(path, "new");
        match std::fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&draft)(error)),
            _ => {}
        }
        let listener = UnixListener::bind(&draft).map_err(failed(&draft))?;
        let inode = std::fs::symlink_metadata(&draft).map(|made| (made.dev(), made.ino())).map_err(failed(&draft))?;
        // Who may what, the credentials of who dials decide.
        std::fs::set_permissions(&draft, Permissions::from_mode(0o666)).map_err(failed(&draft))?;
        std::fs::rename(&draft, path).map_err(failed(path))?;
        listener.set_nonblocking(true).map_err(failed(path))?;
        Ok((Socket { path: path.into(), inode, _lock: lock }, listener))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let mine = std::fs::symlink_metadata(&self.path).is_ok_and(|there| (there.dev(), there.ino()) == self.inode);
        if mine {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The path with another ending behind it.
pub fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(".");
    name.push(ending);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_dead_ftds_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/ftd.sock");
        let (socket, listener) = Socket::make(&path).unwrap();
        drop(socket);
        assert!(!path.exists());
        drop(listener);

        std::fs::write(&path, "mine").unwrap();
        assert!(matches!(Socket::make(&path).unwrap_err(), SocketError::Other(_)));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
        std::fs::remove_file(&path).unwrap();

        let stranger = UnixListener::bind(&path).unwrap();
        let error = Socket::make(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("process {} already listens", std::process::id())), "{error}");
        drop(stranger);
        // Nobody listens there any more.
        let (socket, _listener) = Socket::make(&path).unwrap();
        assert!(UnixStream::connect(&path).is_ok());
        // Somebody else's by now.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "mine").unwrap();
        drop(socket);
        assert!(path.exists());
    }
}
