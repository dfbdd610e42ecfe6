//! Where ftd is installed: two directories above the plugin.

use libc::c_void;
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What stands in srun's place, below `PREFIX`.
pub const FRONT: &str = "bin/ftrun";
/// What stands before a task's program, below `PREFIX`.
pub const SHEPHERD: &str = "libexec/ftd/ft-shepherd";

/// Why there is no program of ftd's; one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// Nobody knows where to look.
    #[error("the plugin does not know where it lies itself, and so not where ftd does")]
    Place,
    /// The plugin is there without the rest.
    #[error(
        "{0} is not there or cannot be executed: ftd has to be installed here, with this plugin in its libexec/ftd"
    )]
    Program(PathBuf),
}

/// A program of ftd's, which can be executed.
///
/// # Errors
/// Where it is not.
pub fn program(name: &str) -> Result<PathBuf, Missing> {
    let program = prefix().ok_or(Missing::Place)?.join(name);
    match program.metadata() {
        Ok(found) if found.is_file() && found.permissions().mode() & 0o111 != 0 => Ok(program),
        _ => Err(Missing::Program(program)),
    }
}

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
