//! What endpoints and memory regions belong to.

use super::bindings as fi;
use super::call::{FabricError, check, close};
use super::info::Info;
use ft_sys::memory::SharedMap;
use std::cell::{Cell, RefCell};
use std::io;
use std::ptr;
use std::rc::Rc;

/// An open domain of a provider. Endpoints and regions hold it.
#[derive(Debug)]
pub struct Domain {
    fabric: *mut fi::fid_fabric,
    domain: *mut fi::fid_domain,
    info: Info,
    /// Addresses that a peer may still write to, with nothing of anybody's behind them.
    retired: RefCell<Retired>,
    left_open: Cell<usize>,
}

#[derive(Debug, Default)]
struct Retired {
    maps: Vec<Rc<SharedMap>>,
    bytes: u64,
}

impl Domain {
    /// Opens what was found.
    ///
    /// # Errors
    /// As libfabric.
    pub fn open(info: Info) -> Result<Domain, FabricError> {
        let mut fabric = ptr::null_mut();
        // SAFETY: the attributes belong to `info`, which lives; what is opened is closed in `drop`.
        let code = unsafe { fi::fi_fabric((*info.raw()).fabric_attr, &mut fabric, ptr::null_mut()) };
        check("fi_fabric", code)?;
        let mut domain =
            Domain { fabric, domain: ptr::null_mut(), info, retired: RefCell::default(), left_open: Cell::new(0) };
        // SAFETY: the fabric is open; as above.
        let code = unsafe { fi::fi_domain(fabric, domain.info.raw(), &mut domain.domain, ptr::null_mut()) };
        check("fi_domain", code)?;
        Ok(domain)
    }

    /// What it was opened with.
    pub fn info(&self) -> &Info {
        &self.info
    }

    pub(super) fn fabric(&self) -> *mut fi::fid_fabric {
        self.fabric
    }

    pub(super) fn raw(&self) -> *mut fi::fid_domain {
        self.domain
    }

    /// Takes the file from behind a mapping and keeps its addresses from ever being used again: who was told them, and has not
    /// heard yet that they are no more, writes into nothing.
    ///
    /// # Errors
    /// The file could not be taken away. Only the end of this process does that now.
    pub fn retire(&self, map: Rc<SharedMap>) -> io::Result<()> {
        map.detach()?;
        let mut retired = self.retired.borrow_mut();
        retired.bytes += map.len() as u64;
        retired.maps.push(map);
        Ok(())
    }

    /// How many mappings are kept like that, and how many bytes of addresses they take.
    pub fn retired(&self) -> (usize, u64) {
        let retired = self.retired.borrow();
        (retired.maps.len(), retired.bytes)
    }

    /// An endpoint stays open for good.
    pub(super) fn leave_open(&self) {
        self.left_open.set(self.left_open.get() + 1);
    }

    /// How many endpoints were left open.
    pub fn left_open(&self) -> usize {
        self.left_open.get()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if self.left_open.get() > 0 {
            // They belong to it, and end with this process.
            std::mem::forget(std::mem::take(&mut *self.retired.borrow_mut()));
            return;
        }
        // SAFETY: endpoints and regions hold the domain: there are none any more.
        let closed =
            unsafe { (self.domain.is_null() || close(&mut (*self.domain).fid)) && close(&mut (*self.fabric).fid) };
        if !closed {
            // Something in there may still write.
            std::mem::forget(std::mem::take(&mut *self.retired.borrow_mut()));
        }
    }
}
