//! System V shared memory that killed processes leave. MPI libraries make such segments and mark them for removal at once,
//! but one that is killed between the two, in `MPI_Init` for the most part, leaves a segment that nobody ever removes.

use crate::death::is_past_user_code;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// In a job's directory: the processes that may have made segments, one number a line.
const CREATORS: &str = "creators";

/// Notes in the job's directory that this process may make segments. Whoever ends the job reads it, if whoever knows the
/// process has died as well.
pub fn note_creator(job_dir: &Path, pid: i32) {
    let file = std::fs::OpenOptions::new().create(true).append(true).open(job_dir.join(CREATORS));
    // Without the note a segment may stay after two deaths at once; a rank that cannot start would be worse.
    let _ = file.and_then(|mut file| file.write_all(format!("{pid}\n").as_bytes()));
}

/// The processes that were noted in the job's directory.
pub fn noted_creators(job_dir: &Path) -> BTreeSet<i32> {
    let text = std::fs::read_to_string(job_dir.join(CREATORS)).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Removes the private segments that these processes, which have all ended, made after `since`. Segments with a key stay:
/// a key is there for somebody to find them by, later.
pub fn remove_of(creators: &BTreeSet<i32>, since: SystemTime) {
    if creators.is_empty() {
        return;
    }
    let uid = nix::unistd::Uid::effective().as_raw();
    let since = since.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let list = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    for segment in list.lines().skip(1).filter_map(Segment::parse) {
        let ours = segment.key == 0 && segment.uid == uid && segment.changed >= since;
        if ours && creators.contains(&segment.creator) && is_past_user_code(segment.creator).unwrap_or(false) {
            // SAFETY: IPC_RMID takes no buffer; the kernel checks the number and the permission.
            unsafe { libc::shmctl(segment.id, libc::IPC_RMID, std::ptr::null_mut()) };
        }
    }
}

/// One line of `/proc/sysvipc/shm`.
#[derive(Debug)]
struct Segment {
    key: i64,
    id: i32,
    creator: i32,
    uid: u32,
    /// When it was made or changed, in seconds since 1970.
    changed: u64,
}

impl Segment {
    fn parse(line: &str) -> Option<Segment> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        Some(Segment {
            key: words.first()?.parse().ok()?,
            id: words.get(1)?.parse().ok()?,
            creator: words.get(4)?.parse().ok()?,
            uid: words.get(7)?.parse().ok()?,
            changed: words.get(13)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A segment of a child process that has ended.
    fn left_by_a_child(key: libc::key_t) -> (i32, i32) {
        let (mut read, write) = std::io::pipe().unwrap();
        // SAFETY: the child makes system calls only.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: plain system calls; the buffer is four bytes on the stack.
            unsafe {
                let id = libc::shmget(key, 4096, libc::IPC_CREAT | 0o600);
                libc::write(std::os::fd::AsRawFd::as_raw_fd(&write), (&raw const id).cast(), 4);
                libc::_exit(0);
            }
        }
        let mut id = [0; 4];
        std::io::Read::read_exact(&mut read, &mut id).unwrap();
        nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None).unwrap();
        (pid, i32::from_ne_bytes(id))
    }

    fn exists(id: i32) -> bool {
        let list = std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
        list.lines().skip(1).filter_map(Segment::parse).any(|segment| segment.id == id)
    }

    #[test]
    fn private_segments_of_the_noted_dead_go_and_others_stay() {
        let directory = tempfile::tempdir().unwrap();
        let since = SystemTime::now();
        let (noted, private) = left_by_a_child(libc::IPC_PRIVATE);
        let (keyed, with_key) = left_by_a_child(0x4654_0000 + (std::process::id() & 0xffff) as libc::key_t);
        let (_, of_another) = left_by_a_child(libc::IPC_PRIVATE);
        note_creator(directory.path(), noted);
        note_creator(directory.path(), keyed);
        let creators = noted_creators(directory.path());
        assert_eq!(creators, [noted, keyed].into());
        remove_of(&creators, since + Duration::from_secs(60));
        assert!(exists(private), "it is older than that");
        remove_of(&creators, since);
        let left = [private, with_key, of_another].map(exists);
        for id in [with_key, of_another] {
            // SAFETY: IPC_RMID takes no buffer.
            unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
        }
        assert_eq!(left, [false, true, true]);
    }
}
