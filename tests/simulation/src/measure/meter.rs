//! What the agents did since the counting began.

use super::costs::{Costs, Each, median};
use super::table::Column;
use super::tape::{Tape, Took};
use crate::driver;
use crate::node::Machine;
use ftd_core::{Effect, Event, Micros, PeerMessage};
use std::collections::BTreeMap;
use std::time::Duration;

/// What one node's agent did.
#[derive(Debug, Default, Clone, Copy)]
struct Count {
    messages: u64,
    beats: u64,
    bytes: u64,
    longest: u64,
    records: u64,
    requests: u64,
}

/// Counts of all nodes, and tapes of some.
#[derive(Debug, Default)]
pub struct Meter {
    counts: Vec<Count>,
    tapes: BTreeMap<usize, Tape>,
    /// Those of the tapes that stand for all nodes.
    drawn: Vec<usize>,
}

/// Of so many nodes the processor time is measured.
const DRAWN: usize = 100;
/// Besides the lowest: the tree's root, its children, and some of theirs.
const LOWEST: usize = 24;

impl Meter {
    /// Begins to count.
    pub fn new(machines: &[Machine]) -> Self {
        let nodes = machines.len();
        let step = nodes.div_ceil(DRAWN);
        let drawn: Vec<usize> = (step / 2..nodes).step_by(step).collect();
        let taped = drawn.iter().copied().chain(0..LOWEST.min(nodes));
        let tape = |node: usize| Some((node, Tape::new(machines[node].agent.clone()?)));
        Meter { counts: vec![Count::default(); nodes], tapes: taped.filter_map(tape).collect(), drawn }
    }

    /// The agent of `node` is told this.
    pub fn hears(&mut self, node: usize, now: Micros, event: &Event) {
        if let Some(tape) = self.tapes.get_mut(&node) {
            tape.note(now, event);
        }
    }

    /// … and wants that done.
    pub fn wants(&mut self, node: usize, effects: &[Effect]) {
        if let Some(tape) = self.tapes.get_mut(&node) {
            tape.did(effects);
        }
        let Some(count) = self.counts.get_mut(node) else { return };
        for effect in effects {
            match effect {
                Effect::Send { message, .. } => count.sends(message),
                Effect::ReadStore | Effect::Cas { .. } => count.requests += 1,
                _ => {}
            }
        }
    }

    /// What all of it cost, but for processor time.
    pub fn costs(&self) -> Costs {
        let mut costs = Costs::default();
        type Reads = fn(&Count) -> f64;
        let columns: [(Column, Reads); 6] = [
            (Column::Messages, |count| count.messages as f64),
            (Column::Beats, |count| count.beats as f64),
            (Column::Kilobytes, |count| count.bytes as f64 / 1e3),
            (Column::Longest, |count| count.longest as f64 / 1e3),
            (Column::Records, |count| count.records as f64 / 1e3),
            (Column::Requests, |count| count.requests as f64),
        ];
        for (column, of) in columns {
            costs.put(column, Each::of(self.counts.iter().map(of)));
        }
        costs
    }

    /// The tapes, to be played.
    pub fn tapes(self) -> Tapes {
        let played = self.tapes.keys().map(|node| (*node, Vec::new())).collect();
        Tapes { tapes: self.tapes, drawn: self.drawn, played }
    }
}

/// Tapes of some agents, and what playing them took.
#[derive(Debug, Default)]
pub struct Tapes {
    tapes: BTreeMap<usize, Tape>,
    drawn: Vec<usize>,
    played: BTreeMap<usize, Vec<Took>>,
}

impl Tapes {
    /// Plays each once.
    pub fn play(&mut self) {
        for (node, tape) in &self.tapes {
            self.played.entry(*node).or_default().push(tape.once());
        }
    }

    /// What it took, of each tape the median.
    pub fn took(&self, costs: &mut Costs) {
        let ms = |of: fn(&Took) -> Duration| {
            let each = |(node, played): (&usize, &Vec<Took>)| {
                (*node, median(played.iter().map(|took| of(took).as_secs_f64() * 1e3)))
            };
            let spent: BTreeMap<usize, f64> = self.played.iter().map(each).collect();
            let mean = Each::of(self.drawn.iter().filter_map(|node| spent.get(node).copied())).mean;
            Each { mean, most: Each::of(spent.into_values()).most }
        };
        costs.put(Column::Processor, ms(|took| took.others));
        costs.put(Column::Planning, ms(|took| took.planning));
    }
}

impl Count {
    fn sends(&mut self, message: &PeerMessage) {
        let bytes = driver::size(message);
        match message {
            PeerMessage::Heartbeat { .. } | PeerMessage::Acknowledge { .. } | PeerMessage::Heard { .. } => {
                self.beats += 1;
                self.bytes += bytes;
            }
            PeerMessage::Record { .. } => {
                self.messages += 1;
                self.records += bytes;
            }
            _ => {
                self.messages += 1;
                self.bytes += bytes;
                self.longest = self.longest.max(bytes);
            }
        }
    }
}
