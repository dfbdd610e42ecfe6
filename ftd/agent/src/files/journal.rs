//! What the next agent must know: which files are whole, and by which watch the kernel tells of them. Records are appended;
//! the file is written anew when most of them are outdated.
//!
//! Notices that were read but not written down here when an agent was killed are lost. A mark in the file says that notices
//! are being read: an agent that finds it set knows nothing.
//!
//! Where it lies there may be no room, for a draft or for anything. What is there is written over then, which needs none.

use super::queue::WatchId;
use nix::libc;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of a record: what it says (4), the watch (4), the inode (8), all little-endian. The first holds the mark.
const RECORD: usize = 16;
/// The file is whole.
const WHOLE: u32 = 1;
/// It may be no longer.
const UNKNOWN: u32 = 2;
/// Nothing may be.
const NOTHING: u32 = 3;
/// Fewer records than this are not worth writing anew.
const FEW: usize = 1 << 14;

/// The journal of one directory.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    /// None where not even an empty one could be made.
    file: Option<File>,
    records: usize,
    /// Something could not be written: the mark stays set.
    broken: bool,
    said: bool,
}

impl Journal {
    /// Opens or makes it. Returns the whole files that it knows: inode and watch. An agent that has no room for it goes on
    /// without: only the next one will know nothing.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn open(path: &Path) -> io::Result<(Journal, BTreeMap<u64, WatchId>)> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let whole = replay(&bytes);
        let mut journal =
            Journal { path: path.to_path_buf(), file: None, records: whole.len(), broken: false, said: false };
        journal.rewrite(&whole);
        Ok((journal, whole))
    }

    /// Notices are about to be read.
    pub fn begin(&mut self) {
        self.write(|file| mark(file, 1));
    }

    /// What was read is written down.
    pub fn end(&mut self) {
        if !self.broken {
            self.write(|file| mark(file, 0));
        }
    }

    /// The file is whole.
    pub fn whole(&mut self, inode: u64, watch: WatchId) {
        self.append(WHOLE, inode, watch);
    }

    /// The file may no longer be whole.
    pub fn unknown(&mut self, inode: u64, watch: WatchId) {
        self.append(UNKNOWN, inode, watch);
    }

    /// No file is known to be whole.
    pub fn nothing(&mut self) {
        self.append(NOTHING, 0, 0);
    }

    /// Whether it should be written anew for so many whole files.
    pub fn is_long(&self, whole: usize) -> bool {
        self.broken || self.records > FEW.max(4 * whole)
    }

    /// Writes it anew.
    pub fn rewrite(&mut self, whole: &BTreeMap<u64, WatchId>) {
        let drafted = fresh(&self.path, whole).and_then(|file| {
            std::fs::rename(draft(&self.path), &self.path)?;
            Ok(file)
        });
        let written = drafted.or_else(|error| {
            // It would only take the room that is short.
            let _ = std::fs::remove_file(draft(&self.path));
            over(&self.path, whole).map_err(|_| error)
        });
        match written {
            Ok(file) => (self.file, self.records, self.broken) = (Some(file), whole.len(), false),
            Err(error) => {
                self.say(&error);
                self.note(Err(error));
            }
        }
    }

    fn append(&mut self, says: u32, inode: u64, watch: WatchId) {
        self.records += 1;
        self.write(|mut file| file.write_all(&record(says, inode, watch)));
    }

    fn write(&mut self, what: impl FnOnce(&File) -> io::Result<()>) {
        if let Some(written) = self.file.as_ref().map(what) {
            self.note(written);
        }
    }

    /// What could not be written is written anew before long, and most of the time there is room for that.
    fn note(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.broken = true;
            tracing::debug!(path = %self.path.display(), %error, "the journal of whole files");
            // What is there is true no more.
            if self.file.as_ref().is_none_or(|file| mark(file, 1).is_err()) {
                let _ = std::fs::remove_file(&self.path);
            }
        }
    }

    fn say(&mut self, error: &io::Error) {
        // Under a file-size limit (`ulimit -f`) the job may not even outlive its agent, and that is said elsewhere.
        if error.kind() != io::ErrorKind::FileTooLarge && !std::mem::replace(&mut self.said, true) {
            ft_sys::log::say(format_args!(
                "ftd: which files in $FT_CHECKPOINT_DIR are whole cannot be written down ({}: {error}): should the agent die, they are set aside",
                self.path.display()
            ));
        }
    }
}

fn draft(path: &Path) -> PathBuf {
    path.with_extension("next")
}

/// A draft that holds these files; read by nobody before it is put in place.
fn fresh(path: &Path, whole: &BTreeMap<u64, WatchId>) -> io::Result<File> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(draft(path))?;
    file.write_all(&content(whole))?;
    Ok(file)
}

/// What is there is written over: room for as many records is taken already. The mark is set meanwhile.
fn over(path: &Path, whole: &BTreeMap<u64, WatchId>) -> io::Result<File> {
    let mut file = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
    mark(&file, 1)?;
    let mut bytes = content(whole);
    bytes[0] = 1;
    file.write_all(&bytes)?;
    file.set_len(bytes.len() as u64)?;
    mark(&file, 0)?;
    Ok(file)
}

fn mark(file: &File, value: u8) -> io::Result<()> {
    file.write_all_at(&[value], 0)
}

fn content(whole: &BTreeMap<u64, WatchId>) -> Vec<u8> {
    let files = whole.iter().flat_map(|(inode, watch)| record(WHOLE, *inode, *watch));
    record(0, 0, 0).into_iter().chain(files).collect()
}

fn record(says: u32, inode: u64, watch: WatchId) -> [u8; RECORD] {
    let mut bytes = [0; RECORD];
    bytes[..4].copy_from_slice(&says.to_le_bytes());
    bytes[4..8].copy_from_slice(&watch.to_le_bytes());
    bytes[8..].copy_from_slice(&inode.to_le_bytes());
    bytes
}

fn replay(bytes: &[u8]) -> BTreeMap<u64, WatchId> {
    let mut whole = BTreeMap::new();
    if bytes.first() != Some(&0) {
        return whole;
    }
    let (records, _) = bytes.as_chunks::<RECORD>();
    for [a, b, c, d, e, f, g, h, inode @ ..] in records.iter().skip(1) {
        let (says, watch) = (u32::from_le_bytes([*a, *b, *c, *d]), i32::from_le_bytes([*e, *f, *g, *h]));
        let inode = u64::from_le_bytes(*inode);
        match says {
            WHOLE => drop(whole.insert(inode, watch)),
            UNKNOWN => drop(whole.remove(&inode)),
            _ => whole.clear(),
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_agent_reads_what_the_last_one_wrote() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let known = || Journal::open(&path).unwrap().1.into_iter().collect::<Vec<_>>();
        let (mut journal, nothing) = Journal::open(&path).unwrap();
        assert!(nothing.is_empty());
        journal.begin();
        for inode in 1..=3 {
            journal.whole(inode, inode as i32 + 10);
        }
        journal.unknown(2, 12);
        journal.end();
        assert_eq!(known(), [(1, 11), (3, 13)]);
        let (mut journal, _) = Journal::open(&path).unwrap();
        journal.nothing();
        journal.whole(4, 14);
        assert_eq!(known(), [(4, 14)]);
        let (mut journal, whole) = Journal::open(&path).unwrap();
        journal.rewrite(&whole);
        journal.whole(5, 15);
        assert_eq!(known(), [(4, 14), (5, 15)]);
        let (mut journal, _) = Journal::open(&path).unwrap();
        journal.begin();
        assert!(known().is_empty(), "notices were lost");
    }
    #[test]
    fn without_room_for_a_draft_what_is_there_is_written_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let known = || replay(&std::fs::read(&path).unwrap()).into_iter().collect::<Vec<_>>();
        let (mut journal, _) = Journal::open(&path).unwrap();
        (1..=9).for_each(|inode| journal.whole(inode, 10));
        // A draft cannot be made here.
        std::fs::create_dir(draft(&path)).unwrap();
        let (mut journal, mut whole) = Journal::open(&path).unwrap();
        assert_eq!((whole.len(), journal.is_long(9)), (9, false));
        journal.unknown(9, 10);
        assert_eq!(known().len(), 8);
        whole.retain(|inode, _| *inode > 7);
        journal.rewrite(&whole);
        assert_eq!(known(), [(8, 10), (9, 10)]);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 3 * RECORD as u64);
        journal.begin();
        let (mut journal, whole) = Journal::open(&path).unwrap();
        assert!(whole.is_empty(), "notices were lost");
        journal.whole(7, 10);
        assert_eq!(known(), [(7, 10)], "and what was known before is known no more");
    }

    #[test]
    fn what_cannot_be_written_is_trusted_by_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        std::fs::create_dir(draft(&path)).unwrap();
        let (mut journal, _) = Journal::open(&path).unwrap();
        journal.begin();
        journal.whole(7, 10);
        journal.end();
        assert!(journal.is_long(1) && !path.exists());
        std::fs::remove_dir(draft(&path)).unwrap();
        journal.rewrite(&BTreeMap::from([(8, 10)]));
        assert_eq!(Journal::open(&path).unwrap().1, BTreeMap::from([(8, 10)]));
    }
}
