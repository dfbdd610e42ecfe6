//! No step walks over all nodes or ranks. What would is not measured but counted on to fail: the job has a thousand million
//! nodes of four slots, so that one walk takes seconds, and a hundred thousand steps are taken.

#![allow(clippy::unwrap_used)]

use ftd_core::agent::Stage;
use ftd_core::holdings::Held;
use ftd_core::members::NodeRun;
use ftd_core::placement::Run;
use ftd_core::plan::only_record;
use ftd_core::report::Move;
use ftd_core::slots::{Home, StateRun};
use ftd_core::word::{Decree, NodeWord};
use ftd_core::*;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

const NODES: u32 = 1_000_000_000;
const EACH: u32 = 4;
const RANKS: u32 = NODES * EACH - 1000;
const ME: NodeId = NodeId(30_000_001);
const ROOT: NodeId = NodeId(0);
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

/// What is restored.
const STAMP: Stamp = Stamp { version: Version(7), epoch: EpochId(1) };

/// One agent, whose observers answer at once.
struct One {
    agent: Agent,
    me: NodeId,
    now: u64,
    /// What its neighbours in the tree have said: so many words, and what came of them.
    number: u64,
    decree: Decree,
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

    fn hears(&mut self, from: NodeId, message: PeerMessage) -> Vec<Effect> {
        self.step(Event::Message { from, message })
    }

    fn record(&self) -> &EpochRecord {
        self.agent.record().unwrap()
    }

    /// Everybody else says this: its children, if it is the root, or else its parent in everybody's name.
    fn all_say(&mut self, word: &NodeWord) -> Vec<Effect> {
        self.number += 1;
        let (epoch, number) = (self.record().epoch, self.number);
        if self.me != ROOT {
            self.decree = Decree::of(word, &self.decree);
            let decree = Box::new(self.decree.clone());
            return self.hears(PARENT, PeerMessage::Down { epoch, number, decree });
        }
        let up = || PeerMessage::Up { epoch, number, word: Box::new(word.clone()) };
        (1..=16).flat_map(|child| self.hears(NodeId(child), up())).collect()
    }

    /// An agent whose slots are there.
    fn started(me: NodeId) -> One {
        let record = record();
        let slots: Vec<SlotId> = record.slots.of_node(me).map(|entry| entry.slot).collect();
        let config = JobConfig {
            nodes: record.nodes.clone(),
            world_size: RANKS,
            renewable_slots: false,
            ..JobConfig::single_node(RANKS, Mode::Reinit, Policy::default())
        };
        let agent = Agent::new(me, config);
        let mut one = One { agent, me, now: 1_000_000, number: 0, decree: Decree::default() };
        one.step(Event::Start { slots: slots.clone() });
        slots.into_iter().for_each(|slot| drop(one.step(Event::SlotUp(slot))));
        one
    }

    /// An agent of the job that computes.
    fn computing() -> One {
        let mut one = One::started(ME);
        let told = one.step(Event::StoreRead { revision: Revision(0), record: None });
        let tells = |effect: &Effect| matches!(effect, Effect::Send { message: PeerMessage::Slots { .. }, .. });
        assert!(!told.iter().any(tells), "it has children to wait for");
        one.now += 200_000;
        let told = one.step(Event::Timer);
        assert!(told.iter().any(|effect| tells(effect) && matches!(effect, Effect::Send { to, .. } if *to == PARENT)));
        let launched = one.hears(PARENT, PeerMessage::Record { revision: Revision(1), record: record() });
        assert!(launched.iter().any(|effect| matches!(effect, Effect::Launch { .. })), "{launched:?}");
        one.all_say(&NodeWord { ready: true, ..NodeWord::default() });
        assert_eq!(one.agent.stage(), Stage::Computing);
        one
    }

    /// The root's: who tells people what happened. It has just been started again.
    fn root() -> (One, Recovery) {
        let mut one = One::started(ROOT);
        one.step(Event::StoreRead { revision: Revision(1), record: Some(record()) });
        assert_eq!(one.agent.stage(), Stage::Restarted);
        one.step(Event::Surveyed { dying: Vec::new(), leaving: Vec::new() });
        one.now += 10_000;
        let next = written(one.step(Event::Timer)).unwrap();
        let reported = one.recovers(&next);
        (one, reported.unwrap())
    }

    /// A process of this node dies together with another node.
    fn loses_a_process_and(&mut self, node: NodeId) -> Arc<EpochRecord> {
        let (epoch, world) = (self.record().epoch, self.record().world);
        let message = PeerMessage::Accuse { epoch, revision: Revision(epoch.0), accused: [node].into() };
        self.hears(if self.me == ROOT { NodeId(1) } else { PARENT }, message);
        self.now += 99_500;
        let dead = Process::primary(world, Rank(self.me.0 * EACH));
        self.step(Event::Exited { process: dead, exit: Exit::Signal(9), limit: None });
        self.step(Event::Surveyed { dying: Vec::new(), leaving: Vec::new() });
        self.now += 1500;
        let next = written(self.step(Event::Timer)).unwrap();
        let of: Vec<Subject> = next.failures.failures().iter().map(|failure| failure.subject).collect();
        assert_eq!(of, [Subject::Process(dead), Subject::Node(node)]);
        next
    }

    /// This record is written, and the job recovers: what people are told in the end.
    fn recovers(&mut self, next: &Arc<EpochRecord>) -> Option<Recovery> {
        let (epoch, old) = (next.epoch, WorldId(next.world.0 - 1));
        self.decree = Decree::default();
        self.step(Event::CasDone { revision: Revision(epoch.0) });
        assert_eq!(self.agent.stage(), Stage::Emptying);
        self.step(Event::WorldEmptied(old));
        self.step(Event::Drained(old));
        let mine: Vec<Process> = next.processes_on(self.me).map(|(process, _)| process).collect();
        let inventory = Inventory::own(mine.iter().map(|process| (process.rank, STAMP)));
        self.step(Event::InventoryTaken { epoch, inventory });
        let versions = || [STAMP].into();
        let held = Held { somewhere: versions(), elsewhere: versions() };
        let ready = NodeWord { ready: true, offered: true, ..NodeWord::default() };
        let holds = NodeWord { holdings: Some([(GroupId(0), held)].into_iter().collect()), ..ready.clone() };
        let chosen = NodeWord { chosen: true, ..holds.clone() };
        [ready, holds, chosen.clone()].iter().for_each(|word| drop(self.all_say(word)));
        assert_eq!(self.agent.stage(), Stage::Computing);
        for process in mine {
            self.step(Event::Initialized(process));
            self.step(Event::RestoreAsked(process));
            self.step(Event::Restored { process, version: STAMP.version });
        }
        assert!(self.agent.recovers());
        let told = self.all_say(&NodeWord { initialized: true, restored: true, ..chosen });
        assert!(!self.agent.recovers());
        told.into_iter().find_map(|effect| match effect {
            Effect::Report(Report::RecoveryDone(recovery)) => Some(*recovery),
            _ => None,
        })
    }
}

/// What is to be written.
fn written(effects: Vec<Effect>) -> Option<Arc<EpochRecord>> {
    effects.into_iter().find_map(|effect| match effect {
        Effect::Cas { record, .. } => Some(record),
        _ => None,
    })
}

/// Runs to its end or, for minutes, through nodes or ranks.
fn walks_over_nothing(test: fn()) {
    let (done, waits) = mpsc::channel();
    let runs = thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match waits.recv_timeout(Duration::from_secs(60)) {
        Err(RecvTimeoutError::Timeout) => panic!("a step walks over all nodes or ranks"),
        Ok(()) | Err(RecvTimeoutError::Disconnected) => runs.join().unwrap(),
    }
}

#[test]
fn a_step_costs_the_same_however_many_nodes_there_are() {
    walks_over_nothing(|| {
        let mut one = One::computing();
        let (epoch, world) = (one.record().epoch, one.record().world);
        let watched: Vec<NodeId> = ring::observed(&one.record().nodes, ME, 3);
        let mut sent = 0;
        for round in 0..20_000 {
            let beat = fence::Beat { incarnation: 0, sequence: round };
            for from in &watched {
                sent += one.hears(*from, PeerMessage::Heartbeat { beat, epoch, unheard: false }).len();
            }
            sent += one.step(Event::Timer).len();
            let mine = Process::primary(world, Rank(ME.0 * EACH + round as u32 % EACH));
            sent += one.step(Event::Initialized(mine)).len();
        }
        assert_eq!(one.agent.stage(), Stage::Computing);
        assert!(sent > 60_000, "{sent}");
    });
}

#[test]
fn nor_does_a_recovery_to_its_end() {
    walks_over_nothing(|| {
        let mut one = One::computing();
        let next = one.loses_a_process_and(NodeId(5));
        assert_eq!(one.recovers(&next), None, "another one tells people of it");
    });
}

#[test]
fn nor_does_it_for_the_one_who_tells_people_of_it() {
    walks_over_nothing(|| {
        let (mut one, restarted) = One::root();
        assert!(restarted.complete && restarted.moved.is_empty());
        let next = one.loses_a_process_and(NodeId(77));
        let recovery = one.recovers(&next).unwrap();
        assert!(recovery.complete);
        let ranks = (0..EACH).map(|rank| Rank(77 * EACH + rank)).collect();
        // Numbers this high are those of slots that nodes have beyond their own.
        let beyond = SlotId((NODES - 250) * EACH).is_beyond();
        assert_eq!(recovery.moved, [Move { ranks, from: NodeId(77), to: NodeId(NODES - 250), beyond }]);
    });
}
