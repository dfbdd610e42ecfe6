//! What an agent knows.

use super::batch::Batch;
use super::end::End;
use super::event::{Effect, JobConfig};
use super::gathered::Gather;
use super::held::Holds;
use super::joining::Joining;
use super::local_slots::LocalSlots;
use super::memory::Memory;
use super::outbox::Outbox;
use super::passing::Passing;
use super::resting::Resting;
use super::run::Run;
use super::stage::Stage;
use super::standstill::Standstill;
use super::store::Store;
use super::telling::Telling;
use super::worlds::Worlds;
use crate::fence::Fence;
use crate::ids::{EpochId, Micros, NodeId, Process, WorldId};
use crate::inventory::Choice;
use crate::policy::Mode;
use crate::record::EpochRecord;
use crate::report::Report;
use crate::tree::Tree;
use crate::word::{Decree, NodeWord};
use std::collections::BTreeSet;
use std::sync::Arc;

/// One agent of a job: one per node.
#[derive(Debug, Clone)]
pub struct Agent {
    pub(super) me: NodeId,
    pub(super) config: JobConfig,
    pub(super) predecessor: Option<Predecessor>,
    pub(super) now: Micros,
    /// When this agent began.
    pub(super) began: Option<Micros>,
    pub(super) out: Outbox,
    pub(super) resting: Resting,
    /// The newest record that is known, and what belongs to its epoch.
    pub(super) record: Option<Arc<EpochRecord>>,
    pub(super) run: Run,
    /// What outlives it.
    pub(super) memory: Memory,
    pub(super) end: End,
    pub(super) telling: Telling,
    // What is known of this node.
    pub(super) slots: LocalSlots,
    pub(super) worlds: Worlds,
    /// What has failed here, and is not agreed yet.
    pub(super) batch: Option<Batch>,
    pub(super) holds: Holds,
    pub(super) passing: Passing,
    // And of the others.
    pub(super) store: Store,
    pub(super) fence: Fence,
    pub(super) standstill: Standstill,
    pub(super) gather: Gather,
    pub(super) joining: Joining,
    pub(super) tree: Tree<NodeWord, Decree>,
    /// This node may have something else to say there than it said.
    pub(super) changed: bool,
}

/// What is known of the agent of this node before this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Predecessor {
    /// Since when something has failed: when its death was noticed, or what it had not recovered from.
    pub failed: Micros,
    /// The newest epoch of which people have been told how it began.
    pub reported: EpochId,
    /// A process has been seen in `MPI_Init`.
    pub speaks_mpi: bool,
    /// Processes of whose deaths people have been told, and not of what they died.
    pub untold: BTreeSet<Process>,
    /// The newest epoch in which a newer version was complete than the one that it had restored.
    pub progress: Option<EpochId>,
}

impl Agent {
    /// The agent of node `me`.
    pub fn new(me: NodeId, config: JobConfig) -> Self {
        Agent {
            me,
            fence: Fence::new(me, 0, config.breach),
            tree: Tree::new(me),
            passing: Passing::new(config.policy.grace),
            config,
            predecessor: None,
            now: Micros(0),
            began: None,
            out: Outbox::default(),
            resting: Resting::default(),
            record: None,
            run: Run::default(),
            memory: Memory::default(),
            end: End::default(),
            telling: Telling::default(),
            slots: LocalSlots::default(),
            worlds: Worlds::default(),
            batch: None,
            holds: Holds::default(),
            store: Store::default(),
            standstill: Standstill::default(),
            gather: Gather::default(),
            joining: Joining::default(),
            changed: true,
        }
    }

    /// This agent takes the place of one that died.
    #[must_use]
    pub fn succeeding(mut self, predecessor: Option<Predecessor>) -> Self {
        self.memory.speaks_mpi = predecessor.as_ref().is_some_and(|predecessor| predecessor.speaks_mpi);
        self.predecessor = predecessor;
        self
    }

    /// Tells this agent from those of the same node before and after it.
    #[must_use]
    pub fn incarnation(mut self, incarnation: u64) -> Self {
        self.fence = Fence::new(self.me, incarnation, self.config.breach);
        self
    }

    /// What it knows of who is silent, and of its own lease.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// The newest record read or written.
    pub fn record(&self) -> Option<&EpochRecord> {
        self.record.as_deref()
    }

    /// Where it is in its epoch.
    pub fn stage(&self) -> Stage {
        self.run.stage
    }

    /// Whether the job is to end because this node's agent has refused what runs.
    pub fn refuses(&self) -> bool {
        self.end.refused
    }

    /// Whether its ranks are stopped by the fence.
    pub fn paused(&self) -> bool {
        self.standstill.paused
    }

    /// Whether a recovery is on its way here: something has failed, and not all ranks are known to compute again. Ranks that give no
    /// sign of that, and have nothing to take back, compute since they were released; what came of it is told a while later.
    pub fn recovers(&self) -> bool {
        // Something is to be agreed elsewhere, and cannot be.
        let ends = self.tree.decree().finished || self.end.is_near() || self.config.mode == Mode::None;
        let waits = self.hears_missed() && self.store.down.is_some() && !ends;
        waits || self.telling.progress.is_some() && !(self.run.stage == Stage::Computing && self.gives_no_sign())
    }

    /// The version that each group restores in this epoch, once it is known.
    pub fn choice(&self) -> Option<&Choice> {
        self.run.choice.as_ref()
    }

    pub(super) fn emit(&mut self, effect: Effect) {
        self.out.push(effect);
    }

    pub(super) fn report(&mut self, report: Report) {
        self.out.push(Effect::Report(report));
    }

    pub(super) fn started(&self) -> bool {
        self.began.is_some()
    }

    pub(super) fn enter(&mut self, stage: Stage) {
        self.run.stage = stage;
        self.run.since = self.now;
        self.changed = true;
    }

    pub(super) fn due(&self, since: Micros, span: Micros) -> bool {
        self.now.since(since) >= span
    }

    pub(super) fn epoch(&self) -> EpochId {
        self.record.as_ref().map_or(EpochId(0), |record| record.epoch)
    }

    pub(super) fn world(&self) -> WorldId {
        self.record.as_ref().map_or(WorldId(0), |record| record.world)
    }

    pub(super) fn is_member(&self, node: NodeId) -> bool {
        match &self.record {
            Some(record) => record.is_member(node),
            None => self.config.nodes.contains(node),
        }
    }
}
