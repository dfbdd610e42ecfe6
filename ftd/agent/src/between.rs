//! The other nodes of the job: what ftd-core says to them and hears of them, and what the ranks of one world need to know of each other.

use crate::aside;
use crate::fences::{Fences, Step};
use crate::layout::Layout;
use crate::leavers::Leavers;
use crate::outlet::Outlet;
use crate::too_long::Whose;
use crate::wish::Wish;
use ft_peer::beat::Refusal;
use ft_peer::beats::Identity;
use ft_peer::post::{Post, Sendings};
use ft_peer::{Inlet, Peers, Refused, Secret};
use ft_wire::between::{
    Asker, Fence, Leaver, NameAnswer, NameRequest, Protocol, StoreWord, UserWord, Word, puts_from_bytes,
};
use ft_wire::cluster::Cluster;
use ft_wire::copies::CopyWord;
use ft_wire::pmix::{Proc, Raised};
use ft_wire::{FrameError, Rank, World as WorldNumber};
use ftd_core::{EpochRecord, Members, NodeId, PeerMessage, ring};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What was not noted is looked at so often before there is a record, which says how often it is then.
const LOOK: Duration = Duration::from_secs(1);
/// So much may wait for a node when an event is raised: nobody's memory is to be full of them, and none is to be lost.
const MOST_WAITING: usize = 8192;
/// News of the network that may wait for the driver.
const NEWS: usize = 64;
/// So often is written into the log that somebody else speaks with this agent.
const WARNED: Duration = Duration::from_secs(60);
/// What is about the store, or what the user asks, is about no world, and no world's end is its.
const NO_WORLD: WorldNumber = WorldNumber::MAX;
/// So much of that may be on its way to a node; who hears so little is not asked more.
const OF_STORE: usize = 8;
/// The user's questions leave room for those.
const OF_USER: usize = 4;

/// What is heard from behind.
#[derive(Debug)]
pub enum News {
    /// Of the network.
    Peer(ft_peer::News),
    /// It is time to look at what was not noted.
    Look,
    /// A long word is bytes now.
    Written(Box<Written>),
    /// A long word of another node was read.
    Read {
        /// Of which world.
        world: WorldNumber,
        /// Whose.
        from: NodeId,
        /// What it says.
        said: Said,
    },
}

/// What has come, for other rooms.
#[derive(Debug)]
pub enum Arrived {
    /// For ftd-core.
    Message(NodeId, PeerMessage),
    /// Everybody is in a fence.
    Fenced {
        /// Of which world.
        world: WorldNumber,
        /// As it was asked for.
        token: u64,
        /// What all nodes have given.
        given: Given,
    },
    /// A node wants to know what a rank of this one has put through PMIx.
    ModexAsked {
        /// Of which world.
        world: WorldNumber,
        /// Who.
        from: NodeId,
        /// For the answer.
        token: u64,
        /// Which.
        proc: Proc,
    },
    /// The answer to [`Wish::Modex`]. Nothing: there is no such rank elsewhere.
    ModexData {
        /// Of which world.
        world: WorldNumber,
        /// As it was asked.
        token: u64,
        /// Status and data.
        found: Option<(i32, Vec<u8>)>,
    },
    /// A rank elsewhere wants something with published names, which this node keeps.
    NameAsked {
        /// Of which world.
        world: WorldNumber,
        /// The rank's node.
        from: NodeId,
        /// For the answer.
        asker: Asker,
        /// What.
        request: NameRequest,
    },
    /// The answer to such a request of this node's.
    Named {
        /// Of which world.
        world: WorldNumber,
        /// As it was asked.
        asker: Asker,
        /// The answer.
        answer: NameAnswer,
    },
    /// A rank elsewhere has raised an event.
    Event {
        /// Of which world.
        world: WorldNumber,
        /// Which.
        event: Raised,
    },
    /// A rank elsewhere takes no more checkpoints.
    Left {
        /// Of which world.
        world: WorldNumber,
        /// Which.
        leaver: Leaver,
    },
    /// A node says something of a copy of a checkpoint.
    Copy {
        /// Which.
        from: NodeId,
        /// What is said to it goes through other nodes: there seems to be no straight way.
        round: bool,
        /// What.
        word: CopyWord,
    },
    /// A node wants something to be asked of the store, or answers.
    Store(NodeId, StoreWord),
    /// A node wants something for the job's user, or answers.
    User(NodeId, UserWord),
    /// A world cannot go on.
    Stuck {
        /// Which.
        world: WorldNumber,
        /// One sentence.
        reason: String,
    },
    /// People are to hear this.
    Trouble(String),
    /// Something was refused that nobody sends who belongs to the job.
    Stranger,
}

/// What a node says of a world, or why that cannot be read.
pub type Said = Result<Word, FrameError>;

/// What the ranks of all nodes have given in a fence, as those of this node want to have it.
#[derive(Debug)]
pub enum Given {
    /// PMIx: all of it, one after the other.
    Data(Vec<u8>),
    /// PMI-1: keys and values.
    Puts(Result<Vec<(String, String)>, FrameError>),
    /// A group's number, and all of it, one after the other; nothing, if it is not what nodes give for a group.
    Group(Option<(u64, Vec<u8>)>),
    /// They only came to it.
    Nothing,
}

/// What a node gives for a group: a number that it may have, and what its members give.
pub fn group_part(context: u64, shared: &[u8]) -> Vec<u8> {
    [&context.to_le_bytes(), shared].concat()
}

/// The number of a group is what the first of the nodes gives, for all of them alike.
fn group_of(parts: &[Vec<u8>]) -> Option<(u64, Vec<u8>)> {
    let (mut number, mut all) = (None, Vec::new());
    for part in parts {
        let (context, shared) = part.split_first_chunk()?;
        number = number.or(Some(u64::from_le_bytes(*context)));
        all.extend_from_slice(shared);
    }
    number.map(|number| (number, all))
}

impl Given {
    fn of(protocol: Protocol, parts: &[Vec<u8>]) -> Given {
        match protocol {
            Protocol::Pmix => Given::Data(parts.concat()),
            Protocol::Pmi => {
                let puts: Result<Vec<_>, _> = parts.iter().map(|part| puts_from_bytes(part)).collect();
                Given::Puts(puts.map(|puts| puts.into_iter().flatten().collect()))
            }
            Protocol::Group(_) => Given::Group(group_of(parts)),
            Protocol::Connect | Protocol::Disconnect => Given::Nothing,
        }
    }
}

/// A word that is bytes now.
#[derive(Debug)]
pub struct Written {
    world: WorldNumber,
    to: Vec<NodeId>,
    /// Or why there are none.
    body: Result<Vec<u8>, String>,
    /// Somebody there can do nothing before it has come.
    awaited: bool,
    /// Who waited here for the same, and for what.
    fenced: Option<(u64, Given)>,
}

impl Written {
    fn word(world: WorldNumber, to: NodeId, word: &Word, whose: Whose) -> Written {
        // Who waits for a copy has a patience of its own.
        let awaited = !matches!(word, Word::Left { .. } | Word::Copy(_) | Word::Store(_) | Word::User(_));
        let body = word.to_bytes().map_err(|error| whose.tell_too_much(way_of(word), error));
        Written { world, to: vec![to], body, awaited, fenced: None }
    }

    /// Everybody is in a fence: those below are told, and who waits here.
    fn complete(world: WorldNumber, to: Vec<NodeId>, fence: Fence, parts: Vec<Vec<u8>>, token: Option<u64>) -> Written {
        let fenced = token.map(|token| (token, Given::of(fence.protocol, &parts)));
        let body = if to.is_empty() {
            Ok(Vec::new())
        } else {
            let word = Word::Down { fence, parts };
            word.to_bytes().map_err(|error| Whose::All.tell_too_much(way_of(&word), error))
        };
        Written { world, to, body, awaited: true, fenced }
    }
}

/// How ranks tell each other what a word is about.
fn way_of(word: &Word) -> &'static str {
    match word {
        Word::Up { fence, .. } | Word::Down { fence, .. } if fence.protocol == Protocol::Pmi => "PMI",
        _ => "PMIx",
    }
}

fn bytes_of(parts: &[Vec<u8>]) -> usize {
    parts.iter().map(Vec::len).sum()
}

/// A world that has ranks here and elsewhere.
#[derive(Debug)]
struct Exchange {
    layout: Arc<Layout>,
    fences: Fences,
    /// Who waits here for what.
    tokens: BTreeMap<Fence, u64>,
    leavers: Leavers,
}

impl Exchange {
    /// The neighbours in the tree of all nodes, but the one from which it comes.
    fn neighbours(&self, from: Option<NodeId>) -> Vec<NodeId> {
        let tree = self.layout.tree(&[(0, Rank::MAX)]);
        let all = tree.into_iter().flat_map(|tree| tree.children.into_iter().chain(tree.parent));
        all.filter(|node| Some(*node) != from).collect()
    }
}

/// The nodes of the newest record.
#[derive(Debug)]
struct Nodes {
    me: NodeId,
    members: Members,
    observers: usize,
}

impl Nodes {
    /// Whether it was in the job, and is not any more.
    fn has_left(&self, node: NodeId) -> bool {
        self.members.knows(node) && !self.members.contains(node)
    }

    /// Those who hear this node or another one: ways to that one.
    fn around(&self, node: NodeId) -> Vec<NodeId> {
        let of = |node| ring::observers(&self.members, node, self.observers);
        let all: BTreeSet<NodeId> = of(self.me).into_iter().chain(of(node)).collect();
        all.into_iter().filter(|other| *other != node && *other != self.me).collect()
    }
}

/// The way to the other nodes.
#[derive(Debug)]
pub struct Between {
    peers: Peers,
    post: Post,
    nodes: Nodes,
    /// How often it is looked at what was not noted.
    look: Duration,
    /// For so long nothing may be.
    patience: Duration,
    /// The world that was said to wait in vain.
    in_vain: WorldNumber,
    /// The last who spoke with this agent and does not belong to the job, and when the log was told of one.
    stranger: Option<IpAddr>,
    warned: Option<Instant>,
    /// The newest one.
    world: Option<(WorldNumber, Exchange)>,
    /// What others have said of a world that has not begun here; what cannot be read, too, which is its end.
    early: Vec<(WorldNumber, NodeId, Said)>,
    news: Outlet<News>,
    /// It is looked again.
    looks: bool,
}

/// Why the other nodes cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum BetweenError {
    /// The node is none of its own list.
    #[error("the launcher's list of the job's nodes has no node {0}, which this one is to be")]
    Me(u32),
    /// The sockets do not work.
    #[error("the sockets for the other nodes: {0}")]
    Sockets(#[from] std::io::Error),
}

impl Between {
    /// Of this agent of a job. `sockets`: TCP and UDP, made by the launcher.
    ///
    /// # Errors
    /// When they cannot be used.
    pub fn open(
        job: &str,
        cluster: &Cluster,
        incarnation: u64,
        sockets: [OwnedFd; 2],
        news: Outlet<News>,
    ) -> Result<Between, BetweenError> {
        if cluster.own().is_none() {
            return Err(BetweenError::Me(cluster.me));
        }
        let [listener, socket] = sockets;
        let secret = Secret::new(cluster.secret.0);
        let identity = Identity { job: job.to_string(), secret, me: NodeId(cluster.me), incarnation };
        let (say, mut heard) = tokio::sync::mpsc::channel(NEWS);
        // Of heartbeats there is never more than the kernel keeps, and each task on their way would cost as much as what they are for.
        let beats = news.clone();
        let heartbeats = Inlet::Straight(Box::new(move |heard| beats.send(News::Peer(heard))));
        let sockets = (TcpListener::from(listener), UdpSocket::from(socket));
        let peers = Peers::adopt(identity, sockets.0, sockets.1, (say, heartbeats))?;
        for (node, number) in cluster.nodes.iter().zip(0..) {
            if number != cluster.me {
                peers.know(NodeId(number), node.socket());
            }
        }
        let forward = news.clone();
        tokio::spawn(async move {
            while let Some(news) = heard.recv().await {
                forward.send(News::Peer(news));
            }
        });
        let members = Members::of((0..cluster.first).map(NodeId));
        Ok(Between {
            peers,
            post: Post::new(incarnation),
            nodes: Nodes { me: NodeId(cluster.me), members, observers: 1 },
            look: LOOK,
            patience: ft_sys::timescale::scaled(Duration::from_millis(cluster.path_ms)),
            in_vain: 0,
            stranger: None,
            warned: None,
            world: None,
            early: Vec::new(),
            news,
            looks: false,
        })
    }

    /// This is agreed: nothing more is said to nodes that are not in the job any more, nor of worlds before its one.
    pub fn adopt(&mut self, record: &EpochRecord) {
        let left: Vec<NodeId> = self.nodes.members.iter().filter(|node| !record.nodes.contains(*node)).collect();
        for node in left {
            self.post.forget(node);
            self.peers.let_go(node);
        }
        self.nodes.members = record.nodes.clone();
        self.nodes.observers = record.terms.observers as usize;
        self.look = Duration::from_micros(record.terms.timeout.0);
        let sendings = self.post.forget_before(record.world.0);
        self.put(sendings);
    }

    /// A node comes into the job, or wants to: it is reached there.
    pub fn know(&self, node: NodeId, address: SocketAddr) {
        self.peers.know(node, address);
    }

    /// Where this node's heartbeats come.
    pub fn port(&self) -> u16 {
        self.peers.address().port()
    }

    /// What went through between the agents, and what was refused, for the log.
    pub fn log(&self) {
        tracing::info!(counters = ?self.peers.counters(), "what the agents of the job have told each other");
    }

    /// What came to this agent and was not heard, and who was the last who does not belong to the job.
    pub fn refused(&self) -> (Refused, Option<IpAddr>) {
        (self.peers.counters().refused, self.stranger)
    }

    /// Somebody who does not belong to the job speaks with this agent.
    fn met_stranger(&mut self, from: SocketAddr, why: Refusal) {
        self.stranger = Some(from.ip());
        let now = Instant::now();
        if self.warned.is_some_and(|warned| now.duration_since(warned) < WARNED) {
            return;
        }
        self.warned = Some(now);
        let (node, (refused, _)) = (self.nodes.me.0, self.refused());
        let what = if why == Refusal::Replayed {
            "something came to the agent a second time: not heard"
        } else {
            "somebody speaks with the agent and does not know the job's secret: not heard"
        };
        tracing::warn!(node, %from, forged = refused.forged, replayed = refused.replayed, "{what}");
    }

    /// ftd-core says this.
    pub fn say(&self, to: NodeId, message: &PeerMessage) {
        if let Err(error) = self.peers.send(to, message) {
            tracing::error!(%to, %error, "a message that is not sent");
        }
    }

    /// ftd-core says both of these.
    pub fn say_both(&self, to: NodeId, heartbeat: &PeerMessage, answer: &PeerMessage) {
        if let Err(error) = self.peers.send_both(to, heartbeat, answer) {
            tracing::error!(%to, %error, "a message that is not sent");
        }
    }

    /// A world begins here, and older ones are over. What comes of what others have said of it already.
    pub fn begin(&mut self, world: WorldNumber, layout: Arc<Layout>) -> Vec<Arrived> {
        let sendings = self.post.forget_before(world);
        self.put(sendings);
        let leavers = Leavers::new(&layout);
        let exchange = Exchange { layout, fences: Fences::default(), tokens: BTreeMap::new(), leavers };
        self.world = Some((world, exchange));
        let (said, early): (Vec<_>, _) = std::mem::take(&mut self.early).into_iter().partition(|(of, ..)| *of == world);
        self.early = early;
        self.early.retain(|(of, ..)| *of > world);
        said.into_iter().flat_map(|(world, from, said)| self.hear(world, from, said)).collect()
    }

    /// A world is over, whether it had ranks here or not.
    pub fn over(&mut self, world: WorldNumber) {
        let sendings = self.post.forget_before(world + 1);
        self.put(sendings);
    }

    /// Does what a room wants.
    pub fn carry_out(&mut self, world: WorldNumber, wish: Wish) -> Vec<Arrived> {
        if let Wish::Copy { to, word } = wish {
            return self.tell(world, to, Word::Copy(word));
        }
        let Some((_, exchange)) = self.world.as_mut().filter(|(number, _)| *number == world) else { return Vec::new() };
        match wish {
            Wish::Fence { protocol, ranks, token, data } => {
                let (fence, steps) = exchange.fences.enter(&exchange.layout, protocol, ranks, data);
                exchange.tokens.insert(fence, token);
                self.step(world, steps)
            }
            Wish::Modex { token, proc } => {
                let own = exchange.layout.places()[exchange.layout.me()].node;
                match exchange.layout.node_of(proc.rank).filter(|node| *node != own) {
                    Some(node) => self.tell(world, node, Word::Modex { token, proc }),
                    None => vec![Arrived::ModexData { world, token, found: None }],
                }
            }
            Wish::ModexData { to, token, rank, status, data } => {
                self.tell_of(rank.map_or(Whose::All, Whose::Rank), world, to, Word::ModexData { token, status, data })
            }
            Wish::Name { asker, request } => {
                let keeper = exchange.layout.keeper();
                self.tell(world, keeper, Word::Name { asker, request })
            }
            Wish::Named { to, asker, answer } => self.tell(world, to, Word::Named { asker, answer }),
            Wish::Event(event) => self.pass_on(world, None, &event),
            Wish::Left(leaver) => {
                exchange.leavers.note(None, leaver);
                self.tell_of_leavers()
            }
            Wish::Copy { .. } => Vec::new(),
        }
    }

    /// Something was heard.
    pub fn take(&mut self, news: News) -> Vec<Arrived> {
        match news {
            News::Peer(ft_peer::News::Said { from, message, .. }) => return vec![Arrived::Message(from, message)],
            News::Peer(ft_peer::News::Piece { from, .. }) if self.nodes.has_left(from) => {}
            News::Peer(ft_peer::News::Piece { from, way, piece, room }) => {
                let (delivered, sendings) = self.post.take(from, way, piece);
                self.put(sendings);
                drop(room);
                let Some(delivered) = delivered else { return Vec::new() };
                let (world, bytes) = (delivered.world, delivered.bytes());
                let read = self.news.of(move |said| News::Read { world, from, said });
                let said = aside::work(bytes, &read, move || Word::from_bytes(&delivered.whole()));
                return said.map(|said| self.hear(world, from, said)).unwrap_or_default();
            }
            News::Peer(ft_peer::News::Noted { from, way, noted }) => {
                let sendings = self.post.noted(from, way, noted);
                self.put(sendings);
                return self.tell_of_leavers();
            }
            News::Peer(ft_peer::News::Connected { node, incarnation }) => {
                tracing::debug!(%node, incarnation, "connected");
                let sendings = self.post.again(node);
                self.put(sendings);
            }
            News::Peer(ft_peer::News::Lost { node, reason }) => {
                tracing::debug!(%node, reason, "not connected");
                self.post.lost(node);
            }
            News::Peer(ft_peer::News::Trouble(sentence)) => return vec![Arrived::Trouble(sentence)],
            News::Peer(ft_peer::News::Stranger { from, why }) => {
                self.met_stranger(from, why);
                return vec![Arrived::Stranger];
            }
            News::Written(written) => return self.written(*written),
            News::Read { world, from, said } => return self.hear(world, from, said),
            News::Look => {
                self.looks = false;
                let sendings = self.post.look(|node| self.nodes.around(node));
                self.put(sendings);
                return self.deaf().into_iter().collect();
            }
        }
        Vec::new()
    }

    /// A world in which somebody waits in vain for what this node has to say: nobody is silent, and it comes by no way.
    fn deaf(&mut self) -> Option<Arrived> {
        let looks = self.patience.as_micros().div_ceil(self.look.as_micros().max(1));
        let deaf = self.post.deaf(u32::try_from(looks).unwrap_or(u32::MAX));
        let (node, world) = deaf.into_iter().find(|(_, world)| *world > self.in_vain)?;
        self.in_vain = world;
        let me = self.nodes.me;
        let reason = format!(
            "what the ranks' MPI has to tell from {me} to {node} has not come there for {} s, neither straight nor through other \
             nodes, though both nodes are heard: something between the nodes keeps TCP back, and heartbeats (UDP) not (path-timeout in \
             ftd.toml)",
            self.patience.as_secs_f64()
        );
        Some(Arrived::Stuck { world, reason })
    }

    /// A node says something of a world.
    fn hear(&mut self, world: WorldNumber, from: NodeId, said: Said) -> Vec<Arrived> {
        let said = match said {
            // Nodes that have no rank of the world say and hear it as well.
            Ok(Word::Copy(word)) => {
                let round = self.post.goes_round(from);
                return vec![Arrived::Copy { from, round, word }];
            }
            Ok(Word::Store(word)) => return vec![Arrived::Store(from, word)],
            Ok(Word::User(word)) => return vec![Arrived::User(from, word)],
            // Who asked it asks somebody else.
            _ if world == NO_WORLD => return Vec::new(),
            said => said,
        };
        let newest = self.world.as_ref().map_or(0, |(number, _)| *number);
        if world > newest {
            self.early.push((world, from, said));
            return Vec::new();
        }
        let Some((_, exchange)) = self.world.as_mut().filter(|(number, _)| *number == world) else { return Vec::new() };
        let word = match said {
            Ok(word) => word,
            Err(error) => {
                let reason = format!("what the agent of {from} says cannot be read: {error}");
                return vec![Arrived::Stuck { world, reason }];
            }
        };
        match word {
            Word::Up { .. } | Word::Down { .. } => {
                let steps = exchange.fences.hear(&exchange.layout, from, word);
                self.step(world, steps)
            }
            Word::Modex { token, proc } => vec![Arrived::ModexAsked { world, from, token, proc }],
            Word::ModexData { token, status, data } => {
                vec![Arrived::ModexData { world, token, found: Some((status, data)) }]
            }
            Word::Name { asker, request } => vec![Arrived::NameAsked { world, from, asker, request }],
            Word::Named { asker, answer } => vec![Arrived::Named { world, asker, answer }],
            Word::Event(event) => {
                let mut arrived = self.pass_on(world, Some(from), &event);
                arrived.push(Arrived::Event { world, event });
                arrived
            }
            Word::Left { leavers } => {
                let news = leavers.into_iter().filter(|leaver| exchange.leavers.note(Some(from), *leaver));
                let mut arrived: Vec<Arrived> = news.map(|leaver| Arrived::Left { world, leaver }).collect();
                arrived.extend(self.tell_of_leavers());
                arrived
            }
            Word::Copy(_) | Word::Store(_) | Word::User(_) => Vec::new(),
        }
    }

    /// An event goes along the tree of all nodes: each hears of it from one neighbour.
    fn pass_on(&mut self, world: WorldNumber, from: Option<NodeId>, event: &Raised) -> Vec<Arrived> {
        let to = self.world.as_ref().map(|(_, exchange)| exchange.neighbours(from)).unwrap_or_default();
        if let Some(to) = to.iter().find(|to| self.post.length(**to) >= MOST_WAITING) {
            let reason = format!(
                "the ranks raise more events (PMIx_Notify_event) than {to} takes: {MOST_WAITING} words wait for it"
            );
            return vec![Arrived::Stuck { world, reason }];
        }
        to.into_iter().flat_map(|to| self.tell(world, to, Word::Event(event.clone()))).collect()
    }

    /// The neighbours in the tree hear who takes no more checkpoints, those of them that have noted what they were told last.
    fn tell_of_leavers(&mut self) -> Vec<Arrived> {
        let Some((world, exchange)) = &mut self.world else { return Vec::new() };
        let (world, words) = (*world, exchange.leavers.tell(|node| self.post.waits_for(node)));
        words.into_iter().flat_map(|(to, leavers)| self.tell(world, to, Word::Left { leavers })).collect()
    }

    fn step(&mut self, world: WorldNumber, steps: Vec<Step>) -> Vec<Arrived> {
        let mut arrived = Vec::new();
        for step in steps {
            arrived.extend(match step {
                Step::Say(to, word) => self.tell(world, to, word),
                Step::Complete(below, fence, parts) => {
                    let token = self.world.as_mut().and_then(|(_, exchange)| exchange.tokens.remove(&fence));
                    self.write(bytes_of(&parts), move || Written::complete(world, below, fence, parts, token))
                }
            });
        }
        arrived
    }

    fn tell(&mut self, world: WorldNumber, to: NodeId, word: Word) -> Vec<Arrived> {
        let whose = match &word {
            Word::Up { parts, .. } if parts.len() == 1 => Whose::Node(self.nodes.me),
            Word::Name { request: NameRequest::Publish { proc, .. }, .. } => Whose::Rank(proc.rank),
            // It may name anything as its source.
            Word::Event(event) if self.has(event.source.rank) => Whose::Rank(event.source.rank),
            _ => Whose::All,
        };
        self.tell_of(whose, world, to, word)
    }

    fn has(&self, rank: Rank) -> bool {
        self.world.as_ref().is_some_and(|(_, exchange)| exchange.layout.node_of(rank).is_some())
    }

    /// `whose`: should it be too long.
    fn tell_of(&mut self, whose: Whose, world: WorldNumber, to: NodeId, word: Word) -> Vec<Arrived> {
        let bytes = match &word {
            Word::Up { parts, .. } | Word::Down { parts, .. } => bytes_of(parts),
            Word::ModexData { data, .. } => data.len(),
            Word::Name { request: NameRequest::Publish { values, .. }, .. } => {
                values.iter().map(|(_, value)| value.len()).sum()
            }
            Word::Named { answer, .. } => answer.found.iter().map(|(_, _, value)| value.len()).sum(),
            Word::Store(StoreWord::Ask { question: bytes, .. } | StoreWord::Answer { answer: bytes, .. }) => {
                bytes.len()
            }
            Word::Event(event) => event.infos.iter().map(|(_, value)| value.len()).sum(),
            Word::Modex { .. } | Word::Name { .. } | Word::Left { .. } | Word::Copy(_) | Word::User(_) => 0,
        };
        self.write(bytes, move || Written::word(world, to, &word, whose))
    }

    /// Says something about the store. Gives it back when it is certainly not said: to one that has left, or does not hear.
    ///
    /// # Errors
    /// The word.
    pub fn say_of_store(&mut self, to: NodeId, word: StoreWord) -> Result<Vec<Arrived>, StoreWord> {
        if self.nodes.has_left(to) || self.post.waiting(to, NO_WORLD) >= OF_STORE {
            return Err(word);
        }
        Ok(self.tell(NO_WORLD, to, Word::Store(word)))
    }

    /// Says something that is about what the job's user has asked. Gives it back when it is certainly not said.
    ///
    /// # Errors
    /// The word.
    pub fn say_of_user(&mut self, to: NodeId, word: UserWord) -> Result<Vec<Arrived>, UserWord> {
        if self.nodes.has_left(to) || self.post.waiting(to, NO_WORLD) >= OF_USER {
            return Err(word);
        }
        Ok(self.tell(NO_WORLD, to, Word::User(word)))
    }

    /// What is long is written elsewhere.
    fn write(&mut self, bytes: usize, work: impl FnOnce() -> Written + Send + 'static) -> Vec<Arrived> {
        let written = aside::work(bytes, &self.news.of(|written| News::Written(Box::new(written))), work);
        written.map(|written| self.written(written)).unwrap_or_default()
    }

    /// What cannot be said somebody waits for in vain: the world is stuck.
    fn written(&mut self, written: Written) -> Vec<Arrived> {
        let Written { world, to, body, awaited, fenced } = written;
        let body = match body {
            Ok(body) => Arc::new(body),
            Err(reason) => return vec![Arrived::Stuck { world, reason }],
        };
        for to in to.into_iter().filter(|to| !self.nodes.has_left(*to)).collect::<Vec<_>>() {
            let sendings = self.post.send(to, world, body.clone(), awaited).unwrap_or_default();
            self.put(sendings);
        }
        fenced.map(|(token, given)| Arrived::Fenced { world, token, given }).into_iter().collect()
    }

    fn put(&mut self, sendings: Sendings) {
        for (to, way, sending) in sendings {
            self.peers.post(to, way, sending);
        }
        if self.post.waits() && !std::mem::replace(&mut self.looks, true) {
            let (news, look) = (self.news.clone(), self.look);
            tokio::spawn(async move {
                tokio::time::sleep(look).await;
                news.send(News::Look);
            });
        }
    }
}

#[cfg(test)]
mod tests;
