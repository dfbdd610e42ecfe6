//! The application's network: heartbeats, the tree, checkpoints and MPI all use it (DESIGN §5). Per direction it cuts,
//! drops, doubles, delays and reorders.

use crate::rng::{Rng, mix};

/// Some of the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set {
    /// All.
    All,
    /// Node `i` where bit `i` is set.
    Some(u64),
    /// One, of however many.
    One(u32),
}

impl Set {
    pub fn one(node: usize) -> Self {
        if node < 64 { Set::Some(1 << node) } else { Set::One(node as u32) }
    }

    pub fn of(nodes: impl IntoIterator<Item = usize>) -> Self {
        Set::Some(nodes.into_iter().fold(0, |set, node| set | 1 << node))
    }

    pub fn has(self, node: usize) -> bool {
        match self {
            Set::All => true,
            Set::Some(bits) => node < 64 && bits >> node & 1 == 1,
            Set::One(one) => node == one as usize,
        }
    }

    pub fn len(self, nodes: usize) -> usize {
        (0..nodes).filter(|node| self.has(*node)).count()
    }
}

/// What a packet is, for those who let only some through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A heartbeat, or its acknowledgement.
    Beat,
    /// Another datagram of a few bytes.
    Small,
    /// Whatever is larger than the smallest frame.
    Large,
}

/// What stands in the way of packets for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Barrier {
    /// Nothing passes from the first to the second.
    Cut { from: Set, to: Set },
    /// Nothing passes between these and all others.
    Island(Set),
    /// A switch restarts: nothing passes at all; when it is over, ports return one by one within `spread`.
    Ports { spread: u64, draw: u64 },
    /// Likewise, and links between two nodes return one by one.
    Links { spread: u64, draw: u64 },
    /// So many of a thousand packets are lost.
    Loss(u64),
    /// So many of a thousand packets take up to this long.
    Slow { share: u64, up_to: u64 },
    /// What is large is lost on its way to these: somebody has set a wrong frame size.
    Frames { to: Set },
    /// Heartbeats and their acknowledgements from the first to the second take so much longer.
    Late { from: Set, to: Set, by: u64 },
}

/// What every packet meets, faults apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Weather {
    /// Per mille of datagrams that are lost.
    pub drop: u64,
    /// Per mille of datagrams that come twice.
    pub double: u64,
    /// No packet takes much longer than others do.
    pub even: bool,
}

/// So many of a thousand packets are late, and by so much at most.
const LATE: u64 = 20;
pub const LATEST: u64 = 20_000;

#[derive(Debug, Clone, Copy)]
struct Standing {
    from: u64,
    until: u64,
    barrier: Barrier,
}

#[derive(Debug)]
pub struct Net {
    weather: Weather,
    standing: Vec<Standing>,
    rng: Rng,
}

impl Net {
    pub fn new(weather: Weather, rng: Rng) -> Self {
        Net { weather, standing: Vec::new(), rng }
    }

    pub fn raise(&mut self, barrier: Barrier, from: u64, until: u64) {
        self.standing.push(Standing { from, until, barrier });
    }

    /// Everything passes again.
    pub fn heal(&mut self) {
        self.standing.clear();
    }

    /// Whether a packet that is on its way from one node to the other at this moment gets through.
    pub fn passes(&mut self, from: usize, to: usize, kind: Kind, now: u64) -> bool {
        if from == to {
            return true;
        }
        let mut lost = 0;
        for standing in &self.standing {
            if standing.from <= now && standing.stops(from, to, kind, now) {
                return false;
            }
            if let (Barrier::Loss(share), true) = (standing.barrier, standing.from <= now && now < standing.until) {
                lost = lost.max(share);
            }
        }
        lost == 0 || !self.rng.chance(lost)
    }

    /// How long a packet takes.
    pub fn delay(&mut self, now: u64) -> u64 {
        let slow =
            self.standing.iter().filter(|standing| standing.from <= now && now < standing.until).find_map(|standing| {
                match standing.barrier {
                    Barrier::Slow { share, up_to } => Some((share, up_to)),
                    _ => None,
                }
            });
        if let Some((_, up_to)) = slow.filter(|(share, _)| self.rng.chance(*share)) {
            return self.rng.range(50, up_to.max(50));
        }
        if !self.weather.even && self.rng.chance(LATE) { self.rng.range(500, LATEST) } else { self.rng.range(50, 500) }
    }

    /// The delays after which a datagram arrives: none when it is lost, two when it comes twice.
    pub fn datagram(&mut self, from: usize, to: usize, kind: Kind, now: u64) -> [Option<u64>; 2] {
        if !self.passes(from, to, kind, now) || self.rng.chance(self.weather.drop) {
            return [None, None];
        }
        let late = if kind == Kind::Beat { self.late(from, to, now) } else { 0 };
        let again = self.rng.chance(self.weather.double).then(|| late + self.delay(now));
        [Some(late + self.delay(now)), again]
    }

    fn late(&self, from: usize, to: usize, now: u64) -> u64 {
        let standing = self.standing.iter().filter(|standing| standing.from <= now && now < standing.until);
        let late = standing.map(|standing| match standing.barrier {
            Barrier::Late { from: these, to: those, by } if these.has(from) && those.has(to) => by,
            _ => 0,
        });
        late.max().unwrap_or(0)
    }
}

impl Standing {
    fn stops(&self, from: usize, to: usize, kind: Kind, now: u64) -> bool {
        let back = |spread: u64, draw: u64, of: u64| self.until + mix(draw ^ (of + 1)) % (spread + 1);
        match self.barrier {
            Barrier::Cut { from: these, to: those } => now < self.until && these.has(from) && those.has(to),
            Barrier::Frames { to: these } => now < self.until && these.has(to) && kind == Kind::Large,
            Barrier::Island(island) => now < self.until && island.has(from) != island.has(to),
            Barrier::Ports { spread, draw } => {
                now < back(spread, draw, from as u64) || now < back(spread, draw, to as u64)
            }
            Barrier::Links { spread, draw } => {
                let link = (from.min(to) as u64) << 32 | from.max(to) as u64;
                now < back(spread, draw, link)
            }
            Barrier::Loss(_) | Barrier::Slow { .. } | Barrier::Late { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_has_a_direction_and_an_island_has_two() {
        let mut net = Net::new(Weather::default(), Rng::of(1, 0));
        net.raise(Barrier::Cut { from: Set::one(0), to: Set::one(1) }, 10, 20);
        net.raise(Barrier::Island(Set::of([0, 1])), 30, 40);
        let mut passes = |from, to, now| net.passes(from, to, Kind::Large, now);
        assert!(!passes(0, 1, 15) && passes(1, 0, 15) && passes(0, 1, 20) && passes(0, 1, 5));
        assert!(passes(0, 1, 35) && !passes(1, 2, 35) && !passes(2, 0, 35) && passes(2, 3, 35));
    }

    #[test]
    fn only_what_is_large_is_too_large() {
        let mut net = Net::new(Weather::default(), Rng::of(1, 0));
        net.raise(Barrier::Frames { to: Set::one(1) }, 0, 20);
        let mut passes = |to, kind| net.passes(0, to, kind, 10);
        assert!(passes(1, Kind::Beat) && passes(1, Kind::Small) && !passes(1, Kind::Large) && passes(2, Kind::Large));
    }

    #[test]
    fn ports_return_one_by_one() {
        let mut net = Net::new(Weather::default(), Rng::of(1, 0));
        net.raise(Barrier::Ports { spread: 1000, draw: 7 }, 0, 5000);
        let pairs = || (0..6).flat_map(|a| (0..6).filter(move |b| a != *b).map(move |b| (a, b)));
        assert!(pairs().all(|(a, b)| !net.passes(a, b, Kind::Beat, 4999)));
        let open = pairs().filter(|(a, b)| net.passes(*a, *b, Kind::Beat, 5500)).count();
        assert!(open > 0 && open < 30, "{open}");
        assert!(pairs().all(|(a, b)| net.passes(a, b, Kind::Beat, 6001)));
    }
}
