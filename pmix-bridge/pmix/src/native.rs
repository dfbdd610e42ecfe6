//! Everything that touches libpmix or file descriptors by number: the only `unsafe` of this crate.

use crate::job::{Info, Value};
use crate::settings::Setting;
use crate::{PmixError, Upcall};
use ft_wire::Rank;
use ft_wire::pmix::Proc;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::OnceLock;
use tokio::sync::{mpsc, oneshot};

#[allow(missing_docs, non_camel_case_types, non_upper_case_globals, non_snake_case, unused, clippy::all)]
pub(crate) mod sys {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

/// The attribute names of `pmix_common.h`, for the description of a world.
pub(crate) use sys as keys;

const SUCCESS: i32 = sys::PMIX_SUCCESS as i32;
const ERROR: i32 = sys::PMIX_ERROR;
const OPERATION_SUCCEEDED: i32 = sys::PMIX_OPERATION_SUCCEEDED;

/// A PMIx status; prints as libpmix names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub i32);

impl Status {
    /// Success.
    pub const SUCCESS: Status = Status(SUCCESS);
    /// Something went wrong.
    pub const ERROR: Status = Status(ERROR);
    /// The host does not do this.
    pub const NOT_SUPPORTED: Status = Status(sys::PMIX_ERR_NOT_SUPPORTED);
    /// No such data.
    pub const NOT_FOUND: Status = Status(sys::PMIX_ERR_NOT_FOUND);

    fn result(self, call: &'static str) -> Result<(), PmixError> {
        if self.0 == SUCCESS { Ok(()) } else { Err(PmixError::Call { call, status: self }) }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // SAFETY: any status is allowed; the answer is a static string.
        let name = unsafe { text(sys::PMIx_Error_string(self.0)) };
        write!(f, "{name} ({})", self.0)
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Reading what libpmix shows.

/// # Safety
/// `at` is null or points to a NUL-terminated string.
unsafe fn text(at: *const c_char) -> String {
    if at.is_null() {
        return String::new();
    }
    // SAFETY: by this function's contract.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

/// # Safety
/// `at` is null (then `count` does not matter) or points to `count` values that live for `'a`.
unsafe fn slice<'a, T>(at: *const T, count: usize) -> &'a [T] {
    if at.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: by this function's contract.
    unsafe { std::slice::from_raw_parts(at, count) }
}

/// Text in an array of fixed length, which need not end with a NUL.
fn fixed(array: &[c_char]) -> String {
    let bytes: Vec<u8> = array.iter().map(|c| *c as u8).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn proc_from(proc: &sys::pmix_proc_t) -> Proc {
    Proc { nspace: fixed(&proc.nspace), rank: proc.rank }
}

/// # Safety
/// As [`slice`].
unsafe fn procs_from(at: *const sys::pmix_proc_t, count: usize) -> Vec<Proc> {
    // SAFETY: by this function's contract.
    unsafe { slice(at, count) }.iter().map(proc_from).collect()
}

/// # Safety
/// `at` is null or points to an array of strings that ends with a null pointer.
unsafe fn texts(at: *const *mut c_char) -> Vec<String> {
    // SAFETY: by this function's contract.
    unsafe { strings(at) }.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect()
}

/// # Safety
/// As [`texts`].
unsafe fn strings(at: *const *mut c_char) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    if at.is_null() {
        return all;
    }
    for index in 0.. {
        // SAFETY: the array goes on at least up to its null pointer, where this loop ends.
        let one = unsafe { *at.add(index) };
        if one.is_null() {
            break;
        }
        // SAFETY: an element of the array is a string.
        all.push(unsafe { CStr::from_ptr(one) }.to_bytes().to_vec());
    }
    all
}

// ---------------------------------------------------------------------------------------------------------------------
// Making what libpmix reads.

fn put_text(array: &mut [c_char], text: &str) {
    // One place stays free for the NUL.
    let room = array.len() - 1;
    for (place, byte) in array[..room].iter_mut().zip(text.bytes()) {
        *place = byte as c_char;
    }
}

fn proc_to(nspace: &str, rank: Rank) -> sys::pmix_proc_t {
    let mut proc = sys::pmix_proc_t { nspace: [0; 256], rank };
    put_text(&mut proc.nspace, nspace);
    proc
}

/// An array of `pmix_info_t` that owns what its values point to.
struct Infos(Vec<sys::pmix_info_t>);

// SAFETY: the values point to memory that this array alone owns.
unsafe impl Send for Infos {}

impl Infos {
    fn new(infos: Vec<Info>) -> Result<Self, PmixError> {
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

    /// `data` points to a value of the type `kind` (for strings: to their first byte).
    fn load(&mut self, key: &CStr, data: *const c_void, kind: u32) -> Result<(), PmixError> {
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

    fn as_mut_ptr(&mut self) -> *mut sys::pmix_info_t {
        self.0.as_mut_ptr()
    }
}

impl Drop for Infos {
    fn drop(&mut self) {
        for info in &mut self.0 {
            // SAFETY: each value was made by `PMIx_Info_load` and is destructed once.
            unsafe { sys::PMIx_Value_destruct(&mut info.value) };
        }
    }
}

/// The value as bytes that only libpmix understands; empty when it cannot be packed.
///
/// # Safety
/// `value` is a sound value.
unsafe fn pack(value: &sys::pmix_value_t) -> Vec<u8> {
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
fn unpack(bytes: &[u8]) -> Option<sys::pmix_value_t> {
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

// ---------------------------------------------------------------------------------------------------------------------
// Responders.

/// A callback that is owed to libpmix.
#[derive(Debug)]
struct Owed<F> {
    /// `None` after the answer, or when libpmix wants none.
    function: Option<F>,
    data: *mut c_void,
}

// SAFETY: libpmix allows its callbacks from any thread; the data pointer is only handed back to it.
unsafe impl<F: Send> Send for Owed<F> {}

/// Frees what a callback's data pointed to; libpmix calls it when it needs them no more.
unsafe extern "C" fn release_bytes(data: *mut c_void) {
    if !data.is_null() {
        // SAFETY: made by `Box::into_raw` in `ModexResponder::answer`; libpmix releases once.
        drop(unsafe { Box::from_raw(data.cast::<Vec<u8>>()) });
    }
}

/// As [`release_bytes`], for attributes.
unsafe extern "C" fn release_infos(data: *mut c_void) {
    if !data.is_null() {
        // SAFETY: made by `Box::into_raw` in `GroupResponder::answer`; libpmix releases once.
        drop(unsafe { Box::from_raw(data.cast::<Infos>()) });
    }
}

/// Answers with a status.
#[derive(Debug)]
pub struct OpResponder(Owed<unsafe extern "C" fn(sys::pmix_status_t, *mut c_void)>);

impl OpResponder {
    /// Answers.
    pub fn complete(mut self, status: Status) {
        self.answer(status);
    }

    fn answer(&mut self, status: Status) {
        if let Some(function) = self.0.function.take() {
            // SAFETY: libpmix gave function and data together; they are used once.
            unsafe { function(status.0, self.0.data) }
        }
    }
}

impl Drop for OpResponder {
    fn drop(&mut self) {
        self.answer(Status::ERROR);
    }
}

/// Answers with bytes.
#[derive(Debug)]
pub struct ModexResponder(
    Owed<
        unsafe extern "C" fn(
            sys::pmix_status_t,
            *const c_char,
            usize,
            *mut c_void,
            sys::pmix_release_cbfunc_t,
            *mut c_void,
        ),
    >,
);

impl ModexResponder {
    /// Answers.
    pub fn complete(mut self, status: Status, data: Vec<u8>) {
        self.answer(status, data);
    }

    fn answer(&mut self, status: Status, data: Vec<u8>) {
        let Some(function) = self.0.function.take() else { return };
        if data.is_empty() {
            // SAFETY: libpmix gave function and data together; they are used once. Nothing has to be released.
            unsafe { function(status.0, ptr::null(), 0, self.0.data, None, ptr::null_mut()) };
            return;
        }
        let data = Box::new(data);
        let (at, length) = (data.as_ptr().cast(), data.len());
        let owner = Box::into_raw(data).cast();
        // SAFETY: as above; the bytes live until libpmix calls `release_bytes`.
        unsafe { function(status.0, at, length, self.0.data, Some(release_bytes), owner) }
    }
}

impl Drop for ModexResponder {
    fn drop(&mut self) {
        self.answer(Status::ERROR, Vec::new());
    }
}

/// Answers with published values.
#[derive(Debug)]
pub struct LookupResponder(Owed<unsafe extern "C" fn(sys::pmix_status_t, *mut sys::pmix_pdata_t, usize, *mut c_void)>);

impl LookupResponder {
    /// Answers: publisher, key and packed value of each. Values that do not unpack are left out.
    pub fn complete(mut self, status: Status, found: Vec<(Proc, String, Vec<u8>)>) {
        self.answer(status, found);
    }

    fn answer(&mut self, status: Status, found: Vec<(Proc, String, Vec<u8>)>) {
        let Some(function) = self.0.function.take() else { return };
        let found = found.into_iter().filter_map(|(proc, key, bytes)| {
            let proc = proc_to(&proc.nspace, proc.rank);
            let mut data = sys::pmix_pdata_t { proc_: proc, key: [0; 512], value: unpack(&bytes)? };
            put_text(&mut data.key, &key);
            Some(data)
        });
        let mut found: Vec<_> = found.collect();
        let status = if found.is_empty() && status == Status::SUCCESS { Status::NOT_FOUND } else { status };
        let at = if found.is_empty() { ptr::null_mut() } else { found.as_mut_ptr() };
        // SAFETY: libpmix gave function and data together; they are used once. It copies the values before it returns.
        unsafe { function(status.0, at, found.len(), self.0.data) };
        for data in &mut found {
            // SAFETY: made by `unpack`, destructed once.
            unsafe { sys::PMIx_Value_destruct(&mut data.value) };
        }
    }
}

impl Drop for LookupResponder {
    fn drop(&mut self) {
        self.answer(Status::ERROR, Vec::new());
    }
}

/// Answers with the namespace of spawned processes.
#[derive(Debug)]
pub struct SpawnResponder(Owed<unsafe extern "C" fn(sys::pmix_status_t, *mut c_char, *mut c_void)>);

impl SpawnResponder {
    /// Answers.
    pub fn complete(mut self, spawned: Result<&str, Status>) {
        self.answer(spawned);
    }

    fn answer(&mut self, spawned: Result<&str, Status>) {
        let Some(function) = self.0.function.take() else { return };
        let mut nspace = [0; 256];
        let status = match spawned {
            Ok(name) => {
                put_text(&mut nspace, name);
                Status::SUCCESS
            }
            Err(status) => status,
        };
        // SAFETY: libpmix gave function and data together; they are used once. It copies the name before it returns.
        unsafe { function(status.0, nspace.as_mut_ptr(), self.0.data) }
    }
}

impl Drop for SpawnResponder {
    fn drop(&mut self) {
        self.answer(Err(Status::ERROR));
    }
}

/// Answers a group operation.
#[derive(Debug)]
pub struct GroupResponder(
    Owed<
        unsafe extern "C" fn(
            sys::pmix_status_t,
            *mut sys::pmix_info_t,
            usize,
            *mut c_void,
            sys::pmix_release_cbfunc_t,
            *mut c_void,
        ),
    >,
);

impl GroupResponder {
    /// Answers; a constructed group has a context number.
    pub fn complete(mut self, status: Status, context: Option<usize>) {
        self.answer(status, context);
    }

    fn answer(&mut self, status: Status, context: Option<usize>) {
        let Some(function) = self.0.function.take() else { return };
        let infos = context.and_then(|context| {
            let mut infos = Infos(Vec::new());
            let at = ptr::from_ref(&context).cast();
            infos.load(sys::PMIX_GROUP_CONTEXT_ID, at, sys::PMIX_SIZE).ok().map(|()| Box::new(infos))
        });
        let Some(mut infos) = infos else {
            // SAFETY: libpmix gave function and data together; they are used once. Nothing has to be released.
            unsafe { function(status.0, ptr::null_mut(), 0, self.0.data, None, ptr::null_mut()) };
            return;
        };
        let (at, count) = (infos.as_mut_ptr(), infos.0.len());
        let owner = Box::into_raw(infos).cast();
        // SAFETY: as above; the attributes live until libpmix calls `release_infos`.
        unsafe { function(status.0, at, count, self.0.data, Some(release_infos), owner) }
    }
}

impl Drop for GroupResponder {
    fn drop(&mut self) {
        self.answer(Status::ERROR, None);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Upcalls. They run on libpmix's progress thread: copy, push, return.

static UPCALLS: OnceLock<mpsc::UnboundedSender<Upcall>> = OnceLock::new();

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
        let infos = unsafe { slice(info, ninfo) }.iter().map(|info| (fixed(&info.key), &info.value));
        let values = infos.filter(|(key, _)| !is_directive(key)).map(|(key, value)| {
            // SAFETY: libpmix passes sound values.
            (key, unsafe { pack(value) })
        });
        // SAFETY: libpmix passes a process name.
        Upcall::Publish { proc: unsafe { one(proc) }, values: values.collect(), respond: op(function, data) }
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
        Upcall::Lookup {
            // SAFETY: libpmix passes a process name.
            proc: unsafe { one(proc) },
            // SAFETY: libpmix passes an array of strings with a null at its end.
            keys: unsafe { texts(wanted) },
            // SAFETY: libpmix passes that many attributes.
            wait: unsafe { slice(info, ninfo) }.iter().any(|info| fixed(&info.key) == wait),
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
    _range: sys::pmix_data_range_t,
    _info: *mut sys::pmix_info_t,
    _ninfo: usize,
    function: sys::pmix_op_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: libpmix passes null or a process name.
    push(|| Upcall::Notified { proc: unsafe { one(source) }, status: code, respond: op(function, data) })
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
    _name: *mut c_char,
    _procs: *const sys::pmix_proc_t,
    _nprocs: usize,
    _directives: *const sys::pmix_info_t,
    _ndirectives: usize,
    function: sys::pmix_info_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    let construct = operation == sys::PMIX_GROUP_CONSTRUCT;
    push(|| Upcall::Group { construct, respond: GroupResponder(Owed { function, data }) })
}

unsafe extern "C" fn lost_connection(
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

// ---------------------------------------------------------------------------------------------------------------------
// Calls.

/// Starts the server. Once per process.
pub(crate) fn start(settings: &[Setting], infos: Vec<Info>) -> Result<mpsc::UnboundedReceiver<Upcall>, PmixError> {
    let threads = std::fs::read_dir("/proc/self/task").map_or(usize::MAX, Iterator::count);
    let (sender, receiver) = mpsc::unbounded_channel();
    if threads != 1 || UPCALLS.set(sender).is_err() {
        return Err(PmixError::NotFirst);
    }
    for setting in settings {
        // SAFETY: no other thread exists that could read the environment meanwhile.
        unsafe { std::env::set_var(setting.name, setting.value) };
    }
    // A client that dies while it is written to must not end this process.
    // SAFETY: ignoring a signal is always allowed.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };

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
    // Whether libpmix copies the module or keeps a pointer is its own business: it stays for ever.
    let padded = Box::leak(Box::new(padded));
    debug_assert!(padded.padding.iter().all(|word| *word == 0));

    let mut infos = Infos::new(infos)?;
    let count = infos.0.len();
    // SAFETY: the module and as many attributes as are announced; both outlive the call.
    let status = unsafe { sys::PMIx_server_init(ptr::from_mut(padded).cast(), infos.as_mut_ptr(), count) };
    Status(status).result("PMIx_server_init")?;

    let codes = Box::leak(Box::new([sys::PMIX_ERR_LOST_CONNECTION]));
    // SAFETY: one code, which stays for ever; without a callback the call waits until the handler is registered and
    // returns its number.
    let registered = unsafe {
        sys::PMIx_Register_event_handler(
            codes.as_mut_ptr(),
            codes.len(),
            ptr::null_mut(),
            0,
            Some(lost_connection),
            None,
            ptr::null_mut(),
        )
    };
    if registered < 0 {
        return Err(PmixError::Call { call: "PMIx_Register_event_handler", status: Status(registered) });
    }
    Ok(receiver)
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

// ---------------------------------------------------------------------------------------------------------------------
// The process.

/// Takes over the unix socket that this process inherited as descriptor `fd`, and arms SIGKILL for the parent's death.
///
/// # Errors
/// The descriptor is not an open socket, or the signal cannot be armed.
pub fn take_inherited_socket(fd: RawFd) -> std::io::Result<UnixStream> {
    // SAFETY: plain system calls; the numbers are checked by the kernel.
    unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let mut kind: c_int = 0;
        let mut length = size_of::<c_int>() as libc::socklen_t;
        let at: *mut c_void = ptr::from_mut(&mut kind).cast();
        if fd == 1 || fd == 2 || libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_DOMAIN, at, &mut length) != 0 {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, format!("descriptor {fd} is no socket")));
        }
        if kind != libc::AF_UNIX {
            return Err(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                format!("descriptor {fd} is no unix socket"),
            ));
        }
        if libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    // SAFETY: an open socket that the parent left for this process; the environment names it once.
    Ok(unsafe { UnixStream::from_raw_fd(fd) })
}

/// Ends the process at once: libpmix's own exit handlers can deadlock after a client's death.
pub fn leave(code: i32) -> ! {
    // SAFETY: ends the process without running anything.
    unsafe { libc::_exit(code) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_of_the_protocol_are_those_of_the_headers() {
        assert_eq!(Status::SUCCESS.0, ft_wire::pmix::SUCCESS);
        assert_eq!(Status::NOT_FOUND.0, ft_wire::pmix::ERR_NOT_FOUND);
        assert_eq!(Status::NOT_SUPPORTED.0, ft_wire::pmix::ERR_NOT_SUPPORTED);
    }
}
