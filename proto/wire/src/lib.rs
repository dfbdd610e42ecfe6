//! The messages that ftd's local processes exchange over unix stream sockets. No I/O and no runtime live here: this crate
//! only turns messages into bytes and back. (`DESIGN §n` is a section of ftd's design; CONTRIBUTING.md says where that is.)
//!
//! Every connection starts with a [`Preamble`] from each side; then come frames: 4 bytes body length (little endian),
//! 1 byte number of file descriptors that travel with the frame (`SCM_RIGHTS`), 3 bytes zero, and the body: MessagePack with
//! the names of fields and variants, so that releases whose numbers are neighbours read each other (docs/decisions/protocol-numbers.md).
//!
//! | link | who dials | module |
//! | --- | --- | --- |
//! | launcher | agent (inherited socket pair) | [`launcher`] |
//! | shepherd | shepherd | [`shepherd`] |
//! | rank | the preload inside the rank | [`rank`] |
//! | client | the client library inside the rank | [`client`] |
//! | pmix | `ft-pmix` (inherited socket pair) | [`pmix`] |
//! | ask | `ftctl`, to the agent of a job | [`ask`] |
//! | control | programs of the node, to its daemon `ftd` | [`control`] |
//! | ship | `ft-ship` (inherited socket pair) | [`ship`] |
//! | part | `ftrun`, to the daemons, to the launcher's parts on the job's nodes | [`part`] |
//! | step | a part, to the front in srun's place; a task, to its node's part | [`step`] |
//!
//! What the launcher says of other nodes is in [`cluster`], and what it keeps for the next agent in [`toll`] and [`history`]; what agents tell each other of a world, over connections of ft-peer, in
//! [`between`] and [`copies`]. An end of a link as its holder counts it is in [`link_end`], and what of it may have to be sent again in [`unpassed`].

pub mod ask;
pub mod between;
pub mod client;
pub mod cluster;
pub mod control;
pub mod copies;
pub mod forlorn;
mod frame;
pub mod history;
pub mod injection;
pub mod launcher;
pub mod link_end;
pub mod part;
mod path;
pub mod pmix;
pub mod rank;
pub mod shepherd;
pub mod ship;
pub mod step;
pub mod toll;
pub mod unpassed;

pub use frame::{
    APART, FRAME_HEADER, FrameBuffer, FrameError, MAX_BODY, OLDEST, PREAMBLE_LEN, Preamble, Role, VERSION, decode,
    encode, is_neighbour, release, speaks, spoken, strangers, version,
};

/// The socket in a job's directory on which its agent listens; `FT_SOCKET` gives ranks its path.
pub const AGENT_SOCKET: &str = "agent.sock";

/// MPI rank as the application sees it, `0..world_size`.
pub type Rank = u32;
/// Number of a world (one incarnation of `MPI_COMM_WORLD`), starting at 1.
pub type World = u64;
/// Number of an epoch, starting at 1.
pub type Epoch = u64;
/// Number of a slot within the job; never reused.
pub type Slot = u32;
/// Checkpoint version chosen by the application.
pub type Version = u64;

/// Which family of MPI library a program has loaded, and so which process-management protocol it speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Flavour {
    /// Open MPI 4 and later: PMIx.
    OpenMpi,
    /// MPICH, Intel MPI, MVAPICH: the PMI-1 wire protocol.
    Mpich,
}
