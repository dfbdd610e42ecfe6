//! The tasks of Slurm's that are the shepherds of a node's part: they dial it, over a socket in the abstract name space, where no file stays
//! behind. Who they are the kernel says.

use ft_sys::channel::{Channel, ChannelError};
use ft_sys::individual;
use ft_sys::peer::Peer;
use ft_wire::step::{self, Answer, Place};
use ft_wire::{Role, Slot};
use ftd_core::counted;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// Slurm starts the tasks of a node at the same time; each has so long to come.
const COMING: Duration = Duration::from_secs(60);
/// One that is here says at once which it is.
const ANSWER: Duration = Duration::from_secs(5);
/// When there is no job the front has ended by then who has not come.
const TURNED_AWAY: Duration = Duration::from_secs(10);
/// Pause between looks whether another one has come.
const AGAIN: Duration = Duration::from_millis(2);

/// Why a part has no shepherds.
#[derive(Debug, thiserror::Error)]
pub enum TasksError {
    /// The system.
    #[error("the step's tasks cannot be heard: {0}")]
    Io(#[from] io::Error),
    /// Some do not come.
    #[error("of {} of this node {missing} did not ask for a place within {} s", counted(*all, "task"), COMING.as_secs())]
    Late {
        /// How many there are.
        all: u32,
        /// How many did not come.
        missing: u32,
    },
}

/// A task that waits for its place.
#[derive(Debug)]
struct Waiting {
    channel: Channel,
    held: individual::Held,
}

/// A task that has it.
#[derive(Debug)]
pub struct Seated {
    /// Its process.
    pub held: individual::Held,
    /// Open as long as the job runs here.
    pub lifeline: UnixStream,
}

/// The node's tasks.
#[derive(Debug)]
pub struct Tasks {
    waiting: BTreeMap<Slot, Waiting>,
    /// Who has to be told how the job ends before it may go.
    leaving: Vec<UnixStream>,
    /// The first one's environment.
    environment: OwnedFd,
}

/// Where the tasks of a node dial.
#[derive(Debug)]
pub struct Door(UnixListener);

impl Door {
    /// Opens it.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(name: &str) -> io::Result<Door> {
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Door(listener))
    }

    /// Waits until all tasks are here. The first one's standard input is this process's from then on.
    ///
    /// # Errors
    /// [`TasksError`].
    pub fn gather(&self, layout: step::Layout) -> Result<Tasks, TasksError> {
        let mut waiting = BTreeMap::new();
        let slots = layout.first..layout.first.saturating_add(layout.tasks);
        let until = Instant::now() + COMING;
        while (waiting.len() as u32) < layout.tasks {
            if Instant::now() >= until {
                return Err(TasksError::Late { all: layout.tasks, missing: layout.tasks - waiting.len() as u32 });
            }
            match self.0.accept() {
                Ok((stream, _)) => {
                    let Some((slot, task, stdin)) = meet(stream).filter(|(slot, ..)| slots.contains(slot)) else {
                        continue;
                    };
                    if let Some(stdin) = stdin {
                        ft_sys::process::put_at(stdin.as_fd(), 0)?;
                    }
                    waiting.insert(slot, task);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(AGAIN),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Tasks { waiting, leaving: Vec::new(), environment: environment()? })
    }

    /// There is no job. A task hears so by that nobody speaks to it; one that finds no door would wait until there is one.
    pub fn turn_away(&self, layout: step::Layout) {
        let (until, mut left) = (Instant::now() + TURNED_AWAY, layout.tasks);
        while left > 0 && Instant::now() < until {
            match self.0.accept() {
                Ok(_) => left -= 1,
                Err(_) => std::thread::sleep(AGAIN),
            }
        }
    }
}

/// One that dials: which task it is, and its standard input if it is the first. Whoever is none is nobody.
fn meet(stream: UnixStream) -> Option<(Slot, Waiting, Option<OwnedFd>)> {
    let peer = Peer::of(&stream).ok().filter(|peer| peer.uid == nix::unistd::getuid().as_raw())?;
    let mut channel = Channel::from_stream(stream);
    let said = channel.exchange(Role::Launcher, ANSWER).and_then(|_| channel.receive::<step::Task>(Some(ANSWER)));
    let (step::Task { slot }, stdin) = said.ok()?;
    Some((slot, Waiting { channel, held: peer.held? }, stdin.into_iter().next()))
}

/// This process's environment, which is the first task's, for all of them.
fn environment() -> io::Result<OwnedFd> {
    use std::os::unix::ffi::OsStringExt;
    let mut file = File::from(ft_sys::memory::create_memfd("ft-environment", 0)?);
    let variable = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        [name.into_vec(), b"=".to_vec(), value.into_vec()].concat()
    };
    file.write_all(&ft_wire::part::join(std::env::vars_os().map(variable)))?;
    Ok(file.into())
}

impl Tasks {
    /// Gives the task of that slot its place. `descriptors` are those behind the first two.
    ///
    /// # Errors
    /// There is none, or it is gone.
    pub fn seat(&mut self, slot: Slot, place: Place, descriptors: &[BorrowedFd<'_>]) -> io::Result<Seated> {
        let gone = || io::Error::new(io::ErrorKind::NotFound, "Slurm starts no other task in its place");
        let Waiting { mut channel, held } = self.waiting.remove(&slot).ok_or_else(gone)?;
        let (lifeline, theirs) = UnixStream::pair()?;
        lifeline.set_nonblocking(true)?;
        let all: Vec<BorrowedFd<'_>> =
            [theirs.as_fd(), self.environment.as_fd()].into_iter().chain(descriptors.iter().copied()).collect();
        channel.send(&Answer::Seat(place), &all).map_err(|error| match error {
            ChannelError::Io(error) => error,
            error => io::Error::other(error),
        })?;
        Ok(Seated { held, lifeline })
    }

    /// There is no job. The first one says why.
    pub fn refuse(mut self, sentence: &str) {
        if let Some(mut first) = self.waiting.first_entry() {
            // Who is gone does not ask.
            let _ = first.get_mut().channel.send(&Answer::No(sentence.into()), &[]);
        }
    }

    /// That one has nothing left below it, and waits.
    pub fn leaves(&mut self, lifeline: UnixStream) {
        self.leaving.push(lifeline);
    }

    /// The job has ended so, and nothing is left of it here but this process. Slurm ends that with the last of the tasks.
    pub fn dismiss(self, status: i32) {
        for mut lifeline in self.leaving {
            // Who is gone does not ask.
            let _ = lifeline.write_all(&[u8::try_from(status).unwrap_or(1)]);
        }
    }
}
