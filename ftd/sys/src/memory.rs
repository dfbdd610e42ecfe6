//! Memory that processes share: memfds and their mappings.

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// A memfd of `bytes` bytes, close-on-exec. Its memory is taken when it is touched.
///
/// # Errors
/// When no descriptor or memory is left.
pub fn create_memfd(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC)?;
    nix::unistd::ftruncate(&fd, to_offset(bytes)?)?;
    Ok(fd)
}

/// Takes memory for a part of the file now, so that touching it cannot fail later.
///
/// # Errors
/// `ENOMEM` or `ENOSPC` when there is not enough.
pub fn allocate(fd: impl AsFd, offset: u64, bytes: u64) -> io::Result<()> {
    Ok(fallocate(fd, FallocateFlags::empty(), to_offset(offset)?, to_offset(bytes)?)?)
}

/// Gives the memory of a part of the file back; it reads as zeros afterwards.
///
/// # Errors
/// As `fallocate`.
pub fn punch_hole(fd: impl AsFd, offset: u64, bytes: u64) -> io::Result<()> {
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    Ok(fallocate(fd, flags, to_offset(offset)?, to_offset(bytes)?)?)
}

fn to_offset(value: u64) -> io::Result<i64> {
    i64::try_from(value).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// A shared, writable mapping of a part of a file. Other processes change it at any time: it is read and written through
/// atomics only.
#[derive(Debug)]
pub struct SharedMap {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and all access to it is atomic.
unsafe impl Send for SharedMap {}
// SAFETY: as above.
unsafe impl Sync for SharedMap {}

impl SharedMap {
    /// Maps `bytes` bytes from `offset` (a multiple of the page size) on.
    ///
    /// # Errors
    /// When the file is shorter, or as `mmap`.
    pub fn map(fd: impl AsFd, offset: u64, bytes: usize) -> io::Result<SharedMap> {
        let fd = fd.as_fd();
        let size = nix::sys::stat::fstat(fd)?.st_size as u64;
        if offset.checked_add(bytes as u64).is_none_or(|end| end > size) {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("{bytes} bytes at {offset} of a file of {size}"),
            ));
        }
        let length = NonZeroUsize::new(bytes).ok_or(io::ErrorKind::InvalidInput)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that Rust knows.
        let start = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, fd, to_offset(offset)?)? };
        Ok(SharedMap { start: start.cast(), bytes })
    }

    /// Where the mapping begins. What is done with it is the caller's risk.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Never: a mapping has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The word at `offset`.
    ///
    /// # Panics
    /// When it is not aligned or not within the mapping: offsets are constants of a layout.
    pub fn u32_at(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.bytes, "no word at {offset}");
        // SAFETY: aligned and within the mapping, which lives as long as `self`; all access is atomic.
        unsafe { AtomicU32::from_ptr(self.as_ptr().add(offset).cast()) }
    }

    /// The double word at `offset`.
    ///
    /// # Panics
    /// As [`u32_at`](Self::u32_at).
    pub fn u64_at(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.bytes, "no double word at {offset}");
        // SAFETY: as in `u32_at`.
        unsafe { AtomicU64::from_ptr(self.as_ptr().add(offset).cast()) }
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `map`; nothing borrowed from `self` is left.
        let _ = unsafe { munmap(self.start.cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn two_mappings_of_one_file_see_each_other() {
        let fd = create_memfd("t", 8192).unwrap();
        let (a, b) = (SharedMap::map(&fd, 0, 8192).unwrap(), SharedMap::map(&fd, 4096, 4096).unwrap());
        a.u32_at(4096 + 12).store(7, Ordering::Release);
        assert_eq!(b.u32_at(12).load(Ordering::Acquire), 7);
        assert!(SharedMap::map(&fd, 4096, 8192).is_err());
    }

    #[test]
    fn a_hole_gives_memory_back() {
        let fd = create_memfd("t", 1 << 20).unwrap();
        let blocks = || nix::sys::stat::fstat(&fd).unwrap().st_blocks;
        allocate(&fd, 0, 1 << 20).unwrap();
        assert_eq!(blocks(), 2048);
        punch_hole(&fd, 0, 1 << 20).unwrap();
        assert_eq!(blocks(), 0);
    }
}
