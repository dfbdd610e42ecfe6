//! How many restart files of its own the program has, for the recovery's block.

use ft_sys::unlocked::Unlocked;
use std::fmt;
use std::path::{Path, PathBuf};

/// More are not counted: the recovery waits meanwhile.
const MOST: usize = 1000;

/// Number of files that a world found in `$FT_CHECKPOINT_DIR`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RestartFiles(pub usize);

impl RestartFiles {
    /// Counts the files below `directory`, also in directories that the program has locked: it has them there, and can unlock
    /// them. What cannot be read even so is not counted.
    pub fn below(directory: &Path) -> RestartFiles {
        let (mut count, mut unlocked) = (0, Unlocked::default());
        let mut waiting: Vec<PathBuf> = vec![directory.to_path_buf()];
        while let Some(directory) = waiting.pop() {
            unlocked.permit(&directory, 0o500);
            for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => waiting.push(entry.path()),
                    Ok(kind) if kind.is_file() => count += 1,
                    _ => {}
                }
                if count >= MOST {
                    return RestartFiles(count);
                }
            }
        }
        RestartFiles(count)
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for RestartFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = if self.0 >= MOST { " or more" } else { "" };
        write!(f, "{}{more} file{} in $FT_CHECKPOINT_DIR", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_directories_count_and_directories_do_not() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("step.10/empty")).unwrap();
        assert!(RestartFiles::below(directory.path()).is_empty());
        for name in ["a", "step.10/b"] {
            std::fs::write(directory.path().join(name), "x").unwrap();
        }
        assert_eq!(RestartFiles::below(directory.path()).to_string(), "2 files in $FT_CHECKPOINT_DIR");
    }
}
