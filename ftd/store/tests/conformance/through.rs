//! A store that somebody else has: the suite through a socket, and what the way to it may do.

use crate::cluster::{Cluster, LONG, Release, put};
use crate::{Admin, suite};
use ft_store::through::{Ftd, Note, Rights, serve, take_seat};
use ft_store::{Embedded, Expected, Scope, Store, StoreError, Swap, Through, Watch, WatchEnd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout};

/// Serves a store at a path, until it is dropped; how many questions were asked and refused.
struct Daemon {
    task: JoinHandle<()>,
    asked: Arc<AtomicUsize>,
    refused: Arc<AtomicUsize>,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Daemon {
    fn serve<S: Store>(path: &Path, store: S, rights: Rights) -> Daemon {
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path).unwrap();
        let (asked, refused) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counters = (asked.clone(), refused.clone());
        let task = tokio::spawn(async move {
            let mut served = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (store, rights, (asked, refused)) = (store.clone(), rights.clone(), counters.clone());
                served.spawn(async move {
                    let seated = take_seat(stream).await.unwrap();
                    if seated.job != "job" {
                        let sentence = format!("there is no {}", seated.job);
                        return seated.refuse(sentence).await;
                    }
                    let note = |note| match note {
                        Note::Asked => drop(asked.fetch_add(1, Ordering::Relaxed)),
                        Note::Refused(_) => drop(refused.fetch_add(1, Ordering::Relaxed)),
                        Note::Copied(_) => {}
                    };
                    let _ = serve(seated, store, rights, note).await;
                });
            }
        });
        Daemon { task, asked, refused }
    }
}

fn all() -> Rights {
    Rights { own: String::new(), seen: None, leases: true }
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    (directory, path)
}

fn through(path: &Path) -> Through<Ftd> {
    Through(Ftd::new(path.into(), "job".into()))
}

pub async fn holds_the_suite(release: Release) {
    let cluster = Cluster::ready(release, 1).await;
    let (_directory, path) = place();
    let _daemon = Daemon::serve(&path, cluster.store(), all());
    suite::holds(&through(&path), &Admin(&cluster)).await;
}

fn swap(at: u64, value: &[u8]) -> Swap {
    Swap::on("own/epoch", Expected::at(at)).put("own/epoch", value.to_vec())
}

#[tokio::test]
async fn who_may_have_its_own_keys_alone_has_no_others() {
    let store = Embedded::open(tempfile::tempfile().unwrap()).unwrap();
    put(&store, "others/epoch", b"secret").await;
    put(&store, "nodes/a", b"node").await;
    let (_directory, path) = place();
    let rights = Rights { own: "own/".into(), seen: Some("nodes/".into()), leases: false };
    let daemon = Daemon::serve(&path, store.clone(), rights);
    let job = through(&path);
    job.compare_and_swap(swap(0, b"1").and_on("nodes/a", Expected::Present), LONG).await.unwrap();
    assert!(job.get("nodes/a", LONG).await.unwrap().found.is_some());
    assert_eq!(daemon.refused.load(Ordering::Relaxed), 0);
    let refused = |error: StoreError| matches!(error, StoreError::Refused { .. });
    assert!(refused(job.get("others/epoch", LONG).await.unwrap_err()));
    assert!(refused(job.read(&Scope::Prefix("".into()), LONG).await.unwrap_err()));
    let theirs = Swap::on("own/epoch", Expected::Present).put("others/epoch", b"mine".into());
    assert!(refused(job.compare_and_swap(theirs, LONG).await.unwrap_err()));
    assert!(refused(job.grant(Duration::from_secs(5), LONG).await.unwrap_err()));
    let end = timeout(LONG, job.watch(&Scope::Key("others/epoch".into()), 1).next()).await.unwrap();
    assert!(matches!(end, Err(WatchEnd::Failed(StoreError::Refused { .. }))), "{end:?}");
    assert_eq!((daemon.asked.load(Ordering::Relaxed), daemon.refused.load(Ordering::Relaxed)), (2, 5));
    assert_eq!(store.get("others/epoch", LONG).await.unwrap().found.unwrap().value, b"secret");
    let stranger = Through(Ftd::new(path, "other job".into()));
    let sentence = stranger.get("own/epoch", LONG).await.unwrap_err().to_string();
    assert!(sentence.contains("there is no other job"), "{sentence}");
}

/// Says that it serves, takes what comes, and answers nothing; closes after so many bytes of questions.
async fn mute(path: &Path, closes_after: usize) -> JoinHandle<()> {
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).unwrap();
    tokio::spawn(async move {
        let (near, far) = tokio::io::duplex(4096);
        let welcome = tokio::spawn(async move {
            let rights = all();
            let store = Embedded::open(tempfile::tempfile().unwrap()).unwrap();
            let _ = serve(take_seat(far).await.unwrap(), store, rights, |_| {}).await;
        });
        // What it says first is as long as this, whoever says it.
        let (mut stream, _) = listener.accept().await.unwrap();
        let (mut from, mut to) = tokio::io::split(near);
        let mut hello = [0; 16 + 8 + 18];
        stream.read_exact(&mut hello).await.unwrap();
        to.write_all(&hello).await.unwrap();
        let mut said = [0; 16 + 8 + 7];
        from.read_exact(&mut said).await.unwrap();
        stream.write_all(&said).await.unwrap();
        let mut taken = 0;
        let mut bytes = [0; 1024];
        while taken < closes_after {
            match stream.read(&mut bytes).await {
                Ok(count @ 1..) => taken += count,
                _ => break,
            }
        }
        welcome.abort();
    })
}

#[tokio::test]
async fn a_write_that_was_sent_and_not_answered_is_unknown_and_not_sent_again() {
    let (_directory, path) = place();
    // Nobody is there: nothing was sent, and that is said at once.
    let error = through(&path).compare_and_swap(swap(0, b"1"), LONG).await.unwrap_err();
    assert!(matches!(error, StoreError::Unanswered { .. }), "{error}");
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    // It is closed behind the question.
    let _closes = mute(&path, 1).await;
    let asked = Instant::now();
    let error = through(&path).compare_and_swap(swap(0, b"1"), LONG).await.unwrap_err();
    assert!(matches!(error, StoreError::Unknown { .. }), "{error}");
    assert!(asked.elapsed() < LONG / 2, "{:?}", asked.elapsed());
    // It takes the question and says nothing.
    let _stands = mute(&path, usize::MAX).await;
    let store = through(&path);
    let half = Duration::from_millis(500);
    let error = store.compare_and_swap(swap(0, b"1"), half).await.unwrap_err();
    assert!(matches!(error, StoreError::Unknown { .. }), "{error}");
    let error = store.get("own/epoch", half).await.unwrap_err();
    assert!(matches!(error, StoreError::Unanswered { .. }), "{error}");
    // And one that does not even say that it is there.
    let _ = std::fs::remove_file(&path);
    let _silent = UnixListener::bind(&path).unwrap();
    let error = through(&path).compare_and_swap(swap(0, b"1"), half).await.unwrap_err();
    assert!(matches!(error, StoreError::Unanswered { .. }), "{error}");
}

#[tokio::test]
async fn a_daemon_that_is_started_again_is_asked_again_and_its_watches_go_on() {
    let store = Embedded::open(tempfile::tempfile().unwrap()).unwrap();
    let (_directory, path) = place();
    let daemon = Daemon::serve(&path, store.clone(), all());
    let job = through(&path);
    let first = job.compare_and_swap(swap(0, b"1"), LONG).await.unwrap();
    let mut watch = job.watch(&Scope::Key("own/epoch".into()), first + 1);
    assert!(timeout(Duration::from_millis(200), watch.next()).await.is_err());
    drop(daemon);
    let second = store.compare_and_swap(swap(first, b"2"), LONG).await.unwrap();
    let gone = async { while job.get("own/epoch", Duration::from_millis(100)).await.is_ok() {} };
    timeout(LONG, gone).await.expect("nobody serves");
    let again = Daemon::serve(&path, store.clone(), all());
    let heard = timeout(LONG, watch.next()).await.expect("the watch goes on").unwrap();
    assert_eq!((heard.len(), heard[0].revision), (1, second));
    assert_eq!(job.get("own/epoch", LONG).await.unwrap().found.unwrap().revision, second);
    let third = job.compare_and_swap(swap(second, b"3"), LONG).await.unwrap();
    let heard = timeout(LONG, watch.next()).await.expect("and again").unwrap();
    assert_eq!((heard.len(), heard[0].revision), (1, third));
    drop(again);
    let gone = async { while job.get("own/epoch", Duration::from_millis(100)).await.is_ok() {} };
    timeout(LONG, gone).await.expect("nobody serves");
    let _daemon = Daemon::serve(&path, store.clone(), all());
    // What it has told once it does not tell again.
    assert!(timeout(Duration::from_secs(2), watch.next()).await.is_err(), "it repeats itself");
    // Who asks for more at a time than is asked for is served all the same.
    let many = (0..100).map(|_| {
        let job = job.clone();
        tokio::spawn(async move { job.get("own/epoch", LONG).await.unwrap().found.unwrap().revision })
    });
    for one in many.collect::<Vec<_>>() {
        assert_eq!(one.await.unwrap(), third);
    }
}

/// A dialler that says nothing, or nonsense, is left.
#[tokio::test]
async fn strangers_are_left() {
    let (near, mut far) = UnixStream::pair().unwrap();
    far.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(take_seat(near).await.is_err());
}
