//! Reading what libpmix shows.

use super::sys;
use ft_wire::pmix::Proc;
use std::ffi::{CStr, c_char};

/// # Safety
/// `at` is null or points to a NUL-terminated string.
pub(super) unsafe fn text(at: *const c_char) -> String {
    if at.is_null() {
        return String::new();
    }
    // SAFETY: by this function's contract.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

/// # Safety
/// `at` is null (then `count` does not matter) or points to `count` values that live for `'a`.
pub(super) unsafe fn slice<'a, T>(at: *const T, count: usize) -> &'a [T] {
    if at.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: by this function's contract.
    unsafe { std::slice::from_raw_parts(at, count) }
}

/// Text in an array of fixed length, which need not end with a NUL.
pub(super) fn fixed(array: &[c_char]) -> String {
    let bytes: Vec<u8> = array.iter().map(|c| *c as u8).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(super) fn proc_from(proc: &sys::pmix_proc_t) -> Proc {
    Proc { nspace: fixed(&proc.nspace), rank: proc.rank }
}

/// # Safety
/// As [`slice`].
pub(super) unsafe fn procs_from(at: *const sys::pmix_proc_t, count: usize) -> Vec<Proc> {
    // SAFETY: by this function's contract.
    unsafe { slice(at, count) }.iter().map(proc_from).collect()
}

/// # Safety
/// `at` is null or points to an array of strings that ends with a null pointer.
pub(super) unsafe fn texts(at: *const *mut c_char) -> Vec<String> {
    // SAFETY: by this function's contract.
    unsafe { strings(at) }.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect()
}

/// # Safety
/// As [`texts`].
pub(super) unsafe fn strings(at: *const *mut c_char) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    if at.is_null() {
        return all;
    }
    for index in 0.. {
        // SAFETY: the array goes on at least up to its null pointer, where this loop ends.
        let one = unsafe { *at.add(index) };
        if one.is_null() {
            break;
        }
        // SAFETY: an element of the array is a string.
        all.push(unsafe { CStr::from_ptr(one) }.to_bytes().to_vec());
    }
    all
}
