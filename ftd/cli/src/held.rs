//! The program's file and the working directory, opened when the job begins: later worlds are started from these when the
//! paths lead somewhere else by then.

use ft_sys::identity::Snapshot;
use nix::libc;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// What is held for the job.
#[derive(Debug)]
pub struct Held {
    program: File,
    then: Snapshot,
    is_binary: bool,
    directory: File,
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
        Ok(Held { program, then, is_binary, directory: open(directory, libc::O_DIRECTORY)? })
    }

    /// What a shepherd has to inherit.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.program.as_fd(), self.directory.as_fd()]
    }

    /// What a shepherd has to be told.
    pub fn arguments(&self) -> [String; 5] {
        let number = |file: &File| file.as_raw_fd().to_string();
        let (program, directory) = (number(&self.program), number(&self.directory));
        ["--held".into(), program, directory, self.then.to_string(), self.is_binary.to_string()]
    }
}

/// Whether the kernel can start it without its name. A script must be readable, so what is not readable is none.
fn is_binary(program: &File) -> bool {
    let mut magic = [0; 4];
    let readable = File::open(Path::new("/proc/self/fd").join(program.as_raw_fd().to_string()));
    match readable.and_then(|mut file| file.read_exact(&mut magic)) {
        Ok(()) => magic == *b"\x7fELF",
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
}
