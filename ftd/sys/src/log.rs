//! What ftd's helpers say and log on standard error. None of them waits for who reads it: nobody may, and then a rank's death
//! would wait as well. What finds no room is dropped and counted, and the count is said as soon as there is room.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};

/// A pipe that has room at all has it for so much, and takes it in one.
const PART: usize = 4096;

static STANDARD_ERROR: Mutex<Dropped> = Mutex::new(Dropped { lines: 0, inside_line: false });

/// What was dropped since something was written last.
#[derive(Debug)]
struct Dropped {
    lines: u64,
    /// Of the last line a part was written.
    inside_line: bool,
}

/// Standard error, for whole lines.
#[derive(Debug, Clone, Copy)]
pub struct Log;

impl Write for Log {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let mut dropped = STANDARD_ERROR.lock().unwrap_or_else(PoisonError::into_inner);
        dropped.put(io::stderr().as_fd(), lines);
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A line on standard error. Where it cannot be written nobody can be told, and nothing else changes: `eprintln!` panics.
pub fn say(words: impl std::fmt::Display) {
    let _ = Log.write(format!("{words}\n").as_bytes());
}

/// Says how much was dropped, if there is room for that by now: before the process ends.
pub fn say_what_was_dropped() {
    let _ = Log.write(b"");
}

impl Dropped {
    fn put(&mut self, target: BorrowedFd<'_>, lines: &[u8]) {
        if self.lines > 0 {
            let end = if self.inside_line { "\n" } else { "" };
            let who = std::env::args_os().next().unwrap_or_default();
            let who = std::path::Path::new(&who).file_name().unwrap_or_default().to_string_lossy().into_owned();
            let (count, s) = (self.lines, if self.lines == 1 { "" } else { "s" });
            let words = format!("{end}ftd: {who}: {count} line{s} dropped here, which nobody has read in time\n");
            if write_now(target, words.as_bytes()) < words.len() {
                self.lines += lines.split_inclusive(|byte| *byte == b'\n').count() as u64;
                return;
            }
            *self = Dropped { lines: 0, inside_line: false };
        }
        let written = write_now(target, lines);
        let rest = &lines[written..];
        if !rest.is_empty() {
            self.lines = rest.split_inclusive(|byte| *byte == b'\n').count() as u64;
            self.inside_line = written > 0 && lines[written - 1] != b'\n';
        }
    }
}

/// Writes what there is room for; returns how much.
fn write_now(target: BorrowedFd<'_>, bytes: &[u8]) -> usize {
    let mut written = 0;
    while written < bytes.len() {
        let has_room = poll(&mut [PollFd::new(target, PollFlags::POLLOUT)], PollTimeout::ZERO) == Ok(1);
        let part = &bytes[written..bytes.len().min(written + PART)];
        match if has_room { nix::unistd::write(target, part) } else { Err(Errno::EAGAIN) } {
            Ok(count) if count > 0 => written += count,
            Err(Errno::EINTR) => {}
            // Full, or nobody reads any more, or a disk that is: none is waited for.
            Ok(_) | Err(_) => break,
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn what_nobody_reads_is_dropped_and_counted() {
        let (mut read, write) = io::pipe().unwrap();
        let mut dropped = Dropped { lines: 0, inside_line: false };
        let long = [&[b'x'; 9000][..], b"\n"].concat();
        for _ in 0..100 {
            dropped.put(write.as_fd(), &long);
        }
        assert!(dropped.lines > 80 && dropped.inside_line, "{dropped:?}");
        let lost = dropped.lines;
        let mut bytes = vec![0; 1 << 16];
        let count = read.read(&mut bytes).unwrap();
        dropped.put(write.as_fd(), b"on\n");
        assert_eq!(dropped.lines, 0);
        drop(write);
        let mut rest = String::from_utf8(bytes[..count].to_vec()).unwrap();
        read.read_to_string(&mut rest).unwrap();
        let lines: Vec<&str> = rest.lines().collect();
        let (last, said) = (lines[lines.len() - 1], lines[lines.len() - 2]);
        assert!(last == "on" && said.contains(&format!(": {lost} lines dropped here")), "{said} {last}");
        assert_eq!(lines.iter().filter(|line| line.len() == 9000).count() as u64, 100 - lost);
    }

    #[test]
    fn nobody_waits_or_dies_for_a_reader_that_left() {
        let (read, write) = io::pipe().unwrap();
        drop(read);
        let mut dropped = Dropped { lines: 0, inside_line: false };
        dropped.put(write.as_fd(), b"one\ntwo\n");
        dropped.put(write.as_fd(), b"three");
        assert_eq!(dropped.lines, 3);
    }
}
