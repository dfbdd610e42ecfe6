//! The PMI-1.1 wire protocol, server side, for the MPICH family (MPICH, Intel MPI, MVAPICH). Pure: no I/O, no clock.
//!
//! One [`World`] per incarnation of `MPI_COMM_WORLD` and node. The caller owns the sockets: it feeds what a rank sent
//! ([`World::receive`]) and does what comes back, in order: bytes to send, and events. A barrier that every local rank has
//! entered is only reported; the caller ends it ([`World::barrier_complete`]) when all nodes are in, so several nodes,
//! or whoever wants to hold ranks inside `MPI_Init`, need no other door. The same holds for published names.
//!
//! ```
//! use ft_pmi1::{Action, Event, World};
//! let mut world = World::new("job-1", vec![0, 0], 0)?;
//! world.receive(0, b"cmd=barrier_in\n")?;
//! let actions = world.receive(1, b"cmd=barrier_in\n")?;
//! assert_eq!(actions, [Action::Event(Event::BarrierReady { puts: vec![] })]);
//! assert_eq!(world.barrier_complete([])?.len(), 2); // one "barrier_out" for each
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod action;
mod error;
mod line;
mod mapping;
mod names;
mod request;
mod spawn;
mod store;
mod world;

pub use action::{Action, Event};
pub use error::{ProtocolError, WorldError};
pub use names::{NameAnswer, NameRequest};
pub use world::World;

/// Longest accepted line in bytes. The clients' own limit is 1024 (PMI of MPICH 3) to 4096.
pub const MAX_LINE: usize = 1 << 16;
/// Longest accepted key; announced to clients.
pub const MAX_KEY: usize = 64;
/// Longest accepted value; announced to clients.
pub const MAX_VALUE: usize = 4096;
/// Longest accepted key space name; announced to clients.
pub const MAX_NAME: usize = 256;
/// Most bytes that all keys and values of a world may take, however large it is.
pub const MAX_STORE: usize = 256 << 20;

/// What Intel MPI needs so that waiting ranks give the processor away, as they do below its own launcher when a node has
/// more ranks than processors. A value that the user has set goes before it. MPICH does not know it.
pub const OVERSUBSCRIBED: (&str, &str) = ("I_MPI_THREAD_YIELD", "2");

/// What keeps MPICH 5 from guessing, which it refuses where it finds the words of PMIx beside those of PMI-1. A value that the user
/// has set goes before it.
pub const VERSION: (&str, &str) = ("MPIR_CVAR_PMI_VERSION", "1");
