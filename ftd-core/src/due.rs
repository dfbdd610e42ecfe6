//! When the next checkpoint pays: Young's first-order optimum of the interval, √(2·C·M) for checkpoint cost C and mean time
//! between failures M (J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 1974; Daly's
//! refinement differs only when C is not small against M, and then a checkpoint is due anyway).
//!
//! All ranks must get the same answer to their n-th question, whatever node they are on and however far apart they are, or they
//! would checkpoint at different steps and no version would ever be complete. So questions are numbered, and the root of the
//! epoch's tree answers them for all: it grants answers ahead, as many as are asked in a moment, of which the first alone may be
//! yes. A rank that is further than what is granted waits until its node has heard more.

use crate::ids::Micros;
use std::collections::VecDeque;

/// Mean time between failures that is assumed before any was seen: a day.
const PRIOR: Micros = Micros::from_secs(24 * 3600);

/// Answers are granted for about so long ahead. A checkpoint is so much late at the most, and nobody waits more often.
const AHEAD: Micros = Micros::from_millis(50);

/// So many checkpoints are remembered, for ranks that are behind. There is one to each, and no rank can be hundreds of checkpoints
/// behind another one that takes them too: only one that does not ask falls out of it.
const MOST: usize = 512;

/// What the ranks of a node, or of a subtree, have asked and found. Only gets more within an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Asked {
    /// Questions that the foremost rank has asked.
    pub questions: u64,
    /// Checkpoints that the foremost rank has taken.
    pub taken: u64,
    /// What the dearest one cost.
    pub cost: Micros,
}

impl Asked {
    /// Of both.
    #[must_use]
    pub fn and(self, other: Asked) -> Asked {
        Asked {
            questions: self.questions.max(other.questions),
            taken: self.taken.max(other.taken),
            cost: self.cost.max(other.cost),
        }
    }
}

/// The answers that are known. Only gets more within an epoch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Granted {
    /// Questions before this one are answered.
    pub until: u64,
    /// The newest of those that are answered with yes.
    yes: VecDeque<u64>,
}

impl Granted {
    /// Questions before `until` are answered, these of them with yes; `None` unless those grow and are as few as are remembered.
    pub fn of(until: u64, yes: Vec<u64>) -> Option<Granted> {
        let ordered = yes.windows(2).all(|pair| pair[0] < pair[1]) && yes.last().is_none_or(|last| *last < until);
        (ordered && yes.len() <= MOST).then(|| Granted { until, yes: yes.into() })
    }

    /// The newest questions that are answered with yes, in order.
    pub fn yes(&self) -> impl Iterator<Item = u64> + '_ {
        self.yes.iter().copied()
    }

    /// The answer to a question; nothing while it is not known.
    pub fn answer(&self, question: u64) -> Option<bool> {
        (question < self.until).then(|| self.yes.binary_search(&question).is_ok())
    }

    fn extend(&mut self, until: u64, yes: bool) {
        if yes {
            self.yes.push_back(self.until);
            if self.yes.len() > MOST {
                self.yes.pop_front();
            }
        }
        self.until = self.until.max(until);
    }
}

/// What the root goes by, besides what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    /// The time.
    pub now: Micros,
    /// How long the job has run, as far as the root knows.
    pub job: Micros,
    /// From so many failures it has recovered.
    pub failures: u64,
}

/// Decides for all: the root's own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Due {
    /// When answers were granted last, and how many questions were asked then.
    granted: Option<(Micros, u64)>,
    /// When the last checkpoint was taken, or said to be due, and how many were taken then.
    last: (Micros, u64),
}

impl Due {
    /// Grants more answers, if somebody waits for them or will in a moment. Returns whether it did.
    pub fn grant(&mut self, asked: Asked, granted: &mut Granted, clock: Clock) -> bool {
        if asked.taken > self.last.1 {
            self.last = (clock.now, asked.taken);
        }
        if asked.questions <= granted.until {
            return false;
        }
        let ahead = match self.granted.replace((clock.now, asked.questions)) {
            Some((at, before)) if clock.now > at && asked.cost > Micros(0) => {
                let span = clock.now.since(at).0;
                let ahead = u128::from(asked.questions - before) * u128::from(AHEAD.0) / u128::from(span);
                // A burst says little: twice as many as have just been asked.
                u64::try_from(ahead).unwrap_or(u64::MAX).min(2 * (asked.questions - before))
            }
            _ => 0,
        };
        let yes = self.is_due(asked, clock);
        if yes {
            self.last.0 = clock.now;
        }
        granted.extend(asked.questions + ahead, yes);
        true
    }

    fn is_due(&self, asked: Asked, clock: Clock) -> bool {
        let between = match clock.failures {
            0 => PRIOR,
            failures => Micros(clock.job.0 / failures).min(PRIOR),
        };
        let seconds = |span: Micros| span.0 as f64 / 1e6;
        let interval = (2.0 * seconds(asked.cost) * seconds(between)).sqrt();
        asked.cost == Micros(0) || seconds(clock.now.since(self.last.0)) >= interval
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(now: Micros) -> Clock {
        Clock { now, job: now, failures: 0 }
    }

    /// One rank that asks so often in each second, and checkpoints when it pays: the questions that were answered with yes.
    fn run(seconds: u64, per_second: u64, cost: Micros) -> (Granted, u64) {
        let (mut due, mut granted, mut asked) = (Due::default(), Granted::default(), Asked::default());
        let (mut yes, mut grants) = (0, 0);
        for question in 0..seconds * per_second {
            let now = Micros(question * 1_000_000 / per_second);
            asked.questions = question + 1;
            grants += u64::from(due.grant(asked, &mut granted, clock(now)));
            if granted.answer(question) == Some(true) {
                yes += 1;
                asked = Asked { taken: asked.taken + 1, cost, ..asked };
            }
        }
        assert!(grants <= seconds * 25 + 100, "{grants} grants");
        (granted, yes)
    }

    #[test]
    fn a_checkpoint_is_due_as_often_as_young_says() {
        for per_second in [1, 10, 1000] {
            // √(2·0.05 s·1 day) is 93 s.
            let (_, yes) = run(20_000, per_second.min(100), Micros::from_millis(50));
            assert!((210..=217).contains(&yes), "{yes} in 20 000 s with {per_second} questions a second");
        }
    }

    #[test]
    fn an_answer_is_never_taken_back_and_the_same_for_all() {
        let (mut due, mut granted) = (Due::default(), Granted::default());
        let mut told: Vec<(u64, bool)> = Vec::new();
        for round in 1..3000u64 {
            let asked = Asked { questions: round * 3, taken: round / 700, cost: Micros(500) };
            due.grant(asked, &mut granted, clock(Micros(round * 20_000)));
            told.extend((0..asked.questions).rev().take(6).filter_map(|q| Some((q, granted.answer(q)?))));
            let recent = told.iter().rev().take(200);
            assert!(recent.clone().all(|(question, answer)| granted.answer(*question) == Some(*answer)));
        }
        assert!(told.iter().any(|(_, yes)| *yes) && told.iter().any(|(_, yes)| !yes));
    }

    #[test]
    fn the_first_checkpoint_tells_the_cost_and_one_that_was_taken_anyway_counts() {
        let (mut due, mut granted) = (Due::default(), Granted::default());
        let mut ask = |asked, seconds| {
            due.grant(asked, &mut granted, clock(Micros::from_secs(seconds)));
            granted.answer(asked.questions - 1)
        };
        let cost = Micros::from_millis(50);
        assert_eq!(ask(Asked { questions: 1, ..Asked::default() }, 0), Some(true));
        assert_eq!(ask(Asked { questions: 2, taken: 1, cost }, 90), Some(false));
        assert_eq!(ask(Asked { questions: 3, taken: 2, cost }, 120), Some(false), "it was taken at 120 s");
        assert_eq!(ask(Asked { questions: 4, taken: 2, cost }, 200), Some(false));
        assert_eq!(ask(Asked { questions: 5, taken: 2, cost }, 214), Some(true));
    }

    #[test]
    fn failures_shorten_the_interval() {
        let ask = |failures| {
            let (mut due, mut granted) = (Due { last: (Micros(0), 1), ..Due::default() }, Granted::default());
            let asked = Asked { questions: 1, taken: 1, cost: Micros::from_millis(50) };
            due.grant(asked, &mut granted, Clock { now: Micros::from_secs(10), job: Micros::from_secs(600), failures });
            granted.answer(0)
        };
        assert_eq!(ask(0), Some(false), "√(2·0.05 s·1 day) is 93 s");
        assert_eq!(ask(60), Some(true), "√(2·0.05 s·10 s) is 1 s");
    }
}
