//! Where a step of Slurm's lives on this node: the control groups of who dials, by which the kernel says which step that is, and its mount
//! name space. Nobody but root can bring a process into a group of Slurm's.

use crate::groups::{MOUNTED, PROCESSES};
use ft_sys::individual::Held;
use ft_sys::mounts;
use ft_wire::step::StepId;
use nix::sched::{CloneFlags, setns};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The control groups of a step's task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Home {
    groups: Vec<PathBuf>,
}

/// Why it is not known where somebody lives.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// It has ended.
    #[error("the task that asked for a part of its step has ended")]
    Gone,
    /// It is no step's.
    #[error(
        "process {0}, which asks for a part of its step, is in no control group of a step of Slurm's: \
         ftd needs ProctrackType=proctrack/cgroup in slurm.conf"
    )]
    NoStep(i32),
    /// What it sees mounted is its user's making.
    #[error(
        "process {0}, which asks for a part of its step, is in a user name space of its own: ftd does not enter a mount name space that a \
         user has made; start containers within the task, and not around it"
    )]
    Strange(i32),
    /// The system does not say it.
    #[error("{}: {error}", path.display())]
    Io {
        /// What was read.
        path: PathBuf,
        /// What it said.
        error: io::Error,
    },
}

/// The step of a process, its control groups, and its mount name space.
///
/// # Errors
/// [`HomeError`].
pub fn of(pid: i32, held: Option<&Held>) -> Result<(StepId, Home, OwnedFd), HomeError> {
    let path = PathBuf::from(format!("/proc/{pid}/cgroup"));
    let text = fs::read_to_string(&path).map_err(|error| HomeError::Io { path, error })?;
    let seen = |error| HomeError::Io { path: format!("/proc/{pid}/ns/mnt").into(), error };
    let mounts = mounts::of(pid).map_err(seen)?;
    // What was read is that process's only if it has been there all the time.
    if !held.is_some_and(Held::lives) {
        return Err(HomeError::Gone);
    }
    let own = |(id, place): (StepId, PathBuf)| is_roots(&place).then_some((id, place));
    let found: Vec<(StepId, PathBuf)> = text.lines().filter_map(group_of).filter_map(own).collect();
    let Some((id, _)) = found.first() else { return Err(HomeError::NoStep(pid)) };
    // One of two steps would be a lie.
    if found.iter().any(|(other, _)| other != id) {
        return Err(HomeError::NoStep(pid));
    }
    if !mounts::are_of_this_machine(&mounts).map_err(seen)? {
        return Err(HomeError::Strange(pid));
    }
    Ok((*id, Home { groups: found.into_iter().map(|(_, place)| place).collect() }, mounts))
}

/// Which step's a line of /proc/PID/cgroup is, and where that group is mounted.
fn group_of(line: &str) -> Option<(StepId, PathBuf)> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    let id = step_of(path)?;
    let mounted = Path::new(MOUNTED).join(controllers.strip_prefix("name=").unwrap_or(controllers));
    // What is mounted may begin further down.
    let below = Path::new(path).strip_prefix("/").ok()?;
    let mut rest = below.components();
    loop {
        let place = mounted.join(rest.as_path());
        if place.join(PROCESSES).is_file() {
            return Some((id, place));
        }
        rest.next()?;
    }
}

/// `…/job_7/step_0/…`.
fn step_of(path: &str) -> Option<StepId> {
    let mut words = path.split('/').skip_while(|word| !word.starts_with("job_"));
    let job = words.next()?.strip_prefix("job_")?.parse().ok()?;
    let step = words.next()?.strip_prefix("step_")?.parse().ok()?;
    Some(StepId { job, step })
}

/// Whether the job's group was made by root: then so were those of its steps, which Slurm may have given to the user.
fn is_roots(place: &Path) -> bool {
    let is_job = |path: &&Path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"job_"));
    // A user may make groups with such names below a step's.
    let job = place.ancestors().filter(is_job).last();
    job.is_some_and(|job| fs::metadata(job).is_ok_and(|found| found.uid() == 0))
}

impl Home {
    /// Brings this process, which has one thread, there: into its groups, and among what is mounted there.
    ///
    /// # Errors
    /// What the system said.
    pub fn enter(&self, mounts: impl AsFd) -> io::Result<()> {
        for group in &self.groups {
            fs::write(group.join(PROCESSES), "0")?;
        }
        Ok(setns(mounts, CloneFlags::CLONE_NEWNS)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_known_by_its_groups() {
        let id = |job, step| Some(StepId { job, step });
        for (path, step) in [
            ("/slurm_node/uid_1000/job_7/step_0/task_1", id(7, 0)),
            ("/system.slice/slurmstepd.scope/job_12/step_3/user/task_0", id(12, 3)),
            ("/slurm/uid_0/job_7/step_batch", None),
            ("/slurm/uid_0/job_7/step_extern/task_0", None),
            ("/slurm/uid_0/job_7", None),
            ("/user.slice/user-1000.slice", None),
        ] {
            assert_eq!(step_of(path), step, "{path}");
        }
        let own = std::process::id() as i32;
        assert!(matches!(of(own, Held::of(own).as_ref()), Err(HomeError::NoStep(_))));
        assert!(matches!(of(own, None), Err(HomeError::Gone)));
    }
}
