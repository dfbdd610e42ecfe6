//! The limits of the user (`ulimit`) that a job of so many ranks needs: what can be known is said before anything runs.

use ftd_core::counted;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::Uid;
use std::os::unix::fs::MetadataExt;

/// What the agent, which needs most, holds open at the most, within some: for itself, and for each rank. That is its shepherd,
/// itself and the arena, its page and the ends of PMI's socket while they are sent, the links of the world before that are not
/// closed yet, and the arena again for each of three keepers, to whom it goes or from whom a new agent gets it.
const FILES: (u64, u64) = (48, 12);
/// What is plenty, also in a recovery.
const MANY_FILES: (u64, u64) = (256, 16);
/// Processes and threads of the agent, and a rank with its shepherd and one thread of its MPI's or the agent's.
const TASKS: (u64, u64) = (6, 3);
/// Bytes of stack with which ftd's own processes run.
const STACK: u64 = 512 << 10;
/// Bytes of address space with which ftd's own processes run, and the PMIx library in one of them, which says nothing when it
/// cannot start a thread.
const ADDRESSES: u64 = 128 << 20;
/// `CAP_SYS_ADMIN` and `CAP_SYS_RESOURCE`, which know no limit of processes.
const UNLIMITED: u64 = 1 << 21 | 1 << 24;

/// A limit that is too low.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// Of open files.
    #[error(
        "the hard limit of open files (ulimit -Hn) is {hard}, and a job of {} needs {needed}: have it raised \
         (limits.conf, systemd's LimitNOFILE), or start fewer ranks",
        counted(*ranks, "rank")
    )]
    Files {
        /// The limit.
        hard: u64,
        /// What is needed.
        needed: u64,
        /// Ranks of the job.
        ranks: u32,
    },
    /// Of the stack.
    #[error("the limit of the stack (ulimit -s) is {} KiB, and ftd needs {} KiB: raise it", .0 >> 10, STACK >> 10)]
    Stack(u64),
    /// Of the address space.
    #[error(
        "the limit of the address space (ulimit -v) is {} KiB, and ftd's own processes need {} KiB: raise it",
        .0 >> 10, ADDRESSES >> 10
    )]
    Addresses(u64),
    /// Not a limit of the kernel's, but of what may be done with new files.
    #[error(
        "the umask {0:04o} keeps ftrun from its own files: use one that leaves the owner's rights alone, 0077 for example"
    )]
    Umask(u32),
    /// Of processes.
    #[error(
        "the limit of this user's processes and threads (ulimit -Hu) is {hard}, there are {present}, and a job of {} \
         needs {needed} more: have it raised (limits.conf, systemd's LimitNPROC), end others, or start fewer ranks",
        counted(*ranks, "rank")
    )]
    Tasks {
        /// The limit.
        hard: u64,
        /// How many there are.
        present: u64,
        /// What is needed.
        needed: u64,
        /// Ranks of the job.
        ranks: u32,
    },
}

/// The soft limits that the user had set, for the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Soft {
    /// Of open files.
    pub files: u64,
    /// Of processes.
    pub tasks: u64,
}

/// Raises the soft limits for ftd's own processes as far as they need it.
///
/// # Errors
/// When the hard limits are too low for the job.
pub fn raise(ranks: u32) -> Result<Soft, LimitError> {
    let files = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((u64::MAX, u64::MAX));
    let tasks = getrlimit(Resource::RLIMIT_NPROC).unwrap_or((u64::MAX, u64::MAX));
    check_files(files.1, ranks)?;
    let stack = getrlimit(Resource::RLIMIT_STACK).map_or(u64::MAX, |(soft, _)| soft);
    if stack < STACK {
        return Err(LimitError::Stack(stack));
    }
    let addresses = getrlimit(Resource::RLIMIT_AS).map_or(u64::MAX, |(soft, _)| soft);
    if addresses < ADDRESSES {
        return Err(LimitError::Addresses(addresses));
    }
    check_umask()?;
    if tasks.1 != u64::MAX && !knows_no_limit() {
        check_tasks(tasks.1, present(), ranks)?;
    }
    let wanted = of(MANY_FILES, ranks).min(files.1);
    if files.0 < wanted {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, wanted, files.1);
    }
    if tasks.0 < tasks.1 {
        let _ = setrlimit(Resource::RLIMIT_NPROC, tasks.1, tasks.1);
    }
    Ok(Soft { files: files.0, tasks: tasks.0 })
}

/// The ranks keep theirs, whatever it is.
fn check_umask() -> Result<(), LimitError> {
    let owners = nix::sys::stat::Mode::S_IRWXU;
    let mask = nix::sys::stat::umask(owners);
    nix::sys::stat::umask(mask);
    if mask.intersects(owners) { Err(LimitError::Umask(mask.bits())) } else { Ok(()) }
}

/// Words behind an error that comes of a limit all the same.
pub fn hint(error: &std::io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(nix::libc::EAGAIN) => "; the limit of processes (`ulimit -u`, or the cgroup's) is reached: have it raised",
        Some(nix::libc::EMFILE) if !has_descriptors() => {
            "; the limit of open files (`ulimit -Hn`) is reached: have it raised"
        }
        _ => "",
    }
}

/// The kernel says the same of an inotify instance too many as of a descriptor too many.
pub fn inotify_hint(error: &std::io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(nix::libc::EMFILE) if has_descriptors() => {
            "; this user has as many as fs.inotify.max_user_instances allows: end what holds them, or have it raised \
             (sysctl; in a user name space also user.max_inotify_instances)"
        }
        _ => hint(error),
    }
}

fn has_descriptors() -> bool {
    std::fs::File::open("/dev/null").is_ok()
}

fn of((base, each): (u64, u64), ranks: u32) -> u64 {
    base + each * u64::from(ranks)
}

fn check_files(hard: u64, ranks: u32) -> Result<(), LimitError> {
    let needed = of(FILES, ranks);
    if hard < needed { Err(LimitError::Files { hard, needed, ranks }) } else { Ok(()) }
}

fn check_tasks(hard: u64, present: u64, ranks: u32) -> Result<(), LimitError> {
    let needed = of(TASKS, ranks);
    if present + needed > hard { Err(LimitError::Tasks { hard, present, needed, ranks }) } else { Ok(()) }
}

/// The user's threads that can be seen; there may be more.
fn present() -> u64 {
    let uid = Uid::current().as_raw();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mine = entries.filter(|entry| {
        entry.file_name().as_encoded_bytes()[0].is_ascii_digit()
            && entry.metadata().is_ok_and(|metadata| metadata.uid() == uid)
    });
    // A directory has two links, and one for each below it.
    mine.filter_map(|entry| Some(entry.path().join("task").metadata().ok()?.nlink().saturating_sub(2).max(1))).sum()
}

fn knows_no_limit() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = capabilities.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    Uid::current().is_root() || capabilities.is_some_and(|set| set & UNLIMITED != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_open_files_is_said_only_where_there_are() {
        let error = std::io::Error::from_raw_os_error(nix::libc::EMFILE);
        assert_eq!(hint(&error), "");
        assert!(inotify_hint(&error).contains("fs.inotify.max_user_instances"));
    }

    #[test]
    fn what_a_job_needs_is_known_beforehand() {
        assert_eq!(check_files(96, 4), Ok(()));
        let sentence = check_files(95, 4).unwrap_err().to_string();
        assert!(sentence.contains("(ulimit -Hn) is 95, and a job of 4 ranks needs 96"), "{sentence}");
        assert_eq!(check_tasks(100, 82, 4), Ok(()));
        let sentence = check_tasks(100, 83, 4).unwrap_err().to_string();
        assert!(
            sentence.contains("(ulimit -Hu) is 100, there are 83, and a job of 4 ranks needs 18 more"),
            "{sentence}"
        );
        assert!(present() >= 2, "this process has two threads at least");
    }
}
