//! The jobs of a user: on this machine by their directories in memory, on other nodes by the word of this one's `ftd`.

use crate::ask::{self, AskError};
use crate::daemon::{self, DaemonError};
use ft_sys::channel::ChannelError;
use ft_wire::AGENT_SOCKET;
use ft_wire::ask::Job;
use ft_wire::part::Running;
use std::fmt;
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
    #[error("{0}")]
    None(Missing),
    /// There are several.
    #[error("{} jobs {} ({}): name one", names.len(), name.as_ref().map_or("run".into(), |name| format!("are called {name}")), names.join(", "))]
    Several {
        /// What was asked for.
        name: Option<String>,
        /// What they are called.
        names: Vec<String>,
    },
    /// It is said by a number that may be that of a process here.
    #[error(
        "{number} may be a process on this machine, and is the number of job {job} on another node: if that is meant, name it by slurm-{number}-"
    )]
    Number {
        /// Which.
        number: String,
        /// Whose it is elsewhere.
        job: String,
    },
    /// It does not answer.
    #[error(transparent)]
    Ask(#[from] AskError),
}

/// What is known where no job is found.
#[derive(Debug)]
pub struct Missing {
    /// What was asked for.
    pub name: Option<String>,
    /// Where it was looked for.
    pub memory: PathBuf,
    /// Why not all other nodes are known.
    pub unknown: Option<String>,
    /// Nobody here knows of other nodes.
    pub alone: bool,
    /// What those jobs are called that run.
    pub others: Vec<String>,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_ref().map(|name| format!("{name} ")).unwrap_or_default();
        write!(f, "no job {name}of this user runs here")?;
        if self.memory != Path::new(MEMORY) {
            write!(f, " (in {}; FT_MEMORY_DIR)", self.memory.display())?;
        }
        match (&self.unknown, self.alone, &self.name) {
            (Some(why), ..) => write!(f, ", and {why}")?,
            (None, true, Some(_)) => f.write_str(": it may have ended, or run on another node (ask there)")?,
            (None, true, None) => f.write_str(": ask on a node where it runs")?,
            (None, false, Some(_)) => f.write_str(", nor, as ftd says, on another node: it may have ended")?,
            (None, false, None) => f.write_str(", nor, as ftd says, on another node")?,
        }
        if self.others.is_empty() {
            return Ok(());
        }
        match self.name.as_ref().and_then(|name| nearest(name, &self.others)) {
            Some(near) => write!(f, "; did you mean {near}?"),
            None => f.write_str("; ftctl jobs lists those that run"),
        }
    }
}

/// The job whose name begins with something near to this: one slip of a finger, or two in a long word.
fn nearest<'a>(name: &str, jobs: &'a [String]) -> Option<&'a str> {
    // That a number is near to another one means nothing.
    if name.len() < 4 || is_number(name) {
        return None;
    }
    let most = if name.len() < 10 { 1 } else { 2 };
    let length = name.chars().count();
    let begins = |job: &str, length: usize| job.chars().take(length).collect::<String>();
    let slips = |job: &str| {
        let lengths = length.saturating_sub(most)..=length + most;
        lengths.map(|length| strsim::osa_distance(name, &begins(job, length))).min().unwrap_or(usize::MAX)
    };
    let near = jobs.iter().map(|job| (slips(job), job.as_str())).filter(|(slips, _)| *slips <= most);
    near.min().map(|(_, job)| job)
}

/// How a job's agent is reached.
#[derive(Debug)]
pub enum Way {
    /// By its socket.
    Here(PathBuf),
    /// Through `ftd`.
    Elsewhere(Running),
}

/// A job.
#[derive(Debug)]
pub struct Found {
    /// How its agent is reached.
    pub way: Way,
    /// Whose it is.
    pub uid: u32,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.way {
            Way::Here(socket) => write!(f, "the agent behind {}", socket.display()),
            Way::Elsewhere(running) => {
                write!(f, "the agent of job {} on node {}", running.job, running.nodes.join(" or "))
            }
        }
    }
}

/// Where the directories of jobs are.
pub fn memory() -> PathBuf {
    let told = std::env::var_os("FT_MEMORY_DIR").filter(|value| !value.is_empty());
    told.map_or_else(|| PathBuf::from(MEMORY), PathBuf::from)
}

/// What this user may ask.
///
/// # Errors
/// [`FindError::Memory`].
pub fn directories(path: PathBuf) -> Result<Vec<Found>, FindError> {
    let entries = match std::fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) => return Err(FindError::Memory { path, error }),
    };
    let own = nix::unistd::Uid::effective();
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let found = paths.iter().filter_map(|path| of(path));
    Ok(found.filter(|found| own.is_root() || found.uid == own.as_raw()).collect())
}

/// The job whose directory this is; it has the user's number in its name, and is his.
fn of(directory: &Path) -> Option<Found> {
    let uid: u32 = directory.file_name()?.to_str()?.strip_prefix("ftd-")?.split('-').next()?.parse().ok()?;
    let metadata = std::fs::symlink_metadata(directory).ok()?;
    let way = Way::Here(directory.join(AGENT_SOCKET));
    (metadata.is_dir() && metadata.uid() == uid).then_some(Found { way, uid })
}

/// The process that the user started: above the one that runs the job, unless that is a part of one over several nodes.
fn started(launcher: i32) -> i32 {
    let above = ft_sys::proc::stat(&ft_sys::proc::of(launcher)).ok().flatten().map_or(0, |stat| stat.ppid);
    let is_ftrun = std::fs::read(ft_sys::proc::of(above).join("comm")).is_ok_and(|name| name == b"ftrun\n");
    if is_ftrun { above } else { launcher }
}

/// Whether nobody is there: what is left of a job that has ended.
pub fn is_over(error: &AskError) -> bool {
    matches!(error, AskError::Silent { error: ChannelError::Dial { .. } | ChannelError::Closed, .. })
}

/// The jobs that answered, and what was wrong with those that did not.
pub type Answers = (Vec<(Found, Job)>, Vec<AskError>);

/// All that have a part on this machine, and why others do not answer.
///
/// # Errors
/// [`FindError::Memory`].
fn jobs_here() -> Result<Answers, FindError> {
    let (mut jobs, mut silent) = (Vec::new(), Vec::new());
    for found in directories(memory())? {
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

/// All jobs, and why it is not known of others.
#[derive(Debug)]
pub struct All {
    /// Those that answered.
    pub jobs: Vec<(Found, Job)>,
    /// What was wrong with others.
    pub silent: Vec<AskError>,
    /// What is not known of other nodes.
    pub unknown: Option<String>,
}

/// All of them, on whatever node.
///
/// # Errors
/// [`FindError::Memory`].
pub fn jobs() -> Result<All, FindError> {
    let (mut jobs, mut silent) = jobs_here()?;
    let (elsewhere, unknown) = match daemon::jobs() {
        Ok((running, nodes)) if nodes.is_empty() => (running, None),
        Ok((running, nodes)) => (running, Some(daemon::silent(&nodes))),
        Err(DaemonError::Without(_)) => (Vec::new(), None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    for running in elsewhere {
        // Where a part of it is here it has been asked.
        if jobs.iter().any(|(_, job)| job.name == running.job) {
            continue;
        }
        match job_elsewhere(running) {
            Ok(job) => jobs.push(job),
            Err(error) => silent.push(error),
        }
    }
    Ok(All { jobs, silent, unknown })
}

impl Found {
    /// The process that the user started; `None` where that is on another machine, where its number means another one.
    pub fn ftrun(&self, job: &Job) -> Option<i32> {
        let is_here = match &self.way {
            Way::Here(_) => true,
            Way::Elsewhere(running) => running.launcher.is_some(),
        };
        is_here.then_some(job.launcher)
    }
}

/// Whether a name is a number, and nothing else.
fn is_number(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether this name means a job with a part here.
fn is_of(name: &str, job: &str) -> bool {
    job.starts_with(name) || job.contains(&format!("-{name}-"))
}

/// Whether it means one on another node: there a number is that of a job of Slurm's, and neither its step's nor a part of the node's name.
fn is_of_elsewhere(name: &str, job: &str) -> bool {
    if is_number(name) { job.starts_with(&format!("slurm-{name}-")) } else { is_of(name, job) }
}

/// One that has no part here, or is not found here.
fn job_elsewhere(running: Running) -> Result<(Found, Job), AskError> {
    let launcher = running.launcher;
    let found = Found { uid: running.uid, way: Way::Elsewhere(running) };
    let mut job = ask::job(&found)?;
    job.launcher = launcher.map_or(job.launcher, started);
    Ok((found, job))
}

/// Whether a number is that of the process of a rank here.
fn is_rank(job: &Job, number: &str) -> bool {
    let is_here = |rank| job.ranks.iter().any(|place| place.rank == rank && place.node == job.here);
    let mut own = job.processes.iter().filter(|process| is_here(process.rank));
    own.any(|process| process.pid.is_some_and(|pid| pid.to_string() == number))
}

/// The one that is meant by its name, the beginning of it, the number in it, or that of its `ftrun` or of a rank's process here; the only one,
/// without. Those with a part here are looked at first, and others where none of them is meant. `harms`: what is to be done with it is to be done with no other one.
///
/// # Errors
/// [`FindError`].
pub fn one(name: Option<&str>, harms: bool) -> Result<(Found, Job), FindError> {
    let (jobs, mut silent) = jobs_here()?;
    let meant = |job: &Job| {
        name.is_none_or(|name| is_of(name, &job.name) || job.launcher.to_string() == name || is_rank(job, name))
    };
    let (mut meant, others): (Vec<(Found, Job)>, Vec<_>) = jobs.into_iter().partition(|(_, job)| meant(job));
    let mut others: Vec<String> = others.into_iter().map(|(_, job)| job.name).collect();
    if meant.len() > 1 {
        return Err(several(name, meant.iter().map(|(_, job)| &job.name)));
    }
    if let Some(one) = meant.pop() {
        return Ok(one);
    }
    let (unknown, alone) = match daemon::jobs() {
        Ok((running, nodes)) => {
            // Numbers of processes mean something else on another node.
            let is_own = |name: &str, running: &Running| {
                running.launcher.is_some_and(|launcher| started(launcher).to_string() == name)
            };
            let is_meant = |running: &Running| {
                name.is_none_or(|name| is_of_elsewhere(name, &running.job) || is_own(name, running))
            };
            let (mut running, not_meant): (Vec<Running>, Vec<_>) = running.into_iter().partition(is_meant);
            if running.len() > 1 {
                return Err(several(name, running.iter().map(|running| &running.job)));
            }
            let not_meant = not_meant.into_iter().map(|running| running.job);
            others.extend(not_meant.filter(|job| !others.contains(job)).collect::<Vec<_>>());
            if let Some(running) = running.pop() {
                // An ftrun of that number may be meant that has just ended, or does not answer.
                let is_process = |number: &str| !silent.is_empty() || Path::new("/proc").join(number).exists();
                if let Some(number) =
                    name.filter(|name| harms && is_number(name) && !is_own(name, &running) && is_process(name))
                {
                    return Err(FindError::Number { number: number.into(), job: running.job });
                }
                return Ok(job_elsewhere(running)?);
            }
            ((!nodes.is_empty()).then(|| daemon::silent(&nodes)), false)
        }
        Err(DaemonError::Without(_)) => (None, true),
        Err(error) => (Some(error.to_string()), false),
    };
    if let Some(error) = silent.pop() {
        return Err(error.into());
    }
    let name = name.map(String::from);
    Err(FindError::None(Missing { name, memory: memory(), unknown, alone, others }))
}

fn several<'a>(name: Option<&str>, names: impl Iterator<Item = &'a String>) -> FindError {
    FindError::Several { name: name.map(String::from), names: names.cloned().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_elsewhere_is_that_of_a_job_of_slurms() {
        let job = "slurm-12345-5-a1";
        assert!(is_of("5", job), "where it has a part");
        for (name, is_meant) in
            [("12345", true), ("5", false), ("1234", false), ("slurm-12345-", true), ("12345-5", true)]
        {
            assert_eq!(is_of_elsewhere(name, job), is_meant, "{name}");
        }
        assert!(!is_of_elsewhere("3", "ftrun-rack-3-a-0123") && is_of_elsewhere("ftrun-rack", "ftrun-rack-3-a-0123"));
    }

    #[test]
    fn several_jobs_are_a_short_sentence() {
        let names = ["ftrun-1-a".to_string(), "ftrun-2-b".to_string()];
        assert_eq!(several(None, names.iter()).to_string(), "2 jobs run (ftrun-1-a, ftrun-2-b): name one");
        let called = several(Some("ftrun"), names.iter()).to_string();
        assert_eq!(called, "2 jobs are called ftrun (ftrun-1-a, ftrun-2-b): name one");
    }

    #[test]
    fn a_job_that_is_not_there_may_have_ended_or_be_called_nearly_so() {
        let said = |name: Option<&str>, alone, others: &[&str]| {
            let others = others.iter().map(|job| (*job).into()).collect();
            Missing { name: name.map(String::from), memory: MEMORY.into(), unknown: None, alone, others }.to_string()
        };
        let ended = "no job nosuch of this user runs here: it may have ended, or run on another node (ask there)";
        assert_eq!(said(Some("nosuch"), true, &[]), ended);
        let runs = ["ftrun-10912-5ada0726fd5bccf9"];
        assert_eq!(said(Some("nosuch"), true, &runs), format!("{ended}; ftctl jobs lists those that run"));
        for near in ["frun-10912", "ftrun-10921-5a", "ftrun10912-5ada0726fd5bccf9", "slurm-109x12-5ada"] {
            let is_near = said(Some(near), true, &runs).ends_with("; did you mean ftrun-10912-5ada0726fd5bccf9?");
            assert_eq!(is_near, !near.starts_with("slurm"), "{near}");
        }
        assert!(
            said(Some("10913"), true, &runs).ends_with("; ftctl jobs lists those that run"),
            "a number is another one"
        );
        assert_eq!(said(None, true, &[]), "no job of this user runs here: ask on a node where it runs");
        let nowhere = "no job x of this user runs here, nor, as ftd says, on another node: it may have ended";
        assert_eq!(said(Some("x"), false, &[]), nowhere);
    }

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
