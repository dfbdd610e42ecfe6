//! The last recovery, before the job's end.

use crate::ids::Micros;
use crate::report::Recovery;

/// A block that waits.
#[derive(Debug, Clone)]
pub(super) struct LastBlock {
    pub(super) recovery: Recovery,
    pub(super) since: Micros,
}
