//! Names of things. All are plain numbers with a type of their own, so that a rank is never taken for a slot.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $word:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($word, "{}"), self.0)
            }
        }
    };
}

id!(
    /// MPI rank as the application sees it, `0..world_size`.
    Rank(u32),
    "rank "
);
id!(
    /// One incarnation of `MPI_COMM_WORLD`, counted from 1. A number is never used twice in a job.
    WorldId(u64),
    "world "
);
id!(
    /// One agreed state of the job, counted from 1. Epochs of a job only grow.
    EpochId(u64),
    "epoch "
);
id!(
    /// A place on a node where one process can run; unique in the job, never reused.
    SlotId(u32),
    "slot "
);
id!(
    /// A node of the job.
    NodeId(u32),
    "node "
);
id!(
    /// A checkpoint version, chosen by the application; it only has to grow.
    Version(u64),
    "version "
);
id!(
    /// A group (colour) of ranks that checkpoint together; different groups may restore different versions.
    GroupId(u32),
    "group "
);
id!(
    /// The store's revision of the job's key; 0 means that the key was never written.
    Revision(u64),
    "revision "
);

impl EpochId {
    /// The epoch after this one.
    pub fn next(self) -> Self {
        EpochId(self.0 + 1)
    }
}

impl WorldId {
    /// The world after this one.
    pub fn next(self) -> Self {
        WorldId(self.0 + 1)
    }
}

/// From here on slots are numbered that nodes have beyond their own (`--ft-oversubscribe`): no launcher gives such a number by itself …
const BEYOND: u32 = 1 << 31;
/// … and this is room for one node.
const BEYOND_ROOM: u32 = 1 << 18;

impl SlotId {
    /// The `nth` slot that a node has beyond its own, if numbers are left: who plans a record names it, and its node makes it.
    pub fn beyond(node: NodeId, nth: u32) -> Option<SlotId> {
        let first = node.0.checked_mul(BEYOND_ROOM)?.checked_add(BEYOND)?;
        first.checked_add(nth).filter(|_| nth < BEYOND_ROOM).map(SlotId)
    }

    /// Whether it is one of those.
    pub fn is_beyond(self) -> bool {
        self.0 >= BEYOND
    }
}

/// Time in microseconds on one agent's own clock (`CLOCK_BOOTTIME` in the real agent). Readings of two agents are never
/// compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Micros(pub u64);

impl Micros {
    /// `ms` milliseconds.
    pub const fn from_millis(ms: u64) -> Self {
        Micros(ms * 1000)
    }

    /// `s` seconds.
    pub const fn from_secs(s: u64) -> Self {
        Micros(s * 1_000_000)
    }

    /// This much later.
    pub fn after(self, span: Micros) -> Self {
        Micros(self.0.saturating_add(span.0))
    }

    /// How long it is since `earlier`; zero when `earlier` is later.
    pub fn since(self, earlier: Micros) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }

    /// A share of this span, in quarters: `quarters(3)` is three quarters of it.
    pub const fn quarters(self, n: u64) -> Self {
        Micros(self.0 / 4 * n + self.0 % 4 * n / 4)
    }
}

/// A span as a share, or a multiple, of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share {
    quarters: u64,
}

impl Share {
    /// So many quarters of it.
    pub const fn quarters(quarters: u64) -> Self {
        Share { quarters }
    }

    /// So many times as long.
    pub const fn times(times: u64) -> Self {
        Share { quarters: 4 * times }
    }

    /// The span itself.
    pub const fn of(self, span: Micros) -> Micros {
        span.quarters(self.quarters)
    }

    /// What is left of this one without the other.
    #[must_use]
    pub const fn less(self, other: Share) -> Self {
        Share { quarters: self.quarters.saturating_sub(other.quarters) }
    }

    /// Of the same span.
    pub const fn is_shorter_than(self, other: Share) -> bool {
        self.quarters < other.quarters
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            us if us < 1_000 => write!(f, "{us} µs"),
            us if us < 1_000_000 => write!(f, "{}.{} ms", us / 1_000, us % 1_000 / 100),
            us => write!(f, "{}.{} s", us / 1_000_000, us % 1_000_000 / 100_000),
        }
    }
}

/// What a process is to its rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Role {
    /// The process that the application's result comes from.
    #[default]
    Primary,
    /// A copy that stands ready to be promoted.
    Replica,
}

/// One process of a job, by name rather than by pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Process {
    /// The world it belongs to.
    pub world: WorldId,
    /// The rank it is.
    pub rank: Rank,
    /// Primary or replica.
    pub role: Role,
    /// Counts processes of one rank and role within one world (modes that keep their world replace processes in it).
    pub incarnation: u32,
}

impl Process {
    /// The first primary of `rank` in `world`: the only process a rank has when worlds change with epochs (reinit).
    pub fn primary(world: WorldId, rank: Rank) -> Self {
        Process { world, rank, role: Role::Primary, incarnation: 0 }
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.role {
            Role::Primary => write!(f, "{} of {}", self.rank, self.world),
            Role::Replica => write!(f, "replica of {} of {}", self.rank, self.world),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_exact() {
        let shares = [Share::quarters(1), Share::quarters(3), Share::times(1), Share::times(4)];
        assert_eq!(shares.map(|share| share.of(Micros(500_003))), [125_000, 375_002, 500_003, 2_000_012].map(Micros));
        assert_eq!(Share::times(4).less(Share::times(1)), Share::times(3));
    }

    #[test]
    fn times_are_written_as_people_read_them() {
        assert_eq!(Micros(999).to_string(), "999 µs");
        assert_eq!(Micros(12_340).to_string(), "12.3 ms");
        assert_eq!(Micros::from_secs(61).to_string(), "61.0 s");
    }
}
