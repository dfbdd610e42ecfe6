//! Upcalls. They run on libpmix's progress thread: copy, push, return.

use super::make::pack;
use super::read::{fixed, proc_from, procs_from, slice, text, texts};
use super::respond::{GroupResponder, LookupResponder, ModexResponder, OpResponder, Owed, SpawnResponder};
use super::{ERROR, OPERATION_SUCCEEDED, SUCCESS, sys};
use crate::Upcall;
use ft_wire::pmix::{Proc, Raised};
use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::OnceLock;
use tokio::sync::mpsc;

const BYTES: sys::pmix_data_type_t = sys::PMIX_BYTE_OBJECT as _;

static UPCALLS: OnceLock<mpsc::UnboundedSender<Upcall>> = OnceLock::new();

/// Has all upcalls sent there, from now on and for ever; false when there is such a place already.
pub(super) fn send_to(upcalls: mpsc::UnboundedSender<Upcall>) -> bool {
    UPCALLS.set(upcalls).is_ok()
}

/// Pushes what `make` makes. A panic becomes an error, and so does a receiver that is gone.
fn push(make: impl FnOnce() -> Upcall) -> sys::pmix_status_t {
    let pushed = catch_unwind(AssertUnwindSafe(|| match UPCALLS.get() {
        Some(upcalls) => match upcalls.send(make()) {
            Ok(()) => SUCCESS,
            Err(refused) => {
                // The returned error is the answer; the responder must not give a second one.
                std::mem::forget(refused);
                ERROR
            }
        },
        None => ERROR,
    }));
    pushed.unwrap_or(ERROR)
}

/// # Safety
/// `proc` is null or points to a process name.
unsafe fn one(proc: *const sys::pmix_proc_t) -> Proc {
    // SAFETY: by this function's contract.
    match unsafe { proc.as_ref() } {
        Some(proc) => proc_from(proc),
        None => Proc { nspace: String::new(), rank: u32::MAX },
    }
}

fn op(function: sys::pmix_op_cbfunc_t, data: *mut c_void) -> OpResponder {
    OpResponder(Owed { function, data })
}

unsafe extern "C" fn client_connected(
    proc: *const sys::pmix_proc_t,
    _object: *mut c_void,
    _info: *mut sys::pmix_info_t,
    _ninfo: usize,
    function: sys::pmix_op_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: libpmix passes a process name.
    push(|| Upcall::Connected { proc: unsafe { one(proc) }, respond: op(function, data) })
}

unsafe extern "C" fn client_finalized(
    proc: *const sys::pmix_proc_t,
    _object: *mut c_void,
    function: sys::pmix_op_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: libpmix passes a process name.
    push(|| Upcall::Finalized { proc: unsafe { one(proc) }, respond: op(function, data) })
}

unsafe extern "C" fn abort(
    proc: *const sys::pmix_proc_t,
    _object: *mut c_void,
    status: c_int,
    message: *const c_char,
    _procs: *mut sys::pmix_proc_t,
    _nprocs: usize,
    function: sys::pmix_op_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    push(|| Upcall::Abort {
        // SAFETY: libpmix passes a process name.
        proc: unsafe { one(proc) },
        status,
        // SAFETY: libpmix passes null or a string.
        message: unsafe { text(message) },
        respond: op(function, data),
    })
}

unsafe extern "C" fn fence(
    procs: *const sys::pmix_proc_t,
    nprocs: usize,
    _info: *const sys::pmix_info_t,
    _ninfo: usize,
    bytes: *mut c_char,
    nbytes: usize,
    function: sys::pmix_modex_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    let status = push(|| Upcall::Fence {
        // SAFETY: libpmix passes the participants' names.
        procs: unsafe { procs_from(procs, nprocs) },
        // SAFETY: libpmix passes null or that many bytes.
        data: unsafe { slice(bytes.cast::<u8>(), nbytes) }.to_vec(),
        respond: ModexResponder(Owed { function, data }),
    });
    if status == SUCCESS {
        // SAFETY: the host owns the fence's bytes, which come from malloc, once it has accepted the call.
        unsafe { libc::free(bytes.cast()) };
    }
    status
}

unsafe extern "C" fn direct_modex(
    proc: *const sys::pmix_proc_t,
    _info: *const sys::pmix_info_t,
    _ninfo: usize,
    function: sys::pmix_modex_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: libpmix passes a process name.
    push(|| Upcall::Modex { proc: unsafe { one(proc) }, respond: ModexResponder(Owed { function, data }) })
}

/// The number that a directive gives, if it is there and is one.
fn number(infos: &[sys::pmix_info_t], key: &std::ffi::CStr) -> Option<u32> {
    let key = key.to_string_lossy();
    let value = &infos.iter().find(|info| fixed(&info.key) == key)?.value;
    // SAFETY: the type says which member of the union is there.
    unsafe {
        match u32::from(value.type_) {
            sys::PMIX_INT => u32::try_from(value.data.integer).ok(),
            sys::PMIX_INT32 => u32::try_from(value.data.int32).ok(),
            sys::PMIX_UINT => Some(value.data.uint),
            sys::PMIX_UINT32 => Some(value.data.uint32),
            sys::PMIX_PERSIST => Some(value.data.persist.into()),
            _ => None,
        }
    }
}

/// Whether a key of a request is one of PMIx's own directives and not the user's.
fn is_directive(key: &str) -> bool {
    key.starts_with("pmix.")
}

unsafe extern "C" fn publish(
    proc: *const sys::pmix_proc_t,
    info: *const sys::pmix_info_t,
    ninfo: usize,
    function: sys::pmix_op_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    push(|| {
        // SAFETY: libpmix passes that many attributes.
        let infos = unsafe { slice(info, ninfo) };
        let once = number(infos, sys::PMIX_PERSISTENCE) == Some(sys::PMIX_PERSIST_FIRST_READ);
        let infos = infos.iter().map(|info| (fixed(&info.key), &info.value));
        let values = infos.filter(|(key, _)| !is_directive(key)).map(|(key, value)| {
            // SAFETY: libpmix passes sound values.
            (key, unsafe { pack(value) })
        });
        // SAFETY: libpmix passes a process name.
        Upcall::Publish { proc: unsafe { one(proc) }, values: values.collect(), once, respond: op(function, data) }
    })
}

unsafe extern "C" fn lookup(
    proc: *const sys::pmix_proc_t,
    wanted: *mut *mut c_char,
    info: *const sys::pmix_info_t,
    ninfo: usize,
    function: sys::pmix_lookup_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    push(|| {
        let wait = sys::PMIX_WAIT.to_string_lossy();
        // SAFETY: libpmix passes that many attributes.
        let infos = unsafe { slice(info, ninfo) };
        Upcall::Lookup {
            // SAFETY: libpmix passes a process name.
            proc: unsafe { one(proc) },
            // SAFETY: libpmix passes an array of strings with a null at its end.
            keys: unsafe { texts(wanted) },
            wait: infos.iter().any(|info| fixed(&info.key) == wait),
            seconds: number(infos, sys::PMIX_TIMEOUT).unwrap_or(0),
            respond: LookupResponder(Owed { function, data }),
        }
    })
}

unsafe extern "C" fn unpublish(
    proc: *const sys::pmix_proc_t,
    wanted: *mut *mut c_char,
    _info: *const sys::pmix_info_t,
    _ninfo: usize,
    function: sys::pmix_op_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    push(|| Upcall::Unpublish {
        // SAFETY: libpmix passes a process name.
        proc: unsafe { one(proc) },
        // SAFETY: libpmix passes null or an array of strings with a null at its end.
        keys: unsafe { texts(wanted) },
        respond: op(function, data),
    })
}

unsafe extern "C" fn spawn(
    proc: *const sys::pmix_proc_t,
    _info: *const sys::pmix_info_t,
    _ninfo: usize,
    apps: *const sys::pmix_app_t,
    napps: usize,
    function: sys::pmix_spawn_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    push(|| {
        // SAFETY: libpmix passes that many programs.
        let first = unsafe { slice(apps, napps) }.first();
        Upcall::Spawn {
            // SAFETY: libpmix passes a process name.
            proc: unsafe { one(proc) },
            // SAFETY: a program's command is null or a string.
            command: first.map(|app| unsafe { text(app.cmd) }).unwrap_or_default(),
            respond: SpawnResponder(Owed { function, data }),
        }
    })
}

unsafe extern "C" fn connect(
    procs: *const sys::pmix_proc_t,
    nprocs: usize,
    _info: *const sys::pmix_info_t,
    _ninfo: usize,
    function: sys::pmix_op_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: libpmix passes the participants' names.
    push(|| Upcall::Connect { procs: unsafe { procs_from(procs, nprocs) }, connect: true, respond: op(function, data) })
}

unsafe extern "C" fn disconnect(
    procs: *const sys::pmix_proc_t,
    nprocs: usize,
    _info: *const sys::pmix_info_t,
    _ninfo: usize,
    function: sys::pmix_op_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    push(|| Upcall::Connect {
        // SAFETY: libpmix passes the participants' names.
        procs: unsafe { procs_from(procs, nprocs) },
        connect: false,
        respond: op(function, data),
    })
}

unsafe extern "C" fn register_events(
    _codes: *mut sys::pmix_status_t,
    _ncodes: usize,
    _info: *const sys::pmix_info_t,
    _ninfo: usize,
    _function: sys::pmix_op_cbfunc_t,
    _data: *mut c_void,
) -> sys::pmix_status_t {
    // There are no events from the environment; what concerns the world is told anyway.
    OPERATION_SUCCEEDED
}

unsafe extern "C" fn deregister_events(
    _codes: *mut sys::pmix_status_t,
    _ncodes: usize,
    _function: sys::pmix_op_cbfunc_t,
    _data: *mut c_void,
) -> sys::pmix_status_t {
    OPERATION_SUCCEEDED
}

unsafe extern "C" fn notify_event(
    code: sys::pmix_status_t,
    source: *const sys::pmix_proc_t,
    range: sys::pmix_data_range_t,
    info: *mut sys::pmix_info_t,
    ninfo: usize,
    _function: sys::pmix_op_cbfunc_t,
    _data: *mut c_void,
) -> sys::pmix_status_t {
    let status = push(|| {
        // SAFETY: libpmix passes that many attributes.
        let infos = unsafe { slice(info, ninfo) }.iter().map(|info| {
            // SAFETY: libpmix passes sound values.
            (fixed(&info.key), unsafe { pack(&info.value) })
        });
        let near = [sys::PMIX_RANGE_RM, sys::PMIX_RANGE_LOCAL, sys::PMIX_RANGE_PROC_LOCAL];
        Upcall::Notified {
            // SAFETY: libpmix passes null or a process name.
            event: Raised { source: unsafe { one(source) }, status: code, range, infos: infos.collect() },
            far: !near.contains(&u32::from(range)),
        }
    });
    // libpmix 4.2.2 has freed by its return what an answer to anything else would come to.
    if status == SUCCESS { OPERATION_SUCCEEDED } else { status }
}

unsafe extern "C" fn query(
    _proc: *mut sys::pmix_proc_t,
    _queries: *mut sys::pmix_query_t,
    _nqueries: usize,
    _function: sys::pmix_info_cbfunc_t,
    _data: *mut c_void,
) -> sys::pmix_status_t {
    // libpmix answers what it knows itself before it asks the host.
    sys::PMIX_ERR_NOT_SUPPORTED
}

unsafe extern "C" fn job_control(
    _requestor: *const sys::pmix_proc_t,
    _targets: *const sys::pmix_proc_t,
    _ntargets: usize,
    _directives: *const sys::pmix_info_t,
    _ndirectives: usize,
    _function: sys::pmix_info_cbfunc_t,
    _data: *mut c_void,
) -> sys::pmix_status_t {
    // Open MPI asks for its session folder to be cleaned up; the agent removes it whatever happens.
    OPERATION_SUCCEEDED
}

unsafe extern "C" fn group(
    operation: sys::pmix_group_operation_t,
    name: *mut c_char,
    procs: *const sys::pmix_proc_t,
    nprocs: usize,
    directives: *const sys::pmix_info_t,
    ndirectives: usize,
    function: sys::pmix_info_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    // libpmix 5 goes on by itself after any other answer to this, and then the second time with what it has freed.
    if operation != sys::PMIX_GROUP_CONSTRUCT {
        return OPERATION_SUCCEEDED;
    }
    push(|| {
        // SAFETY: libpmix passes the participants' names.
        let members = unsafe { procs_from(procs, nprocs) };
        // SAFETY: libpmix passes that many attributes.
        let directives = unsafe { slice(directives, ndirectives) };
        let key = sys::PMIX_GROUP_ENDPT_DATA.to_string_lossy();
        let shared = directives.iter().find(|info| fixed(&info.key) == key && info.value.type_ == BYTES);
        let shared = shared.map(|info| {
            // SAFETY: the value is of the type of byte objects, and sound.
            let object = unsafe { info.value.data.bo };
            // SAFETY: the object describes its bytes.
            unsafe { slice(object.bytes.cast::<u8>(), object.size) }.to_vec()
        });
        // SAFETY: libpmix passes null or a string.
        let name = unsafe { text(name) };
        Upcall::Group { name, members, shared, respond: GroupResponder(Owed { function, data }) }
    })
}

pub(super) unsafe extern "C" fn lost_connection(
    _id: usize,
    _status: sys::pmix_status_t,
    source: *const sys::pmix_proc_t,
    _info: *mut sys::pmix_info_t,
    _ninfo: usize,
    _results: *mut sys::pmix_info_t,
    _nresults: usize,
    function: sys::pmix_event_notification_cbfunc_fn_t,
    data: *mut c_void,
) {
    // SAFETY: libpmix passes null or a process name. Nobody is to be told that the push failed.
    let _ = push(|| Upcall::LostConnection { proc: unsafe { one(source) } });
    if let Some(function) = function {
        // SAFETY: every event handler owes libpmix this call.
        unsafe { function(sys::PMIX_EVENT_ACTION_COMPLETE, ptr::null_mut(), 0, None, ptr::null_mut(), data) };
    }
}

/// The server module with room behind it: later libraries copy a longer structure than the bound headers know.
#[repr(C)]
struct PaddedModule {
    module: sys::pmix_server_module_t,
    padding: [usize; 64],
}

/// The functions that libpmix may call, for ever: whether it copies them or keeps a pointer is its own business.
pub(super) fn module() -> *mut sys::pmix_server_module_t {
    // SAFETY: all zero is a module without functions and zero padding.
    let mut padded: PaddedModule = unsafe { std::mem::zeroed() };
    padded.module.client_finalized = Some(client_finalized);
    padded.module.abort = Some(abort);
    padded.module.fence_nb = Some(fence);
    padded.module.direct_modex = Some(direct_modex);
    padded.module.publish = Some(publish);
    padded.module.lookup = Some(lookup);
    padded.module.unpublish = Some(unpublish);
    padded.module.spawn = Some(spawn);
    padded.module.connect = Some(connect);
    padded.module.disconnect = Some(disconnect);
    padded.module.register_events = Some(register_events);
    padded.module.deregister_events = Some(deregister_events);
    padded.module.notify_event = Some(notify_event);
    padded.module.query = Some(query);
    padded.module.job_control = Some(job_control);
    padded.module.group = Some(group);
    padded.module.client_connected2 = Some(client_connected);
    let padded = Box::leak(Box::new(padded));
    debug_assert!(padded.padding.iter().all(|word| *word == 0));
    ptr::from_mut(padded).cast()
}
