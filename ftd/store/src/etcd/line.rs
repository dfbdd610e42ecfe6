//! The one connection to etcd: to one member at a time, and to the next one when that does not serve.

use super::answer;
use super::options::{EtcdOptions, Login, Member};
use crate::StoreError;
use crate::error::Trouble;
use etcd_client::{Channel, Client, ConnectOptions};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

/// Between two rounds through all members.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Line {
    members: Vec<Member>,
    login: Option<Login>,
    attempt: Duration,
    now: Mutex<Now>,
    /// Who holds it connects, the others wait for that.
    connecting: tokio::sync::Mutex<()>,
    moved: watch::Sender<u64>,
    /// The last generation whose member does not serve.
    given_up: watch::Sender<Option<u64>>,
}

struct Now {
    /// The member in use, or the next one to be tried.
    at: usize,
    /// Counts the connections that were given up.
    generation: u64,
    client: Option<Client>,
}

/// A connection, for as long as nobody gives it up.
#[derive(Clone)]
pub(super) struct Connected {
    pub client: Client,
    pub generation: u64,
    pub endpoint: String,
}

/// What came of the members that were tried; the last word of each.
#[derive(Debug, Default)]
pub(super) struct Tried(Vec<Trouble>);

impl Tried {
    pub fn note(&mut self, endpoint: &str, reason: String, lasting: bool) {
        self.0.retain(|trouble| trouble.endpoint != endpoint);
        self.0.push(Trouble { endpoint: endpoint.into(), reason, lasting });
    }

    /// There was no time to hear what it says. What it said before is worth more.
    fn note_cut_short(&mut self, endpoint: &str) {
        if !self.0.iter().any(|trouble| trouble.endpoint == endpoint) {
            self.note(endpoint, "no connection in time".into(), false);
        }
    }

    /// Every member was tried, and asking once more will not help with any.
    fn is_hopeless(&self, members: usize) -> bool {
        self.0.len() >= members && self.0.iter().all(|trouble| trouble.lasting)
    }
}

impl Line {
    pub fn new(options: &EtcdOptions) -> Result<Line, StoreError> {
        Ok(Line {
            members: options.members()?,
            login: options.login.clone(),
            attempt: options.attempt,
            now: Mutex::new(Now { at: 0, generation: 0, client: None }),
            connecting: tokio::sync::Mutex::new(()),
            moved: watch::Sender::new(0),
            given_up: watch::Sender::new(None),
        })
    }

    /// How long one member may take.
    pub fn attempt(&self) -> Duration {
        self.attempt
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self) -> (usize, u64) {
        let now = self.now();
        (now.at, now.generation)
    }

    fn current(&self) -> Option<Connected> {
        let now = self.now();
        let client = now.client.clone()?;
        Some(Connected { client, generation: now.generation, endpoint: self.members[now.at].name.clone() })
    }

    /// The connection, made anew if there is none; nothing when the time is over or no member will have it.
    pub async fn connected(&self, tried: &mut Tried, until: Instant) -> Option<Connected> {
        if let Some(connected) = self.current() {
            return (Instant::now() < until).then_some(connected);
        }
        let _alone = timeout_at(until, self.connecting.lock()).await.ok()?;
        for failed in 1.. {
            if let Some(connected) = self.current() {
                return Some(connected);
            }
            let (at, generation) = self.place();
            let member = &self.members[at];
            let short = until.min(Instant::now() + self.attempt);
            match timeout_at(short, self.connect(member)).await {
                Ok(Ok(client)) => {
                    self.now().client = Some(client);
                    continue;
                }
                Ok(Err((reason, lasting))) => tried.note(&member.name, reason, lasting),
                Err(_) => tried.note_cut_short(&member.name),
            }
            self.give_up(generation);
            if tried.is_hopeless(self.members.len()) {
                return None;
            }
            if failed % self.members.len() == 0 {
                sleep(PAUSE.min(until - Instant::now())).await;
            }
            if Instant::now() >= until {
                return None;
            }
        }
        None
    }

    /// A connection to a member that answers, knows who this is, and sees a leader.
    async fn connect(&self, member: &Member) -> Result<Client, (String, bool)> {
        let trouble = |error: etcd_client::Error| (answer::reason(&error), answer::is_lasting(&error));
        let channel = member.endpoint.connect().await.map_err(|error| trouble(error.into()))?;
        // A member that is cut off from the others says so at once, instead of keeping who asks until it gives up. What it is asked is
        // not repeated by the client: the token is renewed here and nowhere else.
        let mut options = ConnectOptions::new().with_require_leader(true).with_auto_token_refresh(false);
        if let Some(login) = &self.login {
            options = options.with_user(&login.user, &login.password);
        }
        let mut client = Client::from_channel(Channel::Tonic(channel), Some(options)).await.map_err(trouble)?;
        let status = client.status().await.map_err(trouble)?;
        if status.leader() == 0 {
            return Err(("it knows no leader".into(), false));
        }
        Ok(client)
    }

    /// This connection does not serve: whoever asks next asks the next member.
    pub fn give_up(&self, generation: u64) {
        if self.leave(generation, 1) {
            self.given_up.send_replace(Some(generation));
        }
    }

    /// This connection must be made anew, to the same member.
    pub fn renew(&self, generation: u64) {
        let _ = self.leave(generation, 0);
    }

    fn leave(&self, generation: u64, forward: usize) -> bool {
        let mut now = self.now();
        if now.generation != generation {
            return false;
        }
        now.at = (now.at + forward) % self.members.len();
        now.generation += 1;
        now.client = None;
        self.moved.send_replace(now.generation);
        true
    }

    /// Waits until the member of this connection has not served somebody. One that is made anew to the same member may still bring
    /// the answer.
    pub async fn given_up(&self, generation: u64) {
        // The sender is this line's own.
        let _ = self.given_up.subscribe().wait_for(|last| last.is_some_and(|last| last >= generation)).await;
    }

    /// Waits until this connection is given up.
    pub async fn left(&self, generation: u64) {
        // The sender is this line's own.
        let _ = self.moved.subscribe().wait_for(|now| *now != generation).await;
    }

    /// The error when nobody did what was asked.
    pub fn failed(&self, what: String, within: Duration, tried: Tried) -> StoreError {
        if tried.is_hopeless(self.members.len()) {
            StoreError::Refused { what, by: tried.0 }
        } else {
            StoreError::Unanswered { what, within, tried: tried.0 }
        }
    }
}
