//! The job's standard input. Rank 0 of every world reads it from its first byte: a regular file is opened again, anything
//! else is kept in a spool.

use nix::sys::stat::{SFlag, fstat};
use nix::unistd::{Whence, lseek};
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Where the data begins in the spool. Before it: its length (u64 at 0), whether it has ended (u32 at 8), and, written by the
/// shepherds, how much of it any rank has taken so far (u64 at 16).
const HEADER: u64 = 4096;
/// See [`HEADER`].
const TAKEN_AT: u64 = 16;
/// Bytes that are read ahead of the ranks: what nobody reads must not fill the memory.
const AHEAD: u64 = 16 << 20;
/// Bytes read at once.
const CHUNK: usize = 64 << 10;
/// `/dev/null`.
const NULL_DEVICE: u64 = 0x103;

/// What the job reads.
#[derive(Debug)]
pub enum Input {
    /// Nothing.
    Null,
    /// A regular file from an offset on.
    File(OwnedFd, u64),
    /// A spool that this process fills.
    Spool(Spool),
}

/// Bytes that came in and will be read again by every world.
#[derive(Debug)]
pub struct Spool {
    memory: File,
    length: u64,
    ended: bool,
    terminal: bool,
    /// The terminal belongs to another process group just now.
    background: bool,
}

impl Input {
    /// Looks at standard input.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn open() -> io::Result<Input> {
        let stdin = io::stdin();
        let Ok(status) = fstat(&stdin) else { return Ok(Input::Null) };
        let kind = SFlag::from_bits_truncate(status.st_mode & SFlag::S_IFMT.bits());
        if kind == SFlag::S_IFREG {
            let offset = lseek(&stdin, 0, Whence::SeekCur)?;
            return Ok(Input::File(stdin.as_fd().try_clone_to_owned()?, offset as u64));
        }
        if kind == SFlag::S_IFCHR && status.st_rdev == NULL_DEVICE || kind == SFlag::S_IFDIR {
            return Ok(Input::Null);
        }
        let memory = File::from(ft_sys::memory::create_memfd("ft-stdin", HEADER)?);
        let terminal = stdin.is_terminal();
        let mut spool = Spool { memory, length: 0, ended: false, terminal, background: false };
        spool.look_at_terminal();
        Ok(Input::Spool(spool))
    }

    /// The descriptor that shepherds need, and their options for it.
    pub fn for_shepherd(&self) -> Option<(BorrowedFd<'_>, &'static str, Option<u64>)> {
        match self {
            Input::Null => None,
            Input::File(fd, offset) => Some((fd.as_fd(), "--stdin-file", Some(*offset))),
            Input::Spool(spool) => Some((spool.memory.as_fd(), "--stdin-spool", None)),
        }
    }

    /// Whether standard input is to be polled.
    pub fn wants_to_read(&self) -> bool {
        matches!(self, Input::Spool(spool) if !spool.ended && !spool.background && spool.has_room())
    }

    /// Whether it is to be asked again soon, because ranks take what is in the spool without a word.
    pub fn waits_for_room(&self) -> bool {
        matches!(self, Input::Spool(spool) if !spool.ended && !spool.has_room())
    }

    /// Whether the terminal is another process group's: a shell does not tell when it comes back.
    pub fn waits_for_terminal(&self) -> bool {
        matches!(self, Input::Spool(spool) if !spool.ended && spool.background)
    }

    /// The job may have moved between foreground and background.
    pub fn look_at_terminal(&mut self) {
        if let Input::Spool(spool) = self {
            spool.look_at_terminal();
        }
    }

    /// Reads what is there; call when it is readable. Returns whether the shepherds are to be told.
    pub fn read(&mut self) -> bool {
        match self {
            Input::Spool(spool) => spool.read(&mut io::stdin()),
            _ => false,
        }
    }
}

impl Spool {
    fn has_room(&self) -> bool {
        let mut taken = [0; 8];
        // What cannot be read was not taken.
        let _ = self.memory.read_exact_at(&mut taken, TAKEN_AT);
        self.length < u64::from_le_bytes(taken) + AHEAD
    }

    fn look_at_terminal(&mut self) {
        self.background = self.terminal
            && nix::unistd::tcgetpgrp(io::stdin()).is_ok_and(|foreground| foreground != nix::unistd::getpgrp());
    }

    fn read(&mut self, from: &mut impl Read) -> bool {
        let mut bytes = [0; CHUNK];
        // A terminal that was taken away between poll and read answers with EIO, for SIGTTIN is ignored.
        self.look_at_terminal();
        if self.background {
            return false;
        }
        match from.read(&mut bytes) {
            Ok(0) => self.end(),
            Ok(count) => match self.append(&bytes[..count]) {
                Ok(()) => true,
                Err(error) => {
                    crate::say(&format!("standard input beyond {} bytes cannot be kept: {error}", self.length));
                    self.end()
                }
            },
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => false,
            Err(_) => self.end(),
        }
    }

    /// Data first, then the length that makes it count.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.memory.write_all_at(bytes, HEADER + self.length)?;
        self.length += bytes.len() as u64;
        self.memory.write_all_at(&self.length.to_le_bytes(), 0)
    }

    fn end(&mut self) -> bool {
        self.ended = true;
        // The page is there already: this cannot fail for want of memory.
        let _ = self.memory.write_all_at(&1u32.to_le_bytes(), 8);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spool_keeps_everything_and_its_end() {
        let memory = File::from(ft_sys::memory::create_memfd("t", HEADER).unwrap());
        let mut spool = Spool { memory, length: 0, ended: false, terminal: false, background: false };
        let data: Vec<u8> = (0..200_000u32).map(|n| n as u8).collect();
        let mut from = data.as_slice();
        while !spool.ended {
            assert!(spool.read(&mut from));
        }
        let mut header = [0; 12];
        spool.memory.read_exact_at(&mut header, 0).unwrap();
        assert_eq!(header[..8], 200_000u64.to_le_bytes());
        assert_eq!(header[8..], 1u32.to_le_bytes());
        let mut kept = vec![0; data.len()];
        spool.memory.read_exact_at(&mut kept, HEADER).unwrap();
        assert_eq!(kept, data);
    }

    #[test]
    fn it_does_not_run_far_ahead_of_the_ranks() {
        let memory = File::from(ft_sys::memory::create_memfd("t", HEADER).unwrap());
        let mut input = Input::Spool(Spool { memory, length: 0, ended: false, terminal: false, background: false });
        let Input::Spool(spool) = &mut input else { panic!() };
        while spool.has_room() {
            assert!(spool.read(&mut io::repeat(b'x')));
        }
        assert!((AHEAD..AHEAD + 2 * CHUNK as u64).contains(&spool.length));
        spool.memory.write_all_at(&spool.length.to_le_bytes(), TAKEN_AT).unwrap();
        assert!(input.wants_to_read() && !input.waits_for_room());
    }
}
