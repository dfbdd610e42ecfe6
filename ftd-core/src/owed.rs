//! Signals that ranks had which are no more: those that play them now are owed them. Each is given again once.

use crate::ids::Micros;
use std::collections::BTreeMap;

/// What the ranks of this node are owed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owed {
    /// When each signal came last for the ranks that play now.
    came: BTreeMap<i32, Micros>,
    /// Those that only others have had, and since when the ranks wait for them that play now.
    owed: BTreeMap<i32, Option<Micros>>,
}

impl Owed {
    /// Whether there is nothing to know.
    pub fn is_empty(&self) -> bool {
        self.came.is_empty() && self.owed.is_empty()
    }

    /// The ranks that play now are given this one.
    pub fn came(&mut self, signal: i32, now: Micros) {
        self.came.insert(signal, now);
    }

    /// It came for ranks of which this agent knows nothing.
    pub fn remembered(&mut self, signal: i32) {
        self.owed.insert(signal, None);
    }

    /// It was given again.
    pub fn repeated(&mut self, signal: i32) {
        self.owed.remove(&signal);
    }

    /// Others play the ranks from now on; that something had failed was known at that time. What came longer than this before it had its effect.
    pub fn begins_anew(&mut self, failed: Micros, within: Micros) {
        self.owed.retain(|_, since| since.is_none_or(|since| failed.since(since) <= within));
        self.owed.values_mut().for_each(|since| *since = None);
        let young = std::mem::take(&mut self.came).into_iter().filter(|(_, at)| failed.since(*at) <= within);
        self.owed.extend(young.map(|(signal, _)| (signal, None)));
    }

    /// The ranks compute: these wait for them from now on.
    pub fn due(&mut self, now: Micros) -> Vec<i32> {
        let due = self.owed.iter_mut().filter(|(_, since)| since.is_none());
        let due = due.map(|(signal, since)| (*signal, since.insert(now)));
        due.map(|(signal, _)| signal).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Micros = Micros::from_secs(300);
    const USR1: i32 = 10;
    const TERM: i32 = 15;

    fn at(seconds: u64) -> Micros {
        Micros::from_secs(seconds)
    }

    #[test]
    fn what_came_shortly_before_a_failure_is_owed_to_the_next_ranks_once() {
        let mut owed = Owed::default();
        owed.came(TERM, at(0));
        owed.came(USR1, at(200));
        assert!(owed.due(at(200)).is_empty(), "they have them");
        owed.begins_anew(at(301), WITHIN);
        assert_eq!((owed.due(at(900)), owed.due(at(900))), (vec![USR1], vec![]), "however long there was no world");
        owed.repeated(USR1);
        owed.begins_anew(at(901), WITHIN);
        assert!(owed.due(at(901)).is_empty() && owed.is_empty(), "a handler that crashes must not crash every world");
        owed.came(USR1, at(902));
        owed.begins_anew(at(903), WITHIN);
        assert_eq!(owed.due(at(904)), [USR1], "it came again");
    }

    #[test]
    fn who_dies_before_it_catches_a_signal_leaves_it_owed() {
        let mut owed = Owed::default();
        owed.came(USR1, at(0));
        owed.begins_anew(at(1), WITHIN);
        owed.begins_anew(at(1000), WITHIN);
        assert_eq!(owed.due(at(1001)), [USR1], "no world has computed");
        owed.begins_anew(at(1301), WITHIN);
        assert_eq!(owed.due(at(1400)), [USR1], "no handler was there");
        owed.begins_anew(at(1701), WITHIN);
        assert!(owed.due(at(1701)).is_empty(), "this program has none");

        owed.remembered(TERM);
        owed.begins_anew(at(2000), WITHIN);
        assert_eq!(owed.due(at(2000)), [TERM], "another agent's ranks had it");
    }
}
