//! Agents of one job, which tell each other of a world and of copies.

use super::asker::process;
use super::helper::{proc, raised, target};
use super::job::{event, injection};
use super::{Sample, named, samples};
use ft_wire::between::{Asker, Fence, Leaver, NameAnswer, NameRequest, Protocol, StoreWord};
use ft_wire::between::{UserAnswer, UserQuestion, UserWord, Word};
use ft_wire::copies::{CopyFacts, CopyName, CopyWord};

fn fence() -> Fence {
    Fence { protocol: Protocol::Group(5), ranks: vec![(0, 4)], turn: 7 }
}

fn leaver() -> Leaver {
    Leaver { rank: 1, last: Some(7), finalized: true }
}

fn answer() -> NameAnswer {
    NameAnswer { status: -46, found: vec![(proc(), "k".into(), vec![1])] }
}

fn words() -> Vec<Sample> {
    let (token, parts) = (1, vec![b"a".to_vec(), Vec::new()]);
    let request = NameRequest::LookUp { keys: vec!["k".into()], wait: true, seconds: 6 };
    let user = UserWord::Answer { token, answer: UserAnswer::Noted(Err("no".into())) };
    samples![
        Word::Up { fence: fence(), parts: parts.clone() },
        Word::Down { fence: fence(), parts },
        Word::Modex { token, proc: proc() },
        Word::ModexData { token, status: -46, data: vec![255; 3] },
        Word::Name { asker: Asker::Pmix(5), request },
        Word::Named { asker: Asker::Pmi(3), answer: answer() },
        Word::Event(raised()),
        Word::Left { leavers: vec![leaver()] },
        Word::Copy(CopyWord::Offer { copy: copy(), facts: facts() }),
        Word::Store(StoreWord::Answer { token, answer: vec![1] }),
        Word::User(user),
    ]
}

fn of_worlds() -> Vec<Sample> {
    let keys = || vec!["k".to_string()];
    samples![
        Protocol::Pmi,
        Protocol::Pmix,
        Protocol::Connect,
        Protocol::Disconnect,
        Protocol::Group(5),
        fence(),
        leaver(),
        Asker::Pmix(5),
        Asker::Pmi(3),
        NameRequest::Publish { proc: proc(), values: vec![("k".into(), vec![1])], once: true },
        NameRequest::LookUp { keys: keys(), wait: true, seconds: 6 },
        NameRequest::Unpublish { proc: Some(proc()), keys: keys() },
        answer(),
        StoreWord::Ask { token: 1, within_ms: 9, question: vec![1] },
        StoreWord::Answer { token: 1, answer: vec![1] },
    ]
}

fn of_users() -> Vec<Sample> {
    let token = 1;
    let processes = UserAnswer::Processes { processes: vec![process()], copies: 2, injections: vec![injection()] };
    samples![
        UserWord::Ask { token, question: UserQuestion::Dead },
        UserWord::Answer { token, answer: UserAnswer::Noted(Ok("yes".into())) },
        UserQuestion::Processes,
        UserQuestion::Events { from: 3 },
        UserQuestion::Dead,
        UserQuestion::Inject { injection: injection(), uid: 1000 },
        processes,
        UserAnswer::Events { events: vec![event()], next: 4 },
        UserAnswer::Dead(vec![(1, 77)]),
        UserAnswer::Noted(Err("no".into())),
    ]
}

fn copy() -> CopyName {
    CopyName { epoch: 1, rank: 2, version: 3, committed: 1, turn: 0 }
}

fn facts() -> CopyFacts {
    CopyFacts { bytes: 4, regions: 1, table_check: u64::MAX, checksum: 6 }
}

fn of_copies() -> Vec<Sample> {
    let (copy, facts, target) = (copy(), facts(), target());
    let (address, reason) = (|| vec![1, 2], || "r".to_string());
    samples![
        copy,
        facts,
        CopyWord::Offer { copy, facts },
        CopyWord::Room { copy, target, address: address() },
        CopyWord::Written { copy },
        CopyWord::Kept { copy },
        CopyWord::NotKept { copy, reason: reason(), again: true },
        CopyWord::Want { copy },
        CopyWord::WantThrough { copy, holder: 3 },
        CopyWord::Readable { copy, facts, target, address: address() },
        CopyWord::NotReadable { copy, reason: reason() },
        CopyWord::Read { copy },
    ]
}

pub fn all() -> Vec<Sample> {
    let puts = vec![("k".to_string(), "v".to_string())];
    let puts = vec![named("between::puts_to_bytes".into(), puts)];
    [words(), of_worlds(), of_users(), of_copies(), puts].into_iter().flatten().collect()
}
