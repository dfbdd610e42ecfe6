//! The agent's view of the store: what was asked and not answered yet.

use crate::ids::{Micros, Revision};
use crate::record::EpochRecord;
use std::sync::Arc;

/// What the store was asked last.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
enum Asked {
    #[default]
    Nothing,
    Read(Micros),
    Write(Arc<EpochRecord>),
}

/// This agent's view of the store.
#[derive(Debug, Clone, Default)]
pub(super) struct Store {
    /// The newest revision that is known.
    pub revision: Revision,
    asked: Asked,
    wanted: bool,
    /// A linearizable read was answered: what the key was when this agent began is known.
    pub began: bool,
    /// Unreachable since.
    pub down: Option<Micros>,
    retry_at: Micros,
}

impl Store {
    /// The record is to be read.
    pub fn want(&mut self) {
        self.wanted = true;
    }

    /// Whether it is to be read now.
    pub fn reads(&mut self, now: Micros) -> bool {
        let reads = self.wanted && self.asked == Asked::Nothing && now >= self.retry_at;
        if reads {
            self.wanted = false;
            self.asked = Asked::Read(now);
        }
        reads
    }

    /// Whether something can be written now.
    pub fn is_idle(&self, now: Micros) -> bool {
        self.asked == Asked::Nothing && !self.wanted && now >= self.retry_at
    }

    /// This is being written.
    pub fn writes(&mut self, record: Arc<EpochRecord>) {
        self.asked = Asked::Write(record);
    }

    /// An answer came; whether the store had been unreachable.
    pub fn answered(&mut self) -> bool {
        self.down.take().is_some()
    }

    /// The read was answered: when it had been asked for.
    pub fn read(&mut self) -> Option<Micros> {
        self.began = true;
        match std::mem::take(&mut self.asked) {
            Asked::Read(at) => Some(at),
            other => {
                self.asked = other;
                None
            }
        }
    }

    /// The write was answered, one way or the other: what was to be written.
    pub fn written(&mut self) -> Option<Arc<EpochRecord>> {
        match std::mem::take(&mut self.asked) {
            Asked::Write(record) => Some(record),
            other => {
                self.asked = other;
                None
            }
        }
    }

    /// No answer came. A write may have happened, or happen yet; it is asked again in a while. Whether this is news.
    pub fn unavailable(&mut self, now: Micros, retry: Micros) -> bool {
        self.asked = Asked::Nothing;
        self.wanted = true;
        self.retry_at = now.after(retry);
        let news = self.down.is_none();
        self.down.get_or_insert(now);
        news
    }

    /// When something wanted may be asked for.
    pub fn deadline(&self) -> Option<Micros> {
        self.wanted.then_some(self.retry_at)
    }
}
