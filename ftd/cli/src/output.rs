//! What the ranks write: read from one pipe per slot and stream, written line by line to this process's streams.
//!
//! Nothing here blocks. A sink that is slow holds up the ranks that write to it, as a pipe would; it holds up nobody else.

use crate::sink::Sink;
use ft_wire::{Rank, Slot};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Bytes that may wait for a sink before the slots' pipes are left alone.
const PENDING: usize = 1 << 20;
/// Bytes that are held back in memory during a recovery.
const HELD: usize = 16 << 20;
/// Time for which output is held back when the recovery's block does not come.
const HOLD: Duration = Duration::from_secs(3);
/// A line that is not finished is passed on after this time.
const IDLE: Duration = Duration::from_millis(50);
/// A line that is longer is passed on in parts.
const LONGEST: usize = 64 << 10;
/// Read at once.
const CHUNK: usize = 64 << 10;

/// Which of the two streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// One pipe.
#[derive(Debug)]
struct Source {
    pipe: File,
    /// The beginning of a line.
    partial: Vec<u8>,
    since: Instant,
    /// A part of the line was passed on already.
    inside_line: bool,
}

type Key = (Slot, Stream);

/// All streams of the job.
#[derive(Debug)]
pub struct Output {
    sources: BTreeMap<Key, Source>,
    out: Sink,
    /// `None`: standard error is the same file as standard output, and keeps its order with it.
    err: Option<Sink>,
    tag: bool,
    ranks: BTreeMap<Slot, Rank>,
    /// Set between the end of a world and the recovery's block.
    held: Option<Held>,
    block: Option<String>,
}

#[derive(Debug)]
struct Held {
    since: Instant,
    bytes: usize,
    pieces: Vec<(Key, Piece)>,
}

/// What goes to a sink as one.
#[derive(Debug)]
struct Piece {
    tag: Option<Vec<u8>>,
    bytes: Vec<u8>,
}

impl Output {
    /// Writes to this process's standard output and error.
    pub fn new(tag: bool) -> Output {
        let (out, err) = (io::stdout(), io::stderr());
        let same = same_file(out.as_fd(), err.as_fd());
        Output::with_sinks(Sink::new(Box::new(out)), (!same).then(|| Sink::new(Box::new(err))), tag)
    }

    fn with_sinks(out: Sink, err: Option<Sink>, tag: bool) -> Output {
        Output { sources: BTreeMap::new(), out, err, tag, ranks: BTreeMap::new(), held: None, block: None }
    }

    /// Makes the pipes of a slot and returns their writing ends.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn open(&mut self, slot: Slot, now: Instant) -> io::Result<(OwnedFd, OwnedFd)> {
        let mut ends = Vec::new();
        for stream in [Stream::Out, Stream::Err] {
            let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
            nix::fcntl::fcntl(&read, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))?;
            let source = Source { pipe: File::from(read), partial: Vec::new(), since: now, inside_line: false };
            self.sources.insert((slot, stream), source);
            ends.push(write);
        }
        ends.pop().zip(ends.pop()).map(|(err, out)| (out, err)).ok_or_else(|| ErrorKind::Other.into())
    }

    /// From now on what a slot writes is its rank's.
    pub fn place(&mut self, ranks: Vec<(Rank, Slot)>) {
        self.ranks.extend(ranks.into_iter().map(|(rank, slot)| (slot, rank)));
    }

    /// The pipes that are to be polled for reading.
    pub fn readable(&self) -> impl Iterator<Item = (Key, BorrowedFd<'_>)> {
        let room = |stream| match &self.held {
            Some(held) => held.bytes < HELD,
            None => self.sink_of(stream).pending() < PENDING,
        };
        let (out, err) = (room(Stream::Out), room(Stream::Err));
        let wanted = move |stream| if stream == Stream::Out { out } else { err };
        self.sources.iter().filter(move |((_, s), _)| wanted(*s)).map(|(key, source)| (*key, source.pipe.as_fd()))
    }

    /// The sinks that are to be polled for writing.
    pub fn writable(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sinks().filter(|sink| sink.pending() > 0).map(Sink::as_fd)
    }

    /// When [`tick`](Self::tick) has something to do at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        let lines = self.sources.values().filter(|s| !s.partial.is_empty()).map(|s| s.since + IDLE);
        lines.chain(self.held.as_ref().map(|held| held.since + HOLD)).min()
    }

    /// Whether nothing waits to be written.
    pub fn all_written(&self) -> bool {
        self.held.is_none() && self.block.is_none() && self.sinks().all(|sink| sink.pending() == 0)
    }

    /// Reads one pipe; call when it is readable.
    pub fn read(&mut self, key: Key, now: Instant) {
        self.read_some(key, now);
    }

    /// Reads every pipe until it would block. Then nothing that was written before this call is missing.
    pub fn read_all(&mut self, now: Instant) {
        let keys: Vec<Key> = self.sources.keys().copied().collect();
        for key in keys {
            while self.read_some(key, now) {}
        }
    }

    /// Returns whether there may be more.
    fn read_some(&mut self, key: Key, now: Instant) -> bool {
        let Some(source) = self.sources.get_mut(&key) else { return false };
        let mut bytes = [0; CHUNK];
        match source.pipe.read(&mut bytes) {
            Ok(0) => {
                self.pass_rest(key, false);
                self.sources.remove(&key);
                false
            }
            Ok(count) => {
                self.take(key, &bytes[..count], now);
                true
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            Err(_) => {
                self.sources.remove(&key);
                false
            }
        }
    }

    /// Cuts what came into lines.
    fn take(&mut self, key: Key, bytes: &[u8], now: Instant) {
        let Some(source) = self.sources.get_mut(&key) else { return };
        let whole = match bytes.iter().rposition(|byte| *byte == b'\n') {
            Some(at) => {
                let mut lines = std::mem::take(&mut source.partial);
                lines.extend_from_slice(&bytes[..=at]);
                source.partial.extend_from_slice(&bytes[at + 1..]);
                source.since = now;
                let inside = std::mem::replace(&mut source.inside_line, false);
                Some((lines, inside))
            }
            None => {
                if source.partial.is_empty() {
                    source.since = now;
                }
                source.partial.extend_from_slice(bytes);
                None
            }
        };
        if let Some((lines, inside)) = whole {
            self.pass(key, lines, inside);
        }
        if self.sources.get(&key).is_some_and(|source| source.partial.len() > LONGEST) {
            self.pass_rest(key, false);
        }
    }

    /// Passes an unfinished line on; with `close`, as the last of a process that is gone: what follows begins a new line.
    fn pass_rest(&mut self, key: Key, close: bool) {
        let Some(source) = self.sources.get_mut(&key) else { return };
        let mut rest = std::mem::take(&mut source.partial);
        let inside = source.inside_line;
        source.inside_line = !close && (inside || !rest.is_empty());
        if close && (inside || !rest.is_empty()) {
            rest.push(b'\n');
        }
        if !rest.is_empty() {
            self.pass(key, rest, inside);
        }
    }

    /// Hands bytes over, to the sink or to what is held back. `inside`: they go on with a line of which a part went before.
    fn pass(&mut self, key: Key, bytes: Vec<u8>, inside: bool) {
        let mut pieces = Vec::new();
        if self.tag {
            let tag = self.tag_of(key);
            for (number, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
                let mut piece = Piece { tag: Some(tag.clone()), bytes: line.to_vec() };
                if number > 0 || !inside {
                    piece.bytes.splice(0..0, tag.iter().copied());
                    piece.tag = None;
                }
                pieces.push(piece);
            }
        } else {
            pieces.push(Piece { tag: None, bytes });
        }
        for piece in pieces {
            match &mut self.held {
                Some(held) => {
                    held.bytes += piece.bytes.len();
                    held.pieces.push((key, piece));
                }
                None => self.deliver(key, piece),
            }
        }
    }

    fn deliver(&mut self, key: Key, piece: Piece) {
        let tagged = self.tag;
        let sink = self.sink_mut(key.1);
        if tagged {
            sink.push_tagged(key, piece.tag, &piece.bytes);
        } else {
            sink.push(&piece.bytes);
        }
    }

    fn tag_of(&self, (slot, stream): Key) -> Vec<u8> {
        let rank = self.ranks.get(&slot).copied().unwrap_or(slot);
        let name = if stream == Stream::Out { "stdout" } else { "stderr" };
        format!("[{rank}]<{name}>: ").into_bytes()
    }

    /// A world has ended: all that it wrote goes out, and what comes now is held back until its successor is announced.
    pub fn end_world(&mut self, now: Instant) {
        self.release();
        self.read_all(now);
        let keys: Vec<Key> = self.sources.keys().copied().collect();
        for key in keys {
            self.pass_rest(key, true);
        }
        self.held = Some(Held { since: now, bytes: 0, pieces: Vec::new() });
    }

    /// The recovery's block: printed when what the old world wrote is out; then output goes on.
    pub fn announce(&mut self, block: String) {
        let waiting = self.block.get_or_insert_default();
        waiting.push_str(block.trim_end_matches('\n'));
        waiting.push('\n');
        self.settle();
    }

    /// A line of ftd's or ftrun's own, at once.
    pub fn say(&mut self, line: &str) {
        self.sink_mut(Stream::Err).push_line(line.as_bytes());
    }

    fn settle(&mut self) {
        // On the same file the order is kept anyway.
        let old_is_out = self.err.is_none() || self.out.pending() == 0 || self.held.is_none();
        if old_is_out && let Some(block) = self.block.take() {
            for line in block.lines() {
                self.say(line);
            }
            self.release();
        }
    }

    fn release(&mut self) {
        for (key, piece) in self.held.take().into_iter().flat_map(|held| held.pieces) {
            self.deliver(key, piece);
        }
    }

    /// Passes on what waited long enough, and writes what the sinks take.
    pub fn tick(&mut self, now: Instant) {
        let idle = |source: &Source| !source.partial.is_empty() && now >= source.since + IDLE;
        let keys: Vec<Key> = self.sources.iter().filter(|(_, source)| idle(source)).map(|(key, _)| *key).collect();
        for key in keys {
            self.pass_rest(key, false);
        }
        if self.held.as_ref().is_some_and(|held| now >= held.since + HOLD) {
            self.release();
        }
        self.write();
        self.settle();
        self.write();
    }

    fn write(&mut self) {
        self.out.write();
        if let Some(err) = &mut self.err {
            err.write();
        }
    }

    /// Nothing will be held back or waited for any more.
    pub fn finish(&mut self, now: Instant) {
        let keys: Vec<Key> = self.sources.keys().copied().collect();
        for key in keys {
            self.pass_rest(key, false);
        }
        self.release();
        self.tick(now);
    }

    fn sinks(&self) -> impl Iterator<Item = &Sink> {
        std::iter::once(&self.out).chain(&self.err)
    }

    fn sink_of(&self, stream: Stream) -> &Sink {
        match (&self.err, stream) {
            (Some(err), Stream::Err) => err,
            _ => &self.out,
        }
    }

    fn sink_mut(&mut self, stream: Stream) -> &mut Sink {
        match (&mut self.err, stream) {
            (Some(err), Stream::Err) => err,
            _ => &mut self.out,
        }
    }
}

fn same_file(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> bool {
    let identity = |fd| nix::sys::stat::fstat(fd).ok().map(|s| (s.st_dev, s.st_ino));
    identity(a).is_some_and(|a| identity(b) == Some(a))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    struct Bench {
        output: Output,
        pipes: Vec<(File, File)>,
        out: File,
        err: Option<File>,
        now: Instant,
    }

    impl Bench {
        fn new(slots: u32, tag: bool, same: bool) -> Bench {
            let file = || File::from(ft_sys::memory::create_memfd("t", 0).unwrap());
            let (out, err) = (file(), (!same).then(file));
            let sink = |file: &File| Sink::new(Box::new(file.try_clone().unwrap()));
            let mut output = Output::with_sinks(sink(&out), err.as_ref().map(sink), tag);
            let now = Instant::now();
            let pipes = (0..slots).map(|slot| output.open(slot, now).unwrap());
            let pipes = pipes.map(|(out, err)| (File::from(out), File::from(err))).collect();
            Bench { output, pipes, out, err, now }
        }

        fn write(&mut self, slot: usize, text: &str) {
            self.pipes[slot].0.write_all(text.as_bytes()).unwrap();
            self.output.read((slot as u32, Stream::Out), self.now);
        }

        fn tick(&mut self, milliseconds: u64) {
            self.now += Duration::from_millis(milliseconds);
            self.output.tick(self.now);
        }

        fn text(file: &File) -> String {
            let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
            file.read_exact_at(&mut bytes, 0).unwrap();
            String::from_utf8(bytes).unwrap()
        }

        fn out(&self) -> String {
            Self::text(&self.out)
        }
    }

    #[test]
    fn lines_of_two_slots_do_not_mix() {
        let mut bench = Bench::new(2, false, false);
        bench.write(0, "one ");
        bench.write(1, "two\nthr");
        bench.write(0, "more\n");
        bench.write(1, "ee\n");
        bench.tick(0);
        assert_eq!(bench.out(), "two\none more\nthree\n");
    }

    #[test]
    fn an_unfinished_line_goes_out_after_a_while() {
        let mut bench = Bench::new(1, false, false);
        bench.write(0, "name? ");
        bench.tick(10);
        assert_eq!(bench.out(), "");
        assert!(bench.output.deadline().is_some());
        bench.tick(50);
        assert_eq!(bench.out(), "name? ");
        assert_eq!(bench.output.deadline(), None);
        bench.write(0, "x\n");
        bench.tick(0);
        assert_eq!(bench.out(), "name? x\n");
    }

    #[test]
    fn every_line_bears_its_rank() {
        let mut bench = Bench::new(2, true, false);
        bench.output.place(vec![(7, 1)]);
        bench.write(1, "a\nb\nc");
        bench.tick(60);
        bench.write(0, "d\n");
        bench.write(1, "e\n");
        bench.tick(0);
        assert_eq!(
            bench.out(),
            "[7]<stdout>: a\n[7]<stdout>: b\n[7]<stdout>: c\n[0]<stdout>: d\n[7]<stdout>: e\n",
            "a line that another one interrupts goes on with a tag"
        );
        bench.write(1, "f");
        bench.tick(60);
        bench.write(1, "g\n");
        bench.tick(0);
        assert!(bench.out().ends_with("[7]<stdout>: fg\n"), "{}", bench.out());
        (&bench.pipes[1].1).write_all(b"h\n").unwrap();
        bench.output.read((1, Stream::Err), bench.now);
        bench.tick(0);
        assert_eq!(Bench::text(bench.err.as_ref().unwrap()), "[7]<stderr>: h\n");
    }

    #[test]
    fn a_new_world_writes_below_the_block() {
        for same in [false, true] {
            let mut bench = Bench::new(2, false, same);
            bench.write(0, "old 1\nold");
            (&bench.pipes[1].0).write_all(b"old, not read yet\n").unwrap();
            bench.output.end_world(bench.now);
            bench.write(0, "new\n");
            bench.tick(100);
            let old = "old 1\nold, not read yet\nold\n";
            let sorted = |text: &str| {
                let mut lines: Vec<String> = text.lines().map(String::from).collect();
                lines.sort();
                lines
            };
            assert_eq!(sorted(&bench.out()), sorted(old), "the new world's lines wait");
            bench.output.announce("the block\n  second line".into());
            bench.tick(0);
            assert!(bench.output.all_written());
            let block = "the block\n  second line\n";
            let text = bench.out();
            assert!(text.ends_with(&if same { format!("{block}new\n") } else { "new\n".into() }), "{text}");
            if let Some(err) = &bench.err {
                assert_eq!(Bench::text(err), block);
            }
        }
    }

    #[test]
    fn output_is_not_held_back_for_ever() {
        let mut bench = Bench::new(1, false, false);
        bench.output.end_world(bench.now);
        bench.write(0, "new\n");
        bench.tick(2900);
        assert_eq!(bench.out(), "");
        bench.tick(200);
        assert_eq!(bench.out(), "new\n");
        bench.output.announce("late".into());
        bench.tick(0);
        assert_eq!(Bench::text(bench.err.as_ref().unwrap()), "late\n");
    }

    #[test]
    fn memory_is_bounded_when_nobody_reads() {
        let (_read, write) = io::pipe().unwrap();
        let mut output = Output::with_sinks(Sink::new(Box::new(write)), None, false);
        let now = Instant::now();
        let (out, _err) = output.open(0, now).unwrap();
        let mut out = File::from(out);
        let line = "x".repeat(4095) + "\n";
        for _ in 0..1000 {
            if output.readable().next().is_none() {
                break;
            }
            out.write_all(line.as_bytes()).unwrap();
            output.read((0, Stream::Out), now);
            output.tick(now);
        }
        assert!(output.readable().next().is_none(), "the pipe is still read");
        assert!(output.out.pending() < 2 * PENDING);
        output.end_world(now);
        let mut written = 0;
        while output.readable().next().is_some() {
            out.write_all(line.as_bytes()).unwrap();
            written += line.len();
            output.read((0, Stream::Out), now);
        }
        assert!((HELD..HELD + 2 * CHUNK).contains(&written), "{written} bytes were held back");
    }
}
