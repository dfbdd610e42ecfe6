//! Frames of [`ft_wire`] over whatever carries bytes. Nothing is read beyond a frame: what follows may be for somebody else.

use ft_wire::{FRAME_HEADER, FrameError, PREAMBLE_LEN, Preamble, Role, encode};
use serde::{Serialize, de::DeserializeOwned};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// What carries bytes in both directions.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Why a message did not come.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The other end is gone.
    #[error("the connection was closed")]
    Closed,
    /// It sends what is no message.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// It is somebody else.
    #[error("{0:?} has no business here")]
    Role(Role),
    /// It says nothing.
    #[error("nothing came within {} s", .0.as_secs())]
    Idle(Duration),
    /// It sends more than it may.
    #[error("more was sent than may be under way")]
    TooMuch,
    /// It stands still.
    #[error("the ftd there has not answered for {} s", .0.as_secs())]
    Silent(Duration),
    /// The connection failed.
    #[error("{0}")]
    Io(io::Error),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Broken {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Broken::Closed,
            _ => Broken::Io(error),
        }
    }
}

/// Something that is to come within that time.
///
/// # Errors
/// [`Broken`].
pub async fn within<T>(time: Duration, what: impl Future<Output = Result<T, Broken>>) -> Result<T, Broken> {
    timeout(time, what).await.unwrap_or(Err(Broken::Idle(time)))
}

/// Says which release this is.
///
/// # Errors
/// [`Broken`].
pub async fn greet(stream: &mut (impl AsyncWrite + Unpin + ?Sized)) -> Result<(), Broken> {
    stream.write_all(&Preamble::ours(Role::Daemon).to_bytes()).await?;
    Ok(stream.flush().await?)
}

/// Hears which release the other end is of, and that it is who it should be.
///
/// # Errors
/// [`Broken`].
pub async fn greeted(stream: &mut (impl AsyncRead + Unpin + ?Sized), expected: Role) -> Result<(), Broken> {
    let mut preamble = [0; PREAMBLE_LEN];
    stream.read_exact(&mut preamble).await?;
    match Preamble::from_bytes(&preamble)?.role {
        role if role == expected => Ok(()),
        other => Err(Broken::Role(other)),
    }
}

/// Sends a message.
///
/// # Errors
/// [`Broken`].
pub async fn send(stream: &mut (impl AsyncWrite + Unpin + ?Sized), message: &impl Serialize) -> Result<(), Broken> {
    stream.write_all(&encode(message, 0)?).await?;
    Ok(stream.flush().await?)
}

/// The next message, of at most so many bytes.
///
/// # Errors
/// [`Broken`].
pub async fn receive<M: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin + ?Sized),
    most: usize,
) -> Result<M, Broken> {
    Ok(ft_wire::decode(&body(stream, most).await?)?)
}

/// What the next message is made of, whatever it says.
///
/// # Errors
/// [`Broken`].
pub async fn body(stream: &mut (impl AsyncRead + Unpin + ?Sized), most: usize) -> Result<Vec<u8>, Broken> {
    let mut header = [0; FRAME_HEADER];
    stream.read_exact(&mut header).await?;
    let bytes = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    if bytes > most {
        return Err(FrameError::TooLong { bytes, most }.into());
    }
    let mut body = vec![0; bytes];
    stream.read_exact(&mut body).await?;
    Ok(body)
}

/// Until something comes, or the end.
pub async fn speaks(stream: &UnixStream) {
    while stream.readable().await.is_ok() {
        match stream.try_read(&mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            _ => return,
        }
    }
}
