//! `/proc`, read as bytes. A process's name holds whatever its program put there, and the kernel cuts it after 15 bytes, in
//! mid-character if need be: what reads such a file as text takes a dying process for a living one.
//!
//! The numbers are parsed by `procfs-core`. Its sister crate `procfs` opens several descriptors per process and reads
//! `status`, `maps` and `cgroup` as text (docs/decisions/reading-proc.md).

use procfs_core::FromRead;
pub use procfs_core::process::Stat;
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The kernel gives a page at a time.
const PIECE: usize = 4096;

/// The directory of a process.
pub fn of(pid: i32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

/// The directory that shows what a process has: its memory, its descriptors, what it was started with. Once its first thread has
/// left (`pthread_exit` in `main`) the process's own shows nothing of these, however busy the others are. Then it is that of
/// another thread.
pub fn living(pid: i32) -> PathBuf {
    let runs = |directory: &PathBuf| stat(directory).ok().flatten().is_some_and(|stat| !has_left(&stat));
    let own = of(pid);
    if runs(&own) {
        return own;
    }
    tasks(pid).ok().flatten().into_iter().flatten().find(runs).unwrap_or(own)
}

/// Whether this thread has no memory and no descriptors any more.
pub fn has_left(stat: &Stat) -> bool {
    matches!(stat.state, 'Z' | 'X')
}

/// `stat` of a process's or task's directory; `None` when that is gone.
///
/// # Errors
/// When it cannot be read for another reason than being gone, or is not what kernels write.
pub fn stat(directory: &Path) -> io::Result<Option<Stat>> {
    let Some(bytes) = read(&directory.join("stat"))? else { return Ok(None) };
    Stat::from_read(&bytes[..]).map(Some).map_err(|error| invalid(directory, "stat", error))
}

/// A set of signals in a `status` (`SigPnd`, `SigIgn`, …), or `None` when the process or task is gone.
///
/// # Errors
/// As [`stat`].
pub fn signals(directory: &Path, names: &[&str]) -> io::Result<Option<u64>> {
    let Some(bytes) = read(&directory.join("status"))? else { return Ok(None) };
    let set = |name: &&str| {
        let line = bytes.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name.as_bytes()))?;
        u64::from_str_radix(std::str::from_utf8(line.strip_prefix(b":")?).ok()?.trim(), 16).ok()
    };
    let sets: Option<Vec<u64>> = names.iter().map(set).collect();
    let sets = sets.ok_or_else(|| invalid(directory, "status", names.join(" and ")))?;
    Ok(Some(sets.into_iter().fold(0, |all, set| all | set)))
}

/// The processors on which a process may run, as the kernel writes them (`0-3,8`); `None` when it is gone.
///
/// # Errors
/// As [`stat`].
pub fn allowed_processors(directory: &Path) -> io::Result<Option<String>> {
    let Some(bytes) = read(&directory.join("status"))? else { return Ok(None) };
    let list = bytes.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Cpus_allowed_list:"));
    Ok(list.map(|list| String::from_utf8_lossy(list).trim().to_string()))
}

/// The directories of a process's tasks; `None` when it is gone.
///
/// Each below the task's own number: what was read of a thread below its process's directory is cached there, a thread that
/// ends may lose its processor while it takes that out of the cache, and whoever waits for the process then spins in the
/// kernel until the thread is given a processor again (8 ms were seen).
///
/// # Errors
/// As [`stat`].
pub fn tasks(pid: i32) -> io::Result<Option<Vec<PathBuf>>> {
    let own = |name: std::ffi::OsString| Path::new("/proc").join(&name).join("task").join(&name);
    match fs::read_dir(of(pid).join("task")).and_then(|tasks| tasks.map(|t| t.map(|t| own(t.file_name()))).collect()) {
        Ok(tasks) => Ok(Some(tasks)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A file below `/proc`, whole; `None` when its process or task is gone.
///
/// # Errors
/// When it cannot be read for another reason.
pub fn read(file: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::File::open(file).and_then(whole) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// These files have no size that `fs::read` could go by: it would feel its way from 32 bytes on, with a call for each step,
/// and they are read for every process of a job while it starts.
fn whole(mut file: fs::File) -> io::Result<Vec<u8>> {
    let (mut bytes, mut piece) = (Vec::new(), [0; PIECE]);
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// A file that is looked at again and again: it stays open, and each look is one call.
#[derive(Debug)]
pub struct Open {
    file: fs::File,
    bytes: Box<[u8; PIECE]>,
}

impl Open {
    /// `None` when it is not there, or nobody may read it.
    pub fn new(file: &Path) -> Option<Open> {
        Some(Open { file: fs::File::open(file).ok()?, bytes: Box::new([0; PIECE]) })
    }

    /// What it says now; `None` when whom it is about is gone. It is never about another one.
    pub fn look(&mut self) -> Option<&[u8]> {
        let length = self.file.read_at(&mut *self.bytes, 0).ok()?;
        // There may be more of it.
        (length < PIECE).then_some(&self.bytes[..length])
    }

    /// The same of a `stat`.
    pub fn stat(&mut self) -> Option<Stat> {
        Stat::from_read(self.look()?).ok()
    }
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

fn invalid(directory: &Path, file: &str, why: impl std::fmt::Display) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("{}/{file}: {why}", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_stays_open_says_what_is_so_now_and_of_nobody_else() {
        let mut command = std::process::Command::new("sh");
        let mut child =
            command.args(["-c", "read line; exec sleep 100"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
        let directory = of(child.id() as i32);
        let mut open = Open::new(&directory.join("stat")).unwrap();
        let mut own = || open.stat().map(|stat| (stat.comm, stat.startstack));
        let shown = || stat(&directory).unwrap().map(|stat| (stat.comm, stat.startstack));
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        for name in ["sh", "sleep"] {
            // In the midst of `exec` the name is the new one before the arguments lie on the stack.
            loop {
                let (before, kept, after) = (shown(), own(), shown());
                if before == after && after.as_ref().is_some_and(|(comm, _)| comm == name) {
                    assert_eq!(kept, after);
                    break;
                }
                assert!(std::time::Instant::now() < until, "{after:?}");
            }
            std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"\n").unwrap_or_default();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(own(), None);
        assert!(Open::new(&directory.join("stat")).is_none());
    }

    #[test]
    fn a_process_with_any_name_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let name = |name: &[u8]| {
            let stat = [b"7 (", name, b") Z 1 7 7 0 -1 4228356", &b" 0".repeat(42), b" 37\n"].concat();
            fs::write(directory.path().join("stat"), stat).unwrap();
            let status =
                [b"Name:\t", name, b"\nState:\tS\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000001\n"].concat();
            fs::write(directory.path().join("status"), status).unwrap();
            let stat = super::stat(directory.path()).unwrap().unwrap();
            let pending = signals(directory.path(), &["SigPnd", "ShdPnd"]).unwrap().unwrap();
            (stat.state, stat.flags, stat.exit_code, pending)
        };
        for bytes in [&b"app"[..], b"\xff\xfe", "fünfzehnBytesé".as_bytes().split_at(15).0, b") R 1 (", b"", b"a b"] {
            assert_eq!(name(bytes), ('Z', 4_228_356, Some(37), 0x101), "{bytes:?}");
        }
        assert!(super::stat(&directory.path().join("gone")).unwrap().is_none());
        assert!(signals(directory.path(), &["SigIgn"]).is_err());
    }

    #[test]
    fn what_a_process_has_is_seen_when_its_first_thread_has_left() {
        use crate::{death, open_files, post_mortem, process, segments};
        use std::os::unix::fs::MetadataExt;
        let file = tempfile::NamedTempFile::new().unwrap();
        let mapped = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4096).unwrap();
        mapped.as_file().set_len(4096).unwrap();
        let script = format!(
            "import ctypes, mmap, sys, threading, time
held = open(sys.argv[1], 'r+b')
with open(sys.argv[2], 'r+b') as file:
    memory = mmap.mmap(file.fileno(), 4096)
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).syscall({}, 0)",
            libc::SYS_exit
        );
        let mut command = std::process::Command::new("/usr/bin/python3");
        let mut child = command.args(["-c", &script]).args([file.path(), mapped.path()]).spawn().unwrap();
        let pid = child.id() as i32;
        let left = || stat(&of(pid)).unwrap().is_some_and(|stat| has_left(&stat));
        let seen = (0..10_000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            left()
        });
        let (open, condition) = (open_files::open_for_writing(pid, None).unwrap(), process::condition(pid));
        let (lives, let_go) = (!death::is_past_user_code(pid).unwrap(), segments::has_let_go(pid));
        let zombie = post_mortem::zombie(pid);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(seen && lives && !let_go && zombie.is_none());
        assert!([&file, &mapped].iter().all(|file| open.contains(&file.as_file().metadata().unwrap().ino())));
        assert_eq!(condition.map(|condition| condition.state), Some('S'));
        assert!(segments::has_let_go(pid) && living(pid) == of(pid));
    }
}
