//! Nodes whose agents pass on what is asked, without a network between them.

#![allow(clippy::unwrap_used)]

use super::*;
use ft_store::through::{Rights, serve, take_seat};
use ft_store::{Embedded, Expected, Store, StoreError, Swap, Through};
use std::path::Path;
use tokio::net::UnixListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(1200);

/// A node: its ways, what they say, and its `ftd`, if it has one.
struct Place {
    ways: Ways,
    said: UnboundedReceiver<News>,
    _directory: tempfile::TempDir,
    ftd: Option<JoinHandle<()>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.ftd.iter().for_each(JoinHandle::abort);
    }
}

fn daemon(path: &Path, store: Embedded) -> JoinHandle<()> {
    let listener = UnixListener::bind(path).unwrap();
    tokio::spawn(async move {
        let mut served = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let store = store.clone();
            let rights = Rights { own: String::new(), seen: None, leases: true };
            served.spawn(async move { serve(take_seat(stream).await.unwrap(), store, rights, |_| {}).await });
        }
    })
}

fn place(me: u32, nodes: usize, store: Option<Embedded>) -> Place {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let ftd = store.map(|store| daemon(&path, store));
    let (say, said) = unbounded_channel();
    let news = Outlet::new(move |news, _| say.send(news).is_ok());
    let ways = Ways::new((path, "job"), (NodeId(me), nodes), 1000 * u64::from(me + 1), news);
    Place { ways, said, _directory: directory, ftd }
}

fn store() -> Embedded {
    Embedded::open(tempfile::tempfile().unwrap()).unwrap()
}

fn swap(at: u64) -> Swap {
    Swap::on("epoch", Expected::at(at)).put("epoch", b"x".into())
}

/// Carries what the nodes say, but to those of whom nothing is to come back; how often each was asked to write.
fn carry(mut places: Vec<Place>, lost: &'static [u32], unsaid: &'static [u32]) -> (Ways, Arc<Mutex<Vec<u32>>>) {
    let ways: Vec<Ways> = places.iter().map(|place| place.ways.clone()).collect();
    let (first, asked) = (ways[0].clone(), Arc::new(Mutex::new(Vec::new())));
    let writes = asked.clone();
    tokio::spawn(async move {
        let pass = |from: usize, News { to, word }| {
            let writes_it = |word: &StoreWord| match word {
                StoreWord::Ask { question, .. } => matches!(message_of(question), Some(Question::Swap(_))),
                StoreWord::Answer { .. } => false,
            };
            if unsaid.contains(&to.0) {
                return ways[from].unsaid(&word);
            }
            if writes_it(&word) {
                writes.lock().unwrap().push(to.0);
            }
            if !lost.contains(&to.0) {
                ways[to.0 as usize].hear(NodeId(from as u32), word);
            }
        };
        loop {
            for (from, place) in places.iter_mut().enumerate() {
                while let Ok(news) = place.said.try_recv() {
                    pass(from, news);
                }
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    (first, asked)
}

#[tokio::test]
async fn who_has_no_ftd_reads_and_writes_through_another_node() {
    let there = store();
    // Of the others one is silent, one is not to be reached, and one has no ftd either.
    let places = vec![
        place(0, 5, None),
        place(1, 5, None),
        place(2, 5, None),
        place(3, 5, None),
        place(4, 5, Some(there.clone())),
    ];
    let (ways, asked) = carry(places, &[2], &[3]);
    let mine = Through(ways);
    let found = async { while mine.get("epoch", SHORT).await.is_err() {} };
    tokio::time::timeout(LONG, found).await.expect("somebody who reaches the store");
    let first = mine.compare_and_swap(swap(0), LONG).await.unwrap();
    assert_eq!(*asked.lock().unwrap(), [4], "it was known who reaches the store");
    assert_eq!(there.get("epoch", LONG).await.unwrap().found.unwrap().revision, first);
    assert!(matches!(mine.compare_and_swap(swap(0), LONG).await, Err(StoreError::Lost { .. })));
}

#[tokio::test]
async fn a_write_goes_on_only_where_it_was_certainly_not_done() {
    // Its own has none, the next is not reached, the third has none: each says so, and the last one has.
    let there = store();
    let places = vec![place(0, 4, None), place(1, 4, None), place(2, 4, None), place(3, 4, Some(there.clone()))];
    let (ways, asked) = carry(places, &[], &[1]);
    Through(ways).compare_and_swap(swap(0), LONG).await.unwrap();
    assert_eq!(*asked.lock().unwrap(), [2, 3]);
    // One that may have done it is the last one that is asked.
    let there = store();
    let places = vec![place(0, 3, None), place(1, 3, Some(there.clone())), place(2, 3, Some(there.clone()))];
    let (ways, asked) = carry(places, &[1], &[]);
    let error = Through(ways).compare_and_swap(swap(0), SHORT).await.unwrap_err();
    assert!(matches!(error, StoreError::Unknown { .. }), "{error}");
    assert_eq!(*asked.lock().unwrap(), [1]);
    assert_eq!(there.get("epoch", LONG).await.unwrap().found, None);
}

#[tokio::test]
async fn an_ftd_that_stands_still_holds_up_no_read_and_is_asked_again_when_it_does_not() {
    let there = store();
    let mut still = place(0, 2, None);
    let path = still._directory.path().join("store");
    let listener = UnixListener::bind(&path).unwrap();
    still.ways.note(Way::Own, true);
    let (own, good) = (path.clone(), still.ways.clone());
    still.ftd = None;
    let (ways, asked) = carry(vec![still, place(1, 2, Some(there.clone()))], &[], &[]);
    let mine = Through(ways);
    let begun = Instant::now();
    assert_eq!(mine.get("epoch", LONG).await.unwrap().found, None);
    assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
    let first = mine.compare_and_swap(swap(0), LONG).await.unwrap();
    assert_eq!(*asked.lock().unwrap(), [1]);
    drop(listener);
    std::fs::remove_file(&own).unwrap();
    let _daemon = daemon(&own, there);
    let back = async {
        while good.others().good != Some(Way::Own) {
            mine.get("epoch", LONG).await.unwrap();
        }
    };
    tokio::time::timeout(LONG, back).await.expect("its own again");
    mine.compare_and_swap(swap(first), LONG).await.unwrap();
    assert_eq!(*asked.lock().unwrap(), [1]);
}

#[tokio::test]
async fn an_answer_to_another_question_is_none() {
    let mut place = place(0, 2, None);
    let mine = Through(place.ways.clone());
    let asked = tokio::spawn(async move { mine.compare_and_swap(swap(0), SHORT).await });
    let News { to, word } = place.said.recv().await.unwrap();
    let StoreWord::Ask { token, .. } = word else { panic!("{word:?}") };
    // That of the agent before this one.
    let answer = bytes_of(&Answer::Written(7)).unwrap();
    place.ways.hear(to, StoreWord::Answer { token: 1, answer: answer.clone() });
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!asked.is_finished());
    place.ways.hear(to, StoreWord::Answer { token, answer });
    assert_eq!(asked.await.unwrap().unwrap(), 7);
}

#[tokio::test]
async fn leases_are_not_asked_for_others() {
    let mut place = place(0, 2, Some(store()));
    let question = bytes_of(&Question::Grant(LONG)).unwrap();
    place.ways.hear(NodeId(1), StoreWord::Ask { token: 3, within_ms: 1000, question });
    let News { word, .. } = place.said.recv().await.unwrap();
    let StoreWord::Answer { token: 3, answer } = word else { panic!("{word:?}") };
    assert!(matches!(message_of(&answer), Some(Answer::Failed(Failure::Refused(_)))));
}
