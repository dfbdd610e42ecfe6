//! The directory of a job, told from any other: its launcher states in it, in the file whose lock it holds, that it made this
//! very directory. Who removes it asks that statement first, and removes nothing else.

use crate::cgroup::Group;
use nix::fcntl::{Flock, FlockArg};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The file in a job's directory that its launcher holds a lock on for as long as it lives.
pub const LOCK: &str = "lock";
/// First line of the statement.
const TITLE: &[u8] = b"the directory of a job of ftd";
/// Longest statement that is read.
const LONGEST: u64 = 16 << 10;
/// Pause between attempts to remove a directory in which somebody still makes files.
const AGAIN: Duration = Duration::from_millis(5);

/// States in `lock`, a file in the directory `path`, that its owner made this directory.
///
/// # Errors
/// When the directory is not there, or the file cannot be written.
pub fn state(path: &Path, lock: &mut File) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    let name = path.file_name().unwrap_or_default().as_bytes();
    let place = format!("{}:{}", metadata.dev(), metadata.ino());
    lock.write_all(&[TITLE, b"\n", name, b"\n", place.as_bytes(), b"\n", system().as_bytes(), b"\n"].concat())
}

/// Adds the job's cgroup to the statement.
///
/// # Errors
/// When the file cannot be written.
pub fn state_group(lock: &mut File, group: &Group) -> io::Result<()> {
    let inode = group.inode().to_string();
    lock.write_all(&[inode.as_bytes(), b" ", group.path().as_os_str().as_bytes(), b"\n"].concat())
}

/// This run of the machine and this name space of processes: elsewhere the numbers of processes mean others.
fn system() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let space = fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino());
    format!("{} {space}", boot.trim())
}

/// A directory that is proven to be a job's.
#[derive(Debug)]
pub struct Proven {
    path: PathBuf,
    /// Names the directory, wherever it has been moved since.
    directory: File,
    device: u64,
    inode: u64,
    system: String,
    group: Option<(u64, PathBuf)>,
}

impl Proven {
    /// Looks whether this is a job's directory, of this user.
    pub fn recognise(path: &Path) -> Option<Proven> {
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let directory = File::options().read(true).custom_flags(flags).open(path).ok()?;
        let metadata = directory.metadata().ok()?;
        let mut proven = Proven {
            path: path.to_path_buf(),
            directory,
            device: metadata.dev(),
            inode: metadata.ino(),
            system: String::new(),
            group: None,
        };
        let own = metadata.uid() == nix::unistd::Uid::effective().as_raw();
        (own && proven.read_statement()?).then_some(proven)
    }

    fn read_statement(&mut self) -> Option<bool> {
        let lock =
            File::options().read(true).custom_flags(libc::O_NOFOLLOW).open(self.inside(OsStr::new(LOCK))).ok()?;
        let mut text = Vec::new();
        (lock.metadata().ok()?.is_file()).then_some(())?;
        lock.take(LONGEST).read_to_end(&mut text).ok()?;
        let mut lines = text.split(|byte| *byte == b'\n');
        let place = format!("{}:{}", self.device, self.inode);
        let ours = lines.next()? == TITLE
            && lines.next()? == self.path.file_name()?.as_bytes()
            && lines.next()? == place.as_bytes();
        self.system = String::from_utf8_lossy(lines.next()?).into_owned();
        // The path may hold newlines.
        let group = lines.collect::<Vec<_>>().join(&b'\n');
        let group = group.strip_suffix(b"\n").unwrap_or(&group);
        if let Some(blank) = group.iter().position(|byte| *byte == b' ') {
            let inode = std::str::from_utf8(&group[..blank]).ok().and_then(|text| text.parse().ok());
            self.group = inode.map(|inode| (inode, PathBuf::from(OsString::from_vec(group[blank + 1..].to_vec()))));
        }
        Some(ours)
    }

    /// Where it was found.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it was made in this run of the machine, where processes have the same numbers.
    pub fn is_of_this_system(&self) -> bool {
        self.system == system()
    }

    /// The job's cgroup, if it has one and it is there.
    pub fn group(&self) -> Option<Group> {
        let (inode, path) = self.group.as_ref()?;
        Group::known(path, *inode)
    }

    /// Waits until the launcher holds its lock no more, and keeps others from cleaning up who were not here; those that are
    /// clean up together. `None` while the launcher lives.
    pub fn wait_abandoned(&self, patience: Duration) -> Option<Flock<File>> {
        let until = Instant::now() + patience;
        loop {
            let lock =
                File::options().read(true).custom_flags(libc::O_NOFOLLOW).open(self.inside(OsStr::new(LOCK))).ok()?;
            match Flock::lock(lock, FlockArg::LockSharedNonblock) {
                Ok(lock) => return Some(lock),
                Err(_) if Instant::now() >= until => return None,
                Err(_) => std::thread::sleep(AGAIN),
            }
        }
    }

    /// A path below the directory itself, whatever stands at its old name.
    fn inside(&self, name: &OsStr) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.directory.as_raw_fd())).join(name)
    }

    /// Removes it with all that is in it, in which others may still be making files for a while; several may do so at once.
    /// The statement goes last: what one that is killed meanwhile has left can be recognised still.
    pub fn remove(&self, patience: Duration) {
        let until = Instant::now() + patience;
        while !self.try_remove() && Instant::now() < until {
            std::thread::sleep(AGAIN);
        }
    }

    fn try_remove(&self) -> bool {
        let is_here = || {
            fs::symlink_metadata(&self.path)
                .is_ok_and(|m| m.is_dir() && (m.dev(), m.ino()) == (self.device, self.inode))
        };
        if !is_here() {
            return true;
        }
        let entries = fs::read_dir(self.inside(OsStr::new("."))).into_iter().flatten().flatten();
        for name in entries.map(|entry| entry.file_name()).filter(|name| name != LOCK) {
            let path = self.inside(&name);
            // What cannot be removed keeps the directory from being removed, and is tried again.
            let _ = match fs::symlink_metadata(&path) {
                Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(&path),
                _ => fs::remove_file(&path),
            };
        }
        let is_empty =
            |mut entries: fs::ReadDir| entries.all(|entry| entry.is_ok_and(|entry| entry.file_name() == LOCK));
        if !fs::read_dir(self.inside(OsStr::new("."))).is_ok_and(is_empty) {
            return false;
        }
        let _ = fs::remove_file(self.inside(OsStr::new(LOCK)));
        // Empty, or nothing is removed.
        fs::remove_dir(&self.path).is_ok() || !is_here()
    }
}

/// Removes the directory that its launcher has named, if it is a job's. An empty one it may have been killed over before
/// it could say so.
pub fn remove(path: &Path, patience: Duration) {
    match Proven::recognise(path) {
        Some(proven) => proven.remove(patience),
        None => {
            let mine = format!("ftd-{}-", nix::unistd::Uid::effective());
            if path.file_name().is_some_and(|name| name.as_bytes().starts_with(mine.as_bytes())) {
                let _ = fs::remove_dir(path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stated(path: &Path) {
        fs::create_dir(path).unwrap();
        state(path, &mut File::create(path.join(LOCK)).unwrap()).unwrap();
        fs::create_dir_all(path.join("ckpt/deep")).unwrap();
        fs::write(path.join("ckpt/deep/file"), "x").unwrap();
    }

    #[test]
    fn a_job_s_directory_is_removed_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        stated(&at("job"));
        // A copy, another name, a link, and somebody's directory in which a socket lies.
        assert!(
            std::process::Command::new("cp").args(["-a"]).args([at("job"), at("copy")]).status().unwrap().success()
        );
        stated(&at("other"));
        fs::rename(at("other"), at("renamed")).unwrap();
        std::os::unix::fs::symlink(at("job"), at("link")).unwrap();
        fs::create_dir(at("home")).unwrap();
        fs::write(at("home/file"), "x").unwrap();
        for name in ["copy", "renamed", "link", "home", "missing"] {
            assert!(Proven::recognise(&at(name)).is_none(), "{name}");
            remove(&at(name), Duration::ZERO);
        }
        assert!(at("copy/ckpt/deep/file").exists() && at("renamed/lock").exists() && at("home/file").exists());
        assert!(fs::symlink_metadata(at("link")).is_ok());
        let proven = Proven::recognise(&at("job")).unwrap();
        assert!(proven.is_of_this_system() && proven.group().is_none());
        proven.remove(Duration::ZERO);
        assert!(!at("job").exists());
    }

    #[test]
    fn what_stands_at_its_place_later_stays() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("job");
        stated(&path);
        let proven = Proven::recognise(&path).unwrap();
        fs::rename(&path, root.path().join("away")).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), "x").unwrap();
        proven.remove(Duration::ZERO);
        assert!(path.join("file").exists() && root.path().join("away/ckpt/deep/file").exists());
    }
}
