//! What Slurm's `scontrol` is asked.

use crate::config::check_name;
use std::io;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;
use tokio::process::Command;
use tokio::time::timeout;

/// Slurm's controller has so long.
const PATIENCE: Duration = Duration::from_secs(60);
/// What the administrator reads (`sinfo -R`).
const REASON: &str = "ftd: no ftd on this node (its lease in etcd has expired)";

/// What became of it.
#[derive(Debug, PartialEq, Eq)]
pub enum Done {
    /// The node is drained.
    Drained,
    /// It was out of service, with this state, and with whoever's reason.
    Left(String),
}

/// Why a node is not drained.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// That is no node's name.
    #[error("'{}' is no name of a node of Slurm's", .0.escape_debug())]
    Name(String),
    /// There is no scontrol.
    #[error("{program} cannot be executed: {error}")]
    Program {
        /// Which.
        program: String,
        /// What the system says.
        error: io::Error,
    },
    /// It has not ended in time.
    #[error("scontrol has not ended within {} s", PATIENCE.as_secs())]
    Late,
    /// It refuses.
    #[error("scontrol says: {0}")]
    Refused(String),
}

/// Drains a node; one that Slurm gives no new jobs anyway is left as it is.
///
/// # Errors
/// [`DrainError`].
pub async fn drain(scontrol: &Path, node: &str) -> Result<Done, DrainError> {
    // Of scontrol's, that is all of them.
    if check_name(node).is_err() || node.eq_ignore_ascii_case("all") {
        return Err(DrainError::Name(node.into()));
    }
    let shown = ask(scontrol, &["-o", "show", "node", node]).await?;
    if let Some(state) = state_of(&shown).filter(|state| is_out_of_service(state)) {
        return Ok(Done::Left(state.into()));
    }
    let (name, reason) = (format!("nodename={node}"), format!("reason={REASON}"));
    ask(scontrol, &["update", &name, "state=drain", &reason]).await?;
    Ok(Done::Drained)
}

async fn ask(scontrol: &Path, words: &[&str]) -> Result<String, DrainError> {
    let mut command = Command::new(scontrol);
    command.args(words).stdin(Stdio::null()).kill_on_drop(true);
    let ended = timeout(PATIENCE, command.output()).await.map_err(|_| DrainError::Late)?;
    let program = || scontrol.display().to_string();
    let Output { status, stdout, stderr } = ended.map_err(|error| DrainError::Program { program: program(), error })?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().replace('\n', "; ");
    match status.success() {
        true => Ok(text(&stdout)),
        false => {
            Err(DrainError::Refused(format!("{} ({status})", text(if stderr.is_empty() { &stdout } else { &stderr }))))
        }
    }
}

/// `State=IDLE+DRAIN`.
fn state_of(shown: &str) -> Option<&str> {
    shown.split_ascii_whitespace().find_map(|word| word.strip_prefix("State="))
}

fn is_out_of_service(state: &str) -> bool {
    state.split('+').any(|word| word.starts_with("DOWN") || word.starts_with("DRAIN"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_gets_no_jobs_is_left_as_it_is() {
        let shown = "NodeName=n7 Arch=x86_64 CoresPerSocket=1 OS=Linux State=MIXED+DRAIN ThreadsPerCore=1 Reason=disk";
        assert!(state_of(shown).is_some_and(is_out_of_service));
        for (state, out) in [
            ("IDLE", false),
            ("ALLOCATED", false),
            ("IDLE*", false),
            ("DOWN*", true),
            ("DOWN+NOT_RESPONDING", true),
            ("IDLE+DRAIN", true),
        ] {
            assert_eq!(is_out_of_service(state), out, "{state}");
        }
        assert_eq!(state_of("slurm_load_node error: Unable to contact slurm controller"), None);
    }

    #[tokio::test]
    async fn only_what_names_one_node_is_asked_for() {
        for name in ["", "ALL", "n[1-9]", "a,b", "n1 state=down"] {
            assert!(matches!(drain(Path::new("/no/such"), name).await, Err(DrainError::Name(_))), "{name}");
        }
        assert!(matches!(drain(Path::new("/no/such"), "n1").await, Err(DrainError::Program { .. })));
    }
}
