//! What the processes of a job make in shared memory that outlives them, noted while they make it.
//!
//! Each process has a notebook, `<job_dir>/made/<world>/<rank>.<pid>`, which grows by records of one size. A record is there
//! before the thing that it speaks of can be left behind, and a file is named in it by device and inode. So a SIGKILL at any
//! instruction loses nothing, and whoever cleans up later, the next `ftrun` for example, removes exactly what was made. When
//! a record cannot be written (a file-size limit, no memory) the notebook is marked as incomplete, which takes no room.
//!
//! The writing half runs inside the ranks, in the midst of their system calls: it makes system calls itself and nothing
//! else, and keeps nothing open.

use crate::identity::Identity;
use crate::individual::Individual;
use ft_wire::{Rank, World};
use std::ffi::CStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// In a job's directory: the notebooks, by world.
const MADE: &str = "made";
/// Bytes of a record: room for `/dev/shm/` and the longest name that a file can have.
const RECORD: usize = 320;
/// Records of a notebook. What MPIs make goes within moments, and its record with it; nobody lives with more.
const RECORDS: usize = 1 << 16;
/// The first time that all records are in use it is asked which of them speak of what is gone; then whenever they are twice
/// as many.
const FEW: usize = 128;
/// Records that are read at a time.
const BATCH: usize = 16;
/// Where a record's path begins.
const PATH: usize = 48;
/// Permissions of a notebook; the second, where not all could be noted.
const COMPLETE: u32 = 0o600;
const INCOMPLETE: u32 = 0o700;

const FREE: u32 = 0;
const FILE: u32 = 1;
const SEGMENT: u32 = 2;
const LEFT: u32 = 3;
/// Added to the kind of what the program made, or may have made, and not its MPI.
const OF_PROGRAM: u32 = 0x100;

/// A System V segment, and where its numbers mean what they say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Its number; `None` while it is being made.
    pub id: Option<i32>,
    /// Second since 1970 in which it was made; the earliest one, while it is being made.
    pub at: u64,
    /// Who makes it.
    pub creator: Individual,
    /// Inode of the IPC name space.
    pub ipc: u64,
    /// Inode of the pid name space of `creator`.
    pub pids: u64,
}

impl Segment {
    /// One that this process is about to make.
    pub fn to_be_made() -> Segment {
        // SAFETY: an all-zero timespec is a valid value of the type.
        let mut now: libc::timespec = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is valid for the call. The clock is the one by which the kernel dates segments.
        unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &mut now) };
        // SAFETY: cannot fail.
        let creator = Individual { pid: unsafe { libc::getpid() }, start: own_start() };
        let (ipc, pids) = name_spaces();
        Segment { id: None, at: now.tv_sec as u64, creator, ipc, pids }
    }

    /// The same one, now that it is there; `None` when it is gone already.
    pub fn made(self, id: i32) -> Option<Segment> {
        Some(Segment { id: Some(id), at: status(id)?.shm_ctime as u64, ..self })
    }

    /// Whether the numbers are of this process's name spaces: of the segments', of the pids'. For those who read notes: they
    /// stay in the name spaces in which they began.
    pub fn is_from_here(&self) -> (bool, bool) {
        static OWN: OnceLock<(u64, u64)> = OnceLock::new();
        let (ipc, pids) = *OWN.get_or_init(name_spaces);
        (self.ipc == ipc, self.pids == pids)
    }

    fn exists(&self) -> bool {
        self.id.is_some_and(|id| self.made(id).is_some_and(|now| now.at == self.at))
    }
}

/// What the kernel says of a segment.
pub(crate) fn status(id: i32) -> Option<libc::shmid_ds> {
    // SAFETY: an all-zero shmid_ds is a valid value of the type.
    let mut found: libc::shmid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid for the call.
    (unsafe { libc::shmctl(id, libc::IPC_STAT, &mut found) } == 0).then_some(found)
}

/// Inodes of this process's name spaces of IPC and of pids.
fn name_spaces() -> (u64, u64) {
    let inode = |path| Identity::behind(path).map_or(0, |found| found.inode);
    (inode(c"/proc/self/ns/ipc"), inode(c"/proc/self/ns/pid"))
}

/// When this process was started, as [`Individual`] has it; 0 where there is no `/proc`.
fn own_start() -> u64 {
    let mut bytes = [0u8; 1024];
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the path is a C string. Not libc's function: this process may have replaced that.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, c"/proc/self/stat".as_ptr(), flags) } as i32;
    if fd < 0 {
        return 0;
    }
    // SAFETY: the buffer is as long as is said; the descriptor is this function's own.
    let read = unsafe {
        let read = libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len());
        libc::close(fd);
        read
    };
    let text = bytes.get(..usize::try_from(read).unwrap_or(0)).unwrap_or_default();
    // Behind the name, which may hold anything, stands field 3.
    let behind = text.iter().rposition(|byte| *byte == b')').map_or(text.len(), |at| at + 2);
    let field = text.get(behind..).unwrap_or_default().split(|byte| *byte == b' ').nth(22 - 3);
    field.and_then(|field| std::str::from_utf8(field).ok()?.parse().ok()).unwrap_or(0)
}

/// One thing that a process made, or was about to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A file; without an identity it may be another's that lies at that path.
    File {
        /// Where.
        path: PathBuf,
        /// Which.
        identity: Option<Identity>,
        /// Its MPI made it, and not for the program.
        of_mpi: bool,
    },
    /// A private System V segment.
    Segment {
        /// Which.
        segment: Segment,
        /// Its MPI made it, not the program.
        of_mpi: bool,
    },
    /// The process ended by its own will: what its program made is meant to be there.
    Left,
    /// There is more that could not be noted.
    Incomplete,
}

/// One record, as it is written.
#[derive(Debug, Clone, Copy)]
pub struct Record([u8; RECORD]);

impl Record {
    fn new(kind: u32, words: &[(usize, u64)]) -> Record {
        let mut bytes = [0; RECORD];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        for (offset, value) in words {
            bytes[*offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        }
        Record(bytes)
    }

    /// A place that is free again.
    pub fn free() -> Record {
        Record::new(FREE, &[])
    }

    /// See [`Note::Left`].
    pub fn left() -> Record {
        Record::new(LEFT, &[])
    }

    /// See [`Note::File`]. `None` for a path that no file below `/dev/shm` can have.
    pub fn file(path: &CStr, identity: Option<Identity>, of_mpi: bool) -> Option<Record> {
        let path = path.to_bytes();
        let Identity { device, inode, born } = identity.unwrap_or(Identity { device: 0, inode: 0, born: 0 });
        let words = [(8, device), (16, inode), (24, born), (32, path.len() as u64), (40, identity.is_some().into())];
        let mut record = Record::new(if of_mpi { FILE } else { FILE | OF_PROGRAM }, &words);
        record.0.get_mut(PATH..PATH + path.len())?.copy_from_slice(path);
        Some(record)
    }

    /// See [`Note::Segment`].
    pub fn segment(segment: &Segment, of_mpi: bool) -> Record {
        let id = segment.id.map_or(u64::MAX, |id| id as u64);
        let Individual { pid, start } = segment.creator;
        let words = [(8, id), (16, segment.at), (24, pid as u64), (32, segment.ipc), (40, segment.pids), (48, start)];
        Record::new(if of_mpi { SEGMENT } else { SEGMENT | OF_PROGRAM }, &words)
    }

    fn kind(&self) -> u32 {
        u32::from_le_bytes([self.0[0], self.0[1], self.0[2], self.0[3]])
    }

    fn word(&self, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[offset..offset + 8]);
        u64::from_le_bytes(bytes)
    }

    fn identity(&self) -> Option<Identity> {
        (self.word(40) != 0).then(|| Identity { device: self.word(8), inode: self.word(16), born: self.word(24) })
    }

    fn path(&self) -> Option<&[u8]> {
        let length = usize::try_from(self.word(32)).ok()?;
        self.0.get(PATH..PATH.checked_add(length)?)
    }

    fn as_segment(&self) -> Segment {
        Segment {
            id: i32::try_from(self.word(8)).ok(),
            at: self.word(16),
            creator: Individual { pid: self.word(24) as i32, start: self.word(48) },
            ipc: self.word(32),
            pids: self.word(40),
        }
    }

    /// Whether what it speaks of is gone, so that its place can be used again.
    fn is_over(&self) -> bool {
        match self.kind() & !OF_PROGRAM {
            FREE => true,
            SEGMENT => self.as_segment().id.is_some() && !self.as_segment().exists(),
            FILE => {
                let mut path = [0; RECORD];
                let Some((found, place)) = self.path().and_then(|found| Some((found, path.get_mut(..found.len())?)))
                else {
                    return true;
                };
                place.copy_from_slice(found);
                let Ok(path) = CStr::from_bytes_until_nul(&path) else { return true };
                self.identity().is_some() && Identity::of_path(path) != self.identity()
            }
            _ => false,
        }
    }

    fn note(&self) -> Option<Note> {
        match self.kind() & !OF_PROGRAM {
            FILE => {
                let path = PathBuf::from(std::ffi::OsStr::from_bytes(self.path()?));
                Some(Note::File { path, identity: self.identity(), of_mpi: self.kind() & OF_PROGRAM == 0 })
            }
            SEGMENT => Some(Note::Segment { segment: self.as_segment(), of_mpi: self.kind() & OF_PROGRAM == 0 }),
            LEFT => Some(Note::Left),
            _ => None,
        }
    }
}

/// The notebook of this process.
#[derive(Debug, Clone, Copy)]
pub struct Notebook {
    /// Path without the pid.
    path: [u8; 512],
    length: usize,
}

/// Why something could not be noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotNoted {
    /// The directory is not there: the job is over, or it lies where this process cannot see it.
    NoDirectory,
    /// No memory, too many notes, a limit. The notebook says that it is not complete.
    Incomplete,
    /// There is no notebook to say it in.
    NoNotebook,
}

impl Notebook {
    /// Notebooks of the processes of one rank; `None` when the path is too long.
    pub fn new(job_dir: &[u8], world: World, rank: Rank) -> Option<Notebook> {
        let mut notebook = Notebook { path: [0; 512], length: 0 };
        notebook.push(job_dir)?;
        write!(notebook, "/{MADE}/{world}/{rank}.").ok()?;
        Some(notebook)
    }

    fn push(&mut self, bytes: &[u8]) -> Option<()> {
        // The last byte stays zero.
        let end = self.length.checked_add(bytes.len()).filter(|end| *end < self.path.len())?;
        self.path[self.length..end].copy_from_slice(bytes);
        self.length = end;
        Some(())
    }

    /// Opens the notebook of the process that calls, which may be a child of the one that made `self`.
    fn open(mut self) -> Result<Open, NotNoted> {
        // SAFETY: cannot fail.
        write!(self, "{}", unsafe { libc::getpid() }).map_err(|_| NotNoted::NoNotebook)?;
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        // SAFETY: the path ends with a zero byte. Not libc's function: this process may have replaced that.
        let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, self.path.as_ptr(), flags, COMPLETE) };
        // SAFETY: reads this thread's errno.
        match unsafe { *libc::__errno_location() } {
            _ if fd >= 0 => {}
            libc::ENOENT => return Err(NotNoted::NoDirectory),
            _ => return Err(NotNoted::NoNotebook),
        }
        let open = Open(fd as i32);
        // Against the process's other threads.
        // SAFETY: plain system call on an open descriptor.
        unsafe { libc::flock(open.0, libc::LOCK_EX) };
        Ok(open)
    }

    /// Whether notes can be made here.
    pub fn is_usable(self) -> bool {
        self.open().is_ok()
    }

    /// Writes a record; returns its place.
    ///
    /// # Errors
    /// When it was not written.
    pub fn note(self, record: &Record) -> Result<usize, NotNoted> {
        let open = self.open()?;
        let records = open.records();
        let is_free = || open.find(records, |record| record.kind() == FREE);
        let is_over = || open.find(records, Record::is_over);
        let is_due = records >= FEW && records.is_power_of_two();
        let place = is_free().or_else(|| is_over().filter(|_| is_due)).unwrap_or(records);
        if place < RECORDS && open.write(place, record) {
            return Ok(place);
        }
        // There is no more room than this.
        if let Some(place) = is_over().filter(|place| open.write(*place, record)) {
            return Ok(place);
        }
        open.mark_incomplete();
        Err(NotNoted::Incomplete)
    }

    /// Replaces a record of this process.
    pub fn replace(self, place: usize, record: &Record) {
        if let Ok(open) = self.open() {
            open.write(place, record);
        }
    }
}

impl Write for Notebook {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.push(text.as_bytes()).ok_or(std::fmt::Error)
    }
}

/// An open notebook, locked.
struct Open(i32);

impl Open {
    /// How many records there are.
    fn records(&self) -> usize {
        // SAFETY: plain system call on an open descriptor.
        let length = unsafe { libc::lseek(self.0, 0, libc::SEEK_END) };
        usize::try_from(length).unwrap_or(0) / RECORD
    }

    /// The first place of these whose record is so.
    fn find(&self, records: usize, is_so: impl Fn(&Record) -> bool) -> Option<usize> {
        let mut bytes = [0u8; RECORD * BATCH];
        for first in (0..records).step_by(BATCH) {
            bytes.fill(0);
            // SAFETY: the buffer is as long as is said.
            unsafe { libc::pread(self.0, bytes.as_mut_ptr().cast(), bytes.len(), (first * RECORD) as libc::off_t) };
            let (found, _) = bytes.as_chunks::<RECORD>();
            let found = &found[..found.len().min(records - first)];
            if let Some(at) = found.iter().position(|bytes| is_so(&Record(*bytes))) {
                return Some(first + at);
            }
        }
        None
    }

    fn write(&self, place: usize, record: &Record) -> bool {
        let offset = place * RECORD;
        // A write beyond it would be a signal that ends the process.
        // SAFETY: an all-zero rlimit is a valid value of the type.
        let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is valid for the call.
        let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0;
        if known && limit.rlim_cur < (offset + RECORD) as u64 {
            return false;
        }
        // SAFETY: the buffer is as long as is said.
        unsafe { libc::pwrite(self.0, record.0.as_ptr().cast(), RECORD, offset as libc::off_t) == RECORD as isize }
    }

    fn mark_incomplete(&self) {
        // SAFETY: plain system call on an open descriptor.
        unsafe { libc::fchmod(self.0, INCOMPLETE) };
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // Unlocked by word: a child that was forked meanwhile has the descriptor as well.
        // SAFETY: the descriptor is open and this value's own.
        unsafe {
            libc::flock(self.0, libc::LOCK_UN);
            libc::close(self.0);
        }
    }
}

/// Where the notebooks of a world are.
pub fn directory(job_dir: &Path, world: World) -> PathBuf {
    job_dir.join(MADE).join(world.to_string())
}

/// The worlds of which there are notebooks.
pub fn worlds(job_dir: &Path) -> impl Iterator<Item = World> {
    entries(&job_dir.join(MADE)).filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// All notebooks of a world, by file.
pub fn read(job_dir: &Path, world: World) -> impl Iterator<Item = (PathBuf, Vec<Note>)> {
    entries(&directory(job_dir, world)).map(|entry| {
        let path = entry.path();
        let mut notes = notes(&std::fs::read(&path).unwrap_or_default());
        let is_incomplete = |found: std::fs::Metadata| found.permissions().mode() & INCOMPLETE == INCOMPLETE;
        notes.extend(std::fs::metadata(&path).is_ok_and(is_incomplete).then_some(Note::Incomplete));
        (path, notes)
    })
}

fn entries(directory: &Path) -> impl Iterator<Item = std::fs::DirEntry> + use<> {
    std::fs::read_dir(directory).into_iter().flatten().flatten()
}

fn notes(bytes: &[u8]) -> Vec<Note> {
    let (records, _) = bytes.as_chunks::<RECORD>();
    records.iter().filter_map(|bytes| Record(*bytes).note()).collect()
}
