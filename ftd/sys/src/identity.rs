//! Whether a file is still the one that it was, and holds what it held.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::str::FromStr;

/// A file as it was at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    /// When its content was changed last: seconds and nanoseconds.
    modified: (i64, i64),
    /// When anything of it was changed last, its names and permissions included.
    changed: (i64, i64),
}

impl Identity {
    /// Of the file that was looked at.
    pub fn of(metadata: &Metadata) -> Identity {
        Identity {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Whether it is the same file, whatever has happened to it.
    pub fn is_same_file(&self, other: &Identity) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// Whether it is the same file with the same content: another name or other permissions change nothing of that.
    pub fn has_same_content(&self, other: &Identity) -> bool {
        self.is_same_file(other) && (self.size, self.modified) == (other.size, other.modified)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Identity { device, inode, size, .. }, (m, mn), (c, cn)) = (self, self.modified, self.changed);
        write!(f, "{device}:{inode}:{size}:{m}:{mn}:{c}:{cn}")
    }
}

/// A text that [`Identity`] did not write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a file's identity")]
pub struct NoIdentity;

impl FromStr for Identity {
    type Err = NoIdentity;

    fn from_str(text: &str) -> Result<Identity, NoIdentity> {
        let numbers = text.split(':').map(str::parse).collect::<Result<Vec<i128>, _>>().map_err(|_| NoIdentity)?;
        let &[device, inode, size, m, mn, c, cn] = &numbers[..] else { return Err(NoIdentity) };
        let natural = |number: i128| u64::try_from(number).map_err(|_| NoIdentity);
        let whole = |number: i128| i64::try_from(number).map_err(|_| NoIdentity);
        Ok(Identity {
            device: natural(device)?,
            inode: natural(inode)?,
            size: natural(size)?,
            modified: (whole(m)?, whole(mn)?),
            changed: (whole(c)?, whole(cn)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_is_known_again() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "one").unwrap();
        let of = |path: &std::path::Path| Identity::of(&fs::metadata(path).unwrap());
        let then = of(&file);
        assert_eq!(then.to_string().parse(), Ok(then));
        assert_eq!("1:2:3".parse::<Identity>(), Err(NoIdentity));
        assert_eq!("-1:2:3:4:5:6:7".parse::<Identity>(), Err(NoIdentity));
        fs::hard_link(&file, directory.path().join("other")).unwrap();
        assert!(of(&file).has_same_content(&then));
        fs::write(&file, "three").unwrap();
        assert!(of(&file).is_same_file(&then) && !of(&file).has_same_content(&then));
        fs::write(directory.path().join("new"), "one").unwrap();
        fs::rename(directory.path().join("new"), &file).unwrap();
        assert!(!of(&file).is_same_file(&then));
    }
}
