//! One connection of the agent: reads frames into the driver's queue and writes what the driver sends, each in a task of
//! its own, so that no slow peer holds up another.

use ft_sys::channel::{recv_with_fds, send_with_fds};
use ft_wire::{FrameBuffer, FrameError, PREAMBLE_LEN, Preamble, Role, encode};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// How long a dialler may take over its preamble.
const PREAMBLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The peer is gone.
    #[error("the connection was closed")]
    Closed,
    /// The peer said nothing at all.
    #[error("no preamble within {} s", PREAMBLE_TIMEOUT.as_secs())]
    Silent,
    /// The peer sent what is no message.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The socket failed.
    #[error("the socket failed: {0}")]
    Io(#[from] io::Error),
}

type Outgoing = (Vec<u8>, Vec<OwnedFd>);

/// The sending half; dropping it closes the connection when all is written.
#[derive(Debug, Clone)]
pub struct Link {
    queue: UnboundedSender<Outgoing>,
}

impl Link {
    /// Queues a message. A peer that is gone is noticed by the reading half.
    pub fn send<M: Serialize>(&self, message: &M) {
        self.send_with(message, Vec::new());
    }

    /// Queues a message with descriptors.
    pub fn send_with<M: Serialize>(&self, message: &M, fds: Vec<OwnedFd>) {
        match encode(message, fds.len() as u8) {
            Ok(frame) => drop(self.queue.send((frame, fds))),
            Err(error) => tracing::error!(%error, "a message could not be encoded"),
        }
    }
}

/// The receiving half.
pub struct Incoming {
    socket: Arc<tokio::net::UnixStream>,
    frames: FrameBuffer,
    fds: VecDeque<OwnedFd>,
}

async fn send_all(socket: &tokio::net::UnixStream, mut bytes: &[u8], fds: &[OwnedFd]) -> io::Result<()> {
    let mut borrowed: Vec<BorrowedFd> = fds.iter().map(AsFd::as_fd).collect();
    while !bytes.is_empty() {
        let sent = socket.async_io(Interest::WRITABLE, || send_with_fds(socket.as_fd(), bytes, &borrowed)).await?;
        borrowed.clear();
        bytes = &bytes[sent..];
    }
    Ok(())
}

async fn write_queue(socket: Arc<tokio::net::UnixStream>, mut queue: UnboundedReceiver<Outgoing>) {
    while let Some((frame, fds)) = queue.recv().await {
        if let Err(error) = send_all(&socket, &frame, &fds).await {
            tracing::debug!(%error, "a peer is gone");
            return;
        }
    }
    let _ = nix::sys::socket::shutdown(std::os::fd::AsRawFd::as_raw_fd(&*socket), nix::sys::socket::Shutdown::Write);
}

impl Incoming {
    /// Exchanges preambles on `stream` and splits it.
    ///
    /// # Errors
    /// [`LinkError::Silent`] after 5 s, [`LinkError::Frame`] when the peer is a stranger or of another release.
    pub async fn open(stream: UnixStream) -> Result<(Role, Link, Incoming), LinkError> {
        stream.set_nonblocking(true)?;
        let socket = Arc::new(tokio::net::UnixStream::from_std(stream)?);
        let mut incoming = Incoming { socket: socket.clone(), frames: FrameBuffer::default(), fds: VecDeque::new() };
        send_all(&socket, &Preamble::ours(Role::Agent).to_bytes(), &[]).await?;
        let peer =
            tokio::time::timeout(PREAMBLE_TIMEOUT, incoming.preamble()).await.map_err(|_| LinkError::Silent)??;
        let (queue, outgoing) = unbounded_channel();
        tokio::spawn(write_queue(socket, outgoing));
        Ok((peer.role, Link { queue }, incoming))
    }

    async fn preamble(&mut self) -> Result<Preamble, LinkError> {
        let mut bytes = [0; PREAMBLE_LEN];
        let mut have = 0;
        while have < bytes.len() {
            have += self.read(&mut bytes[have..]).await?;
        }
        Ok(Preamble::from_bytes(&bytes)?)
    }

    async fn read(&mut self, into: &mut [u8]) -> Result<usize, LinkError> {
        let fds = &mut self.fds;
        let count = self.socket.async_io(Interest::READABLE, || recv_with_fds(self.socket.as_fd(), into, fds)).await?;
        if count == 0 { Err(LinkError::Closed) } else { Ok(count) }
    }

    /// The next message and its descriptors.
    ///
    /// # Errors
    /// Any; the connection is over then.
    pub async fn next<M: DeserializeOwned>(&mut self) -> Result<(M, Vec<OwnedFd>), LinkError> {
        loop {
            if let Some((body, count)) = self.frames.next_frame()? {
                if self.fds.len() < count as usize {
                    return Err(FrameError::Malformed(format!(
                        "{count} descriptors announced, {} came",
                        self.fds.len()
                    ))
                    .into());
                }
                let fds = self.fds.drain(..count as usize).collect();
                return Ok((ft_wire::decode(&body)?, fds));
            }
            let mut bytes = [0; 16 << 10];
            let count = self.read(&mut bytes).await?;
            self.frames.push(&bytes[..count]);
        }
    }
}
