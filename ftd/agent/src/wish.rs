//! What the rooms of this node's ranks want of other nodes.

use ft_wire::Rank;
use ft_wire::between::{Asker, Leaver, NameAnswer, NameRequest, Protocol};
use ft_wire::copies::CopyWord;
use ft_wire::pmix::{Proc, Raised};
use ftd_core::NodeId;

/// What is wanted.
#[derive(Debug)]
pub enum Wish {
    /// All of these ranks that are here are in a fence.
    Fence {
        /// Of what.
        protocol: Protocol,
        /// Whose.
        ranks: Vec<(Rank, Rank)>,
        /// For the answer.
        token: u64,
        /// What they give.
        data: Vec<u8>,
    },
    /// What a rank elsewhere has put through PMIx.
    Modex {
        /// For the answer.
        token: u64,
        /// Which.
        proc: Proc,
    },
    /// The answer to one who asked this.
    ModexData {
        /// Who.
        to: NodeId,
        /// As it was asked.
        token: u64,
        /// Whose it is, if that is known.
        rank: Option<Rank>,
        /// PMIx status.
        status: i32,
        /// The data.
        data: Vec<u8>,
    },
    /// Something of published names: the node that keeps them does it, which may be this one.
    Name {
        /// For the answer.
        asker: Asker,
        /// What.
        request: NameRequest,
    },
    /// The answer to a node that has asked something of published names.
    Named {
        /// Who.
        to: NodeId,
        /// As it was asked.
        asker: Asker,
        /// The answer.
        answer: NameAnswer,
    },
    /// A rank has raised an event: those of other nodes are to hear of it.
    Event(Raised),
    /// The others are to know that a rank takes no more checkpoints.
    Left(Leaver),
    /// Something of a copy of a checkpoint.
    Copy {
        /// For whom.
        to: NodeId,
        /// What.
        word: CopyWord,
    },
}
