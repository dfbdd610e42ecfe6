//! The signal that ended the job: how long its ranks have, and which other signal is the same one once more.

use crate::signals;
use std::time::{Duration, Instant};

/// Ctrl-C reaches a whole process group, and `timeout` signals its child and then the group: what comes so soon after the
/// first is that one again.
const TWICE: Duration = Duration::from_millis(100);
/// Ranks that live so long after the signal are mentioned.
const QUIET: Duration = Duration::from_secs(1);
/// When the ranks' time is over the agent has this long to end the job.
const AGENT: Duration = Duration::from_secs(10);

/// A job that was told to end.
#[derive(Debug, Clone, Copy)]
pub struct Cancelled {
    /// The first signal that said so.
    pub signal: i32,
    since: Instant,
    grace: Duration,
    said: bool,
}

impl Cancelled {
    /// The first signal has come.
    pub fn new(signal: i32, grace: Duration, now: Instant) -> Cancelled {
        Cancelled { signal, since: now, grace, said: false }
    }

    /// Whether a signal that comes now is one more.
    pub fn is_another(&self, now: Instant) -> bool {
        now.duration_since(self.since) > TWICE
    }

    /// Whether the agent should have ended the job by now.
    pub fn is_overdue(&self, now: Instant) -> bool {
        now.duration_since(self.since) >= self.grace + AGENT
    }

    /// When there is something to do next.
    pub fn deadline(&self) -> Instant {
        self.since + if self.said { self.grace + AGENT } else { QUIET }
    }

    /// What people are told once, when it takes a while.
    pub fn sentence(&mut self, now: Instant) -> Option<String> {
        if self.said || now.duration_since(self.since) < QUIET {
            return None;
        }
        self.said = true;
        let left = self.grace.saturating_sub(now.duration_since(self.since));
        (left > QUIET).then(|| {
            let (name, seconds) = (signals::name(self.signal), left.as_secs());
            format!("the ranks have had {name} and have {seconds} s more to end; another signal kills them at once")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_comes_double_is_one() {
        let now = Instant::now();
        let mut cancelled = Cancelled::new(15, Duration::from_secs(10), now);
        let at = |ms| now + Duration::from_millis(ms);
        assert!(!cancelled.is_another(at(100)) && cancelled.is_another(at(101)));
        assert_eq!((cancelled.sentence(at(999)), cancelled.deadline()), (None, at(1000)));
        assert!(cancelled.sentence(at(1000)).is_some_and(|text| text.contains("SIGTERM and have 9 s")));
        assert_eq!((cancelled.sentence(at(1001)), cancelled.deadline()), (None, at(20_000)));
        assert!(!cancelled.is_overdue(at(19_999)) && cancelled.is_overdue(at(20_000)));
    }
}
