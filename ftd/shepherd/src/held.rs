//! The program's file and the working directory as they were when the job began. Both may be gone or be others when a later
//! world starts; what the launcher opened then is held, so that nobody loses a job's state to a `make` in another window.

use ft_sys::content::Content;
use ft_sys::identity::Snapshot;
use std::cell::Cell;
use std::fs::{self, File, Metadata};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

const SET_ID: u32 = nix::libc::S_ISUID | nix::libc::S_ISGID;

/// What the launcher opened.
#[derive(Debug)]
pub struct Held {
    program: File,
    /// The last one that was known to hold what it held at the job's start.
    then: Cell<Snapshot>,
    /// Another file of which that is known, too.
    twin: Cell<Option<Snapshot>>,
    /// It can be started without its name; a script cannot.
    is_binary: bool,
    /// Where the launcher writes down what the program held.
    content: File,
    directory: File,
}

/// How to get at a thing.
#[derive(Debug)]
pub enum Way<'a> {
    /// By its path, as ever.
    Path,
    /// By the descriptor, because of what this sentence says.
    Descriptor(BorrowedFd<'a>, String),
}

impl Held {
    /// `then` is the program's at the start of the job.
    pub fn new(program: OwnedFd, then: Snapshot, is_binary: bool, content: OwnedFd, directory: OwnedFd) -> Held {
        Held {
            program: program.into(),
            then: then.into(),
            twin: Cell::default(),
            is_binary,
            content: content.into(),
            directory: directory.into(),
        }
    }

    /// How to start the program.
    ///
    /// # Errors
    /// One sentence: what there is now may be another program, and what was cannot be had any more.
    pub fn program(&self, path: &Path) -> Result<Way<'_>, String> {
        let metadata = fs::metadata(path).ok();
        let named = metadata.as_ref().map(Snapshot::of);
        if named.is_some() && (named == Some(self.then.get()) || named == self.twin.get()) {
            return Ok(Way::Path);
        }
        let shown = path.display();
        let held = self.program.metadata().map_err(|error| format!("{shown}: {error}"))?;
        if metadata.is_some_and(|named| self.is_twin(path, &named, &held)) {
            return Ok(Way::Path);
        }
        self.check(&held).map_err(|why| format!("{shown} {why}"))?;
        let what = match named {
            Some(named) if named.is_same_file(&self.then.get()) => return Ok(Way::Path),
            Some(_) => "replaced by another file",
            None if held.nlink() > 0 => "deleted or renamed (it, or a directory of its path)",
            None => "deleted",
        };
        let why = match () {
            () if !self.is_binary => "a script cannot be started without its file",
            () if held.mode() & SET_ID != 0 => "a program with a set-id bit is started by its name only",
            () => {
                let sentence =
                    format!("{shown} was {what} since the job began: ranks are started from the file as it was");
                return Ok(Way::Descriptor(self.program.as_fd(), sentence));
            }
        };
        Err(format!("{shown} was {what} since the job began, and {why}"))
    }

    /// What the program held at the start, if the launcher could read it, and has.
    fn content(&self) -> Option<Content> {
        let mut note = [0; 64];
        let count = self.content.read_at(&mut note, 0).ok()?;
        std::str::from_utf8(&note[..count]).ok()?.strip_suffix('\n')?.parse().ok()
    }

    /// Whether another file is one like the program's, content and permissions. One with a set-id bit is what the administrator
    /// made of it.
    fn is_twin(&self, path: &Path, named: &Metadata, held: &Metadata) -> bool {
        let snapshot = Snapshot::of(named);
        if snapshot.is_same_file(&self.then.get()) || named.mode() != held.mode() || named.mode() & SET_ID != 0 {
            return false;
        }
        let then = self.content().filter(|content| content.size() == named.size());
        let is_twin = then.is_some_and(|then| Content::of(path).is_ok_and(|now| now == then));
        // Nobody may have written while it was read, nor another file have come to this path.
        let is_twin = is_twin && fs::metadata(path).is_ok_and(|now| Snapshot::of(&now) == snapshot);
        self.twin.set(Some(snapshot).filter(|_| is_twin));
        is_twin
    }

    /// Whether the file that is held holds what it held.
    fn check(&self, held: &Metadata) -> Result<(), &'static str> {
        const OVERWRITTEN: &str =
            "was overwritten since the job began: another program could not go on with this one's state";
        let snapshot = Snapshot::of(held);
        if snapshot.has_same_content(&self.then.get()) {
            return Ok(());
        }
        if snapshot.size() != self.then.get().size() {
            return Err(OVERWRITTEN);
        }
        let unknown = "has another modification time than when the job began, and what it held then could not be read: it may \
                       be another program, which could not go on with this one's state";
        let then = self.content().ok_or(unknown)?;
        let now = Content::of_held(&self.program).map_err(|_| unknown)?;
        let still = self.program.metadata().is_ok_and(|now| Snapshot::of(&now).has_same_content(&snapshot));
        if now != then || !still {
            return Err(OVERWRITTEN);
        }
        self.then.set(snapshot);
        Ok(())
    }

    /// How to get into the working directory.
    pub fn directory(&self, path: &Path) -> Way<'_> {
        let snapshot = |metadata: fs::Metadata| Snapshot::of(&metadata);
        let named = fs::metadata(path).ok().map(snapshot);
        let held = self.directory.metadata().ok().map(snapshot);
        let what = match (named, held) {
            (Some(named), Some(held)) if named.is_same_file(&held) => return Way::Path,
            // Nothing better is to be had, and the path is what there is to complain of.
            (_, None) => return Way::Path,
            (Some(_), _) => "replaced by another directory",
            (None, _) => "deleted or renamed",
        };
        let sentence = format!(
            "the working directory {} was {what} since the job began: ranks work in the old one",
            path.display()
        );
        Way::Descriptor(self.directory.as_fd(), sentence)
    }
}
