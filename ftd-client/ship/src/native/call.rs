//! How calls of libfabric fail, and what has to be done before the first one.

use super::bindings as fi;
use std::ffi::CStr;

/// A call of libfabric that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {}", words(*.code))]
pub struct FabricError {
    /// The call.
    pub call: &'static str,
    /// Its positive code.
    pub code: i32,
}

/// What libfabric has for an error code.
fn words(code: i32) -> String {
    // SAFETY: returns a string that is never freed, for any number.
    let text = unsafe { fi::fi_strerror(code) };
    if text.is_null() {
        return format!("error {code}");
    }
    // SAFETY: as above; not null.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// What a call returned, where everything below zero is an error.
pub(super) fn check(call: &'static str, code: impl Into<i64>) -> Result<i64, FabricError> {
    let code = code.into();
    if code < 0 { Err(FabricError { call, code: i32::try_from(-code).unwrap_or(i32::MAX) }) } else { Ok(code) }
}

/// Closes what libfabric has opened; whether it is closed.
///
/// # Safety
/// It is open, and nobody uses it afterwards.
pub(super) unsafe fn close(fid: *mut fi::fid) -> bool {
    // SAFETY: by the caller.
    unsafe { fi::fi_close(fid) == 0 }
}

/// Bytes of a message that goes at once.
const MESSAGE: &str = "256";

/// Sets what libfabric takes from the environment. To be called before this process has another thread, and before libfabric is used.
pub fn set_environment() {
    // SAFETY: there is one thread, as the caller says.
    unsafe {
        // What is registered is memory that others punch holes into, of which a cache hears nothing.
        std::env::set_var("FI_MR_CACHE_MAX_COUNT", "0");
        // Each endpoint takes thousands of these buffers when it is opened, 68 MB where they are as long as usual, and there is one for each
        // move: they are for messages, of which there are none. The ends of a connection have to agree on the second one, and it on the
        // first.
        std::env::set_var("FI_OFI_RXM_BUFFER_SIZE", MESSAGE);
        std::env::set_var("FI_OFI_RXM_EAGER_LIMIT", MESSAGE);
        // Of the user's MPI, which may want another one than the agent has asked for.
        std::env::remove_var("FI_PROVIDER");
    }
}
