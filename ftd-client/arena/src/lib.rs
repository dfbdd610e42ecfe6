//! The checkpoint arena of one rank: a memfd that the agent owns and the rank maps, so that what was copied into it
//! outlives the rank, and (through duplicates that the shepherd holds) the agent.
//!
//! The memfd is sparse: 64 KiB of header, then three *places* at fixed offsets, each large enough for one version. A
//! version lies in its place as a table of regions and the regions' bytes. [`Arena`] is the rank's side: it copies and
//! commits. [`AgentArena`] is the agent's side: it reads, makes the checksums behind the copy, and alone says when a place
//! may be used again.
//!
//! # Why a version is either whole or absent
//! A commit ends with one aligned store of the word *state* (`Copied`), after everything it vouches for; a new version
//! begins with the store of `Writing` into the same word. The rank may die at any instruction: the word then says
//! `Writing` and the place holds nothing, or `Copied` and the place is whole. The memory itself does not die with it.
//!
//! # Why nothing in here can kill the agent
//! The rank can write every byte of the memfd, so the agent treats it as input: it maps the header alone, whose size is
//! sealed, reads the places with `pread`, and checks every offset and length before it uses it.
//!
//! # When a place is free
//! Each commit has a sequence number of its own. A place is free when it holds no commit, or when the agent has released
//! exactly that commit ([`AgentArena::release`]). So a place cannot be taken for free between the rank's commit and the
//! agent's first look at it, and a late release cannot hit a newer version.
//!
//! # Copies from elsewhere
//! While its rank is on another node, the agent writes an arena itself: a version that was committed there is brought into a place
//! of this one by somebody else, byte for byte, and counts when its [`Description`] has been written down and its bytes match that.
//! A rank that comes to this node goes on with this arena.

mod agent;
mod copy;
mod doom;
mod layout;
mod rank;

pub use agent::{AgentArena, PlaceInfo, PlaceState, Tally};
pub use copy::Description;
pub use doom::Doom;
pub use layout::{ARENA_BYTES, LAYOUT, MAX_REGIONS, PLACE_LIMIT, PLACES, bytes_for};
pub use rank::{Arena, Saved, SavedRegion, Writing};

use ft_sys::memory::{self, SharedMap};
use layout::Extent;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Why an arena cannot do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// A system call failed.
    #[error("the checkpoint arena of rank {rank}: {what}: {source}")]
    Io {
        /// Owner of the arena.
        rank: u32,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The descriptor is no arena of this rank and release.
    #[error("the descriptor is no checkpoint arena of rank {rank}: {why}")]
    Foreign {
        /// The rank that was expected.
        rank: u32,
        /// What does not fit.
        why: String,
    },
    /// This process has the arena open already.
    #[error("the checkpoint arena of rank {rank} is open already in this process")]
    Twice {
        /// Owner of the arena.
        rank: u32,
    },
    /// The file-size limit does not even leave room for the header.
    #[error("rank {rank}: the file-size limit (ulimit -f) of {most} bytes leaves no room for checkpoints")]
    FileSize {
        /// Owner of the arena.
        rank: u32,
        /// The limit.
        most: u64,
    },
    /// The kernel has no memory for the places.
    #[error("rank {rank}: no memory for three checkpoint places of {place_bytes} bytes each: {source}")]
    NoMemory {
        /// Owner of the arena.
        rank: u32,
        /// Bytes asked for.
        place_bytes: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// The version is larger than the places.
    #[error("rank {rank}: version {version} needs {needed} bytes, the places hold {place_bytes}")]
    TooLarge {
        /// Owner of the arena.
        rank: u32,
        /// The version.
        version: u64,
        /// Bytes needed, table included.
        needed: u64,
        /// Bytes there are.
        place_bytes: u64,
    },
    /// More than [`MAX_REGIONS`], or a sum of lengths beyond [`PLACE_LIMIT`].
    #[error(
        "rank {rank}: {bytes} bytes in all regions ({regions}) are beyond the limits of {MAX_REGIONS} regions and {PLACE_LIMIT} bytes"
    )]
    Limits {
        /// Owner of the arena.
        rank: u32,
        /// Number of regions.
        regions: usize,
        /// Their lengths added up.
        bytes: u64,
    },
    /// The agent released no place in time.
    #[error(
        "rank {rank}: version {version} waited {:.0} s for the agent to release one of the versions {held:?}",
        waited.as_secs_f64()
    )]
    NoFreePlace {
        /// Owner of the arena.
        rank: u32,
        /// The version that was to be written.
        version: u64,
        /// How long the rank waited.
        waited: Duration,
        /// Versions that occupy the places.
        held: Vec<u64>,
    },
    /// The place does not hold what was asked for.
    #[error("rank {rank}: place {place} does not hold version {version}: {why}")]
    Damaged {
        /// Owner of the arena.
        rank: u32,
        /// The place.
        place: u32,
        /// The version that was expected.
        version: u64,
        /// What is wrong.
        why: String,
    },
}

impl ArenaError {
    /// Whether the process, or the machine, has no more memory.
    pub fn is_shortage(&self) -> bool {
        match self {
            ArenaError::Io { source, .. } | ArenaError::NoMemory { source, .. } => {
                source.kind() == io::ErrorKind::OutOfMemory
            }
            _ => false,
        }
    }
}

/// How an arena's memfd is divided, and which file it is; only if it has an arena's size, and keeps it.
fn extent_of(fd: &OwnedFd, rank: u32) -> Result<(Extent, (u64, u64)), ArenaError> {
    let facts = memory::facts(fd).map_err(|source| ArenaError::Io { rank, what: "fstat", source })?;
    let foreign = |why| ArenaError::Foreign { rank, why };
    let extent = Extent::of_file(facts.bytes).ok_or_else(|| foreign(format!("it has {} bytes", facts.bytes)))?;
    if !memory::has_sealed_size(fd) {
        return Err(foreign("its size is not sealed".into()));
    }
    Ok((extent, facts.identity))
}

/// Gives the memory of a place behind its first `used` bytes back to the system.
fn give_back(fd: &OwnedFd, extent: Extent, place: u32, used: u64) {
    if let Some(tail) = extent.limit.checked_sub(used).filter(|tail| *tail > 0) {
        // A failure leaves memory allocated for longer than needed and nothing else.
        let _ = memory::punch_hole(fd, extent.offset(place) + used, tail);
    }
}

/// The low half of a word of the header, for a futex.
fn futex(header: &SharedMap, word: usize) -> &AtomicU32 {
    header.u32_at(word * 8 + if cfg!(target_endian = "big") { 4 } else { 0 })
}
