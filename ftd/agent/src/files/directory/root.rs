//! The directory that `$FT_CHECKPOINT_DIR` names: the one that stands there, when the program has removed or moved it and made it
//! again. What is no directory of the job's own, but a link or a mount that the program has put there, is the program's.

use super::super::aside::{self, one_line};
use super::super::name::NAME;
use super::CheckpointDir;
use ft_sys::beneath::is_foreign;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// So many are named.
const MOST_NAMED: usize = 4;

/// What has the directory's name.
enum Stands {
    Directory,
    Nothing,
    Link(PathBuf),
    Mount,
    Other,
}

impl CheckpointDir {
    /// Makes the root, if nothing is there, and watches all that is in it.
    pub(super) fn make(&mut self) -> io::Result<()> {
        match self.beneath.spot(&self.root).and_then(|spot| std::fs::create_dir(spot.path())) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => {
                self.follow_root()?;
                self.watch_root()
            }
        }
    }

    /// The program may have removed its directory, or moved it away, and may have made it again, or will. What was known of
    /// files is true of those that were moved to the new one.
    pub(super) fn follow_root(&mut self) -> io::Result<()> {
        let now = self.beneath.directory(&self.root).and_then(|root| root.metadata()).ok().map(|meta| meta.ino());
        if now == self.root_inode {
            return Ok(());
        }
        for (watch, _) in std::mem::take(&mut self.directories) {
            self.queue.forget(watch);
        }
        self.places.clear();
        self.root_inode = now;
        let watched = self.watch_root();
        // What is kept of the old one is of no use.
        self.compare();
        watched
    }

    fn watch_root(&mut self) -> io::Result<()> {
        if self.root_inode.is_some() { self.watch_tree(self.root.clone()) } else { Ok(()) }
    }

    fn stands(&self) -> Stands {
        let there =
            self.beneath.spot(&self.root).and_then(|spot| spot.path().symlink_metadata().map(|meta| (spot, meta)));
        match (there, self.beneath.handle(&self.root)) {
            (Err(_), _) => Stands::Nothing,
            (Ok((spot, meta)), _) if meta.is_symlink() => {
                Stands::Link(std::fs::read_link(spot.path()).unwrap_or_default())
            }
            (_, Err(error)) if is_foreign(&error) => Stands::Mount,
            (Ok((_, meta)), _) if meta.is_dir() => Stands::Directory,
            _ => Stands::Other,
        }
    }

    /// Between two worlds: what is no directory, and nowhere else, gives way to one. Returns what is to be said.
    pub(super) fn see_to_root(&mut self) -> Option<String> {
        // Of mounts there is no notice.
        if let Err(error) = self.follow_root() {
            tracing::warn!(%error, "$FT_CHECKPOINT_DIR cannot be watched");
        }
        let (what, own) = match self.stands() {
            Stands::Directory | Stands::Nothing => return None,
            Stands::Link(target) => (format!("a symbolic link to {}", one_line(&target)), true),
            Stands::Mount => ("a mount".to_string(), true),
            Stands::Other => match aside::move_root(&self.beneath, &self.root, &self.aside) {
                Ok(lies) => {
                    return Some(format!(
                        "$FT_CHECKPOINT_DIR was no directory any more: what stood there lies in {} until the next failure or the end of the job, and there is a new one",
                        one_line(&lies)
                    ));
                }
                Err(error) => (format!("no directory, and cannot be set aside ({error})"), false),
            },
        };
        let why = "ftd leaves it alone, and does not look whether the files are whole";
        let own = if own { "what lies behind it is the program's own: " } else { "" };
        Some(format!("$FT_CHECKPOINT_DIR is {what}: {own}{why}"))
    }

    /// What the program has linked or mounted, by its paths; said once.
    pub(super) fn said_of_foreign(&mut self, mut foreign: Vec<PathBuf>) -> Option<String> {
        foreign.sort();
        if foreign == self.foreign || foreign.is_empty() {
            self.foreign = foreign;
            return None;
        }
        let name = |path: &PathBuf| one_line(path.strip_prefix(&self.root).unwrap_or(path));
        let mut names: Vec<String> = foreign.iter().take(MOST_NAMED).map(name).collect();
        if foreign.len() > MOST_NAMED {
            names.push(format!("… and {} more", foreign.len() - MOST_NAMED));
        }
        let names = names.join(", ");
        self.foreign = foreign;
        Some(format!(
            "what lies behind {names} in $FT_CHECKPOINT_DIR, by a symbolic link or a mount, is the program's own: ftd leaves it alone, and does not look whether the files are whole"
        ))
    }

    /// Whether this is what stands for the root in the job's directory.
    pub(super) fn is_root(&self, directory: i32, name: &std::ffi::OsStr) -> bool {
        self.job == Some(directory) && Path::new(name) == Path::new(NAME)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{absorb, job, names, open};
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    #[test]
    fn a_directory_that_the_program_makes_again_is_followed() {
        for moved in [false, true] {
            let (job, notices) = job();
            let mut dir = open(&job, &notices);
            let root = dir.root.clone();
            fs::write(root.join("old"), "abc").unwrap();
            absorb(&mut dir, || true);
            if moved {
                fs::rename(&root, job.path().join("ckpt.old")).unwrap();
            } else {
                fs::remove_dir_all(&root).unwrap();
            }
            // The program makes it, and must find nothing there.
            absorb(&mut dir, || true);
            fs::create_dir(&root).unwrap();
            fs::create_dir(root.join("sub")).unwrap();
            fs::write(root.join("sub/file"), "abc").unwrap();
            absorb(&mut dir, || true);
            fs::write(root.join("sub/later"), "abc").unwrap();
            fs::write(root.join("old"), "abd").unwrap();
            absorb(&mut dir, || true);
            fs::write(root.join("late"), "abc").unwrap();
            let said = dir.set_aside().unwrap().join("\n");
            assert_eq!(names(&dir), ["old", "sub/file", "sub/later"], "{said}");
            assert!(said.contains("late in $FT_CHECKPOINT_DIR is set aside"), "{said}");
            assert_eq!(job.path().join("ckpt.old/old").exists(), moved);
            let rooms = fs::read_dir(job.path().join("ckpt.kept")).unwrap();
            let old = rooms.map(Result::unwrap).filter(|room| room.path().join("old").exists()).count();
            assert_eq!(old, 1, "of the new one alone");
        }
    }

    #[test]
    fn nothing_is_brought_back_into_a_directory_that_was_made_again() {
        let (job, notices) = job();
        let mut dir = open(&job, &notices);
        fs::write(dir.root.join("step"), "one").unwrap();
        absorb(&mut dir, || true);
        fs::remove_dir_all(&dir.root).unwrap();
        fs::create_dir(&dir.root).unwrap();
        fs::write(dir.root.join("step"), "two").unwrap();
        dir.set_aside().unwrap();
        assert!(names(&dir).is_empty());
        absorb(&mut dir, || true);
        assert_eq!(fs::read_dir(job.path().join("ckpt.kept")).unwrap().count(), 0);
    }

    /// Of all files below: inode, mode, links, and content.
    fn state(directory: &std::path::Path) -> Vec<(u64, u32, u64, Vec<u8>)> {
        let all = ["torn", "locked", "locked/deep", "locked/deep/torn"].map(|name| directory.join(name));
        let one = |path: &std::path::PathBuf| {
            let meta = path.symlink_metadata().unwrap();
            (meta.ino(), meta.mode(), meta.nlink(), fs::read(path).unwrap_or_default())
        };
        all.iter().map(one).collect()
    }

    fn outside() -> (tempfile::TempDir, std::path::PathBuf) {
        let outside = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::create_dir_all(outside.path().join("locked/deep")).unwrap();
        for name in ["torn", "locked/deep/torn"] {
            fs::write(outside.path().join(name), "abc").unwrap();
        }
        let path = outside.path().to_path_buf();
        (outside, path)
    }

    #[test]
    fn what_lies_behind_a_link_is_nobody_s_to_touch() {
        let (_held, outside) = outside();
        let before = state(&outside);
        for at in ["", "link", "sub/link"] {
            let (job, notices) = job();
            let mut dir = open(&job, &notices);
            let link = if at.is_empty() { dir.root.clone() } else { dir.root.join(at) };
            if at.is_empty() {
                fs::remove_dir(&link).unwrap();
            } else {
                fs::create_dir_all(link.parent().unwrap()).unwrap();
                fs::write(dir.root.join("torn"), "abc").unwrap();
            }
            symlink(&outside, &link).unwrap();
            absorb(&mut dir, || true);
            let name = if at.is_empty() { "$FT_CHECKPOINT_DIR is a symbolic link to" } else { at };
            for said in [name, if at.is_empty() { name } else { "" }] {
                fs::write(outside.join("torn"), "abc").unwrap();
                absorb(&mut dir, || false);
                let notices = dir.set_aside().unwrap();
                let found = notices.iter().any(|notice| notice.contains(name));
                assert_eq!(found, !said.is_empty(), "links further down are named once: {notices:?}");
                assert_eq!(fs::read_link(&link).unwrap(), outside);
                assert_eq!(state(&outside), before);
            }
            ft_sys::job_dir::remove_tree(job.path()).unwrap();
            assert_eq!(state(&outside), before);
        }
    }

    #[test]
    fn a_file_that_has_another_name_outside_loses_the_one_here_and_nothing_else() {
        let (_held, outside) = outside();
        let (job, notices) = job();
        let mut dir = open(&job, &notices);
        let before = state(&outside);
        let writer = fs::OpenOptions::new().append(true).open(outside.join("torn")).unwrap();
        fs::hard_link(outside.join("torn"), dir.root.join("name")).unwrap();
        absorb(&mut dir, || true);
        let said = dir.set_aside().unwrap().join("\n");
        assert!(said.contains("name in $FT_CHECKPOINT_DIR is set aside") && names(&dir).is_empty(), "{said}");
        assert_eq!(fs::metadata(job.path().join("ckpt.aside/name")).unwrap().ino(), before[0].0);
        fs::write(dir.root.join("torn"), "abc").unwrap();
        dir.set_aside().unwrap();
        assert_eq!(state(&outside), before, "the other name, and what it names");
        drop(writer);
    }

    #[test]
    fn what_is_no_directory_gives_way_to_one() {
        let (job, notices) = job();
        let mut dir = open(&job, &notices);
        fs::remove_dir(&dir.root).unwrap();
        fs::write(&dir.root, "abc").unwrap();
        absorb(&mut dir, || true);
        let said = dir.set_aside().unwrap().join("\n");
        assert!(said.starts_with("$FT_CHECKPOINT_DIR was no directory any more"), "{said}");
        assert!(dir.root.is_dir() && fs::read(job.path().join("ckpt.aside/ckpt")).unwrap() == b"abc");
        fs::write(dir.root.join("file"), "abc").unwrap();
        absorb(&mut dir, || true);
        assert!(dir.set_aside().unwrap().is_empty());
        assert_eq!(names(&dir), ["file"]);
    }
}
