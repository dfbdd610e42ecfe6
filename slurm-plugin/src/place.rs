//! Where ftd is installed: two directories above the plugin.

use libc::c_void;
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// `PREFIX`, by the file that this code was loaded from, `PREFIX/libexec/ftd/ft_slurm.so`, whatever links lead there.
fn prefix() -> Option<PathBuf> {
    let mut found = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    let here = prefix as *const c_void;
    // SAFETY: an address of this code, and a place for what is found.
    if unsafe { libc::dladdr(here, &raw mut found) } == 0 || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own C string, which lives as long as this code is loaded.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    let name = Path::new(OsStr::from_bytes(name.to_bytes()));
    let file = name.canonicalize().unwrap_or_else(|_| name.to_path_buf());
    Some(file.ancestors().nth(3)?.to_path_buf())
}

/// `ftrun`.
pub fn front() -> Option<PathBuf> {
    Some(prefix()?.join("bin/ftrun"))
}

/// What stands before a task's program.
pub fn shepherd() -> Option<PathBuf> {
    Some(prefix()?.join("libexec/ftd/ft-shepherd"))
}
