"""What a script around a rank does, and when a rank is one that a script stands above."""

import os
import re
import signal
import subprocess

from harness.job import check
from harness.registry import scenario

# What it does after a rank that was killed takes longer than the test; one that ended well it only reports.
GOES_ON = '"$@"; code=$?; if [ $code != 0 ]; then sleep 600; fi; exit $code'

PYTHON = """
import ctypes, os

ft = ctypes.CDLL("libftd_client.so.0")
ft.ft_checkpoint.argtypes = [ctypes.c_uint64]
ft.ft_protect.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
state, version, step = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_int()
assert ft.ft_init(ctypes.byref(state)) == 0
assert ft.ft_protect(0, ctypes.byref(step), 4) == 0
ft.ft_restore(ctypes.byref(version))
while step.value < 15:
    step.value += 1
    print("rank", os.environ["FT_RANK"], "step", step.value, flush=True)
    if step.value % 4 == 0:
        assert ft.ft_checkpoint(step.value) == 0
print("rank", os.environ["FT_RANK"], "done")
ft.ft_finalize()
"""


def without_mpi(context, how):
    """Command line of a program that uses the checkpoint library and has no MPI, or (`mpi`) calls it later."""
    if how == "python":
        (context.work / "apionly.py").write_text(PYTHON)
        return ["/usr/bin/python3", "apionly.py"]
    program, include, lib = context.work / f"apionly-{how}", context.prefix / "include", context.prefix / "lib"
    source = next((context.scratch / "src").rglob("apionly.f90" if how == "fortran" else "apionly.c"))
    compiler = {"c": ["gcc"], "cplusplus": ["g++", "-x", "c++"], "fortran": ["gfortran", "-J", context.work, include / "ft.f90"],
                "mpi": ["mpicc.openmpi", "-DTHEN_MPI"]}[how]
    subprocess.run(
        [*compiler, source, "-o", program, "-I", include, "-I", source.parent, "-L", lib, f"-Wl,-rpath,{lib}", "-lftd_client",
         "-lpthread"], check=True,
    )
    return [program]


@scenario("api-below-a-script", each=[{"how": how} for how in ("c", "cplusplus", "fortran", "python", "mpi")])
def api_below_a_script(context, how):
    """A rank that is protected by the API and calls no MPI, or only later, is killed below a script which would go on for long:
    it is recovered like any other."""
    mpi = context.mpi("openmpi4") if how == "mpi" else None
    job = context.ftrun(
        mpi, 2, "bash", "-c", GOES_ON, "bash", *without_mpi(context, how),
        gates=["client.copied:0:3", "client.copied:1:3"], env={"LD_LIBRARY_PATH": context.prefix / "lib"},
    )
    job.at_gate("client.copied", 0)
    job.kill(job.at_gate("client.copied", 1))
    job.expect(0)
    check(job.restored == [8] and "failed    rank 1 on node 0 was killed by SIGKILL\n" in job.err, job.err)
    for rank in range(2):
        check(f"rank {rank} done\n" in job.output.text, job.output.text)


@scenario("api-own-deaths", each=[{"how": "below"}, {"how": "left"}])
def api_own_deaths(context, how):
    """Such a rank that crashes is a program that dies by itself, whatever its script makes of it; also when that has left it."""
    script = GOES_ON if how == "below" else '"$@" & exit 0'
    job = context.ftrun(
        None, 2, "bash", "-c", script, "bash", *without_mpi(context, "c"), "crash", options=["--ft-max-failures=3"]
    )
    job.expect(128 + signal.SIGSEGV)
    check("the program died by itself" in job.err and "was killed by SIGSEGV" in job.err, job.err)


@scenario("api-then-others", each=[{"how": how} for how in ("well", "fails", "twice", "mpi")])
def api_then_others(context, how):
    """Its own end is no death: what the script does next counts, be it another program of this kind or one with MPI, which is
    the rank then."""
    mpi, api = context.mpi("openmpi4"), without_mpi(context, "c")
    second = context.program(mpi, "places.c")
    script = {
        "well": '"$@" threads; sleep 0.2; echo after',
        "fails": '"$@"; exit 3',
        "twice": '"$@" leaves; "$@"; code=$?; [ $code = 0 ] || sleep 600; echo after; exit $code',
        "mpi": f'"$@" leaves; {second}; code=$?; [ $code = 0 ] || sleep 600; exit $code',
    }[how]
    gates = {"mpi": ["app.compute:1"], "twice": ["client.copied:0:3", "client.copied:1:3"]}.get(how, [])
    job = context.ftrun(mpi, 2, "bash", "-c", script, "bash", *api, gates=gates)
    for gate in gates:
        name, rank, *_ = gate.split(":")
        victim = job.at_gate(name, rank)
    if gates:
        job.kill(victim)
    if how == "mpi":
        job.expect(0, context.reference(mpi, 2, second))
    else:
        job.expect(3 if how == "fails" else 0)
    if gates:
        return check(len(job.restored) == 1, job.err)
    check(job.restored == [], job.err)
    check(job.output.text.count("after\n") == (2 if how in ("well", "twice") else 0), job.output.text)
