//! Programs that ask whether there is an MPI: this library defines MPI's functions, and must not be taken for one.
//!
//! A reference that is weak is emptied again at the start if no loaded library defines it, and `dlsym` does not find what
//! nobody else defines.

use crate::native::find;
use crate::objects::{self, Object};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

/// What this library defines of MPI.
const NAMES: [&CStr; 14] = [
    c"MPI_Abort",
    c"MPI_Finalize",
    c"MPI_Init",
    c"MPI_Init_thread",
    c"MPI_Session_finalize",
    c"MPI_Session_init",
    c"MPI_T_init_thread",
    c"PMPI_Abort",
    c"PMPI_Finalize",
    c"PMPI_Init",
    c"PMPI_Init_thread",
    c"PMPI_Session_finalize",
    c"PMPI_Session_init",
    c"PMPI_T_init_thread",
];

/// Versions of libc's `dlsym`.
#[cfg(target_arch = "x86_64")]
const VERSIONS: [&CStr; 2] = [c"GLIBC_2.34", c"GLIBC_2.2.5"];
#[cfg(target_arch = "aarch64")]
const VERSIONS: [&CStr; 2] = [c"GLIBC_2.34", c"GLIBC_2.17"];

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

static DLSYM: AtomicUsize = AtomicUsize::new(0);

/// libc's `dlsym`; 0 when it cannot be found.
fn native_dlsym() -> usize {
    let known = DLSYM.load(Ordering::Acquire);
    if known != 0 {
        return known;
    }
    // SAFETY: both are C strings.
    let find = |version: &CStr| unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) } as usize;
    let found = VERSIONS.into_iter().map(find).find(|found| *found != 0).unwrap_or(0);
    DLSYM.store(found, Ordering::Release);
    found
}

/// libc's `dlsym`, past this library's own.
pub(crate) fn dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    match native_dlsym() {
        0 => std::ptr::null_mut(),
        // SAFETY: it is dlsym, and the name a C string.
        native => unsafe { std::mem::transmute::<usize, Dlsym>(native)(handle, name.as_ptr()) },
    }
}

/// The function that answers this question: libc's, or one that finds nothing.
unsafe extern "C" fn who_answers(_handle: *mut c_void, name: *const c_char) -> usize {
    // SAFETY: dlsym takes a C string.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
    match name.filter(|name| NAMES.contains(name)) {
        Some(name) if find(name).is_none() => nothing as *const () as usize,
        _ => match native_dlsym() {
            0 => nothing as *const () as usize,
            native => native,
        },
    }
}

/// Finds nothing, and leaves what `dlerror` says of it.
unsafe extern "C" fn nothing(_handle: *mut c_void, name: *const c_char) -> *mut c_void {
    if native_dlsym() != 0 && !name.is_null() {
        // SAFETY: the caller's C string; it is looked up where it is known not to be.
        dlsym(libc::RTLD_NEXT, unsafe { CStr::from_ptr(name) });
    }
    std::ptr::null_mut()
}

/// libc's `dlsym`, which does not find this library's MPI functions where there is no MPI. It looks at its return address, so
/// it is jumped to.
#[unsafe(export_name = "dlsym")]
#[unsafe(naked)]
pub extern "C" fn interposed_dlsym() {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {who}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        who = sym who_answers
    );
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!(
        "stp x29, x30, [sp, -32]!",
        "stp x0, x1, [sp, 16]",
        "bl {who}",
        "mov x16, x0",
        "ldp x0, x1, [sp, 16]",
        "ldp x29, x30, [sp], 32",
        "br x16",
        who = sym who_answers
    );
}

/// Relocations that hold a symbol's address.
#[cfg(target_arch = "x86_64")]
const ADDRESSES: [u64; 3] = [1, 6, 7];
#[cfg(target_arch = "aarch64")]
const ADDRESSES: [u64; 3] = [257, 1025, 1026];
const STB_WEAK: u8 = 2;

#[repr(C)]
#[derive(Clone, Copy)]
struct Rela {
    offset: usize,
    info: u64,
    addend: i64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Sym {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: usize,
}

/// Empties the weak references to MPI functions that only this library defines. Runs when the program is loaded, before any
/// other thread.
pub(crate) fn empty_weak_references() {
    let missing = NAMES.map(|name| dlsym(libc::RTLD_NEXT, name).is_null());
    if !missing.contains(&true) {
        return;
    }
    let objects = objects::loaded();
    let own = interposed_dlsym as *const () as usize;
    let Some(own) = objects.iter().find(|object| object.range.contains(&own)).map(|object| object.range.clone()) else {
        return;
    };
    for object in &objects {
        for (table, bytes) in &object.relocations {
            for at in 0..bytes / size_of::<Rela>() {
                // SAFETY: the object is loaded, and the table as long as its dynamic section says.
                let rela = unsafe { *(*table as *const Rela).add(at) };
                // SAFETY: as above.
                let weak = ADDRESSES.contains(&(rela.info & 0xffff_ffff))
                    && unsafe { is_missing(object, (rela.info >> 32) as usize, &missing) };
                if weak {
                    // SAFETY: the relocation names a word of the object.
                    unsafe { empty(object, object.base.wrapping_add(rela.offset), &own) };
                }
            }
        }
    }
}

/// Whether a symbol is a weak reference to one of the functions that are missing.
///
/// # Safety
/// The object is loaded, and has this symbol.
unsafe fn is_missing(object: &Object, symbol: usize, missing: &[bool; NAMES.len()]) -> bool {
    let Some((symbols, strings)) = object.symbols else { return false };
    // SAFETY: the caller's promise.
    let symbol = unsafe { *(symbols as *const Sym).add(symbol) };
    if symbol.info >> 4 != STB_WEAK || symbol.section != 0 {
        return false;
    }
    // SAFETY: names of symbols are C strings in the table of strings.
    let name = unsafe { CStr::from_ptr((strings + symbol.name as usize) as *const c_char) };
    NAMES.iter().zip(missing).any(|(known, missing)| *missing && *known == name)
}

/// # Safety
/// `place` is a word of the object's that holds an address.
unsafe fn empty(object: &Object, place: usize, own: &std::ops::Range<usize>) {
    const PAGE: usize = 4096;
    let word = place as *mut usize;
    // SAFETY: the caller's promise.
    if !own.contains(&unsafe { *word }) {
        return;
    }
    let page = (place & !(PAGE - 1)) as *mut c_void;
    let read_only = object.relro.contains(&place);
    let protect = |protection: c_int| {
        // SAFETY: a page of the object's that the linker has made read-only, and that becomes so again.
        !read_only || unsafe { libc::mprotect(page, PAGE, protection) } == 0
    };
    if protect(libc::PROT_READ | libc::PROT_WRITE) {
        // SAFETY: it is writable now, and no other thread runs yet.
        unsafe { word.write(0) };
        protect(libc::PROT_READ);
    }
}
