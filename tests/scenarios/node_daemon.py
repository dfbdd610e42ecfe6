"""The node's daemon, `ftd`, as an administrator meets it: its configuration, its life, its socket, its numbers."""

import contextlib
import os
import pathlib
import re
import select
import signal
import socket
import struct
import subprocess
import time
import urllib.request

from harness import proc
from harness.job import check
from harness.peer import VERSION
from harness.registry import scenario

from .certificates import authority, certify
from .processes import eventually


class Daemon:
    """One that runs as the scenario's user, below the scenario's directory."""

    def __init__(self, context, more="", name="one", env=None):
        self.context = context
        self.program = context.prefix / "bin" / "ftd"
        self.place = context.work / name
        self.place.mkdir(exist_ok=True)
        self.socket = self.place / "run" / "ftd.sock"
        self.file = self.place / "ftd.toml"
        self.log = self.place / "log"
        self.configure(more)
        self.env = context.env(None, env or {})
        self.process = None

    def configure(self, more, metrics="", socket=None, state=None):
        self.file.write_text(
            f'[control]\nsocket = "{socket or self.socket}"\n[node]\nstate = "{state or self.place / "state"}"\n'
            f'[metrics]\naddress = "{metrics}"\n{more}'
        )

    def start(self):
        """Starts it, and waits until it answers."""
        self.begin()
        eventually(lambda: self.process.poll() is not None or self.status(None)[0] == 0, "the daemon")
        check(self.process.poll() is None, f"it ended with {self.process.poll()}: {self.said()}")
        return self

    def begin(self, **options):
        self.process = subprocess.Popen(
            [self.program, "--config", self.file], stderr=open(self.log, "ab"), stdin=subprocess.DEVNULL, env=self.env, **options
        )

    def said(self):
        return self.log.read_text()

    def says(self, *words, patience=10.0):
        """Waits for a line of its log with all these words."""
        found = lambda: next((line for line in self.said().splitlines() if all(word in line for word in words)), None)
        with contextlib.suppress(Exception):
            return eventually(found, f"{words} in its log", patience)
        check(False, f"{words} are not in its log: {self.said()}")

    def status(self, expected=0):
        """What `ftd status` prints: its exit status, output and error."""
        run = self.run("status", "--socket", self.socket)
        check(expected is None or run.returncode == expected, f"ftd status: {run.returncode}: {run.stdout}{run.stderr}")
        return run.returncode, run.stdout, run.stderr

    def run(self, *words):
        return subprocess.run([self.program, *map(str, words)], capture_output=True, text=True, env=self.env, timeout=20)

    def end(self, number=signal.SIGTERM, expected=0):
        self.process.send_signal(number)
        status = self.process.wait(10)
        check(status == expected, f"it ended with {status}: {self.said()}")

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


# The preamble of release 0.1: magic, version, role.
ASKER = 7


def preamble(version=VERSION, role=ASKER):
    return b"ftdwire\n" + struct.pack("<II", version, role)


@scenario("ftd-check-config")
def check_config(context):
    """Each mistake has its sentence with line, key and what is meant; the exit status tells; the installed default has none."""
    daemon = Daemon(context)
    installed = context.prefix / "share/ftd/ftd.toml"
    good = daemon.run("check-config", installed)
    check((good.returncode, good.stdout, good.stderr) == (0, f"{installed}: no mistakes\n", ""), f"{good}")
    daemon.file.write_text('[node]\nname = "a/b"\nlabl = "x"\n\n[etcd]\nendpoints = ["etcd:2379"]\nlease = "1s"\n[metrics]\naddress = 9727\n')
    bad = daemon.run("check-config", daemon.file)
    lines = bad.stderr.splitlines()
    expected = [
        ('line 2: node.name: "a/b" is no name'), ("line 3: node.labl: there is no such key; label is meant?"),
        ('line 6: etcd.endpoints: "etcd:2379": it does not begin with https://'), ('line 7: etcd.lease: "1s" is not between 2s and 1h'),
        ("line 9: metrics.address: 9727 is no text"),
    ]
    check(bad.returncode == 1 and bad.stdout == "" and len(lines) == len(expected), f"{bad}")
    for line, words in zip(lines, expected):
        check(line.startswith(f"ftd: {daemon.file}: {words}"), f"'{line}' does not say '{words}'")
    # What the files hold that are named.
    text = '[etcd]\nendpoints = ["https://etcd:2379"]\n{}'
    password = daemon.place / "password"
    password.touch(0o600)
    for more, said in [
        (f'ca-file = "{installed}"\n', f"line 2: etcd.endpoints: the store's configuration: {installed} holds no PEM block 'CERTIFICATE'"),
        (f'ca-file = "{daemon.place}/ca.pem"\n', f"line 3: etcd.ca-file: {daemon.place}/ca.pem cannot be read: No such file"),
        (f'ca-file = "{installed}"\nuser = "ftd"\npassword-file = "{password}"\n', f"line 5: etcd.password-file: the first line of {password} is empty"),
    ]:
        named = daemon.place / "named.toml"
        named.write_text(text.format(more))
        run = daemon.run("check-config", named)
        check(run.returncode == 1 and run.stderr.startswith(f"ftd: {named}: {said}"), f"{said}: {run}")
    # No mistake, but to be known.
    password.write_text("secret\n")
    for more, keys in [
        ('[etcd]\nendpoints = ["http://etcd:2379"]\n[peers]\ninsecure = true\n', ["line 2: etcd.endpoints", "line 4: peers.insecure"]),
        ('[etcd]\nendpoints = ["http://etcd:2379"]\n', []),
        (f'[peers]\ninsecure = true\n[etcd]\nuser = "ftd"\npassword-file = "{password}"\n', ["line 2: peers.insecure"]),
    ]:
        named.write_text(more)
        run = daemon.run("check-config", named)
        said = [f"ftd: warning: {named}: {key}: " for key in keys]
        lines_of = run.stderr.splitlines()
        check(run.returncode == 0 and run.stdout == f"{named}: no mistakes\n" and len(lines_of) == len(said), f"{run}")
        check(all(line.startswith(words) for line, words in zip(sorted(lines_of), sorted(said))), f"{run}")
    # Certificates that other nodes would refuse, and addresses that are of no use without.
    pki = daemon.place / "pki"
    authority(pki, "site")
    authority(pki, "other")
    certify(pki, "site", "one")
    certify(pki, "site", "late", days=-1)
    certify(pki, "site", "serves", usage="serverAuth")
    name = lambda of: f'[node]\nname = "{of}"\n[etcd]\nuser = "ftd"\npassword-file = "{password}"\n[peers]\n'
    files = lambda of, ca="site": f'ca-file = "{pki}/{ca}.pem"\ncert-file = "{pki}/{of}.pem"\nkey-file = "{pki}/{of}.key"\n'
    refused = "line 8: peers.cert-file: other nodes refuse this node's certificate: "
    for more, said in [
        (name("one") + files("one"), []),
        (name("two") + files("one"), [refused]),
        (name("one") + files("one", "other"), [refused]),
        (name("late") + files("late"), [refused]),
        (name("serves") + files("serves"), [refused]),
        (name("one") + 'mpi = "198.18.0.1:9728"\n', ["line 7: peers.mpi: jobs over several nodes are not set up: nothing listens there"]),
        (name("one") + 'store = "198.18.0.1:9728"\n' + files("one"), ["line 7: peers.store: jobs over several nodes are not set up: this node"]),
    ]:
        named.write_text(more)
        run = daemon.run("check-config", named)
        found = run.stderr.splitlines()
        check(run.returncode == 0 and len(found) == len(said), f"{more}: {run}")
        check(all(line.startswith(f"ftd: warning: {named}: {words}") for line, words in zip(found, said)), f"{more}: {run}")
    named.write_text(name("one") + 'mpi = "0.0.0.0:9728"\n')
    run = daemon.run("check-config", named)
    check(run.returncode == 1 and "line 7: peers.mpi: other nodes are told this address" in run.stderr, f"{run}")
    gone = daemon.run("check-config", daemon.place / "gone.toml")
    check(gone.returncode == 1 and "gone.toml cannot be read: No such file" in gone.stderr, f"{gone}")
    # The daemon says the same, and ends so that systemd does not try again.
    daemon.begin()
    check(daemon.process.wait(10) == 2 and daemon.said().splitlines() == lines, daemon.said())


@scenario("ftd-life")
def life(context):
    """It starts, says how it is, is reloaded and ends. A wrong file changes nothing and is said; what only a start changes is named."""
    with Daemon(context, '[log]\nfilter = "warn"\n') as daemon:
        said = daemon.status()[1]
        check(f"pid {daemon.process.pid}," in said and f"config  {daemon.file}\n" in said and "jobs    none\n" in said, said)
        check(re.search(rf"^node    \S+ \(host {re.escape(socket.gethostname())}, ", said, re.M), said)
        daemon.configure('[log]\nfilter = "info"\n[jobs]\nheartbeat-timeout = "900ms"\n')
        daemon.process.send_signal(signal.SIGHUP)
        # Only the new filter lets it through.
        daemon.says("was read again", "changed: jobs.heartbeat-timeout, log.filter")
        daemon.configure('[log]\nfiltr = "info"\n')
        daemon.process.send_signal(signal.SIGHUP)
        daemon.says("line 8: log.filtr: there is no such key; filter is meant?")
        daemon.says("the configuration stays as it was")
        eventually(lambda: "not in use as it is now" in daemon.status()[1], "a word on the file in the status")
        daemon.configure('label = "x"\n', state="/elsewhere", socket="/elsewhere.sock")
        daemon.file.write_text(daemon.file.read_text().replace('label = "x"\n', "") + '[log]\nfilter = "info"\n[jobs]\nroot = true\n')
        daemon.process.send_signal(signal.SIGHUP)
        daemon.says("node.state, control.socket changed", "must be started again")
        said = eventually(lambda: (text := daemon.status()[1]) and "next start on: node.state, control.socket" in text and text, "the keys")
        check("not in use" not in said, said)
        daemon.end()
        daemon.says("ftd ends; jobs run on")
        check(not daemon.socket.exists(), "the socket is left")
        status, _, said = daemon.status(1)
        check(f"no ftd answers on {daemon.socket}: No such file" in said, said)


class Manager:
    """What a service manager hears."""

    def __init__(self, path):
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.heard = []

    def hear(self, word, patience=10.0):
        """Waits for a message with this line; returns it."""
        deadline = time.monotonic() + patience
        while True:
            left = deadline - time.monotonic()
            check(left > 0 and select.select([self.socket], [], [], left)[0], f"no '{word}' in {self.heard}")
            said = self.socket.recv(4096).decode().splitlines()
            self.heard.append(said)
            if word in said:
                return said


@scenario("ftd-service-manager")
def service_manager(context):
    """systemd hears that it is ready, reloads (with the time), and stops; its watchdog is fed by the daemon's own loop and by nothing
    else; each start, a moment later than the socket."""
    manager = Manager(context.work / "notify")
    daemon = Daemon(context, env={"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "300000"})
    daemon.begin()
    manager.hear("READY=1")
    check(daemon.status()[0] == 0, "ready, and it does not answer")
    manager.hear("WATCHDOG=1")
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    daemon.process.send_signal(signal.SIGHUP)
    (when,) = [int(line.partition("=")[2]) for line in manager.hear("RELOADING=1") if line.startswith("MONOTONIC_USEC=")]
    check(before <= when <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000, f"reloading at {when}, asked at {before}")
    manager.hear("READY=1")
    for _ in range(3):
        manager.hear("WATCHDOG=1")
    proc.freeze(daemon.process.pid)
    with contextlib.suppress(BlockingIOError):
        while manager.socket.recv(4096, socket.MSG_DONTWAIT):
            pass
    check(not select.select([manager.socket], [], [], 0.5)[0], "a stopped daemon feeds its watchdog")
    daemon.process.send_signal(signal.SIGCONT)
    manager.hear("WATCHDOG=1")
    daemon.process.send_signal(signal.SIGTERM)
    manager.hear("STOPPING=1")
    check(daemon.process.wait(10) == 0, daemon.said())
    told = [line for said in manager.heard for line in said if line.startswith("STATUS=")]
    check(told and told[0].endswith(": etcd was not asked yet, no lease"), f"{manager.heard}")
    check(daemon.said().count("no control group was given to ftd") == 1, daemon.said())


@scenario("ftd-unit")
def unit(context):
    """systemd accepts the installed unit, and would not accept it with a mistake."""
    unit = context.prefix / "lib/systemd/system/ftd.service"

    def verify(path):
        run = subprocess.run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", path], capture_output=True, text=True,
                             env=context.env(None, {}), timeout=50)
        return run.returncode, run.stdout + run.stderr

    check(verify(unit) == (0, ""), f"systemd-analyze: {verify(unit)}")
    (context.work / "broken").mkdir()
    broken = context.work / "broken" / "ftd.service"
    for right, wrong in [("/bin/ftd\n", "/bin/no-ftd\n"), ("Type=notify", "Type=notfy"), ("Watchdog", "Watchdogg")]:
        broken.write_text(unit.read_text().replace(right, wrong, 1))
        check(broken.read_text() != unit.read_text() and verify(broken)[1] != "", f"{wrong.strip()} is accepted")
    # By which the daemon starts and is told that its configuration is wrong.
    text = unit.read_text()
    check(f"ExecStart={context.prefix}/bin/ftd\n" in text and "KillMode=process\n" in text and "Delegate=memory\n" in text and "Restart=always\n" in text, text)


@scenario("ftd-second")
def second(context):
    """A second daemon ends with the first one's pid, whatever it shares with it; that of a dead one is replaced, and what is no ftd's is
    left alone."""
    with Daemon(context) as first:
        inode = first.socket.stat().st_ino
        for what, shared in [("state", {"socket": first.place / "other.sock"}), ("socket", {"state": first.place / "other"})]:
            again = Daemon(context, name=what)
            again.configure("", **{"socket": first.socket, "state": first.place / "state", **shared})
            again.begin()
            status = again.process.wait(10)
            check(status == 1 and f"another ftd, pid {first.process.pid}, already runs here" in again.said(), f"{status}: {again.said()}")
        check(first.socket.stat().st_ino == inode and first.status()[0] == 0, "the first one's socket is another one")
        first.end(signal.SIGKILL, -signal.SIGKILL)
        check(first.socket.exists() and "Connection refused" in first.status(1)[2], "the dead one's socket")
        first.start()
        check(first.status()[0] == 0 and first.socket.stat().st_ino != inode, "the dead one's socket is not replaced")
        # Its lock file is gone, and so nothing keeps another one out but that it lives.
        for lock in first.place.rglob("*lock"):
            lock.unlink()
        again = Daemon(context)
        again.begin()
        check(again.process.wait(10) == 1 and f"process {first.process.pid} already listens on {first.socket}" in again.said(), again.said())
        check(first.status()[0] == 0, "the first one does not answer any more")
    other = Daemon(context, name="file")
    other.socket.parent.mkdir()
    other.socket.write_text("somebody's")
    other.begin()
    check(other.process.wait(10) == 1 and "is there and is no socket: it is left alone" in other.said(), other.said())
    check(other.socket.read_text() == "somebody's", "somebody's file is gone")


def dial(path):
    dialled = socket.socket(socket.AF_UNIX)
    dialled.settimeout(10)
    dialled.connect(str(path))
    return dialled


def numbers(address):
    """What a scrape finds: name and labels to value, and the types and help texts by name."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        check(answer.headers["content-type"].startswith("text/plain; version=0.0.4"), answer.headers["content-type"])
        text = answer.read().decode()
    values = {name: float(value) for name, value in re.findall(r"^([^#\s]\S*) (\S+)$", text, re.M)}
    return values, dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M)), dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.M))


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


@scenario("ftd-strangers")
def strangers(context):
    """Of another release, of another protocol, with absurd lengths, too many, silent: each is refused, told where possible, and counted;
    nobody else notices."""
    address = f"127.0.0.1:{free_port()}"
    daemon = Daemon(context)
    daemon.configure("", metrics=address)
    daemon.file.write_text(daemon.file.read_text().replace("[control]\n", "[control]\nconnections-per-user = 3\n"))
    with daemon:
        counted = lambda reason: numbers(address)[0][f'ftd_control_refused_total{{reason="{reason}"}}']
        older = dial(daemon.socket)
        older.sendall(preamble(version=2))
        check(older.recv(100) == preamble(role=6) and older.recv(100) == b"", "an older release is answered")
        daemon.says(f"speaks protocol version 2, this side speaks {VERSION}")
        check(counted("version") == 1, "it is not counted")
        frame = lambda body: struct.pack("<IBBBB", len(body), 0, 0, 0, 0) + body
        junk = [b"GET / HTTP/1.1\r\n\r\n", preamble() + b"\xff" * 8, preamble() + frame(b"\x77" * 20), preamble(role=2), preamble() + frame(b"")]
        for count, said in enumerate(junk, 1):
            stranger = dial(daemon.socket)
            stranger.sendall(said)
            with contextlib.suppress(ConnectionResetError):
                while stranger.recv(100):
                    pass
            eventually(lambda: counted("malformed") == count, f"{said} to be counted")
        began = time.monotonic()
        held = [dial(daemon.socket) for _ in range(3)]
        for each in held:
            each.recv(16)
        _, _, said = daemon.status(1)
        check(f"user {os.getuid()} has 3 connections to ftd already" in said and counted("limit") >= 1, said)
        told_why(context, daemon, began)
        # They say nothing, and are left after 5 s.
        eventually(lambda: daemon.status(None)[0] == 0, "room for who has something to say", 20)
        check(counted("idle") >= 1, "silence is not counted")
        for each in held:
            each.close()
        daemon.end()
    # The other way round: what answers is of another release.
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(daemon.socket))
    listener.listen()
    asks = subprocess.Popen([daemon.program, "status", "--socket", daemon.socket], stderr=subprocess.PIPE, text=True, env=daemon.env)
    listener.accept()[0].sendall(preamble(version=VERSION + 2, role=6))
    said = asks.communicate(timeout=10)[1]
    check(asks.returncode == 1 and f"(Daemon) speaks protocol version {VERSION + 2}, this side speaks {VERSION}" in said, said)


def told_why(context, daemon, began):
    """Who is refused hears why, whether ftd has closed its end before he said a word or after."""
    env = context.env(None, {"FT_DAEMON": str(daemon.socket)})
    for words in [["ftctl", "jobs"]] + [["ftrun", "--hosts", "other", "-n", "1", "true"]] * 8:
        run = subprocess.run([context.prefix / "bin" / words[0], *words[1:]], capture_output=True, text=True, env=env, timeout=20)
        # Those that say nothing are left after 5 s.
        if time.monotonic() - began > 4.5:
            return
        said = f"user {os.getuid()} has 3 connections to ftd already, and no more are allowed: end some"
        check(said in run.stderr and "control.connections-per-user" in run.stderr, f"{words}: {run.stdout}{run.stderr}")


def table(context):
    """The metrics of the administrator's guide: name to type, labels (name to values) and meaning."""
    guide = (context.prefix / "share/doc/ftd/admin.md").read_text().partition("## Metrics")[2]
    rows = re.findall(r"^\| `(ftd_\w+)` \| (\w+) \|(.*?)\| (.*?) \|$", guide, re.M)
    check(len(rows) >= 4, f"{rows}")

    def labels(text):
        return {name: re.findall(r"`([^`]+)`", values) for name, values in re.findall(r"`(\w+)`(?:: ((?:`[^`]+`(?:, )?)+))?", text)}

    return {name: (kind, labels(told), meaning) for name, kind, told, meaning in rows}


@scenario("ftd-metrics")
def metrics(context):
    """A scrape finds what the administrator's guide says, names, types, labels and meanings, from the first one on; the numbers count."""
    address = f"127.0.0.1:{free_port()}"
    daemon = Daemon(context)
    daemon.configure("", metrics=address)
    with daemon:
        told = table(context)
        # That a call took so long is there once one has been made: there is no etcd here.
        values, types, helps = eventually(lambda: (found := numbers(address)) and "ftd_etcd_request_seconds" in found[1] and found, "a call")
        check(types == {name: kind for name, (kind, _, _) in told.items()}, f"{types} and {told}")
        check(helps == {name: meaning for name, (_, _, meaning) in told.items()}, f"{helps} and {told}")
        found = {}
        for name, labels in re.findall(r"(\w+)(?:\{(.*?)\})?$", "\n".join(values), re.M):
            for label, value in re.findall(r'(\w+)="(.*?)"', labels):
                base = re.sub(r"_(bucket|sum|count)$", "", name) if name not in told else name
                if label != "le":
                    found.setdefault(base, {}).setdefault(label, []).append(value)
        for name, (_, labels, _) in told.items():
            seen = {label: sorted(set(each)) for label, each in found.get(name, {}).items()}
            check(set(seen) == set(labels), f"{name} has the labels {seen}, and the guide says {labels}")
            check(all(seen[label] == sorted(each) for label, each in labels.items() if each), f"{name}: {seen}, and the guide says {labels}")
        before = values
        daemon.status()
        daemon.process.send_signal(signal.SIGHUP)
        daemon.says("was read again")
        after = eventually(lambda: (v := numbers(address)[0])['ftd_reloads_total{result="done"}'] == 1 and v, "the reload")
        grown = after["ftd_control_connections_total"] - before["ftd_control_connections_total"]
        check(grown == 1, f"one connection more, and {grown} counted")
        for path, method, status in [("/", "GET", 404), ("/metrics", "POST", 405)]:
            try:
                urllib.request.urlopen(urllib.request.Request(f"http://{address}{path}", method=method), timeout=10)
                check(False, f"{method} {path} is answered")
            except urllib.error.HTTPError as error:
                check(error.code == status, f"{method} {path}: {error.code}")
        # Whoever holds its places keeps nobody out for long; and a second daemon says what is in its way.
        again = Daemon(context, name="two")
        again.configure("", metrics=address)
        again.begin()
        check(again.process.wait(10) == 1 and f"metrics.address: {address} cannot be listened on: Address already in use" in again.said(), again.said())
        small = int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{daemon.process.pid}/status").read_text())[1])
        check(small < 20_000, f"it takes {small} kB")
