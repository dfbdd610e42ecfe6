//! Copies on their way.

use crate::arenas::Commit;
use ft_arena::Description;
use ft_wire::copies::{CopyFacts, CopyName, CopyWord};
use ft_wire::ship::{Move, Target, Window};
use ft_wire::{Rank, Version};
use ftd_core::NodeId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

/// How far a version of a rank of this node is on its way to a partner.
#[derive(Debug, Clone, Copy)]
pub enum Way {
    /// It is offered; said last then.
    Offered(Instant),
    /// Its bytes move.
    Moving(Move),
    /// They are there, and the partner looks at them; said last then.
    Written(Instant),
}

/// A version that a partner is to have.
#[derive(Debug)]
pub struct Sending {
    pub copy: CopyName,
    pub facts: CopyFacts,
    pub place: u32,
    pub to: NodeId,
    pub way: Way,
    /// Since when it is on this part of it.
    pub since: Instant,
    pub began: Instant,
    /// How often it went wrong with this partner.
    pub failures: u32,
    /// Bytes that have moved.
    pub moved: u64,
    /// Who does not keep it, and why.
    pub refused: BTreeMap<NodeId, String>,
    /// Of these, who has room for it, and to whom there seems to be no straight way.
    pub round: BTreeSet<NodeId>,
    /// Nobody else is left: bytes are tried to be moved to those of them to whom that was not tried in vain of late.
    pub straight: bool,
}

/// To whom nothing came of late.
#[derive(Debug, Clone, Copy)]
pub struct Unreached {
    /// Until then it comes last.
    pub until: Instant,
    /// Bytes were tried to be moved there, in vain.
    pub tried: bool,
}

/// A rank's versions that are to be sent: one, and after that these.
#[derive(Debug, Default)]
pub struct Queue {
    pub now: Option<Sending>,
    pub next: VecDeque<Commit>,
}

/// How far a version of a rank on another node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stay {
    /// Its window is being made.
    Opening,
    /// It may be written.
    Open(Target),
    /// It has been written, and nobody is to write any more.
    Closing,
    /// It is compared with its checksum.
    Checked,
}

/// A version that is kept for another node.
#[derive(Debug)]
pub struct Keeping {
    pub from: NodeId,
    pub copy: CopyName,
    pub facts: CopyFacts,
    pub place: u32,
    pub sequence: u64,
    pub window: Window,
    pub stay: Stay,
}

/// How far a version is on its way back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Back {
    /// It is asked for; said last then.
    Asked(Instant),
    /// Its bytes move.
    Moving(Move),
    /// It is compared with its checksum.
    Checked,
}

/// How a version may come from the node that holds it.
#[derive(Debug)]
pub struct Ways {
    /// Who has it.
    pub holder: NodeId,
    /// How often it went wrong straight from there.
    pub failures: u32,
    /// Third nodes that were asked to have it from there and to pass it on.
    pub asked: BTreeSet<NodeId>,
    /// It is for the ranks of this node, which has no way to the holder, and which calls it so.
    pub behalf: Option<(NodeId, CopyName)>,
}

impl Ways {
    /// Straight from there.
    pub fn from(holder: NodeId) -> Self {
        Ways { holder, failures: 0, asked: BTreeSet::new(), behalf: None }
    }
}

/// A version that a rank of this node, or of one for which it is to be had here, is to take back, and that is elsewhere.
#[derive(Debug)]
pub struct Fetching {
    pub copy: CopyName,
    /// Whom it is read from.
    pub from: NodeId,
    pub ways: Ways,
    pub since: Instant,
    pub back: Back,
    pub facts: Option<CopyFacts>,
    /// Place and commit.
    pub into: Option<(u32, u64)>,
}

impl Fetching {
    /// That node is to say that it may be read.
    pub fn awaits(&self, from: NodeId, copy: CopyName) -> bool {
        self.copy == copy && self.from == from && matches!(self.back, Back::Asked(_))
    }

    /// What is said to whom it is read from.
    pub fn wish(&self) -> CopyWord {
        let copy = self.copy;
        match self.ways.holder {
            holder if holder == self.from => CopyWord::Want { copy },
            holder => CopyWord::WantThrough { copy, holder: holder.0 },
        }
    }
}

/// A version that another node reads.
#[derive(Debug)]
pub struct Lent {
    pub copy: CopyName,
    pub facts: CopyFacts,
    pub window: Window,
    pub target: Option<Target>,
}

/// What a window is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// For a version that is kept.
    Keeping(Rank),
    /// For one that another node reads.
    Lent(NodeId, Rank),
    /// For nothing any more: it is being hidden. A place that it is on is not used meanwhile.
    Nothing(Option<(Rank, u32)>),
}

/// What a move is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Errand {
    /// To a partner.
    There(Rank),
    /// Back, to a place.
    Back(Rank, u32),
}

/// Version and epoch.
pub fn commit(copy: CopyName) -> Commit {
    (copy.version, copy.committed)
}

/// As the arenas have it.
pub fn description(copy: CopyName, facts: CopyFacts) -> Description {
    let CopyFacts { bytes, regions, table_check, checksum } = facts;
    Description { version: copy.version, epoch: copy.committed, bytes, regions, table_check, checksum }
}

/// As the words have it.
pub fn facts(found: &Description) -> CopyFacts {
    let Description { bytes, regions, table_check, checksum, .. } = *found;
    CopyFacts { bytes, regions, table_check, checksum }
}

/// A version that is not needed any more.
pub fn older(copy: CopyName, complete: Version) -> bool {
    copy.version < complete
}
