//! A task of a step that ftd keeps going: its program is `ft-shepherd`, which is told whose place it has.

use crate::place;
use crate::spank::{self, Placed, Spank};
use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;

/// What the front puts into the step's environment.
const STEP: &[u8] = b"FT_STEP";
/// What the shepherd is told: the program's name, or nothing where that is its first argument.
const PROGRAM: &std::ffi::CStr = c"FT_STEP_PROGRAM";

/// Puts the shepherd before the program of a task that is ftd's. Why that was not possible.
pub fn shepherded(spank: Spank) -> Result<(), &'static str> {
    if !spank::is_of_srun(spank) || !spank::has_variable(spank, STEP) {
        return Ok(());
    }
    let shepherd = place::shepherd().ok_or("the loader does not know where the plugin lies")?;
    let shepherd = CString::new(shepherd.into_os_string().into_vec()).map_err(|_| "its path holds a zero")?;
    let program = match spank::place(spank, &shepherd).ok_or("Slurm shows no program of the task")? {
        Placed::Before => CString::default(),
        Placed::Instead(program) => program,
    };
    if spank::set_variable(spank, PROGRAM, &program) == 0 { Ok(()) } else { Err("Slurm takes no variable for the task") }
}
