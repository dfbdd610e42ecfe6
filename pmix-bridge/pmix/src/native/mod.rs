//! Everything that touches libpmix or file descriptors by number: the only `unsafe` of this crate.

mod calls;
mod make;
mod process;
mod promptly;
mod read;
mod respond;
mod upcalls;

pub(crate) use calls::{modex_request, raise, register_client, register_namespace, setup_fork, start, version};
pub use process::{leave, take_inherited_socket};
pub use respond::{Constructed, GroupResponder, LookupResponder, ModexResponder, OpResponder, SpawnResponder};

use crate::PmixError;

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
        let name = unsafe { read::text(sys::PMIx_Error_string(self.0)) };
        write!(f, "{name} ({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_of_the_protocol_are_those_of_the_headers() {
        assert_eq!(Status::SUCCESS.0, ft_wire::pmix::SUCCESS);
        assert_eq!(Status::ERROR.0, ft_wire::pmix::ERROR);
        assert_eq!(Status::NOT_FOUND.0, ft_wire::pmix::ERR_NOT_FOUND);
        assert_eq!(Status::NOT_SUPPORTED.0, ft_wire::pmix::ERR_NOT_SUPPORTED);
        assert_eq!(sys::PMIX_ERR_OUT_OF_RESOURCE, ft_wire::pmix::ERR_OUT_OF_RESOURCE);
        assert_eq!(sys::PMIX_ERR_TIMEOUT, ft_wire::pmix::ERR_TIMEOUT);
        assert_eq!(sys::PMIX_ERR_DUPLICATE_KEY, ft_wire::pmix::ERR_DUPLICATE_KEY);
        assert_eq!(sys::PMIX_ERR_PARTIAL_SUCCESS, ft_wire::pmix::ERR_PARTIAL_SUCCESS);
    }
}
