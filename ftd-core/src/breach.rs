//! Rules of the protocol that a simulated run can be told to break: what shows that the simulation would notice. Nothing but
//! tests ever sets another value than [`Breach::Nothing`].

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The rule that is broken.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub enum Breach {
            /// None.
            #[default]
            Nothing,
            $($(#[$doc])* $name,)*
        }

        impl Breach {
            /// Every rule.
            pub const ALL: &[Breach] = &[$(Breach::$name),*];
        }
    };
}

rules! {
    // ---- the lease
    /// The lease runs for one and a half time-outs.
    LongLease,
    /// It counts from the moment at which an acknowledgement came, not from that at which the heartbeat was sent.
    LeaseFromReceipt,
    /// It is enough that one of the observers acknowledges.
    LeaseOfOne,
    /// It runs from the adoption of an epoch on, acknowledged or not.
    LeaseAtOnce,
    /// The agent does not stop its ranks: their shepherds will.
    AgentPauses,
    /// A node whose lease runs again stands still until it has read the record.
    ContinuedByStore,
    /// A node that is left out continues its ranks before it kills them.
    LeftOutContinued,
    /// It does not kill them.
    LeftOutStays,
    /// Nor does one that has neither a lease nor the record.
    BlindStays,
    // ---- terms
    /// Each agent goes by the T of its own configuration, whatever the record says.
    OwnTerms,
    /// By its own P.
    OwnPatience,
    /// By its own k.
    OwnObservers,
    /// Who may be on the smaller side of a cut writes as soon as everybody, and ends the job for want of slots at once.
    NobodyYields,
    // ---- what counts: acknowledgements
    /// An acknowledgement counts at once, also from one that stands still.
    StillCounts,
    /// It counts with whatever read of the record, also one that was begun before the heartbeat was sent.
    OldReadCounts,
    /// It counts with what a watch says.
    WatchCounts,
    // ---- what counts: heartbeats
    /// A heartbeat that says "I do not hear you" is acknowledged and counts as heard.
    UnheardCounts,
    /// It is not answered.
    UnheardUnanswered,
    /// A heartbeat of an older epoch is acknowledged and counts as heard.
    OlderEpochCounts,
    /// Neither that nor a question for the record is answered with it.
    BehindUntold,
    // ---- what counts: time-outs
    /// An observer proposes a node's death after half of T.
    SilentSooner,
    /// Who is alone for a moment waits anew for a node that takes the place of one that is silent again.
    WaitBegunAnew,
    /// Of several silent nodes it proposes one after the other.
    SilentApart,
    /// Whoever is newly observed may be accused at once.
    NewlyObservedAtOnce,
    /// An epoch gives all whom an agent observed before a new T.
    NewTEachEpoch,
    /// Who came into the job with this epoch accuses nodes that it has never heard.
    JoinerAccuses,
    /// Never, however long it has not heard them.
    JoinerNever,
    /// Who adopts an epoch keeps its record to itself.
    RecordKept,
    /// Who did not run blames others for what it did not hear.
    SleeperAccuses,
    // ---- what counts: alone
    /// Who is alone accuses without patience.
    AloneAccuses,
    /// Who comes into the job is alone in it at once when nobody has acknowledged it outside.
    AloneBefore,
    /// After the adoption of an epoch nobody is alone for a while.
    AloneAnew,
    /// Patience begins anew with each epoch.
    PatienceAnew,
    /// Two have patience, too.
    TwoWait,
    /// Who was cut off gives nobody a new time-out.
    NothingAnew,
    /// Who was cut off for less than makes it alone gives nobody a new time-out.
    AnewWhenAlone,
    // ---- what counts: accusations
    /// An accusation counts on a newer revision than its own.
    AccusationLives,
    /// The accused are acknowledged.
    AccusedAcknowledged,
    /// They are, once their accusation is another one's to write.
    HandedForgotten,
    /// They are, when their accuser writes it itself.
    WrittenForgotten,
    /// The successor of an agent that may have accused somebody acknowledges at once.
    SuccessorAcknowledges,
    /// Until the revision moves for this agent, whatever its predecessor knew.
    SuccessorBelievesWatch,
    /// An accusation is never taken back.
    NeverTakenBack,
    // ---- the record
    /// A node accuses those who observe it, too.
    OthersAccused,
    /// Everybody writes its accusations itself.
    NothingCollected,
    /// Of two that accuse each other both are given up.
    BothOfTwo,
    /// An accusation is handed over once.
    HandedOnce,
    /// Nobody writes an accusation that it has handed over.
    NeverWrittenItself,
    /// Nobody writes one: ranks stay where they are, whoever has given up their node.
    SilentStay,
    /// Who was not the first to write forgets what it wanted to.
    LoserForgets,
    /// It wants it although it is agreed.
    FailureAgain,
    /// Ranks are placed on nodes whatever becomes of their leases.
    LeasesForgotten,
    /// No record is written as long as the lease of a node with ranks is not held, whoever hears it.
    LeasesOfAll,
    /// A node whose lease was not held once is not tried again in the epoch.
    UnfitForGood,
    /// An agent that wants the job to end ends.
    EndUnrecorded,
    /// An end waits for the store as long as it takes.
    EndWaitsForEver,
    /// A watch of a new agent may be ahead of what its predecessor knew.
    WatchBelieved,
    /// A new agent asks the store alone for the record.
    StoreAloneAsked,
    // ---- the tree
    /// What was said in the epoch before counts.
    OldWordsCount,
    /// A word is said once.
    SaidOnce,
    /// It goes straight or not at all.
    NoDetour,
    /// A world is released before everybody is empty.
    ReleasedEarly,
    /// On nodes that have no lease.
    ReleasedUnleased,
    // ---- resting
    /// Who rests does so for good: until something else happens than heartbeats.
    RestsOn,
    // ---- blame
    /// An end by a process's own will ends the job at once.
    NothingHeld,
    /// After a while.
    HeldByClock,
    /// The exit of a process that is dying is awaited for a while, and no longer.
    ExitNotAwaited,
    /// With the survey that is under way.
    RoundNotAwaited,
    /// A node answers a survey before it has looked at its processes.
    OwnNodeUnlooked,
    /// Ends by a process's own will because of another's death are failures like that.
    CollateralBlamed,
    /// A job that never gets on goes on for ever.
    NeverGivesUp,
    /// Computing is progress after whatever death.
    ComputingIsProgress,
    /// Nothing is.
    NothingIsProgress,
    /// The death of another rank than the last one's begins the count anew.
    CountedPerRank,
    /// Ranks that die because the job is told to end are recovered from.
    CancelledRecovers,
    /// They are killed at once.
    NoGrace,
    // ---- checkpoints
    /// Each node chooses what it restores by what it holds.
    ChosenAlone,
    /// A version is chosen that the first rank has.
    IncompleteChosen,
    /// What is complete on this node is complete.
    CompleteHere,
    /// What is complete on the ranks' own nodes counts as if their partners had it.
    LevelsMixed,
    /// What is older than what is restored is given up before everybody has that.
    KeptEarly,
    /// A copy is fetched from whatever node, offered or not.
    NeverOffered,
    /// A copy that cannot be had is waited for.
    NotFetchedIgnored,
    /// Each agent decides whether a checkpoint is due.
    DueAlone,
}
