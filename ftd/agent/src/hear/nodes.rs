//! The other nodes' words, and what this node's ranks want of them.

use crate::between::{Arrived, Given, News};
use crate::elsewhere;
use crate::hear::askers;
use crate::hear::published;
use crate::rooms::{Leaves, Rooms};
use crate::ways;
use crate::wish::Wish;
use ft_wire::World as WorldNumber;
use ft_wire::between::Leaver;
use ft_wire::pmix::ERR_NOT_FOUND;
use ftd_core::{Event, WorldId};

/// Something was heard of them.
pub fn take(rooms: &mut Rooms, news: News) {
    let arrived = rooms.between.as_mut().map(|between| between.take(news)).unwrap_or_default();
    arrived.into_iter().for_each(|arrived| deliver(rooms, arrived));
}

/// Something about the store is to be said to them.
pub fn say_of_store(rooms: &mut Rooms, ways::News { to, word }: ways::News) {
    let Some(between) = &mut rooms.between else { return };
    match between.say_of_store(to, word) {
        Ok(arrived) => arrived.into_iter().for_each(|arrived| deliver(rooms, arrived)),
        Err(word) => rooms.ways.iter().for_each(|ways| ways.unsaid(&word)),
    }
}

/// What comes of what they are asked for the job's user.
pub fn of_user(rooms: &mut Rooms, news: elsewhere::News) {
    let (to, word) = match news {
        elsewhere::News::Say { to, word } => (to, word),
        elsewhere::News::Dead { node, dead } => {
            let name = rooms.job.said(&node.to_string());
            return rooms.costs.died_elsewhere(&name, dead);
        }
    };
    let Some(between) = &mut rooms.between else { return rooms.elsewhere.unsaid(&word) };
    match between.say_of_user(to, word) {
        Ok(arrived) => arrived.into_iter().for_each(|arrived| deliver(rooms, arrived)),
        Err(word) => rooms.elsewhere.unsaid(&word),
    }
}

/// What the rooms want of other nodes is said to those.
pub fn see_to_wishes(rooms: &mut Rooms) {
    while let Some((world, wish)) = rooms.job.next_wish() {
        let wish = match wish {
            Wish::Name { asker, request } => match published::ask(rooms, world, asker, request) {
                Some(request) => Wish::Name { asker, request },
                None => continue,
            },
            wish => wish,
        };
        let arrived = rooms.between.as_mut().map(|between| between.carry_out(world, wish)).unwrap_or_default();
        arrived.into_iter().for_each(|arrived| deliver(rooms, arrived));
    }
}

/// A world begins here: what others have said of it already is heard.
pub fn begin(rooms: &mut Rooms, number: WorldNumber) {
    let Some(layout) = rooms.worlds.get(number).map(|world| world.layout.clone()) else { return };
    let arrived = rooms.between.as_mut().map(|between| between.begin(number, layout)).unwrap_or_default();
    arrived.into_iter().for_each(|arrived| deliver(rooms, arrived));
}

fn deliver(rooms: &mut Rooms, arrived: Arrived) {
    let arrived = match arrived {
        Arrived::User(from, word) => return askers::hear(rooms, from, word),
        Arrived::Stranger => return rooms.tell_of_numbers(),
        arrived => arrived,
    };
    let Rooms { job, shepherds, worlds, pmi, pmix, .. } = rooms;
    match arrived {
        Arrived::Message(from, message) => job.report(Event::Message { from, message }),
        Arrived::Fenced { world, token, given } => match given {
            Given::Puts(puts) => pmi.fenced(job, worlds, shepherds, world, puts),
            Given::Data(data) => pmix.fenced(world, token, data),
            Given::Group(group) => pmix.grouped(world, token, group),
            Given::Nothing => pmix.gathered(world, token),
        },
        Arrived::ModexAsked { world, from, token, proc } => pmix.modex_asked(world, from, token, proc),
        Arrived::ModexData { world, token, found } => {
            let (status, data) = found.unwrap_or((ERR_NOT_FOUND, Vec::new()));
            pmix.modex_done(world, token, status, data);
        }
        Arrived::NameAsked { world, from, asker, request } => published::keep(rooms, world, (from, asker), request),
        Arrived::Named { world, asker, answer } => published::tell(rooms, world, asker, answer),
        Arrived::Event { world, event } => pmix.raised(world, event),
        Arrived::Left { world, leaver: Leaver { rank, last, finalized } } => {
            let how = if finalized { Leaves::Finalized } else { Leaves::Ended };
            rooms.rank_elsewhere_leaves(world, rank, last, how);
        }
        Arrived::Copy { from, round, word } => {
            rooms.checkpoints.hear(job, (from, round), word);
            rooms.copies_have_come();
        }
        Arrived::Store(from, word) => {
            if let Some(ways) = &rooms.ways {
                ways.hear(from, word);
            }
        }
        Arrived::Stuck { world, reason } => job.report(Event::CannotGoOn { world: WorldId(world), reason }),
        Arrived::User(..) | Arrived::Stranger => {}
        Arrived::Trouble(sentence) => job.notice_once(sentence),
    }
}
