//! Ends that are held, and looks at this node's processes.

use crate::failure::OwnEnd;
use crate::ids::Process;

/// An end that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hold {
    /// The process.
    pub process: Process,
    /// How it ended.
    pub end: OwnEnd,
    /// It is decided after this survey.
    pub survey: u64,
}

/// Looks at this node's processes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Looks {
    /// The survey of the epoch that is being made.
    pub asked: u64,
    /// The last one that was.
    pub answered: u64,
    /// Another look is to be taken.
    pub wanted: bool,
    /// So many are under way.
    pub under_way: u32,
}
