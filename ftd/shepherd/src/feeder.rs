//! Standard input of rank 0. Each world reads it from its first byte.

use crate::options::Stdin;
use std::fs::File;
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Offset of the data in the spool. Before it the launcher keeps its length (u64 at 0) and whether it ended (u32 at 8), and
/// shepherds how much of it any rank has taken so far (u64 at 16), so that the launcher does not run ahead without end.
const SPOOL_HEADER: u64 = 4096;
/// See [`SPOOL_HEADER`].
const TAKEN_AT: u64 = 16;

/// Fills a rank's pipe from the launcher's spool.
#[derive(Debug)]
pub struct Feeder {
    pipe: File,
    fed: u64,
    waiting: bool,
}

/// Why nothing more was written.
enum Filled {
    /// The pipe is full.
    Pipe,
    /// There is no more.
    Everything,
    /// The rank reads no more.
    Nobody,
}

/// A descriptor for a new rank's standard input and, with a spool, the feeder of its pipe.
///
/// # Errors
/// When the file cannot be opened again or no descriptor is left.
pub fn open(stdin: &Stdin) -> io::Result<(Option<OwnedFd>, Option<Feeder>)> {
    match stdin {
        Stdin::Null => Ok((None, None)),
        Stdin::File(fd, offset) => {
            // An open file description of its own, or worlds would share their position. A file that this user may not
            // open again (a redirection by root) is read through the launcher's.
            let mut file = match File::open(ft_sys::beneath::path_of(fd)) {
                Ok(file) => file,
                Err(_) => File::from(fd.try_clone()?),
            };
            file.seek(SeekFrom::Start(*offset))?;
            Ok((Some(file.into()), None))
        }
        Stdin::Spool(_) => {
            let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
            let flags = nix::fcntl::OFlag::O_NONBLOCK;
            nix::fcntl::fcntl(&write, nix::fcntl::FcntlArg::F_SETFL(flags))?;
            Ok((Some(read), Some(Feeder { pipe: File::from(write), fed: 0, waiting: false })))
        }
    }
}

impl Feeder {
    /// The pipe, while there is something to write into it.
    pub fn wants_to_write(&self) -> Option<BorrowedFd<'_>> {
        (!self.waiting).then(|| self.pipe.as_fd())
    }

    /// The launcher has more, or has reached the end.
    pub fn grew(&mut self) {
        self.waiting = false;
    }

    /// Writes what the pipe takes. Returns whether there is more to come; if not, drop the feeder, and the rank sees the end.
    pub fn feed(&mut self, spool: &OwnedFd) -> bool {
        let Ok(spool) = spool.try_clone().map(File::from) else { return true };
        let mut header = [0; 24];
        if spool.read_exact_at(&mut header, 0).is_err() {
            return false;
        }
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
        let (length, ended, taken) = (number(&header[..8]), number(&header[8..12]) != 0, number(&header[16..]));
        let more = self.fill(&spool, length);
        if self.fed > taken {
            // Cannot fail for want of memory: the header is there.
            let _ = spool.write_all_at(&self.fed.to_le_bytes(), TAKEN_AT);
        }
        match more {
            Filled::Pipe => true,
            Filled::Everything => {
                self.waiting = true;
                !ended
            }
            Filled::Nobody => false,
        }
    }

    fn fill(&mut self, spool: &File, length: u64) -> Filled {
        let mut bytes = [0; 16 << 10];
        while self.fed < length {
            let want = (length - self.fed).min(bytes.len() as u64) as usize;
            let Ok(count) = spool.read_at(&mut bytes[..want], SPOOL_HEADER + self.fed) else { return Filled::Nobody };
            match self.pipe.write(&bytes[..count]) {
                Ok(count) => self.fed += count as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Filled::Pipe,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The rank reads no more.
                Err(_) => return Filled::Nobody,
            }
        }
        Filled::Everything
    }
}
