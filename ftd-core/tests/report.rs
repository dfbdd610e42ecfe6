//! When people are told of a recovery over nodes: not before all ranks compute again, while those of other nodes may still be on their way.

#![allow(clippy::unwrap_used)]

use ftd_core::agent::Stage;
use ftd_core::fence::Beat;
use ftd_core::holdings::Held;
use ftd_core::plan::first_record;
use ftd_core::word::NodeWord;
use ftd_core::*;
use std::sync::Arc;

const OTHER: NodeId = NodeId(1);
const STAMP: Stamp = Stamp { version: Version(7), epoch: EpochId(1) };

/// The agent that tells people, of two nodes with a rank each, in a recovery; the other node's says what the test does.
struct First {
    agent: Agent,
    now: Micros,
    /// The other one's words, and heartbeats, so far.
    number: u64,
    report: Option<Recovery>,
}

impl First {
    fn step(&mut self, event: Event) -> Vec<Effect> {
        self.now = self.now.after(Micros(10));
        let effects = self.agent.step(self.now, event);
        for effect in &effects {
            match effect {
                Effect::Send { message: PeerMessage::Heartbeat { beat, epoch, .. }, .. } => {
                    let message = PeerMessage::Acknowledge { beat: *beat, epoch: *epoch, still: false };
                    self.step(Event::Message { from: OTHER, message });
                }
                Effect::Report(Report::RecoveryDone(recovery)) => self.report = Some((**recovery).clone()),
                _ => {}
            }
        }
        effects
    }

    fn epoch(&self) -> EpochId {
        self.agent.record().unwrap().epoch
    }

    fn other_says(&mut self, word: &NodeWord) {
        self.number += 1;
        let message = PeerMessage::Up { epoch: self.epoch(), number: self.number, word: Box::new(word.clone()) };
        self.step(Event::Message { from: OTHER, message });
    }

    /// So much time passes, in which both nodes hear each other.
    fn passes(&mut self, time: Micros) {
        let until = self.now.after(time);
        while self.now < until {
            self.number += 1;
            let beat = Beat { incarnation: 1, sequence: self.number };
            let message = PeerMessage::Heartbeat { beat, epoch: self.epoch(), unheard: false };
            self.step(Event::Message { from: OTHER, message });
            self.now = self.now.after(Micros::from_millis(50));
            self.step(Event::Timer);
        }
    }

    /// What it reports soon.
    fn reports(&mut self) -> Recovery {
        let soon = self.now.after(Policy::default().report_patience);
        while self.report.is_none() && self.now < soon {
            self.passes(Micros(10_000));
        }
        self.report.take().expect("a report")
    }

    /// Both ranks have been let go, with something to restore.
    fn released() -> (First, NodeWord) {
        First::released_with(Some(STAMP))
    }

    /// … with this to restore.
    fn released_with(stamp: Option<Stamp>) -> (First, NodeWord) {
        let policy = Policy::default();
        let nodes = [NodeId(0), OTHER];
        let slots = nodes.iter().map(|node| (SlotId(node.0), *node)).collect();
        let record = Arc::new(first_record(Mode::Reinit, policy.terms(), 2, &nodes, &slots, Micros(0)).unwrap());
        let config = JobConfig { nodes: Members::of(nodes), ..JobConfig::single_node(2, Mode::Reinit, policy) };
        let agent = Agent::new(NodeId(0), config);
        let mut first = First { agent, now: Micros::from_secs(1000), number: 0, report: None };
        first.step(Event::Start { slots: vec![SlotId(0)] });
        first.step(Event::SlotUp(SlotId(0)));
        // Its predecessor has died: the next epoch is its own.
        first.step(Event::StoreRead { revision: Revision(1), record: Some(record) });
        first.step(Event::Surveyed { dying: Vec::new(), leaving: Vec::new() });
        first.now = first.now.after(Micros::from_millis(10));
        let proposed = first.step(Event::Timer);
        assert!(proposed.iter().any(|effect| matches!(effect, Effect::Cas { .. })), "{proposed:?}");
        first.step(Event::CasDone { revision: Revision(2) });
        let (epoch, old) = (first.epoch(), WorldId(first.agent.record().unwrap().world.0 - 1));
        first.step(Event::WorldEmptied(old));
        first.step(Event::Drained(old));
        first.step(Event::InventoryTaken { epoch, inventory: Inventory::own(stamp.map(|stamp| (Rank(0), stamp))) });
        let held = Held { somewhere: stamp.into_iter().collect(), elsewhere: [].into() };
        let ready = NodeWord { ready: true, offered: true, ..NodeWord::default() };
        let holds = NodeWord { holdings: Some([(GroupId(0), held)].into_iter().collect()), ..ready.clone() };
        let chosen = NodeWord { chosen: true, ..holds.clone() };
        [ready, holds, chosen.clone()].iter().for_each(|word| first.other_says(word));
        assert_eq!(first.agent.stage(), Stage::Computing);
        (first, chosen)
    }

    fn own(&self) -> Process {
        self.agent.record().unwrap().processes_on(NodeId(0)).next().unwrap().0
    }
}

#[test]
fn the_block_waits_while_other_nodes_are_behind() {
    let (mut first, chosen) = First::released();
    let process = first.own();
    first.step(Event::Initialized(process));
    // Longer than it waits for a sign of its own ranks, each time.
    let long = Micros(2 * Policy::default().report_patience.0);
    first.passes(long);
    let initialized = NodeWord { initialized: true, ..chosen };
    first.other_says(&initialized);
    first.step(Event::RestoreAsked(process));
    first.step(Event::Restored { process, version: STAMP.version });
    first.passes(long);
    assert_eq!(first.report, None);
    first.other_says(&NodeWord { restored: true, ..initialized });
    let report = first.report.unwrap();
    assert!(report.complete && report.times.initialized.is_some() && report.times.restored.is_some(), "{report:?}");
}

#[test]
fn that_all_are_out_of_mpi_init_is_a_sign() {
    let (mut first, chosen) = First::released();
    let process = first.own();
    let nearly = Micros(Policy::default().report_patience.0 * 9 / 10);
    first.step(Event::Initialized(process));
    first.passes(nearly);
    let initialized = NodeWord { initialized: true, ..chosen };
    first.other_says(&initialized);
    first.passes(nearly);
    assert_eq!(first.report, None);
    first.step(Event::Restored { process, version: STAMP.version });
    first.other_says(&NodeWord { restored: true, ..initialized });
    assert!(first.report.unwrap().complete);
}

#[test]
fn it_does_not_wait_for_ever() {
    let (mut first, chosen) = First::released();
    first.step(Event::Initialized(first.own()));
    first.passes(Policy::default().init_patience);
    assert!(!first.report.take().unwrap().complete, "nothing is heard of the others");
    let (mut first, _) = First::released();
    first.step(Event::Started(first.own()));
    first.passes(Policy::default().report_patience);
    assert!(!first.report.take().unwrap().complete, "nothing is heard of its own");
    let (mut first, _) = First::released();
    first.step(Event::Initialized(first.own()));
    first.other_says(&NodeWord { initialized: true, ..chosen });
    first.passes(Policy::default().report_patience);
    assert!(!first.report.unwrap().complete, "its own rank does not ask for its state");
}

#[test]
fn the_block_waits_while_the_user_has_stopped_the_job() {
    let (mut first, chosen) = First::released();
    first.step(Event::Started(first.own()));
    first.step(Event::Suspended(true));
    first.passes(Micros(3 * Policy::default().report_patience.0));
    assert_eq!(first.report, None);
    first.step(Event::Suspended(false));
    first.passes(Micros(Policy::default().report_patience.0 / 2));
    first.step(Event::Initialized(first.own()));
    let initialized = NodeWord { initialized: true, ..chosen };
    first.step(Event::Restored { process: first.own(), version: STAMP.version });
    first.other_says(&NodeWord { restored: true, ..initialized });
    assert!(first.report.unwrap().complete);
}

/// A rank of this node dies, so much later.
fn dies(first: &mut First, later: Micros) {
    first.passes(later);
    assert_eq!(first.report, None);
    let process = first.own();
    first.step(Event::Exited { process, exit: Exit::Signal(9), limit: None });
}

#[test]
fn a_recovery_that_the_next_failure_cuts_short_lasts_until_then() {
    let while_it_waits = Micros(Policy::default().report_patience.0 / 2);
    let (mut first, _) = First::released();
    first.step(Event::Initializing(first.own()));
    dies(&mut first, while_it_waits);
    let report = first.report.take().unwrap();
    assert_eq!((report.times.interrupted, report.times.end()), (Some(first.now), first.now));
    assert!(!report.is_over() && report.before_init == [Rank(0)], "it died in MPI_Init: {report:?}");
    // With all ranks past MPI_Init, and without their state.
    let (mut first, chosen) = First::released();
    first.step(Event::Initialized(first.own()));
    first.other_says(&NodeWord { initialized: true, ..chosen });
    dies(&mut first, while_it_waits);
    let report = first.report.take().unwrap();
    assert!(report.times.interrupted == Some(first.now) && report.before_init.is_empty(), "{report:?}");
    // The job's end is no other; its good end is.
    let (mut first, _) = First::released();
    first.step(Event::Initializing(first.own()));
    first.step(Event::Cancel { signal: 15 });
    assert!(first.report.take().unwrap().times.interrupted.is_some());
    let (mut first, chosen) = First::released();
    first.step(Event::Initialized(first.own()));
    first.step(Event::Finalized(first.own()));
    first.step(Event::Exited { process: first.own(), exit: Exit::Code(0), limit: None });
    first.other_says(&NodeWord { initialized: true, finished: true, ..chosen });
    let report = first.report.take().unwrap();
    assert!(report.is_over() && report.times.interrupted.is_none(), "{report:?}");
}

#[test]
fn ranks_that_give_no_sign_compute_until_the_next_failure() {
    let (mut first, _) = First::released_with(None);
    let released = first.now;
    dies(&mut first, Micros(Policy::default().report_patience.0 / 2));
    let report = first.report.take().unwrap();
    assert!(report.is_over() && report.times.end() <= released, "{report:?}");
}

#[test]
fn ranks_that_give_no_sign_compute_until_they_end() {
    for exit in [Exit::Code(0), Exit::Code(3)] {
        let (mut first, _) = First::released_with(None);
        let released = first.now;
        first.passes(Micros(Policy::default().report_patience.0 / 2));
        let (process, ready) =
            (first.own(), NodeWord { ready: true, offered: true, chosen: true, ..NodeWord::default() });
        first.step(Event::Exited { process, exit, limit: None });
        first.other_says(&NodeWord { initialized: true, restored: true, finished: true, ..ready });
        let report = first.reports();
        assert!(report.times.restored.is_none() && report.times.end() <= released, "{exit:?}: {report:?}");
    }
}

#[test]
fn who_fails_before_mpi_init_has_not_come_past_it() {
    let (mut first, chosen) = First::released();
    first.step(Event::Initializing(first.own()));
    first.passes(Micros(Policy::default().report_patience.0 / 2));
    first.step(Event::Exited { process: first.own(), exit: Exit::Code(1), limit: None });
    first.other_says(&NodeWord { initialized: true, ..chosen });
    let report = first.reports();
    assert!(report.times.initialized.is_none() && report.before_init == [Rank(0)], "{report:?}");
}
