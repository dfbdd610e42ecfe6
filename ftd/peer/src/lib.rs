//! What carries the messages of ftd-core between the agents of one job: heartbeats as small datagrams, everything else over one
//! connection for each pair. Who does not know the job's secret is neither heard nor answered.
//!
//! | module | concept |
//! | --- | --- |
//! | [`peers`] | the agent's way to the others: [`Peers::send`] never waits, what comes is [`News`] |
//! | [`codec`] | ftd-core's messages as bytes, and back |
//! | [`secret`] | what only the agents of one job know, and the keys made of it |
//! | [`beat`] | heartbeats and their answers as datagrams: sealed, and each taken once |
//! | [`beats`] | the socket that they go through |
//! | [`hello`] | how two agents meet, and prove to each other that they are of the job |
//! | [`frame`] | the messages of a connection, each sealed |
//! | [`parcel`], [`post`] | what an agent has to say to another of one world: in pieces, and until they have come |
//! | [`queue`] | what waits to be sent: of each kind the newest |
//! | [`patience`] | how long an endpoint waits for what |
//! | [`counters`] | what went through, and what was refused |

mod accept;
pub mod beat;
pub mod beats;
pub mod codec;
mod connection;
pub mod counters;
mod dial;
mod endpoint;
pub mod frame;
pub mod hello;
mod meet;
pub mod news;
pub mod parcel;
pub mod patience;
pub mod peers;
pub mod post;
pub mod queue;
pub mod secret;

pub use beats::Beats;
pub use codec::CodecError;
pub use counters::{Counters, Refused};
pub use news::{Inlet, News};
pub use peers::Peers;
pub use post::Post;
pub use secret::Secret;
