//! The one task that connects the rooms with ftd-core's state machine: what happens goes to the rooms that it concerns, what they
//! report to ftd-core, and the effects that come back to the rooms again.

use crate::act;
use crate::arenas::Commit;
use crate::between::Between;
use crate::config;
use crate::epochs::Epochs;
use crate::error::AgentError;
use crate::filtered::Filtered;
use crate::hear;
use crate::input::{Input, outlet};
use crate::job::Time;
use crate::layout::Layout;
use crate::link::Link;
use crate::pmix::Follows;
use crate::pmix_host;
use crate::rooms::Rooms;
use crate::timer::Timer;
use crate::together;
use crate::unheard::Ears;
use crate::wait::Looks;
use crate::ways::Ways;
use ft_store::Embedded;
use ft_sys::litter::End;
use ft_wire::Slot;
use ft_wire::cluster::ClusterNode;
use ft_wire::launcher::{Before, JobSpec, ToAgent, ToLauncher};
use ftd_core::agent::{Stage, Standing};
use ftd_core::{
    Agent, Effect, EpochId, Event, Micros, NodeId, PeerMessage, Predecessor, Process, Rank, SlotId, WorldId, ring,
};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

/// What the launcher hands over, and keeps for the next agent.
pub struct Handed {
    store: OwnedFd,
    notices: OwnedFd,
    /// On which the ranks note where in their output they take versions.
    printed: OwnedFd,
    /// TCP and UDP, for the other nodes.
    sockets: Option<[OwnedFd; 2]>,
}

impl Handed {
    /// In the order of the wire; nothing when they are not as many as the job needs.
    pub fn of(spec: &JobSpec, fds: Vec<OwnedFd>) -> Option<Handed> {
        let mut fds = fds.into_iter();
        let (store, notices, printed) = (fds.next()?, fds.next()?, fds.next()?);
        let sockets = match &spec.cluster {
            Some(_) => Some([fds.next()?, fds.next()?]),
            None => None,
        };
        fds.next().is_none().then_some(Handed { store, notices, printed, sockets })
    }
}

/// How the job ended here.
struct Ended {
    status: i32,
    reason: Option<String>,
    /// Whose end it is.
    standing: Standing,
}

/// The agent of one job on one node.
pub struct Driver {
    me: NodeId,
    /// The nodes' names, by their numbers.
    hosts: Vec<String>,
    core: Agent,
    rooms: Rooms,
    epochs: Epochs,
    /// Of the record that the other nodes are known by.
    adopted: EpochId,
    filtered: Filtered,
    looks: Looks,
    timer: Timer,
    time: Time,
    ended: Option<Ended>,
}

impl Driver {
    /// Makes the agent from the launcher's first message.
    ///
    /// # Errors
    /// When the job's directory or the store cannot be used.
    pub fn new(
        spec: JobSpec,
        handed: Handed,
        launcher: Link,
        (inputs, ears, looks): (&UnboundedSender<Input>, &Ears, Looks),
        before: Option<Before>,
    ) -> Result<Driver, AgentError> {
        let predecessor = before.as_ref().map(predecessor);
        let hosts = hosts(&spec);
        let pending = before.as_ref().and_then(|before| before.injections.clone());
        let filtered = Filtered::new(predecessor.is_none(), Instant::now());
        let config = config::job_config(&spec)?;
        let nodes = config.nodes.len() as usize;
        let time = Time::of(nodes);
        let incarnation = ft_sys::process::micros_since_boot().max(1);
        let me = NodeId(spec.cluster.as_ref().map_or(0, |cluster| cluster.me));
        let core = Agent::new(me, config).incarnation(incarnation).succeeding(predecessor);
        let Handed { store, notices, printed, sockets } = handed;
        let ways = spec.cluster.as_ref().map(|cluster| {
            let socket = (cluster.store.socket.clone(), spec.job.as_str());
            Ways::new(socket, (me, nodes), incarnation, outlet(inputs, Input::Ways))
        });
        let epochs = match (&spec.cluster, &ways) {
            (Some(cluster), Some(ways)) => Epochs::shared(ways.clone(), cluster, outlet(inputs, Input::Store)),
            _ => Epochs::own(Embedded::open(std::fs::File::from(store))?),
        };
        let between = match (&spec.cluster, sockets) {
            (Some(cluster), Some(sockets)) => {
                let news = outlet(inputs, Input::Between);
                Some(Between::open(&spec.job, cluster, incarnation, sockets, news)?)
            }
            _ => None,
        };
        let mut rooms = Rooms::new(spec, (notices, printed), launcher, (between, ways), nodes, (inputs, ears), before)?;
        hear::injections::go_on(&mut rooms, pending);
        Ok(Driver {
            me,
            hosts,
            core,
            rooms,
            epochs,
            adopted: EpochId(0),
            filtered,
            looks,
            timer: Timer::new(outlet(inputs, |()| Input::Timer), time).map_err(AgentError::Io)?,
            time,
            ended: None,
        })
    }

    /// Runs the job to its end; returns when the launcher has been told and the links are flushed.
    pub async fn run(&mut self, slots: Vec<(Slot, i32)>, mut inputs: UnboundedReceiver<Input>) {
        let Rooms { job, pmix, worlds, shepherds, .. } = &mut self.rooms;
        pmix.warm_up(job, worlds);
        slots.iter().for_each(|(slot, pid)| shepherds.expect(*slot, *pid));
        self.epochs.warn(job);
        job.report(Event::Start { slots: slots.into_iter().map(|(slot, _)| SlotId(slot)).collect() });
        self.settle().await;
        while self.ended.is_none() {
            let Some(input) = inputs.recv().await else { break };
            if matches!(input, Input::LauncherClosed) {
                return act::clean_up_after_launcher(&mut self.rooms).await;
            }
            self.looks.looks();
            self.take(input);
            self.look_for_filter();
            self.settle().await;
        }
        if let Some(Ended { status, reason, standing }) = self.ended.take() {
            let end = match self.rooms.worlds.newest() {
                Some(world) if status == 0 => End::Well(world),
                Some(world) => End::Own(world),
                None => End::Killed,
            };
            act::summarize(&mut self.rooms, &self.core, status);
            act::clean_up(&mut self.rooms, end).await;
            self.rooms.between.iter().for_each(Between::log);
            self.rooms.job.ended(status, reason, standing);
            let closed = async { while !matches!(inputs.recv().await, None | Some(Input::LauncherClosed)) {} };
            let _ = tokio::time::timeout(Duration::from_secs(5), closed).await;
        }
    }

    /// Feeds ftd-core all that was reported, and all that follows from it.
    async fn settle(&mut self) {
        while let Some(event) = self.next_event() {
            tracing::debug!(?event, "event");
            let by = by(&event);
            if let Event::Message { from, message } = &event {
                self.filtered.hears(*from, message);
            }
            let mut effects = self.core.step(self.time.now(), event);
            self.rooms.job.over = self.core.stage() == Stage::Ending;
            self.rooms.job.refused = self.core.refuses();
            self.adopt(by);
            self.rooms.lease.write(&self.rooms.shepherds, self.core.lease());
            while let Some((to, heartbeat, answer)) = together::take_out(&mut effects) {
                self.rooms.lone.beat();
                self.rooms.between.iter().for_each(|between| between.say_both(to, &heartbeat, &answer));
            }
            let mut tells_record = false;
            for effect in effects {
                tracing::debug!(?effect, "effect");
                // Who hears of an epoch that it does not know asks for its record, and reads it: the record leaves before a heartbeat of it.
                tells_record |= matches!(effect, Effect::Send { message: PeerMessage::Record { .. }, .. });
                if tells_record && matches!(effect, Effect::Send { message: PeerMessage::Heartbeat { .. }, .. }) {
                    tokio::task::yield_now().await;
                    tells_record = false;
                }
                self.carry_out(effect).await;
            }
        }
        self.epochs.hears(self.core.hears());
        self.rooms.costs.got_on(self.core.progress().map(|epoch| epoch.0));
        act::tell_causes(&mut self.rooms, &self.core);
        act::note_unreported(&mut self.rooms, &self.core, self.time.now());
    }

    /// The next event, also of what other nodes are told because of those before it.
    fn next_event(&mut self) -> Option<Event> {
        self.rooms.job.next_event().or_else(|| {
            hear::nodes::see_to_wishes(&mut self.rooms);
            self.rooms.job.next_event()
        })
    }

    /// Who is in the job is known to those who speak with the other nodes before anything is said in the new epoch.
    fn adopt(&mut self, by: &'static str) {
        let Some(record) = self.core.record().filter(|record| record.epoch != self.adopted) else { return };
        self.adopted = record.epoch;
        tracing::info!(by, node = self.me.0, epoch = record.epoch.0, "an epoch is adopted");
        // The record of the job's end begins no epoch in which anything could happen.
        if record.outcome.is_none() {
            self.rooms.job.events.begin(record.epoch.0, record.world.0);
        }
        self.filtered.adopted(Instant::now());
        self.rooms.between.iter_mut().for_each(|between| between.adopt(record));
        self.rooms.ways.iter().for_each(|ways| ways.adopt(&record.nodes));
        self.rooms.elsewhere.adopt(&record.nodes, self.me);
    }

    /// Before the first world is released: whether a packet filter keeps heartbeats back. Then the job does not begin.
    fn look_for_filter(&mut self) {
        if self.filtered.is_over() || self.rooms.between.is_none() {
            return;
        }
        let Some(record) = self.core.record().filter(|record| record.epoch == EpochId(1)) else { return };
        let observed = ring::observed(&record.nodes, self.me, record.terms.observers as usize);
        let Some(node) = self.filtered.found(&observed, record.terms.timeout, Instant::now()) else { return };
        let Rooms { job, worlds, between, .. } = &mut self.rooms;
        let process = worlds.newest().and_then(|world| worlds.running(world)).and_then(|world| world.first());
        self.filtered.over();
        let port = between.as_ref().map_or(0, Between::port);
        let reason = format!(
            "no heartbeat (UDP) of {node} comes to {}, though TCP does: does a packet filter between the nodes keep UDP back? They have \
             whatever port is free (here {port}; net.ipv4.ip_local_port_range)",
            self.me
        );
        job.report(match process {
            Some(process) => Event::StartFailed { process, reason, status: 1 },
            // Those of a node without ranks are the job's heartbeats as well.
            None => Event::CannotBegin { reason, status: 1 },
        });
    }

    fn take(&mut self, input: Input) {
        let (input, _room) = match input {
            Input::Metered(input, room) => (*input, Some(room)),
            other => (other, None),
        };
        let rooms = &mut self.rooms;
        let Rooms { job, door, shepherds, worlds, lone, pmix, pmi, checkpoints, files, .. } = rooms;
        match input {
            Input::Metered(..) | Input::LauncherClosed => {}
            Input::Trouble(connection, sentence) => door.trouble(job, connection, &sentence),
            Input::Launcher(message) => match *message {
                ToAgent::Joins(node) => self.joins(*node),
                message => hear::launcher::take(rooms, message),
            },
            Input::Opened(connection, link, peer) => hear::diallers::opened(rooms, connection, link, peer),
            Input::Shepherd(connection, message, fds) => hear::shepherds::take(rooms, connection, message, fds),
            Input::Rank(connection, message) => hear::ranks::take(rooms, connection, message),
            Input::Client(connection, message) => hear::clients::take(rooms, connection, message),
            Input::Asked(asker, said) => hear::askers::take(rooms, &self.core, self.time.now(), &asker, said),
            Input::Injections(news) => hear::injections::take(rooms, news),
            Input::Closed(connection) => hear::diallers::left(rooms, connection),
            Input::Pmix(pmix_host::News::Said { host, message }) => {
                if let Follows::Unserved(world) = pmix.take(job, worlds, shepherds, host, message) {
                    lone.seek(job, worlds, world);
                }
            }
            Input::Pmix(pmix_host::News::TooLong { host, error }) => pmix.cannot_tell(job, worlds, host, &error),
            Input::Pmix(pmix_host::News::Closed { host, reason }) => pmix.left(job, worlds, host, &reason),
            Input::Pmix(pmix_host::News::Again(world)) => pmix.serve_again(job, worlds, world),
            Input::Pmi(said) => {
                pmi.take(job, worlds, shepherds, &said);
                if said.bytes.is_empty() {
                    lone.seek(job, worlds, said.world);
                }
            }
            Input::Published(overdue) => hear::published::overdue(rooms, overdue),
            Input::Dying(dying) => {
                worlds.rank_is_dying(job, shepherds, (dying.world, dying.rank), dying.status);
            }
            Input::Gone(gone) => {
                // A script may start the next program.
                if worlds.rank_is_gone(job, files, shepherds, gone) {
                    lone.seek(job, worlds, gone.world);
                }
            }
            Input::Lone(news) => lone.take(job, worlds, news),
            Input::Checkpoints(news) => {
                checkpoints.take(job, worlds, news);
                rooms.copies_have_come();
            }
            Input::Store(news) => self.epochs.take(job, news),
            Input::Between(news) => hear::nodes::take(rooms, news),
            Input::Ways(news) => hear::nodes::say_of_store(rooms, news),
            Input::Elsewhere(news) => hear::nodes::of_user(rooms, news),
            Input::Timer => job.report(Event::Timer),
        }
    }

    /// A node comes into the job, behind those that there are: all that speak of nodes by their numbers are to know it.
    fn joins(&mut self, node: ClusterNode) {
        let number = NodeId(self.hosts.len() as u32);
        self.hosts.push(node.host.clone());
        self.epochs.add(node.lease.clone());
        self.rooms.between.iter().for_each(|between| between.know(number, node.socket()));
        self.rooms.checkpoints.add_node(node.domain.clone());
        self.rooms.job.add(node);
    }

    /// Starts a world's processes: the record that it stands in is the newest.
    fn launch(&mut self, world: WorldId, epoch: EpochId, processes: Vec<(Process, SlotId)>, parked: bool) {
        let record = self.core.record().filter(|record| record.epoch == epoch);
        match record.and_then(|record| Layout::of(record, self.me, &self.hosts)) {
            Some(layout) => act::launch(&mut self.rooms, (world.0, epoch.0), Arc::new(layout), processes, parked),
            None => tracing::error!(%world, "a world of which no record tells was to be started"),
        }
    }

    fn say(&self, to: NodeId, message: &PeerMessage) {
        let Rooms { between, lone, .. } = &self.rooms;
        if matches!(message, PeerMessage::Heartbeat { .. }) {
            lone.beat();
        }
        match between {
            Some(between) => between.say(to, message),
            None => tracing::warn!(?to, "there is no other node on one machine"),
        }
    }

    async fn carry_out(&mut self, effect: Effect) {
        let rooms = &mut self.rooms;
        match effect {
            Effect::ReadStore => {
                let read = self.epochs.read().await;
                read.into_iter().for_each(|read| self.epochs.take(&mut rooms.job, read));
            }
            Effect::Cas { expected, leases, record } => {
                tracing::info!(node = self.me.0, epoch = record.epoch.0, "an epoch is proposed");
                let answer = self.epochs.swap(expected, &record, &leases).await;
                answer.into_iter().for_each(|answer| self.epochs.take(&mut rooms.job, answer));
            }
            Effect::Send { to, message } => self.say(to, &message),
            Effect::WakeAt(at) => self.timer.wake_at(at),
            Effect::Launch { world, epoch, processes, parked } => self.launch(world, epoch, processes, parked),
            Effect::Release(world) => {
                tracing::info!(node = self.me.0, world = world.0, "a world is released");
                self.filtered.over();
                act::release(rooms, world.0);
            }
            Effect::StopWorld(world) => act::stop_world(rooms, world.0),
            Effect::Pause => rooms.lease.stop(&rooms.shepherds),
            Effect::Continue => rooms.lease.go_on(),
            Effect::Survey => act::survey(rooms),
            Effect::Drain(world) => rooms.job.tell(&ToLauncher::Drain { world: world.0 }),
            Effect::TakeInventory { epoch, world } => {
                act::freeze(rooms, epoch.0, world.0, self.core.record());
            }
            Effect::ListVerified { epoch } => rooms.checkpoints.list_verified(&mut rooms.job, epoch.0),
            Effect::Restore { epoch, stamp, away, .. } => {
                let record = (epoch.0, self.core.record());
                act::restore(rooms, record, stamp.map(|s| (s.version.0, s.epoch.0)), away);
            }
            Effect::Fetch { epoch, rank, stamp, from } => {
                rooms.checkpoints.fetch(&mut rooms.job, epoch, rank, (stamp.version.0, stamp.epoch.0), from);
            }
            Effect::Keep { stamps, .. } => {
                let stamps: Vec<Commit> = stamps.iter().map(|stamp| (stamp.version.0, stamp.epoch.0)).collect();
                rooms.checkpoints.keep(&mut rooms.job, &stamps);
            }
            Effect::Retire { complete, .. } => rooms.checkpoints.complete(&mut rooms.job, complete.0),
            Effect::AnswerDue { process, yes } => act::answer_due(rooms, process, yes),
            Effect::Proceed { process, .. } => act::proceed(rooms, process),
            Effect::Signal { signal } => act::signal_ranks(rooms, signal),
            Effect::PassOn { slot, signal, patience } => act::pass_on(rooms, slot.0, signal, patience),
            Effect::Leave => {
                rooms.job.told = true;
                rooms.worlds.hurry_filters(&rooms.shepherds);
            }
            Effect::NeedSlot => rooms.job.tell(&ToLauncher::NeedSlot),
            Effect::MakeSlot(slot) => rooms.job.tell(&ToLauncher::MakeSlot { slot: slot.0 }),
            Effect::Report(report) => act::tell(rooms, &self.core, self.time.now(), &report),
            Effect::End { status, reason, standing } => {
                let (status, reason) = rooms.worlds.unless_late(status, reason);
                self.ended = Some(Ended { status, reason, standing });
            }
        }
    }
}

/// What an agent is told of an epoch by.
fn by(event: &Event) -> &'static str {
    match event {
        Event::CasDone { .. } => "write",
        Event::CasLost { .. } => "lost write",
        Event::StoreRead { .. } => "read",
        Event::Watched { .. } => "watch",
        Event::Message { message: PeerMessage::Record { .. }, .. } => "neighbour",
        _ => "other",
    }
}

fn predecessor(before: &Before) -> Predecessor {
    let noticed = before.toll.noticed.as_ref().map_or(0, |noticed| noticed.age.as_micros() as u64);
    let failed = Micros(before.died.saturating_sub(noticed));
    let process = |(world, rank): &(u64, u32)| Process::primary(WorldId(*world), Rank(*rank));
    Predecessor {
        failed,
        reported: EpochId(before.reported),
        speaks_mpi: before.mpi,
        untold: before.toll.untold.iter().map(process).collect(),
        progress: before.toll.progress.map(EpochId),
    }
}

/// What MPI libraries find the nodes to be called, by their numbers: the same list on all of them.
fn hosts(spec: &JobSpec) -> Vec<String> {
    match &spec.cluster {
        None => vec![ft_sys::process::host_name().unwrap_or_default()],
        Some(cluster) => cluster.nodes.iter().map(|node| node.host.clone()).collect(),
    }
}
