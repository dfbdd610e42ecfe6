//! A task of a step that ftd keeps going: its program is `ft-shepherd`, which is told whose place it has.

use crate::place::{self, Missing};
use crate::spank::{self, Spank};
use std::ffi::{CStr, CString, NulError};
use std::os::unix::ffi::OsStringExt;

/// What the front puts into the step's environment: a name that srun takes there with --export=NONE, too.
pub const STEP: &str = "SLURM_FT_STEP";
/// Where the front may listen: Slurm's `SrunPortRange`, so that the front need not ask for it.
pub const PORTS: &str = "FT_STEP_PORTS";
/// What the shepherd is told: the program's name, or nothing where that is its first argument.
const PROGRAM: &CStr = c"FT_STEP_PROGRAM";

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

/// The whole name of a program that `--bcast` has put into a directory: slurmstepd completes the name of what it executes itself
/// (22.05.8 and 26.05.3: `slurm_bcast_JOB.STEP_NODE`).
fn whole(program: &CStr, (job, step): (u32, u32), node: Option<Vec<u8>>) -> Result<Option<CString>, NoTask> {
    let Some(node) = node.filter(|_| program.to_bytes().ends_with(b"/")) else { return Ok(None) };
    let name = [program.to_bytes(), format!("slurm_bcast_{job}.{step}_").as_bytes(), &node].concat();
    Ok(Some(CString::new(name)?))
}
