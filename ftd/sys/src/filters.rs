//! Who of the processes below this one passes on what others print: `tee`, `grep`, the loop of a shell, `script`. They end by
//! themselves when those whose output they read have ended, and not before they have passed on all of it.

use crate::proc;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};

/// What is known of the slot.
#[derive(Debug, Clone, Default)]
pub struct Slot {
    /// The direct child and the rank, while they live.
    pub ranks: Vec<i32>,
    /// The pipe that the rank's standard input is: what reads this one is no filter.
    pub stdin: Option<u64>,
}

/// What a process reads that comes to an end with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reads {
    Nothing,
    Pipe,
    /// The master's side of a terminal that it made for others.
    Terminal,
}

#[derive(Debug)]
struct Process {
    pid: i32,
    parent: i32,
    reads: Reads,
}

/// Those of `found` (parents before children) that are filters, and what filters have started.
///
/// A rank is none, nor is anything that has an MPI, or memory that it shares with others: what a rank forks reads pipes as
/// well. Nor is what stands above the rank: a script that waits for its program would go on with its next command. Only
/// `script` and its like, which have made a terminal for it, are filters all the same.
pub fn filters(found: &[i32], slot: &Slot) -> Vec<i32> {
    let all: Vec<Process> = found.iter().filter_map(|pid| Process::of(*pid, slot)).collect();
    let worldly: Vec<i32> = found.iter().copied().filter(|pid| is_of_a_world(*pid)).collect();
    let above = above(&all, &[&slot.ranks[..], &worldly].concat());
    let (mut filters, mut readers) = (Vec::new(), Vec::new());
    for process in all.iter().filter(|process| !worldly.contains(&process.pid)) {
        let is_above = above.contains(&process.pid);
        if !is_above && (process.reads == Reads::Pipe || readers.contains(&process.parent)) {
            readers.push(process.pid);
        } else if process.reads == Reads::Terminal {
            filters.push(process.pid);
        }
    }
    filters.extend(readers);
    filters
}

/// So many are named in a sentence.
const NAMED: usize = 3;

/// Some processes, in words.
pub fn named(pids: &[i32]) -> String {
    let (first, others) = pids.split_at(pids.len().min(NAMED));
    let name = |pid: &i32| match proc::stat(&proc::of(*pid)) {
        Ok(Some(stat)) => format!("process {pid} ({})", stat.comm),
        _ => format!("process {pid}"),
    };
    let named = first.iter().map(name).collect::<Vec<_>>().join(", ");
    if others.is_empty() { named } else { format!("{named}, and {} more", others.len()) }
}

/// Whether a process has one of these pipes open.
pub fn has_open(pid: i32, pipes: &[u64]) -> bool {
    let descriptors = fs::read_dir(proc::of(pid).join("fd")).ok().into_iter().flatten().flatten();
    let targets = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok());
    targets.filter_map(|target| pipe(target.as_os_str().as_bytes())).any(|inode| pipes.contains(&inode))
}

/// The inode of the pipe that a link in `/proc/<pid>/fd` names.
fn pipe(target: &[u8]) -> Option<u64> {
    let inode = target.strip_prefix(b"pipe:[")?.strip_suffix(b"]")?;
    std::str::from_utf8(inode).ok()?.parse().ok()
}

/// These and those among `all` that stand above them.
fn above(all: &[Process], ranks: &[i32]) -> Vec<i32> {
    let mut above = ranks.to_vec();
    let mut next = 0;
    while let Some(pid) = above.get(next) {
        let parent = all.iter().find(|process| process.pid == *pid).map(|process| process.parent);
        above.extend(parent.filter(|parent| !above.contains(parent)));
        next += 1;
    }
    above
}

impl Process {
    fn of(pid: i32, slot: &Slot) -> Option<Process> {
        let stat = proc::stat(&proc::of(pid)).ok()??;
        let descriptors = fs::read_dir(proc::of(pid).join("fd")).ok().into_iter().flatten().flatten();
        let reads = descriptors.map(|entry| reads(&entry.path(), slot.stdin)).max().unwrap_or(Reads::Nothing);
        Some(Process { pid, parent: stat.ppid, reads })
    }
}

/// What a descriptor in `/proc/<pid>/fd` reads.
fn reads(descriptor: &std::path::Path, stdin: Option<u64>) -> Reads {
    const READABLE: u32 = 0o400;
    let is_readable = |link: Metadata| link.permissions().mode() & READABLE != 0;
    if !fs::symlink_metadata(descriptor).is_ok_and(is_readable) {
        return Reads::Nothing;
    }
    let Ok(target) = fs::read_link(descriptor) else { return Reads::Nothing };
    let target = target.as_os_str().as_bytes();
    if let Some(inode) = pipe(target) {
        return if stdin == Some(inode) { Reads::Nothing } else { Reads::Pipe };
    }
    let is_stdin = descriptor.file_name() == Some(OsStr::new("0"));
    match target {
        b"/dev/ptmx" | b"/dev/pts/ptmx" => Reads::Terminal,
        // What shells that have no pipes use for them.
        _ if is_stdin && target.starts_with(b"socket:[") => Reads::Pipe,
        // Any other file may lie on a server that does not answer, and is not asked what it is.
        [b'/', ..] if is_stdin && fs::metadata(descriptor).is_ok_and(|file| file.file_type().is_fifo()) => Reads::Pipe,
        _ => Reads::Nothing,
    }
}

/// Whether a process has loaded an MPI, or serves one, or may be a copy of one that has joined a world; so is one that cannot
/// be looked at, but not one that has ended meanwhile: loops of a shell start and end others all the time.
fn is_of_a_world(pid: i32) -> bool {
    let Ok(maps) = proc::read(&proc::of(pid).join("maps")) else { return true };
    let maps = maps.unwrap_or_default();
    maps.split(|byte| *byte == b'\n').any(|line| {
        let permissions = line.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
        let name = line.iter().rposition(|byte| *byte == b'/').map_or(&[][..], |at| &line[at + 1..]);
        permissions.starts_with(b"rw") && permissions.ends_with(b"s")
            || name.starts_with(b"libmpi")
            || name.starts_with(b"libpmix")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// Runs a script and everything below it until these are there, and names those that are filters. `stdin`: the script's
    /// own standard input is the slot's.
    fn filters_of(script: &str, there: &[&str], stdin: bool) -> Vec<String> {
        let mut child = Command::new("bash").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id() as i32;
        let pipe = fs::read_link(format!("/proc/{pid}/fd/0")).unwrap();
        let inode = pipe.to_str().unwrap().trim_matches(|c: char| !c.is_ascii_digit()).parse().ok();
        let slot = Slot { ranks: vec![pid], stdin: inode.filter(|_| stdin) };
        // One that has just ended has no name.
        let comm = |pid: &i32| Some(proc::stat(&proc::of(*pid)).ok()??.comm);
        let names = |pids: &[i32]| {
            let mut names: Vec<String> = pids.iter().filter_map(comm).collect();
            names.sort();
            names
        };
        let found = (0..4000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            let found = crate::process::with_descendants(vec![pid]);
            (names(&found) == there).then_some(found)
        });
        let found =
            found.unwrap_or_else(|| panic!("{script}: {:?}", names(&crate::process::with_descendants(vec![pid]))));
        let filters = names(&filters(&found, &slot));
        found.into_iter().for_each(|pid| crate::process::kill(pid, libc::SIGKILL));
        child.wait().unwrap();
        filters
    }

    #[test]
    fn filters_are_told_from_the_others() {
        let none: [&str; 0] = [];
        assert_eq!(filters_of("sleep 60 & wait", &["bash", "sleep"], true), none);
        assert_eq!(filters_of("sleep 60 | cat; true", &["bash", "cat", "sleep"], true), ["cat"]);
        assert_eq!(filters_of("exec sleep 60 > >(exec cat)", &["cat", "sleep"], true), ["cat"]);
        let with_its_own = "sleep 60 | { sleep 61 </dev/null & exec cat; }; true";
        assert_eq!(filters_of(with_its_own, &["bash", "cat", "sleep", "sleep"], true), ["cat", "sleep"]);
        let fifo = "d=$(mktemp -d); mkfifo $d/f; cat <$d/f & exec 3>$d/f; rm -r $d; sleep 60; true";
        assert_eq!(filters_of(fifo, &["bash", "cat", "sleep"], true), ["cat"]);
    }

    #[test]
    fn who_only_looks_like_one_is_none() {
        let none: [&str; 0] = [];
        // It has the slot's standard input, and nothing else.
        assert_eq!(filters_of("sleep 60 <&0 & wait", &["bash", "sleep"], true), none);
        assert_eq!(filters_of("sleep 60 <&0 & wait", &["bash", "sleep"], false), ["sleep"]);
        // The script that waits for its program reads what that prints, and would do more than that.
        assert_eq!(filters_of("words=$(sleep 60; true)", &["bash", "bash", "sleep"], true), none);
        let shares = "sleep 60 | exec -a shares python3 -c 'import mmap, time; m = mmap.mmap(-1, 4096); open(\"/proc/self/comm\", \"w\").write(\"shares\"); time.sleep(60)'; true";
        assert_eq!(filters_of(shares, &["bash", "shares", "sleep"], true), none);
    }

    #[test]
    fn who_made_the_terminal_is_one_though_it_stands_above() {
        let script = "exec script -qc 'exec sleep 60' /dev/null";
        assert_eq!(filters_of(script, &["script", "sleep"], true), ["script"]);
    }
}
