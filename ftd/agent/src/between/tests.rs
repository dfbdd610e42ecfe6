//! One node's way to others that are not there.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::layout::tests::layout;
use ft_wire::Rank;
use ft_wire::cluster::{ClusterNode, Hidden, StoreAddress};
use ftd_core::record::Strategy;
use ftd_core::{EpochId, FailureSet, Micros, Mode, Placement, Slots, Terms, WorldId};
use std::path::PathBuf;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

const PATH_MS: u64 = 60_000;

/// The last one of so many nodes, of which nobody else listens.
struct Alone {
    between: Between,
    news: UnboundedReceiver<News>,
}

/// Seen from the last one, which is a leaf in every tree and has to tell its parent.
fn cluster(nodes: u32) -> Cluster {
    let node = |number: u32| ClusterNode {
        name: format!("host{number}"),
        host: format!("host{number}"),
        address: std::net::Ipv4Addr::LOCALHOST.into(),
        // Where nobody may listen without being root.
        port: 1,
        slots: 1,
        first_slot: number,
        spare: false,
        domain: String::new(),
        lease: None,
    };
    Cluster {
        me: nodes - 1,
        nodes: (0..nodes).map(node).collect(),
        first: nodes,
        secret: Hidden([7; 32]),
        store: StoreAddress { socket: PathBuf::new(), prefix: String::new() },
        heartbeat_ms: 500,
        heartbeat_period_ms: None,
        wait_ms: 0,
        oversubscribe: false,
        path_ms: PATH_MS,
    }
}

fn record(epoch: u64, world: u64, nodes: &Members) -> EpochRecord {
    EpochRecord {
        epoch: EpochId(epoch),
        began: Micros(0),
        mode: Mode::Reinit,
        terms: Terms::default(),
        world: WorldId(world),
        world_size: 0,
        placement: Placement::default(),
        slots: Slots::default(),
        nodes: nodes.clone(),
        joined: BTreeSet::new(),
        failures: FailureSet::new(),
        agreed_after: Micros(0),
        strategy: Strategy::Fresh,
        streaks: Vec::new(),
        history: Vec::new(),
        outcome: None,
    }
}

impl Alone {
    fn of(nodes: u32) -> Alone {
        let (inlet, news) = unbounded_channel();
        let news_of = Outlet::new(move |news, _| inlet.send(news).is_ok());
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let socket = UdpSocket::bind(listener.local_addr().unwrap()).unwrap();
        let sockets = [OwnedFd::from(listener), OwnedFd::from(socket)];
        Alone { between: Between::open("1.0", &cluster(nodes), 1, sockets, news_of).unwrap(), news }
    }

    /// A world of one rank on each node begins, and this node's is in a fence.
    fn fences(&mut self, world: WorldNumber, nodes: u32) -> Vec<Arrived> {
        let ranks: Vec<Vec<Rank>> = (0..nodes).map(|rank| vec![rank]).collect();
        let ranks: Vec<&[Rank]> = ranks.iter().map(Vec::as_slice).collect();
        let me = ranks.len() - 1;
        self.between.begin(world, Arc::new(layout(&ranks, me, 16)));
        let ranks = vec![(0, nodes)];
        self.between.carry_out(world, Wish::Fence { protocol: Protocol::Pmi, ranks, token: 0, data: vec![1] })
    }
}

#[tokio::test]
async fn who_waits_in_vain_by_every_way_hears_so_once_with_both_names() {
    let mut alone = Alone::of(3);
    let members = Members::of((0..3).map(NodeId));
    alone.between.adopt(&record(1, 1, &members));
    assert!(alone.fences(1, 3).is_empty());
    let mut looks = 0;
    let said = loop {
        let said = alone.between.take(News::Look);
        looks += 1;
        if !said.is_empty() || looks > 1000 {
            break said;
        }
    };
    let Some(Arrived::Stuck { world: 1, reason }) = said.first() else { panic!("{said:?}") };
    assert!(reason.contains("from node 2 to node 0 has not come there for 60 s"), "{reason}");
    assert_eq!(looks, PATH_MS / 500);
    assert!((0..200).all(|_| alone.between.take(News::Look).is_empty()), "said twice");
}

#[tokio::test]
async fn nothing_waits_for_a_node_that_the_record_leaves_out_nor_for_a_world_that_is_over() {
    let mut alone = Alone::of(3);
    let mut members = Members::of((0..3).map(NodeId));
    alone.between.adopt(&record(1, 1, &members));
    alone.fences(1, 3);
    assert!(alone.between.post.waits_for(NodeId(0)));
    members.leave(NodeId(0));
    alone.between.adopt(&record(2, 1, &members));
    assert!(!alone.between.post.waits());
    // Of a node that has left nothing is taken, and nothing said to it.
    alone.fences(1, 3);
    assert!(!alone.between.post.waits());
    let mut alone = Alone::of(3);
    alone.fences(1, 3);
    alone.between.adopt(&record(2, 2, &Members::of((0..3).map(NodeId))));
    assert!(!alone.between.post.waits());
}

#[tokio::test]
async fn a_word_that_cannot_be_read_ends_its_world_when_that_begins() {
    let mut alone = Alone::of(3);
    assert!(alone.between.hear(2, NodeId(1), Word::from_bytes(b"\xff\xff\xff\xff")).is_empty());
    assert!(alone.fences(1, 3).is_empty());
    let said = alone.between.begin(2, Arc::new(layout(&[&[0], &[1], &[2]], 2, 16)));
    let [Arrived::Stuck { world: 2, reason }] = &said[..] else { panic!("{said:?}") };
    assert!(reason.contains("what the agent of node 1 says cannot be read"), "{reason}");
}

/// What is heard next from behind.
async fn heard(news: &mut UnboundedReceiver<News>) -> News {
    loop {
        match news.recv().await.unwrap() {
            News::Look | News::Peer(_) => {}
            news => return news,
        }
    }
}

#[tokio::test]
async fn a_long_word_is_written_and_read_elsewhere() {
    let mut alone = Alone::of(3);
    alone.fences(1, 3);
    alone.between.post.forget(NodeId(0));
    let data = vec![7; 3 << 20];
    let ranks = vec![(0, 3)];
    let wish = |data| Wish::Fence { protocol: Protocol::Pmix, ranks: ranks.clone(), token: 4, data };
    assert!(alone.between.carry_out(1, wish(data.clone())).is_empty());
    assert!(!alone.between.post.waits(), "it was written on the agent's own thread");
    let written = heard(&mut alone.news).await;
    assert!(alone.between.take(written).is_empty() && alone.between.post.waits());
    // The root says that all are in, with as much.
    let fence = Fence { protocol: Protocol::Pmix, ranks: ranks.clone(), turn: 0 };
    let body = Word::Down { fence, parts: vec![data.clone()] }.to_bytes().unwrap();
    let room = Arc::new(tokio::sync::Semaphore::new(100));
    for (to, way, sending) in Post::new(9).send(NodeId(2), 1, body.into(), true).unwrap() {
        let ft_peer::parcel::Sending::Piece(piece) = sending else { panic!("{to} {way:?}") };
        let room = room.clone().acquire_owned().await.unwrap();
        let news = ft_peer::News::Piece { from: NodeId(0), way, piece, room };
        assert!(alone.between.take(News::Peer(news)).is_empty(), "it was read on the agent's own thread");
    }
    let read = heard(&mut alone.news).await;
    assert!(alone.between.take(read).is_empty(), "it was put together on the agent's own thread");
    let put_together = heard(&mut alone.news).await;
    let arrived = alone.between.take(put_together);
    let [Arrived::Fenced { world: 1, token: 4, given: Given::Data(given) }] = &arrived[..] else {
        panic!("{arrived:?}")
    };
    assert!(*given == data);
}

fn event(bytes: usize) -> Raised {
    let source = Proc { nspace: "1.0.w1".into(), rank: 2 };
    Raised { source, status: -3001, range: 5, infos: vec![("a".into(), vec![7; bytes])] }
}

#[tokio::test]
async fn an_event_goes_to_the_neighbours_but_the_one_from_which_it_comes_and_those_of_a_world_that_is_over_nowhere() {
    let ranks: [&[Rank]; 4] = [&[0], &[1], &[2], &[3]];
    // With this fan-out node 1 stands between node 0 and node 3.
    let begin = |alone: &mut Alone, world| {
        alone.between.nodes.me = NodeId(1);
        alone.between.begin(world, Arc::new(layout(&ranks, 1, 2)));
    };
    let waits = |alone: &Alone, world| [0, 2, 3].map(|node| alone.between.post.waiting(NodeId(node), world));
    let mut alone = Alone::of(4);
    begin(&mut alone, 1);
    let arrived = alone.between.hear(1, NodeId(0), Ok(Word::Event(event(3))));
    assert!(matches!(&arrived[..], [Arrived::Event { world: 1, event: heard }] if *heard == event(3)), "{arrived:?}");
    assert_eq!(waits(&alone, 1), [0, 0, 1]);
    assert!(alone.between.carry_out(1, Wish::Event(event(3))).is_empty());
    assert_eq!(waits(&alone, 1), [1, 0, 2]);
    // Of the next world before it has begun here; then of the one that is over.
    assert!(alone.between.hear(2, NodeId(0), Ok(Word::Event(event(4)))).is_empty());
    begin(&mut alone, 3);
    assert!(alone.between.hear(2, NodeId(0), Ok(Word::Event(event(4)))).is_empty());
    assert!(alone.between.carry_out(1, Wish::Event(event(3))).is_empty());
    assert_eq!((waits(&alone, 1), waits(&alone, 2)), ([0; 3], [0; 3]));
}

#[tokio::test]
async fn more_events_than_a_neighbour_takes_end_the_world_with_a_sentence_and_not_with_the_memory() {
    let mut alone = Alone::of(2);
    alone.between.begin(1, Arc::new(layout(&[&[0], &[1]], 1, 16)));
    let mut raise = || alone.between.carry_out(1, Wish::Event(event(3)));
    assert!((0..MOST_WAITING).all(|_| raise().is_empty()));
    let said = raise();
    let [Arrived::Stuck { world: 1, reason }] = &said[..] else { panic!("{said:?}") };
    assert!(reason.contains("more events (PMIx_Notify_event) than node 0 takes"), "{reason}");
    assert_eq!(alone.between.post.length(NodeId(0)), MOST_WAITING);
}

#[test]
fn a_group_has_the_number_that_the_first_node_gives_and_what_all_give() {
    let parts = [group_part(7, b"a"), group_part(8, b""), group_part(9, b"bc")];
    assert_eq!(group_of(&parts), Some((7, b"abc".to_vec())));
    assert_eq!(group_of(&[group_part(7, b"a"), vec![1; 7]]), None);
}
