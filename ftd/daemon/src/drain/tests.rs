//! Who is drained, on the embedded store; whether scontrol does it the scenarios see.

use super::*;
use crate::config::Config;
use crate::state::State;
use ft_store::{Embedded, Lease};
use std::sync::Arc;

const WITHIN: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(60);

/// A daemon of that node, which has its place.
async fn daemon(store: &Embedded, name: &str) -> (Drain<Embedded>, Lease) {
    let config = Config::of_text(&format!("[node]\nname = \"{name}\""), "host");
    let state = Arc::new(State::new(config.clone()));
    let lease = store.grant(LONG, WITHIN).await.unwrap();
    state.is_node(&format!("id-{name}"));
    state.lease(lease, crate::state::boot_time());
    put(store, &Record::of(&config, &format!("id-{name}")), lease).await;
    (Drain::new(Asked::new(store.clone(), state, WITHIN), store.clone()), lease)
}

async fn put(store: &Embedded, record: &Record, lease: Lease) {
    let key = format!("/ftd/nodes/{}", record.name);
    let at = store.get(&key, WITHIN).await.unwrap().found.map_or(0, |found| found.revision);
    let swap = Swap::on(&key, Expected::at(at)).put_leased(&key, record.encode(), lease.id);
    store.compare_and_swap(swap, WITHIN).await.unwrap();
}

/// Hears all that there is to be heard.
async fn hears(drain: &mut Drain<Embedded>) {
    while let Ok(changes) = tokio::time::timeout(Duration::from_millis(50), drain.follow.next()).await {
        changes.unwrap().into_iter().for_each(|change| drain.hear(change));
    }
}

fn record(name: &str) -> Record {
    Record::of(&Config::of_text(&format!("[node]\nname = \"{name}\""), "host"), &format!("id-{name}"))
}

#[tokio::test]
async fn one_daemon_drains_a_node_whose_lease_has_ended() {
    let store = Embedded::open(tempfile::tempfile().unwrap()).unwrap();
    let (mut one, _) = daemon(&store, "one").await;
    let (mut two, _) = daemon(&store, "two").await;
    let (_, third) = daemon(&store, "three").await;
    hears(&mut one).await;
    hears(&mut two).await;
    assert!(one.gone.is_empty() && one.seen.len() == 3);
    store.revoke(third.id, WITHIN).await.unwrap();
    hears(&mut one).await;
    hears(&mut two).await;
    assert_eq!(one.gone.keys().collect::<Vec<_>>(), ["three"]);
    let gone = record("three");
    assert_eq!(one.judge(&gone).await.unwrap(), Fate::Drained);
    // It did not hear that it was to.
    assert_eq!(one.judge(&gone).await.unwrap(), Fate::Drained);
    assert_eq!(two.judge(&gone).await.unwrap(), Fate::Others);
    let lease = store.grant(LONG, WITHIN).await.unwrap();
    put(&store, &gone, lease).await;
    assert_eq!(two.judge(&gone).await.unwrap(), Fate::Back);
    hears(&mut one).await;
    assert!(one.gone.is_empty(), "a node that is back");
}

#[tokio::test]
async fn who_is_gone_itself_and_who_misses_most_drains_nobody() {
    let store = Embedded::open(tempfile::tempfile().unwrap()).unwrap();
    let (mut one, own) = daemon(&store, "one").await;
    let mut others = Vec::new();
    for name in ["two", "three"] {
        others.push(daemon(&store, name).await.1);
    }
    hears(&mut one).await;
    for lease in others {
        store.revoke(lease.id, WITHIN).await.unwrap();
    }
    hears(&mut one).await;
    // All of them, one after the other: none counts less because the one before was judged.
    one.wait = Duration::ZERO;
    one.judge_all().await;
    assert!(one.gone.len() == 2 && one.gone.values().all(|gone| gone.judged));
    let marks = store.read(&Scope::Prefix("/ftd/drains/".into()), WITHIN).await.unwrap().found;
    assert!(marks.is_empty(), "{marks:?}");
    assert_eq!(one.judge(&record("two")).await.unwrap(), Fate::Doubtful);
    one.gone.remove("three");
    assert_eq!(one.judge(&record("two")).await.unwrap(), Fate::Drained);
    store.revoke(own.id, WITHIN).await.unwrap();
    assert_eq!(one.judge(&record("three")).await.unwrap(), Fate::Doubtful);
}
