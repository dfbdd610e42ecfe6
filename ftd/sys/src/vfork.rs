//! A child that runs in its parent's memory until it executes a program: to copy the page tables of a process, and every page
//! that one of the two then writes to, costs a launcher more than all the rest of a start.

use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use std::ffi::c_void;
use std::io;

/// Bytes of the child's stack. What runs on it makes system calls.
const STACK: usize = 64 << 10;

/// What it runs.
type Child<'a> = &'a mut dyn FnMut() -> i32;

/// Starts a child that runs `child` on a stack of its own, with all signals blocked, and ends with what that returns if it
/// returns. The calling thread waits until the child has executed a program or ended; what the child has written is there then.
/// Returns its pid.
///
/// # Safety
/// `child` makes async-signal-safe calls only, up to `exec` or its return, and unblocks no signal for which this process has
/// a handler that is the child's still.
///
/// # Errors
/// What `clone` said.
pub unsafe fn vfork(mut child: impl FnMut() -> i32) -> io::Result<i32> {
    let mut child: Child<'_> = &mut child;
    let mut stack: Vec<u8> = Vec::with_capacity(STACK);
    let mut old = SigSet::empty();
    // A handler would run in the child with the parent's memory.
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut old))?;
    // SAFETY: one past the end of the allocation, and aligned below it as the ABI wants.
    let top = unsafe { stack.as_mut_ptr().add(STACK) }.map_addr(|address| address & !15);
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: stack and closure live until the child needs them no more: this thread waits for that (CLONE_VFORK).
    let pid = unsafe { libc::clone(run, top.cast(), flags, (&raw mut child).cast()) };
    let result = if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid) };
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&old), None)?;
    result
}

extern "C" fn run(child: *mut c_void) -> i32 {
    // SAFETY: `vfork` passes this, and waits.
    let child = unsafe { &mut *child.cast::<Child<'_>>() };
    child()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_child_has_written_is_there_and_signals_are_as_they_were() {
        let before = SigSet::thread_get_mask().unwrap();
        let mut written = 0;
        // SAFETY: it only writes a number.
        let pid = unsafe {
            vfork(|| {
                written = 41;
                7
            })
        };
        let pid = nix::unistd::Pid::from_raw(pid.unwrap());
        let ended = nix::sys::wait::waitpid(pid, None).unwrap();
        assert_eq!(ended, nix::sys::wait::WaitStatus::Exited(pid, 7));
        assert_eq!(written, 41);
        assert_eq!(SigSet::thread_get_mask().unwrap(), before);
    }
}
