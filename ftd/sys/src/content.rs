//! What a file holds, as a number: times, names and places of a file say nothing about that.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::str::FromStr;
use twox_hash::XxHash3_64;

/// How much is read at a time.
const PIECE: usize = 256 << 10;

/// Two files that hold the same have the same one, and others do not, unless somebody took great pains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    size: u64,
    hash: u64,
}

impl Content {
    /// How many bytes there are.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Reads a file to its end.
    ///
    /// # Errors
    /// What the system said.
    pub fn of(path: &Path) -> io::Result<Content> {
        // Whatever took the place of a regular file is not waited for.
        let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (mut hash, mut size, mut piece) = (XxHash3_64::new(), 0, vec![0; PIECE]);
        loop {
            match file.read(&mut piece) {
                Ok(0) => return Ok(Content { size, hash: std::hash::Hasher::finish(&hash) }),
                Ok(count) => {
                    std::hash::Hasher::write(&mut hash, &piece[..count]);
                    size += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The same of a file that is held, also by a descriptor that cannot be read from (`O_PATH`).
    ///
    /// # Errors
    /// What the system said.
    pub fn of_held(file: &File) -> io::Result<Content> {
        Self::of(&crate::beneath::path_of(file))
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.size, self.hash)
    }
}

/// A text that [`Content`] did not write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a file's content")]
pub struct NoContent;

impl FromStr for Content {
    type Err = NoContent;

    fn from_str(text: &str) -> Result<Content, NoContent> {
        let (size, hash) = text.split_once(':').ok_or(NoContent)?;
        let number = |text: &str| text.parse().map_err(|_| NoContent);
        Ok(Content { size: number(size)?, hash: number(hash)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_what_is_in_a_file_counts() {
        let directory = tempfile::tempdir().unwrap();
        let (one, other) = (directory.path().join("one"), directory.path().join("other"));
        let mut bytes = vec![7; 3 * PIECE + 5];
        fs::write(&one, &bytes).unwrap();
        fs::write(&other, &bytes).unwrap();
        let then = Content::of(&one).unwrap();
        assert_eq!(Content::of(&other).unwrap(), then);
        assert_eq!(then.to_string().parse(), Ok(then));
        assert_eq!("1:".parse::<Content>(), Err(NoContent));
        let held = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(&other).unwrap();
        fs::remove_file(&other).unwrap();
        assert_eq!(Content::of_held(&held).unwrap(), then);
        bytes[2 * PIECE] = 8;
        fs::write(&one, &bytes).unwrap();
        assert_ne!(Content::of(&one).unwrap(), then);
        assert!(Content::of(directory.path()).is_err());
    }
}
