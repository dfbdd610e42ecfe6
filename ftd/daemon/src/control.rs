//! The control socket: who dials, and what they are answered.

use crate::errand::{self, Whose};
use crate::metrics::{self, Refusal};
use crate::state::State;
use ft_sys::peer::Peer;
use ft_wire::control::{FromDaemon, MAX_REQUEST, ToDaemon};
use ft_wire::{FrameBuffer, FrameError, PREAMBLE_LEN, Preamble, Role};
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

/// A dialler that says or reads nothing for so long is left.
const IDLE: Duration = Duration::from_secs(5);
/// After a dial that could not be taken, for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Why a connection ends before its end.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("{0:?} has no business with the daemon")]
    Role(Role),
    #[error("it neither said nor read anything for {} s", IDLE.as_secs())]
    Idle,
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl Trouble {
    fn counts_as(&self) -> Option<Refusal> {
        match self {
            Trouble::Frame(FrameError::Version { .. }) => Some(Refusal::Version),
            Trouble::Frame(_) | Trouble::Role(_) => Some(Refusal::Malformed),
            Trouble::Idle => Some(Refusal::Idle),
            Trouble::Io(_) => None,
        }
    }
}

/// How many connections there are, and whose.
#[derive(Debug, Default)]
struct Crowd(Mutex<HashMap<u32, usize>>);

/// One of them, as long as it lasts.
struct Place {
    crowd: Arc<Crowd>,
    uid: u32,
}

impl Crowd {
    /// A place for a user's connection, or the sentence that says why there is none.
    fn enter(self: &Arc<Self>, uid: u32, most: usize, most_per_user: usize) -> Result<Place, String> {
        let mut users = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, own) = (users.values().sum::<usize>(), users.get(&uid).copied().unwrap_or(0));
        // Who starts and mends jobs is root, and must not be kept out by anybody's number.
        if uid != 0 && all >= most {
            return Err(format!(
                "there are {all} connections to ftd already, and no more are allowed: try again when some have ended, or ask the \
                 administrator to raise control.connections"
            ));
        }
        if uid != 0 && own >= most_per_user {
            return Err(format!(
                "user {uid} has {own} connections to ftd already, and no more are allowed: end some (each ftrun --hosts that runs is \
                 one), or ask the administrator to raise control.connections-per-user"
            ));
        }
        *users.entry(uid).or_default() += 1;
        Ok(Place { crowd: self.clone(), uid })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut users = self.crowd.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = users.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                users.remove(&self.uid);
            }
        }
    }
}

/// Answers diallers for ever.
pub async fn serve(listener: UnixListener, state: Arc<State>) {
    let crowd = Arc::new(Crowd::default());
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::error!(%error, "a connection to the control socket could not be taken");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let peer = match Peer::of(&stream) {
            Ok(peer) => peer,
            Err(error) => {
                tracing::warn!(%error, "the kernel does not say who dialled the control socket");
                metrics::control_refused(Refusal::Malformed);
                continue;
            }
        };
        let config = state.config();
        match crowd.enter(peer.uid, config.connections(), config.connections_per_user()) {
            Ok(place) => {
                metrics::control_accepted();
                let state = state.clone();
                tokio::spawn(async move {
                    if let Err(trouble) = answer(stream, peer.uid, &state, place).await {
                        turned_away(&peer, &trouble);
                    }
                });
            }
            Err(sentence) => {
                metrics::control_refused(Refusal::Limit);
                tracing::warn!(
                    uid = peer.uid,
                    pid = peer.pid,
                    sentence,
                    "a connection to the control socket was refused"
                );
                // There is room for so much in a new socket; who has none for it is told nothing.
                let _ = stream.try_write(&refusal(sentence));
            }
        }
    }
}

fn turned_away(peer: &Peer, trouble: &Trouble) {
    if let Some(refusal) = trouble.counts_as() {
        metrics::control_refused(refusal);
        tracing::warn!(uid = peer.uid, pid = peer.pid, %trouble, "a connection to the control socket was ended");
    } else {
        tracing::debug!(uid = peer.uid, pid = peer.pid, %trouble, "a connection to the control socket was lost");
    }
}

fn refusal(sentence: String) -> Vec<u8> {
    let frame = ft_wire::encode(&FromDaemon::Refused(sentence), 0).unwrap_or_default();
    [&Preamble::ours(Role::Daemon).to_bytes()[..], &frame].concat()
}

async fn answer(mut stream: UnixStream, uid: u32, state: &State, place: Place) -> Result<(), Trouble> {
    send(&mut stream, &Preamble::ours(Role::Daemon).to_bytes()).await?;
    let mut preamble = [0; PREAMBLE_LEN];
    timeout(IDLE, stream.read_exact(&mut preamble)).await.map_err(|_| Trouble::Idle)??;
    match Preamble::from_bytes(&preamble)?.role {
        Role::Asker => {}
        Role::Launcher => {
            let served = errand::run(stream, Whose::Launcher(uid), state, |_| {}).await;
            state.session_ends();
            return Ok(served?);
        }
        // A process that serves a job has that job's part on this node started as if another node's daemon asked.
        Role::Daemon if is_of_this_daemon(&stream, uid) => {
            // Its launcher has a place.
            drop(place);
            return Ok(errand::run(stream, Whose::Own, state, |_| {}).await?);
        }
        other => return Err(Trouble::Role(other)),
    }
    let mut frames = FrameBuffer::default();
    frames.limit(MAX_REQUEST);
    let mut bytes = [0; 4096];
    loop {
        while let Some((body, _)) = frames.next_frame()? {
            let reply = match ft_wire::decode(&body)? {
                ToDaemon::Status => FromDaemon::Status(Box::new(state.status())),
            };
            send(&mut stream, &ft_wire::encode(&reply, 0)?).await?;
        }
        match timeout(IDLE, stream.read(&mut bytes)).await.map_err(|_| Trouble::Idle)?? {
            0 => return Ok(()),
            count => frames.push(&bytes[..count]),
        }
    }
}

/// Whether who dials may be another process of this daemon's: the same user, who sees the same files. A container's root may have the socket,
/// and is not to start anything as anybody.
fn is_of_this_daemon(stream: &UnixStream, uid: u32) -> bool {
    let mounts = |pid: i32| std::fs::metadata(format!("/proc/{pid}/ns/mnt")).map(|found| (found.dev(), found.ino()));
    let own = mounts(std::process::id().cast_signed());
    let theirs = Peer::of(stream).and_then(|peer| mounts(peer.pid));
    uid == nix::unistd::geteuid().as_raw() && matches!((own, theirs), (Ok(own), Ok(theirs)) if own == theirs)
}

async fn send(stream: &mut UnixStream, bytes: &[u8]) -> Result<(), Trouble> {
    timeout(IDLE, stream.write_all(bytes)).await.map_err(|_| Trouble::Idle)?.map_err(Trouble::Io)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_all_places() {
        let crowd = Arc::new(Crowd::default());
        let enter = |uid| crowd.enter(uid, 5, 2);
        let mine = [enter(7), enter(7)];
        assert!(
            enter(7).err().is_some_and(|sentence| sentence.contains("user 7 has 2") && sentence.contains("end some ("))
        );
        let roots = [enter(0), enter(0), enter(0)];
        assert!(roots.iter().all(Result::is_ok));
        assert!(enter(8).err().is_some_and(|sentence| sentence.ends_with("raise control.connections")));
        drop(roots);
        drop(mine);
        assert!(enter(7).is_ok() && crowd.0.lock().unwrap().is_empty());
    }
}
