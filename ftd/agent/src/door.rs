//! Who is at the other end of a connection, and who is turned away.

use crate::job::Job;
use crate::link::{ConnectionId, Link};
use ft_sys::individual::Held;
use ft_sys::peer::Peer;
use ft_wire::{Rank, Slot, World as WorldNumber};
use std::collections::{BTreeMap, BTreeSet};

/// Connections of which it may not be known whose they are, besides two for each rank.
const MOST_STRANGERS: usize = 16;
/// Sentences about processes that do not belong to the job.
const MOST_SAID: usize = 8;

/// Who dialled.
#[derive(Debug)]
pub enum Dialler {
    /// It has not said yet.
    Unknown(Link, Peer),
    /// The shepherd of this slot.
    Shepherd(Slot),
    /// The preload of this rank.
    Rank(WorldNumber, Rank),
    /// The checkpoint library of this rank.
    Client(WorldNumber, Rank),
}

/// All connections.
#[derive(Debug, Default)]
pub struct Door {
    diallers: BTreeMap<ConnectionId, Dialler>,
    /// What was said of processes that do not belong to the job.
    strangers: BTreeSet<String>,
}

impl Door {
    /// Somebody has dialled, and has not said yet who it is. There are never more of them than a job has use for. `is_early`:
    /// one that is known, but not its slot.
    pub fn opened(
        &mut self,
        job: &Job,
        connection: ConnectionId,
        (link, peer): (Link, Peer),
        is_early: impl Fn(ConnectionId) -> bool,
    ) {
        self.diallers.insert(connection, Dialler::Unknown(link, peer));
        let most = MOST_STRANGERS + 2 * job.spec.world_size as usize;
        let unknown =
            |(id, dialler): &(&ConnectionId, &Dialler)| matches!(dialler, Dialler::Unknown(..)) && !is_early(**id);
        let unknown: Vec<ConnectionId> = self.diallers.iter().filter(unknown).map(|(id, _)| *id).collect();
        if unknown.len() > most {
            let sentence =
                format!("it is the oldest of more than {most} connections of which nobody says whose they are");
            self.turn_away(unknown[0], sentence);
        }
    }

    /// Who is known to be at the other end.
    pub fn who(&self, connection: ConnectionId) -> Option<&Dialler> {
        self.diallers.get(&connection)
    }

    /// One that has not said yet who it is.
    pub fn stranger(&self, connection: ConnectionId) -> Option<(&Link, &Peer)> {
        match self.diallers.get(&connection) {
            Some(Dialler::Unknown(link, peer)) => Some((link, peer)),
            _ => None,
        }
    }

    /// The same, who is somebody else's from now on. Who says twice who it is is nobody's.
    pub fn take_stranger(&mut self, connection: ConnectionId) -> Option<(Link, Peer)> {
        match self.diallers.remove(&connection) {
            Some(Dialler::Unknown(link, peer)) => Some((link, peer)),
            _ => None,
        }
    }

    /// It is known now who is at the other end.
    pub fn admit(&mut self, connection: ConnectionId, who: Dialler) {
        self.diallers.insert(connection, who);
    }

    /// The connection has ended, or is of no use any more. Returns who was at its end.
    pub fn left(&mut self, connection: ConnectionId) -> Option<Dialler> {
        self.diallers.remove(&connection)
    }

    /// This rank's preload has dialled anew.
    pub fn forget_rank(&mut self, world: WorldNumber, rank: Rank) {
        self.diallers.retain(|_, dialler| !matches!(dialler, Dialler::Rank(w, r) if (*w, *r) == (world, rank)));
    }

    /// Ends the connection of who does not belong to the job; one that has died meanwhile needs no words.
    pub fn turn_away(&mut self, connection: ConnectionId, sentence: String) {
        match self.diallers.remove(&connection) {
            Some(Dialler::Unknown(link, peer)) if peer.held.as_ref().is_some_and(Held::lives) => link.give_up(sentence),
            Some(Dialler::Unknown(link, _)) => link.close(),
            _ => {}
        }
    }

    /// Somebody did something that people must hear of.
    pub fn trouble(&mut self, job: &Job, connection: ConnectionId, sentence: &str) {
        let who = match self.diallers.get(&connection) {
            Some(Dialler::Rank(_, rank)) => format!("the MPI library of rank {rank}"),
            Some(Dialler::Client(_, rank)) => format!("the checkpoint library of rank {rank}"),
            Some(Dialler::Shepherd(slot)) => format!("the shepherd of slot {slot}"),
            Some(Dialler::Unknown(..)) | None => return self.say_of_stranger(job, sentence),
        };
        job.notice(format!("{who} is cut off: {sentence}"));
    }

    /// What strangers do is said, but not for ever.
    fn say_of_stranger(&mut self, job: &Job, sentence: &str) {
        if self.strangers.len() < MOST_SAID && self.strangers.insert(sentence.to_string()) {
            let last = if self.strangers.len() == MOST_SAID { "; no more is said of such" } else { "" };
            job.notice(format!("a process of this user is cut off: {sentence}{last}"));
        }
    }
}
