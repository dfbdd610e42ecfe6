//! Another connection for a link whose own is lost, or in doubt: who has dialled dials again, on all networks at once. The daemon there
//! starts a process for that connection as for any, which finds the one that holds the link's other end by the link's number, and carries between.

use crate::config::Config;
use crate::dial::{dial, secure};
use crate::frames::{self, Broken, Stream, within};
use crate::link::Another;
use crate::tls::Tls;
use ft_wire::part::{Carried, MAX_LAUNCH, ToPeer};
use std::io;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as Name;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// An end that runs answers within this time.
const ANSWER: Duration = Duration::from_secs(3);
/// Between two rounds in vain, and after a connection that could not be taken.
const PAUSE: Duration = Duration::from_millis(250);

/// The end that dials.
pub struct Dials {
    /// The link's number.
    pub link: u64,
    /// The other node.
    pub node: String,
    /// Where its daemon is.
    pub addresses: Vec<SocketAddr>,
    /// How this one is to show who it is.
    pub config: Arc<Config>,
}

impl Another for Dials {
    const MAY_BE: bool = true;

    async fn next(&mut self, doubt: &Notify) -> Box<dyn Stream> {
        doubt.notified().await;
        loop {
            match self.round().await {
                Ok(stream) => return stream,
                Err(why) => tracing::debug!(self.node, why, "no other connection for the link to a part there"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

impl Dials {
    /// The first one on which the other end answers.
    async fn round(&self) -> Result<Box<dyn Stream>, String> {
        let secure = secure(&self.node, &self.config)?.map(Arc::new);
        let mut all = JoinSet::new();
        for address in self.addresses.clone() {
            let (node, secure, link) = (self.node.clone(), secure.clone(), self.link);
            all.spawn(async move { within(ANSWER, ask(address, &node, secure.as_deref(), link)).await });
        }
        let mut why = Vec::new();
        while let Some(ended) = all.join_next().await {
            match ended {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => why.push(error.to_string()),
                Err(error) => why.push(error.to_string()),
            }
        }
        Err(why.join("; "))
    }
}

async fn ask(address: SocketAddr, node: &str, secure: Option<&Tls>, link: u64) -> Result<Box<dyn Stream>, Broken> {
    let mut stream = dial(address, node, secure).await?;
    frames::send(&mut stream, &ToPeer::Resume(link)).await?;
    match frames::receive(&mut stream, MAX_LAUNCH).await? {
        Carried::Here => Ok(stream),
        _ => Err(Broken::Closed),
    }
}

/// The end that was dialled.
pub struct Waits(UnixListener);

impl Waits {
    /// Where others of this node's daemon find the link of that number.
    ///
    /// # Errors
    /// What the system says.
    pub fn at(link: u64) -> io::Result<Waits> {
        let listener = std::os::unix::net::UnixListener::bind_addr(&name(link)?)?;
        listener.set_nonblocking(true)?;
        Ok(Waits(UnixListener::from_std(listener)?))
    }
}

impl Another for Waits {
    const MAY_BE: bool = true;

    async fn next(&mut self, _: &Notify) -> Box<dyn Stream> {
        loop {
            match self.0.accept().await {
                // The name is everybody's who can guess it.
                Ok((stream, _)) if is_own(&stream) => {
                    let mut stream: Box<dyn Stream> = Box::new(stream);
                    if within(ANSWER, frames::send(&mut stream, &Carried::Here)).await.is_ok() {
                        return stream;
                    }
                }
                Ok(_) => {}
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }
}

/// The process that holds the link's end on this node.
///
/// # Errors
/// There is none.
pub async fn end_of(link: u64) -> io::Result<UnixStream> {
    // An abstract name is known at once, or not.
    let stream = std::os::unix::net::UnixStream::connect_addr(&name(link)?)?;
    stream.set_nonblocking(true)?;
    let stream = UnixStream::from_std(stream)?;
    if is_own(&stream) { Ok(stream) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

fn is_own(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == nix::unistd::geteuid().as_raw())
}

fn name(link: u64) -> io::Result<Name> {
    Name::from_abstract_name(format!("ftd-link-{link:016x}"))
}
