//! Output once: what a rank prints again after a recovery is not shown again.
//!
//! The rule, for each rank's standard output by itself: of the lines that were shown since the restored version was taken (without a
//! version: of all) the hashes are there, in order. A line that equals one that has not come yet is hidden, and those before it are not
//! waited for any more; every other line is shown, in its place. That is over with the list, or when the rank takes a newer version
//! than any world before it. So nothing that was never seen is ever hidden. Over nodes what a rank printed before a recovery may come behind
//! what it prints after it on another node; then the first of two equal lines was that one, and the other is hidden as well, if it is known to
//! stand behind what was restored.
//!
//! Here nothing is read, written or waited for.

mod expected;
mod stream;

use ft_wire::{Epoch, Rank, Version, World};
use std::collections::BTreeMap;
use std::time::Instant;
use stream::Stream;

/// A version, and the epoch that has taken it.
pub type Commit = (Version, Epoch);

/// So many lines of a job are remembered; of the rank that has most the oldest are forgotten first.
const MOST: usize = 1_000_000;
/// A line that is longer is none.
const LONGEST: usize = 64 << 10;

/// The standard outputs of all ranks.
#[derive(Debug)]
pub struct Once {
    streams: BTreeMap<Rank, Stream>,
    /// The newest world of which it is known what it takes back, and that.
    restored: Option<(World, Option<Commit>)>,
    lines: usize,
    most: usize,
}

impl Default for Once {
    fn default() -> Once {
        Once { streams: BTreeMap::new(), restored: None, lines: 0, most: MOST }
    }
}

impl Once {
    /// The ranks of this world take this back, or begin from the beginning.
    pub fn begins(&mut self, world: World, restored: Option<Commit>) {
        if self.restored.is_none_or(|(known, _)| world > known) {
            self.restored = Some((world, restored));
        }
    }

    /// A rank has taken a version between what it has printed before and what comes. `placed`: just here. Returns what is shown of it.
    pub fn mark(&mut self, (world, rank): (World, Rank), commit: Commit, placed: bool, now: Instant) -> Vec<u8> {
        self.with((world, rank), now, |stream| match stream.is_late(world) {
            true => {
                stream.late_mark(commit, placed);
                Vec::new()
            }
            false => stream.mark(commit, placed),
        })
    }

    /// A rank has printed this. Returns what is shown of it.
    pub fn print(&mut self, (world, rank): (World, Rank), bytes: Vec<u8>, now: Instant) -> Vec<u8> {
        self.with((world, rank), now, |stream| match stream.is_late(world) {
            true => stream.late(world, bytes),
            false => stream.print(bytes, now),
        })
    }

    fn with(
        &mut self,
        (world, rank): (World, Rank),
        now: Instant,
        what: impl FnOnce(&mut Stream) -> Vec<u8>,
    ) -> Vec<u8> {
        let stream = self.streams.entry(rank).or_insert_with(|| Stream::new(now));
        let before = stream.lines();
        let mut shown = stream.come_to(world, now);
        if let Some((_, restored)) = self.restored.filter(|(of, _)| *of == world && !stream.is_late(world)) {
            stream.begin(world, restored);
        }
        let more = what(stream);
        if shown.is_empty() {
            shown = more;
        } else {
            shown.extend(more);
        }
        self.lines = self.lines + stream.lines() - before;
        while self.lines > self.most {
            self.forget();
        }
        shown
    }

    fn forget(&mut self) {
        let Some(longest) = self.streams.values_mut().max_by_key(|stream| stream.lines()) else { return };
        let before = longest.lines();
        longest.forget(before / 8 + 1);
        self.lines = self.lines + longest.lines() - before;
    }

    /// When [`overdue`](Self::overdue) has something.
    pub fn deadline(&self) -> Option<Instant> {
        self.streams.values().filter_map(Stream::deadline).min()
    }

    /// Beginnings of lines that were kept back for long enough: they are shown.
    pub fn overdue(&mut self, now: Instant) -> Vec<(Rank, Vec<u8>)> {
        self.each(|stream| stream.overdue(now))
    }

    /// Nothing more comes: the last lines that have no end.
    pub fn finish(&mut self, now: Instant) -> Vec<(Rank, Vec<u8>)> {
        self.each(|stream| stream.finish(now))
    }

    fn each(&mut self, what: impl Fn(&mut Stream) -> Vec<u8>) -> Vec<(Rank, Vec<u8>)> {
        let shown = self.streams.iter_mut().map(|(rank, stream)| (*rank, what(stream)));
        shown.filter(|(_, bytes)| !bytes.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests;
