//! The only place that knows libfabric. No raw pointer leaves it, and memory that libfabric may touch stays where it is for as long
//! as it may.
#![allow(unsafe_code)]

mod bindings;
mod call;
mod domain;
mod endpoint;
mod info;
mod region;

pub use call::{FabricError, set_environment};
pub use domain::Domain;
pub use endpoint::{Completion, Destination, Endpoint, Piece, SLOTS, may_wait};
pub use info::Info;
pub use region::{Access, Region, Slice};
