//! The ranks' MPI libraries: preload, PMI-1 and PMIx.

use super::*;
use ft_sys::memory::{SharedMap, allocate, create_sparse_sealed_memfd};
use ft_wire::Flavour;
use ft_wire::rank::page;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

/// Answers that may wait for a rank that does not read them; an honest one waits for each.
const PMI_ANSWERS: usize = 1024;
/// Reads of a rank's PMI connection that may wait for the driver.
const PMI_CHUNKS: usize = 8;
/// Most bytes that all published PMIx values and their keys may take, and most lookups that may wait for one.
const MOST_PUBLISHED: usize = 64 << 20;
/// See [`MOST_PUBLISHED`].
const MOST_LOOKUPS: usize = 4096;
/// Names that are tried for a world.
const NAMES: u32 = 100;

/// PMIx status codes of the standard that the agent answers with.
mod status {
    pub const SUCCESS: i32 = 0;
    pub const NOT_FOUND: i32 = -46;
    pub const NOT_SUPPORTED: i32 = -47;
    pub const OUT_OF_RESOURCE: i32 = -29;
    pub const PARTIAL: i32 = -52;
}

impl Driver {
    pub(super) fn rank_says(&mut self, connection: ConnectionId, message: rank::ToAgent) {
        if let rank::ToAgent::Hello { world, rank, pid: _, flavour, library } = message {
            let Some(Dialler::Unknown(link, peer)) = self.diallers.remove(&connection) else { return };
            match self.welcome_rank(connection, world, rank, peer, flavour, &library, link.clone()) {
                Ok(()) => {}
                Err(reason) => link.send(&rank::ToRank::Refused { reason }),
            }
            return;
        }
        let Some(Dialler::Rank(number, rank)) = self.diallers.get(&connection) else {
            return tracing::warn!(connection, ?message, "a message out of turn");
        };
        let (number, rank) = (*number, *rank);
        let Some(world) = self.worlds.get_mut(&number) else { return };
        let Some(process) = world.members.get(&rank).map(|m| m.process) else { return };
        match message {
            rank::ToAgent::Hello { .. } => {}
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
        let proven = self.proven(number, rank, peer);
        let newest = self.worlds.keys().next_back().copied();
        let Some(world) = self.worlds.get_mut(&number).filter(|w| !w.stopping) else {
            return Err(format!("world {number} has ended; the job is at world {}", newest.unwrap_or(0)));
        };
        let Some(member) = world.members.get_mut(&rank) else {
            return Err(format!("world {number} has no rank {rank} on this node"));
        };
        let held = proven?;
        if let Some(first) = member.pid.filter(|first| *first != pid) {
            return Err(format!(
                "process {first} is rank {rank} already: only one process of a rank may call MPI_Init"
            ));
        }
        let (map, page_fd) = shared_page().map_err(|error| format!("no shared page for rank {rank}: {error}"))?;
        member.pid = Some(pid);
        member.page = map;
        member.link = Some(link.clone());
        if member.child != Some(pid) {
            if let Some(shepherd) = self.shepherds.get(&member.slot) {
                shepherd.link.send(&shepherd::ToShepherd::Joined { world: number, rank, pid });
            }
            ft_sys::litter::note_process(Path::new(&self.spec.job_dir), pid);
            self.files.joined(pid);
            let held = Arc::new(held);
            member.below = Some(Below::new(held.clone()));
            watch_pid(number, rank, held, self.inputs.clone());
        }
        self.diallers.insert(connection, Dialler::Rank(number, rank));
        tracing::info!(rank, pid, library, "a rank is about to initialise MPI");
        self.correct(flavour, library);
        match flavour {
            Flavour::Mpich => {
                let (fd, env) = self.open_pmi(number, rank).map_err(|e| format!("no connection for PMI: {e}"))?;
                let mut env: Vec<_> = env.into_iter().map(|(k, v)| (k, Some(v.into_bytes()))).collect();
                if self.oversubscribed() {
                    env.extend(self.unless_set(ft_pmi1::OVERSUBSCRIBED.0, ft_pmi1::OVERSUBSCRIBED.1));
                }
                env.push(("PMIX_NAMESPACE".into(), None));
                env.push(("PMIX_RANK".into(), None));
                link.send_with(&rank::ToRank::Welcome { env, pmi_fd: true }, vec![page_fd, fd]);
            }
            Flavour::OpenMpi => {
                self.speaks_pmix = true;
                if let Some(member) = self.member(number, rank) {
                    member.awaits_pmix = Some(page_fd);
                }
                self.serve_pmix(number);
                self.welcome_pmix(number);
            }
        }
        Ok(())
    }

    /// What was said of the MPI may be wrong; what the library says of itself is what it is served as.
    fn correct(&mut self, flavour: Flavour, library: &str) {
        if self.spec.mpi == "auto" || self.spec.linked_in == Some(flavour) {
            return;
        }
        let library = library.split(',').next().unwrap_or_default();
        let sentence = format!(
            "--ft-mpi={} (FT_MPI) is wrong: the program has loaded {library}, which is {}, and is served as that",
            self.spec.mpi,
            crate::loners::name(flavour)
        );
        if self.noticed.insert(sentence.clone()) {
            self.notice(sentence);
        }
    }

    pub(super) fn look_again_for_loners(&self, number: WorldNumber) {
        let Some(world) = self.worlds.get(&number) else { return };
        let (inputs, pause) = (self.inputs.clone(), crate::loners::pause(world.since.elapsed()));
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            let _ = inputs.send(Input::LookForLoners(number));
        });
    }

    /// Has the memory maps read of the ranks that have not joined.
    pub(super) fn look_for_loners(&mut self, number: WorldNumber) {
        let Some(world) = self.worlds.get(&number).filter(|w| !w.stopping) else { return };
        if self.spec.linked_in.is_some() && self.spec.mpi == "auto" {
            return;
        }
        let waiting = world.members.iter().filter(|(_, m)| m.pid.is_none() && !m.ended);
        let ranks: Vec<(Rank, i32)> = waiting.filter_map(|(rank, member)| Some((*rank, member.child?))).collect();
        if ranks.is_empty() && world.members.values().all(|m| m.child.is_some()) {
            return;
        }
        self.look_again_for_loners(number);
        let (inputs, preload, served) = (self.inputs.clone(), self.spec.preload.clone(), self.spec.linked_in);
        tokio::task::spawn_blocking(move || {
            ft_sys::process::run_behind();
            if let Some(loner) = crate::loners::find(&ranks, &preload, served) {
                let _ = inputs.send(Input::Loner(number, loner));
            }
        });
    }

    /// One rank alone would mean as many jobs of one as there are ranks.
    pub(super) fn refuse_loner(&mut self, number: WorldNumber, loner: &crate::loners::Loner) {
        let Some(member) = self.member(number, loner.rank).filter(|m| m.pid.is_none()) else { return };
        let process = member.process;
        let why = match loner.other {
            Some(family) => {
                format!("; that is {}, and --ft-mpi={} is wrong", crate::loners::name(family), self.spec.mpi)
            }
            None => "; something between ftrun and the program takes LD_PRELOAD away".to_string(),
        };
        let reason = format!(
            "process {} has loaded {} without ftd's libft_preload.so and would be a job of its own{why}",
            loner.pid, loner.library
        );
        self.report(Event::StartFailed { process, reason, status: 1 });
    }

    /// MPI_Comm_spawn was refused; the MPI says so to the program.
    fn say_spawn_refused(&self, command: &str) {
        self.notice(format!(
            "MPI_Comm_spawn of {command} was refused: ftd starts the ranks of ftrun -n and no others, with --ft=none as \
             with --ft=reinit"
        ));
    }

    /// Makes sure that the world has a host for libpmix.
    pub(super) fn serve_pmix(&mut self, number: WorldNumber) {
        let taken = self.worlds.get(&number).is_none_or(|w| w.pmix.is_some());
        if taken {
            return;
        }
        let Some(host) = self.warm_pmix.take().or_else(|| self.start_pmix()) else { return };
        let nspace = format!("{}.w{number}", self.spec.job);
        let hostname = nix::unistd::gethostname().map(|h| h.to_string_lossy().into_owned()).unwrap_or_default();
        let dir = self.pmix_dir(number);
        let Some(world) = self.worlds.get_mut(&number) else { return host.kill() };
        host.send(pmix::ToPmix::Register(pmix::WorldInfo {
            tmpdir: dir,
            nspace,
            world_size: self.spec.world_size,
            nodes: vec![(hostname, (0..self.spec.world_size).collect())],
            me: 0,
            incarnation: u32::try_from(world.number - 1).unwrap_or(u32::MAX),
            argv0: self.spec.argv.first().cloned().unwrap_or_default(),
            cwd: self.spec.cwd.clone(),
        }));
        world.pmix = Some(host);
    }

    fn welcome_pmix(&mut self, number: WorldNumber) {
        let extra = self.open_mpi_environment(number);
        let Some(world) = self.worlds.get_mut(&number) else { return };
        let Some(env) = &world.pmix_env else { return };
        for (rank, member) in &mut world.members {
            let Some(page) = member.awaits_pmix.take() else { continue };
            let mut all: Vec<(String, Option<Vec<u8>>)> =
                env.get(rank).into_iter().flatten().map(|(k, v)| (k.clone(), Some(v.clone()))).collect();
            for key in ["PMI_FD", "PMI_RANK", "PMI_SIZE", "PMI_PORT", "PMI_ID"] {
                all.push((key.into(), None));
            }
            all.extend(extra.iter().cloned());
            if let Some(link) = &member.link {
                link.send_with(&rank::ToRank::Welcome { env: all, pmi_fd: false }, vec![page]);
            }
        }
        let deferred = std::mem::take(&mut world.deferred);
        for (slot, mut start) in deferred {
            let extra = extra.iter().filter_map(|(key, value)| Some((key.clone(), value.clone()?)));
            for (key, value) in env.get(&start.rank).into_iter().flatten().cloned().chain(extra) {
                start.env.push((key.into_bytes(), value));
            }
            if let Some(shepherd) = self.shepherds.get(&slot) {
                shepherd.link.send(&shepherd::ToShepherd::Start(start));
            }
        }
    }

    /// Whether there are more ranks here than processors.
    fn oversubscribed(&self) -> bool {
        self.spec.world_size as usize > self.processors
    }

    /// A setting for the ranks, unless the user made it.
    pub(super) fn unless_set(&self, key: &str, value: impl Into<Vec<u8>>) -> Option<(String, Option<Vec<u8>>)> {
        let set = self.spec.env.iter().any(|(name, _)| name == key.as_bytes());
        (!set).then(|| (key.to_string(), Some(value.into())))
    }

    /// The world's session files.
    pub(super) fn pmix_dir(&self, number: WorldNumber) -> PathBuf {
        self.spec.job_dir.join(format!("pmix/w{number}"))
    }

    /// What Open MPI needs besides PMIx's variables: what keeps it from becoming a singleton, what its own launcher says
    /// when ranks share processors, and shared memory in the world's directory, which goes with the world.
    fn open_mpi_environment(&self, number: WorldNumber) -> Vec<(String, Option<Vec<u8>>)> {
        let mut env = vec![(pmix::NOT_SINGLETON.0.to_string(), Some(pmix::NOT_SINGLETON.1.into()))];
        if self.oversubscribed() {
            env.extend(self.unless_set(pmix::OVERSUBSCRIBED.0, pmix::OVERSUBSCRIBED.1));
        }
        for component in ["btl_vader", "btl_sm", "osc_rdma", "osc_sm"] {
            let key = &format!("OMPI_MCA_{component}_backing_directory");
            env.extend(self.unless_set(key, self.pmix_dir(number).into_os_string().into_vec()));
        }
        env
    }

    fn world_of_host(&mut self, host: HostId) -> Option<&mut World> {
        self.worlds.values_mut().find(|w| w.pmix.as_ref().is_some_and(|p| p.id == host))
    }

    /// Asks every `ft-pmix` whether it is there.
    pub(super) fn ask_pmix(&mut self) {
        let now = std::time::Instant::now();
        let in_time = self.beat.beat(now);
        let of_worlds = self.worlds.values_mut().filter_map(|world| world.pmix.as_mut());
        let hosts = of_worlds.chain(self.warm_pmix.as_mut());
        let said: Vec<String> = hosts.filter_map(|host| host.ask(in_time, now)).collect();
        said.into_iter().for_each(|line| self.notice(line));
    }

    pub(super) fn pmix_says(&mut self, host: HostId, message: pmix::ToAgent) {
        use pmix::{ToAgent, ToPmix};
        let of_worlds = self.worlds.values_mut().filter_map(|world| world.pmix.as_mut());
        if let Some(speaker) = of_worlds.chain(self.warm_pmix.as_mut()).find(|other| other.id == host) {
            speaker.answered();
        }
        if self.warm_pmix.as_ref().is_some_and(|p| p.id == host) {
            if let ToAgent::Failed { reason } = message {
                self.notice(format!("ft-pmix: {reason}"));
            }
            return;
        }
        let Some(world) = self.world_of_host(host) else { return };
        let number = world.number;
        let process = |world: &World, rank: Rank| world.members.get(&rank).map(|m| (m.process, m.link.is_some()));
        let answer = |world: &World, message: ToPmix| {
            if let Some(host) = &world.pmix {
                host.send(message);
            }
        };
        match message {
            ToAgent::Ready { version } => tracing::debug!(version, "libpmix"),
            ToAgent::Registered { env } => {
                world.pmix_env = Some(env.into_iter().collect());
                self.welcome_pmix(number);
            }
            ToAgent::Failed { reason } => {
                self.notice(format!("ft-pmix: {reason}"));
                self.report(Event::WorldServerLost(WorldId(number)));
            }
            ToAgent::Here | ToAgent::Connected { .. } | ToAgent::ModexData { .. } => {}
            // Ranks with a preload tell more exactly themselves.
            ToAgent::Finalized { rank } => {
                if let Some((process, false)) = process(world, rank) {
                    self.report(Event::Finalized(process));
                }
            }
            ToAgent::LostConnection { rank } => {
                if let Some(member) = world.members.get_mut(&rank)
                    && !member.ended
                    && member.died_of_signal()
                {
                    let process = member.process;
                    member.note_death(None);
                    self.report(Event::Dying(process));
                }
            }
            ToAgent::Abort { token, rank, status, message } => {
                tracing::info!(rank, status, message, "PMIx_Abort");
                world.aborts.entry(rank).or_default().push(token);
                if let Some((process, _)) = process(world, rank) {
                    self.report(Event::AbortRequested { process, code: status });
                }
            }
            ToAgent::Fence { token, data, .. } => {
                self.first_fence(number);
                if let Some(world) = self.worlds.get(&number) {
                    answer(world, ToPmix::FenceDone { token, status: status::SUCCESS, data });
                }
            }
            ToAgent::Modex { token, .. } => {
                answer(world, ToPmix::ModexDone { token, status: status::NOT_FOUND, data: Vec::new() });
            }
            ToAgent::Publish { token, values, .. } if published(world) + size(&values) > MOST_PUBLISHED => {
                answer(world, ToPmix::Done { token, status: status::OUT_OF_RESOURCE });
                let most = MOST_PUBLISHED >> 20;
                self.notice(format!("more than {most} MiB are published through PMIx: the last of it is refused"));
            }
            ToAgent::Lookup { token, .. } if world.lookups.len() >= MOST_LOOKUPS => {
                answer(world, ToPmix::Done { token, status: status::OUT_OF_RESOURCE });
            }
            ToAgent::Publish { token, proc, values } => {
                for (key, value) in values {
                    world.published.insert(key, (proc.clone(), value));
                }
                answer(world, ToPmix::Done { token, status: status::SUCCESS });
                let waiting = std::mem::take(&mut world.lookups);
                for (token, keys) in waiting {
                    lookup(world, token, keys, true);
                }
            }
            ToAgent::Lookup { token, keys, wait, .. } => lookup(world, token, keys, wait),
            ToAgent::Unpublish { token, keys, .. } => {
                world.published.retain(|key, _| !keys.is_empty() && !keys.contains(key));
                answer(world, ToPmix::Done { token, status: status::SUCCESS });
            }
            ToAgent::Connect { token, .. } => answer(world, ToPmix::Done { token, status: status::SUCCESS }),
            ToAgent::Spawn { token, command, .. } => {
                answer(world, ToPmix::Done { token, status: status::NOT_SUPPORTED });
                self.say_spawn_refused(&command);
            }
        }
    }

    pub(super) fn pmix_left(&mut self, host: HostId, reason: &str) {
        if self.warm_pmix.as_ref().is_some_and(|p| p.id == host) {
            tracing::warn!(reason, "the ft-pmix kept for the next world is gone");
            self.warm_pmix = None;
            return;
        }
        if let Some(world) = self.world_of_host(host) {
            let number = world.number;
            if let Some(host) = world.pmix.take() {
                host.kill();
            }
            // Ranks that have finalized, and worlds that end, need it no more.
            let needed = world.members.values().any(|m| !m.ended);
            if !world.stopping && needed {
                self.report(Event::WorldServerLost(WorldId(number)));
            }
        }
    }

    fn first_fence(&mut self, number: WorldNumber) {
        if self.worlds.get_mut(&number).is_some_and(|w| !std::mem::replace(&mut w.fenced, true)) {
            ft_sys::gate::reach("agent.fence", None);
        }
    }

    /// Opens a PMI-1 connection for `rank`: the rank's end and its environment.
    pub(super) fn open_pmi(&mut self, number: WorldNumber, rank: Rank) -> io::Result<(OwnedFd, Vec<(String, String)>)> {
        let size = self.spec.world_size as usize;
        let name = format!("{}.w{number}", self.spec.job);
        let inputs = self.inputs.clone();
        let world = self.worlds.get_mut(&number).ok_or(ErrorKind::NotFound)?;
        if world.pmi1.is_none() {
            world.pmi1 = Some(pmi_world(&name, size)?);
        }
        let env = world.pmi1.as_ref().map(|p| p.environment(rank)).unwrap_or_default();
        let (ours, theirs) = UnixStream::pair()?;
        let (queue, outgoing) = tokio::sync::mpsc::channel(PMI_ANSWERS);
        ours.set_nonblocking(true)?;
        let stream = tokio::net::UnixStream::from_std(ours)?;
        tokio::spawn(serve_pmi(number, rank, stream, outgoing, inputs));
        if let Some(member) = world.members.get_mut(&rank) {
            member.pmi = Some(queue);
        }
        Ok((OwnedFd::from(theirs), env))
    }

    pub(super) fn pmi_says(&mut self, number: WorldNumber, rank: Rank, bytes: &[u8]) {
        let Some(world) = self.worlds.get_mut(&number) else { return };
        if bytes.is_empty() {
            if let Some(member) = world.members.get_mut(&rank) {
                member.pmi = None;
            }
            return;
        }
        let Some(server) = &mut world.pmi1 else { return };
        match server.receive(rank, bytes) {
            Ok(actions) => self.pmi_does(number, actions),
            Err(error) => tracing::warn!(rank, %error, "PMI"),
        }
    }

    fn pmi_does(&mut self, number: WorldNumber, actions: Vec<ft_pmi1::Action>) {
        let mut pending = VecDeque::from(actions);
        while let Some(action) = pending.pop_front() {
            let Some(world) = self.worlds.get_mut(&number) else { return };
            let event = match action {
                ft_pmi1::Action::Send { rank, bytes } => {
                    let member = world.members.get_mut(&rank);
                    let full = |queue: &tokio::sync::mpsc::Sender<Vec<u8>>| {
                        matches!(queue.try_send(bytes), Err(tokio::sync::mpsc::error::TrySendError::Full(_)))
                    };
                    if let Some(member) = member
                        && member.pmi.as_ref().is_some_and(full)
                    {
                        member.pmi = None;
                        self.notice(format!("rank {rank} does not read what it asks for through PMI: it is cut off"));
                    }
                    continue;
                }
                ft_pmi1::Action::Event(event) => event,
            };
            let process = |rank: &Rank| world.members.get(rank).map(|m| (m.process, m.link.is_some()));
            match event {
                ft_pmi1::Event::BarrierReady { .. } => {
                    self.first_fence(number);
                    if let Some(Ok(actions)) =
                        self.worlds.get_mut(&number).and_then(|w| w.pmi1.as_mut()).map(|p| p.barrier_complete([]))
                    {
                        pending.extend(actions);
                    }
                }
                ft_pmi1::Event::Aborted { rank, code, message } => {
                    tracing::info!(rank, code, message, "PMI abort");
                    if let Some((process, _)) = process(&rank) {
                        self.report(Event::AbortRequested { process, code });
                    }
                }
                ft_pmi1::Event::Initialized { rank } => {
                    if let Some((process, false)) = process(&rank) {
                        self.report(Event::Initialized(process));
                    }
                }
                ft_pmi1::Event::Finalized { rank } => {
                    if let Some((process, false)) = process(&rank) {
                        self.report(Event::Finalized(process));
                    }
                }
                ft_pmi1::Event::Name { rank, request } => {
                    let answer = world.names.handle(&request);
                    if let Some(Ok(actions)) = world.pmi1.as_mut().map(|p| p.answer_name(rank, answer)) {
                        pending.extend(actions);
                    }
                }
                ft_pmi1::Event::SpawnRefused { command, .. } => self.say_spawn_refused(&command),
                ft_pmi1::Event::Full { rank, most } => self.notice(format!(
                    "rank {rank} puts more through PMI than the {} MiB that this job's keys may take: it is refused",
                    most >> 20
                )),
                ft_pmi1::Event::Broken { rank, error } => {
                    // It may wait for an answer; the end of its connection is one.
                    if let Some(member) = world.members.get_mut(&rank) {
                        member.pmi = None;
                    }
                    self.notice(format!("rank {rank} broke the PMI protocol: {error}"));
                }
                ft_pmi1::Event::Entered { .. } => {}
            }
        }
    }
}

/// The page that a rank shares with this agent. Where a file-size limit leaves no room for it, the rank gets one that nobody
/// else sees, and its death is seen by its shepherd alone.
fn shared_page() -> io::Result<(Option<std::sync::Arc<SharedMap>>, OwnedFd)> {
    let page = create_sparse_sealed_memfd("ft-rank-page", page::SIZE as u64)
        // Nobody can cut it, and touching it cannot fail.
        .and_then(|fd| allocate(&fd, 0, page::SIZE as u64).map(|()| fd))
        .and_then(|fd| Ok((Some(std::sync::Arc::new(SharedMap::map(&fd, 0, page::SIZE)?)), fd)));
    match page {
        Err(error) if error.kind() == ErrorKind::FileTooLarge => {
            let zero = std::fs::OpenOptions::new().read(true).write(true).open("/dev/zero")?;
            Ok((None, zero.into()))
        }
        other => other,
    }
}

fn size(values: &[(String, Vec<u8>)]) -> usize {
    values.iter().map(|(key, value)| key.len() + value.len() + 256).sum()
}

/// What is published, as [`size`] counts.
fn published(world: &World) -> usize {
    world.published.iter().map(|(key, (_, value))| key.len() + value.len() + 256).sum()
}

/// The PMI server of a world. MPICH 5 names its shared memory after the world, in 32 bits: where such a file lies already,
/// another job's or its remains, the ranks would hang, and the world gets another name.
fn pmi_world(name: &str, size: usize) -> io::Result<ft_pmi1::World> {
    for number in 0..NAMES {
        let name = if number == 0 { name.to_string() } else { format!("{name}.{number}") };
        let server = ft_pmi1::World::new(&name, vec![0; size], 0).map_err(io::Error::other)?;
        if !server.shared_memory_files().iter().any(|file| std::fs::symlink_metadata(file).is_ok()) {
            return Ok(server);
        }
    }
    Err(io::Error::other(format!("the shared-memory files of {NAMES} names are there already: /dev/shm/mpich_*")))
}

fn lookup(world: &mut World, token: u64, keys: Vec<String>, wait: bool) {
    let found: Vec<_> = keys
        .iter()
        .filter_map(|key| world.published.get(key).map(|(proc, value)| (proc.clone(), key.clone(), value.clone())))
        .collect();
    if wait && found.len() < keys.len() {
        world.lookups.push((token, keys));
        return;
    }
    let status = match found.len() {
        0 => status::NOT_FOUND,
        n if n == keys.len() => status::SUCCESS,
        _ => status::PARTIAL,
    };
    if let Some(host) = &world.pmix {
        host.send(pmix::ToPmix::Found { token, status, found });
    }
}

/// Watches a rank that is no direct child of its shepherd.
fn watch_pid(world: WorldNumber, rank: Rank, held: Arc<Held>, inputs: UnboundedSender<Input>) {
    tokio::spawn(async move {
        let descriptor = held.as_fd().try_clone_to_owned();
        if let Ok(pidfd) = descriptor.and_then(crate::ready::readable) {
            let _ = pidfd.readable().await.map(drop);
            let _ = inputs.send(Input::RankGone(world, rank));
        }
    });
}

async fn serve_pmi(
    world: WorldNumber,
    rank: Rank,
    stream: tokio::net::UnixStream,
    mut outgoing: tokio::sync::mpsc::Receiver<Vec<u8>>,
    inputs: UnboundedSender<Input>,
) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (mut reader, mut writer) = stream.into_split();
    tokio::spawn(async move {
        while let Some(bytes) = outgoing.recv().await {
            if writer.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    let room = std::sync::Arc::new(tokio::sync::Semaphore::new(PMI_CHUNKS));
    let mut bytes = [0; 8192];
    loop {
        // A rank that asks faster than the driver answers is stopped by its full socket.
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        match reader.read(&mut bytes).await {
            Ok(count) if count > 0 => {
                let input = Box::new(Input::Pmi(world, rank, bytes[..count].to_vec()));
                drop(inputs.send(Input::Metered(input, permit)));
            }
            _ => {
                let _ = inputs.send(Input::Pmi(world, rank, Vec::new()));
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_whose_files_are_there_is_not_taken_and_they_stay() {
        let name = format!("ftd-test-{}.w1", std::process::id());
        let [segment, window] = pmi_world(&name, 2).unwrap().shared_memory_files();
        std::fs::write(&window, "another's").unwrap();
        let others = pmi_world(&name, 2).unwrap().shared_memory_files();
        let kept = std::fs::read_to_string(&window).unwrap();
        std::fs::remove_file(&window).unwrap();
        assert_eq!(kept, "another's");
        assert!(!others.contains(&segment) && !others.contains(&window));
        assert_eq!(pmi_world(&name, 2).unwrap().shared_memory_files(), [segment, window]);
    }
}
