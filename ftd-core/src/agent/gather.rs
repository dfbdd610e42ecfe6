//! Before the first record: every node's slots, gathered up a tree over the job's nodes, until one knows of all.
//!
//! Nothing is agreed yet, so nobody can be left out: who does not answer is passed over by those that would have told it, and
//! the next one takes its place. Slots are only ever added, so it does no harm that two nodes may see the tree differently.

use super::{Agent, Effect, Stage};
use crate::ids::{Micros, NodeId, SlotId};
use crate::message::PeerMessage;
use crate::plan;
use crate::record::Outcome;
use std::collections::{BTreeMap, BTreeSet};

/// What is known of the slots of the job, and to whom it is told.
#[derive(Debug, Clone, Default)]
pub(super) struct Gather {
    known: BTreeMap<NodeId, BTreeSet<SlotId>>,
    /// How many who should have been told did not answer.
    passed: usize,
    /// Since when the one who is told now has not answered, and when it was told last.
    since: Micros,
    /// Since when somebody else is at work on it: as long as that one answers, it is not for this node to begin.
    answered: Micros,
    told: Option<Micros>,
    /// When others were asked for the record, and how far around.
    asked: Option<Micros>,
    turn: usize,
    /// The slots of so many nodes have been noted by whom they were told.
    noted: u32,
}

impl Gather {
    /// Whether all that is known has been noted.
    fn is_noted(&self) -> bool {
        self.noted as usize >= self.known.len()
    }
}

impl Agent {
    /// Whom this node tells: its parent, the ancestors of that, then the lowest others; nobody when it is the lowest itself.
    fn gatherer(&self) -> Option<NodeId> {
        let nodes = &self.config.nodes;
        let fan_out = self.config.policy.fan_out.max(1) as usize;
        let mut at = nodes.iter().position(|node| *node == self.me)?;
        let mut path = Vec::new();
        while at > 0 {
            at = (at - 1) / fan_out;
            path.push(nodes[at]);
        }
        let lower = nodes.iter().take_while(|node| **node != self.me).filter(|node| !path.contains(node)).copied();
        let lower: Vec<NodeId> = lower.collect();
        path.into_iter().chain(lower).nth(self.gather.passed)
    }

    /// Tells its slots and those it has been told of; looks for somebody else when that is not answered.
    pub(super) fn guard_gather(&mut self) {
        if self.record.is_some() || self.stage != Stage::Gathering || !self.started {
            return;
        }
        if let Some(mine) = self.own_slots() {
            self.announced = true;
            self.gather.known.insert(self.me, mine);
        }
        if self.gather.known.is_empty() {
            self.gather.since = self.now;
            return;
        }
        if self.gather.is_noted() {
            if !self.due(self.gather.since, self.pass_over()) {
                return;
            }
            // Whoever has noted it may have died since.
            (self.gather.since, self.gather.told, self.gather.noted) = (self.now, None, 0);
        }
        if self.due(self.gather.since, self.pass_over()) {
            // Who has passed all over begins again with the first: it was perhaps its own link.
            self.gather.passed = if self.gatherer().is_some() { self.gather.passed + 1 } else { 0 };
            (self.gather.since, self.gather.told, self.gather.noted) = (self.now, None, 0);
        }
        let Some(to) = self.gatherer() else { return };
        let period = self.config.policy.heartbeat_period;
        if self.gather.told.is_none_or(|told| self.due(told, period)) {
            self.gather.told = Some(self.now);
            let slots = self.gather.known.clone();
            self.emit(Effect::Send { to, message: PeerMessage::Slots { slots } });
        }
    }

    /// After so long another one is told.
    fn pass_over(&self) -> Micros {
        Micros(self.config.policy.start_timeout.0 / 16)
    }

    /// An agent that takes another's place asks for the record, although the store may not answer: nobody need send it a
    /// heartbeat, and it has to send its own.
    pub(super) fn guard_ask_around(&mut self) {
        if self.record.is_some() || self.predecessor.is_none() || self.stage != Stage::Gathering || !self.started {
            return;
        }
        let period = self.config.policy.heartbeat_period;
        if self.gather.asked.is_some_and(|asked| !self.due(asked, period)) {
            return;
        }
        self.gather.asked = Some(self.now);
        let nodes = self.config.nodes.clone();
        let at = nodes.iter().position(|node| *node == self.me).unwrap_or(0);
        let width = self.config.policy.observers.max(1);
        let epoch = self.epoch();
        for _ in 0..width.min(nodes.len().saturating_sub(1)) {
            self.gather.turn = self.gather.turn % (nodes.len() - 1) + 1;
            let to = nodes[(at + self.gather.turn) % nodes.len()];
            self.send(to, PeerMessage::AskForRecord { epoch });
        }
    }

    pub(super) fn take_slots(&mut self, from: NodeId, slots: BTreeMap<NodeId, BTreeSet<SlotId>>) {
        if self.record.is_some() || !self.config.nodes.contains(&from) {
            return;
        }
        let nodes = slots.len() as u32;
        let before = self.gather.known.len();
        for (node, slots) in slots {
            self.gather.known.entry(node).or_insert(slots);
        }
        if self.gather.known.len() > before {
            // There is more to tell now, at once.
            self.gather.told = None;
        }
        self.emit(Effect::Send { to: from, message: PeerMessage::SlotsNoted { nodes } });
    }

    pub(super) fn take_slots_noted(&mut self, from: NodeId, nodes: u32) {
        if self.gatherer() == Some(from) {
            self.gather.noted = self.gather.noted.max(nodes);
            self.gather.since = self.now;
            self.gather.answered = self.now;
        }
    }

    /// When something of this is due.
    pub(super) fn gather_deadlines(&self) -> impl Iterator<Item = Micros> + '_ {
        let policy = &self.config.policy;
        let gathers = self.stage == Stage::Gathering && self.started && self.record.is_none();
        let told = self
            .gather
            .told
            .filter(|_| gathers && !self.gather.is_noted())
            .map(|told| told.after(policy.heartbeat_period));
        let passed = gathers.then(|| self.gather.since.after(self.pass_over()));
        let start =
            [self.gather_since(true).after(policy.start_timeout), self.gather_since(false).after(self.last_patience())];
        let start = start.into_iter().filter(|_| self.stage == Stage::Gathering);
        let asks = self.record.is_none() && self.predecessor.is_some();
        let asked = self.gather.asked.filter(|_| asks).map(|asked| asked.after(policy.heartbeat_period));
        let outside = self.stage == Stage::Gathering && !self.config.nodes.contains(&self.me);
        let look = outside.then(|| self.store.read_at.after(policy.heartbeat_timeout));
        told.into_iter().chain(passed).chain(start).chain(asked).chain(look)
    }

    /// Who is not told by others that the job has begun waits longer than the one who is to begin it.
    fn last_patience(&self) -> Micros {
        self.config.policy.start_timeout.quarters(6)
    }

    /// Since when it is waited for the job to begin.
    fn gather_since(&self, begins: bool) -> Micros {
        let since = self.stage_since.max(self.silent_at);
        if begins { since } else { since.max(self.gather.answered) }
    }

    /// Writes the first record, when the slots of all nodes are known, or when nobody else will be.
    pub(super) fn propose_first(&mut self) {
        if !self.config.nodes.contains(&self.me) {
            // The job is others' to begin; this node asks to be taken in when it has.
            if self.due(self.store.read_at, self.config.policy.heartbeat_timeout) {
                self.store.want();
            }
            return;
        }
        self.renew_first_slots();
        let begins = self.gatherer().is_none();
        let since = self.gather_since(begins);
        let patience = if begins { self.config.policy.start_timeout } else { self.last_patience() };
        let overdue = self.silent.is_empty() && self.due(since, patience);
        let mut known = self.gather.known.clone();
        known.extend(self.own_slots().map(|mine| (self.me, mine)));
        let complete = known.len() == self.config.nodes.len().max(1);
        if !(complete || overdue) {
            return;
        }
        if !complete {
            let up = self.slots.iter().filter(|(_, slot)| slot.up).map(|(slot, _)| *slot);
            known.entry(self.me).or_default().extend(up);
        }
        let nodes: Vec<NodeId> = known.keys().copied().collect();
        let of_node = |(node, slots): (NodeId, BTreeSet<SlotId>)| slots.into_iter().map(move |slot| (slot, node));
        let slots: BTreeMap<SlotId, NodeId> = known.into_iter().flat_map(of_node).collect();
        let (mode, terms) = (self.config.mode, self.config.policy.terms());
        let first = plan::first_record(mode, terms, self.config.world_size, &nodes, &slots, self.now);
        match first {
            Ok(record) => self.write(record),
            Err(_) if self.config.renewable_slots && !overdue => {}
            Err(error) => self.conclude(Outcome::failed(error.status(), error.to_string()), true),
        }
    }

    /// This node's slots, once all of them are up.
    pub(super) fn own_slots(&self) -> Option<BTreeSet<SlotId>> {
        // Not a word before the store has said that there is no record: a predecessor may have spoken for this node.
        let up = self.slots.values().all(|slot| slot.up) && self.started && self.store.began;
        let enough = !self.config.renewable_slots || self.slots_missing() == 0;
        (up && enough).then(|| self.slots.keys().copied().collect())
    }

    /// Slots that this node was promised and that do not exist: their shepherds died before the first record, perhaps
    /// together with an agent before this one.
    fn slots_missing(&self) -> u32 {
        self.slots_promised.saturating_sub(self.slots.len() as u32)
    }

    /// Asks for what is missing before the first record. (Not before the store has said that there is none.)
    fn renew_first_slots(&mut self) {
        if !self.config.renewable_slots || !self.started || !self.store.began {
            return;
        }
        for _ in self.slots_asked..self.slots_missing() {
            self.need_slot();
        }
    }
}
