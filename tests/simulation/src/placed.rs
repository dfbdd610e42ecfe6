//! Invariant 3: every rank of a new epoch is on a slot whose node held its lease in the store, or was acknowledged by its observers,
//! when the record was written.

use crate::faults::{Fault, Planned};
use crate::invariants::Violation;
use crate::world::World;
use ftd_core::{EpochRecord, Micros, NodeId};
use std::collections::BTreeSet;

/// Periods from the moment at which a node may be given up until that is written: it is handed over, collected, perhaps written by its
/// author, and a heartbeat or two may have been lost.
const WRITTEN: u64 = 6;

impl World {
    /// A rank is where none may be.
    pub fn placed_wrongly(&self, before: Option<&EpochRecord>, record: &EpochRecord) -> Option<Violation> {
        let before = before.filter(|_| record.outcome.is_none())?;
        self.moved_wrongly(before, record).or_else(|| self.kept_wrongly(before, record))
    }

    /// Ranks are moved to no node whose lease in the store is not held.
    fn moved_wrongly(&self, before: &EpochRecord, record: &EpochRecord) -> Option<Violation> {
        let moved = record.placement.iter().filter(|(rank, slot)| before.placement.slot(*rank) != Some(*slot));
        let nodes: BTreeSet<NodeId> = moved.filter_map(|(_, slot)| record.slots.node(slot)).collect();
        let dead = nodes.into_iter().find(|node| !self.holds_lease(*node))?;
        let sentence = format!("{} moves ranks to n{}, whose lease in the store is not held", record.epoch, dead.0);
        Some(Violation::Placement(sentence))
    }

    /// They stay on no node that is dead and that its observers have given up, as long as there are others.
    fn kept_wrongly(&self, before: &EpochRecord, record: &EpochRecord) -> Option<Violation> {
        let stay = record.placement.iter().filter(|(rank, slot)| before.placement.slot(*rank) == Some(*slot));
        let nodes: BTreeSet<NodeId> = stay.filter_map(|(_, slot)| record.slots.node(slot)).collect();
        let dead = nodes.into_iter().find(|node| self.is_given_up(*node, before))?;
        let sentence = format!("{} leaves ranks on n{}, which its observers have given up", record.epoch, dead.0);
        Some(Violation::Placement(sentence))
    }

    /// It is dead, and all its observers that live could write that down, and have had the time.
    fn is_given_up(&self, node: NodeId, before: &EpochRecord) -> bool {
        let Some(died) = self.machines[node.0 as usize].crashed_at.filter(|_| !self.holds_lease(node)) else {
            return false;
        };
        let (timeout, period) = (self.setup.timeout(), self.setup.policy.heartbeat_period.0);
        let since = died.max(self.written_at(before.epoch));
        if self.now <= since + timeout + WRITTEN * period || self.is_disturbed_since(died) {
            return false;
        }
        // Who is alone gives nobody up before its patience is over.
        let gives_up = |observer: NodeId| {
            let machine = &self.machines[observer.0 as usize];
            let at = [self.now - WRITTEN * period, self.now].map(|at| Micros(at + machine.offset));
            let fence = machine.agent.as_ref()?.fence();
            Some(at.into_iter().all(|at| fence.accused(at).contains(&node)))
        };
        let observers = ftd_core::ring::observers(&before.nodes, node, before.terms.observers as usize);
        let said: Vec<bool> = observers.into_iter().filter_map(gives_up).collect();
        let elsewhere = self.slots_there(Some(before), |other| other == node.0 as usize);
        !said.is_empty() && said.into_iter().all(|gives_up| gives_up) && elsewhere >= u64::from(self.setup.ranks)
    }

    /// A network, the store or an agent has not been well since then.
    fn is_disturbed_since(&self, since: u64) -> bool {
        let disturbs = |fault: &Fault| {
            matches!(fault, Fault::Net { .. } | Fault::Store { .. } | Fault::Stall { .. } | Fault::Suspend { .. })
                || matches!(
                    fault,
                    Fault::KillAgent { .. } | Fault::Freeze { .. } | Fault::Lapse { .. } | Fault::DeleteKey
                )
        };
        let there = |planned: &Planned| planned.at <= self.now && planned.ends() + self.setup.timeout() >= since;
        self.setup.faults.iter().any(|planned| there(planned) && disturbs(&planned.fault))
    }
}
