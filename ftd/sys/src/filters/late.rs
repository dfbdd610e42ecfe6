//! Filters that have not ended in time: what is said of them. A filter ends when its input does, so whoever still had that open
//! is what its user has to know.

use super::{NAMED, Process, Read, SOCKET, Slot, key, named, what_it_reads};
use crate::proc;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

/// These processes, and who holds the input of those that are filters open, where that can be seen.
pub fn late(pids: &[i32], slot: &Slot) -> String {
    let inputs: Vec<(i32, u64)> = pids.iter().filter_map(|pid| Some((*pid, input(*pid, slot)?))).collect();
    let mut holders = holders(&inputs.iter().map(|(_, pipe)| *pipe).collect::<Vec<_>>());
    // What a loop has started reads what the loop does: of one pipe it is said once.
    let held = inputs.into_iter().filter_map(|(pid, pipe)| {
        let others: Vec<i32> = holders.remove(&pipe)?.into_iter().filter(|holder| *holder != pid).collect();
        let by = if others.is_empty() { "itself".into() } else { named(&others) };
        Some(format!("; the input of {} was held open by {by}", named(&[pid])))
    });
    let held: String = held.take(NAMED).collect();
    named(pids) + &held
}

/// What it reads: of the pipes that it has open one that ranks or other filters print into, as far as these were seen while they
/// lived, or else its standard input.
fn input(pid: i32, slot: &Slot) -> Option<u64> {
    let nobody_knows = key(SOCKET);
    let stdin = || match what_it_reads(&proc::living(pid).join("fd/0")) {
        Some(Read::Pipe(pipe)) => Some(pipe),
        _ => None,
    };
    let input = Process::of(pid)?.reads_one_of(&slot.piping.outputs).or_else(stdin);
    input.filter(|pipe| Some(*pipe) != nobody_knows)
}

/// Who has these pipes open for writing, of all processes that may be looked at.
fn holders(pipes: &[u64]) -> BTreeMap<u64, Vec<i32>> {
    let mut holders: BTreeMap<u64, Vec<i32>> = BTreeMap::new();
    if pipes.is_empty() {
        return holders;
    }
    let entries = fs::read_dir("/proc").ok().into_iter().flatten().flatten();
    for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
        for pipe in written(pid).into_iter().filter(|pipe| pipes.contains(pipe)) {
            let of_pipe = holders.entry(pipe).or_default();
            if !of_pipe.contains(&pid) {
                of_pipe.push(pid);
            }
        }
    }
    holders
}

/// The pipes that a process may write into.
fn written(pid: i32) -> Vec<u64> {
    const WRITABLE: u32 = 0o200;
    let entries = fs::read_dir(proc::living(pid).join("fd")).ok().into_iter().flatten().flatten();
    let pipe = |entry: fs::DirEntry| {
        let link = fs::symlink_metadata(entry.path()).ok()?;
        let target = (link.permissions().mode() & WRITABLE != 0).then(|| fs::read_link(entry.path()).ok())??;
        key(target.as_os_str().as_bytes())
    };
    entries.filter_map(pipe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn who_holds_the_input_of_a_filter_open_is_named() {
        let (input, end_of_input) = std::io::pipe().unwrap();
        let pipe = super::super::pipe_of(std::os::fd::AsFd::as_fd(&input)).unwrap();
        let holder = Command::new("sleep").arg("60").stdout(end_of_input).spawn().unwrap();
        let filter = Command::new("cat").stdin(input).stdout(Stdio::null()).spawn().unwrap();
        let pids = [filter.id() as i32];
        let mut slot = Slot::default();
        let wanted = format!("{0}; the input of {0} was held open by process {1} (sleep)", named(&pids), holder.id());
        assert_eq!(late(&pids, &slot), wanted, "its standard input");
        slot.piping.outputs.insert(pipe);
        assert_eq!(late(&pids, &slot), wanted);
        end(holder);
        assert_eq!(late(&pids, &slot), named(&pids), "who reads is no holder");
        end(filter);

        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fifo");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let open = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let filter = Command::new("cat").stdin(open).stdout(Stdio::null()).spawn().unwrap();
        let pids = [filter.id() as i32];
        assert!(late(&pids, &slot).ends_with("was held open by itself"), "{}", late(&pids, &slot));
        end(filter);
    }
}
