//! The store: one key of the job with its revision, linearizable reads and compare-and-swap. Each request is lost before
//! or after it took effect, slow, or late, one by one; watches are delayed, coalesced and lost; nodes reach it or not,
//! each way apart.

use crate::net::Set;
use crate::rng::Rng;
use std::sync::Arc;

/// What is wrong with the store, or with the way to it, for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// Requests of these nodes do not reach it.
    NoRequests(Set),
    /// Its answers (and watches) do not reach these nodes.
    NoAnswers(Set),
    /// Its answers take between half of this and this to these nodes.
    LateAnswers(Set, u64),
    /// It elects a leader: nothing is applied before this is over.
    Election,
    /// Requests take between so and so long.
    Slow(u64, u64),
    /// So many of a thousand requests are lost before they take effect, after that, and land late, perhaps after their
    /// author has given them up, at most so much later.
    Loses { before: u64, after: u64, late: u64, by: u64 },
    /// Likewise, but of writes alone.
    LosesWrites { before: u64, late: u64, by: u64 },
    /// So many of a thousand watches are lost; others take up to this long.
    Watches { lost: u64, up_to: u64 },
}

/// The way of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Course {
    /// It takes effect after this time, or never.
    pub lands: Option<u64>,
    /// The answer is there so long after that, or never.
    pub answer: Option<u64>,
}

#[derive(Debug)]
pub struct Store<R> {
    /// Of the key; 0 when it is not there.
    revision: u64,
    /// Of the store: never goes back.
    newest: u64,
    value: Option<Arc<R>>,
    /// Every revision there was, for watches that are behind.
    past: Vec<(u64, Option<Arc<R>>)>,
    troubles: Vec<(u64, u64, Trouble)>,
    /// No request and no watch takes much longer than others do.
    even: bool,
    rng: Rng,
}

/// So many of a thousand requests are late, and by so much at most; a watch may always be.
const LATE: u64 = 30;
pub const LATEST_REQUEST: u64 = 50_000;
pub const LATEST_WATCH: u64 = 20_000;
/// What takes no longer than this is not late.
const USUAL: u64 = 2000;

impl<R> Store<R> {
    /// `even`: no request and no watch takes much longer than others do.
    pub fn new(rng: Rng, even: bool) -> Self {
        Store { revision: 0, newest: 0, value: None, past: vec![(0, None)], troubles: Vec::new(), even, rng }
    }

    pub fn trouble(&mut self, trouble: Trouble, from: u64, until: u64) {
        self.troubles.push((from, until, trouble));
    }

    /// Everything is well again.
    pub fn heal(&mut self) {
        self.troubles.clear();
    }

    fn now(&self, now: u64) -> impl Iterator<Item = (u64, Trouble)> {
        let standing = self.troubles.iter().filter(move |(from, until, _)| *from <= now && now < *until);
        standing.map(|(_, until, trouble)| (*until, *trouble))
    }

    /// The way that a request of `node` takes.
    pub fn course(&mut self, node: usize, write: bool, now: u64) -> Course {
        let late = !self.even && self.rng.chance(LATE);
        let usual = if late { self.rng.range(1000, LATEST_REQUEST) } else { self.rng.range(100, USUAL) };
        let mut course = Course { lands: Some(usual / 2), answer: Some(usual / 2) };
        let troubles: Vec<_> = self.now(now).collect();
        for (until, trouble) in troubles {
            let trouble = match trouble {
                Trouble::LosesWrites { before, late, by } if write => Trouble::Loses { before, after: 0, late, by },
                other => other,
            };
            match trouble {
                Trouble::NoRequests(nodes) if nodes.has(node) => course.lands = None,
                Trouble::NoAnswers(nodes) if nodes.has(node) => course.answer = None,
                Trouble::LateAnswers(nodes, by) if nodes.has(node) => {
                    let late = self.rng.range(by / 2, by);
                    course.answer = course.answer.map(|_| late);
                }
                Trouble::Election => course.lands = course.lands.map(|after| after.max(until - now)),
                Trouble::Slow(low, high) => {
                    let (there, back) = (self.rng.range(low, high) / 2, self.rng.range(low, high) / 2);
                    course.lands = course.lands.map(|_| there);
                    course.answer = course.answer.map(|_| back);
                }
                Trouble::Loses { before, after, late, by } => {
                    let drawn = self.rng.range(0, 999);
                    if drawn < before {
                        course.lands = None;
                    } else if drawn < before + after {
                        course.answer = None;
                    } else if drawn < before + after + late {
                        course = Course { lands: Some(self.rng.range(100, by.max(100))), answer: None };
                    }
                }
                _ => {}
            }
        }
        course
    }

    /// After how long a watch tells `node` of a write, if it does.
    pub fn watch(&mut self, node: usize, now: u64) -> Option<u64> {
        let latest = if self.even { USUAL } else { LATEST_WATCH };
        let mut after = Some(self.rng.range(200, latest));
        let troubles: Vec<_> = self.now(now).collect();
        for (_, trouble) in troubles {
            match trouble {
                Trouble::NoAnswers(nodes) if nodes.has(node) => after = None,
                Trouble::Watches { lost, up_to } => {
                    after = after.filter(|_| !self.rng.chance(lost)).map(|_| self.rng.range(200, up_to.max(200)));
                }
                _ => {}
            }
        }
        after
    }

    /// The key as it is.
    pub fn read(&self) -> (u64, Option<Arc<R>>) {
        (self.revision, self.value.clone())
    }

    /// The key as it was some revisions ago.
    pub fn stale(&mut self) -> (u64, Option<Arc<R>>) {
        let at = self.rng.range(0, self.past.len() as u64 - 1) as usize;
        self.past[at].clone()
    }

    pub fn value(&self) -> Option<&Arc<R>> {
        self.value.as_ref()
    }

    /// Writes the value if the key is at this revision (or `blind`ly); the new revision then.
    pub fn swap(&mut self, expected: u64, value: Arc<R>, blind: bool) -> Option<u64> {
        if expected != self.revision && !blind {
            return None;
        }
        self.put(Some(value));
        Some(self.revision)
    }

    /// Somebody deletes the key.
    pub fn delete(&mut self) {
        self.put(None);
    }

    fn put(&mut self, value: Option<Arc<R>>) {
        self.newest += 1;
        self.revision = if value.is_some() { self.newest } else { 0 };
        self.value = value;
        self.past.push((self.revision, self.value.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_of_two_writes_on_one_revision_loses() {
        let mut store = Store::new(Rng::of(1, 0), false);
        assert_eq!(store.swap(0, Arc::new('a'), false), Some(1));
        assert_eq!(store.swap(0, Arc::new('b'), false), None);
        assert_eq!(store.read(), (1, Some(Arc::new('a'))));
        assert_eq!(store.swap(1, Arc::new('b'), false), Some(2));
    }

    #[test]
    fn troubles_are_one_way_and_pass() {
        let mut store: Store<char> = Store::new(Rng::of(1, 0), false);
        store.trouble(Trouble::NoRequests(Set::one(1)), 10, 20);
        store.trouble(Trouble::NoAnswers(Set::one(2)), 10, 20);
        store.trouble(Trouble::Election, 30, 5000);
        assert!(store.course(0, false, 15).lands.is_some() && store.course(1, true, 15).lands.is_none());
        assert!(store.course(2, false, 15).lands.is_some() && store.course(2, false, 15).answer.is_none());
        assert!(store.course(1, false, 20).lands.is_some());
        assert!(store.course(1, true, 40).lands.is_some_and(|after| after >= 4960));
    }
}
