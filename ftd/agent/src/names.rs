//! What people call the nodes of a job. ftd-core numbers them, and so do the sentences that its agents agree on; who reads them is to
//! read names.

use ft_wire::cluster::Cluster;

/// What stands before a node's number.
const NODE: &str = "node ";

/// The names, by the nodes' numbers; none on one machine.
#[derive(Debug, Default)]
pub struct Names(Vec<String>);

impl Names {
    /// Of this job's nodes.
    ///
    /// `alone`: what the only node is called, if it has a name. People may have asked for it from another one.
    pub fn of(cluster: Option<&Cluster>, alone: Option<&str>) -> Names {
        match cluster {
            Some(cluster) => Names(cluster.nodes.iter().map(|node| node.name.clone()).collect()),
            None => Names(alone.map(String::from).into_iter().collect()),
        }
    }

    /// One more.
    pub fn add(&mut self, name: String) {
        self.0.push(name);
    }

    /// The sentence, with the nodes' names in the place of their numbers.
    pub fn said(&self, sentence: &str) -> String {
        let mut said = String::with_capacity(sentence.len());
        let mut rest = sentence;
        while let Some(at) = rest.find(NODE) {
            let (before, after) = rest.split_at(at + NODE.len());
            let last = before[..at].chars().next_back().or_else(|| said.chars().next_back());
            let begins = !last.is_some_and(char::is_alphanumeric);
            said.push_str(before);
            let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
            let (number, behind) = after.split_at(digits);
            // node 1.example is a name, and node 1. the end of a sentence.
            let mut next = behind.chars();
            let ends = match (next.next(), next.next()) {
                (Some('.' | '-'), Some(c)) => !c.is_alphanumeric(),
                (Some(c), _) => !c.is_alphanumeric() && c != '_',
                (None, _) => true,
            };
            let name = number.parse().ok().and_then(|number: usize| self.0.get(number));
            said.push_str(name.filter(|_| begins && ends).map_or(number, String::as_str));
            rest = behind;
        }
        said.push_str(rest);
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_called_by_their_names_and_nothing_else_is_changed() {
        let names = Names(["a", "7", "node1"].map(String::from).to_vec());
        let said = |sentence| names.said(sentence);
        assert_eq!(
            said("node 1 was silent, and rank 2 on node 0 ended"),
            "node 7 was silent, and rank 2 on node a ended"
        );
        assert_eq!(said("the PMIx server of node 2.\nnode 2"), "the PMIx server of node node1.\nnode node1");
        for other in [
            "node 3 has no name",
            "node 1.example",
            "node 1-2",
            "node 1b",
            "mynode 1",
            "node  1",
            "node",
            "node ",
            "nodes 1",
        ] {
            assert_eq!(said(other), other);
        }
        assert_eq!(Names::default().said("rank 0 on node 0"), "rank 0 on node 0");
    }

    #[test]
    fn the_only_node_of_a_job_has_its_name_as_well() {
        let died = "rank 1 on node 0 was killed by SIGSEGV";
        assert_eq!(Names::of(None, Some("b")).said(died), "rank 1 on node b was killed by SIGSEGV");
        assert_eq!(Names::of(None, None).said(died), died, "on the machine where it was asked for");
    }
}
