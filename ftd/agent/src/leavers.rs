//! Who takes no more checkpoints goes along the tree of a world's nodes: each hears of it from one neighbour and passes it on to the
//! others. What comes to be known while a neighbour has not noted the last word goes with the next one, all of it.

use crate::layout::Layout;
use ft_wire::Rank;
use ft_wire::between::Leaver;
use ftd_core::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// Those of one world.
#[derive(Debug)]
pub struct Leavers {
    known: BTreeSet<Rank>,
    /// What each neighbour in the tree has not been told.
    untold: BTreeMap<NodeId, Vec<Leaver>>,
}

impl Leavers {
    /// Nobody yet.
    pub fn new(layout: &Layout) -> Leavers {
        let neighbours =
            layout.tree(&[(0, Rank::MAX)]).into_iter().flat_map(|tree| tree.children.into_iter().chain(tree.parent));
        Leavers { known: BTreeSet::new(), untold: neighbours.map(|node| (node, Vec::new())).collect() }
    }

    /// A rank of this node, or one that a neighbour tells of. False: it is known already.
    pub fn note(&mut self, from: Option<NodeId>, leaver: Leaver) -> bool {
        if !self.known.insert(leaver.rank) {
            return false;
        }
        let others = self.untold.iter_mut().filter(|(node, _)| Some(**node) != from);
        others.for_each(|(_, untold)| untold.push(leaver));
        true
    }

    /// What is to be told now, and to whom. `busy`: it has not noted yet what it was told last.
    pub fn tell(&mut self, busy: impl Fn(NodeId) -> bool) -> Vec<(NodeId, Vec<Leaver>)> {
        let idle = self.untold.iter_mut().filter(|(node, untold)| !untold.is_empty() && !busy(**node));
        idle.map(|(node, untold)| (*node, std::mem::take(untold))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::tests::layout;
    use proptest::prelude::*;

    /// Nodes of so many ranks each, and the words that were not noted.
    struct World {
        ranks: u32,
        nodes: Vec<Leavers>,
        way: Vec<(NodeId, NodeId, Vec<Leaver>)>,
        heard: BTreeMap<(NodeId, Rank), u32>,
        words: BTreeMap<NodeId, u32>,
        /// No node sends more.
        most: u32,
    }

    impl World {
        fn new(nodes: u32, ranks: u32, fan_out: usize) -> World {
            let of = |node: u32| (node * ranks..(node + 1) * ranks).collect::<Vec<Rank>>();
            let all: Vec<Vec<Rank>> = (0..nodes).map(of).collect();
            let all: Vec<&[Rank]> = all.iter().map(Vec::as_slice).collect();
            World {
                ranks,
                nodes: (0..all.len()).map(|me| Leavers::new(&layout(&all, me, fan_out))).collect(),
                way: Vec::new(),
                heard: BTreeMap::new(),
                words: BTreeMap::new(),
                most: u32::MAX,
            }
        }

        fn tell(&mut self, from: NodeId) {
            let way = self.way.clone();
            let busy = |to| way.iter().any(|(sender, receiver, _)| (*sender, *receiver) == (from, to));
            for (to, leavers) in self.nodes[from.0 as usize].tell(busy) {
                let words = self.words.entry(from).or_default();
                *words += 1;
                assert!(*words <= self.most, "{from} has sent {words} words");
                self.way.push((from, to, leavers));
            }
        }

        fn leaves(&mut self, rank: Rank) {
            let node = NodeId(rank / self.ranks);
            assert!(self.nodes[node.0 as usize].note(None, Leaver { rank, last: None, finalized: true }));
            self.tell(node);
        }

        fn arrives(&mut self, at: usize) {
            let (from, to, leavers) = self.way.remove(at);
            for leaver in leavers {
                if self.nodes[to.0 as usize].note(Some(from), leaver) {
                    *self.heard.entry((to, leaver.rank)).or_default() += 1;
                }
            }
            self.tell(to);
            self.tell(from);
        }
    }

    proptest! {
        #[test]
        fn every_node_hears_of_every_rank_of_others_once_in_whatever_order_words_come(
            nodes in 2u32..12,
            ranks in 1u32..5,
            fan_out in 1usize..4,
            order in proptest::collection::vec(any::<prop::sample::Index>(), 0..200),
        ) {
            let mut world = World::new(nodes, ranks, fan_out);
            let mut order = order.into_iter();
            for rank in 0..nodes * ranks {
                world.leaves(rank);
                for _ in 0..2 {
                    if let Some(at) = order.next().filter(|_| !world.way.is_empty()) {
                        world.arrives(at.index(world.way.len()));
                    }
                }
            }
            while !world.way.is_empty() {
                let at = order.next().map_or(0, |at| at.index(world.way.len()));
                world.arrives(at);
            }
            for node in (0..nodes).map(NodeId) {
                for rank in (0..nodes * ranks).filter(|rank| rank / ranks != node.0) {
                    prop_assert_eq!(world.heard.get(&(node, rank)), Some(&1), "{} of rank {}", node, rank);
                }
            }
        }
    }

    #[test]
    fn the_end_of_all_ranks_of_many_nodes_is_told_in_few_words() {
        let (nodes, ranks, fan_out) = (100, 64, 16);
        let mut world = World::new(nodes, ranks, fan_out);
        // For each rank, to every other node, it were 6336.
        world.most = 8 * (fan_out as u32 + 1);
        (0..nodes * ranks).for_each(|rank| world.leaves(rank));
        while !world.way.is_empty() {
            world.arrives(0);
        }
        assert_eq!(world.heard.len() as u32, nodes * ranks * (nodes - 1));
    }
}
