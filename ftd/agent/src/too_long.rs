//! What is said where ranks tell each other more at a time than a message may have.

use ft_wire::Rank;
use ftd_core::NodeId;
use std::fmt::Display;

/// Whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// One rank's.
    Rank(Rank),
    /// What the ranks of a node have together.
    Node(NodeId),
    /// What all have together.
    All,
}

impl Whose {
    /// They tell too much. `error`: how long it is.
    pub fn tell_too_much(self, way: &str, error: impl Display) -> String {
        let what = match self {
            Whose::Rank(rank) => format!("rank {rank}: what it tells others"),
            Whose::Node(node) => format!("{node}: what its ranks tell others"),
            Whose::All => "what the ranks tell each other".into(),
        };
        format!("{what} through {way} is too long: {error}")
    }

    /// They are to hear too much.
    pub fn hear_too_much(self, way: &str, error: impl Display) -> String {
        let what = match self {
            Whose::Node(node) => format!("{node}: what its ranks are told"),
            // Nothing is for one rank alone.
            Whose::Rank(_) | Whose::All => "what the ranks are told".into(),
        };
        format!("{what} through {way} is too long: {error}")
    }
}
