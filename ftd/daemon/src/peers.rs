//! The daemons of other nodes: who dials this one, and whom this one dials. Each connection is for one part of one job.

use crate::config::{Config, Peers};
use crate::dial::{Way, watch};
use crate::errand::{self, Report, Reports, Whose};
use crate::frames::{self, Broken, Stream, within};
use crate::link;
use crate::metrics::{self, Refusal};
use crate::resume::{self, Waits};
use crate::state::State;
use crate::strangers::Strangers;
use crate::succession::OnlyOne;
use crate::tls::Tls;
use crate::watch::Pulse;
use crate::{own_jobs, parts};
use ft_wire::part::{Carried, FromPart, Image, MAX_IMAGE, MAX_LAUNCH, MAX_SAID, Question, Start, ToPeer};
use ft_wire::{FrameBuffer, FrameError, Role};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream, UnixStream};

/// Who dials has this long to show its certificate …
const SHOW: Duration = Duration::from_secs(2);
/// … and then this long to say what it wants.
const FIRST: Duration = Duration::from_secs(10);
/// A part has so long to make itself ready.
const READY: Duration = Duration::from_secs(30);
/// After a dial that could not be taken, for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

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

/// Serves another process of this node's daemon, which has said so, in a process of its own.
pub async fn meet_own(stream: UnixStream, state: &Arc<State>) {
    let mut stream: Box<dyn Stream> = Box::new(stream);
    match within(FIRST, first_words(&mut stream)).await {
        Ok(wanted) => give(stream, wanted, state).await,
        Err(error) => tracing::warn!("another process of this ftd's was turned away: {error}"),
    }
}

/// One that has a certificate says which release it is of, and what it wants.
async fn met(mut stream: Box<dyn Stream>, from: SocketAddr, state: &Arc<State>, mut reports: Reports) {
    let said = async {
        frames::greet(&mut stream).await?;
        frames::greeted(&mut stream, Role::Daemon).await?;
        first_words(&mut stream).await
    };
    match within(FIRST, said).await {
        Ok(wanted) => {
            reports.say(Report::Served);
            drop(reports);
            give(stream, wanted, state).await;
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
    Resume(u64),
}

async fn give(stream: Box<dyn Stream>, wanted: Wanted, state: &Arc<State>) {
    match wanted {
        Wanted::Part(start, image) => serve(stream, *start, image, state).await,
        Wanted::Answer(question) => own_jobs::answer(stream, *question, state).await,
        Wanted::Resume(link) => resume::carry_between(stream, &state.config(), link).await,
    }
}

async fn first_words(stream: &mut Box<dyn Stream>) -> Result<Wanted, Broken> {
    let start = match frames::receive(stream, MAX_LAUNCH).await? {
        ToPeer::Start(start) => start,
        ToPeer::Ask(question) => return Ok(Wanted::Answer(question)),
        ToPeer::Resume(link) => return Ok(Wanted::Resume(link)),
    };
    let image = frames::body(stream, MAX_IMAGE).await?;
    // A launcher that is no neighbour may mean something else by that, and is told so.
    let known = ft_wire::is_neighbour(start.protocol);
    Ok(Wanted::Part(start, if known { ft_wire::decode(&image)? } else { Image::default() }))
}

/// Carries what the two ends say to each other.
async fn carry(
    stream: Box<dyn Stream>,
    own: impl Stream,
    (link, window): (u64, u32),
    state: &State,
) -> Result<(), Broken> {
    let waits = (link != 0).then(|| Waits::at(&state.config(), link)).and_then(|made| {
        made.map_err(|error| tracing::warn!(%error, "no socket beside control.socket for a part's link: a lost connection ends it")).ok()
    });
    match waits {
        Some(mut waits) => link::carry(stream, own, window, Pulse::Tells, &mut waits).await,
        None => link::carry(stream, own, window, Pulse::Tells, &mut OnlyOne).await,
    }
}

/// Starts the part; from then on the two ends speak with each other.
async fn serve(stream: Box<dyn Stream>, start: Start, image: Image, state: &Arc<State>) {
    let (job, from, link) = (start.share.job.clone(), start.from.clone(), (start.link, start.window));
    let ended = match parts::start(start, &image, state, None).await {
        Ok(part) => {
            drop(image);
            carry(stream, part, link, state).await
        }
        Err(sentence) => {
            tracing::warn!(job, from, "a job was refused: {sentence}");
            let refused = FromPart::Refused { status: 1, sentence };
            let frame = ft_wire::encode(&refused, 0).unwrap_or_default();
            let (mut said, own) = tokio::io::duplex(frame.len().max(1));
            let _ = said.write_all(&frame).await;
            drop(said);
            carry(stream, own, link, state).await
        }
    };
    tracing::debug!(job, from, ?ended, "the link of a job's part has ended");
}

/// What goes to every node of a job alike; in memory once, as it is sent.
pub struct Sent(Vec<u8>);

impl Sent {
    /// Made ready to be sent.
    ///
    /// # Errors
    /// One sentence.
    pub fn new(image: &Image) -> Result<Sent, String> {
        ft_wire::encode(image, 0).map(Sent).map_err(|error| error.to_string())
    }
}

/// Asks the daemon of a node to start a part. Returns the link to it, and what it has said first, which took so many bytes.
///
/// # Errors
/// One sentence.
pub async fn ask(
    way: &Way,
    start: Start,
    image: &Sent,
    config: &Arc<Config>,
) -> Result<(Box<dyn Stream>, FromPart, u64), String> {
    let node = start.to.clone();
    let (mut stream, place) = way.reach(&node, config).await?;
    let told = within(FIRST, async {
        frames::send(&mut stream, &ToPeer::Start(Box::new(start))).await?;
        stream.write_all(&image.0).await?;
        Ok(stream.flush().await?)
    });
    told.await.map_err(|error| format!("node {node} ({place}): {error}"))?;
    let (word, came) = within(READY, first_word(&mut stream)).await.map_err(|error| format!("node {node}: {error}"))?;
    Ok((stream, word, came))
}

/// What a part says first. It says nothing more before it is told that it may start.
async fn first_word(stream: &mut Box<dyn Stream>) -> Result<(FromPart, u64), Broken> {
    let (mut heard, mut came) = (FrameBuffer::default(), 0);
    loop {
        match frames::receive(stream, MAX_SAID).await? {
            Carried::Bytes(bytes) => {
                came += bytes.len() as u64;
                heard.push(&bytes);
            }
            Carried::End => return Err(Broken::Closed),
            Carried::Ask | Carried::Here | Carried::Taken(_) => {}
        }
        if let Some((body, _)) = heard.next_frame()? {
            return Ok((ft_wire::decode(&body)?, came));
        }
    }
}
