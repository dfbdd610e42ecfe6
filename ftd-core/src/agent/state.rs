//! What an agent knows.

use super::block::LastBlock;
use super::event::{Effect, JobConfig};
use super::gathered::Gather;
use super::held::{Hold, Looks};
use super::joining::Joining;
use super::leaving::Leaving;
use super::run::Run;
use super::store::Store;
use crate::failure::{Cause, FailureSet};
use crate::fence::Fence;
use crate::ids::{EpochId, Micros, NodeId, Process, SlotId, WorldId};
use crate::inventory::Choice;
use crate::record::{EpochRecord, Outcome};
use crate::report::{Episode, PhaseTimes, Report};
use crate::tree::Tree;
use crate::word::{Decree, Joiners, NodeWord};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Where an agent is in its epoch; see the [module's table](super).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// No record yet.
    Gathering,
    /// There was a record when this agent started.
    Restarted,
    /// There was a record, and this node is not in it yet.
    Joining,
    /// Older worlds are being killed.
    Emptying,
    /// The killed world's output is being read, slots are coming up.
    Draining,
    /// The world is launched and waits.
    Parked,
    /// The world is released.
    Computing,
    /// The job is over; its processes are being killed.
    Ending,
    /// The last effect was given.
    Over,
}

/// A local slot.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Slot {
    pub(super) up: bool,
    pub(super) world: Option<WorldId>,
}

/// Failures that are known and not yet agreed.
#[derive(Debug, Clone, Default)]
pub(super) struct Batch {
    pub(super) failures: FailureSet,
    /// When the first of them was noticed.
    pub(super) since: Micros,
    pub(super) surveyed: bool,
}

/// A recovery on its way, for the report.
#[derive(Debug, Clone)]
pub(super) struct Progress {
    pub(super) episodes: Vec<Episode>,
    pub(super) times: PhaseTimes,
    pub(super) last_sign: Micros,
    /// A rank of the new world cannot be started.
    pub(super) stuck: bool,
    /// It is reported because there is no sign of it any more.
    pub(super) waited: bool,
}

/// The end of the job as this agent wants it recorded.
#[derive(Debug, Clone)]
pub(super) struct Verdict {
    pub(super) outcome: Outcome,
    /// Stands even when somebody else's record comes first, and ends the ranks before it is written.
    pub(super) cancelled: bool,
}

/// One agent of a job: one per node.
#[derive(Debug, Clone)]
pub struct Agent {
    pub(super) me: NodeId,
    pub(super) config: JobConfig,
    pub(super) now: Micros,
    pub(super) effects: Vec<Effect>,
    pub(super) wake: Option<Micros>,
    pub(super) started: bool,
    /// Peers may know this node's slots: a record may be written that counts on them.
    pub(super) announced: bool,
    pub(super) stage: Stage,
    pub(super) stage_since: Micros,
    pub(super) store: Store,
    pub(super) gather: Gather,
    /// Nodes that have asked this one to be taken in; how this one asks that itself.
    pub(super) joiners: Joiners,
    pub(super) joining: Joining,
    pub(super) record: Option<Arc<EpochRecord>>,
    pub(super) run: Run,
    pub(super) slots: BTreeMap<SlotId, Slot>,
    pub(super) lost_slots: BTreeSet<SlotId>,
    /// Slots whose shepherds are dying, since when that is known: they are lost in a moment.
    pub(super) dying_slots: BTreeMap<SlotId, Micros>,
    /// Slots that this node has from the start of the job on, whoever of them dies.
    pub(super) slots_promised: u32,
    /// Slots that were asked for and do not exist yet; when one was asked for last.
    pub(super) slots_asked: u32,
    pub(super) slots_since: Micros,
    /// Slots whose shepherds do not answer, and when that changed.
    pub(super) silent: BTreeSet<SlotId>,
    pub(super) silent_at: Micros,
    /// Worlds with processes on this node; the ones being killed since when.
    pub(super) worlds: BTreeMap<WorldId, Option<Micros>>,
    /// When this agent began.
    pub(super) began: Micros,
    /// A process has been seen in `MPI_Init`: the program is none that does without.
    pub(super) speaks_mpi: bool,
    pub(super) batch: Option<Batch>,
    /// What could not be placed, and since when.
    pub(super) short: Option<super::short::Short>,
    /// Nodes whose leases in the store were not held when ranks were to be placed on them in the next epoch.
    pub(super) unfit: BTreeSet<NodeId>,
    pub(super) holds: Vec<Hold>,
    /// A hold or a survey began at this time; dying processes are waited for from then on.
    pub(super) uncertain_since: Micros,
    pub(super) looks: Looks,
    pub(super) causes: BTreeMap<Process, Cause>,
    /// Nothing more will be said of how these ended.
    pub(super) exited: BTreeSet<Process>,
    pub(super) verdict: Option<Verdict>,
    /// The user has ended the job, and the ranks have been told.
    pub(super) leaving: Option<Leaving>,
    /// A process that says its last words before the world is killed, and until when.
    pub(super) last_words: Option<(Process, Micros)>,
    /// What the last epoch restored of which that is known, this one or an earlier one.
    pub(super) restored_last: Option<Choice>,
    pub(super) fence: Fence,
    /// This node may have something else to say than it said.
    pub(super) changed: bool,
    pub(super) tree: Tree<NodeWord, Decree>,
    pub(super) paused: bool,
    /// Since when this node has had no lease, in whatever epoch.
    pub(super) unleased: Option<Micros>,
    /// When this node killed its ranks, because it had neither a lease nor the record for too long.
    pub(super) fenced: Option<Micros>,
    pub(super) progress: Option<Progress>,
    pub(super) last_block: Option<LastBlock>,
    pub(super) predecessor: Option<Predecessor>,
}

/// What is known of the agent of this node before this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Predecessor {
    /// When its death was noticed.
    pub died: Micros,
    /// The newest epoch of which people have been told how it began.
    pub reported: EpochId,
}

impl Agent {
    /// The agent of node `me`.
    pub fn new(me: NodeId, config: JobConfig) -> Self {
        Agent {
            me,
            fence: Fence::new(me, 0, config.breach),
            tree: Tree::new(me),
            config,
            now: Micros(0),
            effects: Vec::new(),
            wake: None,
            started: false,
            announced: false,
            stage: Stage::Gathering,
            stage_since: Micros(0),
            store: Store::default(),
            gather: Gather::default(),
            joiners: Joiners::new(),
            joining: Joining::default(),
            record: None,
            run: Run::default(),
            slots: BTreeMap::new(),
            lost_slots: BTreeSet::new(),
            dying_slots: BTreeMap::new(),
            slots_promised: 0,
            slots_asked: 0,
            slots_since: Micros(0),
            silent: BTreeSet::new(),
            silent_at: Micros(0),
            worlds: BTreeMap::new(),
            began: Micros(0),
            speaks_mpi: false,
            batch: None,
            short: None,
            unfit: BTreeSet::new(),
            holds: Vec::new(),
            uncertain_since: Micros(0),
            looks: Looks::default(),
            causes: BTreeMap::new(),
            exited: BTreeSet::new(),
            verdict: None,
            leaving: None,
            last_words: None,
            restored_last: None,
            changed: true,
            paused: false,
            unleased: None,
            fenced: None,
            progress: None,
            last_block: None,
            predecessor: None,
        }
    }

    /// This agent takes the place of one that died.
    #[must_use]
    pub fn succeeding(mut self, predecessor: Option<Predecessor>) -> Self {
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
        self.stage
    }

    /// Whether its ranks are stopped by the fence.
    pub fn paused(&self) -> bool {
        self.paused
    }

    /// The version that each group restores in this epoch, once it is known.
    pub fn choice(&self) -> Option<&Choice> {
        self.run.choice.as_ref()
    }

    pub(super) fn emit(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    pub(super) fn report(&mut self, report: Report) {
        self.effects.push(Effect::Report(report));
    }

    pub(super) fn enter(&mut self, stage: Stage) {
        self.stage = stage;
        self.stage_since = self.now;
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
