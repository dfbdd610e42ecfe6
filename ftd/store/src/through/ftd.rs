//! The end of a connection that asks: `ftd`'s socket, dialled again when it breaks.

use super::Answers;
use super::watch::FtdWatch;
use super::wire::{
    Answer, Broken, Copied, End, Failure, FromFtd, Hello, OLDEST, Question, ToFtd, VERSION, Welcome, common, receive,
};
use crate::error::Trouble;
use crate::store::{Change, Scope};
use ft_wire::{MAX_BODY, PREAMBLE_LEN, Preamble, Role};
use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};

/// Of the time of a question, so much is for the way of the answer.
const WAY: u32 = 8;
/// One that is there lets its agents in within this time.
const DIAL: Duration = Duration::from_secs(2);

/// The store of the node's `ftd`. It answers at once when there is none; with somebody else to ask nobody waits for that.
#[derive(Clone)]
pub struct Ftd {
    line: Arc<Line>,
}

struct Line {
    path: PathBuf,
    job: String,
    /// Only one dials at a time.
    connection: tokio::sync::Mutex<Option<Arc<Connection>>>,
}

/// A connection, until it breaks or this is dropped.
pub(super) struct Connection {
    out: UnboundedSender<ToFtd>,
    waiting: Arc<Mutex<Waiting>>,
    task: AbortHandle,
}

/// What a watch is told.
pub(super) enum Told {
    Changed(Vec<Change>),
    Ended(End),
}

/// Who waits for what. Nobody waits any more when it is dropped or cleared, and hears that.
#[derive(Default)]
struct Waiting {
    over: bool,
    last: u64,
    answers: HashMap<u64, oneshot::Sender<Answer>>,
    watches: HashMap<u64, UnboundedSender<Told>>,
}

impl fmt::Debug for Ftd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ftd({}, {})", self.line.path.display(), self.line.job)
    }
}

impl Ftd {
    /// `path`: its socket for jobs; `job`: for which it is asked. Nothing is connected yet.
    pub fn new(path: PathBuf, job: String) -> Ftd {
        Ftd { line: Arc::new(Line { path, job, connection: tokio::sync::Mutex::new(None) }) }
    }

    /// Whom messages name.
    pub fn name(&self) -> String {
        self.line.path.display().to_string()
    }

    /// The connection, dialled anew where there is none.
    pub(super) async fn connected(&self) -> Result<Arc<Connection>, Broken> {
        let mut there = self.line.connection.lock().await;
        if let Some(connection) = there.as_ref().filter(|connection| !connection.is_over()) {
            return Ok(connection.clone());
        }
        let connection = Arc::new(timeout(DIAL, self.dial()).await.unwrap_or(Err(Broken::Idle(DIAL)))?);
        *there = Some(connection.clone());
        Ok(connection)
    }

    async fn dial(&self) -> Result<Connection, Broken> {
        let mut version = VERSION;
        loop {
            let (stream, welcome) = self.introduce(version).await?;
            match welcome {
                Welcome::Served => return Ok(Connection::over(stream)),
                Welcome::Refused(sentence) => return Err(Broken::Refused(sentence)),
                Welcome::Speaks { oldest, newest } => {
                    match common(OLDEST..=VERSION, oldest..=newest).filter(|both| *both < version) {
                        Some(both) => version = both,
                        None => return Err(Broken::Version { theirs: newest }),
                    }
                }
            }
        }
    }

    /// Says who asks, in this version; how that is answered.
    async fn introduce(&self, version: u32) -> Result<(UnixStream, Welcome), Broken> {
        let mut stream = UnixStream::connect(&self.line.path).await.map_err(Broken::Io)?;
        let hello = Hello { version, job: self.line.job.clone() };
        stream.write_all(&Preamble::ours(Role::Agent).to_bytes()).await?;
        stream.write_all(&ft_wire::encode(&hello, 0)?).await?;
        let mut preamble = [0; PREAMBLE_LEN];
        stream.read_exact(&mut preamble).await?;
        match Preamble::of_any_release(&preamble)?.role {
            Role::Daemon => {}
            other => return Err(Broken::Role(other)),
        }
        let welcome = receive(&mut stream, MAX_BODY).await?;
        Ok((stream, welcome))
    }

    /// Says what was copied, if there is a connection; whether it was said.
    pub fn tell(&self, copied: Copied) -> bool {
        let Ok(there) = self.line.connection.try_lock() else { return false };
        let open = there.as_ref().filter(|connection| !connection.is_over());
        open.is_some_and(|connection| connection.out.send(ToFtd::Copied(copied)).is_ok())
    }

    /// There is no way to it now. Nothing was asked.
    fn away(&self, broken: &Broken) -> Failure {
        let lasting = matches!(broken, Broken::Refused(_) | Broken::Role(_) | Broken::Version { .. });
        let by = vec![Trouble { endpoint: self.name(), reason: broken.to_string(), lasting }];
        if lasting { Failure::Refused(by) } else { Failure::Unanswered(by) }
    }
}

impl Answers for Ftd {
    type Watch = FtdWatch;

    async fn answer(&self, question: Question, within: Duration) -> Answer {
        let until = Instant::now() + within;
        loop {
            let connection = match timeout_at(until, self.connected()).await {
                Ok(Ok(connection)) => connection,
                Ok(Err(broken)) => return Answer::Failed(self.away(&broken)),
                Err(_) => return Answer::Failed(self.away(&Broken::Idle(within))),
            };
            let left = until.saturating_duration_since(Instant::now());
            let Some((number, answer)) = connection.ask(question.clone(), left - left / WAY) else { continue };
            let unanswered = |reason| Answer::Failed(question.unanswered(&self.name(), reason, within));
            match timeout_at(until, answer).await {
                Ok(Ok(answer)) => return answer,
                Ok(Err(_)) if question.is_harmless() && Instant::now() < until => {}
                Ok(Err(_)) => return unanswered("the connection was closed"),
                Err(_) => {
                    connection.forget(number);
                    return unanswered("no answer");
                }
            }
        }
    }

    fn watch(&self, scope: &Scope, from: u64) -> FtdWatch {
        FtdWatch::new(self.clone(), scope.clone(), from)
    }
}

impl Connection {
    fn over(stream: UnixStream) -> Connection {
        let (out, words) = unbounded_channel();
        let waiting: Arc<Mutex<Waiting>> = Arc::default();
        let theirs = waiting.clone();
        let task = tokio::spawn(async move {
            let ended = run(stream, words, &theirs).await;
            tracing::debug!(?ended, "the connection to ftd for the store has ended");
            *lock(&theirs) = Waiting { over: true, ..Waiting::default() };
        });
        Connection { out, waiting, task: task.abort_handle() }
    }

    fn is_over(&self) -> bool {
        lock(&self.waiting).over
    }

    /// Asks; nothing when it is over, and then nothing was sent.
    fn ask(&self, question: Question, within: Duration) -> Option<(u64, oneshot::Receiver<Answer>)> {
        let mut waiting = self.open()?;
        let (say, answer) = oneshot::channel();
        let number = waiting.number();
        waiting.answers.insert(number, say);
        // The task that takes it says itself when it ends: who waits hears that.
        let _ = self.out.send(ToFtd::Question { number, within, question });
        Some((number, answer))
    }

    /// Watches; nothing when it is over.
    pub(super) fn watch(&self, scope: Scope, from: u64) -> Option<(u64, UnboundedReceiver<Told>)> {
        let mut waiting = self.open()?;
        let (say, told) = unbounded_channel();
        let number = waiting.number();
        waiting.watches.insert(number, say);
        let _ = self.out.send(ToFtd::Watch { number, scope, from });
        Some((number, told))
    }

    /// Nobody wants to know any more what a watch says.
    pub(super) fn unwatch(&self, number: u64) {
        if lock(&self.waiting).watches.remove(&number).is_some() {
            let _ = self.out.send(ToFtd::Unwatch { number });
        }
    }

    fn forget(&self, number: u64) {
        lock(&self.waiting).answers.remove(&number);
    }

    fn open(&self) -> Option<MutexGuard<'_, Waiting>> {
        Some(lock(&self.waiting)).filter(|waiting| !waiting.over)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Waiting {
    fn number(&mut self) -> u64 {
        // Of those who gave up nobody is told.
        self.answers.retain(|_, say| !say.is_closed());
        self.last += 1;
        self.last
    }

    fn hear(&mut self, word: FromFtd) {
        match word {
            FromFtd::Answer { number, answer } => {
                let _ = self.answers.remove(&number).map(|say| say.send(answer));
            }
            FromFtd::Changed { number, changes } => {
                let _ = self.watches.get(&number).map(|say| say.send(Told::Changed(changes)));
            }
            FromFtd::Ended { number, end } => {
                let _ = self.watches.remove(&number).map(|say| say.send(Told::Ended(end)));
            }
        }
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn run(stream: UnixStream, mut words: UnboundedReceiver<ToFtd>, waiting: &Mutex<Waiting>) -> Result<(), Broken> {
    let (mut from, mut to) = stream.into_split();
    let hear = async {
        loop {
            let word = receive(&mut from, MAX_BODY).await?;
            lock(waiting).hear(word);
        }
    };
    let say = async {
        while let Some(word) = words.recv().await {
            to.write_all(&ft_wire::encode(&word, 0)?).await?;
        }
        Ok(())
    };
    tokio::select! { ended = hear => ended, ended = say => ended }
}
