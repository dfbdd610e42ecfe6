"""What the MPI of a job tells its ranks on other nodes, however much that is: it comes whole, or the job ends with a sentence."""

import re

from harness import registry
from harness.job import check
from harness.registry import scenario

from .hosts import ONE_CARD, Nodes, ended

MIB = 1 << 20
# PMIX_ERR_OUT_OF_RESOURCE.
OUT_OF_RESOURCE = -29

# A rank that speaks PMI-1 by itself: puts so many keys with values of so many bytes, and one with the longest name and value that there may
# be, and reads behind the fence all that the other ranks have put. The last one publishes a port of so many bytes, which all look up.
PMI = r"""
import os, socket, sys
keys, bytes = int(sys.argv[1]), int(sys.argv[2])
rank, size = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
f = socket.socket(fileno=int(os.environ["PMI_FD"])).makefile("rw", newline="\n")
def ask(line, word="rc=0"):
    f.write(line + "\n")
    f.flush()
    said = f.readline()
    if word not in said:
        sys.exit(f"rank {rank}: {line[:60]}: {said[:200]!r}")
    return said
ask("cmd=init pmi_version=1 pmi_subversion=1")
kvs = dict(word.partition("=")[::2] for word in ask("cmd=get_my_kvsname", "my_kvsname").split())["kvsname"]
value = lambda of, number: f"{of}.{number}.".ljust(bytes, "v")
longest = lambda of: (f"l{of}".ljust(63, "k"), f"{of}".ljust(4095, "w"))
for number in range(keys):
    ask(f"cmd=put kvsname={kvs} key=k{rank}.{number:05} value={value(rank, number)}")
ask("cmd=put kvsname={} key={} value={}".format(kvs, *longest(rank)))
if rank == size - 1:
    ask("cmd=publish_name service=ftd port=" + "p" * 4000)
ask("cmd=barrier_in", "cmd=barrier_out")
for of in range(size):
    for key, expected in [longest(of), *((f"k{of}.{number:05}", value(of, number)) for number in range(keys))]:
        got = ask(f"cmd=get kvsname={kvs} key={key}").rstrip("\n")
        if not got.endswith(f"value={expected}"):
            sys.exit(f"rank {rank}: of {key} there is {got[:200]!r}")
if "p" * 4000 not in ask("cmd=lookup_name service=ftd"):
    sys.exit(f"rank {rank}: another port")
print("right", flush=True)
ask("cmd=finalize", "finalize_ack")
"""

# Three ranks have 8 MiB and 192 KiB, of which a key of eight letters with 4000 bytes takes 4144.
PMI_SIZES = [{"size": "small", "keys": 1}, {"size": "just-below", "keys": 680}, {"size": "beyond", "keys": 700}]


@scenario("hosts-pmi-large", cluster=True, timeout=90, each=PMI_SIZES)
def pmi_large(context, size, keys):
    """Ranks of three nodes put as much through PMI as fits, and each reads all of it on its node. What is too much in all, and not on any node by
    itself, ends the job with a sentence."""
    with Nodes(context, 3) as nodes:
        program = context.work / "pmi.py"
        program.write_text(PMI)
        job = nodes.run(nodes.each_one(), 3, "/usr/bin/python3", program, keys, 4000, options=["--ft-mpi=mpich"], ft="reinit")
        if size == "beyond":
            ended(job, 1, "ftrun: the ranks of all nodes put more through PMI than the 8 MiB that this job's keys may take\n", patience=60)
            check("right" not in job.output.text and "world 2" not in job.err, f"{job.output.text}{job.err}")
        else:
            ended(job, 0, patience=60)
            check(job.output.text == "right\n" * 3 and job.err == "", f"{job.output.text}{job.err}")
        for node in nodes.nodes:
            nodes.empty(node)


# Ranks give so many MiB each: what fits into one word between the agents, of 64 MiB, and what does not, together in a fence or by itself.
PMIX_SIZES = [
    {"mpi": "openmpi5", "how": "fence", "mib": 31},
    {"mpi": "openmpi4", "how": "fence", "mib": 33},
    {"mpi": "openmpi5", "how": "direct", "mib": 65},
    {"mpi": "openmpi4", "how": "publish", "mib": 65},
    {"mpi": "openmpi5", "how": "event", "mib": 70},
]
if registry.soak:
    PMIX_SIZES = [{"mpi": mpi, "how": how, "mib": mib} for mpi in ("openmpi4", "openmpi5") for how, sizes in
                  (("fence", (0, 31, 33, 65)), ("direct", (0, 63, 65)), ("publish", (0, 31, 65)), ("event", (70,))) for mib in sizes]


@scenario("hosts-pmix-large", cluster=True, timeout=120, each=PMIX_SIZES)
def pmix_large(context, mpi, how, mib):
    """What ranks of two nodes give each other through PMIx comes whole to the other node, in a fence, asked for by itself, published and with an event, as
    long as it fits into one word; what does not ends the job at once with a sentence about whose it is, and nobody tries it again."""
    with Nodes(context, 2) as nodes:
        program = nodes.cluster.program(context.mpi(mpi), "modex.c")
        # So much at a time is no business of heartbeats on two processors that others use as well.
        ranks = 2 if how == "fence" else 3
        options = ["--hosts", f"node0:1,node1:{ranks - 1}", "--ft-heartbeat", "1200ms,6s"]
        job = context.ftrun(context.mpi(mpi), ranks, program, how, max(mib * MIB, 64), options=options, on=nodes.nodes[0])
        if mib > (31 if how == "fence" else 63):
            ended(job, 1, "longer than the limit of 67108864\n", patience=90)
            # Of the ranks of a node the first gives what another node asks for; the last one publishes, and raises events.
            whose = {"direct": "rank [01]: what it tells others", "publish": "rank 2: what it tells others", "event": "rank 2: what it tells others",
                     "fence": "node node[01]: what its ranks tell others" if mib > 63 else "what the ranks tell each other"}[how]
            check(re.search(rf"^ftrun: {whose} through PMIx is too long: ", job.err, re.M), job.err)
            check("right" not in job.output.text and not job.recoveries, f"{job.output.text}{job.err}")
        else:
            ended(job, 0, patience=90)
            check(job.output.text == "result right\n" and not job.recoveries, f"{job.output.text}{job.err}")
        for node in nodes.nodes:
            nodes.empty(node)


@scenario("hosts-published-full", cluster=True, timeout=90, each=[{"mpi": "openmpi4"}] if not registry.soak else [{"mpi": "openmpi4"}, {"mpi": "openmpi5"}])
def published_full(context, mpi):
    """Ranks of two nodes publish more than 64 MiB in all, and none of them too much by itself: what is beyond is refused, its publisher has an error,
    people read one sentence about it, what was published before is found, and the job goes on to its end."""
    with Nodes(context, 2) as nodes:
        program = nodes.cluster.program(context.mpi(mpi), "modex.c")
        options = ["--hosts", "node0:1,node1:2", "--ft-heartbeat", "1200ms,6s"]
        job = context.ftrun(context.mpi(mpi), 3, program, "all", 40 * MIB, options=options, on=nodes.nodes[0])
        ended(job, 0, "ftd: more than 64 MiB are published by the ranks: the last of it is refused\n", patience=60)
        check(job.output.text == f"result refused {OUT_OF_RESOURCE}\n" and not job.recoveries, f"{job.output.text}{job.err}")
        for node in nodes.nodes:
            nodes.empty(node)


# What lets Open MPI's ranks fetch what they need of another one from where that is, when they first speak with it: its fence in MPI_Init gives nobody
# what others have put, or there is none.
DIRECT = {"uncollected": {"OMPI_MCA_pmix_base_collect_data": "0"}, "unfenced": {"OMPI_MCA_pmix_base_async_modex": "1"}}
# (Open MPI 5 without the fence hangs by itself over shared memory, under its own mpiexec in 2 of 25 runs.)
BY_DIRECT = [{"mpi": "openmpi4", "how": "unfenced"}, {"mpi": "openmpi5", "how": "uncollected"}]
if registry.soak:
    BY_DIRECT.append({"mpi": "openmpi4", "how": "uncollected"})


@scenario("hosts-direct-modex", cluster=True, timeout=120, each=BY_DIRECT)
def direct_modex(context, mpi, how):
    """Open MPI over three nodes with direct modex: ranks ask each other's nodes for how they are reached, one by one, in the first world and in the one after a
    rank's death; every step's hash is that of the undisturbed run."""
    mpi, heat = context.mpi(mpi), ["-g", "48", "-s", "20", "-c", "5"]
    with Nodes(context, 3) as nodes:
        program = nodes.cluster.program(mpi, "heat2d.c")
        reference = context.reference(mpi, 2, program, *heat, on=nodes.nodes[0])
        job = context.ftrun(mpi, 6, program, *heat, options=["--hosts", "node0:2,node1:2,node2:2"], on=nodes.nodes[0],
                            gates=["client.committed:3:2"], env={**ONE_CARD, **DIRECT[how]})
        job.on = nodes.nodes[1]
        job.kill(job.at_gate("client.committed", 3))
        job.expect(0, reference)
        # The second version, where all have taken that.
        check(len(job.restored) == 1 and job.restored[0] in (5, 10), f"restored {job.restored}: {job.err}")
        for node in nodes.nodes:
            nodes.empty(node)
