//! The rank's side.

use crate::layout::{
    A_RELEASED, COMMITS, COPY_US, DOOM, ENTRY, Entry, Extent, HEADER_BYTES, ID_CHECK, NOTIFY, PLACES, R_BYTES, R_CHECK,
    R_EPOCH, R_RANK, R_REGIONS, R_SEQUENCE, R_STATE, R_TABLE_CHECK, R_VERSION, RESERVED, Record, SEQUENCE,
    STATE_COPIED, STATE_WRITING, SUM_BYTES, SUM_US, identity, offsets, parse_table, record, table_check, whole_pages,
};
use crate::{ArenaError, Doom};
use ft_sys::huge;
use ft_sys::memory::{self, SharedMap};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The arenas that are open in this process, by device and inode: two of one would write the same places.
static OPEN: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

/// One entry of [`OPEN`].
#[derive(Debug)]
struct Opened {
    identity: (u64, u64),
    process: u32,
}

impl Opened {
    /// `None` when this process has the arena open already.
    fn new(identity: (u64, u64)) -> Option<Opened> {
        let new = OPEN.lock().unwrap_or_else(PoisonError::into_inner).insert(identity);
        new.then(|| Opened { identity, process: std::process::id() })
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // In a forked child the lock may be held for ever by a thread that is not there.
        if self.process == std::process::id() {
            OPEN.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.identity);
        }
    }
}

/// The arena as its rank sees it. One process at a time writes an arena, and through one `Arena`.
#[derive(Debug)]
pub struct Arena {
    fd: OwnedFd,
    header: SharedMap,
    extent: Extent,
    places: [Option<SharedMap>; PLACES as usize],
    rank: u32,
    /// The place that was written last; the search for a free one starts behind it.
    last: u32,
    _opened: Opened,
}

impl Arena {
    /// Takes the descriptor that came with the agent's welcome.
    ///
    /// # Errors
    /// [`ArenaError::Foreign`] when it is no arena of this rank, world size and release; [`ArenaError::Twice`] when this
    /// process has it open already; [`ArenaError::Io`].
    pub fn open(fd: OwnedFd, rank: u32, world_size: u32) -> Result<Arena, ArenaError> {
        let io = |what| move |source| ArenaError::Io { rank, what, source };
        let (extent, identity_of_file) = crate::extent_of(&fd, rank)?;
        let header = SharedMap::map_large(&fd, 0, HEADER_BYTES).map_err(io("mmap"))?;
        for (index, (word, expected)) in header.words().iter().zip(identity(rank, world_size)).enumerate() {
            let found = word.load(Relaxed);
            if found != expected {
                let name = ["magic number", "layout version", "rank", "world size", "checksum"][index.min(ID_CHECK)];
                return Err(ArenaError::Foreign {
                    rank,
                    why: format!("its {name} is {found:#x} instead of {expected:#x}"),
                });
            }
        }
        let opened = Opened::new(identity_of_file).ok_or(ArenaError::Twice { rank })?;
        let places = [const { None }; PLACES as usize];
        Ok(Arena { fd, header, extent, places, rank, last: PLACES - 1, _opened: opened })
    }

    fn words(&self) -> &[AtomicU64] {
        self.header.words()
    }

    /// Bytes that each place holds for this process.
    pub fn place_bytes(&self) -> u64 {
        self.places.iter().map(|place| place.as_ref().map_or(0, |place| place.len() as u64)).min().unwrap_or(0)
    }

    /// Takes memory for three places of `place_bytes` each, all of it now, so that a later copy neither faults nor fails.
    /// Versions that are in the arena stay as they are. Ask the agent first: a kernel that is out of memory kills rather
    /// than refuse.
    ///
    /// # Errors
    /// [`ArenaError::NoMemory`]; the places keep the size that they had.
    pub fn reserve(&mut self, place_bytes: u64) -> Result<(), ArenaError> {
        let rank = self.rank;
        let failed = |source| ArenaError::NoMemory { rank, place_bytes, source };
        let limit = self.extent.limit;
        if place_bytes > limit || whole_pages(place_bytes) > limit {
            let text = format!("this arena has room for {limit} bytes each");
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, text)));
        }
        let place_bytes = whole_pages(place_bytes);
        let before = self.words()[RESERVED].load(Relaxed);
        self.words()[RESERVED].store(place_bytes, Release);
        let mut mapped = [const { None }; PLACES as usize];
        for place in 0..PLACES {
            let offset = self.extent.offset(place);
            let result = SharedMap::map_large(&self.fd, offset, place_bytes as usize).and_then(|mapping| {
                huge::take(&mapping, &self.fd, offset);
                mapping.populate(&self.fd, offset).map(|()| mapping)
            });
            match result {
                Ok(mapping) => mapped[place as usize] = Some(mapping),
                Err(source) => {
                    self.words()[RESERVED].store(before, Release);
                    self.trim_free(before);
                    return Err(failed(source));
                }
            }
        }
        self.places = mapped;
        self.trim_free(place_bytes);
        Ok(())
    }

    /// Gives back what free places have beyond `place_bytes`. Places that are in use are trimmed by the agent, when it
    /// releases them.
    fn trim_free(&self, place_bytes: u64) {
        for place in (0..PLACES).filter(|&place| self.is_free(place)) {
            crate::give_back(&self.fd, self.extent, place, place_bytes);
        }
    }

    fn is_free(&self, place: u32) -> bool {
        let base = record(place);
        self.words()[base + R_STATE].load(Acquire) != STATE_COPIED
            || self.words()[base + A_RELEASED].load(Acquire) == self.words()[base + R_SEQUENCE].load(Relaxed)
    }

    fn free_place(&self) -> Option<u32> {
        (1..=PLACES).map(|step| (self.last + step) % PLACES).find(|&place| self.is_free(place))
    }

    /// Begins to write `version` with regions of these ids and lengths, in this order. Waits up to `timeout` until the agent
    /// has released a place, if none is free.
    ///
    /// # Errors
    /// [`ArenaError::Limits`], [`ArenaError::TooLarge`] when the places are smaller than the version (reserve first),
    /// [`ArenaError::NoFreePlace`]. The versions in the arena stay whole in each case.
    pub fn begin(
        &mut self,
        version: u64,
        epoch: u64,
        regions: &[(i32, u64)],
        timeout: Duration,
    ) -> Result<Writing<'_>, ArenaError> {
        let rank = self.rank;
        let Some((offsets, bytes)) = offsets(regions.iter().map(|region| region.1)) else {
            let bytes = regions.iter().fold(0u64, |sum, region| sum.saturating_add(region.1));
            return Err(ArenaError::Limits { rank, regions: regions.len(), bytes });
        };
        let place_bytes = self.place_bytes();
        if bytes > place_bytes {
            return Err(ArenaError::TooLarge { rank, version, needed: bytes, place_bytes });
        }
        let place = self.wait_for_place(version, timeout)?;
        let entries: Vec<Entry> =
            regions.iter().zip(offsets).map(|(&(id, length), offset)| Entry { id, offset, length }).collect();
        let sequence = self.next_sequence();
        let base = record(place);
        self.words()[base + R_STATE].store(STATE_WRITING, Release);
        // Nothing below may become visible before `Writing`: a whole version must not be seen with foreign bytes.
        fence(std::sync::atomic::Ordering::SeqCst);
        self.words()[base + R_CHECK].store(0, Relaxed);
        Ok(Writing { arena: self, place, version, epoch, sequence, bytes, entries })
    }

    /// Waits up to `timeout` until there is a free place; whether there is one now.
    pub fn wait_until_free(&self, timeout: Duration) -> bool {
        self.wait_for_place(0, timeout).is_ok()
    }

    fn wait_for_place(&self, version: u64, timeout: Duration) -> Result<u32, ArenaError> {
        let started = Instant::now();
        let notify = crate::futex(&self.header, NOTIFY);
        loop {
            let seen = notify.load(Acquire);
            if let Some(place) = self.free_place() {
                return Ok(place);
            }
            let waited = started.elapsed();
            let Some(left) = timeout.checked_sub(waited).filter(|left| !left.is_zero()) else {
                let held = (0..PLACES).map(|place| Record::load(self.words(), place).version).collect();
                return Err(ArenaError::NoFreePlace { rank: self.rank, version, waited, held });
            };
            ft_sys::death::wait_until_changed(notify, seen, left);
        }
    }

    /// Adds what a whole call of `ft_checkpoint` took, its waiting included.
    pub fn add_spent(&self, spent: Duration) {
        self.words()[SUM_US].fetch_add(spent.as_micros() as u64, Relaxed);
    }

    /// Whether this process is to die at this place. It is asked once: the next process goes on.
    pub fn is_doomed(&self, place: Doom) -> bool {
        let word = &self.words()[DOOM];
        word.load(Relaxed) == place as u64 && word.swap(0, Relaxed) == place as u64
    }

    /// A number that no commit of this arena has had, whatever process made it.
    fn next_sequence(&self) -> u64 {
        let words = self.words();
        let known = (0..PLACES).map(|place| words[record(place) + R_SEQUENCE].load(Relaxed));
        // A damaged word must not exhaust the numbers: what is absurd is ignored.
        let last = known.chain([words[SEQUENCE].load(Relaxed)]).filter(|&n| n < 1 << 62).max().unwrap_or(0);
        words[SEQUENCE].store(last + 1, Relaxed);
        last + 1
    }

    /// Opens `version` in `place` for copying back, as the agent named it.
    ///
    /// # Errors
    /// [`ArenaError::Damaged`] when the place holds something else or its header or table do not match their checksums.
    pub fn saved(&mut self, place: u32, version: u64) -> Result<Saved<'_>, ArenaError> {
        let rank = self.rank;
        let damaged = |why: String| ArenaError::Damaged { rank, place, version, why };
        if place >= PLACES {
            return Err(damaged(format!("an arena has {PLACES} places")));
        }
        let record = Record::load(self.words(), place);
        if record.state != STATE_COPIED {
            return Err(damaged("it holds nothing".into()));
        }
        record.validate(place, rank, self.extent).map_err(damaged)?;
        if record.version != version {
            return Err(damaged(format!("it holds version {}", record.version)));
        }
        let slot = place as usize;
        if self.places[slot].as_ref().is_none_or(|mapping| (mapping.len() as u64) < record.bytes) {
            let length = whole_pages(record.bytes).min(self.extent.limit);
            let mapping = SharedMap::map_large(&self.fd, self.extent.offset(place), length as usize)
                .map_err(|source| ArenaError::Io { rank, what: "mmap", source })?;
            self.places[slot] = Some(mapping);
        }
        let mut table = vec![0; (record.regions * ENTRY) as usize];
        memory::read_at(&self.fd, &mut table, self.extent.offset(place)).map_err(|source| ArenaError::Io {
            rank,
            what: "pread",
            source,
        })?;
        if table_check(&table) != record.table_check {
            return Err(damaged("its region table does not match its checksum".into()));
        }
        let entries = parse_table(&table, record.bytes).map_err(damaged)?;
        let mapping = self.places[slot].as_ref().ok_or_else(|| damaged("it is not mapped".into()))?;
        Ok(Saved { mapping, entries, epoch: record.epoch })
    }
}

/// A version that is being written. Dropped without [`Writing::commit`], it leaves the place empty.
#[derive(Debug)]
pub struct Writing<'a> {
    arena: &'a mut Arena,
    place: u32,
    version: u64,
    epoch: u64,
    sequence: u64,
    bytes: u64,
    entries: Vec<Entry>,
}

impl Writing<'_> {
    /// The place that is written.
    pub fn place(&self) -> u32 {
        self.place
    }

    /// Where the bytes of region number `index` (as given to [`Arena::begin`]) go, and how many they are.
    pub fn region(&mut self, index: usize) -> (*mut u8, usize) {
        let entry = self.entries[index];
        (self.at(entry.offset), entry.length as usize)
    }

    /// Copies one region.
    ///
    /// # Panics
    /// When `bytes` has another length than the region.
    pub fn copy(&mut self, index: usize, bytes: &[u8]) {
        let (to, length) = self.region(index);
        assert_eq!(bytes.len(), length, "a region keeps the length it was begun with");
        // SAFETY: `region` gives a range inside the mapping of this place, which nobody else writes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, length) };
    }

    /// See [`Arena::is_doomed`].
    pub fn is_doomed(&self, place: Doom) -> bool {
        self.arena.is_doomed(place)
    }

    fn at(&self, offset: u64) -> *mut u8 {
        let Some(mapping) = &self.arena.places[self.place as usize] else {
            unreachable!("begin() checked that the place is mapped");
        };
        // SAFETY: begin() checked that the version's bytes, and so every offset, lie inside the mapping.
        unsafe { mapping.as_ptr().add(offset as usize) }
    }

    /// Makes the version whole: table, header, and last the one word that counts. Then the agent is woken, and told how long
    /// the copy `took`. Returns the commit's sequence number.
    pub fn commit(self, took: Duration) -> u64 {
        let table: Vec<u8> = self.entries.iter().flat_map(|entry| entry.to_bytes()).collect();
        // SAFETY: the table lies at the start of the place, in front of all regions.
        unsafe { std::ptr::copy_nonoverlapping(table.as_ptr(), self.at(0), table.len()) };
        let mut record = Record {
            state: STATE_COPIED,
            sequence: self.sequence,
            version: self.version,
            epoch: self.epoch,
            rank: u64::from(self.arena.rank),
            bytes: self.bytes,
            regions: self.entries.len() as u64,
            table_check: table_check(&table),
            check: 0,
        };
        record.check = record.expected_check(self.place);
        let base = crate::layout::record(self.place);
        let words = self.arena.header.words();
        // The number comes only now: a release that the agent aims at what it finds while the place is written hits nothing.
        for (at, value) in [
            (R_SEQUENCE, record.sequence),
            (R_VERSION, record.version),
            (R_EPOCH, record.epoch),
            (R_RANK, record.rank),
            (R_BYTES, record.bytes),
            (R_REGIONS, record.regions),
            (R_TABLE_CHECK, record.table_check),
            (R_CHECK, record.check),
        ] {
            words[base + at].store(value, Relaxed);
        }
        // The copies may have used non-temporal stores, which only a full fence orders.
        fence(std::sync::atomic::Ordering::SeqCst);
        words[base + R_STATE].store(STATE_COPIED, Release);
        words[COPY_US].store(took.as_micros() as u64, Relaxed);
        words[SUM_BYTES].fetch_add(record.bytes, Relaxed);
        let commits = crate::futex(&self.arena.header, COMMITS);
        commits.fetch_add(1, Release);
        ft_sys::death::wake(commits);
        self.arena.last = self.place;
        self.sequence
    }
}

/// One region of a saved version.
#[derive(Debug, Clone, Copy)]
pub struct SavedRegion {
    /// The application's id.
    pub id: i32,
    /// Where its bytes lie; valid while the [`Saved`] lives.
    pub pointer: *const u8,
    /// How many they are.
    pub bytes: u64,
}

/// A version in the arena, opened for copying back.
#[derive(Debug)]
pub struct Saved<'a> {
    mapping: &'a SharedMap,
    entries: Vec<Entry>,
    epoch: u64,
}

impl Saved<'_> {
    /// The epoch in which the version was written.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The regions, in the order in which they were written.
    pub fn regions(&self) -> impl Iterator<Item = SavedRegion> + '_ {
        self.entries.iter().map(|entry| SavedRegion {
            id: entry.id,
            // SAFETY: parse_table checked that the region lies inside the version's bytes, which are all mapped.
            pointer: unsafe { self.mapping.as_ptr().add(entry.offset as usize) },
            bytes: entry.length,
        })
    }
}
