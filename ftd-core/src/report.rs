//! What people are told. Structured here; the launcher's block and the log lines are made from it.

use crate::failure::FailureSet;
use crate::ids::{EpochId, Micros, NodeId, Process, Rank, SlotId, Version, WorldId};
use crate::inventory::{Choice, Inventory};
use crate::placement::Placement;

/// When each step of a recovery was reached, on this agent's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PhaseTimes {
    /// The first notice of the first failure.
    pub noticed: Micros,
    /// The record of the new epoch was written or read.
    pub agreed: Option<Micros>,
    /// The last process of the old world on this node was gone.
    pub emptied: Option<Micros>,
    /// The new world was released.
    pub released: Option<Micros>,
    /// The last rank was out of `MPI_Init`.
    pub initialized: Option<Micros>,
    /// The last rank had its state back.
    pub restored: Option<Micros>,
    /// The next failure, or the job's end, came before that, and before the ranks were known to compute.
    pub interrupted: Option<Micros>,
}

impl PhaseTimes {
    /// The steps that were reached, in their order.
    pub fn steps(&self) -> impl Iterator<Item = (&'static str, Micros)> {
        let steps = [
            ("agreed", self.agreed),
            ("old ranks gone", self.emptied),
            ("released", self.released),
            ("past MPI_Init", self.initialized),
            ("state restored", self.restored),
            ("interrupted", self.interrupted),
        ];
        steps.into_iter().filter_map(|(name, at)| Some((name, at?)))
    }

    /// The last step: from then on the ranks compute, as far as anything was seen of them. What the report waits for in vain after
    /// that is no part of the recovery.
    pub fn end(&self) -> Micros {
        self.steps().map(|(_, at)| at).fold(self.noticed, Micros::max)
    }
}

/// One failure set of a recovery; there is more than one when it was superseded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Episode {
    /// The epoch that began with it.
    pub epoch: EpochId,
    /// What had failed, with the causes as far as they are known by now.
    pub failures: FailureSet,
    /// Where the ranks were before it.
    pub placement: Placement,
}

/// Ranks that go on on another node than they were on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// Which.
    pub ranks: Vec<Rank>,
    /// Where they were when the first failure came.
    pub from: NodeId,
    /// Where they are now.
    pub to: NodeId,
    /// On slots beyond those that the node has of its own.
    pub beyond: bool,
}

/// A recovery that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// The epoch that runs now.
    pub epoch: EpochId,
    /// The world that runs now.
    pub world: WorldId,
    /// The failures, oldest first: more than one when failures came during the recovery.
    pub episodes: Vec<Episode>,
    /// One sentence per failure and collateral end: what died, where, why, whose it is.
    pub blame: Vec<String>,
    /// What was restored, per group; `None` inside means from the beginning. `None` outside: nobody asked yet and the
    /// inventories are not in.
    pub restored: Option<Choice>,
    /// Ranks that are on another node than when the first failure came: what they take back was a copy there.
    pub moved: Vec<Move>,
    /// When each step was reached.
    pub times: PhaseTimes,
    /// The new ranks could not be started: the job ends.
    pub stuck: bool,
    /// There has been no further sign of it for a while, and the job goes on: what has not come about may come still.
    pub waited: bool,
    /// A rank has asked for its state.
    pub asked: bool,
    /// A rank has taken it back.
    pub taken: bool,
    /// Ranks of this node that asked for it last in vain, and why.
    pub refused: Vec<(Rank, String)>,
    /// Ranks of this node that were not seen past `MPI_Init`, also those that died there; empty when the program was never seen to use
    /// MPI.
    pub before_init: Vec<Rank>,
    /// Ranks of this node that have not taken back what there is for them.
    pub without_state: Vec<Rank>,
    /// All ranks were seen initialised, and restored if there was something to restore. Otherwise the report was given
    /// after [`Policy::report_patience`](crate::Policy::report_patience) without a further sign, or because the next
    /// failure or the job's end came first.
    pub complete: bool,
}

impl Recovery {
    /// The ranks compute, as far as is seen: it was not cut short, and they could be started.
    pub fn is_over(&self) -> bool {
        !self.stuck && self.times.interrupted.is_none()
    }
}

/// One line for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The store does not answer.
    StoreUnavailable,
    /// The store answers again.
    StoreBack,
    /// The store has not answered for so long that the job ends here without its end being written there.
    EndUnrecorded {
        /// For how long.
        away: Micros,
        /// All ranks of all nodes have ended well.
        well: bool,
    },
    /// Nodes of the job are not in its first record: their agents did not answer in time.
    BegunWithout {
        /// Which.
        absent: Vec<NodeId>,
    },
    /// The ranks of this node were stopped because observers are silent.
    Paused,
    /// The ranks of this node go on.
    Continued,
    /// The true cause of an agreed death became known after its recovery was reported.
    CauseKnown {
        /// The process.
        process: Process,
        /// One sentence.
        sentence: String,
    },
    /// A rank has taken its state back after its recovery was reported without that.
    RestoredLate {
        /// The epoch.
        epoch: EpochId,
        /// What it has taken back.
        version: Version,
        /// How long that was after the first notice.
        took: Micros,
    },
    /// A rank has asked for its state in vain after its recovery was reported without that.
    RefusedLate {
        /// The epoch.
        epoch: EpochId,
        /// Whose.
        rank: Rank,
        /// One sentence.
        reason: String,
    },
    /// A lost slot is waited for.
    WaitingForSlot {
        /// The lost slot.
        lost: SlotId,
    },
    /// So many ranks have no slot: a node is waited for.
    WaitingForNode {
        /// How many.
        missing: u32,
        /// For how long.
        patience: Micros,
        /// The nodes that are lost; none where it is not known which.
        lost: Vec<NodeId>,
    },
    /// Copies on this node were not verified in time.
    NotVerified {
        /// These.
        unread: Inventory,
        /// So long was waited.
        timeout: Micros,
        /// It was said before.
        again: bool,
        /// What is restored without them. Nothing: that is not known yet; they are waited for if it would be the beginning.
        restored: Option<Choice>,
    },
    /// The old world's output was not read in time; the new one is started all the same.
    DrainTimedOut(WorldId),
}

/// What an agent tells people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// A failure is known; nothing is agreed yet.
    RecoveryBegun {
        /// The epoch that ends.
        epoch: EpochId,
        /// What is known so far.
        failures: FailureSet,
        /// When.
        at: Micros,
    },
    /// The next epoch is agreed.
    RecoveryAgreed {
        /// The new epoch.
        epoch: EpochId,
        /// Its world.
        world: WorldId,
        /// What ended the old one.
        failures: FailureSet,
        /// So long that had been known by then, to whoever proposed the new one.
        known_for: Micros,
        /// When.
        at: Micros,
    },
    /// All ranks compute again.
    RecoveryDone(Box<Recovery>),
    /// The same, on a node that does not tell people: another one does, for all.
    RecoveryDoneElsewhere(Box<Recovery>),
    /// One line.
    Notice(Notice),
}
