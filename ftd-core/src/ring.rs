//! Who observes whom. The members of a job stand in a ring; each is observed by the next *k*.
//!
//! The order is a fixed permutation of the node ids, which spreads neighbours, so that the nodes of a rack do not observe
//! each other. It can be computed both ways: a node finds its neighbours without sorting, or even knowing, all members.

use crate::ids::NodeId;
use crate::members::Members;

/// Odd, so that multiplying by it is a bijection of the numbers below a power of two; `INVERSE` undoes it modulo 2³².
const FACTOR: u32 = 0x9e37_79b1;
const INVERSE: u32 = inverse(FACTOR);
/// Rounds of the permutation.
const ROUNDS: u32 = 3;

/// The inverse of an odd number modulo 2³², by Newton's iteration.
const fn inverse(odd: u32) -> u32 {
    let mut inverse = odd;
    let mut round = 0;
    while round < 5 {
        inverse = inverse.wrapping_mul(2u32.wrapping_sub(odd.wrapping_mul(inverse)));
        round += 1;
    }
    inverse
}

/// A permutation of the numbers below 2^`bits`.
#[derive(Debug, Clone, Copy)]
struct Permutation {
    bits: u32,
}

impl Permutation {
    /// For all ids that the job ever had.
    fn of(members: &Members) -> Self {
        let last = members.last_known().map_or(0, |node| node.0);
        Permutation { bits: (u32::BITS - last.leading_zeros()).max(1) }
    }

    fn mask(self) -> u32 {
        u32::MAX >> (u32::BITS - self.bits)
    }

    /// Shifting by half the bits or more undoes itself.
    fn mix(self, x: u32) -> u32 {
        x ^ (x >> self.bits.div_ceil(2))
    }

    fn place(self, node: NodeId) -> u32 {
        (0..ROUNDS).fold(node.0, |x, _| self.mix(x.wrapping_mul(FACTOR) & self.mask()))
    }

    fn node(self, place: u32) -> NodeId {
        NodeId((0..ROUNDS).fold(place, |x, _| self.mix(x).wrapping_mul(INVERSE) & self.mask()))
    }

    /// All ids but `node`'s, from its place on, in this direction.
    fn from(self, node: NodeId, forward: bool) -> impl Iterator<Item = NodeId> {
        let (place, mask) = (self.place(node), self.mask());
        let step = move |n: u32| if forward { place.wrapping_add(n) } else { place.wrapping_sub(n) } & mask;
        (1..=mask).map(move |n| self.node(step(n)))
    }
}

/// The observers of `node`: the next `width` members, nearest first; fewer where there are not so many.
pub fn observers(members: &Members, node: NodeId, width: usize) -> Vec<NodeId> {
    let after = Permutation::of(members).from(node, true);
    after.filter(|other| members.contains(*other)).take(width.min(others(members))).collect()
}

/// The nodes that `node` observes: the `width` members before it, nearest first.
pub fn observed(members: &Members, node: NodeId, width: usize) -> Vec<NodeId> {
    let before = Permutation::of(members).from(node, false);
    before.filter(|other| members.contains(*other)).take(width.min(others(members))).collect()
}

fn others(members: &Members) -> usize {
    (members.len() as usize).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_permutation_can_be_undone_and_spreads_neighbours() {
        for bits in 1..=20 {
            let permutation = Permutation { bits };
            let size = 1u32 << bits;
            let step = (size / 500).max(1) as usize;
            for node in (0..size).step_by(step).map(NodeId) {
                assert!(permutation.place(node) < size);
                assert_eq!(permutation.node(permutation.place(node)), node, "{bits} bits");
            }
        }
        let members = Members::of((0..10_000).map(NodeId));
        let near = |node: u32| observers(&members, NodeId(node), 3).iter().filter(|o| o.0.abs_diff(node) < 64).count();
        assert!((0..10_000).map(near).sum::<usize>() < 600, "racks observe themselves");
    }

    /// `hosts-cut-link` cuts the link between these two.
    #[test]
    fn of_eight_nodes_the_first_and_the_sixth_do_not_observe_each_other() {
        let members = Members::of((0..8).map(NodeId));
        assert!(!observers(&members, NodeId(0), 3).contains(&NodeId(5)));
        assert!(!observers(&members, NodeId(5), 3).contains(&NodeId(0)));
    }

    proptest! {
        #[test]
        fn everybody_has_its_observers_and_observes_those_who_count_on_it(
            nodes in proptest::collection::btree_set(0u32..200, 1..60),
            gone in proptest::collection::btree_set(0u32..200, 0..40),
            width in 1usize..5,
        ) {
            let mut members = Members::of(nodes.iter().copied().map(NodeId));
            gone.into_iter().for_each(|node| members.leave(NodeId(node)));
            let expected = width.min((members.len() as usize).saturating_sub(1));
            for node in members.iter() {
                let observers = observers(&members, node, width);
                prop_assert_eq!(observers.iter().collect::<BTreeSet<_>>().len(), expected);
                prop_assert!(!observers.contains(&node));
                for observer in observers {
                    prop_assert!(members.contains(observer));
                    prop_assert!(observed(&members, observer, width).contains(&node));
                }
                prop_assert_eq!(observed(&members, node, width).len(), expected);
            }
        }
    }
}
