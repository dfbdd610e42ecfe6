//! System V shared memory that killed processes leave. MPI libraries make such segments and mark them for removal at once,
//! but one that is killed between the two, in `MPI_Init` for the most part, leaves a segment that nobody ever removes.

use crate::death::is_past_user_code;
use crate::made;

/// How long after its announcement a segment is there at the latest, in seconds.
const MAKING: u64 = 2;

/// What became of a noted segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is removed, was before, or was never made.
    Gone,
    /// Somebody is attached.
    Attached(i32),
    /// This one may be it, or another's.
    Unknown(i32),
}

/// Removes a noted segment if it is still the one that was made, and nobody is attached to it.
pub fn remove(noted: &made::Segment, existing: &[Existing]) -> Verdict {
    let (ipc, pids) = noted.is_from_here();
    let uid = nix::unistd::Uid::effective().as_raw();
    let is_it = |found: &&Existing| {
        let time = match noted.id {
            Some(id) => found.id == id && found.changed == noted.at,
            // It was announced, and its maker killed in the midst of making it.
            None => pids && (noted.at..=noted.at + MAKING).contains(&found.changed),
        };
        // A pid of another name space means nothing here.
        time && found.key == 0 && found.uid == uid && (!pids || found.creator == noted.creator)
    };
    // In another IPC name space it cannot even be seen.
    let Some(found) = existing.iter().find(is_it).filter(|_| ipc) else { return Verdict::Gone };
    let recycled = noted.id.is_none() && !is_past_user_code(noted.creator).unwrap_or(false);
    if !pids || recycled {
        return Verdict::Unknown(found.id);
    }
    if found.attached > 0 {
        return Verdict::Attached(found.id);
    }
    // SAFETY: IPC_RMID takes no buffer; the kernel checks the number and the permission.
    unsafe { libc::shmctl(found.id, libc::IPC_RMID, std::ptr::null_mut()) };
    Verdict::Gone
}

/// Whether a process has ended so far that it is attached to nothing.
pub fn has_let_go(pid: i32) -> bool {
    let Ok(stat) = std::fs::read(format!("/proc/{pid}/stat")) else { return true };
    let after = stat.iter().rposition(|byte| *byte == b')').map_or(0, |at| at + 2);
    matches!(stat.get(after), Some(b'Z' | b'X'))
}

/// A segment that exists: one line of `/proc/sysvipc/shm`.
#[derive(Debug, Clone)]
pub struct Existing {
    key: i64,
    id: i32,
    creator: i32,
    attached: u64,
    uid: u32,
    /// When it was made or changed, in seconds since 1970.
    changed: u64,
}

impl Existing {
    fn parse(line: &str) -> Option<Existing> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        Some(Existing {
            key: words.first()?.parse().ok()?,
            id: words.get(1)?.parse().ok()?,
            creator: words.get(4)?.parse().ok()?,
            attached: words.get(6)?.parse().ok()?,
            uid: words.get(7)?.parse().ok()?,
            changed: words.get(13)?.parse().ok()?,
        })
    }
}

/// All segments of this name space.
pub fn existing() -> Vec<Existing> {
    let list = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    list.lines().skip(1).filter_map(Existing::parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A private segment of a child process that has ended.
    fn left_by_a_child() -> made::Segment {
        let (mut read, write) = std::io::pipe().unwrap();
        // SAFETY: the child makes system calls only.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: plain system calls; the buffer is four bytes on the stack.
            unsafe {
                let id = libc::shmget(libc::IPC_PRIVATE, 4096, libc::IPC_CREAT | 0o600);
                libc::write(std::os::fd::AsRawFd::as_raw_fd(&write), (&raw const id).cast(), 4);
                libc::_exit(0);
            }
        }
        let mut id = [0; 4];
        std::io::Read::read_exact(&mut read, &mut id).unwrap();
        nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None).unwrap();
        let announced = made::Segment { creator: pid, ..made::Segment::to_be_made() };
        announced.made(i32::from_ne_bytes(id)).unwrap()
    }

    fn exists(segment: &made::Segment) -> bool {
        existing().iter().any(|found| Some(found.id) == segment.id)
    }

    #[test]
    fn only_the_very_segment_that_was_noted_goes() {
        let made = left_by_a_child();
        let id = made.id.unwrap();
        for other in [
            made::Segment { at: made.at - 1, ..made },
            made::Segment { creator: made.creator + 1, ..made },
            made::Segment { id: None, at: made.at + 1, ..made },
            made::Segment { id: None, at: made.at - MAKING - 1, ..made },
            made::Segment { ipc: made.ipc + 1, ..made },
        ] {
            assert_eq!(remove(&other, &existing()), Verdict::Gone, "{other:?}");
            assert!(exists(&made), "{other:?}");
        }
        let elsewhere = made::Segment { pids: made.pids + 1, ..made };
        assert_eq!(remove(&elsewhere, &existing()), Verdict::Unknown(id));
        assert_eq!(remove(&made, &existing()), Verdict::Gone);
        assert!(!exists(&made));
    }

    #[test]
    fn one_that_was_announced_goes_and_one_that_is_attached_stays() {
        let made = left_by_a_child();
        let announced = made::Segment { id: None, ..made };
        // SAFETY: attaches at an address of the kernel's choice, and detaches from there.
        let place = unsafe { libc::shmat(made.id.unwrap(), std::ptr::null(), 0) };
        assert_eq!(remove(&announced, &existing()), Verdict::Attached(made.id.unwrap()));
        assert!(exists(&made));
        // SAFETY: as above.
        unsafe { libc::shmdt(place) };
        assert_eq!(remove(&announced, &existing()), Verdict::Gone);
        assert!(!exists(&made));
    }
}
