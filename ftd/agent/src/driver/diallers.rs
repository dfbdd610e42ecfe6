//! Who is at the other end of a connection, and who is turned away.

use super::*;

/// Connections of which it may not be known whose they are, besides two for each rank.
const MOST_STRANGERS: usize = 16;
/// Sentences about processes that do not belong to the job.
const MOST_SAID: usize = 8;

#[derive(Debug)]
pub(super) enum Dialler {
    Unknown(Link, Peer),
    Shepherd(Slot),
    Rank(WorldNumber, Rank),
    Client(WorldNumber, Rank),
}

impl Driver {
    /// Somebody has dialled, and has not said yet who it is. There are never more of them than a job has use for.
    pub(super) fn opened(&mut self, connection: ConnectionId, link: Link, peer: Peer) {
        self.diallers.insert(connection, Dialler::Unknown(link, peer));
        let most = MOST_STRANGERS + 2 * self.spec.world_size as usize;
        let early = |connection: &ConnectionId| self.early.iter().any(|early| early.0 == *connection);
        let unknown =
            self.diallers.iter().filter(|(id, dialler)| matches!(dialler, Dialler::Unknown(..)) && !early(id));
        let unknown: Vec<ConnectionId> = unknown.map(|(id, _)| *id).collect();
        if unknown.len() > most {
            let sentence =
                format!("it is the oldest of more than {most} connections of which nobody says whose they are");
            self.turn_away(unknown[0], sentence);
        }
    }

    /// Ends the connection of who does not belong to the job; one that has died meanwhile needs no words.
    pub(super) fn turn_away(&mut self, connection: ConnectionId, sentence: String) {
        match self.diallers.remove(&connection) {
            Some(Dialler::Unknown(link, peer)) if peer.held.as_ref().is_some_and(Held::lives) => link.give_up(sentence),
            Some(Dialler::Unknown(link, _)) => link.close(),
            _ => {}
        }
    }

    pub(super) fn trouble(&mut self, connection: ConnectionId, sentence: &str) {
        let who = match self.diallers.get(&connection) {
            Some(Dialler::Rank(_, rank)) => format!("the MPI library of rank {rank}"),
            Some(Dialler::Client(_, rank)) => format!("the checkpoint library of rank {rank}"),
            Some(Dialler::Shepherd(slot)) => format!("the shepherd of slot {slot}"),
            Some(Dialler::Unknown(..)) | None => return self.stranger(sentence),
        };
        self.notice(format!("{who} is cut off: {sentence}"));
    }

    /// What strangers do is said, but not for ever.
    pub(super) fn stranger(&mut self, sentence: &str) {
        if self.strangers.len() < MOST_SAID && self.strangers.insert(sentence.to_string()) {
            let last = if self.strangers.len() == MOST_SAID { "; no more is said of such" } else { "" };
            self.notice(format!("a process of this user is cut off: {sentence}{last}"));
        }
    }

    pub(super) fn dialler_left(&mut self, connection: ConnectionId) {
        self.early.retain(|early| early.0 != connection);
        match self.diallers.remove(&connection) {
            Some(Dialler::Rank(world, rank)) => {
                if let Some(member) = self.member(world, rank) {
                    member.link = None;
                }
            }
            Some(Dialler::Client(world, rank)) => {
                if let Some(member) = self.member(world, rank) {
                    member.client = None;
                    member.awaits_restore = false;
                    self.library_left(world, rank);
                }
            }
            // The launcher tells when a shepherd is gone, and everything below it.
            Some(Dialler::Shepherd(_) | Dialler::Unknown(..)) | None => {}
        }
    }

    /// What proves that a dialler is a process of this rank: it stands below the shepherd on whose slot the rank is.
    pub(super) fn proven(&self, world: WorldNumber, rank: Rank, peer: Peer) -> Result<Held, String> {
        let member = self.worlds.get(&world).and_then(|world| world.members.get(&rank));
        let shepherd = member.and_then(|member| self.slots.get(&member.slot));
        let (Some(shepherd), Some(held)) = (shepherd, peer.held) else {
            return Err(format!("the process that would be rank {rank} of world {world}, or its shepherd, is gone"));
        };
        if held.is_below(*shepherd) {
            return Ok(held);
        }
        Err(format!(
            "process {} does not stand below the shepherd {shepherd} of rank {rank}: only what the rank's command has started may join",
            peer.pid
        ))
    }
}
