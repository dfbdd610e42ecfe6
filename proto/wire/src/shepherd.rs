//! Shepherd → agent and back. A shepherd is told to start, signal and stop the processes of its slot, and keeps duplicate
//! descriptors of arenas so that an agent's death loses no checkpoint.

use crate::{Epoch, Rank, Slot, World};
use serde::{Deserialize, Serialize};

/// What the launcher writes into a shepherd's lifeline. Its end of file is the launcher's death, unless [`OVER`](Self::OVER)
/// came before it.
#[derive(Debug)]
pub struct Lifeline;

impl Lifeline {
    /// The spool of the job's standard input grew.
    pub const GREW: u8 = 0;
    /// The job is over, and the launcher cleans up itself.
    pub const OVER: u8 = 1;
    /// Is the shepherd there? Asked every second.
    pub const ASK: u8 = 2;
    /// What the shepherd answers, on the same socket.
    pub const HERE: u8 = 3;
    /// What the shepherd says there before it tells an agent who it is: as long as it has not, it keeps nothing for anybody.
    pub const DIALS: u8 = 4;
    /// What the shepherd says there when it has ended filters that may have had something to print: output is lost.
    pub const LOST: u8 = 5;
    /// What a shepherd that is a task of Slurm's says there when it has heard [`OVER`](Self::OVER) and nothing is left below it. It then
    /// waits for its exit status, which is the next byte, and for the end of file.
    pub const EMPTY: u8 = 6;
}

/// Shepherd → launcher, over a socket of its own and before the process runs: two descriptors come with it, the reading
/// ends of its standard output and of its standard error. Every process has pipes of its own, so that what one world wrote
/// can never be taken for another one's, however late it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pipes {
    /// World of the process.
    pub world: World,
    /// Rank of the process.
    pub rank: Rank,
}

/// The page on which an agent keeps for its shepherds until when the node may compute (DESIGN §5): one memfd of 4096 bytes, of
/// `u64` words, in microseconds of `CLOCK_BOOTTIME`, written by the agent alone (release). Each shepherd by itself stops what is
/// below it when the time has passed, so that an agent that is slow, stopped or dead leaves no rank computing.
pub mod lease {
    /// Size of the page in bytes.
    pub const SIZE: usize = 4096;
    /// Offset of the moment from which on nothing may run: 0 is none at all, `u64::MAX` never.
    pub const UNTIL: usize = 0;
    /// Offset of the moment from which on what is stopped is killed, because nobody has heard anything of the job for too long.
    pub const KILL: usize = 8;
    /// Offset of the number of the newest [`ToShepherd::LookAtLease`](super::ToShepherd::LookAtLease).
    pub const TURN: usize = 16;
}

/// One process to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// World of the process.
    pub world: World,
    /// Epoch that releases it.
    pub epoch: Epoch,
    /// Rank it is.
    pub rank: Rank,
    /// Program (absolute path) and arguments.
    pub argv: Vec<Vec<u8>>,
    /// The whole environment.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Working directory.
    pub cwd: Vec<u8>,
    /// The processors that it may run on; those of its shepherd when there are none.
    pub processors: Vec<u32>,
    /// Which of the programs and directories that the launcher holds open is meant.
    pub held: u32,
    /// Whether this process reads the job's standard input (rank 0, and in a step of Slurm's every rank); the others read `/dev/null`.
    pub stdin: bool,
    /// When a descriptor came with this message: put it at this number in the child (static MPICH programs: `PMI_FD`).
    pub fd_at: Option<i32>,
}

/// Agent → shepherd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToShepherd {
    /// Start a process. Answered by [`ToAgent::Started`] or [`ToAgent::StartFailed`]. Only after the slot is empty.
    Start(Start),
    /// SIGKILL everything below the slot, but for filters (`tee`, `grep`), which have a while to pass on what the rank has
    /// printed; answered by [`ToAgent::Emptied`] when no descendant is left.
    Stop {
        /// The world that ends; echoed.
        world: World,
        /// The job is over, and nobody waits for the slot.
        over: bool,
        /// It is over because ftd has refused what runs: nobody waits for those either whom the direct child has left behind.
        refused: bool,
    },
    /// Send this signal to the rank: the process that called `MPI_Init`, or where none has, `ft_init`; until that is known, or when it is gone, the slot's
    /// direct child. Job control's (stop, continue) goes to every descendant.
    Signal(i32),
    /// Send this signal likewise, but not before the process has caught it for a while: a library's handler may be there before its own.
    SignalWhenCaught {
        /// The signal.
        signal: i32,
        /// An earlier rank has had it: this one has it if it catches it, and is told of it by [`ToAgent::Repeated`] then. Else it has it at the latest ten seconds from now.
        again: bool,
    },
    /// A process below the slot's direct child, or that child, is the rank: the slot is not empty as long as it lives. Another one
    /// may take its place: of those that use the checkpoint library the last, and the first that calls `MPI_Init`.
    Joined {
        /// Its world.
        world: World,
        /// Its rank.
        rank: Rank,
        /// Its process id.
        pid: i32,
    },
    /// The page on which the agent keeps the node's [`lease`], with this message's descriptor: from now on nothing below runs
    /// without one. A job of one node has none.
    Lease,
    /// The page was written, and what stands on it is to be looked at now: the lease runs again, or has ended. What was stopped
    /// goes on at this word alone, and only if no newer one is on its way; it stops without one.
    LookAtLease {
        /// What stands at [`lease::TURN`], if no newer one is.
        turn: u64,
    },
    /// Keep the descriptor that comes with this message as the duplicate of `rank`'s arena.
    KeepArena {
        /// Owner of the arena.
        rank: Rank,
    },
    /// Empty the slot, answer [`ToAgent::Emptied`] and exit.
    Exit,
}

/// Shepherd → agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToAgent {
    /// First message. One descriptor comes with it per entry of `arenas`, in that order.
    Hello {
        /// The slot.
        slot: Slot,
        /// The shepherd's process id. The agent goes by what the kernel says.
        pid: i32,
        /// Ranks whose arenas it holds.
        arenas: Vec<Rank>,
    },
    /// The process runs (its program is loaded).
    Started {
        /// World of the process.
        world: World,
        /// Rank of the process.
        rank: Rank,
        /// Its process id.
        pid: i32,
    },
    /// The process could not be started.
    StartFailed {
        /// World of the process.
        world: World,
        /// Rank of the process.
        rank: Rank,
        /// What failed, for people, one sentence.
        what: String,
        /// The job's exit status: a shell's for a program that is not there (127) or cannot be executed (126), else 1.
        status: i32,
    },
    /// A sentence for the user, the same from every shepherd that it is about.
    Notice(String),
    /// The slot's direct child ended, and the rank that stood below it lives on.
    Orphaned {
        /// World of the process.
        world: World,
        /// Rank of the process.
        rank: Rank,
        /// The process id of who ended; 0 when that was told, and another one is the heir after all.
        pid: i32,
        /// The slot's direct child from now on: the rank, or another wrapper above it.
        heir: i32,
    },
    /// The slot's direct child ended before its rank had joined, and what it has left behind has not loaded an MPI in time. Its end,
    /// which is told next, counts.
    LeftAlone {
        /// World of the process.
        world: World,
        /// Rank of the process.
        rank: Rank,
    },
    /// The slot's direct child ended, or the rank that outlived it. What it left below may print still, until [`ToShepherd::Stop`] comes.
    Exited {
        /// World of the process.
        world: World,
        /// Rank of the process.
        rank: Rank,
        /// Its process id.
        pid: i32,
        /// Raw `wait` status.
        status: i32,
        /// The cgroup's out-of-memory killer was at work while it ran.
        oom: bool,
        /// Killed when it had used up the CPU time that its limit allows.
        cpu_limit: bool,
        /// It had waited for a process of its own: its status may tell of that one's.
        waited: bool,
    },
    /// This shepherd is a task of Slurm's, and was sent a signal, which is for its rank: [`ToShepherd::Signal`] brings it there when the agent
    /// knows of it. Whoever dies of it then has not failed.
    Signalled {
        /// The signal.
        signal: i32,
    },
    /// … and this one while another agent was there, which may have known of it. Comes after [`ToAgent::Hello`].
    Remembered {
        /// The signal.
        signal: i32,
        /// So many milliseconds ago.
        ago: u64,
    },
    /// The rank has this signal, which an earlier one had.
    Repeated {
        /// The signal.
        signal: i32,
    },
    /// Nothing is left below the slot.
    Emptied {
        /// World named in [`ToShepherd::Stop`], or the world of the child that ended by itself.
        world: World,
    },
    /// The slot is not empty, because what is printed there has not been read: said again every second.
    Lingers {
        /// World of what runs there.
        world: World,
    },
}
