//! The checkpoint libraries' words.

use crate::door::Dialler;
use crate::link::{ConnectionId, Link};
use crate::rooms::{Leaves, Rooms};
use ft_sys::peer::Peer;
use ft_wire::client::{ToAgent, ToClient};
use ft_wire::launcher::ToLauncher;
use ft_wire::{Rank, World as WorldNumber};
use ftd_core::{Event, Micros, Version};

/// One of them says something.
pub fn take(rooms: &mut Rooms, connection: ConnectionId, message: ToAgent) {
    if let ToAgent::Hello { world, rank, pid: _, layout } = message {
        if rooms.worlds.is_being_ended(&rooms.job, world, rank) {
            return;
        }
        let Some((link, peer)) = rooms.door.take_stranger(connection) else { return };
        if let Err(reason) = welcome(rooms, connection, (world, rank), layout, (link.clone(), peer)) {
            link.send(&ToClient::Refused { reason });
        }
        return;
    }
    let Some(Dialler::Client(number, rank)) = rooms.door.who(connection) else {
        return tracing::warn!(connection, ?message, "a message out of turn");
    };
    let (number, rank) = (*number, *rank);
    let Rooms { job, worlds, clients, checkpoints, .. } = rooms;
    let Some(world) = worlds.running(number) else { return };
    let Some(process) = worlds.process(number, rank) else { return };
    let Some(link) = clients.link(number, rank) else { return };
    match message {
        ToAgent::Hello { .. } => {}
        ToAgent::Reserve { place_bytes } => link.send(&match checkpoints.reserve(rank, place_bytes) {
            Ok(()) => ToClient::Reserved,
            Err(reason) => ToClient::NoMemory { reason },
        }),
        ToAgent::Restore => {
            clients.awaits_restore(number, rank);
            job.report(Event::RestoreAsked(process));
            ft_sys::gate::reach("agent.restore", Some(rank));
            rooms.answer_restore(number, rank);
        }
        ToAgent::Restored { version } => job.report(Event::Restored { process, version: Version(version) }),
        ToAgent::NotRestored { reason } => job.report(Event::NotRestored { process, reason }),
        ToAgent::Finalized { last } => {
            ft_sys::gate::reach("agent.finalized", Some(rank));
            rooms.rank_leaves(number, rank, last, Leaves::Finalized);
            rooms.clients.answer_finalized(number, rank);
        }
        ToAgent::Waits { version } => {
            let words = checkpoints.waits_for(job, world.epoch, rank, world.layout.local());
            link.send(&ToClient::WaitsFor { version, words });
        }
        ToAgent::Due => {
            let cost = checkpoints.fresh_cost(rank);
            let cost = cost.map(|cost| Micros(u64::try_from(cost.as_micros()).unwrap_or(u64::MAX).max(1)));
            job.report(Event::DueAsked { process, cost });
        }
    }
}

fn welcome(
    rooms: &mut Rooms,
    connection: ConnectionId,
    (number, rank): (WorldNumber, Rank),
    layout: u32,
    (link, peer): (Link, Peer),
) -> Result<(), String> {
    if layout != ft_arena::LAYOUT {
        return Err(format!(
            "libftd_client writes arena layout {layout}, this ftd reads {}: link the program with this release's library",
            ft_arena::LAYOUT
        ));
    }
    let Rooms { job, door, shepherds, worlds, clients, checkpoints, files, printed, .. } = rooms;
    let pid = peer.pid;
    let proven = worlds.proven(shepherds, number, rank, peer);
    let Some(world) = worlds.running(number) else { return Err(format!("world {number} has ended")) };
    let epoch = world.epoch;
    if !world.members.contains_key(&rank) {
        return Err(format!("world {number} has no rank {rank} on this node"));
    }
    if clients.link(number, rank).is_some() {
        return Err(format!("another process is rank {rank} already (this one is {pid})"));
    }
    let held = proven?;
    if checkpoints.is_empty() {
        job.tell(&ToLauncher::Arenas);
    }
    let fd = checkpoints.descriptor(rank).map_err(|error| format!("no arena for rank {rank}: {error}"))?;
    let sheet = printed.try_clone().map_err(|error| format!("no descriptor for rank {rank}: {error}"))?;
    link.trust();
    door.admit(connection, Dialler::Client(number, rank));
    let welcome = ToClient::Welcome { restarted: epoch > 1, world_size: job.spec.world_size, epoch };
    link.send_with(&welcome, vec![fd, sheet]);
    clients.admit(number, rank, link);
    worlds.joined_without_mpi(job, files, shepherds, (number, rank), held);
    checkpoints.spread(shepherds);
    super::injections::library_is_there(rooms, rank);
    Ok(())
}
