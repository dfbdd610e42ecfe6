//! The key space: what ranks put and get.

use crate::MAX_STORE;
use std::collections::{HashMap, HashSet};

/// What a world of no ranks might take of that; the rest is for its ranks, which put a few keys each.
const STORE_BASE: usize = 8 << 20;
/// See [`STORE_BASE`].
const STORE_PER_RANK: usize = 64 << 10;
/// What a key costs besides its bytes, which are there twice.
const KEY_COST: usize = 128;

/// Keys and values of one world, within bounds.
#[derive(Debug)]
pub(crate) struct KeySpace {
    most: usize,
    values: HashMap<String, String>,
    /// Keys in the order in which they came, for `getbyidx`.
    order: Vec<String>,
    bytes: usize,
    /// Keys put since the last barrier, in their order.
    fresh: Vec<String>,
    is_fresh: HashSet<String>,
}

impl KeySpace {
    /// That of so many ranks.
    pub(crate) fn of(ranks: usize) -> Self {
        KeySpace {
            most: MAX_STORE.min(STORE_BASE + STORE_PER_RANK * ranks),
            values: HashMap::new(),
            order: Vec::new(),
            bytes: 0,
            fresh: Vec::new(),
            is_fresh: HashSet::new(),
        }
    }

    /// Most bytes that keys and values may take here.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Stores a value; false when there is no room.
    pub(crate) fn insert(&mut self, key: String, value: String) -> bool {
        let old = self.values.get(&key).map_or(0, |old| cost(&key, old));
        let bytes = self.bytes - old + cost(&key, &value);
        if bytes > self.most {
            return false;
        }
        self.bytes = bytes;
        if self.values.insert(key.clone(), value).is_none() {
            self.order.push(key);
        }
        true
    }

    /// As [`insert`](Self::insert), for a key that a rank of this node puts: the other nodes need it.
    pub(crate) fn put(&mut self, key: &str, value: &str) -> bool {
        let stored = self.insert(key.to_string(), value.to_string());
        if stored && self.is_fresh.insert(key.to_string()) {
            self.fresh.push(key.to_string());
        }
        stored
    }

    pub(crate) fn get(&self, key: &str) -> Option<&String> {
        self.values.get(key)
    }

    /// The key that came so many keys after the first, and its value.
    pub(crate) fn nth(&self, index: usize) -> Option<(&String, &String)> {
        let key = self.order.get(index)?;
        Some((key, self.values.get(key)?))
    }

    /// What was put on this node since this was asked last.
    pub(crate) fn take_fresh(&mut self) -> Vec<(String, String)> {
        self.is_fresh.clear();
        let keys = std::mem::take(&mut self.fresh).into_iter();
        keys.filter_map(|key| self.values.get(&key).cloned().map(|value| (key, value))).collect()
    }
}

/// What a key and its value take, with what holds them.
fn cost(key: &str, value: &str) -> usize {
    2 * key.len() + value.len() + KEY_COST
}
