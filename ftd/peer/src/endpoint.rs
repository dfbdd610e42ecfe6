//! What the tasks of an endpoint share: who the peers are, what waits for them, and with whom there is a connection.

use crate::beat::Refusal;
use crate::beats::{Beats, Identity};
use crate::codec::{self, Heard};
use crate::connection::{self, Ended, Reader};
use crate::counters::Shared;
use crate::dial;
use crate::meet::Meeting;
use crate::news::News;
use crate::parcel::{Sending, Way};
use crate::patience;
use crate::queue::{Body, Kind, Queue};
use ftd_core::NodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinSet};

/// Trouble with so many others is told of.
const MOST_TOLD: usize = 64;

#[derive(Debug)]
pub(crate) struct Endpoint {
    pub identity: Identity,
    /// Where it listens, with both sockets.
    pub address: SocketAddr,
    pub beats: Beats,
    pub counters: Shared,
    news: mpsc::Sender<News>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    peers: BTreeMap<NodeId, Peer>,
    tasks: JoinSet<()>,
    links: u64,
    /// Whose refusal people have been told of.
    told: BTreeSet<(IpAddr, String)>,
}

#[derive(Debug, Default)]
struct Peer {
    address: Option<SocketAddr>,
    incarnation: u64,
    queue: Queue,
    /// Something waits.
    wake: Arc<Notify>,
    link: Option<Link>,
    met: bool,
    dialling: bool,
    /// Since a connection was of use.
    tries: u32,
}

#[derive(Debug)]
struct Link {
    number: u64,
    /// The one with the lower number dialled.
    by_lower: bool,
    since: Instant,
    task: AbortHandle,
}

impl Endpoint {
    pub fn new(identity: Identity, address: SocketAddr, beats: Beats, news: mpsc::Sender<News>) -> Endpoint {
        let counters = beats.shared().clone();
        Endpoint { identity, address, beats, counters, news, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs until the endpoint is closed.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.lock().spawn(task);
    }

    /// Ends all tasks.
    pub fn close(&self) {
        self.lock().tasks.abort_all();
    }

    /// Whether anybody takes news.
    pub async fn tell(&self, news: News) -> bool {
        self.news.send(news).await.is_ok()
    }

    pub fn know(self: &Arc<Self>, node: NodeId, address: SocketAddr) {
        self.beats.know(node, address);
        let mut state = self.lock();
        let peer = state.peers.entry(node).or_default();
        if peer.address.replace(address) != Some(address) {
            peer.tries = 0;
        }
        self.dial_if_needed(&mut state, node);
    }

    pub fn forget(&self, node: NodeId) {
        self.beats.forget(node);
        self.let_go(node);
        self.with(node, |peer| peer.address = None);
    }

    pub fn let_go(&self, node: NodeId) {
        let mut state = self.lock();
        let Some(peer) = state.peers.get_mut(&node) else { return };
        peer.link.take().inspect(|link| link.task.abort());
        let dropped = peer.queue.clear();
        self.counters.count(|counters| counters.dropped += dropped);
    }

    /// Whether the message waits for its turn now; not when nobody knows where that node is.
    pub fn queue(self: &Arc<Self>, to: NodeId, kind: Kind, body: Body) -> bool {
        let mut state = self.lock();
        let peer = state.peers.get_mut(&to).filter(|peer| peer.address.is_some() || peer.link.is_some());
        let Some(peer) = peer else { return false };
        let gone = peer.queue.push(kind, body);
        self.counters.count(|counters| {
            counters.superseded += gone.superseded;
            counters.dropped += gone.dropped;
        });
        peer.wake.notify_one();
        self.dial_if_needed(&mut state, to);
        true
    }

    fn dial_if_needed(self: &Arc<Self>, state: &mut State, node: NodeId) {
        let Some(peer) = state.peers.get_mut(&node) else { return };
        if peer.wants_link() && !peer.dialling {
            peer.dialling = true;
            state.spawn(dial::dial(self.clone(), node));
        }
    }

    /// How long the node, which has the lower number, may take to dial itself.
    pub fn courtesy(&self, node: NodeId) -> Duration {
        let met = self.lock().peers.get(&node).is_some_and(|peer| peer.met);
        if met { patience::COURTESY } else { patience::FIRST_COURTESY }
    }

    /// Where the node is, and how often that was tried in vain, if somebody is still to dial; nobody dials then, otherwise.
    pub fn wants(&self, node: NodeId) -> Option<(SocketAddr, u32)> {
        let mut state = self.lock();
        let peer = state.peers.get_mut(&node)?;
        peer.dialling = peer.wants_link();
        let address = peer.address.filter(|_| peer.dialling)?;
        Some((address, peer.tries))
    }

    /// This node was dialled; of what use that was is seen when it says something.
    pub fn tried(&self, node: NodeId) {
        self.with(node, |peer| peer.tries = peer.tries.saturating_add(1));
    }

    /// Two have proved themselves to each other: they have a connection from now on, unless they have a better one.
    pub fn join(self: &Arc<Self>, meeting: Meeting, dialled: bool) {
        let (node, incarnation) = (meeting.peer.from, meeting.peer.incarnation);
        let by_lower = (self.identity.me < node) == dialled;
        let Ok(from) = meeting.stream.peer_addr() else { return };
        let mut state = self.lock();
        let peer = state.peers.entry(node).or_default();
        if incarnation < peer.incarnation {
            drop(state);
            return self.refuse(from, Refusal::Stale);
        }
        let successor = peer.incarnation != 0 && incarnation > peer.incarnation;
        let young = |link: &Link| link.since.elapsed() < patience::scaled(patience::HANDSHAKE);
        // Both dialled: both keep the same one.
        if !successor && !by_lower && peer.link.as_ref().is_some_and(|link| link.by_lower && young(link)) {
            return;
        }
        peer.incarnation = incarnation;
        if peer.address.is_none() || successor && !dialled {
            peer.address = Some(SocketAddr::new(from.ip(), meeting.peer.port));
        }
        let address = peer.address;
        peer.link.take().inspect(|link| link.task.abort());
        peer.queue.again();
        let again = std::mem::replace(&mut peer.met, true);
        self.beats.meet(node, incarnation);
        address.inspect(|address| self.beats.know(node, *address));
        self.counters.count(|counters| if again { counters.reconnects += 1 } else { counters.connects += 1 });
        state.links += 1;
        let number = state.links;
        let task = state.spawn(run(self.clone(), meeting, number));
        if let Some(peer) = state.peers.get_mut(&node) {
            peer.link = Some(Link { number, by_lower, since: Instant::now(), task });
        }
    }

    /// Whether this was the node's connection: it has none any more.
    fn lose(self: &Arc<Self>, node: NodeId, number: u64) -> bool {
        let mut state = self.lock();
        let Some(peer) = state.peers.get_mut(&node) else { return false };
        let Some(link) = peer.link.take_if(|link| link.number == number) else { return false };
        if link.since.elapsed() >= patience::scaled(patience::LONGEST_PAUSE) {
            peer.tries = 0;
        }
        peer.queue.again();
        self.dial_if_needed(&mut state, node);
        true
    }

    fn next(&self, node: NodeId) -> Option<Body> {
        self.lock().peers.get_mut(&node)?.queue.write_next()
    }

    fn with(&self, node: NodeId, change: impl FnOnce(&mut Peer)) {
        if let Some(peer) = self.lock().peers.get_mut(&node) {
            change(peer);
        }
    }

    /// Counts it, and tells people of what they can do something about.
    pub fn refuse(&self, from: SocketAddr, why: Refusal) {
        self.beats.refuse(from, why);
        let Identity { job, me, .. } = &self.identity;
        let sentence = match why {
            Refusal::Version(theirs) => format!(
                "the agent at {} speaks protocol version {theirs}, and that of {me} version {}, {}",
                from.ip(),
                ft_wire::version(),
                ft_wire::APART
            ),
            Refusal::Forged => format!(
                "somebody at {} speaks with the agent of {me} in the name of job {job} and does not know the job's secret: not heard",
                from.ip()
            ),
            _ => return,
        };
        let mut state = self.lock();
        let fresh = state.told.len() < MOST_TOLD && state.told.insert((from.ip(), sentence.clone()));
        drop(state);
        if fresh {
            // Who has no room for news has no room for this.
            let _ = self.news.try_send(News::Trouble(sentence));
        }
    }
}

impl State {
    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        while self.tasks.try_join_next().is_some() {}
        self.tasks.spawn(task)
    }
}

impl Peer {
    fn wants_link(&self) -> bool {
        self.link.is_none() && !self.queue.is_empty() && self.address.is_some()
    }
}

/// A connection, from its beginning to its end.
async fn run(endpoint: Arc<Endpoint>, meeting: Meeting, number: u64) {
    let Meeting { mut stream, peer, mut out, into } = meeting;
    let (node, incarnation) = (peer.from, peer.incarnation);
    let Ok(from) = stream.peer_addr() else { return };
    if !endpoint.tell(News::Connected { node, incarnation }).await {
        return endpoint.close();
    }
    let mut wake = Arc::default();
    endpoint.with(node, |peer| wake = peer.wake.clone());
    let (reading, mut writing) = stream.split();
    let mut reader = Reader::new(reading, into);
    let write = async {
        loop {
            let Some(body) = endpoint.next(node) else {
                Notify::notified(&wake).await;
                continue;
            };
            if let Err(error) = connection::write(&mut writing, &mut out, &body.bytes()).await {
                return Ended::Closed(error);
            }
            endpoint.with(node, |peer| peer.queue.sent());
            endpoint.counters.count(|counters| counters.sent += 1);
        }
    };
    let read = async {
        loop {
            match reader.next().await {
                Ok((body, room)) => hear(&endpoint, node, from, body, room).await,
                Err(ended) => return ended,
            }
        }
    };
    let ended = tokio::select! { ended = write => ended, ended = read => ended };
    let reason = match ended {
        Ended::Closed(error) => error.to_string(),
        Ended::Refused(why) => {
            endpoint.refuse(from, why);
            format!("what it sends is not taken ({why:?})")
        }
    };
    if endpoint.lose(node, number) {
        endpoint.tell(News::Lost { node, reason }).await;
    }
}

/// Tells the agent what a node says of a parcel.
async fn tell_of(
    endpoint: &Endpoint,
    (from, way): (NodeId, Way),
    sending: Sending,
    room: tokio::sync::OwnedSemaphorePermit,
) -> bool {
    let news = match sending {
        Sending::Piece(piece) => News::Piece { from, way, piece, room },
        Sending::Noted(noted) => News::Noted { from, way, noted },
    };
    endpoint.tell(news).await
}

/// What a node says comes to its end, or goes to whom it is for.
async fn hear(
    endpoint: &Arc<Endpoint>,
    node: NodeId,
    from: SocketAddr,
    body: Vec<u8>,
    room: tokio::sync::OwnedSemaphorePermit,
) {
    endpoint.with(node, |peer| peer.tries = 0);
    match codec::heard(&body) {
        Ok(heard) => {
            endpoint.counters.count(|counters| counters.received += 1);
            let me = endpoint.identity.me;
            let taken = match heard {
                Heard::Message(message) => endpoint.tell(News::Said { from: node, message, room: Some(room) }).await,
                Heard::Parcel(sending) => tell_of(endpoint, (node, Way::Straight), sending, room).await,
                Heard::Relayed { origin, to, sending } if to == me => {
                    tell_of(endpoint, (origin, Way::Through(node)), sending, room).await
                }
                // What has been passed on once is not passed on again.
                Heard::Relayed { origin, to, sending } if origin == node => {
                    let kind = Kind::Relay(origin, to, Box::new(Kind::of_parcel(&sending)));
                    endpoint.queue(to, kind, body.into());
                    true
                }
                Heard::Relayed { .. } => true,
            };
            if !taken {
                endpoint.close();
            }
        }
        Err(error) => {
            tracing::warn!(%node, %error, "a message that cannot be read");
            endpoint.refuse(from, Refusal::Malformed);
        }
    }
}
