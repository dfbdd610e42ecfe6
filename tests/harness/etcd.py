"""The store of a cluster: members of a real etcd, each on a machine of its own in the store's network."""

import json
import os
import subprocess
import time

from .job import check
from .mpis import PREFIX

NAMES = ("etcd0", "etcd1", "etcd2")
CLIENTS, PEERS = 2379, 2380


def newer():
    """The binary of release 3.5; `etcd` itself is Debian's 3.4."""
    return os.environ.get("FT_TEST_ETCD35", f"{PREFIX}/etcd35/bin/etcd")


class Etcd:
    """etcd on the further machines of a cluster, which were named after [`NAMES`]. `binary` is the one to start; `access`, as etcdctl's
    options, lets who asks for clients' certificates, or with [`protect`](Self.protect) for a password, know the harness."""

    def __init__(self, cluster, binary="etcd", options=(), scheme="http", access=()):
        self.cluster = cluster
        self.binary = binary
        self.options = options
        self.scheme = scheme
        self.access = [*access]
        self.machines = [machine for machine in cluster.extra if machine.name in NAMES]
        self.members = {}
        self.environment = cluster.context.env(None, {"ETCDCTL_API": "3"})
        for machine in self.machines:
            self.start(machine)
        self.wait()

    def url(self, machine, port=CLIENTS):
        """Where a member listens."""
        scheme = "http" if port == PEERS else self.scheme
        return f"{scheme}://{machine.address('store')}:{port}"

    def protect(self, user, password, prefix):
        """From now on it asks for passwords; that user has the keys below the prefix."""
        for words in ("user add root:top", "user grant-role root root", f"role add {user}", f"role grant-permission {user} --prefix readwrite {prefix}",
                      f"user add {user}:{password}", f"user grant-role {user} {user}", "auth enable"):
            status, out, err = self.ctl(*words.split())
            check(status == 0, f"etcdctl {words}: {out}{err}")
        self.access += ["--user", "root:top"]

    @property
    def endpoints(self):
        """Where all members are asked."""
        return [self.url(machine) for machine in self.machines]

    def start(self, machine):
        """Starts a member, with what it had stored."""
        log = open(machine.directory / "etcd.log", "ab")
        self.members[machine.name] = machine.start(
            self.binary, "--name", machine.name, "--data-dir", "/var/lib/ftd/etcd", *self.options,
            "--listen-client-urls", f"{self.url(machine)},{self.scheme}://127.0.0.1:{CLIENTS}", "--advertise-client-urls", self.url(machine),
            "--listen-peer-urls", self.url(machine, PEERS), "--initial-advertise-peer-urls", self.url(machine, PEERS),
            "--initial-cluster", ",".join(f"{each.name}={self.url(each, PEERS)}" for each in self.machines),
            stdout=log, stderr=subprocess.STDOUT,
        )
        log.close()

    def kill(self, machine):
        """SIGKILL for a member; the machine lives."""
        member = self.members.pop(machine.name)
        member.kill()
        member.process.wait()

    def ctl(self, *words, on=None, patience=10.0):
        """`etcdctl` on one of the machines: status, what it printed, what it complained of. It gives up after a second: what a leader was
        asked in its last moments is answered by nobody."""
        machine = on or next(machine for machine in self.machines if machine.name in self.members)
        return machine.run("etcdctl", f"--endpoints={','.join(self.endpoints)}", "--command-timeout=1s", *self.access, *words, env=self.environment, patience=patience)

    def get(self, *words, patience=30.0):
        """What `etcdctl get` prints, asked until it answers: no answer says nothing of a key."""
        deadline = time.monotonic() + patience
        while True:
            status, out, err = self.ctl("get", *words)
            if status == 0:
                return out
            check(time.monotonic() < deadline, f"etcd does not answer: {err}")
            time.sleep(0.02)

    def wait(self):
        """Until it answers a linearizable read."""
        self.get("nothing")

    def has(self, machine, key, value, patience=30.0):
        """Waits until a member has this itself, whatever the others have."""
        deadline, words = time.monotonic() + patience, ["get", key, "--print-value-only", "--consistency=s"]
        while True:
            said = machine.run("etcdctl", f"--endpoints={self.url(machine)}", "--command-timeout=1s", *self.access, *words, env=self.environment)
            if said[:2] == (0, f"{value}\n"):
                return
            check(time.monotonic() < deadline, f"{machine.name} has no {key} that is {value}; etcdctl said {said}")
            time.sleep(0.02)

    def leader(self, patience=30.0):
        """The machine whose member leads, waited for: they may be about to elect one."""
        deadline = time.monotonic() + patience
        while (found := self._leader()) is None:
            check(time.monotonic() < deadline, "no member of etcd leads")
            time.sleep(0.02)
        return found

    def _leader(self):
        for machine in self.machines:
            if machine.name not in self.members:
                continue
            status, out, _ = machine.run(
                "etcdctl", f"--endpoints={self.url(machine)}", "--command-timeout=1s", *self.access, "endpoint", "status", "-w", "json", env=self.environment
            )
            if status == 0:
                told = json.loads(out)[0]["Status"]
                if told["leader"] == told["header"]["member_id"]:
                    return machine
        return None
