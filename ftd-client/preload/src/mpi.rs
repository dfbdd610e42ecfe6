//! The interposed MPI functions.
//!
//! Communicators and other handles are pointers in one MPI and integers in another; both travel in one register, and pass
//! through here as `usize`.

use crate::link::{self, ask_to_abort, tell};
use crate::native::find;
use crate::{mark, owner, page, settings, stdout};
use ft_sys::gate;
use ft_wire::rank::ToAgent;
use ft_wire::rank::page::{PHASE, PHASE_CONNECTED, PHASE_FINALIZE, PHASE_FINALIZED, PHASE_INIT, PHASE_RUNNING};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

/// What of MPI is open in this process.
struct Open {
    /// The process has joined the job (or tried to).
    joined: bool,
    /// `MPI_Init` has been entered and `MPI_Finalize` not left.
    world: bool,
    /// Sessions that are open.
    sessions: u32,
    /// An interposed call is under way on this level: what the native one calls in its turn passes through.
    inside: bool,
}

static OPEN: Mutex<Open> = Mutex::new(Open { joined: false, world: false, sessions: 0, inside: false });

fn open<T>(body: impl FnOnce(&mut Open) -> T) -> T {
    body(&mut OPEN.lock().unwrap_or_else(PoisonError::into_inner))
}

/// What is returned where there is no MPI: no MPI's code for success.
const NO_MPI: c_int = 16;

/// Runs ftd's part of a call. A panic must not unwind into C; the program can go on without what was left undone.
fn guarded(body: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(body)).is_err() {
        link::refuse("an internal error of libft_preload");
    }
}

/// Whether this call is the outermost one of a process of a job.
fn enter() -> bool {
    link::is_wanted() && open(|open| !std::mem::replace(&mut open.inside, true))
}

fn leave() {
    open(|open| open.inside = false);
}

fn initialize(init: *mut c_void, session: bool, call: impl FnOnce() -> c_int) -> c_int {
    if !enter() {
        if !link::is_wanted() {
            guarded(link::refuse_astray);
        }
        return call();
    }
    let rank = link::rank();
    let mut ours = true;
    guarded(|| {
        gate::reach("mpi.before-init", rank);
        if open(|open| !std::mem::replace(&mut open.joined, true)) {
            link::join(init, session);
            page::set(PHASE, PHASE_CONNECTED);
        }
        // Not ours: a child of a fork, after its parent joined.
        ours = page::is_owner();
        if ours {
            stdout::make_live();
            owner::init_begins(find(c"PMPI_Init").unwrap_or(init));
            page::set(PHASE, PHASE_INIT);
            gate::reach("mpi.in-init", rank);
        }
    });
    let code = call();
    guarded(|| {
        if ours {
            owner::init_ended();
        }
        if ours && code == 0 {
            open(|open| if session { open.sessions += 1 } else { open.world = true });
            page::set(PHASE, PHASE_RUNNING);
            tell(&ToAgent::Initialized);
            gate::reach("mpi.after-init", rank);
        }
        leave();
    });
    code
}

/// The tools' interface reads the settings, may be opened before `MPI_Init`, and joins nothing.
fn initialize_tools(call: impl FnOnce() -> c_int) -> c_int {
    let mut taken = settings::Taken::default();
    guarded(|| taken = settings::give_back());
    let code = call();
    guarded(|| taken.put_back());
    code
}

fn finalize(session: bool, call: impl FnOnce() -> c_int) -> c_int {
    if !page::is_owner() || !enter() {
        return call();
    }
    let rank = link::rank();
    // The phase speaks of the process: it is over only with the last session, and with the world.
    let last = open(|open| if session { !open.world && open.sessions <= 1 } else { open.sessions == 0 });
    guarded(|| {
        if last {
            gate::reach("mpi.before-finalize", rank);
            page::set(PHASE, PHASE_FINALIZE);
            gate::reach("mpi.in-finalize", rank);
        }
    });
    let code = call();
    guarded(|| {
        if code == 0 {
            open(|open| if session { open.sessions = open.sessions.saturating_sub(1) } else { open.world = false });
            if last {
                owner::finalized();
                page::set(PHASE, PHASE_FINALIZED);
                tell(&ToAgent::Finalized);
                gate::reach("mpi.after-finalize", rank);
            }
        }
        leave();
    });
    code
}

/// # Safety
/// `name` is one of the two names of `MPI_Abort`, and the arguments are meant for it.
unsafe fn abort(name: &CStr, communicator: usize, code: c_int) -> c_int {
    let Some(native) = find(name) else { mark::_exit(code) };
    if page::is_owner() && enter() {
        guarded(|| ask_to_abort(code));
        leave();
    }
    // SAFETY: the type of this function in the MPI standard.
    let function: Abort = unsafe { std::mem::transmute(native) };
    // SAFETY: the caller's promise.
    unsafe { function(communicator, code) }
}

type Init = unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char) -> c_int;
type InitThread = unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int;
type SessionInit = unsafe extern "C" fn(usize, usize, *mut c_void) -> c_int;
type SessionFinalize = unsafe extern "C" fn(*mut c_void) -> c_int;
type ToolInit = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
type Finalize = unsafe extern "C" fn() -> c_int;
type Abort = unsafe extern "C" fn(usize, c_int) -> c_int;

/// Defines an MPI function and its `PMPI_` twin.
macro_rules! interpose {
    ($type:ty; $($name:ident $c_name:literal),+; $arguments:tt; $body:expr) => {
        $(interpose!(@one $type; $name $c_name; $arguments; $body);)+
    };
    (@one $type:ty; $name:ident $c_name:literal; ($($argument:ident: $argument_type:ty),*); $body:expr) => {
        #[doc = concat!("The native `", stringify!($name), "`, with ftd around it.")]
        ///
        /// # Safety
        /// As the MPI standard says of the native function.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn $name($($argument: $argument_type),*) -> c_int {
            // A program that only asked for the symbol and got this one.
            let Some(address) = find($c_name) else { return NO_MPI };
            // SAFETY: the type of this function in the MPI standard.
            let function: $type = unsafe { std::mem::transmute(address) };
            // SAFETY: the caller's arguments, passed through.
            $body(address, move || unsafe { function($($argument),*) })
        }
    };
}

interpose!(
    Init; MPI_Init c"MPI_Init", PMPI_Init c"PMPI_Init";
    (argc: *mut c_int, argv: *mut *mut *mut c_char);
    |init, call| initialize(init, false, call)
);
interpose!(
    InitThread; MPI_Init_thread c"MPI_Init_thread", PMPI_Init_thread c"PMPI_Init_thread";
    (argc: *mut c_int, argv: *mut *mut *mut c_char, required: c_int, provided: *mut c_int);
    |init, call| initialize(init, false, call)
);
interpose!(
    SessionInit; MPI_Session_init c"MPI_Session_init", PMPI_Session_init c"PMPI_Session_init";
    (info: usize, errhandler: usize, session: *mut c_void);
    |init, call| initialize(init, true, call)
);
interpose!(
    ToolInit; MPI_T_init_thread c"MPI_T_init_thread", PMPI_T_init_thread c"PMPI_T_init_thread";
    (required: c_int, provided: *mut c_int);
    |_, call| initialize_tools(call)
);
interpose!(
    SessionFinalize; MPI_Session_finalize c"MPI_Session_finalize", PMPI_Session_finalize c"PMPI_Session_finalize";
    (session: *mut c_void);
    |_, call| finalize(true, call)
);
interpose!(Finalize; MPI_Finalize c"MPI_Finalize", PMPI_Finalize c"PMPI_Finalize"; (); |_, call| finalize(false, call));

/// The native `MPI_Abort`, once the agent has had its say.
///
/// # Safety
/// As the MPI standard says of the native function.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn MPI_Abort(communicator: usize, code: c_int) -> c_int {
    // SAFETY: the caller's arguments, passed through.
    unsafe { abort(c"MPI_Abort", communicator, code) }
}

/// The native `PMPI_Abort`, once the agent has had its say.
///
/// # Safety
/// As the MPI standard says of the native function.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn PMPI_Abort(communicator: usize, code: c_int) -> c_int {
    // SAFETY: the caller's arguments, passed through.
    unsafe { abort(c"PMPI_Abort", communicator, code) }
}
