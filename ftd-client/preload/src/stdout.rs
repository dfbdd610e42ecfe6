//! The program's standard output, live: under `mpirun` it is a terminal more often than not, and lines appear at once; what
//! a process that is killed has not written is lost.
//!
//! Only C's `stdout`, and only where descriptor 1 is the pipe that ftd itself made: a wrapper may have put a file there, and
//! a program that has given the stream a buffer of its own, or none, has said what it wants.

use ft_sys::job_time::Awake;
use ft_sys::standard::SlotsPipe;
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Another thread may be printing. One that holds the stream for longer keeps it as it is.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of the stream's new buffer.
const BUFFER: usize = 16 << 10;
/// `_IO_USER_BUF` in glibc's `FILE`, whose first word holds the flags: the buffer came from `setvbuf`.
const OWN_BUFFER: c_int = 1;

unsafe extern "C" {
    #[link_name = "stdout"]
    static STDOUT: *mut libc::FILE;
    fn ftrylockfile(stream: *mut libc::FILE) -> c_int;
    fn funlockfile(stream: *mut libc::FILE);
    fn __fbufsize(stream: *mut libc::FILE) -> usize;
    fn __flbf(stream: *mut libc::FILE) -> c_int;
}

/// Makes `stdout` line-buffered.
pub(crate) fn make_live() {
    static DONE: AtomicBool = AtomicBool::new(false);
    let pipe = SlotsPipe::of_environment();
    if DONE.swap(true, Ordering::Relaxed) || pipe.and_then(|pipe| pipe.stdout()).is_none() {
        return;
    }
    // SAFETY: libc's own variable, which a program sets, if at all, before it has threads.
    let stream = unsafe { STDOUT };
    let mut waited = Awake::begin();
    // SAFETY: C's streams are never freed.
    while !stream.is_null() && unsafe { ftrylockfile(stream) } != 0 {
        if waited.elapsed() >= PATIENCE {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    if stream.is_null() {
        return;
    }
    // SAFETY: the stream is open and locked by this thread.
    unsafe {
        if libc::fileno(stream) == libc::STDOUT_FILENO && is_as_libc_made_it(stream) {
            line_buffer(stream);
        }
        funlockfile(stream);
    }
}

/// Whether the program has left the stream's buffer to libc.
///
/// # Safety
/// The stream is open and locked by this thread.
unsafe fn is_as_libc_made_it(stream: *mut libc::FILE) -> bool {
    // SAFETY: the caller's promise; glibc's FILE begins with its flags.
    unsafe { *stream.cast::<c_int>() & OWN_BUFFER == 0 && __flbf(stream) == 0 && __fbufsize(stream) != 1 }
}

/// # Safety
/// The stream is open and locked by this thread.
unsafe fn line_buffer(stream: *mut libc::FILE) {
    static mut SPACE: [u8; BUFFER] = [0; BUFFER];
    // With another buffer glibc writes out what is in the old one and begins anew. Without, a stream that was written to goes
    // on with a buffer that it thinks may be filled before anybody looks for the end of a line.
    // SAFETY: the buffer is used by this stream alone and lives as long as the process: a preloaded library stays.
    unsafe { libc::setvbuf(stream, (&raw mut SPACE).cast::<c_char>(), libc::_IOLBF, BUFFER) };
}
