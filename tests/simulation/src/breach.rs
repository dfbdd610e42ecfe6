//! Rules that a run can be told to break, to prove that the checks notice. Those here are the driver's to keep; each is
//! caught within a thousand seeds of its own profile (`tests/breaches.rs`).

use crate::profiles;
use crate::setup::Setup;
use ftd_core::breach::Breach as Rule;

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
    /// Copies that were fetched are not compared with their hashes.
    UncheckedCopies,
    /// A rule that is the core's to keep.
    Core(Rule),
}

impl Breach {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Breach> {
        let own = [
            Breach::NoPause,
            Breach::HalfCopies,
            Breach::EarlyEmptied,
            Breach::BlindStore,
            Breach::LateCopies,
            Breach::UncheckedCopies,
        ];
        own.into_iter().chain(Rule::ALL.into_iter().map(Breach::Core))
    }

    /// The breach of this name.
    pub fn named(name: &str) -> Option<Breach> {
        Breach::all().find(|breach| breach.to_string() == name)
    }

    /// What the core is told.
    pub fn rule(breach: Option<Breach>) -> Rule {
        match breach {
            Some(Breach::Core(rule)) => rule,
            _ => Rule::Nothing,
        }
    }

    /// The profile that is to catch it, and a part of the complaint.
    pub fn caught_by(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Breach::NoPause => ("fenced", &["computes on"]),
            Breach::HalfCopies => ("copies", &["restored"]),
            Breach::EarlyEmptied => ("crash", &["still", "compute at the same time"]),
            Breach::BlindStore => ("crash", &["was written after"]),
            Breach::LateCopies => ("watches", &["of an ended epoch"]),
            Breach::UncheckedCopies => ("sources", &["restored wrong bytes"]),
            Breach::Core(rule) => of_rule(rule),
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

impl std::fmt::Display for Breach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Breach::Core(rule) => write!(f, "{rule:?}"),
            own => write!(f, "{own:?}"),
        }
    }
}

fn of_rule(rule: Rule) -> (&'static str, &'static [&'static str]) {
    match rule {
        Rule::OwnTerms => ("own-timeouts", &["invariant 5"]),
        Rule::RecordKept => ("store-away", &["invariant 7"]),
        Rule::StillCounts => ("fenced", &["invariant 5"]),
        Rule::UnheardCounts => ("one-way", &["invariant"]),
        Rule::LongLease => ("left-out", &["invariant 5"]),
        Rule::AloneAccuses | Rule::NothingAnew => ("everybody-cut", &["invariant 7"]),
        Rule::AccusationLives => ("store-lost", &["invariant 5"]),
        Rule::AccusedAcknowledged | Rule::SuccessorAcknowledges => ("accusation", &["invariant 5"]),
        Rule::NeverTakenBack => ("accusation", &["the job hangs"]),
        Rule::OlderEpochCounts => ("frames", &["the job hangs", "invariant 5"]),
        Rule::SleeperAccuses => ("sleeper", &["invariant 7"]),
        Rule::JoinerAccuses => ("deaf-joiner", &["invariant 7"]),
        Rule::OldReadCounts => ("late-answers", &["invariant 5"]),
        Rule::NewlyObservedAtOnce => ("frames", &["invariant 5", "invariant 7"]),
        Rule::ReleasedEarly => ("stalls", &["invariant 2"]),
        Rule::NothingHeld => ("aborts", &["because a peer had died"]),
        Rule::LevelsMixed => ("levels", &["invariant 4"]),
        Rule::KeptEarly => ("sources", &["invariant 4"]),
        Rule::LeasesForgotten => ("dead-joiner", &["invariant 3"]),
        Rule::NeverOffered => ("sources", &["has not offered it"]),
        Rule::NotFetchedIgnored => ("sources", &["the job hangs"]),
        Rule::Nothing => ("mixed", &[]),
    }
}
