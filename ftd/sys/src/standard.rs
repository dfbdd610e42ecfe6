//! Standard input, output and error that were closed when this process began (`ftrun … >&-`).
//!
//! Rust's run-time opens the null device in their place before `main`: whatever is written there is lost, and nobody knows.
//! So what was closed is noted before that.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

static CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

extern "C" fn note() {
    for (number, closed) in CLOSED.iter().enumerate() {
        // SAFETY: F_GETFD fails with EBADF on a number that is no descriptor.
        closed.store(unsafe { libc::fcntl(number as i32, libc::F_GETFD) } < 0, Ordering::Relaxed);
    }
}

// SAFETY: the loader calls what stands in this section, once and before `main`; the function needs nothing of Rust's.
#[unsafe(link_section = ".init_array")]
#[used]
static BEFORE_MAIN: extern "C" fn() = note;

/// One of the three.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standard {
    /// Standard input.
    Input,
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

impl Standard {
    /// Whether it was closed when this process began.
    pub fn was_closed(self) -> bool {
        CLOSED[self as usize].load(Ordering::Relaxed)
    }
}

/// Puts in the place of each that was closed what fails as a closed one does, in this process and in those that inherit it,
/// and keeps every other descriptor from getting its number.
///
/// # Errors
/// When the null device cannot be opened.
pub fn keep_closed() -> io::Result<()> {
    for (number, closed) in CLOSED.iter().enumerate() {
        if closed.load(Ordering::Relaxed) {
            // Writing to what is open for reading alone, and the other way round, is EBADF.
            let reads = number != Standard::Input as usize;
            let null = OpenOptions::new().read(reads).write(!reads).open("/dev/null")?;
            replace(number, &null)?;
        }
    }
    Ok(())
}

/// Takes the numbers of those that are closed at this moment, so that no descriptor gets them which is opened from now on: a rank
/// whose script has closed its standard error (`./app 2>&-`) would print into it. Reading and writing fail as before, and
/// other programs find them closed.
pub fn occupy() {
    use nix::fcntl::{OFlag, open};
    use nix::sys::stat::Mode;
    use std::os::fd::{AsRawFd, IntoRawFd};
    for number in 0..3 {
        // SAFETY: F_GETFD fails with EBADF on a number that is no descriptor.
        if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0
            && let Ok(place) = open("/dev/null", OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())
            && place.as_raw_fd() == number
        {
            let _ = place.into_raw_fd();
        }
    }
}

fn replace(number: usize, by: &File) -> io::Result<()> {
    match number {
        0 => nix::unistd::dup2_stdin(by.as_fd())?,
        1 => nix::unistd::dup2_stdout(by.as_fd())?,
        _ => nix::unistd::dup2_stderr(by.as_fd())?,
    }
    Ok(())
}

/// The pipe that ftd has made for a rank's standard output, as the rank's environment names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotsPipe(String);

impl SlotsPipe {
    /// As `FT_STDOUT` says; nothing where nobody says it.
    pub fn of_environment() -> Option<SlotsPipe> {
        std::env::var("FT_STDOUT").ok().map(SlotsPipe)
    }

    /// What a pipe is called there; nothing where it cannot be asked.
    pub fn name(of: BorrowedFd<'_>) -> Option<String> {
        let stat = nix::sys::stat::fstat(of).ok()?;
        Some(format!("{}:{}", stat.st_dev, stat.st_ino))
    }

    /// Descriptor 1, where it is this pipe: a wrapper may have put a file there.
    pub fn stdout(&self) -> Option<BorrowedFd<'static>> {
        // SAFETY: if nothing is open there, what is asked of it is an error.
        let stdout = unsafe { BorrowedFd::borrow_raw(libc::STDOUT_FILENO) };
        (SlotsPipe::name(stdout)? == self.0).then_some(stdout)
    }
}
