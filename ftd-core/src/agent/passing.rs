//! Signals that came for the ranks of this node.

use crate::heard::Heard;
use crate::ids::{Micros, SlotId};
use crate::owed::Owed;
use std::collections::BTreeSet;

/// What this node knows of signals.
#[derive(Debug, Clone)]
pub(super) struct Passing {
    pub heard: Heard,
    pub owed: Owed,
    /// Those that came for a slot while its rank could not be given any.
    pub waiting: BTreeSet<(SlotId, i32)>,
    /// Since when the ranks of this node compute.
    pub computing: Option<Micros>,
    /// Since when a node is to be left out.
    pub silent: Option<Micros>,
}

impl Passing {
    /// None came. Ranks have so long to end, as the user wants it.
    pub fn new(grace: Micros) -> Self {
        Passing {
            heard: Heard::new(grace),
            owed: Owed::default(),
            waiting: BTreeSet::new(),
            computing: None,
            silent: None,
        }
    }
}
