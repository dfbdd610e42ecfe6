//! What a process has open for writing, as `/proc` shows it.

use crate::proc;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A file system, told from others by the mounts that this process sees: inodes are numbers that each gives by itself, and to
/// ask a descriptor which one it is of would wait for a file server that is away.
#[derive(Debug)]
pub struct FileSystem {
    /// As `/proc/<pid>/maps` has it.
    device: String,
    /// Whether a mount is one of it.
    mounts: BTreeMap<u64, bool>,
}

impl FileSystem {
    /// That of this file or directory.
    ///
    /// # Errors
    /// When it cannot be looked at, or the mounts not be read.
    pub fn of(path: &Path) -> io::Result<FileSystem> {
        let device = path.metadata()?.dev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        let table = proc::read(Path::new("/proc/self/mountinfo"))?.unwrap_or_default();
        let mount = |line: &[u8]| {
            let mut fields = line.split(|byte| *byte == b' ').map(|field| std::str::from_utf8(field).ok());
            let id = fields.next()??.parse().ok()?;
            Some((id, fields.nth(1)?? == format!("{major}:{minor}")))
        };
        let mounts = table.split(|byte| *byte == b'\n').filter_map(mount).collect();
        Ok(FileSystem { device: format!("{major:02x}:{minor:02x}"), mounts })
    }

    /// Whether a file that was opened through this mount may be one of it. A mount of another name space is not known, nor are
    /// the kernel's own, whose files have no path.
    fn may_have(&self, mount: Option<u64>, link: &Path) -> bool {
        let has_path = || {
            let target = std::fs::read_link(link).unwrap_or_default();
            target.is_absolute() && !target.as_os_str().as_bytes().starts_with(b"/memfd:")
        };
        mount.and_then(|mount| self.mounts.get(&mount)).copied().unwrap_or_else(has_path)
    }
}

/// What is seen of a process's descriptors.
#[derive(Debug, PartialEq, Eq)]
pub enum Descriptors {
    /// The inodes of those that write.
    Writing(BTreeSet<u64>),
    /// There is none at all any more: it is gone, or at the point of its end where it closes them.
    None,
    /// It may not be looked at: its program may not be read (mode 0711), it has asked for that (`PR_SET_DUMPABLE`), or it has
    /// another user's rights. So it is also with one that runs no user code any more.
    Hidden,
}

/// The inodes of all on this file system that the process may write to, by descriptors and shared mappings; without one, of
/// all file systems. `None` when it may not be looked at.
pub fn open_for_writing(pid: i32, of: Option<&FileSystem>) -> Option<BTreeSet<u64>> {
    let mut inodes = mapped(&proc::read(&proc::living(pid).join("maps")).ok().flatten().unwrap_or_default(), of);
    match descriptors_for_writing(pid, of) {
        Descriptors::Writing(writing) => inodes.extend(writing),
        Descriptors::None => {}
        Descriptors::Hidden => return None,
    }
    Some(inodes)
}

/// The same of descriptors alone.
pub fn descriptors_for_writing(pid: i32, of: Option<&FileSystem>) -> Descriptors {
    let directory = proc::living(pid);
    let entries: Vec<_> = match std::fs::read_dir(directory.join("fdinfo")) {
        Ok(entries) => entries.flatten().collect(),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Descriptors::Hidden,
        Err(_) => return Descriptors::None,
    };
    let mut inodes = BTreeSet::new();
    let (mut any, mut hidden) = (false, false);
    for entry in entries {
        match proc::read(&entry.path()) {
            Ok(Some(info)) => {
                any = true;
                inodes.extend(written(&info, &directory.join("fd").join(entry.file_name()), of, of_link));
            }
            Ok(None) => {}
            Err(error) => hidden |= error.kind() == io::ErrorKind::PermissionDenied,
        }
    }
    match (any, hidden) {
        (_, true) => Descriptors::Hidden,
        (true, false) => Descriptors::Writing(inodes),
        (false, false) => Descriptors::None,
    }
}

/// The inode if a descriptor with this `fdinfo` writes.
fn written(info: &[u8], link: &Path, of: Option<&FileSystem>, ask: impl FnOnce(&Path) -> Option<u64>) -> Option<u64> {
    let text = std::str::from_utf8(info).ok()?;
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let flags = i32::from_str_radix(field("flags:")?, 8).ok()?;
    if flags & libc::O_ACCMODE == libc::O_RDONLY || flags & libc::O_PATH != 0 {
        return None;
    }
    let mount = field("mnt_id:").and_then(|mount| mount.parse().ok());
    if of.is_some_and(|of| !of.may_have(mount, link)) {
        return None;
    }
    // Linux 5.14 and later tell it.
    field("ino:").map_or_else(|| ask(link), |inode| inode.parse().ok())
}

fn of_link(link: &Path) -> Option<u64> {
    Some(std::fs::metadata(link).ok()?.ino())
}

/// Of `maps`, in which a path may be no text: the inodes that are mapped shared and can be written.
fn mapped(maps: &[u8], of: Option<&FileSystem>) -> BTreeSet<u64> {
    let inode = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
        let rights = fields.nth(1)?;
        (rights.get(1) == Some(&b'w') && rights.get(3) == Some(&b's')).then_some(())?;
        let device = std::str::from_utf8(fields.nth(1)?).ok()?;
        of.is_none_or(|of| of.device == device).then_some(())?;
        std::str::from_utf8(fields.next()?).ok()?.parse().ok()
    };
    maps.split(|byte| *byte == b'\n').filter_map(inode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions};

    #[test]
    fn descriptors_and_mappings_that_write_are_found_and_readers_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, [0; 4096]).unwrap();
            OpenOptions::new().read(true).write(true).open(path).unwrap()
        };
        let (held, mapped, closed) = (file("held"), file("mapped"), file("closed"));
        let inode = |file: &File| file.metadata().unwrap().ino();
        let inodes = [&held, &mapped, &closed].map(inode);
        let map = crate::memory::SharedMap::map(&mapped, 0, 4096).unwrap();
        drop((mapped, closed));
        let reader = File::open(directory.path().join("closed")).unwrap();
        let found = open_for_writing(std::process::id() as i32, None).unwrap();
        assert_eq!(inodes.map(|inode| found.contains(&inode)), [true, true, false]);
        drop((map, held, reader));
        assert!(!open_for_writing(std::process::id() as i32, None).unwrap().contains(&inodes[1]));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        while !crate::death::is_past_user_code(pid).unwrap() || crate::post_mortem::zombie(pid).is_none() {
            std::thread::yield_now();
        }
        let none = descriptors_for_writing(pid, None);
        // As others see it than root.
        assert!(matches!(none, Descriptors::None | Descriptors::Hidden), "a dead process has none: {none:?}");
        child.wait().unwrap();
    }

    #[test]
    fn files_of_other_file_systems_are_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, [0; 4096]).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let null = OpenOptions::new().write(true).open("/dev/null").unwrap();
        let (_, pipe) = std::io::pipe().unwrap();
        let memory = rustix::fs::memfd_create("other", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let inode = |file: std::os::fd::BorrowedFd<'_>| rustix::fs::fstat(file).unwrap().st_ino;
        use std::os::fd::AsFd;
        let others = [null.as_fd(), pipe.as_fd(), memory.as_fd()].map(inode);
        let own = inode(file.as_fd());
        let of = FileSystem::of(directory.path()).unwrap();
        let found = |of| open_for_writing(std::process::id() as i32, of).unwrap();
        assert!(others.iter().chain([&own]).all(|inode| found(None).contains(inode)));
        let only = found(Some(&of));
        assert!(only.contains(&own) && !others.iter().any(|inode| only.contains(inode)), "{only:?} {others:?}");
        let map = crate::memory::SharedMap::map(&file, 0, 4096).unwrap();
        drop(file);
        assert!(found(Some(&of)).contains(&own));
        drop(map);
    }

    #[test]
    fn an_older_kernel_is_asked_for_the_inode() {
        let info = |flags: &str, more: &str| format!("pos:\t0\nflags:\t{flags}\nmnt_id:\t25\n{more}");
        let written = |info: String| written(info.as_bytes(), Path::new(""), None, |_| Some(7));
        assert_eq!(written(info("0100001", "ino:\t12\n")), Some(12));
        assert_eq!(written(info("0100002", "")), Some(7));
        assert_eq!(written(info("0100000", "ino:\t12\n")), None);
    }
}
