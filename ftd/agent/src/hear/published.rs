//! What ranks publish for each other: one node of each world keeps it, and the others ask that.

use crate::published::{Asking, Overdue};
use crate::rooms::Rooms;
use crate::wish::Wish;
use ft_wire::World as WorldNumber;
use ft_wire::between::{Asker, NameAnswer, NameRequest};
use ftd_core::NodeId;

/// A rank of this node wants something. The request comes back when another node keeps the names.
pub fn ask(rooms: &mut Rooms, world: WorldNumber, asker: Asker, request: NameRequest) -> Option<NameRequest> {
    let layout = &rooms.worlds.get(world)?.layout;
    let own = layout.own();
    if own != layout.keeper() {
        return Some(request);
    }
    keep(rooms, world, (own, asker), request);
    None
}

/// A rank of any node wants something of this one, which keeps the names.
pub fn keep(rooms: &mut Rooms, world: WorldNumber, (node, asker): (NodeId, Asker), request: NameRequest) {
    if rooms.worlds.get(world).is_none() {
        return;
    }
    let answers = rooms.published.take(&rooms.job, world, Asking { node, asker }, request);
    answers.into_iter().for_each(|(asking, answer)| answer_to(rooms, world, asking, answer));
}

/// Who waits waits no longer.
pub fn overdue(rooms: &mut Rooms, overdue: Overdue) {
    let world = overdue.world;
    if let Some((asking, answer)) = rooms.published.overdue(overdue) {
        answer_to(rooms, world, asking, answer);
    }
}

fn answer_to(rooms: &mut Rooms, world: WorldNumber, Asking { node, asker }: Asking, answer: NameAnswer) {
    if rooms.worlds.get(world).is_some_and(|world| world.layout.own() == node) {
        return tell(rooms, world, asker, answer);
    }
    rooms.job.wish(world, Wish::Named { to: node, asker, answer });
}

/// The answer to a rank of this node.
pub fn tell(rooms: &mut Rooms, world: WorldNumber, asker: Asker, answer: NameAnswer) {
    let Rooms { job, worlds, shepherds, pmi, pmix, .. } = rooms;
    match asker {
        Asker::Pmix(token) => pmix.named(world, token, answer),
        Asker::Pmi(rank) => pmi.named(job, worlds, shepherds, (world, rank), answer),
    }
}
