//! What died, where, and why.

use crate::ids::{NodeId, Process, SlotId};
use crate::inventory::Stamp;
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
    /// The script above it was killed by this signal, once the program had ended well.
    Script(i32),
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
            OwnEnd::Script(signal) => 128 + signal,
        }
    }
}

impl fmt::Display for OwnEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OwnEnd::Abort(code) => write!(f, "called MPI_Abort with code {code}"),
            OwnEnd::ExitCode(code) => write!(f, "exited with code {code}"),
            OwnEnd::NoFinalize => f.write_str("exited without MPI_Finalize"),
            OwnEnd::Script(signal) => {
                write!(f, "ended well, and then its script was killed by {}", signal_name(*signal))
            }
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
    /// Nobody who held this version of the rank could send it to the rank's node.
    NotFetched(Stamp),
    /// It ended with status 0 without ever having called `MPI_Init`, in which others wait for it.
    NeverJoined,
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
        match self {
            Cause::Signal(signal) => signal == KILL,
            Cause::SlotLost | Cause::AgentLost | Cause::NodeSilent | Cause::Fenced | Cause::NotFetched(_) => true,
            _ => false,
        }
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
            Cause::NotFetched(stamp) => {
                write!(f, "could not have its {} back: no node that held it could send it", stamp.version)
            }
            Cause::NeverJoined => {
                f.write_str("ended with status 0 before it called MPI_Init, for which the others wait")
            }
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

/// So many ends that are not blamed stand in a record, and are told of; of the others it is said how many they were.
const MOST_COLLATERAL: usize = 8;

/// What ended an epoch: the processes, slots and nodes agreed dead, with their causes. Sorted, without doubles, so that
/// equal knowledge is an equal set whatever order it came in.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct FailureSet {
    failures: Vec<Failure>,
    collateral: Vec<Collateral>,
    others: u32,
}

impl FailureSet {
    /// The nodes that are lost with it.
    pub fn lost_nodes(&self) -> Vec<NodeId> {
        let lost = |failure: &Failure| match failure.subject {
            Subject::Node(node) if failure.cause.takes_node() => Some(node),
            _ => None,
        };
        self.failures.iter().filter_map(lost).collect()
    }

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
        self.others = self.others.max(other.others);
    }

    /// As it stands in a record: when one process of a hundred thousand has died, all others may have aborted because of it.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let others = self.collateral.len().saturating_sub(MOST_COLLATERAL);
        self.collateral.truncate(MOST_COLLATERAL);
        let others = others as u32 + self.others;
        self.with_others(others)
    }

    /// The same with so many ends that are not blamed and not listed.
    #[must_use]
    pub fn with_others(self, others: u32) -> Self {
        FailureSet { others, ..self }
    }

    /// How many ends there are that are not blamed and not listed.
    pub fn others(&self) -> u32 {
        self.others
    }

    /// Adds the ends that are not blamed and that this node knows of to those of a record. If all that it lists are among them
    /// it is this node's, and counts no others.
    pub fn add_known(&mut self, ends: &[Collateral]) {
        if self.collateral.iter().all(|listed| ends.contains(listed)) {
            self.others = 0;
        }
        ends.iter().for_each(|end| self.insert_collateral(*end));
    }

    /// The failures, sorted by subject.
    pub fn failures(&self) -> &[Failure] {
        &self.failures
    }

    /// The ends that are not blamed, sorted by process; in a record only the first.
    pub fn collateral(&self) -> &[Collateral] {
        &self.collateral
    }

    /// The ends that are not blamed: those to tell of, and how many there are besides.
    pub fn collateral_told(&self) -> (&[Collateral], u32) {
        let told = self.collateral.len().min(MOST_COLLATERAL);
        (&self.collateral[..told], (self.collateral.len() - told) as u32 + self.others)
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
        let (told, others) = self.collateral_told();
        for collateral in told {
            write!(f, "; {} {} because of it", collateral.process.rank, collateral.end)?;
        }
        match others {
            0 => Ok(()),
            1 => f.write_str("; one more rank ended because of it"),
            others => write!(f, "; {others} more ranks ended because of it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Rank, WorldId};

    fn aborts(ranks: std::ops::Range<u32>) -> Vec<Collateral> {
        let end = OwnEnd::Abort(1);
        ranks.map(|rank| Collateral { process: Process::primary(WorldId(1), Rank(rank)), end }).collect()
    }

    #[test]
    fn of_many_that_follow_one_death_a_record_lists_the_first_and_counts_the_others() {
        let mut all = FailureSet::new();
        let process = Process::primary(WorldId(1), Rank(3));
        all.insert(Failure { subject: Subject::Process(process), cause: Cause::Signal(9), node: NodeId(0) });
        aborts(0..100_000).into_iter().for_each(|end| all.insert_collateral(end));
        let recorded = all.clone().bounded();
        let listed: Vec<u32> = recorded.collateral().iter().map(|end| end.process.rank.0).collect();
        assert_eq!(listed, [0, 1, 2, 4, 5, 6, 7, 8]);
        assert_eq!(recorded.collateral_told().1, 99_991);
        assert_eq!(recorded.clone().bounded(), recorded);
        assert!(recorded.to_string().ends_with("; 99991 more ranks ended because of it"), "{recorded}");
        assert_eq!(all.to_string(), recorded.to_string());
    }

    #[test]
    fn nobody_is_counted_twice() {
        let record = |ends: std::ops::Range<u32>| {
            let mut set = FailureSet::new();
            aborts(ends).into_iter().for_each(|end| set.insert_collateral(end));
            set.bounded()
        };
        // Of the author's own record, and of one that another node wrote of its own ranks.
        let mut own = record(0..20);
        own.add_known(&aborts(0..21));
        assert_eq!((own.collateral_told().0.len(), own.collateral_told().1), (8, 13));
        let mut another = record(0..20);
        another.add_known(&aborts(30..33));
        assert_eq!((another.collateral_told().0.len(), another.collateral_told().1), (8, 15));
    }

    #[test]
    fn signals_have_the_names_that_people_know() {
        let names = [9, 31, 32, 34, 37, 64, 65, 0].map(signal_name);
        let expected =
            ["SIGKILL", "SIGSYS", "signal 32", "SIGRTMIN", "SIGRTMIN+3", "SIGRTMAX", "signal 65", "signal 0"];
        assert_eq!(names, expected);
    }
}
