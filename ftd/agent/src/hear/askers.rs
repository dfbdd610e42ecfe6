//! What the job's user asks.

use super::injections;
use crate::asker::Asker;
use crate::elsewhere::Elsewhere;
use crate::link::Link;
use crate::rooms::Rooms;
use crate::view;
use ft_wire::ask::{Event, FromAgent, Job, Process, ToAgent};
use ft_wire::between::{UserAnswer, UserQuestion, UserWord};
use ft_wire::injection::Injection;
use ftd_core::{Agent, Micros, NodeId};
use std::collections::BTreeMap;
use std::time::Duration;

/// Who follows what happens is told this often of other nodes, …
const AGAIN: Duration = Duration::from_secs(1);
/// … and no more often than with so long for each of them: nobody has questions for hundreds of nodes each second.
const FOR_EACH: Duration = Duration::from_millis(10);

/// One of them asks something.
pub fn take(rooms: &mut Rooms, core: &Agent, now: Micros, asker: &Asker, message: ToAgent) {
    let Asker { connection, link, uid } = asker;
    match message {
        ToAgent::Show => {
            tokio::spawn(show(view::of(core, rooms, now), rooms.elsewhere.clone(), link.clone()));
        }
        ToAgent::Events { follow } => {
            rooms.job.events.tell(*connection, link, follow);
            let telling = tokio::spawn(tell_of_others(rooms.elsewhere.clone(), link.clone(), follow));
            rooms.job.events.asks(*connection, telling.abort_handle());
        }
        ToAgent::Name => link.send(&FromAgent::Noted(rooms.job.spec.job.clone())),
        ToAgent::Inject(injection) => {
            let here = rooms.job.spec.cluster.as_ref().map_or(0, |cluster| cluster.me);
            match view::node_of(core, injection.rank).filter(|node| node.0 != here) {
                None => link.send(&said(injections::ask(rooms, injection, *uid))),
                Some(node) => {
                    let name = rooms.job.said(&node.to_string());
                    let (elsewhere, link, uid) = (rooms.elsewhere.clone(), link.clone(), *uid);
                    tokio::spawn(async move {
                        link.send(&said(inject_there(&elsewhere, (node, &name), injection, uid).await));
                    });
                }
            }
        }
    }
}

fn said(result: Result<String, String>) -> FromAgent {
    result.map_or_else(FromAgent::Refused, FromAgent::Noted)
}

/// The files of many processes are read behind, and nobody waits for other nodes.
async fn show(mut job: Job, elsewhere: Elsewhere, link: Link) {
    let own = looked(std::mem::take(&mut job.processes));
    let (own, others) = tokio::join!(own, elsewhere.ask_all(|_| UserQuestion::Processes));
    job.processes = own;
    for (node, answer) in others {
        if let UserAnswer::Processes { processes, copies, injections } = answer {
            view::add(&mut job, node, (processes, copies, injections));
        }
    }
    link.send(&FromAgent::Job(Box::new(job)));
}

async fn looked(mut processes: Vec<Process>) -> Vec<Process> {
    let looks = tokio::task::spawn_blocking(move || {
        processes.iter_mut().for_each(view::look);
        processes
    });
    looks.await.unwrap_or_default()
}

/// Adds what has happened on other nodes, and, for who wants to `follow`, what happens there.
async fn tell_of_others(elsewhere: Elsewhere, link: Link, follow: bool) {
    let mut known = BTreeMap::new();
    news_of_others(&elsewhere, &mut known).await.into_iter().for_each(|event| link.send(&FromAgent::Event(event)));
    link.send(&FromAgent::Told);
    if !follow {
        return;
    }
    loop {
        tokio::time::sleep(pause(elsewhere.nodes().len())).await;
        news_of_others(&elsewhere, &mut known).await.into_iter().for_each(|event| link.send(&FromAgent::Event(event)));
    }
}

/// How long nobody asks so many nodes what has happened there.
fn pause(nodes: usize) -> Duration {
    AGAIN.max(FOR_EACH * u32::try_from(nodes).unwrap_or(u32::MAX))
}

/// What has happened on other nodes that was not known, in the order of the time; `known`: up to which number, of each.
async fn news_of_others(elsewhere: &Elsewhere, known: &mut BTreeMap<NodeId, u64>) -> Vec<Event> {
    let from = |node| UserQuestion::Events { from: known.get(&node).copied().unwrap_or(0) };
    let mut news = Vec::new();
    for (node, answer) in elsewhere.ask_all(from).await {
        if let UserAnswer::Events { events, next } = answer {
            known.insert(node, next);
            news.extend(events);
        }
    }
    news.sort_by_key(|event| event.at_ms);
    news
}

async fn inject_there(
    elsewhere: &Elsewhere,
    (node, name): (NodeId, &str),
    injection: Injection,
    uid: u32,
) -> Result<String, String> {
    let rank = injection.rank;
    match elsewhere.ask(node, UserQuestion::Inject { injection, uid }).await {
        Some(UserAnswer::Noted(noted)) => noted,
        _ => Err(format!("the agent of {name} does not answer: whether rank {rank} dies is not known")),
    }
}

/// Another node's agent asks for the job's user, or answers.
pub fn hear(rooms: &mut Rooms, from: NodeId, word: UserWord) {
    let (token, question) = match word {
        UserWord::Answer { token, answer } => return rooms.elsewhere.answered(token, answer),
        UserWord::Ask { token, question } => (token, question),
    };
    let elsewhere = rooms.elsewhere.clone();
    let say = move |answer| {
        elsewhere.say(from, UserWord::Answer { token, answer });
    };
    match question {
        UserQuestion::Processes => {
            let (processes, copies, injections) = view::processes(rooms);
            tokio::spawn(async move {
                say(UserAnswer::Processes { processes: looked(processes).await, copies, injections });
            });
        }
        UserQuestion::Events { from } => {
            let (events, next) = rooms.job.events.own(from);
            say(UserAnswer::Events { events, next });
        }
        UserQuestion::Dead => say(UserAnswer::Dead(rooms.costs.dead().to_vec())),
        UserQuestion::Inject { injection, uid } => say(UserAnswer::Noted(injections::ask(rooms, injection, uid))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_nodes_there_are_the_less_often_each_is_asked() {
        assert_eq!([0, 3, 100].map(pause), [AGAIN; 3]);
        assert_eq!(pause(1000), Duration::from_secs(10));
    }
}
