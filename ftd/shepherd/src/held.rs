//! The program's file and the working directory as they were when the job began. Both may be gone or be others when a later
//! world starts; what the launcher opened then is held, so that nobody loses a job's state to a `make` in another window.

use ft_sys::identity::Snapshot;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const SET_ID: u32 = nix::libc::S_ISUID | nix::libc::S_ISGID;

/// What the launcher opened.
#[derive(Debug)]
pub struct Held {
    program: File,
    then: Snapshot,
    /// It can be started without its name; a script cannot.
    is_binary: bool,
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
    pub fn new(program: OwnedFd, then: Snapshot, is_binary: bool, directory: OwnedFd) -> Held {
        Held { program: program.into(), then, is_binary, directory: directory.into() }
    }

    /// How to start the program.
    ///
    /// # Errors
    /// One sentence: what there is now may be another program, and what was cannot be had any more.
    pub fn program(&self, path: &Path) -> Result<Way<'_>, String> {
        let named = fs::metadata(path).ok().map(|metadata| Snapshot::of(&metadata));
        if named == Some(self.then) {
            return Ok(Way::Path);
        }
        let shown = path.display();
        let held = self.program.metadata().map_err(|error| format!("{shown}: {error}"))?;
        if !Snapshot::of(&held).has_same_content(&self.then) {
            let sentence = "was overwritten since the job began: another program could not go on with this one's state";
            return Err(format!("{shown} {sentence}"));
        }
        let what = match named {
            Some(named) if named.is_same_file(&self.then) => return Ok(Way::Path),
            Some(_) => "replaced by another file",
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
