"""Which processes are ftd's, and which are not: what was there before ftrun, what it inherits, and who says that he is whom."""

import os
import re
import signal
import time

from harness import proc
from harness.job import check
from harness.registry import scenario


def eventually(condition, what, patience=10.0):
    """Waits until `condition()` gives something true, and gives that."""
    deadline = time.monotonic() + patience
    while not (found := condition()):
        check(time.monotonic() < deadline, f"waited {patience} s in vain for {what}")
        time.sleep(0.005)
    return found


# --- the front: what ftrun inherits is not its own -----------------------------------------------------------------

INHERITED = """
exec > >(trap '' TERM; while read -r line; do echo "logged $line"; done; touch %(work)s/logged)
(while :; do sleep 0.05; date +%%s > %(work)s/monitor; done) > /dev/null 2>&1 &
echo $! > %(work)s/pid
exec $FTRUN -n 3 --ft=reinit %(program)s
"""


@scenario("inherited", each=[{"end": "recovery"}, {"end": "abort"}, {"end": "kill-9"}])
def inherited(context, end):
    """What a script had started before it became ftrun (`tee` of `> >(tee log)`, a monitor) is not ftrun's: it lives on when
    ranks die, when the job ends, and when ftrun is killed, and so does what it starts later."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "ending.c" if end == "abort" else "places.c")
    text = INHERITED % {"work": context.work, "program": f"{program} abort 1 42" if end == "abort" else program}
    job = context.script(text, mpi=mpi, gates=["app.compute:1"] if end != "abort" else [])
    if end != "abort":
        rank = job.at_gate("app.compute", 1)
        job.kill(rank if end == "recovery" else job.pid)
    status = job.wait(30)
    check(status == {"recovery": 0, "abort": 42, "kill-9": -9}[end], f"status {status}: {job.err}")
    monitor = int((context.work / "pid").read_text())
    check(proc.alive(monitor), "the monitor was killed")
    (context.work / "monitor").unlink()
    eventually((context.work / "monitor").exists, "what the monitor starts")
    eventually((context.work / "logged").exists, "the end of the reader of `> >(…)`, after all that was written")
    if end == "recovery":
        check("logged result" in job.output.text, job.output.text)
    # It is not ftrun's to end, but this scenario's.
    os.kill(monitor, signal.SIGKILL)
    context.assert_clean()


@scenario("front", each=[{"victim": "launcher"}, {"victim": "front"}])
def front(context, victim):
    """Whichever of ftrun's two processes is killed with SIGKILL: nothing is left, and the one that is left says why."""
    mpi = context.mpi("mpich4")
    job = context.ftrun(mpi, 3, context.program(mpi, "places.c"), gates=["app.compute:1"])
    job.at_gate("app.compute", 1)
    job.kill(job.launcher if victim == "launcher" else job.pid)
    status = job.wait(5)
    check(status == (137 if victim == "launcher" else -9), f"status {status}")
    if victim == "launcher":
        check("the launcher of this job was killed by SIGKILL" in job.err, job.err)
    context.assert_clean(5)


SIGNALLED = """
import os, signal, sys, time
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(time.time()))
here = os.path.join(sys.argv[1], os.environ["FT_RANK"])
open(here + ".ready", "w").close()
while not os.path.exists(os.path.join(sys.argv[1], "stop")):
    time.sleep(0.01)
    with open(here + ".new", "w") as file:
        print(len(seen), file=file)
    os.rename(here + ".new", here)
"""


@scenario("front-signals")
def front_signals(context):
    """A signal to ftrun alone reaches the ranks, one to its whole process group reaches them once; a stop stops both of its
    processes and `SIGCONT`, to the one that was started or to the group, brings both back."""
    job = context.ftrun(None, 2, "/usr/bin/python3", "-c", SIGNALLED, str(context.work))
    eventually(lambda: all((context.work / f"{rank}.ready").exists() for rank in (0, 1)), "the ranks")

    def seen(count):
        texts = [context.work / str(rank) for rank in (0, 1)]
        return lambda: all(path.exists() and path.read_text() == f"{count}\n" for path in texts)

    launcher = job.launcher
    os.kill(job.pid, signal.SIGUSR1)
    eventually(seen(1), "SIGUSR1 to ftrun")
    os.killpg(job.pid, signal.SIGUSR1)
    eventually(seen(2), "SIGUSR1 to the group")
    time.sleep(0.2)
    check(seen(2)(), "a signal to the group came to the ranks twice")
    for stop, go in ((os.kill, os.kill), (os.killpg, os.killpg), (os.kill, os.killpg)):
        stop(job.pid, signal.SIGTSTP)
        eventually(lambda: proc.stat(launcher)[0] == proc.stat(job.pid)[0] == "T", "the stop of both")
        go(job.pid, signal.SIGCONT)
        eventually(lambda: "T" not in (proc.stat(launcher)[0], proc.stat(job.pid)[0]), "both to go on")
    # Somebody who knows only the launcher's number.
    os.kill(launcher, signal.SIGSTOP)
    eventually(lambda: proc.stat(job.pid)[0] == "T", "the front's stop")
    os.kill(launcher, signal.SIGCONT)
    eventually(lambda: proc.stat(job.pid)[0] != "T", "the front to go on")
    os.kill(job.pid, signal.SIGUSR1)
    eventually(seen(3), "SIGUSR1 afterwards")
    (context.work / "stop").touch()
    job.expect(0)
