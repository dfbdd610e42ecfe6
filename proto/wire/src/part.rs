//! A job over several nodes: `ftrun` → its node's daemon → the daemons of the job's nodes → the launcher's part on each of them, and
//! back. The daemons start the parts and pass on what both ends say. `ftrun` holds the near end of each link itself: whoever is between
//! may die.

use crate::cluster::{Cluster, ClusterNode};
use crate::{Epoch, Rank, Slot, Version, World, path, step};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The longest [`Request`] and [`Start`]: as many nodes as a job may have, with long names.
pub const MAX_LAUNCH: usize = 512 << 10;
/// The longest [`Image`]: the kernel takes no longer command line with its environment.
pub const MAX_IMAGE: usize = 8 << 20;
/// The longest message of a job that has begun.
pub const MAX_SAID: usize = 2 << 20;
/// The descriptor at which a part finds its link.
pub const PART_FD: i32 = 3;
/// The first word of a part's command line.
pub const PART: &str = "--part";
/// The first word of what cleans up behind a part that was killed with all of its job.
pub const SWEEP: &str = "--sweep";
/// The first word of the command line of `ftctl` where it looks for a job's agent, for a user on another node.
pub const WAY: &str = "--way";
/// So many nodes are named of each job to who asks which there are.
pub const MOST_NAMED: usize = 16;
/// So many nodes a job may have.
pub const MOST_NODES: usize = 4096;
/// How many soft limits go with a job.
pub const LIMITS: usize = 9;

/// So often those between a launcher and its parts are asked whether they are there, and parts hear that they are …
pub const PULSE: Duration = Duration::from_secs(5);
/// … and so long nothing may be heard, as of a network that is cut.
pub const SILENT: Duration = Duration::from_secs(15);

/// What `ftrun` asks its daemon for; its [`Image`] follows, in a frame of its own that the daemons pass on as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The number that who asks speaks.
    pub protocol: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// T, if the user says it: milliseconds.
    pub heartbeat_ms: Option<u64>,
    /// … and the period, with it.
    #[serde(default)]
    pub heartbeat_period_ms: Option<u64>,
    /// Nodes by name with their slots, in the order of the ranks.
    pub hosts: Vec<Host>,
    /// So many of them, the last ones, are spare.
    pub spares: u32,
    /// The job survives the loss of a node, which may come back.
    pub survives: bool,
    /// So many milliseconds the job waits for a node when its ranks have no slots.
    pub wait_ms: u64,
    /// They have some beyond those of the nodes that are left.
    pub oversubscribe: bool,
}

/// A node that the user names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// How many processes of the job may run there.
    pub slots: u32,
}

/// What a launcher has of who started it, and what every node needs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Its command line: words, each with a zero behind it.
    pub words: Vec<u8>,
    /// Its environment: `NAME=value`, each with a zero behind it.
    pub env: Vec<u8>,
    /// Its working directory.
    #[serde(with = "path")]
    pub cwd: PathBuf,
    /// Its umask.
    pub umask: u32,
    /// Its soft limits, in an order of its own.
    pub limits: [u64; LIMITS],
    /// Its nice value.
    pub nice: i32,
}

/// Words that contain no zero, as one piece.
pub fn join(words: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    words.into_iter().flat_map(|word| word.into_iter().chain([0])).collect()
}

/// The words of such a piece.
pub fn split(joined: &[u8]) -> impl Iterator<Item = &[u8]> {
    joined.strip_suffix(&[0]).into_iter().flat_map(|words| words.split(|byte| *byte == 0))
}

/// Launcher → daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToJobs {
    /// First message, before the [`Image`]: start this job.
    Launch(Box<Request>),
    /// First message, before the [`Image`]: a job goes on whose connection to the daemon is lost. Answered by [`FromJobs::Resumed`].
    Resume(Box<Resume>),
    /// Over the link to the part on a node.
    Carry {
        /// Number of the node in the job.
        node: u32,
        /// What.
        word: Carried,
    },
    /// Answer to [`FromJobs::Another`]: how far this end of the link is. Nothing is said over it before [`FromJobs::Agreed`].
    Mark {
        /// Number of the node in the job.
        node: u32,
        /// Of the question.
        turn: u32,
        /// How far.
        mark: Mark,
    },
    /// The part there is lost, and the job goes on: is the node to be reached again?
    Lost(u32),
    /// No node comes back into the job any more.
    Ends,
    /// Another process of the daemon's serves this job now: nothing ends with this connection.
    Leave,
    /// Is it there? Answered at once by [`FromJobs::Here`].
    Ask,
    /// A task's first message, before its [`Image`]: start this node's part of a step of Slurm's. Answered by [`FromJobs::Begun`], with
    /// nothing behind it.
    Step(Box<step::Request>),
    /// First message: is there a node of that name, by its lease? Answered by [`FromJobs::Here`], [`FromJobs::Gone`], or that it is not known.
    Node(String),
    /// First message: which jobs of this user's (root: of anybody's) have a part on any node? Answered by [`FromJobs::Running`].
    Jobs,
    /// First message: a way to an agent of a job. Answered by [`FromJobs::Here`]; what is said after that is said to the agent, and by it.
    Agent(Box<Sought>),
}

/// What `ftrun` knows of its job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// The number that who asks speaks.
    pub protocol: u32,
    /// The job.
    pub job: String,
    /// So many nodes it has had.
    pub nodes: u32,
    /// Numbers of those with whose parts it speaks.
    pub open: Vec<u32>,
    /// Numbers of those that are to be looked for.
    pub lost: Vec<u32>,
}

/// The agent that somebody looks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sought {
    /// The job.
    pub job: String,
    /// Nodes where there may be one; the first that has one will do.
    pub nodes: Vec<String>,
    /// Where the directories of the user's jobs are (`FT_MEMORY_DIR`).
    #[serde(with = "path")]
    pub memory: PathBuf,
}

/// A job that has parts on nodes of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// Its name.
    pub job: String,
    /// Its user.
    pub uid: u32,
    /// Nodes with a part of it, [`MOST_NAMED`] at most.
    pub nodes: Vec<String>,
    /// The process that has started it, where that is one of the machine on which it is asked.
    pub launcher: Option<i32>,
}

/// Daemon → launcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromJobs {
    /// There is no job.
    Refused {
        /// The exit status that says so.
        status: u8,
        /// Why.
        sentence: String,
    },
    /// The daemon has no time for one more, whoever it is: [`crate::control::FromDaemon::Refused`], which has this name.
    Away(String),
    /// The parts on all nodes are ready, and wait to be told that they may start.
    Begun {
        /// The job's name.
        job: String,
        /// Names of the nodes, by number.
        nodes: Vec<String>,
        /// What each link has carried until now, in bytes, by number.
        #[serde(default)]
        came: Vec<u64>,
        /// So many bytes may be under way on each link, in each direction.
        #[serde(default)]
        window: u32,
        /// What parts are to know of the others, if there are any.
        #[serde(default)]
        cluster: Option<Box<Cluster>>,
    },
    /// A node has come back, and a part is ready there, as the next node of the job.
    Joined {
        /// Its number.
        node: u32,
        /// Its name.
        name: String,
        /// What its link has carried until now, in bytes.
        #[serde(default)]
        came: u64,
        /// Its node, as the others are to know it.
        #[serde(default)]
        of: Option<Box<ClusterNode>>,
    },
    /// The job's links are looked for: each goes on with [`Another`](Self::Another), or is lost.
    Resumed,
    /// The part on a node says this over its link.
    Carried {
        /// Number of the node in the job.
        node: u32,
        /// What.
        word: Carried,
    },
    /// There is another connection for a link. Answered by [`ToJobs::Mark`].
    Another {
        /// Number of the node in the job.
        node: u32,
        /// Number of the question.
        turn: u32,
    },
    /// So far is the other end: what it has not passed on is sent again.
    Agreed {
        /// Number of the node in the job.
        node: u32,
        /// How far.
        mark: Mark,
    },
    /// Nothing more comes from a part.
    Lost {
        /// Number of its node.
        node: u32,
        /// What is known of it.
        why: String,
    },
    /// Answer to [`ToJobs::Ask`]; also whatever else is said is one.
    Here,
    /// There is no such node.
    Gone,
    /// Answer to [`ToJobs::Jobs`].
    Running {
        /// The jobs.
        jobs: Vec<Running>,
        /// Nodes that have not answered.
        silent: Vec<String>,
    },
}

/// Daemon → daemon, when both have said which release they are of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToPeer {
    /// Start a part; its [`Image`] follows, and from then on there is nothing but [`Carried`] in both directions.
    Start(Box<Start>),
    /// A user asks on another node. Answered by [`FromPeer`].
    Ask(Box<Question>),
    /// The link of this number, which has such a part, goes on over this connection, if its other end answers with [`Carried::Here`],
    /// this one says so, too, and the other one once more; then both say their [`Mark`], and [`Carried`] follows. [`Carried::End`]: there
    /// is no such link.
    Resume(u64),
}

/// What a user asks on another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// The number that who asks speaks.
    pub protocol: u32,
    /// The node that asks.
    pub from: String,
    /// The node that is meant.
    pub to: String,
    /// The user, by number and by name: both must be the same one's on both nodes.
    pub uid: u32,
    /// See `uid`.
    pub user: String,
    /// So many bytes may be under way to each end of the connection.
    pub window: u32,
    /// What.
    pub about: About,
}

/// What a [`Question`] is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum About {
    /// Which jobs of this user's (root: of anybody's) have a part there?
    Jobs,
    /// A way to the agent there of this job.
    Agent {
        /// The job.
        job: String,
        /// See [`Sought::memory`].
        #[serde(with = "path")]
        memory: PathBuf,
    },
}

/// Daemon → daemon: the answer to a [`Question`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromPeer {
    /// Jobs and their users.
    Jobs(Vec<(String, u32)>),
    /// The agent is at the other end: from here on there is nothing but [`Carried`] in both directions.
    Here,
    /// There is no answer, and why.
    Refused(String),
}

/// Between daemons: what the part and the launcher say to each other, and how much of it may be under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Carried {
    /// What one of them has said.
    Bytes(Vec<u8>),
    /// So many bytes of what came from there have been passed on, and as many more may come.
    Taken(u32),
    /// Nothing more comes from here, or is taken here.
    End,
    /// Is the process there that carries? Whoever reads slowly behind it, it answers at once.
    Ask,
    /// Answer to [`Ask`](Self::Ask).
    Here,
}

/// How far one end of a link is, in bytes since its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// What has come.
    pub came: u64,
    /// What of it was said to be passed on.
    pub passed: u64,
}

/// Which part, and whose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// The number that the launcher speaks: the daemons between have told each other theirs.
    pub protocol: u32,
    /// The node that asks.
    pub from: String,
    /// The node that is meant.
    pub to: String,
    /// The user, by number and by name: both must be the same one's on both nodes.
    pub uid: u32,
    /// See `uid`.
    pub user: String,
    /// So many bytes may be under way to each end of the connection.
    pub window: u32,
    /// The part of the job.
    pub share: Share,
    /// A number of its own for the link, by which it goes on when its connection is lost; 0: it does not.
    #[serde(default)]
    pub link: u64,
}

/// A node's share of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The job's name.
    pub job: String,
    /// Number of the node in the job.
    pub me: u32,
    /// How many processes of the job may run there when it begins.
    pub slots: u32,
    /// Where its agent is to be reached by others, if there are any.
    pub bind: Option<IpAddr>,
}

/// What a part is told at first, by its daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// The node's name.
    pub node: String,
    /// Where its agent asks this daemon for the store.
    #[serde(with = "path")]
    pub store: PathBuf,
    /// Its share.
    pub share: Share,
    /// The command line, as in [`Image`].
    pub words: Vec<u8>,
    /// The working directory.
    #[serde(with = "path")]
    pub cwd: PathBuf,
    /// The umask.
    pub umask: u32,
    /// The soft limits.
    pub limits: [u64; LIMITS],
    /// The nice value of the ranks; the part's own may be a higher priority.
    pub nice: i32,
    /// So many bytes a second a job may send from here at most for copies of checkpoints; 0: as fast as it goes.
    pub copy_rate: u64,
    /// libfabric's providers for these copies, the best first, with commas between them; nothing: the best that there is.
    #[serde(default)]
    pub fabric: Option<String>,
}

/// Daemon → part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToPart {
    /// First message: what to make ready.
    Begin(Box<Begin>),
    /// All parts are ready: start.
    Go {
        /// The job's nodes; nothing if there is but one.
        cluster: Option<Box<Cluster>>,
    },
    /// What the launcher says.
    Order(Order),
    /// First message for the part of a step of Slurm's: what to make ready. Whatever else it has to be told the step's front tells it.
    BeginStep {
        /// The share is this node's of the step.
        begin: Box<Begin>,
        /// What the front is to hear of the node.
        node: Box<step::Node>,
    },
    /// First message for who looks for a job's agent here ([`WAY`]): answered by [`FromPart::Here`], with a connection to the agent on which
    /// nothing was said yet, or [`FromPart::Refused`].
    Find {
        /// The job.
        job: String,
        /// Its user.
        owner: u32,
        /// See [`Sought::memory`].
        #[serde(with = "path")]
        memory: PathBuf,
    },
}

/// Launcher → part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// For the ranks.
    Signal(i32),
    /// The job is to end; once more, at once.
    Cancel(i32),
    /// End what there is of the job here, at once.
    Kill(String),
    /// What comes next of standard input.
    Input(Vec<u8>),
    /// Nothing more comes of it.
    InputEnd,
    /// This epoch's block is printed: what was held back for it is not any longer.
    Announced(Epoch),
    /// A node comes into the job, behind those that there are.
    Joins(Box<ClusterNode>),
    /// Nothing: whoever is between the launcher and the part is there. Said by the part's own daemon when it is asked that itself.
    Pulse,
    /// Is it there? Answered at once by [`FromPart::Here`].
    Ask,
}

/// Part → launcher; the first word is for the daemon that asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromPart {
    /// There can be no part here.
    Refused {
        /// The exit status that says so.
        status: u8,
        /// Why.
        sentence: String,
    },
    /// It waits for [`ToPart::Go`].
    Prepared {
        /// Where its agent will be: one number for TCP and UDP; 0 if nobody asks for it.
        port: u16,
        /// What the machine calls itself.
        host: String,
        /// The number that the part and its agent speak.
        protocol: u32,
    },
    /// What a process of the job has written.
    Output {
        /// Its world; 0: it is ftd's own.
        world: World,
        /// Its slot.
        slot: Slot,
        /// Its rank, if it is one's.
        rank: Option<Rank>,
        /// On standard error.
        err: bool,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A rank has taken a version, and printed all that came before this on its standard output by then.
    Mark {
        /// Its world.
        world: World,
        /// Its slot.
        slot: Slot,
        /// Its rank.
        rank: Rank,
        /// The version.
        version: Version,
        /// The epoch.
        epoch: Epoch,
        /// It has printed no more than that.
        placed: bool,
    },
    /// What the ranks of a world take back is known: a version with its epoch, or nothing.
    Restores {
        /// The world.
        world: World,
        /// What.
        restored: Option<(Version, Epoch)>,
    },
    /// A line of the part's own.
    Line(String),
    /// A line of its agent's, which those of other nodes may say as well.
    Notice(String),
    /// A recovery is over.
    Block {
        /// The epoch that runs now.
        epoch: Epoch,
        /// Lines for standard error.
        text: String,
    },
    /// Rank 0 is here, and so many bytes of standard input may be sent in all.
    Room {
        /// The world in which it is here: of nodes that say so the one with the newest is right.
        world: World,
        /// How many.
        bytes: u64,
    },
    /// Nothing is left of the job on this node. The last word.
    Ended {
        /// The exit status.
        status: i32,
        /// So say the job's agents, and not this part alone.
        of_job: bool,
        /// So says this node's agent, and the store, which was away for too long, does not know of it: what other nodes say counts.
        #[serde(default)]
        unrecorded: bool,
        /// Output was lost, and that has been said.
        lost_output: bool,
        /// Why, when it is not a clean end.
        reason: Option<String>,
    },
    /// Answer to [`Order::Ask`], and to [`ToPart::Find`].
    Here,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::FromDaemon;

    #[test]
    fn words_come_back_as_they_were() {
        for words in [&[][..], &[&b""[..]], &[b"a", b"", b"b c"], &[b"", b""]] {
            let joined = join(words.iter().map(|word| word.to_vec()));
            assert_eq!(split(&joined).collect::<Vec<_>>(), words);
        }
    }

    #[test]
    fn who_is_refused_before_it_says_who_it_is_understands_that() {
        let said = crate::encode(&FromDaemon::Refused("no".into()), 0).unwrap();
        assert_eq!(crate::decode::<FromJobs>(&said[crate::FRAME_HEADER..]), Ok(FromJobs::Away("no".into())));
    }
}
