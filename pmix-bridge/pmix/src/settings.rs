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

/// All of them. They hold for the hosting process alone: what a user has set for the job reaches the ranks unchanged.
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
    Setting {
        name: "PMIX_MCA_pmix_server_fence_localonly_opt",
        value: "0",
        reason: "otherwise libpmix ends a fence of one node alone, and nobody could hold ranks inside MPI_Init or see \
                 that they are there",
    },
    Setting {
        name: "PMIX_MCA_psec",
        value: "native",
        reason: "where munge runs libpmix would ask for it, and a client whose libpmix has no module for that (Open MPI's \
                 wheel) complains of it at each start; who connects is who the kernel says",
    },
    Setting {
        name: "HWLOC_COMPONENTS",
        value: "-linux:pci,-linux:io,-pci,-gl,-opencl",
        reason: "libpmix 4 explores the machine when it starts, and looks at every PCI device, X display and OpenCL \
                 device: 14 of 20 ms on a virtual machine. Nobody asks this process for devices (the ranks look \
                 themselves); what it needs of the processors is kept",
    },
];
