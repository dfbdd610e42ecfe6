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
    /// None: all there were, so many, have just been set aside.
    SetAside(usize),
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
    /// Where there are none those count that the last failure left beside it.
    pub fn below(job_dir: &Path, directory: &Path) -> RestartFiles {
        let Ok(beneath) = Beneath::open(job_dir) else { return RestartFiles::default() };
        if beneath.directory(directory).is_err_and(|error| is_foreign(&error)) {
            return RestartFiles::Elsewhere;
        }
        match (count(&beneath, directory), count(&beneath, &directory.with_extension("aside"))) {
            (0, aside) if aside > 0 => RestartFiles::SetAside(aside),
            (found, _) => RestartFiles::Found(found),
        }
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        matches!(self, RestartFiles::Found(0) | RestartFiles::SetAside(_))
    }
}

fn count(beneath: &Beneath, directory: &Path) -> usize {
    let (mut count, mut unlocked) = (0, Unlocked::default());
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
                return count;
            }
        }
    }
    count
}

impl fmt::Display for RestartFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let many = |count: usize| {
            format!("{count}{} file{}", if count >= MOST { " or more" } else { "" }, if count == 1 { "" } else { "s" })
        };
        match *self {
            RestartFiles::Found(count) => write!(f, "{} in $FT_CHECKPOINT_DIR", many(count)),
            RestartFiles::SetAside(count) => {
                let (were, they) = if count == 1 { ("was", "it lies") } else { ("were", "they lie") };
                let many = many(count);
                write!(
                    f,
                    "{many} of the program's {were} set aside and none is left ({they} in $FT_CHECKPOINT_DIR.aside)"
                )
            }
            RestartFiles::Elsewhere => f.write_str("what lies behind $FT_CHECKPOINT_DIR"),
        }
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

    #[test]
    fn what_was_set_aside_counts_where_nothing_is_left() {
        let job = tempfile::tempdir().unwrap();
        let (root, aside) = (job.path().join("ckpt"), job.path().join("ckpt.aside"));
        let below = || RestartFiles::below(job.path(), &root);
        std::fs::create_dir_all(&root).unwrap();
        std::fs::create_dir_all(aside.join("step.10")).unwrap();
        assert_eq!(below(), RestartFiles::Found(0));
        std::fs::write(aside.join("step.10/a"), "x").unwrap();
        assert_eq!(below(), RestartFiles::SetAside(1));
        std::fs::write(root.join("b"), "x").unwrap();
        assert_eq!(below(), RestartFiles::Found(1));
    }
}
