//! One move.

use crate::line::{Ends, Line};
use crate::native::{Domain, FabricError};
use crate::plan::Plan;
use ft_wire::ship::{Arena, Direction, Move, ToAgent};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// A part is this long at the most.
pub const PIECE: u64 = 1 << 20;

/// Between two words on how far it is.
const SAID: Duration = Duration::from_millis(250);

/// Until the other node is reached it is tried this often.
const TRY: Duration = Duration::from_millis(2);

/// What came of an attempt to begin a part.
#[derive(Debug, PartialEq, Eq)]
pub enum Begun {
    /// So many bytes are on their way.
    Bytes(u64),
    /// There is nothing to begin, or no room for it now.
    Nothing,
}

/// See the module.
#[derive(Debug)]
pub struct Moving {
    /// Its name.
    pub id: Move,
    /// The other node.
    pub node: u32,
    /// This node's arena.
    pub arena: Arena,
    ends: Ends,
    patience: Duration,
    plan: Plan,
    /// None, as long as too many others are under way.
    pub line: Option<Line>,
    /// Since when it waits for the other node, and nothing of it has moved.
    waits_since: Option<Instant>,
    /// The provider has not taken a part: it is not tried before.
    not_before: Option<Instant>,
    said: (Instant, u64),
}

impl Moving {
    /// Nothing of it has moved yet.
    pub fn new(id: Move, node: u32, arena: Arena, ends: Ends, patience: Duration, now: Instant) -> Moving {
        let plan = Plan::new(ends.slice.len() as u64);
        Moving {
            id,
            node,
            arena,
            ends,
            patience,
            plan,
            line: None,
            waits_since: None,
            not_before: None,
            said: (now, 0),
        }
    }

    /// Whether all of it has moved.
    pub fn is_done(&self) -> bool {
        self.plan.is_done()
    }

    /// Whether the provider has refused a part of it, and nothing is under way.
    pub fn is_reaching(&self) -> bool {
        self.not_before.is_some()
    }

    /// Lets libfabric work; whether something has moved.
    ///
    /// # Errors
    /// A part has failed.
    pub fn poll(&mut self, now: Instant) -> Result<bool, FabricError> {
        let Some(line) = &mut self.line else { return Ok(false) };
        let before = self.plan.bytes_arrived();
        line.poll(|part| self.plan.arrived(part))?;
        let moved = self.plan.bytes_arrived() > before;
        if moved {
            self.waits_since = self.plan.is_under_way().then_some(now);
        }
        Ok(moved)
    }

    /// Begins its next part, of at most so many bytes.
    ///
    /// # Errors
    /// It cannot be begun at all.
    pub fn begin(&mut self, most: u64, now: Instant) -> Result<Begun, FabricError> {
        let Some(line) = &mut self.line else { return Ok(Begun::Nothing) };
        if self.not_before.is_some_and(|then| now < then) {
            return Ok(Begun::Nothing);
        }
        let Some(part) = self.plan.next(most) else { return Ok(Begun::Nothing) };
        let taken = line.start(part, &self.ends)?;
        self.waits_since.get_or_insert(now);
        if !taken {
            // With parts under way it is their return that makes room.
            self.not_before = (!self.plan.is_under_way()).then(|| now + TRY);
            return Ok(Begun::Nothing);
        }
        self.not_before = None;
        self.plan.begun(part);
        Ok(Begun::Bytes(part.bytes))
    }

    /// It has no line because others wait for the same node, of which nothing has moved since then.
    pub fn waits_behind(&mut self, others_since: Option<Instant>) {
        self.waits_since = others_since.map(|since| self.waits_since.map_or(since, |own| own.max(since)));
    }

    /// Since when nothing of it has moved that should have.
    pub fn waits_since(&self) -> Option<Instant> {
        self.waits_since
    }

    /// When it has failed.
    pub fn gives_up(&self) -> Option<Instant> {
        self.waits_since.map(|since| since + self.patience)
    }

    /// Why it has failed then.
    pub fn silence(&self) -> String {
        let (way, Moving { node, .. }) = (self.way(), self);
        format!("nothing has moved {way} node {node} for {} ms", self.patience.as_millis())
    }

    /// Why it has failed.
    pub fn failure(&self, error: FabricError) -> String {
        format!("moving {} node {} failed: {error}", self.way(), self.node)
    }

    fn way(&self) -> &'static str {
        match self.ends.direction {
            Direction::Put => "to",
            Direction::Get => "from",
        }
    }

    /// When to look at it again, if nothing happens.
    pub fn next_look(&self) -> Option<Instant> {
        [self.gives_up(), self.not_before].into_iter().flatten().min()
    }

    /// How far it is, when it is time to say so.
    pub fn progress(&mut self, now: Instant) -> Option<ToAgent> {
        let bytes = self.plan.bytes_arrived();
        if bytes == self.said.1 || now < self.said.0 + SAID {
            return None;
        }
        self.said = (now, bytes);
        Some(ToAgent::Progress { id: self.id, bytes })
    }

    /// It has failed or is not needed any more: nothing of it is under way afterwards, nor does anything come late into this node's
    /// memory.
    ///
    /// # Errors
    /// Only the end of this process would see to that.
    pub fn end(self, domain: &Domain) -> io::Result<()> {
        let gets = self.ends.direction == Direction::Get && self.plan.is_under_way();
        drop(self.line);
        drop(self.ends.region);
        // Some providers have the other process write into this one's memory.
        if gets { domain.retire(Rc::clone(self.ends.slice.map())) } else { Ok(()) }
    }
}
