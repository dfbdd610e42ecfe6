//! A safe, asynchronous PMIx server on libpmix.
//!
//! libpmix calls back on a thread of its own; each such *upcall* is copied and pushed into a channel, from which
//! [`Server::upcall`] hands it out together with a responder that answers it exactly once, from any thread (a dropped
//! responder answers with an error). No raw pointer leaves this crate, and no panic crosses into C.
//!
//! libpmix's server is not safe against clients that die inside its calls, and it cannot be finalized then: a process
//! hosts it for one world, never holds anything worth keeping, and leaves with [`leave`].

mod job;
mod native;
mod settings;

pub use job::JobError;
pub use native::{
    Constructed, GroupResponder, LookupResponder, ModexResponder, OpResponder, SpawnResponder, Status, leave,
    take_inherited_socket,
};
pub use settings::{SETTINGS, Setting};

use ft_wire::Rank;
use ft_wire::pmix::{Proc, Raised, WorldInfo};
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;

/// What libpmix wants to know or tell.
#[derive(Debug)]
pub enum Upcall {
    /// A process connected.
    Connected {
        /// Which.
        proc: Proc,
        /// Lets it go on.
        respond: OpResponder,
    },
    /// A process called `PMIx_Finalize`.
    Finalized {
        /// Which.
        proc: Proc,
        /// Lets it go on.
        respond: OpResponder,
    },
    /// A connection broke without finalize.
    LostConnection {
        /// Whose.
        proc: Proc,
    },
    /// A process called `PMIx_Abort` and is blocked until it is answered.
    Abort {
        /// Which.
        proc: Proc,
        /// Status that it passed.
        status: i32,
        /// Message that it passed.
        message: String,
        /// Lets it go on.
        respond: OpResponder,
    },
    /// All local participants entered a fence.
    Fence {
        /// Participants.
        procs: Vec<Proc>,
        /// What this node contributes.
        data: Vec<u8>,
        /// Ends the fence with everybody's contributions.
        respond: ModexResponder,
    },
    /// A local process wants data of a process that lives elsewhere.
    Modex {
        /// Whose data.
        proc: Proc,
        /// Gives them.
        respond: ModexResponder,
    },
    /// Publish. Values are packed and opaque.
    Publish {
        /// Publisher.
        proc: Proc,
        /// Keys and values.
        values: Vec<(String, Vec<u8>)>,
        /// Only the first who looks them up is to find them.
        once: bool,
        /// Answers.
        respond: OpResponder,
    },
    /// Lookup of published values.
    Lookup {
        /// Who asks.
        proc: Proc,
        /// Keys.
        keys: Vec<String>,
        /// Wait until they are published.
        wait: bool,
        /// For so long; 0: without an end.
        seconds: u32,
        /// Answers.
        respond: LookupResponder,
    },
    /// Unpublish.
    Unpublish {
        /// Publisher.
        proc: Proc,
        /// Keys; empty means all.
        keys: Vec<String>,
        /// Answers.
        respond: OpResponder,
    },
    /// `PMIx_Connect` or `PMIx_Disconnect`.
    Connect {
        /// Participants.
        procs: Vec<Proc>,
        /// Connect (true) or disconnect (false).
        connect: bool,
        /// Answers.
        respond: OpResponder,
    },
    /// `PMIx_Spawn`.
    Spawn {
        /// Parent.
        proc: Proc,
        /// First program.
        command: String,
        /// Answers.
        respond: SpawnResponder,
    },
    /// A group is constructed; all local participants are in.
    Group {
        /// What they call it.
        name: String,
        /// Who is in it.
        members: Vec<Proc>,
        /// What the members want each other to know, as only libpmix understands it.
        shared: Option<Vec<u8>>,
        /// Answers.
        respond: GroupResponder,
    },
    /// A process raised an event; libpmix has told the local processes.
    Notified {
        /// Which.
        event: Raised,
        /// It is for processes of other nodes, too.
        far: bool,
    },
}

/// What can go wrong with the server.
#[derive(Debug, thiserror::Error)]
pub enum PmixError {
    /// The server was started before, or other threads run already.
    #[error("a PMIx server can be started once, by a process that has no other threads yet")]
    NotFirst,
    /// The folder for session files is not usable.
    #[error("cannot make the folder {path} for PMIx session files: {error}", path = path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The world's description makes no sense.
    #[error(transparent)]
    Job(#[from] JobError),
    /// libpmix refused.
    #[error("libpmix: {call} failed: {status}")]
    Call {
        /// The function.
        call: &'static str,
        /// What it said.
        status: Status,
    },
}

/// The environment that the process of each rank needs.
pub type RankEnvironment = Vec<(Rank, ft_wire::pmix::Variables)>;

/// libpmix's server in this process.
#[derive(Debug)]
pub struct Server {
    upcalls: mpsc::UnboundedReceiver<Upcall>,
    folder: PathBuf,
}

impl Server {
    /// Starts the server; its session files lie below `folder`. Must be the process's only thread when it is called,
    /// because it changes the environment (libpmix takes its settings from there).
    ///
    /// # Errors
    /// [`PmixError`].
    pub fn start(folder: &Path, host: &str) -> Result<Self, PmixError> {
        make_folder(folder)?;
        let upcalls = native::start(SETTINGS, job::server(folder, host))?;
        Ok(Server { upcalls, folder: folder.to_path_buf() })
    }

    /// What `PMIx_Get_version` says.
    pub fn version() -> String {
        native::version()
    }

    /// Registers a world and its local ranks; returns what the environment of each local rank needs.
    ///
    /// # Errors
    /// [`PmixError`].
    pub async fn register(&self, world: &WorldInfo) -> Result<RankEnvironment, PmixError> {
        let cpus = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
        let job = job::describe(world, &self.folder, cpus)?;
        make_folder(&self.folder.join(&world.nspace))?;
        if !world.tmpdir.as_os_str().is_empty() {
            make_folder(&world.tmpdir)?;
        }
        native::register_namespace(&world.nspace, job.local.len(), job.infos).await?;
        let mut environment = Vec::with_capacity(job.local.len());
        for rank in job.local {
            native::register_client(&world.nspace, rank).await?;
            environment.push((rank, native::setup_fork(&world.nspace, rank)?));
        }
        Ok(environment)
    }

    /// The next upcall. `None` never comes while the server runs.
    pub async fn upcall(&mut self) -> Option<Upcall> {
        self.upcalls.recv().await
    }

    /// Tells the local processes of an event that a process elsewhere has raised.
    ///
    /// # Errors
    /// [`PmixError`].
    pub async fn raise(event: Raised) -> Result<(), PmixError> {
        native::raise(event).await
    }

    /// The data that a local process has committed; waits until it has.
    pub async fn modex_data(proc: &Proc) -> (Status, Vec<u8>) {
        native::modex_request(proc).await
    }
}

/// Not its parents: where these are missing the job is over, and nobody would remove them again.
fn make_folder(path: &Path) -> Result<(), PmixError> {
    use std::os::unix::fs::DirBuilderExt;
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists || !path.is_dir() => {
            Err(PmixError::Folder { path: path.to_path_buf(), error })
        }
        _ => Ok(()),
    }
}
