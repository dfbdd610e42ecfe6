//! The launcher's part on this node: `ftrun`, started as the job's user with that user's environment, and a link to it.

use crate::agents;
use crate::birth::{self, Birth};
use crate::config::Config;
use crate::etcd::{self, Asked};
use crate::frames::{self, within};
use crate::home::Home;
use crate::records;
use crate::state::State;
use ft_store::Etcd;
use ft_sys::as_user::Credentials;
use ft_sys::timescale::scaled;
use ft_sys::wait::Status;
use ft_wire::part::{Begin, Image, PART, SWEEP, Share, Start, ToPart};
use ft_wire::{APART, Role, is_neighbour, step, version};
use ftd_core::NodeId;
use nix::unistd::{Gid, Uid, User, getgrouplist};
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

/// A part that has been started says soon that it is one, and who may have one there may be asked for elsewhere.
const BORN: Duration = Duration::from_secs(20);
/// What a part has left is removed within this time, or is left for the next one.
const SWEPT: Duration = Duration::from_secs(30);
/// Machines that start together may have to wait for etcd, which is on one of them.
const AGAIN: Duration = Duration::from_secs(30);
/// The nice value of the lowest priority. The highest that a rank has is the ordinary one, whatever the user may have elsewhere.
const LOWEST: i32 = 19;

/// What is around the part of a step of Slurm's.
pub struct Around {
    /// What the step's front is to hear of the node.
    pub node: Box<step::Node>,
    /// Where the step lives.
    pub home: Home,
    /// What is mounted there.
    pub mounts: OwnedFd,
}

/// Starts the part of a job on this node. Returns the link to it, on which its own words come next.
///
/// # Errors
/// One sentence.
pub async fn start(
    start: Start,
    image: &Image,
    state: &Arc<State>,
    around: Option<Around>,
) -> Result<UnixStream, String> {
    let config = state.config();
    if !is_neighbour(start.protocol) {
        let (ours, theirs, from) = (version(), start.protocol, start.from);
        return Err(format!(
            "node {}: its ftd speaks protocol {ours}, and what asks on {from} {theirs}, {APART}",
            config.node(),
        ));
    }
    if start.to != config.node() {
        return Err(format!("node {} is meant, and this is {}: who has that address?", start.to, config.node()));
    }
    if start.uid == 0 && !config.allows_root() {
        return Err(format!("node {}: root may not start jobs here (jobs.root in ftd.toml)", config.node()));
    }
    let credentials =
        credentials(start.uid, &start.user).await.map_err(|what| format!("node {}: {what}", config.node()))?;
    let failed = |error: std::io::Error| format!("node {}: ftrun cannot be started: {error}", config.node());
    let program = program("ftrun").map_err(|what| format!("node {}: {what}", config.node()))?;
    let (mine, theirs) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
    mine.set_nonblocking(true).map_err(failed)?;
    let mut link = UnixStream::from_std(mine).map_err(failed)?;
    let Start { share, from, uid, user, .. } = start;
    let (job, me) = (share.job.clone(), NodeId(share.me));
    let nice = config.agent_nice();
    let (node, home, mounts) = match around {
        None => (None, None, None),
        Some(Around { node, home, mounts }) => (Some(node), Some(home), Some(mounts)),
    };
    let (word, env) = (PART.to_string(), image.env.clone());
    let birth = Birth { program, word, job: job.clone(), user, credentials, nice, env, home };
    let pid = birth::start(&birth, theirs.as_fd(), mounts.as_ref().map(AsFd::as_fd)).map_err(failed)?;
    drop((theirs, mounts));
    tracing::info!(job, pid, uid, from, "a job begins here");
    state.job_begins(&job, uid);
    // Slurm kills all of a step at once, and with it who would have cleaned up.
    let sweeper = birth.home.is_some().then(|| Birth { word: SWEEP.into(), home: None, ..birth });
    tokio::spawn(bury(pid, (job, me), sweeper, state.clone()));
    let first = first_word(&config, share, image, node);
    let begin = async {
        frames::greet(&mut link).await?;
        frames::greeted(&mut link, Role::Launcher).await?;
        frames::send(&mut link, &first).await
    };
    match within(BORN, begin).await {
        Ok(()) => Ok(link),
        Err(error) => Err(format!("node {}: ftrun was started there, and then: {error}", config.node())),
    }
}

/// What a part is told at first.
fn first_word(config: &Config, share: Share, image: &Image, node: Option<Box<step::Node>>) -> ToPart {
    let Image { words, cwd, umask, limits, nice, .. } = image;
    let begin = Box::new(Begin {
        node: config.node().into(),
        store: agents::socket(&config.socket()),
        share,
        words: words.clone(),
        cwd: cwd.clone(),
        umask: *umask,
        limits: *limits,
        nice: (*nice).clamp(0, LOWEST),
        copy_rate: config.copy_rate(),
        fabric: config.fabric(),
    });
    match node {
        None => ToPart::Begin(begin),
        Some(node) => ToPart::BeginStep { begin, node },
    }
}

/// A program as it was installed with this daemon.
///
/// # Errors
/// One sentence: it is not there.
pub fn program(name: &str) -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| format!("where ftd lies cannot be read: {error}"))?;
    let program = own.with_file_name(name);
    if program.is_file() {
        Ok(program)
    } else {
        Err(format!("{} is missing: install all of ftd there", program.display()))
    }
}

/// Whom a user's processes run as here. `None`: as this daemon does, which can change nothing of that.
///
/// # Errors
/// One sentence: there is no such user here, or this daemon cannot be him.
pub async fn credentials(uid: u32, name: &str) -> Result<Option<Credentials>, String> {
    if !nix::unistd::geteuid().is_root() {
        let own = nix::unistd::geteuid().as_raw();
        return match own == uid {
            true => Ok(None),
            false => Err(format!("ftd runs as user {own} there, not as root, and can start jobs of no other user")),
        };
    }
    let name = name.to_string();
    // It may ask servers that do not answer at once.
    let found = tokio::task::spawn_blocking(move || look_up(uid, &name)).await;
    found.map_err(|error| error.to_string())?.map(Some)
}

fn look_up(uid: u32, name: &str) -> Result<Credentials, String> {
    let user = match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) if user.name == name => user,
        Ok(Some(other)) => {
            return Err(format!("user {uid} is {name} where the job was started, and {} there", other.name));
        }
        Ok(None) => return Err(format!("there is no user {uid} ({name})")),
        Err(error) => return Err(format!("who user {uid} is cannot be found out: {error}")),
    };
    let wrong = |error: String| format!("the groups of {name} cannot be found out: {error}");
    let name = CString::new(name).map_err(|error| wrong(error.to_string()))?;
    let groups = getgrouplist(&name, user.gid).map_err(|error| wrong(error.to_string()))?;
    Ok(Credentials { uid, gid: user.gid.as_raw(), groups: groups.into_iter().map(Gid::as_raw).collect() })
}

/// The user's name on this node.
///
/// # Errors
/// One sentence.
pub async fn name_of(uid: u32) -> Result<String, String> {
    let found = tokio::task::spawn_blocking(move || User::from_uid(Uid::from_raw(uid))).await;
    match found.map_err(|error| error.to_string())? {
        Ok(Some(user)) => Ok(user.name),
        Ok(None) => Err(format!("this node knows no user {uid}")),
        Err(error) => Err(format!("who user {uid} is cannot be found out: {error}")),
    }
}

/// Waits for a part's end.
async fn bury(pid: i32, (job, me): (String, NodeId), sweeper: Option<Birth>, state: Arc<State>) {
    let Ok(mut ends) = signal(SignalKind::child()) else { return };
    // Where the disk stands still nobody else waits for it.
    let noted = tokio::spawn(note(job.clone(), me, state.clone()));
    let status = ended(pid, &mut ends).await;
    let how = match status.map(|status| (status.code(), status.signal())) {
        Some((Some(code), _)) => format!("status {code}"),
        Some((_, Some(signal))) => format!("signal {signal}"),
        _ => "unknown".into(),
    };
    tracing::info!(job, pid, how, "a job has ended here");
    if let Some(sweeper) = sweeper.filter(|_| status.is_none_or(|status| status.as_raw() != 0)) {
        sweep(&sweeper, &mut ends).await;
    }
    // A node that comes back has another part of this job soon.
    state.job_ended(&job);
    // Where etcd is away the next life of the machine asks again.
    let let_go = async {
        match etcd::now_and_then(&state) {
            Ok(etcd) => records::let_go(&state, &etcd, &job, me).await,
            // It was said when this began.
            Err(_) => true,
        }
    };
    if let_go.await {
        let _ = noted.await;
        strike(job.clone(), me, state.clone()).await;
    }
    state.job_done(&job);
}

/// Notes the part where it is found after a loss of power.
async fn note(job: String, me: NodeId, state: Arc<State>) {
    let name = job.clone();
    let noted = tokio::task::spawn_blocking(move || state.roll().map_or(Ok(()), |roll| roll.enter(&name, me))).await;
    if let Ok(Err(error)) = noted {
        tracing::warn!(%error, job, "should the machine lose its power the job's record may stay in etcd");
    }
}

/// That part was seen to.
async fn strike(job: String, me: NodeId, state: Arc<State>) {
    let struck = move || state.roll().into_iter().for_each(|roll| roll.strike(&job, me));
    let _ = tokio::task::spawn_blocking(struck).await;
}

/// Sees to what the parts have left in etcd that were here when the machine went down.
pub async fn bury_all(state: Arc<State>, etcd: Asked<Etcd>) {
    let Some(roll) = state.roll() else { return };
    for (job, me) in roll.of_other_lives() {
        tracing::info!(job, "the machine has started anew since a part of this job was here");
        let (state, etcd) = (state.clone(), etcd.clone());
        tokio::spawn(async move {
            while !records::let_go(&state, &etcd, &job, me).await {
                tokio::time::sleep(scaled(AGAIN)).await;
            }
            strike(job, me, state).await;
        });
    }
    tracing::info!("the jobs that this node had parts of are looked through");
}

/// Waits for the end of a process that this one has started.
pub async fn ended(pid: i32, ends: &mut Signal) -> Option<Status> {
    loop {
        match ft_sys::wait::look_for(pid) {
            Ok(None) => drop(ends.recv().await),
            Ok(status) => return status,
            Err(_) => return None,
        }
    }
}

/// Removes what a part has left that was killed.
async fn sweep(sweeper: &Birth, ends: &mut Signal) {
    let started =
        std::os::unix::net::UnixStream::pair().and_then(|(_mine, theirs)| birth::start(sweeper, theirs.as_fd(), None));
    match started {
        Ok(pid) => drop(timeout(SWEPT, ended(pid, ends)).await),
        Err(error) => tracing::warn!(%error, job = sweeper.job, "what a job has left could not be removed"),
    }
}
