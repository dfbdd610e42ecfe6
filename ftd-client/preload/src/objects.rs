//! The loaded objects, and which of them belong to the MPI.

use crate::native::find;
use std::ffi::{CStr, CString, c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, Ordering};

#[cfg(target_pointer_width = "64")]
type Header = libc::Elf64_Phdr;

/// A loaded object, as it was when [`loaded`] looked.
#[derive(Debug)]
pub(crate) struct Object {
    /// Its file; empty for the program itself.
    pub(crate) path: CString,
    /// Addresses.
    pub(crate) range: Range<usize>,
    /// What is added to the addresses in its file.
    pub(crate) base: usize,
    /// Tables of relocations: address and bytes.
    pub(crate) relocations: Vec<(usize, usize)>,
    /// Tables of symbols and of strings.
    pub(crate) symbols: Option<(usize, usize)>,
    /// Addresses that are read-only once it is relocated.
    pub(crate) relro: Range<usize>,
    soname: Vec<u8>,
    needed: Vec<Vec<u8>>,
}

impl Object {
    /// Whether another object's dependency means this one.
    fn is_called(&self, name: &[u8]) -> bool {
        let path = self.path.as_bytes();
        self.soname == name || path.rsplit(|byte| *byte == b'/').next() == Some(name)
    }
}

/// All loaded objects, in the linker's order.
pub(crate) fn loaded() -> Vec<Object> {
    let mut found: Vec<Object> = Vec::new();
    // SAFETY: the callback gets a pointer to `found`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(describe), (&raw mut found).cast()) };
    found
}

/// Runs under one of the linker's locks: it calls nothing of the linker's, which would take others.
unsafe extern "C" fn describe(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
    // SAFETY: dl_iterate_phdr passes a valid description, and the pointer that loaded() gave it.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<Vec<Object>>()) };
    if info.dlpi_name.is_null() || info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: names of objects are C strings; the program headers are as many as is said, and stay while this runs.
    let (path, headers) =
        unsafe { (CStr::from_ptr(info.dlpi_name), std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into())) };
    let base = info.dlpi_addr as usize;
    let (mut dynamic, mut relro) = (None, 0..0);
    for header in headers {
        let start = base.wrapping_add(header.p_vaddr as usize);
        match header.p_type {
            libc::PT_GNU_RELRO => relro = start..start + header.p_memsz as usize,
            libc::PT_DYNAMIC => dynamic = Some(start as *const Dyn),
            _ => {}
        }
    }
    let mut object = Object {
        path: path.to_owned(),
        range: range_of(base, headers),
        base,
        relocations: Vec::new(),
        symbols: None,
        relro,
        soname: Vec::new(),
        needed: Vec::new(),
    };
    if let Some(dynamic) = dynamic {
        // SAFETY: the object is mapped while this runs, and its dynamic section lies where its header says.
        unsafe { read_dynamic(&mut object, dynamic) };
    }
    found.push(object);
    0
}

fn range_of(base: usize, headers: &[Header]) -> Range<usize> {
    let loads = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let ranges = loads.map(|header| (base.wrapping_add(header.p_vaddr as usize), header.p_memsz as usize));
    let both = |a: Range<usize>, b: Range<usize>| a.start.min(b.start)..a.end.max(b.end);
    ranges.map(|(start, bytes)| start..start + bytes).reduce(both).unwrap_or(0..0)
}

/// Where the loaded objects lie. Much less work than [`loaded`], for this is asked while an MPI loads a hundred of them.
fn ranges() -> Vec<Range<usize>> {
    unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
        // SAFETY: dl_iterate_phdr passes a valid description, and the pointer that ranges() gave it.
        let (info, found) = unsafe { (&*info, &mut *found.cast::<Vec<Range<usize>>>()) };
        if !info.dlpi_phdr.is_null() {
            // SAFETY: the program headers are as many as is said, and stay while this runs.
            let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
            found.push(range_of(info.dlpi_addr as usize, headers));
        }
        0
    }
    let mut found = Vec::with_capacity(256);
    // SAFETY: the callback gets a pointer to `found`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut found).cast()) };
    found
}

/// An entry of the dynamic section.
#[repr(C)]
#[derive(Clone, Copy)]
struct Dyn {
    tag: isize,
    value: usize,
}

const DT_NULL: isize = 0;
const DT_NEEDED: isize = 1;
const DT_STRTAB: isize = 5;
const DT_STRSZ: isize = 10;
const DT_SONAME: isize = 14;
const DT_SYMTAB: isize = 6;
/// Address and size of the tables of relocations.
const TABLES: [(isize, isize); 2] = [(7, 8), (23, 2)];

/// # Safety
/// `dynamic` is the dynamic section of the object, which is mapped.
unsafe fn read_dynamic(object: &mut Object, dynamic: *const Dyn) {
    let entries = || {
        let mut at = dynamic;
        std::iter::from_fn(move || {
            // SAFETY: the section ends with DT_NULL, and nothing is read behind that.
            let entry = unsafe { *at };
            // SAFETY: as above.
            at = unsafe { at.add(1) };
            (entry.tag != DT_NULL).then_some(entry)
        })
    };
    let value = |tag| entries().find(|entry: &Dyn| entry.tag == tag).map(|entry| entry.value);
    let (Some(strings), Some(size)) = (value(DT_STRTAB), value(DT_STRSZ)) else { return };
    // The linker has made an address of it in most objects, not in the kernel's.
    let place = |value: usize| if object.range.contains(&value) { value } else { object.base.wrapping_add(value) };
    let strings = place(strings);
    if !object.range.contains(&strings) || !object.range.contains(&(strings + size.saturating_sub(1))) {
        return;
    }
    let text = |offset: usize| -> Vec<u8> {
        if offset >= size {
            return Vec::new();
        }
        // SAFETY: within the table of strings, whose last byte is zero.
        unsafe { CStr::from_ptr((strings + offset) as *const libc::c_char) }.to_bytes().to_vec()
    };
    let tables = TABLES.iter().filter_map(|(table, bytes)| Some((place(value(*table)?), value(*bytes)?)));
    let (relocations, symbols) = (tables.collect(), value(DT_SYMTAB).map(|symbols| (place(symbols), strings)));
    (object.relocations, object.symbols) = (relocations, symbols);
    object.soname = value(DT_SONAME).map(text).unwrap_or_default();
    object.needed = entries().filter(|entry| entry.tag == DT_NEEDED).map(|entry| text(entry.value)).collect();
}

/// Whose code lies where.
struct Table {
    /// Addresses, and whether they are the MPI's.
    ranges: Vec<(Range<usize>, bool)>,
    /// Whose code is at other addresses: while `MPI_Init` runs, what it loads is the MPI's.
    others: bool,
}

/// Replaced as a whole and never freed: an interposed call may be reading it. There are two per `MPI_Init`.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());

fn publish(table: Table) {
    TABLE.store(Box::into_raw(Box::new(table)), Ordering::Release);
}

fn table() -> Option<&'static Table> {
    // SAFETY: null, or a table that is never freed.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

/// `MPI_Init` is about to run: the MPI is the object that holds this address, and all that it needs.
pub(crate) fn init_begins(native: *const c_void) {
    publish(Table { ranges: mpi_of(native), others: true });
}

/// Where the loaded objects lie, and which of them are the MPI with this function.
fn mpi_of(native: *const c_void) -> Vec<(Range<usize>, bool)> {
    let objects = loaded();
    let mut of_mpi: Vec<bool> = objects.iter().map(|object| object.range.contains(&(native as usize))).collect();
    let mut todo: Vec<usize> = (0..objects.len()).filter(|at| of_mpi[*at]).collect();
    while let Some(at) = todo.pop() {
        for name in &objects[at].needed {
            if let Some(next) = objects.iter().position(|object| object.is_called(name)).filter(|next| !of_mpi[*next]) {
                of_mpi[next] = true;
                todo.push(next);
            }
        }
    }
    objects.into_iter().map(|object| object.range).zip(of_mpi).collect()
}

/// `MPI_Init` has returned. What was loaded meanwhile is the MPI's, what is loaded from now on is the program's.
pub(crate) fn init_ended() {
    let ranges = ranges().into_iter().map(|range| (range.clone(), is_of_mpi(range.start))).collect();
    publish(Table { ranges, others: false });
}

/// Whether `MPI_Init` has been entered.
pub(crate) fn is_initialized() -> bool {
    table().is_some()
}

/// Whether code at this address belongs to the MPI. Before `MPI_Init` the MPI is what is loaded as such by now: its libraries
/// may do things while they are loaded.
pub(crate) fn is_of_mpi(address: usize) -> bool {
    let Some(table) = table() else {
        let native = find(c"PMPI_Init");
        return native.is_some_and(|native| is_in(&mpi_of(native), address).unwrap_or(false));
    };
    // Code that is in no object, a just-in-time compiler's, is the program's.
    is_in(&table.ranges, address)
        .unwrap_or_else(|| table.others && ranges().iter().any(|range| range.contains(&address)))
}

fn is_in(ranges: &[(Range<usize>, bool)], address: usize) -> Option<bool> {
    ranges.iter().find(|(range, _)| range.contains(&address)).map(|(_, of_mpi)| *of_mpi)
}
