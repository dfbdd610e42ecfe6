//! Copies that lie elsewhere are brought to the nodes of their ranks.
//!
//! Whoever holds one offers it to the rank's node, until that has noted it. That node takes one offer after the other. When all
//! have been made, says the tree, and none is left, the copy is gone: that is a failure of its own, which the record remembers,
//! so that the next epoch chooses a version that can be had.

use super::copies::{Offer, Wanted};
use super::{Agent, Effect};
use crate::breach::Breach;
use crate::failure::{Cause, Subject};
use crate::ids::{EpochId, Micros, NodeId, Process, Rank};
use crate::inventory::{Choice, Groups, Stamp};
use crate::message::PeerMessage;
use crate::ranks::RankSet;
use crate::word::Lies;
use std::collections::BTreeSet;

/// What a rank's group restores.
fn stamp_of(choice: &Choice, groups: &Groups, rank: Rank) -> Option<Stamp> {
    choice.get(&groups.of(rank)).copied().flatten()
}

impl Agent {
    /// It is known what is restored: what this node lacks for that, and what others lack that it holds.
    pub(super) fn begin_copies(&mut self, choice: &Choice, away: &RankSet) {
        let Some(record) = self.record.clone() else { return };
        let groups = &self.config.groups;
        for (rank, _) in record.ranks_on(self.me).into_iter().filter(|(rank, _)| away.contains(*rank)) {
            if let Some(stamp) = stamp_of(choice, groups, rank) {
                self.run.copies.wanted.insert(rank, Wanted { stamp, asked: None, vain: BTreeSet::new() });
            }
        }
        let stamps: BTreeSet<Stamp> = choice.values().copied().flatten().collect();
        for stamp in stamps {
            let held = self.run.holdings.as_ref().map(|held| held.held(stamp, Lies::Elsewhere)).unwrap_or_default();
            let lacks = held.common(away);
            for rank in lacks.iter().filter(|rank| stamp_of(choice, groups, *rank) == Some(stamp)) {
                match record.node_of(rank) {
                    Some(node) if node == self.me => self.run.copies.offered.entry(node).or_default().insert(rank),
                    Some(node) => {
                        let offer = Offer { ranks: RankSet::new(), since: self.now, told: None };
                        self.run.copies.offers.entry(node).or_insert(offer).ranks.insert(rank);
                    }
                    None => {}
                }
            }
        }
        self.run.copies.known = true;
        self.changed = true;
    }

    /// Everybody to whom this node has something to offer knows that.
    pub(super) fn has_offered(&self) -> bool {
        self.run.copies.known && self.run.copies.offers.is_empty()
    }

    /// Every copy for this node's ranks is here.
    pub(super) fn has_copies(&self) -> bool {
        self.run.copies.known && self.run.copies.wanted.is_empty()
    }

    pub(super) fn take_offer(&mut self, from: NodeId, epoch: EpochId, ranks: RankSet) {
        if self.knows_epoch(from, epoch) {
            // It has not heard that this was noted: perhaps the straight way back is cut.
            let again = self.run.copies.offered.insert(from, ranks).is_some();
            self.send_by(from, again, PeerMessage::OfferNoted { epoch });
        }
    }

    pub(super) fn take_offer_noted(&mut self, from: NodeId, epoch: EpochId) {
        if epoch == self.epoch() {
            self.changed |= self.run.copies.offers.remove(&from).is_some();
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
        let holds = |(node, ranks): &(&NodeId, &RankSet)| ranks.contains(rank) && !wanted.vain.contains(node);
        self.run.copies.offered.iter().find(holds).map(|(node, _)| *node)
    }

    fn make_offers(&mut self) {
        let Some(terms) = self.record.as_ref().map(|record| record.terms) else { return };
        let (epoch, now) = (self.epoch(), self.now);
        let mut due = Vec::new();
        for (to, offer) in &mut self.run.copies.offers {
            if offer.told.is_none_or(|told| now.since(told) >= terms.period) {
                offer.told = Some(now);
                due.push((*to, now.since(offer.since) >= terms.timeout, offer.ranks.clone()));
            }
        }
        for (to, detour, ranks) in due {
            self.send_by(to, detour, PeerMessage::Offer { epoch, ranks });
        }
    }

    /// When something is to be offered again.
    pub(super) fn copies_deadline(&self) -> Option<Micros> {
        let period = self.record.as_ref()?.terms.period;
        self.run.copies.offers.values().filter_map(|offer| offer.told).min().map(|told| told.after(period))
    }
}
