//! Slurm's interface for plugins, as far as it is used: declared here, so that the plugin is built without Slurm's headers. What is declared
//! is alike from 22.05 to today's `spank.h`; what is younger than 22.05 is looked up by its name when it is called.

use libc::{c_char, c_int, c_uint, c_void};
use std::ffi::{CStr, CString};

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

/// `spank_prepend_task_argv`, from Slurm 23.11 on.
type Prepend = unsafe extern "C" fn(Spank, c_int, *const *const c_char) -> c_int;

unsafe extern "C" {
    safe fn spank_context() -> c_int;
    fn spank_option_register(spank: Spank, option: *mut SpankOption) -> c_int;
    fn spank_get_item(spank: Spank, item: c_int, ...) -> c_int;
    fn spank_setenv(spank: Spank, name: *const c_char, value: *const c_char, overwrite: c_int) -> c_int;
}

// `enum spank_item`.
const S_JOB_STEPID: c_int = 3;
const S_JOB_ARGV: c_int = 9;
const S_JOB_ENV: c_int = 10;

/// `SLURM_MAX_NORMAL_STEP_ID`: greater ones are batch scripts, what holds an allocation, and interactive steps.
const GREATEST_STEP: u32 = 0xffff_fff0;

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

/// Whether this is a step that srun has started, in slurmstepd.
pub fn is_of_srun(spank: Spank) -> bool {
    let mut step = u32::MAX;
    // SAFETY: `spank` is what Slurm has called with; this item is a `uint32_t`.
    let said = unsafe { spank_get_item(spank, S_JOB_STEPID, &raw mut step) };
    said == 0 && step <= GREATEST_STEP
}

/// Whether the step's environment has this variable. In slurmstepd.
pub fn has_variable(spank: Spank, name: &[u8]) -> bool {
    let mut list: *mut *mut c_char = std::ptr::null_mut();
    // SAFETY: `spank` is what Slurm has called with; this item is a `char **`.
    if unsafe { spank_get_item(spank, S_JOB_ENV, &raw mut list) } != 0 || list.is_null() {
        return false;
    }
    loop {
        // SAFETY: the list ends with a null pointer, at which this ends too.
        let entry = unsafe { *list };
        if entry.is_null() {
            return false;
        }
        // SAFETY: an entry that is there is a C string of Slurm's, which nothing changes meanwhile.
        let entry = unsafe { CStr::from_ptr(entry) }.to_bytes();
        if entry.strip_prefix(name).is_some_and(|rest| rest.starts_with(b"=")) {
            return true;
        }
        // SAFETY: that entry was not the last one.
        list = unsafe { list.add(1) };
    }
}

/// Sets a variable of the task's. In slurmstepd. What Slurm says to that: 0 is success.
pub fn set_variable(spank: Spank, name: &CStr, value: &CStr) -> c_int {
    // SAFETY: `spank` is what Slurm has called with; it copies both strings.
    unsafe { spank_setenv(spank, name.as_ptr(), value.as_ptr(), 1) }
}

/// How a program came before a task's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placed {
    /// It has the task's program as its first argument.
    Before,
    /// It stands in its place; this was there.
    Instead(CString),
}

/// Puts a program before the task's own, in `task_init`, where Slurm has yet to execute it: Slurm's function for that where there is one. The
/// older ones have none, and what they execute is the array that they show (22.05: `task->argv` is `job->argv`). Nothing if Slurm will not.
pub fn place(spank: Spank, program: &CStr) -> Option<Placed> {
    // SAFETY: a name that ends with a zero.
    let prepend = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"spank_prepend_task_argv".as_ptr()) };
    if prepend.is_null() { exchange(spank, program) } else { before(spank, prepend, program) }
}

fn before(spank: Spank, function: *mut c_void, program: &CStr) -> Option<Placed> {
    // SAFETY: the function of this name has this type since there is one.
    let prepend = unsafe { std::mem::transmute::<*mut c_void, Prepend>(function) };
    let words = [program.as_ptr(), std::ptr::null()];
    // SAFETY: `spank` is what Slurm has called with; it copies the one word.
    let said = unsafe { prepend(spank, 1, words.as_ptr()) };
    (said == 0).then_some(Placed::Before)
}

fn exchange(spank: Spank, program: &CStr) -> Option<Placed> {
    let (mut count, mut words): (c_int, *mut *mut c_char) = (0, std::ptr::null_mut());
    // SAFETY: `spank` is what Slurm has called with; this item is an `int` and a `char **`.
    let said = unsafe { spank_get_item(spank, S_JOB_ARGV, &raw mut count, &raw mut words) };
    if said != 0 || count < 1 || words.is_null() {
        return None;
    }
    // SAFETY: the array has at least one place.
    let old = unsafe { *words };
    if old.is_null() {
        return None;
    }
    // SAFETY: a C string of Slurm's.
    let old = unsafe { CStr::from_ptr(old) }.to_owned();
    // SAFETY: the array is this process's own: slurmstepd has forked, and executes what stands there, or ends, without giving it back.
    unsafe { *words = program.to_owned().into_raw() };
    Some(Placed::Instead(old))
}
