"""Failures of a job over six nodes or eight, each with every MPI: the result is that of the undisturbed run, and no two processes ever
play one rank. Which of them run in `make test` says matrix.toml."""

import contextlib
import functools
import os
import re
import signal
import time

from harness import etcd, proc, registry
from harness.cluster import NETWORKS
from harness.job import Skipped, check
from harness.registry import scenario
from harness.witness import NO_TRACE, Witness, traced

from .certificates import authority, certify
from .clusters import watched
from .copies import kept, wait_kept
from .hosts import ONE_CARD, UNOBSERVED, Nodes, served
from .processes import eventually

# The last node has room for the ranks of two others.
ROOM = 4
# The rank that stands behind its fourth checkpoint: of the second node of six.
VICTIM = 2
# heat2d's steps between two checkpoints, and the one behind which it stands.
EVERY, NTH = 5, 4
PLACE = EVERY * NTH
STEPS = 40
# For a node to be healed while the others compute.
LONG = {"steps": 90, "pause": 60}
# … where its connections have to find out, too.
LONGER = {"steps": 150, "pause": 60}
# T: so long nothing is heard of a node that is given up. Six nodes with their ranks share the processors with other scenarios here, and
# what its agents do to be heard comes late; it is not what most of these scenarios are about. One has what a user has who asks for nothing.
TIME_OUT = 1.5
DEFAULT = 0.5
# A recovery that takes longer than so many time-outs, and so many seconds besides for processors that others use as well, hung for a while.
TIME_OUTS, BESIDES = 10, 20

# What the block says of a recovery's parts.
TOOK = (r"took +[\d.]+ ms from the notice on: agreed [\d.]+, old ranks gone [\d.]+, released [\d.]+, past MPI_Init [\d.]+,"
        r" state restored [\d.]+")

# A rank that yields while it waits is put on a processor some hundred thousand times a second, and the witness has to see each.
SPIN = {"OMPI_MCA_mpi_yield_when_idle": "0"}

# What tells every MPI its card. MPICH 5 takes both when it is not told, and then waits in MPI_Init where the store's is cut.
CARDS = (*ONE_CARD, "UCX_NET_DEVICES", "MPICH_NETWORK_IFACE")
MPIS_CARD = {name: "mpi" for name in CARDS}
# MPI itself goes over the other network: what a cut of its own link does to it is not ftd's.
STORES_CARD = {name: "store" for name in CARDS}

BEGUN = TOOK.partition(", past")[0]

FAILURES = {}


def certified(context, size):
    """What a node's file has of certificates that one authority has given to so many nodes."""
    place = context.work / "pki"
    authority(place, "site")
    for number in range(size):
        certify(place, "site", f"node{number}")
    return lambda node: f'ca-file = "{place}/site.pem"\ncert-file = "{place}/{node.name}.pem"\nkey-file = "{place}/{node.name}.key"\n'


class Failure:
    """How a failure comes about: a function over a `Trial`, and what that needs."""

    def __init__(self, function, nodes, per_node, spares, members, newer, gates, steps, pause, env, time_out, apart, tls, waits):
        self.function = function
        self.nodes, self.per_node, self.spares, self.members, self.newer = nodes, per_node, spares, members, newer
        self.gates = gates
        self.steps, self.pause = steps, pause
        self.env = env
        self.time_out = time_out
        self.apart = apart
        self.tls = tls
        self.waits = waits

    def cluster(self, context):
        """The nodes that it needs, with their daemons and etcd."""
        peers = certified(context, self.nodes + self.apart) if self.tls else None
        return Nodes(context, self.nodes + self.apart, members=self.members, store=self.store, peers=peers)

    @property
    def store(self):
        """Who makes its etcd."""
        return functools.partial(etcd.Etcd, binary=etcd.newer()) if self.newer else None


def failure(name, nodes=6, per_node=2, spares=0, members=1, newer=False, gates=(), steps=STEPS, pause=10, env=ONE_CARD, time_out=TIME_OUT,
            apart=False, tls=False, waits=0):
    """Registers a failure. `spares`: so many of the nodes are. `members`: of etcd, of release 3.5 if `newer`. `steps` of heat2d, with so many
    milliseconds of pause after each. `time_out`: so long nothing is heard of a node that is given up. `apart`: ftrun is on a node more, which
    has no part of the job. `tls`: nodes have certificates. `waits`: so many seconds a recovery waits for what is away."""

    def register(function):
        FAILURES[name] = Failure(function, nodes, per_node, spares, members, newer, gates, steps, pause, env, time_out, apart, tls, waits)
        return function

    return register


class Trial:
    """The job under way, and what has been done to it."""

    # What is said of each recovery.
    parts = TOOK
    # Whether its ranks yield to nobody while they wait.
    spins = True

    def __init__(self, context, nodes, mpi, failure):
        self.context, self.nodes, self.mpi, self.failure = context, nodes, mpi, failure
        self.size = (failure.nodes - failure.spares) * failure.per_node
        self.job = None
        # Nodes that are off, the ranks of those that were left out, and until when those may run whose machine had been suspended.
        self.dead = []
        self.left_out = []
        # By the name of the node: what was there of the job when it was lost.
        self.there = {}
        self.until = 0.0

    # --- before ---------------------------------------------------------------------------------------------------

    def start(self, *command, cwd=None):
        """Starts the job."""
        each = self.failure.per_node
        *most, last = self.nodes.nodes[: self.failure.nodes]
        # Where the last one may be lost as well, the one before it has as much room.
        roomy = {last.name, most[-1].name} if self.failure.apart else {last.name}
        hosts = [f"{node.name}:{each + ROOM * (node.name in roomy)}" for node in (*most, last)]
        options = ["--hosts", ",".join(hosts)]
        if self.failure.time_out != DEFAULT:
            options += ["--ft-heartbeat", f"{self.failure.time_out * 200:.0f}ms,{self.failure.time_out * 1000:.0f}ms"]
        if self.failure.spares:
            options += ["--ft-spares", self.failure.spares]
        on = self.node(-1 if self.failure.apart else 0)
        self.job = self.context.ftrun(self.mpi, self.size, *command, options=options, on=on, gates=self.gates, cwd=cwd,
                                      env={**self.failure.env, **(SPIN if self.spins else {})})

    @property
    def gates(self):
        """Where somebody stands, or leaves a mark."""
        return [*self.failure.gates, f"client.committed:{VICTIM}:{NTH}", *kept(PLACE, range(self.size))]

    @property
    def lease(self):
        """So long a node's lease holds: three quarters of the time-out."""
        return 0.75 * self.failure.time_out

    @property
    def arguments(self):
        """heat2d's, but for the pause, which changes no result."""
        return ["-g", "48", "-s", str(self.failure.steps), "-c", str(EVERY)]

    # --- who and where --------------------------------------------------------------------------------------------

    def node(self, number):
        """A node."""
        return self.nodes.nodes[number]

    def others(self, *numbers):
        """All nodes but these."""
        return [node for node in self.nodes.nodes if node.number not in numbers]

    def ranks_on(self, node):
        """The processes that play ranks there."""
        return [pid for pid in node.pids() if "FT_RANK" in proc.environ(pid) and proc.name(pid).startswith(self.name)]

    def one(self, node, name):
        """The only process of that name there."""
        found = node.named(name)
        check(len(found) == 1, f"{len(found)} {name} on {node.name}")
        return found[0]

    def stands(self, copied=True):
        """The victim, which stands behind its fourth checkpoint; with `copied` all ranks' copies of that are at their partners."""
        node = self.node(VICTIM // self.failure.per_node)
        self.job.on = node
        pid = self.job.at_gate("client.committed", VICTIM)
        check(pid in self.ranks_on(node), f"rank {VICTIM} is not on {node.name}")
        if copied:
            wait_kept(self.job, range(self.size))
        return pid

    def go(self):
        """It goes on."""
        self.job.go("client.committed", VICTIM)

    # --- what is waited for ---------------------------------------------------------------------------------------

    def passed(self, steps):
        """So many more steps are made."""
        done = len(self.job.output.steps)
        eventually(lambda: len(self.job.output.steps) >= done + steps, f"{steps} steps more than {done}", 60)

    def world(self, number, steps=1):
        """World `number` computes."""
        words = lambda: self.job.output.text.count("restarted from version") + self.job.output.text.count("step 1 hash") - 1
        eventually(lambda: words() >= number - 1, f"world {number}", 60)
        self.passed(steps)

    # --- what fails -----------------------------------------------------------------------------------------------

    def loses(self, number):
        """The node will be left out of the job; its ranks are remembered."""
        node = self.node(number)
        self.left_out.append((node, self.ranks_on(node)))
        user = self.nodes.cluster.user.pw_uid
        self.there[node.name] = [pid for pid in node.pids() if proc.uid(pid) == user]
        return node

    def gone(self, node):
        """Nothing runs any more that was there of the job when the node was lost. A new part of it may, for the node is a spare one now."""
        left = lambda: [proc.name(pid) for pid in self.there[node.name] if proc.alive(pid)]
        eventually(lambda: not left(), f"the end of what ran on {node.name}", 10)

    def spare_again(self, node):
        """It has a part of the job again, and when that runs nothing is there any more of what was there when it was lost."""
        user, before = self.nodes.cluster.user.pw_uid, self.there[node.name]
        new = lambda: [pid for pid in node.named("ft-agent") if proc.uid(pid) == user and pid not in before]
        eventually(new, f"a new agent on {node.name}", 30)
        left = [proc.name(pid) for pid in before if proc.alive(pid)]
        check(not left, f"{node.name} has a new agent beside {left}")

    def off(self, number, how="crash"):
        """A node crashes, or loses its power."""
        node = self.loses(number)
        self.dead.append(node)
        print(f"  {time.monotonic() - self.job.started:7.3f} s: {how} of {node.name}", flush=True)
        getattr(node, how)()

# --- while it is so ------------------------------------------------------------------------------------------

    def lasts(self, seconds, since):
        """It stays as it is until so many seconds after a moment."""
        time.sleep(max(0.0, since + seconds - time.monotonic()))

    def cut_off(self, number, cut, heal):
        """A node is cut off until the others compute without it, and healed: its old ranks are gone."""
        self.stands()
        node = self.loses(number)
        cut(node)
        self.world(2)
        heal(node)
        self.spare_again(node)
        check(self.job.running(), f"the job was over before {node.name} was healed")
        self.ends(PLACE, [number])

    def again(self, gate, *more):
        """A node crashes, and another one when somebody stands at a gate in the recovery from that."""
        self.stands()
        self.off(1)
        self.then(gate, *more)

    def again_of_next_world(self, gate, rank):
        """… at a gate at which that rank of the fourth node has stood in the first world already."""
        self.job.on = self.node(3)
        self.job.at_gate(gate, rank)
        self.job.go(gate, rank)
        self.stands()
        self.job.close_gate(gate, rank)
        self.again(gate, rank)

    def then(self, gate, rank="-", go=None):
        """The fourth node crashes when somebody stands at that gate, who then goes on if they still can: an agent that stands there for
        longer is given up itself. `go`: another gate that is open from then on."""
        eventually(self.job.gate_path(gate, rank).exists, f"somebody at {gate}", 30)
        node = self.node(3)
        self.dead.append(node)
        node.crash(lambda: [self.job.go(*which) for which in ((gate, rank), go) if which])
        self.ends(PLACE, [1, 3], parts=BEGUN)

    # --- afterwards -----------------------------------------------------------------------------------------------

    def ends(self, restored=PLACE, lost=(), parts=None):
        """The job ends well: these nodes were given up, and in whatever recovery this version was restored, with `False` in none there was.
        Of the last recovery the block says how long these parts took."""
        self.result(restored)
        silent = re.findall(r"node (\w+) was silent for the heartbeat time-out", self.job.err)
        check(sorted(silent) == [f"node{number}" for number in sorted(lost)], f"given up were {silent}, not {lost}: {self.job.err}")
        took = re.findall(r"^ftd:   took .*$", self.job.err, re.M)
        check(len(took) == self.job.err.count("ftd: recovery, epoch"), f"not every block says how long it took: {self.job.err}")
        check(not took or re.search(parts or self.parts, took[-1]), f"not all of its parts: {took[-1:]}")

    def result(self, restored):
        """It ends well, and that was restored."""
        self.job.expect(0, self.reference)
        found = set(self.job.restored)
        check(found == (set() if restored is False else {restored}), f"restored {found}, not {restored}: {self.job.err}")

    def none_hung(self):
        """From the notice of a failure until all ranks computed again it took no longer than that: no stall of a minute hides in a job that ends well."""
        most = TIME_OUTS * self.failure.time_out + BESIDES + self.failure.waits
        took = [float(found) / 1000 for found in re.findall(r"^ftd:   took +([\d.]+) ms from the notice on", self.job.err, re.M)]
        check(all(each < most for each in took), f"recoveries took {took} s, and {most} s are the most: {self.job.err}")

    def nothing_left(self):
        """Nothing of the job is left on any node that is there."""
        for node in self.nodes.nodes:
            if node not in self.dead:
                self.nodes.empty(node)

    def witnessed(self, seen):
        """What who sees all that runs has seen."""
        for world in {1, *(world for world, _ in self.job.recoveries[-1:])}:
            found = sorted(seen.of(world))
            check(found == list(range(self.size)), f"of world {world} there ran the ranks {found}")
        gone = {pid for _, ranks in self.left_out for pid in ranks}
        seen.no_two_play_one_rank(gone if self.until else (), self.until)
        for _, ranks in self.left_out:
            seen.none_ran(ranks, self.until)


@scenario("hosts-failure", cluster=True, timeout=180, each=registry.pairs)
def hosts_failure(context, failure, mpi):
    """heat2d over six nodes, two ranks on each, goes through a failure: every step's hash is that of the undisturbed run, and a witness outside
    of ftd sees that no two processes play one rank, and that nothing of a node runs that was left out."""
    failure, mpi = FAILURES[failure], context.mpi(mpi)
    with failure.cluster(context) as nodes:
        trial = Trial(context, nodes, mpi, failure)
        heat2d = nodes.cluster.program(mpi, "heat2d.c")
        program = watched(context, heat2d)
        trial.name = program.name
        # Neither the pause nor the number of ranks changes a hash.
        trial.reference = context.reference(mpi, 2, heat2d, *trial.arguments, on=nodes.nodes[0])
        with Witness(program.name) if traced() else contextlib.nullcontext() as seen:
            trial.start(program, *trial.arguments, "-p", failure.pause)
            failure.function(trial)
            trial.none_hung()
            trial.nothing_left()
        if seen is None:
            # All else has been held.
            raise Skipped(NO_TRACE)
        trial.witnessed(seen)


# --- ranks and nodes ------------------------------------------------------------------------------------------------


@failure("rank")
def rank(it):
    """One rank is killed."""
    it.job.kill(it.stands())
    it.ends()


@failure("crash", members=3)
@failure("crash-default", time_out=DEFAULT)
@failure("crash-of-four", per_node=4)
@failure("crash-tls", tls=True)
def crash(it):
    """A node crashes."""
    it.stands()
    it.off(1)
    it.ends(PLACE, [1])


@failure("crash-of-first", apart=True)
def crash_of_first(it):
    """The node crashes that has rank 0, and to which all others hand what they know."""
    it.stands()
    it.off(0)
    it.ends(PLACE, [0])


@failure("power-off")
def power_off(it):
    """A node is gone without a word."""
    it.stands()
    it.off(1, "power_off")
    it.ends(PLACE, [1])


@failure("two-nodes-kept")
def two_nodes_kept(it):
    """Two nodes at once, of which neither has the other's copies."""
    it.stands()
    it.off(1)
    it.off(3)
    it.ends(PLACE, [1, 3])


@failure("two-nodes-lost")
def two_nodes_lost(it):
    """A node and the one that has its copies: all begin from the beginning."""
    it.stands()
    it.off(1)
    it.off(2)
    it.ends(None, [1, 2])
    check("restarted without a checkpoint: no complete one of the API is left" in it.job.err, it.job.err)


# --- cuts -----------------------------------------------------------------------------------------------------------


@failure("cut-mpi", **LONG)
def cut_mpi(it):
    """A node loses MPI's network."""
    it.cut_off(1, lambda node: node.cut("mpi"), lambda node: node.heal("mpi"))


@failure("cut-store", env=MPIS_CARD)
def cut_store(it):
    """A node loses the store's network: nothing comes of it."""
    it.stands()
    it.node(1).cut("store")
    it.go()
    it.passed(10)
    it.node(1).heal("store")
    it.ends(False)


@failure("cut-store-two", env=MPIS_CARD, **LONG)
def cut_store_two(it):
    """Two nodes lose the store's network, and a rank of one of them is killed: while it lasts their agents ask a third one's daemon."""
    victim, cut = it.stands(), [it.node(1), it.node(2)]
    for node in cut:
        node.cut("store")
    it.job.kill(victim)
    it.world(2)
    check(it.job.running(), "the job was over before the store could be reached again")
    for node in cut:
        node.heal("store")
    it.ends()


# Between two daemons a link may be silent for 15 s.
BEYOND_SILENCE = 20


def long_without_store(it, lose, find):
    """The store's network is lost for longer than a link between two daemons may be silent, and comes back: nobody is lost."""
    it.stands()
    since = time.monotonic()
    lose()
    it.go()
    it.lasts(BEYOND_SILENCE, since)
    check(it.job.running(), "the job was over before the store could be reached again")
    find()
    it.ends(False)


@failure("cut-store-long", steps=300, pause=80, env=MPIS_CARD, tls=True)
def cut_store_long(it):
    """A node and the one that has its copies lose the store's network for longer than a link may be silent."""
    nodes = [it.node(1), it.node(2)]
    long_without_store(it, lambda: [node.cut("store") for node in nodes], lambda: [node.heal("store") for node in nodes])


@failure("cut-store-out", steps=300, pause=80, env=MPIS_CARD)
def cut_store_out(it):
    """Nothing that a node sends in the store's network arrives, for as long."""
    long_without_store(it, lambda: it.node(1).cut_way("store", "out"), lambda: it.node(1).heal_way("store"))


@failure("cut-store-in", steps=300, pause=80, env=MPIS_CARD)
def cut_store_in(it):
    """Nothing arrives that is sent to a node in the store's network, for as long."""
    long_without_store(it, lambda: it.node(1).cut_way("store", "in"), lambda: it.node(1).heal_way("store"))


@failure("switch-store", steps=300, pause=80, env=MPIS_CARD)
def switch_store(it):
    """All links of the store's network are down for as long."""
    long_without_store(it, lambda: it.nodes.cluster.all_down("store"), lambda: [node.heal("store") for node in it.nodes.cluster.machines])


@failure("cut-first", apart=True, **LONG)
def cut_first(it):
    """The node loses MPI's network that has rank 0, and to which all others hand what they know."""
    it.cut_off(0, lambda node: node.cut("mpi"), lambda node: node.heal("mpi"))


@failure("cut-both", **LONG)
def cut_both(it):
    """A node loses both networks."""
    it.cut_off(1, lambda node: [node.cut(network) for network in NETWORKS], lambda node: [node.heal(network) for network in NETWORKS])


@failure("cut-out", **LONG)
def cut_out(it):
    """Nothing that a node sends in MPI's network arrives."""
    it.cut_off(1, lambda node: node.cut_way("mpi", "out"), lambda node: node.heal_way("mpi"))


@failure("cut-in", **LONG)
def cut_in(it):
    """Nothing arrives that is sent to a node in MPI's network."""
    it.cut_off(1, lambda node: node.cut_way("mpi", "in"), lambda node: node.heal_way("mpi"))


@failure("cut-both-out", **LONGER)
def cut_both_out(it):
    """Nothing that a node sends in either network arrives."""
    it.cut_off(1, lambda node: [node.cut_way(network, "out") for network in NETWORKS], lambda node: [node.heal_way(network) for network in NETWORKS])


@failure("cut-both-in", **LONGER)
def cut_both_in(it):
    """Nothing arrives that is sent to a node in either network."""
    it.cut_off(1, lambda node: [node.cut_way(network, "in") for network in NETWORKS], lambda node: [node.heal_way(network) for network in NETWORKS])


@failure("switch", pause=20)
def switch(it):
    """All links of MPI's network are down for three seconds and come back one by one, with a while between them: nobody is lost."""
    it.stands()
    since = time.monotonic()
    it.nodes.cluster.all_down("mpi")
    it.go()
    it.lasts(3, since)
    for node in it.nodes.nodes:
        node.heal("mpi")
        time.sleep(0.3)
    it.ends(False)


@failure("unobserved", nodes=8, per_node=1, env=STORES_CARD, gates=["agent.parked"])
def unobserved(it):
    """The link between two nodes of eight is cut, of which neither observes the other, when somebody has the next world ready, and it is not
    released."""
    it.job.kill(it.stands())
    one, other = it.node(0), it.node(UNOBSERVED)
    eventually(it.job.gate_path("agent.parked").exists, "somebody at agent.parked", 30)
    it.nodes.cluster.cut_link(one, other, "mpi")
    # Before anything is looked at: an agent that stands there for longer is given up itself.
    it.job.go("agent.parked")
    pairs = {(a.number, b.number) for a in it.nodes.nodes for b in it.nodes.nodes if a is not b}
    whole = pairs - {(one.number, other.number), (other.number, one.number)}
    check(it.nodes.cluster.arrives("mpi", whole) == whole, "another link is cut than the one that was meant")
    it.ends()
    check(it.nodes.cluster.arrives("mpi", whole) == whole, "the link was not cut all the time")


# Two of four nodes that observe each other, neither of them the lowest one, to which both hand their accusations (ftd-core's ring).
MUTUAL = (1, 2)


@failure("cut-pair", nodes=4, per_node=1, env=STORES_CARD, **LONG)
def cut_pair(it):
    """The link between two nodes that observe each other is cut for good: one of them is given up, and the other one goes on."""
    it.stands()
    one, other = (it.node(number) for number in MUTUAL)
    ranks = {node: it.ranks_on(node) for node in (one, other)}
    it.nodes.cluster.cut_link(one, other, "mpi")
    it.world(2)
    # Which of them, that is for the lowest one to say.
    lost = [number for number in MUTUAL if f"node node{number} was silent" in it.job.err]
    it.left_out = [(it.node(number), ranks[it.node(number)]) for number in lost]
    it.ends(PLACE, lost)
    check(len(lost) == 1, f"given up were {lost}: {it.job.err}")


# --- a second one in each phase of a recovery -----------------------------------------------------------------------


@failure("again-noticed", gates=["agent.noticed"])
def again_noticed(it):
    """Another node crashes when the first one's death is known, and nothing is proposed."""
    it.again("agent.noticed")


@failure("again-agreed", gates=["agent.agreed"])
def again_agreed(it):
    """… when the next epoch is written, and nobody acts on it."""
    it.again("agent.agreed")


@failure("again-proposed", gates=["agent.proposed", "agent.proposes:*:1:mark"], apart=True)
def again_proposed(it):
    """… which has written the next epoch itself, and whose answer has not been taken."""
    it.stands()
    it.off(1)
    # One of the agents is the first to write, and stands there; another one may write the next epoch meanwhile, for who stands is silent.
    eventually(it.job.gate_path("agent.proposed").exists, "an agent that has written the next epoch", 30)
    marks = {it.job.gate_path("agent.proposes", number): number for number in range(it.failure.nodes)}
    number = marks[min((mark for mark in marks if mark.exists()), key=lambda mark: mark.stat().st_mtime_ns)]
    it.job.on = it.node(number)
    pid = it.job.at_gate("agent.proposed")
    check(pid == it.one(it.node(number), "ft-agent"), f"process {pid} is no agent of {it.node(number).name}")
    it.off(number)
    # The copies of the second node's ranks are on the third one, and it had those of the first one's.
    it.ends(None if number in (0, 2) else PLACE, [1, number], parts=BEGUN)


@failure("again-emptying", gates=["shepherd.stop:6"])
def again_emptying(it):
    """… when it is about to kill its old ranks."""
    it.again("shepherd.stop", 6)


@failure("again-frozen", gates=["agent.frozen"])
def again_frozen(it):
    """… when the old ranks are gone and somebody is about to look which copies its node has."""
    it.again("agent.frozen")


@failure("again-fetching", gates=[f"agent.fetches:{VICTIM}"])
def again_fetching(it):
    """… when a copy is about to be brought to where its rank will be."""
    it.again("agent.fetches", VICTIM)


@failure("again-verifying", gates=["agent.verifies:6"])
def again_verifying(it):
    """… when it is about to compare a copy with its checksum."""
    it.again("agent.verifies", 6)


@failure("again-chosen", gates=["agent.chosen:*:2"])
def again_chosen(it):
    """… when it is agreed what is restored, and somebody has not told its ranks."""
    it.again("agent.chosen")


@failure("again-parked-agent", gates=["agent.parked"])
def again_parked_agent(it):
    """… or no node: an agent is killed when somebody has the next world ready, and it is not released."""
    it.stands()
    it.off(1)
    eventually(it.job.gate_path("agent.parked").exists, "somebody at agent.parked", 30)
    it.job.kill(it.one(it.node(3), "ft-agent"))
    it.job.go("agent.parked")
    it.ends(PLACE, [1])


@failure("again-parked", gates=["agent.parked"])
def again_parked(it):
    """… when somebody has the next world ready, and it is not released."""
    it.again("agent.parked")


@failure("again-released", gates=["agent.released:*:2"])
def again_released(it):
    """… in the first moment of the next world."""
    it.again("agent.released")


@failure("again-starting", gates=["mpi.before-init:6"])
def again_starting(it):
    """… when its rank of the next world is there, and has not come to MPI_Init."""
    it.again_of_next_world("mpi.before-init", 6)


@failure("again-init", gates=["mpi.in-init:6"])
def again_init(it):
    """… when its rank is inside MPI_Init of the next world."""
    it.again_of_next_world("mpi.in-init", 6)


@failure("again-restoring", gates=["client.restoring:6"])
def again_restoring(it):
    """… when its rank has half of its state back."""
    it.again("client.restoring", 6)


@failure("again-unsaid", gates=["agent.unsaid", "client.copied:6"])
def again_unsaid(it):
    """… when all ranks have their state back, and nobody has been told of the recovery."""
    # No newer checkpoint is complete without this rank's.
    it.job.on = it.node(3)
    it.job.at_gate("client.copied", 6)
    it.job.go("client.copied", 6)
    it.stands()
    it.job.close_gate("client.copied", 6)
    it.off(1)
    eventually(it.job.gate_path("agent.unsaid").exists, "an agent that is about to tell people", 60)
    check("ftd: recovery, epoch" not in it.job.err, f"it was told: {it.job.err}")
    it.then("agent.unsaid", go=("client.copied", 6))
    check(it.job.err.count("ftd: recovery, epoch") == 2, f"not both recoveries are told: {it.job.err}")


# --- ftd's own processes --------------------------------------------------------------------------------------------


@failure("daemon-and-agent")
def daemon_and_agent(it):
    """All daemons but one are killed, and an agent: what is agreed goes through the one."""
    it.stands()
    for daemon in it.nodes.daemons[:-1]:
        daemon.kill()
    it.job.kill(it.one(it.node(1), "ft-agent"))
    it.ends()


# Between the lease's end, at which a node's ranks are stopped, and T, after which it is left out, is a quarter of T, in which the harness
# has to see the one and to continue the agent: with the default it comes too late on busy processors.
@failure("agent-stalls", time_out=2 * TIME_OUT)
def agent_stalls(it):
    """An agent stands still until its node's lease is over, and for less than T: its ranks are stopped, go on, and nobody is left out."""
    victim, node = it.stands(), it.node(1)
    # That one may stand still already.
    agent, ranks = it.one(node, "ft-agent"), [pid for pid in it.ranks_on(node) if pid != victim]
    proc.freeze(agent)
    states = lambda: {stat[0] for stat in map(proc.stat, ranks) if stat}
    eventually(lambda: states() == {"T"}, f"the ranks of {node.name} to be stopped", it.failure.time_out)
    os.kill(agent, signal.SIGCONT)
    eventually(lambda: "T" not in states(), f"the ranks of {node.name} to go on", 10)
    it.go()
    it.ends(False)


@failure("agent-stalls-default", time_out=DEFAULT)
def agent_stalls_default(it):
    """… with the default time-out, for 0.4 s."""
    victim, node = it.stands(), it.node(1)
    agent, ranks = it.one(node, "ft-agent"), [pid for pid in it.ranks_on(node) if pid != victim]
    proc.freeze(agent)
    time.sleep(0.4)
    states = {proc.stat(pid)[0] for pid in ranks}
    os.kill(agent, signal.SIGCONT)
    check(states == {"T"}, f"the ranks of {node.name} were {states}")
    eventually(lambda: "T" not in {proc.stat(pid)[0] for pid in ranks}, f"the ranks of {node.name} to go on", 10)
    it.go()
    it.ends(False)


def loses_its_part(it, kill):
    """Something is killed that holds a node's part of the job: the part is ended, its ranks go on, there or elsewhere, and the node has a new
    part."""
    it.stands()
    kill(it.loses(1))
    it.go()
    it.ends(PLACE, [1])
    node = it.node(1)
    for words in ("the link to the part of the job there broke (", "has a part of the job again, as a spare node"):
        check(len(re.findall(rf"^ftrun: node {node.name}:? {re.escape(words)}", it.job.err, re.M)) == 1, f"'{words}' is not said once: {it.job.err}")
    it.gone(node)


@failure("link-far")
def link_far(it):
    """The process is killed with which the daemon of another node serves the job."""
    loses_its_part(it, lambda node: os.kill(served(it.nodes, node.number), signal.SIGKILL))


def of_part(node, launcher):
    """The process that holds a part of the job, or with `launcher` the one below it, which has the agent."""
    (found,) = [pid for pid in node.named("ftrun") if (proc.name(proc.stat(pid)[1]) == "ftrun") == launcher]
    return found


@failure("part")
def part(it):
    """… or the job's own part on that node."""
    loses_its_part(it, lambda node: os.kill(of_part(node, False), signal.SIGKILL))


@failure("part-launcher")
def part_launcher(it):
    """… or that part's launcher."""
    loses_its_part(it, lambda node: os.kill(of_part(node, True), signal.SIGKILL))


@failure("pmix")
def pmix(it):
    """The PMIx server of a node is killed."""
    it.stands()
    it.job.kill(it.one(it.node(1), "ft-pmix"))
    it.ends()


@failure("agent-stopped")
def agent_stopped(it):
    """An agent stands still for three seconds: its shepherds stop its ranks, and its node is left out."""
    it.stands()
    node = it.loses(1)
    agent = it.one(node, "ft-agent")
    since = time.monotonic()
    proc.freeze(agent)
    eventually(lambda: {proc.stat(pid)[0] for pid in it.ranks_on(node)} == {"T"}, "the ranks to stand still")
    it.world(2)
    it.lasts(3, since)
    # Its launcher may have ended it.
    with contextlib.suppress(ProcessLookupError):
        os.kill(agent, signal.SIGCONT)
    it.gone(node)
    it.ends(PLACE, [1])


@failure("shepherd-stopped")
def shepherd_stopped(it):
    """A node is cut off while a shepherd there stands still: none of its ranks runs on."""
    shepherd = it.job.shepherd_of(it.stands())
    proc.freeze(shepherd)
    node = it.loses(1)
    for network in NETWORKS:
        node.cut(network)
    it.world(2)
    for network in NETWORKS:
        node.heal(network)
    # Its launcher continues it, too, before it ends it.
    with contextlib.suppress(ProcessLookupError):
        os.kill(shepherd, signal.SIGCONT)
    it.gone(node)
    it.ends(PLACE, [1])


@failure("suspended", **LONG)
def suspended(it):
    """A node is suspended for three seconds: it is left out, and does not go on for longer than until its lease's timers have run."""
    it.stands()
    node = it.loses(1)
    since = time.monotonic()
    node.pause()
    it.world(2)
    it.lasts(3, since)
    node.resume()
    it.until = time.monotonic() + it.lease
    it.gone(node)
    it.spare_again(node)
    check(it.job.running(), f"the job was over before {node.name} was a spare node")
    it.ends(PLACE, [1])


@failure("suspended-spare", nodes=3, spares=1, steps=2 * STEPS)
def suspended_spare(it):
    """A node is suspended until a spare one has its ranks and computes, and goes on: its old ranks do not for longer than until its lease's timers have
    run. It is spare itself then, and when the other one crashes its ranks go on there."""
    it.stands()
    node, spare = it.loses(1), it.node(2)
    check(not it.ranks_on(spare), "the spare node has ranks")
    node.pause()
    it.job.close_gate("client.committed", VICTIM)
    it.job.on = spare
    # In its world, too, it stands behind the fourth checkpoint that it takes.
    check(it.job.at_gate("client.committed", VICTIM, patience=60) in it.ranks_on(spare), f"rank {VICTIM} is not on {spare.name}")
    node.resume()
    it.until = time.monotonic() + it.lease
    it.gone(node)
    eventually(lambda: f"ftrun: node {node.name} has a part of the job again, as a spare node\n" in it.job.err, f"{node.name} as a spare node", 30)
    check(not it.ranks_on(node), f"{node.name} has ranks")
    it.off(2)
    it.job.expect(0, it.reference)
    first, *more = it.job.restored
    check(first == PLACE and len(more) == 1 and more[0] and PLACE <= more[0] <= 2 * PLACE, f"restored {it.job.restored}: {it.job.err}")
    for one, other, again in ((node, spare, ""), (spare, node, " (again)")):
        moved = f"moved     ranks 2-3 from node {one.name} to node {other.name}{again}\n"
        check(it.job.err.count(moved) == 1, f"'{moved}' is not said: {it.job.err}")


# --- the store ------------------------------------------------------------------------------------------------------


@failure("etcd-leader", members=3, newer=True)
def etcd_leader(it):
    """etcd's leader is killed, and a rank; this etcd is of release 3.5, all others are of 3.4."""
    victim = it.stands()
    it.nodes.store.kill(it.nodes.store.leader())
    it.job.kill(victim)
    it.ends()


@failure("etcd-paused", members=3)
def etcd_paused(it):
    """All of etcd stands still for five seconds in which a rank is killed: the recovery waits for it."""
    victim = it.stands()
    since = time.monotonic()
    for machine in it.nodes.store.machines:
        machine.pause()
    it.job.kill(victim)
    it.lasts(5, since)
    check(it.job.running() and not it.job.recoveries, f"an epoch without the store: {it.job.err}")
    for machine in it.nodes.store.machines:
        machine.resume()
    it.ends()


@failure("etcd-majority", members=3)
def etcd_majority(it):
    """Two of etcd's three members are killed, and a rank: the recovery waits for them."""
    victim, since = it.stands(), time.monotonic()
    lost = it.nodes.store.machines[:2]
    for machine in lost:
        it.nodes.store.kill(machine)
    it.job.kill(victim)
    it.lasts(5, since)
    check(it.job.running() and not it.job.recoveries, f"an epoch without a majority: {it.job.err}")
    for machine in lost:
        it.nodes.store.start(machine)
    it.ends()


# Seconds.
AWAY = 30


def without_store(it, meanwhile):
    """All of etcd is killed, and started again 30 s later."""
    store, since = it.nodes.store, time.monotonic()
    for machine in store.machines:
        store.kill(machine)
    meanwhile()
    it.lasts(AWAY, since)
    check(it.job.running() and not it.job.recoveries, f"an epoch without the store: {it.job.err}")
    for machine in store.machines:
        store.start(machine)


@failure("etcd-gone", members=3, steps=140, pause=300)
def etcd_gone(it):
    """There is no etcd for 30 s: the job runs on."""
    it.stands()

    def meanwhile():
        it.go()
        it.passed(50)

    without_store(it, meanwhile)
    it.passed(5)
    it.ends(False)


@failure("etcd-gone-failing", members=3, waits=AWAY)
def etcd_gone_failing(it):
    """There is no etcd for 30 s, and a rank is killed, and a while later all others: the recovery waits for it."""
    victim = it.stands()

    def meanwhile():
        it.job.kill(victim)
        time.sleep(1)
        check(it.job.running() and not it.job.recoveries, f"an epoch without the store: {it.job.err}")
        # What waits for a rank that is dead takes all of the processors for as long.
        for node in it.nodes.nodes:
            for pid in it.ranks_on(node):
                with contextlib.suppress(ProcessLookupError):
                    it.job.kill(pid)

    without_store(it, meanwhile)
    it.ends()


@failure("etcd-gone-node", members=3, waits=AWAY)
def etcd_gone_node(it):
    """There is no etcd for 30 s, and a node crashes: the recovery waits for it."""
    it.stands()
    without_store(it, lambda: it.off(1))
    it.ends(PLACE, [1])


@failure("etcd-gone-cut", members=3, waits=AWAY, **LONG)
def etcd_gone_cut(it):
    """There is no etcd for 30 s, and a node loses MPI's network: it and the others wait for etcd alike, and it does not write first that it is alone, and
    the job over."""
    it.stands()
    node = it.loses(1)
    without_store(it, lambda: node.cut("mpi"))
    it.world(2)
    node.heal("mpi")
    it.result(PLACE)


@failure("island", **LONG)
def island(it):
    """Two nodes of six reach each other alone, and etcd: the others, which have slots enough, go on without them."""
    it.stands()
    apart = [it.loses(1), it.loses(3)]
    it.nodes.cluster.island(apart, "mpi")
    it.world(2)
    it.nodes.cluster.rejoin(apart, "mpi")
    it.ends(PLACE, [1, 3], parts=BEGUN)


# Each is in matrix.toml, and nothing else is.
_named = {pair["failure"] for pair in registry.pairs}
check(_named <= FAILURES.keys() and (not registry.soak or _named == FAILURES.keys()), f"matrix.toml names {_named ^ FAILURES.keys()}")
