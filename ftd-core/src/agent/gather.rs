//! Before the first record: every node's slots, gathered up a tree over the job's nodes, until one knows of all.
//!
//! Nothing is agreed yet, so nobody can be left out: who does not answer is passed over by those that would have told it, and
//! the next one takes its place. Slots are only ever added, so it does no harm that two nodes may see the tree differently.

use super::gathered::subtree;
use super::{Agent, Effect, Stage};
use crate::breach::Breach;
use crate::ids::{Micros, NodeId, SlotId};
use crate::members::Members;
use crate::message::PeerMessage;
use crate::plan::{self, Unrecoverable};
use crate::record::Outcome;
use crate::slots::Slots;
use std::collections::{BTreeMap, BTreeSet};

impl Agent {
    pub(super) fn gather_fan_out(&self) -> u32 {
        self.config.policy.fan_out.max(1)
    }

    /// Whom this node tells: its parent, the ancestors of that, then the lowest others; nobody when it is the lowest itself.
    pub(super) fn gatherer(&self) -> Option<NodeId> {
        let nodes = &self.config.nodes;
        let fan_out = self.gather_fan_out();
        let place = nodes.position(self.me)?;
        let above = |at: &u32| at.checked_sub(1).map(|before| before / fan_out);
        let path = || std::iter::successors(above(&place), above);
        let passed = self.gather.passed;
        if let Some(at) = path().nth(passed) {
            return nodes.at(at);
        }
        let mut lower = (0..place).filter(|at| path().all(|above| above != *at));
        nodes.at(lower.nth(passed.saturating_sub(path().count()))?)
    }

    /// Whether the slots of so many nodes are known as stand below this one: there is nothing to wait for.
    fn knows_subtree(&self) -> bool {
        let nodes = &self.config.nodes;
        let size = nodes.position(self.me).map_or(0, |place| subtree(place, nodes.len(), self.gather_fan_out()));
        self.gather.known() >= size
    }

    /// Tells its slots and those it has been told of: at once when it knows of all below it, else once in a period. Looks for
    /// somebody else when that is not answered.
    pub(super) fn guard_gather(&mut self) {
        if self.record.is_some() || self.run.stage != Stage::Gathering || !self.started() || self.is_outsider() {
            return;
        }
        if let Some(mine) = self.own_slots() {
            self.slots.announced = true;
            self.gather.mine = Some(mine);
        }
        if self.gather.known() == 0 {
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
        let at_once = self.gather.told.is_none() && self.knows_subtree();
        if at_once || self.due(self.gather_told(), self.config.policy.heartbeat_period) {
            self.gather.told = Some(self.now);
            let (nodes, slots) = self.gather.with(self.me, self.gather.mine.as_ref());
            self.emit(Effect::Send { to, message: PeerMessage::Slots { nodes, slots } });
        }
    }

    /// When it was told last, or was first to be.
    fn gather_told(&self) -> Micros {
        self.gather.told.unwrap_or(self.gather.since)
    }

    /// After so long another one is told.
    fn pass_over(&self) -> Micros {
        Micros(self.config.policy.start_timeout.0 / 16)
    }

    /// An agent that takes another's place asks for the record, although the store may not answer: nobody need send it a
    /// heartbeat, and it has to send its own.
    pub(super) fn guard_ask_around(&mut self) {
        if self.record.is_some() || self.predecessor.is_none() || self.run.stage != Stage::Gathering || !self.started()
        {
            return;
        }
        if self.config.breach == Breach::StoreAloneAsked {
            return;
        }
        let period = self.config.policy.heartbeat_period;
        if self.gather.asked.is_some_and(|asked| !self.due(asked, period)) {
            return;
        }
        self.gather.asked = Some(self.now);
        let (nodes, epoch) = (&self.config.nodes, self.epoch());
        let (at, count) = (nodes.position(self.me).unwrap_or(0), nodes.len());
        let width = self.config.policy.observers.max(1) as u32;
        for _ in 0..width.min(count.saturating_sub(1)) {
            self.gather.turn = self.gather.turn % (count - 1) + 1;
            let to = self.config.nodes.at((at + self.gather.turn) % count);
            to.into_iter().for_each(|to| self.send(to, PeerMessage::AskForRecord { epoch }));
        }
    }

    pub(super) fn take_slots(&mut self, from: NodeId, nodes: &Members, slots: &Slots) {
        if self.record.is_some() || !self.config.nodes.contains(from) {
            return;
        }
        if self.gather.note(self.me, &self.config.nodes, nodes, slots) && self.knows_subtree() {
            // There is no more to come.
            self.gather.told = None;
        }
        self.emit(Effect::Send { to: from, message: PeerMessage::SlotsNoted { nodes: nodes.len() } });
    }

    /// A node that is not one of the job's own asks to be taken in before there is a record.
    pub(super) fn take_first_join(&mut self, from: NodeId, slots: BTreeSet<SlotId>) {
        if self.run.stage == Stage::Gathering
            && !self.is_outsider()
            && self.gather.outside.insert(from, slots).is_none()
        {
            self.gather.told = None;
        }
    }

    pub(super) fn take_slots_noted(&mut self, from: NodeId, nodes: u32) {
        if self.gatherer() == Some(from) {
            self.gather.absent.is_not_first();
            self.gather.noted = self.gather.noted.max(nodes);
            self.gather.since = self.now;
            self.gather.answered = self.now;
        }
    }

    /// When something of this is due.
    pub(super) fn gather_deadlines(&self) -> impl Iterator<Item = Micros> + '_ {
        let policy = &self.config.policy;
        let gathers = self.run.stage == Stage::Gathering && self.started() && self.record.is_none();
        let tells = gathers && self.gather.known() > 0 && !self.gather.is_noted() && self.gatherer().is_some();
        let told = tells.then(|| self.gather_told().after(policy.heartbeat_period));
        let passed = gathers.then(|| self.gather.since.after(self.pass_over()));
        let start =
            [self.gather_since(true).after(policy.start_timeout), self.gather_since(false).after(self.last_patience())];
        let start = start.into_iter().filter(|_| self.run.stage == Stage::Gathering);
        let asks = self.record.is_none() && self.predecessor.is_some();
        let asked = self.gather.asked.filter(|_| asks).map(|asked| asked.after(policy.heartbeat_period));
        let outside = self.run.stage == Stage::Gathering && self.is_outsider();
        let look = outside.then(|| self.store.read_at.after(policy.heartbeat_timeout));
        told.into_iter().chain(passed).chain(start).chain(asked).chain(look).chain(self.absent_deadline())
    }

    /// Who is not told by others that the job has begun waits longer than the one who is to begin it.
    fn last_patience(&self) -> Micros {
        self.config.policy.start_timeout.quarters(6)
    }

    /// Since when it is waited for the job to begin.
    fn gather_since(&self, begins: bool) -> Micros {
        let since = self.run.since.max(self.slots.silent_at);
        if begins { since } else { since.max(self.gather.answered) }
    }

    /// Writes the first record, when the slots of all nodes are known, or when nobody else will be. Who is taken for gone before
    /// all have had their time is passed over where the others are enough, and waited for where they are not.
    pub(super) fn propose_first(&mut self) {
        if self.is_outsider() {
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
        let overdue = !self.slots.any_silent() && self.due(since, patience);
        let mine = self.own_slots();
        let complete = self.gather.nodes.len() + u32::from(mine.is_some()) == self.config.nodes.len().max(1);
        if !(complete || overdue || (mine.is_some() && self.absent_are_gone())) {
            return;
        }
        let mine = mine.unwrap_or_else(|| self.slots.up().collect());
        let (nodes, slots) = self.gather.with(self.me, Some(&mine));
        let nodes: Vec<NodeId> = nodes.iter().collect();
        let slots: BTreeMap<SlotId, NodeId> = slots.iter().map(|entry| (entry.slot, entry.node)).collect();
        let (mode, terms) = (self.config.mode, self.config.policy.terms());
        let first = plan::first_record(mode, terms, self.config.world_size, &nodes, &slots, self.now);
        match first {
            Ok(record) => self.write(record),
            Err(_) if (self.config.renewable_slots || !complete) && !overdue => {}
            Err(Unrecoverable::TooFewSlots { slots, world_size })
                if !complete && self.await_first(world_size - slots) => {}
            Err(error) => self.conclude(Outcome::failed(error.status(), error.to_string()), true),
        }
    }

    /// This node's slots, once all of them are up.
    pub(super) fn own_slots(&self) -> Option<BTreeSet<SlotId>> {
        // Not a word before the store has said that there is no record: a predecessor may have spoken for this node.
        let up = self.slots.absent().next().is_none() && self.started() && self.store.began;
        let enough = !self.config.renewable_slots || self.slots.missing() == 0;
        (up && enough).then(|| self.slots.up().collect())
    }

    /// Asks for what is missing before the first record. (Not before the store has said that there is none.)
    fn renew_first_slots(&mut self) {
        if !self.config.renewable_slots || !self.started() || !self.store.began {
            return;
        }
        for _ in 0..self.slots.to_ask() {
            self.need_slot();
        }
    }
}
