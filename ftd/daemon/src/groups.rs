//! A control group for each job over nodes, below the one that systemd has given to this daemon (`Delegate=` in its unit): what runs of a job
//! is told from the daemon by everybody who looks. No controller is switched on below the daemon's own group: version 2 would suffer no process in
//! that any more, and systemd puts the daemon's next life there.

use ft_sys::timescale::scaled;
use rustix::fs::{XattrFlags, lgetxattr, lsetxattr};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where control groups are mounted.
pub const MOUNTED: &str = "/sys/fs/cgroup";
/// The file of a group that takes and names its processes.
pub const PROCESSES: &str = "cgroup.procs";
/// What systemd writes on a group that it leaves to a service of root's.
const DELEGATED: &str = "trusted.delegate";
/// What this daemon writes on a group that it has made: the job's name. Nobody but root can.
const OURS: &str = "trusted.ftd.job";
/// So jobs over nodes are called (`jobs.rs`). systemd may make groups below the daemon's, too.
const JOBS: &str = "ftrun-";
/// A group that was just made may be removed as an empty one before there is somebody in it.
const ATTEMPTS: u32 = 5;
/// Between two of them: another part of the job may have made it, and not written its name on it yet.
const PAUSE: Duration = Duration::from_millis(2);
/// Between two looks for groups whose jobs have ended.
const AGAIN: Duration = Duration::from_secs(5);

/// The groups that were given to this daemon: one in each hierarchy that matters.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Groups(Vec<PathBuf>);

impl Groups {
    /// Those of this process, which stands where systemd has put the daemon. None where nobody has given it one.
    pub fn own() -> Groups {
        let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Groups(given(&text, Path::new(MOUNTED), is_own, is_delegated))
    }

    /// Whether there are none.
    pub fn are_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Brings this process, which has one thread, into the job's group.
    ///
    /// # Errors
    /// What the system said.
    pub fn enter(&self, job: &str) -> io::Result<()> {
        // It is a name of a job of ours, whoever has sent it.
        if !job.starts_with(JOBS) || Path::new(job).file_name().is_none_or(|name| name != job) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.0.iter().try_for_each(|own| enter(&own.join(job), job))
    }

    /// Removes those of jobs of which nothing is left, whichever life of the daemon has made them.
    fn remove_empty(&self) {
        for own in &self.0 {
            for entry in fs::read_dir(own).into_iter().flatten().flatten() {
                let name = entry.file_name();
                // A group has many files, of which none is a job's.
                if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    continue;
                }
                // The kernel keeps one with somebody in it.
                if name.to_str().is_some_and(|job| is_of(&entry.path(), job)) && fs::remove_dir(entry.path()).is_ok() {
                    tracing::debug!("the control group {} is removed", entry.path().display());
                }
            }
        }
    }

    /// Removes what is left of jobs, as long as this daemon runs.
    pub async fn tend(self) {
        let groups = std::sync::Arc::new(self);
        loop {
            let these = groups.clone();
            // The kernel may take its time.
            let _ = tokio::task::spawn_blocking(move || these.remove_empty()).await;
            tokio::time::sleep(scaled(AGAIN)).await;
        }
    }
}

/// Of the groups in /proc/PID/cgroup those of the hierarchies by which systemd tells services apart, and by which memory is counted, if one of
/// them was given away.
fn given(
    text: &str,
    mounted: &Path,
    is_own: impl Fn(&Path) -> bool,
    is_delegated: impl Fn(&Path) -> bool,
) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let Some((controllers, path)) = fields.next().zip(fields.next()) else { continue };
        let places = match controllers {
            // The only one, or beside those of version 1.
            "" => vec![mounted.to_path_buf(), mounted.join("unified")],
            "name=systemd" => vec![mounted.join("systemd")],
            _ if controllers.split(',').any(|one| one == "memory") => vec![mounted.join(controllers)],
            _ => continue,
        };
        let below = path.trim_start_matches('/');
        let place = places.into_iter().map(|place| place.join(below)).find(|place| is_own(place));
        found.extend(place.map(|place| (path, place)));
    }
    // systemd writes that on one of them, and means all of that path.
    let Some(unit) = found.iter().find(|(_, place)| is_delegated(place)).map(|(path, _)| *path) else {
        return Vec::new();
    };
    found.into_iter().filter(|(path, _)| *path == unit).map(|(_, place)| place).collect()
}

/// Whether this process is in it: what is mounted in a container may be other groups of such names.
fn is_own(group: &Path) -> bool {
    let own = std::process::id().to_string();
    fs::read_to_string(group.join(PROCESSES)).is_ok_and(|text| text.lines().any(|line| line == own))
}

fn is_delegated(group: &Path) -> bool {
    says(group, DELEGATED, "1")
}

/// Whether it is that job's, and was made by a daemon of ftd's.
fn is_of(group: &Path, job: &str) -> bool {
    says(group, OURS, job)
}

fn says(group: &Path, name: &str, wanted: &str) -> bool {
    let mut value = [0; 256];
    lgetxattr(group, name, &mut value).is_ok_and(|length| value.get(..length) == Some(wanted.as_bytes()))
}

fn enter(group: &Path, job: &str) -> io::Result<()> {
    (1..ATTEMPTS).fold(make_and_enter(group, job), |last, _| {
        last.or_else(|_| {
            std::thread::sleep(PAUSE);
            make_and_enter(group, job)
        })
    })
}

fn make_and_enter(group: &Path, job: &str) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(group) {
        Ok(()) => {
            lsetxattr(group, OURS, job.as_bytes(), XattrFlags::CREATE).inspect_err(|_| drop(fs::remove_dir(group)))?
        }
        // A part that was here before may have left somebody.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_of(group, job) => {}
        Err(error) => return Err(error),
    }
    fs::write(group.join(PROCESSES), "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: [&str; 3] = ["4:memory:/a/ftd.service", "9:name=systemd:/a/ftd.service", "0::/a/ftd.service"];

    /// Of the lines, with what is there and what is delegated below `/m`.
    fn given_of(lines: &[&str], own: &[&str], delegated: &str) -> Vec<String> {
        let at = |words: &[&str], place: &Path| words.iter().any(|word| Path::new("/m").join(word) == place);
        let found = given(&lines.join("\n"), Path::new("/m"), |place| at(own, place), |place| at(&[delegated], place));
        found.iter().map(|place| place.display().to_string()).collect()
    }

    #[test]
    fn what_was_given_is_found_in_each_hierarchy() {
        let (memory, named, unified) = ("memory/a/ftd.service", "systemd/a/ftd.service", "unified/a/ftd.service");
        let all = [memory, named, unified];
        assert_eq!(
            given_of(&LINES, &all, named),
            ["/m/memory/a/ftd.service", "/m/systemd/a/ftd.service", "/m/unified/a/ftd.service"]
        );
        assert_eq!(given_of(&LINES, &all, unified).len(), 3);
        assert_eq!(given_of(&["0::/a/ftd.service"], &["a/ftd.service"], "a/ftd.service"), ["/m/a/ftd.service"]);
        // Not its own there, given by nobody, and elsewhere.
        assert_eq!(given_of(&LINES, &[named], named), ["/m/systemd/a/ftd.service"]);
        assert!(given_of(&LINES, &all, "other").is_empty());
        assert!(given_of(&LINES, &[], named).is_empty());
        let session = ["4:memory:/", "9:name=systemd:/a/ftd.service"];
        assert_eq!(given_of(&session, &["memory", named], named), ["/m/systemd/a/ftd.service"]);
    }

    #[test]
    fn a_group_is_called_after_its_job() {
        for job in ["", ".", "..", "ftrun-a/b", "/ftrun-a", "ftrun-a/", "../ftrun-a", ".control"] {
            assert!(
                Groups(vec!["/nowhere".into()]).enter(job).is_err_and(|e| e.kind() == io::ErrorKind::InvalidInput),
                "{job}"
            );
        }
    }

    #[test]
    fn only_empty_groups_with_the_jobs_name_on_them_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["ftrun-a", "ftrun-b", "ftrun-c", "ftrun-d"] {
            fs::create_dir(at(name)).unwrap();
        }
        let mark = |name: &str, job: &str| lsetxattr(at(name), OURS, job.as_bytes(), XattrFlags::CREATE);
        if mark("ftrun-a", "ftrun-a").is_err() {
            return;
        }
        mark("ftrun-b", "ftrun-a").unwrap();
        mark("ftrun-d", "ftrun-d").unwrap();
        fs::create_dir(at("ftrun-d").join("somebody")).unwrap();
        Groups(vec![directory.path().into()]).remove_empty();
        assert_eq!(
            ["ftrun-a", "ftrun-b", "ftrun-c", "ftrun-d"].map(|name| at(name).exists()),
            [false, true, true, true]
        );
        // What has another's name, or no name, is not entered.
        assert!(enter(&at("ftrun-b"), "ftrun-b").is_err() && enter(&at("ftrun-c"), "ftrun-c").is_err());
        assert!(!at("ftrun-b").join(PROCESSES).exists());
    }
}
