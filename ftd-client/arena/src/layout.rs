//! Where everything lies in the memfd, and how it is checked.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU64, fence};
use twox_hash::XxHash3_64;

/// Version of the layout. The client library tells it to the agent, which refuses another one.
pub const LAYOUT: u32 = 5;
/// Number of places: one being written, one being shipped, one safe.
pub const PLACES: u32 = 3;
/// Most bytes that one place can hold.
pub const PLACE_LIMIT: u64 = 1 << 40;
/// Size of the (sparse, sealed) memfd, unless a file-size limit (`ulimit -f`) allows less.
pub const ARENA_BYTES: u64 = (PLACES as u64 + 1) * PLACE_LIMIT;
/// Most regions in one version.
pub const MAX_REGIONS: usize = 1 << 20;

pub(crate) const HEADER_BYTES: usize = 64 << 10;
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"ftarena\n");
pub(crate) const PAGE: u64 = 4096;
pub(crate) const HUGE_PAGE: u64 = 2 << 20;
/// Bytes of one entry of the region table: id, offset in the place, length.
pub(crate) const ENTRY: u64 = 24;

// Words of the header, by index of u64.
pub(crate) const ID_MAGIC: usize = 0;
pub(crate) const ID_LAYOUT: usize = 1;
pub(crate) const ID_RANK: usize = 2;
pub(crate) const ID_WORLD_SIZE: usize = 3;
pub(crate) const ID_CHECK: usize = 4;
/// Low half: the futex that the agent increments whenever it has released a place.
pub(crate) const NOTIFY: usize = 32;
/// Bytes per place that the rank wants, written by the rank.
pub(crate) const RESERVED: usize = 64;
/// Last sequence number that the rank gave to a commit.
pub(crate) const SEQUENCE: usize = 65;

/// Low half: the futex that the rank increments with every commit.
pub(crate) const COMMITS: usize = 66;
/// How long the last commit's copy took, in microseconds, written by the rank.
pub(crate) const COPY_US: usize = 67;
/// Sums over all commits, of whatever process, written by the rank: bytes, and microseconds in `ft_checkpoint`.
pub(crate) const SUM_BYTES: usize = 68;
pub(crate) const SUM_US: usize = 69;
/// The place at which the rank is to die, written by the agent (see [`crate::Doom`]).
pub(crate) const DOOM: usize = 96;

// Words of a place's record, relative to `record(place)`. Written by the rank.
pub(crate) const R_STATE: usize = 0;
pub(crate) const R_SEQUENCE: usize = 1;
pub(crate) const R_VERSION: usize = 2;
pub(crate) const R_EPOCH: usize = 3;
pub(crate) const R_RANK: usize = 4;
pub(crate) const R_BYTES: usize = 5;
pub(crate) const R_REGIONS: usize = 6;
pub(crate) const R_TABLE_CHECK: usize = 7;
pub(crate) const R_CHECK: usize = 8;
// Written by the agent.
pub(crate) const A_RELEASED: usize = 256;
pub(crate) const A_COMPLETE: usize = 257;
pub(crate) const A_CHECKSUM: usize = 258;
pub(crate) const A_CHECK: usize = 259;
/// Sequence number of a commit that must not be restored any more.
pub(crate) const A_DROPPED: usize = 260;

pub(crate) const STATE_EMPTY: u64 = 0;
pub(crate) const STATE_WRITING: u64 = 0x0057_5249_5449_4e47;
pub(crate) const STATE_COPIED: u64 = 0x0043_4f50_4945_4421;
/// What the header's check is while the agent has a copy brought into a place: the place is not free for a rank, and holds nothing.
pub(crate) const CHECK_COMING: u64 = 0x0043_4f4d_494e_4721;

/// Looks at a record that changes while it is read.
const LOOKS: u32 = 64;

/// Index of the first word of a place's record.
pub(crate) fn record(place: u32) -> usize {
    512 * (place as usize + 1)
}

/// How the memfd is divided: header and places have a quarter each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Most bytes that one place can hold here.
    pub(crate) limit: u64,
}

impl Extent {
    /// The largest one in a file of at most so many bytes; `None` when not even a header fits.
    pub(crate) fn within(bytes: u64) -> Option<Extent> {
        let quarter = bytes.min(ARENA_BYTES) / (u64::from(PLACES) + 1);
        let unit = if quarter >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
        Self::of_file((quarter - quarter % unit) * (u64::from(PLACES) + 1))
    }

    /// That of a file of this size, if an arena has such a size.
    pub(crate) fn of_file(bytes: u64) -> Option<Extent> {
        let limit = bytes / (u64::from(PLACES) + 1);
        let extent = Extent { limit };
        (extent.bytes() == bytes && limit.is_multiple_of(PAGE) && (HEADER_BYTES as u64..=PLACE_LIMIT).contains(&limit))
            .then_some(extent)
    }

    /// Size of the file.
    pub(crate) fn bytes(self) -> u64 {
        self.limit * (u64::from(PLACES) + 1)
    }

    /// Offset of a place's bytes in the memfd.
    pub(crate) fn offset(self, place: u32) -> u64 {
        (u64::from(place) + 1) * self.limit
    }
}

fn align(value: u64, to: u64) -> Option<u64> {
    value.checked_add(to - 1).map(|v| v & !(to - 1))
}

/// Large regions begin on a page, so that their copy runs as fast as any; small ones share cache lines with nobody.
fn alignment(length: u64) -> u64 {
    if length >= PAGE { PAGE } else { 64 }
}

/// Offsets of regions of these lengths in a place and the bytes that they take with their table; `None` beyond the limits.
pub(crate) fn offsets(lengths: impl ExactSizeIterator<Item = u64>) -> Option<(Vec<u64>, u64)> {
    if lengths.len() > MAX_REGIONS {
        return None;
    }
    let mut end = lengths.len() as u64 * ENTRY;
    let mut offsets = Vec::with_capacity(lengths.len());
    for length in lengths {
        let start = align(end, alignment(length))?;
        offsets.push(start);
        end = start.checked_add(length)?;
        if end > PLACE_LIMIT {
            return None;
        }
    }
    Some((offsets, end))
}

/// Bytes that a place must have for regions of these lengths, in whole (where it pays, huge) pages; `None` beyond
/// [`MAX_REGIONS`] and [`PLACE_LIMIT`].
pub fn bytes_for(lengths: impl ExactSizeIterator<Item = u64>) -> Option<u64> {
    offsets(lengths).map(|(_, end)| whole_pages(end))
}

/// Rounds up to whole pages: huge ones as soon as half of one is filled, so that no huge page lies across the end of a
/// place.
pub(crate) fn whole_pages(bytes: u64) -> u64 {
    let bytes = bytes.clamp(1, PLACE_LIMIT);
    bytes.next_multiple_of(if bytes >= HUGE_PAGE / 2 { HUGE_PAGE } else { PAGE })
}

/// Hash of words, for the header's own checks.
pub(crate) fn check(words: &[u64]) -> u64 {
    let mut bytes = Vec::with_capacity(words.len() * 8);
    for word in words {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    XxHash3_64::oneshot(&bytes)
}

/// Hash of the region table.
pub(crate) fn table_check(table: &[u8]) -> u64 {
    XxHash3_64::oneshot(table)
}

/// One entry of the region table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) id: i32,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl Entry {
    pub(crate) fn to_bytes(self) -> [u8; ENTRY as usize] {
        let mut bytes = [0; ENTRY as usize];
        bytes[..8].copy_from_slice(&i64::from(self.id).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }
}

/// Reads a region table out of untrusted bytes: offsets must grow, regions must not overlap and must lie in the place.
pub(crate) fn parse_table(table: &[u8], bytes: u64) -> Result<Vec<Entry>, String> {
    let mut end = table.len() as u64;
    let mut entries = Vec::with_capacity(table.len() / ENTRY as usize);
    for (index, raw) in table.chunks_exact(ENTRY as usize).enumerate() {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&raw[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let id =
            i32::try_from(word(0) as i64).map_err(|_| format!("entry {index} of its region table has no valid id"))?;
        let (offset, length) = (word(8), word(16));
        let last = offset.checked_add(length).filter(|&last| offset >= end && last <= bytes);
        end = last.ok_or_else(|| format!("region {id} does not lie in the place"))?;
        entries.push(Entry { id, offset, length });
    }
    Ok(entries)
}

/// What the rank's record of a place says, read once, so that it cannot change under the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) state: u64,
    pub(crate) sequence: u64,
    pub(crate) version: u64,
    pub(crate) epoch: u64,
    pub(crate) rank: u64,
    pub(crate) bytes: u64,
    pub(crate) regions: u64,
    pub(crate) table_check: u64,
    pub(crate) check: u64,
}

impl Record {
    /// Reads a record of which all words belong to one commit; a rank may be writing the next one meanwhile. One that does
    /// not keep still is being written.
    pub(crate) fn load(words: &[AtomicU64], place: u32) -> Record {
        let mut record = Self::load_once(words, place);
        for _ in 0..LOOKS {
            // Whoever sees a word of the next commit in `record` sees now that its writing had begun.
            fence(Acquire);
            let again = Self::load_once(words, place);
            if again == record {
                return record;
            }
            record = again;
        }
        record.state = STATE_WRITING;
        record
    }

    fn load_once(words: &[AtomicU64], place: u32) -> Record {
        let base = record(place);
        let state = words[base + R_STATE].load(Acquire);
        let word = |at: usize| words[base + at].load(Relaxed);
        Record {
            state,
            sequence: word(R_SEQUENCE),
            version: word(R_VERSION),
            epoch: word(R_EPOCH),
            rank: word(R_RANK),
            bytes: word(R_BYTES),
            regions: word(R_REGIONS),
            table_check: word(R_TABLE_CHECK),
            check: word(R_CHECK),
        }
    }

    /// The value that `check` must have.
    pub(crate) fn expected_check(&self, place: u32) -> u64 {
        check(&[
            u64::from(place),
            self.sequence,
            self.version,
            self.epoch,
            self.rank,
            self.bytes,
            self.regions,
            self.table_check,
        ])
    }

    /// Checks everything about a committed record that can be checked without reading the place.
    pub(crate) fn validate(&self, place: u32, rank: u32, extent: Extent) -> Result<(), String> {
        if self.check != self.expected_check(place) {
            return Err("its header does not match its checksum".into());
        }
        if self.rank != u64::from(rank) {
            return Err(format!("it was written by rank {}", self.rank));
        }
        let table = self.regions.checked_mul(ENTRY);
        if self.bytes > extent.limit
            || self.regions > MAX_REGIONS as u64
            || table.is_none_or(|table| table > self.bytes)
        {
            return Err("its header has impossible lengths".into());
        }
        Ok(())
    }
}

/// The value that identifies the arena as one of this rank and release.
pub(crate) fn identity(rank: u32, world_size: u32) -> [u64; 5] {
    let mut words = [MAGIC, u64::from(LAYOUT), u64::from(rank), u64::from(world_size), 0];
    words[ID_CHECK] = check(&words[..ID_CHECK]);
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn regions_do_not_overlap_and_end_in_the_place() {
        let (offsets, end) = offsets([10, 0, 5000, 1].into_iter()).unwrap();
        assert_eq!(offsets, [128, 192, 4096, 4096 + 5056]);
        assert_eq!(end, 4096 + 5056 + 1);
        assert_eq!(bytes_for([10].into_iter()), Some(4096));
        assert_eq!(bytes_for([PLACE_LIMIT].into_iter()), None);
        assert_eq!(bytes_for([u64::MAX, 5].into_iter()), None);
        assert_eq!(bytes_for([].into_iter()), Some(4096));
        assert_eq!(bytes_for([HUGE_PAGE].into_iter()), Some(2 * HUGE_PAGE));
        assert_eq!(bytes_for([PLACE_LIMIT - 4096].into_iter()), Some(PLACE_LIMIT));
    }

    #[test]
    fn an_arena_is_as_large_as_a_limit_allows() {
        assert_eq!(Extent::within(u64::MAX), Some(Extent { limit: PLACE_LIMIT }));
        assert_eq!(
            Extent::within(1 << 30).map(|e| (e.limit, e.bytes(), e.offset(2))),
            Some((1 << 28, 1 << 30, 3 << 28))
        );
        assert_eq!(Extent::within((1 << 30) - 1).map(|e| e.limit), Some((1 << 28) - HUGE_PAGE));
        assert_eq!(Extent::within((1 << 20) + 4095).map(|e| e.limit), Some(1 << 18));
        assert_eq!([0, 1024, (256 << 10) - 1].map(Extent::within), [None; 3]);
        assert_eq!([0, 4096, 1 << 21 | 1, ARENA_BYTES * 2, u64::MAX].map(Extent::of_file), [None; 5]);
        assert_eq!(Extent::of_file(ARENA_BYTES), Some(Extent { limit: PLACE_LIMIT }));
    }

    /// A thread commits as fast as it can while another one reads: no record is ever made of two commits.
    #[test]
    fn a_record_is_of_one_commit() {
        let words: Vec<AtomicU64> = (0..4096).map(|_| AtomicU64::new(0)).collect();
        let base = record(1);
        let whole = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for sequence in 1.. {
                    if whole.load(Relaxed) >= 1_000_000 {
                        break;
                    }
                    words[base + R_STATE].store(STATE_WRITING, std::sync::atomic::Ordering::Release);
                    fence(std::sync::atomic::Ordering::SeqCst);
                    for at in [R_SEQUENCE, R_VERSION, R_EPOCH, R_BYTES, R_CHECK] {
                        words[base + at].store(sequence, Relaxed);
                    }
                    fence(std::sync::atomic::Ordering::SeqCst);
                    words[base + R_STATE].store(STATE_COPIED, std::sync::atomic::Ordering::Release);
                    (0..sequence % 64).for_each(|_| std::hint::spin_loop());
                }
            });
            while whole.load(Relaxed) < 1_000_000 {
                let read = Record::load(&words, 1);
                if read.state == STATE_COPIED {
                    whole.fetch_add(1, Relaxed);
                    let of_one = [read.version, read.epoch, read.bytes, read.check].iter().all(|w| *w == read.sequence);
                    if !of_one {
                        whole.store(u32::MAX, Relaxed);
                        panic!("{read:?}");
                    }
                }
            }
        });
    }

    proptest! {
        #[test]
        fn any_table_is_parsed_or_refused(table in proptest::collection::vec(any::<u8>(), 0..200), bytes in any::<u64>()) {
            if let Ok(entries) = parse_table(&table, bytes) {
                for entry in entries {
                    prop_assert!(entry.offset + entry.length <= bytes);
                }
            }
        }

        #[test]
        fn what_is_laid_out_is_parsed(lengths in proptest::collection::vec(0u64..1_000_000, 0..40)) {
            let (offsets, end) = offsets(lengths.clone().into_iter()).unwrap();
            let entries: Vec<Entry> = lengths.iter().zip(&offsets).enumerate()
                .map(|(i, (&length, &offset))| Entry { id: -(i as i32), offset, length }).collect();
            let table: Vec<u8> = entries.iter().flat_map(|e| e.to_bytes()).collect();
            prop_assert_eq!(parse_table(&table, end).unwrap(), entries);
        }
    }
}
