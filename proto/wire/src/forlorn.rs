//! What keeps an MPI from starting as a job of its own in a process of the job that has not joined it.

use crate::{Flavour, pmix};

/// What every rank finds in its environment until it joins, and what the preload then replaces. An MPI to which nobody has
/// told better does not start alone with it, but fails: MPICH and its family at a connection that is none, Open MPI 4 because
/// it looks for a server, Open MPI 5 because a PMIx name space without a rank is no singleton.
pub const FORLORN: [(Flavour, (&str, &str)); 3] = [
    (Flavour::Mpich, ("PMI_FD", "2147483647")),
    (Flavour::OpenMpi, ("PMIX_NAMESPACE", "not-joined")),
    (Flavour::OpenMpi, pmix::NOT_SINGLETON),
];

/// One of them, as the preload gives it to a program whose environment was cleared: it does the same, and tells the agent so.
pub const CLEARED: (&str, &str) = ("PMIX_NAMESPACE", "environment-cleared");
