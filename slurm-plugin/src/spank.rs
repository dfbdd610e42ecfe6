//! Slurm's interface for plugins, as far as it is used: declared here, so that the plugin is built without Slurm's headers. What is declared
//! is alike from 22.05 to today's `spank.h`.

use libc::{c_char, c_int, c_uint};
use std::ffi::CStr;

/// Slurm's own name of who runs the plugin. It is passed on and never looked into.
#[repr(C)]
#[derive(Debug)]
pub struct Handle([u8; 0]);
/// What every call of Slurm's comes with.
pub type Spank = *mut Handle;
/// What Slurm calls when it has read an option: its value, its argument, whether it was read on a node.
pub type Heard = extern "C" fn(c_int, *const c_char, c_int) -> c_int;

/// `struct spank_option`.
#[repr(C)]
struct SpankOption {
    name: *const c_char,
    argument: *const c_char,
    usage: *const c_char,
    has_argument: c_int,
    value: c_int,
    heard: Option<Heard>,
}

unsafe extern "C" {
    safe fn spank_context() -> c_int;
    fn spank_option_register(spank: Spank, option: *mut SpankOption) -> c_int;
}

/// `SPANK_PLUGIN`: what Slurm looks for in a plugin. Only the release's year and month have to be its own.
#[unsafe(no_mangle)]
static plugin_name: [u8; 4] = *b"ftd\0";
#[unsafe(no_mangle)]
static plugin_type: [u8; 6] = *b"spank\0";
#[unsafe(no_mangle)]
static plugin_version: c_uint = match c_uint::from_str_radix(env!("FT_SLURM_VERSION"), 16) {
    Ok(version) => version,
    Err(_) => panic!("build.rs writes a hexadecimal number"),
};
#[unsafe(no_mangle)]
static spank_plugin_version: c_uint = 1;

/// Whom the plugin runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Context {
    /// `S_CTX_LOCAL`: srun.
    Srun,
    /// `S_CTX_REMOTE`: slurmstepd.
    Step,
    /// sbatch, salloc, slurmd, prolog and epilog.
    Other,
}

/// Whom this plugin runs in.
pub fn context() -> Context {
    match spank_context() {
        1 => Context::Srun,
        2 => Context::Step,
        _ => Context::Other,
    }
}

/// Gives the program an option with an argument. What Slurm says to that: 0 is success.
pub fn register(
    spank: Spank,
    name: &'static CStr,
    argument: &'static CStr,
    usage: &'static CStr,
    heard: Heard,
) -> c_int {
    let mut option = SpankOption {
        name: name.as_ptr(),
        argument: argument.as_ptr(),
        usage: usage.as_ptr(),
        has_argument: 1,
        value: 0,
        heard: Some(heard),
    };
    // SAFETY: `spank` is what Slurm has called with; it copies the option, whose strings end with a zero and live for ever.
    unsafe { spank_option_register(spank, &raw mut option) }
}
