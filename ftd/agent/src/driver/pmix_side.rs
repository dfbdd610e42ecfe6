//! The ranks' MPI libraries that speak PMIx, with an `ft-pmix` in between.

use super::*;
use crate::library;
use crate::pmix_host::HostError;
use crate::published::{self, Full};
use ft_wire::pmix::{ERR_NOT_FOUND, ERR_NOT_SUPPORTED, ERR_OUT_OF_RESOURCE, Proc, SUCCESS, ToAgent, ToPmix};
use std::os::unix::ffi::OsStringExt;

impl Driver {
    /// Keeps one `ft-pmix` ready for the next world that wants one: its start is no part of a recovery.
    pub(super) fn warm_up(&mut self) {
        if self.speaks_pmix && self.warm_pmix.is_none() {
            self.warm_pmix = self.start_pmix();
        }
    }

    /// MPI Sessions need PMIx groups, and what a server answers to those has changed within the versions of PMIx: this `ft-pmix`,
    /// and those of later worlds, run on the library that the MPI itself has loaded.
    pub(super) fn serve_sessions(&mut self, pid: i32) {
        if self.libpmix.is_some() {
            return;
        }
        self.libpmix = library::loaded(pid, b"libpmix.so");
        if let Some(library) = &self.libpmix {
            tracing::info!(library = %library.display(), "ft-pmix runs on the program's libpmix from now on");
            self.warm_pmix.take().into_iter().for_each(PmixHost::kill);
        }
    }

    pub(super) fn start_pmix(&mut self) -> Option<PmixHost> {
        let id = self.next_host;
        self.next_host += 1;
        let tmpdir = Path::new(&self.spec.job_dir).join("pmix").join(format!("{}-{id}", std::process::id()));
        match PmixHost::start(id, &self.spec.ft_pmix, self.libpmix.as_deref(), &tmpdir, self.inputs.clone()) {
            Ok(host) => Some(host),
            Err(error) => {
                self.without_pmix(&error);
                None
            }
        }
    }

    /// One of another build would be as well the next time: the job ends. Before the first world there is nobody to end, and
    /// that world asks again.
    fn without_pmix(&mut self, error: &HostError) {
        let newest = self.worlds.values().next_back();
        let process = newest.and_then(|world| world.members.values().next()).map(|member| member.process);
        match (error, process) {
            (HostError::Build(_), Some(process)) => {
                self.report(Event::StartFailed { process, reason: error.to_string(), status: 1 });
            }
            (HostError::Build(_), None) => {}
            (HostError::Start { .. }, _) => self.notice(error.to_string()),
        }
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

    pub(super) fn welcome_pmix(&mut self, number: WorldNumber) {
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
        let of_worlds = self.worlds.values_mut().filter_map(|world| world.pmix.as_mut());
        let Some(speaker) = of_worlds.chain(self.warm_pmix.as_mut()).find(|other| other.id == host) else { return };
        speaker.answered();
        if let ToAgent::Failed { reason } = message {
            return self.pmix_fails(host, &reason);
        }
        // The one that is kept for the next world has no world yet.
        let Some(world) = self.world_of_host(host) else { return };
        let number = world.number;
        match message {
            ToAgent::Ready { version } => tracing::debug!(version, "libpmix"),
            ToAgent::Registered { env } => {
                world.pmix_env = Some(env.into_iter().collect());
                self.welcome_pmix(number);
            }
            ToAgent::Connected { rank } => self.is_served(number, rank),
            ToAgent::Here | ToAgent::ModexData { .. } | ToAgent::Failed { .. } => {}
            ToAgent::Finalized { rank } => self.finalized_without_preload(number, rank),
            ToAgent::LostConnection { rank } => {
                let member = world.members.get_mut(&rank).filter(|member| !member.ended);
                if let Some(member) = member.filter(|member| member.died_of_signal()) {
                    let process = member.process;
                    member.note_death(None);
                    self.report(Event::Dying(process));
                }
                self.is_served_no_more(number, rank);
            }
            ToAgent::Abort { token, rank, status, message } => {
                tracing::info!(rank, status, message, "PMIx_Abort");
                world.aborts.entry(rank).or_default().push(token);
                if let Some(process) = world.members.get(&rank).map(|member| member.process) {
                    self.report(Event::AbortRequested { process, code: status });
                }
            }
            ToAgent::Fence { token, data, .. } => {
                self.first_fence(number);
                self.answer_pmix(number, [ToPmix::FenceDone { token, status: SUCCESS, data }]);
            }
            ToAgent::Publish { token, proc, values } => self.publish(number, token, &proc, values),
            request => self.answer_pmix_request(number, request),
        }
    }

    /// What is answered from what is known here.
    fn answer_pmix_request(&mut self, number: WorldNumber, request: ToAgent) {
        let Some(world) = self.worlds.get_mut(&number) else { return };
        let done = |token, status| Some(ToPmix::Done { token, status });
        let answer = match request {
            ToAgent::Modex { token, .. } => Some(ToPmix::ModexDone { token, status: ERR_NOT_FOUND, data: Vec::new() }),
            ToAgent::Lookup { token, keys, wait, .. } => world.published.look_up(token, keys, wait),
            ToAgent::Unpublish { token, keys, .. } => {
                world.published.unpublish(&keys);
                done(token, SUCCESS)
            }
            ToAgent::Connect { token, .. } => done(token, SUCCESS),
            ToAgent::Spawn { token, command, .. } => {
                self.say_spawn_refused(&command);
                done(token, ERR_NOT_SUPPORTED)
            }
            _ => None,
        };
        self.answer_pmix(number, answer);
    }

    fn answer_pmix(&self, number: WorldNumber, answers: impl IntoIterator<Item = ToPmix>) {
        if let Some(host) = self.worlds.get(&number).and_then(|world| world.pmix.as_ref()) {
            answers.into_iter().for_each(|answer| host.send(answer));
        }
    }

    fn publish(&mut self, number: WorldNumber, token: u64, proc: &Proc, values: Vec<(String, Vec<u8>)>) {
        let Some(world) = self.worlds.get_mut(&number) else { return };
        match world.published.publish(proc, values) {
            Ok(waiting) => {
                let done = ToPmix::Done { token, status: SUCCESS };
                self.answer_pmix(number, std::iter::once(done).chain(waiting));
            }
            Err(Full) => {
                self.answer_pmix(number, [ToPmix::Done { token, status: ERR_OUT_OF_RESOURCE }]);
                let most = published::MOST_BYTES >> 20;
                self.notice(format!("more than {most} MiB are published through PMIx: the last of it is refused"));
            }
        }
    }

    /// libpmix does not serve. What has never worked here would not the next time either; what has may again.
    fn pmix_fails(&mut self, host: HostId, reason: &str) {
        let Some(world) = self.world_of_host(host) else {
            // Whoever needs one will hear it from its own.
            return self.warm_pmix.take().into_iter().for_each(PmixHost::kill);
        };
        let (number, first) = (world.number, world.members.values().next().map(|member| member.process));
        match first.filter(|_| number == 1) {
            Some(process) => {
                let reason = format!("there is no PMIx server for it (ft-pmix): {reason}");
                self.report(Event::StartFailed { process, reason, status: 1 });
            }
            None => {
                self.notice(format!("ft-pmix: {reason}"));
                self.report(Event::WorldServerLost(WorldId(number)));
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
}
