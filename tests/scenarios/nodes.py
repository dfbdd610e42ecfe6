"""The node's daemon on nodes of a cluster: its place in etcd, and who may ask it what."""

import contextlib
import re
import subprocess
import urllib.request

from harness import etcd
from harness.cluster import Cluster
from harness.job import check
from harness.registry import scenario

from .node_daemon import preamble
from .processes import eventually

SOCKET = "/run/ftd/ftd.sock"


class NodeDaemon:
    """The daemon of a node, root's, with the paths that it has on every machine."""

    def __init__(self, node, store=None, lease="2s", more="", name=None, label=None, env=None, etcd=""):
        self.env = env
        self.node = node
        # What it is started by.
        self.by = []
        self.program = node.cluster.context.prefix / "bin" / "ftd"
        self.file = node.directory / "ftd.toml"
        self.log = node.directory / "ftd.log"
        self.log.touch()
        endpoints = store.endpoints if store else ["http://127.0.0.1:1"]
        self.file.write_text(
            f'[node]\n{f"name = {name!r}" if name else ""}\n{f"label = {label!r}" if label else ""}\n[etcd]\nendpoints = {endpoints}\nattempt = "500ms"\nlease = "{lease}"\n{etcd}'
            f'[peers]\nmpi = "{node.address("mpi")}:9728"\n{more}'.replace("'", '"')
        )
        self.process = None

    def begin(self):
        with open(self.log, "ab") as log:
            self.process = self.node.start(*self.by, self.program, "--config", self.file, stderr=log, env=self.env)
        return self

    def start(self):
        self.begin()
        eventually(lambda: self.process.process.poll() is not None or self.status()[0] == 0, "the daemon", 20)
        check(self.process.process.poll() is None, f"it ended: {self.said()}")
        return self

    def said(self):
        return self.log.read_text()

    def says(self, *words, times=1, patience=20.0):
        """Waits until so many lines of its log have all these words."""
        found = lambda: sum(all(word in line for word in words) for line in self.said().splitlines()) >= times
        with contextlib.suppress(Exception):
            return eventually(found, f"{words}", patience)
        check(False, f"{words} are not in its log {times} times: {self.said()}")

    def status(self, user=None):
        return self.node.run(self.program, "status", "--socket", SOCKET, user=user)

    def field(self, pattern):
        """What its status says there, or nothing."""
        status, out, _ = self.status()
        found = re.search(pattern, out)
        return found[1] if status == 0 and found else None

    def lease(self):
        return self.field(r"lease   ([0-9a-f]{16}),")

    def id(self):
        return self.field(r", id ([0-9a-f-]+)\)")

    def kill(self):
        self.process.kill()
        self.process.process.wait()

    def number(self, name):
        """What a scrape says."""
        text = self.node.run("/usr/bin/python3", "-c", "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9727/metrics').read().decode())")[1]
        return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.M)[1])


def key_of(store, name):
    """Revision of its creation and lease of a node's key in etcd; nothing when it is not there."""
    found = dict(re.findall(r'"(CreateRevision|Lease)" : (\d+)', store.get(f"/ftd/nodes/{name}", "-w", "fields")))
    return (int(found["CreateRevision"]), f"{int(found['Lease']):016x}") if found else None


@scenario("ftd-other-user", cluster=True)
def other_user(context):
    """Another user may ask for the status, and has nothing else: no file of the daemon's, no daemon of their own in its place, and not
    all of its connections; root is answered all the same."""
    with Cluster(context, 1) as cluster:
        node, user = cluster.nodes[0], cluster.user
        daemon = NodeDaemon(node).start()
        status, out, err = daemon.status(user)
        check(status == 0 and out.startswith("ftd ") and "\nnode    node0 (host node0, " in out and "\nlease   none\n" in out, f"{out}{err}")
        # With a configuration of which only root may read all, and with a mistake in it.
        secret = node.directory / "password"
        secret.write_text("secret\n")
        secret.chmod(0o600)
        other = node.directory / "other.toml"
        other.write_text(f'{daemon.file.read_text()}[etc]\n[control]\nsocket = "{SOCKET}"\n')
        other.write_text(other.read_text().replace("[etcd]\n", f'[etcd]\nuser = "ftd"\npassword-file = "{secret}"\n'))
        status, out, err = node.run(daemon.program, "status", "--config", other, user=user)
        check(status == 0 and "\nnode    node0 " in out, f"{status}: {out}{err}")
        # One that is no TOML, with the socket's line in it and without; and none.
        asked = f"ftd: the daemon is asked on {SOCKET} all the same; --socket names another one\n"
        for text, wrong in [
            (f'[control]\nsocket = "{SOCKET}"\n[node\n', "line 3: this is no TOML"), ("[node\n", "line 1: this is no TOML"),
            ('[control]\nsocket = 7\n', "line 2: control.socket: 7 is no text"), (None, " cannot be read: No such file"),
        ]:
            other.unlink(missing_ok=True)
            if text is not None:
                other.write_text(text)
            status, out, err = node.run(daemon.program, "status", "--config", other, user=user)
            check(status == 0 and "\nnode    node0 " in out, f"{text}: {status}: {out}{err}")
            check(err.startswith(f"ftd: {other}") and wrong in err and err.endswith(asked), f"{text}: {err}")
        status, out, err = node.run(daemon.program, "stat", user=user)
        check(status == 2 and "'status'" in err and "start-part" not in err, f"{status}: {out}{err}")
        for what in (f"rm {SOCKET}", f"mv {SOCKET} /tmp/", "touch /run/ftd/x", f"cat {SOCKET}.lock {SOCKET}.node", "cat /var/lib/ftd/node.toml",
                     f"kill {node.run('pidof', 'ftd')[1].strip()}"):
            status, out, err = node.run("/bin/sh", "-c", what, user=user)
            check(status != 0, f"another user may {what}: {out}{err}")
        status, _, err = node.run(daemon.program, "--config", daemon.file, user=user)
        check(status == 1 and "lock cannot be locked: Permission denied" in err, f"{status}: {err}")
        hold = f"""
import socket, sys
held = []
for _ in range(16):
    dialled = socket.socket(socket.AF_UNIX)
    dialled.connect({SOCKET!r})
    dialled.sendall({preamble()!r})
    dialled.recv(16, socket.MSG_WAITALL)
    held.append(dialled)
print("held", flush=True)
sys.stdin.read()
"""
        holder = node.start("/usr/bin/python3", "-c", hold, user=user, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        check(holder.process.stdout.readline() == "held\n", "nobody holds the connections")
        status, _, err = daemon.status(user)
        check(status == 1 and f"user {user.pw_uid} has 16 connections" in err, f"{status}: {err}")
        check(daemon.status()[0] == 0, "root is kept out")
        holder.process.stdin.close()
        holder.process.wait()
        eventually(lambda: daemon.status(user)[0] == 0, "room for the user again")


@scenario("ftd-lease", cluster=True)
def lease(context):
    """The node's key stands in etcd on a lease, which a killed daemon's next one has again, with no gap; a lease that lapsed or was
    revoked is said and had anew; a machine that started anew is another node."""
    with Cluster(context, 1, extra=etcd.NAMES[:1]) as cluster:
        store, node = etcd.Etcd(cluster), cluster.nodes[0]
        daemon = NodeDaemon(node, store).start()
        first = eventually(lambda: key_of(store, "node0"), "the node's key", 20)
        check(first[1] == daemon.lease(), f"the key hangs on {first[1]}, and the status says {daemon.lease()}")
        own = daemon.id()
        for _ in range(3):
            daemon.kill()
            check(key_of(store, "node0") == first, "the key went with the daemon")
            daemon.start()
            eventually(lambda: daemon.lease() == first[1], "the lease that it had", 20)
        # Twice its time later it is still held: it is this daemon that keeps it.
        renewed = daemon.number("ftd_node_lease_renewals_total")
        eventually(lambda: daemon.number("ftd_node_lease_renewals_total") >= renewed + 6, "renewals", 20)
        check(key_of(store, "node0") == first and daemon.id() == own, "the key is another one")
        store.ctl("lease", "revoke", first[1])
        daemon.says("the node's lease in etcd was lost")
        second = eventually(lambda: (found := key_of(store, "node0")) and found[1] == daemon.lease() and found, "another lease", 20)
        check(second[1] != first[1] and daemon.id() == own, f"{first}, {second}")
        check(daemon.number("ftd_node_lease_losses_total") == 1 and daemon.number("ftd_node_lease_held") == 1, "the loss is not counted")
        daemon.kill()
        eventually(lambda: key_of(store, "node0") is None, "the lease to lapse", 20)
        daemon.start()
        daemon.says("the lease that the daemon before this one has left is gone")
        third = eventually(lambda: key_of(store, "node0"), "the key", 20)
        check(third[1] != second[1] and daemon.id() == own, "a lapsed lease is the same, or the node another one")
        node.crash()
        node.boot()
        daemon.start()
        eventually(lambda: (found := key_of(store, "node0")) and found[1] not in (first[1], second[1], third[1]), "the new node's key", 30)
        check(daemon.id() not in (None, own), "a machine that started anew is the same node")


@scenario("ftd-same-name", cluster=True)
def same_name(context):
    """A second node of a name is refused with a sentence that names both, and the first one does not notice; when that is gone and its
    lease has lapsed the name is free."""
    with Cluster(context, 2, extra=etcd.NAMES[:1]) as cluster:
        store = etcd.Etcd(cluster)
        one, two = (NodeDaemon(node, store, name="twin") for node in cluster.nodes)
        one.start()
        first = eventually(lambda: key_of(store, "twin"), "the first one's key", 20)
        for _ in range(2):
            two.begin()
            check(two.process.process.wait(20) == 1, f"the second one: {two.said()}")
        line = two.said().splitlines()[-1]
        for words in ("the name twin is taken", "host node0 (id", f"MPI {cluster.nodes[0].address('mpi')}:9728", "this is host node1 (id", "/ftd/nodes/twin"):
            check(words in line, f"'{words}' is not in '{line}'")
        check(key_of(store, "twin") == first and one.lease() == first[1], "the first one has noticed")
        cluster.nodes[0].power_off()
        eventually(lambda: key_of(store, "twin") is None, "the first one's lease to lapse", 20)
        two.start()
        eventually(lambda: (found := key_of(store, "twin")) and found[1] == two.lease(), "the second one's place", 20)


@scenario("ftd-etcd-away", cluster=True)
def etcd_away(context):
    """Without etcd the daemon runs, starts and is ready; it says once that etcd does not answer, and once that it answers again. The loss
    of the leader costs a pause; a lease that lapsed meanwhile is had anew, one that did not is kept."""
    with Cluster(context, 1, extra=etcd.NAMES) as cluster:
        store, node = etcd.Etcd(cluster), cluster.nodes[0]
        daemon = NodeDaemon(node, store, lease="4s").start()
        first = eventually(lambda: key_of(store, "node0"), "the node's key", 20)
        led = store.leader()
        store.kill(led)
        renewed = daemon.number("ftd_node_lease_renewals_total")
        eventually(lambda: daemon.number("ftd_node_lease_renewals_total") >= renewed + 2, "renewals without the leader", 30)
        check(daemon.lease() == first[1], "the leader's loss cost the lease")
        check(daemon.number("ftd_node_lease_held") == 1, "the lease is not held")
        silent, again, unkept = "did not answer within", "etcd answers again, after", "the node's lease was not kept alive for its whole time"
        told = lambda: {words: daemon.said().count(words) for words in (silent, again, unkept)}
        # The leader's loss may have been a silence by itself.
        eventually(lambda: told()[silent] == told()[again], "the end of that silence", 30)
        before = told()
        node.cut("store")
        daemon.says(silent, "This node waits for it, and what runs here runs on", times=before[silent] + 1, patience=30)
        daemon.says(unkept, times=before[unkept] + 1, patience=30)
        check(daemon.number("ftd_node_lease_held") == 0, "a lease that nobody keeps is held")
        check(daemon.field(r"etcd    (has not answered for) ") and daemon.number("ftd_etcd_up") == 0, f"{daemon.status()}")
        # A daemon that begins now does its work as well.
        daemon.kill()
        daemon.start()
        eventually(lambda: daemon.field(r"etcd    (has not answered for) "), "a word on etcd", 30)
        eventually(lambda: key_of(store, "node0") is None, "the lease to lapse", 30)
        check(daemon.number("ftd_node_lease_held") == 0, "a lapsed lease is held")
        check(daemon.number('ftd_etcd_failures_total{call="adopt"}') >= 1, "failures are not counted")
        daemon.says(silent, times=before[silent] + 2)
        node.heal("store")
        daemon.says(again, times=before[again] + 1, patience=30)
        second = eventually(lambda: (found := key_of(store, "node0")) and found[1] == daemon.lease() and found, "another lease", 30)
        check(second[1] != first[1] and daemon.number("ftd_etcd_up") == 1, f"{first} {second}")
        # The daemon that was killed has not heard the end of its own one.
        check(told()[silent] == told()[again] + 1, f"a silence is said more than once: {daemon.said()}")
        text = (node.directory / "ftd.log").read_text()
        check("panicked" not in text, text)


@scenario("ftd-small", cluster=True)
def small(context):
    """With its lease and a connection to etcd it takes less than 20 MB, and a small part of a processor."""
    with Cluster(context, 1, extra=etcd.NAMES[:1]) as cluster:
        store, node = etcd.Etcd(cluster), cluster.nodes[0]
        daemon = NodeDaemon(node, store, lease="10s").start()
        eventually(lambda: key_of(store, "node0"), "the node's key", 20)
        pid = daemon.process.pid
        with open(f"/proc/{pid}/status") as file:
            resident = int(re.search(r"VmRSS:\s+(\d+)", file.read())[1])
        check(resident < 20_000, f"it takes {resident} kB")
        used = lambda: sum(map(int, open(f"/proc/{pid}/stat").read().rpartition(") ")[2].split()[11:13]))
        before, renewed = used(), daemon.number("ftd_node_lease_renewals_total")
        eventually(lambda: daemon.number("ftd_node_lease_renewals_total") > renewed, "a renewal", 20)
        # A tick is 10 ms.
        check(used() - before <= 20, f"it used {used() - before} ticks")
        print(f"{resident} kB resident, {used() - before} ticks from one renewal to the next")
