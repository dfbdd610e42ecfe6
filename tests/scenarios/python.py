"""The module ftd: Python programs that are protected by it, killed after a checkpoint."""

import re

from harness import mpis
from harness.job import check
from harness.registry import scenario

from scenarios.output import check_printed

# Debian's mpi4py is built for Open MPI 4; the wheel loads whichever MPI it finds by that name.
WHEEL = f"{mpis.PREFIX}/mpi4py/lib/python3.11/site-packages"
LIBRARIES = {"openmpi5": f"{mpis.PREFIX}/openmpi5/lib", "mpich5": f"{mpis.PREFIX}/mpich5/lib", "impi": f"{mpis.PREFIX}/impi/lib"}


def surroundings(context, mpi=None):
    """Where Python finds the module, and mpi4py its MPI."""
    path, env = f"{context.prefix}/share/ftd/python", {}
    if mpi in LIBRARIES or mpi == "mpich4":
        where = LIBRARIES.get(mpi)
        if where is None:
            # Debian calls it by another name than all others of its ABI.
            where = context.work / "lib"
            where.mkdir(exist_ok=True)
            (where / "libmpi.so.12").symlink_to("/usr/lib/x86_64-linux-gnu/libmpich.so.12")
        env = {"LD_LIBRARY_PATH": where, "MPI4PY_LIBMPI": f"{where}/libmpi.so.{40 if mpi == 'openmpi5' else 12}"}
        path = f"{WHEEL}:{path}"
    return {"PYTHONPATH": path, **env}


@scenario("python-heat2d", each=[{"mpi": mpi} for mpi in ("openmpi4", "openmpi5", "mpich4", "mpich5", "impi")])
def python_heat2d(context, mpi):
    """The example with mpi4py and numpy: its second rank dies between copy and commit of its fourth checkpoint, and every step's hash
    is that of the example in C."""
    env, mpi = surroundings(context, mpi), context.mpi(mpi)
    arguments = ["-g", "64", "-s", "30", "-c", "5"]
    reference = context.reference(mpi, 3, context.program(mpi, "heat2d.c"), *arguments)
    program = context.prefix / "share/doc/ftd/examples/heat2d/heat2d.py"
    job = context.ftrun(mpi, 3, "/usr/bin/python3", "-m", "mpi4py", program, *arguments, env=env, gates=["client.copied:1:4"])
    victim = job.at_gate("client.copied", 1)
    check(mpi.loaded(victim), "it runs without this MPI")
    job.kill(victim)
    job.expect(0, reference)
    check(job.restored == [15] and job.output.starts[-1] == 15, f"restored {job.restored}: {job.output.text}")


GROWING = """
import array, os, random, sys
if sys.argv[1] == "numpy":
    import numpy
import ftd


class Walker:
    def __init__(self, name):
        self.name, self.way = name, []


rank = int(os.environ["FT_RANK"])
own = bytearray(8)
state = ftd.protect(step=0, random=random.Random(rank), walkers={}, text="", raw=bytearray(), numbers=array.array("d"),
                    fixed=bytearray(8), window=memoryview(own), holder=None)
fixed = state.fixed
state.holder = {"state": state, "fixed": fixed}
if sys.argv[1] == "numpy":
    state.field, state.deep, state.days = numpy.zeros((2, 3), order="F"), {}, numpy.zeros(2, "datetime64[s]")
    field = state.field
version = ftd.restore()
if version is not None:
    print("rank", rank, "restored", version)
    assert state.step == version, (state.step, version)
    # Filled where it is, and shared as it was.
    assert state.fixed is fixed and state.holder["fixed"] is fixed and state.holder["state"] is state is ftd.state
    assert fixed == own == version.to_bytes(8, "little"), (fixed, own)
    if sys.argv[1] == "numpy":
        assert state.field is field and state.field.flags.f_contiguous
        assert (field == version).all() and state.days.dtype == "datetime64[s]"
while state.step < 20:
    state.step += 1
    fixed[:] = own[:] = state.step.to_bytes(8, "little")
    walker = state.walkers.setdefault(state.step % 7, Walker(f"walker {state.step}"))
    walker.way.append((state.step, state.random.random()))
    state.text += "x" * (state.step * 1000)
    state.raw += os.urandom(0) + bytes([state.step]) * state.step * 100
    state.numbers.append(state.random.gauss(0, 1))
    seen = [len(state.text), bytes(state.raw), state.numbers, sorted((n, w.name, w.way) for n, w in state.walkers.items())]
    if sys.argv[1] == "numpy":
        field[...] = state.step
        # Small ones, and one that is a region of its own.
        state.deep[state.step] = numpy.full(20000 if state.step % 3 else 10, state.random.random())
        state.table = numpy.arange(state.step * 5, dtype="f4").reshape(-1, 5) * state.step
        state.days += numpy.timedelta64(state.step, "s")
        seen += [field.tobytes(), {n: a.tobytes() for n, a in state.deep.items()}, state.table.tobytes(), state.days.tobytes()]
    else:
        assert "numpy" not in sys.modules
    import hashlib
    print("rank", rank, "step", state.step, "hash", hashlib.sha256(repr(seen).encode()).hexdigest()[:16])
    if ftd.due() or state.step % 2 == 0:
        ftd.checkpoint(state.step)
ftd.finalize()
"""


@scenario("python-growing", each=[{"how": "plain"}, {"how": "numpy"}])
def python_growing(context, how):
    """Objects, bytes and arrays that grow from checkpoint to checkpoint, with numpy and without: what a killed rank's successor goes on
    with is what it was, in the place where it was, and shared by whom it was."""
    (context.work / "growing.py").write_text(GROWING)

    def hashes(job):
        return set(re.findall(r"^(rank \d step \d+ hash \w+)$", job.output.text, re.M))

    calm = context.ftrun(None, 2, "/usr/bin/python3", "growing.py", how, env=surroundings(context))
    calm.expect(0)
    job = context.ftrun(None, 2, "/usr/bin/python3", "growing.py", how, env=surroundings(context), gates=["client.copied:1:6"])
    job.kill(job.at_gate("client.copied", 1))
    job.expect(0)
    check(len(job.restored) == 1 and job.restored[0] >= 4, f"restored {job.restored}")
    check(job.output.text.count(f" restored {job.restored[0]}\n") == 2, job.output.text)
    check(hashes(job) == hashes(calm) and len(hashes(job)) == 40, f"{sorted(hashes(job) ^ hashes(calm))}: {job.err}")


PRINTING = """
import io, os, sys
import ftd

if sys.argv[1] == "stderr":
    sys.stderr = io.TextIOWrapper(io.BufferedWriter(io.FileIO(2, "w", closefd=False)))
out = getattr(sys, sys.argv[1])
state = ftd.protect(step=0)
ftd.restore()
while state.step < 15:
    state.step += 1
    print("rank", os.environ["FT_RANK"], "step", state.step, file=out)
    if state.step % 4 == 0:
        ftd.checkpoint(state.step)
ftd.finalize()
"""


@scenario("python-printed", each=[{"stream": "stdout"}, {"stream": "stderr"}])
def python_printed(context, stream):
    """What was printed to sys.stdout, and to a sys.stderr with a buffer, before a version is out before the version counts."""
    (context.work / "printing.py").write_text(PRINTING)
    command = ["/usr/bin/python3", "printing.py", stream]
    command = command if stream == "stdout" else ["bash", "-c", 'exec "$@" 2>&1', "bash", *command]
    job = context.ftrun(None, 2, *command, env=surroundings(context), gates=["client.copied:0:3", "client.copied:1:3"])
    job.at_gate("client.copied", 0)
    job.kill(job.at_gate("client.copied", 1))
    job.expect(0)
    check(job.restored == [8], f"restored {job.restored}")
    check_printed(job, 2, 15, 8)


ERRORS = """
import os, re, signal
import ftd


def refused(code, words, call, *arguments):
    try:
        call(*arguments)
    except ftd.Error as error:
        assert error.code == code and re.search(words, str(error)), (error.code, str(error))
    else:
        raise AssertionError(f"{words}: it succeeded")


header = open(os.environ["HEADER"]).read()
numbers = {name: int(number) for name, number in re.findall(r"FT_ERR_(\\w+) = (\\d+)", header)}
assert numbers == {"NONE": 1, **{code.name: code.value for code in ftd.Code}}, numbers
again = os.environ.get("FT_WORLD", "1") != "1"
refused(ftd.Code.ORDER, "ft_protect: the call comes too early or too late", ftd.checkpoint, 1)
state = ftd.protect(step=0, window=memoryview(bytearray(4 if again else 8)))
called = []
if again:
    refused(ftd.Code.ORDER, "ft_checkpoint: the call comes too early", ftd.checkpoint, 9)
    refused(ftd.Code.SIZE, "state.window is a memoryview of 8 bytes in version 4", ftd.restore)
    state.window = memoryview(bytearray(8))
    assert ftd.restore() == 4 and state.step == 3 and bytes(state.window) == b"12345678", state
    ftd.finalize()
    refused(ftd.Code.ORDER, "ft_protect: the call comes too early or too late", ftd.checkpoint, 10)
    print("end")
else:
    assert ftd.restore() is None and ftd.due() is True
    ftd.on_checkpoint(lambda: called.append("first"))
    ftd.on_checkpoint(lambda: called.append("last"))
    state.step, state.window[:] = 3, b"12345678"
    ftd.checkpoint(4)
    assert called == ["last", "first"], called
    refused(ftd.Code.VERSION, "ft_checkpoint: the version is not greater than the one before", ftd.checkpoint, 4)
    refused(ftd.Code.ARGUMENT, "version -1 is not between 0", ftd.checkpoint, -1)
    state.wrong = {"deep": open("/dev/null")}
    refused(ftd.Code.ARGUMENT, "state.wrong cannot be pickled, and nothing was written: .*TextIOWrapper", ftd.checkpoint, 5)
    refused(ftd.Code.ORDER, "ft_restore: the call comes too early or too late", ftd.restore)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@scenario("python-errors")
def python_errors(context):
    """Each refused call is an exception with its number and a sentence, and takes nothing away: the version before is restored."""
    (context.work / "errors.py").write_text(ERRORS)
    env = {**surroundings(context), "HEADER": context.prefix / "include/ft.h"}
    job = context.ftrun(None, 1, "/usr/bin/python3", "errors.py", env=env)
    job.expect(0)
    check(job.restored == [4] and job.output.text == "end\n", f"{job.output.text}{job.err}")
    check("version 4 is not greater than version 4" in job.err, job.err)


@scenario("python-without-ftd", each=[{"how": how} for how in ("alone", "none", "openmpi4", "mpich4")])
def python_without_ftd(context, how):
    """Without ftd, under --ft=none and under an MPI's own launcher the same program runs, and it is said once that nothing is protected."""
    program, env = context.prefix / "share/doc/ftd/examples/walk/walk.py", surroundings(context)
    command = ["/usr/bin/python3", program, "20"]
    if how == "none":
        job = context.ftrun(None, 2, *command, ft="none", env=env)
    else:
        mpi = None if how == "alone" else context.mpi(how)
        job = context.start(command if how == "alone" else mpi.mpiexec(2, *command), mpi=mpi, env=env)
    job.expect(0)
    check(job.output.text.count(" step 20 hash ") == (1 if how == "alone" else 2), job.output.text)
    check(job.err.count("its checkpoints protect nothing") == 1, job.err)
