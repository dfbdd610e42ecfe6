//! What could not be placed.

use crate::failure::FailureSet;
use crate::ids::Micros;
use crate::plan::Cluster;

/// Failures after which the ranks cannot all be placed.
#[derive(Debug, Clone)]
pub(super) struct Short {
    /// Since when that is so.
    pub since: Micros,
    pub(super) failures: FailureSet,
    /// How many nodes have asked to come in, were found unfit, and how many slots are new.
    pub(super) offered: [usize; 3],
}

impl Short {
    pub(super) fn offered(cluster: &Cluster) -> [usize; 3] {
        [cluster.joiners.len(), cluster.unfit.len(), cluster.new_slots.len()]
    }
}
