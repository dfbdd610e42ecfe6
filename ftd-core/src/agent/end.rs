//! The job's end, as far as this node has to do with it.

use crate::ids::{Micros, Process};
use crate::record::Outcome;

/// The end of the job as this agent wants it recorded.
#[derive(Debug, Clone)]
pub(super) struct Verdict {
    pub outcome: Outcome,
    /// Stands even when somebody else's record comes first, and ends the ranks before it is written.
    pub cancelled: bool,
}

/// Why ranks that were told to end have no more time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limit {
    /// So the user wants it.
    Grace,
    /// Others have answered the signal long ago.
    Signal,
    /// One has aborted.
    Abort,
}

/// The ranks were told to end.
#[derive(Debug, Clone)]
pub(super) struct Leaving {
    pub signal: i32,
    /// Who is there then is killed.
    pub until: Micros,
    /// The first status that is not 0 with which a rank of this node ended by itself.
    pub status: i32,
    /// A rank of this node was killed, by this signal or otherwise.
    pub killed: bool,
    /// That is so because a rank has answered a signal by its end.
    pub answered: bool,
    /// Why they have no more time.
    pub limit: Limit,
}

/// How the job is to end.
#[derive(Debug, Clone, Default)]
pub(super) struct End {
    pub verdict: Option<Verdict>,
    /// Since when it waits for the store.
    pub waits: Option<Micros>,
    /// It has waited for too long: this agent ends with it all the same.
    pub unrecorded: Option<Outcome>,
    /// That is so because a process cannot be started, or could not be a rank.
    pub refused: bool,
    /// The job was told to end, and the ranks have been told.
    pub leaving: Option<Leaving>,
    /// A process that says its last words before the world is killed, and until when.
    pub last_words: Option<(Process, Micros)>,
}

impl End {
    /// Somebody else's record came first: only the user's word stands.
    pub fn superseded(&mut self) {
        self.verdict.take_if(|verdict| !verdict.cancelled);
        (self.waits, self.unrecorded) = (None, None);
    }

    /// Nothing more is to be agreed: this node's end of the job is, or the ranks have been told to end.
    pub fn is_near(&self) -> bool {
        self.verdict.is_some() || self.leaving.is_some()
    }

    /// The process has said its last words, if it was to.
    pub fn has_spoken(&mut self, process: Process) {
        self.last_words.take_if(|(speaker, _)| *speaker == process);
    }

    /// Whether last words are still being said.
    pub fn is_spoken(&mut self, now: Micros) -> bool {
        self.last_words.take_if(|(_, until)| now >= *until);
        self.last_words.is_some()
    }
}
