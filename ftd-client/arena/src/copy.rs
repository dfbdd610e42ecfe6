//! Copies that come from another arena of the same rank, on another node. Nobody else writes this one meanwhile.

use crate::agent::{AgentArena, PlaceState};
use crate::layout::{
    A_DROPPED, CHECK_COMING, PLACES, R_BYTES, R_CHECK, R_EPOCH, R_RANK, R_REGIONS, R_SEQUENCE, R_STATE, R_TABLE_CHECK,
    R_VERSION, RESERVED, Record, SEQUENCE, STATE_COPIED, STATE_WRITING, record, whole_pages,
};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

/// What a version is beside its bytes: enough to write it down again elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Description {
    /// The application's version.
    pub version: u64,
    /// Epoch in which it was written.
    pub epoch: u64,
    /// Bytes, table included.
    pub bytes: u64,
    /// Entries of its table.
    pub regions: u64,
    /// Hash of its table.
    pub table_check: u64,
    /// Checksum of all of it.
    pub checksum: u64,
}

impl AgentArena {
    /// What `place` holds, if that is a whole version with its checksum, released or not.
    pub fn describe(&self, place: u32) -> Option<Description> {
        let info = self.scan_released().into_iter().find(|info| info.place == place)?;
        let PlaceState::Complete { checksum } = info.state else { return None };
        let record = Record::load(self.words(), place);
        let Record { sequence, version, epoch, bytes, regions, table_check, .. } = record;
        (sequence == info.sequence).then_some(Description { version, epoch, bytes, regions, table_check, checksum })
    }

    /// Where the bytes of `place` begin in the arena's file.
    pub fn offset(&self, place: u32) -> u64 {
        self.extent.offset(place)
    }

    /// Length of the arena's file, of which most is a hole.
    pub fn file_bytes(&self) -> u64 {
        self.extent.bytes()
    }

    /// A place that holds nothing that is needed, but for those that somebody writes to.
    pub fn free_place(&self, written: impl Fn(u32) -> bool) -> Option<u32> {
        let free = |place: &u32| {
            let state = self.inspect(*place).state;
            !written(*place) && !matches!(state, PlaceState::Copied | PlaceState::Complete { .. })
        };
        (0..PLACES).find(free)
    }

    /// From now on `place` holds nothing, and is no rank's to take, until a copy of so many bytes has come ([`finish_copy`]) or is not
    /// waited for any more ([`discard`](Self::discard)). Returns the number of the commit.
    ///
    /// [`finish_copy`]: Self::finish_copy
    pub fn begin_copy(&self, place: u32, bytes: u64) -> u64 {
        let (words, sequence) = (self.words(), self.next_sequence());
        if place >= PLACES {
            return sequence;
        }
        let base = record(place);
        words[base + R_STATE].store(STATE_WRITING, Release);
        // As where a rank begins to write.
        fence(SeqCst);
        words[base + R_SEQUENCE].store(sequence, Relaxed);
        words[base + R_CHECK].store(CHECK_COMING, Relaxed);
        words[RESERVED].fetch_max(whole_pages(bytes).min(self.place_limit()), Release);
        fence(SeqCst);
        words[base + R_STATE].store(STATE_COPIED, Release);
        sequence
    }

    /// All bytes of the copy `sequence` are in `place`, as somebody says: what they must be is written down, so that whoever reads
    /// them sees whether they are. Nothing happens when that copy is not waited for any more.
    pub fn finish_copy(&self, place: u32, sequence: u64, copy: &Description) {
        if place >= PLACES {
            return;
        }
        let base = record(place);
        let (words, known) = (self.words(), Record::load(self.words(), place));
        let waits = known.sequence == sequence && known.check == CHECK_COMING && known.state == STATE_COPIED;
        if !waits || words[base + A_DROPPED].load(Acquire) == sequence {
            return;
        }
        let mut record = Record {
            state: STATE_COPIED,
            sequence,
            version: copy.version,
            epoch: copy.epoch,
            rank: u64::from(self.rank()),
            bytes: copy.bytes,
            regions: copy.regions,
            table_check: copy.table_check,
            check: 0,
        };
        record.check = record.expected_check(place);
        for (at, value) in [
            (R_VERSION, record.version),
            (R_EPOCH, record.epoch),
            (R_RANK, record.rank),
            (R_BYTES, record.bytes),
            (R_REGIONS, record.regions),
            (R_TABLE_CHECK, record.table_check),
        ] {
            words[base + at].store(value, Relaxed);
        }
        // Before it counts: should this agent die in between, the next one compares the bytes with it.
        self.set_complete(place, sequence, copy.checksum);
        fence(SeqCst);
        words[base + R_CHECK].store(record.check, Release);
    }

    /// A number that no commit of this arena has had.
    fn next_sequence(&self) -> u64 {
        let words = self.words();
        let known = (0..PLACES).map(|place| words[record(place) + R_SEQUENCE].load(Acquire));
        let last = known.chain([words[SEQUENCE].load(Acquire)]).filter(|&n| n < 1 << 62).max().unwrap_or(0);
        words[SEQUENCE].store(last + 1, Release);
        last + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Arena;
    use std::time::Duration;

    const WAIT: Duration = Duration::from_millis(1);

    /// Two arenas of one rank; the first holds version 7.
    fn committed() -> (AgentArena, AgentArena) {
        let (own, fd) = AgentArena::create(3, 4).unwrap();
        let mut rank = Arena::open(fd, 3, 4).unwrap();
        rank.reserve(16384).unwrap();
        for version in [6, 7] {
            let mut writing = rank.begin(version, 2, &[(1, 9000), (2, 10)], WAIT).unwrap();
            writing.copy(0, &[version as u8; 9000]);
            writing.copy(1, b"0123456789");
            writing.commit(Duration::ZERO);
        }
        let (_, checksum) = own.hash(1).unwrap();
        own.set_complete(1, own.scan()[1].sequence, checksum);
        (own, AgentArena::create(3, 4).unwrap().0)
    }

    fn transfer(own: &AgentArena, partner: &AgentArena, to: u32, copy: &Description) {
        let mut bytes = vec![0; copy.bytes as usize];
        ft_sys::memory::read_at(own, &mut bytes, own.offset(1)).unwrap();
        let file = std::fs::File::from(partner.descriptor().unwrap());
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes, partner.offset(to)).unwrap();
    }

    #[test]
    fn a_copy_is_the_same_version_in_another_place_and_its_rank_goes_on_with_it() {
        let (own, partner) = committed();
        let copy = own.describe(1).unwrap();
        assert_eq!(own.describe(0), None, "it has no checksum");
        assert_eq!(partner.free_place(|_| false), Some(0));
        let sequence = partner.begin_copy(0, copy.bytes);
        assert_eq!(partner.free_place(|place| place == 0), Some(1));
        transfer(&own, &partner, 0, &copy);
        assert_eq!(partner.scan()[0].state, PlaceState::Writing);
        partner.finish_copy(0, sequence, &copy);
        assert_eq!((partner.describe(0), partner.free_place(|_| false)), (Some(copy), Some(1)));
        partner.verify(0).unwrap();
        let mut rank = Arena::open(partner.descriptor().unwrap(), 3, 4).unwrap();
        let saved = rank.saved(0, 7).unwrap();
        assert_eq!(saved.regions().map(|region| region.bytes).collect::<Vec<_>>(), [9000, 10]);
        // The next commit is newer than the copy, and leaves it alone.
        rank.reserve(16384).unwrap();
        rank.begin(8, 3, &[(1, 10)], WAIT).unwrap().commit(Duration::ZERO);
        let commits: Vec<u64> =
            partner.scan().iter().filter(|info| info.is_whole()).map(|info| info.sequence).collect();
        assert_eq!(commits.len(), 2);
        assert!(commits[1] > commits[0], "{commits:?}");
    }

    #[test]
    fn a_place_into_which_a_copy_comes_is_no_ranks_until_it_is_given_up() {
        let (own, partner) = committed();
        let copy = own.describe(1).unwrap();
        let sequences = [0, 1, 2].map(|place| partner.begin_copy(place, copy.bytes));
        let mut rank = Arena::open(partner.descriptor().unwrap(), 3, 4).unwrap();
        rank.reserve(16384).unwrap();
        assert!(rank.begin(8, 3, &[(1, 10)], WAIT).is_err(), "all places are taken");
        partner.discard(1, sequences[1]);
        let writing = rank.begin(8, 3, &[(1, 10)], WAIT).unwrap();
        assert_eq!(writing.place(), 1);
        writing.commit(Duration::ZERO);
        // Who is late writes nothing down.
        partner.finish_copy(1, sequences[1], &copy);
        assert_eq!(partner.scan()[1].version, 8);
        assert!(partner.scan()[1].is_whole());
    }

    #[test]
    fn what_did_not_come_whole_is_no_copy() {
        let (own, partner) = committed();
        let copy = own.describe(1).unwrap();
        let sequence = partner.begin_copy(2, copy.bytes);
        transfer(&own, &partner, 2, &copy);
        let file = std::fs::File::from(partner.descriptor().unwrap());
        std::os::unix::fs::FileExt::write_all_at(&file, b"x", partner.offset(2) + 5000).unwrap();
        partner.finish_copy(2, sequence, &copy);
        let error = partner.verify(2).unwrap_err().to_string();
        assert!(error.contains("its checksum is"), "{error}");
        partner.discard(2, sequence);
        assert_eq!(partner.describe(2), None);
    }
}
