//! A failure that a job's user asks for: `rank=2,after=10s,at=client.copied`.

use crate::Rank;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The longest time that is taken.
const LONGEST: Duration = Duration::from_secs(86_400);

/// One that has been asked for, and waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// What; [`Injection::after_ms`] from now on.
    pub injection: Injection,
    /// Who has asked for it.
    pub by: String,
}

impl Pending {
    /// The same, so much later.
    #[must_use]
    pub fn later(mut self, by: Duration) -> Pending {
        let by = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        self.injection.after_ms = self.injection.after_ms.saturating_sub(by);
        self
    }
}

/// A place in a rank or in its agent at which the rank may be made to die.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// The rank, in `ft_checkpoint`: half of the version is copied.
    Copying,
    /// The rank, in `ft_checkpoint`: all of it is copied and it is not committed.
    Copied,
    /// The rank, in `ft_checkpoint`: it is committed.
    Committed,
    /// The rank, in `ft_restore`: half of the version is copied back.
    Restoring,
    /// The rank asks for its state.
    AsksForState,
    /// The rank has called `ft_finalize`.
    Finalizes,
    /// Ranks wait for each other in `MPI_Init`.
    Fence,
    /// A failure is known and not agreed.
    Noticed,
    /// All processes of a new world run.
    Released,
}

impl Place {
    /// All of them: the name, and what it is.
    pub const ALL: [(Place, &'static str, &'static str); 9] = [
        (Place::Copying, "client.copying", "in ft_checkpoint, half of the version is copied"),
        (Place::Copied, "client.copied", "in ft_checkpoint, the version is copied and not committed"),
        (Place::Committed, "client.committed", "in ft_checkpoint, the version is committed"),
        (Place::Restoring, "client.restoring", "in ft_restore, half of the version is copied back"),
        (Place::AsksForState, "agent.restore", "the rank has asked for its state"),
        (Place::Finalizes, "agent.finalized", "the rank has called ft_finalize"),
        (Place::Fence, "agent.fence", "ranks wait for each other in MPI_Init"),
        (Place::Noticed, "agent.noticed", "another failure is known and not agreed"),
        (Place::Released, "agent.released", "all processes of a new world run"),
    ];

    /// What people call it.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(place, ..)| *place == self).map_or("", |(_, name, _)| name)
    }

    /// The place of this name.
    pub fn named(name: &str) -> Option<Place> {
        Self::ALL.iter().find(|(_, other, _)| *other == name).map(|(place, ..)| *place)
    }

    /// Whether the rank itself sees that it is there.
    pub fn is_in_rank(self) -> bool {
        matches!(self, Place::Copying | Place::Copied | Place::Committed | Place::Restoring)
    }

    /// Whether the place is one rank's own.
    pub fn is_of_one_rank(self) -> bool {
        self.is_in_rank() || matches!(self, Place::AsksForState | Place::Finalizes)
    }
}

/// A failure that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Injection {
    /// Who is to die, by SIGKILL.
    pub rank: Rank,
    /// Not before so many milliseconds have passed.
    pub after_ms: u64,
    /// When this is reached next, then; at once without.
    pub at: Option<Place>,
}

/// Why a text is no injection; one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InjectionError {
    /// A word that means nothing.
    #[error("'{0}' is not rank=N, after=TIME or at=PLACE")]
    Word(String),
    /// The same twice.
    #[error("{0}= is given twice")]
    Twice(&'static str),
    /// Whose death?
    #[error("which rank? Say so with rank=N")]
    NoRank,
    /// No number.
    #[error("rank='{0}' is not the number of a rank")]
    Rank(String),
    /// No time.
    #[error("after='{0}' is not a time of up to a day, for example 10, 500ms or 2m")]
    Time(String),
    /// No place.
    #[error("at='{0}' is no place; there are {places}", places = Place::ALL.map(|(_, name, _)| name).join(", "))]
    Place(String),
}

impl Injection {
    /// When that is to be, from now on, for people.
    pub fn when(&self) -> String {
        let seconds = self.after_ms as f64 / 1000.0;
        match (self.after_ms, self.at) {
            (0, None) => "now".to_string(),
            (_, None) => format!("in {seconds} s"),
            (0, Some(place)) => format!("when it comes to {} next", place.name()),
            (_, Some(place)) => format!("when it comes to {} in {seconds} s or later", place.name()),
        }
    }

    /// Reads one, as people write it.
    ///
    /// # Errors
    /// [`InjectionError`].
    pub fn parse(text: &str) -> Result<Injection, InjectionError> {
        let (mut rank, mut after, mut at) = (None, None, None);
        for word in text.split(',') {
            let (name, value) = word.split_once('=').ok_or_else(|| InjectionError::Word(word.into()))?;
            let again = match name {
                "rank" => rank.replace(value.parse().map_err(|_| InjectionError::Rank(value.into()))?).map(|_| "rank"),
                "after" => {
                    after.replace(time(value).ok_or_else(|| InjectionError::Time(value.into()))?).map(|_| "after")
                }
                "at" => {
                    at.replace(Place::named(value).ok_or_else(|| InjectionError::Place(value.into()))?).map(|_| "at")
                }
                _ => return Err(InjectionError::Word(word.into())),
            };
            if let Some(name) = again {
                return Err(InjectionError::Twice(name));
            }
        }
        let after_ms = after.map_or(0, |after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
        Ok(Injection { rank: rank.ok_or(InjectionError::NoRank)?, after_ms, at })
    }
}

impl fmt::Display for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank={}", self.rank)?;
        if self.after_ms > 0 {
            write!(f, ",after={}ms", self.after_ms)?;
        }
        self.at.map_or(Ok(()), |place| write!(f, ",at={}", place.name()))
    }
}

/// A time of up to a day, as people write it: seconds, or with a unit.
pub fn time(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let ms = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    let time = Duration::from_millis(number.parse::<u64>().ok()?.checked_mul(ms)?);
    (time <= LONGEST).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_injection_is_read_as_it_is_written() {
        for (text, rank, after_ms, at) in [
            ("rank=2", 2, 0, None),
            ("rank=0,after=10s", 0, 10_000, None),
            ("at=client.copied,rank=7,after=250ms", 7, 250, Some(Place::Copied)),
        ] {
            let injection = Injection { rank, after_ms, at };
            assert_eq!(Injection::parse(text), Ok(injection));
            assert_eq!(Injection::parse(&injection.to_string()), Ok(injection));
        }
        for (place, name, _) in Place::ALL {
            assert_eq!((place.name(), Place::named(name)), (name, Some(place)));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, word) in [
            ("", "'' is not rank=N"),
            ("after=1s", "which rank"),
            ("rank=x", "rank='x'"),
            ("rank=-1", "rank='-1'"),
            ("rank=1,rank=2", "rank= is given twice"),
            ("rank=1,after=soon", "'soon'"),
            ("rank=1,after=25h", "'25h'"),
            ("rank=1,at=nowhere", "at='nowhere' is no place; there are client.copying, client.copied"),
            ("rank=1,node=2", "'node=2' is not"),
        ] {
            let said = Injection::parse(text).unwrap_err().to_string();
            assert!(said.contains(word), "{text}: {said}");
        }
    }
}
