//! Finding the native functions behind the interposed ones.

use crate::objects::loaded;
use crate::probe::dlsym;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where a function lies that this library stands in front of.
pub(crate) struct Native {
    name: &'static CStr,
    at: AtomicUsize,
}

impl Native {
    pub(crate) const fn new(name: &'static CStr) -> Native {
        Native { name, at: AtomicUsize::new(0) }
    }

    pub(crate) fn look(&self) -> usize {
        let found = dlsym(libc::RTLD_NEXT, self.name) as usize;
        self.at.store(found, Ordering::Release);
        found
    }

    /// 0 where there is none. Libraries that are initialized before this one may call it, too.
    pub(crate) fn get(&self) -> usize {
        match self.at.load(Ordering::Acquire) {
            0 => self.look(),
            known => known,
        }
    }
}

/// Address of the native function `name`, if any loaded object defines it.
///
/// The next one in the global scope is right for linked programs. A libmpi that Python or a plug-in loaded with
/// `RTLD_LOCAL` is not in that scope; it is found among the loaded objects.
pub(crate) fn find(name: &CStr) -> Option<*mut c_void> {
    let next = dlsym(libc::RTLD_NEXT, name);
    if !next.is_null() {
        return Some(next);
    }
    let own = find as *const () as usize;
    let others = loaded().into_iter().filter(|object| !object.range.contains(&own));
    // The program itself has an empty name, and its handle would search the global scope.
    others.filter(|object| !object.path.is_empty()).find_map(|object| {
        // SAFETY: RTLD_NOLOAD only looks up what is loaded.
        let handle = unsafe { libc::dlopen(object.path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            return None;
        }
        let address = dlsym(handle, name);
        // SAFETY: gives back the reference that dlopen took; the object stays loaded, others hold it.
        unsafe { libc::dlclose(handle) };
        (!address.is_null() && !is_own(address)).then_some(address)
    })
}

/// Whether an address lies in this library.
fn is_own(address: *const c_void) -> bool {
    object_of(address) == object_of(find as *const c_void)
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
