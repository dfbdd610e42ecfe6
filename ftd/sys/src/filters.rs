//! Who of the processes below this one passes on what others print: `tee`, `grep`, the loop of a shell, `script`. They end by
//! themselves when those whose output they read have ended, and not before they have passed on all of it.

mod late;

use crate::individual::Individual;
use crate::proc;
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

pub use late::late;

/// Longest way up that is followed: no tree of processes is as deep.
const DEPTH: usize = 4096;

/// In place of a pipe, of a rank that may not be looked at (its program may not be read): it may print into any.
const ANY: u64 = 0;

/// How ranks print, as it was seen while they lived: the dead have no descriptors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Piping {
    /// The pipes into which the ranks, and filters of theirs, write, where that may be seen.
    pub outputs: BTreeSet<u64>,
    /// Those that stand above a rank: they would go on with their next command.
    pub above: BTreeSet<Individual>,
    /// Those that were filters when they were looked at. Many close what they have read to its end before they print.
    pub readers: BTreeSet<Individual>,
}

impl Piping {
    /// Whether a rank prints now into what is not known yet, and is none of `others`: programs send their standard output elsewhere
    /// at any time.
    pub fn lacks(&self, rank: i32, others: &[u64]) -> bool {
        outputs(rank).any(|pipe| !self.outputs.contains(&pipe) && !others.contains(&pipe))
    }

    /// Whether it could not be seen into which pipes a rank prints.
    pub fn is_hidden(&self) -> bool {
        self.outputs.contains(&ANY)
    }

    /// A rank, or what may be one: its pipes, those of its filters, and who stands above it.
    pub fn note(&mut self, rank: i32) {
        self.outputs.extend(outputs(rank));
        let me = std::process::id() as i32;
        let parent = |pid: i32| Some(proc::stat(&proc::of(pid)).ok()??.ppid).filter(|above| *above > 1 && *above != me);
        let above = std::iter::successors(parent(rank), |pid| parent(*pid)).take(DEPTH);
        self.above.extend(above.filter_map(Individual::of));
    }
}

/// What is known of the slot.
#[derive(Debug, Clone, Default)]
pub struct Slot {
    /// The direct child and the rank, while they live.
    pub ranks: Vec<i32>,
    /// How they print.
    pub piping: Piping,
}

#[derive(Debug)]
struct Process {
    pid: i32,
    start: u64,
    parent: i32,
    /// The pipes that it reads.
    reads: Vec<u64>,
    /// The files that it reads otherwise than as its standard input, which may be pipes that have a name.
    files: Vec<(u64, PathBuf)>,
    /// It has the master's side of a terminal that it made for others.
    terminal: bool,
}

/// Those of `found` (parents before children) that are filters, and what filters have started.
///
/// A filter reads what a rank, or another filter, writes to its standard output or error: whatever else reads a pipe would
/// take its producer's death for the end of its input, and its result for whole. A rank is none, nor is anything that has an
/// MPI, or memory that it shares with others: what a rank forks reads pipes as well. Nor is what stands above the rank: a
/// script that waits for its program would go on with its next command. Only `script` and its like, which have made a terminal
/// for it, are filters all the same. Who is a filter stays one while it can print. These, and what they write to, are added to
/// what is known.
///
/// Where a rank may not be looked at, whatever stands beside it and reads a pipe of its own is a filter, and what stands below it
/// is not: it may be the rank's helper as well.
pub fn filters(found: &[i32], slot: &mut Slot) -> Vec<i32> {
    let all: Vec<Process> = found.iter().filter_map(|pid| Process::of(*pid)).collect();
    let worldly: Vec<i32> = found.iter().copied().filter(|pid| is_of_a_world(*pid)).collect();
    let mut above = above(&all, &[&slot.ranks[..], &worldly].concat());
    above.extend(slot.piping.above.iter().filter(|one| one.exists()).map(|one| one.pid));
    let may_read = |process: &&Process| !worldly.contains(&process.pid) && !above.contains(&process.pid);
    slot.piping.readers.retain(|one| one.exists());
    let beside = if slot.piping.is_hidden() { beside(&all, &worldly, &above) } else { Vec::new() };
    let mut readers: Vec<i32> = Vec::new();
    loop {
        let reads = |process: &&Process| {
            let was_one = || slot.piping.readers.contains(&process.individual()) && can_print(process.pid);
            let may_be_one = || beside.contains(&process.pid) || process.reads_one_of(&slot.piping.outputs).is_some();
            was_one() || readers.contains(&process.parent) || may_be_one()
        };
        let unknown = |process: &&Process| !readers.contains(&process.pid);
        let more: Vec<&Process> = all.iter().filter(may_read).filter(unknown).filter(reads).collect();
        if more.is_empty() {
            break;
        }
        slot.piping.outputs.extend(more.iter().flat_map(|process| outputs(process.pid)));
        slot.piping.readers.extend(more.iter().map(|process| process.individual()));
        readers.extend(more.iter().map(|process| process.pid));
    }
    let made_terminal = |process: &&Process| process.terminal && !worldly.contains(&process.pid);
    let terminals = all.iter().filter(made_terminal).map(|process| process.pid);
    let mut filters: Vec<i32> = terminals.filter(|pid| !readers.contains(pid)).collect();
    filters.extend(readers);
    filters
}

/// Those that read a pipe which nobody above the ranks reads, as what has inherited its standard input does, and that were started
/// by others than ranks. Who started those whose parents have ended is not known.
fn beside(all: &[Process], worldly: &[i32], above: &[i32]) -> Vec<i32> {
    let me = std::process::id() as i32;
    let mut below = worldly.to_vec();
    // Parents come before children.
    all.iter().for_each(|process| below.extend(below.contains(&process.parent).then_some(process.pid)));
    let inherited: Vec<u64> =
        all.iter().filter(|one| above.contains(&one.pid)).flat_map(|one| one.reads.clone()).collect();
    let own = |process: &&Process| process.reads.iter().any(|pipe| !inherited.contains(pipe));
    let beside = all.iter().filter(|process| process.parent != me && !below.contains(&process.pid)).filter(own);
    beside.map(|process| process.pid).collect()
}

/// Those of `found` that may have been filters, where the ranks could not be looked at, and are none of `filters`.
pub fn doubtful(found: &[i32], filters: &[i32], slot: &Slot) -> Vec<i32> {
    if !slot.piping.is_hidden() {
        return Vec::new();
    }
    let all: Vec<Process> = found.iter().filter_map(|pid| Process::of(*pid)).collect();
    let known: Vec<i32> = slot.piping.above.iter().map(|one| one.pid).chain(slot.ranks.iter().copied()).collect();
    let of_known = all.iter().filter(|one| known.contains(&one.pid));
    let inherited: Vec<u64> = of_known.flat_map(|one| one.reads.clone()).collect();
    let stdin = |pid: i32| match what_it_reads(&proc::living(pid).join("fd/0")) {
        Some(Read::Pipe(pipe)) => Some(pipe),
        _ => None,
    };
    let others = all.iter().map(|one| one.pid).filter(|pid| !known.contains(pid) && !filters.contains(pid));
    others.filter(|pid| stdin(*pid).is_some_and(|pipe| !inherited.contains(&pipe)) && can_print(*pid)).collect()
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

/// Whether the standard input of a process is a pipe: it may be a filter of somebody who had ended before that was seen.
pub fn may_be_one(pid: i32) -> bool {
    matches!(what_it_reads(&proc::living(pid).join("fd/0")), Some(Read::Pipe(_)))
}

/// Whether a process has one of these pipes open, called as in [`Piping`].
pub fn has_open(pid: i32, pipes: &[u64]) -> bool {
    let descriptors = fs::read_dir(proc::living(pid).join("fd")).ok().into_iter().flatten().flatten();
    let targets = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok());
    targets.filter_map(|target| key(target.as_os_str().as_bytes())).any(|pipe| pipes.contains(&pipe))
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
    fn individual(&self) -> Individual {
        Individual { pid: self.pid, start: self.start }
    }

    fn of(pid: i32) -> Option<Process> {
        let stat = proc::stat(&proc::of(pid)).ok()??;
        let (mut reads, mut files, mut terminal) = (Vec::new(), Vec::new(), false);
        for entry in fs::read_dir(proc::living(pid).join("fd")).ok().into_iter().flatten().flatten() {
            match what_it_reads(&entry.path()) {
                Some(Read::Pipe(pipe)) => reads.push(pipe),
                Some(Read::File(name)) => files.push((name, entry.path())),
                Some(Read::Terminal) => terminal = true,
                None => {}
            }
        }
        Some(Process { pid, start: stat.starttime, parent: stat.ppid, reads, files, terminal })
    }

    /// The first of these pipes that it reads.
    fn reads_one_of(&self, outputs: &BTreeSet<u64>) -> Option<u64> {
        // Of files only those are looked at into which a rank prints: a log that it writes is no pipe.
        let mut named = self.files.iter().filter(|(name, descriptor)| outputs.contains(name) && is_fifo(descriptor));
        let pipe = self.reads.iter().find(|pipe| outputs.contains(pipe));
        pipe.copied().or_else(|| named.next().map(|(name, _)| *name))
    }
}

enum Read {
    Pipe(u64),
    /// It may be a pipe with a name.
    File(u64),
    Terminal,
}

/// What a descriptor in `/proc/<pid>/fd` reads that comes to an end with others.
fn what_it_reads(descriptor: &Path) -> Option<Read> {
    const READABLE: u32 = 0o400;
    let is_readable = |link: Metadata| link.permissions().mode() & READABLE != 0;
    fs::symlink_metadata(descriptor).ok().filter(|link| is_readable(link.clone()))?;
    let target = fs::read_link(descriptor).ok()?;
    let is_stdin = descriptor.file_name() == Some(OsStr::new("0"));
    match target.as_os_str().as_bytes() {
        b"/dev/ptmx" | b"/dev/pts/ptmx" => Some(Read::Terminal),
        target if target.starts_with(b"pipe:[") => key(target).map(Read::Pipe),
        // What shells that have no pipes use for them.
        target if is_stdin && target.starts_with(b"socket:[") => key(target).map(Read::Pipe),
        target if is_stdin && target.starts_with(b"/") && is_fifo(descriptor) => key(target).map(Read::Pipe),
        target if !is_stdin && target.starts_with(b"/") => key(target).map(Read::File),
        _ => None,
    }
}

/// Whether a descriptor in `/proc/<pid>/fd` is a pipe that has a name. The file may lie on a server that does not answer, and that
/// is not asked.
fn is_fifo(descriptor: &Path) -> bool {
    let found = statx(CWD, descriptor, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
    found.is_ok_and(|file| FileType::from_raw_mode(file.stx_mode.into()) == FileType::Fifo)
}

/// The pipes that are a process's standard output and error; what else these are names no pipe that anybody reads.
fn outputs(pid: i32) -> impl Iterator<Item = u64> {
    let output = move |number| match target(pid, number) {
        Some(target) => key(target.as_bytes()),
        None => is_hidden(pid).then_some(ANY),
    };
    ["1", "2"].into_iter().filter_map(output)
}

/// Whether a process that lives may not be looked at. Of one that has ended nothing may be seen either.
fn is_hidden(pid: i32) -> bool {
    let looked = fs::read_dir(proc::living(pid).join("fd"));
    looked.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
        && !crate::death::is_past_user_code(pid).unwrap_or(true)
}

/// Where a descriptor of this process leads.
fn target(pid: i32, number: &str) -> Option<OsString> {
    let of = |directory: PathBuf| fs::read_link(directory.join("fd").join(number)).ok();
    // Only one whose first thread has left shows nothing of its own; this is asked often.
    of(proc::of(pid)).or_else(|| of(proc::living(pid))).map(PathBuf::into_os_string)
}

/// Whether a process can print anything any more.
fn can_print(pid: i32) -> bool {
    ["1", "2"].into_iter().filter_map(|number| target(pid, number)).any(|target| target != "/dev/null")
}

/// What the pipe of a descriptor of this process is called in [`Piping`].
pub fn pipe_of(fd: std::os::fd::BorrowedFd<'_>) -> Option<u64> {
    let stat = nix::sys::stat::fstat(fd).ok()?;
    key(format!("pipe:[{}]", stat.st_ino).as_bytes())
}

/// Whether something lies in the pipe with this reading end.
pub fn is_unread(pipe: std::os::fd::BorrowedFd<'_>) -> bool {
    rustix::io::ioctl_fionread(pipe).is_ok_and(|bytes| bytes > 0)
}

/// What any socket is taken for.
const SOCKET: &[u8] = b"socket:[";

/// What the two ends of a pipe have in common, of the link to it in `/proc/<pid>/fd`. The two of a socket have nothing: any one
/// is taken for any other.
fn key(target: &[u8]) -> Option<u64> {
    let target = match target {
        _ if target.starts_with(b"socket:[") => SOCKET,
        _ if target.starts_with(b"pipe:[") || target.starts_with(b"/") => {
            target.strip_suffix(b" (deleted)").unwrap_or(target)
        }
        _ => return None,
    };
    let mut hasher = DefaultHasher::new();
    hasher.write(target);
    Some(hasher.finish())
}

/// Whether a process has loaded an MPI, or serves one, or may be a copy of one that has joined a world; so is one that cannot
/// be looked at, but not one that has ended meanwhile: loops of a shell start and end others all the time.
fn is_of_a_world(pid: i32) -> bool {
    let Ok(maps) = proc::read(&proc::living(pid).join("maps")) else { return true };
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

    /// Runs a script and everything below it until these are there, and names those that are filters when a rank is the
    /// process of this name.
    fn filters_of(script: &str, there: &[&str], rank: &str) -> Vec<String> {
        let mut child = Command::new("bash").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id() as i32;
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
        let mut slot = Slot { ranks: vec![pid], ..Slot::default() };
        found.iter().filter(|pid| comm(pid).as_deref() == Some(rank)).for_each(|pid| slot.piping.note(*pid));
        let filters = names(&filters(&found, &mut slot));
        found.into_iter().for_each(|pid| crate::process::kill(pid, libc::SIGKILL));
        child.wait().unwrap();
        filters
    }

    #[test]
    fn filters_are_told_from_the_others() {
        let none: [&str; 0] = [];
        assert_eq!(filters_of("sleep 60 & wait", &["bash", "sleep"], "sleep"), none);
        assert_eq!(filters_of("sleep 60 | cat; true", &["bash", "cat", "sleep"], "sleep"), ["cat"]);
        assert_eq!(filters_of("exec sleep 60 > >(exec cat)", &["cat", "sleep"], "sleep"), ["cat"]);
        let chain = "exec sleep 60 > >(cat | tail -f -); true";
        assert_eq!(filters_of(chain, &["bash", "cat", "sleep", "tail"], "sleep"), ["bash", "cat", "tail"]);
        let with_its_own = "exec -a x perl -e 'sleep 60' | { sleep 61 </dev/null & exec cat; }; true";
        assert_eq!(filters_of(with_its_own, &["bash", "cat", "perl", "sleep"], "perl"), ["cat", "sleep"]);
        let fifo = "d=$(mktemp -d); mkfifo $d/f; cat <$d/f & exec 3>$d/f; rm -r $d; sleep 60 >&3; true";
        assert_eq!(filters_of(fifo, &["bash", "cat", "sleep"], "sleep"), ["cat"]);
        let by_name = "d=$(mktemp -d); mkfifo $d/f; sed '' $d/f & exec 3>$d/f; rm -r $d; sleep 60 >&3; true";
        assert_eq!(filters_of(by_name, &["bash", "sed", "sleep"], "sleep"), ["sed"]);
    }

    #[test]
    fn who_only_looks_like_one_is_none() {
        let none: [&str; 0] = [];
        // It reads what no rank writes: the death of its producer is no end.
        assert_eq!(filters_of("sleep 60 | cat; true", &["bash", "cat", "sleep"], "bash"), none);
        // It reads the log that the rank writes, which has no end.
        let log = "f=$(mktemp); tail -f $f >/dev/null & until ls -l /proc/$!/fd | grep -q $f; do :; done; exec 3>$f; rm $f; sleep 60 >&3; true";
        assert_eq!(filters_of(log, &["bash", "sleep", "tail"], "sleep"), none);
        // It reads a pipe of its own.
        let own = "sleep 60 | cat & exec -a rank perl -e 'sleep 60'";
        assert_eq!(filters_of(own, &["cat", "perl", "sleep"], "perl"), none);
        // The script that waits for its program reads what that prints, and would do more than that.
        assert_eq!(filters_of("words=$(sleep 60; true)", &["bash", "bash", "sleep"], "sleep"), none);
        let shares = "sleep 60 | exec -a shares python3 -c 'import mmap, time; m = mmap.mmap(-1, 4096); open(\"/proc/self/comm\", \"w\").write(\"shares\"); time.sleep(60)'; true";
        assert_eq!(filters_of(shares, &["bash", "shares", "sleep"], "sleep"), none);
    }

    #[test]
    fn who_has_closed_what_it_read_is_one_still() {
        let directory = tempfile::tempdir().unwrap();
        let go = directory.path().join("go");
        let filter = "perl -e 'select undef, undef, undef, .01 until -e $ENV{GO}; close STDIN; sleep 60'";
        let script = format!("exec -a rank perl -e 'sleep 60' | {filter}; true");
        let mut child = Command::new("bash").args(["-c", &script]).env("GO", &go).spawn().unwrap();
        let pid = child.id() as i32;
        let below = || crate::process::with_descendants(vec![pid]);
        let is_perl = |pid: &i32| fs::read(proc::of(*pid).join("comm")).is_ok_and(|name| name == b"perl\n");
        let perls = || below().into_iter().filter(is_perl).collect::<Vec<i32>>();
        let eventually = |condition: &dyn Fn() -> bool| {
            let pause = std::time::Duration::from_millis(5);
            assert!((0..4000).any(|_| {
                std::thread::sleep(pause);
                condition()
            }));
        };
        eventually(&|| perls().len() == 2);
        let [rank, filter] = perls()[..] else { panic!("two were there") };
        let mut slot = Slot { ranks: vec![pid, rank], ..Slot::default() };
        slot.piping.note(rank);
        assert_eq!(filters(&below(), &mut slot), [filter]);
        fs::write(&go, "").unwrap();
        eventually(&|| fs::read_link(proc::of(filter).join("fd/0")).is_err());
        assert_eq!(filters(&below(), &mut slot), [filter]);
        below().into_iter().for_each(|pid| crate::process::kill(pid, libc::SIGKILL));
        child.wait().unwrap();
    }

    #[test]
    fn who_made_the_terminal_is_one_though_it_stands_above() {
        let script = "exec script -qc 'exec sleep 60' /dev/null";
        assert_eq!(filters_of(script, &["script", "sleep"], "sleep"), ["script"]);
    }
}
