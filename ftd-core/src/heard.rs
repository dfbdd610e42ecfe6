//! Signals that ranks were given on behalf of who runs the job, and until when an end may be the answer to one.

use crate::ids::Micros;
use std::collections::BTreeMap;

/// So long at least after a signal the end of a rank may be its answer to it: a handler that saves has this time. Each signal has its own.
const ANSWERED: Micros = Micros::from_secs(300);

/// What Slurm sends before it ends a whole job by SIGKILL.
const TERM: i32 = 15;

/// When each signal was heard last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// So long an end may be the answer.
    within: Micros,
    last: BTreeMap<i32, Micros>,
    /// Of [`TERM`], by whatever world.
    term: Option<Micros>,
}

impl Heard {
    /// None was. A program that needs longer to save than others do is granted that as `grace`.
    pub fn new(grace: Micros) -> Self {
        Heard { within: ANSWERED.max(grace), last: BTreeMap::new(), term: None }
    }

    /// So long after a signal an end may be the answer to it.
    pub fn within(&self) -> Micros {
        self.within
    }

    /// Whether none ever was.
    pub fn is_empty(&self) -> bool {
        self.last.is_empty() && self.term.is_none()
    }

    /// Ranks are given this one.
    pub fn hears(&mut self, signal: i32, now: Micros) {
        self.last.insert(signal, now);
        if signal == TERM {
            self.term = Some(now);
        }
    }

    /// Ranks are given this one again: nobody has sent it.
    pub fn hears_again(&mut self, signal: i32, now: Micros) {
        self.last.insert(signal, now);
    }

    /// Other ranks had this one at that time, of whom nothing is known but that.
    pub fn remembers(&mut self, signal: i32, at: Micros) {
        if signal == TERM {
            self.term = self.term.max(Some(at));
        }
    }

    /// Other processes play the ranks from now on, which have heard nothing.
    pub fn begins_anew(&mut self) {
        self.last.clear();
    }

    /// Whether an end now may be the answer to this one.
    pub fn counts(&self, signal: i32, now: Micros) -> bool {
        self.last.get(&signal).is_some_and(|at| now.since(*at) <= self.within)
    }

    /// Until when one may be.
    pub fn until(&self, signal: i32) -> Option<Micros> {
        self.last.get(&signal).map(|at| at.after(self.within))
    }

    /// The newest to which an end may be the answer now.
    pub fn newest(&self, now: Micros) -> Option<i32> {
        let counting = self.last.iter().filter(|(signal, _)| self.counts(**signal, now));
        counting.max_by_key(|(_, at)| **at).map(|(signal, _)| *signal)
    }

    /// Whether what is killed at that time may have been killed because the whole job is being.
    pub fn is_followed_by_kill(&self, at: Micros) -> bool {
        self.term.is_some_and(|term| at.since(term) <= self.within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USR1: i32 = 10;

    #[test]
    fn each_signal_has_a_time_of_its_own() {
        let mut heard = Heard::new(Micros(0));
        let at = |seconds| Micros::from_secs(seconds);
        assert_eq!(heard.newest(at(0)), None);
        heard.hears(TERM, at(0));
        heard.hears(USR1, at(200));
        assert_eq!((heard.newest(at(200)), heard.counts(TERM, at(300))), (Some(USR1), true));
        // The younger one does not keep the older one, nor the older one take the younger one along.
        assert!(!heard.counts(TERM, at(301)) && heard.counts(USR1, at(500)) && !heard.is_followed_by_kill(at(301)));
        assert_eq!((heard.newest(at(500)), heard.newest(at(501))), (Some(USR1), None));
        heard.hears(TERM, at(600));
        assert!(heard.is_followed_by_kill(at(900)), "it came again");
        assert_eq!(heard.newest(at(600)), Some(TERM));
        heard.begins_anew();
        assert_eq!((heard.newest(at(601)), heard.is_empty()), (None, false), "other processes play the ranks");
        assert!(heard.is_followed_by_kill(at(601)), "the kill is still to come");
    }

    #[test]
    fn who_is_granted_more_time_has_it() {
        let mut heard = Heard::new(Micros::from_secs(600));
        heard.hears(USR1, Micros::from_secs(0));
        assert_eq!(heard.until(USR1), Some(Micros::from_secs(600)));
        assert!(heard.counts(USR1, Micros::from_secs(600)) && !heard.counts(USR1, Micros::from_secs(601)));
    }
}
