//! Whose code lies at an address: the MPI's or the program's.
//!
//! The MPI is libmpi, what it needs, and what the thread that is inside `MPI_Init` has the linker load there. Addresses alone say
//! nothing: where the MPI has unloaded an object, the program's next one is likely to be loaded.

use crate::native::find;
use crate::objects::{Names, Object, loaded, reached, unloaded};
use crate::page;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};

/// Whose something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Mpi,
    Program,
    /// Loaded while `MPI_Init` ran, and not provably by it.
    Unknown,
}

/// An object that was looked at.
struct Known {
    base: usize,
    range: Range<usize>,
    path: CString,
    owner: Owner,
    /// It has not been seen missing: what is loaded in its place later is another one, whatever its name.
    there: AtomicBool,
}

impl Known {
    fn is(&self, object: &Object) -> bool {
        self.base == object.base && self.range == object.range && self.path == object.path
    }

    fn is_there(&self) -> bool {
        self.there.load(Ordering::Acquire)
    }
}

/// The objects, as they were when `MPI_Init` was entered, and again when it was left.
struct Table {
    known: Vec<Known>,
    /// How many objects had been unloaded when it was last made sure which ones are there.
    unloaded: AtomicU64,
    /// `MPI_Init` runs: what is not known was loaded meanwhile.
    initializing: bool,
    /// The process that made this; a child of a `fork` has no MPI.
    process: u32,
}

/// Replaced as a whole and never freed: an interposed call may be reading it. There are two per `MPI_Init`.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());
/// The last `MPI_Finalize` has returned: no code makes anything for the MPI any more.
static CLOSED: AtomicBool = AtomicBool::new(false);
/// The thread that is inside `MPI_Init`; 0 when none is.
static INITIALIZING: AtomicI32 = AtomicI32::new(0);

/// A call of `dlopen` while `MPI_Init` ran.
struct Opening {
    name: CString,
    by_init: bool,
    before: *const Opening,
}

/// The latest. Never freed, for the same reason.
static OPENINGS: AtomicPtr<Opening> = AtomicPtr::new(std::ptr::null_mut());

fn thread() -> i32 {
    // SAFETY: cannot fail.
    unsafe { libc::gettid() }
}

/// Somebody is about to call `dlopen`.
///
/// # Safety
/// `name` is null or a C string.
pub(crate) unsafe fn opening(name: *const c_char) {
    let initializing = INITIALIZING.load(Ordering::Acquire);
    if initializing == 0 || name.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_owned();
    let mut before = OPENINGS.load(Ordering::Acquire);
    let opening = Box::into_raw(Box::new(Opening { name, by_init: initializing == thread(), before }));
    while let Err(other) = OPENINGS.compare_exchange(before, opening, Ordering::AcqRel, Ordering::Acquire) {
        before = other;
        // SAFETY: not shared yet.
        unsafe { (*opening).before = before };
    }
}

/// The objects with which this `MPI_Init`, or somebody else meanwhile, has called `dlopen`.
fn opened(names: &Names, by_init: bool) -> Vec<usize> {
    // SAFETY: null, or never freed.
    let latest = unsafe { OPENINGS.load(Ordering::Acquire).as_ref() };
    // SAFETY: as above.
    let all = std::iter::successors(latest, |opening| unsafe { opening.before.as_ref() });
    let wanted = all.filter(|opening| opening.by_init == by_init);
    wanted.filter_map(|opening| names.opened_as(opening.name.as_bytes())).collect()
}

fn table() -> Option<&'static Table> {
    // SAFETY: null, or a table that is never freed.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

fn publish(objects: Vec<Object>, owners: Vec<Owner>, unloaded: u64, initializing: bool) {
    let known = objects.into_iter().zip(owners).map(|(object, owner)| {
        let Object { path, range, base, .. } = object;
        Known { base, range, path, owner, there: AtomicBool::new(true) }
    });
    let unloaded = AtomicU64::new(unloaded);
    let table = Table { known: known.collect(), unloaded, initializing, process: page::pid() };
    TABLE.store(Box::into_raw(Box::new(table)), Ordering::Release);
}

/// `MPI_Init` is about to run on this thread: the MPI is the object that holds this address, all that it needs, and what an earlier
/// `MPI_Init` or session has loaded and not unloaded.
pub(crate) fn init_begins(native: *const c_void) {
    // Before the look: what is unloaded in between is noticed then.
    let unloaded = unloaded();
    let earlier = refreshed();
    let objects = loaded();
    let of_mpi = mpi_of(&objects, native);
    let owners =
        objects.iter().zip(of_mpi).map(|(object, of_mpi)| match earlier.and_then(|table| table.known(object)) {
            _ if of_mpi => Owner::Mpi,
            Some(known) => known.owner,
            None => Owner::Program,
        });
    let owners = owners.collect();
    OPENINGS.store(std::ptr::null_mut(), Ordering::Release);
    publish(objects, owners, unloaded, true);
    CLOSED.store(false, Ordering::Release);
    INITIALIZING.store(thread(), Ordering::Release);
}

/// `MPI_Init` has returned. What it loaded is the MPI's, what is loaded from now on is the program's.
pub(crate) fn init_ended() {
    INITIALIZING.store(0, Ordering::Release);
    let Some(table) = refreshed() else { return };
    let unloaded = unloaded();
    let objects = loaded();
    let owners = owners(table, &objects);
    publish(objects, owners, unloaded, false);
}

/// The last `MPI_Finalize` has returned, or the last session is closed.
pub(crate) fn finalized() {
    // What is unloaded is forgotten now, before anything else is loaded there.
    refreshed();
    CLOSED.store(true, Ordering::Release);
}

/// Which of these objects are the MPI with this function.
fn mpi_of(objects: &[Object], native: *const c_void) -> Vec<bool> {
    let at = objects.iter().position(|object| object.range.contains(&(native as usize)));
    reached(objects, &Names::of(objects), at)
}

/// Whose these objects are, while `MPI_Init` runs or when it has just ended.
fn owners(table: &Table, objects: &[Object]) -> Vec<Owner> {
    let names = Names::of(objects);
    let [of_init, of_others] = [true, false].map(|by_init| reached(objects, &names, opened(&names, by_init)));
    let owner = |(at, object): (usize, &Object)| match table.known(object) {
        Some(known) => known.owner,
        None if of_init[at] && !of_others[at] => Owner::Mpi,
        None => Owner::Unknown,
    };
    objects.iter().enumerate().map(owner).collect()
}

impl Table {
    fn known(&self, object: &Object) -> Option<&Known> {
        self.known.iter().find(|known| known.is_there() && known.is(object))
    }

    /// Forgets what is not there any more.
    fn refresh(&self) {
        let unloaded = unloaded();
        if unloaded == self.unloaded.load(Ordering::Acquire) {
            return;
        }
        let objects = loaded();
        for known in self.known.iter().filter(|known| known.is_there()) {
            if !objects.iter().any(|object| known.is(object)) {
                known.there.store(false, Ordering::Release);
            }
        }
        self.unloaded.store(unloaded, Ordering::Release);
    }
}

/// The table, without what is not there any more.
fn refreshed() -> Option<&'static Table> {
    let table = table().filter(|table| table.process == page::pid())?;
    table.refresh();
    Some(table)
}

/// Whether `MPI_Init` has been entered.
pub(crate) fn is_initialized() -> bool {
    table().is_some()
}

/// Whose the code at this address is. Before `MPI_Init` the MPI is what is loaded as such by now: its libraries may do things
/// while they are loaded.
pub(crate) fn of(address: usize) -> Owner {
    if !is_initialized() {
        let Some(native) = find(c"PMPI_Init") else { return Owner::Program };
        let objects = loaded();
        let of_mpi = mpi_of(&objects, native);
        let found = objects.iter().zip(of_mpi).any(|(object, of_mpi)| of_mpi && object.range.contains(&address));
        return if found { Owner::Mpi } else { Owner::Program };
    }
    if CLOSED.load(Ordering::Acquire) {
        return Owner::Program;
    }
    let Some(table) = refreshed() else { return Owner::Program };
    if let Some(known) = table.known.iter().find(|known| known.is_there() && known.range.contains(&address)) {
        return known.owner;
    }
    if !table.initializing {
        return Owner::Program;
    }
    let objects = loaded();
    // Code that is in no object, a just-in-time compiler's, is the program's.
    let at = objects.iter().position(|object| object.range.contains(&address));
    at.map_or(Owner::Program, |at| owners(table, &objects)[at])
}
