//! The one task that owns the agent's state: it turns what happens into events of ftd-core's state machine and carries
//! out the effects that come back.

use crate::arenas::Arenas;
use crate::below::Below;
use crate::files;
use crate::link::Link;
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
use ft_wire::{pmix, rank, shepherd};
use ftd_core::{Agent, Effect, EpochId, Event, Micros, NodeId, Predecessor, Process, Revision, SlotId, WorldId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

mod accept;
mod client_side;
mod diallers;
mod effects;
mod input;
mod loner_side;
mod mpi_side;
mod pmi_side;
mod pmix_side;
mod shepherd_side;

pub use accept::{accept, relay};
pub use input::{ConnectionId, Input};

use diallers::Dialler;
use shepherd_side::Shepherd;

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
    /// The libpmix that the next `ft-pmix` runs on, if not on that which it was built for.
    libpmix: Option<PathBuf>,
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
    /// A process of this world called MPI_Init when its rank had ended.
    late: Option<(WorldNumber, String)>,
    /// What shepherds wanted said, once.
    noticed: BTreeSet<String>,
    /// What was said of processes that do not belong to the job.
    strangers: BTreeSet<String>,
}

/// Time that ftd-core reckons in; it goes on while the machine is suspended.
pub fn now() -> Micros {
    Micros(ft_sys::process::micros_since_boot())
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
        before: Option<launcher::Before>,
    ) -> Result<Driver, crate::AgentError> {
        let job_dir = spec.job_dir.clone();
        let at = |path: &Path| {
            let path = path.to_path_buf();
            move |error| crate::AgentError::JobDir { path, error }
        };
        let files = files::Watch::start(&job_dir, notices, spec.mode != "none").map_err(at(&job_dir))?;
        let watcher = Watcher::start(inputs.clone()).map_err(crate::AgentError::Io)?;
        let before = before.map(|before| Predecessor { died: Micros(before.died), reported: EpochId(before.reported) });
        let core = Agent::new(NodeId(0), crate::config::job_config(&spec)?).succeeding(before);
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
            libpmix: None,
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
            late: None,
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
            Input::Launcher(message) => self.launcher_says(*message),
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
            Input::RankGone(world, rank, pid) => self.rank_is_gone(world, rank, pid),
            Input::LookForLoners(world, search) => self.look_for_loners(world, *search),
            Input::LookedForLoners(world, search, loner) => self.looked_for_loners(world, *search, loner),
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
            launcher::ToAgent::SlotDying { slot } => self.report(Event::SlotDying(SlotId(slot))),
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
            launcher::ToAgent::Cancel { signal } => {
                self.hurry_filters();
                self.report(Event::Cancel { signal });
            }
            launcher::ToAgent::Drained { world } => self.report(Event::Drained(WorldId(world))),
        }
    }

    fn member(&mut self, world: WorldNumber, rank: Rank) -> Option<&mut Member> {
        self.worlds.get_mut(&world)?.members.get_mut(&rank)
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
