//! The ranks' MPI libraries that speak PMI-1.

use crate::job::Job;
use crate::layout::Layout;
use crate::outlet::Outlet;
use crate::shepherds::Shepherds;
use crate::too_long::Whose;
use crate::unheard::{Ear, Ears};
use crate::wish::Wish;
use crate::worlds::Worlds;
use ft_wire::between::{Asker, NameAnswer, NameRequest, Protocol, puts_to_bytes};
use ft_wire::pmix::{ERR_DUPLICATE_KEY, ERR_NOT_FOUND, Proc, SUCCESS};
use ft_wire::{FrameError, Rank, World as WorldNumber};
use ftd_core::{Event, Family, WorldId};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;

/// Answers that may wait for a rank that does not read them; an honest one waits for each.
const PMI_ANSWERS: usize = 1024;
/// Reads of a rank's PMI connection that may wait for the driver.
const PMI_CHUNKS: usize = 8;
/// Names that are tried for a world.
const NAMES: u32 = 100;

/// All ranks are in, as far as they are here.
fn everybody(size: u32, data: Vec<u8>) -> Wish {
    Wish::Fence { protocol: Protocol::Pmi, ranks: vec![(0, size)], token: 0, data }
}

/// A rank sent bytes on its `PMI_FD`; none: it closed it.
#[derive(Debug)]
pub struct Said {
    /// Its world.
    pub world: WorldNumber,
    /// Its rank.
    pub rank: Rank,
    /// What it sent.
    pub bytes: Vec<u8>,
}

/// The server of one world.
#[derive(Debug)]
struct Served {
    server: ft_pmi1::World,
    /// Writing halves towards the ranks' `PMI_FD`.
    ranks: BTreeMap<Rank, Sender<Vec<u8>>>,
    /// All ranks have been inside a fence.
    fenced: bool,
}

/// The servers of all worlds.
#[derive(Debug)]
pub struct Pmi {
    worlds: BTreeMap<WorldNumber, Served>,
    said: Outlet<Said>,
    ears: Ears,
}

impl Pmi {
    /// None yet.
    pub fn new(said: Outlet<Said>, ears: Ears) -> Pmi {
        Pmi { worlds: BTreeMap::new(), said, ears }
    }

    /// Nobody is left who could ask.
    pub fn forget(&mut self, number: WorldNumber) {
        self.worlds.remove(&number);
    }

    /// Opens a connection for `rank`: the rank's end and its environment.
    ///
    /// # Errors
    /// When there is no server or no socket to be had.
    pub fn open(
        &mut self,
        job: &Job,
        number: WorldNumber,
        layout: &Layout,
        rank: Rank,
    ) -> io::Result<(OwnedFd, Vec<(String, String)>)> {
        let served = match self.worlds.entry(number) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let mut server = server(&format!("{}.w{number}", job.spec.job), layout)?;
                if job.spec.programs.len() > 1 {
                    server.number_programs(|rank| u32::try_from(job.spec.program_number(rank)).unwrap_or(0));
                }
                entry.insert(Served { server, ranks: BTreeMap::new(), fenced: false })
            }
        };
        let (theirs, queue) = listen((number, rank), self.said.clone(), &self.ears)?;
        served.ranks.insert(rank, queue);
        Ok((OwnedFd::from(theirs), served.server.environment(rank)))
    }

    /// A rank says something.
    pub fn take(&mut self, job: &mut Job, worlds: &mut Worlds, shepherds: &Shepherds, said: &Said) {
        let Some(served) = self.worlds.get_mut(&said.world) else { return };
        if said.bytes.is_empty() {
            served.ranks.remove(&said.rank);
            return worlds.is_served_no_more(said.world, said.rank);
        }
        match served.server.receive(said.rank, &said.bytes) {
            Ok(actions) => served.carry_out(job, worlds, shepherds, said.world, actions),
            Err(error) => tracing::warn!(said.rank, %error, "PMI"),
        }
    }

    /// What came of a request about published names.
    pub fn named(
        &mut self,
        job: &mut Job,
        worlds: &mut Worlds,
        shepherds: &Shepherds,
        (number, rank): (WorldNumber, Rank),
        answer: NameAnswer,
    ) {
        let Some(served) = self.worlds.get_mut(&number) else { return };
        let actions = served.server.answer_name(rank, to_name(answer)).unwrap_or_default();
        served.carry_out(job, worlds, shepherds, number, actions);
    }

    /// The ranks of all nodes are in the barrier, and have put these keys since the one before it.
    pub fn fenced(
        &mut self,
        job: &mut Job,
        worlds: &mut Worlds,
        shepherds: &Shepherds,
        number: WorldNumber,
        puts: Result<Vec<(String, String)>, FrameError>,
    ) {
        let Some(served) = self.worlds.get_mut(&number) else { return };
        let done = puts
            .map_err(|error| format!("what the ranks tell each other through PMI cannot be read: {error}"))
            .and_then(|puts| served.server.barrier_complete(puts).map_err(|error| error.to_string()));
        match done {
            Ok(actions) => served.carry_out(job, worlds, shepherds, number, actions),
            Err(reason) => stuck(job, worlds, number, reason),
        }
    }
}

/// What a rank wants with a name. As with MPICH's own launcher everybody may withdraw it.
fn of_name(rank: Rank, request: ft_pmi1::NameRequest) -> NameRequest {
    match request {
        ft_pmi1::NameRequest::Publish { service, port } => {
            let proc = Proc { nspace: String::new(), rank };
            NameRequest::Publish { proc, values: vec![(service, port.into_bytes())], once: false }
        }
        ft_pmi1::NameRequest::Lookup { service } => {
            NameRequest::LookUp { keys: vec![service], wait: false, seconds: 0 }
        }
        ft_pmi1::NameRequest::Unpublish { service } => NameRequest::Unpublish { proc: None, keys: vec![service] },
    }
}

/// … and what came of it.
fn to_name(NameAnswer { status, found }: NameAnswer) -> ft_pmi1::NameAnswer {
    match (status, found.into_iter().next()) {
        (SUCCESS, Some((.., port))) => ft_pmi1::NameAnswer::Found(String::from_utf8_lossy(&port).into_owned()),
        (SUCCESS, None) => ft_pmi1::NameAnswer::Done,
        (ERR_DUPLICATE_KEY, _) => ft_pmi1::NameAnswer::Refused("name is already published"),
        (ERR_NOT_FOUND, _) => ft_pmi1::NameAnswer::Refused("name is not published"),
        _ => ft_pmi1::NameAnswer::Refused("too much is published"),
    }
}

/// Ranks wait for what will not come.
fn stuck(job: &mut Job, worlds: &Worlds, number: WorldNumber, reason: String) {
    if worlds.running(number).is_some() {
        job.report(Event::CannotGoOn { world: WorldId(number), reason });
    }
}

impl Served {
    fn carry_out(
        &mut self,
        job: &mut Job,
        worlds: &mut Worlds,
        shepherds: &Shepherds,
        number: WorldNumber,
        actions: Vec<ft_pmi1::Action>,
    ) {
        let mut pending = VecDeque::from(actions);
        while let Some(action) = pending.pop_front() {
            match action {
                ft_pmi1::Action::Send { rank, bytes } => self.send(job, rank, bytes),
                ft_pmi1::Action::Event(event) => {
                    pending.extend(self.happened(job, worlds, shepherds, number, event));
                }
            }
        }
    }

    fn send(&mut self, job: &Job, rank: Rank, bytes: Vec<u8>) {
        let full = |queue: &Sender<Vec<u8>>| matches!(queue.try_send(bytes), Err(TrySendError::Full(_)));
        if self.ranks.get(&rank).is_some_and(full) {
            self.ranks.remove(&rank);
            job.notice(format!("rank {rank} does not read what it asks for through PMI: it is cut off"));
        }
    }

    /// Returns what the PMI server wants done in consequence.
    fn happened(
        &mut self,
        job: &mut Job,
        worlds: &mut Worlds,
        shepherds: &Shepherds,
        number: WorldNumber,
        event: ft_pmi1::Event,
    ) -> Vec<ft_pmi1::Action> {
        match event {
            ft_pmi1::Event::BarrierReady { puts } => {
                if !std::mem::replace(&mut self.fenced, true) {
                    ft_sys::gate::reach("agent.fence", None);
                }
                if worlds.get(number).is_some_and(|world| !world.layout.is_alone()) {
                    match puts_to_bytes(&puts) {
                        Ok(data) => job.wish(number, everybody(job.spec.world_size, data)),
                        Err(error) => stuck(job, worlds, number, Whose::All.tell_too_much("PMI", error)),
                    }
                    return Vec::new();
                }
                return self.server.barrier_complete([]).unwrap_or_default();
            }
            ft_pmi1::Event::Name { rank, request } => {
                job.wish(number, Wish::Name { asker: Asker::Pmi(rank), request: of_name(rank, request) });
            }
            ft_pmi1::Event::Aborted { rank, code, message } => {
                tracing::info!(rank, code, message, "PMI abort");
                if let Some(process) = worlds.process(number, rank) {
                    job.report(Event::AbortRequested { process, code });
                }
            }
            ft_pmi1::Event::Initialized { rank } => {
                worlds.is_served(job, shepherds, (number, rank), Family::Mpich);
                if let Some(process) = worlds.without_preload(number, rank) {
                    job.report(Event::Initialized(process));
                }
            }
            ft_pmi1::Event::Finalized { rank } => worlds.finalized_without_preload(job, number, rank),
            ft_pmi1::Event::SpawnRefused { command, .. } => job.say_spawn_refused(&command),
            ft_pmi1::Event::Full { rank, most } => job.notice(format!(
                "rank {rank} puts more through PMI than the {} MiB that this job's keys may take: it is refused",
                most >> 20
            )),
            ft_pmi1::Event::Broken { rank, error } => {
                // It may wait for an answer; the end of its connection is one.
                self.ranks.remove(&rank);
                job.notice(format!("rank {rank} broke the PMI protocol: {error}"));
            }
            ft_pmi1::Event::Entered { .. } => {}
        }
        Vec::new()
    }
}

/// The PMI server of a world. MPICH 5 names its shared memory after the world, in 32 bits: where such a file lies already,
/// another job's or its remains, the ranks would hang, and the world gets another name.
fn server(name: &str, layout: &Layout) -> io::Result<ft_pmi1::World> {
    // The other nodes have the name, too.
    let names = if layout.is_alone() { NAMES } else { 1 };
    for number in 0..names {
        let name = if number == 0 { name.to_string() } else { format!("{name}.{number}") };
        let me = u32::try_from(layout.me()).unwrap_or(u32::MAX);
        let server = ft_pmi1::World::new(&name, layout.node_of_rank(), me).map_err(io::Error::other)?;
        if !server.shared_memory_files().iter().any(|file| std::fs::symlink_metadata(file).is_ok()) {
            return Ok(server);
        }
    }
    Err(io::Error::other(format!("the shared-memory files of {names} names are there already: /dev/shm/mpich_*")))
}

/// Makes a connection for a rank: its end, and the way to it.
pub fn listen(of: (WorldNumber, Rank), said: Outlet<Said>, ears: &Ears) -> io::Result<(UnixStream, Sender<Vec<u8>>)> {
    let (ours, theirs) = UnixStream::pair()?;
    let (queue, outgoing) = tokio::sync::mpsc::channel(PMI_ANSWERS);
    ours.set_nonblocking(true)?;
    let stream = Arc::new(tokio::net::UnixStream::from_std(ours)?);
    let ear = Arc::new(Ear::new(stream.clone()));
    ears.add(of.0, of.1, &ear);
    tokio::spawn(answer(stream.clone(), outgoing));
    tokio::spawn(async move {
        serve(of, &stream, &said, &ear).await;
        ear.over();
    });
    Ok((theirs, queue))
}

/// Writes what the rank is answered. When nobody answers it any more it finds the connection's end.
async fn answer(stream: Arc<tokio::net::UnixStream>, mut outgoing: tokio::sync::mpsc::Receiver<Vec<u8>>) {
    while let Some(bytes) = outgoing.recv().await {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let Ok(count) = stream.async_io(Interest::WRITABLE, || stream.try_write(rest)).await else { return };
            rest = &rest[count..];
        }
    }
    let _ = rustix::net::shutdown(&*stream, rustix::net::Shutdown::Write);
}

async fn serve((world, rank): (WorldNumber, Rank), stream: &tokio::net::UnixStream, said: &Outlet<Said>, ear: &Ear) {
    let room = Arc::new(tokio::sync::Semaphore::new(PMI_CHUNKS));
    let mut bytes = [0; 8192];
    loop {
        // A rank that asks faster than the driver answers is stopped by its full socket.
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let count = stream.async_io(Interest::READABLE, || stream.try_read(&mut bytes)).await.unwrap_or(0);
        if count == 0 {
            said.send(Said { world, rank, bytes: Vec::new() });
            return;
        }
        ear.read(count);
        said.send_metered(Said { world, rank, bytes: bytes[..count].to_vec() }, permit);
        ear.told();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::tests::layout;

    #[test]
    fn a_name_whose_files_are_there_is_not_taken_and_they_stay() {
        let name = format!("ftd-test-{}.w1", std::process::id());
        let alone = layout(&[&[0, 1]], 0, 16);
        let [segment, window] = server(&name, &alone).unwrap().shared_memory_files();
        std::fs::write(&window, "another's").unwrap();
        let others = server(&name, &alone).unwrap().shared_memory_files();
        let kept = std::fs::read_to_string(&window).unwrap();
        std::fs::remove_file(&window).unwrap();
        assert_eq!(kept, "another's");
        assert!(!others.contains(&segment) && !others.contains(&window));
        assert_eq!(server(&name, &alone).unwrap().shared_memory_files(), [segment, window]);
    }
}
