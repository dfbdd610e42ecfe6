//! Places in the checkpoint library at which its user may have a rank die, to see what comes of it.

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Doom {
    /// Half of a version is copied into the arena.
    Copying = 1,
    /// All of it is, and it is not committed.
    Copied = 2,
    /// It is committed.
    Committed = 3,
    /// Half of a version is copied back.
    Restoring = 4,
}

impl Doom {
    /// All of them.
    pub(crate) const ALL: [Doom; 4] = [Doom::Copying, Doom::Copied, Doom::Committed, Doom::Restoring];
}
