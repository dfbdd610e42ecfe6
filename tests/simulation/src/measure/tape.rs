//! What one agent was told, to be told it once more: as on a machine of its own, whose caches thousands of other agents do not
//! share. An agent is pure, so it does the same again.

use ftd_core::{Agent, Event, Micros};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// The least of so many counts: nothing else that runs on this machine makes a step quicker.
const TIMES: usize = 7;

/// One agent, and what it was told since.
#[derive(Debug)]
pub struct Tape {
    agent: Agent,
    told: Vec<(Micros, Event)>,
    /// So many effects it had.
    pub effects: usize,
}

impl Tape {
    pub fn new(agent: Agent) -> Self {
        Tape { agent, told: Vec::new(), effects: 0 }
    }

    pub fn note(&mut self, now: Micros, event: &Event) {
        self.told.push((now, event.clone()));
    }

    /// How long the agent takes for all of it.
    pub fn replay(&self) -> Duration {
        let once = |_| {
            let (mut agent, told) = (self.agent.clone(), self.told.clone());
            let began = Instant::now();
            let effects: usize = told.into_iter().map(|(now, event)| black_box(agent.step(now, event)).len()).sum();
            let took = began.elapsed();
            debug_assert_eq!(effects, self.effects, "an agent did something else when it was told the same");
            took
        };
        (0..TIMES).map(once).min().unwrap_or_default()
    }
}
