//! Properties of the planner and of one agent under arbitrary events.

#![allow(clippy::unwrap_used)]

use ftd_core::plan::{self, Unrecoverable, first_record, plan, relevant};
use ftd_core::*;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::strategy::Strategy as Generator;
use std::collections::{BTreeMap, BTreeSet};

/// A first record on up to six nodes, and what may fail in it.
fn record() -> impl Generator<Value = EpochRecord> {
    (1u32..=6, 1u32..=4, 0u32..=4).prop_map(|(nodes, slots, spare)| {
        let all: BTreeMap<SlotId, NodeId> =
            (0..nodes * slots).map(|slot| (SlotId(slot), NodeId(slot / slots))).collect();
        let members: Vec<NodeId> = (0..nodes).map(NodeId).collect();
        let ranks = (nodes * slots).saturating_sub(spare).max(1);
        first_record(Mode::Reinit, Terms::default(), ranks, &members, &all, Micros(0)).unwrap()
    })
}

fn failures(record: &EpochRecord) -> impl Generator<Value = FailureSet> + use<> {
    let (ranks, slots, nodes) = (record.world_size, record.slots.len(), record.nodes.len());
    let world = record.world.0;
    let node_of: BTreeMap<u32, NodeId> = record.slots.iter().map(|entry| (entry.slot.0, entry.node)).collect();
    let of_rank: Vec<NodeId> = (0..ranks).filter_map(|rank| record.node_of(Rank(rank))).collect();
    let process = (0..ranks, 0..2u64, 1i32..16).prop_map(move |(rank, older, signal)| Failure {
        subject: Subject::Process(Process::primary(WorldId(world - older.min(world - 1)), Rank(rank))),
        cause: if signal == 15 { Cause::Unknown } else { Cause::Signal(signal) },
        node: of_rank[rank as usize],
    });
    let slot = (0..slots).prop_map(move |slot| Failure {
        subject: Subject::Slot(SlotId(slot)),
        cause: Cause::SlotLost,
        node: node_of[&slot],
    });
    let causes = prop_oneof![Just(Cause::NodeSilent), Just(Cause::AgentLost), Just(Cause::WorldServerLost)];
    let node = (0..nodes, causes).prop_map(|(node, cause)| Failure {
        subject: Subject::Node(NodeId(node)),
        cause,
        node: NodeId(node),
    });
    vec(prop_oneof![3 => process, 1 => slot, 1 => node], 1..5).prop_map(|list| {
        let mut set = FailureSet::new();
        list.into_iter().for_each(|failure| set.insert(failure));
        set
    })
}

/// A record and several rounds of failures of it.
fn rounds() -> impl Generator<Value = (EpochRecord, Vec<(FailureSet, bool)>)> {
    record().prop_flat_map(|record| {
        let rounds = vec((failures(&record), any::<bool>()), 1..8);
        (Just(record), rounds)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_planned_is_sound((mut record, rounds) in rounds()) {
        let policy = Policy { max_failures: 3, ..Policy::default() };
        for (failures, progress) in rounds {
            let cluster = Cluster { checkpointed: progress, ..Cluster::default() };
            let planned = plan(&record, &failures, &cluster, &policy);
            // Equal input, equal answer.
            prop_assert_eq!(&planned, &plan(&record, &failures, &cluster, &policy));
            let concerns = relevant(&record, &failures);
            match planned {
                Ok(next) => {
                    prop_assert_eq!(next.check(), Ok(()));
                    prop_assert_eq!(next.epoch, record.epoch.next());
                    prop_assert_eq!(next.world, record.world.next());
                    prop_assert_eq!(&next.failures, &concerns);
                    for failure in concerns.failures() {
                        let gone = |slot: SlotId| next.placement.rank(slot).is_none();
                        match failure.subject {
                            Subject::Slot(slot) => prop_assert!(gone(slot), "{} is lost and used", slot),
                            Subject::Node(node) if failure.cause.takes_node() => {
                                prop_assert!(!next.is_member(node));
                                prop_assert!(next.ranks_on(node).is_empty());
                            }
                            _ => {}
                        }
                    }
                    for (rank, slot) in record.placement.iter() {
                        // Nobody moves without need.
                        let entry = next.slot(slot).unwrap();
                        if entry.state == SlotState::Active && next.is_member(entry.node) {
                            prop_assert_eq!(next.placement.slot(rank), Some(slot));
                        }
                    }
                    prop_assert!(next.history.len() <= policy.history);
                    prop_assert!(next.streaks.iter().all(|streak| streak.deaths < policy.max_failures));
                    record = next;
                }
                Err(Unrecoverable::NothingFailed(_)) => prop_assert!(concerns.is_empty()),
                Err(Unrecoverable::NoSlot { missing, .. }) => {
                    let lost = |entry: &SlotEntry| {
                        concerns.failures().iter().any(|failure| match failure.subject {
                            Subject::Slot(slot) => slot == entry.slot,
                            Subject::Node(node) => node == entry.node && failure.cause.takes_node(),
                            Subject::Process(_) => false,
                        })
                    };
                    let usable = |entry: &SlotEntry| entry.state != SlotState::Lost && !lost(entry);
                    let left = record.slots.iter().filter(usable).count() as u32;
                    prop_assert_eq!(left + missing, record.world_size);
                    break;
                }
                Err(Unrecoverable::CrashLoop { deaths, history, .. }) => {
                    prop_assert_eq!(deaths, policy.max_failures);
                    prop_assert!(deaths == policy.max_failures && !history.is_empty());
                    break;
                }
                Err(other) => return Err(TestCaseError::fail(other.to_string())),
            }
        }
    }

    #[test]
    fn beyond_slots_the_ranks_of_a_lost_node_have_a_place(
        (record, failures) in record().prop_flat_map(|record| { let set = failures(&record); (Just(record), set) })
    ) {
        let policy = Policy { oversubscribe: true, ..Policy::default() };
        let concerns = relevant(&record, &failures);
        let lost: BTreeSet<NodeId> = (concerns.failures().iter().filter(|failure| failure.cause.takes_node()))
            .filter_map(|failure| match failure.subject { Subject::Node(node) => Some(node), _ => None })
            .collect();
        let moves: usize = lost.iter().map(|node| record.ranks_on(*node).len()).sum();
        let dead = |slot: SlotId| concerns.failures().iter().any(|failure| failure.subject == Subject::Slot(slot));
        let free = |entry: &SlotEntry| entry.state == SlotState::Parked && !lost.contains(&entry.node) && !dead(entry.slot);
        let room = record.slots.iter().filter(free).count();
        match plan(&record, &failures, &Cluster::default(), &policy) {
            Ok(next) => {
                prop_assert_eq!(next.check(), Ok(()));
                let placed: BTreeSet<SlotId> = next.placement.iter().map(|(_, slot)| slot).collect();
                prop_assert_eq!(placed.len() as u32, record.world_size);
                prop_assert!(placed.iter().all(|slot| next.is_member(next.slots.node(*slot).unwrap())));
                let beyond = placed.iter().any(|slot| slot.is_beyond());
                prop_assert!(moves > 0 || !beyond, "a slot whose shepherd has died is had anew on its node");
            }
            // What is missing then is the place of a rank whose shepherd died, on a node that lives.
            Err(Unrecoverable::NoSlot { .. }) => prop_assert!(moves <= room || lost.len() as u32 == record.nodes.len()),
            Err(_) => {}
        }
    }

    #[test]
    fn the_order_in_which_failures_become_known_does_not_matter(
        (record, list) in record().prop_flat_map(|record| {
            let sets = vec(failures(&record), 2..4);
            (Just(record), sets)
        })
    ) {
        let merged = |sets: &[FailureSet]| {
            let mut all = FailureSet::new();
            // Causes of one subject may differ from report to report here; the first known stands.
            sets.iter().for_each(|set| all.merge(set));
            all.failures().iter().map(|failure| failure.subject).collect::<BTreeSet<_>>()
        };
        let mut reversed = list.clone();
        reversed.reverse();
        prop_assert_eq!(merged(&list), merged(&reversed));
        prop_assert!(record.check().is_ok());
    }

    #[test]
    fn the_version_to_restore_is_the_newest_that_all_hold(
        held in vec(btree_set((0u64..6, 1u64..3), 0..8), 1..5),
        split in 1usize..4,
    ) {
        let stamp = |(version, epoch): (u64, u64)| Stamp { version: Version(version), epoch: EpochId(epoch) };
        let mut inventories = vec![Inventory::default(); split];
        for (rank, stamps) in held.iter().enumerate() {
            for of_rank in stamps {
                let holding = Holding { owner: Rank(rank as u32), stamp: stamp(*of_rank), level: Level::Own };
                inventories[rank % split].holdings.insert(holding);
            }
        }
        let common = held.iter().skip(1).fold(held[0].clone(), |all, one| all.intersection(one).copied().collect());
        let choice = inventory::choose(&inventories, &Groups::one(), held.len() as u32);
        prop_assert_eq!(choice[&GroupId(0)], common.last().copied().map(stamp));
    }
}

/// What the world around one agent may do at any time, in numbers.
#[derive(Debug, Clone)]
enum Nudge {
    Dying(u32),
    KilledBelow(u32, i32),
    Killed(u32),
    Exits(u32, i32),
    Abort(u32),
    Initialized(u32),
    Finalized(u32),
    Committed(u32, u64),
    LoseSlot(u32),
    LoseServer,
    Wait(u64),
    StoreFails,
    RestartAgent,
    StaleEvents,
    Answer,
}

fn nudge() -> impl Generator<Value = Nudge> {
    prop_oneof![
        1 => (0u32..3).prop_map(Nudge::Dying),
        1 => (0u32..3, 9..12i32).prop_map(|(rank, signal)| Nudge::KilledBelow(rank, signal)),
        1 => (0u32..3).prop_map(Nudge::Killed),
        1 => (0u32..3, 0..2i32).prop_map(|(rank, code)| Nudge::Exits(rank, code)),
        1 => (0u32..3).prop_map(Nudge::Abort),
        3 => (0u32..3).prop_map(Nudge::Initialized),
        1 => (0u32..3).prop_map(Nudge::Finalized),
        2 => (0u32..3, 1u64..9).prop_map(|(rank, version)| Nudge::Committed(rank, version)),
        1 => (0u32..3).prop_map(Nudge::LoseSlot),
        1 => Just(Nudge::LoseServer),
        3 => (0u64..3_000).prop_map(Nudge::Wait),
        1 => Just(Nudge::StoreFails),
        1 => Just(Nudge::RestartAgent),
        1 => Just(Nudge::StaleEvents),
        8 => Just(Nudge::Answer),
    ]
}

/// One machine around one agent: what it asked for and was not answered yet, and what is true.
struct Machine {
    agent: Agent,
    now: u64,
    revision: u64,
    stored: Option<EpochRecord>,
    answers: std::collections::VecDeque<Event>,
    slots: BTreeSet<SlotId>,
    next_slot: u32,
    /// Launched and not emptied: slot and world.
    busy: BTreeMap<SlotId, WorldId>,
    newest_world: WorldId,
    store_fails: bool,
    ended: Option<i32>,
}

const RANKS: u32 = 3;

impl Machine {
    fn new() -> Self {
        let config = JobConfig::single_node(RANKS, Mode::Reinit, Policy { max_failures: 50, ..Policy::default() });
        let mut machine = Machine {
            agent: Agent::new(NodeId(0), config),
            now: 0,
            revision: 0,
            stored: None,
            answers: std::collections::VecDeque::new(),
            slots: (0..RANKS).map(SlotId).collect(),
            next_slot: RANKS,
            busy: BTreeMap::new(),
            newest_world: WorldId(0),
            store_fails: false,
            ended: None,
        };
        machine.boot();
        machine
    }

    fn boot(&mut self) {
        let slots: Vec<SlotId> = self.slots.iter().copied().collect();
        self.tell(Event::Start { slots: slots.clone() });
        self.answers.extend(slots.into_iter().map(Event::SlotUp));
    }

    fn tell(&mut self, event: Event) {
        for effect in self.agent.step(Micros(self.now), event) {
            assert!(self.ended.is_none(), "after the end: {effect:?}");
            match effect {
                Effect::ReadStore if std::mem::take(&mut self.store_fails) => {
                    self.answers.push_back(Event::StoreUnavailable)
                }
                Effect::Cas { .. } if std::mem::take(&mut self.store_fails) => {
                    self.answers.push_back(Event::StoreUnavailable)
                }
                Effect::ReadStore => self.answers.push_back(Event::StoreRead {
                    revision: Revision(self.revision),
                    record: self.stored.clone().map(std::sync::Arc::new),
                }),
                Effect::Cas { expected, record, .. } => {
                    assert_eq!(expected, Revision(self.revision), "nobody else writes");
                    assert_eq!(record.check(), Ok(()));
                    let before = self.stored.as_ref().map_or(0, |stored| stored.epoch.0);
                    assert_eq!(record.epoch.0, before + 1, "epochs grow by one");
                    self.revision += 1;
                    self.stored = Some(EpochRecord::clone(&record));
                    self.answers.push_back(Event::CasDone { revision: Revision(self.revision) });
                }
                Effect::Survey => self.answers.push_back(Event::Surveyed { dying: Vec::new(), leaving: Vec::new() }),
                Effect::Launch { world, processes, parked, .. } => {
                    assert!(world > self.newest_world, "{world} is launched after {}", self.newest_world);
                    assert!(!parked, "one node waits for nobody");
                    assert_eq!(processes.len() as u32, RANKS);
                    self.newest_world = world;
                    for (process, slot) in processes {
                        assert!(self.slots.contains(&slot) || self.lost_is_on_its_way(slot), "{slot} is gone");
                        assert!(!self.busy.contains_key(&slot), "{slot} is not empty");
                        self.busy.insert(slot, world);
                        self.answers.push_back(Event::Started(process));
                    }
                }
                Effect::StopWorld(world) => self.answers.push_back(Event::WorldEmptied(world)),
                Effect::Drain(world) => self.answers.push_back(Event::Drained(world)),
                Effect::TakeInventory { epoch, .. } => {
                    assert!(self.busy.is_empty(), "the inventory is taken when nothing writes any more");
                    self.answers.push_back(Event::InventoryTaken { epoch, inventory: Inventory::default() });
                }
                Effect::NeedSlot => {
                    let slot = SlotId(self.next_slot);
                    self.next_slot += 1;
                    self.slots.insert(slot);
                    self.answers.push_back(Event::SlotAdded(slot));
                    self.answers.push_back(Event::SlotUp(slot));
                }
                Effect::End { status, reason, .. } => {
                    let failed = reason.is_some_and(|reason| !reason.contains("was cancelled by"));
                    assert!(status != 0 || !failed, "a job that failed ends with 0");
                    assert!(self.busy.is_empty(), "the job ends with processes still there");
                    self.ended = Some(status);
                }
                Effect::WakeAt(at) => assert!(at.0 > self.now, "a wake-up in the past is a busy loop"),
                _ => {}
            }
        }
    }

    fn lost_is_on_its_way(&self, slot: SlotId) -> bool {
        self.answers.contains(&Event::SlotLost(slot))
    }

    fn answer(&mut self) -> bool {
        let Some(event) = self.answers.pop_front() else { return false };
        if let Event::WorldEmptied(world) = event {
            self.busy.retain(|_, used| *used != world);
        }
        self.tell(event);
        true
    }

    fn nudge(&mut self, nudge: Nudge) {
        let world = self.newest_world;
        let process = |rank| Process::primary(world, Rank(rank));
        match nudge {
            Nudge::Dying(rank) => self.tell(Event::Dying(process(rank))),
            Nudge::KilledBelow(rank, signal) => self.tell(Event::Killed { process: process(rank), signal }),
            Nudge::Killed(rank) => {
                self.tell(Event::Exited { process: process(rank), exit: Exit::Signal(9), limit: None })
            }
            Nudge::Exits(rank, code) => {
                self.tell(Event::Exited { process: process(rank), exit: Exit::Code(code), limit: None });
            }
            Nudge::Abort(rank) => {
                self.tell(Event::AbortRequested { process: process(rank), code: 9 * (rank % 2) as i32 })
            }
            Nudge::Initialized(rank) => self.tell(Event::Initialized(process(rank))),
            Nudge::Finalized(rank) => self.tell(Event::Finalized(process(rank))),
            Nudge::Committed(rank, version) => {
                self.tell(Event::Committed { process: process(rank), version: Version(version), level: Level::Own });
            }
            Nudge::LoseSlot(nth) => {
                if let Some(slot) = self.slots.iter().nth(nth as usize).copied() {
                    self.slots.remove(&slot);
                    self.answers.retain(|event| *event != Event::SlotUp(slot));
                    self.answers.push_back(Event::SlotLost(slot));
                }
            }
            Nudge::LoseServer => self.tell(Event::WorldServerLost(world)),
            Nudge::Wait(us) => {
                self.now += us;
                self.tell(Event::Timer);
            }
            Nudge::StoreFails => self.store_fails = true,
            Nudge::RestartAgent => {
                if self.ended.is_none() {
                    let config =
                        JobConfig::single_node(RANKS, Mode::Reinit, Policy { max_failures: 50, ..Policy::default() });
                    self.agent = Agent::new(NodeId(0), config);
                    self.answers.clear();
                    // The shepherds kill their ranks before they dial in again.
                    self.busy.clear();
                    self.boot();
                }
            }
            Nudge::StaleEvents => {
                let old = WorldId(world.0.saturating_sub(1));
                let process = Process::primary(old, Rank(0));
                self.tell(Event::Exited { process, exit: Exit::Code(1), limit: None });
                self.tell(Event::Committed { process, version: Version(99), level: Level::Own });
                self.tell(Event::WorldEmptied(WorldId(old.0.saturating_sub(1))));
                self.tell(Event::Drained(old));
            }
            Nudge::Answer => {
                self.answer();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 800, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_agent_keeps_its_rules_whatever_happens_and_always_ends(nudges in vec(nudge(), 0..120)) {
        let mut machine = Machine::new();
        for nudge in nudges {
            machine.nudge(nudge);
        }
        // Then everything is answered, and every rank ends cleanly: the job is over in bounded time.
        for _ in 0..2000 {
            if machine.ended.is_some() {
                break;
            }
            if machine.answer() {
                continue;
            }
            let world = machine.newest_world;
            for rank in 0..RANKS {
                let process = Process::primary(world, Rank(rank));
                machine.tell(Event::Initialized(process));
                machine.tell(Event::Finalized(process));
                machine.tell(Event::Exited { process, exit: Exit::Code(0), limit: None });
            }
            machine.now += 100_000;
            machine.tell(Event::Timer);
        }
        prop_assert!(machine.ended.is_some(), "hangs in {:?}", machine.agent.stage());
    }
}

/// A job of one rank on the first of so many nodes.
fn one_rank_on(nodes: u32) -> EpochRecord {
    let slots = (0..nodes).map(|slot| (SlotId(slot), NodeId(slot))).collect();
    let members: Vec<NodeId> = (0..nodes).map(NodeId).collect();
    first_record(Mode::Reinit, Terms::default(), 1, &members, &slots, Micros(0)).unwrap()
}

fn failed(subject: Subject, cause: Cause) -> FailureSet {
    let mut set = FailureSet::new();
    set.insert(Failure { subject, cause, node: NodeId(0) });
    set
}

#[test]
fn nodes_that_never_get_together_end_the_job_and_one_world_that_ran_begins_the_count_anew() {
    let policy = Policy { max_vain: 3, ..Policy::default() };
    let mut record = one_rank_on(10);
    let vain = |vain| plan::Cluster { vain, ..plan::Cluster::default() };
    let mut lose = |node, is_vain| {
        let next = plan(&record, &failed(Subject::Node(NodeId(node)), Cause::NodeSilent), &vain(is_vain), &policy);
        next.map(|next| record = next)
    };
    for (node, is_vain) in [(9, true), (8, true), (7, false), (6, true), (5, true)] {
        lose(node, is_vain).unwrap();
    }
    let error = lose(4, true).unwrap_err();
    assert!(matches!(error, Unrecoverable::Vain { epochs: 3, .. }), "{error}");
    assert_eq!(
        error.to_string(),
        "the job cannot continue, because 3 epochs in a row lost a node before all their ranks ran, this one because node 4 \
         was silent for the heartbeat time-out"
    );
}

#[test]
fn a_copy_that_nobody_can_send_is_no_death_of_its_rank() {
    let mut record = one_rank_on(2);
    for version in 0..20 {
        let stamp = Stamp { version: Version(version), epoch: EpochId(1) };
        let process = Process::primary(record.world, Rank(0));
        let set = failed(Subject::Process(process), Cause::NotFetched(stamp));
        record = plan(&record, &set, &plan::Cluster::default(), &Policy::default()).unwrap();
        assert!(record.not_fetched().contains(&(Rank(0), stamp)));
        assert!(record.streaks.is_empty());
    }
}
