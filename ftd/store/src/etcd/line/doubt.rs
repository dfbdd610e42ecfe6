//! Whether a connection serves that those doubt who share it and do not decide. Its member is asked for something that is always soon there, and
//! so are the others, over connections of their own. When the member has not answered for some time, or with an error, the line goes to the
//! first one of the others that does. So nobody's slow question moves the line from a member that serves; and for what does not answer it is never
//! left for what does not, either.

use super::{Line, PAUSE};
use crate::etcd::answer::{self, Answer};
use etcd_client::Client;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

/// Before the next member is asked as well, and between that and the one behind it.
const HEAD: Duration = Duration::from_millis(200);
/// The member in use has so long to answer.
const OVERDUE: Duration = Duration::from_millis(500);
/// Members that do not know who leads them, or do not let this node in, are asked again after this time …
const AGAIN: Duration = Duration::from_millis(200);
/// … and until then.
const END: Duration = Duration::from_secs(3);
/// A connection that has served is not looked at again for so long.
const PROVED: Duration = Duration::from_secs(1);

/// A look at the connection of this generation: it is over when the other end is gone.
pub(super) type Look = (u64, watch::Receiver<()>);

/// What came of asking a member.
enum Proof {
    Served,
    /// Who asks must say its password again.
    Token,
    Failed,
}

/// Asks for one key, which need not be there.
async fn prove(after: Duration, client: &Client, key: &str) -> Proof {
    sleep(after).await;
    match client.kv_client().get(key, None).await.map_err(|error| answer::of(&error)) {
        // What it would not do it has looked at.
        Ok(_) | Err(Answer::Refused(_) | Answer::TooLong(_) | Answer::NoLease) => Proof::Served,
        Err(Answer::Token(_)) => Proof::Token,
        Err(Answer::Unseen(_) | Answer::Nothing(_)) => Proof::Failed,
    }
}

impl Line {
    /// Has the connection looked at; nothing, where it was a moment ago, or is another one.
    pub fn doubt(self: &Arc<Self>, generation: u64, key: &Arc<str>) -> Option<watch::Receiver<()>> {
        let mut now = self.now();
        let client = now.client.clone().filter(|_| now.generation == generation)?;
        let under_way = now.look.clone().filter(|(of, look)| *of == generation && look.has_changed().is_ok());
        if let Some((_, look)) = under_way {
            return Some(look);
        }
        if now.proved.is_some_and(|proved| proved.elapsed() < PROVED) {
            return None;
        }
        let (goes_on, look) = watch::channel(());
        now.look = Some((generation, look.clone()));
        let (line, key, at) = (self.clone(), key.clone(), now.at);
        drop(self.runtime.clone().unwrap_or_else(Handle::current).spawn(async move {
            line.look(client, at, generation, key).await;
            drop(goes_on);
        }));
        Some(look)
    }

    /// As [`doubt`](Self::doubt), and waits for what comes of it.
    pub async fn doubted(self: &Arc<Self>, generation: u64, key: &Arc<str>, until: Instant) {
        match self.doubt(generation, key) {
            Some(mut look) => {
                let known = async {
                    tokio::select! { _ = look.changed() => {}, () = self.left(generation) => {} }
                };
                // Who has no more time hears so from whoever it asks next.
                let _ = timeout_at(until, known).await;
            }
            None => sleep(PAUSE.min(until.saturating_duration_since(Instant::now()))).await,
        }
    }

    async fn look(self: Arc<Self>, client: Client, at: usize, generation: u64, key: Arc<str>) {
        let mut others = self.others(at, &key);
        let begun = Instant::now();
        let (mut found, mut waits) = (None, true);
        let mut own = std::pin::pin!(prove(Duration::ZERO, &client, &key));
        loop {
            if let Some((member, client)) = found.take_if(|_| !waits) {
                return self.moves(generation, member, client);
            }
            tokio::select! {
                // What has come in time counts, however late it is looked at.
                biased;
                proof = &mut own => match proof {
                    Proof::Served => return self.proved(generation),
                    Proof::Token => return self.renew(generation),
                    Proof::Failed => {
                        waits = false;
                        own.set(prove(AGAIN, &client, &key));
                    }
                },
                Some(ended) = others.join_next(), if found.is_none() => found = ended.ok(),
                () = sleep_until(begun + OVERDUE), if waits => waits = false,
                // Nobody serves: there is nothing to be left for.
                () = sleep_until(begun + END) => return,
                () = self.left(generation) => return,
            }
        }
    }

    /// The other members, each from when it serves; of a cluster of one that one, over another connection.
    fn others(self: &Arc<Self>, at: usize, key: &Arc<str>) -> JoinSet<(usize, Client)> {
        let mut others = JoinSet::new();
        let members = if self.members.len() == 1 { vec![at] } else { self.beside(at) };
        for (after, member) in (1..).zip(members) {
            let (line, key) = (self.clone(), key.clone());
            others.spawn(async move {
                sleep(HEAD * after).await;
                loop {
                    if let Ok(client) = line.dial(&line.members[member]).await {
                        loop {
                            match prove(Duration::ZERO, &client, &key).await {
                                Proof::Served => return (member, client),
                                Proof::Token => break,
                                Proof::Failed => sleep(AGAIN).await,
                            }
                        }
                    }
                    sleep(AGAIN).await;
                }
            });
        }
        others
    }

    fn proved(&self, generation: u64) {
        let mut now = self.now();
        if now.generation == generation {
            now.proved = Some(Instant::now());
        }
    }

    /// The line is that member's now, if nobody has given it up meanwhile.
    fn moves(self: Arc<Self>, generation: u64, member: usize, client: Client) {
        let mut now = self.now();
        if now.generation != generation {
            return;
        }
        (now.at, now.client, now.failed, now.proved) = (member, Some(client), 0, Some(Instant::now()));
        now.generation += 1;
        let generation = self.moved.send_replace(now.generation) + 1;
        drop(now);
        if let Some(idle) = self.idle {
            tokio::spawn(async move { self.leave_when_idle(generation, idle).await });
        }
    }
}
