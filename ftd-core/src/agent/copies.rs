//! Copies on their way to where they are restored.

use crate::ids::{Micros, NodeId, Rank};
use crate::inventory::Stamp;
use crate::ranks::RankSet;
use crate::record::EpochRecord;
use std::collections::{BTreeMap, BTreeSet};

/// Copies on their way in this epoch.
#[derive(Debug, Clone, Default)]
pub(super) struct Copies {
    /// Ranks of this node whose copy is elsewhere.
    pub(super) wanted: BTreeMap<Rank, Wanted>,
    /// Who holds what for ranks of this node.
    pub(super) offered: BTreeMap<NodeId, RankSet>,
    /// What this node holds for others', until they have noted it.
    pub(super) offers: BTreeMap<NodeId, Offer>,
    /// This node knows what it has to offer.
    pub(super) known: bool,
    /// Copies on other nodes that do not count, says the record.
    pub not_fetched: BTreeSet<(Rank, Stamp)>,
}

impl Copies {
    /// An epoch begins.
    pub fn of(record: &EpochRecord) -> Self {
        Copies { not_fetched: record.not_fetched(), ..Copies::default() }
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
    pub(super) ranks: RankSet,
    pub(super) since: Micros,
    pub(super) told: Option<Micros>,
}
