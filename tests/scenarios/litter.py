"""Only what is ours: files and segments of the program, and of others, stay; those that killed ranks leave go."""

import ctypes
import os
import pathlib
import re
import signal
import subprocess
import time

from harness import proc
from harness.job import check
from harness.mpis import ALL
from harness.registry import scenario

SHM = pathlib.Path("/dev/shm")
LIBC = ctypes.CDLL(None, use_errno=True)
IPC_RMID = 0


def remove_segment(number):
    """A segment that must be there still, and is this test's to remove."""
    check(str(number) in proc.segments(), f"segment {number} is gone")
    LIBC.shmctl(int(number), IPC_RMID, None)


@scenario("own-memory", public=True,
          each=[{"mpi": m, "how": h} for m in ("openmpi4", "mpich4", "mpich5", "impi") for h in ("none", "reinit", "recovery")])
def own_memory(context, mpi, how):
    """What the program itself has in shared memory is as the program left it: with --ft=none, with --ft=reinit when nothing
    fails, and after a recovery, in which the next world finds it: files, and segments that nobody is attached to. The
    segments of those who were killed are named at the end."""
    mpi = context.mpi(mpi)
    name = f"psm_ftd-{os.getpid()}"
    gates = ["app.compute:1"] if how == "recovery" else []
    job = context.ftrun(mpi, 3, context.program(mpi, "ownshm.c"), f"/{name}", ft="none" if how == "none" else "reinit",
                        gates=gates)
    if how == "recovery":
        job.kill(job.at_gate("app.compute", 1))
    try:
        job.expect(0)
        counts = re.findall(r"^rank (\d) count (\d) segment (\d+)$", job.output.text, re.M)
        expected = "2" if how == "recovery" else "1"
        check(sorted(rank for rank, _, _ in counts) == ["0", "1", "2"], job.output.text)
        check(all(count == expected for _, count, _ in counts), f"counts, expected {expected}: {counts}")
        for rank in range(3):
            check((SHM / f"{name}.{rank}").exists(), f"the program's {name}.{rank} was removed")
        said = re.findall(r"^ftd: left in shared memory.*$", job.err, re.M)
        check(len(said) == (1 if how == "recovery" else 0), f"it is not said once, or without a reason: {job.err}")
        for _, _, segment in counts:
            remove_segment(segment)
            check(not said or f"System V segment {segment}, which the program made" in said[0], job.err)
    finally:
        for path in SHM.glob(f"{name}.*"):
            path.unlink()


MPI_IO = """
#include "gate.h"
#include <mpi.h>
int main(int argc, char **argv) {
    MPI_File file;
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file)) return 1;
    MPI_File_write_at(file, 0, argv[1], 4, MPI_CHAR, MPI_STATUS_IGNORE);
    MPI_File_close(&file);
    gate_reach("app.compute", rank);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
"""


@scenario("own-memory-mpi-io", public=True,
          each=[{"mpi": m, "how": h} for m in ("openmpi4", "mpich4", "mpich5") for h in ("none", "recovery")])
def own_memory_mpi_io(context, mpi, how):
    """A file that the program makes below /dev/shm with MPI-IO is the program's, though the MPI opens it. After a kill nobody can be
    certain of that, and it is named; but where the part of the MPI that opens it is loaded after MPI_Init (Open MPI 4)."""
    mpi = context.mpi(mpi)
    source, program = context.work / "io.c", context.work / "io"
    source.write_text(MPI_IO)
    subprocess.run([mpi.cc, "-I", context.scratch / "src/programs", "-o", program, source], env=context.env(mpi, {}), check=True)
    path = SHM / f"ftd-test-mpi-io-{os.getpid()}"
    try:
        if how == "recovery":
            job = context.ftrun(mpi, 2, program, path, gates=["app.compute:1"])
            job.kill(job.at_gate("app.compute", 1))
            job.expect(0)
        else:
            job = context.ftrun(mpi, 2, program, path, ft="none")
            job.expect(0)
        check(path.exists(), "the program's file was removed")
        said = re.findall(r"^ftd: left in shared memory.*$", job.err, re.M)
        check(len(said) == (how == "recovery" and mpi.name != "openmpi4") and all(str(path) in line for line in said), job.err)
    finally:
        path.unlink(missing_ok=True)


OWN_LIBRARY = """
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/shm.h>
int make_own(const char *name) {
    int file = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
    return file < 0 ? -1 : shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
}
"""


def own_libraries(context, number):
    """Libraries of a program's own, each in a file of its own."""
    source = context.work / "own.c"
    source.write_text(OWN_LIBRARY)
    libraries = [context.work / f"libown{n}.so" for n in range(number)]
    for library in libraries:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return libraries


@scenario("own-memory-loaded", public=True, each=[{"mpi": m, "when": w} for m in ALL for w in ("late", "during")])
def own_memory_loaded(context, mpi, when):
    """What a library makes that the program loads after MPI_Finalize, where the MPI has unloaded libraries, or that another
    of its threads loads while MPI_Init runs, is the program's."""
    mpi = context.mpi(mpi)
    name, libraries = f"ftd-own-{os.getpid()}", own_libraries(context, 3)
    ranks = range(2)
    gates = [f"{gate}:{rank}" for gate in ("mpi.in-init", "app.load", "app.loaded") for rank in ranks]
    job = context.ftrun(mpi, 2, context.program(mpi, "loads.c"), when, f"/{name}", *libraries, ft="none",
                        gates=gates if when == "during" else [])
    try:
        if when == "during":
            for rank in ranks:
                job.at_gate("mpi.in-init", rank)
                job.at_gate("app.load", rank)
                job.go("app.load", rank)
                job.at_gate("app.loaded", rank)
                job.go("app.loaded", rank)
                job.go("mpi.in-init", rank)
        job.expect(0)
        segments = re.findall(r"^rank \d segment (\d+)$", job.output.text, re.M)
        check(len(segments) == 2 * len(libraries), job.output.text)
        there = sorted(path.name for path in SHM.glob(f"{name}.*"))
        check(there == [f"{name}.{rank}.{n}" for rank in ranks for n in range(len(libraries))], f"left: {there}")
        check("ftd:" not in job.err, job.err)
    finally:
        for path in SHM.glob(f"{name}.*"):
            path.unlink()
    for segment in segments:
        remove_segment(segment)


RESULT_IN_MEMORY = """
import sys
from mpi4py import MPI
rank = MPI.COMM_WORLD.Get_rank()
total = MPI.COMM_WORLD.allreduce(rank)
MPI.Finalize()
from multiprocessing import resource_tracker, shared_memory
memory = shared_memory.SharedMemory(name=f"{sys.argv[1]}.{rank}", create=True, size=100)
memory.buf[:6] = b"result"
# It is meant to outlive this program.
resource_tracker.unregister(memory._name, "shared_memory")
print("result", total)
"""


@scenario("own-memory-python", public=True)
def own_memory_python(context):
    """A result that a program in Python leaves in shared memory after MPI.Finalize() is there for the next program."""
    mpi = context.mpi("openmpi4")
    (context.work / "program.py").write_text(RESULT_IN_MEMORY)
    name = f"ftd-result-{os.getpid()}"
    job = context.ftrun(mpi, 2, "/usr/bin/python3", "program.py", name, ft="none")
    try:
        job.expect(0)
        texts = [(SHM / f"{name}.{rank}").read_bytes()[:6] for rank in range(2) if (SHM / f"{name}.{rank}").exists()]
        check(texts == [b"result"] * 2, f"what was left: {texts}")
        check(job.output.results == ["1"] * 2 and job.err == "", f"{job.output.text}{job.err}")
    finally:
        for path in SHM.glob(f"{name}.*"):
            path.unlink()


KINDS = ["psm_ab12cd34", "psm2_shm.1001.ab", "mpich_shar_tmpAbCdEf", "mpich_shm_1a2b3c4d_0", "ucx_shm_posix_7f00ab12",
         "vader_segment.host.1001.5a0001.1", "sm_segment.host.1001.5a0001.1", "open_mpi.0000", "Intel_MPI_AbCdEf", "shm_mpi_1"]


@scenario("foreign-files", public=True, each=[{"mpi": m} for m in ("openmpi5", "mpich4", "mpich5")])
def foreign_files(context, mpi):
    """Files that another program of the user made while the job ran, named like an MPI's, stay: those that it holds open, and
    those that it is about to map. A rank dies, the job recovers, and ends."""
    mpi = context.mpi(mpi)
    program = context.program(mpi, "places.c")
    job = context.ftrun(mpi, 3, program, gates=["app.compute:1"])
    victim = job.at_gate("app.compute", 1)
    made, held = {}, []
    try:
        for kind in KINDS:
            for what in ("held", "closed"):
                path = SHM / f"{kind}-ftd-{os.getpid()}-{what}"
                file = open(path, "xb")
                made[path] = os.fstat(file.fileno()).st_ino
                held.append(file) if what == "held" else file.close()
        job.kill(victim)
        job.expect(0, context.reference(mpi, 3, program))
        gone = [str(path) for path, inode in made.items() if not path.exists() or path.stat().st_ino != inode]
        check(not gone, f"removed though they are another program's: {gone}")
    finally:
        for file in held:
            file.close()
        for path in made:
            path.unlink(missing_ok=True)


@scenario("attached-stranger", public=True)
def attached_stranger(context):
    """A segment of a killed rank's MPI to which somebody else is attached stays, and this is said."""
    mpi = context.mpi("mpich4")
    job = context.ftrun(mpi, 2, context.program(mpi, "places.c"), gates=["mpi.made-segment:1"])
    victim = job.at_gate("mpi.made-segment", 1)
    # The newest: those that it has marked for removal are to go with their last user.
    mine = [int(id) for id, line in proc.segments().items() if line.split()[4] == str(victim) and line.split()[6] == "0"]
    check(len(mine) == 1, f"segments of the rank: {mine}")
    LIBC.shmat.restype = ctypes.c_void_p
    LIBC.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
    place = LIBC.shmat(mine[0], None, 0)
    check(place != ctypes.c_void_p(-1).value, f"shmat: {os.strerror(ctypes.get_errno())}")
    job.kill(victim)
    job.expect(0)
    remove_segment(mine[0])
    LIBC.shmdt(ctypes.c_void_p(place))
    said = re.findall(r"^ftd: left in shared memory.*$", job.err, re.M)
    check(len(said) == 1 and f"segment {mine[0]}," in said[0], f"it is not said once: {job.err}")


# In a pid name space of its own, where the next pid can be chosen. Arguments: the gates' directory, ftrun's command line.
RECYCLER = r"""
import ctypes, os, pathlib, subprocess, sys, time
gates = pathlib.Path(sys.argv[1])
ftrun = subprocess.Popen(sys.argv[2:])
gate = gates / "app.compute.1"
def wait(what, condition):
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until and ftrun.poll() is None, what
        time.sleep(0.002)
wait("gate", lambda: gate.exists() and gate.read_text().endswith("\n"))
victim = int(gate.read_text())
os.kill(victim, 9)
wait("noticed", lambda: (gates / "agent.noticed.-").exists())
wait("reaped", lambda: not pathlib.Path(f"/proc/{victim}").exists())
# A process or a thread of somebody else's may be faster: then again, once it has ended.
def recycle():
    pathlib.Path("/proc/sys/kernel/ns_last_pid").write_text(str(victim - 1))
    child = os.fork()
    if child == 0:
        if os.getpid() != victim:
            os._exit(1)
        number = ctypes.CDLL(None).shmget(0, 4096, 0o1600)
        print("foreign", number, os.getpid() == victim, flush=True)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0
wait("recycled", recycle)
(gates / "agent.noticed.-.go").touch()
sys.exit(ftrun.wait())
"""


@scenario("recycled-pid", public=True)
def recycled_pid(context):
    """A stranger that gets the pid of a dead rank while the job runs, and makes a private segment, keeps it."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "places.c")
    gates = context.dir / "job0.gates"
    job = context.start(
        ["unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc", "/usr/bin/python3", "-c", RECYCLER, gates,
         context.prefix / "bin/ftrun", "-n", "2", "--ft=reinit", program],
        mpi=mpi, gates=["app.compute:1", "agent.noticed"],
    )
    job.expect(0)
    number, same = re.search(r"^foreign (\d+) (\w+)$", job.output.text, re.M).groups()
    check(same == "True", "the stranger did not get the rank's pid: nothing was tried")
    remove_segment(number)


def new_memory(context):
    """What has appeared in shared memory and is not in a job's directory."""
    files = [path for path, _ in proc.shared_files() - context.shared_before if "/ftd-" not in path]
    return files, [id for id in proc.segments() if id not in context.segments_before]


INIT = [{"mpi": m, "kind": k, "victim": v} for m in ALL for k in ("file", "segment") for v in ("rank", "everything")
        if (m, k) != ("impi", "segment")]


@scenario("killed-in-init", public=True, each=INIT)
def killed_in_init(context, mpi, kind, victim, gate=None):
    """A rank that is killed inside MPI_Init, at the moment in which it has made shared memory, leaves nothing; also when
    ftrun, the agent and all shepherds are killed with it, and only the next ftrun is there to clean up."""
    mpi = context.mpi(mpi)
    program = context.program(mpi, "places.c")
    gate = gate or f"mpi.made-{kind}"
    job = context.ftrun(mpi, 3, program, gates=[f"{gate}:0"])
    rank = job.at_gate(gate, 0)
    files, segments = new_memory(context)
    check(files if kind == "file" else segments, f"nothing was made, so nothing is tried: {files} {segments}")
    if victim == "rank":
        job.kill(rank)
        job.expect(0, context.reference(mpi, 3, program))
    else:
        all_of_it = {"rank": rank, **{f"shepherd {pid}": pid for pid in job.below("ft-shepherd")},
                     "agent": job.one("ft-agent"), "launcher": job.launcher, "ftrun": job.pid}
        # In one instant: none of them may act on the death of another one. Children first: they die with their parents.
        proc.freeze(*reversed(all_of_it.values()))
        job.kill_all(all_of_it)
        job.wait(20)
        deadline = time.monotonic() + 10
        while any(proc.alive(pid) for pid in proc.descendants(os.getpid())):
            check(time.monotonic() < deadline, f"still there:\n{proc.describe(os.getpid())}")
            time.sleep(0.01)
        files, segments = new_memory(context)
        check(files if kind == "file" else segments, "the next ftrun has nothing to do")
        again = context.start([context.prefix / "bin/ftrun", "-n", "1", "true"])
        again.expect(0)
        check(again.err == "", again.err)
    context.assert_clean()


@scenario("killed-while-loading", public=True, each=[{"mpi": m, "victim": "rank"} for m in ("openmpi5", "mpich4", "mpich5")]
          + [{"mpi": "mpich4", "victim": "everything"}])
def killed_while_loading(context, mpi, victim):
    """A rank that is killed while its MPI's libraries are being loaded, at the moment in which one of them has made a segment to
    see whether it can, leaves nothing; also when all of ftd is killed with it."""
    killed_in_init(context, mpi, "segment", victim, "mpi.made-segment-loading")


@scenario("limit-in-init", public=True, each=[{"blocks": 1}, {"blocks": 8}])
def limit_in_init(context, blocks):
    """Ranks that a file-size limit kills inside MPI_Init, in the midst of making shared memory, leave nothing. Where the limit has
    no room for notes either, what stays is said."""
    mpi = context.mpi("mpich4")
    limited = f"(ulimit -f {blocks}; exec $FTRUN -n 2 --ft=reinit {context.program(mpi, 'windows.c')}) 2>&1 | cat\n"
    job = context.script(limited, mpi=mpi)
    job.expect(0)
    check(job.output.text.count("was killed by SIGXFSZ") >= 5, f"nobody was killed: nothing is tried: {job.output.text}")
    files, _ = new_memory(context)
    said = re.findall(r"^ftd: left in shared memory.*perhaps more that could not be noted, of process [\d, ]+", job.output.text, re.M)
    check(len(said) == (1 if files else 0), f"{files} are left, and this is said {len(said)} times: {job.output.text}")
    check(not files or blocks == 1, f"left: {files}")
    for path in files:
        os.unlink(path)


@scenario("no-notebook")
def no_notebook(context):
    """A rank that can note nothing at all, for whatever reason, says at once that its MPI's shared memory may stay."""
    mpi = context.mpi("mpich4")
    close = 'chmod 500 "${FT_SOCKET%/*}/made/$FT_WORLD"'
    job = context.ftrun(mpi, 2, "bash", "-c", f"{close}; exec {context.program(mpi, 'windows.c')}")
    job.expect(0)
    said = re.findall(r"^ftd: rank (\d): what its MPI makes in shared memory cannot be noted: .*$", job.err, re.M)
    check(sorted(said) == ["0", "1"], job.err)


PROBES = {
    "weak": r"""
        #include <stdio.h>
        __attribute__((weak)) int MPI_Init(int *, char ***), MPI_Comm_rank(long, int *), MPI_Finalize(void);
        int main(int argc, char **argv) {
            int rank;
            if (MPI_Init) { MPI_Init(&argc, &argv); MPI_Comm_rank(0, &rank); MPI_Finalize(); }
            puts(MPI_Init ? "parallel" : "serial");
        }""",
    "dlsym": r"""
        #define _GNU_SOURCE
        #include <dlfcn.h>
        #include <stdio.h>
        int main(int argc, char **argv) {
            int (*init)(int *, char ***) = (int (*)(int *, char ***))dlsym(RTLD_DEFAULT, "MPI_Init");
            const char *error = dlerror();
            if (init) init(&argc, &argv);
            puts(init || !error ? "parallel" : "serial");
        }""",
    "partly": r"""
        #include <mpi.h>
        #include <stdio.h>
        __attribute__((weak)) int MPI_Session_init(MPI_Info, MPI_Errhandler, void *);
        int main(int argc, char **argv) {
            int rank;
            MPI_Init(&argc, &argv);
            MPI_Comm_rank(MPI_COMM_WORLD, &rank);
            puts(MPI_Session_init ? "parallel" : "serial");
            return MPI_Finalize();
        }""",
}


@scenario("probed", each=[{"how": h} for h in PROBES])
def probed(context, how):
    """A program that only asks whether there is an MPI, or whether it has a function, gets the answer that it gets without ftd,
    and goes on."""
    mpi = context.mpi("openmpi4")
    source, program = context.work / "probe.c", context.work / "probe"
    source.write_text(PROBES[how])
    compiler = mpi.cc if how == "partly" else "cc"
    subprocess.run([compiler, "-o", program, source, "-ldl"], env=context.env(mpi, {}), check=True)
    alone = subprocess.run([program], env=context.env(mpi, {}), check=True, capture_output=True, text=True, cwd=context.work)
    check(alone.stdout == "serial\n", f"without ftd: {alone.stdout}")
    job = context.ftrun(mpi, 2, program)
    job.expect(0)
    check(job.output.text == "serial\n" * 2 and job.err == "", f"{job.output.text}{job.err}")


SANITIZED = r"""
#include "gate.h"
#include <mpi.h>
int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size, all, *mine = malloc(sizeof *mine);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    *mine = rank;
    gate_reach("app.compute", rank);
    MPI_Allreduce(mine, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    free(mine);
    if (argc > 1 && rank == 0)
        printf("%d\n", *mine);
    if (rank == 0)
        printf("result %d\n", all);
    MPI_Finalize();
}
"""


@scenario("sanitized", each=[{"mpi": m, "kind": k, "how": h} for m, k, h in (
    ("mpich4", "address", "plain"), ("openmpi4", "address", "shell"), ("openmpi4", "thread", "plain"),
    ("mpich4", "undefined", "plain"), ("mpich4", "address", "preloaded"))])
def sanitized(context, mpi, kind, how):
    """Programs with a sanitizer's run-time, linked in or preloaded, also behind a shell, run and recover, and the sanitizer
    still finds what it is there to find."""
    mpi = context.mpi(mpi)
    source, program = context.work / "san.c", context.work / "san"
    source.write_text(SANITIZED)
    flags = [] if how == "preloaded" else [f"-fsanitize={kind}"]
    subprocess.run([mpi.cc, "-g", "-w", *flags, "-I", context.scratch / "src/programs", "-o", program, source],
                   env=context.env(mpi, {}), check=True)
    env = {"ASAN_OPTIONS": "detect_leaks=0"}
    if how == "preloaded":
        asan = subprocess.run(["gcc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True).stdout.strip()
        env["LD_PRELOAD"] = os.path.realpath(asan)
    command = [program] if how != "shell" else ["bash", "-c", f"{program}; exit $?"]
    job = context.ftrun(mpi, 3, *command, env=env, gates=["app.compute:1"])
    job.kill(job.at_gate("app.compute", 1))
    job.expect(0)
    check(job.output.results == ["3"], job.output.text)
    check("anitizer" not in job.err and "ASan" not in job.err, job.err)
    # It finds that in code that it was compiled into.
    if kind == "address" and how != "preloaded":
        found = context.ftrun(mpi, 2, program, "use-after-free", env=env, ft="none")
        check(found.wait(30) != 0 and "heap-use-after-free" in found.err, f"it was not found: {found.err}")
