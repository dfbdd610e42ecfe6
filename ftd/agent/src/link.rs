//! One connection of the agent: reads frames into the driver's queue and writes what the driver sends, each in a task of
//! its own, so that no slow peer holds up another.

use crate::unheard::Ear;
use ft_sys::channel::{recv_with_fds, send_with_fds};
use ft_wire::{FrameBuffer, FrameError, PREAMBLE_LEN, Preamble, Role, encode};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::Interest;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Names one accepted connection; never reused.
pub type ConnectionId = u64;

/// How long a dialler may take over its preamble.
const PREAMBLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Most bytes that may wait for a peer which does not read them: room for the longest frame and another one.
const MOST_QUEUED: usize = 2 * ft_wire::MAX_BODY;
/// The same for a rank or a shepherd: many thousand short messages, and more than the longest environment.
const MOST_QUEUED_SHORT: usize = 16 << 20;
/// What a message takes in a queue besides its bytes.
const WAITING: usize = 256;
/// Longest message of a rank or a shepherd. They are short; only what libpmix's host and the launcher send may be long.
const SHORT: usize = 4 << 20;
/// Longest message of who has not proved yet whose process it is: more than any says with which one does.
const FIRST: usize = 64 << 10;
/// Bytes of one connection that may wait for the driver, besides one message that is longer than that.
const MOST_WAITING: usize = 1 << 20;
/// What the shortest message takes there, which is more than its bytes.
const LEAST: usize = 512;

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
    /// This side gave the connection up.
    #[error("{0}")]
    GivenUp(String),
    /// The socket failed.
    #[error("the socket failed: {0}")]
    Io(#[from] io::Error),
}

impl LinkError {
    /// Whether somebody did something wrong, which people must hear of; a peer's death is told by others.
    pub fn is_trouble(&self) -> bool {
        match self {
            LinkError::Frame(_) | LinkError::GivenUp(_) => true,
            LinkError::Io(error) => error.kind() == io::ErrorKind::InvalidData,
            LinkError::Closed | LinkError::Silent => false,
        }
    }
}

/// What waits to be written.
#[derive(Debug)]
enum Outgoing {
    Frame(Vec<u8>, Vec<OwnedFd>),
    /// Somebody wants to know when all before it is.
    Mark(oneshot::Sender<()>),
}

/// The sending half; dropping it closes the connection when all is written.
#[derive(Debug, Clone)]
pub struct Link {
    queue: UnboundedSender<Outgoing>,
    shared: Arc<Shared>,
}

/// What both halves of a connection know.
#[derive(Debug)]
struct Shared {
    socket: Arc<tokio::net::UnixStream>,
    /// Bytes that wait to be written, and how many may.
    queued: AtomicUsize,
    most_queued: AtomicUsize,
    /// Why this side gave the connection up.
    trouble: OnceLock<String>,
    /// It is known whose process the peer is.
    known: AtomicBool,
    ear: Arc<Ear>,
}

impl Link {
    /// Queues a message. A peer that is gone is noticed by the reading half.
    pub fn send<M: Serialize>(&self, message: &M) {
        self.send_with(message, Vec::new());
    }

    /// Queues a message with descriptors.
    pub fn send_with<M: Serialize>(&self, message: &M, fds: Vec<OwnedFd>) {
        self.send_encoded(encode(message, fds.len() as u8), fds);
    }

    /// Queues a message that somebody has encoded, with the descriptors that it announces.
    pub fn send_encoded(&self, frame: Result<Vec<u8>, FrameError>, fds: Vec<OwnedFd>) {
        let frame = match frame {
            Ok(frame) => frame,
            // Whoever waits for the message must not wait for ever.
            Err(error) => return self.give_up(format!("a message for it could not be sent: {error}")),
        };
        let room = frame.len() + WAITING;
        let waiting = self.shared.queued.fetch_add(room, Ordering::Relaxed) + room;
        if waiting > self.shared.most_queued.load(Ordering::Relaxed) {
            return self.give_up(format!("it does not read: {} MiB wait for it", waiting >> 20));
        }
        let _ = self.queue.send(Outgoing::Frame(frame, fds));
    }

    /// Waits until the kernel has what was queued before this call, or the peer is gone.
    pub fn written(&self) -> impl Future<Output = ()> + Send + use<> {
        let (mark, reached) = oneshot::channel();
        let _ = self.queue.send(Outgoing::Mark(mark));
        async move {
            let _ = reached.await;
        }
    }

    /// How much of what the peer says has been read.
    pub fn ear(&self) -> &Arc<Ear> {
        &self.shared.ear
    }

    /// The peer has proved whose process it is.
    pub fn trust(&self) {
        self.shared.known.store(true, Ordering::Relaxed);
    }

    /// Ends the connection in both directions; the reading half says why.
    pub fn give_up(&self, trouble: String) {
        let _ = self.shared.trouble.set(trouble);
        self.close();
    }

    /// Ends the connection in both directions.
    pub fn close(&self) {
        self.shared.close();
    }
}

impl Shared {
    fn close(&self) {
        let socket = std::os::fd::AsRawFd::as_raw_fd(&*self.socket);
        let _ = nix::sys::socket::shutdown(socket, nix::sys::socket::Shutdown::Both);
    }
}

/// The receiving half.
pub struct Incoming {
    shared: Arc<Shared>,
    role: Role,
    frames: FrameBuffer,
    fds: VecDeque<OwnedFd>,
    room: Arc<Semaphore>,
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

async fn write_queue(shared: Arc<Shared>, mut queue: UnboundedReceiver<Outgoing>) {
    while let Some(outgoing) = queue.recv().await {
        let (frame, fds) = match outgoing {
            Outgoing::Frame(frame, fds) => (frame, fds),
            Outgoing::Mark(mark) => {
                let _ = mark.send(());
                continue;
            }
        };
        if let Err(error) = send_all(&shared.socket, &frame, &fds).await {
            tracing::debug!(%error, "a peer is gone");
            return;
        }
        shared.queued.fetch_sub(frame.len() + WAITING, Ordering::Relaxed);
    }
    // What the peer has not read yet it can read still. Nobody is interested in what it says.
    shared.close();
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.shared.ear.over();
    }
}

impl Incoming {
    /// Exchanges preambles on `stream` and splits it.
    ///
    /// # Errors
    /// [`LinkError::Silent`] after 5 s, [`LinkError::Frame`] when the peer is a stranger or of another release.
    pub async fn open(stream: UnixStream) -> Result<(Role, Link, Incoming), LinkError> {
        stream.set_nonblocking(true)?;
        let socket = Arc::new(tokio::net::UnixStream::from_std(stream)?);
        let shared = Arc::new(Shared {
            ear: Arc::new(Ear::new(socket.clone())),
            socket,
            queued: AtomicUsize::new(0),
            most_queued: AtomicUsize::new(MOST_QUEUED),
            trouble: OnceLock::new(),
            known: AtomicBool::new(false),
        });
        let mut incoming = Incoming {
            shared: shared.clone(),
            role: Role::Agent,
            frames: FrameBuffer::default(),
            fds: VecDeque::new(),
            room: Arc::new(Semaphore::new(MOST_WAITING)),
        };
        send_all(&shared.socket, &Preamble::ours(Role::Agent).to_bytes(), &[]).await?;
        let peer = crate::wait::within(PREAMBLE_TIMEOUT, incoming.preamble()).await.ok_or(LinkError::Silent)??;
        incoming.role = peer.role;
        if incoming.is_local() {
            shared.most_queued.store(MOST_QUEUED_SHORT, Ordering::Relaxed);
        }
        let (queue, outgoing) = unbounded_channel();
        tokio::spawn(write_queue(shared.clone(), outgoing));
        Ok((peer.role, Link { queue, shared }, incoming))
    }

    async fn preamble(&mut self) -> Result<Preamble, LinkError> {
        let mut bytes = [0; PREAMBLE_LEN];
        let mut have = 0;
        while have < bytes.len() {
            have += self.read(&mut bytes[have..]).await?;
        }
        Ok(Preamble::from_bytes(&bytes)?)
    }

    /// Whether the peer may be anybody, and has not proved who.
    fn is_stranger(&self) -> bool {
        self.is_local() && !self.shared.known.load(Ordering::Relaxed)
    }

    /// Whether the peer is none that this process or the launcher has made a connection for.
    fn is_local(&self) -> bool {
        matches!(self.role, Role::Rank | Role::Client | Role::Shepherd | Role::Asker)
    }

    async fn read(&mut self, into: &mut [u8]) -> Result<usize, LinkError> {
        let (fds, socket) = (&mut self.fds, &self.shared.socket);
        let count = socket.async_io(Interest::READABLE, || recv_with_fds(socket.as_fd(), into, fds)).await;
        match (count, self.shared.trouble.get()) {
            (_, Some(trouble)) => Err(LinkError::GivenUp(trouble.clone())),
            (Ok(0), None) => Err(LinkError::Closed),
            (Ok(count), None) => Ok(count),
            (Err(error), None) => Err(error.into()),
        }
    }

    /// The next message and its descriptors.
    ///
    /// # Errors
    /// Any; the connection is over then.
    pub async fn next<M: DeserializeOwned>(&mut self) -> Result<(M, Vec<OwnedFd>), LinkError> {
        self.next_metered().await.map(|(message, fds, _)| (message, fds))
    }

    /// As [`next`](Self::next), once those before it have been done with: what comes with it is to be dropped when the
    /// message has been dealt with. A peer that sends faster than that is stopped by its full socket.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn next_metered<M: DeserializeOwned>(
        &mut self,
    ) -> Result<(M, Vec<OwnedFd>, OwnedSemaphorePermit), LinkError> {
        loop {
            if let Some(trouble) = self.shared.trouble.get() {
                return Err(LinkError::GivenUp(trouble.clone()));
            }
            let stranger = self.is_stranger();
            if self.is_local() {
                self.frames.limit(if stranger { FIRST } else { SHORT });
            }
            if let Some((body, count)) = self.frames.next_frame()? {
                if self.fds.len() < count as usize {
                    return Err(FrameError::Malformed(format!(
                        "{count} descriptors announced, {} came",
                        self.fds.len()
                    ))
                    .into());
                }
                let fds = self.fds.drain(..count as usize).collect();
                // Who a stranger is depends on its first message: nothing more of it waits.
                let least = if stranger { MOST_WAITING } else { LEAST };
                let bytes = (body.len() + ft_wire::FRAME_HEADER).clamp(least, MOST_WAITING) as u32;
                let room = self.room.clone().acquire_many_owned(bytes).await.map_err(|_| LinkError::Closed)?;
                return Ok((ft_wire::decode(&body)?, fds, room));
            }
            self.shared.ear.told();
            let mut bytes = [0; 16 << 10];
            let count = self.read(&mut bytes).await?;
            self.shared.ear.read(count);
            self.frames.push(&bytes[..count]);
            if matches!(self.role, Role::Rank | Role::Client | Role::Asker) && !self.fds.is_empty() {
                return Err(FrameError::Malformed("descriptors that nobody has asked for".into()).into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    async fn link_to(role: Role) -> (UnixStream, Link, Incoming) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&Preamble::ours(role).to_bytes()).unwrap();
        let (_, link, incoming) = Incoming::open(ours).await.unwrap();
        (theirs, link, incoming)
    }

    #[tokio::test]
    async fn a_message_that_is_too_long_is_heard_of_on_both_sides() {
        let (mut theirs, link, mut incoming) = link_to(Role::Pmix).await;
        link.send(&vec![0u8; ft_wire::MAX_BODY + 1]);
        let error = incoming.next::<u32>().await.unwrap_err();
        assert!(error.is_trouble() && error.to_string().contains("longer than the limit"), "{error}");
        let mut rest = Vec::new();
        std::io::Read::read_to_end(&mut theirs, &mut rest).unwrap();

        for (known, most) in [(true, SHORT), (false, FIRST)] {
            let (mut theirs, link, mut incoming) = link_to(Role::Client).await;
            if known {
                link.trust();
            }
            theirs.write_all(&(most as u32 + 1).to_le_bytes()).unwrap();
            theirs.write_all(&[0; 4]).unwrap();
            let error = incoming.next::<u32>().await.unwrap_err();
            assert!(error.is_trouble() && error.to_string().contains(&most.to_string()), "{error}");
        }
    }

    #[tokio::test]
    async fn of_a_stranger_one_message_waits_and_no_descriptor() {
        let (mut theirs, link, mut incoming) = link_to(Role::Rank).await;
        for _ in 0..2 {
            theirs.write_all(&encode(&7u32, 0).unwrap()).unwrap();
        }
        let first = incoming.next_metered::<u32>().await.unwrap();
        let second = tokio::time::timeout(Duration::from_millis(100), incoming.next_metered::<u32>()).await;
        assert!(second.is_err(), "the first one waits still");
        link.trust();
        drop(first);
        let (mut theirs, _link, mut incoming) = link_to(Role::Rank).await;
        let frame = encode(&7u32, 1).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        send_with_fds(theirs.as_fd(), &frame, &[null.as_fd()]).unwrap();
        assert!(incoming.next::<u32>().await.unwrap_err().is_trouble());
        drop(incoming);
        theirs.flush().unwrap();
    }

    #[tokio::test]
    async fn a_peer_that_does_not_read_is_given_up() {
        for (role, most) in [(Role::Shepherd, MOST_QUEUED_SHORT), (Role::Pmix, MOST_QUEUED)] {
            let (_theirs, link, mut incoming) = link_to(role).await;
            let megabyte = vec![0u8; 1 << 20];
            for _ in 0..(most >> 20) - 1 {
                link.send(&megabyte);
            }
            let next = tokio::time::timeout(Duration::from_millis(50), incoming.next::<u32>()).await;
            assert!(next.is_err(), "{role:?} was given up too early");
            (0..4).for_each(|_| link.send(&megabyte));
            let error = incoming.next::<u32>().await.unwrap_err();
            assert!(error.is_trouble() && error.to_string().contains("does not read"), "{error}");
        }
        let (_theirs, link, mut incoming) = link_to(Role::Client).await;
        for _ in 0..MOST_QUEUED_SHORT / WAITING {
            link.send(&1u8);
        }
        assert!(incoming.next::<u32>().await.unwrap_err().is_trouble(), "short messages take room as well");
    }

    #[tokio::test]
    async fn messages_that_nobody_has_dealt_with_hold_up_their_sender() {
        let (theirs, link, mut incoming) = link_to(Role::Client).await;
        link.trust();
        let frame = encode(&vec![0u8; 300_000], 0).unwrap();
        let sender = std::thread::spawn(move || (0..8).try_for_each(|_| (&theirs).write_all(&frame)));
        let mut held = Vec::new();
        let mut take =
            async || tokio::time::timeout(Duration::from_millis(200), incoming.next_metered::<Vec<u8>>()).await;
        while let Ok(next) = take().await {
            held.push(next.unwrap());
        }
        assert_eq!(held.len(), 3, "a megabyte's worth");
        drop(held.remove(0));
        assert!(take().await.is_ok());
        drop((held, incoming, link));
        let _ = tokio::task::spawn_blocking(move || sender.join()).await.unwrap();
    }
}
