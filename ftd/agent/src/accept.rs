//! Connections, up to the driver's queue.

use crate::asker::Asker;
use crate::input::Input;
use crate::link::{ConnectionId, Incoming, Link, LinkError};
use crate::unheard::Ears;
use ft_sys::individual::Held;
use ft_sys::peer::Peer;
use ft_wire::ask::{self, FromAgent};
use ft_wire::shepherd;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections that may be without a preamble, or wait for the driver to hear of them.
const MOST_PENDING: usize = 32;
/// Connections over which the job's user asks something.
const MOST_ASKERS: usize = 16;
/// Who asks nothing for so long is left.
const IDLE: Duration = Duration::from_secs(10);

/// Accepts diallers for ever. Who dials while many others have not said what they are waits in front of the door.
pub async fn accept(listener: tokio::net::UnixListener, inputs: UnboundedSender<Input>, ears: Ears) {
    let mut next: ConnectionId = 0;
    // Tasks of Slurm's are known by their numbers alone, which the launcher names.
    let has_tasks = std::env::var_os(ft_wire::step::TASKS).is_some();
    let launcher = (!has_tasks).then(|| nix::unistd::getppid().as_raw());
    let pending = Arc::new(Semaphore::new(MOST_PENDING));
    let askers = Arc::new(Semaphore::new(MOST_ASKERS));
    loop {
        let Ok(room) = pending.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::error!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        let own = nix::unistd::Uid::effective().as_raw();
        let peer = match Peer::of(&stream) {
            Ok(peer) if peer.uid == own || peer.uid == 0 => peer,
            _ => {
                tracing::warn!("a process of another user was turned away");
                continue;
            }
        };
        next += 1;
        if let Ok(stream) = stream.into_std() {
            tokio::spawn(serve(next, stream, (peer, launcher), (room, askers.clone()), inputs.clone(), ears.clone()));
        }
    }
}

async fn serve(
    connection: ConnectionId,
    stream: UnixStream,
    (peer, launcher): (Peer, Option<i32>),
    (room, askers): (OwnedSemaphorePermit, Arc<Semaphore>),
    inputs: UnboundedSender<Input>,
    ears: Ears,
) {
    let (role, link, incoming) = match Incoming::open(stream).await {
        Ok(opened) => opened,
        Err(error) => return tracing::warn!(%error, "a dialler was turned away"),
    };
    if role == ft_wire::Role::Asker {
        drop(room);
        let end = relay_asker((connection, peer.uid), link, incoming, &inputs, &askers).await;
        tracing::debug!(connection, ?end, "somebody asks no more");
        let _ = inputs.send(Input::Closed(connection));
        return;
    }
    // Before it sends anything: descriptors and slots are taken from none but the launcher's children.
    let is_started = |held: &Held| launcher.is_none_or(|launcher| held.is_child_of(launcher));
    if role == ft_wire::Role::Shepherd && !peer.held.as_ref().is_some_and(is_started) {
        if peer.held.is_some_and(|held| held.lives()) {
            let sentence = format!("process {} says that it is a shepherd, and ftrun has not started it", peer.pid);
            let _ = inputs.send(Input::Metered(Box::new(Input::Trouble(connection, sentence)), room));
        }
        return;
    }
    let _ = inputs.send(Input::Metered(Box::new(Input::Opened(connection, link, peer)), room));
    let end = match role {
        ft_wire::Role::Shepherd => relay_shepherd(connection, incoming, &inputs, &ears).await,
        ft_wire::Role::Rank => relay(incoming, &inputs, |m, _| Input::Rank(connection, m)).await,
        ft_wire::Role::Client => relay(incoming, &inputs, |m, _| Input::Client(connection, m)).await,
        other => {
            tracing::warn!(?other, "a dialler of this role has no business here");
            Ok(())
        }
    };
    if let Err(error) = end {
        tracing::debug!(connection, %error, "a connection ended");
        if error.is_trouble() {
            let _ = inputs.send(Input::Trouble(connection, error.to_string()));
        }
    }
    let _ = inputs.send(Input::Closed(connection));
}

/// The same for a shepherd: that a process has ended comes behind all that this has said itself.
async fn relay_shepherd(
    connection: ConnectionId,
    mut incoming: Incoming,
    inputs: &UnboundedSender<Input>,
    ears: &Ears,
) -> Result<(), LinkError> {
    loop {
        let (message, fds, room) = incoming.next_metered().await?;
        if let shepherd::ToAgent::Exited { world, rank, .. } = message {
            ears.hear_out(world, rank).await;
        }
        if inputs.send(Input::Metered(Box::new(Input::Shepherd(connection, message, fds)), room)).is_err() {
            return Ok(());
        }
    }
}

/// The same for the job's user, who is answered before anything more of him is read.
async fn relay_asker(
    (connection, uid): (ConnectionId, u32),
    link: Link,
    mut incoming: Incoming,
    inputs: &UnboundedSender<Input>,
    askers: &Semaphore,
) -> Result<(), LinkError> {
    let Ok(_place) = askers.try_acquire() else {
        link.send(&FromAgent::Refused(format!("{MOST_ASKERS} others ask this agent already: try again later")));
        link.written().await;
        return Ok(());
    };
    let mut follows = false;
    loop {
        let next = incoming.next_metered::<ask::ToAgent>();
        let (message, _, room) = match follows {
            true => next.await?,
            false => crate::wait::within(IDLE, next).await.ok_or(LinkError::Silent)??,
        };
        follows |= matches!(message, ask::ToAgent::Events { follow: true });
        let asker = Asker { connection, link: link.clone(), uid };
        if inputs.send(Input::Metered(Box::new(Input::Asked(asker, message)), room)).is_err() {
            return Ok(());
        }
    }
}

/// Moves messages of one connection into the driver's queue.
pub async fn relay<M: serde::de::DeserializeOwned>(
    mut incoming: Incoming,
    inputs: &UnboundedSender<Input>,
    wrap: impl Fn(M, Vec<OwnedFd>) -> Input,
) -> Result<(), LinkError> {
    loop {
        let (message, fds, room) = incoming.next_metered::<M>().await?;
        if inputs.send(Input::Metered(Box::new(wrap(message, fds)), room)).is_err() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::outlet;
    use crate::pmi;
    use ft_wire::{Preamble, Role, encode, rank};
    use std::io::Write;
    use tokio::sync::mpsc::unbounded_channel;

    async fn dialled(role: Role) -> (UnixStream, crate::link::Link, Incoming) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&Preamble::ours(role).to_bytes()).unwrap();
        let (_, link, incoming) = Incoming::open(ours).await.unwrap();
        link.trust();
        (theirs, link, incoming)
    }

    /// The agent does not run from when the process starts until it has ended: the shepherd's socket is the first that something comes
    /// from, and is read first.
    #[tokio::test]
    async fn a_process_has_said_all_before_its_end_is_told() {
        let ((inputs, mut queue), ears) = (unbounded_channel(), Ears::default());
        let (mut shepherd, _link, incoming) = dialled(Role::Shepherd).await;
        let (mut preload, link, of_rank) = dialled(Role::Rank).await;
        let (mut program, _answers) = pmi::listen((1, 0), outlet(&inputs, Input::Pmi), &ears).unwrap();
        ears.add(1, 0, link.ear());
        let (to, from) = (inputs.clone(), ears.clone());
        tokio::spawn(async move { relay_shepherd(1, incoming, &to, &from).await });
        tokio::spawn(async move { relay(of_rank, &inputs, |message, _| Input::Rank(2, message)).await });
        tokio::task::yield_now().await;

        let started = shepherd::ToAgent::Started { world: 1, rank: 0, pid: 7 };
        let (oom, cpu_limit, waited) = (false, false, false);
        let exited = shepherd::ToAgent::Exited { world: 1, rank: 0, pid: 7, status: 0, oom, cpu_limit, waited };
        shepherd.write_all(&encode(&started, 0).unwrap()).unwrap();
        program.write_all(b"cmd=init pmi_version=1 pmi_subversion=1\n").unwrap();
        preload.write_all(&encode(&rank::ToAgent::Finalized, 0).unwrap()).unwrap();
        shepherd.write_all(&encode(&exited, 0).unwrap()).unwrap();
        shepherd.write_all(&encode(&shepherd::ToAgent::Emptied { world: 1 }, 0).unwrap()).unwrap();
        let mut told = Vec::new();
        for _ in 0..5 {
            let Some(Input::Metered(input, _room)) = queue.recv().await else { panic!("{told:?}") };
            told.push(match *input {
                Input::Shepherd(_, shepherd::ToAgent::Started { .. }, _) => "started",
                Input::Shepherd(_, shepherd::ToAgent::Exited { .. }, _) => "exited",
                Input::Shepherd(_, shepherd::ToAgent::Emptied { .. }, _) => "emptied",
                Input::Pmi(_) => "joined",
                Input::Rank(_, rank::ToAgent::Finalized) => "finalized",
                other => panic!("{other:?}"),
            });
        }
        assert_eq!((told[0], told[3], told[4]), ("started", "exited", "emptied"), "{told:?}");
    }

    /// Who has died in the middle of a word has said no more, and one that goes on without its parent is not waited for.
    #[tokio::test]
    async fn nobody_waits_for_the_rest_of_a_word_or_for_what_is_said_later() {
        let ((inputs, mut queue), ears) = (unbounded_channel(), Ears::default());
        let (mut shepherd, _link, incoming) = dialled(Role::Shepherd).await;
        let (mut preload, link, of_rank) = dialled(Role::Rank).await;
        let (program, _answers) = pmi::listen((1, 0), outlet(&inputs, Input::Pmi), &ears).unwrap();
        ears.add(1, 0, link.ear());
        let to = inputs.clone();
        tokio::spawn(async move { relay_shepherd(1, incoming, &to, &ears).await });
        tokio::spawn(async move { relay(of_rank, &inputs, |message, _| Input::Rank(2, message)).await });
        let half = encode(&rank::ToAgent::Abort { code: 70_000 }, 0).unwrap();
        preload.write_all(&half[..half.len() - 1]).unwrap();
        let (oom, cpu_limit, waited) = (false, false, false);
        let exited = shepherd::ToAgent::Exited { world: 1, rank: 0, pid: 7, status: 0, oom, cpu_limit, waited };
        shepherd.write_all(&encode(&exited, 0).unwrap()).unwrap();
        let told = tokio::time::timeout(std::time::Duration::from_secs(60), queue.recv()).await.unwrap();
        let Some(Input::Metered(input, _)) = told else { panic!("{told:?}") };
        assert!(matches!(*input, Input::Shepherd(_, shepherd::ToAgent::Exited { .. }, _)), "{input:?}");
        drop(program);
    }
}
