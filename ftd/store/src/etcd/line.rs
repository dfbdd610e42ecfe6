//! The one connection to etcd: to one member at a time, and to the next one when that does not serve. All who ask share it, those with little
//! time and those with much: so it is made by a task of its own, for which each waits as long as it can.

mod doubt;

use super::answer;
use super::options::{EtcdOptions, Login, Member};
use crate::StoreError;
use crate::error::Trouble;
use etcd_client::{Channel, Client, ConnectOptions};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Between two rounds through all members.
const PAUSE: Duration = Duration::from_millis(100);
/// A member that has not let this node in by then is not alone waited for, whatever it may take.
const LONG: Duration = Duration::from_secs(1);
/// A member that was given up is for so long none of those that are tried beside another one.
const SHUNNED: Duration = Duration::from_secs(10);

pub(super) struct Line {
    members: Vec<Member>,
    login: Option<Login>,
    attempt: Duration,
    idle: Option<Duration>,
    now: Mutex<Now>,
    moved: watch::Sender<u64>,
    /// Where connections live, whoever asks for one: nobody else's work holds up what comes on them.
    runtime: Option<Handle>,
}

struct Now {
    /// The member in use, or the next one to be tried.
    at: usize,
    /// Counts the connections that were given up.
    generation: u64,
    client: Option<Client>,
    /// What will come of the attempt to connect that is under way.
    attempt: Option<watch::Receiver<Option<Outcome>>>,
    /// Members that would not have this one since the last that did.
    failed: usize,
    /// The member that was given up last, and when.
    left: Option<(usize, Instant)>,
    /// When somebody asked last.
    asked: Instant,
    /// Whether it serves is being looked at.
    look: Option<doubt::Look>,
    /// When it was found to serve, the last time that somebody doubted it.
    proved: Option<Instant>,
}

/// What came of an attempt to connect; if nothing did: why, and whether it will be so again.
type Outcome = Result<(), (String, bool)>;

/// An attempt to connect to the member of this name.
type Attempt = (String, watch::Receiver<Option<Outcome>>);

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

fn trouble(error: etcd_client::Error) -> (String, bool) {
    (answer::reason(&error), answer::is_lasting(&error))
}

impl Line {
    pub fn new(options: &EtcdOptions) -> Result<Line, StoreError> {
        let now = Now {
            at: 0,
            generation: 0,
            client: None,
            attempt: None,
            failed: 0,
            left: None,
            asked: Instant::now(),
            look: None,
            proved: None,
        };
        Ok(Line {
            members: options.members()?,
            login: options.login.clone(),
            attempt: options.attempt,
            idle: options.idle,
            now: Mutex::new(now),
            moved: watch::Sender::new(0),
            runtime: Handle::try_current().ok(),
        })
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, made anew if there is none; nothing when the time is over or no member will have it.
    pub async fn connected(self: &Arc<Self>, tried: &mut Tried, until: Instant) -> Option<Connected> {
        loop {
            if Instant::now() >= until {
                return None;
            }
            let (name, mut attempt) = match self.there() {
                Ok(connected) => return Some(connected),
                Err(attempt) => attempt,
            };
            // Who runs out of time leaves: the attempt goes on, for the others and for who asks next.
            match timeout_at(until, attempt.wait_for(Option::is_some)).await.map(|came| came.map(|come| come.clone())) {
                Ok(Ok(Some(Err((reason, lasting))))) => tried.note(&name, reason, lasting),
                Ok(Ok(_)) => {}
                // Whoever was to connect has ended with its runtime.
                Ok(Err(_)) => sleep(PAUSE).await,
                Err(_) => tried.note_cut_short(&name),
            }
            if tried.is_hopeless(self.members.len()) {
                return None;
            }
        }
    }

    /// The connection, or else the attempt to make it, which begins now if none is under way.
    fn there(self: &Arc<Self>) -> Result<Connected, Attempt> {
        let mut now = self.now();
        now.asked = Instant::now();
        let name = self.members[now.at].name.clone();
        if let Some(client) = now.client.clone() {
            return Ok(Connected { client, generation: now.generation, endpoint: name });
        }
        let under_way = now.attempt.clone().filter(|attempt| attempt.has_changed().is_ok());
        let attempt = under_way.unwrap_or_else(|| {
            let (say, attempt) = watch::channel(None);
            let round = now.failed > 0 && now.failed.is_multiple_of(self.members.len());
            let task = self.clone().make(now.at, round, say);
            drop(self.runtime.clone().unwrap_or_else(Handle::current).spawn(task));
            now.attempt = Some(attempt.clone());
            attempt
        });
        Err((name, attempt))
    }

    /// Connects, with the patience of whom this line is for, whoever waits and for how long.
    async fn make(self: Arc<Self>, at: usize, round: bool, say: watch::Sender<Option<Outcome>>) {
        if round {
            sleep(PAUSE).await;
        }
        let first = timeout(self.attempt, self.connect(&self.members[at]));
        let (at, made) = tokio::select! {
            made = first => (at, made.unwrap_or_else(|_| Err(("no connection in time".into(), false)))),
            Some((other, client)) = self.sooner(at) => (other, Ok(client)),
        };
        let outcome = made.as_ref().map(drop).map_err(Clone::clone);
        let generation = {
            let mut now = self.now();
            now.attempt = None;
            match made {
                Ok(client) => (now.at, now.client, now.failed) = (at, Some(client), 0),
                Err(_) => (now.at, now.failed) = ((at + 1) % self.members.len(), now.failed + 1),
            }
            now.generation
        };
        say.send_replace(Some(outcome));
        drop(say);
        if let Some(idle) = self.idle {
            self.leave_when_idle(generation, idle).await;
        }
    }

    /// One of the other members, where that one takes long; the first that lets this node in.
    async fn sooner(self: &Arc<Self>, at: usize) -> Option<(usize, Client)> {
        sleep(LONG).await;
        let mut others = JoinSet::new();
        for other in self.beside(at) {
            let line = self.clone();
            others.spawn(async move {
                let made = timeout(line.attempt, line.connect(&line.members[other])).await;
                made.ok().and_then(Result::ok).map(|client| (other, client))
            });
        }
        while let Some(ended) = others.join_next().await {
            if let Ok(Some(made)) = ended {
                return Some(made);
            }
        }
        None
    }

    /// The members beside this one, the next one first, but for the one that did not serve a moment ago, whatever it lets in and answers.
    fn beside(&self, at: usize) -> Vec<usize> {
        let count = self.members.len();
        let left = self.now().left.filter(|(_, when)| when.elapsed() < SHUNNED).map(|(member, _)| member);
        (1..count).map(|after| (at + after) % count).filter(|member| Some(*member) != left).collect()
    }

    /// Whether this is the connection still.
    pub fn is_current(&self, generation: u64) -> bool {
        self.now().generation == generation
    }

    /// Gives the connection up when nobody has asked for so long.
    async fn leave_when_idle(&self, generation: u64, idle: Duration) {
        loop {
            let rest = {
                let now = self.now();
                if now.generation != generation || now.client.is_none() {
                    return;
                }
                (now.asked + idle).saturating_duration_since(Instant::now())
            };
            if rest.is_zero() {
                return self.renew(generation);
            }
            sleep(rest).await;
        }
    }

    /// A connection to a member that answers, knows who this is, and sees a leader.
    async fn connect(&self, member: &Member) -> Result<Client, (String, bool)> {
        let mut client = self.dial(member).await?;
        let status = client.status().await.map_err(trouble)?;
        if status.leader() == 0 {
            return Err(("it knows no leader".into(), false));
        }
        Ok(client)
    }

    /// A connection to a member that knows who this is.
    async fn dial(&self, member: &Member) -> Result<Client, (String, bool)> {
        let channel = member.endpoint.connect().await.map_err(|error| trouble(error.into()))?;
        // A member that is cut off from the others says so at once, instead of keeping who asks until it gives up. What it is asked is
        // not repeated by the client: the token is renewed here and nowhere else.
        let mut options = ConnectOptions::new().with_require_leader(true).with_auto_token_refresh(false);
        if let Some(login) = &self.login {
            options = options.with_user(&login.user, &login.password);
        }
        Client::from_channel(Channel::Tonic(channel), Some(options)).await.map_err(trouble)
    }

    /// This connection does not serve: whoever asks next asks the next member. What is under way on it goes on: it may be answered still.
    pub fn give_up(&self, generation: u64) {
        self.leave(generation, 1);
    }

    /// This connection must be made anew, to the same member.
    pub fn renew(&self, generation: u64) {
        self.leave(generation, 0);
    }

    fn leave(&self, generation: u64, forward: usize) {
        let mut now = self.now();
        if now.generation == generation {
            if forward > 0 {
                now.left = Some((now.at, Instant::now()));
            }
            now.at = (now.at + forward) % self.members.len();
            now.generation += 1;
            (now.client, now.proved) = (None, None);
            self.moved.send_replace(now.generation);
        }
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
