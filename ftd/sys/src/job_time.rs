//! The time of a job, for all that somebody waits for while its ranks, or ftd's own processes, are to do something.
//!
//! It stands still while this process does not run (`SIGSTOP` of everybody, a frozen cgroup, a machine that sleeps): what
//! everybody slept through is nobody's delay. And it stands still while the user has stopped the job, which its helpers hear of:
//! they are not stopped themselves. Who waits looks at it again and again, no more than [`LOOK`] apart; between two looks that
//! lie much further apart this process did not run.

use crate::timescale::scaled;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Who waits looks at the time this often.
pub const LOOK: Duration = Duration::from_secs(1);
/// What lies between two looks that are further apart was not lived through: a busy machine may let one wait that long.
const LONGEST: Duration = Duration::from_secs(2);
/// While the job is stopped what is due next does not come nearer, and is looked at no more often than this.
const STOPPED: Duration = Duration::from_millis(100);

#[derive(Debug)]
struct Clock {
    /// What has passed without counting.
    lost: Duration,
    looked: Instant,
    /// Nobody waits for anything: it may be a long time before anybody looks.
    idle: bool,
    stopped: bool,
}

impl Clock {
    fn new(now: Instant) -> Clock {
        Clock { lost: Duration::ZERO, looked: now, idle: true, stopped: false }
    }

    fn look(&mut self, now: Instant) -> Instant {
        let gap = now.saturating_duration_since(self.looked);
        self.looked = self.looked.max(now);
        if self.stopped {
            self.lost += gap;
        } else if !self.idle && gap > longest() {
            self.lost += gap - look();
        }
        self.idle = false;
        self.looked.checked_sub(self.lost).unwrap_or(self.looked)
    }
}

fn look() -> Duration {
    scaled(LOOK)
}

/// On a busy machine it takes as long to run again however short the patience of a test is.
fn longest() -> Duration {
    scaled(LONGEST).max(LOOK)
}

fn with<T>(of: impl FnOnce(&mut Clock) -> T) -> T {
    static CLOCK: OnceLock<Mutex<Clock>> = OnceLock::new();
    let clock = CLOCK.get_or_init(|| Mutex::new(Clock::new(Instant::now())));
    of(&mut clock.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The time now. It is ahead of nothing that it said before, and good only for comparison with itself.
pub fn now() -> Instant {
    // With the clock in hand: another thread's later look must not come first.
    with(|clock| clock.look(Instant::now()))
}

/// How long until then; a while, when the job is stopped and that does not come nearer.
pub fn until(then: Instant) -> Duration {
    unhurried(then.saturating_duration_since(now()))
}

/// How long to wait for what is so far away: while the job is stopped it does not come nearer.
pub fn unhurried(left: Duration) -> Duration {
    if is_stopped() && !left.is_zero() { left.max(STOPPED) } else { left }
}

/// How long to wait at once, of a wait that may take so long. After an endless one, whatever time has passed counts: nobody has
/// waited for its end.
pub fn piece(left: Duration) -> Duration {
    if left == Duration::MAX {
        with(|clock| clock.idle = true);
        return left;
    }
    left.min(look())
}

/// The user has stopped the job.
pub fn stop() {
    with(|clock| {
        clock.look(Instant::now());
        clock.stopped = true;
    });
}

/// It goes on.
pub fn go_on() {
    with(|clock| {
        clock.look(Instant::now());
        clock.stopped = false;
    });
}

/// Whether the user has stopped the job.
pub fn is_stopped() -> bool {
    with(|clock| clock.stopped)
}

/// How long one wait has lasted that began without the clock: in a rank, where no lock may be held while it forks.
#[derive(Debug, Clone, Copy)]
pub struct Awake {
    counted: Duration,
    looked: Instant,
}

impl Awake {
    /// From now on.
    pub fn begin() -> Awake {
        Awake { counted: Duration::ZERO, looked: Instant::now() }
    }

    /// How long this process has waited, to be asked no more than [`LOOK`] apart. What it slept through was no wait.
    pub fn elapsed(&mut self) -> Duration {
        self.at(Instant::now())
    }

    fn at(&mut self, now: Instant) -> Duration {
        let gap = now.saturating_duration_since(self.looked);
        self.looked = now;
        self.counted += if gap > longest() { look() } else { gap };
        self.counted
    }

    /// How long to wait at once, of so long in all; nothing, when that is over.
    pub fn piece(&mut self, patience: Duration) -> Duration {
        patience.saturating_sub(self.elapsed()).min(look())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_lived_through_does_not_count() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let mut clock = Clock::new(begin);
        clock.look(begin);
        assert_eq!(clock.look(at(500)), at(500));
        assert_eq!(clock.look(at(2500)), at(2500), "a busy machine");
        // A minute of sleep within one wait counts as that wait.
        assert_eq!(clock.look(at(62_500)), at(3500));
        assert_eq!(clock.look(at(62_600)), at(3600));
        clock.idle = true;
        assert_eq!(clock.look(at(122_600)), at(63_600), "nobody waited");
        assert_eq!(clock.look(at(122_500)), at(63_600), "it does not go back");
    }

    #[test]
    fn a_wait_is_as_long_as_it_was_waited() {
        let mut wait = Awake::begin();
        let at = |ms| wait.looked + Duration::from_millis(ms);
        let (half, long, after) = (at(500), at(60_500), at(61_000));
        assert_eq!(wait.at(half), Duration::from_millis(500));
        assert_eq!(wait.at(long), Duration::from_millis(1500));
        assert_eq!(wait.at(after), Duration::from_millis(2000));
    }

    #[test]
    fn it_stands_still_while_the_job_is_stopped() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let mut clock = Clock::new(begin);
        clock.look(at(100));
        clock.stopped = true;
        assert_eq!(clock.look(at(300)), at(100));
        assert_eq!(clock.look(at(90_000)), at(100));
        clock.stopped = false;
        assert_eq!(clock.look(at(90_200)), at(300));
    }
}
