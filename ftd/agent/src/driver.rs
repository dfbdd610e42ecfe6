//! The one task that connects the rooms with ftd-core's state machine: what happens goes to the rooms that it concerns, what they
//! report to ftd-core, and the effects that come back to the rooms again.

use crate::act;
use crate::config;
use crate::epochs::Epochs;
use crate::error::AgentError;
use crate::hear;
use crate::input::{Input, outlet};
use crate::job::now;
use crate::link::Link;
use crate::pmix::Follows;
use crate::pmix_host;
use crate::rooms::Rooms;
use crate::timer::Timer;
use ft_store::Embedded;
use ft_sys::litter::End;
use ft_wire::Slot;
use ft_wire::launcher::{Before, JobSpec, ToLauncher};
use ftd_core::agent::Stage;
use ftd_core::{Agent, Effect, EpochId, Event, Micros, NodeId, Predecessor, SlotId};
use std::os::fd::OwnedFd;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

/// The agent of one job on one node.
pub struct Driver {
    core: Agent,
    rooms: Rooms,
    epochs: Epochs,
    timer: Timer,
    ended: Option<(i32, Option<String>)>,
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
        inputs: &UnboundedSender<Input>,
        before: Option<Before>,
    ) -> Result<Driver, AgentError> {
        let before = before.map(|before| Predecessor { died: Micros(before.died), reported: EpochId(before.reported) });
        let config = config::job_config(&spec)?;
        let nodes = config.nodes.len() as usize;
        let core = Agent::new(NodeId(0), config).succeeding(before);
        Ok(Driver {
            core,
            rooms: Rooms::new(spec, notices, launcher, nodes, inputs)?,
            epochs: Epochs::new(store),
            timer: Timer::new(outlet(inputs, |()| Input::Timer)),
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
            self.take(input);
            self.settle().await;
        }
        if let Some((status, reason)) = self.ended.take() {
            let end = match self.rooms.worlds.newest() {
                Some(world) if status == 0 => End::Well(world),
                Some(world) => End::Own(world),
                None => End::Killed,
            };
            act::clean_up(&mut self.rooms, end).await;
            self.rooms.job.tell(&ToLauncher::End { status, reason });
            let closed = async { while !matches!(inputs.recv().await, None | Some(Input::LauncherClosed)) {} };
            let _ = tokio::time::timeout(Duration::from_secs(5), closed).await;
        }
    }

    /// Feeds ftd-core all that was reported, and all that follows from it.
    async fn settle(&mut self) {
        while let Some(event) = self.rooms.job.next_event() {
            tracing::debug!(?event, "event");
            let effects = self.core.step(now(), event);
            self.rooms.job.over = self.core.stage() == Stage::Ending;
            self.rooms.lease.write(&self.rooms.shepherds, self.core.lease());
            for effect in effects {
                tracing::debug!(?effect, "effect");
                self.carry_out(effect).await;
            }
        }
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
            Input::Launcher(message) => hear::launcher::take(rooms, *message),
            Input::Opened(connection, link, peer) => hear::diallers::opened(rooms, connection, link, peer),
            Input::Shepherd(connection, message, fds) => hear::shepherds::take(rooms, connection, message, fds),
            Input::Rank(connection, message) => hear::ranks::take(rooms, connection, message),
            Input::Client(connection, message) => hear::clients::take(rooms, connection, message),
            Input::Closed(connection) => hear::diallers::left(rooms, connection),
            Input::Pmix(pmix_host::News::Said { host, message }) => {
                if let Follows::Unserved(world) = pmix.take(job, worlds, shepherds, host, message) {
                    lone.seek(job, worlds, world);
                }
            }
            Input::Pmix(pmix_host::News::Closed { host, reason }) => pmix.left(job, worlds, host, &reason),
            Input::Pmi(said) => {
                pmi.take(job, worlds, shepherds, &said);
                if said.bytes.is_empty() {
                    lone.seek(job, worlds, said.world);
                }
            }
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
            Input::Checkpoints(news) => checkpoints.take(job, worlds, news),
            Input::Timer => job.report(Event::Timer),
        }
    }

    async fn carry_out(&mut self, effect: Effect) {
        let rooms = &mut self.rooms;
        match effect {
            Effect::ReadStore => {
                let read = self.epochs.read(&rooms.job).await;
                rooms.job.report(read);
            }
            Effect::Cas { expected, record, .. } => {
                let answer = self.epochs.swap(&rooms.job, expected, &record).await;
                rooms.job.report(answer);
            }
            Effect::Send { to, .. } => tracing::warn!(?to, "there is no other node on one machine"),
            Effect::WakeAt(at) => self.timer.wake_at(at),
            Effect::Launch { world, epoch, processes, parked: _ } => act::launch(rooms, world.0, epoch.0, processes),
            // A fresh world is released by being started.
            Effect::Release(world) => rooms.worlds.release(world.0),
            Effect::StopWorld(world) => act::stop_world(rooms, world.0),
            Effect::Pause => rooms.lease.stop(&rooms.shepherds),
            Effect::Continue => rooms.lease.go_on(),
            Effect::Survey => act::survey(rooms),
            Effect::Drain(world) => rooms.job.tell(&ToLauncher::Drain { world: world.0 }),
            Effect::TakeInventory { epoch, world: _ } => rooms.checkpoints.freeze(epoch.0),
            Effect::Restore { epoch, stamp, .. } => {
                act::restore(rooms, epoch.0, stamp.map(|s| (s.version.0, s.epoch.0)));
            }
            // On one machine every copy is on the node of its rank, and nobody else offers one.
            Effect::Fetch { epoch, rank, from, .. } => rooms.job.report(Event::NotFetched { epoch, rank, from }),
            Effect::Keep { stamps, .. } => {
                if let Some(newest) = stamps.last() {
                    rooms.checkpoints.complete(newest.version.0);
                }
            }
            Effect::Retire { complete, .. } => rooms.checkpoints.complete(complete.0),
            Effect::AnswerDue { process, yes } => act::answer_due(rooms, process, yes),
            Effect::Proceed { process, .. } => act::proceed(rooms, process),
            Effect::Signal { signal } => act::signal_ranks(rooms, signal),
            Effect::NeedSlot => rooms.job.tell(&ToLauncher::NeedSlot),
            Effect::Report(report) => act::tell(rooms, &report),
            Effect::End { status, reason } => self.ended = Some(rooms.worlds.unless_late(status, reason)),
        }
    }
}
