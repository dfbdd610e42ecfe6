//! One of this process's own streams.
//!
//! A terminal that is stopped, a pipe that nobody reads, a disk that does not answer: each holds up whoever writes, however
//! few the bytes and whatever `poll` said before, and the descriptor is shared with others, so it is not for us to make it
//! non-blocking. A thread of its own writes it; nobody else waits.

use crate::output::Key;
use ft_sys::job_time;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::{SFlag, fstat};
use nix::sys::termios::tcgetattr;
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Written at once.
const PART: usize = 64 << 10;
/// A disk that is full is written to again for so long before output is given up.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Pauses between such attempts, from the first to the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// What went wrong with a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// It cannot be written, and is tried again.
    Waiting(Errno),
    /// It was tried for long enough: what waited is lost.
    GivenUp(Errno),
    /// It is closed, or open for reading alone: no time would change that.
    Closed,
}

/// A stream and what waits to be written to it.
pub struct Sink {
    shared: Arc<Shared>,
    /// The last line is not finished.
    is_open: bool,
    /// Whose pieces it consists of, where that is known.
    writers: BTreeSet<Key>,
    /// Whose unfinished line was ended for somebody else's.
    cut: BTreeSet<Key>,
}

struct Shared {
    state: Mutex<State>,
    filled: Condvar,
    /// Wakes the thread that polls.
    wake: Arc<EventFd>,
}

#[derive(Default)]
struct State {
    waiting: Vec<u8>,
    /// Bytes that the writer has taken out of `waiting` and not yet written.
    taken: usize,
    /// Nobody reads any more.
    closed: bool,
    /// Nothing more will be pushed.
    over: bool,
    troubles: Vec<Trouble>,
    lost: u64,
    /// Why.
    lost_to: Option<Errno>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and lets the polling thread look at it.
    fn tell(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        // It fails only when nobody has looked for 2^64 changes.
        let _ = self.wake.write(1);
    }
}

impl Sink {
    /// Writes to `target` in a thread of its own, and tells `wake` whenever something has changed.
    ///
    /// # Errors
    /// When no thread is to be had.
    pub fn new(target: Box<dyn AsFd + Send>, wake: Arc<EventFd>) -> io::Result<Sink> {
        let shared = Arc::new(Shared { state: Mutex::default(), filled: Condvar::new(), wake });
        let writer =
            Writer { target, shared: Arc::clone(&shared), given_up: false, inside_line: false, skipping: false };
        std::thread::Builder::new().name("output".into()).stack_size(256 << 10).spawn(move || writer.run())?;
        Ok(Sink { shared, is_open: false, writers: BTreeSet::new(), cut: BTreeSet::new() })
    }

    /// Bytes that wait.
    pub fn pending(&self) -> usize {
        let state = self.shared.lock();
        state.waiting.len() + state.taken
    }

    /// What has gone wrong since the last call.
    pub fn troubles(&self) -> Vec<Trouble> {
        std::mem::take(&mut self.shared.lock().troubles)
    }

    /// How many bytes were given up, and why.
    pub fn lost(&self) -> Option<(u64, Errno)> {
        let state = self.shared.lock();
        state.lost_to.map(|errno| (state.lost, errno))
    }

    /// Adds bytes as they are.
    pub fn push(&mut self, bytes: &[u8]) {
        let Some(last) = bytes.last() else { return };
        self.is_open = *last != b'\n';
        if !self.is_open {
            self.writers.clear();
        }
        let mut state = self.shared.lock();
        if !state.closed {
            state.waiting.extend_from_slice(bytes);
            self.shared.filled.notify_one();
        }
    }

    /// Adds what `key` has written, behind what another one may have begun. Where its own line was ended for one of [`push_line`](Self::push_line)'s,
    /// its end is there already.
    pub fn push_untagged(&mut self, key: Key, bytes: &[u8]) {
        let was_cut = !bytes.is_empty() && self.cut.remove(&key);
        self.push(bytes.strip_prefix(b"\n").filter(|_| was_cut).unwrap_or(bytes));
        self.note_writer(key, bytes);
    }

    /// Adds a piece of a line of `key`'s, which begins with the tag; with `goes_on` it goes on with a line that `key` began, and if another one
    /// wrote meanwhile, it begins with the tag again, unless only its end is left.
    pub fn push_tagged(&mut self, key: Key, tag: &[u8], goes_on: bool, bytes: &[u8]) {
        let is_whole = self.is_open && self.writers.contains(&key);
        if !(goes_on && is_whole) {
            self.end_line();
            if self.cut.remove(&key) && bytes == b"\n" {
                return;
            }
            self.push(tag);
        }
        self.push(bytes);
        self.note_writer(key, bytes);
    }

    /// Adds a line of its own.
    pub fn push_line(&mut self, line: &[u8]) {
        self.end_line();
        self.push(line);
        self.push(b"\n");
    }

    fn note_writer(&mut self, key: Key, bytes: &[u8]) {
        if bytes.last().is_some_and(|last| *last != b'\n') {
            if bytes.contains(&b'\n') {
                self.writers.clear();
            }
            self.writers.insert(key);
        }
    }

    fn end_line(&mut self) {
        if self.is_open {
            self.cut.append(&mut self.writers);
            self.push(b"\n");
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.shared.lock().over = true;
        self.shared.filled.notify_one();
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink").field("pending", &self.pending()).finish_non_exhaustive()
    }
}

/// The thread's side.
struct Writer {
    target: Box<dyn AsFd + Send>,
    shared: Arc<Shared>,
    /// Output was given up, and nothing has been written since: what comes is tried once and not waited for.
    given_up: bool,
    /// The last byte that was written does not end a line.
    inside_line: bool,
    /// The last byte that was lost does not end a line.
    skipping: bool,
}

/// How a part fared.
enum Outcome {
    Written,
    /// The reader left.
    Left,
    /// So many bytes are written, and the rest is given up.
    Lost(usize),
}

impl Writer {
    fn run(mut self) {
        // Signals are the other thread's; with SIGXFSZ held back a file that is too large is an error like a full disk.
        let mut signals = SigSet::all();
        signals.remove(Signal::SIGTTOU);
        let _ = signals.thread_block();
        while let Some(mut bytes) = self.take() {
            self.skip(&mut bytes);
            let mut rest = bytes.as_slice();
            if self.given_up && self.inside_line && !rest.is_empty() {
                match self.put(b"\n") {
                    Outcome::Written => {}
                    Outcome::Left => return self.leave(),
                    Outcome::Lost(_) => rest = self.lose(rest),
                }
            }
            while !rest.is_empty() {
                let part = next_part(rest);
                match self.put(part) {
                    Outcome::Written => {
                        rest = &rest[part.len()..];
                        self.shared.tell(|state| state.taken = rest.len());
                    }
                    Outcome::Left => return self.leave(),
                    Outcome::Lost(written) => rest = self.lose(&rest[written..]),
                }
            }
        }
    }

    /// All that waits, once something does.
    fn take(&self) -> Option<Vec<u8>> {
        let mut state = self.shared.lock();
        while state.waiting.is_empty() {
            if state.over {
                return None;
            }
            state = self.shared.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let bytes = std::mem::take(&mut state.waiting);
        state.taken = bytes.len();
        Some(bytes)
    }

    /// After a loss output goes on with a whole line.
    fn skip(&mut self, bytes: &mut Vec<u8>) {
        if self.skipping {
            let cut = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
            self.skipping = bytes[cut - 1] != b'\n';
            bytes.drain(..cut);
            self.shared.tell(|state| {
                state.lost += cut as u64;
                state.taken = bytes.len();
            });
        }
    }

    /// Writes all of `part`, however long that takes; a disk that is full has its time.
    fn put(&mut self, part: &[u8]) -> Outcome {
        let mut written = 0;
        let mut failing: Option<Instant> = None;
        let mut pause = PAUSES.0;
        while written < part.len() {
            let errno = match nix::unistd::write(self.target.as_fd(), &part[written..]) {
                Ok(count) if count > 0 => {
                    written += count;
                    self.inside_line = part[written - 1] != b'\n';
                    (failing, pause, self.given_up) = (None, PAUSES.0, false);
                    continue;
                }
                Ok(_) => Errno::EIO,
                Err(Errno::EINTR) => continue,
                // Somebody else has made it non-blocking.
                Err(Errno::EAGAIN) => {
                    let _ = poll(&mut [PollFd::new(self.target.as_fd(), PollFlags::POLLOUT)], PollTimeout::NONE);
                    continue;
                }
                Err(Errno::EPIPE | Errno::ECONNRESET) => return Outcome::Left,
                Err(Errno::EIO) if is_terminal(self.target.as_fd()) => return Outcome::Left,
                Err(Errno::EBADF) => {
                    self.give_up(Errno::EBADF, Trouble::Closed);
                    return Outcome::Lost(written);
                }
                Err(errno) => errno,
            };
            let for_long =
                |since| job_time::now().saturating_duration_since(since) >= ft_sys::timescale::scaled(PATIENCE);
            if self.given_up || failing.is_some_and(for_long) {
                self.give_up(errno, Trouble::GivenUp(errno));
                return Outcome::Lost(written);
            }
            if failing.is_none() {
                failing = Some(job_time::now());
                self.shared.tell(|state| state.troubles.push(Trouble::Waiting(errno)));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
        Outcome::Written
    }

    /// What comes from now on is tried once.
    fn give_up(&mut self, errno: Errno, trouble: Trouble) {
        if !std::mem::replace(&mut self.given_up, true) {
            self.shared.tell(|state| state.troubles.push(trouble));
        }
        self.shared.lock().lost_to = Some(errno);
    }

    /// Nobody reads: the job goes on, and its output is dropped.
    fn leave(&self) {
        self.shared.tell(|state| {
            state.closed = true;
            state.taken = 0;
            state.waiting.clear();
        });
    }

    /// Gives up these bytes and all that has come meanwhile. Nothing is left of them.
    fn lose(&mut self, rest: &[u8]) -> &'static [u8] {
        let skipping = &mut self.skipping;
        self.shared.tell(|state| {
            *skipping = state.waiting.last().or(rest.last()).is_some_and(|byte| *byte != b'\n');
            state.lost += (rest.len() + state.waiting.len()) as u64;
            state.taken = 0;
            state.waiting.clear();
        });
        &[]
    }
}

/// Whether it is a terminal, or was one until it hung up: then even the question is answered with EIO, where a disk says that
/// it is none.
fn is_terminal(target: BorrowedFd<'_>) -> bool {
    let is_device = fstat(target).is_ok_and(|status| status.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFCHR.bits());
    is_device && matches!(tcgetattr(target), Ok(_) | Err(Errno::EIO))
}

/// Ends with a line if it can, so that others who write to the same file do not come between.
fn next_part(waiting: &[u8]) -> &[u8] {
    let part = &waiting[..waiting.len().min(PART)];
    match part.iter().rposition(|byte| *byte == b'\n') {
        Some(at) => &part[..=at],
        None => part,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn sink(target: impl AsFd + Send + 'static) -> Sink {
        Sink::new(Box::new(target), Arc::new(EventFd::new().unwrap())).unwrap()
    }

    fn eventually(what: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(20);
        while !what() {
            assert!(Instant::now() < until, "not within 20 s");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_full_pipe_holds_up_nobody_and_nothing_is_lost() {
        let (mut read, write) = std::io::pipe().unwrap();
        let mut sink = sink(write);
        let line: Vec<u8> = [vec![b'x'; 999], vec![b'\n']].concat();
        for _ in 0..500 {
            sink.push(&line);
        }
        assert!(sink.pending() > 400_000);
        let mut bytes = vec![0; 500_000];
        read.read_exact(&mut bytes).unwrap();
        assert!(bytes.chunks(1000).all(|chunk| chunk == line));
        eventually(|| sink.pending() == 0);
    }

    #[test]
    fn a_reader_that_left_is_no_error() {
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        let mut sink = sink(write);
        sink.push(b"for nobody\n");
        eventually(|| sink.pending() == 0);
        sink.push(b"for nobody\n");
        assert_eq!((sink.pending(), sink.lost(), sink.troubles()), (0, None, vec![]));
    }

    #[test]
    fn a_terminal_that_hung_up_is_a_reader_that_left() {
        let pty = nix::pty::openpty(None, None).unwrap();
        assert!(is_terminal(pty.slave.as_fd()));
        drop(pty.master);
        assert_eq!(nix::unistd::write(&pty.slave, b"x"), Err(Errno::EIO));
        let mut sink = sink(pty.slave);
        sink.push(b"for nobody\n");
        eventually(|| sink.pending() == 0);
        assert_eq!((sink.lost(), sink.troubles()), (None, vec![]));
        let disk = ft_sys::memory::create_memfd("t", 0).unwrap();
        assert!(!is_terminal(disk.as_fd()) && !is_terminal(std::fs::File::open("/dev/null").unwrap().as_fd()));
    }

    #[test]
    fn what_is_not_open_for_writing_is_not_waited_for() {
        let mut sink = sink(std::fs::File::open("/dev/null").unwrap());
        sink.push(b"12345\n12");
        eventually(|| sink.pending() == 0);
        sink.push(b"3\n");
        eventually(|| sink.pending() == 0);
        assert_eq!((sink.lost(), sink.troubles()), (Some((10, Errno::EBADF)), vec![Trouble::Closed]));
    }

    #[test]
    fn after_a_loss_output_goes_on_with_a_whole_line() {
        let after = |inside_line, skipping, text: &[u8]| {
            let (mut read, write) = std::io::pipe().unwrap();
            let shared =
                Shared { state: Mutex::default(), filled: Condvar::new(), wake: Arc::new(EventFd::new().unwrap()) };
            let shared = Arc::new(shared);
            let target = Box::new(write);
            let writer = Writer { target, shared: Arc::clone(&shared), given_up: true, inside_line, skipping };
            *shared.lock() = State { waiting: text.to_vec(), over: true, ..State::default() };
            std::thread::spawn(|| writer.run()).join().unwrap();
            let mut written = String::new();
            read.read_to_string(&mut written).unwrap();
            let state = shared.lock();
            (written, state.lost, state.taken)
        };
        assert_eq!(after(true, true, b"rest\nwhole\n"), ("\nwhole\n".into(), 5, 0));
        assert_eq!(after(false, true, b"rest\nwhole\n"), ("whole\n".into(), 5, 0));
        assert_eq!(after(true, true, b"rest"), (String::new(), 4, 0));
        assert_eq!(after(true, false, b"whole\n"), ("\nwhole\n".into(), 0, 0));
    }
}
