//! The ranks' MPI libraries that speak PMIx, with an `ft-pmix` in between.

use crate::between::group_part;
use crate::job::Job;
use crate::library;
use crate::outlet::Outlet;
use crate::pmix_host::{self, HostError, HostId, PmixHost};
use crate::shepherds::Shepherds;
use crate::too_long::Whose;
use crate::wish::Wish;
use crate::world::World;
use crate::worlds::Worlds;
use ft_sys::job_time;
use ft_wire::between::{Asker, NameAnswer, NameRequest, Protocol};
use ft_wire::pmix::{self, ERR_NOT_FOUND, ERR_NOT_SUPPORTED, ERROR, Proc, Raised, SUCCESS, ToAgent, ToPmix};
use ft_wire::shepherd::{Start, ToShepherd};
use ft_wire::{Rank, Slot, World as WorldNumber, rank};
use ftd_core::{Event, Family, NodeId, Process, WorldId};
use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// For so long an `ft-pmix` that the system does not start is tried again: processes and memory that are short for a moment.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause before that.
const PAUSE: Duration = Duration::from_millis(200);

/// What one world has of it.
#[derive(Debug, Default)]
struct Served {
    host: Option<PmixHost>,
    /// Since when none can be started.
    lacks: Option<Instant>,
    /// The environment by rank, once the host has registered the world.
    env: Option<BTreeMap<Rank, pmix::Variables>>,
    /// Ranks whose welcome waits for that, and the descriptors of their pages with it.
    waiting: BTreeMap<Rank, OwnedFd>,
    /// Starts that wait for it (static programs).
    deferred: Vec<(Slot, Start)>,
    /// `PMIx_Abort` calls that wait for an answer, by rank.
    aborts: BTreeMap<Rank, Vec<u64>>,
    /// All ranks have been inside a fence.
    fenced: bool,
    /// Who on another node waits for the data of a rank, and as what: by the token of the question to the host.
    asked: BTreeMap<u64, (NodeId, u64)>,
    /// Such questions that wait for the host.
    questions: Vec<(u64, Proc)>,
    /// The last of those tokens.
    last_question: u64,
    /// Events of other nodes that wait for the host.
    raised: VecDeque<Raised>,
}

/// As many events libpmix keeps for processes that are not there yet; then the oldest go.
const MOST_EVENTS: usize = 512;

/// One that is ready for the next world.
#[derive(Debug)]
struct Warm {
    host: PmixHost,
    /// It has been told of this world, though nobody has asked for it there.
    ahead: Option<WorldNumber>,
    /// What it has said to that.
    env: Option<BTreeMap<Rank, pmix::Variables>>,
}

/// The servers of all worlds, and one that is ready for the next.
#[derive(Debug)]
pub struct Pmix {
    worlds: BTreeMap<WorldNumber, Served>,
    warm: Option<Warm>,
    /// The libpmix that the next `ft-pmix` runs on, if not on that which it was built for.
    libpmix: Option<PathBuf>,
    next_host: HostId,
    beat: ft_sys::pulse::Beat,
    wanted: bool,
    news: Outlet<pmix_host::News>,
}

/// What follows outside of here from a word of an `ft-pmix`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follows {
    /// Nothing.
    Nothing,
    /// A rank of this world is served no more: what may come after it in a script is to be looked for.
    Unserved(WorldNumber),
}

impl Pmix {
    /// No server yet.
    pub fn new(job: &Job, news: Outlet<pmix_host::News>) -> Pmix {
        Pmix {
            worlds: BTreeMap::new(),
            warm: None,
            libpmix: None,
            next_host: 1,
            beat: ft_sys::pulse::Beat::new(std::time::Instant::now()),
            wanted: job.spec.expect_pmix,
            news,
        }
    }

    /// Keeps one `ft-pmix` ready for the next world that wants one: its start is no part of a recovery.
    pub fn warm_up(&mut self, job: &mut Job, worlds: &Worlds) {
        if self.wanted && self.warm.is_none() {
            self.warm = match self.start(job) {
                Ok(host) => Some(Warm { host, ahead: None, env: None }),
                Err(error @ HostError::Build(_)) => {
                    // One of another build would be as well the next time. Before the first world there is nobody to end, and
                    // that world asks again.
                    let process = worlds.all().next_back().and_then(World::first);
                    process.into_iter().for_each(|process| cannot_be_served(job, process, error.to_string()));
                    None
                }
                Err(error) => {
                    tracing::warn!(%error, "none is ready for the next world");
                    None
                }
            }
        }
    }

    /// The one that is ready is told of a world whose ranks are about to be started: by the time when they ask it has made ready what they
    /// need.
    pub fn register_ahead(&mut self, job: &Job, worlds: &Worlds, number: WorldNumber) {
        // One that has a server already needs the one that is ready for the next.
        if self.worlds.get(&number).is_some_and(|served| served.host.is_some()) {
            return;
        }
        let Some(warm) = self.warm.as_mut().filter(|warm| warm.ahead.is_none()) else { return };
        let Some(world) = worlds.running(number).filter(|world| !world.members.is_empty()) else { return };
        warm.host.send(ToPmix::Register(world_info(job, world)));
        warm.ahead = Some(number);
    }

    /// MPI Sessions need PMIx groups, and what a server answers to those has changed within the versions of PMIx: this `ft-pmix`,
    /// and those of later worlds, run on the library that the MPI itself has loaded.
    pub fn serve_sessions(&mut self, pid: i32) {
        if self.libpmix.is_some() {
            return;
        }
        self.libpmix = library::loaded(pid, b"libpmix.so");
        if let Some(library) = &self.libpmix {
            tracing::info!(library = %library.display(), "ft-pmix runs on the program's libpmix from now on");
            self.warm.take().into_iter().for_each(|warm| drop(warm.host.kill()))
        }
    }

    fn start(&mut self, job: &Job) -> Result<PmixHost, HostError> {
        let id = self.next_host;
        self.next_host += 1;
        let job_dir = Path::new(&job.spec.job_dir);
        let tmpdir = job_dir.join("pmix").join(format!("{}-{id}", std::process::id()));
        PmixHost::start(id, &job.spec.ft_pmix, self.libpmix.as_deref(), (job_dir, &tmpdir), self.news.clone())
    }

    /// None was started for the world: it is tried again, and after a while the job ends.
    fn lacks(&mut self, job: &mut Job, worlds: &Worlds, number: WorldNumber, error: &HostError) {
        let Some(process) = worlds.running(number).and_then(World::first) else { return };
        let patience = ft_sys::timescale::scaled(PATIENCE);
        let lacks = &mut self.worlds.entry(number).or_default().lacks;
        let for_long = lacks.is_some_and(|since| job_time::now().saturating_duration_since(since) >= patience);
        match error {
            HostError::Build(_) => cannot_be_served(job, process, error.to_string()),
            HostError::Start { .. } if for_long => {
                cannot_be_served(job, process, format!("{error}, tried for {} s", patience.as_secs_f64().ceil()));
            }
            HostError::Start { .. } => {
                if lacks.is_none() {
                    *lacks = Some(job_time::now());
                    job.notice(format!("{error}; it is tried again for {} s", patience.as_secs_f64().ceil()));
                    self.try_again(number);
                }
            }
        }
    }

    /// The ranks wait meanwhile.
    fn try_again(&self, number: WorldNumber) {
        let news = self.news.clone();
        tokio::spawn(async move {
            tokio::time::sleep(ft_sys::timescale::scaled(PAUSE)).await;
            news.send(pmix_host::News::Again(number));
        });
    }

    /// It is time to try again to start one.
    pub fn serve_again(&mut self, job: &mut Job, worlds: &Worlds, number: WorldNumber) {
        self.serve(job, worlds, number);
        let lacks = self.worlds.get(&number).is_some_and(|served| served.lacks.is_some());
        if lacks && worlds.running(number).is_some() && !job.over {
            self.try_again(number);
        }
    }

    /// Makes sure that the world has a host for libpmix.
    pub fn serve(&mut self, job: &mut Job, worlds: &Worlds, number: WorldNumber) {
        self.wanted = true;
        let taken =
            worlds.get(number).is_none() || self.worlds.get(&number).is_some_and(|served| served.host.is_some());
        if taken {
            return;
        }
        let fresh = |host| Warm { host, ahead: None, env: None };
        let Warm { host, ahead, env } = match self.warm.take().map_or_else(|| self.start(job).map(fresh), Ok) {
            Ok(warm) => warm,
            Err(error) => return self.lacks(job, worlds, number, &error),
        };
        let Some(world) = worlds.get(number) else { return };
        if ahead != Some(number) {
            host.send(ToPmix::Register(world_info(job, world)));
        }
        let served = self.worlds.entry(number).or_default();
        served.env = env.filter(|_| ahead == Some(number));
        for (token, proc) in std::mem::take(&mut served.questions) {
            host.send(ToPmix::ModexRequest { token, proc });
        }
        for event in std::mem::take(&mut served.raised) {
            host.send(ToPmix::Raise(event));
        }
        (served.host, served.lacks) = (Some(host), None);
    }

    /// These processes of a static program start when the environment is known.
    pub fn defer(&mut self, number: WorldNumber, starts: Vec<(Slot, Start)>) {
        self.worlds.entry(number).or_default().deferred = starts;
    }

    /// Those that have been waiting for it are not started any more: the job, or the world, is over.
    pub fn take_deferred(&mut self, number: WorldNumber) -> Vec<(Slot, Start)> {
        self.worlds.get_mut(&number).map(|served| std::mem::take(&mut served.deferred)).unwrap_or_default()
    }

    /// The same of one slot.
    pub fn take_deferred_of(&mut self, number: WorldNumber, slot: Slot) -> Vec<Start> {
        let deferred = self.worlds.get_mut(&number).map(|served| &mut served.deferred);
        deferred
            .into_iter()
            .flat_map(|starts| starts.extract_if(.., |(of, _)| *of == slot))
            .map(|(_, start)| start)
            .collect()
    }

    /// A rank has joined that waits for its environment, and its page with it.
    pub fn await_welcome(&mut self, number: WorldNumber, rank: Rank, page: OwnedFd) {
        self.worlds.entry(number).or_default().waiting.insert(rank, page);
    }

    /// Gives the environment to those that wait for it, if it is known.
    pub fn welcome(&mut self, job: &Job, worlds: &Worlds, shepherds: &Shepherds, number: WorldNumber) {
        let Some(served) = self.worlds.get_mut(&number) else { return };
        let Some(env) = &served.env else { return };
        for (rank, page) in std::mem::take(&mut served.waiting) {
            let mut all: Vec<(String, Option<Vec<u8>>)> =
                env.get(&rank).into_iter().flatten().map(|(k, v)| (k.clone(), Some(v.clone()))).collect();
            for key in ["PMI_FD", "PMI_RANK", "PMI_SIZE", "PMI_PORT", "PMI_ID"] {
                all.push((key.into(), None));
            }
            all.extend(open_mpi_environment(job, number, rank));
            if let Some(link) = worlds.member(number, rank).and_then(|member| member.link.as_ref()) {
                link.send_with(&rank::ToRank::Welcome { env: all, pmi_fd: false }, vec![page]);
            }
        }
        for (slot, mut start) in std::mem::take(&mut served.deferred) {
            let extra = open_mpi_environment(job, number, start.rank);
            let extra = extra.into_iter().filter_map(|(key, value)| Some((key, value?)));
            for (key, value) in env.get(&start.rank).into_iter().flatten().cloned().chain(extra) {
                start.env.push((key.into_bytes(), value));
            }
            shepherds.tell(slot, &ToShepherd::Start(start));
        }
    }

    /// Ends the server of a world of which nothing is left.
    pub fn kill(&mut self, number: WorldNumber) {
        if let Some(host) = self.worlds.get_mut(&number).and_then(|served| served.host.take()) {
            drop(host.kill());
        }
    }

    /// The same; nobody is left who could ask.
    pub fn forget(&mut self, number: WorldNumber) {
        self.kill(number);
        // Nobody has asked for it.
        let unused = self.warm.take_if(|warm| warm.ahead == Some(number));
        unused.into_iter().for_each(|warm| drop(warm.host.kill()));
        self.worlds.remove(&number);
    }

    /// Ends them all; what is returned is over when they are gone.
    pub fn kill_all(&mut self) -> Vec<JoinHandle<()>> {
        let of_worlds = self.worlds.values_mut().filter_map(|served| served.host.take());
        self.warm.take().map(|warm| warm.host).into_iter().chain(of_worlds).map(PmixHost::kill).collect()
    }

    /// The worlds that go on and whose server is dead, whatever has been heard of it so far.
    pub fn dead(&self, worlds: &Worlds) -> Vec<WorldNumber> {
        let dead = |served: &Served| served.host.as_ref().is_some_and(PmixHost::is_dead);
        let served = self.worlds.iter().filter(|(number, served)| worlds.running(**number).is_some() && dead(served));
        served.map(|(number, _)| *number).collect()
    }

    /// Asks every `ft-pmix` whether it is there.
    pub fn ask(&mut self, job: &Job) {
        let now = std::time::Instant::now();
        let in_time = self.beat.beat(now);
        let said: Vec<String> = self.hosts().filter_map(|host| host.ask(in_time, now)).collect();
        said.into_iter().for_each(|line| job.notice(line));
    }

    fn hosts(&mut self) -> impl Iterator<Item = &mut PmixHost> {
        let warm = self.warm.as_mut().map(|warm| &mut warm.host);
        self.worlds.values_mut().filter_map(|served| served.host.as_mut()).chain(warm)
    }

    fn world_of(&self, host: HostId) -> Option<WorldNumber> {
        let serves = |served: &Served| served.host.as_ref().is_some_and(|other| other.id == host);
        self.worlds.iter().find(|(_, served)| serves(served)).map(|(number, _)| *number)
    }

    /// The abort was the program's own wish: its process may go on with it.
    pub fn proceed(&mut self, number: WorldNumber, rank: Rank) {
        let Some(served) = self.worlds.get_mut(&number) else { return };
        for token in served.aborts.remove(&rank).into_iter().flatten() {
            served.answer([ToPmix::Done { token, status: 0 }]);
        }
    }

    /// An `ft-pmix` says something.
    pub fn take(
        &mut self,
        job: &mut Job,
        worlds: &mut Worlds,
        shepherds: &Shepherds,
        host: HostId,
        message: ToAgent,
    ) -> Follows {
        let Some(speaker) = self.hosts().find(|other| other.id == host) else { return Follows::Nothing };
        speaker.answered();
        if let ToAgent::Failed { reason } = message {
            self.fails(job, worlds, host, &reason);
            return Follows::Nothing;
        }
        if let Some(warm) = self.warm.as_mut().filter(|warm| warm.host.id == host) {
            if let ToAgent::Registered { env } = message {
                warm.env = Some(env.into_iter().collect());
            }
            return Follows::Nothing;
        }
        let Some(number) = self.world_of(host) else { return Follows::Nothing };
        if let ToAgent::Registered { env } = message {
            self.worlds.entry(number).or_default().env = Some(env.into_iter().collect());
            self.welcome(job, worlds, shepherds, number);
            return Follows::Nothing;
        }
        let Some(served) = self.worlds.get_mut(&number) else { return Follows::Nothing };
        match message {
            ToAgent::Ready { version } => tracing::debug!(version, "libpmix"),
            ToAgent::TooLong { rank, error } => tell_too_much(job, worlds, number, rank, &error),
            ToAgent::Connected { rank } => worlds.is_served(job, shepherds, (number, rank), Family::OpenMpi),
            ToAgent::Finalized { token, rank } => {
                worlds.finalized_without_preload(job, number, rank);
                served.answer([ToPmix::Done { token, status: SUCCESS }]);
            }
            ToAgent::LostConnection { rank } => {
                worlds.connection_lost(job, number, rank);
                worlds.is_served_no_more(number, rank);
                return Follows::Unserved(number);
            }
            ToAgent::Abort { token, rank, status, message } => {
                tracing::info!(rank, status, message, "PMIx_Abort");
                served.aborts.entry(rank).or_default().push(token);
                if let Some(process) = worlds.process(number, rank) {
                    job.report(Event::AbortRequested { process, code: status });
                }
            }
            ToAgent::ModexData { token, rank, status, data } => {
                if let Some((to, token)) = served.asked.remove(&token) {
                    job.wish(number, Wish::ModexData { to, token, rank, status, data });
                }
            }
            request if worlds.get(number).is_some_and(|world| !world.layout.is_alone()) => {
                served.ask_others(job, number, request);
            }
            request => served.answer_request(job, number, request),
        }
        Follows::Nothing
    }

    /// All nodes are in a fence.
    pub fn fenced(&mut self, number: WorldNumber, token: u64, data: Vec<u8>) {
        if let Some(served) = self.worlds.get_mut(&number) {
            served.answer([ToPmix::FenceDone { token, status: SUCCESS, data }]);
        }
    }

    /// All nodes have come to a connect or a disconnect.
    pub fn gathered(&mut self, number: WorldNumber, token: u64) {
        if let Some(served) = self.worlds.get_mut(&number) {
            served.answer([ToPmix::Done { token, status: SUCCESS }]);
        }
    }

    /// All members of a group are in, and this is its number, and what the nodes have given.
    pub fn grouped(&mut self, number: WorldNumber, token: u64, group: Option<(u64, Vec<u8>)>) {
        let status = if group.is_some() { SUCCESS } else { ERROR };
        let (context, shared) = group.unwrap_or_default();
        if let Some(served) = self.worlds.get_mut(&number) {
            served.answer([ToPmix::GroupDone { token, status, context, shared }]);
        }
    }

    /// A rank of another node has raised an event.
    pub fn raised(&mut self, number: WorldNumber, event: Raised) {
        let served = self.worlds.entry(number).or_default();
        match &served.host {
            Some(host) => host.send(ToPmix::Raise(event)),
            None => {
                served.raised.push_back(event);
                let too_many = served.raised.len().saturating_sub(MOST_EVENTS);
                served.raised.drain(..too_many);
            }
        }
    }

    /// Another node wants to know what a rank of this one has put.
    pub fn modex_asked(&mut self, number: WorldNumber, from: NodeId, token: u64, proc: Proc) {
        let served = self.worlds.entry(number).or_default();
        served.last_question += 1;
        let question = served.last_question;
        served.asked.insert(question, (from, token));
        match &served.host {
            Some(host) => host.send(ToPmix::ModexRequest { token: question, proc }),
            None => served.questions.push((question, proc)),
        }
    }

    /// What a rank on another node has put.
    pub fn modex_done(&mut self, number: WorldNumber, token: u64, status: i32, data: Vec<u8>) {
        if let Some(served) = self.worlds.get_mut(&number) {
            served.answer([ToPmix::ModexDone { token, status, data }]);
        }
    }

    /// What came of a request about published names.
    pub fn named(&mut self, number: WorldNumber, token: u64, NameAnswer { status, found }: NameAnswer) {
        if let Some(served) = self.worlds.get_mut(&number) {
            served.answer([ToPmix::Found { token, status, found }]);
        }
    }

    /// libpmix does not serve. What has never worked here would not the next time either; what has may again.
    fn fails(&mut self, job: &mut Job, worlds: &Worlds, host: HostId, reason: &str) {
        let Some(number) = self.world_of(host) else {
            // Whoever needs one will hear it from its own.
            return self.warm.take().into_iter().for_each(|warm| drop(warm.host.kill()));
        };
        match worlds.get(number).and_then(World::first).filter(|_| number == 1) {
            Some(process) => {
                cannot_be_served(job, process, format!("there is no PMIx server for it (ft-pmix): {reason}"));
            }
            None => {
                job.notice(format!("ft-pmix: {reason}"));
                job.report(Event::WorldServerLost(WorldId(number)));
            }
        }
    }

    /// What its ranks are to hear is longer than what an `ft-pmix` can be told, this one and any other.
    pub fn cannot_tell(&self, job: &mut Job, worlds: &Worlds, host: HostId, error: &str) {
        let Some(number) = self.world_of(host) else { return };
        let reason = node_or_all(worlds, number).hear_too_much("PMIx", error);
        job.report(Event::CannotGoOn { world: WorldId(number), reason });
    }

    /// An `ft-pmix` is gone.
    pub fn left(&mut self, job: &mut Job, worlds: &Worlds, host: HostId, reason: &str) {
        if self.warm.as_ref().is_some_and(|warm| warm.host.id == host) {
            tracing::warn!(reason, "the ft-pmix kept for the next world is gone");
            self.warm = None;
            return;
        }
        let Some(number) = self.world_of(host) else { return };
        self.kill(number);
        // Ranks that have finalized, and worlds that end, need it no more.
        let needed = |world: &World| world.members.values().any(|m| !m.ended);
        if worlds.running(number).is_some_and(needed) {
            job.report(Event::WorldServerLost(WorldId(number)));
        }
    }
}

impl Served {
    /// What is answered from what is known here, and what is asked of the keeper of names, wherever that is.
    fn answer_request(&mut self, job: &mut Job, number: WorldNumber, request: ToAgent) {
        let done = |token, status| Some(ToPmix::Done { token, status });
        let answer = match request {
            ToAgent::Fence { token, data, .. } => {
                if !std::mem::replace(&mut self.fenced, true) {
                    ft_sys::gate::reach("agent.fence", None);
                }
                Some(ToPmix::FenceDone { token, status: SUCCESS, data })
            }
            ToAgent::Publish { token, proc, values, once } => {
                return ask_of_names(job, number, token, NameRequest::Publish { proc, values, once });
            }
            ToAgent::Lookup { token, keys, wait, seconds, .. } => {
                return ask_of_names(job, number, token, NameRequest::LookUp { keys, wait, seconds });
            }
            ToAgent::Unpublish { token, proc, keys } => {
                return ask_of_names(job, number, token, NameRequest::Unpublish { proc: Some(proc), keys });
            }
            ToAgent::Modex { token, .. } => Some(ToPmix::ModexDone { token, status: ERR_NOT_FOUND, data: Vec::new() }),
            ToAgent::Connect { token, .. } => done(token, SUCCESS),
            ToAgent::Spawn { token, command, .. } => {
                job.say_spawn_refused(&command);
                done(token, ERR_NOT_SUPPORTED)
            }
            _ => None,
        };
        self.answer(answer);
    }

    /// The same in a world that has ranks on other nodes.
    fn ask_others(&mut self, job: &mut Job, number: WorldNumber, request: ToAgent) {
        match request {
            ToAgent::Fence { token, procs, data } => {
                if !std::mem::replace(&mut self.fenced, true) {
                    ft_sys::gate::reach("agent.fence", None);
                }
                fence(job, number, (Protocol::Pmix, token), &procs, data);
            }
            // Everybody is to have come to it.
            ToAgent::Connect { token, procs, connect } => {
                let protocol = if connect { Protocol::Connect } else { Protocol::Disconnect };
                fence(job, number, (protocol, token), &procs, Vec::new());
            }
            ToAgent::Modex { token, proc } => job.wish(number, Wish::Modex { token, proc }),
            ToAgent::Group { token, name, procs, context, shared } => {
                let data = group_part(context, &shared);
                fence(job, number, (Protocol::Group(number_of(&name)), token), &procs, data);
            }
            ToAgent::Raised(event) => job.wish(number, Wish::Event(event)),
            request => self.answer_request(job, number, request),
        }
    }

    fn answer(&self, answers: impl IntoIterator<Item = ToPmix>) {
        if let Some(host) = &self.host {
            answers.into_iter().for_each(|answer| host.send(answer));
        }
    }
}

/// A rank, or all of a node, tell more than can be passed on.
fn tell_too_much(job: &mut Job, worlds: &Worlds, number: WorldNumber, rank: Option<Rank>, error: &str) {
    // What a rank raises may name anything as its source.
    let whose = rank.filter(|rank| *rank < job.spec.world_size);
    let whose = whose.map_or_else(|| node_or_all(worlds, number), Whose::Rank);
    job.report(Event::CannotGoOn { world: WorldId(number), reason: whose.tell_too_much("PMIx", error) });
}

/// Whose it is what no single rank has said.
fn node_or_all(worlds: &Worlds, number: WorldNumber) -> Whose {
    let layout = worlds.get(number).map(|world| &world.layout).filter(|layout| !layout.is_alone());
    layout.map_or(Whose::All, |layout| Whose::Node(layout.places()[layout.me()].node))
}

/// The node that keeps the published names does this, which may be this one.
fn ask_of_names(job: &mut Job, number: WorldNumber, token: u64, request: NameRequest) {
    job.wish(number, Wish::Name { asker: Asker::Pmix(token), request });
}

/// All of these processes that are here are in a fence.
fn fence(job: &mut Job, number: WorldNumber, (protocol, token): (Protocol, u64), procs: &[Proc], data: Vec<u8>) {
    let ranks = runs(procs, job.spec.world_size);
    job.wish(number, Wish::Fence { protocol, ranks, token, data });
}

/// Groups of the same ranks that come about at the same time are told apart by their names.
fn number_of(name: &str) -> u64 {
    // Of one build, which the nodes have in common, it is the same everywhere.
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

/// The ranks of these processes as runs: first and behind the last.
fn runs(procs: &[Proc], world_size: u32) -> Vec<(Rank, Rank)> {
    if procs.is_empty() || procs.iter().any(|proc| proc.rank >= world_size) {
        return vec![(0, world_size)];
    }
    let mut ranks: Vec<Rank> = procs.iter().map(|proc| proc.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let mut runs: Vec<(Rank, Rank)> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, end)) if *end == rank => *end += 1,
            _ => runs.push((rank, rank + 1)),
        }
    }
    runs
}

/// What its server has to know of a world.
fn world_info(job: &Job, world: &World) -> pmix::WorldInfo {
    let (number, layout) = (world.number, &world.layout);
    pmix::WorldInfo {
        tmpdir: directory(job, number),
        nspace: nspace(job, number),
        world_size: job.spec.world_size,
        nodes: layout.places().iter().map(|place| (place.host.clone(), place.ranks.clone())).collect(),
        me: u32::try_from(layout.me()).unwrap_or(u32::MAX),
        incarnation: u32::try_from(number - 1).unwrap_or(u32::MAX),
        apps: job.spec.programs.iter().map(app).collect(),
    }
}

fn nspace(job: &Job, number: WorldNumber) -> String {
    format!("{}.w{number}", job.spec.job)
}

/// The world's session files.
pub fn directory(job: &Job, number: WorldNumber) -> PathBuf {
    job.spec.job_dir.join(format!("pmix/w{number}"))
}

fn cannot_be_served(job: &mut Job, process: Process, reason: String) {
    job.report(Event::StartFailed { process, reason, status: 1 });
}

fn app(program: &ft_wire::launcher::Program) -> pmix::App {
    let argv0 = program.argv.first().cloned().unwrap_or_default();
    pmix::App { ranks: program.ranks, argv0, cwd: program.cwd.clone() }
}

/// What Open MPI needs besides PMIx's variables: what keeps it from becoming a singleton, what its own launcher says
/// when ranks share processors, and shared memory in the world's directory, which goes with the world.
fn open_mpi_environment(job: &Job, number: WorldNumber, rank: Rank) -> Vec<(String, Option<Vec<u8>>)> {
    let mut env = vec![(pmix::NOT_SINGLETON.0.to_string(), Some(pmix::NOT_SINGLETON.1.into()))];
    if job.oversubscribed() {
        env.extend(job.unless_set(rank, pmix::OVERSUBSCRIBED.0, pmix::OVERSUBSCRIBED.1));
    }
    for component in ["btl_vader", "btl_sm", "osc_rdma", "osc_sm"] {
        let key = &format!("OMPI_MCA_{component}_backing_directory");
        env.extend(job.unless_set(rank, key, directory(job, number).into_os_string().into_vec()));
    }
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_runs_of_ranks_and_a_wildcard_is_all() {
        let procs = |ranks: &[Rank]| -> Vec<Proc> {
            ranks.iter().map(|rank| Proc { nspace: "n".into(), rank: *rank }).collect()
        };
        assert_eq!(runs(&procs(&[3, 0, 1, 3]), 5), [(0, 2), (3, 4)]);
        assert_eq!(runs(&procs(&[u32::MAX - 1]), 5), [(0, 5)]);
        assert_eq!(runs(&[], 2), [(0, 2)]);
    }
}
