//! Sends parcels until they have come, and takes each once. No I/O and no clock: what is to be sent is returned, and who calls says when
//! time has passed.
//!
//! What is on its way to a node of which nothing was noted for a while goes through others, too, as the states of ftd-core do: the
//! oldest piece through all of whom one of the two ends hears, and, once it is noted by one of these ways, the others by that one. The
//! first piece of a parcel is still sent straight as well, now and then, so that a link that is whole again is used again. With whom there is no
//! connection is not waited for as long, and is answered by the way by which its own pieces come.

use crate::parcel::{Chunk, MOST, Noted, PIECE, Piece, Sending, Way};
use ftd_core::NodeId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// So many pieces to one node are under way at a time: what waits for a slow one is bounded, and a fast one never waits.
const WINDOW: usize = 8;
/// A parcel has no more pieces.
const MOST_PIECES: u32 = MOST.div_ceil(PIECE) as u32;
/// After so many looks at which nothing had been noted since the one before, a way does not seem to work. At the first one the piece may
/// just have been sent.
const SILENT: u32 = 2;
/// Likewise where there is no connection, though one that is only being made is gone round then.
const UNMET: u32 = 1;

/// A parcel that was not noted whole.
#[derive(Debug)]
struct Outgoing {
    world: u64,
    number: u64,
    body: Arc<Vec<u8>>,
    pieces: u32,
    /// The first that was never sent.
    next: u32,
    under_way: BTreeSet<u32>,
    /// Somebody waits for what it says.
    awaited: bool,
}

impl Outgoing {
    fn piece(&self, incarnation: u64, piece: u32) -> Sending {
        let Outgoing { world, number, pieces, .. } = *self;
        let data = Chunk::of(&self.body, piece);
        Sending::Piece(Piece { incarnation, world, number, piece, pieces, data })
    }
}

/// Numbers, as runs: the first and the last of each. A world of many parcels takes as much as one of few.
#[derive(Debug, Default)]
struct Runs(BTreeMap<u64, u64>);

impl Runs {
    fn contains(&self, number: u64) -> bool {
        self.0.range(..=number).next_back().is_some_and(|(_, last)| *last >= number)
    }

    fn insert(&mut self, number: u64) {
        if self.contains(number) {
            return;
        }
        let before = self.0.range(..number).next_back().filter(|(_, last)| **last + 1 == number);
        let first = before.map_or(number, |(first, _)| *first);
        let last = self.0.remove(&(number + 1)).unwrap_or(number);
        self.0.insert(first, last);
    }
}

/// What is said to one node.
#[derive(Debug, Default)]
struct Line {
    /// Of its last parcel.
    number: u64,
    parcels: VecDeque<Outgoing>,
    /// So many looks in a row nothing had been noted that was under way.
    silent: u32,
    /// The straight way did not work, and the one through this node did.
    through: Option<NodeId>,
    /// Since the last look something was sent straight, to find out whether that way works again. (What nobody takes fills a queue.)
    probes: bool,
}

impl Line {
    fn way(&self) -> Way {
        self.through.map_or(Way::Straight, Way::Through)
    }

    /// All that is under way, oldest first.
    fn under_way(&self, incarnation: u64) -> impl Iterator<Item = Sending> + '_ {
        let pieces = self.parcels.iter().flat_map(|parcel| parcel.under_way.iter().map(move |piece| (parcel, *piece)));
        pieces.map(move |(parcel, piece)| parcel.piece(incarnation, piece))
    }

    /// As much as may be under way.
    fn go_on(&mut self, to: NodeId, incarnation: u64) -> Sendings {
        let way = self.way();
        let mut room = WINDOW.saturating_sub(self.parcels.iter().map(|parcel| parcel.under_way.len()).sum());
        let mut sendings = Vec::new();
        for parcel in &mut self.parcels {
            while room > 0 && parcel.next < parcel.pieces {
                sendings.push((to, way, parcel.piece(incarnation, parcel.next)));
                if parcel.next == 0 && way != Way::Straight && !std::mem::replace(&mut self.probes, true) {
                    sendings.push((to, Way::Straight, parcel.piece(incarnation, 0)));
                }
                parcel.under_way.insert(parcel.next);
                parcel.next += 1;
                room -= 1;
            }
        }
        sendings
    }

    /// Some time has passed: what is sent again, and by which ways, when nothing of it was noted.
    fn look(&mut self, to: NodeId, (incarnation, met): (u64, bool), around: impl FnOnce() -> Vec<NodeId>) -> Sendings {
        self.probes = false;
        self.silent = if self.parcels.is_empty() { 0 } else { self.silent.saturating_add(1) };
        if self.silent < if met { SILENT } else { UNMET } {
            return Vec::new();
        }
        let mut sendings: Sendings = self.under_way(incarnation).map(|sending| (to, self.way(), sending)).collect();
        let oldest = sendings.first().map(|(.., sending)| sending.clone());
        let ways = std::iter::once(Way::Straight).chain(around().into_iter().map(Way::Through));
        let others = ways.filter(|way| *way != self.way());
        if let Some(sending) = oldest {
            sendings.extend(others.map(|way| (to, way, sending.clone())));
        }
        sendings
    }
}

/// What came of a node's agent, of one world.
#[derive(Debug, Default)]
struct Incoming {
    /// These are whole, and were delivered.
    done: Runs,
    parts: BTreeMap<u64, BTreeMap<u32, Chunk>>,
}

/// A parcel that is whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    /// Whose.
    pub from: NodeId,
    /// What it is about.
    pub world: u64,
    /// What it says, in pieces: who wants it in one copies it, which takes a while.
    pub body: Vec<Chunk>,
}

impl Delivered {
    /// How long it is.
    pub fn bytes(&self) -> usize {
        self.body.iter().map(|chunk| chunk.len()).sum()
    }

    /// All of it.
    pub fn whole(&self) -> Vec<u8> {
        self.body.iter().map(|chunk| &**chunk).collect::<Vec<_>>().concat()
    }
}

/// One agent's parcels: those that it sends and those that it gets.
#[derive(Debug)]
pub struct Post {
    incarnation: u64,
    lines: BTreeMap<NodeId, Line>,
    /// With these there is a connection.
    met: BTreeSet<NodeId>,
    incoming: BTreeMap<(u64, NodeId, u64), Incoming>,
    /// Of older worlds nothing is of interest.
    oldest: u64,
}

/// What is to be sent, to whom, and by which way.
pub type Sendings = Vec<(NodeId, Way, Sending)>;

impl Post {
    /// Of this agent.
    pub fn new(incarnation: u64) -> Post {
        let (lines, met, incoming) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Post { incarnation, lines, met, incoming, oldest: 0 }
    }

    /// Sends this; nothing when it is longer than [`MOST`], or of a world that is over. `awaited`: somebody can do nothing before it
    /// has come.
    pub fn send(&mut self, to: NodeId, world: u64, body: Arc<Vec<u8>>, awaited: bool) -> Option<Sendings> {
        if body.len() > MOST || world < self.oldest {
            return None;
        }
        let line = self.lines.entry(to).or_default();
        line.number += 1;
        let pieces = body.len().div_ceil(PIECE).max(1) as u32;
        let (number, under_way) = (line.number, BTreeSet::new());
        line.parcels.push_back(Outgoing { world, number, body, pieces, next: 0, under_way, awaited });
        Some(line.go_on(to, self.incarnation))
    }

    /// Whether something was sent and not noted.
    pub fn waits(&self) -> bool {
        self.lines.values().any(|line| !line.parcels.is_empty())
    }

    /// Whether something to this node was.
    pub fn waits_for(&self, node: NodeId) -> bool {
        self.lines.get(&node).is_some_and(|line| !line.parcels.is_empty())
    }

    /// Whether what is said to this node goes through another one, since nothing was noted straight.
    pub fn goes_round(&self, node: NodeId) -> bool {
        self.lines.get(&node).is_some_and(|line| line.through.is_some())
    }

    /// How many parcels to this node were not noted.
    pub fn length(&self, node: NodeId) -> usize {
        self.lines.get(&node).map_or(0, |line| line.parcels.len())
    }

    /// How many parcels about that world to this node were not noted.
    pub fn waiting(&self, node: NodeId, world: u64) -> usize {
        let of = |line: &Line| line.parcels.iter().filter(|parcel| parcel.world == world).count();
        self.lines.get(&node).map_or(0, of)
    }

    /// There is a new connection with this node: sends all again that was not noted, straight.
    pub fn again(&mut self, to: NodeId) -> Sendings {
        self.met.insert(to);
        let Some(line) = self.lines.get_mut(&to) else { return Vec::new() };
        line.through = None;
        line.under_way(self.incarnation).map(|sending| (to, Way::Straight, sending)).collect()
    }

    /// There is no connection with this node any more.
    pub fn lost(&mut self, node: NodeId) {
        self.met.remove(&node);
    }

    /// Some time has passed, the same each time. Where nothing was noted meanwhile the straight way does not seem to work: what waits goes
    /// again, and through those who hear one of the two, which `around` knows.
    pub fn look(&mut self, around: impl Fn(NodeId) -> Vec<NodeId>) -> Sendings {
        let (incarnation, met) = (self.incarnation, &self.met);
        let lines = self.lines.iter_mut();
        lines.flat_map(|(to, line)| line.look(*to, (incarnation, met.contains(to)), || around(*to))).collect()
    }

    /// The nodes that have noted nothing of what they were sent at so many looks in a row, and the world of the first of it for which
    /// somebody waits.
    pub fn deaf(&self, looks: u32) -> Vec<(NodeId, u64)> {
        let deaf = self.lines.iter().filter(|(_, line)| line.silent >= looks.max(SILENT));
        let first = |line: &Line| line.parcels.iter().find(|parcel| parcel.awaited).map(|parcel| parcel.world);
        deaf.filter_map(|(node, line)| Some((*node, first(line)?))).collect()
    }

    /// A piece came by this way. The parcel, when it is whole with that, and the word for its sender, which goes by the same way.
    pub fn take(&mut self, from: NodeId, way: Way, piece: Piece) -> (Option<Delivered>, Sendings) {
        if let Way::Through(node) = way
            && !self.met.contains(&from)
        {
            let line = self.lines.entry(from).or_default();
            // One that works is kept.
            if line.through.is_none() || line.silent > 0 {
                line.through = Some(node);
            }
        }
        let Piece { incarnation, world, number, piece, pieces, data } = piece;
        let noted = vec![(from, way, Sending::Noted(Noted { incarnation, world, number, piece }))];
        if world < self.oldest || pieces > MOST_PIECES || data.len() > PIECE {
            // Nobody waits for it any more.
            return (None, noted);
        }
        let incoming = self.incoming.entry((world, from, incarnation)).or_default();
        if incoming.done.contains(number) {
            return (None, noted);
        }
        let parts = incoming.parts.entry(number).or_default();
        parts.insert(piece, data);
        if parts.len() < pieces as usize {
            return (None, noted);
        }
        let parts = incoming.parts.remove(&number).unwrap_or_default();
        incoming.done.insert(number);
        (Some(Delivered { from, world, body: parts.into_values().collect() }), noted)
    }

    /// A piece has come to its receiver, by this way: others may go.
    pub fn noted(&mut self, from: NodeId, way: Way, noted: Noted) -> Sendings {
        let Noted { incarnation, world, number, piece } = noted;
        let Some(line) = self.lines.get_mut(&from).filter(|_| incarnation == self.incarnation) else {
            return Vec::new();
        };
        let mut parcels = line.parcels.iter_mut();
        let parcel = parcels.find(|parcel| parcel.number == number && parcel.world == world);
        if !parcel.is_some_and(|parcel| parcel.under_way.remove(&piece)) {
            // It has come by another way before. That it comes straight is news where it did not.
            if way == Way::Straight {
                line.through = None;
            }
            return Vec::new();
        }
        line.parcels.retain(|parcel| parcel.next < parcel.pieces || !parcel.under_way.is_empty());
        let silent = std::mem::take(&mut line.silent);
        let before = line.way();
        line.through = match way {
            Way::Straight => None,
            // What still comes by a detour says nothing of a straight way that works.
            Way::Through(_) if before == Way::Straight && silent < SILENT && self.met.contains(&from) => None,
            Way::Through(node) => Some(node),
        };
        let way = line.way();
        // What went by the way that does not work waits for nothing.
        let again = (way != before).then(|| line.under_way(self.incarnation).map(|sending| (from, way, sending)));
        let mut sendings: Sendings = again.into_iter().flatten().collect();
        sendings.extend(line.go_on(from, self.incarnation));
        sendings
    }

    /// Of worlds before this one nothing is sent or taken any more.
    pub fn forget_before(&mut self, world: u64) -> Sendings {
        self.oldest = self.oldest.max(world);
        let (oldest, incarnation) = (self.oldest, self.incarnation);
        self.incoming.retain(|(world, ..), _| *world >= oldest);
        let mut sendings = Vec::new();
        for (to, line) in &mut self.lines {
            line.parcels.retain(|parcel| parcel.world >= oldest);
            sendings.extend(line.go_on(*to, incarnation));
        }
        sendings
    }

    /// This node has left the job, and never comes back: nothing is sent to it, and nothing of it kept.
    pub fn forget(&mut self, node: NodeId) {
        self.lines.remove(&node);
        self.lines.values_mut().filter(|line| line.through == Some(node)).for_each(|line| line.through = None);
        self.met.remove(&node);
        self.incoming.retain(|(_, from, _), _| *from != node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ONE: NodeId = NodeId(1);
    const TWO: NodeId = NodeId(2);
    /// Those who hear one of the two.
    const AROUND: [NodeId; 3] = [NodeId(7), NodeId(8), NodeId(9)];

    /// Two agents and what is under way between them.
    struct Pair {
        one: Post,
        two: Post,
        way: Vec<(NodeId, NodeId, Way, Sending)>,
        got: Vec<Vec<u8>>,
        /// By these ways nothing arrives.
        cut: BTreeSet<Way>,
        /// What went by each of the others.
        went: BTreeMap<Way, usize>,
    }

    impl Pair {
        fn new() -> Pair {
            let (cut, went) = (BTreeSet::new(), BTreeMap::new());
            let (mut one, mut two) = (Post::new(10), Post::new(20));
            one.again(TWO);
            two.again(ONE);
            Pair { one, two, way: Vec::new(), got: Vec::new(), cut, went }
        }

        fn put(&mut self, from: NodeId, sendings: Sendings) {
            self.way.extend(sendings.into_iter().map(|(to, way, sending)| (from, to, way, sending)));
        }

        fn send(&mut self, body: Vec<u8>) {
            let sendings = self.one.send(TWO, 1, body.into(), true).unwrap();
            self.put(ONE, sendings);
        }

        fn arrives(&mut self, at: usize) {
            let (from, to, way, sending) = self.way.remove(at);
            if self.cut.contains(&way) {
                return;
            }
            *self.went.entry(way).or_default() += 1;
            let post = if to == ONE { &mut self.one } else { &mut self.two };
            let sendings = match sending {
                Sending::Piece(piece) => {
                    let (delivered, sendings) = post.take(from, way, piece);
                    self.got.extend(delivered.map(|delivered| delivered.whole()));
                    sendings
                }
                Sending::Noted(noted) => post.noted(from, way, noted),
            };
            self.put(to, sendings);
        }

        fn all_arrives(&mut self) {
            while !self.way.is_empty() {
                self.arrives(0);
            }
        }

        fn looks(&mut self) {
            let sendings = self.one.look(|_| AROUND.to_vec());
            self.put(ONE, sendings);
        }
    }

    fn body(seed: usize, bytes: usize) -> Vec<u8> {
        let mut body = vec![seed as u8; bytes];
        (0..bytes).step_by(4099).for_each(|at| body[at] = (at / 4099 * 31 + seed) as u8);
        body
    }

    #[test]
    fn a_long_one_goes_in_pieces_of_which_few_are_under_way() {
        let mut pair = Pair::new();
        let long = body(3, 20 * PIECE + 5);
        pair.send(long.clone());
        assert_eq!(pair.way.len(), WINDOW);
        pair.all_arrives();
        assert_eq!((pair.got, pair.one.waits()), (vec![long], false));
        assert!(pair.one.send(TWO, 1, vec![0; MOST + 1].into(), true).is_none());
    }

    #[test]
    fn of_a_world_that_is_over_nothing_is_sent_and_nothing_taken() {
        let mut pair = Pair::new();
        pair.send(body(1, 3 * PIECE));
        let late = pair.way.clone();
        pair.one.forget_before(2);
        assert!(!pair.one.waits() && pair.one.send(TWO, 1, vec![1].into(), true).is_none());
        pair.two.forget_before(2);
        pair.way = late;
        pair.all_arrives();
        assert!(pair.got.is_empty() && pair.two.incoming.is_empty());
    }

    #[test]
    fn a_world_of_many_parcels_takes_as_much_as_one_of_few() {
        let mut runs = Runs::default();
        for number in [5, 3, 4, 9, 1, 2, 7, 8, 3] {
            runs.insert(number);
        }
        assert_eq!(runs.0, BTreeMap::from([(1, 5), (7, 9)]));
        let there: Vec<u64> = (0..12).filter(|number| runs.contains(*number)).collect();
        assert_eq!(there, [1, 2, 3, 4, 5, 7, 8, 9]);
        let mut pair = Pair::new();
        for _ in 0..1000 {
            pair.send(vec![1]);
            pair.all_arrives();
        }
        assert!(pair.two.incoming.values().all(|incoming| incoming.done.0.len() == 1));
    }

    #[test]
    fn another_agent_of_a_node_begins_anew() {
        let mut pair = Pair::new();
        pair.send(vec![1]);
        pair.all_arrives();
        pair.one = Post::new(11);
        pair.send(vec![2]);
        pair.all_arrives();
        assert_eq!(pair.got, [vec![1], vec![2]]);
    }

    #[test]
    fn of_a_node_that_has_left_nothing_is_kept_and_nothing_repeated() {
        let mut pair = Pair::new();
        pair.send(body(1, 3 * PIECE));
        // One piece of three came.
        pair.arrives(0);
        pair.one.forget(TWO);
        pair.two.forget(ONE);
        assert!(!pair.one.waits() && pair.two.incoming.is_empty());
        for _ in 0..4 {
            assert!(pair.one.look(|_| AROUND.to_vec()).is_empty());
        }
        assert!(pair.one.again(TWO).is_empty() && pair.one.deaf(1).is_empty());
    }

    #[test]
    fn while_something_is_noted_nothing_goes_twice_however_slow_it_is() {
        let mut pair = Pair::new();
        pair.send(body(1, 20 * PIECE));
        let mut arrived = 0;
        while !pair.way.is_empty() {
            // A piece, and the word that it came.
            pair.arrives(0);
            pair.arrives(pair.way.len() - 1);
            arrived += 1;
            pair.looks();
        }
        assert_eq!((arrived, pair.got.len(), pair.went.len()), (20, 1, 1));
    }

    #[test]
    fn once_a_detour_works_all_goes_by_it_and_straight_again_when_that_works() {
        let mut pair = Pair::new();
        pair.cut = BTreeSet::from([Way::Straight, Way::Through(AROUND[0]), Way::Through(AROUND[2])]);
        pair.send(body(1, 30 * PIECE));
        (0..2).for_each(|_| {
            pair.all_arrives();
            pair.looks();
        });
        // The oldest piece is tried by all ways, and nothing else goes by more than one.
        let detours = pair.way.iter().filter(|(.., way, _)| *way != Way::Straight).count();
        assert_eq!(detours, AROUND.len());
        pair.all_arrives();
        assert_eq!((pair.got.len(), pair.one.waits(), pair.one.goes_round(TWO)), (1, false, true));
        assert_eq!(pair.went, BTreeMap::from([(Way::Through(AROUND[1]), 60)]));
        pair.cut.clear();
        pair.cut.insert(Way::Through(AROUND[1]));
        pair.send(body(2, 30 * PIECE));
        // The first piece of it goes straight, too.
        pair.all_arrives();
        assert!(!pair.one.goes_round(TWO));
        (0..2).for_each(|_| {
            pair.looks();
            pair.all_arrives();
        });
        assert_eq!((pair.got.len(), pair.one.waits(), pair.one.lines[&TWO].through), (2, false, None));
    }

    #[test]
    fn who_has_no_connection_is_reached_after_one_look_and_answers_by_the_same_way() {
        let mut pair = Pair::new();
        pair.cut = BTreeSet::from([Way::Straight]);
        pair.one.lost(TWO);
        pair.two.lost(ONE);
        pair.send(body(1, 3 * PIECE));
        pair.all_arrives();
        pair.looks();
        pair.all_arrives();
        assert_eq!((pair.got.len(), pair.one.waits(), pair.one.goes_round(TWO)), (1, false, true));
        let answer = pair.two.send(ONE, 1, vec![1].into(), true).unwrap();
        let ways: Vec<Way> = answer.iter().map(|(_, way, _)| *way).collect();
        assert_eq!(ways, [Way::Through(AROUND[0]), Way::Straight]);
        let again = pair.two.send(ONE, 1, vec![2].into(), true).unwrap();
        assert_eq!(again.len(), 1, "the straight way was tried since the last look");
        pair.two.forget(AROUND[0]);
        assert!(!pair.two.goes_round(ONE), "by whom nothing goes any more");
        pair.one.again(TWO);
        pair.two.again(ONE);
        assert!(!pair.one.goes_round(TWO) && !pair.two.goes_round(ONE));
    }

    #[test]
    fn a_node_that_notes_nothing_by_any_way_is_named_when_somebody_waits_for_it() {
        let mut pair = Pair::new();
        pair.one.send(TWO, 1, vec![1].into(), false);
        (0..9).for_each(|_| pair.looks());
        assert!(pair.one.deaf(9).is_empty(), "nobody waits for it");
        pair.one.send(TWO, 4, vec![1].into(), true);
        assert_eq!((pair.one.deaf(9), pair.one.deaf(10)), (vec![(TWO, 4)], vec![]));
        pair.all_arrives();
        assert!(pair.one.deaf(0).is_empty() && pair.one.waits());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn whatever_is_lost_doubled_or_late_and_every_way_but_one_cut_each_comes_once(
            sizes in proptest::collection::vec(prop_oneof![9 => 0..3 * PIECE, 1 => 0..20 * PIECE], 1..6),
            acts in proptest::collection::vec((any::<prop::sample::Index>(), 0..5), 0..60),
            open in 0..=AROUND.len(),
        ) {
            let mut pair = Pair::new();
            let ways: Vec<Way> =
                std::iter::once(Way::Straight).chain(AROUND.into_iter().map(Way::Through)).collect();
            pair.cut = ways.iter().copied().filter(|way| *way != ways[open]).collect();
            let bodies: Vec<Vec<u8>> = sizes.iter().enumerate().map(|(seed, bytes)| body(seed, *bytes)).collect();
            bodies.iter().for_each(|body| pair.send(body.clone()));
            for (at, act) in acts {
                if pair.way.is_empty() {
                    break;
                }
                let at = at.index(pair.way.len());
                match act {
                    0 => drop(pair.way.remove(at)),
                    1 => {
                        let doubled = pair.way[at].clone();
                        pair.way.push(doubled);
                    }
                    2 => pair.looks(),
                    _ => pair.arrives(at),
                }
            }
            // What was lost is sent again. One look is before anything is tried otherwise, for each time.
            for _ in 0..2 * (SILENT as usize) {
                pair.looks();
                pair.all_arrives();
            }
            prop_assert!(!pair.one.waits());
            let mut got = pair.got;
            let mut sent = bodies;
            got.sort();
            sent.sort();
            prop_assert!(got == sent, "{} parcels came of {}", got.len(), sent.len());
        }
    }
}
