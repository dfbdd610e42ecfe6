//! What keeps an MPI from starting as a job of its own in a process of the job that has not joined it.

use crate::{Flavour, pmix};

/// Begins the value of each of MPICH's settings in [`FORLORN`] that nobody can read.
const UNREADABLE: &str = "not-joined";

/// The settings of MPICH and of Intel's that are unreadable until a process has joined: a switch that both read before anything else
/// in `MPI_Init`, and without which neither goes on. None of the `PMI_*`, which an MPI of another's would believe.
pub const SETTINGS: [&str; 2] = ["MPIR_CVAR_ASYNC_PROGRESS", "I_MPI_ASYNC_PROGRESS"];

/// What every rank finds in its environment until it joins, and what the preload then replaces. An MPI to which nobody has
/// told better does not start alone with it, but fails: MPICH and its family at a setting that cannot be read, Open MPI 4 because
/// it looks for a server, Open MPI 5 because a PMIx name space without a rank is no singleton.
pub const FORLORN: [(Flavour, (&str, &str)); 4] = [
    (Flavour::Mpich, (SETTINGS[0], UNREADABLE)),
    (Flavour::Mpich, (SETTINGS[1], UNREADABLE)),
    (Flavour::OpenMpi, ("PMIX_NAMESPACE", "not-joined")),
    (Flavour::OpenMpi, pmix::NOT_SINGLETON),
];

/// One of them, as the preload gives it to a program whose environment was cleared: it does the same, and tells the agent so.
pub const CLEARED: (&str, &str) = ("PMIX_NAMESPACE", "environment-cleared");

/// The value of one of the [`SETTINGS`] until the process joins, which keeps the user's own.
pub fn unreadable(users: Option<&[u8]>) -> Vec<u8> {
    let mut value = UNREADABLE.as_bytes().to_vec();
    if let Some(users) = users {
        value.push(b':');
        value.extend_from_slice(users);
    }
    value
}

/// What the user had set there: none where this is the user's value itself, some of none where there was no value.
pub fn users(value: &[u8]) -> Option<Option<&[u8]>> {
    match value.strip_prefix(UNREADABLE.as_bytes())? {
        [] => Some(None),
        [b':', users @ ..] => Some(Some(users)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{unreadable, users};

    #[test]
    fn what_the_user_has_set_is_kept_within_what_cannot_be_read() {
        for own in [None, Some(&b""[..]), Some(b"1"), Some(b"not-joined:x"), Some(b"a:b\xff")] {
            assert_eq!(users(&unreadable(own)), Some(own));
        }
        for own in ["", "1", "not-joine", "not-joinedx"] {
            assert_eq!(users(own.as_bytes()), None, "{own} is the user's");
        }
    }
}
