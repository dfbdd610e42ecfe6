//! `dlopen`: whether the MPI or somebody else has an object loaded can only be seen when it is asked for.

use crate::{owner, probe};
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

static DLOPEN: AtomicUsize = AtomicUsize::new(0);

/// libc's `dlopen`, or that of a library in between.
unsafe extern "C" fn announce(name: *const c_char, _flags: c_int) -> usize {
    // SAFETY: dlopen takes null or a C string.
    unsafe { owner::opening(name) };
    let known = DLOPEN.load(Ordering::Acquire);
    if known != 0 {
        return known;
    }
    let found = probe::dlsym(libc::RTLD_NEXT, c"dlopen") as usize;
    DLOPEN.store(found, Ordering::Release);
    if found == 0 { nothing as *const () as usize } else { found }
}

/// Where there is no `dlopen`.
unsafe extern "C" fn nothing(_name: *const c_char, _flags: c_int) -> *mut c_void {
    std::ptr::null_mut()
}

/// libc's `dlopen`, noticed while `MPI_Init` runs. It searches as its caller says, which it knows by its return address, so it is
/// jumped to.
#[unsafe(export_name = "dlopen")]
#[unsafe(naked)]
pub extern "C" fn interposed_dlopen() {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {announce}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        announce = sym announce
    );
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!(
        "stp x29, x30, [sp, -32]!",
        "stp x0, x1, [sp, 16]",
        "bl {announce}",
        "mov x16, x0",
        "ldp x0, x1, [sp, 16]",
        "ldp x29, x30, [sp], 32",
        "br x16",
        announce = sym announce
    );
}
