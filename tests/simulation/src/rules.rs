//! Profiles that are there for one rule of the protocol each: what happens in them is what the rule was made for.

use crate::driver::{observed_by_joiner, observers};
use crate::faults::{FOREVER, Fault};
use crate::harm::{aftermath, cut_off_after, longest_spread};
use crate::net::{Barrier, Set, Weather};
use crate::profiles::{cluster, kill_rank, net, node, plan, sometime, usual};
use crate::rng::Rng;
use crate::setup::{MS, Own, Promises, SECOND, Setup, Temper};
use crate::store::Trouble;
use ftd_core::{Micros, Mode};

/// One slot on each node, one rank on each but the last, in a ring.
fn ring(rng: &mut Rng, setup: &mut Setup, nodes: u64) {
    cluster(rng, setup, nodes);
    (setup.slots, setup.ranks) = (1, nodes as u32 - 1);
    (setup.groups, setup.width, setup.racks) = (1, 1, 64);
    setup.weather = Weather::default();
}

/// One of these: never none in the profiles here.
fn one_of(rng: &mut Rng, these: &[usize]) -> usize {
    these.get(rng.range(0, these.len().max(1) as u64 - 1) as usize).copied().unwrap_or_default()
}

/// The root of the tree and one of its children, which need each other for nothing but the tree's words.
pub fn link(rng: &mut Rng, setup: &mut Setup) {
    let nodes = rng.range(6, 8);
    ring(rng, setup, nodes);
    setup.policy.observers = rng.range(1, 2) as usize;
    let of_root = observers(setup, 0);
    let apart = |other: &usize| !of_root.contains(other) && !observers(setup, *other).contains(&0);
    let apart: Vec<usize> = (2..nodes as usize - 2).chain([nodes as usize - 1]).filter(apart).collect();
    let (other, at) = (one_of(rng, &apart), sometime(rng));
    let (root, other) = (Set::one(0), Set::one(other));
    let ways = rng.range(1, 3);
    for (from, to, bit) in [(root, other, 1), (other, root, 2)] {
        if ways & bit > 0 {
            plan(setup, at, net(Barrier::Cut { from, to }, FOREVER));
        }
    }
    let dies = kill_rank(rng, setup);
    plan(setup, at + rng.range(0, 500) * MS, dies);
    setup.promises = Promises { nobody_out: true, ends_well: true, ..Promises::default() };
}

/// A round takes as long as an agent stands still. Meanwhile a rank dies on a node that has answered it; the root does not hear
/// that one for a moment.
pub fn rounds(rng: &mut Rng, setup: &mut Setup) {
    let nodes = rng.range(7, 8);
    ring(rng, setup, nodes);
    setup.temper = Temper::Aborts;
    let (at, last) = (sometime(rng), nodes as usize - 1);
    let dies = rng.range(2, nodes - 4) as usize;
    let others: Vec<usize> = (1..last).filter(|node| node.abs_diff(dies) > 1).collect();
    let aborts = one_of(rng, &others);
    let span = rng.range(120, 220) * MS;
    plan(setup, at, Fault::Stall { node: last, span });
    plan(setup, at + MS, Fault::AbortRank { rank: aborts as u32, code: 7 });
    let cut = at + rng.range(12, 20) * MS;
    plan(setup, cut, net(Barrier::Cut { from: Set::one(dies), to: Set::one(0) }, 220 * MS));
    plan(setup, cut, Fault::Store { trouble: Trouble::NoRequests(Set::one(dies)), span: SECOND });
    plan(setup, cut + rng.range(1, 60) * MS, Fault::KillRank { rank: dies as u32, signal: 9 });
    setup.promises = Promises { ended_by: Some(aborts as u32), ..Promises::default() };
}

pub fn told(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    let at = sometime(rng) + SECOND / 2;
    plan(setup, at, Fault::Cancel { signal: rng.pick(&[2, 15]) });
    setup.promises = Promises { nobody_out: true, grace: true, ..Promises::default() };
}

pub fn crash_loop(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.temper = Temper::Hangs;
    setup.policy.max_failures = rng.range(2, 5) as u32;
    setup.policy.progress_after = Micros(rng.range(10, 100) * MS);
    let (rank, at) = (rng.range(0, u64::from(setup.ranks) - 1) as u32, sometime(rng));
    plan(setup, at, Fault::Crashes { rank });
    setup.promises = Promises { nobody_out: true, ..Promises::default() };
}

/// It is the program that dies, whichever of its ranks does.
pub fn turns(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.temper = Temper::Hangs;
    setup.policy.max_failures = rng.range(2, 5) as u32;
    let at = sometime(rng);
    plan(setup, at, Fault::CrashInTurn);
    setup.promises = Promises { nobody_out: true, ..Promises::default() };
}

pub fn progress(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.policy.max_failures = 2;
    (setup.steps, setup.every, setup.pace) = (160, 8, 12 * MS);
    setup.shipping = rng.range(5, 40) * MS;
    let rank = rng.range(0, u64::from(setup.ranks) - 1) as u32;
    let mut at = sometime(rng);
    for _ in 0..rng.range(3, 5) {
        plan(setup, at, Fault::KillRank { rank, signal: rng.pick(&[9, 11]) });
        at += rng.range(600, 900) * MS;
    }
    setup.promises = Promises { nobody_out: true, ends_well: true, ..Promises::default() };
}

/// Who is left must leave the others out: at once when there was one other, else when its patience is over, and then one after
/// the other without any more of it.
pub fn last_one(rng: &mut Rng, setup: &mut Setup) {
    let nodes = rng.range(2, 5);
    cluster(rng, setup, nodes);
    (setup.slots, setup.ranks, setup.groups) = (2, 2, 1);
    setup.weather.drop = 0;
    setup.policy.observers = rng.range(1, 2) as usize;
    let (left, at) = (node(rng, setup), sometime(rng));
    plan(setup, at, Fault::KillNodes(Set::of((0..nodes as usize).filter(|node| *node != left))));
    let patience = if nodes > 2 { setup.patience } else { 0 };
    let prompt = patience + (nodes - 1) * 2 * setup.timeout();
    setup.promises = Promises { ends_well: true, prompt: Some(prompt), ..Promises::default() };
}

/// Who comes in has waited outside for longer than it may be without an acknowledgement inside.
pub fn new_observer(rng: &mut Rng, setup: &mut Setup) {
    let nodes = rng.range(4, 6);
    cluster(rng, setup, nodes);
    setup.weather.drop = 0;
    setup.policy.observers = 1;
    let at = sometime(rng);
    plan(setup, at, Fault::Join);
    let comes = at + rng.range(700, 1500) * MS;
    let dies = kill_rank(rng, setup);
    plan(setup, comes, dies);
    let observed = Set::of(observed_by_joiner(setup, nodes as usize));
    plan(setup, comes + rng.range(300, 800) * MS, Fault::KillNodes(observed));
    setup.promises = Promises { ends_well: true, prompt: Some(2 * setup.timeout()), ..Promises::default() };
}

/// Each of those that die has other observers, all of which live, as does the lowest node; nobody loses all of its own.
pub fn at_once(rng: &mut Rng, setup: &mut Setup) {
    let nodes = rng.range(9, 11);
    cluster(rng, setup, nodes);
    setup.weather.drop = 0;
    setup.policy.observers = 2;
    setup.ranks = (nodes as u32 - 3) * setup.slots;
    let (mut doomed, mut spared) = (Vec::new(), vec![0]);
    let from = node(rng, setup);
    for other in (from..from + nodes as usize).map(|other| other % nodes as usize) {
        let of_other = observers(setup, other);
        let free = |node: &usize| !doomed.contains(node) && (*node == 0 || !spared.contains(node));
        if doomed.len() < 3 && !spared.contains(&other) && of_other.iter().all(free) {
            doomed.push(other);
            spared.extend(of_other);
        }
    }
    let at = sometime(rng);
    plan(setup, at, Fault::KillNodes(Set::of(doomed)));
    // Their heartbeats stop within a period of one another: at its edge that makes two.
    setup.promises = Promises { ends_well: true, ..Promises::default() };
}

/// A node dies, and while its observers' T runs a rank does, elsewhere: in the epoch of that they observe the node as before. Who collects
/// their accusations lives.
pub fn epoch_between(rng: &mut Rng, setup: &mut Setup) {
    let nodes = rng.range(5, 8);
    ring(rng, setup, nodes);
    setup.policy.observers = 3;
    let (at, doomed) = (sometime(rng), rng.range(1, nodes - 1));
    plan(setup, at, Fault::KillNodes(Set::one(doomed as usize)));
    let living: Vec<usize> = (0..setup.ranks as usize).filter(|rank| *rank as u64 != doomed).collect();
    let dies = Fault::KillRank { rank: one_of(rng, &living) as u32, signal: 9 };
    plan(setup, at + rng.range(300, 450) * MS, dies);
    let prompt = setup.timeout() + setup.timeout() / 2;
    setup.promises = Promises { ends_well: true, prompt: Some(prompt), ..Promises::default() };
}

/// Three that stand side by side in the ring die: the first of them has one observer that lives, and that sees all three.
pub fn between(rng: &mut Rng, setup: &mut Setup) {
    let nodes = rng.range(8, 10);
    cluster(rng, setup, nodes);
    setup.weather.drop = 0;
    setup.policy.observers = 3;
    setup.ranks = (nodes as u32 - 3) * setup.slots;
    setup.groups = 1;
    let first = node(rng, setup);
    let doomed = Set::of([first].into_iter().chain(observers(setup, first).into_iter().take(2)));
    let at = sometime(rng);
    plan(setup, at, Fault::KillNodes(doomed));
    // Their heartbeats stop within a period of one another: at its edge that makes two.
    let prompt = Some(3 * setup.timeout());
    setup.promises = Promises { ends_well: true, epochs: Some(3), prompt, ..Promises::default() };
}

/// Before a joiner has heard anybody, the one that it alone observes dies, or never was there: with an observer each, nobody else would
/// give it up.
pub fn deaf_for_good(rng: &mut Rng, setup: &mut Setup) {
    let nodes = rng.range(3, 6);
    cluster(rng, setup, nodes);
    setup.weather.drop = 0;
    setup.policy.observers = 1;
    let joiner = nodes as usize;
    let at = sometime(rng);
    plan(setup, at, Fault::Join);
    let comes = at + rng.range(300, 700) * MS;
    let dies = kill_rank(rng, setup);
    plan(setup, comes, dies);
    for unheard in observed_by_joiner(setup, joiner) {
        plan(setup, at, net(Barrier::Cut { from: Set::one(unheard), to: Set::one(joiner) }, FOREVER));
    }
    setup.promises = Promises { ends_well: true, ..Promises::default() };
}

/// Everybody is cut off for so short that nobody is alone when the first links are back, of which an epoch makes use at once that begins
/// then: its heartbeats go out at that moment. The last links are back long after that.
pub fn short_cut(rng: &mut Rng, setup: &mut Setup) {
    let nodes = rng.range(5, 8);
    cluster(rng, setup, nodes);
    setup.weather.drop = 0;
    setup.policy.observers = 3;
    let (at, span) = (400 * MS + sometime(rng), cut_off_after(setup) + rng.range(0, 30) * MS);
    let spread = rng.range(600 * MS, longest_spread(span, setup));
    plan(setup, at, net(Barrier::Links { spread, draw: rng.draw() }, span));
    let dies = kill_rank(rng, setup);
    plan(setup, at + span + rng.range(0, 50) * MS, dies);
    setup.promises = Promises { nobody_out: true, ends_well: true, ..Promises::default() };
}

/// What the islands have cost is over when the switch restarts: that costs nobody.
pub fn after_islands(rng: &mut Rng, setup: &mut Setup) {
    let nodes = rng.range(4, 7);
    cluster(rng, setup, nodes);
    setup.weather.drop = 0;
    setup.pace *= 3;
    let (away, at, span) = (node(rng, setup), rng.range(150, 400) * MS, rng.range(600, 1000) * MS);
    plan(setup, at, net(Barrier::Island(Set::one(away)), span));
    let restarts = at + span + aftermath(setup) + rng.range(100, 400) * MS;
    // Nodes beat together: links that were all back at once would be no reason to accuse anybody.
    let span = rng.range(700, 1500) * MS;
    let spread = rng.range(100 * MS, longest_spread(span, setup));
    plan(setup, restarts, net(Barrier::Links { spread, draw: rng.draw() }, span));
    setup.promises = Promises { ends_well: true, ..Promises::default() };
}

pub fn frozen(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    let (away, at, span) = (node(rng, setup), sometime(rng), rng.range(600, 2000) * MS);
    plan(setup, at, Fault::Freeze { node: away, span: rng.range(700, 3000) * MS });
    let (at, away) = (at + 10 * MS, Set::one(away));
    plan(setup, at, net(Barrier::Island(away), span));
    plan(setup, at, Fault::Store { trouble: Trouble::NoRequests(away), span });
    plan(setup, at, Fault::Store { trouble: Trouble::NoAnswers(away), span });
}

pub fn untold(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.weather.drop = 0;
    let (away, at) = (node(rng, setup), sometime(rng));
    for trouble in [Trouble::NoRequests(Set::one(away)), Trouble::NoAnswers(Set::one(away))] {
        plan(setup, at, Fault::Store { trouble, span: 4 * SECOND });
    }
    let elsewhere: Vec<u32> = (0..setup.ranks).filter(|rank| (rank / setup.slots) as usize != away).collect();
    if elsewhere.is_empty() {
        return;
    }
    let cut = at + rng.range(10, 500) * MS;
    plan(setup, cut, net(Barrier::Island(Set::one(away)), rng.range(80, setup.timeout() / MS / 2 - 20) * MS));
    plan(setup, cut + rng.range(1, 5) * MS, Fault::KillRank { rank: rng.pick(&elsewhere), signal: 9 });
    setup.promises = Promises { nobody_out: true, ends_well: true, ..Promises::default() };
}

/// It hears of the epoch from the tree's root, when those who observe it are about to give it up.
pub fn late(rng: &mut Rng, setup: &mut Setup) {
    let nodes = rng.range(7, 9);
    ring(rng, setup, nodes);
    setup.policy.observers = 1;
    let near =
        |one: usize, other: usize| observers(setup, one).contains(&other) || observers(setup, other).contains(&one);
    let apart: Vec<usize> = (1..nodes as usize - 1).filter(|other| !near(0, *other)).collect();
    let (late, at) = (one_of(rng, &apart), sometime(rng));
    let neighbours: Vec<usize> = (0..nodes as usize).filter(|other| near(late, *other)).collect();
    let knows = rng.range(200, 380) * MS;
    for (other, span) in neighbours.into_iter().map(|other| (other, 2 * SECOND)).chain([(0, knows)]) {
        for (from, to) in [(late, other), (other, late)] {
            plan(setup, at, net(Barrier::Cut { from: Set::one(from), to: Set::one(to) }, span));
        }
    }
    let trouble = Trouble::NoAnswers(Set::one(late));
    plan(setup, at, Fault::Store { trouble, span: 2 * SECOND });
    let elsewhere: Vec<u32> = (0..setup.ranks).filter(|rank| *rank as usize != late).collect();
    plan(setup, at + rng.range(1, 20) * MS, Fault::KillRank { rank: rng.pick(&elsewhere), signal: 9 });
}

/// The others are gone when it is heard again: the store alone can tell it.
pub fn tombstone(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    (setup.mode, setup.temper) = (Mode::None, Temper::Hangs);
    let (away, at) = (node(rng, setup), sometime(rng));
    let elsewhere: Vec<u32> = (0..setup.ranks).filter(|rank| (rank / setup.slots) as usize != away).collect();
    let rank = if elsewhere.is_empty() { 0 } else { rng.pick(&elsewhere) };
    let away = Set::one(away);
    plan(setup, at, net(Barrier::Island(away), rng.range(100, 600) * MS));
    plan(setup, at, Fault::Store { trouble: Trouble::NoRequests(away), span: rng.range(1, 3) * SECOND });
    plan(setup, at, Fault::Store { trouble: Trouble::NoAnswers(away), span: SECOND });
    plan(setup, at + rng.range(1, 100) * MS, Fault::KillRank { rank, signal: 9 });
}

pub fn comes_back(rng: &mut Rng, setup: &mut Setup) {
    let nodes = rng.range(3, 6);
    cluster(rng, setup, nodes);
    setup.ranks = (nodes as u32 - 1) * setup.slots;
    setup.pace *= 2;
    let (away, at, span) = (node(rng, setup), rng.range(150, 800) * MS, rng.range(900, 1500) * MS);
    plan(setup, at, net(Barrier::Island(Set::one(away)), span));
    plan(setup, at, Fault::Store { trouble: Trouble::NoRequests(Set::one(away)), span });
    let others: Vec<usize> = (0..nodes as usize).filter(|node| *node != away).collect();
    let dies = one_of(rng, &others);
    plan(setup, at + span + rng.range(300, 1500) * MS, Fault::KillNodes(Set::one(dies)));
    setup.promises = Promises { ends_well: true, waits: true, ..Promises::default() };
}

/// There is no spare. Who gives it up waits for a node, and in a chain it would be told of one through the dead one alone.
pub fn below(rng: &mut Rng, setup: &mut Setup) {
    let nodes = rng.range(4, 7);
    cluster(rng, setup, nodes);
    setup.ranks = nodes as u32 * setup.slots;
    setup.groups = 1;
    setup.weather.drop = 0;
    setup.policy.observers = 1;
    let observer = |dies: usize| observers(setup, dies)[0];
    let far = |dies: &usize| observer(*dies) > *dies && observer(observer(*dies)) != 0;
    let above: Vec<usize> = (1..nodes as usize).filter(far).collect();
    let (dies, at) = (one_of(rng, &above), sometime(rng));
    let silent = Barrier::Cut { from: Set::one(observer(dies)), to: Set::one(0) };
    plan(setup, at, Fault::KillNodes(Set::one(dies)));
    plan(setup, at, net(silent, rng.range(700, 1200) * MS));
    let latest = setup.policy.node_timeout.0 / MS - 1000;
    plan(setup, at + rng.range(300, latest) * MS, Fault::Join);
    setup.promises = Promises { ends_well: true, waits: true, ..Promises::default() };
}

/// Each of the two accuses the other one, and all other links are well: one of them is enough. The job waits for no machine.
pub fn pair(rng: &mut Rng, setup: &mut Setup) {
    let nodes = rng.range(4, 7);
    cluster(rng, setup, nodes);
    // Without both there may be slots enough, too.
    (setup.slots, setup.ranks, setup.groups) = (1, (nodes - rng.range(1, 2)) as u32, 1);
    setup.weather.drop = 0;
    // So many that in any such cluster some observe each other.
    setup.policy.observers = nodes.div_ceil(2) as usize;
    setup.policy.node_timeout = Micros(0);
    let pairs: Vec<(usize, usize)> = (0..nodes as usize)
        .flat_map(|one| observers(setup, one).into_iter().map(move |other| (one, other)))
        .filter(|(one, other)| one < other && observers(setup, *other).contains(one))
        .collect();
    let (at, (one, other)) = (sometime(rng), rng.pick(&pairs));
    for (from, to) in [(one, other), (other, one)] {
        plan(setup, at, net(Barrier::Cut { from: Set::one(from), to: Set::one(to) }, FOREVER));
    }
    setup.promises = Promises { ends_well: true, one_out: true, ..Promises::default() };
}

/// A third of the nodes at most is cut off from the others for good, and all have the store, at once or a while later: the others have slots enough, and go on, although
/// nobody waits for a node.
pub fn smaller(rng: &mut Rng, setup: &mut Setup) {
    let nodes = rng.range(5, 8);
    cluster(rng, setup, nodes);
    let apart = rng.range(1, nodes / 3);
    (setup.slots, setup.ranks, setup.groups) = (1, (nodes - apart) as u32, 1);
    setup.policy.observers = 3;
    setup.policy.node_timeout = Micros(0);
    let mut island = Vec::new();
    while island.len() < apart as usize {
        let one = node(rng, setup);
        if !island.contains(&one) {
            island.push(one);
        }
    }
    let at = sometime(rng);
    plan(setup, at, net(Barrier::Island(Set::of(island)), FOREVER));
    if rng.chance(300) {
        // For longer than who is alone is patient: all have waited for it, and want to write when it is back.
        let span = setup.patience + rng.range(1, 5) * SECOND;
        plan(setup, at, Fault::Store { trouble: Trouble::NoRequests(Set::All), span });
    }
    setup.promises = Promises { ends_well: true, ..Promises::default() };
}

/// A node is waited for no longer than the job says, however often who waits hears of nobody for a moment.
pub fn lossy(rng: &mut Rng, setup: &mut Setup) {
    let nodes = rng.range(3, 5);
    cluster(rng, setup, nodes);
    (setup.slots, setup.ranks, setup.groups) = (1, nodes as u32 - 1, 1);
    setup.weather.drop = rng.range(60, 100);
    setup.policy.observers = 1;
    setup.policy.node_timeout = Micros(rng.range(5, 9) * SECOND);
    let last = nodes as usize - 1;
    for dead in [last, rng.range(1, last as u64 - 1) as usize] {
        let at = sometime(rng);
        plan(setup, at, Fault::KillNodes(Set::one(dead)));
    }
}

/// Whatever an epoch is made for, no rank of it is where nobody has been heard for long.
pub fn given_up(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.weather.drop = 0;
    let busy = u64::from(setup.ranks.div_ceil(setup.slots));
    let (dies, at) = (rng.range(0, busy - 1) as usize, sometime(rng));
    plan(setup, at, Fault::KillNodes(Set::one(dies)));
    let elsewhere: Vec<u32> = (0..setup.ranks).filter(|rank| (rank / setup.slots) as usize != dies).collect();
    let rank = if elsewhere.is_empty() { 0 } else { rng.pick(&elsewhere) };
    plan(setup, at + rng.range(1300, 2000) * MS, Fault::KillRank { rank, signal: 9 });
    setup.promises = Promises { ends_well: true, ..Promises::default() };
}

/// Those who write find nobody fit, and everybody again.
pub fn lapses(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    let busy = u64::from(setup.ranks.div_ceil(setup.slots));
    let (dies, at) = (rng.range(0, busy - 1) as usize, sometime(rng));
    plan(setup, at, Fault::KillNodes(Set::one(dies)));
    for spare in busy..u64::from(setup.nodes) {
        let (lapses, span) = (at + rng.range(0, 600) * MS, rng.range(200, 3000) * MS);
        plan(setup, lapses, Fault::Lapse { node: spare as usize, span });
    }
    setup.promises = Promises { ends_well: true, ..Promises::default() };
}

/// Nor do they need to hold them: who is heard has its ranks.
pub fn lapsed(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.weather.drop = 0;
    let busy = u64::from(setup.ranks.div_ceil(setup.slots));
    let (dies, at) = (rng.range(0, busy - 1) as usize, sometime(rng));
    plan(setup, at, Fault::KillNodes(Set::one(dies)));
    for stays in (0..busy as usize).filter(|node| *node != dies) {
        plan(setup, at - rng.range(0, 100) * MS, Fault::Lapse { node: stays, span: rng.range(2000, 4000) * MS });
    }
    setup.promises = Promises { ends_well: true, prompt: Some(3 * setup.timeout()), ..Promises::default() };
}

/// Those of which it does not know wait for its heartbeats.
pub fn own_observers(rng: &mut Rng, setup: &mut Setup) {
    let nodes = rng.range(4, 7);
    cluster(rng, setup, nodes);
    setup.policy.observers = rng.range(2, 3) as usize;
    // Node 0 is, as a rule, the one that writes the first record: what it says is the job's.
    let one = rng.range(1, nodes - 1) as u32;
    setup.own.insert(one, Own { observers: Some(1), ..Own::default() });
    setup.promises = Promises { nobody_out: true, ends_well: true, ..Promises::default() };
}

pub fn own_patience(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.weather.drop = 0;
    let one = rng.range(1, u64::from(setup.nodes) - 1) as u32;
    setup.own.insert(one, Own { patience: Some(rng.range(500, 900) * MS), ..Own::default() });
    let at = 400 * MS + sometime(rng);
    let span = rng.range(1200 * MS, setup.patience - SECOND);
    plan(setup, at, net(Barrier::Links { spread: 0, draw: rng.draw() }, span));
    setup.promises = Promises { nobody_out: true, ends_well: true, ..Promises::default() };
}

/// A process whose futex fires before `MPI_Init` is over may have been killed, or have left: its exit says that, when its memory is
/// gone.
pub fn reaps(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.temper = Temper::Aborts;
    setup.reaping = (700, rng.range(6, 20) * SECOND);
    if rng.chance(200) {
        setup.policy.stop_timeout = Micros(rng.range(2, 15) * SECOND);
    }
    let at = if rng.chance(500) { rng.range(100, 130) * MS } else { sometime(rng) };
    for _ in 0..rng.range(1, 3) {
        let (dies, when) = (kill_rank(rng, setup), at + rng.range(0, 30) * MS);
        plan(setup, when, dies);
    }
    if rng.chance(300) {
        let rank = rng.range(0, u64::from(setup.ranks) - 1) as u32;
        let fault =
            if rng.chance(500) { Fault::AbortRank { rank, code: 7 } } else { Fault::ExitRank { rank, code: 3 } };
        plan(setup, at + rng.range(0, 60) * MS, fault);
    }
}

pub fn slots(rng: &mut Rng, setup: &mut Setup) {
    let nodes = rng.range(4, 6);
    cluster(rng, setup, nodes);
    (setup.slots, setup.ranks) = (2, (nodes as u32 - 1) * 2);
    let one = rng.range(0, nodes / 2 - 1) as u32;
    let other = rng.range(nodes / 2, nodes - 2) as u32;
    let at = sometime(rng);
    plan(setup, at, Fault::LoseSlot { slot: 2 * one });
    plan(setup, at, Fault::LoseSlot { slot: 2 * other + 1 });
    setup.promises = Promises { nobody_out: true, ends_well: true, ..Promises::default() };
}

/// Nobody sends a heartbeat to the new agent, and the store does not answer it: who observes it waits for its own.
pub fn successor(rng: &mut Rng, setup: &mut Setup) {
    let nodes = rng.range(4, 5);
    cluster(rng, setup, nodes);
    setup.weather.drop = 0;
    setup.policy.observers = 1;
    let (dies, at) = (node(rng, setup), sometime(rng));
    plan(setup, at, Fault::Store { trouble: Trouble::Election, span: rng.range(1500, 4000) * MS });
    plan(setup, at, Fault::KillNodes(Set::one(dies)));
    for observer in observers(setup, dies) {
        plan(setup, at + MS, Fault::KillAgent { node: observer, back_after: rng.range(5, 30) * MS });
    }
}
