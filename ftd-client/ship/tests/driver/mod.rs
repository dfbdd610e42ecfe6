//! Plays the agents of some nodes: starts an `ft-ship` for each, with memory files, and looks at what becomes of these.

#![allow(clippy::unwrap_used, dead_code)]

use ft_sys::channel::{Channel, ChannelError};
use ft_wire::ship::{Arena, Direction, Move, Target, ToAgent, ToShip, Window};
use ft_wire::{Preamble, Role};
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// No test waits longer.
pub const LIMIT: Duration = Duration::from_secs(60);
/// Longer than any test lasts, milliseconds.
pub const LONG: u64 = 600_000;
/// Of moves that fail. A busy machine moves something in it.
pub const PATIENCE: u64 = 3000;
pub const TCP: &str = "tcp;ofi_rxm";
pub const SHM: &str = "shm";
pub const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub const MB: u64 = 1_000_000;

/// Runs a test over each provider.
#[macro_export]
macro_rules! on_each {
    ($($test:ident),+) => { $(
        mod $test {
            #[test]
            fn tcp() {
                super::$test($crate::driver::TCP);
            }

            #[test]
            fn shm() {
                super::$test($crate::driver::SHM);
            }
        }
    )+ };
}

/// A memory file.
pub struct Memory {
    pub file: File,
}

impl Memory {
    /// Of zeros.
    pub fn new(bytes: u64) -> Memory {
        Memory { file: File::from(ft_sys::memory::create_memfd("test", bytes).unwrap()) }
    }

    /// Of bytes that differ from place to place.
    pub fn filled(bytes: u64, seed: u64) -> Memory {
        let memory = Memory::new(bytes);
        let step = 1 << 24;
        for from in (0..bytes).step_by(step) {
            let length = (bytes - from).min(step as u64) as usize;
            memory.file.write_all_at(&pattern(seed, from, length), from).unwrap();
        }
        memory
    }

    pub fn read(&self, offset: u64, bytes: u64) -> Vec<u8> {
        let mut buffer = vec![0; bytes as usize];
        self.file.read_exact_at(&mut buffer, offset).unwrap();
        buffer
    }

    /// Whether a part of it is the same as that of another one.
    pub fn same(&self, offset: u64, other: &Memory, there: u64, bytes: u64) -> bool {
        let step = 1 << 24;
        (0..bytes).step_by(step).all(|from| {
            let length = (bytes - from).min(step as u64);
            self.read(offset + from, length) == other.read(there + from, length)
        })
    }

    pub fn copy(&self) -> Memory {
        let bytes = self.file.metadata().unwrap().len();
        let copy = Memory::new(bytes);
        copy.file.write_all_at(&self.read(0, bytes), 0).unwrap();
        copy
    }

    pub fn is_zero(&self, offset: u64, bytes: u64) -> bool {
        self.same(offset, &Memory::new(bytes), 0, bytes)
    }
}

/// Eight bytes at a time, each a scrambled number of its place.
pub fn pattern(seed: u64, from: u64, bytes: usize) -> Vec<u8> {
    let word = |at: u64| {
        let x = (at + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (x ^ (x >> 29)).to_le_bytes()
    };
    let first = from / 8;
    let mut all = Vec::with_capacity(bytes + 16);
    (first..first + bytes as u64 / 8 + 2).for_each(|at| all.extend_from_slice(&word(at)));
    all.drain(..(from % 8) as usize);
    all.truncate(bytes);
    all
}

/// `ft-ship` of a node, and the link to it.
pub struct Ship {
    pub process: Child,
    pub channel: Channel,
    pub address: Vec<u8>,
    pub provider: String,
    heard: Vec<ToAgent>,
    last: u64,
}

/// A move as a test wants it.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub direction: Direction,
    pub arena: Arena,
    pub offset: u64,
    pub bytes: u64,
    pub node: u32,
    pub target: Target,
    pub patience_ms: u64,
}

impl Wanted {
    pub fn put(arena: Arena, bytes: u64, node: u32, target: Target) -> Wanted {
        Wanted { direction: Direction::Put, arena, offset: 0, bytes, node, target, patience_ms: LONG }
    }

    pub fn get(arena: Arena, bytes: u64, node: u32, target: Target) -> Wanted {
        Wanted { direction: Direction::Get, ..Wanted::put(arena, bytes, node, target) }
    }

    pub fn at(self, offset: u64) -> Wanted {
        Wanted { offset, ..self }
    }

    pub fn patience(self, patience_ms: u64) -> Wanted {
        Wanted { patience_ms, ..self }
    }
}

/// The one under test.
pub fn program() -> &'static str {
    option_env!("CARGO_BIN_EXE_ft-ship").unwrap_or("ft-ship")
}

/// Waits until this is so.
pub fn wait_for(mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "it does not come to that");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for the end of a process that must end.
pub fn wait_end(process: &mut Child) -> ExitStatus {
    wait_for(|| process.try_wait().unwrap().is_some());
    process.wait().unwrap()
}

impl Ship {
    /// Not greeted yet.
    pub fn spawn(program: &str, env: &[(&str, &str)], stderr: Stdio) -> (Child, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut command = Command::new(program);
        command.envs(env.iter().copied());
        command.env("FT_SHIP_FD", "0").stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).stderr(stderr);
        (command.spawn().unwrap(), ours)
    }

    /// Greeted, and nothing else.
    pub fn greeted(program: &str, env: &[(&str, &str)]) -> Ship {
        let (process, stream) = Ship::spawn(program, env, Stdio::inherit());
        let mut channel = Channel::from_stream(stream);
        let preamble = channel.exchange(Role::Agent, LIMIT).unwrap();
        assert_eq!(preamble, Preamble::ours(Role::Ship));
        Ship { process, channel, address: Vec::new(), provider: String::new(), heard: Vec::new(), last: 0 }
    }

    pub fn start(provider: &str) -> Ship {
        Ship::start_with(provider, &[])
    }

    /// With these variables.
    pub fn start_with(provider: &str, env: &[(&str, &str)]) -> Ship {
        Ship::greeted(program(), env).open(provider)
    }

    /// Of this program's file.
    pub fn start_of(program: &str, provider: &str) -> Ship {
        Ship::greeted(program, &[]).open(provider)
    }

    fn open(mut self, provider: &str) -> Ship {
        self.send(ToShip::Open { provider: Some(provider.to_string()), address: HERE, among: None });
        match self.next() {
            ToAgent::Ready { provider: found, address, .. } => {
                assert_eq!(found, provider);
                (self.provider, self.address) = (found, address);
            }
            other => panic!("{other:?}"),
        }
        self
    }

    pub fn send(&mut self, message: ToShip) {
        self.channel.send(&message, &[]).unwrap();
    }

    /// The next word that was not waited for yet.
    pub fn next(&mut self) -> ToAgent {
        self.until(|_| true)
    }

    /// The next word like this; what is not stays for later.
    pub fn until(&mut self, is_it: impl Fn(&ToAgent) -> bool) -> ToAgent {
        self.hears(is_it, Instant::now() + LIMIT).expect("nothing like it comes in time")
    }

    /// The next word like this, if it comes by then.
    fn hears(&mut self, is_it: impl Fn(&ToAgent) -> bool, end: Instant) -> Option<ToAgent> {
        loop {
            if let Some(at) = self.heard.iter().position(&is_it) {
                return Some(self.heard.remove(at));
            }
            let left = end.saturating_duration_since(Instant::now());
            match self.channel.receive(Some(left)) {
                Ok((message, _)) => self.heard.push(message),
                Err(ChannelError::TimedOut(_)) => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Everything before this word has been done.
    pub fn settle(&mut self) {
        self.send(ToShip::Ask);
        self.until(|word| *word == ToAgent::Here);
    }

    pub fn map(&mut self, arena: Arena, memory: &Memory, bytes: u64) {
        let fd: BorrowedFd<'_> = memory.file.as_fd();
        self.channel.send(&ToShip::Map { arena, bytes }, &[fd]).unwrap();
    }

    pub fn expose(&mut self, arena: Arena, offset: u64, bytes: u64, writable: bool) -> (Window, Target) {
        self.try_expose(arena, offset, bytes, writable).unwrap()
    }

    pub fn try_expose(
        &mut self,
        arena: Arena,
        offset: u64,
        bytes: u64,
        writable: bool,
    ) -> Result<(Window, Target), String> {
        let window = self.number();
        self.send(ToShip::Expose { window, arena, offset, bytes, writable });
        match self.until(|word| matches!(word, ToAgent::Exposed { .. } | ToAgent::NotExposed { .. })) {
            ToAgent::Exposed { window: named, target } => {
                assert_eq!((named, target.bytes), (window, bytes));
                Ok((window, target))
            }
            ToAgent::NotExposed { reason, .. } => Err(reason),
            other => panic!("{other:?}"),
        }
    }

    pub fn hide(&mut self, window: Window) {
        self.send(ToShip::Hide { window });
        self.until(|word| *word == ToAgent::Hidden { window });
    }

    /// As `hide`, where all of it has been written.
    pub fn finish(&mut self, window: Window) {
        self.send(ToShip::Finish { window });
        self.until(|word| *word == ToAgent::Hidden { window });
    }

    pub fn peer(&mut self, node: u32, other: &Ship) {
        let address = other.address.clone();
        self.send(ToShip::Peer { node, address });
    }

    /// Numbers of moves and windows are never used again.
    pub fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub fn begin(&mut self, wanted: Wanted) -> Move {
        let id = self.number();
        let Wanted { direction, arena, offset, bytes, node, target, patience_ms } = wanted;
        self.send(ToShip::Move { id, direction, arena, offset, bytes, node, target, patience_ms });
        id
    }

    /// Waits until something of a move has moved, and not all.
    pub fn is_under_way(&mut self, id: Move, of: u64) {
        match self.until(|word| *word != ToAgent::Here && about(word) == Some(id)) {
            ToAgent::Progress { bytes, .. } => assert!(bytes > 0 && bytes < of, "{bytes} of {of}"),
            other => panic!("{other:?}"),
        }
    }

    /// What became of a move.
    pub fn end_of(&mut self, id: Move) -> Result<(), String> {
        self.end_within(id, LIMIT).expect("nothing of its end comes in time")
    }

    /// What became of a move, if that is known in time.
    pub fn end_within(&mut self, id: Move, time: Duration) -> Option<Result<(), String>> {
        let is_end = |word: &ToAgent| about(word) == Some(id) && !matches!(word, ToAgent::Progress { .. });
        match self.hears(is_end, Instant::now() + time)? {
            ToAgent::Moved { .. } => Some(Ok(())),
            ToAgent::NotMoved { reason, .. } => Some(Err(reason)),
            other => panic!("{other:?}"),
        }
    }

    pub fn run(&mut self, wanted: Wanted) -> Result<(), String> {
        let id = self.begin(wanted);
        self.end_of(id)
    }

    pub fn signal(&self, signal: i32) {
        ft_sys::process::kill(self.process.id() as i32, signal);
    }

    /// Stopped, and not only told to.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let pid = self.process.id() as i32;
        wait_for(|| ft_sys::process::condition(pid).is_some_and(|condition| condition.state == 'T'));
    }

    /// Stops it, and not at a moment at which it has taken what both need: libfabric's provider for shared memory has locks there, for which the
    /// other one would wait as soon as it comes to them.
    pub fn stop_beside(&self, other: &mut Ship) {
        let answers = |other: &mut Ship| {
            std::thread::sleep(Duration::from_millis(20));
            other.send(ToShip::Ask);
            other.hears(|word| *word == ToAgent::Here, Instant::now() + Duration::from_secs(5)).is_some()
        };
        for _ in 0..10 {
            self.stop();
            if (0..10).all(|_| answers(other)) {
                return;
            }
            self.go_on();
            other.until(|word| *word == ToAgent::Here);
        }
        panic!("the other one never answers while this one is stopped");
    }

    pub fn go_on(&self) {
        self.signal(libc::SIGCONT);
    }

    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Ship {
    /// What a killed one leaves of libfabric's shared memory is named by its address.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let address = String::from_utf8_lossy(&self.address);
        if let Some(name) = address.trim_end_matches('\0').strip_prefix("fi_shm://") {
            let _ = std::fs::remove_file(std::path::Path::new("/dev/shm").join(name));
        }
    }
}

/// The move that a word is about.
fn about(word: &ToAgent) -> Option<Move> {
    match word {
        ToAgent::Moved { id } | ToAgent::NotMoved { id, .. } | ToAgent::Progress { id, .. } => Some(*id),
        _ => None,
    }
}

/// Two nodes that know each other as 0 and 1; the first has `bytes` bytes of a pattern as arena 1, the other as many zeros.
pub fn two(provider: &str, bytes: u64) -> (Ship, Memory, Ship, Memory) {
    let (mut a, mut b) = (Ship::start(provider), Ship::start(provider));
    a.peer(1, &b);
    b.peer(0, &a);
    let (full, empty) = (Memory::filled(bytes, 7), Memory::new(bytes));
    a.map(1, &full, bytes);
    b.map(1, &empty, bytes);
    (a, full, b, empty)
}
