//! What the server's caller is told.

use crate::{NameRequest, ProtocolError};

/// What a caller has to do, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send these bytes to this rank.
    Send {
        /// The rank.
        rank: u32,
        /// Whole lines.
        bytes: Vec<u8>,
    },
    /// Something happened.
    Event(Event),
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A rank said its first word (it is inside the native `MPI_Init`).
    Initialized {
        /// The rank.
        rank: u32,
    },
    /// A rank entered the barrier, and others of this node are still missing.
    Entered {
        /// The rank.
        rank: u32,
    },
    /// Every local rank is inside the barrier: call [`crate::World::barrier_complete`] when the other nodes are, too.
    BarrierReady {
        /// Keys and values put on this node since the last barrier; the other nodes need them.
        puts: Vec<(String, String)>,
    },
    /// A rank called `PMI_Abort`. It gets no answer. MPICH 4 and Intel MPI exit by themselves then; MPICH 5 *returns* from
    /// `MPI_Abort` and computes on until it is killed, so the caller must stop the rank at once. What the rank still says
    /// is answered, and makes no [`Event::Finalized`].
    Aborted {
        /// The rank.
        rank: u32,
        /// Exit code that it passed.
        code: i32,
        /// Message that it passed; empty when there is none.
        message: String,
    },
    /// A rank called `PMI_Finalize`; it was answered.
    Finalized {
        /// The rank.
        rank: u32,
    },
    /// A rank publishes, looks up or withdraws a name; it waits for [`crate::World::answer_name`].
    Name {
        /// The rank.
        rank: u32,
        /// What it wants.
        request: NameRequest,
    },
    /// `MPI_Comm_spawn` was refused; the rank was told.
    SpawnRefused {
        /// The rank.
        rank: u32,
        /// The program it wanted to start.
        command: String,
    },
    /// The key space is full; the rank was told, as is every rank that puts a key from now on.
    Full {
        /// The rank that came first.
        rank: u32,
        /// The limit in bytes.
        most: usize,
    },
    /// The rank broke the protocol. Nothing more is read from it; its connection is to be closed.
    Broken {
        /// The rank.
        rank: u32,
        /// What was wrong.
        error: ProtocolError,
    },
}

/// One line for a rank.
pub(crate) fn send(rank: u32, mut text: String) -> Action {
    text.push('\n');
    Action::Send { rank, bytes: text.into_bytes() }
}
