"""What lies below: wait statuses, names that are no text, limits, and what a hostile or broken peer can do."""

import os
import signal
import time

from harness import proc
from harness.job import check
from harness.registry import scenario

RT3 = signal.SIGRTMIN + 3


@scenario("real-time-signal", each=[{"who": w} for w in ("rank", "wrapped", "agent", "shepherd", "pmix")])
def real_time_signal(context, who):
    """A death by a real-time signal is a death like any other, and the block names the signal."""
    mpi = context.mpi("openmpi4" if who == "pmix" else "mpich4")
    program = context.program(mpi, "places.c")
    command = ["bash", "-c", f"{program}; exit $?"] if who == "wrapped" else [program]
    job = context.ftrun(mpi, 3, *command, gates=["app.compute:1"])
    rank = job.at_gate("app.compute", 1)
    victim = {"rank": lambda: rank, "wrapped": lambda: rank, "agent": lambda: job.one("ft-agent"),
              "shepherd": lambda: job.shepherd_of(rank), "pmix": lambda: min(job.below("ft-pmix"))}[who]()
    os.kill(victim, RT3)
    job.expect(0, context.reference(mpi, 3, program), patience=20)
    check(job.restored == [5], f"restored {job.restored}")
    if who in ("rank", "wrapped"):
        check("rank 1 on" in job.err and "was killed by SIGRTMIN+3" in job.err, f"the signal is not named: {job.err}")


@scenario("name-no-text", each=[{"how": "prctl"}, {"how": "cut"}, {"how": "bytes"}])
def name_no_text(context, how):
    """A rank whose name is no text, or is cut by the kernel in mid-character, dies, and a survivor aborts because of it: that
    is collateral. Agent and shepherd stand still meanwhile, so that only the kernel can tell of the death."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "named.c")
    file = {"prctl": "named", "cut": r"vierzehn-bytes\303\251", "bytes": r"\377\376"}[how]
    argument = r"$'\377\376'" if how == "prctl" else ""
    job = context.script(
        f"cp {program} $'./{file}'\nexec $FTRUN -n 2 --ft=reinit $'./{file}' {argument}\n", mpi=mpi,
        gates=["app.compute:1", "app.abort:0", "agent.noticed:*:1:mark"],
    )
    victim, _ = job.at_gate("app.compute", 1), job.at_gate("app.abort", 0)
    stopped = [job.one("ft-agent"), job.shepherd_of(victim)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
        while proc.stat(pid)[0] != "T":
            time.sleep(0.001)
    job.kill(victim, "rank 1")
    job.go("app.abort", 0)
    agent, shepherd = stopped
    os.kill(agent, signal.SIGCONT)
    job.at_gate("agent.noticed")
    os.kill(shepherd, signal.SIGCONT)
    job.expect(0, patience=20)
    check(job.output.results == ["of named"] and job.restored == [None], f"{job.output.text}{job.err}")
    check("rank 1 on" in job.err and "SIGKILL" in job.err, f"the death is not named: {job.err}")
