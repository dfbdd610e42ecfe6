//! Huge pages for files in memory.
//!
//! Unless an administrator has changed `/sys/kernel/mm/transparent_hugepage/shmem_enabled`, which says `never`, the kernel gives such files
//! pages of 4 KiB alone, whatever was advised: to read 64 MB of them takes three times as long as of huge ones, and to map them anew takes some
//! sixteen thousand faults. `MADV_COLLAPSE` (Linux 6.1), which asks for them once, does not heed that; where it says `deny` there are none.

use crate::memory::{HUGE_PAGE, PAGE, SharedMap};
use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use std::os::fd::AsFd;

/// So much at a time: the kernel first has all processors give up what they hold back of pages, and what cannot be had is known after the first one.
const PIECE: usize = 64 << 20;

/// Takes memory in huge pages for what `fd` has none for yet of this mapping, which begins at `offset` of it. There may be none left, or the
/// kernel may not have them; then some or all of it stays without memory, or has small pages. What is in the file does not change.
pub fn take(map: &SharedMap, fd: impl AsFd, offset: u64) {
    if !(map.as_ptr() as usize).is_multiple_of(HUGE_PAGE) || !offset.is_multiple_of(HUGE_PAGE as u64) {
        return;
    }
    let mut at = 0;
    while let Some((from, to)) = next_hole(&fd, offset, at, map.len()) {
        let to = to.min(from + PIECE);
        if collapse(map, from, to).is_err() {
            return;
        }
        at = to;
    }
}

/// The next whole huge pages of a file, from `at` after `offset` on and before `end`, that have no memory.
fn next_hole(fd: &impl AsFd, offset: u64, mut at: usize, end: usize) -> Option<(usize, usize)> {
    // Where the data begins, or the hole does, as far as this mapping goes.
    let next = |at: usize, whence| match lseek(fd, i64::try_from(offset + at as u64).ok()?, whence) {
        Ok(found) => Some(usize::try_from(found as u64 - offset).map_or(end, |found| found.min(end))),
        Err(Errno::ENXIO) => Some(end),
        Err(_) => None,
    };
    while at + HUGE_PAGE <= end {
        let data = next(at, Whence::SeekData)?;
        if data >= at + HUGE_PAGE {
            return Some((at, data - data % HUGE_PAGE));
        }
        at = next(data, Whence::SeekHole)?.max(at + 1).next_multiple_of(HUGE_PAGE);
    }
    None
}

/// Between these offsets of the mapping, whole huge pages that hold nothing.
fn collapse(map: &SharedMap, from: usize, to: usize) -> Result<(), Errno> {
    const MADV_POPULATE_WRITE: libc::c_int = 23;
    const MADV_COLLAPSE: libc::c_int = 25;
    let advise = |from: usize, bytes: usize, advice| {
        // SAFETY: the range is in this mapping; neither advice changes data.
        Errno::result(unsafe { libc::madvise(map.as_ptr().add(from).cast(), bytes, advice) }).map(drop)
    };
    // Where nothing at all is there is nothing to be put together.
    (from..to).step_by(HUGE_PAGE).try_for_each(|page| advise(page, PAGE, MADV_POPULATE_WRITE))?;
    let put_together = || advise(from, to - from, MADV_COLLAPSE);
    // It may be held up by what the kernel does with a page at the moment.
    put_together().or_else(|error| if error == Errno::EAGAIN { put_together() } else { Err(error) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{create_sparse_sealed_memfd, read_at};
    use std::sync::atomic::Ordering;

    /// Whether this kernel gives huge pages to who asks for them.
    fn gives() -> bool {
        let says = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default();
        let release = nix::sys::utsname::uname().unwrap().release().to_string_lossy().into_owned();
        let numbers: Vec<u32> = release.split(['.', '-']).map_while(|number| number.parse().ok()).collect();
        !says.is_empty() && !says.contains("[deny]") && numbers >= vec![6, 1]
    }

    /// How much of a mapping is mapped in huge pages.
    fn mapped_huge(map: &SharedMap) -> usize {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let begins = format!("{:x}-", map.as_ptr() as usize);
        let of_it = smaps.lines().skip_while(|line| !line.starts_with(&begins));
        let found = of_it.filter_map(|line| line.strip_prefix("ShmemPmdMapped:")).next().unwrap();
        found.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    #[test]
    fn what_is_in_the_file_stays_and_its_holes_are_filled_with_huge_pages() {
        // In the first one, at the end of the third, and over the border of two in the second piece.
        const PLACES: [usize; 4] = [8, 3 * HUGE_PAGE - 8, 35 * HUGE_PAGE - 8, 35 * HUGE_PAGE];
        const PAGES: usize = 40;
        let took_all = || {
            let fd = create_sparse_sealed_memfd("t", (PAGES * HUGE_PAGE) as u64).unwrap();
            let map = SharedMap::map_large(&fd, 0, PAGES * HUGE_PAGE).unwrap();
            for place in PLACES {
                map.u64_at(place).store(place as u64, Ordering::Release);
            }
            take(&map, &fd, 0);
            let memory = nix::sys::stat::fstat(&fd).unwrap().st_blocks as usize * 512;
            map.populate(&fd, 0).unwrap();
            let huge = mapped_huge(&map);
            for place in PLACES {
                let mut word = [0; 8];
                read_at(&fd, &mut word, place as u64).unwrap();
                assert_eq!(u64::from_le_bytes(word), place as u64);
                map.u64_at(place).store(0, Ordering::Release);
            }
            let mut bytes = vec![1; PAGES * HUGE_PAGE];
            read_at(&fd, &mut bytes, 0).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0));
            assert!(huge <= (PAGES - 4) * HUGE_PAGE, "what was there was moved");
            huge == (PAGES - 4) * HUGE_PAGE && memory == huge + PLACES.len() * PAGE
        };
        // A machine whose memory is in small pieces may have to put them together first.
        assert!((0..20).any(|_| took_all()) || !gives());
    }

    #[test]
    fn what_cannot_be_huge_stays_as_it_is() {
        let fd = create_sparse_sealed_memfd("t", 4 * HUGE_PAGE as u64).unwrap();
        for (offset, bytes) in [(PAGE, 3 * HUGE_PAGE), (0, HUGE_PAGE - PAGE)] {
            let map = SharedMap::map_large(&fd, offset as u64, bytes).unwrap();
            take(&map, &fd, offset as u64);
        }
        assert_eq!(nix::sys::stat::fstat(&fd).unwrap().st_blocks, 0);
    }
}
