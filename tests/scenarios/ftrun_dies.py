"""The death of `ftrun` of a job that would survive a node's: it takes the job along on every node, wherever that is."""

import os
import signal

from harness import proc
from harness.cluster import NETWORKS
from harness.job import check
from harness.registry import scenario

from .hosts import Nodes, ended, near
from .processes import eventually

# Where somebody stands in the recovery from a node's crash: an agent that has not proposed the next epoch, one that has read it, one whose old ranks
# are gone, one that has the next world ready, and one that has just released it.
PLACES = {"noticed": "agent.noticed", "agreed": "agent.agreed", "frozen": "agent.frozen", "parked": "agent.parked", "released": "agent.released:*:2"}
# With the process that serves ftrun's connections, too, nobody is left who could say that the job is over.
ALL = "agreed-and-server"
WHEN = [{"when": when} for when in ("computes", "cut-off", *PLACES, ALL)]


@scenario("hosts-ftrun-dies", cluster=True, timeout=120, each=WHEN)
def ftrun_dies(context, when):
    """`ftrun` is killed under --ft=reinit: while the job computes, in a recovery from a node's crash, and when a node that was left out is cut off still. Nobody goes
    on without it: in bounded time nothing of the job is left on any node, what its ranks have started included."""
    with Nodes(context, 3) as nodes:
        place = PLACES.get(when.partition("-and-")[0])
        # The last node has no rank, and room for the second one's. Daemons of the ranks, too.
        job = nodes.sh("node0:2,node1:2,node2:2", 4, "setsid sleep 600 & echo ready; sleep 601", ft="reinit", gates=[place] if place else [],
                       options=["--ft-heartbeat", "300ms,1500ms"])
        eventually(lambda: job.output.text.count("ready\n") == 4, "the ranks", 20)
        _, victim, last = nodes.nodes
        gate = place and place.partition(":")[0]
        if place:
            victim.crash()
            eventually(job.gate_path(gate).exists, f"somebody at {gate}", 30)
            # Nobody has been told of the recovery: it is under way.
            check("ftd: recovery, epoch" not in job.err and job.running(), f"it is over: {job.err}")
        elif when == "cut-off":
            for network in NETWORKS:
                victim.cut(network)
            eventually(lambda: job.output.text.count("ready\n") == 8, "the ranks of the next world", 40)
            check(nodes.of_job(victim), f"nothing is left on {victim.name} that was cut off")
        server = near(nodes)
        if when == ALL:
            proc.freeze(server)
        os.kill(job.pid, signal.SIGKILL)
        if when == ALL:
            os.kill(server, signal.SIGKILL)
        if place:
            job.go(gate)
        ended(job, -9)
        # Who hears of nobody any more waits for as long as links may be silent.
        for node in (nodes.nodes[0], last, *([] if place else [victim])):
            nodes.empty(node, 40 if node is victim or when == ALL else 10)
