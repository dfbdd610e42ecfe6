//! What other agents say.

use super::Agent;
use crate::ids::{EpochId, NodeId};
use crate::message::PeerMessage;
use crate::tree::Direction;

impl Agent {
    pub(super) fn take_message(&mut self, from: NodeId, message: PeerMessage) {
        self.is_heard(from);
        if !self.is_member(from) {
            // Whoever knows less is told: the node that it is out, or this one that more has happened since.
            return match message {
                PeerMessage::Record { revision, record } => self.adopt(revision, record),
                PeerMessage::Heartbeat { epoch, .. } | PeerMessage::AskForRecord { epoch } if epoch < self.epoch() => {
                    self.send_record(from);
                }
                PeerMessage::Heartbeat { epoch, .. } if epoch > self.epoch() => self.hear_of(epoch, from),
                PeerMessage::Join { epoch, slots } => self.take_join(from, epoch, slots),
                _ => {}
            };
        }
        match message {
            PeerMessage::Heartbeat { .. } => self.take_heartbeat(from, &message),
            PeerMessage::Acknowledge { beat, epoch, still } => {
                let before = self.fence.confirmed();
                self.fence.acknowledged(from, beat, epoch, still, self.now);
                self.changed |= before != self.fence.confirmed();
            }
            PeerMessage::Heard { epoch } => self.fence.heard(from, epoch, self.now),
            PeerMessage::AskForRecord { epoch } => {
                if epoch < self.epoch() {
                    self.send_record(from);
                }
            }
            PeerMessage::Record { revision, record } => {
                self.fence.knows(from, record.epoch, self.now);
                self.adopt(revision, record);
            }
            PeerMessage::Accuse { epoch, revision, accused } => {
                self.fence.collect(from, &accused, epoch, revision, self.now);
            }
            PeerMessage::Up { epoch, number, word } => {
                if self.knows_epoch(from, epoch) && self.tree.take_up(from, epoch, number, *word) {
                    self.conclude_for_all();
                    self.send(from, PeerMessage::Received { epoch, direction: Direction::Up, number });
                }
            }
            PeerMessage::Down { epoch, number, decree } => {
                if self.knows_epoch(from, epoch) && self.tree.take_down(from, epoch, number, *decree) {
                    self.send(from, PeerMessage::Received { epoch, direction: Direction::Down, number });
                    self.take_causes();
                }
            }
            PeerMessage::Received { epoch, direction, number } => {
                self.tree.acknowledged(from, epoch, direction, number)
            }
            PeerMessage::Offer { epoch, copies } => self.take_offer(from, epoch, copies),
            PeerMessage::OfferNoted { epoch, copies } => self.take_offer_noted(from, epoch, copies),
            PeerMessage::StoreMissed { epoch, ago } => self.hear_missed(from, epoch, ago),
            PeerMessage::Slots { nodes, slots } => self.take_slots(from, &nodes, &slots),
            PeerMessage::SlotsNoted { nodes } => self.take_slots_noted(from, nodes),
            PeerMessage::Join { epoch, slots } => self.take_join(from, epoch, slots),
            PeerMessage::Relay { origin, to, message } => self.take_relay(from, origin, to, message),
        }
    }

    pub(super) fn take_relay(&mut self, from: NodeId, origin: NodeId, to: NodeId, message: Box<PeerMessage>) {
        let nested = matches!(*message, PeerMessage::Relay { .. });
        if to == self.me && !nested {
            self.take_message(origin, *message);
        } else if origin == from && self.is_member(to) && !nested {
            self.send(to, PeerMessage::Relay { origin, to, message });
        }
    }

    /// Whether both are in the same epoch; who is behind is helped.
    pub(super) fn knows_epoch(&mut self, from: NodeId, epoch: EpochId) -> bool {
        if epoch > self.epoch() {
            self.hear_of(epoch, from);
        } else if epoch < self.epoch() {
            self.send_record(from);
        }
        epoch == self.epoch()
    }
}
