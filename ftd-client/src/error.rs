//! What can go wrong, each with the code that C programs see.

use ft_arena::ArenaError;
use ft_sys::channel::ChannelError;
use ft_wire::FrameError;
use std::time::Duration;

/// Why a call failed. The message is one sentence; the library also prints it on stderr.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is nothing to restore: the program begins from its start. Not a failure, and not printed.
    #[error("no checkpoint is complete for all ranks: there is nothing to restore")]
    Nothing,
    /// A call before the one it needs, or after the last one.
    #[error("{0}")]
    Order(&'static str),
    /// An argument that cannot be meant.
    #[error("{0}")]
    Argument(String),
    /// A region does not have the size that it had when the version was written.
    #[error(
        "version {version} holds {saved} bytes of region {id}, but {protected} bytes are protected now: nothing was restored"
    )]
    Size {
        /// The version.
        version: u64,
        /// The region.
        id: i32,
        /// Bytes in the version.
        saved: u64,
        /// Bytes protected now.
        protected: u64,
    },
    /// A region is protected now and was not when the version was written.
    #[error("version {version} does not hold region {id}, which is protected now: nothing was restored")]
    Missing {
        /// The version.
        version: u64,
        /// The region.
        id: i32,
    },
    /// A version that is not greater than the one before.
    #[error("version {version} is not greater than version {last}: versions must increase")]
    Version {
        /// The version that was asked for.
        version: u64,
        /// The one before.
        last: u64,
    },
    /// The checkpoint does not fit in memory. Older versions are as they were.
    #[error("version {version} was not written: {reason}; older versions are untouched")]
    Memory {
        /// The version.
        version: u64,
        /// One sentence with the numbers.
        reason: String,
    },
    /// The process may have no more memory.
    #[error("there is no memory for checkpoints: {reason}{limit}")]
    Short {
        /// One sentence.
        reason: String,
        /// The limit that may be why, as a further sentence; or nothing.
        limit: String,
    },
    /// No place became free in time.
    #[error(
        "version {version} was not written: all three places of the arena hold versions that must be kept, and the agent released none for {:.0} s (FT_CHECKPOINT_TIMEOUT): {whom}",
        waited.as_secs_f64()
    )]
    Timeout {
        /// The version.
        version: u64,
        /// How long the rank waited.
        waited: Duration,
        /// The ranks that are missing, and the version that they lack, as the agent says.
        whom: String,
    },
    /// A rank takes no more versions, and none counts without it.
    #[error(
        "version {version} was not written: {left} and takes no more checkpoints, and no version counts before every rank has it"
    )]
    Left {
        /// The version.
        version: u64,
        /// Who, and what it did: `rank 2 has called ft_finalize after version 7`.
        left: String,
    },
    /// The agent does not answer.
    #[error("the agent of this job does not answer while {doing}: {source}")]
    Agent {
        /// What was going on.
        doing: &'static str,
        /// What happened to the connection.
        source: ChannelError,
    },
    /// The agent did not answer an earlier call.
    #[error("the agent of this job stopped answering before {doing}")]
    Lost {
        /// What was to be done.
        doing: &'static str,
    },
    /// The agent answered something else.
    #[error("the agent gave no proper answer while {doing}")]
    Confused {
        /// What was going on.
        doing: &'static str,
    },
    /// Library and agent are from different releases.
    #[error("libftd_client and the agent of this job are from different releases of ftd ({0})")]
    Mixed(String),
    /// The agent knows no such process, or wants none.
    #[error("the agent of this job refused this process: {0}")]
    Refused(String),
    /// The arena is not what it should be.
    #[error(transparent)]
    Arena(ArenaError),
    /// A call in a child of the process that called `ft_init`.
    #[error(
        "this process (pid {pid}) is a child of the one that called ft_init (pid {owner}): it cannot use its checkpoints"
    )]
    Child {
        /// This process.
        pid: i32,
        /// The process that called `ft_init`.
        owner: i32,
    },
    /// A bug in the library.
    #[error("an internal error of libftd_client: {0}")]
    Internal(String),
}

impl From<ArenaError> for Error {
    fn from(error: ArenaError) -> Error {
        match error.is_shortage() {
            true => Error::Short { reason: error.to_string(), limit: limit_of_memory() },
            false => Error::Arena(error),
        }
    }
}

/// What limits this process's memory, as a further sentence; nothing where that is the machine.
pub(crate) fn limit_of_memory() -> String {
    match ft_sys::memory::address_space_limit() {
        u64::MAX => String::new(),
        most => format!("; the limit of this process's memory (ulimit -v) is {} KiB", most >> 10),
    }
}

impl Error {
    /// The code that the C interface returns.
    pub fn code(&self) -> i32 {
        match self {
            Error::Nothing => 1,
            Error::Order(_) | Error::Left { .. } => 2,
            Error::Argument(_) => 3,
            Error::Size { .. } | Error::Missing { .. } => 4,
            Error::Version { .. } => 5,
            Error::Memory { .. } | Error::Short { .. } => 6,
            Error::Timeout { .. } => 7,
            Error::Agent { .. } | Error::Lost { .. } | Error::Confused { .. } => 8,
            Error::Mixed(_) => 9,
            Error::Refused(_) => 10,
            Error::Arena(_) => 11,
            Error::Child { .. } => 12,
            Error::Internal(_) => 13,
        }
    }

    /// A failure of the connection, told apart from a peer of another release.
    pub(crate) fn agent(doing: &'static str, source: ChannelError) -> Error {
        match source {
            ChannelError::Frame(error @ FrameError::Version { .. }) => Error::Mixed(error.to_string()),
            source => Error::Agent { doing, source },
        }
    }
}

/// One sentence per code, for `ft_strerror`; each ends with a NUL.
pub(crate) fn describe(code: i32) -> &'static std::ffi::CStr {
    match code {
        0 => c"success",
        1 => c"there is no complete checkpoint to restore",
        2 => c"the call comes too early or too late",
        3 => c"an argument is not valid",
        4 => c"a protected region does not match the checkpoint",
        5 => c"the version is not greater than the one before",
        6 => c"the checkpoint does not fit in memory",
        7 => c"no place for the checkpoint became free in time",
        8 => c"the agent of this job does not answer",
        9 => c"the library and the agent are from different releases of ftd",
        10 => c"the agent refused this process",
        11 => c"the checkpoint memory cannot be used or is damaged",
        12 => c"the process is a child of the one that called ft_init",
        13 => c"an internal error of the library",
        _ => c"an unknown error code",
    }
}
