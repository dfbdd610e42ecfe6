"""Where the ranks of a lost node go on: on a spare node (`--ft-spares`), or, when there is no room, beyond the slots of the others
(`--ft-oversubscribe`), nowhere, or after a while (`--ft-wait`)."""

import os
import pathlib
import re
import signal
import time

from harness import proc
from harness.job import check
from harness.registry import scenario

from .copies import COPIES, kept, wait_kept
from .hosts import ONE_CARD, Nodes, ended
from .processes import eventually

NO_PLACE = ("because 1 of its 2 ranks cannot be placed: node node1 was silent for the heartbeat time-out, and no free slot is left for 1 of"
            " them")


@scenario("hosts-spare-node", cluster=True, timeout=90)
def spare_node(context):
    """The last node of three is spare: it has no rank, until a node crashes. That one's ranks go on there, from its copies; the block says from
    where they came and where they are, and the result is that of the undisturbed run."""
    mpi = context.mpi("mpich5")
    with Nodes(context, 3) as nodes:
        program = nodes.cluster.program(mpi, "places.c")
        alone = context.ftrun(mpi, 4, program, ft="none", on=nodes.nodes[0])
        alone.expect(0)
        job = context.ftrun(mpi, 4, program, options=["--hosts", "node0,node1,node2", "--ft-spares", "1"], on=nodes.nodes[0],
                            gates=["app.compute:3", *kept(1)], env=ONE_CARD)
        job.on = nodes.nodes[1]
        check(job.at_gate("app.compute", 3) in nodes.nodes[1].pids(), "the rank is not on the node")
        spare = nodes.nodes[2]
        eventually(lambda: len(spare.named("ft-shepherd")) == 2, "the slots of the spare node", 20)
        name = pathlib.Path(program).name[:15]
        check(len(nodes.nodes[0].named(name)) == 2 and not spare.named(name), "the spare node has ranks")
        wait_kept(job)
        nodes.nodes[1].crash()
        job.expect(0, alone.output)
        check(len(job.restored) == 1 and job.restored[0] and COPIES in job.err, f"restored {job.restored}: {job.err}")
        check("ftd:   moved     ranks 2-3 from node node1 to node node2\n" in job.err, job.err)
        for node in (nodes.nodes[0], spare):
            nodes.empty(node)
        status, out, err = nodes.short("node0,node2", 2, "true", options=["--ft=reinit", "--ft-spares=2"])
        check((status, out) == (2, "") and err.startswith("ftrun: --ft-spares=2: of the nodes (node0, node2) one at least"), f"{status} {err}")


@scenario("hosts-oversubscribe", cluster=True, timeout=120)
def oversubscribe(context):
    """A node of three crashes, and no slot is free: its ranks go on beyond the slots of the other two, one on each, from its copies, and the
    result is that of the undisturbed run."""
    mpi = context.mpi("mpich5")
    with Nodes(context, 3) as nodes:
        program = nodes.cluster.program(mpi, "places.c")
        alone = context.ftrun(mpi, 6, program, ft="none", on=nodes.nodes[0])
        alone.expect(0)
        job = context.ftrun(mpi, 6, program, options=["--hosts", "node0:2,node1:2,node2:2", "--ft-oversubscribe", "--ft-wait", "60"],
                            on=nodes.nodes[0], gates=["app.compute:3", *kept(1, range(6))], env=ONE_CARD)
        job.on = nodes.nodes[1]
        check(job.at_gate("app.compute", 3) in nodes.nodes[1].pids(), "the rank is not on the node")
        wait_kept(job, range(6))
        nodes.nodes[1].crash()
        left = (nodes.nodes[0], nodes.nodes[2])
        job.expect(0, alone.output)
        check(len(job.restored) == 1 and job.restored[0] and COPIES in job.err, f"restored {job.restored}: {job.err}")
        for rank, node in ((2, 0), (3, 2)):
            moved = f"ftd:   moved     rank {rank} from node node1 to node node{node}, beyond its slots (--ft-oversubscribe)\n"
            check(job.err.count(moved) == 1, job.err)
        check("waiting up to" not in job.err, job.err)
        for node in left:
            nodes.empty(node)


@scenario("hosts-no-room", cluster=True, timeout=60, each=[{"wait": "0"}, {"wait": "1500ms"}])
def no_room(context, wait):
    """A node crashes, and there is no room for its rank: the job ends with a sentence that says so, and, with --ft-wait, that it waits, and after that
    time that it has waited in vain."""
    with Nodes(context, 2) as nodes:
        job = nodes.sh("node0:1,node1:1", 2, "echo ready; sleep 600", ft="reinit", options=["--ft-wait", wait])
        eventually(lambda: job.output.text.count("ready\n") == 2, "the ranks", 20)
        nodes.nodes[1].crash()
        waits = "ftd: 1 rank has no slot without node node1: waiting up to 1.5 s for a node (--ft-wait)\n"
        over = "; no node came within 1.5 s (--ft-wait)"
        ended(job, 1, NO_PLACE, *([waits, over] if wait != "0" else []))
        check(wait != "0" or "waiting up to" not in job.err and "came within" not in job.err, job.err)
        check("keep nodes free (--ft-spares), let ranks share slots (--ft-oversubscribe), or wait longer for a node" in job.err, job.err)
        nodes.empty(nodes.nodes[0])


@scenario("hosts-wait-heals", cluster=True, timeout=60)
def wait_heals(context):
    """A node is cut off, and there is no room for its rank: the job waits, and when the node is back it goes on as if nothing had been."""
    with Nodes(context, 2) as nodes:
        go = context.work / "go"
        job = nodes.sh("node0:1,node1:1", 2, f"echo ready; until [ -e {go} ]; do sleep 0.05; done; echo end", ft="reinit",
                       options=["--ft-wait", "60"])
        eventually(lambda: job.output.text.count("ready\n") == 2, "the ranks", 20)
        nodes.nodes[1].cut("mpi")
        eventually(lambda: "waiting up to 60.0 s for a node (--ft-wait)" in job.err, "the job to wait", 20)
        nodes.nodes[1].heal("mpi")
        eventually(lambda: "the ranks of node1 go on" in job.err, "the ranks to go on", 20)
        go.touch()
        ended(job, 0)
        check(job.output.text.count("ready\n") == job.output.text.count("end\n") == 2, job.output.text)
        check("recovery" not in job.err, job.err)
        for node in nodes.nodes:
            nodes.empty(node)


@scenario("hosts-comes-back", cluster=True, timeout=90, each=[{"how": "heals"}, {"how": "boots"}])
def comes_back(context, how):
    """A node that is back is another node of the job, and spare: one that was left out while it was cut off, as soon as it can be reached again, and one
    that crashed, when its machine has started. The ranks of the next node that is lost, or of those that wait for a place, go on there."""
    with Nodes(context, 3 if how == "heals" else 2) as nodes:
        (heals if how == "heals" else boots)(context, nodes)
        for node in nodes.nodes[:2]:
            nodes.empty(node)


def heals(context, nodes):
    go = context.work / "go"
    script = f'echo "rank $FT_RANK on $(hostname)"; until [ -e {go} ]; do sleep 0.05; done'
    job = nodes.sh(nodes.each_one(), 2, script, ft="reinit", options=["--ft-spares", "1", "--ft-wait", "60"])
    eventually(lambda: "rank 1 on node1\n" in job.output.text, "the ranks", 20)
    nodes.nodes[1].cut("mpi")
    eventually(lambda: "rank 1 on node2\n" in job.output.text, "the rank on the spare node", 20)
    eventually(lambda: not nodes.nodes[1].named("sh"), "the end of the rank on the node that is left out", 20)
    nodes.nodes[1].heal("mpi")
    eventually(lambda: "ftrun: node node1 has a part of the job again, as a spare node\n" in job.err, "the node", 20)
    nodes.nodes[2].crash()
    eventually(lambda: job.output.text.count("rank 1 on node1\n") == 2, "the rank on the node that is back", 40)
    go.touch()
    ended(job, 0, "moved     rank 1 from node node1 to node node2\n", "moved     rank 1 from node node2 to node node1 (again)\n")
    check(job.output.text.count("rank 0 on node0\n") == 3, job.output.text)


def boots(context, nodes):
    mpi = context.mpi("mpich5")
    program = nodes.cluster.program(mpi, "places.c")
    alone = context.ftrun(mpi, 2, program, ft="none", on=nodes.nodes[0])
    alone.expect(0)
    job = context.ftrun(mpi, 2, program, options=["--hosts", nodes.each_one(), "--ft-wait", "60"], on=nodes.nodes[0],
                        gates=["app.compute:1", *kept(1, range(2))], env=ONE_CARD)
    job.on = nodes.nodes[1]
    check(job.at_gate("app.compute", 1) in nodes.nodes[1].pids(), "the rank is not on the node")
    wait_kept(job, range(2))
    nodes.nodes[1].crash()
    eventually(lambda: "ftd: 1 rank has no slot without node node1: waiting up to 60.0 s for a node (--ft-wait)\n" in job.err, "the job to wait", 20)
    nodes.nodes[1].boot()
    nodes.daemon(nodes.nodes[1]).start()
    job.expect(0, alone.output)
    check(len(job.restored) == 1 and job.restored[0], f"restored {job.restored}: {job.err}")
    for words in ("ftrun: node node1 has a part of the job again", "moved     rank 1 from node node1 to node node1 (again)\n", "that of rank 1 from partners' copies"):
        check(job.err.count(words) == 1, job.err)


@scenario("hosts-agent-killed-often", cluster=True, timeout=120)
def agent_killed_often(context):
    """A node's part of the job ends whose agent is killed again and again. That is said of this part: the job goes on elsewhere."""
    mpi = context.mpi("mpich5")
    with Nodes(context, 3) as nodes:
        program = nodes.cluster.program(mpi, "places.c")
        alone = context.ftrun(mpi, 4, program, ft="none", on=nodes.nodes[0])
        alone.expect(0)
        job = context.ftrun(mpi, 4, program, options=["--hosts", "node0:2,node1:2,node2:2"], on=nodes.nodes[0], gates=["app.compute:3"],
                            env=ONE_CARD)
        job.on = nodes.nodes[1]
        job.at_gate("app.compute", 3)
        given_up = re.compile(r"node node1: the agent died of SIGKILL again, 6 times within .*: this node's part of the job cannot go on\n")

        def is_given_up():
            for pid in [] if given_up.search(job.err) else nodes.nodes[1].named("ft-agent"):
                job.kill(pid)
            return given_up.search(job.err)
        eventually(is_given_up, "the part to be given up", 60)
        job.expect(0, alone.output)
        check(not re.search(r"(?<!part of )the job cannot go on", job.err), job.err)
        check("moved     ranks 2-3 from node node1 to node node2\n" in job.err, job.err)
        for node in nodes.nodes:
            nodes.empty(node)


@scenario("hosts-suspended-in-recovery", cluster=True, timeout=120)
def suspended_in_recovery(context):
    """The user stops the job in the midst of a recovery, for longer than a block waits for a sign of the ranks: the block comes when all have their
    state, and is whole."""
    mpi = context.mpi("openmpi5")
    with Nodes(context, 3) as nodes:
        program = nodes.cluster.program(mpi, "places.c")
        alone = context.ftrun(mpi, 4, program, ft="none", on=nodes.nodes[0])
        alone.expect(0)
        job = context.ftrun(mpi, 4, program, options=["--hosts", "node0:2,node1:2,node2:2"], on=nodes.nodes[0],
                            gates=["app.compute:3", "agent.frozen"], env=ONE_CARD)
        job.on = nodes.nodes[1]
        job.at_gate("app.compute", 3)
        nodes.nodes[1].crash()
        eventually(job.gate_path("agent.frozen").exists, "the recovery", 30)
        job.interrupt(signal.SIGTSTP)
        eventually(lambda: proc.stat(job.process.pid)[0] == "T", "the stop", 20)
        job.go("agent.frozen")
        # What the block waits, and half as long again.
        time.sleep(8)
        job.interrupt(signal.SIGCONT)
        os.kill(job.process.pid, signal.SIGCONT)
        job.expect(0, alone.output)
        (took,) = re.findall(r"^ftd:   took (.*)$", job.err, re.M)
        check("not seen" not in took and float(re.search(r"past MPI_Init ([0-9.]+)", took)[1]) >= 7000, took)
