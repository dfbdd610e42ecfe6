//! Shared memory that MPI libraries leave when their processes are killed: files below `/dev/shm`, and
//! [segments](crate::segments).
//!
//! Only what a process of the job has [noted](crate::made) as its MPI's is removed, and only if it is still the same: a file
//! by device and inode, a segment by number, creator and time. What cannot be told stays, and what the program made as well:
//! the next world may look for it. Both are said.

use crate::identity::Identity;
use crate::made::{self, Note};
use crate::segments::{self, Besides, Verdict};
use ft_wire::World;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// In a job's directory: the ranks' processes, one number a line.
const PROCESSES: &str = "processes";
/// How long the kernel may take to detach what has ended from a segment.
const DETACH: Duration = Duration::from_secs(2);
/// How often it is looked at.
const LOOK_AGAIN: Duration = Duration::from_micros(500);

/// Notes in the job's directory that this process belongs to it. Nothing is done to the process: a segment that somebody is
/// attached to is looked at again until those that are named here have let go of it.
pub fn note_process(job_dir: &Path, pid: i32) {
    let file = std::fs::OpenOptions::new().create(true).append(true).open(job_dir.join(PROCESSES));
    // Without the note a segment may stay, and is named; a rank that cannot start would be worse.
    let _ = file.and_then(|mut file| file.write_all(format!("{pid}\n").as_bytes()));
}

/// How the job came to its end, as far as it matters to what its program made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Its processes were killed, or left because others were.
    Killed,
    /// In this world, by the program's own wish: what those made who ended by their own will is meant to be there.
    Own(World),
    /// In this world, well: all that is there is meant to be.
    Well(World),
}

impl End {
    /// Whether this process left what there is as it wanted to.
    fn was_wanted(self, world: World, notes: &[Note]) -> bool {
        match self {
            End::Killed => false,
            End::Own(last) => last == world && notes.contains(&Note::Left),
            End::Well(last) => last == world,
        }
    }
}

/// What a job may have left, as its directory tells.
#[derive(Debug, Clone, Default)]
pub struct Litter {
    notebooks: BTreeMap<PathBuf, (World, Vec<Note>)>,
    processes: BTreeSet<i32>,
}

impl Litter {
    /// All that is noted in a job's directory.
    pub fn of_job(job_dir: &Path) -> Litter {
        let mut litter = Litter::default();
        litter.read(job_dir);
        litter
    }

    /// What is noted of one world.
    pub fn of_world(job_dir: &Path, world: World) -> Litter {
        let mut litter = Litter::default();
        litter.read_world(job_dir, world);
        litter.read_processes(job_dir);
        litter
    }

    /// Takes in what has been noted since; what was read before counts if the directory is gone meanwhile.
    pub fn read(&mut self, job_dir: &Path) {
        made::worlds(job_dir).for_each(|world| self.read_world(job_dir, world));
        self.read_processes(job_dir);
    }

    fn read_world(&mut self, job_dir: &Path, world: World) {
        self.notebooks.extend(made::read(job_dir, world).map(|(path, notes)| (path, (world, notes))));
    }

    fn read_processes(&mut self, job_dir: &Path) {
        // Whoever has a notebook, `<rank>.<pid>`, was about to make something, whether anybody else noted it or not.
        let of_notebook = |path: &PathBuf| path.extension()?.to_str()?.parse::<i32>().ok();
        self.processes.extend(self.notebooks.keys().filter_map(of_notebook));
        let text = std::fs::read_to_string(job_dir.join(PROCESSES)).unwrap_or_default();
        self.processes.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    }

    /// Removes what the MPI of these processes made. Call it when they have ended.
    pub fn sweep(&self, end: End) -> Left {
        let until = Instant::now() + DETACH;
        let is_over = || Instant::now() >= until || self.processes.iter().all(|pid| segments::has_let_go(*pid));
        let mut last = false;
        loop {
            let (left, attached) = self.round(end);
            if attached.is_empty() || last {
                return left;
            }
            // Whoever let go meanwhile left something for one more round.
            last = is_over();
            while !last && attached.iter().any(|id| segments::is_attached(*id)) {
                std::thread::sleep(LOOK_AGAIN);
                last = is_over();
            }
        }
    }

    /// One look; also the segments to which somebody is attached.
    fn round(&self, end: End) -> (Left, Vec<i32>) {
        let (mut left, mut attached) = (Left::default(), Vec::new());
        let mut incomplete = Vec::new();
        let existing = segments::existing();
        for (path, (world, notes)) in &self.notebooks {
            let was_wanted = end.was_wanted(*world, notes);
            let besides = besides(notes);
            for note in notes {
                match note {
                    Note::File { path, identity, of_mpi: true } => left.0.extend(remove_file(path, *identity)),
                    Note::Segment { segment, of_mpi: true } => {
                        for verdict in segments::remove(segment, &existing, &besides) {
                            attached.extend(if let Verdict::Attached(id) = verdict { Some(id) } else { None });
                            left.0.extend(name_segment(verdict));
                        }
                    }
                    _ if was_wanted => {}
                    Note::File { path, identity, of_mpi: false } => left.0.extend(name_file(path, *identity)),
                    Note::Segment { segment, of_mpi: false } => {
                        let there = segments::numbers(segment, &existing, &besides).into_iter();
                        left.0.extend(there.map(|id| format!("System V segment {id}, which the program made")));
                    }
                    Note::Incomplete => incomplete.push(path.extension().unwrap_or_default().to_string_lossy()),
                    Note::Left => {}
                }
            }
        }
        if !incomplete.is_empty() {
            left.0.insert(format!("perhaps more that could not be noted, of process {}", incomplete.join(", ")));
        }
        (left, attached)
    }
}

/// What an announcement of a segment cannot mean, and whether the process that noted all this may have made another one.
fn besides(notes: &[Note]) -> Besides {
    let number = |note: &Note| if let Note::Segment { segment, .. } = note { segment.id } else { None };
    let is_more = |note: &Note| match note {
        Note::Segment { segment, of_mpi } => segment.id.is_none() && !of_mpi,
        note => *note == Note::Incomplete,
    };
    Besides { made: notes.iter().filter_map(number).collect(), more: notes.iter().any(is_more) }
}

fn name_segment(verdict: Verdict) -> Option<String> {
    match verdict {
        Verdict::Gone => None,
        Verdict::Attached(id) => Some(format!("System V segment {id}, to which another process is attached")),
        Verdict::Unknown(id) => Some(format!("System V segment {id}")),
    }
}

/// Removes a file if it is the one that was noted; names it if that cannot be told.
fn remove_file(path: &Path, identity: Option<Identity>) -> Option<String> {
    if identity.is_some() && identity == find_file(path) {
        // Somebody else may have been faster.
        let _ = std::fs::remove_file(path);
    }
    // Without one its process was about to make it, and may have been too late.
    if identity.is_none() { name_file(path, None) } else { None }
}

/// Names a file of this user's if it may be the one that was noted.
fn name_file(path: &Path, identity: Option<Identity>) -> Option<String> {
    let found = find_file(path)?;
    let uid = std::fs::symlink_metadata(path).ok()?.uid();
    let may_be = identity.is_none_or(|identity| identity == found) && uid == nix::unistd::Uid::effective().as_raw();
    may_be.then(|| path.display().to_string())
}

fn find_file(path: &Path) -> Option<Identity> {
    Identity::of_path(&CString::new(path.as_os_str().as_bytes()).ok()?)
}

/// What was not removed.
#[derive(Debug, Clone, Default)]
pub struct Left(BTreeSet<String>);

impl Left {
    /// Names more.
    pub fn add(&mut self, names: impl IntoIterator<Item = String>) {
        self.0.extend(names);
    }

    /// For people; `None` when there is nothing to say.
    pub fn sentence(&self) -> Option<String> {
        let names: Vec<&str> = self.0.iter().map(String::as_str).collect();
        (!names.is_empty()).then(|| {
            format!(
                "left in shared memory, because it is not certain that nobody else needs it: {} (rm and ipcrm -m remove it)",
                names.join("; ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::{Notebook, Record};

    /// A job's directory, and notes of this process as a rank of its world 1.
    fn job() -> (tempfile::TempDir, Notebook) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(made::directory(directory.path(), 1)).unwrap();
        let notebook = Notebook::new(directory.path().as_os_str().as_bytes(), 1, 0).unwrap();
        (directory, notebook)
    }

    fn file(name: &str) -> (PathBuf, CString) {
        let path = PathBuf::from(format!("/dev/shm/ftd-test-{name}-{}", std::process::id()));
        std::fs::write(&path, "x").unwrap();
        let c_path = CString::new(path.as_os_str().as_bytes()).unwrap();
        (path, c_path)
    }

    #[test]
    fn only_the_very_file_that_was_noted_goes() {
        let (directory, notebook) = job();
        let ((noted, noted_c), (replaced, replaced_c), (foreign, _)) =
            (file("noted"), file("psm_"), file("mpich_shm_"));
        for path in [&noted_c, &replaced_c] {
            notebook.note(&Record::file(path, Identity::of_path(path), true).unwrap()).unwrap();
        }
        // Another program's, under the same name.
        std::fs::rename(&replaced, replaced.with_extension("old")).unwrap();
        std::fs::write(&replaced, "y").unwrap();
        std::fs::remove_file(replaced.with_extension("old")).unwrap();
        let left = Litter::of_job(directory.path()).sweep(End::Killed);
        let there = [&noted, &replaced, &foreign].map(|path| path.exists());
        for path in [&replaced, &foreign] {
            std::fs::remove_file(path).unwrap();
        }
        assert_eq!(there, [false, true, true]);
        assert_eq!(left.sentence(), None);
    }

    #[test]
    fn a_file_that_may_be_anothers_stays_and_is_named() {
        let (directory, notebook) = job();
        let (path, c_path) = file("announced");
        let place = notebook.note(&Record::file(&c_path, None, true).unwrap()).unwrap();
        let sentence = Litter::of_world(directory.path(), 1).sweep(End::Killed).sentence().unwrap();
        assert!(path.exists() && sentence.contains(path.to_str().unwrap()), "{sentence}");
        notebook.replace(place, &Record::file(&c_path, Identity::of_path(&c_path), true).unwrap());
        assert_eq!(Litter::of_world(directory.path(), 2).sweep(End::Killed).sentence(), None);
        assert!(path.exists(), "it is of another world");
        assert_eq!(Litter::of_world(directory.path(), 1).sweep(End::Killed).sentence(), None);
        assert!(!path.exists());
    }

    #[test]
    fn a_notebook_has_room_again_when_what_it_noted_is_gone() {
        let (directory, notebook) = job();
        for number in 0..300 {
            let (path, c_path) = file(&format!("many-{number}"));
            notebook.note(&Record::file(&c_path, Identity::of_path(&c_path), true).unwrap()).unwrap();
            std::fs::remove_file(path).unwrap();
        }
        let (kept, c_path) = file("kept");
        notebook.note(&Record::file(&c_path, Identity::of_path(&c_path), true).unwrap()).unwrap();
        Litter::of_job(directory.path()).sweep(End::Well(1));
        assert!(!kept.exists(), "an MPI's file goes after a good end as well");
    }

    #[test]
    fn a_notebook_grows_with_what_is_there_and_a_name_may_be_as_long_as_any() {
        let (directory, notebook) = job();
        let long = "n".repeat(255 - "ftd-test--".len() - std::process::id().to_string().len());
        let mut kept: Vec<PathBuf> = Vec::new();
        for number in 0..300 {
            let name = if number == 299 { long.clone() } else { format!("grows-{number}") };
            let (path, c_path) = file(&name);
            notebook.note(&Record::file(&c_path, Identity::of_path(&c_path), true).unwrap()).unwrap();
            kept.push(path);
        }
        assert_eq!(Litter::of_job(directory.path()).sweep(End::Killed).sentence(), None);
        kept.retain(|path| path.exists());
        kept.iter().for_each(|path| std::fs::remove_file(path).unwrap());
        assert_eq!(kept, [] as [PathBuf; 0]);
    }

    #[test]
    fn what_has_no_room_in_a_notebook_is_said() {
        let (directory, notebook) = job();
        let (_, c_path) = file("limit");
        let record = Record::file(&c_path, Identity::of_path(&c_path), true).unwrap();
        // SAFETY: the child makes system calls only.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
            // SAFETY: plain system calls.
            unsafe {
                libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
                libc::_exit((0..10).filter(|_| notebook.note(&record).is_ok()).count() as i32);
            }
        }
        let status = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None).unwrap();
        assert_eq!(status, nix::sys::wait::WaitStatus::Exited(nix::unistd::Pid::from_raw(pid), 3));
        assert_eq!(Litter::of_job(directory.path()).sweep(End::Well(1)).sentence(), None);
        let sentence = Litter::of_job(directory.path()).sweep(End::Killed).sentence().unwrap();
        assert!(sentence.contains(&format!("perhaps more that could not be noted, of process {pid}")), "{sentence}");
    }

    #[test]
    fn what_the_program_made_stays_and_is_named_unless_it_ended_by_itself() {
        let (directory, notebook) = job();
        let (path, c_path) = file("of-program");
        notebook.note(&Record::file(&c_path, Identity::of_path(&c_path), false).unwrap()).unwrap();
        let announced = made::Segment::to_be_made();
        // SAFETY: takes three numbers.
        let id = unsafe { libc::shmget(libc::IPC_PRIVATE, 4096, libc::IPC_CREAT | 0o600) };
        notebook.note(&Record::segment(&announced.made(id).unwrap(), false)).unwrap();
        let killed = Litter::of_job(directory.path()).sweep(End::Killed).sentence().unwrap();
        let well = Litter::of_job(directory.path()).sweep(End::Well(1)).sentence();
        notebook.note(&Record::left()).unwrap();
        let left = Litter::of_job(directory.path()).sweep(End::Own(1)).sentence();
        let there = path.exists() && made::status(id).is_some();
        std::fs::remove_file(&path).unwrap();
        // SAFETY: IPC_RMID takes no buffer.
        unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
        assert!(there && (well, left) == (None, None));
        assert!(killed.contains(path.to_str().unwrap()), "{killed}");
        assert!(killed.contains(&format!("System V segment {id}, which the program made")), "{killed}");
    }
}
