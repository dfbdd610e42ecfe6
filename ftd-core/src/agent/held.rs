//! Ends that are held, and the looks at this node's processes that settle them.

use crate::failure::OwnEnd;
use crate::ids::{Micros, Process};

/// An end that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hold {
    /// The process.
    pub process: Process,
    /// How it ended.
    pub end: OwnEnd,
    /// It is decided after this survey.
    survey: u64,
}

/// The ends that are held on this node, first come first, and its part in the epoch's surveys.
#[derive(Debug, Clone, Default)]
pub(super) struct Holds {
    held: Vec<Hold>,
    /// The survey of the epoch that is being made.
    asked: u64,
    /// The last one that was.
    answered: u64,
    /// Another look is to be taken.
    wanted: bool,
    /// So many are under way.
    under_way: u32,
    /// A hold or a survey began at this time; dying processes are waited for from then on.
    uncertain_since: Micros,
}

impl Holds {
    /// A process's end is held until after this survey.
    pub fn hold(&mut self, process: Process, end: OwnEnd, survey: u64, now: Micros) {
        self.uncertain_since = now;
        self.held.push(Hold { process, end, survey });
    }

    /// The one that was held last was first after all, and this survey is needed to settle any.
    pub fn last_was_first(&mut self, survey: u64) {
        self.held.rotate_right(1);
        self.held.iter_mut().for_each(|hold| hold.survey = survey);
    }

    /// Whether this process's end is held.
    pub fn holds(&self, process: Process) -> bool {
        self.held.iter().any(|hold| hold.process == process)
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// None is held any more: those that were.
    pub fn let_go(&mut self) -> Vec<Hold> {
        std::mem::take(&mut self.held)
    }

    /// The first that was held until after a survey that everybody has made; or the first of all.
    pub fn settle(&mut self, surveyed: u64, at_once: bool) -> Option<Hold> {
        let at = self.held.iter().position(|hold| at_once || hold.survey <= surveyed)?;
        Some(self.held.remove(at))
    }

    /// The survey that settles all.
    pub fn awaited(&self) -> u64 {
        self.held.iter().map(|hold| hold.survey).max().unwrap_or(0)
    }

    /// An epoch begins, whose surveys are counted anew. Those that are under way are answered all the same.
    pub fn begin(&mut self) -> Vec<Hold> {
        (self.asked, self.answered) = (0, 0);
        self.let_go()
    }

    /// Another look is to be taken.
    pub fn want_look(&mut self) {
        self.wanted = true;
    }

    /// Everybody is asked to make this survey.
    pub fn ask(&mut self, survey: u64, now: Micros) {
        if survey > self.asked {
            self.asked = survey;
            self.wanted = true;
            if self.held.is_empty() {
                self.uncertain_since = now;
            }
        }
    }

    /// Whether a look is to be taken now.
    pub fn looks(&mut self) -> bool {
        let looks = std::mem::take(&mut self.wanted);
        self.under_way += u32::from(looks);
        looks
    }

    /// A look was answered. Whether no later one is on its way, whose answer counts for what was noted after this one was asked
    /// for.
    pub fn looked(&mut self) -> bool {
        self.under_way = self.under_way.saturating_sub(1);
        self.under_way == 0 && !self.wanted
    }

    /// Whether this node has looked for the survey, and has not said so. `unlooked`: as if it had.
    pub fn is_to_answer(&self, unlooked: bool) -> bool {
        self.answered != self.asked && (self.under_way == 0 || unlooked)
    }

    /// It says so.
    pub fn answer(&mut self) {
        self.answered = self.asked;
    }

    /// The last survey to which this node has answered.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Since when processes that are dying are waited for.
    pub fn uncertain_since(&self) -> Micros {
        self.uncertain_since
    }

    /// Whether anything waits for what they are.
    pub fn waits(&self) -> bool {
        !self.held.is_empty() || self.answered < self.asked
    }
}
