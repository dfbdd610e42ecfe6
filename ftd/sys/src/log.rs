//! What ftd's helpers say and log on standard error. None of them waits for who reads it: nobody may, and then a rank's death
//! would wait as well. What finds no room is dropped and counted, and the count is said as soon as there is room. What is logged goes to a
//! file of the process's own where the job's user wants that: the lines of many nodes on ftrun's standard error go through all of
//! ftd's processes there, and through ftrun.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

/// A pipe that has room at all has it for so much, and takes it in one.
const PART: usize = 4096;

/// Names a directory on each node, for the logs.
pub const LOG_DIR: &str = "FT_LOG_DIR";

static STANDARD_ERROR: Mutex<Dropped> = Mutex::new(Dropped { lines: 0, inside_line: false });

/// The file of this process's own.
static OWN: OnceLock<(File, Mutex<Dropped>)> = OnceLock::new();

/// What is logged cannot go to the directory that [`LOG_DIR`] names.
#[derive(Debug, thiserror::Error)]
#[error("{LOG_DIR}: {}: {error}; what {program} logs on node {node} is on standard error", path.display())]
pub struct NoFile {
    program: &'static str,
    node: String,
    path: PathBuf,
    error: io::Error,
}

/// What was dropped since something was written last.
#[derive(Debug, Default)]
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

/// Where lines of the log go: this process's file, or standard error.
#[derive(Debug, Clone, Copy)]
pub struct Logged;

impl Write for Logged {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let Some((file, dropped)) = OWN.get() else { return Log.write(lines) };
        dropped.lock().unwrap_or_else(PoisonError::into_inner).put(file.as_fd(), lines);
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is logged from now on goes to `PROGRAM.NODE.PID.log` in the directory that [`LOG_DIR`] names, if it names one.
///
/// # Errors
/// [`NoFile`]: it goes to standard error, as without.
pub fn begin(program: &'static str) -> Result<(), NoFile> {
    let Some(directory) = std::env::var_os(LOG_DIR).filter(|name| !name.is_empty()) else { return Ok(()) };
    let node = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
    let path = Path::new(&directory).join(format!("{program}.{node}.{}.log", std::process::id()));
    match own_file(&path) {
        Ok(file) => {
            let _ = OWN.set((file, Mutex::default()));
            Ok(())
        }
        Err(error) => Err(NoFile { program, node, path, error }),
    }
}

/// Opens it for more lines. Others may write in the directory as well: what they have put there is not taken.
fn own_file(path: &Path) -> io::Result<File> {
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
    let file = OpenOptions::new().append(true).create(true).mode(0o644).custom_flags(flags).open(path)?;
    let is = file.metadata()?;
    if is.is_file() && is.nlink() == 1 && is.uid() == nix::unistd::geteuid().as_raw() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "something is there that is no file of this user's"))
}

/// A line on standard error. Where it cannot be written nobody can be told, and nothing else changes: `eprintln!` panics.
pub fn say(words: impl std::fmt::Display) {
    let _ = Log.write(format!("{words}\n").as_bytes());
}

/// Says how much was dropped, if there is room for that by now: before the process ends.
pub fn say_what_was_dropped() {
    let _ = Log.write(b"");
    let _ = Logged.write(b"");
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
    fn what_others_have_put_there_is_no_file_for_a_log() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name| folder.path().join(name);
        own_file(&at("log")).unwrap().write_all(b"one\n").unwrap();
        own_file(&at("log")).unwrap().write_all(b"two\n").unwrap();
        assert_eq!(std::fs::read(at("log")).unwrap(), b"one\ntwo\n", "of a process that had this number before");
        std::os::unix::fs::symlink(at("log"), at("link")).unwrap();
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let _reader = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(at("pipe")).unwrap();
        for name in ["link", "pipe", "nowhere/log"] {
            assert!(own_file(&at(name)).is_err(), "{name}");
        }
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
