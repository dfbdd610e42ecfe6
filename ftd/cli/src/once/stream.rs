//! What one rank has printed on its standard output, and what of it may come again.

use super::expected::Expected;
use super::{Commit, LONGEST};
use ft_wire::{Version, World};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use twox_hash::XxHash3_64;

/// So many lines are looked at for one that comes late.
const NEAR: usize = 4096;
/// The newest versions are remembered, so many: an arena holds three.
const MARKS: usize = 64;
/// The beginning of a line that may be one that was shown is kept back for so long at most: somebody may wait for an answer to it.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// A version, and how many lines had been shown when it was taken.
#[derive(Debug, Clone, Copy)]
struct Mark {
    commit: Commit,
    lines: u64,
}

/// The line that is not finished.
#[derive(Debug)]
struct Begun {
    bytes: Vec<u8>,
    /// All of it was shown, and its rest will be; otherwise nothing of it.
    shown: bool,
    since: Instant,
}

/// The standard output of a rank, over all worlds.
#[derive(Debug)]
pub(super) struct Stream {
    /// In which it has printed last.
    world: World,
    /// The newest one of which it is known what it has taken back.
    begun: World,
    /// Lines, by their hashes, that were shown and are not expected again, in the order in which the program prints them.
    past: VecDeque<u64>,
    /// So many stood before those.
    forgotten: u64,
    /// So many had been shown when this world began.
    start: u64,
    /// What comes late of the world before this one may have been shown of this one from here …
    late_from: u64,
    /// … to here.
    late_to: Option<u64>,
    /// A line that comes late is not finished: what was there of it is shown.
    late_open: bool,
    /// The version that this world has restored, of which nothing is known here: what comes late may stand before it, and is not printed again.
    unmarked: Option<Commit>,
    marks: VecDeque<Mark>,
    expected: Expected,
    /// Nothing is expected any more, whatever comes of a world before this one.
    over: bool,
    /// The newest version of which a world before this one has taken note.
    highest: Option<Version>,
    /// … and this one.
    newest: Option<Version>,
    line: Begun,
    /// It is no text: all of it is shown.
    pub(super) all: bool,
}

fn hash(line: &[u8]) -> u64 {
    XxHash3_64::oneshot(line)
}

fn is_text(line: &[u8]) -> bool {
    line.len() <= LONGEST && memchr::memchr(0, line).is_none()
}

impl Stream {
    pub(super) fn new(now: Instant) -> Stream {
        Stream {
            world: 0,
            begun: 0,
            past: VecDeque::new(),
            forgotten: 0,
            start: 0,
            late_from: 0,
            late_to: None,
            late_open: false,
            unmarked: None,
            marks: VecDeque::new(),
            expected: Expected::default(),
            over: false,
            highest: None,
            newest: None,
            line: Begun { bytes: Vec::new(), shown: false, since: now },
            all: false,
        }
    }

    /// So many lines are remembered.
    pub(super) fn lines(&self) -> usize {
        self.past.len() + self.expected.len()
    }

    fn shown(&self) -> u64 {
        self.forgotten + self.past.len() as u64
    }

    /// Whether what comes is of a world before the one that has printed last.
    pub(super) fn is_late(&self, world: World) -> bool {
        world < self.world
    }

    /// It prints in this world from now on; what this shows of what went before.
    pub(super) fn come_to(&mut self, world: World, now: Instant) -> Vec<u8> {
        if world <= self.world || self.all {
            self.world = self.world.max(world);
            return Vec::new();
        }
        let rest = self.end_line(now);
        self.past.extend(self.expected.take());
        (self.world, self.start) = (world, self.shown());
        (self.late_from, self.late_to, self.late_open) = (self.start, None, false);
        self.highest = self.highest.max(self.newest.take());
        self.over = false;
        rest
    }

    /// The world that prints has taken this back: what was shown since then, and before this world, is expected again.
    pub(super) fn begin(&mut self, world: World, restored: Option<Commit>) {
        if self.begun >= world || self.all {
            return;
        }
        self.begun = world;
        let mark = |commit| self.marks.iter().find(|mark| mark.commit == commit).map(|mark| mark.lines);
        let from = restored.map_or(Some(0), mark);
        self.unmarked = restored.filter(|_| from.is_none());
        let Some(from) = from else { return };
        let (from, to) = (self.index(from), self.index(self.start));
        let mut expected: Vec<u64> = self.past.drain(from.min(to)..to).collect();
        let (from, count) = (self.forgotten + from as u64, expected.len() as u64);
        expected.extend(self.expected.take());
        // What has been taken since is not there any more; what this world has taken itself stays.
        self.marks.retain(|mark| mark.lines <= from || mark.lines >= from + count);
        self.marks.iter_mut().filter(|mark| mark.lines > from).for_each(|mark| mark.lines -= count);
        self.start = from;
        self.late_from = self.late_from.saturating_sub(count).max(from);
        self.late_to = self.late_to.map(|to| to.saturating_sub(count).max(from));
        self.expected = Expected::new(expected);
    }

    fn index(&self, lines: u64) -> usize {
        usize::try_from(lines.saturating_sub(self.forgotten)).unwrap_or(usize::MAX).min(self.past.len())
    }

    /// It has taken a version here; what this shows.
    pub(super) fn mark(&mut self, commit: Commit, placed: bool) -> Vec<u8> {
        if self.all {
            return Vec::new();
        }
        let (version, _) = commit;
        let mut shown = Vec::new();
        if self.highest < Some(version) {
            // The program is further than it ever was.
            self.past.extend(self.expected.take());
            self.over = true;
            self.late_to.get_or_insert(self.forgotten + self.past.len() as u64);
            shown = self.show_line();
        }
        self.newest = self.newest.max(Some(version));
        if placed {
            if self.marks.len() == MARKS {
                self.marks.pop_front();
            }
            self.marks.push_back(Mark { commit, lines: self.shown() });
        }
        shown
    }

    /// A world before this one has taken a version, which is heard of late. `placed`: just here.
    pub(super) fn late_mark(&mut self, commit: Commit, placed: bool) {
        self.unmarked.take_if(|unmarked| placed && *unmarked == commit);
    }

    /// This world has printed this, which is heard of late. What of it is to be shown: the world that prints may have printed the same
    /// meanwhile, as nobody had seen it.
    pub(super) fn late(&mut self, world: World, bytes: Vec<u8>) -> Vec<u8> {
        // What only the world before the last has taken back, what stands before what was restored, and what stands nobody knows where is not
        // printed again: it hides nothing, and nothing hides it.
        let printed_again = world + 1 == self.world && self.begun == self.world && self.unmarked.is_none();
        if self.all || !printed_again {
            self.late_open = bytes.last().is_some_and(|byte| *byte != b'\n');
            return bytes;
        }
        let mut shown = Vec::with_capacity(bytes.len());
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let line = piece.strip_suffix(b"\n");
            let goes_on = std::mem::replace(&mut self.late_open, line.is_none());
            if let Some(line) = line.filter(|_| !goes_on).map(hash) {
                if self.was_shown_since(line) {
                    continue;
                }
                match self.over {
                    true => self.past.push_back(line),
                    false => self.expected.push(line),
                }
            }
            shown.extend_from_slice(piece);
        }
        shown
    }

    /// Whether this world has shown that line, behind all that came of the world before it until now.
    fn was_shown_since(&mut self, line: u64) -> bool {
        let (from, to) = (self.index(self.late_from), self.index(self.late_to.unwrap_or_else(|| self.shown())));
        let found = self.past.range(from..to.max(from)).take(NEAR).position(|other| *other == line);
        found.is_some_and(|steps| {
            self.late_from = self.forgotten + (from + steps) as u64 + 1;
            true
        })
    }

    /// It has printed this; what of it is to be shown.
    pub(super) fn print(&mut self, bytes: Vec<u8>, now: Instant) -> Vec<u8> {
        if self.all {
            return bytes;
        }
        if self.expected.is_empty() && (self.line.shown || self.line.bytes.is_empty()) {
            self.note(&bytes, now);
            return bytes;
        }
        let (mut shown, mut rest) = (Vec::new(), bytes.as_slice());
        while let Some(end) = memchr::memchr(b'\n', rest) {
            self.finish_line(&rest[..end], &mut shown, now);
            rest = &rest[end + 1..];
            if self.all {
                break;
            }
        }
        if !self.all {
            self.begin_line(rest, &mut shown, now);
        } else {
            shown.extend_from_slice(rest);
        }
        shown
    }

    /// All of this is shown.
    fn note(&mut self, bytes: &[u8], now: Instant) {
        // A scan of everything for what hardly ever comes is faster than one of each line.
        if memchr::memchr(0, bytes).is_some() {
            return self.show_all();
        }
        let mut from = 0;
        for end in memchr::memchr_iter(b'\n', bytes) {
            let line = &bytes[from..end];
            from = end + 1;
            let hash = if self.line.bytes.is_empty() {
                hash(line)
            } else {
                self.line.bytes.extend_from_slice(line);
                hash(&self.line.bytes)
            };
            if line.len().max(self.line.bytes.len()) > LONGEST {
                return self.show_all();
            }
            self.line.bytes.clear();
            self.line.shown = false;
            self.past.push_back(hash);
        }
        self.begin_line(&bytes[from..], &mut Vec::new(), now);
    }

    /// What a line ends with, but for its end.
    fn finish_line(&mut self, end: &[u8], shown: &mut Vec<u8>, now: Instant) {
        let Begun { mut bytes, shown: before, .. } =
            std::mem::replace(&mut self.line, Begun { bytes: Vec::new(), shown: false, since: now });
        let already = if before { bytes.len() } else { 0 };
        bytes.extend_from_slice(end);
        if is_text(&bytes) {
            let hash = hash(&bytes);
            // Of what was seen in part the rest is shown, too.
            if !before && let Some(taken) = self.expected.take_to(hash) {
                self.past.extend(taken);
                self.late_from = self.shown();
                return;
            }
            self.past.push_back(hash);
        } else {
            self.show_all();
        }
        shown.extend_from_slice(&bytes[already..]);
        shown.push(b'\n');
    }

    /// What a line begins or goes on with.
    fn begin_line(&mut self, bytes: &[u8], shown: &mut Vec<u8>, now: Instant) {
        if bytes.is_empty() {
            return;
        }
        if self.line.bytes.is_empty() {
            self.line.since = now;
            self.line.shown = self.expected.is_empty();
        }
        self.line.bytes.extend_from_slice(bytes);
        if self.line.shown {
            shown.extend_from_slice(bytes);
        }
        if !is_text(&self.line.bytes) {
            shown.extend(self.show_line());
            self.show_all();
        }
    }

    /// What is kept back of a line, which is shown from now on.
    fn show_line(&mut self) -> Vec<u8> {
        match std::mem::replace(&mut self.line.shown, !self.line.bytes.is_empty()) {
            true => Vec::new(),
            false => self.line.bytes.clone(),
        }
    }

    /// The process is gone in the middle of a line: it is a line as it is.
    fn end_line(&mut self, now: Instant) -> Vec<u8> {
        let mut shown = Vec::new();
        if !self.line.bytes.is_empty() {
            self.finish_line(b"", &mut shown, now);
        }
        shown
    }

    /// Nothing more comes: what is kept back of a line is shown, if it is no line that was.
    pub(super) fn finish(&mut self, now: Instant) -> Vec<u8> {
        let kept = !self.line.shown && !self.line.bytes.is_empty();
        let mut shown = if kept { self.end_line(now) } else { Vec::new() };
        // That line had no end.
        shown.pop();
        shown
    }

    /// When what is kept back of a line is shown at the latest.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.line.shown && !self.line.bytes.is_empty()).then(|| self.line.since + PATIENCE)
    }

    /// What was kept back for long enough.
    pub(super) fn overdue(&mut self, now: Instant) -> Vec<u8> {
        match self.deadline() {
            Some(deadline) if now >= deadline => self.show_line(),
            _ => Vec::new(),
        }
    }

    /// It is no text.
    fn show_all(&mut self) {
        let now = self.line.since;
        *self = Stream { world: self.world, all: true, ..Stream::new(now) };
    }

    /// Forgets so many lines, or all that there are, the oldest first.
    pub(super) fn forget(&mut self, lines: usize) {
        let of_past = lines.min(self.past.len());
        self.past.drain(..of_past);
        self.forgotten += of_past as u64;
        self.expected.skip(lines - of_past);
    }
}
