//! A job's user → the job's agent on a node and back, over the socket on which its ranks dial. Who asks is known by the socket's
//! credentials: the user of the job, or root.

use crate::injection::Injection;
use crate::{Epoch, Rank, Slot, Version, World};
use serde::{Deserialize, Serialize};

/// Asker → agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToAgent {
    /// What is the job, and how is it? Answered by [`FromAgent::Job`].
    Show,
    /// What has happened? Answered by [`FromAgent::Event`] for each that is remembered, oldest first, and [`FromAgent::Told`].
    Events {
        /// Then each other one, as it happens.
        follow: bool,
    },
    /// A rank is to die. Answered by [`FromAgent::Noted`].
    Inject(Injection),
    /// Which job is it? Answered by [`FromAgent::Noted`] with its name, and nobody else is asked.
    Name,
}

/// Agent → asker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromAgent {
    /// The job.
    Job(Box<Job>),
    /// Something has happened.
    Event(Event),
    /// This was all that is remembered.
    Told,
    /// What was asked for will be done: what is to be known of that.
    Noted(String),
    /// It will not, and why.
    Refused(String),
}

/// What a job is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// Its first world is being brought up.
    Starting,
    /// Its ranks run.
    Computing,
    /// Something has failed, and not all ranks have their state back.
    Recovering,
    /// This node's ranks are stopped, because nobody who observes it answers.
    Paused,
    /// Its processes are being ended.
    Ending,
    /// This node waits to be taken in: what the others do it does not know.
    Joining,
}

/// A job, as the agent of one of its nodes knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its name.
    pub name: String,
    /// `none` or `reinit`.
    pub mode: String,
    /// Program and arguments.
    pub argv: Vec<Vec<u8>>,
    /// Number of ranks.
    pub world_size: u32,
    /// The process of `ftrun` on this node.
    pub launcher: i32,
    /// The agent.
    pub agent: i32,
    /// What the job is doing.
    pub state: State,
    /// For so long it has run, in milliseconds.
    pub up_ms: u64,
    /// The newest epoch; 0 before there is one.
    pub epoch: Epoch,
    /// Its world.
    pub world: World,
    /// All nodes that it ever had, by their numbers.
    pub nodes: Vec<Node>,
    /// The node that answers, in `nodes`.
    pub here: u32,
    /// All ranks.
    pub ranks: Vec<RankPlace>,
    /// Those whose processes are here.
    pub processes: Vec<Process>,
    /// The newest version that is complete.
    pub complete: Option<Complete>,
    /// Bytes of memory here that hold copies of other nodes' checkpoints.
    pub copies: u64,
    /// What has failed.
    pub failures: Failures,
    /// The deaths that somebody has asked for and that have not come about.
    pub injections: Vec<Injection>,
}

/// A node of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// What people call it.
    pub name: String,
    /// It is in the job.
    pub member: bool,
}

/// Where a rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankPlace {
    /// Which.
    pub rank: Rank,
    /// On this node of [`Job::nodes`].
    pub node: u32,
    /// On this slot.
    pub slot: Slot,
}

/// The process of a rank, on the node that answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Whose.
    pub rank: Rank,
    /// Its number, once it runs.
    pub pid: Option<i32>,
    /// The processor on which it ran last.
    pub processor: Option<u32>,
    /// Those on which it may run, as the kernel writes them: `0-3,8`.
    pub allowed: String,
    /// What it has checkpointed so far, whatever process was the rank here; nothing of one that does not use the library.
    pub checkpoints: Option<Checkpoints>,
}

/// What a rank has checkpointed on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoints {
    /// How often.
    pub number: u32,
    /// So many bytes.
    pub bytes: u64,
    /// So long it was in `ft_checkpoint`, in microseconds.
    pub spent_us: u64,
    /// The copy of the last one took so long, in microseconds.
    pub copy_us: u64,
    /// The newest version that it has taken in this epoch.
    pub newest: Option<Version>,
    /// Memory of its arena in bytes.
    pub memory: u64,
}

/// A version that every rank has taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Complete {
    /// Which.
    pub version: Version,
    /// How long that is known, in milliseconds; nothing where it became so before this agent.
    pub age_ms: Option<u64>,
}

/// What has failed in a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failures {
    /// So many epochs have ended by failures.
    pub number: u64,
    /// `--ft-max-failures`.
    pub most: u32,
    /// Deaths in a row without progress, and whose.
    pub in_a_row: Vec<(String, u32)>,
    /// The newest, oldest first.
    pub past: Vec<Past>,
}

/// An epoch that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// Which.
    pub epoch: Epoch,
    /// So long after the job's beginning, in milliseconds.
    pub at_ms: u64,
    /// What ended it, for people.
    pub what: String,
}

/// What kind of thing has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// The processes of a world run.
    Released,
    /// A failure is known.
    Failed,
    /// What is done about it is agreed.
    Agreed,
    /// It is known of what a process has died; it was not when that was told.
    Cause,
    /// The recovery is over, or not waited for any longer: the text is its block.
    Recovered,
    /// It came to no end: the next failure or the job's end came first, or its ranks cannot be started. The text is its block.
    Interrupted,
    /// A version is complete. These are not remembered.
    Complete,
    /// A sentence for people.
    Notice,
    /// A failure is brought about that somebody has asked for.
    Injected,
    /// The job is over here.
    Ended,
}

/// Something that has happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When: milliseconds since 1970.
    pub at_ms: u64,
    /// In which epoch.
    pub epoch: Epoch,
    /// In which world.
    pub world: World,
    /// Of what kind.
    pub kind: Kind,
    /// For people.
    pub text: String,
    /// The version that is complete.
    pub version: Option<Version>,
    /// The job's exit status.
    pub status: Option<i32>,
}
