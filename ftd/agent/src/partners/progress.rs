//! How far versions of this node's ranks are on their way to other nodes, for people.

use crate::arenas::Commit;
use ft_store::through::Copied;
use ft_wire::{Rank, Version};
use ftd_core::size;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// What is on its way for longer is told of, so often.
const LONG: Duration = Duration::from_secs(10);
/// Who takes checkpoints faster hears of the newest.
const SELDOM: Duration = Duration::from_secs(1);

/// A version on its way.
#[derive(Debug)]
struct Way {
    began: Instant,
    said: Instant,
    /// Of each rank: bytes in all, and those that are there.
    ranks: BTreeMap<Rank, (u64, u64)>,
    /// Ranks whose copy is not at a partner, nor ever will be.
    left: BTreeSet<Rank>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Progress {
    ways: BTreeMap<Commit, Way>,
    said: Option<Instant>,
    said_safe: Option<Instant>,
    copied: Copied,
}

impl Progress {
    /// A version of a rank is to be sent.
    pub fn begin(&mut self, commit: Commit, rank: Rank, bytes: u64) {
        let now = Instant::now();
        let way = self.ways.entry(commit).or_insert_with(|| Way {
            began: now,
            said: now,
            ranks: BTreeMap::new(),
            left: BTreeSet::new(),
        });
        way.ranks.entry(rank).or_insert((bytes, 0));
    }

    /// So much of it has moved.
    pub fn moved(&mut self, commit: Commit, rank: Rank, bytes: u64) {
        let known = self.ways.get_mut(&commit).and_then(|way| way.ranks.get_mut(&rank));
        known.into_iter().for_each(|(all, there)| *there = bytes.min(*all));
    }

    /// It is at a partner.
    pub fn kept(&mut self, commit: Commit, rank: Rank) {
        let Some((all, there)) = self.ways.get_mut(&commit).and_then(|way| way.ranks.get_mut(&rank)) else { return };
        *there = *all;
        self.copied.copies += 1;
        self.copied.bytes += *all;
    }

    /// No other node keeps it.
    pub fn stays(&mut self, commit: Commit, rank: Rank) {
        self.copied.failures += 1;
        self.ways.get_mut(&commit).into_iter().for_each(|way| {
            way.left.insert(rank);
        });
    }

    /// What is older is needed no more.
    pub fn retire(&mut self, complete: Version) {
        self.ways.retain(|(version, _), _| *version >= complete);
    }

    /// An epoch ends, and with it all that is on its way.
    pub fn clear(&mut self) {
        self.ways.clear();
    }

    /// What was copied so far, and how much is not yet.
    pub fn copied(&self) -> Copied {
        let left = self.ways.values().flat_map(|way| {
            way.ranks.iter().filter(|(rank, _)| !way.left.contains(rank)).map(|(_, (all, there))| all - there)
        });
        Copied { waiting: left.sum(), ..self.copied }
    }

    /// What there is to say of the versions of so many ranks of a node: of the newest that is there, and of what takes long.
    pub fn said(&mut self, node: &str, ranks: usize, now: Instant) -> Vec<String> {
        let mut lines = Vec::new();
        let whole = |way: &Way| way.ranks.len() == ranks && way.ranks.values().all(|(all, there)| all == there);
        if let Some(newest) = self.ways.iter().rev().find(|(_, way)| whole(way)).map(|(commit, _)| *commit) {
            let way = self.ways.remove(&newest);
            self.ways.retain(|commit, way| *commit > newest || !whole(way));
            if self.said.is_none_or(|said| now >= said + SELDOM) {
                self.said = Some(now);
                lines.extend(way.map(|way| way.line(node, newest, now)));
            }
        }
        for (commit, way) in &mut self.ways {
            if now >= way.said + LONG && way.left.is_empty() {
                way.said = now;
                lines.push(way.line(node, *commit, now));
            }
        }
        lines
    }

    /// Whether it is time to say that all ranks' copies of a version are on other nodes: of this node's all are, as far as it is known here.
    pub fn says_safe(&mut self, now: Instant) -> bool {
        let due = self.said_safe.is_none_or(|said| now >= said + SELDOM);
        let says = due && self.ways.values().all(|way| way.left.is_empty());
        if says {
            self.said_safe = Some(now);
        }
        says
    }
}

impl Way {
    fn line(&self, node: &str, (version, _): Commit, now: Instant) -> String {
        let ranks = crate::versions::named(&self.ranks.keys().copied().collect::<Vec<_>>());
        let all: u64 = self.ranks.values().map(|(all, _)| all).sum();
        let there: u64 = self.ranks.values().map(|(_, there)| there).sum();
        let there = if there == all { "all".to_string() } else { size(there) };
        format!(
            "copies of version {version} of {ranks} on {node}: {there} of {} are on other nodes, after {:.1} s",
            size(all),
            now.duration_since(self.began).as_secs_f64()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_hear_of_the_newest_version_that_is_there_and_of_what_takes_long() {
        let mut progress = Progress::default();
        let begun = Instant::now();
        for version in 1..=3 {
            (4..6).for_each(|rank| progress.begin((version, 1), rank, 2 << 20));
        }
        progress.kept((1, 1), 4);
        assert!(progress.said("a", 2, begun).is_empty(), "one rank's copy is missing");
        progress.moved((3, 1), 4, 1 << 20);
        for (version, rank) in [(1, 5), (2, 4), (2, 5)] {
            progress.kept((version, 1), rank);
        }
        assert_eq!(
            progress.copied(),
            Copied { copies: 4, bytes: 8 << 20, waiting: 3 << 20, ..Copied::default() },
            "of version 3 a quarter is there"
        );
        let said = progress.said("a", 2, begun);
        assert!(
            said.len() == 1 && said[0].starts_with("copies of version 2 of ranks 4-5 on a: all of 4.0 MiB are"),
            "{said:?}"
        );
        let said = progress.said("a", 2, begun + LONG * 2);
        assert!(
            said.len() == 1 && said[0].starts_with("copies of version 3 of ranks 4-5 on a: 1.0 MiB of 4.0 MiB"),
            "{said:?}"
        );
        assert!(progress.said("a", 2, begun + LONG * 2).is_empty());
        progress.stays((3, 1), 5);
        assert!(progress.said("a", 2, begun + LONG * 4).is_empty(), "nobody takes it");
        assert_eq!((progress.copied().failures, progress.copied().waiting), (1, 1 << 20));
        progress.retire(4);
        assert_eq!(progress.copied().waiting, 0);
    }
}
