//! The agent's state machine: [`Agent::step`] takes the time and one event and returns what is to be done.

mod event;

pub use event::{Effect, Event, Exit, JobConfig};

use crate::ids::{Micros, NodeId, Revision};
use crate::record::EpochRecord;

/// One agent of a job.
#[derive(Debug, Clone)]
pub struct Agent {
    me: NodeId,
    config: JobConfig,
    record: Option<EpochRecord>,
    revision: Revision,
}

impl Agent {
    /// The agent of node `me`.
    pub fn new(me: NodeId, config: JobConfig) -> Self {
        Agent { me, config, record: None, revision: Revision(0) }
    }

    /// The newest record read or written.
    pub fn record(&self) -> Option<&EpochRecord> {
        self.record.as_ref()
    }

    /// Takes one event at the time `now` and returns what is to be done, in order.
    pub fn step(&mut self, now: Micros, event: Event) -> Vec<Effect> {
        let _ = (now, self.me, &self.config, self.revision);
        match event {
            Event::Start { .. } => vec![Effect::ReadStore],
            _ => Vec::new(),
        }
    }
}
