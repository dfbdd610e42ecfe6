//! When the next checkpoint pays: Young's first-order optimum of the interval, √(2·C·M) for checkpoint cost C and mean
//! time between failures M (J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 1974;
//! Daly's refinement differs only when C is not small against M, and then a checkpoint is due anyway).
//!
//! All ranks must come to the same answer at the same call, or they would checkpoint at different steps: the first rank
//! that makes its n-th call decides it for all.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Mean time between failures that is assumed before any was seen: a day.
const PRIOR: Duration = Duration::from_secs(24 * 3600);

/// So many turns from yes to no and back are remembered. There are two to a checkpoint, and no rank can be hundreds of
/// checkpoints behind another one that takes them too: only one that does not ask falls out of it.
const MOST_RUNS: usize = 1024;

/// Decides for one world.
#[derive(Debug, Default)]
pub struct Due {
    cost: Duration,
    last: Duration,
    calls: HashMap<u32, u64>,
    /// Equal answers in a row, and the number of the question behind the last of them: a program may ask in each step, for
    /// weeks.
    runs: VecDeque<(bool, u64)>,
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
        let asked = self.runs.back().map_or(0, |(_, end)| *end);
        if *call == asked {
            let mtbf = if failures == 0 { PRIOR } else { (job / failures).min(PRIOR) };
            let interval = (2.0 * self.cost.as_secs_f64() * mtbf.as_secs_f64()).sqrt();
            let yes = self.cost.is_zero() || now.saturating_sub(self.last).as_secs_f64() >= interval;
            match self.runs.back_mut() {
                Some((answer, end)) if *answer == yes => *end += 1,
                _ => self.runs.push_back((yes, asked + 1)),
            }
            if self.runs.len() > MOST_RUNS {
                self.runs.pop_front();
            }
        }
        let at = self.runs.partition_point(|(_, end)| end <= call);
        *call += 1;
        self.runs.get(at).is_some_and(|(answer, _)| *answer)
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

    /// What a rank hears that asks so often in each second, and checkpoints when it pays.
    fn weeks(due: &mut Due, rank: u32, seconds: u64, questions: u32) -> Vec<bool> {
        let mut answers = Vec::new();
        for second in 0..seconds {
            for _ in 0..questions {
                let now = Duration::from_secs(second);
                answers.push(due.ask(rank, now, now, 0));
                if answers.ends_with(&[true]) {
                    due.checkpoint(Duration::from_millis(50), now);
                }
            }
        }
        answers
    }

    #[test]
    fn questions_cost_no_memory() {
        let mut due = Due::default();
        let first = weeks(&mut due, 0, 20_000, 100);
        assert_eq!(first.iter().filter(|yes| **yes).count(), 216, "√(2·0.05 s·1 day) is 93 s");
        assert!(due.runs.len() < 2 * 220, "{} runs for {} questions", due.runs.len(), first.len());
        assert!(first.iter().eq(weeks(&mut due, 1, 20_000, 100).iter()), "another rank hears the same");

        // One that never asks (its program tells it what rank 0 has heard).
        weeks(&mut due, 0, 20_000, 100);
        let mut due = Due::default();
        for second in 0..100_000 {
            due.checkpoint(Duration::from_nanos(1), Duration::from_secs(second));
            due.ask(0, Duration::from_secs(second), Duration::ZERO, 0);
            due.ask(0, Duration::from_secs(second + 1), Duration::ZERO, 0);
        }
        assert_eq!((due.runs.len(), due.runs.capacity() <= 2 * MOST_RUNS), (MOST_RUNS, true));
        due.ask(1, Duration::ZERO, Duration::ZERO, 0);
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
