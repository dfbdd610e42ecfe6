//! Parcels: what an agent has to say to another one of one world, whatever its size. They go in pieces over the connection of
//! the two, or, where there is none to be had, through others.

use ftd_core::NodeId;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Bytes of a piece, at the most.
pub const PIECE: usize = 1 << 20;
/// Bytes of the longest parcel.
pub const MOST: usize = 65 << 20;

/// Bytes of a parcel. Nothing is copied before they are written: a parcel is long, and goes to several nodes.
#[derive(Clone)]
pub struct Chunk {
    whole: Arc<Vec<u8>>,
    part: Range<usize>,
}

impl Chunk {
    /// The `number`-th piece of a parcel.
    pub fn of(whole: &Arc<Vec<u8>>, number: u32) -> Chunk {
        let from = whole.len().min(number as usize * PIECE);
        Chunk { whole: whole.clone(), part: from..whole.len().min(from + PIECE) }
    }
}

impl From<Vec<u8>> for Chunk {
    fn from(bytes: Vec<u8>) -> Chunk {
        Chunk { part: 0..bytes.len(), whole: Arc::new(bytes) }
    }
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.whole[self.part.clone()]
    }
}

impl PartialEq for Chunk {
    fn eq(&self, other: &Chunk) -> bool {
        **self == **other
    }
}

impl Eq for Chunk {}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

/// A part of a parcel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The sending agent's.
    pub incarnation: u64,
    /// What it is about.
    pub world: u64,
    /// The parcel's: grows with each of this agent to this node.
    pub number: u64,
    /// Which part.
    pub piece: u32,
    /// Of how many.
    pub pieces: u32,
    /// Its bytes.
    pub data: Chunk,
}

/// A piece has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Noted {
    /// As the piece has it.
    pub incarnation: u64,
    /// As the piece has it.
    pub world: u64,
    /// As the piece has it.
    pub number: u64,
    /// As the piece has it.
    pub piece: u32,
}

/// How something goes to a node, or has come from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// Over the connection with it.
    Straight,
    /// Passed on by this node.
    Through(NodeId),
}

/// What is to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sending {
    /// A part of a parcel.
    Piece(Piece),
    /// The word that one came.
    Noted(Noted),
}
