//! What Slurm's `scontrol` is asked.

use crate::config::check_name;
use std::io;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::timeout;

/// Slurm's controller has so long.
const PATIENCE: Duration = Duration::from_secs(60);
/// The node's slurmd has so long to take a connection.
const ATTEMPT: Duration = Duration::from_secs(2);
/// What the administrator reads (`sinfo -R`).
const REASON: &str = "ftd: no ftd on this node (its lease in etcd has expired)";

/// What became of it.
#[derive(Debug, PartialEq, Eq)]
pub enum Done {
    /// The node is drained.
    Drained,
    /// It was out of service, with this state, and with whoever's reason.
    Left(String),
    /// Nobody answers where its slurmd listens: Slurm takes it down itself, and up again when it is back.
    Silent,
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

impl DrainError {
    /// Whether it may go another time: the controller was busy, or another one takes over.
    pub fn may_pass(&self) -> bool {
        matches!(self, DrainError::Late | DrainError::Refused(_))
    }
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
    if let Some(state) = value(&shown, "State").filter(|state| !serves(state)) {
        return Ok(Done::Left(state.into()));
    }
    let config = ask(scontrol, &["show", "config"]).await?;
    if !is_there(value(&shown, "NodeAddr").unwrap_or(node), port(&shown, &config)).await {
        return Ok(Done::Silent);
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

/// Of `State=IDLE+DRAIN`.
fn value<'a>(shown: &'a str, name: &str) -> Option<&'a str> {
    shown.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// Whether Slurm gives jobs to a node in this state: one that it powers down, reboots, or does not hear is out of service already.
fn serves(state: &str) -> bool {
    let mut words = state.split('+');
    let base = words.next().is_some_and(|base| matches!(base, "IDLE" | "ALLOCATED" | "MIXED" | "COMPLETING"));
    base && words.all(|flag| matches!(flag, "CLOUD" | "COMPLETING" | "PLANNED" | "RESERVED" | "DYNAMIC_NORM"))
}

/// Where the node's slurmd listens.
fn port(shown: &str, config: &str) -> u16 {
    const ORDINARY: u16 = 6818;
    let of_all = config.split(';').find_map(|line| line.trim().strip_prefix("SlurmdPort")?.split_once('='));
    let of_all = of_all.and_then(|(_, port)| port.trim().split('-').next()?.parse().ok());
    value(shown, "Port").and_then(|port| port.parse().ok()).or(of_all).unwrap_or(ORDINARY)
}

async fn is_there(address: &str, port: u16) -> bool {
    timeout(ATTEMPT, TcpStream::connect((address, port))).await.is_ok_and(|connected| connected.is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_gets_no_jobs_is_left_as_it_is() {
        let shown = "NodeName=n7 Arch=x86_64 CoresPerSocket=1 OS=Linux State=MIXED+DRAIN ThreadsPerCore=1 Reason=disk";
        assert!(value(shown, "State").is_some_and(|state| !serves(state)));
        for (state, wanted) in [
            ("IDLE", true),
            ("ALLOCATED", true),
            ("MIXED+CLOUD", true),
            ("IDLE*", false),
            ("IDLE+NOT_RESPONDING", false),
            ("DOWN*", false),
            ("IDLE+DRAIN", false),
            ("IDLE+CLOUD+POWERED_DOWN", false),
            ("IDLE~", false),
            ("ALLOCATED+REBOOT_REQUESTED", false),
            ("UNKNOWN", false),
        ] {
            assert_eq!(serves(state), wanted, "{state}");
        }
        assert_eq!(value("slurm_load_node error: Unable to contact slurm controller", "State"), None);
    }

    #[test]
    fn slurmd_is_looked_for_where_it_listens() {
        let config = "SlurmctldPort           = 6817; SlurmdPort              = 7003; Other = 1";
        let of = |shown, config| port(shown, config);
        assert_eq!((of("A=1 Port=9 B=2", config), of("A=1", config), of("A=1", "")), (9, 7003, 6818));
    }

    #[tokio::test]
    async fn only_what_names_one_node_is_asked_for() {
        for name in ["", "ALL", "n[1-9]", "a,b", "n1 state=down"] {
            assert!(matches!(drain(Path::new("/no/such"), name).await, Err(DrainError::Name(_))), "{name}");
        }
        assert!(matches!(drain(Path::new("/no/such"), "n1").await, Err(DrainError::Program { .. })));
    }
}
