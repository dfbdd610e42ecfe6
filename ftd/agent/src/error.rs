//! Why the agent cannot work.

use crate::between::BetweenError;
use crate::link::LinkError;
use std::path::PathBuf;

/// Why the agent cannot work.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A variable that the launcher sets is missing or no descriptor.
    #[error("{0} does not name a descriptor: ft-agent is started by ftrun, not by hand")]
    NoDescriptor(&'static str),
    /// The launcher link broke before the job was described.
    #[error("the launcher did not describe the job: {0}")]
    NoJob(LinkError),
    /// The launcher sent something else first.
    #[error("the launcher's first message did not describe the job")]
    WrongFirst,
    /// The job's mode is none of this release's.
    #[error(transparent)]
    Mode(#[from] ftd_core::policy::ModeError),
    /// The job's directory cannot be used.
    #[error("{}: {error}", path.display())]
    JobDir {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The embedded store cannot be used.
    #[error(transparent)]
    Store(#[from] ft_store::StoreError),
    /// The other nodes cannot be reached.
    #[error(transparent)]
    Between(#[from] BetweenError),
    /// A system call failed.
    #[error("{0}")]
    Io(std::io::Error),
}
