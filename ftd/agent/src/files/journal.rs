//! What the next agent must know: which files are whole, and by which watch the kernel tells of them. Records are appended;
//! the file is written anew when most of them are outdated.
//!
//! Notices that were read but not written down here when an agent was killed are lost. A mark in the file says that notices
//! are being read: an agent that finds it set knows nothing.

use super::queue::WatchId;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
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
    file: File,
    records: usize,
    /// Something could not be written: the mark stays set.
    broken: bool,
}

impl Journal {
    /// Opens or makes it. Returns the whole files that it knows: inode and watch.
    ///
    /// # Errors
    /// When it can neither be read nor made.
    pub fn open(path: &Path) -> io::Result<(Journal, BTreeMap<u64, WatchId>)> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let whole = replay(&bytes);
        let (file, broken) = match fresh(path, &whole) {
            Ok(file) => (file, false),
            // Under a file-size limit (`ulimit -f`) the job may not even outlive its agent: nobody will read this.
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => (File::create(draft(path))?, true),
            Err(error) => return Err(error),
        };
        let mut journal = Journal { path: path.to_path_buf(), file, records: whole.len(), broken };
        journal.put_in_place();
        Ok((journal, whole))
    }

    /// Notices are about to be read.
    pub fn begin(&mut self) {
        let marked = self.file.write_all_at(&[1], 0);
        self.note(marked);
    }

    /// What was read is written down.
    pub fn end(&mut self) {
        if !self.broken {
            let cleared = self.file.write_all_at(&[0], 0);
            self.note(cleared);
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
        match fresh(&self.path, whole) {
            Ok(file) => {
                (self.file, self.records, self.broken) = (file, whole.len(), false);
                self.put_in_place();
            }
            Err(error) => self.note(Err(error)),
        }
    }

    fn put_in_place(&mut self) {
        let moved = std::fs::rename(draft(&self.path), &self.path);
        self.note(moved);
    }

    fn append(&mut self, says: u32, inode: u64, watch: WatchId) {
        self.records += 1;
        let appended = self.file.write_all(&record(says, inode, watch));
        self.note(appended);
    }

    fn note(&mut self, result: io::Result<()>) {
        if let Err(error) = result
            && !std::mem::replace(&mut self.broken, true)
        {
            let _ = self.file.write_all_at(&[1], 0);
            tracing::warn!(path = %self.path.display(), %error, "the next agent will not know which restart files are whole");
        }
    }
}

fn draft(path: &Path) -> PathBuf {
    path.with_extension("next")
}

/// A draft that holds these files; read by nobody before it is put in place.
fn fresh(path: &Path, whole: &BTreeMap<u64, WatchId>) -> io::Result<File> {
    let mut bytes = record(0, 0, 0).to_vec();
    bytes.extend(whole.iter().flat_map(|(inode, watch)| record(WHOLE, *inode, *watch)));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(draft(path))?;
    file.write_all(&bytes)?;
    Ok(file)
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
}
