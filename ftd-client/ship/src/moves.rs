//! All moves: whose turn it is, and what has become of them.

use crate::fabric::Fabric;
use crate::line::Line;
use crate::moving::{Begun, Moving, PIECE};
use crate::native::{Endpoint, FabricError};
use crate::rate::Rate;
use ft_wire::ship::{Arena, Move, ToAgent};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::time::Instant;

/// So many moves to or from one node have a line at once; the others wait for theirs.
const LINES: usize = 8;

/// So many lines to one node stay open when no move needs them.
const SPARE: usize = 4;

/// Another node.
#[derive(Debug, Default)]
struct Node {
    address: Vec<u8>,
    spare: Vec<Line>,
}

/// See the module.
#[derive(Debug)]
pub struct Moves {
    /// Whose turn it is comes first.
    list: VecDeque<Moving>,
    nodes: HashMap<u32, Node>,
    rate: Rate,
    /// Nothing may be begun, for the limit's sake, before then.
    held: Option<Instant>,
}

impl Moves {
    /// None.
    pub fn new(now: Instant) -> Moves {
        Moves { list: VecDeque::new(), nodes: HashMap::new(), rate: Rate::unlimited(now), held: None }
    }

    /// Whether there is any.
    pub fn are_under_way(&self) -> bool {
        !self.list.is_empty()
    }

    /// This is the limit for all of them together.
    pub fn limit(&mut self, bytes_per_second: u64, now: Instant) {
        self.rate.set(bytes_per_second, now);
        self.held = None;
    }

    /// Where a node is. What moves to or from where it was has failed.
    ///
    /// # Errors
    /// As [`Moving::end`].
    pub fn peer(&mut self, node: u32, address: Vec<u8>, fabric: &Fabric, say: &mut Vec<ToAgent>) -> io::Result<()> {
        if self.nodes.get(&node).is_some_and(|known| known.address == address) {
            return Ok(());
        }
        self.fail(fabric, say, |moving| (moving.node == node).then(|| format!("node {node} has a new ft-ship")))?;
        self.nodes.insert(node, Node { address, spare: Vec::new() });
        Ok(())
    }

    /// A node is gone.
    ///
    /// # Errors
    /// As [`Moving::end`].
    pub fn gone(&mut self, node: u32, fabric: &Fabric, say: &mut Vec<ToAgent>) -> io::Result<()> {
        self.nodes.remove(&node);
        self.fail(fabric, say, |moving| (moving.node == node).then(|| format!("node {node} is gone")))
    }

    /// A move is not needed any more.
    ///
    /// # Errors
    /// As [`Moving::end`].
    pub fn cancel(&mut self, id: Move, fabric: &Fabric, say: &mut Vec<ToAgent>) -> io::Result<()> {
        self.fail(fabric, say, |moving| (moving.id == id).then(|| "it was cancelled".to_string()))
    }

    /// An arena is not there any more.
    ///
    /// # Errors
    /// As [`Moving::end`].
    pub fn unmapped(&mut self, arena: Arena, fabric: &Fabric, say: &mut Vec<ToAgent>) -> io::Result<()> {
        self.fail(fabric, say, |moving| (moving.arena == arena).then(|| format!("arena {arena} was taken away")))
    }

    /// Whether a node is known.
    pub fn knows(&self, node: u32) -> bool {
        self.nodes.contains_key(&node)
    }

    /// Whether there is a move of this name.
    pub fn has(&self, id: Move) -> bool {
        self.list.iter().any(|moving| moving.id == id)
    }

    /// One more.
    pub fn add(&mut self, moving: Moving) {
        self.list.push_back(moving);
    }

    /// Ends those for which there is a reason.
    fn fail(
        &mut self,
        fabric: &Fabric,
        say: &mut Vec<ToAgent>,
        reason: impl Fn(&Moving) -> Option<String>,
    ) -> io::Result<()> {
        for _ in 0..self.list.len() {
            let Some(moving) = self.list.pop_front() else { break };
            match reason(&moving) {
                Some(reason) => {
                    say.push(ToAgent::NotMoved { id: moving.id, reason });
                    moving.end(&fabric.domain)?;
                }
                None => self.list.push_back(moving),
            }
        }
        Ok(())
    }

    /// Lets libfabric work and begins what can be begun; whether something has happened.
    ///
    /// # Errors
    /// As [`Moving::end`].
    pub fn work(&mut self, now: Instant, fabric: &Fabric, say: &mut Vec<ToAgent>) -> io::Result<bool> {
        let mut busy = self.take_in(now, fabric, say)?;
        self.give_lines(fabric, say)?;
        busy |= self.begin(now, fabric, say)?;
        self.mark_those_behind();
        self.fail(fabric, say, |moving| moving.gives_up().filter(|end| *end <= now).map(|_| moving.silence()))?;
        say.extend(self.list.iter_mut().filter_map(|moving| moving.progress(now)));
        Ok(busy)
    }

    /// Takes in what has arrived.
    fn take_in(&mut self, now: Instant, fabric: &Fabric, say: &mut Vec<ToAgent>) -> io::Result<bool> {
        let mut busy = false;
        for _ in 0..self.list.len() {
            let Some(mut moving) = self.list.pop_front() else { break };
            match moving.poll(now) {
                Err(error) => {
                    say.push(ToAgent::NotMoved { id: moving.id, reason: moving.failure(error) });
                    moving.end(&fabric.domain)?;
                    busy = true;
                }
                Ok(_) if moving.is_done() => {
                    say.push(ToAgent::Moved { id: moving.id });
                    self.keep_line(&mut moving);
                    busy = true;
                }
                Ok(moved) => {
                    busy |= moved;
                    self.list.push_back(moving);
                }
            }
        }
        Ok(busy)
    }

    fn keep_line(&mut self, moving: &mut Moving) {
        if let (Some(line), Some(node)) = (moving.line.take(), self.nodes.get_mut(&moving.node))
            && node.spare.len() < SPARE
        {
            node.spare.push(line);
        }
    }

    /// Gives lines to those that have none, in their order, where there are not too many.
    fn give_lines(&mut self, fabric: &Fabric, say: &mut Vec<ToAgent>) -> io::Result<()> {
        let mut lines: HashMap<u32, usize> = HashMap::new();
        for moving in self.list.iter().filter(|moving| moving.line.is_some()) {
            *lines.entry(moving.node).or_default() += 1;
        }
        let mut failed = Vec::new();
        for moving in self.list.iter_mut().filter(|moving| moving.line.is_none()) {
            let lines = lines.entry(moving.node).or_default();
            let Some(node) = self.nodes.get_mut(&moving.node).filter(|_| *lines < LINES) else { continue };
            match node.line(fabric) {
                Ok(line) => {
                    moving.line = Some(line);
                    *lines += 1;
                }
                Err(error) => failed.push((moving.id, moving.failure(error))),
            }
        }
        for (id, reason) in failed {
            self.fail(fabric, say, |moving| (moving.id == id).then(|| reason.clone()))?;
        }
        Ok(())
    }

    /// One part of each in turn, until none can begin another one or the limit is reached.
    fn begin(&mut self, now: Instant, fabric: &Fabric, say: &mut Vec<ToAgent>) -> io::Result<bool> {
        let (mut busy, mut idle) = (false, 0);
        let longest = PIECE.min(fabric.domain.info().longest_piece());
        while idle < self.list.len() {
            self.held = self.rate.holds(now);
            let Some(mut moving) = self.list.pop_front() else { break };
            // Who has not reached the other node goes on trying: what that takes is made up for later.
            if self.held.is_some() && !moving.is_reaching() {
                idle += 1;
                self.list.push_back(moving);
                continue;
            }
            match moving.begin(self.rate.longest(longest), now) {
                Ok(Begun::Bytes(bytes)) => {
                    self.rate.spend(bytes, now);
                    (busy, idle) = (true, 0);
                }
                Ok(Begun::Nothing) => idle += 1,
                Err(error) => {
                    say.push(ToAgent::NotMoved { id: moving.id, reason: moving.failure(error) });
                    moving.end(&fabric.domain)?;
                    continue;
                }
            }
            self.list.push_back(moving);
        }
        Ok(busy)
    }

    /// Who waits for a line has waited since the last of those that have one has moved.
    fn mark_those_behind(&mut self) {
        let mut since: HashMap<u32, Option<Instant>> = HashMap::new();
        for moving in self.list.iter().filter(|moving| moving.line.is_some()) {
            let latest = since.entry(moving.node).or_insert(moving.waits_since());
            *latest = latest.zip(moving.waits_since()).map(|(a, b)| a.max(b));
        }
        for moving in self.list.iter_mut().filter(|moving| moving.line.is_none()) {
            moving.waits_behind(since.get(&moving.node).copied().flatten());
        }
    }

    /// What is waited for.
    pub fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.list.iter().filter_map(|moving| moving.line.as_ref()).map(Line::endpoint)
    }

    /// When to look again, if nothing happens.
    pub fn next_look(&self) -> Option<Instant> {
        self.list.iter().filter_map(Moving::next_look).chain(self.held).min()
    }
}

impl Node {
    fn line(&mut self, fabric: &Fabric) -> Result<Line, FabricError> {
        while let Some(mut line) = self.spare.pop() {
            // What has happened to it in the meantime.
            if line.poll(|_| {}).is_ok() {
                return Ok(line);
            }
        }
        Line::open(&fabric.domain, &self.address)
    }
}
