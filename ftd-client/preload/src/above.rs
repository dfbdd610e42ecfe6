//! Whether this process belongs to a job though its environment does not say so: it was cleared, and `LD_PRELOAD` kept.

use ft_sys::individual::ancestors;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What a shepherd's command line says, in this order (see `ft-shepherd`'s options).
const PROGRAM: &str = "ft-shepherd";
const SOCKET: &[u8] = b"--socket";

/// The socket of the agent whose shepherd stands above this process, if one can be seen there.
pub(crate) fn socket() -> Option<PathBuf> {
    ancestors(std::process::id() as i32).into_iter().skip(1).find_map(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let mut words = line.split(|byte| *byte == 0);
        let program = Path::new(OsStr::from_bytes(words.next()?));
        if program.file_name()? != PROGRAM {
            return None;
        }
        words.find(|word| *word == SOCKET)?;
        Some(PathBuf::from(OsStr::from_bytes(words.next()?)))
    })
}
