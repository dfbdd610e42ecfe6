//! What is brought back when something is set aside: the last whole file that had the name, or the last directory that had it
//! and was whole.
//!
//! The agent keeps each file that it has found whole ([`Kept`]), until a successor under the same name is whole, or the name
//! was given up. What was closed before a name was deleted (a successor that is about to be moved there) has been looked at
//! before it is let go of.

use super::super::aside::{Instead, Torn, one_line};
use super::super::kept::Entry;
use super::known::{Left, Name, State};
use super::{CheckpointDir, is_free};
use ft_sys::beneath::{is_foreign, path_of};
use ft_sys::unlocked::Unlocked;
use rustix::fs::{CWD, RenameFlags};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// A deleted file is let go of after this time also when so much is written all the time that some is never looked at.
const PATIENCE: Duration = Duration::from_secs(1);

enum Verdict {
    /// What is kept, if anything, is kept.
    Hold(Option<Entry>),
    /// It is of no use any more.
    Release(Entry),
    /// What is there is kept from now on, instead of this.
    Renew(Option<Entry>, Entry, PathBuf),
    /// There is nothing to do.
    Nothing,
}

/// A directory, or a file, as it was when it was whole.
struct Former {
    /// By their paths; where each is kept.
    files: Vec<(PathBuf, PathBuf)>,
    directories: Vec<PathBuf>,
    written: SystemTime,
}

impl CheckpointDir {
    /// The file is whole, and this is a name of it.
    pub(super) fn keep(&self, path: &Path, inode: u64) {
        let (Some(kept), Some(parent), Some(name)) = (&self.kept, path.parent(), path.file_name()) else { return };
        let Ok(directory) = self.beneath.directory(parent).and_then(|parent| parent.metadata()) else { return };
        // Of one that has another name by now there is a notice.
        let same = |file: &std::fs::File| file.metadata().is_ok_and(|meta| meta.ino() == inode);
        let Some(file) = self.beneath.file(path).filter(same) else { return };
        match kept.keep(directory.ino(), name, &file, inode) {
            Ok(Some(Entry::Directory(before))) => self.discard(before, &BTreeSet::new()),
            Ok(_) => {}
            // There is one protection less, and everything is as it would be without.
            Err(error) => tracing::debug!(path = %path.display(), %error, "a whole file is not kept"),
        }
    }

    /// This directory has this name. It counts when all that is in it is whole.
    pub(super) fn note_directory(&mut self, path: &Path, inode: u64) {
        let (Some(kept), Some(name), Some(parent)) = (&self.kept, path.file_name(), self.parent(path)) else { return };
        if path != self.root && kept.entry(parent, name) != Some(Entry::Directory(inode)) {
            let left = || Left { since: Instant::now(), deleted: false, given_up: false };
            self.left.entry((parent, name.to_os_string())).or_insert_with(left);
        }
    }

    /// The name stands for something else than before, or for nothing.
    pub(super) fn note_left(&mut self, directory: u64, name: OsString, deleted: bool) {
        if self.kept.is_some() {
            let left =
                self.left.entry((directory, name)).or_insert(Left { since: Instant::now(), deleted, given_up: false });
            left.deleted = deleted;
        }
    }

    /// The name was made, for a new file or directory. Where it had been deleted before, the old content was given up by that;
    /// it is only where another file is then moved, or linked, there that it was deleted for this one.
    pub(super) fn note_made(&mut self, directory: u64, name: OsString, path: &Path) {
        if let Some(left) = self.left.get_mut(&(directory, name))
            && left.deleted
        {
            left.given_up |= self.beneath.metadata(path).is_ok_and(|meta| meta.is_dir() || meta.nlink() < 2);
        }
    }

    fn is_given_up(&self, directory: u64, name: &OsStr) -> bool {
        self.left.get(&(directory, name.to_os_string())).is_some_and(|left| left.given_up)
    }

    /// Compares what an agent before this one has kept with what is there.
    pub(super) fn compare(&mut self) {
        let Some(kept) = &self.kept else { return };
        let directories = kept.directories().into_iter();
        let entries: Vec<_> = directories
            .flat_map(|directory| {
                kept.entries(directory).into_iter().map(move |(name, entry)| (directory, name, entry))
            })
            .collect();
        for (directory, name, entry) in entries {
            if self.actual(directory, &name).is_none_or(|(actual, _)| actual != entry) {
                self.note_left(directory, name, false);
            }
        }
    }

    /// Lets go of what is not needed any more. Everybody was alive when the last notices were taken in.
    pub(super) fn settle(&mut self) {
        if self.left.is_empty() {
            return;
        }
        let verdict = |(name, left): (&Name, &Left)| (name.clone(), self.verdict(name, left));
        let verdicts: Vec<(Name, Verdict)> = self.left.iter().map(verdict).collect();
        let mut held = BTreeSet::new();
        for (_, verdict) in &verdicts {
            if let Verdict::Hold(Some(Entry::Directory(directory))) = verdict {
                self.note_all_below(*directory, &mut held);
            }
        }
        for (name, verdict) in verdicts {
            if !held.contains(&name.0) && self.carry_out(&name, verdict, &held) {
                self.left.remove(&name);
            }
        }
    }

    fn verdict(&self, (directory, name): &Name, left: &Left) -> Verdict {
        let entry = self.kept.as_ref().and_then(|kept| kept.entry(*directory, name));
        if !self.pending.is_empty() && left.since.elapsed() < PATIENCE {
            return Verdict::Hold(entry);
        }
        match (self.actual(*directory, name), entry) {
            (Some((actual, _)), Some(entry)) if actual == entry => Verdict::Nothing,
            (Some((actual @ Entry::File(inode), path)), Some(_)) if self.is_whole(inode) => {
                Verdict::Renew(entry, actual, path)
            }
            (Some((actual @ Entry::Directory(_), path)), _) if self.is_successor(&path) => {
                Verdict::Renew(entry, actual, path)
            }
            (None, Some(entry)) => Verdict::Release(entry),
            (Some(_), Some(entry)) if left.deleted => Verdict::Release(entry),
            (Some((Entry::Directory(_), _)), None) | (Some(_), Some(_)) => Verdict::Hold(entry),
            (_, None) => Verdict::Nothing,
        }
    }

    /// Whether nothing remains to be done.
    fn carry_out(&self, (directory, name): &Name, verdict: Verdict, held: &BTreeSet<u64>) -> bool {
        let Some(kept) = &self.kept else { return true };
        let before = match verdict {
            Verdict::Hold(_) => return false,
            Verdict::Nothing => return true,
            Verdict::Release(entry) => {
                kept.release(*directory, name);
                kept.tidy(*directory);
                Some(entry)
            }
            Verdict::Renew(entry, found, path) => {
                // Something else may have the name by now, of which nothing is known.
                if self.actual(*directory, name).is_none_or(|(actual, _)| actual != found) {
                    return false;
                }
                match found {
                    Entry::Directory(inode) => drop(kept.mark(*directory, name, inode)),
                    Entry::File(inode) => self.keep(&path, inode),
                }
                entry
            }
        };
        if let Some(Entry::Directory(before)) = before {
            self.discard(before, held);
        }
        // A directory that is not whole yet is to be kept when it is.
        let (actual, kept) = (self.actual(*directory, name), kept.entry(*directory, name));
        kept.is_some() || !matches!(actual, Some((Entry::Directory(_), _)))
    }

    /// What has this name now, and where.
    fn actual(&self, directory: u64, name: &OsStr) -> Option<(Entry, PathBuf)> {
        let path = self.path_of(directory)?.join(name);
        let meta = self.beneath.metadata(&path).ok()?;
        match meta.file_type() {
            kind if kind.is_dir() => Some((Entry::Directory(meta.ino()), path)),
            kind if kind.is_file() => Some((Entry::File(meta.ino()), path)),
            _ => None,
        }
    }

    /// Where a directory is that is still there.
    fn path_of(&self, directory: u64) -> Option<&PathBuf> {
        let same = |path: &&PathBuf| self.beneath.metadata(path).is_ok_and(|meta| meta.ino() == directory);
        self.places.get(&directory).filter(same)
    }

    fn is_whole(&self, inode: u64) -> bool {
        self.files.get(&inode).is_some_and(|file| file.state == State::Whole)
    }

    /// Whether the directory that was there before is needed no more. What a living process has open (a log) counts for
    /// nothing: who renames a directory into place has closed its files.
    fn is_successor(&self, directory: &Path) -> bool {
        let entries = match self.beneath.directory(directory).and_then(|handle| std::fs::read_dir(path_of(&handle))) {
            Ok(entries) => entries,
            Err(error) => return is_foreign(&error),
        };
        entries.flatten().all(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => self.is_successor(&directory.join(entry.file_name())),
            Ok(kind) if kind.is_file() => {
                let state = self.files.get(&entry.ino()).map(|file| &file.state);
                matches!(state, Some(State::Whole | State::Open))
            }
            _ => true,
        })
    }

    /// A directory and all that are kept as having been in it.
    fn note_all_below(&self, directory: u64, found: &mut BTreeSet<u64>) {
        if !found.insert(directory) {
            return;
        }
        for (_, entry) in self.kept.iter().flat_map(|kept| kept.entries(directory)) {
            if let Entry::Directory(below) = entry {
                self.note_all_below(below, found);
            }
        }
    }

    /// Lets go of all that is kept of a directory which has lost a name, unless it has another one or is needed.
    fn discard(&self, directory: u64, held: &BTreeSet<u64>) {
        let mut all = BTreeSet::new();
        self.note_all_below(directory, &mut all);
        for directory in all.into_iter().filter(|one| !held.contains(one) && self.path_of(*one).is_none()) {
            for (name, _) in self.kept.iter().flat_map(|kept| kept.entries(directory)) {
                self.kept.iter().for_each(|kept| kept.release(directory, &name));
            }
            self.kept.iter().for_each(|kept| kept.tidy(directory));
        }
    }

    /// Puts what was there before, and was whole, in the place of what is torn, in one step: whenever an agent dies, one of
    /// them is there. `present` is all that has a name of its own still.
    pub(super) fn bring_back(&self, torn: Vec<Torn>, present: &HashSet<u64>, unlocked: &mut Unlocked) -> Vec<Torn> {
        let mut directories: BTreeMap<PathBuf, Vec<Torn>> = BTreeMap::new();
        let mut asked: BTreeMap<PathBuf, Option<Former>> = BTreeMap::new();
        let mut all = Vec::new();
        for each in torn {
            let mut above: Vec<_> = each.path.ancestors().skip(1).take_while(|above| **above != self.root).collect();
            above.reverse();
            let swapped = above.into_iter().find(|directory| {
                let ask = || self.former_directory(directory, present, unlocked);
                asked.entry(directory.to_path_buf()).or_insert_with(ask).is_some()
            });
            match swapped {
                Some(directory) => directories.entry(directory.to_path_buf()).or_default().push(each),
                None => all.push(self.exchange_file(each, present, unlocked)),
            }
        }
        for (directory, torn) in directories {
            let former = asked.remove(&directory).flatten();
            match former.as_ref().map(|former| self.exchange_directory(&directory, former)) {
                Some(Ok(lies)) => all.extend(self.replaced(directory, lies, &torn, former.as_ref())),
                failed => {
                    tracing::warn!(path = %directory.display(), ?failed, "what was there before cannot be brought back");
                    all.extend(torn);
                }
            }
        }
        all
    }

    /// What has been brought back is kept from now on, and not from the agent's first look at the next world on: that may have
    /// replaced it by then.
    pub(super) fn keep_again(&self, torn: &[Torn]) {
        for path in torn.iter().filter(|torn| torn.instead.is_some()).map(|torn| &torn.path) {
            if let Ok(meta) = self.beneath.metadata(path)
                && meta.is_file()
            {
                self.keep(path, meta.ino());
            }
        }
    }

    fn exchange_file(&self, mut torn: Torn, present: &HashSet<u64>, unlocked: &mut Unlocked) -> Torn {
        let mut find = || {
            let (kept, name) = (self.kept.as_ref()?, torn.path.file_name()?);
            let directory = self.parent(&torn.path)?;
            let Entry::File(inode) = kept.entry(directory, name).filter(|_| !self.is_given_up(directory, name))? else {
                return None;
            };
            let lies = kept.path(directory, name);
            let written = self.written_when_whole(&lies, inode, present, unlocked)?;
            Some((lies, written))
        };
        let Some((lies, written)) = find() else { return torn };
        let earlier = self.earlier(&torn.path, written);
        match self.exchange(&lies, &torn.path) {
            Ok(()) => torn.instead = Some(Instead { lies, earlier }),
            Err(error) => {
                tracing::warn!(path = %torn.path.display(), %error, "the file before it cannot be brought back");
            }
        }
        torn
    }

    /// The last directory of this name that was whole, if it is another one and has been lost.
    fn former_directory(&self, path: &Path, present: &HashSet<u64>, unlocked: &mut Unlocked) -> Option<Former> {
        let (parent, name) = (self.parent(path)?, path.file_name()?);
        let Entry::Directory(before) = self.kept.as_ref()?.entry(parent, name)? else { return None };
        if self.is_given_up(parent, name) || self.beneath.metadata(path).ok()?.ino() == before {
            return None;
        }
        let mut former = Former { files: Vec::new(), directories: Vec::new(), written: SystemTime::UNIX_EPOCH };
        self.collect(before, Path::new(""), &mut former, present, unlocked)?;
        (!former.files.is_empty()).then_some(former)
    }

    /// `None` when anything of it is not whole: then all of it is of no use.
    fn collect(
        &self,
        directory: u64,
        path: &Path,
        former: &mut Former,
        present: &HashSet<u64>,
        unlocked: &mut Unlocked,
    ) -> Option<()> {
        let kept = self.kept.as_ref()?;
        for (name, entry) in kept.entries(directory) {
            let path = path.join(&name);
            match entry {
                Entry::File(inode) => {
                    let lies = kept.path(directory, &name);
                    former.written = former.written.max(self.written_when_whole(&lies, inode, present, unlocked)?);
                    former.files.push((path, lies));
                }
                Entry::Directory(below) => {
                    former.directories.push(path.clone());
                    self.collect(below, &path, former, present, unlocked)?;
                }
            }
        }
        Some(())
    }

    /// When a file that is kept was written, if it is whole, and has been lost.
    fn written_when_whole(
        &self,
        lies: &Path,
        inode: u64,
        present: &HashSet<u64>,
        unlocked: &mut Unlocked,
    ) -> Option<SystemTime> {
        if present.contains(&inode) || !self.is_whole(inode) {
            return None;
        }
        let file = self.beneath.file(lies)?;
        unlocked.permit(&file, 0o400);
        if file.metadata().ok()?.ino() != inode || !is_free(&file, || ()).unwrap_or(false) {
            return None;
        }
        file.metadata().ok()?.modified().ok()
    }

    /// Returns where the one that was there lies.
    fn exchange_directory(&self, path: &Path, former: &Former) -> io::Result<PathBuf> {
        let draft = self.root.with_extension("back");
        let beneath = &self.beneath;
        match ft_sys::job_dir::remove_tree(&beneath.spot(&draft)?.path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => std::fs::create_dir(beneath.spot(&draft)?.path())?,
        }
        for directory in &former.directories {
            beneath.make_directories(&draft.join(directory))?;
        }
        for (name, lies) in &former.files {
            std::fs::hard_link(beneath.spot(lies)?.path(), beneath.spot(&draft.join(name))?.path())?;
        }
        let permissions = beneath.directory(path)?.metadata()?.permissions();
        std::fs::set_permissions(path_of(&beneath.directory(&draft)?), permissions)?;
        self.exchange(&draft, path)?;
        Ok(draft)
    }

    fn replaced(&self, directory: PathBuf, lies: PathBuf, torn: &[Torn], former: Option<&Former>) -> Option<Torn> {
        let first = torn.first()?;
        let name = first.path.strip_prefix(&directory).unwrap_or(&first.path);
        let why = format!("of what is in it, {} is not known to be whole: {}", one_line(name), first.why);
        let now = lies.join(name);
        let earlier = former.and_then(|former| self.earlier(&now, former.written));
        Some(Torn { path: directory, why, instead: Some(Instead { lies, earlier }) })
    }

    /// How much older something is than the file, as far as their times tell.
    fn earlier(&self, file: &Path, written: SystemTime) -> Option<Duration> {
        self.beneath.metadata(file).ok()?.modified().ok()?.duration_since(written).ok()
    }

    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        let (one, other) = (self.beneath.spot(one)?, self.beneath.spot(other)?);
        Ok(rustix::fs::renameat_with(CWD, one.path(), CWD, other.path(), RenameFlags::EXCHANGE)?)
    }

    /// The inode of the directory that this is in.
    fn parent(&self, path: &Path) -> Option<u64> {
        Some(self.beneath.directory(path.parent()?).ok()?.metadata().ok()?.ino())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Job, absorb, dies, job, names, open};
    use super::*;
    use std::fs::{self, File, OpenOptions};
    use std::os::fd::OwnedFd;

    /// With these files, which are whole.
    fn with(files: &[&str]) -> (Job, OwnedFd, CheckpointDir) {
        let (job, notices) = job();
        let mut dir = open(&job, &notices);
        write(&dir, files, "one");
        absorb(&mut dir, || true);
        (job, notices, dir)
    }

    fn write(dir: &CheckpointDir, files: &[&str], text: &str) {
        for path in files.iter().map(|name| dir.root.join(name)) {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    fn rename(dir: &CheckpointDir, from: &str, to: &str) {
        fs::rename(dir.root.join(from), dir.root.join(to)).unwrap();
    }

    fn read(dir: &CheckpointDir, name: &str) -> String {
        fs::read_to_string(dir.root.join(name)).unwrap()
    }

    fn links(file: &File) -> u64 {
        file.metadata().unwrap().nlink()
    }

    fn kept(job: &Job) -> usize {
        let files = |room: fs::DirEntry| fs::read_dir(room.path()).unwrap().count();
        fs::read_dir(job.path().join("ckpt.kept")).unwrap().map(Result::unwrap).map(files).sum()
    }

    #[test]
    fn a_file_that_was_renamed_over_comes_back_when_its_successor_is_torn() {
        let (job, _notices, mut dir) = with(&["step"]);
        write(&dir, &["step.tmp"], "two");
        rename(&dir, "step.tmp", "step");
        absorb(&mut dir, || false);
        let said = dir.set_aside().unwrap().join("\n");
        assert_eq!((names(&dir), read(&dir, "step")), (vec!["step".to_string()], "one".to_string()), "{said}");
        assert!(said.contains("step in $FT_CHECKPOINT_DIR is set aside: it was written so shortly"), "{said}");
        assert!(said.contains("; the whole one before it, written ") && said.contains("is in its place"), "{said}");
        assert_eq!(fs::read(job.path().join("ckpt.aside/step")).unwrap(), b"two");
        // And again in the next world, also when several follow each other before anybody looks.
        absorb(&mut dir, || true);
        for text in ["two", "three"] {
            write(&dir, &["step.tmp"], text);
            rename(&dir, "step.tmp", "step");
        }
        absorb(&mut dir, || false);
        dir.set_aside().unwrap();
        assert_eq!(read(&dir, "step"), "one");
    }

    #[test]
    fn nothing_is_kept_that_has_a_whole_successor_or_was_deleted() {
        let (job, _notices, mut dir) = with(&["step", "other", "moved"]);
        let [step, other, moved] = ["step", "other", "moved"].map(|name| File::open(dir.root.join(name)).unwrap());
        assert_eq!((links(&step), kept(&job)), (2, 3));
        write(&dir, &["step.tmp"], "two");
        rename(&dir, "step.tmp", "step");
        fs::remove_file(dir.root.join("other")).unwrap();
        fs::rename(dir.root.join("moved"), job.path().join("elsewhere")).unwrap();
        absorb(&mut dir, || true);
        assert_eq!((links(&step), links(&other), links(&moved), kept(&job)), (0, 0, 1, 1));
        drop(step);
        // The next one is written under the same name: its author has given the old one up.
        let step = File::open(dir.root.join("step")).unwrap();
        fs::remove_file(dir.root.join("step")).unwrap();
        let next = File::create(dir.root.join("step")).unwrap();
        absorb(&mut dir, || true);
        assert_eq!((links(&step), links(&next)), (0, 1));
        drop((step, other));
        absorb(&mut dir, || true);
        assert_eq!(dir.files.len(), 2, "watches are given back, but for what was moved out");
    }

    #[test]
    fn a_file_that_is_deleted_for_its_successor_comes_back() {
        for order in [["step", "step.old"], ["step", "step"]] {
            let (_job, _notices, mut dir) = with(&["step"]);
            write(&dir, &["step.tmp"], "two");
            if order[0] != order[1] {
                rename(&dir, order[0], order[1]);
            }
            fs::remove_file(dir.root.join(order[1])).unwrap();
            rename(&dir, "step.tmp", "step");
            absorb(&mut dir, || false);
            dir.set_aside().unwrap();
            assert_eq!((names(&dir), read(&dir, "step")), (vec!["step".to_string()], "one".to_string()));
        }
    }

    #[test]
    fn what_was_deleted_before_the_next_was_written_does_not_come_back() {
        let (_job, _notices, mut dir) = with(&["step", "linked", "directory/a"]);
        fs::remove_file(dir.root.join("step")).unwrap();
        fs::remove_dir_all(dir.root.join("directory")).unwrap();
        write(&dir, &["step", "directory/a", "linked.tmp"], "two");
        fs::remove_file(dir.root.join("linked")).unwrap();
        fs::hard_link(dir.root.join("linked.tmp"), dir.root.join("linked")).unwrap();
        absorb(&mut dir, || false);
        let said = dir.set_aside().unwrap().join("\n");
        assert_eq!((names(&dir), read(&dir, "linked")), (vec!["linked".to_string()], "one".to_string()), "{said}");
    }

    #[test]
    fn what_has_a_name_still_is_not_given_a_second_one() {
        let (_job, _notices, mut dir) = with(&["step.0"]);
        write(&dir, &["new"], "two");
        rename(&dir, "step.0", "step.1");
        rename(&dir, "new", "step.0");
        absorb(&mut dir, || false);
        dir.set_aside().unwrap();
        assert_eq!((names(&dir), read(&dir, "step.1")), (vec!["step.1".to_string()], "one".to_string()));
    }

    #[test]
    fn what_was_written_again_is_no_predecessor() {
        let (_job, _notices, mut dir) = with(&["step"]);
        let mut old = OpenOptions::new().write(true).open(dir.root.join("step")).unwrap();
        std::io::Write::write_all(&mut old, b"x").unwrap();
        write(&dir, &["step.tmp"], "two");
        rename(&dir, "step.tmp", "step");
        absorb(&mut dir, || false);
        drop(old);
        let said = dir.set_aside().unwrap().join("\n");
        assert!(names(&dir).is_empty() && !said.contains("the whole one"), "{said}");
    }

    #[test]
    fn a_successor_that_somebody_left_torn_or_has_open_lets_go_of_nothing() {
        let (_job, _notices, mut dir) = with(&["step", "open"]);
        let torn = File::create(dir.root.join("step.tmp")).unwrap();
        let open = File::create(dir.root.join("open.tmp")).unwrap();
        rename(&dir, "step.tmp", "step");
        rename(&dir, "open.tmp", "open");
        absorb(&mut dir, || true);
        dies(&mut dir, &[&torn], true);
        drop(torn);
        absorb(&mut dir, || true);
        let said = dir.set_aside().unwrap().join("\n");
        drop(open);
        assert_eq!((read(&dir, "step"), read(&dir, "open")), ("one".to_string(), "one".to_string()), "{said}");
    }

    #[test]
    fn a_directory_comes_back_as_one() {
        let swaps: [fn(&CheckpointDir); 3] = [
            |dir| {
                rename(dir, "step", "old");
                rename(dir, "part", "step");
                fs::remove_dir_all(dir.root.join("old")).unwrap();
            },
            |dir| {
                fs::remove_dir_all(dir.root.join("step")).unwrap();
                rename(dir, "part", "step");
            },
            |dir| {
                dir.exchange(&dir.root.join("part"), &dir.root.join("step")).unwrap();
                fs::remove_dir_all(dir.root.join("part")).unwrap();
            },
        ];
        for swap in swaps {
            let (job, _notices, mut dir) = with(&["step/a", "step/deep/b", "beside"]);
            write(&dir, &["part/a", "part/deep/c"], "two");
            absorb(&mut dir, || true);
            write(&dir, &["part/deep/b"], "two");
            swap(&dir);
            absorb(&mut dir, || false);
            let said = dir.set_aside().unwrap().join("\n");
            assert_eq!(names(&dir), ["beside", "step/a", "step/deep/b"], "{said}");
            assert_eq!((read(&dir, "step/a"), read(&dir, "step/deep/b")), ("one".to_string(), "one".to_string()));
            assert!(said.contains("step in $FT_CHECKPOINT_DIR is set aside: of what is in it, deep/b is"), "{said}");
            assert!(job.path().join("ckpt.aside/step/deep/c").exists() && !job.path().join("ckpt.back").exists());
            // All of it is whole, and nothing else is kept.
            absorb(&mut dir, || true);
            assert!(dir.set_aside().unwrap().is_empty());
            assert_eq!(kept(&job), 3 + 2);
            write(&dir, &["part/a"], "three");
            swap(&dir);
            absorb(&mut dir, || true);
            absorb(&mut dir, || true);
            assert_eq!((kept(&job), dir.files.len()), (2 + 1, 2));
        }
    }

    #[test]
    fn a_directory_that_was_never_whole_does_not_come_back() {
        let (_job, _notices, mut dir) = with(&["part/a"]);
        write(&dir, &["part/b"], "one");
        rename(&dir, "part", "step");
        absorb(&mut dir, || false);
        write(&dir, &["part/a", "part/b"], "two");
        dir.exchange(&dir.root.join("part"), &dir.root.join("step")).unwrap();
        fs::remove_dir_all(dir.root.join("part")).unwrap();
        absorb(&mut dir, || false);
        let said = dir.set_aside().unwrap().join("\n");
        assert!(names(&dir).is_empty() && !said.contains("the whole one"), "{said}");
    }

    #[test]
    fn a_directory_that_was_deleted_and_is_written_anew_holds_no_memory() {
        let (_job, _notices, mut dir) = with(&["step/a", "step/deep/b"]);
        let old = ["step/a", "step/deep/b"].map(|name| File::open(dir.root.join(name)).unwrap());
        fs::remove_dir_all(dir.root.join("step")).unwrap();
        fs::create_dir(dir.root.join("step")).unwrap();
        let next = File::create(dir.root.join("step/a")).unwrap();
        absorb(&mut dir, || true);
        assert_eq!(old.each_ref().map(links), [0, 0]);
        drop(next);
        // From then on it is what the name stands for.
        absorb(&mut dir, || true);
        write(&dir, &["part/a"], "three");
        dir.exchange(&dir.root.join("part"), &dir.root.join("step")).unwrap();
        fs::remove_dir_all(dir.root.join("part")).unwrap();
        absorb(&mut dir, || false);
        dir.set_aside().unwrap();
        assert_eq!((names(&dir), read(&dir, "step/a")), (vec!["step/a".to_string()], String::new()));
    }

    #[test]
    fn a_directory_with_a_log_that_is_open_is_a_successor() {
        let (_job, _notices, mut dir) = with(&["step/a"]);
        write(&dir, &["part/a"], "two");
        let log = File::create(dir.root.join("part/log")).unwrap();
        fs::remove_dir_all(dir.root.join("step")).unwrap();
        rename(&dir, "part", "step");
        absorb(&mut dir, || true);
        dir.set_aside().unwrap();
        drop(log);
        assert_eq!((names(&dir), read(&dir, "step/a")), (vec!["step/a".to_string()], "two".to_string()));
    }

    #[test]
    fn the_next_agent_brings_back_what_the_last_one_has_kept() {
        let (job, notices, dir) = with(&["step", "deep/step", "gone"]);
        let gone = File::open(dir.root.join("gone")).unwrap();
        drop(fs::remove_file(dir.root.join("gone")));
        let root = dir.root.clone();
        drop(dir);
        for name in ["step", "deep/step"] {
            fs::write(root.join("tmp"), "two").unwrap();
            fs::rename(root.join("tmp"), root.join(name)).unwrap();
        }
        let mut dir = open(&job, &notices);
        dir.set_aside().unwrap();
        assert_eq!((read(&dir, "step"), read(&dir, "deep/step")), ("one".to_string(), "one".to_string()));
        absorb(&mut dir, || true);
        assert_eq!((links(&gone), kept(&job)), (0, 3));
    }

    #[test]
    fn what_was_brought_back_is_kept_before_anybody_looks_at_the_next_world() {
        let (_job, _notices, mut dir) = with(&["step"]);
        for text in ["two", "three", "four"] {
            write(&dir, &["step.tmp"], text);
            rename(&dir, "step.tmp", "step");
            absorb(&mut dir, || false);
            let said = dir.set_aside().unwrap().join("\n");
            assert_eq!((names(&dir), read(&dir, "step")), (vec!["step".to_string()], "one".to_string()), "{said}");
        }
    }

    #[test]
    fn nothing_is_let_go_of_for_what_was_replaced_meanwhile() {
        let (_job, _notices, mut dir) = with(&["step", "next"]);
        let name = (dir.root_inode.unwrap(), OsString::from("step"));
        let before = dir.kept.as_ref().unwrap().entry(name.0, &name.1);
        rename(&dir, "next", "step");
        let (found, path) = dir.actual(name.0, &name.1).unwrap();
        write(&dir, &["step.tmp"], "two");
        rename(&dir, "step.tmp", "step");
        assert!(!dir.carry_out(&name, Verdict::Renew(before, found, path), &BTreeSet::new()));
        absorb(&mut dir, || false);
        dir.set_aside().unwrap();
        assert_eq!((names(&dir), read(&dir, "step")), (vec!["step".to_string()], "one".to_string()));
    }

    #[test]
    fn an_agent_that_was_killed_while_it_worked_in_notices_loses_nothing() {
        let (job, notices, mut dir) = with(&["step", "again", "beside"]);
        for _ in 0..2 {
            write(&dir, &["step.tmp"], "two");
            rename(&dir, "step.tmp", "step");
            write(&dir, &["again"], "tow");
            assert!(!dir.read_notices().is_empty());
            drop(dir);
            dir = open(&job, &notices);
            let said = dir.set_aside().unwrap().join("\n");
            assert_eq!(
                (names(&dir), read(&dir, "step")),
                (vec!["beside".into(), "step".into()], "one".into()),
                "{said}"
            );
        }
    }

    #[test]
    fn where_nobody_brings_anything_back_nothing_is_kept() {
        let (job, notices) = job();
        let mut dir = CheckpointDir::open(job.path(), notices, false).unwrap();
        write(&dir, &["step"], "one");
        absorb(&mut dir, || true);
        assert_eq!(links(&File::open(dir.root.join("step")).unwrap()), 1);
        assert!(!job.path().join("ckpt.kept").exists());
    }
}
