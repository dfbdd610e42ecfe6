//! This node's `ftd`, which knows of jobs on other nodes, and leads to their agents.

use crate::find::memory;
use ft_sys::channel::{Channel, ChannelError};
use ft_wire::part::{FromJobs, MAX_SAID, Running, Sought, ToJobs};
use ft_wire::step::DAEMON;
use ft_wire::{FRAME_HEADER, Role};
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A daemon that is there answers at once …
const PATIENCE: Duration = Duration::from_secs(5);
/// … and when it has asked other nodes.
const OTHERS: Duration = Duration::from_secs(20);
/// Where a machine that is a node of a cluster has its configuration.
const CONFIG: &str = "/etc/ftd/ftd.toml";

/// Why nothing is known of other nodes.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// There is none, nor need there be one.
    #[error("no ftd runs here ({}; FT_DAEMON)", .0.display())]
    Without(PathBuf),
    /// It does not run.
    #[error(
        "no ftd answers on {} (FT_DAEMON) to ask for those of other nodes: {error}; start it (systemctl start ftd), or ask on a node where \
         the job runs",
        path.display()
    )]
    Nobody {
        /// On which socket.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// It does not answer.
    #[error("ftd ({}) does not say what runs on other nodes: {error}{}", path.display(), error.of_daemon())]
    Link {
        /// On which socket.
        path: PathBuf,
        /// What came instead.
        error: ChannelError,
    },
    /// It refuses.
    #[error("{0}")]
    Refused(String),
}

/// Nodes that have not answered, in a sentence.
pub fn silent(nodes: &[String]) -> String {
    const MOST: usize = 8;
    let named = nodes.iter().take(MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = nodes.len().saturating_sub(MOST);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!(
        "the ftd of {named}{more} does not answer: what runs on no other node is not known; look there with ftd status"
    )
}

fn socket() -> (PathBuf, bool) {
    let told: Option<OsString> = std::env::var_os("FT_DAEMON").filter(|path| !path.is_empty());
    let is_told = told.is_some();
    (told.map_or_else(|| DAEMON.into(), PathBuf::from), is_told)
}

fn dial() -> Result<(PathBuf, Channel), DaemonError> {
    let (path, is_told) = socket();
    match Channel::dial(&path, Role::Launcher, PATIENCE) {
        Ok(link) => Ok((path, link)),
        Err(ChannelError::Dial { error, .. })
            if error.kind() == io::ErrorKind::NotFound && !is_told && !Path::new(CONFIG).exists() =>
        {
            Err(DaemonError::Without(path))
        }
        Err(ChannelError::Dial { path, error }) => Err(DaemonError::Nobody { path, error }),
        Err(error) => Err(DaemonError::Link { path, error }),
    }
}

/// The jobs of this user (root: all) that have parts on nodes of the cluster, and the nodes that do not say whether they have.
///
/// # Errors
/// [`DaemonError`].
pub fn jobs() -> Result<(Vec<Running>, Vec<String>), DaemonError> {
    let (path, mut link) = dial()?;
    let asked = link.ask(&ToJobs::Jobs).and_then(|()| link.receive(Some(OTHERS)));
    match asked.map_err(|error| DaemonError::Link { path: path.clone(), error })?.0 {
        FromJobs::Running { jobs, silent } => Ok((jobs, silent)),
        FromJobs::Refused { sentence, .. } | FromJobs::Away(sentence) => Err(DaemonError::Refused(sentence)),
        _ => Err(DaemonError::Link { path, error: ChannelError::Closed }),
    }
}

/// A connection to a job's agent, on which nothing was said yet.
///
/// # Errors
/// [`DaemonError`].
pub fn agent(running: &Running) -> Result<UnixStream, DaemonError> {
    let (path, mut link) = dial()?;
    let sought = Sought { job: running.job.clone(), nodes: running.nodes.clone(), memory: memory() };
    let failed = |error| DaemonError::Link { path: path.clone(), error };
    link.ask(&ToJobs::Agent(Box::new(sought))).map_err(failed)?;
    // Not a byte more is read: what follows is the agent's.
    let stream = UnixStream::from(link.try_clone().map_err(|error| failed(error.into()))?);
    match answer(&stream).map_err(failed)? {
        FromJobs::Here => Ok(stream),
        FromJobs::Refused { sentence, .. } | FromJobs::Away(sentence) => Err(DaemonError::Refused(sentence)),
        _ => Err(failed(ChannelError::Closed)),
    }
}

fn answer(mut stream: &UnixStream) -> Result<FromJobs, ChannelError> {
    stream.set_read_timeout(Some(OTHERS))?;
    let mut header = [0; FRAME_HEADER];
    stream.read_exact(&mut header)?;
    let bytes = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    if bytes > MAX_SAID {
        return Err(ft_wire::FrameError::TooLong { bytes, most: MAX_SAID }.into());
    }
    let mut body = vec![0; bytes];
    stream.read_exact(&mut body)?;
    stream.set_read_timeout(None)?;
    Ok(ft_wire::decode(&body)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_silent_nodes_are_a_short_sentence() {
        let nodes: Vec<String> = (0..100).map(|number| format!("n{number}")).collect();
        assert!(silent(&nodes[..2]).starts_with("the ftd of n0, n1 does not answer: "));
        assert!(silent(&nodes).starts_with("the ftd of n0, n1, n2, n3, n4, n5, n6, n7 and 92 more does not answer: "));
    }
}
