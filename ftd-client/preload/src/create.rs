//! The calls by which an MPI makes shared memory that outlives its processes: what it makes is noted (see
//! [`ft_sys::made`]) before it can be left behind.
//!
//! The program calls them too, at any time and from anywhere, before `main`, in signal handlers, in children of a `fork`. Its
//! calls go straight to the native function: who calls is told by the return address.

use crate::owner::{self, Owner};
use crate::{cleared, link, mark, page, probe, promptly};
use ft_sys::gate;
use ft_sys::identity::Identity;
use ft_sys::made::{NotNoted, Notebook, Record, Segment};
use std::ffi::{CStr, c_char, c_int, c_long};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Where POSIX shared memory lies.
const SHM: &[u8] = b"/dev/shm/";
/// Names that `mkstemp` tries.
const TRIES: u32 = 1000;

/// `None` in processes without ftd.
static NOTEBOOK: OnceLock<Option<Notebook>> = OnceLock::new();
/// This process has joined, and its notebook could be written.
static USABLE: AtomicBool = AtomicBool::new(false);
/// Somebody looks where the notebook is, before this library was initialized.
static LOOKING: AtomicBool = AtomicBool::new(false);
/// That something could not be noted, and not even that be noted, was said.
static SAID: AtomicBool = AtomicBool::new(false);
/// The process that has noted something of its program's; another one's memory may be a copy of its memory.
static NOTED: AtomicU32 = AtomicU32::new(0);

/// Defines where the native functions lie.
macro_rules! natives {
    ($($static:ident $name:literal),+ $(,)?) => {
        $(static $static: AtomicUsize = AtomicUsize::new(0);)+

        /// Runs when the library is loaded: later on, any moment may be a bad one for the dynamic linker.
        extern "C" fn prepare() {
            $(
                // SAFETY: the name is a C string.
                let native = unsafe { libc::dlsym(libc::RTLD_NEXT, $name.as_ptr()) };
                $static.store(native as usize, Ordering::Release);
            )+
            notes();
            cleared::prepare();
            promptly::prepare();
            probe::empty_weak_references();
        }
    };
}

natives!(
    OPEN c"open", OPENAT c"openat", SHM_OPEN c"shm_open", MKOSTEMP c"mkostemp", SHMGET c"shmget",
);

#[used]
#[unsafe(link_section = ".init_array")]
static PREPARE: extern "C" fn() = prepare;

fn notebook() -> Option<Notebook> {
    let number = |name| std::env::var(name).ok()?.parse().ok();
    let socket = std::env::var_os("FT_SOCKET").filter(|socket| !socket.is_empty())?;
    let job_dir = Path::new(&socket).parent()?;
    Notebook::new(job_dir.as_os_str().as_bytes(), number("FT_WORLD")?, number("FT_RANK")? as u32)
}

/// The process has joined its job.
pub(crate) fn joined() {
    USABLE.store(notes().is_some_and(Notebook::is_usable), Ordering::Release);
}

/// Where to note things. Libraries that this one does not need are initialized before it, and some make shared memory there.
fn notes() -> Option<Notebook> {
    if let Some(notebook) = NOTEBOOK.get() {
        return *notebook;
    }
    // Not while it is found out: an allocator that makes shared memory would wait for itself.
    if LOOKING.swap(true, Ordering::AcqRel) {
        return None;
    }
    let notebook = notebook();
    let _ = NOTEBOOK.set(notebook);
    notebook
}

/// Notes something that is about to be made; `None` when that cannot be done. The error is what the caller is told when
/// nothing must be made any more.
fn note(notebook: Notebook, record: &Record) -> Result<Option<usize>, c_int> {
    match notebook.note(record) {
        Ok(place) => Ok(Some(place)),
        // The job is over, and this process about to be ended.
        Err(NotNoted::NoDirectory) if USABLE.load(Ordering::Acquire) => Err(libc::EIO),
        Err(NotNoted::NoNotebook) => {
            if !SAID.swap(true, Ordering::AcqRel) {
                let rank = link::rank().map_or_else(|| "?".to_string(), |rank| rank.to_string());
                let text =
                    "what its MPI makes in shared memory cannot be noted: it may stay there if the rank is killed";
                // There is nobody to tell that stderr is closed.
                let _ =
                    std::io::Write::write_all(&mut std::io::stderr(), format!("ftd: rank {rank}: {text}\n").as_bytes());
            }
            Ok(None)
        }
        Err(NotNoted::NoDirectory | NotNoted::Incomplete) => Ok(None),
    }
}

/// The process ends by its own will: what its program made is meant to be there.
pub(crate) fn leaving() {
    if NOTED.load(Ordering::Acquire) == page::pid()
        && let Some(notebook) = notes()
    {
        NOTED.store(0, Ordering::Release);
        let _ = notebook.note(&Record::left());
    }
}

/// Whether this process ends by its own will matters from now on.
fn noted_for_program() {
    if NOTED.swap(page::pid(), Ordering::AcqRel) != page::pid() {
        mark::register();
    }
}

fn fail(errno: c_int) -> c_int {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = errno };
    -1
}

fn errno() -> c_int {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() }
}

/// libc's `openat`, or what it does, if the library is not prepared yet.
fn native_openat(directory: c_int, path: &CStr, flags: c_int, mode: libc::mode_t) -> c_int {
    let native = OPENAT.load(Ordering::Acquire);
    if native == 0 {
        return system_openat(directory, path, flags, mode);
    }
    // SAFETY: this is how openat's arguments are passed.
    let native: unsafe extern "C" fn(c_int, *const c_char, c_int, libc::mode_t) -> c_int =
        unsafe { std::mem::transmute(native) };
    // SAFETY: the caller's arguments.
    unsafe { native(directory, path.as_ptr(), flags, mode) }
}

fn system_openat(directory: c_int, path: &CStr, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the path is a C string.
    unsafe { libc::syscall(libc::SYS_openat, directory, path.as_ptr(), flags, mode as c_long) as c_int }
}

/// An open descriptor of this module's own.
struct Descriptor(c_int);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: open, and nobody else's.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// The notebook, if such a call of this caller's is to be noted, and whether the caller may be the program.
fn to_be_noted(path: &CStr, flags: c_int, caller: usize) -> Option<(Notebook, bool)> {
    let creates = flags & libc::O_CREAT != 0 && flags & libc::O_TMPFILE != libc::O_TMPFILE;
    let name = path.to_bytes().strip_prefix(SHM).filter(|name| creates && !name.is_empty() && !name.contains(&b'/'));
    let notebook = name.and_then(|_| notes())?;
    match owner::of(caller) {
        Owner::Mpi => Some((notebook, false)),
        Owner::Unknown => Some((notebook, true)),
        Owner::Program => None,
    }
}

/// Whether the file may be the program's, made by MPI-IO, which lives in the same libraries. That opens with the permissions
/// that the program's mask leaves of `rw-rw-rw-`. What an MPI makes for itself is new, and the user's alone; where the mask
/// leaves no more than that either, nobody can tell the two apart.
fn may_be_of_mpi_io(flags: c_int, mode: libc::mode_t) -> bool {
    flags & libc::O_EXCL == 0 || mode & 0o077 != 0 || !mask_allows_others()
}

/// Whether a file that is made with `rw-rw-rw-` could be read or written by others.
fn mask_allows_others() -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u32::from_str_radix(line.strip_prefix("Umask:")?.trim(), 8).ok());
    mask.is_some_and(|mask| mask & 0o066 != 0o066)
}

/// Opens and makes a file below `/dev/shm`, and notes it: the file is made without a name, noted, and then named.
fn create(notebook: Notebook, path: &CStr, flags: c_int, mode: libc::mode_t) -> c_int {
    let exclusive = flags & libc::O_EXCL != 0;
    loop {
        if !exclusive {
            let fd = native_openat(libc::AT_FDCWD, path, flags & !libc::O_CREAT, 0);
            if fd >= 0 || errno() != libc::ENOENT {
                return fd;
            }
        }
        let nameless =
            system_openat(libc::AT_FDCWD, c"/dev/shm", libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC, mode);
        if nameless < 0 {
            return create_announced(notebook, path, flags, mode);
        }
        let nameless = Descriptor(nameless);
        let identity = Identity::of_descriptor(nameless.0);
        let Some(record) = identity.and_then(|identity| Record::file(path, Some(identity), true)) else {
            return create_announced(notebook, path, flags, mode);
        };
        let place = match note(notebook, &record) {
            Ok(Some(place)) => place,
            Ok(None) => return native_openat(libc::AT_FDCWD, path, flags, mode),
            Err(error) => return fail(error),
        };
        match name(&nameless, path) {
            Ok(()) => {
                gate::reach("mpi.made-file", link::rank());
                return open_named(nameless, path, flags, identity);
            }
            Err(error) => {
                notebook.replace(place, &Record::free());
                match error {
                    libc::EEXIST if exclusive => return fail(libc::EEXIST),
                    libc::EEXIST => {}
                    // No /proc, for example.
                    _ => return create_announced(notebook, path, flags, mode),
                }
            }
        }
    }
}

/// Gives a file its name.
fn name(nameless: &Descriptor, path: &CStr) -> Result<(), c_int> {
    use std::io::Write;
    let mut link = [0u8; 32];
    // The last byte stays zero.
    let _ = write!(&mut link[..31], "/proc/self/fd/{}", nameless.0);
    // SAFETY: both paths are C strings.
    let done = unsafe {
        libc::linkat(libc::AT_FDCWD, link.as_ptr().cast(), libc::AT_FDCWD, path.as_ptr(), libc::AT_SYMLINK_FOLLOW)
    };
    if done == 0 { Ok(()) } else { Err(errno()) }
}

/// Opens the file under its name, so that the descriptor and its mappings show it; where that cannot be (its mode forbids
/// it, somebody was quick to remove it) the descriptor that is there does.
fn open_named(nameless: Descriptor, path: &CStr, flags: c_int, identity: Option<Identity>) -> c_int {
    let fd = native_openat(libc::AT_FDCWD, path, flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC), 0);
    if fd >= 0 {
        if Identity::of_descriptor(fd) == identity {
            return fd;
        }
        drop(Descriptor(fd));
    }
    let fd = nameless.0;
    std::mem::forget(nameless);
    if flags & libc::O_CLOEXEC == 0 {
        // SAFETY: changes a flag of a descriptor that is open.
        unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
    }
    fd
}

/// Where a file cannot be made without a name: its path is noted before, and which file it is afterwards.
fn create_announced(notebook: Notebook, path: &CStr, flags: c_int, mode: libc::mode_t) -> c_int {
    loop {
        // Who makes a file only if there is none knows afterwards that it made it.
        let fd = announced(notebook, path, flags | libc::O_EXCL, mode, true);
        if fd >= 0 || flags & libc::O_EXCL != 0 || errno() != libc::EEXIST {
            return fd;
        }
        let fd = native_openat(libc::AT_FDCWD, path, flags & !libc::O_CREAT, 0);
        if fd >= 0 || errno() != libc::ENOENT {
            return fd;
        }
    }
}

fn create_by(notebook: Notebook, path: &CStr, flags: c_int, mode: libc::mode_t, may_be_of_program: bool) -> c_int {
    if may_be_of_program {
        create_for_program(notebook, path, flags, mode)
    } else {
        create(notebook, path, flags, mode)
    }
}

/// Makes a file that may be the program's: it is noted so that it can be named, and stays.
fn create_for_program(notebook: Notebook, path: &CStr, flags: c_int, mode: libc::mode_t) -> c_int {
    match Identity::of_path(path) {
        Some(_) => native_openat(libc::AT_FDCWD, path, flags, mode),
        None => {
            noted_for_program();
            announced(notebook, path, flags, mode, false)
        }
    }
}

fn announced(notebook: Notebook, path: &CStr, flags: c_int, mode: libc::mode_t, of_mpi: bool) -> c_int {
    let place = match Record::file(path, None, of_mpi).map(|record| note(notebook, &record)) {
        Some(Err(error)) => return fail(error),
        Some(Ok(place)) => place,
        None => None,
    };
    let fd = native_openat(libc::AT_FDCWD, path, flags, mode);
    let error = errno();
    if let Some(place) = place {
        let made = (fd >= 0).then(|| Identity::of_descriptor(fd)).flatten();
        let record = made.and_then(|identity| Record::file(path, Some(identity), of_mpi));
        notebook.replace(place, &record.unwrap_or(Record::free()));
    }
    if fd < 0 { fail(error) } else { fd }
}

/// # Safety
/// As `openat`.
unsafe extern "C" fn openat_by(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
    caller: usize,
) -> c_int {
    if path.is_null() {
        return fail(libc::EFAULT);
    }
    // SAFETY: openat takes a C string.
    let path = unsafe { CStr::from_ptr(path) };
    match to_be_noted(path, flags, caller) {
        Some((notebook, unknown)) => create_by(notebook, path, flags, mode, unknown || may_be_of_mpi_io(flags, mode)),
        None => native_openat(directory, path, flags, mode),
    }
}

/// # Safety
/// As `open`.
unsafe extern "C" fn open_by(path: *const c_char, flags: c_int, mode: libc::mode_t, caller: usize) -> c_int {
    let native = OPEN.load(Ordering::Acquire);
    if flags & libc::O_CREAT == 0 && native != 0 {
        // SAFETY: this is how open's arguments are passed.
        let native: unsafe extern "C" fn(*const c_char, c_int, libc::mode_t) -> c_int =
            unsafe { std::mem::transmute(native) };
        // SAFETY: the caller's arguments.
        return unsafe { native(path, flags, mode) };
    }
    // SAFETY: the caller's promise.
    unsafe { openat_by(libc::AT_FDCWD, path, flags, mode, caller) }
}

/// # Safety
/// As `shm_open`.
unsafe extern "C" fn shm_open_by(name: *const c_char, flags: c_int, mode: libc::mode_t, caller: usize) -> c_int {
    let mut path = [0u8; 9 + 256];
    path[..SHM.len()].copy_from_slice(SHM);
    if !name.is_null() && flags & libc::O_CREAT != 0 {
        // SAFETY: shm_open takes a C string.
        let bytes = unsafe { CStr::from_ptr(name) }.to_bytes();
        let bytes = &bytes[bytes.iter().take_while(|byte| **byte == b'/').count()..];
        if let Some(place) = path.get_mut(SHM.len()..SHM.len() + bytes.len()) {
            place.copy_from_slice(bytes);
            if let Ok(path) = CStr::from_bytes_until_nul(&path)
                && let Some((notebook, unknown)) = to_be_noted(path, flags, caller)
            {
                // As libc does.
                return create_by(notebook, path, flags | libc::O_NOFOLLOW | libc::O_CLOEXEC, mode, unknown);
            }
        }
    }
    let native = SHM_OPEN.load(Ordering::Acquire);
    if native == 0 {
        return fail(libc::ENOSYS);
    }
    // SAFETY: the type of shm_open.
    let native: unsafe extern "C" fn(*const c_char, c_int, libc::mode_t) -> c_int =
        unsafe { std::mem::transmute(native) };
    // SAFETY: the caller's arguments.
    unsafe { native(name, flags, mode) }
}

/// # Safety
/// As `mkostemp`.
unsafe extern "C" fn mkostemp_by(template: *mut c_char, flags: c_int, caller: usize) -> c_int {
    let flags = flags & !libc::O_ACCMODE | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    if !template.is_null() {
        // SAFETY: mkostemp takes a C string.
        let path = unsafe { CStr::from_ptr(template) };
        let length = path.count_bytes();
        if path.to_bytes().ends_with(b"XXXXXX")
            && let Some((notebook, unknown)) = to_be_noted(path, flags, caller)
        {
            for _ in 0..TRIES {
                // SAFETY: the last six characters of the caller's string, which it gives to be written to.
                random_name(unsafe { std::slice::from_raw_parts_mut(template.add(length - 6).cast(), 6) });
                // SAFETY: still the caller's C string.
                let fd = create_by(notebook, unsafe { CStr::from_ptr(template) }, flags, 0o600, unknown);
                if fd >= 0 || errno() != libc::EEXIST {
                    return fd;
                }
            }
            return fail(libc::EEXIST);
        }
    }
    let native = MKOSTEMP.load(Ordering::Acquire);
    if native == 0 {
        return fail(libc::ENOSYS);
    }
    // SAFETY: the type of mkostemp.
    let native: unsafe extern "C" fn(*mut c_char, c_int) -> c_int = unsafe { std::mem::transmute(native) };
    // SAFETY: the caller's arguments.
    unsafe { native(template, flags & !(libc::O_ACCMODE | libc::O_CREAT | libc::O_EXCL)) }
}

fn random_name(letters: &mut [u8]) {
    const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    // SAFETY: the buffer is as long as is said. Without random bytes the next name is tried, until there is none left.
    unsafe { libc::getrandom(letters.as_mut_ptr().cast(), letters.len(), 0) };
    letters.iter_mut().for_each(|letter| *letter = LETTERS[usize::from(*letter) % LETTERS.len()]);
}

/// # Safety
/// As `mkostemp` without flags.
unsafe extern "C" fn mkstemp_by(template: *mut c_char, caller: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { mkostemp_by(template, 0, caller) }
}

/// Of private segments also the program's are noted: those of a killed process are named, since few can find them again.
extern "C" fn shmget_by(key: libc::key_t, size: libc::size_t, flags: c_int, caller: usize) -> c_int {
    let Some(notebook) = notes().filter(|_| key == libc::IPC_PRIVATE) else { return native_shmget(key, size, flags) };
    let (segment, of_mpi) = (Segment::to_be_made(), owner::of(caller) == Owner::Mpi);
    let place = match note(notebook, &Record::segment(&segment, of_mpi)) {
        Ok(place) => place,
        Err(error) => return fail(error),
    };
    let id = native_shmget(key, size, flags);
    let error = errno();
    if of_mpi {
        let loading = !owner::is_initialized();
        gate::reach(if loading { "mpi.made-segment-loading" } else { "mpi.made-segment" }, link::rank());
    }
    if let Some(place) = place {
        let made = if id >= 0 { segment.made(id) } else { None };
        notebook.replace(place, &made.map_or(Record::free(), |made| Record::segment(&made, of_mpi)));
    }
    if !of_mpi {
        noted_for_program();
    }
    if id < 0 { fail(error) } else { id }
}

fn native_shmget(key: libc::key_t, size: libc::size_t, flags: c_int) -> c_int {
    let native = SHMGET.load(Ordering::Acquire);
    if native == 0 {
        // SAFETY: takes three numbers.
        return unsafe { libc::syscall(libc::SYS_shmget, key, size, flags) as c_int };
    }
    // SAFETY: the type of shmget.
    let native: unsafe extern "C" fn(libc::key_t, libc::size_t, c_int) -> c_int =
        unsafe { std::mem::transmute(native) };
    // SAFETY: takes three numbers.
    unsafe { native(key, size, flags) }
}

/// Defines a function of libc's that passes its return address on as one more argument, in the register that is named.
macro_rules! tell_caller {
    ($($name:ident $by:ident $x86:literal $arm:literal),+ $(,)?) => {
        $(
            #[doc = concat!("libc's `", stringify!($name), "`, noted when an MPI calls it.")]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub extern "C" fn $name() {
                #[cfg(target_arch = "x86_64")]
                std::arch::naked_asm!(concat!("mov ", $x86, ", [rsp]"), "jmp {by}", by = sym $by);
                #[cfg(target_arch = "aarch64")]
                std::arch::naked_asm!(concat!("mov ", $arm, ", x30"), "b {by}", by = sym $by);
            }
        )+
    };
}

tell_caller!(
    open open_by "rcx" "x3",
    open64 open_by "rcx" "x3",
    openat openat_by "r8" "x4",
    openat64 openat_by "r8" "x4",
    shm_open shm_open_by "rcx" "x3",
    mkstemp mkstemp_by "rsi" "x1",
    mkstemp64 mkstemp_by "rsi" "x1",
    mkostemp mkostemp_by "rdx" "x2",
    mkostemp64 mkostemp_by "rdx" "x2",
    shmget shmget_by "rcx" "x3",
);
