//! What etcd's members, and the way to them, may do, and what it costs.

use crate::cluster::{Cluster, LONG, Release, put};
use crate::deaf::Deaf;
use crate::proxy::Proxy;
use ft_store::{Etcd, EtcdOptions, Expected, Follow, Held, Keeper, Scope, Store, StoreError, Swap, Watch};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

const KEY: &str = "jobs/7/epoch";

fn swap(at: u64, value: &[u8]) -> Swap {
    Swap::on(KEY, Expected::at(at)).put(KEY, value.to_vec())
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// What became of the writes of those who write at the same time.
#[derive(Debug, Default)]
struct Written {
    done: Vec<u64>,
    lost: Vec<u64>,
    unknown: Vec<u64>,
    not: Vec<u64>,
}

/// Appends numbers of its own to the list until it is told to end.
async fn append(store: Etcd, author: u64, done: Arc<AtomicUsize>, over: Arc<AtomicBool>) -> Written {
    let mut written = Written::default();
    for count in 0.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        // That a leader dies costs who reads a pause and no error.
        let found = store.get(KEY, LONG).await.unwrap().found;
        let number = author << 32 | count;
        let mut list = found.as_ref().map_or_else(Vec::new, |found| found.value.clone());
        list.extend(number.to_le_bytes());
        match store.compare_and_swap(swap(found.map_or(0, |found| found.revision), &list), secs(5)).await {
            Ok(_) => {
                written.done.push(number);
                done.fetch_add(1, Ordering::Relaxed);
            }
            Err(StoreError::Lost { .. }) => written.lost.push(number),
            Err(StoreError::Unknown { .. }) => written.unknown.push(number),
            Err(StoreError::Unanswered { .. }) => written.not.push(number),
            Err(error) => panic!("{error}"),
        }
    }
    written
}

/// Every write is there once if it was said to be done, not at all if it was said not to be, and else said to be unknown.
pub async fn leaders_die_while_many_write(release: Release) {
    let mut cluster = Cluster::ready(release, 3).await;
    let (done, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let leader = cluster.leader().await;
    // Two connections: one to the leader, one to a member that passes on what it is asked.
    let stores = [leader, leader + 1].map(|first| Etcd::new(&cluster.from(first)).unwrap());
    let writers = (0..6).map(|n| tokio::spawn(append(stores[n % 2].clone(), n as u64, done.clone(), over.clone())));
    let writers: Vec<_> = writers.collect();
    let progress = async |by: usize| {
        let (before, until) = (done.load(Ordering::Relaxed), Instant::now() + LONG);
        while done.load(Ordering::Relaxed) < before + by {
            assert!(Instant::now() < until, "nothing is written any more");
            sleep(Duration::from_millis(10)).await;
        }
    };
    progress(40).await;
    cluster.kill(leader);
    progress(40).await;
    if release.remembers() {
        cluster.run(leader);
        progress(40).await;
        let leader = cluster.leader().await;
        cluster.kill(leader);
        progress(40).await;
    }
    over.store(true, Ordering::Relaxed);
    let mut all = Written::default();
    for writer in writers {
        let written = writer.await.unwrap();
        all.done.extend(written.done);
        all.lost.extend(written.lost);
        all.unknown.extend(written.unknown);
        all.not.extend(written.not);
    }
    let list = cluster.store().get(KEY, LONG).await.unwrap().found.unwrap().value;
    let list: Vec<u64> = list.chunks(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect();
    let there: BTreeSet<u64> = list.iter().copied().collect();
    assert_eq!(there.len(), list.len(), "a write is there twice");
    let missing: Vec<_> = all.done.iter().filter(|number| !there.contains(number)).collect();
    assert!(missing.is_empty(), "{} writes are not there that were said to be done", missing.len());
    let denied: Vec<_> = all.lost.iter().chain(&all.not).filter(|number| there.contains(number)).collect();
    assert!(denied.is_empty(), "{} writes are there that were said not to be done", denied.len());
    let told: BTreeSet<u64> = all.done.iter().chain(&all.unknown).copied().collect();
    assert!(there.is_subset(&told), "a write is there of which nobody knows");
    println!("{} done, {} lost, {} unknown, {} not", all.done.len(), all.lost.len(), all.unknown.len(), all.not.len());
}

/// The answer to a write is lost on its way: nobody says that it was lost to another, and nobody repeats it.
pub async fn a_write_without_an_answer_is_unknown(release: Release) {
    let cluster = Cluster::ready(release, 1).await;
    let proxy = Proxy::before(cluster.address(0)).await;
    // A second way, on which a layer that repeats would get its answer.
    let store = Etcd::new(&EtcdOptions::plain([proxy.endpoint.clone(), cluster.endpoint(0)])).unwrap();
    let first = put(&store, KEY, b"1").await;
    proxy.mute.store(true, Ordering::Relaxed);
    let asked = Instant::now();
    let error = store.compare_and_swap(swap(first, b"2"), secs(1)).await.unwrap_err();
    assert!(matches!(error, StoreError::Unknown { .. }), "{error}");
    let sentence = error.to_string();
    assert!(sentence.contains(&proxy.endpoint) && sentence.contains(KEY) && sentence.contains("1.0s"), "{sentence}");
    assert!(asked.elapsed() < LONG / 2);
    // It was done, once.
    let found = store.get(KEY, LONG).await.unwrap().found.unwrap();
    assert_eq!((found.value.as_slice(), found.revision), (&b"2"[..], first + 1));
    // A member that may be gone is not waited for as long as the caller would: the next one knows.
    let ways = [proxy.endpoint.clone(), cluster.endpoint(0)];
    proxy.mute.store(false, Ordering::Relaxed);
    let store = Etcd::new(&EtcdOptions::plain(ways.clone())).unwrap();
    assert_eq!(store.check(LONG).await.unwrap(), proxy.endpoint);
    let at = store.get(KEY, LONG).await.unwrap().found.unwrap().revision;
    proxy.mute.store(true, Ordering::Relaxed);
    let Err(StoreError::Unknown { within, .. }) = store.compare_and_swap(swap(at, b"2"), LONG).await else { panic!() };
    assert_eq!(within, EtcdOptions::plain(ways.clone()).attempt);
    let first = store.get(KEY, LONG).await.unwrap().found.unwrap().revision - 1;
    // A read whose answer is lost is asked elsewhere.
    let store = Etcd::new(&EtcdOptions::plain([proxy.endpoint.clone(), cluster.endpoint(0)])).unwrap();
    proxy.mute.store(false, Ordering::Relaxed);
    assert_eq!(store.check(LONG).await.unwrap(), proxy.endpoint);
    proxy.mute.store(true, Ordering::Relaxed);
    let asked = Instant::now();
    assert_eq!(store.get(KEY, LONG).await.unwrap().found.unwrap().revision, first + 1);
    // Sooner than the connection would be found dead by itself.
    assert!(asked.elapsed() < secs(7), "{:?}", asked.elapsed());
}

/// The member that is asked, and that one alone, dies.
pub async fn a_minority_is_lost(release: Release) {
    let mut cluster = Cluster::ready(release, 3).await;
    let follower = (cluster.leader().await + 1) % 3;
    let store = Etcd::new(&cluster.from(follower)).unwrap();
    let mut at = put(&store, KEY, b"1").await;
    assert_eq!(store.check(LONG).await.unwrap(), cluster.endpoint(follower));
    let mut watch = store.watch(&Scope::Key(KEY.into()), at + 1);
    assert!(timeout(Duration::from_millis(300), watch.next()).await.is_err());
    cluster.kill(follower);
    for n in 0..5u8 {
        at = match store.compare_and_swap(swap(at, &[n]), secs(10)).await {
            // It was sent on the connection that breaks; who reads knows more.
            Err(StoreError::Unknown { .. }) if n == 0 => {
                let found = store.get(KEY, secs(10)).await.unwrap().found.unwrap();
                assert_eq!(found.revision, at, "the dead have written");
                store.compare_and_swap(swap(at, &[n]), secs(10)).await.unwrap()
            }
            done => done.unwrap(),
        };
        assert_eq!(store.get(KEY, secs(10)).await.unwrap().found.unwrap().revision, at);
    }
    assert_ne!(store.check(LONG).await.unwrap(), cluster.endpoint(follower));
    let mut heard = Vec::new();
    while heard.len() < 5 {
        heard.extend(timeout(LONG, watch.next()).await.expect("the watch goes on elsewhere").unwrap());
    }
    assert_eq!(heard.iter().map(|change| change.value.clone().unwrap()[0]).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
}

/// Nobody decides anything; it is said in time; and all goes on when they are back.
pub async fn the_majority_is_lost_and_comes_back(release: Release) {
    let mut cluster = Cluster::ready(release, 3).await;
    let store = cluster.store();
    let lease = store.grant(secs(60), LONG).await.unwrap();
    let held = Swap::on("nodes/1", Expected::Absent).put_leased("nodes/1", b"here".into(), lease.id);
    store.compare_and_swap(held, LONG).await.unwrap();
    let first = put(&store, KEY, b"1").await;
    let mut watch = store.watch(&Scope::Key(KEY.into()), first + 1);
    let late = Etcd::new(&EtcdOptions::plain([cluster.endpoint(0)])).unwrap();
    late.check(LONG).await.unwrap();
    cluster.lose(1);
    cluster.lose(2);
    let asked = Instant::now();
    // The leader, if it is the one that is left, may not know yet.
    let swapped = store.compare_and_swap(swap(first, b"2"), secs(1)).await.unwrap_err();
    let unknown = matches!(swapped, StoreError::Unknown { .. });
    assert!(unknown || matches!(swapped, StoreError::Unanswered { .. }), "{swapped}");
    let error = store.get(KEY, secs(4)).await.unwrap_err();
    assert!(matches!(error, StoreError::Unanswered { .. }), "{error}");
    let sentence = error.to_string();
    assert!((0..3).all(|n| sentence.contains(&cluster.endpoint(n))) && sentence.contains(KEY), "{sentence}");
    assert!(sentence.contains("4.0s") && sentence.contains("majority"), "{sentence}");
    assert!(asked.elapsed() < LONG / 2, "{:?}", asked.elapsed());
    assert!(matches!(store.grant(secs(2), Duration::from_millis(200)).await, Err(StoreError::Unanswered { .. })));
    assert!(timeout(Duration::from_millis(200), watch.next()).await.is_err());
    // Who is connected to a member that knows that it is alone is told so: nothing was written, and that is certain.
    let sentence = late.compare_and_swap(swap(first, b"late"), secs(2)).await.unwrap_err().to_string();
    assert!(sentence.contains("no leader") && sentence.contains("did not answer"), "{sentence}");
    cluster.run(1);
    cluster.run(2);
    let found = store.get(KEY, LONG).await.unwrap().found.unwrap();
    assert!(found.revision == first || unknown, "what was said not to be written is");
    let second = store.compare_and_swap(swap(found.revision, b"3"), LONG).await.unwrap();
    assert_eq!(store.adopt(lease.id, LONG).await.unwrap(), lease);
    assert!(store.get("nodes/1", LONG).await.unwrap().found.is_some());
    loop {
        let changes = timeout(LONG, watch.next()).await.expect("the watch goes on").unwrap();
        if changes.iter().any(|change| change.revision == second) {
            break;
        }
    }
}

/// The leader, to which this is connected, stands still for 5 s: the others elect another one.
pub async fn the_leader_is_paused(release: Release) {
    let cluster = Cluster::ready(release, 3).await;
    let leader = cluster.leader().await;
    let store = Etcd::new(&cluster.from(leader)).unwrap();
    let other = Etcd::new(&cluster.from((leader + 1) % 3)).unwrap();
    let first = put(&store, KEY, b"1").await;
    assert_eq!(store.check(LONG).await.unwrap(), cluster.endpoint(leader));
    let lease = store.grant(secs(30), LONG).await.unwrap();
    let mut watch = store.watch(&Scope::Key(KEY.into()), first + 1);
    assert!(timeout(Duration::from_millis(300), watch.next()).await.is_err());
    // Another connection, on which nobody notices before the write is sent.
    let stuck = Etcd::new(&cluster.from(leader)).unwrap();
    stuck.check(LONG).await.unwrap();
    cluster.stop(leader);
    let stopped = Instant::now();
    let unanswered = stuck.compare_and_swap(swap(first, b"by the paused"), Duration::from_millis(500)).await;
    assert!(matches!(unanswered, Err(StoreError::Unknown { .. })), "{unanswered:?}");
    // A pause, and no error; not as long as the member's own.
    let read = store.get(KEY, LONG).await.unwrap().found.unwrap();
    assert_eq!(read.revision, first);
    store.keep_alive(lease.id, LONG).await.unwrap();
    let second = other.compare_and_swap(swap(first, b"2"), LONG).await.unwrap();
    let heard = timeout(LONG, watch.next()).await.expect("the watch goes on elsewhere").unwrap();
    assert_eq!((heard[0].revision, heard[0].value.as_deref()), (second, Some(&b"2"[..])));
    // Sooner than the connection would be found dead by itself.
    assert!(stopped.elapsed() < secs(7), "{:?}", stopped.elapsed());
    sleep(secs(5).saturating_sub(stopped.elapsed())).await;
    cluster.go_on(leader);
    // What it was asked before it stood still may reach the others now, and is too late by its revision.
    let paused = Etcd::new(&EtcdOptions::plain([cluster.endpoint(leader)])).unwrap();
    let third = loop {
        let found = paused.get(KEY, LONG).await.unwrap().found.unwrap();
        if found.value == b"3" {
            // It was written, though nobody said so.
            break found.revision;
        }
        assert_eq!((found.revision, found.value.as_slice()), (second, &b"2"[..]));
        match paused.compare_and_swap(swap(second, b"3"), LONG).await {
            Ok(revision) => break revision,
            // For a moment it takes itself for the leader still.
            Err(StoreError::Unknown { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    };
    let found = store.get(KEY, LONG).await.unwrap().found.unwrap();
    assert_eq!((found.revision, found.value), (third, b"3".to_vec()));
}

/// A watch that loses everything is made up for, and noticed.
pub async fn a_stale_watch_is_noticed(release: Release) {
    let cluster = Cluster::ready(release, 1).await;
    let deaf = Arc::new(AtomicBool::new(true));
    let store = Deaf { store: cluster.store(), deaf: deaf.clone(), slow: Arc::default() };
    put(&store, KEY, b"1").await;
    let mut follow = Follow::new(store.clone(), Scope::Key(KEY.into()), Duration::from_millis(300), LONG);
    let next = async |follow: &mut Follow<Deaf<Etcd>>| {
        timeout(secs(10), follow.next()).await.expect("it is read again").unwrap().remove(0).value.unwrap()
    };
    assert_eq!(next(&mut follow).await, b"1");
    put(&store, KEY, b"2").await;
    assert_eq!((next(&mut follow).await, follow.stale()), (b"2".to_vec(), 0));
    put(&store, KEY, b"3").await;
    assert_eq!(next(&mut follow).await, b"3");
    // The next one hears.
    deaf.store(false, Ordering::Relaxed);
    let waited = timeout(secs(3), follow.next()).await;
    assert!(waited.is_err() && follow.stale() >= 1, "{waited:?}, {}", follow.stale());
    let stale = follow.stale();
    put(&store, KEY, b"4").await;
    assert_eq!(next(&mut follow).await, b"4");
    assert!(timeout(secs(2), follow.next()).await.is_err());
    assert_eq!(follow.stale(), stale, "a watch that hears is not taken for stale");
}

/// One answer that does not come costs no lease: it is asked again while there is time.
pub async fn a_lease_outlives_a_call_without_an_answer(release: Release) {
    let cluster = Cluster::ready(release, 1).await;
    let store = Deaf { store: cluster.store(), deaf: Arc::default(), slow: Arc::default() };
    let lease = store.grant(secs(6), LONG).await.unwrap();
    let held = Swap::on("nodes/1", Expected::Absent).put_leased("nodes/1", b"here".into(), lease.id);
    let first = store.compare_and_swap(held, LONG).await.unwrap();
    let mut watch = store.watch(&Scope::Key("nodes/1".into()), first + 1);
    store.slow.store(1, Ordering::Relaxed);
    let keeper = Keeper::of(store.clone(), lease);
    // A lapse shows half a second to a second late.
    assert!(timeout(secs(9), watch.next()).await.is_err(), "it lapsed");
    assert!(matches!(keeper.held(), Held::At(_)));
}
