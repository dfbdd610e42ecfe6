//! Jobs over several nodes, for the `ftrun` on this node that asks for one: finds the nodes, has a part started on each, and passes on
//! what `ftrun` and the parts say. Who asks is who the kernel says.

use crate::config::Config;
use crate::etcd::Asked;
use crate::frames::{self, Broken, Stream, within};
use crate::node::Record;
use crate::orders::Orders;
use crate::state::State;
use crate::{agents, link, parts, peers};
use ft_store::Etcd;
use ft_wire::MESSAGES;
use ft_wire::cluster::{Cluster, ClusterNode, Hidden, StoreAddress};
use ft_wire::part::{
    FromJobs, FromPart, Host, Image, MAX_IMAGE, MAX_LAUNCH, MAX_SAID, MOST_NODES, Request, Share, Start, ToJobs, ToPart,
};
use std::collections::BTreeSet;
use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{Receiver, Sender, WeakSender, channel};
use tokio::task::JoinSet;

/// Who wants a job says which one within this time.
const FIRST: Duration = Duration::from_secs(5);
/// A part has so long to make itself ready.
const READY: Duration = Duration::from_secs(30);
/// Messages that may wait for the launcher.
const WAITING: usize = 16;
/// So many nodes are asked at a time.
const AT_A_TIME: usize = 64;
/// The most slots of a node.
const MOST_SLOTS: u32 = 65_536;

/// Where jobs come from.
pub struct Jobs {
    state: Arc<State>,
    etcd: Asked<Etcd>,
}

/// A node of a job.
struct Place {
    host: Host,
    record: Record,
}

/// A part that waits for the others.
struct Prepared {
    stream: Box<dyn Stream>,
    port: u16,
    host: String,
}

/// There is no job.
struct Refusal {
    status: u8,
    sentence: String,
}

impl From<String> for Refusal {
    fn from(sentence: String) -> Refusal {
        Refusal { status: 1, sentence }
    }
}

impl Jobs {
    /// Asks etcd for nodes.
    pub fn new(state: Arc<State>, etcd: Asked<Etcd>) -> Jobs {
        Jobs { state, etcd }
    }

    /// Serves a launcher, from its first message to the end of its job.
    ///
    /// # Errors
    /// [`Broken`]: what it said first was no request.
    pub async fn serve(&self, mut stream: UnixStream, uid: u32) -> Result<(), Broken> {
        let request = match within(FIRST, frames::receive(&mut stream, MAX_LAUNCH)).await? {
            ToJobs::Launch(request) => *request,
            ToJobs::Tell { .. } | ToJobs::Ask => return Ok(()),
        };
        let begun = match check(&request) {
            Err(sentence) => Err(sentence.into()),
            Ok(()) => {
                let image = within(FIRST, frames::receive(&mut stream, MAX_IMAGE)).await?;
                tokio::select! {
                    begun = self.begin(request, image, uid) => begun,
                    // Who has gone meanwhile wants no job any more, and says nothing else before it is answered.
                    () = speaks(&stream) => return Ok(()),
                }
            }
        };
        match begun {
            Ok((word, parts)) => {
                if frames::send(&mut stream, &word).await.is_ok() {
                    relay(stream, parts).await;
                }
                Ok(())
            }
            Err(Refusal { status, sentence }) => {
                tracing::info!(uid, "a job was refused: {sentence}");
                frames::send(&mut stream, &FromJobs::Refused { status, sentence }).await
            }
        }
    }

    /// Has all parts made ready, and then started.
    async fn begin(
        &self,
        request: Request,
        image: Image,
        uid: u32,
    ) -> Result<(FromJobs, Vec<Box<dyn Stream>>), Refusal> {
        let config = self.state.config();
        if uid == 0 && !config.allows_root() {
            return Err("root may not start jobs here (jobs.root in ftd.toml)".to_string().into());
        }
        let user = parts::name_of(uid).await?;
        let several = request.hosts.len() > 1;
        let job = format!("ftrun-{}-{}", config.node(), hexadecimal(&random::<8>()?));
        let mut places = Vec::new();
        for host in &request.hosts {
            places.push(Place { host: host.clone(), record: self.find(&host.name).await? });
        }
        let image = Arc::new(peers::Sent::new(image)?);
        let room = Arc::new(Semaphore::new(AT_A_TIME));
        let mut asked = JoinSet::new();
        for (me, place) in places.iter().enumerate() {
            let bind = if several { Some(address(place)?.ip()) } else { None };
            let share = Share { job: job.clone(), me: me as u32, slots: place.host.slots, bind };
            let (from, to) = (config.node().to_string(), place.host.name.clone());
            let window = link::window(places.len());
            let start = Start { messages: MESSAGES, from, to, uid, user: user.clone(), window, share };
            let (record, state, image, room) = (place.record.clone(), self.state.clone(), image.clone(), room.clone());
            asked.spawn(async move {
                let _place = room.acquire_owned().await;
                prepare(start, image, record, state).await.map(|part| (me, part))
            });
        }
        drop(image);
        // Where one of them fails the others are not waited for, and what they have made ready ends.
        let mut ready = Vec::new();
        while let Some(one) = asked.join_next().await {
            ready.push(one.map_err(|error| error.to_string())??);
        }
        ready.sort_by_key(|(me, _)| *me);
        let ready: Vec<Prepared> = ready.into_iter().map(|(_, part)| part).collect();
        let cluster = several.then(|| cluster(&job, &places, &ready, &request, &config)).transpose()?;
        let mut streams = Vec::new();
        for (me, mut part) in ready.into_iter().enumerate() {
            let cluster = cluster.clone().map(|cluster| Box::new(Cluster { me: me as u32, ..cluster }));
            let told = within(FIRST, frames::send(&mut part.stream, &ToPart::Go { cluster })).await;
            told.map_err(|error| format!("node {}: {error}", places[me].host.name))?;
            streams.push(part.stream);
        }
        let nodes = request.hosts.into_iter().map(|host| host.name).collect();
        Ok((FromJobs::Begun { job, nodes }, streams))
    }

    /// What a node says of itself.
    async fn find(&self, name: &str) -> Result<Record, String> {
        let config = self.state.config();
        if name == config.node() {
            return Ok(Record::of(&config, ""));
        }
        let key = format!("{}/nodes/{name}", config.prefix());
        match self.etcd.get(&key).await {
            Ok(read) => match read.found.as_ref().map(|found| Record::decode(&found.value)) {
                Some(Some(record)) => Ok(record),
                Some(None) => {
                    Err(format!("node {name}: its ftd is of a later release: install the same one everywhere"))
                }
                None => Err(format!(
                    "there is no node {name}: no ftd has that name in etcd ({key}); `ftd status` on the node says which it has"
                )),
            },
            Err(error) => Err(format!("node {name} cannot be looked up: {error}")),
        }
    }
}

/// Whether it can be asked for at all. What `ftrun` looks at itself is looked at here as well: who asks may be anybody's program.
fn check(request: &Request) -> Result<(), String> {
    let Request { messages, ranks, hosts, .. } = request;
    if *messages != MESSAGES {
        let other = "this node's ftd is of another build than ftrun, and would misread it: install all of ftd again";
        return Err(other.into());
    }
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
    let slots: u64 = hosts.iter().map(|host| u64::from(host.slots)).sum();
    match *ranks {
        0 => Err("a job has one rank at least".into()),
        ranks if u64::from(ranks) > slots => Err(format!("-n {ranks} needs as many slots, and the nodes have {slots}")),
        _ => Ok(()),
    }
}

/// Until something comes, or the end.
async fn speaks(stream: &UnixStream) {
    while stream.readable().await.is_ok() {
        match stream.try_read(&mut [0]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            _ => return,
        }
    }
}

/// Has one part made ready.
async fn prepare(
    start: Start,
    image: Arc<peers::Sent>,
    record: Record,
    state: Arc<State>,
) -> Result<Prepared, Refusal> {
    let config = state.config();
    let node = start.to.clone();
    let mut stream: Box<dyn Stream> = if node == config.node() {
        Box::new(parts::start(start, image.whole(), &state).await?)
    } else {
        let told = [&record.store, &record.mpi];
        let addresses: Vec<SocketAddr> = told.into_iter().filter_map(|address| address.parse().ok()).collect();
        peers::ask(&addresses, start, &image, &config).await?
    };
    match within(READY, frames::receive(&mut stream, MAX_SAID)).await {
        Ok(FromPart::Prepared { port, host }) => Ok(Prepared { stream, port, host }),
        Ok(FromPart::Refused { status, sentence }) => {
            let sentence = if sentence.starts_with("node ") { sentence } else { format!("node {node}: {sentence}") };
            Err(Refusal { status, sentence })
        }
        Ok(_) => Err(format!("node {node}: ftrun says something else there than that it is ready").into()),
        Err(error) => Err(format!("node {node}: {error}").into()),
    }
}

fn address(place: &Place) -> Result<SocketAddr, String> {
    let name = &place.host.name;
    place.record.mpi.parse().map_err(|_| {
        format!("node {name} does not say where it is in the network that MPI uses: set peers.mpi in its ftd.toml")
    })
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
    for (place, part) in places.iter().zip(ready) {
        let Host { name, slots } = place.host.clone();
        let lease = Some(format!("{}/nodes/{name}", config.prefix()));
        let (address, domain) = (address(place)?.ip(), place.record.label.clone());
        let (port, host) = (part.port, part.host.clone());
        nodes.push(ClusterNode { name, host, address, port, slots, first_slot, spare: false, domain, lease });
        first_slot += slots;
    }
    let (_, timeout) = config.heartbeat();
    let timeout = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
    Ok(Cluster {
        me: 0,
        nodes,
        secret: Hidden(random()?),
        // Where it is asked each node's own ftd says.
        store: StoreAddress { socket: PathBuf::new(), prefix: agents::keys_of(config, job) },
        heartbeat_ms: request.heartbeat_ms.unwrap_or(timeout),
        wait_ms: 0,
        path_ms: u64::try_from(config.path_timeout().as_millis()).unwrap_or(u64::MAX),
    })
}

fn random<const N: usize>() -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map(|()| bytes).map_err(|error| format!("/dev/urandom: {error}"))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Passes on what both sides say, until the launcher is gone, or has nothing more to hear. The parts' links end with this.
async fn relay(stream: UnixStream, parts: Vec<Box<dyn Stream>>) {
    let (from_launcher, to_launcher) = tokio::io::split(stream);
    let (said, heard) = channel(WAITING);
    let mut tasks = JoinSet::new();
    let mut orders = Vec::new();
    for (node, part) in parts.into_iter().enumerate() {
        let (from_part, to_part) = tokio::io::split(part);
        let order = Orders::new();
        tasks.spawn(say(to_part, order.clone()));
        orders.push(order);
        tasks.spawn(hear(from_part, node as u32, said.clone()));
    }
    // When the last part has said its last word the launcher is told that nothing more comes.
    let answers = said.downgrade();
    drop(said);
    tasks.spawn(tell_launcher(to_launcher, heard));
    // Who reads nothing more has gone, also when something is still to be told.
    let _ = listen(from_launcher, &orders, answers).await;
    tasks.shutdown().await;
}

/// What the launcher says goes to the parts.
async fn listen(
    mut from: ReadHalf<UnixStream>,
    orders: &[Arc<Orders>],
    answers: WeakSender<FromJobs>,
) -> Result<(), Broken> {
    loop {
        let (to, order) = match frames::receive(&mut from, MAX_SAID).await? {
            ToJobs::Tell { to, order } => (to, order),
            ToJobs::Ask => {
                // Where there is no room the launcher has other answers to read.
                let _ = answers.upgrade().map(|answers| answers.try_send(FromJobs::Here));
                continue;
            }
            ToJobs::Launch(_) => return Ok(()),
        };
        let chosen = orders.iter().enumerate().filter(|(node, _)| to.is_none_or(|to| to as usize == *node));
        for (_, part) in chosen {
            if !part.give(order.clone()) {
                return Err(Broken::TooMuch);
            }
        }
    }
}

/// A part that is gone is told of by who reads from it.
async fn say(mut to: WriteHalf<Box<dyn Stream>>, orders: Arc<Orders>) {
    while frames::send(&mut to, &ToPart::Order(orders.next().await)).await.is_ok() {}
    orders.end();
}

/// What a part says goes to the launcher; its last word, or that there was none.
async fn hear(mut from: impl AsyncRead + Unpin, node: u32, said: Sender<FromJobs>) {
    loop {
        let word = match frames::receive::<FromPart>(&mut from, MAX_SAID).await {
            Ok(word) => word,
            Err(error) => {
                let why = format!("the link to the part of the job there broke ({error}): what ran there is ended");
                let _ = said.send(FromJobs::Lost { node, why }).await;
                return;
            }
        };
        let last = matches!(word, FromPart::Ended { .. });
        if said.send(FromJobs::Said { node, word }).await.is_err() || last {
            return;
        }
    }
}

async fn tell_launcher(mut to: WriteHalf<UnixStream>, mut said: Receiver<FromJobs>) {
    while let Some(word) = said.recv().await {
        if frames::send(&mut to, &word).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_looked_at_before_anybody_else_is_asked() {
        let host = |name: &str, slots| Host { name: name.into(), slots };
        let said = |ranks, hosts: Vec<Host>| {
            let request = Request { messages: MESSAGES, ranks, heartbeat_ms: None, hosts };
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
        let request = Request { messages: MESSAGES + 1, ranks: 1, heartbeat_ms: None, hosts: vec![host("a", 1)] };
        assert!(check(&request).is_err_and(|sentence| sentence.contains("another build")));
    }
}
