//! Preload inside a rank → agent and back. The preload dials when it sees `MPI_Init` coming; the process that dials is the
//! rank, however many shells and wrappers stand above it.

use crate::{Flavour, Rank, World};
use serde::{Deserialize, Serialize};

/// Rank → agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToAgent {
    /// First message, sent before the native `MPI_Init` is entered.
    Hello {
        /// `FT_WORLD` of the environment.
        world: World,
        /// `FT_RANK` of the environment.
        rank: Rank,
        /// Own process id, as its name space of processes counts. The agent goes by what the kernel says.
        pid: i32,
        /// Family of the loaded MPI library.
        flavour: Flavour,
        /// What `MPI_Get_library_version` says, first line.
        library: String,
        /// It is `MPI_Session_init` that is about to be entered.
        session: bool,
    },
    /// The native `MPI_Init` returned.
    Initialized,
    /// The application called `MPI_Abort`; the process waits for [`ToRank::Proceed`].
    Abort {
        /// The code it passed.
        code: i32,
    },
    /// The native `MPI_Finalize` returned.
    Finalized,
    /// Instead of `Hello`: it stands below a shepherd, is about to initialise MPI, and its environment does not say where it
    /// belongs.
    Astray {
        /// What is wrong, as the end of a sentence that begins with the process.
        why: String,
    },
    /// Instead of `Hello`, or after it on another connection: it has no MPI, for a reason that is not its own, and is about to end.
    Unable {
        /// What is wrong.
        why: String,
    },
}

/// Agent → rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToRank {
    /// Answer to [`ToAgent::Hello`]. Descriptors: the rank page (see [`page`]), then `PMI_FD` when `pmi_fd` is set.
    Welcome {
        /// Environment variables to set (`Some`) or remove (`None`) before the native `MPI_Init` runs.
        env: Vec<(String, Option<Vec<u8>>)>,
        /// A second descriptor came along, to be announced as `PMI_FD`.
        pmi_fd: bool,
    },
    /// The process has no place in this job (stale world, second process of a rank): it must not go on.
    Refused {
        /// One sentence.
        reason: String,
    },
    /// Answer to [`ToAgent::Abort`]: no failure came before it, do abort.
    Proceed,
}

/// The page that a rank shares with its agent: one memfd of 4096 bytes per process.
///
/// Offset 0 holds a robust, process-shared `pthread_mutex_t` that the rank's `MPI_Init` thread locks and never unlocks:
/// the kernel marks its first word when the thread ends, before the process's memory is torn down. The words below are
/// little-endian `u32`, written by the rank alone (release) and read by the agent (acquire).
pub mod page {
    /// Size of the page in bytes.
    pub const SIZE: usize = 4096;
    /// Offset of the mutex; its first word is the futex.
    pub const MUTEX: usize = 0;
    /// Offset of the phase word; values `PHASE_*`.
    pub const PHASE: usize = 128;
    /// Offset of the word that says that the process is ending by its own will; 0, or `EXIT_MARK | (status & 0xff)`.
    pub const EXIT: usize = 132;
    /// Set in the [`EXIT`] word when a process calls `exit`, `_exit`, `quick_exit` or returns from `main`.
    pub const EXIT_MARK: u32 = 0x100;
    /// Offset of the word that is 1 once the mutex is locked.
    pub const ARMED: usize = 136;
    /// Before the native `MPI_Init`.
    pub const PHASE_CONNECTED: u32 = 1;
    /// Inside the native `MPI_Init`.
    pub const PHASE_INIT: u32 = 2;
    /// Past `MPI_Init`.
    pub const PHASE_RUNNING: u32 = 3;
    /// Inside the native `MPI_Finalize`.
    pub const PHASE_FINALIZE: u32 = 4;
    /// Past `MPI_Finalize`.
    pub const PHASE_FINALIZED: u32 = 5;
}
