"""`ftrun --hosts`: jobs on other nodes than the one on which they are started, through the nodes' daemons."""

import contextlib
import hashlib
import os
import pathlib
import re
import resource
import signal
import subprocess
import time

from harness import etcd, proc, registry
from harness.cluster import NETWORKS, Cluster
from harness.job import Failed, check
from harness.registry import scenario

from .admin_page import typed
from .certificates import authority, certify
from .nodes import NodeDaemon, key_of
from .processes import eventually

INSECURE = "insecure = true\n"


class Nodes:
    """A cluster with etcd and a daemon on each node, from which the ordinary user starts jobs."""

    def __init__(self, context, size, peers=None, jobs="", env=None, network="store", members=1, store=None, etcd_keys="",
                 labels=None):
        """`labels`: each node's failure domain."""
        self.context = context
        self.labels = labels or [None] * size
        self.make_store = store or etcd.Etcd
        self.etcd_keys = etcd_keys
        self.env = env
        self.cluster = Cluster(context, size, extra=etcd.NAMES[:members])
        self.peers = peers or (lambda node: INSECURE)
        self.jobs = jobs
        self.network = network

    def __enter__(self):
        self.cluster.__enter__()
        try:
            self.store = self.make_store(self.cluster)
            self.nodes = self.cluster.nodes
            self.daemons = [self.daemon(node).start() for node in self.nodes]
            for node in self.nodes:
                eventually(lambda: key_of(self.store, node.name), f"{node.name}'s key", 20)
        except BaseException:
            self.cluster.close()
            raise
        return self

    def daemon(self, node):
        more = f'store = "{node.address(self.network)}:9728"\n{self.peers(node)}{self.jobs}'
        return NodeDaemon(node, self.store, lease="10s", more=more, label=self.labels[node.number], env=self.env, etcd=self.etcd_keys)

    def __exit__(self, *_):
        self.cluster.close()

    def run(self, hosts, size, *command, options=(), on=0, ft="none", **more):
        """Starts `ftrun --hosts` on a node, as the ordinary user."""
        return self.context.ftrun(None, size, *command, ft=ft, options=[*(["--hosts", hosts] if hosts else []), *options],
                                  on=self.nodes[on], **more)

    def short(self, hosts, size, *command, options=(), on=0, env=None, cwd=None):
        """Runs `ftrun --hosts` to an end that may come at once: status, output and error."""
        argv = [self.context.prefix / "bin" / "ftrun", "-n", str(size), "--hosts", hosts, *options, *command]
        print("+", *argv, flush=True)
        return self.nodes[on].run(*argv, user=self.cluster.user, env=self.context.env(None, env or {}), cwd=cwd or self.context.work)

    def each_one(self):
        """All nodes, with one slot each."""
        return ",".join(f"{node.name}:1" for node in self.nodes)

    def sh(self, hosts, size, script, **more):
        return self.run(hosts, size, "/bin/sh", "-c", script, **more)

    def of_job(self, node):
        """Processes of the user's on a node, by name."""
        return [proc.name(pid) for pid in node.pids() if proc.alive(pid) and proc.uid(pid) == self.cluster.user.pw_uid]

    def empty(self, node, patience=10.0):
        """Waits until nothing of a job is on a node, nor in its memory."""
        left = lambda: self.of_job(node) + node.run("/bin/ls", "/dev/shm")[1].split()
        try:
            eventually(lambda: not left(), f"{node.name} without the job", patience)
        except Exception:
            check(False, f"on {node.name} there is still {left()}")


def ended(job, status, *words, patience=30.0):
    """The job ends so, and says this once."""
    got = job.wait(patience)
    check(got == status, f"exit status {got}, not {status}: {job.err}")
    for word in words:
        check(job.err.count(word) == 1, f"'{word}' is said {job.err.count(word)} times: {job.err}")


@scenario("hosts-as-on-one-machine", cluster=True)
def as_on_one_machine(context):
    """A job on another node runs there as its user, with the groups, environment, umask, working directory and soft limits with which it was
    started and in nothing of the daemon's; its output comes line by line, tagged on request; its exit status is the job's."""
    with Nodes(context, 2, env=context.env(None, {"NOTIFY_SOCKET": "/run/nobody"})) as nodes:
        user = nodes.cluster.user
        pathlib.Path(f"/proc/{nodes.daemons[1].process.pid}/oom_score_adj").write_text("500")
        script = ("hostname; id -u; id -g; umask; pwd; echo \"$WORD,${NOTIFY_SOCKET-none},$FT_SIZE\"; ulimit -Sn; cat /proc/self/oom_score_adj;"
                  "readlink /proc/self/fd/0; echo to-err >&2; [ $FT_RANK = 0 ] && { : > said; exit 0; }; "
                  # A status other than 0 ends the job, and with it who has not said everything.
                  "until [ -e said ]; do sleep 0.01; done; exit 7")
        where = context.work / "deep"
        where.mkdir()
        nodes.cluster.give(where)
        job = nodes.context.start(
            ["/bin/bash", "-c", f"umask 027; ulimit -Sn 777; cd {where}; exec ftrun -n 2 --hosts node1 --tag-output /bin/sh -c '{script}'"],
            env={"WORD": "a  word"}, on=nodes.nodes[0])
        ended(job, 7)
        for rank in (0, 1):
            said = re.findall(rf"^\[{rank}\]<stdout>: (.*)$", job.output.text, re.M)
            expected = ["node1", str(user.pw_uid), str(user.pw_gid), "0027", str(where), "a  word,none,2", "777", "0"]
            check(said[:-1] == expected, f"rank {rank} says {said}, not {expected}")
            check(job.err.count(f"[{rank}]<stderr>: to-err\n") == 1, job.err)
        nodes.empty(nodes.nodes[1])
        # The keys of one job are not another's, nor the daemon's.
        keyring = ("import ctypes; print(ctypes.CDLL(None).syscall(250, 0, -3, 1))")
        rings = set()
        for _ in range(2):
            status, out, err = nodes.short("node1", 1, "/usr/bin/python3", "-c", keyring)
            check(status == 0 and int(out) > 0, f"{status} {out}{err}")
            rings.add(int(out))
        daemons = int(nodes.nodes[1].run("/usr/bin/python3", "-c", keyring)[1])
        check(len(rings) == 2 and daemons not in rings, f"the daemon's keyring is {daemons}, the jobs' are {rings}")
        # A line that is not finished, and much of it.
        job = nodes.sh("node1", 4, "printf 'no end from %s' $FT_RANK; sleep 0.3; echo; seq -f \"$FT_RANK:%g\" 20000")
        ended(job, 0)
        for rank in range(4):
            lines = [line for line in job.output.text.splitlines() if line.startswith(f"{rank}:")]
            check(lines == [f"{rank}:{n}" for n in range(1, 20001)], f"rank {rank}: {len(lines)} lines")
        check(job.err == "", job.err)
        # Whoever reads of a death looks on that node.
        died = "[ $FT_RANK = 1 ] && { [ -e again ] || { : > again; kill -SEGV $$; }; }; exit 0"
        status, _, err = nodes.short("node1", 2, "/bin/sh", "-c", died, cwd=where, options=["--ft=reinit"])
        check(status == 0 and "failed    rank 1 on node node1 was killed by SIGSEGV\n" in err and "node 0" not in err, f"{status}: {err}")
        status, _, err = nodes.short("node1", 2, "/bin/sh", "-c", "kill -SEGV $$")
        check(status == 139 and "on node node1 was killed by SIGSEGV" in err and "node 0" not in err, f"{status}: {err}")
        status, out, _ = nodes.daemons[1].status()
        check(status == 0 and "\njobs    none\n" in out, out)


@scenario("hosts-stdin", cluster=True)
def stdin(context):
    """Rank 0 reads what ftrun reads, all of it, from a pipe and from a file, and nobody else reads anything; a rank that reads slowly
    holds up the writer, not the memory."""
    with Nodes(context, 2) as nodes:
        data = os.urandom(1 << 20) * 40
        path = context.work / "data"
        path.write_bytes(data)
        script = "[ $FT_RANK = 0 ] || { wc -c; exit; }; sleep 0.5; md5sum"
        for how in ("file", "pipe"):
            with open(path, "rb") as file:
                feeder = subprocess.Popen(["cat"], stdin=file, stdout=subprocess.PIPE) if how == "pipe" else None
                job = nodes.sh("node1", 2, script, stdin=feeder.stdout if feeder else file)
                if feeder:
                    feeder.stdout.close()
                ended(job, 0)
                if feeder:
                    check(feeder.wait(10) == 0, "cat could not write all")
            said = sorted(job.output.text.splitlines())
            check(said == sorted(["0", f"{hashlib.md5(data).hexdigest()}  -"]), f"{how}: {said}")
        # What cannot be kept is said here, and not there: the ranks read what was.
        with open(path, "rb") as file:
            job = nodes.context.start(
                ["/bin/bash", "-c", "ulimit -Sf 200; exec ftrun -n 1 --hosts node1 /bin/sh -c 'wc -c'"], on=nodes.nodes[0], stdin=file)
            ended(job, 0, "standard input beyond ", "cannot be kept: File too large")
        check(0 < int(job.output.text) < 200 << 10, job.output.text)


@scenario("hosts-stdin-moves", cluster=True, timeout=90, each=[{"how": "pipe"}, {"how": "file"}])
def stdin_moves(context, how):
    """The node of rank 0 crashes when that has read a part of its input: it reads all of it on another node, which is not ftrun's, from the first byte
    on, what was sent before and what comes after."""
    with Nodes(context, 3) as nodes:
        first, data = 3 << 20, os.urandom(1 << 20) * 5
        path, go = context.work / "data", context.work / "go"
        path.write_bytes(data)
        script = (f'[ $FT_RANK = 0 ] || {{ until [ -e {go} ]; do sleep 0.05; done; exit 0; }}; hostname; head -c {first} | md5sum;'
                  f' [ $(hostname) = node2 ] || until [ -e {go} ]; do sleep 0.05; done; md5sum')
        read, write = os.pipe()
        with open(path, "rb") as file, os.fdopen(write, "wb") as feed:
            job = nodes.sh("node1:1,node2:2", 2, script, ft="reinit", stdin=file if how == "file" else read)
            os.close(read)
            if how == "pipe":
                feed.write(data[:first])
                feed.flush()
            begun = f"node1\n{hashlib.md5(data[:first]).hexdigest()}  -\n"
            eventually(lambda: job.output.text == begun, "rank 0 to have read the first part", 30)
            nodes.nodes[1].crash()
            if how == "pipe":
                eventually(lambda: "node2\n" in job.output.text, "rank 0 on the other node", 30)
                feed.write(data[first:])
        eventually(lambda: job.output.text.count("  -\n") == 3, "rank 0 to have read all", 40)
        go.touch()
        ended(job, 0)
        check(job.output.text == begun + begun.replace("node1", "node2") + f"{hashlib.md5(data[first:]).hexdigest()}  -\n", job.output.text)
        check("moved     rank 0 from node node1 to node node2\n" in job.err, job.err)
        for node in (nodes.nodes[0], nodes.nodes[2]):
            nodes.empty(node)


@scenario("hosts-signals", cluster=True)
def signals(context):
    """Signals to ftrun reach the ranks on another node: what ends the job gives them their time, a second one ends it at once; the job
    stops and goes on with ftrun."""
    with Nodes(context, 2) as nodes:
        trap = "trap 'echo usr1' USR1; trap 'echo saved; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
        job = nodes.sh("node1", 2, trap)
        eventually(lambda: job.output.text.count("ready\n") == 2, "the ranks", 20)
        job.interrupt(signal.SIGUSR1)
        eventually(lambda: job.output.text.count("usr1\n") == 2, "the signal", 20)
        job.interrupt(signal.SIGTSTP)
        ranks = [pid for pid in nodes.nodes[1].named("sh")]
        # One of them may be about to become a sleep, for which nobody waits who is stopped.
        states = lambda: {found[0] for pid in ranks if (found := proc.stat(pid))} - {"Z"}
        eventually(lambda: states() == {"T"}, "the ranks to stop", 20)
        # Who has entered the node for ftrun stops once that has. A SIGCONT that comes earlier finds nobody stopped.
        eventually(lambda: proc.stat(job.process.pid)[0] == "T", "the stop", 20)
        job.interrupt(signal.SIGCONT)
        os.kill(job.process.pid, signal.SIGCONT)
        eventually(lambda: "T" not in states(), "the ranks to go on", 20)
        job.interrupt(signal.SIGTERM)
        ended(job, 5)
        check(job.output.text.count("saved\n") == 2, job.output.text)
        job = nodes.sh("node1", 2, "trap '' TERM; echo ready; while :; do sleep 0.05; done")
        eventually(lambda: job.output.text.count("ready\n") == 2, "the ranks", 20)
        job.interrupt(signal.SIGTERM)
        eventually(lambda: "the ranks have had SIGTERM and have" in job.err, "a word on the time that they have", 20)
        job.interrupt(signal.SIGTERM)
        ended(job, 143, "ftrun: the ranks have had SIGTERM", "SIGTERM came again: everything was killed")
        nodes.empty(nodes.nodes[1])


def serving(nodes, number, what=b"serve-"):
    """The processes that serve connections of jobs on a node, as they began: all, ftrun's (`serve-ftrun`), other nodes' (`serve-node`) or those for
    parts on the node of their ftrun (`serve-own`)."""
    found = [pid for pid in nodes.nodes[number].pids() if any(word.startswith(what) for word in proc.argv(pid)[1:2])]
    return sorted(found, key=proc.began)


def served(nodes, number):
    """The process that serves the only connection of a job that the daemon of a node has."""
    (found,) = serving(nodes, number)
    return found


def near(nodes):
    """The process that serves the only ftrun on the first node, the last that has begun."""
    return serving(nodes, 0, b"serve-ftrun")[-1]


def third_stands(context, nodes, mpi):
    """The undisturbed run of a program, and a job of it on the first two nodes, of which rank 3 stands behind its first checkpoint: runs and victim."""
    program = nodes.cluster.program(mpi, "places.c")
    alone = context.ftrun(mpi, 4, program, ft="none", on=nodes.nodes[0])
    alone.expect(0)
    job = context.ftrun(mpi, 4, program, options=["--hosts", "node0,node1"], on=nodes.nodes[0], gates=["app.compute:3"])
    job.on = nodes.nodes[1]
    return alone, job, job.at_gate("app.compute", 3)


@scenario("hosts-daemon-dies", cluster=True, timeout=90)
def daemon_dies(context):
    """The end of daemons, by SIGKILL and on both nodes, is no job's end: input, output, signals, a recovery and the status come through as if
    nothing had happened, and daemons that are started again name the job as long as it is there."""
    mpi = context.mpi("mpich5")
    with Nodes(context, 2) as nodes:
        go, data = context.work / "go", os.urandom(1 << 20) * 4
        read, write = os.pipe()
        trap = f"trap 'echo usr1' USR1; echo ready; [ $FT_RANK = 0 ] && md5sum; until [ -e {go} ]; do sleep 0.05; done; seq 20000"
        job = nodes.sh("node0,node1", 2, trap, stdin=read)
        os.close(read)
        eventually(lambda: job.output.text.count("ready\n") == 2, "the ranks", 20)
        for daemon in nodes.daemons:
            daemon.kill()
        with os.fdopen(write, "wb") as feed:
            feed.write(data)
        eventually(lambda: hashlib.md5(data).hexdigest() in job.output.text, "rank 0 to have read all", 20)
        job.interrupt(signal.SIGUSR1)
        eventually(lambda: job.output.text.count("usr1\n") == 2, "the signal", 20)
        for daemon in nodes.daemons:
            daemon.start()
            check("\njobs    ftrun-node0-" in daemon.status()[1], daemon.status()[1])
        go.touch()
        ended(job, 0)
        check(sorted(job.output.text.split()).count("20000") == 2 and len(job.output.text.splitlines()) == 40005, job.output.text[-200:])
        for daemon in nodes.daemons:
            eventually(lambda: "\njobs    none\n" in daemon.status()[1], "no job in the status", 20)
        alone, job, victim = third_stands(context, nodes, mpi)
        nodes.daemons[1].kill()
        job.kill(victim)
        job.expect(0, alone.output)
        check(job.restored == [5], f"restored {job.restored}: {job.err}")
        for node in nodes.nodes:
            nodes.empty(node)


# Starts argv[1] with "slow" and the named variables alone, by a call that no library sees.
BARE = """
import ctypes, os, sys
program, *names = sys.argv[1:]
texts = lambda *all: (ctypes.c_char_p * (len(all) + 1))(*(text.encode() for text in all), None)
kept = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
ctypes.CDLL(None).syscall(59, ctypes.c_char_p(program.encode()), texts(program, "slow"), texts(*kept))
"""


@scenario("hosts-job-of-one", cluster=True)
def job_of_one(context):
    """A rank whose MPI was loaded without ftd's preload is no job of its own on a node without rank 0 either, where only a look at its
    processes can tell."""
    mpi = context.mpi("mpich5")
    with Nodes(context, 2) as nodes:
        program = nodes.cluster.program(mpi, "ending.c")
        bare = " ".join(["PATH", "HOME", *mpi.env])
        script = f"""[ $FT_RANK = 0 ] && exec sleep 20; exec /usr/bin/python3 -c '{BARE}' "$0" {bare}"""
        job = context.ftrun(mpi, 2, "bash", "-c", script, program, options=["--hosts", nodes.each_one()], on=nodes.nodes[0], env=ONE_CARD)
        status = job.wait(30)
        check(status not in (0, None) and job.output.results == [], f"exit status {status}: {job.output.text}{job.err}")
        check(re.search(r"^ftrun: rank 1 cannot be started: process \d+ .*job of its own", job.err, re.M), f"no sentence: {job.err}")


def nices(pid, named=None):
    """The nice values of a process's threads, or of those of a name."""
    found = set()
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        name, fields = (task / "comm").read_text().strip(), (task / "stat").read_text().rpartition(") ")[2].split()
        if named in (None, name):
            found.add(int(fields[16]))
    return found


def have_nice(nodes, raised, users, ranks):
    """On each of these nodes what the agent and the shepherds do at once has one nice value, and all of the ranks' another one."""
    for node in nodes:
        own = [pid for name in ("ft-agent", "ft-shepherd") for pid in node.named(name)]
        check(len(own) >= 2, f"{node.name} has neither agent nor shepherd")
        for pid in own:
            found = nices(pid, proc.name(pid))
            check(found == {raised}, f"{proc.name(pid)} on {node.name} has the nice value {found}, not {raised}")
        (agent,) = node.named("ft-agent")
        behind = nices(agent, "commits") | nices(agent, "tokio-rt-worker") | nices(agent, "tokio-runtime-w")
        check(behind <= {users}, f"what the agent on {node.name} does behind the ranks has the nice value {behind}, not {users}")
        others = [pid for pid in node.pids() if "FT_RANK" in proc.environ(pid)] + node.named("ft-pmix") + node.named("ft-ship")
        check(len(others) >= ranks, f"{node.name} has no ranks")
        for pid in others:
            check(nices(pid) == {users}, f"{proc.name(pid)} on {node.name} has the nice values {nices(pid)}, not {users}")


def datagrams(node):
    """How many a node has sent."""
    names, values = [line.split() for line in node.run("/bin/cat", "/proc/net/snmp")[1].splitlines() if line.startswith("Udp: ")]
    return int(values[names.index("OutDatagrams")])


def beats(nodes, *options):
    """How many datagrams each node of an idle job sends in a second."""
    job = nodes.sh(nodes.each_one(), 2, "echo up; exec sleep 1000", options=options)
    eventually(lambda: job.output.text.count("up") == 2, "the ranks", 20)
    time.sleep(0.5)
    before, began = [datagrams(node) for node in nodes.nodes], time.monotonic()
    time.sleep(2)
    sent = [datagrams(node) - count for node, count in zip(nodes.nodes, before)]
    found = [count / (time.monotonic() - began) for count in sent]
    job.interrupt(signal.SIGTERM)
    job.wait()
    return found


@scenario("hosts-heartbeat-period", cluster=True)
def heartbeat_period(context):
    """The agents of a job send heartbeats as often as --ft-heartbeat says, else as the node's ftd.toml does, and where that names a
    time-out alone five times in it; what lets no datagram be lost is refused."""
    with Nodes(context, 2, jobs='[jobs]\nheartbeat-timeout = "2s"\n') as nodes:
        # An answer is a datagram of its own, or part of the next heartbeat.
        often, seldom = (lambda found: min(found) > 30), (lambda found: 1 < min(found) and max(found) < 15)
        found = beats(nodes)
        check(seldom(found), f"a fifth of 2s: {found}")
        found = beats(nodes, "--ft-heartbeat=20ms,2s")
        check(often(found), f"20 ms by the option: {found}")
        for daemon in nodes.daemons:
            daemon.file.write_text(daemon.file.read_text() + 'heartbeat-period = "20ms"\n')
            daemon.process.kill(signal.SIGHUP)
            daemon.says("changed: jobs.heartbeat-period")
        found = beats(nodes)
        check(often(found), f"20 ms by the file: {found}")
        found = beats(nodes, "--ft-heartbeat=500ms,2s")
        check(seldom(found), f"500 ms by the option: {found}")
        status, _, err = nodes.short(nodes.each_one(), 2, "true", options=["--ft-heartbeat=100ms,399ms"])
        check(status == 2 and "at least four periods" in err, f"{status}: {err}")


@scenario("hosts-priority", cluster=True, timeout=120)
def priority(context):
    """Agents and shepherds of a job over several nodes have a priority above its ranks', also those that take the place of dead ones; the
    ranks, their descendants, ft-pmix and ft-ship have the priority that ftrun was started with, and cannot have more. So it is configured,
    and a reload changes it; a daemon that may not give it says so, and the job runs. On one machine nobody's is changed."""
    mpi = context.mpi("openmpi5")
    with Nodes(context, 2) as nodes:
        # A rank that is a shell, and what it starts.
        script = "(nice; renice -n -1 -p $$ 2>&1; ulimit -Se) > said.$FT_RANK; sleep 1000 & wait"
        job = context.start(["/bin/bash", "-c", f"renice -n 5 -p $$ > nice; exec ftrun -n 2 --hosts node0:1,node1:1 --ft=reinit /bin/bash -c '{script}'"], on=nodes.nodes[0])
        ready = lambda: all(len(node.named("sleep")) == 1 for node in nodes.nodes)
        eventually(ready, "the ranks", 20)
        have_nice(nodes.nodes, -10, 5, 2)
        for rank in range(2):
            said = (context.work / f"said.{rank}").read_text().split("\n")
            check(said[0] == "5" and "denied" in said[1] and said[2] == "0", f"rank {rank} says {said}")
        (victim,) = nodes.nodes[1].named("ft-agent")
        job.kill(victim)
        eventually(lambda: nodes.nodes[1].named("ft-agent") not in ([], [victim]) and ready(), "another agent", 20)
        job.wait_err("ftd: recovery, epoch", 1)
        have_nice(nodes.nodes, -10, 5, 2)
        job.interrupt(signal.SIGTERM)
        job.wait()
        # An MPI program with checkpoints.
        program = nodes.cluster.program(mpi, "places.c")
        gates = ["app.compute:3", *[f"agent.kept:{rank}:1:mark" for rank in range(4)]]
        job = context.ftrun(mpi, 4, program, options=["--hosts", "node0,node1"], on=nodes.nodes[0], gates=gates)
        job.on = nodes.nodes[1]
        job.at_gate("app.compute", 3)
        eventually(lambda: all(node.named("ft-ship") and node.named("ft-pmix") for node in nodes.nodes), "ft-ship", 20)
        have_nice(nodes.nodes, -10, 0, 4)
        job.go("app.compute", 3)
        job.expect(0)
        # Without, by a reload; and with a daemon that may not.
        one = nodes.daemons[1]
        one.file.write_text(one.file.read_text() + "[jobs]\nagent-nice = 0\n")
        one.process.kill(signal.SIGHUP)
        one.says("jobs.agent-nice")
        job = nodes.sh("node1", 1, "sleep 1000")
        eventually(lambda: nodes.nodes[1].named("sleep"), "the rank", 20)
        have_nice([nodes.nodes[1]], 0, 0, 1)
        job.interrupt(signal.SIGTERM)
        job.wait()
        nodes.daemons[0].kill()
        nodes.daemons[0].by = ["/bin/sh", "-c", 'renice -n 0 -p $$ > /dev/null; exec setpriv --bounding-set=-sys_nice "$@"', "-"]
        nodes.daemons[0].start()
        job = nodes.sh("node0", 1, "sleep 1000")
        eventually(lambda: nodes.nodes[0].named("sleep"), "the rank", 20)
        have_nice([nodes.nodes[0]], 0, 0, 1)
        check(nodes.daemons[0].said().count("the job's agent has no priority above its ranks") == 1, nodes.daemons[0].said())
        job.interrupt(signal.SIGTERM)
        job.wait()
        # On one machine.
        job = context.start(["/bin/bash", "-c", "renice -n 5 -p $$ > nice; exec ftrun -n 1 /bin/sh -c 'sleep 1000 & wait'"], on=nodes.nodes[0])
        eventually(lambda: nodes.nodes[0].named("sleep"), "the rank", 20)
        have_nice([nodes.nodes[0]], 5, 5, 1)
        job.interrupt(signal.SIGTERM)
        job.wait()


def processor(pid):
    """Seconds of processor that a process has had."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()) / 1e9


@scenario("hosts-small", cluster=True, timeout=90)
def small(context):
    """With one job running, `ftd` and the job's agent take less than 20 MB each on each node; what they take of a processor is printed."""
    with Nodes(context, 2) as nodes:
        job = nodes.sh("node0:2,node1:2", 4, "sleep 1000", ft="reinit")
        eventually(lambda: all(len(node.named("sleep")) == 2 for node in nodes.nodes), "the ranks", 20)
        pids = [(node.name, proc.name(pid), pid) for node in nodes.nodes for name in ("ftd", "ft-agent") for pid in node.named(name)]
        # By then shepherds and daemon ask as seldom as they do.
        time.sleep(5)
        before, began = [processor(pid) for _, _, pid in pids], time.monotonic()
        time.sleep(20)
        took = time.monotonic() - began
        for (node, name, pid), spent in zip(pids, before):
            resident = int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1])
            print(f"{node} {name}: {resident} kB resident, {100 * (processor(pid) - spent) / took:.3f} % of a processor")
            check(resident < 20_000, f"{name} on {node} takes {resident} kB")
        job.interrupt(signal.SIGTERM)
        job.wait()


def asked(node):
    """The members of etcd that a node has connections to, as often as it has one: those that nobody has closed."""
    rows = [line.split() for line in node.run("/bin/cat", "/proc/net/tcp")[1].splitlines()[1:]]
    return [row[2] for row in rows if row[2].endswith(f":{etcd.CLIENTS:04X}") and int(row[3], 16) == 1]


@scenario("hosts-one-etcd-connection", cluster=True, timeout=120)
def one_connection(context):
    """A node has one connection to etcd, with jobs that were started there, agents that ask for a recovery, and jobs that have ended; what
    is asked moments after a start has one of its own for some seconds. A member that stands still is left for another one."""
    mpi = context.mpi("mpich5")
    with Nodes(context, 2, members=3) as nodes:
        # For longer than one lasts that nobody needs. A member that is looked at has one for a moment.
        def settle(what, patience=30):
            until, since = time.monotonic() + patience, None
            while since is None or time.monotonic() < since + 3:
                found = [asked(node) for node in nodes.nodes]
                if [len(each) for each in found] != [1, 1]:
                    since = None
                    check(time.monotonic() < until, f"more than one connection, {what}: {found}")
                elif since is None:
                    since = time.monotonic()
                time.sleep(0.1)

        settle("without a job")
        other = nodes.sh("node0,node1", 2, "sleep 1000", ft="reinit")
        eventually(lambda: all(node.named("sleep") for node in nodes.nodes), "the ranks", 20)
        settle("with a job")
        alone, job, victim = third_stands(context, nodes, mpi)
        settle("with two jobs")
        # Load may have moved a node on to another one.
        cut, there = nodes.store.machines[0], lambda: {member for node in nodes.nodes for member in asked(node)}
        named = lambda machine: "".join(f"{int(part):02X}" for part in reversed(machine.address("store").split("."))) + f":{etcd.CLIENTS:04X}"
        for machine in nodes.store.machines:
            if named(machine) in there():
                cut = machine
        cut.cut("store")
        job.kill(victim)
        job.expect(0, alone.output)
        check(job.restored == [5], f"restored {job.restored}: {job.err}")
        settle("with a member less")
        check(named(cut) not in there(), f"a member that was cut off is asked still: {there()}")
        cut.heal("store")
        other.interrupt(signal.SIGTERM)
        ended(other, 143)
        settle("after the jobs")


@scenario("hosts-slow-reader", cluster=True, timeout=120)
def slow_reader(context):
    """A reader of ftrun's output that stands still for longer than any network does holds the job up, and does no more; the cut of
    all networks meanwhile is noticed all the same."""
    with Nodes(context, 2) as nodes:
        go = context.work / "go"
        script = (f"set -o pipefail; ftrun -n 1 --hosts node1 /bin/sh -c 'seq 4000000; echo end >&2' |"
                  f" {{ until [ -e {go} ]; do sleep 0.05; done; md5sum; }}")
        expected = hashlib.md5("".join(f"{n}\n" for n in range(1, 4000001)).encode()).hexdigest()
        for cut in (False, True):
            go.unlink(missing_ok=True)
            job = context.start(["/bin/bash", "-c", script], on=nodes.nodes[0])
            far = nodes.nodes[1]
            eventually(lambda: any("pipe_write" in proc.waits_in(pid) for pid in far.named("seq")), "the writer to wait", 20)
            if cut:
                for network in NETWORKS:
                    far.cut(network)
                nodes.empty(far, 40)
            else:
                # TCP gives a peer up after 15 s that takes nothing, by what the daemons tell it.
                time.sleep(20)
                check(job.process.poll() is None and far.named("seq"), f"the job has ended: {job.err}")
            go.touch()
            ended(job, 1 if cut else 0, *(["node node1: the link to the part of the job there broke"] if cut else ["end"]))
            check(cut or job.output.text.split() == [expected, "-"], job.output.text)


@scenario("hosts-last-words", cluster=True)
def last_words(context):
    """What a part has said before it ended, its status with it, comes through, also when an order meets it that can reach nobody any more."""
    with Nodes(context, 2) as nodes:
        go = context.work / "go"
        job = nodes.sh("node1", 1, f"echo ready; until [ -e {go} ]; do sleep 0.05; done; seq 5000; echo last; exit 7")
        eventually(lambda: job.output.text == "ready\n", "the rank", 20)
        link, far = served(nodes, 1), nodes.nodes[1]
        proc.freeze(link)
        go.touch()
        # It buries its child when it runs again.
        alive = lambda: [pid for pid in far.pids() if proc.alive(pid) and proc.uid(pid) == nodes.cluster.user.pw_uid]
        eventually(lambda: not alive(), "the part to end", 20)
        job.interrupt(signal.SIGUSR1)
        eventually(lambda: unread(far), "the order to lie before it", 20)
        os.kill(link, signal.SIGCONT)
        ended(job, 7, "rank 0")
        check(job.output.text.split() == ["ready", *(str(n) for n in range(1, 5001)), "last"], job.output.text[-200:])


def connections(node):
    """Those of the port of its daemon, or to another's: state (1 is established) and bytes that nobody has read."""
    rows = [line.split() for line in node.run("/bin/cat", "/proc/net/tcp")[1].splitlines()[1:]]
    return [(int(row[3], 16), int(row[4].split(":")[1], 16)) for row in rows if "2600" in (row[1][-4:], row[2][-4:])]


def unread(node):
    """Whether something lies before its daemon."""
    return any(state == 1 and bytes for state, bytes in connections(node))


@scenario("hosts-signal-at-start", cluster=True)
def signal_at_start(context):
    """A signal that ends the job before it has begun: 128 and the signal, one sentence, nothing is left; any other one changes nothing."""
    with Nodes(context, 2) as nodes:
        far = nodes.daemons[1].process.pid
        for number in (signal.SIGCONT, signal.SIGUSR1, signal.SIGTERM):
            proc.freeze(far)
            job = nodes.sh("node1", 1, "echo begun")
            eventually(lambda: any(state == 1 for state, _ in connections(nodes.nodes[0])), "the daemons to speak", 20)
            job.interrupt(number)
            if number == signal.SIGTERM:
                ended(job, 143, "ftrun: SIGTERM came before the job had begun")
            else:
                # It is taken, and nothing comes of it.
                eventually(lambda: not pending(job.launcher, number), "the signal to be read", 10)
            os.kill(far, signal.SIGCONT)
            if number != signal.SIGTERM:
                ended(job, 0)
                check((job.output.text, job.err) == ("begun\n", ""), f"{job.output.text}{job.err}")
            for node in nodes.nodes:
                nodes.empty(node)
            eventually(lambda: not any(state == 1 for state, _ in connections(nodes.nodes[0])), "the end of the links", 20)


def pending(pid, number):
    """Whether a process has not read a signal yet that was sent to it."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return any(int(mask, 16) >> (number - 1) & 1 for mask in re.findall(r"^S(?:hd|ig)Pnd:\s+(\w+)$", status, re.M))


@scenario("hosts-stands-still", cluster=True, timeout=120, each=[{"who": "daemon"}, {"who": "daemon-of-input"}, {"who": "part"}])
def stands_still(context, who):
    """Nobody waits for ever: a daemon that does not answer, whether something is to be told or not, and a part that does not say that it has ended, end ftrun with a sentence that says
    so; nothing is left when they run again."""
    with Nodes(context, 2) as nodes:
        if who.startswith("daemon"):
            feeder = subprocess.Popen(["cat", "/dev/zero"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            source = feeder.stdout if who == "daemon-of-input" else subprocess.DEVNULL
            job = nodes.sh("node1", 1, "echo ready; cat >/dev/null; exec sleep 600", stdin=source)
            feeder.stdout.close()
            eventually(lambda: job.output.text == "ready\n", "the rank", 20)
            still = [nodes.daemons[0].process.pid, *serving(nodes, 0)]
            proc.freeze(*still)
            ended(job, 1, "this node's ftd is gone and could not be reached again within 15 s (/run/ftd/ftd.sock: no answer within", patience=60)
            feeder.wait(10)
            for pid in still:
                os.kill(pid, signal.SIGCONT)
        else:
            go = context.work / "go"
            script = f"echo ready; [ $FT_RANK = 0 ] && {{ until [ -e {go} ]; do sleep 0.05; done; exit 7; }}; sleep 600"
            job = nodes.sh("node0,node1", 2, script, hurry=6)
            eventually(lambda: job.output.text.count("ready\n") == 2, "the ranks", 20)
            part = nodes.nodes[1].named("ftrun")
            proc.freeze(*part)
            go.touch()
            ended(job, 7, "node1 did not say in time that nothing is left of the job there")
            for pid in part:
                os.kill(pid, signal.SIGCONT)
        for node in nodes.nodes:
            nodes.empty(node)


LINKS = [{"who": who} for who in ("far", "far-survived", "far-goes-on", "user")]


@scenario("hosts-link-stands-still", cluster=True, timeout=150, each=LINKS)
def link_stands_still(context, who):
    """A process that serves a link and stands still for good is as good as dead, on either end: what ran behind it is ended while it stands still,
    with a sentence where anybody is left to say it, and with --ft=reinit the job goes on without that node. One that goes on in time ends
    nothing, and neither does a user who stops the job for longer."""
    with Nodes(context, 3) as nodes:
        survives = who == "far-survived"
        hosts, count = ("node0:1,node1:1,node2:1", 2) if survives else ("node0:1,node1:1", 2)
        job = nodes.sh(hosts, count, "echo ready; while :; do sleep 0.05; done", ft="reinit" if survives else "none")
        eventually(lambda: job.output.text.count("ready\n") == 2, "the ranks", 20)
        def goes_on():
            still = time.monotonic() + 8
            eventually(lambda: time.monotonic() > still or job.process.poll() is not None, "the job to go on", 20)
            check(job.process.poll() is None, f"the job has ended: {job.err}")
            job.interrupt(signal.SIGTERM)
            ended(job, 143)

        if who == "far-goes-on":
            # Long enough for others to be dialled in its place, which it finds when it goes on.
            frozen = served(nodes, 1)
            proc.freeze(frozen)
            time.sleep(8)
            os.kill(frozen, signal.SIGCONT)
            goes_on()
        elif who == "user":
            job.interrupt(signal.SIGTSTP)
            eventually(lambda: proc.stat(job.process.pid)[0] == "T", "the stop", 20)
            # Longer than anybody may be silent.
            time.sleep(25)
            # What the shell has just forked, and is stopped before it is a sleep, has its name.
            check("sh" in nodes.of_job(nodes.nodes[1]), "the user's stop has ended the job")
            job.interrupt(signal.SIGCONT)
            os.kill(job.process.pid, signal.SIGCONT)
            goes_on()
        else:
            frozen = served(nodes, 1)
            proc.freeze(frozen)
            broke = "node node1: the link to the part of the job there broke (the ftd there has not answered for 15 s)"
            if survives:
                eventually(lambda: broke in job.err, "a word on the link", 40)
                eventually(lambda: job.output.text.count("ready\n") == 4, "the ranks of the next world", 40)
            else:
                ended(job, 1, broke, patience=40)
            for node in nodes.nodes[:2] if who != "far-survived" else nodes.nodes[1:2]:
                eventually(lambda: "sh" not in nodes.of_job(node), f"{node.name} without ranks, with its link still frozen", 25)
            if survives:
                job.interrupt(signal.SIGTERM)
                ended(job, 143)
            check(proc.stat(frozen)[0] == "T", "it was continued")
            os.kill(frozen, signal.SIGCONT)
        for node in nodes.nodes:
            nodes.empty(node)


@scenario("hosts-user-stops", cluster=True)
def user_stops(context):
    """Whatever a user stops on a node is the user's: the daemon there answers others, and starts their jobs."""
    storm = ("import os, signal, time; end = time.monotonic() + 100\n"
             "while time.monotonic() < end:\n try: os.kill(-1, signal.SIGSTOP)\n except ProcessLookupError: pass\n")
    with Nodes(context, 2) as nodes:
        # What it stops by this is all that is the user's on that node: ftrun stands on the other one.
        stopper = nodes.nodes[1].start("/usr/bin/python3", "-c", storm, user=nodes.cluster.user)
        jobs = []
        for _ in range(4):
            # More at a time are not one user's. What stops them has a moment of some microseconds for it with each.
            jobs += (these := [nodes.sh("node1", 1, "true") for _ in range(15)])
            deadline = time.monotonic() + 3
            while any(job.process.poll() is None for job in these) and time.monotonic() < deadline:
                status, out, err = nodes.daemons[1].status()
                check(status == 0, f"the daemon stands still with what the user has stopped: {status} {out}{err}")
            for job in these:
                # Some were never stopped.
                with contextlib.suppress(ProcessLookupError):
                    job.interrupt(signal.SIGKILL)
        stopper.kill()
        for pid in nodes.nodes[1].pids():
            if proc.uid(pid) == nodes.cluster.user.pw_uid:
                # Some end with others.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for job in jobs:
            job.wait(20)


WHO = [{"who": who} for who in ("ftrun", "launcher", "ftrun-and-link", "ftd-for-good", "far-link", "part", "network")]


@scenario("hosts-deaths", cluster=True, each=WHO, timeout=90)
def deaths(context, who):
    """Whoever dies of ftrun, the processes that serve its connections and a part takes the job along on its node, in bounded time and with a sentence where anybody is left to
    say it; so does the cut of all networks."""
    with Nodes(context, 2) as nodes:
        # Daemons of the ranks, too.
        job = nodes.sh("node1", 2, "setsid sleep 600 & echo ready; sleep 601")
        eventually(lambda: job.output.text.count("ready\n") == 2, "the ranks", 20)
        eventually(lambda: nodes.of_job(nodes.nodes[1]).count("sleep") == 4, "the ranks' own processes", 20)
        far = nodes.nodes[1]
        match who:
            case "ftrun":
                os.kill(job.pid, signal.SIGKILL)
                ended(job, -9)
            case "launcher":
                os.kill(job.launcher, signal.SIGKILL)
                ended(job, 137, "the launcher of this job was killed by SIGKILL")
            case "ftrun-and-link":
                # Whoever could say that the job is over is gone: it is for who hears of nobody any more.
                proc.freeze(serves := near(nodes))
                os.kill(job.pid, signal.SIGKILL)
                ended(job, -9)
                os.kill(serves, signal.SIGKILL)
            case "ftd-for-good":
                proc.freeze(serves := near(nodes))
                nodes.daemons[0].kill()
                os.kill(serves, signal.SIGKILL)
                ended(job, 1, "ftrun: this node's ftd is gone and could not be reached again within 15 s (", "the job was ended on all nodes")
            case "far-link":
                os.kill(served(nodes, 1), signal.SIGKILL)
                ended(job, 1, "node node1: the link to the part of the job there broke")
            case "part":
                (first,) = [pid for pid in far.named("ftrun") if proc.name(proc.stat(pid)[1]) != "ftrun"]
                os.kill(first, signal.SIGKILL)
                ended(job, 1, "node node1: the link to the part of the job there broke")
            case "network":
                for network in NETWORKS:
                    far.cut(network)
                ended(job, 1, "node node1: the link to the part of the job there broke", patience=60)
        nodes.empty(far, 40 if who in ("network", "ftrun-and-link") else 10)
        nodes.empty(nodes.nodes[0])


@scenario("hosts-refused", cluster=True)
def refused(context):
    """What keeps a job from starting is one sentence that names the node, and nothing is started anywhere: no daemon, an unknown node, too few
    slots, no program, no directory, another build, root, no certificates."""
    with Nodes(context, 2) as nodes:
        def says(status, words, *arguments, **more):
            got, out, err = nodes.short(*arguments, **more)
            check(got == status and out == "" and words in err, f"{got}, '{out}', '{err}': not {status}, '{words}'")
            check(err.startswith("ftrun: ") and err.count("\n") == 1, f"not one sentence: {err}")

        says(1, "there is no node node7: no ftd has that name in etcd (/ftd/nodes/node7)", "node1,node7", 2, "true")
        says(2, "-n 4 needs as many slots, and the nodes have 3 (node0:1,node1:2)", "node0:1,node1:2", 4, "true")
        says(2, "--hosts: 'node0,,' is not a list of nodes", "node0,,", 4, "true")
        own = context.work / "own"
        own.write_text("#!/bin/sh\necho x\n")
        # On the first node alone.
        nodes.nodes[0].run("/bin/mkdir", "/run/deep")
        nodes.nodes[0].run("/bin/cp", "/bin/true", "/run/deep/program")
        says(127, "node node1: there is no program /run/deep/program", "node0,node1", 2, "/run/deep/program")
        says(126, f"node node1: {own} is not executable", "node1", 2, own)
        says(1, "node node1: --chdir: /run/deep: No such file", "node0,node1", 2, "true", options=["--chdir", "/run/deep"])
        there = ["/bin/sh", "-c", f"cd /run/deep && exec {context.prefix}/bin/ftrun -n 2 --hosts node1 true"]
        got = nodes.nodes[0].run(*there, user=nodes.cluster.user)
        check(got == (1, "", "ftrun: node node1: the working directory: /run/deep: No such file or directory (os error 2)\n"), f"{got}")
        many = context.work / "many"
        many.write_text("".join(f"n{number}\n" for number in range(5000)))
        ftrun = context.prefix / "bin" / "ftrun"
        hostfile = [ftrun, "-n", "1", "--hostfile", many, "true"]
        got = nodes.nodes[0].run(*hostfile, user=nodes.cluster.user)
        check(got == (1, "", "ftrun: a job has at most 4096 nodes, and 5000 are named: give each more ranks\n"), f"{got}")
        # A name that is typed again is as mpirun has it, and may be a slip: it is said. Batch systems' files have a line for each slot.
        again = "ftrun: --hosts names node1 more than once, which gives it 2 slots, as node1:2 does without this word\n"
        check(nodes.short("node1,node1", 2, "hostname") == (0, "node1\nnode1\n", again), nodes.short("node1,node1", 2, "hostname"))
        check(nodes.short("node1:2", 2, "hostname") == (0, "node1\nnode1\n", ""), "node1:2")
        many.write_text("node1\nnode1\n")
        got = nodes.nodes[0].run(ftrun, "-n", "2", "--hostfile", many, "hostname", user=nodes.cluster.user, env=context.env(None, {}))
        check(got == (0, "node1\nnode1\n", ""), f"{got}")
        far = nodes.nodes[1]
        far.run("/bin/sh", "-c", "echo maintenance until noon > /run/nologin")
        says(1, "node node1: users are not let in there now (/run/nologin: maintenance until noon)", "node1", 2, "true")
        far.run("/bin/rm", "/run/nologin")
        # What a site's administrator says, on this node alone.
        far.run("/bin/sh", "-c", "mkdir /run/pam && cp -r /etc/pam.d/. /run/pam && mount --bind /run/pam /etc/pam.d")
        far.run("/bin/sh", "-c", "echo 'account required pam_deny.so' > /etc/pam.d/ftd")
        says(1, "node node1: ftdtest may not start jobs there (/etc/pam.d/ftd: ", "node0,node1", 2, "true")
        far.run("/bin/sh", "-c", "echo 'account required pam_permit.so' > /etc/pam.d/ftd")
        check(nodes.short("node1", 1, "hostname") == (0, "node1\n", ""), "whom PAM lets in")
        # As the administrators' page has it: a group's members alone.
        (members,) = typed(context, "hosts-refused")
        far.run("/bin/sh", "-c", "cp /etc/group /run/group && echo hpc:x:4242: >> /run/group && mount --bind /run/group /etc/group")
        check(far.run("/bin/sh", "-c", members)[0] == 0, members)
        says(1, "node node1: ftdtest may not start jobs there (/etc/pam.d/ftd: ", "node0,node1", 2, "true")
        far.run("/bin/sh", "-c", "echo hpc:x:4242:ftdtest > /run/hpc && sed '/^hpc:/d' /etc/group > /run/others && cat /run/others /run/hpc > /etc/group")
        check(nodes.short("node1", 1, "hostname") == (0, "node1\n", ""), "a member of the group")
        says(1, "no ftd answers on /no/such: No such file", "node1", 2, "true", env={"FT_DAEMON": "/no/such"})
        status, out, err = nodes.nodes[0].run(ftrun, "-n", "1", "--hosts", "node1", "true")
        check((status, out) == (1, "") and err == "ftrun: root may not start jobs here (jobs.root in ftd.toml)\n", f"{status} {out}{err}")
        status, out, err = nodes.nodes[0].run(ftrun, "--part", "x", user=nodes.cluster.user)
        check(status == 1 and "--part is for ftd alone" in err, f"{status} {out}{err}")
        for node in nodes.nodes:
            nodes.empty(node)
    with Nodes(context, 2, peers=lambda node: "") as nodes:
        status, out, err = nodes.short("node1", 1, "true")
        words = "node node1 cannot be asked: this node's ftd has no certificates for that; set peers.ca-file"
        check(status == 1 and out == "" and words in err, f"{status} {out}{err}")
        # Nobody is to be asked.
        status, out, err = nodes.short("node0", 2, "hostname")
        check((status, out, err) == (0, "node0\nnode0\n", ""), f"{status} {out}{err}")


@scenario("hosts-etcd-away", cluster=True)
def etcd_away(context):
    """A job over other nodes that is started while etcd is away, in silence or with a refusal, is refused with one sentence that says so, and nothing
    is started anywhere; one of the own node asks nobody, and begins. When etcd is back all is as before."""
    with Nodes(context, 2) as nodes:
        (machine,) = nodes.store.machines

        def refused(why):
            status, out, err = nodes.short(nodes.each_one(), 2, "hostname")
            check((status, out, err.count("\n")) == (1, "", 1), f"{status} {out}{err}")
            for words in ("ftrun: node node1 cannot be looked up: the store was asked to ", " and did not answer within ", why,
                          "Does etcd run there with a majority of its members"):
                check(words in err, f"'{words}' is not in '{err}'")
            check(nodes.short("node0", 2, "hostname") == (0, "node0\nnode0\n", ""), "a job of the own node")
            for node in nodes.nodes:
                nodes.empty(node)

        machine.cut("store")
        refused("deadline has elapsed")
        nodes.store.kill(machine)
        machine.heal("store")
        refused("Connection refused")
        nodes.store.start(machine)
        nodes.store.wait()
        status, out, err = nodes.short(nodes.each_one(), 2, "hostname", options=["--ft=reinit"])
        check((status, sorted(out.split()), err) == (0, ["node0", "node1"], ""), f"{status} {out}{err}")


@scenario("hosts-etcd-leaves", cluster=True, timeout=90, each=[{"how": "back"}, {"how": "cancelled"}])
def etcd_leaves(context, how):
    """etcd is gone in the moment in which all parts of a job are there and nothing is written: the job says so and waits, with no rank; when etcd is back
    it begins, and who cancels it twice meanwhile has its end."""
    with Nodes(context, 2) as nodes:
        (machine,) = nodes.store.machines
        job = nodes.run(nodes.each_one(), 2, "hostname", ft="reinit", gates=["agent.complete"])
        eventually(job.gate_path("agent.complete").exists, "the first record", 20)
        nodes.store.kill(machine)
        job.go("agent.complete")
        eventually(lambda: "the store does not answer node" in job.err, "a word on the store", 30)
        check(job.running() and job.output.text == "", f"it does not wait: {job.output.text}{job.err}")
        if how == "back":
            nodes.store.start(machine)
            ended(job, 0)
            check(sorted(job.output.text.split()) == ["node0", "node1"], job.output.text)
        else:
            # The end, too, is written into etcd where that is possible: the time that ranks have is waited for, or the second signal.
            job.interrupt(signal.SIGTERM)
            eventually(lambda: "another signal kills them at once" in job.err, "a word on the time", 20)
            job.interrupt(signal.SIGTERM)
            ended(job, 143, "SIGTERM came again: everything was killed")
            check(job.output.text == "", job.output.text)
        for node in nodes.nodes:
            nodes.empty(node)


def stands_on(node, inside):
    """Whether an agent on this node has that pid there."""
    with contextlib.suppress(Failed):
        return node.outside(inside) in node.named("ft-agent")
    return False


@scenario("hosts-start-loses-node", cluster=True, timeout=90,
          each=[{"place": "agent.born", "how": "power-off"}, {"place": "agent.described", "how": "crash"}, {"place": "agent.complete", "how": "crash"}])
def start_loses_node(context, place, how):
    """A node dies before its agent has said a word, or as it is about to begin the job for all: a job that has slots enough without it begins on the
    others, in less than the minute that slow ones have, and says without whom."""
    with Nodes(context, 4) as nodes:
        for node in nodes.nodes:
            # What stands at a gate says the pid that it has on its node: the nodes' pids are to differ.
            for _ in range(20 * node.number):
                node.run("/bin/true")
        job = nodes.run("node1:1,node2:1,node3:1", 2, "hostname", ft="reinit", gates=[place])
        eventually(lambda: job.gate_path(place).exists() and job.gate_path(place).read_text().endswith("\n"), "an agent there", 20)
        (victim,) = [node for node in nodes.nodes if stands_on(node, int(job.gate_path(place).read_text()))]
        victim.power_off() if how == "power-off" else victim.crash()
        ended(job, 0, f"the job begins without node {victim.name}, which has not answered; it comes in as a spare when that changes\n", patience=40)
        others = [node for node in nodes.nodes[1:] if node is not victim]
        check(sorted(job.output.text.split()) == [node.name for node in others], job.output.text)
        for node in [nodes.nodes[0], *others]:
            nodes.empty(node)


@scenario("hosts-ends-without-etcd", cluster=True, timeout=120, each=[{"how": "gone"}, {"how": "silent"}, {"how": "back"}])
def ends_without_etcd(context, how):
    """All ranks end well while etcd is gone, or says nothing: the job waits for it for a while, says so, and ends with 0; when etcd is back in that time the
    end is written, and nothing said. Nothing of the job is left, and the next one runs."""
    with Nodes(context, 3) as nodes:
        (machine,) = nodes.store.machines
        go = context.work / "go"
        job = nodes.sh(nodes.each_one(), 3, f"echo ready; until [ -e {go} ]; do sleep 0.05; done; hostname", ft="reinit")
        eventually(lambda: job.output.text.count("ready\n") == 3, "the ranks", 20)
        machine.cut("store") if how == "silent" else nodes.store.kill(machine)
        go.touch()
        eventually(lambda: "the store does not answer node0; asking again" in job.err, "a word on the store", 30)
        check(job.running() and not any("sh" in nodes.of_job(node) for node in nodes.nodes), "it does not wait")
        if how == "back":
            nodes.store.start(machine)
        said = "the job has ended well, and that is not written down there"
        ended(job, 0, *([] if how == "back" else [said]), patience=60)
        check(how != "back" or said not in job.err, job.err)
        check(sorted(job.output.text.split()) == sorted(["ready"] * 3 + ["node0", "node1", "node2"]), job.output.text)
        for node in nodes.nodes:
            nodes.empty(node)
        machine.heal("store") if how == "silent" else how == "back" or nodes.store.start(machine)
        nodes.store.wait()
        eventually(lambda: nodes.short(nodes.each_one(), 3, "true", options=["--ft=reinit"])[0] == 0, "the next job", 30)


def fails_without_etcd(context, how):
    """A rank exits with an error, or a node dies, and etcd never comes back: all nodes of the job end after ten minutes, and not one after the other as
    they miss each other, with what the first one says."""
    with Nodes(context, 10) as nodes:
        (machine,) = nodes.store.machines
        job = nodes.sh(nodes.each_one(), 10, f"echo ready; [ $FT_RANK = 4 ] || sleep 3000; until [ -e {context.work}/go ]; do sleep 0.05; done; exit 3", ft="reinit")
        eventually(lambda: job.output.text.count("ready\n") == 10, "the ranks", 60)
        machine.cut("store")
        if how == "exits":
            (context.work / "go").touch()
        else:
            nodes.nodes[4].power_off()
        eventually(lambda: "the store does not answer" in job.err, "a word on the store", 60)
        ended(job, 3 if how == "exits" else 1, *([] if how == "exits" else ["the store has not answered for 600.0 s"]), patience=720)
        for node in nodes.nodes:
            how == "node" and node is nodes.nodes[4] or nodes.empty(node)


# Eleven minutes each.
if registry.soak:
    scenario("hosts-fails-without-etcd", cluster=True, timeout=1200, each=[{"how": "exits"}, {"how": "node"}])(fails_without_etcd)


@scenario("hosts-certificates", cluster=True)
def certificates(context):
    """Daemons speak with each other over TLS; a certificate of another CA, one for another name, and none at all are refused with a sentence at
    both ends, and nothing is started; a renewed certificate counts from the next job on."""
    pki = context.work / "pki"
    authority(pki, "site")
    authority(pki, "other")
    for name in ("node0", "node1", "node2"):
        certify(pki, "site", name)
    paths = lambda name, ca="site": f'ca-file = "{pki}/{ca}.pem"\ncert-file = "{pki}/{name}.pem"\nkey-file = "{pki}/{name}.key"\n'
    with Nodes(context, 3, peers=lambda node: paths(node.name)) as nodes:
        def refuses(*words):
            status, out, err = nodes.short("node1", 1, "hostname")
            check((status, out) == (1, ""), f"{status} {out}{err}")
            for word in ("ftrun: the ftd of node node1 cannot be reached (198.18.1.2:9728: ", *words):
                check(word in err, f"'{word}' is not in '{err}'")

        def works(host):
            got = nodes.short(host, 1, "hostname")
            check(got == (0, f"{host}\n", ""), f"{got}")

        for host in ("node1", "node0", "node2"):
            works(host)
        certify(pki, "other", "node1")
        refuses("invalid peer certificate: UnknownIssuer")
        certify(pki, "site", "node1", alternative="node9")
        refuses("certificate not valid for name")
        certify(pki, "site", "node1")
        works("node1")
        # The one that dials.
        certify(pki, "other", "node0")
        refuses()
        nodes.daemons[1].says("who dialled as another node's ftd was turned away", "invalid peer certificate")
        dial = ("import socket; s = socket.create_connection(('198.18.1.2', 9728), 5); s.sendall(b'ftdwire\\n' + bytes(8)); print(len(s.recv(100)))")
        nodes.nodes[2].run("/usr/bin/python3", "-c", dial)
        nodes.daemons[1].says("who dialled as another node's ftd was turned away", times=2)
        counted = lambda reason: nodes.daemons[1].number(f'ftd_peer_refused_total{{reason="{reason}"}}')
        eventually(lambda: counted("certificate") >= 2, "them to be counted", 20)
        # Who says nothing keeps nobody out.
        certify(pki, "site", "node0")
        crowd = ("import socket, sys, time; all = [socket.create_connection(('198.18.1.2', 9728), 5) for _ in range(1500)]; print('here', flush=True)\n"
                 "time.sleep(60)")
        silent = nodes.nodes[2].start("/usr/bin/python3", "-c", crowd, stdout=subprocess.PIPE, text=True)
        check(silent.process.stdout.readline() == "here\n", "the silent")
        works("node1")
        eventually(lambda: counted("limit") >= 1000, "the silent to be counted", 20)
        silent.kill()
        for node in nodes.nodes:
            nodes.empty(node)


@scenario("admin-certificates", cluster=True)
def certificates_of_the_page(context):
    """The certificates that the administrators' page has made with OpenSSL, for two nodes: their daemons take them, and a job runs over both."""
    pki = context.work / "pki"
    pki.mkdir()
    authority, *of_node = typed(context, "admin-certificates")

    def types(line):
        run = subprocess.run(["/bin/sh", "-c", line], cwd=pki, capture_output=True, text=True, timeout=30)
        check(run.returncode == 0, f"{line}: {run.stderr}")

    types(authority)
    for name in ("node0", "node1"):
        for line in of_node:
            types(line.replace("node1", name))
    keys = lambda node: f'ca-file = "{pki}/ca.pem"\ncert-file = "{pki}/{node.name}.pem"\nkey-file = "{pki}/{node.name}.key"\n'
    with Nodes(context, 2, peers=keys) as nodes:
        said = nodes.short("node0,node1", 4, "hostname")
        check((said[0], sorted(said[1].split()), said[2]) == (0, ["node0", "node0", "node1", "node1"], ""), f"{said}")
        for node in nodes.nodes:
            nodes.empty(node)


@scenario("hosts-two-nodes", cluster=True, timeout=120)
def two_nodes(context):
    """One job on two nodes: the ranks fill the nodes in order; all that they say comes once; one status and one reason; signals reach all; the
    death of ftrun ends it everywhere."""
    with Nodes(context, 2) as nodes:
        script = 'echo "$FT_RANK $(hostname) $FT_LOCAL_RANK $FT_SIZE"; [ $FT_RANK = 0 ] && cat; exit 0'
        feeder = subprocess.Popen(["echo", "for rank 0"], stdout=subprocess.PIPE)
        job = nodes.sh("node0:3,node1:2", 5, script, stdin=feeder.stdout)
        ended(job, 0)
        said = sorted(job.output.text.splitlines())
        check(said == ["0 node0 0 5", "1 node0 1 5", "2 node0 2 5", "3 node1 0 5", "4 node1 1 5", "for rank 0"], f"{said}")
        check(job.err == "", job.err)
        for node in nodes.nodes:
            nodes.empty(node)
        job = nodes.sh("node0,node1", 4, "[ $FT_RANK = 3 ] && { sleep 0.3; exit 7; }; echo ready; sleep 600")
        check(job.wait(30) == 7, f"{job.wait()}: {job.err}")
        check(job.err.count("rank 3") == 1, f"not one reason: {job.err}")
        job = nodes.sh("node0,node1", 4, "trap 'echo saved; exit 5' TERM; echo ready; while :; do sleep 0.05; done")
        eventually(lambda: job.output.text.count("ready\n") == 4, "the ranks", 20)
        job.interrupt(signal.SIGTERM)
        ended(job, 5)
        check(job.output.text.count("saved\n") == 4, job.output.text)
        # What a job needs of a node is for the ranks there, not for all.
        for daemon in nodes.daemons:
            resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (200, 200))
        job = nodes.sh("node0,node1", 20, "echo $FT_RANK")
        ended(job, 0)
        check(sorted(map(int, job.output.text.split())) == list(range(20)), job.output.text)
        job = nodes.sh("node0,node1", 4, "setsid sleep 600 & echo ready; sleep 601")
        eventually(lambda: job.output.text.count("ready\n") == 4, "the ranks", 20)
        os.kill(job.pid, signal.SIGKILL)
        ended(job, -9)
        for node in nodes.nodes:
            nodes.empty(node)


@scenario("hosts-mpi", cluster=True, timeout=120, each=[{"mpi": "openmpi4"}, {"mpi": "openmpi5"}, {"mpi": "mpich5"}])
def mpi_over_nodes(context, mpi):
    """An MPI program over two nodes computes what it does on one; with --ft=reinit it survives the death of a rank on the other node with its
    state, and the block is printed once."""
    mpi = context.mpi(mpi)
    with Nodes(context, 2) as nodes:
        program = nodes.cluster.program(mpi, "places.c")
        alone = context.ftrun(mpi, 4, program, ft="none", on=nodes.nodes[0])
        alone.expect(0)
        check(len(alone.output.results) == 1, alone.output.text)
        for ft in ("none", "reinit"):
            job = context.ftrun(mpi, 4, program, ft=ft, options=["--hosts", "node0,node1"], on=nodes.nodes[0],
                                gates=["app.compute:3"] if ft == "reinit" else [])
            if ft == "reinit":
                job.on = nodes.nodes[1]
                victim = job.at_gate("app.compute", 3)
                check(victim in nodes.nodes[1].pids(), "the rank is not on the node")
                job.kill(victim)
            job.expect(0, alone.output)
            check(job.restored == ([5] if ft == "reinit" else []), f"restored {job.restored}: {job.err}")
            check(job.err.count("ftd: recovery, epoch") == len(job.restored), job.err)
        for node in nodes.nodes:
            nodes.empty(node)


@scenario("hosts-published", cluster=True, timeout=120, each=[{"mpi": "openmpi4"}, {"mpi": "openmpi5"}, {"mpi": "mpich5"}])
def published(context, mpi):
    """Names that a rank publishes are found on all nodes, by whom they were published or not, once, until they are withdrawn. When a rank is
    killed while one is published, the next world does not find it, and may publish it again."""
    over_two_nodes(context, context.mpi(mpi), "publishes.c")


@scenario("hosts-accept", cluster=True, timeout=120, each=[{"mpi": "openmpi4"}, {"mpi": "openmpi5"}])
def accept(context, mpi):
    """A rank accepts at a port that it has published, and one of another node connects to it, in a world that follows on one in which a rank
    was killed while the port was published."""
    over_two_nodes(context, context.mpi(mpi), "publishes.c", "connect")


@scenario("hosts-events", cluster=True, timeout=120, each=[{"mpi": "openmpi4"}, {"mpi": "openmpi5"}])
def events(context, mpi):
    """PMIx events that a rank raises come to the ranks of all nodes that they are for, once, and what is for its node stays there; those of a
    world in which a rank is killed come to nobody of the next one."""
    over_two_nodes(context, context.mpi(mpi), "events.c")


def over_two_nodes(context, mpi, source, *arguments):
    """Runs a program over two nodes that judges by itself, and kills a rank of its first world on the second node."""
    with Nodes(context, 2) as nodes:
        program = nodes.cluster.program(mpi, source)
        job = context.ftrun(mpi, 4, program, *arguments, ft="reinit", options=["--hosts", "node0,node1"], on=nodes.nodes[0],
                            gates=["app.compute:3"])
        job.on = nodes.nodes[1]
        job.kill(job.at_gate("app.compute", 3))
        job.expect(0)
        check(job.output.text == "result right\n", job.output.text)
        check(job.restored == [None], f"restored {job.restored}: {job.err}")
        for node in nodes.nodes:
            nodes.empty(node)


SESSIONS = [{"mpi": mpi, "how": how} for mpi in ("openmpi5", "mpich5") for how in ("undisturbed", "killed")]


@scenario("hosts-sessions", cluster=True, timeout=120, each=SESSIONS)
def sessions(context, mpi, how):
    """MPI Sessions over two nodes: communicators of process sets, before a death and after it, add up what they do on one node."""
    mpi, killed = context.mpi(mpi), how == "killed"
    with Nodes(context, 2) as nodes:
        program = nodes.cluster.program(mpi, "sessions.c")
        alone = context.ftrun(mpi, 4, program, ft="none", on=nodes.nodes[0])
        alone.expect(0)
        check(alone.output.results == ["4016 8016"], alone.output.text)
        job = context.ftrun(mpi, 4, program, ft="reinit", options=["--hosts", "node0,node1"], on=nodes.nodes[0],
                            gates=["app.compute:3"] if killed else [])
        if killed:
            job.on = nodes.nodes[1]
            job.kill(job.at_gate("app.compute", 3))
        job.expect(0, alone.output)
        check(job.restored == ([None] if killed else []), f"restored {job.restored}: {job.err}")
        for node in nodes.nodes:
            nodes.empty(node)


# With two cards of which one is the store's, Open MPI would use both, and a cut of one is not what these scenarios are about.
ONE_CARD = {"OMPI_MCA_btl_tcp_if_include": "mpi", "FI_TCP_IFACE": "mpi"}


@scenario("hosts-cancel-after-loss", cluster=True, timeout=90)
def cancel_after_loss(context):
    """A job that has survived the loss of a node and is cancelled then ends as cancelled, and not for the node."""
    with Nodes(context, 3) as nodes:
        job = nodes.sh("node0:1,node1:1,node2:1", 2, "echo ready; sleep 600", ft="reinit")
        eventually(lambda: job.output.text.count("ready\n") == 2, "the ranks", 20)
        nodes.nodes[1].crash()
        eventually(lambda: job.output.text.count("ready\n") == 4, "the ranks of the next world", 40)
        job.interrupt(signal.SIGTERM)
        ended(job, 143, "node node1: the link to the part of the job there broke")
        for node in (nodes.nodes[0], nodes.nodes[2]):
            nodes.empty(node)


@scenario("hosts-one-network", cluster=True)
def one_network(context):
    """A cluster with one network, which is MPI's and the store's, has one address of each daemon for both."""
    with Nodes(context, 2, network="mpi") as nodes:
        check(nodes.short("node1", 1, "hostname") == (0, "node1\n", ""), "the other node")


# The first of eight nodes and this one do not observe each other (ftd-core's ring).
UNOBSERVED = 5


@scenario("hosts-cut-link", cluster=True, timeout=180, each=[{"mpi": "openmpi5"}, {"mpi": "mpich5"}] if registry.soak else [])
def cut_link(context, mpi):
    """The link between the agents of two nodes of eight is cut, of which neither observes the other, and a rank dies: the recovery, and all that
    MPI_Init tells there, goes through other nodes, nobody is taken for dead, and the result is that of the undisturbed run."""
    mpi = context.mpi(mpi)
    with Nodes(context, 8) as nodes:
        program = nodes.cluster.program(mpi, "places.c")
        alone = context.ftrun(mpi, 8, program, ft="none", on=nodes.nodes[0])
        alone.expect(0)
        # MPI itself goes over the other network: what a cut of its own link does to it is not ftd's.
        job = context.ftrun(mpi, 8, program, options=["--hosts", nodes.each_one()], on=nodes.nodes[0], gates=["app.compute:3"],
                            env={name: "store" for name in (*ONE_CARD, "UCX_NET_DEVICES", "MPICH_NETWORK_IFACE")})
        job.on = nodes.nodes[3]
        victim = job.at_gate("app.compute", 3)
        check(victim in nodes.nodes[3].pids(), "the rank is not on the node")
        one, other = nodes.nodes[0], nodes.nodes[UNOBSERVED]
        nodes.cluster.cut_link(one, other, "mpi")
        pairs = {(a.number, b.number) for a in nodes.nodes for b in nodes.nodes if a is not b}
        cut = {(one.number, other.number), (other.number, one.number)}
        check(nodes.cluster.arrives("mpi", pairs - cut) == pairs - cut, "another link is cut than the one that was meant")
        job.kill(victim)
        job.expect(0, alone.output)
        check(job.restored == [5] and "was silent" not in job.err, f"restored {job.restored}: {job.err}")
        check(nodes.cluster.arrives("mpi", pairs - cut) == pairs - cut, "the link was not cut all the time")
        for node in nodes.nodes:
            nodes.empty(node)
