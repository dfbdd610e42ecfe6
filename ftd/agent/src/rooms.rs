//! The agent's rooms, each of which owns its state, and the few things that concern more than one of them.

use crate::between::Between;
use crate::checkpoints::Checkpoints;
use crate::clients::Clients;
use crate::costs::Costs;
use crate::door::Door;
use crate::elsewhere::Elsewhere;
use crate::error::AgentError;
use crate::files;
use crate::injections::Injections;
use crate::input::{Input, outlet};
use crate::job::Job;
use crate::lease::Lease;
use crate::link::Link;
use crate::lone::Lone;
use crate::pmi::Pmi;
use crate::pmix::Pmix;
use crate::published::Directories;
use crate::restart_files::RestartFiles;
use crate::shepherds::Shepherds;
use crate::unheard::Ears;
use crate::watcher::Watcher;
use crate::ways::Ways;
use crate::wish::Wish;
use crate::worlds::Worlds;
use ft_store::through::Copied;
use ft_sys::job_time;
use ft_wire::between::Leaver;
use ft_wire::launcher::{Before, JobSpec, ToLauncher};
use ft_wire::toll::Toll;
use ft_wire::{Epoch, Rank, Slot, Version, World as WorldNumber};
use ftd_core::{Event, Failure, Micros, WorldId};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc::UnboundedSender;

/// How a rank comes to take no more checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaves {
    /// It has called `ft_finalize`.
    Finalized,
    /// It has ended.
    Ended,
}

impl Leaves {
    fn words(self) -> &'static str {
        match self {
            Leaves::Finalized => "has called ft_finalize",
            Leaves::Ended => "has ended",
        }
    }
}

/// All of them.
#[derive(Debug)]
pub struct Rooms {
    /// What the job is, and whom to tell.
    pub job: Job,
    /// The other nodes, where there are any.
    pub between: Option<Between>,
    /// The store's ways, where there are any.
    pub ways: Option<Ways>,
    /// Connections.
    pub door: Door,
    /// Shepherds and slots.
    pub shepherds: Shepherds,
    /// How long this node may compute.
    pub lease: Lease,
    /// Processes.
    pub worlds: Worlds,
    /// The search for ranks that are alone.
    pub lone: Lone,
    /// Servers for MPIs that speak PMIx.
    pub pmix: Pmix,
    /// Servers for MPIs that speak PMI-1.
    pub pmi: Pmi,
    /// What ranks publish for each other, of worlds for which this node keeps it.
    pub published: Directories,
    /// Who reads what processes say.
    pub ears: Ears,
    /// Checkpoint libraries.
    pub clients: Clients,
    /// Checkpoints.
    pub checkpoints: Checkpoints,
    /// What of copies this node's `ftd` knows.
    pub told: Copied,
    /// The agents of other nodes, for what the job's user asks.
    pub elsewhere: Elsewhere,
    /// Failures that somebody has asked for.
    pub injections: Injections,
    /// What failures cost.
    pub costs: Costs,
    /// The newest epoch of which the launcher has heard how it began before people did.
    pub noted: Epoch,
    /// When the agent before this one died, until that is noted as a failure.
    pub before: Option<(SystemTime, Instant)>,
    /// Deaths that were told before it was known of what they came.
    pub puzzles: Vec<Failure>,
    /// On which the ranks note where in their output they take versions.
    pub printed: OwnedFd,
    /// The program's own restart files.
    pub files: files::Watch,
    /// What the newest world found of those.
    pub restart_files: RestartFiles,
}

impl Rooms {
    /// Of a job that has just been described, of so many nodes.
    ///
    /// # Errors
    /// When the job's directory cannot be used, or there are no threads.
    pub fn new(
        spec: JobSpec,
        (notices, printed): (OwnedFd, OwnedFd),
        launcher: Link,
        (between, ways): (Option<Between>, Option<Ways>),
        nodes: usize,
        (inputs, ears): (&UnboundedSender<Input>, &Ears),
        before: Option<Before>,
    ) -> Result<Rooms, AgentError> {
        let files = files::Watch::start(&spec.job_dir, notices, spec.mode != "none")
            .map_err(|error| AgentError::JobDir { path: spec.job_dir.clone(), error })?;
        let watcher = Watcher::start(outlet(inputs, Input::Dying)).map_err(AgentError::Io)?;
        let died = before.as_ref().map(|before| moment(Micros(before.died)));
        let (toll, past) = before.map(|before| (before.toll, (before.history, before.said))).unzip();
        let job = Job::new(spec, launcher, past.unwrap_or_default());
        let (costs, complete) = toll.zip(died).map(|(toll, (_, died))| Costs::after(toll, died)).unwrap_or_default();
        Ok(Rooms {
            between,
            ways,
            door: Door::default(),
            shepherds: Shepherds::default(),
            lease: Lease::new(nodes).map_err(AgentError::Io)?,
            worlds: Worlds::new(watcher, outlet(inputs, Input::Gone)),
            lone: Lone::new(outlet(inputs, Input::Lone), nodes > 1),
            pmix: Pmix::new(&job, outlet(inputs, Input::Pmix)),
            pmi: Pmi::new(outlet(inputs, Input::Pmi), ears.clone()),
            published: Directories::new(outlet(inputs, Input::Published)),
            ears: ears.clone(),
            clients: Clients::default(),
            checkpoints: Checkpoints::new(&job, nodes, complete, outlet(inputs, Input::Checkpoints)),
            told: Copied::default(),
            elsewhere: Elsewhere::new(outlet(inputs, Input::Elsewhere)),
            injections: Injections::new(outlet(inputs, Input::Injections)),
            costs,
            noted: 0,
            before: died,
            puzzles: Vec::new(),
            printed,
            files,
            restart_files: RestartFiles::default(),
            job,
        })
    }

    /// The launcher hears what failures have cost so far, for the agent that would come after this one.
    pub fn tell_toll(&self) {
        self.job.tell(&ToLauncher::Toll(self.toll()));
    }

    /// That.
    pub fn toll(&self) -> Box<Toll> {
        self.toll_of(&self.costs)
    }

    /// The same, if failures have cost this.
    pub fn toll_of(&self, costs: &Costs) -> Box<Toll> {
        Box::new(costs.toll(self.checkpoints.newest(), job_time::now()))
    }

    /// Nothing of a stopped world is left on this node.
    pub fn world_emptied(&mut self, number: WorldNumber) {
        self.pmix.kill(number);
        self.job.report(Event::WorldEmptied(WorldId(number)));
    }

    /// Nothing is left on `slot` of the world that occupied it.
    pub fn slot_emptied(&mut self, slot: Slot) {
        for number in self.worlds.slot_emptied(slot) {
            self.world_emptied(number);
        }
    }

    /// A process has ended, or its MPI does not speak with its server any more: what may come after it in a script is looked for.
    pub fn seek_loners(&mut self, number: WorldNumber) {
        self.lone.seek(&self.job, &self.worlds, number);
    }

    /// A rank takes no more checkpoints: the others are told, and people, once their later ones are known to be in vain.
    pub fn rank_leaves(&mut self, number: WorldNumber, rank: Rank, last: Option<Version>, how: Leaves) {
        let Some((epoch, alone)) = self.worlds.running(number).map(|world| (world.epoch, world.layout.is_alone()))
        else {
            return;
        };
        if self.clients.rank_leaves(number, rank, last, how.words()) {
            self.checkpoints.rank_leaves(&self.job, epoch, rank, last, how.words());
            if !alone {
                let finalized = how == Leaves::Finalized;
                self.job.wish(number, Wish::Left(Leaver { rank, last, finalized }));
            }
        }
    }

    /// The same of a rank on another node.
    pub fn rank_elsewhere_leaves(&mut self, number: WorldNumber, rank: Rank, last: Option<Version>, how: Leaves) {
        let Some(epoch) = self.worlds.running(number).map(|world| world.epoch) else { return };
        if self.clients.rank_leaves(number, rank, last, how.words()) {
            self.checkpoints.rank_leaves(&self.job, epoch, rank, last, how.words());
        }
    }

    /// Copies of checkpoints may have come: whoever keeps duplicates of arenas is to have those of new ones, and who waited for its state
    /// is told.
    pub fn copies_have_come(&mut self) {
        self.tell_of_numbers();
        self.checkpoints.spread(&self.shepherds);
        for (epoch, rank) in self.checkpoints.take_fetched() {
            if let Some(number) = self.worlds.of_epoch(epoch).map(|world| world.number)
                && self.clients.awaiting(number).contains(&rank)
            {
                self.answer_restore(number, rank);
            }
        }
    }

    /// The node's `ftd` counts what is copied, and what is refused.
    pub fn tell_of_numbers(&mut self) {
        let Some(ways) = self.ways.as_ref() else { return };
        let (refused, stranger) = self.between.as_ref().map(Between::refused).unwrap_or_default();
        let copied = self.checkpoints.copied().unwrap_or_default();
        let numbers = Copied { forged: refused.forged, replayed: refused.replayed, stranger, ..copied };
        if numbers != self.told && ways.tell(numbers.since(self.told)) {
            self.told = numbers;
        }
    }

    /// Tells a rank that waits for its state which version that is, if it is known.
    pub fn answer_restore(&mut self, number: WorldNumber, rank: Rank) {
        let Some(world) = self.worlds.get(number) else { return };
        if let Some(found) = self.checkpoints.found(world.epoch, rank) {
            self.clients.answer_restore(number, rank, found);
        }
    }
}

/// When that was, for people and for the job.
fn moment(then: Micros) -> (SystemTime, Instant) {
    let ago = Duration::from_micros(ft_sys::process::micros_since_boot().saturating_sub(then.0));
    let (day, now) = (SystemTime::now(), job_time::now());
    (day.checked_sub(ago).unwrap_or(day), now.checked_sub(ago).unwrap_or(now))
}
