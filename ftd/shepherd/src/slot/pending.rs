//! Signals that wait for the rank to catch them. Before its handler is there its default disposition would kill it; who has been started
//! again installs it again.

use super::Slot;
use ft_sys::job_time;
use ft_sys::proc;
use ft_sys::timescale::scaled;
use ft_wire::shepherd::ToAgent;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// One that is sent to the rank waits no longer.
const STARTS: Duration = Duration::from_secs(10);
/// One that is given again waits no longer for a handler.
const CATCHES: Duration = Duration::from_secs(300);
/// Who catches a signal since then does it with a handler of its own: libraries have some as well (MPICH's `MPI_Init` for SIGUSR1, UCX for SIGHUP,
/// Fortran's for SIGXCPU), `/proc` does not say whose one is, and what a library's is given is lost.
const SETTLES: Duration = Duration::from_secs(5);

/// Until a handler may be there it is looked for so often, and so often when the program seems to have none.
const LOOKS: Duration = Duration::from_millis(100);
const LOOKS_LATE: Duration = Duration::from_secs(1);

/// Those that wait, and what came before.
#[derive(Debug, Default)]
pub(super) struct Pending {
    waits: BTreeMap<i32, Wait>,
    /// When each signal came that is for whoever is the rank, and has not been given again.
    came: BTreeMap<i32, Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Wait {
    /// An earlier rank has had it.
    again: bool,
    since: Instant,
    /// Since when the rank catches it.
    caught: Option<Instant>,
}

/// What becomes of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Waits,
    Given,
    /// This rank does not want it.
    Dropped,
}

impl Wait {
    fn new(again: bool, since: Instant) -> Self {
        Wait { again, since, caught: None }
    }

    /// The rank is seen to catch it, or not to.
    fn look(&mut self, caught: bool, now: Instant) -> Fate {
        self.caught = caught.then(|| self.caught.unwrap_or(now));
        let past = |at: Instant, time: Duration| now.saturating_duration_since(at) >= scaled(time);
        let settled = self.caught.is_some_and(|at| past(at, SETTLES));
        let late = past(self.since, if self.again { CATCHES } else { STARTS });
        match (settled, late, self.again) {
            (true, ..) | (_, true, false) => Fate::Given,
            (_, true, true) => Fate::Dropped,
            _ => Fate::Waits,
        }
    }

    fn pause(&self, now: Instant) -> Duration {
        let starts = self.caught.is_some() || now.saturating_duration_since(self.since) <= scaled(STARTS);
        if starts { LOOKS } else { LOOKS_LATE }
    }
}

impl Pending {
    /// One came for the rank.
    pub(super) fn came(&mut self, signal: i32) {
        self.came.insert(signal, job_time::now());
    }

    /// What was below is being ended.
    pub(super) fn forget(&mut self) {
        self.waits.clear();
    }

    /// What came, for an agent that was not there then.
    pub(super) fn remembered(&self) -> Vec<ToAgent> {
        let now = job_time::now();
        let ago = |at: &Instant| now.saturating_duration_since(*at).as_millis() as u64;
        self.came.iter().map(|(signal, at)| ToAgent::Remembered { signal: *signal, ago: ago(at) }).collect()
    }

    /// It waits from now on. One that waits already, and comes again, waits no longer for that.
    fn wait(&mut self, signal: i32, again: bool, now: Instant) {
        let wait = self.waits.entry(signal).or_insert(Wait::new(again, now));
        wait.again &= again;
    }
}

impl Slot {
    /// When signals that wait are to be looked at next.
    pub fn until_given(&self) -> Duration {
        let now = job_time::now();
        self.pending.waits.values().map(|wait| wait.pause(now)).min().unwrap_or(Duration::MAX)
    }

    /// What a new agent is to know of signals.
    pub fn remembered(&self) -> Vec<ToAgent> {
        self.pending.remembered()
    }

    /// The rank is to have this one when it catches it.
    pub(super) fn signal_when_caught(&mut self, signal: i32, again: bool) {
        self.pending.wait(signal, again, job_time::now());
    }

    /// Gives the rank those that it catches by now, and those that it has had the time to.
    pub fn give_pending(&mut self) -> Vec<ToAgent> {
        if self.pending.waits.is_empty() {
            return Vec::new();
        }
        let now = job_time::now();
        let catches = self.rank_pid().and_then(|rank| proc::signals(&proc::of(rank), &["SigCgt"]).ok().flatten());
        let mut over = Vec::new();
        for (signal, wait) in &mut self.pending.waits {
            let caught = catches.is_some_and(|set| set & (1 << (signal - 1)) != 0);
            let fate = wait.look(caught, now);
            if fate != Fate::Waits {
                over.push((*signal, wait.again, fate));
            }
        }
        let mut reports = Vec::new();
        for (signal, again, fate) in over {
            self.pending.waits.remove(&signal);
            if fate == Fate::Dropped {
                continue;
            }
            if again {
                self.pending.came.remove(&signal);
                reports.push(ToAgent::Repeated { signal });
            }
            reports.extend(self.signal(signal));
        }
        reports
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_fates() {
        let start = Instant::now();
        // Again or not, since when it is caught, and when what becomes of it.
        for (again, caught, settled, fate) in [
            (false, Some(0), 5, Fate::Given),
            (true, Some(0), 5, Fate::Given),
            (true, Some(60), 65, Fate::Given),
            (false, Some(3), 8, Fate::Given),
            (false, Some(7), 10, Fate::Given),
            (false, None, 10, Fate::Given),
            (true, None, 300, Fate::Dropped),
        ] {
            let mut wait = Wait::new(again, start);
            for second in 0..settled {
                let now = start + Duration::from_secs(second);
                assert_eq!(
                    wait.look(caught.is_some_and(|at| second >= at), now),
                    Fate::Waits,
                    "{wait:?} at {second} s"
                );
            }
            let now = start + Duration::from_secs(settled);
            assert_eq!(wait.look(caught.is_some(), now), fate, "{wait:?} at {settled} s");
        }
    }

    #[test]
    fn a_handler_that_goes_and_comes_settles_anew() {
        let start = Instant::now();
        let mut wait = Wait::new(true, start);
        let mut look = |caught, second| wait.look(caught, start + Duration::from_secs(second));
        assert_eq!([look(true, 0), look(false, 4), look(true, 5), look(true, 9)], [Fate::Waits; 4]);
        assert_eq!(look(true, 10), Fate::Given);
    }

    #[test]
    fn what_comes_again_waits_no_longer() {
        let (start, mut pending) = (Instant::now(), Pending::default());
        pending.wait(10, true, start);
        pending.wait(10, false, start + Duration::from_secs(8));
        let wait = pending.waits.get_mut(&10).map(|wait| wait.look(false, start + Duration::from_secs(10)));
        assert_eq!(wait, Some(Fate::Given));
    }
}
