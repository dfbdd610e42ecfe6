//! A node's place, on the embedded store: it keeps the rules that etcd does.

use super::*;
use crate::config::Config;
use crate::state::State;
use ft_store::{Embedded, LeaseId};
use std::sync::Arc;
use std::time::Duration;

const KEY: &str = "/ftd/nodes/a";
const TTL: Duration = Duration::from_millis(300);
const WITHIN: Duration = Duration::from_secs(1);

struct Machine {
    directory: tempfile::TempDir,
    store: Embedded,
    host: &'static str,
}

impl Machine {
    fn new(store: &Embedded, host: &'static str) -> Machine {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("state")).unwrap();
        std::fs::create_dir(directory.path().join("run")).unwrap();
        Machine { directory, store: store.clone(), host }
    }

    /// A daemon on it.
    fn node(&self) -> (Node<Embedded>, Arc<State>) {
        let config = Config::of_text("[node]\nname = \"a\"", self.host);
        let state = Arc::new(State::new(config.clone()));
        let socket = self.directory.path().join("run/sock");
        let memory = Memory::open(&self.directory.path().join("state"), &socket, KEY).unwrap();
        let record = Record::of(&config, &memory.id);
        let etcd = Asked::new(self.store.clone(), state.clone(), WITHIN);
        (Node::new(etcd, memory, record, KEY.into(), TTL), state)
    }

    /// What /run had is gone.
    fn restart(&self) {
        std::fs::remove_file(self.directory.path().join("run/sock.node")).unwrap();
    }
}

fn store() -> Embedded {
    Embedded::open(tempfile::tempfile().unwrap()).unwrap()
}

async fn who(store: &Embedded) -> Option<Record> {
    store.get(KEY, WITHIN).await.unwrap().found.and_then(|found| Record::decode(&found.value))
}

async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !condition().await {
        assert!(Instant::now() < until, "waited in vain for {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

fn lease(state: &State) -> Option<i64> {
    state.status().lease.map(|lease| lease.id)
}

#[tokio::test]
async fn a_second_node_of_the_name_is_refused_and_both_are_named() {
    let store = store();
    let (one, two) = (Machine::new(&store, "host1"), Machine::new(&store, "host2"));
    let (node, _) = one.node();
    let first = tokio::spawn(node.hold());
    eventually("the first", async || who(&store).await.is_some()).await;
    let error = two.node().0.hold().await.unwrap_err().to_string();
    assert!(error.contains("name a is taken: host host1 (id ") && error.contains("this is host host2 (id "), "{error}");
    assert_eq!(who(&store).await.unwrap().host, "host1");
    first.abort();
    let _ = first.await;
    // Its lease lapses, and the name is free.
    eventually("the lease to lapse", async || who(&store).await.is_none()).await;
    let second = tokio::spawn(two.node().0.hold());
    eventually("the second", async || who(&store).await.is_some_and(|it| it.host == "host2")).await;
    second.abort();
}

#[tokio::test]
async fn a_daemon_that_comes_back_has_its_lease_and_a_machine_another_one() {
    let store = store();
    let machine = Machine::new(&store, "host1");
    let mut seen = Vec::new();
    for life in 0..3 {
        let (node, state) = machine.node();
        let held = tokio::spawn(node.hold());
        eventually("a place", async || {
            lease(&state).is_some() && who(&store).await.is_some_and(|it| it.id == state.status().id)
        })
        .await;
        seen.push((lease(&state).unwrap(), state.status().id));
        held.abort();
        let _ = held.await;
        if life == 1 {
            machine.restart();
        }
    }
    assert_eq!(seen[0], seen[1], "the daemon that came back");
    assert!(seen[2].0 != seen[1].0 && seen[2].1 != seen[1].1, "the machine that came back: {seen:?}");
}

#[tokio::test]
async fn a_machine_that_starts_twice_within_a_lease_takes_its_name_from_no_other() {
    let store = store();
    let machine = Machine::new(&store, "host1");
    let held = tokio::spawn(machine.node().0.hold());
    eventually("a place", async || who(&store).await.is_some()).await;
    let first = who(&store).await.unwrap().id;
    held.abort();
    let _ = held.await;
    machine.restart();
    drop(machine.node());
    machine.restart();
    let held = tokio::spawn(machine.node().0.hold());
    eventually("its place", async || who(&store).await.is_some_and(|it| it.id != first)).await;
    held.abort();
}

#[tokio::test]
async fn a_lost_lease_and_a_removed_key_are_had_anew() {
    let store = store();
    let machine = Machine::new(&store, "host1");
    let (node, state) = machine.node();
    let held = tokio::spawn(node.hold());
    eventually("a place", async || who(&store).await.is_some()).await;
    let first = lease(&state).unwrap();
    store.revoke(LeaseId(first), WITHIN).await.unwrap();
    eventually("another lease", async || {
        who(&store).await.is_some() && lease(&state).is_some_and(|lease| lease != first)
    })
    .await;
    let revision = store.get(KEY, WITHIN).await.unwrap().found.unwrap().revision;
    let removal = Swap::on(KEY, Expected::Revision(revision)).delete(KEY);
    store.compare_and_swap(removal, WITHIN).await.unwrap();
    eventually("the key", async || who(&store).await.is_some()).await;
    // Meanwhile somebody else takes the name: the node that had it waits.
    let second = lease(&state).unwrap();
    let revision = store.get(KEY, WITHIN).await.unwrap().found.unwrap().revision;
    let other = Record { id: "other".into(), ..who(&store).await.unwrap() };
    store.compare_and_swap(Swap::on(KEY, Expected::Revision(revision)).put(KEY, other.encode()), WITHIN).await.unwrap();
    store.revoke(LeaseId(second), WITHIN).await.unwrap();
    eventually("the loss", async || lease(&state) != Some(second)).await;
    sleep(TTL).await;
    assert!(!held.is_finished() && who(&store).await.unwrap().id == "other");
    let revision = store.get(KEY, WITHIN).await.unwrap().found.unwrap().revision;
    store.compare_and_swap(Swap::on(KEY, Expected::Revision(revision)).delete(KEY), WITHIN).await.unwrap();
    eventually("the place", async || who(&store).await.is_some_and(|it| it.id == state.status().id)).await;
    held.abort();
}
