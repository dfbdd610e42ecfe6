//! What the program has printed and not yet written: a version counts only when that is out, or a failure would lose it.

use crate::client::say;
use ft_sys::job_time::Awake;
use ft_wire::Rank;
use std::ffi::c_int;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Another thread may be printing. One that holds the stream for longer is not waited for.
const PATIENCE: Duration = Duration::from_secs(1);

unsafe extern "C" {
    #[link_name = "stdout"]
    static STDOUT: *mut libc::FILE;
    fn ftrylockfile(stream: *mut libc::FILE) -> c_int;
    fn funlockfile(stream: *mut libc::FILE);
}

/// Empties C's standard output, and no other stream: `fflush(NULL)` would wait for one that another thread reads from.
pub(crate) fn empty_stdout(rank: Option<Rank>) {
    // SAFETY: libc's own variable, which a program sets, if at all, before it has threads.
    let stream = unsafe { STDOUT };
    let mut waited = Awake::begin();
    // SAFETY: C's streams are never freed.
    while !stream.is_null() && unsafe { ftrylockfile(stream) } != 0 {
        if waited.elapsed() >= PATIENCE {
            return complain(rank);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    if !stream.is_null() {
        // SAFETY: the stream is locked by this thread. What cannot be written is the program's to notice, as ever.
        unsafe {
            libc::fflush(stream);
            funlockfile(stream);
        }
    }
}

fn complain(rank: Option<Rank>) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        let sentence = "another thread held stdout for a second, so a checkpoint was taken without what is in its buffer: \
                        a failure may lose that output";
        say(rank, sentence);
    }
}

/// What a Rust program registers.
#[derive(Default)]
pub(crate) struct Calls(Vec<Box<dyn FnMut() + Send>>);

impl Calls {
    pub(crate) fn add(&mut self, call: Box<dyn FnMut() + Send>) {
        self.0.push(call);
    }

    /// The last first: what was registered early is what the others write to.
    pub(crate) fn run(&mut self) {
        self.0.iter_mut().rev().for_each(|call| call());
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} calls", self.0.len())
    }
}
