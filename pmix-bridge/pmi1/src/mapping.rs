//! `PMI_process_mapping`: which rank lives on which node, as MPICH reads it to find peers that share memory.

use std::fmt::Write;

/// `(vector,(first node,nodes,ranks per node),…)`: each triple hands ranks, block by block, to consecutive nodes.
pub(crate) fn process_mapping(node_of_rank: &[u32]) -> String {
    let mut blocks: Vec<(u32, u32, u32)> = Vec::new();
    for part in node_of_rank.chunk_by(|a, b| a == b) {
        let (node, ranks) = (part[0], part.len() as u32);
        match blocks.last_mut() {
            Some((first, nodes, each)) if *first + *nodes == node && *each == ranks => *nodes += 1,
            _ => blocks.push((node, 1, ranks)),
        }
    }
    let mut text = "(vector".to_string();
    for (first, nodes, each) in blocks {
        // Writing to a string does not fail.
        let _ = write!(text, ",({first},{nodes},{each})");
    }
    text + ")"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_as_mpich_reads_them() {
        assert_eq!(process_mapping(&[0, 0, 0, 0]), "(vector,(0,1,4))");
        assert_eq!(process_mapping(&[0, 0, 1, 1, 2, 2]), "(vector,(0,3,2))");
        assert_eq!(process_mapping(&[0, 0, 0, 1, 1]), "(vector,(0,1,3),(1,1,2))");
        assert_eq!(process_mapping(&[0, 1, 0, 1]), "(vector,(0,2,1),(0,2,1))");
    }
}
