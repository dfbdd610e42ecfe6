//! An agent that has nothing to do but its heartbeats does not look for anything else to do; whatever happens, it does.

#![allow(clippy::unwrap_used)]

use ftd_core::agent::Stage;
use ftd_core::fence::Beat;
use ftd_core::plan::first_record;
use ftd_core::word::{Decree, NodeWord};
use ftd_core::*;
use std::sync::Arc;

const OTHER: NodeId = NodeId(0);
const ME: NodeId = NodeId(1);
const EPOCH: EpochId = EpochId(1);
const PERIOD: u64 = 100_000;

/// The second of two agents, each of which observes the other.
struct One {
    agent: Agent,
    now: u64,
    beats: u64,
}

impl One {
    fn step(&mut self, event: Event) -> Vec<Effect> {
        self.now += 10;
        let effects = self.agent.step(Micros(self.now), event);
        assert!(!self.agent.rested() || self.agent.slept_through().is_empty());
        effects
    }

    fn hears(&mut self, message: PeerMessage) -> Vec<Effect> {
        self.step(Event::Message { from: OTHER, message })
    }

    /// A period passes in which the other one sends its heartbeat, and answers this one's: what this one does, and in how many steps of how
    /// many it rests.
    fn beats(&mut self) -> (Vec<Effect>, [usize; 2]) {
        self.now += PERIOD;
        self.beats += 1;
        let beat = Beat { incarnation: 9, sequence: self.beats };
        let mut all = self.hears(PeerMessage::Heartbeat { beat, epoch: EPOCH, unheard: false });
        let mut rests = [usize::from(self.agent.rested()), 1];
        let sent = all.iter().find_map(|effect| match effect {
            Effect::Send { message: PeerMessage::Heartbeat { beat, .. }, .. } => Some(*beat),
            _ => None,
        });
        if let Some(beat) = sent {
            all.extend(self.hears(PeerMessage::Acknowledge { beat, epoch: EPOCH, still: false }));
            rests = [rests[0] + usize::from(self.agent.rested()), 2];
        }
        (all, rests)
    }

    fn says(effects: &[Effect]) -> bool {
        effects.iter().any(|effect| matches!(effect, Effect::Send { message: PeerMessage::Up { .. }, .. }))
    }

    /// The other one has noted what this one has said.
    fn is_heard(&mut self, effects: &[Effect]) {
        for effect in effects {
            if let Effect::Send { message: PeerMessage::Up { number, .. }, .. } = effect {
                self.hears(PeerMessage::Received { epoch: EPOCH, direction: tree::Direction::Up, number: *number });
            }
        }
    }

    fn computing() -> One {
        let slots = [(SlotId(0), OTHER), (SlotId(1), ME)].into_iter().collect();
        let record = first_record(Mode::Reinit, Terms::default(), 2, &[OTHER, ME], &slots, Micros(0)).unwrap();
        let config = JobConfig {
            nodes: record.nodes.clone(),
            renewable_slots: false,
            ..JobConfig::single_node(2, Mode::Reinit, Policy::default())
        };
        let mut one = One { agent: Agent::new(ME, config), now: 1_000_000, beats: 0 };
        one.step(Event::Start { slots: vec![SlotId(1)] });
        one.step(Event::SlotUp(SlotId(1)));
        one.step(Event::StoreRead { revision: Revision(0), record: None });
        one.hears(PeerMessage::Record { revision: Revision(1), record: Arc::new(record) });
        let (effects, rests) = one.beats();
        assert_eq!(rests[0], 0, "the world waits for its release");
        one.is_heard(&effects);
        let decree = Decree::of(&NodeWord { ready: true, ..NodeWord::default() }, &Decree::default());
        let effects = one.hears(PeerMessage::Down { epoch: EPOCH, number: 1, decree: Box::new(decree) });
        assert_eq!(one.agent.stage(), Stage::Computing);
        one.is_heard(&effects);
        for _ in 0..3 {
            let (effects, _) = one.beats();
            one.is_heard(&effects);
        }
        one
    }
}

#[test]
fn heartbeats_alone_ask_no_guard_and_are_sent_and_answered_all_the_same() {
    let mut one = One::computing();
    for _ in 0..50 {
        let (effects, rests) = one.beats();
        assert_eq!(rests, [2, 2]);
        let says = |what: fn(&PeerMessage) -> bool| {
            effects.iter().any(|effect| matches!(effect, Effect::Send { message, .. } if what(message)))
        };
        assert!(says(|message| matches!(message, PeerMessage::Heartbeat { .. })));
        assert!(says(|message| matches!(message, PeerMessage::Acknowledge { .. })));
        assert!(effects.iter().any(|effect| matches!(effect, Effect::WakeAt(_))));
        assert!(one.agent.fence().lease().runs(Micros(one.now)) && one.agent.hears());
    }
}

#[test]
fn who_beats_first_answers_with_its_next_heartbeat() {
    let mut one = One::computing();
    let mut waits = None;
    for _ in 0..20 {
        one.now += PERIOD;
        let effects = one.step(Event::Timer);
        let sent = |what: fn(&PeerMessage) -> Option<Beat>| {
            effects.iter().find_map(|effect| match effect {
                Effect::Send { to, message } if *to == OTHER => what(message),
                _ => None,
            })
        };
        let heartbeat = sent(|message| match message {
            PeerMessage::Heartbeat { beat, .. } => Some(*beat),
            _ => None,
        });
        let answered = sent(|message| match message {
            PeerMessage::Acknowledge { beat, still: false, .. } => Some(*beat),
            _ => None,
        });
        assert_eq!(answered, waits, "{effects:?}");
        one.hears(PeerMessage::Acknowledge { beat: heartbeat.unwrap(), epoch: EPOCH, still: false });
        one.beats += 1;
        let beat = Beat { incarnation: 9, sequence: one.beats };
        let effects = one.hears(PeerMessage::Heartbeat { beat, epoch: EPOCH, unheard: false });
        assert!(
            one.agent.rested() && !effects.iter().any(|effect| matches!(effect, Effect::Send { .. })),
            "{effects:?}"
        );
        waits = Some(beat);
    }
    // Nobody acknowledges this node for so long that its ranks stand still: what it held says so.
    one.now += 4 * PERIOD;
    let still = PeerMessage::Acknowledge { beat: waits.unwrap(), epoch: EPOCH, still: true };
    assert!(one.step(Event::Timer).contains(&Effect::Send { to: OTHER, message: still }));
}

#[test]
fn what_happens_besides_is_looked_at_at_once_and_until_others_have_noted_it() {
    let mut one = One::computing();
    let world = one.agent.record().unwrap().world;
    let effects = one.step(Event::Initialized(Process::primary(world, Rank(1))));
    assert!(!one.agent.rested() && One::says(&effects), "{effects:?}");
    let (effects, rests) = one.beats();
    assert!(rests[0] == 0 && One::says(&effects), "said again until it is noted: {effects:?}");
    one.is_heard(&effects);
    one.beats();
    assert_eq!(one.beats().1, [2, 2]);
}

#[test]
fn whom_nobody_hears_does_not_rest() {
    let mut one = One::computing();
    assert_eq!(one.beats().1, [2, 2]);
    let mut all = Vec::new();
    for _ in 0..8 {
        one.now += PERIOD;
        all.extend(one.step(Event::Timer));
    }
    assert!(!one.agent.rested() && !one.agent.hears());
    assert!(all.contains(&Effect::Pause), "{all:?}");
    let waits = |effect: &Effect| matches!(effect, Effect::Report(Report::Notice(Notice::WaitingForNode { .. })));
    assert!(all.iter().any(waits), "the other one is given up: {all:?}");
}

#[test]
fn a_record_that_its_heartbeat_has_overtaken_is_waited_for_before_it_is_asked_for() {
    let (beat, next) = (Beat { incarnation: 9, sequence: 1000 }, EPOCH.next());
    let heartbeat = PeerMessage::Heartbeat { beat, epoch: next, unheard: false };
    let asks = |effects: &[Effect]| {
        let asks = |effect: &&Effect| matches!(effect, Effect::Send { message: PeerMessage::AskForRecord { .. }, .. });
        [effects.iter().filter(asks).count(), effects.iter().filter(|effect| **effect == Effect::ReadStore).count()]
    };
    let wakes = |effects: &[Effect], at| effects.contains(&Effect::WakeAt(Micros(at)));
    // It does not come: the node that knows it is asked, and the store.
    let mut one = One::computing();
    let (effects, heard) = (one.hears(heartbeat.clone()), one.now);
    assert_eq!(asks(&effects), [0, 0]);
    assert!(!one.agent.rested() && wakes(&effects, heard + PERIOD / 10), "{effects:?}");
    assert_eq!(asks(&one.hears(heartbeat.clone())), [0, 0]);
    one.now = heard + PERIOD / 10;
    assert_eq!(asks(&one.step(Event::Timer)), [1, 1]);
    // It comes: nobody is asked.
    let mut one = One::computing();
    let heard = one.now;
    let mut effects = one.hears(heartbeat);
    let first = one.agent.record().unwrap().clone();
    let record = EpochRecord { epoch: next, world: WorldId(first.world.0 + 1), ..first };
    effects.extend(one.hears(PeerMessage::Record { revision: Revision(2), record: Arc::new(record) }));
    assert_eq!(one.agent.record().unwrap().epoch, next);
    one.now = heard + PERIOD / 2;
    effects.extend(one.step(Event::Timer));
    assert_eq!(asks(&effects), [0, 0]);
}
