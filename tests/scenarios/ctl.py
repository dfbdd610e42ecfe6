"""`ftctl`: a running job, seen and touched by its user."""

import json
import os
import pathlib
import pwd
import re
import signal
import subprocess
import time

import jsonschema

from harness import names, proc
from harness.cluster import Cluster
from harness.job import check
from harness.registry import scenario

from .binding import numbers
from .certificates import authority, certify
from .hosts import ONE_CARD, Nodes
from .node_daemon import preamble
from .processes import eventually

LAUNCHER = 4
# What ftctl asks the daemon for, by hand: a way to the agent of a job on a node; the first word of the answer.
ASKS = pathlib.Path(names.__file__).read_text() + """
import socket, sys
job, node = sys.argv[2:4]
body = pack({"Agent": {"job": job, "nodes": [node], "memory": b"/dev/shm"}})
dialled = socket.socket(socket.AF_UNIX)
dialled.connect("/run/ftd/ftd.sock")
dialled.sendall(bytes.fromhex(sys.argv[1]) + struct.pack("<II", len(body), 0) + body)
said = b""
while len(said) < 16 + 8 or len(said) < 24 + struct.unpack("<I", said[16:20])[0]:
    got = dialled.recv(4096)
    if not got:
        break
    said += got
said = unpack(said[24:])
print("HERE" if said == "Here" else "REFUSED " + said["Refused"]["sentence"] if "Refused" in said else said)
"""


class Ctl:
    """It, as the user of a scenario's jobs, or as others; `on`: on this node."""

    def __init__(self, context, on=None, user=None):
        self.context, self.on, self.user = context, on, user
        self.schema = json.loads((context.prefix / "share/doc/ftd/ftctl.schema.json").read_text())
        jsonschema.Draft202012Validator.check_schema(self.schema)

    def run(self, *words, status=0):
        """What it prints."""
        argv = [self.context.prefix / "bin" / "ftctl", *map(str, words)]
        env = self.context.env(None, {})
        if self.on is None:
            run = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=30)
            got, out, err = run.returncode, run.stdout, run.stderr
        else:
            got, out, err = self.on.run(*argv, user=self.user, env=env)
        check(got == status, f"ftctl {words}: {got}: {out}{err}")
        return out if status == 0 else err

    def valid(self, line):
        """An object that it has written."""
        found = json.loads(line)
        jsonschema.validate(found, self.schema, cls=jsonschema.Draft202012Validator)
        return found

    def json(self, *words):
        return self.valid(self.run("--json", *words))


def heat(context, *more, **options):
    mpi = context.mpi("mpich4")
    return context.ftrun(mpi, 3, context.program(mpi, "heat2d.c"), "-s", "2000", "-p", "20", "-c", "5", *more, **options)


def complete(ctl, least=1):
    """Waits until there is a version that is complete."""
    shown = lambda: next((job for job in ctl.json("jobs")["jobs"] if job["complete"] and job["complete"]["version"] >= least), None)
    return eventually(shown, "a complete version", 30)


def injected(events):
    """What is told of failures that were asked for, in the order of their times: what other nodes tell is heard up to a second later."""
    return [event["text"] for event in sorted(events, key=lambda event: event["time_ms"]) if event["event"] == "injected"]


@scenario("ctl-show")
def show(context):
    """A job's ranks, their pids and processors, its newest version with its age, and what checkpoints have cost, in tables and as the schema says;
    a job that has ended is not there."""
    ctl = Ctl(context)
    check(ctl.json("jobs") == {"jobs": []} and ctl.run("jobs") == "no jobs of this user run here\n", "a job before there is one")
    check("no job of this user runs here" in ctl.run("show", status=1), "show without a job")
    # To processors that are not all that there are, nor all the agent's.
    job = heat(context, options=["--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "core:overload-allowed"])
    complete(ctl)
    shown = ctl.json("show")
    check(shown["ftrun_pid"] == job.pid, f"{shown} is not the process that was started, {job.pid}")
    check((shown["ranks"], shown["mode"], shown["epoch"], shown["failures"], shown["failures_left"]) == (3, "reinit", 1, 0, 5), f"{shown}")
    ranks = {proc.environ(pid)["FT_RANK"]: pid for pid in proc.descendants(job.pid) if proc.name(pid).startswith("heat2d")}
    check({str(rank["rank"]): rank["pid"] for rank in shown["rank"]} == ranks, f"{shown['rank']} is not {ranks}")
    for rank in shown["rank"]:
        status = open(f"/proc/{rank['pid']}/status").read()
        check(f"Cpus_allowed_list:\t{rank['allowed_processors']}\n" in status, f"{rank}")
        check(rank["processor"] in numbers(rank["allowed_processors"]), f"{rank}")
        cost = rank["checkpoints"]
        check(cost["number"] > 0 and cost["bytes"] > cost["number"] * 1000 and cost["memory_bytes"] > 0, f"{rank}")
        check(cost["in_call_us"] >= cost["last_copy_us"] and cost["newest"] >= shown["complete"]["version"], f"{rank}")
    later = complete(ctl, shown["complete"]["version"] + 5)
    check(later["complete"]["age_ms"] < later["running_ms"], f"{later}")
    # No newer one comes while a rank stands still, and this one becomes older.
    os.kill(shown["rank"][1]["pid"], signal.SIGSTOP)
    still = lambda: (one := ctl.json("show")["complete"]) and one["version"] == (time.sleep(0.3) or ctl.json("show")["complete"]["version"]) and one
    before, begun = eventually(still, "no newer version", 20), time.monotonic()
    time.sleep(1)
    after, passed = ctl.json("show")["complete"], (time.monotonic() - begun) * 1000
    check(before["version"] == after["version"] and 1000 <= after["age_ms"] - before["age_ms"] <= passed + 1000, f"{before}, {after}")
    os.kill(shown["rank"][1]["pid"], signal.SIGCONT)
    for number, state in ((signal.SIGTSTP, "paused"), (signal.SIGCONT, "computing")):
        os.kill(job.pid, number)
        eventually(lambda: ctl.json("show")["state"] == state, f"the job {state}", 20)
    (agent,) = [pid for pid in proc.descendants(job.pid) if proc.name(pid) == "ft-agent"]
    os.kill(agent, signal.SIGSTOP)
    said = ctl.run("jobs", status=1)
    os.kill(agent, signal.SIGCONT)
    check("does not answer" in said, f"of a job whose agent stands still: {said}")
    table = ctl.run("show", str(shown["ftrun_pid"]))
    check(all(str(rank["pid"]) in table for rank in shown["rank"]) and "more in a row end the job" in table, table)
    check(shown["job"] in ctl.run("jobs"), "the table of jobs")
    for name in (shown["job"], shown["job"][:-3], shown["job"].split("-")[1], shown["rank"][1]["pid"]):
        check(ctl.json("show", str(name))["job"] == shown["job"], f"by {name}")
    said = ctl.run("show", f"x{shown['job']}", status=1)
    check(said.endswith(f"; did you mean {shown['job']}?\n"), said)
    cost, table = ctl.json("checkpoint-cost", shown["job"]), ctl.run("checkpoint-cost")
    check(len(cost["cost"]) == 3 and " ms" in table and table.splitlines()[-1].startswith("all "), table)
    for word in ("number", "bytes", "in_call_us"):
        check(cost["total"][word] == sum(rank["checkpoints"][word] for rank in cost["cost"]) > 0, f"{word}: {cost}")
    part = cost["total"]["in_call_us"] / 1000 / 3 / cost["running_ms"]
    check(abs(cost["total"]["of_the_time"] - part) < 1e-6 and cost["total"]["ranks"] == 3, f"{part}: {cost}")
    job.interrupt()
    job.wait()
    check(ctl.json("jobs") == {"jobs": []}, "a job that has ended")
    context.assert_clean()


@scenario("ctl-failures-left")
def failures_left(context):
    """How many more deaths in a row end the job: one under --ft=none, which survives none; else as many as --ft-max-failures says less those since
    the newest version, in the table, too."""
    ctl = Ctl(context)
    job = context.ftrun(None, 1, "sleep", "600", ft="none")
    shown = eventually(lambda: next((job for job in ctl.json("jobs")["jobs"] if job["state"] == "computing"), None), "the job", 20)
    check((shown["failures"], shown["failures_left"]) == (0, 1) and ctl.json("show")["failures_left"] == 1, f"{shown}")
    check("failures    0; 1 ends the job (--ft=none)\n" in ctl.run("show"), ctl.run("show"))
    job.kill(ctl.json("show")["rank"][0]["pid"])
    check(job.wait() != 0, "it survives")
    job = heat(context, "-s", "100000", options=["--ft-max-failures", "3"])
    complete(ctl)
    for turn in (1, 2):
        shown = ctl.json("show")
        job.kill(shown["rank"][1]["pid"])
        now = lambda: (one := ctl.json("show")) and one["state"] == "computing" and one["failures"] == turn and one
        shown = eventually(now, f"recovery {turn}", 30)
        # A newer version is complete: nothing is in a row any more.
        complete(ctl, shown["complete"]["version"] + 1)
        shown = ctl.json("show")
        check((shown["failures"], shown["failures_left"], shown["in_a_row"]) == (turn, 3, []), f"{shown}")
        check(f"failures    {turn}; 3 more in a row end the job (--ft-max-failures 3)\n" in ctl.run("show"), ctl.run("show"))
    job.interrupt()
    job.wait()
    context.assert_clean()


@scenario("ctl-inject")
def inject(context):
    """A rank is killed on request, at once, later, and at a place in the checkpoint library; the job goes on, what happened is told, as it happens,
    and counted; wrong requests are refused, and nobody dies of them."""
    ctl = Ctl(context)
    job = heat(context)
    first = complete(ctl)
    follower = subprocess.Popen(
        [context.prefix / "bin" / "ftctl", "--json", "events", "--follow"], stdout=subprocess.PIPE, text=True, env=context.env(None, {})
    )
    for what, word in [("rank=3", "there is no rank 3"), ("rank=x", "rank='x'"), ("rank=0,at=x", "is no place"), ("after=1s", "which rank?")]:
        check(word in ctl.run("inject", first["job"], what, status=1), what)
    for words, word in [([first["job"]], "which rank is to die?"), (["rank=1", "after=1s"], "'rank=1,after=1s' in one word")]:
        check(word in ctl.run("inject", *words, status=2), f"{words}")
    for turn, what in enumerate(["rank=2", "rank=1,after=100ms", "rank=0,at=client.copied", "rank=1,at=agent.restore"], 1):
        # The only job need not be named.
        said = ctl.json("inject", *([first["job"]] if turn > 1 else []), what)["noted"]
        check(said.startswith(f"rank {what[5]} dies "), said)
        if what.endswith("restore"):
            # It asks for its state only after another one has died.
            ctl.json("inject", first["job"], "rank=2")
        shown = lambda: (now := ctl.json("show"))["state"] == "computing" and now["failures"] >= turn and now
        now = eventually(shown, f"recovery {turn}, after {what}", 30)
        deaths = [past for past in now["past"] if f"rank {what[5]} " in past["what"] and "was killed by SIGKILL" in past["what"]]
        check(len(deaths) == (2 if what.endswith("restore") else 1), f"{what}: {now}")
        complete(ctl, (now["complete"]["version"] if now["complete"] else 0) + 5)
    # Between copy and commit: the version was not committed, and is restored by nobody.
    check(job.err.count("is to die at client.copied, as ftctl inject") == 1, job.err)
    job.interrupt()
    job.wait()
    events = [ctl.valid(line) for line in follower.communicate(timeout=10)[0].splitlines()]
    kinds = [event["event"] for event in events]
    check(kinds.count("injected") == 6 and kinds.count("recovered") >= 4 and kinds[-1] == "ended", f"{kinds}")
    check(any(event["version"] for event in events if event["event"] == "complete"), f"{kinds}")
    # Of what it was not known when that was told is told when it is.
    unknown = {rank for event in events for rank in re.findall(r"(rank \d) on node 0 died; of what is not known", event["text"])}
    causes = [event["text"] for event in events if event["event"] == "cause"]
    check(all(any(f"{rank} on node 0 was killed by SIGKILL" in text for text in causes) for rank in unknown), f"{unknown}: {causes}")
    # The record of the job's end is no epoch that anything happens in.
    check(events[-1]["epoch"] == events[-1]["world"] == max(event["epoch"] for event in events if event["event"] == "released"), f"{events[-1]}")
    context.assert_clean()


@scenario("ctl-inject-agent")
def inject_agent(context):
    """What was asked for and has not come about outlives the agent, and what has happened as well: a rank that is to die later does, and one that is to
    die at a place, each once; `show` names them until then, `events` tells of what was before, and what is said once the next agent does not say."""
    ctl = Ctl(context)
    job = heat(context, "-s", "100000", options=["--ft-mpi", "openmpi"])
    first = complete(ctl)
    waiting = lambda: sorted((one["rank"], one["at"]) for one in ctl.json("show")["injections"])
    check(waiting() == [], "before any is asked for")
    for what in ("rank=1,after=5s", "rank=0,at=agent.restore", "rank=2,at=client.restoring"):
        ctl.json("inject", first["job"], what)
    job.wait_err("rank 0 is to die at agent.restore", 1)
    asked = [(0, "agent.restore"), (1, None), (2, "client.restoring")]
    table = ctl.run("show")
    check(waiting() == asked and re.search(r"^injections  rank . is to die ", table, re.M) and "rank 2 is to die when it comes to client.restoring next\n" in table, table)
    past = lambda: [(event["time_ms"], event["event"], event["text"]) for event in map(ctl.valid, ctl.run("--json", "events").splitlines())]
    before = past()
    check([kind for _, kind, _ in before].count("released") == 1, f"{before}")
    job.kill(first["agent_pid"])
    job.wait_err("the agent died", 1)
    after = eventually(lambda: (now := past()) and len(now) > len(before) and now, "events of the next agent", 20)
    check(after[: len(before)] == before, f"{after} does not begin with {before}")
    for rank in range(2):
        job.wait_err(rf"(?m)^ftd: rank {rank} \(process \d+\) is killed, as ftctl inject \(user \d+\) has asked$", 1, 40)
    eventually(lambda: (now := ctl.json("show"))["state"] == "computing" and now["failures"] >= 2 and now["injections"] == [], "the recovery from all of them", 30)
    check(job.err.count("--ft-mpi=openmpi (FT_MPI) is wrong") == 1, job.err)
    check(job.err.count("is to die at") == 2 and len(re.findall(r"^ftd: rank \d \(process", job.err, re.M)) == 2, job.err)
    job.interrupt()
    job.wait()
    context.assert_clean()


@scenario("ctl-ftrun-inject")
def ftrun_inject(context):
    """`ftrun --ft-inject`: the rank dies so long after the ranks have begun, and the result is the undisturbed one."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "heat2d.c")
    words = ["-s", "60", "-p", "10", "-c", "5"]
    reference = context.reference(mpi, 3, program, *words)
    job = context.ftrun(mpi, 3, program, *words, options=["--ft-inject=rank=1,after=200ms", "--ft-inject", "rank=2,at=client.committed"])
    job.expect(0, reference)
    check(job.err.count("as --ft-inject has asked") == 2 and job.err.count("ftd: recovery") in (1, 2), job.err)
    check("rank 1 on node 0 was killed by SIGKILL" in job.err and "rank 2 on node 0 was killed by SIGKILL" in job.err, job.err)
    context.assert_clean()


PLACES = ["client.copying", "client.copied", "client.committed", "client.restoring", "agent.restore", "agent.finalized", "agent.fence", "agent.noticed",
          "agent.released"]


@scenario("inject-at", each=[{"place": place} for place in PLACES])
def inject_at(context, place):
    """`--ft-inject` with each place: the rank dies there, once, and the result is the undisturbed one. (Another rank dies as well, with a checkpoint,
    for the places in a recovery.)"""
    mpi, ctl = context.mpi("mpich4"), Ctl(context)
    program = context.program(mpi, "heat2d.c")
    words = ["-s", "200", "-p", "10", "-c", "5"]
    reference = context.reference(mpi, 3, program, *words)
    job = context.ftrun(mpi, 3, program, *words, options=["--ft-inject", f"rank=1,at={place}"])
    complete(ctl)
    ctl.run("inject", ctl.json("show")["job"], "rank=0")
    job.expect(0, reference)
    # In the library it is the rank itself that does it.
    killed = re.findall(r"rank 1 \(process \d+\) is killed, as --ft-inject has asked", job.err)
    check(len(killed) == (0 if place.startswith("client.") else 1) and "rank 1 on node 0 was killed by SIGKILL" in job.err, job.err)
    check(job.err.count(f"rank 1 is to die at {place}, as --ft-inject has asked") == 1, job.err)
    context.assert_clean()


@scenario("ctl-other-user", cluster=True)
def other_user(context):
    """Another user sees no job, and touches none by its name, its ftrun's number or its socket; root sees it."""
    with Cluster(context, 1) as cluster:
        node, owner, other = cluster.nodes[0], cluster.user, pwd.getpwnam("nobody")
        job = context.ftrun(None, 1, "sleep", "600", on=node)
        own = Ctl(context, node, owner)
        (shown,) = eventually(lambda: own.json("jobs")["jobs"], "the job", 20)
        name, pid = shown["job"], eventually(lambda: own.json("show")["rank"][0]["pid"], "the rank", 20)
        others = Ctl(context, node, other)
        check(others.json("jobs") == {"jobs": []} and others.run("jobs") == "no jobs of this user run here\n", "another user sees jobs")
        for words in (["show"], ["show", name], ["events", name, "--follow"], ["checkpoint-cost", shown["ftrun_pid"]], ["inject", name, "rank=0"]):
            said = others.run(*words, status=1)
            check(re.fullmatch(r"ftctl: no job (\S+ )?of this user runs here.*\n", said), f"{words}: {said}")
        # Whoever knows the name may not dial, either; nor does he make root believe that a job is the other one's.
        shm = node.run("/bin/ls", "/dev/shm")[1].split()
        (place,) = [word for word in shm if word.startswith("ftd-") and not word.endswith(".lock")]
        dial = f"import socket; socket.socket(socket.AF_UNIX).connect('/dev/shm/{place}/agent.sock')"
        status, _, err = node.run("/usr/bin/python3", "-c", dial, user=owner)
        check(status == 0, err)
        status, _, err = node.run("/usr/bin/python3", "-c", dial, user=other)
        check(status == 1 and "PermissionError" in err, err)
        status, _, err = node.run("/bin/mkdir", f"/dev/shm/ftd-{owner.pw_uid}-1-false", user=other)
        check(status == 0, err)
        for one in (Ctl(context, node), own):
            (seen,) = one.json("jobs")["jobs"]
            check((seen["job"], seen["user"]) == (name, owner.pw_uid), f"{seen}")
        node.run("/bin/rmdir", f"/dev/shm/ftd-{owner.pw_uid}-1-false")
        check(own.json("show")["rank"][0]["pid"] == pid, "the rank has died")
        job.interrupt()
        job.wait()


@scenario("ctl-over-nodes", cluster=True, timeout=120)
def over_nodes(context):
    """Any node of a job over several shows all of it, a spare one as well: the pids that its ranks have on their nodes, with their processors,
    and their checkpoints; has a rank of another one die; and tells what was said there. At the end each node says what it cost."""
    mpi = context.mpi("mpich5")
    with Nodes(context, 3) as nodes:
        program = nodes.cluster.program(mpi, "heat2d.c")
        job = context.ftrun(mpi, 4, program, "-s", "100000", "-p", "20", "-c", "5", on=nodes.nodes[0], env=ONE_CARD,
                            options=["--hosts", "node0:2,node1:2,node2:2", "--ft-spares", "1"])
        each = [Ctl(context, node, nodes.cluster.user) for node in nodes.nodes]
        complete(each[0])
        follower = nodes.nodes[0].start(context.prefix / "bin" / "ftctl", "--json", "events", "--follow", user=nodes.cluster.user,
                                        env=context.env(None, {}), stdout=subprocess.PIPE, text=True)
        shown = [ctl.json("show") for ctl in each]
        check([one["node"] for one in shown] == ["node0", "node1", "node2"], f"{shown}")
        for one in shown:
            places = [(rank["rank"], rank["node"]) for rank in one["rank"]]
            check(places == [(0, "node0"), (1, "node0"), (2, "node1"), (3, "node1")] and one["silent_nodes"] == [], f"{one}")
            for rank, first in zip(one["rank"], shown[0]["rank"]):
                check(rank["pid"] and (rank["pid"], rank["allowed_processors"]) == (first["pid"], first["allowed_processors"]), f"{one}")
                check(rank["processor"] is not None and rank["checkpoints"]["number"] > 0, f"{one}")
            check(one["complete"] and one["copies_bytes"] > 0, f"{one}")
        for rank in shown[2]["rank"]:
            node = nodes.nodes[int(rank["node"][4:])]
            environ = node.run("/bin/cat", f"/proc/{rank['pid']}/environ", user=nodes.cluster.user)[1].split("\0")
            check(f"FT_RANK={rank['rank']}" in environ, f"process {rank['pid']} of {node.name} is not rank {rank['rank']}")
        check(all(len(ctl.json("checkpoint-cost")["cost"]) == 4 and "silent" not in ctl.run("show") for ctl in each), "what it costs")
        for turn, (ctl, rank, node) in enumerate([(each[0], 3, "node1"), (each[2], 1, "node0")], 1):
            check(ctl.json("inject", shown[0]["job"], f"rank={rank}")["noted"] == f"rank {rank} dies now", f"rank {rank}")
            eventually(lambda: all(now["failures"] == turn and now["state"] == "computing" for now in (c.json("show") for c in each)),
                       f"recovery {turn}", 40)
            complete(each[0], (each[0].json("show")["complete"] or {"version": 0})["version"] + 5)
        each[0].json("inject", shown[0]["job"], "rank=3,after=1h")
        waits = lambda ctl: [(one["rank"], one["at"]) for one in ctl.json("show")["injections"]]
        check([waits(ctl) for ctl in each] == [[(3, None)]] * 3, "each node names what is to come on node1")
        check("no rank 4" in each[2].run("inject", shown[0]["job"], "rank=4", status=1), "a rank that there is not")
        for ctl in each:
            said = injected(map(ctl.valid, ctl.run("--json", "events").splitlines()))
            check(len(said) == 2 and said[0].startswith("rank 3 (process") and said[1].startswith("rank 1 (process"), f"{said}")
        job.interrupt()
        job.wait(40)
        followed = [each[0].valid(line) for line in follower.process.communicate(timeout=20)[0].splitlines()]
        said = [text[:6] for text in injected(followed)]
        check(said == ["rank 3", "rank 1"] and followed[-1]["event"] == "ended", f"{followed}")
        for node in nodes.nodes:
            nodes.empty(node)


@scenario("ctl-elsewhere", cluster=True, timeout=150)
def elsewhere(context):
    """A node that is not in a job shows it as its own nodes do, through its ftd and those of the job's nodes, which speak TLS: `jobs`, `show`,
    `checkpoint-cost`, `events --follow`, and `inject`, for its user and for root; another user sees and touches nothing there, either. Where
    the ftd there is down, or that of the job's node does not answer, a sentence says what to do."""
    mpi, pki = context.mpi("mpich5"), context.work / "pki"
    authority(pki, "site")
    for number in range(4):
        certify(pki, "site", f"node{number}")
    paths = lambda node: "".join(f'{key}-file = "{pki}/{name}"\n' for key, name in
                                 (("ca", "site.pem"), ("cert", f"{node.name}.pem"), ("key", f"{node.name}.key")))
    with Nodes(context, 4, peers=paths) as nodes:
        owner, other, outside = nodes.cluster.user, pwd.getpwnam("nobody"), nodes.nodes[3]
        own, root, others = (Ctl(context, outside, user) for user in (owner, None, other))
        for ctl in (own, root, others):
            check(ctl.json("jobs") == {"jobs": []}, "a job before there is one")
        said = own.run("show", status=1)
        check(said == "ftctl: no job of this user runs here, nor, as ftd says, on another node\n", said)
        program = nodes.cluster.program(mpi, "heat2d.c")
        job = context.ftrun(mpi, 4, program, "-s", "100000", "-p", "20", "-c", "5", on=nodes.nodes[2], env=ONE_CARD,
                            options=["--hosts", "node0:2,node1:2"])
        inside = Ctl(context, nodes.nodes[0], owner)
        complete(inside)
        there = inside.json("show")
        name = there["job"]
        follower = outside.start(context.prefix / "bin" / "ftctl", "--json", "events", "--follow", user=owner, env=context.env(None, {}),
                                 stdout=subprocess.PIPE, text=True)
        for ctl in (own, root):
            (seen,) = ctl.json("jobs")["jobs"]
            check((seen["job"], seen["user"], seen["ranks"]) == (name, owner.pw_uid, 4), f"{seen}")
            check(name in ctl.run("jobs"), "the table of jobs")
            shown = ctl.json("show", name)
            pids = lambda one: [(rank["rank"], rank["node"], rank["pid"]) for rank in one["rank"]]
            check(pids(shown) == pids(there) and shown["complete"]["version"] >= there["complete"]["version"], f"{shown} is not {there}")
            check(all(rank["pid"] and rank["checkpoints"]["number"] > 0 for rank in shown["rank"]) and shown["silent_nodes"] == [], f"{shown}")
            check(all(str(rank["pid"]) in ctl.run("show", name) for rank in shown["rank"]), "the table of ranks")
            check(len(ctl.json("checkpoint-cost", name)["cost"]) == 4 and " ms" in ctl.run("checkpoint-cost"), "what it costs")
        # By the number of its ftrun where that was started, and on no other node.
        starter = Ctl(context, nodes.nodes[2], owner)
        number = starter.json("jobs")["jobs"][0]["ftrun_pid"]
        words = nodes.nodes[2].run("/bin/cat", f"/proc/{number}/cmdline", user=owner)[1].split("\0")
        check("--hosts" in words and starter.json("show", number)["job"] == name, f"{number}: {words}")
        check(number == shown["ftrun_pid"] or "no job" in own.run("show", number, status=1), "a process of another node")
        # Nobody else, by no name, and not where the job runs, either.
        for words in (["show"], ["show", name], ["events", name, "--follow"], ["checkpoint-cost", name], ["inject", name, "rank=0"]):
            said = others.run(*words, status=1)
            check(re.fullmatch(r"ftctl: no job (\S+ )?of this user runs here.*\n", said), f"{words}: {said}")
        check(others.json("jobs") == {"jobs": []} and others.run("jobs") == "no jobs of this user run here\n", "another user sees jobs")
        # Whoever knows the name, and asks ftd for the way himself.
        check("REFUSED no job" in outside.run("/usr/bin/python3", "-c", ASKS, preamble(role=LAUNCHER).hex(), name, "node0", user=other)[1], "another user finds a way")
        check("HERE" in outside.run("/usr/bin/python3", "-c", ASKS, preamble(role=LAUNCHER).hex(), name, "node0", user=owner)[1], "its user finds none")
        for turn, (ctl, rank) in enumerate([(own, 3), (root, 0)], 1):
            check(ctl.json("inject", name, f"rank={rank}")["noted"] == f"rank {rank} dies now", f"rank {rank}")
            eventually(lambda: (now := own.json("show"))["failures"] == turn and now["state"] == "computing", f"recovery {turn}", 40)
            complete(own, (own.json("show")["complete"] or {"version": 0})["version"] + 5)
        check("there is no rank 4" in own.run("inject", name, "rank=4", status=1), "a rank that there is not")
        said = injected(map(own.valid, own.run("--json", "events").splitlines()))
        # The agent is asked by a process of who asks.
        check(len(said) == 2 and all(f"(user {user.pw_uid if user else 0})" in text for text, user in zip(said, (owner, None))), f"{said}")
        # A daemon that is down: here nobody can be asked, on the job's node nobody answers, and what is known otherwise is told.
        nodes.daemons[0].kill()
        (seen,) = own.json("jobs")["jobs"]
        check(seen["job"] == name and own.json("show", name)["job"] == name, f"{seen}")
        nodes.daemons[1].kill()
        said = own.run("show", name, status=1)
        check(re.search(r"and the ftd of node[01], node[01] does not answer: .* is not known; look there with ftd status\n$", said), said)
        nodes.daemons[3].kill()
        said = own.run("show", name, status=1)
        words = r"ftctl: no job \S+ of this user runs here, and no ftd answers on /run/ftd/ftd.sock \(FT_DAEMON\) to ask for " \
                r"those of other nodes: Connection refused.*; start it \(systemctl start ftd\), or ask on a node where the job runs\n"
        check(re.fullmatch(words, said), said)
        check(own.json("jobs") == {"jobs": []} and inside.json("show")["job"] == name, "without an ftd")
        nodes.daemons = [daemon.start() if number != 2 else daemon for number, daemon in enumerate(nodes.daemons)]
        job.interrupt()
        job.wait(40)
        followed = [own.valid(line) for line in follower.process.communicate(timeout=20)[0].splitlines()]
        said = [text[:6] for text in injected(followed)]
        check(said == ["rank 3", "rank 0"] and followed[-1]["event"] == "ended", f"{followed}")
        for node in nodes.nodes:
            nodes.empty(node)
        check(own.json("jobs") == {"jobs": []}, "a job that has ended")
