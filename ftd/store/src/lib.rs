//! Agreement: where a job's record, the agents' addresses and the nodes' leases live (DESIGN §10). Decisions are fenced by revision,
//! never by a lock.
//!
//! [`Store`] is what every store does. [`Embedded`] is one machine's: a file, no server. [`Etcd`] is a cluster's. One suite of tests
//! holds all to it (`tests/conformance`). [`Through`] is somebody else's, who is asked to ask it: a job's agent asks `ftd`. [`Follow`] watches keys and reads them again now and then, [`Keeper`] keeps a lease.
//!
//! `DESIGN §n` is a section of ftd's design; CONTRIBUTING.md says where that is.

pub mod codec;
mod embedded;
mod error;
mod etcd;
mod follow;
mod keeper;
mod store;
mod swap;
pub mod through;

pub use codec::{CodecError, decode_record, encode_record};
pub use embedded::{Embedded, EmbeddedWatch};
pub use error::{StoreError, Trouble, Unmet};
pub use etcd::{Etcd, EtcdOptions, EtcdWatch, Guests, Login, Tls};
pub use follow::Follow;
pub use keeper::{Held, Keeper};
pub use store::{Change, Lease, LeaseId, Read, Scope, Store, Versioned, Watch, WatchEnd};
pub use swap::{Expected, MAX_KEYS, Swap, Write};
pub use through::Through;
