//! How many restart files of its own the program has, for the recovery's block.

use ft_sys::beneath::{Beneath, is_foreign, path_of};
use ft_sys::unlocked::Unlocked;
use std::fmt;
use std::path::{Path, PathBuf};

/// More are not counted: the recovery waits meanwhile.
const MOST: usize = 1000;

/// What a world found in `$FT_CHECKPOINT_DIR`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartFiles {
    /// So many files.
    Found(usize),
    /// The program has put a link or a mount in the directory's place: what it has there is its own affair.
    Elsewhere,
}

impl Default for RestartFiles {
    fn default() -> Self {
        RestartFiles::Found(0)
    }
}

impl RestartFiles {
    /// Counts the files below the job's `directory`, also in directories that the program has locked: it has them there, and
    /// can unlock them. What cannot be read even so is not counted, nor what lies behind links and mounts.
    pub fn below(job_dir: &Path, directory: &Path) -> RestartFiles {
        let (mut count, mut unlocked) = (0, Unlocked::default());
        let Ok(beneath) = Beneath::open(job_dir) else { return RestartFiles::default() };
        if beneath.directory(directory).is_err_and(|error| is_foreign(&error)) {
            return RestartFiles::Elsewhere;
        }
        let mut waiting: Vec<PathBuf> = vec![directory.to_path_buf()];
        while let Some(directory) = waiting.pop() {
            let Ok(handle) = beneath.directory(&directory) else { continue };
            unlocked.permit(&handle, 0o500);
            for entry in std::fs::read_dir(path_of(&handle)).into_iter().flatten().flatten() {
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => waiting.push(directory.join(entry.file_name())),
                    Ok(kind) if kind.is_file() => count += 1,
                    _ => {}
                }
                if count >= MOST {
                    return RestartFiles::Found(count);
                }
            }
        }
        RestartFiles::Found(count)
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self == RestartFiles::Found(0)
    }
}

impl fmt::Display for RestartFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RestartFiles::Found(count) = self else { return f.write_str("what lies behind $FT_CHECKPOINT_DIR") };
        let more = if *count >= MOST { " or more" } else { "" };
        write!(f, "{count}{more} file{} in $FT_CHECKPOINT_DIR", if *count == 1 { "" } else { "s" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_directories_count_and_directories_do_not() {
        let directory = tempfile::tempdir().unwrap();
        let below = || RestartFiles::below(directory.path(), directory.path());
        std::fs::create_dir_all(directory.path().join("step.10/empty")).unwrap();
        assert!(below().is_empty());
        for name in ["a", "step.10/b"] {
            std::fs::write(directory.path().join(name), "x").unwrap();
        }
        std::os::unix::fs::symlink("step.10", directory.path().join("link")).unwrap();
        assert_eq!(below().to_string(), "2 files in $FT_CHECKPOINT_DIR");
    }
}
