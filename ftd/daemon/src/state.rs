//! What this daemon knows of itself and of its node: what `ftd status` tells.

use crate::config::Config;
use crate::lock::{self, Lock};
use crate::roll::Roll;
use crate::{metrics, service};
use ft_store::Lease;
use ft_wire::control::{Etcd, NodeLease, Status};
use nix::time::{ClockId, clock_gettime};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Shared by all that runs in the daemon.
#[derive(Debug)]
pub struct State {
    began: Instant,
    now: Mutex<Now>,
    ended: Notify,
    sessions: Notify,
    roll: OnceLock<Roll>,
}

/// What changes.
#[derive(Debug)]
struct Now {
    config: Arc<Config>,
    later: Vec<String>,
    refused: Option<String>,
    id: String,
    etcd: Answer,
    /// A lease, and when it was asked for last.
    lease: Option<(Lease, Duration)>,
    /// Jobs that have a part here of which this process is the parent.
    jobs: Vec<(String, Option<Lock>)>,
}

/// How etcd answered last.
#[derive(Debug, Clone)]
enum Answer {
    None,
    Came(Instant),
    Away { since: Instant, reason: String },
}

/// The time since the machine started, suspended or not: leases run in it.
pub fn boot_time() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

impl State {
    /// At the start.
    pub fn new(config: Config) -> State {
        let now = Now {
            config: Arc::new(config),
            later: Vec::new(),
            refused: None,
            id: String::new(),
            etcd: Answer::None,
            lease: None,
            jobs: Vec::new(),
        };
        let (ended, sessions) = (Notify::new(), Notify::new());
        State { began: Instant::now(), now: Mutex::new(now), ended, sessions, roll: OnceLock::new() }
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The configuration that is in use.
    pub fn config(&self) -> Arc<Config> {
        self.now().config.clone()
    }

    /// Another configuration is in use, and these of the file's keys are not.
    pub fn reloaded(&self, config: Config, later: &[&str]) {
        let mut now = self.now();
        now.config = Arc::new(config);
        now.later = later.iter().map(ToString::to_string).collect();
        now.refused = None;
    }

    /// The file as it is now cannot be used.
    pub fn refused(&self, sentence: String) {
        self.now().refused = Some(sentence);
    }

    /// Which node this is. The service manager hears of it, and of what changes from now on.
    pub fn is_node(&self, id: &str) {
        let mut now = self.now();
        now.id = id.into();
        now.tell();
    }

    /// etcd answered, or did not for this reason.
    pub fn etcd(&self, reason: Option<String>) {
        let mut now = self.now();
        metrics::etcd_answers(reason.is_none());
        let (new, changed) = match (&now.etcd, reason) {
            (Answer::Away { since, .. }, None) => {
                tracing::info!("etcd answers again, after {:.1} s", since.elapsed().as_secs_f64());
                (Answer::Came(Instant::now()), true)
            }
            (Answer::Away { since, .. }, Some(reason)) => (Answer::Away { since: *since, reason }, false),
            (Answer::Came(_), None) => (Answer::Came(Instant::now()), false),
            (Answer::None, None) => (Answer::Came(Instant::now()), true),
            (before, Some(reason)) => {
                let stop = if reason.ends_with(['.', '?', '!']) { "" } else { "." };
                tracing::warn!("{reason}{stop} This node waits for it, and what runs here runs on");
                let since = if let Answer::Came(last) = before { *last } else { Instant::now() };
                (Answer::Away { since, reason }, true)
            }
        };
        now.etcd = new;
        if changed {
            now.tell();
        }
    }

    /// The node's lease is this one, and was asked for at that time of the machine.
    pub fn lease(&self, lease: Lease, asked: Duration) {
        let mut now = self.now();
        let changed = now.lease.is_none_or(|(before, _)| before.id != lease.id);
        now.lease = Some((lease, asked));
        if changed {
            now.tell();
        }
    }

    /// The node has no lease.
    pub fn lease_gone(&self) {
        let mut now = self.now();
        now.lease = None;
        now.tell();
    }

    /// What whoever asks is told.
    pub fn status(&self) -> Status {
        let now = self.now();
        let config = &now.config;
        Status {
            version: ft_wire::release().into(),
            pid: std::process::id(),
            up_ms: ms(self.began.elapsed()),
            node: config.node().into(),
            id: now.id.clone(),
            label: config.label().into(),
            host: config.host().into(),
            config: config.file.clone(),
            later: now.later.clone(),
            refused: now.refused.clone(),
            etcd: match &now.etcd {
                Answer::None => Etcd::Unasked,
                Answer::Came(last) => Etcd::Answers { ago_ms: ms(last.elapsed()) },
                Answer::Away { since, reason } => Etcd::Away { for_ms: ms(since.elapsed()), reason: reason.clone() },
            },
            lease: now.lease.map(|(lease, asked)| NodeLease {
                id: lease.id.0,
                left_ms: ms((asked + lease.ttl).saturating_sub(boot_time())),
                ttl_ms: ms(lease.ttl),
            }),
            jobs: jobs_at(&marks(config)),
        }
    }

    /// A job of this user's has a part here,
    /// whose agent may ask for its keys in etcd as long as it is there.
    pub fn job_begins(&self, job: &str, uid: u32) {
        let mut now = self.now();
        let marks = marks(&now.config);
        let lock = make_directory(&marks).map_err(|error| error.to_string());
        let lock = lock.and_then(|()| Lock::take(&marks.join(job)).map_err(|error| error.to_string()));
        let lock = lock.and_then(|lock| lock.note(&uid.to_string()).map(|()| lock).map_err(|error| error.to_string()));
        if let Err(error) = &lock {
            tracing::warn!(job, error, "the job will not be in the status, and its agent not be let in");
        }
        now.jobs.push((job.into(), lock.ok()));
    }

    /// It has none any more: one that begins now is another one. This process has still to do with it, until [`job_done`](Self::job_done).
    pub fn job_ended(&self, job: &str) {
        let mut now = self.now();
        let marks = marks(&now.config);
        if let Some((_, lock)) = now.jobs.iter_mut().find(|(other, lock)| other == job && lock.is_some()) {
            // Who locks a file that is gone takes another one.
            let _ = std::fs::remove_file(marks.join(job));
            *lock = None;
        }
    }

    /// Whether a part of it is here of which this process is the parent. Asked before the mark is: a process does not see its own lock there,
    /// and loses it when it has looked.
    pub fn has_part(&self, job: &str) -> bool {
        self.now().jobs.iter().any(|(other, lock)| other == job && lock.is_some())
    }

    /// Where jobs are noted for the next life of the machine.
    pub fn keeps(&self, roll: Roll) {
        let _ = self.roll.set(roll);
    }

    /// Nothing, where no etcd has records of jobs.
    pub fn roll(&self) -> Option<&Roll> {
        self.roll.get()
    }

    /// Nothing is left to do for it.
    pub fn job_done(&self, job: &str) {
        let mut now = self.now();
        if let Some(at) = now.jobs.iter().position(|(other, lock)| other == job && lock.is_none()) {
            now.jobs.remove(at);
        }
        self.ended.notify_waiters();
    }

    /// A process that has served a launcher, or a step's task, has ended.
    pub fn session_ends(&self) {
        self.sessions.notify_one();
    }

    /// Waits for the next such end, unless there was one since the last time.
    pub async fn session_over(&self) {
        self.sessions.notified().await;
    }

    /// Waits until no job has a part of this process's here.
    pub async fn no_job(&self) {
        loop {
            let ended = self.ended.notified();
            if self.now().jobs.is_empty() {
                return;
            }
            ended.await;
        }
    }
}

/// Where each job that has a part here has a file, which whoever is its parent holds locked.
fn marks(config: &Config) -> PathBuf {
    config.socket().with_file_name("jobs")
}

fn make_directory(path: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// A job's name, if it may be a file's.
pub fn file_name(job: &str) -> Option<&str> {
    let letters = job.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'));
    Some(job).filter(|job| letters && !job.is_empty() && !job.starts_with('.'))
}

/// The user of a job that has a part here.
pub fn user_of(config: &Config, job: &str) -> Option<u32> {
    lock::noted(&marks(config).join(file_name(job)?))?.parse().ok()
}

/// Where each job that was started from here has a file with the number of its `ftrun`.
fn launchers(config: &Config) -> PathBuf {
    config.socket().with_file_name("launchers")
}

/// That a job was started by a process here; as long as this lasts others may ask by which.
#[derive(Debug)]
pub struct Launched {
    path: PathBuf,
    _lock: Lock,
}

impl Launched {
    /// It was, by this one. Nothing where that cannot be written down: nobody will find the job by that number.
    pub fn note(config: &Config, job: &str, pid: i32) -> Option<Launched> {
        make_directory(&launchers(config)).ok()?;
        let path = launchers(config).join(file_name(job)?);
        let lock = Lock::take(&path).ok()?;
        lock.note(&pid.to_string()).ok()?;
        Some(Launched { path, _lock: lock })
    }

    /// The process that has started a job, if it is one of this machine.
    pub fn by(config: &Config, job: &str) -> Option<i32> {
        lock::noted(&launchers(config).join(file_name(job)?))?.parse().ok()
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The jobs that have a part here, and their users.
pub fn jobs_and_users(config: &Config) -> Vec<(String, u32)> {
    let jobs = jobs_at(&marks(config)).into_iter();
    jobs.filter_map(|job| user_of(config, &job).map(|uid| (job, uid))).collect()
}

/// The jobs whose files are locked.
fn jobs_at(marks: &Path) -> Vec<String> {
    let files = std::fs::read_dir(marks).into_iter().flatten().flatten().filter(|file| lock::is_taken(&file.path()));
    let mut jobs: Vec<String> = files.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
    jobs.sort();
    jobs
}

impl Now {
    /// Tells the service manager.
    fn tell(&self) {
        let etcd = match &self.etcd {
            Answer::None => "etcd was not asked yet",
            Answer::Came(_) => "etcd answers",
            Answer::Away { .. } => "etcd does not answer",
        };
        let lease = self.lease.map_or("no lease".into(), |(lease, _)| format!("lease {}", lease.id));
        service::status(&format!("node {}: {etcd}, {lease}", self.config.node()));
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
