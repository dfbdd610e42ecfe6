//! Connections come and go.

use crate::door::Dialler;
use crate::link::{ConnectionId, Link};
use crate::rooms::Rooms;
use ft_sys::peer::Peer;

/// Somebody has dialled.
pub fn opened(rooms: &mut Rooms, connection: ConnectionId, link: Link, peer: Peer) {
    let Rooms { job, door, shepherds, .. } = rooms;
    door.opened(job, connection, (link, peer), |other| shepherds.is_early(other));
}

/// Somebody is gone.
pub fn left(rooms: &mut Rooms, connection: ConnectionId) {
    rooms.job.events.forget(connection);
    rooms.shepherds.forget_early(connection);
    match rooms.door.left(connection) {
        Some(Dialler::Rank(world, rank)) => {
            if let Some(member) = rooms.worlds.member_mut(world, rank) {
                member.link = None;
            }
        }
        Some(Dialler::Client(world, rank)) => {
            rooms.clients.gone(world, rank);
            rooms.worlds.library_left(&mut rooms.job, &rooms.shepherds, world, rank);
        }
        // The launcher tells when a shepherd is gone, and everything below it.
        Some(Dialler::Shepherd(_) | Dialler::Unknown(..)) | None => {}
    }
}
