//! Failures that are known and not yet agreed.

use crate::failure::FailureSet;
use crate::ids::Micros;

/// Failures that are known and not yet agreed. Only `failures` changes it.
#[derive(Debug, Clone, Default)]
pub(super) struct Batch {
    pub failures: FailureSet,
    /// When the first of them was noticed here: what belongs to it is waited for from then on.
    pub since: Micros,
    /// When it was noticed at all, perhaps by the agent before this one.
    pub noticed: Micros,
    /// This node's processes have been looked at since.
    pub surveyed: bool,
}
