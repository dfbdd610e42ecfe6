"""The MPI libraries of the tests: how programs are compiled for them, run with them, and started by their own launcher."""

import os
import re
import shutil
import subprocess

PREFIX = os.environ.get("FTD_TEST_PREFIX", "/var/lib/ftd-test")


class Mpi:
    """One MPI installation."""

    def __init__(self, name, cc, launcher, family, library, env=None, launcher_options=(), fc=None):
        self.name = name
        # Where its library is, and how that is called.
        self.library = re.compile(library)
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

    def loaded(self, pid):
        """The libraries of MPI that a process has mapped. That another MPI's is among them is an error: LD_LIBRARY_PATH or a
        missing run path may silently put one in the place of the other."""
        with open(f"/proc/{pid}/maps", errors="surrogateescape") as file:
            mapped = {found[1] for line in file if (found := re.search(r"(/\S*/libmpi(?:ch|_abi)?\.so[.\d]*)$", line.rstrip()))}
        wrong = sorted(path for path in mapped if not self.library.search(path))
        if wrong:
            raise LookupError(f"process {pid} runs with {wrong}, not with {self.name}")
        return mapped

    def library_of(self, program, env):
        """The library that a program of this MPI's finds."""
        found = subprocess.run(["ldd", program], env=env, capture_output=True, text=True, check=True).stdout
        return re.search(r"=> (\S*/(?:libmpi|libmpich|libmpi_abi)\.so\S*)", found)[1]

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
            r"^/usr/lib/.*/libmpi\.so\.40",
            {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader,tcp", "OMPI_MCA_mpi_yield_when_idle": "1"},
            ["--oversubscribe"],
            fc="/usr/bin/mpif90.openmpi",
        ),
        Mpi(
            "openmpi5",
            f"{PREFIX}/openmpi5/bin/mpicc",
            f"{PREFIX}/openmpi5/bin/mpiexec",
            "openmpi",
            rf"^{PREFIX}/openmpi5/.*/libmpi\.so\.40",
            _openmpi5({"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm,tcp", "OMPI_MCA_mpi_yield_when_idle": "1"}),
            ["--oversubscribe"],
        ),
        Mpi("mpich4", "/usr/bin/mpicc.mpich", "/usr/bin/mpiexec.mpich", "mpich", r"^/usr/lib/.*/libmpich\.so\.12",
            fc="/usr/bin/mpif90.mpich"),
        Mpi("mpich5", f"{PREFIX}/mpich5/bin/mpicc", f"{PREFIX}/mpich5/bin/mpiexec", "mpich", rf"^{PREFIX}/mpich5/.*/libmpi\.so"),
        Mpi("mpich5abi", f"{PREFIX}/mpich5/bin/mpicc_abi", f"{PREFIX}/mpich5/bin/mpiexec", "mpich",
            rf"^{PREFIX}/mpich5/.*/libmpi_abi\.so"),
        # A run-time without compiler: programs are compiled with MPICH, whose ABI it has.
        Mpi(
            "impi",
            f"{PREFIX}/mpich5/bin/mpicc",
            f"{PREFIX}/impi/bin/mpiexec.hydra",
            "mpich",
            rf"^{PREFIX}/impi/.*/libmpi\.so\.12",
            {"LD_LIBRARY_PATH": f"{PREFIX}/impi/lib", "I_MPI_ROOT": f"{PREFIX}/impi", "I_MPI_FABRICS": "shm"},
        ),
    ]
}
