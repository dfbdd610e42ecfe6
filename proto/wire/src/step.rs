//! A step of Slurm's as a job (docs/decisions/slurm-steps.md): the front in srun's place, the part on each node, and the shepherds, which are
//! the step's tasks. The front is dialled over TCP; who dials and the front prove to each other that they know the step's secret.

use crate::cluster::{Cluster, Hidden};
use crate::{APART, Slot, is_neighbour, path, version};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// The variable of a step's environment in which a [`Step`] is. Whatever `--export` says, Slurm passes on what begins so.
pub const STEP: &str = "SLURM_FT_STEP";
/// The variable of a task's environment with the name of its program: who is executed in that one's place is a shepherd.
pub const PROGRAM: &str = "FT_STEP_PROGRAM";
/// The variable of the environment of a step in an sbatch's script: Slurm's name of that one's node, a space, and what the machine calls
/// itself. It ends with the shepherd.
pub const BATCH: &str = "SLURM_FT_STEP_BATCH";
/// The variable of the front's environment with Slurm's `SrunPortRange`, as the plugin has heard of it. It ends with the front.
pub const PORTS: &str = "FT_STEP_PORTS";
/// The variable of an agent's environment that says that the shepherds are tasks, and nobody's children here.
pub const TASKS: &str = "FT_TASKS";
/// Slurm's variables that say of a task which it is, or how many there are where in its step: what the agent says of a rank counts, and not what its
/// task was told.
pub const OF_STEP: [&str; 13] = [
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_GTIDS",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_STEP_NUM_NODES",
    "SLURM_NNODES",
    "SLURM_STEP_NODELIST",
    "SLURM_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
];
/// The one with the number of its process.
pub const OF_PROCESS: &str = "SLURM_TASK_PID";
/// The first word of the front's command line.
pub const FRONT: &str = "--step";
/// The first word of `ftrun`'s command line where a node's daemon has it look what has become of the script of a job, whose number is the second word …
pub const LOOK_FOR_SCRIPT: &str = "--look-for-script";
/// … or end that job, for the script's node is gone. [`BATCH`] and `SLURM_RESTART_COUNT` say the rest.
pub const END_FOR_SCRIPT: &str = "--end-for-script";
/// Where the node's daemon listens when `FT_DAEMON` says nothing.
pub const DAEMON: &str = "/run/ftd/ftd.sock";
/// Bytes of secrets, proofs and numbers that are used once.
pub const KEY: usize = 32;
/// The longest message before it is known who speaks.
pub const MAX_FIRST: usize = 64 << 10;

/// What a step's tasks have from its front.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Where the front listens: its port, at addresses of its machine.
    pub addresses: Vec<SocketAddr>,
    /// What only this step knows.
    pub secret: Hidden<[u8; KEY]>,
    /// The options of ftd's own, as they stand in the front's command line.
    pub options: Vec<Vec<u8>>,
}

/// What is wrong with the variable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// It was made by a release that is no neighbour.
    #[error(
        "the ftd where srun was called is of another release than this node's: it speaks protocol {theirs}, and this node's {ours}, {APART}"
    )]
    Release {
        /// The front's number.
        theirs: u32,
        /// This side's.
        ours: u32,
    },
    /// It is none.
    #[error("{STEP} in the environment is not what srun's front has put there")]
    Malformed,
}

impl Step {
    /// The value of the variable.
    ///
    /// # Errors
    /// What is too long.
    pub fn to_text(&self) -> Result<String, crate::FrameError> {
        let frame = crate::encode(self, 0)?;
        let mut text = format!("{:08}.", version());
        for byte in &frame[crate::FRAME_HEADER..] {
            // A string takes it.
            let _ = write!(text, "{byte:02x}");
        }
        Ok(text)
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`StepError`].
    pub fn from_text(text: &str) -> Result<Step, StepError> {
        let (theirs, digits) = text.split_once('.').ok_or(StepError::Malformed)?;
        let theirs = theirs.parse().map_err(|_| StepError::Malformed)?;
        if !is_neighbour(theirs) {
            return Err(StepError::Release { theirs, ours: version() });
        }
        if !digits.len().is_multiple_of(2) {
            return Err(StepError::Malformed);
        }
        let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap_or_default());
        let bytes = pairs.map(|pair| u8::from_str_radix(pair, 16)).collect::<Result<Vec<_>, _>>();
        crate::decode(&bytes.map_err(|_| StepError::Malformed)?).map_err(|_| StepError::Malformed)
    }
}

/// The number that whoever has put this into [`STEP`] speaks.
pub fn spoken(text: &str) -> Option<u32> {
    text.split_once('.')?.0.parse().ok()
}

/// The purposes of words that are made of a step's secret: the end of its job's name, and the part's socket.
pub const NAME: &str = "ftd step: the end of the job's name";
/// See [`NAME`].
pub const DOOR: &str = "ftd step: where a node's part listens";

/// What becomes of a job's script is found out to be this, as an exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Found {
    /// Slurm has the job as ended, or queued again, or its script elsewhere.
    Over = 3,
    /// Its node answers, or the job is suspended.
    There = 4,
    /// The job runs, and nobody answers where slurmd of the script's node listens.
    Silent = 5,
}

impl Found {
    /// Of this exit status.
    pub fn of(status: i32) -> Option<Found> {
        [Found::Over, Found::There, Found::Silent].into_iter().find(|found| *found as i32 == status)
    }
}

/// Where a node's part listens in the abstract name space: `word` is a step's own.
pub fn door(word: &str, node: u32) -> String {
    format!("ftd-step-{word}-{node}")
}

/// Which step, by Slurm's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StepId {
    /// Of the job.
    pub job: u32,
    /// Within it.
    pub step: u32,
}

/// A node's share of a step, as Slurm has laid it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Number of the node in the step.
    pub node: u32,
    /// Nodes of the step.
    pub nodes: u32,
    /// The first of the node's tasks; the others follow it.
    pub first: Slot,
    /// How many tasks it has.
    pub tasks: u32,
    /// Tasks of the step.
    pub all: u32,
}

/// What a task asks its node's daemon for; the task's [`Image`](crate::part::Image) follows. Which step it is the kernel says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The number that who asks speaks.
    pub protocol: u32,
    /// The number that the front speaks; 0 where that is not said.
    #[serde(default)]
    pub front: u32,
    /// What the names of this step's job and of no other's end with.
    pub word: String,
    /// The node's share.
    pub layout: Layout,
}

/// What a part has to know of its node beside its [`Begin`](crate::part::Begin).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Which step.
    pub step: StepId,
    /// The node's share.
    pub layout: Layout,
    /// Its failure domain.
    pub domain: String,
    /// The key in the store that is there as long as its daemon holds its lease.
    pub lease: String,
    /// Beginning of the names of the job's keys.
    pub prefix: String,
    /// T, if the user says nothing.
    pub heartbeat_ms: u64,
    /// … and then the period, as in [`Cluster::heartbeat_period_ms`].
    #[serde(default)]
    pub heartbeat_period_ms: Option<u64>,
    /// See [`Cluster::path_ms`].
    pub path_ms: u64,
}

/// The front's first word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenge {
    /// A number that is used once.
    pub nonce: [u8; KEY],
}

/// The answer of who dials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Its own number that is used once.
    pub nonce: [u8; KEY],
    /// That it knows the secret, and has said what follows.
    pub proof: [u8; KEY],
    /// An encoded [`What`].
    pub what: Vec<u8>,
}

/// The front's answer to that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// That it knows the secret.
    pub proof: [u8; KEY],
}

/// What somebody dials the front for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// A part is ready. [`Go`] follows when all are; then the part says [`FromPart`](crate::part::FromPart), and hears
    /// [`ToPart`](crate::part::ToPart).
    Part(Box<Member>),
    /// There can be no job.
    Refused {
        /// The exit status that says so.
        status: u8,
        /// Why, with the node's name.
        sentence: String,
    },
}

/// A part that is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Of the node.
    pub node: Node,
    /// The node's name.
    pub name: String,
    /// What the machine calls itself.
    pub host: String,
    /// Where its agent will be, if there are others.
    pub address: Option<IpAddr>,
    /// With TCP and UDP.
    pub port: u16,
    /// The number that the part and its agent speak.
    pub protocol: u32,
}

/// Front → part: all are ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Go {
    /// Number of ranks.
    pub ranks: u32,
    /// The nodes; nothing if there is but one.
    pub cluster: Option<Box<Cluster>>,
}

/// Task → part, over a socket in the abstract name space. The first task's standard input comes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Its slot.
    pub slot: Slot,
}

/// Part → task: what `ftrun` writes into the command line of a shepherd. These descriptors come with it, in this order: the lifeline, the environment of
/// the first task (`NAME=value`, each with a zero behind it), the program's file, the working directory, what the program holds, and, if
/// there is any, the standard input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The agent's socket.
    #[serde(with = "path")]
    pub socket: PathBuf,
    /// Open files and processes, as the user has them.
    pub soft_limits: (u64, u64),
    /// The nice value of the ranks.
    pub nice: Option<i32>,
    /// The program as it was when the job began.
    pub then: String,
    /// The program can be started without its name.
    pub is_binary: bool,
    /// The kind of standard input.
    pub stdin: Stdin,
}

/// The part's answer to a [`Task`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It is a shepherd of the job.
    Seat(Place),
    /// There is no job, and nobody but a task can say why.
    No(String),
}

/// Where a job's standard input is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stdin {
    /// Nowhere.
    Null,
    /// In a regular file, from this offset on.
    File(u64),
    /// In a spool.
    Spool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_tasks_are_told_comes_back() {
        let addresses = vec![SocketAddr::from(([198, 18, 1, 2], 7000)), "[::1]:7001".parse().unwrap()];
        let step = Step { addresses, secret: Hidden([9; KEY]), options: vec![b"--ft=reinit".to_vec()] };
        let text = step.to_text().unwrap();
        let of = |number: u32| Step::from_text(&format!("{number:08}{}", &text[8..]));
        let ours = version();
        assert_eq!((of(ours), of(ours + 1)), (Ok(step.clone()), Ok(step)));
        assert_eq!((spoken(&text), spoken("x")), (Some(ours), None));
        assert_eq!(of(ours + 2), Err(StepError::Release { theirs: ours + 2, ours }));
        for wrong in ["", "x", &text[..text.len() - 1], "zz.00"] {
            assert_eq!(Step::from_text(wrong), Err(StepError::Malformed), "{wrong}");
        }
    }
}
