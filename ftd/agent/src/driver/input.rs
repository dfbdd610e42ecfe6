//! What can happen to the agent.

use crate::link::Link;
use crate::loners::{Loner, Search};
use crate::pmix_host::HostId;
use ft_sys::peer::Peer;
use ft_wire::{Epoch, Rank, World as WorldNumber};
use ft_wire::{client, launcher, pmix, rank, shepherd};
use std::os::fd::OwnedFd;
use tokio::sync::OwnedSemaphorePermit;

/// Names one accepted connection; never reused.
pub type ConnectionId = u64;

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
    /// A dialler is gone, or sent nonsense.
    Closed(ConnectionId),
    /// An `ft-pmix` says something.
    Pmix {
        /// Which.
        host: HostId,
        /// What.
        message: pmix::ToAgent,
    },
    /// An `ft-pmix` is gone.
    PmixClosed {
        /// Which.
        host: HostId,
        /// Why, for people.
        reason: String,
    },
    /// A rank sent bytes on its `PMI_FD`; none: it closed it.
    Pmi(WorldNumber, Rank, Vec<u8>),
    /// A rank's robust futex says that it is dying, and the kernel agrees; with the raw wait status of one below a wrapper, if
    /// that is known.
    Dying(WorldNumber, Rank, Option<i32>),
    /// The process with this number, a rank that is no shepherd's direct child, is gone.
    RankGone(WorldNumber, Rank, i32),
    /// It is time to look whether ranks of this world are alone.
    LookForLoners(WorldNumber, Box<Search>),
    /// That was done, and perhaps one was found.
    LookedForLoners(WorldNumber, Box<Search>, Option<Loner>),
    /// It is time to look whether ranks whose places were full still wait.
    PlacesFull,
    /// The checksum of a place was computed.
    Hashed(crate::arenas::Hashed),
    /// The frozen inventory of an ended world is verified.
    InventoryVerified(Epoch, crate::arenas::Verified),
    /// A timer that ftd-core asked for.
    Timer,
    /// A peer did something that people must hear of; its connection is being closed.
    Trouble(ConnectionId, String),
    /// What a peer said, with the room that it takes in the queue until it has been dealt with.
    Metered(Box<Input>, OwnedSemaphorePermit),
}
