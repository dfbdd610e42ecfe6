//! Named mixes of faults; each draws a schedule from a seed.

use crate::driver::{observed_by_joiner, observers};
use crate::faults::{FOREVER, Fault, Planned};
use crate::harm::{cut_off_after, longest_spread, soon};
use crate::net::{Barrier, Set, Weather};
use crate::rng::Rng;
use crate::rules;
use crate::setup::{MS, Obedience, Own, Promises, SECOND, Setup, Temper};
use crate::store::Trouble;
use ftd_core::{Members, Micros, Mode, NodeId, partners};

/// A named mix of faults.
pub struct Profile {
    /// Its name.
    pub name: &'static str,
    /// What it does, one line.
    pub about: &'static str,
    draw: fn(&mut Rng, &mut Setup),
}

impl Profile {
    /// The schedule of this seed.
    pub fn setup(&self, seed: u64) -> Setup {
        let part = self.name.bytes().fold(0xf7d, |sum: u64, byte| sum.wrapping_mul(31) + u64::from(byte));
        let mut rng = Rng::of(seed, part);
        let mut setup = Setup { seed, ..Setup::default() };
        (self.draw)(&mut rng, &mut setup);
        // Of its own, so that a seed's faults are the same whatever the tree is.
        setup.policy.fan_out = Rng::of(seed, part ^ TREE).pick(&[1, 2, 3, 16]);
        setup
    }
}

/// Draws how many children a node of the tree has.
const TREE: u64 = 0x7ee;

/// All profiles.
pub static ALL: &[Profile] = &[
    Profile { name: "calm", about: "nothing happens", draw: calm },
    Profile { name: "crash", about: "ranks, agents, servers, shepherds and single nodes die", draw: crash },
    Profile { name: "due", about: "ranks ask whether a checkpoint is due, while others die", draw: due },
    Profile { name: "nodes", about: "one or two nodes die", draw: nodes },
    Profile {
        name: "oversubscribed",
        about: "nodes die that have no spare: their ranks go on beyond the slots of the others",
        draw: oversubscribed,
    },
    Profile { name: "rack", about: "a node dies with all its observers, or a whole rack", draw: rack },
    Profile { name: "islands", about: "the application's network falls apart", draw: islands },
    Profile {
        name: "smaller-island",
        about: "the smaller part of the application's network falls off, and no node is waited for",
        draw: rules::smaller,
    },
    Profile {
        name: "one-way",
        about: "all that one node sends, or is sent, is lost for good; it reaches the store",
        draw: one_way,
    },
    Profile {
        name: "everybody-cut",
        about: "a switch restarts: everybody is cut off from everybody; ports and links return one by one",
        draw: everybody_cut,
    },
    Profile {
        name: "short-cut",
        about: "everybody is cut off for a moment, an epoch begins when the first links are back, and the others are back late",
        draw: rules::short_cut,
    },
    Profile {
        name: "after-islands",
        about: "the network falls apart, and a while after it is well again a switch restarts",
        draw: rules::after_islands,
    },
    Profile {
        name: "short",
        about: "disturbances under half a time-out, while ranks die and watches are slow",
        draw: short,
    },
    Profile {
        name: "store-slow",
        about: "the store is slow or elects, longer than four time-outs, while ranks and nodes die",
        draw: store_slow,
    },
    Profile {
        name: "store-away",
        about: "one node does not reach the store while ranks die elsewhere",
        draw: store_away,
    },
    Profile {
        name: "store-lost",
        about: "requests to the store are lost, or land late, while nodes are cut off for a moment",
        draw: store_lost,
    },
    Profile {
        name: "accusation",
        about: "accusations are on their way for long, and their authors write again or start again",
        draw: accusation,
    },
    Profile { name: "watches", about: "watches are late, lost and stale; agents start again", draw: watches },
    Profile { name: "stalls", about: "agents stand still and their ranks do not", draw: stalls },
    Profile { name: "suspend", about: "whole machines stand still", draw: suspend },
    Profile { name: "agent-quick", about: "agents die and are back within half a time-out", draw: agent_quick },
    Profile {
        name: "agent-late",
        about: "an agent is back after its time-out; there is no other place for its ranks",
        draw: agent_late,
    },
    Profile {
        name: "agent-twice",
        about: "agents die twice in a row while acknowledgements are late",
        draw: agent_twice,
    },
    Profile { name: "two", about: "clusters of two nodes", draw: two },
    Profile { name: "three", about: "clusters of three nodes", draw: three },
    Profile { name: "levels", about: "nodes die; what their partners held is restored", draw: levels },
    Profile {
        name: "verifying",
        about: "nodes and ranks die, and some nodes need longer to verify what they hold than is waited for",
        draw: verifying,
    },
    Profile { name: "aborts", about: "survivors abort because a node died while the store elects", draw: aborts },
    Profile { name: "cancel", about: "the job is cancelled while the store is out of reach", draw: cancel },
    Profile {
        name: "signals",
        about: "ranks have signals, after which they go on or not; something dies after that",
        draw: signals,
    },
    Profile { name: "deleted-key", about: "somebody deletes the job's key", draw: deleted_key },
    Profile { name: "left-out", about: "nodes that are cut off read that they are out", draw: left_out },
    Profile { name: "fenced", about: "nodes are cut off from everything for a while", draw: fenced },
    Profile {
        name: "late-answers",
        about: "nodes are cut off with those who observe them, and the store's answers to them are late",
        draw: late_answers,
    },
    Profile { name: "wishes", about: "ranks abort and exit by their own wish while others die", draw: wishes },
    Profile {
        name: "own-timeouts",
        about: "one agent's configuration has another time-out than the job",
        draw: own_timeouts,
    },
    Profile {
        name: "own-observers",
        about: "one agent's configuration has fewer observers than the job",
        draw: rules::own_observers,
    },
    Profile {
        name: "own-patience",
        about: "one agent's configuration has less patience than the job, and a switch restarts",
        draw: rules::own_patience,
    },
    Profile { name: "reboot", about: "machines die and come back, under their old ids or as new nodes", draw: reboot },
    Profile {
        name: "joins",
        about: "a node dies, there is no spare, and a new machine is given to the job; others are cut off, also one way, from the store",
        draw: joins,
    },
    Profile {
        name: "deaf-joiner",
        about: "a node that comes in does not hear one that it observes, for less than P",
        draw: deaf_joiner,
    },
    Profile {
        name: "deaf-for-good",
        about: "a node that comes in never hears the one that it alone observes",
        draw: rules::deaf_for_good,
    },
    Profile {
        name: "dead-joiner",
        about: "a new machine dies before it is in the job, and a node after it; another machine comes",
        draw: dead_joiner,
    },
    Profile {
        name: "sleeper",
        about: "an agent stands still for a moment just after it has not heard a node, and cannot reach the store",
        draw: sleeper,
    },
    Profile {
        name: "frames",
        about: "what is large does not reach one node any more, nor does the store, while a rank dies elsewhere",
        draw: frames,
    },
    Profile {
        name: "sources",
        about: "a node dies, and so do those that hold its copies, or they are cut off while they send, or the bytes are wrong",
        draw: sources,
    },
    Profile {
        name: "absent",
        about: "ranks end with status 0 before they call MPI_Init, for which the others wait, or within it",
        draw: absent,
    },
    Profile {
        name: "ends",
        about: "what ends a job: the program dies again and again, --ft=none, no slot, no store, nodes that never get together",
        draw: ends,
    },
    Profile { name: "unwritten", about: "the store is away for long when the job ends, or for ever", draw: unwritten },
    Profile { name: "start", about: "deaths and cuts before the first world computes", draw: start },
    Profile { name: "copies", about: "ranks and agents die while they copy their state", draw: copies },
    Profile {
        name: "link",
        about: "two nodes that do not observe each other do not hear each other any more, and a rank dies",
        draw: rules::link,
    },
    Profile {
        name: "rounds",
        about: "a rank aborts, and while that is looked into another one dies, and its neighbours abort",
        draw: rules::rounds,
    },
    Profile { name: "told", about: "the job is told to end, and nothing else happens", draw: rules::told },
    Profile {
        name: "crash-loop",
        about: "a rank dies by itself in every world, before a newer checkpoint",
        draw: rules::crash_loop,
    },
    Profile {
        name: "turns",
        about: "ranks die by themselves in turn, one in every world, before a newer checkpoint",
        draw: rules::turns,
    },
    Profile {
        name: "progress",
        about: "a rank dies more often than it may, and there is a newer checkpoint each time",
        draw: rules::progress,
    },
    Profile { name: "last-one", about: "all nodes but one die at once", draw: rules::last_one },
    Profile {
        name: "new-observer",
        about: "a node comes in, and the one that it observes dies soon after",
        draw: rules::new_observer,
    },
    Profile { name: "at-once", about: "several nodes die at once, whose observers live", draw: rules::at_once },
    Profile {
        name: "epoch-between",
        about: "a node dies, and a rank while the node's time-out runs: an epoch begins meanwhile",
        draw: rules::epoch_between,
    },
    Profile { name: "between", about: "nodes that stand side by side in the ring die at once", draw: rules::between },
    Profile {
        name: "frozen",
        about: "the shepherds of a node stand still while it is cut off from everything",
        draw: rules::frozen,
    },
    Profile {
        name: "untold",
        about: "a node that does not reach the store is cut off when an epoch begins, for less than half a time-out",
        draw: rules::untold,
    },
    Profile {
        name: "late",
        about: "a node hears late of an epoch, and does not hear those whom it observes and who observe it",
        draw: rules::late,
    },
    Profile {
        name: "tombstone",
        about: "a job ends while one of its nodes is cut off from everything",
        draw: rules::tombstone,
    },
    Profile {
        name: "comes-back",
        about: "a node is left out and comes back, and another one dies, whose ranks have no other place",
        draw: rules::comes_back,
    },
    Profile {
        name: "pair",
        about: "two nodes that observe each other do not hear each other any more, and one more cannot be spared",
        draw: rules::pair,
    },
    Profile {
        name: "lossy",
        about: "heartbeats are lost, so that nodes are alone for moments, and two nodes die, for which there is no place",
        draw: rules::lossy,
    },
    Profile {
        name: "below",
        about: "a node dies above the one that gives it up, whose word to the lowest member is lost; a machine comes",
        draw: rules::below,
    },
    Profile {
        name: "given-up",
        about: "a node dies, and when its observers have given it up for long a rank elsewhere",
        draw: rules::given_up,
    },
    Profile {
        name: "lapses",
        about: "a node dies, and the leases of the spares in the store have lapsed for a moment",
        draw: rules::lapses,
    },
    Profile {
        name: "lapsed",
        about: "a node dies, and the leases of those that stay have lapsed in the store for a moment",
        draw: rules::lapsed,
    },
    Profile {
        name: "reaps",
        about: "ranks die within MPI_Init, for seconds nobody can tell how, and their neighbours abort",
        draw: rules::reaps,
    },
    Profile { name: "slots", about: "slots are lost on two nodes at the same moment", draw: rules::slots },
    Profile {
        name: "successor",
        about: "an agent dies with the node that it observes, and the store elects",
        draw: rules::successor,
    },
    Profile { name: "slow-net", about: "packets that take longer than a time-out may", draw: slow_net },
    Profile { name: "mixed", about: "everything", draw: mixed },
];

/// The profile of this name.
pub fn named(name: &str) -> Option<&'static Profile> {
    ALL.iter().find(|profile| profile.name == name)
}

// ---- what the profiles draw from

/// A cluster with a spare node, its job of two to four seconds, and a network with small faults.
pub(crate) fn cluster(rng: &mut Rng, setup: &mut Setup, nodes: u64) {
    let slots = rng.range(1, 2);
    let spares = if nodes > 2 { rng.range(1, nodes / 2) } else { 1 };
    let ranks = ((nodes - spares) * slots).max(2).min(nodes * slots);
    (setup.nodes, setup.slots, setup.ranks) = (nodes as u32, slots as u32, ranks as u32);
    setup.racks = if rng.chance(500) { 64 } else { rng.range(2, nodes) as u32 };
    setup.policy.observers = rng.range(1, 3) as usize;
    setup.policy.max_failures = 50;
    setup.policy.max_vain = 6;
    setup.policy.start_timeout = Micros(5 * SECOND);
    setup.policy.absent_timeout = Micros(2 * SECOND);
    setup.policy.node_timeout = Micros(rng.range(4, 8) * SECOND);
    setup.patience = rng.range(4, 6) * SECOND;
    // Longer than that, as a minute is.
    setup.policy.fence_kill = Micros(setup.patience + rng.range(2, 6) * SECOND);
    setup.steps = rng.range(80, 240) as u32;
    setup.pace = rng.range(2000, 4000) * MS / u64::from(setup.steps);
    setup.every = rng.range(8, 30) as u32;
    setup.width = rng.range(1, 2) as u32;
    setup.groups = if ranks >= 4 && rng.chance(300) { 2 } else { 1 };
    setup.temper = rng.pick(&[Temper::Hangs, Temper::Aborts]);
    setup.deadline = rng.range(200, 1500) * MS;
    setup.shipping = rng.range(5, 150) * MS;
    setup.weather = Weather { drop: rng.range(0, 10), double: rng.range(0, 100), even: false };
}

pub(crate) fn usual(rng: &mut Rng, setup: &mut Setup) {
    let nodes = rng.range(3, 7);
    cluster(rng, setup, nodes);
}

/// While the job runs.
pub(crate) fn sometime(rng: &mut Rng) -> u64 {
    rng.range(150, 2000) * MS
}

/// Often soon after the one before, to hit a recovery.
fn next(rng: &mut Rng, before: u64) -> u64 {
    if rng.chance(500) { before + rng.range(0, 40_000) } else { sometime(rng) }
}

pub(crate) fn node(rng: &mut Rng, setup: &Setup) -> usize {
    rng.range(0, u64::from(setup.nodes) - 1) as usize
}

fn some_nodes(rng: &mut Rng, setup: &Setup, most: u64) -> Set {
    let count = rng.range(1, most.max(1));
    Set::of((0..count).map(|_| node(rng, setup)))
}

pub(crate) fn plan(setup: &mut Setup, at: u64, fault: Fault) {
    setup.faults.push(Planned { at, fault });
}

pub(crate) fn kill_rank(rng: &mut Rng, setup: &Setup) -> Fault {
    Fault::KillRank { rank: rng.range(0, u64::from(setup.ranks) - 1) as u32, signal: rng.pick(&[9, 11, 6]) }
}

pub(crate) fn net(barrier: Barrier, span: u64) -> Fault {
    Fault::Net { barrier, span }
}

fn small_death(rng: &mut Rng, setup: &Setup) -> Fault {
    match rng.range(0, 9) {
        0..=5 => kill_rank(rng, setup),
        6..=7 => Fault::KillAgent { node: node(rng, setup), back_after: rng.range(5, 50) * MS },
        8 => Fault::KillServer { node: node(rng, setup) },
        _ => Fault::LoseSlot { slot: rng.range(0, u64::from(setup.nodes * setup.slots) - 1) as u32 },
    }
}

/// A cut of one kind or another.
fn barrier(rng: &mut Rng, setup: &Setup) -> Barrier {
    let (one, other) = (node(rng, setup), node(rng, setup));
    match rng.range(0, 5) {
        0 => Barrier::Cut { from: Set::one(one), to: Set::All },
        1 => Barrier::Cut { from: Set::All, to: Set::one(one) },
        2 => Barrier::Cut { from: Set::one(one), to: Set::one(other) },
        3 => Barrier::Loss(rng.range(100, 600)),
        _ => Barrier::Island(some_nodes(rng, setup, u64::from(setup.nodes) / 2)),
    }
}

fn store_trouble(rng: &mut Rng, setup: &Setup) -> Trouble {
    let all = |rng: &mut Rng| if rng.chance(500) { Set::All } else { some_nodes(rng, setup, 2) };
    match rng.range(0, 5) {
        0 => Trouble::NoRequests(all(rng)),
        1 => Trouble::NoAnswers(all(rng)),
        2 => Trouble::Election,
        3 => Trouble::Slow(10 * MS, rng.range(100, 5000) * MS),
        4 => Trouble::Watches { lost: rng.range(0, 1000), up_to: rng.range(1, 5000) * MS },
        _ => Trouble::Loses { before: 200, after: 200, late: 300, by: rng.range(100, 4000) * MS },
    }
}

// ---- the profiles

fn calm(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.promises = Promises { nobody_out: true, ends_well: true, ..Promises::default() };
}

fn due(rng: &mut Rng, setup: &mut Setup) {
    crash(rng, setup);
    setup.asks = true;
}

fn crash(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.renewable = rng.chance(500);
    let mut at = sometime(rng);
    for _ in 0..rng.range(1, 6) {
        let fault = small_death(rng, setup);
        plan(setup, at, fault);
        at = next(rng, at);
    }
    if rng.chance(300) {
        plan(setup, at, Fault::KillNodes(Set::one(node(&mut rng.clone(), setup))));
    }
}

fn nodes(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    let mut at = sometime(rng);
    for _ in 0..rng.range(1, 2) {
        let dies = node(rng, setup);
        plan(setup, at, Fault::KillNodes(Set::one(dies)));
        at = next(rng, at);
    }
}

fn oversubscribed(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.ranks = setup.nodes * setup.slots;
    setup.policy.oversubscribe = true;
    setup.renewable = true;
    // Not before the job has begun: it begins on slots of its nodes' own, and without a node it has too few.
    let mut at = sometime(rng).max(SECOND);
    for _ in 0..rng.range(1, u64::from(setup.nodes) - 2) {
        let dies = node(rng, setup);
        plan(setup, at, Fault::KillNodes(Set::one(dies)));
        at = next(rng, at).max(SECOND);
    }
    if rng.chance(300) {
        plan(setup, at, Fault::KillAgent { node: node(rng, setup), back_after: rng.range(5, 200) * MS });
    }
    setup.promises = Promises { ends_well: true, ..Promises::default() };
}

fn rack(rng: &mut Rng, setup: &mut Setup) {
    let nodes = rng.range(5, 8);
    cluster(rng, setup, nodes);
    setup.ranks = (u64::from(setup.slots) * nodes.div_ceil(2)).max(2) as u32 - 1;
    setup.groups = 1;
    let first = node(rng, setup);
    let doomed = if rng.chance(600) {
        let doomed = Set::of(observers(setup, first).into_iter().chain([first]));
        // Where they are one failure domain their partners are elsewhere, and what those hold is restored.
        if rng.chance(600) {
            setup.together = doomed;
        }
        doomed
    } else {
        Set::of((0..nodes as usize).filter(|other| setup.rack(*other) == setup.rack(first)))
    };
    let at = sometime(rng);
    plan(setup, at, Fault::KillNodes(doomed));
}

fn islands(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    for _ in 0..rng.range(1, 2) {
        let first = node(rng, setup);
        let island = if rng.chance(300) {
            Set::of(observers(setup, first).into_iter().chain([first]))
        } else {
            some_nodes(rng, setup, u64::from(setup.nodes) / 2)
        };
        let span = if rng.chance(300) { FOREVER } else { rng.range(100, 3000) * MS };
        let at = sometime(rng);
        plan(setup, at, net(Barrier::Island(island), span));
        if rng.chance(500) {
            plan(setup, at, Fault::Store { trouble: Trouble::NoRequests(island), span: span.min(3 * SECOND) });
        }
    }
}

fn one_way(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    let (one, at) = (Set::one(node(rng, setup)), sometime(rng));
    let barrier = match rng.range(0, 1) {
        0 => Barrier::Cut { from: one, to: Set::All },
        _ => Barrier::Cut { from: Set::All, to: one },
    };
    plan(setup, at, net(barrier, FOREVER));
}

/// The application's network is cut for everybody from 0.1 s to a second less than P; its ports or links return one by one. At
/// the same time the store may be away, watches late, an agent stand still for less than ½ T, and ranks die. The job has begun:
/// before its first record nobody has been acknowledged by anybody, and nobody can tell that it is alone.
fn everybody_cut(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    if rng.chance(250) {
        // As it is by default.
        setup.patience = 30 * SECOND;
        setup.policy.fence_kill = Micros(60 * SECOND);
    }
    let stalls = rng.chance(400).then(|| setup.timeout() / 2 - 10 * MS);
    let (span, spread) = common_cut(rng, setup, stalls.unwrap_or(0));
    // Where it cuts off nobody they are one disturbance.
    let stalls = stalls.filter(|stalls| span >= cut_off_after(setup) || span + spread + stalls <= soon(setup));
    let draw = rng.draw();
    let barrier = if rng.chance(500) { Barrier::Ports { spread, draw } } else { Barrier::Links { spread, draw } };
    let at = 400 * MS + sometime(rng);
    plan(setup, at, net(barrier, span));
    // The store behind the same switch.
    if rng.chance(500) {
        for node in 0..setup.nodes as usize {
            let until = span + rng.range(0, spread);
            plan(setup, at, Fault::Store { trouble: Trouble::NoRequests(Set::one(node)), span: until });
        }
    }
    if rng.chance(300) {
        let trouble = Trouble::Watches { lost: rng.range(0, 1000), up_to: rng.range(100, 5000) * MS };
        plan(setup, at.saturating_sub(SECOND), Fault::Store { trouble, span: span + spread + 2 * SECOND });
    }
    for _ in 0..rng.range(0, 3) / 2 {
        let (dies, when) = (kill_rank(rng, setup), at - 100 * MS + rng.range(0, span + spread));
        plan(setup, when, dies);
    }
    if let Some(longest) = stalls {
        let (stalls, lasts) = (node(rng, setup), rng.range(10 * MS, longest));
        // Just before it, in it, when the first ports are back, until the last is.
        let when = match rng.range(0, 3) {
            0 => at - rng.range(0, lasts),
            1 => at + rng.range(0, span),
            2 => at + span - rng.range(0, lasts.min(span)),
            _ => at + span + rng.range(0, spread),
        };
        plan(setup, when, Fault::Stall { node: stalls, span: lasts });
    }
    setup.promises = Promises { nobody_out: true, ends_well: true, ..Promises::default() };
}

/// How long everybody is cut off from everybody, and how much later the last port or link returns, or what stands still so long.
fn common_cut(rng: &mut Rng, setup: &Setup, stalls: u64) -> (u64, u64) {
    let (timeout, most) = (setup.timeout(), setup.patience - SECOND);
    let (span, within) = match rng.range(0, 9) {
        0..=1 => (rng.range(100 * MS, timeout), most),
        // As short as it may be for the last ports to return long after the first.
        2..=3 => (cut_off_after(setup) + rng.range(0, timeout / 4), most),
        4..=6 => (rng.range(100 * MS, 3 * timeout), most),
        _ => (rng.range(100 * MS, most), most),
    };
    let spread = longest_spread(span, setup).saturating_sub(stalls).min(within);
    let spread = if rng.chance(300) { 0 } else { rng.range(0, spread) };
    (span, spread.min(most - span))
}

fn short(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.weather.drop = 0;
    let mut at = sometime(rng);
    for _ in 0..rng.range(1, 3) {
        let span = rng.range(10 * MS, setup.timeout() / 2 - 10 * MS);
        let fault = match rng.range(0, 2) {
            0 => Fault::Stall { node: node(rng, setup), span },
            1 => Fault::Suspend { node: node(rng, setup), span },
            _ => net(barrier(rng, setup), span),
        };
        plan(setup, at, fault);
        at += span + 7 * setup.timeout();
    }
    if rng.chance(300) {
        plan(setup, at, Fault::Store { trouble: Trouble::NoRequests(Set::All), span: SECOND });
    }
    if rng.chance(500) {
        let trouble = Trouble::Watches { lost: rng.range(0, 1000), up_to: rng.range(100, 5000) * MS };
        plan(setup, 0, Fault::Store { trouble, span: 10 * SECOND });
    }
    for _ in 0..rng.range(0, 2) {
        let (dies, when) = (kill_rank(rng, setup), rng.range(150 * MS, at));
        plan(setup, when, dies);
    }
    setup.promises = Promises { nobody_out: true, ends_well: true, ..Promises::default() };
}

fn store_slow(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    let at = sometime(rng);
    let span = rng.range(500, 6000) * MS;
    let high = rng.range(1, 10) * setup.timeout();
    let trouble = if rng.chance(500) { Trouble::Election } else { Trouble::Slow(10 * MS, high) };
    plan(setup, at, Fault::Store { trouble, span });
    for _ in 0..rng.range(1, 2) {
        let during = at + rng.range(0, 400) * MS;
        let fault =
            if rng.chance(300) { Fault::KillNodes(Set::one(node(rng, setup))) } else { small_death(rng, setup) };
        plan(setup, during, fault);
    }
}

fn store_away(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.weather.drop = 0;
    let (away, at, span) = (node(rng, setup), sometime(rng), rng.range(1000, 4000) * MS);
    plan(setup, at, Fault::Store { trouble: Trouble::NoRequests(Set::one(away)), span });
    plan(setup, at, Fault::Store { trouble: Trouble::NoAnswers(Set::one(away)), span });
    let mut dies = at;
    for _ in 0..rng.range(1, 3) {
        dies += rng.range(10, 500) * MS;
        let fault = kill_rank(rng, setup);
        plan(setup, dies, fault);
    }
    // Sooner than by its next heartbeat.
    setup.promises = Promises { nobody_out: true, ends_well: true, told: Some(60 * MS), ..Promises::default() };
}

fn store_lost(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.deadline = rng.range(100, 300) * MS;
    let at = sometime(rng);
    let trouble = Trouble::Loses { before: 100, after: 200, late: 500, by: rng.range(500, 3000) * MS };
    plan(setup, at, Fault::Store { trouble, span: 4 * SECOND });
    for _ in 0..rng.range(1, 2) {
        let away = node(rng, setup);
        let span = rng.range(450, 900) * MS;
        let begins = at + rng.range(0, 1000) * MS;
        plan(setup, begins, net(Barrier::Island(Set::one(away)), span));
        if rng.chance(500) {
            plan(setup, begins + span - rng.range(0, 200) * MS, small_death(&mut rng.clone(), setup));
        }
    }
}

fn accusation(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.deadline = rng.range(80, 200) * MS;
    setup.policy.observers = rng.range(1, 2) as usize;
    setup.stale_watch = rng.chance(500);
    let (away, at, span) = (node(rng, setup), sometime(rng), rng.range(510, 700) * MS);
    plan(setup, at, net(Barrier::Island(Set::one(away)), span));
    // The one that is accused cannot read, nor write, what would save it.
    plan(setup, at, Fault::Store { trouble: Trouble::NoRequests(Set::one(away)), span: 4 * SECOND });
    let trouble = Trouble::LosesWrites { before: 500, late: 500, by: rng.range(1000, 3000) * MS };
    plan(setup, at + 300 * MS, Fault::Store { trouble, span: 2 * SECOND });
    if rng.chance(500) {
        let author = rng.pick(&observers(setup, away));
        let dies = at + rng.range(510, 900) * MS;
        plan(setup, dies, Fault::KillAgent { node: author, back_after: rng.range(5, 30) * MS });
    }
}

fn watches(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.stale_watch = true;
    let trouble = Trouble::Watches { lost: rng.range(0, 900), up_to: rng.range(100, 5000) * MS };
    plan(setup, 0, Fault::Store { trouble, span: 10 * SECOND });
    let mut at = sometime(rng);
    for _ in 0..rng.range(1, 3) {
        let fault = match rng.range(0, 3) {
            0 => kill_rank(rng, setup),
            _ => Fault::KillAgent { node: node(rng, setup), back_after: rng.range(5, 150) * MS },
        };
        plan(setup, at, fault);
        at = next(rng, at);
    }
}

fn stalls(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    for _ in 0..rng.range(1, 2) {
        let (stalled, span, at) = (node(rng, setup), rng.range(100, 3000) * MS, sometime(rng));
        plan(setup, at, Fault::Stall { node: stalled, span });
    }
}

fn suspend(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    for _ in 0..rng.range(1, 2) {
        let (stalled, span, at) = (node(rng, setup), rng.range(100, 3000) * MS, sometime(rng));
        plan(setup, at, Fault::Suspend { node: stalled, span });
    }
}

fn agent_quick(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.weather.drop = 0;
    let mut at = sometime(rng);
    for _ in 0..rng.range(1, 3) {
        let back_after = rng.range(5 * MS, setup.timeout() / 2 - 20 * MS);
        let dies = node(rng, setup);
        plan(setup, at, Fault::KillAgent { node: dies, back_after });
        at += 7 * setup.timeout();
    }
    setup.promises = Promises { nobody_out: true, ends_well: true, ..Promises::default() };
}

fn agent_late(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.ranks = setup.nodes * setup.slots;
    let (dies, at) = (node(rng, setup), sometime(rng));
    plan(setup, at, Fault::KillAgent { node: dies, back_after: rng.range(600, 2500) * MS });
    setup.promises = Promises { ends_well: true, waits: true, ..Promises::default() };
}

fn agent_twice(rng: &mut Rng, setup: &mut Setup) {
    let nodes = rng.range(3, 4);
    cluster(rng, setup, nodes);
    setup.policy.observers = 1;
    let (twice, mut at) = (node(rng, setup), sometime(rng));
    let late = Barrier::Late { from: Set::All, to: Set::one(twice), by: rng.range(350, 450) * MS };
    plan(setup, at, net(late, 3 * SECOND));
    for _ in 0..2 {
        plan(setup, at, Fault::KillAgent { node: twice, back_after: rng.range(5, 15) * MS });
        at += rng.range(310, 360) * MS;
    }
    at -= rng.range(230, 270) * MS;
    plan(setup, at, net(Barrier::Island(Set::one(twice)), FOREVER));
    plan(setup, at, Fault::Store { trouble: Trouble::NoRequests(Set::one(twice)), span: FOREVER });
}

fn anything(rng: &mut Rng, setup: &Setup) -> Fault {
    let span = rng.range(50, 3000) * MS;
    match rng.range(0, 11) {
        0..=3 => small_death(rng, setup),
        4 => Fault::KillNodes(Set::one(node(rng, setup))),
        5 => Fault::Suspend { node: node(rng, setup), span },
        6 => Fault::Stall { node: node(rng, setup), span },
        7 => net(Barrier::Ports { spread: rng.range(0, 1000) * MS, draw: rng.draw() }, span),
        8 | 9 => net(barrier(rng, setup), span),
        _ => Fault::Store { trouble: store_trouble(rng, setup), span },
    }
}

fn several(rng: &mut Rng, setup: &mut Setup, most: u64) {
    let mut at = sometime(rng);
    for _ in 0..rng.range(1, most) {
        let fault = anything(rng, setup);
        plan(setup, at, fault);
        at = next(rng, at);
    }
}

fn two(rng: &mut Rng, setup: &mut Setup) {
    cluster(rng, setup, 2);
    several(rng, setup, 3);
}

fn three(rng: &mut Rng, setup: &mut Setup) {
    cluster(rng, setup, 3);
    several(rng, setup, 3);
}

fn levels(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.groups = if setup.ranks >= 4 { rng.range(1, 2) as u32 } else { 1 };
    setup.shipping = rng.range(20, 400) * MS;
    let (dies, at) = (node(rng, setup), rng.range(500, 2500) * MS);
    plan(setup, at, Fault::KillNodes(Set::one(dies)));
    if rng.chance(500) {
        let before = at.saturating_sub(rng.range(50, 400) * MS);
        let away = node(rng, setup);
        // Copies wait, and newer versions than the partners have are there.
        plan(setup, before, net(Barrier::Island(Set::one(away)), rng.range(50, 240) * MS));
    }
    setup.promises = Promises { ends_well: true, ..Promises::default() };
}

fn verifying(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.groups = if setup.ranks >= 4 { rng.range(1, 2) as u32 } else { 1 };
    setup.shipping = rng.range(20, 200) * MS;
    setup.policy.inventory_timeout = Micros(rng.range(5, 200) * MS);
    setup.verifying = (rng.range(200, 800), rng.range(100, 1500) * MS);
    let mut at = rng.range(500, 2500) * MS;
    for _ in 0..rng.range(1, 3) {
        let dies = if rng.chance(500) { kill_rank(rng, setup) } else { Fault::KillNodes(Set::one(node(rng, setup))) };
        plan(setup, at, dies);
        at = next(rng, at);
    }
}

fn aborts(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.temper = Temper::Aborts;
    setup.groups = 1;
    setup.every = u32::MAX;
    let (dies, at) = (rng.range(0, 1) as usize, sometime(rng));
    let span = rng.range(4, 12) * setup.timeout();
    let trouble = match rng.range(0, 3) {
        0 => Trouble::Election,
        1 => Trouble::Slow(10 * MS, 10 * setup.timeout()),
        2 => Trouble::LosesWrites { before: 0, late: 1000, by: 8 * setup.timeout() },
        _ => Trouble::NoRequests(Set::of(observers(setup, dies))),
    };
    plan(setup, at.saturating_sub(rng.range(0, 100) * MS), Fault::Store { trouble, span });
    plan(setup, at, Fault::KillNodes(Set::one(dies)));
}

fn cancel(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    let at = sometime(rng);
    let signal = rng.pick(&[2, 15]);
    plan(setup, at, Fault::Cancel { signal });
    if rng.chance(600) {
        let trouble = store_trouble(rng, setup);
        plan(setup, at.saturating_sub(rng.range(0, 300) * MS), Fault::Store { trouble, span: 3 * SECOND });
    }
    if rng.chance(300) {
        let fault = small_death(rng, setup);
        plan(setup, next(&mut rng.clone(), at), fault);
    }
}

fn signals(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.obedience = rng.chance(500).then_some(Obedience::Ignores);
    let mut at = sometime(rng);
    for _ in 0..rng.range(1, 3) {
        let signal = rng.pick(&[10, 15]);
        plan(setup, at, Fault::Signal { signal });
        at += rng.range(0, 500) * MS;
    }
    if rng.chance(700) {
        let fault = if rng.chance(500) { small_death(rng, setup) } else { kill_rank(rng, setup) };
        plan(setup, at, fault);
    }
}

fn deleted_key(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    let at = sometime(rng);
    plan(setup, at, Fault::DeleteKey);
    let fault = if rng.chance(500) { small_death(rng, setup) } else { kill_rank(rng, setup) };
    plan(setup, at + rng.range(1, 200) * MS, fault);
}

fn left_out(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    let away = some_nodes(rng, setup, u64::from(setup.nodes - 1) / 2);
    let (at, span) = (sometime(rng), rng.range(480, 1500) * MS);
    // For as long as it takes to be left out it hears nothing of the store either: else it learns of it and stops.
    plan(setup, at, net(Barrier::Island(away), span));
    plan(setup, at, Fault::Store { trouble: Trouble::NoRequests(away), span: span + rng.range(0, 100) * MS });
}

fn fenced(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    let away = some_nodes(rng, setup, u64::from(setup.nodes - 1) / 2);
    let (at, span) = (sometime(rng), rng.range(300, 2000) * MS);
    plan(setup, at, net(Barrier::Island(away), span));
    plan(setup, at, Fault::Store { trouble: Trouble::NoRequests(away), span });
    plan(setup, at, Fault::Store { trouble: Trouble::NoAnswers(away), span });
}

fn late_answers(rng: &mut Rng, setup: &mut Setup) {
    let nodes = rng.range(5, 8);
    cluster(rng, setup, nodes);
    setup.policy.observers = rng.range(1, 2) as usize;
    setup.deadline = 4 * SECOND;
    let (first, at) = (node(rng, setup), sometime(rng));
    let away = Set::of(observers(setup, first).into_iter().chain([first]));
    let span = rng.range(2000, 4000) * MS;
    plan(setup, at, net(Barrier::Island(away), span));
    plan(setup, at, Fault::Store { trouble: Trouble::LateAnswers(away, rng.range(1500, 3500) * MS), span });
    plan(setup, at, Fault::Store { trouble: Trouble::Watches { lost: 1000, up_to: 0 }, span });
}

fn wishes(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.policy.recover_aborts = rng.chance(300);
    let mut at = sometime(rng);
    for _ in 0..rng.range(1, 4) {
        let rank = rng.range(0, u64::from(setup.ranks) - 1) as u32;
        let fault = match rng.range(0, 3) {
            0 => Fault::AbortRank { rank, code: rng.range(0, 300) as i32 * rng.range(0, 1) as i32 },
            1 => Fault::ExitRank { rank, code: rng.range(1, 128) as i32 * rng.range(0, 3).min(1) as i32 },
            _ => small_death(rng, setup),
        };
        plan(setup, at, fault);
        at = next(rng, at);
    }
}

fn own_timeouts(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    // Node 0 is, as a rule, the one that writes the first record: what it says is the job's.
    let hasty = rng.range(1, u64::from(setup.nodes) - 1) as u32;
    setup.own.insert(hasty, Own { timeout: Some(setup.timeout() / 2), ..Own::default() });
    let (away, at) = (node(rng, setup), sometime(rng));
    plan(setup, at, net(Barrier::Cut { from: Set::one(away), to: Set::All }, rng.range(200, 600) * MS));
}

fn reboot(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    for _ in 0..rng.range(1, 2) {
        let (dies, at) = (node(rng, setup), sometime(rng));
        let back_after = rng.range(50, 3000) * MS;
        let anew = rng.chance(500);
        let fault =
            if anew { Fault::Replace { node: dies, back_after } } else { Fault::Reboot { node: dies, back_after } };
        plan(setup, at, fault);
    }
}

fn joins(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.ranks = setup.nodes * setup.slots;
    let (dies, at) = (node(rng, setup), sometime(rng));
    plan(setup, at, Fault::KillNodes(Set::one(dies)));
    let given = (at + rng.range(0, 3000) * MS).saturating_sub(SECOND);
    let given = given.max(150 * MS);
    plan(setup, given, Fault::Join);
    if rng.chance(500) {
        let span = rng.range(50, 2000) * MS;
        let during = given.saturating_sub(rng.range(0, 500) * MS).max(150 * MS);
        // The new machine is plugged in behind all others, and may be one of them.
        let any = |rng: &mut Rng| rng.range(0, u64::from(setup.nodes)) as usize;
        let (one, other) = (any(rng), any(rng));
        let barrier = match rng.range(0, 4) {
            0 => Barrier::Ports { spread: rng.range(0, 500) * MS, draw: rng.draw() },
            1 => Barrier::Cut { from: Set::one(one), to: Set::All },
            2 => Barrier::Cut { from: Set::All, to: Set::one(one) },
            3 => Barrier::Cut { from: Set::one(one), to: Set::one(other) },
            _ => Barrier::Island(Set::of([one, other])),
        };
        plan(setup, during, net(barrier, span));
    }
    if rng.chance(400) {
        let away = match rng.range(0, 2) {
            0 => Set::All,
            1 => Set::one(setup.nodes as usize),
            _ => Set::one(node(rng, setup)),
        };
        let (span, during) = (rng.range(50, 3000) * MS, given.saturating_sub(rng.range(0, 500) * MS).max(150 * MS));
        let trouble = if rng.chance(500) { Trouble::NoRequests(away) } else { Trouble::NoAnswers(away) };
        plan(setup, during, Fault::Store { trouble, span });
    }
    // A machine that nobody hears of, or that does not reach the store as others do, is not there yet. (A store that is away from all
    // stops the wait.)
    let all_away = |trouble| matches!(trouble, Trouble::NoRequests(Set::All) | Trouble::NoAnswers(Set::All));
    let away = setup
        .faults
        .iter()
        .filter(|planned| !matches!(planned.fault, Fault::Store { trouble, .. } if all_away(trouble)));
    let there = away.map(Planned::ends).max().unwrap_or(0) + setup.deadline + SECOND;
    setup.policy.node_timeout = setup.policy.node_timeout.max(Micros(there.saturating_sub(at)));
    setup.promises = Promises { ends_well: true, waits: true, ..Promises::default() };
}

fn deaf_joiner(rng: &mut Rng, setup: &mut Setup) {
    let nodes = rng.range(3, 6);
    cluster(rng, setup, nodes);
    setup.weather.drop = 0;
    setup.policy.observers = 1;
    let joiner = nodes as usize;
    let at = sometime(rng);
    plan(setup, at, Fault::Join);
    // Before it comes in, with the next epoch, and until it may accuse whom it has not heard.
    let comes = at + rng.range(300, 700) * MS;
    let dies = kill_rank(rng, setup);
    plan(setup, comes, dies);
    let until = comes + rng.range(600 * MS, setup.patience - SECOND);
    for unheard in observed_by_joiner(setup, joiner) {
        plan(setup, at, net(Barrier::Cut { from: Set::one(unheard), to: Set::one(joiner) }, until - at));
    }
    setup.promises = Promises { nobody_out: true, ends_well: true, ..Promises::default() };
}

fn dead_joiner(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.ranks = setup.nodes * setup.slots;
    let mut at = sometime(rng);
    plan(setup, at, Fault::Join);
    at += rng.range(300, 800) * MS;
    plan(setup, at, Fault::KillNodes(Set::one(setup.nodes as usize)));
    at += rng.range(200, 1500) * MS;
    let dies = node(rng, setup);
    plan(setup, at, Fault::KillNodes(Set::one(dies)));
    at += rng.range(0, 2000) * MS;
    plan(setup, at, Fault::Join);
    setup.promises = Promises { ends_well: true, waits: true, ..Promises::default() };
}

fn sleeper(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.weather.drop = 0;
    let (unheard, at) = (node(rng, setup), sometime(rng));
    // Somebody else writes down what this one finds.
    let collector = usize::from(unheard == 0);
    let mut sleepers = observers(setup, unheard).into_iter().filter(|observer| *observer != collector);
    if let Some(sleeper) = sleepers.next_back() {
        let silent = rng.range(210, 245) * MS;
        plan(setup, at, net(Barrier::Cut { from: Set::one(unheard), to: Set::one(sleeper) }, silent));
        let begins = at + rng.range(170, 200) * MS;
        plan(setup, begins, Fault::Stall { node: sleeper, span: rng.range(260, 330) * MS });
        plan(setup, at, Fault::Store { trouble: Trouble::NoRequests(Set::one(sleeper)), span: 3 * SECOND });
    }
    setup.promises = Promises { nobody_out: true, ends_well: true, ..Promises::default() };
}

fn frames(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    let (out, at) = (node(rng, setup), sometime(rng));
    let elsewhere: Vec<u32> = (0..setup.ranks).filter(|rank| (rank / setup.slots) as usize != out).collect();
    plan(setup, at, net(Barrier::Frames { to: Set::one(out) }, FOREVER));
    for trouble in [Trouble::NoRequests(Set::one(out)), Trouble::NoAnswers(Set::one(out))] {
        plan(setup, at, Fault::Store { trouble, span: FOREVER });
    }
    let dies = at + rng.range(10, 500) * MS;
    plan(setup, dies, Fault::KillRank { rank: rng.pick(&elsewhere), signal: 9 });
}

fn sources(rng: &mut Rng, setup: &mut Setup) {
    let nodes = rng.range(4, 7);
    cluster(rng, setup, nodes);
    (setup.shipping, setup.sending) = (rng.range(5, 60) * MS, rng.range(5, 400) * MS);
    setup.fetching = setup.sending + rng.range(200, 1200) * MS;
    setup.partners = rng.range(1, 2) as usize;
    let busy = setup.ranks.div_ceil(setup.slots) as usize;
    let (dies, at) = (rng.range(0, busy as u64 - 1) as usize, rng.range(500, 2000) * MS);
    plan(setup, at, Fault::KillNodes(Set::one(dies)));
    let all = Members::of((0..nodes as u32).map(NodeId));
    let keepers = partners(|node| setup.rack(node.0 as usize), &all, NodeId(dies as u32), setup.partners);
    let spares = Set::of(busy..nodes as usize);
    for keeper in keepers {
        // About when the death is agreed, or while the copies travel.
        let (during, keeper) = (at + rng.range(450, 1200) * MS, Set::one(keeper.0 as usize));
        let span = rng.range(100, 2500) * MS;
        let fault = match (rng.range(0, 5), keeper) {
            (0, keeper) => Fault::KillNodes(keeper),
            (1, keeper) => net(Barrier::Cut { from: keeper, to: spares }, span),
            (2, keeper) => net(Barrier::Cut { from: spares, to: keeper }, span),
            (3, keeper) => net(Barrier::Island(keeper), if rng.chance(300) { FOREVER } else { span }),
            (_, Set::Some(keeper)) => Fault::Rot { node: keeper.trailing_zeros() as usize },
            _ => continue,
        };
        plan(setup, during, fault);
    }
}

fn absent(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    let rank = |rng: &mut Rng, setup: &Setup| rng.range(0, u64::from(setup.ranks) - 1) as u32;
    // If all were absent the program would be through: the last rank never is.
    let rank = |rng: &mut Rng, setup: &Setup| rank(rng, setup).min(setup.ranks - 2);
    for _ in 0..rng.range(1, u64::from(setup.ranks) - 1) {
        let absent = rank(rng, setup);
        plan(setup, 0, Fault::Absent { rank: absent, within: rng.chance(200) });
    }
    if rng.chance(600) {
        let (absent, at) = (rank(rng, setup), rng.range(200, 1500) * MS);
        plan(setup, at, Fault::Absent { rank: absent, within: rng.chance(300) });
        let dies = small_death(rng, setup);
        plan(setup, at + rng.range(0, 200) * MS, dies);
    }
    if rng.chance(200) {
        let dies = node(rng, setup);
        plan(setup, rng.range(0, 300) * MS, Fault::KillNodes(Set::one(dies)));
    }
}

fn ends(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    let (at, rank) = (sometime(rng), rng.range(0, u64::from(setup.ranks) - 1) as u32);
    match rng.range(0, 4) {
        0 => {
            setup.policy.max_failures = rng.range(2, 6) as u32;
            plan(setup, at, Fault::Crashes { rank });
            for _ in 0..rng.range(0, 3) {
                let dies = kill_rank(rng, setup);
                plan(setup, at + rng.range(0, 1500) * MS, dies);
            }
        }
        1 => {
            setup.mode = Mode::None;
            let fault =
                if rng.chance(300) { Fault::KillNodes(Set::one(node(rng, setup))) } else { small_death(rng, setup) };
            plan(setup, at, fault);
        }
        2 => {
            setup.policy.store_timeout = Micros(rng.range(1000, 4000) * MS);
            let away = if rng.chance(600) { Set::All } else { some_nodes(rng, setup, 2) };
            let span = rng.range(500, 8000) * MS;
            plan(setup, at, Fault::Store { trouble: Trouble::NoRequests(away), span });
            let dies = small_death(rng, setup);
            plan(setup, at + rng.range(0, 300) * MS, dies);
        }
        3 => {
            setup.ranks = setup.nodes * setup.slots;
            let dies = node(rng, setup);
            plan(setup, at, Fault::KillNodes(Set::one(dies)));
            if rng.chance(500) {
                plan(setup, at + rng.range(0, 12_000) * MS, Fault::Join);
            }
        }
        _ => {
            // Each dies while the epoch that leaves the one before it out waits for it.
            cluster(rng, setup, 7);
            (setup.ranks, setup.groups) = (2, 1);
            setup.policy.max_vain = rng.range(2, 3) as u32;
            let first = rng.range(0, 2) as usize;
            for place in first..first + 4 {
                let dies = at + (place - first) as u64 * rng.range(150, 350) * MS;
                plan(setup, dies, Fault::KillNodes(Set::one(place)));
            }
        }
    }
}

/// The store is away when the job ends, and for long.
fn unwritten(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.policy.store_timeout = Micros(rng.range(1000, 6000) * MS);
    setup.policy.end_timeout = Micros(rng.range(500, 6000) * MS);
    let away = if rng.chance(700) { Set::All } else { some_nodes(rng, setup, 2) };
    let at = rng.range(100, 2500) * MS;
    let span = if rng.chance(700) { FOREVER } else { rng.range(1000, 12_000) * MS };
    let trouble = match rng.range(0, 5) {
        0 => Trouble::NoAnswers(away),
        1 => Trouble::LosesWrites { before: 1000, late: 0, by: 0 },
        _ => Trouble::NoRequests(away),
    };
    plan(setup, at, Fault::Store { trouble, span });
    for _ in 0..rng.range(0, 2).saturating_sub(rng.range(0, 1)) {
        let fault = match rng.range(0, 5) {
            0 => Fault::Cancel { signal: 15 },
            1 => Fault::KillNodes(Set::one(node(rng, setup))),
            2 => Fault::ExitRank { rank: rng.range(0, u64::from(setup.ranks) - 1) as u32, code: 3 },
            3 => anything(rng, setup),
            4 => Fault::Join,
            _ => small_death(rng, setup),
        };
        plan(setup, at + rng.range(0, 3000) * MS, fault);
    }
}

fn start(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.renewable = rng.chance(300);
    for _ in 0..rng.range(1, 3) {
        let fault = anything(rng, setup);
        plan(setup, rng.range(0, 150) * MS, fault);
    }
    if rng.chance(200) {
        let dies = node(rng, setup);
        plan(setup, rng.range(0, 40) * MS, Fault::KillNodes(Set::one(dies)));
    }
}

fn copies(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.every = rng.range(3, 8) as u32;
    setup.copying = 2 * setup.pace;
    let mut at = sometime(rng);
    for _ in 0..rng.range(1, 5) {
        let fault = match rng.range(0, 3) {
            0 => Fault::KillAgent { node: node(rng, setup), back_after: rng.range(5, 50) * MS },
            _ => kill_rank(rng, setup),
        };
        plan(setup, at, fault);
        at = next(rng, at);
    }
}

fn slow_net(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    let barrier = Barrier::Slow { share: rng.range(20, 700), up_to: rng.range(100, 900) * MS };
    plan(setup, 0, net(barrier, rng.range(500, 4000) * MS));
    several(rng, setup, 2);
}

fn mixed(rng: &mut Rng, setup: &mut Setup) {
    usual(rng, setup);
    setup.renewable = rng.chance(300);
    setup.stale_watch = rng.chance(300);
    setup.policy.recover_aborts = rng.chance(100);
    setup.weather.drop = if rng.chance(300) { rng.range(0, 100) } else { setup.weather.drop };
    several(rng, setup, 6);
    if rng.chance(50) {
        let at = sometime(rng);
        plan(setup, at, Fault::Cancel { signal: 15 });
    }
    if rng.chance(300) {
        let (lapses, at) = (node(rng, setup), sometime(rng));
        plan(setup, at, Fault::Lapse { node: lapses, span: rng.range(100, 3000) * MS });
    }
}
