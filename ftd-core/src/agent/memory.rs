//! What an agent remembers of epochs that are over.

use crate::failure::Cause;
use crate::ids::Process;
use crate::inventory::Choice;
use std::collections::{BTreeMap, BTreeSet};

/// What outlives an epoch.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory {
    /// True causes of deaths that were noted without.
    pub causes: BTreeMap<Process, Cause>,
    /// Nothing more will be said of how these ended.
    pub exited: BTreeSet<Process>,
    /// What the last epoch restored of which that is known, this one or an earlier one.
    pub restored: Option<Choice>,
    /// A process has been seen in `MPI_Init`: the program is none that does without.
    pub speaks_mpi: bool,
    /// … by somebody, on this node or another one.
    pub others_speak_mpi: bool,
}

impl Memory {
    /// Forgets the processes that nobody remembers.
    pub fn keep(&mut self, remembered: impl Fn(&Process) -> bool) {
        self.causes.retain(|process, _| remembered(process));
        self.exited.retain(remembered);
    }
}
