//! Copies on their way to where they are restored.

use crate::holdings::Copies as Held;
use crate::ids::{Micros, NodeId, Rank};
use crate::inventory::Stamp;
use crate::ranks::RankSet;
use crate::record::EpochRecord;
use std::collections::{BTreeMap, BTreeSet};

/// Copies in this epoch: where they lie, and on their way.
#[derive(Debug, Clone, Default)]
pub(super) struct Copies {
    /// This node has looked at what it holds.
    pub(super) listed: bool,
    /// It had to be asked for what it had verified by then.
    pub(super) late: bool,
    /// Nothing is left to be verified.
    pub(super) read: bool,
    /// Its own ranks' copies on it.
    pub(super) here: Held,
    /// Who holds what for ranks of this node.
    pub(super) offered: BTreeMap<NodeId, Held>,
    /// What this node holds for others', until they have noted it.
    pub(super) offers: BTreeMap<NodeId, Offer>,
    /// Ranks of this node whose copy is elsewhere.
    pub(super) wanted: BTreeMap<Rank, Wanted>,
    /// This node knows what it lacks.
    pub(super) known: bool,
    /// Copies on other nodes that do not count, says the record.
    pub(super) not_fetched: BTreeSet<(Rank, Stamp)>,
}

impl Copies {
    /// An epoch begins.
    pub(super) fn of(record: &EpochRecord) -> Self {
        Copies { not_fetched: record.not_fetched(), ..Copies::default() }
    }

    /// What this node has told of is not all that there may be.
    pub(super) fn is_reading(&self) -> bool {
        self.late && !(self.read && self.offers.is_empty())
    }

    /// What others hold for ranks of this node, and can send.
    pub(super) fn elsewhere(&self) -> Held {
        let mut all = Held::new();
        for (stamp, ranks) in self.offered.values().flatten() {
            all.entry(*stamp).or_default().extend(ranks);
        }
        for (rank, stamp) in &self.not_fetched {
            if let Some(held) = all.get_mut(stamp) {
                *held = held.without(&RankSet::from_iter([*rank]));
            }
        }
        all
    }
}

#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) stamp: Stamp,
    /// Who was asked last, and has not answered.
    pub(super) asked: Option<NodeId>,
    /// Who could not send it.
    pub(super) vain: BTreeSet<NodeId>,
}

#[derive(Debug, Clone)]
pub(super) struct Offer {
    pub(super) copies: Held,
    pub(super) since: Micros,
    pub(super) told: Option<Micros>,
}
