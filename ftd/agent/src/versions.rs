//! Whether the ranks checkpoint the same versions. A version counts only when every rank has it: ranks whose versions differ,
//! or of which one takes no checkpoint, fill their places and wait, and nothing else would say why.
//!
//! There is no barrier, so a rank may be many steps behind. Two things can be known all the same. A rank that has a greater
//! version and not this one will never have it: versions grow, and a place is not used again before its version is complete.
//! And a rank whose places are all full has to wait; when that lasts, it is said for whom.

use ft_wire::{Epoch, Rank, Version};
use std::collections::{BTreeMap, BTreeSet};

/// The versions of one epoch that are not complete, by rank.
#[derive(Debug, Default)]
pub struct Versions {
    epoch: Epoch,
    held: BTreeMap<Rank, BTreeSet<Version>>,
    complete: Version,
    /// Ranks that take no more checkpoints: their last version, and what they did.
    left: BTreeMap<Rank, (Option<Version>, &'static str)>,
    said_skipped: bool,
    said_waiting: bool,
}

impl Versions {
    /// `rank` has these versions of `epoch` in its places. Returns a sentence when it is certain now that ranks differ; one
    /// is enough for an epoch.
    pub fn note(&mut self, epoch: Epoch, rank: Rank, held: BTreeSet<Version>) -> Option<String> {
        self.begin(epoch);
        let fresh = held.into_iter().filter(|version| *version > self.complete).collect();
        self.held.insert(rank, fresh);
        self.certain()
    }

    /// `rank` takes no more checkpoints in `epoch`: `how` says why, behind its name. A sentence as in [`note`](Self::note).
    pub fn leave(&mut self, epoch: Epoch, rank: Rank, last: Option<Version>, how: &'static str) -> Option<String> {
        self.begin(epoch);
        self.left.entry(rank).or_insert((last, how));
        self.certain()
    }

    fn begin(&mut self, epoch: Epoch) {
        if epoch != self.epoch {
            *self = Versions { epoch, ..Versions::default() };
        }
    }

    fn certain(&mut self) -> Option<String> {
        if self.said_skipped {
            return None;
        }
        let sentence = self.skipped().or_else(|| self.left_behind());
        self.said_skipped = sentence.is_some();
        sentence
    }

    /// Every rank has `version`.
    pub fn completed(&mut self, version: Version) {
        self.complete = self.complete.max(version);
        self.held.values_mut().for_each(|held| held.retain(|other| *other > version));
    }

    /// The newest version of `rank`'s that is not complete.
    pub fn newest(&self, rank: Rank) -> Option<Version> {
        self.held.get(&rank)?.last().copied()
    }

    /// `rank` has had nothing but full places for `patience`, its newest version being `newest`: for whom it waits. Once
    /// an epoch.
    pub fn still_waiting(
        &mut self,
        epoch: Epoch,
        rank: Rank,
        newest: Version,
        ranks: &[Rank],
        patience: &str,
    ) -> Option<String> {
        let stands = self.epoch == epoch && self.newest(rank) == Some(newest);
        if !stands || self.said_waiting || self.said_skipped {
            return None;
        }
        let version = *self.held.get(&rank)?.first()?;
        let lacking: Vec<Rank> = ranks.iter().copied().filter(|other| !self.has(*other, version)).collect();
        if lacking.is_empty() {
            return None;
        }
        self.said_waiting = true;
        let having: Vec<Rank> = ranks.iter().copied().filter(|other| self.has(*other, version)).collect();
        let has = if lacking.len() == 1 { "has" } else { "have" };
        Some(format!(
            "{} {has} not checkpointed version {version}, which {} took {patience} ago or earlier: no version counts \
             before every rank has it, and a rank without a free place waits in ft_checkpoint",
            named(&lacking),
            named(&having)
        ))
    }

    /// The oldest of a rank's `own` versions that some of these ranks has not, and which these are. `held` tells what a rank has now,
    /// which is more than was [noted](Self::note): a checksum takes its time.
    pub fn missing(
        &self,
        epoch: Epoch,
        own: &BTreeSet<Version>,
        ranks: &[Rank],
        held: impl Fn(Rank) -> BTreeSet<Version>,
    ) -> Option<String> {
        let complete = if self.epoch == epoch { self.complete } else { 0 };
        let all: Vec<(Rank, BTreeSet<Version>)> = ranks.iter().map(|rank| (*rank, held(*rank))).collect();
        own.iter().filter(|version| **version > complete).find_map(|version| {
            let lacks = all.iter().filter(|(_, held)| !held.contains(version));
            let lacking: Vec<Rank> = lacks.map(|(rank, _)| *rank).collect();
            let has = if lacking.len() == 1 { "has" } else { "have" };
            (!lacking.is_empty()).then(|| {
                format!(
                    "{} {has} not checkpointed version {version}, and no version counts before every rank has it",
                    named(&lacking)
                )
            })
        })
    }

    fn has(&self, rank: Rank, version: Version) -> bool {
        self.held.get(&rank).is_some_and(|held| held.contains(&version))
    }

    /// A version after the last one of a rank that takes no more.
    fn left_behind(&self) -> Option<String> {
        let (rank, (last, how)) = self.left.iter().min_by_key(|(_, (last, _))| *last)?;
        let after = |version: &&Version| Some(**version) > *last;
        let version = *self.held.values().flatten().filter(after).min()?;
        let having: Vec<Rank> = self.held.keys().copied().filter(|rank| self.has(*rank, version)).collect();
        let after = last.map_or_else(|| "without a checkpoint".into(), |last| format!("after version {last}"));
        Some(format!(
            "rank {rank} {how} {after}, and {} checkpointed version {version}: a version counts only when every rank \
             checkpoints it",
            named(&having)
        ))
    }

    fn skipped(&self) -> Option<String> {
        let all: BTreeSet<Version> = self.held.values().flatten().copied().collect();
        all.into_iter().find_map(|version| {
            let (skipping, greater): (Vec<Rank>, Vec<Version>) = self
                .held
                .iter()
                .filter(|(_, held)| !held.contains(&version))
                .filter_map(|(rank, held)| Some((*rank, *held.range(version..).next()?)))
                .unzip();
            let next = greater.iter().min()?;
            let having: Vec<Rank> = self.held.keys().copied().filter(|rank| self.has(*rank, version)).collect();
            let has = if having.len() == 1 { "has" } else { "have" };
            Some(format!(
                "{} checkpointed version {next} without version {version}, which {} {has}: a version counts only when \
                 every rank checkpoints it",
                named(&skipping),
                named(&having)
            ))
        })
    }
}

/// Ranks as people write them: `rank 3`, `ranks 0-2, 5`.
pub(crate) fn named(ranks: &[Rank]) -> String {
    let mut runs: Vec<(Rank, Rank)> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *rank => *last = *rank,
            _ => runs.push((*rank, *rank)),
        }
    }
    let texts: Vec<String> = runs
        .into_iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
        .collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, texts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(versions: &[Version]) -> BTreeSet<Version> {
        versions.iter().copied().collect()
    }

    #[test]
    fn a_version_that_was_passed_over_is_named_with_its_ranks_once() {
        let mut versions = Versions::default();
        for rank in [0, 1, 2] {
            assert_eq!(versions.note(1, rank, set(&[10])), None);
        }
        let said = versions.note(1, 3, set(&[11])).unwrap();
        assert!(said.starts_with("rank 3 checkpointed version 11 without version 10, which ranks 0-2 have"), "{said}");
        assert_eq!(versions.note(1, 3, set(&[11, 13])), None);
        assert!(
            versions.note(2, 0, set(&[10])).or(versions.note(2, 1, set(&[12]))).is_some(),
            "a new epoch, a new word"
        );
    }

    #[test]
    fn a_rank_that_is_only_behind_is_not_accused() {
        let mut versions = Versions::default();
        assert_eq!(versions.note(1, 0, set(&[1, 2, 3])), None);
        assert_eq!(versions.note(1, 1, set(&[1])), None);
        versions.completed(1);
        // Its place may be used again: the version is gone and was there.
        assert_eq!(versions.note(1, 0, set(&[2, 3, 4])), None);
        assert_eq!(versions.note(1, 1, set(&[1, 2, 3])), None);
        versions.completed(3);
        assert_eq!(versions.note(1, 1, set(&[4, 5])), None);
    }

    #[test]
    fn a_rank_that_has_left_is_named_with_the_first_version_after_its_last() {
        let mut versions = Versions::default();
        versions.note(1, 0, set(&[1]));
        versions.note(1, 1, set(&[1]));
        assert_eq!(versions.leave(1, 1, Some(1), "has called ft_finalize"), None);
        versions.completed(1);
        let said = versions.note(1, 0, set(&[2])).unwrap();
        assert!(
            said.starts_with("rank 1 has called ft_finalize after version 1, and rank 0 checkpointed version 2"),
            "{said}"
        );
        assert_eq!(versions.note(1, 0, set(&[2, 3])), None);
        // Known after the version is.
        assert_eq!(versions.note(2, 0, set(&[7])), None);
        let said = versions.leave(2, 1, None, "has ended").unwrap();
        assert!(said.starts_with("rank 1 has ended without a checkpoint, and rank 0 checkpointed version 7"), "{said}");
    }

    #[test]
    fn who_is_waited_for_is_said_when_it_lasts() {
        let mut versions = Versions::default();
        for rank in [0, 1, 3] {
            assert_eq!(versions.note(1, rank, set(&[10, 20, 30])), None);
        }
        assert_eq!(versions.newest(1), Some(30));
        assert_eq!(versions.still_waiting(1, 1, 20, &[0, 1, 2, 3], "10 s"), None, "it has moved since");
        let said = versions.still_waiting(1, 1, 30, &[0, 1, 2, 3], "10 s").unwrap();
        assert!(said.starts_with("rank 2 has not checkpointed version 10, which ranks 0-1, 3 took 10 s ago"), "{said}");
        assert_eq!(versions.still_waiting(1, 0, 30, &[0, 1, 2, 3], "10 s"), None, "once");
    }

    #[test]
    fn who_is_missing_is_the_oldest_version_that_some_rank_lacks() {
        let mut versions = Versions::default();
        versions.note(3, 0, set(&[1]));
        versions.completed(1);
        let held = |rank| set([&[1, 2, 3][..], &[1, 2], &[2], &[1, 2, 3]][rank as usize]);
        let said = versions.missing(3, &held(0), &[0, 1, 2, 3], held).unwrap();
        assert!(said.starts_with("ranks 1-2 have not checkpointed version 3, and "), "{said}");
        let said = versions.missing(4, &held(0), &[0, 1, 2, 3], held).unwrap();
        assert!(said.starts_with("rank 2 has not checkpointed version 1, and "), "another epoch: {said}");
        assert_eq!(versions.missing(3, &held(1), &[0, 1, 2, 3], held), None, "what this one has all have");
    }
}
