//! The ways to the store: this node's `ftd`, and, where that is gone or does not reach it, those of other nodes, whose agents pass on what
//! is asked.
//!
//! What may be asked twice is asked of several at once where this node's `ftd` is slow; a compare-and-swap goes one way, and another one
//! only when it was certainly not carried out. Watches have this node's `ftd` alone: what they lose is read again.

use crate::outlet::Outlet;
use ft_store::Scope;
use ft_store::through::{Answer, Answers, Copied, Failure, Ftd, FtdWatch, Question};
use ft_wire::FRAME_HEADER;
use ft_wire::between::StoreWord;
use ftd_core::{Members, NodeId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// Of the time of a question, this node's `ftd` has so much before others are asked as well.
const ALONE: u32 = 6;
/// So many others are asked at a time, other ones each time.
const AT_ONCE: usize = 3;
/// So many questions of other nodes are asked here at a time.
const FOR_OTHERS: usize = 64;
/// No question of theirs may take longer.
const LONGEST: Duration = Duration::from_secs(10);

/// Something about the store is to be said to another node.
#[derive(Debug)]
pub struct News {
    /// To which.
    pub to: NodeId,
    /// What.
    pub word: StoreWord,
}

/// A way to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Own,
    Through(NodeId),
}

/// All ways of this node. Clones are the same.
#[derive(Debug, Clone)]
pub struct Ways {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    own: Ftd,
    me: NodeId,
    others: Mutex<Others>,
    news: Outlet<News>,
    room: Arc<Semaphore>,
}

#[derive(Debug)]
struct Others {
    /// The job's other nodes.
    nodes: Vec<NodeId>,
    /// Whose turn it is to be asked.
    turn: usize,
    /// Of the last question. An agent that comes after this one has higher ones: an answer is for the one who asked.
    token: u64,
    waiting: BTreeMap<u64, oneshot::Sender<Answer>>,
    /// By which an answer came last, if none has failed since.
    good: Option<Way>,
}

impl Others {
    /// The next ones to be asked.
    fn next(&mut self) -> Vec<NodeId> {
        let good = match self.good {
            Some(Way::Through(node)) => Some(node).filter(|node| self.nodes.contains(node)),
            _ => None,
        };
        let count = self.nodes.len();
        let from = self.turn % count.max(1);
        self.turn = (from + AT_ONCE) % count.max(1);
        let rest = (0..count).map(|at| self.nodes[(from + at) % count]).filter(|node| Some(*node) != good);
        good.into_iter().chain(rest).take(AT_ONCE).collect()
    }
}

/// Whether it says what became of the question.
fn settles(answer: &Answer) -> bool {
    !matches!(answer, Answer::Failed(failure) if failure.leaves_it_open())
}

fn bytes_of(message: &impl Serialize) -> Option<Vec<u8>> {
    ft_wire::encode(message, 0).ok()
}

fn message_of<M: DeserializeOwned>(bytes: &[u8]) -> Option<M> {
    ft_wire::decode(bytes.get(FRAME_HEADER..)?).ok()
}

impl Ways {
    /// Of a job's agent on node `me` of so many. What it says to others leaves through `news`.
    pub fn new(
        (socket, job): (PathBuf, &str),
        (me, nodes): (NodeId, usize),
        incarnation: u64,
        news: Outlet<News>,
    ) -> Ways {
        let nodes = (0..nodes as u32).map(NodeId).filter(|node| *node != me).collect();
        // Not all begin with the same one.
        let turn = me.0 as usize;
        let others = Others { nodes, turn, token: incarnation, waiting: BTreeMap::new(), good: Some(Way::Own) };
        let own = Ftd::new(socket, job.to_string());
        let room = Arc::new(Semaphore::new(FOR_OTHERS));
        Ways { shared: Arc::new(Shared { own, me, others: Mutex::new(others), news, room }) }
    }

    /// Says to this node's `ftd` what was copied; whether it was said.
    pub fn tell(&self, copied: Copied) -> bool {
        self.shared.own.tell(copied)
    }

    /// These are in the job.
    pub fn adopt(&self, members: &Members) {
        let me = self.shared.me;
        self.others().nodes = members.iter().filter(|node| *node != me).collect();
    }

    fn others(&self) -> MutexGuard<'_, Others> {
        self.shared.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node says this.
    pub fn hear(&self, from: NodeId, word: StoreWord) {
        match word {
            StoreWord::Answer { token, answer } => {
                let waiting = self.others().waiting.remove(&token);
                if let Some((say, answer)) = waiting.zip(message_of(&answer)) {
                    let _ = say.send(answer);
                }
            }
            StoreWord::Ask { token, within_ms, question } => {
                let Some(question) = message_of::<Question>(&question) else { return };
                let shared = self.shared.clone();
                tokio::spawn(async move {
                    let answer = shared.ask_for(question, Duration::from_millis(within_ms).min(LONGEST)).await;
                    if let Some(answer) = bytes_of(&answer) {
                        shared.news.send(News { to: from, word: StoreWord::Answer { token, answer } });
                    }
                });
            }
        }
    }

    /// What was to be said was not said, and will not be.
    pub fn unsaid(&self, word: &StoreWord) {
        if let StoreWord::Ask { token, .. } = word {
            self.others().waiting.remove(token);
        }
    }

    /// Asks one way.
    async fn ask(&self, way: Way, question: Question, within: Duration) -> Answer {
        match way {
            Way::Own => self.shared.own.answer(question, within).await,
            Way::Through(node) => self.ask_through(node, question, within).await,
        }
    }

    async fn ask_through(&self, node: NodeId, question: Question, within: Duration) -> Answer {
        let until = Instant::now() + within;
        let name = format!("the ftd of {node}");
        let unsent = |reason: &str| {
            let by = ft_store::Trouble { endpoint: name.clone(), reason: reason.into(), lasting: false };
            Answer::Failed(Failure::Unanswered(vec![by]))
        };
        let Some(bytes) = bytes_of(&question) else { return unsent("the question is too long") };
        let (say, answer) = oneshot::channel();
        let token = {
            let mut others = self.others();
            others.waiting.retain(|_, say| !say.is_closed());
            others.token += 1;
            let token = others.token;
            others.waiting.insert(token, say);
            token
        };
        let within_ms = u64::try_from((within - within / 8).as_millis()).unwrap_or(u64::MAX);
        let word = StoreWord::Ask { token, within_ms, question: bytes };
        if !self.shared.news.send(News { to: node, word }) {
            return unsent("this agent ends");
        }
        match timeout_at(until, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => unsent("there is no way to it at this moment"),
            Err(_) => Answer::Failed(question.unanswered(&name, "no answer", within)),
        }
    }

    /// What has come by a way says how good it is.
    fn note(&self, way: Way, serves: bool) {
        let mut others = self.others();
        if serves {
            if others.good != Some(way) {
                tracing::info!(?way, "the way to the store");
            }
            others.good = Some(way);
        } else if others.good == Some(way) {
            others.good = None;
        }
    }

    /// Asks this node's `ftd`, and others as well when that does not answer soon. The first answer counts.
    async fn ask_widely(&self, question: Question, within: Duration) -> Answer {
        let begun = Instant::now();
        let mut asked = JoinSet::new();
        let ask = |asked: &mut JoinSet<(Way, Answer)>, way: Way| {
            let (ways, question) = (self.clone(), question.clone());
            let left = (begun + within).saturating_duration_since(Instant::now());
            asked.spawn(async move { (way, ways.ask(way, question, left).await) });
        };
        ask(&mut asked, Way::Own);
        let alone = if self.others().good == Some(Way::Own) { within / ALONE } else { Duration::ZERO };
        let (mut alone, mut failed) = (Some(begun + alone), None);
        loop {
            let next = match alone {
                Some(until) => timeout_at(until, asked.join_next()).await.unwrap_or(None),
                None => asked.join_next().await,
            };
            match next {
                Some(Ok((way, answer))) if settles(&answer) => {
                    self.note(way, true);
                    return answer;
                }
                Some(Ok((way, answer))) => {
                    self.note(way, false);
                    // What this node's own says of it is what people can mend.
                    failed = if way == Way::Own { Some(answer) } else { failed.or(Some(answer)) };
                }
                Some(Err(_)) => {}
                None if alone.is_none() => break,
                None => {}
            }
            if alone.take().is_some() {
                let others = self.others().next();
                others.into_iter().for_each(|node| ask(&mut asked, Way::Through(node)));
            }
        }
        failed.unwrap_or_else(|| Answer::Failed(Failure::Unanswered(Vec::new())))
    }

    /// Asks one way after the other, as long as it was certainly not done.
    async fn ask_once(&self, question: Question, within: Duration) -> Answer {
        let until = Instant::now() + within;
        let order = {
            let mut others = self.others();
            let first = others.good.unwrap_or(Way::Own);
            let rest = std::iter::once(Way::Own).chain(others.next().into_iter().map(Way::Through));
            let rest: Vec<Way> = rest.filter(|way| *way != first).collect();
            [vec![first], rest].concat()
        };
        let mut failed = None;
        for way in order {
            // Of what is left, half: the next one is to have some, too.
            let left = until.saturating_duration_since(Instant::now());
            let answer = self.ask(way, question.clone(), left / 2).await;
            let known = !matches!(answer, Answer::Failed(Failure::Unknown { .. }));
            self.note(way, settles(&answer) && known);
            if settles(&answer) {
                return answer;
            }
            failed = if way == Way::Own { Some(answer) } else { failed.or(Some(answer)) };
        }
        failed.unwrap_or_else(|| Answer::Failed(Failure::Unanswered(Vec::new())))
    }
}

impl Shared {
    /// Asks this node's `ftd` for another node's agent.
    async fn ask_for(&self, question: Question, within: Duration) -> Answer {
        let busy = |reason: &str| Answer::Failed(Failure::refused("its agent", reason.into()));
        if !matches!(question, Question::Read(_) | Question::Swap(_)) {
            return busy("that is not asked for others");
        }
        match self.room.try_acquire() {
            Ok(_place) => self.own.answer(question, within).await,
            Err(_) => busy("it asks as much for others as it may"),
        }
    }
}

impl Answers for Ways {
    type Watch = FtdWatch;

    async fn answer(&self, question: Question, within: Duration) -> Answer {
        if question.is_harmless() {
            self.ask_widely(question, within).await
        } else {
            self.ask_once(question, within).await
        }
    }

    fn watch(&self, scope: &Scope, from: u64) -> FtdWatch {
        self.shared.own.watch(scope, from)
    }
}

#[cfg(test)]
mod tests;
