//! What a process has of who started it, for one that is to be started on another node or by somebody else.

use ft_wire::part::{Image, LIMITS, join};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::stat::{Mode, umask};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;

/// The soft limits that go with a job, in the order of the messages.
pub const RESOURCES: [Resource; LIMITS] = [
    Resource::RLIMIT_AS,
    Resource::RLIMIT_CORE,
    Resource::RLIMIT_CPU,
    Resource::RLIMIT_DATA,
    Resource::RLIMIT_FSIZE,
    Resource::RLIMIT_MEMLOCK,
    Resource::RLIMIT_NOFILE,
    Resource::RLIMIT_NPROC,
    Resource::RLIMIT_STACK,
];

/// This process's, with that command line and this environment.
///
/// # Errors
/// When its working directory is gone.
pub fn of_this_process(
    words: impl IntoIterator<Item = OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> io::Result<Image> {
    // Asking for it sets it.
    let mask = umask(Mode::empty());
    umask(mask);
    let bytes = OsString::into_vec;
    let variable = |(name, value): (OsString, OsString)| [bytes(name), b"=".to_vec(), bytes(value)].concat();
    Ok(Image {
        words: join(words.into_iter().map(bytes)),
        env: join(environment.into_iter().map(variable)),
        cwd: std::env::current_dir()?,
        umask: mask.bits(),
        nice: crate::priority::own(),
        limits: RESOURCES.map(|resource| getrlimit(resource).map_or(u64::MAX, |(soft, _)| soft)),
    })
}
