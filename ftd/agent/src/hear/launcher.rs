//! The launcher's words.

use super::shepherds;
use crate::rooms::Rooms;
use ft_wire::launcher::{ToAgent, ToLauncher};
use ft_wire::shepherd::ToShepherd;
use ftd_core::{Event, SlotId, WorldId};

/// It says something.
pub fn take(rooms: &mut Rooms, message: ToAgent) {
    let Rooms { job, .. } = rooms;
    match message {
        ToAgent::Job { .. } => tracing::warn!("the launcher described the job twice"),
        ToAgent::SlotGone { slot } => {
            if let Some(connection) = rooms.shepherds.gone(slot) {
                rooms.door.left(connection);
                rooms.checkpoints.forget_keeper(connection);
                rooms.checkpoints.spread(&rooms.shepherds);
            }
            rooms.slot_emptied(slot);
            rooms.job.report(Event::SlotLost(SlotId(slot)));
        }
        ToAgent::SlotDying { slot } => job.report(Event::SlotDying(SlotId(slot))),
        ToAgent::SlotAdded { slot, pid } => {
            rooms.shepherds.expect(slot, pid);
            job.report(Event::SlotAdded(SlotId(slot)));
            for early in rooms.shepherds.take_early() {
                shepherds::dialled(rooms, early);
            }
        }
        ToAgent::Ask => {
            let absent = rooms.shepherds.absent();
            let complete = rooms.checkpoints.has_all(job.spec.world_size);
            job.tell(&ToLauncher::Here { absent, complete });
            rooms.pmix.ask(job);
        }
        ToAgent::Silent { slots } => job.report(Event::SlotsSilent(slots.into_iter().map(SlotId).collect())),
        ToAgent::Signal(signal) => rooms.shepherds.tell_all(&ToShepherd::Signal(signal)),
        ToAgent::Cancel { signal } => {
            rooms.worlds.hurry_filters(&rooms.shepherds);
            job.report(Event::Cancel { signal });
        }
        ToAgent::Drained { world } => job.report(Event::Drained(WorldId(world))),
    }
}
