//! What a daemon goes by before it has a job ended, on the embedded store; what Slurm says the scenarios see.

use super::*;
use crate::config::Config;
use crate::records::tests::running;
use ft_store::{Embedded, encode_record};
use ftd_core::{EpochRecord, Outcome};

const WITHIN: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(60);

/// That of a daemon with a place of its own, unless it has lost that.
async fn watch(store: &Embedded, name: &str, has_place: bool) -> Watch<Embedded> {
    let config = Config::of_text(&format!("[node]\nname = \"{name}\""), name);
    let state = Arc::new(State::new(config));
    if has_place {
        state.lease(store.grant(LONG, WITHIN).await.unwrap(), crate::state::boot_time());
    }
    let note = Note { job: 7, turn: 1, uid: 0, user: "root".into(), node: "first".into(), env: Vec::new() };
    let asked = Asked::new(store.clone(), state.clone(), WITHIN);
    Watch::new(&note, state, asked.clone(), asked)
}

async fn put(store: &Embedded, key: &str, value: Vec<u8>) {
    let at = store.get(key, WITHIN).await.unwrap().found.map_or(0, |found| found.revision);
    store.compare_and_swap(Swap::on(key, Expected::at(at)).put(key, value), WITHIN).await.unwrap();
}

async fn remove(store: &Embedded, key: &str) {
    let at = store.get(key, WITHIN).await.unwrap().found.unwrap().revision;
    store.compare_and_swap(Swap::on(key, Expected::Revision(at)).delete(key), WITHIN).await.unwrap();
}

fn record(outcome: Option<Outcome>) -> Vec<u8> {
    encode_record(&EpochRecord { outcome, ..running() })
}

#[tokio::test]
async fn a_job_is_ended_for_a_node_that_nobody_has_found() {
    let store = Embedded::open(tempfile::tempfile().unwrap()).unwrap();
    let (mine, other) = (watch(&store, "second", true).await, watch(&store, "third", true).await);
    assert!(mine.is_certain().await.unwrap());
    assert!(!watch(&store, "fourth", false).await.is_certain().await.unwrap(), "it has no place itself");
    put(&store, "/ftd/nodes/first", Vec::new()).await;
    assert!(!mine.is_certain().await.unwrap(), "its ftd is there");
    remove(&store, "/ftd/nodes/first").await;
    for _ in 0..2 {
        other.say_seen().await.unwrap();
        assert!(!mine.is_certain().await.unwrap(), "another one reaches it");
    }
    remove(&store, "/ftd/seen/first").await;
    assert!(mine.is_certain().await.unwrap());
}

#[tokio::test]
async fn a_step_that_goes_on_says_itself_what_becomes_of_its_job() {
    let store = Embedded::open(tempfile::tempfile().unwrap()).unwrap();
    let mine = watch(&store, "second", true).await;
    put(&store, "/ftd/jobs/slurm-70-0-w/epoch", record(None)).await;
    assert!(mine.is_certain().await.unwrap(), "it is another job's");
    let key = "/ftd/jobs/slurm-7-3-w/epoch";
    put(&store, key, record(None)).await;
    assert!(!mine.is_certain().await.unwrap());
    put(&store, key, record(Some(Outcome::failed(1, "an end")))).await;
    assert!(mine.is_certain().await.unwrap());
    put(&store, key, b"a later release's".to_vec()).await;
    assert!(!mine.is_certain().await.unwrap());
    // All of its parts were killed.
    let goes = "/ftd/jobs/slurm-7-3-w/goes";
    let at = store.get(key, WITHIN).await.unwrap().found.unwrap().revision;
    let swap = Swap::on(key, Expected::Revision(at)).put(key, record(None)).put(goes, Vec::new());
    store.compare_and_swap(swap, WITHIN).await.unwrap();
    assert!(mine.is_certain().await.unwrap());
    put(&store, key, record(None)).await;
    assert!(!mine.is_certain().await.unwrap(), "somebody goes on with it after all");
}
