//! ftd's SPANK plugin: gives srun the option `--ft`. So far it knows one mode under Slurm, `none`, which changes nothing, and refuses the
//! others before anything is asked of Slurm.
//!
//! `DESIGN §n` is a section of ftd's design; CONTRIBUTING.md says where that is.

mod spank;

use ftd_core::policy::Mode;
use libc::{c_char, c_int};
use spank::{Context, Spank};
use std::ffi::CStr;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// A wrong command line.
const WRONG: c_int = 2;

/// What `--ft` was told last.
static MODE: Mutex<Option<Vec<u8>>> = Mutex::new(None);

/// Slurm has loaded the plugin; in srun nothing of the command line has been read.
#[unsafe(no_mangle)]
extern "C" fn slurm_spank_init(spank: Spank, _count: c_int, _words: *const *const c_char) -> c_int {
    match spank::context() {
        // What srun was told slurmstepd is told, and must know.
        Context::Srun | Context::Step => {
            spank::register(spank, c"ft", c"MODE", c"keep the job going: none, reinit (not built yet here)", heard)
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
    if !matches!(spank::context(), Context::Srun) {
        return 0;
    }
    let told = MODE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(sentence) = told.and_then(|word| refusal(&String::from_utf8_lossy(&word))) {
        // Nobody may be there to read it.
        let _ = writeln!(std::io::stderr(), "srun: error: {sentence}");
        // SAFETY: ends the process. What srun has to do at its end it does not have to do before it has begun; an error that is given
        // back would be told a second time, in Slurm's words.
        unsafe { libc::_exit(WRONG) }
    }
    0
}

/// Why there can be no job of that mode.
fn refusal(mode: &str) -> Option<String> {
    match mode.parse() {
        Ok(Mode::None) => None,
        Ok(Mode::Reinit) => {
            Some(format!("--ft={mode} is not built yet under Slurm: leave it out, or start the program with ftrun"))
        }
        Err(error) => Some(format!("--ft: {error}")),
    }
}
