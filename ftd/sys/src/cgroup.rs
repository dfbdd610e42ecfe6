//! A cgroup (version 2) of the job's own, where one can be had: below this process's own group, when that was given to the
//! user. Nothing that a rank starts leaves it, whatever session, parent or environment it takes, and one word to the kernel
//! ends all of it. Where there is none nothing is lost but that.

use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, fstatfs};
use std::fs::{self, DirBuilder, File};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Pause between attempts to remove a group whose processes have not quite gone.
const AGAIN: Duration = Duration::from_millis(2);

/// Groups in groups that are looked into: no program nests them as deeply.
const DEPTH: usize = 128;

/// `CLONE_INTO_CGROUP`, which does not fit libc's type.
const INTO_GROUP: u64 = 0x2_0000_0000;

/// A group, by path and inode: another one of the same name is another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    path: PathBuf,
    inode: u64,
}

impl Group {
    /// Where a group of this name would be, below this process's own; `None` where there can be none.
    pub fn place(name: &str) -> Option<PathBuf> {
        let parent = own_directory()?;
        // The root of all groups can be had by root only, and is nobody's own; it has no such file.
        fs::metadata(parent.join("cgroup.kill")).ok()?;
        Some(parent.join(name))
    }

    /// Makes a group at that place.
    pub fn make(place: &Path) -> Option<Group> {
        DirBuilder::new().mode(0o755).create(place).ok()?;
        Self::at(place)
    }

    /// Removes the group at this place if it is one of this user's, and nothing is in it.
    pub fn remove_empty(place: &Path) {
        if let Some(group) = Self::at(place).filter(|group| !group.is_populated()) {
            let _ = fs::remove_dir(group.path);
        }
    }

    /// Makes a group below this one, or takes the one that is there.
    pub fn make_below(&self, name: &str) -> Option<Group> {
        let open = self.open()?;
        let _ = DirBuilder::new().create(inside(&open, name));
        Self::at(&self.path.join(name))
    }

    fn at(path: &Path) -> Option<Group> {
        let group = Group { path: path.to_path_buf(), inode: fs::symlink_metadata(path).ok()?.ino() };
        group.open().map(|_| group)
    }

    /// The group of this path, if it is still the one with this inode, and this user's.
    pub fn known(path: &Path, inode: u64) -> Option<Group> {
        let group = Group { path: path.to_path_buf(), inode };
        group.open().map(|_| group)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its inode, which no later group gets.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    fn open(&self) -> Option<File> {
        let directory = open(&self.path)?;
        let metadata = directory.metadata().ok()?;
        let ours = metadata.ino() == self.inode
            && metadata.uid() == nix::unistd::Uid::effective().as_raw()
            && fstatfs(&directory).is_ok_and(|fs| fs.filesystem_type() == CGROUP2_SUPER_MAGIC);
        ours.then_some(directory)
    }

    /// A descriptor to start processes in the group by.
    pub fn descriptor(&self) -> Option<OwnedFd> {
        self.open().map(OwnedFd::from)
    }

    /// Kills all that is in it and below, whoever it belongs to.
    pub fn kill(&self) {
        if let Some(open) = self.open() {
            // A kernel before 5.14 has no such file; what is to be killed is then looked for below the shepherds.
            let _ = fs::write(inside(&open, "cgroup.kill"), "1");
        }
    }

    /// Whether anything is in it or below.
    pub fn is_populated(&self) -> bool {
        let events = self.open().and_then(|open| fs::read_to_string(inside(&open, "cgroup.events")).ok());
        events.is_some_and(|text| text.lines().any(|line| line == "populated 1"))
    }

    /// Kills what is in it and below, and removes it and those below it, also the groups that a rank has made there.
    pub fn remove(&self, patience: Duration) {
        let until = Instant::now() + patience;
        self.kill();
        while let Some(open) = self.open() {
            remove_below(&open, DEPTH);
            drop(open);
            if fs::remove_dir(&self.path).is_ok() || Instant::now() >= until {
                return;
            }
            std::thread::sleep(AGAIN);
        }
    }
}

fn open(directory: &Path) -> Option<File> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    File::options().read(true).custom_flags(flags).open(directory).ok()
}

/// Removes the groups below this one, the deepest first; those that are not empty stay.
fn remove_below(group: &File, depth: usize) {
    let entries = fs::read_dir(inside(group, ".")).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        let path = entry.path();
        // The kernel refuses a group with others in it: that costs nothing, and the innermost go at once.
        if fs::remove_dir(&path).is_err() && depth > 0 {
            open(&path).inspect(|below| remove_below(below, depth - 1));
            let _ = fs::remove_dir(&path);
        }
    }
}

fn inside(directory: &File, name: &str) -> PathBuf {
    crate::beneath::path_of(directory).join(name)
}

/// The directory of this process's own group.
fn own_directory() -> Option<PathBuf> {
    let groups = fs::read("/proc/self/cgroup").ok()?;
    let own = groups.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"0::"))?;
    let mounts = fs::read("/proc/self/mountinfo").ok()?;
    mounts.split(|byte| *byte == b'\n').filter_map(|line| directory(line, own)).find(|path| path.is_dir())
}

/// Where a mount of the hierarchy, as a line of `mountinfo` tells it, shows this group.
fn directory(line: &[u8], group: &[u8]) -> Option<PathBuf> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    (*fields.get(dash + 1)? == b"cgroup2").then_some(())?;
    let (root, at) = (unescape(fields.get(3)?), unescape(fields.get(4)?));
    // A mount may show only a part of the hierarchy.
    let below = Path::new(std::ffi::OsStr::from_bytes(group)).strip_prefix(std::ffi::OsStr::from_bytes(&root)).ok()?;
    Some(Path::new(&std::ffi::OsString::from_vec(at)).join(below))
}

/// Blanks, newlines and backslashes are written as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = field;
    while let [first, more @ ..] = rest {
        let digits = if *first == b'\\' { more.get(..3) } else { None };
        let byte = digits.and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &more[3..] } else { more };
    }
    bytes
}

/// `fork`, with the child in a group from its first instruction on; in this process's own where the kernel does not do it.
///
/// # Safety
/// As `fork`; what the C library does in a child is not done.
pub unsafe fn fork_into(group: BorrowedFd<'_>) -> libc::pid_t {
    // SAFETY: an all-zero value is valid; every field that matters is set below.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = INTO_GROUP;
    arguments.exit_signal = libc::SIGCHLD as u64;
    arguments.cgroup = group.as_raw_fd() as u64;
    // SAFETY: without CLONE_VM it is a fork; the caller answers for what the child does.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<libc::clone_args>()) };
    if pid >= 0 {
        return pid as libc::pid_t;
    }
    // SAFETY: as the caller says.
    unsafe { libc::fork() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_through_whatever_mount_shows_it() {
        let line = b"30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        let own = b"/user.slice/user@1.service/app.scope";
        assert_eq!(directory(line, own), Some("/sys/fs/cgroup/user.slice/user@1.service/app.scope".into()));
        let part = br"30 25 0:26 /user.slice /a\040b rw - cgroup2 none rw";
        assert_eq!(directory(part, own), Some("/a b/user@1.service/app.scope".into()));
        assert_eq!(directory(br"30 25 0:26 /other /x rw - cgroup2 none rw", own), None);
        assert_eq!(directory(br"30 25 0:26 / /x rw - tmpfs none rw", own), None);
    }

    #[test]
    fn without_a_group_of_its_own_a_child_is_a_child() {
        let other = File::open("/").unwrap();
        // SAFETY: the child ends at once.
        let pid = unsafe { fork_into(std::os::fd::AsFd::as_fd(&other)) };
        if pid == 0 {
            // SAFETY: ends the child without running anything of the test's.
            unsafe { libc::_exit(7) };
        }
        let status = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None).unwrap();
        assert_eq!(status, nix::sys::wait::WaitStatus::Exited(nix::unistd::Pid::from_raw(pid), 7));
        assert_eq!(Group::known(Path::new("/"), fs::metadata("/").unwrap().ino()), None);
    }
}
