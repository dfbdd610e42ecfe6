//! Dialling the daemon of another node.

use crate::config::{Config, Peers};
use crate::frames::{self, Broken, Stream, within};
use crate::tls::Tls;
use ft_wire::{FrameError, Role};
use rustix::net::sockopt;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::rustls::pki_types::ServerName;

/// A node that is there answers within this time.
const DIAL: Duration = Duration::from_secs(5);
/// A connection on which nothing comes is looked at after this time, then this often, and so often in vain.
const LOOK: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(2), 5);

/// Where a node's daemon is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// On this node.
    Here,
    /// At one of these addresses.
    At(Vec<SocketAddr>),
}

impl Way {
    /// A connection to that node's daemon, and where it was found.
    ///
    /// # Errors
    /// One sentence.
    pub async fn reach(&self, node: &str, config: &Config) -> Result<(Box<dyn Stream>, String), String> {
        match self {
            Way::At(addresses) => {
                let (stream, address) = reach(addresses, node, config).await?;
                Ok((stream, address.to_string()))
            }
            Way::Here => {
                let path = config.socket();
                match within(DIAL, dial_here(config)).await {
                    Ok(stream) => Ok((stream, path.display().to_string())),
                    Err(error) => Err(format!("this node's own ftd cannot be reached ({}: {error})", path.display())),
                }
            }
        }
    }
}

/// A connection to this node's own daemon, as another one's: what it starts is not this process's.
///
/// # Errors
/// [`Broken`].
pub async fn dial_here(config: &Config) -> Result<Box<dyn Stream>, Broken> {
    let mut stream: Box<dyn Stream> = Box::new(UnixStream::connect(config.socket()).await.map_err(Broken::Io)?);
    frames::greet(&mut stream).await?;
    frames::greeted(&mut stream, Role::Daemon).await?;
    Ok(stream)
}

/// A connection to the daemon of a node that is at one of these addresses, and which of them it is.
///
/// # Errors
/// One sentence.
pub async fn reach(
    addresses: &[SocketAddr],
    node: &str,
    config: &Config,
) -> Result<(Box<dyn Stream>, SocketAddr), String> {
    let secure = secure(node, config)?;
    let mut failed = Vec::new();
    for address in addresses {
        match within(DIAL, dial(*address, node, secure.as_ref())).await {
            Ok(stream) => return Ok((stream, *address)),
            Err(error) => failed.push(format!("{address}: {}", hint(&error, secure.is_some()))),
        }
    }
    if failed.is_empty() {
        return Err(format!("node {node} does not say where its ftd is: set peers.store or peers.mpi in its ftd.toml"));
    }
    Err(format!("the ftd of node {node} cannot be reached ({})", failed.join("; ")))
}

/// What this node shows the daemon of that one, and wants to see; nothing on a network where all are believed.
///
/// # Errors
/// One sentence.
pub fn secure(node: &str, config: &Config) -> Result<Option<Tls>, String> {
    match config.peers() {
        None => Err(format!(
            "node {node} cannot be asked: this node's ftd has no certificates for that; set peers.ca-file, cert-file and \
             key-file in ftd.toml on all nodes (or, on a network for tests, peers.insecure = true)"
        )),
        Some(Peers::Known(files)) => Tls::read(&files).map(Some).map_err(|error| error.to_string()),
        Some(Peers::Believed) => Ok(None),
    }
}

/// A connection to the daemon of that node, at this address.
///
/// # Errors
/// [`Broken`].
pub async fn dial(address: SocketAddr, node: &str, secure: Option<&Tls>) -> Result<Box<dyn Stream>, Broken> {
    let stream = TcpStream::connect(address).await.map_err(Broken::Io)?;
    watch(&stream)?;
    let mut stream: Box<dyn Stream> = match secure {
        Some(tls) => {
            let name = ServerName::try_from(node.to_string()).map_err(io::Error::other)?;
            Box::new(tls.connector.connect(name, stream).await.map_err(Broken::Io)?)
        }
        None => Box::new(stream),
    };
    frames::greet(&mut stream).await?;
    // Only now does one that refuses this node's certificate say so.
    frames::greeted(&mut stream, Role::Daemon).await?;
    Ok(stream)
}

/// What may be behind it.
fn hint(error: &Broken, secure: bool) -> String {
    let more = match error {
        Broken::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            "; does ftd run there, with certificates (peers.ca-file)?"
        }
        Broken::Frame(FrameError::NotFtd) if !secure => "; its ftd speaks TLS, and this one does not (peers.insecure)",
        Broken::Closed if secure => {
            "; does its ftd speak TLS (peers.ca-file), and were both certificates signed by that CA?"
        }
        Broken::Closed => "; it wants TLS, perhaps (peers.ca-file)",
        _ => "",
    };
    format!("{error}{more}")
}

/// A network that is cut is noticed, also while nothing is said.
///
/// # Errors
/// What the system says.
pub fn watch(stream: &TcpStream) -> io::Result<()> {
    let (idle, often, times) = LOOK;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, idle)?;
    sockopt::set_tcp_keepintvl(stream, often)?;
    sockopt::set_tcp_keepcnt(stream, times)?;
    let all = (idle + often * times).as_millis();
    sockopt::set_tcp_user_timeout(stream, u32::try_from(all).unwrap_or(u32::MAX))?;
    Ok(())
}
