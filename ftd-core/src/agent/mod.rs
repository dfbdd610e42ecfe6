//! The agent's state machine: [`Agent::step`] takes the time and one event and returns what is to be done.
//!
//! An event only notes what is known ([`intake`](self)); then guards are evaluated, in a fixed order, each of which acts
//! when its condition holds and its work is not done yet. So no order of events is special, and a newer record simply
//! makes the guards see other conditions. The stages of one epoch on one node:
//!
//! | [`Stage`] | waits for | then |
//! | --- | --- | --- |
//! | `Gathering` | all slots of all nodes | `Cas` of epoch 1 |
//! | `Restarted` | its own proposal: this agent's predecessor is dead | `Cas` of the next epoch |
//! | `Emptying` | `WorldEmptied` of every older world, all slots up (bounded) | `Drain`, `TakeInventory` |
//! | `Draining` | `Drained` (bounded) | `Launch` |
//! | `Parked` | every node emptied and acknowledged by its observers | `Release` |
//! | `Computing` | a failure, an own end, or the clean end of all ranks | `Cas` of the next epoch |
//! | `Joining` | a record that has this node as a member | |
//! | `Ending` | `WorldEmptied` of every world | `End` |
//! | `Over` | nothing | |
//!
//! From every stage but the last two a newer record leads to `Emptying`, and one with an outcome, or without this node,
//! to `Ending`. Beside the stages run the batch of failures not yet agreed (`Batch`), the ends that are held
//! ([`Hold`]), and the fence ([`Ring`]).

mod agree;
mod asked;
mod event;
mod execute;
mod fetch;
mod gather;
mod holds;
mod intake;
mod join;
mod last_block;
mod leave;
mod silence;
mod store;
mod tell;

pub use join::Joiners;
pub use silence::Leased;

pub use event::{Effect, Event, JobConfig};

use crate::blame::Phase;
use crate::failure::{Cause, FailureSet};
use crate::fence::Fence;
use crate::ids::{EpochId, GroupId, Micros, NodeId, Process, SlotId, Version, WorldId};
use crate::inventory::{Choice, Ledger};
use crate::message::PeerMessage;
use crate::record::{EpochRecord, Outcome};
use crate::report::{Episode, PhaseTimes, Report};
use crate::tree::Tree;
use crate::word::{Decree, Holdings, NodeWord};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Where an agent is in its epoch; see the [module's table](self).
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
struct Slot {
    up: bool,
    world: Option<WorldId>,
}

/// A local process of the record's world.
#[derive(Debug, Clone, Default)]
struct Local {
    phase: Phase,
    /// Its futex fired before `MPI_Init` was over or after `MPI_Finalize`: its exit will say what that was.
    dying: bool,
    /// A survey found it dead or on its way out: its exit will say how.
    leaving: bool,
    end: Option<LocalEnd>,
    /// Its exit was told, or its slot is gone.
    gone: bool,
    /// It has asked for its state.
    asked: bool,
    restored: bool,
    /// Why it did not get its state back when it asked for it last.
    refused: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LocalEnd {
    Clean,
    Failed,
    Own,
}

/// Failures that are known and not yet agreed.
#[derive(Debug, Clone, Default)]
struct Batch {
    failures: FailureSet,
    /// When the first of them was noticed.
    since: Micros,
    surveyed: bool,
}

/// What belongs to one epoch on this node: the next one has none of it.
#[derive(Debug, Clone, Default)]
struct Run {
    /// The processes of its world.
    locals: BTreeMap<Process, Local>,
    questions: asked::Questions,
    /// What the world before wrote has been read.
    drained: bool,
    /// The checkpoints that this node holds, frozen.
    holdings: Option<Holdings>,
    inventory_asked: Option<Micros>,
    /// What is restored.
    choice: Option<Choice>,
    copies: fetch::Copies,
    /// It restored a newer version than the epoch before it.
    late_progress: bool,
    /// What is older than the choice was given up.
    retired: bool,
    ledger: Ledger,
    /// The newest version of each group that has become complete, and was told of.
    complete: BTreeMap<(GroupId, crate::inventory::Level), Version>,
    /// Its recovery, noticed at this time, was reported without anybody having taken back what there is.
    denied: Option<Micros>,
}

impl Run {
    fn of(record: &EpochRecord) -> Self {
        Run { copies: fetch::Copies::of(record), ..Run::default() }
    }
}

/// A recovery on its way, for the report.
#[derive(Debug, Clone)]
struct Progress {
    episodes: Vec<Episode>,
    times: PhaseTimes,
    last_sign: Micros,
    /// A rank of the new world cannot be started.
    stuck: bool,
    /// It is reported because there is no sign of it any more.
    waited: bool,
}

/// The end of the job as this agent wants it recorded.
#[derive(Debug, Clone)]
struct Verdict {
    outcome: Outcome,
    /// Stands even when somebody else's record comes first, and ends the ranks before it is written.
    cancelled: bool,
}

/// One agent of a job: one per node.
#[derive(Debug, Clone)]
pub struct Agent {
    me: NodeId,
    config: JobConfig,
    now: Micros,
    effects: Vec<Effect>,
    wake: Option<Micros>,
    started: bool,
    /// Peers may know this node's slots: a record may be written that counts on them.
    announced: bool,
    stage: Stage,
    stage_since: Micros,
    store: store::Store,
    gather: gather::Gather,
    /// Nodes that have asked this one to be taken in; how this one asks that itself.
    joiners: Joiners,
    joining: join::Joining,
    record: Option<Arc<EpochRecord>>,
    run: Run,
    slots: BTreeMap<SlotId, Slot>,
    lost_slots: BTreeSet<SlotId>,
    /// Slots whose shepherds are dying, since when that is known: they are lost in a moment.
    dying_slots: BTreeMap<SlotId, Micros>,
    /// Slots that this node has from the start of the job on, whoever of them dies.
    slots_promised: u32,
    /// Slots that were asked for and do not exist yet; when one was asked for last.
    slots_asked: u32,
    slots_since: Micros,
    /// Slots whose shepherds do not answer, and when that changed.
    silent: BTreeSet<SlotId>,
    silent_at: Micros,
    /// Worlds with processes on this node; the ones being killed since when.
    worlds: BTreeMap<WorldId, Option<Micros>>,
    /// When this agent began.
    began: Micros,
    /// A process has been seen in `MPI_Init`: the program is none that does without.
    speaks_mpi: bool,
    batch: Option<Batch>,
    /// What could not be placed, and since when.
    short: Option<agree::Short>,
    /// Nodes whose leases in the store were not held when ranks were to be placed on them in the next epoch.
    unfit: BTreeSet<NodeId>,
    holds: Vec<holds::Hold>,
    /// A hold or a survey began at this time; dying processes are waited for from then on.
    uncertain_since: Micros,
    looks: holds::Looks,
    causes: BTreeMap<Process, Cause>,
    /// Nothing more will be said of how these ended.
    exited: BTreeSet<Process>,
    verdict: Option<Verdict>,
    /// The user has ended the job, and the ranks have been told.
    leaving: Option<leave::Leaving>,
    /// A process that says its last words before the world is killed, and until when.
    last_words: Option<(Process, Micros)>,
    /// What the last epoch restored of which that is known, this one or an earlier one.
    restored_last: Option<Choice>,
    fence: Fence,
    /// This node may have something else to say than it said.
    changed: bool,
    tree: Tree<NodeWord, Decree>,
    paused: bool,
    /// Since when this node has had no lease, in whatever epoch.
    unleased: Option<Micros>,
    /// When this node killed its ranks, because it had neither a lease nor the record for too long.
    fenced: Option<Micros>,
    progress: Option<Progress>,
    last_block: Option<last_block::LastBlock>,
    predecessor: Option<Predecessor>,
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
            store: store::Store::default(),
            gather: gather::Gather::default(),
            joiners: Joiners::new(),
            joining: join::Joining::default(),
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
            looks: holds::Looks::default(),
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

    /// Takes one event at the time `now` and returns what is to be done, in order.
    pub fn step(&mut self, now: Micros, event: Event) -> Vec<Effect> {
        self.now = self.now.max(now);
        if self.stage == Stage::Over {
            return Vec::new();
        }
        if event == Event::Timer {
            self.wake = None;
        }
        // What has become due counts before the event: a node that slept must stop itself before it believes anybody.
        self.guard_fence();
        // Most messages are heartbeats and what belongs to them.
        self.changed |= !matches!(
            event,
            Event::Timer
                | Event::DueAsked { .. }
                | Event::Message {
                    message: PeerMessage::Heartbeat { .. }
                        | PeerMessage::Heard { .. }
                        | PeerMessage::Received { .. }
                        | PeerMessage::Accuse { .. },
                    ..
                }
        );
        self.take(event);
        self.guard_fence();
        self.guard_survey();
        self.speak();
        self.guard_holds();
        self.guard_leaving();
        self.guard_last_block();
        self.guard_stage();
        self.guard_gather();
        self.guard_ask_around();
        self.guard_join();
        self.guard_agreement();
        self.guard_stage();
        self.guard_due();
        self.guard_reports();
        self.guard_survey();
        self.speak();
        self.guard_tree();
        self.guard_store();
        self.schedule();
        std::mem::take(&mut self.effects)
    }

    fn emit(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    fn report(&mut self, report: Report) {
        self.effects.push(Effect::Report(report));
    }

    fn enter(&mut self, stage: Stage) {
        self.stage = stage;
        self.stage_since = self.now;
        self.changed = true;
    }

    fn due(&self, since: Micros, span: Micros) -> bool {
        self.now.since(since) >= span
    }

    fn epoch(&self) -> EpochId {
        self.record.as_ref().map_or(EpochId(0), |record| record.epoch)
    }

    fn world(&self) -> WorldId {
        self.record.as_ref().map_or(WorldId(0), |record| record.world)
    }

    fn is_member(&self, node: NodeId) -> bool {
        match &self.record {
            Some(record) => record.is_member(node),
            None => self.config.nodes.contains(node),
        }
    }

    /// Asks to be woken at the next moment at which a guard may act by time alone.
    fn schedule(&mut self) {
        if self.stage == Stage::Over {
            return;
        }
        let next = self.deadlines().into_iter().filter(|at| *at > self.now).min();
        if let Some(at) = next.filter(|at| Some(*at) != self.wake) {
            self.wake = Some(at);
            self.emit(Effect::WakeAt(at));
        }
    }

    fn deadlines(&self) -> Vec<Micros> {
        let policy = &self.config.policy;
        let mut at: Vec<Micros> = self.fence.deadlines().chain(self.tree.deadline()).collect();
        let since = self.stage_since;
        at.extend(self.gather_deadlines());
        match self.stage {
            Stage::Emptying => at.push(since.max(self.silent_at).after(policy.slot_timeout)),
            Stage::Draining => at.push(since.after(policy.drain_timeout)),
            _ => {}
        }
        at.extend(self.worlds.values().flatten().map(|since| since.after(policy.stop_timeout)));
        at.extend(self.run.inventory_asked.map(|since| since.after(policy.inventory_timeout)));
        if let Some(batch) = &self.batch {
            at.extend([self.batch_due(batch), batch.since.after(policy.exit_timeout)]);
            at.push(self.slots_since.after(policy.slot_timeout));
            at.extend(self.dying_slots.values().map(|since| since.after(policy.exit_timeout)));
        }
        if !self.holds.is_empty() || self.looks.answered < self.looks.asked {
            at.push(self.uncertain_since.after(policy.exit_timeout));
        }
        at.extend(self.last_words.map(|(_, until)| until));
        at.extend(self.leave_deadline());
        at.extend(self.store.deadline());
        at.extend(self.store.down.map(|since| since.after(policy.store_timeout)));
        at.extend(self.last_block_deadline());
        at.extend(self.blind_deadlines());
        at.extend(self.join_deadline());
        at.extend(self.copies_deadline());
        at.extend(self.short.as_ref().map(|short| short.since.after(policy.node_timeout)));
        if let (Some(progress), Stage::Computing) = (&self.progress, self.stage) {
            at.push(progress.last_sign.after(self.report_patience()));
        }
        at
    }

    fn batch_due(&self, batch: &Batch) -> Micros {
        batch.since.after(self.config.policy.batch_window)
    }
}
