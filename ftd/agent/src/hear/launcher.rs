//! The launcher's words.

use super::shepherds;
use crate::act;
use crate::rooms::Rooms;
use ft_sys::job_time;
use ft_wire::launcher::{ToAgent, ToLauncher};
use ft_wire::shepherd::ToShepherd;
use ftd_core::{Event, SlotId, WorldId};
use nix::libc::{SIGCONT, SIGSTOP, SIGTSTP};

/// It says something.
pub fn take(rooms: &mut Rooms, message: ToAgent) {
    let Rooms { job, .. } = rooms;
    match message {
        ToAgent::Job { .. } => tracing::warn!("the launcher described the job twice"),
        // More than the rooms hear of it.
        ToAgent::Joins(_) => {}
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
            let newest = rooms.worlds.all().next_back();
            let ranks = newest.map_or_else(|| job.all_ranks_here(), |world| world.layout.local().to_vec());
            let complete = rooms.checkpoints.has_all(&ranks);
            job.tell(&ToLauncher::Here { absent, complete });
            rooms.pmix.ask(job);
            rooms.checkpoints.ask(job);
            act::look_for_protection(rooms);
            rooms.tell_toll();
        }
        ToAgent::Silent { slots } => job.report(Event::SlotsSilent(slots.into_iter().map(SlotId).collect())),
        ToAgent::Signal(signal) => {
            match signal {
                SIGTSTP | SIGSTOP => {
                    job_time::stop();
                    job.report(Event::Suspended(true));
                }
                SIGCONT => {
                    job_time::go_on();
                    job.report(Event::Suspended(false));
                }
                _ => {}
            }
            rooms.shepherds.tell_all(&ToShepherd::Signal(signal));
        }
        ToAgent::Cancel { signal } => {
            // Whoever ends a job that is stopped does not want to wait until it goes on.
            job_time::go_on();
            job.report(Event::Suspended(false));
            rooms.worlds.hurry_filters(&rooms.shepherds);
            job.report(Event::Cancel { signal });
        }
        ToAgent::Drained { world } => job.report(Event::Drained(WorldId(world))),
    }
}
