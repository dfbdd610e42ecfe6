//! Versions that ranks of this node take back, and that lie on other nodes; and those that others read here.
//!
//! Words between two nodes go round a link that is cut, bytes do not: they go from one `ft-ship` to another. So a version that does not
//! come straight from its holder is wanted of a third node, which has it from there and lets it be read as if it had held it.

use super::kinds::{Back, Errand, Fetching, Lent, Use, Ways, commit, description, facts};
use super::ship::{Far, Part};
use super::state::{AGAIN, MOST_FAILURES, MOST_WAYS, PASSING, Partners, SILENT};
use crate::arenas::{Arenas, Commit};
use crate::job::Job;
use ft_sys::timescale::scaled;
use ft_wire::Rank;
use ft_wire::copies::{CopyFacts, CopyName, CopyWord};
use ft_wire::ship::{Direction, Target, Window};
use ftd_core::{EpochId, Event, NodeId};
use std::time::Instant;

impl Partners {
    /// A rank's version is to be brought from there.
    pub fn fetch(&mut self, job: &mut Job, rank: Rank, (version, committed): Commit, from: NodeId) {
        let copy = CopyName { epoch: self.epoch(), rank, version, committed, turn: 0 };
        self.begin_fetching(job, copy, Ways::from(from));
        self.see_to_rate();
    }

    fn begin_fetching(&mut self, job: &mut Job, copy: CopyName, ways: Ways) {
        let (now, from, rank) = (Instant::now(), ways.holder, copy.rank);
        let back = Back::Asked(now);
        self.fetching.insert(rank, Fetching { copy, from, ways, since: now, back, facts: None, into: None });
        match self.ship.wake() {
            Ok(()) => self.want(job, rank),
            Err(reason) => self.not_fetched(job, rank, &reason),
        }
    }

    fn want(&mut self, job: &mut Job, rank: Rank) {
        let Some(fetching) = self.fetching.get_mut(&rank) else { return };
        fetching.copy.turn += 1;
        (fetching.back, fetching.since, fetching.into) = (Back::Asked(Instant::now()), Instant::now(), None);
        let (from, word) = (fetching.from, fetching.wish());
        self.say(job, from, word);
        self.look_soon();
    }

    fn not_fetched(&mut self, job: &mut Job, rank: Rank, reason: &str) {
        let Some(fetching) = self.fetching.remove(&rank) else { return };
        let (copy, from) = (fetching.copy, fetching.ways.holder);
        let node = self.name(job, from);
        if let Some((to, copy)) = fetching.ways.behalf {
            let reason = format!("from {node}: {reason}");
            return self.say(job, to, CopyWord::NotReadable { copy, reason });
        }
        tracing::warn!(rank, version = copy.version, node, reason, "a copy cannot be had");
        job.notice(format!("version {} of rank {rank} cannot be had from {node}: {reason}", copy.version));
        job.report(Event::NotFetched { epoch: EpochId(copy.epoch), rank: ftd_core::Rank(rank), from });
    }

    /// `moved`: it came, and is not what it should be, which no other way mends.
    fn goes_wrong_back(&mut self, job: &mut Job, arenas: &mut Arenas, rank: Rank, (reason, moved): (&str, bool)) {
        let Some(fetching) = self.fetching.get_mut(&rank) else { return };
        if let (Some((place, sequence)), Ok(arena)) = (fetching.into.take(), arenas.arena(rank)) {
            arena.discard(place, sequence);
        }
        if fetching.from == fetching.ways.holder {
            fetching.ways.failures += 1;
        }
        if moved {
            return self.want_straight(job, rank, reason);
        }
        self.goes_another_way(job, rank, reason);
    }

    fn goes_another_way(&mut self, job: &mut Job, rank: Rank, reason: &str) {
        match self.third(rank) {
            Some(third) => self.want_through(job, rank, third, reason),
            None => self.want_straight(job, rank, reason),
        }
    }

    /// Who may have it from its holder and pass it on.
    fn third(&self, rank: Rank) -> Option<NodeId> {
        let ways = &self.fetching.get(&rank)?.ways;
        let may = ways.behalf.is_none() && ways.asked.len() < MOST_WAYS;
        let mut others = self.others().into_iter().filter(|node| may && self.reaches(*node));
        others.find(|node| *node != ways.holder && !ways.asked.contains(node))
    }

    fn want_through(&mut self, job: &mut Job, rank: Rank, third: NodeId, reason: &str) {
        self.leaves(job, rank);
        let Some(fetching) = self.fetching.get_mut(&rank) else { return };
        fetching.from = third;
        fetching.ways.asked.insert(third);
        let holder = fetching.ways.holder;
        let (from, me, third) = (self.name(job, holder), self.name(job, self.me), self.name(job, third));
        job.notice_once(format!("copies of checkpoints come from {from} to {me} through {third}: {reason}"));
        self.want(job, rank);
    }

    /// It is not wanted any more of whom it was wanted from.
    fn leaves(&self, job: &mut Job, rank: Rank) {
        if let Some(Fetching { from, copy, .. }) = self.fetching.get(&rank) {
            self.say(job, *from, CopyWord::Read { copy: *copy });
        }
    }

    fn want_straight(&mut self, job: &mut Job, rank: Rank, reason: &str) {
        self.leaves(job, rank);
        let Some(fetching) = self.fetching.get_mut(&rank) else { return };
        fetching.from = fetching.ways.holder;
        // Who has it for another node is not the only one that is asked.
        let most = if fetching.ways.behalf.is_some() { 1 } else { MOST_FAILURES };
        if fetching.ways.failures < most {
            return self.want(job, rank);
        }
        self.not_fetched(job, rank, reason);
    }

    /// It might be read there, if there were a straight way: another one is tried first, when there is one.
    pub(super) fn reads_otherwise(&mut self, job: &mut Job, from: NodeId, copy: CopyName) -> bool {
        let Some(fetching) = self.fetching.get(&copy.rank).filter(|fetching| fetching.awaits(from, copy)) else {
            return false;
        };
        let reason = self.no_way(job, from);
        if fetching.ways.behalf.is_some() {
            self.leaves(job, copy.rank);
            self.not_fetched(job, copy.rank, &reason);
            return true;
        }
        let Some(third) = self.third(copy.rank) else { return false };
        self.want_through(job, copy.rank, third, &reason);
        true
    }

    /// It may be read there.
    pub(super) fn may_be_read(
        &mut self,
        job: &mut Job,
        arenas: &mut Arenas,
        from: NodeId,
        (copy, facts, target, address): (CopyName, CopyFacts, Target, &[u8]),
    ) {
        if !self.fetching.get(&copy.rank).is_some_and(|fetching| fetching.awaits(from, copy)) {
            return;
        }
        if let Err(reason) = self.read(job, arenas, from, (copy, facts, target, address)) {
            self.say(job, from, CopyWord::Read { copy });
            self.not_fetched(job, copy.rank, &reason);
        }
    }

    fn read(
        &mut self,
        job: &Job,
        arenas: &mut Arenas,
        node: NodeId,
        (copy, facts, target, address): (CopyName, CopyFacts, Target, &[u8]),
    ) -> Result<(), String> {
        let (rank, bytes) = (copy.rank, facts.bytes);
        // For another node nothing is given up that is here.
        let own = self.home(rank) == Some(self.me);
        self.new_arena(job, arenas);
        arenas.arena(rank).map_err(|error| error.to_string())?;
        arenas.reserve_more(rank, bytes)?;
        let written = |place| self.is_written(rank, place);
        let found = arenas.place_for_copy(rank, written, own).map_err(|error| error.to_string())?;
        let (arena, place) = found.ok_or("no place is free for it")?;
        let sequence = arena.begin_copy(place, bytes);
        ft_sys::gate::reach("agent.fetches", Some(rank));
        let part = Part { rank, arena: &arena, place, bytes };
        let id = self.ship.move_part(Direction::Get, part, Far { node, address, target })?;
        self.moves.insert(id, Errand::Back(rank, place));
        if let Some(fetching) = self.fetching.get_mut(&rank) {
            (fetching.back, fetching.since) = (Back::Moving(id), Instant::now());
            (fetching.facts, fetching.into) = (Some(facts), Some((place, sequence)));
        }
        Ok(())
    }

    /// Its bytes are here, or not.
    pub(super) fn has_come(
        &mut self,
        job: &mut Job,
        arenas: &mut Arenas,
        rank: Rank,
        (id, result): (u64, Result<(), String>),
    ) {
        let moving = |fetching: &&mut Fetching| fetching.back == Back::Moving(id);
        let Some(fetching) = self.fetching.get_mut(&rank).filter(moving) else { return };
        let (copy, from) = (fetching.copy, fetching.from);
        let known = fetching.facts.zip(fetching.into);
        match (result, known, arenas.arena(rank)) {
            (Ok(()), Some((facts, (place, sequence))), Ok(arena)) => {
                fetching.back = Back::Checked;
                self.ship.succeeds();
                self.say(job, from, CopyWord::Read { copy });
                arena.finish_copy(place, sequence, &description(copy, facts));
                self.compare(arena, copy, place);
            }
            (Err(reason), ..) => self.goes_wrong_back(job, arenas, rank, (&reason, false)),
            _ => self.not_fetched(job, rank, "its arena is gone"),
        }
    }

    /// What came was compared: the rank has it, or not.
    pub(super) fn is_back(&mut self, job: &mut Job, arenas: &mut Arenas, copy: CopyName, result: Result<(), String>) {
        let checked = |fetching: &&Fetching| fetching.copy == copy && fetching.back == Back::Checked;
        let Some(fetching) = self.fetching.get(&copy.rank).filter(checked) else { return };
        match (result, fetching.into) {
            (Ok(()), Some((place, _))) => {
                let behalf = self.fetching.remove(&copy.rank).and_then(|fetching| fetching.ways.behalf);
                arenas.found(copy.rank, commit(copy), place);
                if let Some((to, copy)) = behalf {
                    return self.wanted(job, arenas, to, copy);
                }
                self.fetched.push(copy.rank);
                job.report(Event::Fetched { epoch: EpochId(copy.epoch), rank: ftd_core::Rank(copy.rank) });
                self.send(job, arenas, copy.rank, commit(copy));
            }
            (Err(reason), _) => self.goes_wrong_back(job, arenas, copy.rank, (&reason, true)),
            (Ok(()), None) => {}
        }
    }

    /// It cannot be had there.
    pub(super) fn not_readable(&mut self, job: &mut Job, from: NodeId, copy: CopyName, reason: &str) {
        let of_it = |fetching: &&Fetching| fetching.copy == copy && fetching.from == from;
        let Some(fetching) = self.fetching.get(&copy.rank).filter(of_it) else { return };
        if from == fetching.ways.holder {
            return self.not_fetched(job, copy.rank, reason);
        }
        self.goes_another_way(job, copy.rank, reason);
    }

    /// Asks again what was not answered, and no longer who is silent.
    pub(super) fn look_at_fetching(&mut self, job: &mut Job) {
        let ranks: Vec<Rank> = self.fetching.keys().copied().collect();
        for rank in ranks {
            let Some(fetching) = self.fetching.get_mut(&rank) else { continue };
            let Back::Asked(said) = &mut fetching.back else { continue };
            let straight = fetching.from == fetching.ways.holder;
            let patience = if straight { SILENT } else { PASSING };
            let reason = || format!("no answer for {} s", patience.as_secs());
            if fetching.since.elapsed() < scaled(patience) {
                if said.elapsed() >= AGAIN {
                    *said = Instant::now();
                    let (from, word) = (fetching.from, fetching.wish());
                    self.say(job, from, word);
                }
            } else if straight {
                self.not_fetched(job, rank, &reason());
            } else {
                self.goes_another_way(job, rank, &reason());
            }
        }
        if !self.fetching.is_empty() {
            self.look_soon();
        }
    }

    /// Another node wants to read a version for a rank that is there now, or for one on a third node, which has no way to this one.
    pub(super) fn wanted(&mut self, job: &mut Job, arenas: &mut Arenas, from: NodeId, copy: CopyName) {
        let member = self.record.as_ref().is_some_and(|record| record.is_member(from));
        if copy.epoch != self.epoch() || !member || from == self.me {
            return;
        }
        if let Some(lent) = self.lent.get(&(from, copy.rank)) {
            if lent.copy == copy {
                let (facts, target) = (lent.facts, lent.target);
                target.into_iter().for_each(|target| self.say_readable(job, from, (copy, facts), target));
                return;
            }
            self.take_back(from, copy.rank);
        }
        if let Err(reason) = self.lend(arenas, from, copy) {
            self.say(job, from, CopyWord::NotReadable { copy, reason });
        }
    }

    /// Another node wants to read a version here for a rank of its own which it cannot read where it is.
    pub(super) fn wanted_through(
        &mut self,
        job: &mut Job,
        arenas: &mut Arenas,
        from: NodeId,
        copy: CopyName,
        holder: NodeId,
    ) {
        if copy.epoch != self.epoch() || self.home(copy.rank) != Some(from) || from == self.me {
            return;
        }
        if holder == self.me || arenas.place(copy.rank, commit(copy)).is_some() {
            return self.wanted(job, arenas, from, copy);
        }
        match self.fetching.get_mut(&copy.rank) {
            // Said again, or anew.
            Some(fetching) if fetching.ways.holder == holder => fetching.ways.behalf = Some((from, copy)),
            known => {
                if known.is_some() {
                    self.fetch_no_more(job, arenas, copy.rank);
                }
                let ways = Ways { behalf: Some((from, copy)), ..Ways::from(holder) };
                self.begin_fetching(job, CopyName { turn: 0, ..copy }, ways);
            }
        }
    }

    fn lend(&mut self, arenas: &mut Arenas, from: NodeId, copy: CopyName) -> Result<(), String> {
        let known = arenas.place(copy.rank, commit(copy)).and_then(|_| arenas.describe(copy.rank, commit(copy)));
        let (place, found) = known.ok_or("it is not there any more")?;
        let arena = arenas.arena(copy.rank).map_err(|error| error.to_string())?;
        let part = Part { rank: copy.rank, arena: &arena, place, bytes: found.bytes };
        let window = self.ship.expose(part, false)?;
        self.windows.insert(window, Use::Lent(from, copy.rank));
        self.lent.insert((from, copy.rank), Lent { copy, facts: facts(&found), window, target: None });
        Ok(())
    }

    fn say_readable(&self, job: &mut Job, to: NodeId, (copy, facts): (CopyName, CopyFacts), target: Target) {
        if let Some(address) = self.ship.address().map(<[u8]>::to_vec) {
            self.say(job, to, CopyWord::Readable { copy, facts, target, address });
        }
    }

    /// The window of what another node reads is open, or there is none.
    pub(super) fn is_lent(
        &mut self,
        job: &mut Job,
        (to, rank): (NodeId, Rank),
        window: Window,
        target: Result<Target, String>,
    ) {
        let Some(lent) = self.lent.get_mut(&(to, rank)).filter(|lent| lent.window == window) else { return };
        let (copy, facts) = (lent.copy, lent.facts);
        match target {
            Ok(target) => {
                lent.target = Some(target);
                self.say_readable(job, to, (copy, facts), target);
            }
            Err(reason) => {
                self.lent.remove(&(to, rank));
                self.windows.remove(&window);
                self.say(job, to, CopyWord::NotReadable { copy, reason });
            }
        }
    }

    /// Another node has read it, or does not want it any more.
    pub(super) fn was_read(&mut self, job: &mut Job, arenas: &mut Arenas, from: NodeId, copy: CopyName) {
        if self.lent.get(&(from, copy.rank)).is_some_and(|lent| lent.copy == copy) {
            self.take_back(from, copy.rank);
        }
        if self.fetching.get(&copy.rank).is_some_and(|fetching| fetching.ways.behalf == Some((from, copy))) {
            self.fetch_no_more(job, arenas, copy.rank);
        }
    }

    /// What is had for another node is not needed.
    fn fetch_no_more(&mut self, job: &mut Job, arenas: &mut Arenas, rank: Rank) {
        self.leaves(job, rank);
        let Some(fetching) = self.fetching.remove(&rank) else { return };
        if let Back::Moving(id) = fetching.back {
            self.ship.cancel(id);
        }
        if let (Some((place, sequence)), Ok(arena)) = (fetching.into, arenas.arena(rank)) {
            arena.discard(place, sequence);
        }
    }

    fn take_back(&mut self, from: NodeId, rank: Rank) {
        if let Some(lent) = self.lent.remove(&(from, rank)) {
            self.close(lent.window, None);
        }
    }
}
