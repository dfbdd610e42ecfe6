//! An agent's way to the other agents of its job.

use crate::accept;
use crate::beat::Said;
use crate::beats::{Beats, Identity};
use crate::codec::{self, CodecError};
use crate::counters::Counters;
use crate::endpoint::Endpoint;
use crate::news::{Inlet, News};
use crate::parcel::{Sending, Way};
use crate::queue::{Body, Kind};
use ftd_core::{NodeId, PeerMessage};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::mpsc;

/// So many ports are tried: the two sockets have the same one.
const PORTS: usize = 32;
/// Connections that wait to be taken.
const BACKLOG: u32 = 256;

/// Why a message is not sent. All others are sent when their turn comes, unless a newer one of their kind stands for them.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// Nobody has said where that node is.
    #[error("it is not known where {0} can be reached")]
    Unknown(NodeId),
    /// The message has no bytes that can be sent.
    #[error(transparent)]
    Codec(#[from] CodecError),
}

/// An endpoint. With it all its tasks end, and its connections.
#[derive(Debug)]
pub struct Peers(Arc<Endpoint>);

impl Drop for Peers {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Peers {
    /// Listens on this address, which is on the network that MPI uses, and tells what happens there.
    ///
    /// # Errors
    /// When there is no such address, or no port.
    pub fn open(identity: Identity, ip: IpAddr, news: mpsc::Sender<News>) -> std::io::Result<Peers> {
        let (listener, socket) = listen(ip)?;
        Peers::on(identity, listener, socket, (news.clone(), news.into()))
    }

    /// Listens on sockets that somebody else has made, and will have when this agent is dead: the next one is found where this one
    /// was. Both have the same port. `heartbeats`: where those go, and the answers to them.
    ///
    /// # Errors
    /// When one of them cannot be used.
    pub fn adopt(
        identity: Identity,
        listener: std::net::TcpListener,
        socket: UdpSocket,
        (news, heartbeats): (mpsc::Sender<News>, Inlet),
    ) -> std::io::Result<Peers> {
        listener.set_nonblocking(true)?;
        Peers::on(identity, TcpListener::from_std(listener)?, socket, (news, heartbeats))
    }

    fn on(
        identity: Identity,
        listener: TcpListener,
        socket: UdpSocket,
        (news, heartbeats): (mpsc::Sender<News>, Inlet),
    ) -> std::io::Result<Peers> {
        let address = listener.local_addr()?;
        let beats = Beats::open(&identity, socket)?;
        let endpoint = Arc::new(Endpoint::new(identity, address, beats.clone(), news));
        endpoint.spawn(accept::accept(endpoint.clone(), listener));
        let within = endpoint.clone();
        endpoint.spawn(async move {
            if let Err(error) = beats.listen(heartbeats).await {
                within.tell(News::Trouble(format!("heartbeats are not heard any more: {error}"))).await;
            }
        });
        Ok(Peers(endpoint))
    }

    /// Where others reach it, with messages and with heartbeats.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// This node is reached there. One that is not known is known as soon as it has proved itself.
    pub fn know(&self, node: NodeId, address: SocketAddr) {
        self.0.know(node, address);
    }

    /// This node has left the job. What waits for it is dropped, and so is the connection with it; there is another one when there is
    /// something to say to it: it may not know yet.
    pub fn let_go(&self, node: NodeId) {
        self.0.let_go(node);
    }

    /// Nothing more is said to this node, unless it comes itself.
    pub fn forget(&self, node: NodeId) {
        self.0.forget(node);
    }

    /// Says this, as soon as that can be done; never waits.
    ///
    /// # Errors
    /// When it will not be said. A heartbeat or an answer to one is said at once or not at all, and no error.
    pub fn send(&self, to: NodeId, message: &PeerMessage) -> Result<(), SendError> {
        if let Some(said) = Said::of(message) {
            self.0.beats.send(to, said);
            return Ok(());
        }
        let body = codec::encode(message)?;
        if self.0.queue(to, Kind::of(message), body.into()) { Ok(()) } else { Err(SendError::Unknown(to)) }
    }

    /// Says a heartbeat and an answer to one of that node's, in one datagram.
    ///
    /// # Errors
    /// As [`send`](Self::send) has them.
    pub fn send_both(&self, to: NodeId, heartbeat: &PeerMessage, answer: &PeerMessage) -> Result<(), SendError> {
        match Said::both(heartbeat, answer) {
            Some(said) => {
                self.0.beats.send(to, said);
                Ok(())
            }
            None => self.send(to, answer).and_then(|()| self.send(to, heartbeat)),
        }
    }

    /// Sends what a [`Post`](crate::post::Post) says is to be sent. What is lost that one sends again.
    pub fn post(&self, to: NodeId, way: Way, sending: Sending) {
        let kind = Kind::of_parcel(&sending);
        match way {
            Way::Straight => self.0.queue(to, kind, Body::Parcel(sending)),
            Way::Through(through) => {
                let origin = self.0.identity.me;
                self.0.queue(through, Kind::Relay(origin, to, Box::new(kind)), Body::Relayed(origin, to, sending))
            }
        };
    }

    /// What was sent, heard and refused.
    pub fn counters(&self) -> Counters {
        self.0.counters.now()
    }
}

fn listen(ip: IpAddr) -> std::io::Result<(TcpListener, UdpSocket)> {
    let mut refused = ErrorKind::AddrInUse.into();
    for _ in 0..PORTS {
        let socket = if ip.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.bind(SocketAddr::new(ip, 0))?;
        match UdpSocket::bind(socket.local_addr()?) {
            Ok(beats) => return Ok((socket.listen(BACKLOG)?, beats)),
            Err(error) if error.kind() == ErrorKind::AddrInUse => refused = error,
            Err(error) => return Err(error),
        }
    }
    Err(refused)
}
