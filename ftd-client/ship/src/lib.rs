//! Moves bytes between the arenas of a job's nodes by remote memory access, through libfabric.
//!
//! One process of it, `ft-ship`, belongs to an agent and is disposable: it holds nothing that is worth keeping, and C libraries that
//! read what comes over a network run in it and not in the agent. What the two say to each other is in [`ft_wire::ship`].
//!
//! It has one thread, which hears the agent, lets libfabric work and waits for both. Nothing in it waits for another node: a move
//! whose bytes do not move for its patience has failed, and its endpoint is closed, which is the one way to take pieces back that
//! every provider has.

mod arenas;
mod fabric;
mod line;
mod moves;
mod moving;
mod native;
mod plan;
mod rate;
mod serve;
mod windows;

pub use native::set_environment;
pub use serve::{ServeError, serve};
