//! What holds of every store.

use crate::cluster::{LONG, put};
use ft_store::{Expected, Follow, Held, Keeper, LeaseId, MAX_KEYS, Scope, Store, StoreError, Swap, Watch, WatchEnd};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Makes the store forget what happened up to a revision.
pub trait Forgets {
    async fn forget(&self, revision: u64);
}

/// All of it, each on keys of its own.
pub async fn holds<S: Store>(store: &S, forgets: &impl Forgets) {
    // What waits for leases waits at the same time; together the futures are more than a thread's stack holds.
    tokio::join!(
        Box::pin(only_the_expected_revision_is_replaced(store)),
        Box::pin(several_keys_are_all_written_or_none(store)),
        Box::pin(a_key_comes_goes_and_comes_again(store)),
        Box::pin(a_prefix_is_read_as_it_was_at_one_time(store)),
        Box::pin(as_many_keys_as_etcd_takes_and_no_more(store)),
        Box::pin(of_many_who_swap_at_once_each_counts_once(store)),
        Box::pin(a_watch_tells_everything_once_in_its_order(store)),
        Box::pin(a_watch_that_is_given_up_misses_nothing(store)),
        Box::pin(a_key_goes_with_its_lease(store)),
        Box::pin(a_lease_is_adopted_by_its_name(store)),
        Box::pin(a_revoked_lease_is_gone_and_its_keys(store)),
        Box::pin(a_keeper_keeps_until_it_is_dropped(store)),
        Box::pin(who_follows_hears_what_is_and_what_comes(store)),
    );
    Box::pin(a_watch_from_a_forgotten_revision_says_so(store, forgets)).await;
    Box::pin(who_follows_across_a_compaction_hears_what_is(store, forgets)).await;
}

async fn only_the_expected_revision_is_replaced(store: &impl Store) {
    let key = "one/epoch";
    assert_eq!(store.get(key, LONG).await.unwrap().found, None);
    let first = store.compare_and_swap(Swap::on(key, Expected::Absent).put(key, b"1".into()), LONG).await.unwrap();
    let wrong = store.compare_and_swap(Swap::on(key, Expected::Absent).put(key, b"x".into()), LONG).await;
    let Err(StoreError::Lost { unmet }) = wrong else { panic!("{wrong:?}") };
    let found = unmet[0].found.clone().unwrap();
    assert_eq!((unmet.len(), found.revision, found.value), (1, first, b"1".to_vec()));
    let second = Swap::on(key, Expected::Revision(first)).put(key, b"2".into());
    let second = store.compare_and_swap(second, LONG).await.unwrap();
    assert!(second > first);
    let late = Swap::on(key, Expected::Revision(first)).put(key, b"late".into());
    assert!(matches!(store.compare_and_swap(late, LONG).await, Err(StoreError::Lost { .. })));
    let read = store.get(key, LONG).await.unwrap();
    assert!(read.at >= second);
    let found = read.found.unwrap();
    assert_eq!((found.revision, found.value), (second, b"2".to_vec()));
}

async fn several_keys_are_all_written_or_none(store: &impl Store) {
    let (epoch, node, gone) = ("several/epoch", "several/node", "several/gone");
    let both = Swap::on(epoch, Expected::Absent).and_on(node, Expected::Absent);
    let first = store.compare_and_swap(both.put(epoch, b"1".into()).put(node, b"n".into()), LONG).await.unwrap();
    let read = |key| async move { store.get(key, LONG).await.unwrap().found.unwrap() };
    assert_eq!((read(epoch).await.revision, read(node).await.revision), (first, first));
    // The record is as expected, and a node is unfit: nothing is written, and that is told of the node alone.
    let unfit =
        Swap::on(epoch, Expected::Revision(first)).and_on(node, Expected::Present).and_on(gone, Expected::Present);
    let unfit = store.compare_and_swap(unfit.put(epoch, b"2".into()).delete(node), LONG).await;
    let Err(StoreError::Lost { unmet }) = unfit else { panic!("{unfit:?}") };
    assert_eq!(
        unmet.iter().map(|unmet| (unmet.key.as_str(), unmet.found.is_some())).collect::<Vec<_>>(),
        [(gone, false)]
    );
    assert_eq!((read(epoch).await.value, read(node).await.value), (b"1".to_vec(), b"n".to_vec()));
    let fit = Swap::on(epoch, Expected::Revision(first)).and_on(node, Expected::Present);
    store.compare_and_swap(fit.put(epoch, b"2".into()), LONG).await.unwrap();
    assert_eq!(read(node).await.revision, first);
}

async fn a_key_comes_goes_and_comes_again(store: &impl Store) {
    let key = "goes/key";
    let first = put(store, key, b"1").await;
    let removed = store.compare_and_swap(Swap::on(key, Expected::Revision(first)).delete(key), LONG).await.unwrap();
    assert!(removed > first);
    assert_eq!(store.get(key, LONG).await.unwrap().found, None);
    let late = Swap::on(key, Expected::Revision(first)).put(key, b"x".into());
    let Err(StoreError::Lost { unmet }) = store.compare_and_swap(late, LONG).await else { panic!("it is gone") };
    assert_eq!(unmet[0].found, None);
    let again = store.compare_and_swap(Swap::on(key, Expected::Absent).put(key, b"2".into()), LONG).await.unwrap();
    assert!(again > removed, "a revision is never used again");
}

async fn a_prefix_is_read_as_it_was_at_one_time(store: &impl Store) {
    put(store, "prefix/nodes/1", b"a").await;
    put(store, "prefix/nodes/2", b"b").await;
    put(store, "prefix/nodesx", b"c").await;
    let read = store.read(&Scope::Prefix("prefix/nodes/".into()), LONG).await.unwrap();
    let found: Vec<_> = read.found.into_iter().map(|(key, found)| (key, found.value)).collect();
    assert_eq!(found, [("prefix/nodes/1".to_string(), b"a".to_vec()), ("prefix/nodes/2".to_string(), b"b".to_vec())]);
    assert!(store.read(&Scope::Prefix("prefix/none/".into()), LONG).await.unwrap().found.is_empty());
    assert_eq!(store.get("prefix/nodes/", LONG).await.unwrap().found, None);
}

async fn as_many_keys_as_etcd_takes_and_no_more(store: &impl Store) {
    let key = |n: usize| format!("many/{n}");
    let mut swap = Swap::on(key(0), Expected::Absent).put(key(0), b"x".into());
    for n in 1..MAX_KEYS {
        swap = swap.and_on(key(n), Expected::Absent).put(key(n), b"x".into());
    }
    store.compare_and_swap(swap, LONG).await.unwrap();
    let mut swap = Swap::on(key(0), Expected::Present).put(key(0), b"y".into());
    for n in 1..=MAX_KEYS {
        swap = swap.and_on(key(n), Expected::Present);
    }
    assert!(matches!(store.compare_and_swap(swap, LONG).await, Err(StoreError::TooMany { keys: 129 })));
}

async fn of_many_who_swap_at_once_each_counts_once(store: &impl Store) {
    let key = "count";
    let count = |store: tokio::task::JoinHandle<u64>| async move { store.await.unwrap() };
    let tasks = (0..8).map(|_| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut done = 0;
            while done < 10 {
                let found = store.get(key, LONG).await.unwrap().found;
                let value = found.as_ref().map_or(0, |found| u64::from_le_bytes(found.value[..].try_into().unwrap()));
                let swap = Swap::on(key, Expected::at(found.map_or(0, |found| found.revision)));
                match store.compare_and_swap(swap.put(key, (value + 1).to_le_bytes().into()), LONG).await {
                    Ok(_) => done += 1,
                    Err(StoreError::Lost { .. }) => tokio::task::yield_now().await,
                    Err(error) => panic!("{error}"),
                }
            }
            done
        })
    });
    let mut all = 0;
    for task in tasks.collect::<Vec<_>>() {
        all += count(task).await;
    }
    let found = store.get(key, LONG).await.unwrap().found.unwrap();
    assert_eq!((found.value, all), (80u64.to_le_bytes().to_vec(), 80));
}

async fn a_watch_tells_everything_once_in_its_order(store: &impl Store) {
    let (scope, key) = (Scope::Prefix("watched/".into()), "watched/a");
    let at = store.read(&scope, LONG).await.unwrap().at;
    let mut late = store.watch(&Scope::Key(key.into()), at + 1);
    let mut watch = store.watch(&scope, at + 1);
    let first = put(store, key, b"1").await;
    put(store, "watchedx", b"of somebody else").await;
    let swap = Swap::on(key, Expected::Revision(first)).put(key, b"2".into()).put("watched/b", b"3".into());
    let second = store.compare_and_swap(swap, LONG).await.unwrap();
    let removed = Swap::on(key, Expected::Revision(second)).delete(key);
    let third = store.compare_and_swap(removed, LONG).await.unwrap();
    let mut heard = Vec::new();
    while heard.len() < 4 {
        heard.extend(timeout(LONG, watch.next()).await.expect("a change").unwrap());
    }
    let told = |key: &str, revision, value: Option<&[u8]>| ft_store::Change {
        key: key.into(),
        revision,
        value: value.map(<[u8]>::to_vec),
    };
    assert_eq!(
        heard,
        [
            told(key, first, Some(b"1")),
            told(key, second, Some(b"2")),
            told("watched/b", second, Some(b"3")),
            told(key, third, None)
        ]
    );
    // A watch that begins late hears what was before.
    let mut heard = Vec::new();
    while heard.len() < 3 {
        heard.extend(timeout(LONG, late.next()).await.expect("a change").unwrap());
    }
    assert_eq!(heard, [told(key, first, Some(b"1")), told(key, second, Some(b"2")), told(key, third, None)]);
}

async fn a_watch_that_is_given_up_misses_nothing(store: &impl Store) {
    let (scope, count) = (Scope::Key("given-up".into()), 60);
    let at = store.read(&scope, LONG).await.unwrap().at;
    let mut watch = store.watch(&scope, at + 1);
    let writer = store.clone();
    let writes = tokio::spawn(async move {
        let mut revisions = Vec::new();
        for n in 0..count {
            revisions.push(put(&writer, "given-up", &[n]).await);
        }
        revisions
    });
    let (mut heard, until) = (Vec::new(), Instant::now() + LONG);
    while heard.len() < count as usize && Instant::now() < until {
        if let Ok(changes) = timeout(Duration::from_millis(1), watch.next()).await {
            heard.extend(changes.unwrap().into_iter().map(|change| change.revision));
        }
    }
    assert_eq!(heard, writes.await.unwrap());
}

/// Writes a key that hangs on a lease.
async fn put_leased(store: &impl Store, key: &str, lease: LeaseId) -> Result<u64, StoreError> {
    store.compare_and_swap(Swap::on(key, Expected::Absent).put_leased(key, b"here".into(), lease), LONG).await
}

async fn gone(store: &impl Store, key: &str, from: u64) -> u64 {
    let mut watch = store.watch(&Scope::Key(key.into()), from);
    loop {
        let changes = timeout(LONG, watch.next()).await.expect("the key goes").unwrap();
        if let Some(change) = changes.iter().find(|change| change.value.is_none()) {
            return change.revision;
        }
    }
}

async fn a_key_goes_with_its_lease(store: &impl Store) {
    let (key, epoch) = ("lapses/node", "lapses/epoch");
    // So long that a busy machine does not keep this from renewing it.
    let lease = store.grant(Duration::from_secs(5), LONG).await.unwrap();
    assert!(lease.ttl >= Duration::from_secs(5));
    let first = put_leased(store, key, lease.id).await.unwrap();
    // Kept alive it outlives its time.
    let until = Instant::now() + lease.ttl + Duration::from_secs(1);
    while Instant::now() < until {
        store.keep_alive(lease.id, LONG).await.unwrap();
        assert!(store.get(key, LONG).await.unwrap().found.is_some());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let fit = Swap::on(epoch, Expected::Absent).and_on(key, Expected::Present).put(epoch, b"1".into());
    let epoch_at = store.compare_and_swap(fit, LONG).await.unwrap();
    // And then it goes, which is a change like any other.
    let removed = gone(store, key, first).await;
    assert!(removed > first);
    assert_eq!(store.get(key, LONG).await.unwrap().found, None);
    let unfit = Swap::on(epoch, Expected::Revision(epoch_at)).and_on(key, Expected::Present).put(epoch, b"2".into());
    assert!(matches!(store.compare_and_swap(unfit, LONG).await, Err(StoreError::Lost { .. })));
    let late = store.keep_alive(lease.id, LONG).await;
    assert!(matches!(late, Err(StoreError::NoLease(id)) if id == lease.id), "{late:?}");
    assert!(matches!(store.adopt(lease.id, LONG).await, Err(StoreError::NoLease(_))));
    assert!(matches!(put_leased(store, "lapses/late", lease.id).await, Err(StoreError::NoLease(id)) if id == lease.id));
    assert_eq!(store.get("lapses/late", LONG).await.unwrap().found, None);
}

async fn a_lease_is_adopted_by_its_name(store: &impl Store) {
    let lease = store.grant(Duration::from_secs(60), LONG).await.unwrap();
    put_leased(store, "adopted", lease.id).await.unwrap();
    assert_eq!(store.adopt(LeaseId(lease.id.0), LONG).await.unwrap(), lease);
    assert!(store.get("adopted", LONG).await.unwrap().found.is_some());
    let never = LeaseId(lease.id.0 ^ 0x5a5a);
    assert!(matches!(store.adopt(never, LONG).await, Err(StoreError::NoLease(id)) if id == never));
}

async fn a_revoked_lease_is_gone_and_its_keys(store: &impl Store) {
    let lease = store.grant(Duration::from_secs(60), LONG).await.unwrap();
    let first = put_leased(store, "revoked/a", lease.id).await.unwrap();
    put_leased(store, "revoked/b", lease.id).await.unwrap();
    store.revoke(lease.id, LONG).await.unwrap();
    assert!(store.read(&Scope::Prefix("revoked/".into()), LONG).await.unwrap().found.is_empty());
    gone(store, "revoked/a", first).await;
    store.revoke(lease.id, LONG).await.unwrap();
    assert!(matches!(store.keep_alive(lease.id, LONG).await, Err(StoreError::NoLease(_))));
}

async fn a_keeper_keeps_until_it_is_dropped(store: &impl Store) {
    let lease = store.grant(Duration::from_secs(5), LONG).await.unwrap();
    let first = put_leased(store, "kept", lease.id).await.unwrap();
    let keeper = Keeper::of(store.clone(), lease);
    tokio::time::sleep(lease.ttl + Duration::from_secs(2)).await;
    assert!(store.get("kept", LONG).await.unwrap().found.is_some());
    assert!(matches!(keeper.held(), Held::At(at) if at.elapsed() < lease.ttl), "{:?}", keeper.held());
    drop(keeper);
    gone(store, "kept", first).await;
    // Who keeps one that somebody revokes hears of it.
    let lease = store.grant(Duration::from_secs(2), LONG).await.unwrap();
    let mut keeper = Keeper::of(store.clone(), lease);
    store.revoke(keeper.id(), LONG).await.unwrap();
    timeout(LONG, keeper.gone()).await.expect("it is said");
    assert_eq!(keeper.held(), Held::Gone);
}

async fn who_follows_hears_what_is_and_what_comes(store: &impl Store) {
    put(store, "followed/a", b"1").await;
    let mut follow = Follow::new(store.clone(), Scope::Prefix("followed/".into()), LONG, LONG);
    let next = |changes: Vec<ft_store::Change>| changes.into_iter().map(|change| (change.key, change.value)).collect();
    let heard: Vec<_> = next(follow.next().await.unwrap());
    assert_eq!(heard, [("followed/a".to_string(), Some(b"1".to_vec()))]);
    let second = put(store, "followed/b", b"2").await;
    let heard: Vec<_> = next(timeout(LONG / 2, follow.next()).await.expect("by the watch").unwrap());
    assert_eq!(heard, [("followed/b".to_string(), Some(b"2".to_vec()))]);
    let removed = Swap::on("followed/b", Expected::Revision(second)).delete("followed/b");
    store.compare_and_swap(removed, LONG).await.unwrap();
    let heard: Vec<_> = next(timeout(LONG / 2, follow.next()).await.expect("by the watch").unwrap());
    assert_eq!(heard, [("followed/b".to_string(), None)]);
    assert_eq!(follow.known().keys().collect::<Vec<_>>(), ["followed/a"]);
    assert_eq!(follow.stale(), 0);
}

async fn a_watch_from_a_forgotten_revision_says_so(store: &impl Store, forgets: &impl Forgets) {
    let key = "forgotten";
    let first = put(store, key, b"1").await;
    put(store, key, b"2").await;
    let last = put(store, key, b"3").await;
    forgets.forget(last).await;
    let mut watch = store.watch(&Scope::Key(key.into()), first);
    let end = timeout(LONG, watch.next()).await.expect("it says so");
    let Err(WatchEnd::Compacted { from, oldest }) = end else { panic!("{end:?}") };
    assert!(from == first && oldest > first, "{from} {oldest}");
    // What is to be done then: read, and watch from there.
    let at = store.get(key, LONG).await.unwrap().at;
    let mut watch = store.watch(&Scope::Key(key.into()), at + 1);
    let next = put(store, key, b"4").await;
    assert_eq!(timeout(LONG, watch.next()).await.unwrap().unwrap()[0].revision, next);
}

async fn who_follows_across_a_compaction_hears_what_is(store: &impl Store, forgets: &impl Forgets) {
    let key = "across";
    put(store, key, b"1").await;
    let mut follow = Follow::new(store.clone(), Scope::Key(key.into()), LONG, LONG);
    follow.next().await.unwrap();
    put(store, key, b"2").await;
    let last = put(store, key, b"3").await;
    forgets.forget(last).await;
    // Its watch begins now, and asks for what is forgotten.
    let changes = timeout(LONG / 2, follow.next()).await.expect("before it is read again anyway").unwrap();
    assert_eq!(changes.last().unwrap().value.as_deref(), Some(&b"3"[..]));
    let next = put(store, key, b"4").await;
    assert_eq!(timeout(LONG / 2, follow.next()).await.expect("the watch goes on").unwrap()[0].revision, next);
}
