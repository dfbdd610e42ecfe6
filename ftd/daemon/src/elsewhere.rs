//! What the users of this node ask of jobs on other nodes: which there are, and a way to the agent of one. The other nodes' daemons are told
//! who asks, which here the kernel has said.

use crate::dial::reach;
use crate::frames::{self, Broken, Stream, within};
use crate::link;
use crate::node::Record;
use crate::places::Places;
use crate::state::Launched;
use crate::succession::OnlyOne;
use crate::watch::Pulse;
use crate::{own_jobs, parts};
use ft_wire::part::{About, FromJobs, FromPeer, MAX_SAID, MOST_NAMED, Question, Running, Sought, ToPeer};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

/// So many nodes are asked at a time.
const AT_A_TIME: usize = 32;
/// A node that does not answer within this time is named as one that does not.
const PATIENCE: Duration = Duration::from_secs(2);
/// … and so are those that have not been asked by then.
const ALL: Duration = Duration::from_secs(10);
/// A node has been reached, and has found an agent or not, within this time.
const FOUND: Duration = Duration::from_secs(12);

/// Tells a user which jobs of his there are, root which there are at all.
///
/// # Errors
/// [`Broken`]: he does not listen.
pub async fn tell_jobs(mut stream: UnixStream, places: &Places, uid: u32) -> Result<(), Broken> {
    let word = match jobs(places, uid).await {
        Ok((jobs, silent)) => FromJobs::Running { jobs, silent },
        Err(sentence) => FromJobs::Refused { status: 1, sentence },
    };
    frames::send(&mut stream, &word).await
}

/// Jobs by name, each with its user and the nodes that have said that they have a part of it.
type Found = BTreeMap<String, (u32, Vec<String>)>;

async fn jobs(places: &Places, uid: u32) -> Result<(Vec<Running>, Vec<String>), String> {
    let (config, user) = (places.state().config(), parts::name_of(uid).await?);
    let mut found = Found::new();
    add(&mut found, config.node(), own_jobs::jobs(places.state(), uid));
    // Without certificates there are no jobs over several nodes.
    let nodes = if config.peers().is_some() { places.all().await? } else { Vec::new() };
    let mut silent: Vec<String> =
        nodes.iter().map(|node| node.name.clone()).filter(|name| name != config.node()).collect();
    let (mut asked, until) = (JoinSet::new(), Instant::now() + ALL);
    let mut hear = |answer: Option<(String, Vec<(String, u32)>)>| {
        if let Some((node, jobs)) = answer {
            silent.retain(|name| *name != node);
            add(&mut found, &node, jobs);
        }
    };
    for node in nodes.into_iter().filter(|node| node.name != config.node()) {
        if asked.len() >= AT_A_TIME {
            match timeout_at(until, asked.join_next()).await {
                Ok(answer) => hear(answer.and_then(Result::ok).flatten()),
                Err(_) => break,
            }
        }
        let (places, user) = (places.clone(), user.clone());
        asked.spawn(async move {
            let asked = ask(&places, &node, (uid, user), About::Jobs);
            match timeout(PATIENCE, asked).await {
                Ok(Ok((_, FromPeer::Jobs(jobs)))) => Some((node.name, jobs)),
                other => {
                    tracing::debug!(node = node.name, other = ?other.map(|said| said.map(|(_, word)| word)), "no answer");
                    None
                }
            }
        });
    }
    while let Ok(Some(answer)) = timeout_at(until, asked.join_next()).await {
        hear(answer.ok().flatten());
    }
    let running = |(job, (uid, nodes)): (String, _)| Running { launcher: Launched::by(&config, &job), job, uid, nodes };
    Ok((found.into_iter().map(running).collect(), silent))
}

fn add(found: &mut Found, node: &str, jobs: Vec<(String, u32)>) {
    for (job, uid) in jobs {
        let (_, nodes) = found.entry(job).or_insert_with(|| (uid, Vec::new()));
        if nodes.len() < MOST_NAMED {
            nodes.push(node.into());
        }
    }
}

/// Asks one node's daemon. Returns the connection, too: an agent may be at its end.
async fn ask(
    places: &Places,
    node: &Record,
    (uid, user): (u32, String),
    about: About,
) -> Result<(Box<dyn Stream>, FromPeer), String> {
    let config = places.state().config();
    let (from, to, window) = (config.node().to_string(), node.name.clone(), link::window(1));
    let question = Question { protocol: ft_wire::version(), from, to, uid, user, window, about };
    let (mut stream, address) = reach(&node.addresses(), &node.name, &config).await?;
    let answered = async {
        frames::send(&mut stream, &ToPeer::Ask(Box::new(question))).await?;
        frames::receive(&mut stream, MAX_SAID).await
    };
    let word = within(FOUND, answered).await.map_err(|error| format!("node {} ({address}): {error}", node.name))?;
    Ok((stream, word))
}

/// Leads a user to an agent: what he says from then on is said to that, and by that.
///
/// # Errors
/// [`Broken`]: he does not listen.
pub async fn lead_to_agent(mut stream: UnixStream, places: &Places, sought: Sought, uid: u32) -> Result<(), Broken> {
    let found = tokio::select! {
        found = agent(places, sought, uid) => found,
        // Who has gone meanwhile is led nowhere, and says nothing else before he is answered.
        () = frames::speaks(&stream) => return Ok(()),
    };
    match found {
        Ok(Agent::Here(mut agent)) => {
            frames::send(&mut stream, &FromJobs::Here).await?;
            let _ = tokio::io::copy_bidirectional(&mut stream, &mut agent).await;
            Ok(())
        }
        Ok(Agent::There(peer)) => {
            frames::send(&mut stream, &FromJobs::Here).await?;
            link::carry(peer, stream, link::window(1), Pulse::Asks, &mut OnlyOne).await
        }
        Err(sentence) => frames::send(&mut stream, &FromJobs::Refused { status: 1, sentence }).await,
    }
}

enum Agent {
    Here(UnixStream),
    There(Box<dyn Stream>),
}

/// The first agent that is found.
async fn agent(places: &Places, sought: Sought, uid: u32) -> Result<Agent, String> {
    let Sought { job, nodes, memory } = sought;
    let user = parts::name_of(uid).await?;
    let mut last = format!("no node is named on which the agent of job {} may be", job.escape_debug());
    for name in nodes.iter().take(MOST_NAMED) {
        if name == places.state().config().node() {
            match own_jobs::agent(places.state(), uid, &job, memory.clone()).await {
                Ok(agent) => return Ok(Agent::Here(agent)),
                Err(sentence) => last = sentence,
            }
            continue;
        }
        let about = About::Agent { job: job.clone(), memory: memory.clone() };
        let asked = async { ask(places, &places.find(name).await?, (uid, user.clone()), about).await };
        let late = || format!("node {name} does not answer within {} s", FOUND.as_secs());
        match timeout(FOUND, asked).await.unwrap_or_else(|_| Err(late())) {
            Ok((stream, FromPeer::Here)) => return Ok(Agent::There(stream)),
            Ok((_, FromPeer::Refused(sentence))) | Err(sentence) => last = sentence,
            Ok((_, FromPeer::Jobs(_))) => last = format!("node {name} does not answer what was asked"),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_named_once_with_a_few_of_its_nodes() {
        let mut found = Found::new();
        for number in 0..100 {
            add(&mut found, &format!("node{number}"), vec![("a".into(), 7)]);
        }
        add(&mut found, "node5", vec![("b".into(), 8)]);
        let named: Vec<_> = found.iter().map(|(job, (uid, nodes))| (job.as_str(), *uid, nodes.len())).collect();
        assert_eq!(named, [("a", 7, MOST_NAMED), ("b", 8, 1)]);
    }
}
