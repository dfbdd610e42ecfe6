//! Versions of this node's ranks on their way to partners.
//!
//! One of a rank at a time: it is offered, written into the partner's window, and kept. A partner that does not keep it, or with which it
//! goes wrong again and again, is passed over for the next one. When none is left the version is as safe as it gets, and counts as such:
//! else its rank would wait for a free place for ever. That is said.

use super::kinds::{Errand, Queue, Sending, Unreached, Way, commit, facts};
use super::ship::{Far, Part};
use super::state::{AGAIN, CHECKING, MOST_FAILURES, Partners, ROUND, SILENT, UNREACHED};
use crate::arenas::{Arenas, Commit};
use crate::job::Job;
use ft_sys::timescale::scaled;
use ft_wire::Rank;
use ft_wire::copies::{CopyName, CopyWord};
use ft_wire::ship::{Direction, Target};
use ftd_core::{Event, Level, NodeId, Process, WorldId, size};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

impl Partners {
    /// A rank's version is whole on this node, with its checksum: a partner is to have it.
    pub fn send(&mut self, job: &mut Job, arenas: &Arenas, rank: Rank, version: Commit) {
        if !self.open {
            return;
        }
        let Queue { now, next } = self.queues.entry(rank).or_default();
        if now.as_ref().is_none_or(|now| commit(now.copy) != version) && !next.contains(&version) {
            next.push_back(version);
            if let Some((_, found)) = arenas.describe(rank, version) {
                self.progress.begin(version, rank, found.bytes);
            }
        }
        self.send_next(job, arenas, rank);
    }

    /// Places have become free, and what was being sent may not be needed any more.
    pub fn go_on(&mut self, job: &mut Job, arenas: &mut Arenas) {
        let ranks: Vec<Rank> = self.queues.keys().copied().collect();
        ranks.into_iter().for_each(|rank| self.send_next(job, arenas, rank));
        self.look_at_later(job, arenas);
    }

    fn send_next(&mut self, job: &mut Job, arenas: &Arenas, rank: Rank) {
        let epoch = self.epoch();
        while let Some(queue) = self.queues.get_mut(&rank).filter(|queue| queue.now.is_none()) {
            let Some(version) = queue.next.pop_front() else { return };
            let Some((place, found)) = arenas.describe(rank, version) else { continue };
            let copy = CopyName { epoch, rank, version: version.0, committed: version.1, turn: 0 };
            let now = Instant::now();
            queue.now = Some(Sending {
                copy,
                facts: facts(&found),
                place,
                to: self.me,
                way: Way::Offered(now),
                since: now,
                began: now,
                failures: 0,
                moved: 0,
                refused: BTreeMap::new(),
                round: BTreeSet::new(),
                straight: false,
            });
            match self.ship.wake() {
                Ok(()) => self.offer_to_next(job, rank),
                Err(reason) => self.stays_here(job, rank, &reason),
            }
        }
    }

    /// Who may keep copies, the best first, and last those to whom nothing came of late.
    pub(super) fn in_turn(&mut self) -> Vec<NodeId> {
        self.unreached.retain(|_, of_late| of_late.until > Instant::now());
        let (reached, not): (Vec<_>, Vec<_>) = self.others().into_iter().partition(|node| self.reaches(*node));
        reached.into_iter().chain(not).collect()
    }

    /// Nothing of late says that bytes do not come there.
    pub(super) fn reaches(&self, node: NodeId) -> bool {
        self.unreached.get(&node).is_none_or(|of_late| of_late.until <= Instant::now())
    }

    /// A node does not get what is sent to it: the next version goes to another one first, and people hear of it.
    pub(super) fn does_not_reach(&mut self, job: &mut Job, to: NodeId, reason: &str) {
        self.unreached.insert(to, Unreached { until: Instant::now() + scaled(UNREACHED), tried: true });
        self.go_to_others(job, to, reason);
    }

    fn go_to_others(&self, job: &mut Job, to: NodeId, reason: &str) {
        let (node, to) = (self.name(job, self.me), self.name(job, to));
        job.notice_once(format!("checkpoints of ranks on {node} do not come to {to}, and go to other nodes: {reason}"));
    }

    /// Why bytes are not even tried to be moved to a node, or from there.
    pub(super) fn no_way(&self, job: &Job, other: NodeId) -> String {
        format!("{} and {} reach each other through others alone", self.name(job, self.me), self.name(job, other))
    }

    /// Offers it to the best of those who have not refused it.
    fn offer_to_next(&mut self, job: &mut Job, rank: Rank) {
        let others = self.in_turn();
        let Some(now) = self.queues.get_mut(&rank).and_then(|queue| queue.now.as_mut()) else { return };
        match others.iter().find(|other| !now.refused.contains_key(other)) {
            Some(other) => {
                (now.to, now.failures) = (*other, 0);
                self.offer(job, rank);
            }
            None if !now.straight => {
                now.straight = true;
                let in_vain = |node: &NodeId| self.unreached.get(node).is_some_and(|of_late| of_late.tried);
                let round = std::mem::take(&mut now.round);
                now.refused.retain(|node, _| !round.contains(node) || in_vain(node));
                self.offer_to_next(job, rank);
            }
            None => {
                let refused = std::mem::take(&mut now.refused);
                let reasons = refused.into_iter().map(|(node, why)| format!("{}: {why}", self.name(job, node)));
                let reasons = reasons.collect::<Vec<_>>().join("; ");
                self.stays_here(job, rank, &reasons);
            }
        }
    }

    fn offer(&mut self, job: &mut Job, rank: Rank) {
        let Some(now) = self.queues.get_mut(&rank).and_then(|queue| queue.now.as_mut()) else { return };
        now.copy.turn += 1;
        (now.way, now.since, now.moved) = (Way::Offered(Instant::now()), Instant::now(), 0);
        let (to, word) = (now.to, CopyWord::Offer { copy: now.copy, facts: now.facts });
        self.say(job, to, word);
        self.look_soon();
    }

    /// No other node has it, nor will have it.
    fn stays_here(&mut self, job: &mut Job, rank: Rank, reason: &str) {
        let Some(now) = self.queues.get_mut(&rank).and_then(|queue| queue.now.take()) else { return };
        if !self.others().is_empty() {
            let node = self.name(job, self.me);
            job.notice_once(format!(
                "checkpoints of ranks on {node} are in its memory alone, and are lost should it die: {reason}"
            ));
        }
        self.progress.stays(commit(now.copy), rank);
        self.committed(job, now.copy);
    }

    /// A version is as safe as it gets.
    fn committed(&self, job: &mut Job, copy: CopyName) {
        let Some(record) = self.record.as_ref().filter(|record| record.epoch.0 == copy.epoch) else { return };
        let process = Process::primary(WorldId(record.world.0), ftd_core::Rank(copy.rank));
        let version = ftd_core::Version(copy.version);
        job.report(Event::Committed { process, version, level: Level::Partner });
    }

    /// What is being sent, if it is that.
    fn sends(&mut self, from: NodeId, copy: CopyName) -> Option<&mut Sending> {
        let now = self.queues.get_mut(&copy.rank)?.now.as_mut();
        now.filter(|now| now.copy == copy && now.to == from)
    }

    /// The partner has room for it, and there seems to be no straight way there: says whether it is passed over for that.
    pub(super) fn has_no_way_to(&mut self, job: &mut Job, arenas: &Arenas, from: NodeId, copy: CopyName) -> bool {
        let offered = |now: &&mut Sending| matches!(now.way, Way::Offered(_)) && !now.straight;
        let reason = self.no_way(job, from);
        let Some(now) = self.sends(from, copy).filter(offered) else { return false };
        now.round.insert(from);
        self.unreached.entry(from).or_insert(Unreached { until: Instant::now() + scaled(ROUND), tried: false });
        self.goes_wrong(job, copy.rank, reason, false);
        self.send_next(job, arenas, copy.rank);
        true
    }

    /// The partner has room for it.
    pub(super) fn room(
        &mut self,
        job: &mut Job,
        arenas: &mut Arenas,
        from: NodeId,
        copy: CopyName,
        (target, address): (Target, &[u8]),
    ) {
        let Some(now) = self.sends(from, copy).filter(|now| matches!(now.way, Way::Offered(_))) else { return };
        let (place, bytes) = (now.place, now.facts.bytes);
        let Ok(arena) = arenas.arena(copy.rank) else { return };
        ft_sys::gate::reach("agent.ships", Some(copy.rank));
        let part = Part { rank: copy.rank, arena: &arena, place, bytes };
        let far = Far { node: from, address, target };
        match self.ship.move_part(Direction::Put, part, far) {
            Ok(id) => {
                self.moves.insert(id, Errand::There(copy.rank));
                let Some(now) = self.sends(from, copy) else { return };
                (now.way, now.since) = (Way::Moving(id), Instant::now());
            }
            Err(reason) => self.stays_here(job, copy.rank, &reason),
        }
    }

    /// Its bytes are there, or not.
    pub(super) fn has_moved(&mut self, job: &mut Job, rank: Rank, id: u64, result: Result<(), String>) {
        let now = self.queues.get_mut(&rank).and_then(|queue| queue.now.as_mut());
        let Some(now) = now.filter(|now| matches!(now.way, Way::Moving(known) if known == id)) else { return };
        match result {
            Ok(()) => {
                (now.way, now.since) = (Way::Written(Instant::now()), Instant::now());
                let (to, word) = (now.to, CopyWord::Written { copy: now.copy });
                self.ship.succeeds();
                self.say(job, to, word);
                self.look_soon();
            }
            Err(reason) => self.goes_wrong(job, rank, reason, true),
        }
    }

    /// So much of it has.
    pub(super) fn progress(&mut self, rank: Rank, id: u64, bytes: u64) {
        let now = self.queues.get_mut(&rank).and_then(|queue| queue.now.as_mut());
        if let Some(now) = now.filter(|now| matches!(now.way, Way::Moving(known) if known == id)) {
            now.moved = bytes;
            let (version, commit) = (now.copy.version, commit(now.copy));
            ft_sys::gate::reach_with("agent.moves", Some(rank), version);
            self.progress.moved(commit, rank, bytes);
        }
    }

    fn goes_wrong(&mut self, job: &mut Job, rank: Rank, reason: String, again: bool) {
        let Some(now) = self.queues.get_mut(&rank).and_then(|queue| queue.now.as_mut()) else { return };
        tracing::warn!(rank, version = now.copy.version, to = now.to.0, reason, "a copy is not kept");
        ft_sys::gate::reach("agent.not-kept", Some(rank));
        now.failures += 1;
        if again && now.failures < MOST_FAILURES {
            return self.offer(job, rank);
        }
        let to = now.to;
        now.refused.insert(to, reason.clone());
        if again {
            self.does_not_reach(job, to, &reason);
        }
        self.offer_to_next(job, rank);
    }

    /// The partner has it.
    pub(super) fn kept(&mut self, job: &mut Job, arenas: &Arenas, from: NodeId, copy: CopyName) {
        // What it had already it says of any turn.
        let Some(now) = self.queues.get_mut(&copy.rank).and_then(|queue| queue.now.as_ref()) else { return };
        let same = CopyName { turn: now.copy.turn, ..copy } == now.copy && now.to == from;
        if !same {
            return;
        }
        // With the version, not how many there were: one may be given up on its way, for a newer one.
        ft_sys::gate::reach_with("agent.kept", Some(copy.rank), copy.version);
        let (took, bytes) = (now.began.elapsed(), now.facts.bytes);
        let rate = bytes as f64 / took.as_secs_f64().max(1e-6) / f64::from(1 << 20);
        tracing::info!(rank = copy.rank, version = copy.version, to = from.0, bytes, ?took, "kept, {rate:.0} MiB/s");
        let now = self.queues.get_mut(&copy.rank).and_then(|queue| queue.now.take());
        for node in now.into_iter().flat_map(|now| now.round) {
            let reason = self.no_way(job, node);
            self.go_to_others(job, node, &reason);
        }
        self.unreached.remove(&from);
        self.progress.kept(commit(copy), copy.rank);
        self.say_progress(job);
        self.committed(job, copy);
        self.send_next(job, arenas, copy.rank);
    }

    /// It has not, and does not want it, or not now.
    pub(super) fn not_kept(
        &mut self,
        job: &mut Job,
        arenas: &Arenas,
        from: NodeId,
        (copy, reason, again): (CopyName, String, bool),
    ) {
        if self.sends(from, copy).is_some() {
            self.goes_wrong(job, copy.rank, reason, again);
            self.send_next(job, arenas, copy.rank);
        }
    }

    /// Says again what was not answered, and no longer to who is silent.
    pub(super) fn look_at_sending(&mut self, job: &mut Job, arenas: &Arenas) {
        let ranks: Vec<Rank> = self.queues.keys().copied().collect();
        for rank in ranks {
            let Some(now) = self.queues.get_mut(&rank).and_then(|queue| queue.now.as_mut()) else { continue };
            let (to, copy, since) = (now.to, now.copy, now.since.elapsed());
            let (said, most, word) = match &mut now.way {
                Way::Moving(_) => continue,
                Way::Offered(said) => (said, SILENT, CopyWord::Offer { copy, facts: now.facts }),
                Way::Written(said) => (said, CHECKING, CopyWord::Written { copy }),
            };
            if since >= scaled(most) {
                self.goes_wrong(job, rank, format!("no answer for {} s", most.as_secs()), false);
                self.send_next(job, arenas, rank);
            } else if said.elapsed() >= AGAIN {
                *said = Instant::now();
                self.say(job, to, word);
            }
        }
        self.say_progress(job);
        if self.queues.values().any(|queue| queue.now.is_some()) {
            self.look_soon();
        }
    }

    /// What a rank without a free place waits for, when that is here.
    pub fn waits_for(&self, job: &Job, rank: Rank) -> Option<String> {
        let now = self.queues.get(&rank)?.now.as_ref()?;
        let (to, began): (_, Duration) = (self.name(job, now.to), now.began.elapsed());
        let how = match now.way {
            Way::Offered(_) => "has no room for it yet".to_string(),
            Way::Moving(_) => format!("has {} of its {}", size(now.moved), size(now.facts.bytes)),
            Way::Written(_) => "compares it with its checksum".to_string(),
        };
        let version = now.copy.version;
        Some(format!(
            "version {version} of rank {rank} has been on its way to {to} for {:.1} s, which {how}",
            began.as_secs_f64()
        ))
    }
}
