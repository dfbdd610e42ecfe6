//! A task of a step that ftd keeps going: its program is `ft-shepherd`, which is told whose place it has.

use crate::place::{self, Missing};
use crate::spank::{self, Spank};
use std::ffi::{CStr, CString, NulError, OsString};
use std::os::unix::ffi::OsStringExt;
use std::process::{Command, Stdio};
use std::time::Duration;

/// What the front puts into the step's environment: a name that srun takes there with --export=NONE, too.
pub const STEP: &str = "SLURM_FT_STEP";
/// Where the front may listen: Slurm's `SrunPortRange`, so that the front need not ask for it.
pub const PORTS: &str = "FT_STEP_PORTS";
/// What the shepherd is told: the program's name, or nothing where that is its first argument.
const PROGRAM: &CStr = c"FT_STEP_PROGRAM";
/// By then what the task has said, and the first tasks of other nodes that cannot be started either, has reached srun.
const SAID: Duration = Duration::from_secs(1);

/// Why a task cannot be ftd's; one sentence.
#[derive(Debug, thiserror::Error)]
pub enum NoTask {
    /// ftd is not there.
    #[error("{0}, as where srun is")]
    Missing(#[from] Missing),
    /// A name that cannot be one.
    #[error("the name of the task's program holds a zero")]
    Name(#[from] NulError),
    /// Slurm is another one than is known.
    #[error("Slurm {0}, which it has to for ft-shepherd to stand before it")]
    Slurm(&'static str),
}

/// Puts the shepherd before the program of a task that is ftd's.
///
/// # Errors
/// One sentence.
pub fn shepherded(spank: Spank) -> Result<(), NoTask> {
    let Some(step) = spank::step(spank) else { return Ok(()) };
    if spank::variable(spank, STEP.as_bytes()).is_none_or(|told| told.is_empty()) {
        return Ok(());
    }
    let shepherd = CString::new(place::program(place::SHEPHERD)?.into_os_string().into_vec())?;
    let program = spank::program(spank).ok_or(NoTask::Slurm("does not show the task's program"))?;
    let whole = whole(&program, step, spank::variable(spank, b"SLURMD_NODENAME"))?;
    // A name that is to be another one cannot stay where it is.
    let told = if whole.is_none() && spank::prepend(spank, &shepherd) {
        CString::default()
    } else if spank::exchange(spank, shepherd) {
        whole.unwrap_or(program)
    } else {
        return Err(NoTask::Slurm("does not show the task's program"));
    };
    if spank::set_variable(spank, PROGRAM, &told) == 0 {
        Ok(())
    } else {
        Err(NoTask::Slurm("takes no variable for the task"))
    }
}

/// Whether the task is its node's first.
pub fn is_first(spank: Spank) -> bool {
    spank::variable(spank, b"SLURM_LOCALID").is_none_or(|number| number == b"0")
}

/// The node's name.
pub fn node(spank: Spank) -> String {
    let name = spank::variable(spank, b"SLURMD_NODENAME").unwrap_or_else(|| b"?".to_vec());
    String::from_utf8_lossy(&name).into()
}

/// Ends the step: who cannot be started tells the front nothing, and that one would wait for it.
pub fn end_step(spank: Spank) {
    let Some((job, step)) = spank::step(spank) else { return };
    let along = spank::variable(spank, b"PATH").unwrap_or_default();
    let everywhere = OsString::from_vec([&along, &b":/usr/local/bin:/usr/bin"[..]].concat());
    let found =
        std::env::split_paths(&everywhere).map(|directory| directory.join("scancel")).find(|file| file.is_file());
    let Some(scancel) = found else { return };
    std::thread::sleep(SAID);
    let mut command = Command::new(scancel);
    command.arg("--quiet").arg(format!("{job}.{step}"));
    // Where nobody can end it the front does, when it has waited long enough.
    let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// The whole name of a program that `--bcast` has put into a directory: slurmstepd completes the name of what it executes itself
/// (22.05.8 and 26.05.3: `slurm_bcast_JOB.STEP_NODE`).
fn whole(program: &CStr, (job, step): (u32, u32), node: Option<Vec<u8>>) -> Result<Option<CString>, NoTask> {
    let Some(node) = node.filter(|_| program.to_bytes().ends_with(b"/")) else { return Ok(None) };
    let name = [program.to_bytes(), format!("slurm_bcast_{job}.{step}_").as_bytes(), &node].concat();
    Ok(Some(CString::new(name)?))
}
