//! What an endpoint tells its agent.

use crate::beat::Refusal;
use crate::parcel::{Noted, Piece, Way};
use ftd_core::{NodeId, PeerMessage};
use std::net::SocketAddr;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// Where what is heard goes.
pub enum Inlet {
    /// Into a queue, which has room for so much.
    Queue(mpsc::Sender<News>),
    /// To one who takes it at once, and says whether it takes more.
    Straight(Box<dyn Fn(News) -> bool + Send + Sync>),
}

impl From<mpsc::Sender<News>> for Inlet {
    fn from(queue: mpsc::Sender<News>) -> Inlet {
        Inlet::Queue(queue)
    }
}

impl Inlet {
    /// Tells it; whether anybody takes more.
    pub(crate) async fn tell(&self, news: News) -> bool {
        match self {
            Inlet::Queue(queue) => queue.send(news).await.is_ok(),
            Inlet::Straight(take) => take(news),
        }
    }

    /// Waits until it is known without telling it anything that nobody takes more.
    pub(crate) async fn closed(&self) {
        match self {
            Inlet::Queue(queue) => queue.closed().await,
            Inlet::Straight(_) => std::future::pending().await,
        }
    }
}

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
    /// Something came that nobody sends who belongs to the job, and more perhaps since this was said last: the counters know.
    Stranger {
        /// From where.
        from: SocketAddr,
        /// What it was.
        why: Refusal,
    },
}
