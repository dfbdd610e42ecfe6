//! What libpmix is told through the environment of the process that hosts it.

/// One variable, and why it is set.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Name of the variable.
    pub name: &'static str,
    /// Its value.
    pub value: &'static str,
    /// Why.
    pub reason: &'static str,
}

/// All of them. A variable that the user has set already is left as it is, unless it starts with `PMIX_MCA_gds`.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "PMIX_MCA_gds",
        value: "hash",
        reason: "the shared-memory stores (ds21, shmem) hold non-robust locks in memory shared with clients: a client \
                 that is killed inside one stops the server for ever",
    },
    Setting {
        name: "PMIX_MCA_pmix_event_caching_window",
        value: "0",
        reason: "otherwise a lost connection is told only after a second",
    },
];
