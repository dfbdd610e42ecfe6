//! Nodes on which no rank is to be placed, although the record has them, or would.

use crate::ids::{Micros, NodeId, Share};
use std::collections::{BTreeMap, BTreeSet};

/// Of T. A node whose lease in the store was not held is not tried again for so long. Then it is: its daemon may have been late, and
/// it may be the only one that there is.
const TRIED: Share = Share::times(1);

/// Nodes whose leases in the store were not held when ranks were to be placed on them in the next epoch, and when that was.
#[derive(Debug, Clone, Default)]
pub(super) struct Unfit(BTreeMap<NodeId, Micros>);

impl Unfit {
    /// The store has said so of these.
    pub(super) fn found(&mut self, nodes: impl IntoIterator<Item = NodeId>, now: Micros) {
        self.0.extend(nodes.into_iter().map(|node| (node, now)));
    }

    /// Those that are not tried at this moment.
    pub(super) fn now(&self, timeout: Micros, now: Micros) -> BTreeSet<NodeId> {
        let waits = |(_, found): &(&NodeId, &Micros)| now.since(**found) < TRIED.of(timeout);
        self.0.iter().filter(waits).map(|(node, _)| *node).collect()
    }

    /// When one may be tried again.
    pub(super) fn deadlines(&self, timeout: Micros) -> impl Iterator<Item = Micros> + '_ {
        self.0.values().map(move |found| found.after(TRIED.of(timeout)))
    }
}
