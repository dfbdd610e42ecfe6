//! Somebody who asks the agent something, and is no part of the job.

use crate::link::{ConnectionId, Link};

/// Who asks.
#[derive(Debug)]
pub struct Asker {
    /// By this connection.
    pub connection: ConnectionId,
    /// And this way back.
    pub link: Link,
    /// As this user.
    pub uid: u32,
}
