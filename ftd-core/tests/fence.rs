//! The fence alone, in random small clusters: is a node that was left out ever computing, is a healthy one ever left out,
//! does everybody agree in the end? Time goes in steps of 5 ms; only the fence's rules are at work. Seeds: `FTD_FENCE_RUNS`,
//! `FTD_FENCE_FIRST`.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use ftd_core::breach::Breach;
use ftd_core::fence::{Beat, Fence, Lease, Reply};
use ftd_core::members::Members;
use ftd_core::plan::first_record;
use ftd_core::{EpochId, EpochRecord, Micros, Mode, NodeId, Revision, SlotId, Terms};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const STEP: u64 = 5;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.range(0, choices.len() as u64 - 1) as usize]
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Crash,
    Cut,
    OneWayIn,
    OneWayOut,
    Pair,
    PairOneWay,
    Islands,
    All,
    StoreCut,
    Stall,
    SlowStore,
    Rack,
    LinksReturn,
    Loss,
}

const KINDS: [Kind; 14] = [
    Kind::Crash,
    Kind::Cut,
    Kind::OneWayIn,
    Kind::OneWayOut,
    Kind::Pair,
    Kind::PairOneWay,
    Kind::Islands,
    Kind::All,
    Kind::StoreCut,
    Kind::Stall,
    Kind::SlowStore,
    Kind::Rack,
    Kind::LinksReturn,
    Kind::Loss,
];

#[derive(Debug, Clone)]
struct Fault {
    kind: Kind,
    from: u64,
    to: u64,
    a: usize,
    b: usize,
    some: BTreeSet<usize>,
    dice: u64,
}

#[derive(Debug, Clone)]
enum Word {
    Heartbeat { epoch: EpochId, beat: Beat, unheard: bool },
    Acknowledge { epoch: EpochId, beat: Beat, still: bool },
    Heard { epoch: EpochId },
    AskForRecord,
    Record { record: Arc<EpochRecord>, revision: Revision },
    Accuse { epoch: EpochId, revision: Revision, accused: BTreeSet<NodeId> },
}

struct Write {
    lands: u64,
    answered: u64,
    node: usize,
    /// What is to be there: the members that are left, or nothing to change.
    left_out: Option<BTreeSet<NodeId>>,
    read: bool,
    expected: Revision,
    asked: u64,
    done: bool,
    lost_answer: bool,
    seen: Option<(Arc<EpochRecord>, Revision)>,
}

struct Node {
    alive: bool,
    out: bool,
    fence: Fence,
    known: Option<(Arc<EpochRecord>, Revision)>,
    inbox: Vec<(usize, Word)>,
    reads: bool,
    writes: Option<u64>,
}

struct World {
    rng: Rng,
    now: u64,
    nodes: Vec<Node>,
    record: Arc<EpochRecord>,
    revision: Revision,
    words: Vec<(u64, usize, usize, Word)>,
    writes: Vec<Write>,
    faults: Vec<Fault>,
    crashed: BTreeMap<usize, u64>,
    recorded: BTreeMap<usize, u64>,
    bad: Option<String>,
}

fn ms(time: u64) -> Micros {
    Micros::from_millis(time)
}

impl World {
    fn new(seed: u64, breach: Breach) -> Self {
        let mut rng = Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0xfe11ce);
        let count = rng.of(&[2usize, 3, 4, 5, 6, 8, 12]);
        let ids: Vec<NodeId> = (0..count as u32).map(NodeId).collect();
        let slots = ids.iter().map(|node| (SlotId(node.0), *node)).collect();
        let record = Arc::new(first_record(Mode::Reinit, Terms::default(), 1, &ids, &slots, Micros(0)).unwrap());
        let revision = Revision(1);
        let nodes = ids.iter().map(|id| {
            let mut fence = Fence::new(*id, 1, breach);
            fence.adopt(&record, revision, Micros(0));
            let known = Some((record.clone(), revision));
            Node { alive: true, out: false, fence, known, inbox: Vec::new(), reads: false, writes: None }
        });
        let nodes = nodes.collect();
        let faults = faults(&mut rng, count);
        let (words, writes) = (Vec::new(), Vec::new());
        let (crashed, recorded) = (BTreeMap::new(), BTreeMap::new());
        World { rng, now: 0, nodes, record, revision, words, writes, faults, crashed, recorded, bad: None }
    }

    fn active(&self) -> impl Iterator<Item = &Fault> + '_ {
        self.faults.iter().filter(|fault| (fault.from..fault.to).contains(&self.now))
    }

    fn cut(&mut self, i: usize, j: usize) -> bool {
        let returning = self.faults.iter().filter(|fault| fault.kind == Kind::LinksReturn && fault.from <= self.now);
        let late = |fault: &Fault, node: usize| fault.to + ((fault.dice >> (2 * node)) & 7) * 120;
        if returning.into_iter().any(|fault| self.now < late(fault, i) || self.now < late(fault, j)) {
            return true;
        }
        let lossy = self.active().any(|fault| fault.kind == Kind::Loss);
        let cut = self.active().any(|fault| match fault.kind {
            Kind::Cut => i == fault.a || j == fault.a,
            Kind::OneWayIn => j == fault.a,
            Kind::OneWayOut => i == fault.a,
            Kind::Pair => (i, j) == (fault.a, fault.b) || (j, i) == (fault.a, fault.b),
            Kind::PairOneWay => (i, j) == (fault.a, fault.b),
            Kind::Islands => fault.some.contains(&i) != fault.some.contains(&j),
            Kind::All => true,
            _ => false,
        });
        cut || (lossy && self.rng.range(0, 9) < 4)
    }

    fn store_cut(&self, node: usize) -> bool {
        self.active().any(|fault| fault.kind == Kind::StoreCut && fault.some.contains(&node))
    }

    fn stalled(&self, node: usize) -> bool {
        self.active().any(|fault| fault.kind == Kind::Stall && fault.a == node)
    }

    fn send(&mut self, from: usize, to: NodeId, word: Word) {
        let to = to.0 as usize;
        if !self.cut(from, to) {
            let at = self.now + self.rng.range(0, 15);
            self.words.push((at, from, to, word));
        }
    }

    fn ask(&mut self, node: usize, left_out: Option<BTreeSet<NodeId>>, read: bool) {
        let slow = self.active().any(|fault| fault.kind == Kind::SlowStore);
        let latency = self.rng.range(5, 30) + if slow { self.rng.range(300, 2500) } else { 0 };
        let expected = self.nodes[node].known.as_ref().unwrap().1;
        self.writes.push(Write {
            lands: self.now + latency / 2,
            answered: self.now + latency,
            node,
            left_out,
            read,
            expected,
            asked: self.now,
            done: false,
            lost_answer: false,
            seen: None,
        });
        if read {
            self.nodes[node].reads = true;
        } else {
            self.nodes[node].writes = Some(self.now);
        }
    }

    fn store(&mut self) {
        let mut writes = std::mem::take(&mut self.writes);
        writes.sort_by_key(|write| write.lands);
        let now = self.now;
        for write in writes.iter_mut().filter(|write| write.lands <= now && !write.done) {
            write.done = true;
            if !write.read && write.expected == self.revision {
                self.revision = Revision(self.revision.0 + 1);
                if let Some(out) = &write.left_out {
                    self.leave_out(out);
                }
            }
            write.seen = Some((self.record.clone(), self.revision));
        }
        let (answered, rest): (Vec<Write>, Vec<Write>) =
            writes.into_iter().partition(|write| write.done && write.answered <= self.now);
        self.writes = rest;
        for mut write in answered {
            write.lost_answer = self.store_cut(write.node);
            self.answer(write);
        }
    }

    fn leave_out(&mut self, out: &BTreeSet<NodeId>) {
        let left = self.record.members().filter(|node| !out.contains(node));
        let mut next = EpochRecord::clone(&self.record);
        next.epoch = self.record.epoch.next();
        next.nodes = Members::of(left);
        self.record = Arc::new(next);
        for node in out.iter().map(|node| node.0 as usize) {
            self.recorded.entry(node).or_insert(self.now);
            if self.nodes[node].alive && self.computes(node) {
                self.bad = Some(format!("{} ms: node {node} computes when it is left out", self.now));
            }
        }
    }

    fn computes(&self, node: usize) -> bool {
        let node = &self.nodes[node];
        node.alive && !node.out && node.fence.lease().runs(ms(self.now))
    }

    fn answer(&mut self, write: Write) {
        let at = write.node;
        if write.read {
            self.nodes[at].reads = false;
        } else {
            self.nodes[at].writes = None;
        }
        let (Some((record, revision)), false) = (write.seen, write.lost_answer) else { return };
        if !self.nodes[at].alive || self.nodes[at].out || self.stalled(at) {
            return;
        }
        let epoch = record.epoch;
        let known = self.nodes[at].known.as_ref().unwrap().0.epoch;
        self.adopt(at, record, revision);
        if write.read && epoch == known {
            self.nodes[at].fence.read(ms(write.asked));
        }
    }

    fn adopt(&mut self, at: usize, record: Arc<EpochRecord>, revision: Revision) {
        let node = &mut self.nodes[at];
        let (known, known_revision) = node.known.clone().unwrap();
        if revision <= known_revision {
            return;
        }
        node.known = Some((record.clone(), revision));
        if !record.is_member(NodeId(at as u32)) {
            node.out = true;
            return;
        }
        node.fence.adopt(&record, revision, ms(self.now));
        if record.epoch > known.epoch {
            for to in self.nodes[at].fence.neighbours() {
                self.send(at, to, Word::Record { record: record.clone(), revision });
            }
        }
    }

    fn hear(&mut self, at: usize, from: usize, word: Word) {
        let now = ms(self.now);
        let id = NodeId(from as u32);
        let (record, revision) = self.nodes[at].known.clone().unwrap();
        match word {
            Word::Heartbeat { epoch, beat, unheard } => {
                let may_wait = self.nodes[at].fence.answer_may_wait(id, now);
                let word = match self.nodes[at].fence.heartbeat(id, epoch, unheard, now) {
                    Reply::Nothing => return,
                    Reply::Acknowledge { still: false } if may_wait => return self.nodes[at].fence.hold(id, beat),
                    Reply::Acknowledge { still } => Word::Acknowledge { epoch, beat, still },
                    Reply::Heard => Word::Heard { epoch },
                    Reply::Record => Word::Record { record, revision },
                    Reply::AskForRecord => Word::AskForRecord,
                };
                self.send(at, id, word);
            }
            Word::Acknowledge { epoch, beat, still } => {
                self.nodes[at].fence.acknowledged(id, beat, epoch, still, now);
            }
            Word::Heard { epoch } => self.nodes[at].fence.heard(id, epoch, now),
            Word::AskForRecord => self.send(at, id, Word::Record { record, revision }),
            Word::Record { record, revision } => self.adopt(at, record, revision),
            Word::Accuse { epoch, revision, accused } => {
                self.nodes[at].fence.collect(id, &accused, epoch, revision, now);
            }
        }
    }

    fn run(&mut self, at: usize) {
        if !self.nodes[at].alive || self.nodes[at].out || self.stalled(at) {
            return;
        }
        let now = ms(self.now);
        self.nodes[at].fence.ran(now);
        for (from, word) in std::mem::take(&mut self.nodes[at].inbox) {
            if !self.nodes[at].out {
                self.hear(at, from, word);
            }
        }
        if self.nodes[at].out {
            return;
        }
        self.nodes[at].fence.ran(now);
        let epoch = self.nodes[at].known.as_ref().unwrap().0.epoch;
        let revision = self.nodes[at].known.as_ref().unwrap().1;
        if let Some((beat, to)) = self.nodes[at].fence.beat(now) {
            for (to, unheard) in to {
                self.send(at, to, Word::Heartbeat { epoch, beat, unheard });
                if let Some(beat) = self.nodes[at].fence.held(to) {
                    let still = !self.nodes[at].fence.lease().runs(now);
                    self.send(at, to, Word::Acknowledge { epoch, beat, still });
                }
            }
        }
        if !self.nodes[at].reads && !self.store_cut(at) && self.nodes[at].fence.wants_read(now) {
            self.ask(at, None, true);
        }
        if let Some((to, accused)) = self.nodes[at].fence.hand_over(now) {
            self.send(at, to, Word::Accuse { epoch, revision, accused });
        }
        self.write(at, now);
    }

    fn write(&mut self, at: usize, now: Micros) {
        if self.nodes[at].writes.is_some_and(|since| self.now - since > 3000) {
            self.nodes[at].writes = None;
        }
        if self.nodes[at].writes.is_some() || self.store_cut(at) {
            return;
        }
        let out = self.nodes[at].fence.to_write(now);
        if !out.is_empty() {
            self.nodes[at].fence.writing(out.iter().copied());
            self.ask(at, Some(out), false);
        } else if self.nodes[at].fence.takes_back(false, now) {
            self.ask(at, None, false);
        }
    }

    fn crash(&mut self) {
        let due: Vec<(Kind, usize, BTreeSet<usize>)> = self
            .faults
            .iter()
            .filter(|fault| fault.from <= self.now && matches!(fault.kind, Kind::Crash | Kind::Rack))
            .map(|fault| (fault.kind, fault.a, fault.some.clone()))
            .collect();
        for (kind, a, some) in due {
            let victims = if kind == Kind::Rack { some } else { BTreeSet::from([a]) };
            for victim in victims {
                if std::mem::replace(&mut self.nodes[victim].alive, false) {
                    self.crashed.insert(victim, self.now);
                }
            }
        }
    }

    fn tick(&mut self) {
        self.now += STEP;
        self.crash();
        let now = self.now;
        let (due, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.words).into_iter().partition(|(at, ..)| *at <= now);
        self.words = rest;
        for (_, from, to, word) in due {
            if self.nodes[to].alive {
                self.nodes[to].inbox.push((from, word));
            }
        }
        self.store();
        for at in 0..self.nodes.len() {
            self.run(at);
        }
        for at in 0..self.nodes.len() {
            if self.computes(at) && !self.record.is_member(NodeId(at as u32)) {
                self.bad = Some(format!("{} ms: node {at} computes though it is left out", self.now));
            }
        }
    }

    /// All members that live agree and compute.
    fn agreed(&self) -> bool {
        let members: Vec<usize> = self.record.members().map(|node| node.0 as usize).collect();
        members.iter().all(|at| {
            let node = &self.nodes[*at];
            let epoch = node.known.as_ref().map(|(record, _)| record.epoch);
            node.alive && epoch == Some(self.record.epoch) && self.computes(*at)
        })
    }

    fn nobody_lives(&self) -> bool {
        self.record.members().all(|node| !self.nodes[node.0 as usize].alive)
    }
}

fn faults(rng: &mut Rng, count: usize) -> Vec<Fault> {
    let one = |rng: &mut Rng| {
        let from = rng.range(500, 6000);
        let length = rng.of(&[100, 200, 300, 450, 600, 900, 1500, 3000, 3000, 10_000_000]);
        let kind = rng.of(&KINDS);
        let longest = match kind {
            Kind::All | Kind::LinksReturn | Kind::StoreCut | Kind::SlowStore | Kind::Loss => 5000,
            Kind::Stall => 1500,
            _ => u64::MAX,
        };
        let size = rng.range(1, (count as u64 / 2).max(1));
        let some = (0..size).map(|_| rng.range(0, count as u64 - 1) as usize).collect();
        let (a, b) = (rng.range(0, count as u64 - 1) as usize, rng.range(0, count as u64 - 1) as usize);
        Fault { kind, from, to: from + length.min(longest), a, b, some, dice: rng.next() }
    };
    let number = rng.range(1, 4);
    (0..number).map(|_| one(rng)).collect()
}

/// How a seed ended: an error, or the time from each crash to the record without the node.
fn run(seed: u64, breach: Breach) -> Result<Vec<u64>, String> {
    let mut world = World::new(seed, breach);
    let count = world.nodes.len();
    let passing = world.faults.iter().filter(|fault| fault.to < 1_000_000).map(|fault| fault.to + 1000).max();
    let settled = passing.unwrap_or(0).max(6000);
    let limit = 6000 + 6000 + 35_000;
    let mut quiet = 0;
    while world.now < limit && quiet < 1000 && world.bad.is_none() {
        world.tick();
        let settled = world.now > settled;
        quiet = if settled && (world.agreed() || world.nobody_lives()) { quiet + STEP } else { 0 };
    }
    let describe = || format!("seed {seed}, {count} nodes: {:?}", world.faults);
    if let Some(bad) = &world.bad {
        return Err(format!("{bad}; {}", describe()));
    }
    if quiet < 1000 {
        let members: Vec<NodeId> = world.record.members().collect();
        return Err(format!("members {members:?} do not agree; {}", describe()));
    }
    // Links that return one by one after a cut too short for anybody to notice are cuts of single nodes.
    let common = |fault: &Fault| match fault.kind {
        Kind::All | Kind::StoreCut | Kind::SlowStore => true,
        Kind::LinksReturn => fault.to - fault.from >= 500,
        _ => false,
    };
    if count > 2 && world.faults.iter().all(common) && (world.record.nodes.len() as usize) < count {
        return Err(format!("a disturbance of everybody cost a node; {}", describe()));
    }
    let delay = |(node, at): (&usize, &u64)| world.recorded.get(node).and_then(|recorded| recorded.checked_sub(*at));
    Ok(world.crashed.iter().filter_map(delay).collect())
}

fn environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn nobody_computes_who_is_left_out_and_everybody_agrees_in_the_end() {
    let (first, runs) = (environment("FTD_FENCE_FIRST", 0), environment("FTD_FENCE_RUNS", 300));
    let mut delays = Vec::new();
    let mut failed = Vec::new();
    for seed in first..first + runs {
        match run(seed, Breach::Nothing) {
            Ok(mut more) => delays.append(&mut more),
            Err(error) => failed.push(error),
        }
    }
    delays.sort_unstable();
    println!(
        "{runs} seeds; crash to record: median {:?} ms, most {:?} ms",
        delays.get(delays.len() / 2),
        delays.last()
    );
    assert!(failed.is_empty(), "{} of {runs}:\n{}", failed.len(), failed[..failed.len().min(5)].join("\n"));
}

#[test]
fn rules_that_are_broken_are_noticed() {
    // The others need what is not here: the simulation has a profile for each rule.
    let rules = [
        Breach::UnheardCounts,
        Breach::AloneAccuses,
        Breach::NothingAnew,
        Breach::AccusationLives,
        Breach::AccusedAcknowledged,
        Breach::NeverTakenBack,
        Breach::LongLease,
    ];
    let seeds = environment("FTD_FENCE_RUNS", 1000);
    let noticed = |breach: &Breach| {
        let found = (0..seeds).find_map(|seed| run(seed, *breach).err().map(|error| (seed, error)));
        println!("{breach:?}: {found:?}");
        found.is_some()
    };
    let missed: Vec<Breach> = rules.into_iter().filter(|breach| !noticed(breach)).collect();
    assert!(missed.is_empty(), "not noticed: {missed:?}");
}

#[test]
fn a_single_node_computes_for_ever() {
    let mut fence = Fence::new(NodeId(0), 1, Breach::Nothing);
    assert_eq!(fence.lease(), Lease::None);
    let record =
        first_record(Mode::Reinit, Terms::default(), 1, &[NodeId(0)], &[(SlotId(0), NodeId(0))].into(), Micros(0))
            .unwrap();
    fence.adopt(&record, Revision(1), Micros(0));
    assert_eq!(fence.lease(), Lease::Endless);
    assert_eq!(fence.beat(Micros::from_secs(1)), None);
}
