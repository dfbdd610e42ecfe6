//! The socket that heartbeats and their answers go through, on the network that MPI uses.

use crate::beat::{BYTES, Envelope, Refusal, Said, Sealer, Window};
use crate::counters::{Counters, Shared};
use crate::news::{Inlet, News};
use crate::secret::Secret;
use ftd_core::NodeId;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Of those who do not belong to the job is told so often at most.
const SELDOM: Duration = Duration::from_secs(1);

/// Who an endpoint is.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The job's name.
    pub job: String,
    /// Its secret.
    pub secret: Secret,
    /// This node.
    pub me: NodeId,
    /// This agent: greater than that of any earlier agent of this node, and not 0.
    pub incarnation: u64,
}

/// A node that datagrams are sent to, or come from.
#[derive(Debug, Default)]
struct Peer {
    address: Option<SocketAddr>,
    /// Its agent's; 0 while nothing is known of it.
    incarnation: u64,
    /// Of the last datagram to it.
    number: u64,
    window: Window,
}

/// One agent's heartbeats: those that it sends and those that it hears.
#[derive(Debug, Clone)]
pub struct Beats(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    me: NodeId,
    incarnation: u64,
    sealer: Sealer,
    socket: UdpSocket,
    peers: Mutex<BTreeMap<NodeId, Peer>>,
    counters: Shared,
    strangers: Strangers,
}

/// Somebody who does not belong to the job speaks with this agent: who was the last, until that is said.
#[derive(Debug, Default)]
struct Strangers {
    last: Mutex<Option<(SocketAddr, Refusal)>>,
    news: Notify,
}

impl Strangers {
    fn last(&self) -> MutexGuard<'_, Option<(SocketAddr, Refusal)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Beats {
    /// Sends through this socket. What comes is heard by [`listen`](Self::listen).
    ///
    /// # Errors
    /// When the socket cannot be used.
    pub fn open(identity: &Identity, socket: UdpSocket) -> std::io::Result<Beats> {
        socket.set_nonblocking(true)?;
        Ok(Beats(Arc::new(Inner {
            me: identity.me,
            incarnation: identity.incarnation,
            sealer: Sealer::new(&identity.secret, &identity.job),
            socket,
            peers: Mutex::default(),
            counters: Shared::default(),
            strangers: Strangers::default(),
        })))
    }

    /// The address that others send to.
    ///
    /// # Errors
    /// When the socket cannot be used.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.0.socket.local_addr()
    }

    /// This node hears at this address.
    pub fn know(&self, node: NodeId, address: SocketAddr) {
        self.0.with(node, |peer| peer.address = Some(address));
    }

    /// This node is spoken with no more; that it is heard no more is ftd-core's.
    pub fn forget(&self, node: NodeId) {
        self.0.with(node, |peer| peer.address = None);
    }

    /// The agent of this node is this incarnation, or a later one.
    pub(crate) fn meet(&self, node: NodeId, incarnation: u64) {
        self.0.with(node, |peer| peer.incarnation = peer.incarnation.max(incarnation));
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.0.counters
    }

    /// Counts it. What nobody does who belongs to the job is told of, but not each time.
    pub(crate) fn refuse(&self, from: SocketAddr, why: Refusal) {
        self.0.counters.refuse(why);
        if matches!(why, Refusal::Forged | Refusal::Replayed) {
            *self.0.strangers.last() = Some((from, why));
            self.0.strangers.news.notify_one();
        }
    }

    /// Says this, at once or not at all.
    pub fn send(&self, to: NodeId, said: Said) {
        self.0.send(to, said);
    }

    /// What was sent, heard and refused.
    pub fn counters(&self) -> Counters {
        self.0.counters.now()
    }

    /// Hears what comes, until nobody takes it any more. Where that one is slow, and may be waited for, the kernel keeps what it has room for.
    ///
    /// # Errors
    /// When the socket cannot be used.
    pub async fn listen(self, inlet: impl Into<Inlet>) -> std::io::Result<()> {
        let inlet = inlet.into();
        // That it can be written to again, after each datagram that goes out, is no news.
        let socket = watched(self.0.socket.try_clone()?)?;
        // One byte more, to tell what is too long.
        let mut bytes = [0; BYTES + 1];
        let mut next = Instant::now();
        loop {
            let owed = self.0.strangers.last().is_some();
            let (length, address) = tokio::select! {
                received = socket.async_io(Interest::READABLE, |socket| socket.recv_from(&mut bytes)) => match received {
                    Ok(received) => received,
                    // The network's answer to something that was sent: nobody listened there.
                    Err(error) if is_of_one(error.kind()) => continue,
                    Err(error) => return Err(error),
                },
                () = tokio::time::sleep_until(next), if owed => {
                    next = Instant::now() + SELDOM;
                    let last = self.0.strangers.last().take();
                    if let Some((from, why)) = last && !inlet.tell(News::Stranger { from, why }).await {
                        return Ok(());
                    }
                    continue;
                }
                () = self.0.strangers.news.notified(), if !owed => continue,
                () = inlet.closed() => return Ok(()),
            };
            let (from, said) = match self.0.hear(&bytes[..length]) {
                Ok(heard) => heard,
                Err(refusal) => {
                    self.refuse(address, refusal);
                    continue;
                }
            };
            for message in said.messages() {
                if !inlet.tell(News::Said { from, message, room: None }).await {
                    return Ok(());
                }
            }
        }
    }
}

#[expect(
    deprecated,
    reason = "the one that it is to be replaced by is unsafe for types that may lose their descriptor; a UdpSocket owns it"
)]
fn watched(socket: UdpSocket) -> std::io::Result<AsyncFd<UdpSocket>> {
    AsyncFd::with_interest(socket, Interest::READABLE)
}

/// Whether an error tells of one datagram, and not of the socket.
fn is_of_one(error: ErrorKind) -> bool {
    use ErrorKind::{
        ConnectionRefused, ConnectionReset, HostUnreachable, Interrupted, NetworkDown, NetworkUnreachable,
    };
    matches!(
        error,
        ConnectionRefused | ConnectionReset | HostUnreachable | Interrupted | NetworkDown | NetworkUnreachable
    )
}

impl Inner {
    fn with<T>(&self, node: NodeId, change: impl FnOnce(&mut Peer) -> T) -> T {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        change(peers.entry(node).or_default())
    }

    fn send(&self, to: NodeId, said: Said) {
        let ready = self.with(to, |peer| {
            peer.number += 1;
            let address = peer.address?;
            let (from, incarnation) = (self.me, self.incarnation);
            Some((address, Envelope { from, to, incarnation, addressed: peer.incarnation, number: peer.number }))
        });
        let gone = ready.is_some_and(|(address, envelope)| {
            self.socket.send_to(&self.sealer.seal(envelope, said), address).is_ok_and(|length| length == BYTES)
        });
        self.counters.count(|counters| if gone { counters.sent += 1 } else { counters.unsent += 1 });
    }

    /// What a datagram says, and who says it.
    fn hear(&self, bytes: &[u8]) -> Result<(NodeId, Said), Refusal> {
        let (envelope, said) = self.sealer.open(bytes)?;
        if envelope.to != self.me || envelope.from == self.me || envelope.incarnation == 0 {
            return Err(Refusal::Misdirected);
        }
        // An old one that is sent again names no later incarnation than is known.
        let fresh = self.with(envelope.from, |peer| {
            peer.incarnation = peer.incarnation.max(envelope.incarnation);
            match envelope.addressed == self.incarnation {
                true if peer.window.take(envelope.incarnation, envelope.number) => Ok(()),
                true => Err(Refusal::Replayed),
                false => Err(Refusal::Stale),
            }
        });
        if fresh == Err(Refusal::Stale) && said != Said::Greeting {
            self.send(envelope.from, Said::Greeting);
        }
        fresh?;
        if said != Said::Greeting {
            self.counters.count(|counters| counters.received += 1);
        }
        Ok((envelope.from, said))
    }
}
