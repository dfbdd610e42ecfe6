//! Other jobs on this machine: whoever shares processors with one is not bound to some of them unless its user says so.

use ft_sys::topology;
use std::path::Path;

/// The processes from this one up to the first.
fn ancestors() -> Vec<i32> {
    let mut found = Vec::new();
    let mut pid = std::process::id() as i32;
    while pid > 1 && found.len() < 1000 {
        found.push(pid);
        pid = ft_sys::proc::stat(&ft_sys::proc::of(pid)).ok().flatten().map_or(0, |stat| stat.ppid);
    }
    found
}

/// The number of another job's launcher in the name of its directory, `ftd-UID-PID-WORD`.
fn launcher(name: &str) -> Option<i32> {
    let mut parts = name.strip_prefix("ftd-")?.split('-');
    let (_uid, pid, _word) = (parts.next()?, parts.next()?, parts.next()?);
    pid.parse().ok().filter(|_| parts.next().is_none())
}

/// A launcher of another job that may use one of these processors, and is not one of those in which this process runs.
pub fn another(memory: &Path, allowed: &[u32]) -> Option<i32> {
    let names = std::fs::read_dir(memory).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let own = ancestors();
    let lives = |pid: &i32| {
        let directory = ft_sys::proc::of(*pid);
        // A number that is somebody else's by now, or another machine's.
        let is_launcher = std::fs::read(directory.join("comm")).is_ok_and(|name| name == b"ftrun\n");
        let theirs = ft_sys::proc::allowed_processors(&directory).ok().flatten();
        let ends = || ft_sys::death::is_past_user_code(*pid).unwrap_or(true);
        is_launcher
            && !ends()
            && theirs.is_some_and(|list| topology::list(&list).iter().any(|number| allowed.contains(number)))
    };
    names.filter_map(|name| launcher(&name)).filter(|pid| !own.contains(pid)).find(lives)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launcher_is_in_the_name_of_its_directory() {
        assert_eq!(launcher("ftd-1000-4242-00ff00ff00ff00ff"), Some(4242));
        for name in ["ftd-1000-4242-00ff.lock-x", "ftd-1000-x-00ff", "ftd-1000-4242", "ft-1000-4242-1"] {
            assert_eq!(launcher(name), None, "{name}");
        }
        let directory = tempfile::tempdir().unwrap();
        for pid in [1, std::process::id(), 4_194_304] {
            std::fs::create_dir(directory.path().join(format!("ftd-0-{pid}-00ff"))).unwrap();
        }
        assert_eq!(another(directory.path(), &topology::allowed()), None, "none of these is another ftrun");
        assert!(ancestors().len() > 1);
    }
}
