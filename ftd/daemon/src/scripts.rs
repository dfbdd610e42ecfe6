//! Jobs of Slurm's whose script runs on another node. When that one dies while the script is between two steps nobody of the job is there to
//! notice, and Slurm, which is to leave the job its other nodes, has it running until its time is over. So each daemon that has had a part
//! of a step notes where the script is, and sees to the job when it is gone (docs/decisions/slurm-steps.md).

mod note;

pub use note::{Note, note};

use crate::birth::{self, Birth};
use crate::etcd::Asked;
use crate::parts::{self, credentials, ended};
use crate::state::{State, jobs_and_users};
use ft_store::{Etcd, Expected, Follow, LeaseId, Scope, Store, StoreError, Swap, decode_record};
use ft_sys::timescale::scaled;
use ft_wire::step::{END_FOR_SCRIPT, Found, LOOK_FOR_SCRIPT};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// Of a job whose script's node is there Slurm is asked so often whether the job is.
const HOUR: Duration = Duration::from_secs(3600);
/// How often the node's key is read again, whatever the watch says.
const READ_AGAIN: Duration = Duration::from_secs(60);
/// The first look at the node's key.
const FIRST: Duration = Duration::from_secs(5);
/// Before what was not answered is asked again.
const PAUSE: Duration = Duration::from_secs(1);
/// A node whose `ftd` alone is gone is looked at so often, by the first nodes of a step; by the others less often.
const AGAIN: Duration = Duration::from_secs(20);
/// Nodes that look at it so often.
const FEW: u32 = 8;
/// The nodes end a job one after the other.
const APART: Duration = Duration::from_secs(2);
/// Who finds the script's node says so for so long: longer than another one takes to find nobody there, and to wait for its turn.
const SEEN: Duration = Duration::from_secs(60);
/// Who is started for a look has looked within this time.
const LOOKED: Duration = Duration::from_secs(120);

/// The jobs that this node watches.
pub struct Scripts {
    state: Arc<State>,
    etcd: Asked<Etcd>,
    store: Etcd,
    users: Asked<Etcd>,
    watched: BTreeMap<u32, (Note, JoinHandle<()>)>,
}

impl Scripts {
    /// `store` is `etcd`'s own; `users`, for what users have written, is another one's.
    pub fn new(state: Arc<State>, etcd: Asked<Etcd>, store: Etcd, users: Asked<Etcd>) -> Scripts {
        Scripts { state, etcd, store, users, watched: BTreeMap::new() }
    }

    /// For ever. What parts of steps have noted is read when one of them is over: until then the job has somebody.
    pub async fn run(mut self) {
        loop {
            self.load();
            self.state.session_over().await;
        }
    }

    fn load(&mut self) {
        self.watched.retain(|_, (_, watch)| !watch.is_finished());
        for note in Note::all(&self.state.config().state()) {
            if self.watched.get(&note.job).is_some_and(|(known, _)| *known == note) {
                continue;
            }
            let watch = Watch::new(&note, self.state.clone(), self.etcd.clone(), self.users.clone());
            let task = tokio::spawn(watch.run(self.store.clone()));
            // The job has begun anew, elsewhere.
            self.watched.insert(note.job, (note, task)).into_iter().for_each(|(_, former)| former.abort());
        }
    }
}

/// What comes of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// The job has ended.
    Over,
    /// It goes on.
    Later,
    /// It was ended: Slurm says so soon.
    Soon,
}

/// One job.
struct Watch<S: Store> {
    note: Note,
    state: Arc<State>,
    etcd: Asked<S>,
    /// For what users have written.
    users: Asked<S>,
    /// The key of the script's node.
    key: String,
    /// The key that says that somebody has found that node.
    seen: String,
    /// Beginning of the keys of the job's steps.
    steps: String,
}

impl<S: Store> Watch<S> {
    fn new(note: &Note, state: Arc<State>, etcd: Asked<S>, users: Asked<S>) -> Watch<S> {
        let config = state.config();
        let prefix = config.prefix();
        let (key, seen) = (format!("{prefix}/nodes/{}", note.node), format!("{prefix}/seen/{}", note.node));
        let steps = format!("{prefix}/jobs/slurm-{}-", note.job);
        Watch { note: note.clone(), state, etcd, users, key, seen, steps }
    }

    /// Until the job is over.
    async fn run(self, store: impl Store) {
        let config = self.state.config();
        let mut follow = Follow::new(store, Scope::Key(self.key.clone()), READ_AGAIN, config.etcd_within());
        let (mut wait, mut asked) = (FIRST, Instant::now());
        loop {
            if let Ok(Err(error)) = timeout(wait, follow.next()).await {
                tracing::debug!(%error, node = self.note.node, "whether the node is there cannot be followed now");
                sleep(PAUSE).await;
            }
            let is_gone = match self.is_absent(&self.key).await {
                Ok(is_gone) => is_gone,
                Err(_) => {
                    wait = FIRST;
                    continue;
                }
            };
            if !is_gone && asked.elapsed() < HOUR {
                wait = HOUR - asked.elapsed();
                continue;
            }
            asked = Instant::now();
            wait = match self.see_to(is_gone).await {
                Next::Over => return self.note.strike(&config.state()),
                Next::Soon => PAUSE,
                Next::Later if is_gone => scaled(AGAIN) * (1 + self.note.turn / FEW),
                Next::Later => HOUR,
            };
        }
    }

    async fn see_to(&self, is_gone: bool) -> Next {
        match self.ftrun(LOOK_FOR_SCRIPT).await.and_then(Found::of) {
            Some(Found::Over) => Next::Over,
            Some(Found::There) if is_gone => {
                if let Err(error) = self.say_seen().await {
                    tracing::debug!(%error, node = self.note.node, "that the node was found cannot be said in etcd");
                }
                Next::Later
            }
            Some(Found::Silent) if is_gone => {
                sleep(scaled(APART) * self.note.turn.min(FEW)).await;
                self.end().await
            }
            _ => Next::Later,
        }
    }

    /// Nobody answers where the script ran.
    async fn end(&self) -> Next {
        let (job, node) = (self.note.job, &self.note.node);
        match self.is_certain().await {
            Ok(true) => {
                tracing::warn!(job, node, "the script of this job of Slurm's is gone with its node: the job is ended");
                self.ftrun(END_FOR_SCRIPT).await;
                Next::Soon
            }
            Ok(false) => {
                tracing::info!(
                    job,
                    node,
                    "this node does not reach the one of this job's script, and leaves the job alone: others do, or a step runs"
                );
                Next::Later
            }
            Err(error) => {
                tracing::info!(%error, job, node, "whether the node of this job's script is gone cannot be asked now");
                Next::Later
            }
        }
    }

    async fn is_absent(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.etcd.get(key).await?.found.is_none())
    }

    /// Whether nobody else has found the node, which this one does not reach, and no step of the job is there, which would say it itself.
    async fn is_certain(&self) -> Result<bool, StoreError> {
        let steps = format!("slurm-{}-", self.note.job);
        if self.state.status().lease.is_none()
            || jobs_and_users(&self.state.config()).iter().any(|(job, _)| job.starts_with(&steps))
        {
            return Ok(false);
        }
        let found = self.users.read(&Scope::Prefix(self.steps.clone())).await?.found;
        let runs = found.iter().any(|(key, record)| {
            let Some(keys) = key.strip_suffix("epoch") else { return false };
            let goes = found.get(&format!("{keys}goes")).is_some_and(|goes| goes.revision == record.revision);
            // What a later release has written is somebody's.
            !goes && !decode_record(&record.value).is_ok_and(|record| record.outcome.is_some())
        });
        Ok(!runs && self.is_absent(&self.key).await? && self.is_absent(&self.seen).await?)
    }

    /// Other nodes may not reach it.
    async fn say_seen(&self) -> Result<(), StoreError> {
        let lease: LeaseId = self.etcd.grant(scaled(SEEN).max(PAUSE * 2)).await?.id;
        let found = self.etcd.get(&self.seen).await?.found.map_or(0, |found| found.revision);
        let swap = Swap::on(&self.seen, Expected::at(found)).put_leased(&self.seen, Vec::new(), lease);
        match self.etcd.swap(swap).await {
            Err(StoreError::Lost { .. }) => self.etcd.revoke(lease).await,
            written => written.map(drop),
        }
    }

    /// Has the job's user look, or act; the exit status.
    async fn ftrun(&self, word: &str) -> Option<i32> {
        let note = &self.note;
        let started = async {
            let program = parts::program("ftrun")?;
            let credentials = credentials(note.uid, &note.user).await?;
            let (word, job) = (word.into(), note.job.to_string());
            let (user, env) = (note.user.clone(), note.env.clone());
            let birth = Birth { program, word, job, user, credentials, nice: 0, env, home: None };
            let ends = signal(SignalKind::child()).map_err(|error| error.to_string())?;
            let (_mine, theirs) = std::os::unix::net::UnixStream::pair().map_err(|error| error.to_string())?;
            let pid = birth::start(&birth, theirs.as_fd(), None).map_err(|error| error.to_string())?;
            Ok::<_, String>((pid, ends))
        };
        match started.await {
            Ok((pid, mut ends)) => {
                if let Ok(status) = timeout(LOOKED, ended(pid, &mut ends)).await {
                    return status?.code();
                }
                ft_sys::process::kill(pid, nix::libc::SIGKILL);
                ended(pid, &mut ends).await?.code()
            }
            Err(error) => {
                tracing::warn!(
                    job = note.job,
                    error,
                    "what has become of the script of this job of Slurm's cannot be found out"
                );
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
