//! What an agent knows of its epoch, and forgets with it.

use super::copies::Copies;
use super::missed::Missed;
use super::questions::Questions;
use super::short::Short;
use super::stage::Stage;
use super::unfit::Unfit;
use crate::blame::Phase;
use crate::holdings::Holdings;
use crate::ids::{GroupId, Micros, Process, Version};
use crate::inventory::{Choice, Inventory, Ledger, Level};
use crate::joined::Family;
use crate::record::EpochRecord;
use std::collections::BTreeMap;

/// A local process of the record's world.
#[derive(Debug, Clone, Default)]
pub(super) struct Local {
    pub(super) phase: Phase,
    /// It has called `MPI_Init`, which waits for the others, with an MPI of this family.
    pub(super) joined: Option<Family>,
    /// Its futex fired before `MPI_Init` was over or after `MPI_Finalize`: its exit will say what that was.
    pub(super) dying: bool,
    /// A survey found it dead or on its way out: its exit will say how.
    pub(super) leaving: bool,
    pub(super) end: Option<LocalEnd>,
    /// Since when its exit is waited for, which will say whether it has answered a signal.
    pub(super) awaited: Option<Micros>,
    /// Its exit was told, or its slot is gone.
    pub(super) gone: bool,
    /// It has asked for its state.
    pub(super) asked: bool,
    pub(super) restored: bool,
    /// Why it did not get its state back when it asked for it last.
    pub(super) refused: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LocalEnd {
    Clean,
    Failed,
    Own,
}

/// What belongs to one epoch on this node: the next one has none of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Run {
    pub(super) stage: Stage,
    /// Since when.
    pub(super) since: Micros,
    /// The processes of its world.
    pub(super) locals: BTreeMap<Process, Local>,
    pub(super) questions: Questions,
    /// What the world before wrote has been read.
    pub(super) drained: bool,
    /// Of which versions this node's ranks have copies, once all have been told of.
    pub(super) holdings: Option<Holdings>,
    /// They were counted while a node was still reading, and will be once more.
    pub(super) early: bool,
    /// Since when it is verified what this node has, or since when it was asked last how far that is.
    pub(super) inventory_asked: Option<Micros>,
    /// How often it was.
    pub(super) inventory_looks: u32,
    /// What this node had not verified in time, when the others were told what it has: the choice is made without it.
    pub(super) left_out: Inventory,
    /// What is restored.
    pub(super) choice: Option<Choice>,
    pub(super) copies: Copies,
    /// Since when this node would write that others are silent.
    pub(super) accused: Option<Micros>,
    /// Until when it leaves writing that to others.
    pub(super) yields_until: Option<Micros>,
    /// Since when the store, which is away, is needed.
    pub(super) needs: Option<Micros>,
    /// What was heard of others who need it, and do not reach it.
    pub(super) missed: Missed,
    /// Since when it is known that all ranks of all nodes have ended well.
    pub(super) finished: Option<Micros>,
    /// It restored a newer version than the epoch before it.
    pub(super) late_progress: bool,
    /// What is older than the choice was given up.
    pub(super) retired: bool,
    pub(super) ledger: Ledger,
    /// The newest version of each group that has become complete, and was told of.
    pub(super) complete: BTreeMap<(GroupId, Level), Version>,
    /// Its recovery, noticed at this time, was reported without anybody having taken back what there is.
    pub(super) denied: Option<Micros>,
    /// When this node killed its ranks, because it had neither a lease nor the record for too long.
    pub(super) fenced: Option<Micros>,
    pub(super) unfit: Unfit,
    /// What cannot be placed, and since when.
    pub(super) short: Option<Short>,
}

impl Run {
    /// An epoch begins.
    pub(super) fn of(record: &EpochRecord, now: Micros) -> Self {
        Run { stage: Stage::Emptying, since: now, copies: Copies::of(record), ..Run::default() }
    }
}
