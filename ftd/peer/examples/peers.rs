//! What an endpoint with some peers costs: resident memory, processor time while nobody says anything, and how long a small message takes
//! there and back, against the same bytes over a bare TCP connection.
//!
//!     cargo run --release -p ft-peer --example peers [PEERS]
//!
//! The peers are endpoints of a second process, which answers each message.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use ft_peer::beats::Identity;
use ft_peer::{News, Peers, Secret};
use ftd_core::{EpochId, NodeId, PeerMessage};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, channel};

const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ROUNDS: usize = 20_000;
const IDLE: Duration = Duration::from_secs(20);
/// Bytes of a sealed [`PeerMessage::AskForRecord`].
const SMALL: usize = 26;

fn open(me: u32) -> (Peers, Receiver<News>) {
    let (inlet, news) = channel(64);
    let identity = Identity { job: "1.0".into(), secret: Secret::new([7; 32]), me: NodeId(me), incarnation: 1 };
    (Peers::open(identity, HOME, inlet).unwrap(), news)
}

fn ask(epoch: u64) -> PeerMessage {
    PeerMessage::AskForRecord { epoch: EpochId(epoch) }
}

async fn hears(news: &mut Receiver<News>) -> (NodeId, PeerMessage) {
    loop {
        if let Some(News::Said { from, message, .. }) = news.recv().await {
            return (from, message);
        }
    }
}

/// KiB of this process that are its own.
fn resident() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// What this thread has had of a processor.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split_whitespace().next().unwrap().parse().unwrap())
}

fn told(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    println!("{name}: p50 {:?}, p99 {:?}", times[times.len() / 2], times[times.len() * 99 / 100]);
}

/// The other process: its endpoints answer, and so does a bare socket.
async fn answer(count: u32) {
    let bare = TcpListener::bind((HOME, 0)).unwrap();
    println!("{}", bare.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = bare.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        let mut bytes = [0; SMALL];
        while stream.read_exact(&mut bytes).is_ok() {
            stream.write_all(&bytes).unwrap();
        }
    });
    for me in 1..=count {
        let (peers, mut news) = open(me);
        println!("{}", peers.address());
        tokio::spawn(async move {
            loop {
                let (from, message) = hears(&mut news).await;
                peers.send(from, &message).unwrap();
            }
        });
    }
    // Until it is killed.
    std::future::pending().await
}

async fn measure(count: u32) {
    let mut other = Command::new(std::env::current_exe().unwrap());
    let mut other = other.args(["answer", &count.to_string()]).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(other.stdout.take().unwrap()).lines();
    let addresses: Vec<SocketAddr> =
        lines.take(count as usize + 1).map(|line| line.unwrap().parse().unwrap()).collect();
    let before = resident();
    let (peers, mut news) = open(0);
    for (node, address) in (1..).zip(&addresses[1..]) {
        peers.know(NodeId(node), *address);
        peers.send(NodeId(node), &ask(0)).unwrap();
        hears(&mut news).await;
    }
    println!("resident memory of an endpoint with {count} peers: {} KiB", resident() - before);
    let mut times = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS {
        let begun = Instant::now();
        peers.send(NodeId(1 + round as u32 % count), &ask(round as u64)).unwrap();
        hears(&mut news).await;
        times.push(begun.elapsed());
    }
    told("a small message there and back", times);
    let mut stream = TcpStream::connect(addresses[0]).unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut times, mut bytes) = (Vec::with_capacity(ROUNDS), [0; SMALL]);
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        stream.write_all(&bytes).unwrap();
        stream.read_exact(&mut bytes).unwrap();
        times.push(begun.elapsed());
    }
    told("the same over a bare connection", times);
    let begun = processor_time();
    tokio::time::sleep(IDLE).await;
    println!("processor time of {IDLE:?} in which nobody says anything: {:?}", processor_time() - begun);
    other.kill().unwrap();
    other.wait().unwrap();
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [role, count] if role == "answer" => answer(count.parse().unwrap()).await,
        [count] => measure(count.parse().unwrap()).await,
        _ => measure(8).await,
    }
}
