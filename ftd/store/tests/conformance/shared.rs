//! One connection for all who ask: nobody's questions cost anybody else's.

use crate::cluster::{Cluster, LONG, Release, put};
use crate::proxy::Proxy;
use ft_store::{Etcd, EtcdOptions, Expected, Scope, Store, StoreError, Swap, Watch, WatchEnd};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

const KEY: &str = "jobs/7/epoch";
const LITTLE: Duration = Duration::from_millis(300);
/// Of what is long.
const PIECE: usize = 1 << 20;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A member that takes longer to let this node in than some who ask have time: it is waited for, by one connection.
pub async fn who_has_little_time_hurries_nobody(release: Release) {
    let cluster = Cluster::ready(release, 1).await;
    let lease = cluster.store().grant(secs(60), LONG).await.unwrap();
    let proxy = Proxy::slow(cluster.address(0), secs(2)).await;
    let options = EtcdOptions { attempt: secs(10), ..EtcdOptions::plain([proxy.endpoint.clone()]) };
    let store = Etcd::new(&options).unwrap();
    let mut others = JoinSet::new();
    for _ in 0..4 {
        let store = store.guests(LITTLE, KEY).of(1);
        others.spawn(async move {
            loop {
                let _ = store.get(KEY, LITTLE).await;
            }
        });
    }
    sleep(LITTLE).await;
    store.keep_alive(lease.id, secs(10)).await.unwrap();
    assert_eq!(proxy.connections.load(Ordering::Relaxed), 1);
}

/// A proxy before the only member, to which the store is connected, and that member itself.
async fn two_ways(cluster: &Cluster) -> (Proxy, Etcd, u64) {
    let proxy = Proxy::before(cluster.address(0)).await;
    let ways = [proxy.endpoint.clone(), cluster.endpoint(0)];
    let store = Etcd::new(&EtcdOptions { attempt: LONG, ..EtcdOptions::plain(ways) }).unwrap();
    let at = put(&store, KEY, b"1").await;
    assert_eq!(store.check(LONG).await.unwrap(), proxy.endpoint);
    (proxy, store, at)
}

fn write(store: &Etcd, at: u64) -> tokio::task::JoinHandle<Result<u64, StoreError>> {
    let (store, swap) = (store.clone(), Swap::on(KEY, Expected::at(at)).put(KEY, b"2".to_vec()));
    tokio::spawn(async move { store.compare_and_swap(swap, LONG).await })
}

/// Questions that run out of their time at once are not answered, and that is all.
pub async fn who_has_little_time_says_nothing_of_a_member(release: Release) {
    let cluster = Cluster::ready(release, 1).await;
    let (proxy, store, at) = two_ways(&cluster).await;
    proxy.holds.store(true, Ordering::Relaxed);
    let writes = write(&store, at);
    let impatient = store.guests(secs(1), KEY).of(1);
    for _ in 0..5 {
        let within = Duration::from_millis(1);
        assert!(matches!(impatient.get(KEY, within).await, Err(StoreError::Unanswered { .. })));
        let swap = Swap::on(KEY, Expected::Absent).put(KEY, b"3".to_vec());
        assert!(impatient.compare_and_swap(swap, within).await.is_err());
    }
    proxy.holds.store(false, Ordering::Relaxed);
    assert!(writes.await.unwrap().unwrap() > at);
    assert_eq!((store.check(LONG).await.unwrap(), proxy.connections.load(Ordering::Relaxed)), (proxy.endpoint, 1));
}

/// A guest who finds that a member stands still asks the next one; what others have asked the first one it may answer still.
pub async fn another_member_cuts_nothing_off(release: Release) {
    let cluster = Cluster::ready(release, 1).await;
    let proxy = Proxy::before(cluster.address(0)).await;
    let ways = [proxy.endpoint.clone(), cluster.endpoint(0)];
    let store = Etcd::new(&EtcdOptions { attempt: LONG, ..EtcdOptions::plain(ways) }).unwrap();
    let at = put(&store, KEY, b"1").await;
    proxy.holds.store(true, Ordering::Relaxed);
    let writes = write(&store, at);
    // It is on its way.
    sleep(LITTLE / 3).await;
    store.guests(LITTLE, KEY).of(1).get(KEY, LONG).await.unwrap();
    assert_eq!(store.check(LONG).await.unwrap(), cluster.endpoint(0));
    proxy.holds.store(false, Ordering::Relaxed);
    assert!(writes.await.unwrap().unwrap() > at);
}

/// What guests ask is never answered in their time, and always what is asked because of that, though the other member is the faster one: the
/// connection is where it was.
pub async fn guests_move_nothing_that_serves(release: Release) {
    let cluster = Cluster::ready(release, 1).await;
    let late = Proxy::before(cluster.address(0)).await;
    let ways = [late.endpoint.clone(), cluster.endpoint(0)];
    let store = Etcd::new(&EtcdOptions { attempt: LONG, ..EtcdOptions::plain(ways) }).unwrap();
    let (at, lease) = (put(&store, KEY, b"1").await, store.grant(secs(60), LONG).await.unwrap().id);
    late.late.store(80, Ordering::Relaxed);
    let guests = store.guests(Duration::from_millis(10), KEY);
    for user in 0..3 {
        let guest = guests.of(user);
        assert!(matches!(guest.get(KEY, secs(1)).await, Err(StoreError::Unanswered { .. })));
        let swap = Swap::on(KEY, Expected::at(at)).put(KEY, b"2".to_vec());
        assert!(guest.compare_and_swap(swap, secs(1)).await.is_err());
        assert!(timeout(LITTLE, guest.watch(&Scope::Key(KEY.into()), at + 1).next()).await.is_err());
        store.keep_alive(lease, LONG).await.unwrap();
    }
    assert_eq!((store.check(LONG).await.unwrap(), late.connections.load(Ordering::Relaxed)), (late.endpoint, 1));
}

/// A member stands still, and the next one does, too: a guest's question has the line go to the one that answers, past both.
pub async fn a_guest_finds_the_member_that_answers(release: Release) {
    let cluster = Cluster::ready(release, 1).await;
    let (first, second) = (Proxy::before(cluster.address(0)).await, Proxy::before(cluster.address(0)).await);
    let ways = [first.endpoint.clone(), second.endpoint.clone(), cluster.endpoint(0)];
    let store = Etcd::new(&EtcdOptions { attempt: LONG, ..EtcdOptions::plain(ways) }).unwrap();
    let guest = store.guests(secs(1), KEY).of(1);
    let at = put(&store, KEY, b"1").await;
    let mut watch = guest.watch(&Scope::Key(KEY.into()), at + 1);
    assert!(timeout(LITTLE, watch.next()).await.is_err());
    first.holds.store(true, Ordering::Relaxed);
    second.holds.store(true, Ordering::Relaxed);
    let asked = Instant::now();
    assert_eq!(guest.get(KEY, LONG / 2).await.unwrap().found.unwrap().revision, at);
    println!("answered after {:?}", asked.elapsed());
    assert_eq!(store.check(LONG).await.unwrap(), cluster.endpoint(0));
    let next = put(&store, KEY, b"2").await;
    let told = timeout(LONG, watch.next()).await.expect("the watch goes along").unwrap();
    assert_eq!(told[0].revision, next);
    // Nobody else's.
    assert_eq!(first.connections.load(Ordering::Relaxed), 1);
}

/// The leader, to which this is connected, stands still: guests go to one of the others as soon as these have another one, however long the
/// daemon itself would wait.
pub async fn guests_wait_for_an_election_and_no_longer(release: Release) {
    let cluster = Cluster::ready(release, 3).await;
    let leader = cluster.leader().await;
    let store = Etcd::new(&EtcdOptions { attempt: LONG, ..cluster.from(leader) }).unwrap();
    let at = put(&store, KEY, b"1").await;
    assert_eq!(store.check(LONG).await.unwrap(), cluster.endpoint(leader));
    let guest = store.guests(secs(1), KEY).of(1);
    cluster.stop(leader);
    let asked = Instant::now();
    assert_eq!(guest.get(KEY, LONG / 2).await.expect("long before the daemon").found.unwrap().revision, at);
    println!("answered after {:?}", asked.elapsed());
    assert_ne!(store.check(LONG).await.unwrap(), cluster.endpoint(leader));
    cluster.go_on(leader);
}

/// What a guest finds slow is not left for what does not answer at all, also where the daemon would have left both by then.
pub async fn a_member_that_is_slow_is_not_left_for_one_that_is_gone(release: Release) {
    let cluster = Cluster::ready(release, 1).await;
    let (slow, gone) = (Proxy::before(cluster.address(0)).await, Proxy::before(cluster.address(0)).await);
    gone.holds.store(true, Ordering::Relaxed);
    let ways = [slow.endpoint.clone(), gone.endpoint.clone()];
    let store = Etcd::new(&EtcdOptions { attempt: secs(1), ..EtcdOptions::plain(ways) }).unwrap();
    let lease = store.grant(secs(60), LONG).await.unwrap().id;
    let guest = store.guests(LITTLE, KEY).of(1);
    slow.holds.store(true, Ordering::Relaxed);
    let asks = tokio::spawn(async move { guest.get(KEY, LONG).await.map(drop) });
    sleep(secs(4)).await;
    assert_ne!(gone.connections.load(Ordering::Relaxed), 0, "the other one was not even tried");
    slow.holds.store(false, Ordering::Relaxed);
    asks.await.unwrap().unwrap();
    store.keep_alive(lease, LONG).await.unwrap();
    assert_eq!((store.check(LONG).await.unwrap(), slow.connections.load(Ordering::Relaxed)), (slow.endpoint, 1));
}

/// The connection to the only member is dead and nobody says so: a guest has another one.
pub async fn a_guest_has_the_only_member_dialled_again(release: Release) {
    let cluster = Cluster::ready(release, 1).await;
    let proxy = Proxy::before(cluster.address(0)).await;
    let options = EtcdOptions { attempt: LONG, ..EtcdOptions::plain([proxy.endpoint.clone()]) };
    let store = Etcd::new(&options).unwrap();
    let at = put(&store, KEY, b"1").await;
    proxy.forgets();
    assert_eq!(store.guests(secs(1), KEY).of(1).get(KEY, LONG / 2).await.unwrap().found.unwrap().revision, at);
    assert_eq!(proxy.connections.load(Ordering::Relaxed), 2);
}

/// The member that was left for not answering would let this node in again before the next one does, which takes its time: nobody goes back.
pub async fn a_member_that_was_left_is_not_the_next_one(release: Release) {
    let cluster = Cluster::ready(release, 1).await;
    let (left, slow) = (Proxy::before(cluster.address(0)).await, Proxy::slow(cluster.address(0), secs(2)).await);
    let ways = [left.endpoint.clone(), slow.endpoint.clone()];
    let store = Etcd::new(&EtcdOptions { attempt: secs(3), ..EtcdOptions::plain(ways) }).unwrap();
    let at = put(&store, KEY, b"1").await;
    left.holds.store(true, Ordering::Relaxed);
    let other = store.clone();
    let asks = tokio::spawn(async move { other.get(KEY, LONG).await });
    while slow.connections.load(Ordering::Relaxed) == 0 {
        sleep(LITTLE / 30).await;
    }
    left.holds.store(false, Ordering::Relaxed);
    assert_eq!(asks.await.unwrap().unwrap().found.unwrap().revision, at);
    assert_eq!((store.check(LONG).await.unwrap(), left.connections.load(Ordering::Relaxed)), (slow.endpoint, 1));
}

/// The next member takes its time to let this node in, and would be waited for much longer: the one behind it is taken.
pub async fn who_takes_long_to_let_in_is_not_alone_waited_for(release: Release) {
    let cluster = Cluster::ready(release, 1).await;
    let silent = Proxy::before(cluster.address(0)).await;
    silent.holds.store(true, Ordering::Relaxed);
    let ways = [silent.endpoint.clone(), cluster.endpoint(0)];
    let store = Etcd::new(&EtcdOptions { attempt: LONG, ..EtcdOptions::plain(ways) }).unwrap();
    assert_eq!(store.check(LONG / 2).await.unwrap(), cluster.endpoint(0));
}

/// So many pieces.
async fn fill(store: &Etcd, pieces: std::ops::Range<usize>) {
    for piece in pieces {
        put(store, &format!("long/{piece}"), &vec![7; PIECE]).await;
    }
}

/// It is said to who asked, at once; nobody else notices.
pub async fn an_answer_that_is_too_long_concerns_who_asked(release: Release) {
    let cluster = Cluster::ready(release, 1).await;
    let (proxy, store, _) = two_ways(&cluster).await;
    let too_long = |error: &StoreError| {
        matches!(error, StoreError::Refused { .. }) && error.to_string().contains("Nothing is wrong with etcd")
    };
    let long = Scope::Prefix("long/".into());
    fill(&store, 0..66).await;
    let error = store.read(&long, LONG).await.map(drop).unwrap_err();
    assert!(too_long(&error), "{error}");
    let mut swap = Swap::on(KEY, Expected::Present).put(KEY, Vec::new());
    for piece in 0..66 {
        swap = swap.and_on(format!("long/{piece}"), Expected::Absent);
    }
    let unknown = store.compare_and_swap(swap, LONG).await.unwrap_err();
    assert!(matches!(&unknown, StoreError::Unknown { reason, .. } if reason.contains("longer than")), "{unknown}");
    let mut watch = store.watch(&long, 1);
    let end = timeout(LONG, watch.next()).await.expect("it ends");
    let end = end.map(drop);
    assert!(matches!(&end, Err(WatchEnd::Failed(error)) if too_long(error)), "{end:?}");
    let asked = vec![0; 3 << 20];
    let error = store.compare_and_swap(Swap::on(KEY, Expected::Present).put(KEY, asked), LONG).await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    assert_eq!((store.check(LONG).await.unwrap(), proxy.connections.load(Ordering::Relaxed)), (proxy.endpoint, 1));
}

/// What watches say is not read, more than any connection has room for: the lease is kept alive on the same one.
pub async fn watches_that_nobody_reads_hold_up_nobody(release: Release) {
    let cluster = Cluster::ready(release, 1).await;
    let proxy = Proxy::before(cluster.address(0)).await;
    let options = EtcdOptions { attempt: LONG, ..EtcdOptions::plain([proxy.endpoint.clone()]) };
    let (store, other) = (Etcd::new(&options).unwrap(), cluster.store());
    let lease = store.grant(secs(60), LONG).await.unwrap().id;
    let mut watches = Vec::new();
    for _ in 0..16 {
        let mut watch = store.watch(&Scope::Prefix("long/".into()), 1);
        assert!(timeout(LITTLE / 3, watch.next()).await.is_err());
        watches.push(watch);
    }
    fill(&other, 0..8).await;
    sleep(LITTLE).await;
    for _ in 0..3 {
        store.keep_alive(lease, secs(6)).await.expect("the lease is kept alive");
    }
    assert_eq!(proxy.connections.load(Ordering::Relaxed), 1);
    for mut watch in watches {
        assert!(!timeout(LONG, watch.next()).await.expect("it is there still").unwrap().is_empty());
    }
}

/// It is closed after a while, and there again when something is asked.
pub async fn who_asks_nothing_any_more_has_no_connection(release: Release) {
    let cluster = Cluster::ready(release, 1).await;
    let proxy = Proxy::before(cluster.address(0)).await;
    let options = EtcdOptions { idle: Some(LITTLE), ..EtcdOptions::plain([proxy.endpoint.clone()]) };
    let store = Etcd::new(&options).unwrap();
    put(&store, KEY, b"1").await;
    let open = || proxy.open.load(Ordering::Relaxed);
    for _ in 0..10 {
        store.get(KEY, LONG).await.unwrap();
        sleep(LITTLE / 5).await;
    }
    assert_eq!((open(), proxy.connections.load(Ordering::Relaxed)), (1, 1));
    let closed = async {
        while open() > 0 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(secs(10), closed).await.expect("it is closed");
    store.get(KEY, LONG).await.unwrap();
    assert_eq!(proxy.connections.load(Ordering::Relaxed), 2);
}

/// A watch that no member takes, or that begins where etcd never comes: nobody else notices.
pub async fn a_watch_that_is_refused_concerns_who_watches(release: Release) {
    let cluster = Cluster::ready(release, 1).await;
    let (proxy, store, at) = two_ways(&cluster).await;
    let mut watches = [
        store.watch(&Scope::Key("k".repeat(3 << 20)), 1),
        store.watch(&Scope::Key(KEY.into()), u64::MAX),
        store.watch(&Scope::Key(KEY.into()), 1 << 63),
    ];
    let mut changes = store.watch(&Scope::Key(KEY.into()), at + 1);
    for watch in &mut watches {
        assert!(timeout(secs(1), watch.next()).await.is_err(), "it says something");
    }
    let next = put(&store, KEY, b"2").await;
    let told = timeout(LONG, changes.next()).await.expect("the other watch is there").unwrap();
    assert_eq!(told[0].revision, next);
    assert_eq!((store.check(LONG).await.unwrap(), proxy.connections.load(Ordering::Relaxed)), (proxy.endpoint, 1));
}
