//! Rules that a run can be told to break, to prove that the checks notice. Those here are the driver's to keep; each is
//! caught within a thousand seeds of its own profile (`tests/breaches.rs`).

use crate::profiles;
use crate::setup::Setup;

/// A rule that is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breach {
    /// Nodes do not stop their ranks when cut off.
    NoPause,
    /// Inventories list versions that were only half copied.
    HalfCopies,
    /// Worlds are reported empty before they are.
    EarlyEmptied,
    /// The store lets every compare-and-swap pass.
    BlindStore,
    /// A partner takes copies from a node of an ended epoch.
    LateCopies,
}

impl Breach {
    /// All of them.
    pub const ALL: [Breach; 5] =
        [Breach::NoPause, Breach::HalfCopies, Breach::EarlyEmptied, Breach::BlindStore, Breach::LateCopies];

    /// The profile that is to catch it, and a part of the complaint.
    pub fn caught_by(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Breach::NoPause => ("fenced", &["computes on"]),
            Breach::HalfCopies => ("copies", &["restored"]),
            Breach::EarlyEmptied => ("crash", &["still", "compute at the same time"]),
            Breach::BlindStore => ("crash", &["was written after"]),
            Breach::LateCopies => ("watches", &["of an ended epoch"]),
        }
    }

    /// The first seed of its profile that shows it, and goes well without it; and the complaint.
    pub fn search(self, seeds: u64) -> Option<(u64, String)> {
        let (name, complaints) = self.caught_by();
        let profile = profiles::named(name)?;
        (0..seeds).find_map(|seed| {
            let kept = profile.setup(seed);
            let broken = Setup { breach: Some(self), ..kept.clone() };
            let error = crate::run(&broken, false).result.err()?.to_string();
            let caught = complaints.iter().any(|complaint| error.contains(complaint));
            (caught && crate::run(&kept, false).result.is_ok()).then_some((seed, error))
        })
    }
}
