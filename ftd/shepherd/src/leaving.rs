//! How those below the slot leave it, when its direct child has ended or its world is over.
//!
//! Nobody is left on a slot that is used again. But what a rank prints through a filter of its own is not lost for that: the
//! filter sees the end of its input when the rank is dead, passes on what it has, and ends by itself.

use ft_sys::job_time;
use ft_sys::sweep::Sweep;
use ft_sys::timescale::scaled;
use ft_wire::World;
use std::time::{Duration, Instant};

/// In a recovery all ranks wait for the slowest filter. What one has to pass on fits into pipes, and takes milliseconds.
const IN_A_RECOVERY: Duration = Duration::from_secs(2);
/// At the job's end nobody waits but its user. As long as ranks have after a signal.
const AT_THE_END: Duration = Duration::from_secs(10);
/// How often what is killed is looked at again until it is gone.
const KILLED: Duration = Duration::from_millis(1);
/// … and filters that have time.
const SPARED: Duration = Duration::from_millis(5);
/// … and what need not be gone before the job's end.
const LINGERS: Duration = Duration::from_millis(200);
/// … and the same at the job's end.
const OVER: Duration = Duration::from_millis(20);
/// How often the agent is told that a reader is waited for.
const TELL_AGAIN: Duration = Duration::from_secs(1);
/// What is killed needs no more than this to end, unless it cannot be killed one by one.
const ITSELF: Duration = Duration::from_millis(50);

/// Who is not killed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Nobody.
    Nobody,
    /// Filters, until this time.
    Filters(Instant),
    /// All that the direct child left behind when it ended by itself: until nobody can print any more, or this time.
    All(Option<Instant>),
}

/// The slot is being left.
#[derive(Debug)]
pub struct Leaving {
    /// The world that it was.
    pub world: World,
    /// Who has time.
    pub left: Left,
    /// Kills the others.
    pub sweep: Sweep,
    since: Instant,
    /// How many are spared.
    spared: usize,
    /// The time that they have, and whether it is the job that is over.
    told: (Duration, bool),
    /// It was said that it takes longer.
    said: bool,
    /// When the agent was told last that there is somebody who is waited for.
    told_agent: Option<Instant>,
}

impl Leaving {
    /// By the one or the other.
    pub fn new(world: World, left: Left) -> Leaving {
        Leaving {
            world,
            left,
            sweep: Sweep::default(),
            since: job_time::now(),
            spared: 0,
            told: (Duration::ZERO, false),
            said: false,
            told_agent: None,
        }
    }

    /// The world is over, or with `over` the job. A slot that is being left already is so all the more.
    /// `refused`: who was left behind by a program that ftd has refused has nothing to do any more that anybody waits for.
    pub fn stop(before: Option<Leaving>, world: World, over: bool, refused: bool) -> Leaving {
        let patience = scaled(if over { AT_THE_END } else { IN_A_RECOVERY });
        let until = job_time::now() + patience;
        let sooner = |old: Option<Instant>| old.map_or(until, |old| old.min(until));
        let left = match before.map(|leaving| leaving.left) {
            None => Left::Filters(until),
            Some(Left::Nobody) => Left::Nobody,
            Some(Left::Filters(old)) => Left::Filters(sooner(Some(old))),
            Some(Left::All(old)) if over && !refused => Left::All(Some(sooner(old))),
            Some(Left::All(old)) => Left::Filters(sooner(old)),
        };
        Leaving { told: (patience, over), ..Leaving::new(world, left) }
    }

    /// Whether the direct child has ended by itself, and the slot is not needed.
    pub fn lingers(&self) -> bool {
        matches!(self.left, Left::All(_))
    }

    /// Notes how many are spared. When nobody of those that linger is, nobody is any more.
    pub fn spares(&mut self, count: usize) {
        self.spared = count;
        if count == 0 && self.lingers() {
            (self.left, self.since) = (Left::Nobody, job_time::now());
        }
    }

    /// How long until the next look. `held`: somebody can print, and it is heard when nobody can any more.
    pub fn pause(&self, held: bool) -> Duration {
        match self.left {
            Left::All(None) if held => Duration::MAX,
            Left::All(None) => LINGERS,
            Left::All(Some(_)) => OVER,
            Left::Filters(_) if self.spared > 0 => SPARED,
            Left::Filters(_) | Left::Nobody => KILLED,
        }
    }

    /// What they have printed is not read yet, at the job's end: their time begins anew. ftrun reads no more than its own reader
    /// does, and somebody may look at it page by page. Whether this is to be said: once, when it has taken as long as they have.
    pub fn waits_for_reader(&mut self) -> bool {
        let (patience, over) = self.told;
        let until = job_time::now() + patience;
        match &mut self.left {
            Left::Filters(end) | Left::All(Some(end)) if over => *end = until,
            _ => return false,
        }
        let long = job_time::now().saturating_duration_since(self.since) >= patience;
        long && !std::mem::replace(&mut self.said, true)
    }

    /// Whether the agent, which believes that killing takes no time, is to be told that a reader is waited for.
    pub fn tells_agent(&mut self) -> bool {
        let due =
            self.told_agent.is_none_or(|told| job_time::now().saturating_duration_since(told) >= scaled(TELL_AGAIN));
        if due {
            self.told_agent = Some(job_time::now());
        }
        due
    }

    /// When they are killed, in words.
    pub fn since(&self) -> String {
        let (patience, over) = self.told;
        format!("{} s after the end of the {}", patience.as_secs_f32(), if over { "job" } else { "rank" })
    }

    /// Nobody has time any more.
    pub fn end(&mut self) {
        self.left = Left::Nobody;
        self.sweep = Sweep::default();
        self.since = job_time::now();
    }

    /// Whether those who had time have it no more.
    pub fn is_late(&self) -> bool {
        let until = match self.left {
            Left::Nobody => None,
            Left::Filters(until) => Some(until),
            Left::All(until) => until,
        };
        until.is_some_and(|until| job_time::now() >= until)
    }

    /// Whether killing one by one has not been enough.
    pub fn is_stubborn(&self) -> bool {
        self.left == Left::Nobody && job_time::now().saturating_duration_since(self.since) > ITSELF
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_given_once() {
        let now = Instant::now();
        let stop =
            |left: Option<Left>, over| Leaving::stop(left.map(|left| Leaving::new(1, left)), 1, over, false).left;
        let filters = |left| match left {
            Left::Filters(until) => until.saturating_duration_since(now),
            other => panic!("{other:?}"),
        };
        assert!(filters(stop(None, false)) < AT_THE_END && filters(stop(None, true)) >= AT_THE_END);
        assert_eq!(stop(Some(Left::Nobody), true), Left::Nobody);
        assert_eq!(stop(Some(Left::Filters(now)), false), Left::Filters(now));
        assert!(matches!(stop(Some(Left::All(None)), true), Left::All(Some(_))));
        assert_eq!(stop(Some(Left::All(Some(now))), true), Left::All(Some(now)));
        assert_eq!(stop(Some(Left::All(Some(now))), false), Left::Filters(now));
        let refused = Leaving::stop(Some(Leaving::new(1, Left::All(None))), 1, true, true);
        assert!(filters(refused.left) >= AT_THE_END, "who was left behind has no time, filters have");
        let mut unread = Leaving { told: (Duration::ZERO, true), ..Leaving::new(1, Left::Filters(now)) };
        assert!(unread.waits_for_reader() && !unread.waits_for_reader(), "it is said once");
        let mut early = Leaving { told: (AT_THE_END, true), ..Leaving::new(1, Left::Filters(now)) };
        assert!(!early.waits_for_reader() && !early.is_late());
        assert!(!Leaving::new(1, Left::All(None)).is_late() && Leaving::new(1, Left::Filters(now)).is_late());
    }
}
