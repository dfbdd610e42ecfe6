//! What a rank tells its PMIx server goes out at once.
//!
//! libpmix's client writes several small messages after another and waits for one answer. TCP holds the later ones back until
//! the first is acknowledged (Nagle's algorithm), and a kernel whose process has nothing to say acknowledges after 40 ms: under
//! every launcher, `MPI_Finalize` of Open MPI takes that much longer than it has to.

use crate::native::Native;
use std::ffi::c_int;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU16, Ordering};

static CONNECT: Native = Native::new(c"connect");
/// Where the server listens on this node's loopback; 0 while that is not known.
static SERVER: AtomicU16 = AtomicU16::new(0);

/// While the library is loaded. What is served from its start (`--ft-mpi=openmpi`, an MPI that is linked in) has the server's address by now.
pub(crate) fn prepare() {
    CONNECT.look();
    know_server();
}

/// The agent has said where the server is: `<namespace>.<rank>;tcp4://127.0.0.1:<port>`, in a variable for each version of
/// the protocol.
pub(crate) fn know_server() {
    let of = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        let uri = value.to_str().filter(|_| name.as_bytes().starts_with(b"PMIX_SERVER_URI"))?;
        uri.split_once("tcp4://127.0.0.1:")?.1.parse().ok()
    };
    SERVER.store(std::env::vars_os().find_map(of).unwrap_or(0), Ordering::Release);
}

/// Whether it is the server's address.
///
/// # Safety
/// `address` points to `length` bytes, or `length` is 0.
unsafe fn is_server(address: *const libc::sockaddr, length: libc::socklen_t) -> bool {
    let server = SERVER.load(Ordering::Acquire);
    if server == 0 || (length as usize) < size_of::<libc::sockaddr_in>() || address.is_null() {
        return false;
    }
    // SAFETY: the caller's promise; nothing is said of the alignment.
    let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
    c_int::from(address.sin_family) == libc::AF_INET
        && address.sin_port == server.to_be()
        && address.sin_addr.s_addr == u32::from_ne_bytes([127, 0, 0, 1])
}

/// The native `connect`; a connection to the PMIx server holds nothing back.
///
/// # Safety
/// As POSIX says of the native function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(socket: c_int, address: *const libc::sockaddr, length: libc::socklen_t) -> c_int {
    // SAFETY: the caller's promise.
    if unsafe { is_server(address, length) } {
        let on: c_int = 1;
        let size = size_of::<c_int>() as libc::socklen_t;
        // Without it the connection is what it would be without ftd.
        // SAFETY: the option's value is a number that lives during the call.
        unsafe { libc::setsockopt(socket, libc::IPPROTO_TCP, libc::TCP_NODELAY, (&raw const on).cast(), size) };
    }
    let native = CONNECT.get();
    if native == 0 {
        // SAFETY: the caller's arguments; the kernel looks at them.
        return unsafe { libc::syscall(libc::SYS_connect, socket, address, length) as c_int };
    }
    // SAFETY: the type of connect.
    let native: unsafe extern "C" fn(c_int, *const libc::sockaddr, libc::socklen_t) -> c_int =
        unsafe { std::mem::transmute(native) };
    // SAFETY: the caller's arguments.
    unsafe { native(socket, address, length) }
}
