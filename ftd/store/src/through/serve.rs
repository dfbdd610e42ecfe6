//! The end of a connection that has the store.

use super::rights::Rights;
use super::wire::{
    Answer, Broken, Copied, End, Failure, FromFtd, Hello, MOST_ASKED, OLDEST, ToFtd, VERSION, Welcome, receive,
};
use crate::store::{Scope, Store, Watch, WatchEnd};
use ft_wire::{PREAMBLE_LEN, Preamble, Role};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

/// Who dials says within this time for which job.
const FIRST: Duration = Duration::from_secs(5);
/// The longest hello.
const MOST_HELLO: usize = 4096;
/// One that reads nothing for so long is left.
const IDLE: Duration = Duration::from_secs(30);
/// So many questions are asked at a time; the next one is not read before.
const AT_A_TIME: usize = 32;
/// So many watches a connection may have.
const WATCHES: usize = 16;
/// Answers that may wait to be written.
const WAITING: usize = 16;
/// No question may take longer, whatever is asked.
const LONGEST: Duration = Duration::from_secs(60);

/// Something for who counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// The store is asked.
    Asked,
    /// It is not, for this is not allowed.
    Refused(String),
    /// Nothing is asked: so much was copied.
    Copied(Copied),
}

/// Somebody who has said for which job, and waits to hear whether it is served.
#[derive(Debug)]
pub struct Seated<S> {
    stream: S,
    /// The job's name, as it was said.
    pub job: String,
}

/// Hears for which job somebody asks.
///
/// # Errors
/// [`Broken`]: it is left.
pub async fn take_seat<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) -> Result<Seated<S>, Broken> {
    let first = async {
        stream.write_all(&Preamble::ours(Role::Daemon).to_bytes()).await?;
        let mut preamble = [0; PREAMBLE_LEN];
        stream.read_exact(&mut preamble).await?;
        match Preamble::of_any_release(&preamble)?.role {
            Role::Agent => receive::<Hello>(&mut stream, MOST_HELLO).await,
            other => Err(Broken::Role(other)),
        }
    };
    let Hello { version, job } = timeout(FIRST, first).await.unwrap_or(Err(Broken::Idle(FIRST)))?;
    let seated = Seated { stream, job };
    if (OLDEST..=VERSION).contains(&version) {
        return Ok(seated);
    }
    // The next word comes on another connection, from whoever speaks one of these.
    seated.answer(&Welcome::Speaks { oldest: OLDEST, newest: VERSION }).await;
    Err(Broken::Version { theirs: version })
}

impl<S: AsyncRead + AsyncWrite + Unpin> Seated<S> {
    /// It is not served, and hears why.
    pub async fn refuse(self, sentence: String) {
        self.answer(&Welcome::Refused(sentence)).await;
    }

    async fn answer(mut self, word: &Welcome) {
        let frame = ft_wire::encode(word, 0).unwrap_or_default();
        // Who does not listen is gone.
        let _ = timeout(FIRST, self.stream.write_all(&frame)).await;
    }
}

/// Serves somebody, until the connection ends. `note` hears of every question.
///
/// # Errors
/// [`Broken`]: why it has ended.
pub async fn serve<S, T>(seated: Seated<T>, store: S, rights: Rights, note: impl Fn(Note)) -> Result<(), Broken>
where
    S: Store,
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut stream = seated.stream;
    timeout(FIRST, stream.write_all(&ft_wire::encode(&Welcome::Served, 0)?))
        .await
        .map_err(|_| Broken::Idle(FIRST))??;
    let (mut from, to) = tokio::io::split(stream);
    let (say, said) = channel(WAITING);
    let room = Arc::new(Semaphore::new(AT_A_TIME));
    let mut desk = Desk { store, rights, say, room, tasks: JoinSet::new(), watches: HashMap::new() };
    let listen = async {
        loop {
            match receive::<ToFtd>(&mut from, MOST_ASKED).await? {
                ToFtd::Copied(copied) => note(Note::Copied(copied)),
                asked => desk.take(asked, &note).await,
            }
        }
    };
    tokio::select! { ended = listen => ended, ended = tell(to, said) => ended }
}

async fn tell(mut to: impl AsyncWrite + Unpin, mut said: Receiver<FromFtd>) -> Result<(), Broken> {
    while let Some(word) = said.recv().await {
        let frame = ft_wire::encode(&word, 0)?;
        timeout(IDLE, to.write_all(&frame)).await.map_err(|_| Broken::Idle(IDLE))??;
    }
    Ok(())
}

/// What is going on for a connection; it ends with that.
struct Desk<S> {
    store: S,
    rights: Rights,
    say: Sender<FromFtd>,
    room: Arc<Semaphore>,
    tasks: JoinSet<()>,
    watches: HashMap<u64, AbortHandle>,
}

impl<S: Store> Desk<S> {
    async fn take(&mut self, asked: ToFtd, note: &impl Fn(Note)) {
        while self.tasks.try_join_next().is_some() {}
        let forbidden = self.rights.forbid(&asked);
        match &forbidden {
            Some(why) => note(Note::Refused(why.clone())),
            None => note(Note::Asked),
        }
        let refused = forbidden.map(|why| Failure::refused("ftd", why));
        match asked {
            ToFtd::Question { number, within, question } => {
                let Ok(place) = self.room.clone().acquire_owned().await else { return };
                let (store, say) = (self.store.clone(), self.say.clone());
                self.tasks.spawn(async move {
                    let answer = match refused {
                        Some(refused) => Answer::Failed(refused),
                        None => question.put_to(&store, within.min(LONGEST)).await,
                    };
                    // Who is gone is told nothing.
                    let _ = say.send(FromFtd::Answer { number, answer }).await;
                    drop(place);
                });
            }
            ToFtd::Watch { number, scope, from } => self.watch(number, (scope, from), refused).await,
            ToFtd::Copied(_) => {}
            ToFtd::Unwatch { number } => drop(self.watches.remove(&number).inspect(AbortHandle::abort)),
        }
    }

    async fn watch(&mut self, number: u64, (scope, from): (Scope, u64), refused: Option<Failure>) {
        self.watches.retain(|_, watch| !watch.is_finished());
        let many = || format!("it has {WATCHES} watches already");
        let full = (self.watches.len() >= WATCHES).then(|| Failure::refused("ftd", many()));
        if let Some(failure) = refused.or(full) {
            let _ = self.say.send(FromFtd::Ended { number, end: End::Failed(failure) }).await;
            return;
        }
        let (mut watch, say) = (self.store.watch(&scope, from), self.say.clone());
        let task = self.tasks.spawn(async move {
            loop {
                let word = match watch.next().await {
                    Ok(changes) => FromFtd::Changed { number, changes },
                    Err(WatchEnd::Compacted { from, oldest }) => {
                        FromFtd::Ended { number, end: End::Compacted(from, oldest) }
                    }
                    Err(WatchEnd::Failed(error)) => FromFtd::Ended { number, end: End::Failed(error.into()) },
                };
                let last = matches!(word, FromFtd::Ended { .. });
                if say.send(word).await.is_err() || last {
                    return;
                }
            }
        });
        if let Some(before) = self.watches.insert(number, task) {
            before.abort();
        }
    }
}
