//! What an endpoint tells its agent.

use crate::parcel::{Noted, Piece, Way};
use ftd_core::{NodeId, PeerMessage};
use tokio::sync::OwnedSemaphorePermit;

/// Something that the agent hears of.
#[derive(Debug)]
pub enum News {
    /// A node of the job says something.
    Said {
        /// Which.
        from: NodeId,
        /// What.
        message: PeerMessage,
        /// The room that it takes until it has been dealt with: its sender is not read any further while there is none.
        room: Option<OwnedSemaphorePermit>,
    },
    /// A part of a parcel came.
    Piece {
        /// Of whose.
        from: NodeId,
        /// How.
        way: Way,
        /// Which.
        piece: Piece,
        /// As with [`Said`](Self::Said).
        room: OwnedSemaphorePermit,
    },
    /// A part of a parcel has come to its receiver.
    Noted {
        /// Who has it.
        from: NodeId,
        /// How that word came.
        way: Way,
        /// Which.
        noted: Noted,
    },
    /// There is a connection with this node.
    Connected {
        /// Which.
        node: NodeId,
        /// Its agent's.
        incarnation: u64,
    },
    /// There is none any more. What was said to it last may not have come, and is said again if it is still true.
    Lost {
        /// Which.
        node: NodeId,
        /// One sentence.
        reason: String,
    },
    /// Something that people must hear of, said once.
    Trouble(String),
}
