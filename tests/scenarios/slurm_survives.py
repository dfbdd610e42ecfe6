"""What happens to daemons, agents and networks of a node under `srun --ft=reinit`: Slurm's daemons are started again, ftd's are killed, a
network is cut. The result is the undisturbed one."""

import signal
import time

from harness import proc
from harness.cluster import NETWORKS
from harness.job import check
from harness.registry import scenario

from .copies import kept, wait_kept
from .hosts import ONE_CARD
from .nodes import key_of
from .processes import eventually
from .slurm_steps import MPIS, Steps

# The step of places at which the rank stands, and so the version that is restored.
PLACE = 5


class Trial:
    """A step on two nodes and a spare one, of which a rank of the second node stands at a place."""

    def __init__(self, context, steps, mpi="mpich5", pause=0):
        mpi = context.mpi(mpi)
        self.steps, self.slurm, self.nodes, self.far = steps, steps.slurm, steps.nodes, steps.nodes[1]
        program = steps.cluster.program(mpi, "places.c")
        self.reference = steps.reference(mpi, 4, program)
        env = {**ONE_CARD, "FT_SPARES": 1, "PLACES_SLEEP": pause}
        self.job = steps.srun("-N3", "--ntasks-per-node=2", program, mpi=mpi, env=env, gates=["app.compute:3", *kept(PLACE)])
        self.job.on = self.far
        self.victim = self.job.at_gate("app.compute", 3)
        check(self.victim in self.far.pids(), "the rank is not on the node")
        wait_kept(self.job)
        # By the name of the node.
        self.there = {node.name: self.of_user(node) for node in self.nodes}

    def of_user(self, node):
        return {pid for pid in node.pids() if proc.alive(pid) and proc.uid(pid) == self.steps.cluster.user.pw_uid}

    def undisturbed(self, said=()):
        """All that ran of the job when it stood still runs, and nobody has said anything but this."""
        gone = {name: [pid for pid in pids if not proc.alive(pid)] for name, pids in self.there.items()}
        others = [line for line in self.job.err.splitlines() if not any(words in line for words in said)]
        check(not any(gone.values()) and self.job.running() and not others, f"{gone} are gone: {self.job.err}")

    def ends(self, restored, nodes=(), patience=60.0):
        """The result is the undisturbed one, two seconds after the application's end at most, and this was restored; these nodes were given up for their silence,
        where anybody asks."""
        self.steps.expect(self.job, self.reference, 4, patience)
        check(self.job.restored == restored and self.job.err.count("ftd: recovery, epoch") == len(restored), f"{self.job.restored}: {self.job.err}")
        for node in self.nodes if nodes is not None else ():
            said = f"node {node.name} was silent for the heartbeat time-out" in self.job.err
            check(said == (node.name in nodes), f"given up: {node.name}? {self.job.err}")


HOW = {}


def how(function):
    HOW[function.__name__.replace("_", "-")] = function
    return function


@scenario("slurm-restarts", cluster=True, timeout=120, each=[{"who": "slurmd"}, {"who": "slurmctld"}])
def restarts(context, who):
    """A slurmd on every node, or the controller, ends and is started again under a running step: nothing of the job is disturbed. A rank that dies
    after that costs one recovery, a job of the same nodes can be started, and nothing is left."""
    with Steps(context, 3) as steps:
        it = Trial(context, steps)
        for machine in it.nodes if who == "slurmd" else [it.slurm.login]:
            it.slurm.restart(machine)
        # What it may do when it is back it does at once.
        time.sleep(2)
        it.undisturbed()
        it.job.kill(it.victim)
        it.ends([PLACE])
        steps.empty()
        status, out, err = it.slurm.run("srun", "--ft=reinit", "-N3", "--ntasks-per-node=1", "/bin/echo", "ran")
        check((status, out, err) == (0, "ran\n" * 3, ""), f"{status}: {out}{err}")
        steps.empty()


@how
def agent(it):
    """It is started again, and adopts the arenas."""
    (agent,) = it.far.named("ft-agent")
    it.job.kill(agent)
    it.ends([PLACE])


@how
def ftd(it):
    """Those of all nodes: nothing comes of it."""
    for daemon in it.steps.daemons.values():
        daemon.kill()
    for daemon in it.steps.daemons.values():
        daemon.start()
        check("\njobs    slurm-" in daemon.status()[1], daemon.status()[1])
    it.undisturbed()
    it.job.kill(it.victim)
    it.ends([PLACE])


@how
def ftd_gone(it):
    """That of the node, for good, and a rank there."""
    it.steps.daemons[1].kill()
    it.job.kill(it.victim)
    it.ends([PLACE])
    it.steps.daemons[1].start()


@how
def mpi(it):
    """MPI's network, for good: the node is left out, and the spare one takes its ranks."""
    it.far.cut("mpi")
    it.ends([PLACE], ["node1"])
    it.far.heal("mpi")


@how
def mpi_healed(it):
    """MPI's network until the others compute: the node's ranks are gone."""
    cut_off(it, ["mpi"])


@how
def both_healed(it):
    """Both networks until the others compute, which includes Slurm's."""
    cut_off(it, NETWORKS)


@how
def both(it):
    """Both networks until the job is over."""
    for network in NETWORKS:
        it.far.cut(network)
    it.ends([PLACE], ["node1"])
    for network in NETWORKS:
        it.far.heal(network)


@how
def store_healed(it):
    """The store's network and Slurm's, for a moment: nothing comes of it."""
    it.far.cut("store")
    time.sleep(2)
    it.far.heal("store")
    it.job.go("app.compute", 3)
    it.ends([])


@how
def store(it):
    """The store's network and Slurm's, until the job is over: Slurm gives the node up, and so does srun's front in the end."""
    it.far.cut("store")
    eventually(lambda: it.slurm.state(it.far).startswith("down"), "Slurm to give the node up", 40)
    it.job.wait_err("node node1: the link to the part of the job there broke", 1, 40)
    eventually(lambda: it.job.output.starts == [None, PLACE], "the next world", 40)
    it.ends([PLACE], None)
    it.far.heal("store")


def cut_off(it, networks):
    """A node is cut off until the others compute without it, and healed."""
    for network in networks:
        it.far.cut(network)
    it.job.wait_err("ftd: recovery, epoch", 1, 40)
    eventually(lambda: it.job.output.starts == [None, PLACE], "the next world", 40)
    for network in networks:
        it.far.heal(network)
    eventually(lambda: not any(proc.alive(pid) for pid in it.there["node1"] if pid == it.victim), "the end of the node's old ranks", 20)
    check(it.job.running(), f"the job was over before the node was healed: {it.job.err}")
    it.ends([PLACE], ["node1"])


@scenario("slurm-survives", cluster=True, timeout=150, each=[{"what": what, "mpi": mpi["mpi"]} for what in HOW for mpi in MPIS], spread=True)
def survives(context, what, mpi):
    """An agent or daemons of ftd's are killed on nodes of a step, or a network of a node is cut, for good or not: the result is the undisturbed
    one, srun ends with 0, and nothing is left on any node, also the one that was left out."""
    with Steps(context, 3) as steps:
        it = Trial(context, steps, mpi, pause=200 if what.endswith("healed") else 0)
        HOW[what](it)
        steps.empty(patience=40)
