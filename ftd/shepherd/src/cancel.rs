//! Ends a step of Slurm's whose node cannot take part and whose front cannot be told why: the front would wait for the node.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};
use std::time::Duration;

/// By then what the task has said, and the first tasks of other nodes that cannot take part either, has reached srun.
const SAID: Duration = Duration::from_secs(1);

/// So much later on each further node, for each asks the controller for all jobs; and no later than so many times.
const APART: Duration = Duration::from_millis(20);
const MOST: u32 = 500;

/// Ends the step of which this process is a task.
pub fn step() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let (Some(job), Some(step)) = (number("SLURM_JOB_ID"), number("SLURM_STEP_ID")) else { return };
    let along = std::env::var_os("PATH").unwrap_or_default();
    // The user's settings may make it ask, or mean other jobs.
    let others = |name: &OsStr| name == "SLURM_CLUSTERS" || name.as_bytes().starts_with(b"SCANCEL_");
    let everywhere = [&*along, OsStr::new("/usr/local/bin:/usr/bin")].join(OsStr::new(":"));
    let found =
        std::env::split_paths(&everywhere).map(|directory| directory.join("scancel")).find(|file| file.is_file());
    let Some(scancel) = found else { return };
    std::thread::sleep(SAID + APART * number("SLURM_NODEID").unwrap_or_default().min(MOST));
    let mut command = Command::new(scancel);
    std::env::vars_os().filter(|(name, _)| others(name)).for_each(|(name, _)| {
        command.env_remove(name);
    });
    command.arg("--quiet").arg(format!("{job}.{step}"));
    // Where nobody can end it the front does, when it has waited long enough.
    let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}
