//! Copies that lie elsewhere are brought to the nodes of their ranks.
//!
//! Whoever holds some offers them to the rank's node, until that has noted it. When all have been offered, says the tree, that node
//! knows of which versions its ranks have copies, and what is restored follows from what all nodes say of that. It takes one offer of
//! what it lacks after the other. When none is left the copy is gone: that is a failure of its own, which the record remembers, so
//! that the next epoch chooses a version that can be had.

use super::copies::{Offer, Wanted};
use super::{Agent, Effect};
use crate::breach::Breach;
use crate::failure::{Cause, Subject};
use crate::holdings::{Copies, Holdings, count};
use crate::ids::{EpochId, Micros, NodeId, Process, Rank, WorldId};
use crate::inventory::{Choice, Groups, Inventory, Level, Stamp};
use crate::message::PeerMessage;
use std::collections::BTreeSet;

/// Nothing ran before it.
pub(super) const FIRST: WorldId = WorldId(1);

/// What a rank's group restores.
fn stamp_of(choice: &Choice, groups: &Groups, rank: Rank) -> Option<Stamp> {
    choice.get(&groups.of(rank)).copied().flatten()
}

impl Agent {
    /// What this node holds is known: what of it others are to know.
    pub(super) fn list_copies(&mut self, inventory: &Inventory) {
        let Some(record) = self.record.clone() else { return };
        let (me, now) = (self.me, self.now);
        let copies = &mut self.run.copies;
        for holding in &inventory.holdings {
            let Some(home) = record.node_of(holding.owner) else { continue };
            let held = match (home == me, holding.level) {
                (true, Level::Stable) => copies.offered.entry(me).or_default(),
                (true, _) => &mut copies.here,
                (false, _) => {
                    let offer = || Offer { copies: Copies::new(), since: now, told: None };
                    &mut copies.offers.entry(home).or_insert_with(offer).copies
                }
            };
            held.entry(holding.stamp).or_default().insert(holding.owner);
        }
        copies.listed = true;
        self.changed = true;
    }

    /// All copies there are have been told of: of which versions the ranks of this node have some.
    pub(super) fn guard_holdings(&mut self) {
        let copies = &self.run.copies;
        let reading = self.tree.decree().reading;
        if !copies.listed || self.run.holdings.is_some() && (reading || !self.run.early) {
            return;
        }
        // Before the first world there is nothing to be told of.
        if self.tree.decree().offered || self.world() == FIRST {
            self.run.early = reading;
            self.run.holdings = Some(self.holdings(&copies.elsewhere()));
            self.changed = true;
        }
    }

    /// What the ranks of this node have, when this is what lies elsewhere.
    pub(super) fn holdings(&self, elsewhere: &Copies) -> Holdings {
        let placed = self.record.iter().flat_map(|record| record.ranks_on(self.me)).map(|(rank, _)| rank);
        let one = self.config.breach == Breach::IncompleteChosen;
        let ranks = placed.filter(|rank| !one || *rank == Rank(0));
        Holdings::of_node(ranks, &self.config.groups, &self.run.copies.here, elsewhere)
    }

    /// It is known what is restored. Returns the ranks of this node that lack it.
    pub(super) fn begin_copies(&mut self, choice: &Choice) -> Vec<Rank> {
        let Some(record) = self.record.clone() else { return Vec::new() };
        for (rank, _) in record.ranks_on(self.me) {
            let Some(stamp) = stamp_of(choice, &self.config.groups, rank) else { continue };
            if !self.run.copies.here.get(&stamp).is_some_and(|ranks| ranks.contains(rank)) {
                self.run.copies.wanted.insert(rank, Wanted { stamp, asked: None, vain: BTreeSet::new() });
            }
        }
        self.run.copies.known = true;
        self.changed = true;
        self.run.copies.wanted.keys().copied().collect()
    }

    /// Everybody to whom this node has something to offer knows that.
    pub(super) fn has_offered(&self) -> bool {
        // (What is found late is offered, too, and changes nothing of this.)
        self.run.copies.listed && (self.run.copies.offers.is_empty() || self.tree.own().offered)
    }

    /// Every copy for this node's ranks is here.
    pub(super) fn has_copies(&self) -> bool {
        self.run.copies.known && self.run.copies.wanted.is_empty()
    }

    pub(super) fn take_offer(&mut self, from: NodeId, epoch: EpochId, copies: Copies) {
        if self.knows_epoch(from, epoch) {
            // It has not heard that this was noted: perhaps the straight way back is cut.
            let again = self.run.copies.offered.get(&from).is_some_and(|noted| count(noted) >= count(&copies));
            let noted = count(&copies);
            // One of before, which knows of less, may come late.
            if !again {
                self.run.copies.offered.insert(from, copies);
            }
            self.send_by(from, again, PeerMessage::OfferNoted { epoch, copies: Some(noted) });
        }
    }

    pub(super) fn take_offer_noted(&mut self, from: NodeId, epoch: EpochId, copies: Option<u64>) {
        if epoch != self.epoch() {
            return;
        }
        // What was noted may be an offer of before the last checksums.
        let is_all = |offer: &Offer| copies.is_none_or(|noted| noted >= count(&offer.copies));
        if self.run.copies.offers.get(&from).is_some_and(is_all) {
            self.run.copies.offers.remove(&from);
            self.changed = true;
        }
    }

    pub(super) fn take_fetched(&mut self, epoch: EpochId, rank: Rank) {
        if epoch == self.epoch() {
            self.run.copies.wanted.remove(&rank);
        }
    }

    pub(super) fn take_not_fetched(&mut self, epoch: EpochId, rank: Rank, from: NodeId) {
        let keeps = epoch == self.epoch() && self.config.breach != Breach::NotFetchedIgnored;
        if let Some(wanted) = self.run.copies.wanted.get_mut(&rank).filter(|_| keeps) {
            wanted.asked = None;
            wanted.vain.insert(from);
        }
    }

    /// Offers what this node holds; asks the next one for what it lacks; knows when nobody is left.
    pub(super) fn guard_copies(&mut self) {
        if self.run.copies.wanted.is_empty() && self.run.copies.offers.is_empty() {
            return;
        }
        self.make_offers();
        let (epoch, world) = (self.epoch(), self.world());
        let mut gone = Vec::new();
        let waiting: Vec<Rank> =
            self.run.copies.wanted.iter().filter(|(_, wanted)| wanted.asked.is_none()).map(|(rank, _)| *rank).collect();
        for rank in waiting {
            let source = self.source_of(rank);
            let Some(wanted) = self.run.copies.wanted.get_mut(&rank) else { continue };
            let stamp = wanted.stamp;
            match source {
                Some(from) => {
                    wanted.asked = Some(from);
                    self.emit(Effect::Fetch { epoch, rank, stamp, from });
                }
                None if self.tree.decree().offered && self.batch.is_none() => gone.push((rank, stamp)),
                None => {}
            }
        }
        for (rank, stamp) in gone {
            self.fail(Subject::Process(Process::primary(world, rank)), Cause::NotFetched(stamp));
        }
    }

    /// Who is to be asked next for a rank's copy.
    fn source_of(&self, rank: Rank) -> Option<NodeId> {
        let wanted = self.run.copies.wanted.get(&rank)?;
        if self.config.breach == Breach::NeverOffered {
            return self.record.iter().flat_map(|record| record.members()).find(|node| !wanted.vain.contains(node));
        }
        let of_rank = |held: &Copies| held.get(&wanted.stamp).is_some_and(|ranks| ranks.contains(rank));
        let holds = |(node, held): &(&NodeId, &Copies)| of_rank(held) && !wanted.vain.contains(node);
        self.run.copies.offered.iter().find(holds).map(|(node, _)| *node)
    }

    fn make_offers(&mut self) {
        let Some(terms) = self.record.as_ref().map(|record| record.terms) else { return };
        let (epoch, now) = (self.epoch(), self.now);
        let mut due = Vec::new();
        for (to, offer) in &mut self.run.copies.offers {
            if offer.told.is_none_or(|told| now.since(told) >= terms.period) {
                offer.told = Some(now);
                due.push((*to, now.since(offer.since) >= terms.timeout, offer.copies.clone()));
            }
        }
        for (to, detour, copies) in due {
            self.send_by(to, detour, PeerMessage::Offer { epoch, copies });
        }
    }

    /// When something is to be offered again.
    pub(super) fn copies_deadline(&self) -> Option<Micros> {
        let period = self.record.as_ref()?.terms.period;
        self.run.copies.offers.values().filter_map(|offer| offer.told).min().map(|told| told.after(period))
    }
}
