//! Making what libpmix reads.

use super::read::slice;
use super::{SUCCESS, Status, sys};
use crate::PmixError;
use crate::job::{Info, Value};
use ft_wire::Rank;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;

pub(super) fn put_text(array: &mut [c_char], text: &str) {
    // One place stays free for the NUL.
    let room = array.len() - 1;
    for (place, byte) in array[..room].iter_mut().zip(text.bytes()) {
        *place = byte as c_char;
    }
}

pub(super) fn proc_to(nspace: &str, rank: Rank) -> sys::pmix_proc_t {
    let mut proc = sys::pmix_proc_t { nspace: [0; 256], rank };
    put_text(&mut proc.nspace, nspace);
    proc
}

/// An array of `pmix_info_t` that owns what its values point to.
pub(super) struct Infos(pub(super) Vec<sys::pmix_info_t>);

// SAFETY: the values point to memory that this array alone owns.
unsafe impl Send for Infos {}

impl Infos {
    pub(super) fn new(infos: Vec<Info>) -> Result<Self, PmixError> {
        let mut all = Infos(Vec::with_capacity(infos.len()));
        for Info { key, value } in infos {
            match value {
                Value::Text(text) => {
                    let text = CString::new(text).unwrap_or_default();
                    all.load(key, text.as_ptr().cast(), sys::PMIX_STRING)?;
                }
                Value::NodeMap(list) => all.load_map(key, &list, sys::PMIx_generate_regex, "PMIx_generate_regex")?,
                Value::ProcMap(list) => all.load_map(key, &list, sys::PMIx_generate_ppn, "PMIx_generate_ppn")?,
                Value::U32(number) => all.load(key, ptr::from_ref(&number).cast(), sys::PMIX_UINT32)?,
                Value::U16(number) => all.load(key, ptr::from_ref(&number).cast(), sys::PMIX_UINT16)?,
                Value::Rank(rank) => all.load(key, ptr::from_ref(&rank).cast(), sys::PMIX_PROC_RANK)?,
                Value::Bool(yes) => all.load(key, ptr::from_ref(&yes).cast(), sys::PMIX_BOOL)?,
                Value::Infos(infos) => {
                    let mut inner = Infos::new(infos)?;
                    let array = sys::pmix_data_array_t {
                        type_: sys::PMIX_INFO as _,
                        size: inner.0.len(),
                        array: inner.0.as_mut_ptr().cast(),
                    };
                    // libpmix copies the array and what its values point to.
                    all.load(key, ptr::from_ref(&array).cast(), sys::PMIX_DATA_ARRAY)?;
                }
            }
        }
        Ok(all)
    }

    /// From keys and packed values. What does not unpack is left out.
    pub(super) fn unpacked(packed: &[(String, Vec<u8>)]) -> Self {
        let mut all = Infos(Vec::with_capacity(packed.len()));
        for (key, bytes) in packed {
            let Some(value) = unpack(bytes) else {
                tracing::warn!(key, "a value that cannot be read");
                continue;
            };
            // SAFETY: all zero is a valid `pmix_info_t`: an empty key and an undefined value.
            let mut info: sys::pmix_info_t = unsafe { std::mem::zeroed() };
            put_text(&mut info.key, key);
            info.value = value;
            all.0.push(info);
        }
        all
    }

    /// `data` points to a value of the type `kind` (for strings: to their first byte).
    pub(super) fn load(&mut self, key: &CStr, data: *const c_void, kind: u32) -> Result<(), PmixError> {
        // SAFETY: all zero is a valid `pmix_info_t`: an empty key and an undefined value.
        let mut info: sys::pmix_info_t = unsafe { std::mem::zeroed() };
        // SAFETY: `new` and `load_map` pass data of the type that `kind` names; libpmix copies them.
        let status = Status(unsafe { sys::PMIx_Info_load(&mut info, key.as_ptr(), data, kind as _) });
        self.0.push(info);
        status.result("PMIx_Info_load")
    }

    fn load_map(
        &mut self,
        key: &CStr,
        list: &str,
        generate: unsafe extern "C" fn(*const c_char, *mut *mut c_char) -> sys::pmix_status_t,
        call: &'static str,
    ) -> Result<(), PmixError> {
        let list = CString::new(list).unwrap_or_default();
        let mut map = ptr::null_mut();
        // SAFETY: a string in, and a place for a pointer to an allocated answer (which may hold NULs).
        Status(unsafe { generate(list.as_ptr(), &mut map) }).result(call)?;
        let loaded = self.load(key, map.cast(), sys::PMIX_REGEX);
        // SAFETY: allocated by libpmix with malloc, for the caller to free; `load` has copied it.
        unsafe { libc::free(map.cast()) };
        loaded
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut sys::pmix_info_t {
        self.0.as_mut_ptr()
    }
}

impl Drop for Infos {
    fn drop(&mut self) {
        for info in &mut self.0 {
            // SAFETY: each value was made by `PMIx_Info_load` or `unpack` and is destructed once.
            unsafe { sys::PMIx_Value_destruct(&mut info.value) };
        }
    }
}

/// The value as bytes that only libpmix understands; empty when it cannot be packed.
///
/// # Safety
/// `value` is a sound value.
pub(super) unsafe fn pack(value: &sys::pmix_value_t) -> Vec<u8> {
    // SAFETY: all zero is an empty buffer.
    let mut buffer: sys::pmix_data_buffer_t = unsafe { std::mem::zeroed() };
    // SAFETY: all zero is an empty object.
    let mut object: sys::pmix_byte_object_t = unsafe { std::mem::zeroed() };
    let source = ptr::from_ref(value).cast_mut().cast();
    // SAFETY: one value is packed into an empty buffer; packing does not change it. A null target means "ourselves".
    let status = unsafe { sys::PMIx_Data_pack(ptr::null(), &mut buffer, source, 1, sys::PMIX_VALUE as _) };
    let mut bytes = Vec::new();
    // SAFETY: the buffer's memory moves over into the object, which is freed below.
    if status == SUCCESS && unsafe { sys::PMIx_Data_unload(&mut buffer, &mut object) } == SUCCESS {
        // SAFETY: the object describes its bytes.
        bytes.extend_from_slice(unsafe { slice(object.bytes.cast::<u8>(), object.size) });
    }
    // SAFETY: both pointers are null or come from malloc and are owned here.
    unsafe {
        libc::free(object.bytes.cast());
        libc::free(buffer.base_ptr.cast());
    }
    bytes
}

/// The reverse of [`pack`].
pub(super) fn unpack(bytes: &[u8]) -> Option<sys::pmix_value_t> {
    // SAFETY: all zero is an empty buffer.
    let mut buffer: sys::pmix_data_buffer_t = unsafe { std::mem::zeroed() };
    // SAFETY: all zero is an undefined value.
    let mut value: sys::pmix_value_t = unsafe { std::mem::zeroed() };
    // SAFETY: `malloc` of at least one byte; checked for null below.
    let copy = unsafe { libc::malloc(bytes.len().max(1)) };
    if copy.is_null() {
        return None;
    }
    // SAFETY: `copy` has room for all bytes and does not overlap them.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), copy.cast(), bytes.len()) };
    let mut object = sys::pmix_byte_object_t { bytes: copy.cast(), size: bytes.len() };
    let mut count = 1;
    // SAFETY: the object's memory moves over into the buffer (on failure it stays with the object); one value is
    // unpacked; what is left is freed once.
    unsafe {
        let loaded = sys::PMIx_Data_load(&mut buffer, &mut object);
        let unpacked = loaded == SUCCESS
            && sys::PMIx_Data_unpack(
                ptr::null(),
                &mut buffer,
                ptr::from_mut(&mut value).cast(),
                &mut count,
                sys::PMIX_VALUE as _,
            ) == SUCCESS;
        if loaded != SUCCESS {
            libc::free(copy);
        }
        libc::free(buffer.base_ptr.cast());
        (unpacked && count == 1).then_some(value)
    }
}
