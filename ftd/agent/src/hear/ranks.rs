//! The words of the ranks' preloads: of their MPI libraries, and what PMI-1 and PMIx have in common.

use crate::door::Dialler;
use crate::job::Job;
use crate::link::{ConnectionId, Link};
use crate::loners;
use crate::rooms::Rooms;
use ft_sys::memory::{SharedMap, allocate, create_sparse_sealed_memfd};
use ft_sys::peer::Peer;
use ft_wire::rank::{ToAgent, ToRank, page};
use ft_wire::{Flavour, Rank, World as WorldNumber};
use ftd_core::Event;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What an MPI library says of itself.
struct Library {
    flavour: Flavour,
    name: String,
    /// It was called by `MPI_Session_init`.
    session: bool,
}

/// Why a process does not join.
enum Refusal {
    /// It should not.
    Theirs(String),
    /// It should, and cannot be served: the job ends.
    Ours(String),
}

/// One of them says something.
pub fn take(rooms: &mut Rooms, connection: ConnectionId, message: ToAgent) {
    match message {
        ToAgent::Hello { world, rank, pid: _, flavour, library, session } => {
            let Rooms { job, worlds, .. } = rooms;
            if worlds.is_being_ended(job, world, rank) || worlds.was_left_behind(job, world, rank) {
                return;
            }
            let Some((link, peer)) = rooms.door.take_stranger(connection) else { return };
            if flavour == Flavour::OpenMpi && session {
                rooms.pmix.serve_sessions(peer.pid);
            }
            let library = Library { flavour, name: library, session };
            match welcome(rooms, connection, (world, rank), &library, (link.clone(), peer)) {
                Ok(()) => {}
                Err(Refusal::Theirs(reason)) => link.send(&ToRank::Refused { reason }),
                // The process is ended with the job; an answer would have it end by itself before that.
                Err(Refusal::Ours(reason)) => {
                    let process = rooms.worlds.process(world, rank);
                    process.into_iter().for_each(|process| {
                        rooms.job.report(Event::StartFailed { process, reason: reason.clone(), status: 1 });
                    });
                }
            }
        }
        ToAgent::Astray { why } => {
            let clears = "something between ftrun and the program clears the environment";
            cannot_start(rooms, connection, |pid| format!("process {pid} would be a job of its own: {why}; {clears}"));
        }
        ToAgent::Unable { why } => cannot_start(rooms, connection, |_| why),
        message => of_rank(rooms, connection, &message),
    }
}

/// One that is known says something.
fn of_rank(rooms: &mut Rooms, connection: ConnectionId, message: &ToAgent) {
    let Some(Dialler::Rank(number, rank)) = rooms.door.who(connection) else {
        return tracing::warn!(connection, ?message, "a message out of turn");
    };
    let Some(process) = rooms.worlds.process(*number, *rank) else { return };
    match message {
        ToAgent::Hello { .. } | ToAgent::Astray { .. } | ToAgent::Unable { .. } => {}
        ToAgent::Initialized => {
            rooms.worlds.initialized(*number, *rank);
            rooms.job.report(Event::Initialized(process));
        }
        ToAgent::Abort { code } => rooms.job.report(Event::AbortRequested { process, code: *code }),
        ToAgent::Finalized => rooms.job.report(Event::Finalized(process)),
    }
}

fn welcome(
    rooms: &mut Rooms,
    connection: ConnectionId,
    (number, rank): (WorldNumber, Rank),
    library: &Library,
    (link, peer): (Link, Peer),
) -> Result<(), Refusal> {
    let Rooms { job, door, shepherds, worlds, files, ears, .. } = rooms;
    let pid = peer.pid;
    if let Some(reason) = worlds.comes_late(job, shepherds, (number, rank), &peer) {
        return Err(Refusal::Theirs(reason));
    }
    let held = worlds.may_join(shepherds, number, rank, peer).map_err(Refusal::Theirs)?;
    let (map, page) =
        shared_page().map_err(|error| Refusal::Ours(format!("there is no page to share with it: {error}")))?;
    worlds.joined(job, files, shepherds, (number, rank), held);
    link.trust();
    if let Some(member) = worlds.member_mut(number, rank) {
        member.without_mpi = false;
        member.joins += 1;
        member.by_session = library.session;
        job.uses_mpi();
        job.report(Event::Initializing(member.process));
        member.page = map;
        if let Some(former) = member.link.replace(link.clone()) {
            // It has dialled twice: no more than one connection is kept.
            former.close();
            door.forget_rank(number, rank);
        }
    }
    door.admit(connection, Dialler::Rank(number, rank));
    ears.add(number, rank, link.ear());
    tracing::info!(rank, pid, library = library.name, "a rank is about to initialise MPI");
    correct(job, rank, library);
    match library.flavour {
        Flavour::Mpich => welcome_pmi(rooms, (number, rank), &link, page),
        Flavour::OpenMpi => {
            rooms.pmix.await_welcome(number, rank, page);
            rooms.pmix.serve(&mut rooms.job, &rooms.worlds, number);
            rooms.pmix.welcome(&rooms.job, &rooms.worlds, &rooms.shepherds, number);
            Ok(())
        }
    }
}

/// The welcome of a rank whose MPI speaks PMI-1.
fn welcome_pmi(
    rooms: &mut Rooms,
    (number, rank): (WorldNumber, Rank),
    link: &Link,
    page: OwnedFd,
) -> Result<(), Refusal> {
    let Rooms { job, worlds, pmi, .. } = rooms;
    let Some(layout) = worlds.get(number).map(|world| world.layout.clone()) else { return Ok(()) };
    let no_connection = |error| Refusal::Ours(format!("there is no connection for its PMI: {error}"));
    let (fd, env) = pmi.open(job, number, &layout, rank).map_err(no_connection)?;
    let mut env: Vec<_> = env.into_iter().map(|(key, value)| (key, Some(value.into_bytes()))).collect();
    if job.oversubscribed() {
        env.extend(job.unless_set(rank, ft_pmi1::OVERSUBSCRIBED.0, ft_pmi1::OVERSUBSCRIBED.1));
    }
    env.push(("PMIX_NAMESPACE".into(), None));
    env.push(("PMIX_RANK".into(), None));
    link.send_with(&ToRank::Welcome { env, pmi_fd: true }, vec![page, fd]);
    Ok(())
}

/// What was said of the MPI may be wrong; what the library says of itself is what it is served as.
fn correct(job: &mut Job, rank: Rank, library: &Library) {
    if job.spec.mpi == "auto" || job.spec.program(rank).linked_in == Some(library.flavour) {
        return;
    }
    let sentence = format!(
        "--ft-mpi={} (FT_MPI) is wrong: the program has loaded {}, which is {}, and is served as that",
        job.spec.mpi,
        loners::in_short(&library.name),
        loners::name(library.flavour)
    );
    job.notice_once(sentence);
}

/// A process with the preload has no MPI, or none in this job, and that is no end of the program's own. Its environment may not
/// say where it belongs: that is known of its shepherd.
fn cannot_start(rooms: &mut Rooms, connection: ConnectionId, why: impl FnOnce(i32) -> String) {
    let Rooms { job, door, shepherds, worlds, .. } = rooms;
    let Some((link, peer)) = door.stranger(connection) else { return };
    let pid = peer.pid;
    let above =
        |slot| shepherds.process(slot).zip(peer.held.as_ref()).is_some_and(|(shepherd, held)| held.is_below(shepherd));
    let members = worlds.all().filter(|world| !world.stopping).flat_map(|world| world.members.values());
    let found = members.filter(|member| !member.ended).find(|member| above(member.slot));
    let Some(process) = found.map(|member| member.process) else {
        return link.send(&ToRank::Refused { reason: "the job has ended".into() });
    };
    let reason = why(pid);
    job.report(Event::StartFailed { process, reason, status: 1 });
}

/// The page that a rank shares with this agent. Where a file-size limit leaves no room for it, the rank gets one that nobody
/// else sees, and its death is seen by its shepherd alone.
fn shared_page() -> io::Result<(Option<Arc<SharedMap>>, OwnedFd)> {
    let page = create_sparse_sealed_memfd("ft-rank-page", page::SIZE as u64)
        // Nobody can cut it, and touching it cannot fail.
        .and_then(|fd| allocate(&fd, 0, page::SIZE as u64).map(|()| fd))
        .and_then(|fd| Ok((Some(Arc::new(SharedMap::map(&fd, 0, page::SIZE)?)), fd)));
    match page {
        Err(error) if error.kind() == ErrorKind::FileTooLarge => {
            let zero = std::fs::OpenOptions::new().read(true).write(true).open("/dev/zero")?;
            Ok((None, zero.into()))
        }
        other => other,
    }
}
