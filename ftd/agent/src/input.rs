//! What can happen to the agent.

use crate::asker::Asker;
use crate::between;
use crate::checkpoints;
use crate::elsewhere;
use crate::epochs;
use crate::injections;
use crate::link::{ConnectionId, Link};
use crate::lone;
use crate::outlet::Outlet;
use crate::pmi;
use crate::pmix_host;
use crate::published;
use crate::watcher::Dying;
use crate::ways;
use crate::worlds::Gone;
use ft_sys::peer::Peer;
use ft_wire::{ask, client, launcher, rank, shepherd};
use std::os::fd::OwnedFd;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;

/// Everything that can happen to the agent.
#[derive(Debug)]
pub enum Input {
    /// The launcher says something.
    Launcher(Box<launcher::ToAgent>),
    /// The launcher is gone.
    LauncherClosed,
    /// Somebody dialled.
    Opened(ConnectionId, Link, Peer),
    /// A shepherd says something.
    Shepherd(ConnectionId, shepherd::ToAgent, Vec<OwnedFd>),
    /// A rank's preload says something.
    Rank(ConnectionId, rank::ToAgent),
    /// A rank's client library says something.
    Client(ConnectionId, client::ToAgent),
    /// The job's user asks something.
    Asked(Asker, ask::ToAgent),
    /// Of failures that are asked for.
    Injections(injections::News),
    /// A dialler is gone, or sent nonsense.
    Closed(ConnectionId),
    /// A peer did something that people must hear of; its connection is being closed.
    Trouble(ConnectionId, String),
    /// Of an `ft-pmix`.
    Pmix(pmix_host::News),
    /// Of a rank's PMI-1.
    Pmi(pmi::Said),
    /// Who waits for published names waits no longer.
    Published(published::Overdue),
    /// A rank is dying.
    Dying(Dying),
    /// A rank below a wrapper is gone.
    Gone(Gone),
    /// Of the search for ranks that are alone.
    Lone(lone::News),
    /// Of checkpoints.
    Checkpoints(checkpoints::News),
    /// Of the store.
    Store(epochs::News),
    /// Of other nodes.
    Between(between::News),
    /// For the job's user, of other nodes.
    Elsewhere(elsewhere::News),
    /// Of the ways to the store.
    Ways(ways::News),
    /// A timer that ftd-core asked for.
    Timer,
    /// What a peer said, with the room that it takes in the queue until it has been dealt with.
    Metered(Box<Input>, OwnedSemaphorePermit),
}

/// A room's way into the queue.
pub fn outlet<T: 'static>(
    inputs: &UnboundedSender<Input>,
    wrap: impl Fn(T) -> Input + Send + Sync + 'static,
) -> Outlet<T> {
    let inputs = inputs.clone();
    Outlet::new(move |news, room| {
        let input = wrap(news);
        let input = match room {
            Some(room) => Input::Metered(Box::new(input), room),
            None => input,
        };
        inputs.send(input).is_ok()
    })
}
