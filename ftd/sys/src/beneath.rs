//! A directory and what is in it, and nothing else: on the way to a path below it no symbolic link is followed and no mount
//! entered, whoever puts them there, and whenever. What a program has linked or mounted there is not ours.

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Component, Path, PathBuf};

/// The directory.
#[derive(Debug)]
pub struct Beneath {
    directory: File,
    path: PathBuf,
}

/// A name in a directory that is held.
#[derive(Debug)]
pub struct Spot {
    directory: File,
    name: OsString,
}

impl Spot {
    /// A path to it, as long as this lives. Only the name itself may be a symbolic link.
    pub fn path(&self) -> PathBuf {
        path_of(&self.directory).join(&self.name)
    }

    /// The inode of the directory.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn directory(&self) -> io::Result<Metadata> {
        self.directory.metadata()
    }
}

impl Beneath {
    /// The directory that has this path now, which is no symbolic link itself.
    ///
    /// # Errors
    /// When there is none.
    pub fn open(path: &Path) -> io::Result<Beneath> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
        Ok(Beneath { directory: File::from(directory), path: path.to_path_buf() })
    }

    fn relative<'a>(&self, path: &'a Path) -> io::Result<&'a Path> {
        path.strip_prefix(&self.path).map_err(|_| io::Error::from_raw_os_error(libc::EXDEV))
    }

    /// A descriptor that names what has this path, and opens nothing.
    ///
    /// # Errors
    /// Also when a link or a mount is in the way ([`is_foreign`]).
    pub fn handle(&self, path: &Path) -> io::Result<File> {
        open(self.directory.as_fd(), self.relative(path)?, OFlags::PATH)
    }

    /// The same of a directory.
    ///
    /// # Errors
    /// As [`handle`](Self::handle).
    pub fn directory(&self, path: &Path) -> io::Result<File> {
        let opened = open(self.directory.as_fd(), self.relative(path)?, OFlags::PATH | OFlags::DIRECTORY);
        opened.map_err(|error| match self.metadata(path) {
            Ok(meta) if meta.is_symlink() => io::Error::from_raw_os_error(libc::ELOOP),
            _ => error,
        })
    }

    /// The same of a regular file, if it is one.
    pub fn file(&self, path: &Path) -> Option<File> {
        self.handle(path).ok().filter(|handle| handle.metadata().is_ok_and(|meta| meta.is_file()))
    }

    /// What is known of it.
    ///
    /// # Errors
    /// As [`handle`](Self::handle).
    pub fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        self.handle(path)?.metadata()
    }

    /// Where this path is, to rename or remove what has it, or to make it.
    ///
    /// # Errors
    /// As [`directory`](Self::directory), of the directory that it is in.
    pub fn spot(&self, path: &Path) -> io::Result<Spot> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        };
        Ok(Spot { directory: self.directory(parent)?, name: name.to_os_string() })
    }

    /// Makes the directories on the way to this path that are not there, and it.
    ///
    /// # Errors
    /// As `create_dir_all`, and when something else is in the way.
    pub fn make_directories(&self, path: &Path) -> io::Result<()> {
        let mut made = self.path.clone();
        for component in self.relative(path)?.components() {
            made.push(component);
            match std::fs::create_dir(self.spot(&made)?.path()) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        self.directory(path).map(drop)
    }

    /// Where the symbolic link with this path leads to, if that is not a place below `inside`, as far as that can be known
    /// without going there. What is not there yet is nowhere.
    pub fn leads_out(&self, path: &Path, inside: &Path) -> Option<PathBuf> {
        let target = std::fs::read_link(self.spot(path).ok()?.path()).ok()?;
        let full = path.parent()?.join(&target);
        let directory = self.directory(inside).ok()?;
        let flags = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
        let open = |relative: &Path| {
            rustix::fs::openat2(&directory, relative, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), flags)
        };
        let stays = match full.strip_prefix(inside).map(open) {
            Ok(Ok(_) | Err(rustix::io::Errno::NOENT | rustix::io::Errno::LOOP)) => true,
            Ok(Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM)) => {
                !full.components().any(|one| one == Component::ParentDir)
            }
            _ => false,
        };
        (!stays).then_some(target)
    }
}

/// Whether the way to a path leads through what is not ours.
pub fn is_foreign(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EXDEV | libc::ELOOP))
}

/// A path to what is open here.
pub fn path_of(handle: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd()))
}

/// Opens what lies at this path below the directory.
pub(crate) fn open(below: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<File> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match rustix::fs::openat2(below, path, flags, Mode::empty(), resolve) {
        // Before Linux 5.6, and in containers whose filter does not know the call.
        Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => step_by_step(below, path, flags),
        opened => Ok(File::from(opened?)),
    }
}

/// The same without the kernel's help, but for the mounts' numbers.
fn step_by_step(below: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<File> {
    let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mount = mount_of(&below)?;
    let names: Vec<Component<'_>> = path.components().filter(|one| *one != Component::CurDir).collect();
    let mut handle = File::from(rustix::fs::openat(below, ".", step, Mode::empty())?);
    for (number, name) in names.iter().enumerate() {
        let Component::Normal(name) = name else { return Err(io::Error::from_raw_os_error(libc::EXDEV)) };
        let last = number + 1 == names.len();
        handle = match rustix::fs::openat(&handle, *name, if last { flags } else { step }, Mode::empty()) {
            Err(rustix::io::Errno::NOTDIR) if is_link(&handle, name) => {
                return Err(io::Error::from_raw_os_error(libc::ELOOP));
            }
            opened => File::from(opened?),
        };
        if mount_of(&handle)? != mount {
            return Err(io::Error::from_raw_os_error(libc::EXDEV));
        }
    }
    Ok(handle)
}

fn is_link(directory: &File, name: &OsStr) -> bool {
    path_of(directory).join(name).symlink_metadata().is_ok_and(|meta| meta.is_symlink())
}

/// Two mounts of one file system differ in nothing else.
fn mount_of(handle: &impl AsRawFd) -> io::Result<u64> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", handle.as_raw_fd()))?;
    let number = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    number.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOTSUP))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn no_link_is_followed_and_no_mount_entered() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join("job").join(name);
        std::fs::create_dir_all(at("real/deep")).unwrap();
        std::fs::create_dir(root.path().join("outside")).unwrap();
        for file in [at("real/deep/file"), root.path().join("outside/file")] {
            std::fs::write(file, "x").unwrap();
        }
        symlink("../../outside", at("real/away")).unwrap();
        symlink("real", at("link")).unwrap();
        let beneath = Beneath::open(&at("")).unwrap();
        assert!(beneath.file(&at("real/deep/file")).is_some() && beneath.directory(&at("")).is_ok());
        for path in ["real/away/file", "link/deep/file", "../outside/file"] {
            assert!(beneath.file(&at(path)).is_none() && beneath.spot(&at(path)).is_err(), "{path}");
        }
        assert!(is_foreign(&beneath.directory(&at("link")).unwrap_err()) && beneath.spot(&at("link")).is_ok());
        assert!(is_foreign(&beneath.directory(root.path()).unwrap_err()));
        assert!(is_foreign(&beneath.handle(&at("link/deep")).unwrap_err()));
        assert!(beneath.make_directories(&at("real/away/made")).is_err());
        beneath.make_directories(&at("real/made/deep")).unwrap();
        assert!(at("real/made/deep").is_dir() && !root.path().join("outside/made").exists());
        assert!(Beneath::open(&at("link")).is_err());
    }

    #[test]
    fn without_the_kernel_s_help_it_is_the_same() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("a/b")).unwrap();
        symlink("a", root.path().join("link")).unwrap();
        let directory = File::open(root.path()).unwrap();
        let directories = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let error = |of: &File, path: &str| {
            step_by_step(of.as_fd(), Path::new(path), directories).err().and_then(|error| error.raw_os_error())
        };
        assert_eq!((error(&directory, "a/b"), error(&directory, ".")), (None, None));
        assert_eq!(error(&directory, "link"), Some(libc::ELOOP));
        assert_eq!(error(&directory, "link/b"), Some(libc::ELOOP));
        assert_eq!(error(&directory, "a/../a"), Some(libc::EXDEV));
        assert_eq!(error(&directory, "none"), Some(libc::ENOENT));
        let slash = File::open("/").unwrap();
        assert_eq!(error(&slash, "proc"), Some(libc::EXDEV));
        assert!(is_foreign(&open(slash.as_fd(), Path::new("proc"), directories).unwrap_err()));
    }

    #[test]
    fn links_that_stay_inside_lead_nowhere_else() {
        let root = tempfile::tempdir().unwrap();
        let inside = root.path().join("ckpt");
        std::fs::create_dir_all(inside.join("step.1")).unwrap();
        let links = [
            ("latest", PathBuf::from("step.1"), false),
            ("absolute", inside.join("step.1"), false),
            ("up", PathBuf::from("step.1/.."), false),
            ("next", PathBuf::from("step.2"), false),
            ("loop", PathBuf::from("loop"), false),
            ("home", PathBuf::from("/"), true),
            ("beside", PathBuf::from("../ckpt.old"), true),
            ("second", PathBuf::from("home/tmp"), true),
        ];
        let beneath = Beneath::open(root.path()).unwrap();
        for (name, target, out) in links {
            symlink(&target, inside.join(name)).unwrap();
            assert_eq!(beneath.leads_out(&inside.join(name), &inside), out.then_some(target), "{name}");
        }
    }
}
