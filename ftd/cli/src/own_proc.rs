//! Whether `/proc` shows the processes of this job: by it ftd tells whose a process is.

use std::io;
use std::path::Path;

/// Why nothing could be told by it.
#[derive(Debug, thiserror::Error)]
pub enum ProcError {
    /// It is not mounted, or hides everything.
    #[error(
        "/proc does not show this process ({0}), and ftd knows its processes by it: mount it (mount -t proc proc /proc)"
    )]
    Hidden(io::Error),
    /// It is another pid name space's.
    #[error(
        "/proc belongs to another pid name space, and ftd knows its processes by it: mount it anew there (unshare --mount-proc)"
    )]
    Foreign,
}

/// Looks for this process.
///
/// # Errors
/// When it is not there, or under another number.
pub fn check() -> Result<(), ProcError> {
    judge(std::fs::read_link("/proc/self"), std::process::id())
}

fn judge(shown: io::Result<impl AsRef<Path>>, pid: u32) -> Result<(), ProcError> {
    let shown = shown.map_err(ProcError::Hidden)?;
    if shown.as_ref() == Path::new(&pid.to_string()) { Ok(()) } else { Err(ProcError::Foreign) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_there_under_its_own_number() {
        check().unwrap();
        assert!(matches!(judge(Ok("17"), 18), Err(ProcError::Foreign)));
        assert!(matches!(judge(Err::<&str, _>(io::ErrorKind::NotFound.into()), 18), Err(ProcError::Hidden(_))));
    }
}
