//! What runs on the slot.

use crate::feeder::{self, Feeder};
use crate::options::{Options, Stdin};
use ft_sys::spawn::{Spawn, Step};
use ft_sys::sweep::Sweep;
use ft_wire::shepherd::{Start, ToAgent, ToShepherd};
use ft_wire::{Rank, World};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long [`Slot::empty_now`] waits for processes that the kernel does not end.
const STUBBORN: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Child {
    world: World,
    rank: Rank,
    pid: i32,
    oom_kills: Option<u64>,
}

/// The slot: at most one direct child, and whatever it started.
#[derive(Debug)]
pub struct Slot {
    number: ft_wire::Slot,
    job_dir: PathBuf,
    stdin: Stdin,
    child: Option<Child>,
    /// Former direct children that run no user code any more; the kernel has not let go of them yet.
    departed: Vec<Child>,
    feeder: Option<Feeder>,
    arenas: BTreeMap<Rank, OwnedFd>,
    /// Everything below is being killed, for this world.
    emptying: Option<World>,
    sweep: Sweep,
}

impl Slot {
    /// An empty slot. Takes the standard input out of the options.
    pub fn new(options: &Options) -> Slot {
        let stdin = match &options.stdin {
            Stdin::Null => Stdin::Null,
            Stdin::File(fd, offset) => fd.try_clone().map_or(Stdin::Null, |fd| Stdin::File(fd, *offset)),
            Stdin::Spool(fd) => fd.try_clone().map_or(Stdin::Null, Stdin::Spool),
        };
        Slot {
            number: options.slot,
            job_dir: options.job_dir.clone(),
            stdin,
            child: None,
            departed: Vec::new(),
            feeder: None,
            arenas: BTreeMap::new(),
            emptying: None,
            sweep: Sweep::default(),
        }
    }

    /// Its number.
    pub fn number(&self) -> ft_wire::Slot {
        self.number
    }

    /// The arenas that are kept, by owner.
    pub fn arenas(&self) -> impl Iterator<Item = (Rank, BorrowedFd<'_>)> {
        self.arenas.iter().map(|(rank, fd)| (*rank, fd.as_fd()))
    }

    /// The pipe of rank 0's standard input, while there is something to write.
    pub fn feeding(&self) -> Option<BorrowedFd<'_>> {
        self.feeder.as_ref()?.wants_to_write()
    }

    /// The launcher read more standard input.
    pub fn stdin_grew(&mut self) {
        if let Some(feeder) = &mut self.feeder {
            feeder.grew();
        }
    }

    /// Writes what rank 0's pipe takes.
    pub fn feed(&mut self) {
        if let (Some(feeder), Stdin::Spool(spool)) = (&mut self.feeder, &self.stdin)
            && feeder.wants_to_write().is_some()
            && !feeder.feed(spool)
        {
            self.feeder = None;
        }
    }

    /// Whether something was killed and is not gone yet.
    pub fn is_emptying(&self) -> bool {
        self.emptying.is_some()
    }

    /// Does what the agent says.
    pub fn obey(&mut self, message: ToShepherd, mut fds: Vec<OwnedFd>) -> Vec<ToAgent> {
        match message {
            ToShepherd::Start(start) => vec![self.start(&start, fds.pop())],
            ToShepherd::Stop { world } => {
                self.stop(world);
                Vec::new()
            }
            // A terminal's stop means the rank below a wrapper as well.
            ToShepherd::Signal(signal @ (nix::libc::SIGTSTP | nix::libc::SIGSTOP | nix::libc::SIGCONT)) => {
                ft_sys::process::signal_descendants(signal);
                Vec::new()
            }
            ToShepherd::Signal(signal) => {
                if let Some(child) = &self.child {
                    ft_sys::process::kill(child.pid, signal);
                }
                Vec::new()
            }
            ToShepherd::Pause(pause) => {
                let signal = if pause { nix::libc::SIGSTOP } else { nix::libc::SIGCONT };
                ft_sys::process::signal_descendants(signal);
                Vec::new()
            }
            ToShepherd::KeepArena { rank } => {
                if let Some(fd) = fds.pop() {
                    self.arenas.insert(rank, fd);
                }
                Vec::new()
            }
            ToShepherd::Exit => Vec::new(),
        }
    }

    fn start(&mut self, start: &Start, extra: Option<OwnedFd>) -> ToAgent {
        let (world, rank) = (start.world, start.rank);
        let failed = |what: String, error: &std::io::Error| ToAgent::StartFailed {
            world,
            rank,
            errno: error.raw_os_error().unwrap_or(nix::libc::EIO),
            what,
        };
        let program = String::from_utf8_lossy(start.argv.first().map_or(&[], |a| a)).into_owned();
        if let Some(child) = &self.child {
            let busy = std::io::Error::from_raw_os_error(nix::libc::EBUSY);
            return failed(
                format!("slot {} still runs rank {} of world {}", self.number, child.rank, child.world),
                &busy,
            );
        }
        let (stdin, feeder) = match start.stdin.then(|| feeder::open(&self.stdin)).transpose() {
            Ok(opened) => opened.unwrap_or((None, None)),
            Err(error) => return failed("cannot open standard input".into(), &error),
        };
        let extra = extra.as_ref().zip(start.fd_at).map(|(fd, number)| (fd.as_fd(), number));
        let spawn = Spawn { argv: &start.argv, env: &start.env, cwd: &start.cwd, stdin, extra };
        match spawn.start() {
            Ok(pid) => {
                ft_sys::segments::note_creator(&self.job_dir, pid);
                self.child = Some(Child { world, rank, pid, oom_kills: ft_sys::oom::oom_kill_count() });
                self.feeder = feeder;
                self.emptying = None;
                ToAgent::Started { world, rank, pid }
            }
            Err(error) => {
                let what = match error.step {
                    Step::Directory => format!("cannot change to directory {}", String::from_utf8_lossy(&start.cwd)),
                    Step::Exec => format!("cannot execute {program}"),
                    Step::Prepare => format!("cannot start {program}"),
                };
                failed(what, &error.error)
            }
        }
    }

    /// Kills everything below; [`emptied`](Self::emptied) tells when it is gone.
    pub fn stop(&mut self, world: World) {
        self.feeder = None;
        self.emptying = Some(world);
        self.sweep = Sweep::default();
    }

    /// Collects the dead. The direct child's end is reported, and what it left behind is killed.
    pub fn reap(&mut self) -> Vec<ToAgent> {
        let mut reports = Vec::new();
        while let Some((pid, status)) = ft_sys::wait::next_ended() {
            let is_it = |child: &Child| child.pid == pid;
            let current = self.child.take_if(|child| is_it(child));
            let left_alone = current.is_some() && self.emptying.is_none();
            let departed = self.departed.iter().position(is_it).map(|at| self.departed.swap_remove(at));
            if let Some(child) = current.or(departed) {
                let oom = status.signal() == Some(nix::libc::SIGKILL)
                    && ft_sys::oom::oom_kill_count().zip(child.oom_kills).is_some_and(|(now, then)| now > then);
                let status = status.as_raw();
                reports.push(ToAgent::Exited { world: child.world, rank: child.rank, pid: child.pid, status, oom });
                if left_alone {
                    self.stop(child.world);
                }
            }
        }
        reports
    }

    /// Tells once when nothing below runs user code any more. The kernel may still be tearing down memory of the dead.
    pub fn emptied(&mut self) -> Option<ToAgent> {
        let world = self.emptying?;
        if !self.sweep.round(&[]) {
            return None;
        }
        self.emptying = None;
        self.departed.extend(self.child.take());
        Some(ToAgent::Emptied { world })
    }

    /// Kills everything below and waits until it is gone. Nothing is reported.
    pub fn empty_now(&mut self) {
        self.stop(0);
        let until = Instant::now() + STUBBORN;
        while self.emptied().is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
            self.reap();
        }
        self.reap();
        self.departed.clear();
        self.child = None;
        self.emptying = None;
    }
}
