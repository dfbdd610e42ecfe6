//! The loaded objects.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int, c_void};
use std::ops::Range;

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

/// The last part of a path.
fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// What the objects are called, for [`reached`].
pub(crate) struct Names<'a>(HashMap<&'a [u8], usize>);

impl<'a> Names<'a> {
    /// Of two with one name the first in the linker's order counts, as for the linker.
    pub(crate) fn of(objects: &'a [Object]) -> Self {
        let mut names = HashMap::with_capacity(3 * objects.len());
        for (at, object) in objects.iter().enumerate() {
            let path = object.path.as_bytes();
            for name in [path, file_name(path), &object.soname] {
                names.entry(name).or_insert(at);
            }
        }
        names.remove(b"".as_slice());
        Self(names)
    }

    /// The object that a call of `dlopen` with this name means, if it is loaded.
    pub(crate) fn opened_as(&self, name: &[u8]) -> Option<usize> {
        // The linker replaces `$ORIGIN` and its like.
        let name = if name.contains(&b'$') { file_name(name) } else { name };
        self.0.get(name).copied()
    }
}

/// Which objects are among these, or needed by them.
pub(crate) fn reached(objects: &[Object], names: &Names, from: impl IntoIterator<Item = usize>) -> Vec<bool> {
    let mut todo: Vec<usize> = from.into_iter().collect();
    let mut reached = vec![false; objects.len()];
    while let Some(at) = todo.pop() {
        if !std::mem::replace(&mut reached[at], true) {
            todo.extend(objects[at].needed.iter().filter_map(|name| names.0.get(name.as_slice())));
        }
    }
    reached
}

/// How many objects were unloaded in this process's life: cheap, for it looks at none.
pub(crate) fn unloaded() -> u64 {
    unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
        // SAFETY: dl_iterate_phdr passes a valid description, and the pointer that unloaded() gave it.
        let (info, found) = unsafe { (&*info, &mut *found.cast::<u64>()) };
        *found = info.dlpi_subs;
        1
    }
    let mut found = 0u64;
    // SAFETY: the callback gets a pointer to `found`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut found).cast()) };
    found
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
