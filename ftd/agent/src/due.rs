//! When the next checkpoint pays: Young's first-order optimum of the interval, √(2·C·M) for checkpoint cost C and mean
//! time between failures M (J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 1974;
//! Daly's refinement differs only when C is not small against M, and then a checkpoint is due anyway).
//!
//! All ranks must come to the same answer at the same call, or they would checkpoint at different steps: the first rank
//! that makes its n-th call decides it for all.

use std::collections::HashMap;
use std::time::Duration;

/// Mean time between failures that is assumed before any was seen: a day.
const PRIOR: Duration = Duration::from_secs(24 * 3600);

/// Decides for one world.
#[derive(Debug, Default)]
pub struct Due {
    cost: Duration,
    last: Duration,
    calls: HashMap<u32, usize>,
    answers: Vec<bool>,
}

impl Due {
    /// A rank took a checkpoint that cost `cost`, at time `now` since the world's release.
    pub fn checkpoint(&mut self, cost: Duration, now: Duration) {
        self.cost = self.cost.max(cost);
        self.last = now;
    }

    /// `rank` asks at time `now` since release; the job has run for `job` and has seen `failures`.
    pub fn ask(&mut self, rank: u32, now: Duration, job: Duration, failures: u32) -> bool {
        let call = self.calls.entry(rank).or_default();
        if *call == self.answers.len() {
            let mtbf = if failures == 0 { PRIOR } else { (job / failures).min(PRIOR) };
            let interval = (2.0 * self.cost.as_secs_f64() * mtbf.as_secs_f64()).sqrt();
            self.answers.push(self.cost.is_zero() || now.saturating_sub(self.last).as_secs_f64() >= interval);
        }
        *call += 1;
        self.answers[*call - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_gets_the_first_ones_answer() {
        let mut due = Due::default();
        assert!(due.ask(0, Duration::ZERO, Duration::ZERO, 0), "the first checkpoint tells the cost");
        due.checkpoint(Duration::from_millis(10), Duration::ZERO);
        assert!(!due.ask(0, Duration::from_secs(1), Duration::from_secs(1), 0));
        assert!(due.ask(1, Duration::from_secs(99_999), Duration::ZERO, 0));
        assert!(!due.ask(1, Duration::from_secs(99_999), Duration::ZERO, 0));
    }

    #[test]
    fn failures_shorten_the_interval() {
        let ask = |failures| {
            let mut due = Due::default();
            due.checkpoint(Duration::from_millis(50), Duration::ZERO);
            due.ask(0, Duration::from_secs(10), Duration::from_secs(600), failures)
        };
        assert!(!ask(0), "√(2·0.05 s·1 day) is 93 s");
        assert!(ask(60), "√(2·0.05 s·10 s) is 1 s");
    }
}
