//! The shepherds' words.

use crate::door::Dialler;
use crate::link::ConnectionId;
use crate::rooms::{Leaves, Rooms};
use crate::shepherds::Early;
use crate::worlds::Ended;
use ft_sys::job_time;
use ft_wire::shepherd::{ToAgent, ToShepherd};
use ftd_core::{Event, Limit, Micros, SlotId, WorldId};
use std::os::fd::OwnedFd;

/// One of them says something.
pub fn take(rooms: &mut Rooms, connection: ConnectionId, message: ToAgent, fds: Vec<OwnedFd>) {
    let slot = match (&message, rooms.door.who(connection)) {
        (ToAgent::Hello { slot, .. }, Some(Dialler::Unknown(..))) => *slot,
        (_, Some(Dialler::Shepherd(slot))) => *slot,
        _ => return tracing::warn!(connection, ?message, "a message out of turn"),
    };
    let Rooms { job, shepherds, worlds, files, .. } = rooms;
    match message {
        ToAgent::Hello { slot, arenas, .. } => dialled(rooms, Early { connection, slot, ranks: arenas, fds }),
        ToAgent::Started { world, rank, pid } => {
            worlds.started(job, files, (world, rank), pid);
            rooms.seek_loners(world);
        }
        ToAgent::StartFailed { world, rank, what, status } => worlds.start_failed(job, (world, rank), what, status),
        ToAgent::Notice(text) => job.notice_once(text),
        ToAgent::Orphaned { world, rank, pid, heir } => {
            tracing::info!(world, rank, pid, "a wrapper ended and its rank lives on");
            worlds.orphaned(shepherds, (world, rank), heir);
            files.ended_well(pid);
        }
        ToAgent::LeftAlone { world, rank } => worlds.left_alone(job, (world, rank)),
        ToAgent::Exited { world, rank, pid, status, oom, cpu_limit, waited } => {
            let limit = if oom { Some(Limit::Memory) } else { cpu_limit.then_some(Limit::CpuTime) };
            exited(rooms, Ended { world, rank, pid, status, limit, waited });
        }
        ToAgent::Signalled { signal } => job.report(Event::Signalled { slot: SlotId(slot), signal }),
        ToAgent::Remembered { signal, ago } => {
            job.report(Event::Remembered { signal, ago: Micros::from_millis(ago) });
        }
        ToAgent::Repeated { signal } => job.report(Event::Repeated { signal }),
        ToAgent::Lingers { world } => job.report(Event::Lingers(WorldId(world))),
        ToAgent::Emptied { world } => {
            if worlds.get(world).is_some_and(|w| w.occupied.contains(&slot)) {
                rooms.slot_emptied(slot);
            }
        }
    }
}

/// A slot's direct child has ended. One that ended well has left, with or without `ft_finalize`.
fn exited(rooms: &mut Rooms, ended: Ended) {
    rooms.worlds.child_ended(&mut rooms.job, &rooms.files, ended);
    let epoch = rooms.worlds.get(ended.world).map(|world| world.epoch);
    if let Some(epoch) = epoch.filter(|_| ended.status == 0) {
        let last = rooms.checkpoints.last(ended.rank, epoch);
        rooms.rank_leaves(ended.world, ended.rank, last, Leaves::Ended);
    }
}

/// Somebody says that it is the shepherd of a slot: it is, if it is the process that the launcher started as such.
pub fn dialled(rooms: &mut Rooms, dialler: Early) {
    let Early { connection, slot, .. } = dialler;
    let Rooms { job, door, shepherds, checkpoints, lease, .. } = rooms;
    let Some((_, peer)) = door.stranger(connection) else { return };
    let (pid, lives) = (peer.pid, peer.held.is_some());
    let Some(started) = shepherds.process(slot) else {
        // The launcher's word on a new one may be slower than the shepherd is.
        if !shepherds.keep_early(dialler, job.spec.world_size as usize) {
            let sentence =
                format!("process {pid} says that it is the shepherd of slot {slot}, and there is no such slot");
            door.turn_away(connection, sentence);
        }
        return;
    };
    if pid != started || !lives {
        let sentence = format!("process {pid} says that it is the shepherd of slot {slot}, and is not");
        return door.turn_away(connection, sentence);
    }
    tracing::info!(slot, pid, "a shepherd dialled");
    let Some((link, _)) = door.take_stranger(connection) else { return };
    door.admit(connection, Dialler::Shepherd(slot));
    link.trust();
    lease.show(&link);
    for (rank, fd) in dialler.ranks.into_iter().zip(dialler.fds) {
        checkpoints.adopt(rank, fd, connection);
    }
    if job_time::is_stopped() {
        link.send(&ToShepherd::Signal(nix::libc::SIGTSTP));
    }
    shepherds.admit(slot, connection, link);
    checkpoints.spread(shepherds);
    job.report(Event::SlotUp(SlotId(slot)));
}
