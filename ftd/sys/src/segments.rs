//! System V shared memory that killed processes leave. MPI libraries make such segments and mark them for removal at once,
//! but one that is killed between the two, in `MPI_Init` for the most part, leaves a segment that nobody ever removes.

use crate::death::is_past_user_code;
use crate::individual::Individual;
use crate::made;
use crate::proc;
use std::collections::BTreeSet;

/// So long after its announcement, in seconds, a segment with its creator's number is the one that was announced: numbers of
/// processes do not go round in that time.
const MAKING: u64 = 1;

/// `SHM_DEST` in a segment's mode.
const TO_BE_DESTROYED: u32 = 0o1000;

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

/// What a process has noted of segments besides the one that is asked for.
#[derive(Debug, Clone, Default)]
pub struct Besides {
    /// Numbers of those that it has made.
    pub made: BTreeSet<i32>,
    /// It has made, or was about to make, others that it could not note so.
    pub more: bool,
}

/// Removes a noted segment if it is still the one that was made, its maker has ended, and nobody is attached to it. One that
/// was only announced may be any of several.
pub fn remove(noted: &made::Segment, existing: &[Existing], besides: &Besides) -> Vec<Verdict> {
    let found: Vec<&Existing> = find(noted, existing, besides).collect();
    let more = besides.more || found.len() > 1;
    found.into_iter().map(|found| remove_found(noted, found, more)).collect()
}

fn remove_found(noted: &made::Segment, found: &Existing, more: bool) -> Verdict {
    let (_, pids) = noted.is_from_here();
    let announced = noted.id.is_none();
    let uncertain = announced && (more || found.changed > noted.at + MAKING);
    if !pids || uncertain || !has_ended(noted.creator, announced) {
        return Verdict::Unknown(found.id);
    }
    // What the list said may be no more.
    match made::status(found.id) {
        Some(now) if now.shm_ctime as u64 != found.changed || now.shm_cpid != found.creator => Verdict::Gone,
        // Marked for removal already: it goes with the last one who is attached, whoever that is.
        Some(now) if u32::from(now.shm_perm.mode) & TO_BE_DESTROYED != 0 => Verdict::Gone,
        Some(now) if now.shm_nattch > 0 => Verdict::Attached(found.id),
        Some(_) => {
            // SAFETY: IPC_RMID takes no buffer; the kernel checks the number and the permission.
            unsafe { libc::shmctl(found.id, libc::IPC_RMID, std::ptr::null_mut()) };
            Verdict::Gone
        }
        None => Verdict::Gone,
    }
}

/// The number of a noted segment that is there still, or of those that may be it.
pub fn numbers(noted: &made::Segment, existing: &[Existing], besides: &Besides) -> Vec<i32> {
    find(noted, existing, besides).map(|found| found.id).collect()
}

fn find<'a>(
    noted: &'a made::Segment,
    existing: &'a [Existing],
    besides: &'a Besides,
) -> impl Iterator<Item = &'a Existing> {
    let (ipc, pids) = noted.is_from_here();
    let uid = nix::unistd::Uid::effective().as_raw();
    existing.iter().filter(move |found| {
        let is_it = match noted.id {
            Some(id) => found.id == id && found.changed == noted.at,
            None if besides.made.contains(&found.id) => false,
            // It was announced, and its maker killed in the midst of making it.
            None if pids => found.changed >= noted.at,
            None => (noted.at..=noted.at + MAKING).contains(&found.changed),
        };
        // In another IPC name space it cannot even be seen. A pid of another name space means nothing here.
        is_it && ipc && found.key == 0 && found.uid == uid && (!pids || found.creator == noted.creator.pid)
    })
}

/// Whether the process has ended, so far that it makes nothing any more. One that has its number now may have made what was
/// only `announced`.
fn has_ended(maker: Individual, announced: bool) -> bool {
    match Individual::of(maker.pid) {
        None => true,
        Some(now) if now == maker => is_past_user_code(maker.pid).unwrap_or(false),
        Some(_) => !announced,
    }
}

/// Whether somebody is attached to a segment.
pub fn is_attached(id: i32) -> bool {
    made::status(id).is_some_and(|now| now.shm_nattch > 0)
}

/// Whether a process has ended so far that it is attached to nothing.
pub fn has_let_go(pid: i32) -> bool {
    let tasks = proc::tasks(pid).ok().flatten().unwrap_or_default();
    tasks.iter().all(|task| !matches!(proc::stat(task), Ok(Some(stat)) if !proc::has_left(&stat)))
}

/// A segment that exists: one line of `/proc/sysvipc/shm`.
#[derive(Debug, Clone)]
pub struct Existing {
    key: i64,
    id: i32,
    creator: i32,
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
            uid: words.get(7)?.parse().ok()?,
            changed: words.get(13)?.parse().ok()?,
        })
    }
}

/// All segments of this name space, or, where `/proc` shows nothing but processes (`subset=pid`), those that this user may read.
pub fn existing() -> Vec<Existing> {
    match std::fs::read_to_string("/proc/sysvipc/shm") {
        Ok(list) => list.lines().skip(1).filter_map(Existing::parse).collect(),
        Err(_) => readable(),
    }
}

/// One after the other, as the kernel numbers its places for them.
fn readable() -> Vec<Existing> {
    const SHM_STAT: i32 = 13;
    const SHM_INFO: i32 = 14;
    // `struct shm_info` is smaller than this one.
    // SAFETY: an all-zero structure is a valid value of the type.
    let mut stat: libc::shmid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is valid for the call, which fills in less of it than there is.
    let last = unsafe { libc::shmctl(0, SHM_INFO, &raw mut stat) };
    let at = |place| {
        // SAFETY: the structure is valid for the call.
        let id = unsafe { libc::shmctl(place, SHM_STAT, &raw mut stat) };
        let (key, uid) = (i64::from(stat.shm_perm.__key), stat.shm_perm.uid);
        (id >= 0).then_some(Existing { key, id, creator: stat.shm_cpid, uid, changed: stat.shm_ctime as u64 })
    };
    (0..=last).filter_map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proc_would_list_is_found_without_it() {
        // SAFETY: a plain system call.
        let id = unsafe { libc::shmget(libc::IPC_PRIVATE, 4096, libc::IPC_CREAT | 0o600) };
        let of = |list: Vec<Existing>| list.into_iter().find(|found| found.id == id).unwrap();
        let (listed, found) = (of(existing()), of(readable()));
        // SAFETY: a plain system call.
        unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
        assert_eq!((listed.key, listed.creator, listed.uid), (found.key, found.creator, found.uid));
        assert_eq!(listed.changed, found.changed);
    }

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
        let announced = made::Segment::to_be_made();
        assert_eq!(Some(announced.creator), Individual::of(std::process::id() as i32));
        let announced = made::Segment { creator: Individual { pid, ..announced.creator }, ..announced };
        announced.made(i32::from_ne_bytes(id)).unwrap()
    }

    /// What became of the only one that it can be.
    fn remove(noted: &made::Segment, existing: &[Existing]) -> Verdict {
        match super::remove(noted, existing, &Besides::default())[..] {
            [verdict] => verdict,
            [] => Verdict::Gone,
            _ => panic!("several"),
        }
    }

    fn exists(segment: &made::Segment) -> bool {
        existing().iter().any(|found| Some(found.id) == segment.id)
    }

    /// Detaches, and waits for children that other tests forked meanwhile: they are attached to what this process was.
    fn detach(segment: &made::Segment, place: *mut libc::c_void) {
        // SAFETY: the caller attached there.
        unsafe { libc::shmdt(place) };
        let soon = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while segment.id.is_some_and(is_attached) && std::time::Instant::now() < soon {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    #[test]
    fn only_the_very_segment_that_was_noted_goes() {
        let made = left_by_a_child();
        let id = made.id.unwrap();
        let other_pid = Individual { pid: made.creator.pid + 1, ..made.creator };
        for other in [
            made::Segment { at: made.at - 1, ..made },
            made::Segment { creator: other_pid, ..made },
            made::Segment { id: None, at: made.at + 1, ..made },
            made::Segment { ipc: made.ipc + 1, ..made },
        ] {
            assert_eq!(remove(&other, &existing()), Verdict::Gone, "{other:?}");
            assert!(exists(&made), "{other:?}");
        }
        let long_ago = made::Segment { id: None, at: made.at - MAKING - 1, ..made };
        assert_eq!(remove(&long_ago, &existing()), Verdict::Unknown(id));
        let elsewhere = made::Segment { pids: made.pids + 1, ..made };
        assert_eq!(remove(&elsewhere, &existing()), Verdict::Unknown(id));
        assert_eq!(remove(&made, &existing()), Verdict::Gone);
        assert!(!exists(&made));
    }

    #[test]
    fn one_that_was_announced_goes_and_one_that_is_attached_stays() {
        let made = left_by_a_child();
        let announced = made::Segment { id: None, ..made };
        // SAFETY: attaches at an address of the kernel's choice.
        let place = unsafe { libc::shmat(made.id.unwrap(), std::ptr::null(), 0) };
        assert_eq!(remove(&announced, &existing()), Verdict::Attached(made.id.unwrap()));
        assert!(exists(&made));
        detach(&made, place);
        assert_eq!(remove(&announced, &existing()), Verdict::Gone);
        assert!(!exists(&made));
    }

    #[test]
    fn one_that_its_maker_marked_goes_with_the_last_who_is_attached() {
        let made = left_by_a_child();
        // SAFETY: attaches at an address of the kernel's choice.
        let place = unsafe { libc::shmat(made.id.unwrap(), std::ptr::null(), 0) };
        // SAFETY: the removal takes no buffer.
        unsafe { libc::shmctl(made.id.unwrap(), libc::IPC_RMID, std::ptr::null_mut()) };
        assert!(exists(&made));
        assert_eq!(remove(&made, &existing()), Verdict::Gone);
        detach(&made, place);
        assert!(!exists(&made));
    }

    /// With a made segment of this very process, which lives.
    fn own() -> made::Segment {
        let announced = made::Segment::to_be_made();
        // SAFETY: takes three numbers.
        announced.made(unsafe { libc::shmget(libc::IPC_PRIVATE, 4096, libc::IPC_CREAT | 0o600) }).unwrap()
    }

    #[test]
    fn one_whose_maker_lives_or_whose_number_another_process_has_stays() {
        let made = own();
        let id = made.id.unwrap();
        let earlier = Individual { start: made.creator.start - 1, ..made.creator };
        for other in [made, made::Segment { id: None, ..made }, made::Segment { id: None, creator: earlier, ..made }] {
            assert_eq!(remove(&other, &existing()), Verdict::Unknown(id), "{other:?}");
            assert!(exists(&made), "{other:?}");
        }
        // Number and time are the segment's own: whoever has its maker's number since did not make it.
        assert_eq!(remove(&made::Segment { creator: earlier, ..made }, &existing()), Verdict::Gone);
        assert!(!exists(&made));
    }

    #[test]
    fn what_the_list_said_of_a_segment_is_asked_again() {
        let made = left_by_a_child();
        let before = existing();
        // SAFETY: attaches at an address of the kernel's choice.
        let place = unsafe { libc::shmat(made.id.unwrap(), std::ptr::null(), 0) };
        assert_eq!(remove(&made, &before), Verdict::Attached(made.id.unwrap()));
        detach(&made, place);
        let changed: Vec<Existing> =
            before.iter().map(|found| Existing { changed: found.changed - 1, ..*found }).collect();
        assert_eq!(remove(&made::Segment { at: made.at - 1, ..made }, &changed), Verdict::Gone);
        assert!(exists(&made));
        assert_eq!(remove(&made, &before), Verdict::Gone);
        assert!(!exists(&made));
    }

    #[test]
    fn of_several_that_an_announcement_may_mean_the_noted_ones_stay() {
        let made = left_by_a_child();
        let announced = made::Segment { id: None, ..made };
        let noted = Besides { made: made.id.into_iter().collect(), more: false };
        assert_eq!(super::remove(&announced, &existing(), &noted), []);
        let more = Besides { more: true, ..Besides::default() };
        assert_eq!(super::remove(&announced, &existing(), &more), [Verdict::Unknown(made.id.unwrap())]);
        assert!(exists(&made));
        assert_eq!(remove(&announced, &existing()), Verdict::Gone);
        assert!(!exists(&made));
    }
}
