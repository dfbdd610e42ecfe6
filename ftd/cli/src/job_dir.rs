//! The job's directory in node memory, and those that dead launchers left.

use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where job directories are when `FT_MEMORY_DIR` says nothing.
const MEMORY: &str = "/dev/shm";
/// A launcher has its lock within this time after it made its directory.
const YOUNG: Duration = Duration::from_secs(10);

/// Why there is no job directory.
#[derive(Debug, thiserror::Error)]
pub enum JobDirError {
    /// The place for it cannot be used.
    #[error("the memory directory {} (FT_MEMORY_DIR) cannot be used: {error}", path.display())]
    Memory {
        /// The place.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// It is not in memory.
    #[error(
        "the memory directory {} (FT_MEMORY_DIR) is on {kind}, not in memory: locks there may not lock, and checkpoints would wait for a disk; set FT_MEMORY_DIR to a directory on tmpfs, such as /dev/shm",
        path.display()
    )]
    NotMemory {
        /// The place.
        path: PathBuf,
        /// Name of the file system's kind.
        kind: String,
    },
    /// Something in it cannot be made.
    #[error("{}: {error}", path.display())]
    Inside {
        /// What.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

/// The directory of this job; removed when this is dropped.
#[derive(Debug)]
pub struct JobDir {
    path: PathBuf,
    word: String,
    /// Held from the moment on in which the directory is there.
    lock: Option<Flock<File>>,
}

impl JobDir {
    /// Chooses a place, after those of dead launchers were swept. Nothing is there before [`make`](Self::make): somebody
    /// who removes it if this process is killed can be started first.
    ///
    /// # Errors
    /// When the place is not in memory: what a lock there says is not to be trusted.
    pub fn choose() -> Result<JobDir, JobDirError> {
        let memory = match std::env::var_os("FT_MEMORY_DIR") {
            Some(directory) if !directory.is_empty() => PathBuf::from(directory),
            _ => PathBuf::from(MEMORY),
        };
        let memory = std::path::absolute(&memory).unwrap_or(memory);
        match crate::file_system::not_in_memory(&memory) {
            Ok(None) => {}
            Ok(Some(kind)) => return Err(JobDirError::NotMemory { path: memory, kind }),
            Err(error) => return Err(JobDirError::Memory { path: memory, error }),
        }
        sweep(&memory);
        Ok(Self::choose_in(&memory))
    }

    fn choose_in(memory: &Path) -> JobDir {
        // Not a secret: the directory is closed to others. It only has to differ.
        let random = std::hash::RandomState::new().build_hasher().finish() as u32;
        let word = format!("{}-{random:08x}", std::process::id());
        JobDir { path: memory.join(format!("ftd-{}-{word}", nix::unistd::getuid())), word, lock: None }
    }

    /// Makes the directory and holds its lock.
    ///
    /// # Errors
    /// Names the path.
    pub fn make(&mut self) -> Result<(), JobDirError> {
        DirBuilder::new().mode(0o700).create(&self.path).map_err(|error| {
            let path = self.path.parent().unwrap_or(&self.path).to_path_buf();
            JobDirError::Memory { path, error }
        })?;
        match lock(&self.path.join("lock"), true) {
            Ok(lock) => {
                self.lock = Some(lock);
                Ok(())
            }
            Err(error) => {
                let _ = fs::remove_dir_all(&self.path);
                Err(JobDirError::Inside { path: self.path.join("lock"), error })
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A word that no other job of this machine has.
    pub fn word(&self) -> &str {
        &self.word
    }

    /// The agent's socket.
    pub fn socket(&self) -> PathBuf {
        self.path.join(ft_wire::AGENT_SOCKET)
    }

    /// Listens on the agent's socket, on behalf of every agent that there will be.
    ///
    /// # Errors
    /// Also when the path is longer than the 107 bytes that a socket's may have.
    pub fn listen(&self) -> Result<UnixListener, JobDirError> {
        let path = self.socket();
        UnixListener::bind(&path).map_err(|error| JobDirError::Inside { path, error })
    }
}

impl Drop for JobDir {
    fn drop(&mut self) {
        if self.lock.is_none() {
            return;
        }
        // Shepherds that lose their launcher do the same, at the same time perhaps.
        for _ in 0..3 {
            match fs::remove_dir_all(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {}
                _ => return,
            }
        }
    }
}

fn lock(path: &Path, create: bool) -> io::Result<Flock<File>> {
    let file = OpenOptions::new().read(true).write(true).create(create).truncate(false).mode(0o600).open(path)?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno.into())
}

/// Removes what dead launchers of this user left. What cannot be removed stays.
fn sweep(memory: &Path) {
    let uid = nix::unistd::getuid();
    let prefix = format!("ftd-{uid}-");
    for entry in fs::read_dir(memory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(&prefix))
            && let Ok(metadata) = entry.metadata()
            && metadata.is_dir()
            && metadata.uid() == uid.as_raw()
            && is_abandoned(&entry.path(), rest, &metadata)
        {
            ft_sys::stray::end_strays(&entry.path());
            ft_sys::litter::Litter::of_job(&entry.path()).sweep();
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn is_abandoned(directory: &Path, rest: &str, metadata: &fs::Metadata) -> bool {
    let pid = rest.split('-').next().and_then(|pid| pid.parse().ok());
    let pid_lives = pid.is_some_and(|pid: i32| !ft_sys::death::is_past_user_code(pid).unwrap_or(false));
    let young = metadata.modified().ok().and_then(|at| at.elapsed().ok()).is_none_or(|age| age < YOUNG);
    if pid_lives && young {
        return false;
    }
    match lock(&directory.join("lock"), false) {
        Ok(_) => true,
        // Its owner died before it made its lock.
        Err(error) => error.kind() == io::ErrorKind::NotFound && !pid_lives,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_goes_with_its_job() {
        let memory = tempfile::tempdir().unwrap();
        let mut job = JobDir::choose_in(memory.path());
        assert!(!job.path().exists());
        job.make().unwrap();
        assert_eq!(fs::metadata(job.path()).unwrap().mode() & 0o777, 0o700);
        let _listener = job.listen().unwrap();
        fs::create_dir(job.path().join("ckpt")).unwrap();
        let path = job.path().to_path_buf();
        drop(job);
        assert!(!path.exists());
    }

    #[test]
    fn only_what_the_dead_left_is_swept() {
        let memory = tempfile::tempdir().unwrap();
        let uid = nix::unistd::getuid();
        let mut alive = JobDir::choose_in(memory.path());
        alive.make().unwrap();
        let mut made = Vec::new();
        // A pid that no process has, with and without a lock; another user's; something else.
        for (name, locked, gone) in [
            (format!("ftd-{uid}-4194305-aa"), true, true),
            (format!("ftd-{uid}-4194305-bb"), false, true),
            (format!("ftd-{}-4194305-aa", uid.as_raw() + 1), true, false),
            (format!("other-{uid}-4194305-aa"), true, false),
        ] {
            let path = memory.path().join(name);
            fs::create_dir(&path).unwrap();
            if locked {
                fs::write(path.join("lock"), "").unwrap();
            }
            made.push((path, gone));
        }
        sweep(memory.path());
        for (path, gone) in made {
            assert_eq!(!path.exists(), gone, "{}", path.display());
        }
        assert!(alive.path().exists());
    }

    #[test]
    fn a_place_that_does_not_exist_is_named() {
        let error = JobDir::choose_in(Path::new("/no/such")).make().unwrap_err().to_string();
        assert!(error.contains("/no/such (FT_MEMORY_DIR)"), "{error}");
    }
}
