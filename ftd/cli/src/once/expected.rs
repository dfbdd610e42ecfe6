//! The lines that a rank may print again, in order, and how far it has come.

use std::collections::HashMap;

/// So many are looked at one after the other before an index is made.
const NEAR: usize = 32;
/// No other.
const NONE: usize = usize::MAX;

/// Hashes of lines, and which of them is the next.
#[derive(Debug, Default)]
pub(super) struct Expected {
    lines: Vec<u64>,
    next: usize,
    index: Option<Index>,
}

/// Where each line stands.
#[derive(Debug)]
struct Index {
    first: HashMap<u64, usize>,
    /// For each line the next one that is the same.
    same: Vec<usize>,
}

impl Index {
    fn of(lines: &[u64], from: usize) -> Index {
        let (mut first, mut same) = (HashMap::with_capacity(lines.len() - from), vec![NONE; lines.len()]);
        for at in (from..lines.len()).rev() {
            same[at] = first.insert(lines[at], at).unwrap_or(NONE);
        }
        Index { first, same }
    }

    fn find(&mut self, line: u64, from: usize) -> Option<usize> {
        let at = self.first.get_mut(&line)?;
        while *at < from {
            *at = self.same[*at];
        }
        (*at != NONE).then_some(*at)
    }
}

impl Expected {
    pub(super) fn new(lines: Vec<u64>) -> Expected {
        Expected { lines, next: 0, index: None }
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len() - self.next
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first line from the next one on that is this one: all up to it are taken out, and it is the last of them.
    pub(super) fn take_to(&mut self, line: u64) -> Option<&[u64]> {
        let near = self.lines[self.next..].iter().take(NEAR).position(|other| *other == line);
        let at = match near {
            Some(steps) => self.next + steps,
            None if self.len() <= NEAR => return None,
            None => {
                let index = self.index.get_or_insert_with(|| Index::of(&self.lines, self.next));
                index.find(line, self.next)?
            }
        };
        let taken = &self.lines[self.next..=at];
        self.next = at + 1;
        Some(taken)
    }

    /// One more, behind all others.
    pub(super) fn push(&mut self, line: u64) {
        self.index = None;
        self.lines.push(line);
    }

    /// All that are left.
    pub(super) fn take(&mut self) -> Vec<u64> {
        let Expected { mut lines, next, .. } = std::mem::take(self);
        lines.drain(..next);
        lines
    }

    /// The next ones are forgotten, so many.
    pub(super) fn skip(&mut self, count: usize) {
        self.next = (self.next + count).min(self.lines.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// With and without an index it is the first one from where it stands.
        #[test]
        fn the_first_one_is_found(lines in proptest::collection::vec(0u64..40, 0..200), wanted in proptest::collection::vec(0u64..50, 0..60)) {
            let mut expected = Expected::new(lines.clone());
            let mut next = 0;
            for line in wanted {
                let at = lines[next..].iter().position(|other| *other == line).map(|steps| next + steps);
                prop_assert_eq!(expected.take_to(line), at.map(|at| &lines[next..=at]));
                next = at.map_or(next, |at| at + 1);
                prop_assert_eq!(expected.len(), lines.len() - next);
            }
            prop_assert_eq!(expected.take(), &lines[next..]);
        }
    }
}
