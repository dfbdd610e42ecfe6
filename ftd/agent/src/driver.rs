//! The one task that owns the agent's state: it turns what happens into events of ftd-core's state machine and carries
//! out the effects that come back.

use crate::arenas::Arenas;
use crate::below::Below;
use crate::files;
use crate::link::{Incoming, Link};
use crate::loners::{Loner, Search};
use crate::pmix_host::{HostId, PmixHost};
use crate::watcher::Watcher;
use crate::world::{Member, Vitals, World};
use ft_store::{Embedded, Expected, Store, StoreError, decode_record, encode_record};
use ft_sys::individual::Held;
use ft_sys::litter::{End, Litter};
use ft_sys::peer::Peer;
use ft_wire::launcher::{self, JobSpec};
use ft_wire::{Epoch, Rank, Slot, Version, World as WorldNumber};
use ft_wire::{client, pmix, rank, shepherd};
use ftd_core::{Agent, Effect, EpochId, Event, Limit, Micros, NodeId, Process, Revision, SlotId, WorldId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

mod client_side;
mod effects;
mod loner_side;
mod mpi_side;
mod pmi_side;
mod pmix_side;

/// Connections that may be without a preamble, or wait for the driver to hear of them.
const MOST_PENDING: usize = 32;
/// Connections of which it may not be known whose they are, besides two for each rank.
const MOST_STRANGERS: usize = 16;
/// Sentences about processes that do not belong to the job.
const MOST_SAID: usize = 8;

/// Names one accepted connection; never reused.
pub type ConnectionId = u64;

/// Everything that can happen to the agent.
#[derive(Debug)]
pub enum Input {
    /// The launcher says something.
    Launcher(launcher::ToAgent),
    /// The launcher is gone.
    LauncherClosed,
    /// Somebody dialled.
    Opened(ConnectionId, Link, Peer),
    /// A shepherd says something.
    Shepherd(ConnectionId, shepherd::ToAgent, Vec<OwnedFd>),
    /// A rank's preload says something.
    Rank(ConnectionId, rank::ToAgent),
    /// A rank's client library says something.
    Client(ConnectionId, client::ToAgent),
    /// A dialler is gone, or sent nonsense.
    Closed(ConnectionId),
    /// An `ft-pmix` says something.
    Pmix {
        /// Which.
        host: HostId,
        /// What.
        message: pmix::ToAgent,
    },
    /// An `ft-pmix` is gone.
    PmixClosed {
        /// Which.
        host: HostId,
        /// Why, for people.
        reason: String,
    },
    /// A rank sent bytes on its `PMI_FD`; none: it closed it.
    Pmi(WorldNumber, Rank, Vec<u8>),
    /// A rank's robust futex says that it is dying, and the kernel agrees; with the raw wait status of one below a wrapper, if
    /// that is known.
    Dying(WorldNumber, Rank, Option<i32>),
    /// A rank that is no shepherd's direct child is gone.
    RankGone(WorldNumber, Rank),
    /// It is time to look whether ranks of this world are alone.
    LookForLoners(WorldNumber, Search),
    /// That was done, and perhaps one was found.
    LookedForLoners(WorldNumber, Search, Option<Loner>),
    /// It is time to look whether ranks whose places were full still wait.
    PlacesFull,
    /// The checksum of a place was computed.
    Hashed(crate::arenas::Hashed),
    /// The frozen inventory of an ended world is verified.
    InventoryVerified(Epoch, crate::arenas::Verified),
    /// A timer that ftd-core asked for.
    Timer,
    /// A peer did something that people must hear of; its connection is being closed.
    Trouble(ConnectionId, String),
    /// What a peer said, with the room that it takes in the queue until it has been dealt with.
    Metered(Box<Input>, OwnedSemaphorePermit),
}

#[derive(Debug)]
struct Shepherd {
    connection: ConnectionId,
    link: Link,
}

#[derive(Debug)]
enum Dialler {
    Unknown(Link, Peer),
    Shepherd(Slot),
    Rank(WorldNumber, Rank),
    Client(WorldNumber, Rank),
}

/// The agent of one job on one node.
pub struct Driver {
    spec: JobSpec,
    core: Agent,
    store: Embedded,
    launcher: Link,
    inputs: UnboundedSender<Input>,
    events: VecDeque<Event>,
    diallers: BTreeMap<ConnectionId, Dialler>,
    shepherds: BTreeMap<Slot, Shepherd>,
    /// Slots that exist, whether their shepherds have dialled in or not.
    slots: BTreeMap<Slot, i32>,
    /// Shepherds that dialled before the launcher has named them: connection, slot and what they hold.
    early: Vec<(ConnectionId, Slot, Vec<Rank>, Vec<OwnedFd>)>,
    worlds: BTreeMap<WorldNumber, World>,
    /// Dead ranks of worlds that are buried, whose wrappers the kernel has not let go of yet.
    departed: BTreeMap<(WorldNumber, Rank), Below>,
    arenas: Arenas,
    files: files::Watch,
    watcher: Watcher,
    warm_pmix: Option<PmixHost>,
    next_host: HostId,
    beat: ft_sys::pulse::Beat,
    speaks_pmix: bool,
    processors: usize,
    restore: Option<(Epoch, Option<crate::arenas::Commit>)>,
    failures: u32,
    versions: crate::versions::Versions,
    full_places: crate::full_places::FullPlaces,
    /// What the newest world found in `$FT_CHECKPOINT_DIR`.
    restart_files: crate::restart_files::RestartFiles,
    started: std::time::Instant,
    timer: Option<tokio::task::AbortHandle>,
    /// Released, and not all of its processes are known to have started.
    releasing: Option<WorldNumber>,
    ended: Option<(i32, Option<String>)>,
    /// What shepherds wanted said, once.
    noticed: BTreeSet<String>,
    /// What was said of processes that do not belong to the job.
    strangers: BTreeSet<String>,
}

/// Time that ftd-core reckons in; it goes on while the machine is suspended.
pub fn now() -> Micros {
    let time =
        nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).unwrap_or(nix::sys::time::TimeSpec::new(0, 0));
    Micros(time.tv_sec() as u64 * 1_000_000 + time.tv_nsec() as u64 / 1_000)
}

impl Driver {
    /// Makes the agent from the launcher's first message.
    ///
    /// # Errors
    /// When the job's directory or the store cannot be used.
    pub fn new(
        spec: JobSpec,
        store: Embedded,
        notices: OwnedFd,
        launcher: Link,
        inputs: UnboundedSender<Input>,
    ) -> Result<Driver, crate::AgentError> {
        let job_dir = spec.job_dir.clone();
        let at = |path: &Path| {
            let path = path.to_path_buf();
            move |error| crate::AgentError::JobDir { path, error }
        };
        let files = files::Watch::start(&job_dir, notices).map_err(at(&job_dir))?;
        let watcher = Watcher::start(inputs.clone()).map_err(crate::AgentError::Io)?;
        let core = Agent::new(NodeId(0), crate::config::job_config(&spec)?);
        Ok(Driver {
            arenas: Arenas::new(spec.world_size, inputs.clone()),
            core,
            store,
            launcher,
            inputs,
            events: VecDeque::new(),
            diallers: BTreeMap::new(),
            shepherds: BTreeMap::new(),
            slots: BTreeMap::new(),
            early: Vec::new(),
            worlds: BTreeMap::new(),
            departed: BTreeMap::new(),
            files,
            watcher,
            warm_pmix: None,
            next_host: 1,
            beat: ft_sys::pulse::Beat::new(std::time::Instant::now()),
            speaks_pmix: spec.expect_pmix && spec.linked_in != Some(ft_wire::Flavour::Mpich),
            processors: std::thread::available_parallelism().map_or(usize::MAX, usize::from),
            restore: None,
            failures: 0,
            versions: crate::versions::Versions::default(),
            full_places: crate::full_places::FullPlaces::default(),
            restart_files: crate::restart_files::RestartFiles::default(),
            started: std::time::Instant::now(),
            timer: None,
            releasing: None,
            ended: None,
            noticed: BTreeSet::new(),
            strangers: BTreeSet::new(),
            spec,
        })
    }

    /// Runs the job to its end; returns when the launcher has been told and the links are flushed.
    pub async fn run(&mut self, slots: Vec<(Slot, i32)>, mut inputs: UnboundedReceiver<Input>) {
        self.warm_up();
        self.slots.extend(slots.iter().copied());
        if self.store.is_volatile() {
            let sentence = "the file-size limit (ulimit -f) leaves no room to keep the job's record outside of the agent: should the agent \
                 die, no other one could go on with the job";
            self.notice(sentence.into());
        }
        self.report(Event::Start { slots: slots.into_iter().map(|(slot, _)| SlotId(slot)).collect() });
        self.settle().await;
        while self.ended.is_none() {
            let Some(input) = inputs.recv().await else { break };
            if matches!(input, Input::LauncherClosed) {
                tracing::warn!("the launcher is gone: the job ends");
                let directory = ft_sys::job_dir::Proven::recognise(&self.spec.job_dir);
                let ended = tokio::task::spawn_blocking(move || {
                    let held = directory.as_ref()?.wait_abandoned(Duration::from_millis(500))?;
                    directory.as_ref().inspect(|directory| ft_sys::stray::end_strays(directory));
                    directory.as_ref()?.group().inspect(|group| group.remove(Duration::from_millis(500)));
                    directory.map(|directory| (directory, held))
                });
                let abandoned = ended.await.ok().flatten();
                self.clean_up(End::Killed).await;
                abandoned.inspect(|(directory, _)| directory.remove(Duration::from_millis(100)));
                return;
            }
            self.take(input).await;
        }
        if let Some((status, reason)) = self.ended.take() {
            let end = match self.worlds.keys().next_back() {
                Some(world) if status == 0 => End::Well(*world),
                Some(world) => End::Own(*world),
                None => End::Killed,
            };
            self.clean_up(end).await;
            self.launcher.send(&launcher::ToLauncher::End { status, reason });
            let closed = async { while !matches!(inputs.recv().await, None | Some(Input::LauncherClosed)) {} };
            let _ = tokio::time::timeout(Duration::from_secs(5), closed).await;
        }
    }

    fn report(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Feeds ftd-core all that was reported, and all that follows from it.
    async fn settle(&mut self) {
        while let Some(event) = self.events.pop_front() {
            tracing::debug!(?event, "event");
            for effect in self.core.step(now(), event) {
                tracing::debug!(?effect, "effect");
                self.carry_out(effect).await;
            }
        }
    }

    async fn take(&mut self, input: Input) {
        let (input, _room) = match input {
            Input::Metered(input, room) => (*input, Some(room)),
            other => (other, None),
        };
        match input {
            Input::Metered(..) => {}
            Input::Trouble(connection, sentence) => self.trouble(connection, &sentence),
            Input::Launcher(message) => self.launcher_says(message),
            Input::LauncherClosed => {}
            Input::Opened(connection, link, peer) => self.opened(connection, link, peer),
            Input::Shepherd(connection, message, fds) => self.shepherd_says(connection, message, fds),
            Input::Rank(connection, message) => self.rank_says(connection, message),
            Input::Client(connection, message) => self.client_says(connection, message),
            Input::Closed(connection) => self.dialler_left(connection),
            Input::Pmix { host, message } => self.pmix_says(host, message),
            Input::PmixClosed { host, reason } => self.pmix_left(host, &reason),
            Input::Pmi(world, rank, bytes) => self.pmi_says(world, rank, &bytes),
            Input::Dying(world, rank, status) => self.rank_is_dying(world, rank, status),
            Input::RankGone(world, rank) => self.rank_is_gone(world, rank),
            Input::LookForLoners(world, search) => self.look_for_loners(world, search),
            Input::LookedForLoners(world, search, loner) => self.looked_for_loners(world, search, loner),
            Input::PlacesFull => self.places_full(),
            Input::Hashed(hashed) => self.place_hashed(hashed),
            Input::InventoryVerified(epoch, verified) => self.inventory_verified(epoch, verified),
            Input::Timer => self.report(Event::Timer),
        }
        self.settle().await;
    }

    fn launcher_says(&mut self, message: launcher::ToAgent) {
        match message {
            launcher::ToAgent::Job { .. } => tracing::warn!("the launcher described the job twice"),
            launcher::ToAgent::SlotGone { slot } => {
                self.slots.remove(&slot);
                if let Some(shepherd) = self.shepherds.remove(&slot) {
                    self.diallers.remove(&shepherd.connection);
                    self.arenas.forget_keeper(shepherd.connection);
                    self.spread_arenas();
                }
                self.slot_emptied(slot);
                self.report(Event::SlotLost(SlotId(slot)));
            }
            launcher::ToAgent::SlotAdded { slot, pid } => {
                self.slots.insert(slot, pid);
                self.report(Event::SlotAdded(SlotId(slot)));
                for (connection, slot, ranks, fds) in std::mem::take(&mut self.early) {
                    self.shepherd_dialled(connection, slot, ranks, fds);
                }
            }
            launcher::ToAgent::Ask => {
                let absent = self.slots.keys().filter(|slot| !self.shepherds.contains_key(slot)).copied().collect();
                let complete = self.arenas.ranks().len() == self.spec.world_size as usize;
                self.launcher.send(&launcher::ToLauncher::Here { absent, complete });
                self.ask_pmix();
            }
            launcher::ToAgent::Silent { slots } => {
                self.report(Event::SlotsSilent(slots.into_iter().map(SlotId).collect()));
            }
            launcher::ToAgent::Signal(signal) => self.to_all_shepherds(&shepherd::ToShepherd::Signal(signal)),
            launcher::ToAgent::Cancel { signal } => self.report(Event::Cancel { signal }),
            launcher::ToAgent::Drained { world } => self.report(Event::Drained(WorldId(world))),
        }
    }

    fn to_all_shepherds(&self, message: &shepherd::ToShepherd) {
        for shepherd in self.shepherds.values() {
            shepherd.link.send(message);
        }
    }

    fn shepherd_says(&mut self, connection: ConnectionId, message: shepherd::ToAgent, fds: Vec<OwnedFd>) {
        let slot = match (&message, self.diallers.get(&connection)) {
            (shepherd::ToAgent::Hello { slot, .. }, Some(Dialler::Unknown(..))) => *slot,
            (_, Some(Dialler::Shepherd(slot))) => *slot,
            _ => return tracing::warn!(connection, ?message, "a message out of turn"),
        };
        match message {
            shepherd::ToAgent::Hello { slot, arenas, .. } => self.shepherd_dialled(connection, slot, arenas, fds),
            shepherd::ToAgent::Started { world, rank, pid } => {
                if let Some(member) = self.member(world, rank) {
                    member.child = Some(pid);
                    let process = member.process;
                    self.files.started(pid);
                    self.report(Event::Started(process));
                    self.world_started(world);
                    if rank == 0 {
                        self.rest_before_loners(world, Search::default());
                    }
                }
            }
            shepherd::ToAgent::StartFailed { world, rank, errno, what } => {
                let reason = match errno {
                    0 => what,
                    _ => format!("{what}: {}", std::io::Error::from_raw_os_error(errno)),
                };
                if let Some(member) = self.member(world, rank) {
                    member.ended = true;
                    let process = member.process;
                    let status = if errno == nix::libc::ENOENT { 127 } else { 126 };
                    self.report(Event::StartFailed { process, reason, status });
                }
            }
            shepherd::ToAgent::Notice(text) => {
                if self.noticed.insert(text.clone()) {
                    self.notice(text);
                }
            }
            shepherd::ToAgent::Orphaned { world, rank, pid, heir } => {
                tracing::info!(world, rank, pid, "a wrapper ended and its rank lives on");
                if let Some(member) = self.member(world, rank) {
                    member.child = Some(heir);
                }
                self.files.ended_well(pid);
            }
            shepherd::ToAgent::Exited { world, rank, pid, status, oom, cpu_limit } => {
                let limit = if oom { Some(Limit::Memory) } else { cpu_limit.then_some(Limit::CpuTime) };
                self.child_ended(world, rank, pid, status, limit)
            }
            shepherd::ToAgent::Emptied { world } => {
                if self.worlds.get(&world).is_some_and(|w| w.occupied.contains(&slot)) {
                    self.slot_emptied(slot);
                }
            }
        }
    }

    /// Somebody says that it is the shepherd of a slot: it is, if it is the process that the launcher started as such.
    fn shepherd_dialled(&mut self, connection: ConnectionId, slot: Slot, ranks: Vec<Rank>, fds: Vec<OwnedFd>) {
        let Some(Dialler::Unknown(_, peer)) = self.diallers.get(&connection) else { return };
        let Some(started) = self.slots.get(&slot) else {
            // The launcher's word on a new one may be slower than the shepherd is.
            let twice = self.early.iter().any(|early| early.0 == connection);
            if twice || self.early.len() >= self.spec.world_size as usize {
                return self.turn_away(
                    connection,
                    format!(
                        "process {} says that it is the shepherd of slot {slot}, and there is no such slot",
                        peer.pid
                    ),
                );
            }
            return self.early.push((connection, slot, ranks, fds));
        };
        if peer.pid != *started || peer.held.is_none() {
            return self.turn_away(
                connection,
                format!("process {} says that it is the shepherd of slot {slot}, and is not", peer.pid),
            );
        }
        tracing::info!(slot, pid = peer.pid, "a shepherd dialled");
        let Some(Dialler::Unknown(link, _)) = self.diallers.insert(connection, Dialler::Shepherd(slot)) else { return };
        link.trust();
        for (rank, fd) in ranks.into_iter().zip(fds) {
            self.arenas.adopt(rank, fd, connection);
        }
        self.shepherds.insert(slot, Shepherd { connection, link });
        self.spread_arenas();
        self.report(Event::SlotUp(SlotId(slot)));
    }

    /// What proves that a dialler is a process of this rank: it stands below the shepherd on whose slot the rank is.
    fn proven(&self, world: WorldNumber, rank: Rank, peer: Peer) -> Result<Held, String> {
        let member = self.worlds.get(&world).and_then(|world| world.members.get(&rank));
        let shepherd = member.and_then(|member| self.slots.get(&member.slot));
        let (Some(shepherd), Some(held)) = (shepherd, peer.held) else {
            return Err(format!("the process that would be rank {rank} of world {world}, or its shepherd, is gone"));
        };
        if held.is_below(*shepherd) {
            return Ok(held);
        }
        Err(format!(
            "process {} does not stand below the shepherd {shepherd} of rank {rank}: only what the rank's command has started may join",
            peer.pid
        ))
    }

    /// The first moment after a release: every process runs.
    fn world_started(&mut self, number: WorldNumber) {
        let all = |world: &World| world.members.values().all(|m| m.child.is_some());
        if self.releasing == Some(number) && self.worlds.get(&number).is_some_and(all) {
            self.releasing = None;
            ft_sys::gate::reach("agent.released", None);
        }
    }

    fn member(&mut self, world: WorldNumber, rank: Rank) -> Option<&mut Member> {
        self.worlds.get_mut(&world)?.members.get_mut(&rank)
    }

    fn child_ended(&mut self, world: WorldNumber, rank: Rank, pid: i32, status: i32, limit: Option<Limit>) {
        // With an MPI that nothing was preloaded in front of, nobody has told which process below a wrapper is the rank.
        let told = self.spec.linked_in.is_some() && self.spec.mpi != "auto";
        // The kernel may let go of a process long after its world was buried; how it ended is of interest still.
        let stopping = self.worlds.get(&world).is_some_and(|world| world.stopping);
        let (process, unseen, below) = match self.member(world, rank) {
            Some(member) => {
                member.ended = true;
                let dead = !stopping && member.died_below();
                if dead {
                    member.note_death(None);
                }
                (member.process, dead || (told && member.pid.is_none()), member.below.take())
            }
            None => {
                let below = self.departed.remove(&(world, rank));
                (Process::primary(WorldId(world), ftd_core::Rank(rank)), false, below)
            }
        };
        tracing::debug!(world, rank, status, "child ended");
        if status == 0 {
            self.files.ended_well(pid);
        }
        let (exit, limit) = match below {
            Some(mut below) => below.exit(status, limit),
            None => (crate::config::exit_of(status), limit),
        };
        if unseen && !matches!(exit, ftd_core::Exit::Code(0..=128 | 193..)) {
            // The wrapper tells of a signal below it.
            self.report(Event::Dying(process));
        }
        self.report(Event::Exited { process, exit, limit });
    }

    fn rank_is_dying(&mut self, world: WorldNumber, rank: Rank, status: Option<i32>) {
        ft_sys::gate::reach("agent.dying", Some(rank));
        if let Some(member) = self.member(world, rank)
            && !member.ended
            && !member.exits_by_itself()
        {
            let process = member.process;
            member.note_death(status);
            self.report(Event::Dying(process));
        }
    }

    /// A rank below a wrapper died; ftd is not who waits for it.
    fn rank_is_gone(&mut self, world: WorldNumber, rank: Rank) {
        let Some(member) = self.member(world, rank) else { return };
        if member.exits_by_itself() {
            if let Some(pid) = member.pid.filter(|_| member.exits_well()) {
                self.files.ended_well(pid);
            }
        } else if !member.ended {
            let process = member.process;
            member.note_death(None);
            self.report(Event::Dying(process));
        }
    }

    /// Nothing is left on `slot` of the world that occupied it.
    fn slot_emptied(&mut self, slot: Slot) {
        let mut emptied = Vec::new();
        for world in self.worlds.values_mut() {
            if world.occupied.remove(&slot) && world.stopping && world.occupied.is_empty() {
                emptied.push(world.number);
            }
        }
        for number in emptied {
            self.world_emptied(number);
        }
    }

    /// Somebody has dialled, and has not said yet who it is. There are never more of them than a job has use for.
    fn opened(&mut self, connection: ConnectionId, link: Link, peer: Peer) {
        self.diallers.insert(connection, Dialler::Unknown(link, peer));
        let most = MOST_STRANGERS + 2 * self.spec.world_size as usize;
        let early = |connection: &ConnectionId| self.early.iter().any(|early| early.0 == *connection);
        let unknown =
            self.diallers.iter().filter(|(id, dialler)| matches!(dialler, Dialler::Unknown(..)) && !early(id));
        let unknown: Vec<ConnectionId> = unknown.map(|(id, _)| *id).collect();
        if unknown.len() > most {
            let sentence =
                format!("it is the oldest of more than {most} connections of which nobody says whose they are");
            self.turn_away(unknown[0], sentence);
        }
    }

    /// Ends the connection of who does not belong to the job; one that has died meanwhile needs no words.
    fn turn_away(&mut self, connection: ConnectionId, sentence: String) {
        match self.diallers.remove(&connection) {
            Some(Dialler::Unknown(link, peer)) if peer.held.as_ref().is_some_and(Held::lives) => link.give_up(sentence),
            Some(Dialler::Unknown(link, _)) => link.close(),
            _ => {}
        }
    }

    fn trouble(&mut self, connection: ConnectionId, sentence: &str) {
        let who = match self.diallers.get(&connection) {
            Some(Dialler::Rank(_, rank)) => format!("the MPI library of rank {rank}"),
            Some(Dialler::Client(_, rank)) => format!("the checkpoint library of rank {rank}"),
            Some(Dialler::Shepherd(slot)) => format!("the shepherd of slot {slot}"),
            Some(Dialler::Unknown(..)) | None => return self.stranger(sentence),
        };
        self.notice(format!("{who} is cut off: {sentence}"));
    }

    /// What strangers do is said, but not for ever.
    fn stranger(&mut self, sentence: &str) {
        if self.strangers.len() < MOST_SAID && self.strangers.insert(sentence.to_string()) {
            let last = if self.strangers.len() == MOST_SAID { "; no more is said of such" } else { "" };
            self.notice(format!("a process of this user is cut off: {sentence}{last}"));
        }
    }

    fn dialler_left(&mut self, connection: ConnectionId) {
        self.early.retain(|early| early.0 != connection);
        match self.diallers.remove(&connection) {
            Some(Dialler::Rank(world, rank)) => {
                if let Some(member) = self.member(world, rank) {
                    member.link = None;
                }
            }
            Some(Dialler::Client(world, rank)) => {
                if let Some(member) = self.member(world, rank) {
                    member.client = None;
                    member.awaits_restore = false;
                }
            }
            // The launcher tells when a shepherd is gone, and everything below it.
            Some(Dialler::Shepherd(_) | Dialler::Unknown(..)) | None => {}
        }
    }

    /// Keeps one `ft-pmix` ready for the next world that wants one: its start is no part of a recovery.
    fn warm_up(&mut self) {
        if self.speaks_pmix && self.warm_pmix.is_none() {
            self.warm_pmix = self.start_pmix();
        }
    }

    fn start_pmix(&mut self) -> Option<PmixHost> {
        let id = self.next_host;
        self.next_host += 1;
        let tmpdir = Path::new(&self.spec.job_dir).join("pmix").join(format!("{}-{id}", std::process::id()));
        match PmixHost::start(id, &self.spec.ft_pmix, &tmpdir, self.inputs.clone()) {
            Ok(host) => Some(host),
            Err(error) => {
                self.notice(format!("{} cannot be started: {error}", self.spec.ft_pmix.display()));
                None
            }
        }
    }

    fn notice(&self, text: String) {
        self.launcher.send(&launcher::ToLauncher::Notice(text));
    }

    async fn clean_up(&mut self, end: End) {
        for host in self.warm_pmix.take().into_iter().chain(self.worlds.values_mut().filter_map(|w| w.pmix.take())) {
            host.kill();
        }
        let job_dir = PathBuf::from(&self.spec.job_dir);
        let sweep = move || Litter::of_job(&job_dir).sweep(end).sentence();
        if let Ok(Some(sentence)) = tokio::task::spawn_blocking(sweep).await {
            self.notice(sentence);
        }
    }
}

/// Accepts diallers for ever. Who dials while many others have not said what they are waits in front of the door.
pub async fn accept(listener: tokio::net::UnixListener, inputs: UnboundedSender<Input>) {
    let mut next: ConnectionId = 0;
    let launcher = nix::unistd::getppid().as_raw();
    let pending = Arc::new(Semaphore::new(MOST_PENDING));
    loop {
        let Ok(room) = pending.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::error!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        let own = nix::unistd::Uid::effective().as_raw();
        let peer = match Peer::of(&stream) {
            Ok(peer) if peer.uid == own || peer.uid == 0 => peer,
            _ => {
                tracing::warn!("a process of another user was turned away");
                continue;
            }
        };
        next += 1;
        if let Ok(stream) = stream.into_std() {
            tokio::spawn(serve(next, stream, peer, launcher, room, inputs.clone()));
        }
    }
}

async fn serve(
    connection: ConnectionId,
    stream: UnixStream,
    peer: Peer,
    launcher: i32,
    room: OwnedSemaphorePermit,
    inputs: UnboundedSender<Input>,
) {
    let (role, link, incoming) = match Incoming::open(stream).await {
        Ok(opened) => opened,
        Err(error) => return tracing::warn!(%error, "a dialler was turned away"),
    };
    // Before it sends anything: descriptors and slots are taken from none but the launcher's children.
    if role == ft_wire::Role::Shepherd && !peer.held.as_ref().is_some_and(|held| held.is_child_of(launcher)) {
        if peer.held.is_some_and(|held| held.lives()) {
            let sentence = format!("process {} says that it is a shepherd, and ftrun has not started it", peer.pid);
            let _ = inputs.send(Input::Metered(Box::new(Input::Trouble(connection, sentence)), room));
        }
        return;
    }
    let _ = inputs.send(Input::Metered(Box::new(Input::Opened(connection, link, peer)), room));
    let end = match role {
        ft_wire::Role::Shepherd => relay(incoming, &inputs, |m, fds| Input::Shepherd(connection, m, fds)).await,
        ft_wire::Role::Rank => relay(incoming, &inputs, |m, _| Input::Rank(connection, m)).await,
        ft_wire::Role::Client => relay(incoming, &inputs, |m, _| Input::Client(connection, m)).await,
        other => {
            tracing::warn!(?other, "a dialler of this role has no business here");
            Ok(())
        }
    };
    if let Err(error) = end {
        tracing::debug!(connection, %error, "a connection ended");
        if error.is_trouble() {
            let _ = inputs.send(Input::Trouble(connection, error.to_string()));
        }
    }
    let _ = inputs.send(Input::Closed(connection));
}

/// Moves messages of one connection into the driver's queue.
pub async fn relay<M: serde::de::DeserializeOwned>(
    mut incoming: Incoming,
    inputs: &UnboundedSender<Input>,
    wrap: impl Fn(M, Vec<OwnedFd>) -> Input,
) -> Result<(), crate::link::LinkError> {
    loop {
        let (message, fds, room) = incoming.next_metered::<M>().await?;
        if inputs.send(Input::Metered(Box::new(wrap(message, fds)), room)).is_err() {
            return Ok(());
        }
    }
}
