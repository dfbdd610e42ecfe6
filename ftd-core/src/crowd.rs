//! Slots that nodes get beyond their own: where the ranks of a lost node go on when no slot is free (`--ft-oversubscribe`).

use crate::ids::{NodeId, SlotId};
use crate::slots::{SlotEntry, SlotState, Slots};
use std::collections::{BTreeMap, BTreeSet};

/// So many nodes get some at once, at the most: what is written then names the lease of each, and etcd takes 128 operations.
const MOST_NODES: usize = 64;

/// What a node has.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    /// Slots with a rank.
    ranks: u32,
    /// Slots of its own, used or not.
    own: u32,
    /// Slots that it ever got beyond those.
    beyond: u32,
}

impl Load {
    /// How full it is with one rank more: ranks for each slot of its own.
    fn with_one_more(self) -> u64 {
        (u64::from(self.ranks + 1) << 32) / u64::from(self.own.max(1))
    }
}

/// The nodes that are left, by how full they are.
#[derive(Debug)]
pub struct Crowd {
    loads: BTreeMap<NodeId, Load>,
    order: BTreeSet<(u64, NodeId)>,
}

impl Crowd {
    /// Of those nodes that take some.
    pub fn of(slots: &Slots, takes: impl Fn(NodeId) -> bool) -> Crowd {
        let mut loads: BTreeMap<NodeId, Load> = BTreeMap::new();
        for SlotEntry { slot, node, state } in slots.iter() {
            let load = loads.entry(node).or_default();
            load.ranks += u32::from(state == SlotState::Active);
            load.own += u32::from(state != SlotState::Lost && !slot.is_beyond());
            load.beyond += u32::from(slot.is_beyond());
        }
        loads.retain(|node, _| takes(*node));
        let numbered = |(node, load): &(&NodeId, &Load)| SlotId::beyond(**node, load.beyond).is_some();
        let order = loads.iter().filter(numbered).map(|(node, load)| (load.with_one_more(), *node));
        let order = order.collect::<BTreeSet<_>>().into_iter().take(MOST_NODES).collect();
        Crowd { loads, order }
    }

    /// A slot more, on the node that is the least full with it; the lowest of equals.
    pub fn grow(&mut self) -> Option<SlotEntry> {
        while let Some((_, node)) = self.order.pop_first() {
            let load = self.loads.get_mut(&node)?;
            let Some(slot) = SlotId::beyond(node, load.beyond) else { continue };
            load.beyond += 1;
            load.ranks += 1;
            self.order.insert((load.with_one_more(), node));
            return Some(SlotEntry { slot, node, state: SlotState::Active });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes with so many own slots each, all with a rank.
    fn full(each: &[u32]) -> Slots {
        let nodes = each.iter().zip(0..).flat_map(|(count, node)| std::iter::repeat_n(NodeId(node), *count as usize));
        let entry = |(slot, node)| SlotEntry { slot: SlotId(slot), node, state: SlotState::Active };
        Slots::of((0..).zip(nodes).map(entry))
    }

    fn given(crowd: &mut Crowd, count: usize) -> Vec<u32> {
        std::iter::from_fn(|| crowd.grow()).take(count).map(|entry| entry.node.0).collect()
    }

    #[test]
    fn nodes_alike_get_one_each_before_one_gets_a_second() {
        let mut crowd = Crowd::of(&full(&[2, 2, 2, 2]), |node| node != NodeId(1));
        assert_eq!(given(&mut crowd, 7), [0, 2, 3, 0, 2, 3, 0]);
    }

    #[test]
    fn who_has_more_slots_gets_more() {
        let mut crowd = Crowd::of(&full(&[2, 8]), |_| true);
        let mut nodes = given(&mut crowd, 5);
        nodes.sort_unstable();
        assert_eq!(nodes, [0, 1, 1, 1, 1]);
    }

    #[test]
    fn no_slot_is_given_twice() {
        let mut slots = full(&[1, 1]);
        let first = Crowd::of(&slots, |_| true).grow().unwrap();
        assert_eq!((first.slot, first.node), (SlotId::beyond(NodeId(0), 0).unwrap(), NodeId(0)));
        slots.insert(first);
        slots.set(first.slot, SlotState::Lost);
        let second = Crowd::of(&slots, |node| node == NodeId(0)).grow().unwrap();
        assert_eq!(second.slot, SlotId::beyond(NodeId(0), 1).unwrap());
        assert!(second.slot.is_beyond() && !SlotId((1 << 31) - 1).is_beyond());
    }

    #[test]
    fn no_more_nodes_get_some_than_a_write_can_name() {
        let mut nodes = given(&mut Crowd::of(&full(&[1; 300]), |_| true), 256);
        nodes.sort_unstable();
        nodes.dedup();
        assert_eq!(nodes.len(), MOST_NODES);
        assert!(Crowd::of(&full(&[1]), |_| false).grow().is_none(), "nobody is left");
        assert_eq!(SlotId::beyond(NodeId(9000), 0), None);
    }
}
