//! An agent for one rank, as small as the client's side of the protocol allows.
#![allow(dead_code, clippy::unwrap_used)]

use ft_arena::{AgentArena, PlaceState};
use ft_sys::channel::Channel;
use ft_wire::client::{ToAgent, ToClient};
use ft_wire::{Preamble, Role};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How the agent behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// As it should.
    Good,
    /// Never releases a place.
    Miser,
    /// Neither that, nor says why.
    SilentMiser,
    /// Has no memory for more than this many bytes per place.
    Small(u64),
    /// Is of another release.
    OtherRelease,
    /// Refuses the process.
    Refuses,
    /// Dies when it is asked for anything after the welcome.
    Dies,
}

pub struct FakeAgent {
    pub directory: tempfile::TempDir,
    pub arena: Arc<AgentArena>,
    /// Where the rank notes what it has printed.
    pub sheet: Arc<OwnedFd>,
    pub manner: Arc<Mutex<Manner>>,
    pub restarted: Arc<Mutex<bool>>,
    pub log: Arc<Mutex<Vec<ToAgent>>>,
    /// One for each connection that was taken and is not read to its end, besides this one.
    served: Arc<()>,
}

impl FakeAgent {
    pub fn new() -> FakeAgent {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("agent.sock")).unwrap();
        let (arena, _) = AgentArena::create(0, 1).unwrap();
        let agent = FakeAgent {
            directory,
            arena: Arc::new(arena),
            sheet: Arc::new(ft_sys::printed::sheet(1).unwrap()),
            manner: Arc::new(Mutex::new(Manner::Good)),
            restarted: Arc::default(),
            log: Arc::default(),
            served: Arc::default(),
        };
        let (arena, manner) = (agent.arena.clone(), agent.manner.clone());
        std::thread::spawn(move || finish(&arena, &manner));
        let (arena, manner) = (agent.arena.clone(), agent.manner.clone());
        let (restarted, log, sheet) = (agent.restarted.clone(), agent.log.clone(), agent.sheet.clone());
        let served = Arc::downgrade(&agent.served);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let served = served.upgrade();
                let (arena, manner) = (arena.clone(), *manner.lock().unwrap());
                let (restarted, log, sheet) = (*restarted.lock().unwrap(), log.clone(), sheet.clone());
                std::thread::spawn(move || {
                    serve(stream.unwrap(), (&arena, &sheet), manner, restarted, &log);
                    drop(served);
                });
            }
        });
        agent
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("agent.sock")
    }

    pub fn behave(&self, manner: Manner) {
        *self.manner.lock().unwrap() = manner;
    }

    pub fn restart(&self) {
        *self.restarted.lock().unwrap() = true;
    }

    /// Messages since the last call, of programs that have ended: whatever they had sent has been read.
    pub fn messages(&self) -> Vec<ToAgent> {
        let since = Instant::now();
        while Arc::strong_count(&self.served) > 1 {
            assert!(since.elapsed() < Duration::from_secs(30), "somebody who has ended still holds a connection");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::mem::take(&mut self.log.lock().unwrap())
    }

    /// Variables of a rank.
    pub fn env(&self) -> Vec<(&'static str, String)> {
        vec![
            ("FT_SOCKET", self.socket().display().to_string()),
            ("FT_JOB", "test".into()),
            ("FT_WORLD", "1".into()),
            ("FT_EPOCH", "1".into()),
            ("FT_RANK", "0".into()),
            ("FT_SIZE", "1".into()),
        ]
    }
}

/// A copy of the file that the linker made last, next to the test's own program.
pub fn built(name: &str) -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let found = exe.ancestors().skip(1).take(2).map(|dir| dir.join(name)).filter(|path| path.exists());
    let modified = |path: &PathBuf| std::fs::metadata(path).and_then(|meta| meta.modified()).unwrap();
    found.max_by_key(modified).unwrap_or_else(|| panic!("cargo built no {name}"))
}

/// Compiles a C file of `tests/c`; returns the program.
pub fn compile(compiler: &str, source: &str, options: &[&str], into: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = into.join(Path::new(source).file_stem().unwrap());
    let mut command = std::process::Command::new(compiler);
    command.args(["-g", "-o"]).arg(&program).arg(root.join("tests").join(source)).args(options);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    program
}

fn serve(
    stream: UnixStream,
    (arena, sheet): (&AgentArena, &OwnedFd),
    manner: Manner,
    restarted: bool,
    log: &Mutex<Vec<ToAgent>>,
) {
    if manner == Manner::OtherRelease {
        let mut stream = stream;
        let mut bytes = Preamble::ours(Role::Agent).to_bytes();
        // The next one would be a neighbour.
        bytes[8] += 2;
        stream.write_all(&bytes).unwrap();
        let _ = stream.read(&mut bytes);
        return;
    }
    let mut channel = Channel::from_stream(stream);
    channel.exchange(Role::Agent, Duration::from_secs(10)).unwrap();
    while let Ok((message, _)) = channel.receive::<ToAgent>(None) {
        log.lock().unwrap().push(message.clone());
        // An answer says to the test as well that everything before it is done.
        complete_all(arena, manner);
        let answer = match message {
            ToAgent::Hello { .. } if manner == Manner::Refuses => {
                Some(ToClient::Refused { reason: "there is a younger process of rank 0".into() })
            }
            ToAgent::Hello { .. } => {
                let fd = arena.descriptor().unwrap();
                let welcome = ToClient::Welcome { restarted, world_size: 1, epoch: 1 + u64::from(restarted) };
                channel.send(&welcome, &[fd.as_fd(), sheet.as_fd()]).unwrap();
                continue;
            }
            _ if manner == Manner::Dies => return,
            ToAgent::Reserve { place_bytes } => match manner {
                Manner::Small(most) if place_bytes > most => {
                    Some(ToClient::NoMemory { reason: format!("three places of {place_bytes} bytes do not fit") })
                }
                _ => Some(ToClient::Reserved),
            },
            ToAgent::Restore => {
                let whole = arena.scan().into_iter().filter(|info| arena.verify(info.place).is_ok());
                let newest = whole.max_by_key(|info| info.version);
                Some(ToClient::Restore { found: newest.map(|info| (info.version, info.place)) })
            }
            ToAgent::Restored { .. } | ToAgent::NotRestored { .. } => None,
            ToAgent::Finalized { .. } => Some(ToClient::Finalized),
            ToAgent::Waits { .. } if manner == Manner::SilentMiser => None,
            ToAgent::Waits { version } => {
                // What nobody waits for any more comes late.
                let of =
                    |version| ToClient::WaitsFor { version, words: format!("rank 7 lacks what {version} follows") };
                channel.send(&of(version - 1), &[]).unwrap();
                Some(of(version))
            }
            ToAgent::Due => Some(ToClient::Due { yes: true }),
        };
        if let Some(answer) = answer
            && channel.send(&answer, &[]).is_err()
        {
            return;
        }
    }
}

/// Makes checksums of what is committed, for ever.
fn finish(arena: &AgentArena, manner: &Mutex<Manner>) {
    // As the agent's threads: no wake-up of theirs interrupts the rank in the middle of its call.
    let _behind = ft_sys::behind::Behind::begin();
    loop {
        let seen = arena.commits().load(std::sync::atomic::Ordering::Acquire);
        complete_all(arena, *manner.lock().unwrap());
        ft_sys::death::wait_any(&[(arena.commits(), seen)]).unwrap();
    }
}

fn complete_all(arena: &AgentArena, manner: Manner) {
    for info in arena.scan().iter().filter(|info| info.state == PlaceState::Copied) {
        complete(arena, info.place, matches!(manner, Manner::Miser | Manner::SilentMiser));
    }
}

/// The checksum behind the copy; then the places of older versions are free, but one.
fn complete(arena: &AgentArena, place: u32, keep_all: bool) {
    let Ok((info, checksum)) = arena.hash(place) else { return };
    arena.set_complete(place, info.sequence, checksum);
    let mut older: Vec<_> = arena.scan().into_iter().filter(|other| other.is_whole()).collect();
    older.retain(|other| other.sequence < info.sequence && matches!(other.state, PlaceState::Complete { .. }));
    older.sort_by_key(|other| other.sequence);
    older.pop();
    for other in older.iter().filter(|_| !keep_all) {
        arena.release(other.place, other.sequence);
    }
}
