//! The mark that a process ends by its own will. The agent sees a death through the robust mutex before anybody knows its
//! cause; the mark tells it at that moment that no failure is behind it.

use crate::{create, page};
use ft_wire::rank::page::{EXIT, EXIT_MARK};
use std::ffi::{CStr, c_int, c_void};

fn mark(status: c_int) {
    page::set(EXIT, EXIT_MARK | (status as u32 & 0xff));
    create::leaving();
}

/// Sees to it that a return from `main` is marked too: libc calls `exit` there without the dynamic linker.
pub(crate) fn register() {
    unsafe extern "C" {
        fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    }
    extern "C" fn ending(status: c_int, _: *mut c_void) {
        mark(status);
    }
    // SAFETY: the function stays loaded: a preloaded library is never unloaded.
    unsafe { on_exit(ending, std::ptr::null_mut()) };
}

/// Ends the process at once. The same system call that libc's `_exit` makes: nothing else may happen here, this also runs
/// in signal handlers and in children of `vfork`.
pub(crate) fn end(status: c_int) -> ! {
    loop {
        // SAFETY: ends the process.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

fn leave(name: &CStr, status: c_int) -> ! {
    mark(status);
    // SAFETY: the name is a C string.
    let native = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if native.is_null() {
        end(status);
    }
    // SAFETY: this is the type of exit and quick_exit.
    let native: unsafe extern "C" fn(c_int) -> ! = unsafe { std::mem::transmute(native) };
    // SAFETY: the native function, called as it was.
    unsafe { native(status) }
}

/// libc's `exit`, with the mark.
#[unsafe(no_mangle)]
pub extern "C" fn exit(status: c_int) -> ! {
    leave(c"exit", status)
}

/// libc's `quick_exit`, with the mark.
#[unsafe(no_mangle)]
pub extern "C" fn quick_exit(status: c_int) -> ! {
    leave(c"quick_exit", status)
}

/// libc's `_exit`, with the mark.
#[unsafe(no_mangle)]
pub extern "C" fn _exit(status: c_int) -> ! {
    mark(status);
    end(status)
}

/// libc's `_Exit`, with the mark.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn _Exit(status: c_int) -> ! {
    mark(status);
    end(status)
}
