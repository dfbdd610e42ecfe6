//! The sentences of DESIGN §5 about the fence, one test each, to the microsecond: whoever changes a quantity of the argument
//! (`src/fence/*.rs`) sees which sentence does not hold any more. Times are milliseconds: T is 500, the period 100, P 30 000.

#![allow(clippy::unwrap_used)]

use ftd_core::agent::Stage;
use ftd_core::breach::Breach;
use ftd_core::fence::{Beat, Fence, Lease, Reply};
use ftd_core::plan::first_record;
use ftd_core::word::Decree;
use ftd_core::{
    Agent, Effect, EpochId, EpochRecord, Event, JobConfig, Members, Micros, Mode, NodeId, PeerMessage, Policy,
    Revision, SlotId, Terms, ring,
};
use std::collections::BTreeSet;

const FIRST: EpochId = EpochId(1);
/// When the first epoch is adopted.
const BEGIN: Micros = Micros::from_millis(10_000);
const EPSILON: u64 = 1;

fn ms(time: u64) -> Micros {
    Micros::from_millis(time)
}

/// So many milliseconds after the beginning.
fn at(time: u64) -> Micros {
    BEGIN.after(ms(time))
}

fn before(time: Micros) -> Micros {
    Micros(time.0 - EPSILON)
}

fn terms(observers: u32) -> Terms {
    Terms { period: ms(100), timeout: ms(500), patience: ms(30_000), observers, fan_out: 16 }
}

fn record(nodes: u32, observers: u32) -> EpochRecord {
    of_ranks(1, nodes, observers)
}

fn of_ranks(ranks: u32, nodes: u32, observers: u32) -> EpochRecord {
    let ids: Vec<NodeId> = (0..nodes).map(NodeId).collect();
    let slots = ids.iter().map(|node| (SlotId(node.0), *node)).collect();
    first_record(Mode::Reinit, terms(observers), ranks, &ids, &slots, Micros(0)).unwrap()
}

/// The epoch after it, of the same members.
fn next(record: &EpochRecord) -> EpochRecord {
    EpochRecord { epoch: record.epoch.next(), ..record.clone() }
}

/// A node's fence, of a job in its first epoch.
struct Node {
    fence: Fence,
    observers: Vec<NodeId>,
    observed: Vec<NodeId>,
    beat: Option<Beat>,
}

impl Node {
    fn of(id: NodeId, record: &EpochRecord) -> Node {
        let mut fence = Fence::new(id, 1, Breach::Nothing);
        fence.ran(BEGIN);
        fence.adopt(record, Revision(1), BEGIN);
        let width = record.terms.observers as usize;
        let (observers, observed) =
            (ring::observers(&record.nodes, id, width), ring::observed(&record.nodes, id, width));
        Node { fence, observers, observed, beat: None }
    }

    /// Of five nodes, observed by three.
    fn usual() -> Node {
        Node::of(NodeId(0), &record(5, 3))
    }

    /// Its observers acknowledge its newest heartbeat now.
    fn is_acknowledged(&mut self, epoch: EpochId, now: Micros) {
        if let Some((beat, _)) = self.fence.beat(now) {
            self.beat = Some(beat);
        }
        let beat = self.beat.unwrap();
        for from in self.observers.clone() {
            self.fence.acknowledged(from, beat, epoch, false, now);
        }
    }

    /// All goes well in the first epoch: it runs, is acknowledged, and hears these, every 50 ms.
    fn goes_on(&mut self, hears: &[NodeId], from: Micros, until: Micros) {
        let mut now = from;
        while now < until {
            self.fence.ran(now);
            self.is_acknowledged(FIRST, now);
            for node in hears {
                self.fence.heartbeat(*node, FIRST, false, now);
            }
            now = now.after(ms(50));
        }
    }

    /// Whether it gives this node up just now, and did not a moment before.
    fn gives_up(&self, node: NodeId, now: Micros) -> bool {
        !self.fence.accused(before(now)).contains(&node) && self.fence.accused(now).contains(&node)
    }
}

// ---- until when a node may compute

#[test]
fn a_lease_ends_three_quarters_of_t_after_the_heartbeat_that_was_acknowledged_was_sent() {
    let mut node = Node::usual();
    assert_eq!(node.fence.lease(), Lease::None);
    let (beat, _) = node.fence.beat(at(0)).unwrap();
    for from in node.observers.clone() {
        assert_eq!(node.fence.lease(), Lease::None, "all of them have to");
        node.fence.acknowledged(from, beat, FIRST, false, at(90));
    }
    assert_eq!(node.fence.lease(), Lease::Until(at(375)));
    assert!(node.fence.lease().runs(before(at(375))) && !node.fence.lease().runs(at(375)));
}

#[test]
fn the_earliest_of_the_newest_that_each_of_its_observers_has_acknowledged_in_this_epoch_counts() {
    let mut node = Node::usual();
    node.is_acknowledged(FIRST, at(0));
    let (second, _) = node.fence.beat(at(100)).unwrap();
    for from in &node.observers[1..] {
        node.fence.acknowledged(*from, second, FIRST, false, at(110));
    }
    assert_eq!(node.fence.lease(), Lease::Until(at(375)));
    node.fence.acknowledged(node.observers[0], second, FIRST, false, at(120));
    assert_eq!(node.fence.lease(), Lease::Until(at(475)));
    node.fence.adopt(&next(&record(5, 3)), Revision(2), at(130));
    assert_eq!(node.fence.lease(), Lease::None);
    node.is_acknowledged(FIRST, at(140));
    assert_eq!(node.fence.lease(), Lease::None, "of an older epoch");
    node.is_acknowledged(FIRST.next(), at(240));
    assert_eq!(node.fence.lease(), Lease::Until(at(240 + 375)));
}

#[test]
fn heartbeats_are_sent_once_in_a_period_and_at_once_in_a_new_epoch() {
    let mut node = Node::usual();
    assert!(node.fence.beat(at(0)).is_some());
    assert!(node.fence.beat(before(at(100))).is_none() && node.fence.beat(at(100)).is_some());
    node.fence.adopt(&next(&record(5, 3)), Revision(2), at(101));
    assert!(node.fence.beat(at(101)).is_some());
}

/// The last heartbeat left at `sent`, and another one's comes at `comes`: when the next one leaves, by the timer or then.
fn beats_after(node: &mut Node, sent: Micros, other: NodeId, comes: Micros) -> Micros {
    let due = sent.after(ms(100));
    if due <= comes {
        assert!(node.fence.deadlines().any(|deadline| deadline == due));
        assert!(node.fence.beat(before(due)).is_none() && node.fence.beat(due).is_some(), "{sent:?}");
        return due;
    }
    assert!(node.fence.beat(comes).is_none());
    node.fence.heartbeat(other, FIRST, false, comes);
    match node.fence.beat(comes) {
        Some(_) => comes,
        None => beats_after(node, sent, other, Micros(u64::MAX)),
    }
}

#[test]
fn a_heartbeat_leaves_when_anothers_comes_and_it_is_nearly_due_and_never_later_than_due() {
    let mut node = Node::usual();
    let (other, mut sent) = (node.observed[0], at(0));
    node.is_acknowledged(FIRST, sent);
    // Half a period, when the one before was sent by itself; after that seven eighths.
    for (comes, leaves) in [(49, 100), (50, 50), (87, 100), (60, 60), (87, 100), (99, 99), (88, 88), (95, 95)] {
        let comes = sent.after(ms(comes));
        let leaves = sent.after(ms(leaves));
        sent = beats_after(&mut node, sent, other, comes);
        assert_eq!(sent, leaves);
    }
    // What does not count is nobody's rhythm.
    for (epoch, unheard) in [(EpochId(0), false), (FIRST.next(), false), (FIRST, true)] {
        node.fence.heartbeat(other, epoch, unheard, sent.after(ms(99)));
        assert!(node.fence.beat(sent.after(ms(99))).is_none(), "{epoch:?} {unheard}");
    }
}

#[test]
fn of_nodes_that_beat_together_one_does_so_by_its_timer_and_the_others_when_its_heartbeat_comes() {
    let terms = record(2, 3);
    for phase in [0, 1, 10, 49, 50, 51, 90, 99] {
        let mut nodes = [Node::of(NodeId(0), &terms), Node::of(NodeId(1), &terms)];
        nodes[1].fence.beat(at(0));
        // What is on its way takes a tenth of a millisecond, and so late is each timer.
        let (mut now, mut coming, mut sent) = (at(0), Vec::new(), [Vec::new(), Vec::new()]);
        while now < at(3000) {
            for me in 0..2 {
                if me == 1 && now < at(phase) {
                    continue;
                }
                let arrived: Vec<usize> =
                    coming.iter().filter(|(at, to)| *at == now && *to == me).map(|_| me).collect();
                for _ in &arrived {
                    nodes[me].fence.heartbeat(NodeId(1 - me as u32), FIRST, false, now);
                }
                if nodes[me].fence.beat(now).is_some() {
                    sent[me].push((now, arrived.is_empty()));
                    coming.push((now.after(Micros(100)), 1 - me));
                }
            }
            now = now.after(Micros(100));
        }
        let by_timer = sent.each_ref().map(|sent| sent.iter().rev().take(15).filter(|(_, own)| *own).count());
        assert!(by_timer == [15, 0] || by_timer == [0, 15], "{phase}: {by_timer:?}");
        for sent in &sent {
            let spans = sent.windows(2).map(|pair| pair[1].0.since(pair[0].0));
            assert!(spans.clone().all(|span| span <= ms(100)), "{phase}: late");
            assert!(spans.rev().take(15).all(|span| span >= ms(90)), "{phase}: too often");
        }
    }
}

#[test]
fn an_acknowledgement_of_a_heartbeat_older_than_two_t_is_not_waited_for() {
    let lease = |late| {
        let mut node = Node::usual();
        let (beat, _) = node.fence.beat(at(0)).unwrap();
        node.fence.beat(late);
        node.observers.clone().into_iter().for_each(|from| node.fence.acknowledged(from, beat, FIRST, false, late));
        node.fence.lease()
    };
    assert_eq!((lease(at(1000)), lease(Micros(at(1000).0 + EPSILON))), (Lease::Until(at(375)), Lease::None));
}

#[test]
fn a_heartbeat_says_whom_it_has_not_heard_from_for_three_quarters_of_t() {
    let silent = |now| {
        let mut node = Node::usual();
        let (beat, _) = node.fence.beat(at(0)).unwrap();
        node.fence.acknowledged(node.observers[0], beat, FIRST, false, at(50));
        let (_, to) = node.fence.beat(now).unwrap();
        to.into_iter().find(|(to, _)| *to == node.observers[0]).unwrap().1
    };
    assert_eq!((silent(before(at(425))), silent(at(425))), (false, true));
}

// ---- what counts

#[test]
fn from_one_that_stands_still_it_counts_only_if_the_record_was_read_since_the_heartbeat_was_sent() {
    let mut node = Node::usual();
    let (beat, _) = node.fence.beat(at(0)).unwrap();
    for from in node.observers.clone() {
        node.fence.acknowledged(from, beat, FIRST, true, at(20));
    }
    node.fence.read(before(at(0)));
    assert_eq!(node.fence.lease(), Lease::None, "the read was begun before");
    node.fence.read(at(0));
    assert_eq!(node.fence.lease(), Lease::Until(at(375)));
}

#[test]
fn a_read_that_shows_another_epoch_counts_for_nothing() {
    let mut node = Node::usual();
    let (beat, _) = node.fence.beat(at(0)).unwrap();
    for from in node.observers.clone() {
        node.fence.acknowledged(from, beat, FIRST, true, at(10));
    }
    let mut same = node.fence.clone();
    same.read(at(20));
    assert_eq!(same.lease(), Lease::Until(at(375)));
    // What it has shown is adopted first.
    node.fence.adopt(&next(&record(5, 3)), Revision(2), at(30));
    node.fence.read(at(20));
    assert_eq!(node.fence.lease(), Lease::None);
}

#[test]
fn it_was_read_since_also_when_the_acknowledgement_came_later_than_the_record() {
    let mut node = Node::usual();
    let (beat, _) = node.fence.beat(at(0)).unwrap();
    node.fence.acknowledged(node.observers[0], beat, FIRST, true, at(5));
    node.fence.read(at(5));
    node.fence.acknowledged(node.observers[1], beat, FIRST, true, at(20));
    assert_eq!(node.fence.lease(), Lease::None);
    node.fence.acknowledged(node.observers[2], beat, FIRST, true, at(90));
    assert_eq!(node.fence.lease(), Lease::Until(at(375)));
    let (later, _) = node.fence.beat(at(100)).unwrap();
    for from in node.observers.clone() {
        node.fence.acknowledged(from, later, FIRST, true, at(110));
    }
    assert_eq!(node.fence.lease(), Lease::Until(at(375)), "the record was read before that heartbeat was sent");
    // What was read in one epoch counts for nothing in the next.
    node.fence.read(at(115));
    node.fence.adopt(&next(&record(5, 3)), Revision(2), at(115));
    let (beat, _) = node.fence.beat(at(115)).unwrap();
    for from in node.observers.clone() {
        node.fence.acknowledged(from, beat, FIRST.next(), true, at(116));
    }
    assert_eq!(node.fence.lease(), Lease::None);
}

#[test]
fn it_reads_the_record_for_that_once_in_a_period() {
    let mut node = Node::usual();
    assert!(!node.fence.wants_read(at(0)));
    let (beat, _) = node.fence.beat(at(0)).unwrap();
    node.fence.acknowledged(node.observers[0], beat, FIRST, true, at(20));
    assert!(node.fence.wants_read(at(20)));
    assert!(!node.fence.wants_read(before(at(120))) && node.fence.wants_read(at(120)));
}

#[test]
fn and_at_once_when_the_lease_waits_for_nothing_else() {
    let mut node = Node::usual();
    let observers = node.observers.clone();
    let (beat, _) = node.fence.beat(at(0)).unwrap();
    node.fence.acknowledged(observers[0], beat, FIRST, true, at(5));
    assert!(node.fence.wants_read(at(5)));
    node.fence.acknowledged(observers[1], beat, FIRST, true, at(6));
    assert!(!node.fence.wants_read(at(6)), "what is being read is late enough for that");
    // One that knows of the epoch only now has heard a later heartbeat alone.
    node.fence.knows(observers[2], FIRST, at(10));
    let (beat, _) = node.fence.beat(at(10)).unwrap();
    node.fence.acknowledged(observers[2], beat, FIRST, true, at(12));
    assert!(node.fence.wants_read(at(12)));
    assert!(!node.fence.wants_read(at(12)) && !node.fence.wants_read(before(at(112))), "once");
    node.fence.read(at(12));
    assert_eq!(node.fence.lease(), Lease::Until(at(375)));
}

#[test]
fn an_acknowledgement_says_whether_its_sender_stands_still() {
    let mut node = Node::usual();
    let from = node.observed[0];
    assert_eq!(node.fence.heartbeat(from, FIRST, false, at(0)), Reply::Acknowledge { still: true });
    node.is_acknowledged(FIRST, at(0));
    assert_eq!(node.fence.heartbeat(from, FIRST, false, before(at(375))), Reply::Acknowledge { still: false });
    assert_eq!(node.fence.heartbeat(from, FIRST, false, at(375)), Reply::Acknowledge { still: true });
}

#[test]
fn an_answer_may_wait_for_the_next_heartbeat_to_the_same_node_where_both_beat_in_time() {
    let calm = |nodes: u32, period: u64| {
        let mut all = record(nodes, 1);
        all.terms.period = ms(period);
        let mut node = Node::of(NodeId(0), &all);
        let observed = node.observed.clone();
        assert!(!node.fence.answer_may_wait(observed[0], at(0)), "the first one of an epoch is waited for");
        node.goes_on(&observed, at(0), at(300));
        (node, observed[0])
    };
    let (mut node, other) = calm(2, 100);
    assert!(node.fence.answer_may_wait(other, at(400)));
    assert!(!node.fence.answer_may_wait(other, at(401)), "one that came before was lost, or late");
    // What leaves with a heartbeat that was not acknowledged may be lost.
    let mut lost = node.fence.clone();
    assert!(lost.beat(at(400)).is_some() && !lost.answer_may_wait(other, at(400)));
    // A newer one that is answered at once is the newest.
    let mut newer = node.fence.clone();
    newer.hold(other, Beat { incarnation: 9, sequence: 6 });
    newer.heartbeat(other, FIRST, false, at(340));
    assert_eq!(newer.held(other), None);
    // A node that stands still is asked again: its next answer is waited for.
    let mut still = node.fence.clone();
    still.heartbeat(other, FIRST, false, at(700));
    assert!(!still.answer_may_wait(other, at(710)));
    let beat = Beat { incarnation: 9, sequence: 7 };
    node.fence.hold(other, Beat { incarnation: 9, sequence: 6 });
    node.fence.hold(other, beat);
    assert_eq!([node.fence.held(other), node.fence.held(other)], [Some(beat), None]);
    node.fence.hold(other, beat);
    node.fence.adopt(&next(&record(2, 1)), Revision(2), at(400));
    assert_eq!(node.fence.held(other), None, "it is of an epoch that is over");
    assert!(!node.fence.answer_may_wait(other, at(400)));
    // A lease would not outlive a heartbeat that is lost.
    let (node, other) = calm(2, 101);
    assert!(!node.fence.answer_may_wait(other, at(300)));
    // Nothing leaves for that node.
    let (node, other) = calm(3, 100);
    assert!(!node.fence.answer_may_wait(other, at(300)));
    // This node was kept from running.
    let (mut node, other) = calm(2, 100);
    node.goes_on(&[other], at(380), at(390));
    assert!(!node.fence.answer_may_wait(other, at(390)));
}

#[test]
fn nobody_is_answered_later_whom_this_node_accuses() {
    let mut node = Node::of(NodeId(0), &record(2, 1));
    let other = node.observed[0];
    node.goes_on(&[other], at(0), at(300));
    node.fence.hold(other, Beat { incarnation: 9, sequence: 7 });
    node.goes_on(&[], at(300), at(800));
    assert!(node.fence.hand_over(at(800)).is_some() || !node.fence.accused(at(800)).is_empty());
    assert!(!node.fence.answer_may_wait(other, at(800)));
    assert_eq!(node.fence.held(other), None);
}

#[test]
fn a_heartbeat_that_says_i_have_not_heard_you_or_of_an_older_epoch_is_answered_but_does_not_count() {
    let mut node = Node::usual();
    let silent = node.observed[0];
    let others = [node.observed[1], node.observed[2]];
    node.goes_on(&others, at(0), at(500));
    assert_eq!(node.fence.heartbeat(silent, FIRST, true, at(450)), Reply::Heard);
    assert_eq!(node.fence.heartbeat(silent, EpochId(0), false, at(450)), Reply::Record);
    assert!(node.gives_up(silent, at(500)));
    assert_eq!(node.fence.heartbeat(silent, FIRST.next(), false, at(450)), Reply::AskForRecord);
}

// ---- when a silent one is given up

#[test]
fn an_observer_that_has_heard_nothing_for_t_since_the_adoption_of_the_epoch_may_propose_a_nodes_death() {
    let mut node = Node::usual();
    let silent = node.observed[1];
    node.goes_on(&[node.observed[0], node.observed[2]], at(0), at(500));
    assert!(node.gives_up(silent, at(500)));
    assert_eq!(node.fence.accused(at(500)), BTreeSet::from([silent]));
}

#[test]
fn t_runs_from_the_last_heartbeat_that_counted() {
    let mut node = Node::usual();
    let silent = node.observed[1];
    let others = [node.observed[0], node.observed[2]];
    node.goes_on(&others, at(0), at(300));
    node.fence.heartbeat(silent, FIRST, false, at(310));
    node.goes_on(&others, at(300), at(810));
    assert!(node.gives_up(silent, at(810)));
}

/// From `begin` on it runs in this epoch, and is acknowledged in it.
fn goes_on_in(node: &mut Node, epoch: EpochId, begin: u64, end: u64) {
    for time in (begin..end).step_by(50) {
        node.fence.ran(at(time));
        node.is_acknowledged(epoch, at(time));
    }
}

#[test]
fn t_runs_on_over_an_epoch_for_who_observed_the_node_before() {
    let mut node = Node::usual();
    let silent = node.observed[1];
    node.goes_on(&node.observed.clone(), at(0), at(300));
    node.goes_on(&[], at(300), at(350));
    node.fence.heartbeat(silent, FIRST, false, at(310));
    node.fence.adopt(&next(&record(5, 3)), Revision(2), at(350));
    let second = FIRST.next();
    goes_on_in(&mut node, second, 350, 500);
    node.fence.adopt(&EpochRecord { epoch: second.next(), ..record(5, 3) }, Revision(3), at(500));
    goes_on_in(&mut node, second.next(), 500, 810);
    assert!(node.gives_up(silent, at(810)), "500 after the last one that counted, which was two epochs ago");
}

#[test]
fn whoever_is_newly_observed_has_t_from_the_adoption_of_the_epoch() {
    let before = record(6, 2);
    let mut node = Node::of(NodeId(0), &before);
    let out = node.observed[0];
    let without = Members::of(before.nodes.iter().filter(|member| *member != out));
    let (newly, old) = (ring::observed(&without, NodeId(0), 2), node.observed.clone());
    let newly = newly.into_iter().find(|observed| !old.contains(observed)).unwrap();
    node.goes_on(&[], at(0), at(450));
    node.fence.adopt(&EpochRecord { nodes: without.clone(), ..next(&before) }, Revision(2), at(450));
    node.observers = ring::observers(&without, NodeId(0), 2);
    goes_on_in(&mut node, FIRST.next(), 450, 950);
    assert!(node.gives_up(newly, at(950)));
    assert!(node.gives_up(old[1], at(500)), "that one it has observed from the first epoch on");
}

#[test]
fn who_is_heard_in_an_epoch_that_its_observer_does_not_know_yet_is_not_silent() {
    let given_up = |unheard: bool, at_last: u64| {
        let mut node = Node::usual();
        let ahead = node.observed[1];
        node.goes_on(&node.observed.clone(), at(0), at(100));
        node.goes_on(&[], at(100), at(450));
        assert_eq!(node.fence.heartbeat(ahead, FIRST.next(), unheard, at(400)), Reply::AskForRecord);
        node.fence.adopt(&next(&record(5, 3)), Revision(2), at(450));
        goes_on_in(&mut node, FIRST.next(), 450, at_last);
        node.gives_up(ahead, at(at_last))
    };
    assert!(given_up(false, 900));
    assert!(given_up(true, 550), "what says that it does not hear its observer does not count");
}

#[test]
fn who_joined_with_the_epoch_before_and_has_not_heard_a_node_gives_it_a_new_t() {
    let joined = EpochRecord { joined: [NodeId(0)].into(), ..record(5, 3) };
    let mut node = Node::of(NodeId(0), &joined);
    let (silent, heard) = (node.observed[0], node.observed[1]);
    node.goes_on(&[heard], at(0), at(50));
    node.goes_on(&[], at(50), at(300));
    node.fence.adopt(&next(&record(5, 3)), Revision(2), at(300));
    goes_on_in(&mut node, FIRST.next(), 300, 800);
    assert!(node.gives_up(silent, at(800)));
    assert!(node.gives_up(heard, at(500)), "of that one T runs on");
}

#[test]
fn who_joined_in_this_epoch_accuses_whom_it_has_not_heard_in_it_only_after_p() {
    let joined = EpochRecord { joined: [NodeId(0)].into(), ..record(5, 3) };
    let mut node = Node::of(NodeId(0), &joined);
    let (silent, heard) = (node.observed[0], node.observed[1]);
    node.goes_on(&[heard], at(0), at(50));
    node.goes_on(&[], at(50), at(500));
    assert!(node.gives_up(heard, at(500)), "that one it has heard");
    node.goes_on(&[], at(500), at(30_000));
    assert!(node.gives_up(silent, at(30_000)));
}

#[test]
fn who_has_not_run_for_a_quarter_of_t_gives_all_a_new_t() {
    let given_up = |sleeps: Micros, at_last: Micros| {
        let mut node = Node::usual();
        node.goes_on(&[], at(0), at(350));
        node.fence.ran(at(300).after(sleeps));
        node.is_acknowledged(FIRST, at(300).after(sleeps));
        node.fence.ran(at(470));
        node.gives_up(node.observed[0], at_last)
    };
    assert!(given_up(ms(125), at(500)));
    assert!(!given_up(Micros(125_000 + EPSILON), at(500)));
    let mut node = Node::usual();
    node.goes_on(&[], at(0), at(350));
    node.goes_on(&[], at(450), at(950));
    assert!(node.gives_up(node.observed[0], at(950)), "a new T from then on");
}

#[test]
fn alone_is_who_has_been_acknowledged_by_no_observer_for_three_quarters_of_t() {
    let mut node = Node::usual();
    node.goes_on(&[], at(0), at(350));
    // Silent since 0, and its own last acknowledgement came at 300.
    assert!(node.gives_up(node.observed[0], at(500)));
    assert!(!node.fence.accused(before(at(675))).is_empty());
    assert!(node.fence.accused(at(675)).is_empty());
}

#[test]
fn over_an_epoch_that_was_left_out_t_begins_anew() {
    // In the one between, others may have observed that node and acknowledged it.
    let mut node = Node::usual();
    let silent = node.observed[1];
    node.goes_on(&node.observed.clone(), at(0), at(300));
    node.goes_on(&[], at(300), at(350));
    let third = FIRST.next().next();
    node.fence.adopt(&EpochRecord { epoch: third, ..record(5, 3) }, Revision(3), at(350));
    goes_on_in(&mut node, third, 350, 860);
    assert!(node.gives_up(silent, at(850)));
}

#[test]
fn an_epoch_does_not_end_that_somebody_is_alone() {
    // Acknowledged and heard at 300 last; alone from 675 on, and T, which runs on over the epoch, ends at 800.
    let mut node = Node::usual();
    node.goes_on(&node.observed.clone(), at(0), at(350));
    (350..600).step_by(50).for_each(|time| node.fence.ran(at(time)));
    node.fence.adopt(&next(&record(5, 3)), Revision(2), at(600));
    for time in (600..1500).step_by(25) {
        node.fence.ran(at(time));
        assert!(node.fence.accused(at(time)).is_empty(), "{time}");
    }
}

#[test]
fn alone_is_nobody_sooner_after_the_adoption_of_the_epoch() {
    // It has known the record for long, as one that wants to come in, when the epoch with which it comes begins at 50: it is not
    // cut off before 300.
    let mut node = Node::usual();
    node.goes_on(&[], at(0), at(50));
    let with_it = EpochRecord { joined: [NodeId(0)].into(), ..next(&record(5, 3)) };
    node.fence.adopt(&with_it, Revision(2), at(50));
    node.fence.heartbeat(node.observed[0], FIRST.next(), false, at(50));
    for time in (50..300).step_by(50) {
        node.fence.ran(at(time));
    }
    node.fence.ran(before(at(300)));
    node.is_acknowledged(FIRST.next(), before(at(300)));
    for time in (300..550).step_by(25) {
        node.fence.ran(at(time));
        node.is_acknowledged(FIRST.next(), at(time));
    }
    assert!(node.gives_up(node.observed[0], at(550)), "it gives nobody anything anew");
}

#[test]
fn an_epoch_that_comes_while_it_is_cut_off_does_not_hide_that_it_was_alone() {
    // Acknowledged at 0; the next epoch begins at 300, and it is acknowledged again at 400: alone for 25.
    let mut node = Node::usual();
    node.goes_on(&[], at(0), at(50));
    (50..300).step_by(50).for_each(|time| node.fence.ran(at(time)));
    node.fence.adopt(&next(&record(5, 3)), Revision(2), at(300));
    (300..400).step_by(25).for_each(|time| node.fence.ran(at(time)));
    for time in (400..2450).step_by(50) {
        node.is_acknowledged(FIRST.next(), at(time));
        node.fence.ran(at(time));
        assert!(node.fence.accused(at(time)).is_empty() || time >= 2400, "{time}");
    }
    assert!(node.gives_up(node.observed[0], at(2400)));
}

#[test]
fn what_it_gives_anew_lasts_over_the_next_epoch() {
    let mut node = Node::usual();
    (0..1000).step_by(50).for_each(|time| node.fence.ran(at(time)));
    node.goes_on(&[], at(1000), at(1100));
    node.fence.adopt(&next(&record(5, 3)), Revision(2), at(1100));
    for time in (1100..3050).step_by(50) {
        node.is_acknowledged(FIRST.next(), at(time));
        node.fence.ran(at(time));
        assert!(node.fence.accused(at(time)).is_empty(), "{time}");
    }
    assert!(node.gives_up(node.observed[0], at(1050 + 2000)));
}

#[test]
fn it_accuses_nobody_until_p_after_its_last_acknowledgement() {
    let mut node = Node::usual();
    node.goes_on(&[], at(0), at(350));
    for time in (350..30_300).step_by(50) {
        node.fence.ran(at(time));
        assert!(time < 675 || node.fence.accused(at(time)).is_empty());
    }
    assert!(node.gives_up(node.observed[0], at(30_300)));
    assert_eq!(node.fence.accused(at(30_300)).len(), 3);
}

#[test]
fn with_two_members_t_is_the_whole_patience() {
    let alone = |nodes| {
        let mut node = Node::of(NodeId(0), &record(nodes, 3));
        (0..500).step_by(50).for_each(|time| node.fence.ran(at(time)));
        node.fence.accused(at(500)).len()
    };
    assert_eq!((alone(2), alone(3), alone(4)), (1, 0, 0));
}

#[test]
fn after_being_alone_it_gives_everyone_it_observes_four_t_anew() {
    let mut node = Node::usual();
    (0..1000).step_by(50).for_each(|time| node.fence.ran(at(time)));
    node.goes_on(&[], at(1000), at(3050));
    // Acknowledged at 1000, it knows at its next step.
    assert!(node.gives_up(node.observed[0], at(1050 + 2000)));
}

#[test]
fn who_has_been_acknowledged_by_nobody_for_half_of_t_has_been_cut_off_and_does_so_too() {
    // The first link is back at `back`; it had been acknowledged last at 0, and heard everybody then.
    let given_up = |back: Micros, at_last: Micros| {
        let mut node = Node::usual();
        node.goes_on(&node.observed.clone(), at(0), at(50));
        (50..250).step_by(50).for_each(|time| node.fence.ran(at(time)));
        node.fence.ran(back);
        for time in (250..2400).step_by(50).map(at).filter(|time| *time < at_last) {
            node.is_acknowledged(FIRST, time);
            node.fence.ran(time);
        }
        node.gives_up(node.observed[0], at_last)
    };
    let not_cut_off = |at_last: Micros| {
        let mut node = Node::usual();
        node.goes_on(&node.observed.clone(), at(0), at(50));
        (50..250).step_by(50).for_each(|time| node.fence.ran(at(time)));
        node.fence.ran(before(at(250)));
        node.is_acknowledged(FIRST, before(at(250)));
        node.goes_on(&[], at(250), at_last);
        node.gives_up(node.observed[0], at_last)
    };
    assert!(not_cut_off(at(500)), "of one that was not, T is the whole time-out");
    assert!(!given_up(at(250), at(500)));
    // It knows at its next step that it is acknowledged again.
    assert!(given_up(at(250), at(250 + 2000)));
}

// ---- who writes that down

/// The only observer of the lowest node, in a job where each has one; it is not the second lowest itself.
fn observer_of_the_lowest() -> (Node, EpochRecord) {
    let observer = |nodes| {
        let record = record(nodes, 1);
        let id = (2..nodes).map(NodeId).find(|id| ring::observed(&record.nodes, *id, 1) == [NodeId(0)])?;
        Some((Node::of(id, &record), record))
    };
    let (mut node, record) = (4..20).find_map(observer).unwrap();
    node.goes_on(&[], at(0), at(500));
    (node, record)
}

#[test]
fn accusations_go_to_the_lowest_member_that_the_accuser_does_not_accuse() {
    let (mut node, _) = observer_of_the_lowest();
    assert_eq!(node.fence.hand_over(at(500)), Some((NodeId(1), [NodeId(0)].into())));
    assert_eq!(node.fence.hand_over(at(501)), None, "once");
}

#[test]
fn who_collects_writes_all_that_come_within_a_heartbeat_period() {
    let mut node = Node::usual();
    node.fence.collect(NodeId(3), &[NodeId(1)].into(), FIRST, Revision(1), at(0));
    node.fence.collect(NodeId(3), &[NodeId(2)].into(), FIRST, Revision(1), at(99));
    assert!(node.fence.to_write(before(at(100))).is_empty());
    assert_eq!(node.fence.to_write(at(100)), [NodeId(1), NodeId(2)].into());
}

/// Who is written of those that are accused so: by whom, and whom.
fn written(accusations: &[(u32, &[u32])]) -> Vec<u32> {
    let mut node = Node::usual();
    for (author, accused) in accusations {
        let accused = accused.iter().map(|node| NodeId(*node)).collect();
        node.fence.collect(NodeId(*author), &accused, FIRST, Revision(1), at(0));
    }
    node.fence.to_write(at(100)).into_iter().map(|node| node.0).collect()
}

#[test]
fn of_two_that_accuse_each_other_one_is_given_up() {
    assert_eq!(written(&[(1, &[2]), (2, &[1])]), [2]);
    assert_eq!(
        written(&[(1, &[2]), (2, &[1]), (3, &[1])]),
        [1],
        "it is that one whom another one does not hear, either"
    );
    assert_eq!(written(&[(1, &[2, 3]), (2, &[1]), (3, &[1])]), [1], "nobody is left whom somebody accuses who stays");
    assert_eq!(written(&[(1, &[2, 3])]), [2, 3]);
    assert_eq!(written(&[(1, &[3]), (2, &[4])]), [3, 4]);
}

#[test]
fn what_is_not_in_the_record_a_period_later_its_author_writes() {
    let (mut node, _) = observer_of_the_lowest();
    node.fence.hand_over(at(500)).unwrap();
    node.goes_on(&[], at(500), at(700));
    node.fence.hand_over(before(at(700)));
    assert!(node.fence.to_write(before(at(700))).is_empty());
    node.fence.hand_over(at(700));
    assert_eq!(node.fence.to_write(at(700)), [NodeId(0)].into());
}

#[test]
fn what_is_not_in_the_record_is_handed_over_again_once_in_t() {
    let (mut node, _) = observer_of_the_lowest();
    node.fence.hand_over(at(500)).unwrap();
    node.goes_on(&[], at(500), at(1000));
    assert_eq!(node.fence.hand_over(before(at(1000))), None);
    assert_eq!(node.fence.hand_over(at(1000)), Some((NodeId(1), [NodeId(0)].into())));
}

#[test]
fn what_is_not_handed_over_again_for_three_t_counts_no_more() {
    let mut node = Node::usual();
    node.fence.collect(NodeId(3), &[NodeId(1)].into(), FIRST, Revision(1), at(0));
    node.fence.collect(NodeId(3), &[NodeId(1)].into(), FIRST, Revision(1), at(1000));
    assert!(!node.fence.to_write(before(at(2500))).is_empty());
    assert!(node.fence.to_write(at(2500)).is_empty());
    node.fence.collect(NodeId(3), &[NodeId(1)].into(), FIRST, Revision(1), at(3000));
    assert!(node.fence.to_write(before(at(3100))).is_empty());
    assert!(!node.fence.to_write(at(3100)).is_empty());
}

#[test]
fn an_accusation_names_the_revision_on_which_it_was_made_and_dies_with_it() {
    let mut node = Node::usual();
    node.fence.collect(NodeId(3), &[NodeId(1)].into(), FIRST, Revision(2), at(0));
    assert!(node.fence.to_write(at(200)).is_empty(), "of another revision");
    node.fence.collect(NodeId(3), &[NodeId(1)].into(), FIRST, Revision(1), at(0));
    assert!(!node.fence.to_write(at(200)).is_empty());
    node.fence.adopt(&record(5, 3), Revision(2), at(200));
    assert!(node.fence.to_write(at(500)).is_empty());
}

#[test]
fn its_author_acknowledges_none_of_the_accused_until_the_revision_moves_and_takes_it_back() {
    let (mut node, record) = observer_of_the_lowest();
    node.fence.hand_over(at(500)).unwrap();
    assert!(!node.fence.takes_back(false, at(510)), "it is not heard again");
    assert_eq!(node.fence.heartbeat(NodeId(0), FIRST, false, at(510)), Reply::Heard);
    assert!(node.fence.takes_back(false, at(510)));
    node.fence.adopt(&record, Revision(2), at(520));
    assert!(!node.fence.takes_back(false, at(520)));
    let reply = node.fence.heartbeat(NodeId(0), FIRST, false, at(530));
    assert!(matches!(reply, Reply::Acknowledge { .. }));
}

#[test]
fn one_of_two_accusations_is_taken_back_when_the_other_waits() {
    let mut node = Node::usual();
    let (one, others) = (node.observed[0], node.observed[1..].to_vec());
    node.goes_on(&others[1..], at(0), at(500));
    assert_eq!(node.fence.accused(at(500)).len(), 2);
    node.fence.hand_over(at(500));
    node.fence.heartbeat(one, FIRST, false, at(510));
    assert!(!node.fence.takes_back(false, at(510)), "the other is written soon, and the revision moves");
    assert!(node.fence.takes_back(true, at(510)));
    node.goes_on(&others[1..], at(510), at(1010));
    assert!(!node.fence.takes_back(true, at(1010)), "it is silent again");
}

/// Whether a restarted agent acknowledges after each of these revisions, one of which is what its first linearizable read shows.
fn successor(known: &[u64], read: u64) -> Vec<bool> {
    let record = record(5, 3);
    let observed = ring::observed(&record.nodes, NodeId(0), 3)[0];
    let mut fence = Fence::new(NodeId(0), 2, Breach::Nothing);
    fence.succeed();
    let mut acknowledges = Vec::new();
    for revision in known {
        if *revision == read {
            fence.read_first(Revision(read));
        }
        fence.adopt(&record, Revision(*revision), BEGIN);
        acknowledges.push(fence.heartbeat(observed, FIRST, false, at(0)) != Reply::Heard);
    }
    acknowledges
}

#[test]
fn its_restarted_successor_acknowledges_nobody_until_the_revision_moves() {
    assert_eq!(successor(&[7, 8], 7), [false, true]);
    // What a watch or a neighbour shows may be older than what its predecessor knew.
    assert_eq!(successor(&[5, 7, 8], 7), [false, false, true]);
    assert_eq!(successor(&[5, 6, 8, 9], 0), [false; 4]);
    // An answer that is late shows the past, and that it is over.
    let record = record(5, 3);
    let observed = ring::observed(&record.nodes, NodeId(0), 3)[0];
    let mut fence = Fence::new(NodeId(0), 2, Breach::Nothing);
    fence.succeed();
    fence.adopt(&record, Revision(8), BEGIN);
    assert_eq!(fence.heartbeat(observed, FIRST, false, at(0)), Reply::Heard);
    fence.read_first(Revision(7));
    assert!(matches!(fence.heartbeat(observed, FIRST, false, at(0)), Reply::Acknowledge { .. }));
}

#[test]
fn a_node_that_nobody_observes_computes_for_ever() {
    let mut fence = Fence::new(NodeId(0), 1, Breach::Nothing);
    assert_eq!(fence.lease(), Lease::None);
    fence.adopt(&record(1, 3), Revision(1), at(0));
    assert_eq!((fence.lease(), fence.beat(at(1000))), (Lease::Endless, None));
    let out = EpochRecord { nodes: Members::of([NodeId(1)]), ..next(&record(2, 3)) };
    fence.adopt(&out, Revision(2), at(0));
    assert_eq!(fence.lease(), Lease::None, "left out");
}

// ---- who has neither a lease nor the record

/// The agent of one of five nodes, whose ranks compute when its observers have acknowledged its first heartbeat, and never again; nor does
/// the store answer.
struct Blind {
    agent: Agent,
    now: Micros,
    wakes: Option<Micros>,
}

impl Blind {
    const ME: NodeId = NodeId(1);
    const PARENT: NodeId = NodeId(0);

    fn step(&mut self, event: Event) -> Vec<Effect> {
        let effects = self.agent.step(self.now, event);
        let mut wakes =
            effects.iter().filter_map(|effect| if let Effect::WakeAt(at) = effect { Some(*at) } else { None });
        self.wakes = wakes.next_back().or(self.wakes);
        effects
    }

    fn hears(&mut self, message: PeerMessage) -> Vec<Effect> {
        self.step(Event::Message { from: Self::PARENT, message })
    }

    /// Since it was acknowledged last: a lease that ends ¾ T later.
    fn begin() -> Blind {
        let record = std::sync::Arc::new(of_ranks(5, 5, 3));
        let config =
            JobConfig { nodes: record.nodes.clone(), ..JobConfig::single_node(5, Mode::Reinit, Policy::default()) };
        let mut blind = Blind { agent: Agent::new(Self::ME, config), now: BEGIN, wakes: None };
        let slot = SlotId(Self::ME.0);
        blind.step(Event::Start { slots: vec![slot] });
        blind.step(Event::SlotUp(slot));
        blind.step(Event::StoreRead { revision: Revision(0), record: None });
        let epoch = record.epoch;
        let beats = blind.hears(PeerMessage::Record { revision: Revision(1), record });
        for effect in beats {
            if let Effect::Send { to, message: PeerMessage::Heartbeat { beat, epoch, .. } } = effect {
                let message = PeerMessage::Acknowledge { beat, epoch, still: false };
                blind.step(Event::Message { from: to, message });
            }
        }
        let decree = Box::new(Decree { release: true, ..Decree::default() });
        blind.hears(PeerMessage::Down { epoch, number: 1, decree });
        assert_eq!(blind.agent.stage(), Stage::Computing);
        blind
    }

    /// When it wants this first.
    fn first(&mut self, wanted: impl Fn(&Effect) -> bool) -> Micros {
        while self.now < at(120_000) {
            self.now = self.wakes.take().unwrap().max(Micros(self.now.0 + EPSILON));
            let effects = self.step(Event::Timer);
            if effects.iter().any(&wanted) {
                return self.now;
            }
            if effects.iter().any(|effect| matches!(effect, Effect::ReadStore | Effect::Cas { .. })) {
                self.step(Event::StoreUnavailable);
            }
        }
        self.now
    }
}

#[test]
fn one_that_has_had_no_lease_and_could_not_read_the_record_for_a_minute_kills_its_ranks() {
    let mut blind = Blind::begin();
    let (lease, minute) = (ms(375), ms(60_000));
    assert_eq!(blind.agent.lease().until, BEGIN.after(lease));
    assert_eq!(blind.first(|effect| matches!(effect, Effect::Pause)), BEGIN.after(lease));
    let killed = BEGIN.after(lease).after(minute);
    assert_eq!(blind.agent.lease().kill, killed, "its shepherds do it, should this agent not");
    assert_eq!(blind.first(|effect| matches!(effect, Effect::StopWorld(_))), killed);
}

#[test]
fn and_looks_at_the_record_after_a_quarter_of_that() {
    let mut blind = Blind::begin();
    assert_eq!(blind.first(|effect| matches!(effect, Effect::ReadStore)), at(375 + 15_000));
}
