//! Endpoints on loopback: what one says arrives at the other, whatever happens to the connection, and nobody waits for anybody.

#![allow(clippy::unwrap_used)]

use ft_peer::beats::Identity;
use ft_peer::codec::{self, MOST_BYTES};
use ft_peer::frame::{HEADER, Lane};
use ft_peer::hello::{self, HELLO, Hello, Proofs};
use ft_peer::peers::SendError;
use ft_peer::post::{Post, Sendings};
use ft_peer::{Counters, News, Peers, Secret};
use ftd_core::fence::Beat;
use ftd_core::record::Strategy;
use ftd_core::{
    EpochId, EpochRecord, FailureSet, Members, Micros, Mode, NodeId, Outcome, PeerMessage, Placement, Revision, Slots,
    Terms, WorldId,
};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::AbortHandle;

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(40);
const JOB: &str = "12.0";
const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

struct Node {
    peers: Peers,
    news: Receiver<News>,
}

fn identity(me: u32, incarnation: u64, secret: u8) -> Identity {
    Identity { job: JOB.into(), secret: Secret::new([secret; 32]), me: NodeId(me), incarnation }
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it did not happen")
}

impl Node {
    fn open(identity: Identity) -> Node {
        let (inlet, news) = channel(64);
        Node { peers: Peers::open(identity, HOME, inlet).unwrap(), news }
    }

    fn of(me: u32) -> Node {
        Node::open(identity(me, 100 + u64::from(me), 7))
    }

    async fn news(&mut self) -> News {
        within(self.news.recv()).await.unwrap()
    }

    /// The next message.
    async fn hears(&mut self) -> (NodeId, PeerMessage) {
        loop {
            if let News::Said { from, message, .. } = self.news().await {
                return (from, message);
            }
        }
    }

    /// Waits for this message.
    async fn hears_of(&mut self, wanted: &PeerMessage) {
        while self.hears().await.1 != *wanted {}
    }

    async fn loses(&mut self, lost: u32) -> String {
        loop {
            match self.news().await {
                News::Lost { node, reason } if node == NodeId(lost) => return reason,
                _ => {}
            }
        }
    }

    async fn trouble(&mut self) -> String {
        loop {
            if let News::Trouble(sentence) = self.news().await {
                return sentence;
            }
        }
    }

    fn say(&self, to: u32, message: &PeerMessage) {
        self.peers.send(NodeId(to), message).unwrap();
    }

    async fn counts(&self, suits: impl Fn(&Counters) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !suits(&self.peers.counters()) {
            assert!(Instant::now() < deadline, "{:?}", self.peers.counters());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

fn pair() -> (Node, Node) {
    let (one, two) = (Node::of(1), Node::of(2));
    one.peers.know(NodeId(2), two.peers.address());
    two.peers.know(NodeId(1), one.peers.address());
    (one, two)
}

fn ask(epoch: u64) -> PeerMessage {
    PeerMessage::AskForRecord { epoch: EpochId(epoch) }
}

/// About so many bytes; `epoch` tells one from the other.
fn big(epoch: u64, bytes: usize) -> PeerMessage {
    let record = EpochRecord {
        epoch: EpochId(epoch),
        began: Micros(0),
        mode: Mode::Reinit,
        terms: Terms::default(),
        world: WorldId(1),
        world_size: 0,
        placement: Placement::default(),
        slots: Slots::default(),
        nodes: Members::default(),
        joined: BTreeSet::new(),
        failures: FailureSet::new(),
        agreed_after: Micros(0),
        strategy: Strategy::Fresh,
        streaks: Vec::new(),
        history: Vec::new(),
        outcome: Some(Outcome { status: 1, reason: Some("x".repeat(bytes)) }),
    };
    PeerMessage::Record { revision: Revision(epoch), record: Arc::new(record) }
}

/// One of each kind, so that none stands for another.
fn kinds() -> Vec<PeerMessage> {
    use ftd_core::tree::Direction;
    let received = |direction| PeerMessage::Received { epoch: EpochId(1), direction, number: 3 };
    let relay = |message| PeerMessage::Relay { origin: NodeId(9), to: NodeId(8), message: Box::new(message) };
    vec![
        ask(1),
        received(Direction::Up),
        received(Direction::Down),
        PeerMessage::OfferNoted { epoch: EpochId(1), copies: None },
        PeerMessage::SlotsNoted { nodes: 4 },
        big(1, 100),
        relay(ask(1)),
        relay(PeerMessage::Heard { epoch: EpochId(2) }),
    ]
}

#[tokio::test]
async fn what_is_said_arrives_in_order_over_one_connection() {
    let (mut one, mut two) = pair();
    for message in kinds() {
        one.say(2, &message);
    }
    for message in kinds() {
        assert_eq!(two.hears().await, (NodeId(1), message));
    }
    for message in kinds() {
        two.say(1, &message);
        assert_eq!(one.hears().await, (NodeId(2), message));
    }
    let (ones, twos) = (one.peers.counters(), two.peers.counters());
    assert_eq!((ones.connects, ones.reconnects, twos.connects, twos.reconnects), (1, 0, 1, 0));
    assert_eq!((ones.sent, ones.received, ones.refused.all()), (8, 8, 0));
}

#[tokio::test]
async fn heartbeats_go_beside_it() {
    let (mut one, mut two) = pair();
    one.say(2, &ask(1));
    two.hears_of(&ask(1)).await;
    // They know each other's incarnation of the connection: the first one counts.
    let beat = Beat { incarnation: 101, sequence: 1 };
    let heartbeat = PeerMessage::Heartbeat { beat, epoch: EpochId(1), unheard: false };
    one.say(2, &heartbeat);
    assert_eq!(two.hears().await, (NodeId(1), heartbeat));
    two.say(1, &PeerMessage::Heard { epoch: EpochId(1) });
    assert_eq!(one.hears().await.0, NodeId(2));
    assert_eq!((one.peers.counters().refused.all(), two.peers.counters().refused.all()), (0, 0));
}

#[tokio::test]
async fn three_speak_with_each_other() {
    let mut nodes: Vec<Node> = (0..3).map(Node::of).collect();
    let addresses: Vec<SocketAddr> = nodes.iter().map(|node| node.peers.address()).collect();
    for node in &nodes {
        (0..).zip(&addresses).for_each(|(other, address)| node.peers.know(NodeId(other), *address));
    }
    for (from, to) in [(0, 1), (1, 2), (2, 0), (1, 0), (2, 1), (0, 2)] {
        let message = ask(10 * from + to);
        nodes[from as usize].say(to as u32, &message);
        assert_eq!(nodes[to as usize].hears().await, (NodeId(from as u32), message));
    }
    assert_eq!(nodes.iter().map(|node| node.peers.counters().connects).collect::<Vec<_>>(), [2, 2, 2]);
}

#[tokio::test]
async fn a_long_message_arrives_and_of_a_longer_one_the_sender_is_told() {
    let (one, mut two) = pair();
    let longest = big(1, 15 << 20);
    one.say(2, &longest);
    two.hears_of(&longest).await;
    let refused = one.peers.send(NodeId(2), &big(1, 17 << 20)).unwrap_err();
    assert!(refused.to_string().contains("the longest that is sent has 16777216"), "{refused}");
    let refused = one.peers.send(NodeId(9), &ask(1)).unwrap_err();
    assert!(matches!(refused, SendError::Unknown(NodeId(9))));
    assert_eq!(refused.to_string(), "it is not known where node 9 can be reached");
}

/// Passes on what two say to each other, until it is cut.
struct Line {
    address: SocketAddr,
    cuts: tokio::sync::watch::Sender<u64>,
    /// Bytes of connections that are not passed on any further.
    held: tokio::sync::watch::Receiver<u64>,
    task: AbortHandle,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Line {
    async fn to(target: SocketAddr) -> Line {
        Line::that_stalls(target, 0, 0).await
    }

    /// Of each of the first connections no more than so many bytes are passed on.
    async fn that_stalls(target: SocketAddr, connections: u64, most: u64) -> Line {
        let listener = TcpListener::bind((HOME, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (cuts, cut) = tokio::sync::watch::channel(0);
        let (hold, held) = tokio::sync::watch::channel(0);
        let task = tokio::spawn(async move {
            let mut count = 0;
            while let Ok((mut near, _)) = listener.accept().await {
                count += 1;
                let stalls = count <= connections;
                let (mut cut, hold) = (cut.clone(), hold.clone());
                cut.mark_unchanged();
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(target).await.unwrap();
                    // Both sockets are shut when this is dropped.
                    let pass = async {
                        if !stalls {
                            let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                            return;
                        }
                        let ((from_near, mut to_near), (mut from_far, mut to_far)) = (near.split(), far.split());
                        let mut some = from_near.take(most);
                        let there = async {
                            let passed = tokio::io::copy(&mut some, &mut to_far).await;
                            hold.send_modify(|held| *held += passed.unwrap_or(0));
                        };
                        tokio::join!(there, async { drop(tokio::io::copy(&mut from_far, &mut to_near).await) });
                    };
                    tokio::select! {
                        () = pass => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Line { address, cuts, held, task: task.abort_handle() }
    }

    /// Ends every connection that goes through it.
    fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

#[tokio::test]
async fn after_a_cut_there_is_another_connection_and_what_is_said_arrives() {
    let (mut one, mut two) = (Node::of(1), Node::of(2));
    let line = Line::to(two.peers.address()).await;
    one.peers.know(NodeId(2), line.address);
    for round in 1..4 {
        one.say(2, &ask(round));
        two.hears_of(&ask(round)).await;
        line.cut();
        one.loses(2).await;
        two.loses(1).await;
    }
    // The other one reaches it now by itself.
    two.say(1, &ask(9));
    one.hears_of(&ask(9)).await;
    assert_eq!(one.peers.counters().reconnects, 3);
    assert_eq!(one.peers.counters().refused.all(), 0);
}

#[tokio::test]
async fn a_message_that_a_cut_broke_off_is_sent_again() {
    let (one, mut two) = (Node::of(1), Node::of(2));
    let mut line = Line::that_stalls(two.peers.address(), 3, 1 << 20).await;
    one.peers.know(NodeId(2), line.address);
    // More than all sockets on the way take.
    let message = big(1, 15 << 20);
    one.say(2, &message);
    for round in 1..4 {
        within(line.held.wait_for(|held| *held == round << 20)).await.unwrap();
        line.cut();
    }
    two.hears_of(&message).await;
    assert_eq!((one.peers.counters().reconnects, one.peers.counters().sent, two.peers.counters().received), (3, 1, 1));
}

/// A node that has and gets parcels.
struct Postal {
    node: Node,
    post: Post,
    got: Vec<Vec<u8>>,
    lost: u32,
}

impl Postal {
    fn new(node: Node, incarnation: u64) -> Postal {
        Postal { node, post: Post::new(incarnation), got: Vec::new(), lost: 0 }
    }

    fn put(&self, sendings: Sendings) {
        sendings.into_iter().for_each(|(to, way, sending)| self.node.peers.post(to, way, sending));
    }

    /// Takes in what happens next.
    async fn goes_on(&mut self) {
        let sendings = match self.node.news().await {
            News::Piece { from, way, piece, .. } => {
                let (delivered, sendings) = self.post.take(from, way, piece);
                self.got.extend(delivered.map(|delivered| delivered.whole()));
                sendings
            }
            News::Noted { from, way, noted } => self.post.noted(from, way, noted),
            News::Connected { node, .. } => self.post.again(node),
            News::Lost { .. } => {
                self.lost += 1;
                Vec::new()
            }
            _ => Vec::new(),
        };
        self.put(sendings);
    }
}

#[tokio::test]
async fn a_parcel_of_many_pieces_comes_once_though_the_line_is_cut() {
    let (one, two) = (Node::of(1), Node::of(2));
    let line = Line::that_stalls(two.peers.address(), 2, 3 << 20).await;
    let mut held = line.held.clone();
    one.peers.know(NodeId(2), line.address);
    let (mut one, mut two) = (Postal::new(one, 101), Postal::new(two, 102));
    let bodies: Vec<Vec<u8>> =
        [20 << 20, 5, 3 << 20].map(|bytes| (0..bytes).map(|at| (at / 7) as u8).collect()).to_vec();
    for body in &bodies {
        let sendings = one.post.send(NodeId(2), 1, body.clone().into(), true).unwrap();
        one.put(sendings);
    }
    let mut cuts = 0;
    within(async {
        while one.post.waits() || two.got.len() < bodies.len() {
            tokio::select! {
                () = one.goes_on() => {}
                () = two.goes_on() => {}
                () = async { drop(held.wait_for(|held| *held == (cuts + 1) * (3 << 20)).await) }, if cuts < 2 => {
                    cuts += 1;
                    line.cut();
                }
            }
        }
    })
    .await;
    two.got.sort();
    let mut sent = bodies;
    sent.sort();
    assert!(two.got == sent && one.lost == 2, "{} parcels came, {} connections were lost", two.got.len(), one.lost);
}

#[tokio::test]
async fn parcels_go_through_another_node_where_two_have_no_connection() {
    let (one, two, mut three) = (Node::of(1), Node::of(2), Node::of(3));
    let parked = TcpListener::bind((HOME, 0)).await.unwrap();
    // Whoever dials the other one of the two is not answered.
    one.peers.know(NodeId(2), parked.local_addr().unwrap());
    two.peers.know(NodeId(1), parked.local_addr().unwrap());
    for (node, other) in [(&one, 3), (&two, 3), (&three, 1), (&three, 2)] {
        let addresses = [one.peers.address(), two.peers.address(), three.peers.address()];
        node.peers.know(NodeId(other), addresses[other as usize - 1]);
    }
    let (mut one, mut two) = (Postal::new(one, 101), Postal::new(two, 102));
    let bodies: Vec<Vec<u8>> = [20 << 20, 5].map(|bytes| (0..bytes).map(|at| (at / 7) as u8).collect()).to_vec();
    for body in &bodies {
        let sendings = one.post.send(NodeId(2), 1, body.clone().into(), true).unwrap();
        one.put(sendings);
    }
    // Time passes.
    (0..2).for_each(|_| {
        let sendings = one.post.look(|_| vec![NodeId(3)]);
        one.put(sendings);
    });
    within(async {
        while one.post.waits() || two.got.len() < bodies.len() {
            tokio::select! {
                () = one.goes_on() => {}
                () = two.goes_on() => {}
                // Who passes it on hears nothing of it.
                news = three.news() => assert!(matches!(news, News::Connected { .. }), "{news:?}"),
            }
        }
    })
    .await;
    two.got.sort();
    let mut sent = bodies;
    sent.sort();
    assert!(two.got == sent, "{} parcels came", two.got.len());
}

#[tokio::test]
async fn who_has_left_is_let_go_and_hears_what_is_said_to_it_later() {
    let (mut one, mut two) = pair();
    one.say(2, &ask(1));
    two.hears_of(&ask(1)).await;
    one.peers.let_go(NodeId(2));
    two.loses(1).await;
    let settled = one.peers.counters().connects + one.peers.counters().reconnects;
    one.say(2, &ask(2));
    two.hears_of(&ask(2)).await;
    let connections = one.peers.counters().connects + one.peers.counters().reconnects;
    assert_eq!((settled, connections), (1, 2));
    one.say(2, &ask(3));
    two.say(1, &ask(4));
    one.hears_of(&ask(4)).await;
}

#[tokio::test]
async fn sockets_that_outlive_an_agent_are_the_next_ones() {
    let listener = std::net::TcpListener::bind((HOME, 0)).unwrap();
    let socket = std::net::UdpSocket::bind(listener.local_addr().unwrap()).unwrap();
    let mut two = Node::of(2);
    two.peers.know(NodeId(1), listener.local_addr().unwrap());
    let beat = PeerMessage::Heartbeat { beat: Beat { incarnation: 1, sequence: 1 }, epoch: EpochId(1), unheard: false };
    for incarnation in [11, 12] {
        let (inlet, news) = channel(64);
        let identity = identity(1, incarnation, 7);
        let (tcp, udp) = (listener.try_clone().unwrap(), socket.try_clone().unwrap());
        let mut one = Node { peers: Peers::adopt(identity, tcp, udp, (inlet.clone(), inlet.into())).unwrap(), news };
        assert_eq!(one.peers.address(), listener.local_addr().unwrap());
        two.say(1, &ask(incarnation));
        one.hears_of(&ask(incarnation)).await;
        one.say(2, &ask(incarnation));
        two.hears_of(&ask(incarnation)).await;
        two.say(1, &beat);
        one.hears_of(&beat).await;
        drop(one);
        // What is written before that goes to the one that has ended.
        two.loses(1).await;
    }
}

#[tokio::test]
async fn who_is_not_there_yet_hears_the_newest_of_each_kind_later() {
    let one = Node::of(1);
    let parked = TcpListener::bind((HOME, 0)).await.unwrap();
    let address = parked.local_addr().unwrap();
    drop(parked);
    one.peers.know(NodeId(2), address);
    for epoch in 1..1000 {
        one.say(2, &ask(epoch));
        one.say(2, &PeerMessage::OfferNoted { epoch: EpochId(epoch), copies: None });
    }
    one.counts(|counters| counters.failed >= 3).await;
    let failed = one.peers.counters().failed;
    assert_eq!(one.peers.counters().superseded, 2 * 998);
    let mut two = Node::of(2);
    one.peers.know(NodeId(2), two.peers.address());
    assert_eq!(two.hears().await.1, ask(999));
    assert_eq!(two.hears().await.1, PeerMessage::OfferNoted { epoch: EpochId(999), copies: None });
    assert!(failed < 100, "{failed} tries without a pause");
}

#[tokio::test]
async fn two_that_dial_at_the_same_time_come_together() {
    for _ in 0..20 {
        let (mut one, mut two) = pair();
        one.say(2, &ask(1));
        two.say(1, &ask(2));
        two.hears_of(&ask(1)).await;
        one.hears_of(&ask(2)).await;
        one.say(2, &ask(3));
        two.hears_of(&ask(3)).await;
    }
}

#[tokio::test]
async fn a_new_agent_is_found_where_it_is_and_the_old_one_is_not_heard_again() {
    let (mut one, two) = pair();
    two.say(1, &ask(1));
    one.hears_of(&ask(1)).await;
    drop(two);
    one.loses(2).await;
    let mut successor = Node::open(identity(2, 200, 7));
    successor.peers.know(NodeId(1), one.peers.address());
    successor.say(1, &ask(2));
    one.hears_of(&ask(2)).await;
    one.say(2, &ask(3));
    successor.hears_of(&ask(3)).await;
    let old = Node::of(2);
    old.peers.know(NodeId(1), one.peers.address());
    old.say(1, &ask(4));
    one.counts(|counters| counters.refused.stale >= 1).await;
    one.say(2, &ask(5));
    successor.hears_of(&ask(5)).await;
}

#[tokio::test]
async fn who_does_not_know_the_secret_is_neither_heard_nor_answered_and_both_count_it() {
    let (mut one, mut stranger) = (Node::of(1), Node::open(identity(2, 102, 8)));
    stranger.peers.know(NodeId(1), one.peers.address());
    one.peers.know(NodeId(2), stranger.peers.address());
    stranger.say(1, &ask(1));
    one.say(2, &ask(2));
    let sentence = one.trouble().await;
    assert!(sentence.contains("127.0.0.1") && sentence.contains("12.0") && sentence.contains("secret"), "{sentence}");
    stranger.trouble().await;
    one.counts(|counters| counters.refused.forged >= 3).await;
    stranger.counts(|counters| counters.refused.forged >= 3).await;
    assert_eq!((one.peers.counters().received, stranger.peers.counters().received), (0, 0));
    // It is said once; that there are strangers is told from time to time.
    assert!(matches!(one.news().await, News::Stranger { .. }));
    let others = std::iter::from_fn(|| one.news.try_recv().ok()).filter(|news| !matches!(news, News::Stranger { .. }));
    assert_eq!(others.count(), 0);
}

/// An agent that is none of ours, with whatever it wants to say.
struct Other {
    stream: TcpStream,
    out: Lane,
    hello: [u8; HELLO],
    proof: [u8; 32],
}

impl Other {
    async fn meets(node: &Node, me: u32) -> Other {
        let mut stream = TcpStream::connect(node.peers.address()).await.unwrap();
        let hello = Hello::new(NodeId(me), NodeId(1), 5, 1).unwrap().to_bytes(JOB);
        stream.write_all(&hello).await.unwrap();
        let (mut theirs, mut proof) = ([0; HELLO], [0; 32]);
        stream.read_exact(&mut theirs).await.unwrap();
        stream.read_exact(&mut proof).await.unwrap();
        let proofs = Proofs::of(&Secret::new([7; 32]), JOB, &hello, &theirs);
        assert!(hello::same(proof, proofs.acceptor));
        stream.write_all(&proofs.dialler).await.unwrap();
        Other { stream, out: Lane::new(proofs.from_dialler), hello, proof: proofs.dialler }
    }

    async fn says(&mut self, message: &PeerMessage) -> Vec<u8> {
        let body = codec::encode(message).unwrap();
        let frame = [&self.out.header(&body)[..], &body].concat();
        self.stream.write_all(&frame).await.unwrap();
        frame
    }

    async fn reads(&mut self) -> std::io::Result<PeerMessage> {
        let mut header = [0; HEADER];
        within(self.stream.read_exact(&mut header)).await?;
        let mut body = vec![0; Lane::announced(&header).unwrap()];
        within(self.stream.read_exact(&mut body)).await?;
        Ok(codec::decode(&body).unwrap())
    }

    /// The node hangs up.
    async fn is_dropped(&mut self) {
        let mut rest = Vec::new();
        let _ = within(self.stream.read_to_end(&mut rest)).await;
    }
}

#[tokio::test]
async fn another_release_is_refused_and_both_versions_are_named() {
    let mut one = Node::of(1);
    let mut stream = TcpStream::connect(one.peers.address()).await.unwrap();
    let mut hello = Hello::new(NodeId(2), NodeId(1), 5, 1).unwrap().to_bytes(JOB);
    let ours = hello[8];
    // The next one would be a neighbour.
    let theirs = ours + 2;
    hello[8] = theirs;
    stream.write_all(&hello).await.unwrap();
    let sentence = one.trouble().await;
    let both = [format!("speaks protocol version {theirs}"), format!("of node 1 version {ours},")];
    assert!(both.iter().all(|said| sentence.contains(said)), "{sentence}");
    assert_eq!(one.peers.counters().refused.version, 1);
    // The other side hears which one this is.
    let mut answer = Vec::new();
    let _ = within(stream.read_to_end(&mut answer)).await;
    assert_eq!(answer[..12], [&b"ftdpeer\n"[..], &[ours, 0, 0, 0]].concat());
    // And one that dials finds it out as well.
    let listener = TcpListener::bind((HOME, 0)).await.unwrap();
    one.peers.know(NodeId(3), listener.local_addr().unwrap());
    one.say(3, &ask(1));
    let (mut dialled, _) = listener.accept().await.unwrap();
    // Of yet another release: what was said of one is not said again.
    hello[8] = theirs + 1;
    dialled.write_all(&hello[..12]).await.unwrap();
    assert!(one.trouble().await.contains(&format!("speaks protocol version {},", hello[8])));
}

#[tokio::test]
async fn what_is_none_of_the_jobs_is_counted() {
    let one = Node::of(1);
    let address = one.peers.address();
    let dials = |bytes: Vec<u8>| async move {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        let mut rest = Vec::new();
        let _ = within(stream.read_to_end(&mut rest)).await;
        rest
    };
    dials(b"GET / HTTP/1.1\r\nHost: one\r\n\r\n".to_vec()).await;
    let other_job = Hello::new(NodeId(2), NodeId(1), 5, 1).unwrap().to_bytes("12.1");
    assert_eq!(dials(other_job.to_vec()).await, b"");
    // Somebody who says nothing more has a second.
    dials([&other_job[..12], b"half a hello"].concat()).await;
    one.counts(|counters| (counters.refused.malformed, counters.refused.foreign, counters.unproven) == (1, 1, 1)).await;
}

#[tokio::test]
async fn a_meeting_that_was_recorded_proves_nothing() {
    let mut one = Node::of(1);
    let mut other = Other::meets(&one, 2).await;
    let frame = other.says(&ask(1)).await;
    one.hears_of(&ask(1)).await;
    let mut replay = TcpStream::connect(one.peers.address()).await.unwrap();
    replay.write_all(&[&other.hello[..], &other.proof, &frame].concat()).await.unwrap();
    one.counts(|counters| counters.refused.forged == 1).await;
    // The one that was recorded is not disturbed.
    other.says(&ask(2)).await;
    one.hears_of(&ask(2)).await;
    assert_eq!(one.peers.counters().received, 2);
}

#[tokio::test]
async fn a_frame_that_comes_twice_or_is_too_long_or_was_changed_ends_the_connection() {
    let mut one = Node::of(1);
    let mut other = Other::meets(&one, 2).await;
    let frame = other.says(&ask(1)).await;
    one.hears_of(&ask(1)).await;
    other.stream.write_all(&frame).await.unwrap();
    assert!(one.loses(2).await.contains("Forged"));
    other.is_dropped().await;
    let mut other = Other::meets(&one, 2).await;
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&(MOST_BYTES as u32 + 1).to_le_bytes());
    other.stream.write_all(&header).await.unwrap();
    assert!(one.loses(2).await.contains("Oversized"));
    other.is_dropped().await;
    let mut other = Other::meets(&one, 2).await;
    let body = codec::encode(&ask(2)).unwrap();
    let header = other.out.header(&body);
    other.stream.write_all(&[&header[..], &vec![0; body.len()]].concat()).await.unwrap();
    one.loses(2).await;
    let refused = one.peers.counters().refused;
    assert_eq!((refused.forged, refused.oversized, one.peers.counters().received), (2, 1, 1));
}

#[tokio::test]
async fn a_sealed_message_that_cannot_be_read_is_counted_and_the_next_one_heard() {
    let mut one = Node::of(1);
    let mut other = Other::meets(&one, 2).await;
    let body = [0xff; 9];
    let header = other.out.header(&body);
    other.stream.write_all(&[&header[..], &body].concat()).await.unwrap();
    other.says(&ask(2)).await;
    one.hears_of(&ask(2)).await;
    assert_eq!(one.peers.counters().refused.malformed, 1);
}

#[tokio::test]
async fn strangers_that_say_nothing_keep_nobody_out_for_long() {
    let (mut one, two) = pair();
    let mut strangers = Vec::new();
    let begun = Instant::now();
    while one.peers.counters().refused.crowd < 8 {
        strangers.push(TcpStream::connect(one.peers.address()).await.unwrap());
        assert!(begun.elapsed() < PATIENCE, "{:?}", one.peers.counters());
    }
    two.say(1, &ask(1));
    one.hears_of(&ask(1)).await;
}

#[tokio::test]
async fn a_peer_that_does_not_read_holds_up_nobody_and_takes_no_memory() {
    let (mut one, mut three) = (Node::of(1), Node::of(3));
    one.peers.know(NodeId(3), three.peers.address());
    let mut other = Other::meets(&one, 2).await;
    other.says(&ask(1)).await;
    one.hears_of(&ask(1)).await;
    // If saying waited it would wait for ever: the other one reads only after all is said.
    for epoch in 1..200 {
        let message = big(epoch, 1 << 20);
        one.say(2, &message);
        if epoch % 50 == 0 {
            one.say(3, &ask(epoch));
            assert_eq!(three.hears().await.1, ask(epoch));
        }
        tokio::task::yield_now().await;
    }
    // The kernel took a few; of all others the newest waits.
    assert!(one.peers.counters().superseded > 150, "{:?}", one.peers.counters());
    // It reads on: the newest comes, be it over another connection, where this one was given up.
    let mut newest = 0;
    while newest < 199 {
        match other.reads().await {
            Ok(PeerMessage::Record { revision, .. }) => newest = revision.0,
            Ok(_) => {}
            Err(_) => other = Other::meets(&one, 2).await,
        }
    }
}

#[tokio::test]
async fn an_agent_that_takes_no_news_is_waited_for_by_its_senders_only() {
    let (inlet, news) = channel(2);
    let two = Node { peers: Peers::open(identity(2, 102, 7), HOME, inlet).unwrap(), news };
    let (one, mut three) = (Node::of(1), Node::of(3));
    one.peers.know(NodeId(2), two.peers.address());
    one.peers.know(NodeId(3), three.peers.address());
    for epoch in 1..100 {
        one.say(2, &big(epoch, 1 << 20));
        one.say(3, &ask(epoch));
        three.hears_of(&ask(epoch)).await;
    }
    let mut two = two;
    two.hears_of(&big(99, 1 << 20)).await;
    assert!(two.peers.counters().received < 99);
}

/// Not a test: another process, with an endpoint that answers. It is started by the test below.
#[tokio::test]
async fn other_process() {
    let Ok(address) = std::env::var("FT_TEST_PEER") else { return };
    let mut two = Node::of(2);
    two.peers.know(NodeId(1), address.parse().unwrap());
    two.say(1, &ask(0));
    loop {
        // The test kills it.
        let Some(news) = two.news.recv().await else { return };
        if let News::Said { message: PeerMessage::AskForRecord { epoch }, .. } = news {
            two.say(1, &ask(1000 + epoch.0));
        }
    }
}

#[tokio::test]
async fn a_stopped_process_is_given_up_and_taken_back() {
    let (mut one, mut three) = (Node::of(1), Node::of(3));
    one.peers.know(NodeId(3), three.peers.address());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "other_process", "--nocapture"]).env("FT_TEST_PEER", one.peers.address().to_string());
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    let signal = |signal| rustix::process::kill_process(pid, signal).unwrap();
    one.hears_of(&ask(0)).await;
    signal(rustix::process::Signal::STOP);
    let begun = Instant::now();
    let mut epoch = 0;
    let reason = loop {
        epoch += 1;
        one.say(2, &big(epoch, 1 << 20));
        one.say(3, &ask(epoch));
        three.hears_of(&ask(epoch)).await;
        if let Ok(News::Lost { node: NodeId(2), reason }) = one.news.try_recv() {
            break reason;
        }
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert!(reason.contains("stands still"), "{reason}");
    // Its kernel takes connections, and nobody answers: also that is bounded, and tried again.
    one.counts(|counters| counters.failed >= 1).await;
    signal(rustix::process::Signal::CONT);
    one.say(2, &ask(7));
    one.hears_of(&ask(1007)).await;
    assert!(one.peers.counters().reconnects >= 1);
    child.kill().unwrap();
    child.wait().unwrap();
    // And when it is dead it is lost at once.
    one.loses(2).await;
}

#[tokio::test]
async fn who_is_forgotten_is_told_nothing_more() {
    let (mut one, mut two) = pair();
    one.say(2, &ask(1));
    two.hears_of(&ask(1)).await;
    one.peers.forget(NodeId(2));
    two.loses(1).await;
    assert!(matches!(one.peers.send(NodeId(2), &ask(2)), Err(SendError::Unknown(_))));
    // Unless it comes itself.
    two.say(1, &ask(3));
    one.hears_of(&ask(3)).await;
    one.say(2, &ask(4));
    two.hears_of(&ask(4)).await;
}
