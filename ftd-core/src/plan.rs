//! The planner: the next record from the last one. No I/O, no clock, no randomness; equal input, equal answer, on every
//! agent.
//!
//! Of a world in which some ranks had ended cleanly before another died, *all* ranks run again in the next world: the
//! ended ones took part in communication that will be repeated. (When all have ended cleanly, the job is complete.)

use crate::count::counted;
use crate::crowd::Crowd;
use crate::failure::{Cause, Collateral, Failure, FailureSet, Subject, signal_name};
use crate::ids::{EpochId, GroupId, Micros, NodeId, Process, Rank, SlotId, Version, WorldId};
use crate::members::Members;
use crate::placement::Placement;
use crate::policy::{Mode, Policy, Terms};
use crate::record::{EpochRecord, HistoryEntry, Outcome, RecordError, Strategy, Streak, Suspect};
use crate::slots::{SlotEntry, SlotState, Slots};
use std::collections::{BTreeMap, BTreeSet};

/// What the proposer knows beside the record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cluster {
    /// Slots that are up and that the record does not know.
    pub new_slots: BTreeMap<SlotId, NodeId>,
    /// Nodes that come into the job, with their slots.
    pub joiners: BTreeMap<NodeId, BTreeSet<SlotId>>,
    /// Nodes on which nothing is to be placed.
    pub unfit: BTreeSet<NodeId>,
    /// A newer checkpoint than the restored one became complete in the epoch that ends: progress after whatever death.
    pub checkpointed: bool,
    /// The epoch that ends computed for [`Policy::progress_after`]: progress after deaths from outside alone.
    pub computed: bool,
    /// An earlier epoch got the job on, which was not known when it ended: the one that ends now restored a newer version
    /// than the one before. (A checkpoint counts only with its checksum, and a rank may die before that is made.)
    pub late_progress: bool,
    /// The world of the epoch that ends never ran.
    pub vain: bool,
    /// True causes that became known after a death was agreed.
    pub causes: BTreeMap<Process, Cause>,
    /// When the failures were noticed.
    pub at: Micros,
    /// So long that was before now.
    pub noticed_ago: Micros,
    /// What the ranks of the epoch that ends had taken back.
    pub restored: BTreeMap<GroupId, Version>,
}

/// Why there is no next epoch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unrecoverable {
    /// `--ft=none`.
    #[error("{failures}; --ft=none recovers nothing (--ft=reinit would have started the ranks again)")]
    ModeNone {
        /// What failed.
        failures: FailureSet,
    },
    /// The same death again and again.
    #[error(
        "the job cannot continue, because {suspect} died {}{} without a newer complete \
         checkpoint{}{} (--ft-max-failures); its history:{}",
        if *suspect == Suspect::Program { "by itself " } else { "" },
        if *deaths == 1 { "once".into() } else { format!("{deaths} times in a row") },
        if suspect.is_from_outside() { format!(" or {progress_after} of computing") } else { String::new() },
        if *deaths == 1 { "" } else { " between" },
        history.iter().map(|line| format!("\n  {line}")).collect::<String>()
    )]
    CrashLoop {
        /// Who.
        suspect: Suspect,
        /// How often.
        deaths: u32,
        /// What would have counted as progress.
        progress_after: crate::ids::Micros,
        /// One line per death, oldest first.
        history: Vec<String>,
        /// How it died last.
        last: Cause,
    },
    /// The job's nodes do not get together.
    #[error(
        "the job cannot continue, because {epochs} epochs in a row lost a node before all their ranks ran, this one \
         because {failures}"
    )]
    Vain {
        /// How many.
        epochs: u32,
        /// What failed.
        failures: FailureSet,
    },
    /// Not enough slots are left.
    #[error(
        "the job cannot continue, because {} cannot be placed: {failures}, and no free \
         slot is left for {}{}{}",
        if *world_size == 1 { "its only rank".into() } else { format!("{missing} of its {world_size} ranks") },
        if *world_size == 1 { "it".into() } else { format!("{missing} of them") },
        if *waited == Micros(0) { String::new() } else { format!("; no node came within {waited} (--ft-wait)") },
        if *nodes > 1 { room_left_by(*shared) } else { "" }
    )]
    NoSlot {
        /// Ranks without a slot.
        missing: u32,
        /// All ranks.
        world_size: u32,
        /// What failed.
        failures: FailureSet,
        /// So long another node was waited for.
        waited: Micros,
        /// So many nodes the job had.
        nodes: u32,
        /// Whether ranks of a lost node may share the slots of others.
        shared: bool,
    },
    /// The job has fewer slots than ranks from the start.
    #[error("the job cannot start, because it has {} for {}", counted(*slots, "slot"), counted(*world_size, "rank"))]
    TooFewSlots {
        /// Slots.
        slots: u32,
        /// Ranks.
        world_size: u32,
    },
    /// The record is a job's last.
    #[error("the job is over since {0}")]
    Over(EpochId),
    /// None of the failures concerns the record.
    #[error("nothing of {0} has failed")]
    NothingFailed(EpochId),
    /// The planner contradicted itself; a bug in ftd, said rather than acted upon.
    #[error("the job cannot continue, because ftd planned a wrong record (a bug in ftd): {0}")]
    Inconsistent(#[from] RecordError),
}

/// What would have left room for ranks that have none, for who starts the job again.
fn room_left_by(shared: bool) -> &'static str {
    if shared {
        ": keep nodes free (--ft-spares), or wait longer for one that comes back (--ft-wait)"
    } else {
        ": keep nodes free (--ft-spares), let ranks share slots (--ft-oversubscribe), or wait longer for a node that comes \
         back (--ft-wait)"
    }
}

impl Unrecoverable {
    /// The job's exit status.
    pub fn status(&self) -> i32 {
        let of = |cause: &Cause| match cause {
            Cause::Signal(signal) => 128 + signal,
            Cause::OutOfMemory | Cause::CpuLimit | Cause::Unknown => 128 + 9,
            Cause::Own(end) => end.status(),
            _ => 1,
        };
        match self {
            Unrecoverable::ModeNone { failures } => failures.failures().first().map_or(1, |first| of(&first.cause)),
            Unrecoverable::CrashLoop { last, .. } => of(last),
            _ => 1,
        }
    }
}

/// The first record: rank after rank on the slots in order, node after node.
///
/// # Errors
/// [`Unrecoverable::TooFewSlots`].
pub fn first_record(
    mode: Mode,
    terms: Terms,
    world_size: u32,
    nodes: &[NodeId],
    slots: &BTreeMap<SlotId, NodeId>,
    now: Micros,
) -> Result<EpochRecord, Unrecoverable> {
    let mut order: Vec<_> = slots.iter().map(|(slot, node)| (*node, *slot)).collect();
    order.sort_unstable();
    if order.len() < world_size as usize {
        return Err(Unrecoverable::TooFewSlots { slots: order.len() as u32, world_size });
    }
    order.truncate(world_size as usize);
    let mut used: Vec<SlotId> = order.iter().map(|(_, slot)| *slot).collect();
    used.sort_unstable();
    // Both are in order.
    let mut rest = used.iter().copied().peekable();
    let entries = slots.iter().map(|(slot, node)| {
        let state = if rest.next_if_eq(slot).is_some() { SlotState::Active } else { SlotState::Parked };
        SlotEntry { slot: *slot, node: *node, state }
    });
    let record = EpochRecord {
        epoch: EpochId(1),
        began: now,
        mode,
        terms,
        world: WorldId(1),
        world_size,
        placement: Placement::from_slots(order.into_iter().map(|(_, slot)| slot)),
        slots: Slots::of(entries),
        nodes: Members::of(nodes.iter().copied()),
        joined: BTreeSet::new(),
        failures: FailureSet::new(),
        agreed_after: Micros(0),
        strategy: Strategy::Fresh,
        streaks: Vec::new(),
        history: Vec::new(),
        outcome: None,
    };
    record.check()?;
    Ok(record)
}

/// The record of a job that ends before it has begun.
pub fn only_record(mode: Mode, terms: Terms, world_size: u32, nodes: Members, outcome: Outcome) -> EpochRecord {
    EpochRecord {
        epoch: EpochId(1),
        began: Micros(0),
        mode,
        terms,
        world: WorldId(0),
        world_size,
        placement: Placement::from_slots([]),
        slots: Slots::of([]),
        nodes,
        joined: BTreeSet::new(),
        failures: FailureSet::new(),
        agreed_after: Micros(0),
        strategy: Strategy::Fresh,
        streaks: Vec::new(),
        history: Vec::new(),
        outcome: Some(outcome),
    }
}

/// The record that ends the job.
pub fn last_record(record: &EpochRecord, outcome: Outcome) -> EpochRecord {
    EpochRecord { epoch: record.epoch.next(), failures: FailureSet::new(), outcome: Some(outcome), ..record.clone() }
}

/// The failures that concern this record's released world, its slots or its members. What is left out is in the record
/// already, or ended with an older world.
pub fn relevant(record: &EpochRecord, failures: &FailureSet) -> FailureSet {
    let mut relevant = failures.clone();
    relevant.retain(|failure| match failure.subject {
        Subject::Process(process) => record.released(process),
        Subject::Slot(slot) => record.slot(slot).is_some_and(|entry| entry.state != SlotState::Lost),
        Subject::Node(node) => record.is_member(node),
    });
    relevant
}

/// The next epoch after these failures.
///
/// # Errors
/// Why the job cannot continue; the message is a sentence for its user.
pub fn plan(
    record: &EpochRecord,
    failures: &FailureSet,
    cluster: &Cluster,
    policy: &Policy,
) -> Result<EpochRecord, Unrecoverable> {
    if record.outcome.is_some() {
        return Err(Unrecoverable::Over(record.epoch));
    }
    let failures = relevant(record, failures).bounded();
    if failures.is_empty() {
        return Err(Unrecoverable::NothingFailed(record.epoch));
    }
    if record.mode == Mode::None {
        return Err(Unrecoverable::ModeNone { failures });
    }
    let mut next = record.clone();
    next.epoch = record.epoch.next();
    next.world = record.world.next();
    next.strategy = Strategy::Fresh;
    next.joined.clear();
    for entry in &mut next.history {
        entry.failures = completed(&entry.failures, &cluster.causes);
    }
    next.history.push(HistoryEntry {
        epoch: record.epoch,
        failures: failures.clone(),
        at: cluster.at,
        restored: cluster.restored.clone(),
    });
    let surplus = next.history.len().saturating_sub(policy.history);
    next.history.drain(..surplus);
    next.streaks = streaks(record, &failures, cluster);
    gets_nowhere(&next, &failures, policy)?;
    crash_loop(&next, &failures, policy)?;
    remove_lost(&mut next, &failures);
    add_new(&mut next, cluster);
    place(&mut next, record, &failures, &cluster.unfit, policy)?;
    next.failures = failures;
    next.agreed_after = cluster.noticed_ago;
    next.check()?;
    debug_assert!(next.epoch > record.epoch && next.world > record.world, "epochs and worlds only grow");
    Ok(next)
}

/// The set with the true causes that are known by now.
pub(crate) fn completed(failures: &FailureSet, causes: &BTreeMap<Process, Cause>) -> FailureSet {
    let mut failures = failures.clone();
    let late: Vec<Failure> = failures
        .failures()
        .iter()
        .filter_map(|failure| match failure.subject {
            Subject::Process(process) => causes.get(&process).map(|cause| Failure { cause: *cause, ..*failure }),
            _ => None,
        })
        .collect();
    late.into_iter().for_each(|failure| failures.insert(failure));
    failures
}

/// Who is to be blamed for these failures, as far as they count for a crash loop: the loss of a node or of ftd's own agent
/// does not, nor that of a copy. A process that dies by itself when something else fails dies of that.
pub(crate) fn suspects(placement: &Placement, failures: &FailureSet) -> BTreeSet<Suspect> {
    let by_itself =
        |failure: &Failure| matches!(failure.subject, Subject::Process(_)) && !failure.cause.is_from_outside();
    let program = failures.failures().iter().all(by_itself);
    let suspect = |failure: &Failure| match (failure.subject, failure.cause) {
        (Subject::Process(_), Cause::NotFetched(_)) => None,
        (Subject::Process(_), _) if by_itself(failure) => program.then_some(Suspect::Program),
        (Subject::Process(process), _) => Some(Suspect::Rank(process.rank)),
        (Subject::Slot(slot), _) => placement.rank(slot).map(Suspect::ShepherdOf),
        (Subject::Node(node), Cause::WorldServerLost) => Some(Suspect::ServerOf(node)),
        (Subject::Node(_), _) => None,
    };
    failures.failures().iter().filter_map(suspect).collect()
}

/// The deaths in a row of each suspect, with these. What counts as progress depends on whose the deaths before it were:
/// a newer checkpoint always does, computing only after deaths from outside.
fn streaks(record: &EpochRecord, failures: &FailureSet, cluster: &Cluster) -> Vec<Streak> {
    let mut deaths = deaths_so_far(record, cluster);
    for suspect in suspects(&record.placement, failures) {
        *deaths.entry(suspect).or_default() += 1;
    }
    if !cluster.vain {
        deaths.remove(&Suspect::Nodes);
    } else if failures.failures().iter().any(|failure| failure.cause.takes_node()) {
        *deaths.entry(Suspect::Nodes).or_default() += 1;
    }
    deaths.into_iter().map(|(suspect, deaths)| Streak { suspect, deaths }).collect()
}

fn gets_nowhere(next: &EpochRecord, failures: &FailureSet, policy: &Policy) -> Result<(), Unrecoverable> {
    let vain = next.streaks.iter().find(|streak| streak.suspect == Suspect::Nodes);
    match vain.filter(|streak| streak.deaths >= policy.max_vain.max(1)) {
        Some(streak) => Err(Unrecoverable::Vain { epochs: streak.deaths, failures: failures.clone() }),
        None => Ok(()),
    }
}

/// The deaths in a row of each suspect as they are known now, for people.
pub(crate) fn in_a_row(record: &EpochRecord, causes: &BTreeMap<Process, Cause>) -> BTreeMap<Suspect, u32> {
    deaths_so_far(record, &Cluster { causes: causes.clone(), ..Cluster::default() })
}

/// The same, as they count for what fails next.
pub(crate) fn deaths_so_far(record: &EpochRecord, cluster: &Cluster) -> BTreeMap<Suspect, u32> {
    let mut deaths: BTreeMap<Suspect, u32> = BTreeMap::new();
    if cluster.checkpointed {
        return deaths;
    }
    // Of what came after late progress only the last death is left.
    let most = if cluster.late_progress { 1 } else { u32::MAX };
    deaths.extend(record.streaks.iter().map(|streak| (streak.suspect, streak.deaths.min(most))));
    // The last deaths may have been counted before it was known what they were.
    let known = completed(&record.failures, &cluster.causes);
    let (counted, right) = (suspects(&record.placement, &record.failures), suspects(&record.placement, &known));
    for suspect in counted.difference(&right) {
        deaths.entry(*suspect).and_modify(|deaths| *deaths = deaths.saturating_sub(1));
    }
    for suspect in right.difference(&counted) {
        *deaths.entry(*suspect).or_default() += 1;
    }
    correct_older(record, cluster, &mut deaths);
    deaths.retain(|suspect, deaths| *deaths > 0 && !(cluster.computed && suspect.is_from_outside()));
    deaths
}

/// The same of deaths before the last ones: a cause may become known several epochs late. Those that came before the last progress
/// are counted no more, so there is nothing to correct: of a suspect its last deaths count, as many as it has.
fn correct_older(record: &EpochRecord, cluster: &Cluster, deaths: &mut BTreeMap<Suspect, u32>) {
    let (counting, mut met) = (deaths.clone(), BTreeMap::<Suspect, u32>::new());
    for (age, entry) in record.history.iter().rev().enumerate() {
        let known = completed(&entry.failures, &cluster.causes);
        let (counted, right) = (suspects(&record.placement, &entry.failures), suspects(&record.placement, &known));
        counted.iter().for_each(|suspect| *met.entry(*suspect).or_default() += 1);
        let counts = |suspect: &&Suspect| counting.get(suspect).is_some_and(|deaths| met[suspect] <= *deaths);
        let wrong: Vec<Suspect> = counted.difference(&right).filter(counts).copied().collect();
        // The youngest ones are the record's own.
        if age == 0 || wrong.is_empty() {
            continue;
        }
        for suspect in wrong {
            deaths.entry(suspect).and_modify(|deaths| *deaths = deaths.saturating_sub(1));
        }
        for suspect in right.difference(&counted) {
            *deaths.entry(*suspect).or_default() += 1;
        }
    }
}

fn crash_loop(next: &EpochRecord, failures: &FailureSet, policy: &Policy) -> Result<(), Unrecoverable> {
    let dies = |streak: &&Streak| streak.suspect != Suspect::Nodes && streak.deaths >= policy.max_failures.max(1);
    let Some(worst) = next.streaks.iter().filter(dies).max_by_key(
        // The first of equals: `max_by_key` would take the last.
        |streak| (streak.deaths, std::cmp::Reverse(streak.suspect)),
    ) else {
        return Ok(());
    };
    let of_suspect = |failure: &&Failure| match (worst.suspect, failure.subject) {
        (Suspect::Rank(rank), Subject::Process(process)) => process.rank == rank && failure.cause.is_from_outside(),
        (Suspect::Program, Subject::Process(_)) => !failure.cause.is_from_outside(),
        // The ranks of slots that were replaced long ago are not known any more.
        (Suspect::ShepherdOf(_), Subject::Slot(_)) => true,
        (Suspect::ServerOf(node), Subject::Node(other)) => node == other && failure.cause == Cause::WorldServerLost,
        _ => false,
    };
    let counts = |entry: &HistoryEntry| entry.failures.failures().iter().any(|failure| of_suspect(&failure));
    let from = next.history.iter().enumerate().rev().filter(|(_, entry)| counts(entry));
    let from = from.take(worst.deaths as usize).last().map_or(0, |(at, _)| at);
    Err(Unrecoverable::CrashLoop {
        suspect: worst.suspect,
        deaths: worst.deaths,
        progress_after: policy.progress_after,
        history: next.history[from..].iter().flat_map(|entry| history_lines(next, entry, policy)).collect(),
        last: failures.failures().iter().find(of_suspect).map_or(Cause::Unknown, |failure| failure.cause),
    })
}

/// One line per death: when, who, of what, and what the ranks had taken back before. Deaths of one failure stand below its first.
fn history_lines(record: &EpochRecord, entry: &HistoryEntry, policy: &Policy) -> Vec<String> {
    let tenths = entry.at.since(record.began).0 / 100_000;
    let restored: Vec<String> = entry.restored.values().map(|version| format!("version {}", version.0)).collect();
    let restored = if restored.is_empty() { "nothing".to_string() } else { restored.join(", ") };
    let (seconds, tenth) = (tenths / 10, tenths % 10);
    let line = |(at, sentence): (usize, String)| match at {
        0 => format!("{}, {seconds}.{tenth} s after the start: {sentence}; restored before: {restored}", entry.epoch),
        _ => format!("  together with that: {sentence}"),
    };
    sentences(&record.placement, &entry.failures, policy).into_iter().enumerate().map(line).collect()
}

fn remove_lost(next: &mut EpochRecord, failures: &FailureSet) {
    for failure in failures.failures() {
        match failure.subject {
            Subject::Node(node) if failure.cause.takes_node() => {
                next.nodes.leave(node);
                next.slots.lose_node(node);
            }
            Subject::Slot(slot) => next.slots.set(slot, SlotState::Lost),
            _ => {}
        }
    }
}

fn add_new(next: &mut EpochRecord, cluster: &Cluster) {
    for (node, slots) in &cluster.joiners {
        if next.nodes.knows(*node) || slots.iter().any(|slot| next.slot(*slot).is_some()) {
            continue;
        }
        next.nodes.join(*node);
        next.joined.insert(*node);
        for slot in slots {
            next.slots.insert(SlotEntry { slot: *slot, node: *node, state: SlotState::Parked });
        }
    }
    for (slot, node) in &cluster.new_slots {
        if next.is_member(*node) {
            next.slots.insert(SlotEntry { slot: *slot, node: *node, state: SlotState::Parked });
        }
    }
}

/// Ranks whose slot is gone move; all others stay. A rank goes to a free slot of its own node if there is one. The ranks
/// of one lost node go together to the node with the fewest free slots that holds them all, else to wherever there is
/// room, lowest node and slot first. What is left of them is spread over slots beyond those, where that was asked for.
fn place(
    next: &mut EpochRecord,
    record: &EpochRecord,
    failures: &FailureSet,
    unfit: &BTreeSet<NodeId>,
    policy: &Policy,
) -> Result<(), Unrecoverable> {
    let homeless = homeless(next, record);
    if homeless.is_empty() {
        return Ok(());
    }
    let mut free: BTreeMap<NodeId, BTreeSet<SlotId>> = BTreeMap::new();
    for entry in next.slots.in_state(SlotState::Parked).filter(|entry| next.is_member(entry.node)) {
        if unfit.contains(&entry.node) {
            continue;
        }
        free.entry(entry.node).or_default().insert(entry.slot);
    }
    let mut moved: BTreeMap<Rank, SlotId> = BTreeMap::new();
    let mut missing = Vec::new();
    for (node, ranks) in homeless {
        let holds_all = free.iter().filter(|(_, free)| free.len() >= ranks.len());
        let room = holds_all.min_by_key(|(other, free)| (**other != node, free.len(), **other)).map(|(node, _)| *node);
        for rank in ranks {
            let preferred = [Some(node), room].into_iter().flatten().find(|node| free.contains_key(node));
            let Some(target) = preferred.or_else(|| free.keys().next().copied()) else {
                missing.push((node, rank));
                continue;
            };
            let slots = free.entry(target).or_default();
            moved.extend(slots.pop_first().map(|slot| (rank, slot)));
            if slots.is_empty() {
                free.remove(&target);
            }
        }
    }
    moved.values().for_each(|slot| next.slots.set(*slot, SlotState::Active));
    // Where nothing but shepherds has died their slots can be had anew on their own nodes.
    if policy.oversubscribe && missing.iter().any(|(node, _)| !next.is_member(*node)) {
        let mut crowd = Crowd::of(&next.slots, |node| next.is_member(node) && !unfit.contains(&node));
        missing.retain(|(_, rank)| {
            let Some(more) = crowd.grow() else { return true };
            next.slots.insert(more);
            moved.insert(*rank, more.slot);
            false
        });
    }
    if !missing.is_empty() {
        return Err(Unrecoverable::NoSlot {
            missing: missing.len() as u32,
            world_size: record.world_size,
            failures: failures.clone(),
            waited: Micros(0),
            nodes: record.nodes.len(),
            shared: policy.oversubscribe,
        });
    }
    next.placement = record.placement.moved(&moved);
    Ok(())
}

/// The ranks whose slots are lost, by the node they were on.
fn homeless(next: &EpochRecord, record: &EpochRecord) -> BTreeMap<NodeId, Vec<Rank>> {
    let mut homeless: BTreeMap<NodeId, Vec<Rank>> = BTreeMap::new();
    for run in record.placement.runs() {
        for (slot, length) in next.slots.parts_in(run.slot, run.length, SlotState::Lost) {
            for slot in (slot.0..slot.0 + length).map(SlotId) {
                let rank = Rank(run.rank.0 + (slot.0 - run.slot.0));
                homeless.entry(next.slots.node(slot).unwrap_or_default()).or_default().push(rank);
            }
        }
    }
    homeless
}

/// One sentence per failure and collateral end, for the report. `placement`: where the ranks were that failed.
pub fn sentences(placement: &Placement, failures: &FailureSet, policy: &Policy) -> Vec<String> {
    let of_failure = |failure: &Failure| match failure.subject {
        Subject::Slot(slot) => match placement.rank(slot) {
            Some(rank) => format!("{rank} on {} {}", failure.node, failure.cause),
            None => failure.to_string(),
        },
        _ => failure.to_string(),
    };
    let mut lines: Vec<String> = failures.failures().iter().map(of_failure).collect();
    // Where a program's own ends are recovered from nobody asks whose they are.
    let why = if policy.recover_aborts { "at the same time" } else { "because of that death; it is not blamed" };
    let of_collateral = |collateral: &Collateral| format!("{} {} {why}", collateral.process.rank, collateral.end);
    let (told, others) = failures.collateral_told();
    lines.extend(told.iter().map(of_collateral));
    let they = if policy.recover_aborts { why } else { "because of that death; they are not blamed" };
    match others {
        0 => {}
        1 => lines.push(format!("one more rank ended {why}")),
        others => lines.push(format!("{others} more ranks ended {they}")),
    }
    lines
}

/// The job's exit status when this signal ended it, and its name.
pub fn signal_status(signal: i32) -> (i32, String) {
    (128 + signal, signal_name(signal))
}
