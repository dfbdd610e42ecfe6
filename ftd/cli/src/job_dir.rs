//! The job's directory in node memory, and those that dead launchers left.

use ft_sys::cgroup::Group;
use ft_sys::gate;
use ft_sys::job_dir::{self, Proven, SUFFIX, Statement};
use ft_sys::litter::{End, Litter};
use nix::fcntl::Flock;
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where job directories are when `FT_MEMORY_DIR` says nothing.
const MEMORY: &str = "/dev/shm";
/// Bytes that the path of a socket may have.
const MOST_SOCKET: usize = 107;
/// Digits of the greatest process id that Linux gives.
const LONGEST_PID: usize = 7;
/// How long the removal of a directory, and of a cgroup, is tried.
const REMOVING: Duration = Duration::from_secs(1);

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
    /// The socket's path would be longer than the kernel takes.
    #[error(
        "the memory directory {} (FT_MEMORY_DIR) has a name of {} bytes, and may have {most}: the path of a socket in it would be longer than the kernel takes; choose a shorter one, such as /dev/shm",
        path.display(),
        path.as_os_str().len()
    )]
    TooLong {
        /// The place.
        path: PathBuf,
        /// Bytes that its name may have.
        most: usize,
    },
    /// Not even the file that says whose the directory is can be written.
    #[error("the file-size limit (ulimit -f) leaves no room for some hundred bytes: raise it")]
    FileSizeLimit,
    /// Something in it cannot be made.
    #[error("{}: {error}", path.display())]
    Inside {
        /// What.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

impl JobDirError {
    /// Whether `FT_MEMORY_DIR` is set to what cannot be meant.
    pub fn is_told(&self) -> bool {
        use io::ErrorKind::{InvalidFilename, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
        let wrong = match self {
            Self::NotMemory { .. } | Self::TooLong { .. } => true,
            Self::Memory { error, .. } => matches!(
                error.kind(),
                InvalidFilename | NotADirectory | NotFound | PermissionDenied | ReadOnlyFilesystem
            ),
            Self::FileSizeLimit | Self::Inside { .. } => false,
        };
        wrong && std::env::var_os("FT_MEMORY_DIR").is_some_and(|value| !value.is_empty())
    }
}

/// The directory of this job; removed when this is dropped.
#[derive(Debug)]
pub struct JobDir {
    path: PathBuf,
    word: String,
    /// Held from the moment on in which the directory is there.
    lock: Option<Flock<File>>,
    /// The job's cgroup, where one can be had.
    group: Option<Group>,
}

/// Where the directories of jobs are.
pub fn memory() -> PathBuf {
    let memory = match std::env::var_os("FT_MEMORY_DIR") {
        Some(directory) if !directory.is_empty() => PathBuf::from(directory),
        _ => PathBuf::from(MEMORY),
    };
    std::path::absolute(&memory).unwrap_or(memory)
}

impl JobDir {
    /// Chooses a place, after those of dead launchers were swept. Nothing is there before [`make`](Self::make): somebody
    /// who removes it if this process is killed can be started first.
    ///
    /// # Errors
    /// When the place is not in memory: what a lock there says is not to be trusted.
    pub fn choose() -> Result<JobDir, JobDirError> {
        let memory = memory();
        match crate::file_system::not_in_memory(&memory) {
            Ok(None) => {}
            Ok(Some(kind)) => return Err(JobDirError::NotMemory { path: memory, kind }),
            Err(error) => return Err(JobDirError::Memory { path: memory, error }),
        }
        let chosen = Self::choose_in(&memory);
        // What fits today fits with any process id.
        let shorter = LONGEST_PID.saturating_sub(std::process::id().to_string().len());
        let own = chosen.socket().as_os_str().len() - memory.as_os_str().len() + shorter;
        if memory.as_os_str().len() + own > MOST_SOCKET {
            return Err(JobDirError::TooLong { path: memory, most: MOST_SOCKET - own });
        }
        sweep(&memory);
        Ok(chosen)
    }

    fn choose_in(memory: &Path) -> JobDir {
        // Not a secret: the directory is closed to others. But nobody ever makes another one of this name.
        let random = std::hash::RandomState::new().build_hasher().finish();
        let word = format!("{}-{random:016x}", std::process::id());
        JobDir { path: memory.join(format!("ftd-{}-{word}", nix::unistd::getuid())), word, lock: None, group: None }
    }

    /// Makes the directory; its lock is held from before that on.
    ///
    /// # Errors
    /// Names the path.
    pub fn make(&mut self) -> Result<(), JobDirError> {
        let path = self.path.clone();
        let memory = path.parent().unwrap_or(&path).to_path_buf();
        let lock = job_dir::announce(&path);
        let mut lock = lock.map_err(|error| not_stated(error, |error| JobDirError::Memory { path: memory, error }))?;
        gate::reach("launcher.announced", None);
        let made = self.make_stated(&mut lock);
        self.lock = Some(lock);
        // What there is of it goes when this is dropped.
        made.map_err(|error| not_stated(error, |error| JobDirError::Inside { path, error }))
    }

    /// Makes the directory and the job's cgroup; `lock` says so.
    fn make_stated(&mut self, lock: &mut File) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(&self.path)?;
        gate::reach("launcher.made-directory", None);
        job_dir::state_directory(&self.path, lock)?;
        gate::reach("launcher.stated-directory", None);
        let place = Group::place(&self.path.file_name().unwrap_or_default().to_string_lossy());
        let Some(place) = place else { return Ok(()) };
        job_dir::announce_group(lock, &place)?;
        gate::reach("launcher.announced-group", None);
        self.group = Group::make(&place);
        gate::reach("launcher.made-group", None);
        self.group.as_ref().map_or(Ok(()), |group| job_dir::state_group(lock, group))
    }

    /// Removes the directory and the job's cgroup; nobody of the job is left.
    pub fn remove(&mut self) {
        let Some(lock) = self.lock.take() else { return };
        if let Some(group) = self.group.take() {
            group.remove(REMOVING);
        }
        // Shepherds that lose their launcher do the same, at the same time perhaps.
        job_dir::remove(&self.path, REMOVING);
        drop(lock);
        if Proven::recognise(&self.path).is_some() {
            crate::say(&format!(
                "the job's directory {} cannot be removed with all that is in it: something is mounted there, or may not be removed by this user; the next ftrun tries again",
                self.path.display()
            ));
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
    /// Names the path.
    pub fn listen(&self) -> Result<UnixListener, JobDirError> {
        let path = self.socket();
        UnixListener::bind(&path).map_err(|error| JobDirError::Inside { path, error })
    }
}

impl Drop for JobDir {
    fn drop(&mut self) {
        self.remove();
    }
}

/// The error of a statement that could not be written.
fn not_stated(error: io::Error, otherwise: impl FnOnce(io::Error) -> JobDirError) -> JobDirError {
    if error.kind() == io::ErrorKind::FileTooLarge { JobDirError::FileSizeLimit } else { otherwise(error) }
}

/// Removes what dead launchers of this user left. What is not proven to be theirs, and what cannot be removed, stays.
fn sweep(memory: &Path) {
    let prefix = format!("ftd-{}-", nix::unistd::getuid());
    let entries = fs::read_dir(memory).into_iter().flatten().flatten();
    let names =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| name.starts_with(&prefix));
    // Of the directory or of its statement, or of both.
    let directories: BTreeSet<PathBuf> =
        names.map(|name| memory.join(name.strip_suffix(SUFFIX).unwrap_or(&name))).collect();
    for path in directories {
        if let Some((statement, _held)) = Statement::take(&path) {
            if let Ok(proven) = Proven::stated(statement) {
                ft_sys::stray::end_strays(&proven);
                if let Some(sentence) = Litter::of_job(&path).sweep(End::Killed).sentence() {
                    crate::say(&format!("of a job that was killed with all of ftd: {sentence}"));
                }
                proven.group().inspect(|group| group.remove(REMOVING));
            }
            job_dir::remove(&path, REMOVING);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_directory_goes_with_its_job() {
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut job = JobDir::choose_in(memory.path());
        assert!(!job.path().exists());
        job.make().unwrap();
        assert_eq!(fs::metadata(job.path()).unwrap().mode() & 0o777, 0o700);
        let _listener = job.listen().unwrap();
        fs::create_dir(job.path().join("ckpt")).unwrap();
        let path = job.path().to_path_buf();
        drop(job);
        assert_eq!(fs::read_dir(memory.path()).unwrap().count(), 0, "{}", path.display());
    }

    #[test]
    fn only_what_the_dead_left_is_swept() {
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        let uid = nix::unistd::getuid();
        let mut alive = JobDir::choose_in(memory.path());
        alive.make().unwrap();
        let mut dead = JobDir::choose_in(memory.path());
        dead.make().unwrap();
        dead.lock = None;
        let mut kept = vec![alive.path().to_path_buf()];
        // A pid that no process has, with and without a lock, and what looks like a job's but is a copy of one.
        for (name, lock) in [("aa", Some("")), ("bb", None), ("cc", Some("a job of ftd\n"))] {
            let path = memory.path().join(format!("ftd-{uid}-4194305-{name}"));
            fs::create_dir(&path).unwrap();
            lock.inspect(|text| fs::write(job_dir::statement_of(&path), text).unwrap());
            kept.push(path);
        }
        let copy = memory.path().join(format!("ftd-{uid}-4194305-dd"));
        fs::create_dir(&copy).unwrap();
        fs::copy(job_dir::statement_of(dead.path()), job_dir::statement_of(&copy)).unwrap();
        kept.push(copy);
        sweep(memory.path());
        assert!(!dead.path().exists() && !job_dir::statement_of(dead.path()).exists());
        kept.push(job_dir::statement_of(alive.path()));
        for path in kept {
            assert!(path.exists(), "{}", path.display());
        }
    }

    #[test]
    fn a_place_that_does_not_exist_is_named() {
        let error = JobDir::choose_in(Path::new("/no/such")).make().unwrap_err().to_string();
        assert!(error.contains("/no/such (FT_MEMORY_DIR)"), "{error}");
    }
}
