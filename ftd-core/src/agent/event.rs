//! What an agent is told, and what it wants done.

use crate::blame::{Ended, Exit, Limit, Sight};
use crate::breach::Breach;
use crate::failure::OwnEnd;
use crate::ids::{EpochId, GroupId, Micros, NodeId, Process, Rank, Revision, SlotId, Version, WorldId};
use crate::inventory::{Groups, Inventory, Level, Stamp};
use crate::joined::Family;
use crate::members::Members;
use crate::message::PeerMessage;
use crate::policy::{Mode, Policy};
use crate::ranks::RankSet;
use crate::record::EpochRecord;
use crate::report::Report;
use std::sync::Arc;

/// What the job is; the same for every agent of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobConfig {
    /// The job's nodes.
    pub nodes: Members,
    /// Number of ranks.
    pub world_size: u32,
    /// Who survives a failure.
    pub mode: Mode,
    /// What the user chose, and the time-outs.
    pub policy: Policy,
    /// A lost slot can be replaced by a new one (`ftrun` starts another shepherd; a Slurm step cannot).
    pub renewable_slots: bool,
    /// Which ranks checkpoint together.
    pub groups: Groups,
    /// A version is kept until a newer one is complete at this level or a safer one, as far as there are nodes enough: the one at
    /// which the driver makes copies as a matter of course.
    pub safe: Level,
    /// A rule that is broken, in tests.
    pub breach: Breach,
}

impl JobConfig {
    /// A job of one machine under `ftrun`: one node, renewable slots, one group.
    pub fn single_node(world_size: u32, mode: Mode, policy: Policy) -> Self {
        JobConfig {
            nodes: Members::of([NodeId(0)]),
            world_size,
            mode,
            policy,
            renewable_slots: true,
            groups: Groups::one(),
            safe: Level::Own,
            breach: Breach::Nothing,
        }
    }
}

/// What an agent is told. Events of worlds that have ended do no harm; the driver need not filter them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// First event, once. `slots` are this node's slots that exist, whether their shepherds have dialled in or not;
    /// a `SlotUp` follows for each that does. A slot of the record that is not listed is lost.
    Start {
        /// The slots.
        slots: Vec<SlotId>,
    },
    /// Answer to [`Effect::NeedSlot`] and [`Effect::MakeSlot`]: this slot exists now. Its `SlotUp` follows, or came before.
    SlotAdded(SlotId),
    /// A slot's shepherd dialled in, and nothing runs below it.
    SlotUp(SlotId),
    /// A slot's shepherd is dying or dead. Its rank dies of that, and [`SlotLost`](Self::SlotLost) follows.
    SlotDying(SlotId),
    /// A slot's shepherd is gone, and every process that stood below it.
    SlotLost(SlotId),
    /// The shepherds of these slots do not answer, and of no others. The launcher gets them to, or ends them: until then
    /// nothing that they owe is overdue.
    SlotsSilent(Vec<SlotId>),
    /// The process's program is loaded.
    Started(Process),
    /// The process cannot be started.
    StartFailed {
        /// Which.
        process: Process,
        /// What failed, one sentence ("cannot execute ./app: no such file or directory").
        reason: String,
        /// The shell's status for it: 127 not found, 126 not executable.
        status: i32,
    },
    /// Something on this node, whether it has ranks or not, keeps the job from beginning. Ignored once its first world is released.
    CannotBegin {
        /// What, one sentence.
        reason: String,
        /// The job's.
        status: i32,
    },
    /// What the ranks of this world tell each other does not come, and would not in another world, either.
    CannotGoOn {
        /// Which.
        world: WorldId,
        /// What, and whose it is, one sentence.
        reason: String,
    },
    /// The process is about to enter `MPI_Init`, and will tell when it is past it.
    Initializing(Process),
    /// The process has called `MPI_Init`, which waits for all ranks of the world, and its MPI, of this family, speaks with its
    /// server. Not told of one that has begun with `MPI_Session_init`, which need not wait for anybody.
    Joined {
        /// Which.
        process: Process,
        /// What it speaks.
        family: Family,
    },
    /// The process is past `MPI_Init`.
    Initialized(Process),
    /// The process's `MPI_Finalize` returned.
    Finalized(Process),
    /// The process is dying, its robust futex says, and it had not announced an exit of its own. The cause comes later,
    /// with [`Exited`](Self::Exited).
    Dying(Process),
    /// The process, which stands below a wrapper and has joined, was killed by a signal, wherever it was: what its wrapper does
    /// after that is not waited for. The cause comes later, as with [`Dying`](Self::Dying).
    Killed {
        /// Which.
        process: Process,
        /// Of this signal; SIGKILL may turn out to be the kernel's.
        signal: i32,
    },
    /// The process was seen dying or dead, by whatever sees it first: its robust futex, its connections, or who holds it below a
    /// wrapper.
    Seen {
        /// Which.
        process: Process,
        /// What was seen.
        sight: Sight,
    },
    /// The direct child of the process's slot is gone: the process, or its wrapper. This and [`Exited`](Self::Exited) come after all
    /// that the process has said itself.
    Ended {
        /// Which.
        process: Process,
        /// What is known of it, and of the process below.
        ended: Ended,
    },
    /// The process is gone.
    Exited {
        /// Which.
        process: Process,
        /// How.
        exit: Exit,
        /// What the kernel ended it for, should it have been killed.
        limit: Option<Limit>,
    },
    /// The process called `MPI_Abort` and waits for [`Effect::Proceed`].
    AbortRequested {
        /// Which.
        process: Process,
        /// The code it passed.
        code: i32,
    },
    /// Answer to [`Effect::Survey`]: the local processes that are dead or dying at this moment.
    Surveyed {
        /// Those that are known to have been killed.
        dying: Vec<Process>,
        /// The others whose exit has not been told yet: it will say how they ended.
        leaving: Vec<Process>,
    },
    /// The process that serves this world its PMIx died.
    WorldServerLost(WorldId),
    /// Answer to [`Effect::StopWorld`]: nothing is left below any slot of this node that the world used.
    WorldEmptied(WorldId),
    /// A world that is being stopped is not empty yet, and that is as it should be: what it printed is still being read.
    Lingers(WorldId),
    /// Answer to [`Effect::Drain`]: what the world's processes wrote has been read.
    Drained(WorldId),
    /// `version` is whole in this node's memory, checksum made. Ignored when its process is not of the released world.
    Committed {
        /// Whose.
        process: Process,
        /// Which version.
        version: Version,
        /// At which level: it is whole at all that are less safe, too.
        level: Level,
    },
    /// Answer to [`Effect::TakeInventory`].
    InventoryTaken {
        /// The epoch named there.
        epoch: EpochId,
        /// What is whole and verified.
        inventory: Inventory,
    },
    /// Answer to [`Effect::ListVerified`]. `InventoryTaken` follows when everything has been read.
    InventorySoFar {
        /// The epoch named there.
        epoch: EpochId,
        /// What is whole and verified by now.
        inventory: Inventory,
        /// What is still to be read.
        unread: Inventory,
    },
    /// The process asks whether it is time for a checkpoint. Answered by [`Effect::AnswerDue`].
    DueAsked {
        /// Which.
        process: Process,
        /// What the checkpoint cost that it has taken since it asked last, if it took one.
        cost: Option<Micros>,
    },
    /// Answer to [`Effect::Fetch`]: the copy is whole on this node, its checksum compared.
    Fetched {
        /// The epoch named there.
        epoch: EpochId,
        /// Whose.
        rank: Rank,
    },
    /// Answer to [`Effect::Fetch`]: the copy could not be had from there, because that node is dead, cut off or has it no more,
    /// or what came is not what its checksum says.
    NotFetched {
        /// The epoch named there.
        epoch: EpochId,
        /// Whose.
        rank: Rank,
        /// From where.
        from: NodeId,
    },
    /// The process asks for its state.
    RestoreAsked(Process),
    /// The process has its state back.
    Restored {
        /// Whose.
        process: Process,
        /// Which version.
        version: Version,
    },
    /// The process asked for its state and did not get it.
    NotRestored {
        /// Whose.
        process: Process,
        /// Why, one sentence.
        reason: String,
    },
    /// Answer to [`Effect::ReadStore`].
    StoreRead {
        /// The key's revision; 0 when it was never written.
        revision: Revision,
        /// Its value; nothing also when the key was deleted.
        record: Option<Arc<EpochRecord>>,
    },
    /// A watch of the key says this, perhaps late.
    Watched {
        /// The key's revision then.
        revision: Revision,
        /// Its value; nothing when the key was deleted.
        record: Option<Arc<EpochRecord>>,
    },
    /// Answer to [`Effect::Cas`]: written.
    CasDone {
        /// The key's new revision.
        revision: Revision,
    },
    /// Answer to [`Effect::Cas`]: another was first.
    CasLost {
        /// The key's revision.
        revision: Revision,
        /// What is there; nothing when the key was deleted.
        record: Option<Arc<EpochRecord>>,
    },
    /// Answer to [`Effect::Cas`]: the leases of these nodes are not held; nothing was written.
    CasUnfit {
        /// Which.
        nodes: Vec<NodeId>,
    },
    /// Answer to [`Effect::ReadStore`] or [`Effect::Cas`]: no answer from the store. The write may have happened.
    StoreUnavailable,
    /// From another agent of the job.
    Message {
        /// The sender.
        from: NodeId,
        /// What it says.
        message: PeerMessage,
    },
    /// The time of [`Effect::WakeAt`] has come. Early or superfluous ones do no harm.
    Timer,
    /// The user ends the job; every agent of it is told. Ranks that compute hear it first, with [`Effect::Signal`].
    Cancel {
        /// The signal that said so.
        signal: i32,
    },
    /// A task of Slurm's, which this slot is, was sent a signal for its rank, which may go on after it.
    Signalled {
        /// Which slot.
        slot: SlotId,
        /// Which signal.
        signal: i32,
    },
    /// A task of Slurm's was sent this signal while the agent before this one was there, so long ago.
    Remembered {
        /// Which signal.
        signal: i32,
        /// How long ago.
        ago: Micros,
    },
    /// The rank of a slot has been given a signal again that an earlier world had heard, with [`Patience::Caught`].
    Repeated {
        /// Which signal.
        signal: i32,
    },
    /// The user has stopped the job's ranks, or lets them go on. The time of a job over nodes goes on meanwhile.
    Suspended(bool),
}

/// How long a signal waits for its rank to catch it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Not at all.
    None,
    /// Until the rank catches it, or has had the time to.
    Start,
    /// Until the rank catches it: else it has none.
    Caught,
}

/// What an agent wants done, in this order. Answers come as later events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Read the job's key, linearizable. Answered by `StoreRead` or `StoreUnavailable`.
    ReadStore,
    /// Write the key if it is still at this revision (0: absent), and these nodes' leases are held. Answered by `CasDone`,
    /// `CasLost`, `CasUnfit`, `StoreUnavailable`.
    Cas {
        /// The revision it must have.
        expected: Revision,
        /// Nodes on which ranks are placed that had none: they may have died without anybody's having heard it.
        leases: Vec<NodeId>,
        /// The value.
        record: Arc<EpochRecord>,
    },
    /// Tell another agent. May be lost.
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        message: PeerMessage,
    },
    /// A `Timer` event at this time; the latest call counts, earlier ones are void.
    WakeAt(Micros),
    /// Start these processes on these slots of this node; the slots are up and empty.
    Launch {
        /// Their world.
        world: WorldId,
        /// The epoch that the world is for.
        epoch: EpochId,
        /// Which process on which slot.
        processes: Vec<(Process, SlotId)>,
        /// They must wait before `main` until [`Effect::Release`]; otherwise they run at once and `Release` follows in
        /// the same list.
        parked: bool,
    },
    /// The world is the job's world now: parked processes go on.
    Release(WorldId),
    /// SIGKILL every process of this world on this node, launched or parked, and its PMIx server. Always answered by
    /// `WorldEmptied`, at once if there is none.
    StopWorld(WorldId),
    /// SIGSTOP every rank of this node.
    Pause,
    /// SIGCONT every rank of this node.
    Continue,
    /// Look at every local process of the released world at once. Answered by `Surveyed`.
    Survey,
    /// Read what the processes of the stopped world left in their pipes. Answered by `Drained`.
    Drain(WorldId),
    /// Freeze this node's checkpoints: accept no commit of `world` or an older one any more, finish and verify the
    /// checksums. Answered by `InventoryTaken`.
    TakeInventory {
        /// The epoch that begins.
        epoch: EpochId,
        /// The world that ended.
        world: WorldId,
    },
    /// Verifying takes long: say what is verified by now, and go on with the rest. Answered by `InventorySoFar`, unless everything has
    /// been read meanwhile and `InventoryTaken` is on its way. Comes again while something is read.
    ListVerified {
        /// The epoch that begins.
        epoch: EpochId,
    },
    /// What `ft_restore` gives the ranks of this group in this epoch. Every version newer than it is to be dropped:
    /// it will be computed anew. Ranks that ask before this wait.
    Restore {
        /// The epoch.
        epoch: EpochId,
        /// The group; 0 is all ranks unless the job has colours.
        group: GroupId,
        /// Version and the epoch that committed it; `None`: from the beginning.
        stamp: Option<Stamp>,
        /// The ranks of the group that are placed on this node and whose copy is not here: each waits for [`Effect::Fetch`].
        away: RankSet,
    },
    /// Bring the copy of this version of a rank of this node from there, and from nowhere else. Answered by `Fetched` or
    /// `NotFetched`, within a bounded time.
    Fetch {
        /// The epoch.
        epoch: EpochId,
        /// Whose.
        rank: Rank,
        /// Version and the epoch that committed it.
        stamp: Stamp,
        /// A node that has said that it holds it.
        from: NodeId,
    },
    /// Every agent knows what is restored, and has it. Of the group's versions from before this epoch only these are needed any more: the
    /// restored one, and the newest that would be left if another node died; the places of all others may be used again,
    /// and a copy of one that another node was still sending is not taken any more.
    Keep {
        /// The group; 0 is all ranks unless the job has colours.
        group: GroupId,
        /// The versions, oldest first.
        stamps: Vec<Stamp>,
    },
    /// `complete` is whole for every rank of the group, and as safe as what is older; places that hold older versions may be used
    /// again, and no copies of them are taken any more.
    Retire {
        /// The group; 0 is all ranks unless the job has colours.
        group: GroupId,
        /// At which level it is.
        level: Level,
        /// The newest complete version.
        complete: Version,
    },
    /// Answer to [`Event::DueAsked`]; the same for the n-th question of every rank of the job.
    AnswerDue {
        /// Whose question.
        process: Process,
        /// Whether it is time.
        yes: bool,
    },
    /// Let a process go on with the `MPI_Abort` that it waits in: it was its own wish.
    Proceed {
        /// Which.
        process: Process,
        /// What it wished.
        end: OwnEnd,
    },
    /// Send this signal to every process of the released world on this node that has not ended.
    Signal {
        /// The signal.
        signal: i32,
    },
    /// Send this signal to the rank of this slot.
    PassOn {
        /// Which slot.
        slot: SlotId,
        /// The signal.
        signal: i32,
        /// How long it waits there.
        patience: Patience,
    },
    /// The ranks were told to end, by signals that they have had already.
    Leave,
    /// Start another slot on this node. Answered by `SlotAdded`, and `SlotUp` once its shepherd has dialled in.
    NeedSlot,
    /// Start this slot on this node, beyond its own. Answered likewise.
    MakeSlot(SlotId),
    /// Tell people.
    Report(Report),
    /// The job is over on this node; nothing of it runs here any more. Last effect.
    End {
        /// The job's exit status.
        status: i32,
        /// Why, when it is not a clean end.
        reason: Option<String>,
        /// Whose end it is.
        standing: Standing,
    },
}

/// Who has agreed on the end of a job that an agent tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// All: it stands in the record.
    Agreed,
    /// The node is not in the job any more, which may go on without it.
    LeftOut,
    /// Nobody: the store was away for too long. Others may go on, and what they say counts; unless it is a clean end, for then all
    /// have said that they have ended well.
    Unrecorded,
}
