//! Sets of ranks, run-length: all ranks of a job are one run, however many they are.

use crate::ids::Rank;

/// A set of ranks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RankSet {
    /// First and behind the last; in order, apart from each other, none empty.
    runs: Vec<(u32, u32)>,
}

impl RankSet {
    /// Nobody.
    pub fn new() -> Self {
        Self::default()
    }

    /// The ranks from `first` on, `end` not included.
    pub fn run(first: Rank, end: Rank) -> Self {
        RankSet { runs: if first < end { vec![(first.0, end.0)] } else { Vec::new() } }
    }

    /// The runs: first and behind the last.
    pub fn runs(&self) -> &[(u32, u32)] {
        &self.runs
    }

    /// Whether nobody is in it.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// How many are in it.
    pub fn len(&self) -> u32 {
        self.runs.iter().map(|(first, end)| end - first).sum()
    }

    /// Whether `rank` is in it.
    pub fn contains(&self, rank: Rank) -> bool {
        let at = self.runs.partition_point(|(first, _)| *first <= rank.0);
        at.checked_sub(1).is_some_and(|at| rank.0 < self.runs[at].1)
    }

    /// Whether everybody of `other` is in it.
    pub fn contains_all(&self, other: &RankSet) -> bool {
        other.without(self).is_empty()
    }

    /// Who is in it, in order.
    pub fn iter(&self) -> impl Iterator<Item = Rank> + '_ {
        self.runs.iter().flat_map(|(first, end)| (*first..*end).map(Rank))
    }

    /// Adds one.
    pub fn insert(&mut self, rank: Rank) {
        self.extend(&RankSet { runs: vec![(rank.0, rank.0 + 1)] });
    }

    /// Adds everybody of `other`.
    pub fn extend(&mut self, other: &RankSet) {
        let mut all: Vec<(u32, u32)> = Vec::with_capacity(self.runs.len() + other.runs.len());
        let (mut left, mut right) = (self.runs.iter().peekable(), other.runs.iter().peekable());
        loop {
            let next = match (left.peek(), right.peek()) {
                (Some(a), Some(b)) => {
                    if a <= b {
                        left.next()
                    } else {
                        right.next()
                    }
                }
                (Some(_), None) => left.next(),
                (None, _) => right.next(),
            };
            let Some((first, end)) = next.copied() else { break };
            match all.last_mut() {
                Some(last) if first <= last.1 => last.1 = last.1.max(end),
                _ => all.push((first, end)),
            }
        }
        self.runs = all;
    }

    /// Everybody who is not in `other`.
    pub fn without(&self, other: &RankSet) -> RankSet {
        let mut rest = Vec::new();
        for (first, end) in &self.runs {
            let mut next = *first;
            let from = other.runs.partition_point(|(_, end)| *end <= *first);
            for (cut, cut_end) in other.runs[from..].iter().take_while(|(cut, _)| cut < end) {
                if next < *cut {
                    rest.push((next, *cut));
                }
                next = next.max(*cut_end);
            }
            if next < *end {
                rest.push((next, *end));
            }
        }
        RankSet { runs: rest }
    }

    /// Everybody who is in both.
    pub fn common(&self, other: &RankSet) -> RankSet {
        self.without(&self.without(other))
    }
}

impl FromIterator<Rank> for RankSet {
    fn from_iter<I: IntoIterator<Item = Rank>>(ranks: I) -> Self {
        let mut ranks: Vec<u32> = ranks.into_iter().map(|rank| rank.0).collect();
        ranks.sort_unstable();
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for rank in ranks {
            match runs.last_mut() {
                Some(last) if rank <= last.1 => last.1 = last.1.max(rank + 1),
                _ => runs.push((rank, rank + 1)),
            }
        }
        RankSet { runs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn set() -> impl Strategy<Value = BTreeSet<u32>> {
        proptest::collection::btree_set(0u32..50, 0..50)
    }

    proptest! {
        #[test]
        fn runs_say_what_sets_say(left in set(), right in set()) {
            let of = |set: &BTreeSet<u32>| set.iter().copied().map(Rank).collect::<RankSet>();
            let (a, b) = (of(&left), of(&right));
            prop_assert_eq!(a.len() as usize, left.len());
            prop_assert_eq!(a.iter().map(|rank| rank.0).collect::<BTreeSet<_>>(), left.clone());
            prop_assert_eq!(a.without(&b), of(&left.difference(&right).copied().collect()));
            prop_assert_eq!(a.contains_all(&b), left.is_superset(&right));
            let mut all = a.clone();
            all.extend(&b);
            prop_assert_eq!(all, of(&left.union(&right).copied().collect()));
            let mut one_by_one = RankSet::new();
            right.iter().rev().for_each(|rank| one_by_one.insert(Rank(*rank)));
            prop_assert_eq!(one_by_one, b.clone());
            for rank in 0..50 {
                prop_assert_eq!(a.contains(Rank(rank)), left.contains(&rank));
            }
        }
    }

    #[test]
    fn everybody_is_one_run() {
        let all = RankSet::run(Rank(0), Rank(640_000));
        assert_eq!((all.runs().len(), all.len()), (1, 640_000));
        assert!(RankSet::run(Rank(3), Rank(3)).is_empty());
    }
}
