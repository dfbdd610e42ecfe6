//! What failures have cost a job so far: its agent says it to the launcher, which keeps it for the agent that comes after that one.
//! Times are ages, for each process has a clock of its own.

use crate::{Epoch, Rank, Version, World};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What is added up, and what is said once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sums {
    /// The newest epoch whose world was released.
    pub epoch: Epoch,
    /// The newest epoch of which it is known how it began: its recovery is over.
    pub over: Epoch,
    /// So many failures the job has survived.
    pub survived: u64,
    /// So many of them came before this node was in the job.
    pub unseen: u64,
    /// After so many recoveries it was not known, or only at most, what is computed again.
    pub unknown: u64,
    /// What is computed again, as far as that is known.
    pub computing: Duration,
    /// From the notice of a failure to the last step of its recovery.
    pub recovering: Duration,
    /// What was computed before the newest world and is not computed again; nothing where that is not known.
    pub kept: Option<Duration>,
    /// A version was complete when one of them came.
    pub checkpointed: bool,
    /// It was looked whether anything protects the job.
    pub looked: bool,
    /// The job's summary was said.
    pub said: bool,
}

impl Default for Sums {
    fn default() -> Sums {
        Sums {
            epoch: 0,
            over: 0,
            survived: 0,
            unseen: 0,
            unknown: 0,
            computing: Duration::ZERO,
            recovering: Duration::ZERO,
            kept: Some(Duration::ZERO),
            checkpointed: false,
            looked: false,
            said: false,
        }
    }
}

impl Sums {
    /// For the job's end: how many failures it has survived, and what they cost; nothing when there were none, and where that is not `asked`
    /// for, when it has survived none.
    pub fn sentence(&self, asked: bool) -> Option<String> {
        let number = match self.survived {
            0 if self.over <= 1 || !asked => return None,
            0 => "no failure was".into(),
            1 => "1 failure was".into(),
            number => format!("{number} failures were"),
        };
        let (computing, recovering) = (self.computing.as_secs_f64(), self.recovering.as_secs_f64());
        let computing = match (self.unknown, self.computing.is_zero()) {
            (0, _) => format!("{computing:.1} s of computing and "),
            (_, true) => "an unknown time of computing and ".into(),
            (_, false) => format!("at least {computing:.1} s of computing and "),
        };
        let unseen = match self.unseen {
            0 => String::new(),
            unseen if unseen >= self.survived && self.survived > 0 => {
                return Some(format!("{number} survived; what was lost is not known here"));
            }
            unseen => format!("; what {unseen} of them cost is not known here"),
        };
        Some(format!("{number} survived; lost: {computing}{recovering:.1} s of recovering{unseen}"))
    }
}

/// What was known when a failure was noticed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noticed {
    /// So long ago.
    pub age: Duration,
    /// Processes of this node that have died.
    pub dead: Vec<(Rank, i32)>,
    /// The newest version that was complete, and since when.
    pub complete: Option<(Version, Option<Duration>)>,
    /// The newest version that a rank here had taken.
    pub taken: Option<Version>,
}

/// Recoveries in a row of which it is not known what they cost, for no rank had its state back. Times are as in [`Toll`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Late {
    /// The failure that the first one was of.
    pub noticed: Noticed,
    /// The last one was over so long ago.
    pub end: Duration,
    /// The ranks had computed since then when the first failure came.
    pub computed: Option<Duration>,
    /// What they had computed before.
    pub kept: Option<Duration>,
    /// So many they are.
    pub number: u64,
    /// What was computed between them.
    pub between: Duration,
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Toll {
    /// What is added up.
    pub sums: Sums,
    /// The ranks of the newest world have computed for so long.
    pub computed: Option<Duration>,
    /// The newest version that is complete, and how long that is known.
    pub complete: Option<(Version, Option<Duration>)>,
    /// A failure from which the job has not recovered.
    pub noticed: Option<Noticed>,
    /// What the recoveries before that cost, which is not known yet.
    pub late: Option<Late>,
    /// Processes of whose deaths people were told, and not of what they died.
    pub untold: Vec<(World, Rank)>,
    /// The newest epoch in which a newer version was complete than the one that it had restored.
    pub progress: Option<Epoch>,
}

impl Toll {
    /// The same, so much later.
    #[must_use]
    pub fn later(mut self, by: Duration) -> Toll {
        let complete = |version: Option<(Version, Option<Duration>)>| {
            version.map(|(version, age)| (version, age.map(|age| age + by)))
        };
        self.computed = self.computed.map(|age| age + by);
        self.complete = complete(self.complete);
        if let Some(late) = &mut self.late {
            late.end += by;
            late.computed = late.computed.map(|age| age + by);
        }
        for noticed in self.noticed.iter_mut().chain(self.late.iter_mut().map(|late| &mut late.noticed)) {
            noticed.age += by;
            noticed.complete = complete(noticed.complete);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_grow_and_sums_stay() {
        let seconds = Duration::from_secs;
        let toll = Toll {
            sums: Sums { recovering: seconds(1), ..Sums::default() },
            computed: Some(seconds(2)),
            complete: Some((7, Some(seconds(3)))),
            noticed: Some(Noticed { age: seconds(4), dead: vec![(1, 77)], complete: Some((7, None)), taken: Some(8) }),
            ..Toll::default()
        };
        let (end, computed, kept, between) = (seconds(5), Some(seconds(6)), Some(seconds(7)), seconds(8));
        let late = toll.noticed.clone().map(|noticed| Late { noticed, end, computed, kept, number: 1, between });
        let toll = Toll { late, ..toll };
        let later = toll.clone().later(seconds(10));
        let late = later.late.clone().map(|late| (late.noticed.age, late.end, late.computed, late.kept, late.between));
        assert_eq!(late, Some((seconds(14), seconds(15), Some(seconds(16)), kept, between)));
        assert_eq!((later.computed, later.complete), (Some(seconds(12)), Some((7, Some(seconds(13))))));
        assert_eq!((later.sums, later.noticed.clone().map(|noticed| noticed.age)), (toll.sums, Some(seconds(14))));
        assert_eq!(
            later.noticed.and_then(|noticed| noticed.complete),
            Some((7, None)),
            "not known before is not known later"
        );
    }

    #[test]
    fn the_sentence_says_no_more_than_is_known() {
        let sums = |survived, unseen, unknown, computing| Sums {
            survived,
            unseen,
            unknown,
            computing: Duration::from_secs(computing),
            recovering: Duration::from_secs(1),
            ..Sums::default()
        };
        let said = |sums: Sums| sums.sentence(false).unwrap_or_default();
        assert_eq!(said(sums(0, 0, 0, 5)), "");
        let not_survived = Sums { over: 2, ..sums(0, 0, 0, 5) };
        assert_eq!((not_survived.sentence(false), sums(0, 0, 0, 0).sentence(true)), (None, None));
        let none = "no failure was survived; lost: 5.0 s of computing and 1.0 s of recovering";
        assert_eq!(not_survived.sentence(true).as_deref(), Some(none));
        assert_eq!(said(sums(1, 0, 0, 0)), "1 failure was survived; lost: 0.0 s of computing and 1.0 s of recovering");
        assert_eq!(
            said(sums(1, 0, 1, 0)),
            "1 failure was survived; lost: an unknown time of computing and 1.0 s of recovering"
        );
        assert_eq!(
            said(sums(2, 0, 1, 3)),
            "2 failures were survived; lost: at least 3.0 s of computing and 1.0 s of recovering"
        );
        let unseen = "3 failures were survived; lost: 3.0 s of computing and 1.0 s of recovering; what 2 of them cost is not known here";
        assert_eq!(said(sums(3, 2, 0, 3)), unseen);
        assert_eq!(said(sums(2, 2, 0, 0)), "2 failures were survived; what was lost is not known here");
    }
}
