//! Which slots a job ever had: on which node each is, and what it is good for. Both run-length, so that 10 000 nodes of 64
//! slots are one run each, and every loss a few more.

use crate::ids::{NodeId, SlotId};

/// What a slot is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SlotState {
    /// A rank is placed on it.
    Active,
    /// It stands by.
    Parked,
    /// It is gone and never used again.
    Lost,
}

/// A slot, where it is, and its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotEntry {
    /// The slot.
    pub slot: SlotId,
    /// Its node.
    pub node: NodeId,
    /// Its state.
    pub state: SlotState,
}

/// `nodes` nodes from `node` on, with `each` slots apiece, from `slot` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Home {
    /// The first slot.
    pub slot: SlotId,
    /// The first node.
    pub node: NodeId,
    /// How many nodes; never 0.
    pub nodes: u32,
    /// Slots on each; never 0.
    pub each: u32,
}

impl Home {
    fn length(&self) -> u32 {
        self.nodes.saturating_mul(self.each)
    }

    fn end(&self) -> u32 {
        self.slot.0.saturating_add(self.length())
    }

    fn node_of(&self, slot: SlotId) -> NodeId {
        NodeId(self.node.0 + (slot.0 - self.slot.0) / self.each)
    }

    /// The slots of `node`, first and behind the last.
    fn slots_of(&self, node: NodeId) -> Option<(u32, u32)> {
        let row = node.0.checked_sub(self.node.0).filter(|row| *row < self.nodes)?;
        let first = self.slot.0 + row * self.each;
        Some((first, first + self.each))
    }

    /// As `self`, without its last node, and that node's part.
    fn without_last(self) -> (Option<Home>, Home) {
        let rows = self.nodes - 1;
        let last = Home {
            slot: SlotId(self.slot.0 + rows * self.each),
            node: NodeId(self.node.0 + rows),
            nodes: 1,
            each: self.each,
        };
        ((rows > 0).then_some(Home { nodes: rows, ..self }), last)
    }
}

/// `length` slots from `slot` on, all in one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StateRun {
    /// The first slot.
    pub slot: SlotId,
    /// How many; never 0.
    pub length: u32,
    /// Their state.
    pub state: SlotState,
}

impl StateRun {
    fn end(&self) -> u32 {
        self.slot.0.saturating_add(self.length)
    }
}

/// Every slot that the job ever had, by id.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Slots {
    homes: Vec<Home>,
    states: Vec<StateRun>,
}

impl Slots {
    /// These slots; their ids grow.
    pub fn of(entries: impl IntoIterator<Item = SlotEntry>) -> Self {
        let mut slots = Slots::default();
        entries.into_iter().for_each(|entry| slots.insert(entry));
        slots
    }

    /// These runs; `None` unless both are in order, do not overlap, and speak of the same slots.
    pub fn from_runs(homes: Vec<Home>, states: Vec<StateRun>) -> Option<Self> {
        let fits = |first: u32, length: Option<u32>| length.is_some_and(|n| n > 0 && first.checked_add(n).is_some());
        let whole = homes.iter().all(|home| {
            fits(home.slot.0, home.nodes.checked_mul(home.each)) && home.node.0.checked_add(home.nodes).is_some()
        }) && states.iter().all(|run| fits(run.slot.0, Some(run.length)));
        let ordered = homes.windows(2).all(|pair| pair[0].end() <= pair[1].slot.0)
            && states.windows(2).all(|pair| pair[0].end() <= pair[1].slot.0);
        if !(whole && ordered) {
            return None;
        }
        let spans = |ends: Vec<(u32, u32)>| {
            let mut spans: Vec<(u32, u32)> = Vec::new();
            for (first, end) in ends {
                match spans.last_mut() {
                    Some(last) if last.1 == first => last.1 = end,
                    _ => spans.push((first, end)),
                }
            }
            spans
        };
        let homed = spans(homes.iter().map(|home| (home.slot.0, home.end())).collect());
        let stated = spans(states.iter().map(|run| (run.slot.0, run.end())).collect());
        (homed == stated).then_some(Slots { homes, states })
    }

    /// Where the slots are.
    pub fn homes(&self) -> &[Home] {
        &self.homes
    }

    /// What they are good for.
    pub fn states(&self) -> &[StateRun] {
        &self.states
    }

    /// How many slots the job ever had.
    pub fn len(&self) -> u32 {
        self.states.iter().map(|run| run.length).sum()
    }

    /// Whether the job never had a slot.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// The node of `slot`.
    pub fn node(&self, slot: SlotId) -> Option<NodeId> {
        let at = self.homes.partition_point(|home| home.slot <= slot).checked_sub(1)?;
        let home = self.homes[at];
        (slot.0 < home.end()).then(|| home.node_of(slot))
    }

    /// What is known of `slot`.
    pub fn get(&self, slot: SlotId) -> Option<SlotEntry> {
        let state = self.states[self.state_of(slot)?].state;
        Some(SlotEntry { slot, node: self.node(slot)?, state })
    }

    /// Every slot, by id.
    pub fn iter(&self) -> impl Iterator<Item = SlotEntry> + '_ {
        self.states.iter().flat_map(|run| {
            let entry = |slot| Some(SlotEntry { slot, node: self.node(slot)?, state: run.state });
            (run.slot.0..run.end()).map(SlotId).filter_map(entry)
        })
    }

    /// The slots in this state, by id.
    pub fn in_state(&self, state: SlotState) -> impl Iterator<Item = SlotEntry> + '_ {
        let runs = self.states.iter().filter(move |run| run.state == state);
        runs.flat_map(move |run| {
            (run.slot.0..run.end()).filter_map(move |slot| {
                let slot = SlotId(slot);
                Some(SlotEntry { slot, node: self.node(slot)?, state })
            })
        })
    }

    /// The slots of `node`, by id.
    pub fn of_node(&self, node: NodeId) -> impl Iterator<Item = SlotEntry> + '_ {
        let spans = self.homes.iter().filter_map(move |home| home.slots_of(node));
        spans.flat_map(move |(first, end)| (first..end).filter_map(|slot| self.get(SlotId(slot))))
    }

    /// Whether all `length` slots from `slot` on are in this state.
    pub fn all_in(&self, slot: SlotId, length: u32, state: SlotState) -> bool {
        let end = slot.0.saturating_add(length);
        let mut next = slot.0;
        let from = self.states.partition_point(|run| run.end() <= slot.0);
        for run in &self.states[from..] {
            if next >= end || run.slot.0 > next || run.state != state {
                break;
            }
            next = run.end();
        }
        next >= end
    }

    /// The parts of the `length` slots from `slot` on that are in this state: first and behind the last.
    pub fn parts_in(&self, slot: SlotId, length: u32, state: SlotState) -> impl Iterator<Item = (SlotId, u32)> + '_ {
        let end = slot.0.saturating_add(length);
        let from = self.states.partition_point(|run| run.end() <= slot.0);
        let overlapping = self.states[from..].iter().take_while(move |run| run.slot.0 < end);
        overlapping.filter(move |run| run.state == state).map(move |run| {
            let (first, last) = (run.slot.0.max(slot.0), run.end().min(end));
            (SlotId(first), last - first)
        })
    }

    /// Adds a slot that the job never had; one that it knows stays as it is.
    pub fn insert(&mut self, entry: SlotEntry) {
        if self.append(entry) || self.state_of(entry.slot).is_some() {
            return;
        }
        let at = self.states.partition_point(|run| run.slot < entry.slot);
        self.states.insert(at, StateRun { slot: entry.slot, length: 1, state: entry.state });
        self.join_states(at);
        let at = self.homes.partition_point(|home| home.slot < entry.slot);
        let before = at.checked_sub(1).map(|at| self.homes[at]).filter(|home| home.end() == entry.slot.0);
        match before.map(Home::without_last) {
            // The last node before it has one more.
            Some((rest, last)) if last.node == entry.node => {
                let grown = Home { each: last.each + 1, ..last };
                self.homes.splice(at - 1..at, rest.into_iter().chain([grown]));
                self.join_homes(at - 1 + usize::from(rest.is_some()));
            }
            _ => {
                self.homes.insert(at, Home { slot: entry.slot, node: entry.node, nodes: 1, each: 1 });
                self.join_homes(at);
            }
        }
    }

    /// The same of one that continues both last runs, as most do: false where it does not.
    fn append(&mut self, SlotEntry { slot, node, state }: SlotEntry) -> bool {
        let (Some(run), Some(home)) = (self.states.last_mut(), self.homes.last_mut()) else { return false };
        let continued = run.end() == slot.0 && home.end() == slot.0 && home.node == node && home.nodes == 1;
        if !continued || run.state != state {
            return false;
        }
        run.length += 1;
        home.each += 1;
        self.join_homes(self.homes.len() - 1);
        true
    }

    /// What a slot is good for from now on; one that is lost stays lost.
    pub fn set(&mut self, slot: SlotId, state: SlotState) {
        let Some(at) = self.state_of(slot).filter(|at| self.states[*at].state != SlotState::Lost) else { return };
        let run = self.states[at];
        let before = StateRun { length: slot.0 - run.slot.0, ..run };
        let alone = StateRun { slot, length: 1, state };
        let after = StateRun { slot: SlotId(slot.0 + 1), length: run.end() - slot.0 - 1, ..run };
        let parts = [before, alone, after].into_iter().filter(|run| run.length > 0);
        self.states.splice(at..=at, parts);
        self.join_states(at + usize::from(before.length > 0));
    }

    /// All slots of a node are lost.
    pub fn lose_node(&mut self, node: NodeId) {
        let slots: Vec<SlotId> = self.of_node(node).map(|entry| entry.slot).collect();
        slots.into_iter().for_each(|slot| self.set(slot, SlotState::Lost));
    }

    fn state_of(&self, slot: SlotId) -> Option<usize> {
        let at = self.states.partition_point(|run| run.slot <= slot).checked_sub(1)?;
        (slot.0 < self.states[at].end()).then_some(at)
    }

    /// Joins the run at `at` with its neighbours, where they continue it.
    fn join_states(&mut self, at: usize) {
        for at in [at + 1, at] {
            let Some([left, right]) = at.checked_sub(1).and_then(|from| self.states.get(from..=at)) else { continue };
            if left.end() == right.slot.0 && left.state == right.state {
                let length = left.length + right.length;
                self.states[at - 1].length = length;
                self.states.remove(at);
            }
        }
    }

    fn join_homes(&mut self, at: usize) {
        for at in [at + 1, at] {
            let Some([left, right]) = at.checked_sub(1).and_then(|from| self.homes.get(from..=at)) else { continue };
            let continued = left.end() == right.slot.0 && left.node.0 + left.nodes == right.node.0;
            if continued && left.each == right.each {
                let nodes = left.nodes + right.nodes;
                self.homes[at - 1].nodes = nodes;
                self.homes.remove(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn regular(nodes: u32, each: u32) -> Slots {
        let entry = |slot| SlotEntry { slot: SlotId(slot), node: NodeId(slot / each), state: SlotState::Active };
        Slots::of((0..nodes * each).map(entry))
    }

    #[test]
    fn nodes_alike_are_one_run_however_many_slots_they_have() {
        for each in [1, 2, 3, 64] {
            let slots = regular(1000, each);
            assert_eq!((slots.homes().len(), slots.states().len()), (1, 1), "{each}");
            assert_eq!(slots.node(SlotId(999 * each)), Some(NodeId(999)));
            assert_eq!(slots.len(), 1000 * each);
        }
    }

    #[test]
    fn a_lost_node_is_one_run_more_on_each_side() {
        let mut slots = regular(1000, 64);
        slots.lose_node(NodeId(17));
        assert_eq!((slots.homes().len(), slots.states().len()), (1, 3));
        assert!(slots.of_node(NodeId(17)).all(|entry| entry.state == SlotState::Lost));
        assert!(!slots.all_in(SlotId(17 * 64 - 1), 2, SlotState::Active));
        assert!(slots.all_in(SlotId(18 * 64), 982 * 64, SlotState::Active));
        let parts: Vec<_> = slots.parts_in(SlotId(17 * 64 - 8), 80, SlotState::Lost).collect();
        assert_eq!(parts, [(SlotId(17 * 64), 64)]);
    }

    fn state() -> impl Strategy<Value = SlotState> {
        prop_oneof![Just(SlotState::Active), Just(SlotState::Parked), Just(SlotState::Lost)]
    }

    proptest! {
        #[test]
        fn runs_say_what_a_map_says(
            acts in proptest::collection::vec((0u32..48, 0u32..8, state(), 0u32..8), 0..120),
        ) {
            let mut slots = Slots::default();
            let mut map: BTreeMap<u32, SlotEntry> = BTreeMap::new();
            for (slot, node, state, act) in acts {
                let entry = SlotEntry { slot: SlotId(slot), node: NodeId(node), state };
                match act {
                    0..=3 => {
                        slots.insert(entry);
                        map.entry(slot).or_insert(entry);
                    }
                    4..=6 => {
                        slots.set(SlotId(slot), state);
                        map.entry(slot).and_modify(|known| if known.state != SlotState::Lost { known.state = state });
                    }
                    _ => {
                        slots.lose_node(NodeId(node));
                        map.values_mut().filter(|known| known.node.0 == node).for_each(|known| known.state = SlotState::Lost);
                    }
                }
                let all: Vec<SlotEntry> = map.values().copied().collect();
                prop_assert_eq!(slots.iter().collect::<Vec<_>>(), all.clone());
                prop_assert_eq!(slots.len() as usize, all.len());
                for slot in 0..48 {
                    prop_assert_eq!(slots.get(SlotId(slot)), map.get(&slot).copied());
                }
                for node in (0..8).map(NodeId) {
                    let mine: Vec<SlotEntry> = all.iter().filter(|entry| entry.node == node).copied().collect();
                    prop_assert_eq!(slots.of_node(node).collect::<Vec<_>>(), mine);
                }
                for state in [SlotState::Active, SlotState::Parked, SlotState::Lost] {
                    let in_state: Vec<SlotEntry> = all.iter().filter(|entry| entry.state == state).copied().collect();
                    prop_assert_eq!(slots.in_state(state).collect::<Vec<_>>(), in_state);
                    let whole = (10..20).all(|slot| map.get(&slot).is_some_and(|entry| entry.state == state));
                    prop_assert_eq!(slots.all_in(SlotId(10), 10, state), whole);
                    let parts: Vec<u32> = slots.parts_in(SlotId(10), 10, state).flat_map(|(s, n)| s.0..s.0 + n).collect();
                    let there = all.iter().filter(|entry| entry.state == state).map(|entry| entry.slot.0);
                    prop_assert_eq!(parts, there.filter(|slot| (10..20).contains(slot)).collect::<Vec<_>>());
                }
                let again = Slots::from_runs(slots.homes().to_vec(), slots.states().to_vec());
                prop_assert_eq!(again, Some(slots.clone()));
            }
        }
    }

    #[test]
    fn runs_that_contradict_each_other_are_no_slots() {
        let home = |slot, nodes, each| Home { slot: SlotId(slot), node: NodeId(0), nodes, each };
        let run = |slot, length| StateRun { slot: SlotId(slot), length, state: SlotState::Active };
        assert!(Slots::from_runs(vec![home(0, 2, 2)], vec![run(0, 4)]).is_some());
        assert!(Slots::from_runs(vec![home(0, 2, 2)], vec![run(0, 3)]).is_none());
        assert!(Slots::from_runs(vec![home(0, 2, 2), home(3, 1, 1)], vec![run(0, 4)]).is_none());
        assert!(Slots::from_runs(vec![home(0, u32::MAX, 2)], vec![run(0, 4)]).is_none());
        assert!(Slots::from_runs(vec![home(0, 0, 2)], Vec::new()).is_none());
    }
}
