//! What people are still to be told of recoveries.

use super::block::LastBlock;
use crate::ids::Micros;
use crate::report::{Episode, PhaseTimes};

/// A recovery on its way, for the report.
#[derive(Debug, Clone)]
pub(super) struct Progress {
    pub episodes: Vec<Episode>,
    pub times: PhaseTimes,
    pub last_sign: Micros,
    /// A rank of the new world cannot be started.
    pub stuck: bool,
    /// It is reported because there is no sign of it any more.
    pub waited: bool,
}

/// What people are still to be told.
#[derive(Debug, Clone, Default)]
pub(super) struct Telling {
    pub progress: Option<Progress>,
    pub last_block: Option<LastBlock>,
    /// The ranks are stopped by their user, and give no sign.
    pub stopped: bool,
}

impl Telling {
    /// A recovery begins, or begins again: then it was noticed when it was noticed.
    pub fn begin(&mut self, now: Micros) {
        let times = PhaseTimes { noticed: now, ..PhaseTimes::default() };
        let fresh = Progress { episodes: Vec::new(), times, last_sign: now, stuck: false, waited: false };
        let progress = self.progress.get_or_insert(fresh);
        progress.times = PhaseTimes { noticed: progress.times.noticed, ..PhaseTimes::default() };
    }

    /// The user stops the ranks, or lets them go on: from then on a sign of them is waited for as long as ever.
    pub fn suspended(&mut self, stopped: bool, now: Micros) {
        if std::mem::replace(&mut self.stopped, stopped) == stopped {
            return;
        }
        self.progress.iter_mut().for_each(|progress| progress.last_sign = now);
    }

    /// What fails was noticed so early already.
    pub fn noticed_since(&mut self, since: Option<Micros>) {
        if let Some((progress, since)) = self.progress.as_mut().zip(since) {
            progress.times.noticed = progress.times.noticed.min(since);
        }
    }
}
