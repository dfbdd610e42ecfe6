//! Deaths of ftd's own processes that lead nowhere.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Only deaths so close together count. Who computes for as long has got on, checkpoint or not.
const WITHIN: Duration = Duration::from_secs(30);
/// So many may come without progress.
const MOST: usize = 5;

/// Deaths in a row without progress between them.
#[derive(Debug, Default)]
pub struct Deaths(VecDeque<Instant>);

impl Deaths {
    /// Counts a death; whether it is one too many.
    pub fn too_many(&mut self, now: Instant) -> bool {
        self.0.push_back(now);
        while self.0.front().is_some_and(|first| now.duration_since(*first) > WITHIN) {
            self.0.pop_front();
        }
        self.0.len() > MOST
    }

    /// The job got on: those before do not count.
    pub fn forget(&mut self) {
        self.0.clear();
    }

    /// Words for a sentence.
    pub fn words(&self) -> String {
        format!("{} times within {} s without a newer complete checkpoint between", self.0.len(), WITHIN.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_deaths_without_progress_and_close_together_count() {
        let begun = Instant::now();
        let at = |s| begun + Duration::from_secs(s);
        let mut deaths = Deaths::default();
        assert!((0..5).all(|s| !deaths.too_many(at(s))));
        assert!(deaths.too_many(at(5)));
        assert_eq!(deaths.words(), "6 times within 30 s without a newer complete checkpoint between");
        deaths.forget();
        assert!((6..11).all(|s| !deaths.too_many(at(s))));
        assert!(!deaths.too_many(at(37)), "the first of them is long ago");
    }
}
