//! What the ranks of one world publish for each other through PMIx, and who waits for what.

use ft_wire::pmix::{ERR_NOT_FOUND, ERR_OUT_OF_RESOURCE, ERR_PARTIAL_SUCCESS, Proc, SUCCESS, ToPmix};
use std::collections::HashMap;

/// Most bytes that all values and their keys may take.
pub const MOST_BYTES: usize = 64 << 20;
/// Most lookups that may wait.
const MOST_LOOKUPS: usize = 4096;
/// What a value costs besides its bytes and its key's.
const VALUE_COST: usize = 256;

/// There is no room for what was to be published.
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

/// A lookup that waits until all its keys are published.
#[derive(Debug)]
struct Lookup {
    token: u64,
    keys: Vec<String>,
}

/// The values of one world.
#[derive(Debug, Default)]
pub struct Published {
    /// Publisher and packed value.
    values: HashMap<String, (Proc, Vec<u8>)>,
    /// What they take.
    bytes: usize,
    /// Each below one of its keys that are missing: what is published concerns those alone that miss it.
    waiting: HashMap<String, Vec<Lookup>>,
    lookups: usize,
}

impl Published {
    /// Publishes values. Returns the answers to those who waited for them.
    ///
    /// # Errors
    /// [`Full`]: nothing was published.
    pub fn publish(&mut self, proc: &Proc, values: Vec<(String, Vec<u8>)>) -> Result<Vec<ToPmix>, Full> {
        let more: usize = values.iter().map(|(key, value)| cost(key, value)).sum();
        if self.bytes + more > MOST_BYTES {
            return Err(Full);
        }
        let mut concerned = Vec::new();
        for (key, value) in values {
            concerned.extend(self.waiting.remove(&key).into_iter().flatten());
            self.remove(&key);
            self.bytes += cost(&key, &value);
            self.values.insert(key, (proc.clone(), value));
        }
        self.lookups -= concerned.len();
        Ok(concerned.into_iter().filter_map(|lookup| self.answer_or_wait(lookup)).collect())
    }

    /// The answer to a lookup; `None` while it waits for all its keys.
    pub fn look_up(&mut self, token: u64, keys: Vec<String>, wait: bool) -> Option<ToPmix> {
        let lookup = Lookup { token, keys };
        if wait { self.answer_or_wait(lookup) } else { Some(self.answer(lookup)) }
    }

    /// Withdraws values; all when no keys are given.
    pub fn unpublish(&mut self, keys: &[String]) {
        if keys.is_empty() {
            self.values.clear();
            self.bytes = 0;
        }
        keys.iter().for_each(|key| self.remove(key));
    }

    fn remove(&mut self, key: &str) {
        if let Some((_, value)) = self.values.remove(key) {
            self.bytes -= cost(key, &value);
        }
    }

    fn answer_or_wait(&mut self, lookup: Lookup) -> Option<ToPmix> {
        let Some(missing) = lookup.keys.iter().find(|key| !self.values.contains_key(*key)) else {
            return Some(self.answer(lookup));
        };
        if self.lookups >= MOST_LOOKUPS {
            return Some(ToPmix::Done { token: lookup.token, status: ERR_OUT_OF_RESOURCE });
        }
        self.lookups += 1;
        self.waiting.entry(missing.clone()).or_default().push(lookup);
        None
    }

    fn answer(&self, Lookup { token, keys }: Lookup) -> ToPmix {
        let wanted = keys.len();
        let found: Vec<_> = keys
            .into_iter()
            .filter_map(|key| self.values.get(&key).map(|(proc, value)| (proc.clone(), key, value.clone())))
            .collect();
        let status = match found.len() {
            0 => ERR_NOT_FOUND,
            all if all == wanted => SUCCESS,
            _ => ERR_PARTIAL_SUCCESS,
        };
        ToPmix::Found { token, status, found }
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

    fn values(keys: &[&str]) -> Vec<(String, Vec<u8>)> {
        keys.iter().map(|key| (key.to_string(), vec![7; 10])).collect()
    }

    fn keys(keys: &[&str]) -> Vec<String> {
        keys.iter().map(ToString::to_string).collect()
    }

    /// Token, status and the keys that were found.
    fn read(answer: ToPmix) -> (u64, i32, Vec<String>) {
        match answer {
            ToPmix::Found { token, status, found } => {
                (token, status, found.into_iter().map(|(_, key, _)| key).collect())
            }
            ToPmix::Done { token, status } => (token, status, Vec::new()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn who_waits_is_answered_when_all_its_keys_are_there_at_once() {
        let mut published = Published::default();
        assert_eq!(published.look_up(1, keys(&["a", "b"]), true), None);
        assert_eq!(published.look_up(2, keys(&["b"]), true), None);
        assert_eq!(published.publish(&proc(0), values(&["a"])), Ok(Vec::new()));
        published.unpublish(&keys(&["a"]));
        let answers = published.publish(&proc(0), values(&["b"])).unwrap();
        assert_eq!(answers.into_iter().map(read).collect::<Vec<_>>(), [(2, SUCCESS, keys(&["b"]))]);
        let answers = published.publish(&proc(1), values(&["c", "a"])).unwrap();
        assert_eq!(answers.into_iter().map(read).collect::<Vec<_>>(), [(1, SUCCESS, keys(&["a", "b"]))]);
        assert_eq!(published.lookups, 0);
        assert!(published.waiting.is_empty());
    }

    #[test]
    fn who_does_not_wait_is_told_what_there_is() {
        let mut published = Published::default();
        published.publish(&proc(0), values(&["a", "b"])).unwrap();
        let mut look = |wanted: &[&str]| read(published.look_up(3, keys(wanted), false).unwrap());
        assert_eq!(look(&["a", "b"]), (3, SUCCESS, keys(&["a", "b"])));
        assert_eq!(look(&["a", "x"]), (3, ERR_PARTIAL_SUCCESS, keys(&["a"])));
        assert_eq!(look(&["x"]), (3, ERR_NOT_FOUND, Vec::new()));
        published.unpublish(&[]);
        assert_eq!(read(published.look_up(3, keys(&["a"]), false).unwrap()).1, ERR_NOT_FOUND);
    }

    #[test]
    fn room_is_bounded_and_comes_back() {
        let mut published = Published::default();
        let big = || vec![("big".to_string(), vec![0; MOST_BYTES / 2])];
        published.publish(&proc(0), big()).unwrap();
        published.unpublish(&keys(&["big"]));
        assert_eq!(published.bytes, 0);
        published.publish(&proc(0), big()).unwrap();
        assert_eq!(published.publish(&proc(0), big()), Err(Full));
        published.unpublish(&[]);
        published.publish(&proc(0), values(&["a"])).unwrap();
        published.publish(&proc(0), values(&["a"])).unwrap();
        assert_eq!(published.bytes, cost("a", &[7; 10]));

        for token in 0..MOST_LOOKUPS as u64 {
            assert_eq!(published.look_up(token, keys(&["x"]), true), None);
        }
        assert_eq!(read(published.look_up(9, keys(&["y"]), true).unwrap()).1, ERR_OUT_OF_RESOURCE);
        assert_eq!(published.publish(&proc(0), values(&["x"])).unwrap().len(), MOST_LOOKUPS);
        assert_eq!(published.look_up(9, keys(&["y"]), true), None);
    }
}
