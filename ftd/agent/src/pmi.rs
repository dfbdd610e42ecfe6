//! The ranks' MPI libraries that speak PMI-1.

use crate::job::Job;
use crate::outlet::Outlet;
use crate::shepherds::Shepherds;
use crate::worlds::Worlds;
use ft_wire::{Rank, World as WorldNumber};
use ftd_core::{Event, Family};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;

/// Answers that may wait for a rank that does not read them; an honest one waits for each.
const PMI_ANSWERS: usize = 1024;
/// Reads of a rank's PMI connection that may wait for the driver.
const PMI_CHUNKS: usize = 8;
/// Names that are tried for a world.
const NAMES: u32 = 100;

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
    /// Published names.
    names: ft_pmi1::Names,
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
}

impl Pmi {
    /// None yet.
    pub fn new(said: Outlet<Said>) -> Pmi {
        Pmi { worlds: BTreeMap::new(), said }
    }

    /// Nobody is left who could ask.
    pub fn forget(&mut self, number: WorldNumber) {
        self.worlds.remove(&number);
    }

    /// Opens a connection for `rank`: the rank's end and its environment.
    ///
    /// # Errors
    /// When there is no server or no socket to be had.
    pub fn open(&mut self, job: &Job, number: WorldNumber, rank: Rank) -> io::Result<(OwnedFd, Vec<(String, String)>)> {
        let size = job.spec.world_size as usize;
        let served = match self.worlds.entry(number) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let server = server(&format!("{}.w{number}", job.spec.job), size)?;
                let (names, ranks) = (ft_pmi1::Names::default(), BTreeMap::new());
                entry.insert(Served { server, names, ranks, fenced: false })
            }
        };
        let (ours, theirs) = UnixStream::pair()?;
        let (queue, outgoing) = tokio::sync::mpsc::channel(PMI_ANSWERS);
        ours.set_nonblocking(true)?;
        let stream = tokio::net::UnixStream::from_std(ours)?;
        tokio::spawn(serve((number, rank), stream, outgoing, self.said.clone()));
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
        let mut pending = match served.server.receive(said.rank, &said.bytes) {
            Ok(actions) => VecDeque::from(actions),
            Err(error) => return tracing::warn!(said.rank, %error, "PMI"),
        };
        while let Some(action) = pending.pop_front() {
            match action {
                ft_pmi1::Action::Send { rank, bytes } => served.send(job, rank, bytes),
                ft_pmi1::Action::Event(event) => {
                    pending.extend(served.happened(job, worlds, shepherds, said.world, event));
                }
            }
        }
    }
}

impl Served {
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
            ft_pmi1::Event::BarrierReady { .. } => {
                if !std::mem::replace(&mut self.fenced, true) {
                    ft_sys::gate::reach("agent.fence", None);
                }
                return self.server.barrier_complete([]).unwrap_or_default();
            }
            ft_pmi1::Event::Name { rank, request } => {
                let answer = self.names.handle(&request);
                return self.server.answer_name(rank, answer).unwrap_or_default();
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
fn server(name: &str, size: usize) -> io::Result<ft_pmi1::World> {
    for number in 0..NAMES {
        let name = if number == 0 { name.to_string() } else { format!("{name}.{number}") };
        let server = ft_pmi1::World::new(&name, vec![0; size], 0).map_err(io::Error::other)?;
        if !server.shared_memory_files().iter().any(|file| std::fs::symlink_metadata(file).is_ok()) {
            return Ok(server);
        }
    }
    Err(io::Error::other(format!("the shared-memory files of {NAMES} names are there already: /dev/shm/mpich_*")))
}

async fn serve(
    (world, rank): (WorldNumber, Rank),
    stream: tokio::net::UnixStream,
    mut outgoing: tokio::sync::mpsc::Receiver<Vec<u8>>,
    said: Outlet<Said>,
) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (mut reader, mut writer) = stream.into_split();
    tokio::spawn(async move {
        while let Some(bytes) = outgoing.recv().await {
            if writer.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    let room = std::sync::Arc::new(tokio::sync::Semaphore::new(PMI_CHUNKS));
    let mut bytes = [0; 8192];
    loop {
        // A rank that asks faster than the driver answers is stopped by its full socket.
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        match reader.read(&mut bytes).await {
            Ok(count) if count > 0 => {
                said.send_metered(Said { world, rank, bytes: bytes[..count].to_vec() }, permit);
            }
            _ => {
                said.send(Said { world, rank, bytes: Vec::new() });
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_whose_files_are_there_is_not_taken_and_they_stay() {
        let name = format!("ftd-test-{}.w1", std::process::id());
        let [segment, window] = server(&name, 2).unwrap().shared_memory_files();
        std::fs::write(&window, "another's").unwrap();
        let others = server(&name, 2).unwrap().shared_memory_files();
        let kept = std::fs::read_to_string(&window).unwrap();
        std::fs::remove_file(&window).unwrap();
        assert_eq!(kept, "another's");
        assert!(!others.contains(&segment) && !others.contains(&window));
        assert_eq!(server(&name, 2).unwrap().shared_memory_files(), [segment, window]);
    }
}
