//! The first record where a node of the job does not say its slots: who is slow is waited for, who is gone is not.

use ftd_core::breach::Breach;
use ftd_core::*;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

const MS: u64 = 1_000;
const SECOND: u64 = 1_000 * MS;

/// The agent of a node, the first one if no other is said, whose it is to begin a job on four nodes with a slot each.
struct First {
    agent: Agent,
    now: u64,
    wake: Option<u64>,
    /// Those whose agents answer.
    there: BTreeSet<u32>,
    questions: u32,
    record: Option<Arc<EpochRecord>>,
    told: Vec<Notice>,
}

impl First {
    fn new(world_size: u32, renewable_slots: bool) -> Self {
        Self::at(NodeId(0), world_size, renewable_slots)
    }

    fn at(me: NodeId, world_size: u32, renewable_slots: bool) -> Self {
        let config = JobConfig {
            nodes: members::Members::of((0..4).map(NodeId)),
            world_size,
            mode: Mode::Reinit,
            policy: Policy::default(),
            renewable_slots,
            groups: Groups::one(),
            safe: Level::Own,
            breach: Breach::Nothing,
        };
        let agent = Agent::new(me, config);
        let (record, told) = (None, Vec::new());
        let mut first = First { agent, now: 0, wake: None, there: BTreeSet::new(), questions: 0, record, told };
        first.tell(Event::Start { slots: vec![SlotId(me.0)] });
        first.tell(Event::SlotUp(SlotId(me.0)));
        first
    }

    fn tell(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for effect in self.agent.step(Micros(self.now), event) {
                match effect {
                    Effect::ReadStore => {
                        let revision = Revision(u64::from(self.record.is_some()));
                        events.push_back(Event::StoreRead { revision, record: self.record.clone() });
                    }
                    Effect::Cas { record, .. } => {
                        self.record = Some(record);
                        events.push_back(Event::CasDone { revision: Revision(1) });
                    }
                    Effect::Send { to, message: PeerMessage::Slots { .. } } => {
                        self.questions += 1;
                        if self.there.contains(&to.0) {
                            let message = PeerMessage::SlotsNoted { nodes: 0 };
                            events.push_back(Event::Message { from: to, message });
                        }
                    }
                    Effect::WakeAt(at) => self.wake = Some(at.0),
                    Effect::Report(Report::Notice(notice)) => self.told.push(notice),
                    _ => {}
                }
            }
        }
    }

    /// The agent of this node says its slot.
    fn says(&mut self, node: u32) {
        let (mut nodes, mut slots) = (members::Members::default(), slots::Slots::default());
        nodes.join(NodeId(node));
        let state = slots::SlotState::Parked;
        slots.insert(slots::SlotEntry { slot: SlotId(node), node: NodeId(node), state });
        self.tell(Event::Message { from: NodeId(node), message: PeerMessage::Slots { nodes, slots } });
    }

    /// When the job begins, up to this time.
    fn runs_until(&mut self, end: u64) -> Option<u64> {
        while self.record.is_none() {
            let Some(at) = self.wake.take_if(|at| *at <= end) else {
                self.now = end;
                return None;
            };
            self.now = self.now.max(at);
            self.tell(Event::Timer);
        }
        Some(self.now)
    }

    fn members(&self) -> Vec<u32> {
        self.record.iter().flat_map(|record| record.members().map(|node| node.0).collect::<Vec<_>>()).collect()
    }
}

#[test]
fn a_node_that_was_never_heard_delays_a_job_that_does_not_need_it_by_ten_seconds() {
    let mut first = First::new(3, true);
    first.says(1);
    first.says(2);
    let began = first.runs_until(60 * SECOND).expect("the job begins");
    assert!((10 * SECOND..11 * SECOND).contains(&began), "{began} us");
    assert_eq!(first.members(), [0, 1, 2]);
    assert_eq!(first.told, [Notice::BegunWithout { absent: vec![NodeId(3)] }]);
}

#[test]
fn one_that_was_heard_and_is_silent_delays_it_by_four_time_outs() {
    let mut first = First::new(3, true);
    first.there.insert(3);
    first.says(1);
    first.says(2);
    // Its agent runs, and its shepherds take their time.
    assert_eq!(first.runs_until(20 * SECOND), None, "who answers is waited for");
    first.there.remove(&3);
    let began = first.runs_until(60 * SECOND).expect("the job begins");
    assert!((22 * SECOND..23 * SECOND).contains(&began), "{began} us");
}

#[test]
fn one_that_answers_is_waited_for() {
    let mut first = First::new(3, true);
    first.there.insert(3);
    first.says(1);
    first.says(2);
    assert_eq!(first.runs_until(59 * SECOND), None);
    first.says(3);
    assert_eq!(first.members(), [0, 1, 2, 3]);
    assert_eq!(first.told, []);
}

#[test]
fn one_that_is_needed_is_waited_for_to_the_end() {
    for renewable_slots in [true, false] {
        let mut first = First::new(4, renewable_slots);
        first.says(1);
        first.says(2);
        assert_eq!(first.runs_until(59 * SECOND), None);
        first.says(3);
        assert_eq!(first.members(), [0, 1, 2, 3]);
    }
}

#[test]
fn one_that_is_not_the_only_one_missing_is_no_reason_to_begin() {
    let mut first = First::new(2, true);
    first.there.insert(2);
    first.says(1);
    // Node 3 is gone; node 2 is there, and without a slot yet.
    assert_eq!(first.runs_until(30 * SECOND), None);
    first.says(2);
    assert_eq!(first.members(), [0, 1, 2], "who is gone had its time meanwhile");
}

#[test]
fn who_has_stood_still_has_asked_nobody_meanwhile() {
    let mut first = First::new(3, true);
    first.says(1);
    first.says(2);
    assert_eq!(first.runs_until(5 * SECOND), None);
    first.now += 30 * SECOND;
    first.tell(Event::Timer);
    assert_eq!(first.runs_until(36 * SECOND), None, "node 3 may have answered what was not asked");
}

#[test]
fn nobody_is_asked_who_says_its_slots_at_once() {
    let mut first = First::new(3, true);
    first.now += 50 * MS;
    (1..4).for_each(|node| first.says(node));
    assert_eq!(first.members(), [0, 1, 2, 3]);
    assert_eq!(first.questions, 0);
}

#[test]
fn who_comes_after_the_first_begins_as_soon_when_that_one_is_gone() {
    let mut second = First::at(NodeId(1), 3, true);
    second.says(2);
    second.says(3);
    let began = second.runs_until(60 * SECOND).expect("the job begins");
    assert!((10 * SECOND..15 * SECOND).contains(&began), "{began} us");
    assert_eq!(second.members(), [1, 2, 3]);
    assert_eq!(second.told, [Notice::BegunWithout { absent: vec![NodeId(0)] }]);
}

#[test]
fn who_comes_after_the_first_does_not_begin_while_that_one_answers() {
    let mut second = First::at(NodeId(1), 3, true);
    second.there.insert(0);
    second.says(2);
    assert_eq!(second.runs_until(59 * SECOND), None);
}
