//! What the server tells a rank goes out at once: a second small message does not wait until the rank's kernel has acknowledged
//! the first, which takes it up to 40 ms when the rank has nothing to say (Nagle's algorithm against delayed acknowledgements).

use std::ffi::c_int;

/// Connections have from the socket that they are accepted from that nothing is held back. libpmix's listens by now; this process
/// has no other.
pub(crate) fn hold_nothing_back() {
    // Where it cannot be seen what is open, ranks wait a little longer now and then.
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = open.filter_map(|entry| entry.file_name().to_str()?.parse::<c_int>().ok());
    for socket in numbers.filter(|number| listens(*number)).collect::<Vec<_>>() {
        let on: c_int = 1;
        let size = size_of::<c_int>() as libc::socklen_t;
        // SAFETY: the option's value is a number that lives during the call.
        unsafe { libc::setsockopt(socket, libc::IPPROTO_TCP, libc::TCP_NODELAY, (&raw const on).cast(), size) };
    }
}

fn listens(socket: c_int) -> bool {
    let (mut listens, mut size): (c_int, _) = (0, size_of::<c_int>() as libc::socklen_t);
    // SAFETY: the answer is a number, and has room for one.
    let asked = unsafe {
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, (&raw mut listens).cast(), &raw mut size)
    };
    asked == 0 && listens != 0
}
