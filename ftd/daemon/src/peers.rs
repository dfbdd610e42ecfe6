//! The daemons of other nodes: who dials this one, and whom this one dials. Each connection is for one part of one job.

use crate::config::{Config, Peers};
use crate::errand::{self, Report, Reports, Whose};
use crate::frames::{self, Broken, Stream, within};
use crate::link::{self, Pulse};
use crate::metrics::{self, Refusal};
use crate::state::State;
use crate::strangers::Strangers;
use crate::tls::Tls;
use crate::told::Told;
use crate::{own_jobs, parts};
use ft_wire::part::{FromPart, Image, MAX_IMAGE, MAX_LAUNCH, Question, Start, ToPeer};
use ft_wire::{FrameError, Role};
use rustix::net::sockopt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::rustls::pki_types::ServerName;

/// A node that is there answers within this time.
const DIAL: Duration = Duration::from_secs(5);
/// Who dials has this long to show its certificate …
const SHOW: Duration = Duration::from_secs(2);
/// … and then this long to say what it wants.
const FIRST: Duration = Duration::from_secs(10);
/// Of what a part says, so much lies before who passes it on.
const PIECE: usize = 64 << 10;
/// After a dial that could not be taken, for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// A connection on which nothing comes is looked at after this time, then this often, and so often in vain.
const LOOK: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(2), 5);

/// Other daemons cannot reach this one.
#[derive(Debug, thiserror::Error)]
#[error("{key}: {address} cannot be listened on: {error}")]
pub struct ListenError {
    key: &'static str,
    address: SocketAddr,
    error: io::Error,
}

/// Listens where other daemons find this one.
///
/// # Errors
/// [`ListenError`].
pub async fn listen(state: &Arc<State>) -> Result<(), ListenError> {
    let config = state.config();
    if config.peers().is_none() {
        tracing::info!("jobs over several nodes are not set up: peers.ca-file, cert-file and key-file are missing");
        return Ok(());
    }
    let strangers = Strangers::new();
    let mut heard: Vec<SocketAddr> = Vec::new();
    let places = [("peers.mpi", config.peer_mpi()), ("peers.store", config.peer_store())];
    for (key, address) in places.into_iter().filter_map(|(key, address)| Some((key, address?))) {
        // One network may be both.
        if !heard.contains(&address) {
            let listener = TcpListener::bind(address).await.map_err(|error| ListenError { key, address, error })?;
            tokio::spawn(accept(listener, state.clone(), strangers.clone()));
            heard.push(address);
        }
    }
    Ok(())
}

async fn accept(listener: TcpListener, state: Arc<State>, strangers: Arc<Strangers>) {
    loop {
        let room = strangers.room().await;
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::error!(%error, "a connection of another node's ftd could not be taken");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let Some(place) = strangers.enter(from.ip(), room) else {
            metrics::peer_refused(Refusal::Limit);
            tracing::debug!(%from, "too many dial from there at a time");
            continue;
        };
        let state = state.clone();
        tokio::spawn(async move {
            let mut place = Some(place);
            let heard = |report| match report {
                Report::Shown => drop(place.take()),
                Report::Served => metrics::peer_accepted(),
                Report::Refused(refusal) => metrics::peer_refused(refusal),
            };
            if let Err(error) = errand::run(stream, Whose::Peer(from), &state, heard).await {
                tracing::error!(%from, %error, "a connection of another node's ftd could not be served");
            }
        });
    }
}

/// Serves one that dials as another node's daemon, in a process of its own.
pub async fn meet(stream: TcpStream, from: SocketAddr, state: &Arc<State>, mut reports: Reports) {
    match shown(stream, &state.config()).await {
        Ok(stream) => {
            reports.say(Report::Shown);
            met(stream, from, state, reports).await;
        }
        Err(error) => turned_away(from, Refusal::Certificate, &error, reports),
    }
}

fn turned_away(from: SocketAddr, refusal: Refusal, error: &Broken, mut reports: Reports) {
    reports.say(Report::Refused(refusal));
    tracing::warn!(%from, "who dialled as another node's ftd was turned away: {error}");
}

/// Who dials shows its certificate.
async fn shown(stream: TcpStream, config: &Config) -> Result<Box<dyn Stream>, Broken> {
    watch(&stream)?;
    match config.peers() {
        Some(Peers::Known(files)) => {
            let tls = Tls::read(&files).map_err(io::Error::other)?;
            let accepted = async { Ok(tls.acceptor.accept(stream).await?) };
            Ok(Box::new(within(SHOW, accepted).await?))
        }
        _ => Ok(Box::new(stream)),
    }
}

/// One that has a certificate says which release it is of, and what it wants.
async fn met(mut stream: Box<dyn Stream>, from: SocketAddr, state: &Arc<State>, mut reports: Reports) {
    match within(FIRST, first_words(&mut stream)).await {
        Ok(wanted) => {
            reports.say(Report::Served);
            drop(reports);
            match wanted {
                Wanted::Part(start, image) => serve(stream, *start, image, state).await,
                Wanted::Answer(question) => own_jobs::answer(stream, *question, state).await,
            }
        }
        Err(error) => {
            let refusal = match &error {
                Broken::Idle(_) => Refusal::Idle,
                Broken::Frame(FrameError::Version { .. }) => Refusal::Version,
                _ => Refusal::Malformed,
            };
            turned_away(from, refusal, &error, reports);
        }
    }
}

/// What another daemon wants.
enum Wanted {
    Part(Box<Start>, Image),
    Answer(Box<Question>),
}

async fn first_words(stream: &mut Box<dyn Stream>) -> Result<Wanted, Broken> {
    frames::greet(stream).await?;
    frames::greeted(stream, Role::Daemon).await?;
    let start = match frames::receive(stream, MAX_LAUNCH).await? {
        ToPeer::Start(start) => start,
        ToPeer::Ask(question) => return Ok(Wanted::Answer(question)),
    };
    let image = frames::body(stream, MAX_IMAGE).await?;
    // A launcher that is no neighbour may mean something else by that, and is told so.
    let known = ft_wire::is_neighbour(start.protocol);
    Ok(Wanted::Part(start, if known { ft_wire::decode(&image)? } else { Image::default() }))
}

/// Starts the part; from then on the two ends speak with each other.
async fn serve(stream: Box<dyn Stream>, start: Start, image: Image, state: &Arc<State>) {
    let (job, from, window) = (start.share.job.clone(), start.from.clone(), start.window);
    let ended = match parts::start(start, &image, state, None).await {
        Ok(part) => {
            drop(image);
            link::carry(stream, part, window, Pulse::Answers).await
        }
        Err(sentence) => {
            tracing::warn!(job, from, "a job was refused: {sentence}");
            let refused = FromPart::Refused { status: 1, sentence };
            let frame = ft_wire::encode(&refused, 0).unwrap_or_default();
            let (mut said, own) = tokio::io::duplex(frame.len().max(1));
            let _ = said.write_all(&frame).await;
            drop(said);
            link::carry(stream, own, window, Pulse::Answers).await
        }
    };
    tracing::debug!(job, from, ?ended, "the link of a job's part has ended");
}

/// A network that is cut is noticed, also while nothing is said.
fn watch(stream: &TcpStream) -> io::Result<()> {
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

/// What goes to every node of a job alike; in memory once.
pub struct Sent {
    whole: Image,
    frame: Vec<u8>,
}

impl Sent {
    /// Made ready to be sent.
    ///
    /// # Errors
    /// One sentence.
    pub fn new(whole: Image) -> Result<Sent, String> {
        let frame = ft_wire::encode(&whole, 0).map_err(|error| error.to_string())?;
        Ok(Sent { whole, frame })
    }

    /// As it is.
    pub fn whole(&self) -> &Image {
        &self.whole
    }
}

/// Asks the daemon of a node that is at one of these addresses to start a part. Returns the link to the part.
///
/// # Errors
/// One sentence.
pub async fn ask(
    addresses: &[SocketAddr],
    start: Start,
    image: &Sent,
    config: &Config,
) -> Result<Box<dyn Stream>, String> {
    let node = start.to.clone();
    let window = start.window;
    let (mut stream, address) = reach(addresses, &node, config).await?;
    let told = within(FIRST, async {
        frames::send(&mut stream, &ToPeer::Start(Box::new(start))).await?;
        stream.write_all(&image.frame).await?;
        Ok(stream.flush().await?)
    });
    told.await.map_err(|error| format!("node {node} ({address}): {error}"))?;
    Ok(carried(stream, node, window))
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
    let secure = match config.peers() {
        None => {
            return Err(format!(
                "node {node} cannot be asked: this node's ftd has no certificates for that; set peers.ca-file, cert-file and \
                 key-file in ftd.toml on all nodes (or, on a network for tests, peers.insecure = true)"
            ));
        }
        Some(Peers::Known(files)) => Some(Tls::read(&files).map_err(|error| error.to_string())?),
        Some(Peers::Believed) => None,
    };
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

/// The link to a part as if that were here.
fn carried(stream: Box<dyn Stream>, node: String, window: u32) -> Box<dyn Stream> {
    let (own, mut other) = tokio::io::duplex(PIECE);
    let why = Arc::new(OnceLock::new());
    let broken = why.clone();
    tokio::spawn(async move {
        if let Err(error) = link::carry(stream, &mut other, window, Pulse::Asks).await {
            tracing::info!(node, %error, "the link to the part of a job there broke");
            // Before the end is seen.
            let _ = broken.set(error.to_string());
        }
    });
    Box::new(Told { own, why })
}

async fn dial(address: SocketAddr, node: &str, secure: Option<&Tls>) -> Result<Box<dyn Stream>, Broken> {
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
