//! How this node asks to be taken in.

use crate::ids::Micros;

/// How this node asks to be taken in.
#[derive(Debug, Clone, Default)]
pub(super) struct Joining {
    /// When it asked last.
    pub(super) asked: Option<Micros>,
    /// So many of the job's nodes have been asked before the first record.
    pub(super) hosts: u32,
}
