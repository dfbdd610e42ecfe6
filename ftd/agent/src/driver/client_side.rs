//! The ranks' client libraries: checkpoints and restores.

use super::*;
use crate::arenas::{Hashed, Verified};
use ft_wire::client::{ToAgent, ToClient};
use std::time::Instant;

/// A rank whose places are all full for so long is waiting for somebody: long against any checksum and any step, short
/// against the minute after which `ft_checkpoint` gives up.
const FULL_FOR: Duration = Duration::from_secs(10);

/// Who does not read what it is told of others for so long is not waited for.
const TELLING: Duration = Duration::from_secs(1);

impl Driver {
    pub(super) fn client_says(&mut self, connection: ConnectionId, message: ToAgent) {
        if let ToAgent::Hello { world, rank, pid: _, layout } = message {
            if self.is_being_ended(world) {
                return;
            }
            let Some(Dialler::Unknown(link, peer)) = self.diallers.remove(&connection) else { return };
            if let Err(reason) = self.welcome_client(connection, world, rank, peer, layout, link.clone()) {
                link.send(&ToClient::Refused { reason });
            }
            return;
        }
        let Some(Dialler::Client(number, rank)) = self.diallers.get(&connection) else {
            return tracing::warn!(connection, ?message, "a message out of turn");
        };
        let (number, rank) = (*number, *rank);
        let (job, failures) = (self.started.elapsed(), self.failures);
        let Some(world) = self.worlds.get_mut(&number).filter(|w| !w.stopping) else { return };
        let since = world.since.elapsed();
        let Some(member) = world.members.get_mut(&rank) else { return };
        let Some(link) = member.client.clone() else { return };
        let process = member.process;
        match message {
            ToAgent::Hello { .. } => {}
            ToAgent::Reserve { place_bytes } => link.send(&match self.arenas.reserve(rank, place_bytes) {
                Ok(()) => ToClient::Reserved,
                Err(reason) => ToClient::NoMemory { reason },
            }),
            ToAgent::Restore => {
                member.awaits_restore = true;
                self.report(Event::RestoreAsked(process));
                ft_sys::gate::reach("agent.restore", Some(rank));
                self.answer_restore(number, rank);
            }
            ToAgent::Restored { version } => {
                self.report(Event::Restored { process, version: ftd_core::Version(version) });
            }
            ToAgent::NotRestored { reason } => self.report(Event::NotRestored { process, reason }),
            ToAgent::Finalized { last } => {
                ft_sys::gate::reach("agent.finalized", Some(rank));
                self.rank_leaves(number, rank, last, "has called ft_finalize");
                self.answer_finalized(number, rank, link);
            }
            ToAgent::Waits { version } => {
                let epoch = world.epoch;
                let words = self.waits_for(epoch, rank);
                link.send(&ToClient::WaitsFor { version, words });
            }
            ToAgent::Due => {
                if let Some(cost) = self.arenas.fresh_cost(rank) {
                    world.due.checkpoint(cost, since);
                }
                let yes = world.due.ask(rank, since, job, failures);
                link.send(&ToClient::Due { yes });
            }
        }
    }

    /// Whether the processes of this world are being killed, for another one. One of them that has a question is not answered:
    /// what it would say of the answer is no longer so. At the job's end what can still print has time, and is told.
    pub(super) fn is_being_ended(&self, number: WorldNumber) -> bool {
        let over = self.core.stage() == ftd_core::agent::Stage::Ending;
        !over && self.worlds.get(&number).is_some_and(|world| world.stopping)
    }

    fn welcome_client(
        &mut self,
        connection: ConnectionId,
        number: WorldNumber,
        rank: Rank,
        peer: Peer,
        layout: u32,
        link: Link,
    ) -> Result<(), String> {
        if layout != ft_arena::LAYOUT {
            return Err(format!(
                "libftd_client writes arena layout {layout}, this ftd reads {}: link the program with this release's library",
                ft_arena::LAYOUT
            ));
        }
        let pid = peer.pid;
        let proven = self.proven(number, rank, peer);
        let world = self.worlds.get_mut(&number).filter(|w| !w.stopping);
        let Some(world) = world else { return Err(format!("world {number} has ended")) };
        let epoch = world.epoch;
        let Some(member) = world.members.get_mut(&rank) else {
            return Err(format!("world {number} has no rank {rank} on this node"));
        };
        if member.client.is_some() {
            return Err(format!("another process is rank {rank} already (this one is {pid})"));
        }
        let held = proven?;
        if self.arenas.ranks().is_empty() {
            self.launcher.send(&launcher::ToLauncher::Arenas);
        }
        let fd = self.arenas.descriptor(rank).map_err(|error| format!("no arena for rank {rank}: {error}"))?;
        link.trust();
        member.client = Some(link.clone());
        self.diallers.insert(connection, Dialler::Client(number, rank));
        link.send_with(&ToClient::Welcome { restarted: epoch > 1, world_size: self.spec.world_size, epoch }, vec![fd]);
        for (other, (last, how)) in &world.left {
            link.send(&ToClient::Left { rank: *other, last: *last, how: (*how).into() });
        }
        self.joined_without_mpi(number, rank, held);
        self.spread_arenas();
        Ok(())
    }

    /// A rank takes no more checkpoints, and the others' later ones are in vain: they are told, and people, once it is so.
    pub(super) fn rank_leaves(&mut self, number: WorldNumber, rank: Rank, last: Option<Version>, how: &'static str) {
        let Some(world) = self.worlds.get_mut(&number).filter(|w| !w.stopping && !w.left.contains_key(&rank)) else {
            return;
        };
        world.left.insert(rank, (last, how));
        let others = world.members.iter().filter(|(other, _)| **other != rank);
        for link in others.filter_map(|(_, member)| member.client.as_ref()) {
            link.send(&ToClient::Left { rank, last, how: how.into() });
        }
        if let Some(sentence) = self.versions.leave(world.epoch, rank, last, how) {
            self.notice(sentence);
        }
    }

    /// What the others checkpoint after this rank's ft_finalize has returned is refused: the word on it is in their sockets.
    fn answer_finalized(&self, number: WorldNumber, rank: Rank, link: Link) {
        let members = self.worlds.get(&number).into_iter().flat_map(|world| &world.members);
        let others = members.filter(|(other, _)| **other != rank).filter_map(|(_, member)| member.client.as_ref());
        let told: Vec<_> = others.map(Link::written).collect();
        tokio::spawn(async move {
            let all = async {
                for one in told {
                    one.await;
                }
            };
            let _ = tokio::time::timeout(TELLING, all).await;
            link.send(&ToClient::Finalized);
        });
    }

    /// A rank has ended well, with or without `ft_finalize`.
    pub(super) fn rank_ended_well(&mut self, number: WorldNumber, rank: Rank) {
        let Some(epoch) = self.worlds.get(&number).map(|world| world.epoch) else { return };
        let last = self.arenas.versions(rank, epoch).last().copied();
        self.rank_leaves(number, rank, last, "has ended");
    }

    /// Sees to it that enough shepherds keep duplicates of the arenas; each rank's go to the slots from its own number on.
    /// To be called whenever there is a new arena or shepherd, or a shepherd less: how many kills in a row the checkpoints
    /// survive depends on how soon the dead keepers are replaced.
    pub(super) fn spread_arenas(&mut self) {
        for rank in self.arenas.lacking_keepers() {
            for (_, shepherd) in self.shepherds.range(rank..).chain(self.shepherds.range(..rank)) {
                if !self.arenas.lacks_keepers(rank) {
                    break;
                }
                if let Some(fd) = self.arenas.duplicate_for(rank, shepherd.connection) {
                    shepherd.link.send_with(&shepherd::ToShepherd::KeepArena { rank }, vec![fd]);
                }
            }
        }
    }

    pub(super) fn place_hashed(&mut self, hashed: Hashed) {
        let Some((version, epoch)) = self.arenas.hashed(&hashed) else { return };
        let of_epoch = self.worlds.values().find(|world| world.epoch == epoch);
        if let Some(process) = of_epoch.and_then(|world| world.members.get(&hashed.rank)).map(|member| member.process) {
            self.report(Event::Committed { process, version: ftd_core::Version(version), level: ftd_core::Level::Own });
            self.compare_versions(epoch, hashed.rank);
        }
    }

    /// Says when ranks checkpoint different versions, and has a rank looked at again whose places are all full.
    fn compare_versions(&mut self, epoch: Epoch, rank: Rank) {
        let held = self.arenas.versions(rank, epoch);
        if let Some(sentence) = self.versions.note(epoch, rank, held) {
            self.notice(sentence);
        }
        if let Some(newest) = self.versions.newest(rank)
            && self.arenas.is_full(rank)
            && self.full_places.note((epoch, rank, newest), Instant::now())
        {
            self.look_at_full_places_in(ft_sys::timescale::scaled(FULL_FOR));
        }
    }

    /// Who is missing, for a rank that has given up waiting. What lies in the places counts, with or without its checksum.
    fn waits_for(&self, epoch: Epoch, rank: Rank) -> String {
        let held = |rank| self.arenas.versions(rank, epoch);
        self.versions.missing(epoch, &held(rank), self.spec.world_size, held).unwrap_or_else(|| {
            "no rank is missing, but the agent has not yet read what they all wrote, for its checksums".into()
        })
    }

    fn look_at_full_places_in(&self, wait: Duration) {
        let inputs = self.inputs.clone();
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            let _ = inputs.send(Input::PlacesFull);
        });
    }

    pub(super) fn places_full(&mut self) {
        let (due, next) = self.full_places.due(ft_sys::timescale::scaled(FULL_FOR), Instant::now());
        if let Some(next) = next {
            self.look_at_full_places_in(next);
        }
        for (epoch, rank, newest) in due.into_iter().filter(|(_, rank, _)| self.arenas.is_full(*rank)) {
            let patience = format!("{} s", FULL_FOR.as_secs());
            let said = self.versions.still_waiting(epoch, rank, newest, self.spec.world_size, &patience);
            if let Some(sentence) = said {
                self.notice(sentence);
            }
        }
    }

    pub(super) fn inventory_verified(&mut self, epoch: Epoch, verified: Verified) {
        for sentence in &verified.damaged {
            self.notice(format!("a checkpoint is damaged and not used: {sentence}"));
        }
        self.arenas.note(&verified);
        let copies = verified
            .copies
            .into_iter()
            .map(|(rank, (version, epoch), _)| (ftd_core::Rank(rank), stamp(version, epoch)));
        let inventory = ftd_core::Inventory::own(copies);
        self.report(Event::InventoryTaken { epoch: EpochId(epoch), inventory });
    }

    pub(super) fn answer_restore(&mut self, number: WorldNumber, rank: Rank) {
        let Some(world) = self.worlds.get_mut(&number) else { return };
        let found = match self.restore {
            Some((epoch, commit)) if epoch == world.epoch => {
                commit.and_then(|commit| self.arenas.place(rank, commit).map(|place| (commit.0, place)))
            }
            _ if world.epoch == 1 => None,
            _ => return,
        };
        if let Some(member) = world.members.get_mut(&rank)
            && std::mem::take(&mut member.awaits_restore)
            && let Some(link) = &member.client
        {
            link.send(&ToClient::Restore { found });
        }
    }
}

fn stamp(version: Version, epoch: Epoch) -> ftd_core::inventory::Stamp {
    ftd_core::inventory::Stamp { version: ftd_core::Version(version), epoch: EpochId(epoch) }
}
