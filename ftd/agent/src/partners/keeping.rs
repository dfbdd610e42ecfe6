//! Versions of other nodes' ranks that this one keeps.

use super::kinds::{Keeping, Stay, Use, commit, description};
use super::ship::Part;
use super::state::{News, Partners};
use crate::arenas::{self, Arenas};
use crate::job::Job;
use ft_arena::AgentArena;
use ft_sys::behind::Behind;
use ft_wire::Rank;
use ft_wire::copies::{CopyFacts, CopyName, CopyWord};
use ft_wire::ship::{Target, Window};
use ftd_core::NodeId;
use std::sync::Arc;

impl Partners {
    /// A version is to be kept.
    pub(super) fn offered(
        &mut self,
        job: &mut Job,
        arenas: &mut Arenas,
        from: NodeId,
        (copy, facts): (CopyName, CopyFacts),
    ) {
        let due = self.open && copy.epoch == self.epoch() && self.home(copy.rank) == Some(from) && from != self.me;
        if !due || !self.needs(commit(copy)) {
            return;
        }
        if let Some(keeping) = self.keeping.get(&copy.rank) {
            match keeping.stay {
                Stay::Open(target) if keeping.copy == copy => return self.say_room(job, from, copy, target),
                _ if keeping.copy == copy => return,
                Stay::Closing | Stay::Checked => {
                    self.later.insert(copy.rank, (from, copy, facts));
                    return;
                }
                // Who offers another one, or this one anew, has given up the one before.
                Stay::Opening | Stay::Open(_) => self.forget(copy.rank),
            }
        }
        if arenas.describe(copy.rank, commit(copy)).is_some() {
            return self.say(job, from, CopyWord::Kept { copy });
        }
        if let Err(reason) = self.make_room(job, arenas, from, (copy, facts)) {
            self.say(job, from, CopyWord::NotKept { copy, reason, again: false });
        }
    }

    fn make_room(
        &mut self,
        job: &mut Job,
        arenas: &mut Arenas,
        from: NodeId,
        (copy, facts): (CopyName, CopyFacts),
    ) -> Result<(), String> {
        self.ship.wake()?;
        self.new_arena(job, arenas);
        arenas.arena(copy.rank).map_err(|error| error.to_string())?;
        arenas.reserve_more(copy.rank, facts.bytes)?;
        let written = |place| self.is_written(copy.rank, place);
        let found = arenas.place_for_copy(copy.rank, written, false).map_err(|error| error.to_string())?;
        let Some((arena, place)) = found else {
            // What is there is needed until a newer one is complete everywhere.
            self.later.insert(copy.rank, (from, copy, facts));
            return Ok(());
        };
        let sequence = arena.begin_copy(place, facts.bytes);
        let part = Part { rank: copy.rank, arena: &arena, place, bytes: facts.bytes };
        let window = self.ship.expose(part, true)?;
        self.windows.insert(window, Use::Keeping(copy.rank));
        let stay = Stay::Opening;
        self.keeping.insert(copy.rank, Keeping { from, copy, facts, place, sequence, window, stay });
        Ok(())
    }

    fn say_room(&self, job: &mut Job, to: NodeId, copy: CopyName, target: Target) {
        if let Some(address) = self.ship.address().map(<[u8]>::to_vec) {
            self.say(job, to, CopyWord::Room { copy, target, address });
        }
    }

    /// Offers for which there was no place are looked at again.
    pub fn look_at_later(&mut self, job: &mut Job, arenas: &mut Arenas) {
        for (from, copy, facts) in std::mem::take(&mut self.later).into_values() {
            self.offered(job, arenas, from, (copy, facts));
        }
    }

    /// The window of a version is open, or there is none.
    pub(super) fn may_be_written(&mut self, job: &mut Job, rank: Rank, window: Window, target: Result<Target, String>) {
        let Some(keeping) = self.keeping.get_mut(&rank).filter(|keeping| keeping.window == window) else { return };
        let (from, copy) = (keeping.from, keeping.copy);
        match target {
            Ok(target) => {
                keeping.stay = Stay::Open(target);
                self.say_room(job, from, copy, target);
            }
            Err(reason) => {
                self.windows.remove(&window);
                self.keeping.remove(&rank);
                self.say(job, from, CopyWord::NotKept { copy, reason, again: false });
            }
        }
    }

    /// All of it has been written, its owner says.
    pub(super) fn written(&mut self, job: &mut Job, arenas: &Arenas, from: NodeId, copy: CopyName) {
        if copy.epoch != self.epoch() || !self.open {
            return;
        }
        match self.keeping.get_mut(&copy.rank) {
            Some(keeping) if keeping.copy == copy && keeping.from == from => {
                if matches!(keeping.stay, Stay::Open(_)) {
                    keeping.stay = Stay::Closing;
                    let window = keeping.window;
                    self.ship.finish(window);
                }
            }
            _ if arenas.describe(copy.rank, commit(copy)).is_some() => self.say(job, from, CopyWord::Kept { copy }),
            _ => {
                let reason = "its window was closed meanwhile".into();
                self.say(job, from, CopyWord::NotKept { copy, reason, again: true });
            }
        }
    }

    /// Nobody can write to a place any more: what came is compared with its checksum.
    pub(super) fn is_closed(&mut self, arenas: &mut Arenas, rank: Rank, window: Window) {
        let Some(keeping) = self.keeping.get_mut(&rank).filter(|keeping| keeping.window == window) else { return };
        if keeping.stay != Stay::Closing {
            // The process is gone: its owner offers it again.
            self.keeping.remove(&rank);
            return;
        }
        keeping.stay = Stay::Checked;
        let (copy, facts, place, sequence) = (keeping.copy, keeping.facts, keeping.place, keeping.sequence);
        if let Ok(arena) = arenas.arena(rank) {
            arena.finish_copy(place, sequence, &description(copy, facts));
            self.compare(arena, copy, place);
        }
    }

    /// Compares what came with its checksum, behind.
    pub(super) fn compare(&self, arena: Arc<AgentArena>, copy: CopyName, place: u32) {
        let news = self.news.clone();
        tokio::task::spawn_blocking(move || {
            let _behind = Behind::begin();
            let result = arenas::check(&arena, place);
            news.send(News::Checked { copy, result });
        });
    }

    /// A version that came was compared: it is kept, or not.
    pub(super) fn is_checked(
        &mut self,
        job: &mut Job,
        arenas: &mut Arenas,
        copy: CopyName,
        result: Result<(), String>,
    ) {
        let Some(keeping) = self.keeping.remove(&copy.rank) else { return };
        if keeping.copy != copy || keeping.stay != Stay::Checked {
            self.keeping.insert(copy.rank, keeping);
            return;
        }
        let word = match result {
            Ok(()) => CopyWord::Kept { copy },
            Err(reason) => {
                if let Ok(arena) = arenas.arena(copy.rank) {
                    arena.discard(keeping.place, keeping.sequence);
                }
                CopyWord::NotKept { copy, reason, again: true }
            }
        };
        self.say(job, keeping.from, word);
        self.look_at_later(job, arenas);
    }
}
