//! What must hold: DESIGN §4's seven invariants, looked at after every step that may have changed something of them, and
//! at the end of a job whether its end is true. Together with `driver` this knows the interface of `ftd_core` in detail.

use crate::application::Proc;
use crate::computing::Computing;
use crate::faults;
use crate::fetches::Fetching;
use crate::node::Machine;
use crate::setup::Setup;
use crate::world::World;
use ftd_core::inventory::choose;
use ftd_core::{
    Cause, Choice, EpochId, EpochRecord, GroupId, Groups, Holding, Inventory, Mode, NodeId, Outcome, PeerMessage,
    Process, Rank, Recovery, SlotId, SlotState, Stamp, Subject, Version, WorldId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A rule that was broken, with a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// Invariant 1.
    Epochs(String),
    /// Invariant 2: two processes of one rank.
    Twice(String),
    /// Invariant 2: a process of an ended epoch commits.
    Commit(String),
    /// Invariant 3.
    Placement(String),
    /// Invariant 4: wrong, incomplete or mixed bytes.
    Bytes(String),
    /// Invariant 4, and §7: bytes that were safe are gone.
    Lost(String),
    /// Invariant 5.
    Fence(String),
    /// Invariant 6: the job neither goes on nor ends.
    Hang(String),
    /// Invariant 6: it ended for a reason that is not true.
    Untrue(String),
    /// §4: a job's end is a record.
    Unrecorded(String),
    /// Invariant 7.
    LeftOut(String),
    /// §7: ranks are told differently whether a checkpoint is due.
    Due(String),
    /// The driver was told to do something that cannot be.
    Order(String),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rule, what) = match self {
            Violation::Epochs(what) => ("invariant 1", what),
            Violation::Twice(what) | Violation::Commit(what) => ("invariant 2", what),
            Violation::Placement(what) => ("invariant 3", what),
            Violation::Bytes(what) => ("invariant 4", what),
            Violation::Lost(what) => ("invariant 4 (levels)", what),
            Violation::Fence(what) => ("invariant 5", what),
            Violation::Hang(what) => ("invariant 6", what),
            Violation::Untrue(what) => ("invariant 6 (true reasons)", what),
            Violation::Unrecorded(what) => ("every end is a record", what),
            Violation::LeftOut(what) => ("invariant 7", what),
            Violation::Due(what) => ("one answer for all", what),
            Violation::Order(what) => ("order", what),
        };
        write!(f, "{rule}: {what}")
    }
}

/// More ranks than any random run has.
const LARGE: u32 = 64;

/// Where a rank's version lay, and since when.
type Holders = BTreeMap<Rank, Vec<(usize, u64)>>;

/// What the checks remember.
pub struct Checks {
    first: Option<(u64, Violation)>,
    computing: Computing,
    newest: EpochId,
    world: WorldId,
    /// Processes that ftd ended itself.
    pub put_down: BTreeSet<Process>,
    launched: BTreeSet<Process>,
    pub reports: Vec<Recovery>,
    inventories: BTreeMap<EpochId, BTreeMap<usize, Inventory>>,
    choices: BTreeMap<(EpochId, GroupId), Option<Stamp>>,
    /// Who has offered which rank's copy to whom, and who could not send it.
    offers: BTreeSet<(EpochId, Rank, usize, usize)>,
    in_vain: BTreeSet<(EpochId, Rank, usize)>,
    held: BTreeMap<(GroupId, Stamp), Holders>,
    groups: Groups,
    sizes: BTreeMap<GroupId, usize>,
    /// Counts what changes of who holds what: what is looked up for one node is so for all, until then.
    changes: u64,
    looked_up: LookedUp,
}

/// Answers that took a look at all ranks, with the count of changes at which they were given.
#[derive(Debug, Default)]
struct LookedUp {
    newest: Option<(u64, EpochId, Choice)>,
    owed: Option<(u64, EpochId, GroupId, Option<Stamp>)>,
    retired: Option<(u64, GroupId, Version)>,
    kept: Option<(u64, EpochId, GroupId, Stamp)>,
}

impl Checks {
    pub fn new(setup: &Setup) -> Self {
        let groups = Groups::coloured((0..setup.ranks).map(|rank| GroupId(setup.group(rank))).collect());
        let sizes = groups.ranks(setup.ranks).into_iter().map(|(group, ranks)| (group, ranks.len() as usize)).collect();
        Checks {
            first: None,
            computing: Computing::default(),
            newest: EpochId(0),
            world: WorldId(0),
            put_down: BTreeSet::new(),
            launched: BTreeSet::new(),
            reports: Vec::new(),
            inventories: BTreeMap::new(),
            choices: BTreeMap::new(),
            offers: BTreeSet::new(),
            in_vain: BTreeSet::new(),
            held: BTreeMap::new(),
            groups,
            sizes,
            changes: 0,
            looked_up: LookedUp::default(),
        }
    }

    /// Something changed of who computes on this node.
    pub fn look_at(&mut self, node: usize) {
        self.computing.look_at(node);
    }

    pub fn violated(&mut self, now: u64, violation: Violation) {
        self.first.get_or_insert((now, violation));
    }

    /// The first rule that was broken, and when.
    pub fn first(&self) -> Option<&(u64, Violation)> {
        self.first.as_ref()
    }

    /// A rank's version is whole and hashed on this node.
    pub fn holds(&mut self, group: GroupId, rank: Rank, stamp: Stamp, node: usize, now: u64) {
        let holders = self.held.entry((group, stamp)).or_default().entry(rank).or_default();
        if holders.iter().all(|(other, _)| *other != node) {
            holders.push((node, now));
            self.changes += 1;
        }
    }

    /// What this node held is gone.
    pub fn lost(&mut self, node: usize) {
        self.held.values_mut().flat_map(BTreeMap::values_mut).for_each(|held| held.retain(|(other, _)| *other != node));
        self.changes += 1;
    }

    /// No version of this rank is on this node any more.
    pub fn spoilt(&mut self, rank: Rank, node: usize) {
        let holders = self.held.values_mut().filter_map(|held| held.get_mut(&rank));
        holders.for_each(|holders| holders.retain(|(holder, _)| *holder != node));
        self.changes += 1;
    }

    /// A copy was asked for, and did not come.
    pub fn in_vain(&mut self, epoch: EpochId, rank: Rank, from: usize) {
        self.in_vain.insert((epoch, rank, from));
    }

    /// Versions older than the newest of these, others than these, are given up.
    pub fn given_up(&mut self, group: GroupId, kept: &[Stamp]) {
        let Some(newest) = kept.last() else { return };
        let before = self.held.len();
        self.held.retain(|(of, stamp), _| *of != group || stamp >= newest || kept.contains(stamp));
        self.changes += u64::from(self.held.len() != before);
    }

    /// What a node says that it holds; what was whole was hashed for it.
    pub fn inventory(&mut self, node: usize, epoch: EpochId, inventory: &Inventory, now: u64) {
        for holding in &inventory.holdings {
            let group = self.groups.of(holding.owner);
            self.holds(group, holding.owner, holding.stamp, node, now);
        }
        self.inventories.entry(epoch).or_default().insert(node, inventory.clone());
        self.changes += 1;
    }
}

impl World {
    /// Whether a process computes at this instant, as far as DESIGN §4 counts it: a machine that was suspended whole may
    /// go on until ¾ T after it resumed.
    fn counts(&self, proc: &Proc) -> bool {
        let machine = &self.machines[proc.node];
        let excused = machine.suspended_until > 0 && self.now < machine.suspended_until + self.setup.timeout() / 4 * 3;
        proc.loaded && !proc.parked && proc.dead.is_none() && !machine.still(self.now) && !excused
    }

    /// Invariants 2 and 5, if anything changed of them.
    pub fn check_instant(&mut self) {
        let changed = self.checks.computing.changed(self.machines.len());
        if changed.is_empty() {
            return;
        }
        for node in changed {
            let machine = &self.machines[node];
            let here = self.ranks.of(machine).filter(|(_, proc)| machine.alive && self.counts(proc));
            let here: Vec<Process> = here.map(|(_, proc)| proc.name).collect();
            if let Some(name) = here.first().filter(|_| self.is_out(node)) {
                let epoch = self.store.value().map_or(EpochId(0), |record| record.epoch);
                let sentence = format!("{name} computes on n{node}, which {epoch} has left out");
                self.violated(Violation::Fence(sentence));
            }
            self.checks.computing.set(node, here);
        }
        if let Some((name, other)) = self.checks.computing.clash() {
            self.violated(Violation::Twice(format!("{name} and {other} compute at the same time")));
        }
    }

    /// Each process is launched once, on a slot where nothing runs.
    pub fn check_launch(&mut self, node: usize, name: Process, slot: SlotId) {
        if !self.checks.launched.insert(name) {
            self.violated(Violation::Twice(format!("{name} is launched a second time, on n{node}")));
        }
        let here = self.ranks.of(&self.machines[node]);
        let other = here.filter(|(_, proc)| proc.slot == slot && proc.dead.is_none()).map(|(_, proc)| proc.name).next();
        if let Some(other) = other {
            self.violated(Violation::Order(format!("{name} is launched on {slot}, where {other} still is")));
        }
    }

    /// Nothing of the world that ended may still write when its checkpoints are frozen.
    pub fn check_frozen(&mut self, node: usize, world: WorldId) {
        let writes = |proc: &Proc| proc.name.world <= world && proc.dead.is_none();
        if self.ranks.of(&self.machines[node]).any(|(_, proc)| writes(proc)) {
            self.violated(Violation::Commit(format!("n{node} takes its inventory while {world} is still there")));
        }
    }

    /// Invariants 1, 3, 5 and 7, when a record is written.
    pub fn check_written(&mut self, by: usize, before: Option<&EpochRecord>, record: &EpochRecord) {
        self.checks.computing.look();
        self.checks.changes += 1;
        let fresh = record.epoch > self.checks.newest;
        if let Err(violation) = self.one_record_per_epoch(before, record) {
            self.violated(violation);
        }
        if let Err(error) = record.check() {
            self.violated(Violation::Placement(format!("a wrong record was written: {error}")));
        }
        if !fresh {
            return;
        }
        self.last_sign = self.now;
        self.checks.newest = record.epoch;
        self.checks.world = record.world;
        let blamed = [self.blames_ftd(record), self.gives_up_early(before, record), self.recovers_cancelled(record)];
        for violation in blamed.into_iter().chain([self.unfit_node(before, record)]) {
            violation.into_iter().for_each(|violation| self.violated(violation));
        }
        let left = before.into_iter().flat_map(EpochRecord::members).filter(|node| !record.is_member(*node));
        let harmed = faults::harmed(&self.setup, self.now);
        for node in left {
            if !harmed.has(self.machines[node.0 as usize].place) {
                let epoch = record.epoch;
                let sentence = format!("n{by} leaves n{} out in {epoch}, which nothing had happened to", node.0);
                self.violated(Violation::LeftOut(sentence));
            } else if self.setup.promises.nobody_out {
                self.violated(Violation::LeftOut(format!("n{by} leaves n{} out in {}", node.0, record.epoch)));
            }
        }
    }

    fn one_record_per_epoch(&self, before: Option<&EpochRecord>, record: &EpochRecord) -> Result<(), Violation> {
        let newest = self.checks.newest;
        let epoch = record.epoch;
        if before.is_none() || newest == EpochId(0) {
            // Whose key was deleted can only end.
            let deleted = newest > EpochId(0) && record.outcome.is_some();
            let right = deleted || (epoch == newest.next() && newest == EpochId(0));
            let sentence = || Violation::Epochs(format!("{epoch} was written anew after {newest}"));
            return right.then_some(()).ok_or_else(sentence);
        }
        let Some(before) = before else { return Ok(()) };
        // Within an epoch a record may be written again, unchanged but for what moves the revision.
        let again = epoch == before.epoch && record == before;
        if !again && epoch != before.epoch.next() {
            return Err(Violation::Epochs(format!("{epoch} was written after {}", before.epoch)));
        }
        if record.outcome.is_none() && epoch > before.epoch && record.world <= before.world {
            let sentence = format!("{epoch} names {} after {}", record.world, before.world);
            return Err(Violation::Epochs(sentence));
        }
        let back = |entry: &ftd_core::SlotEntry| {
            let was = before.slot(entry.slot).map(|entry| entry.state);
            was == Some(SlotState::Lost) && entry.state != SlotState::Lost
        };
        match record.slots.iter().find(back) {
            Some(entry) => Err(Violation::Epochs(format!("{} was lost and is back in {epoch}", entry.slot))),
            None => Ok(()),
        }
    }

    fn blames_ftd(&self, record: &EpochRecord) -> Option<Violation> {
        let ended = |subject| matches!(subject, Subject::Process(process) if self.checks.put_down.contains(&process));
        let wrong = record.failures.failures().iter().find(|failure| ended(failure.subject))?;
        Some(Violation::Untrue(format!("{wrong} is blamed, but ftd ended it")))
    }

    /// Once every agent has heard that the job ends (and what was on its way to the store is there) none recovers.
    fn recovers_cancelled(&self, record: &EpochRecord) -> Option<Violation> {
        let settled = 2_000_000 + self.setup.deadline;
        let (_, at) = self.cancelled?;
        let awake =
            self.machines.iter().all(|machine| machine.suspended_until.max(machine.stalled_until) + settled < self.now);
        let late = self.now > at + settled && self.now > self.setup.quiet_from() + settled && awake;
        let sentence = || Violation::Untrue(format!("{} recovers a job that was told to end", record.epoch));
        (late && record.outcome.is_none()).then(sentence)
    }

    /// A copy is gone for good only when every member that had it was asked for it.
    fn gives_up_early(&self, before: Option<&EpochRecord>, record: &EpochRecord) -> Option<Violation> {
        let before = before?;
        let inventories = self.checks.inventories.get(&before.epoch);
        record.failures.failures().iter().find_map(|failure| {
            let (Subject::Process(process), Cause::NotFetched(stamp)) = (failure.subject, failure.cause) else {
                return None;
            };
            let home = before.node_of(process.rank);
            let holds = |inventory: &Inventory| {
                inventory.holdings.iter().any(|holding| (holding.owner, holding.stamp) == (process.rank, stamp))
            };
            let mut asked = inventories.into_iter().flatten().filter(|(node, inventory)| {
                let node = NodeId(**node as u32);
                Some(node) != home && before.is_member(node) && holds(inventory)
            });
            let never = asked.find(|(node, _)| !self.checks.in_vain.contains(&(before.epoch, process.rank, **node)))?;
            let sentence = format!("{failure}, says {}, but n{} was not asked for it", record.epoch, never.0);
            Some(Violation::Untrue(sentence))
        })
    }

    /// Invariant 3: ranks are moved to no node whose lease in the store is not held.
    fn unfit_node(&self, before: Option<&EpochRecord>, record: &EpochRecord) -> Option<Violation> {
        let before = before.filter(|_| record.outcome.is_none())?;
        let moved = record.placement.iter().filter(|(rank, slot)| before.placement.slot(*rank) != Some(*slot));
        let nodes: BTreeSet<NodeId> = moved.filter_map(|(_, slot)| record.slots.node(slot)).collect();
        let dead = nodes.into_iter().find(|node| !self.holds_lease(*node))?;
        Some(Violation::Placement(format!("{} moves ranks to n{}, which is long dead", record.epoch, dead.0)))
    }

    // ---- checkpoints

    /// Nobody offers what it does not hold.
    pub fn check_offer(&mut self, node: usize, to: NodeId, message: &PeerMessage) {
        match message {
            PeerMessage::Relay { origin, to, message } if origin.0 as usize == node => {
                self.check_offer(node, *to, message)
            }
            PeerMessage::Offer { epoch, ranks } => {
                let none = Inventory::default();
                let held = self.checks.inventories.get(epoch).and_then(|of| of.get(&node)).unwrap_or(&none);
                let has = |rank: &Rank| held.holdings.iter().any(|holding| holding.owner == *rank);
                if let Some(rank) = ranks.iter().find(|rank| !has(rank)) {
                    self.violated(Violation::Order(format!("n{node} offers a copy of {rank} that it does not hold")));
                }
                let offers = ranks.iter().map(|rank| (*epoch, rank, node, to.0 as usize));
                self.checks.offers.extend(offers);
            }
            _ => {}
        }
    }

    /// A copy is fetched only from where it was offered.
    pub fn check_fetch(&mut self, node: usize, fetching: Fetching) {
        let Fetching { epoch, rank, from, .. } = fetching;
        if !self.checks.offers.contains(&(epoch, rank, from, node)) {
            let sentence = format!("n{node} is to fetch the copy of {rank} from n{from}, which has not offered it");
            self.violated(Violation::Order(sentence));
        }
    }

    /// Invariant 4: what is restored is complete, the newest that is, the same everywhere, and nothing that was safe is
    /// left behind.
    pub fn check_restore(&mut self, node: usize, epoch: EpochId, group: GroupId, stamp: Option<Stamp>) {
        let newest = self.newest(node, epoch, group);
        let shown = |stamp: Option<Stamp>| {
            stamp.map_or("nothing".into(), |stamp| format!("{} of {}", stamp.version, stamp.epoch))
        };
        if stamp != newest {
            let (is, best) = (shown(stamp), shown(newest));
            let sentence = format!("n{node} restores {is} of {group} in {epoch}; the newest complete is {best}");
            return self.violated(Violation::Bytes(sentence));
        }
        let chosen = *self.checks.choices.entry((epoch, group)).or_insert(stamp);
        if chosen != stamp {
            let (is, other) = (shown(stamp), shown(chosen));
            let sentence = format!("n{node} restores {is} of {group} in {epoch}, another node {other}");
            return self.violated(Violation::Bytes(sentence));
        }
        if let Some(owed) =
            self.owed(group, epoch).filter(|owed| stamp.is_none_or(|stamp| stamp.version < owed.version))
        {
            let sentence = format!(
                "{epoch} restores {} of {group}, although all of {} lay on nodes that are still there",
                shown(stamp),
                owed.version
            );
            return self.violated(Violation::Lost(sentence));
        }
        let keep = |old: &Stamp| old.epoch >= epoch || stamp.is_some_and(|stamp| *old <= stamp);
        let before = self.checks.held.len();
        self.checks.held.retain(|(of, old), _| *of != group || keep(old));
        self.checks.changes += u64::from(self.checks.held.len() != before);
    }

    /// What the inventories of this epoch say is the newest complete version of the group.
    fn newest(&mut self, node: usize, epoch: EpochId, group: GroupId) -> Option<Stamp> {
        let now = (self.checks.changes, epoch);
        if self.checks.looked_up.newest.as_ref().is_none_or(|(at, of, _)| (*at, *of) != now) {
            let choice = choose(&self.fetchable(node, epoch), &self.checks.groups, self.setup.ranks);
            self.checks.looked_up.newest = Some((now.0, epoch, choice));
        }
        let (_, _, choice) = self.checks.looked_up.newest.as_ref()?;
        choice.get(&group).copied().flatten()
    }

    /// What is older than what is restored is given up only when every rank has that on its node.
    pub fn check_keep(&mut self, node: usize, group: GroupId, newest: Stamp) {
        let agent = self.machines[node].agent.as_ref();
        let Some(record) = agent.and_then(|agent| agent.record()).filter(|_| !self.is_out(node)) else { return };
        // In a large cluster one look counts for all nodes.
        let known = Some((self.checks.changes, record.epoch, group, newest));
        if self.checks.looked_up.kept == known && self.setup.ranks > LARGE {
            return;
        }
        let lacks = |rank: &Rank| {
            let home = record.node_of(*rank).map(|node| &self.machines[node.0 as usize]);
            let here =
                |machine: &Machine| machine.arena.hashed().any(|(owner, copy)| owner == *rank && copy.stamp >= newest);
            home.is_some_and(|machine| machine.alive && !here(machine))
        };
        let mut ranks = (0..self.setup.ranks).map(Rank).filter(|rank| self.checks.groups.of(*rank) == group);
        if let Some(rank) = ranks.find(lacks) {
            let version = newest.version;
            let sentence = format!("n{node} gives up what is older than {version}, which {rank} has not got back yet");
            self.violated(Violation::Lost(sentence));
        }
        self.checks.looked_up.kept = known;
    }

    /// The inventories of this epoch, but for what nobody could send before.
    fn fetchable(&self, node: usize, epoch: EpochId) -> Vec<Inventory> {
        let record = self.machines[node].agent.as_ref().and_then(|agent| agent.record());
        let gone = record.map(EpochRecord::not_fetched).unwrap_or_default();
        let elsewhere = |holder: usize, rank: Rank| {
            record.and_then(|record| record.node_of(rank)).is_some_and(|home| home.0 as usize != holder)
        };
        let of_node = |(holder, inventory): (&usize, &Inventory)| {
            let mut inventory = inventory.clone();
            let lost =
                |holding: &Holding| gone.contains(&(holding.owner, holding.stamp)) && elsewhere(*holder, holding.owner);
            inventory.holdings.retain(|holding| !lost(holding));
            inventory
        };
        self.checks.inventories.get(&epoch).into_iter().flatten().map(of_node).collect()
    }

    /// A version is given up only for one that is complete, at the same or a safer level.
    pub fn check_retire(&mut self, node: usize, group: GroupId, complete: Version) {
        // What a node that was left out holds is lost already; it may act on what it heard before.
        if self.is_out(node) || !self.machines[node].alive {
            return;
        }
        let known = Some((self.checks.changes, group, complete));
        if self.checks.looked_up.retired == known && !self.setup.promises.levels {
            return;
        }
        let ranks = || (0..self.setup.ranks).map(Rank).filter(|rank| self.checks.groups.of(*rank) == group);
        let holders = |rank: Rank, stamp: &dyn Fn(Stamp) -> bool| {
            let alive = self.machines.iter().filter(|machine| machine.alive);
            alive.filter(|machine| machine.arena.hashed().any(|(of, copy)| of == rank && stamp(copy.stamp))).count()
        };
        // (Whoever held it may have died since.)
        let newer = || self.checks.held.iter().filter(|((of, stamp), _)| *of == group && stamp.version >= complete);
        let held = |rank: &Rank| newer().any(|(_, holders)| holders.contains_key(rank));
        if let Some(rank) = ranks().find(|rank| !held(rank)) {
            let sentence = format!("n{node} gives up what is older than {complete}, which {rank} does not hold");
            return self.violated(Violation::Lost(sentence));
        }
        let twice = |stamp: &dyn Fn(Stamp) -> bool| ranks().all(|rank| holders(rank, stamp) > 1);
        let older = self.checks.held.keys().filter(|(of, old)| *of == group && old.version < complete);
        let safe = older.map(|(_, old)| *old).filter(|old| self.setup.promises.levels && twice(&|stamp| stamp == *old));
        if let Some(safe) = safe.max().filter(|_| !twice(&|stamp| stamp.version >= complete)) {
            let older = safe.version;
            let sentence = format!("n{node} gives up {older}, which partners hold, for {complete}, which they do not");
            return self.violated(Violation::Lost(sentence));
        }
        // The newer one may have other partners than the older one had.
        let before = self.checks.held.len();
        self.checks.held.retain(|(of, stamp), _| *of != group || stamp.version >= complete);
        self.checks.changes += u64::from(self.checks.held.len() != before);
        self.checks.looked_up.retired = Some((self.checks.changes, group, complete));
    }

    /// The newest version from before this epoch of which every rank's bytes lie on a node that has been there all the
    /// time since.
    fn owed(&mut self, group: GroupId, epoch: EpochId) -> Option<Stamp> {
        let changes = self.checks.changes;
        match self.checks.looked_up.owed {
            Some((at, of_epoch, of, owed)) if (at, of_epoch, of) == (changes, epoch, group) => owed,
            _ => {
                let owed = self.owed_now(group, epoch);
                self.checks.looked_up.owed = Some((changes, epoch, group, owed));
                owed
            }
        }
    }

    fn owed_now(&self, group: GroupId, epoch: EpochId) -> Option<Stamp> {
        let record = self.store.value()?;
        let size = self.checks.sizes.get(&group).copied()?;
        // When what is newest cannot be had, what is older may have been given up for it.
        let gone: BTreeSet<Stamp> = record.not_fetched().into_iter().map(|(_, stamp)| stamp).collect();
        let there = |rank: &Rank, stamp: Stamp, (node, since): &(usize, u64)| {
            let machine = &self.machines[*node];
            let kept = machine.crashed_at.is_none_or(|at| at < *since) && record.is_member(NodeId(*node as u32));
            machine.alive && kept && (gone.is_empty() || machine.arena.find(*rank, stamp).is_some())
        };
        let whole = |stamp: Stamp, holders: &Holders| {
            let mut ranks = holders.iter();
            holders.len() == size
                && ranks.all(|(rank, of_rank)| of_rank.iter().any(|holder| there(rank, stamp, holder)))
        };
        let before = |of: GroupId, stamp: Stamp| of == group && stamp.epoch < epoch && !gone.contains(&stamp);
        let mut of_group = self.checks.held.iter().filter(|((of, stamp), _)| before(*of, *stamp)).collect::<Vec<_>>();
        of_group.retain(|((_, stamp), holders)| whole(*stamp, holders));
        let of_group = of_group.into_iter();
        of_group.map(|((_, stamp), _)| *stamp).max()
    }

    // ---- the end

    /// A job's end is a record: no agent of it ends beside that.
    pub fn check_end(&mut self, node: usize, status: i32, reason: Option<&str>) {
        if self.ranks.lives_on(&self.machines[node]) {
            self.violated(Violation::Order(format!("n{node} ends the job while processes of it are there")));
        }
        // Who was told to end may have ended well.
        if status == 0 && reason.is_some_and(|reason| !reason.contains("was cancelled by")) {
            self.violated(Violation::Untrue(format!("n{node} ends a job that failed with 0: {reason:?}")));
        }
        if self.is_out(node) {
            return;
        }
        let recorded = self.store.value().and_then(|record| record.outcome.clone());
        let said = Outcome { status, reason: reason.map(str::to_string) };
        if recorded.as_ref() != Some(&said) {
            let reason = reason.unwrap_or("a clean end");
            let there = if recorded.is_some() { "another end" } else { "none" };
            let sentence = format!("n{node} ends with {status} ({reason}); the record says {there}");
            self.violated(Violation::Unrecorded(sentence));
        }
    }

    /// How the job ended, if it may.
    pub fn verdict(&mut self) -> Result<(i32, String), Violation> {
        if let Some((_, violation)) = self.checks.first() {
            return Err(violation.clone());
        }
        let judged = self.judge();
        if let Err(violation) = &judged {
            self.violated(violation.clone());
        }
        judged
    }

    fn judge(&self) -> Result<(i32, String), Violation> {
        let Some(outcome) = self.store.value().and_then(|record| record.outcome.clone()) else {
            let members = self.store.value().map(|record| record.members().map(|node| node.0 as usize).collect());
            let members: Vec<usize> = members.unwrap_or_else(|| (0..self.machines.len()).collect());
            if members.iter().all(|node| !self.machines[*node].alive) {
                return Ok((1, "every node is dead".to_string()));
            }
            return Err(Violation::Unrecorded("all agents are through, and the record knows of no end".to_string()));
        };
        let reason = outcome.reason.clone().unwrap_or_default();
        if outcome.status == 0 && outcome.reason.is_none() {
            let missing = (0..self.setup.ranks).map(|rank| Process::primary(self.checks.world, Rank(rank)));
            if let Some(missing) = missing.into_iter().find(|process| !self.ranks.finished.contains(process)) {
                return Err(Violation::Untrue(format!("the job ended well, but {missing} did not")));
            }
        } else if self.setup.promises.ends_well {
            return Err(Violation::Untrue(format!("the job ended with {}: {reason}", outcome.status)));
        } else if let Some(why) = self.untrue(&reason) {
            return Err(Violation::Untrue(format!("the job ended with {} ({reason}), but {why}", outcome.status)));
        }
        Ok((outcome.status, reason))
    }

    /// Why this reason is not true.
    fn untrue(&self, reason: &str) -> Option<String> {
        if reason.contains("cancelled") {
            return self.cancelled.is_none().then(|| "nobody cancelled it".to_string());
        }
        if reason.contains("cannot be placed") || reason.contains("cannot start") {
            let silent = |node: usize| reason.contains(&format!("{} was silent", NodeId(node as u32)));
            let lost = |node: usize| (self.is_out(node) || silent(node)) && !self.setup.promises.waits;
            let here = self.machines.iter().enumerate().filter(|(node, machine)| machine.alive && !lost(*node));
            let slots: usize = here.map(|(_, machine)| machine.slots.len()).sum();
            let enough = slots >= self.setup.ranks as usize;
            return enough.then(|| format!("it has {slots} slots for {} ranks", self.setup.ranks));
        }
        if reason.contains("called MPI_Abort") || reason.contains("exited with") {
            // Whoever follows a rank that ended by its own wish ends the job no less; which was first, other nodes cannot see.
            let wished = self.ranks.wishes.iter().any(|(name, end)| {
                let named = reason.starts_with(&format!("{} ", name.rank)) && reason.contains(&end.to_string());
                named || name.world == self.checks.world
            });
            return (!wished).then(|| "that rank did so because a peer had died".to_string());
        }
        if reason.contains("was deleted from the store") {
            let deleted = self.setup.faults.iter().any(|planned| planned.fault == faults::Fault::DeleteKey);
            return (!deleted).then(|| "nobody deleted it".to_string());
        }
        if reason.contains("the store has not answered for") {
            let away = |planned: &faults::Planned| matches!(planned.fault, faults::Fault::Store { .. });
            let long = |planned: &&faults::Planned| planned.fault.span() >= self.setup.policy.store_timeout.0;
            let away = self.setup.faults.iter().filter(|planned| away(planned)).any(|planned| long(&planned));
            return (!away).then(|| "it was never away for so long".to_string());
        }
        if reason.contains("--ft=none recovers nothing") {
            let asked = self.setup.mode == Mode::None && !self.setup.faults.is_empty();
            return (!asked).then(|| "nothing died, or recovery was asked for".to_string());
        }
        if reason.contains("epochs in a row lost a node") {
            let parted = |planned: &faults::Planned| matches!(planned.fault, faults::Fault::Net { .. });
            let stays = |planned: &faults::Planned| planned.fault.span() >= faults::FOREVER;
            let parted = self.setup.faults.iter().any(|planned| parted(planned) && stays(planned));
            return (!parted).then(|| "its network is whole".to_string());
        }
        if reason.contains("times in a row") {
            let deaths = self.setup.faults.len() as u32 >= self.setup.policy.max_failures;
            return (self.crashing.is_empty() && !deaths).then(|| "nothing died so often".to_string());
        }
        Some("nothing of that kind had happened".to_string())
    }

    /// Where the agents of a job that hangs are.
    pub fn whereabouts(&self) -> String {
        let record = self.store.value().map_or(0, |record| record.epoch.0);
        let waiting = self.machines.iter().enumerate().filter(|(_, machine)| machine.alive && machine.ended.is_none());
        let line = |(node, machine): (usize, &crate::node::Machine)| {
            let agent = machine.agent.as_ref();
            let epoch = agent.and_then(|agent| agent.record()).map_or(0, |record| record.epoch.0);
            let stage = agent.map_or("no agent".to_string(), |agent| format!("{:?}", agent.stage()));
            let still = if machine.still(self.now) { ", stopped" } else { "" };
            format!("n{node} {stage} in epoch {epoch}{still}")
        };
        let lines: Vec<String> = waiting.map(line).collect();
        format!("{} (record: epoch {record})", lines.join("; "))
    }
}
