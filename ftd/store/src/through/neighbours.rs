//! Agents and daemons of releases that follow each other.

use super::wire::{Hello, OLDEST, ToFtd, VERSION, Welcome, receive};
use super::{Answer, Answers, Broken, Ftd, Question, take_seat};
use crate::store::Scope;
use ft_wire::{MAX_BODY, PREAMBLE_LEN, Preamble, Role};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

const LONG: Duration = Duration::from_secs(20);

/// What a side of another release says first.
fn preamble(role: Role) -> [u8; PREAMBLE_LEN] {
    Preamble { version: ft_wire::VERSION + 7, role }.to_bytes()
}

/// A daemon that speaks these versions, whatever this one speaks: hears who dials, and answers.
async fn answers(listener: &UnixListener, oldest: u32, newest: u32) -> (UnixStream, u32) {
    let (mut stream, _) = listener.accept().await.unwrap();
    stream.write_all(&preamble(Role::Daemon)).await.unwrap();
    let mut first = [0; PREAMBLE_LEN];
    stream.read_exact(&mut first).await.unwrap();
    let Hello { version, .. } = receive(&mut stream, MAX_BODY).await.unwrap();
    let known = (oldest..=newest).contains(&version);
    let word = if known { Welcome::Served } else { Welcome::Speaks { oldest, newest } };
    stream.write_all(&ft_wire::encode(&word, 0).unwrap()).await.unwrap();
    (stream, version)
}

#[tokio::test]
async fn an_agent_speaks_its_own_version_with_a_newer_daemon() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sock");
    let listener = UnixListener::bind(&path).unwrap();
    let ftd = Ftd::new(path, "j".into());
    let read = Question::Read(Scope::Key("k".into()));
    let asked = tokio::spawn({
        let (ftd, read) = (ftd.clone(), read.clone());
        async move { ftd.answer(read, LONG).await }
    });
    let (mut stream, version) = answers(&listener, VERSION, VERSION + 1).await;
    assert_eq!(version, VERSION);
    let word: ToFtd = receive(&mut stream, MAX_BODY).await.unwrap();
    let ToFtd::Question { number, question, .. } = word else { panic!("{word:?}") };
    assert_eq!(question, read);
    let answer = super::wire::FromFtd::Answer { number, answer: Answer::Written(7) };
    stream.write_all(&ft_wire::encode(&answer, 0).unwrap()).await.unwrap();
    assert!(matches!(asked.await.unwrap(), Answer::Written(7)));
}

#[tokio::test]
async fn releases_that_have_no_version_in_common_say_so_and_dial_no_more() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sock");
    let listener = UnixListener::bind(&path).unwrap();
    let ftd = Ftd::new(path, "j".into());
    let asked = tokio::spawn(async move { ftd.answer(Question::Read(Scope::Key("k".into())), LONG).await });
    answers(&listener, VERSION + 1, VERSION + 2).await;
    let Answer::Failed(failure) = asked.await.unwrap() else { panic!("it was answered") };
    let said = format!("{failure:?}");
    assert!(said.contains(&format!("it speaks version {}", VERSION + 2)) && said.contains("end its job"), "{said}");
}

#[tokio::test]
async fn a_daemon_serves_its_neighbours_and_tells_others_what_it_speaks() {
    for version in [OLDEST - 1, OLDEST, VERSION, VERSION + 1] {
        let (mut agent, ftd) = tokio::io::duplex(4096);
        let seated = tokio::spawn(take_seat(ftd));
        agent.write_all(&preamble(Role::Agent)).await.unwrap();
        let hello = Hello { version, job: "j".into() };
        agent.write_all(&ft_wire::encode(&hello, 0).unwrap()).await.unwrap();
        let seated = seated.await.unwrap();
        if (OLDEST..=VERSION).contains(&version) {
            assert_eq!(seated.unwrap().job, "j");
            continue;
        }
        assert!(matches!(seated, Err(Broken::Version { theirs }) if theirs == version), "{version}");
        agent.read_exact(&mut [0; PREAMBLE_LEN]).await.unwrap();
        let word: Welcome = receive(&mut agent, MAX_BODY).await.unwrap();
        assert_eq!(word, Welcome::Speaks { oldest: OLDEST, newest: VERSION });
    }
}
