//! What the job's user asks one agent, and others know: they are asked, and what they say comes here.

use crate::outlet::Outlet;
use ft_wire::Rank;
use ft_wire::between::{UserAnswer, UserQuestion, UserWord};
use ftd_core::{Members, NodeId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Who has not answered by then is not waited for: people look on, and ftctl has a patience of its own.
const PATIENCE: Duration = Duration::from_secs(2);

/// So many nodes are asked at a time …
const AT_A_TIME: usize = 32;
/// … of which those do not count that have not answered by then: they keep nobody else waiting.
const SLOW: Duration = Duration::from_millis(50);
/// After so long all that are left are asked at once.
const LONG: Duration = Duration::from_secs(1);

/// What comes of it.
#[derive(Debug)]
pub enum News {
    /// Something is to be said to another node.
    Say {
        /// To which.
        to: NodeId,
        /// What.
        word: UserWord,
    },
    /// Processes of another node have died.
    Dead {
        /// Whose.
        node: NodeId,
        /// Ranks, and the numbers of their processes.
        dead: Vec<(Rank, i32)>,
    },
}

/// The agents of the job's other nodes. Clones are the same.
#[derive(Debug, Clone)]
pub struct Elsewhere {
    shared: Arc<Mutex<Shared>>,
    news: Outlet<News>,
}

#[derive(Debug, Default)]
struct Shared {
    nodes: Vec<NodeId>,
    /// Of the last question. An agent that comes after this one has higher ones: an answer is for the one who asked.
    token: u64,
    waiting: BTreeMap<u64, oneshot::Sender<UserAnswer>>,
}

impl Elsewhere {
    /// None are known yet. What is said to them leaves through `news`.
    pub fn new(news: Outlet<News>) -> Elsewhere {
        let token = ft_sys::process::micros_since_boot();
        Elsewhere { shared: Arc::new(Mutex::new(Shared { token, ..Shared::default() })), news }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These are in the job; this node is `me`.
    pub fn adopt(&self, members: &Members, me: NodeId) {
        self.shared().nodes = members.iter().filter(|node| *node != me).collect();
    }

    /// The others.
    pub fn nodes(&self) -> Vec<NodeId> {
        self.shared().nodes.clone()
    }

    /// One of them has answered.
    pub fn answered(&self, token: u64, answer: UserAnswer) {
        let waiting = self.shared().waiting.remove(&token);
        // Who asked may have stopped waiting.
        waiting.into_iter().for_each(|say| drop(say.send(answer.clone())));
    }

    /// This was not said, and will not be.
    pub fn unsaid(&self, word: &UserWord) {
        if let UserWord::Ask { token, .. } = word {
            self.shared().waiting.remove(token);
        }
    }

    /// Says something to one of them.
    pub fn say(&self, to: NodeId, word: UserWord) -> bool {
        self.news.send(News::Say { to, word })
    }

    /// Asks one of them. Nothing: it does not answer in time.
    pub async fn ask(&self, to: NodeId, question: UserQuestion) -> Option<UserAnswer> {
        let (say, answer) = oneshot::channel();
        let token = {
            let mut shared = self.shared();
            shared.waiting.retain(|_, say| !say.is_closed());
            shared.token += 1;
            let token = shared.token;
            shared.waiting.insert(token, say);
            token
        };
        if !self.say(to, UserWord::Ask { token, question }) {
            return None;
        }
        tokio::time::timeout(PATIENCE, answer).await.ok()?.ok()
    }

    /// Asks one of them which processes have died there.
    pub fn ask_for_dead(&self, node: NodeId) {
        let these = self.clone();
        tokio::spawn(async move {
            if let Some(UserAnswer::Dead(dead)) = these.ask(node, UserQuestion::Dead).await {
                these.news.send(News::Dead { node, dead });
            }
        });
    }

    /// Asks all of them, each its own, a few at a time. What those say that answer.
    pub async fn ask_all(&self, question: impl Fn(NodeId) -> UserQuestion) -> Vec<(NodeId, UserAnswer)> {
        let (mut asked, mut answers, mut room) = (JoinSet::new(), Vec::new(), AT_A_TIME);
        let begun = Instant::now();
        for node in self.nodes() {
            if room == 0 {
                match tokio::time::timeout(SLOW, asked.join_next()).await {
                    Ok(answer) => {
                        answers.extend(answer.and_then(Result::ok).flatten());
                        room = 1;
                    }
                    // Whoever has asked waits for the silent ones no longer than for one of them, however many there are.
                    Err(_) => room = if begun.elapsed() < LONG { AT_A_TIME } else { usize::MAX },
                }
            }
            room -= 1;
            let (these, question) = (self.clone(), question(node));
            asked.spawn(async move { Some((node, these.ask(node, question).await?)) });
        }
        while let Some(answer) = asked.join_next().await {
            answers.extend(answer.ok().flatten());
        }
        answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc::unbounded_channel;

    #[tokio::test]
    async fn each_answer_is_for_its_question_and_who_is_silent_is_left_out() {
        let (say, mut said) = unbounded_channel();
        let elsewhere = Elsewhere::new(Outlet::new(move |news: News, _| say.send(news).is_ok()));
        elsewhere.adopt(&Members::of((0..4).map(NodeId)), NodeId(2));
        assert_eq!(elsewhere.nodes(), [NodeId(0), NodeId(1), NodeId(3)]);
        let from = |node: NodeId| UserQuestion::Events { from: u64::from(node.0) };
        let (asking, others) = (elsewhere.clone(), elsewhere.clone());
        let asked = tokio::spawn(async move { asking.ask_all(from).await });
        for _ in 0..3 {
            let Some(News::Say { to, word }) = said.recv().await else { panic!("nothing is said") };
            let UserWord::Ask { token, question } = &word else { panic!("{word:?}") };
            assert_eq!(*question, from(to));
            match to {
                NodeId(0) => others.unsaid(&word),
                NodeId(1) => others.answered(*token, UserAnswer::Noted(Ok("well".into()))),
                _ => others.answered(*token + 1000, UserAnswer::Noted(Ok("of another one".into()))),
            }
        }
        assert_eq!(asked.await.unwrap(), [(NodeId(1), UserAnswer::Noted(Ok("well".into())))]);
    }

    #[tokio::test]
    async fn a_few_are_asked_at_a_time_and_who_is_silent_keeps_nobody_waiting() {
        let (say, mut said) = unbounded_channel();
        let elsewhere = Elsewhere::new(Outlet::new(move |news: News, _| say.send(news).is_ok()));
        elsewhere.adopt(&Members::of((0..101).map(NodeId)), NodeId(100));
        let (asking, others) = (elsewhere.clone(), elsewhere.clone());
        let begun = Instant::now();
        let asked = tokio::spawn(async move { asking.ask_all(|_| UserQuestion::Dead).await });
        let (mut waiting, mut most, mut count) = (Vec::new(), 0, 0);
        while count < 100 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            while let Ok(News::Say { to, word: UserWord::Ask { token, .. } }) = said.try_recv() {
                count += 1;
                // The first fifty never answer.
                if to.0 >= 50 {
                    waiting.push(token);
                }
            }
            most = most.max(waiting.len());
            waiting.drain(..).for_each(|token| others.answered(token, UserAnswer::Dead(Vec::new())));
        }
        assert!((1..=AT_A_TIME).contains(&most), "{most} at a time");
        assert!(begun.elapsed() < PATIENCE, "who is silent was waited for: {:?}", begun.elapsed());
        assert_eq!(asked.await.unwrap().len(), 50);
    }
}
