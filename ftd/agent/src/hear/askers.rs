//! What the job's user asks.

use super::injections;
use crate::asker::Asker;
use crate::rooms::Rooms;
use crate::view;
use ft_wire::ask::{FromAgent, ToAgent};
use ftd_core::{Agent, Micros};

/// One of them asks something.
pub fn take(rooms: &mut Rooms, core: &Agent, now: Micros, asker: &Asker, message: ToAgent) {
    let Asker { connection, link, uid } = asker;
    match message {
        ToAgent::Show => {
            let (mut job, link) = (view::of(core, rooms, now), link.clone());
            // The files of many processes are read behind.
            tokio::task::spawn_blocking(move || {
                job.processes.iter_mut().for_each(view::look);
                link.send(&FromAgent::Job(Box::new(job)));
            });
        }
        ToAgent::Events { follow } => rooms.job.events.tell(*connection, link, follow),
        ToAgent::Inject(injection) => link.send(&match injections::ask(rooms, injection, *uid) {
            Ok(sentence) => FromAgent::Noted(sentence),
            Err(sentence) => FromAgent::Refused(sentence),
        }),
    }
}
