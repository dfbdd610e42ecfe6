//! The jobs that have a part on this node, on its disk: when the machine goes down all those parts go with it, and nobody has seen their ends.

use ftd_core::NodeId;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// See the module. Each job has a file of its name there, with its number for this node and the life of the machine in which the part began.
#[derive(Debug)]
pub struct Roll {
    directory: PathBuf,
    life: String,
}

impl Roll {
    /// In the daemon's `state`, for this `life` of the machine.
    pub fn new(state: &Path, life: &str) -> Roll {
        Roll { directory: state.join("jobs"), life: life.into() }
    }

    /// A part of the job begins here. When this returns, it is on the disk.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn enter(&self, job: &str, me: NodeId) -> io::Result<()> {
        if !self.directory.is_dir() {
            std::fs::create_dir(&self.directory)?;
        }
        let options = || {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            options
        };
        let mut file = options().open(self.directory.join(job))?;
        writeln!(file, "{} {}", me.0, self.life)?;
        file.sync_all()?;
        File::open(&self.directory)?.sync_all()
    }

    /// It has ended, and was seen to.
    pub fn strike(&self, job: &str) {
        let _ = std::fs::remove_file(self.directory.join(job));
    }

    /// Those that began in another life of the machine. What cannot be understood was being written when that ended, and is struck.
    pub fn of_other_lives(&self) -> Vec<(String, NodeId)> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let Ok(job) = entry.file_name().into_string() else { continue };
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            match text.trim().split_once(' ').map(|(me, life)| (me.parse(), life)) {
                Some((Ok(me), life)) if life != self.life => found.push((job, NodeId(me))),
                Some((Ok(_), _)) => {}
                _ => self.strike(&job),
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_another_life_are_known_and_those_of_this_one_are_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let before = Roll::new(directory.path(), "one");
        before.enter("a", NodeId(3)).unwrap();
        before.enter("b", NodeId(4)).unwrap();
        before.strike("b");
        assert_eq!(Roll::new(directory.path(), "one").of_other_lives(), []);
        let now = Roll::new(directory.path(), "two");
        now.enter("c", NodeId(5)).unwrap();
        // The power went before it was whole.
        std::fs::write(directory.path().join("jobs/torn"), "7").unwrap();
        assert_eq!(now.of_other_lives(), [("a".to_string(), NodeId(3))]);
        assert!(!directory.path().join("jobs/torn").exists());
        // It comes again, as another one.
        now.enter("a", NodeId(9)).unwrap();
        assert_eq!(now.of_other_lives(), []);
    }
}
