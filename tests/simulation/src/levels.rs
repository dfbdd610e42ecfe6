//! Who holds which version: what may be given up for what, and what an epoch owes (DESIGN §7, levels; invariant 4).
//!
//! A version of which every rank has a copy on another node than its own is given up for one of which that is true as well,
//! whatever the profile: else the next node that dies takes with it what was safe from that.

use crate::invariants::{Checks, Violation};
use crate::node::Machine;
use crate::world::World;
use ftd_core::{EpochId, EpochRecord, GroupId, Inventory, NodeId, Rank, Stamp, Version};
use std::collections::{BTreeMap, BTreeSet};

/// More ranks than any random run has.
const LARGE: u32 = 64;

/// A copy that counts: where it lies since when, and when it was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lies {
    node: usize,
    since: u64,
    until: Option<u64>,
}

/// The copies of a version.
type Copies = BTreeMap<Rank, Vec<Lies>>;

/// What is held, and when which epoch began.
#[derive(Debug, Default)]
pub struct Levels {
    held: BTreeMap<(GroupId, Stamp), Copies>,
    sizes: BTreeMap<GroupId, usize>,
    began: BTreeMap<EpochId, u64>,
    looked_up: LookedUp,
}

/// Answers that took a look at all ranks, with the count of changes at which they were given.
#[derive(Debug, Default)]
struct LookedUp {
    owed: Option<(u64, EpochId, GroupId, Option<Stamp>)>,
    retired: Option<(u64, EpochId, GroupId, Version)>,
    kept: Option<(u64, EpochId, GroupId, Stamp)>,
}

impl Levels {
    pub fn of(sizes: BTreeMap<GroupId, usize>) -> Self {
        Levels { sizes, ..Levels::default() }
    }

    /// When the first epoch was agreed.
    pub fn first(&self) -> u64 {
        self.began.values().next().copied().unwrap_or(u64::MAX)
    }

    /// An epoch was agreed.
    pub fn begins(&mut self, epoch: EpochId, now: u64) {
        self.began.entry(epoch).or_insert(now);
    }

    /// What is left of a group when what does not suit is given up: whether anything was.
    fn keep(&mut self, group: GroupId, suits: impl Fn(Stamp) -> bool) -> bool {
        let before = self.held.len();
        self.held.retain(|(of, stamp), _| *of != group || suits(*stamp));
        self.held.len() != before
    }

    /// The newest of these versions of which every rank has a copy on another node than its own: what is left when a node dies.
    /// With `since` copies count also that were lost after that: a version was complete at its level when it was, and who has
    /// died since then is another matter.
    fn safest(
        &self,
        group: GroupId,
        suits: impl Fn(Stamp) -> bool,
        elsewhere: impl Fn(Rank, Stamp, usize) -> bool,
        since: Option<u64>,
    ) -> Option<Stamp> {
        let size = self.sizes.get(&group).copied()?;
        let counts = |lies: &Lies| match lies.until {
            None => true,
            Some(until) => since.is_some_and(|since| until >= since),
        };
        let safe = |stamp: Stamp, copies: &Copies| {
            let away = |(rank, of_rank): (&Rank, &Vec<Lies>)| {
                of_rank.iter().any(|lies| counts(lies) && elsewhere(*rank, stamp, lies.node))
            };
            copies.len() == size && copies.iter().all(away)
        };
        let of_group = self.held.iter().rev().filter(|((of, stamp), _)| *of == group && suits(*stamp));
        of_group.filter(|((_, stamp), copies)| safe(*stamp, copies)).map(|((_, stamp), _)| *stamp).next()
    }
}

impl Checks {
    /// A rank's version is whole and hashed on this node.
    pub fn holds(&mut self, group: GroupId, rank: Rank, stamp: Stamp, node: usize, now: u64) {
        let copies = self.levels.held.entry((group, stamp)).or_default().entry(rank).or_default();
        if copies.iter().all(|lies| lies.node != node || lies.until.is_some()) {
            copies.push(Lies { node, since: now, until: None });
            self.changes += 1;
        }
    }

    /// What this node held is gone.
    pub fn lost(&mut self, node: usize, now: u64) {
        let all = self.levels.held.values_mut().flat_map(BTreeMap::values_mut).flatten();
        all.filter(|lies| lies.node == node).for_each(|lies| _ = lies.until.get_or_insert(now));
        self.changes += 1;
    }

    /// No version of this rank is on this node any more.
    pub fn spoilt(&mut self, rank: Rank, node: usize, now: u64) {
        let of_rank = self.levels.held.values_mut().filter_map(|copies| copies.get_mut(&rank)).flatten();
        of_rank.filter(|lies| lies.node == node).for_each(|lies| _ = lies.until.get_or_insert(now));
        self.changes += 1;
    }

    /// Of a group only what suits is left.
    pub fn left(&mut self, group: GroupId, suits: impl Fn(Stamp) -> bool) {
        self.changes += u64::from(self.levels.keep(group, suits));
    }
}

impl World {
    /// What a node holds counts for its job: it is a member, and its memory is what it was.
    fn counts_for_job(&self, node: usize) -> bool {
        self.machines[node].alive && !self.is_out(node)
    }

    /// The sentence of whoever keeps these alone in the epoch that it knows, if one of those that it `knows` of was safer.
    fn gives_up_safer(
        &self,
        node: usize,
        group: GroupId,
        kept: impl Fn(Stamp) -> bool,
        knows: impl Fn(Rank, Stamp, usize) -> bool,
    ) -> Option<String> {
        let record = self.machines[node].agent.as_ref().and_then(|agent| agent.record())?;
        let levels = &self.checks.levels;
        let since = levels.began.get(&record.epoch).copied().unwrap_or(0);
        let not_home = |rank: Rank, _: Stamp, node: usize| record.node_of(rank) != Some(NodeId(node as u32));
        let there = |rank: Rank, stamp: Stamp, node: usize| {
            not_home(rank, stamp, node) && self.counts_for_job(node) && knows(rank, stamp, node)
        };
        let safe = levels.safest(group, |_| true, there, None)?;
        if levels.safest(group, kept, not_home, Some(since)).is_some() {
            return None;
        }
        Some(format!("n{node} gives up {} of {group}, which partners hold, for what they do not", safe.version))
    }

    /// What is older than what is restored is given up only when every rank has that on its node, and with it nothing that
    /// is safer.
    pub fn check_keep(&mut self, node: usize, group: GroupId, stamps: &[Stamp]) {
        let Some(newest) = stamps.last().copied() else { return };
        let agent = self.machines[node].agent.as_ref();
        let Some(record) = agent.and_then(|agent| agent.record()).filter(|_| !self.is_out(node)) else { return };
        // In a large cluster one look counts for all nodes.
        let known = Some((self.checks.changes, record.epoch, group, newest));
        if self.checks.levels.looked_up.kept == known && self.setup.ranks > LARGE {
            return;
        }
        // A machine that was off since then had it, and nobody has agreed yet on what follows.
        let began = self.checks.levels.began.get(&record.epoch).copied().unwrap_or(0);
        let lacks = |rank: &Rank| {
            let home = record.node_of(*rank).map(|node| &self.machines[node.0 as usize]);
            let here =
                |machine: &Machine| machine.arena.hashed().any(|(owner, copy)| owner == *rank && copy.stamp >= newest);
            let stayed = |machine: &Machine| machine.alive && machine.crashed_at.is_none_or(|at| at < began);
            home.is_some_and(|machine| stayed(machine) && !here(machine))
        };
        let mut ranks = (0..self.setup.ranks).map(Rank).filter(|rank| self.checks.groups.of(*rank) == group);
        let epoch = record.epoch;
        if let Some(rank) = ranks.find(lacks) {
            let version = newest.version;
            let sentence = format!("n{node} gives up what is older than {version}, which {rank} has not got back yet");
            return self.violated(Violation::Lost(sentence));
        }
        let kept = |stamp: Stamp| stamp >= newest || stamps.contains(&stamp);
        // What has come to a partner since the inventories were taken is not known.
        let gone = record.not_fetched();
        let inventories = self.checks.inventories(epoch);
        let knows = |rank: Rank, stamp: Stamp, node: usize| {
            let listed = |inventory: &Inventory| {
                inventory.holdings.iter().any(|holding| (holding.owner, holding.stamp) == (rank, stamp))
            };
            !gone.contains(&(rank, stamp)) && inventories.get(&node).is_some_and(|all| listed(all))
        };
        if let Some(sentence) = self.gives_up_safer(node, group, kept, knows) {
            return self.violated(Violation::Lost(sentence));
        }
        self.checks.left(group, kept);
        self.checks.levels.looked_up.kept = Some((self.checks.changes, epoch, group, newest));
    }

    /// A version is given up only for one that is complete, at the same or a safer level.
    pub fn check_retire(&mut self, node: usize, group: GroupId, complete: Version) {
        // What a node that was left out holds is lost already; it may act on what it heard before.
        if self.is_out(node) || !self.machines[node].alive {
            return;
        }
        let agent = self.machines[node].agent.as_ref();
        let epoch = agent.and_then(|agent| agent.record()).map(|record| record.epoch).unwrap_or_default();
        let known = Some((self.checks.changes, epoch, group, complete));
        if self.checks.levels.looked_up.retired == known {
            return;
        }
        let mut ranks = (0..self.setup.ranks).map(Rank).filter(|rank| self.checks.groups.of(*rank) == group);
        // (Whoever held it may have died since.)
        let held = &self.checks.levels.held;
        let newer = || held.iter().filter(|((of, stamp), _)| *of == group && stamp.version >= complete);
        if let Some(rank) = ranks.find(|rank| !newer().any(|(_, copies)| copies.contains_key(rank))) {
            let sentence = format!("n{node} gives up what is older than {complete}, which {rank} does not hold");
            return self.violated(Violation::Lost(sentence));
        }
        let kept = |stamp: Stamp| stamp.version >= complete;
        if let Some(sentence) = self.gives_up_safer(node, group, kept, |_, _, _| true) {
            return self.violated(Violation::Lost(format!("{sentence}: {complete}")));
        }
        self.checks.left(group, kept);
        self.checks.levels.looked_up.retired = Some((self.checks.changes, epoch, group, complete));
    }

    /// The newest version from before this epoch of which every rank's bytes lie on a node that has been there all the
    /// time since.
    pub fn owed(&mut self, group: GroupId, epoch: EpochId) -> Option<Stamp> {
        let changes = self.checks.changes;
        match self.checks.levels.looked_up.owed {
            Some((at, of_epoch, of, owed)) if (at, of_epoch, of) == (changes, epoch, group) => owed,
            _ => {
                let owed = self.owed_now(group, epoch);
                self.checks.levels.looked_up.owed = Some((changes, epoch, group, owed));
                owed
            }
        }
    }

    fn owed_now(&self, group: GroupId, epoch: EpochId) -> Option<Stamp> {
        let record: &EpochRecord = self.store.value()?;
        let size = self.checks.levels.sizes.get(&group).copied()?;
        // When what is newest cannot be had, what is older may have been given up for it.
        let gone: BTreeSet<Stamp> = record.not_fetched().into_iter().map(|(_, stamp)| stamp).collect();
        let there = |rank: &Rank, stamp: Stamp, lies: &Lies| {
            let machine = &self.machines[lies.node];
            let kept = machine.crashed_at.is_none_or(|at| at < lies.since);
            let member = record.is_member(NodeId(lies.node as u32));
            lies.until.is_none()
                && machine.alive
                && kept
                && member
                && (gone.is_empty() || machine.arena.find(*rank, stamp).is_some())
        };
        let whole = |stamp: Stamp, copies: &Copies| {
            let mut ranks = copies.iter();
            copies.len() == size && ranks.all(|(rank, of_rank)| of_rank.iter().any(|lies| there(rank, stamp, lies)))
        };
        let before = |of: GroupId, stamp: Stamp| of == group && stamp.epoch < epoch && !gone.contains(&stamp);
        let of_group = self.checks.levels.held.iter().filter(|((of, stamp), _)| before(*of, *stamp));
        of_group.filter(|((_, stamp), copies)| whole(*stamp, copies)).map(|((_, stamp), _)| *stamp).max()
    }
}
