//! Failures that the job's user has asked for.

use crate::injections::{News, Wanted};
use crate::rooms::Rooms;
use ft_arena::Doom;
use ft_sys::individual::Held;
use ft_wire::Rank;
use ft_wire::injection::{Injection, Pending, Place};
use ft_wire::launcher::ToLauncher;
use std::time::{Duration, Instant};

/// While there is no process of the rank, between two worlds, it is looked for again this often …
const AGAIN: Duration = Duration::from_millis(20);
/// … and so many times.
const TRIES: u32 = 3000;

/// Those that `ftrun` was told of begin with the first world.
pub fn begin(rooms: &mut Rooms) {
    if !rooms.injections.begin() {
        return;
    }
    for injection in rooms.job.spec.injections.clone() {
        if rooms.worlds.member(1, injection.rank).is_some() {
            want(rooms, injection, "--ft-inject");
        }
    }
    tell(rooms);
}

/// Those that the agent before this one has not brought about.
pub fn go_on(rooms: &mut Rooms, pending: Option<Vec<Pending>>) {
    let Some(pending) = pending else { return };
    rooms.injections.begin();
    for Pending { injection, by } in pending {
        match injection.at {
            // That it is to be has been said.
            Some(_) if injection.after_ms == 0 => rooms.injections.arm(Wanted { injection, by, tries: 0 }),
            _ => want(rooms, injection, &by),
        }
    }
    tell(rooms);
}

/// The launcher keeps them for the agent that would come after this one.
fn tell(rooms: &Rooms) {
    let pending = rooms.injections.pending(Instant::now());
    pending.into_iter().for_each(|pending| rooms.job.tell(&ToLauncher::Injections(pending)));
}

/// Somebody asks for one. Returns what is to be known of that.
///
/// # Errors
/// Why it is not done; one sentence.
pub fn ask(rooms: &mut Rooms, injection: Injection, uid: u32) -> Result<String, String> {
    let rank = injection.rank;
    let size = rooms.job.spec.world_size;
    if rank >= size {
        return Err(format!("there is no rank {rank}: the job has {size}, from 0 on"));
    }
    let newest = rooms.worlds.newest().and_then(|number| rooms.worlds.get(number));
    let Some(world) = newest else { return Err("the job has not begun yet: try again".into()) };
    if !world.members.contains_key(&rank) {
        let host = world.layout.node_of(rank).map(|node| node.to_string());
        let node = rooms.job.said(&host.unwrap_or_else(|| "another node".into()));
        return Err(format!("rank {rank} is on {node}: ask there"));
    }
    want(rooms, injection, &format!("ftctl inject (user {uid})"));
    tell(rooms);
    let end = if rooms.job.spec.mode == "none" { ", and --ft=none recovers nothing: the job ends then" } else { "" };
    Ok(format!("rank {rank} dies {}{end}", injection.when()))
}

fn want(rooms: &mut Rooms, injection: Injection, by: &str) {
    let wanted = Wanted { injection, by: by.into(), tries: 0 };
    rooms.injections.want(wanted, Duration::from_millis(injection.after_ms));
}

/// Something is heard of them.
pub fn take(rooms: &mut Rooms, news: News) {
    match news {
        News::Due(number) => match rooms.injections.due(number).map(|wanted| (wanted.injection.at, wanted)) {
            None => {}
            Some((None, wanted)) => kill(rooms, wanted),
            Some((Some(place), wanted)) => {
                let Injection { rank, .. } = wanted.injection;
                rooms.job.injected(&format!("rank {rank} is to die at {}, as {} has asked", place.name(), wanted.by));
                let rank = wanted.injection.rank;
                rooms.injections.arm(wanted);
                library_is_there(rooms, rank);
            }
        },
        News::At(place, rank) => {
            let here = rooms.injections.at(place, rank);
            if here.is_empty() {
                return;
            }
            for wanted in here {
                // Where it has no process just now, as in a recovery, its next one is killed and not one that comes there again.
                let injection = Injection { at: None, after_ms: 0, ..wanted.injection };
                kill(rooms, Wanted { injection, ..wanted });
            }
        }
    }
    tell(rooms);
}

/// A rank's arena may be there: from now on its library knows where it is to die.
pub fn library_is_there(rooms: &mut Rooms, rank: Rank) {
    if !rooms.checkpoints.has_all(&[rank]) {
        return;
    }
    for wanted in rooms.injections.of_library(rank) {
        wanted.injection.at.and_then(doom).into_iter().for_each(|place| rooms.checkpoints.doom(rank, place));
        // The arena outlives this agent.
        tell(rooms);
    }
}

/// The places in the library, as it knows them.
const IN_LIBRARY: [(Place, Doom); 4] = [
    (Place::Copying, Doom::Copying),
    (Place::Copied, Doom::Copied),
    (Place::Committed, Doom::Committed),
    (Place::Restoring, Doom::Restoring),
];

fn doom(place: Place) -> Option<Doom> {
    IN_LIBRARY.iter().find(|(at, _)| *at == place).map(|(_, doom)| *doom)
}

/// Those that are still to come about here: of these ranks' libraries, and those that this agent sees to.
pub fn waiting(rooms: &Rooms, ranks: impl Iterator<Item = Rank>) -> Vec<Injection> {
    let own = rooms.injections.pending(Instant::now()).unwrap_or_default().into_iter().map(|pending| pending.injection);
    let place = |doom| IN_LIBRARY.iter().find(|(_, of)| *of == doom).map(|(place, _)| *place);
    let doomed = ranks.filter_map(|rank| {
        let at = rooms.checkpoints.doomed(rank).and_then(place)?;
        Some(Injection { rank, after_ms: 0, at: Some(at) })
    });
    own.chain(doomed).collect()
}

/// Kills the rank's process, whichever that is now.
fn kill(rooms: &mut Rooms, wanted: Wanted) {
    let rank = wanted.injection.rank;
    let Rooms { job, worlds, shepherds, injections, .. } = rooms;
    if job.over {
        return;
    }
    let newest = worlds.newest().and_then(|number| worlds.running(number));
    let member = newest.and_then(|world| world.members.get(&rank)).filter(|member| !member.ended);
    let process = member.and_then(|member| Some((member.pid.or(member.child)?, shepherds.process(member.slot)?)));
    // Whatever has this number now: only what stands below the shepherd that has started it.
    let held = process.and_then(|(pid, above)| Held::of(pid).filter(|held| held.is_below(above)));
    match held {
        Some(held) => {
            let pid = held.identity.pid;
            job.injected(&format!("rank {rank} (process {pid}) is killed, as {} has asked", wanted.by));
            if let Err(error) = held.signal(nix::libc::SIGKILL) {
                job.notice(format!("rank {rank} (process {pid}) could not be killed: {error}"));
            }
        }
        None if wanted.tries < TRIES => injections.want(Wanted { tries: wanted.tries + 1, ..wanted }, AGAIN),
        None => job.notice(format!("rank {rank} has no process here: nobody is killed, as {} had asked", wanted.by)),
    }
}
