//! Copies of checkpoints in other nodes' memory (L2, DESIGN §7): this node's versions on their way to its partners, those that it keeps
//! for others, and those that are brought back. `ft-ship` moves the bytes; what is said between nodes is in [`ft_wire::copies`].
//!
//! | file | |
//! | --- | --- |
//! | `state.rs` | what is known; an epoch's end and beginning |
//! | `sending.rs` | to a partner |
//! | `keeping.rs` | for another node |
//! | `fetching.rs` | back, and by whom |
//! | `heard.rs` | whose words and news these are |
//! | `progress.rs` | how far what is sent is, for people |
//! | `ship.rs` | the process |
//!
//! A copy that is interrupted, wherever, never takes the place of a whole one: it comes into a place that holds nothing that is needed, and
//! counts when nobody can write there any more and its bytes are what their checksum says. What an ended epoch sends is not taken: names
//! say of which epoch they are, and nobody's window outlives an epoch. Once an inventory is told of nothing of it changes.

mod fetching;
mod heard;
mod keeping;
mod kinds;
mod progress;
mod sending;
mod ship;
mod state;
#[cfg(test)]
mod tests;

pub use state::{News, Partners};
