"""What a failure cost: in the recovery's block, at the job's end, and before there is one, of a job that nothing protects."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time

from harness import proc
from harness.job import check
from harness.registry import scenario

from .copies import kept, wait_kept
from .ctl import Ctl, complete, heat
from .hosts import ONE_CARD, Nodes, ended
from .output import printed, until
from .processes import eventually
from .slurm_steps import Steps


class Bill:
    """What blocks, the summary and `ftctl` say of one job: the same."""

    def __init__(self, err):
        self.blocks = re.findall(r"^ftd: recovery, epoch (\d+), .*\n((?:ftd:   .*\n)*)", err, re.M)
        self.summary = re.findall(r"^ftd: summary   (.*)$", err, re.M)
        self.err = err

    def find(self, pattern):
        """Of each block what matches in it."""
        found = [re.search(pattern, text, re.M) for _, text in self.blocks]
        check(self.blocks and all(found), f"not in each block: {pattern}: {self.err}")
        return [match[1] for match in found]

    def agrees(self, failures, known=True, sums=True):
        """There were so many failures; where all that was lost is `known`, its sum is the summary's, and with `sums` each block says its part."""
        numbers = [int(number) for number in self.find(r"^ftd:   count     failure (\d+) of this job")]
        check(numbers == [int(epoch) - 1 for epoch, _ in self.blocks] and numbers[-1] == failures, self.err)
        words = f"{failures} failures were" if failures > 1 else "1 failure was"
        # Each node adds a line of its own, whenever it is ready.
        (line,) = [line for line in self.summary if "survived" in line]
        said = re.fullmatch(rf"{words} survived; lost: (at least |an unknown time of computing and )?(?:([\d.]+) s of computing and )?([\d.]+) s of recovering", line)
        check(said and (bool(said[2]) and not said[1]) == known, f"{self.summary}")
        took = [float(ms) / 1000 for ms in self.find(r"^ftd:   took      ([\d.]+) ms")]
        # Each number is rounded.
        near = lambda one, other: abs(one - other) <= 0.06 * (len(self.blocks) + 1)
        check(near(float(said[3]), sum(took)), f"{said[3]} s of recovering are not {took}: {self.err}")
        if known and sums:
            lost = [float(seconds) for seconds in self.find(r"^ftd:   lost      ([\d.]+) s of computing")]
            check(near(float(said[2]), sum(lost)), f"{said[2]} s of computing are not {lost}: {self.err}")
            return lost
        return None


@scenario("what-it-cost", each=[{"how": how} for how in ("version", "beginning", "nothing", "not-survived")])
def what_it_cost(context, how):
    """The block says when and where it was, which process died, what was lost and which failure it was; the job says at its end what it
    cost in all, where nothing has failed, or nothing was survived, only when it is asked."""
    if how == "not-survived":
        ended = r"no failure was survived: the first one ended the job after (0\.[3-9]|[1-9]\d*\.\d) s of computing"
        for script, said in (("sleep 0.5; kill -SEGV $$", ended), ("exit 3", "no failure")):
            for options in (["--ft-summary"], []):
                job = context.ftrun(None, 1, "bash", "-c", script, options=options, ft="none")
                check(job.wait() != 0, job.err)
                summary = re.findall(r"^ftd: summary   (.*)$", job.err, re.M)
                check(re.fullmatch(said, summary[0]) if options else not summary, job.err)
        return
    mpi, size = context.mpi("openmpi4"), 3
    every = 0 if how == "beginning" else 4
    command = [context.program(mpi, "lines.c"), "12", str(every), "p"]
    if how == "nothing":
        summary = ["no failure", r"9 checkpoints of 3 ranks, \d+ B: \d+\.\d s in ft_checkpoint at most; \d+\.\d [KM]iB of memory"]
        none = ["ftd: the program runs under --ft=none: its checkpoints protect nothing", "no failure", "no checkpoint of the API: with --ft=none none is kept"]
        for options, lines, ft in (([], [], "reinit"), (["--ft-summary"], summary, "reinit"), (["--ft-summary"], none, "none")):
            job = context.ftrun(mpi, size, *command, options=options, ft=ft)
            job.expect(0)
            said = [line.removeprefix("ftd: summary   ") for line in job.err.splitlines()]
            check(len(said) == len(lines) and all(map(re.fullmatch, lines, said)), job.err)
        return
    job = context.ftrun(mpi, size, *command, env={"LINES_AT": "10"}, gates=["app.step:1"])
    begun, victim = time.time(), job.at_gate("app.step", 1)
    until(lambda: all(10 in printed(job.output.text, rank) for rank in range(size)), "step 10 is not printed")
    time.sleep(1.2)
    job.kill(victim)
    job.expect(0)
    block = job.err[job.err.index("ftd: recovery") :]
    when = re.search(r"^ftd:   when      ([\d-]+ [\d:]+), on (\S+); process (\d+) was rank 1", block, re.M)
    check(when and (when[2], int(when[3])) == (socket.gethostname(), victim), block)
    # strptime would be loaded only now, and may not be readable.
    at = time.mktime((*map(int, re.split("[- :]", when[1])), 0, 0, -1))
    check(begun - 1 <= at <= time.time() + 1, f"{when[1]}: {block}")
    lost = re.search(r"^ftd:   lost      ([\d.]+) s of computing(.*)$", block, re.M)
    behind = ": all of it" if how == "beginning" else ", since version 8 was complete"
    check(lost and float(lost[1]) >= 0.5 and lost[2] == behind, block)
    check(re.search(r"^ftd:   count     failure \d of this job; \d in a row without progress of rank 1, of 5 \(--ft-max-failures\)$", block, re.M), block)
    check("begun anew" not in block, block)
    summary = re.findall(r"^ftd: summary   (.*)$", job.err, re.M)
    check(len(summary) == 2 and re.fullmatch(r"1 failure was survived; lost: [\d.]+ s of computing and [\d.]+ s of recovering", summary[0]), job.err)
    check(summary[1].startswith("no checkpoint of the API" if how == "beginning" else "9 checkpoints of 3 ranks, "), job.err)


@scenario("what-it-cost-over-nodes", cluster=True, timeout=90)
def over_nodes(context):
    """Over nodes the block says the same of a rank that has died on another node than the one that speaks, with its number there; the summary
    comes once, and of checkpoints from each node."""
    mpi = context.mpi("mpich5")
    with Nodes(context, 2) as nodes:
        program = nodes.cluster.program(mpi, "lines.c")
        job = context.ftrun(mpi, 4, program, "12", "4", "p", options=["--hosts", "node0,node1"], on=nodes.nodes[0], gates=["app.step:3", *kept(8)],
                            env={**ONE_CARD, "LINES_AT": "10"})
        job.on = nodes.nodes[1]
        victim = job.at_gate("app.step", 3)
        steps = lambda rank: re.findall(rf"^rank {rank} step (\d+)$", job.output.text, re.M)
        eventually(lambda: all("10" in steps(rank) for rank in range(4)), "step 10 of all ranks", 30)
        number = re.search(r"^NSpid:.*\t(\d+)$", open(f"/proc/{victim}/status").read(), re.M)[1]
        wait_kept(job)
        time.sleep(1.5)
        job.kill(victim)
        job.expect(0)
        block = job.err[job.err.index("ftd: recovery") :]
        check(re.search(rf"^ftd:   when      [\d-]+ [\d:]+, on node0; process {number} on node node1 was rank 3$", block, re.M), f"{number}: {block}")
        lost = re.search(r"^ftd:   lost      ([\d.]+) s of computing, since version 8 was complete", block, re.M)
        check(lost and float(lost[1]) >= 0.5, block)
        check("count     failure 1 of this job; 1 in a row without progress of rank 3, of 5" in block, block)
        summary = re.findall(r"^ftd: summary   (.*)$", job.err, re.M)
        words = ["1 failure was survived; lost: ", "node0: 6 checkpoints of 2 ranks, ", "node1: 6 checkpoints of 2 ranks, "]
        check(len(summary) == 3 and all(any(line.startswith(word) for line in summary) for word in words), f"{summary}")
        for node in nodes.nodes:
            nodes.empty(node)


def seen(ctl, failures, world=None):
    """What ftctl shows of a job that computes after so many failures."""
    shown = lambda: (now := ctl.json("show")) and now["state"] == "computing" and now["failures"] == failures and now
    return eventually(shown, f"computing after failure {failures}", 40)


# What is killed, one after the other; what is joined, at the same time.
ORDERS = ["rank-agent-rank", "agent-rank", "agent-agent", "rank+agent-agent"]


@scenario("cost-of-deaths", each=[{"order": order, "how": how} for order in ORDERS for how in ("version", "beginning")], timeout=90)
def of_deaths(context, order, how):
    """Whoever dies, ranks and agents, one after the other or together: each block counts it, and in a row what its rank did, and says what was lost, and
    when; what was told is not told again by the next agent; the summary is their sum, and ftctl shows the same number, and how old the version is that was restored."""
    ctl, size = Ctl(context), 2
    if how == "version":
        job = heat(context, "-s", "100000")
        complete(ctl)
    else:
        job = context.ftrun(None, size, "sleep", "600")
        job.wait_ranks(size)
        seen(ctl, 0)
    turns = order.split("-")
    for turn, victims in enumerate(turns, 1):
        before = ctl.json("show")
        if how == "version":
            # No newer one comes, and this one becomes old enough.
            os.kill(before["rank"][0]["pid"], signal.SIGSTOP)
            time.sleep(1.5)
            before = ctl.json("show")
        else:
            time.sleep(1.2)
        pids = {"rank": before["rank"][1]["pid"], "agent": before["agent_pid"]}
        if "+" in victims:
            # It does not see the rank die.
            os.kill(pids["agent"], signal.SIGSTOP)
        job.kill_all({victim: pids[victim] for victim in victims.split("+")})
        after = seen(ctl, turn)
        check(after["epoch"] == turn + 1 and len(after["past"]) == turn, f"{after}")
        if how == "version":
            job.wait_err(r"count     failure \d", turn)
            check(after["complete"] and after["complete"]["age_ms"] is not None, f"{after['complete']}")
            complete(ctl, after["complete"]["version"] + 5)
    job.interrupt()
    job.wait()
    bill = Bill(job.err)
    check(len(bill.blocks) == len(turns), job.err)
    lost = bill.agrees(len(turns))
    check(all(seconds >= 0.5 for seconds in lost), f"{lost}: {job.err}")
    # Of an agent's death nothing is in a row, and of what was told nothing is told again.
    rows = [bool(re.search("in a row without progress of rank 1, of 5", text)) for _, text in bill.blocks]
    check(rows == [victims == "rank" for victims in turns] and not re.search(r"^ftd: rank", job.err, re.M), job.err)
    agents = sum("agent" in victims for victims in turns)
    check(job.err.count("ftrun: the agent died") == agents and len(bill.find(r"^ftd:   when      ([\d-]+ [\d:]+, on \S+)")) == len(turns), job.err)
    context.assert_clean()


@scenario("cost-of-deaths-over-nodes", cluster=True, timeout=120, each=[{"order": "rank-agent-other-rank"}, {"order": "other-agent-other-agent"}])
def of_deaths_over_nodes(context, order):
    """The same over two nodes: the agent that speaks (`agent`) or another one (`other`) dies, and ranks of the other node."""
    mpi = context.mpi("mpich5")
    with Nodes(context, 2) as nodes:
        program = nodes.cluster.program(mpi, "heat2d.c")
        job = context.ftrun(mpi, 2, program, "-s", "1000000", "-p", "20", "-c", "5", on=nodes.nodes[0], env=ONE_CARD,
                            options=["--hosts", "node0:1,node1:1"])
        each = [Ctl(context, node, nodes.cluster.user) for node in nodes.nodes]
        complete(each[0])
        failures = 0
        for turn, victim in enumerate(order.split("-"), 1):
            found = nodes.nodes[victim != "agent"].named("heat2d.mpich5" if victim == "rank" else "ft-agent")
            check(len(found) == 1, f"{found}")
            job.kill(found[0])
            # A busy machine may lose an agent's successor as well.
            def settled():
                now = [ctl.json("show") for ctl in each]
                same = len({(one["failures"], one["state"]) for one in now}) == 1
                return same and now[0]["state"] == "computing" and now[0]["failures"] > failures and now
            shown = eventually(settled, f"failure {turn}", 40)
            check(all(one["epoch"] == one["failures"] + 1 for one in shown), f"{shown}")
            failures = shown[0]["failures"]
            job.wait_err(rf"count     failure {failures} of this job", 1)
            newest = max(one["complete"]["version"] if one["complete"] else 0 for one in shown)
            complete(each[0], newest + 5)
        job.interrupt()
        job.wait(40)
        Bill(job.err).agrees(failures, known=not re.search("at least|less than", job.err))
        for node in nodes.nodes:
            nodes.empty(node)


@scenario("cost-of-deaths-slurm", cluster=True, timeout=120)
def of_deaths_under_srun(context):
    """The same under srun, where the front prints what the agent says."""
    mpi = context.mpi("mpich5")
    with Steps(context, 2) as steps:
        program = steps.cluster.program(mpi, "lines.c")
        job = steps.srun("-N2", "--ntasks-per-node=1", program, "12", "4", "p", mpi=mpi, env={**ONE_CARD, "LINES_AT": "10"},
                         gates=["app.step:1", *kept(8, range(2))])
        job.on = steps.nodes[1]
        victim = job.at_gate("app.step", 1)
        wait_kept(job, range(2))
        for turn, who in enumerate(("other", "agent", "rank"), 1):
            time.sleep(1.5)
            found = [victim] if who == "rank" else steps.nodes[who == "other"].named("ft-agent")
            check(len(found) == 1, f"{found}")
            job.gate_path("app.step", 1).unlink()
            job.kill(found[0])
            job.wait_err(r"count     failure \d", turn, 40)
            victim = job.at_gate("app.step", 1)
        job.go("app.step", 1)
        job.expect(0)
        bill = Bill(job.err)
        check(all(seconds >= 0.5 for seconds in bill.agrees(3)), job.err)
        steps.empty()


@scenario("cost-without-agent")
def without_agent(context):
    """A job that ends because its agent dies again and again has its summary as well: from ftrun."""
    # Six of them are to die within 30 s, each when the block of the one before has come, which waits for a sign of the rank.
    job = context.ftrun(None, 1, "sleep", "600", hurry=5)
    job.wait_ranks(1)
    killed, until = 0, time.monotonic() + 40
    while job.running() and time.monotonic() < until:
        for pid in job.below("ft-agent"):
            if job.err.count("ftd: recovery, epoch") >= killed:
                with contextlib.suppress(ProcessLookupError):
                    job.kill(pid)
                    killed += 1
        time.sleep(0.02)
    check(job.wait(10) != 0 and "the job cannot go on" in job.err, job.err)
    bill = Bill(job.err)
    check(len(bill.summary) == 1 and bill.summary[0].startswith(f"{len(bill.blocks)} failures were survived; lost: "), job.err)


@scenario("cost-begun-anew", each=[{"who": "shepherd"}, {"who": "agent"}, {"who": "rank"}])
def begun_anew(context, who):
    """A shepherd dies while old ranks are ended, or the agent while the new ones are in MPI_Init: one block is about both failures, says that the recovery
    was begun anew, and counts two. A rank that dies in MPI_Init ends one recovery, which lasted until then, and begins another: each has a block, and
    only the second is over. What was lost is counted from the first on, and nothing of it twice."""
    mpi, size = context.mpi("openmpi4"), 3
    places = {"shepherd": ("shepherd.stop", 2)}
    place = places.get(who, ("mpi.in-init", 2))
    job = context.ftrun(mpi, size, context.program(mpi, "lines.c"), "12", "4", "p", env={"LINES_AT": "10"}, gates=["app.step:1", "{}:{}".format(*place)])
    if who != "shepherd":
        job.at_gate(*place)
        job.go(*place)
    victim = job.at_gate("app.step", 1)
    follower = subprocess.Popen([context.prefix / "bin" / "ftctl", "--json", "events", "--follow"], stdout=subprocess.PIPE, text=True,
                                env=context.env(None, {})) if who == "rank" else None
    until(lambda: all(10 in printed(job.output.text, rank) for rank in range(size)), "step 10 is not printed")
    time.sleep(1.2)
    job.close_gate(*place)
    job.kill(victim)
    second = job.at_gate(*place)
    check("ftd: recovery" not in job.err, job.err)
    if who == "rank":
        # So long nobody computes.
        time.sleep(1.2)
    job.close_gate(*place)
    if who == "shepherd":
        job.go(*place)
    job.kill(job.one("ft-agent") if who == "agent" else second)
    if who != "shepherd":
        job.at_gate(*place)
        job.go(*place)
    job.go("app.step", 1)
    job.expect(0)
    bill = Bill(job.err)
    if who == "rank":
        check(len(bill.blocks) == 2 and bill.agrees(2, sums=False) is None and "begun anew" not in job.err, job.err)
        took = re.search(r"^ftd:   took      ([\d.]+) ms .*, released [\d.]+, interrupted ([\d.]+); not seen past MPI_Init: ranks 0-2$", bill.blocks[0][1], re.M)
        check(took and float(took[1]) >= float(took[2]) >= 1200, f"it lasted until rank 2 died in MPI_Init: {job.err}")
        (lost,) = re.findall(r"^ftd:   lost      ([\d.]+) s of computing, since version 8 was complete", job.err, re.M)
        total = re.search(r"lost: ([\d.]+) s of computing", bill.summary[0])
        check(0.5 <= float(lost) == float(total[1]), f"{lost} and nothing twice: {job.err}")
        kinds = [(event["epoch"], event["event"]) for event in (json.loads(line) for line in follower.communicate(timeout=10)[0].splitlines())]
        check([kind for kind in kinds if kind[1] in ("interrupted", "recovered")] == [(2, "interrupted"), (3, "recovered")], f"{kinds}")
    else:
        check(len(bill.blocks) == 1 and bill.find(r"(; another failure came meanwhile, and it was begun anew)$") and bill.agrees(2)[0] >= 0.5, job.err)
    check(re.search(rf"^ftd:   when      .*; process {victim} was rank 1", job.err, re.M), job.err)


@scenario("cost-silent", each=[{"size": 2}])
def silent(context, size):
    """Ranks that give no sign of computing, for they use neither an MPI nor ftd, compute from their release on: ftctl shows so long before the block
    comes, the wait for that is no part of the recovery, and what they compute meanwhile is lost with the next failure."""
    ctl = Ctl(context)
    job = context.ftrun(None, size, "sleep", "600")
    job.wait_ranks(size)
    turn, before_block = 0, False
    # The block waits for a sign of the ranks; on a busy machine it may come before ftctl has looked.
    while turn < 2 or not before_block:
        pid = seen(ctl, turn)["rank"][0]["pid"]
        time.sleep(1.2)
        job.kill(pid)
        turn += 1
        seen(ctl, turn)
        before_block |= job.err.count("ftd: recovery, epoch") == turn - 1
        check(turn < 5, f"ftctl never shows that ranks compute before their block has come: {job.err}")
    job.interrupt()
    job.wait()
    bill = Bill(job.err)
    lost = bill.agrees(turn)
    check(all(seconds >= 0.5 for seconds in lost) and all("all of it" in text for _, text in bill.blocks), f"{lost}: {job.err}")


@scenario("unprotected", each=[{"how": how} for how in ("nothing", "agent", "file", "none")])
def unprotected(context, how):
    """A job that has computed for long and has nothing to go on from is told so once, also when its agent dies after that; one with a file in
    $FT_CHECKPOINT_DIR is not, and neither is one that survives nothing anyway."""
    script = 'if [ "$HOW" = file ]; then echo x > "$FT_CHECKPOINT_DIR/x"; fi; sleep 6'
    ft = "none" if how == "none" else "reinit"
    job = context.ftrun(None, 2, "bash", "-c", script, options=["-x", f"HOW={how}"], ft=ft, hurry=200)
    sentence = ("ftd: nothing protects this job: it has computed for 10 min, and after a failure it begins from the beginning, unless it calls ft_checkpoint "
                "(C, C++, Fortran; in Python ftd.checkpoint) or writes its restart files into $FT_CHECKPOINT_DIR\n")
    if how == "agent":
        job.wait_err(re.escape(sentence), 1)
        job.kill(job.one("ft-agent"))
    job.expect(0)
    if how == "agent":
        check(job.err.count("nothing protects") == 1 and "ftd: recovery, epoch 2" in job.err, job.err)
    else:
        check(job.err == (sentence if how == "nothing" else ""), job.err)


@scenario("hosts-block-of-another", cluster=True, timeout=90)
def block_of_another(context):
    """A rank of another node than the one that writes the block dies while etcd is away: the block counts from that node's notice on, and not from when all
    agree; and the job is said to recover wherever it is asked."""
    with Nodes(context, 3) as nodes:
        (machine,) = nodes.store.machines
        go = context.work / "go"
        job = nodes.sh(nodes.each_one(), 3, f"echo ready; until [ -e {go} ]; do sleep 0.05; done", ft="reinit")
        eventually(lambda: job.output.text.count("ready\n") == 3, "the ranks", 20)
        machine.cut("store")
        # Another one may be about to become sleep.
        victim = min(pid for pid in nodes.nodes[2].pids() if proc.alive(pid) and proc.name(pid) == "sh" and proc.uid(pid) == nodes.cluster.user.pw_uid)
        job.kill(victim)
        eventually(lambda: "the store does not answer node2" in job.err, "a word on the store", 30)
        known = time.monotonic()
        ctl = Ctl(context, nodes.nodes[0], nodes.cluster.user)
        eventually(lambda: ctl.json("show")["state"] == "recovering", "a job that recovers", 20)
        stood = time.monotonic() - known
        machine.heal("store")
        eventually(lambda: "agreed " in job.err, "the block", 60)
        go.touch()
        ended(job, 0)
        (agreed,) = re.findall(r"agreed ([\d.]+)", job.err)
        check(float(agreed) >= stood * 1e3, f"{stood}: {job.err}")
