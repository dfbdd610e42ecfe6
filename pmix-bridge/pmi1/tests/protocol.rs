//! The protocol as clients see it.

#![allow(clippy::unwrap_used)]

mod names;

use ft_pmi1::{Action, Event, NameAnswer, ProtocolError, World, WorldError};
use names::Names;
use proptest::prelude::*;

fn world(size: usize) -> World {
    World::new("kvs", vec![0; size], 0).unwrap()
}

/// The text that `rank` is sent for `line`, and the events.
fn say(world: &mut World, rank: u32, line: &str) -> (String, Vec<Event>) {
    let mut text = String::new();
    let mut events = Vec::new();
    for action in world.receive(rank, line.as_bytes()).unwrap() {
        match action {
            Action::Send { rank: to, bytes } => {
                assert_eq!(to, rank);
                text += &String::from_utf8(bytes).unwrap();
            }
            Action::Event(event) => events.push(event),
        }
    }
    (text, events)
}

#[test]
fn the_start_of_mpich_is_answered() {
    let mut w = world(2);
    let (text, events) = say(&mut w, 0, "cmd=init pmi_version=1 pmi_subversion=1\ncmd=get_maxes\ncmd=get_appnum\n");
    assert_eq!(
        text,
        "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n\
         cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=4096 rc=0\ncmd=appnum appnum=0 rc=0\n"
    );
    assert_eq!(events, [Event::Initialized { rank: 0 }]);
    assert_eq!(say(&mut w, 0, "cmd=get_my_kvsname\n").0, "cmd=my_kvsname kvsname=kvs rc=0\n");
    assert_eq!(say(&mut w, 0, "cmd=get_universe_size\n").0, "cmd=universe_size size=2 rc=0\n");
    let (text, _) = say(&mut w, 0, "cmd=get kvsname=kvs key=PMI_process_mapping\n");
    assert_eq!(text, "cmd=get_result rc=0 msg=success value=(vector,(0,1,2))\n");
}

#[test]
fn each_rank_hears_the_number_of_its_program() {
    let mut w = World::new("kvs", vec![0, 1, 0], 0).unwrap();
    w.number_programs(|rank| rank + 5);
    for rank in [0, 2] {
        let (text, _) = say(&mut w, rank, "cmd=init pmi_version=1 pmi_subversion=1\ncmd=get_appnum\n");
        assert!(text.ends_with(&format!("cmd=appnum appnum={} rc=0\n", rank + 5)), "{text}");
    }
}

#[test]
fn what_other_nodes_put_and_there_is_no_room_for_is_told() {
    let mut w = World::new("kvs", vec![0, 1], 0).unwrap();
    say(&mut w, 0, "cmd=barrier_in\n");
    let full = w.barrier_complete([("k".to_string(), "v".repeat(64 << 20))]).unwrap_err();
    assert!(matches!(full, WorldError::Full(_)), "{full}");
    assert!(full.to_string().contains("put more through PMI than the 8 MiB"), "{full}");
}

#[test]
fn a_barrier_is_reported_once_and_ends_when_told() {
    let mut w = world(3);
    assert_eq!(say(&mut w, 0, "cmd=put kvsname=kvs key=k value=v w\n").0, "cmd=put_result rc=0 msg=success\n");
    assert_eq!(say(&mut w, 0, "cmd=barrier_in\n").1, [Event::Entered { rank: 0 }]);
    assert_eq!(w.barrier_complete([]), Err(WorldError::BarrierNotReady(2)));
    assert_eq!(say(&mut w, 2, "cmd=barrier_in\n").1, [Event::Entered { rank: 2 }]);
    let puts = vec![("k".to_string(), "v w".to_string())];
    assert_eq!(say(&mut w, 1, "cmd=barrier_in\n").1, [Event::BarrierReady { puts }]);
    let out = w.barrier_complete([("other".to_string(), "node".to_string())]).unwrap();
    let expected = (0..3).map(|rank| Action::Send { rank, bytes: b"cmd=barrier_out rc=0\n".to_vec() });
    assert_eq!(out, expected.collect::<Vec<_>>());
    assert_eq!(say(&mut w, 1, "cmd=get kvsname=kvs key=k\n").0, "cmd=get_result rc=0 msg=success value=v w\n");
    assert_eq!(say(&mut w, 1, "cmd=get kvsname=kvs key=other\n").0, "cmd=get_result rc=0 msg=success value=node\n");
    assert!(say(&mut w, 1, "cmd=get kvsname=kvs key=none\n").0.starts_with("cmd=get_result rc=-1"));
    assert_eq!(
        say(&mut w, 1, "cmd=getbyidx kvsname=kvs idx=1\n").0,
        "cmd=getbyidx_results rc=0 nextidx=2 key=other val=node\n"
    );
    assert!(say(&mut w, 1, "cmd=getbyidx kvsname=kvs idx=2\n").0.contains("no_more_keyvals"));
    // The second barrier passes on only what is new.
    for rank in 0..2 {
        say(&mut w, rank, "cmd=barrier_in\n");
    }
    assert_eq!(say(&mut w, 2, "cmd=barrier_in\n").1, [Event::BarrierReady { puts: vec![] }]);
}

#[test]
fn only_this_nodes_ranks_count() {
    let mut w = World::new("kvs", vec![0, 1, 1, 0], 1).unwrap();
    assert_eq!(w.receive(0, b"cmd=barrier_in\n"), Err(WorldError::NotLocal(0)));
    assert_eq!(w.environment(0), []);
    let pair = |(name, value): (&str, &str)| (name.to_string(), value.to_string());
    let env = [
        ("PMI_RANK", "2"),
        ("PMI_SIZE", "4"),
        ("PMI_SPAWNED", "0"),
        ("MPI_LOCALRANKID", "1"),
        ("MPI_LOCALNRANKS", "2"),
    ];
    assert_eq!(w.environment(2), env.map(pair));
    assert_eq!(w.receive(4, b"x"), Err(WorldError::NotLocal(4)));
    say(&mut w, 1, "cmd=barrier_in\n");
    assert_eq!(say(&mut w, 2, "cmd=barrier_in\n").1, [Event::BarrierReady { puts: vec![] }]);
    assert_eq!(w.barrier_complete([]).unwrap().len(), 2);
}

#[test]
fn ends_are_told_apart() {
    let mut w = world(2);
    assert!(!w.is_active(0));
    say(&mut w, 0, "cmd=init pmi_version=1 pmi_subversion=1\n");
    assert!(w.is_active(0));
    let (text, events) = say(&mut w, 0, "cmd=finalize\n");
    assert_eq!((text.as_str(), events), ("cmd=finalize_ack rc=0\n", vec![Event::Finalized { rank: 0 }]));
    assert!(!w.is_active(0));
    // An abort may come from inside the barrier (another thread).
    say(&mut w, 1, "cmd=barrier_in\n");
    let (text, events) = say(&mut w, 1, "cmd=abort exitcode=7 message=gave up, sorry\n");
    assert_eq!(text, "");
    assert_eq!(events, [Event::Aborted { rank: 1, code: 7, message: "gave up, sorry".to_string() }]);
}

#[test]
fn nobody_finalizes_after_an_abort() {
    let mut w = world(1);
    say(&mut w, 0, "cmd=init pmi_version=1 pmi_subversion=1\ncmd=abort exitcode=3\n");
    assert_eq!(say(&mut w, 0, "cmd=finalize\n"), ("cmd=finalize_ack rc=0\n".to_string(), vec![]));
    assert!(w.is_active(0));
}

#[test]
fn names_go_through_a_directory() {
    let mut w = world(1);
    let mut names = Names::default();
    let mut ask = |line: &str| {
        let (text, events) = say(&mut w, 0, line);
        assert_eq!(text, "");
        let [Event::Name { rank: 0, request }] = events.as_slice() else { panic!("{events:?}") };
        let answer = names.handle(request);
        let actions = w.answer_name(0, answer).unwrap();
        let [Action::Send { bytes, .. }] = actions.as_slice() else { panic!("{actions:?}") };
        String::from_utf8(bytes.clone()).unwrap()
    };
    assert!(ask("cmd=lookup_name service=s\n").contains("rc=1"));
    assert_eq!(ask("cmd=publish_name service=s port=tag#0$host$\n"), "cmd=publish_result info=ok rc=0 msg=success\n");
    assert!(ask("cmd=publish_name service=s port=other\n").contains("name_is_already_published"));
    assert!(ask("cmd=lookup_name service=s\n").ends_with("port=tag#0$host$\n"));
    assert_eq!(ask("cmd=unpublish_name service=s\n"), "cmd=unpublish_result info=ok rc=0 msg=success\n");
    assert!(ask("cmd=unpublish_name service=s\n").contains("rc=1"));
    assert_eq!(w.answer_name(0, NameAnswer::Done), Err(WorldError::NoRequest(0)));
}

#[test]
fn spawn_is_refused_after_its_last_block() {
    let mut w = world(1);
    let block =
        "mcmd=spawn\nnprocs=2\nexecname=./worker\ntotspawns=2\nspawnssofar=1\narg1=cmd=finalize\nargcnt=1\nendcmd\n";
    assert_eq!(say(&mut w, 0, block), (String::new(), vec![]));
    let (text, events) = say(&mut w, 0, block);
    assert!(text.starts_with("cmd=spawn_result rc=-1"), "{text}");
    assert_eq!(events, [Event::SpawnRefused { rank: 0, command: "./worker".to_string() }]);
    assert_eq!(say(&mut w, 0, "cmd=get_appnum\n").0, "cmd=appnum appnum=0 rc=0\n");
}

#[test]
fn broken_ranks_are_reported_once_and_disturb_nobody() {
    let broken = |bytes: &[u8]| {
        let mut w = world(2);
        let actions = w.receive(0, bytes).unwrap();
        let [Action::Event(Event::Broken { rank: 0, error })] = actions.as_slice() else { panic!("{actions:?}") };
        assert_eq!(w.receive(0, b"cmd=get_appnum\n").unwrap(), []);
        assert_eq!(say(&mut w, 1, "cmd=get_appnum\n").0, "cmd=appnum appnum=0 rc=0\n");
        error.clone()
    };
    assert_eq!(broken(b"hello\ncmd=get_appnum\n"), ProtocolError::UnknownCommand("hello".to_string()));
    assert_eq!(broken(b"cmd=fly\n"), ProtocolError::UnknownCommand("cmd=fly".to_string()));
    assert_eq!(broken(b"\xff\xfe\n"), ProtocolError::NotText);
    assert_eq!(broken(b"cmd=get_appnum\0\n"), ProtocolError::NotText);
    assert_eq!(broken(&[b'a'; ft_pmi1::MAX_LINE + 1]), ProtocolError::LineTooLong);
    assert_eq!(broken(b"cmd=get\n"), ProtocolError::Field { command: "get".to_string(), field: "key" });
    assert!(matches!(broken(b"cmd=getbyidx idx=-1\n"), ProtocolError::Field { field: "idx", .. }));
}

#[test]
fn a_rank_cannot_enter_a_barrier_twice_or_talk_from_inside() {
    let mut w = world(2);
    say(&mut w, 0, "cmd=barrier_in\n");
    let (_, events) = say(&mut w, 0, "cmd=barrier_in\n");
    assert!(matches!(events.as_slice(), [Event::Broken { error: ProtocolError::OutOfTurn { .. }, .. }]), "{events:?}");
}

#[test]
fn too_long_keys_are_answered() {
    let mut w = world(1);
    let key = "k".repeat(ft_pmi1::MAX_KEY);
    assert!(say(&mut w, 0, &format!("cmd=put kvsname=kvs key={key} value=1\n")).0.starts_with("cmd=put_result rc=-1"));
}

#[test]
fn unreadable_worlds_are_refused() {
    assert_eq!(World::new("kvs", vec![], 0).unwrap_err(), WorldError::Empty);
    assert!(matches!(World::new("a b", vec![0], 0), Err(WorldError::BadName(_))));
    let scattered = (0..2000).map(|rank| rank * 7 % 1000).collect();
    assert!(matches!(World::new("kvs", scattered, 0), Err(WorldError::MappingTooLong { .. })));
}

fn words() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        Just(b"cmd=".to_vec()),
        Just(b"mcmd=spawn\n".to_vec()),
        Just(b"endcmd\n".to_vec()),
        Just(b"totspawns=99999999999999999999\n".to_vec()),
        Just(b"init pmi_version=1 ".to_vec()),
        Just(b"cmd=put key=a value=b\n".to_vec()),
        Just(b"cmd=get key=a\n".to_vec()),
        Just(b"cmd=getbyidx idx=0\n".to_vec()),
        Just(b"cmd=barrier_in\n".to_vec()),
        Just(b"cmd=finalize\n".to_vec()),
        Just(b"cmd=publish_name service=x port=y\n".to_vec()),
        Just(b"cmd=lookup_name service=x\n".to_vec()),
        Just(b"cmd=abort exitcode=99999999999999\n".to_vec()),
        Just(b" \t\r".to_vec()),
        Just(b"=".to_vec()),
        Just(b"\n".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..40),
    ];
    proptest::collection::vec(word, 0..12).prop_map(|words| words.concat())
}

#[test]
fn shared_memory_is_named_as_mpich_5_names_it() {
    // Seen in /dev/shm.
    let files = World::new("ftd-test.1", vec![0], 0).unwrap().shared_memory_files();
    assert_eq!(files, ["/dev/shm/mpich_shm_bbcf2999_0", "/dev/shm/mpich_vci_bbcf2999_0"]);
}

proptest! {
    #[test]
    fn nothing_panics_and_cuts_do_not_matter(said in proptest::collection::vec((0u32..3, words()), 0..20), cut in 1usize..9) {
        let (mut whole, mut parts) = (world(3), world(3));
        let mut names = Names::default();
        for (rank, bytes) in said {
            let all = whole.receive(rank, &bytes).unwrap();
            let mut pieces = Vec::new();
            for piece in bytes.chunks(cut) {
                pieces.extend(parts.receive(rank, piece).unwrap());
            }
            prop_assert_eq!(&all, &pieces);
            for action in all {
                match action {
                    Action::Event(Event::BarrierReady { .. }) => {
                        prop_assert_eq!(whole.barrier_complete([]), parts.barrier_complete([]));
                    }
                    Action::Event(Event::Name { rank, request }) => {
                        let answer = names.handle(&request);
                        prop_assert!(whole.answer_name(rank, answer.clone()).is_ok());
                        prop_assert!(parts.answer_name(rank, answer).is_ok());
                    }
                    Action::Send { bytes, .. } => {
                        prop_assert!(bytes.ends_with(b"\n"));
                        prop_assert_eq!(bytes.iter().filter(|b| **b == b'\n').count(), 1);
                    }
                    Action::Event(_) => {}
                }
            }
        }
    }
}

/// Keys are bounded with what holds them, a key that is put again counts once, and the first refusal is told.
#[test]
fn keys_are_bounded() {
    let mut world = World::new("kvs", vec![0, 0], 0).unwrap();
    let mut put = |key: usize, value: &str| {
        world.receive(0, format!("cmd=put kvsname=kvs key=k{key} value={value}\n").as_bytes()).unwrap()
    };
    for _ in 0..200_000 {
        assert_eq!(put(0, "same").len(), 1);
    }
    let mut refused = 0;
    let mut told = 0;
    for key in 1..200_000 {
        for action in put(key, "v") {
            match action {
                Action::Send { bytes, .. } => refused += usize::from(bytes.ends_with(b"key_space_full\n")),
                Action::Event(Event::Full { rank: 0, most }) => {
                    assert!(most < 16 << 20);
                    told += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(refused > 100_000 && told == 1, "{refused} {told}");
    assert!(matches!(&put(0, "other")[..], [Action::Send { bytes, .. }] if bytes.ends_with(b"success\n")));
}
