//! An endpoint, and the pieces that are under way from it.

use super::bindings as fi;
use super::call::{FabricError, check, close};
use super::domain::Domain;
use super::region::{Host, Region, Slice};
use ft_wire::ship::Direction;
use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr;
use std::rc::Rc;

/// So many pieces are under way from one endpoint at once.
pub const SLOTS: usize = 16;

/// Completions that are read at once.
const READ: usize = 16;

/// Another endpoint, as this one names it.
#[derive(Debug, Clone, Copy)]
pub struct Destination(fi::fi_addr_t);

/// A part of a move.
#[derive(Debug)]
pub struct Piece<'a> {
    /// Which way.
    pub direction: Direction,
    /// The memory of this process.
    pub slice: Slice,
    /// Its registration, where one is needed.
    pub region: Option<&'a Rc<Region>>,
    /// The other endpoint.
    pub to: Destination,
    /// Where in the other's window.
    pub address: u64,
    /// The window's key.
    pub key: u64,
}

/// A piece is not under way any more.
#[derive(Debug)]
pub struct Completion {
    /// Its number, from [`Endpoint::start`].
    pub slot: usize,
    /// It has moved.
    pub result: Result<(), FabricError>,
}

/// What libfabric writes into while a piece is under way, and knows it by.
#[repr(transparent)]
struct Context(fi::fi_context2);

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Context")
    }
}

/// Room for a piece under way.
#[derive(Debug)]
struct Slot {
    context: Box<Context>,
    held: Option<Held>,
}

/// What stays where it is until the piece has come back.
#[derive(Debug)]
struct Held {
    _memory: (Slice, Option<Rc<Region>>),
    direction: Direction,
}

/// An endpoint with its completion queue and its table of addresses.
#[derive(Debug)]
pub struct Endpoint {
    domain: Rc<Domain>,
    ep: *mut fi::fid_ep,
    cq: *mut fi::fid_cq,
    av: *mut fi::fid_av,
    wait_fd: Option<RawFd>,
    slots: Vec<Slot>,
}

impl Endpoint {
    /// Opens one on an address that nobody has.
    ///
    /// # Errors
    /// As libfabric.
    pub fn open(domain: &Rc<Domain>) -> Result<Endpoint, FabricError> {
        let empty = || Context(fi::fi_context2 { internal: [ptr::null_mut(); 8] });
        let slots = (0..SLOTS).map(|_| Slot { context: Box::new(empty()), held: None }).collect();
        let null = ptr::null_mut::<c_void>();
        let (ep, cq, av) = (null.cast(), null.cast(), null.cast());
        let mut endpoint = Endpoint { domain: Rc::clone(domain), ep, cq, av, wait_fd: None, slots };
        endpoint.open_queue()?;
        // SAFETY: the domain is open; nothing in an address table's attributes is a must.
        unsafe {
            let mut attributes: fi::fi_av_attr = std::mem::zeroed();
            check("fi_av_open", fi::fi_av_open(domain.raw(), &mut attributes, &mut endpoint.av, null))?;
            check("fi_endpoint", fi::fi_endpoint(domain.raw(), domain.info().raw(), &mut endpoint.ep, null))?;
            let both = u64::from(fi::FI_TRANSMIT | fi::FI_RECV);
            check("fi_ep_bind", fi::fi_ep_bind(endpoint.ep, &mut (*endpoint.cq).fid, both))?;
            check("fi_ep_bind", fi::fi_ep_bind(endpoint.ep, &mut (*endpoint.av).fid, 0))?;
            check("fi_enable", fi::fi_enable(endpoint.ep))?;
        }
        Ok(endpoint)
    }

    /// The queue can be waited for by a descriptor, if the provider has such ones.
    fn open_queue(&mut self) -> Result<(), FabricError> {
        // SAFETY: the domain is open; nothing else in a queue's attributes is a must.
        unsafe {
            let mut attributes: fi::fi_cq_attr = std::mem::zeroed();
            attributes.format = fi::FI_CQ_FORMAT_CONTEXT;
            attributes.wait_obj = fi::FI_WAIT_FD;
            if fi::fi_cq_open(self.domain.raw(), &mut attributes, &mut self.cq, ptr::null_mut()) == 0 {
                let mut fd: c_int = -1;
                let at: *mut c_void = ptr::from_mut(&mut fd).cast();
                check("fi_control", fi::fi_control(&mut (*self.cq).fid, fi::FI_GETWAIT as c_int, at))?;
                self.wait_fd = Some(fd);
                return Ok(());
            }
            attributes.wait_obj = fi::FI_WAIT_NONE;
            check("fi_cq_open", fi::fi_cq_open(self.domain.raw(), &mut attributes, &mut self.cq, ptr::null_mut()))?;
        }
        Ok(())
    }

    fn fid(&self) -> *mut fi::fid {
        // SAFETY: it is open.
        unsafe { &mut (*self.ep).fid }
    }

    /// As what regions are bound to, which it has to outlive.
    pub fn host(&self) -> Host<'_> {
        Host::new(self.fid())
    }

    /// By what others find it.
    ///
    /// # Errors
    /// As libfabric.
    pub fn name(&self) -> Result<Vec<u8>, FabricError> {
        let mut name = vec![0; 512];
        let mut length = name.len();
        // SAFETY: no more is written than there is room for.
        check("fi_getname", unsafe { fi::fi_getname(self.fid(), name.as_mut_ptr().cast(), &mut length) })?;
        name.truncate(length);
        Ok(name)
    }

    /// Makes another endpoint known.
    ///
    /// # Errors
    /// It is no address of this provider's.
    pub fn know(&mut self, name: &[u8]) -> Result<Destination, FabricError> {
        // Providers read as much as an address of theirs has, whatever there is.
        let mut padded = name.to_vec();
        padded.resize(name.len().max(512), 0);
        let mut address = 0;
        // SAFETY: no address of any provider is longer than what is there.
        let count = unsafe { fi::fi_av_insert(self.av, padded.as_ptr().cast(), 1, &mut address, 0, ptr::null_mut()) };
        match check("fi_av_insert", count)? {
            1 => Ok(Destination(address)),
            _ => Err(FabricError { call: "fi_av_insert", code: libc::EINVAL }),
        }
    }

    /// Starts a piece; its number. Nothing, when the provider does not take one now, because it has too many or has not reached
    /// the other yet.
    ///
    /// # Errors
    /// As libfabric.
    pub fn start(&mut self, piece: Piece<'_>) -> Result<Option<usize>, FabricError> {
        let Some(number) = self.slots.iter().position(|slot| slot.held.is_none()) else { return Ok(None) };
        let slot = &mut self.slots[number];
        let iov = fi::iovec { iov_base: piece.slice.as_ptr(), iov_len: piece.slice.len() };
        let remote = fi::fi_rma_iov { addr: piece.address, len: piece.slice.len(), key: piece.key };
        let mut descriptor = piece.region.map_or(ptr::null_mut(), |region| region.descriptor());
        let message = fi::fi_msg_rma {
            msg_iov: &iov,
            desc: &mut descriptor,
            iov_count: 1,
            addr: piece.to.0,
            rma_iov: &remote,
            rma_iov_count: 1,
            context: ptr::from_mut(slot.context.as_mut()).cast(),
            data: 0,
        };
        let done = u64::from(fi::FI_COMPLETION | fi::FI_DELIVERY_COMPLETE);
        // SAFETY: libfabric copies the message. Memory, registration and context are held by the slot until the piece has come back or
        // the endpoint is closed.
        let code = unsafe {
            match piece.direction {
                Direction::Put => fi::fi_writemsg(self.ep, &message, done),
                // A read is complete when it is; but without this the shared memory provider looks at no key.
                Direction::Get => fi::fi_readmsg(self.ep, &message, done),
            }
        };
        if code == -(fi::FI_EAGAIN as isize) {
            return Ok(None);
        }
        check("moving", code as i64)?;
        slot.held = Some(Held { _memory: (piece.slice, piece.region.cloned()), direction: piece.direction });
        Ok(Some(number))
    }

    /// Lets libfabric work, and takes what has come back.
    ///
    /// # Errors
    /// As libfabric; the endpoint is of no more use.
    pub fn poll(&mut self, into: &mut Vec<Completion>) -> Result<(), FabricError> {
        let mut entries = [fi::fi_cq_entry { op_context: ptr::null_mut() }; READ];
        // SAFETY: no more entries are written than there is room for.
        let count = unsafe { fi::fi_cq_read(self.cq, entries.as_mut_ptr().cast(), READ) };
        if count == -(fi::FI_EAVAIL as isize) {
            return self.read_error(into);
        }
        if count == -(fi::FI_EAGAIN as isize) {
            return Ok(());
        }
        let count = check("fi_cq_read", count as i64)? as usize;
        for entry in entries.iter().take(count) {
            self.came_back(entry.op_context, Ok(()), into);
        }
        Ok(())
    }

    fn read_error(&mut self, into: &mut Vec<Completion>) -> Result<(), FabricError> {
        // SAFETY: an empty entry has no room for a provider's own data; then it writes none.
        let mut entry: fi::fi_cq_err_entry = unsafe { std::mem::zeroed() };
        // SAFETY: the queue is open.
        let count = unsafe { fi::fi_cq_readerr(self.cq, &mut entry, 0) };
        if count == -(fi::FI_EAGAIN as isize) {
            return Ok(());
        }
        check("fi_cq_readerr", count as i64)?;
        self.came_back(entry.op_context, Err(FabricError { call: "moving", code: entry.err }), into);
        Ok(())
    }

    /// What is nobody's are errors of other nodes' pieces.
    fn came_back(&mut self, context: *mut c_void, result: Result<(), FabricError>, into: &mut Vec<Completion>) {
        let is_it = |slot: &Slot| ptr::eq(slot.context.as_ref(), context.cast());
        if let Some(slot) = self.slots.iter().position(is_it)
            && self.slots[slot].held.take().is_some()
        {
            into.push(Completion { slot, result });
        }
    }

    /// What to wait for, where the provider has something; with [`may_wait`].
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: it belongs to the queue, which lives as long as `self`.
        self.wait_fd.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }
}

/// Whether nothing has come in the meantime, so that their descriptors may be waited for.
pub fn may_wait(endpoints: &[&Endpoint]) -> bool {
    let Some(first) = endpoints.first() else { return true };
    // SAFETY: they are open.
    let mut fids: Vec<*mut fi::fid> =
        endpoints.iter().map(|endpoint| unsafe { ptr::from_mut(&mut (*endpoint.cq).fid) }).collect();
    // SAFETY: as above; the list has this length.
    unsafe { fi::fi_trywait(first.domain.fabric(), fids.as_mut_ptr(), fids.len() as c_int) == 0 }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let reads = |slot: &Slot| slot.held.as_ref().is_some_and(|held| held.direction == Direction::Get);
        if self.slots.iter().any(reads) && !self.domain.info().can_close_while_reading() {
            // Nobody lets it work any more, so nothing more comes in.
            self.domain.leave_open();
            std::mem::forget(std::mem::take(&mut self.slots));
            return;
        }
        // SAFETY: what is open is closed once, the endpoint before what it is bound to.
        let closed = unsafe {
            (self.ep.is_null() || close(&mut (*self.ep).fid))
                && (self.cq.is_null() || close(&mut (*self.cq).fid))
                && (self.av.is_null() || close(&mut (*self.av).fid))
        };
        if !closed {
            // Its pieces may still be under way.
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}
