//! What could not be placed.

use crate::failure::FailureSet;
use crate::ids::{Micros, NodeId, SlotId};
use crate::plan::Cluster;
use crate::word::Joiners;
use std::collections::BTreeSet;

/// Failures after which the ranks cannot all be placed.
#[derive(Debug, Clone)]
pub(super) struct Short {
    /// Since when that is so.
    pub since: Micros,
    /// So many ranks at most, as was said.
    pub missing: u32,
    /// Nobody is known to have failed at the moment.
    pub(super) lapsed: bool,
    pub(super) failures: FailureSet,
    pub(super) offered: Offered,
}

/// What there was to place them on, beside the record's own slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Offered {
    joiners: Joiners,
    unfit: BTreeSet<NodeId>,
    new_slots: Vec<SlotId>,
}

impl Offered {
    pub(super) fn by(cluster: &Cluster) -> Self {
        let new_slots = cluster.new_slots.keys().copied().collect();
        Offered { joiners: cluster.joiners.clone(), unfit: cluster.unfit.clone(), new_slots }
    }
}
