//! Fences of a world over several nodes: what each node gives goes up a tree, and all of it down again. Nobody is let go before all
//! ranks are in.

use crate::layout::{Layout, Tree};
use ft_wire::Rank;
use ft_wire::between::{Fence, Protocol, Word};
use ftd_core::NodeId;
use std::collections::BTreeMap;

/// What comes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Another node is to be told.
    Say(NodeId, Word),
    /// All ranks are in, and this is what all nodes have given: these nodes are to be told so, and who waits here to be let go.
    Complete(Vec<NodeId>, Fence, Vec<Vec<u8>>),
}

/// One that is not complete.
#[derive(Debug, Default)]
struct Open {
    /// This node's ranks are in, and give this.
    own: Option<Vec<u8>>,
    /// What has come from the children.
    below: BTreeMap<NodeId, Vec<Vec<u8>>>,
    told: bool,
}

/// Those of one world.
#[derive(Debug, Default)]
pub struct Fences {
    open: BTreeMap<Fence, Open>,
    /// How many there were of these ranks.
    turns: BTreeMap<(Protocol, Vec<(Rank, Rank)>), u64>,
}

impl Fences {
    /// All of these ranks that are on this node are in. Nothing comes of it when there is none.
    pub fn enter(
        &mut self,
        layout: &Layout,
        protocol: Protocol,
        ranks: Vec<(Rank, Rank)>,
        own: Vec<u8>,
    ) -> (Fence, Vec<Step>) {
        let turn = self.turns.entry((protocol, ranks.clone())).or_default();
        let fence = Fence { protocol, ranks, turn: *turn };
        *turn += 1;
        self.open.entry(fence.clone()).or_default().own = Some(own);
        let steps = self.go_on(layout, &fence);
        (fence, steps)
    }

    /// Another node says how far it is.
    pub fn hear(&mut self, layout: &Layout, from: NodeId, word: Word) -> Vec<Step> {
        match word {
            Word::Up { fence, parts } => {
                self.open.entry(fence.clone()).or_default().below.insert(from, parts);
                self.go_on(layout, &fence)
            }
            Word::Down { fence, parts } => match layout.tree(&fence.ranks) {
                Some(tree) if self.open.remove(&fence).is_some() => done(&tree, fence, parts),
                _ => Vec::new(),
            },
            _ => Vec::new(),
        }
    }

    fn go_on(&mut self, layout: &Layout, fence: &Fence) -> Vec<Step> {
        let Some(tree) = layout.tree(&fence.ranks) else { return Vec::new() };
        let Some(open) = self.open.get_mut(fence) else { return Vec::new() };
        if open.told || open.own.is_none() || tree.children.iter().any(|child| !open.below.contains_key(child)) {
            return Vec::new();
        }
        let below = std::mem::take(&mut open.below).into_values().flatten();
        let parts: Vec<Vec<u8>> = open.own.iter_mut().map(std::mem::take).chain(below).collect();
        open.told = true;
        match tree.parent {
            Some(parent) => vec![Step::Say(parent, Word::Up { fence: fence.clone(), parts })],
            None => {
                self.open.remove(fence);
                done(&tree, fence.clone(), parts)
            }
        }
    }
}

/// Those below are told, and those who wait here let go.
fn done(tree: &Tree, fence: Fence, parts: Vec<Vec<u8>>) -> Vec<Step> {
    vec![Step::Complete(tree.children.clone(), fence, parts)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::tests::layout;
    use proptest::prelude::*;

    /// Every node of a world of one rank each, and what is under way between them.
    struct World {
        layouts: Vec<Layout>,
        nodes: Vec<Fences>,
        way: Vec<(NodeId, NodeId, Word)>,
        complete: BTreeMap<usize, Vec<Vec<Vec<u8>>>>,
    }

    impl World {
        fn new(nodes: u32, fan_out: usize) -> World {
            let ranks: Vec<Vec<Rank>> = (0..nodes).map(|rank| vec![rank]).collect();
            let ranks: Vec<&[Rank]> = ranks.iter().map(Vec::as_slice).collect();
            World {
                layouts: (0..ranks.len()).map(|me| layout(&ranks, me, fan_out)).collect(),
                nodes: ranks.iter().map(|_| Fences::default()).collect(),
                way: Vec::new(),
                complete: BTreeMap::new(),
            }
        }

        fn take(&mut self, node: usize, steps: Vec<Step>) {
            for step in steps {
                match step {
                    Step::Say(to, word) => self.way.push((NodeId(node as u32), to, word)),
                    Step::Complete(below, fence, mut parts) => {
                        for child in below {
                            let word = Word::Down { fence: fence.clone(), parts: parts.clone() };
                            self.way.push((NodeId(node as u32), child, word));
                        }
                        parts.sort();
                        self.complete.entry(node).or_default().push(parts);
                    }
                }
            }
        }

        fn enters(&mut self, node: usize, ranks: &[(Rank, Rank)], turn: u8) {
            self.enters_of(Protocol::Pmix, node, ranks, turn);
        }

        fn enters_of(&mut self, protocol: Protocol, node: usize, ranks: &[(Rank, Rank)], turn: u8) {
            let (_, steps) =
                self.nodes[node].enter(&self.layouts[node], protocol, ranks.to_vec(), vec![node as u8, turn]);
            self.take(node, steps);
        }

        fn arrives(&mut self, at: usize) {
            let (from, to, word) = self.way.remove(at);
            let to = to.0 as usize;
            let steps = self.nodes[to].hear(&self.layouts[to], from, word);
            self.take(to, steps);
        }
    }

    proptest! {
        #[test]
        fn in_whatever_order_words_come_all_are_let_go_with_all_that_was_given_and_nobody_before(
            nodes in 2u32..9,
            fan_out in 1usize..4,
            last in any::<prop::sample::Index>(),
            order in proptest::collection::vec(any::<prop::sample::Index>(), 0..80),
        ) {
            let mut world = World::new(nodes, fan_out);
            let (all, last) = ([(0, nodes)], last.index(nodes as usize));
            for node in (0..nodes as usize).filter(|node| *node != last) {
                world.enters(node, &all, 0);
            }
            let mut order = order.into_iter();
            while !world.way.is_empty() {
                let at = order.next().map_or(0, |at| at.index(world.way.len()));
                world.arrives(at);
            }
            prop_assert!(world.complete.is_empty(), "one is not in");
            world.enters(last, &all, 0);
            while !world.way.is_empty() {
                let at = order.next().map_or(0, |at| at.index(world.way.len()));
                world.arrives(at);
            }
            let given: Vec<Vec<u8>> = (0..nodes as u8).map(|node| vec![node, 0]).collect();
            for node in 0..nodes as usize {
                prop_assert_eq!(&world.complete[&node], &vec![given.clone()]);
                prop_assert!(world.nodes[node].open.is_empty());
            }
        }
    }

    #[test]
    fn a_fence_and_a_connect_of_the_same_ranks_are_two_in_whatever_order_they_come() {
        let mut world = World::new(2, 2);
        let (all, both) = ([(0, 2)], [(Protocol::Pmix, 7), (Protocol::Connect, 8), (Protocol::Disconnect, 9)]);
        both.iter().for_each(|(protocol, turn)| world.enters_of(*protocol, 0, &all, *turn));
        both.iter().rev().for_each(|(protocol, turn)| world.enters_of(*protocol, 1, &all, *turn));
        while !world.way.is_empty() {
            world.arrives(0);
        }
        for node in [0, 1] {
            let mut complete = world.complete[&node].clone();
            complete.sort();
            assert_eq!(complete, [7, 8, 9].map(|turn| vec![vec![0, turn], vec![1, turn]]));
        }
    }

    #[test]
    fn a_fence_of_some_is_theirs_alone_and_one_that_follows_is_another() {
        let mut world = World::new(4, 2);
        let some = [(1, 3)];
        world.enters(1, &some, 0);
        world.enters(2, &some, 0);
        // The first of the two is past it, and in the next one, before the second has heard.
        world.arrives(0);
        world.enters(1, &some, 1);
        while !world.way.is_empty() {
            world.arrives(0);
        }
        assert_eq!(world.complete[&2].len(), 1);
        world.enters(2, &some, 1);
        while !world.way.is_empty() {
            world.arrives(0);
        }
        assert_eq!(world.complete[&1], [vec![vec![1, 0], vec![2, 0]], vec![vec![1, 1], vec![2, 1]]]);
        assert_eq!(world.complete[&2], world.complete[&1]);
        assert_eq!(world.complete.len(), 2);
    }
}
