//! One of this process's own streams, written without ever blocking.

use crate::output::Stream;
use ft_wire::Slot;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};

/// A pipe or terminal that polls as writable takes this much without blocking (`PIPE_BUF`). The descriptor is shared with
/// whoever started this process, so it is not for us to make it non-blocking.
const ATOMIC: usize = 4096;
/// To a file, which never blocks, this much at once.
const LARGE: usize = 256 << 10;

/// A stream and what waits to be written to it.
pub struct Sink {
    target: Box<dyn AsFd>,
    is_file: bool,
    waiting: Vec<u8>,
    /// Bytes at the beginning of `waiting` that are written.
    written: usize,
    /// The last line is not finished; whose it is, if that is known.
    open_line: Option<Option<(Slot, Stream)>>,
    /// Nobody reads any more.
    closed: bool,
}

impl Sink {
    /// Writes to `target`.
    pub fn new(target: Box<dyn AsFd>) -> Sink {
        let is_file = nix::sys::stat::fstat(target.as_fd())
            .is_ok_and(|s| s.st_mode & nix::sys::stat::SFlag::S_IFMT.bits() == nix::sys::stat::SFlag::S_IFREG.bits());
        Sink { target, is_file, waiting: Vec::new(), written: 0, open_line: None, closed: false }
    }

    /// The descriptor.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.target.as_fd()
    }

    /// Bytes that wait.
    pub fn pending(&self) -> usize {
        self.waiting.len() - self.written
    }

    /// Adds bytes as they are.
    pub fn push(&mut self, bytes: &[u8]) {
        let Some(last) = bytes.last() else { return };
        self.open_line = (*last != b'\n').then_some(None);
        if !self.closed {
            self.waiting.extend_from_slice(bytes);
        }
    }

    /// Adds a piece of a line of `key`'s. With a tag it goes on with a line that `key` began; if another one wrote meanwhile,
    /// it begins with the tag again.
    pub fn push_tagged(&mut self, key: (Slot, Stream), tag: Option<Vec<u8>>, bytes: &[u8]) {
        let goes_on = tag.is_some() && self.open_line == Some(Some(key));
        if !goes_on {
            self.end_line();
            self.push(&tag.unwrap_or_default());
        }
        self.push(bytes);
        if self.open_line.is_some() {
            self.open_line = Some(Some(key));
        }
    }

    /// Adds a line of its own.
    pub fn push_line(&mut self, line: &[u8]) {
        self.end_line();
        self.push(line);
        self.push(b"\n");
    }

    fn end_line(&mut self) {
        if self.open_line.is_some() {
            self.push(b"\n");
        }
    }

    /// Writes what can be written at once.
    pub fn write(&mut self) {
        while self.pending() > 0 && (self.is_file || self.is_writable()) {
            let most = if self.is_file { LARGE } else { ATOMIC };
            let part = self.next_part(most);
            match nix::unistd::write(self.target.as_fd(), part) {
                Ok(count) => self.written += count,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => break,
                Err(_) => self.close(),
            }
        }
        if self.pending() == 0 {
            self.waiting.clear();
            self.written = 0;
        } else if self.written > (1 << 20) {
            self.waiting.drain(..self.written);
            self.written = 0;
        }
    }

    /// Ends with a line if it can, so that others who write to the same file do not come between.
    fn next_part(&self, most: usize) -> &[u8] {
        let waiting = &self.waiting[self.written..];
        let part = &waiting[..waiting.len().min(most)];
        match part.iter().rposition(|byte| *byte == b'\n') {
            Some(at) => &part[..=at],
            None => part,
        }
    }

    fn is_writable(&self) -> bool {
        matches!(poll(&mut [PollFd::new(self.target.as_fd(), PollFlags::POLLOUT)], PollTimeout::ZERO), Ok(n) if n > 0)
    }

    /// Nobody reads: the job goes on, and its output is dropped.
    fn close(&mut self) {
        self.closed = true;
        self.waiting.clear();
        self.written = 0;
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink").field("pending", &self.pending()).field("closed", &self.closed).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_full_pipe_does_not_block_and_nothing_is_lost() {
        let (mut read, write) = std::io::pipe().unwrap();
        let mut sink = Sink::new(Box::new(write));
        let line: Vec<u8> = [vec![b'x'; 999], vec![b'\n']].concat();
        for _ in 0..500 {
            sink.push(&line);
        }
        sink.write();
        assert!(sink.pending() > 0);
        let mut bytes = vec![0; 500_000];
        let mut have = 0;
        while have < bytes.len() {
            have += read.read(&mut bytes[have..]).unwrap();
            sink.write();
        }
        assert!(bytes.chunks(1000).all(|chunk| chunk == line));
        assert_eq!(sink.pending(), 0);
    }

    #[test]
    fn a_reader_that_left_is_no_error() {
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        let mut sink = Sink::new(Box::new(write));
        sink.push(b"for nobody\n");
        sink.write();
        assert_eq!(sink.pending(), 0);
        sink.push(b"for nobody\n");
        assert_eq!(sink.pending(), 0);
    }
}
