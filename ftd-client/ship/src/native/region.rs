//! Memory that libfabric may touch.

use super::bindings as fi;
use super::call::{FabricError, check, close};
use super::domain::Domain;
use ft_sys::memory::SharedMap;
use std::ffi::c_void;
use std::io;
use std::marker::PhantomData;
use std::ptr;
use std::rc::Rc;

/// A part of a mapping.
#[derive(Debug, Clone)]
pub struct Slice {
    map: Rc<SharedMap>,
    offset: usize,
    bytes: usize,
}

impl Slice {
    /// This part; nothing, where the mapping does not have it.
    pub fn new(map: Rc<SharedMap>, offset: usize, bytes: usize) -> Option<Slice> {
        let whole = offset.checked_add(bytes).is_some_and(|end| end <= map.len());
        whole.then_some(Slice { map, offset, bytes })
    }

    /// A part of it.
    pub fn part(&self, offset: u64, bytes: u64) -> Option<Slice> {
        let (offset, bytes) = (usize::try_from(offset).ok()?, usize::try_from(bytes).ok()?);
        let whole = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        whole.then(|| Slice { map: Rc::clone(&self.map), offset: self.offset + offset, bytes })
    }

    /// The mapping.
    pub fn map(&self) -> &Rc<SharedMap> {
        &self.map
    }

    /// Its length.
    pub fn len(&self) -> usize {
        self.bytes
    }

    pub(super) fn as_ptr(&self) -> *mut c_void {
        self.map.as_ptr().wrapping_add(self.offset).cast()
    }
}

/// An endpoint by which others come to a region.
#[derive(Debug, Clone, Copy)]
pub struct Host<'a>(*mut fi::fid, PhantomData<&'a ()>);

impl Host<'_> {
    pub(super) fn new(fid: *mut fi::fid) -> Self {
        Host(fid, PhantomData)
    }
}

/// Who may do what with a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// This process's moves.
    Own,
    /// Another process may read.
    Read,
    /// Another process may write and read.
    Write,
}

/// A registered slice. While it is there its memory is.
#[derive(Debug)]
pub struct Region {
    mr: *mut fi::fid_mr,
    domain: Rc<Domain>,
    slice: Slice,
}

impl Region {
    /// Whether this process's own moves need a region, with this provider.
    pub fn is_needed_for_own(domain: &Domain) -> bool {
        domain.info().wants(fi::FI_MR_LOCAL)
    }

    /// Registers it, for who comes to this endpoint.
    ///
    /// # Errors
    /// As libfabric; `EKEYREJECTED` where nobody gives a key that cannot be guessed.
    pub fn register(domain: &Rc<Domain>, at: Host<'_>, slice: Slice, access: Access) -> Result<Region, FabricError> {
        let flags = match access {
            Access::Own => u64::from(fi::FI_READ | fi::FI_WRITE),
            Access::Read => u64::from(fi::FI_REMOTE_READ),
            Access::Write => u64::from(fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE),
        };
        let key = if domain.info().wants(fi::FI_MR_PROV_KEY) { 0 } else { random_key(domain.info().key_bytes())? };
        let mut mr = ptr::null_mut();
        // SAFETY: the slice lies in a mapping that it holds, and that lives until the region is closed.
        let code = unsafe {
            fi::fi_mr_reg(domain.raw(), slice.as_ptr(), slice.len(), flags, 0, key, 0, &mut mr, ptr::null_mut())
        };
        check("fi_mr_reg", code)?;
        let region = Region { mr, domain: Rc::clone(domain), slice };
        if domain.info().wants(fi::FI_MR_ENDPOINT) {
            // SAFETY: both are open, and the endpoint outlives all regions that are bound to it.
            let code = unsafe { fi::fi_mr_bind(mr, at.0, 0) };
            check("fi_mr_bind", code)?;
            // SAFETY: it is bound.
            check("fi_mr_enable", unsafe { fi::fi_mr_enable(mr) })?;
        }
        Ok(region)
    }

    /// Address and key by which other nodes reach it.
    pub fn target(&self) -> (u64, u64) {
        let base = if self.domain.info().wants(fi::FI_MR_VIRT_ADDR) { self.slice.as_ptr() as u64 } else { 0 };
        // SAFETY: it is open.
        (base, unsafe { fi::fi_mr_key(self.mr) })
    }

    pub(super) fn descriptor(&self) -> *mut c_void {
        // SAFETY: it is open.
        unsafe { fi::fi_mr_desc(self.mr) }
    }

    /// Closes it. What another process has begun to write there goes into nothing from now on; so does what anybody else does
    /// with the mapping.
    ///
    /// # Errors
    /// As [`Domain::retire`].
    pub fn hide(self) -> io::Result<()> {
        let (domain, map) = (Rc::clone(&self.domain), Rc::clone(self.slice.map()));
        drop(self);
        domain.retire(map)
    }

    /// Closes it, where nobody writes there any more. The mapping, unless somebody else has it, too.
    pub fn finish(self) -> Option<Rc<SharedMap>> {
        let map = Rc::clone(self.slice.map());
        drop(self);
        (Rc::strong_count(&map) == 1).then_some(map)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: nobody else knows it.
        if !unsafe { close(&mut (*self.mr).fid) } {
            // It may still be written to.
            std::mem::forget(self.slice.clone());
        }
    }
}

/// Of as many bytes as the provider takes.
fn random_key(bytes: usize) -> Result<u64, FabricError> {
    let mut key = [0; 8];
    let error = |errno: rustix::io::Errno| FabricError { call: "getrandom", code: errno.raw_os_error() };
    let used = &mut key[..bytes.min(8)];
    let count = rustix::rand::getrandom(&mut *used, rustix::rand::GetRandomFlags::empty()).map_err(error)?;
    if count < used.len() || count == 0 {
        return Err(FabricError { call: "getrandom", code: libc::EKEYREJECTED });
    }
    Ok(u64::from_le_bytes(key))
}
