//! Who keeps copies of a node's checkpoints.

use crate::ids::NodeId;
use crate::members::Members;

/// So many of the members after `node`, and round, as keep copies for it: those in other failure domains first. `node` need not be a
/// member.
pub fn partners<D: PartialEq>(
    domain: impl Fn(NodeId) -> D,
    members: &Members,
    node: NodeId,
    many: usize,
) -> Vec<NodeId> {
    let count = members.len();
    let lower = || members.iter().take_while(|other| *other < node).count() as u32;
    let first = members.position(node).map_or_else(lower, |at| at + 1);
    let around = |step| members.at((first + step) % count);
    let after = || (0..count).filter_map(around).filter(|other| *other != node);
    let near = |other: &NodeId| domain(*other) == domain(node);
    after().filter(|other| !near(other)).chain(after().filter(near)).take(many).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(domains: &[u32], members: &[u32], node: u32, many: usize) -> Vec<u32> {
        let members = Members::of(members.iter().copied().map(NodeId));
        let found = partners(|node: NodeId| domains[node.0 as usize], &members, NodeId(node), many);
        found.into_iter().map(|node| node.0).collect()
    }

    #[test]
    fn the_next_member_in_another_domain_is_the_first() {
        assert_eq!(of(&[0, 1, 2, 3], &[0, 1, 2, 3], 1, 2), [2, 3]);
        assert_eq!(of(&[0, 0, 1, 1], &[0, 1, 2, 3], 0, 9), [2, 3, 1]);
        assert_eq!(of(&[0, 0, 1, 1], &[0, 1, 2, 3], 3, 1), [0], "round");
        assert_eq!(of(&[0, 0, 1, 1], &[0, 1, 3], 0, 1), [3], "who has died keeps nothing");
    }

    #[test]
    fn where_all_are_in_one_domain_the_next_is_better_than_none() {
        assert_eq!(of(&[5, 5, 5], &[0, 1, 2], 2, 1), [0]);
        assert_eq!(of(&[5, 5, 5], &[2], 2, 1), []);
        assert_eq!(of(&[5, 5, 5], &[], 1, 1), []);
        assert_eq!(of(&[5, 6, 7], &[0, 2], 1, 1), [2], "one that was left out");
    }
}
