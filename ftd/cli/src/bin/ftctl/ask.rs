//! One question to a job's agent.

use crate::daemon::{self, DaemonError};
use crate::find::{Found, Way};
use ft_sys::channel::{Channel, ChannelError};
use ft_wire::Role;
use ft_wire::ask::{FromAgent, Job, ToAgent};
use std::time::Duration;

/// An agent that is there answers at once; one that has died is replaced within that time.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// None came.
    #[error("{who} does not answer: {error}")]
    Silent {
        /// Whose.
        who: String,
        /// What came instead.
        error: ChannelError,
    },
    /// There is no way to it.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// It refuses.
    #[error("{0}")]
    Refused(String),
    /// It is another user's.
    #[error("{0} is another user's than the one whose job it is said to be: it is not asked")]
    Foreign(String),
    /// It says something else.
    #[error("{0} does not answer what was asked")]
    Confused(String),
}

fn silent(found: &Found) -> impl Fn(ChannelError) -> AskError {
    let who = found.to_string();
    move |error| AskError::Silent { who: who.clone(), error }
}

/// Asks, and leaves the answers to [`next`].
///
/// # Errors
/// [`AskError`].
pub fn ask(found: &Found, question: &ToAgent) -> Result<Channel, AskError> {
    let mut link = match &found.way {
        Way::Here(socket) => {
            let link = Channel::dial(socket, Role::Asker, PATIENCE).map_err(silent(found))?;
            // Who has bound the socket: somebody else's would tell root what he likes.
            let owner = ft_sys::peer::Peer::of(&link).map(|peer| peer.uid).ok();
            if owner != Some(found.uid) {
                return Err(AskError::Foreign(found.to_string()));
            }
            link
        }
        Way::Elsewhere(running) => {
            let mut link = Channel::from_stream(daemon::agent(running)?);
            link.exchange(Role::Asker, PATIENCE).map_err(silent(found))?;
            link
        }
    };
    link.send(question, &[]).map_err(silent(found))?;
    Ok(link)
}

/// The next answer; nothing when the agent is gone. `waits`: for as long as it takes.
///
/// # Errors
/// [`AskError`].
pub fn next(link: &mut Channel, found: &Found, waits: bool) -> Result<Option<FromAgent>, AskError> {
    match link.receive(if waits { None } else { Some(PATIENCE) }) {
        Ok((answer, _)) => Ok(Some(answer)),
        Err(ChannelError::Closed) => Ok(None),
        Err(error) => Err(silent(found)(error)),
    }
}

/// The job, as its agent knows it.
///
/// # Errors
/// [`AskError`].
pub fn job(found: &Found) -> Result<Job, AskError> {
    match next(&mut ask(found, &ToAgent::Show)?, found, false)? {
        Some(FromAgent::Job(job)) => Ok(*job),
        Some(FromAgent::Refused(sentence)) => Err(AskError::Refused(sentence)),
        _ => Err(AskError::Confused(found.to_string())),
    }
}

/// Has something done. Returns what is to be known of that.
///
/// # Errors
/// [`AskError`].
pub fn noted(found: &Found, question: &ToAgent) -> Result<String, AskError> {
    match next(&mut ask(found, question)?, found, false)? {
        Some(FromAgent::Noted(sentence)) => Ok(sentence),
        Some(FromAgent::Refused(sentence)) => Err(AskError::Refused(sentence)),
        _ => Err(AskError::Confused(found.to_string())),
    }
}
