//! Agent ⇄ `ft-pmix`, the disposable process that hosts libpmix's server for one world on one node.

use crate::{Rank, path};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// PMIx status: success.
pub const SUCCESS: i32 = 0;
/// PMIx status: something went wrong.
pub const ERROR: i32 = -1;
/// PMIx status: it has taken longer than it may.
pub const ERR_TIMEOUT: i32 = -24;
/// PMIx status: there is no room.
pub const ERR_OUT_OF_RESOURCE: i32 = -29;
/// PMIx status: no such data.
pub const ERR_NOT_FOUND: i32 = -46;
/// PMIx status: the host does not do this.
pub const ERR_NOT_SUPPORTED: i32 = -47;
/// PMIx status: not all of it.
pub const ERR_PARTIAL_SUCCESS: i32 = -52;

/// PMIx status: another value is published so.
pub const ERR_DUPLICATE_KEY: i32 = -53;

/// Open MPI 4 is silently a singleton, PMIx or not, unless it believes that a resource manager stands above it: this
/// variable, `FLUX_JOB_ID`, or `SLURM_NODELIST` with `SLURM_JOBID` and `SLURM_STEP_ID`. This one has the fewest readers:
/// it only makes Open MPI 4 use PMIx and leave the binding to processors alone. Open MPI 5 does not know it.
pub const NOT_SINGLETON: (&str, &str) = ("JSM_JSRUN_PORT", "0");
/// What Open MPI 4's own launcher sets when a node has more ranks than processors: waiting ranks then give the processor
/// away. (`mpi_yield_when_idle`, the user's own setting, goes before it.) Open MPI 5 takes it from the job's information.
pub const OVERSUBSCRIBED: (&str, &str) = ("OMPI_MCA_mpi_oversubscribe", "1");

/// Environment variables; their values may be paths.
pub type Variables = Vec<(String, Vec<u8>)>;

/// A process as PMIx names it. `rank` may be PMIx's wildcard (`u32::MAX - 1`, `0xffff_fffe`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Proc {
    /// Namespace.
    pub nspace: String,
    /// Rank in it.
    pub rank: u32,
}

/// An event that a process has raised (`PMIx_Notify_event`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Raised {
    /// By whom.
    pub source: Proc,
    /// Which.
    pub status: i32,
    /// Whom it is for, as PMIx numbers that.
    pub range: u8,
    /// What goes with it: keys and packed values, opaque to the agent.
    pub infos: Vec<(String, Vec<u8>)>,
}

/// The world to serve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorldInfo {
    /// PMIx namespace.
    pub nspace: String,
    /// Number of ranks.
    pub world_size: u32,
    /// Ranks per node: host name and its ranks, all nodes of the world, in node order.
    pub nodes: Vec<(String, Vec<Rank>)>,
    /// Index of this node in `nodes`.
    pub me: u32,
    /// Directory for the world's session files; `ft-pmix` creates it.
    #[serde(with = "path")]
    pub tmpdir: PathBuf,
    /// Incarnation, for `PMIX_REINCARNATION`.
    pub incarnation: u32,
    /// The programs, in the order of their ranks.
    pub apps: Vec<App>,
}

/// A program of a world.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct App {
    /// How many ranks it has: those that follow the ones of the programs before it.
    pub ranks: u32,
    /// Its name, for `PMIX_APP_ARGV`.
    pub argv0: Vec<u8>,
    /// Its working directory.
    pub cwd: Vec<u8>,
}

/// Agent → `ft-pmix`. `token` pairs an answer with its request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToPmix {
    /// Serve this world; answered by [`ToAgent::Registered`] or [`ToAgent::Failed`].
    Register(WorldInfo),
    /// The fence is complete everywhere; `data` is the concatenation of all nodes' contributions.
    FenceDone {
        /// Token of the request.
        token: u64,
        /// PMIx status, 0 is success.
        status: i32,
        /// Everyone's data.
        data: Vec<u8>,
    },
    /// Direct modex data of another node.
    ModexDone {
        /// Token of the request.
        token: u64,
        /// PMIx status.
        status: i32,
        /// The process's data.
        data: Vec<u8>,
    },
    /// Another node wants this node's process's data; answered by [`ToAgent::ModexData`].
    ModexRequest {
        /// Token.
        token: u64,
        /// Whose data.
        proc: Proc,
    },
    /// Answer to [`ToAgent::Group`]: all of its members are in.
    GroupDone {
        /// Token of the request.
        token: u64,
        /// PMIx status.
        status: i32,
        /// The number that all nodes know the group by.
        context: u64,
        /// What the nodes have given, one after the other.
        shared: Vec<u8>,
    },
    /// A process of another node has raised an event: the local ones hear of it.
    Raise(Raised),
    /// Is `ft-pmix` there? Answered at once by [`ToAgent::Here`].
    Ask,
    /// Answer to any other request.
    Done {
        /// Token of the request.
        token: u64,
        /// PMIx status.
        status: i32,
    },
    /// Answer to [`ToAgent::Lookup`].
    Found {
        /// Token of the request.
        token: u64,
        /// PMIx status.
        status: i32,
        /// Publisher, key and packed value as published.
        found: Vec<(Proc, String, Vec<u8>)>,
    },
}

/// `ft-pmix` → agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToAgent {
    /// `PMIx_server_init` is done; a world may be registered.
    Ready {
        /// What `PMIx_Get_version` says.
        version: String,
    },
    /// The world is registered; per local rank the environment its process needs.
    Registered {
        /// Rank and its environment.
        env: Vec<(Rank, Variables)>,
    },
    /// Answer to [`ToPmix::Ask`].
    Here,
    /// The world cannot be served; `ft-pmix` exits.
    Failed {
        /// One sentence.
        reason: String,
    },
    /// The processes want to tell more at a time than a message may have, and nothing of it is passed on.
    TooLong {
        /// Whose it is, if it is one rank's.
        rank: Option<Rank>,
        /// How long it is.
        error: String,
    },
    /// All local members of a group of a world over several nodes are in; answered by [`ToPmix::GroupDone`].
    Group {
        /// Token for the answer.
        token: u64,
        /// What the members call it.
        name: String,
        /// All members.
        procs: Vec<Proc>,
        /// A number for the group that no other node gives.
        context: u64,
        /// What this node gives.
        shared: Vec<u8>,
    },
    /// A process has raised an event that is for those of other nodes as well.
    Raised(Raised),
    /// A process connected to the server.
    Connected {
        /// Which.
        rank: Rank,
    },
    /// A process called `PMIx_Finalize` and waits for [`ToPmix::Done`].
    Finalized {
        /// Token for the answer.
        token: u64,
        /// Which.
        rank: Rank,
    },
    /// A connection broke without finalize.
    LostConnection {
        /// Which.
        rank: Rank,
    },
    /// A process called `PMIx_Abort` and waits for [`ToPmix::Done`].
    Abort {
        /// Token for the answer.
        token: u64,
        /// Which.
        rank: Rank,
        /// Status it passed.
        status: i32,
        /// Message it passed.
        message: String,
    },
    /// All local participants entered a fence; answered by [`ToPmix::FenceDone`].
    Fence {
        /// Token for the answer.
        token: u64,
        /// Participants.
        procs: Vec<Proc>,
        /// Data of this node.
        data: Vec<u8>,
    },
    /// A local process wants a remote process's data; answered by [`ToPmix::ModexDone`].
    Modex {
        /// Token for the answer.
        token: u64,
        /// Whose data.
        proc: Proc,
    },
    /// Answer to [`ToPmix::ModexRequest`].
    ModexData {
        /// Token.
        token: u64,
        /// Whose data it is, if it is said.
        #[serde(default)]
        rank: Option<Rank>,
        /// PMIx status.
        status: i32,
        /// The data.
        data: Vec<u8>,
    },
    /// Publish; answered by [`ToPmix::Done`]. Values are packed by libpmix and opaque to the agent.
    Publish {
        /// Token for the answer.
        token: u64,
        /// Publisher.
        proc: Proc,
        /// Keys and packed values.
        values: Vec<(String, Vec<u8>)>,
        /// Only the first who looks them up is to find them.
        once: bool,
    },
    /// Lookup; answered by [`ToPmix::Found`].
    Lookup {
        /// Token for the answer.
        token: u64,
        /// Who asks.
        proc: Proc,
        /// Keys.
        keys: Vec<String>,
        /// Wait until they are published.
        wait: bool,
        /// For so long; 0: without an end.
        seconds: u32,
    },
    /// Unpublish; answered by [`ToPmix::Done`].
    Unpublish {
        /// Token for the answer.
        token: u64,
        /// Publisher.
        proc: Proc,
        /// Keys; empty means all.
        keys: Vec<String>,
    },
    /// `PMIx_Connect` (true) or `PMIx_Disconnect` (false); answered by [`ToPmix::Done`].
    Connect {
        /// Token for the answer.
        token: u64,
        /// Participants.
        procs: Vec<Proc>,
        /// Connect or disconnect.
        connect: bool,
    },
    /// `PMIx_Spawn`; answered by [`ToPmix::Done`] (this mode refuses it by name).
    Spawn {
        /// Token for the answer.
        token: u64,
        /// Parent.
        proc: Proc,
        /// Program.
        command: String,
    },
}
