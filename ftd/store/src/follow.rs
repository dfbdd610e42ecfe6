//! Keys that are watched, and read again now and then: watches have lost events in some versions of etcd, and what a watch does not say
//! is otherwise missed for ever.

use crate::store::{Change, Read, Scope, Store, Versioned, Watch};
use crate::{StoreError, WatchEnd};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// A watch that says by now what a read has shown is taken for well.
const GRACE: Duration = Duration::from_secs(1);

/// After a read that failed, perhaps at once.
const REST: Duration = Duration::from_secs(1);

/// Who follows is told of changes by others as well, as long as this is true.
#[derive(Debug)]
struct Otherwise {
    told: watch::Receiver<bool>,
    /// How often the keys are read meanwhile.
    seldom: Duration,
    /// When that was over last.
    over: Instant,
}

/// Follows keys: what they are at first, and then every change, at the latest when they are read again. Changes that follow each other
/// closely may come as the last of them.
#[derive(Debug)]
pub struct Follow<S: Store> {
    store: S,
    scope: Scope,
    period: Duration,
    within: Duration,
    known: BTreeMap<String, Versioned>,
    /// All that happened until this revision is known: by a read, or by the watch.
    at: u64,
    watch: Option<S::Watch>,
    /// When they were read last, or it was tried.
    read: Instant,
    otherwise: Option<Otherwise>,
    /// Nothing is read before, because it failed.
    rest: Instant,
    /// What a read has shown and the watch has not: the revision, and until when it may come.
    doubt: Option<(u64, Instant)>,
    stale: u64,
}

impl<S: Store> Follow<S> {
    /// Reads them again every `period`; each read may take as long as `within`.
    pub fn new(store: S, scope: Scope, period: Duration, within: Duration) -> Self {
        Follow {
            store,
            scope,
            period,
            within,
            known: BTreeMap::new(),
            at: 0,
            watch: None,
            read: Instant::now(),
            otherwise: None,
            rest: Instant::now(),
            doubt: None,
            stale: 0,
        }
    }

    /// Reads them again only every `seldom` while it is true that whoever follows would be told of a change by others as well.
    #[must_use]
    pub fn seldom_while(mut self, told: watch::Receiver<bool>, seldom: Duration) -> Self {
        self.otherwise = Some(Otherwise { told, seldom, over: Instant::now() });
        self
    }

    /// When they are to be read again. Where others tell no more, half a period later: they may do so again in a moment.
    fn read_next(&self) -> Instant {
        let usual = self.read + self.period;
        match &self.otherwise {
            None => usual,
            Some(Otherwise { told, seldom, .. }) if *told.borrow() => self.read + self.period.max(*seldom),
            Some(Otherwise { over, .. }) => usual.max(*over + self.period / 2),
        }
    }

    /// How often a watch was given up because a read knew more.
    pub fn stale(&self) -> u64 {
        self.stale
    }

    /// What the keys are, as far as it is known.
    pub fn known(&self) -> &BTreeMap<String, Versioned> {
        &self.known
    }

    /// Waits for the next changes. Of the first read all that is there is a change.
    ///
    /// # Errors
    /// When they cannot be read. It may be called again, and goes on then, after a rest.
    pub async fn next(&mut self) -> Result<Vec<Change>, StoreError> {
        loop {
            let read_next = self.read_next();
            let until = self.doubt.map_or(read_next, |(_, until)| until.min(read_next));
            let Some(watch) = self.watch.as_mut() else {
                let changes = self.read().await?;
                self.watch_anew();
                if changes.is_empty() {
                    continue;
                }
                return Ok(changes);
            };
            let said = tokio::select! {
                said = tokio::time::timeout_at(until, watch.next()) => said,
                () = changes(&mut self.otherwise) => continue,
            };
            let changes = match said {
                Ok(Ok(changes)) => self.heard(changes),
                Ok(Err(WatchEnd::Compacted { .. })) => {
                    self.watch = None;
                    continue;
                }
                Ok(Err(WatchEnd::Failed(error))) => {
                    self.watch = None;
                    return Err(error);
                }
                Err(_) => self.doubted().await?,
            };
            if !changes.is_empty() {
                return Ok(changes);
            }
        }
    }

    fn watch_anew(&mut self) {
        self.watch = Some(self.store.watch(&self.scope, self.at + 1));
        self.doubt = None;
    }

    /// The watch says this.
    fn heard(&mut self, changes: Vec<Change>) -> Vec<Change> {
        let newest = changes.iter().map(|change| change.revision).max();
        if self.doubt.is_some_and(|(revision, _)| newest >= Some(revision)) {
            self.doubt = None;
        }
        // What a read has told already is no news, nor what the watch before this one has.
        let news = changes.into_iter().filter(|change| change.revision > self.at);
        let news: Vec<Change> = news.collect();
        self.at = self.at.max(newest.unwrap_or_default());
        for change in &news {
            match &change.value {
                Some(value) => {
                    let versioned = Versioned { revision: change.revision, value: value.clone() };
                    self.known.insert(change.key.clone(), versioned);
                }
                None => drop(self.known.remove(&change.key)),
            }
        }
        news
    }

    /// The watch has said nothing for long.
    async fn doubted(&mut self) -> Result<Vec<Change>, StoreError> {
        if self.doubt.is_some_and(|(_, until)| Instant::now() >= until) {
            tracing::warn!(keys = %self.scope, "the watch has missed what a read has shown: it is begun anew");
            self.stale += 1;
            self.watch_anew();
        }
        if Instant::now() < self.read_next() {
            return Ok(Vec::new());
        }
        let changes = self.read().await?;
        if let Some(newest) = changes.iter().map(|change| change.revision).max() {
            self.doubt = Some((newest, Instant::now() + GRACE));
        }
        Ok(changes)
    }

    /// Reads the keys; returns what has changed.
    async fn read(&mut self) -> Result<Vec<Change>, StoreError> {
        tokio::time::sleep_until(self.rest).await;
        self.read = Instant::now();
        let read = self.store.read(&self.scope, self.within).await;
        let Read { at, found } = read.inspect_err(|_| self.rest = Instant::now() + REST.min(self.period))?;
        let newer = |(key, there): &(&String, &Versioned)| {
            self.known.get(*key).is_none_or(|known| known.revision < there.revision)
        };
        let mut changes: Vec<Change> = found
            .iter()
            .filter(newer)
            .map(|(key, there)| Change { key: key.clone(), revision: there.revision, value: Some(there.value.clone()) })
            .collect();
        changes.sort_by_key(|change| change.revision);
        let gone = self.known.keys().filter(|key| !found.contains_key(*key));
        changes.extend(gone.map(|key| Change { key: key.clone(), revision: at, value: None }));
        (self.known, self.at) = (found, at);
        Ok(changes)
    }
}

/// Waits until others begin, or cease, to tell.
async fn changes(otherwise: &mut Option<Otherwise>) {
    if let Some(Otherwise { told, over, .. }) = otherwise
        && told.changed().await.is_ok()
    {
        if !*told.borrow_and_update() {
            *over = Instant::now();
        }
        return;
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Embedded, Expected, Lease, LeaseId, Swap};

    const LONG: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn a_watch_that_is_begun_anew_repeats_nothing() {
        let store = Embedded::open(tempfile::tempfile().unwrap()).unwrap();
        let put = async |at, value: &[u8]| {
            let swap = Swap::on("epoch", Expected::at(at)).put("epoch", value.to_vec());
            store.compare_and_swap(swap, LONG).await.unwrap()
        };
        let first = put(0, b"1").await;
        let mut follow = Follow::new(store.clone(), Scope::Key("epoch".into()), LONG, LONG);
        let mut heard = vec![follow.next().await.unwrap()];
        let second = put(first, b"2").await;
        heard.push(follow.next().await.unwrap());
        follow.watch_anew();
        let third = put(second, b"3").await;
        heard.push(follow.next().await.unwrap());
        let revisions: Vec<u64> = heard.into_iter().flatten().map(|change| change.revision).collect();
        assert_eq!(revisions, [first, second, third]);
    }

    /// A store whose watches say nothing.
    #[derive(Clone)]
    struct Deaf(Embedded);

    struct Silent;

    impl Watch for Silent {
        async fn next(&mut self) -> Result<Vec<Change>, WatchEnd> {
            std::future::pending().await
        }
    }

    impl Store for Deaf {
        type Watch = Silent;

        async fn read(&self, scope: &Scope, within: Duration) -> Result<Read<BTreeMap<String, Versioned>>, StoreError> {
            self.0.read(scope, within).await
        }

        async fn compare_and_swap(&self, swap: Swap, within: Duration) -> Result<u64, StoreError> {
            self.0.compare_and_swap(swap, within).await
        }

        fn watch(&self, _: &Scope, _: u64) -> Silent {
            Silent
        }

        async fn grant(&self, ttl: Duration, within: Duration) -> Result<Lease, StoreError> {
            self.0.grant(ttl, within).await
        }

        async fn keep_alive(&self, lease: LeaseId, within: Duration) -> Result<(), StoreError> {
            self.0.keep_alive(lease, within).await
        }

        async fn adopt(&self, lease: LeaseId, within: Duration) -> Result<Lease, StoreError> {
            self.0.adopt(lease, within).await
        }

        async fn revoke(&self, lease: LeaseId, within: Duration) -> Result<(), StoreError> {
            self.0.revoke(lease, within).await
        }
    }

    #[tokio::test]
    async fn where_others_tell_it_is_read_seldom_and_soon_when_they_do_not_any_more() {
        let store = Deaf(Embedded::open(tempfile::tempfile().unwrap()).unwrap());
        let put = async |at, value: &[u8]| {
            let swap = Swap::on("epoch", Expected::at(at)).put("epoch", value.to_vec());
            store.compare_and_swap(swap, LONG).await.unwrap()
        };
        let first = put(0, b"1").await;
        let (tell, told) = watch::channel(true);
        let period = Duration::from_millis(20);
        let mut follow =
            Follow::new(store.clone(), Scope::Key("epoch".into()), period, LONG).seldom_while(told, 10 * LONG);
        let value = |changes: Vec<Change>| changes.into_iter().next().and_then(|change| change.value);
        assert_eq!(value(follow.next().await.unwrap()).as_deref(), Some(&b"1"[..]));
        let mut at = first;
        for next in [&b"2"[..], b"3"] {
            at = put(at, next).await;
            let early = tokio::time::timeout(10 * period, follow.next()).await;
            assert!(early.is_err(), "{early:?}");
            tell.send(false).unwrap();
            let late = tokio::time::timeout(LONG, follow.next()).await.expect("it is read again");
            assert_eq!(value(late.unwrap()).as_deref(), Some(next));
            tell.send(true).unwrap();
        }
    }
}
