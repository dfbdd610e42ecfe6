//! Memory limits: what is left, and whether the out-of-memory killer was at work. Knows cgroup v2 and v1.

use crate::timescale::scaled;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A process that the killer has ended takes no longer than this to be waited for.
const LATELY: Duration = Duration::from_secs(5);

/// The memory cgroup of a process: its directory and every one above it up to the hierarchy's root.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Memory {
    v2: bool,
    directories: Vec<PathBuf>,
}

impl Memory {
    fn of_self() -> Option<Memory> {
        // One path of another program that is not UTF-8 must not hide the rest.
        let read = |file: &str| Some(String::from_utf8_lossy(&crate::proc::read(Path::new(file)).ok()??).into_owned());
        let (cgroups, mounts) = (read("/proc/self/cgroup")?, read("/proc/self/mounts")?);
        // v1 first: where both are mounted the memory controller is bound to one of them.
        Memory::find(&cgroups, &mounts, false).or_else(|| Memory::find(&cgroups, &mounts, true))
    }

    fn find(cgroups: &str, mounts: &str, v2: bool) -> Option<Memory> {
        let path = cgroups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let ours = if v2 { controllers.is_empty() } else { controllers.split(',').any(|c| c == "memory") };
            ours.then_some(path)
        })?;
        let root = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (at, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
            let ours =
                if v2 { kind == "cgroup2" } else { kind == "cgroup" && options.split(',').any(|o| o == "memory") };
            ours.then(|| PathBuf::from(at))
        })?;
        let below = Path::new(path.trim_start_matches('/'));
        // In a container the path may name directories that are not mounted here.
        let directories: Vec<PathBuf> =
            below.ancestors().map(|part| root.join(part)).filter(|dir| dir.is_dir()).collect();
        Some(Memory { v2, directories })
    }

    fn left(&self) -> Option<u64> {
        let (limit, usage) =
            if self.v2 { ("memory.max", "memory.current") } else { ("memory.limit_in_bytes", "memory.usage_in_bytes") };
        let number = |dir: &Path, name: &str| fs::read_to_string(dir.join(name)).ok()?.trim().parse::<u64>().ok();
        self.directories.iter().filter_map(|dir| Some(number(dir, limit)?.saturating_sub(number(dir, usage)?))).min()
    }

    /// The file that counts its kills.
    fn counter(&self) -> Option<File> {
        let file = if self.v2 { "memory.events" } else { "memory.oom_control" };
        // Of version 2 a group may be without this controller: then it is the next one above that counts.
        self.directories.iter().find_map(|directory| File::open(directory.join(file)).ok())
    }
}

/// The count in such a file, which says it anew whenever it is read from its beginning.
fn kills_in(counter: &File) -> Option<u64> {
    let mut text = [0; 4096];
    let length = counter.read_at(&mut text, 0).ok()?;
    String::from_utf8_lossy(&text[..length])
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// Whether the out-of-memory killer struck in this process's memory cgroup of late. The group may be that of the user's whole
/// session, and a process that it ended hours ago says nothing of one that dies now.
#[derive(Debug, Default)]
pub struct Kills {
    /// When they were counted and how many there were. The first is [`LATELY`] ago, as far as it was looked then.
    counts: VecDeque<(Instant, u64)>,
}

impl Kills {
    /// To be called often; counts now and then.
    pub fn look(&mut self) {
        let now = Instant::now();
        if self.counts.back().is_none_or(|(at, _)| now.duration_since(*at) >= scaled(LATELY) / 2) {
            self.counts.extend(oom_kill_count().map(|count| (now, count)));
            self.forget(now);
        }
    }

    /// Whether it struck of late, and since the count was `before`.
    pub fn were(&mut self, before: Option<u64>) -> bool {
        self.forget(Instant::now());
        let before = before.max(self.counts.front().map(|(_, count)| *count));
        before.zip(oom_kill_count()).is_some_and(|(before, count)| count > before)
    }

    fn forget(&mut self, now: Instant) {
        while self.counts.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= scaled(LATELY)) {
            self.counts.pop_front();
        }
    }
}

/// How often the out-of-memory killer struck in this process's memory cgroup; `None` when there is no such counter. Of two
/// counts that are compared both must be of one cgroup, so it is looked for once. It stays open: this is asked again and again.
pub fn oom_kill_count() -> Option<u64> {
    static OWN: OnceLock<Option<Memory>> = OnceLock::new();
    static COUNTER: OnceLock<File> = OnceLock::new();
    if COUNTER.get().is_none() {
        let counter = OWN.get_or_init(Memory::of_self).as_ref()?.counter()?;
        // Another thread may have been quicker.
        let _ = COUNTER.set(counter);
    }
    kills_in(COUNTER.get()?)
}

/// How often the out-of-memory killer struck where it may have been a process of the job's: in this process's memory cgroup,
/// else on the whole machine; `None` when nobody counts (before Linux 4.13).
pub fn kills_around() -> Option<u64> {
    oom_kill_count().or_else(kills_on_machine)
}

fn kills_on_machine() -> Option<u64> {
    let counters = fs::read_to_string("/proc/vmstat").ok()?;
    counters.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok())
}

/// Bytes that this process may still take: what the machine has available, or what its cgroups leave if that is less. Where `/proc`
/// shows nothing but processes (`subset=pid`), nobody says how much could be freed: then it is all that the machine has.
///
/// # Errors
/// When neither `/proc/meminfo` nor `sysinfo` tells.
pub fn memory_available() -> io::Result<u64> {
    let available = match fs::read_to_string("/proc/meminfo") {
        Ok(meminfo) => meminfo
            .lines()
            .find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok())
            .ok_or_else(|| io::Error::other("/proc/meminfo has no MemAvailable"))?
            .saturating_mul(1024),
        Err(error) if error.kind() == io::ErrorKind::NotFound => memory_of_machine()?,
        Err(error) => return Err(error),
    };
    Ok(Memory::of_self().and_then(|memory| memory.left()).map_or(available, |left| left.min(available)))
}

fn memory_of_machine() -> io::Result<u64> {
    // SAFETY: an all-zero structure is a valid value of the type.
    let mut info: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid for the call.
    match unsafe { libc::sysinfo(&raw mut info) } {
        0 => Ok(info.totalram.saturating_mul(u64::from(info.mem_unit))),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_more_than_is_available() {
        assert!(memory_of_machine().unwrap() >= memory_available().unwrap());
    }

    #[test]
    fn both_generations_of_cgroups_are_found() {
        let mounts = "cgroup2 / cgroup2 rw 0 0\ncgroup /proc cgroup rw,memory 0 0\n";
        let v1 = Memory::find("4:cpu:/x\n3:memory:/self\n0::/\n", mounts, false).unwrap();
        assert_eq!(v1.directories, [PathBuf::from("/proc/self"), PathBuf::from("/proc/")]);
        assert_eq!(Memory::find("0::/etc\n", mounts, true).unwrap().directories[0], PathBuf::from("/etc"));
        assert_eq!(Memory::find("0::/etc\n", mounts, false), None);
    }

    #[test]
    fn kills_are_counted_by_the_nearest_group_with_a_counter() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("service/job");
        fs::create_dir_all(&group).unwrap();
        fs::write(root.path().join("service/memory.events"), "oom 4\noom_kill 3\n").unwrap();
        let mounts = format!("cgroup2 {} cgroup2 rw 0 0\n", root.path().display());
        let kills = || kills_in(&Memory::find("0::/service/job\n", &mounts, true)?.counter()?);
        assert_eq!(kills(), Some(3));
        fs::write(group.join("memory.events"), "oom_kill 1\n").unwrap();
        assert_eq!(kills(), Some(1));
    }

    #[test]
    fn only_the_newest_count_of_long_ago_is_kept() {
        let now = Instant::now() + 10 * LATELY;
        let before = |periods: u32| now - periods * LATELY;
        let mut kills = Kills { counts: [(before(3), 1), (before(2), 2), (before(1), 3), (now, 4)].into() };
        kills.forget(now);
        assert_eq!(kills.counts, [(before(1), 3), (now, 4)]);
        kills.forget(now + LATELY / 2);
        assert_eq!(kills.counts.len(), 2, "the first is still the one of long ago");
    }

    #[test]
    fn something_is_available_here() {
        assert!(memory_available().unwrap() > 1 << 20);
    }
}
