//! Agent ⇄ `ft-ship`, the disposable process that hosts libfabric: it moves bytes between this node's arenas and those of other nodes,
//! and knows nothing of what they mean.
//!
//! A window is a part of an arena that one other node may write to or read from, by a key that nobody can guess. What moves is named
//! by whoever asked for it; each move is answered once, by [`ToAgent::Moved`] or [`ToAgent::NotMoved`], within its patience.
//!
//! What a move has begun to write may come late, also when it has failed: into the window that it was for, until that is hidden. So a
//! window of which a move has failed is used for nothing else.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Names a memory file of the agent's; its numbers are never used again.
pub type Arena = u64;
/// Names a window; its numbers are never used again.
pub type Window = u64;
/// Names a move; its numbers are never used again.
pub type Move = u64;

/// How another node reaches a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The address of its first byte, as libfabric's calls want it.
    pub base: u64,
    /// The key of the memory region.
    pub key: u64,
    /// Its length, bytes.
    pub bytes: u64,
}

/// Which way bytes move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    /// From this node's arena into the other's window.
    Put,
    /// From the other's window into this node's arena.
    Get,
}

/// Agent → `ft-ship`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToShip {
    /// First, once: open an endpoint. Answered by [`ToAgent::Ready`] or [`ToAgent::Failed`].
    Open {
        /// libfabric's name of the provider; nothing: the best that there is.
        provider: Option<String>,
        /// This node in the network that it shares with the others.
        address: IpAddr,
        /// Where no provider is named: those among which the best is, best first, with commas between their short names (`ft_sys::fabric`).
        #[serde(default)]
        among: Option<String>,
    },
    /// Map this memory file, whose descriptor travels with the message, up to this length. Again, when it has grown.
    Map {
        /// Its name.
        arena: Arena,
        /// Its length, bytes.
        bytes: u64,
    },
    /// The memory file is not needed any more, nor are its windows.
    Unmap {
        /// Which.
        arena: Arena,
    },
    /// Let another node at a part of an arena. Answered by [`ToAgent::Exposed`] or [`ToAgent::NotExposed`].
    Expose {
        /// Its name.
        window: Window,
        /// Which.
        arena: Arena,
        /// Where it begins, bytes.
        offset: u64,
        /// Its length, bytes.
        bytes: u64,
        /// The other may write; else it may only read.
        writable: bool,
    },
    /// Let nobody at it any more. Answered by [`ToAgent::Hidden`]: from then on nothing of it changes.
    Hide {
        /// Which.
        window: Window,
    },
    /// The same, where whoever was let at it has said that all of its bytes have arrived: nobody is late. Answered as [`Self::Hide`] is.
    Finish {
        /// Which.
        window: Window,
    },
    /// Where another node's `ft-ship` is: what its [`ToAgent::Ready`] said.
    Peer {
        /// Which node.
        node: u32,
        /// Its address.
        address: Vec<u8>,
    },
    /// That node is gone: what moves to or from it has failed.
    Gone {
        /// Which node.
        node: u32,
    },
    /// Move these bytes.
    Move {
        /// Its name.
        id: Move,
        /// Which way.
        direction: Direction,
        /// The arena of this node.
        arena: Arena,
        /// Where in it, bytes.
        offset: u64,
        /// How many: all of the other's window, or its beginning.
        bytes: u64,
        /// The other node.
        node: u32,
        /// Its window.
        target: Target,
        /// It has failed when nothing of it has moved for so long, milliseconds.
        patience_ms: u64,
    },
    /// That move is not needed any more; it is answered all the same.
    Cancel {
        /// Which.
        id: Move,
    },
    /// No more than so many bytes per second altogether; 0: as fast as it goes.
    Rate {
        /// Bytes per second.
        bytes: u64,
    },
    /// Is it there? Answered at once by [`ToAgent::Here`].
    Ask,
}

/// `ft-ship` → agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToAgent {
    /// The endpoint is open.
    Ready {
        /// What it runs on: the provider's name.
        provider: String,
        /// For the other nodes' [`ToShip::Peer`].
        address: Vec<u8>,
        /// Of those among which it is: the better ones that cannot be opened, and why.
        #[serde(default)]
        not: Option<String>,
    },
    /// Nothing can be moved from or to this node; `ft-ship` exits.
    Failed {
        /// One sentence.
        reason: String,
    },
    /// The window is open.
    Exposed {
        /// Which.
        window: Window,
        /// For the other node.
        target: Target,
    },
    /// There is no such window.
    NotExposed {
        /// Which.
        window: Window,
        /// One sentence.
        reason: String,
    },
    /// The window is closed, and nothing is written there any more.
    Hidden {
        /// Which.
        window: Window,
    },
    /// All bytes are where they should be, and visible there.
    Moved {
        /// Which.
        id: Move,
    },
    /// They are not.
    NotMoved {
        /// Which.
        id: Move,
        /// One sentence.
        reason: String,
    },
    /// So much of it has moved; said a few times a second at the most.
    Progress {
        /// Which.
        id: Move,
        /// Bytes so far.
        bytes: u64,
    },
    /// Answer to [`ToShip::Ask`].
    Here,
}
