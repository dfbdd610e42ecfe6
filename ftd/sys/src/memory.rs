//! Memory that processes share: memfds and their mappings.

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::fs::{MemfdFlags, memfd_create};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Mappings of this size and more are aligned to it, for huge pages.
pub(crate) const HUGE_PAGE: usize = 2 << 20;
pub(crate) const PAGE: usize = 4096;

/// A memfd of `bytes` bytes, close-on-exec. Its memory is taken when it is touched.
///
/// # Errors
/// When no descriptor or memory is left.
pub fn create_memfd(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let fd = without_programs(name, MemfdFlags::CLOEXEC)?;
    // What cannot hold a program can be sealed by whoever has it: nobody is to.
    let seals = nix::fcntl::fcntl(&fd, nix::fcntl::FcntlArg::F_GET_SEALS)?;
    if !nix::fcntl::SealFlag::from_bits_retain(seals).contains(nix::fcntl::SealFlag::F_SEAL_SEAL) {
        nix::fcntl::fcntl(&fd, nix::fcntl::FcntlArg::F_ADD_SEALS(nix::fcntl::SealFlag::F_SEAL_SEAL))?;
    }
    nix::unistd::ftruncate(&fd, to_offset(bytes)?)?;
    Ok(fd)
}

/// Nobody can execute what is in it, nor make it a program (`MFD_NOEXEC_SEAL`): hardened systems let nobody make another one
/// (`vm.memfd_noexec = 2`). Kernels before 6.3 do not know it.
fn without_programs(name: &str, flags: MemfdFlags) -> io::Result<OwnedFd> {
    match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(rustix::io::Errno::INVAL) => Ok(memfd_create(name, flags)?),
        made => Ok(made?),
    }
}

/// A memfd of which most bytes are never touched, for processes that do not trust each other: nobody can change its size, so
/// no access to a mapping of it can raise SIGBUS, but for want of memory.
///
/// # Errors
/// As [`create_memfd`].
pub fn create_sparse_sealed_memfd(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let fd = without_programs(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    nix::unistd::ftruncate(&fd, to_offset(bytes)?)?;
    nix::fcntl::fcntl(&fd, nix::fcntl::FcntlArg::F_ADD_SEALS(size_seals()))?;
    Ok(fd)
}

fn size_seals() -> nix::fcntl::SealFlag {
    nix::fcntl::SealFlag::F_SEAL_SHRINK | nix::fcntl::SealFlag::F_SEAL_GROW
}

/// Most bytes that a file which this process makes may have (`ulimit -f`); memfds are files.
pub fn file_size_limit() -> u64 {
    nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_FSIZE).map_or(u64::MAX, |(soft, _)| soft)
}

/// Most bytes of address space that this process may have (`ulimit -v`).
pub fn address_space_limit() -> u64 {
    nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_AS).map_or(u64::MAX, |(soft, _)| soft)
}

/// Whether nobody can change the file's size.
pub fn has_sealed_size(fd: impl AsFd) -> bool {
    let seals = nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_GET_SEALS);
    seals.is_ok_and(|seals| nix::fcntl::SealFlag::from_bits_retain(seals).contains(size_seals()))
}

/// What the kernel knows of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Its size in bytes.
    pub bytes: u64,
    /// Bytes of memory that it occupies.
    pub allocated: u64,
    /// Device and inode: which file it is.
    pub identity: (u64, u64),
}

/// What the kernel knows of a file.
///
/// # Errors
/// As `fstat`.
pub fn facts(fd: impl AsFd) -> io::Result<Facts> {
    let stat = nix::sys::stat::fstat(fd)?;
    Ok(Facts {
        bytes: stat.st_size as u64,
        allocated: stat.st_blocks as u64 * 512,
        identity: (stat.st_dev, stat.st_ino),
    })
}

/// Reads exactly `buffer.len()` bytes, without a mapping of them.
///
/// # Errors
/// As `pread`; `UnexpectedEof` when the file is shorter.
pub fn read_at(fd: impl AsFd, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buffer.is_empty() {
        match nix::sys::uio::pread(&fd, buffer, to_offset(offset)?) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                buffer = &mut buffer[count..];
                offset += count as u64;
            }
            Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
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
    /// The only process that has the mapping; any child of it without.
    owner: Option<u32>,
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
        let length = mappable(&fd, offset, bytes)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that Rust knows.
        let start = unsafe { mmap(None, length, read_write(), MapFlags::MAP_SHARED, fd, to_offset(offset)?)? };
        Ok(SharedMap { start: start.cast(), bytes, owner: None })
    }

    /// As [`map`](Self::map), for much memory: aligned for huge pages, and left out of core dumps (they would take longer
    /// than the recovery) and of forked children.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn map_large(fd: impl AsFd, offset: u64, bytes: usize) -> io::Result<SharedMap> {
        let length = mappable(&fd, offset, bytes)?;
        let whole = bytes.checked_next_multiple_of(PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
        let huge = bytes >= HUGE_PAGE;
        let room = whole.checked_add(if huge { HUGE_PAGE } else { 0 }).and_then(NonZeroUsize::new);
        let room = room.ok_or(io::ErrorKind::OutOfMemory)?;
        let reserve = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: reserves fresh address space, touches no existing mapping.
        let area = unsafe { mmap_anonymous(None, room, ProtFlags::PROT_NONE, reserve)? };
        let start = area.as_ptr() as usize;
        let base = if huge { start.next_multiple_of(HUGE_PAGE) } else { start };
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
        // SAFETY: the range lies inside the area reserved above, which nobody else knows.
        let mapped = unsafe { mmap(NonZeroUsize::new(base), length, read_write(), flags, fd, to_offset(offset)?) };
        let unused = match mapped {
            Ok(_) => [(start, base), (base + whole, start + room.get())],
            Err(_) => [(start, start + room.get()), (0, 0)],
        };
        for (from, to) in unused {
            if let Some(from) = NonNull::new(from as *mut _).filter(|_| to > from) {
                // SAFETY: a part of the reserved area that holds nothing.
                let _ = unsafe { munmap(from, to - from.as_ptr() as usize) };
            }
        }
        let map = SharedMap { start: mapped?.cast(), bytes, owner: Some(std::process::id()) };
        let mut advices = vec![MmapAdvise::MADV_DONTDUMP, MmapAdvise::MADV_DONTFORK];
        advices.extend(huge.then_some(MmapAdvise::MADV_HUGEPAGE));
        for advice in advices {
            // SAFETY: the range is this mapping; none of the advices destroys data, and a kernel may refuse them.
            let _ = unsafe { madvise(map.start.cast(), bytes, advice) };
        }
        Ok(map)
    }

    /// Takes memory for the whole mapping of `fd` at `offset` and fills the page tables, so that writing to it neither
    /// faults nor fails.
    ///
    /// # Errors
    /// `ENOMEM` or `ENOSPC` when there is not enough.
    pub fn populate(&self, fd: impl AsFd, offset: u64) -> io::Result<()> {
        const MADV_POPULATE_WRITE: libc::c_int = 23;
        loop {
            // SAFETY: the range is this mapping; populating changes no data.
            if unsafe { libc::madvise(self.as_ptr().cast(), self.bytes, MADV_POPULATE_WRITE) } == 0 {
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
        let (offset, bytes) = (to_offset(offset)?, to_offset(self.bytes as u64)?);
        Ok(fallocate(fd, FallocateFlags::FALLOC_FL_KEEP_SIZE, offset, bytes)?)
    }

    /// Puts empty memory of this process's own in the file's place: what is still written through the mapping's addresses, by whom
    /// they were given to, does not change the file any more.
    ///
    /// # Errors
    /// As `mmap`; then the file is still there.
    pub fn detach(&self) -> io::Result<()> {
        let length = NonZeroUsize::new(self.bytes.next_multiple_of(PAGE)).ok_or(io::ErrorKind::InvalidInput)?;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED | MapFlags::MAP_NORESERVE;
        let start = NonZeroUsize::new(self.start.as_ptr() as usize);
        // SAFETY: exactly the pages of this mapping, which stay readable and writable; all access to them is atomic.
        unsafe { mmap_anonymous(start, length, read_write(), flags)? };
        // SAFETY: as above; the advice destroys no data, and a kernel may refuse it.
        let _ = unsafe { madvise(self.start.cast(), self.bytes, MmapAdvise::MADV_DONTDUMP) };
        Ok(())
    }

    /// The mapping as words, its last bytes left out if they make none.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: aligned to a page, within the mapping, which lives as long as `self`; all access is atomic.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.bytes / 8) }
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

fn read_write() -> ProtFlags {
    ProtFlags::PROT_READ | ProtFlags::PROT_WRITE
}

/// That many bytes, if the file has them.
fn mappable(fd: impl AsFd, offset: u64, bytes: usize) -> io::Result<NonZeroUsize> {
    let size = facts(fd)?.bytes;
    if offset.checked_add(bytes as u64).is_none_or(|end| end > size) {
        let text = format!("{bytes} bytes at {offset} of a file of {size}");
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
    }
    Ok(NonZeroUsize::new(bytes).ok_or(io::ErrorKind::InvalidInput)?)
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        if self.owner.is_some_and(|owner| owner != std::process::id()) {
            // A forked child never had it, and may have something else there.
            return;
        }
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
    fn nobody_makes_a_program_of_it_nor_seals_what_others_write() {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::{FileExt, PermissionsExt};
        // Kernels before 6.3 make files that can be executed, as the machines of others do.
        let knows = memfd_create("t", MemfdFlags::NOEXEC_SEAL).is_ok();
        for fd in [create_memfd("t", 4096).unwrap(), create_sparse_sealed_memfd("t", 4096).unwrap()] {
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            let mode = || std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode() & 0o111 == 0, knows, "{:o}", mode());
            assert_eq!(std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).is_err(), knows);
            std::fs::File::from(fd.try_clone().unwrap()).write_all_at(b"#!/bin/true\n", 0).unwrap();
            let run = std::process::Command::new(&path).status();
            assert_eq!(run.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied), knows);
        }
        let page = create_memfd("t", 4096).unwrap();
        let sealed = nix::fcntl::fcntl(&page, nix::fcntl::FcntlArg::F_ADD_SEALS(size_seals()));
        assert_eq!(sealed, Err(nix::errno::Errno::EPERM));
    }

    #[test]
    fn a_large_mapping_is_aligned_and_its_neighbours_are_left_alone() {
        let fd = create_sparse_sealed_memfd("t", 8 << 20).unwrap();
        assert!(has_sealed_size(&fd) && !has_sealed_size(create_memfd("t", 1).unwrap()));
        for (offset, bytes) in [(0, PAGE), (4 << 20, 4 << 20), (1 << 20, (3 << 20) + 12)] {
            let map = SharedMap::map_large(&fd, offset, bytes).unwrap();
            assert_eq!(map.as_ptr() as usize % if bytes < HUGE_PAGE { PAGE } else { HUGE_PAGE }, 0);
            map.populate(&fd, offset).unwrap();
            map.words()[1].store(bytes as u64, Ordering::Release);
            let mut word = [0; 8];
            read_at(&fd, &mut word, offset + 8).unwrap();
            assert_eq!(u64::from_le_bytes(word), bytes as u64);
        }
        assert!(SharedMap::map_large(&fd, 4 << 20, 5 << 20).is_err());
        assert_eq!(read_at(&fd, &mut [0; 8], (8 << 20) - 4).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_is_written_after_the_file_was_taken_away_does_not_reach_it() {
        let fd = create_memfd("t", 3 * 4096).unwrap();
        let (map, all) = (SharedMap::map(&fd, 4096, 4000).unwrap(), SharedMap::map(&fd, 0, 3 * 4096).unwrap());
        map.words()[0].store(1, Ordering::Release);
        map.detach().unwrap();
        assert_eq!(map.words()[0].swap(2, Ordering::AcqRel), 0);
        assert_eq!(all.words()[512].load(Ordering::Acquire), 1);
    }

    /// What a child forked by the program does with a mapping that it does not have.
    #[test]
    fn the_end_of_a_mapping_in_a_forked_child_unmaps_nothing() {
        let fd = create_memfd("t", 8192).unwrap();
        let map = SharedMap::map_large(&fd, 0, 8192).unwrap();
        let (start, length) = (map.as_ptr() as usize, NonZeroUsize::new(8192).unwrap());
        // SAFETY: the child makes system calls and one store into memory of its own, and leaves by _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED_NOREPLACE;
            // SAFETY: as above: nothing is mapped there in the child, or the call fails.
            unsafe {
                let own = mmap_anonymous(NonZeroUsize::new(start), length, read_write(), flags);
                drop(map);
                if let Ok(own) = own {
                    own.cast::<u8>().as_ptr().write_volatile(1);
                    libc::_exit(0);
                }
                libc::_exit(1);
            }
        }
        assert_eq!(crate::wait::wait_for(pid).unwrap().code(), Some(0));
        map.words()[0].store(1, Ordering::Release);
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
