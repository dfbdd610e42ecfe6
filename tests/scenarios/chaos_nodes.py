"""Random failures at random moments of a job over nodes (`make soak` only): no gate, no place, whatever comes."""

import contextlib
import os
import random
import signal
import time

from harness import proc, registry
from harness.cluster import NETWORKS
from harness.job import Skipped, check
from harness.registry import scenario
from harness.witness import NO_TRACE, Witness, traced

from .clusters import watched
from .failures import SPIN, of_part
from .hosts import ONE_CARD, Nodes, serving

SEEDS = range(4)
MPIS = ("openmpi4", "openmpi5", "mpich5")
# Nodes with ranks; ftrun is on one more.
NODES = 6
KILLS = 25
# T, and the part of it that a node's lease holds.
TIME_OUT, LEASE = 1.5, 0.75 * 1.5
# ftrun starts an agent again at most five times within half a minute.
MOST_AGENTS = 4

# What happens, and how often of a hundred times.
WHAT = {
    "rank": 24, "ranks": 8, "shepherd": 6, "pmix": 4, "agent": 8, "part": 4, "link": 4, "daemon": 8,
    "crash": 6, "power_off": 4, "cut": 8, "way": 4, "stall": 5, "pause": 3, "member": 4,
}


class Chaos:
    """What is done to a job, and what of it is still to be undone."""

    def __init__(self, nodes, job, name, dice):
        self.nodes, self.job, self.name, self.dice = nodes, job, name, dice
        # Nodes to which something is done that lasts, and members of etcd.
        self.held, self.members = set(), set()
        # When, whose, and what.
        self.later = []
        self.agents = dict.fromkeys(range(NODES), 0)
        # Ranks of nodes that were suspended, which may run until their timers have, and when that is at the latest.
        self.suspended, self.until = set(), 0.0

    def says(self, what):
        """For who reads the log."""
        print(f"  {time.monotonic() - self.job.started:7.3f} s: {what}", flush=True)

    def ranks_on(self, node):
        """The processes that play ranks there."""
        return [pid for pid in node.pids() if proc.name(pid).startswith(self.name) and "FT_RANK" in proc.environ(pid)]

    def kill(self, what, pids):
        """Whatever may be gone by now."""
        self.says(f"SIGKILL of {what}: {pids}")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def after(self, seconds, held, whose, undo):
        """Undoes it then."""
        held.add(whose)
        self.later.append((time.monotonic() + seconds, held, whose, undo))

    def undo(self):
        """What is due."""
        for entry in sorted(self.later, key=lambda entry: entry[0]):
            due, held, whose, undo = entry
            if due <= time.monotonic():
                self.later.remove(entry)
                undo()
                held.discard(whose)

    def free(self):
        """A node to which nothing is done; nothing when there are two to which something is."""
        found = [node for node in self.nodes.nodes[:NODES] if node not in self.held]
        return self.dice.choice(found) if len(self.held) < 2 else None

    def one(self):
        """Something happens."""
        (what,) = self.dice.choices(list(WHAT), list(WHAT.values()))
        node, lasts = self.free(), 10 ** self.dice.uniform(-1.0, 0.6)
        if node is not None or what in ("daemon", "member"):
            getattr(self, what)(node, lasts)

    # --- what happens ---------------------------------------------------------------------------------------------

    def rank(self, node, _, most=1):
        found = self.ranks_on(node)
        self.kill(f"ranks on {node.name}", self.dice.sample(found, min(len(found), most)))

    def ranks(self, node, lasts):
        self.rank(node, lasts, 2)
        self.rank(self.free(), lasts)

    def shepherd(self, node, _):
        self.kill(f"a shepherd on {node.name}", node.named("ft-shepherd")[:1])

    def pmix(self, node, _):
        self.kill(f"ft-pmix on {node.name}", node.named("ft-pmix")[:1])

    def agent(self, node, _):
        if self.agents[node.number] < MOST_AGENTS:
            self.agents[node.number] += 1
            self.kill(f"the agent on {node.name}", node.named("ft-agent")[:1])

    def part(self, node, _):
        # It may be about to begin.
        with contextlib.suppress(ValueError):
            self.kill(f"the part on {node.name}", [of_part(node, self.dice.random() < 0.5)])

    def link(self, node, _):
        self.kill(f"who serves links on {node.name}", serving(self.nodes, node.number)[:1])

    def daemon(self, _, lasts):
        node = self.dice.choice([node for node in self.nodes.nodes if node not in self.held])
        self.says(f"ftd of {node.name} is killed for {lasts:.3f} s")
        self.nodes.daemons[node.number].kill()
        self.after(lasts, self.held, node, lambda: self.nodes.daemons[node.number].start())

    def crash(self, node, lasts, how="crash"):
        def boots():
            self.says(f"{node.name} starts anew")
            node.boot()
            self.nodes.daemons[node.number] = self.nodes.daemon(node).start()

        self.says(f"{how} of {node.name}, for {lasts + 1:.3f} s")
        getattr(node, how)()
        self.agents[node.number] = 0
        self.after(lasts + 1, self.held, node, boots)

    def power_off(self, node, lasts):
        self.crash(node, lasts, "power_off")

    def cut(self, node, lasts):
        networks = self.dice.choice([["mpi"], ["store"], list(NETWORKS)])
        self.says(f"{node.name} is cut off from {networks} for {lasts:.3f} s")
        for network in networks:
            node.cut(network)
        self.after(lasts, self.held, node, lambda: [node.heal(network) for network in networks])

    def way(self, node, lasts):
        network, way = self.dice.choice(list(NETWORKS)), self.dice.choice(["in", "out"])
        self.says(f"{node.name} loses what goes {way} in {network} for {lasts:.3f} s")
        node.cut_way(network, way)
        self.after(lasts, self.held, node, lambda: node.heal_way(network))

    def stall(self, node, lasts):
        def goes_on():
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

        found = node.named("ft-agent")[:1]
        self.says(f"the agent of {node.name} stands still for {lasts:.3f} s: {found}")
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        self.after(lasts, self.held, node, goes_on)

    def pause(self, node, lasts):
        def resumes():
            node.resume()
            self.until = time.monotonic() + LEASE

        self.says(f"{node.name} is suspended for {lasts:.3f} s")
        self.suspended.update(self.ranks_on(node))
        node.pause()
        self.until = float("inf")
        self.after(lasts, self.held, node, resumes)

    def member(self, _, lasts):
        store = self.nodes.store
        if self.members:
            return
        machine = self.dice.choice(store.machines)
        if self.dice.random() < 0.5:
            self.says(f"etcd's {machine.name} stands still for {lasts:.3f} s")
            machine.pause()
            self.after(lasts, self.members, machine, machine.resume)
        else:
            self.says(f"etcd's {machine.name} is killed for {lasts:.3f} s")
            store.kill(machine)
            self.after(lasts, self.members, machine, lambda: store.start(machine))


@scenario("hosts-chaos", cluster=True, timeout=420, weight=2, each=[{"mpi": m, "seed": s} for m in MPIS for s in SEEDS] if registry.soak else [])
def hosts_chaos(context, mpi, seed):
    """Failures of all kinds, milliseconds to seconds apart, hit a job over six nodes, two of which at most are down at a time: the result is
    the undisturbed one, and no two processes ever play one rank."""
    dice = random.Random(f"{mpi} {seed}")
    mpi = context.mpi(mpi)
    with Nodes(context, NODES + 1, members=3) as nodes:
        heat2d = nodes.cluster.program(mpi, "heat2d.c")
        program = watched(context, heat2d)
        arguments = ["-g", "48", "-s", "400", "-c", "5"]
        reference = context.reference(mpi, 2, heat2d, *arguments, on=nodes.nodes[0])
        hosts = ",".join(f"{node.name}:4" for node in nodes.nodes[:NODES])
        options = ["--hosts", hosts, "--ft-heartbeat", f"{TIME_OUT * 200:.0f}ms,{TIME_OUT * 1000:.0f}ms", "--ft-max-failures=1000", "--ft-wait=60s"]
        with Witness(program.name) if traced() else contextlib.nullcontext() as seen:
            job = context.ftrun(mpi, 2 * NODES, program, *arguments, "-p", "60", options=options, on=nodes.nodes[NODES], env={**ONE_CARD, **SPIN})
            chaos = Chaos(nodes, job, program.name, dice)
            for _ in range(KILLS):
                until = time.monotonic() + 10 ** dice.uniform(-2.5, 0.4)
                while time.monotonic() < until:
                    time.sleep(0.005)
                    chaos.undo()
                if not job.running():
                    break
                chaos.one()
            while chaos.later:
                time.sleep(0.01)
                chaos.undo()
            job.expect(0, reference, patience=240)
            # Where a node is lost before its agent has said anything the world begins a minute later, and has seen nothing of all this.
            check(job.recoveries or " broke (" in job.err, "nothing that was done made a recovery")
            for node in nodes.nodes:
                nodes.empty(node)
    if seen is None:
        raise Skipped(NO_TRACE)
    seen.no_two_play_one_rank(chaos.suspended, chaos.until)
