//! What is known of each file in the directory.

mod known;
mod predecessors;
mod root;

use super::aside::{self, Torn};
use super::helpers::{Death, Survey};
use super::journal::Journal;
use super::kept::Kept;
use super::name::NAME;
use super::queue::{Notice, Queue, WatchId};
use ft_sys::beneath::{Beneath, is_foreign, path_of};
use ft_sys::unlocked::Unlocked;
use known::{Left, Name, State};
use nix::libc;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// So many files are looked at between two questions whether everybody lives, and between two rests.
const AT_ONCE: usize = 64;

/// Why a file is set aside.
const OPEN: &str = "it was open for writing up to the failure";

#[derive(Debug)]
struct Known {
    watch: Option<WatchId>,
    /// A name that it had.
    path: PathBuf,
    state: State,
}

/// A directory that is watched.
#[derive(Debug)]
struct Place {
    inode: u64,
    path: PathBuf,
}

/// What is to be looked at.
#[derive(Debug, Default)]
struct Awaited {
    /// The file that is expected there.
    inode: Option<u64>,
    /// Somebody died who may have closed it.
    doubt: Option<Arc<str>>,
}

/// What is in the directory when a world has ended.
#[derive(Debug, Default)]
struct Found {
    /// To be set aside.
    torn: Vec<Torn>,
    /// The inodes of all files.
    present: HashSet<u64>,
    /// Behind these is what the program has linked or mounted.
    foreign: Vec<PathBuf>,
}

/// The watched directory.
#[derive(Debug)]
pub struct CheckpointDir {
    /// The job's directory: nothing is looked at or changed by a path that leads out of it.
    beneath: Beneath,
    /// Its watch tells when another root is made.
    job: Option<WatchId>,
    root: PathBuf,
    /// The directory that has this path, if one of the job's own has it.
    root_inode: Option<u64>,
    /// What was last said to be nobody's to touch.
    foreign: Vec<PathBuf>,
    aside: PathBuf,
    queue: Queue,
    journal: Journal,
    directories: HashMap<WatchId, Place>,
    /// Where they are, by inode.
    places: HashMap<u64, PathBuf>,
    /// By inode; all lie in one file system.
    files: HashMap<u64, Known>,
    inodes: HashMap<WatchId, u64>,
    pending: BTreeMap<PathBuf, Awaited>,
    /// Inodes that somebody had open for writing when they were looked at.
    open: BTreeSet<u64>,
    /// Those of which a process is known that has, or had, the file open.
    explained: BTreeSet<u64>,
    /// Names that were to be looked at and are no more, or are another file's by now; what they named may have another one (a
    /// hard link).
    gone: BTreeSet<PathBuf>,
    /// The last whole file under each name; `None` where nobody would bring one back.
    kept: Option<Kept>,
    /// Names under which something may be kept that is not needed any more.
    left: BTreeMap<Name, Left>,
}

impl CheckpointDir {
    /// Creates or takes over the directory in `job_dir`. `keeps`: whole files are kept, to be brought back.
    ///
    /// # Errors
    /// When the directory cannot be made or watched.
    pub fn open(job_dir: &Path, notices: OwnedFd, keeps: bool) -> io::Result<Self> {
        let journal = job_dir.join(format!("{}.whole", NAME));
        let taken_over = journal.exists();
        let (journal, whole) = Journal::open(&journal)?;
        let known = |(inode, watch)| (inode, Known { watch: Some(watch), path: PathBuf::new(), state: State::Whole });
        let kept = keeps.then(|| Kept::open(job_dir, &format!("{}.kept", NAME))).transpose();
        let kept = kept.unwrap_or_else(|error| {
            tracing::warn!(%error, "no whole files can be kept");
            None
        });
        // Without a journal nobody knows whether they are whole.
        kept.iter().filter(|_| whole.is_empty()).for_each(Kept::clear);
        let mut directory = CheckpointDir {
            beneath: Beneath::open(job_dir)?,
            job: None,
            root_inode: None,
            foreign: Vec::new(),
            kept,
            left: BTreeMap::new(),
            places: HashMap::new(),
            root: job_dir.join(NAME),
            aside: job_dir.join(format!("{}.aside", NAME)),
            queue: Queue::new(notices),
            journal,
            directories: HashMap::new(),
            inodes: whole.iter().map(|(inode, watch)| (*watch, *inode)).collect(),
            files: whole.into_iter().map(known).collect(),
            pending: BTreeMap::new(),
            open: BTreeSet::new(),
            explained: BTreeSet::new(),
            gone: BTreeSet::new(),
        };
        let own = directory.beneath.directory(job_dir)?;
        directory.job = Some(directory.queue.watch_directory(&path_of(&own))?);
        match directory.make() {
            // The program may have removed it, and there is no room for another one now, or no watch.
            Err(error) if taken_over => tracing::warn!(%error, "a part of $FT_CHECKPOINT_DIR cannot be watched"),
            made => made?,
        }
        directory.compare();
        directory.drain();
        Ok(directory)
    }

    /// Watches a directory and those in it, and looks at all files there. First the watch, then the look: nothing that
    /// appears in between is missed. One that was renamed keeps its watch, and the new path is learnt here.
    fn watch_tree(&mut self, directory: PathBuf) -> io::Result<()> {
        let mut directories = vec![directory];
        let mut first = Ok(());
        while let Some(directory) = directories.pop() {
            match self.watch_directory(&directory) {
                Ok(entries) => {
                    for entry in entries.flatten() {
                        let path = directory.join(entry.file_name());
                        match entry.file_type() {
                            Ok(kind) if kind.is_dir() => directories.push(path),
                            Ok(kind) if kind.is_file() => drop(self.pending.entry(path).or_default()),
                            _ => {}
                        }
                    }
                }
                Err(error) if is_foreign(&error) => {}
                // It may be gone, or have another name already, of which there is a notice. Else its files are not known
                // to be whole.
                Err(error) => {
                    tracing::debug!(path = %directory.display(), %error, "a directory cannot be watched");
                    first = first.and(Err(error));
                }
            }
        }
        first
    }

    /// Returns what is in it.
    fn watch_directory(&mut self, path: &Path) -> io::Result<std::fs::ReadDir> {
        let handle = self.beneath.directory(path)?;
        let (watch, inode) = (self.queue.watch_directory(&path_of(&handle))?, handle.metadata()?.ino());
        self.queue.watch_opening(&path_of(&handle), watch);
        self.directories.insert(watch, Place { inode, path: path.to_path_buf() });
        self.places.insert(inode, path.to_path_buf());
        self.note_directory(path, inode);
        std::fs::read_dir(path_of(&handle))
    }

    /// Takes in what happened since the last call, and looks at some of the files that it concerns. Returns whether there are
    /// more to be looked at now. `survey` looks at the processes.
    pub fn absorb(&mut self, mut survey: impl FnMut() -> Survey) -> bool {
        // In this order: whoever is found dead has closed what it had, and the notices of that are there.
        let before = survey();
        self.drain();
        self.doubt(before.deaths, &before.writing);
        let alive = before.all_alive && !self.pending.is_empty() && self.look_at_some(&before.writing, survey);
        if before.all_alive {
            self.settle();
        }
        self.shorten_journal();
        alive && !self.pending.is_empty()
    }

    /// Watches nothing any more. An agent that comes after this knows of no whole file.
    pub fn let_go(&mut self) {
        self.journal.nothing();
        let files = self.files.values_mut().filter_map(|file| file.watch.take());
        let watches = self.directories.drain().map(|(watch, _)| watch).chain(self.job.take()).chain(files);
        let queue = &mut self.queue;
        watches.for_each(|watch| queue.forget(watch));
    }

    /// Readable when a file was opened; `None` where nobody says so.
    pub fn opened(&self) -> Option<OwnedFd> {
        self.queue.opened().ok().flatten()
    }

    /// Whether somebody was writing when this was last looked at.
    pub fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.pending.is_empty() && self.left.is_empty() && !self.queue.is_ready()
    }

    /// Returns whether everybody was alive: a death makes these looks worth nothing. `writing` is what others were seen to write.
    fn look_at_some(&mut self, writing: &BTreeSet<u64>, mut survey: impl FnMut() -> Survey) -> bool {
        let batch: Vec<_> = (0..AT_ONCE).map_while(|_| self.pending.pop_first()).collect();
        let looked: Vec<(u64, PathBuf)> =
            batch.into_iter().filter_map(|(path, awaited)| Some((self.look(&path, &awaited)?, path))).collect();
        let after = survey();
        let calm = after.all_alive && after.deaths.is_empty();
        // A closing of which there is a notice only now may have been that of a writer who came after the look.
        self.drain();
        for (inode, path) in looked {
            let Some(file) = self.files.get_mut(&inode).filter(|file| file.state == State::Looked) else {
                continue;
            };
            if !calm {
                file.state = State::Closed;
                self.await_look(path, Some(inode));
            } else if let Some(watch) = file.watch {
                file.state = State::Whole;
                // In this order: to keep it lets go of the one before it. Whenever an agent dies, the next one finds one of them
                // kept and knows that it is whole.
                self.journal.whole(inode, watch);
                ft_sys::gate::reach("agent.whole", None);
                self.keep(&path, inode);
            }
        }
        self.explained.extend(self.open.intersection(writing).chain(self.open.intersection(&after.writing)));
        self.doubt(after.deaths, &after.writing);
        if self.pending.is_empty() {
            self.find_other_names();
        }
        after.all_alive
    }

    fn await_look(&mut self, path: PathBuf, inode: Option<u64>) {
        let awaited = self.pending.entry(path).or_default();
        awaited.inode = inode.or(awaited.inode);
    }

    /// Works in deaths of which all notices have been taken out of the queue. `writing` is what others were seen to write.
    fn doubt(&mut self, deaths: Vec<Death>, writing: &BTreeSet<u64>) {
        for Death { why, files, sudden } in deaths {
            for inode in &files {
                self.tear(*inode, &why);
            }
            let beneath = &self.beneath;
            let inode = |path: &Path, awaited: &Awaited| {
                awaited.inode.or_else(|| beneath.metadata(path).map(|meta| meta.ino()).ok())
            };
            let pending = self.pending.iter().filter_map(|(path, awaited)| inode(path, awaited));
            // What else ends in an ordinary way wrote nothing here, as `seq` in `seq | head > file`.
            let any = sudden || self.files.keys().copied().chain(pending).any(|inode| files.contains(&inode));
            for (path, awaited) in self.pending.iter_mut().filter(|_| any) {
                let Some(inode) = inode(path, awaited) else { continue };
                let others = self.explained.contains(&inode) || writing.contains(&inode);
                // However much it was seen to have open: it may have opened one more, and closed that by its end.
                if files.contains(&inode) || !others {
                    awaited.doubt.get_or_insert_with(|| why.clone());
                }
            }
        }
    }

    /// Who had this file open for writing has died. Nothing follows if it is none of those here, or was whole.
    fn tear(&mut self, inode: u64, why: &Arc<str>) {
        let open = self.open.contains(&inode);
        let Some(file) = self.files.get_mut(&inode).filter(|file| open || file.state != State::Whole) else {
            return;
        };
        let torn = State::Torn { why: why.clone(), free: false };
        match (std::mem::replace(&mut file.state, torn), file.watch) {
            (before @ State::Torn { .. }, _) => file.state = before,
            (State::Whole, Some(watch)) => self.journal.unknown(inode, watch),
            _ => {}
        }
        let path = file.path.clone();
        self.await_look(path, Some(inode));
    }

    /// Files that are not known to be whole, and whose names are gone, are looked for under others.
    fn find_other_names(&mut self) {
        let gone = std::mem::take(&mut self.gone);
        let lost = |file: &Known| file.state != State::Whole && gone.contains(&file.path);
        if !gone.is_empty() && self.files.values().any(lost) {
            // What cannot be watched is not known to be whole; why stands in the log.
            let _ = self.watch_tree(self.root.clone());
        }
    }

    fn shorten_journal(&mut self) {
        if self.journal.is_long(self.files.len()) {
            let whole = self.files.iter().filter(|(_, file)| file.state == State::Whole);
            let whole: BTreeMap<u64, WatchId> = whole.filter_map(|(inode, file)| Some((*inode, file.watch?))).collect();
            self.journal.rewrite(&whole);
        }
    }

    /// Looks at the file with that name, unless it is known to be whole; the inode if nobody has it open for writing. Where
    /// another file was expected, that one is to be found.
    fn look(&mut self, path: &Path, awaited: &Awaited) -> Option<u64> {
        let Some(handle) = self.beneath.file(path) else {
            self.gone.insert(path.to_path_buf());
            return None;
        };
        let inode = handle.metadata().ok()?.ino();
        if awaited.inode.is_some_and(|expected| expected != inode) {
            self.gone.insert(path.to_path_buf());
        }
        if let Some(file) = self.files.get_mut(&inode) {
            file.path = path.to_path_buf();
            if file.state == State::Whole {
                self.keep(path, inode);
                return None;
            }
        }
        self.explained.remove(&inode);
        let free = self.watch_file(&handle, inode, path).and_then(|()| self.is_free(&handle));
        let file =
            self.files.entry(inode).or_insert(Known { watch: None, path: path.to_path_buf(), state: State::Closed });
        file.state = state(&file.state, free, awaited.doubt.as_ref());
        match file.state {
            State::Open | State::Torn { free: false, .. } => self.open.insert(inode),
            _ => self.open.remove(&inode),
        };
        (file.state == State::Looked).then_some(inode)
    }

    /// Whether nobody has the file open for writing. Whoever changes it after that is told of.
    fn is_free(&self, handle: &File) -> io::Result<bool> {
        let mut watched = Ok(0);
        let free = is_free(handle, || watched = self.queue.watch_change(&path_of(handle)))?;
        watched.map(|_| free)
    }

    fn watch_file(&mut self, handle: &File, inode: u64, path: &Path) -> io::Result<()> {
        if self.files.get(&inode).is_some_and(|file| file.watch.is_some()) {
            return Ok(());
        }
        let watch = self.queue.watch_file(&path_of(handle))?;
        self.inodes.insert(watch, inode);
        self.files.insert(inode, Known { watch: Some(watch), path: path.to_path_buf(), state: State::Closed });
        Ok(())
    }

    /// Takes the notices out of the queue.
    fn drain(&mut self) {
        while self.queue.is_ready() {
            for notice in self.read_notices() {
                self.take(notice);
            }
        }
    }

    fn read_notices(&mut self) -> Vec<Notice> {
        self.journal.begin();
        let notices = self.queue.take();
        notices.iter().for_each(|notice| self.write_down(notice));
        self.journal.end();
        notices
    }

    /// What the next agent must know of a notice if this one is killed before it has worked it in: it looks at all that is there
    /// by itself, but no other notice tells which files are no longer known to be whole. So the mark stands for as long as it
    /// takes to read and to write a few bytes, and not while directories are looked through.
    fn write_down(&mut self, notice: &Notice) {
        match notice {
            Notice::Closed(watch) | Notice::Ended(watch) => {
                let whole = |inode: &u64| self.files.get(inode).is_some_and(|file| file.state == State::Whole);
                if let Some(inode) = self.inodes.get(watch).copied().filter(whole) {
                    self.journal.unknown(inode, *watch);
                }
            }
            Notice::Overflow => self.journal.nothing(),
            Notice::Appeared { .. } | Notice::Left { .. } | Notice::Changed(_) => {}
        }
    }

    fn take(&mut self, notice: Notice) {
        match notice {
            Notice::Appeared { directory, name, .. } | Notice::Left { directory, name, .. }
                if self.is_root(directory, &name) =>
            {
                if let Err(error) = self.follow_root() {
                    tracing::warn!(%error, "a part of $FT_CHECKPOINT_DIR cannot be watched");
                }
            }
            Notice::Appeared { directory, name, is_directory, made } => {
                let Some(place) = self.directories.get(&directory) else { return };
                let (path, inode) = (place.path.join(&name), place.inode);
                if made {
                    self.note_made(inode, name, &path);
                }
                if is_directory {
                    // Why not stands in the log.
                    let _ = self.watch_tree(path);
                } else {
                    self.await_look(path, None);
                }
            }
            Notice::Left { directory, name, deleted } => {
                if let Some(inode) = self.directories.get(&directory).map(|place| place.inode) {
                    self.note_left(inode, name, deleted);
                }
            }
            Notice::Changed(watch) => self.changed(watch),
            Notice::Closed(watch) => {
                let Some(inode) = self.inodes.get(&watch) else { return };
                let Some(file) = self.files.get_mut(inode) else { return };
                file.state = match std::mem::replace(&mut file.state, State::Closed) {
                    State::Open | State::OpenAtLast => State::OpenAtLast,
                    torn @ State::Torn { free: false, .. } => torn,
                    _ => State::Closed,
                };
                let (path, inode) = (file.path.clone(), *inode);
                self.await_look(path, Some(inode));
            }
            Notice::Ended(watch) => {
                if let Some(place) = self.directories.remove(&watch) {
                    self.queue.forget(watch);
                    self.places.remove(&place.inode);
                }
                if let Some(inode) = self.inodes.remove(&watch) {
                    self.open.remove(&inode);
                    self.explained.remove(&inode);
                    self.files.remove(&inode);
                }
            }
            Notice::Overflow => self.start_anew(),
        }
    }

    /// A whole file stays one while its writer lives; but from now on it matters who has it open.
    fn changed(&mut self, watch: WatchId) {
        let Some(inode) = self.inodes.get(&watch) else { return };
        let Some(file) = self.files.get(inode) else { return };
        let same = |handle: &File| handle.metadata().is_ok_and(|meta| meta.ino() == *inode);
        let Some(handle) = self.beneath.file(&file.path).filter(same) else { return };
        // It has a watch already, so there is room for it. One that was only cut by its name is free.
        let watched = self.queue.watch_file(&path_of(&handle));
        if watched.is_ok() && !self.is_free(&handle).unwrap_or(false) {
            self.open.insert(*inode);
        }
    }

    /// Notices were lost: nothing is known any more before everything has been looked at.
    fn start_anew(&mut self) {
        tracing::warn!("too much happened at once in $FT_CHECKPOINT_DIR: all of it is looked at again");
        self.kept.iter().for_each(Kept::clear);
        self.left.clear();
        for file in self.files.values_mut().filter(|file| !matches!(file.state, State::Torn { .. })) {
            file.state = State::Lost;
        }
        if let Err(error) = self.make() {
            tracing::warn!(%error, "a part of $FT_CHECKPOINT_DIR cannot be watched");
        }
    }

    /// The world has ended: moves every file that is not known to be whole out of the directory. Returns what is to be said.
    ///
    /// # Errors
    /// When a file that may be torn stays, with a sentence that says which and why.
    pub fn set_aside(&mut self) -> Result<Vec<String>, String> {
        self.drain();
        aside::empty(&self.beneath, &self.aside);
        let said_of_root = self.see_to_root();
        // Until all is done.
        let mut unlocked = Unlocked::default();
        let Found { torn, present, foreign } = self.find_torn(&mut unlocked);
        let torn = self.bring_back(torn, &present, &mut unlocked);
        let mut notices = aside::move_out(&self.beneath, &self.root, &self.aside, &torn)?;
        self.keep_again(&torn);
        notices.extend(said_of_root);
        notices.extend(self.said_of_foreign(foreign));
        self.forget_all_but_whole();
        if let Err(error) = self.make() {
            tracing::warn!(%error, "$FT_CHECKPOINT_DIR cannot be watched");
        }
        self.drain();
        Ok(notices)
    }

    fn find_torn(&self, unlocked: &mut Unlocked) -> Found {
        let mut found = Found::default();
        let mut directories = Vec::from_iter(self.root_inode.map(|_| self.root.clone()));
        while let Some(directory) = directories.pop() {
            let opened = self.beneath.directory(&directory).and_then(|handle| {
                // Files are looked at in it, and moved out of it.
                unlocked.permit(&handle, 0o700);
                std::fs::read_dir(path_of(&handle))
            });
            let entries = match opened {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) if is_foreign(&error) => {
                    found.foreign.push(directory);
                    continue;
                }
                Err(error) => {
                    found.torn.push(Torn::new(directory, format!("it cannot be looked into: {}", reason(&error))));
                    continue;
                }
            };
            for entry in entries.flatten() {
                let path = directory.join(entry.file_name());
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => directories.push(path),
                    Ok(kind) if kind.is_file() => self.look_at_file(path, unlocked, &mut found),
                    Ok(kind) if kind.is_symlink() && self.beneath.leads_out(&path, &self.root).is_some() => {
                        found.foreign.push(path);
                    }
                    _ => {}
                }
            }
        }
        found
    }

    fn look_at_file(&self, path: PathBuf, unlocked: &mut Unlocked, found: &mut Found) {
        let why = match self.beneath.handle(&path) {
            Ok(handle) => {
                unlocked.permit(&handle, 0o400);
                found.present.extend(handle.metadata().map(|meta| meta.ino()));
                self.judge(&handle)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) if is_foreign(&error) => return found.foreign.push(path),
            Err(_) => Some("it cannot be opened".to_string()),
        };
        found.torn.extend(why.map(|why| Torn::new(path, why)));
    }

    /// Why the file is not known to be whole; `None` when it is.
    fn judge(&self, handle: &File) -> Option<String> {
        let state = handle.metadata().ok().and_then(|meta| self.files.get(&meta.ino())).map(|file| &file.state);
        let why = match state {
            // One that died may not have closed it yet.
            Some(State::Whole) => match is_free(handle, || ()) {
                Ok(true) => return None,
                Ok(false) => OPEN.to_string(),
                Err(error) => reason(&error),
            },
            Some(State::Open | State::OpenAtLast) => OPEN.to_string(),
            Some(State::Torn { why, .. }) => why.to_string(),
            Some(State::Looked | State::Closed) | None => {
                "it was written so shortly before the failure, or while ftd's agent was replaced, that nobody can tell whether it is whole".to_string()
            }
            Some(State::Lost) => {
                "so much was written before the failure that nobody can tell whether it is whole".to_string()
            }
            Some(State::Unseen(error)) => error.clone(),
        };
        Some(why)
    }

    /// What was moved out may go on in memory of those who died; it is nobody's business any more.
    fn forget_all_but_whole(&mut self) {
        self.pending.clear();
        self.gone.clear();
        self.open.clear();
        self.explained.clear();
        self.places.clear();
        for (watch, place) in std::mem::take(&mut self.directories) {
            if self.beneath.directory(&place.path).is_ok() {
                self.places.insert(place.inode, place.path.clone());
                self.directories.insert(watch, place);
            } else {
                self.queue.forget(watch);
            }
        }
        let (queue, inodes) = (&mut self.queue, &mut self.inodes);
        self.files.retain(|_, file| {
            let whole = file.state == State::Whole;
            if let Some(watch) = file.watch.filter(|_| !whole) {
                queue.forget(watch);
                inodes.remove(&watch);
            }
            whole
        });
        self.shorten_journal();
    }
}

/// What a look tells of a file that was in this state.
fn state(before: &State, free: io::Result<bool>, doubt: Option<&Arc<str>>) -> State {
    match (before, free) {
        (_, Err(error)) => State::Unseen(reason(&error)),
        (State::Torn { why, .. }, Ok(true)) => State::Torn { why: why.clone(), free: true },
        (State::Torn { why, free: false }, Ok(false)) => State::Torn { why: why.clone(), free: false },
        (_, Ok(free)) => match doubt {
            Some(why) if free || *before == State::OpenAtLast => State::Torn { why: why.clone(), free },
            _ if free => State::Looked,
            _ => State::Open,
        },
    }
}

/// Whether nobody has the file open for writing; `meanwhile` nobody can.
fn is_free(handle: &File, meanwhile: impl FnOnce()) -> io::Result<bool> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path_of(handle))?;
    ft_sys::lease::nobody_writes(file.as_fd(), meanwhile)
}

fn reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOSPC) => {
            "there are more files than the kernel watches for this user (fs.inotify.max_user_watches)".to_string()
        }
        Some(libc::EINVAL) => "the kernel gives no leases (fs.leases-enable)".to_string(),
        _ => format!("nobody can tell whether it is whole: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::inotify::{InitFlags, Inotify};
    use std::ffi::CString;
    use std::io::Write;
    use std::os::unix::ffi::OsStrExt;

    /// A job's directory; nobody is started meanwhile.
    pub struct Job(tempfile::TempDir, #[expect(dead_code, reason = "held")] std::sync::RwLockReadGuard<'static, ()>);

    impl Job {
        pub fn path(&self) -> &Path {
            self.0.path()
        }
    }

    /// Directories of jobs are in memory, and so are these.
    pub fn job() -> (Job, OwnedFd) {
        ft_sys::process::ignore_signal(libc::SIGIO);
        let notices = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).unwrap();
        (Job(tempfile::tempdir_in("/dev/shm").unwrap(), crate::forks::none()), notices.into())
    }

    pub fn open(job: &Job, notices: &OwnedFd) -> CheckpointDir {
        CheckpointDir::open(job.path(), notices.try_clone().unwrap(), true).unwrap()
    }

    /// Step by step; returns how many it took.
    pub fn absorb(dir: &mut CheckpointDir, all_alive: impl Fn() -> bool) -> usize {
        let survey = || Survey { all_alive: all_alive(), ..Survey::default() };
        1 + std::iter::from_fn(|| dir.absorb(survey).then_some(())).count()
    }

    pub fn names(dir: &CheckpointDir) -> Vec<String> {
        let mut names = Vec::new();
        let mut pending = vec![dir.root.clone()];
        while let Some(directory) = pending.pop() {
            for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
                if entry.file_type().unwrap().is_dir() {
                    pending.push(entry.path());
                } else {
                    names.push(entry.path().strip_prefix(&dir.root).unwrap().to_str().unwrap().to_string());
                }
            }
        }
        names.sort();
        names
    }

    #[test]
    fn what_is_open_for_writing_at_the_end_is_set_aside_and_said() {
        let (job, notices) = job();
        let mut dir = open(&job, &notices);
        std::fs::write(dir.root.join("whole"), "abc").unwrap();
        let mut torn = File::create(dir.root.join("torn")).unwrap();
        torn.write_all(b"ab").unwrap();
        absorb(&mut dir, || true);
        std::fs::write(dir.root.join("late"), "abc").unwrap();
        drop(torn);
        absorb(&mut dir, || false);
        let said = dir.set_aside().unwrap().join("\n");
        assert_eq!(names(&dir), ["whole"]);
        assert!(said.contains("torn") && said.contains("late") && said.contains("ckpt.aside"), "{said}");
        assert_eq!(std::fs::read(job.path().join("ckpt.aside/torn")).unwrap(), b"ab");
        assert!(dir.set_aside().unwrap().is_empty());
        assert!(!job.path().join("ckpt.aside").exists(), "what the last failure left is all that takes memory");
    }

    #[test]
    fn when_the_job_is_over_nothing_is_watched_and_nothing_known() {
        let (job, notices) = job();
        let mut dir = open(&job, &notices);
        std::fs::write(dir.root.join("whole"), "abc").unwrap();
        absorb(&mut dir, || true);
        dir.let_go();
        dir.queue.take();
        std::fs::write(dir.root.join("another"), "abc").unwrap();
        std::fs::write(dir.root.join("whole"), "ab").unwrap();
        assert!(!dir.queue.is_ready());
        let mut next = open(&job, &notices);
        next.set_aside().unwrap();
        assert!(names(&next).is_empty(), "what was written meanwhile is not taken for whole");
    }

    #[test]
    fn whole_is_a_property_of_the_file_and_not_of_its_name() {
        let (job, notices) = job();
        let mut dir = open(&job, &notices);
        let at = |name: &str| dir.root.join(name);
        for name in ["tmp/deep/a", "tmp/b", "first", "long"] {
            std::fs::create_dir_all(at(name).parent().unwrap()).unwrap();
            std::fs::write(at(name), "abc").unwrap();
        }
        let paths = [at("tmp"), at("final"), at("first"), at("second"), at("long"), at("third"), at("second")];
        absorb(&mut dir, || true);
        std::fs::rename(&paths[0], &paths[1]).unwrap();
        std::fs::hard_link(&paths[2], &paths[3]).unwrap();
        std::fs::rename(&paths[2], &paths[5]).unwrap();
        let path = CString::new(paths[4].as_os_str().as_bytes()).unwrap();
        nix::unistd::truncate(path.as_c_str(), 1).unwrap();
        File::open(&paths[3]).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        assert!(dir.set_aside().unwrap().is_empty());
        assert_eq!(names(&dir), ["final/b", "final/deep/a", "long", "second", "third"]);
    }

    #[test]
    fn a_whole_file_that_is_being_rewritten_in_place_is_set_aside() {
        let (job, notices) = job();
        let mut dir = open(&job, &notices);
        std::fs::write(dir.root.join("restart"), "one").unwrap();
        std::fs::hard_link(dir.root.join("restart"), job.path().join("elsewhere")).unwrap();
        absorb(&mut dir, || true);
        // By another name, and without a change of size.
        let mut writer = OpenOptions::new().write(true).open(job.path().join("elsewhere")).unwrap();
        writer.write_all(b"t").unwrap();
        drop(writer);
        assert_eq!(dir.set_aside().unwrap().len(), 2);
        assert!(names(&dir).is_empty());
    }

    #[test]
    fn a_file_whose_last_name_another_one_has_taken_is_found_under_its_other_one() {
        let (job, notices) = job();
        let mut dir = open(&job, &notices);
        let at = |name: &str| dir.root.join(name);
        let (kept, newest, next) = (at("restart.old"), at("restart.zzz"), at("next"));
        let mut writer = File::create(&kept).unwrap();
        writer.write_all(b"one").unwrap();
        absorb(&mut dir, || true);
        std::fs::hard_link(&kept, &newest).unwrap();
        absorb(&mut dir, || true);
        std::fs::write(&next, "two").unwrap();
        std::fs::rename(&next, &newest).unwrap();
        absorb(&mut dir, || true);
        drop(writer);
        absorb(&mut dir, || true);
        assert_eq!(dir.set_aside().unwrap(), [] as [String; 0]);
        assert_eq!(names(&dir), ["restart.old", "restart.zzz"]);
    }

    #[test]
    fn the_next_agent_knows_what_happened_while_there_was_none() {
        let (job, notices) = job();
        let mut dir = open(&job, &notices);
        for name in ["whole", "rewritten", "moved"] {
            std::fs::write(dir.root.join(name), "abc").unwrap();
        }
        absorb(&mut dir, || true);
        let root = dir.root.clone();
        drop(dir);
        std::fs::write(root.join("later"), "abc").unwrap();
        std::fs::write(root.join("rewritten"), "abd").unwrap();
        std::fs::rename(root.join("moved"), root.join("final")).unwrap();
        let mut dir = open(&job, &notices);
        dir.set_aside().unwrap();
        assert_eq!(names(&dir), ["final", "whole"]);
        drop(dir);
        let mut dir = open(&job, &notices);
        assert!(dir.set_aside().unwrap().is_empty());
    }

    /// A step in which this death is noticed.
    pub fn dies(dir: &mut CheckpointDir, files: &[&File], sudden: bool) {
        let files = files.iter().map(|file| file.metadata().unwrap().ino()).collect();
        let mut deaths = vec![Death { why: "somebody died".into(), files, sudden }];
        while dir.absorb(|| Survey { all_alive: true, deaths: std::mem::take(&mut deaths), ..Survey::default() }) {}
    }

    #[test]
    fn what_a_dead_process_had_open_is_torn_and_what_others_wrote_is_not() {
        let (job, notices) = job();
        let mut dir = open(&job, &notices);
        std::fs::write(dir.root.join("whole"), "abc").unwrap();
        let [torn, shared, other] = ["torn", "shared", "other"].map(|name| File::create(dir.root.join(name)).unwrap());
        absorb(&mut dir, || true);
        let inode = torn.metadata().unwrap().ino();
        std::fs::write(dir.root.join("later"), "abc").unwrap();
        dies(&mut dir, &[], false);
        drop(torn);
        std::fs::write(dir.root.join("latest"), "abc").unwrap();
        let torn = OpenOptions::new().read(true).open(dir.root.join("torn")).unwrap();
        dies(&mut dir, &[&torn, &shared], false);
        assert!(matches!(dir.files[&inode].state, State::Torn { free: true, .. }));
        drop((shared, other));
        std::fs::rename(dir.root.join("torn"), dir.root.join("renamed")).unwrap();
        absorb(&mut dir, || true);
        let said = dir.set_aside().unwrap().join("\n");
        assert_eq!(names(&dir), ["later", "other", "whole"], "nobody knows who wrote the latest: {said}");
        assert!(said.contains("renamed in $FT_CHECKPOINT_DIR is set aside: somebody died"), "{said}");
    }

    #[test]
    fn what_was_closed_when_somebody_died_may_be_his() {
        let (job, notices) = job();
        let mut dir = open(&job, &notices);
        std::fs::write(dir.root.join("before"), "abc").unwrap();
        absorb(&mut dir, || true);
        for name in ["a", "b"] {
            std::fs::write(dir.root.join(name), "abc").unwrap();
        }
        dies(&mut dir, &[], true);
        // A living process opens one of them again, and answers for it.
        drop(OpenOptions::new().append(true).open(dir.root.join("b")).unwrap());
        absorb(&mut dir, || true);
        dir.set_aside().unwrap();
        assert_eq!(names(&dir), ["b", "before"]);
    }

    #[test]
    fn what_is_known_to_be_anothers_is_not_doubted() {
        let (job, notices) = job();
        let mut dir = open(&job, &notices);
        let [known, unknown] = ["known", "unknown"].map(|name| File::create(dir.root.join(name)).unwrap());
        let writing = BTreeSet::from([known.metadata().unwrap().ino()]);
        while dir.absorb(|| Survey { all_alive: true, writing: writing.clone(), ..Survey::default() }) {}
        drop((known, unknown));
        dies(&mut dir, &[], true);
        dir.set_aside().unwrap();
        assert_eq!(names(&dir), ["known"]);
    }

    #[test]
    fn a_whole_file_is_watched_while_it_is_changed() {
        let (job, notices) = job();
        let mut dir = open(&job, &notices);
        for name in ["cut", "changed"] {
            std::fs::write(dir.root.join(name), "abc").unwrap();
        }
        absorb(&mut dir, || true);
        nix::unistd::truncate(&dir.root.join("cut"), 1).unwrap();
        absorb(&mut dir, || true);
        assert!(!dir.is_open());
        let mut writer = OpenOptions::new().write(true).open(dir.root.join("changed")).unwrap();
        writer.write_all(b"x").unwrap();
        absorb(&mut dir, || true);
        assert!(dir.is_open());
        dies(&mut dir, &[&writer], true);
        drop(writer);
        absorb(&mut dir, || true);
        dir.set_aside().unwrap();
        assert_eq!(names(&dir), ["cut"]);
    }

    #[test]
    fn lost_notices_are_noticed() {
        let (job, notices) = job();
        let most = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
        let most: usize = most.trim().parse().unwrap();
        let mut dir = open(&job, &notices);
        std::fs::write(dir.root.join("before"), "abc").unwrap();
        absorb(&mut dir, || true);
        for number in 0..most + 10 {
            std::fs::write(dir.root.join(format!("{number}")), "").unwrap();
        }
        let torn = File::create(dir.root.join("torn")).unwrap();
        assert!(absorb(&mut dir, || true) >= most / AT_ONCE, "many files, in many short steps");
        drop(torn);
        dir.set_aside().unwrap();
        assert_eq!(names(&dir).len(), most + 11);
        for number in 0..most + 10 {
            std::fs::remove_file(dir.root.join(format!("{number}"))).unwrap();
        }
        std::fs::write(dir.root.join("after"), "abc").unwrap();
        let said = dir.set_aside().unwrap().join("\n");
        assert!(names(&dir).is_empty() && said.contains("so much was written"), "{said}");
    }
}
