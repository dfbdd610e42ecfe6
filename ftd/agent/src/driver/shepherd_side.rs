//! The shepherds, and what they tell of the processes on their slots.

use super::*;
use ftd_core::Limit;

#[derive(Debug)]
pub(super) struct Shepherd {
    pub(super) connection: ConnectionId,
    pub(super) link: Link,
}

impl Driver {
    pub(super) fn to_all_shepherds(&self, message: &shepherd::ToShepherd) {
        for shepherd in self.shepherds.values() {
            shepherd.link.send(message);
        }
    }

    pub(super) fn shepherd_says(&mut self, connection: ConnectionId, message: shepherd::ToAgent, fds: Vec<OwnedFd>) {
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
                        self.seek_loners(world);
                    }
                }
            }
            shepherd::ToAgent::StartFailed { world, rank, what: reason, status } => {
                if let Some(member) = self.member(world, rank) {
                    member.ended = true;
                    let process = member.process;
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
                    self.tell_served(world, rank);
                }
                self.files.ended_well(pid);
            }
            shepherd::ToAgent::Exited { world, rank, pid, status, oom, cpu_limit } => {
                let limit = if oom { Some(Limit::Memory) } else { cpu_limit.then_some(Limit::CpuTime) };
                self.child_ended(world, rank, pid, status, limit)
            }
            shepherd::ToAgent::Lingers { world } => self.report(Event::Lingers(WorldId(world))),
            shepherd::ToAgent::Emptied { world } => {
                if self.worlds.get(&world).is_some_and(|w| w.occupied.contains(&slot)) {
                    self.slot_emptied(slot);
                }
            }
        }
    }

    /// Somebody says that it is the shepherd of a slot: it is, if it is the process that the launcher started as such.
    pub(super) fn shepherd_dialled(
        &mut self,
        connection: ConnectionId,
        slot: Slot,
        ranks: Vec<Rank>,
        fds: Vec<OwnedFd>,
    ) {
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

    /// The first moment after a release: every process runs.
    pub(super) fn world_started(&mut self, number: WorldNumber) {
        let all = |world: &World| world.members.values().all(|m| m.child.is_some());
        if self.releasing == Some(number) && self.worlds.get(&number).is_some_and(all) {
            self.releasing = None;
            ft_sys::gate::reach("agent.released", None);
        }
    }

    pub(super) fn child_ended(&mut self, world: WorldNumber, rank: Rank, pid: i32, status: i32, limit: Option<Limit>) {
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
                let unseen = dead || member.died_unseen() || (told && member.pid.is_none());
                (member.process, unseen, member.below.take())
            }
            None => {
                let below = self.departed.remove(&(world, rank));
                (Process::primary(WorldId(world), ftd_core::Rank(rank)), false, below)
            }
        };
        tracing::debug!(world, rank, status, "child ended");
        if status == 0 {
            self.files.ended_well(pid);
            self.rank_ended_well(world, rank);
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

    pub(super) fn rank_is_dying(&mut self, world: WorldNumber, rank: Rank, status: Option<i32>) {
        ft_sys::gate::reach("agent.dying", Some(rank));
        if let Some(member) = self.member(world, rank)
            && !member.ended
            && !member.exits_by_itself()
        {
            self.note_death(world, rank, status);
        }
    }

    /// A rank is dying, or dead below a wrapper, and not by its own will. What a wrapper makes of a signal is not waited for.
    fn note_death(&mut self, world: WorldNumber, rank: Rank, status: Option<i32>) {
        let Some(member) = self.member(world, rank) else { return };
        member.note_death(status);
        let (process, slot, signal) = (member.process, member.slot, member.signal_below());
        self.look_at_shepherd(slot);
        self.report(signal.map_or(Event::Dying(process), |signal| Event::Killed { process, signal }));
    }

    /// A rank that dies with its shepherd dies of that.
    pub(super) fn look_at_shepherd(&mut self, slot: Slot) {
        let dying = |pid: &i32| ft_sys::death::is_dying(*pid).unwrap_or(false);
        if self.slots.get(&slot).is_some_and(dying) {
            self.report(Event::SlotDying(SlotId(slot)));
        }
    }

    /// The connection of a rank's checkpoint library has ended: of one that calls no MPI it is the first that is seen of a death,
    /// and comes before its wrapper can forget how it died.
    pub(super) fn library_left(&mut self, world: WorldNumber, rank: Rank) {
        let Some(member) = self.member(world, rank).filter(|member| member.without_mpi && !member.ended) else {
            return;
        };
        if member.below.as_mut().is_some_and(Below::look) {
            self.note_death(world, rank, None);
        }
    }

    /// A rank below a wrapper died; ftd is not who waits for it.
    pub(super) fn rank_is_gone(&mut self, world: WorldNumber, rank: Rank, pid: i32) {
        // It may be heard of before its end is seen.
        ft_sys::gate::reach("agent.dying", Some(rank));
        let Some(member) = self.member(world, rank).filter(|member| member.pid == Some(pid)) else { return };
        member.served = false;
        if member.exits_by_itself() {
            if let Some(pid) = member.pid.filter(|_| member.exits_well()) {
                self.files.ended_well(pid);
            }
        } else if !member.ended {
            self.note_death(world, rank, None);
        }
        // A script may start the next program.
        self.seek_loners(world);
    }

    /// Nothing is left on `slot` of the world that occupied it.
    pub(super) fn slot_emptied(&mut self, slot: Slot) {
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
}
