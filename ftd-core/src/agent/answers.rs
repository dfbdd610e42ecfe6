//! What the store says.

use super::{Agent, Predecessor};
use crate::breach::Breach;
use crate::ids::{EpochId, Micros, Revision};
use crate::record::{EpochRecord, Outcome};
use crate::report::{Notice, Report};
use std::sync::Arc;

impl Agent {
    pub(super) fn answered(&mut self) {
        if self.store.answered(self.now) {
            self.report(Report::Notice(Notice::StoreBack));
        }
    }

    pub(super) fn take_read(&mut self, revision: Revision, record: Option<Arc<EpochRecord>>) {
        self.answered();
        let asked = self.store.read(revision);
        self.fence.read_first(revision);
        let before = self.epoch();
        self.take_key(revision, record, asked);
        if let Some(asked) = asked.filter(|_| before == self.epoch()) {
            self.fence.read(asked);
        }
    }

    /// What the watch says may be older than what this agent's predecessor knew.
    pub(super) fn take_watched(&mut self, revision: Revision, record: Option<Arc<EpochRecord>>) {
        match record {
            Some(record) => self.adopt(revision, record),
            None => self.store.want(),
        }
        if self.config.breach == Breach::WatchCounts {
            self.fence.read(self.now);
        }
    }

    /// What the key is, says the store to one who asked at this time.
    pub(super) fn take_key(&mut self, revision: Revision, record: Option<Arc<EpochRecord>>, asked: Option<Micros>) {
        match record {
            Some(record) => self.adopt(revision, record),
            // Somebody has removed it: what is agreed is not known any more, and must not be agreed anew from the beginning.
            None if self.knew_record() && asked.is_some_and(|asked| self.store.is_removed(asked)) => {
                let reason = "the job cannot continue, because its record was deleted from the store".to_string();
                self.conclude(Outcome::failed(1, reason), true);
            }
            None => {}
        }
    }

    /// This agent has read a record, or the one before it had.
    pub(super) fn knew_record(&self) -> bool {
        let before = |predecessor: &Predecessor| predecessor.reported > EpochId(0);
        self.record.is_some() || self.predecessor.as_ref().is_some_and(before)
    }

    pub(super) fn take_written(&mut self, revision: Revision) {
        let written = self.store.written();
        self.answered();
        if let Some((_, record)) = written {
            self.adopt(revision, record);
        }
    }

    pub(super) fn take_unavailable(&mut self) {
        // Who needs it says so, and asks again soon. With all who hear of that, people would hear it from each node, and a store that comes back from all at once.
        let hears = self.hears_missed() && !self.needs_itself();
        let retry = if hears { self.missed_looks() } else { self.config.policy.store_retry };
        if self.store.unavailable(self.now, retry) {
            self.store.quiet = hears;
            if !hears {
                self.report(Report::Notice(Notice::StoreUnavailable));
            }
        }
    }
}
