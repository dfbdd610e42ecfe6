//! The agents of jobs over several nodes, which are users' and ask etcd through this daemon: each for the keys of its own job, and nothing
//! else. They have a socket of their own, are served on a thread of their own, and are guests on the daemon's connection to etcd: nothing that a
//! user does here holds up the node's lease, or moves it. See docs/decisions/store-through-ftd.md.

use crate::config::Config;
use crate::metrics::{self, Refusal, Unserved};
use crate::socket::{self, Socket, SocketError};
use crate::state::{self, State};
use ft_store::through::{self, Broken, Copied, Note, Rights};
use ft_store::{Etcd, Guests};
use ft_sys::peer::Peer;
use ft_wire::FrameError;
use std::collections::HashMap;
use std::hash::Hash;
use std::io;
use std::os::unix::net::UnixListener as Listener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};

/// A member of etcd that does not answer for so long is asked again, or sooner if the configuration says so; after half of it the next ones are
/// tried: a recovery waits for that.
const ATTEMPT: Duration = Duration::from_secs(1);
/// So many of a user's may be about to say who they are.
const COMING: usize = 64;
/// So many connections a job may have: that of its agent, and those of agents that have just died.
const OF_A_JOB: usize = 4;
/// So often at most has the log that somebody else speaks with a job's agent.
const SELDOM: Duration = Duration::from_secs(60);
/// After a dial that could not be taken, for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Agents cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// There is no socket.
    #[error("for jobs' agents: {0}")]
    Socket(#[from] SocketError),
    /// There is no thread.
    #[error("jobs' agents cannot be served: {0}")]
    Io(#[from] io::Error),
}

/// Where they dial, beside the control socket.
pub fn socket(control: &Path) -> PathBuf {
    socket::beside(control, "store")
}

/// What the names of a job's keys in etcd begin with.
pub fn keys_of(config: &Config, job: &str) -> String {
    format!("{}/jobs/{job}/", config.prefix())
}

/// Serves them from now on. The socket is there until what this returns is dropped.
///
/// # Errors
/// [`ListenError`].
pub fn listen(state: &Arc<State>, etcd: &Etcd) -> Result<Socket, ListenError> {
    let config = state.config();
    let guests = etcd.guests(ATTEMPT, &config.key());
    let (place, listener) = Socket::make(&socket(&config.socket()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let state = state.clone();
    let serve = move || runtime.block_on(accept(listener, Arc::new(Agents::new(guests, state))));
    std::thread::Builder::new().name("agents".into()).spawn(serve)?;
    Ok(place)
}

/// How many there are of each.
#[derive(Debug)]
struct Places<K>(Arc<Mutex<HashMap<K, usize>>>);

/// One of them, as long as it lasts.
struct Place<K: Eq + Hash> {
    places: Arc<Mutex<HashMap<K, usize>>>,
    of: K,
}

impl<K: Eq + Hash + Clone> Places<K> {
    fn enter(&self, of: K, most: usize) -> Option<Place<K>> {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = places.entry(of.clone()).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Place { places: self.0.clone(), of })
    }
}

impl<K: Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = places.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                places.remove(&self.of);
            }
        }
    }
}

/// What all of them share.
struct Agents {
    guests: Guests,
    state: Arc<State>,
    coming: Places<u32>,
    jobs: Places<String>,
}

async fn accept(listener: Listener, agents: Arc<Agents>) {
    let listener = match UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "jobs' agents cannot be served"),
    };
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::error!(%error, "a job's agent could not be let in");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let Ok(peer) = Peer::of(&stream) else {
            metrics::store_refused(Unserved::Dialled(Refusal::Malformed));
            continue;
        };
        match agents.coming.enter(peer.uid, COMING) {
            Some(place) => drop(tokio::spawn(agents.clone().serve(stream, peer, place))),
            None => metrics::store_refused(Unserved::Dialled(Refusal::Limit)),
        }
    }
}

/// When the log was told last that somebody speaks with a job's agent who does not belong to the job.
#[derive(Debug, Default)]
struct Strange(Mutex<Option<Instant>>);

impl Strange {
    /// An agent has said what it refused.
    fn note(&self, node: &str, job: &str, Copied { forged, replayed, stranger, .. }: &Copied) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if (*forged, *replayed) == (0, 0) || told.is_some_and(|told| told.elapsed() < SELDOM) {
            return;
        }
        *told = Some(Instant::now());
        let from = stranger.map_or_else(|| "?".to_string(), |address| address.to_string());
        let what = "somebody speaks with a job's agent here and does not know the job's secret, or repeats what was said: not heard";
        tracing::warn!(node, job, from, forged, replayed, "{what}");
    }
}

impl Agents {
    fn new(guests: Guests, state: Arc<State>) -> Agents {
        Agents { guests, state, coming: Places(Arc::default()), jobs: Places(Arc::default()) }
    }

    async fn serve(self: Arc<Self>, stream: UnixStream, peer: Peer, place: Place<u32>) {
        let seated = match through::take_seat(stream).await {
            Ok(seated) => seated,
            Err(broken) => return turned_away(&peer, &broken),
        };
        let job = seated.job.clone();
        let (config, uid) = (self.state.config(), peer.uid);
        if state::user_of(&config, &job) != Some(uid) {
            metrics::store_refused(Unserved::Job);
            tracing::warn!(uid, pid = peer.pid, job, "somebody asks the store for a job that this user has not here");
            let sentence = format!("user {uid} has no job '{}' on node {}", job.escape_debug(), config.node());
            return seated.refuse(sentence).await;
        }
        let Some(_place) = self.jobs.enter(job.clone(), OF_A_JOB) else {
            metrics::store_refused(Unserved::Dialled(Refusal::Limit));
            return seated.refuse(format!("job {job} has {OF_A_JOB} connections for the store already")).await;
        };
        drop(place);
        let rights =
            Rights { own: keys_of(&config, &job), seen: Some(format!("{}/nodes/", config.prefix())), leases: false };
        let (waits, strange) = (AtomicU64::new(0), Strange::default());
        let note = |note| match note {
            Note::Asked => metrics::store_asked(),
            Note::Copied(copied) => {
                metrics::copied(&copied, waits.swap(copied.waiting, Ordering::Relaxed));
                strange.note(config.node(), &job, &copied);
            }
            Note::Refused(why) => {
                metrics::store_refused(Unserved::Key);
                tracing::warn!(uid, pid = peer.pid, job, why, "what is asked in a job's name is not the job's");
            }
        };
        let served = through::serve(seated, self.guests.of(uid), rights, note).await;
        metrics::copied(&Copied::default(), waits.into_inner());
        if let Err(broken) = served {
            turned_away(&peer, &broken);
        }
    }
}

fn turned_away(peer: &Peer, broken: &Broken) {
    let refusal = match broken {
        Broken::Version { .. } | Broken::Frame(FrameError::Version { .. }) => Refusal::Version,
        Broken::Frame(_) | Broken::Role(_) => Refusal::Malformed,
        Broken::Idle(_) => Refusal::Idle,
        Broken::Closed | Broken::Refused(_) | Broken::Io(_) => return,
    };
    metrics::store_refused(Unserved::Dialled(refusal));
    tracing::warn!(uid = peer.uid, pid = peer.pid, %broken, "who asks the store as a job's agent was turned away");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_the_places_of_another_job() {
        let jobs = Places(Arc::default());
        let enter = |job: &str| jobs.enter(job.to_string(), 2);
        let both = (enter("a"), enter("a"));
        assert!(both.0.is_some() && both.1.is_some() && enter("a").is_none() && enter("b").is_some());
        drop(both);
        assert!(enter("a").is_some() && jobs.0.lock().unwrap().is_empty());
    }
}
