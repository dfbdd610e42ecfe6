//! What has happened in a job: its agent remembers the newest of it, and so does the launcher for the agent that comes after that one.

use crate::ask::Event;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// So many events are remembered.
pub const MOST: usize = 128;

/// The newest events, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct History {
    events: VecDeque<Event>,
    /// So many there were before those.
    forgotten: u64,
}

impl History {
    /// One more.
    pub fn add(&mut self, event: Event) {
        if self.events.len() == MOST {
            self.events.pop_front();
            self.forgotten += 1;
        }
        self.events.push_back(event);
    }

    /// Those that are remembered.
    pub fn iter(&self) -> impl Iterator<Item = &Event> {
        self.events.iter()
    }

    /// The number of the next one: they are numbered from 0 on, forgotten or not.
    pub fn next(&self) -> u64 {
        self.forgotten + self.events.len() as u64
    }

    /// Those from this number on.
    pub fn since(&self, number: u64) -> impl Iterator<Item = &Event> {
        let old = usize::try_from(number.saturating_sub(self.forgotten)).unwrap_or(usize::MAX);
        self.events.iter().skip(old)
    }
}
