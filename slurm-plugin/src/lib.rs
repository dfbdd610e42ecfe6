//! ftd's SPANK plugin: gives srun the option `--ft`, stands a front process in the place of an srun that has it, and puts a shepherd before
//! the program of each task of such a step. Without that option it changes nothing.
//!
//! `DESIGN §n` is a section of ftd's design; CONTRIBUTING.md says where that is.

mod front;
mod place;
mod spank;
mod task;

use ftd_core::policy::Mode;
use libc::{c_char, c_int};
use spank::{Context, Spank};
use std::ffi::CStr;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// A wrong command line.
const WRONG: c_int = 2;
/// What keeps Slurm from going on.
const FAILED: c_int = -1;

/// What `--ft` was told last.
static MODE: Mutex<Option<Vec<u8>>> = Mutex::new(None);

/// Slurm has loaded the plugin; in srun nothing of the command line has been read.
#[unsafe(no_mangle)]
extern "C" fn slurm_spank_init(spank: Spank, _count: c_int, _words: *const *const c_char) -> c_int {
    match spank::context() {
        // What srun was told slurmstepd is told, and must know.
        Context::Srun | Context::Step => {
            spank::register(spank, c"ft", c"MODE", c"keep the job going: none, reinit", heard)
        }
        Context::Other => 0,
    }
}

/// Slurm has read an option of the plugin's.
extern "C" fn heard(_value: c_int, argument: *const c_char, _remote: c_int) -> c_int {
    let word = if argument.is_null() {
        Vec::new()
    } else {
        // SAFETY: Slurm gives a C string that lives as long as this call.
        unsafe { CStr::from_ptr(argument) }.to_bytes().to_vec()
    };
    *MODE.lock().unwrap_or_else(PoisonError::into_inner) = Some(word);
    0
}

/// All options have been read, and nothing has been done about them.
#[unsafe(no_mangle)]
extern "C" fn slurm_spank_init_post_opt(_spank: Spank, _count: c_int, _words: *const *const c_char) -> c_int {
    // The front's own srun has the words that brought the front here.
    if !matches!(spank::context(), Context::Srun) || std::env::var_os("FT_STEP").is_some() {
        return 0;
    }
    let Some(told) = MODE.lock().unwrap_or_else(PoisonError::into_inner).take() else { return 0 };
    match String::from_utf8_lossy(&told).parse() {
        Ok(Mode::None) => 0,
        Ok(mode @ Mode::Reinit) => refused(&front::stand_in(&[format!("--ft={mode}").into()])),
        Err(error) => refused(&format!("--ft: {error}")),
    }
}

/// Says why, and ends srun before it has asked Slurm for anything.
fn refused(sentence: &str) -> c_int {
    // Nobody may be there to read it.
    let _ = writeln!(std::io::stderr(), "srun: error: {sentence}");
    // SAFETY: ends the process. What srun has to do at its end it does not have to do before it has begun; an error that is given
    // back would be told a second time, in Slurm's words.
    unsafe { libc::_exit(WRONG) }
}

/// In a task, as its user, before Slurm executes its program. What is written to standard error here is the task's.
#[unsafe(no_mangle)]
extern "C" fn slurm_spank_task_init(spank: Spank, _count: c_int, _words: *const *const c_char) -> c_int {
    let Err(why) = task::shepherded(spank) else { return 0 };
    let _ = writeln!(std::io::stderr(), "ftd: the task cannot be started under ft-shepherd: {why}");
    FAILED
}
