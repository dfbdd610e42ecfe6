//! How long a thread keeps a processor before another one's turn comes.
//!
//! Ranks that spin while they wait keep all processors busy. What reacts to a failure sleeps until it happens, and then works
//! for microseconds: with a short time slice the kernel (Linux 6.12 and later) lets it run when it wakes up, instead of after
//! a whole slice of each rank. Its share of the processors stays what it was, and no privilege is needed. Older kernels
//! ignore the request.

use std::ptr;

/// The shortest slice that the kernel grants.
const SHORT_NS: u64 = 100_000;

/// `struct sched_attr` of the kernel, in its first version.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SchedAttr {
    size: u32,
    pub(crate) policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// The slice, in nanoseconds; 0 is the system's ordinary one.
    pub(crate) runtime: u64,
    deadline: u64,
    period: u64,
}

/// Gives the calling thread, and what it starts from now on, a short slice.
pub fn shorten() {
    set(SHORT_NS);
}

/// Gives the calling thread the system's ordinary slice again. Safe between `fork` and `exec`.
pub fn restore() {
    set(0);
}

/// Has the calling thread wait for its turn behind the ranks.
pub fn give_way() {
    // The worst that can happen is that it takes its turn.
    let _ = rustix::process::setpriority_process(None, 10);
}

/// How the kernel schedules the calling thread, if it knows slices for such threads: other policies have none, or mean
/// something else by the same word.
pub(crate) fn of_this_thread() -> Option<SchedAttr> {
    let mut attr = SchedAttr { size: size_of::<SchedAttr>() as u32, ..SchedAttr::default() };
    // SAFETY: the structure has the size that is passed; 0 is the calling thread.
    let known = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, attr.size, 0) } == 0;
    (known && matches!(attr.policy as i32, libc::SCHED_OTHER | libc::SCHED_BATCH)).then_some(attr)
}

/// Has the calling thread scheduled so, as far as the kernel allows it.
pub(crate) fn apply(attr: &SchedAttr) {
    // SAFETY: the structure says its own size; 0 is the calling thread.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, ptr::from_ref(attr), 0) };
}

fn set(slice_ns: u64) {
    if let Some(attr) = of_this_thread() {
        apply(&SchedAttr { runtime: slice_ns, ..attr });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice() -> u64 {
        of_this_thread().unwrap().runtime
    }

    #[test]
    fn a_slice_is_shortened_and_restored() {
        let before = slice();
        shorten();
        let short = slice();
        // A kernel that knows no slices says 0 throughout.
        assert!(short == SHORT_NS || before == 0, "{short}");
        restore();
        assert_eq!(slice(), before);
    }
}
