//! The C interface. Its contract is `include/ft.h`; the numbers here and there are the same (a test compares them).

use crate::client::{rank_of_environment, say};
use crate::error::describe;
use crate::{Client, Error, State};
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

enum Library {
    Unused,
    Active(Box<Client>),
    Finalized,
}

static LIBRARY: Mutex<Library> = Mutex::new(Library::Unused);
/// Process that called `ft_init`; 0 before. Read before the lock is taken: a child of a `fork` may have inherited it locked.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// A function that the program wants called in each checkpoint.
#[derive(Clone, Copy, PartialEq)]
struct OnCheckpoint {
    call: usize,
    argument: usize,
}

/// Apart from the library: it is filled before `ft_init`, too, and its functions are called without any lock.
static ON_CHECKPOINT: Mutex<Vec<OnCheckpoint>> = Mutex::new(Vec::new());

thread_local! {
    /// This thread runs one of these functions.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

impl OnCheckpoint {
    fn run(self) {
        // SAFETY: the address of a function of this type, which ft_on_checkpoint was given.
        let call: extern "C" fn(*mut c_void) = unsafe { std::mem::transmute(self.call) };
        call(self.argument as *mut c_void);
    }
}

/// Runs one call: no panic crosses into C, and each error is said once on stderr.
fn call(body: impl FnOnce(&mut Library) -> Result<(), Error>) -> c_int {
    let (owner, pid) = (OWNER.load(Ordering::Acquire), std::process::id());
    let result = if owner != 0 && owner != pid {
        Err(Error::Child { pid: pid as i32, owner: owner as i32 })
    } else if INSIDE.get() {
        Err(Error::Order("a call to this library in a function that ft_on_checkpoint registered"))
    } else {
        let guarded = || body(&mut LIBRARY.lock().unwrap_or_else(PoisonError::into_inner));
        catch_unwind(AssertUnwindSafe(guarded)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_string());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            Err(Error::Internal(text.unwrap_or_else(|| "a panic".into())))
        })
    };
    match result {
        Ok(()) => 0,
        Err(error) => {
            if !matches!(error, Error::Nothing) {
                // Saying it may panic only when memory is exhausted; the code says it all the same.
                let _ = catch_unwind(AssertUnwindSafe(|| say(rank_of_environment(), &error.to_string())));
            }
            error.code()
        }
    }
}

/// What a call before `ft_init` and one after `ft_finalize` are told.
type OutOfTurn = [&'static str; 2];

fn with_client(out_of_turn: OutOfTurn, body: impl FnOnce(&mut Client) -> Result<(), Error>) -> c_int {
    call(|library| match library {
        Library::Active(client) => body(client),
        Library::Unused => Err(Error::Order(out_of_turn[0])),
        Library::Finalized => Err(Error::Order(out_of_turn[1])),
    })
}

fn state_code(state: State) -> c_int {
    match state {
        State::New => 0,
        State::Restarted => 1,
        State::Survivor => 2,
        State::Spare => 3,
    }
}

/// See `ft.h`.
///
/// # Safety
/// `state` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ft_init(state: *mut c_int) -> c_int {
    call(|library| {
        if state.is_null() {
            return Err(Error::Argument("ft_init: state is a null pointer".into()));
        }
        let found = match library {
            Library::Active(client) => client.state(),
            Library::Finalized => return Err(Error::Order("ft_init after ft_finalize: once per process")),
            Library::Unused => {
                let client = Client::init()?;
                OWNER.store(client.pid(), Ordering::Release);
                let found = client.state();
                *library = Library::Active(Box::new(client));
                found
            }
        };
        // SAFETY: not null, and valid by the caller's promise.
        unsafe { state.write(state_code(found)) };
        Ok(())
    })
}

/// See `ft.h`.
///
/// # Safety
/// `pointer` is valid for `bytes` bytes as long as the region is protected.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ft_protect(id: c_int, pointer: *mut c_void, bytes: usize) -> c_int {
    with_client(["ft_protect before ft_init", "ft_protect after ft_finalize"], |client| {
        // SAFETY: the caller's promise.
        unsafe { client.protect(id, pointer.cast(), bytes) }
    })
}

/// See `ft.h`.
#[unsafe(no_mangle)]
pub extern "C" fn ft_checkpoint(version: u64) -> c_int {
    const WHAT: OutOfTurn = [
        "ft_checkpoint before ft_init: nothing was written",
        "ft_checkpoint after ft_finalize: nothing was written, and this process takes no more checkpoints",
    ];
    let code = with_client(WHAT, |_| Ok(()));
    if code != 0 {
        return code;
    }
    let calls = ON_CHECKPOINT.lock().unwrap_or_else(PoisonError::into_inner).clone();
    INSIDE.set(true);
    // The last first: what was registered early is what the others write to.
    calls.into_iter().rev().for_each(OnCheckpoint::run);
    INSIDE.set(false);
    with_client(WHAT, |client| client.checkpoint(version))
}

/// See `ft.h`.
#[unsafe(no_mangle)]
pub extern "C" fn ft_on_checkpoint(on: Option<extern "C" fn(*mut c_void)>, argument: *mut c_void) -> c_int {
    call(|library| {
        let Some(on) = on else {
            return Err(Error::Argument("ft_on_checkpoint: the function is a null pointer".into()));
        };
        if matches!(library, Library::Finalized) {
            return Err(Error::Order("ft_on_checkpoint after ft_finalize"));
        }
        let wanted = OnCheckpoint { call: on as usize, argument: argument as usize };
        let mut registered = ON_CHECKPOINT.lock().unwrap_or_else(PoisonError::into_inner);
        if !registered.contains(&wanted) {
            registered.push(wanted);
        }
        Ok(())
    })
}

/// See `ft.h`.
///
/// # Safety
/// `version` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ft_restore(version: *mut u64) -> c_int {
    with_client(["ft_restore before ft_init", "ft_restore after ft_finalize"], |client| {
        if version.is_null() {
            return Err(Error::Argument("ft_restore: version is a null pointer".into()));
        }
        let found = client.restore()?;
        // SAFETY: not null, and valid by the caller's promise.
        unsafe { version.write(found) };
        Ok(())
    })
}

/// See `ft.h`.
///
/// # Safety
/// `yes` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ft_checkpoint_due(yes: *mut c_int) -> c_int {
    with_client(["ft_checkpoint_due before ft_init", "ft_checkpoint_due after ft_finalize"], |client| {
        if yes.is_null() {
            return Err(Error::Argument("ft_checkpoint_due: yes is a null pointer".into()));
        }
        let due = client.checkpoint_due()?;
        // SAFETY: not null, and valid by the caller's promise.
        unsafe { yes.write(c_int::from(due)) };
        Ok(())
    })
}

/// See `ft.h`.
#[unsafe(no_mangle)]
pub extern "C" fn ft_finalize() -> c_int {
    call(|library| match std::mem::replace(library, Library::Finalized) {
        Library::Active(client) => {
            client.finalize();
            Ok(())
        }
        Library::Finalized => Ok(()),
        Library::Unused => {
            *library = Library::Unused;
            Err(Error::Order("ft_finalize before ft_init"))
        }
    })
}

/// See `ft.h`.
#[unsafe(no_mangle)]
pub extern "C" fn ft_strerror(code: c_int) -> *const c_char {
    describe(code).as_ptr()
}
