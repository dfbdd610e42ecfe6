//! The job's record in the store.

use crate::job::Job;
use ft_store::{Embedded, Expected, Store, StoreError, decode_record, encode_record};
use ftd_core::{EpochRecord, Event, Revision};
use std::sync::Arc;

/// The store, as this job sees it.
#[derive(Debug)]
pub struct Epochs {
    store: Embedded,
}

impl Epochs {
    /// In this store.
    pub fn new(store: Embedded) -> Epochs {
        Epochs { store }
    }

    /// Says when what is kept there does not outlive this agent.
    pub fn warn(&self, job: &Job) {
        if self.store.is_volatile() {
            let sentence = "the file-size limit (ulimit -f) leaves no room to keep the job's record outside of the agent: should the agent \
                 die, no other one could go on with the job";
            job.notice(sentence.into());
        }
    }

    /// Reads the record.
    pub async fn read(&self, job: &Job) -> Event {
        match self.store.get().await {
            Ok(None) => Event::StoreRead { revision: Revision(0), record: None },
            Ok(Some(found)) => match decode_record(&found.value) {
                Ok(record) => Event::StoreRead { revision: Revision(found.revision), record: Some(Arc::new(record)) },
                Err(error) => {
                    job.notice(format!("the job's record cannot be read: {error}"));
                    Event::StoreUnavailable
                }
            },
            Err(error) => {
                tracing::error!(%error, "the store");
                Event::StoreUnavailable
            }
        }
    }

    /// Writes the record, if it is still at this revision.
    pub async fn swap(&mut self, job: &Job, expected: Revision, record: &EpochRecord) -> Event {
        ft_sys::gate::reach(if record.epoch.0 > 1 { "agent.noticed" } else { "agent.complete" }, None);
        let expect = if expected.0 == 0 { Expected::Absent } else { Expected::Revision(expected.0) };
        let first = record.epoch.0 == 1;
        let event = match self.store.compare_and_swap(expect, encode_record(record)).await {
            Ok(revision) => Event::CasDone { revision: Revision(revision) },
            Err(StoreError::Lost(Some(found))) => match decode_record(&found.value) {
                Ok(record) => Event::CasLost { revision: Revision(found.revision), record: Some(Arc::new(record)) },
                Err(_) => Event::StoreUnavailable,
            },
            Err(error) => {
                job.notice(format!("the epoch could not be agreed: {error}"));
                Event::StoreUnavailable
            }
        };
        ft_sys::gate::reach(if first { "agent.recorded" } else { "agent.agreed" }, None);
        event
    }
}
