//! Which rank is on which slot, run-length: a job of 10 000 ranks in order is one run.

use crate::ids::{Rank, SlotId};
use std::collections::BTreeMap;

/// `length` ranks from `rank` on, placed on the slots from `slot` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Run {
    /// First rank.
    pub rank: Rank,
    /// Its slot.
    pub slot: SlotId,
    /// How many ranks; never 0.
    pub length: u32,
}

/// `length` ranks from `rank` on, which were placed on the slots from `was` on, and are on those from `slot` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shift {
    /// First rank.
    pub rank: Rank,
    /// Where it was, if it was anywhere.
    pub was: Option<SlotId>,
    /// Its slot.
    pub slot: SlotId,
    /// How many; never 0.
    pub length: u32,
}

impl Shift {
    /// Each rank: where it was, and where it is.
    pub fn ranks(self) -> impl Iterator<Item = (Rank, Option<SlotId>, SlotId)> {
        let was = move |at: u32| self.was.map(|was| SlotId(was.0 + at));
        (0..self.length).map(move |at| (Rank(self.rank.0 + at), was(at), SlotId(self.slot.0 + at)))
    }
}

/// Rank → slot for the ranks `0..world_size`, in rank order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Placement {
    runs: Vec<Run>,
}

/// Adds a run, to the last one where it continues that.
fn push(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        _ if run.length == 0 => {}
        Some(last) if run.slot.0.checked_sub(last.slot.0) == Some(last.length) => last.length += run.length,
        _ => runs.push(run),
    }
}

impl Placement {
    /// The placement that puts rank `i` on `slots[i]`.
    pub fn from_slots(slots: impl IntoIterator<Item = SlotId>) -> Self {
        let mut runs: Vec<Run> = Vec::new();
        for (rank, slot) in (0u32..).zip(slots) {
            push(&mut runs, Run { rank: Rank(rank), slot, length: 1 });
        }
        Placement { runs }
    }

    /// The placement of these runs; `None` unless they cover the ranks from 0 on without a gap, in order, and no slot
    /// twice.
    pub fn from_runs(runs: Vec<Run>) -> Option<Self> {
        let mut next = 0u32;
        for run in &runs {
            if run.rank.0 != next || run.length == 0 {
                return None;
            }
            run.slot.0.checked_add(run.length - 1)?;
            next = next.checked_add(run.length)?;
        }
        let mut by_slot: Vec<_> = runs.iter().map(|run| (run.slot.0, run.length)).collect();
        by_slot.sort_unstable();
        let disjoint = by_slot.windows(2).all(|pair| pair[0].0 + (pair[0].1 - 1) < pair[1].0);
        disjoint.then_some(Placement { runs })
    }

    /// The same placement, but for these ranks, which are elsewhere now.
    pub fn moved(&self, moved: &BTreeMap<Rank, SlotId>) -> Self {
        let mut runs: Vec<Run> = Vec::with_capacity(self.runs.len() + 2 * moved.len());
        for run in &self.runs {
            let mut next = run.rank.0;
            let end = run.rank.0 + run.length;
            for (rank, slot) in moved.range(run.rank..Rank(end)) {
                push(
                    &mut runs,
                    Run { rank: Rank(next), slot: SlotId(run.slot.0 + (next - run.rank.0)), length: rank.0 - next },
                );
                push(&mut runs, Run { rank: *rank, slot: *slot, length: 1 });
                next = rank.0 + 1;
            }
            push(
                &mut runs,
                Run { rank: Rank(next), slot: SlotId(run.slot.0 + (next - run.rank.0)), length: end - next },
            );
        }
        Placement { runs }
    }

    /// The ranks that are placed otherwise than in `before`, in rank order: as many looks as there are runs, however many ranks.
    pub fn shifts(&self, before: &Placement) -> Vec<Shift> {
        let mut shifts = Vec::new();
        let mut theirs = before.runs.iter().peekable();
        for run in &self.runs {
            let (mut rank, end) = (run.rank.0, run.rank.0 + run.length);
            while rank < end {
                while theirs.peek().is_some_and(|their| their.rank.0 + their.length <= rank) {
                    theirs.next();
                }
                let slot = SlotId(run.slot.0 + (rank - run.rank.0));
                let (was, until) = match theirs.peek() {
                    Some(their) => (Some(SlotId(their.slot.0 + (rank - their.rank.0))), their.rank.0 + their.length),
                    None => (None, end),
                };
                let until = until.min(end);
                if was != Some(slot) {
                    shifts.push(Shift { rank: Rank(rank), was, slot, length: until - rank });
                }
                rank = until;
            }
        }
        shifts
    }

    /// The slots of the ranks that are placed otherwise than in `other`.
    pub fn differs(&self, other: &Placement) -> Vec<SlotId> {
        let slots = |shift: Shift| (shift.slot.0..shift.slot.0 + shift.length).map(SlotId);
        self.shifts(other).into_iter().flat_map(slots).collect()
    }

    /// The runs, in rank order.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Number of ranks placed.
    pub fn len(&self) -> u32 {
        self.runs.last().map_or(0, |run| run.rank.0 + run.length)
    }

    /// Whether no rank is placed.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Every rank with its slot, in rank order.
    pub fn iter(&self) -> impl Iterator<Item = (Rank, SlotId)> + '_ {
        self.runs.iter().flat_map(|run| (0..run.length).map(|i| (Rank(run.rank.0 + i), SlotId(run.slot.0 + i))))
    }

    /// The slot of `rank`.
    pub fn slot(&self, rank: Rank) -> Option<SlotId> {
        let at = self.runs.partition_point(|run| run.rank <= rank).checked_sub(1)?;
        let run = self.runs[at];
        let offset = rank.0 - run.rank.0;
        (offset < run.length).then(|| SlotId(run.slot.0 + offset))
    }

    /// The rank on `slot`.
    pub fn rank(&self, slot: SlotId) -> Option<Rank> {
        self.runs.iter().find_map(|run| {
            let offset = slot.0.checked_sub(run.slot.0)?;
            (offset < run.length).then(|| Rank(run.rank.0 + offset))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_placed_otherwise_is_found() {
        let slots = |slots: &[u32]| Placement::from_slots(slots.iter().copied().map(SlotId));
        let old = slots(&[0, 1, 2, 3, 10, 11]);
        assert_eq!(slots(&[0, 1, 2, 3, 10, 11]).differs(&old), []);
        assert_eq!(slots(&[0, 7, 2, 8, 9, 11]).differs(&old), [7, 8, 9].map(SlotId));
        assert_eq!(slots(&[4, 1]).differs(&Placement::default()), [4, 1].map(SlotId));
    }
    use proptest::prelude::*;

    #[test]
    fn ranks_in_order_are_one_run() {
        let placement = Placement::from_slots((0..10_000).map(SlotId));
        assert_eq!(placement.runs().len(), 1);
        assert_eq!(placement.slot(Rank(9_999)), Some(SlotId(9_999)));
        assert_eq!(placement.slot(Rank(10_000)), None);
    }

    proptest! {
        #[test]
        fn runs_say_what_the_list_said(slots in proptest::collection::btree_set(0u32..64, 0..32).prop_shuffle_set()) {
            let placement = Placement::from_slots(slots.iter().copied().map(SlotId));
            prop_assert_eq!(placement.len() as usize, slots.len());
            for (rank, slot) in slots.iter().enumerate() {
                prop_assert_eq!(placement.slot(Rank(rank as u32)), Some(SlotId(*slot)));
                prop_assert_eq!(placement.rank(SlotId(*slot)), Some(Rank(rank as u32)));
            }
            prop_assert_eq!(Placement::from_runs(placement.runs().to_vec()), Some(placement));
        }
    }

    proptest! {
        #[test]
        fn who_moves_is_elsewhere_and_all_others_stay(
            ranks in 1u32..40,
            moves in proptest::collection::btree_map(0u32..40, 100u32..140, 0..20),
        ) {
            let before = Placement::from_slots((0..ranks).map(|rank| SlotId(rank + 10 * (rank / 7))));
            let mut taken = std::collections::BTreeSet::new();
            let moves = moves.into_iter().filter(|(rank, slot)| *rank < ranks && taken.insert(*slot));
            let moves: BTreeMap<Rank, SlotId> = moves.map(|(rank, slot)| (Rank(rank), SlotId(slot))).collect();
            let expected = (0..ranks).map(Rank).filter_map(|rank| moves.get(&rank).copied().or(before.slot(rank)));
            prop_assert_eq!(before.moved(&moves), Placement::from_slots(expected));
        }
    }

    proptest! {
        #[test]
        fn who_is_elsewhere_is_found_by_runs_as_one_by_one(
            old in proptest::collection::btree_set(0u32..40, 0..24).prop_shuffle_set(),
            new in proptest::collection::btree_set(0u32..40, 0..24).prop_shuffle_set(),
            same in 0usize..24,
        ) {
            let slots = |slots: &[u32]| Placement::from_slots(slots.iter().copied().map(SlotId));
            // They begin alike, as after a recovery.
            let same = same.min(old.len());
            let rest = new.iter().filter(|slot| !old[..same].contains(slot));
            let new: Vec<u32> = old[..same].iter().chain(rest).copied().collect();
            let (old, new) = (slots(&old), slots(&new));
            let each = new.iter().map(|(rank, slot)| (rank, old.slot(rank), slot)).filter(|(_, was, slot)| *was != Some(*slot));
            let found: Vec<_> = new.shifts(&old).into_iter().flat_map(Shift::ranks).collect();
            prop_assert_eq!(found, each.collect::<Vec<_>>());
        }
    }

    trait ShuffleSet {
        fn prop_shuffle_set(self) -> BoxedStrategy<Vec<u32>>;
    }

    impl<S: Strategy<Value = std::collections::BTreeSet<u32>> + 'static> ShuffleSet for S {
        fn prop_shuffle_set(self) -> BoxedStrategy<Vec<u32>> {
            self.prop_map(|set| set.into_iter().collect::<Vec<_>>()).prop_shuffle().boxed()
        }
    }

    #[test]
    fn a_slot_twice_or_a_gap_is_no_placement() {
        let run = |rank, slot, length| Run { rank: Rank(rank), slot: SlotId(slot), length };
        assert!(Placement::from_runs(vec![run(0, 4, 2), run(2, 5, 1)]).is_none());
        assert!(Placement::from_runs(vec![run(0, 4, 2), run(3, 7, 1)]).is_none());
        assert!(Placement::from_runs(vec![run(0, 4, 2), run(2, 0, 4)]).is_some());
    }
}
