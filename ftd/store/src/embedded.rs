//! The embedded store: one machine, one agent at a time, no server.
//!
//! All of it lives in a file (a memfd that the launcher holds), so that it outlives the agent's process. What happened is known to
//! watches of the process in which it happened only.

mod content;
mod halves;

use crate::store::{Change, Lease, LeaseId, Read, Scope, Store, Versioned, Watch, WatchEnd};
use crate::{StoreError, Swap};
use content::Content;
use halves::Halves;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// So many changes are remembered for watches that are behind.
const HISTORY: usize = 256;
/// So many bytes of keys and values at most, but for those of the newest revision: the agent of one machine has no watch at all.
const HISTORY_BYTES: usize = 64 << 10;

/// A store in a file of this machine. No call ever waits.
#[derive(Debug, Clone)]
pub struct Embedded {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// The newest revision.
    moved: tokio::sync::watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    halves: Halves,
    history: VecDeque<Change>,
    /// What happened before this revision is forgotten.
    oldest: u64,
}

impl Embedded {
    /// Opens the store in `file`, which is empty at the job's first agent.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the file cannot be sized, [`StoreError::Gone`].
    pub fn open(file: File) -> Result<Self, StoreError> {
        let halves = Halves::open(file)?;
        let revision = Content::decode(&halves.read()?)?.revision;
        let state = Mutex::new(State { halves, history: VecDeque::new(), oldest: revision + 1 });
        Ok(Embedded { shared: Arc::new(Shared { state, moved: tokio::sync::watch::Sender::new(revision) }) })
    }

    /// Whether all that is written ends with this process.
    pub fn is_volatile(&self) -> bool {
        self.lock().halves.is_volatile()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // What a panic may have left half done is not in the file.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does this to the content, once the leases that have lapsed are gone from it.
    fn with<T>(
        &self,
        act: impl FnOnce(&mut Content) -> Result<(T, Vec<Change>, Save), StoreError>,
    ) -> Result<T, StoreError> {
        let mut state = self.lock();
        let mut content = Content::decode(&state.halves.read()?)?;
        let (mut changes, mut lapsed) = (Vec::new(), false);
        while let Some(lease) = content.lapsed(now()) {
            changes.append(&mut content.end(lease));
            lapsed = true;
        }
        let done = act(&mut content);
        let (value, save) = match done {
            Ok((value, mut more, save)) => {
                changes.append(&mut more);
                (Ok(value), save)
            }
            Err(error) => (Err(error), Save::No),
        };
        if lapsed || save == Save::Yes {
            state.halves.write(&content.encode())?;
        }
        if !changes.is_empty() {
            state.remember(changes);
            self.shared.moved.send_replace(content.revision);
        }
        value
    }
}

/// Whether the content is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Save {
    Yes,
    No,
}

impl State {
    fn remember(&mut self, changes: Vec<Change>) {
        let newest = changes.last().map_or(0, |change| change.revision);
        self.history.extend(changes);
        while self.history.len() > HISTORY || self.history.iter().map(size).sum::<usize>() > HISTORY_BYTES {
            let Some(first) = self.history.front().map(|change| change.revision) else { break };
            if first == newest {
                break;
            }
            self.history.retain(|change| change.revision > first);
            self.oldest = first + 1;
        }
    }
}

fn size(change: &Change) -> usize {
    change.key.len() + change.value.as_ref().map_or(0, Vec::len)
}

/// The time, that of a suspended machine counted, in microseconds.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

impl Store for Embedded {
    type Watch = EmbeddedWatch;

    async fn read(&self, scope: &Scope, _: Duration) -> Result<Read<BTreeMap<String, Versioned>>, StoreError> {
        self.with(|content| Ok((Read { at: content.revision, found: content.read(scope) }, Vec::new(), Save::No)))
    }

    async fn compare_and_swap(&self, swap: Swap, _: Duration) -> Result<u64, StoreError> {
        swap.check()?;
        self.with(|content| {
            let changes = content.swap(&swap)?;
            let save = if changes.is_empty() { Save::No } else { Save::Yes };
            Ok((content.revision, changes, save))
        })
    }

    fn watch(&self, scope: &Scope, from: u64) -> EmbeddedWatch {
        EmbeddedWatch { store: self.clone(), scope: scope.clone(), next: from, moved: self.shared.moved.subscribe() }
    }

    async fn grant(&self, ttl: Duration, _: Duration) -> Result<Lease, StoreError> {
        self.with(|content| Ok((Lease { id: content.grant(ttl, now()), ttl }, Vec::new(), Save::Yes)))
    }

    async fn keep_alive(&self, lease: LeaseId, _: Duration) -> Result<(), StoreError> {
        self.with(|content| content.keep_alive(lease, now()).map(|_| ((), Vec::new(), Save::Yes)))
    }

    async fn adopt(&self, lease: LeaseId, _: Duration) -> Result<Lease, StoreError> {
        self.with(|content| Ok((Lease { id: lease, ttl: content.keep_alive(lease, now())? }, Vec::new(), Save::Yes)))
    }

    async fn revoke(&self, lease: LeaseId, _: Duration) -> Result<(), StoreError> {
        self.with(|content| Ok(((), content.end(lease), Save::Yes)))
    }
}

/// A watch of the embedded store.
#[derive(Debug)]
pub struct EmbeddedWatch {
    store: Embedded,
    scope: Scope,
    next: u64,
    moved: tokio::sync::watch::Receiver<u64>,
}

impl Watch for EmbeddedWatch {
    async fn next(&mut self) -> Result<Vec<Change>, WatchEnd> {
        loop {
            self.moved.mark_unchanged();
            // This also ends the leases that have lapsed.
            let lapses = self.store.with(|content| Ok((content.lapses(), Vec::new(), Save::No)))?;
            let changes = self.known()?;
            if let Some(last) = changes.last() {
                self.next = last.revision + 1;
                return Ok(changes);
            }
            let lapse = async {
                match lapses {
                    Some(at) => tokio::time::sleep(Duration::from_micros(at.saturating_sub(now()))).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // The sender lives as long as the store that this holds.
                _ = self.moved.changed() => {}
                () = lapse => {}
            }
        }
    }
}

impl EmbeddedWatch {
    fn known(&self) -> Result<Vec<Change>, WatchEnd> {
        let state = self.store.lock();
        if self.next < state.oldest {
            return Err(WatchEnd::Compacted { from: self.next, oldest: state.oldest });
        }
        let concerns = |change: &&Change| change.revision >= self.next && self.scope.covers(&change.key);
        Ok(state.history.iter().filter(concerns).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Expected;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    const KEY: &str = "epoch";
    const WITHIN: Duration = Duration::from_secs(1);

    /// The embedded store never waits, so one poll is enough.
    fn now<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("the embedded store waited"),
        }
    }

    fn swap(store: &Embedded, expected: Expected, value: &[u8]) -> Result<u64, StoreError> {
        now(store.compare_and_swap(Swap::on(KEY, expected).put(KEY, value.to_vec()), WITHIN))
    }

    #[test]
    fn a_reopened_store_has_the_last_value() {
        let file = tempfile::tempfile().unwrap();
        let store = Embedded::open(file.try_clone().unwrap()).unwrap();
        let mut expected = Expected::Absent;
        for n in 0..9u8 {
            expected = Expected::Revision(swap(&store, expected, &vec![n; n as usize]).unwrap());
        }
        let lease = now(store.grant(Duration::from_secs(60), WITHIN)).unwrap();
        drop(store);
        let store = Embedded::open(file).unwrap();
        let read = now(store.get(KEY, WITHIN)).unwrap();
        assert_eq!((read.at, read.found), (9, Some(Versioned { revision: 9, value: vec![8; 8] })));
        assert_eq!(now(store.adopt(lease.id, WITHIN)).unwrap(), lease);
    }

    #[test]
    fn a_swap_that_is_too_long_changes_nothing() {
        let store = Embedded::open(tempfile::tempfile().unwrap()).unwrap();
        let first = swap(&store, Expected::Absent, b"small").unwrap();
        let long = vec![0; halves::HALF as usize];
        assert!(matches!(swap(&store, Expected::Revision(first), &long), Err(StoreError::TooLong { .. })));
        assert_eq!(now(store.get(KEY, WITHIN)).unwrap().found.unwrap().revision, first);
    }

    #[test]
    fn what_is_remembered_for_watches_is_bounded_but_for_the_newest() {
        let store = Embedded::open(tempfile::tempfile().unwrap()).unwrap();
        let remembered = || store.lock().history.iter().map(size).sum::<usize>();
        let mut revision = swap(&store, Expected::Absent, &[0; 5000]).unwrap();
        for _ in 0..40 {
            revision = swap(&store, Expected::Revision(revision), &[0; 5000]).unwrap();
            assert!(remembered() <= HISTORY_BYTES);
        }
        assert!(store.lock().history.len() > 8, "a watch that is a little behind is served");
        let scope = Scope::Key(KEY.into());
        let oldest = store.lock().oldest;
        assert!(
            matches!(now(store.watch(&scope, 1).next()), Err(WatchEnd::Compacted { from: 1, oldest: o }) if o == oldest)
        );
        let large = swap(&store, Expected::Revision(revision), &vec![1; 2 * HISTORY_BYTES]).unwrap();
        let mut watch = store.watch(&scope, large);
        assert_eq!(now(watch.next()).unwrap()[0].value.as_ref().unwrap().len(), 2 * HISTORY_BYTES);
    }

    #[test]
    fn who_opens_it_again_watches_from_then_on() {
        let file = tempfile::tempfile().unwrap();
        let store = Embedded::open(file.try_clone().unwrap()).unwrap();
        let first = swap(&store, Expected::Absent, b"one").unwrap();
        drop(store);
        let store = Embedded::open(file).unwrap();
        let scope = Scope::Key(KEY.into());
        assert!(matches!(now(store.watch(&scope, first).next()), Err(WatchEnd::Compacted { from: 1, oldest: 2 })));
        let mut watch = store.watch(&scope, first + 1);
        swap(&store, Expected::Revision(first), b"two").unwrap();
        assert_eq!(now(watch.next()).unwrap()[0].value.as_deref(), Some(&b"two"[..]));
    }
}
