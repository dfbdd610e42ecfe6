//! `ftd`'s library inside the application: what is protected, when it is copied, and how it comes back.
//!
//! The C and Fortran interfaces (`ft.h`, `ft.f90`) are made from the same [`Client`] that Rust programs use. A checkpoint is
//! one copy into memory that the job's agent owns; checksums, bookkeeping and the choice of the version to restore happen
//! outside the process. The library starts no thread and calls no MPI.
//!
//! ```no_run
//! # fn main() -> Result<(), ftd_client::Error> {
//! let mut field = vec![0.0f64; 1000];
//! let mut step = 0u64;
//! let mut client = ftd_client::Client::init()?;
//! // SAFETY: neither is moved, resized or dropped while the client uses it.
//! unsafe {
//!     client.protect_slice(1, field.as_mut_slice())?;
//!     client.protect_slice(2, std::slice::from_mut(&mut step))?;
//! }
//! if client.state() == ftd_client::State::Restarted {
//!     client.restore()?;
//! }
//! while step < 100 {
//!     step += 1;
//!     client.checkpoint(step)?;
//! }
//! client.finalize();
//! # Ok(())
//! # }
//! ```

mod c;
mod client;
mod error;
mod output;

pub use client::{Client, State};
pub use error::Error;
