//! The agreed state of a job. One key in the store holds one [`EpochRecord`]; everything else is derived.

use crate::count::counted;
use crate::failure::{Cause, FailureSet, Subject};
use crate::ids::{EpochId, GroupId, Micros, NodeId, Process, Rank, SlotId, Version, WorldId};
use crate::inventory::Stamp;
use crate::members::Members;
use crate::placement::Placement;
use crate::policy::{Mode, Terms};
use crate::slots::{SlotEntry, SlotState, Slots};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

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
    /// The job's nodes: one is lost, again and again, before the world of the epoch runs.
    Nodes,
}

impl fmt::Display for Suspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Suspect::Program => f.write_str("the program"),
            Suspect::Rank(rank) => rank.fmt(f),
            Suspect::ShepherdOf(rank) => write!(f, "the shepherd of {rank}"),
            Suspect::ServerOf(node) => write!(f, "the PMIx server (ft-pmix) of {node}"),
            Suspect::Nodes => f.write_str("the job's nodes"),
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
    /// What all agents go by.
    pub terms: Terms,
    /// The world that is released (with [`outcome`](Self::outcome): the last one that was).
    pub world: WorldId,
    /// Number of ranks.
    pub world_size: u32,
    /// Rank → slot.
    pub placement: Placement,
    /// Every slot the job ever had.
    pub slots: Slots,
    /// Every node the job ever had.
    pub nodes: Members,
    /// The members that came into the job with this epoch.
    pub joined: BTreeSet<NodeId>,
    /// What ended the epoch before; empty in epoch 1.
    pub failures: FailureSet,
    /// So long what ended the epoch before had been known when this was proposed. Nodes that learn of it by this record have no other way to know: their clocks are
    /// not their author's. (What the write itself took is not in it.)
    pub agreed_after: Micros,
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
    #[error("{epoch} places {placed} of {}", counted(*world_size, "rank"))]
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
}

impl EpochRecord {
    /// The entry of `slot`.
    pub fn slot(&self, slot: SlotId) -> Option<SlotEntry> {
        self.slots.get(slot)
    }

    /// The node that `rank` is placed on.
    pub fn node_of(&self, rank: Rank) -> Option<NodeId> {
        self.slots.node(self.placement.slot(rank)?)
    }

    /// Whether `node` is in the job.
    pub fn is_member(&self, node: NodeId) -> bool {
        self.nodes.contains(node)
    }

    /// The nodes that are in the job, by id.
    pub fn members(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.iter()
    }

    /// The ranks on `node` with their slots, in rank order.
    pub fn ranks_on(&self, node: NodeId) -> Vec<(Rank, SlotId)> {
        let placed = self.slots.of_node(node).filter_map(|entry| Some((self.placement.rank(entry.slot)?, entry.slot)));
        let mut ranks: Vec<_> = placed.collect();
        ranks.sort_unstable();
        ranks
    }

    /// The processes of the released world on `node`, with their slots, in rank order.
    pub fn processes_on(&self, node: NodeId) -> impl Iterator<Item = (Process, SlotId)> {
        let world = self.world;
        self.ranks_on(node).into_iter().map(move |(rank, slot)| (Process::primary(world, rank), slot))
    }

    /// The processes of the released world with their slots.
    pub fn processes(&self) -> impl Iterator<Item = (Process, SlotId)> + '_ {
        self.placement.iter().map(|(rank, slot)| (Process::primary(self.world, rank), slot))
    }

    /// Whether this process is one of the released world.
    pub fn released(&self, process: Process) -> bool {
        self.outcome.is_none() && process.world == self.world && process.rank.0 < self.world_size
    }

    /// Copies that no node could send when they were wanted: as copies on other nodes they count no more.
    pub fn not_fetched(&self) -> BTreeSet<(Rank, Stamp)> {
        let sets = self.history.iter().map(|entry| &entry.failures).chain([&self.failures]);
        let gone = sets.flat_map(FailureSet::failures).filter_map(|failure| match (failure.subject, failure.cause) {
            (Subject::Process(process), Cause::NotFetched(stamp)) => Some((process.rank, stamp)),
            _ => None,
        });
        gone.collect()
    }

    /// Checks that the record does not contradict itself. What [`plan`](crate::plan()) returns always passes.
    ///
    /// # Errors
    /// The first contradiction found.
    pub fn check(&self) -> Result<(), RecordError> {
        let epoch = self.epoch;
        if self.outcome.is_some() {
            return Ok(());
        }
        if self.placement.len() != self.world_size {
            return Err(RecordError::Size { epoch, placed: self.placement.len(), world_size: self.world_size });
        }
        let mut taken: Vec<(u32, u32)> = Vec::with_capacity(self.placement.runs().len());
        for run in self.placement.runs() {
            if !self.slots.all_in(run.slot, run.length, SlotState::Active) {
                return Err(self.misplaced(run.rank, run.length));
            }
            taken.push((run.slot.0, run.length));
        }
        taken.sort_unstable();
        if let Some(pair) = taken.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
            let slot = SlotId(pair[1].0);
            let rank = self.placement.rank(slot).unwrap_or_default();
            return Err(RecordError::Slot { epoch, rank, slot, what: "taken by another rank" });
        }
        let lost_node = self.nodes.runs().iter().filter(|run| !run.member);
        let mut out = lost_node.flat_map(|run| (run.node.0..run.node.0 + run.count).map(NodeId));
        match out.find_map(|node| self.ranks_on(node).first().copied()) {
            Some((rank, slot)) => {
                Err(RecordError::Slot { epoch, rank, slot, what: "on a node that is out of the job" })
            }
            None => Ok(()),
        }
    }

    /// The first of these ranks whose slot is not active.
    fn misplaced(&self, first: Rank, length: u32) -> RecordError {
        let ranks = (first.0..first.0 + length).map(Rank);
        let wrong = ranks.filter_map(|rank| {
            let slot = self.placement.slot(rank)?;
            let what = match self.slots.get(slot).map(|entry| entry.state) {
                None => "unknown",
                Some(SlotState::Lost) => "lost",
                Some(SlotState::Parked) => "parked",
                Some(SlotState::Active) => return None,
            };
            Some(RecordError::Slot { epoch: self.epoch, rank, slot, what })
        });
        let placed = self.placement.len();
        wrong.into_iter().next().unwrap_or(RecordError::Size { epoch: self.epoch, placed, world_size: self.world_size })
    }
}
