//! How this node asks to be taken in, and who has asked it.

use crate::ids::Micros;
use crate::word::Joiners;

/// How this node asks to be taken in, and who has asked it.
#[derive(Debug, Clone, Default)]
pub(super) struct Joining {
    /// When it asked last.
    pub(super) asked: Option<Micros>,
    /// When it asked whether they are there.
    pub(super) called: Option<Micros>,
    /// When it asked first of those times that nobody has answered.
    pub(super) unanswered: Option<Micros>,
    /// So many of the job's nodes have been asked before the first record.
    pub(super) hosts: u32,
    /// Nodes that have asked this one.
    pub(super) joiners: Joiners,
}
