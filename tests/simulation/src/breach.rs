//! Rules that a run can be told to break, to prove that the checks notice. Those here are the driver's to keep; each is
//! caught within a thousand seeds of its own profile (`tests/breaches.rs`).

use crate::profiles::{self, Profile};
use crate::setup::Setup;
use ftd_core::breach::Breach as Rule;

/// A rule that is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breach {
    /// Nodes do not stop their ranks when cut off.
    NoPause,
    /// Shepherds stop nobody by themselves.
    NoTimers,
    /// Inventories list versions that were only half copied.
    HalfCopies,
    /// Worlds are reported empty before they are.
    EarlyEmptied,
    /// The store lets every compare-and-swap pass.
    BlindStore,
    /// The first agent that ends removes the key.
    KeyRemoved,
    /// A node that was left out comes back under its id.
    SameNode,
    /// A partner takes copies from a node of an ended epoch.
    LateCopies,
    /// Copies that were fetched are not compared with their hashes.
    UncheckedCopies,
    /// A rule that is the core's to keep.
    Core(Rule),
}

/// What catches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Catch {
    /// The profile.
    pub profile: &'static str,
    /// The first seed of it that does, as far as is known: it is tried first.
    pub seed: u64,
    /// Parts of what may be complained of.
    pub complaints: &'static [&'static str],
}

impl Breach {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Breach> {
        let own = [
            Breach::NoPause,
            Breach::NoTimers,
            Breach::HalfCopies,
            Breach::EarlyEmptied,
            Breach::BlindStore,
            Breach::KeyRemoved,
            Breach::SameNode,
            Breach::LateCopies,
            Breach::UncheckedCopies,
        ];
        own.into_iter().chain(Rule::ALL.iter().copied().map(Breach::Core))
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

    /// The complaint of this seed, if it goes well as long as the rule is kept.
    pub fn caught(self, profile: &Profile, seed: u64) -> Option<String> {
        let kept = profile.setup(seed);
        let broken = Setup { breach: Some(self), ..kept.clone() };
        let error = crate::run(&broken, false).result.err()?.to_string();
        let complaints = self.caught_by().complaints;
        let caught = complaints.iter().any(|complaint| error.contains(complaint));
        (caught && crate::run(&kept, false).result.is_ok()).then_some(error)
    }

    /// A seed of its profile that shows it, and goes well without it; and the complaint.
    pub fn search(self, seeds: u64) -> Option<(u64, String)> {
        let Catch { profile, seed, .. } = self.caught_by();
        let profile = profiles::named(profile)?;
        let mut seeds = [seed].into_iter().chain(0..seeds);
        seeds.find_map(|seed| Some((seed, self.caught(profile, seed)?)))
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

/// A profile, the first seed of it that is known, and parts of the complaint.
type Row = (&'static str, u64, &'static [&'static str]);

impl Breach {
    /// The profile that is to catch it.
    pub fn caught_by(self) -> Catch {
        let (profile, seed, complaints): Row = match self {
            Breach::NoPause => ("fenced", 0, &["computes on"]),
            Breach::NoTimers => ("stalls", 0, &["invariant 5"]),
            Breach::HalfCopies => ("copies", 0, &["restored"]),
            Breach::EarlyEmptied => ("crash", 0, &["still", "compute at the same time"]),
            Breach::BlindStore => ("crash", 15, &["was written after"]),
            Breach::KeyRemoved => ("tombstone", 0, &["was written anew"]),
            Breach::SameNode => ("comes-back", 0, &["cannot be placed"]),
            Breach::LateCopies => ("watches", 45, &["of an ended epoch"]),
            Breach::UncheckedCopies => ("sources", 0, &["restored wrong bytes"]),
            Breach::Core(rule) => of_rule(rule),
        };
        Catch { profile, seed, complaints }
    }
}

#[allow(clippy::too_many_lines, reason = "a table: one entry for each rule")]
fn of_rule(rule: Rule) -> Row {
    match rule {
        // The lease.
        Rule::LongLease => ("left-out", 0, &["invariant 5"]),
        Rule::LeaseFromReceipt => ("slow-net", 527, &["invariant 5"]),
        Rule::LeaseOfOne => ("islands", 4, &["invariant 5"]),
        Rule::LeaseAtOnce => ("late", 1, &["invariant 5"]),
        Rule::AgentPauses => ("frozen", 1, &["invariant 5"]),
        Rule::ContinuedByStore => ("fenced", 0, &["stands still"]),
        Rule::LeftOutContinued => ("left-out", 0, &["invariant 5"]),
        Rule::LeftOutStays => ("left-out", 0, &["the job hangs"]),
        Rule::BlindStays => ("frames", 0, &["the job hangs"]),
        Rule::NobodyYields => ("smaller-island", 1, &["cannot be placed"]),
        Rule::OwnTerms => ("own-timeouts", 49, &["invariant 5"]),
        Rule::OwnPatience => ("own-patience", 0, &["invariant 7"]),
        Rule::OwnObservers => ("own-observers", 0, &["invariant 7"]),
        // What counts.
        Rule::StillCounts => ("fenced", 0, &["invariant 5"]),
        Rule::OldReadCounts => ("late-answers", 2, &["invariant 5"]),
        Rule::WatchCounts => ("late-answers", 3, &["invariant 5"]),
        Rule::UnheardCounts => ("one-way", 2, &["invariant 7"]),
        Rule::UnheardUnanswered => ("everybody-cut", 5, &["invariant 7"]),
        Rule::OlderEpochCounts => ("frames", 0, &["the job hangs", "invariant 5"]),
        Rule::BehindUntold => ("untold", 0, &["invariant 7"]),
        Rule::NewlyObservedAtOnce => ("frames", 0, &["invariant 5", "invariant 7"]),
        Rule::NewTEachEpoch => ("epoch-between", 0, &["in time"]),
        Rule::SilentSooner => ("short", 120, &["invariant 7"]),
        Rule::SilentApart => ("between", 4, &["in time"]),
        Rule::JoinerNever => ("deaf-for-good", 0, &["the job hangs"]),
        Rule::JoinerAccuses => ("deaf-joiner", 0, &["invariant 7"]),
        Rule::RecordKept => ("store-away", 12, &["in time"]),
        Rule::SleeperAccuses => ("sleeper", 0, &["invariant 7"]),
        Rule::AloneAccuses => ("everybody-cut", 0, &["invariant 7"]),
        Rule::NothingAnew => ("everybody-cut", 2, &["invariant 7"]),
        Rule::AnewWhenAlone => ("short-cut", 15, &["invariant 7"]),
        Rule::AloneAnew => ("short-cut", 0, &["invariant 7"]),
        Rule::AloneBefore => ("new-observer", 0, &["in time"]),
        Rule::PatienceAnew => ("last-one", 2, &["in time"]),
        Rule::TwoWait => ("last-one", 5, &["in time"]),
        Rule::AccusationLives => ("store-lost", 41, &["invariant 5"]),
        Rule::AccusedAcknowledged => ("accusation", 9, &["invariant 5"]),
        Rule::SuccessorAcknowledges => ("accusation", 21, &["invariant 5"]),
        Rule::SuccessorBelievesWatch => ("accusation", 21, &["invariant 5"]),
        Rule::HandedForgotten => ("accusation", 15, &["invariant 5"]),
        Rule::WrittenForgotten => ("accusation", 14, &["invariant 5"]),
        Rule::NeverTakenBack => ("accusation", 2, &["the job hangs"]),
        // The record.
        Rule::OthersAccused => ("mixed", 1, &["invariant 5", "invariant 7"]),
        Rule::NothingCollected => ("between", 11, &["in time"]),
        Rule::WaitBegunAnew => ("lossy", 0, &["the job hangs"]),
        Rule::BothOfTwo => ("pair", 1, &["more than one node"]),
        Rule::HandedOnce => ("below", 0, &["cannot be placed"]),
        Rule::NeverWrittenItself => ("last-one", 2, &["the job hangs"]),
        Rule::SilentStay => ("given-up", 1, &["invariant 3"]),
        Rule::LoserForgets => ("slots", 0, &["the job hangs"]),
        Rule::FailureAgain => ("crash", 0, &["times in a row"]),
        Rule::LeasesForgotten => ("dead-joiner", 0, &["invariant 3"]),
        Rule::LeasesOfAll => ("lapsed", 0, &["in time"]),
        Rule::UnfitForGood => ("lapses", 0, &["cannot be placed"]),
        Rule::EndUnrecorded => ("cancel", 0, &["every end is a record"]),
        Rule::EndWaitsForEver => ("unwritten", 0, &["invariant 6"]),
        Rule::WatchBelieved => ("watches", 1, &["invariant 2"]),
        Rule::StoreAloneAsked => ("successor", 8, &["invariant 7"]),
        // The tree.
        Rule::OldWordsCount => ("crash", 0, &["invariant 2", "invariant 4"]),
        Rule::SaidOnce => ("crash", 73, &["the job hangs"]),
        Rule::NoDetour => ("link", 2, &["the job hangs"]),
        Rule::ReleasedEarly => ("stalls", 73, &["invariant 2"]),
        Rule::ReleasedUnleased => ("slow-net", 3, &["without a lease"]),
        // Resting.
        Rule::RestsOn => ("crash", 2, &["has something to do"]),
        // Blame.
        Rule::NothingHeld => ("aborts", 1, &["because a peer had died"]),
        Rule::HeldByClock => ("aborts", 10, &["because a peer had died"]),
        Rule::ExitNotAwaited => ("reaps", 0, &["because a peer had died"]),
        Rule::RoundNotAwaited => ("rounds", 13, &["because a peer had died"]),
        Rule::OwnNodeUnlooked => ("crash", 44, &["because a peer had died"]),
        Rule::CollateralBlamed => ("crash", 4, &["is blamed"]),
        Rule::NeverGivesUp => ("crash-loop", 0, &["in circles", "nowhere"]),
        Rule::ComputingIsProgress => ("crash-loop", 0, &["in circles", "nowhere"]),
        Rule::CountedPerRank => ("turns", 0, &["in circles", "nowhere"]),
        Rule::NothingIsProgress => ("progress", 0, &["times in a row"]),
        Rule::CancelledRecovers => ("told", 0, &["told to end"]),
        Rule::NoGrace => ("told", 0, &["before its grace is over"]),
        // Checkpoints.
        Rule::ChosenAlone => ("crash", 0, &["invariant 4"]),
        Rule::IncompleteChosen => ("nodes", 10, &["invariant 4"]),
        Rule::CompleteHere => ("crash", 0, &["invariant 4"]),
        Rule::LevelsMixed => ("levels", 0, &["invariant 4"]),
        Rule::KeptEarly => ("sources", 0, &["invariant 4"]),
        Rule::NeverOffered => ("sources", 0, &["has not offered it"]),
        Rule::NotFetchedIgnored => ("sources", 0, &["the job hangs"]),
        Rule::DueAlone => ("due", 1, &["one answer for all"]),
        Rule::Nothing => ("mixed", 0, &[]),
    }
}
