//! Finding the native functions behind the interposed ones.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

/// Address of the native function `name`, if any loaded object defines it.
///
/// The next one in the global scope is right for linked programs. A libmpi that Python or a plug-in loaded with
/// `RTLD_LOCAL` is not in that scope; it is found among the loaded objects.
pub(crate) fn find(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is a C string.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if !next.is_null() {
        return Some(next);
    }
    let mut search = Search { name, own: object_of(find as *const c_void), found: None };
    // SAFETY: the callback gets a pointer to `search`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found
}

struct Search<'a> {
    name: &'a CStr,
    own: Option<PathBuf>,
    found: Option<*mut c_void>,
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: dl_iterate_phdr passes a valid description, and the pointer that find() gave it.
    let (path, search) = unsafe { ((*info).dlpi_name, &mut *search.cast::<Search<'_>>()) };
    if path.is_null() {
        return 0;
    }
    // SAFETY: names of objects are C strings.
    let path = unsafe { CStr::from_ptr(path) };
    // The program itself has an empty name, and its handle would search the global scope.
    if path.is_empty() {
        return 0;
    }
    // SAFETY: RTLD_NOLOAD only looks up what is loaded.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return 0;
    }
    // SAFETY: the handle is open, the name a C string.
    let address = unsafe { libc::dlsym(handle, search.name.as_ptr()) };
    // SAFETY: gives back the reference that dlopen took; the object stays loaded, others hold it.
    unsafe { libc::dlclose(handle) };
    if address.is_null() || object_of(address) == search.own {
        return 0;
    }
    search.found = Some(address);
    1
}

/// File of the object that contains an address.
pub(crate) fn object_of(address: *const c_void) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: an all-zero Dl_info is a valid value of the type.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid for the call; any address may be asked for.
    if unsafe { libc::dladdr(address, &mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: names of objects are C strings.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(Path::new(std::ffi::OsStr::from_bytes(name.to_bytes())).to_path_buf())
}

/// What `MPI_Get_library_version` says. It may be called before `MPI_Init`.
pub(crate) fn library_version() -> Option<String> {
    // MPI_MAX_LIBRARY_VERSION_STRING is 8192 in MPICH, less elsewhere.
    const ROOM: usize = 64 << 10;
    let function = find(c"MPI_Get_library_version")?;
    // SAFETY: this is the function's type in every MPI.
    let function: unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int = unsafe { std::mem::transmute(function) };
    let mut text = vec![0u8; ROOM];
    let mut length: c_int = 0;
    // SAFETY: the buffer is larger than any MPI's longest version string.
    if unsafe { function(text.as_mut_ptr().cast(), &mut length) } != 0 {
        return None;
    }
    text.truncate(usize::try_from(length).unwrap_or(0).min(ROOM));
    let text = String::from_utf8_lossy(&text);
    Some(text.lines().next().unwrap_or("").trim_matches(['\0', ' ']).to_string())
}
