//! How the ranks leave a job that is told to end.

use crate::ids::Micros;

/// The ranks were told to end.
#[derive(Debug, Clone)]
pub(super) struct Leaving {
    pub(super) signal: i32,
    pub(super) since: Micros,
    /// The first status that is not 0 with which a rank of this node ended by itself.
    pub(super) status: i32,
    /// A rank of this node was killed, by this signal or otherwise.
    pub(super) killed: bool,
}
