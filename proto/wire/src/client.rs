//! Client library inside a rank → agent and back. The data itself never travels here: it lies in the
//! arena, and so does the word that a version was committed.

use crate::{Rank, Version, World};
use serde::{Deserialize, Serialize};

/// Client → agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToAgent {
    /// First message, from `ft_init`. Answered by [`ToClient::Welcome`] or [`ToClient::Refused`].
    Hello {
        /// `FT_WORLD` of the environment.
        world: World,
        /// `FT_RANK` of the environment.
        rank: Rank,
        /// Own process id, as its name space of processes counts. The agent goes by what the kernel says.
        pid: i32,
        /// Version of the arena layout that this library writes.
        layout: u32,
    },
    /// The places of the arena must hold this many bytes each. Answered by [`ToClient::Reserved`] or
    /// [`ToClient::NoMemory`].
    Reserve {
        /// Bytes per place, page-aligned, table included.
        place_bytes: u64,
    },
    /// Which version is to be restored? Answered by [`ToClient::Restore`], once every agent's inventory is in.
    Restore,
    /// The restored data is back in the application's memory. Not answered.
    Restored {
        /// The version.
        version: Version,
    },
    /// Is a checkpoint due (Young/Daly)? Answered by [`ToClient::Due`].
    Due,
    /// `ft_restore` failed: nothing was restored. Not answered.
    NotRestored {
        /// One sentence.
        reason: String,
    },
    /// Last message: this rank takes no more checkpoints. Answered by [`ToClient::Finalized`].
    Finalized {
        /// The newest version that it has taken, or taken back.
        last: Option<Version>,
    },
    /// This rank gives up waiting for a free place: for whom has it waited? Answered by [`ToClient::WaitsFor`].
    Waits {
        /// The version that is not written.
        version: Version,
    },
}

/// Agent → client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToClient {
    /// Answer to `Hello`; the arena's descriptor comes with it, and that of the sheet on which the rank notes where in its output it
    /// takes versions.
    Welcome {
        /// Whether this process replaces one of an earlier epoch (`FT_STATE_RESTARTED`) or not (`FT_STATE_NEW`).
        restarted: bool,
        /// Number of ranks.
        world_size: u32,
        /// The epoch, stamped into every version.
        epoch: u64,
    },
    /// The process has no place in this job.
    Refused {
        /// One sentence.
        reason: String,
    },
    /// Answer to `Reserve`: go on.
    Reserved,
    /// Answer to `Reserve`: three places of that size do not fit.
    NoMemory {
        /// One sentence with the numbers.
        reason: String,
    },
    /// Answer to `Restore`.
    Restore {
        /// Version and place in this rank's arena; `None` when there is nothing complete.
        found: Option<(Version, u32)>,
    },
    /// Answer to `Due`.
    Due {
        /// Whether a checkpoint is due.
        yes: bool,
    },
    /// Answer to `Finalized`: the other ranks have been told.
    Finalized,
    /// Comes unasked: another rank takes no more checkpoints, so that no version after its last one can become complete.
    Left {
        /// Which.
        rank: Rank,
        /// The newest version that it has taken.
        last: Option<Version>,
        /// What it did, to stand behind its name: `has called ft_finalize`.
        how: String,
    },
    /// Answer to `Waits`.
    WaitsFor {
        /// The version of the question: who has asked no longer waits for this answer, and may have asked again.
        version: Version,
        /// The ranks that are missing, and the version that they lack: `rank 2 has not checkpointed version 7, …`.
        words: String,
    },
}
