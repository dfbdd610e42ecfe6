//! No step walks over all nodes or ranks. What would is not measured but counted on to fail: the job has a thousand million
//! nodes of four slots, so that one walk takes seconds, and a hundred thousand steps are taken.

#![allow(clippy::unwrap_used)]

use ftd_core::agent::Stage;
use ftd_core::members::NodeRun;
use ftd_core::placement::Run;
use ftd_core::plan::only_record;
use ftd_core::slots::{Home, StateRun};
use ftd_core::word::Decree;
use ftd_core::*;
use std::sync::Arc;

const NODES: u32 = 1_000_000_000;
const EACH: u32 = 4;
const RANKS: u32 = NODES * EACH - 1000;
const ME: NodeId = NodeId(30_000_001);
/// Its parent in the tree.
const PARENT: NodeId = NodeId((ME.0 - 1) / 16);

fn record() -> Arc<EpochRecord> {
    let nodes = Members::from_runs(vec![NodeRun { node: NodeId(0), count: NODES, member: true }]).unwrap();
    let home = Home { slot: SlotId(0), node: NodeId(0), nodes: NODES, each: EACH };
    let run = |slot, length, state| StateRun { slot: SlotId(slot), length, state };
    let states = vec![run(0, RANKS, SlotState::Active), run(RANKS, NODES * EACH - RANKS, SlotState::Parked)];
    let placement = Placement::from_runs(vec![Run { rank: Rank(0), slot: SlotId(0), length: RANKS }]).unwrap();
    let slots = Slots::from_runs(vec![home], states).unwrap();
    let base = only_record(Mode::Reinit, Terms::default(), RANKS, nodes, Outcome::clean());
    Arc::new(EpochRecord { world: WorldId(1), placement, slots, outcome: None, ..base })
}

/// One agent, whose observers answer at once.
struct One {
    agent: Agent,
    now: u64,
}

impl One {
    fn step(&mut self, event: Event) -> Vec<Effect> {
        self.now += 10;
        let mut effects = self.agent.step(Micros(self.now), event);
        let answer = |effect: &Effect| match effect {
            Effect::Send { to, message: PeerMessage::Heartbeat { beat, epoch, .. } } => Some(Event::Message {
                from: *to,
                message: PeerMessage::Acknowledge { beat: *beat, epoch: *epoch, still: false },
            }),
            _ => None,
        };
        let answers: Vec<Event> = effects.iter().filter_map(answer).collect();
        answers.into_iter().for_each(|answer| effects.extend(self.step(answer)));
        effects
    }

    /// An agent of the job that computes.
    fn computing() -> One {
        let record = record();
        let slots: Vec<SlotId> = record.slots.of_node(ME).map(|entry| entry.slot).collect();
        let config = JobConfig {
            nodes: record.nodes.clone(),
            world_size: RANKS,
            renewable_slots: false,
            ..JobConfig::single_node(RANKS, Mode::Reinit, Policy::default())
        };
        let mut one = One { agent: Agent::new(ME, config), now: 1_000_000 };
        one.step(Event::Start { slots: slots.clone() });
        slots.iter().for_each(|slot| drop(one.step(Event::SlotUp(*slot))));
        let told = one.step(Event::StoreRead { revision: Revision(0), record: None });
        let tells = |effect: &Effect| matches!(effect, Effect::Send { message: PeerMessage::Slots { .. }, .. });
        assert!(!told.iter().any(tells), "it has children to wait for");
        one.now += 200_000;
        let told = one.step(Event::Timer);
        assert!(told.iter().any(|effect| tells(effect) && matches!(effect, Effect::Send { to, .. } if *to == PARENT)));
        let epoch = record.epoch;
        let message = PeerMessage::Record { revision: Revision(1), record };
        let launched = one.step(Event::Message { from: PARENT, message });
        assert!(launched.iter().any(|effect| matches!(effect, Effect::Launch { .. })), "{launched:?}");
        let decree = Box::new(Decree { release: true, ..Decree::default() });
        one.step(Event::Message { from: PARENT, message: PeerMessage::Down { epoch, number: 1, decree } });
        assert_eq!(one.agent.stage(), Stage::Computing);
        one
    }

    /// What it wants written now.
    fn writes(&mut self) -> Arc<EpochRecord> {
        let written = self.step(Event::Timer).into_iter().find_map(|effect| match effect {
            Effect::Cas { record, .. } => Some(record),
            _ => None,
        });
        written.unwrap()
    }
}

#[test]
fn a_step_costs_the_same_however_many_nodes_there_are() {
    let mut one = One::computing();
    let epoch = one.agent.record().unwrap().epoch;
    let world = one.agent.record().unwrap().world;
    let watched: Vec<NodeId> = ring::observed(&one.agent.record().unwrap().nodes, ME, 3);
    let mut sent = 0;
    for round in 0..20_000 {
        let beat = fence::Beat { incarnation: 0, sequence: round };
        for from in &watched {
            let message = PeerMessage::Heartbeat { beat, epoch, unheard: false };
            sent += one.step(Event::Message { from: *from, message }).len();
        }
        sent += one.step(Event::Timer).len();
        let mine = Process::primary(world, Rank(ME.0 * EACH + round as u32 % EACH));
        sent += one.step(Event::Initialized(mine)).len();
    }
    assert_eq!(one.agent.stage(), Stage::Computing);
    assert!(sent > 60_000, "{sent}");
}

#[test]
fn nor_does_the_next_epoch() {
    let mut one = One::computing();
    let world = one.agent.record().unwrap().world;
    let dead = Process::primary(world, Rank(ME.0 * EACH));
    one.step(Event::Exited { process: dead, exit: Exit::Signal(9), limit: None });
    one.step(Event::Surveyed { dying: Vec::new(), leaving: Vec::new() });
    one.now += 10_000;
    assert_eq!(one.writes().epoch, EpochId(2));
    one.step(Event::CasDone { revision: Revision(2) });
    assert_eq!(one.agent.stage(), Stage::Emptying);
}

#[test]
fn a_silent_node_and_a_dead_rank_are_one_failure_set() {
    let mut one = One::computing();
    let (epoch, world) = one.agent.record().map(|record| (record.epoch, record.world)).unwrap();
    let message = PeerMessage::Accuse { epoch, revision: Revision(1), accused: [NodeId(5)].into() };
    one.step(Event::Message { from: PARENT, message });
    one.now += 99_500;
    let dead = Process::primary(world, Rank(ME.0 * EACH));
    one.step(Event::Exited { process: dead, exit: Exit::Signal(9), limit: None });
    one.step(Event::Surveyed { dying: Vec::new(), leaving: Vec::new() });
    one.now += 1500;
    let of: Vec<Subject> = one.writes().failures.failures().iter().map(|failure| failure.subject).collect();
    assert_eq!(of, [Subject::Process(dead), Subject::Node(NodeId(5))]);
}
