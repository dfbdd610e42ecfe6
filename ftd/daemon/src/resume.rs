//! Another connection for a link whose own is lost, or in doubt: who has dialled dials again, on all networks at once. The daemon there
//! starts a process for that connection as for any, which finds the one that holds the link's other end by the link's number, and carries between.

use crate::config::Config;
use crate::dial::{self, Way};
use crate::frames::{self, Broken, Stream, within};
use crate::succession::Another;
use crate::watch::Doubt;
use ft_wire::part::{Carried, MAX_LAUNCH, ToPeer};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// An end that runs answers within this time …
const ANSWER: Duration = Duration::from_secs(6);
/// … and who has asked it says soon that it has heard that.
const HEARD: Duration = Duration::from_secs(2);
/// Between two rounds in vain, first and at most, and after a connection that could not be taken.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));

/// The end that dials.
pub struct Dials {
    /// The link's number.
    pub link: u64,
    /// The other node.
    pub node: String,
    /// Where its daemon is.
    pub way: Way,
    /// How this one is to show who it is.
    pub config: Arc<Config>,
    /// For links that are dialled at a time.
    pub room: Arc<Semaphore>,
}

impl Another for Dials {
    const MAY_BE: bool = true;

    async fn next(&mut self, doubt: &Doubt) -> Option<Box<dyn Stream>> {
        let (mut pause, most) = PAUSE;
        loop {
            doubt.raised().await;
            match self.round().await {
                Round::Answered(stream) => return Some(stream),
                // As long as the connection may be well this proves nothing.
                Round::Gone if doubt.has_come_true() => return None,
                Round::Gone => tracing::debug!(self.node, "no end of the link to a part is found there"),
                Round::InVain(why) => {
                    tracing::debug!(self.node, why, "no other connection for the link to a part there")
                }
            }
            tokio::time::sleep(pause).await;
            pause = most.min(2 * pause);
        }
    }
}

/// What came of dialling.
enum Round {
    Answered(Box<dyn Stream>),
    /// There is no such end.
    Gone,
    InVain(String),
}

impl Dials {
    /// The first one on which the other end answers.
    async fn round(&self) -> Round {
        let Ok(_place) = self.room.acquire().await else { return Round::InVain("nothing is dialled any more".into()) };
        let mut all = JoinSet::new();
        let link = self.link;
        match &self.way {
            Way::Here => {
                let config = self.config.clone();
                all.spawn(
                    async move { within(ANSWER, async { ask(dial::dial_here(&config).await?, link).await }).await },
                );
            }
            Way::At(addresses) => {
                let secure = match dial::secure(&self.node, &self.config) {
                    Ok(secure) => secure.map(Arc::new),
                    Err(why) => return Round::InVain(why),
                };
                for address in addresses.clone() {
                    let (node, secure) = (self.node.clone(), secure.clone());
                    all.spawn(async move {
                        within(ANSWER, async { ask(dial::dial(address, &node, secure.as_deref()).await?, link).await })
                            .await
                    });
                }
            }
        }
        let mut why = Vec::new();
        while let Some(ended) = all.join_next().await {
            match ended {
                Ok(Ok(Some(stream))) => return Round::Answered(stream),
                Ok(Ok(None)) => return Round::Gone,
                Ok(Err(error)) => why.push(error.to_string()),
                Err(error) => why.push(error.to_string()),
            }
        }
        Round::InVain(why.join("; "))
    }
}

async fn ask(mut stream: Box<dyn Stream>, link: u64) -> Result<Option<Box<dyn Stream>>, Broken> {
    frames::send(&mut stream, &ToPeer::Resume(link)).await?;
    match frames::receive(&mut stream, MAX_LAUNCH).await? {
        Carried::Here => {
            frames::send(&mut stream, &Carried::Here).await?;
            // That it answered once says nothing where this process stood still since.
            match frames::receive(&mut stream, MAX_LAUNCH).await? {
                Carried::Here => Ok(Some(stream)),
                _ => Err(Broken::Closed),
            }
        }
        Carried::End => Ok(None),
        _ => Err(Broken::Closed),
    }
}

/// The end that was dialled.
pub struct Waits {
    listener: UnixListener,
    path: PathBuf,
}

impl Waits {
    /// Where others of this node's daemon find the link of that number.
    ///
    /// # Errors
    /// What the system says.
    pub fn at(config: &Config, link: u64) -> io::Result<Waits> {
        let path = path(config, link);
        if let Some(directory) = path.parent() {
            // Nobody else's processes are to stand in the way here.
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        Ok(Waits { listener: UnixListener::bind(&path)?, path })
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Another for Waits {
    const MAY_BE: bool = true;

    async fn next(&mut self, doubt: &Doubt) -> Option<Box<dyn Stream>> {
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                tokio::time::sleep(PAUSE.0).await;
                continue;
            };
            // What closes the connection that there is may be that the other end has another one.
            doubt.raise();
            let mut stream: Box<dyn Stream> = Box::new(stream);
            let spoken = within(HEARD, async {
                frames::send(&mut stream, &Carried::Here).await?;
                frames::receive::<Carried>(&mut stream, MAX_LAUNCH).await
            });
            // Who has given up meanwhile hears nothing.
            if matches!(spoken.await, Ok(Carried::Here))
                && within(HEARD, frames::send(&mut stream, &Carried::Here)).await.is_ok()
            {
                return Some(stream);
            }
        }
    }
}

/// Goes between another node's daemon and the process that holds the link's end on this node, as long as the first one is there.
pub async fn carry_between(mut stream: Box<dyn Stream>, config: &Config, link: u64) {
    let end = match UnixStream::connect(path(config, link)).await {
        Ok(end) => end,
        Err(error) => {
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) {
                let _ = within(HEARD, frames::send(&mut stream, &Carried::End)).await;
            }
            return;
        }
    };
    let ((mut from_peer, mut to_peer), (mut from_end, mut to_end)) = (tokio::io::split(stream), end.into_split());
    let back = async {
        let _ = tokio::io::copy(&mut from_end, &mut to_peer).await;
        let _ = to_peer.shutdown().await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        _ = tokio::io::copy(&mut from_peer, &mut to_end) => {}
        () = back => {}
    }
}

/// Removes what links have left whose processes were killed.
pub fn sweep(config: &Config) {
    let Some(directory) = path(config, 0).parent().map(Path::to_path_buf) else { return };
    for file in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        // One of another type is refused by who listens, without hearing of it.
        let asked = std::os::unix::net::UnixDatagram::unbound().and_then(|asks| asks.connect(file.path()));
        if asked.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            let _ = std::fs::remove_file(file.path());
        }
    }
}

fn path(config: &Config, link: u64) -> PathBuf {
    config.socket().with_file_name("links").join(format!("{link:016x}"))
}
