//! `$FT_CHECKPOINT_DIR`: a directory in node memory for codes that write their own restart files (DESIGN §7).
//!
//! A world must find there only whole files. A file is known to be whole when it was closed after writing while every
//! process of the world was alive and none had it open any more: then its inode, length and modification time are noted.
//! When a world has ended, every file that is not as noted is set aside. The notes are kept in a file beside the
//! directory, so that a restarted agent knows them too; what it cannot vouch for, it sets aside.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What identifies the bytes of a file without reading them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    bytes: u64,
    modified_ns: i128,
}

impl Stamp {
    fn of(path: &Path) -> io::Result<Option<Stamp>> {
        let meta = std::fs::symlink_metadata(path)?;
        Ok(meta.is_file().then(|| Stamp {
            inode: meta.ino(),
            bytes: meta.len(),
            modified_ns: i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec()),
        }))
    }
}

/// The watched directory.
#[derive(Debug)]
pub struct CheckpointDir {
    root: PathBuf,
    notes: PathBuf,
    aside: PathBuf,
    inotify: Inotify,
    watched: HashMap<WatchDescriptor, PathBuf>,
    whole: BTreeMap<PathBuf, Stamp>,
}

impl CheckpointDir {
    /// Creates or takes over `<job_dir>/ckpt`.
    ///
    /// # Errors
    /// When the directory cannot be made or watched.
    pub fn open(job_dir: &Path) -> io::Result<Self> {
        let root = job_dir.join("ckpt");
        match std::fs::create_dir(&root) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        let mut dir = CheckpointDir {
            notes: job_dir.join("ckpt.whole"),
            aside: job_dir.join("ckpt.aside"),
            inotify: Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?,
            watched: HashMap::new(),
            whole: BTreeMap::new(),
            root: root.clone(),
        };
        dir.whole = read_notes(&dir.notes);
        dir.watch_tree(&root)?;
        Ok(dir)
    }

    fn watch_tree(&mut self, dir: &Path) -> io::Result<()> {
        let flags = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_ONLYDIR;
        let descriptor = self.inotify.add_watch(dir, flags)?;
        self.watched.insert(descriptor, dir.to_path_buf());
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                self.watch_tree(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Takes in what happened since the last call. `healthy` is asked only when a file was closed after writing: are all
    /// processes of the world alive? `open_now` then says whether one of them still has the file open.
    pub fn absorb(&mut self, mut healthy: impl FnMut() -> bool, open_now: impl Fn(&Path) -> bool) {
        let mut changed = false;
        let mut moved: HashMap<u32, Option<Stamp>> = HashMap::new();
        while let Ok(events) = self.inotify.read_events() {
            for event in events {
                let (Some(dir), Some(name)) = (self.watched.get(&event.wd), event.name.as_ref()) else { continue };
                let path = dir.join(name);
                if event.mask.contains(AddWatchFlags::IN_ISDIR) {
                    if event.mask.intersects(AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO)
                        && let Err(error) = self.watch_tree(&path)
                    {
                        tracing::warn!(path = %path.display(), %error, "files below this directory will be set aside: it cannot be watched");
                    }
                    continue;
                }
                if event.mask.contains(AddWatchFlags::IN_CLOSE_WRITE) {
                    if healthy()
                        && !open_now(&path)
                        && let Ok(Some(stamp)) = Stamp::of(&path)
                    {
                        changed |= self.whole.insert(path, stamp) != Some(stamp);
                    }
                } else if event.mask.contains(AddWatchFlags::IN_MOVED_FROM) {
                    moved.insert(event.cookie, self.whole.remove(&path));
                    changed = true;
                } else if event.mask.contains(AddWatchFlags::IN_MOVED_TO) {
                    // A file moved within the directory stays what it was. One that was written where nobody watched, or
                    // renamed before its closing could be noted, is whole if nobody has it open.
                    let stamp = match moved.remove(&event.cookie).flatten() {
                        Some(stamp) => Some(stamp),
                        None if healthy() && !open_now(&path) => Stamp::of(&path).ok().flatten(),
                        None => None,
                    };
                    match stamp {
                        Some(stamp) => self.whole.insert(path, stamp),
                        None => self.whole.remove(&path),
                    };
                    changed = true;
                } else if event.mask.contains(AddWatchFlags::IN_DELETE) {
                    changed |= self.whole.remove(&path).is_some();
                }
            }
        }
        if changed && let Err(error) = write_notes(&self.notes, &self.whole) {
            tracing::warn!(%error, "the list of whole files could not be saved");
        }
    }

    /// The world has ended: moves every file that is not known to be whole out of the directory. Returns their names.
    pub fn set_aside(&mut self) -> Vec<PathBuf> {
        self.absorb(|| false, |_| true);
        let mut aside = Vec::new();
        let mut pending = vec![self.root.clone()];
        while let Some(dir) = pending.pop() {
            let Ok(entries) = std::fs::read_dir(&dir) else { continue };
            for path in entries.flatten().map(|e| e.path()) {
                let Ok(meta) = std::fs::symlink_metadata(&path) else { continue };
                if meta.is_dir() {
                    pending.push(path);
                } else if meta.is_file() && self.whole.get(&path).copied() != Stamp::of(&path).ok().flatten() {
                    aside.push(path);
                }
            }
        }
        let mut names = Vec::new();
        for path in aside {
            let name = path.strip_prefix(&self.root).unwrap_or(&path).to_path_buf();
            let target = self.aside.join(&name);
            let moved =
                target.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::rename(&path, &target));
            if let Err(error) = moved.or_else(|_| std::fs::remove_file(&path)) {
                tracing::error!(path = %path.display(), %error, "an unfinished file could not be set aside");
            }
            self.whole.remove(&path);
            names.push(name);
        }
        self.absorb(|| false, |_| true);
        names
    }
}

impl AsFd for CheckpointDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

/// The processes of the world that is released, as far as files are concerned.
#[derive(Debug, Default)]
struct Writers {
    alive: BTreeSet<i32>,
    /// Somebody of them died, or they are being killed: what is closed now may be torn.
    ending: bool,
}

impl Writers {
    /// Whether none of them is dying but by its own will.
    fn healthy(&self) -> bool {
        !self.ending
            && self.alive.iter().all(|pid| {
                let gone = !Path::new(&format!("/proc/{pid}")).exists();
                !gone && ft_sys::death::signal_of_dying(*pid).is_none()
            })
    }
}

/// The directory with a thread that takes in what happens there at once: the shorter the time between the closing of a
/// file and the look at its writers, the fewer whole files are set aside with the torn ones.
#[derive(Debug, Clone)]
pub struct Watch {
    dir: Arc<Mutex<CheckpointDir>>,
    writers: Arc<Mutex<Writers>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    /// Creates or takes over `<job_dir>/ckpt` and starts the thread.
    ///
    /// # Errors
    /// As [`CheckpointDir::open`], or when the thread cannot be started.
    pub fn start(job_dir: &Path) -> io::Result<Watch> {
        let dir = CheckpointDir::open(job_dir)?;
        let events = dir.as_fd().try_clone_to_owned()?;
        let watch = Watch { dir: Arc::new(Mutex::new(dir)), writers: Arc::default() };
        let theirs = watch.clone();
        std::thread::Builder::new().name("checkpoint-files".into()).spawn(move || {
            while let Ok(_) | Err(nix::errno::Errno::EINTR) =
                poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)
            {
                theirs.absorb();
            }
        })?;
        Ok(watch)
    }

    fn absorb(&self) {
        let mut dir = lock(&self.dir);
        dir.absorb(
            || lock(&self.writers).healthy(),
            |path| lock(&self.writers).alive.iter().any(|pid| open_for_writing(*pid, path)),
        );
    }

    /// A process of the released world runs.
    pub fn add_writer(&self, pid: i32) {
        lock(&self.writers).alive.insert(pid);
    }

    /// A process ended by its own will: what it closed is whole.
    pub fn ended_well(&self, pid: i32) {
        lock(&self.writers).alive.remove(&pid);
    }

    /// The world is over: what is closed from now on may be torn.
    pub fn world_ends(&self) {
        lock(&self.writers).ending = true;
    }

    /// Before the next world starts: sets aside what is not whole. Returns the files' names.
    pub fn next_world(&self) -> Vec<PathBuf> {
        let aside = lock(&self.dir).set_aside();
        *lock(&self.writers) = Writers::default();
        aside
    }
}

fn open_for_writing(pid: i32, path: &Path) -> bool {
    std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten().any(|entry| {
        std::fs::read_link(entry.path()).is_ok_and(|target| target == path)
            && std::fs::symlink_metadata(entry.path())
                .is_ok_and(|link| std::os::unix::fs::PermissionsExt::mode(&link.permissions()) & 0o200 != 0)
    })
}

fn read_notes(path: &Path) -> BTreeMap<PathBuf, Stamp> {
    let Ok(text) = std::fs::read(path) else { return BTreeMap::new() };
    text.split(|&b| b == 0)
        .filter_map(|line| {
            let mut parts = line.splitn(4, |&b| b == b' ');
            let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse::<i128>().ok();
            let (inode, bytes, modified_ns) = (number()?, number()?, number()?);
            let path = PathBuf::from(OsString::from_vec(parts.next()?.to_vec()));
            Some((path, Stamp { inode: inode as u64, bytes: bytes as u64, modified_ns }))
        })
        .collect()
}

fn write_notes(path: &Path, whole: &BTreeMap<PathBuf, Stamp>) -> io::Result<()> {
    let mut text = Vec::new();
    for (file, stamp) in whole {
        text.extend_from_slice(format!("{} {} {} ", stamp.inode, stamp.bytes, stamp.modified_ns).as_bytes());
        text.extend_from_slice(file.as_os_str().as_bytes());
        text.push(0);
    }
    let next = path.with_extension("next");
    std::fs::write(&next, text)?;
    std::fs::rename(&next, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn names(dir: &CheckpointDir) -> Vec<String> {
        let mut names: Vec<String> =
            std::fs::read_dir(&dir.root).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_open_for_writing_at_the_end_is_set_aside() {
        let job = tempfile::tempdir().unwrap();
        let mut dir = CheckpointDir::open(job.path()).unwrap();
        std::fs::write(dir.root.join("whole"), "abc").unwrap();
        let mut torn = std::fs::File::create(dir.root.join("torn")).unwrap();
        torn.write_all(b"ab").unwrap();
        dir.absorb(|| true, |_| false);
        drop(torn);
        assert_eq!(dir.set_aside(), vec![PathBuf::from("torn")]);
        assert_eq!(names(&dir), vec!["whole"]);
        assert!(dir.set_aside().is_empty());
    }

    #[test]
    fn a_whole_file_that_is_being_rewritten_is_set_aside() {
        let job = tempfile::tempdir().unwrap();
        let mut dir = CheckpointDir::open(job.path()).unwrap();
        std::fs::write(dir.root.join("restart"), "version one").unwrap();
        dir.absorb(|| true, |_| false);
        std::fs::write(dir.root.join("restart"), "ver").unwrap();
        assert_eq!(dir.set_aside(), vec![PathBuf::from("restart")]);
    }

    #[test]
    fn renaming_into_place_keeps_a_file_whole() {
        let job = tempfile::tempdir().unwrap();
        let mut dir = CheckpointDir::open(job.path()).unwrap();
        std::fs::write(dir.root.join("tmp"), "abc").unwrap();
        std::fs::rename(dir.root.join("tmp"), dir.root.join("final")).unwrap();
        std::fs::create_dir(dir.root.join("sub")).unwrap();
        dir.absorb(|| true, |_| false);
        std::fs::write(dir.root.join("sub/file"), "abc").unwrap();
        dir.absorb(|| true, |_| false);
        assert!(dir.set_aside().is_empty());
        assert_eq!(names(&dir), vec!["final", "sub"]);
    }

    #[test]
    fn the_next_agent_knows_the_whole_files() {
        let job = tempfile::tempdir().unwrap();
        let mut dir = CheckpointDir::open(job.path()).unwrap();
        std::fs::write(dir.root.join("whole"), "abc").unwrap();
        dir.absorb(|| true, |_| false);
        drop(dir);
        let mut dir = CheckpointDir::open(job.path()).unwrap();
        std::fs::write(dir.root.join("later"), "abc").unwrap();
        assert_eq!(dir.set_aside(), vec![PathBuf::from("later")]);
        assert_eq!(names(&dir), vec!["whole"]);
    }
}
