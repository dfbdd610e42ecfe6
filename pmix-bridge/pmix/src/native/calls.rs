//! What libpmix is asked for.

use super::make::{Infos, proc_to};
use super::read::{slice, strings, text};
use super::{OPERATION_SUCCEEDED, SUCCESS, Status, promptly, sys, upcalls};
use crate::job::Info;
use crate::settings::Setting;
use crate::{PmixError, Upcall};
use ft_wire::Rank;
use ft_wire::pmix::{Proc, Raised};
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use tokio::sync::{mpsc, oneshot};

/// Starts the server. Once per process.
pub(crate) fn start(settings: &[Setting], infos: Vec<Info>) -> Result<mpsc::UnboundedReceiver<Upcall>, PmixError> {
    let threads = std::fs::read_dir("/proc/self/task").map_or(usize::MAX, Iterator::count);
    let (sender, receiver) = mpsc::unbounded_channel();
    if threads != 1 || !upcalls::send_to(sender) {
        return Err(PmixError::NotFirst);
    }
    for setting in settings {
        // SAFETY: no other thread exists that could read the environment meanwhile.
        unsafe { std::env::set_var(setting.name, setting.value) };
    }
    // A client that dies while it is written to must not end this process.
    // SAFETY: ignoring a signal is always allowed.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };

    let module = upcalls::module();
    let mut infos = Infos::new(infos)?;
    let count = infos.0.len();
    // SAFETY: the module and as many attributes as are announced; both outlive the call.
    let status = unsafe { sys::PMIx_server_init(module, infos.as_mut_ptr(), count) };
    Status(status).result("PMIx_server_init")?;

    promptly::hold_nothing_back();
    watch_connections()?;
    Ok(receiver)
}

/// Has libpmix tell when a connection breaks.
fn watch_connections() -> Result<(), PmixError> {
    let codes = Box::leak(Box::new([sys::PMIX_ERR_LOST_CONNECTION]));
    // SAFETY: one code, which stays for ever; without a callback the call waits until the handler is registered and
    // returns its number.
    let registered = unsafe {
        sys::PMIx_Register_event_handler(
            codes.as_mut_ptr(),
            codes.len(),
            ptr::null_mut(),
            0,
            Some(upcalls::lost_connection),
            None,
            ptr::null_mut(),
        )
    };
    if registered < 0 {
        return Err(PmixError::Call { call: "PMIx_Register_event_handler", status: Status(registered) });
    }
    Ok(())
}

pub(crate) fn version() -> String {
    // SAFETY: the answer is a static string.
    unsafe { text(sys::PMIx_Get_version()) }
}

/// A call under way: what it reads, and who waits.
struct Pending {
    tell: oneshot::Sender<Status>,
    _infos: Option<Infos>,
}

unsafe extern "C" fn pending_done(status: sys::pmix_status_t, data: *mut c_void) {
    // SAFETY: made by `Box::into_raw` in `call`; libpmix calls back once.
    let pending = unsafe { Box::from_raw(data.cast::<Pending>()) };
    // The waiting future may have been dropped.
    let _ = pending.tell.send(Status(status));
}

/// Runs a libpmix call that takes attributes and ends with a callback; they stay alive until then.
async fn call(
    name: &'static str,
    infos: Option<Infos>,
    run: impl FnOnce(*mut sys::pmix_info_t, usize, sys::pmix_op_cbfunc_t, *mut c_void) -> sys::pmix_status_t,
) -> Result<(), PmixError> {
    let wait = {
        let (tell, wait) = oneshot::channel();
        let mut pending = Box::new(Pending { tell, _infos: infos });
        let (at, count) = match pending._infos.as_mut() {
            Some(infos) => (infos.as_mut_ptr(), infos.0.len()),
            None => (ptr::null_mut(), 0),
        };
        let data: *mut c_void = Box::into_raw(pending).cast();
        let status = run(at, count, Some(pending_done), data);
        if status != SUCCESS {
            // SAFETY: libpmix will not call back, so the box is still ours.
            drop(unsafe { Box::from_raw(data.cast::<Pending>()) });
            let done = status == OPERATION_SUCCEEDED;
            return if done { Ok(()) } else { Err(PmixError::Call { call: name, status: Status(status) }) };
        }
        wait
    };
    let status = wait.await.unwrap_or(Status::ERROR);
    if status.0 == OPERATION_SUCCEEDED { Ok(()) } else { status.result(name) }
}

pub(crate) async fn register_namespace(nspace: &str, local: usize, infos: Vec<Info>) -> Result<(), PmixError> {
    let infos = Infos::new(infos)?;
    let local = c_int::try_from(local).unwrap_or(c_int::MAX);
    let nspace = proc_to(nspace, 0).nspace;
    call("PMIx_server_register_nspace", Some(infos), |infos, count, function, data| {
        // SAFETY: `call` keeps the attributes until the callback; the name is copied.
        unsafe { sys::PMIx_server_register_nspace(nspace.as_ptr().cast_mut(), local, infos, count, function, data) }
    })
    .await
}

pub(crate) async fn register_client(nspace: &str, rank: Rank) -> Result<(), PmixError> {
    let proc = proc_to(nspace, rank);
    call("PMIx_server_register_client", None, |_, _, function, data| {
        // SAFETY: asking for the own ids cannot fail; libpmix copies the name.
        unsafe {
            let (user, group) = (libc::geteuid(), libc::getegid());
            sys::PMIx_server_register_client(&proc, user, group, ptr::null_mut(), function, data)
        }
    })
    .await
}

/// Tells the local processes of an event. libpmix asks the host only of those that it raises itself.
pub(crate) async fn raise(event: Raised) -> Result<(), PmixError> {
    let Raised { source, status, range, infos } = event;
    let source = proc_to(&source.nspace, source.rank);
    call("PMIx_Notify_event", Some(Infos::unpacked(&infos)), |infos, count, function, data| {
        // SAFETY: `call` keeps the attributes until the callback; the name is copied.
        unsafe { sys::PMIx_Notify_event(status, &source, range, infos, count, function, data) }
    })
    .await
}

/// The environment that a process needs to find this server.
pub(crate) fn setup_fork(nspace: &str, rank: Rank) -> Result<ft_wire::pmix::Variables, PmixError> {
    let proc = proc_to(nspace, rank);
    let mut array: *mut *mut c_char = ptr::null_mut();
    // SAFETY: libpmix appends to an array that is empty so far.
    let status = Status(unsafe { sys::PMIx_server_setup_fork(&proc, &mut array) });
    // SAFETY: null, or an array of strings with a null at its end.
    let all = unsafe { strings(array) };
    for index in 0..all.len() {
        // SAFETY: the array has that many strings, allocated with malloc for the caller.
        unsafe { libc::free((*array.add(index)).cast()) };
    }
    // SAFETY: as is the array itself.
    unsafe { libc::free(array.cast()) };
    status.result("PMIx_server_setup_fork")?;
    let pairs = all.into_iter().filter_map(|entry| {
        let (name, value) = entry.split_at_checked(entry.iter().position(|byte| *byte == b'=')?)?;
        Some((String::from_utf8(name.to_vec()).ok()?, value[1..].to_vec()))
    });
    Ok(pairs.collect())
}

unsafe extern "C" fn modex_done(status: sys::pmix_status_t, bytes: *mut c_char, count: usize, data: *mut c_void) {
    // SAFETY: made by `Box::into_raw` in `modex_request`; libpmix calls back once.
    let tell = unsafe { Box::from_raw(data.cast::<oneshot::Sender<(Status, Vec<u8>)>>()) };
    // SAFETY: libpmix passes null or that many bytes, which stay its own.
    let bytes = unsafe { slice(bytes.cast::<u8>(), count) }.to_vec();
    // The waiting future may have been dropped.
    let _ = tell.send((Status(status), bytes));
}

pub(crate) async fn modex_request(proc: &Proc) -> (Status, Vec<u8>) {
    let wait = {
        let name = proc_to(&proc.nspace, proc.rank);
        let (tell, wait) = oneshot::channel::<(Status, Vec<u8>)>();
        let data: *mut c_void = Box::into_raw(Box::new(tell)).cast();
        // SAFETY: libpmix copies the name and calls back once when it says success.
        let status = unsafe { sys::PMIx_server_dmodex_request(&name, Some(modex_done), data) };
        if status != SUCCESS {
            // SAFETY: libpmix will not call back, so the box is still ours.
            drop(unsafe { Box::from_raw(data.cast::<oneshot::Sender<(Status, Vec<u8>)>>()) });
            return (Status(status), Vec::new());
        }
        wait
    };
    wait.await.unwrap_or((Status::ERROR, Vec::new()))
}
