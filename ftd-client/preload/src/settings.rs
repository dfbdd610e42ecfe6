//! The user's own values of the settings that no MPI can read until the process joins.

use crate::link::set_variable;
use crate::page;
use ft_wire::forlorn::{SETTINGS, users};
use std::os::unix::ffi::OsStrExt;

/// What was there before the user's own values came back.
#[derive(Default)]
pub(crate) struct Taken(Vec<(&'static str, Vec<u8>)>);

/// Sets them to what the user has set, or has not.
pub(crate) fn give_back() -> Taken {
    let mut taken = Taken::default();
    for name in SETTINGS {
        let Some(value) = std::env::var_os(name) else { continue };
        if let Some(users) = users(value.as_bytes()) {
            set_variable(name, users);
            taken.0.push((name, value.as_bytes().to_vec()));
        }
    }
    taken
}

impl Taken {
    /// Nobody can read them again: what the process starts now has not joined either.
    pub(crate) fn put_back(self) {
        if page::has_joined() {
            return;
        }
        for (name, value) in self.0 {
            set_variable(name, Some(&value));
        }
    }
}
