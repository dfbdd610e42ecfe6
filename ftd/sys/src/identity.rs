//! Which file a name or a descriptor means, and whether it still holds what it held.

use std::ffi::CStr;
use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::str::FromStr;

/// Names one file for as long as it exists: no other one is like it, not even later under the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Device.
    pub device: u64,
    /// Inode.
    pub inode: u64,
    /// When it was made, in nanoseconds since 1970; 0 where the file system does not tell.
    pub born: u64,
}

impl Identity {
    /// Of what an open descriptor names. Makes one system call and nothing else.
    pub fn of_descriptor(fd: i32) -> Option<Identity> {
        Self::find(fd, c"", libc::AT_EMPTY_PATH)
    }

    /// Of what lies at a path; of the link, if it is one. Makes one system call and nothing else.
    pub fn of_path(path: &CStr) -> Option<Identity> {
        Self::find(libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW)
    }

    /// Of what a path leads to, through links. Makes one system call and nothing else.
    pub fn behind(path: &CStr) -> Option<Identity> {
        Self::find(libc::AT_FDCWD, path, 0)
    }

    fn find(fd: i32, path: &CStr, flags: i32) -> Option<Identity> {
        // SAFETY: an all-zero statx is a valid value of the type.
        let mut found: libc::statx = unsafe { std::mem::zeroed() };
        let wanted = libc::STATX_INO | libc::STATX_BTIME;
        // SAFETY: the path is a C string, the buffer valid for the call.
        if unsafe { libc::statx(fd, path.as_ptr(), flags, wanted, &mut found) } != 0 {
            return None;
        }
        let born = found.stx_btime.tv_sec as u64 * 1_000_000_000 + u64::from(found.stx_btime.tv_nsec);
        Some(Identity {
            device: libc::makedev(found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            born: if found.stx_mask & libc::STATX_BTIME != 0 { born } else { 0 },
        })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.device, self.inode, self.born)
    }
}

/// A text that [`Identity`] or [`Snapshot`] did not write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a file's identity")]
pub struct NoIdentity;

impl FromStr for Identity {
    type Err = NoIdentity;

    fn from_str(text: &str) -> Result<Identity, NoIdentity> {
        let numbers = text.split(':').map(str::parse).collect::<Result<Vec<u64>, _>>().map_err(|_| NoIdentity)?;
        let &[device, inode, born] = &numbers[..] else { return Err(NoIdentity) };
        Ok(Identity { device, inode, born })
    }
}

/// A file as it was at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snapshot {
    file: Identity,
    size: u64,
    /// When its content was changed last: seconds and nanoseconds.
    modified: (i64, i64),
    /// When anything of it was changed last, its names and permissions included.
    changed: (i64, i64),
}

impl Snapshot {
    /// Of the file that was looked at.
    pub fn of(metadata: &Metadata) -> Snapshot {
        Snapshot {
            // Not every look at a network file system tells when a file was made.
            file: Identity { device: metadata.dev(), inode: metadata.ino(), born: 0 },
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// How many bytes it holds.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether it is the same file, whatever has happened to it.
    pub fn is_same_file(&self, other: &Snapshot) -> bool {
        self.file == other.file
    }

    /// Whether it is the same file with the same content for certain, without a look into it: another name or other permissions
    /// change nothing of that. One that was touched is not known by this.
    pub fn has_same_content(&self, other: &Snapshot) -> bool {
        self.is_same_file(other) && (self.size, self.modified) == (other.size, other.modified)
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Snapshot { file, size, .. }, (m, mn), (c, cn)) = (self, self.modified, self.changed);
        write!(f, "{file}:{size}:{m}:{mn}:{c}:{cn}")
    }
}

impl FromStr for Snapshot {
    type Err = NoIdentity;

    fn from_str(text: &str) -> Result<Snapshot, NoIdentity> {
        let third = text.match_indices(':').nth(2).map(|(at, _)| at).ok_or(NoIdentity)?;
        let numbers = text[third + 1..].split(':').map(str::parse).collect::<Result<Vec<i64>, _>>();
        let numbers = numbers.map_err(|_| NoIdentity)?;
        let &[size, m, mn, c, cn] = &numbers[..] else { return Err(NoIdentity) };
        let size = u64::try_from(size).map_err(|_| NoIdentity)?;
        Ok(Snapshot { file: text[..third].parse()?, size, modified: (m, mn), changed: (c, cn) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_file_is_known_again() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "one").unwrap();
        let of = |path: &std::path::Path| Snapshot::of(&fs::metadata(path).unwrap());
        let then = of(&file);
        let path = std::ffi::CString::new(file.as_os_str().as_encoded_bytes()).unwrap();
        let named = Identity::of_path(&path).unwrap();
        assert_eq!(named.to_string().parse(), Ok(named));
        assert_eq!((named.device, named.inode), (then.file.device, then.file.inode));
        assert_eq!(Identity::of_descriptor(fs::File::open(&file).unwrap().as_raw_fd()), Some(named));
        assert_eq!(then.to_string().parse(), Ok(then));
        assert_eq!("1:2:3".parse::<Snapshot>(), Err(NoIdentity));
        assert_eq!("-1:2:3:4:5:6:7:8".parse::<Snapshot>(), Err(NoIdentity));
        fs::hard_link(&file, directory.path().join("other")).unwrap();
        assert!(of(&file).has_same_content(&then));
        fs::write(&file, "three").unwrap();
        assert!(of(&file).is_same_file(&then) && !of(&file).has_same_content(&then));
        fs::write(directory.path().join("new"), "one").unwrap();
        fs::rename(directory.path().join("new"), &file).unwrap();
        assert!(!of(&file).is_same_file(&then));
    }
}
