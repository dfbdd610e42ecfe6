//! The ranks' MPI libraries that speak PMI-1.

use super::*;
use std::io::{self, ErrorKind};
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;

/// Answers that may wait for a rank that does not read them; an honest one waits for each.
const PMI_ANSWERS: usize = 1024;
/// Reads of a rank's PMI connection that may wait for the driver.
const PMI_CHUNKS: usize = 8;
/// Names that are tried for a world.
const NAMES: u32 = 100;

impl Driver {
    /// The welcome of a rank whose MPI speaks PMI-1.
    pub(super) fn welcome_pmi(
        &mut self,
        number: WorldNumber,
        rank: Rank,
        link: &Link,
        page: OwnedFd,
    ) -> Result<(), String> {
        let (fd, env) = self.open_pmi(number, rank).map_err(|error| format!("no connection for PMI: {error}"))?;
        let mut env: Vec<_> = env.into_iter().map(|(key, value)| (key, Some(value.into_bytes()))).collect();
        if self.oversubscribed() {
            env.extend(self.unless_set(ft_pmi1::OVERSUBSCRIBED.0, ft_pmi1::OVERSUBSCRIBED.1));
        }
        env.push(("PMIX_NAMESPACE".into(), None));
        env.push(("PMIX_RANK".into(), None));
        link.send_with(&rank::ToRank::Welcome { env, pmi_fd: true }, vec![page, fd]);
        Ok(())
    }

    /// Opens a PMI-1 connection for `rank`: the rank's end and its environment.
    pub(super) fn open_pmi(&mut self, number: WorldNumber, rank: Rank) -> io::Result<(OwnedFd, Vec<(String, String)>)> {
        let size = self.spec.world_size as usize;
        let name = format!("{}.w{number}", self.spec.job);
        let inputs = self.inputs.clone();
        let world = self.worlds.get_mut(&number).ok_or(ErrorKind::NotFound)?;
        if world.pmi1.is_none() {
            world.pmi1 = Some(pmi_world(&name, size)?);
        }
        let env = world.pmi1.as_ref().map(|p| p.environment(rank)).unwrap_or_default();
        let (ours, theirs) = UnixStream::pair()?;
        let (queue, outgoing) = tokio::sync::mpsc::channel(PMI_ANSWERS);
        ours.set_nonblocking(true)?;
        let stream = tokio::net::UnixStream::from_std(ours)?;
        tokio::spawn(serve_pmi(number, rank, stream, outgoing, inputs));
        if let Some(member) = world.members.get_mut(&rank) {
            member.pmi = Some(queue);
        }
        Ok((OwnedFd::from(theirs), env))
    }

    pub(super) fn pmi_says(&mut self, number: WorldNumber, rank: Rank, bytes: &[u8]) {
        let Some(world) = self.worlds.get_mut(&number) else { return };
        if bytes.is_empty() {
            if let Some(member) = world.members.get_mut(&rank) {
                member.pmi = None;
            }
            return self.is_served_no_more(number, rank);
        }
        let Some(server) = &mut world.pmi1 else { return };
        match server.receive(rank, bytes) {
            Ok(actions) => self.pmi_does(number, actions),
            Err(error) => tracing::warn!(rank, %error, "PMI"),
        }
    }

    fn pmi_does(&mut self, number: WorldNumber, actions: Vec<ft_pmi1::Action>) {
        let mut pending = VecDeque::from(actions);
        while let Some(action) = pending.pop_front() {
            match action {
                ft_pmi1::Action::Send { rank, bytes } => self.pmi_send(number, rank, bytes),
                ft_pmi1::Action::Event(event) => pending.extend(self.pmi_happened(number, event)),
            }
        }
    }

    fn pmi_send(&mut self, number: WorldNumber, rank: Rank, bytes: Vec<u8>) {
        let Some(member) = self.member(number, rank) else { return };
        let full = |queue: &Sender<Vec<u8>>| matches!(queue.try_send(bytes), Err(TrySendError::Full(_)));
        if member.pmi.as_ref().is_some_and(full) {
            member.pmi = None;
            self.notice(format!("rank {rank} does not read what it asks for through PMI: it is cut off"));
        }
    }

    /// Returns what the PMI server wants done in consequence.
    fn pmi_happened(&mut self, number: WorldNumber, event: ft_pmi1::Event) -> Vec<ft_pmi1::Action> {
        match event {
            ft_pmi1::Event::BarrierReady { .. } => {
                self.first_fence(number);
                let server = self.worlds.get_mut(&number).and_then(|world| world.pmi1.as_mut());
                return server.and_then(|server| server.barrier_complete([]).ok()).unwrap_or_default();
            }
            ft_pmi1::Event::Name { rank, request } => {
                let Some(world) = self.worlds.get_mut(&number) else { return Vec::new() };
                let answer = world.names.handle(&request);
                return world.pmi1.as_mut().and_then(|p| p.answer_name(rank, answer).ok()).unwrap_or_default();
            }
            ft_pmi1::Event::Aborted { rank, code, message } => {
                tracing::info!(rank, code, message, "PMI abort");
                if let Some(process) = self.member(number, rank).map(|member| member.process) {
                    self.report(Event::AbortRequested { process, code });
                }
            }
            ft_pmi1::Event::Initialized { rank } => {
                self.is_served(number, rank);
                if let Some(process) = self.without_preload(number, rank) {
                    self.report(Event::Initialized(process));
                }
            }
            ft_pmi1::Event::Finalized { rank } => self.finalized_without_preload(number, rank),
            ft_pmi1::Event::SpawnRefused { command, .. } => self.say_spawn_refused(&command),
            ft_pmi1::Event::Full { rank, most } => self.notice(format!(
                "rank {rank} puts more through PMI than the {} MiB that this job's keys may take: it is refused",
                most >> 20
            )),
            ft_pmi1::Event::Broken { rank, error } => {
                // It may wait for an answer; the end of its connection is one.
                if let Some(member) = self.member(number, rank) {
                    member.pmi = None;
                }
                self.notice(format!("rank {rank} broke the PMI protocol: {error}"));
            }
            ft_pmi1::Event::Entered { .. } => {}
        }
        Vec::new()
    }
}

/// The PMI server of a world. MPICH 5 names its shared memory after the world, in 32 bits: where such a file lies already,
/// another job's or its remains, the ranks would hang, and the world gets another name.
fn pmi_world(name: &str, size: usize) -> io::Result<ft_pmi1::World> {
    for number in 0..NAMES {
        let name = if number == 0 { name.to_string() } else { format!("{name}.{number}") };
        let server = ft_pmi1::World::new(&name, vec![0; size], 0).map_err(io::Error::other)?;
        if !server.shared_memory_files().iter().any(|file| std::fs::symlink_metadata(file).is_ok()) {
            return Ok(server);
        }
    }
    Err(io::Error::other(format!("the shared-memory files of {NAMES} names are there already: /dev/shm/mpich_*")))
}

async fn serve_pmi(
    world: WorldNumber,
    rank: Rank,
    stream: tokio::net::UnixStream,
    mut outgoing: tokio::sync::mpsc::Receiver<Vec<u8>>,
    inputs: UnboundedSender<Input>,
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
                let input = Box::new(Input::Pmi(world, rank, bytes[..count].to_vec()));
                drop(inputs.send(Input::Metered(input, permit)));
            }
            _ => {
                let _ = inputs.send(Input::Pmi(world, rank, Vec::new()));
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
        let [segment, window] = pmi_world(&name, 2).unwrap().shared_memory_files();
        std::fs::write(&window, "another's").unwrap();
        let others = pmi_world(&name, 2).unwrap().shared_memory_files();
        let kept = std::fs::read_to_string(&window).unwrap();
        std::fs::remove_file(&window).unwrap();
        assert_eq!(kept, "another's");
        assert!(!others.contains(&segment) && !others.contains(&window));
        assert_eq!(pmi_world(&name, 2).unwrap().shared_memory_files(), [segment, window]);
    }
}
