//! A packet filter between the nodes that lets TCP through and no datagrams. Without heartbeats every node would be given up, for a reason
//! that nobody guesses: so it is looked for until the first world is released, and no job begins with one.

use ftd_core::ids::Share;
use ftd_core::{Micros, NodeId, PeerMessage};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Of the time-out. Who has told of the first record sends heartbeats from then on, and two of those were lost; before it is given up.
const UNHEARD: Share = Share::quarters(2);

/// What is known of it.
#[derive(Debug)]
pub struct Filtered {
    /// Since when a node is heard by TCP.
    since: BTreeMap<NodeId, Instant>,
    /// Whose datagrams come.
    beats: BTreeSet<NodeId>,
    /// It is known that there is none, or one.
    over: bool,
}

impl Filtered {
    /// `begins`: the job does, with this agent.
    pub fn new(begins: bool) -> Filtered {
        Filtered { since: BTreeMap::new(), beats: BTreeSet::new(), over: !begins }
    }

    /// A node says something.
    pub fn hears(&mut self, from: NodeId, message: &PeerMessage, now: Instant) {
        match message {
            _ if self.over => {}
            PeerMessage::Heartbeat { .. } | PeerMessage::Acknowledge { .. } | PeerMessage::Heard { .. } => {
                self.beats.insert(from);
            }
            // It has come by way of another node.
            PeerMessage::Relay { .. } => {}
            _ => {
                self.since.entry(from).or_insert(now);
            }
        }
    }

    /// The job has begun, or will not.
    pub fn over(&mut self) {
        self.over = true;
    }

    /// A node of these, which send heartbeats to this one, of which none comes; said once.
    pub fn found(&mut self, observed: &[NodeId], timeout: Micros, now: Instant) -> Option<NodeId> {
        let patience = Duration::from_micros(UNHEARD.of(timeout).0);
        let silent = |node: &NodeId| self.since.get(node).is_some_and(|since| now >= *since + patience);
        let found = observed.iter().copied().find(|node| !self.over && silent(node) && !self.beats.contains(node))?;
        self.over = true;
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ftd_core::EpochId;

    #[test]
    fn one_is_found_where_tcp_comes_and_heartbeats_do_not() {
        let (word, beat) = (PeerMessage::AskForRecord { epoch: EpochId(1) }, PeerMessage::Heard { epoch: EpochId(1) });
        let (one, two, timeout) = (NodeId(1), NodeId(2), Micros::from_millis(500));
        let begin = Instant::now();
        let late = begin + Duration::from_millis(250);
        let mut filter = Filtered::new(true);
        filter.hears(one, &word, begin);
        filter.hears(two, &word, begin);
        filter.hears(two, &beat, begin);
        assert_eq!(filter.found(&[two, one], timeout, late - Duration::from_millis(1)), None, "not yet");
        assert_eq!(filter.found(&[two], timeout, late), None, "it is heard, or sends none");
        assert_eq!(filter.found(&[two, one], timeout, late), Some(one));
        assert_eq!(filter.found(&[two, one], timeout, late), None, "said twice");
        // Who is not heard at all is dead; and a job that runs is not looked at.
        assert_eq!(Filtered::new(true).found(&[one], timeout, late), None);
        for mut other in [Filtered::new(false), Filtered::new(true)] {
            other.over();
            other.hears(one, &word, begin);
            assert_eq!(other.found(&[one], timeout, late), None);
        }
    }
}
