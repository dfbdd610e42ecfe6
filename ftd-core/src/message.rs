//! What the agents of one job tell each other. Any message may be lost, doubled, late or out of order: each says a state,
//! not a change, and is repeated until it is no longer needed.

use crate::fence::Beat;
use crate::holdings::Copies;
use crate::ids::{EpochId, Micros, NodeId, Revision, SlotId};
use crate::members::Members;
use crate::record::EpochRecord;
use crate::slots::Slots;
use crate::tree::Direction;
use crate::word::{Decree, NodeWord};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Agent → agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerMessage {
    /// Observed node → observer, each period.
    Heartbeat {
        /// Names it.
        beat: Beat,
        /// The sender's epoch.
        epoch: EpochId,
        /// The sender has not heard the receiver for ¾ of the time-out.
        unheard: bool,
    },
    /// Observer → observed node.
    Acknowledge {
        /// The heartbeat.
        beat: Beat,
        /// The epoch of both.
        epoch: EpochId,
        /// The observer's own lease does not run at this moment.
        still: bool,
    },
    /// Observer → observed node: "I do hear you", and no more.
    Heard {
        /// The epoch of both.
        epoch: EpochId,
    },
    /// The sender knows no record as new as the receiver's.
    AskForRecord {
        /// The sender's epoch.
        epoch: EpochId,
    },
    /// A record, by another way than the store.
    Record {
        /// Its revision.
        revision: Revision,
        /// The record.
        record: Arc<EpochRecord>,
    },
    /// These nodes are silent; the receiver is to write that down.
    Accuse {
        /// The record that it is about.
        epoch: EpochId,
        /// … and its revision.
        revision: Revision,
        /// The silent.
        accused: BTreeSet<NodeId>,
    },
    /// Child → parent in the tree.
    Up {
        /// The epoch whose tree it is.
        epoch: EpochId,
        /// The sender's count.
        number: u64,
        /// The subtree's word.
        word: Box<NodeWord>,
    },
    /// Parent → child in the tree.
    Down {
        /// The epoch whose tree it is.
        epoch: EpochId,
        /// The sender's count.
        number: u64,
        /// What everybody is told.
        decree: Box<Decree>,
    },
    /// An [`Up`](Self::Up) or [`Down`](Self::Down) was received.
    Received {
        /// Its epoch.
        epoch: EpochId,
        /// Which of the two.
        direction: Direction,
        /// Its number.
        number: u64,
    },
    /// The sender holds copies of ranks that are placed on the receiver's node in this epoch.
    Offer {
        /// The epoch.
        epoch: EpochId,
        /// Which.
        copies: Copies,
    },
    /// An [`Offer`](Self::Offer) of this epoch was received.
    OfferNoted {
        /// The epoch.
        epoch: EpochId,
        /// How many copies it was about ([`count`](crate::holdings::count)): offers of an epoch only grow. A node of an older release does not say it.
        copies: Option<u64>,
    },
    /// A node of this epoch needs the store and does not reach it, the sender or another one.
    StoreMissed {
        /// The epoch.
        epoch: EpochId,
        /// So long ago that was so for the last time. Grows with each node that passes it on.
        ago: Micros,
    },
    /// Before the first record: slots that are up.
    Slots {
        /// The nodes of which the sender knows that.
        nodes: Members,
        /// Their slots.
        slots: Slots,
    },
    /// The receiver has noted the slots of so many nodes.
    SlotsNoted {
        /// How many.
        nodes: u32,
    },
    /// A node that was never in the job asks to be taken in, with these slots.
    Join {
        /// The epoch that it knows; 0 before the first.
        epoch: EpochId,
        /// Its slots, all up.
        slots: BTreeSet<SlotId>,
    },
    /// A detour: to be passed on, once.
    Relay {
        /// Who said it.
        origin: NodeId,
        /// For whom.
        to: NodeId,
        /// What.
        message: Box<PeerMessage>,
    },
}
