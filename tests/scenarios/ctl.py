"""`ftctl`: a running job, seen and touched by its user."""

import json
import subprocess

import jsonschema

from harness import proc
from harness.job import check
from harness.registry import scenario

from .processes import eventually


class Ctl:
    """It, as the user of a scenario's jobs, or as others."""

    def __init__(self, context):
        self.context = context
        self.schema = json.loads((context.prefix / "share/doc/ftd/ftctl.schema.json").read_text())
        jsonschema.Draft202012Validator.check_schema(self.schema)

    def run(self, *words, status=0):
        """What it prints."""
        argv = [self.context.prefix / "bin" / "ftctl", *map(str, words)]
        run = subprocess.run(argv, capture_output=True, text=True, env=self.context.env(None, {}), timeout=30)
        check(run.returncode == status, f"ftctl {words}: {run.returncode}: {run.stdout}{run.stderr}")
        return run.stdout if status == 0 else run.stderr

    def valid(self, line):
        """An object that it has written."""
        found = json.loads(line)
        jsonschema.validate(found, self.schema, cls=jsonschema.Draft202012Validator)
        return found

    def json(self, *words):
        return self.valid(self.run("--json", *words))

    def of(self, job, *words, what="show"):
        """What it tells of a job."""
        return self.json(what, *words)


def heat(context, *more, **options):
    mpi = context.mpi("mpich4")
    return context.ftrun(mpi, 3, context.program(mpi, "heat2d.c"), "-s", "2000", "-p", "20", "-c", "5", *more, **options)


def complete(ctl, least=1):
    """Waits until there is a version that is complete."""
    shown = lambda: next((job for job in ctl.json("jobs")["jobs"] if job["complete"] and job["complete"]["version"] >= least), None)
    return eventually(shown, "a complete version", 30)


@scenario("ctl-show")
def show(context):
    """A job's ranks, their pids and processors, its newest version with its age, and what checkpoints have cost, in tables and as the schema says;
    a job that has ended is not there."""
    ctl = Ctl(context)
    check(ctl.json("jobs") == {"jobs": []} and ctl.run("jobs") == "no jobs of this user run here\n", "a job before there is one")
    check("no job of this user runs here" in ctl.run("show", status=1), "show without a job")
    job = heat(context)
    complete(ctl)
    shown = ctl.json("show")
    check((shown["ranks"], shown["mode"], shown["epoch"], shown["failures"], shown["failures_left"]) == (3, "reinit", 1, 0, 5), f"{shown}")
    ranks = {proc.environ(pid)["FT_RANK"]: pid for pid in proc.descendants(job.pid) if proc.name(pid).startswith("heat2d")}
    check({str(rank["rank"]): rank["pid"] for rank in shown["rank"]} == ranks, f"{shown['rank']} is not {ranks}")
    for rank in shown["rank"]:
        status = open(f"/proc/{rank['pid']}/status").read()
        check(f"Cpus_allowed_list:\t{rank['allowed_processors']}\n" in status, f"{rank}")
        cost = rank["checkpoints"]
        check(cost["number"] > 0 and cost["bytes"] > cost["number"] * 1000 and cost["memory_bytes"] > 0, f"{rank}")
        check(cost["in_call_us"] >= cost["last_copy_us"] and cost["newest"] >= shown["complete"]["version"], f"{rank}")
    later = complete(ctl, shown["complete"]["version"] + 5)
    check(later["complete"]["age_ms"] < later["running_ms"], f"{later}")
    table = ctl.run("show", str(shown["ftrun_pid"]))
    check(all(str(rank["pid"]) in table for rank in shown["rank"]) and "more in a row end the job" in table, table)
    check(shown["job"] in ctl.run("jobs"), "the table of jobs")
    check(len(ctl.json("checkpoint-cost", shown["job"])["cost"]) == 3 and " ms" in ctl.run("checkpoint-cost"), "what it costs")
    job.interrupt()
    job.wait()
    check(ctl.json("jobs") == {"jobs": []}, "a job that has ended")
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
    for turn, what in enumerate(["rank=2", "rank=1,after=100ms", "rank=0,at=client.copied", "rank=1,at=agent.restore"], 1):
        said = ctl.json("inject", first["job"], what)["noted"]
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
