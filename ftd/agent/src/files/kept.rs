//! The last whole file under each name, which the agent keeps by a link of its own, also when the program has renamed another
//! one over it: `ckpt.kept/<directory>/<name>`, where the directory is named by its inode. So renaming directories changes
//! nothing here, and the next agent finds all of it. What a directory's name stands for is kept as well, as a symbolic link
//! that holds its inode.

use ft_sys::beneath::{Beneath, path_of};
use rustix::fs::{AtFlags, CWD, FileType, Mode};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// What is about to replace an entry; the names of directories are numbers.
const DRAFT: &str = "draft";

/// What is kept under a name, by its inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// A file that was whole when it had the name.
    File(u64),
    /// The directory that last had it, and was whole.
    Directory(u64),
}

/// The directory in which they are kept.
#[derive(Debug)]
pub struct Kept {
    beneath: Beneath,
    root: File,
    path: PathBuf,
}

impl Kept {
    /// Creates or takes over the directory in the job's.
    ///
    /// # Errors
    /// When it cannot be made, or a link or a mount is in its place.
    pub fn open(job_dir: &Path, name: &str) -> io::Result<Kept> {
        let (beneath, path) = (Beneath::open(job_dir)?, job_dir.join(name));
        match std::fs::DirBuilder::new().mode(0o700).create(beneath.spot(&path)?.path()) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let root = beneath.directory(&path)?;
        Ok(Kept { beneath, root, path })
    }

    fn room(&self, directory: u64) -> io::Result<File> {
        self.beneath.directory(&self.path.join(directory.to_string()))
    }

    fn make_room(&self, directory: u64) -> io::Result<File> {
        match self.room(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                rustix::fs::mkdirat(&self.root, directory.to_string(), Mode::RWXU)?;
                self.room(directory)
            }
            room => room,
        }
    }

    /// What is kept under this name.
    pub fn entry(&self, directory: u64, name: &OsStr) -> Option<Entry> {
        entry(&self.room(directory).ok()?, name)
    }

    /// Where it lies.
    pub fn path(&self, directory: u64, name: &OsStr) -> PathBuf {
        self.path.join(directory.to_string()).join(name)
    }

    /// Keeps the file under this name instead of what was kept there, which is returned.
    ///
    /// # Errors
    /// What the kernel says when the file has too many links, there is no room for one more, or it is another user's. Then
    /// nothing is kept. When it has lost its last name meanwhile, to one of which nothing is known yet, what was kept stays.
    pub fn keep(&self, directory: u64, name: &OsStr, file: &File, inode: u64) -> io::Result<Option<Entry>> {
        let room = self.make_room(directory)?;
        let own = path_of(file);
        match rustix::fs::linkat(CWD, &own, &room, name, AtFlags::SYMLINK_FOLLOW) {
            Err(Errno::EXIST) => {}
            result => return Ok(result.map(|()| None)?),
        }
        let before = entry(&room, name);
        // To rename one link to a file over another one would do nothing.
        if before == Some(Entry::File(inode)) {
            return Ok(None);
        }
        let draft = || rustix::fs::linkat(CWD, &own, &self.root, DRAFT, AtFlags::SYMLINK_FOLLOW);
        self.replace(&room, name, draft)?;
        Ok(before)
    }

    /// Notes which directory has this name, instead of what was kept there, which is returned.
    ///
    /// # Errors
    /// When there is no room. Then nothing is kept.
    pub fn mark(&self, directory: u64, name: &OsStr, inode: u64) -> io::Result<Option<Entry>> {
        let room = self.make_room(directory)?;
        let before = entry(&room, name);
        self.replace(&room, name, || rustix::fs::symlinkat(inode.to_string(), &self.root, DRAFT))?;
        Ok(before)
    }

    fn replace(&self, room: &File, name: &OsStr, draft: impl FnOnce() -> Result<(), Errno>) -> io::Result<()> {
        // An agent may have been killed before it put its own in place.
        let _ = rustix::fs::unlinkat(&self.root, DRAFT, AtFlags::empty());
        let replaced = draft().and_then(|()| rustix::fs::renameat(&self.root, DRAFT, room, name));
        Ok(replaced.inspect_err(|errno| {
            if *errno != Errno::NOENT {
                let _ = rustix::fs::unlinkat(room, name, AtFlags::empty());
            }
        })?)
    }

    /// Lets go of what is kept under this name.
    pub fn release(&self, directory: u64, name: &OsStr) {
        if let Ok(room) = self.room(directory) {
            let _ = rustix::fs::unlinkat(room, name, AtFlags::empty());
        }
    }

    /// Removes the directory's room if nothing is in it.
    pub fn tidy(&self, directory: u64) {
        let _ = rustix::fs::unlinkat(&self.root, directory.to_string(), AtFlags::REMOVEDIR);
    }

    /// The directories of which there is a room.
    pub fn directories(&self) -> Vec<u64> {
        names(&self.root).iter().filter_map(|name| name.to_str()?.parse().ok()).collect()
    }

    /// All that is kept of a directory.
    pub fn entries(&self, directory: u64) -> Vec<(OsString, Entry)> {
        let Ok(room) = self.room(directory) else { return Vec::new() };
        let known = |name: OsString| entry(&room, &name).map(|entry| (name, entry));
        names(&room).into_iter().filter_map(known).collect()
    }

    /// Lets go of everything.
    pub fn clear(&self) {
        for directory in self.directories() {
            for (name, _) in self.entries(directory) {
                self.release(directory, &name);
            }
            self.tidy(directory);
        }
    }
}

fn entry(room: &File, name: &OsStr) -> Option<Entry> {
    let stat = rustix::fs::statat(room, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Some(Entry::File(stat.st_ino)),
        FileType::Symlink => {
            let inode = rustix::fs::readlinkat(room, name, Vec::new()).ok()?;
            Some(Entry::Directory(inode.to_str().ok()?.parse().ok()?))
        }
        _ => None,
    }
}

fn names(directory: &File) -> Vec<OsString> {
    std::fs::read_dir(path_of(directory)).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn what_is_kept_outlives_its_names_until_another_one_is_kept_in_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let kept = Kept::open(directory.path(), "kept").unwrap();
        let name = OsStr::new("draft");
        let file = |text: &str| {
            std::fs::write(directory.path().join(text), text).unwrap();
            let file = File::open(directory.path().join(text)).unwrap();
            let inode = file.metadata().unwrap().ino();
            (file, inode)
        };
        let ((one, first), (two, second)) = (file("one"), file("two"));
        assert_eq!(kept.keep(7, name, &one, first).unwrap(), None);
        assert_eq!(kept.keep(7, name, &one, first).unwrap(), None);
        std::fs::remove_file(directory.path().join("one")).unwrap();
        assert_eq!(std::fs::read(kept.path(7, name)).unwrap(), b"one");
        let kept = Kept::open(directory.path(), "kept").unwrap();
        assert_eq!(kept.keep(7, name, &two, second).unwrap(), Some(Entry::File(first)));
        assert_eq!((one.metadata().unwrap().nlink(), two.metadata().unwrap().nlink()), (0, 2));
        assert!(kept.keep(7, name, &one, first).is_err(), "nothing names it any more");
        assert_eq!(kept.entry(7, name), Some(Entry::File(second)));
        kept.mark(7, name, 12).unwrap();
        assert_eq!(kept.mark(7, name, 13).unwrap(), Some(Entry::Directory(12)));
        assert_eq!(kept.entries(7), [(name.to_os_string(), Entry::Directory(13))]);
        kept.clear();
        assert!(kept.directories().is_empty() && two.metadata().unwrap().nlink() == 1);
    }
}
