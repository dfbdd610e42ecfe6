//! What the ranks of a world publish for each other, and who waits for what. On several nodes one of them keeps it for all.

use crate::job::Job;
use crate::outlet::Outlet;
use ft_wire::World as WorldNumber;
use ft_wire::between::{Asker, NameAnswer, NameRequest};
use ft_wire::pmix::{
    ERR_DUPLICATE_KEY, ERR_NOT_FOUND, ERR_OUT_OF_RESOURCE, ERR_PARTIAL_SUCCESS, ERR_TIMEOUT, Proc, SUCCESS,
};
use ftd_core::NodeId;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

/// Most bytes that all values and their keys may take; what is beyond is refused, and said once.
pub const MOST_BYTES: usize = 64 << 20;
/// Most lookups that may wait.
const MOST_LOOKUPS: usize = 4096;
/// What a value costs besides its bytes and its key's.
const VALUE_COST: usize = 256;

/// Whom an answer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asking {
    /// The rank's node.
    pub node: NodeId,
    /// On that.
    pub asker: Asker,
}

/// An answer, and whom it is for.
pub type Answered = (Asking, NameAnswer);

/// It is time to give up a lookup, unless it was answered.
#[derive(Debug, Clone, Copy)]
pub struct Overdue {
    /// Of which world.
    pub world: WorldNumber,
    lookup: u64,
}

/// What is published in the worlds for which this node keeps it.
#[derive(Debug)]
pub struct Directories {
    worlds: BTreeMap<WorldNumber, Published>,
    news: Outlet<Overdue>,
}

impl Directories {
    /// Nothing yet.
    pub fn new(news: Outlet<Overdue>) -> Directories {
        Directories { worlds: BTreeMap::new(), news }
    }

    /// Does what is wanted. Returns the answers that there are by now.
    pub fn take(&mut self, job: &Job, world: WorldNumber, asking: Asking, request: NameRequest) -> Vec<Answered> {
        let published = self.worlds.entry(world).or_default();
        match request {
            NameRequest::Publish { proc, values, once } => {
                let (status, mut answers) = match published.publish(&proc, values, once) {
                    Ok(answers) => (SUCCESS, answers),
                    Err(refused) => (refused.status(), Vec::new()),
                };
                // Whoever publishes too much does so again and again.
                if status == ERR_OUT_OF_RESOURCE && !std::mem::replace(&mut published.told, true) {
                    job.notice(format!(
                        "more than {} MiB are published by the ranks: the last of it is refused",
                        MOST_BYTES >> 20
                    ));
                }
                answers.insert(0, (asking, plain(status)));
                answers
            }
            NameRequest::LookUp { keys, wait, seconds } => {
                let answer = published.look_up(asking, keys, wait);
                if answer.is_none() && seconds > 0 {
                    let (news, overdue) = (self.news.clone(), Overdue { world, lookup: published.last });
                    tokio::spawn(async move {
                        tokio::time::sleep(Duration::from_secs(seconds.into())).await;
                        news.send(overdue);
                    });
                }
                answer.into_iter().collect()
            }
            NameRequest::Unpublish { proc, keys } => vec![(asking, plain(published.unpublish(proc.as_ref(), &keys)))],
        }
    }

    /// The answer to a lookup that has waited for as long as it may.
    pub fn overdue(&mut self, Overdue { world, lookup }: Overdue) -> Option<Answered> {
        self.worlds.get_mut(&world)?.give_up(lookup)
    }

    /// Nobody is left who could ask.
    pub fn forget(&mut self, world: WorldNumber) {
        self.worlds.remove(&world);
    }
}

fn plain(status: i32) -> NameAnswer {
    NameAnswer { status, found: Vec::new() }
}

/// Why nothing was published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// There is no room.
    Full,
    /// Another value has the name.
    Taken,
}

impl Refused {
    fn status(self) -> i32 {
        match self {
            Refused::Full => ERR_OUT_OF_RESOURCE,
            Refused::Taken => ERR_DUPLICATE_KEY,
        }
    }
}

/// A lookup that waits until all its keys are published.
#[derive(Debug)]
struct Lookup {
    number: u64,
    asking: Asking,
    keys: Vec<String>,
}

#[derive(Debug)]
struct Value {
    proc: Proc,
    bytes: Vec<u8>,
    /// It goes with the first who finds it.
    once: bool,
}

/// The values of one world.
#[derive(Debug, Default)]
pub struct Published {
    values: HashMap<String, Value>,
    /// What they take.
    bytes: usize,
    /// It was said that they take too much.
    told: bool,
    /// Each below one of its keys that are missing: what is published concerns those alone that miss it.
    waiting: HashMap<String, Vec<Lookup>>,
    lookups: usize,
    /// The newest lookup's number.
    last: u64,
}

impl Published {
    /// Publishes values. Returns the answers to those who waited for them.
    ///
    /// # Errors
    /// [`Refused`]: nothing was published.
    pub fn publish(
        &mut self,
        proc: &Proc,
        values: Vec<(String, Vec<u8>)>,
        once: bool,
    ) -> Result<Vec<Answered>, Refused> {
        let mut names = HashSet::new();
        // Of what was for one reader, and found none, its publisher may have another one.
        let taken = |key: &String| self.values.get(key).is_some_and(|old| !(once && old.once && old.proc == *proc));
        if values.iter().any(|(key, _)| !names.insert(key) || taken(key)) {
            return Err(Refused::Taken);
        }
        let more: usize = values.iter().map(|(key, value)| cost(key, value)).sum();
        if self.bytes + more > MOST_BYTES {
            return Err(Refused::Full);
        }
        let mut concerned = Vec::new();
        for (key, bytes) in values {
            concerned.extend(self.waiting.remove(&key).into_iter().flatten());
            self.remove(&key);
            self.bytes += cost(&key, &bytes);
            self.values.insert(key, Value { proc: proc.clone(), bytes, once });
        }
        self.lookups -= concerned.len();
        concerned.sort_by_key(|lookup| lookup.number);
        Ok(concerned.into_iter().filter_map(|lookup| self.answer_or_wait(lookup)).collect())
    }

    /// The answer to a lookup; `None` while it waits for all its keys.
    pub fn look_up(&mut self, asking: Asking, keys: Vec<String>, wait: bool) -> Option<Answered> {
        self.last += 1;
        let lookup = Lookup { number: self.last, asking, keys };
        if wait { self.answer_or_wait(lookup) } else { Some(self.answer(lookup)) }
    }

    /// Withdraws values, of one publisher or of all; all of them when no keys are given. The PMIx status.
    pub fn unpublish(&mut self, by: Option<&Proc>, keys: &[String]) -> i32 {
        let own = |value: &Value| by.is_none_or(|proc| value.proc == *proc);
        let all = || self.values.iter().filter(|(_, value)| own(value)).map(|(key, _)| key.clone()).collect();
        let keys: Vec<String> = if keys.is_empty() { all() } else { keys.to_vec() };
        let (own, others): (Vec<String>, Vec<String>) =
            keys.into_iter().partition(|key| self.values.get(key).is_some_and(own));
        own.iter().for_each(|key| self.remove(key));
        if others.is_empty() { SUCCESS } else { ERR_NOT_FOUND }
    }

    /// The answer to a lookup that waits no longer.
    pub fn give_up(&mut self, number: u64) -> Option<Answered> {
        let key = self.waiting.iter().find(|(_, all)| all.iter().any(|lookup| lookup.number == number))?.0.clone();
        let all = self.waiting.get_mut(&key)?;
        let at = all.iter().position(|lookup| lookup.number == number)?;
        let lookup = all.remove(at);
        if all.is_empty() {
            self.waiting.remove(&key);
        }
        self.lookups -= 1;
        Some((lookup.asking, plain(ERR_TIMEOUT)))
    }

    fn remove(&mut self, key: &str) {
        if let Some(value) = self.values.remove(key) {
            self.bytes -= cost(key, &value.bytes);
        }
    }

    fn answer_or_wait(&mut self, lookup: Lookup) -> Option<Answered> {
        let Some(missing) = lookup.keys.iter().find(|key| !self.values.contains_key(*key)) else {
            return Some(self.answer(lookup));
        };
        if self.lookups >= MOST_LOOKUPS {
            return Some((lookup.asking, plain(ERR_OUT_OF_RESOURCE)));
        }
        self.lookups += 1;
        self.waiting.entry(missing.clone()).or_default().push(lookup);
        None
    }

    fn answer(&mut self, Lookup { asking, keys, .. }: Lookup) -> Answered {
        let wanted = keys.len();
        let mut found = Vec::new();
        for key in keys {
            let Some(value) = self.values.get(&key) else { continue };
            let (proc, bytes, once) = (value.proc.clone(), value.bytes.clone(), value.once);
            if once {
                self.remove(&key);
            }
            found.push((proc, key, bytes));
        }
        let status = match found.len() {
            0 => ERR_NOT_FOUND,
            all if all == wanted => SUCCESS,
            _ => ERR_PARTIAL_SUCCESS,
        };
        (asking, NameAnswer { status, found })
    }
}

fn cost(key: &str, value: &[u8]) -> usize {
    key.len() + value.len() + VALUE_COST
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proc(rank: u32) -> Proc {
        Proc { nspace: "job.w1".into(), rank }
    }

    fn asking(token: u64) -> Asking {
        Asking { node: NodeId(1), asker: Asker::Pmix(token) }
    }

    fn values(keys: &[&str]) -> Vec<(String, Vec<u8>)> {
        keys.iter().map(|key| (key.to_string(), vec![7; 10])).collect()
    }

    fn keys(keys: &[&str]) -> Vec<String> {
        keys.iter().map(ToString::to_string).collect()
    }

    impl Published {
        fn give(&mut self, rank: u32, keys: &[&str]) -> Result<Vec<(u64, i32, Vec<String>)>, Refused> {
            Ok(self.publish(&proc(rank), values(keys), false)?.into_iter().map(read).collect())
        }

        fn look(&mut self, token: u64, wanted: &[&str], wait: bool) -> Option<(u64, i32, Vec<String>)> {
            self.look_up(asking(token), keys(wanted), wait).map(read)
        }
    }

    /// Token, status and the keys that were found.
    fn read((asking, answer): Answered) -> (u64, i32, Vec<String>) {
        let Asker::Pmix(token) = asking.asker else { panic!("{asking:?}") };
        (token, answer.status, answer.found.into_iter().map(|(_, key, _)| key).collect())
    }

    #[test]
    fn who_waits_is_answered_when_all_its_keys_are_there_at_once() {
        let mut published = Published::default();
        assert_eq!(published.look(1, &["a", "b"], true), None);
        assert_eq!(published.look(2, &["b"], true), None);
        assert_eq!(published.give(0, &["a"]), Ok(Vec::new()));
        assert_eq!(published.unpublish(Some(&proc(0)), &keys(&["a"])), SUCCESS);
        assert_eq!(published.give(0, &["b"]), Ok(vec![(2, SUCCESS, keys(&["b"]))]));
        assert_eq!(published.give(1, &["c", "a"]), Ok(vec![(1, SUCCESS, keys(&["a", "b"]))]));
        assert_eq!(published.lookups, 0);
        assert!(published.waiting.is_empty());
    }

    #[test]
    fn who_does_not_wait_is_told_what_there_is() {
        let mut published = Published::default();
        published.give(0, &["a", "b"]).unwrap();
        assert_eq!(published.look(3, &["a", "b"], false), Some((3, SUCCESS, keys(&["a", "b"]))));
        assert_eq!(published.look(3, &["a", "x"], false), Some((3, ERR_PARTIAL_SUCCESS, keys(&["a"]))));
        assert_eq!(published.look(3, &["x"], false), Some((3, ERR_NOT_FOUND, Vec::new())));
        assert_eq!(published.unpublish(Some(&proc(0)), &[]), SUCCESS);
        assert_eq!(published.look(3, &["a"], false), Some((3, ERR_NOT_FOUND, Vec::new())));
    }

    #[test]
    fn a_name_is_one_value_and_its_publisher_s() {
        let mut published = Published::default();
        published.give(0, &["a"]).unwrap();
        published.give(1, &["b"]).unwrap();
        assert_eq!(published.give(1, &["c", "a"]), Err(Refused::Taken));
        assert_eq!(published.give(0, &["a"]), Err(Refused::Taken));
        assert_eq!(published.look(1, &["c"], false), Some((1, ERR_NOT_FOUND, Vec::new())), "half of it");
        assert_eq!(published.unpublish(Some(&proc(1)), &keys(&["a"])), ERR_NOT_FOUND);
        assert_eq!(published.unpublish(Some(&proc(1)), &[]), SUCCESS);
        assert_eq!(published.look(2, &["a", "b"], false), Some((2, ERR_PARTIAL_SUCCESS, keys(&["a"]))));
        assert_eq!(published.unpublish(None, &keys(&["a"])), SUCCESS);
        assert_eq!(published.unpublish(None, &keys(&["a"])), ERR_NOT_FOUND);
        assert_eq!(published.give(1, &["a"]), Ok(Vec::new()));
    }

    #[test]
    fn what_is_for_one_reader_goes_with_the_first_that_came() {
        let mut published = Published::default();
        assert_eq!(published.look(1, &["a"], true), None);
        assert_eq!(published.look(2, &["a"], true), None);
        let answers = published.publish(&proc(0), values(&["a"]), true).unwrap();
        assert_eq!(answers.into_iter().map(read).collect::<Vec<_>>(), [(1, SUCCESS, keys(&["a"]))]);
        assert_eq!(published.bytes, 0);
        let answers = published.publish(&proc(0), values(&["a"]), true).unwrap();
        assert_eq!(answers.into_iter().map(read).collect::<Vec<_>>(), [(2, SUCCESS, keys(&["a"]))]);
        published.publish(&proc(0), values(&["a"]), true).unwrap();
        published.publish(&proc(0), values(&["a"]), true).unwrap();
        assert_eq!(published.publish(&proc(1), values(&["a"]), true), Err(Refused::Taken));
    }

    #[test]
    fn who_waits_too_long_is_told_so_once_and_takes_nothing_away() {
        let mut published = Published::default();
        assert_eq!(published.look(7, &["a"], true), None);
        let number = published.last;
        assert_eq!(published.give_up(number).map(read), Some((7, ERR_TIMEOUT, Vec::new())));
        assert_eq!(published.give_up(number), None);
        assert_eq!((published.lookups, published.waiting.len()), (0, 0));
        assert_eq!(published.publish(&proc(0), values(&["a"]), true), Ok(Vec::new()));
        assert_eq!(published.look(8, &["a"], true), Some((8, SUCCESS, keys(&["a"]))));
    }

    #[test]
    fn room_is_bounded_and_comes_back() {
        let mut published = Published::default();
        let big = |name: &str| vec![(name.to_string(), vec![0; MOST_BYTES / 2])];
        published.publish(&proc(0), big("big"), false).unwrap();
        published.unpublish(None, &keys(&["big"]));
        assert_eq!(published.bytes, 0);
        published.publish(&proc(0), big("big"), false).unwrap();
        assert_eq!(published.publish(&proc(0), big("other"), false), Err(Refused::Full));
        published.unpublish(None, &[]);
        published.give(0, &["a"]).unwrap();
        assert_eq!(published.bytes, cost("a", &[7; 10]));

        for token in 0..MOST_LOOKUPS as u64 {
            assert_eq!(published.look(token, &["x"], true), None);
        }
        assert_eq!(published.look(9, &["y"], true), Some((9, ERR_OUT_OF_RESOURCE, Vec::new())));
        assert_eq!(published.give(0, &["x"]).unwrap().len(), MOST_LOOKUPS);
        assert_eq!(published.look(9, &["y"], true), None);
    }
}
