//! What a provider offers.

use super::bindings as fi;
use super::call::{FabricError, check};
use std::ffi::{CStr, CString};
use std::net::IpAddr;
use std::ptr;

/// The oldest version of the interface that has all that is used here.
const VERSION: u32 = (1 << 16) | 14;

/// How memory has to be registered, of what libfabric may ask: all of this is done.
const MR_MODE: u32 =
    fi::FI_MR_LOCAL | fi::FI_MR_VIRT_ADDR | fi::FI_MR_ALLOCATED | fi::FI_MR_PROV_KEY | fi::FI_MR_ENDPOINT;

/// What a provider offers for unconnected endpoints that write to and read from others' memory.
#[derive(Debug)]
pub struct Info {
    list: *mut fi::fi_info,
}

impl Info {
    /// The best that the provider has; on this address, if it is given.
    ///
    /// # Errors
    /// There is none.
    pub fn find(provider: &str, address: Option<IpAddr>) -> Result<Info, FabricError> {
        let hints = Hints::new(provider)?;
        let node = address.and_then(|address| CString::new(address.to_string()).ok());
        let flags = if node.is_some() { fi::FI_SOURCE | fi::FI_NUMERICHOST } else { 0 };
        let node = node.as_ref().map_or(ptr::null(), |node| node.as_ptr());
        let mut list = ptr::null_mut();
        // SAFETY: strings and hints live during the call; the list becomes this program's.
        let code = unsafe { fi::fi_getinfo(VERSION, node, ptr::null(), flags, hints.0, &mut list) };
        check("fi_getinfo", code)?;
        if list.is_null() { Err(FabricError { call: "fi_getinfo", code: libc::ENODATA }) } else { Ok(Info { list }) }
    }

    pub(super) fn raw(&self) -> *mut fi::fi_info {
        self.list
    }

    fn domain(&self) -> &fi::fi_domain_attr {
        // SAFETY: libfabric fills all attributes in, and the list lives as long as `self`.
        unsafe { &*(*self.list).domain_attr }
    }

    /// The provider's name.
    pub fn provider(&self) -> String {
        // SAFETY: as in `domain`; a name is a string or null.
        unsafe {
            let name = (*(*self.list).fabric_attr).prov_name;
            if name.is_null() { String::new() } else { CStr::from_ptr(name).to_string_lossy().into_owned() }
        }
    }

    /// Whether it wants this of [`MR_MODE`].
    pub(super) fn wants(&self, mode: u32) -> bool {
        self.domain().mr_mode as u32 & mode != 0
    }

    /// A key of a region has so many bytes.
    pub(super) fn key_bytes(&self) -> usize {
        self.domain().mr_key_size
    }

    /// Whether an endpoint may be closed while what it reads comes in: libfabric's TCP provider before 1.18 frees a half read piece
    /// twice then.
    pub(super) fn can_close_while_reading(&self) -> bool {
        // SAFETY: takes nothing and returns a number.
        let version = unsafe { fi::fi_version() };
        version >= (1 << 16) | 18 || !self.provider().starts_with("tcp")
    }

    /// The longest piece that one call moves.
    pub fn longest_piece(&self) -> u64 {
        // SAFETY: as in `domain`.
        unsafe { (*(*self.list).ep_attr).max_msg_size as u64 }
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: the list is this one's own, and all that was opened with it has copied what it needs.
        unsafe { fi::fi_freeinfo(self.list) };
    }
}

/// What is asked for.
struct Hints(*mut fi::fi_info);

impl Hints {
    fn new(provider: &str) -> Result<Hints, FabricError> {
        let name = CString::new(provider).map_err(|_| FabricError { call: "provider", code: libc::EINVAL })?;
        // SAFETY: of nothing it makes an empty one, with all attributes.
        let hints = unsafe { fi::fi_dupinfo(ptr::null()) };
        if hints.is_null() {
            return Err(FabricError { call: "fi_allocinfo", code: libc::ENOMEM });
        }
        let hints = Hints(hints);
        // SAFETY: they are there, and this one's own; the name is freed with them, as what `malloc` gave.
        unsafe {
            let info = &mut *hints.0;
            info.caps = u64::from(fi::FI_RMA);
            info.mode = fi::FI_CONTEXT | fi::FI_CONTEXT2;
            (*info.ep_attr).type_ = fi::FI_EP_RDM;
            (*info.fabric_attr).prov_name = libc::strdup(name.as_ptr());
            (*info.tx_attr).op_flags = u64::from(fi::FI_DELIVERY_COMPLETE);
            let domain = &mut *info.domain_attr;
            domain.mr_mode = MR_MODE as i32;
            domain.threading = fi::FI_THREAD_DOMAIN;
            domain.control_progress = fi::FI_PROGRESS_MANUAL;
            domain.data_progress = fi::FI_PROGRESS_MANUAL;
            domain.resource_mgmt = fi::FI_RM_ENABLED;
        }
        Ok(hints)
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        // SAFETY: this one's own.
        unsafe { fi::fi_freeinfo(self.0) };
    }
}
