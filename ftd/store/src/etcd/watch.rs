//! A watch that goes on at the next member when its connection breaks.

use super::answer::{self, Answer};
use super::guests::{Kind, Place};
use super::line::Tried;
use super::{Etcd, MESSAGE, refused};
use crate::StoreError;
use crate::store::{Change, Scope, Watch, WatchEnd};
use etcd_client::{EventType, WatchOptions, WatchResponse, WatchStream};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// So long it is tried to reach etcd before that is said, in the log.
const ROUND: Duration = Duration::from_secs(30);
/// After a watch that was refused, as it will be again.
const REFUSED: Duration = Duration::from_secs(1);
/// After a watch that broke.
const PAUSE: Duration = Duration::from_millis(100);

/// A watch of etcd.
pub struct EtcdWatch {
    etcd: Etcd,
    scope: Scope,
    next: u64,
    open: Option<Open>,
}

struct Open {
    stream: WatchStream,
    generation: u64,
    endpoint: String,
    _place: Place,
}

/// What became of a watch that brought no changes.
enum Broken {
    /// It can go on from where it was.
    Again,
    End(WatchEnd),
}

impl EtcdWatch {
    pub(super) fn new(etcd: Etcd, scope: Scope, next: u64) -> EtcdWatch {
        EtcdWatch { etcd, scope, next, open: None }
    }

    fn what(&self) -> String {
        format!("watch {}", self.scope)
    }

    async fn open(&self) -> Result<Option<Open>, StoreError> {
        let mut tried = Tried::default();
        let line = &self.etcd.line;
        let Some(place) = self.etcd.place(Kind::Watch, &mut tried, Instant::now() + ROUND).await else {
            // A user's doing, and nobody else's concern.
            tracing::debug!(keys = %self.scope, "no place for the watch");
            return Ok(None);
        };
        let Some(connected) = line.connected(&mut tried, Instant::now() + ROUND).await else {
            return match line.failed(self.what(), ROUND, tried) {
                refused @ StoreError::Refused { .. } => Err(refused),
                other if self.etcd.guest.is_some() => {
                    tracing::debug!(error = %other, "a guest's watch");
                    Ok(None)
                }
                other => {
                    tracing::warn!(error = %other, "the watch");
                    Ok(None)
                }
            };
        };
        // Beyond what etcd counts nothing happens; a negative one it takes for one that is compacted.
        let from = i64::try_from(self.next).unwrap_or(i64::MAX);
        let mut options = WatchOptions::new().with_start_revision(from);
        if let Scope::Prefix(_) = self.scope {
            options = options.with_prefix();
        }
        let mut client = connected.client.watch_client().max_decoding_message_size(MESSAGE);
        match timeout(self.etcd.attempt, client.watch(self.scope.name(), Some(options))).await {
            Ok(Ok(stream)) => {
                let (generation, endpoint) = (connected.generation, connected.endpoint);
                Ok(Some(Open { stream, generation, endpoint, _place: place }))
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, endpoint = connected.endpoint, "the watch did not begin");
                let answer = answer::of(&error);
                self.leave(&answer, connected.generation);
                if let Answer::Refused(_) = answer {
                    sleep(REFUSED).await;
                }
                Ok(None)
            }
            Err(_) => {
                self.etcd.found_wanting(connected.generation);
                Ok(None)
            }
        }
    }

    /// What the watch said; no changes when it only said that it is there.
    fn take(&mut self, response: &WatchResponse, generation: u64) -> Result<Vec<Change>, Broken> {
        if response.canceled() {
            return Err(self.cancelled(response, generation));
        }
        let mut changes = Vec::new();
        for event in response.events() {
            let Some(pair) = event.kv() else { continue };
            let (Ok(key), revision) = (pair.key_str(), pair.mod_revision() as u64) else { continue };
            let value = (event.event_type() == EventType::Put).then(|| pair.value().to_vec());
            changes.push(Change { key: key.to_string(), revision, value });
            self.next = self.next.max(revision + 1);
        }
        Ok(changes)
    }

    fn endpoint(&self) -> String {
        self.open.as_ref().map(|open| open.endpoint.clone()).unwrap_or_default()
    }

    fn broken(&self, error: &etcd_client::Error, generation: u64) -> Broken {
        let answer = answer::of(error);
        if let Answer::TooLong(reason) = answer {
            return Broken::End(refused(self.what(), self.endpoint(), reason).into());
        }
        tracing::debug!(%error, keys = %self.scope, "the watch broke");
        self.leave(&answer, generation);
        Broken::Again
    }

    /// The connection is given up for what is wrong with it, or with the member, and not for what is wrong with this watch: others have theirs.
    fn leave(&self, answer: &Answer, generation: u64) {
        match answer {
            Answer::Refused(_) | Answer::TooLong(_) | Answer::NoLease => {}
            Answer::Token(_) => self.etcd.line.renew(generation),
            Answer::Unseen(_) | Answer::Nothing(_) => self.etcd.found_wanting(generation),
        }
    }

    fn cancelled(&self, response: &WatchResponse, generation: u64) -> Broken {
        if response.compact_revision() > 0 {
            let oldest = response.compact_revision() as u64;
            return Broken::End(WatchEnd::Compacted { from: self.next, oldest });
        }
        let reason = response.cancel_reason();
        if reason.contains("permission denied") {
            return Broken::End(refused(self.what(), self.endpoint(), reason.to_string()).into());
        }
        tracing::debug!(reason, keys = %self.scope, "the watch was cancelled");
        self.etcd.found_wanting(generation);
        Broken::Again
    }
}

impl Watch for EtcdWatch {
    async fn next(&mut self) -> Result<Vec<Change>, WatchEnd> {
        loop {
            let Some(open) = self.open.as_mut() else {
                self.open = self.open().await?;
                if self.open.is_none() {
                    sleep(PAUSE).await;
                }
                continue;
            };
            let generation = open.generation;
            let line = self.etcd.line.clone();
            let said = tokio::select! {
                said = open.stream.message() => said,
                // Somebody found that this connection does not serve: it need not be said by the watch as well.
                () = line.left(generation) => Ok(None),
            };
            let taken = match said {
                Ok(Some(response)) => self.take(&response, generation),
                Ok(None) => {
                    self.etcd.found_wanting(generation);
                    Err(Broken::Again)
                }
                Err(error) => Err(self.broken(&error, generation)),
            };
            match taken {
                Ok(changes) if changes.is_empty() => {}
                Ok(changes) => return Ok(changes),
                Err(Broken::End(end)) => {
                    self.open = None;
                    return Err(end);
                }
                Err(Broken::Again) => {
                    self.open = None;
                    sleep(PAUSE).await;
                }
            }
        }
    }
}
