//! Connections, up to the driver's queue.

use crate::input::Input;
use crate::link::{ConnectionId, Incoming, LinkError};
use ft_sys::peer::Peer;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections that may be without a preamble, or wait for the driver to hear of them.
const MOST_PENDING: usize = 32;

/// Accepts diallers for ever. Who dials while many others have not said what they are waits in front of the door.
pub async fn accept(listener: tokio::net::UnixListener, inputs: UnboundedSender<Input>) {
    let mut next: ConnectionId = 0;
    let launcher = nix::unistd::getppid().as_raw();
    let pending = Arc::new(Semaphore::new(MOST_PENDING));
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
            tokio::spawn(serve(next, stream, peer, launcher, room, inputs.clone()));
        }
    }
}

async fn serve(
    connection: ConnectionId,
    stream: UnixStream,
    peer: Peer,
    launcher: i32,
    room: OwnedSemaphorePermit,
    inputs: UnboundedSender<Input>,
) {
    let (role, link, incoming) = match Incoming::open(stream).await {
        Ok(opened) => opened,
        Err(error) => return tracing::warn!(%error, "a dialler was turned away"),
    };
    // Before it sends anything: descriptors and slots are taken from none but the launcher's children.
    if role == ft_wire::Role::Shepherd && !peer.held.as_ref().is_some_and(|held| held.is_child_of(launcher)) {
        if peer.held.is_some_and(|held| held.lives()) {
            let sentence = format!("process {} says that it is a shepherd, and ftrun has not started it", peer.pid);
            let _ = inputs.send(Input::Metered(Box::new(Input::Trouble(connection, sentence)), room));
        }
        return;
    }
    let _ = inputs.send(Input::Metered(Box::new(Input::Opened(connection, link, peer)), room));
    let end = match role {
        ft_wire::Role::Shepherd => relay(incoming, &inputs, |m, fds| Input::Shepherd(connection, m, fds)).await,
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
