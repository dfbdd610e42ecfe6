//! How often it is looked whether a rank prints elsewhere than before. What it prints there, until that is seen, and is killed, is
//! lost: of the dead it is not known where they printed.
//!
//! Programs set up their filters early, if at all: a young rank is looked at often, and one that has printed into the same for a
//! while seldom. Sixteen shepherds that look ten times a second would take two hundredths of a processor for ever.

use std::time::{Duration, Instant};

/// The pause at first.
const OFTEN: Duration = Duration::from_millis(100);
/// The pause at last, most of a minute later.
const SELDOM: Duration = Duration::from_secs(5);
/// Each pause is longer by this part than the one before: about this part of the time since the first look.
const GROWTH: u32 = 8;

/// When the next look is due.
#[derive(Debug, Default)]
pub(super) struct Prints(Option<Look>);

#[derive(Debug)]
struct Look {
    rank: i32,
    pause: Duration,
    next: Instant,
}

impl Prints {
    /// How long until this process is to be looked at: one that was not yet, at once.
    pub(super) fn pause(&self, rank: i32) -> Duration {
        let same = self.0.as_ref().filter(|look| look.rank == rank);
        same.map_or(Duration::ZERO, |look| look.next.saturating_duration_since(Instant::now()))
    }

    /// It was looked at, and prints elsewhere than before, or not.
    pub(super) fn looked(&mut self, rank: i32, elsewhere: bool) {
        let same = self.0.as_ref().filter(|look| look.rank == rank && !elsewhere);
        let pause = same.map_or(OFTEN, |look| (look.pause + look.pause / GROWTH).min(SELDOM));
        self.0 = Some(Look { rank, pause, next: Instant::now() + pause });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When a rank is looked at that prints into the same, in its first minute: as the guide says it.
    #[test]
    fn most_looks_are_early_ones() {
        let mut prints = Prints::default();
        let (mut looks, mut at) = (Vec::new(), Duration::ZERO);
        while at < Duration::from_secs(60) {
            looks.push(at);
            prints.looked(1, false);
            at += prints.0.as_ref().map_or(Duration::MAX, |look| look.pause);
        }
        let within = |from: f32, to: f32| looks.iter().filter(|at| (from..to).contains(&at.as_secs_f32())).count();
        assert!((6..=11).contains(&within(0.0, 1.0)), "ten times a second: {looks:?}");
        assert!((5..=15).contains(&within(5.0, 15.0)), "once a second: {looks:?}");
        assert!((2..=4).contains(&within(45.0, 60.0)), "every five seconds: {looks:?}");
    }

    #[test]
    fn a_rank_that_prints_into_the_same_is_looked_at_ever_more_seldom() {
        let mut prints = Prints::default();
        assert_eq!(prints.pause(1), Duration::ZERO);
        prints.looked(1, false);
        assert!(prints.pause(1) <= OFTEN && prints.pause(1) > Duration::ZERO);
        (0..200).for_each(|_| prints.looked(1, false));
        assert!(prints.pause(1) <= SELDOM && prints.pause(1) > SELDOM / 2);
        // Another process is a young one, and so is one that has just changed where it prints.
        assert_eq!(prints.pause(2), Duration::ZERO);
        prints.looked(1, true);
        assert!(prints.pause(1) <= OFTEN);
    }
}
