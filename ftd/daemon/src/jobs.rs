//! Jobs over several nodes, for the `ftrun` on this node that asks for one: finds the nodes, and has a part made ready on each. Who asks is who the kernel says.

use crate::comebacks::{Comebacks, Team};
use crate::config::Config;
use crate::etcd::Asked;
use crate::frames::{self, Broken, within};
use crate::kept::{self, Kept, Link};
use crate::places::{Place, Places, Prepared, Refusal, address, prepare, random};
use crate::said::ToLauncher;
use crate::served::{Served, note};
use crate::state::{Launched, State};
use crate::{agents, elsewhere, link, parts, peers, steps};
use ft_store::Etcd;
use ft_sys::peer::Peer;
use ft_wire::cluster::{Cluster, ClusterNode, Hidden, LEAST_PERIODS, StoreAddress};
use ft_wire::part::{FromJobs, Host, Image, MAX_IMAGE, MAX_LAUNCH, MOST_NODES, Request, Resume, Share, Start, ToJobs};
use ft_wire::{APART, is_neighbour, step, version};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Whether a job can be noted is looked at so often.
const NOTED: Duration = Duration::from_secs(1);
/// Who wants a job says which one within this time.
const FIRST: Duration = Duration::from_secs(5);
/// So many nodes are asked at a time.
const AT_A_TIME: usize = 64;
/// The most slots of a node.
const MOST_SLOTS: u32 = 65_536;

/// Where jobs come from.
pub struct Jobs {
    state: Arc<State>,
    places: Places,
}

/// A job that is served.
struct Job {
    word: FromJobs,
    served: Served,
    to_launcher: ToLauncher,
}

impl Jobs {
    /// Asks etcd for nodes.
    pub fn new(state: Arc<State>, etcd: Asked<Etcd>) -> Jobs {
        Jobs { places: Places::new(state.clone(), etcd), state }
    }

    /// Serves a launcher, from its first message to the end of its job.
    ///
    /// # Errors
    /// [`Broken`]: what it said first was no request.
    pub async fn serve(&self, mut stream: UnixStream, uid: u32) -> Result<(), Broken> {
        let request = match within(FIRST, frames::receive(&mut stream, MAX_LAUNCH)).await? {
            ToJobs::Launch(request) => *request,
            ToJobs::Resume(resume) => return self.resume(stream, *resume, uid).await,
            ToJobs::Step(request) => return self.serve_step(stream, *request).await,
            ToJobs::Node(name) => return self.serve_question(stream, &name).await,
            ToJobs::Jobs => return elsewhere::tell_jobs(stream, &self.places, uid).await,
            ToJobs::Agent(sought) => return elsewhere::lead_to_agent(stream, &self.places, *sought, uid).await,
            ToJobs::Carry { .. } | ToJobs::Mark { .. } | ToJobs::Lost(_) => return Ok(()),
            ToJobs::Ask | ToJobs::Ends | ToJobs::Leave => return Ok(()),
        };
        let begun = match check(&request) {
            Err(sentence) => Err(sentence.into()),
            Ok(()) => {
                let image = within(FIRST, frames::receive(&mut stream, MAX_IMAGE)).await?;
                let launcher = Peer::of(&stream)?.pid;
                tokio::select! {
                    begun = self.begin(request, image, (uid, launcher)) => begun,
                    // Who has gone meanwhile wants no job any more, and says nothing else before it is answered.
                    () = frames::speaks(&stream) => return Ok(()),
                }
            }
        };
        self.run(stream, begun, uid).await
    }

    /// Serves a launcher as long as its job runs.
    async fn run(&self, mut stream: UnixStream, job: Result<Job, Refusal>, uid: u32) -> Result<(), Broken> {
        match job {
            Ok(Job { word, served, to_launcher }) => {
                let noted = self.launched(Peer::of(&stream)?.pid, served.job().to_string());
                // Who is gone ends the job with its connection.
                let _ = frames::send(&mut stream, &word).await;
                tokio::select! {
                    () = served.run(stream, to_launcher) => {}
                    () = noted => {}
                }
                kept::sweep(&self.state.config());
                Ok(())
            }
            Err(Refusal { status, sentence }) => {
                tracing::info!(uid, "a job was refused: {sentence}");
                frames::send(&mut stream, &FromJobs::Refused { status, sentence }).await
            }
        }
    }

    /// Serves a launcher whose job another process has served until now.
    async fn resume(&self, mut stream: UnixStream, resume: Resume, uid: u32) -> Result<(), Broken> {
        let image = within(FIRST, frames::receive(&mut stream, MAX_IMAGE)).await?;
        let launcher = Peer::of(&stream)?.pid;
        let job = self.take_over(resume, &image, (uid, launcher)).map_err(Refusal::from);
        self.run(stream, job, uid).await
    }

    fn take_over(&self, resume: Resume, image: &Image, whose: (u32, i32)) -> Result<Job, String> {
        let Resume { protocol, job, nodes, open, lost } = resume;
        is_spoken(protocol)?;
        let config = self.state.config();
        let kept = Kept::take_over(&config, &job, whose, nodes as usize).ok_or_else(|| {
            let beside = config.socket();
            let job = job.escape_debug();
            format!(
                "this node's ftd knows nothing of job {job}: what it has kept of that beside {} is gone",
                beside.display()
            )
        })?;
        note(&kept, &config);
        tracing::info!(job, "a launcher whose connection was lost is here again");
        let comebacks = kept.survives.then(|| self.comebacks(peers::Sent::new(image)?, &kept.any)).transpose()?;
        let (mut served, to_launcher) = Served::new(config, kept, comebacks);
        let (open, lost): (BTreeSet<u32>, BTreeSet<u32>) = (open.into_iter().collect(), lost.into_iter().collect());
        for node in 0..nodes {
            if open.contains(&node) { served.carry(None) } else { served.skip() }
        }
        lost.into_iter().for_each(|node| served.look_for(node));
        Ok(Job { word: FromJobs::Resumed, served, to_launcher })
    }

    fn comebacks(&self, image: peers::Sent, any: &Start) -> Result<Comebacks, String> {
        let (places, image) = (self.places.clone(), Arc::new(image));
        Ok(Comebacks::new(Team { places, image, any: any.clone() }))
    }

    /// Whoever is at the other end has started this job.
    fn launched(&self, pid: i32, job: String) -> impl Future<Output = ()> {
        let config = self.state.config();
        let mut note = Launched::note(&config, &job, pid);
        async move {
            while note.is_none() {
                // Who has served it before stands still, perhaps, and holds the note.
                tokio::time::sleep(NOTED).await;
                note = Launched::note(&config, &job, pid);
            }
            std::future::pending().await
        }
    }

    /// Serves who asks for a node.
    async fn serve_question(&self, mut stream: UnixStream, name: &str) -> Result<(), Broken> {
        let word = match self.places.has(name).await {
            Ok(true) => FromJobs::Here,
            Ok(false) => FromJobs::Gone,
            Err(sentence) => FromJobs::Refused { status: 1, sentence },
        };
        frames::send(&mut stream, &word).await
    }

    /// Serves a task of a step of Slurm's.
    async fn serve_step(&self, mut stream: UnixStream, request: step::Request) -> Result<(), Broken> {
        let who = Peer::of(&stream)?;
        let image = within(FIRST, frames::receive(&mut stream, MAX_IMAGE)).await?;
        let word = match steps::begin(request, &image, who, &self.places).await {
            Ok(job) => FromJobs::Begun { job, nodes: Vec::new(), came: Vec::new(), window: 0, cluster: None },
            Err(Refusal { status, sentence }) => {
                tracing::info!("a part of a step was refused: {sentence}");
                FromJobs::Refused { status, sentence }
            }
        };
        frames::send(&mut stream, &word).await
    }

    /// Has all parts made ready. Their launcher tells them that they may start.
    async fn begin(&self, request: Request, image: Image, (uid, launcher): (u32, i32)) -> Result<Job, Refusal> {
        let config = self.state.config();
        if uid == 0 && !config.allows_root() {
            return Err("root may not start jobs here (jobs.root in ftd.toml)".to_string().into());
        }
        let several = request.hosts.len() > 1;
        let job = format!("ftrun-{}-{}", config.node(), hexadecimal(&random::<8>()?));
        let mut places = Vec::new();
        for host in &request.hosts {
            places.push(Place { host: host.clone(), record: self.places.find(&host.name).await? });
        }
        let any = Start {
            protocol: request.protocol,
            from: config.node().to_string(),
            to: String::new(),
            uid,
            user: parts::name_of(uid).await?,
            window: link::window(places.len()),
            share: Share { job: job.clone(), me: 0, slots: 0, bind: None },
            link: 0,
        };
        let image = Arc::new(peers::Sent::new(&image)?);
        let ready = self.prepare(&places, &any, &image, several).await?;
        let spoken = places.iter().zip(&ready).map(|(place, part)| (place.host.name.as_str(), part.protocol));
        if let Some(sentence) = ft_wire::strangers(spoken) {
            return Err(sentence.into());
        }
        let cluster = several.then(|| cluster(&job, &places, &ready, &request, &config)).transpose()?;
        let word = FromJobs::Begun {
            job,
            nodes: request.hosts.iter().map(|host| host.name.clone()).collect(),
            came: ready.iter().map(|part| part.came).collect(),
            window: any.window,
            cluster: cluster.clone().map(Box::new),
        };
        let team = Team { places: self.places.clone(), image, any: any.clone() };
        let comebacks = (several && request.survives).then(|| Comebacks::new(team));
        let mut kept = Kept::new(launcher, comebacks.is_some(), any, cluster);
        kept.hosts = request.hosts;
        kept.links = ready.iter().map(|part| Link { number: part.link, way: part.way.clone() }).collect();
        kept::sweep(&config);
        note(&kept, &config);
        let (mut served, to_launcher) = Served::new(config, kept, comebacks);
        ready.into_iter().for_each(|part| served.carry(Some((part.stream, part.came))));
        Ok(Job { word, served, to_launcher })
    }

    /// Has the part on each node made ready.
    async fn prepare(
        &self,
        places: &[Place],
        any: &Start,
        image: &Arc<peers::Sent>,
        several: bool,
    ) -> Result<Vec<Prepared>, Refusal> {
        let room = Arc::new(Semaphore::new(AT_A_TIME));
        let mut asked = JoinSet::new();
        for (me, place) in places.iter().enumerate() {
            let Host { name, slots } = place.host.clone();
            let bind = if several { Some(address(&name, &place.record)?.ip()) } else { None };
            let share = Share { me: me as u32, slots, bind, ..any.share.clone() };
            let start = Start { to: name, share, ..any.clone() };
            let (record, state, image, room) = (place.record.clone(), self.state.clone(), image.clone(), room.clone());
            asked.spawn(async move {
                let _place = room.acquire_owned().await;
                prepare(start, &image, record, &state).await.map(|part| (me, part))
            });
        }
        // Where one of them fails the others are not waited for, and what they have made ready ends.
        let mut ready = Vec::new();
        while let Some(one) = asked.join_next().await {
            ready.push(one.map_err(|error| error.to_string())??);
        }
        ready.sort_by_key(|(me, _)| *me);
        Ok(ready.into_iter().map(|(_, part)| part).collect())
    }
}

/// Whether who asks speaks as this daemon does.
fn is_spoken(protocol: u32) -> Result<(), String> {
    if is_neighbour(protocol) {
        return Ok(());
    }
    Err(format!("this node's ftd speaks protocol {}, and ftrun {protocol}, {APART}", version()))
}

/// Whether it can be asked for at all. What `ftrun` looks at itself is looked at here as well: who asks may be anybody's program.
fn check(request: &Request) -> Result<(), String> {
    let Request { protocol, ranks, hosts, spares, .. } = request;
    is_spoken(*protocol)?;
    if hosts.len() > MOST_NODES {
        let asked = hosts.len();
        return Err(format!("a job has at most {MOST_NODES} nodes, and {asked} are named: give each more ranks"));
    }
    let letters = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'));
    if let Some(host) = hosts.iter().find(|host| host.name.is_empty() || !letters(&host.name)) {
        return Err(format!("'{}' is no node's name", host.name.escape_debug()));
    }
    if let Some(host) = hosts.iter().find(|host| !(1..=MOST_SLOTS).contains(&host.slots)) {
        return Err(format!("node {} cannot have {} slots: from 1 to {MOST_SLOTS}", host.name, host.slots));
    }
    let mut names = BTreeSet::new();
    if let Some(host) = hosts.iter().find(|host| !names.insert(&host.name)) {
        return Err(format!("node {} is named twice: give it the slots of both", host.name));
    }
    check_heartbeat(request)?;
    let Some(first_spare @ 1..) = hosts.len().checked_sub(*spares as usize) else {
        return Err("one node of a job at least is not spare".into());
    };
    let slots: u64 = hosts[..first_spare].iter().map(|host| u64::from(host.slots)).sum();
    match *ranks {
        0 => Err("a job has one rank at least".into()),
        ranks if u64::from(ranks) > slots => Err(format!("-n {ranks} needs as many slots, and the nodes have {slots}")),
        _ => Ok(()),
    }
}

/// Whether one datagram may be lost, and the next one late, before a node counts as dead.
fn check_heartbeat(request: &Request) -> Result<(), String> {
    let (Some(period), Some(timeout)) = (request.heartbeat_period_ms, request.heartbeat_ms) else { return Ok(()) };
    if period > 0 && period.saturating_mul(LEAST_PERIODS.into()) <= timeout {
        return Ok(());
    }
    Err(format!(
        "the time-out of the heartbeats ({timeout} ms) is to be at least {LEAST_PERIODS} periods ({period} ms): \
         give --ft-heartbeat another one"
    ))
}

fn cluster(
    job: &str,
    places: &[Place],
    ready: &[Prepared],
    request: &Request,
    config: &Config,
) -> Result<Cluster, String> {
    let mut first_slot = 0;
    let mut nodes = Vec::new();
    let first_spare = places.len().saturating_sub(request.spares as usize);
    for (number, (place, part)) in places.iter().zip(ready).enumerate() {
        let Host { name, slots } = place.host.clone();
        let lease = Some(format!("{}/nodes/{name}", config.prefix()));
        let (address, domain) = (address(&name, &place.record)?.ip(), place.record.label.clone());
        let (port, host) = (part.port, part.host.clone());
        let spare = number >= first_spare;
        nodes.push(ClusterNode { name, host, address, port, slots, first_slot, spare, domain, lease });
        first_slot += slots;
    }
    let (heartbeat_period_ms, heartbeat_ms) = heartbeat((request.heartbeat_period_ms, request.heartbeat_ms), config);
    Ok(Cluster {
        me: 0,
        first: nodes.len() as u32,
        nodes,
        secret: Hidden(random()?),
        // Where it is asked each node's own ftd says.
        store: StoreAddress { socket: PathBuf::new(), prefix: agents::keys_of(config, job) },
        heartbeat_ms,
        heartbeat_period_ms,
        wait_ms: request.wait_ms,
        oversubscribe: request.oversubscribe,
        path_ms: u64::try_from(config.path_timeout().as_millis()).unwrap_or(u64::MAX),
    })
}

/// Period and time-out, in milliseconds: those of who asks, who says both, and otherwise the configuration's.
fn heartbeat((period, timeout): (Option<u64>, Option<u64>), config: &Config) -> (Option<u64>, u64) {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    match timeout {
        Some(timeout) => (period, timeout),
        None => {
            let (period, timeout) = config.heartbeat();
            (Some(ms(period)), ms(timeout))
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeats_go_as_who_asks_says_and_else_as_the_configuration_does() {
        let of = |period, timeout, text: &str| heartbeat((period, timeout), &Config::of_text(text, "host"));
        let (both, timeout) = (
            "[jobs]\nheartbeat-period = \"30ms\"\nheartbeat-timeout = \"900ms\"",
            "[jobs]\nheartbeat-timeout = \"900ms\"",
        );
        assert_eq!(of(Some(20), Some(2000), both), (Some(20), 2000));
        assert_eq!(of(None, Some(2000), both), (None, 2000), "a release that says no period");
        assert_eq!(of(None, None, both), (Some(30), 900));
        assert_eq!(of(None, None, timeout), (Some(180), 900), "a fifth");
        assert_eq!(of(None, None, ""), (Some(100), 500));
        assert_eq!(of(None, None, "[jobs]\nheartbeat-period = \"25ms\""), (Some(25), 500));
    }

    #[test]
    fn what_is_asked_for_is_looked_at_before_anybody_else_is_asked() {
        let host = |name: &str, slots| Host { name: name.into(), slots };
        let any = || Request {
            protocol: version(),
            ranks: 1,
            heartbeat_ms: None,
            heartbeat_period_ms: None,
            hosts: Vec::new(),
            spares: 0,
            survives: true,
            wait_ms: 0,
            oversubscribe: false,
        };
        let said = |ranks, hosts: Vec<Host>| {
            let request = Request { hosts, ranks, ..any() };
            check(&request).err().unwrap_or_default()
        };
        assert_eq!(said(3, vec![host("a", 1), host("b-1.x_y", 2)]), "");
        assert_eq!(said(3, vec![host("a", 1), host("b", 1)]), "-n 3 needs as many slots, and the nodes have 2");
        assert_eq!(said(0, vec![host("a", 1)]), "a job has one rank at least");
        assert_eq!(said(1, vec![host("a/../b\n", 1)]), "'a/../b\\n' is no node's name");
        assert_eq!(said(1, vec![host("", 1)]), "'' is no node's name");
        assert_eq!(said(1, vec![host("a", 0)]), "node a cannot have 0 slots: from 1 to 65536");
        assert_eq!(said(1, vec![host("a", 70_000)]), "node a cannot have 70000 slots: from 1 to 65536");
        assert_eq!(said(2, vec![host("a", 1), host("a", 1)]), "node a is named twice: give it the slots of both");
        let many = (0..5000).map(|n| host(&n.to_string(), 1)).collect();
        assert_eq!(said(1, many), "a job has at most 4096 nodes, and 5000 are named: give each more ranks");
        for (spares, words) in
            [(1, "-n 3 needs as many slots, and the nodes have 2"), (2, "one node of a job at least is not spare")]
        {
            let request = Request { ranks: 3, spares, hosts: vec![host("a", 2), host("b", 2)], ..any() };
            assert_eq!(check(&request).unwrap_err(), words);
        }
        for (period, says) in [(None, true), (Some(50), true), (Some(51), false), (Some(0), false)] {
            let request =
                Request { heartbeat_ms: Some(200), heartbeat_period_ms: period, hosts: vec![host("a", 1)], ..any() };
            let said = check(&request).err().unwrap_or_default();
            assert_eq!(said.is_empty(), says, "{period:?}: {said}");
            assert!(says || said.contains("at least 4 periods"), "{said}");
        }
        let of = |protocol| check(&Request { protocol, hosts: vec![host("a", 1)], ..any() });
        assert_eq!(of(version() + 1), Ok(()));
        let apart = format!("ftrun {}, and only neighbouring", version() + 2);
        assert!(of(version() + 2).is_err_and(|sentence| sentence.contains(&apart)));
    }
}
