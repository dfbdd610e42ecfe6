"""Which processors ranks run on."""

import os
import re
import shlex

from harness.job import check
from harness.registry import scenario

from .hosts import Nodes
from .processes import eventually

# What each rank may use, as `taskset` says it.
SHOW = 'echo "world ${FT_WORLD:-1} rank $OMPI_COMM_WORLD_RANK: $(taskset -pc $$ | sed "s/.*: //")"'


def numbers(text):
    """0-2,5 -> {0, 1, 2, 5}"""
    parts = [part.split("-") for part in text.split(",")]
    return {number for part in parts for number in range(int(part[0]), int(part[-1]) + 1)}


def bound(text, world=1):
    """rank -> the processors that it may use."""
    return {int(rank): numbers(of) for number, rank, of in re.findall(r"^world (\d+) rank (\d+): (\S+)$", text, re.M) if int(number) == world}


ALL = sorted(os.sched_getaffinity(0))
# For as many ranks as there are processors, and more.
COMPARED = [
    *[(ranks, ["--bind-to", to]) for ranks in (1, 2) for to in ("core", "numa", "socket", "none")],
    *[(ranks, ["--map-by", by]) for ranks in (1, 2) for by in ("core", "slot", "numa", "socket")],
    *[(4, ["--map-by", "slot:OVERSUBSCRIBE", "--bind-to", f"{to}:overload-allowed"]) for to in ("core", "numa", "socket", "none")],
    *[(4, ["--map-by", "slot:OVERSUBSCRIBE", "--bind-to", to]) for to in ("core", "numa", "socket", "none")],
    (1, ["--map-by", "slot:PE=2"]), (1, ["--cpus-per-rank", "2"]), (2, ["--map-by", "slot:PE=1"]), (2, ["--map-by", "slot:PE=2"]),
    (1, ["--map-by", "slot:PE=2", "--bind-to", "core"]), (4, ["--cpus-per-rank", "2", "--oversubscribe"]),
    (4, ["--map-by", "slot:PE=2:OVERSUBSCRIBE"]),
    # Ranks stand in blocks on what they are mapped by, but for slots.
    *[(ranks, ["--oversubscribe", "--bind-to", "core:overload-allowed"]) for ranks in (3, 4, 5)],
    *[(ranks, ["--map-by", f"{by}:OVERSUBSCRIBE", "--bind-to", "core:overload-allowed"]) for ranks in (3, 4) for by in ("", "core", "numa", "socket")],
    *[(4, [*by, "--bind-to", "core:overload-allowed"]) for by in (["--map-by", "slot:PE=1:OVERSUBSCRIBE"], ["--cpus-per-rank", "1", "--oversubscribe"])],
    # Who may share and says not with what is bound to nothing.
    *[(ranks, ["--map-by", f"{by}:OVERSUBSCRIBE"]) for ranks in (2, 4) for by in ("", "slot", "core", "numa", "socket", "slot:PE=1", "numa:PE=1")],
    *[(ranks, ["--oversubscribe", *by]) for ranks in (2, 4) for by in (["--map-by", "slot"], ["--map-by", "core"], ["--map-by", "numa"], ["--cpus-per-rank", "1"])],
    # What contradicts itself, and what only looks so.
    *[(1, [*cores, "--bind-to", to]) for cores in (["--map-by", "slot:PE=1"], ["--cpus-per-rank", "1"]) for to in ("core", "numa", "socket", "none")],
    *[(1, ["--map-by", by]) for by in ("core:PE=1", "core:PE=2", ":PE=2")], (1, ["--map-by", "core", "--cpus-per-rank", "2"]),
    *[(2, ["--map-by", by, "--bind-to", to]) for by, to in (("core", "numa"), ("core", "socket"), ("numa", "socket"), ("socket", "numa"), ("slot", "socket"))],
    (2, ["--map-by", "slot:PE=2:OVERSUBSCRIBE", "--bind-to", "core:overload-allowed"]),
]


@scenario("binding-compared", each=[{"case": number} for number in range(len(COMPARED))])
def compared(context, case):
    """Explicit policies give each rank the processors that Open MPI 5's mpirun gives it, and are refused where it refuses them, with one
    thread for each rank as with two."""
    mpi = context.mpi("openmpi5")
    ranks, options = COMPARED[case]
    script = ["bash", "-c", SHOW]
    for threads in ({"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2"}):
        theirs = context.start([mpi.launcher, "-n", str(ranks), *options, *script], mpi=mpi, env=threads)
        status = theirs.wait(30)
        ours = context.ftrun(mpi, ranks, *script, options=options, env=threads)
        if status:
            check(ours.wait(20) == 2 and ours.output.text == "", f"mpirun refuses {options}, ftrun does not: {ours.err}")
            continue
        ours.expect(0)
        found, expected = bound(ours.output.text), bound(theirs.output.text)
        check(len(expected) == ranks and found == expected, f"{options}, {threads}: {found}, mpirun: {expected}")


def disjoint(found):
    sizes = {len(processors) for processors in found.values()}
    return len(sizes) == 1 and len(set().union(*found.values())) == sum(map(len, found.values()))


@scenario("binding-default", each=[{"victim": "rank"}, {"victim": "shepherd"}])
def default(context, victim):
    """Each rank has an equal share of the processors that no other one has, and the same again after a recovery, also on another slot; with
    more ranks than processors nobody is bound."""
    job = context.ftrun(None, 2, "bash", "-c", f"{SHOW}; [ $FT_WORLD = 2 ] || sleep 600", options=["--report-bindings"])
    eventually(lambda: len(bound(job.output.text)) == 2, "both ranks", 20)
    rank = job.wait_ranks(2, 1)[1]
    job.kill({"rank": rank, "shepherd": job.shepherd_of(rank)}[victim])
    job.expect(0)
    found = bound(job.output.text)
    check(disjoint(found) and len(found[0]) >= len(ALL) // 3, f"{found}")
    check(bound(job.output.text, 2) == found, f"{found}, then {bound(job.output.text, 2)}")
    for number in (0, 1):
        check(re.search(rf"^ftd: rank {number} is bound to processors? {min(found[number])}\b", job.err, re.M), job.err)
    size = 2 * len(ALL)
    job = context.ftrun(None, size, "bash", "-c", SHOW)
    job.expect(0)
    found = bound(job.output.text)
    check(len(found) == size and all(sorted(processors) == ALL for processors in found.values()), f"{found}")
    check(job.err == "", job.err)


@scenario("binding-within")
def within(context):
    """What ftrun was started on is what its ranks have."""
    last = ALL[-1]
    launch = shlex.join([str(context.prefix / "bin/ftrun")])
    for options, count in (("-n 1", 1), ("-n 1 --bind-to socket", 1), ("-n 3", 3)):
        job = context.script(f"taskset -c {last} {launch} {options} bash -c '{SHOW}'\n")
        job.expect(0)
        found = bound(job.output.text)
        check(len(found) == count and all(processors == {last} for processors in found.values()), f"{options}: {found}")


@scenario("binding-beside")
def beside(context):
    """Beside another ftrun on the same processors nobody is bound, which is said, unless the user says so or the program's threads bind
    themselves; one on other processors, and one within a job, do not count."""
    first, last = ALL[0], ALL[-1]
    other = context.ftrun(None, 1, "sleep", "600", ft="none")
    other.wait_ranks(1)
    for options, env, is_bound in (([], {}, False), (["--bind-to", "core"], {}, True), ([], {"OMP_PROC_BIND": "close"}, True)):
        job = context.ftrun(None, 2, "bash", "-c", SHOW, options=options, env=env)
        job.expect(0)
        found = bound(job.output.text)
        check(disjoint(found) == is_bound, f"{options} {env}: {found}")
        check(("another ftrun (process " in job.err) != is_bound and job.err.count("\n") == (not is_bound), job.err)
    other.interrupt()
    other.wait(20)
    launch = shlex.join([str(context.prefix / "bin/ftrun")])
    other = context.script(f"exec taskset -c {first} {launch} -n 1 bash -c 'touch ready; sleep 600'\n")
    eventually((context.work / "ready").exists, "the other job", 20)
    job = context.script(f"taskset -c {last} {launch} -n 1 bash -c '{SHOW}'\n")
    job.expect(0)
    check(job.err == "" and bound(job.output.text) == {0: {last}}, f"{job.output.text}{job.err}")
    other.interrupt()
    other.wait(20)
    job = context.ftrun(None, 1, context.prefix / "bin/ftrun", "-n", "1", "bash", "-c", SHOW)
    job.expect(0)
    check(job.err == "" and len(bound(job.output.text)) == 1, f"{job.output.text}{job.err}")


@scenario("binding-omp")
def omp(context):
    """Threads that bind themselves (OMP_PROC_BIND) find a core that is their rank's alone, or shared with as few others as may be."""
    for size, most in ((2, 1), (2 * len(ALL), 2)):
        job = context.ftrun(None, size, "bash", "-c", SHOW, env={"OMP_PROC_BIND": "true"})
        job.expect(0)
        first = [min(processors) for processors in bound(job.output.text).values()]
        check(len(first) == size and max(map(first.count, first)) <= most, f"{first}")


@scenario("binding-over-nodes", cluster=True, timeout=60)
def over_nodes(context):
    """Each node binds its own ranks."""
    with Nodes(context, 2) as nodes:
        job = nodes.run("node0:2,node1:2", 4, "bash", "-c", SHOW)
        job.expect(0)
        found = bound(job.output.text)
        for ranks in ((0, 1), (2, 3)):
            check(disjoint({rank: found[rank] for rank in ranks}), f"{found}")
        status, out, err = nodes.short(f"node0:{len(ALL) + 1},node1:1", len(ALL) + 2, "true", options=["--bind-to", "core"])
        check((status, out) == (2, "") and "to bind 3 ranks to 1 core each" in err, f"{status} {err}")
