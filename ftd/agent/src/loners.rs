//! Ranks that would be jobs of their own: an MPI was loaded into them without ftd's preload (`env -u LD_PRELOAD`, a wrapper
//! that sets it anew, an empty environment), so that nobody tells this MPI what it belongs to, and it starts alone.
//!
//! The dynamic linker maps what is preloaded before the libraries that a program needs. So a process that has libmpi and not
//! libft_preload will never join. Processes whose memory map cannot be read (file capabilities, set-id bits) are not seen
//! here; what [`FORLORN`] does holds for them as well.

use ft_wire::Rank;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// What every rank finds in its environment until it joins, and what the preload then replaces. An MPI to which nobody has
/// told better does not start alone with it, but fails: MPICH and its family at a connection that is none, Open MPI 4 because
/// it looks for a server, Open MPI 5 because a PMIx name space without a rank is no singleton.
pub const FORLORN: [(&str, &str); 3] =
    [("PMI_FD", "2147483647"), ("PMIX_NAMESPACE", "not-joined"), ft_wire::pmix::NOT_SINGLETON];

/// A process that has loaded an MPI alone.
#[derive(Debug)]
pub struct Loner {
    /// Of this rank.
    pub rank: Rank,
    /// Its process id.
    pub pid: i32,
    /// The MPI library's file name.
    pub library: String,
}

/// How long to wait before looking again at processes of a world that began this long ago: an MPI that is loaded takes longer
/// than the shortest one to get going, and programs without MPI are not to be troubled for ever.
pub fn pause(age: Duration) -> Duration {
    Duration::from_millis(match age.as_millis() {
        0..300 => 15,
        300..5000 => 40,
        _ => 500,
    })
}

/// The first of these ranks, by the pid of its slot's child, that has loaded an MPI alone, itself or in a process below it.
pub fn find(ranks: &[(Rank, i32)], preload: &Path) -> Option<Loner> {
    let preload = preload.file_name()?;
    ranks.iter().find_map(|(rank, child)| {
        let all = std::iter::once(*child).chain(ft_sys::process::descendants(*child));
        all.into_iter().find_map(|pid| {
            let maps = std::fs::read(format!("/proc/{pid}/maps")).ok()?;
            Some(Loner { rank: *rank, pid, library: alone(&maps, preload)? })
        })
    })
}

/// The MPI library in a memory map without the preload.
fn alone(maps: &[u8], preload: &OsStr) -> Option<String> {
    let mut library = None;
    for line in maps.split(|byte| *byte == b'\n') {
        let Some(slash) = line.iter().rposition(|byte| *byte == b'/') else { continue };
        let name = &line[slash + 1..];
        if name.starts_with(preload.as_bytes()) {
            return None;
        }
        if [&b"libmpi.so"[..], b"libmpich.so", b"libmpi_abi.so"].iter().any(|start| name.starts_with(start)) {
            library = Some(String::from_utf8_lossy(name).into_owned());
        }
    }
    library
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mpi_without_the_preload_is_alone() {
        let line = |file: &str| format!("7f00-7f01 r-xp 00000000 08:01 77 {file}\n");
        let preload = OsStr::new("libft_preload.so");
        let maps = |files: &[&str]| files.iter().map(|file| line(file)).collect::<String>().into_bytes();
        let found = alone(&maps(&["/usr/bin/app", "/usr/lib/libmpi.so.40.30.4"]), preload);
        assert_eq!(found.as_deref(), Some("libmpi.so.40.30.4"));
        assert_eq!(alone(&maps(&["/opt/lib/libmpi.so.12", "/x y/libft_preload.so"]), preload), None);
        assert_eq!(alone(&maps(&["/usr/bin/app", "/usr/lib/libmpi_usempif08.so.40"]), preload), None);
    }
}
