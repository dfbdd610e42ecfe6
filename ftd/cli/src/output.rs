//! What the ranks write: read from one pipe per process and stream, written line by line to this process's streams.
//!
//! On the way it is left out what was shown before a recovery, where that is wanted (see [`crate::once`]).
//!
//! Nothing here blocks. A sink that is slow holds up the ranks that write to it, as a pipe would; it holds up nobody else.

use crate::once::{Commit, Once};
use crate::rank_files::RankFiles;
use crate::sink::{self, Sink, Trouble};
use ft_sys::printed::{Note, Reader};
use ft_sys::standard::Standard;
use ft_wire::part::FromPart;
use ft_wire::{Epoch, Rank, Slot, World};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
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
/// What the agent may log while ftrun does not come to read, where the system allows it.
const ROOM: i32 = 1 << 20;
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

/// What stands before every line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Label {
    /// Nothing.
    None,
    /// Rank and stream: `--tag-output`.
    Stream,
    /// The rank: `-l`.
    Rank,
}

/// Which pipe. The world 0 is none: there the shepherd of the slot writes, or the agent.
pub type Key = (World, Slot, Stream);

/// What the agent has in a slot's place.
pub const AGENT: Slot = Slot::MAX;

/// One pipe.
#[derive(Debug)]
struct Source {
    /// `None`: everybody who wrote to it is gone.
    pipe: Option<File>,
    /// Whose it is; nobody's tag stands before what a shepherd says.
    rank: Option<Rank>,
    /// The beginning of a line.
    partial: Vec<u8>,
    since: Instant,
    /// A part of the line was passed on already.
    inside_line: bool,
    /// Bytes that have been read of it, and of those the ones that were passed on.
    read: u64,
    passed: u64,
    /// Versions that its rank has taken behind what was passed on, and the number of the next that it notes.
    notes: VecDeque<Note>,
    next_note: u64,
}

impl Source {
    fn new(pipe: OwnedFd, rank: Option<Rank>, next_note: u64, now: Instant) -> Source {
        Source {
            pipe: Some(File::from(pipe)),
            rank,
            partial: Vec::new(),
            since: now,
            inside_line: false,
            read: 0,
            passed: 0,
            notes: VecDeque::new(),
            next_note,
        }
    }

    /// The next version that it has taken within so many bytes behind what was passed on: how many lines' bytes stand before it.
    fn next_mark(&mut self, bytes: &[u8]) -> Option<(usize, Note)> {
        let end = self.passed + bytes.len() as u64;
        self.notes.front().filter(|note| note.at.is_none_or(|at| at <= end))?;
        let note = self.notes.pop_front()?;
        let before = note.at.map_or(0, |at| at.saturating_sub(self.passed)) as usize;
        Some((memchr::memrchr(b'\n', &bytes[..before]).map_or(0, |at| at + 1), note))
    }

    /// Whether more of it is there to be read.
    fn is_unread(&self) -> bool {
        self.pipe.as_ref().is_some_and(|pipe| ft_sys::filters::is_unread(pipe.as_fd()))
    }
}

/// All streams of the job.
#[derive(Debug)]
pub struct Output {
    sources: BTreeMap<Key, Source>,
    out: Sink,
    /// `None`: standard error is the same file as standard output, and keeps its order with it.
    err: Option<Sink>,
    /// Told by the sinks when something has changed.
    wake: Arc<EventFd>,
    label: Label,
    /// Where the ranks have files of their own.
    files: Option<RankFiles>,
    /// All goes to a launcher on another node, which puts it together with what comes from others.
    far: bool,
    /// Where ranks note what versions they take.
    printed: Option<Reader>,
    /// What was shown already, where it is not to be shown again.
    once: Option<Once>,
    /// Whose last line is not finished, as far as it was delivered.
    open: BTreeSet<Key>,
    /// Set between the end of a world and the recovery's block.
    held: Option<Held>,
    block: Option<String>,
}

#[derive(Debug)]
struct Held {
    since: Instant,
    bytes: usize,
    pieces: Vec<(Key, Option<Rank>, Piece)>,
}

/// What is delivered as one.
#[derive(Debug)]
enum Piece {
    Bytes(Vec<u8>),
    /// The rank has taken a version here.
    Mark(Note),
}

impl Output {
    /// Writes to this process's standard output and error. With `files` what so many ranks write goes into files of theirs, whose names
    /// begin so.
    ///
    /// # Errors
    /// When no descriptor or thread is left.
    pub fn new(label: Label, once: bool, files: Option<(&Path, Rank)>) -> io::Result<Output> {
        let (out, err) = (io::stdout(), io::stderr());
        // What stands in for a closed one is the null device, which the other one may be as well.
        let alike = Standard::Output.was_closed() == Standard::Error.was_closed();
        let same = alike && same_file(out.as_fd(), err.as_fd());
        let err: Option<Box<dyn AsFd + Send>> = if same { None } else { Some(Box::new(err)) };
        let once = once.then(Once::default);
        let mut output = Output { once, ..Output::to(Box::new(out), err, label)? };
        if let Some((name, ranks)) = files {
            let (files, sentences) = RankFiles::open(name, ranks, &output.wake);
            output.files = Some(files);
            sentences.into_iter().for_each(|sentence| output.say(&format!("ftrun: {sentence}")));
        }
        Ok(output)
    }

    /// Sends all to the launcher at the other end, in the order in which it comes.
    ///
    /// # Errors
    /// When no descriptor or thread is left.
    pub fn far(link: Box<dyn AsFd + Send>) -> io::Result<Output> {
        Ok(Output { far: true, ..Output::to(link, None, Label::None)? })
    }

    /// The sheet on which the ranks here note what versions they take.
    pub fn look_at(&mut self, printed: Reader) {
        self.printed = Some(printed);
    }

    fn to(out: Box<dyn AsFd + Send>, err: Option<Box<dyn AsFd + Send>>, label: Label) -> io::Result<Output> {
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let out = Sink::new(out, Arc::clone(&wake))?;
        let err = err.map(|err| Sink::new(err, Arc::clone(&wake))).transpose()?;
        Ok(Output {
            sources: BTreeMap::new(),
            out,
            err,
            wake,
            label,
            files: None,
            far: false,
            printed: None,
            once: None,
            open: BTreeSet::new(),
            held: None,
            block: None,
        })
    }

    /// Makes the pipe of a slot's shepherd, or of the agent, and returns its writing end. Those do not wait for a reader.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn open(&mut self, slot: Slot, now: Instant) -> io::Result<OwnedFd> {
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        fcntl(&write, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        if slot == AGENT {
            // Where it is refused, less is held for a reader that is late. All of a user's pipes together have a limit.
            let _ = fcntl(&write, FcntlArg::F_SETPIPE_SZ(ROOM));
        }
        let key = (0, slot, Stream::Err);
        // An agent that died may have said why.
        self.read_whole(key, now);
        self.pass_rest(key, true);
        self.listen(key, None, read, now)?;
        Ok(write)
    }

    /// Takes the reading ends of a process's pipes. Worlds of one job follow each other: when a new one writes, nobody of an
    /// older one does.
    ///
    /// # Errors
    /// When they are no pipes.
    pub fn adopt(&mut self, of: (World, Slot, Rank), pipes: (OwnedFd, OwnedFd), now: Instant) -> io::Result<()> {
        let (world, slot, rank) = of;
        self.end_older_than(world, now);
        self.listen((world, slot, Stream::Out), Some(rank), pipes.0, now)?;
        self.listen((world, slot, Stream::Err), Some(rank), pipes.1, now)
    }

    fn listen(&mut self, key: Key, rank: Option<Rank>, pipe: OwnedFd, now: Instant) -> io::Result<()> {
        fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let printed = self.printed.as_ref().filter(|_| key.2 == Stream::Out);
        let next_note = printed.zip(rank).map_or(0, |(printed, rank)| printed.begin(rank, key.0));
        self.sources.insert(key, Source::new(pipe, rank, next_note, now));
        Ok(())
    }

    /// The pipes that are to be polled for reading.
    pub fn readable(&self) -> impl Iterator<Item = (Key, BorrowedFd<'_>)> {
        let room = |stream| match &self.held {
            Some(held) => held.bytes < HELD,
            None => self.sink_of(stream).pending() < PENDING,
        };
        let (out, err) = (room(Stream::Out), room(Stream::Err));
        let wanted = move |stream| if stream == Stream::Out { out } else { err };
        self.sources
            .iter()
            .filter(move |((_, _, stream), source)| match self.files.as_ref().zip(source.rank) {
                Some((files, rank)) => files.pending(rank, *stream) < PENDING,
                None => wanted(*stream),
            })
            .filter_map(|(key, source)| source.pipe.as_ref().map(|pipe| (*key, pipe.as_fd())))
    }

    /// Readable when a sink has written something: then [`tick`](Self::tick) has something to do.
    pub fn written(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// When [`tick`](Self::tick) has something to do at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        let lines = self.sources.values().filter(|s| !s.partial.is_empty() && !s.is_unread()).map(|s| s.since + IDLE);
        let kept_back = self.once.as_ref().and_then(Once::deadline);
        lines.chain(self.held.as_ref().map(|held| held.since + HOLD)).chain(kept_back).min()
    }

    /// Whether nothing waits to be written.
    pub fn all_written(&self) -> bool {
        self.held.is_none() && self.block.is_none() && self.all_sinks().all(|sink| sink.pending() == 0)
    }

    /// Reads one pipe; call when it is readable.
    pub fn read(&mut self, key: Key, now: Instant) {
        self.read_some(key, now);
    }

    /// Reads what is in the pipes. Then nothing that was written before this call is missing.
    pub fn read_all(&mut self, now: Instant) {
        let keys: Vec<Key> = self.sources.keys().copied().collect();
        for key in keys {
            self.read_whole(key, now);
        }
    }

    /// Reads until the pipe would block, or as much as it can have held: somebody may be writing all the time.
    fn read_whole(&mut self, key: Key, now: Instant) {
        let pipe = self.sources.get(&key).and_then(|source| source.pipe.as_ref());
        let mut left = pipe.and_then(|pipe| fcntl(pipe, FcntlArg::F_GETPIPE_SZ).ok()).map_or(0, i64::from);
        while left > 0
            && let Some(count) = self.read_some(key, now)
        {
            left -= count as i64;
        }
    }

    /// Returns how much it was, if there may be more.
    fn read_some(&mut self, key: Key, now: Instant) -> Option<usize> {
        let source = self.sources.get_mut(&key)?;
        let mut bytes = [0; CHUNK];
        let noted = self.printed.as_ref().filter(|_| key.2 == Stream::Out).zip(source.rank);
        noted.iter().for_each(|(printed, rank)| printed.reading(*rank));
        let read = source.pipe.as_mut()?.read(&mut bytes);
        source.read += *read.as_ref().unwrap_or(&0) as u64;
        noted.iter().for_each(|(printed, rank)| printed.read(*rank, source.read));
        self.take_notes(key);
        match read {
            Ok(count) if count > 0 => {
                self.take(key, &bytes[..count], now);
                Some(count)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Some(0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Ok(_) | Err(_) => {
                self.pass_marks(key);
                let source = self.sources.get_mut(&key)?;
                source.pipe = None;
                if source.partial.is_empty() && !source.inside_line {
                    self.sources.remove(&key);
                }
                None
            }
        }
    }

    /// What a rank has noted before what was read now was printed.
    fn take_notes(&mut self, key: Key) {
        let Some(source) = self.sources.get_mut(&key).filter(|_| key.2 == Stream::Out) else { return };
        let Some((printed, rank)) = self.printed.as_ref().zip(source.rank) else { return };
        let (notes, next) = printed.notes(rank, source.next_note);
        source.next_note = next;
        source.notes.extend(notes.into_iter().filter(|note| note.world == key.0));
    }

    /// Passes on what a rank has noted up to what it has printed last.
    fn pass_marks(&mut self, key: Key) {
        while let Some((rank, note)) =
            self.sources.get_mut(&key).and_then(|source| Some((source.rank, source.next_mark(&[])?.1)))
        {
            self.pass_piece(key, rank, Piece::Mark(note));
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
                source.inside_line = false;
                Some(lines)
            }
            None => {
                if source.partial.is_empty() {
                    source.since = now;
                }
                source.partial.extend_from_slice(bytes);
                None
            }
        };
        if let Some(lines) = whole {
            self.pass(key, lines, 0);
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
        let mut added = 0;
        if close && (inside || !rest.is_empty()) {
            rest.push(b'\n');
            added = 1;
        }
        if !rest.is_empty() {
            self.pass(key, rest, added);
        }
    }

    /// Hands over what a process has printed, but for the last bytes, so many, and what it has noted between.
    fn pass(&mut self, key: Key, mut bytes: Vec<u8>, added: usize) {
        while let Some(source) = self.sources.get_mut(&key)
            && let Some((before, note)) = source.next_mark(&bytes[..bytes.len() - added])
        {
            let (rank, rest) = (source.rank, bytes.split_off(before));
            source.passed += before as u64;
            let before = std::mem::replace(&mut bytes, rest);
            self.pass_piece(key, rank, Piece::Bytes(before));
            self.pass_piece(key, rank, Piece::Mark(note));
        }
        let Some(source) = self.sources.get_mut(&key) else { return };
        source.passed += (bytes.len() - added) as u64;
        let rank = source.rank;
        self.pass_piece(key, rank, Piece::Bytes(bytes));
    }

    /// Delivers it, or holds it back.
    fn pass_piece(&mut self, key: Key, rank: Option<Rank>, piece: Piece) {
        match (&mut self.held, &piece) {
            (_, Piece::Bytes(bytes)) if bytes.is_empty() => {}
            (Some(held), _) => {
                held.bytes += if let Piece::Bytes(bytes) = &piece { bytes.len() } else { 0 };
                held.pieces.push((key, rank, piece));
            }
            (None, _) => self.deliver(key, rank, piece),
        }
    }

    fn deliver(&mut self, key: Key, rank: Option<Rank>, piece: Piece) {
        let (world, slot, stream) = key;
        let err = stream == Stream::Err;
        if self.far {
            return match (piece, rank) {
                (Piece::Bytes(bytes), _) => self.send(&FromPart::Output { world, slot, rank, err, bytes }),
                (Piece::Mark(Note { version, epoch, at, .. }), Some(rank)) => {
                    self.send(&FromPart::Mark { world, slot, rank, version, epoch, placed: at.is_some() });
                }
                (Piece::Mark(_), None) => {}
            };
        }
        let shown = match (&mut self.once, rank, piece) {
            (Some(once), Some(rank), Piece::Bytes(bytes)) if !err => {
                once.print((world, rank), bytes, ft_sys::job_time::now())
            }
            (Some(once), Some(rank), Piece::Mark(Note { version, epoch, at, .. })) => {
                once.mark((world, rank), (version, epoch), at.is_some(), ft_sys::job_time::now())
            }
            (_, _, Piece::Bytes(bytes)) => bytes,
            (_, _, Piece::Mark(_)) => Vec::new(),
        };
        self.show(key, rank, &shown);
    }

    /// Hands bytes over to the sink, with tags where they are wanted.
    fn show(&mut self, key: Key, rank: Option<Rank>, bytes: &[u8]) {
        if let Some((files, rank)) = self.files.as_mut().zip(rank)
            && files.push(rank, key.2, bytes)
        {
            return;
        }
        // A rank's line may go on in what was kept back of it.
        let key = rank.filter(|_| key.2 == Stream::Out).map_or(key, |rank| (0, rank, Stream::Out));
        if self.label == Label::None {
            return self.sink_mut(key.2).push_untagged(key, bytes);
        }
        let tag = rank.map(|rank| tag(self.label, rank, key.2)).unwrap_or_default();
        let mut inside = self.open.remove(&key);
        if bytes.last().is_some_and(|last| *last != b'\n') || inside && bytes.is_empty() {
            self.open.insert(key);
        }
        let sink = self.sink_mut(key.2);
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            // It goes on with a line of which a part went before.
            sink.push_tagged(key, &tag, std::mem::take(&mut inside), line);
        }
    }

    /// The ranks of this world take this back, or begin from the beginning.
    pub fn restores(&mut self, world: World, restored: Option<Commit>) {
        if self.far {
            self.send(&FromPart::Restores { world, restored });
        }
        self.once.iter_mut().for_each(|once| once.begins(world, restored));
    }

    /// A rank on another node has taken a version, behind what came from there.
    pub fn mark(&mut self, (world, slot, rank): (World, Slot, Rank), commit: Commit, placed: bool) {
        let (version, epoch) = commit;
        let note = Note { world, epoch, version, at: placed.then_some(0) };
        self.deliver((world, slot, Stream::Out), Some(rank), Piece::Mark(note));
    }

    /// What a slot of another node has written, line by line as it came from there.
    pub fn pass_on(&mut self, (world, slot, rank): (World, Slot, Option<Rank>), err: bool, bytes: Vec<u8>) {
        let stream = if err { Stream::Err } else { Stream::Out };
        self.deliver((world, slot, stream), rank, Piece::Bytes(bytes));
    }

    /// Whether more may come: what waits for a sink is not so much.
    pub fn has_room(&self) -> bool {
        self.sinks().all(|sink| sink.pending() < PENDING)
    }

    /// Says it to the launcher at the other end, behind all that was sent before.
    pub fn send(&mut self, word: &FromPart) {
        // What is too long for a frame there is none of: the longest pieces are read at once.
        if let Ok(frame) = ft_wire::encode(word, 0) {
            self.out.push(&frame);
        }
    }

    /// The processes of all older worlds are gone: what they left in their pipes goes out.
    fn end_older_than(&mut self, world: World, now: Instant) {
        let keys: Vec<Key> = self.sources.keys().copied().filter(|key| (1..world).contains(&key.0)).collect();
        for key in keys {
            self.read_whole(key, now);
            self.take_notes(key);
            self.pass_rest(key, true);
            self.pass_marks(key);
            self.sources.remove(&key);
        }
    }

    /// A world has ended: all that it wrote goes out, and what comes now is held back until its successor is announced.
    pub fn end_world(&mut self, world: World, now: Instant) {
        self.release();
        self.end_older_than(world + 1, now);
        self.held = Some(Held { since: now, bytes: 0, pieces: Vec::new() });
    }

    /// The recovery's block: printed when what the old world wrote is out; then output goes on.
    pub fn announce(&mut self, epoch: Epoch, block: String) {
        if self.far {
            self.send(&FromPart::Block { epoch, text: block });
            return self.release();
        }
        let waiting = self.block.get_or_insert_default();
        waiting.push_str(block.trim_end_matches('\n'));
        waiting.push('\n');
        self.settle();
    }

    /// A block is about to be announced: what comes from now on stands behind it.
    pub fn hold(&mut self, now: Instant) {
        self.held.get_or_insert(Held { since: now, bytes: 0, pieces: Vec::new() });
    }

    /// Another node has announced it: output goes on.
    pub fn announced(&mut self) {
        self.release();
    }

    /// A line of ftd's or ftrun's own, at once.
    pub fn say(&mut self, line: &str) {
        if self.far {
            return self.send(&FromPart::Line(line.into()));
        }
        self.sink_mut(Stream::Err).push_line(line.as_bytes());
    }

    /// A line of the agent's.
    pub fn notice(&mut self, text: &str) {
        match self.far {
            true => self.send(&FromPart::Notice(text.into())),
            false => self.say(&format!("ftd: {text}")),
        }
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
        for (key, rank, piece) in self.held.take().into_iter().flat_map(|held| held.pieces) {
            self.deliver(key, rank, piece);
        }
    }

    /// Passes on what waited long enough, and says what is wrong with the sinks.
    pub fn tick(&mut self, now: Instant) {
        for key in self.idle(now) {
            self.pass_rest(key, false);
        }
        if self.held.as_ref().is_some_and(|held| now >= held.since + HOLD) {
            self.release();
        }
        let kept_back = self.once.as_mut().map(|once| once.overdue(now)).unwrap_or_default();
        self.show_each(kept_back);
        // What it counts is of no interest.
        let _ = self.wake.read();
        self.settle();
        for (name, trouble) in self.troubles() {
            let seconds = ft_sys::timescale::scaled(sink::PATIENCE).as_secs();
            self.say(&match trouble {
                Trouble::Waiting(errno) => {
                    format!("ftrun: {name} cannot be written: {}; it is tried again for {seconds} s", errno.desc())
                }
                Trouble::Closed => format!("ftrun: {name} is not open for writing: output is being lost"),
                Trouble::GivenUp(errno) => format!(
                    "ftrun: {name} could not be written for {seconds} s: {}; output is being lost",
                    errno.desc()
                ),
            });
        }
    }

    /// Whose line is not finished in its time. The rest of one that was not read meanwhile, because a sink is slow or this process
    /// did not run, may lie in the pipe: its time begins anew.
    fn idle(&mut self, now: Instant) -> Vec<Key> {
        let overdue = |source: &&mut Source| !source.partial.is_empty() && now >= source.since + IDLE;
        let mut idle = Vec::new();
        for (key, source) in self.sources.iter_mut().filter(|(_, source)| overdue(source)) {
            match source.is_unread() {
                true => source.since = now,
                false => idle.push(*key),
            }
        }
        idle
    }

    fn troubles(&self) -> Vec<(String, Trouble)> {
        // Of the link nobody is told: nobody is at its other end, and the job is about to end for that.
        let own = self.named_sinks().filter(|_| !self.far);
        let own = own.flat_map(|(name, sink)| sink.troubles().into_iter().map(move |t| (name.to_string(), t)));
        own.chain(self.files.iter().flat_map(RankFiles::troubles)).collect()
    }

    /// Sentences about output that could not be written, or that nobody has read by now.
    pub fn losses(&self) -> Vec<String> {
        let mut sentences = Vec::new();
        let own = self.named_sinks().map(|(name, sink)| (name.to_string(), sink));
        for (name, sink) in own.chain(self.files.iter().flat_map(RankFiles::sinks)).filter(|_| !self.far) {
            if let Some((bytes, errno)) = sink.lost() {
                let why = if errno == Errno::EBADF { "it is not open for writing" } else { errno.desc() };
                sentences.push(format!("{}: {why}", lost(bytes, &name)));
            }
            if sink.pending() > 0 {
                sentences.push(format!("{}: nobody has read it", lost(sink.pending() as u64, &name)));
            }
        }
        sentences
    }

    /// A line of ftrun's own about output that was lost: where it can be read, if that is anywhere.
    pub fn say_loss(&mut self, line: &str) {
        let stream = if self.sink_of(Stream::Err).lost().is_some() { Stream::Out } else { Stream::Err };
        self.sink_mut(stream).push_line(line.as_bytes());
    }

    /// Nothing will be read, held back or waited for any more.
    pub fn finish(&mut self, now: Instant) {
        let keys: Vec<Key> = self.sources.keys().copied().collect();
        for key in keys {
            self.pass_rest(key, false);
        }
        self.sources.clear();
        self.release();
        let last = self.once.as_mut().map(|once| once.finish(now)).unwrap_or_default();
        self.show_each(last);
        self.tick(now);
    }

    /// What was kept back of ranks' lines.
    fn show_each(&mut self, of_ranks: Vec<(Rank, Vec<u8>)>) {
        for (rank, bytes) in of_ranks {
            self.show((0, rank, Stream::Out), Some(rank), &bytes);
        }
    }

    fn sinks(&self) -> impl Iterator<Item = &Sink> {
        std::iter::once(&self.out).chain(&self.err)
    }

    fn all_sinks(&self) -> impl Iterator<Item = &Sink> {
        self.sinks().chain(self.files.iter().flat_map(RankFiles::sinks).map(|(_, sink)| sink))
    }

    fn named_sinks(&self) -> impl Iterator<Item = (&'static str, &Sink)> {
        ["standard output", "standard error"].into_iter().zip(self.sinks())
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

fn tag(label: Label, rank: Rank, stream: Stream) -> Vec<u8> {
    let tag = match (label, stream) {
        (Label::Rank, _) => format!("[{rank}] "),
        (_, Stream::Out) => format!("[{rank}]<stdout>: "),
        (_, Stream::Err) => format!("[{rank}]<stderr>: "),
    };
    tag.into_bytes()
}

fn lost(bytes: u64, name: &str) -> String {
    format!("{} of {name} {} lost", ftd_core::counted(bytes, "byte"), if bytes == 1 { "was" } else { "were" })
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
        world: World,
        pipes: Vec<(File, File)>,
        out: File,
        err: Option<File>,
        now: Instant,
    }

    impl Bench {
        fn new(slots: u32, label: Label, same: bool) -> Bench {
            let file = || File::from(ft_sys::memory::create_memfd("t", 0).unwrap());
            let (out, err) = (file(), (!same).then(file));
            let sink = |file: &File| -> Box<dyn AsFd + Send> { Box::new(file.try_clone().unwrap()) };
            let output = Output::to(sink(&out), err.as_ref().map(sink), label).unwrap();
            let mut bench = Bench { output, world: 0, pipes: Vec::new(), out, err, now: Instant::now() };
            bench.next_world(slots);
            bench
        }

        /// Ranks are placed the other way round.
        fn next_world(&mut self, slots: u32) {
            self.world += 1;
            let pipe = || nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
            let pipes = (0..slots).map(|slot| {
                let ((out, out_end), (err, err_end)) = (pipe(), pipe());
                self.output.adopt((self.world, slot, slots - 1 - slot), (out, err), self.now).unwrap();
                (File::from(out_end), File::from(err_end))
            });
            self.pipes = pipes.collect();
        }

        fn write(&mut self, slot: usize, text: &str) {
            self.pipes[slot].0.write_all(text.as_bytes()).unwrap();
            self.output.read((self.world, slot as u32, Stream::Out), self.now);
        }

        /// Time passes, and the sinks write what they have.
        fn tick(&mut self, milliseconds: u64) {
            self.now += Duration::from_millis(milliseconds);
            for _ in 0..2 {
                self.output.tick(self.now);
                while self.output.sinks().any(|sink| sink.pending() > 0) {
                    std::thread::yield_now();
                }
            }
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

    /// The rank of slot 0 takes this version now.
    fn note(bench: &Bench, sheet: &OwnedFd, version: u64) {
        let rank = bench.pipes.len() as u32 - 1;
        let writer = ft_sys::printed::Writer::of(sheet, rank, bench.world).unwrap();
        writer.note(bench.world, version, Some(bench.pipes[0].0.as_fd()));
    }

    #[test]
    fn what_was_printed_since_the_restored_version_is_not_shown_again() {
        for tag in [false, true] {
            let label = if tag { Label::Stream } else { Label::None };
            let mut bench = Bench::new(2, label, true);
            let sheet = ft_sys::printed::sheet(2).unwrap();
            bench.output.once = Some(Once::default());
            bench.output.look_at(Reader::of(&sheet).unwrap());
            bench.next_world(2);
            bench.write(0, "banner\nstep 1\n");
            (&bench.pipes[0].0).write_all(b"step 2\n").unwrap();
            note(&bench, &sheet, 2);
            (&bench.pipes[0].0).write_all(b"step 3\nstep 4\nst").unwrap();
            note(&bench, &sheet, 3);
            bench.write(0, "");
            bench.output.end_world(2, bench.now);
            bench.next_world(2);
            bench.write(0, "banner\nstep 3\n");
            bench.output.restores(3, Some((2, 2)));
            bench.output.announce(2, "the block".into());
            bench.write(0, "step 4\nst");
            bench.write(0, "ep 5\n");
            note(&bench, &sheet, 3);
            note(&bench, &sheet, 4);
            bench.write(0, "step 4\nend");
            bench.output.finish(bench.now);
            bench.tick(0);
            let wanted = "banner\nstep 1\nstep 2\nstep 3\nstep 4\nst\n! the block\nbanner\nstep 5\nstep 4\nend";
            let tagged = |line: &str| if tag { format!("[1]<stdout>: {line}") } else { line.to_string() };
            let wanted: Vec<String> =
                wanted.lines().map(|line| line.strip_prefix("! ").map_or_else(|| tagged(line), String::from)).collect();
            assert_eq!(bench.out(), wanted.join("\n"));
        }
    }

    #[test]
    fn what_is_kept_back_of_a_line_goes_on_with_its_tag() {
        let mut bench = Bench::new(1, Label::Stream, true);
        bench.output.once = Some(Once::default());
        bench.write(0, "a\nname? x\n");
        bench.output.end_world(1, bench.now);
        bench.next_world(1);
        bench.output.restores(2, None);
        bench.output.announce(2, "the block".into());
        bench.write(0, "a\nname? ");
        bench.now = ft_sys::job_time::now();
        bench.tick(60);
        assert!(bench.out().ends_with("the block\n"));
        assert!(bench.output.deadline().is_some());
        bench.tick(10_000);
        bench.write(0, "y\n");
        bench.tick(0);
        assert!(bench.out().ends_with("the block\n[0]<stdout>: name? y\n"), "{}", bench.out());
    }

    /// A launcher and its part: what goes over the link comes out as if there were none.
    #[test]
    fn a_part_passes_on_what_there_is_to_know() {
        let mut far = Bench::new(1, Label::None, true);
        let sheet = ft_sys::printed::sheet(1).unwrap();
        far.output.far = true;
        far.output.look_at(Reader::of(&sheet).unwrap());
        far.next_world(1);
        far.write(0, "step 1\n");
        note(&far, &sheet, 1);
        far.write(0, "step 2\n");
        far.output.end_world(2, far.now);
        far.next_world(1);
        far.output.restores(3, Some((1, 2)));
        far.write(0, "step 2\nstep 3\n");
        far.output.announced();
        far.tick(0);
        let mut near = Bench::new(0, Label::Stream, true);
        near.output.once = Some(Once::default());
        let mut bytes = vec![0; far.out.metadata().unwrap().len() as usize];
        far.out.read_exact_at(&mut bytes, 0).unwrap();
        let (mut rest, mut words) = (bytes.as_slice(), 0);
        while let Some((length, more)) = rest.split_first_chunk::<4>() {
            let (body, after) = more[ft_wire::FRAME_HEADER - 4..].split_at(u32::from_le_bytes(*length) as usize);
            match ft_wire::decode(body).unwrap() {
                FromPart::Output { world, slot, rank, err, bytes } => {
                    near.output.pass_on((world, slot, rank), err, bytes)
                }
                FromPart::Mark { world, slot, rank, version, epoch, placed } => {
                    near.output.mark((world, slot, rank), (version, epoch), placed);
                }
                FromPart::Restores { world, restored } => near.output.restores(world, restored),
                word => panic!("{word:?}"),
            }
            (rest, words) = (after, words + 1);
        }
        near.tick(0);
        assert_eq!(
            (near.out().as_str(), words),
            ("[0]<stdout>: step 1\n[0]<stdout>: step 2\n[0]<stdout>: step 3\n", 5)
        );
    }

    #[test]
    fn lines_of_two_slots_do_not_mix() {
        let mut bench = Bench::new(2, Label::None, false);
        bench.write(0, "one ");
        bench.write(1, "two\nthr");
        bench.write(0, "more\n");
        bench.write(1, "ee\n");
        bench.tick(0);
        assert_eq!(bench.out(), "two\none more\nthree\n");
    }

    #[test]
    fn an_unfinished_line_goes_out_after_a_while() {
        let mut bench = Bench::new(1, Label::None, false);
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
    fn a_line_is_not_cut_because_nobody_has_read_its_rest() {
        let mut bench = Bench::new(2, Label::None, false);
        bench.write(0, "one ");
        bench.pipes[0].0.write_all(b"mo").unwrap();
        bench.tick(60);
        assert_eq!((bench.out().as_str(), bench.output.deadline()), ("", None));
        bench.write(0, "");
        bench.write(1, "two\n");
        bench.tick(10);
        assert_eq!(bench.out(), "two\n", "its time began anew");
        assert!(bench.output.deadline().is_some());
        bench.write(0, "re\n");
        bench.tick(0);
        assert_eq!(bench.out(), "two\none more\n");
    }

    #[test]
    fn every_line_bears_its_rank() {
        let mut bench = Bench::new(2, Label::Stream, false);
        bench.write(1, "a\nb\nc");
        bench.tick(60);
        bench.write(0, "d\n");
        bench.write(1, "e\n");
        bench.tick(0);
        assert_eq!(
            bench.out(),
            "[0]<stdout>: a\n[0]<stdout>: b\n[0]<stdout>: c\n[1]<stdout>: d\n[0]<stdout>: e\n",
            "a line that another one interrupts goes on with a tag"
        );
        bench.write(1, "f");
        bench.tick(60);
        bench.write(1, "g\n");
        bench.tick(0);
        assert!(bench.out().ends_with("[0]<stdout>: fg\n"), "{}", bench.out());
        (&bench.pipes[1].1).write_all(b"h\n").unwrap();
        bench.output.read((1, 1, Stream::Err), bench.now);
        bench.tick(0);
        assert_eq!(Bench::text(bench.err.as_ref().unwrap()), "[0]<stderr>: h\n");
    }

    #[test]
    fn a_line_that_was_ended_for_another_one_is_not_ended_again() {
        for (label, own) in [(Label::None, ""), (Label::Rank, "[0] ")] {
            let mut bench = Bench::new(2, label, true);
            let out = |bench: &mut Bench, text: &str| {
                bench.write(1, text);
                bench.tick(60);
            };
            out(&mut bench, "fragment");
            bench.output.say("ftd: a sentence");
            out(&mut bench, "\n");
            out(&mut bench, "begun");
            bench.output.say("ftd: another");
            out(&mut bench, " and gone on\n\nold");
            bench.output.say("ftd: the last");
            bench.output.end_world(1, bench.now);
            bench.next_world(2);
            bench.output.announce(2, "the block".into());
            out(&mut bench, "\nnew\n");
            let wanted = format!(
                "{own}fragment\nftd: a sentence\n{own}begun\nftd: another\n{own} and gone on\n{own}\n{own}old\nftd: the last\n\
                 the block\n{own}\n{own}new\n"
            );
            assert_eq!(bench.out(), wanted);
        }
        // Of two ranks.
        let mut bench = Bench::new(2, Label::Rank, true);
        bench.write(1, "fragment");
        bench.tick(60);
        bench.write(0, "a line\nanother");
        bench.tick(60);
        bench.write(1, "\n");
        bench.write(0, "\n");
        bench.tick(0);
        assert_eq!(bench.out(), "[0] fragment\n[1] a line\n[1] another\n");
    }

    #[test]
    fn a_new_world_writes_below_the_block() {
        for same in [false, true] {
            let mut bench = Bench::new(2, Label::None, same);
            bench.write(0, "old 1\nold");
            (&bench.pipes[1].0).write_all(b"old, not read yet\n").unwrap();
            bench.output.end_world(1, bench.now);
            bench.next_world(2);
            bench.write(0, "new\n");
            bench.tick(100);
            let old = "old 1\nold, not read yet\nold\n";
            let sorted = |text: &str| {
                let mut lines: Vec<String> = text.lines().map(String::from).collect();
                lines.sort();
                lines
            };
            assert_eq!(sorted(&bench.out()), sorted(old), "the new world's lines wait");
            bench.output.announce(2, "the block\n  second line".into());
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
    fn a_world_whose_end_is_read_late_does_not_cut_the_next_ones_lines() {
        let mut bench = Bench::new(1, Label::None, true);
        bench.write(0, "old 1\nold");
        (&bench.pipes[0].0).write_all(b" 2\nend").unwrap();
        bench.next_world(1);
        bench.write(0, "new ");
        bench.tick(100);
        bench.output.end_world(1, bench.now);
        bench.output.announce(2, "the block".into());
        bench.write(0, "line\n");
        bench.tick(0);
        assert_eq!(bench.out(), "old 1\nold 2\nend\nnew \nthe block\nline\n");
    }

    #[test]
    fn a_line_that_was_begun_before_the_end_of_the_pipe_is_ended_with_the_world() {
        let mut bench = Bench::new(1, Label::None, true);
        bench.write(0, "old");
        bench.pipes.clear();
        bench.output.read((1, 0, Stream::Out), bench.now);
        bench.output.end_world(1, bench.now);
        bench.next_world(1);
        bench.write(0, "new");
        bench.output.announce(2, "the block".into());
        bench.tick(0);
        bench.pipes.clear();
        bench.output.read((2, 0, Stream::Out), bench.now);
        bench.output.finish(bench.now);
        bench.tick(0);
        assert_eq!(bench.out(), "old\nthe block\nnew");
    }

    #[test]
    fn output_is_not_held_back_for_ever() {
        let mut bench = Bench::new(1, Label::None, false);
        bench.output.end_world(1, bench.now);
        bench.next_world(1);
        bench.write(0, "new\n");
        bench.tick(2900);
        assert_eq!(bench.out(), "");
        bench.tick(200);
        assert_eq!(bench.out(), "new\n");
        bench.output.announce(2, "late".into());
        bench.tick(0);
        assert_eq!(Bench::text(bench.err.as_ref().unwrap()), "late\n");
    }

    #[test]
    fn memory_is_bounded_when_nobody_reads() {
        let (_read, write) = io::pipe().unwrap();
        let mut output = Output::to(Box::new(write), None, Label::None).unwrap();
        let now = Instant::now();
        let pipe = || nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
        let (read, out) = pipe();
        output.adopt((1, 0, 0), (read, pipe().0), now).unwrap();
        let mut out = File::from(out);
        let line = "x".repeat(4095) + "\n";
        for _ in 0..1000 {
            if output.readable().next().is_none() {
                break;
            }
            out.write_all(line.as_bytes()).unwrap();
            output.read((1, 0, Stream::Out), now);
            output.tick(now);
        }
        assert!(output.readable().next().is_none(), "the pipe is still read");
        assert!(output.out.pending() < 2 * PENDING);
        output.end_world(0, now);
        let mut written = 0;
        while output.readable().next().is_some() {
            out.write_all(line.as_bytes()).unwrap();
            written += line.len();
            output.read((1, 0, Stream::Out), now);
        }
        assert!((HELD..HELD + 2 * CHUNK).contains(&written), "{written} bytes were held back");
    }
}
