"""The MPI libraries of the tests: how programs are compiled for them, run with them, and started by their own launcher."""

import os
import shutil

PREFIX = os.environ.get("FTD_TEST_PREFIX", "/var/lib/ftd-test")


class Mpi:
    """One MPI installation."""

    def __init__(self, name, cc, launcher, family, env=None, launcher_options=(), fc=None):
        self.name = name
        self.cc = cc
        self.fc = fc
        self.launcher = launcher
        self.launcher_options = list(launcher_options)
        self.family = family
        # The tests choose shared memory without long probing, and ranks that yield: otherwise most of their time would be
        # MPI_Init's, and that of ranks spinning beside those that have something to do.
        self.env = env or {}

    def available(self):
        """Whether it is installed here."""
        return shutil.which(self.cc) is not None

    def mpiexec(self, size, *command):
        """Command line that starts `command` without ftd."""
        return [self.launcher, *self.launcher_options, "-n", str(size), *command]

    def __repr__(self):
        return self.name


def _openmpi5(env):
    return {"OPAL_PREFIX": f"{PREFIX}/openmpi5", **env}


ALL = {
    mpi.name: mpi
    for mpi in [
        Mpi(
            "openmpi4",
            "/usr/bin/mpicc.openmpi",
            "/usr/bin/mpiexec.openmpi",
            "openmpi",
            {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader,tcp", "OMPI_MCA_mpi_yield_when_idle": "1"},
            ["--oversubscribe"],
            fc="/usr/bin/mpif90.openmpi",
        ),
        Mpi(
            "openmpi5",
            f"{PREFIX}/openmpi5/bin/mpicc",
            f"{PREFIX}/openmpi5/bin/mpiexec",
            "openmpi",
            _openmpi5({"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm,tcp", "OMPI_MCA_mpi_yield_when_idle": "1"}),
            ["--oversubscribe"],
        ),
        Mpi("mpich4", "/usr/bin/mpicc.mpich", "/usr/bin/mpiexec.mpich", "mpich", fc="/usr/bin/mpif90.mpich"),
        Mpi("mpich5", f"{PREFIX}/mpich5/bin/mpicc", f"{PREFIX}/mpich5/bin/mpiexec", "mpich"),
        Mpi("mpich5abi", f"{PREFIX}/mpich5/bin/mpicc_abi", f"{PREFIX}/mpich5/bin/mpiexec", "mpich"),
        # A run-time without compiler: programs are compiled with MPICH, whose ABI it has.
        Mpi(
            "impi",
            f"{PREFIX}/mpich5/bin/mpicc",
            f"{PREFIX}/impi/bin/mpiexec.hydra",
            "mpich",
            {"LD_LIBRARY_PATH": f"{PREFIX}/impi/lib", "I_MPI_ROOT": f"{PREFIX}/impi", "I_MPI_FABRICS": "shm"},
        ),
    ]
}
