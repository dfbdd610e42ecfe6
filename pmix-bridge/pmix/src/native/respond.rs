//! Responders: each gives libpmix the answer that it is owed, exactly once.

use super::make::{Infos, proc_to, put_text, unpack};
use super::{Status, sys};
use ft_wire::pmix::Proc;
use std::ffi::{c_char, c_void};
use std::ptr;

/// A callback that is owed to libpmix.
#[derive(Debug)]
pub(super) struct Owed<F> {
    /// `None` after the answer, or when libpmix wants none.
    pub(super) function: Option<F>,
    pub(super) data: *mut c_void,
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
pub struct OpResponder(pub(super) Owed<unsafe extern "C" fn(sys::pmix_status_t, *mut c_void)>);

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
    pub(super)  Owed<
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
pub struct LookupResponder(
    pub(super) Owed<unsafe extern "C" fn(sys::pmix_status_t, *mut sys::pmix_pdata_t, usize, *mut c_void)>,
);

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
pub struct SpawnResponder(pub(super) Owed<unsafe extern "C" fn(sys::pmix_status_t, *mut c_char, *mut c_void)>);

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

/// A group that has come about.
#[derive(Debug)]
pub struct Constructed {
    /// A number that no other one has.
    pub context: usize,
    /// Who is in it. Libraries before 4.2.3 do not ask; later ones fail without.
    pub members: Vec<Proc>,
    /// What the members gave for each other.
    pub shared: Option<Vec<u8>>,
}

impl Constructed {
    fn infos(self) -> Option<Infos> {
        let mut infos = Infos(Vec::new());
        infos.load(sys::PMIX_GROUP_CONTEXT_ID, ptr::from_ref(&self.context).cast(), sys::PMIX_SIZE).ok()?;
        let mut members: Vec<_> = self.members.iter().map(|proc| proc_to(&proc.nspace, proc.rank)).collect();
        let array = sys::pmix_data_array_t {
            type_: sys::PMIX_PROC as _,
            size: members.len(),
            array: members.as_mut_ptr().cast(),
        };
        // libpmix copies the names, and the bytes below.
        infos.load(sys::PMIX_GROUP_MEMBERSHIP, ptr::from_ref(&array).cast(), sys::PMIX_DATA_ARRAY).ok()?;
        if let Some(mut shared) = self.shared.filter(|shared| !shared.is_empty()) {
            let object = sys::pmix_byte_object_t { bytes: shared.as_mut_ptr().cast(), size: shared.len() };
            infos.load(sys::PMIX_GROUP_ENDPT_DATA, ptr::from_ref(&object).cast(), sys::PMIX_BYTE_OBJECT).ok()?;
        }
        Some(infos)
    }
}

/// Answers a group operation.
#[derive(Debug)]
pub struct GroupResponder(
    pub(super)  Owed<
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
    /// Answers.
    pub fn complete(mut self, status: Status, constructed: Option<Constructed>) {
        self.answer(status, constructed);
    }

    fn answer(&mut self, status: Status, constructed: Option<Constructed>) {
        let Some(function) = self.0.function.take() else { return };
        let Some(mut infos) = constructed.and_then(Constructed::infos).map(Box::new) else {
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
