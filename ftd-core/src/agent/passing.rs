//! Signals that came for the ranks of this node.

use crate::heard::Heard;
use crate::ids::{Micros, SlotId};
use std::collections::BTreeSet;

/// What this node knows of signals.
#[derive(Debug, Clone, Default)]
pub(super) struct Passing {
    pub heard: Heard,
    /// Those that came for a slot while its rank could not be given any.
    pub waiting: BTreeSet<(SlotId, i32)>,
    /// Since when a node is to be left out.
    pub silent: Option<Micros>,
}
