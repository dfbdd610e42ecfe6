"""Checkpoints in other nodes' memory: what a job over several nodes goes on from when nodes die."""

import contextlib
import os
import pathlib
import re
import signal
import time

from harness import registry
from harness.job import check
from harness.registry import scenario
from harness.witness import Witness, traced

from .clusters import watched
from .hosts import ONE_CARD, UNOBSERVED, Nodes
from .processes import eventually


def kept(version, ranks=range(4)):
    """Gates that are passed when that version of each rank, or a newer one, has come to a partner. (Not how many have: one may be
    given up on its way, for a newer one.)"""
    return [f"agent.kept:{rank}:{version}:mark" for rank in ranks]


def wait_kept(job, ranks=range(4)):
    for rank in ranks:
        eventually(lambda: job.gate_path("agent.kept", rank).exists(), f"the copies of rank {rank}", 60)


class Watched(Nodes):
    """Nodes, and where the kernel traces what it runs a witness outside of ftd, who sees every moment of the program's processes there: no two of them
    played one rank at a time, whatever was left out and copied."""

    seen = None

    def program(self, mpi, source):
        """The program that is watched from now on."""
        program = watched(self.context, self.cluster.program(mpi, source))
        if traced():
            self.seen = Witness(program.name)
            self.seen.__enter__()
        return program

    def __exit__(self, kind, error, trace):
        try:
            if self.seen is not None:
                self.seen.__exit__(kind, error, trace)
                # What the scenario itself has found is said.
                if error is None:
                    self.seen.no_two_play_one_rank()
        finally:
            super().__exit__(kind, error, trace)


FOUR = "node0:2,node1:2,node2:2,node3:2"
COPIES = "from the memory of the ranks' nodes, that of ranks 2-3 from partners' copies"


# With more nodes: `hosts-failure`.
DEATHS = [{"mpi": "openmpi5", "how": "crash"}, {"mpi": "mpich5", "how": "power_off"}] if registry.soak else []


@scenario("hosts-node-dies", cluster=True, timeout=120, each=DEATHS)
def node_dies(context, mpi, how):
    """A node of three dies, by crash or without a word: its ranks run on the one that had none and kept copies of their checkpoints; all
    go on from the newest version of which all copies had come there, and the result is that of the undisturbed run."""
    mpi = context.mpi(mpi)
    with Watched(context, 3) as nodes:
        program = nodes.program(mpi, "places.c")
        alone = context.ftrun(mpi, 4, program, ft="none", on=nodes.nodes[0])
        alone.expect(0)
        job = context.ftrun(mpi, 4, program, options=["--hosts", "node0:2,node1:2,node2:2"], on=nodes.nodes[0],
                            gates=["app.compute:3", *kept(5)], env=ONE_CARD)
        job.on = nodes.nodes[1]
        check(job.at_gate("app.compute", 3) in nodes.nodes[1].pids(), "the rank is not on the node")
        wait_kept(job)
        getattr(nodes.nodes[1], how)()
        job.expect(0, alone.output)
        check(job.restored == [5] and "node node1 was silent for the heartbeat time-out" in job.err, job.err)
        check(COPIES in job.err and job.output.starts == [None, 5], f"{job.output.starts}: {job.err}")
        for node in (nodes.nodes[0], nodes.nodes[2]):
            nodes.empty(node)


TWO = [{"other": 3, "copies": "kept"}, *([{"other": 2, "copies": "lost"}] if registry.soak else [])]


@scenario("hosts-two-nodes-die", cluster=True, timeout=120, each=TWO)
def two_nodes_die(context, other, copies):
    """Two nodes of four die at once: where one of them kept the other's copies all begin from the beginning, and this is said; else all
    go on with what the partner has, on that partner, without the network."""
    mpi = context.mpi("mpich5")
    with Watched(context, 4) as nodes:
        program = nodes.program(mpi, "places.c")
        alone = context.ftrun(mpi, 4, program, ft="none", on=nodes.nodes[0])
        alone.expect(0)
        gates = ["app.compute:3", *kept(5), "agent.fetches:2:1:mark"]
        job = context.ftrun(mpi, 4, program, options=["--hosts", FOUR], on=nodes.nodes[0], gates=gates, env=ONE_CARD)
        job.on = nodes.nodes[1]
        job.at_gate("app.compute", 3)
        wait_kept(job)
        for node in (1, other):
            nodes.nodes[node].crash()
        job.expect(0, alone.output)
        found = job.restored[-1]
        check(found == (5 if copies == "kept" else None), f"restored {job.restored}: {job.err}")
        if copies == "lost":
            check("restarted without a checkpoint: no complete one of the API is left" in job.err, job.err)
        check(not job.gate_path("agent.fetches", 2).exists(), "a copy was brought to where it was")
        nodes.empty(nodes.nodes[0])


@scenario("hosts-label-dies", cluster=True, timeout=120)
def label_dies(context):
    """All nodes of a label die at once, of which each is the other one's next: copies went to nodes of another label, and all go on from those."""
    mpi = context.mpi("mpich5")
    with Watched(context, 4, labels=["rack-a", "rack-a", "rack-b", "rack-b"]) as nodes:
        program = nodes.program(mpi, "places.c")
        alone = context.ftrun(mpi, 4, program, ft="none", on=nodes.nodes[0])
        alone.expect(0)
        job = context.ftrun(mpi, 4, program, options=["--hosts", "node2:1,node3:1,node0:2,node1:2"], on=nodes.nodes[0],
                            gates=["app.compute:1", *kept(5)], env=ONE_CARD)
        job.on = nodes.nodes[3]
        job.at_gate("app.compute", 1)
        wait_kept(job)
        for node in (2, 3):
            nodes.nodes[node].crash()
        job.expect(0, alone.output)
        check(job.restored[-1] == 5 and "that of ranks 0-1 from partners' copies" in job.err, f"restored {job.restored}: {job.err}")
        for node in (0, 1):
            nodes.empty(nodes.nodes[node])


@scenario("hosts-copy-fetched", cluster=True, timeout=120)
def copy_fetched(context):
    """A node of four dies, and the one that has its copies has no slot for its ranks: those run on the last one, to which the copies are
    brought; all go on from them."""
    mpi = context.mpi("mpich5")
    with Watched(context, 4) as nodes:
        program = nodes.program(mpi, "places.c")
        alone = context.ftrun(mpi, 6, program, ft="none", on=nodes.nodes[0])
        alone.expect(0)
        gates = ["app.compute:3", *kept(5, range(6)), *(f"agent.fetches:{rank}:1:mark" for rank in (2, 3))]
        job = context.ftrun(mpi, 6, program, options=["--hosts", FOUR], on=nodes.nodes[0], gates=gates, env=ONE_CARD)
        job.on = nodes.nodes[1]
        job.at_gate("app.compute", 3)
        wait_kept(job, range(6))
        nodes.nodes[1].crash()
        job.expect(0, alone.output)
        check(job.restored == [5] and COPIES in job.err, f"restored {job.restored}: {job.err}")
        check(all(job.gate_path("agent.fetches", rank).exists() for rank in (2, 3)), "nothing was brought")
        for node in (0, 2, 3):
            nodes.empty(nodes.nodes[node])


LATE = [{"left": "another"}, *([{"left": "none"}] if registry.soak else [])]


@scenario("hosts-verified-late", cluster=True, timeout=120, each=LATE)
def verified_late(context, left):
    """A node does not get to the end with the checksums of what it holds: this is no job's end. Where another node holds a copy as well all go
    on with that, and what was left out is said; where none does, and all would begin from the beginning, it is waited for."""
    mpi = context.mpi("mpich5")
    with Watched(context, 3) as nodes:
        program = nodes.program(mpi, "places.c")
        # There is but one version.
        env = {**ONE_CARD, "PLACES_EVERY": "5"}
        alone = context.ftrun(mpi, 4, program, ft="none", on=nodes.nodes[0], env=env)
        alone.expect(0)
        gates = ["app.compute:3", *kept(5), "agent.verifies:2"]
        job = context.ftrun(mpi, 4, program, options=["--hosts", "node0:2,node1:2,node2:2"], on=nodes.nodes[0], gates=gates, env=env, hurry=10)
        job.on = nodes.nodes[1]
        rank = job.at_gate("app.compute", 3)
        wait_kept(job)
        if left == "another":
            os.kill(rank, signal.SIGKILL)
        else:
            nodes.nodes[1].crash()
        # Where rank 2's copy is compared with its checksum first.
        eventually(lambda: job.gate_path("agent.verifies", 2).exists(), "a node that verifies it", 30)
        late = r"cop(y|ies) of checkpoints on node[012] w(as|ere) not verified within 12.0 s \(version 5 of ranks? .*2.*\): "
        said = lambda what: re.search(late + what, job.err)
        eventually(lambda: said("ftd goes on without"), "what is said of it", 40)
        if left == "none":
            time.sleep(1)
            check(job.running() and len(job.output.starts) == 1, f"it is not waited for: {job.output.starts}: {job.err}")
            job.go("agent.verifies", 2)
        job.expect(0, alone.output)
        # (Each node says it that says something so late.)
        check(set(job.restored) == {5} and job.output.starts == [None, 5], f"{job.restored}, {job.output.starts}: {job.err}")
        check(bool(said("version 5 is restored without")) == (left == "another"), job.err)
        for node in nodes.nodes if left == "another" else (nodes.nodes[0], nodes.nodes[2]):
            nodes.empty(node)


@scenario("hosts-ship-ready", cluster=True, timeout=90)
def ship_ready(context):
    """A spare node that keeps nobody's copies has an ft-ship as soon as a version is safe: ranks that go on there do not wait for its start."""
    mpi = context.mpi("mpich5")
    with Watched(context, 4) as nodes:
        program = nodes.program(mpi, "places.c")
        job = context.ftrun(mpi, 4, program, options=["--hosts", "node0:2,node1:2,node2:2,node3:2", "--ft-spares", "2"], on=nodes.nodes[0],
                            gates=["app.compute:3", *kept(1)], env=ONE_CARD)
        job.on = nodes.nodes[1]
        job.at_gate("app.compute", 3)
        wait_kept(job)
        eventually(lambda: all(len(node.named("ft-ship")) == 1 for node in nodes.nodes), "an ft-ship on every node", 20)
        job.interrupt(signal.SIGTERM)
        job.wait()
        for node in nodes.nodes:
            nodes.empty(node)


RATES = [{"whose": whose} for whose in ("user", "site")]


@scenario("hosts-copy-rate", cluster=True, timeout=120, each=RATES)
def copy_rate(context, whose):
    """A node sends no faster for copies than the user or its ftd.toml says, whichever is stricter; a user who wants to know hears how far each
    node's copies are and which version is safe, and the node's daemon counts them. What is brought back after a failure is not held up."""
    mpi = context.mpi("mpich5")
    rates = {"user": ("1M", "2M"), "site": ("2M", "1M")}[whose]
    with Watched(context, 4, jobs=f'[jobs]\ncopy-rate = "{rates[1]}"\n') as nodes:
        program = nodes.program(mpi, "places.c")
        env = {**ONE_CARD, "PLACES_KB": "1536", "PLACES_EVERY": "5", "PLACES_STEPS": "8"}
        alone = context.ftrun(mpi, 6, program, ft="none", on=nodes.nodes[0], env=env)
        alone.expect(0)
        fetches = [f"agent.fetches:{rank}:1:mark" for rank in (2, 3)]
        gates = [*(f"agent.ships:{rank}:1:mark" for rank in (0, 1)), *kept(5, range(6)), *fetches, "app.compute:3"]
        options = ["--hosts", FOUR, "-v", "--ft-copy-rate", rates[0]]
        job = context.ftrun(mpi, 6, program, options=options, on=nodes.nodes[0], gates=gates, env=env)
        job.on = nodes.nodes[1]
        job.at_gate("app.compute", 3)
        wait_kept(job, range(6))
        at = lambda name: [job.gate_path(name, rank).stat().st_mtime for rank in (0, 1)]
        took = max(at("agent.kept")) - min(at("agent.ships"))
        check(took >= 2.5, f"3 MiB were copied in {took:.1f} s, at 1 MiB/s")
        for node, ranks in (("node0", "0-1"), ("node1", "2-3"), ("node2", "4-5")):
            job.wait_err(rf"ftd: copies of version 5 of ranks {ranks} on {node}: all of 3.0 MiB are on other nodes, after \d+\.\d s\n", 1)
        check(len(job.wait_err("ftd: version 5 is safe: copies of all ranks are on other nodes\n", 1)) == 1, job.err)
        fetched = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9727/metrics', timeout=9).read().decode())"
        told = lambda: nodes.nodes[0].run("/usr/bin/python3", "-c", fetched)[1]
        eventually(lambda: 'ftd_copies_total{result="kept"} 2\n' in told(), "two copies in node0's numbers", 20)
        said = told()
        check(re.search(r"^ftd_copied_bytes_total 31\d{5}$", said, re.M) and "ftd_copies_waiting_bytes 0\n" in said, said)
        nodes.nodes[1].crash()
        job.expect(0, alone.output)
        check(job.restored == [5] and COPIES in job.err, f"restored {job.restored}: {job.err}")
        check(all(job.gate_path("agent.fetches", rank).exists() for rank in (2, 3)), "nothing was brought")
        took = float(re.search(r"took +([\d.]+) ms", job.err)[1])
        print(f"  the recovery took {took:.0f} ms", flush=True)
        for node in (0, 2, 3):
            nodes.empty(nodes.nodes[node])


# Whose copies are interrupted: those of node1 on their way to node2. Those of node0 go to node1, and are not waited for.
OF_OWN = (2, 3)


def under_way(context, nodes, version, *options, time_out="1500ms", steps=4, gates=(), **more):
    """A job that has sent a part of that version of rank 2 from node1 to node2, and no more than a part; and how it ends undisturbed. With half a
    megabyte a second for a node, a version of its two ranks takes four seconds."""
    mpi, env = context.mpi("mpich5"), {**ONE_CARD, "PLACES_KB": "1024", "PLACES_STEPS": str(steps), "PLACES_STEP": "5"}
    program = nodes.program(mpi, "places.c")
    alone = context.ftrun(mpi, 4, program, ft="none", on=nodes.nodes[0], env=env)
    alone.expect(0)
    options = ["--hosts", "node0:2,node1:2,node2:2", "--ft-copy-rate", "512K", "--ft-heartbeat", f"300ms,{time_out}", *options]
    job = context.ftrun(mpi, 4, program, options=options, on=nodes.nodes[0], gates=[f"agent.moves:2:{version}:mark", *gates], env=env, **more)
    eventually(lambda: job.gate_path("agent.moves", 2).exists(), "the copy on its way", 60)
    if version > 1:
        wait_kept(job, OF_OWN)
    return job, alone


def ends_whole(job, alone, nodes, *lost, restored=1):
    """The job ends as it would have undisturbed, with a version whose copies are whole; on the nodes that are left nothing of it is."""
    job.expect(0, alone.output, patience=120)
    check(job.restored[-1:] == [restored] and COPIES in job.err, f"restored {job.restored}: {job.err}")
    for node in nodes.nodes:
        if node not in lost:
            nodes.empty(node)


INTERRUPTED = [{"who": who} for who in ("node", "own-ship", "partners-ship", "partners-agent-and-node")]


@scenario("hosts-copy-interrupted", cluster=True, timeout=180, each=INTERRUPTED)
def copy_interrupted(context, who):
    """A copy is on its way when its node dies: the version before it, which is whole at the partner, is restored, also where the partner's
    agent dies at the same time. Where it is only an ft-ship that dies, at either end, the copy is sent again, and is restored when its node dies
    after that."""
    with Watched(context, 3) as nodes:
        _, own, partner = nodes.nodes
        job, alone = under_way(context, nodes, 2 if who.endswith("node") else 1, gates=kept(1, OF_OWN))
        if who != "node":
            (victim,) = (own if who == "own-ship" else partner).named("ft-ship" if who.endswith("ship") else "ft-agent")
            job.kill(victim)
        wait_kept(job, OF_OWN)
        own.crash()
        ends_whole(job, alone, nodes, own)


@scenario("hosts-copy-partner-lost", cluster=True, timeout=180, each=[{"how": "agent-dies"}, {"how": "cut-off"}])
def partner_lost(context, how):
    """A copy is on its way when the partner's agent dies, and the node stays in the job, or when nothing of what the partner sends to the node
    arrives any more, and the partner is left out: what the ranks go on from is copied again, to that node or to another one, and is restored when
    its node dies after that."""
    with Watched(context, 3) as nodes:
        first, own, partner = nodes.nodes
        # In the first world nobody comes as far as that: the fourth version has no place before the first one is somewhere else.
        job, alone = under_way(context, nodes, 1, "--ft-oversubscribe", steps=5, gates=[*kept(2, OF_OWN), "app.compute:3"])
        if how == "agent-dies":
            job.kill(partner.named("ft-agent")[0])
        else:
            nodes.cluster.cut_link(partner, own, "mpi", both=False)
        job.on = own
        job.at_gate("app.compute", 3, patience=60)
        (found,) = job.restored
        check(found and COPIES not in job.err, f"restored {job.restored}: {job.err}")
        silent = "node node2 was silent for the heartbeat time-out" in job.err
        check(silent == (how == "cut-off") and "node node1 was silent" not in job.err, job.err)
        wait_kept(job, OF_OWN)
        own.crash()
        ends_whole(job, alone, nodes, own, restored=found)


@scenario("hosts-copy-cut-off", cluster=True, timeout=180, each=[{"how": "heals"}, {"how": "stays"}])
def copy_cut_off(context, how):
    """The way from a node to its partner is cut while a copy is on it. Where it is healed the sender has had an error within a bounded time, sends the
    copy again, and it is restored when its node dies after that. Where it stays cut the node is left out, and the version before it is restored, which is
    whole at the partner."""
    heals = how == "heals"
    with Watched(context, 3) as nodes:
        _, own, partner = nodes.nodes
        # What moves nothing for five seconds has failed: here for one, which costs no node.
        time_out, hurry = ("5s", 5) if heals else ("1500ms", 1)
        job, alone = under_way(context, nodes, 1 if heals else 2, time_out=time_out, gates=[*kept(1, OF_OWN), "agent.not-kept:2:1:mark"], hurry=hurry)
        nodes.cluster.cut_link(own, partner, "mpi", both=heals)
        if heals:
            eventually(lambda: job.gate_path("agent.not-kept", 2).exists(), "an end of the copy that is cut off", 30)
            check(not job.gate_path("agent.kept", 2).exists(), "what was cut off is kept")
            nodes.cluster.heal_link(own, partner, "mpi")
            wait_kept(job, OF_OWN)
            check("was silent" not in job.err and not job.recoveries, f"the cut has cost more than time: {job.err}")
            own.crash()
        ends_whole(job, alone, nodes, own)


@scenario("hosts-copy-unreached", cluster=True, timeout=180)
def copy_unreached(context):
    """No copy comes from a node to its partner, which it does not observe: both stay in the job. What does not come goes to another node, and so do the next
    versions, without being offered to that one each time; it is said once. When the node dies its rank goes on from what that one has."""
    mpi = context.mpi("mpich5")
    # The first node of the other rack is the partner of all of this one, and of its own nodes the first one here is.
    with Watched(context, 8, labels=["rack-a"] * UNOBSERVED + ["rack-b"] * (8 - UNOBSERVED)) as nodes:
        program = nodes.program(mpi, "places.c")
        cards = {name: "store" for name in (*ONE_CARD, "UCX_NET_DEVICES", "MPICH_NETWORK_IFACE")}
        # Nothing is committed before the way is cut; the fourth version has no place before the first one is somewhere else.
        env = {**cards, "PLACES_STEP": "5", "PLACES_EVERY": "10", "PLACES_STEPS": "45"}
        alone = context.ftrun(mpi, 8, program, ft="none", on=nodes.nodes[7], env=env)
        alone.expect(0)
        hosts = ",".join(f"{node.name}:{1 + (node is nodes.nodes[7])}" for node in nodes.nodes)
        gates = ["app.compute:0", *kept(20, range(8)), "agent.not-kept:0:3:mark", "client.committed:1:4"]
        job = context.ftrun(mpi, 8, program, options=["--hosts", hosts, "--ft-heartbeat", "300ms,1500ms"], on=nodes.nodes[7], gates=gates, env=env,
                            hurry=3)
        own, partner = nodes.nodes[0], nodes.nodes[UNOBSERVED]
        job.on = own
        job.at_gate("app.compute", 0, patience=60)
        nodes.cluster.cut_link(own, partner, "mpi")
        job.go("app.compute", 0)
        job.wait_err(rf"checkpoints of ranks on {own.name} do not come to {partner.name}, and go to other nodes: ", 1, patience=60)
        job.on = nodes.nodes[1]
        job.at_gate("client.committed", 1, patience=60)
        wait_kept(job, range(8))
        check(not job.gate_path("agent.not-kept", 0).exists(), "a later version was sent to where nothing comes")
        check("was silent" not in job.err and not job.recoveries, f"the cut has cost more than time: {job.err}")
        own.crash()
        job.expect(0, alone.output, patience=100)
        check(job.restored and job.restored[-1] in (20, 30, 40) and "that of rank 0 from partners' copies" in job.err, f"restored {job.restored}: {job.err}")
        check(job.err.count(f"checkpoints of ranks on {own.name} do not come to {partner.name}") == 1, job.err)
        for node in nodes.nodes[1:]:
            nodes.empty(node)


def of_arenas(node):
    """How much memory the arenas have that a node's agent holds, in KiB, by the rank."""
    found = {}
    for fd in (fd for agent in node.named("ft-agent") for fd in pathlib.Path(f"/proc/{agent}/fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):
            if name := re.search(r"memfd:ftd-arena-(\d+)", os.readlink(fd)):
                found[int(name[1])] = os.stat(fd).st_blocks // 2
    return found


@scenario("hosts-copies-given-back", cluster=True, timeout=120)
def copies_given_back(context):
    """A node of four dies, and its ranks go on on the last one, whose partner is another node: the memory of their copies on the partner that they had
    before goes back when newer ones are safe, while the job runs on."""
    mpi = context.mpi("mpich5")
    with Watched(context, 4) as nodes:
        program = nodes.program(mpi, "places.c")
        env = {**ONE_CARD, "PLACES_KB": "1024", "PLACES_STEPS": "60", "PLACES_SLEEP": "50"}
        job = context.ftrun(mpi, 6, program, options=["--hosts", FOUR], on=nodes.nodes[0], gates=["app.compute:3", *kept(5, range(6))], env=env)
        job.on = nodes.nodes[1]
        job.at_gate("app.compute", 3)
        wait_kept(job, range(6))
        large = lambda: sorted(rank for rank, size in of_arenas(nodes.nodes[2]).items() if size >= 1024)
        check(large() == [2, 3, 4, 5], f"node2 has its own arenas and those of node1: {of_arenas(nodes.nodes[2])}")
        nodes.nodes[1].crash()
        # It has its own, and keeps those of node0 now.
        while {2, 3, 4, 5}.intersection(large()) != {4, 5}:
            check(job.running(), "the memory of the copies did not go back before the job's end")
            time.sleep(0.02)
        check(job.running(), "the job was over before it was looked at")
        job.expect(0)
        check(job.restored == [5] and COPIES in job.err and "damaged" not in job.err, job.err)
        for node in (0, 2, 3):
            nodes.empty(nodes.nodes[node])


@scenario("hosts-holder-dies", cluster=True, timeout=120, each=[{"when": "before"}, {"when": "meanwhile"}])
def holder_dies(context, when):
    """A node dies, and while its ranks' copies are brought to where they go on (or are about to be) the node dies that has them: nobody waits for them,
    and as there is no other copy all begin from the beginning, which is said."""
    mpi = context.mpi("mpich5")
    with Watched(context, 4) as nodes:
        program = nodes.program(mpi, "places.c")
        env = {**ONE_CARD, "PLACES_KB": "512", "PLACES_EVERY": "5"}
        alone = context.ftrun(mpi, 6, program, ft="none", on=nodes.nodes[0], env=env)
        alone.expect(0)
        # Only the last one has room for the ranks of others, and it keeps nobody's copies but node2's.
        gates = [*kept(1, range(6)), "agent.fetches:2", "agent.fetches:3", "app.compute:3"]
        job = context.ftrun(mpi, 6, program, options=["--hosts", "node0:2,node1:2,node2:2,node3:4", "--ft-heartbeat", "300ms,1500ms"], on=nodes.nodes[0], gates=gates, env=env)
        job.on = nodes.nodes[1]
        job.at_gate("app.compute", 3)
        wait_kept(job, range(6))
        nodes.nodes[1].crash()
        at = lambda: [rank for rank in (2, 3) if job.gate_path("agent.fetches", rank).exists()]
        eventually(at, "a copy about to be brought", 30)
        (first,) = at()
        if when == "meanwhile":
            # What is on its way is lost from now on. Who comes to the second place has begun to fetch the first one.
            nodes.cluster.cut_link(nodes.nodes[2], nodes.nodes[3], "mpi", both=False)
            job.go("agent.fetches", first)
            eventually(lambda: len(at()) == 2, "the other copy about to be brought", 30)
        nodes.nodes[2].crash(lambda: [job.go("agent.fetches", rank) for rank in (2, 3)])
        job.expect(0, alone.output, patience=100)
        check(job.restored[-1:] == [None], f"restored {job.restored}: {job.err}")
        check("restarted without a checkpoint: no complete one of the API is left" in job.err, job.err)
        for number in (1, 2):
            check(f"node node{number} was silent for the heartbeat time-out" in job.err, job.err)
        for node in (0, 3):
            nodes.empty(nodes.nodes[node])


@scenario("hosts-copy-through", cluster=True, timeout=150)
def copy_through(context):
    """A node dies, and the link is cut between the one that holds its rank's copy and the spare one where that rank goes on, which do not observe each other:
    the copy comes through a third node, which is said, and nobody begins from the beginning."""
    mpi = context.mpi("mpich5")
    with Watched(context, 10) as nodes:
        program = nodes.program(mpi, "places.c")
        cards = {name: "store" for name in (*ONE_CARD, "UCX_NET_DEVICES", "MPICH_NETWORK_IFACE")}
        env = {**cards, "PLACES_EVERY": "5"}
        alone = context.ftrun(mpi, 9, program, ft="none", on=nodes.nodes[0], env=env)
        alone.expect(0)
        options = ["--hosts", nodes.each_one(), "--ft-spares", "1", "--ft-heartbeat", "600ms,3s"]
        job = context.ftrun(mpi, 9, program, options=options, on=nodes.nodes[0], gates=["app.compute:1", *kept(1, range(9))], env=env)
        job.on = nodes.nodes[1]
        job.at_gate("app.compute", 1, patience=60)
        wait_kept(job, range(9))
        spare, dies = nodes.nodes[9], nodes.nodes[4]
        (holder,) = [node for node in nodes.nodes if node is not dies and dies.number in of_arenas(node)]
        nodes.cluster.cut_link(holder, spare, "mpi")
        dies.crash()
        job.expect(0, alone.output, patience=100)
        check(re.search(rf"copies of checkpoints come from {holder.name} to {spare.name} through node\d: ", job.err), job.err)
        # While it comes people are told how far all is.
        check(set(job.restored) == {5} and "moved     rank 4 from node node4 to node node9\n" in job.err, f"restored {job.restored}: {job.err}")
        for node in nodes.nodes:
            if node is not dies:
                nodes.empty(node)


@scenario("hosts-keeper-restarts", cluster=True, timeout=120)
def keeper_restarts(context):
    """The agent that keeps a dead node's copies is killed with it: the next one has them from its shepherds, and they are restored."""
    mpi = context.mpi("mpich5")
    with Watched(context, 3) as nodes:
        program = nodes.program(mpi, "places.c")
        alone = context.ftrun(mpi, 4, program, ft="none", on=nodes.nodes[0])
        alone.expect(0)
        job = context.ftrun(mpi, 4, program, options=["--hosts", "node0:2,node1:2,node2:2"], on=nodes.nodes[0],
                            gates=["app.compute:3", *kept(5)], env=ONE_CARD)
        job.on = nodes.nodes[1]
        job.at_gate("app.compute", 3)
        wait_kept(job)
        (agent,) = nodes.nodes[2].named("ft-agent")
        job.kill(agent)
        nodes.nodes[1].crash()
        job.expect(0, alone.output)
        check(job.restored[-1] == 5 and "partners' copies" in job.err, f"restored {job.restored}: {job.err}")
        for node in (nodes.nodes[0], nodes.nodes[2]):
            nodes.empty(node)


@scenario("hosts-no-copies", cluster=True, timeout=120)
def no_copies(context):
    """Where ft-ship is not to be had the job goes on without copies on other nodes, and each node says so once; when one dies all begin from the
    beginning."""
    mpi = context.mpi("mpich5")
    with Watched(context, 3) as nodes:
        program = nodes.program(mpi, "places.c")
        alone = context.ftrun(mpi, 4, program, ft="none", on=nodes.nodes[0])
        alone.expect(0)
        parts = context.work / "parts"
        parts.mkdir()
        for name in ("ft-agent", "ft-shepherd", "ft-pmix", "libft_preload.so"):
            (found,) = [path for path in context.prefix.rglob(name) if path.is_file()]
            (parts / name).symlink_to(found)
        nodes.cluster.give(parts)
        job = context.ftrun(mpi, 4, program, options=["--hosts", "node0:2,node1:2,node2:2"], on=nodes.nodes[0],
                            gates=["app.compute:3"], env={**ONE_CARD, "FT_LIBEXEC": parts})
        job.on = nodes.nodes[1]
        job.at_gate("app.compute", 3)
        words = r"checkpoints of ranks on (node\d) are in its memory alone, and are lost should it die: \S*ft-ship"
        check(sorted(job.wait_err(words, 2)) == ["node0", "node1"], job.err)
        nodes.nodes[1].crash()
        job.expect(0, alone.output)
        check(job.restored == [None], job.err)


# What `fabric` is, and what is said of each node: over what its copies go, or why they do not.
FABRICS = [{"fabric": fabric} for fabric in ("tcp", "shm", "none", "second")]
NO_VERBS = r"verbs;ofi_rxm \(fi_getinfo: No data available\)"
ALONE = r"checkpoints of ranks on (node\d) are in its memory alone, and are lost should it die: "
FABRIC_SAID = {
    "tcp": ("tcp", r"copies from and to (node\d) go over tcp;ofi_rxm\n"),
    "shm": ("shm", r"copies from and to (node\d) go over shm\n"),
    "none": ("verbs", ALONE + rf'libfabric has no provider for [\d.]+: {NO_VERBS}; the node\'s ftd\.toml has jobs\.fabric = "verbs"\n'),
    "second": ("verbs, tcp", rf"copies from and to (node\d) go over tcp;ofi_rxm, for there is no {NO_VERBS} there, which jobs\.fabric in its "
                             r"ftd\.toml has first\n"),
}


@scenario("hosts-fabric", cluster=True, timeout=120, each=FABRICS)
def fabric(context, fabric):
    """Copies go over the provider of libfabric that ftd.toml names, after a reload, which ftrun -v says of each node; where the first one is not to
    be had over the next, and where none is the job goes on without copies: each node says so once, without -v too. Then a node dies (but with shm,
    which is only chosen)."""
    mpi = context.mpi("mpich5")
    asked, words = FABRIC_SAID[fabric]
    with Watched(context, 3) as nodes:
        for daemon in nodes.daemons:
            daemon.file.write_text(daemon.file.read_text() + f'[jobs]\nfabric = "{asked}"\n')
            daemon.process.kill(signal.SIGHUP)
            daemon.says("jobs.fabric")
        program = nodes.program(mpi, "places.c")
        alone = context.ftrun(mpi, 4, program, ft="none", on=nodes.nodes[0])
        alone.expect(0)
        copied = fabric in ("tcp", "second")
        options = ["--hosts", "node0:2,node1:2,node2:2", *(["-v"] if fabric in ("tcp", "shm") else [])]
        gates = ["app.compute:3", *(kept(5) if copied else [])]
        job = context.ftrun(mpi, 4, program, options=options, on=nodes.nodes[0], gates=gates, env=ONE_CARD)
        job.on = nodes.nodes[1]
        job.wait_err(words, 2 if fabric == "none" else 3)
        check({"node0", "node1"} <= set(re.findall(words, job.err)), job.err)
        if fabric == "shm":
            # These nodes are no one machine: each has a /dev/shm of its own, and the bytes have no way.
            job.interrupt(signal.SIGTERM)
            job.wait()
            return
        job.at_gate("app.compute", 3)
        if copied:
            wait_kept(job)
        nodes.nodes[1].crash()
        job.expect(0, alone.output)
        check(job.restored == [5 if copied else None] and (COPIES in job.err) == copied, f"{job.restored}: {job.err}")


@scenario("hosts-shepherd-dies", cluster=True, timeout=120)
def shepherd_dies(context):
    """A shepherd on a living node dies while another node has free slots: its rank gets a slot on its own node, where its version is, and all go
    on from that."""
    mpi = context.mpi("mpich5")
    with Watched(context, 3) as nodes:
        program = nodes.program(mpi, "places.c")
        alone = context.ftrun(mpi, 4, program, ft="none", on=nodes.nodes[0])
        alone.expect(0)
        job = context.ftrun(mpi, 4, program, options=["--hosts", "node0:2,node1:2,node2:2"], on=nodes.nodes[0],
                            gates=["app.compute:3"], env=ONE_CARD)
        job.on = nodes.nodes[1]
        job.kill(job.shepherd_of(job.at_gate("app.compute", 3)))
        job.expect(0, alone.output)
        check(job.restored == [5] and "partners' copies" not in job.err, f"restored {job.restored}: {job.err}")
        check("its shepherd died" in job.err, job.err)
        for node in nodes.nodes:
            nodes.empty(node)
