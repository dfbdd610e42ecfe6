//! The agent's side. Everything it reads may have been written by a broken program: see the crate's documentation.

use crate::layout::{
    A_CHECK, A_CHECKSUM, A_COMPLETE, A_DROPPED, A_RELEASED, CHECK_COMING, COMMITS, COPY_US, DOOM, ENTRY, Entry, Extent,
    HEADER_BYTES, ID_CHECK, ID_LAYOUT, ID_MAGIC, ID_RANK, ID_WORLD_SIZE, NOTIFY, PLACES, R_SEQUENCE, RESERVED, Record,
    STATE_COPIED, STATE_EMPTY, STATE_WRITING, SUM_BYTES, SUM_US, check, identity, parse_table, record, table_check,
    whole_pages,
};
use crate::{ArenaError, Doom};
use ft_sys::memory::{self, SharedMap};
use std::hash::Hasher;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;
use twox_hash::XxHash3_64;

/// How much of a place is read at a time: small enough for the second-level cache, beside what is read.
const CHUNK: usize = 128 << 10;

/// The arena as the agent sees it. All methods take `&self`; hashing may run on a thread of its own.
#[derive(Debug)]
pub struct AgentArena {
    fd: OwnedFd,
    header: SharedMap,
    pub(crate) extent: Extent,
    rank: u32,
    world_size: u32,
}

/// What a rank has committed so far, whatever process was that rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// How often.
    pub commits: u32,
    /// How many bytes, tables included.
    pub bytes: u64,
    /// So long it was in `ft_checkpoint`.
    pub spent: Duration,
}

/// What a place holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlaceState {
    /// Nothing yet, or a version that the agent has released.
    Free,
    /// A version is being written, or its writer died while it wrote.
    Writing,
    /// A whole version whose checksum has not been made.
    Copied,
    /// A whole version with its checksum.
    Complete {
        /// The checksum that was stored with [`AgentArena::set_complete`].
        checksum: u64,
    },
    /// Header, table or checksum were damaged: nothing of this is restored.
    Corrupt {
        /// What is wrong.
        why: String,
    },
}

/// One place, as its header describes it. For [`PlaceState::Free`], [`PlaceState::Writing`] and [`PlaceState::Corrupt`] the
/// numbers mean nothing, except `sequence`, which [`AgentArena::release`] takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceInfo {
    /// The place, `0..3`.
    pub place: u32,
    /// What it holds.
    pub state: PlaceState,
    /// The application's version.
    pub version: u64,
    /// Epoch in which it was written.
    pub epoch: u64,
    /// Number of this commit; grows with each commit of the arena.
    pub sequence: u64,
    /// Bytes, table included.
    pub bytes: u64,
}

impl PlaceInfo {
    /// Whether the place holds a version that is whole as far as its header tells.
    pub fn is_whole(&self) -> bool {
        matches!(self.state, PlaceState::Copied | PlaceState::Complete { .. })
    }
}

impl AgentArena {
    /// Makes the arena of a rank. The second value is a duplicate of the descriptor, to be sent to the shepherd or the rank.
    ///
    /// # Errors
    /// [`ArenaError::Io`].
    pub fn create(rank: u32, world_size: u32) -> Result<(AgentArena, OwnedFd), ArenaError> {
        let most = memory::file_size_limit();
        let extent = Extent::within(most).ok_or(ArenaError::FileSize { rank, most })?;
        let fd = memory::create_sparse_sealed_memfd(&format!("ftd-arena-{rank}"), extent.bytes())
            .map_err(|source| ArenaError::Io { rank, what: "memfd_create", source })?;
        let arena = AgentArena::adopt(fd, rank, world_size)?;
        let duplicate = arena.descriptor()?;
        Ok((arena, duplicate))
    }

    /// Takes over an arena whose descriptor a shepherd kept while the agent was dead.
    ///
    /// # Errors
    /// [`ArenaError::Foreign`] when the descriptor is no arena, or one of another rank, world size or release. A damaged
    /// identity is repaired: the agent knows it anyhow, and what lies in the places has its own checks.
    pub fn adopt(fd: OwnedFd, rank: u32, world_size: u32) -> Result<AgentArena, ArenaError> {
        let io = |what| move |source| ArenaError::Io { rank, what, source };
        let (extent, _) = crate::extent_of(&fd, rank)?;
        let header = SharedMap::map_large(&fd, 0, HEADER_BYTES).map_err(io("mmap"))?;
        let arena = AgentArena { fd, header, extent, rank, world_size };
        let found: Vec<u64> = arena.words()[..=ID_CHECK].iter().map(|word| word.load(Acquire)).collect();
        let expected = identity(rank, world_size);
        if found[ID_CHECK] == check(&found[..ID_CHECK]) && found[..] != expected[..] {
            let why = format!(
                "it is one of rank {} of {}, layout {} (magic {:#x})",
                found[ID_RANK], found[ID_WORLD_SIZE], found[ID_LAYOUT], found[ID_MAGIC]
            );
            return Err(ArenaError::Foreign { rank, why });
        }
        arena.write_identity();
        Ok(arena)
    }

    fn write_identity(&self) {
        for (word, value) in self.words().iter().zip(identity(self.rank, self.world_size)) {
            word.store(value, Release);
        }
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        self.header.words()
    }

    /// The rank that writes this arena.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// A duplicate of the descriptor, to be sent to the shepherd or the rank. Writes the header's identity anew, so that a
    /// rank can open an arena whose first bytes were damaged.
    ///
    /// # Errors
    /// [`ArenaError::Io`].
    pub fn descriptor(&self) -> Result<OwnedFd, ArenaError> {
        self.write_identity();
        self.fd.try_clone().map_err(|source| ArenaError::Io { rank: self.rank, what: "dup", source })
    }

    /// Bytes per place that the rank asked for last, for a rank that was told [`crate::Arena::reserve`].
    pub fn reserved(&self) -> u64 {
        self.words()[RESERVED].load(Acquire).min(self.extent.limit)
    }

    /// Most bytes that one version can have here, table included.
    pub fn place_limit(&self) -> u64 {
        self.extent.limit
    }

    /// A futex that changes, and is woken, with every commit of the rank.
    pub fn commits(&self) -> &AtomicU32 {
        crate::futex(&self.header, COMMITS)
    }

    /// How long the rank said that its last copy took.
    pub fn last_copy(&self) -> Duration {
        Duration::from_micros(self.words()[COPY_US].load(Relaxed))
    }

    /// What the rank has said of all its commits.
    pub fn tally(&self) -> Tally {
        let word = |at: usize| self.words()[at].load(Relaxed);
        let commits = self.commits().load(Relaxed);
        Tally { commits, bytes: word(SUM_BYTES), spent: Duration::from_micros(word(SUM_US)) }
    }

    /// The rank dies when it comes to this place next, once.
    pub fn doom(&self, place: Doom) {
        self.words()[DOOM].store(place as u64, Release);
    }

    /// The place at which it is to die, and has not.
    pub fn doomed(&self) -> Option<Doom> {
        let word = self.words()[DOOM].load(Relaxed);
        Doom::ALL.into_iter().find(|place| *place as u64 == word)
    }

    /// Bytes of memory that the arena occupies now.
    ///
    /// # Errors
    /// [`ArenaError::Io`].
    pub fn allocated(&self) -> Result<u64, ArenaError> {
        let facts = memory::facts(&self.fd);
        facts.map(|f| f.allocated).map_err(|source| ArenaError::Io { rank: self.rank, what: "fstat", source })
    }

    /// What each place holds. Reads the header alone: cheap.
    pub fn scan(&self) -> Vec<PlaceInfo> {
        (0..PLACES).map(|place| self.inspect(place)).collect()
    }

    /// What one place holds. A place that does not exist is corrupt.
    pub fn inspect(&self, place: u32) -> PlaceInfo {
        let mut info = self.inspect_released(place);
        let released = |place| self.words()[record(place) + A_RELEASED].load(Acquire) == info.sequence;
        if place < PLACES && released(place) && info.state != PlaceState::Writing {
            info.state = PlaceState::Free;
        }
        info
    }

    /// What each place holds, released or not: a version that the rank may overwrite, and has not overwritten, is as good
    /// as any until it was [dropped](Self::discard).
    pub fn scan_released(&self) -> Vec<PlaceInfo> {
        (0..PLACES).map(|place| self.inspect_released(place)).collect()
    }

    fn inspect_released(&self, place: u32) -> PlaceInfo {
        if place >= PLACES {
            let state = PlaceState::Corrupt { why: format!("an arena has {PLACES} places") };
            return PlaceInfo { place, state, version: 0, epoch: 0, sequence: 0, bytes: 0 };
        }
        let record = Record::load(self.words(), place);
        PlaceInfo {
            place,
            state: self.state(place, &record),
            version: record.version,
            epoch: record.epoch,
            sequence: record.sequence,
            bytes: record.bytes,
        }
    }

    fn state(&self, place: u32, record: &Record) -> PlaceState {
        match record.state {
            STATE_EMPTY => return PlaceState::Free,
            STATE_WRITING => return PlaceState::Writing,
            STATE_COPIED => {}
            other => return PlaceState::Corrupt { why: format!("its state is {other:#x}") },
        }
        let base = crate::layout::record(place);
        if self.words()[base + A_DROPPED].load(Acquire) == record.sequence {
            return PlaceState::Free;
        }
        if record.check == CHECK_COMING {
            return PlaceState::Writing;
        }
        if let Err(why) = record.validate(place, self.rank, self.extent) {
            return PlaceState::Corrupt { why };
        }
        if self.words()[base + A_COMPLETE].load(Acquire) != record.sequence {
            return PlaceState::Copied;
        }
        let checksum = self.words()[base + A_CHECKSUM].load(Acquire);
        if self.words()[base + A_CHECK].load(Acquire) != check(&[u64::from(place), record.sequence, checksum]) {
            // Another thread may be storing it anew.
            if self.words()[base + A_COMPLETE].load(Acquire) != record.sequence {
                return PlaceState::Copied;
            }
            return PlaceState::Corrupt { why: "the record of its checksum is damaged".into() };
        }
        PlaceState::Complete { checksum }
    }

    /// The checksum (XXH3-64) of the version that `place` holds now: over what it is, its table and its regions, so that it is the
    /// same wherever a copy of it lies. Reads all of it, so it belongs behind the copy, on a thread of its own.
    ///
    /// # Errors
    /// [`ArenaError::Damaged`] when the place holds no whole version or its table is damaged; [`ArenaError::Io`].
    pub fn hash(&self, place: u32) -> Result<(PlaceInfo, u64), ArenaError> {
        let info = self.inspect_released(place);
        let damaged = |why: String| ArenaError::Damaged { rank: self.rank, place, version: info.version, why };
        match &info.state {
            PlaceState::Copied | PlaceState::Complete { .. } => {}
            PlaceState::Corrupt { why } => return Err(damaged(why.clone())),
            PlaceState::Free | PlaceState::Writing => return Err(damaged("it holds no whole version".into())),
        }
        let record = Record::load(self.words(), place);
        if record.sequence != info.sequence || record.validate(place, self.rank, self.extent).is_err() {
            return Err(damaged("it changed while it was read".into()));
        }
        // Every page of a whole version has been written. A header that claims more than the arena occupies lies, and must
        // not cost the agent hours of reading holes.
        if record.bytes > self.allocated()? {
            return Err(damaged("it claims more bytes than the arena occupies".into()));
        }
        let entries = self.table(place, &record)?;
        let mut hasher = XxHash3_64::new();
        for word in [record.version, record.epoch, record.rank, record.bytes, record.regions] {
            hasher.write(&word.to_le_bytes());
        }
        let mut buffer = vec![0; CHUNK.min(record.bytes as usize)];
        for entry in entries {
            hasher.write(&entry.to_bytes());
            let (mut at, end) = (entry.offset, entry.offset + entry.length);
            while at < end {
                let length = (end - at).min(CHUNK as u64) as usize;
                self.read(&mut buffer[..length], self.extent.offset(place) + at)?;
                hasher.write(&buffer[..length]);
                at += length as u64;
            }
        }
        let after = Record::load(self.words(), place);
        if after != record {
            return Err(damaged("it changed while it was read".into()));
        }
        Ok((info, hasher.finish()))
    }

    fn table(&self, place: u32, record: &Record) -> Result<Vec<Entry>, ArenaError> {
        let damaged = |why: String| ArenaError::Damaged { rank: self.rank, place, version: record.version, why };
        let mut table = vec![0; (record.regions * ENTRY) as usize];
        self.read(&mut table, self.extent.offset(place))?;
        if table_check(&table) != record.table_check {
            return Err(damaged("its region table does not match its checksum".into()));
        }
        parse_table(&table, record.bytes).map_err(damaged)
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> Result<(), ArenaError> {
        memory::read_at(&self.fd, buffer, offset).map_err(|source| ArenaError::Io {
            rank: self.rank,
            what: "pread",
            source,
        })
    }

    /// Checks the version in `place` against the checksum that was stored with it.
    ///
    /// # Errors
    /// [`ArenaError::Damaged`] when the place holds no complete version, or one whose bytes are not those that were
    /// stored; [`ArenaError::Io`].
    pub fn verify(&self, place: u32) -> Result<PlaceInfo, ArenaError> {
        let (info, found) = self.hash(place)?;
        let why = match info.state {
            PlaceState::Complete { checksum } if checksum == found => return Ok(info),
            PlaceState::Complete { checksum } => format!("its checksum is {found:016x} instead of {checksum:016x}"),
            _ => "it has no checksum yet".to_string(),
        };
        Err(ArenaError::Damaged { rank: self.rank, place, version: info.version, why })
    }

    /// Stores the checksum of the commit `sequence` in the arena, where it outlives the agent. A commit that has been
    /// overwritten meanwhile is not touched by this.
    pub fn set_complete(&self, place: u32, sequence: u64, checksum: u64) {
        if place >= PLACES {
            return;
        }
        let base = record(place);
        let words = self.words();
        // The word that names the commit comes last: an agent that dies in between leaves the version without a checksum.
        words[base + A_COMPLETE].store(0, Relaxed);
        words[base + A_CHECKSUM].store(checksum, Release);
        words[base + A_CHECK].store(check(&[u64::from(place), sequence, checksum]), Release);
        words[base + A_COMPLETE].store(sequence, Release);
    }

    /// Allows the rank to overwrite the commit `sequence` in `place`, and wakes it if it waits for that. What the place has
    /// beyond the size that the rank uses now is given back to the system.
    pub fn release(&self, place: u32, sequence: u64) {
        if place >= PLACES {
            return;
        }
        let base = record(place);
        let words = self.words();
        let reserved = self.reserved();
        if words[base + R_SEQUENCE].load(Acquire) == sequence && reserved > 0 && reserved < self.extent.limit {
            crate::give_back(&self.fd, self.extent, place, whole_pages(reserved));
        }
        words[base + A_RELEASED].store(sequence, Release);
        let notify = crate::futex(&self.header, NOTIFY);
        notify.fetch_add(1, AcqRel);
        ft_sys::death::wake(notify);
    }

    /// Takes a release back, so that a version that is about to be restored is not overwritten. No rank may be writing.
    pub fn keep(&self, place: u32, sequence: u64) {
        if place < PLACES {
            let word = &self.words()[record(place) + A_RELEASED];
            let _ = word.compare_exchange(sequence, 0, AcqRel, Acquire);
        }
    }

    /// As [`release`](Self::release), and the commit is never to be restored.
    pub fn discard(&self, place: u32, sequence: u64) {
        if place < PLACES {
            self.words()[record(place) + A_DROPPED].store(sequence, Release);
            self.release(place, sequence);
        }
    }

    /// Gives the memory of all free places back to the system (a rank that finished, a job that shrinks).
    pub fn discard_free(&self) {
        for info in self.scan() {
            if info.state == PlaceState::Free {
                crate::give_back(&self.fd, self.extent, info.place, 0);
            }
        }
    }
}

impl AsFd for AgentArena {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Arena;
    use crate::layout::{R_BYTES, R_CHECK, R_REGIONS, R_TABLE_CHECK};

    /// A header whose checksum is right and whose lengths lie.
    #[test]
    fn consistent_lies_are_refused() {
        let (agent, fd) = AgentArena::create(0, 1).unwrap();
        let mut rank = Arena::open(fd, 0, 1).unwrap();
        rank.reserve(16384).unwrap();
        let mut writing = rank.begin(1, 1, &[(1, 8000)], Duration::ZERO).unwrap();
        writing.copy(0, &[1; 8000]);
        writing.commit(Duration::ZERO);
        agent.hash(0).unwrap();
        let base = record(0);
        let honest = Record::load(agent.words(), 0);
        let mut lie = |change: &dyn Fn(&mut Record)| {
            let mut record = honest;
            change(&mut record);
            record.check = record.expected_check(0);
            for (at, value) in [
                (R_BYTES, record.bytes),
                (R_REGIONS, record.regions),
                (R_TABLE_CHECK, record.table_check),
                (R_CHECK, record.check),
            ] {
                agent.words()[base + at].store(value, Relaxed);
            }
            let rank_refuses = rank.saved(0, 1).is_err();
            agent.hash(0).map(|_| ()).map_err(|_| rank_refuses)
        };
        assert_eq!(lie(&|_| ()), Ok(()));
        lie(&|record| record.bytes = 1 << 39).unwrap_err();
        for change in [
            &(|record: &mut Record| record.bytes = u64::MAX) as &dyn Fn(&mut Record),
            &|record| record.bytes = 5000,
            &|record| record.regions = u64::MAX / 2,
            &|record| record.regions = 300,
            &|record| record.table_check = 0,
            &|record| record.rank = 7,
        ] {
            assert_eq!(lie(change), Err(true));
        }
    }

    #[test]
    fn a_released_version_can_be_restored_until_it_is_overwritten_or_dropped() {
        let (agent, fd) = AgentArena::create(0, 1).unwrap();
        let mut rank = Arena::open(fd, 0, 1).unwrap();
        let wait = Duration::from_millis(1);
        let data = [7u8; 4096];
        let mut commit = |version| {
            rank.reserve(crate::bytes_for([4096u64].into_iter()).unwrap()).unwrap();
            let mut writing = rank.begin(version, 1, &[(1, 4096)], wait).unwrap();
            writing.copy(0, &data);
            writing.commit(Duration::ZERO);
        };
        commit(1);
        commit(2);
        let held = |agent: &AgentArena| {
            agent.scan_released().into_iter().filter(PlaceInfo::is_whole).map(|i| i.version).collect::<Vec<_>>()
        };
        for info in agent.scan().into_iter().filter(PlaceInfo::is_whole) {
            let (_, checksum) = agent.hash(info.place).unwrap();
            agent.set_complete(info.place, info.sequence, checksum);
            agent.release(info.place, info.sequence);
        }
        assert!(agent.scan().iter().all(|info| info.state == PlaceState::Free));
        assert_eq!(held(&agent).len(), 2);
        let first = agent.scan_released().into_iter().find(|info| info.version == 1).unwrap();
        agent.verify(first.place).unwrap();
        agent.keep(first.place, first.sequence);
        // Two more commits take the other two places and leave the kept one alone.
        commit(3);
        commit(4);
        let mut versions = held(&agent);
        versions.sort_unstable();
        assert_eq!(versions, [1, 3, 4]);
        agent.discard(first.place, first.sequence);
        assert!(!held(&agent).contains(&1));
    }
}
