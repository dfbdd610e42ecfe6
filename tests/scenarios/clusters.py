"""The tests' own cluster: that what its verbs promise happens, to those they name and to nobody else."""

import itertools
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

from harness import etcd, proc
from harness.cluster import NETWORKS, Cluster
from harness.job import Failed, Skipped, check
from harness.registry import scenario
from harness.witness import NO_TRACE, TRACING, Witness

from .processes import eventually


def all_but(cluster, *lost):
    """All pairs of nodes without these."""
    return {(a.number, b.number) for a, b in itertools.permutations(cluster.nodes, 2)} - set(lost)


def tick(node):
    """A program on a node that counts, and where it stands."""
    place = node.directory / "count"
    node.start("/bin/bash", "-c", 'i=0; while :; do echo $((i++)) > /var/lib/ftd/draft; mv /var/lib/ftd/draft /var/lib/ftd/count; sleep 0.002; done')
    eventually(place.exists, f"a count on {node.name}")
    return lambda: int(place.read_text())


@scenario("cluster-nodes", cluster=True)
def cluster_nodes(context):
    """Each node has a host name, processes, /dev/shm, /run, System V objects and addresses of its own, and a directory that outlives it."""
    with Cluster(context, 3) as cluster:
        for node in cluster.nodes:
            script = ("hostname; touch /dev/shm/mine /run/mine /var/lib/ftd/kept; ipcmk -M 4096 > /dev/null; ls /dev/shm /run | grep -c '^mine$';"
                      "ipcs -m | grep -c ^0x; xargs -0 -n 1 < /proc/1/cmdline | grep -x node.")
            status, out, err = node.run("/bin/bash", "-c", script)
            check((status, out.split()) == (0, [node.name, "2", "1", node.name]), f"{out} {err}")
        check(not pathlib.Path("/dev/shm/mine").exists(), "the nodes' /dev/shm is the scenario's")
        node = cluster.nodes[1]
        node.crash()
        node.boot()
        _, out, _ = node.run("/bin/bash", "-c", "ls /dev/shm /run /var/lib/ftd; ipcs -m | grep -c ^0x")
        check(out.split() == ["/dev/shm:", "/run:", "/var/lib/ftd:", "kept", "0"], f"after a start there is {out}")


@scenario("cluster-links", cluster=True)
def cluster_links(context):
    """Links are cut for the pairs, the network and the direction that were named, and are whole again afterwards."""
    with Cluster(context, 3) as cluster:
        one, two, three = cluster.nodes
        whole = all_but(cluster)

        def expect(what, mpi=whole, store=whole):
            for network, expected in zip(NETWORKS, (mpi, store)):
                found = cluster.arrives(network, expected)
                check(found == expected, f"{what}: on {network} there arrive {sorted(found)}, not {sorted(expected)}")

        expect("at first")
        cluster.cut_link(one, two, "mpi")
        expect("a link", mpi=all_but(cluster, (0, 1), (1, 0)))
        cluster.heal_link(one, two, "mpi")
        cluster.cut_link(one, three, "store", both=False)
        expect("a link one way", store=all_but(cluster, (0, 2)))
        cluster.heal_link(one, three, "store")
        two.cut("mpi")
        alone = all_but(cluster, (0, 1), (1, 0), (1, 2), (2, 1))
        expect("a node", mpi=alone)
        two.heal("mpi")
        three.cut_way("mpi", "out")
        expect("a node's way out", mpi=all_but(cluster, (2, 0), (2, 1)))
        three.heal_way("mpi")
        three.cut_way("store", "in")
        expect("a node's way in", store=all_but(cluster, (0, 2), (1, 2)))
        three.heal_way("store")
        cluster.all_down("mpi")
        expect("a network", mpi=set())
        one.heal("mpi")
        two.heal("mpi")
        expect("two ports of it", mpi={(0, 1), (1, 0)})
        three.heal("mpi")
        expect("at last")


@scenario("cluster-death", cluster=True, each=[{"how": "crash"}, {"how": "power-off"}])
def cluster_death(context, how):
    """All that a node runs is killed at once, whichever session or parent it has, and nothing of another node. Peers hear of a crash
    by their connections, and of a node without power by nothing."""
    with Cluster(context, 2) as cluster:
        victim, other = cluster.nodes
        counted = tick(other)
        victim.start("/bin/bash", "-c", "setsid sleep 600 & (setsid sleep 600 &) ; sleep 600")
        peer = other.start("/usr/bin/python3", "-c", _PEER, other.address("mpi"), stdout=open(other.directory / "peer", "w"))
        eventually(lambda: (other.directory / "peer").read_text() == "ready\n", "a listener")
        victim.start("/usr/bin/python3", "-c", _CONNECTED, other.address("mpi"))
        eventually(lambda: (other.directory / "peer").read_text() == "ready\nheard\n", "a connection")
        eventually(lambda: len(victim.named("sleep")) == 3, "what the node runs")
        seen = victim.pids()
        (victim.crash if how == "crash" else victim.power_off)()
        check(not [pid for pid in seen if proc.alive(pid)], "the dead node still runs something")
        before = counted()
        eventually(lambda: counted() > before + 20, "the other node's work")
        if how == "crash":
            check(peer.process.wait(10) == 0 and (other.directory / "peer").read_text().endswith("over\n"), "no end of the connection")
        else:
            check(peer.process.poll() is None, "a node without power closes its connections")


_PEER = """
import socket, sys
with socket.create_server((sys.argv[1], 7000)) as s:
    print("ready", flush=True)
    c, _ = s.accept()
    c.recv(1)
    print("heard", flush=True)
    try:
        c.recv(1)
    except ConnectionResetError:
        pass
    print("over", flush=True)
"""
_CONNECTED = """
import socket, sys, time
c = socket.create_connection((sys.argv[1], 7000))
c.send(b"x")
time.sleep(600)
"""


@scenario("cluster-pause", cluster=True)
def cluster_pause(context):
    """A node that is paused does nothing and is not to be heard; it goes on where it stood. What was cut before is still cut then."""
    with Cluster(context, 2) as cluster:
        victim, other = cluster.nodes
        counts = [tick(node) for node in cluster.nodes]
        victim.cut("store")
        victim.pause()
        stands, before = counts[0](), counts[1]()
        eventually(lambda: counts[1]() > before + 20, "the other node's work")
        check(counts[0]() == stands, "a paused node works")
        check(cluster.arrives("mpi", set()) == set(), "a paused node is in the network")
        victim.resume()
        eventually(lambda: counts[0]() > stands + 20, "the resumed node's work")
        both = all_but(cluster)
        check(cluster.arrives("mpi", both) == both, "a resumed node is not in the network")
        check(cluster.arrives("store", set()) == set(), "a cut is healed by a pause")
        victim.heal("store")
        check(cluster.arrives("store", both) == both, "the cut is not healed")


@scenario("cluster-store", cluster=True)
def cluster_store(context):
    """Three members of etcd beside the nodes: reached from a node by the store's network alone, without its leader after a pause, and not
    without two; a member that comes back has what was written meanwhile."""
    with Cluster(context, 2, extra=etcd.NAMES) as cluster:
        store, node = etcd.Etcd(cluster), cluster.nodes[0]

        def put(key, patience="1s"):
            # A write that was asked in vain may be done all the same, and later than what was asked after it: each has a key of its own.
            words = [f"--endpoints={','.join(store.endpoints)}", f"--command-timeout={patience}", "put", key, "written"]
            return node.run("etcdctl", *words, env=store.environment)[0] == 0

        eventually(lambda: put("first"), "a word from the store", 30)
        node.cut("store")
        check(not put("unheard", "300ms"), "a node reaches the store without its network")
        node.heal("store")
        led = store.leader()
        store.kill(led)
        eventually(lambda: put("second"), "the store without its leader", 30)
        led.cut("store")
        other = next(machine for machine in store.machines if machine is not led)
        other.pause()
        check(not put("third"), "a single member takes writes")
        other.resume()
        eventually(lambda: put("fourth"), "the store with two members", 30)
        led.heal("store")
        store.start(led)
        for key in ("first", "second", "fourth"):
            store.has(led, key, "written")


@scenario("cluster-job", cluster=True, each=[{"mpi": "openmpi4"}, {"mpi": "mpich4"}])
def cluster_job(context, mpi):
    """A job of one node on the cluster's first one, as the ordinary user: a rank is killed at its gate, and another node dies meanwhile."""
    mpi = context.mpi(mpi)
    with Cluster(context, 2) as cluster:
        program = cluster.program(mpi, "places.c")
        job = context.ftrun(mpi, 3, program, gates=["app.compute:1"], on=cluster.nodes[0])
        victim = job.at_gate("app.compute", 1)
        check(victim in cluster.nodes[0].pids(), "the rank is not on the node")
        cluster.nodes[1].power_off()
        job.kill(victim)
        job.expect(0)
        check(job.restored == [5], f"restored {job.restored}")
        check(not os.listdir(f"/proc/{cluster.nodes[0].init}/root/dev/shm"), "the job has left something in its node's /dev/shm")


def watched(context, program):
    """A copy of a program under a name that no other scenario's has: the kernel knows processes by that."""
    # No other's begins with it.
    path = context.work / f"w{os.getpid()}w"
    shutil.copy(program, path)
    return path


@scenario("witness", cluster=True, each=[{"mpi": "openmpi4"}, {"mpi": "mpich4"}])
def witness(context, mpi):
    """Who sees every time that a rank runs: in two recoveries, one of them with a rank that was stopped and one that computes, no process
    plays a rank that another one plays already."""
    mpi = context.mpi(mpi)
    with Cluster(context, 1) as cluster:
        program = watched(context, cluster.program(mpi, "places.c"))
        with Witness(program.name) as seen:
            stop = context.work / "stop"
            environment = {"PLACES_STOP": stop, "PLACES_STEPS": 100000, "PLACES_SLEEP": 1}
            job = context.ftrun(mpi, 3, program, gates=["app.compute:1"], env=environment, on=cluster.nodes[0])
            job.kill(job.at_gate("app.compute", 1))
            eventually(lambda: "restored 5\n" in job.output.text, "the second world's work")
            ranks = job.wait_ranks(3, world=2)
            os.kill(ranks[0], signal.SIGSTOP)
            job.kill(ranks[2])
            eventually(lambda: len(job.output.starts) == 3, "the third world's work")
            stop.touch()
            job.expect(0)
        for world in (1, 2, 3):
            check(sorted(seen.of(world)) == [0, 1, 2], f"of world {world} there were seen {seen.of(world)}")
        seen.no_two_play_one_rank()


@scenario("witness-sees", cluster=True)
def witness_sees(context):
    """It sees a process that runs a moment too long, and one that only runs on without ever being put on a processor again; not the
    end of one that was killed in time, or that was stopped in time and then killed, with all its threads. Two nodes' processes that play one
    rank of one world at a time are seen, too."""
    with Cluster(context, 2) as cluster:
        program = watched(context, "/usr/bin/python3")
        node, other = cluster.nodes

        def play(world, text, rank=0, on=node, by=program):
            environment = context.env(None, {"FT_WORLD": world, "FT_RANK": rank})
            return on.start(by, "-c", text, program, user=cluster.user, env=environment, stdout=subprocess.PIPE, text=True)

        idle = "import time\nprint('here', flush=True)\nwhile True: time.sleep(0.01)"
        busy = "print('here', flush=True)\nwhile True: pass"
        many = ("import threading, time\nfor _ in range(300): threading.Thread(target=lambda: time.sleep(600), daemon=True).start()\n"
                "print('here', flush=True)\ntime.sleep(600)")
        waits = "import time; print('here', flush=True); time.sleep(600)"
        for text, ends in ((waits, "killed"), (busy, "killed"), (busy, "late"), (idle, "late"), *[(many, "stopped")] * 8):
            with Witness(program.name) as seen:
                old = play(1, text)
                said(old)
                number = old.pid
                if ends == "killed":
                    old.kill()
                if ends == "stopped":
                    proc.freeze(number)
                new = play(2, "print('here', flush=True)")
                said(new)
                if ends == "late":
                    if text != busy:
                        # On a busy machine it may not have run since.
                        runs, before = (lambda: proc.switches(old.pid)), proc.switches(old.pid)
                        eventually(lambda: runs() > before + 1, "it to run", 20)
                if ends != "killed":
                    old.kill()
                    # Who entered the node for it has stopped with it.
                    old.process.send_signal(signal.SIGCONT)
                old.process.wait()
                new.process.wait()
            told = fails(seen.no_two_play_one_rank)
            check(told == (ends == "late"), f"two that play one rank are {'seen' if told else 'not seen'}: {text}")
            check(not fails(lambda: seen.no_two_play_one_rank({number}, math.inf)), "one that may run is not let")
            told = fails(lambda: seen.none_ran([number]))
            check(told == (ends == "late"), f"one of a node that was left out is {'seen' if told else 'not seen'} to run: {text}")
        sees_two_of_one_world(program, cluster.nodes, play, idle)
        sees_a_stranger(program, play)
        takes_for_one(context, program, other, play)


def said(process):
    """It has begun."""
    check(process.process.stdout.readline() == "here\n", "it does not run")


def sees_two_of_one_world(program, nodes, play, idle):
    """A suspended node's process goes on beside its successor as if both were in one world: that is seen."""
    suspended, other = nodes
    with Witness(program.name) as seen:
        old = play(1, idle)
        said(old)
        number = old.pid
        suspended.pause()
        new = play(1, idle, on=other)
        said(new)
        suspended.resume()
        runs, before = (lambda: proc.switches(number)), proc.switches(number)
        eventually(lambda: runs() > before + 1, "it to run", 20)
        for each in (old, new):
            each.kill()
            each.process.wait()
    for claim in (seen.no_two_play_one_rank, lambda: seen.no_two_play_one_rank({number}, math.inf), lambda: seen.of(1)):
        check(fails(claim), "two processes of one rank and one world are not seen")


def sees_a_stranger(program, play):
    """Of whom nobody knows how it began is not forgotten because it is killed, when it has run for a while."""
    old = play(1, "import time\nprint('here', flush=True)\nwhile True: sum(range(10000)); time.sleep(0.0001)")
    said(old)
    with Witness(program.name) as seen:
        begun = proc.processor_time(old.pid)
        eventually(lambda: proc.processor_time(old.pid) > begun + 0.1, "it to run", 20)
        old.kill()
        old.process.wait()
    check(fails(seen.no_two_play_one_rank), "one that nobody knows is not seen")


def takes_for_one(context, program, other, play):
    """What is none of that: who follows on one that was killed, what comes from a rank through whatever programs, one that is killed before its first instruction, and a pid
    that comes again."""
    with Witness(program.name) as seen:
        old = play(1, "print('here', flush=True)\nwhile True: pass")
        said(old)
        old.kill()
        old.process.wait()
        for begun in (play(1, "print('here', flush=True)", on=other), play(1, FORKS, rank=1), play(1, UNBORN, rank=2, by="/usr/bin/python3")):
            said(begun)
            check(begun.process.wait(20) == 0, "it fails")
        # Outside of the nodes: who asks for a pid has to do it in every name space.
        subprocess.run(["/usr/bin/python3", "-c", AGAIN, program], env=context.env(None, {"FT_RANK": 3}), check=True)
    seen.no_two_play_one_rank()
    first, second = seen.of(1), seen.of(2)
    check(sorted(first) == [0, 1, 3] and sorted(second) == [3] and first[3].pid == second[3].pid, f"seen were {first} and {second}")


# A rank with children: itself, another program, one that only is forked, and itself again below others.
FORKS = """
import os, subprocess, sys
for program in (sys.executable, "/bin/true"):
    subprocess.run([program, "-c", "pass"], check=True)
below = '"$0" -c pass; true'
subprocess.run(["/bin/sh", "-c", 'sh -c "$1" "$0"; true', sys.executable, below], check=True)
if os.fork() == 0:
    os._exit(0)
os.wait()
print("here", flush=True)
"""
# Its child becomes the program, and is killed before it has done anything.
UNBORN = """
import ctypes, os, sys
child = os.fork()
if child == 0:
    ctypes.CDLL(None).ptrace(0, 0, None, None)
    os.execv(sys.argv[1], [sys.argv[1], "-c", "pass"])
stopped = os.WIFSTOPPED(os.waitpid(child, 0)[1])
os.kill(child, 9)
os.waitpid(child, 0)
print("here" if stopped else "it ran", flush=True)
"""
# A rank, and one of the next world that has the pid that it had.
AGAIN = """
import ctypes, os, signal, struct, sys
def become(world):
    os.environ["FT_WORLD"] = world
    os.execv(sys.argv[1], [sys.argv[1], "-c", "pass"])
first = os.fork()
if first == 0:
    become("1")
os.waitpid(first, 0)
wanted = ctypes.c_int(first)
how = struct.pack("11Q", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(wanted), 1, 0)
second = ctypes.CDLL(None).syscall(435, how, ctypes.c_long(len(how)))
if second == 0:
    become("2")
sys.exit(os.waitpid(second, 0) != (first, 0))
"""


@scenario("witness-short-lives", cluster=True)
def witness_short_lives(context):
    """It knows as which rank a process ran however short it lived: of a hundred that end as soon as they have begun."""
    with Cluster(context, 1) as cluster:
        program = watched(context, "/bin/true")
        with Witness(program.name) as seen:
            for rank in range(100):
                started = cluster.nodes[0].start(program, user=cluster.user, env=context.env(None, {"FT_WORLD": 7, "FT_RANK": rank}))
                started.process.wait()
        check(sorted(seen.of(7)) == list(range(100)), f"known are {sorted(seen.of(7))}")


@scenario("witness-sweeps", cluster=True)
def witness_sweeps(context):
    """What the witness of a test leaves that is killed the next one removes, and nothing of one that is there."""
    program = watched(context, "/bin/true")
    # Each watches until its input ends.
    watchers = [subprocess.Popen([sys.executable, "-c", WATCHES, program.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                 cwd=pathlib.Path(__file__).parent.parent) for _ in range(2)]
    try:
        for watcher in watchers:
            heard = watcher.stdout.readline()
            if heard == "skipped\n":
                raise Skipped(NO_TRACE)
            check(heard == "here\n", f"a watcher says {heard!r}")
        killed, there = watchers
        for watcher in watchers:
            check(len(left_of(watcher.pid)) > 2, f"the kernel has {left_of(watcher.pid)}")
        killed.kill()
        killed.wait()
        # The witness of any other test that begins now may remove it as well.
        with Witness(program.name):
            eventually(lambda: not left_of(killed.pid), "the end of what a killed one has left", 10)
            check(len(left_of(there.pid)) > 2, f"of one that is there is left {left_of(there.pid)}")
    finally:
        for watcher in watchers:
            watcher.stdin.close()
            watcher.wait()
    check(not left_of(there.pid), f"it has not removed {left_of(there.pid)}")


# Watches until its input ends.
WATCHES = """
import sys
from harness.job import Skipped
from harness.witness import NO_TRACE, Witness
try:
    with Witness(sys.argv[1]):
        print("here", flush=True)
        sys.stdin.read()
except Skipped:
    print("skipped", flush=True)
"""


def left_of(pid):
    """What the kernel has for the witness with this pid, by names without it."""
    places = [place.name for place in (TRACING / "instances").iterdir()]
    events = re.findall(r"^p:(\S+)", (TRACING / "uprobe_events").read_text(), re.M)
    return sorted(name.replace(str(pid), "") for name in (*places, *events) if re.search(rf"\D{pid}(\D|$)", name))


def fails(claim):
    """Whether something that is claimed does not hold."""
    try:
        claim()
    except Failed:
        return True
    return False
