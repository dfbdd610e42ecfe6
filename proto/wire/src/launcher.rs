//! Launcher (`ftrun`) ⇄ agent. The launcher stands where `slurmstepd` and `ftd` stand on a cluster: it starts slots and
//! the agent, relays output, and outlives both.

use crate::ask::Event;
use crate::cluster::{Cluster, ClusterNode};
use crate::history::History;
use crate::injection::{Injection, Pending};
use crate::toll::Toll;
use crate::{Epoch, Flavour, Rank, Slot, Version, World, path};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// What the job is. The same for every agent of the job, but for [`Cluster::me`] and what lies elsewhere on another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Name of the job, unique on this machine.
    pub job: String,
    /// Number of ranks.
    pub world_size: u32,
    /// `none` or `reinit`.
    pub mode: String,
    /// The programs, in the order of their ranks, `world_size` in all.
    pub programs: Vec<Program>,
    /// Environment of all ranks, before what their program has beside it and what ftd adds.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// The job's directory in node memory (mode 0700): `agent.sock`, `pmix/`, `ckpt/`.
    #[serde(with = "path")]
    pub job_dir: PathBuf,
    /// `--ft-max-failures`: deaths of one rank in a row without progress before the job ends.
    pub max_failures: u32,
    /// `--ft-grace`: milliseconds that the ranks have after a signal that ends the job.
    pub grace_ms: u64,
    /// `--ft-on-abort=recover`.
    pub recover_aborts: bool,
    /// `--ft-mpi`: `auto`, `openmpi` or `mpich`.
    pub mpi: String,
    /// Absolute path of `libft_preload.so`.
    #[serde(with = "path")]
    pub preload: PathBuf,
    /// Absolute path of the `ft-pmix` program.
    #[serde(with = "path")]
    pub ft_pmix: PathBuf,
    /// Absolute path of the `ft-ship` program.
    #[serde(with = "path")]
    pub ft_ship: PathBuf,
    /// A guess from the program file: its MPI speaks PMIx, so an `ft-pmix` is worth starting at once.
    pub expect_pmix: bool,
    /// So many bytes a second are sent at most for copies of checkpoints to other nodes; 0: as fast as it goes.
    pub copy_rate: u64,
    /// libfabric's providers for these copies, as this node's daemon names them (`part::Begin`).
    #[serde(default)]
    pub fabric: Option<String>,
    /// `-v`: people want to know more.
    pub verbose: bool,
    /// The nice value of the user's own processes, where the agent's is a higher priority.
    pub nice: Option<i32>,
    /// `--ft-summary`: at the end it is said what failures and checkpoints cost, also when there were none.
    pub summary: bool,
    /// How ranks are bound to processors; nothing where that is somebody else's business.
    pub binding: Option<Binding>,
    /// `--ft-inject`: failures that the user asks for.
    pub injections: Vec<Injection>,
    /// What this node is called, where its daemon has started the job's part here.
    #[serde(default)]
    pub node: Option<String>,
    /// The nodes of a job over several; nothing on one machine.
    pub cluster: Option<Cluster>,
}

/// A program of the job. Its ranks are those that follow the ones of the programs before it, in every world.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// How many they are.
    pub ranks: u32,
    /// Program and arguments; the program is an absolute path.
    pub argv: Vec<Vec<u8>>,
    /// Variables of its ranks that stand in the place of those of all, or beside them.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Their working directory.
    pub cwd: Vec<u8>,
    /// The MPI that is part of the program file, so that nothing can be preloaded in front of it: what it wants to find in
    /// its environment must be there from the start. So says the option, or the file.
    pub linked_in: Option<Flavour>,
    /// Which of the files that the launcher holds open for the shepherds is the program's, with its directory.
    pub held: u32,
}

/// How ranks are bound to processors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// The policy, as ftd-core writes it.
    pub policy: String,
    /// `--report-bindings`.
    pub report: bool,
    /// What people are to be told of it.
    pub note: Option<String>,
}

/// What a rank has that is none of the job's: it cannot be started.
static NONE: Program =
    Program { ranks: 0, argv: Vec::new(), env: Vec::new(), cwd: Vec::new(), linked_in: None, held: 0 };

impl JobSpec {
    /// The place of a rank's program among the programs, as MPI counts them (`MPI_APPNUM`).
    pub fn program_number(&self, rank: Rank) -> usize {
        let mut end = 0;
        let past = self.programs.iter().take_while(|program| {
            end += program.ranks;
            end <= rank
        });
        past.count()
    }

    /// A rank's program.
    pub fn program(&self, rank: Rank) -> &Program {
        self.programs.get(self.program_number(rank)).unwrap_or(&NONE)
    }

    /// The variables that the user gives a rank, each once.
    pub fn variables(&self, rank: Rank) -> impl Iterator<Item = &(Vec<u8>, Vec<u8>)> {
        let own = &self.program(rank).env;
        self.env.iter().filter(|(name, _)| own.iter().all(|(other, _)| other != name)).chain(own)
    }

    /// One of these.
    pub fn variable(&self, rank: Rank, name: &[u8]) -> Option<&[u8]> {
        let find = |variables: &'_ [(Vec<u8>, Vec<u8>)]| variables.iter().position(|(other, _)| other == name);
        let own = &self.program(rank).env;
        find(own).map(|at| &own[at]).or_else(|| find(&self.env).map(|at| &self.env[at])).map(|(_, value)| &value[..])
    }

    /// All programs as one command line, with `:` between.
    pub fn words(&self) -> Vec<Vec<u8>> {
        let argvs: Vec<_> = self.programs.iter().map(|program| program.argv.clone()).collect();
        argvs.join(&b":".to_vec())
    }
}

/// Beginnings of the names of environment variables that are a launcher's: another one's would mislead a rank.
pub const FOREIGN: [&str; 6] = ["PMIX_", "PMI_", "OMPI_COMM_WORLD_", "MPI_LOCAL", "PRTE_", "FT_"];
/// `FT_*` variables that are meant for the ranks.
const KEPT: [&str; 4] = ["FT_GATE", "FT_GATE_DIR", "FT_CHECKPOINT_TIMEOUT", "FT_LOG"];

/// Whether the ranks get a variable that the user has set.
pub fn reaches_ranks(name: &[u8]) -> bool {
    let is_foreign = FOREIGN.iter().any(|prefix| name.starts_with(prefix.as_bytes()));
    !is_foreign || KEPT.iter().any(|kept| name == kept.as_bytes())
}

/// What the launcher knows of the agent that died.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Before {
    /// When its death was seen: microseconds of `CLOCK_BOOTTIME`.
    pub died: u64,
    /// The newest epoch whose block was printed, here or on another node; 0 when none was.
    pub reported: Epoch,
    /// It has told that the program uses MPI.
    pub mpi: bool,
    /// What failures had cost when it died; the ages are those of that moment.
    pub toll: Toll,
    /// The failures that somebody had asked for and that had not been brought about; nothing when it had come to none.
    pub injections: Option<Vec<Pending>>,
    /// What has happened in the job so far.
    pub history: History,
    /// What was said with [`ToLauncher::NoticeOnce`].
    pub said: BTreeSet<String>,
}

/// Launcher → agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "the large one is sent once, and none is kept")]
pub enum ToAgent {
    /// First message: the job, and the slots whose shepherds were started and have not been lost.
    /// Three descriptors come with it, of things that outlive the agent: the memfd that backs the embedded store, the
    /// inotify instance that watches `$FT_CHECKPOINT_DIR`, and the sheet on which ranks note where in their output they take
    /// versions. With [`JobSpec::cluster`] two more: the listening TCP socket and the UDP
    /// socket on this node's address and port, where other agents reach it. Slots are this node's alone.
    Job {
        /// The job.
        spec: JobSpec,
        /// Slots that exist.
        slots: Vec<(Slot, i32)>,
        /// The agent takes the place of one that died.
        before: Option<Before>,
    },
    /// A shepherd is gone; what stood below it is being ended. [`SlotGone`](Self::SlotGone) follows.
    SlotDying {
        /// The slot.
        slot: Slot,
    },
    /// A shepherd is gone, and so are all processes that stood below it.
    SlotGone {
        /// The lost slot.
        slot: Slot,
    },
    /// A shepherd was started on [`ToLauncher::NeedSlot`] or [`ToLauncher::MakeSlot`]; it will dial in.
    SlotAdded {
        /// The new slot.
        slot: Slot,
        /// Its shepherd's process id.
        pid: i32,
    },
    /// A node comes into the job, behind those that there are.
    Joins(Box<ClusterNode>),
    /// Forward this signal to every rank.
    Signal(i32),
    /// End the job: the ranks hear the signal and have `grace_ms` to end; in a recovery, at once.
    Cancel {
        /// The signal that the user sent to the launcher.
        signal: i32,
    },
    /// Is the agent there? Asked every second, and answered at once by [`ToLauncher::Here`].
    Ask,
    /// The shepherds of these slots do not answer, and of no others; the launcher deals with it.
    Silent {
        /// The slots.
        slots: Vec<Slot>,
    },
    /// Everything that the processes of `world` wrote has been read.
    Drained {
        /// The world that was stopped.
        world: World,
    },
}

/// Agent → launcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToLauncher {
    /// The agent cannot go on with `slot`'s loss: start a replacement.
    NeedSlot,
    /// A world begins, with its rank 0, which reads the job's standard input, here or elsewhere.
    Input {
        /// Its number.
        world: World,
        /// Here.
        here: bool,
    },
    /// The job's ranks need this slot, beyond those that the node has of its own.
    MakeSlot {
        /// Its number, which nobody else gives.
        slot: Slot,
    },
    /// All processes of `world` are gone: read what they left in the pipes, then answer [`ToAgent::Drained`] and hold
    /// back what comes after until [`ToLauncher::Recovered`].
    Drain {
        /// The world that was stopped.
        world: World,
    },
    /// What the ranks of a world take back is known: a version with the epoch that took it, or nothing.
    Restores {
        /// The world.
        world: World,
        /// What.
        restored: Option<(Version, Epoch)>,
    },
    /// The recovery is over (or its end is not waited for any longer): print the block, then go on with the output.
    Recovered {
        /// The epoch that runs now.
        epoch: Epoch,
        /// Lines for stderr.
        block: String,
        /// What failures have cost with that: who has heard the one has heard the other.
        toll: Box<Toll>,
    },
    /// Answer to [`ToAgent::Ask`].
    Here {
        /// Slots that exist and whose shepherds have not dialled in: what arenas they keep, this agent may not have.
        absent: Vec<Slot>,
        /// This agent has the arenas of all ranks: whoever keeps one keeps a duplicate.
        complete: bool,
    },
    /// From now on there is a rank's arena: before that nobody kept anything.
    Arenas,
    /// The program uses MPI: a rank has come to `MPI_Init`.
    Mpi,
    /// This version is complete. Told when it is chosen to be restored: it was made since the last agent's death, if it is
    /// a newer one.
    Complete {
        /// The version.
        version: Version,
    },
    /// What failures have cost so far: told whenever it changes, and with each [`Here`](Self::Here).
    Toll(Box<Toll>),
    /// A recovery is over, as far as is seen, and a sign of it is waited for before that is said. To be printed, and counted, if this
    /// agent does not come to say it.
    Unreported {
        /// The epoch that runs now.
        epoch: Epoch,
        /// Lines for stderr, where this node prints them.
        block: Option<String>,
        /// What failures have cost with that.
        toll: Box<Toll>,
    },
    /// The failures that somebody has asked for and that have not been brought about: told whenever that changes.
    Injections(Vec<Pending>),
    /// One line for stderr, printed at once.
    Notice(String),
    /// The same, and no agent of this node is to say it again.
    NoticeOnce(String),
    /// Something has happened that is to be remembered for those who ask, also when this agent is gone.
    Happened(Event),
    /// The job is over; every process of it is gone.
    End {
        /// Exit status for the launcher.
        status: i32,
        /// Why, when it is not a clean end.
        reason: Option<String>,
        /// This node is not in the job any more, which may go on without it: that is no end of the others.
        left_out: bool,
        /// The store was away for too long, and does not know of this end: what other nodes say counts, unless all ranks of the job have ended well
        /// (the status is 0 then). `left_out` is set as well.
        #[serde(default)]
        unrecorded: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_follow_their_programs() {
        let program = |ranks, name: &str, env: &[(&str, &str)]| Program {
            ranks,
            argv: vec![name.into(), b"x".to_vec()],
            env: env.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())).collect(),
            ..NONE.clone()
        };
        let spec = JobSpec {
            job: String::new(),
            world_size: 4,
            mode: String::new(),
            programs: vec![program(1, "a", &[]), program(3, "b", &[("A", "2"), ("C", "3")])],
            env: vec![(b"A".to_vec(), b"1".to_vec()), (b"B".to_vec(), b"1".to_vec())],
            job_dir: PathBuf::new(),
            max_failures: 1,
            grace_ms: 0,
            recover_aborts: false,
            mpi: String::new(),
            preload: PathBuf::new(),
            ft_pmix: PathBuf::new(),
            ft_ship: PathBuf::new(),
            expect_pmix: false,
            copy_rate: 0,
            fabric: None,
            verbose: false,
            nice: None,
            summary: false,
            binding: None,
            injections: Vec::new(),
            node: None,
            cluster: None,
        };
        assert_eq!([0, 1, 2, 3].map(|rank| spec.program_number(rank)), [0, 1, 1, 1]);
        assert_eq!((spec.program(0).argv[0].as_slice(), spec.program(3).argv[0].as_slice()), (&b"a"[..], &b"b"[..]));
        assert!(spec.program(4).argv.is_empty());
        let all = |rank| spec.variables(rank).map(|(name, value)| [&name[..], value].concat()).collect::<Vec<_>>();
        assert_eq!(all(0), [b"A1".to_vec(), b"B1".to_vec()]);
        assert_eq!(all(1), [b"B1".to_vec(), b"A2".to_vec(), b"C3".to_vec()]);
        assert_eq!((spec.variable(0, b"A"), spec.variable(2, b"A")), (Some(&b"1"[..]), Some(&b"2"[..])));
        assert_eq!((spec.variable(2, b"B"), spec.variable(0, b"C")), (Some(&b"1"[..]), None));
        assert_eq!(spec.words(), [&b"a"[..], b"x", b":", b"b", b"x"]);
    }
}
