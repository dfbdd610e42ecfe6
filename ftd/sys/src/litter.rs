//! Shared memory that MPI libraries leave when their processes are killed: files below `/dev/shm`, and
//! [segments](crate::segments).
//!
//! Each rank reports what it has mapped once it is past `MPI_Init`. A process that dies before that reports nothing: for
//! those, files of the known kinds that appeared while the world ran are removed as well, if they are this user's and no
//! process has them mapped any more.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Where POSIX shared memory lives.
const SHM: &str = "/dev/shm";
/// How the shared-memory files of the MPI libraries' transports begin.
const KINDS: [&str; 13] = [
    "mpich_shar_tmp",
    "mpich_shm_",
    "mpich_vci_",
    "vader_segment.",
    "sm_segment.",
    "open_mpi.",
    "osc_rdma.",
    "osc_sm.",
    "Intel_MPI_",
    "ucx_shm_",
    "psm",
    "shm_mpi",
    "ofi_shm",
];

/// How long a file of unknown origin must stay unmapped.
const SETTLE: Duration = Duration::from_millis(200);

/// File times are those of the kernel's coarse clock, which lags behind.
const LAG: Duration = Duration::from_millis(100);

/// What one world left, or may have left.
#[derive(Debug, Clone)]
pub struct Litter {
    since: SystemTime,
    reported: BTreeSet<PathBuf>,
    creators: BTreeSet<i32>,
}

impl Default for Litter {
    fn default() -> Self {
        Litter::since(SystemTime::now())
    }
}

impl Litter {
    /// What a job that began at this time left, or may have left.
    pub fn since(begin: SystemTime) -> Self {
        Litter { since: begin - LAG, reported: BTreeSet::new(), creators: BTreeSet::new() }
    }

    /// What the job whose directory this is left, or may have left, whichever agent of it saw it come.
    pub fn of_job(job_dir: &Path) -> Self {
        // The socket is as old as the job.
        let begin = std::fs::symlink_metadata(job_dir.join(ft_wire::AGENT_SOCKET)).and_then(|m| m.modified());
        let mut litter = Litter::since(begin.unwrap_or_else(|_| SystemTime::now()));
        litter.read_creators(job_dir);
        litter
    }

    /// Takes in the processes that were noted in the job's directory.
    pub fn read_creators(&mut self, job_dir: &Path) {
        self.creators.append(&mut crate::segments::noted_creators(job_dir));
    }

    /// Notes a process of this world.
    pub fn created_by(&mut self, pid: i32) {
        self.creators.insert(pid);
    }

    /// Notes files that a rank of this world has mapped.
    pub fn report(&mut self, files: impl IntoIterator<Item = String>) {
        self.reported.extend(files.into_iter().map(PathBuf::from).filter(|p| p.parent() == Some(Path::new(SHM))));
    }

    /// Removes what the world left. Call it when its processes are gone.
    pub fn sweep(&self) {
        crate::segments::remove_of(&self.creators, self.since);
        let uid = nix::unistd::Uid::effective().as_raw();
        let mut found = self.reported.clone();
        for entry in std::fs::read_dir(SHM).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let known = name.to_str().is_some_and(|n| KINDS.iter().any(|kind| n.starts_with(kind)));
            let recent = || entry.metadata().and_then(|m| m.modified()).is_ok_and(|t| t >= self.since);
            if known && recent() {
                found.insert(entry.path());
            }
        }
        found.retain(|path| std::fs::symlink_metadata(path).is_ok_and(|m| m.is_file() && m.uid() == uid));
        if found.is_empty() {
            return;
        }
        let mut used = mapped_files();
        if found.iter().any(|path| !self.reported.contains(path)) {
            // Another job's process may stand between creating its file and mapping it.
            std::thread::sleep(SETTLE);
            used.append(&mut mapped_files());
        }
        for path in found.iter().filter(|path| !used.contains(*path)) {
            // Somebody else may have been faster.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Files below `/dev/shm` that any visible process has mapped.
fn mapped_files() -> BTreeSet<PathBuf> {
    let mut used = BTreeSet::new();
    for pid in crate::process::everybody() {
        let Ok(maps) = std::fs::read_to_string(format!("/proc/{pid}/maps")) else { continue };
        used.extend(maps.lines().filter_map(|line| line.find(SHM).map(|at| PathBuf::from(&line[at..]))));
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reported_and_known_files_go_and_others_stay() {
        let litter = Litter::default();
        let name = |kind: &str| PathBuf::from(format!("{SHM}/{kind}ftd-test-{}", std::process::id()));
        let (known, foreign, reported) = (name("mpich_shar_tmp"), name("mine-"), name("other-"));
        for path in [&known, &foreign, &reported] {
            std::fs::write(path, "x").unwrap();
        }
        let mut litter = litter;
        litter.report([reported.to_str().unwrap().to_string(), "/etc/passwd".to_string()]);
        litter.sweep();
        let left = (known.exists(), foreign.exists(), reported.exists());
        std::fs::remove_file(&foreign).unwrap();
        assert_eq!(left, (false, true, false));
    }
}
