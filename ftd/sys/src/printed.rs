//! Where in its standard output a rank has taken a version.
//!
//! A sheet of memory that the launcher, who reads the rank's pipe, shares with the rank's library: the launcher writes how many bytes
//! it has read, and with those that lie in the pipe the rank knows how many it has printed. What it notes before it prints on, the
//! launcher finds when it has read what comes behind it.

use crate::job_time::Awake;
use crate::memory::{self, SharedMap};
use ft_wire::{Epoch, Rank, Version, World};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, fence};
use std::time::Duration;

/// Whoever reads is done after microseconds. One that does not come to that for so long is not waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// The newest notes of a rank that are kept: more than versions that can be restored.
const NOTES: u64 = 12;
/// Words of a rank.
const WORDS: usize = 64;
/// Ranks of a page.
const RANKS: u32 = (PAGE / (8 * WORDS)) as u32;
const PAGE: usize = 4096;

// Words, written by the launcher: the world whose bytes it counts, an odd number while it reads, and how many it has read.
const WORLD: usize = 0;
const READING: usize = 1;
const READ: usize = 2;
// Written by the rank: how many notes it has made, and the newest of them.
const MADE: usize = 3;
const FIRST: usize = 4;
const NOTE: usize = 4;
/// What stands for a place that is not known.
const NOWHERE: u64 = u64::MAX;

/// That a rank has taken a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note {
    /// In which world.
    pub world: World,
    /// In which epoch.
    pub epoch: Epoch,
    /// Which version.
    pub version: Version,
    /// So many bytes had it printed; nothing when that is not known.
    pub at: Option<u64>,
}

/// Memory for the notes of so many ranks. Where no file may be that long (`ulimit -f`) there is room for no notes, and no rank finds its
/// place.
///
/// # Errors
/// When no descriptor is left.
pub fn sheet(ranks: u32) -> io::Result<OwnedFd> {
    let pages = u64::from(ranks.div_ceil(RANKS).max(1));
    match memory::create_sparse_sealed_memfd("ft-printed", pages * PAGE as u64) {
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => memory::create_memfd("ft-printed", 0),
        made => made,
    }
}

fn note_at(number: u64) -> usize {
    FIRST + NOTE * (number % NOTES) as usize
}

/// The launcher's side; nothing where there is no room for notes.
#[derive(Debug)]
pub struct Reader(Option<SharedMap>);

impl Reader {
    /// Of a [`sheet`].
    ///
    /// # Errors
    /// As `mmap`.
    pub fn of(sheet: impl AsFd) -> io::Result<Reader> {
        let bytes = memory::facts(&sheet)?.bytes;
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        Ok(Reader((bytes > 0).then(|| SharedMap::map(sheet, 0, bytes)).transpose()?))
    }

    fn words(&self, rank: Rank) -> Option<&[AtomicU64]> {
        let from = (rank as usize).checked_mul(WORDS)?;
        self.0.as_ref()?.words().get(from..from + WORDS)
    }

    /// The bytes of this world are counted from now on. Returns how many notes there are already, of others.
    pub fn begin(&self, rank: Rank, world: World) -> u64 {
        let Some(words) = self.words(rank) else { return 0 };
        self.reading(rank);
        words[WORLD].store(world, Relaxed);
        self.read(rank, 0);
        // Those of this world are found by their world.
        words[MADE].load(Acquire).saturating_sub(NOTES)
    }

    /// The pipe is about to be read.
    pub fn reading(&self, rank: Rank) {
        if let Some(words) = self.words(rank) {
            words[READING].store(words[READING].load(Relaxed) | 1, Relaxed);
            fence(SeqCst);
        }
    }

    /// It was read; so many bytes in all.
    pub fn read(&self, rank: Rank, bytes: u64) {
        if let Some(words) = self.words(rank) {
            words[READ].store(bytes, Relaxed);
            words[READING].store((words[READING].load(Relaxed) | 1).wrapping_add(1), Release);
        }
    }

    /// The notes from this one on, and the number of the next.
    pub fn notes(&self, rank: Rank, from: u64) -> (Vec<Note>, u64) {
        let Some(words) = self.words(rank) else { return (Vec::new(), from) };
        let made = words[MADE].load(Acquire);
        let mut notes = Vec::new();
        for number in from.max(made.saturating_sub(NOTES))..made {
            let note = &words[note_at(number)..][..NOTE];
            let [world, epoch, version, at] = [0, 1, 2, 3].map(|word| note[word].load(Relaxed));
            fence(Acquire);
            // Another one may be written in its place.
            if words[MADE].load(Relaxed) < number + NOTES {
                notes.push(Note { world, epoch, version, at: (at != NOWHERE).then_some(at) });
            }
        }
        (notes, made)
    }
}

/// The rank's side.
#[derive(Debug)]
pub struct Writer {
    page: SharedMap,
    first: usize,
    world: World,
}

impl Writer {
    /// For a rank in a world.
    ///
    /// # Errors
    /// As `mmap`; when the sheet has no such rank.
    pub fn of(sheet: impl AsFd, rank: Rank, world: World) -> io::Result<Writer> {
        let page = SharedMap::map(sheet, u64::from(rank / RANKS) * PAGE as u64, PAGE)?;
        Ok(Writer { page, first: (rank % RANKS) as usize * WORDS, world })
    }

    fn words(&self) -> &[AtomicU64] {
        &self.page.words()[self.first..self.first + WORDS]
    }

    /// Notes that a version is taken now. `stdout`: the pipe to which this process prints, where it is the one that is counted.
    pub fn note(&self, epoch: Epoch, version: Version, stdout: Option<BorrowedFd<'_>>) {
        let at = stdout.and_then(|pipe| self.printed(pipe)).unwrap_or(NOWHERE);
        let words = self.words();
        let made = words[MADE].load(Relaxed);
        // Whoever sees a part of this sees that it is beyond what was made when it looked.
        fence(SeqCst);
        for (word, value) in words[note_at(made)..].iter().zip([self.world, epoch, version, at]) {
            word.store(value, Relaxed);
        }
        words[MADE].store(made + 1, Release);
    }

    /// How many bytes have been printed, read or not.
    fn printed(&self, pipe: BorrowedFd<'_>) -> Option<u64> {
        let words = self.words();
        let mut waited = Awake::begin();
        loop {
            let before = words[READING].load(Acquire);
            let read = if words[WORLD].load(Relaxed) == self.world { words[READ].load(Relaxed) } else { 0 };
            let unread = rustix::io::ioctl_fionread(pipe).ok()?;
            fence(SeqCst);
            if before.is_multiple_of(2) && words[READING].load(Relaxed) == before {
                return Some(read + unread);
            }
            if waited.elapsed() >= PATIENCE {
                return None;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn without_room_nobody_notes_anything() {
        let none = memory::create_memfd("t", 0).unwrap();
        let reader = Reader::of(&none).unwrap();
        assert!(Writer::of(&none, 0, 1).is_err());
        assert_eq!((reader.begin(0, 1), reader.notes(0, 0)), (0, (vec![], 0)));
    }

    #[test]
    fn a_rank_notes_where_it_is() {
        let sheet = sheet(20).unwrap();
        let (reader, writer) = (Reader::of(&sheet).unwrap(), Writer::of(&sheet, 17, 3).unwrap());
        let (mut out, mut pipe) = std::io::pipe().unwrap();
        pipe.write_all(b"12345").unwrap();
        // Nobody has begun to read.
        writer.note(2, 10, Some(pipe.as_fd()));
        let mut next = reader.begin(17, 3);
        reader.reading(17);
        out.read_exact(&mut [0; 3]).unwrap();
        reader.read(17, 3);
        writer.note(2, 20, Some(pipe.as_fd()));
        writer.note(2, 30, None);
        let notes;
        (notes, next) = reader.notes(17, next);
        let note = |version, at| Note { world: 3, epoch: 2, version, at };
        assert_eq!(notes, [note(10, Some(5)), note(20, Some(5)), note(30, None)]);
        assert_eq!(reader.notes(17, next), (vec![], 3));
        assert_eq!(reader.notes(16, 0).0, []);
        assert_eq!(reader.notes(1000, 0).0, []);
        assert!(Writer::of(&sheet, 1000, 1).is_err());
        // Of many that nobody has read the newest are there.
        (0..100).for_each(|version| writer.note(2, version, None));
        let versions: Vec<u64> = reader.notes(17, next).0.into_iter().map(|note| note.version).collect();
        assert!(versions.len() >= 11 && versions.ends_with(&[98, 99]), "{versions:?}");
    }

    /// One thread reads as fast as it can, another one prints and notes: each note is where it belongs.
    #[test]
    fn what_is_read_meanwhile_is_counted_once() {
        let sheet = sheet(1).unwrap();
        let (reader, writer) = (Reader::of(&sheet).unwrap(), Writer::of(&sheet, 0, 1).unwrap());
        let (mut out, mut pipe) = std::io::pipe().unwrap();
        // As the launcher's: who waits for more while it says that it reads is waited for.
        rustix::io::ioctl_fionbio(&out, true).unwrap();
        reader.begin(0, 1);
        let (mut right, mut wrong) = (0, Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 1..=20_000u64 {
                    pipe.write_all(b"0123456789").unwrap();
                    writer.note(1, number, Some(pipe.as_fd()));
                }
            });
            let (mut total, mut next, mut bytes) = (0, 0, [0; 37]);
            loop {
                reader.reading(0);
                let count = out.read(&mut bytes);
                total += *count.as_ref().unwrap_or(&0) as u64;
                reader.read(0, total);
                let (notes, after) = reader.notes(0, next);
                next = after;
                for note in notes {
                    match note.at {
                        Some(at) if at == note.version * 10 => right += 1,
                        Some(_) => wrong.push(note),
                        // Not one of both was given a processor for a while.
                        None => {}
                    }
                }
                match count {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(_) => std::thread::yield_now(),
                }
            }
        });
        assert!(wrong.is_empty(), "{wrong:?}");
        assert!(right > 0, "no note was read");
    }
}
