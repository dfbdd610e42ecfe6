//! What the user chose, and every time-out with its reason.

use crate::ids::Micros;
use std::fmt;
use std::str::FromStr;

/// Who survives a failure (`--ft=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// Nobody: ftd only launches.
    None,
    /// The job: all ranks restart in place from the newest complete checkpoint.
    #[default]
    Reinit,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::None => "none",
            Mode::Reinit => "reinit",
        })
    }
}

/// A mode that cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModeError {
    /// Designed, but not in this release.
    #[error("the mode '{0}' is not built yet: this release has none and reinit")]
    NotBuilt(String),
    /// No such mode.
    #[error("'{0}' is no mode: choose none or reinit")]
    Unknown(String),
}

impl FromStr for Mode {
    type Err = ModeError;

    fn from_str(word: &str) -> Result<Self, ModeError> {
        match word {
            "none" => Ok(Mode::None),
            "reinit" => Ok(Mode::Reinit),
            "spare" | "replicate" | "ulfm" => Err(ModeError::NotBuilt(word.to_string())),
            _ => Err(ModeError::Unknown(word.to_string())),
        }
    }
}

/// What all agents of a job must go by alike: it stands in the record, and nobody uses others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Terms {
    /// Period of the heartbeats.
    pub period: Micros,
    /// T: a node that was silent this long may be proposed dead by its observers.
    pub timeout: Micros,
    /// P: a node that nobody acknowledges accuses nobody for this long.
    pub patience: Micros,
    /// k: how many of the next nodes in the ring observe a node.
    pub observers: u32,
    /// How many children a node has in the tree.
    pub fan_out: u32,
}

impl Terms {
    /// Before there is a record.
    pub(crate) const NONE: Terms =
        Terms { period: Micros(0), timeout: Micros(0), patience: Micros(0), observers: 0, fan_out: 0 };
}

impl Default for Terms {
    fn default() -> Self {
        Policy::default().terms()
    }
}

/// The same on every agent of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// `--ft-max-failures`: deaths of one rank in a row, without progress, that end the job.
    pub max_failures: u32,
    /// So many epochs in a row that lose a node before their world runs end the job. Two halves of it that do not hear each
    /// other, and of which neither has slots enough, would leave each other out for ever.
    pub max_vain: u32,
    /// `--ft-on-abort=recover`: an abort or own error of the program is recovered from like a failure.
    pub recover_aborts: bool,
    /// `--ft-oversubscribe`: the ranks of a lost node for which no slot is free get some that other nodes have beyond their own.
    pub oversubscribe: bool,
    /// `--ft-grace`: so long after a signal that ends the job its ranks may still run; 0 ends them at once.
    pub grace: Micros,
    /// Failures that arrive this close together go into one record.
    pub batch_window: Micros,
    /// This long computing since the release counts as progress, checkpoint or not.
    pub progress_after: Micros,
    /// The start waits this long for every slot of every node to come up.
    pub start_timeout: Micros,
    /// … and, where the slots of the others are enough, this long for a node whose agent was never heard. For one that was
    /// heard and does not answer any more it waits four heartbeat time-outs.
    pub absent_timeout: Micros,
    /// A recovery waits this long for the replacement of a lost slot.
    pub slot_timeout: Micros,
    /// A job on several nodes that has not slots enough waits this long for another node, or for one that was silent.
    pub node_timeout: Micros,
    /// Processes that were sent SIGKILL have this long to be gone; longer is a process the kernel cannot kill.
    pub stop_timeout: Micros,
    /// The old world's output has this long to be read before the new world is started all the same.
    pub drain_timeout: Micros,
    /// The checksums of the frozen checkpoints have this long to be verified before the choice is made without those that are not.
    pub inventory_timeout: Micros,
    /// What is told of how a process died waits this long for its exit. (An end by a process's own will that is held waits for it
    /// without a clock.)
    pub exit_timeout: Micros,
    /// After an abort that is the program's own wish its process has this long to write its last words.
    pub abort_grace: Micros,
    /// The report of a recovery waits this long after the last sign of it (a program may never call `MPI_Init` or
    /// `ft_restore`), then it is given without.
    pub report_patience: Micros,
    /// The same while a rank is known to be inside `MPI_Init`, which takes long where many ranks share few processors.
    pub init_patience: Micros,
    /// An unreachable store is asked again after this long.
    pub store_retry: Micros,
    /// A recovery or a start gives up on an unreachable store after this long.
    pub store_timeout: Micros,
    /// An end of the job that an unreachable store does not take waits this long for it; then the agents end without.
    pub end_timeout: Micros,
    /// Period of the heartbeats between agents; short, because a period is what a lost datagram costs.
    pub heartbeat_period: Micros,
    /// A node that was silent this long may be proposed dead by its observers. It stops itself after three quarters.
    pub heartbeat_timeout: Micros,
    /// A node that nobody acknowledges accuses nobody for this long: when a switch restarts, everybody stands still, and goes
    /// on when it is back.
    pub patience: Micros,
    /// How many of the next nodes in the ring observe a node.
    pub observers: usize,
    /// A node that would end the job because others are silent to it and the rest has not slots enough waits this long: they may be on the
    /// larger side of a cut, and go on without it.
    pub yield_timeout: Micros,
    /// Ranks that were stopped because neither observers nor the store answer are killed after this long.
    pub fence_kill: Micros,
    /// How many children a node has in the tree through which an epoch's words go.
    pub fan_out: u32,
    /// How many past failures a record carries.
    pub history: usize,
}

impl Policy {
    /// What stands in the record.
    pub fn terms(&self) -> Terms {
        Terms {
            period: self.heartbeat_period,
            timeout: self.heartbeat_timeout,
            patience: self.patience,
            observers: self.observers.max(1) as u32,
            fan_out: self.fan_out.max(1),
        }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            max_failures: 5,
            max_vain: 32,
            recover_aborts: false,
            oversubscribe: false,
            grace: Micros::from_secs(10),
            batch_window: Micros::from_millis(1),
            progress_after: Micros::from_secs(30),
            start_timeout: Micros::from_secs(60),
            absent_timeout: Micros::from_secs(10),
            slot_timeout: Micros::from_secs(10),
            node_timeout: Micros::from_secs(60),
            stop_timeout: Micros::from_secs(30),
            drain_timeout: Micros::from_secs(2),
            inventory_timeout: Micros::from_secs(120),
            exit_timeout: Micros::from_secs(5),
            abort_grace: Micros::from_millis(500),
            report_patience: Micros::from_secs(5),
            init_patience: Micros::from_secs(30),
            store_retry: Micros::from_millis(100),
            store_timeout: Micros::from_secs(600),
            end_timeout: Micros::from_secs(20),
            heartbeat_period: Micros::from_millis(100),
            heartbeat_timeout: Micros::from_millis(500),
            patience: Micros::from_secs(30),
            observers: 3,
            fan_out: 16,
            yield_timeout: Micros::from_secs(5),
            fence_kill: Micros::from_secs(60),
            history: 32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_that_are_not_built_are_refused_by_name() {
        assert_eq!("reinit".parse(), Ok(Mode::Reinit));
        assert!("spare".parse::<Mode>().unwrap_err().to_string().contains("'spare' is not built yet"));
        assert!("magic".parse::<Mode>().unwrap_err().to_string().contains("'magic' is no mode"));
    }
}
