//! The job's standard input. Rank 0 of every world reads it from its first byte: a regular file is opened again, anything
//! else is kept in a spool.

use ft_wire::World;
use ftd_core::counted;
use nix::sys::stat::{SFlag, fstat};
use nix::unistd::{Whence, lseek};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Where the data begins in the spool. Before it: its length (u64 at 0), whether it has ended (u32 at 8), and, written by the
/// shepherds, how much of it any rank has taken so far (u64 at 16).
const HEADER: u64 = 4096;
/// See [`HEADER`].
const TAKEN_AT: u64 = 16;
/// Bytes that are read ahead of the ranks: what nobody reads must not fill the memory.
const AHEAD: u64 = 16 << 20;
/// Bytes read at once.
const CHUNK: usize = 64 << 10;
/// The same for who sends from another node: two daemons may have to hold it …
const AHEAD_FROM_FAR: u64 = 1 << 20;
/// … and who sends it is told of room in steps of so many bytes.
const STEP: u64 = 256 << 10;
/// `/dev/null`.
const NULL_DEVICE: u64 = 0x103;

/// What the job reads.
#[derive(Debug)]
pub enum Input {
    /// Nothing.
    Null,
    /// A regular file from an offset on.
    File(OwnedFd, u64),
    /// A spool that this process fills.
    Spool(Spool),
}

/// Bytes that came in and will be read again by every world.
#[derive(Debug)]
pub struct Spool {
    memory: File,
    length: u64,
    ended: bool,
    terminal: Terminal,
    /// It comes from another node.
    fed: Option<Fed>,
    /// What is to be said of it.
    trouble: Option<String>,
}

/// What is known of who sends it from another node.
#[derive(Debug, Default)]
struct Fed {
    /// So many bytes in all it may send.
    told: u64,
    /// The world in which rank 0 is here.
    here: Option<World>,
    /// That is to be said, whether there is more room or not: it may have been elsewhere meanwhile.
    news: bool,
}

/// Standard input, if it is a terminal.
#[derive(Debug, Default)]
struct Terminal {
    is_one: bool,
    /// It belongs to another process group just now.
    background: bool,
}

impl Terminal {
    fn open() -> Terminal {
        let mut terminal = Terminal { is_one: io::stdin().is_terminal(), background: false };
        terminal.look();
        terminal
    }

    fn look(&mut self) {
        self.background = self.is_one
            && nix::unistd::tcgetpgrp(io::stdin()).is_ok_and(|foreground| foreground != nix::unistd::getpgrp());
    }
}

impl Input {
    /// Looks at standard input.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn open() -> io::Result<Input> {
        let stdin = io::stdin();
        let Ok(status) = fstat(&stdin) else { return Ok(Input::Null) };
        let kind = SFlag::from_bits_truncate(status.st_mode & SFlag::S_IFMT.bits());
        if kind == SFlag::S_IFREG {
            let offset = lseek(&stdin, 0, Whence::SeekCur)?;
            return Ok(Input::File(stdin.as_fd().try_clone_to_owned()?, offset as u64));
        }
        if kind == SFlag::S_IFCHR && status.st_rdev == NULL_DEVICE || kind == SFlag::S_IFDIR {
            return Ok(Input::Null);
        }
        Ok(Input::Spool(Spool::new(Terminal::open(), None)?))
    }

    /// What another node will send.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn fed() -> io::Result<Input> {
        Ok(Input::Spool(Spool::new(Terminal::default(), Some(Fed::default()))?))
    }

    /// A world begins: its number, where its rank 0 is here.
    pub fn is_read_here(&mut self, here: Option<World>) {
        if let Input::Spool(Spool { fed: Some(fed), .. }) = self {
            (fed.here, fed.news) = (here, here.is_some());
        }
    }

    /// What came from another node.
    pub fn feed(&mut self, bytes: Option<&[u8]>) {
        match (self, bytes) {
            (Input::Spool(spool), Some(bytes)) => drop(spool.keep(bytes)),
            (Input::Spool(spool), None) => drop(spool.end()),
            _ => {}
        }
    }

    /// In which world so many bytes may come from another node in all, if that is news.
    pub fn room(&mut self) -> Option<(World, u64)> {
        let Input::Spool(spool) = self else { return None };
        let room = spool.taken() + AHEAD_FROM_FAR;
        let fed = spool.fed.as_mut().filter(|_| !spool.ended)?;
        let world = fed.here?;
        let news = std::mem::take(&mut fed.news);
        if room >= fed.told + STEP {
            fed.told = room;
        } else if !news {
            return None;
        }
        Some((world, fed.told))
    }

    /// The descriptor that shepherds need, and their options for it.
    pub fn for_shepherd(&self) -> Option<(BorrowedFd<'_>, &'static str, Option<u64>)> {
        match self {
            Input::Null => None,
            Input::File(fd, offset) => Some((fd.as_fd(), "--stdin-file", Some(*offset))),
            Input::Spool(spool) => Some((spool.memory.as_fd(), "--stdin-spool", None)),
        }
    }

    /// What is to be said of it, once.
    pub fn trouble(&mut self) -> Option<String> {
        if let Input::Spool(spool) = self { spool.trouble.take() } else { None }
    }

    /// Whether standard input is to be polled.
    pub fn wants_to_read(&self) -> bool {
        let wants =
            |spool: &Spool| !spool.ended && spool.fed.is_none() && !spool.terminal.background && spool.has_room();
        matches!(self, Input::Spool(spool) if wants(spool))
    }

    /// Whether it is to be asked again soon, because ranks take what is in the spool without a word.
    pub fn waits_for_room(&self) -> bool {
        // Who sends waits for a word when all that was allowed is here.
        let full = |spool: &Spool| match &spool.fed {
            None => !spool.has_room(),
            Some(fed) => fed.here.is_some() && spool.length + STEP > fed.told,
        };
        matches!(self, Input::Spool(spool) if !spool.ended && full(spool))
    }

    /// Whether the terminal is another process group's: a shell does not tell when it comes back.
    pub fn waits_for_terminal(&self) -> bool {
        matches!(self, Input::Spool(spool) if !spool.ended && spool.terminal.background)
    }

    /// The job may have moved between foreground and background.
    pub fn look_at_terminal(&mut self) {
        if let Input::Spool(spool) = self {
            spool.terminal.look();
        }
    }

    /// Reads what is there; call when it is readable. Returns whether the shepherds are to be told.
    pub fn read(&mut self) -> bool {
        match self {
            Input::Spool(spool) => spool.read(&mut io::stdin()),
            _ => false,
        }
    }
}

impl Spool {
    fn new(terminal: Terminal, fed: Option<Fed>) -> io::Result<Spool> {
        let memory = File::from(ft_sys::memory::create_memfd("ft-stdin", HEADER)?);
        Ok(Spool { memory, length: 0, ended: false, terminal, fed, trouble: None })
    }

    /// How much of it any rank has taken.
    fn taken(&self) -> u64 {
        let mut taken = [0; 8];
        // What cannot be read was not taken.
        let _ = self.memory.read_exact_at(&mut taken, TAKEN_AT);
        u64::from_le_bytes(taken)
    }

    fn has_room(&self) -> bool {
        self.length < self.taken() + AHEAD
    }

    fn read(&mut self, from: &mut impl Read) -> bool {
        let mut bytes = [0; CHUNK];
        // A terminal that was taken away between poll and read answers with EIO, for SIGTTIN is ignored.
        self.terminal.look();
        if self.terminal.background {
            return false;
        }
        match from.read(&mut bytes) {
            Ok(0) => self.end(),
            Ok(count) => self.keep(&bytes[..count]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => false,
            Err(_) => self.end(),
        }
    }

    /// Returns whether the shepherds are to be told.
    fn keep(&mut self, bytes: &[u8]) -> bool {
        // What comes behind something that was lost is of no use.
        if self.ended {
            return false;
        }
        match self.append(bytes) {
            Ok(()) => true,
            Err(error) => {
                self.trouble =
                    Some(format!("standard input beyond {} cannot be kept: {error}", counted(self.length, "byte")));
                self.end()
            }
        }
    }

    /// Data first, then the length that makes it count.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.memory.write_all_at(bytes, HEADER + self.length)?;
        self.length += bytes.len() as u64;
        self.memory.write_all_at(&self.length.to_le_bytes(), 0)
    }

    fn end(&mut self) -> bool {
        self.ended = true;
        // The page is there already: this cannot fail for want of memory.
        let _ = self.memory.write_all_at(&1u32.to_le_bytes(), 8);
        true
    }
}

/// Standard input without what the standard library reads ahead, which no `poll` tells of.
struct Unbuffered;

impl Read for Unbuffered {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(nix::unistd::read(io::stdin().as_fd(), into)?)
    }
}

/// Standard input, read for rank 0 on whatever node that is. Who survives failures begins it anew in each world, perhaps elsewhere: what was read is
/// kept here.
#[derive(Debug)]
pub struct Relay {
    kept: Kept,
    /// So much was read.
    read: u64,
    ended: bool,
    terminal: Terminal,
    /// By the nodes' numbers; one that rank 0 has left may have it again.
    readers: BTreeMap<u32, Reader>,
    /// Where rank 0 is, in the newest world of which that is known.
    reader: Option<u32>,
    world: World,
    /// What is to be said of it.
    trouble: Option<String>,
}

/// Where what was read can be read again.
#[derive(Debug)]
enum Kept {
    /// Nobody will.
    Nowhere,
    /// It is a file, from an offset on.
    File(File, u64),
    /// In memory.
    Memory(File),
}

/// A node that has rank 0, or had it.
#[derive(Debug, Default)]
struct Reader {
    sent: u64,
    /// So many bytes may be sent there in all.
    room: u64,
    /// It knows the end.
    ended: bool,
}

/// For which node, and what: without bytes it is the end.
pub type Piece = (u32, Option<Vec<u8>>);

impl Relay {
    /// Looks at standard input. `again`: it may be read more than once.
    ///
    /// # Errors
    /// When no descriptor or memory is left.
    pub fn open(again: bool) -> io::Result<Relay> {
        let memory = || ft_sys::memory::create_memfd("ft-stdin", 0).map(|memory| Kept::Memory(File::from(memory)));
        let kept = match Input::open()? {
            Input::File(fd, offset) => Kept::File(File::from(fd), offset),
            Input::Spool(_) if again => memory()?,
            Input::Null | Input::Spool(_) => Kept::Nowhere,
        };
        Ok(Relay::of(kept, Terminal::open()))
    }

    fn of(kept: Kept, terminal: Terminal) -> Relay {
        let (readers, reader) = (BTreeMap::new(), None);
        Relay { kept, read: 0, ended: false, terminal, readers, reader, world: 0, trouble: None }
    }

    /// Rank 0 of that world is on that node, and so much may be sent there in all. Words of two nodes come in any order.
    pub fn room(&mut self, node: u32, world: World, room: u64) {
        if world < self.world {
            return;
        }
        (self.reader, self.world) = (Some(node), world);
        let reader = self.readers.entry(node).or_default();
        reader.room = reader.room.max(room);
    }

    fn reader(&mut self) -> Option<(u32, &mut Reader)> {
        let node = self.reader?;
        Some((node, self.readers.get_mut(&node)?))
    }

    /// Whether standard input is to be polled.
    pub fn wants_to_read(&self) -> bool {
        let reader = self.reader.and_then(|node| self.readers.get(&node));
        let asks = reader.is_some_and(|reader| reader.sent == self.read && reader.sent < reader.room);
        asks && !self.ended && !self.terminal.background
    }

    /// Whether the terminal is another process group's: a shell does not tell when it comes back.
    pub fn waits_for_terminal(&self) -> bool {
        !self.ended && self.terminal.background
    }

    /// The job may have moved between foreground and background.
    pub fn look_at_terminal(&mut self) {
        self.terminal.look();
    }

    /// What is to be said of it, once.
    pub fn trouble(&mut self) -> Option<String> {
        self.trouble.take()
    }

    /// What was read before rank 0 was where it is, as far as there is room for it.
    pub fn next_kept(&mut self) -> Option<Piece> {
        let (read, over) = (self.read, self.ended);
        let (node, reader) = self.reader()?;
        let count = read.saturating_sub(reader.sent).min(reader.room.saturating_sub(reader.sent)).min(CHUNK as u64);
        if count == 0 {
            let ends = over && reader.sent >= read && !std::mem::replace(&mut reader.ended, true);
            return ends.then_some((node, None));
        }
        let (from, mut bytes) = (reader.sent, vec![0; count as usize]);
        let found = match &self.kept {
            Kept::Nowhere => Err(io::Error::from(io::ErrorKind::NotFound)),
            Kept::File(file, offset) => file.read_exact_at(&mut bytes, offset + from),
            Kept::Memory(memory) => memory.read_exact_at(&mut bytes, from),
        };
        if let Err(error) = found {
            // A file that was cut: what comes behind is of no use.
            self.trouble =
                Some(format!("standard input beyond {} cannot be read again: {error}", counted(from, "byte")));
            (self.read, self.ended) = (from, true);
            return self.next_kept();
        }
        if let Some((_, reader)) = self.reader() {
            reader.sent += count;
        }
        Some((node, Some(bytes)))
    }

    /// Reads what is there; call when it is readable.
    pub fn read(&mut self) -> Option<Piece> {
        self.take(&mut Unbuffered)
    }

    fn take(&mut self, from: &mut impl Read) -> Option<Piece> {
        // A terminal that was taken away between poll and read answers with EIO, for SIGTTIN is ignored.
        self.terminal.look();
        if self.terminal.background || !self.wants_to_read() {
            return None;
        }
        let position = self.read;
        let (_, reader) = self.reader()?;
        let mut bytes = vec![0; usize::try_from(reader.room - reader.sent).unwrap_or(CHUNK).min(CHUNK)];
        let read = match &self.kept {
            Kept::File(file, offset) => file.read_at(&mut bytes, offset + position),
            _ => from.read(&mut bytes),
        };
        match read {
            Ok(count) if count > 0 => {
                bytes.truncate(count);
                self.take_in(bytes)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => None,
            Ok(_) | Err(_) => {
                self.ended = true;
                self.next_kept()
            }
        }
    }

    /// What cannot be kept is not given out: it could not be given out again.
    fn take_in(&mut self, bytes: Vec<u8>) -> Option<Piece> {
        if let Kept::Memory(memory) = &self.kept
            && let Err(error) = memory.write_all_at(&bytes, self.read)
        {
            self.trouble =
                Some(format!("standard input beyond {} cannot be kept: {error}", counted(self.read, "byte")));
            self.ended = true;
            return self.next_kept();
        }
        self.read += bytes.len() as u64;
        let read = self.read;
        let (node, reader) = self.reader()?;
        reader.sent = read;
        Some((node, Some(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spool_keeps_everything_and_its_end() {
        let mut spool = Spool::new(Terminal::default(), None).unwrap();
        let data: Vec<u8> = (0..200_000u32).map(|n| n as u8).collect();
        let mut from = data.as_slice();
        while !spool.ended {
            assert!(spool.read(&mut from));
        }
        let mut header = [0; 12];
        spool.memory.read_exact_at(&mut header, 0).unwrap();
        assert_eq!(header[..8], 200_000u64.to_le_bytes());
        assert_eq!(header[8..], 1u32.to_le_bytes());
        let mut kept = vec![0; data.len()];
        spool.memory.read_exact_at(&mut kept, HEADER).unwrap();
        assert_eq!(kept, data);
    }

    #[test]
    fn it_does_not_run_far_ahead_of_the_ranks() {
        let mut input = Input::Spool(Spool::new(Terminal::default(), None).unwrap());
        let Input::Spool(spool) = &mut input else { panic!() };
        while spool.has_room() {
            assert!(spool.read(&mut io::repeat(b'x')));
        }
        assert!((AHEAD..AHEAD + 2 * CHUNK as u64).contains(&spool.length));
        spool.memory.write_all_at(&spool.length.to_le_bytes(), TAKEN_AT).unwrap();
        assert!(input.wants_to_read() && !input.waits_for_room());
    }

    #[test]
    fn who_sends_from_another_node_is_told_of_room_as_ranks_take() {
        let mut input = Input::fed().unwrap();
        assert!(input.room().is_none() && !input.waits_for_room(), "rank 0 is elsewhere");
        input.is_read_here(Some(1));
        assert_eq!((input.room(), input.room()), (Some((1, AHEAD_FROM_FAR)), None));
        input.is_read_here(Some(2));
        assert_eq!((input.room(), input.room()), (Some((2, AHEAD_FROM_FAR)), None), "it is here again");
        assert!(!input.wants_to_read() && !input.waits_for_room());
        for _ in 0..AHEAD_FROM_FAR / STEP {
            input.feed(Some(&vec![b'x'; STEP as usize]));
        }
        assert!(input.room().is_none() && input.waits_for_room());
        let Input::Spool(spool) = &input else { panic!() };
        spool.memory.write_all_at(&(3 * STEP).to_le_bytes(), TAKEN_AT).unwrap();
        assert_eq!(input.room(), Some((2, AHEAD_FROM_FAR + 3 * STEP)));
        assert!(!input.waits_for_room());
        input.feed(None);
        assert!(input.room().is_none() && !input.waits_for_room());
    }

    #[test]
    fn what_cannot_be_kept_is_said_once_and_ends_it() {
        let mut input = Input::fed().unwrap();
        let Input::Spool(spool) = &mut input else { panic!() };
        // Nobody can write to it.
        spool.memory = File::open("/dev/null").unwrap();
        input.feed(Some(b"x"));
        input.feed(Some(b"y"));
        assert!(input.trouble().is_some_and(|said| said.starts_with("standard input beyond 0 bytes cannot be kept: ")));
        assert!(input.trouble().is_none() && !input.waits_for_room());
    }

    #[test]
    fn a_relay_sends_what_there_is_room_for() {
        let mut relay = Relay::of(Kept::Nowhere, Terminal::default());
        assert!(!relay.wants_to_read());
        relay.room(3, 1, 10);
        assert_eq!(relay.take(&mut b"0123456789abc".as_slice()), Some((3, Some(b"0123456789".to_vec()))));
        assert!(!relay.wants_to_read());
        relay.room(3, 1, 20);
        assert_eq!(relay.take(&mut b"abc".as_slice()), Some((3, Some(b"abc".to_vec()))));
        assert_eq!(relay.take(&mut io::empty()), Some((3, None)));
        assert!(!relay.wants_to_read() && relay.next_kept().is_none());
    }

    /// All that the relay gives out of what it has kept.
    fn replayed(relay: &mut Relay, node: u32) -> (Vec<u8>, bool) {
        let mut all = Vec::new();
        while let Some((to, piece)) = relay.next_kept() {
            assert_eq!(to, node);
            match piece {
                Some(bytes) => all.extend(bytes),
                None => return (all, true),
            }
        }
        (all, false)
    }

    #[test]
    fn where_rank_0_has_gone_all_is_sent_again() {
        let memory = File::from(ft_sys::memory::create_memfd("test", 0).unwrap());
        let mut relay = Relay::of(Kept::Memory(memory), Terminal::default());
        relay.room(0, 1, 8);
        assert_eq!(relay.take(&mut b"abcdefgh".as_slice()), Some((0, Some(b"abcdefgh".to_vec()))));
        relay.room(2, 2, 3);
        assert!(!relay.wants_to_read(), "what was read comes first");
        assert_eq!(replayed(&mut relay, 2), (b"abc".to_vec(), false));
        relay.room(2, 2, 20);
        // It was under way from where rank 0 was.
        relay.room(0, 1, 16);
        assert_eq!(replayed(&mut relay, 2), (b"defgh".to_vec(), false));
        assert_eq!(relay.take(&mut b"ij".as_slice()), Some((2, Some(b"ij".to_vec()))));
        assert_eq!(relay.take(&mut io::empty()), Some((2, None)));
        // Where it was before there is what was sent there.
        relay.room(0, 3, 20);
        assert_eq!(replayed(&mut relay, 0), (b"ij".to_vec(), true));
        assert_eq!(replayed(&mut relay, 0), (Vec::new(), false), "the end is told once");
    }

    #[test]
    fn a_file_is_read_again_from_where_it_was_begun() {
        let memory = File::from(ft_sys::memory::create_memfd("test", 0).unwrap());
        memory.write_all_at(b"--abc", 0).unwrap();
        let mut relay = Relay::of(Kept::File(memory, 2), Terminal::default());
        for node in [1, 4] {
            relay.room(node, 1, 100);
            let replayed = replayed(&mut relay, node);
            match node {
                1 => assert_eq!(relay.take(&mut io::empty()), Some((1, Some(b"abc".to_vec())))),
                _ => assert_eq!(replayed, (b"abc".to_vec(), false)),
            }
        }
        assert_eq!(relay.take(&mut io::empty()), Some((4, None)));
    }

    #[test]
    fn what_a_relay_cannot_keep_ends_it() {
        let mut relay = Relay::of(Kept::Memory(File::open("/dev/null").unwrap()), Terminal::default());
        relay.room(0, 1, 8);
        assert_eq!(relay.take(&mut b"abc".as_slice()), Some((0, None)));
        assert!(relay.trouble().is_some_and(|said| said.starts_with("standard input beyond 0 bytes cannot be kept: ")));
        assert!(relay.trouble().is_none() && !relay.wants_to_read());
    }
}
