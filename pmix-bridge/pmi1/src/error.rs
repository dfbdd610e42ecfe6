//! What ranks and callers can do wrong.

use crate::{MAX_LINE, MAX_NAME, MAX_VALUE};

/// How a rank broke the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// No newline within the limit.
    #[error("a PMI line is longer than {MAX_LINE} bytes")]
    LineTooLong,
    /// The line holds bytes that are no text.
    #[error("a PMI line is not text")]
    NotText,
    /// The line holds no command, or one that PMI-1.1 does not have.
    #[error("unknown PMI command in {0:?}")]
    UnknownCommand(String),
    /// A command without one of its fields, or with one that does not parse.
    #[error("PMI command {command:?} without a valid {field:?}")]
    Field {
        /// The command.
        command: String,
        /// The field.
        field: &'static str,
    },
    /// A command at a moment when the rank may not send it.
    #[error("PMI command {command:?} {state}")]
    OutOfTurn {
        /// The command.
        command: String,
        /// The rank's state, for people.
        state: &'static str,
    },
}

/// Misuse by the caller, not by a rank.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorldError {
    /// A world needs ranks.
    #[error("a PMI world of no ranks")]
    Empty,
    /// Clients cut longer names.
    #[error("PMI key space name {0:?} is empty, longer than {MAX_NAME} bytes, or has blanks")]
    BadName(String),
    /// Clients would cut the text that maps ranks to nodes, and ranks would believe wrong things.
    #[error(
        "the placement of the ranks ({ranks}) takes {bytes} bytes as PMI_process_mapping, and clients read {MAX_VALUE}"
    )]
    MappingTooLong {
        /// Number of ranks.
        ranks: usize,
        /// Length of the text.
        bytes: usize,
    },
    /// The rank does not live on this node.
    #[error("rank {0} is not a rank of this node")]
    NotLocal(u32),
    /// Not every local rank is in.
    #[error("the PMI barrier was ended while {0} of this node's ranks had not entered it")]
    BarrierNotReady(usize),
    /// The keys of all nodes are more than there is room for.
    #[error("the ranks of all nodes put more through PMI than the {} MiB that this job's keys may take", .0 >> 20)]
    Full(usize),
    /// The rank waits for no name.
    #[error("rank {0} waits for no answer about a name")]
    NoRequest(u32),
}
