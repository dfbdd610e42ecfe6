//! One connection, once both ends have proved themselves: reading and writing frames.

use crate::beat::Refusal;
use crate::codec::MOST_BYTES;
use crate::frame::{HEADER, Lane};
use crate::patience;
use std::io::{Error, ErrorKind};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// A message of up to so many bytes goes out with its header in one piece.
const SMALL: usize = 16 << 10;
/// So many bytes are made room for before they have come.
const AHEAD: usize = 64 << 10;
/// What a reader has of its own.
const BUFFER: usize = 4 << 10;

/// How a connection ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The other end closed it, or the network did.
    Closed(Error),
    /// The other end does not keep to the protocol.
    Refused(Refusal),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Ended::Closed(error)
    }
}

impl From<Refusal> for Ended {
    fn from(refusal: Refusal) -> Self {
        Ended::Refused(refusal)
    }
}

/// Messages go out at once, and a line that was cut is noticed.
pub(crate) fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    use rustix::net::sockopt;
    let unacknowledged = patience::scaled(patience::UNACKNOWLEDGED);
    stream.set_nodelay(true)?;
    sockopt::set_tcp_user_timeout(stream, u32::try_from(unacknowledged.as_millis()).unwrap_or(u32::MAX))?;
    sockopt::set_tcp_keepidle(stream, patience::UNACKNOWLEDGED)?;
    sockopt::set_tcp_keepintvl(stream, std::time::Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(())
}

/// Within the time that the other end has for another byte.
async fn unless_stalled<T>(work: impl Future<Output = std::io::Result<T>>) -> std::io::Result<T> {
    let stalled = || Error::new(ErrorKind::TimedOut, "the other end stands still");
    timeout(patience::scaled(patience::STALLED), work).await.unwrap_or_else(|_| Err(stalled()))
}

async fn write_all(stream: &mut (impl AsyncWrite + Unpin), mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match unless_stalled(stream.write(bytes)).await? {
            0 => return Err(ErrorKind::WriteZero.into()),
            written => bytes = &bytes[written..],
        }
    }
    Ok(())
}

/// Writes one message.
pub(crate) async fn write(stream: &mut (impl AsyncWrite + Unpin), lane: &mut Lane, body: &[u8]) -> std::io::Result<()> {
    let header = lane.header(body);
    if body.len() <= SMALL {
        return write_all(stream, &[&header, body].concat()).await;
    }
    write_all(stream, &header).await?;
    write_all(stream, body).await
}

/// Reads a connection's messages.
#[derive(Debug)]
pub(crate) struct Reader<S> {
    stream: BufReader<S>,
    lane: Lane,
    /// For what was read and is not dealt with yet.
    room: Arc<Semaphore>,
}

impl<S: AsyncRead + Unpin> Reader<S> {
    pub fn new(stream: S, lane: Lane) -> Self {
        Reader { stream: BufReader::with_capacity(BUFFER, stream), lane, room: Arc::new(Semaphore::new(MOST_BYTES)) }
    }

    /// The next message, and the room that it takes. It is not read before there is room: that is the sender's wait.
    pub async fn next(&mut self) -> Result<(Vec<u8>, OwnedSemaphorePermit), Ended> {
        let mut header = [0; HEADER];
        // Between messages anything may happen, or nothing.
        self.stream.read_exact(&mut header[..1]).await?;
        unless_stalled(self.stream.read_exact(&mut header[1..])).await?;
        let length = Lane::announced(&header)?;
        let permits = u32::try_from(length.max(1)).unwrap_or(u32::MAX);
        let room = self.room.clone().acquire_many_owned(permits).await;
        let room = room.map_err(|_| Ended::Closed(ErrorKind::BrokenPipe.into()))?;
        let mut body = Vec::new();
        while body.len() < length {
            let ahead = (length - body.len()).min(AHEAD);
            body.reserve(ahead);
            let mut rest = (&mut self.stream).take(ahead as u64);
            if unless_stalled(rest.read_buf(&mut body)).await? == 0 {
                return Err(Ended::Closed(ErrorKind::UnexpectedEof.into()));
            }
        }
        self.lane.check(&header, &body)?;
        Ok((body, room))
    }
}
