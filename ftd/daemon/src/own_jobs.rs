//! What is asked here of this node's jobs, by a user on another node or on this one: which there are, and a way to the agent of one. Who asks
//! is believed to be who the daemon there says, as where it starts a part, and nothing is done as anybody else: who looks for the agent, and
//! dials it, is a process of that user's, so the agent itself says who may ask it.

use crate::askers::Asker;
use crate::birth::{self, Birth};
use crate::frames::{self, Stream, within};
use crate::link;
use crate::parts;
use crate::state::{self, State};
use crate::succession::OnlyOne;
use crate::watch::Pulse;
use ft_sys::channel::{Channel, ChannelError};
use ft_sys::peer::Peer;
use ft_wire::part::{About, FromPart, FromPeer, Question, ToPart, WAY};
use ft_wire::{APART, Role, is_neighbour, version};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as Link;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

/// Who looks for an agent has found it within this time, also one that was just replaced.
const FOUND: Duration = Duration::from_secs(8);
/// What is said takes no longer.
const SAID: Duration = Duration::from_secs(5);
/// Who has found an agent, or not, ends.
const ENDS: Duration = Duration::from_secs(1);

/// Answers another node's daemon.
pub async fn answer(mut stream: Box<dyn Stream>, question: Question, state: &Arc<State>) {
    let (from, window) = (question.from.clone(), question.window);
    let (word, agent) = match reply(question, state).await {
        Ok(Reply::Jobs(jobs)) => (FromPeer::Jobs(jobs), None),
        Ok(Reply::Agent(agent, asker)) => (FromPeer::Here, Some((agent, asker))),
        Err(sentence) => (FromPeer::Refused(sentence), None),
    };
    let mut ended = within(SAID, frames::send(&mut stream, &word)).await;
    if let (Ok(()), Some((agent, _asker))) = (&ended, agent) {
        ended = link::carry(stream, agent, window, Pulse::Answers, &mut OnlyOne).await;
    }
    tracing::debug!(from, ?ended, "a question from another node has been answered");
}

enum Reply {
    Jobs(Vec<(String, u32)>),
    Agent(UnixStream, Option<Asker>),
}

async fn reply(question: Question, state: &Arc<State>) -> Result<Reply, String> {
    let config = state.config();
    let name = config.node();
    let Question { protocol, from, to, uid, user, about, .. } = question;
    if !is_neighbour(protocol) {
        let ours = version();
        return Err(format!("node {name}: its ftd speaks protocol {ours}, and {from}'s {protocol}, {APART}"));
    }
    if to != name {
        return Err(format!("node {to} is meant, and this is {name}: who has that address?"));
    }
    // Of who is nobody here, or somebody else, there are no jobs.
    if parts::name_of(uid).await.is_ok_and(|own| own != user) {
        return Err(format!("node {name}: user {uid} is {user} on {from}, and somebody else there"));
    }
    match about {
        About::Jobs => Ok(Reply::Jobs(jobs(state, uid))),
        About::Agent { job, memory } => {
            let asker = Asker::enter(&config, uid).await.map_err(|what| format!("node {name}: {what}"))?;
            agent(state, uid, &job, memory).await.map(|agent| Reply::Agent(agent, asker))
        }
    }
}

/// The jobs that this user may see.
pub fn jobs(state: &State, uid: u32) -> Vec<(String, u32)> {
    let mut jobs = state::jobs_and_users(&state.config());
    jobs.retain(|(_, owner)| uid == 0 || *owner == uid);
    jobs
}

/// A connection to the agent of a job of this user's, on which nothing was said yet.
///
/// # Errors
/// One sentence.
pub async fn agent(state: &State, uid: u32, job: &str, memory: PathBuf) -> Result<UnixStream, String> {
    let config = state.config();
    let node = config.node();
    // Another user's is as good as none.
    let Some(owner) = state::user_of(&config, job).filter(|owner| uid == 0 || *owner == uid) else {
        return Err(format!("no job {} of this user has a part on node {node}", job.escape_debug()));
    };
    let failed = |what: &str| format!("node {node}: the agent of job {job} cannot be asked: {what}");
    let user = parts::name_of(uid).await.map_err(|what| failed(&what))?;
    // Root may be nobody else here.
    let credentials =
        if uid == 0 { None } else { parts::credentials(uid, &user).await.map_err(|what| failed(&what))? };
    let program = parts::program("ftctl").map_err(|what| failed(&what))?;
    let birth =
        Birth { program, word: WAY.into(), job: job.into(), user, credentials, nice: 0, env: Vec::new(), home: None };
    let (mine, theirs) = Link::pair().map_err(|error| failed(&error.to_string()))?;
    let pid = birth::start(&birth, theirs.as_fd(), None).map_err(|error| failed(&error.to_string()))?;
    drop(theirs);
    let find = ToPart::Find { job: job.into(), owner, memory };
    let found = tokio::task::spawn_blocking(move || ask(mine, &find)).await;
    bury(pid).await;
    let agent = match found.map_err(|error| failed(&error.to_string()))? {
        Ok(Found::Agent(agent)) => agent,
        Ok(Found::Refused(sentence)) => return Err(failed(&sentence)),
        Err(error) => return Err(failed(&format!("who looks for it says nothing: {error}"))),
    };
    let agent = Link::from(agent);
    // Whoever has found it may be root, and led to somebody who only says that he is the job's.
    if Peer::of(&agent).map(|peer| peer.uid).ok() != Some(owner) {
        return Err(failed("another user listens there"));
    }
    let stream = agent.set_nonblocking(true).and_then(|()| UnixStream::from_std(agent));
    stream.map_err(|error| failed(&error.to_string()))
}

enum Found {
    Agent(OwnedFd),
    Refused(String),
}

fn ask(link: Link, find: &ToPart) -> Result<Found, ChannelError> {
    let mut channel = Channel::from_stream(link);
    let until = Instant::now() + FOUND;
    channel.exchange(Role::Daemon, FOUND)?;
    channel.send(find, &[])?;
    match channel.receive(Some(until.saturating_duration_since(Instant::now())))? {
        (FromPart::Here, mut fds) if fds.len() == 1 => Ok(Found::Agent(fds.remove(0))),
        (FromPart::Refused { sentence, .. }, _) => Ok(Found::Refused(sentence)),
        _ => Err(ChannelError::Closed),
    }
}

/// Waits for the end of who has looked for an agent. Its user may have stopped it.
async fn bury(pid: i32) {
    let Ok(mut ends) = signal(SignalKind::child()) else { return };
    if timeout(ENDS, parts::ended(pid, &mut ends)).await.is_err() {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        let _ = timeout(ENDS, parts::ended(pid, &mut ends)).await;
    }
}
