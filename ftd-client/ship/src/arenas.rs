//! The agent's memory files. They are sparse and far larger than what is used of them, so only what is exposed or moved is mapped.

use crate::native::Slice;
use ft_sys::huge;
use ft_sys::memory::SharedMap;
use ft_wire::ship::Arena;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Mappings begin at multiples of this.
const PAGE: u64 = 4096;

/// So many mappings are kept of an arena for moves and windows to come, each: its places, and one more.
const KEPT: usize = 4;

/// So much is given huge pages between two looks at the network, before it is written to: more would keep this process from answering.
const HUGE: u64 = 256 << 20;

/// A mapping, and which part of the file it is.
type Mapping = (Range<u64>, Rc<SharedMap>);

/// Why a part of an arena is not there.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// Nothing was ever said of it, or it was taken back.
    #[error("arena {0} is not here")]
    Unknown(Arena),
    /// It is shorter.
    #[error("arena {arena} has {has} bytes, and not {bytes} at {offset}")]
    Beyond {
        /// Which.
        arena: Arena,
        /// Its length.
        has: u64,
        /// What was wanted.
        offset: u64,
        /// How much of it.
        bytes: u64,
    },
    /// The system does not map it.
    #[error("arena {arena} cannot be mapped: {error}")]
    Map {
        /// Which.
        arena: Arena,
        /// What it said.
        error: io::Error,
    },
}

#[derive(Debug)]
struct File {
    fd: OwnedFd,
    bytes: u64,
    /// Of what is read. The last one used comes last.
    shared: Vec<Mapping>,
    /// Of windows that all has been written to: nobody has them. Their pages are in the page tables, which takes longer than to write
    /// them.
    finished: Vec<Mapping>,
}

/// The memory files by name.
#[derive(Debug, Default)]
pub struct Arenas {
    files: HashMap<Arena, File>,
    /// So much has been given huge pages in this turn.
    huge: u64,
}

impl Arenas {
    /// There is this file, of this length by now.
    pub fn insert(&mut self, arena: Arena, fd: OwnedFd, bytes: u64) {
        self.files.insert(arena, File { fd, bytes, shared: Vec::new(), finished: Vec::new() });
    }

    /// There is none any more.
    pub fn remove(&mut self, arena: Arena) {
        self.files.remove(&arena);
    }

    /// Another look at the network has been had.
    pub fn turn(&mut self) {
        self.huge = 0;
    }

    /// A part of it in a mapping that nobody else has.
    ///
    /// # Errors
    /// It is not there.
    pub fn fresh(&mut self, arena: Arena, offset: u64, bytes: u64) -> Result<Slice, ArenaError> {
        let mut turn = self.huge;
        let file = self.file(arena, offset, bytes)?;
        let wanted = pages(offset, bytes);
        let (whole, map) = match kept(&mut file.finished, &wanted) {
            Some(kept) => kept,
            None => {
                let made = made(arena, &file.fd, wanted)?;
                if turn + bytes <= HUGE {
                    huge::take(&made.1, &file.fd, made.0.start);
                    turn += bytes;
                }
                made
            }
        };
        self.huge = turn;
        slice(map, &whole, arena, offset, bytes)
    }

    /// What [`fresh`](Self::fresh) gave, from `offset` on, is nobody's any more.
    pub fn finished(&mut self, arena: Arena, offset: u64, map: Rc<SharedMap>) {
        let Some(file) = self.files.get_mut(&arena) else { return };
        let start = pages(offset, 0).start;
        keep(&mut file.finished, (start..start + map.len() as u64, map));
    }

    /// A part of it to read from, in a mapping that others may have as well.
    ///
    /// # Errors
    /// It is not there.
    pub fn shared(&mut self, arena: Arena, offset: u64, bytes: u64) -> Result<Slice, ArenaError> {
        let file = self.file(arena, offset, bytes)?;
        let wanted = pages(offset, bytes);
        let (whole, map) = match kept(&mut file.shared, &wanted) {
            Some(kept) => kept,
            None => made(arena, &file.fd, wanted)?,
        };
        keep(&mut file.shared, (whole.clone(), Rc::clone(&map)));
        slice(map, &whole, arena, offset, bytes)
    }

    fn file(&mut self, arena: Arena, offset: u64, bytes: u64) -> Result<&mut File, ArenaError> {
        let file = self.files.get_mut(&arena).ok_or(ArenaError::Unknown(arena))?;
        match offset.checked_add(bytes) {
            Some(end) if bytes > 0 && end <= file.bytes => Ok(file),
            _ => Err(ArenaError::Beyond { arena, has: file.bytes, offset, bytes }),
        }
    }
}

/// From the beginning of its first page on.
fn pages(offset: u64, bytes: u64) -> Range<u64> {
    offset - offset % PAGE..offset + bytes
}

/// One of these with the wanted part in it, which leaves them.
fn kept(mappings: &mut Vec<Mapping>, wanted: &Range<u64>) -> Option<Mapping> {
    let is_in = |(whole, _): &Mapping| whole.start <= wanted.start && wanted.end <= whole.end;
    mappings.iter().position(is_in).map(|at| mappings.remove(at))
}

/// A new one.
fn made(arena: Arena, fd: &OwnedFd, wanted: Range<u64>) -> Result<Mapping, ArenaError> {
    let failed = |error| ArenaError::Map { arena, error };
    let bytes = usize::try_from(wanted.end - wanted.start).map_err(|_| failed(io::ErrorKind::OutOfMemory.into()))?;
    let map = Rc::new(SharedMap::map_large(fd, wanted.start, bytes).map_err(failed)?);
    Ok((wanted, map))
}

/// Keeps it in the place of the one that was not used for longest, where there are many.
fn keep(kept: &mut Vec<Mapping>, mapping: Mapping) {
    if kept.len() >= KEPT {
        kept.remove(0);
    }
    kept.push(mapping);
}

fn slice(map: Rc<SharedMap>, whole: &Range<u64>, arena: Arena, offset: u64, bytes: u64) -> Result<Slice, ArenaError> {
    let beyond = ArenaError::Beyond { arena, has: whole.end, offset, bytes };
    let (at, bytes) = (usize::try_from(offset - whole.start), usize::try_from(bytes));
    let (Ok(at), Ok(bytes)) = (at, bytes) else { return Err(beyond) };
    Slice::new(map, at, bytes).ok_or(beyond)
}
