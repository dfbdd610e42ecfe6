"""Signals that end the job, helpers that die before the first epoch, and helpers that are frozen."""

import contextlib
import os
import pathlib
import random
import re
import signal
import time

from harness import proc, registry, root
from harness.job import check
from harness.registry import scenario
from scenarios.matrix import traced


def leaving(context, mpi, size, *how, env=None, wrapper=None, **more):
    """A job of `leaving` whose ranks compute."""
    program = context.program(mpi, "leaving.c")
    command = [program, *map(str, how)] if wrapper is None else ["bash", "-c", wrapper, program, *map(str, how)]
    job = context.ftrun(mpi, size, *command, env={"LEAVING_DIR": context.work, **(env or {})}, **more)
    ready(context, job, size)
    return job


def ready(context, job, size, what="ready"):
    """Waits until every rank has left that file."""
    eventually(job, lambda: len(list(context.work.glob(f"{what}.[0-9]"))) == size, f"not all of {size} ranks are {what}")


def eventually(job, condition, complaint, patience=30.0):
    """Polls with a bound."""
    deadline = time.monotonic() + patience
    while not condition():
        check(time.monotonic() < deadline, f"{complaint}\n{job.err}")
        check(job.running() or condition(), f"the job ended: {complaint}\n{job.err}")
        time.sleep(0.002)


def saved(job):
    """Ranks that have said that they saved."""
    return sorted(int(line.split()[1]) for line in job.output.text.splitlines() if line.startswith("saved "))


def no_recovery(job):
    """After the signal nothing is a failure."""
    check("failed" not in job.err and job.restored == [], f"a death after the signal was taken for a failure: {job.err}")


@scenario("signal-save", public=True, each=[
    {"mpi": "mpich4", "number": "SIGTERM"}, {"mpi": "openmpi4", "number": "SIGINT"}, {"mpi": "openmpi5", "number": "SIGTERM"},
    {"mpi": "mpich4", "number": "SIGHUP"}, {"mpi": "mpich4", "number": "SIGQUIT"}, {"mpi": "mpich4", "number": "SIGXCPU"},
    {"mpi": "mpich4", "number": "SIGALRM"}])
def signal_save(context, mpi, number):
    """The ranks hear it first and save, each at its own pace; that all ended by themselves with 0 is the job's status."""
    job = leaving(context, context.mpi(mpi), 3, "save", 150)
    job.interrupt(getattr(signal, number))
    job.expect(0)
    check(saved(job) == [0, 1, 2], f"saved by {saved(job)}")
    check(f"cancelled by {number}, and its ranks ended by themselves" in job.err, job.err)
    no_recovery(job)


@scenario("signal-everybody", each=[{"number": n} for n in
          ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGXCPU", "SIGALRM", "SIGUSR1", "SIGUSR2")])
def signal_everybody(context, number):
    """All processes of the job get it, as batch systems and `systemctl stop` send it: helpers do not die of it, the ranks have
    their time to save, and what only ranks heed ends nothing."""
    ends = not number.startswith("SIGUSR")
    job = leaving(context, context.mpi("openmpi5"), 3, *(("save", 150) if ends else ("finalize", 0)))
    for pid in [job.pid, *proc.descendants(job.pid)]:
        # Of the first ones' the last ones may have ended, where the machine is busy.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, getattr(signal, number))
    job.expect(0)
    check(saved(job) == [0, 1, 2], f"saved by {saved(job)}")
    check((f"cancelled by {number}, and its ranks ended by themselves" in job.err) == ends, job.err)
    check("died" not in job.err and "ended by" not in job.err.replace("ranks ended by", ""), f"a helper died: {job.err}")
    no_recovery(job)


@scenario("signal-status", each=[{"how": h} for h in ("code", "finalize", "killed", "none")])
def signal_status(context, how):
    """All by themselves: their status, as without ftd; otherwise 128 + the signal."""
    mpi = context.mpi("mpich4")
    if how == "killed":
        job = leaving(context, mpi, 3, "save", 600, gates=["app.told:1"])
        job.interrupt(signal.SIGTERM)
        job.kill(job.at_gate("app.told", 1))
        job.expect(143)
        check(saved(job) == [0, 2], f"saved by {saved(job)}")
    else:
        env = {"LEAVING_STATUS": 7} if how != "finalize" else {}
        words = ["finalize" if how == "finalize" else "save", 0]
        job = leaving(context, mpi, 3, *words, env=env, ft="none" if how == "none" else "reinit")
        job.interrupt(signal.SIGTERM)
        job.expect(0 if how == "finalize" else 7)
        check(saved(job) == [0, 1, 2], f"saved by {saved(job)}")
    no_recovery(job)


@scenario("signal-default", public=True, each=[{"ft": "none"}, {"ft": "reinit"}])
def signal_default(context, ft):
    """Ranks without a handler die of the signal, and the job ends with 128 + it, at once and without a recovery."""
    mpi = context.mpi("mpich4")
    job = context.ftrun(mpi, 3, context.program(mpi, "places.c"), gates=["app.compute:1"], ft=ft, options=["--ft-grace=60"])
    job.at_gate("app.compute", 1)
    job.interrupt(signal.SIGTERM)
    check(job.wait(30) == 143, f"exit status {job.process.returncode}")
    check(job.err.count("ftrun: the job was cancelled by SIGTERM\n") == 1, job.err)
    no_recovery(job)


@scenario("signal-wrapper", public=True, each=[{"mpi": "mpich4"}, {"mpi": "openmpi4"}])
def signal_wrapper(context, mpi):
    """The signal goes to the rank below a wrapper that would die of it; what the wrapper does afterwards it can do."""
    wrapper = '"$0" "$@"; code=$?; cp "$FT_CHECKPOINT_DIR/saved.$FT_RANK" "$LEAVING_DIR/copied.$FT_RANK"; exit $code'
    job = leaving(context, context.mpi(mpi), 3, "save", 100, wrapper=wrapper)
    job.interrupt(signal.SIGTERM)
    job.expect(0)
    copied = sorted(path.read_text().strip() for path in context.work.glob("copied.*"))
    check(saved(job) == [0, 1, 2] and copied == ["0", "1", "2"], f"saved by {saved(job)}, copied {copied}")
    no_recovery(job)


# Its program has ended, and it has not waited for that yet: it works on what has come of it.
WORKS_ON = '''
import os, signal, subprocess, sys
program = subprocess.Popen(sys.argv[1:])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
open(os.environ["HERE"] + "/works." + os.environ["FT_RANK"], "w").close()
signal.sigwait([signal.SIGTERM])
print("wrapper saved", flush=True)
'''


@scenario(
    "signal-wrapper-works-on", public=True,
    each=[{"mpi": "mpich4", "above": ""}, {"mpi": "openmpi4", "above": ""}, {"mpi": "mpich4", "above": "script"}],
)
def signal_wrapper_works_on(context, mpi, above):
    """A wrapper whose rank has ended hears the signal itself, also when it has not waited for the rank, and when it stands below
    another script."""
    mpi = context.mpi(mpi)
    script = ["bash", "-c", '"$@"; exit $?', "bash"] if above else []
    command = [*script, "/usr/bin/python3", "-c", WORKS_ON, context.program(mpi, "places.c")]
    job = context.ftrun(mpi, 2, *command, options=["--ft-grace=30"], env={"HERE": context.work})
    eventually(job, lambda: len(list(context.work.glob("works.*"))) == 2, "the ranks do not end")
    job.interrupt(signal.SIGTERM)
    job.expect(0)
    check(job.output.text.count("wrapper saved\n") == 2, job.output.text)
    no_recovery(job)


@scenario("wrapper-dies", each=[{"mpi": "mpich4", "how": "SIGTERM"}, {"mpi": "openmpi4", "how": "SIGKILL"}])
def wrapper_dies(context, mpi, how):
    """The death of a wrapper alone is none of its rank's: the rank computes on, its end is the slot's, and its own signals
    still reach it."""
    wrapper = '(env FT_INNER=1 "$0" "$@"; exit $?); exit $?'
    job = leaving(context, context.mpi(mpi), 3, "save", 0, wrapper=wrapper, env={"LEAVING_STATUS": 5, "LEAVING_TOGETHER": 3})
    ranks = job.ranks()
    for pid in (proc.stat(ranks[1])[1], proc.stat(proc.stat(ranks[2])[1])[1]):
        check(proc.name(pid) == "bash", f"{pid} is no wrapper but {proc.command(pid)}")
        os.kill(pid, getattr(signal, how))
        eventually(job, lambda: not proc.alive(pid), "the wrapper lives")
    # What comes to the agent now comes after the wrappers' ends.
    job.interrupt(signal.SIGUSR1)
    job.expect(5)
    check(saved(job) == [0, 1, 2], f"saved by {saved(job)}")
    check(job.output.text.count(f" {int(signal.SIGUSR1)}\n") == 3, job.output.text)
    check(job.restored == [] and "was killed" not in job.err, job.err)


SAVES = """
import os, signal, sys, time
def save(number, frame):
    print("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("rank", os.getpid(), "of world", os.environ["FT_WORLD"], file=sys.stderr, flush=True)
while True:
    time.sleep(1)
"""


@scenario("signal-after-recovery")
def signal_after_recovery(context):
    """Ranks that compute again after a failure have their time to save as well, though nobody has told ftd how far they are: of a
    program without MPI and without checkpoints nobody ever will."""
    job = context.ftrun(None, 2, "/usr/bin/python3", "-c", SAVES)
    [victim, _] = job.wait_err(r"rank (\d+) of world 1\n", 2)
    job.kill(int(victim))
    job.wait_err(r"rank (\d+) of world 2\n", 2)
    job.interrupt(signal.SIGTERM)
    job.expect(0)
    check(job.output.text == "saved\nsaved\n", f"{job.output.text}{job.err}")


@scenario("signal-grace")
def signal_grace(context):
    """Who has not ended when --ft-grace is over is killed, and named; a rank's death meanwhile is no failure."""
    job = leaving(context, context.mpi("mpich4"), 3, "stay", options=["--ft-grace=5"])
    victim = job.ranks()[0]
    begun = time.monotonic()
    job.interrupt(signal.SIGTERM)
    job.wait_err("the ranks have had SIGTERM and have [1-4] s more to end", 1)
    job.kill(victim)
    job.expect(143)
    check(time.monotonic() - begun >= 5, "the ranks had less than their time")
    check("ranks 1, 2 had not ended 5.0 s later (--ft-grace): killed" in job.err, job.err)
    no_recovery(job)


@scenario("signal-default-grace")
def signal_default_grace(context):
    """Without --ft-grace the ranks have 10 s."""
    job = leaving(context, context.mpi("mpich4"), 2, "stay")
    begun = time.monotonic()
    job.interrupt(signal.SIGTERM)
    (left,) = job.wait_err(r"the ranks have had SIGTERM and have (\d+) s more to end", 1)
    # It is said when a second has passed, without the rest of the second.
    elapsed = time.monotonic() - begun
    check(int(left) <= 9 <= int(left) + elapsed, f"{left} s more, after {elapsed:.1f} s")
    job.interrupt(signal.SIGTERM)
    job.expect(143)


@scenario("signal-twice")
def signal_twice(context):
    """The same signal twice within 100 ms is one; a later one kills at once."""
    job = leaving(context, context.mpi("mpich4"), 3, "stay", options=["--ft-grace=60"])
    # Both lie there when ftrun goes on, however long this process has to wait for a processor between them.
    launcher = job.launcher
    proc.freeze(job.pid, launcher)
    job.interrupt(signal.SIGINT)
    job.interrupt(signal.SIGTERM)
    for pid in (launcher, job.pid):
        os.kill(pid, signal.SIGCONT)
    # Said after a second, while the ranks live: so the second signal has killed nobody.
    job.wait_err(r"the ranks have had SIG(?:INT|TERM) and have [45]\d s more to end", 1)
    check(len(job.ranks()) == 3, f"ranks {job.ranks()} are left")
    job.interrupt(signal.SIGHUP)
    job.expect(129, patience=20)
    check("SIGHUP came again: everything was killed" in job.err, job.err)


@scenario("signal-timeout", public=True)
def signal_timeout(context):
    """`timeout` around ftrun: the ranks save, and what they saved can be copied out of $FT_CHECKPOINT_DIR."""
    mpi = context.mpi("mpich4")
    wrapper = '"$0" save 200; cp "$FT_CHECKPOINT_DIR/saved.$FT_RANK" "$LEAVING_DIR/copied.$FT_RANK"'
    job = context.script(
        'for seconds in 3 15; do\n'
        '    timeout -s TERM $seconds "$FTRUN" -n 2 --ft=reinit bash -c "$2" "$1"; status=$?\n'
        # On a slow machine the time may be over before the ranks compute.
        '    [ ! -e "$LEAVING_DIR/ready.0" ] || [ ! -e "$LEAVING_DIR/ready.1" ] || break\n'
        'done; echo "status $status"',
        context.program(mpi, "leaving.c"), wrapper, mpi=mpi, env={"LEAVING_DIR": context.work})
    job.expect(0)
    check(saved(job) == [0, 1] and len(list(context.work.glob("copied.*"))) == 2, job.output.text)
    check("status 124\n" in job.output.text, "timeout says that it had to: " + job.output.text)


TIMER = """
import os, signal, sys
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))
os.execv(sys.argv[2], sys.argv[2:])
"""
HEARS = 'trap "echo saved $FT_RANK; exit 0" ALRM; touch "$HERE/hears.$FT_RANK"; while :; do sleep 0.01; done'


@scenario("signal-timer")
def signal_timer(context):
    """A timer that was set before ftrun took the process over (setitimer, then exec) is the kernel's signal to the process that
    was started, and to that one alone: it reaches the ranks once, as SIGALRM from anybody does."""
    for seconds in (1, 4, 16):
        job = context.start(["/usr/bin/python3", "-c", TIMER, seconds, context.prefix / "bin/ftrun", "-n", "2", "--ft=reinit",
                             "bash", "-c", HEARS], env={"HERE": context.work})
        heard = lambda: all((context.work / f"hears.{rank}").exists() for rank in (0, 1))  # noqa: E731
        while not (ready := heard()) and "cancelled" not in job.err and job.running():
            time.sleep(0.002)
        status = job.wait(30)
        # On a slow machine the timer may come first.
        if ready:
            break
    check(ready and status == 0, f"exit status {status}: {job.err}")
    check(sorted(job.output.text.split()) == ["0", "1", "saved", "saved"], job.output.text)
    check("cancelled by SIGALRM, and its ranks ended by themselves" in job.err and "again" not in job.err, job.err)
    no_recovery(job)


@scenario("signal-agent-dies")
def signal_agent_dies(context):
    """The agent's death after the signal is no failure either."""
    job = leaving(context, context.mpi("mpich4"), 3, "stay", options=["--ft-grace=60"])
    job.interrupt(signal.SIGTERM)
    job.wait_err("more to end", 1)
    job.kill(job.one("ft-agent"))
    job.expect(143, patience=20)
    check("the job was cancelled by SIGTERM, and its agent died" in job.err, job.err)
    no_recovery(job)


@scenario("signal-usr", each=[{"number": "SIGUSR1"}])
def signal_usr(context, number):
    """SIGUSR1 goes to the rank and not to a wrapper that would die of it; it ends nothing by itself."""
    job = leaving(context, context.mpi("mpich4"), 2, "finalize", 0, wrapper='"$0" "$@"; exit $?')
    job.interrupt(getattr(signal, number))
    job.expect(0)
    check(saved(job) == [0, 1] and "cancelled" not in job.err, job.err)


# --- before the first epoch -------------------------------------------------------------------------------------------

EARLY = ("agent.born", "agent.described", "agent.complete", "agent.recorded", "shepherd.born:1", "shepherd.dialled:1")


@scenario("early-kill", each=[{"place": p, "victims": v} for p in EARLY for v in ("agent", "shepherd", "both", "all")])
def early_kill(context, place, victims):
    """Whoever of ftd's dies before the first epoch is recorded, or at that moment: the job starts with all its ranks."""
    mpi = context.mpi("mpich4")
    name, _, slot = place.partition(":")
    gate = place if slot else f"{place}:*"
    job = context.ftrun(mpi, 4, context.program(mpi, "ending.c"), "ok", gates=[gate])
    where = (name, slot or "-")
    stands = job.at_gate(*where)
    # ftrun starts the agent after the first shepherd, and goes on to start the others while the agent is at its gate.
    eventually(job, lambda: len(job.below("ft-shepherd")) == 4 and job.below("ft-agent"), "not everybody has been started")
    agent, shepherds = job.one("ft-agent"), job.below("ft-shepherd")
    one = stands if slot else shepherds[2]
    doomed = {"agent": [agent], "shepherd": [one], "both": [agent, one], "all": [agent, *shepherds]}[victims]
    job.kill_all({f"process {pid}": pid for pid in doomed})
    job.go(*where)
    job.expect(0, patience=40)
    check("result of ending" in job.output.text and "the job cannot start" not in job.err, job.err)


@scenario("early-kill-again", each=[{"victims": v} for v in ("shepherd", "both")])
def early_kill_again(context, victims):
    """The replacement of a shepherd dies before it has dialled in, alone or together with the agent."""
    mpi = context.mpi("mpich4")
    job = context.ftrun(mpi, 4, context.program(mpi, "ending.c"), "ok", gates=["agent.complete:*", "shepherd.born:4"])
    agent = job.at_gate("agent.complete")
    shepherds = job.below("ft-shepherd")
    job.kill_all({"agent": agent, "shepherd": shepherds[1]})
    replacement = job.at_gate("shepherd.born", 4)
    job.kill_all({"agent": job.one("ft-agent"), "shepherd": replacement} if victims == "both" else {"shepherd": replacement})
    job.expect(0, patience=40)


@scenario("replacement-dies")
def replacement_dies(context):
    """The same in a recovery."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "places.c")
    job = context.ftrun(mpi, 3, program, gates=["app.compute:1", "shepherd.born:3"])
    job.kill(job.shepherd_of(job.at_gate("app.compute", 1)))
    job.kill(job.at_gate("shepherd.born", 3))
    job.expect(0, context.reference(mpi, 3, program))
    check(job.restored == [5], f"restored {job.restored}")


@scenario("early-kills", timeout=240, each=[{"seed": s} for s in range(4)] if registry.soak else [])
def early_kills(context, seed):
    """Random kills of agent and shepherds in the first 40 ms of many jobs: each of them runs."""
    dice = random.Random(seed)
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "ending.c")
    for _ in range(40):
        size = dice.randint(1, 5)
        job = context.ftrun(mpi, size, program, "ok")
        for _ in range(dice.randint(1, 3)):
            time.sleep(dice.uniform(0, 0.04))
            found = [*job.below("ft-shepherd"), *job.below("ft-agent")]
            for pid in dice.sample(found, dice.randint(0, len(found))):
                try:
                    job.kill(pid)
                except ProcessLookupError:
                    pass
        job.expect(0, patience=60)


# --- helpers that are frozen ------------------------------------------------------------------------------------------


# A slot of which nothing is left when the epoch is agreed is not stopped: this one waits for that.
WAITS = ["bash", "-c", '"$@" || sleep 600', "bash"]


def stand(context, size=4, gates=(), wrapper=()):
    """A job of `places` with rank 1 at its place; its ranks have checkpointed version 5."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "places.c")
    job = context.ftrun(mpi, size, *wrapper, program, gates=["app.compute:1", *gates], hurry=10)
    return job, job.at_gate("app.compute", 1), context.reference(mpi, size, program)


def restored_5(job):
    """No world after the first lost the checkpoint. (In a hurry the block of a recovery does not wait for it.)"""
    starts = job.output.starts
    check(starts[0] is None and set(starts[1:]) == {5}, f"restored {starts}")


@scenario("frozen-stopped", each=[{"what": w} for w in ("agent", "shepherd", "everybody")])
def frozen_stopped(context, what):
    """A helper that was stopped is continued, and this is said; what waited for it happens then, and nothing is lost."""
    job, rank, reference = stand(context)
    agent, own = job.one("ft-agent"), job.shepherd_of(rank)
    other = next(pid for pid in job.below("ft-shepherd") if pid != own)
    stopped = {"agent": [agent], "shepherd": [other], "everybody": [agent, *job.below("ft-shepherd")]}[what]
    proc.freeze(*stopped)
    job.kill(rank)
    job.expect(0, reference)
    restored_5(job)
    for pid in stopped:
        check(job.err.count(f"(process {pid}) was stopped and is continued") == 1, f"nothing is said of {pid}: {job.err}")
    check("replaced" not in job.err and "died" not in job.err, job.err)


@scenario("frozen-pmix", each=[{"mpi": "openmpi4"}, {"mpi": "openmpi5"}])
def frozen_pmix(context, mpi):
    """The same of ft-pmix: ranks that finalize wait for it no longer than that."""
    mpi = context.mpi(mpi)
    program = context.program(mpi, "places.c")
    job = context.ftrun(mpi, 3, program, gates=["app.compute:1"], hurry=10)
    job.at_gate("app.compute", 1)
    stopped = job.below("ft-pmix")
    proc.freeze(*stopped)
    job.go("app.compute", 1)
    job.expect(0, context.reference(mpi, 3, program))
    check(job.restored == [], f"restored {job.restored}")
    found = re.findall(r"ft-pmix \(process (\d+)\) was stopped and is continued", job.err)
    check(sorted(map(int, found)) == sorted(stopped), job.err)


@scenario("frozen-hanging", timeout=90, each=[{"what": w} for w in ("agent", "shepherd", "shepherds", "newborn")])
def frozen_hanging(context, what):
    """A helper that runs and does not answer (it stands at a gate) is ended and replaced like a dead one, shepherds one after
    the other: no checkpoint is lost."""
    gates = {"agent": ["agent.noticed"], "shepherd": ["shepherd.stop:2"], "shepherds": ["shepherd.stop"],
             "newborn": ["shepherd.born:3"]}[what]
    job, rank, reference = stand(context, size=3, gates=gates, wrapper=WAITS if what == "shepherds" else ())
    job.kill(job.shepherd_of(rank) if what == "newborn" else rank)
    hanging = {
        "agent": lambda: [job.at_gate("agent.noticed")],
        "shepherd": lambda: [job.at_gate("shepherd.stop", 2)],
        "shepherds": lambda: [job.at_gate("shepherd.stop", slot) for slot in range(3)],
        "newborn": lambda: [job.at_gate("shepherd.born", 3)],
    }[what]()
    job.expect(0, reference)
    restored_5(job)
    for pid in hanging:
        check(job.err.count(f"(process {pid}) does not answer: it is ended and replaced") == 1, job.err)
    check("after SIGKILL" not in job.err, job.err)


@scenario("frozen-at-the-start", timeout=90, each=[{"place": p} for p in ("agent.born", "agent.described", "shepherd.born:1")])
def frozen_at_the_start(context, place):
    """The same before the first epoch."""
    mpi = context.mpi("mpich4")
    name, _, slot = place.partition(":")
    job = context.ftrun(mpi, 3, context.program(mpi, "ending.c"), "ok", gates=[place], hurry=10)
    pid = job.at_gate(name, slot or "-")
    job.expect(0)
    check(f"(process {pid}) does not answer: it is ended and replaced" in job.err, job.err)


@scenario("frozen-at-the-end")
def frozen_at_the_end(context):
    """A shepherd that hangs when the job is over is ended with it, and named; the status is the job's."""
    mpi = context.mpi("mpich4")
    job = context.ftrun(mpi, 2, context.program(mpi, "ending.c"), "ok", gates=["shepherd.leaves:1"])
    pid = job.at_gate("shepherd.leaves", 1)
    job.expect(0)
    check(f"ftrun: the shepherd of slot 1 (process {pid}): still there 5 s after the job's end, and killed\n" in job.err, job.err)


@scenario("dead-at-the-end")
def dead_at_the_end(context):
    """A shepherd that has ended, and that the kernel has not let go of 5 s after the job's end, is nobody to complain of: giving back
    gigabytes takes its time. (Here a tracer keeps it from being gone.)"""
    job = context.ftrun(None, 2, "true", gates=["shepherd.leaves:1"])
    pid = job.at_gate("shepherd.leaves", 1)
    proc.hold_end(pid)
    job.go("shepherd.leaves", 1)
    eventually(job, lambda: not proc.alive(pid), "the shepherd does not end")
    begun = time.monotonic()
    while time.monotonic() < begun + 5.5:
        check(job.running(), f"ftrun has not waited: {job.err}")
        time.sleep(0.05)
    proc.release(pid)
    job.expect(0)
    check(job.err == "", job.err)


@scenario("frozen-few", each=[{"place": p, "size": n} for p in ("born", "stop") for n in (1, 2)])
def frozen_few(context, place, size):
    """In a job of one or two ranks all shepherds hang, before they have dialled in or later: none of them is the last keeper of
    anything, and they are replaced."""
    mpi = context.mpi("mpich4")
    if place == "born":
        program, gates = [context.program(mpi, "ending.c"), "ok"], [f"shepherd.born:{slot}" for slot in range(size)]
    else:
        program, gates = [context.program(mpi, "places.c")], ["app.compute:0", "shepherd.stop"]
    job = context.ftrun(mpi, size, *(WAITS if place == "stop" else []), *program, gates=gates, hurry=20)
    if place == "stop":
        job.kill(job.at_gate("app.compute", 0))
    hanging = [job.at_gate(f"shepherd.{place}", slot) for slot in range(size)]
    job.expect(0, None if place == "born" else context.reference(mpi, size, *program))
    for pid in hanging:
        check(job.err.count(f"(process {pid}) does not answer: it is ended and replaced") == 1, job.err)
    if place == "stop":
        restored_5(job)


@scenario("frozen-newborns", each=[{"size": 1}, {"size": 2}])
def frozen_newborns(context, size):
    """Every shepherd hangs before it has dialled in, and so does each that replaces it: the job ends and says so."""
    job = context.ftrun(None, size, "echo", "hi", gates=["shepherd.born:*"], hurry=20)
    job.expect(1)
    check("has not answered within 35 s of its start, nor have the 2 that it replaced" in job.err, job.err)
    check(job.output.text == "", job.output.text)


@scenario("last-keeper", each=[{"size": n, "how": h} for n in (1, 2) for h in ("returns", "stays", "given-up")])
def last_keeper(context, size, how):
    """After the agent's death no shepherd answers any more: they keep the last copies of a checkpoint, and are not ended. They
    answer after all, and nothing is lost; or their user gives them up; or the job ends with a sentence that names them."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "places.c")
    job = context.ftrun(mpi, size, program, gates=["app.compute:0", "shepherd.dialled:*:2"], hurry=20)
    job.at_gate("app.compute", 0)
    job.kill(job.one("ft-agent"))
    hanging = [job.at_gate("shepherd.dialled", slot) for slot in range(size)]
    job.wait_err(r"is not ended: it may keep the last copy of a checkpoint. The job ends in 60 s unless it answers", 1)
    check(all(proc.alive(pid) for pid in hanging), "one was ended")
    if how == "stays":
        job.expect(1)
        for slot, pid in enumerate(hanging):
            check(re.search(rf"for 95 s there has been no answer from .*slot {slot} \(rank {slot}, process {pid}, state [RS]\)",
                            job.err), job.err)
        return
    for slot, pid in enumerate(hanging):
        if how == "returns":
            job.go("shepherd.dialled", slot)
        else:
            job.kill(pid)
    job.expect(0, context.reference(mpi, size, program))
    starts = job.output.starts
    check(starts[0] is None and set(starts[1:]) == {5 if how == "returns" else None}, f"restored {starts}")


DISK = root.StandingDisk()


def waits(pid):
    """Whether it waits in the kernel, where no signal reaches it."""
    found = proc.stat(pid)
    return found is not None and found[0] == "D"


@scenario("frozen-disk", timeout=120, as_root=DISK)
def frozen_disk(context):
    """The agent waits for a disk that stands still for longer than a helper has after SIGKILL, which does not reach it there: this is said once;
    when the disk works again it is replaced, and the job goes on."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "places.c")
    gates = pathlib.Path(root.PLACE.decode(), "gates")
    gates.mkdir()
    job = context.ftrun(mpi, 2, program, gates=["app.compute:1", "agent.noticed:*:1"], hurry=8, env={"FT_GATE_DIR": gates})
    job.gate_dir = gates
    rank, agent = job.at_gate("app.compute", 1), job.one("ft-agent")
    with DISK.stand(str(context.work / "works")):
        job.kill(rank)
        eventually(job, lambda: waits(agent), "the agent does not wait for the disk")
        job.wait_err(rf"the agent \(process {agent}\) waits in the kernel, .* the job waits for its end, 600 s at most", 1)
        begun = time.monotonic()
        while time.monotonic() < begun + 2:
            check(waits(agent) and job.running(), f"the job did not wait: {job.err}")
            time.sleep(0.05)
    job.go("agent.noticed")
    job.expect(0, context.reference(mpi, 2, program))
    restored_5(job)
    check(job.err.count("waits in the kernel") == 1 == job.err.count("is ended and replaced"), job.err)


@scenario("frozen-traced")
def frozen_traced(context):
    """A helper under a debugger is left alone for as long as that takes, and this is said once."""
    job, rank, reference = stand(context)
    agent = job.one("ft-agent")
    proc.trace(agent)
    job.kill(rank)
    job.wait_err(rf"the agent \(process {agent}\) does not answer; process {os.getpid()} traces it: it is left alone", 1)
    begun = time.monotonic()
    while time.monotonic() < begun + 4.5:
        # Longer than a running one would have (a tenth of 35 s).
        check(proc.alive(agent), f"the traced agent is gone: {job.err}")
        time.sleep(0.05)
    proc.trace_no_more(agent)
    job.expect(0, reference)
    restored_5(job)
    check(job.err.count("left alone") == 1 and "replaced" not in job.err and "continued" not in job.err, job.err)


@scenario("frozen-ftrun")
def frozen_ftrun(context):
    """While ftrun itself is stopped nobody owes it an answer: helpers that were stopped with it are not its concern."""
    job, rank, reference = stand(context)
    helpers, launcher = [job.one("ft-agent"), *job.below("ft-shepherd")], job.launcher
    proc.freeze(*helpers)
    # Each time longer than two questions (a tenth of a second apart here), and awake for one, which comes late.
    for _ in range(8):
        proc.freeze(launcher)
        time.sleep(0.25)
        os.kill(launcher, signal.SIGCONT)
        time.sleep(0.03)
    for pid in helpers:
        os.kill(pid, signal.SIGCONT)
    job.kill(rank)
    job.expect(0, reference)
    restored_5(job)
    check("continued" not in job.err and "does not answer" not in job.err, job.err)


# --- an agent that dies again and again --------------------------------------------------------------------------------


@scenario("agent-deaths-with-progress", timeout=90)
def agent_deaths_with_progress(context):
    """Seven deaths of the agent in less than half a minute, each after a newer checkpoint: no crash loop."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "places.c")
    env = {"PLACES_STEPS": 120, "PLACES_STEP": 0, "PLACES_SLEEP": 5}
    reference = context.reference(mpi, 2, program, env=env)
    trace = context.work / "trace"
    job = context.ftrun(mpi, 2, program, env={**env, "PLACES_TRACE": trace})

    def newer(world, than):
        """Whether the ranks of a later world have all come two versions further: then a newer one is complete for certain. What
        those of an earlier one wrote when the agent was dead already does not count."""
        worlds, versions = zip(*traced(trace, 2))
        return len(set(worlds)) == 1 and worlds[0] > world and min(versions) > than + 2

    world = than = 0
    for number in range(7):
        eventually(job, lambda: newer(world, than), f"no checkpoint is newer than {than}")
        world = traced(trace, 2)[0][0]
        job.kill(job.one("ft-agent"))
        than = int(job.wait_err(r"restored +version (\d+)", number + 1)[-1])
    job.expect(0, reference)
    check(len(job.restored) == 7 and job.restored == sorted(set(job.restored)), f"restored {job.restored}")


@scenario("agent-deaths-without-progress", timeout=90)
def agent_deaths_without_progress(context):
    """Six in a row without any end the job, with a sentence that says so."""
    job = context.ftrun(None, 2, "sleep", "60")
    for number in range(6):
        job.wait_ranks(2, number + 1)
        job.kill(job.one("ft-agent"))
    job.expect(1)
    check("6 times within 30 s without a newer complete checkpoint between: the job cannot go on" in job.err, job.err)


# --- a job that its user stops for a while -----------------------------------------------------------------------------


def everybody(job):
    """All processes of a job."""
    return [job.pid, *(pid for pid in proc.descendants(job.pid) if proc.alive(pid))]


def ctrl_z(job, *ranks):
    """Stops the job as a terminal does, and waits until these ranks stand still."""
    os.kill(job.pid, signal.SIGTSTP)
    eventually(job, lambda: all((proc.stat(pid) or "T")[0] in "TZX" for pid in [job.launcher, job.pid, *ranks]), "no stop")


@scenario("suspended", each=[{"how": how} for how in ("ctrl-z", "everybody")])
def suspended(context, how):
    """While a rank waits for one that is merely behind, the job stands still for longer than anybody waits: by Ctrl-Z, or with all
    of ftd, as a frozen cgroup does. Nobody has waited meanwhile."""
    mpi = context.mpi("mpich4")
    job = context.ftrun(mpi, 3, context.program(mpi, "versions.c"), "same", gates=["client.copied:1:1"], hurry=3,
                        env={"FT_CHECKPOINT_TIMEOUT": "4"})
    job.at_gate("client.copied", 1)
    ranks = job.ranks()
    eventually(job, lambda: all("futex" in proc.waits_in(ranks[rank]) for rank in (0, 2)), "nobody waits for a place")
    if how == "ctrl-z":
        ctrl_z(job, *ranks.values())
        stopped = [job.pid]
    else:
        stopped = everybody(job)
        proc.freeze(*stopped)
    # This long, and not shorter, is what is tried here.
    time.sleep(5)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    eventually(job, lambda: proc.stat(ranks[1])[0] != "T", "rank 1 does not go on")
    job.go("client.copied", 1)
    job.expect(0)
    check("was not written" not in job.err and "has not checkpointed" not in job.err, job.err)


@scenario("killed-while-stopped", each=[{"what": w} for w in ("rank", "shepherd", "agent", "front-only")])
def killed_while_stopped(context, what):
    """Who dies while the user has stopped the job is one failure in one epoch; and the next world does not run before the job goes
    on, whether `ftrun` stands still as well (Ctrl-Z), or only the process that the user started (SIGSTOP)."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "places.c")
    reference = context.reference(mpi, 2, program)
    job = context.ftrun(mpi, 2, program, gates=["app.compute:1"], hurry=3)
    rank = job.at_gate("app.compute", 1)
    ranks = job.ranks(1)
    victim = {"shepherd": job.shepherd_of(rank), "agent": job.one("ft-agent")}.get(what, rank)
    if what == "front-only":
        os.kill(job.pid, signal.SIGSTOP)
        eventually(job, lambda: all(proc.stat(pid)[0] == "T" for pid in ranks.values()), "the ranks do not stop")
    else:
        ctrl_z(job, *ranks.values())
    job.kill(victim)
    # Longer than a world needs to start, and than the agent waits for a word on how a rank has ended.
    deadline = time.monotonic() + (7 if what == "shepherd" else 3)
    while time.monotonic() < deadline:
        running = [pid for pid in job.ranks(2).values() if (proc.stat(pid) or "T")[0] not in "TZX"]
        check(not running, f"{running} run while the job is stopped: {job.err}")
        time.sleep(0.01)
    os.kill(job.pid, signal.SIGCONT)
    job.expect(0, reference)
    check(len(re.findall(r"^ftd: .*epoch", job.err, re.M)) == 1 and "not known" not in job.err, job.err)
    if what != "agent":
        check(job.err.count("rank 1 on node 0") == 1 and len(re.findall("epoch 2", job.err)) == 1, job.err)
