//! Ends a step of Slurm's whose node cannot take part and whose front cannot be told why: the front would wait for the node.

use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::time::Duration;

/// By then what the task has said, and the first tasks of other nodes that cannot take part either, has reached srun.
const SAID: Duration = Duration::from_secs(1);

/// Ends the step of which this process is a task.
pub fn step() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let (Some(job), Some(step)) = (number("SLURM_JOB_ID"), number("SLURM_STEP_ID")) else { return };
    let along = std::env::var_os("PATH").unwrap_or_default();
    let everywhere = [&*along, OsStr::new("/usr/local/bin:/usr/bin")].join(OsStr::new(":"));
    let found =
        std::env::split_paths(&everywhere).map(|directory| directory.join("scancel")).find(|file| file.is_file());
    let Some(scancel) = found else { return };
    std::thread::sleep(SAID);
    let mut command = Command::new(scancel);
    command.arg("--quiet").arg(format!("{job}.{step}"));
    // Where nobody can end it the front does, when it has waited long enough.
    let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}
