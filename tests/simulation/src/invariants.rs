//! What must hold: DESIGN §4's seven invariants, looked at after every step that may have changed something of them, and
//! at the end of a job whether its end is true. Together with `driver` this knows the interface of `ftd_core` in detail.

use crate::application::Proc;
use crate::computing::Computing;
use crate::faults;
use crate::fetches::Fetching;
use crate::levels::Levels;
use crate::setup::Setup;
use crate::world::World;
use ftd_core::holdings::Copies;
use ftd_core::inventory::choose;
use ftd_core::{
    Cause, Choice, EpochId, EpochRecord, GroupId, Groups, Holding, Inventory, Level, NodeId, Outcome, PeerMessage,
    Process, Rank, Recovery, SlotId, SlotState, Stamp, Standing, Subject, WorldId,
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
    /// It is right, and too late.
    Late(String),
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
            Violation::Late(what) => ("in time", what),
            Violation::Order(what) => ("order", what),
        };
        write!(f, "{rule}: {what}")
    }
}

/// What the checks remember.
pub struct Checks {
    first: Option<(u64, Violation)>,
    computing: Computing,
    newest_epoch: EpochId,
    world: WorldId,
    /// Processes that ftd ended itself.
    pub put_down: BTreeSet<Process>,
    launched: BTreeSet<Process>,
    pub reports: Vec<Recovery>,
    /// Nodes that have said that the store is away from them, and not that it is back.
    pub storeless: BTreeSet<usize>,
    /// Epochs that lost a node since a world ran.
    pub lost_in_vain: u64,
    inventories: BTreeMap<EpochId, BTreeMap<usize, Inventory>>,
    /// What those said first who had not verified everything in time, and whether they have said everything since.
    so_far: BTreeMap<EpochId, BTreeMap<usize, (Inventory, bool)>>,
    /// What the agents that said so had not verified by then.
    unread: BTreeMap<(EpochId, usize, u64), Inventory>,
    choices: BTreeMap<(EpochId, GroupId), Option<Stamp>>,
    /// Who has offered what to whom, and who could not send it.
    offers: BTreeMap<(EpochId, usize, usize), Copies>,
    in_vain: BTreeSet<(EpochId, Rank, usize)>,
    pub levels: Levels,
    pub groups: Groups,
    /// How many members the record before the newest had.
    pub members: u32,
    /// Counts what changes of who holds what: what is looked up for one node is so for all, until then.
    pub changes: u64,
    /// The first end beside the record, of an agent without the store.
    unrecorded: Option<Outcome>,
    /// What the inventories came to at so many changes.
    newest: Option<(u64, EpochId, Choice)>,
}

impl Checks {
    pub fn new(setup: &Setup) -> Self {
        let groups = Groups::coloured((0..setup.ranks).map(|rank| GroupId(setup.group(rank))).collect());
        let sizes = groups.ranks(setup.ranks).into_iter().map(|(group, ranks)| (group, ranks.len() as usize)).collect();
        Checks {
            first: None,
            computing: Computing::default(),
            newest_epoch: EpochId(0),
            world: WorldId(0),
            put_down: BTreeSet::new(),
            launched: BTreeSet::new(),
            reports: Vec::new(),
            storeless: BTreeSet::new(),
            lost_in_vain: 0,
            inventories: BTreeMap::new(),
            so_far: BTreeMap::new(),
            unread: BTreeMap::new(),
            choices: BTreeMap::new(),
            offers: BTreeMap::new(),
            in_vain: BTreeSet::new(),
            levels: Levels::of(sizes),
            groups,
            members: setup.nodes,
            changes: 0,
            unrecorded: None,
            newest: None,
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

    /// The newest world that was agreed.
    pub fn world(&self) -> WorldId {
        self.world
    }

    /// What each node said first that it holds: all that others certainly know of.
    pub fn inventories(&self, epoch: EpochId) -> BTreeMap<usize, &Inventory> {
        let first = self.so_far.get(&epoch).into_iter().flatten().map(|(node, (first, _))| (*node, first));
        self.inventories.get(&epoch).into_iter().flatten().map(|(node, all)| (*node, all)).chain(first).collect()
    }

    /// Every version that an epoch restored.
    pub fn restored(&self) -> impl Iterator<Item = Stamp> + '_ {
        self.choices.values().copied().flatten()
    }

    /// What was restored in an epoch.
    pub fn restored_in(&self, epoch: EpochId) -> BTreeMap<GroupId, Option<Stamp>> {
        let of_epoch = self.choices.iter().filter(|((of, _), _)| *of == epoch);
        of_epoch.map(|((_, group), stamp)| (*group, *stamp)).collect()
    }

    /// Whether a copy of this rank was asked for, and did not come.
    pub fn was_in_vain(&self, rank: Rank) -> bool {
        self.in_vain.iter().any(|(_, of, _)| *of == rank)
    }

    /// A copy was asked for, and did not come.
    pub fn in_vain(&mut self, epoch: EpochId, rank: Rank, from: usize) {
        self.in_vain.insert((epoch, rank, from));
    }

    /// What a node says that it holds; what was whole was hashed for it.
    pub fn inventory(&mut self, node: usize, epoch: EpochId, inventory: &Inventory, now: u64) {
        for holding in &inventory.holdings {
            let group = self.groups.of(holding.owner);
            self.holds(group, holding.owner, holding.stamp, node, now);
        }
        self.inventories.entry(epoch).or_default().insert(node, inventory.clone());
        if let Some((_, all)) = self.so_far.get_mut(&epoch).and_then(|of| of.get_mut(&node)) {
            *all = true;
        }
        self.changes += 1;
    }

    /// Whether this node has said what it holds.
    pub fn has_listed(&self, node: usize, epoch: EpochId) -> bool {
        self.inventories.get(&epoch).is_some_and(|of| of.contains_key(&node))
    }

    /// This was not all.
    pub fn so_far(&mut self, agent: (usize, u64), epoch: EpochId, (inventory, unread): (&Inventory, &Inventory)) {
        let (node, incarnation) = agent;
        self.so_far.entry(epoch).or_default().insert(node, (inventory.clone(), false));
        self.unread.insert((epoch, node, incarnation), unread.clone());
    }

    /// What this agent has said first, and what it had not verified by then, if it has not said everything since.
    pub fn reads_on(&self, (node, incarnation): (usize, u64), epoch: EpochId) -> Option<(&Inventory, &Inventory)> {
        let (first, all) = self.so_far.get(&epoch)?.get(&node)?;
        let unread = self.unread.get(&(epoch, node, incarnation))?;
        (!all).then_some((first, unread))
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
        let fresh = record.epoch > self.checks.newest_epoch;
        if let Err(violation) = self.one_record_per_epoch(before, record) {
            self.violated(violation);
        }
        if let Err(error) = record.check() {
            self.violated(Violation::Placement(format!("a wrong record was written: {error}")));
        }
        if let Some(violation) = self.ends_untruly(by, before, record) {
            self.violated(violation);
        }
        if !fresh {
            return;
        }
        self.last_sign = self.now;
        self.checks.levels.begins(record.epoch, self.now);
        self.checks.newest_epoch = record.epoch;
        self.checks.world = record.world;
        self.check_vain(before, record);
        let blamed = [self.blames(record), self.gives_up_early(before, record), self.recovers_cancelled(record)];
        for violation in blamed.into_iter().chain([self.placed_wrongly(before, record)]) {
            violation.into_iter().for_each(|violation| self.violated(violation));
        }
        self.check_pace(before, record);
        let left = before.into_iter().flat_map(EpochRecord::members).filter(|node| !record.is_member(*node));
        for node in left {
            if !self.may_be_out(node.0 as usize) {
                let epoch = record.epoch;
                let sentence = format!("n{by} leaves n{} out in {epoch}, which nothing had happened to", node.0);
                self.violated(Violation::LeftOut(sentence));
            } else if self.setup.promises.nobody_out {
                self.violated(Violation::LeftOut(format!("n{by} leaves n{} out in {}", node.0, record.epoch)));
            }
        }
        if self.setup.promises.one_out && record.nodes.len() + 1 < self.setup.nodes {
            let sentence = format!("n{by} leaves out more than one node in {}", record.epoch);
            self.violated(Violation::LeftOut(sentence));
        }
        self.checks.members = record.nodes.len();
    }

    fn one_record_per_epoch(&self, before: Option<&EpochRecord>, record: &EpochRecord) -> Result<(), Violation> {
        let newest = self.checks.newest_epoch;
        let epoch = record.epoch;
        if before.is_none() || newest == EpochId(0) {
            // Whose key was deleted can only end.
            let deletes = |planned: &faults::Planned| planned.fault == faults::Fault::DeleteKey;
            let deleted = newest > EpochId(0) && record.outcome.is_some() && self.setup.faults.iter().any(deletes);
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

    fn blames(&self, record: &EpochRecord) -> Option<Violation> {
        let ended = |subject| matches!(subject, Subject::Process(process) if self.checks.put_down.contains(&process));
        if let Some(wrong) = record.failures.failures().iter().find(|failure| ended(failure.subject)) {
            return Some(Violation::Untrue(format!("{wrong} is blamed, but ftd ended it")));
        }
        let wrong = self.false_failure(&record.failures)?;
        Some(Violation::Untrue(format!("{} says: {wrong}, which is not true", record.epoch)))
    }

    /// The job ends for a reason that is not true.
    fn ends_untruly(&self, by: usize, before: Option<&EpochRecord>, record: &EpochRecord) -> Option<Violation> {
        let Outcome { status, reason } = record.outcome.as_ref()?;
        let reason = reason.as_ref()?;
        let why = self.untrue(by, before, *status, reason)?;
        Some(Violation::Untrue(format!("the job ended with {status} ({reason}), but {why}")))
    }

    /// Counts the epochs that lost a node while no world ran.
    fn check_vain(&mut self, before: Option<&EpochRecord>, record: &EpochRecord) {
        if before.is_some_and(|before| self.ranks.ran(before.world) >= self.setup.ranks) {
            self.checks.lost_in_vain = 0;
        }
        let lost = record.failures.failures().iter().any(|failure| failure.cause.takes_node());
        self.checks.lost_in_vain += u64::from(lost);
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
        let inventories = self.checks.inventories(before.epoch);
        record.failures.failures().iter().find_map(|failure| {
            let (Subject::Process(process), Cause::NotFetched(stamp)) = (failure.subject, failure.cause) else {
                return None;
            };
            let home = before.node_of(process.rank);
            let holds = |inventory: &Inventory| {
                inventory.holdings.iter().any(|holding| (holding.owner, holding.stamp) == (process.rank, stamp))
            };
            let mut asked = inventories.iter().filter(|(node, inventory)| {
                let node = NodeId(**node as u32);
                Some(node) != home && before.is_member(node) && holds(inventory)
            });
            let never = asked.find(|(node, _)| !self.checks.in_vain.contains(&(before.epoch, process.rank, **node)))?;
            let sentence = format!("{failure}, says {}, but n{} was not asked for it", record.epoch, never.0);
            Some(Violation::Untrue(sentence))
        })
    }

    // ---- checkpoints

    /// Nobody offers what it does not hold.
    pub fn check_offer(&mut self, node: usize, to: NodeId, message: &PeerMessage) {
        match message {
            PeerMessage::Relay { origin, to, message } if origin.0 as usize == node => {
                self.check_offer(node, *to, message)
            }
            PeerMessage::Offer { epoch, copies } => {
                let none = Inventory::default();
                let held = self.checks.inventories.get(epoch).and_then(|of| of.get(&node)).unwrap_or(&none);
                let mut each = copies.iter().flat_map(|(stamp, ranks)| ranks.iter().map(|rank| (rank, *stamp)));
                let has = |(owner, stamp): &(Rank, Stamp)| {
                    let at = |level| Holding { owner: *owner, stamp: *stamp, level };
                    Level::ALL.into_iter().any(|level| held.holdings.contains(&at(level)))
                };
                if let Some((rank, _)) = each.find(|copy| !has(copy)) {
                    self.violated(Violation::Order(format!("n{node} offers a copy of {rank} that it does not hold")));
                }
                self.checks.offers.insert((*epoch, node, to.0 as usize), copies.clone());
            }
            _ => {}
        }
    }

    /// A copy is fetched only from where it was offered.
    pub fn check_fetch(&mut self, node: usize, fetching: Fetching) {
        let Fetching { epoch, rank, stamp, from } = fetching;
        let offered = self.checks.offers.get(&(epoch, from, node)).and_then(|copies| copies.get(&stamp));
        if !offered.is_some_and(|ranks| ranks.contains(rank)) {
            let sentence = format!("n{node} is to fetch the copy of {rank} from n{from}, which has not offered it");
            self.violated(Violation::Order(sentence));
        }
    }

    /// What people are told that was left out is what the others were not told of in time.
    pub fn check_left_out(&mut self, (node, incarnation): (usize, u64), told: &Inventory) {
        let epoch = self.machines[node].frozen;
        let left_out = self.checks.unread.get(&(epoch, node, incarnation));
        if left_out != Some(told) {
            let sentence = format!("n{node} names {told:?} as left out in {epoch}, and not {left_out:?}");
            self.violated(Violation::Untrue(sentence));
        }
    }

    /// Invariant 4: what is restored is complete, the newest that is, the same everywhere, and nothing that was safe is
    /// left behind.
    pub fn check_restore(&mut self, node: usize, epoch: EpochId, group: GroupId, stamp: Option<Stamp>) {
        if self.checks.so_far.contains_key(&epoch) {
            return self.check_early(node, epoch, group, stamp);
        }
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
        let keep = |old: Stamp| old.epoch >= epoch || stamp.is_some_and(|stamp| old <= stamp);
        self.checks.left(group, keep);
    }

    /// The same where somebody had not verified everything in time: nothing that all could know of is left behind, and nobody begins
    /// from the beginning while somebody reads, or when something was found.
    fn check_early(&mut self, node: usize, epoch: EpochId, group: GroupId, stamp: Option<Stamp>) {
        let all = self.fetchable(node, epoch);
        let of = |inventories: &[Inventory]| {
            choose(inventories, &self.checks.groups, self.setup.ranks).get(&group).copied().flatten()
        };
        let mut sure = all.clone();
        let mut these = all.clone();
        let holders = self.checks.inventories.get(&epoch).into_iter().flatten().map(|(holder, _)| *holder);
        let so_far = &self.checks.so_far[&epoch];
        for (inventory, holder) in sure.iter_mut().zip(holders) {
            if let Some((first, _)) = so_far.get(&holder) {
                inventory.holdings.retain(|holding| first.holdings.contains(holding));
            }
        }
        these.iter_mut().for_each(|inventory| inventory.holdings.retain(|holding| Some(holding.stamp) == stamp));
        let (sure, newest, whole) = (of(&sure), of(&all), of(&these) == stamp);
        let reads = so_far.values().any(|(_, all)| !all);
        let chosen = *self.checks.choices.entry((epoch, group)).or_insert(stamp);
        let well = stamp >= sure && stamp <= newest && whole && (stamp.is_some() || newest.is_none() && !reads);
        if !well || chosen != stamp {
            let sentence = format!(
                "n{node} restores {stamp:?} of {group} in {epoch}; known to all is {sure:?}, the newest {newest:?}, still read: {reads}, \
                 another node: {chosen:?}"
            );
            return self.violated(Violation::Bytes(sentence));
        }
        let keep = |old: Stamp| old.epoch >= epoch || stamp.is_some_and(|stamp| old <= stamp);
        self.checks.left(group, keep);
    }

    /// What the inventories of this epoch say is the newest complete version of the group.
    fn newest(&mut self, node: usize, epoch: EpochId, group: GroupId) -> Option<Stamp> {
        let now = (self.checks.changes, epoch);
        if self.checks.newest.as_ref().is_none_or(|(at, of, _)| (*at, *of) != now) {
            let choice = choose(&self.fetchable(node, epoch), &self.checks.groups, self.setup.ranks);
            self.checks.newest = Some((now.0, epoch, choice));
        }
        let (_, _, choice) = self.checks.newest.as_ref()?;
        choice.get(&group).copied().flatten()
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

    // ---- the end

    /// A job's end is a record: no agent of it ends beside that.
    pub fn check_end(&mut self, node: usize, said: &Outcome, standing: Standing) {
        let (status, reason) = (said.status, said.reason.as_deref());
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
        let recorded = self.recorded_end();
        if recorded.as_ref() != Some(said) {
            let Some(wrong) = self.untold_end(node, said, standing) else {
                let first = (standing == Standing::Unrecorded).then(|| said.clone());
                self.checks.unrecorded = self.checks.unrecorded.take().or(first);
                return;
            };
            let recorded = recorded.is_some();
            let reason = reason.unwrap_or("a clean end");
            let there = if recorded { "another end" } else { "none" };
            let sentence = format!("n{node} ends with {status} ({reason}); the record says {there}, and {wrong}");
            self.violated(Violation::Unrecorded(sentence));
        }
    }

    /// Why this end may not be one beside the record.
    fn untold_end(&self, node: usize, said: &Outcome, standing: Standing) -> Option<String> {
        if said.reason.as_ref().is_some_and(|reason| reason.starts_with("nobody of the job has answered")) {
            return self.untrue_loneliness();
        }
        // Who has waited for the root first asks the store itself after a quarter of that.
        if let Some(wrong) = self.untrue_absence(node, self.setup.policy.end_timeout.0 * 3 / 4) {
            return Some(wrong);
        }
        let reason = match (standing, &said.reason) {
            (Standing::Unrecorded, Some(reason)) => reason,
            // What all ranks have said is so whoever else knows it.
            (Standing::Unrecorded, None) if said.status == 0 => return self.unfinished(node),
            _ => return Some(format!("it is said to be {standing:?}")),
        };
        // It was true some time ago.
        if reason.contains("was cancelled by") {
            return self.cancelled.is_none().then(|| "nobody had cancelled it".to_string());
        }
        // And of an epoch that others may have ended since.
        let known = self.machines[node].agent.as_ref().and_then(|agent| agent.record());
        if known.is_none_or(|record| record.epoch < self.checks.newest_epoch) {
            return None;
        }
        self.untrue(node, self.store.value().map(std::sync::Arc::as_ref), said.status, reason)
    }

    /// A rank of the world that this node knows of has not ended well.
    fn unfinished(&self, node: usize) -> Option<String> {
        let known = self.machines[node].agent.as_ref().and_then(|agent| agent.record());
        let world = known.map_or(self.checks.world, |record| record.world);
        let mut ranks = (0..self.setup.ranks).map(|rank| Process::primary(world, Rank(rank)));
        let missing = ranks.find(|process| !self.ranks.finished.contains(process));
        missing.map(|process| format!("{process} did not end well"))
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
        if self.is_done() {
            return Ok((0, String::new()));
        }
        let Some(outcome) = self.recorded_end() else {
            let members = self.store.value().map(|record| record.members().map(|node| node.0 as usize).collect());
            let members: Vec<usize> = members.unwrap_or_else(|| (0..self.machines.len()).collect());
            if members.iter().all(|node| !self.machines[*node].alive) {
                return Ok((1, "every node is dead".to_string()));
            }
            return self.unrecorded_end();
        };
        let reason = outcome.reason.clone().unwrap_or_default();
        if outcome.status == 0 && outcome.reason.is_none() {
            let missing = (0..self.setup.ranks).map(|rank| Process::primary(self.checks.world, Rank(rank)));
            if let Some(missing) = missing.into_iter().find(|process| !self.ranks.finished.contains(process)) {
                return Err(Violation::Untrue(format!("the job ended well, but {missing} did not")));
            }
        } else if self.setup.promises.ends_well {
            return Err(Violation::Untrue(format!("the job ended with {}: {reason}", outcome.status)));
        }
        Ok((outcome.status, reason))
    }

    /// Somebody says that all ranks have ended well, whom the store did not hear. Who does not know it may have gone on, and that changes nothing.
    fn is_done(&self) -> bool {
        let mut ends = self.machines.iter().filter_map(|machine| machine.ended.as_ref());
        ends.any(|(end, standing)| *standing == Standing::Unrecorded && *end == Outcome::clean())
    }

    /// How the job ended that no record says anything of, says whoever was there.
    fn unrecorded_end(&self) -> Result<(i32, String), Violation> {
        match &self.checks.unrecorded {
            Some(_) if self.setup.promises.ends_well => {
                Err(Violation::Untrue("the job ended beside the record".to_string()))
            }
            Some(end) => Ok((end.status, end.reason.clone().unwrap_or_default())),
            None => Err(Violation::Unrecorded("all agents are through, and the record knows of no end".to_string())),
        }
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
