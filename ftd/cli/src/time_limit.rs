//! `--timeout`: how long a job may run. The time for which the user has stopped it does not count.

use std::time::{Duration, Instant};

/// The exit status of a job whose time was over, as that of `timeout`.
const STATUS: i32 = 124;

/// A job's limit, if it has one.
#[derive(Debug, Clone, Copy)]
pub struct TimeLimit {
    limit: Option<Duration>,
    began: Instant,
    over: bool,
}

impl TimeLimit {
    /// The job begins now.
    pub fn new(limit: Option<Duration>, now: Instant) -> TimeLimit {
        TimeLimit { limit, began: now, over: false }
    }

    /// When it will be over.
    pub fn deadline(&self) -> Option<Instant> {
        self.limit.filter(|_| !self.over).map(|limit| self.began + limit)
    }

    /// What is to be said when it is over now; the job is to be ended then.
    pub fn passes(&mut self, now: Instant) -> Option<String> {
        let limit = self.limit.filter(|_| self.deadline().is_some_and(|deadline| now >= deadline))?;
        self.over = true;
        Some(format!("the job has run for {} s (--timeout), and is ended", limit.as_secs()))
    }

    /// The status of a job that would have had this one.
    pub fn status(&self, status: i32) -> i32 {
        if self.over { STATUS } else { status }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_passes_once() {
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let mut limit = TimeLimit::new(Some(Duration::from_secs(5)), now);
        assert_eq!((limit.passes(after(4)), limit.deadline(), limit.status(3)), (None, Some(after(5)), 3));
        assert!(limit.passes(after(5)).is_some_and(|sentence| sentence.contains("run for 5 s")));
        assert_eq!((limit.passes(after(6)), limit.deadline(), limit.status(0)), (None, None, 124));
        let mut none = TimeLimit::new(None, now);
        assert_eq!((none.passes(after(9999)), none.deadline(), none.status(1)), (None, None, 1));
    }
}
