"""A cluster on one machine: nodes in name spaces of their own (processes, host name, mounts with /dev/shm, /run and /tmp, System V
objects), and two networks between them, MPI's and the store's, that can be cut separately, one way and both ways.

A scenario that is registered with `cluster=True` runs as root, in a network name space of its own that holds the two switches. It makes
the nodes, and nothing of them outlives its process."""

import contextlib
import ctypes
import itertools
import os
import pathlib
import pwd
import re
import select
import signal
import socket
import subprocess
import sys
import time

from . import proc
from .job import Failed, check

# Nothing but these name spaces knows the addresses, which are set aside for benchmarks (RFC 2544).
NETWORKS = {"mpi": "198.18.0", "store": "198.18.1"}
# No card has it: what is sent there is lost without a word, as behind a filter that drops.
NOWHERE = "02:00:00:00:00:00"
# Whom `scripts/install-deps.sh test` makes.
USER = "ftdtest"
# Where the harness itself hears what arrives at a node.
PORT = 9
INIT = pathlib.Path(__file__).with_name("node_init.py")
# Everybody has this directory; the control groups that are mounted there are seen by the scenario and its nodes alone.
GROUPS = pathlib.Path("/mnt")
# Where nodes' name spaces of mounts are made. Who keeps one in the file system, as job_container/tmpfs does, has to have made it after
# the one that it is kept in, and Linux 6.18 counts them per processor, a range of numbers each: only who makes one there, too, is sure.
FIRST_PROCESSOR = min(os.sched_getaffinity(0))


def _ip(*lines, node=None):
    """Runs `ip` commands at the switches, or on a node."""
    inside = [] if node is None else ["nsenter", f"--net=/proc/{node.init}/ns/net"]
    run = subprocess.run([*inside, "ip", "-batch", "-"], input="\n".join(lines), capture_output=True, text=True)
    check(run.returncode == 0, f"ip {'; '.join(lines)}: {run.stderr}")


class Cluster:
    """`with Cluster(context, 4) as cluster:` makes four nodes, numbered from 0. `user` is whom jobs on them belong to."""

    def __init__(self, context, size, extra=()):
        """`extra`: host names of further machines, which stand in the store's network and have no other."""
        self.context = context
        self.user = pwd.getpwnam(USER)
        self.give(context.dir, context.work, context.tmp)
        self.group = GROUPS / f"ftd-test-{os.getpid()}"
        names = [f"node{number}" for number in range(size)]
        self.nodes = [Node(self, number, name, tuple(NETWORKS)) for number, name in enumerate(names)]
        # Their addresses are not those of nodes.
        self.extra = [Node(self, 200 + number, name, ("store",)) for number, name in enumerate(extra)]

    def __enter__(self):
        try:
            self.group.mkdir()
            for network in NETWORKS:
                # No spanning tree, and no snooping: nothing but what goes from one node to another.
                _ip(f"link add switch-{network} type bridge stp_state 0 mcast_snooping 0", f"link set switch-{network} up")
            for node in self.machines:
                node.boot()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def machines(self):
        """Nodes and further machines."""
        return [*self.nodes, *self.extra]

    def close(self):
        """Ends all that runs on the nodes, and takes the nodes away."""
        for node in self.machines:
            node.end()
        for network in NETWORKS:
            with contextlib.suppress(Exception):
                _ip(f"link del switch-{network}")
            with contextlib.suppress(Exception):
                _ip(f"link del island-{network}")
        with contextlib.suppress(FileNotFoundError):
            self.group.rmdir()

    # --- what belongs to the jobs' user --------------------------------------------------------------------------------

    def give(self, *paths):
        """These directories are the user's from now on."""
        for path in paths:
            os.chown(path, self.user.pw_uid, self.user.pw_gid)

    def program(self, mpi, source):
        """`Context.program`, made by the user: other scenarios of theirs may want the same."""
        os.setegid(self.user.pw_gid)
        os.seteuid(self.user.pw_uid)
        try:
            return self.context.program(mpi, source)
        finally:
            os.seteuid(0)
            os.setegid(0)

    # --- the network ----------------------------------------------------------------------------------------------

    def cut_link(self, one, other, network, both=True):
        """Whatever `one` sends to `other` on that network is lost in silence, and with `both` what `other` sends to `one`."""
        one.lose(other, network)
        if both:
            other.lose(one, network)

    def heal_link(self, one, other, network):
        """The link between them is whole again, in both directions."""
        one.lose_no_more(other, network)
        other.lose_no_more(one, network)

    def all_down(self, network):
        """The switch of a network fails: every port, at once."""
        on = [node for node in self.machines if network in node.networks and node.init is not None]
        # The kernel waits for its processors with each port that is taken away, on busy ones a tenth of a second and more; who is first
        # would be silent for long when the last one is cut.
        lines = [line for node in on for line in node.cut_lines(network)]
        _ip(f"link set switch-{network} down", *lines, f"link set switch-{network} up")

    def island(self, nodes, network):
        """These nodes have a switch of their own on that network from now on: they reach each other, and nobody else."""
        _ip(f"link add island-{network} type bridge stp_state 0 mcast_snooping 0", f"link set island-{network} up")
        _ip(*[f"link set {node._port(network)} master island-{network}" for node in nodes])
        on = [node.number for node in self.nodes if node.init is not None]
        apart = [node.number for node in nodes]
        same = {(one, other) for one, other in itertools.permutations(on, 2) if (one in apart) == (other in apart)}
        check(self.arrives(network, same) == same, "they are not apart as they should be")

    def rejoin(self, nodes, network):
        """They are on the switch of all again."""
        _ip(*[f"link set {node._port(network)} master switch-{network}" for node in nodes])
        _ip(f"link del island-{network}")

    def arrives(self, network, expected, patience=5.0):
        """The pairs of nodes, by number, of which the first one's datagrams come to the second one: what is expected is waited for."""
        on = [node for node in self.nodes if node.init is not None]
        word = os.urandom(8)
        for one, other in itertools.permutations(on, 2):
            # A card without a carrier says so.
            with contextlib.suppress(OSError):
                one.sockets[network].sendto(word + bytes([one.number]), (other.address(network), PORT))
        found, deadline = set(), time.monotonic() + patience
        while found != expected and time.monotonic() < deadline:
            found |= self._heard(on, network, word, 0.005)
        return found | self._heard(on, network, word, 0.1)

    def _heard(self, on, network, word, patience):
        """What comes within that time."""
        sockets = {node.sockets[network]: node for node in on}
        found = set()
        while readable := select.select(list(sockets), [], [], patience)[0]:
            for each in readable:
                said = each.recv(64)
                if said[:-1] == word:
                    found.add((said[-1], sockets[each].number))
        return found


class Process:
    """A program on a node. `process` waits for it, outside; `pid` is its number outside."""

    def __init__(self, node, process):
        self.node = node
        self.process = process

    @property
    def pid(self):
        """Its pid as the machine's, waited for: `nsenter` forks before it becomes the program."""
        deadline = time.monotonic() + 10
        while True:
            for pid in proc.descendants(self.process.pid):
                if proc.name(pid) not in ("nsenter", "setpriv", ""):
                    return pid
            check(self.process.poll() is None, f"what was started on {self.node.name} has ended with {self.process.returncode}")
            check(time.monotonic() < deadline, f"{self.process.args} does not start on {self.node.name}")
            time.sleep(0.001)

    def kill(self, number=signal.SIGKILL):
        """Sends it a signal."""
        os.kill(self.pid, number)


class Node:
    """A machine of the cluster. It is off until `boot`."""

    def __init__(self, cluster, number, name, networks):
        self.cluster = cluster
        self.number = number
        self.name = name
        self.networks = networks
        self.group = cluster.group / name
        self.directory = cluster.context.dir / name
        self.init = None
        self.sockets = {}
        self._outside = None
        self._started = []
        self._cut = set()

    def address(self, network):
        """Its address there."""
        return f"{NETWORKS[network]}.{self.number + 1}"

    def card(self, network):
        """The hardware address of its card there."""
        return f"02:{list(NETWORKS).index(network) + 1:02x}:00:00:00:{self.number + 1:02x}"

    def _port(self, network):
        """Its port of that network's switch."""
        return f"{network}{self.number}"

    # --- on and off -----------------------------------------------------------------------------------------------

    def boot(self):
        """Switches it on: nothing of what ran or lay in its memory before is there."""
        check(self.init is None, f"{self.name} is on")
        self.directory.mkdir(exist_ok=True)
        self.group.mkdir(exist_ok=True)
        ready, tell = os.pipe()
        flags = ["--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--kill-child=SIGKILL"]
        self._outside = subprocess.Popen(
            ["unshare", *flags, sys.executable, str(INIT), self.name, str(self.directory), str(tell)],
            pass_fds=[tell], preexec_fn=self._enter_node, start_new_session=True, stdin=subprocess.DEVNULL,
            env={**os.environ, "FT_TEST_SCRATCH": str(self.cluster.context.scratch)},
        )
        os.close(tell)
        with os.fdopen(ready, "rb") as file:
            check(file.read(1) == b"r", f"{self.name} does not start")
        (self.init,) = [pid for pid in proc.descendants(self._outside.pid) if proc.stat(pid)[1] == self._outside.pid]
        for network in self.networks:
            port = self._port(network)
            # The name that the other end has on the node may be in use here.
            _ip(f"link add {port} type veth peer name {port}.node address {self.card(network)}",
                f"link set {port}.node netns {self.init} name {network}",
                f"link set {port} master switch-{network}", f"link set {port} up")
        own = [line for n in self.networks for line in (f"addr add {self.address(n)}/24 dev {n}", f"link set {n} up")]
        # Nobody has to ask for a card's address: who asks in vain asks again after a second, however short the cut was.
        known = [self._way_to(other, n) for other in self.cluster.machines for n in self.networks if other is not self and n in other.networks]
        _ip("link set lo up", *own, *known, node=self)
        self._cut = set()
        self.sockets = {network: self._socket(network) for network in self.networks}

    def _way_to(self, other, network, card=None):
        return f"neigh replace {other.address(network)} lladdr {card or other.card(network)} dev {network} nud permanent"

    def _socket(self, network):
        """A socket on that node, in the harness's hands."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        child = os.fork()
        if child == 0:
            try:
                if ctypes.CDLL(None).setns(os.open(f"/proc/{self.init}/ns/net", os.O_RDONLY), 0) == 0:
                    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as heard:
                        heard.bind((self.address(network), PORT))
                        socket.send_fds(there, [b"s"], [heard.fileno()])
            finally:
                os._exit(0)
        there.close()
        with here:
            os.waitpid(child, 0)
            here.settimeout(1)
            (descriptor,) = socket.recv_fds(here, 1, 1)[1]
        return socket.socket(fileno=descriptor)

    def crash(self, meanwhile=lambda: None):
        """All its processes are killed in the same instant, and the kernel lives to close their connections. `meanwhile`: what is done
        before anybody waits for their end."""
        self._kill(meanwhile)

    def power_off(self):
        """It is gone without a word to anybody."""
        for network in self.networks:
            self.cut(network)
        self._kill()

    def _kill(self, meanwhile=lambda: None):
        check(self.init is not None, f"{self.name} is off")
        ran = self.pids()
        (self.group / "cgroup.kill").write_text("1")
        meanwhile()
        self._empty(ran)
        self.init = None
        # They would keep its network alive.
        for each in self.sockets.values():
            each.close()
        for network in self.networks:
            # The kernel takes a node's cards away a little later than its processes.
            with contextlib.suppress(Exception):
                _ip(f"link del {self._port(network)}")

    def _empty(self, ran, patience=20.0):
        """Waits until nothing of it runs. A process leaves its group as it begins to end, a little before it has."""
        deadline = time.monotonic() + patience
        while left := {*self.pids(), *filter(proc.alive, ran)}:
            check(time.monotonic() < deadline, f"on {self.name}, which was killed, there are still {left}")
            for process in [self._outside, *self._started]:
                process.poll()
            # What `nsenter` had started is now this process's child; the node ends when all in it have been waited for.
            for pid in proc.descendants(os.getpid()):
                if not proc.alive(pid) and pid not in {process.pid for process in self._started}:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(pid, os.WNOHANG)
            time.sleep(0.002)
        self._outside.wait(timeout=5)

    def end(self):
        """For the end of the scenario: takes it away, whatever state it is in."""
        if self.init is not None:
            self._freeze(False)
            self._kill()
        for where, _, _ in os.walk(self.group, topdown=False):
            os.rmdir(where)

    def pause(self):
        """All its processes stand still at once, and nobody hears of it: a machine that is suspended."""
        for network in self.networks:
            self._detach(network)
        self._freeze(True)

    def resume(self):
        """It goes on, as if no time had passed; what was cut before is so still."""
        self._freeze(False)
        for network in self.networks:
            if network not in self._cut:
                self._attach(network)

    def _freeze(self, wanted):
        (self.group / "cgroup.freeze").write_text(str(int(wanted)))
        deadline = time.monotonic() + 10
        while f"frozen {int(wanted)}\n" not in (self.group / "cgroup.events").read_text():
            check(time.monotonic() < deadline, f"{self.name} does not {'stand still' if wanted else 'go on'}")
            time.sleep(0.001)

    # --- its network ----------------------------------------------------------------------------------------------

    def cut(self, network):
        """Nothing from it comes through, and nothing to it; its own card notices nothing."""
        _ip(*self.cut_lines(network))

    def cut_lines(self, network):
        """What does that at the switch."""
        self._cut.add(network)
        return [f"link set {self._port(network)} nomaster"]

    def heal(self, network):
        """It is in that network again."""
        self._cut.discard(network)
        self._attach(network)

    def _detach(self, network):
        _ip(f"link set {self._port(network)} nomaster")

    def _attach(self, network):
        _ip(f"link set {self._port(network)} master switch-{network}")

    def lose(self, other, network):
        """What it sends to another node is lost in silence."""
        _ip(self._way_to(other, network, NOWHERE), node=self)

    def lose_no_more(self, other, network):
        """What it sends to another node arrives."""
        _ip(self._way_to(other, network), node=self)

    def cut_way(self, network, way):
        """One direction of its network fails, with all others at once: what it sends (`out`), or what is sent to it (`in`)."""
        if way == "out":
            _ip(*(self._way_to(other, network, NOWHERE) for other in self._others(network)), node=self)
        else:
            # What is sent to the address that its card had is nobody's.
            self._has_card(network, f"06{self.card(network)[2:]}")

    def heal_way(self, network):
        """Both directions work."""
        self._has_card(network, self.card(network))
        for other in self._others(network):
            if other.init is not None:
                other.lose_no_more(self, network)

    def _others(self, network):
        return [other for other in self.cluster.machines if other is not self and network in other.networks]

    def _has_card(self, network, address):
        """Its card has that hardware address. With the old one the kernel forgets all others'."""
        _ip(f"link set {network} address {address}", *(self._way_to(other, network) for other in self._others(network)), node=self)

    # --- what runs on it ------------------------------------------------------------------------------------------

    def _enter_node(self):
        self._enter_group()
        os.sched_setaffinity(0, {FIRST_PROCESSOR})

    def _enter_group(self):
        (self.group / "cgroup.procs").write_text(str(os.getpid()))
        proc.die_with_parent()

    def start(self, *argv, user=None, env=None, cwd=None, **options):
        """Starts a program there, as root or as a user of the password file."""
        inside = ["nsenter", f"--target={self.init}", "--mount", "--uts", "--ipc", "--net", "--pid", f"--wd={cwd or '/'}"]
        if user is not None:
            inside += ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]
        process = subprocess.Popen(
            [*inside, *map(str, argv)], preexec_fn=self._enter_group, stdin=options.pop("stdin", subprocess.DEVNULL),
            env=self.cluster.context.env(None, {}) if env is None else env, start_new_session=True, **options,
        )
        self._started.append(process)
        return Process(self, process)

    def run(self, *argv, patience=30.0, **options):
        """Runs a program there to its end: status and what it printed."""
        started = self.start(*argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
        out, err = started.process.communicate(timeout=patience)
        return started.process.returncode, out, err

    def pids(self):
        """All its processes, by the numbers that they have outside."""
        found = []
        for where, _, _ in os.walk(self.group):
            with contextlib.suppress(FileNotFoundError):
                found += [int(line) for line in (pathlib.Path(where) / "cgroup.procs").read_text().split()]
        return found

    def outside(self, inside):
        """The pid that one of its processes has outside."""
        for pid in self.pids():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                status = pathlib.Path(f"/proc/{pid}/status").read_text()
                numbers = re.search(r"^NSpid:\s+(.*)$", status, re.M)[1].split()
                if len(numbers) > 1 and numbers[-1] == str(inside):
                    return pid
        raise Failed(f"on {self.name} no process has the pid {inside}")

    def named(self, name):
        """Its processes of that name."""
        return [pid for pid in self.pids() if proc.name(pid) == name]
