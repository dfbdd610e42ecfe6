//! Programs that are started with a cleared environment (`env -i`), and so without this library: their MPI would start a job of
//! its own, and a short one is over before the agent has looked. They are given, beside what they are to have, what keeps every
//! MPI from starting alone, and this library, which ends the job with a sentence when they come to `MPI_Init`.
//!
//! This runs in children of `fork` and `vfork`: nothing is allocated, and no lock is taken. `execl` and its relatives, whose
//! arguments are as many as the caller likes, are not among these functions, and are left to the agent.

use crate::native::Native;
use crate::page;
use ft_wire::Flavour;
use ft_wire::forlorn::{CLEARED, FORLORN, users};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

type Strings = *const *const c_char;

/// An environment with more variables than this is no cleared one.
const MOST: usize = 1000;

/// What is to be added: variables with their values. Only in a process whose own environment says that it has not joined; what a
/// rank starts after it has joined is its own affair.
static GUARDS: OnceLock<Guards> = OnceLock::new();

struct Guards {
    forlorn: [CString; FORLORN.len()],
    preload: CString,
}

/// By which a program of MPICH's is served from the start.
const CONNECTION: &CStr = c"PMI_FD=";

impl Guards {
    /// Whether this one keeps MPICH from starting.
    fn is_setting(&self, guard: &CString) -> bool {
        let at = self.forlorn.iter().position(|one| std::ptr::eq(one, guard));
        at.is_some_and(|at| FORLORN[at].0 == Flavour::Mpich)
    }
}

static EXECV: Native = Native::new(c"execv");
static EXECVE: Native = Native::new(c"execve");
static EXECVP: Native = Native::new(c"execvp");
static EXECVPE: Native = Native::new(c"execvpe");
static EXECVEAT: Native = Native::new(c"execveat");
static FEXECVE: Native = Native::new(c"fexecve");
static SPAWN: Native = Native::new(c"posix_spawn");
static SPAWNP: Native = Native::new(c"posix_spawnp");

/// While the library is loaded, before the program can have changed its environment; later on, any moment may be a bad one for the
/// dynamic linker.
pub(crate) fn prepare() {
    for native in [&EXECV, &EXECVE, &EXECVP, &EXECVPE, &EXECVEAT, &FEXECVE, &SPAWN, &SPAWNP] {
        native.look();
    }
    keep_guards();
}

fn keep_guards() {
    let is_forlorn = |(name, value): (&str, &str)| {
        std::env::var_os(name).is_some_and(|found| found == value || users(found.as_bytes()).is_some())
    };
    let below_a_shepherd = std::env::var_os("FT_SOCKET").is_some_and(|socket| !socket.is_empty());
    if !below_a_shepherd || !FORLORN.iter().any(|(_, variable)| is_forlorn(*variable)) {
        return;
    }
    let forlorn = FORLORN.map(|(_, variable)| {
        let (name, value) = if variable.0 == CLEARED.0 { CLEARED } else { variable };
        CString::new(format!("{name}={value}")).unwrap_or_default()
    });
    let preload = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let preload = CString::new([&b"LD_PRELOAD="[..], preload.as_bytes()].concat()).unwrap_or_default();
    let _ = GUARDS.set(Guards { forlorn, preload });
}

/// Runs this with an environment that lacks none of what keeps an MPI from starting alone: the given one, or a longer copy.
///
/// # Safety
/// `environment` is null or an array of C strings that ends with a null pointer.
unsafe fn guarded<R>(environment: Strings, run: impl FnOnce(Strings) -> R) -> R {
    let Some(guards) = GUARDS.get().filter(|_| !page::has_joined()) else { return run(environment) };
    // These, this library, and the null pointer.
    let mut longer = [std::ptr::null(); MOST + FORLORN.len() + 2];
    let mut count = 0;
    while !environment.is_null() {
        // SAFETY: not beyond the null pointer that ends it.
        let variable = unsafe { *environment.add(count) };
        if variable.is_null() {
            break;
        }
        if count == MOST {
            return run(environment);
        }
        longer[count] = variable;
        count += 1;
    }
    let given = count;
    // SAFETY: the array's entries are C strings.
    let has =
        |guard: &CStr| longer[..given].iter().any(|variable| is_same(guard, unsafe { CStr::from_ptr(*variable) }));
    // Where MPICH has its connection from the start, its settings are the user's.
    let is_connected = has(CONNECTION);
    let lacks = |guard: &CString| !(has(guard) || is_connected && guards.is_setting(guard));
    // The library alone may have been taken away on purpose, from a tool: that is no cleared environment.
    let mut missing = [std::ptr::null(); FORLORN.len() + 1];
    let mut added = 0;
    for guard in guards.forlorn.iter().chain([&guards.preload]) {
        if lacks(guard) && (*guard != guards.preload || added > 0) {
            missing[added] = guard.as_ptr();
            added += 1;
        }
    }
    longer[given..given + added].copy_from_slice(&missing[..added]);
    run(if added == 0 { environment } else { longer.as_ptr() })
}

/// Whether two assignments are of the same variable.
fn is_same(one: &CStr, other: &CStr) -> bool {
    let name = |assignment: &CStr| assignment.to_bytes().iter().position(|byte| *byte == b'=');
    name(one).is_some_and(|end| other.to_bytes().get(..=end) == Some(&one.to_bytes()[..=end]))
}

fn own_environment() -> Strings {
    unsafe extern "C" {
        static environ: Strings;
    }
    // SAFETY: libc's variable; who changes it while another thread calls exec has that race without this library as well.
    unsafe { environ }
}

/// Calls a native function, as what it is: libc's of this name, or another library's in its place. In a block that is unsafe.
macro_rules! native {
    ($static:ident($($argument:expr => $type:ty),+)) => {
        match $static.get() {
            0 => missing(),
            native => std::mem::transmute::<usize, unsafe extern "C" fn($($type),+) -> c_int>(native)($($argument),+),
        }
    };
}

fn missing() -> c_int {
    // SAFETY: the calling thread's own error number.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    -1
}

/// libc's `execv`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, argv: Strings) -> c_int {
    let own = own_environment();
    // SAFETY: the process's environment, and the caller's arguments.
    unsafe {
        guarded(own, |environment| match environment == own {
            true => native!(EXECV(path => *const c_char, argv => Strings)),
            false => native!(EXECVE(path => *const c_char, argv => Strings, environment => Strings)),
        })
    }
}

/// libc's `execve`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, argv: Strings, environment: Strings) -> c_int {
    // SAFETY: the caller's arguments, with an environment that is as good.
    unsafe {
        guarded(
            environment,
            |environment| native!(EXECVE(path => *const c_char, argv => Strings, environment => Strings)),
        )
    }
}

/// libc's `execvp`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, argv: Strings) -> c_int {
    let own = own_environment();
    // SAFETY: the process's environment, and the caller's arguments.
    unsafe {
        guarded(own, |environment| match environment == own {
            true => native!(EXECVP(file => *const c_char, argv => Strings)),
            false => native!(EXECVPE(file => *const c_char, argv => Strings, environment => Strings)),
        })
    }
}

/// libc's `execvpe`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: *const c_char, argv: Strings, environment: Strings) -> c_int {
    // SAFETY: the caller's arguments, with an environment that is as good.
    unsafe {
        guarded(
            environment,
            |environment| native!(EXECVPE(file => *const c_char, argv => Strings, environment => Strings)),
        )
    }
}

/// libc's `execveat`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(
    directory: c_int,
    path: *const c_char,
    argv: Strings,
    environment: Strings,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's arguments, with an environment that is as good.
    unsafe {
        guarded(
            environment,
            |environment| native!(EXECVEAT(directory => c_int, path => *const c_char, argv => Strings, environment => Strings, flags => c_int)),
        )
    }
}

/// libc's `fexecve`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(file: c_int, argv: Strings, environment: Strings) -> c_int {
    // SAFETY: the caller's arguments, with an environment that is as good.
    unsafe {
        guarded(environment, |environment| native!(FEXECVE(file => c_int, argv => Strings, environment => Strings)))
    }
}

/// libc's `posix_spawn`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn(
    pid: *mut libc::pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    argv: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: the caller's arguments, with an environment that is as good.
    unsafe {
        guarded(environment, |environment| {
            native!(SPAWN(
                pid => *mut libc::pid_t, path => *const c_char, actions => *const c_void, attributes => *const c_void,
                argv => Strings, environment => Strings
            ))
        })
    }
}

/// libc's `posix_spawnp`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawnp(
    pid: *mut libc::pid_t,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    argv: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: the caller's arguments, with an environment that is as good.
    unsafe {
        guarded(environment, |environment| {
            native!(SPAWNP(
                pid => *mut libc::pid_t, file => *const c_char, actions => *const c_void, attributes => *const c_void,
                argv => Strings, environment => Strings
            ))
        })
    }
}
