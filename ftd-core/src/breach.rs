//! Rules of the protocol that a simulated run can be told to break: what shows that the simulation would notice. Nothing but
//! tests ever sets another value than [`Breach::Nothing`].

/// The rule that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Breach {
    /// None.
    #[default]
    Nothing,
    /// Each agent goes by its own configuration, whatever the record says.
    OwnTerms,
    /// A record comes from the store alone.
    RecordKept,
    /// An acknowledgement counts at once, also from one that stands still.
    StillCounts,
    /// It counts with whatever read of the record, also one that was begun before the heartbeat was sent.
    OldReadCounts,
    /// A heartbeat that says "I do not hear you" is acknowledged and counts as heard.
    UnheardCounts,
    /// A heartbeat of an older epoch is acknowledged and counts as heard.
    OlderEpochCounts,
    /// The lease runs for one and a half time-outs.
    LongLease,
    /// Whoever is newly observed may be accused at once.
    NewlyObservedAtOnce,
    /// Who is alone accuses without patience.
    AloneAccuses,
    /// Who was alone gives nobody a new time-out.
    NothingAnew,
    /// Who did not run blames others for what it did not hear.
    SleeperAccuses,
    /// Who came into the job with this epoch accuses nodes that it has never heard.
    JoinerAccuses,
    /// An accusation counts on a newer revision than its own.
    AccusationLives,
    /// The accused are acknowledged.
    AccusedAcknowledged,
    /// An accusation is never taken back.
    NeverTakenBack,
    /// The successor of an agent that may have accused somebody acknowledges at once.
    SuccessorAcknowledges,
    /// A world is released before everybody is empty.
    ReleasedEarly,
    /// An end by a process's own will ends the job at once.
    NothingHeld,
    /// What is complete on the ranks' own nodes counts as if their partners had it.
    LevelsMixed,
    /// What is older than what is restored is given up before everybody has that.
    KeptEarly,
    /// Ranks are placed on nodes whatever becomes of their leases.
    LeasesForgotten,
    /// A copy is fetched from whatever node, offered or not.
    NeverOffered,
    /// A copy that cannot be had is waited for.
    NotFetchedIgnored,
}

impl Breach {
    /// Every rule.
    pub const ALL: [Breach; 23] = [
        Breach::OwnTerms,
        Breach::RecordKept,
        Breach::StillCounts,
        Breach::OldReadCounts,
        Breach::UnheardCounts,
        Breach::OlderEpochCounts,
        Breach::LongLease,
        Breach::NewlyObservedAtOnce,
        Breach::AloneAccuses,
        Breach::NothingAnew,
        Breach::SleeperAccuses,
        Breach::JoinerAccuses,
        Breach::AccusationLives,
        Breach::AccusedAcknowledged,
        Breach::NeverTakenBack,
        Breach::SuccessorAcknowledges,
        Breach::ReleasedEarly,
        Breach::NothingHeld,
        Breach::LevelsMixed,
        Breach::KeptEarly,
        Breach::LeasesForgotten,
        Breach::NeverOffered,
        Breach::NotFetchedIgnored,
    ];
}
