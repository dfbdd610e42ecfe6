//! Agent ⇄ agent of one job, about copies of a rank's checkpoints on another node than its own.
//!
//! A version is offered to a partner, which opens a window for it in an arena of its own, checks what was written there, and says
//! that it keeps it. What is restored elsewhere is read through a window in the same way. `ft-ship` moves the bytes
//! ([`ship`](crate::ship)). Who says something of an epoch that is over for the other is not answered.

use crate::ship::Target;
use crate::{Epoch, Rank, Version};
use serde::{Deserialize, Serialize};

/// Names a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CopyName {
    /// The epoch in which it is spoken of.
    pub epoch: Epoch,
    /// Whose.
    pub rank: Rank,
    /// The application's version.
    pub version: Version,
    /// The epoch in which that was committed.
    pub committed: Epoch,
    /// How often its move was begun before: what has failed may still write to the window of that time.
    pub turn: u32,
}

/// What it is beside its bytes, as the arenas say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyFacts {
    /// Its length.
    pub bytes: u64,
    /// Its regions.
    pub regions: u64,
    /// Hash of the table of those.
    pub table_check: u64,
    /// Checksum of all of it.
    pub checksum: u64,
}

/// What one agent says to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyWord {
    /// Owner → partner: is to be kept. Said again until it is answered.
    Offer {
        /// Which.
        copy: CopyName,
        /// What it is.
        facts: CopyFacts,
    },
    /// Partner → owner: may be written here.
    Room {
        /// Which.
        copy: CopyName,
        /// Where.
        target: Target,
        /// The partner's `ft-ship`.
        address: Vec<u8>,
    },
    /// Owner → partner: all bytes are there. Said again until it is answered.
    Written {
        /// Which.
        copy: CopyName,
    },
    /// Partner → owner: it is there, and what its checksum says.
    Kept {
        /// Which.
        copy: CopyName,
    },
    /// Partner → owner: it is not kept.
    NotKept {
        /// Which.
        copy: CopyName,
        /// One sentence.
        reason: String,
        /// It may go better another time; else another partner is to be asked.
        again: bool,
    },
    /// Its rank's node → holder: is to be read. Said again until it is answered.
    Want {
        /// Which.
        copy: CopyName,
    },
    /// Its rank's node → a third one: is to be had from the holder, which the sender has no way to, and to be read there. Said again until
    /// it is answered, as [`Want`](Self::Want) is. Came with protocol 7, before any release of that.
    WantThrough {
        /// Which.
        copy: CopyName,
        /// The node that has it.
        holder: u32,
    },
    /// Holder → its rank's node: may be read here.
    Readable {
        /// Which.
        copy: CopyName,
        /// What it is.
        facts: CopyFacts,
        /// Where.
        target: Target,
        /// The holder's `ft-ship`.
        address: Vec<u8>,
    },
    /// Holder → its rank's node: it cannot be had here.
    NotReadable {
        /// Which.
        copy: CopyName,
        /// One sentence.
        reason: String,
    },
    /// Its rank's node → holder: has been read, or is not wanted any more.
    Read {
        /// Which.
        copy: CopyName,
    },
}

impl CopyWord {
    /// The copy that it is about.
    pub fn copy(&self) -> CopyName {
        match self {
            CopyWord::Offer { copy, .. }
            | CopyWord::Room { copy, .. }
            | CopyWord::Written { copy }
            | CopyWord::Kept { copy }
            | CopyWord::NotKept { copy, .. }
            | CopyWord::Want { copy }
            | CopyWord::WantThrough { copy, .. }
            | CopyWord::Readable { copy, .. }
            | CopyWord::NotReadable { copy, .. }
            | CopyWord::Read { copy } => *copy,
        }
    }
}
