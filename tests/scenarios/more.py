"""The rest of the contract: order of the output, options, memory limits, linking, and the specification itself."""

import os
import pathlib
import re
import select
import signal
import subprocess
import threading
import time
import types

from harness import job as harness_job
from harness import proc, standstill, summary
from harness.job import check
from harness.registry import scenario

from scenarios.matrix import traced


@scenario("block-order", each=[{"mpi": "mpich4"}, {"mpi": "openmpi5"}])
def block_order(context, mpi):
    """With stdout and stderr in one file: the steps after the restored version stand again below the recovery block, and
    nothing of the old world stands there."""
    mpi = context.mpi(mpi)
    program = context.program(mpi, "places.c")
    both = context.work / "both"
    job = context.start(
        ["bash", "-c", 'exec >"$BOTH" 2>&1; exec "$@"', "bash", context.prefix / "bin/ftrun", "-n", "4", "--ft=reinit",
         program], mpi=mpi, gates=["app.compute:2"], env={"BOTH": both},
    )
    job.kill(job.at_gate("app.compute", 2))
    job.expect(0)
    text = both.read_text()
    before, block, after = re.split(r"((?:^ftd: .*\n)*^ftd: .*restored\s+version 5.*\n(?:^ftd: .*\n)*)", text, maxsplit=1, flags=re.M)
    first = [int(n) for n in re.findall(r"^step (\d+) ", before + block, re.M)]
    second = [int(n) for n in re.findall(r"^step (\d+) ", after, re.M)]
    check(first == list(range(1, 6)), f"above the block: {first}")
    check(second == list(range(6, 13)), f"below the block: {second}")
    for word in ("rank 2", "SIGKILL", " ms"):
        check(word in block, f"'{word}' is not in the block:\n{block}")


@scenario("options-from-environment")
def options_from_environment(context):
    """Each option of ftd's has its environment variable."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "ending.c")
    job = context.start([context.prefix / "bin/ftrun", "-n", "2", "true"], env={"FT": "wonder", "FT_MODE": "wonder"})
    check(job.wait(10) != 0 and "wonder" in job.err, f"FT_MODE is not read: {job.err}")
    job = context.ftrun(mpi, 3, program, "crash", "1", env={"FT_MAX_FAILURES": "2"})
    check(job.wait(30) == 139 and len(job.restored) == 1, f"FT_MAX_FAILURES is not read: {job.restored}")
    once = {"ENDING_ONCE": context.work / "once", "FT_ON_ABORT": "recover"}
    job = context.ftrun(mpi, 3, program, "abort-once", "1", "42", env=once)
    job.expect(0)


@scenario("oversubscribe", each=[{"options": ""}, {"options": "--oversubscribe"}])
def oversubscribe(context, options):
    """More ranks than cores: always allowed, without a word; --oversubscribe is accepted for mpirun's sake."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "places.c")
    size = len(os.sched_getaffinity(0)) * 3
    job = context.ftrun(mpi, size, program, options=options.split())
    job.expect(0, context.reference(mpi, size, program), patience=90)
    check(job.err == "", f"it says: {job.err}")


@scenario("looks-cost-little")
def looks_cost_little(context):
    """Ranks that never join are looked at for as long as they run, for they may load an MPI alone. However large their memory
    maps are, that takes a small share of one processor."""
    mpi = context.mpi("mpich4")
    job = context.ftrun(mpi, 8, context.program(mpi, "manymaps.c"), gates=["app.mapped"])
    for rank in range(8):
        job.at_gate("app.mapped", rank)
    agent = job.one("ft-agent")
    begun, used = time.monotonic(), proc.processor_time(agent)
    # What is measured is a rate.
    time.sleep(3)
    share = (proc.processor_time(agent) - used) / (time.monotonic() - begun)
    for rank in range(8):
        job.go("app.mapped", rank)
    job.expect(0)
    check(share < 0.05, f"the agent of ranks that wait takes {share:.0%} of a processor")


@scenario("notice-large", timeout=90)
def notice_large(context):
    """A rank with 1 GB of memory: its death is noticed, and the next epoch agreed, before the kernel is done with it."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "resident.c")
    job = context.ftrun(mpi, 2, program, "1024", gates=["app.compute:1", "agent.agreed:*:1"])
    pid = job.at_gate("app.compute", 1)
    torn_down = []

    def wait_for_the_end(pidfd):
        select.select([pidfd], [], [])
        torn_down.append(time.time())

    # On a busy machine it would not be told which of the two had to wait for a processor.
    os.setpriority(os.PRIO_PROCESS, pid, 10)
    watch = threading.Thread(target=wait_for_the_end, args=[os.pidfd_open(pid)])
    watch.start()
    begun = time.time()
    os.kill(pid, signal.SIGKILL)
    job.at_gate("agent.agreed")
    agreed = job.gate_path("agent.agreed").stat().st_mtime
    watch.join()
    job.go("agent.agreed")
    job.expect(0)
    print(f"kill to agreement {(agreed - begun) * 1e3:.1f} ms, to the end of the process {(torn_down[0] - begun) * 1e3:.1f} ms")
    check(agreed < torn_down[0], "the next epoch was agreed after the kernel was done with the dead, not before")


@scenario("out-of-memory", timeout=90, memory_mb=400)
def out_of_memory(context):
    """The kernel's out-of-memory killer is a failure, named as such."""
    mpi = context.mpi("mpich4")
    job = context.ftrun(mpi, 2, context.program(mpi, "hog.c"), env={"ENDING_ONCE": context.work / "once"})
    job.expect(0)
    check(job.restored == [None], f"restored {job.restored}")
    check(re.search(r"memory ran out|out of memory|out-of-memory", job.err, re.I), f"the cause is not named: {job.err}")


AFTER_A_HELPER = """
import os, sys, time
if os.environ["FT_WORLD"] == "1":
    if os.fork() == 0:
        memory = b"x" * (1 << 28)
        os._exit(0)
    print("rank", os.getpid(), "status", os.wait()[1], file=sys.stderr, flush=True)
    time.sleep(100)
"""


@scenario("killed-after-memory", memory_mb=150)
def killed_after_memory(context):
    """A rank that is killed a while after the kernel has ended another process of its memory cgroup did not run out of memory."""
    job = context.ftrun(None, 1, "/usr/bin/python3", "-c", AFTER_A_HELPER, hurry=10)
    [rank] = map(int, job.wait_err(r"rank (\d+) status 9\n", 1))
    [shepherd] = job.below("ft-shepherd")

    def woken():
        status = pathlib.Path(f"/proc/{shepherd}/status").read_text()
        return int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)$", status, re.M)[1])

    # "Of late" is half a second here. The shepherd is asked ten times in a second, and counts when it wakes.
    begun, before = time.monotonic(), woken()
    while time.monotonic() < begun + 1.5 or woken() < before + 12:
        check(time.monotonic() < begun + 20, "the shepherd sleeps")
        time.sleep(0.01)
    job.kill(rank)
    job.expect(0)
    check("rank 0 on node 0 was killed by SIGKILL" in job.err, job.err)


@scenario("does-not-fit-cgroup", timeout=90, memory_mb=400)
def does_not_fit_cgroup(context):
    """A checkpoint that fits in the machine but not in the cgroup's limit is an error; the older version is whole."""
    mpi = context.mpi("mpich4")
    job = context.ftrun(mpi, 2, context.program(mpi, "bigckpt.c"), "600", gates=["app.compute:1"])
    pid = job.at_gate("app.compute", 1)
    found = job.wait_err(r"rank (\d) checkpoint code (-?\d+): (.+)", 2)
    check(all(int(code) != 0 for _, code, _ in found), f"it was accepted: {job.err}")
    job.kill(pid)
    job.expect(0)
    check("restore code 0 version 2 value 22" in job.output.text, job.output.text)


@scenario("linking", each=[{"how": "pkg-config"}, {"how": "static"}])
def linking(context, how):
    """The installed library can be linked the two usual ways."""
    mpi = context.mpi("mpich4")
    source = context.scratch / "src/examples/heat2d/heat2d.c"
    env = context.env(mpi, {"PKG_CONFIG_PATH": context.prefix / "lib/pkgconfig"})

    def pkg_config(*words):
        return subprocess.run(["pkg-config", *words, "ftd-client"], env=env, check=True, capture_output=True, text=True).stdout.split()

    program = context.work / "heat2d"
    if how == "static":
        libs = [str(context.prefix / "lib/libftd_client.a"),
                *(w for w in pkg_config("--static", "--libs") if not w.startswith("-L") and w != "-lftd_client")]
    else:
        libs = [*pkg_config("--libs"), f"-Wl,-rpath,{context.prefix}/lib"]
    subprocess.run([mpi.cc, "-o", program, source, *pkg_config("--cflags"), *libs, "-lm"], env=env, check=True)
    linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    check(("libftd_client" in linked) == (how == "pkg-config"), linked)
    job = context.ftrun(mpi, 2, str(program), "-s", "20", "-g", "32")
    job.expect(0)
    check(len(job.output.results) == 1, job.output.text)


CPLUSPLUS = r"""
#include <cstdio>
#include <ft.h>
#include <mpi.h>
#include <unistd.h>
#include <vector>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int state, rank, step = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    std::vector<double> field(1000, 1.0);
    if (ft_init(&state) != FT_OK || ft_protect(0, &step, sizeof step) != FT_OK
        || ft_protect(1, field.data(), field.size() * sizeof(double)) != FT_OK)
        MPI_Abort(MPI_COMM_WORLD, 70);
    uint64_t version = 0;
    if (ft_restore(&version) == FT_OK && rank == 0)
        std::printf("restored %d\n", int(version));
    while (step < 20) {
        for (auto &cell : field)
            cell = cell * 1.5 + rank;
        MPI_Allreduce(MPI_IN_PLACE, field.data(), int(field.size()), MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (ft_checkpoint(++step) != FT_OK)
            MPI_Abort(MPI_COMM_WORLD, 71);
    }
    if (rank == 0)
        std::printf("result %.17g\n", field[999]);
    ft_finalize();
    MPI_Finalize();
}
"""


@scenario("cplusplus")
def cplusplus(context):
    """A C++ program with the installed header; its second rank dies between copy and commit of its tenth checkpoint."""
    mpi = context.mpi("mpich4")
    source, program = context.work / "app.cpp", context.work / "app"
    source.write_text(CPLUSPLUS)
    subprocess.run(
        ["/usr/bin/mpicxx.mpich", "-Wall", "-Werror", "-o", program, source, "-I", context.prefix / "include",
         "-L", context.prefix / "lib", f"-Wl,-rpath,{context.prefix}/lib", "-lftd_client"],
        env=context.env(mpi, {}), check=True,
    )
    truth = context.reference(mpi, 3, str(program)).results
    job = context.ftrun(mpi, 3, str(program), gates=["client.copied:1:10"])
    job.kill(job.at_gate("client.copied", 1))
    job.expect(0)
    check(job.restored == [9], f"restored {job.restored}")
    check(job.output.starts == [9] and job.output.results == truth, job.output.text)


@scenario("linked-in", each=[{"how": "found"}, {"how": "told"}])
def linked_in(context, how):
    """A program that has its MPI linked in statically: ftrun sees it in the file; behind a script it has to be told."""
    mpi = context.mpi("mpich4")
    source = next((context.scratch / "src").rglob("places.c"))
    program = context.work / "places"
    subprocess.run(
        [mpi.cc, "-o", program, source, "-I", context.prefix / "include", "-L", context.prefix / "lib",
         f"-Wl,-rpath,{context.prefix}/lib", "-lftd_client",
         *"-Wl,--as-needed -Wl,-Bstatic -lmpich -Wl,-Bdynamic -lpthread -lhwloc -lucp -lucs -lm".split()],
        env=context.env(mpi, {}), check=True,
    )
    linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    check("mpi" not in linked, linked)
    reference = context.reference(mpi, 4, context.program(mpi, "places.c"))
    command = [str(program)] if how == "found" else ["bash", "-c", f"{program}; exit $?"]
    options = [] if how == "found" else ["--ft-mpi=mpich"]
    job = context.ftrun(mpi, 4, *command, options=options, gates=["app.compute:2"])
    job.kill(job.at_gate("app.compute", 2))
    job.expect(0, reference)
    check(job.restored == [5], f"restored {job.restored}")
    # The other family's name for it is wrong, which can be seen in the file; behind a script that MPI itself complains.
    for variable in ({}, {"FT_MPI": "openmpi"}):
        options = [] if variable else ["--ft-mpi=openmpi"]
        job = context.ftrun(mpi, 4, *command, options=options, env=variable)
        status = job.wait(30)
        check(status == 2 if how == "found" else status != 0, f"exit status {status}: {job.err}")
        check(job.output.results == [], f"{job.output.text}{job.err}")
        blamed = f"{'FT_MPI' if variable else '--ft-mpi'}=openmpi is wrong"
        check(how == "told" or blamed in job.err, job.err)
        check(how == "found" or re.search(r"^ftrun: rank \d ", job.err, re.M), f"no sentence: {job.err}")
        # Where nothing is preloaded nobody notes what an MPI's libraries make, and who is ended there leaves it (guide: Memory).
        for named in re.findall(r"System V segments? ([\d, ]+), which the program made", job.err):
            for number in named.split(", "):
                subprocess.run(["ipcrm", "-m", number], check=True)


OWN_HANDLE = """
import ctypes, os, sys
mpi = ctypes.CDLL(sys.argv[1])
world = ctypes.c_int(0x44000000) if sys.argv[2] == "mpich" else ctypes.byref(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_world"))
assert mpi.MPI_Init(None, None) == 0
size = ctypes.c_int()
assert mpi.MPI_Comm_size(world, ctypes.byref(size)) == 0
if os.environ["FT_WORLD"] == "1" and sys.argv[3] == "dies":
    assert mpi.MPI_Barrier(world) == 0
    if os.environ["FT_RANK"] == "1":
        os.kill(os.getpid(), 9)
assert mpi.MPI_Barrier(world) == 0
if os.environ["FT_RANK"] == "0":
    print("size", size.value, flush=True)
assert mpi.MPI_Finalize() == 0
"""


@scenario("own-handle", each=[{"mpi": m} for m in ("mpich4", "mpich5", "impi", "openmpi4", "openmpi5")])
def own_handle(context, mpi):
    """A program that looks up MPI's functions in the library's own handle, where nothing can be preloaded in front."""
    mpi = context.mpi(mpi)
    library = mpi.library_of(context.program(mpi, "ending.c"), context.env(mpi, {}))
    # What a killed rank of MPICH 5 leaves in /dev/shm nobody can prove to be its own, where nothing is preloaded.
    how = "lives" if mpi.name == "mpich5" else "dies"
    job = context.ftrun(mpi, 3, "/usr/bin/python3", "-c", OWN_HANDLE, library, mpi.family, how, options=[f"--ft-mpi={mpi.family}"])
    job.expect(0)
    check(job.output.text == "size 3\n", job.output.text)
    check(job.restored == ([None] if how == "dies" else []), f"restored {job.restored}")


def host_and_plugin(context, mpi):
    """A program without MPI, and a library with it."""
    source = lambda name: next((context.scratch / "src").rglob(name))
    host, plugin = context.work / "host", context.work / "plugin.so"
    subprocess.run([mpi.cc, "-shared", "-fPIC", "-o", plugin, source("plugin.c")], check=True, env=context.env(mpi, {}))
    subprocess.run(["cc", "-o", host, source("plugin_host.c"), "-ldl"], check=True)
    return host, plugin


@scenario("plug-in", each=[{"mpi": "mpich4", "how": "deepbind"}, {"mpi": "mpich4", "how": "dlmopen"}, {"mpi": "openmpi4", "how": "deepbind"}])
def plug_in(context, mpi, how):
    """A host loads the MPI where the preload does not reach: with --ft-mpi the environment alone serves it, in each world."""
    mpi = context.mpi(mpi)
    host, plugin = host_and_plugin(context, mpi)
    job = context.ftrun(mpi, 2, host, how, plugin, options=[f"--ft-mpi={mpi.family}"])
    job.expect(0)
    check(job.output.text == "size 2\n", job.output.text)
    check(job.restored == [None], f"restored {job.restored}: {job.err}")


@scenario("plug-in-untold", each=[{"mpi": m} for m in ("openmpi4", "openmpi5", "mpich4", "mpich5", "mpich5abi", "impi")], timeout=40)
def plug_in_untold(context, mpi):
    """The same host without --ft-mpi, with a wrong one, and where a wrapper takes the preload away or judges its end: its MPI does not
    start alone, not in one rank. What the host makes of that is the job's end, and only a script that says so ends well."""
    mpi = context.mpi(mpi)
    host, plugin = host_and_plugin(context, mpi)
    other = "mpich" if mpi.family == "openmpi" else "openmpi"
    for how in ("deepbind", "dlmopen"):
        for wrapper, options in (("", []), ("", [f"--ft-mpi={other}"]), ("env -u LD_PRELOAD", []), ('bash -c \'"$@"; true\' x', [])):
            # Intel MPI crashes over it, and Open MPI 4 in a name space of its own: once is enough.
            job = context.ftrun(mpi, 2, "bash", "-c", f'exec {wrapper} "$@"', "bash", host, how, plugin,
                                options=["--ft-max-failures=1", *options])
            status, case = job.wait(30), f"{how} {wrapper} {options}"
            check((status == 0) == ("true" in wrapper), f"{case}: status {status}: {job.err}")
            check(job.output.text == "" and job.err != "", f"{case}: {job.output.text!r} {job.err}")
            said = r"^ftrun: (rank \d .*(exited with code|job of its own)|the job cannot continue)"
            check(status == 0 or re.search(said, job.err, re.M), f"{case}: {job.err}")


@scenario("sessions", each=[{"mpi": m, "how": h} for m in ("openmpi5", "mpich4", "mpich5") for h in ("undisturbed", "killed")])
def sessions(context, mpi, how):
    """MPI Sessions in the place of MPI_Init: communicators of process sets, before a death and after it. With Open MPI 5 that takes
    PMIx groups, which a server of its own PMIx alone can answer."""
    mpi = context.mpi(mpi)
    program = context.program(mpi, "sessions.c")
    reference = context.reference(mpi, 3, program)
    check(reference.results == ["1809 3609"], f"without ftd: {reference.text}")
    killed = how == "killed"
    job = context.ftrun(mpi, 3, program, gates=["app.compute:1"] if killed else [])
    if killed:
        job.kill(job.at_gate("app.compute", 1))
    job.expect(0, reference)
    check(job.restored == ([None] if killed else []), f"restored {job.restored}: {job.err}")


@scenario("events", each=[{"mpi": "openmpi4"}, {"mpi": "openmpi5"}])
def events(context, mpi):
    """PMIx events that a rank raises, of each range, come to the other ranks once, and do no harm to the server."""
    mpi = context.mpi(mpi)
    job = context.ftrun(mpi, 3, context.program(mpi, "events.c"))
    job.expect(0)
    check(job.output.text == "result right\n" and job.restored == [], f"{job.output.text}{job.err}")


@scenario("pmix-library", each=[{"library": "4"}, {"library": "5"}])
def pmix_library(context, library):
    """ft-pmix runs on Debian's libpmix 4.2 and on the Open MPI wheel's libpmix 5, with each Open MPI that can."""
    wheel = context.mpi("openmpi5")
    found = None
    if library == "5":
        base = wheel.env["OPAL_PREFIX"]
        for directory, _, names in os.walk(base):
            if any(name.startswith("libpmix.so") for name in names):
                found = directory
        check(found, f"no libpmix below {base}")
    # Debian's Open MPI 4 is bound to its own libpmix.
    for name in ("openmpi5",) if found else ("openmpi4", "openmpi5"):
        mpi = context.mpi(name)
        program = context.program(mpi, "places.c")
        # What ftrun inherits, ft-pmix inherits.
        env = {"LD_LIBRARY_PATH": found, "PMIX_PREFIX": base} if found else {}
        job = context.ftrun(mpi, 3, program, gates=["app.compute:1"], env=env)
        job.at_gate("app.compute", 1)
        with open(f"/proc/{job.below('ft-pmix')[0]}/maps") as maps:
            mapped = {line.split()[-1] for line in maps if "libpmix" in line}
        check(any(path.startswith(str(found or "/usr/lib")) or path.startswith(str(found or "/lib")) for path in mapped),
              f"ft-pmix runs on {mapped}")
        job.kill(job.at_gate("app.compute", 1))
        job.expect(0, context.reference(mpi, 3, program))
        check(job.restored == [5], f"restored {job.restored}")


def wait_for_progress(job, trace, beyond, patience=30.0):
    """Until every rank of one world has committed versions that none had before, or the job is over."""
    deadline = time.monotonic() + patience
    while job.running():
        worlds, versions = zip(*traced(trace, 4))
        if len(set(worlds)) == 1 and min(versions) > beyond + 2:
            return
        check(time.monotonic() < deadline, f"no progress beyond version {beyond} within {patience} s")
        time.sleep(0.002)


@scenario("repeated-kills", timeout=120, each=[{"mpi": m} for m in ("openmpi4", "openmpi5", "mpich4", "mpich5", "impi")])
def repeated_kills(context, mpi):
    """Chaos: kills at no particular moment, some of them in the midst of a recovery. The restored version is never older
    than what every rank had committed at the kill."""
    mpi = context.mpi(mpi)
    program = context.program(mpi, "places.c")
    trace, floors = context.work / "trace", []
    env = {"PLACES_STEPS": 60, "PLACES_STEP": 0, "PLACES_SLEEP": 5}
    reference = context.reference(mpi, 4, program, env=env)
    job = context.ftrun(mpi, 4, program, env={**env, "PLACES_TRACE": trace}, options=["--ft-max-failures=50"])
    pauses = [0.3, 0.02, 0.05, 0.4, 0.0, 0.01, 0.3, 0.12, 0.2, 0.07]
    job.wait_ranks(4, 1)
    for number, pause in enumerate(pauses):
        if number % 3 == 0:
            wait_for_progress(job, trace, floors[-1][1] if floors else 0)
        time.sleep(pause)
        ranks = job.ranks()
        victim = ranks.get(number % 4)
        if victim is None or not job.running():
            continue
        # What every rank of one world has committed is complete.
        worlds, versions = zip(*traced(trace, 4))
        if len(set(worlds)) == 1:
            floors.append((worlds[0], min(versions)))
        try:
            job.kill(victim, f"rank {number % 4}")
        except ProcessLookupError:
            pass
    job.expect(0, reference, patience=90)
    versions = [version or 0 for version in job.restored]
    check(versions == sorted(versions), f"versions went back: {job.restored}")
    check(any(version > 0 for _, version in floors), f"no kill came after a version that every rank had: {floors}")
    for world, floor in floors:
        for later, version in job.recoveries:
            check(later <= world or (version or 0) >= floor,
                  f"world {later} was given {version}; every rank of world {world} had committed {floor}")


@scenario("demo", timeout=120)
def demo(context):
    """make demo shows what it promises, in time."""
    job = context.start(["/usr/bin/python3", context.scratch / "src/scripts/demo.py", context.prefix])
    job.expect(0, patience=110)
    text = job.output.text
    for words in ("$ kill -9 ", "restored  version", "rank 2", "identical, bit for bit"):
        check(words in text, f"'{words}' is not shown:\n{text}")


@scenario("all-at-once", each=[{"mpi": "openmpi4"}, {"mpi": "openmpi5"}, {"mpi": "mpich4"}])
def all_at_once(context, mpi):
    """Every rank dies at once."""
    mpi = context.mpi(mpi)
    program = context.program(mpi, "places.c")
    job = context.ftrun(mpi, 4, program, gates=["app.compute:1"])
    job.at_gate("app.compute", 1)
    job.kill_all(job.ranks())
    job.expect(0, context.reference(mpi, 4, program))
    check(job.restored and set(job.restored) == {5}, f"restored {job.restored}")


@scenario("harness-proof")
def harness_proof(context):
    """The harness itself: a place that is missed fails, a process that is left is found, a file that is left is found."""
    job = context.start(["sleep", "0.1"], gates=["app.compute:1"])
    try:
        job.at_gate("app.compute", 1)
        check(False, "a missed place passed")
    except harness_job.Failed as error:
        check("nobody had been" in str(error), str(error))
    context.start(["bash", "-c", "setsid sleep 60 & disown; exit 0"]).wait(5)
    left = context.left_behind()
    # It may still be on its way from bash to setsid to sleep.
    check(len(left) == 1 and left[0].startswith("process "), f"the process left behind was not found: {left}")
    for line in left:
        os.kill(int(re.search(r"process (\d+)", line)[1]), 9)
    (context.memory / "left").touch()
    check(any(line.endswith("/left") for line in context.left_behind()), "the file left behind was not found")
    (context.memory / "left").unlink()
    ours = proc.name_spaces()
    check(not set(ours) & set(proc.RUNNERS), f"this scenario has nothing of its own: {ours}")
    child = os.fork()
    if child == 0:
        # As if there were no name spaces to be had.
        proc._libc = types.SimpleNamespace(unshare=lambda flags: -1)
        try:
            proc.private_shm()
        except OSError:
            os._exit(0)
        os._exit(1)
    check(os.waitpid(child, 0)[1] == 0, "an isolation that cannot be had was lost in silence")


@scenario("harness-bystander", public=True, each=[{"mpi": "openmpi4"}, {"mpi": "mpich4"}])
def harness_bystander(context, mpi):
    """The harness beside somebody else's job: what that has in shared memory may go with it, and is not taken for this one's; what
    nobody uses must stay."""
    nobodys = pathlib.Path(f"/dev/shm/psm_ftd-nobodys-{os.getpid()}")
    nobodys.touch()
    try:
        mpi = context.mpi(mpi)
        theirs = context.ftrun(mpi, 2, context.program(mpi, "places.c"), gates=["app.compute:1"])
        theirs.at_gate("app.compute", 1)
        own = {theirs.launcher, theirs.pid}
        (statement,) = [path for path, holder in proc.job_locks().items() if holder in own]
        check(statement in proc.of_other_jobs(set()), "another's job is not seen")
        check(statement not in proc.of_other_jobs(own), "a job of this scenario's is taken for another's")
        beside = harness_job.Context("beside", context.dir, context.prefix, True)
        check(any(proc.is_below(path, {statement}) for path, _ in beside.shared_before), "their job has no directory: nothing is tried")
        segments = set(beside.segments_before) & proc.made_by_others(set())
        check(segments or mpi.name != "mpich4", "their ranks have no segments: nothing is tried")
        theirs.go("app.compute", 1)
        theirs.expect(0)
        check(not beside.untouched(), f"the end of another's job is blamed on this one's: {beside.untouched()}")
        nobodys.unlink()
        check(beside.untouched() == [str(nobodys)], f"what nobody used is gone, and nobody says so: {beside.untouched()}")
    finally:
        nobodys.unlink(missing_ok=True)


@scenario("harness-standstill")
def harness_standstill(context):
    """What of the machine stood still while a scenario ran is said, when it is over and when it lasts; what worked is not said."""
    standstill.PERIOD, standstill.LONG = 0.02, 1.5
    watch = standstill.Watch(str(context.work))
    try:
        names = [probe.name for probe in watch.probes]
        check(len(names) >= len(os.sched_getaffinity(0)) + 2, f"{names}")
        begin = time.monotonic()
        standing = next(probe for probe in watch.probes if probe.name.startswith("files below"))
        proc.freeze(standing.pid)
        while time.monotonic() - begin < 3.0:
            time.sleep(0.1)
        # Others may have stood still as well: this is for machines on which that happens.
        said, between = rf"{re.escape(standing.name)} for \d+ s", time.monotonic()
        check(re.search(said, watch.between(begin, between)), f"while it lasts: {watch.between(begin, between)!r}")
        os.kill(standing.pid, signal.SIGCONT)
        deadline = time.monotonic() + 10
        while len(standing.standstills()) != 1 or standing.standstills()[0][1] > time.monotonic() - 0.1:
            check(time.monotonic() < deadline, f"{standing.standstills()}")
            time.sleep(0.05)
        check(re.search(said, watch.between(begin, between)), f"when it was over: {watch.between(begin, between)!r}")
        check(watch.between(begin - 9, begin - 3) == "", "said of a time before anything stood still")
    finally:
        watch.close()


@scenario("summary")
def closing_lines(context):
    """The closing lines of a failed run tell why each scenario failed, and are few, however many failed and whatever they said."""
    job = context.start(["bash", "-c", "echo a word of ftrun >&2; exit 3"])
    logs = []
    for wrong in (lambda: job.expect(0), lambda: check(False, "left behind:\n" + "a line\n" * 1000), lambda: [][1]):
        try:
            wrong()
        except Exception as error:  # noqa: BLE001
            logs.append(f"+ bash\n{summary.explain(error, context.jobs)}")
    logs += [f'+ bash\nThread 0x1 (most recent call first):\n  File "{__file__}", line 77 in stands\nHANG: not over after 60 s; processes:\n'
             "1 S init\n--- job0.err\nlast\n", "+ bash\n", "skipped: no disk\n"]
    few = summary.what_failed([("FAIL", f"scenario/{n}", log) for n, log in enumerate(logs)])
    for words in ("FAIL scenario/0: exit status 3, expected 0", "FAIL scenario/1: left behind:", "stderr: a word of ftrun",
                  "FAIL scenario/2: IndexError: list index out of range", "FAIL scenario/3: not over after 60 s", "stderr: last", "at more.py:77, stands",
                  "FAIL scenario/4: no word about why", "FAIL scenario/5: skipped: no disk"):
        check(any(words in line for line in few), f"'{words}' is not in\n" + "\n".join(few))
    check(len(few) <= summary.LINES, f"{len(few)} lines")
    many = summary.what_failed([("FAIL", f"scenario/{n}", log) for n, log in enumerate(logs * 50)])
    check(len(many) <= summary.LINES and many[-1] == "and 262 more", "\n".join(many))
