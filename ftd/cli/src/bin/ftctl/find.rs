//! The jobs of a user on this machine, by their directories in memory.

use crate::ask::{self, AskError};
use ft_sys::channel::ChannelError;
use ft_wire::AGENT_SOCKET;
use ft_wire::ask::Job;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where they are when `FT_MEMORY_DIR` says nothing.
const MEMORY: &str = "/dev/shm";

/// Why a job is not found.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// The place where they are.
    #[error("the memory directory {} (FT_MEMORY_DIR) cannot be read: {error}", path.display())]
    Memory {
        /// Which.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// There is none.
    #[error("no job {name}of this user runs here (in {}; FT_MEMORY_DIR): ftctl jobs lists those that do", memory.display())]
    None {
        /// What was asked for.
        name: String,
        /// Where it was looked for.
        memory: PathBuf,
    },
    /// There are several.
    #[error("{0} are meant: name one of them")]
    Several(String),
    /// It does not answer.
    #[error(transparent)]
    Ask(#[from] AskError),
}

/// A job's directory.
#[derive(Debug)]
pub struct Found {
    /// The agent's socket.
    pub socket: PathBuf,
    /// Whose it is.
    pub uid: u32,
}

fn memory() -> PathBuf {
    let told = std::env::var_os("FT_MEMORY_DIR").filter(|value| !value.is_empty());
    told.map_or_else(|| PathBuf::from(MEMORY), PathBuf::from)
}

/// What this user may ask.
fn directories() -> Result<Vec<Found>, FindError> {
    let path = memory();
    let entries = std::fs::read_dir(&path).map_err(|error| FindError::Memory { path, error })?;
    let own = nix::unistd::Uid::effective();
    let mut found: Vec<Found> = entries.flatten().filter_map(|entry| of(&entry.path())).collect();
    found.retain(|found| own.is_root() || found.uid == own.as_raw());
    found.sort_by(|a, b| a.socket.cmp(&b.socket));
    Ok(found)
}

/// The job whose directory this is; it has the user's number in its name, and is his.
fn of(directory: &Path) -> Option<Found> {
    let uid: u32 = directory.file_name()?.to_str()?.strip_prefix("ftd-")?.split('-').next()?.parse().ok()?;
    let metadata = std::fs::symlink_metadata(directory).ok()?;
    (metadata.is_dir() && metadata.uid() == uid).then(|| Found { socket: directory.join(AGENT_SOCKET), uid })
}

/// The process that the user started: above the one that runs the job, unless that is a part of one over several nodes.
fn started(launcher: i32) -> i32 {
    let above = ft_sys::proc::stat(&ft_sys::proc::of(launcher)).ok().flatten().map_or(0, |stat| stat.ppid);
    let is_ftrun = std::fs::read(ft_sys::proc::of(above).join("comm")).is_ok_and(|name| name == b"ftrun\n");
    if is_ftrun { above } else { launcher }
}

/// Whether nobody is there: what is left of a job that has ended.
fn is_over(error: &AskError) -> bool {
    matches!(error, AskError::Silent { error: ChannelError::Dial { .. } | ChannelError::Closed, .. })
}

/// The jobs that answered, and what was wrong with those that did not.
pub type Answers = (Vec<(Found, Job)>, Vec<AskError>);

/// All of them, and why others do not answer.
///
/// # Errors
/// [`FindError::Memory`].
pub fn jobs() -> Result<Answers, FindError> {
    let (mut jobs, mut silent) = (Vec::new(), Vec::new());
    for found in directories()? {
        match ask::job(&found) {
            Ok(mut job) => {
                job.launcher = started(job.launcher);
                jobs.push((found, job));
            }
            Err(error) if is_over(&error) => {}
            Err(error) => silent.push(error),
        }
    }
    Ok((jobs, silent))
}

/// The one that is meant by its name, the beginning of it, or the number of its `ftrun`; the only one, without.
///
/// # Errors
/// [`FindError`].
pub fn one(name: Option<&str>) -> Result<(Found, Job), FindError> {
    let (jobs, mut silent) = jobs()?;
    let meant = |job: &Job| match name {
        None => true,
        Some(name) => {
            job.name.starts_with(name) || job.launcher.to_string() == name || job.name.contains(&format!("-{name}-"))
        }
    };
    let mut meant: Vec<(Found, Job)> = jobs.into_iter().filter(|(_, job)| meant(job)).collect();
    if meant.len() > 1 {
        return Err(FindError::Several(meant.iter().map(|(_, job)| job.name.as_str()).collect::<Vec<_>>().join(", ")));
    }
    match (meant.pop(), silent.pop()) {
        (Some(one), _) => Ok(one),
        (None, Some(error)) => Err(error.into()),
        (None, None) => {
            let name = name.map(|name| format!("{name} ")).unwrap_or_default();
            Err(FindError::None { name, memory: memory() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_the_users_whose_number_it_bears() {
        let memory = tempfile::tempdir().unwrap();
        let own = nix::unistd::Uid::effective().as_raw();
        let made = |name: String| {
            let path = memory.path().join(name);
            std::fs::create_dir(&path).unwrap();
            of(&path).map(|found| found.uid)
        };
        assert_eq!(made(format!("ftd-{own}-7-abc")), Some(own));
        for other in [format!("ftd-{}-7-abc", own + 1), "ftd-x-7-abc".into(), format!("tmp-{own}-7"), "ftd-".into()] {
            assert_eq!(made(other.clone()), None, "{other}");
        }
        let link = memory.path().join(format!("ftd-{own}-8-abc"));
        std::os::unix::fs::symlink(memory.path().join(format!("ftd-{own}-7-abc")), &link).unwrap();
        assert!(of(&link).is_none(), "what a link leads to may be anybody's");
    }
}
