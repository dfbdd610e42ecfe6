//! A packet filter between the nodes that lets TCP through and no datagrams. Without heartbeats every node would be given up, for a reason
//! that nobody guesses: so it is looked for until the first world is released, and no job begins with one.

use ftd_core::{Micros, NodeId, PeerMessage};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// What is known of it.
#[derive(Debug)]
pub struct Filtered {
    /// Since when heartbeats are sent, in a job of several nodes: from the first record on. Not while this agent did not run.
    since: Option<Instant>,
    last_ran: Instant,
    /// Who has said something by TCP that is said from the first record on.
    spoke: BTreeSet<NodeId>,
    /// Whose datagrams come.
    beats: BTreeSet<NodeId>,
    /// It is known that there is none, or one.
    over: bool,
}

impl Filtered {
    /// `begins`: the job does, with this agent.
    pub fn new(begins: bool, now: Instant) -> Filtered {
        Filtered { since: None, last_ran: now, spoke: BTreeSet::new(), beats: BTreeSet::new(), over: !begins }
    }

    /// The first record is known here.
    pub fn adopted(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// A node says something.
    pub fn hears(&mut self, from: NodeId, message: &PeerMessage) {
        match message {
            _ if self.over => {}
            PeerMessage::Heartbeat { .. } | PeerMessage::Acknowledge { .. } | PeerMessage::Heard { .. } => {
                self.beats.insert(from);
            }
            // They have come by way of another node, or from one that sends no heartbeats yet.
            PeerMessage::Relay { .. } | PeerMessage::Slots { .. } | PeerMessage::SlotsNoted { .. } => {}
            _ => {
                self.spoke.insert(from);
            }
        }
    }

    /// The job has begun, or will not.
    pub fn over(&mut self) {
        self.over = true;
    }

    /// Whether there is something to look for.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// A node of these, which send heartbeats to this one, of which none has come in nearly all of the time-out: it would be given up next.
    /// One that only stands still for a while, as this one may, is none.
    pub fn found(&mut self, observed: &[NodeId], timeout: Micros, now: Instant) -> Option<NodeId> {
        let timeout = Duration::from_micros(timeout.0);
        // What waits to be read is not known yet.
        if now >= self.last_ran + timeout / 2 {
            self.since = self.since.map(|_| now);
        }
        self.last_ran = now;
        let late = self.since.is_some_and(|since| now >= since + (timeout - timeout / 16));
        observed
            .iter()
            .copied()
            .find(|node| !self.over && late && self.spoke.contains(node) && !self.beats.contains(node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ftd_core::EpochId;

    const TIMEOUT: Micros = Micros::from_millis(500);

    fn word() -> PeerMessage {
        PeerMessage::AskForRecord { epoch: EpochId(1) }
    }

    /// What is found at that time, by one who looked every tenth of a second until then.
    fn found(filter: &mut Filtered, observed: &[NodeId], begin: Instant, at: u64) -> Option<NodeId> {
        let looks = (1..at / 100).map(|tenth| begin + Duration::from_millis(100 * tenth));
        let early: Vec<_> = looks.filter_map(|look| filter.found(observed, TIMEOUT, look)).collect();
        assert_eq!(early, []);
        filter.found(observed, TIMEOUT, begin + Duration::from_millis(at))
    }

    #[test]
    fn one_is_found_where_tcp_comes_and_heartbeats_do_not() {
        let (one, two, begin) = (NodeId(1), NodeId(2), Instant::now());
        let mut filter = Filtered::new(true, begin);
        filter.adopted(begin);
        [one, two].into_iter().for_each(|node| filter.hears(node, &word()));
        filter.hears(two, &PeerMessage::Heard { epoch: EpochId(1) });
        assert_eq!(found(&mut filter, &[two, one], begin, 400), None, "not yet");
        assert_eq!(found(&mut filter, &[two], begin, 490), None, "it is heard, or sends none");
        assert_eq!(found(&mut filter, &[two, one], begin, 490), Some(one));
        filter.over();
        assert_eq!(found(&mut filter, &[two, one], begin, 490), None, "the job has begun");
        let mut successor = Filtered::new(false, begin);
        successor.adopted(begin);
        successor.hears(one, &word());
        assert_eq!(found(&mut successor, &[one], begin, 490), None, "the job had begun");
    }

    #[test]
    fn who_is_not_heard_at_all_or_has_not_begun_is_none() {
        let (one, begin) = (NodeId(1), Instant::now());
        let mut filter = Filtered::new(true, begin);
        filter.adopted(begin);
        filter.hears(one, &PeerMessage::SlotsNoted { nodes: 1 });
        assert_eq!(found(&mut filter, &[one], begin, 490), None);
    }

    #[test]
    fn the_gathering_of_the_slots_does_not_count() {
        let (one, begin) = (NodeId(1), Instant::now());
        let mut filter = Filtered::new(true, begin);
        filter.hears(one, &word());
        assert_eq!(found(&mut filter, &[one], begin, 3000), None, "there are no heartbeats yet");
        let adopted = begin + Duration::from_millis(3000);
        filter.adopted(adopted);
        assert_eq!(found(&mut filter, &[one], adopted, 400), None, "it is due only now");
        assert_eq!(found(&mut filter, &[one], adopted, 490), Some(one));
    }

    #[test]
    fn who_did_not_run_looks_again_before_it_accuses() {
        let (one, begin) = (NodeId(1), Instant::now());
        let mut filter = Filtered::new(true, begin);
        filter.adopted(begin);
        filter.hears(one, &word());
        let late = begin + Duration::from_millis(900);
        assert_eq!(filter.found(&[one], TIMEOUT, late), None, "its heartbeats may wait to be read");
        assert_eq!(found(&mut filter, &[one], late, 490), Some(one));
    }
}
