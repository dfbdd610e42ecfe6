//! The launcher: starts the agent and one shepherd per slot, relays output and input, and outlives them all.
//!
//! One thread and one `poll`. It decides nothing about the job: the agent does.

use crate::cancel::Cancelled;
use crate::deaths::Deaths;
use crate::ends::Says;
use crate::family::{self, End};
use crate::front::Front;
use crate::held::Held;
use crate::helpers::Helpers;
use crate::job_dir::{JobDir, JobDirError};
use crate::limits::Soft;
use crate::options::Options;
use crate::orphans::Orphans;
use crate::output::{AGENT, Key, Output};
use crate::part::Part;
use crate::signals::{self, Meaning, Signals};
use crate::stdin::Input;
use crate::time_limit::TimeLimit;
use crate::tolls::Tolls;
use ft_sys::channel::{Channel, ChannelError};
use ft_sys::helper::Helper;
use ft_sys::job_time;
use ft_sys::printed;
use ft_sys::pulse::{Beat, Pulse};
use ft_sys::sweep::Sweep;
use ft_wire::launcher::{Before, JobSpec, ToAgent, ToLauncher};
use ft_wire::part::FromPart;
use ft_wire::shepherd::{Lifeline, Pipes};
use ft_wire::{Epoch, Rank, Role, Slot, Version};
use ftd_core::policy::Mode;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{InitFlags, Inotify};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What is still there so long after the job's end is killed.
const LEAVE: Duration = Duration::from_secs(5);
/// How long the sweep behind a dead helper waits for what SIGKILL does not end.
const UNKILLABLE: Duration = Duration::from_secs(30);
/// An agent that closed its link has this long to say why and to end.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// While processes are being killed they are looked at this often.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// While the spool is full this is how often it is looked at.
const ROOM_AGAIN: Duration = Duration::from_millis(10);
/// While helpers that have ended give back the memory of arenas this is how often it is looked whether they are gone.
const GIVING_BACK: Duration = Duration::from_millis(50);
/// While another process group has the terminal this is how often it is looked at.
const TERMINAL_AGAIN: Duration = Duration::from_millis(200);

mod asking;
mod orders;
mod tasks;

/// Why a job cannot be launched.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The job's directory.
    #[error(transparent)]
    JobDir(#[from] JobDirError),
    /// One of ftd's own programs is not what it was, or should be.
    #[error(transparent)]
    Build(#[from] ft_sys::build_check::BuildError),
    /// One of ftd's own programs does not start.
    #[error("{} cannot be started: {error}{}", program.display(), crate::limits::hint(error))]
    Start {
        /// Which.
        program: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The kernel's notices of what happens to restart files.
    #[error("the kernel gives no inotify instance: {error}{}", crate::limits::inotify_hint(error))]
    Notices {
        /// What the system said.
        error: io::Error,
    },
    /// Something that every process needs.
    #[error("{what}: {error}{}", crate::limits::hint(error))]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        error: io::Error,
    },
}

fn system(what: &'static str) -> impl Fn(io::Error) -> LaunchError {
    move |error| LaunchError::System { what, error }
}

#[derive(Debug)]
struct AgentProcess {
    pid: i32,
    link: Option<Channel>,
    /// It has said hello and was told what the job is.
    described: bool,
    pulse: Pulse,
    /// It has answered since a helper was replaced last.
    heard: bool,
    /// Slots whose shepherds have not dialled in to it.
    absent: Vec<Slot>,
    /// It has the arenas of all ranks.
    complete: bool,
    /// Its link broke: it is about to end, and is killed at this time if it does not.
    until: Option<Instant>,
}

impl AgentProcess {
    /// Nothing more will be heard of it.
    fn hang_up(&mut self) {
        self.link = None;
        self.until = Some(job_time::now() + LAST_WORDS);
    }
}

#[derive(Debug)]
struct Shepherd {
    pid: i32,
    /// It is a task of Slurm's.
    task: Option<ft_sys::individual::Held>,
    /// Open as long as the job runs; its end of file ends the shepherd.
    lifeline: UnixStream,
    pulse: Pulse,
    /// Where the pipes of its processes come from, if they have any.
    pipes: Option<Channel>,
    /// The rank that it has started last.
    rank: Option<Rank>,
    /// It may have told an agent who it is, and keep arenas for it.
    dialled: bool,
    /// It has ended filters: output was lost.
    lost_output: bool,
    /// Nothing is left below it, and it waits for the end.
    is_empty: bool,
    /// Shepherds in a row before it that were ended without having come so far.
    unborn: u32,
}

impl Shepherd {
    /// Reads what it says.
    fn hear(&mut self) {
        let mut said = [0; 64];
        while let Ok(count @ 1..) = self.lifeline.read(&mut said) {
            self.pulse.one_of_many_answered();
            self.dialled |= said[..count].contains(&Lifeline::DIALS);
            self.lost_output |= said[..count].contains(&Lifeline::LOST);
            self.is_empty |= said[..count].contains(&Lifeline::EMPTY);
        }
    }

    /// Takes the pipes of processes that it has started.
    fn take_pipes(&mut self, slot: u32, output: &mut Output, now: Instant) {
        let Some(pipes) = &mut self.pipes else { return };
        while let Ok(Some((Pipes { world, rank }, fds))) = pipes.try_receive() {
            self.rank = Some(rank);
            let mut fds = fds.into_iter();
            if let Some(pipes) = fds.next().zip(fds.next())
                && let Err(error) = output.adopt((world, slot, rank), pipes, now)
            {
                output.say(&format!("ftrun: the output of rank {rank} cannot be read: {error}"));
            }
        }
    }
}

/// How the job ends.
#[derive(Debug)]
struct Ending {
    status: i32,
    reason: Option<String>,
    until: Instant,
    /// … and then, at the latest, also one that has ended and is only being taken apart.
    latest: Instant,
}

impl Ending {
    fn new(status: i32, reason: Option<String>, until: Instant) -> Ending {
        Ending { status, reason, until, latest: until + ft_sys::timescale::scaled(UNKILLABLE) }
    }
}

/// A running job.
#[derive(Debug)]
pub struct Launcher {
    options: Options,
    spec: JobSpec,
    helpers: Helpers,
    /// What is held of each program.
    held: Vec<Held>,
    /// For the ranks.
    soft: Soft,
    directory: JobDir,
    /// This is the part of a job over several nodes.
    part: Option<Part>,
    /// The agents' socket, which outlives every agent.
    listener: Option<UnixListener>,
    /// The embedded store's memory, which outlives every agent.
    store: OwnedFd,
    /// The watch over the program's restart files, which outlives every agent, too: nothing that happens goes unseen.
    notices: OwnedFd,
    /// On which the ranks note where in their output they take versions.
    printed: OwnedFd,
    input: Input,
    output: Output,
    signals: Signals,
    agent: Option<AgentProcess>,
    shepherds: BTreeMap<Slot, Shepherd>,
    next_slot: Slot,
    /// Orphans of helpers that died are being killed; then the agent hears of these slots, or a new agent is started.
    orphans: Option<Orphans>,
    lost: Vec<Slot>,
    /// Filters were ended: output was lost.
    lost_output: bool,
    /// Shepherds that died since every one of them was known to the agent, of those that may have kept something.
    died: usize,
    beat: Beat,
    front: Front,
    told_silent: BTreeSet<Slot>,
    /// Since when somebody is to be replaced, and nobody may be.
    stuck: Option<Instant>,
    /// There are arenas that somebody may be the last keeper of.
    arenas: bool,
    /// The program uses MPI.
    mpi: bool,
    /// For each shepherd that is to be started in the place of one that never came to work: how many of them there were.
    unborn: Vec<u32>,
    /// Agents in a row that were ended without ever having answered.
    mute_agents: u32,
    /// The newest epoch whose block was printed.
    reported: Epoch,
    /// What failures have cost.
    tolls: Tolls,
    /// What the next agent is told of the one that died last.
    before: Option<Before>,
    /// How the agent ended whose place is empty.
    agent_end: Option<End>,
    agent_deaths: Deaths,
    shepherd_failures: Deaths,
    /// The newest version that was complete.
    complete: Option<Version>,
    cancelled: Option<Cancelled>,
    limit: TimeLimit,
    ending: Option<Ending>,
    /// The agent has said that it is over.
    said_by_agent: Option<Says>,
    /// After the job's end, output is written until then at the latest.
    output_until: Option<Instant>,
}

/// What a descriptor that is ready belongs to.
#[derive(Debug, Clone, Copy)]
enum Ready {
    Signals,
    Orders,
    Agent,
    Tasks,
    Input,
    Pipes,
    Source(Key),
    Written,
}

fn watch() -> io::Result<OwnedFd> {
    Ok(Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?.into())
}

/// Of a part its launcher's; but the first of Slurm's tasks has given its own.
fn input(part: Option<&Part>) -> io::Result<Input> {
    part.filter(|part| part.tasks.is_none()).map_or_else(Input::open, |_| Input::fed())
}

/// Where the ranks' output goes.
fn output(options: &Options, part: Option<&Part>) -> io::Result<Output> {
    match part {
        None => Output::new(options.label, options.once(), options.files()),
        Some(part) => part.output(),
    }
}

impl Launcher {
    /// Starts the agent and all shepherds. `spec` lacks what only the launcher knows: the job's name and directory.
    ///
    /// # Errors
    /// One sentence; nothing is left behind.
    pub fn start(
        options: Options,
        mut spec: JobSpec,
        helpers: Helpers,
        held: Vec<Held>,
        soft: Soft,
        part: Option<Part>,
    ) -> Result<Launcher, LaunchError> {
        ft_sys::process::set_subreaper().map_err(system("orphans cannot be adopted"))?;
        let own = part.as_ref().map_or(options.ranks, |part| part.slots(options.ranks));
        // For each slot three links, an end of a pipe and what is under way; without it, the start only takes longer.
        let _ = ft_sys::process::make_room_for_descriptors(64 + 8 * u64::from(own));
        let signals = Signals::open().map_err(system("signals cannot be read"))?;
        let directory = JobDir::choose()?;
        spec.job = part.as_ref().map_or_else(|| format!("ftrun-{}", directory.word()), |part| part.job().to_string());
        spec.job_dir = directory.path().to_path_buf();
        let limit = TimeLimit::new(options.timeout.filter(|_| part.is_none()), job_time::now());
        let mut launcher = Launcher {
            notices: watch().map_err(|error| LaunchError::Notices { error })?,
            store: ft_sys::memory::create_memfd("ft-store", 0).map_err(system("no memory for the store"))?,
            printed: printed::sheet(spec.world_size).map_err(system("no memory for notes"))?,
            input: input(part.as_ref()).map_err(system("standard input"))?,
            output: output(&options, part.as_ref()).map_err(system("standard output"))?,
            next_slot: part.as_ref().map_or(0, Part::first_slot),
            part,
            options,
            spec,
            helpers,
            held,
            soft,
            directory,
            listener: None,
            signals,
            agent: None,
            shepherds: BTreeMap::new(),
            orphans: None,
            lost: Vec::new(),
            lost_output: false,
            died: 0,
            beat: Beat::new(Instant::now()),
            front: Front::default(),
            told_silent: BTreeSet::new(),
            stuck: None,
            arenas: false,
            mpi: false,
            unborn: Vec::new(),
            mute_agents: 0,
            reported: 0,
            tolls: Tolls::default(),
            before: None,
            agent_end: None,
            agent_deaths: Deaths::default(),
            shepherd_failures: Deaths::default(),
            complete: None,
            cancelled: None,
            limit,
            ending: None,
            said_by_agent: None,
            output_until: None,
        };
        match launcher.start_all() {
            Ok(()) => Ok(launcher),
            Err(error) => {
                launcher.shepherds.clear();
                family::end_all(LEAVE);
                Err(error)
            }
        }
    }

    fn start_all(&mut self) -> Result<(), LaunchError> {
        self.output.look_at(printed::Reader::of(&self.printed).map_err(system("no memory for notes"))?);
        // From here on somebody removes the directory, even if this process is killed at any moment.
        let first = self.own_slot();
        self.start_shepherd(first)?;
        self.directory.make()?;
        self.listener = Some(self.directory.listen()?);
        // Then the agent: it makes itself ready while the others are started.
        self.start_agent()?;
        for _ in 1..self.own_slots() {
            let slot = self.own_slot();
            self.start_shepherd(slot)?;
        }
        // Nothing is started twice without.
        if self.options.mode != Mode::None {
            self.held.iter().for_each(Held::read_behind);
        }
        Ok(())
    }

    /// How many slots this launcher starts.
    fn own_slots(&self) -> u32 {
        self.part.as_ref().map_or(self.options.ranks, |part| part.slots(self.options.ranks))
    }

    fn verbose(&mut self, line: impl FnOnce() -> String) {
        if self.options.verbose {
            self.output.say(&format!("ftrun: {}", line()));
        }
    }

    fn start_agent(&mut self) -> Result<(), LaunchError> {
        let (mine, theirs) = UnixStream::pair().map_err(system("no socket pair"))?;
        let err = self.output.open(AGENT, job_time::now()).map_err(system("no pipe"))?;
        let out = err.try_clone().map_err(system("no pipe"))?;
        let Some(listener) = &self.listener else { return Ok(()) };
        ft_sys::build_check::check(&self.helpers.agent)?;
        let tasks = self.has_tasks().then(|| (ft_wire::step::TASKS, String::new()));
        let descriptors =
            [("FT_LAUNCHER_FD", theirs.as_raw_fd().to_string()), ("FT_LISTEN_FD", listener.as_raw_fd().to_string())];
        let helper = Helper {
            program: &self.helpers.agent,
            arguments: Vec::new(),
            environment: descriptors.into_iter().chain(tasks).collect(),
            descriptors: &[theirs.as_fd(), listener.as_fd()],
            output: Some((out, err)),
            own_session: true,
        };
        let pid = helper.start().map_err(|error| LaunchError::Start { program: self.helpers.agent.clone(), error })?;
        let mut link = Channel::from_stream(mine);
        // One that cannot read it is dead, and that is noticed elsewhere.
        let _ = link.greet(Role::Launcher);
        let (described, heard) = (false, false);
        let (pulse, absent, until) = (Pulse::default(), Vec::new(), None);
        let link = Some(link);
        self.agent = Some(AgentProcess { pid, link, described, pulse, heard, absent, complete: false, until });
        self.verbose(|| format!("agent {pid}"));
        Ok(())
    }

    /// Once the agent has said hello it is told what the job is.
    fn describe_job(&mut self) {
        let slots = self.shepherds.iter().map(|(slot, shepherd)| (*slot, shepherd.pid)).collect();
        let Some(agent) = self.agent.as_mut().filter(|agent| !agent.described) else { return };
        let Some(link) = &mut agent.link else { return };
        let greeting = match link.greeting(Duration::ZERO) {
            Err(ChannelError::TimedOut(_)) => return,
            greeting => greeting,
        };
        let message = ToAgent::Job { spec: self.spec.clone(), slots, before: self.before.clone() };
        agent.described = true;
        self.told_silent.clear();
        let mut descriptors = vec![self.store.as_fd(), self.notices.as_fd(), self.printed.as_fd()];
        descriptors.extend(self.part.iter().flat_map(Part::sockets));
        if let Err(error) = greeting.and_then(|_| link.send(&message, &descriptors)) {
            // How it ends, which comes next, is what counts.
            agent.hang_up();
            return self.verbose(|| format!("the agent did not take the job: {error}"));
        }
        agent.pulse.answered();
        // Once is enough.
        self.spec.binding.iter_mut().for_each(|binding| binding.note = None);
        if job_time::is_stopped() {
            self.tell(&ToAgent::Signal(nix::libc::SIGTSTP));
        }
        if let Some(Cancelled { signal, .. }) = self.cancelled {
            self.tell(&ToAgent::Cancel { signal });
        }
    }

    /// The next slot of this node's own.
    fn own_slot(&mut self) -> Slot {
        let next = self.part.as_ref().map_or(self.next_slot + 1, |part| part.slot_after(self.next_slot));
        std::mem::replace(&mut self.next_slot, next)
    }

    fn start_shepherd(&mut self, slot: Slot) -> Result<(), LaunchError> {
        if self.has_tasks() {
            return self.seat(slot);
        }
        let (mine, theirs) = UnixStream::pair().map_err(system("no socket pair"))?;
        mine.set_nonblocking(true).map_err(system("no socket pair"))?;
        let (pipes, pipes_end) = UnixStream::pair().map_err(system("no socket pair"))?;
        let err = self.output.open(slot, job_time::now()).map_err(system("no pipe"))?;
        let out = err.try_clone().map_err(system("no pipe"))?;
        let mut descriptors = vec![theirs.as_fd(), pipes_end.as_fd()];
        let mut arguments: Vec<OsString> = vec![
            "--slot".into(),
            slot.to_string().into(),
            "--socket".into(),
            self.directory.socket().into(),
            "--lifeline".into(),
            theirs.as_raw_fd().to_string().into(),
            "--pipes".into(),
            pipes_end.as_raw_fd().to_string().into(),
            "--soft-limits".into(),
            self.soft.files.to_string().into(),
            self.soft.tasks.to_string().into(),
        ];
        arguments.extend(self.spec.nice.iter().flat_map(|nice| ["--nice".into(), nice.to_string().into()]));
        for held in &self.held {
            descriptors.extend(held.descriptors());
            arguments.extend(held.arguments().map(OsString::from));
        }
        if let Some((fd, option, offset)) = self.input.for_shepherd() {
            descriptors.push(fd);
            arguments.extend([option.into(), fd.as_raw_fd().to_string().into()]);
            arguments.extend(offset.map(|offset| offset.to_string().into()));
        }
        let program = &self.helpers.shepherd;
        ft_sys::build_check::check(program)?;
        let helper = Helper {
            program,
            arguments,
            environment: Vec::new(),
            descriptors: &descriptors,
            output: Some((out, err)),
            own_session: false,
        };
        let pid = helper.start().map_err(|error| LaunchError::Start { program: program.clone(), error })?;
        let shepherd = Shepherd {
            pid,
            task: None,
            lifeline: mine,
            pulse: Pulse::default(),
            pipes: Some(Channel::from_stream(pipes)),
            rank: None,
            dialled: false,
            lost_output: false,
            is_empty: false,
            unborn: self.unborn.pop().unwrap_or(0),
        };
        self.shepherds.insert(slot, shepherd);
        self.verbose(|| format!("slot {slot}: shepherd {pid}"));
        Ok(())
    }

    /// Runs the job to its end and returns the exit status.
    pub fn run(mut self) -> i32 {
        let job_dir = self.spec.job_dir.clone();
        self.verbose(|| format!("job directory {}", job_dir.display()));
        loop {
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(error) => {
                    self.give_up(1, &format!("poll: {error}"));
                    return self.leave();
                }
            };
            if ready.iter().any(|ready| matches!(ready, Ready::Signals)) {
                while let Some(meaning) = self.signals.next() {
                    self.signal(meaning);
                }
            }
            if ready.iter().any(|ready| matches!(ready, Ready::Orders)) {
                self.follow_orders();
            }
            // Before the pipes: the end of a world is told before the next one writes.
            self.listen_to_agent();
            self.look_at_tasks();
            let now = job_time::now();
            if ready.iter().any(|ready| matches!(ready, Ready::Pipes)) {
                self.take_pipes(now);
            }
            for ready in ready {
                match ready {
                    Ready::Source(key) => self.output.read(key, now),
                    Ready::Input => {
                        if self.input.read() {
                            self.tell_input_grew();
                        }
                    }
                    Ready::Signals | Ready::Orders | Ready::Agent | Ready::Tasks | Ready::Pipes | Ready::Written => {}
                }
            }
            self.sweep_step();
            if self.input.waits_for_terminal() {
                self.input.look_at_terminal();
            }
            self.tell_room();
            if let Some(sentence) = self.input.trouble() {
                self.output.say(&format!("ftrun: {sentence}"));
            }
            if let Some(agent) = self.agent.as_mut().filter(|agent| agent.until.is_some_and(|until| now >= until)) {
                agent.until = None;
                ft_sys::process::kill(agent.pid, nix::libc::SIGKILL);
            }
            self.output.tick(now);
            self.look_at_limit(now);
            self.look_at_cancelled(now);
            self.ask_helpers();
            if self.has_left(now) {
                return self.leave();
            }
        }
    }

    fn wait(&self) -> io::Result<Vec<Ready>> {
        let mut waited = vec![(Ready::Signals, PollFd::new(self.signals.as_fd(), PollFlags::POLLIN))];
        if let Some(link) = self.agent.as_ref().and_then(|agent| agent.link.as_ref()) {
            waited.push((Ready::Agent, PollFd::new(link.as_fd(), PollFlags::POLLIN)));
        }
        if let Some(part) = self.part.as_ref().filter(|part| part.is_open()) {
            waited.push((Ready::Orders, PollFd::new(part.as_fd(), PollFlags::POLLIN)));
        }
        let stdin = io::stdin();
        if self.input.wants_to_read() && self.ending.is_none() {
            waited.push((Ready::Input, PollFd::new(stdin.as_fd(), PollFlags::POLLIN)));
        }
        for (key, fd) in self.output.readable() {
            waited.push((Ready::Source(key), PollFd::new(fd, PollFlags::POLLIN)));
        }
        for shepherd in self.shepherds.values() {
            waited.extend(
                shepherd.pipes.iter().map(|pipes| (Ready::Pipes, PollFd::new(pipes.as_fd(), PollFlags::POLLIN))),
            );
            if let Some(task) = &shepherd.task {
                waited.extend(
                    [task.as_fd(), shepherd.lifeline.as_fd()]
                        .map(|fd| (Ready::Tasks, PollFd::new(fd, PollFlags::POLLIN))),
                );
            }
        }
        waited.push((Ready::Written, PollFd::new(self.output.written(), PollFlags::POLLIN)));
        let (of, mut fds): (Vec<Ready>, Vec<PollFd<'_>>) = waited.into_iter().unzip();
        match poll(&mut fds, self.patience()) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(Vec::new()),
            Err(errno) => return Err(errno.into()),
        }
        Ok(of.into_iter().zip(&fds).filter(|(_, fd)| fd.any().unwrap_or(true)).map(|(ready, _)| ready).collect())
    }

    fn patience(&self) -> PollTimeout {
        let now = job_time::now();
        // What is asked every second is asked whatever time it is for the job.
        let asked = self.beat.next().saturating_duration_since(Instant::now());
        let deadlines = [
            self.output.deadline(),
            self.output_until,
            self.cancelled.filter(|_| self.ending.is_none()).map(|cancelled| cancelled.deadline()),
            self.limit.deadline().filter(|_| self.ending.is_none() && self.cancelled.is_none()),
            self.ending.as_ref().filter(|_| self.has_children()).map(|ending| ending.until),
            self.orphans.as_ref().map(|_| now + LOOK_AGAIN),
            self.agent.as_ref().and_then(|agent| agent.until),
            (self.ending.is_none() && self.input.waits_for_room()).then(|| now + ROOM_AGAIN),
            (self.ending.is_none() && self.input.waits_for_terminal()).then(|| now + TERMINAL_AGAIN),
        ];
        let left = deadlines.into_iter().flatten().min().map_or(Duration::MAX, job_time::until);
        let left = if self.ending.is_none() { left.min(asked) } else { left };
        ft_sys::patience::at_most(job_time::piece(left))
    }

    fn has_children(&self) -> bool {
        self.agent.is_some() || !self.shepherds.is_empty()
    }

    fn signal(&mut self, meaning: Meaning) {
        match meaning {
            Meaning::Child => family::reap().into_iter().for_each(|(pid, end)| self.buried(pid, end)),
            Meaning::End(signal) => self.cancel(signal, job_time::now()),
            Meaning::Forward(signal) => self.tell(&ToAgent::Signal(signal)),
            Meaning::Continue => {
                self.front.goes_on();
                job_time::go_on();
                self.input.look_at_terminal();
                self.tell(&ToAgent::Signal(nix::libc::SIGCONT));
            }
            Meaning::Stop => {
                self.tell(&ToAgent::Signal(nix::libc::SIGTSTP));
                job_time::stop();
                // It cannot fail; SIGCONT brings this process back to this line.
                let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP);
                job_time::go_on();
            }
        }
    }

    /// The job is to end: the ranks hear it first. Another signal ends it by force.
    fn cancel(&mut self, signal: i32, now: Instant) {
        // As in the agent.
        job_time::go_on();
        match &self.cancelled {
            None => {
                self.cancelled = Some(Cancelled::new(signal, self.options.grace, now));
                self.tell(&ToAgent::Cancel { signal });
            }
            Some(first) if first.is_another(now) => {
                self.give_up(128 + signal, &format!("{} came again: everything was killed", signals::name(signal)));
            }
            Some(_) => {}
        }
    }

    fn look_at_limit(&mut self, now: Instant) {
        if self.ending.is_none()
            && self.cancelled.is_none()
            && let Some(sentence) = self.limit.passes(now)
        {
            self.output.say(&format!("ftrun: {sentence}"));
            self.cancel(nix::libc::SIGTERM, now);
        }
    }

    fn look_at_cancelled(&mut self, now: Instant) {
        let Some(cancelled) = self.cancelled.as_mut().filter(|_| self.ending.is_none()) else { return };
        let signal = cancelled.signal;
        if let Some(sentence) = cancelled.sentence(now) {
            // The launcher above all parts says it once.
            if self.part.is_none() {
                self.output.say(&format!("ftrun: {sentence}"));
            }
        } else if cancelled.is_overdue(now) {
            self.give_up(128 + signal, "the agent did not end the job in time: everything was killed");
        }
    }

    /// Sends the agent a message. One that is dead is noticed elsewhere; one that does not read is replaced.
    fn tell(&mut self, message: &ToAgent) {
        // What it is told first says it all.
        let Some(agent) = self.agent.as_mut().filter(|agent| agent.described) else { return };
        if let Some(Err(ChannelError::TimedOut(_))) = agent.link.as_mut().map(|link| link.send(message, &[])) {
            agent.hang_up();
            self.output.say("ftrun: the agent has read nothing for 10 s and is replaced by another one");
        }
    }

    /// Takes the pipes of processes that have been started.
    fn take_pipes(&mut self, now: Instant) {
        for (slot, shepherd) in &mut self.shepherds {
            // One that is dead is buried soon; what it sent before is here.
            shepherd.take_pipes(*slot, &mut self.output, now);
        }
    }

    fn tell_input_grew(&mut self) {
        for shepherd in self.shepherds.values_mut() {
            // One byte that was not read yet is as good as two.
            let _ = shepherd.lifeline.write(&[Lifeline::GREW]);
        }
    }

    fn listen_to_agent(&mut self) {
        self.describe_job();
        loop {
            let Some(agent) = self.agent.as_mut().filter(|agent| agent.described) else { return };
            let Some(link) = &mut agent.link else { return };
            match link.try_receive::<ToLauncher>() {
                Ok(Some((message, _))) => self.agent_says(message),
                Ok(None) => return,
                Err(error) => {
                    // An agent that nobody hears is of no use; its end starts the next one, or says why there is none.
                    agent.hang_up();
                    self.verbose(|| format!("the agent's link: {error}"));
                    return;
                }
            }
        }
    }

    fn agent_says(&mut self, message: ToLauncher) {
        match message {
            ToLauncher::NeedSlot => {
                let slot = self.own_slot();
                self.add_slot(slot);
            }
            ToLauncher::Input { world, here } => self.input.is_read_here(here.then_some(world)),
            ToLauncher::MakeSlot { slot } => self.add_slot(slot),
            ToLauncher::Drain { world } => {
                let now = job_time::now();
                self.take_pipes(now);
                self.output.end_world(world, now);
                self.tell(&ToAgent::Drained { world });
            }
            ToLauncher::Restores { world, restored } => self.output.restores(world, restored),
            ToLauncher::Recovered { epoch, block, toll } => {
                self.tolls.told(*toll, job_time::now());
                self.reported = epoch;
                self.output.announce(epoch, block);
            }
            ToLauncher::Here { absent, complete } => self.agent_is_here(absent, complete),
            ToLauncher::Arenas => self.arenas = true,
            ToLauncher::Mpi => self.mpi = true,
            ToLauncher::Complete { version } => self.got_on(version),
            ToLauncher::Toll(toll) => self.tolls.told(*toll, job_time::now()),
            ToLauncher::Unreported { epoch, block, toll } => {
                self.tolls.unreported(epoch, block, *toll, job_time::now());
            }
            ToLauncher::Injections(pending) => self.tolls.asked_for(pending, Instant::now()),
            ToLauncher::Notice(text) => self.output.notice(&text),
            ToLauncher::NoticeOnce(text) => {
                self.output.notice(&text);
                self.tolls.said_once(text);
            }
            ToLauncher::Happened(event) => self.tolls.happened(event),
            ToLauncher::End { status, reason, left_out, unrecorded } => {
                self.end(status, reason, Says::read(left_out, unrecorded));
            }
        }
    }

    fn add_slot(&mut self, slot: Slot) {
        match self.start_shepherd(slot) {
            Ok(()) => {
                let pid = self.shepherds.get(&slot).map_or(0, |shepherd| shepherd.pid);
                self.tell(&ToAgent::SlotAdded { slot, pid });
            }
            Err(error) => self.give_up(1, &error.to_string()),
        }
    }

    /// This version is complete. Deaths before a newer one led somewhere.
    fn got_on(&mut self, version: Version) {
        if self.complete < Some(version) {
            self.complete = Some(version);
            self.agent_deaths.forget();
            self.shepherd_failures.forget();
        }
    }

    /// The job is over: everybody may go.
    fn end(&mut self, status: i32, reason: Option<String>, says: Says) {
        if self.ending.is_none() {
            // What is over does not wait until the user lets it go on.
            job_time::go_on();
            self.said_by_agent = Some(says);
            // The others are there, and have agreed on that: whom this node does not reach says nothing of who is gone.
            self.part.iter_mut().filter(|_| says == Says::LeftOut).for_each(|part| part.batch = None);
            self.ending = Some(Ending::new(status, reason, job_time::now() + LEAVE));
            if let Some(agent) = &mut self.agent {
                agent.link = None;
            }
            for shepherd in self.shepherds.values_mut() {
                shepherd.hear();
                self.lost_output |= shepherd.lost_output;
                let _ = shepherd.lifeline.write(&[Lifeline::OVER]);
                // A task has an answer to that.
                if shepherd.task.is_none() {
                    let _ = shepherd.lifeline.shutdown(std::net::Shutdown::Both);
                }
            }
        }
    }

    /// Ends the job without the agent.
    fn give_up(&mut self, status: i32, sentence: &str) {
        job_time::go_on();
        family::end_all(LEAVE);
        self.report_in_its_place();
        self.summarize();
        if self.has_tasks() {
            self.empty_tasks();
        }
        self.take_pipes(job_time::now());
        let left = ft_sys::litter::Litter::of_job(Path::new(&self.spec.job_dir)).sweep(ft_sys::litter::End::Killed);
        if let Some(sentence) = left.sentence() {
            self.output.say(&format!("ftrun: {sentence}"));
        }
        self.agent = None;
        self.shepherds.clear();
        self.orphans = None;
        self.ending = Some(Ending::new(status, Some(sentence.to_string()), job_time::now()));
    }

    /// Whether there is nothing of the job on other nodes.
    fn is_alone(&self) -> bool {
        self.spec.cluster.as_ref().is_none_or(|cluster| cluster.nodes.len() < 2)
    }

    /// What ends with this process. Whether the others of a job can go on without it they know themselves.
    fn cannot_go_on(&self) -> &'static str {
        if self.is_alone() { "the job cannot go on" } else { "this node's part of the job cannot go on" }
    }

    /// What the job's failures have cost, in the place of an agent that does not say so any more. Where there are others they do.
    fn summarize(&mut self) {
        let alone = self.is_alone();
        if let Some(sentence) = self.tolls.sentence(self.spec.summary).filter(|_| alone) {
            self.output.notice(&format!("summary   {sentence}"));
        }
    }

    /// A child of this process is gone.
    fn buried(&mut self, pid: i32, end: End) {
        if self.agent.as_ref().is_some_and(|agent| agent.pid == pid) {
            // Its last words may have been that the job is over.
            self.listen_to_agent();
            self.agent = None;
            self.agent_died(end);
        } else if let Some(slot) = self.shepherds.iter().find(|(_, s)| s.pid == pid).map(|(slot, _)| *slot) {
            let dialled = self.shepherds.remove(&slot).is_some_and(|mut shepherd| {
                shepherd.take_pipes(slot, &mut self.output, job_time::now());
                shepherd.hear();
                self.lost_output |= shepherd.lost_output;
                shepherd.dialled
            });
            self.died += usize::from(dialled);
            self.shepherd_died(slot, end);
        }
    }

    fn agent_died(&mut self, end: End) {
        if self.ending.is_some() {
            return;
        }
        let now = job_time::now();
        if let Some(Cancelled { signal, .. }) = self.cancelled {
            // Its shepherds have killed the ranks by now, and nothing recovers.
            let (name, words) = (signals::name(signal), end.words());
            return self
                .give_up(128 + signal, &format!("the job was cancelled by {name}, and its agent died ({words})"));
        }
        if end == End::Status(1) {
            // It has said why, and would say it again.
            return self.give_up(1, &format!("{} without its agent", self.cannot_go_on()));
        }
        if self.agent_deaths.too_many(now) {
            let (words, times) = (end.words(), self.agent_deaths.words());
            return self.give_up(1, &format!("the agent died of {words} again, {times}: {}", self.cannot_go_on()));
        }
        self.agent_end = Some(end);
        self.report_in_its_place();
        self.before = Some(self.before(now));
        self.orphans = Some(Orphans::of_job(Path::new(&self.spec.job_dir)));
        self.sweep_step();
    }

    /// The agent has died before it said of a recovery that it was over.
    fn report_in_its_place(&mut self) {
        if let Some((epoch, block)) = self.tolls.take_unreported() {
            self.reported = epoch;
            self.output.announce(epoch, block);
        }
    }

    /// What the next agent is told of one that has died now.
    fn before(&self, now: Instant) -> Before {
        let toll = self.tolls.now(now);
        // What another node has printed is told as well.
        let reported = self.reported.max(toll.sums.over);
        let injections = self.tolls.pending(Instant::now());
        let (died, (history, said)) = (ft_sys::process::micros_since_boot(), self.tolls.past());
        Before { died, reported, mpi: self.mpi, toll, injections, history, said }
    }

    fn shepherd_died(&mut self, slot: Slot, end: End) {
        if self.ending.is_some() {
            return;
        }
        self.verbose(|| format!("slot {slot}: the shepherd died ({})", end.words()));
        // One that ends by itself could not do its work, and the next one will not either.
        if matches!(end, End::Status(_)) && self.shepherd_failures.too_many(job_time::now()) {
            return self.give_up(1, &format!("shepherds end again and again: {}", self.cannot_go_on()));
        }
        self.tell(&ToAgent::SlotDying { slot });
        self.lost.push(slot);
        if let Some(agent) = &mut self.agent {
            agent.heard = false;
        }
        self.orphans = Some(Orphans::of_job(Path::new(&self.spec.job_dir)));
        self.sweep_step();
    }

    /// Kills what the dead helpers left; when nothing is left, tells the agent or starts the next one.
    fn sweep_step(&mut self) {
        let own: Vec<i32> =
            self.shepherds.values().map(|s| s.pid).chain(self.agent.as_ref().map(|agent| agent.pid)).collect();
        let Some(orphans) = self.orphans.as_mut() else { return };
        let (age, (gone, late)) = (orphans.age(), orphans.round(&own));
        if let Some(sentence) = late {
            self.lost_output = true;
            self.output.say(&format!("ftrun: {sentence}"));
        }
        if !gone {
            let patience = ft_sys::timescale::scaled(UNKILLABLE);
            if age > patience {
                self.orphans = None;
                if self.ending.is_none() {
                    let left = "the job cannot continue, because what a lost shepherd left is still there";
                    self.give_up(1, &format!("{left} {} s after SIGKILL", patience.as_secs()));
                }
            }
            return;
        }
        self.orphans = None;
        let lost = std::mem::take(&mut self.lost);
        if self.ending.is_some() {
            return;
        }
        if self.agent.is_some() {
            lost.into_iter().for_each(|slot| self.tell(&ToAgent::SlotGone { slot }));
            return;
        }
        // A new agent hears only of the slots that exist.
        let died = self
            .agent_end
            .take()
            .map_or_else(|| "the agent is gone".into(), |end| format!("the agent died ({})", end.words()));
        match self.start_agent() {
            Ok(()) => self.output.say(&format!("ftrun: {died} and was started again")),
            Err(error) => {
                self.output.say(&format!("ftrun: {died}"));
                self.give_up(1, &error.to_string());
            }
        }
    }

    /// Whether the job is over and everybody is gone who belonged to it.
    fn has_left(&mut self, now: Instant) -> bool {
        if self.ending.is_none() {
            return false;
        }
        if self.has_children() {
            if !self.is_overdue(now) {
                return false;
            }
            let sentence = self.overdue();
            self.output.say(&sentence);
            family::end_all(LEAVE);
            self.shepherds.values().filter(|shepherd| shepherd.task.is_some()).for_each(Shepherd::kill);
            self.agent = None;
        }
        self.take_pipes(now);
        self.shepherds.clear();
        true
    }

    /// Whether the time is over of those who have not ended after the job's end. Who has ended is nobody to complain of: the kernel
    /// takes its time over gigabytes that nobody needs any more.
    fn is_overdue(&mut self, now: Instant) -> bool {
        let mut pids =
            self.agent.iter().map(|agent| agent.pid).chain(self.shepherds.values().map(|shepherd| shepherd.pid));
        let gives_back = |pid| ft_sys::death::is_past_user_code(pid).unwrap_or(false);
        let Some(ending) = self.ending.as_mut().filter(|ending| now >= ending.until) else { return false };
        if now >= ending.latest || !pids.all(gives_back) {
            return true;
        }
        ending.until = now + GIVING_BACK;
        false
    }

    /// Who has not ended after the job's end.
    fn overdue(&self) -> String {
        let agent = self.agent.iter().map(|agent| format!("the agent (process {})", agent.pid));
        let shepherds =
            self.shepherds.iter().map(|(slot, s)| format!("the shepherd of slot {slot} (process {})", s.pid));
        let who: Vec<String> = agent.chain(shepherds).take(4).collect();
        let who = if who.is_empty() { "a process of the job".to_string() } else { who.join(", ") };
        format!("ftrun: {who}: still there {} s after the job's end, and killed", LEAVE.as_secs())
    }

    /// The last of all that is said and done.
    fn leave(mut self) -> i32 {
        let tasks = self.part.as_mut().and_then(|part| part.tasks.take());
        let batch = self.part.as_mut().and_then(|part| part.batch.take());
        let status = self.say_the_rest();
        if let Some((batch, link)) = batch {
            // Slurm keeps the step as long as its tasks wait.
            batch.see_to(&link);
        }
        if let Some(tasks) = tasks {
            tasks.dismiss(status);
            ft_sys::gate::reach("part.dismissed", None);
        }
        status
    }

    /// The last of the output, the last sentence, and the status.
    fn say_the_rest(mut self) -> i32 {
        // Strays of shepherds that had to be killed at the end.
        let mut sweep = Sweep::default();
        let until = job_time::now() + LEAVE;
        while !sweep.round(&[]) && !sweep.is_refused() && job_time::now() < until {
            family::reap();
            std::thread::sleep(LOOK_AGAIN);
        }
        family::reap();
        let left = ft_sys::unkillable::sentence(&ft_sys::sweep::unkillable());
        let now = job_time::now();
        self.output.read_all(now);
        self.output.finish(now);
        let (status, reason) = self.ending.as_mut().map_or((1, None), |ending| (ending.status, ending.reason.take()));
        let status = self.limit.status(status);
        if self.part.is_none()
            && let Some(reason) = &reason
        {
            self.output.say(&format!("ftrun: {reason}"));
        }
        if let Some(sentence) = left {
            self.output.say(&format!("ftrun: {sentence}"));
        }
        // Whoever reads slowly, or not at all, holds up nothing but this process: nothing else is left when it is killed.
        self.directory.remove();
        if let Some(part) = &mut self.part {
            // It is all said; whoever has gone is noticed by who writes.
            part.close();
            let (says, lost_output) = (self.said_by_agent, self.lost_output);
            let (of_job, unrecorded) = (says == Some(Says::Job), says == Some(Says::Unrecorded));
            self.output.send(&FromPart::Ended { status, of_job, unrecorded, lost_output, reason });
        }
        // Who has asked for the end does not want to wait for a reader that stands still.
        self.output_until = self.cancelled.map(|_| now + ft_sys::timescale::scaled(LEAVE));
        if let Err(signal) = self.write_out() {
            return 128 + signal;
        }
        let losses = self.output.losses();
        if losses.is_empty() {
            return if self.lost_output { status.max(1) } else { status };
        }
        losses.iter().for_each(|sentence| self.output.say_loss(&format!("ftrun: {sentence}")));
        // The other stream may be read.
        self.output_until = self.output_until.map(|_| job_time::now() + ft_sys::timescale::scaled(LAST_WORDS));
        let _ = self.write_out();
        // What the job said of itself is worth more.
        if status == 0 { 1 } else { status }
    }

    /// Waits as long as somebody reads, slowly as it may be. A signal ends it.
    fn write_out(&mut self) -> Result<(), i32> {
        self.output.tick(job_time::now());
        while !self.output.all_written() && self.output_until.is_none_or(|until| job_time::now() < until) {
            let Ok(ready) = self.wait() else { break };
            if ready.iter().any(|ready| matches!(ready, Ready::Signals)) {
                let now = job_time::now();
                while let Some(meaning) = self.signals.next() {
                    match meaning {
                        Meaning::End(signal) if self.cancelled.is_none_or(|first| first.is_another(now)) => {
                            return Err(signal);
                        }
                        Meaning::End(_) => {}
                        other => self.signal(other),
                    }
                }
            }
            self.output.tick(job_time::now());
        }
        Ok(())
    }
}
