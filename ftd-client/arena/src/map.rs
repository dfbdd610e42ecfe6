//! The system calls: the memfd, its mappings, the futex.

use crate::layout::{ARENA_BYTES, HEADER_BYTES, HUGE_PAGE};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
const HUGE: usize = HUGE_PAGE as usize;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A new memfd of the arena's size. Its size is sealed, so that no access to a mapping of it can raise SIGBUS.
pub(crate) fn create(rank: u32) -> io::Result<OwnedFd> {
    let name = std::ffi::CString::new(format!("ftd-arena-{rank}")).map_err(io::Error::other)?;
    // SAFETY: the name is a C string that outlives the call.
    let fd = check(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) })?;
    // SAFETY: the descriptor is new and nobody else's.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: plain system call on an open descriptor.
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), ARENA_BYTES as libc::off_t) })?;
    // SAFETY: as above.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS) })?;
    Ok(fd)
}

/// Whether the descriptor has the arena's size, and keeps it.
pub(crate) fn validate(fd: BorrowedFd<'_>) -> io::Result<Result<(), String>> {
    let stat = stat(fd)?;
    if stat.st_size as u64 != ARENA_BYTES {
        return Ok(Err(format!("it has {} bytes instead of {ARENA_BYTES}", stat.st_size)));
    }
    // SAFETY: plain system call on an open descriptor.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 || seals & SEALS != SEALS {
        return Ok(Err("its size is not sealed".into()));
    }
    Ok(Ok(()))
}

fn stat(fd: BorrowedFd<'_>) -> io::Result<libc::stat> {
    // SAFETY: an all-zero stat is a valid value of the type.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid for the call.
    check(unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) })?;
    Ok(stat)
}

/// Bytes of memory that the memfd occupies.
pub(crate) fn allocated(fd: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(stat(fd)?.st_blocks as u64 * 512)
}

/// Gives the memory behind `offset..offset+length` back.
pub(crate) fn punch(fd: BorrowedFd<'_>, offset: u64, length: u64) -> io::Result<()> {
    if length == 0 {
        return Ok(());
    }
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: plain system call on an open descriptor.
    check(unsafe { libc::fallocate(fd.as_raw_fd(), mode, offset as libc::off_t, length as libc::off_t) }).map(|_| ())
}

/// Reads exactly `buffer.len()` bytes.
pub(crate) fn read_at(fd: BorrowedFd<'_>, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        let rest = &mut buffer[done..];
        // SAFETY: the pointer and length describe the buffer's unread rest.
        let n = unsafe {
            libc::pread(fd.as_raw_fd(), rest.as_mut_ptr().cast(), rest.len(), (offset + done as u64) as libc::off_t)
        };
        match n {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n if n > 0 => done += n as usize,
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

/// A shared, writable mapping of a part of the memfd.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: *mut u8,
    length: usize,
}

// SAFETY: the mapping belongs to this value alone; all access to it goes through atomics or raw pointers.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes at `offset`. Large mappings are aligned for huge pages and ask for them. The mapping is left out
    /// of core dumps (they would take longer than the recovery) and of forked children.
    pub(crate) fn new(fd: BorrowedFd<'_>, offset: u64, length: usize) -> io::Result<Mapping> {
        let huge = length >= HUGE;
        let room = length.checked_add(if huge { HUGE } else { 0 }).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: reserves fresh address space, touches no existing mapping.
        let area = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                room,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if area == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = area as usize;
        let base = if huge { start.next_multiple_of(HUGE) } else { start };
        let end = (base + length).next_multiple_of(4096);
        // SAFETY: the range lies inside the area reserved above, which nobody else knows.
        let mapped = unsafe {
            libc::mmap(
                base as *mut _,
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                fd.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        let failed = (mapped == libc::MAP_FAILED).then(io::Error::last_os_error);
        for (from, to) in [(start, base), (end, (start + room).next_multiple_of(4096))] {
            if to > from {
                // SAFETY: the unused edges of the reserved area.
                unsafe { libc::munmap(from as *mut _, to - from) };
            }
        }
        if let Some(error) = failed {
            // SAFETY: the rest of the reserved area.
            unsafe { libc::munmap(base as *mut _, length) };
            return Err(error);
        }
        let mapping = Mapping { base: base as *mut u8, length };
        mapping.advise(libc::MADV_DONTDUMP);
        mapping.advise(libc::MADV_DONTFORK);
        if huge {
            mapping.advise(libc::MADV_HUGEPAGE);
        }
        Ok(mapping)
    }

    /// Advice that a kernel may refuse without harm.
    fn advise(&self, advice: libc::c_int) {
        // SAFETY: the range is this mapping; none of the advices used destroys data.
        unsafe { libc::madvise(self.base.cast(), self.length, advice) };
    }

    /// Takes memory for the whole mapping and fills the page tables, so that writing to it neither faults nor fails.
    pub(crate) fn populate(&self, fd: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
        const MADV_POPULATE_WRITE: libc::c_int = 23;
        loop {
            // SAFETY: the range is this mapping; populating changes no data.
            if unsafe { libc::madvise(self.base.cast(), self.length, MADV_POPULATE_WRITE) } == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN) => {}
                // Linux before 5.14.
                Some(libc::EINVAL) => break,
                Some(libc::EFAULT) => return Err(io::Error::from_raw_os_error(libc::ENOMEM)),
                _ => return Err(error),
            }
        }
        // SAFETY: plain system call on an open descriptor.
        check(unsafe {
            libc::fallocate(
                fd.as_raw_fd(),
                libc::FALLOC_FL_KEEP_SIZE,
                offset as libc::off_t,
                self.length as libc::off_t,
            )
        })
        .map(|_| ())
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.base
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// The mapping as words. Another process writes them too, hence atomics.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, `length` bytes long and lives as long as `self`; its size is sealed, so no
        // access can fault; atomics may alias with other processes' atomics.
        unsafe { std::slice::from_raw_parts(self.base.cast(), self.length / 8) }
    }

    /// The low half of a word, for a futex.
    pub(crate) fn futex(&self, word: usize) -> &AtomicU32 {
        let low = if cfg!(target_endian = "big") { 4 } else { 0 };
        debug_assert!(word * 8 + 8 <= self.length);
        // SAFETY: the word lies inside the mapping (all callers pass constants below the header's size) and is aligned.
        unsafe { &*self.base.add(word * 8 + low).cast() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping and no reference to it outlives `self`.
        unsafe { libc::munmap(self.base.cast(), self.length) };
    }
}

/// Maps the header.
pub(crate) fn map_header(fd: BorrowedFd<'_>) -> io::Result<Mapping> {
    Mapping::new(fd, 0, HEADER_BYTES)
}

/// Waits until the futex differs from `value`, is woken, or `timeout` is over.
pub(crate) fn futex_wait(futex: &AtomicU32, value: u32, timeout: Duration) {
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: timeout.subsec_nanos() as libc::c_long,
    };
    // SAFETY: the futex word and the time-out are valid for the call.
    unsafe {
        libc::syscall(libc::SYS_futex, futex.as_ptr(), libc::FUTEX_WAIT, value, &timeout as *const libc::timespec)
    };
}

/// Wakes everyone who waits on the futex.
pub(crate) fn futex_wake(futex: &AtomicU32) {
    // SAFETY: the futex word is valid for the call.
    unsafe { libc::syscall(libc::SYS_futex, futex.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
