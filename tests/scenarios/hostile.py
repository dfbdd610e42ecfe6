"""What jobs over several nodes meet that is not as it should be: clocks that jump, daemons of other versions, packet filters."""

import pwd
import re
import subprocess
import time

from harness.job import check
from harness.peer import VERSION
from harness.registry import scenario
from harness.releases import other_release

from .copies import COPIES, kept, wait_kept
from .ctl import ASKS as ASKS_FOR_AGENT, LAUNCHER
from .hosts import ONE_CARD, Nodes, ended
from .node_daemon import preamble
from .nodes import SOCKET, key_of
from .processes import eventually
from .through import AGENT, ASKS as ASKS_FOR_KEY, STORE_VERSION

HOUR, DECADE = 3600, 10 * 365 * 86400


def preloaded(context, name):
    """A library of tests/programs that can be preloaded."""
    library, source = (context.work / name).with_suffix(".so"), next((context.scratch / "src").rglob(name))
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source], check=True)
    return library


@scenario("hosts-clock-jumps", cluster=True, timeout=120)
def clock_jumps(context):
    """The wall clocks of nodes jump by an hour and by ten years, to and fro, for all of ftd and for the ranks, while the job computes and while it
    recovers: no node is given up, none loses its place in etcd, a rank that dies costs one recovery, and the result is that of the
    undisturbed run."""
    mpi = context.mpi("mpich5")
    preload = {"LD_PRELOAD": preloaded(context, "otherclock.c"), "OTHER_CLOCK": "/tmp/clock"}
    with Nodes(context, 3, env=context.env(None, preload)) as nodes:
        first, far, other = nodes.nodes

        def jump(node, seconds):
            node.run("/bin/sh", "-c", f"echo {seconds} > /tmp/clock.new && mv /tmp/clock.new /tmp/clock")

        def off(node):
            # By a process of the job's user, with what the job's processes have.
            said = node.run("/bin/date", "+%s", user=nodes.cluster.user, env=context.env(None, preload))[1]
            return int(said) - int(time.time())

        leases = [key_of(nodes.store, node.name) for node in nodes.nodes]
        program = nodes.cluster.program(mpi, "places.c")
        alone = context.ftrun(mpi, 6, program, ft="none", on=first)
        alone.expect(0)
        job = context.ftrun(mpi, 6, program, options=["--hosts", "node0,node1,node2"], on=first, gates=["app.compute:3"],
                            env={**ONE_CARD, **preload})
        job.on = far
        victim = job.at_gate("app.compute", 3)
        check(all("otherclock" in open(f"/proc/{pid}/maps").read() for node in nodes.nodes for name in ("ft-agent", "ft-shepherd", "ftd")
                  for pid in node.named(name)), "not all of ftd has the clock that jumps")
        for _ in range(3):
            for one, two in ((HOUR, -HOUR), (-DECADE, DECADE), (0, 0)):
                jump(far, one)
                jump(other, two)
                check(abs(off(far) - one) < 5 and abs(off(other) - two) < 5, "the clocks did not jump")
                time.sleep(0.3)
        job.kill(victim)
        for seconds in (HOUR, -DECADE, DECADE, -HOUR, 0) * 4:
            jump(far, seconds)
            jump(first, -seconds)
        job.expect(0, alone.output)
        check(len(job.recoveries) == 1 and "was silent" not in job.err, f"{job.recoveries}: {job.err}")
        for node, daemon, lease in zip(nodes.nodes, nodes.daemons, leases):
            nodes.empty(node)
            check(key_of(nodes.store, node.name) == lease and daemon.number("ftd_node_lease_losses_total") == 0, f"{node.name} lost its place")


@scenario("hosts-versions", cluster=True, timeout=120)
def versions(context):
    """A node has the whole of a release whose number is this one's neighbour: a job over it and others survives a rank's death on either side, whichever of
    the two ftrun is of, and its user sees it from both; it survives a node's crash after which nodes of the two go on, from copies. Where the numbers are no neighbours who asks for a job on a node of the other one reads a
    sentence with both and what to do, whoever of the two asks; it is counted and logged, nothing is started, and the nodes of one
    release go on as they were."""
    mpi = context.mpi("mpich5")
    neighbour, stranger = (other_release(context, VERSION + more) for more in (1, 2))
    with Nodes(context, 3) as nodes:
        one, other, third = nodes.nodes

        def installs(release, *before):
            nodes.daemons[1].kill()
            for words in (*before, *([["mount", "--bind", release, context.prefix]] if release else [])):
                check(other.run(*words)[0] == 0, f"{words}")
            nodes.daemons[1].start()

        program = nodes.cluster.program(mpi, "places.c")
        alone = context.ftrun(mpi, 4, program, ft="none", on=one)
        alone.expect(0)
        installs(neighbour)
        for on, rank in ((one, 3), (other, 0)):
            job = context.ftrun(mpi, 4, program, options=["--hosts", "node0:2,node1:2"], on=on, gates=[f"app.compute:{rank}"], env=ONE_CARD)
            job.on = nodes.nodes[rank // 2]
            victim = job.at_gate("app.compute", rank)
            seen = [node.run(context.prefix / "bin/ftctl", "show", user=nodes.cluster.user, env=context.env(None, {})) for node in (one, other)]
            check(all(status == 0 and "node1" in said for status, said, _ in seen), f"{seen}")
            job.kill(victim)
            job.expect(0, alone.output)
            check(len(job.recoveries) == 1 and "left out" not in job.err, f"{job.recoveries}: {job.err}")
            for node in nodes.nodes:
                nodes.empty(node)
        # A node dies, and those that go on are of two releases.
        job = context.ftrun(mpi, 4, program, options=["--hosts", "node0:2,node2:2,node1:2", "--ft-spares", "1"], on=one,
                            gates=["app.compute:3", *kept(1)], env=ONE_CARD)
        job.on = third
        check(job.at_gate("app.compute", 3) in third.pids(), "the rank is not on the node")
        wait_kept(job)
        third.crash()
        job.expect(0, alone.output)
        check(len(job.restored) == 1 and job.restored[0] and COPIES in job.err, f"restored {job.restored}: {job.err}")
        check("moved     ranks 2-3 from node node2 to node node1\n" in job.err, job.err)
        third.boot()
        nodes.daemons[2] = nodes.daemon(third).start()
        installs(stranger, ["umount", context.prefix])

        def says(hosts, *words, on=0):
            status, out, err = nodes.short(hosts, 2, "true", on=on)
            check((status, out) == (1, "") and err.count("\n") == 1, f"{status} {out}{err}")
            for word in (*words, "and only neighbouring numbers work together: install the same ftd release everywhere"):
                check(word in err, f"'{word}' is not in '{err}'")

        def works(host, on):
            got = nodes.short(host, 1, "hostname", on=on)
            check(got == (0, f"{host}\n", ""), f"{got}")

        strange = VERSION + 2
        says("node0:1,node1:1", "node node1", f"speaks protocol version {strange}, this side speaks {VERSION}")
        nodes.daemons[1].says("who dialled as another node's ftd was turned away", f"version {VERSION}, this side speaks {strange}")
        says("node0:1,node1:1", "node node0", f"speaks protocol version {VERSION}, this side speaks {strange}", on=1)
        nodes.daemons[0].says("who dialled as another node's ftd was turned away", f"version {strange}, this side speaks {VERSION}")
        counted = lambda number, reason: nodes.daemons[number].number(f'ftd_peer_refused_total{{reason="{reason}"}}')
        eventually(lambda: min(counted(0, "version"), counted(1, "version")) >= 1, "it to be counted", 20)
        eventually(lambda: key_of(nodes.store, "node2"), "node2's key", 20)
        works("node2", 0)
        works("node0", 2)
        for node in nodes.nodes:
            nodes.empty(node)


@scenario("hosts-no-datagrams", cluster=True, timeout=90, each=[{"size": 2}, {"size": 4}])
def no_datagrams(context, size):
    """A packet filter lets TCP through from one node, or from two, and heartbeats not: the job does not begin, and one sentence names who is
    not heard by whom, and what keeps it back; nothing of the program has run. Without the filter the same job runs."""
    library = preloaded(context, "nodatagrams.c")
    with Nodes(context, size) as nodes:
        ran = context.work / "ran"
        hosts = ",".join(f"{node.name}:2" for node in nodes.nodes)
        for behind in ([1], [0, 1], []):
            for number in behind:
                nodes.nodes[number].run("/usr/bin/touch", "/tmp/filter")
            job = nodes.sh(hosts, size, f"touch {ran}", ft="reinit", env={"LD_PRELOAD": library})
            if behind:
                ended(job, 1, " though TCP does: does a packet filter between the nodes keep UDP back? They have whatever port is free (here ")
                found = re.search(r"no heartbeat \(UDP\) of node node(\d) comes to node node(\d), though", job.err)
                check(found and int(found[1]) in behind and found[1] != found[2], job.err)
                check(not ran.exists() and "was left out" not in job.err and not job.recoveries, f"the job has begun: {job.err}")
            else:
                ended(job, 0)
                check(ran.exists() and job.err == "", job.err)
            for node in nodes.nodes:
                nodes.empty(node)
                node.run("/bin/rm", "-f", "/tmp/filter")


@scenario("hosts-no-datagrams-to-a-spare", cluster=True, timeout=90)
def no_datagrams_to_a_spare(context):
    """A packet filter keeps back what one node sends to a spare one alone, and lets TCP through: the job does not begin, and one sentence has both
    names and the port; nothing of the program has run."""
    library = preloaded(context, "nodatagrams.c")
    with Nodes(context, 3) as nodes:
        _, filtered, spare = nodes.nodes
        ran = context.work / "ran"
        filtered.run("/bin/sh", "-c", f"printf %s {spare.address('mpi')} > /tmp/filter")
        job = nodes.sh(nodes.each_one(), 2, f"touch {ran}", ft="reinit", options=["--ft-spares=1"], env={"LD_PRELOAD": library})
        ended(job, 1, f"the job does not begin: no heartbeat (UDP) of node {filtered.name} comes to node {spare.name}, though TCP does: does a packet filter"
              " between the nodes keep UDP back? They have whatever port is free (here ")
        check(not ran.exists() and "was left out" not in job.err and not job.recoveries, f"the job has begun: {job.err}")
        for node in nodes.nodes:
            nodes.empty(node)


# Keeps each heartbeat that comes to a card for this node; then, as soon as it is told to, sends them all to who has heard them, as they were
# and with one bit changed, again and again.
REPLAY = """
import random, select, socket, sys
own = socket.inet_aton(sys.argv[1])
card = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x800))
card.bind(("mpi", 0))
kept = []
while not select.select([sys.stdin], [], [], 0)[0]:
    if select.select([card], [], [], 0.05)[0]:
        packet = card.recv(2048)
        length = (packet[0] & 15) * 4
        if packet[9] == 17 and packet[16:20] == own and len(packet) == length + 8 + 104:
            kept.append((int.from_bytes(packet[length + 2:length + 4], "big"), packet[length + 8:]))
sys.stdin.readline()
print(len(kept), flush=True)
say = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while not select.select([sys.stdin], [], [], 0.002)[0]:
    for port, bytes in random.sample(kept, min(4, len(kept))):
        at = random.randrange(len(bytes) * 8)
        forged = bytearray(bytes)
        forged[at // 8] ^= 1 << at % 8
        for sent in (bytes, forged):
            try:
                say.sendto(sent, (sys.argv[1], port))
            except OSError:
                pass
"""


@scenario("hosts-replayed", cluster=True, timeout=90)
def replayed(context):
    """Heartbeats that were recorded are sent again, hundreds in a second, as they were and with one bit changed: they disturb nobody, and keep
    no node alive: one that has lost its power is given up all the same, and the job goes on without it. The daemon of each node counts them, and
    its log says where they come from."""
    with Nodes(context, 3) as nodes:
        go = context.work / "go"
        job = nodes.sh("node0:2,node1:1,node2:2", 3, f"echo ready; until [ -e {go} ]; do sleep 0.05; done", ft="reinit")
        eventually(lambda: job.output.text.count("ready\n") == 3, "the ranks", 20)
        others = [node for node in nodes.nodes if node.number != 1]
        replays = [node.start("/usr/bin/python3", "-c", REPLAY, node.address("mpi"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                   for node in others]
        time.sleep(3)
        for replay in replays:
            replay.process.stdin.write("\n")
            replay.process.stdin.flush()
            kept = int(replay.process.stdout.readline())
            check(kept >= 10, f"{kept} heartbeats have come to a node in three seconds")
        # Healthy nodes are healthy, whatever is said in their names.
        time.sleep(2)
        check(job.running() and "was silent" not in job.err, job.err)
        for node in others:
            daemon = nodes.daemons[node.number]
            counted = lambda reason: daemon.number(f'ftd_agent_refused_total{{reason="{reason}"}}')
            eventually(lambda: min(counted("forged"), counted("replayed")) >= 1, "it to be counted", 20)
            # (They were sent to its own address from there.)
            told = re.compile(rf"""speaks with a job's agent here.* from="{re.escape(node.address('mpi'))}" """)
            eventually(lambda: told.search(daemon.said()), "what the log says", 20)
        nodes.nodes[1].power_off()
        job.wait_err("node node1 was silent for the heartbeat time-out", 1)
        eventually(lambda: job.output.text.count("ready\n") == 6, "the next world", 20)
        go.touch()
        ended(job, 0, "node node1 was silent for the heartbeat time-out")
        for replay in replays:
            replay.process.stdin.close()
            replay.process.wait()
        for node in others:
            nodes.empty(node)


# What the first heartbeat that comes to a card has of its job: its name, as everybody on the network can see it.
LISTENS = """
import socket
card = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x800))
card.bind(("mpi", 0))
while True:
    packet = card.recv(2048)
    length = (packet[0] & 15) * 4 + 8
    if packet[9] == 17 and packet[length:length + 4] == b"ftdb":
        print(packet[length + 8:length + 16].hex())
        break
"""
# Speaks as the agent of the second node with that of the first one, and knows all but the secret: over each port that it may be, what is
# said of each word is its length, until the agent ends it; then heartbeats, which nobody answers.
PRETENDS = """
import os, socket, struct, sys
address, job, version = sys.argv[1], bytes.fromhex(sys.argv[2]), int(sys.argv[3])
own = "%08X" % int.from_bytes(socket.inet_aton(address), "little")
lines = [line.split() for line in open("/proc/net/tcp").readlines()[1:]]
listens = [int(at[1].partition(":")[2], 16) for at in lines if at[3] == "0A" and at[1].startswith(own) and not at[1].endswith(":2600")]
hello = b"ftdpeer\\n" + struct.pack("<I", version) + job + struct.pack("<IIQHxx", 1, 0, 77, 4711) + os.urandom(16)
def takes(dialled, length):
    taken = 0
    # With a time-out a socket gives what is there, also where all was asked for.
    while taken < length and (more := dialled.recv(length - taken)):
        taken += len(more)
    return taken
def says(port, *words):
    dialled = socket.create_connection((address, port), 5)
    heard = []
    try:
        for word, length in words:
            dialled.sendall(word)
            heard.append(takes(dialled, length))
        heard.append(takes(dialled, 1))
    except ConnectionResetError:
        heard.append(0)
    return heard
for port in listens:
    print(port, says(port, (hello, 56 + 32), (os.urandom(32), 0)), says(port, (hello[:12] + bytes(8) + hello[20:], 0)), says(port, (b"GET / HTTP/1.1\\r\\n\\r\\n", 0)), flush=True)
    say = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    beat = b"ftdb" + struct.pack("<HBB", version, 0, 0) + job + struct.pack("<II", 1, 0)
    for _ in range(int(sys.argv[4])):
        say.sendto(beat + os.urandom(104 - len(beat)), (address, port))
"""


@scenario("hosts-other-user", cluster=True, timeout=90)
def another_user(context):
    """Another user of a job's nodes, an ordinary one, finds no way to the job: ftd's control socket leads him to no agent, its socket for the store
    gives him no key, the agent's own socket is in a directory that he may not enter, and where agents speak with each other he is not heard,
    though he knows all but the job's secret. What came in the job's name is counted, and the job goes on as if nothing were."""
    with Nodes(context, 2) as nodes:
        go, stranger, (one, _) = context.work / "go", pwd.getpwnam("nobody"), nodes.nodes
        job = nodes.sh("node0:1,node1:1", 2, f"echo ready; until [ -e {go} ]; do sleep 0.05; done; echo went", ft="reinit")
        eventually(lambda: job.output.text.count("ready\n") == 2, "the ranks", 20)
        daemon = nodes.daemons[0]
        (name,) = [line.split()[1] for line in daemon.status(stranger)[1].splitlines() if line.startswith("jobs ")]
        counted = lambda name, reason: daemon.number(f'ftd_{name}_refused_total{{reason="{reason}"}}')

        def says(program, *words, user=stranger):
            status, out, err = one.run("/usr/bin/python3", "-c", program, *words, user=user)
            check(status == 0, f"{out}{err}")
            return out

        for node in ("node0", "node1"):
            said = says(ASKS_FOR_AGENT, preamble(role=LAUNCHER).hex(), name, node)
            check(said.startswith("REFUSED no job"), f"the way to the agent on {node}: {said}")
        key = (f"{SOCKET}.store", name, f"/ftd/jobs/{name}/epoch", preamble(role=AGENT).hex(), STORE_VERSION)
        said = says(ASKS_FOR_KEY, *key)
        check(f"user {stranger.pw_uid} has no job" in said and "Found" not in said and counted("store", "job") == 1, f"the job's key: {said}")
        check("Found" in says(ASKS_FOR_KEY, *key, user=nodes.cluster.user), "its own user is not answered, either")
        (agent,) = one.named("ft-agent")
        (place,) = [word for word in one.run("/bin/ls", "/dev/shm")[1].split() if word.startswith("ftd-") and not word.endswith(".lock")]
        dial = f"import socket; socket.socket(socket.AF_UNIX).connect('/dev/shm/{place}/agent.sock')"
        status, _, err = one.run("/usr/bin/python3", "-c", dial, user=stranger)
        check(status == 1 and "PermissionError" in err, f"the agent's socket: {err}")
        heartbeat = one.run("/usr/bin/python3", "-c", LISTENS)[1].strip()
        check(counted("agent", "forged") == 0, "somebody was there before")
        said = says(PRETENDS, one.address("mpi"), heartbeat, VERSION, 0)
        check(re.fullmatch(r"\d+ \[88, 0, 0\] \[0, 0\] \[0, 0\]\n", said), f"what the agent says to him: {said}")
        eventually(lambda: counted("agent", "forged") == 1, "who does not know the secret to be counted", 20)
        says(PRETENDS, one.address("mpi"), heartbeat, VERSION, 50)
        eventually(lambda: counted("agent", "forged") >= 20, "heartbeats that nobody of the job has sent to be counted", 20)
        check(one.named("ft-agent") == [agent] and job.running() and not job.recoveries, f"the job has noticed: {job.err}")
        go.touch()
        ended(job, 0, f"somebody at {one.address('mpi')} speaks with the agent of ")
        check(job.output.text == "ready\n" * 2 + "went\n" * 2 and job.err.count("\n") == 1, f"{job.output.text}{job.err}")
        for node in nodes.nodes:
            nodes.empty(node)
