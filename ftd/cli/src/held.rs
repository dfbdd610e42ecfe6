//! The program's file and the working directory, opened when the job begins: later worlds are started from these when the
//! paths lead somewhere else by then.

use ft_sys::beneath;
use ft_sys::content::Content;
use ft_sys::identity::Snapshot;
use nix::libc;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

/// A program of more bytes is read only when the job has begun: disk and memory are the ranks' until then.
const SMALL: u64 = 8 << 20;
const LATER: Duration = Duration::from_secs(1);

/// What is held for the job.
#[derive(Debug)]
pub struct Held {
    program: File,
    then: Snapshot,
    is_binary: bool,
    directory: File,
    /// What the program holds, for the shepherds, as soon as it is known.
    content: File,
}

impl Held {
    /// Opens both, neither for reading: that may be forbidden where executing is not.
    ///
    /// # Errors
    /// What the system said.
    pub fn open(program: &Path, directory: &Path) -> io::Result<Held> {
        let open = |path: &Path, flags| OpenOptions::new().read(true).custom_flags(libc::O_PATH | flags).open(path);
        let program = open(program, 0)?;
        let then = Snapshot::of(&program.metadata()?);
        let is_binary = is_binary(&program);
        let content = ft_sys::memory::create_memfd("ft-program", 0)?.into();
        Ok(Held { program, then, is_binary, directory: open(directory, libc::O_DIRECTORY)?, content })
    }

    /// Reads the program in a thread of its own, so that a later world can tell a file that was only touched from another one.
    /// Without that thread it cannot, and nothing else is lost.
    pub fn read_behind(&self) {
        let (Ok(program), Ok(notes)) = (self.program.try_clone(), self.content.try_clone()) else { return };
        let then = self.then;
        let read = move || {
            ft_sys::slice::give_way();
            if then.size() > SMALL {
                std::thread::sleep(LATER);
            }
            // What was written before it was read is not what the first world runs.
            let is_then = || program.metadata().is_ok_and(|now| Snapshot::of(&now).has_same_content(&then));
            if let Some(content) = Content::of_held(&program).ok().filter(|_| is_then()) {
                let _ = notes.write_all_at(format!("{content}\n").as_bytes(), 0);
            }
        };
        let _ = std::thread::Builder::new().name("program".into()).stack_size(64 << 10).spawn(read);
    }

    /// What a shepherd has to inherit.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [self.program.as_fd(), self.directory.as_fd(), self.content.as_fd()]
    }

    /// The program as it was, for a shepherd that is not told by its command line.
    pub fn then(&self) -> String {
        self.then.to_string()
    }

    /// Whether the kernel can start it without its name.
    pub fn is_binary(&self) -> bool {
        self.is_binary
    }

    /// What a shepherd has to be told.
    pub fn arguments(&self) -> [String; 6] {
        let [program, directory, content] = self.descriptors().map(|held| held.as_raw_fd().to_string());
        ["--held".into(), program, directory, content, self.then.to_string(), self.is_binary.to_string()]
    }
}

/// Whether the kernel can start it without its name. A script must be readable, so what is not readable is none.
fn is_binary(program: &File) -> bool {
    let mut magic = [0; 4];
    let readable = File::open(beneath::path_of(program));
    match readable.and_then(|mut file| file.read_exact(&mut magic)) {
        Ok(()) => magic == *b"\x7fELF",
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
}
