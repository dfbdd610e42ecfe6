"""What happens around a step of Slurm's with `--ft`: the sbatch or salloc that it is in, and what users, administrators and Slurm do to its job."""

import itertools
import os
import pathlib
import re
import shutil
import signal
import time

from harness import proc, registry
from harness.cluster import NETWORKS
from harness.job import Failed, Output, check
from harness.registry import scenario
from harness.slurm import CPUS

from .applications import ranks_of
from .copies import COPIES, kept, wait_kept
from .hosts import ONE_CARD
from .nodes import key_of
from .processes import eventually
from .recovery import LAMMPS_INPUT, LAMMPS_NEW, _open_restart, _thermo
from .slurm_steps import MPIS, Steps

LAYOUT = ["--ft=reinit", "--ft-spares=1", "-N3", "--ntasks-per-node=2"]
# A job's script: a step with what the job was given, and what became of it.
SCRIPT = 'srun "$0"; echo srun ended with $? at $(date +%s.%N)'


class Batch:
    """A job that sbatch has handed in, by its number: what Slurm says of it, and what it has written."""

    def __init__(self, steps, number):
        self.steps, self.number = steps, number

    def about(self, patience=10.0):
        """What `scontrol show job` says, by name."""
        status, out, err = self.steps.slurm.run("scontrol", "show", "job", self.number, patience=patience)
        check(status == 0, f"{status}: {out}{err}")
        return dict(re.findall(r"(\w+)=(\S*)", out))

    def becomes(self, state, patience):
        """Waits until the job is in that state; what is said of it then."""
        until = time.monotonic() + patience
        while (about := self.about())["JobState"] != state:
            check(time.monotonic() < until, f"job {self.number} is not {state} after {patience} s: {about}; {self.text}")
            time.sleep(0.5)
        return about

    @property
    def text(self):
        """What stands in its output, which is where its errors go, too."""
        path = self.steps.context.work / f"slurm-{self.number}.out"
        return path.read_text() if path.exists() else ""


def handed_in(steps, *words, mpi=None, env=None, gates=()):
    """Hands in a job with the script above, or another one. What runs it for its gates, and the job."""
    # It waits for the end of the job.
    job = steps.slurm.job("sbatch", "--wait", "--parsable", *words, mpi=mpi, env={**steps.noting, **(env or {})}, gates=gates)
    eventually(lambda: job.output.text.endswith("\n"), "sbatch's word", 30)
    return job, Batch(steps, job.output.text.strip())


def by_srun_or_script(steps, inside, program, words, more):
    """The program, by srun or in a script that sbatch is given; and what came of handing that in."""
    if inside == "srun":
        return steps.srun(*words, program, **more), None
    work = steps.context.work
    (work / "job.sh").write_text(f"#!/bin/sh\nset -- {program}\n{SCRIPT.replace('$0', '$1')}\n")
    return handed_in(steps, "--ft=reinit", *words, "job.sh", **more)


def begun_anew(steps, batch, sentence):
    """What the job, which is queued again, has printed behind that sentence when it has begun anew and is over."""
    eventually(lambda: batch.about()["JobState"] == "PENDING", "the job to be queued again", 30)
    steps.slurm.update(f"jobid={batch.number}", "starttime=now")
    about = batch.becomes("COMPLETED", 60)
    check((about["ExitCode"], about["Restarts"]) == ("0:0", "1"), f"{about}")
    return batch.text.partition(sentence)[2]


INSIDE = [{"inside": inside, "mpi": mpi["mpi"], "how": how} for inside in ("sbatch", "salloc") for mpi in MPIS for how in ("rank", "crash", "power_off", "cut", "stepd")]


@scenario("slurm-within", cluster=True, timeout=150, each=INSIDE, spread=True)
def within(context, inside, mpi, how):
    """In sbatch and in salloc a rank is killed, or its node crashes, loses its power or MPI's network, or its slurmstepd is killed: the step goes on with its state to the
    undisturbed result, is over with status 0 within two seconds of the application's end, and says so where its errors go; so does what comes behind it, and the
    job is a completed one."""
    mpi = context.mpi(mpi)
    with Steps(context, 3) as steps:
        program = steps.cluster.program(mpi, "places.c")
        reference = steps.reference(mpi, 4, program)
        more = {"mpi": mpi, "env": {**ONE_CARD, **steps.noting}, "gates": ["app.compute:3", *kept(5)]}
        if inside == "sbatch":
            (context.work / "job.sh").write_text(f"#!/bin/sh\nset -- {program}\n{SCRIPT.replace('$0', '$1')}\n")
            job, batch = handed_in(steps, *LAYOUT, "job.sh", **more)
        else:
            job, batch = steps.slurm.job("salloc", *LAYOUT, "/bin/sh", "-c", SCRIPT, program, **more), None
        job.on = steps.nodes[1]
        victim = job.at_gate("app.compute", 3)
        check(victim in steps.nodes[1].pids(), "the rank is not on the node")
        wait_kept(job)
        if how == "rank":
            job.kill(victim)
        elif how == "stepd":
            # The allocation has none there, nor has the script.
            for pid in steps.nodes[1].named("slurmstepd"):
                job.kill(pid)
        elif how == "cut":
            steps.nodes[1].cut("mpi")
        else:
            getattr(steps.nodes[1], how)()
        text = lambda: (batch.text if batch else job.output.text + job.err)
        eventually(lambda: "srun ended" in text(), "srun's end", 60)
        said = text()
        (status, over), = re.findall(r"^srun ended with (\d+) at ([\d.]+)$", said, re.M)
        check(status == "0" and Output(said).results == reference.results and Output(said).starts == [None, 5], said)
        check(said.count("ftd: recovery, epoch") == 1 and (how == "rank" or COPIES in said), said)
        steps.was_prompt(float(over), 4)
        if batch:
            about = batch.becomes("COMPLETED", 30)
            check(about["ExitCode"] == "0:0", f"{about}")
        else:
            check(job.wait(30) == 0, job.err)
        if how == "cut":
            steps.nodes[1].heal("mpi")
        steps.empty(*([steps.nodes[1]] if how in ("crash", "power_off") else []), patience=40)


ENDS = [{"how": "crash", "again": "no-requeue"}, {"how": "power_off", "again": "no-requeue"}, {"how": "crash", "again": "requeue"}]


@scenario("slurm-batch-node", cluster=True, timeout=200, each=ENDS)
def batch_node(context, how, again):
    """The node where an sbatch's script runs dies, by crash or without a word, and with it the script and its srun: within 60 s the job has ended, long
    before Slurm gives up that node, and a line in its error file says so; nothing of it is on the other nodes. When Slurm gives it up the job is
    cancelled, and one that may be queued again runs again, to the undisturbed result, on the nodes that there are."""
    mpi = context.mpi("mpich5")
    with Steps(context, 3, silence=300) as steps:
        program = steps.cluster.program(mpi, "places.c")
        reference = steps.reference(mpi, 4, program)
        (context.work / "job.sh").write_text(f"#!/bin/sh\nset -- {program}\n{SCRIPT.replace('$0', '$1')}\n")
        layout = [*LAYOUT, "--error=its errors"] if again == "no-requeue" else ["--ft=reinit", "-N2", "--ntasks-per-node=2", "--open-mode=append"]
        job, batch = handed_in(steps, f"--{again}", *layout, "job.sh", mpi=mpi, env=ONE_CARD, gates=["app.compute:3", *kept(5)])
        job.on = steps.nodes[1]
        job.at_gate("app.compute", 3)
        first = steps.nodes[0]
        name = steps.slurm.names[first.name]
        about = batch.about()
        check((about["BatchHost"], about["JobState"]) == (name, "RUNNING"), f"{about}")
        wait_kept(job)
        getattr(first, how)()
        died = time.monotonic()
        about = batch.becomes("COMPLETING", 60)
        print(f"  the job was over after {time.monotonic() - died:.1f} s", flush=True)
        becomes = "is cancelled, for it was not to be queued again" if again == "no-requeue" else "is queued again"
        sentence = f"ftd: node {name}, where the script of job {batch.number} ran, is gone, and the script with it: the job {becomes}\n"
        errors = (context.work / "its errors").read_text() if again == "no-requeue" else batch.text
        check(errors.count(sentence) == 1 and "srun ended" not in batch.text, errors + batch.text)
        steps.empty(first)
        waits_for = lambda: steps.slurm.run("squeue", "-h", "-o", "%T %N")[1].split()
        eventually(lambda: waits_for() == ["COMPLETING", name], "Slurm to wait for the dead node alone", 60)
        steps.slurm.update(f"nodename={name}", "state=down", "reason=test")
        if again == "no-requeue":
            about = batch.becomes("CANCELLED", 30)
            # Nobody has told Slurm how the script ended.
            check((about["ExitCode"], about["Restarts"]) == ("0:0", "0"), f"{about}")
            print(f"  sbatch --wait has ended with {job.wait(90)}", flush=True)
        else:
            said = begun_anew(steps, batch, sentence)
            check("srun ended with 0" in said and Output(said).starts == [None] and Output(said).results == reference.results, batch.text)
        steps.empty(first)


BETWEEN = [{"how": "crash", "again": "no-requeue"}, {"how": "power_off", "again": "requeue"}]
# A script that waits between two steps.
BETWEEN_SCRIPT = """#!/bin/sh
{step}
until [ -e go ]; do sleep 0.05; done
{step}
"""


def between_steps(steps, *words, mpi=None, env=None):
    """A job whose script is between two steps, on the first node, with nothing of ftd's on any node. The job."""
    _, batch = handed_in(steps, *words, "job.sh", mpi=mpi, env=env)
    eventually(lambda: "srun ended" in batch.text, "the end of the first srun", 60)
    check(batch.text.count("srun ended with 0") == 1, batch.text)
    check(batch.about()["BatchHost"] == steps.slurm.names[steps.nodes[0].name], "the script runs elsewhere")
    eventually(lambda: not any(steps.of_job(node) for node in steps.nodes[1:]), "the other nodes without a process of the job", 20)
    check(not steps.keys(), f"{steps.keys()}")
    return batch


@scenario("slurm-batch-between", cluster=True, timeout=200, each=BETWEEN)
def batch_between(context, how, again):
    """The node where an sbatch's script runs dies while the script is between two sruns, when nothing of the job's is on any other node: within 60 s the job has ended, and its
    error file says so. One without `--ft` is Slurm's own affair, which leaves it its other nodes. What may be queued again runs again, to the undisturbed result."""
    mpi = context.mpi("mpich5")
    with Steps(context, 3, silence=300) as steps:
        program = steps.cluster.program(mpi, "places.c")
        reference = steps.reference(mpi, 4, program)
        (context.work / "job.sh").write_text(BETWEEN_SCRIPT.format(step=f"srun {program}; echo srun ended with $?"))
        layout = LAYOUT if again == "no-requeue" else ["--ft=reinit", "-N2", "--ntasks-per-node=2", "--open-mode=append"]
        plain = steps.slurm.run("sbatch", "--parsable", "--no-kill", "-N3", "--ntasks-per-node=1", "--wrap", "srun -N3 echo ended; sleep 600")
        check(plain[0] == 0, f"{plain}")
        plain = Batch(steps, plain[1].strip())
        eventually(lambda: plain.text.count("ended") == 3, "the step of the job without ftd", 30)
        batch = between_steps(steps, f"--{again}", *layout, mpi=mpi, env=ONE_CARD)
        first = steps.nodes[0]
        name = steps.slurm.names[first.name]
        check(plain.about()["BatchHost"] == name, "the script of the job without ftd runs elsewhere")
        getattr(first, how)()
        died = time.monotonic()
        batch.becomes("COMPLETING", 60)
        print(f"  the job was over after {time.monotonic() - died:.1f} s", flush=True)
        becomes = "is cancelled, for it was not to be queued again" if again == "no-requeue" else "is queued again"
        sentence = f"ftd: node {name}, where the script of job {batch.number} ran, is gone, and the script with it: the job {becomes}\n"
        check(batch.text.count(sentence) == 1 and batch.text.count("srun ended") == 1, batch.text)
        # Its nodes have no note of it any more: they have heard that it is over.
        eventually(lambda: not any(noted(node) for node in steps.nodes[1:]), "the other nodes to forget the job", 30)
        about = plain.about()
        check((about["JobState"], about["Restarts"]) == ("RUNNING", "0") and "ftd" not in plain.text, f"{about}: {plain.text}")
        check(steps.slurm.run("scancel", plain.number)[0] == 0, "the job without ftd cannot be cancelled")
        (context.work / "go").touch()
        steps.slurm.update(f"nodename={name}", "state=down", "reason=test")
        if again == "no-requeue":
            about = batch.becomes("CANCELLED", 30)
            check((about["ExitCode"], about["Restarts"]) == ("0:0", "0"), f"{about}")
        else:
            said = begun_anew(steps, batch, sentence)
            check(said.count("srun ended with 0") == 2 and Output(said).results == reference.results * 2, batch.text)
        steps.empty(first)


def noted(node):
    """Which jobs' scripts a node watches."""
    return [path.name for path in (node.directory / "scripts").glob("[0-9]*")]


LEFT = "does not reach the one of this job's script, and leaves the job alone"


@scenario("slurm-batch-reached", cluster=True, timeout=150)
def batch_reached(context):
    """A node that does not reach the one of an sbatch's script, whose `ftd` is gone besides, ends no job between two steps as long as another node reaches it; once
    nobody does the job is ended, whatever had happened to its `ftd` before."""
    with Steps(context, 3, lease="3s", silence=300) as steps:
        first, second, third = steps.nodes
        (context.work / "job.sh").write_text(BETWEEN_SCRIPT.format(step="srun /bin/echo here; echo srun ended with $?"))
        batch = between_steps(steps, "--no-requeue", "--ft=reinit", "-N3", "--ntasks-per-node=1")
        eventually(lambda: all(noted(node) == [batch.number] for node in (second, third)), "the notes of the other nodes", 20)
        check(noted(first) == [], "a node watches its own script")
        steps.cluster.cut_link(second, first, "store")
        steps.daemons[0].kill()
        steps.daemons[1].says(LEFT, patience=60)
        about = batch.about()
        check((about["JobState"], about["Restarts"]) == ("RUNNING", "0") and "is gone" not in batch.text, f"{about}: {batch.text}")
        check(noted(second) and noted(third), "the job is watched no more")
        # What was noted lasts longer than the daemon.
        steps.daemons[2].kill()
        steps.daemons[2].start()
        first.power_off()
        died = time.monotonic()
        batch.becomes("COMPLETING", 90)
        print(f"  the job was over after {time.monotonic() - died:.1f} s", flush=True)
        steps.slurm.update(f"nodename={steps.slurm.names[first.name]}", "state=down", "reason=test")
        batch.becomes("CANCELLED", 30)
        eventually(lambda: not any(noted(node) for node in (second, third)), "the other nodes to forget the job", 60)
        steps.empty(first)


# A rank that waits for the user's word.
WAITS = 'echo ready $SLURM_PROCID; until [ -e go ]; do sleep 0.05; done; echo went $SLURM_PROCID'


@scenario("slurm-batch-left-out", cluster=True, timeout=150)
def batch_left_out(context):
    """A node that reaches neither the node of an sbatch's script nor, in MPI's network, the others is left out of the step. That nobody has heard of the
    script's `ftd` for a while, either, is no reason to end the job for it: the others go on, and the script comes to its end."""
    with Steps(context, 3, lease="3s", silence=300) as steps:
        first, second, third = steps.nodes
        (context.work / "job.sh").write_text(f"#!/bin/sh\nsrun /bin/sh -c '{WAITS}'\necho srun ended with $?\n")
        words = ["--ft=reinit", "--ft-spares=1", "-N3", "--ntasks-per-node=1", "--requeue"]
        _, batch = handed_in(steps, *words, "job.sh")
        eventually(lambda: batch.text.count("ready") == 2, "the ranks", 30)
        steps.daemons[0].kill()
        eventually(lambda: key_of(steps.store, first.name) is None, "the end of its lease", 30)
        for other, networks in ((first, ("store", "mpi")), (third, ("mpi",))):
            for network in networks:
                steps.cluster.cut_link(second, other, network)
        eventually(lambda: batch.text.count("ready") == 4, "the ranks of the next world", 30)
        eventually(lambda: not steps.of_job(second), "the node that was left out without the job", 90)
        about = batch.about()
        check((about["JobState"], about["Restarts"]) == ("RUNNING", "0") and "is gone" not in batch.text, f"{about}: {batch.text}")
        (context.work / "go").touch()
        about = batch.becomes("COMPLETED", 60)
        check(about["ExitCode"] == "0:0" and batch.text.count("went") == 2 and "srun ended with 0" in batch.text, f"{about}: {batch.text}")
        for other, networks in ((first, ("store", "mpi")), (third, ("mpi",))):
            for network in networks:
                steps.cluster.heal_link(second, other, network)
        steps.daemons[0].start()
        steps.empty()


def record(steps):
    """At which revision the only job's record was written last."""
    fields = re.findall(r'^"(Key|ModRevision)" : (.*)$', steps.store.get("/ftd/jobs/", "--prefix", "-w", "fields"), re.M)
    return [int(number) for (_, key), (_, number) in zip(fields[::2], fields[1::2]) if key.strip('"').endswith("/epoch")]


@scenario("slurm-batch-two-nodes", cluster=True, timeout=150)
def batch_two_nodes(context):
    """Of a job of two nodes the one where its script does not run is left out, and later reaches Slurm's controller and the store again, but not the script's
    node, whose `ftd` is gone by then: it ends no job. The ranks have gone on without it, and the script comes to its end."""
    with Steps(context, 2, lease="3s", silence=300) as steps:
        first, second = steps.nodes
        (context.work / "job.sh").write_text(f"#!/bin/sh\nsrun /bin/sh -c '{WAITS}'\necho srun ended with $?\n")
        words = ["--ft=reinit", "--ft-spares=1", "-N2", "--ntasks-per-node=2", "--requeue"]
        _, batch = handed_in(steps, *words, "job.sh")
        eventually(lambda: batch.text.count("ready") == 2, "the ranks", 30)
        there, before = steps.of_job(second), record(steps)
        check(there and before and batch.about()["BatchHost"] == steps.slurm.names[first.name], f"{there}")
        for network in NETWORKS:
            steps.cluster.cut_link(first, second, network)
        # Only the first one can have the record written.
        second.cut("store")
        eventually(lambda: record(steps) != before, "the record without the second node", 30)
        eventually(lambda: batch.text.count("ready") == 4, "the ranks of the next world", 30)
        steps.daemons[0].kill()
        eventually(lambda: key_of(steps.store, first.name) is None, "the end of its lease", 30)
        second.heal("store")
        steps.cluster.cut_link(first, second, "store")
        eventually(lambda: not steps.of_job(second), "the node that was left out without the job", 90)
        about = batch.about()
        check((about["JobState"], about["Restarts"]) == ("RUNNING", "0") and "is gone" not in batch.text, f"{about}: {batch.text}")
        # The job's end is written down through it: there is no other one that its agent reaches.
        steps.daemons[0].start()
        (context.work / "go").touch()
        about = batch.becomes("COMPLETED", 60)
        check(about["ExitCode"] == "0:0" and batch.text.count("went") == 2 and "srun ended with 0" in batch.text, f"{about}: {batch.text}")
        for network in NETWORKS:
            steps.cluster.heal_link(first, second, network)
        steps.empty()


# Says what it hears, and goes on; SIGTERM ends it with a status of its own.
HEARS = """trap 'echo usr1 $SLURM_PROCID' USR1; trap 'echo term $SLURM_PROCID; exit 5' TERM
echo ready $SLURM_PROCID; while :; do sleep 0.1; done"""
ON_TWO = ["-N2", "--ntasks-per-node=1"]


def number_of(steps):
    """The only job's."""
    (number,) = steps.slurm.run("squeue", "-h", "-o", "%A")[1].split()
    return number


@scenario("slurm-signal", cluster=True, timeout=90, each=[{"what": "job"}, {"what": "step"}])
def signal_by_scancel(context, what):
    """A signal that scancel sends to a job or a step reaches each rank, once, and nothing else comes of it."""
    with Steps(context, 2) as steps:
        job = steps.srun(*ON_TWO, "/bin/sh", "-c", HEARS)
        eventually(lambda: job.output.text.count("ready") == 2, "the ranks", 20)
        number = number_of(steps)
        status, _, err = steps.slurm.run("scancel", "--signal=USR1", number if what == "job" else f"{number}.0")
        check(status == 0, err)
        eventually(lambda: job.output.text.count("usr1") == 2, "the signal", 20)
        status, _, err = steps.slurm.run("scancel", number)
        ended = job.wait(20)
        lines = sorted(job.output.text.splitlines())
        check(ended == 5 and lines == sorted(f"{word} {rank}" for word in ("ready", "term", "usr1") for rank in range(2)), f"{ended}: {lines}{job.err}")
        check("recovery" not in job.err and job.err.count("the job was cancelled by SIGTERM") == 1, job.err)
        steps.empty()


# Those that users and Slurm send.
SIGNALS = ("TERM", "HUP", "INT", "XCPU", "ALRM", "USR1", "USR2")


def heard(path):
    """Which rank has heard which signals, in that order: pairs of their numbers."""
    return [tuple(map(int, line.split())) for line in path.read_text().splitlines()] if path.exists() else []


def all_heard(path, name, times=1, ranks=4):
    """Waits until all ranks have heard a signal as often as that, and looks whether any has oftener."""
    number = signal.Signals["SIG" + name].value
    expected = sorted([(rank, number) for rank in range(ranks)] * times)
    of_name = lambda: sorted(pair for pair in heard(path) if pair[1] == number)
    eventually(lambda: len(of_name()) >= len(expected), f"{name} to be heard by all ranks, {times} times", 30)
    check(of_name() == expected, f"{heard(path)}")


def send(steps, name, number=None):
    """What a user types to have all ranks of the only job hear a signal."""
    status, _, err = steps.slurm.run("scancel", f"--signal={name}", number or f"{number_of(steps)}.0")
    check(status == 0, err)


# All that a task can be sent and hear, but for SIGCHLD and for some of the real-time ones, which are alike.
SENDABLE = [number for number in range(1, 32) if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD)] + [34, 40, 64]
# Tells of each one that it is sent. (None of them ends or stops it.)
TELLS = """import os, signal
every = set(map(int, os.environ["SENDABLE"].split()))
signal.pthread_sigmask(signal.SIG_BLOCK, every)
print("ready", flush=True)
while not os.path.exists("stop"):
    heard = signal.sigtimedwait(every, 0.05)
    if heard:
        print(heard.si_signo, flush=True)
"""


@scenario("slurm-signal-every", cluster=True, timeout=90)
def signal_every(context):
    """Whatever scancel sends a step reaches each rank, once, as it reaches the task of a plain step: a shepherd dies of none of that."""
    with Steps(context, 1) as steps:
        script = context.work / "tells.py"
        script.write_text(TELLS)
        stop, every = context.work / "stop", {"SENDABLE": " ".join(map(str, SENDABLE))}
        for ft in (["--ft=none"], ["--ft=reinit"]):
            job = steps.slurm.job("srun", *ft, "-n2", "/usr/bin/python3", script, env=every)
            eventually(lambda: job.output.text.count("ready\n") == 2, "the ranks", 30)
            number = f"{number_of(steps)}.0"
            for count, name in enumerate(SENDABLE, 1):
                send(steps, name, number)
                heard = lambda: sorted(map(int, job.output.text.replace("ready\n", "").split()))
                expected = sorted(SENDABLE[:count] * 2)
                eventually(lambda: len(heard()) >= len(expected) or not job.running(), f"signal {name} to be heard by both, {ft}", 20)
                check(heard() == expected, f"signal {name}, {ft}: {heard()}: {job.err}")
            stop.touch()
            ended = job.wait(20)
            check(ended == 0 and "ftd: " not in job.err, f"{ft}: {ended}: {job.err}")
            stop.unlink()
            steps.empty()


SLEEPS = """import os, time
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
"""


@scenario("slurm-signal-stops", cluster=True, timeout=90)
def signal_stops(context):
    """A rank that scancel stops, as a terminal does, stands still until scancel has it go on, and nothing else comes of that."""
    with Steps(context, 1) as steps:
        # It starts nobody.
        job = steps.srun("-n1", "/usr/bin/python3", "-c", SLEEPS)
        eventually(lambda: job.output.text == "ready\n", "the rank", 30)
        (rank,) = [pid for pid in steps.nodes[0].named("python3") if "FT_RANK" in proc.environ(pid)]
        stands = lambda: proc.stands_still(rank)
        for name in ("TSTP", "TTIN", "TTOU"):
            send(steps, name)
            eventually(stands, f"the rank to stand still after {name}", 20)
            time.sleep(0.5)
            check(stands() and job.running(), f"{name}: {proc.stat(rank)}: {job.err}")
            send(steps, "CONT")
            eventually(lambda: not stands(), "the rank to go on", 20)
        (context.work / "go").touch()
        job.expect(0)
        check(job.err == "", job.err)
        steps.empty()


@scenario("slurm-signal-stops-script", cluster=True, timeout=90)
def signal_stops_script(context):
    """A script that scancel has stopped before the rank below it had joined goes on when it is told to, though the rank is there by then."""
    mpi = context.mpi("mpich5")
    with Steps(context, 1) as steps:
        program = steps.cluster.program(mpi, "places.c")
        script = f"(until [ -e begin ]; do sleep 0.05; done; exec {program}); echo done"
        job = steps.srun("-n1", "/bin/sh", "-c", script, mpi=mpi, env=ONE_CARD, gates=["app.compute:0"])
        job.on = steps.nodes[0]
        shells = lambda: {pid for pid in steps.nodes[0].named("sh") if "FT_RANK" in proc.environ(pid)}
        eventually(lambda: len(shells()) == 2, "the script and its child", 30)
        (outer,) = [pid for pid in shells() if proc.stat(pid)[1] not in shells()]
        send(steps, "TSTP")
        eventually(lambda: proc.stands_still(outer), "the script to stand still", 20)
        (context.work / "begin").touch()
        job.at_gate("app.compute", 0)
        check(proc.stands_still(outer), "the script goes on")
        send(steps, "CONT")
        eventually(lambda: not proc.stands_still(outer), "the script to go on", 20)
        job.go("app.compute", 0)
        job.expect(0)
        check("done\n" in job.output.text and job.err == "", f"{job.output.text}{job.err}")
        steps.empty()


@scenario("slurm-signal-handled", cluster=True, timeout=120, each=MPIS)
def signal_handled(context, mpi):
    """Ranks that handle signals of scancel's and go on hear each one as often as it comes; when a rank is killed after that the job goes on with its state, to the undisturbed result."""
    mpi, path = context.mpi(mpi), context.work / "heard"
    with Steps(context, 2) as steps:
        program = steps.cluster.program(mpi, "places.c")
        reference = steps.reference(mpi, 4, program)
        job = steps.srun("-N2", "--ntasks-per-node=2", program, mpi=mpi, env={**ONE_CARD, "PLACES_HEARS": path}, gates=["app.compute:3"])
        job.on = steps.nodes[1]
        victim = job.at_gate("app.compute", 3)
        for times in (1, 2):
            for name in SIGNALS:
                send(steps, name)
                all_heard(path, name, times)
        check(proc.alive(victim), "the rank has ended")
        job.kill(victim)
        job.expect(0, reference)
        check(job.err.count("ftd: recovery, epoch") == 1 and "cancelled" not in job.err and job.output.starts == [None, 5], job.err)
        steps.empty()


@scenario("slurm-signal-handled-node", cluster=True, timeout=120)
def signal_handled_node(context):
    """A node dies after its ranks and all others have handled SIGTERM: its ranks go on elsewhere."""
    mpi, path = context.mpi("mpich5"), context.work / "heard"
    with Steps(context, 3) as steps:
        program = steps.cluster.program(mpi, "places.c")
        reference = steps.reference(mpi, 4, program)
        job = steps.srun(*LAYOUT[1:], program, mpi=mpi, env={**ONE_CARD, "PLACES_HEARS": path}, gates=["app.compute:3", *kept(5)])
        job.on = steps.nodes[1]
        job.at_gate("app.compute", 3)
        wait_kept(job)
        send(steps, "TERM")
        all_heard(path, "TERM")
        steps.nodes[1].power_off()
        job.expect(0, reference)
        check(job.err.count("ftd: recovery, epoch") == 1 and COPIES in job.err and "cancelled" not in job.err, job.err)
        steps.empty(steps.nodes[1])


# MPICH catches SIGUSR1 itself, and what is given to that handler is lost; with Open MPI the default disposition kills.
AGAIN = [{"what": "before", "mpi": "mpich5"}, {"what": "during", "mpi": "openmpi5"}]
AGAIN_SOAK = [{"what": what, "mpi": mpi} for what in ("before", "during", "agent") for mpi in ("mpich5", "openmpi5", "openmpi4")]


@scenario("slurm-signal-again", cluster=True, timeout=120, each=AGAIN_SOAK if registry.soak else AGAIN)
def signal_again(context, what, mpi):
    """A signal that ranks had shortly before a death is given once more to those of the next world, also after that of an agent; one that comes during the recovery reaches
    them. They have no handler yet when they have joined: no default disposition kills one, and no library's handler takes the signal."""
    mpi, path, stop = context.mpi(mpi), context.work / "heard", context.work / "stop"
    with Steps(context, 2) as steps:
        program = steps.cluster.program(mpi, "places.c")
        env = {**ONE_CARD, "PLACES_HEARS": path, "PLACES_STOP": stop, "PLACES_STEPS": 1000000, "PLACES_SLEEP": 20}
        init = [f"mpi.{place}-init:0" for place in ("in", "after")]
        job = steps.srun("-N2", "--ntasks-per-node=2", program, mpi=mpi, env=env, gates=["app.compute:3", *init])
        # Rank 0 is on the first node, its victim on the second.
        job.on = steps.nodes[0]
        for place in ("mpi.in-init", "mpi.after-init"):
            job.at_gate(place, 0)
            job.go(place, 0)
        job.on = steps.nodes[1]
        victim = job.at_gate("app.compute", 3)
        job.close_gate("mpi.in-init", 0)
        job.close_gate("mpi.after-init", 0)
        if what != "during":
            send(steps, "USR1")
            all_heard(path, "USR1")
        job.kill(steps.nodes[1].named("ft-agent")[0] if what == "agent" else victim)
        job.on = steps.nodes[0]
        job.at_gate("mpi.in-init", 0)
        if what == "during":
            send(steps, "USR1")
        job.go("mpi.in-init", 0)
        first = job.at_gate("mpi.after-init", 0)
        # Time to die of it.
        time.sleep(0.5)
        check(proc.alive(first), "a rank was killed that had no handler yet")
        job.go("mpi.after-init", 0)
        all_heard(path, "USR1", 1 if what == "during" else 2)
        stop.touch()
        ended = job.wait(30)
        all_heard(path, "USR1", 1 if what == "during" else 2)
        check(ended == 0 and job.err.count("ftd: recovery, epoch") == 1 and "cancelled" not in job.err, f"{ended}: {job.err}")
        steps.empty()


@scenario("slurm-signal-warns", cluster=True, timeout=150, each=[{"inside": "sbatch"}, *([{"inside": "srun"}] if registry.soak else [])])
def signal_warns(context, inside):
    """The signal that was asked for before a time limit is handled, and the job goes on under protection: a rank is killed before the limit, and it ends with the undisturbed
    result."""
    mpi, path = context.mpi("mpich5"), context.work / "heard"
    with Steps(context, 2) as steps:
        program = steps.cluster.program(mpi, "places.c")
        reference = steps.reference(mpi, 4, program)
        # The signal may come a minute early.
        words = ["--time=10", "--signal=TERM@60", "-N2", "--ntasks-per-node=2"]
        more = {"mpi": mpi, "env": {**ONE_CARD, "PLACES_HEARS": path}, "gates": [f"client.committed:{rank}:5" for rank in range(4)]}
        job, batch = by_srun_or_script(steps, inside, program, words, more)
        job.on = steps.nodes[1]
        # The others stand there, too, and take no processor while they do.
        victim = job.at_gate("client.committed", 3)
        number = number_of(steps)
        steps.slurm.update(f"jobid={number}", "endtime=now+100")
        eventually(lambda: heard(path), "the signal before the end", 60)
        all_heard(path, "TERM")
        job.kill(victim)
        if batch:
            about = batch.becomes("COMPLETED", 60)
            said = batch.text
            check(about["ExitCode"] == "0:0" and "srun ended with 0" in said and Output(said).results == reference.results, said)
        else:
            job.expect(0, reference)
            said = job.output.text + job.err
        check(said.count("ftd: recovery, epoch") == 1 and "cancelled" not in said and Output(said).starts == [None, 5], said)
        steps.empty()


@scenario("slurm-signal-ends", cluster=True, timeout=120, each=[{"name": "TERM"}, *([{"name": "USR2"}, {"name": "XCPU"}] if registry.soak else [])])
def signal_ends(context, name):
    """Ranks whose handlers save and exit have the time that they take, longer than ftd gives its own, though one has ended long before, and their status is srun's; nothing is
    recovered."""
    mpi = context.mpi("mpich5")
    with Steps(context, 2) as steps:
        program = steps.cluster.program(mpi, "leaving.c")
        env = {**ONE_CARD, "LEAVING_DIR": context.work, "LEAVING_STATUS": 5}
        job = steps.srun("-N2", "--ntasks-per-node=2", program, "save", mpi=mpi, env=env, gates=["app.told:3"])
        job.on = steps.nodes[1]
        eventually(lambda: all((context.work / f"ready.{rank}").exists() for rank in range(4)), "the ranks", 30)
        send(steps, name)
        last = job.at_gate("app.told", 3)
        eventually(lambda: all((context.work / f"printed.{rank}").exists() for rank in range(3)), "the others to save", 30)
        # Ten seconds are what ranks have elsewhere.
        time.sleep(12)
        check(proc.alive(last), "the last one was not waited for")
        job.go("app.told", 3)
        ended = job.wait(30)
        number = signal.Signals["SIG" + name].value
        lines = [line for line in job.output.text.splitlines() if line.startswith("saved")]
        check(ended == 5 and sorted(lines) == [f"saved {rank} {number}" for rank in range(4)], f"{ended}: {job.output.text}{job.err}")
        check("recovery" not in job.err and job.err.count(f"the job was cancelled by SIG{name}") == 1, job.err)
        steps.empty()


# Seconds; Slurm lets 30 pass between two looks at the times of jobs: one comes before that, and one soon after.
LATER = 31


@scenario("slurm-time-limit", cluster=True, timeout=150, each=[{"ends": "itself"}, {"ends": "killed"}])
def time_limit(context, ends):
    """When a job's time is over its ranks have the signal that was asked for before, then SIGTERM and Slurm's time to end by themselves, and SIGKILL
    after that: nobody takes it for a failure, nothing is started again, srun says what Slurm says of it, and nothing is left."""
    text = HEARS if ends == "itself" else HEARS.replace("; exit 5", "")
    with Steps(context, 2) as steps:
        job = steps.srun("--time=10", "--signal=USR1@5", *ON_TWO, "/bin/sh", "-c", text)
        eventually(lambda: job.output.text.count("ready") == 2, "the ranks", 20)
        number = number_of(steps)
        # A time limit is of minutes, an end of seconds.
        steps.slurm.update(f"jobid={number}", f"endtime=now+{LATER}")
        eventually(lambda: job.output.text.count("usr1") == 2, "the signal before the end", 60)
        ended = job.wait(120)
        print(f"  {ended}: {job.output.text}{job.err}", flush=True)
        lines = sorted(job.output.text.splitlines())
        # Slurm's daemons send SIGTERM once or twice to a node when a job's time is over.
        once = [line for n, line in enumerate(lines) if not line.startswith("term") or line not in lines[:n]]
        check(once == sorted(f"{word} {rank}" for word in ("ready", "term", "usr1") for rank in range(2)), f"{ended}: {lines}{job.err}")
        check("recovery" not in job.err and "DUE TO TIME LIMIT" in job.err, job.err)
        # That of the handlers, or of srun's tasks.
        check(ended == (5 if ends == "itself" else 137), f"{ended}: {job.err}")
        steps.empty()


# Seconds; longer than ftd waits for anybody of a job who says nothing.
SUSPENDED = 20


def computes(pid):
    """Whether a rank that does not sleep takes any of the processors."""
    before = proc.processor_time(pid)
    time.sleep(0.3)
    return proc.processor_time(pid) != before


@scenario("slurm-suspend", cluster=True, timeout=150, each=[{"inside": "srun"}, {"inside": "sbatch"}])
def suspend(context, inside):
    """A job that is suspended for longer than all of ftd's patience, and resumed, goes on where it was, in the same epoch: nobody of it was dead."""
    mpi = context.mpi("mpich5")
    with Steps(context, 2) as steps:
        program = steps.cluster.program(mpi, "places.c")
        reference = steps.reference(mpi, 4, program)
        layout = ["-N2", "--ntasks-per-node=2"]
        more = {"mpi": mpi, "env": ONE_CARD, "gates": ["app.compute:3"]}
        job, batch = by_srun_or_script(steps, inside, program, layout, more)
        job.on = steps.nodes[1]
        victim = job.at_gate("app.compute", 3)
        number = number_of(steps)
        for _ in range(2):
            steps.slurm.administrator("scontrol", "suspend", number)
            try:
                eventually(lambda: not computes(victim), "the rank to stand still", 20)
                before = proc.processor_time(victim)
                time.sleep(SUSPENDED)
                check(proc.processor_time(victim) == before, "the rank does not stand still any more")
            finally:
                # Nobody can end what is frozen.
                steps.slurm.administrator("scontrol", "resume", number)
            eventually(lambda: computes(victim), "the rank to go on", 20)
            time.sleep(2)
        job.go("app.compute", 3)
        if batch:
            batch.becomes("COMPLETED", 60)
            said = batch.text
            check("srun ended with 0" in said and Output(said).results == reference.results, said)
        else:
            job.expect(0, reference)
            said = job.output.text + job.err
        stood_still(said)
        steps.empty()


def stood_still(said):
    """A job that was suspended says no more than that nodes have not heard of each other, and that all goes on."""
    check(Output(said).starts == [None] and "recovery" not in said, said)
    lines = [line for line in said.splitlines() if line.startswith("ftd:")]
    check(not [line for line in lines if not re.search("^ftd: the ranks of node[01] (are stopped: its observers are silent|go on)$", line)], said)


@scenario("slurm-suspend-preempted", cluster=True, timeout=150)
def preempted(context):
    """The same of a job that Slurm suspends itself because one of more worth wants its nodes, and resumes when that is over."""
    mpi = context.mpi("mpich5")
    partition = "PartitionName={} Nodes=ALL Default={} MaxTime=INFINITE State=UP OverSubscribe=FORCE:1 PriorityTier={}\n"
    lines = "PreemptType=preempt/partition_prio\nPreemptMode=SUSPEND,GANG\nSchedulerTimeSlice=5\n" + partition.format("all", "YES", 1) + partition.format("urgent", "NO", 9)
    with Steps(context, 2, slurm=lines) as steps:
        program = steps.cluster.program(mpi, "places.c")
        reference = steps.reference(mpi, 4, program)
        job = steps.srun("-N2", "--ntasks-per-node=2", program, mpi=mpi, env=ONE_CARD, gates=["app.compute:3"])
        job.on = steps.nodes[1]
        victim = job.at_gate("app.compute", 3)
        urgent = steps.slurm.job("srun", "--partition=urgent", "-N2", f"--ntasks-per-node={CPUS}", "/bin/sleep", str(SUSPENDED))
        eventually(lambda: not computes(victim), "the rank to stand still", 20)
        before = proc.processor_time(victim)
        check(urgent.running(), urgent.err)
        urgent.expect(0)
        eventually(lambda: computes(victim), "the rank to go on", 30)
        check(proc.processor_time(victim) - before < SUSPENDED / 2, "the rank has not stood still all the time")
        job.go("app.compute", 3)
        job.expect(0, reference)
        stood_still(job.output.text + job.err)
        steps.empty()


@scenario("slurm-again", cluster=True, timeout=150, each=[{"by": "requeue"}, {"by": "preempted"}])
def again(context, by):
    """A job that is queued again, by its user or because one of more worth wants its nodes, is no failed one: nothing of it stays on its nodes, and
    it begins anew when it can, without a word of ftd's."""
    mpi = context.mpi("mpich5")
    partition = "PartitionName={} Nodes=ALL Default={} MaxTime=INFINITE State=UP OverSubscribe=NO PriorityTier={}\n"
    lines = f"PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n{partition.format('all', 'YES', 1)}{partition.format('urgent', 'NO', 9)}"
    with Steps(context, 2, slurm=lines) as steps:
        program = steps.cluster.program(mpi, "places.c")
        reference = steps.reference(mpi, 4, program)
        (context.work / "job.sh").write_text(f"#!/bin/sh\nset -- {program}\n{SCRIPT.replace('$0', '$1')}\n")
        words = ["--ft=reinit", "--requeue", "--exclusive", "-N2", "--ntasks-per-node=2", "--open-mode=append", "job.sh"]
        job, batch = handed_in(steps, *words, mpi=mpi, env=ONE_CARD, gates=["app.compute:3"])
        job.on = steps.nodes[1]
        victim = job.at_gate("app.compute", 3)
        if by == "requeue":
            status, _, err = steps.slurm.run("scontrol", "requeue", batch.number)
            check(status == 0, err)
        else:
            said = steps.slurm.run("srun", "--partition=urgent", "--exclusive", "-N2", "/bin/sh", "-c", "echo here")
            check(said[:2] == (0, "here\nhere\n"), f"{said}")
        eventually(lambda: not proc.alive(victim), "the rank to end", 30)
        eventually(lambda: batch.about()["JobState"] == "PENDING" and not any(steps.of_job(node) for node in steps.nodes), "the job to be off its nodes", 30)
        steps.slurm.update(f"jobid={batch.number}", "starttime=now")
        about = batch.becomes("COMPLETED", 90)
        check((about["Restarts"], about["ExitCode"]) == ("1", "0:0"), f"{about}")
        said = batch.text
        check(said.count("srun ended with 0") == 1 and Output(said).results == reference.results, said)
        check(Output(said).starts == [None, None] and "recovery" not in said, said)
        steps.empty()


EVERY, LENGTH = 20, 120


def lammps_input(context):
    """An input that goes on from restart files on the nodes' file system, if there are any."""
    fill = lambda text: text.replace("FT_CHECKPOINT_DIR", "DIR").replace("FIRST", str(EVERY)).replace("EVERY", str(EVERY)) \
        .replace("STEPS", str(LENGTH)).replace("SIDE", "10")
    (context.work / "in.melt").write_text(fill(LAMMPS_INPUT))
    (context.work / "melt.new").write_text(fill(LAMMPS_NEW))
    directory = context.work / "restart"
    directory.mkdir()
    return directory


def at_rest(steps, directory):
    """Ranks 0 and 3 of LAMMPS when it has written restart files, and writes none: rank 3 stands still, on the second node."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        first, victim = ranks_of(steps.nodes[0], "lmp").get(0), ranks_of(steps.nodes[1], "lmp").get(3)
        if first and victim and (directory / f"melt.{2 * EVERY}.restart").exists():
            proc.freeze(victim)
            # The others get no further than to the next step without it.
            until = time.monotonic() + 0.3
            while time.monotonic() < until and _open_restart(first) is None:
                time.sleep(0.005)
            if _open_restart(first) is None:
                return victim
            os.kill(victim, signal.SIGCONT)
        time.sleep(0.005)
    raise Failed("LAMMPS has not come so far within a minute")


@scenario("slurm-lammps", cluster=True, timeout=150, each=[{"how": "in"}, {"how": "stdin"}])
def lammps(context, how):
    """`srun --ft=reinit lmp`, unmodified, over two nodes, also with its input on srun's standard input: a rank is killed, and it goes on from its
    newest restart file as it does by hand."""
    mpi = context.mpi("openmpi4")
    with Steps(context, 2) as steps:
        directory = lammps_input(context)
        steps.cluster.give(directory)
        command = ["/usr/bin/lmp", "-log", "none", *(["-in", "in.melt"] if how == "in" else [])]
        env = {**ONE_CARD, "DIR": directory}
        with open(context.work / "in.melt", "rb") as text:
            job = steps.srun("-N2", "--ntasks-per-node=2", *command, mpi=mpi, env=env, stdin=text if how == "stdin" else None)
        victim = at_rest(steps, directory)
        check(job.running() and "result" not in job.output.text, "it was over before")
        job.kill(victim)
        eventually(lambda: "Reading restart" in job.output.text, "the next world to read a restart file", 60)
        by_hand = context.work / "by-hand"
        shutil.copytree(directory, by_hand)
        steps.cluster.give(by_hand, *by_hand.iterdir())
        job.expect(0, patience=100)
        check(job.err.count("ftd: recovery, epoch") == 1 and job.output.results == ["done"], f"{job.output.results}: {job.err}")
        again = _thermo(job.output.text)
        first = min(again)
        check(first > 0 and first % EVERY == 0, f"it began at step {first}")
        for path in by_hand.glob("melt.*.restart"):
            if int(path.name.split(".")[1]) > first:
                path.unlink()
        command = mpi.mpiexec(4, "/usr/bin/lmp", "-log", "none", "-in", "in.melt")
        env = context.env(mpi, {**ONE_CARD, "DIR": by_hand})
        status, out, err = steps.nodes[0].run(*command, user=steps.cluster.user, env=env, cwd=context.work, patience=100)
        check(status == 0, f"by hand: {status} {out[-2000:]}{err}")
        check(again == _thermo(out), f"from step {first} on:\n{again}\nby hand:\n{_thermo(out)}")
        steps.empty()


@scenario("slurm-power", cluster=True, timeout=120)
def power(context):
    """All nodes of a job lose their power at once. When one of them is back its daemon knows of the part that was there, and gives the job's record to a lease,
    for nobody else has written one without that node; of a job that runs on, whose daemons were only started again, the record stays as it is."""
    with Steps(context, 3) as steps:
        lost = steps.srun("-N2", "--ntasks-per-node=1", "-w", ",".join(steps.slurm.names[node.name] for node in steps.nodes[:2]), "/bin/sh", "-c", WAITS)
        eventually(lambda: lost.output.text.count("ready") == 2, "the ranks", 30)
        (key,) = [key for key in steps.keys() if key.endswith("/epoch")]
        noted = lambda node: list((node.directory / "jobs").glob(f"{job}.*"))
        job = key.split("/")[-2]
        eventually(lambda: all(noted(node) for node in steps.nodes[:2]), "the job to be noted on both nodes", 20)
        for daemon in (steps.daemons[0], steps.daemons[1]):
            daemon.kill()
            daemon.start()
            # The machine has the same life before it.
            daemon.says("the jobs that this node had parts of are looked through", times=2)
            check("has started anew since" not in daemon.said(), "a daemon that was started again has buried the job's part")
        check(key in steps.keys() and lost.running(), f"{steps.keys()}: {lost.err}")
        for node in steps.nodes[:2]:
            node.power_off()
        check(key in steps.keys(), "somebody was there to see to it")
        first = steps.nodes[0]
        first.boot()
        steps.daemons[0] = steps.daemon(first).start()
        eventually(lambda: key not in steps.keys(), "the record to hang on a lease", 60)
        check(job in steps.store.get("/ftd/jobs/", "--prefix", "--keys-only"), "it is not removed")
        eventually(lambda: not noted(first), "the job to be noted no more", 20)
        lost.kill(lost.pid)


# Lines that each rank of `flood` prints in each of its steps, and how many steps.
LINES, STEPS = 5000, 10
# Reads a little, and the rest when it may.
READER = "{ head -c 1000 >out; until [ -e go ]; do sleep 0.1; done; cat >>out; }"


@scenario("slurm-slow-reader", cluster=True, timeout=120)
def slow_reader(context):
    """Nobody reads what srun prints, so that ranks wait in their output, when a node is lost: when it is read again all comes to its end. Of the ranks
    whose node lives no line is missing, and of the others none of what they have printed since the restored version."""
    mpi = context.mpi("mpich5")
    with Steps(context, 3) as steps:
        program = steps.cluster.program(mpi, "flood.c")
        line = f"(srun --ft=reinit -N3 --ntasks-per-node=2 {program} {STEPS} {LINES} 2>err; echo $? >status) | {READER}"
        job = steps.slurm.job("/bin/sh", "-c", line, mpi=mpi, env={**ONE_CARD, "FT_SPARES": "1"})
        waits = lambda pid: "pipe_write" in pathlib.Path(f"/proc/{pid}/wchan").read_text()
        eventually(lambda: any(map(waits, steps.nodes[1].named("flood.mpich5"))), "a rank that waits in its output", 30)
        steps.nodes[1].crash()
        err = context.work / "err"
        eventually(lambda: "node node1 was silent for the heartbeat time-out" in err.read_text(), "the recovery's block", 30)
        check((context.work / "out").stat().st_size == 1000, "somebody reads")
        (context.work / "go").touch()
        job.expect(0, patience=60)
        said = err.read_text()
        check((context.work / "status").read_text() == "0\n" and said.count("ftd: recovery, epoch") == 1, said)
        (version,) = re.findall(r"restored  version (\d+) ", said) or ["0"]
        there = set(re.findall(r"^rank (\d) step (\d+) line (\d+)", (context.work / "out").read_text(), re.MULTILINE))
        missing = [found for found in itertools.product(range(4), range(1, STEPS + 1), range(LINES)) if tuple(map(str, found)) not in there]
        lost = [found for found in missing if found[0] < 2 or found[1] > int(version)]
        check(not lost, f"of {len(missing)} lines that are missing {len(lost)} were on nodes that live: {lost[:3]}; {said}")
        steps.empty(steps.nodes[1])
