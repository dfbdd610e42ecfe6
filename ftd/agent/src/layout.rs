//! Which rank of a world is on which node. On one machine there is one node, and it has them all.

use ft_wire::Rank;
use ftd_core::{EpochRecord, NodeId};

/// A node that has ranks of the world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Which.
    pub node: NodeId,
    /// Its name, as MPI libraries are to know it.
    pub host: String,
    /// Its ranks, in order.
    pub ranks: Vec<Rank>,
}

/// The nodes that have ranks of a world, in their order, as one of them sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    places: Vec<Place>,
    me: usize,
    fan_out: usize,
}

impl Layout {
    /// As a record says, seen from a node that has ranks. `hosts`: the nodes' names, by their numbers.
    pub fn of(record: &EpochRecord, me: NodeId, hosts: &[String]) -> Option<Layout> {
        let host = |node: NodeId| hosts.get(node.0 as usize).cloned().unwrap_or_else(|| format!("node{}", node.0));
        let place = |node: NodeId| {
            let ranks: Vec<Rank> = record.ranks_on(node).into_iter().map(|(rank, _)| rank.0).collect();
            (!ranks.is_empty()).then(|| Place { node, host: host(node), ranks })
        };
        let places: Vec<Place> = record.members().filter_map(place).collect();
        let me = places.iter().position(|place| place.node == me)?;
        Some(Layout { places, me, fan_out: record.terms.fan_out.max(1) as usize })
    }

    /// Whether no other node has any.
    pub fn is_alone(&self) -> bool {
        self.places.len() == 1
    }

    /// All of them.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// This node's place among them.
    pub fn me(&self) -> usize {
        self.me
    }

    /// The node that keeps what ranks publish for each other: the first, which is the root of the tree of all.
    pub fn keeper(&self) -> NodeId {
        self.places[0].node
    }

    /// This node.
    pub fn own(&self) -> NodeId {
        self.places[self.me].node
    }

    /// This node's ranks.
    pub fn local(&self) -> &[Rank] {
        &self.places[self.me].ranks
    }

    /// The place of a rank among those of its node, which is this one.
    pub fn local_rank(&self, rank: Rank) -> Option<usize> {
        self.local().binary_search(&rank).ok()
    }

    /// The node of a rank.
    pub fn node_of(&self, rank: Rank) -> Option<NodeId> {
        self.places.iter().find(|place| place.ranks.binary_search(&rank).is_ok()).map(|place| place.node)
    }

    /// The place of every rank's node among the nodes, in the order of the ranks.
    pub fn node_of_rank(&self) -> Vec<u32> {
        let mut all: Vec<(Rank, u32)> = Vec::new();
        for (place, at) in self.places.iter().zip(0..) {
            all.extend(place.ranks.iter().map(|rank| (*rank, at)));
        }
        all.sort_unstable();
        all.into_iter().map(|(_, at)| at).collect()
    }

    /// Where this node stands in the tree of the nodes that have these ranks; nothing when it has none of them.
    pub fn tree(&self, ranks: &[(Rank, Rank)]) -> Option<Tree> {
        let has = |place: &&Place| {
            place.ranks.iter().any(|rank| ranks.iter().any(|(first, end)| (first..end).contains(&rank)))
        };
        let nodes: Vec<NodeId> = self.places.iter().filter(has).map(|place| place.node).collect();
        let me = nodes.iter().position(|node| *node == self.places[self.me].node)?;
        let parent = me.checked_sub(1).map(|before| nodes[before / self.fan_out]);
        let children = me * self.fan_out + 1..=(me + 1) * self.fan_out;
        Some(Tree { parent, children: children.filter_map(|at| nodes.get(at).copied()).collect() })
    }
}

/// A node's neighbours in a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// Nothing: it is the root.
    pub parent: Option<NodeId>,
    /// Those below it.
    pub children: Vec<NodeId>,
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Nodes 0, 1, … with these ranks, seen from the node at this place.
    pub fn layout(ranks: &[&[Rank]], me: usize, fan_out: usize) -> Layout {
        let place = |(node, ranks): (u32, &&[Rank])| Place {
            node: NodeId(node),
            host: format!("node{node}"),
            ranks: ranks.to_vec(),
        };
        Layout { places: (0..).zip(ranks).map(place).collect(), me, fan_out }
    }

    #[test]
    fn ranks_are_counted_by_node() {
        let layout = layout(&[&[0, 3], &[1, 2, 4]], 1, 16);
        assert_eq!(layout.node_of_rank(), [0, 1, 1, 0, 1]);
        assert_eq!((layout.local_rank(2), layout.local_rank(3)), (Some(1), None));
        assert_eq!((layout.node_of(3), layout.node_of(5)), (Some(NodeId(0)), None));
        assert!(!layout.is_alone());
    }

    #[test]
    fn every_node_of_a_tree_but_its_root_is_its_parents_child() {
        let all: Vec<Vec<Rank>> = (0..20).map(|rank| vec![rank]).collect();
        let all: Vec<&[Rank]> = all.iter().map(Vec::as_slice).collect();
        for fan_out in [1, 2, 16] {
            for ranks in [vec![(0, 20)], vec![(3, 5), (11, 20)]] {
                let mut seen = 0;
                for me in 0..20 {
                    let Some(tree) = layout(&all, me, fan_out).tree(&ranks) else { continue };
                    assert!(tree.children.len() <= fan_out);
                    seen += tree.children.len();
                    for child in tree.children {
                        let theirs = layout(&all, child.0 as usize, fan_out).tree(&ranks).unwrap();
                        assert_eq!(theirs.parent, Some(NodeId(me as u32)));
                    }
                }
                let nodes: usize = ranks.iter().map(|(first, end)| (end - first) as usize).sum();
                assert_eq!(seen, nodes - 1, "{fan_out} {ranks:?}");
            }
        }
    }
}
