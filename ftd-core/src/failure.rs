//! What died, where, and why.

use crate::ids::{NodeId, Process, SlotId};
use std::fmt;

/// What a failure took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// One process.
    Process(Process),
    /// One slot, and the process on it.
    Slot(SlotId),
    /// All processes of one node. Whether the node itself is gone as well, its slots with it, says the cause
    /// ([`Cause::takes_node`]).
    Node(NodeId),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Process(process) => write!(f, "{}", process.rank),
            Subject::Slot(slot) => slot.fmt(f),
            Subject::Node(node) => node.fmt(f),
        }
    }
}

/// How a process ended by its own will.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OwnEnd {
    /// `MPI_Abort` with this code.
    Abort(i32),
    /// Exit with this code, not 0.
    ExitCode(i32),
    /// Exit with code 0 of a program that had called `MPI_Init`, without `MPI_Finalize`.
    NoFinalize,
}

impl OwnEnd {
    /// The job's exit status when this ends it.
    pub fn status(self) -> i32 {
        match self {
            // An abort is no success, whatever its code says; and of that a shell sees eight bits.
            OwnEnd::Abort(code) | OwnEnd::ExitCode(code) => match code & 0xff {
                0 => 1,
                status => status,
            },
            OwnEnd::NoFinalize => 1,
        }
    }
}

impl fmt::Display for OwnEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OwnEnd::Abort(code) => write!(f, "called MPI_Abort with code {code}"),
            OwnEnd::ExitCode(code) => write!(f, "exited with code {code}"),
            OwnEnd::NoFinalize => f.write_str("exited without MPI_Finalize"),
        }
    }
}

/// SIGKILL's number, on every architecture that Linux knows.
const KILL: i32 = 9;

/// SIGXFSZ's number, likewise but on MIPS.
const FILE_SIZE: i32 = 25;

/// Why something died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// A signal that the job did not send itself.
    Signal(i32),
    /// The kernel's out-of-memory killer.
    OutOfMemory,
    /// The kernel, because the process had used up the CPU time that its limits allow.
    CpuLimit,
    /// Seen dying; the cause is not known yet (it comes later and completes the report).
    Unknown,
    /// The slot's shepherd is gone.
    SlotLost,
    /// The node's agent died; its ranks were killed by their shepherds.
    AgentLost,
    /// The process that serves the node's ranks their PMIx died.
    WorldServerLost,
    /// The node was silent for the heartbeat time-out.
    NodeSilent,
    /// The node had stopped and killed its ranks itself, because it was cut off.
    Fenced,
    /// The program's own end, which the user asked to recover from (`--ft-on-abort=recover`).
    Own(OwnEnd),
}

impl Cause {
    /// Whether the node is out of the job with this, its slots and arenas with it.
    pub fn takes_node(self) -> bool {
        matches!(self, Cause::NodeSilent)
    }

    /// Whether this came from outside: no program brings a SIGKILL, a lost slot or a lost node upon itself. Everything
    /// else is the program's own death, also one whose cause stays unknown.
    pub fn is_from_outside(self) -> bool {
        matches!(self, Cause::Signal(KILL) | Cause::SlotLost | Cause::AgentLost | Cause::NodeSilent | Cause::Fenced)
    }
}

/// The first and the last real-time signal that programs can use, as the C library on Linux counts them.
const REAL_TIME: (i32, i32) = (34, 64);

/// Name of a signal, as `kill -l` writes it; real-time signals by their distance from the first one.
pub fn signal_name(signal: i32) -> String {
    const NAMES: [&str; 32] = [
        "",
        "SIGHUP",
        "SIGINT",
        "SIGQUIT",
        "SIGILL",
        "SIGTRAP",
        "SIGABRT",
        "SIGBUS",
        "SIGFPE",
        "SIGKILL",
        "SIGUSR1",
        "SIGSEGV",
        "SIGUSR2",
        "SIGPIPE",
        "SIGALRM",
        "SIGTERM",
        "SIGSTKFLT",
        "SIGCHLD",
        "SIGCONT",
        "SIGSTOP",
        "SIGTSTP",
        "SIGTTIN",
        "SIGTTOU",
        "SIGURG",
        "SIGXCPU",
        "SIGXFSZ",
        "SIGVTALRM",
        "SIGPROF",
        "SIGWINCH",
        "SIGIO",
        "SIGPWR",
        "SIGSYS",
    ];
    match usize::try_from(signal).ok().and_then(|n| NAMES.get(n)) {
        Some(name) if !name.is_empty() => (*name).to_string(),
        _ if signal == REAL_TIME.0 => "SIGRTMIN".to_string(),
        _ if signal == REAL_TIME.1 => "SIGRTMAX".to_string(),
        _ if (REAL_TIME.0..REAL_TIME.1).contains(&signal) => format!("SIGRTMIN+{}", signal - REAL_TIME.0),
        _ => format!("signal {signal}"),
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Signal(FILE_SIZE) => {
                f.write_str("was killed by SIGXFSZ: its file-size limit (ulimit -f) was reached")
            }
            Cause::Signal(signal) => write!(f, "was killed by {}", signal_name(*signal)),
            Cause::OutOfMemory => f.write_str("was killed by the kernel's out-of-memory killer"),
            Cause::CpuLimit => f.write_str("was killed because its limit of CPU time was used up"),
            Cause::Unknown => f.write_str("died; of what is not known"),
            Cause::SlotLost => f.write_str("was lost (its shepherd died)"),
            Cause::AgentLost => f.write_str("lost its agent"),
            Cause::WorldServerLost => f.write_str("lost its PMIx server (ft-pmix)"),
            Cause::NodeSilent => f.write_str("was silent for the heartbeat time-out"),
            Cause::Fenced => f.write_str("had been cut off and killed its ranks"),
            Cause::Own(end) => end.fmt(f),
        }
    }
}

/// One thing that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Failure {
    /// What.
    pub subject: Subject,
    /// Why.
    pub cause: Cause,
    /// The node it was on.
    pub node: NodeId,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.subject {
            Subject::Node(node) => write!(f, "{node} {}", self.cause),
            subject => write!(f, "{subject} on {} {}", self.node, self.cause),
        }
    }
}

/// An end that was caused by somebody else's death and is not blamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Collateral {
    /// The process.
    pub process: Process,
    /// What it did.
    pub end: OwnEnd,
}

/// What ended an epoch: the processes, slots and nodes agreed dead, with their causes. Sorted, without doubles, so that
/// equal knowledge is an equal set whatever order it came in.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct FailureSet {
    failures: Vec<Failure>,
    collateral: Vec<Collateral>,
}

impl FailureSet {
    /// Nothing failed.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a failure. What is known of the same subject already keeps its place; a cause replaces only
    /// [`Cause::Unknown`].
    pub fn insert(&mut self, failure: Failure) {
        match self.failures.binary_search_by_key(&failure.subject, |known| known.subject) {
            Ok(at) if self.failures[at].cause == Cause::Unknown => self.failures[at].cause = failure.cause,
            Ok(_) => {}
            Err(at) => self.failures.insert(at, failure),
        }
        if let Subject::Process(process) = failure.subject {
            self.collateral.retain(|collateral| collateral.process != process);
        }
    }

    /// Adds an end that is not blamed, unless its process is in the set as failed.
    pub fn insert_collateral(&mut self, collateral: Collateral) {
        if self.of_process(collateral.process).is_some() {
            return;
        }
        if let Err(at) = self.collateral.binary_search_by_key(&collateral.process, |known| known.process) {
            self.collateral.insert(at, collateral);
        }
    }

    /// Adds everything of `other`.
    pub fn merge(&mut self, other: &FailureSet) {
        other.failures.iter().for_each(|failure| self.insert(*failure));
        other.collateral.iter().for_each(|collateral| self.insert_collateral(*collateral));
    }

    /// The failures, sorted by subject.
    pub fn failures(&self) -> &[Failure] {
        &self.failures
    }

    /// The ends that are not blamed, sorted by process.
    pub fn collateral(&self) -> &[Collateral] {
        &self.collateral
    }

    /// The failure of exactly this process.
    pub fn of_process(&self, process: Process) -> Option<&Failure> {
        self.failures.iter().find(|failure| failure.subject == Subject::Process(process))
    }

    /// Whether nothing failed. Collateral alone is nothing.
    pub fn is_empty(&self) -> bool {
        self.failures.is_empty()
    }

    /// Keeps only the failures that `keep` wants.
    pub fn retain(&mut self, keep: impl FnMut(&Failure) -> bool) {
        self.failures.retain(keep);
    }
}

impl fmt::Display for FailureSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, failure) in self.failures.iter().enumerate() {
            write!(f, "{}{failure}", if i == 0 { "" } else { ", " })?;
        }
        for collateral in &self.collateral {
            write!(f, "; {} {} because of it", collateral.process.rank, collateral.end)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_the_names_that_people_know() {
        let names = [9, 31, 32, 34, 37, 64, 65, 0].map(signal_name);
        let expected =
            ["SIGKILL", "SIGSYS", "signal 32", "SIGRTMIN", "SIGRTMIN+3", "SIGRTMAX", "signal 65", "signal 0"];
        assert_eq!(names, expected);
    }
}
