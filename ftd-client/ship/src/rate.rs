//! How many bytes may be sent on their way now.

use std::time::{Duration, Instant};

/// What was not used may be made up for, for so long.
const MADE_UP: Duration = Duration::from_millis(50);

/// With a limit no piece takes longer than this.
const LONGEST: Duration = Duration::from_millis(100);

/// A limit in bytes per second, or none. A piece may be begun as soon as all before it are paid for.
#[derive(Debug)]
pub struct Rate {
    /// 0: none.
    bytes_per_second: u64,
    /// When all is paid for.
    free: Instant,
}

impl Rate {
    /// No limit.
    pub fn unlimited(now: Instant) -> Rate {
        Rate { bytes_per_second: 0, free: now }
    }

    /// From now on this is the limit.
    pub fn set(&mut self, bytes_per_second: u64, now: Instant) {
        *self = Rate { bytes_per_second, free: now };
    }

    /// The longest piece.
    pub fn longest(&self, most: u64) -> u64 {
        match self.bytes_per_second {
            0 => most,
            rate => most.min(scaled(rate, LONGEST)).max(1),
        }
    }

    /// Until when nothing may be begun.
    pub fn holds(&self, now: Instant) -> Option<Instant> {
        (self.bytes_per_second > 0 && self.free > now).then_some(self.free)
    }

    /// So much is on its way.
    pub fn spend(&mut self, bytes: u64, now: Instant) {
        if self.bytes_per_second > 0 {
            let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
            let from = self.free.max(now.checked_sub(MADE_UP).unwrap_or(now));
            self.free = from + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        }
    }
}

fn scaled(rate: u64, time: Duration) -> u64 {
    u64::try_from(u128::from(rate) * time.as_nanos() / 1_000_000_000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that are begun within a time by somebody who looks every millisecond.
    fn begun(rate: &mut Rate, from: Instant, time: Duration) -> u64 {
        let (mut bytes, mut now) = (0, from);
        while now < from + time {
            while rate.holds(now).is_none() {
                let piece = rate.longest(1 << 20);
                rate.spend(piece, now);
                bytes += piece;
            }
            now += Duration::from_millis(1);
        }
        bytes
    }

    #[test]
    fn as_much_is_begun_as_the_limit_allows() {
        let start = Instant::now();
        for limit in [7u64, 1000, 999_999, 100_000_000, 5_000_000_000] {
            let mut rate = Rate::unlimited(start);
            rate.set(limit, start);
            let seconds = 4;
            let bytes = begun(&mut rate, start, Duration::from_secs(seconds));
            let (due, piece) = (limit * seconds, (limit / 10).clamp(1, 1 << 20));
            assert!((due - due / 10..=due + 2 * piece).contains(&bytes), "{bytes} of {due} at {limit} a second");
        }
    }

    #[test]
    fn what_was_not_used_for_long_is_not_made_up_for() {
        let start = Instant::now();
        let mut rate = Rate::unlimited(start);
        rate.set(1_000_000, start);
        let later = start + Duration::from_secs(60);
        let bytes = begun(&mut rate, later, Duration::from_secs(1));
        assert!(bytes <= 1_300_000, "{bytes}");
    }

    #[test]
    fn without_a_limit_everything_may_be_begun() {
        let now = Instant::now();
        let mut rate = Rate::unlimited(now);
        rate.spend(u64::MAX, now);
        assert_eq!((rate.longest(9), rate.holds(now)), (9, None));
    }
}
