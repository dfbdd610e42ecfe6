//! Whether this node's ranks stand still.

use crate::ids::Micros;

/// Whether this node's ranks stand still, and why.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Standstill {
    /// They were stopped, and are to go on when the lease runs again.
    pub paused: bool,
    /// Since when this node has had no lease, in whatever epoch.
    pub unleased: Option<Micros>,
}

impl Standstill {
    /// Whether the lease runs at this moment.
    pub fn lease(&mut self, runs: bool, now: Micros) {
        self.unleased = if runs { None } else { Some(self.unleased.unwrap_or(now)) };
    }

    /// Since when the node has neither had a lease nor read the record, which it did last at `read`.
    pub fn blind_since(&self, read: Micros) -> Option<Micros> {
        self.unleased.map(|since| since.max(read))
    }
}
