//! The agent's memory files. They are sparse and far larger than what is used of them, so only what is exposed or moved is mapped.

use crate::native::Slice;
use ft_sys::memory::SharedMap;
use ft_wire::ship::Arena;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Mappings begin at multiples of this.
const PAGE: u64 = 4096;

/// So many mappings are kept of an arena for moves to come: its places, and one more.
const KEPT: usize = 4;

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
    /// The last one used comes last.
    kept: Vec<(Range<u64>, Rc<SharedMap>)>,
}

/// The memory files by name.
#[derive(Debug, Default)]
pub struct Arenas {
    files: HashMap<Arena, File>,
}

impl Arenas {
    /// There is this file, of this length by now.
    pub fn insert(&mut self, arena: Arena, fd: OwnedFd, bytes: u64) {
        self.files.insert(arena, File { fd, bytes, kept: Vec::new() });
    }

    /// There is none any more.
    pub fn remove(&mut self, arena: Arena) {
        self.files.remove(&arena);
    }

    /// A part of it in a mapping that nobody else has.
    ///
    /// # Errors
    /// It is not there.
    pub fn fresh(&mut self, arena: Arena, offset: u64, bytes: u64) -> Result<Slice, ArenaError> {
        let file = self.file(arena, offset, bytes)?;
        let whole = pages(offset, bytes);
        let map = map(file, arena, &whole)?;
        slice(map, &whole, arena, offset, bytes)
    }

    /// A part of it to read from, in a mapping that others may have as well.
    ///
    /// # Errors
    /// It is not there.
    pub fn shared(&mut self, arena: Arena, offset: u64, bytes: u64) -> Result<Slice, ArenaError> {
        let file = self.file(arena, offset, bytes)?;
        let wanted = pages(offset, bytes);
        let is_in = |kept: &(Range<u64>, _)| kept.0.start <= wanted.start && wanted.end <= kept.0.end;
        let (whole, map) = match file.kept.iter().position(is_in) {
            Some(at) => file.kept.remove(at),
            None => (wanted.clone(), map(file, arena, &wanted)?),
        };
        if file.kept.len() >= KEPT {
            file.kept.remove(0);
        }
        file.kept.push((whole.clone(), Rc::clone(&map)));
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

fn map(file: &File, arena: Arena, whole: &Range<u64>) -> Result<Rc<SharedMap>, ArenaError> {
    let failed = |error| ArenaError::Map { arena, error };
    let bytes = usize::try_from(whole.end - whole.start).map_err(|_| failed(io::ErrorKind::OutOfMemory.into()))?;
    Ok(Rc::new(SharedMap::map_large(&file.fd, whole.start, bytes).map_err(failed)?))
}

fn slice(map: Rc<SharedMap>, whole: &Range<u64>, arena: Arena, offset: u64, bytes: u64) -> Result<Slice, ArenaError> {
    let beyond = ArenaError::Beyond { arena, has: whole.end, offset, bytes };
    let (at, bytes) = (usize::try_from(offset - whole.start), usize::try_from(bytes));
    let (Ok(at), Ok(bytes)) = (at, bytes) else { return Err(beyond) };
    Slice::new(map, at, bytes).ok_or(beyond)
}
