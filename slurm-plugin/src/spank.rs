//! Slurm's interface for plugins, as far as it is used: declared here, so that the plugin is built without Slurm's headers. What is declared
//! is alike from 22.05 to today's `spank.h`; what is younger than 22.05 is looked up by its name when it is called.

use crate::told::Row;
use libc::{FILE, c_char, c_int, c_uint, c_void, size_t, time_t};
use std::ffi::{CStr, CString};
use std::ptr::{NonNull, null_mut};

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
const S_JOB_ID: c_int = 2;
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
static plugin_version: c_uint = RELEASE;
#[unsafe(no_mangle)]
static spank_plugin_version: c_uint = 1;

/// Slurm's release for which this is built, and by which alone it is loaded: a byte each for year, month and number.
pub const RELEASE: c_uint = match c_uint::from_str_radix(env!("FT_SLURM_VERSION"), 16) {
    Ok(version) => version,
    Err(_) => panic!("build.rs writes a hexadecimal number"),
};

/// The first release whose srun is told whether a task that runs out of memory ends its step (24.11). What the site's is
/// (`TaskPluginParam=OOMKillStep`) counts otherwise.
const OOM_KILL_STEP: c_uint = 0x18_0b_00;

/// What srun of a release is told before the user's own words, so that one rank's lack of memory is not all ranks' end.
pub fn keeps_step(release: c_uint) -> Option<&'static str> {
    (release >= OOM_KILL_STEP).then_some("--oom-kill-step=0")
}

/// Whom the plugin runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Context {
    /// `S_CTX_LOCAL`: srun.
    Srun,
    /// `S_CTX_REMOTE`: slurmstepd.
    Step,
    /// `S_CTX_ALLOCATOR`: sbatch and salloc.
    Allocator,
    /// slurmd, prolog and epilog.
    Other,
}

/// Whom this plugin runs in.
pub fn context() -> Context {
    match spank_context() {
        1 => Context::Srun,
        2 => Context::Step,
        3 => Context::Allocator,
        _ => Context::Other,
    }
}

/// Gives the program an option with an argument, and a number by which it is heard of. What Slurm says to that: 0 is success.
pub fn register(spank: Spank, row: &Row, number: c_int, heard: Heard) -> c_int {
    let mut option = SpankOption {
        name: row.name.as_ptr(),
        argument: row.argument.as_ptr(),
        usage: row.usage.as_ptr(),
        has_argument: 1,
        value: number,
        heard: Some(heard),
    };
    // SAFETY: `spank` is what Slurm has called with; it copies the option, whose strings end with a zero and live for ever.
    unsafe { spank_option_register(spank, &raw mut option) }
}

/// Job and step, in slurmstepd, if it is a step that srun has started.
pub fn step(spank: Spank) -> Option<(u32, u32)> {
    let number = |item| {
        let mut number = u32::MAX;
        // SAFETY: `spank` is what Slurm has called with; both items are a `uint32_t`.
        let said = unsafe { spank_get_item(spank, item, &raw mut number) };
        (said == 0).then_some(number)
    };
    let step = number(S_JOB_STEPID).filter(|step| *step <= GREATEST_STEP)?;
    Some((number(S_JOB_ID)?, step))
}

/// A variable of the step's environment, in slurmstepd.
pub fn variable(spank: Spank, name: &[u8]) -> Option<Vec<u8>> {
    let mut list: *mut *mut c_char = null_mut();
    // SAFETY: `spank` is what Slurm has called with; this item is a `char **`.
    if unsafe { spank_get_item(spank, S_JOB_ENV, &raw mut list) } != 0 || list.is_null() {
        return None;
    }
    loop {
        // SAFETY: the list ends with a null pointer, at which this ends too.
        let entry = unsafe { *list };
        if entry.is_null() {
            return None;
        }
        // SAFETY: an entry that is there is a C string of Slurm's, which nothing changes meanwhile.
        let entry = unsafe { CStr::from_ptr(entry) }.to_bytes();
        if let Some(value) = entry.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"=")) {
            return Some(value.to_vec());
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

/// The words of a task, as slurmstepd will execute them: read in 22.05.8 and 26.05.3, where `task->argv` is what this item is.
fn words(spank: Spank) -> Option<NonNull<*mut c_char>> {
    let (mut count, mut words): (c_int, *mut *mut c_char) = (0, null_mut());
    // SAFETY: `spank` is what Slurm has called with; this item is an `int` and a `char **`.
    let said = unsafe { spank_get_item(spank, S_JOB_ARGV, &raw mut count, &raw mut words) };
    NonNull::new(words).filter(|_| said == 0 && count > 0)
}

/// The name of a task's program, in slurmstepd.
pub fn program(spank: Spank) -> Option<CString> {
    let words = words(spank)?;
    // SAFETY: the array has at least one place.
    let first = unsafe { *words.as_ptr() };
    // SAFETY: what stands there is a C string of Slurm's.
    (!first.is_null()).then(|| unsafe { CStr::from_ptr(first) }.to_owned())
}

/// What the controller's configuration is, a line for each of its parameters, as `scontrol show config` shows it. In srun, which has the functions
/// for it (`slurm.h`) at hand: a program that is started for that takes longer than all the rest of this. Nothing, where a release has
/// others, or the controller says nothing.
pub fn configuration() -> Option<Vec<u8>> {
    type Load = unsafe extern "C" fn(time_t, *mut *mut c_void) -> c_int;
    type Print = unsafe extern "C" fn(*mut FILE, *mut c_void);
    type Free = unsafe extern "C" fn(*mut c_void);
    let [load, print, free] = [c"slurm_load_ctl_conf", c"slurm_print_ctl_conf", c"slurm_free_ctl_conf"].map(function);
    let (load, print, free) = (load?, print?, free?);
    // SAFETY: the functions of these names have these types in all releases from 22.05 to today's; what they pass on is theirs alone.
    let (load, print, free) = unsafe {
        (
            std::mem::transmute::<NonNull<c_void>, Load>(load),
            std::mem::transmute::<NonNull<c_void>, Print>(print),
            std::mem::transmute::<NonNull<c_void>, Free>(free),
        )
    };
    let mut loaded: *mut c_void = null_mut();
    // SAFETY: it writes the pointer, if it says 0.
    if unsafe { load(0, &raw mut loaded) } != 0 || loaded.is_null() {
        return None;
    }
    let (mut text, mut bytes): (*mut c_char, size_t) = (null_mut(), 0);
    // SAFETY: both are written until the stream is closed, and live longer.
    let stream = unsafe { libc::open_memstream(&raw mut text, &raw mut bytes) };
    if !stream.is_null() {
        // SAFETY: what was loaded is there, and the stream is open; it is closed once.
        unsafe {
            print(stream, loaded);
            libc::fclose(stream);
        }
    }
    // SAFETY: it was loaded, and nothing of it is used any more.
    unsafe { free(loaded) };
    if text.is_null() {
        return None;
    }
    // SAFETY: a closed stream has left so many bytes there, which are this process's to copy, and to free once.
    let copy = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), bytes) }.to_vec();
    // SAFETY: as above.
    unsafe { libc::free(text.cast()) };
    Some(copy)
}

/// A function that this release of Slurm may have.
fn function(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: a name that ends with a zero.
    NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
}

/// Puts a program before a task's own, which becomes its first argument, by Slurm's function for that, which there is from 23.11 on. Whether it
/// was there and did so.
pub fn prepend(spank: Spank, program: &CStr) -> bool {
    let Some(prepend) = function(c"spank_prepend_task_argv") else { return false };
    // SAFETY: the function of this name has this type since there is one.
    let prepend = unsafe { std::mem::transmute::<NonNull<c_void>, Prepend>(prepend) };
    let words = [program.as_ptr(), std::ptr::null()];
    // SAFETY: `spank` is what Slurm has called with; it copies the one word.
    unsafe { prepend(spank, 1, words.as_ptr()) == 0 }
}

/// Puts a program in the place of a task's own. In the task's process alone, before Slurm executes it. Whether Slurm has shown it.
pub fn exchange(spank: Spank, program: CString) -> bool {
    let Some(words) = words(spank) else { return false };
    // SAFETY: the array has at least one place, and is this process's own: slurmstepd has forked, and executes what stands there, or ends,
    // without giving it back.
    unsafe { *words.as_ptr() = program.into_raw() };
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_releases_that_know_it_are_told_to_keep_the_step() {
        assert_eq!([0x16_05_08, 0x18_05_04].map(keeps_step), [None, None]);
        assert_eq!([0x18_0b_00, 0x1a_05_03].map(keeps_step), [Some("--oom-kill-step=0"); 2]);
    }
}
