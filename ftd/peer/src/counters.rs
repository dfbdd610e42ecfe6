//! What went through, and what was refused.

use crate::beat::Refusal;
use std::sync::{Arc, Mutex, PoisonError};

/// Counts of one endpoint since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Messages that were handed to the network. What leaves in one datagram counts as one.
    pub sent: u64,
    /// Messages that came.
    pub received: u64,
    /// Datagrams that the network did not take, or that were for nobody known: each is repeated by whoever needs it.
    pub unsent: u64,
    /// Messages for which a newer one of their kind was sent.
    pub superseded: u64,
    /// Messages that were given up, because too much waited or their receiver was forgotten.
    pub dropped: u64,
    /// First connections with a node.
    pub connects: u64,
    /// Later ones.
    pub reconnects: u64,
    /// Tries to make a connection that came to nothing.
    pub failed: u64,
    /// Connections of others who did not prove themselves in time.
    pub unproven: u64,
    /// What came and was not taken, by reason.
    pub refused: Refused,
}

/// What came and was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Refused {
    /// No message of ftd's.
    pub malformed: u64,
    /// Another release's.
    pub version: u64,
    /// Another job's.
    pub foreign: u64,
    /// Not made with the job's secret.
    pub forged: u64,
    /// For another node, or in this one's own name.
    pub misdirected: u64,
    /// For an agent of this node that has ended.
    pub stale: u64,
    /// A second time.
    pub replayed: u64,
    /// Longer than any message.
    pub oversized: u64,
    /// Of one of too many that had not proved themselves.
    pub crowd: u64,
}

impl Refused {
    /// All of them.
    pub fn all(&self) -> u64 {
        let Refused { malformed, version, foreign, forged, misdirected, stale, replayed, oversized, crowd } = self;
        malformed + version + foreign + forged + misdirected + stale + replayed + oversized + crowd
    }

    fn note(&mut self, why: Refusal) {
        let count = match why {
            Refusal::Malformed => &mut self.malformed,
            Refusal::Version(_) => &mut self.version,
            Refusal::Foreign => &mut self.foreign,
            Refusal::Forged => &mut self.forged,
            Refusal::Misdirected => &mut self.misdirected,
            Refusal::Stale => &mut self.stale,
            Refusal::Replayed => &mut self.replayed,
            Refusal::Oversized => &mut self.oversized,
            Refusal::Crowd => &mut self.crowd,
        };
        *count += 1;
    }
}

/// The counts, as all parts of an endpoint share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shared(Arc<Mutex<Counters>>);

impl Shared {
    pub(crate) fn count(&self, change: impl FnOnce(&mut Counters)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn refuse(&self, why: Refusal) {
        self.count(|counters| counters.refused.note(why));
    }

    pub(crate) fn now(&self) -> Counters {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
