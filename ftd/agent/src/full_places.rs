//! Ranks that have had nothing but full places for a while. Each waits here with its newest version alone: an older one says
//! nothing any more. So there are never more entries than ranks, and one timer serves all.

use ft_wire::{Epoch, Rank, Version};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A rank whose places are full, the newest version in them being this one.
pub type Waiting = (Epoch, Rank, Version);

/// Who waits, and since when.
#[derive(Debug, Default)]
pub struct FullPlaces {
    since: BTreeMap<Rank, (Epoch, Version, Instant)>,
    /// A timer runs.
    timed: bool,
}

impl FullPlaces {
    /// All places of a rank are full. Returns whether a timer is to be started.
    pub fn note(&mut self, (epoch, rank, newest): Waiting, now: Instant) -> bool {
        let known = self.since.get(&rank).is_some_and(|known| (known.0, known.1) == (epoch, newest));
        if !known {
            self.since.insert(rank, (epoch, newest, now));
        }
        !std::mem::replace(&mut self.timed, true)
    }

    /// The timer has run out: takes out who has waited for so long, and says when to look again, if somebody still waits.
    pub fn due(&mut self, patience: Duration, now: Instant) -> (Vec<Waiting>, Option<Duration>) {
        let waited = |since: Instant| now.saturating_duration_since(since);
        let due = self.since.iter().filter(|(_, (_, _, since))| waited(*since) >= patience);
        let due: Vec<Waiting> = due.map(|(rank, (epoch, newest, _))| (*epoch, *rank, *newest)).collect();
        self.since.retain(|_, (_, _, since)| waited(*since) < patience);
        let next = self.since.values().map(|(_, _, since)| patience.saturating_sub(waited(*since))).min();
        self.timed = next.is_some();
        (due, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_waits_once_with_its_newest_version_and_one_timer_serves_all() {
        let second = Duration::from_secs;
        let begin = Instant::now();
        let mut full = FullPlaces::default();
        assert!(full.note((1, 0, 30), begin), "the first starts the timer");
        assert!(!full.note((1, 0, 30), begin + second(3)), "the same version waits since it came");
        assert!(!full.note((1, 1, 20), begin + second(4)));
        assert!(!full.note((1, 1, 30), begin + second(6)), "the newer one counts");
        assert_eq!(full.due(second(10), begin + second(10)), (vec![(1, 0, 30)], Some(second(6))));
        assert!(!full.note((2, 0, 30), begin + second(11)), "another epoch");
        assert_eq!(full.due(second(10), begin + second(16)), (vec![(1, 1, 30)], Some(second(5))));
        assert_eq!(full.due(second(10), begin + second(21)), (vec![(2, 0, 30)], None));
        assert!(full.note((2, 0, 40), begin + second(30)), "nobody waits, so no timer runs");
    }
}
