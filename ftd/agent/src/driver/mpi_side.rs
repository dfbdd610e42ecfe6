//! The ranks' MPI libraries, as their preloads tell of them, and what PMI-1 and PMIx have in common.

use super::*;
use ft_sys::memory::{SharedMap, allocate, create_sparse_sealed_memfd};
use ft_wire::Flavour;
use ft_wire::rank::page;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;

/// A process joins once, or a few times when a library that looks for its MPI does so in its own way; each time costs
/// descriptors.
const MOST_JOINS: u32 = 16;

impl Driver {
    pub(super) fn rank_says(&mut self, connection: ConnectionId, message: rank::ToAgent) {
        if let rank::ToAgent::Hello { world, rank, pid: _, flavour, library, session } = message {
            if self.is_being_ended(world) {
                return;
            }
            let Some(Dialler::Unknown(link, peer)) = self.diallers.remove(&connection) else { return };
            if flavour == Flavour::OpenMpi && session {
                self.serve_sessions(peer.pid);
            }
            match self.welcome_rank(connection, world, rank, peer, flavour, &library, link.clone()) {
                Ok(()) => {}
                Err(reason) => link.send(&rank::ToRank::Refused { reason }),
            }
            return;
        }
        if let rank::ToAgent::Astray { why } = message {
            return self.rank_is_astray(connection, &why);
        }
        let Some(Dialler::Rank(number, rank)) = self.diallers.get(&connection) else {
            return tracing::warn!(connection, ?message, "a message out of turn");
        };
        let (number, rank) = (*number, *rank);
        let Some(world) = self.worlds.get_mut(&number) else { return };
        let Some(process) = world.members.get(&rank).map(|m| m.process) else { return };
        match message {
            rank::ToAgent::Hello { .. } | rank::ToAgent::Astray { .. } => {}
            rank::ToAgent::Initialized => {
                let member = world.members.get(&rank);
                if let Some((pid, page)) = member.and_then(|m| m.pid.zip(m.page.clone()))
                    && page.u32_at(ft_wire::rank::page::ARMED).load(std::sync::atomic::Ordering::Acquire) == 1
                {
                    let below = member.and_then(|m| m.below.as_ref()).map(Below::held);
                    self.watcher.add(number, rank, pid, page, below);
                }
                self.report(Event::Initialized(process));
            }
            rank::ToAgent::Abort { code } => self.report(Event::AbortRequested { process, code }),
            rank::ToAgent::Finalized => self.report(Event::Finalized(process)),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn welcome_rank(
        &mut self,
        connection: ConnectionId,
        number: WorldNumber,
        rank: Rank,
        peer: Peer,
        flavour: Flavour,
        library: &str,
        link: Link,
    ) -> Result<(), String> {
        let pid = peer.pid;
        if let Some(reason) = self.comes_late(number, rank, &peer) {
            return Err(reason);
        }
        let held = self.may_join(number, rank, peer)?;
        let (map, page) = shared_page().map_err(|error| format!("no shared page for rank {rank}: {error}"))?;
        self.joined(number, rank, held);
        if let Some(member) = self.member(number, rank) {
            member.without_mpi = false;
            member.joins += 1;
            let process = member.process;
            self.report(Event::Initializing(process));
        }
        link.trust();
        let mut former = None;
        if let Some(member) = self.member(number, rank) {
            member.page = map;
            former = member.link.replace(link.clone());
        }
        if let Some(former) = former {
            // It has dialled twice: no more than one connection is kept.
            former.close();
            self.diallers.retain(|_, dialler| !matches!(dialler, Dialler::Rank(w, r) if (*w, *r) == (number, rank)));
        }
        self.diallers.insert(connection, Dialler::Rank(number, rank));
        tracing::info!(rank, pid, library, "a rank is about to initialise MPI");
        self.correct(flavour, library);
        match flavour {
            Flavour::Mpich => self.welcome_pmi(number, rank, &link, page),
            Flavour::OpenMpi => {
                self.speaks_pmix = true;
                if let Some(member) = self.member(number, rank) {
                    member.awaits_pmix = Some(page);
                }
                self.serve_pmix(number);
                self.welcome_pmix(number);
                Ok(())
            }
        }
    }

    /// What was said of the MPI may be wrong; what the library says of itself is what it is served as.
    fn correct(&mut self, flavour: Flavour, library: &str) {
        if self.spec.mpi == "auto" || self.spec.linked_in == Some(flavour) {
            return;
        }
        let library = crate::loners::in_short(library);
        let sentence = format!(
            "--ft-mpi={} (FT_MPI) is wrong: the program has loaded {library}, which is {}, and is served as that",
            self.spec.mpi,
            crate::loners::name(flavour)
        );
        if self.noticed.insert(sentence.clone()) {
            self.notice(sentence);
        }
    }

    /// What the process is held by that may be this rank, or why it may not.
    fn may_join(&self, number: WorldNumber, rank: Rank, peer: Peer) -> Result<Held, String> {
        let pid = peer.pid;
        let Some(world) = self.worlds.get(&number).filter(|world| !world.stopping) else {
            let newest = self.worlds.keys().next_back().copied();
            return Err(format!("world {number} has ended; the job is at world {}", newest.unwrap_or(0)));
        };
        let Some(member) = world.members.get(&rank) else {
            return Err(format!("world {number} has no rank {rank} on this node"));
        };
        let held = self.proven(number, rank, peer)?;
        match member.mpi_pid().filter(|first| *first != pid) {
            None if member.joins >= MOST_JOINS => Err(format!("process {pid} has joined {MOST_JOINS} times already")),
            None => Ok(held),
            Some(first) => Err(format!(
                "process {first} is rank {rank} already: only one process of a rank may call MPI_Init; a job within the job is \
                 started with ftrun"
            )),
        }
    }

    /// What ftrun started left well, and its end has counted as the rank's. A job of which nothing has run has not gone well.
    fn comes_late(&mut self, number: WorldNumber, rank: Rank, peer: &Peer) -> Option<String> {
        let member = self.worlds.get(&number)?.members.get(&rank).filter(|m| m.ended && m.mpi_pid().is_none())?;
        let (process, shepherd) = (member.process, *self.slots.get(&member.slot)?);
        peer.held.as_ref().filter(|held| held.is_below(shepherd))?;
        let reason =
            format!("process {} of rank {rank} calls MPI_Init after what ftrun started for it has ended", peer.pid);
        self.late = Some((number, reason.clone()));
        self.report(Event::StartFailed { process, reason: reason.clone(), status: 1 });
        Some(reason)
    }

    /// The job's end, or what it is when a rank of its last world came too late.
    pub(super) fn unless_late(&mut self, status: i32, reason: Option<String>) -> (i32, Option<String>) {
        let newest = self.worlds.keys().next_back().copied();
        match self.late.take() {
            Some((world, late)) if status == 0 && newest == Some(world) => (1, Some(late)),
            _ => (status, reason),
        }
    }

    /// A process has called `ft_init`: as long as nobody calls `MPI_Init`, it is the rank.
    pub(super) fn joined_without_mpi(&mut self, number: WorldNumber, rank: Rank, held: Held) {
        let Some(member) = self.member(number, rank).filter(|member| member.mpi_pid().is_none()) else { return };
        member.without_mpi = true;
        self.joined(number, rank, held);
    }

    /// This process is the rank from now on; it may be another one than its shepherd started.
    fn joined(&mut self, number: WorldNumber, rank: Rank, held: Held) {
        let pid = held.identity.pid;
        let Some(member) = self.member(number, rank) else { return };
        if member.pid.replace(pid) == Some(pid) && member.below.as_ref().is_none_or(|below| !below.is_gone()) {
            return;
        }
        member.below = None;
        let (slot, is_child) = (member.slot, member.child == Some(pid));
        if let Some(shepherd) = self.shepherds.get(&slot) {
            shepherd.link.send(&shepherd::ToShepherd::Joined { world: number, rank, pid });
        }
        if is_child {
            return;
        }
        ft_sys::litter::note_process(Path::new(&self.spec.job_dir), pid);
        self.files.joined(pid);
        let held = Arc::new(held);
        if let Some(member) = self.member(number, rank) {
            member.below = Some(Below::new(held.clone()));
        }
        watch_pid(number, rank, held, self.inputs.clone());
    }

    /// MPI_Comm_spawn was refused; the MPI says so to the program.
    pub(super) fn say_spawn_refused(&self, command: &str) {
        self.notice(format!(
            "MPI_Comm_spawn of {command} was refused: ftd starts the ranks of ftrun -n and no others, with --ft=none as \
             with --ft=reinit"
        ));
    }

    /// A rank's MPI speaks with its server: it will not start alone.
    pub(super) fn is_served(&mut self, number: WorldNumber, rank: Rank) {
        if let Some(member) = self.member(number, rank) {
            member.served = true;
            self.tell_served(number, rank);
        }
    }

    /// Which process it is nobody says where nothing is preloaded: its shepherd's child counts as the rank.
    pub(super) fn tell_served(&self, number: WorldNumber, rank: Rank) {
        let member = self.worlds.get(&number).and_then(|world| world.members.get(&rank));
        let Some(member) = member.filter(|member| member.served && member.pid.is_none()) else { return };
        if let Some((shepherd, pid)) = self.shepherds.get(&member.slot).zip(member.child) {
            shepherd.link.send(&shepherd::ToShepherd::Joined { world: number, rank, pid });
        }
    }

    /// It has hung up. What may come after it in a script will not be served.
    pub(super) fn is_served_no_more(&mut self, number: WorldNumber, rank: Rank) {
        if let Some(member) = self.member(number, rank) {
            member.served = false;
            self.seek_loners(number);
        }
    }

    /// A rank's MPI says through its PMI that it has finalized. Ranks with a preload tell more exactly themselves.
    pub(super) fn finalized_without_preload(&mut self, number: WorldNumber, rank: Rank) {
        if let Some(process) = self.without_preload(number, rank) {
            self.report(Event::Finalized(process));
        }
    }

    pub(super) fn without_preload(&self, number: WorldNumber, rank: Rank) -> Option<Process> {
        let member = self.worlds.get(&number)?.members.get(&rank)?;
        member.link.is_none().then_some(member.process)
    }

    /// Whether there are more ranks here than processors.
    pub(super) fn oversubscribed(&self) -> bool {
        self.spec.world_size as usize > self.processors
    }

    /// A setting for the ranks, unless the user made it.
    pub(super) fn unless_set(&self, key: &str, value: impl Into<Vec<u8>>) -> Option<(String, Option<Vec<u8>>)> {
        let set = self.spec.env.iter().any(|(name, _)| name == key.as_bytes());
        (!set).then(|| (key.to_string(), Some(value.into())))
    }

    pub(super) fn first_fence(&mut self, number: WorldNumber) {
        if self.worlds.get_mut(&number).is_some_and(|w| !std::mem::replace(&mut w.fenced, true)) {
            ft_sys::gate::reach("agent.fence", None);
        }
    }
}

/// The page that a rank shares with this agent. Where a file-size limit leaves no room for it, the rank gets one that nobody
/// else sees, and its death is seen by its shepherd alone.
fn shared_page() -> io::Result<(Option<Arc<SharedMap>>, OwnedFd)> {
    let page = create_sparse_sealed_memfd("ft-rank-page", page::SIZE as u64)
        // Nobody can cut it, and touching it cannot fail.
        .and_then(|fd| allocate(&fd, 0, page::SIZE as u64).map(|()| fd))
        .and_then(|fd| Ok((Some(Arc::new(SharedMap::map(&fd, 0, page::SIZE)?)), fd)));
    match page {
        Err(error) if error.kind() == ErrorKind::FileTooLarge => {
            let zero = std::fs::OpenOptions::new().read(true).write(true).open("/dev/zero")?;
            Ok((None, zero.into()))
        }
        other => other,
    }
}

/// Watches a rank that is no direct child of its shepherd.
fn watch_pid(world: WorldNumber, rank: Rank, held: Arc<Held>, inputs: UnboundedSender<Input>) {
    let pid = held.identity.pid;
    tokio::spawn(async move {
        let descriptor = held.as_fd().try_clone_to_owned();
        if let Ok(pidfd) = descriptor.and_then(crate::ready::readable) {
            let _ = pidfd.readable().await.map(drop);
            let _ = inputs.send(Input::RankGone(world, rank, pid));
        }
    });
}
