//! The jobs that have a part on this node, on its disk: when the machine goes down all those parts go with it, and nobody has seen their ends.

use ftd_core::NodeId;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// See the module. Each part has a file there, of its job's name and its number for this node (one that comes back has another), with the life of
/// the machine in which it began.
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

    fn file(&self, job: &str, me: NodeId) -> PathBuf {
        self.directory.join(format!("{job}.{}", me.0))
    }

    /// A part of the job begins here. When this returns, it is on the disk.
    ///
    /// # Errors
    /// The file cannot be written, or that is no name of a job.
    pub fn enter(&self, job: &str, me: NodeId) -> io::Result<()> {
        if job.starts_with('.') || Path::new(job).file_name().is_none_or(|name| name != job) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("'{job}' is no name of a job")));
        }
        if !self.directory.is_dir() {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
            self.directory.parent().map_or(Ok(()), |state| File::open(state)?.sync_all())?;
        }
        // Whoever looks meanwhile, the daemon that is started again for example, finds all of it or nothing.
        let draft = self.directory.join(format!(".{}.{job}.{}", self.life, me.0));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
        writeln!(file, "{}", self.life)?;
        file.sync_all()?;
        std::fs::rename(&draft, self.file(job, me))?;
        File::open(&self.directory)?.sync_all()
    }

    /// That part has ended, and was seen to.
    pub fn strike(&self, job: &str, me: NodeId) {
        let _ = std::fs::remove_file(self.file(job, me));
    }

    /// Those that began in another life of the machine. What was being written when that ended is removed.
    pub fn of_other_lives(&self) -> Vec<(String, NodeId)> {
        let own = format!(".{}.", self.life);
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.starts_with('.') {
                if !name.starts_with(&own) {
                    let _ = std::fs::remove_file(entry.path());
                }
                continue;
            }
            let Ok(life) = std::fs::read_to_string(entry.path()) else { continue };
            let part = name.rsplit_once('.').and_then(|(job, me)| Some((job.to_string(), NodeId(me.parse().ok()?))));
            found.extend(part.filter(|_| life.trim() != self.life));
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
        before.strike("b", NodeId(4));
        assert_eq!(Roll::new(directory.path(), "one").of_other_lives(), []);
        let now = Roll::new(directory.path(), "two");
        now.enter("c.d", NodeId(5)).unwrap();
        // The power went before it was whole; and one of this life is being written.
        let drafts = ["jobs/.one.torn.7", "jobs/.two.begun.8"].map(|draft| directory.path().join(draft));
        drafts.iter().for_each(|draft| std::fs::write(draft, "").unwrap());
        assert_eq!(now.of_other_lives(), [("a".to_string(), NodeId(3))]);
        assert_eq!(drafts.each_ref().map(|draft| draft.exists()), [false, true]);
        // The node comes again, as another one; its part before is seen to then.
        now.enter("a", NodeId(9)).unwrap();
        now.strike("a", NodeId(3));
        assert_eq!(now.of_other_lives(), []);
        assert_eq!(Roll::new(directory.path(), "three").of_other_lives().len(), 2);
        for name in ["", ".", "..", "a/b", ".hidden"] {
            assert!(now.enter(name, NodeId(1)).is_err(), "{name}");
        }
    }
}
