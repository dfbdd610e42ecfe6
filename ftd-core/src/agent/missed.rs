//! That somebody needs the store and does not reach it: who has heard of that passes it on, for it may be far away in the ring and in the tree.

use crate::ids::Micros;

/// What a node has heard of it in its epoch.
#[derive(Debug, Clone, Default)]
pub(super) struct Missed {
    /// When that was so for the last time, as far as it has been heard.
    at: Option<Micros>,
    /// When this node told its neighbours last.
    pub told: Option<Micros>,
}

impl Missed {
    /// It was so at this time.
    pub fn hears(&mut self, at: Micros) {
        self.at = self.at.max(Some(at));
    }

    /// So long ago it was, unless that is too long.
    pub fn ago(&self, life: Micros, now: Micros) -> Option<Micros> {
        self.at.map(|at| now.since(at)).filter(|ago| *ago < life)
    }

    /// When it will be too long.
    pub fn expires(&self, life: Micros) -> Option<Micros> {
        self.at.map(|at| at.after(life))
    }
}
