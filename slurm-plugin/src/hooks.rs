//! What Slurm calls. A panic ends none of its processes.

use crate::allocation::{self, Allocation, Around};
use crate::place;
use crate::spank::{self, Context, Spank};
use crate::standin;
use crate::step::{self, Step};
use crate::task;
use crate::told;
use crate::words::{self, Program, Words};
use libc::{c_char, c_int, off_t};
use std::ffi::{CStr, OsString};
use std::fmt::Display;
use std::io::Write;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

/// A wrong command line.
const WRONG: c_int = 2;
/// What keeps Slurm from going on.
const FAILED: c_int = -1;
/// There is nothing to go back to.
const NOWHERE: off_t = -1;

/// The front would stand in the place of its own srun, again and again.
const OTHER_RELEASE: &str =
    "--ft: ftrun has started srun as if the plugin were of another release: install both anew, from one";

/// Where standard input stood before sbatch read a script from it.
static INPUT: AtomicI64 = AtomicI64::new(NOWHERE);
/// So many components of a job has Slurm read the options of.
static COMPONENTS: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" {
    /// getopt's own: the first word that is none of the options. Slurm goes by it too.
    static optind: c_int;
}

/// Slurm has loaded the plugin; nothing of the command line has been read.
#[unsafe(no_mangle)]
extern "C" fn slurm_spank_init(spank: Spank, _count: c_int, _words: *const *const c_char) -> c_int {
    match spank::context() {
        Context::Other => return 0,
        Context::Allocator => {
            // SAFETY: asks where a descriptor stands, and moves nothing.
            INPUT.store(unsafe { libc::lseek(libc::STDIN_FILENO, 0, libc::SEEK_CUR) }, Ordering::Relaxed);
        }
        // What srun was told slurmstepd is told, and must know.
        Context::Srun | Context::Step => {}
    }
    let numbered = told::OPTIONS.iter().zip(0..);
    numbered.map(|(row, number)| spank::register(spank, row, number, heard)).find(|said| *said != 0).unwrap_or(0)
}

/// Slurm has read an option of the plugin's.
extern "C" fn heard(option: c_int, argument: *const c_char, _remote: c_int) -> c_int {
    let value = if argument.is_null() {
        Vec::new()
    } else {
        // SAFETY: Slurm gives a C string that lives as long as this call.
        unsafe { CStr::from_ptr(argument) }.to_bytes().to_vec()
    };
    // What slurmstepd is told is not looked at there: the step's environment decides.
    if let Ok(option) = usize::try_from(option) {
        let _ = catch_unwind(|| told::hear(option, value));
    }
    0
}

/// All options have been read, and nothing has been done about them.
#[unsafe(no_mangle)]
extern "C" fn slurm_spank_init_post_opt(_spank: Spank, _count: c_int, _words: *const *const c_char) -> c_int {
    let context = spank::context();
    let done = catch_unwind(|| match context {
        Context::Srun => in_srun(),
        Context::Allocator => in_allocator(),
        _ => Ok(()),
    });
    match done {
        Ok(Ok(())) => 0,
        Ok(Err((whose, sentence))) => refused(whose, &sentence),
        Err(_) => FAILED,
    }
}

/// Who says it, and what.
type Said = (&'static str, String);

fn in_srun() -> Result<(), Said> {
    let step = variable(task::STEP);
    // The front's own srun has the words that brought the front here.
    if step.as_ref().is_some_and(|step| !step.is_empty()) {
        return Ok(());
    }
    let said = |error: &dyn Display| (Program::Srun.name(), error.to_string());
    let words = typed(Program::Srun).map_err(|error| said(&error))?;
    match step::plan(&words, &told::heard(), variable).map_err(|error| said(&error))? {
        Step::Plain => Ok(()),
        Step::Kept { .. } if step.is_some() => Err(said(&OTHER_RELEASE)),
        Step::Kept { options, words } => {
            let missing = |error| said(&format!("--ft: {error}"));
            place::program(place::SHEPHERD).map_err(missing)?;
            let front = place::program(place::FRONT).map_err(missing)?;
            let srun = standin::own_file().map_err(|error| said(&format!("--ft: /proc/self/exe: {error}")))?;
            let ports = spank::configuration().and_then(|said| port_range(&said)).unwrap_or_default();
            // SAFETY: this thread is the only one that reads or writes the environment now.
            unsafe {
                std::env::set_var(task::STEP, "");
                std::env::set_var(task::PORTS, ports);
            }
            let of_release = spank::keeps_step(spank::RELEASE).map(OsString::from).into_iter().collect();
            let before = [vec!["--step".into()], options, vec!["--".into(), srun.into()], of_release];
            Err(said(&format!("--ft: {}", standin::execute(&front, before.into_iter().flatten().chain(words)))))
        }
    }
}

/// Where sruns may listen, as Slurm's configuration says it.
fn port_range(configuration: &[u8]) -> Option<OsString> {
    let text = String::from_utf8_lossy(configuration);
    let line = text.lines().find(|line| line.starts_with("SrunPortRange"))?;
    Some(line.split_once('=')?.1.trim().into())
}

fn in_allocator() -> Result<(), Said> {
    let Ok(program) = standin::own_file() else { return Ok(()) };
    let Some(whose) = program.file_name().and_then(Program::named) else { return Ok(()) };
    let said = |error: &dyn Display| (whose.name(), error.to_string());
    let words = typed(whose).map_err(|error| said(&error))?;
    let input = INPUT.load(Ordering::Relaxed);
    let is_component = COMPONENTS.fetch_add(1, Ordering::Relaxed) > 0;
    let around = Around { variable: &variable, input_returns: input != NOWHERE, is_component };
    match allocation::plan(whose, &words, &told::heard(), &around).map_err(|error| said(&error))? {
        Allocation::Plain => Ok(()),
        Allocation::Again(words) => {
            let missing = |error| said(&format!("--ft: {error}"));
            place::program(place::FRONT).map_err(missing)?;
            if input != NOWHERE {
                // SAFETY: moves a descriptor that this process reads alone; what sbatch has read of it is read again.
                unsafe { libc::lseek(libc::STDIN_FILENO, input, libc::SEEK_SET) };
            }
            Err(said(&format!("--ft: {}", standin::execute(&program, words))))
        }
    }
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// The command line, of which Slurm has just read the options.
fn typed(whose: Program) -> Result<Words, String> {
    let all = words::own().map_err(|error| format!("--ft: /proc/self/cmdline: {error}"))?;
    // SAFETY: getopt's variable, which nobody writes now: Slurm calls its plugins from the thread that has called getopt.
    let index = unsafe { optind };
    let program =
        usize::try_from(index).ok().and_then(|index| index.checked_sub(1)).filter(|program| *program <= all.len());
    match program {
        Some(program) => Ok(Words::read(whose, all, program)),
        None => Err(format!("--ft: it cannot be told where the options of {} end", whose.name())),
    }
}

/// Says why, and ends the program before it has asked Slurm for anything.
fn refused(whose: &str, sentence: &str) -> c_int {
    // Nobody may be there to read it.
    let _ = writeln!(std::io::stderr(), "{whose}: error: {sentence}");
    // SAFETY: ends the process. What srun has to do at its end it does not have to do before it has begun; an error that is given
    // back would be told a second time, in Slurm's words.
    unsafe { libc::_exit(WRONG) }
}

/// In a task, as its user, before Slurm executes its program. What is written to standard error here is the task's.
#[unsafe(no_mangle)]
extern "C" fn slurm_spank_task_init(spank: Spank, _count: c_int, _words: *const *const c_char) -> c_int {
    let why = match catch_unwind(|| task::shepherded(spank)) {
        Ok(Ok(())) => return 0,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "its plugin has an error of its own".to_string(),
    };
    // All tasks of a node would say the same; and the front would wait for the node.
    let _ = catch_unwind(|| {
        if task::is_first(spank) {
            let _ = writeln!(std::io::stderr(), "ftd: node {}: the task cannot be started: {why}", task::node(spank));
            task::end_step(spank);
        }
    });
    FAILED
}
