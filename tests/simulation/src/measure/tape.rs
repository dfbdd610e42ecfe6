//! What one agent was told, to be told it once more: as on a machine of its own, whose caches thousands of other agents do not
//! share. An agent is pure, so it does the same again.

use ftd_core::{Agent, Effect, Event, Micros};
use std::hint::black_box;
use std::time::Duration;

/// One agent, and what it was told since.
#[derive(Debug)]
pub struct Tape {
    agent: Agent,
    told: Vec<(Micros, Event)>,
    /// Which of these made it plan a record, in order.
    planned: Vec<usize>,
    /// So many effects it had.
    effects: usize,
}

/// What an agent's steps took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Took {
    /// Those that planned a record and wrote it.
    pub planning: Duration,
    /// All others.
    pub others: Duration,
}

impl Tape {
    pub fn new(agent: Agent) -> Self {
        Tape { agent, told: Vec::new(), planned: Vec::new(), effects: 0 }
    }

    pub fn note(&mut self, now: Micros, event: &Event) {
        self.told.push((now, event.clone()));
    }

    /// What came of what it was told last.
    pub fn did(&mut self, effects: &[Effect]) {
        self.effects += effects.len();
        if effects.iter().any(|effect| matches!(effect, Effect::Cas { .. })) {
            self.planned.extend(self.told.len().checked_sub(1));
        }
    }

    /// How long the agent takes for all of it.
    pub fn once(&self) -> Took {
        let (mut agent, told) = (self.agent.clone(), self.told.clone());
        let mut planned = self.planned.iter().peekable();
        let (mut planning, mut effects) = (Duration::ZERO, 0);
        let began = processor_time();
        for (index, (now, event)) in told.into_iter().enumerate() {
            if planned.next_if_eq(&&index).is_some() {
                let began = processor_time();
                effects += black_box(agent.step(now, event)).len();
                planning += processor_time() - began;
            } else {
                effects += black_box(agent.step(now, event)).len();
            }
        }
        let others = processor_time() - began - planning;
        assert_eq!(effects, self.effects, "an agent did something else when it was told the same");
        Took { planning, others }
    }
}

/// What this thread has had of a processor: others who run on it meanwhile do not count.
pub fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
