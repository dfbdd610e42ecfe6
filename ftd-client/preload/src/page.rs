//! The page that the process shares with its agent (see `ft_wire::rank::page`).

use ft_wire::rank::page::{ARMED, MUTEX, SIZE};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The mapped page; null before `MPI_Init` and in processes without ftd.
static PAGE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
/// The process that the page belongs to; a child of a `fork` inherits the mapping and must not write to it.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// This process's id; unlike a cached value it is right in a child of `vfork`.
pub(crate) fn pid() -> u32 {
    // SAFETY: cannot fail.
    unsafe { libc::getpid() as u32 }
}

/// Whether this is the process that joined the job.
pub(crate) fn is_owner() -> bool {
    let owner = OWNER.load(Ordering::Acquire);
    owner != 0 && owner == pid()
}

/// Whether this process has joined the job, or an ancestor whose memory it has.
pub(crate) fn has_joined() -> bool {
    OWNER.load(Ordering::Acquire) != 0
}

/// Maps the page and locks the robust mutex in it, for the rest of this thread's life.
pub(crate) fn adopt(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: fresh mapping of the received descriptor.
    let page = unsafe {
        libc::mmap(std::ptr::null_mut(), SIZE, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd.as_raw_fd(), 0)
    };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let page: *mut u8 = page.cast();
    let failed = |code: libc::c_int| if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) };
    // SAFETY: the mutex lies at the start of the page (page-aligned, larger than a mutex), nobody else uses it yet, and the
    // mapping is never removed, as a robust mutex needs.
    unsafe {
        let mutex: *mut libc::pthread_mutex_t = page.add(MUTEX).cast();
        let mut attributes: libc::pthread_mutexattr_t = std::mem::zeroed();
        failed(libc::pthread_mutexattr_init(&mut attributes))?;
        failed(libc::pthread_mutexattr_setrobust(&mut attributes, libc::PTHREAD_MUTEX_ROBUST))?;
        failed(libc::pthread_mutexattr_setpshared(&mut attributes, libc::PTHREAD_PROCESS_SHARED))?;
        failed(libc::pthread_mutex_init(mutex, &attributes))?;
        failed(libc::pthread_mutex_lock(mutex))?;
    }
    PAGE.store(page, Ordering::Release);
    OWNER.store(pid(), Ordering::Release);
    set(ARMED, 1);
    Ok(())
}

/// Writes a word of the page, if this process has one.
pub(crate) fn set(offset: usize, value: u32) {
    let page = PAGE.load(Ordering::Acquire);
    if page.is_null() || !is_owner() || offset + 4 > SIZE {
        return;
    }
    // SAFETY: the word lies inside the mapped page, is aligned (all offsets of ft_wire::rank::page are), and is accessed
    // atomically by both sides.
    unsafe { AtomicU32::from_ptr(page.add(offset).cast()) }.store(value.to_le(), Ordering::Release);
}
