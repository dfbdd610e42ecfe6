//! Heartbeats between endpoints on loopback: what an agent of the job says is heard once, and nothing else is heard.

#![allow(clippy::unwrap_used)]

use ft_peer::beat::{BYTES, Said};
use ft_peer::beats::Identity;
use ft_peer::{Beats, News, Secret};
use ftd_core::fence::Beat;
use ftd_core::{EpochId, NodeId, PeerMessage};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, channel};

/// Far longer than a datagram takes on loopback.
const PATIENCE: Duration = Duration::from_secs(20);

struct Node {
    beats: Beats,
    heard: Receiver<News>,
}

fn socket() -> UdpSocket {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

fn identity(me: u32, incarnation: u64, secret: u8, job: &str) -> Identity {
    Identity { job: job.into(), secret: Secret::new([secret; 32]), me: NodeId(me), incarnation }
}

impl Node {
    fn open(identity: &Identity) -> Node {
        let beats = Beats::open(identity, socket()).unwrap();
        let (inlet, heard) = channel(64);
        tokio::spawn(beats.clone().listen(inlet));
        Node { beats, heard }
    }

    fn of(me: u32, incarnation: u64) -> Node {
        Node::open(&identity(me, incarnation, 7, "12.0"))
    }

    fn address(&self) -> SocketAddr {
        self.beats.address().unwrap()
    }

    async fn next(&mut self) -> (NodeId, PeerMessage) {
        loop {
            match tokio::time::timeout(PATIENCE, self.heard.recv()).await.expect("nothing was heard").unwrap() {
                News::Said { from, message, .. } => return (from, message),
                News::Stranger { .. } => {}
                news => panic!("{news:?}"),
            }
        }
    }

    /// Who it was that does not belong to the job.
    async fn meets_a_stranger(&mut self) -> SocketAddr {
        loop {
            let news = tokio::time::timeout(PATIENCE, self.heard.recv()).await.expect("nothing was heard").unwrap();
            if let News::Stranger { from, .. } = news {
                return from;
            }
        }
    }

    /// What is said next, but for what two say to get to know each other.
    async fn hears(&mut self) -> (NodeId, PeerMessage) {
        loop {
            let (from, message) = self.next().await;
            if message != alone(heartbeat(0)) {
                return (from, message);
            }
        }
    }

    /// Nothing else was said.
    async fn has_heard_no_more(&mut self) {
        while let Ok(news) = self.heard.try_recv() {
            match news {
                News::Said { message, .. } => assert_eq!(message, alone(heartbeat(0))),
                News::Stranger { .. } => {}
                news => panic!("{news:?}"),
            }
        }
    }

    /// Waits until so many datagrams were refused.
    async fn refuses(&self, count: u64) {
        let refused = async {
            while self.beats.counters().refused.all() < count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, refused).await.unwrap_or_else(|_| panic!("{:?}", self.beats.counters()));
    }

    /// Says this until the other one has heard it; both know each other then.
    async fn meet(&mut self, other: &mut Node, me: u32, it: u32) {
        self.beats.know(NodeId(it), other.address());
        other.beats.know(NodeId(me), self.address());
        self.beats.send(NodeId(it), heartbeat(0));
        other.refuses(1).await;
        // The greeting is on its way.
        let begun = std::time::Instant::now();
        while tokio::time::timeout(Duration::from_millis(20), other.heard.recv()).await.is_err() {
            assert!(begun.elapsed() < PATIENCE, "{:?}", other.beats.counters());
            self.beats.send(NodeId(it), heartbeat(0));
        }
        other.beats.send(NodeId(me), heartbeat(0));
        self.next().await;
    }
}

fn alone(said: Said) -> PeerMessage {
    said.messages().next().unwrap()
}

fn heartbeat(sequence: u64) -> Said {
    Said::Heartbeat { beat: Beat { incarnation: 3, sequence }, epoch: EpochId(2), unheard: false }
}

#[tokio::test]
async fn heartbeats_and_their_answers_arrive() {
    let (mut one, mut two) = (Node::of(1, 10), Node::of(2, 20));
    one.meet(&mut two, 1, 2).await;
    let beat = Beat { incarnation: 10, sequence: 4 };
    let said = [
        Said::Heartbeat { beat, epoch: EpochId(9), unheard: true },
        Said::Acknowledge { beat, epoch: EpochId(9), still: true },
        Said::Heard { epoch: EpochId(9) },
    ];
    for said in said {
        one.beats.send(NodeId(2), said);
        assert_eq!(two.hears().await, (NodeId(1), alone(said)));
    }
    let (heartbeat, answer) = (alone(said[0]), alone(said[1]));
    one.beats.send(NodeId(2), Said::both(&heartbeat, &answer).unwrap());
    assert_eq!((two.hears().await, two.hears().await), ((NodeId(1), answer), (NodeId(1), heartbeat)));
    assert_eq!(one.beats.counters().refused.all(), 0);
    assert_eq!(two.beats.counters().refused.all(), two.beats.counters().refused.stale);
}

/// Between two nodes, where somebody reads along.
async fn tapped() -> (Node, Node, UdpSocket, [u8; BYTES]) {
    let (mut one, mut two) = (Node::of(1, 10), Node::of(2, 20));
    one.meet(&mut two, 1, 2).await;
    let tap = socket();
    one.beats.know(NodeId(2), tap.local_addr().unwrap());
    one.beats.send(NodeId(2), heartbeat(77));
    tap.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = [0; BYTES];
    assert_eq!(tap.recv(&mut bytes).unwrap(), BYTES);
    (one, two, tap, bytes)
}

#[tokio::test]
async fn what_was_recorded_is_heard_once_and_counted_after_that() {
    let (_one, mut two, tap, bytes) = tapped().await;
    let before = two.beats.counters().refused;
    for _ in 0..5 {
        tap.send_to(&bytes, two.address()).unwrap();
    }
    assert_eq!(two.hears().await.0, NodeId(1));
    two.refuses(before.all() + 4).await;
    assert_eq!(two.beats.counters().refused.replayed, before.replayed + 4);
    two.has_heard_no_more().await;
}

#[tokio::test]
async fn what_was_recorded_says_nothing_to_a_successor() {
    let (_one, two, tap, bytes) = tapped().await;
    drop(two);
    let mut successor = Node::of(2, 21);
    tap.send_to(&bytes, successor.address()).unwrap();
    successor.refuses(1).await;
    assert_eq!(successor.beats.counters().refused.stale, 1);
    successor.has_heard_no_more().await;
}

#[tokio::test]
async fn a_successor_is_known_after_one_heartbeat() {
    let (mut one, mut two) = (Node::of(1, 10), Node::of(2, 20));
    one.meet(&mut two, 1, 2).await;
    drop(two);
    let mut successor = Node::of(2, 21);
    one.meet(&mut successor, 1, 2).await;
    one.beats.send(NodeId(2), heartbeat(5));
    assert_eq!(successor.hears().await.1, alone(heartbeat(5)));
}

#[tokio::test]
async fn who_is_not_of_the_job_is_not_heard_and_counted_by_reason() {
    let (one, mut two, tap, bytes) = tapped().await;
    let before = two.beats.counters().refused;
    let others = [identity(1, 10, 8, "12.0"), identity(1, 10, 7, "12.1")];
    for other in &others {
        let node = Node::open(other);
        node.beats.know(NodeId(2), two.address());
        node.beats.send(NodeId(2), heartbeat(1));
    }
    let mut changed = bytes;
    changed[70] ^= 1;
    tap.send_to(&changed, two.address()).unwrap();
    let mut newer = bytes;
    newer[4] += 2;
    tap.send_to(&newer, two.address()).unwrap();
    tap.send_to(&bytes[..BYTES - 1], two.address()).unwrap();
    tap.send_to(&[bytes.as_slice(), &[0]].concat(), two.address()).unwrap();
    tap.send_to(b"GET / HTTP/1.1", two.address()).unwrap();
    tap.send_to(&[], two.address()).unwrap();
    // To another node than it is for, and back to its own sender.
    let three = Node::of(3, 30);
    tap.send_to(&bytes, three.address()).unwrap();
    tap.send_to(&bytes, one.address()).unwrap();
    two.refuses(before.all() + 8).await;
    three.refuses(1).await;
    one.refuses(1).await;
    let refused = two.beats.counters().refused;
    assert_eq!((refused.forged, refused.foreign, refused.version, refused.malformed), (2, 1, 1, 4));
    assert_eq!((three.beats.counters().refused.misdirected, one.beats.counters().refused.misdirected), (1, 1));
    two.has_heard_no_more().await;
}

#[tokio::test]
async fn of_who_is_not_of_the_job_is_told_and_not_each_time() {
    let (_one, mut two, tap, bytes) = tapped().await;
    let mut changed = bytes;
    changed[70] ^= 1;
    let before = two.beats.counters().refused;
    for _ in 0..20 {
        tap.send_to(&changed, two.address()).unwrap();
    }
    assert_eq!(two.meets_a_stranger().await.port(), tap.local_addr().unwrap().port());
    two.refuses(before.all() + 20).await;
    // Once more, a while later, for what came after that.
    tap.send_to(&changed, two.address()).unwrap();
    two.meets_a_stranger().await;
    let more = std::iter::from_fn(|| two.heard.try_recv().ok()).count();
    assert!(more < 10, "each is told of");
}

#[tokio::test]
async fn who_is_not_there_holds_up_nobody() {
    let (mut one, mut two) = (Node::of(1, 10), Node::of(2, 20));
    one.meet(&mut two, 1, 2).await;
    let gone = socket().local_addr().unwrap();
    one.beats.know(NodeId(3), gone);
    for sequence in 0..50 {
        one.beats.send(NodeId(3), heartbeat(sequence));
        one.beats.send(NodeId(4), heartbeat(sequence));
    }
    one.beats.send(NodeId(2), heartbeat(9));
    assert_eq!(two.hears().await.1, alone(heartbeat(9)));
    assert!(one.beats.counters().unsent >= 50);
    // And it still hears.
    two.beats.send(NodeId(1), heartbeat(10));
    assert_eq!(one.hears().await.1, alone(heartbeat(10)));
}
