//! What the agents of one job tell each other. Any message may be lost, doubled, late or out of order: each says a state,
//! not a change, and is repeated until it is no longer needed.

use crate::failure::Cause;
use crate::ids::{EpochId, GroupId, Process, SlotId, Version};
use crate::inventory::Inventory;
use std::collections::{BTreeMap, BTreeSet};

/// How far one agent is in one epoch. Sent when it changes, and again each heartbeat period while anybody may wait for it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    /// The epoch of the newest record that the sender has read; 0 before the first.
    pub epoch: EpochId,
    /// Before epoch 1: the sender's slots, once all of them are up.
    pub slots: Option<BTreeSet<SlotId>>,
    /// No process of an older epoch is left on the sender's node, and all its observers acknowledged it in this epoch.
    pub ready: bool,
    /// Its frozen checkpoints, once verified.
    pub inventory: Option<Inventory>,
    /// Per group the versions that all ranks of the sender's node have committed in this epoch, from the newest complete
    /// one on.
    pub committed: BTreeMap<GroupId, BTreeSet<Version>>,
    /// It has everybody's inventory and knows what is restored.
    pub chosen: bool,
    /// Its ranks are out of `MPI_Init`.
    pub initialized: bool,
    /// Its ranks have their state back.
    pub restored: bool,
    /// All its ranks ended cleanly.
    pub finished: bool,
    /// The job was told to end and all its ranks are gone: with this status.
    pub left: Option<i32>,
    /// True causes of its processes' deaths that became known after they were agreed.
    pub causes: BTreeMap<Process, Cause>,
}

impl PeerMessage {
    /// The sender's epoch.
    pub fn epoch(&self) -> EpochId {
        match self {
            PeerMessage::Heartbeat { epoch, .. }
            | PeerMessage::Acknowledge { epoch, .. }
            | PeerMessage::AnyDeath { epoch, .. }
            | PeerMessage::Deaths { epoch, .. } => *epoch,
            PeerMessage::Status(status) => status.epoch,
        }
    }
}

impl Status {
    /// Adds what another message of the same sender and epoch says. Within an epoch a sender only gets further, so late
    /// and doubled messages do no harm.
    pub fn merge(&mut self, other: Status) {
        self.slots = self.slots.take().or(other.slots);
        self.ready |= other.ready;
        self.inventory = self.inventory.take().or(other.inventory);
        for (group, versions) in other.committed {
            self.committed.entry(group).or_default().extend(versions);
        }
        self.chosen |= other.chosen;
        self.initialized |= other.initialized;
        self.restored |= other.restored;
        self.finished |= other.finished;
        self.left = self.left.or(other.left);
        self.causes.extend(other.causes);
    }
}

/// Agent → agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerMessage {
    /// Observed node → observer, each period.
    Heartbeat {
        /// Counts the sender's heartbeats.
        sequence: u64,
        /// The sender's epoch.
        epoch: EpochId,
    },
    /// Observer → observed node.
    Acknowledge {
        /// The heartbeat's.
        sequence: u64,
        /// The observer's epoch; a newer one makes the observed node read the record.
        epoch: EpochId,
    },
    /// How far the sender is.
    Status(Status),
    /// An end is held on the sender's node: did anybody die before it?
    AnyDeath {
        /// Names the question.
        question: u64,
        /// The epoch it is about.
        epoch: EpochId,
    },
    /// Answer to [`AnyDeath`](Self::AnyDeath), given after a look at every local process.
    Deaths {
        /// The question's.
        question: u64,
        /// The epoch it is about.
        epoch: EpochId,
        /// Dead and dying processes that the sender is going to propose, or one of the world when it proposes a slot's,
        /// a node's or one of ftd's own processes' death. Empty: it knows of no death.
        dead: Vec<Process>,
    },
}
