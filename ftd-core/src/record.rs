//! The agreed state of a job. One key in the store holds one [`EpochRecord`]; everything else is derived.

use crate::failure::FailureSet;
use crate::ids::{EpochId, GroupId, Micros, NodeId, Process, Rank, SlotId, Version, WorldId};
use crate::placement::Placement;
use crate::policy::Mode;
use std::collections::BTreeMap;
use std::fmt;

/// What a slot is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SlotState {
    /// A rank is placed on it.
    Active,
    /// It stands by.
    Parked,
    /// It is gone and never used again.
    Lost,
}

/// A slot, where it is, and its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotEntry {
    /// The slot.
    pub slot: SlotId,
    /// Its node.
    pub node: NodeId,
    /// Its state.
    pub state: SlotState,
}

/// A node of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeEntry {
    /// The node.
    pub node: NodeId,
    /// Whether it is in the job; a node that was left out never comes back.
    pub member: bool,
    /// How often the node vouched for itself: it was cut off from an observer, found itself still in, and said so by a
    /// write of its own. An observer that sees the number grow starts its time-out anew, so that no one can declare the
    /// node dead between its look at the record and its ranks' going on. The only part of a record that changes
    /// without a new epoch.
    pub vouched: u64,
}

/// How the epoch's world is brought up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Strategy {
    /// Kill, fork, exec. Always possible.
    #[default]
    Fresh,
    /// The world's processes wait before `main`.
    StandbyExec,
    /// The world's processes wait behind `MPI_Init`.
    StandbyInit,
}

/// What is counted when something dies again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Suspect {
    /// The program: deaths of its processes by themselves, whichever ranks they were.
    Program,
    /// A rank's process, which something outside ends.
    Rank(Rank),
    /// The shepherd of the slot that this rank was on.
    ShepherdOf(Rank),
    /// The PMIx server of this node.
    ServerOf(NodeId),
}

impl fmt::Display for Suspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Suspect::Program => f.write_str("the program"),
            Suspect::Rank(rank) => rank.fmt(f),
            Suspect::ShepherdOf(rank) => write!(f, "the shepherd of {rank}"),
            Suspect::ServerOf(node) => write!(f, "the PMIx server (ft-pmix) of {node}"),
        }
    }
}

impl Suspect {
    /// Whether its deaths come from outside, so that long enough computing is progress after them. What the program does
    /// to itself it may do every hour, and would be started again for ever.
    pub fn is_from_outside(self) -> bool {
        matches!(self, Suspect::Rank(_) | Suspect::ShepherdOf(_))
    }
}

/// Deaths of one suspect in a row, with no progress of the job between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Streak {
    /// Who.
    pub suspect: Suspect,
    /// How often.
    pub deaths: u32,
}

/// One line of a job's past.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HistoryEntry {
    /// The epoch that ended.
    pub epoch: EpochId,
    /// What ended it.
    pub failures: FailureSet,
    /// When, on the clock of [`EpochRecord::began`].
    pub at: Micros,
    /// What its ranks had taken back when it began, per group; empty when they began from the beginning.
    pub restored: BTreeMap<GroupId, Version>,
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Outcome {
    /// Exit status of the job.
    pub status: i32,
    /// Why, when it is not a clean end.
    pub reason: Option<String>,
}

impl Outcome {
    /// Every rank ended well.
    pub fn clean() -> Outcome {
        Outcome { status: 0, reason: None }
    }

    /// The job has failed. Scripts go by the status alone: that of a failure is never 0.
    pub fn failed(status: i32, reason: impl Into<String>) -> Outcome {
        debug_assert_ne!(status, 0, "a failure has the status of a success");
        Outcome { status: if status == 0 { 1 } else { status }, reason: Some(reason.into()) }
    }

    /// The job was told to end: ranks that ended by themselves may all have done so with 0.
    pub fn cancelled(status: i32, reason: impl Into<String>) -> Outcome {
        Outcome { status, reason: Some(reason.into()) }
    }
}

/// The agreed state of a job in one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EpochRecord {
    /// Its number; each number has exactly one record.
    pub epoch: EpochId,
    /// When the job's first record was made, on the clock of the agent that made it.
    pub began: Micros,
    /// The job's mode.
    pub mode: Mode,
    /// The world that is released (with [`outcome`](Self::outcome): the last one that was).
    pub world: WorldId,
    /// Number of ranks.
    pub world_size: u32,
    /// Rank → slot.
    pub placement: Placement,
    /// Every slot the job ever had, by id.
    pub slots: Vec<SlotEntry>,
    /// Every node the job ever had, by id.
    pub nodes: Vec<NodeEntry>,
    /// What ended the epoch before; empty in epoch 1.
    pub failures: FailureSet,
    /// How the world is brought up.
    pub strategy: Strategy,
    /// Deaths in a row without progress, sorted.
    pub streaks: Vec<Streak>,
    /// The past, oldest first, bounded by the policy.
    pub history: Vec<HistoryEntry>,
    /// Set in a job's last record.
    pub outcome: Option<Outcome>,
}

/// A record that contradicts itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Not every rank has a slot.
    #[error("{epoch} places {placed} of {world_size} ranks")]
    Size {
        /// The record.
        epoch: EpochId,
        /// Ranks placed.
        placed: u32,
        /// Ranks there are.
        world_size: u32,
    },
    /// A rank stands on a slot that is not active, not known, or on a node that is out.
    #[error("{epoch} places {rank} on {slot}, which is {what}")]
    Slot {
        /// The record.
        epoch: EpochId,
        /// The rank.
        rank: Rank,
        /// Its slot.
        slot: SlotId,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A slot twice, or slots or nodes out of order.
    #[error("{epoch} lists {0} twice or out of order", epoch = .1)]
    Order(&'static str, EpochId),
}

impl EpochRecord {
    /// The entry of `slot`.
    pub fn slot(&self, slot: SlotId) -> Option<&SlotEntry> {
        self.slots.binary_search_by_key(&slot, |entry| entry.slot).ok().map(|at| &self.slots[at])
    }

    /// The node that `rank` is placed on.
    pub fn node_of(&self, rank: Rank) -> Option<NodeId> {
        Some(self.slot(self.placement.slot(rank)?)?.node)
    }

    /// Whether `node` is in the job.
    pub fn is_member(&self, node: NodeId) -> bool {
        self.nodes.iter().any(|entry| entry.node == node && entry.member)
    }

    /// The nodes that are in the job, by id.
    pub fn members(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.iter().filter(|entry| entry.member).map(|entry| entry.node)
    }

    /// How often `node` vouched for itself.
    pub fn vouched(&self, node: NodeId) -> u64 {
        self.nodes.iter().find(|entry| entry.node == node).map_or(0, |entry| entry.vouched)
    }

    /// The ranks on `node` with their slots, in rank order.
    pub fn ranks_on(&self, node: NodeId) -> impl Iterator<Item = (Rank, SlotId)> + '_ {
        self.placement.iter().filter(move |(_, slot)| self.slot(*slot).is_some_and(|entry| entry.node == node))
    }

    /// The processes of the released world with their slots.
    pub fn processes(&self) -> impl Iterator<Item = (Process, SlotId)> + '_ {
        self.placement.iter().map(|(rank, slot)| (Process::primary(self.world, rank), slot))
    }

    /// Whether this process is one of the released world.
    pub fn released(&self, process: Process) -> bool {
        self.outcome.is_none() && process.world == self.world && process.rank.0 < self.world_size
    }

    /// Checks that the record does not contradict itself. What [`plan`](crate::plan()) returns always passes.
    ///
    /// # Errors
    /// The first contradiction found.
    pub fn check(&self) -> Result<(), RecordError> {
        let epoch = self.epoch;
        if !self.slots.windows(2).all(|pair| pair[0].slot < pair[1].slot) {
            return Err(RecordError::Order("a slot", epoch));
        }
        if !self.nodes.windows(2).all(|pair| pair[0].node < pair[1].node) {
            return Err(RecordError::Order("a node", epoch));
        }
        if self.outcome.is_some() {
            return Ok(());
        }
        if self.placement.len() != self.world_size {
            return Err(RecordError::Size { epoch, placed: self.placement.len(), world_size: self.world_size });
        }
        let mut used = std::collections::BTreeSet::new();
        for (rank, slot) in self.placement.iter() {
            let what = match self.slot(slot) {
                None => "unknown",
                Some(entry) if entry.state == SlotState::Lost => "lost",
                Some(entry) if entry.state == SlotState::Parked => "parked",
                Some(entry) if !self.is_member(entry.node) => "on a node that is out of the job",
                Some(_) if !used.insert(slot) => "taken by another rank",
                Some(_) => continue,
            };
            return Err(RecordError::Slot { epoch, rank, slot, what });
        }
        Ok(())
    }
}
