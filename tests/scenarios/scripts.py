"""What a script around a rank does, and when a rank is one that a script stands above."""

import os
import pathlib
import re
import signal
import subprocess
import time

from harness import proc
from harness.job import check
from harness.registry import scenario

from .output import check_printed
from .processes import eventually

# What it does after a rank that was killed takes longer than the test; one that ended well it only reports.
GOES_ON = '"$@"; code=$?; if [ $code != 0 ]; then sleep 600; fi; exit $code'

PYTHON = """
import ctypes, os

ft = ctypes.CDLL("libftd_client.so.0")
ft.ft_checkpoint.argtypes = [ctypes.c_uint64]
ft.ft_protect.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
state, version, step = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_int()
assert ft.ft_init(ctypes.byref(state)) == 0
assert ft.ft_protect(0, ctypes.byref(step), 4) == 0
ft.ft_restore(ctypes.byref(version))
while step.value < 15:
    step.value += 1
    print("rank", os.environ["FT_RANK"], "step", step.value, flush=True)
    if step.value % 4 == 0:
        assert ft.ft_checkpoint(step.value) == 0
print("rank", os.environ["FT_RANK"], "done")
ft.ft_finalize()
"""


def without_mpi(context, how):
    """Command line of a program that uses the checkpoint library and has no MPI, or (`mpi`) calls it later."""
    if how == "python":
        (context.work / "apionly.py").write_text(PYTHON)
        return ["/usr/bin/python3", "apionly.py"]
    program, include, lib = context.work / f"apionly-{how}", context.prefix / "include", context.prefix / "lib"
    source = next((context.scratch / "src").rglob("apionly.f90" if how == "fortran" else "apionly.c"))
    compiler = {"c": ["gcc"], "cplusplus": ["g++", "-x", "c++"], "fortran": ["gfortran", "-J", context.work, include / "ft.f90"],
                "mpi": ["mpicc.openmpi", "-DTHEN_MPI"]}[how]
    subprocess.run(
        [*compiler, source, "-o", program, "-I", include, "-I", source.parent, "-L", lib, f"-Wl,-rpath,{lib}", "-lftd_client",
         "-lpthread"], check=True,
    )
    return [program]


@scenario("api-below-a-script", each=[{"how": how} for how in ("c", "cplusplus", "fortran", "python", "mpi")])
def api_below_a_script(context, how):
    """A rank that is protected by the API and calls no MPI, or only later, is killed below a script which would go on for long:
    it is recovered like any other."""
    mpi = context.mpi("openmpi4") if how == "mpi" else None
    job = context.ftrun(
        mpi, 2, "bash", "-c", GOES_ON, "bash", *without_mpi(context, how),
        gates=["client.copied:0:3", "client.copied:1:3"], env={"LD_LIBRARY_PATH": context.prefix / "lib"},
    )
    job.at_gate("client.copied", 0)
    job.kill(job.at_gate("client.copied", 1))
    job.expect(0)
    check(job.restored == [8] and "failed    rank 1 on node 0 was killed by SIGKILL\n" in job.err, job.err)
    for rank in range(2):
        check(f"rank {rank} done\n" in job.output.text, job.output.text)


@scenario("api-own-deaths", each=[{"how": "below"}, {"how": "left"}])
def api_own_deaths(context, how):
    """Such a rank that crashes is a program that dies by itself, whatever its script makes of it; also when that has left it."""
    script = GOES_ON if how == "below" else '"$@" & exit 0'
    job = context.ftrun(
        None, 2, "bash", "-c", script, "bash", *without_mpi(context, "c"), "crash", options=["--ft-max-failures=3"]
    )
    job.expect(128 + signal.SIGSEGV)
    check("the program died by itself" in job.err and "was killed by SIGSEGV" in job.err, job.err)


@scenario("api-then-others", each=[{"how": how} for how in ("well", "fails", "twice", "mpi")])
def api_then_others(context, how):
    """Its own end is no death: what the script does next counts, be it another program of this kind or one with MPI, which is
    the rank then."""
    mpi, api = context.mpi("openmpi4"), without_mpi(context, "c")
    second = context.program(mpi, "places.c")
    script = {
        "well": '"$@" threads; sleep 0.2; echo after',
        "fails": '"$@"; exit 3',
        "twice": '"$@" leaves; "$@"; code=$?; [ $code = 0 ] || sleep 600; echo after; exit $code',
        "mpi": f'"$@" leaves; {second}; code=$?; [ $code = 0 ] || sleep 600; exit $code',
    }[how]
    gates = {"mpi": ["app.compute:1"], "twice": ["client.copied:0:3", "client.copied:1:3"]}.get(how, [])
    job = context.ftrun(mpi, 2, "bash", "-c", script, "bash", *api, gates=gates)
    for gate in gates:
        name, rank, *_ = gate.split(":")
        victim = job.at_gate(name, rank)
    if gates:
        job.kill(victim)
    if how == "mpi":
        job.expect(0, context.reference(mpi, 2, second))
    else:
        job.expect(3 if how == "fails" else 0)
    if gates:
        return check(len(job.restored) == 1, job.err)
    check(job.restored == [], job.err)
    check(job.output.text.count("after\n") == (2 if how in ("well", "twice") else 0), job.output.text)


# After its rank it waits a while before its next command, so that who is not stopped comes to it.
NEXT = '"$@"; code=$?; if [ $code != 0 ]; then sleep 0.2; touch "$HERE/next.$FT_RANK"; fi; exit $code'


@scenario("script-stands-still", each=[{"how": how} for how in ("recovery", "timeout", "undecided")])
def script_stands_still(context, how):
    """A rank is killed below a script, and the agent takes its time: the script does not go on with its next command, and the
    next world finds what that would have removed. When nobody ever decides it goes on."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "places.c")
    wrapper = ["timeout", "100", program] if how == "timeout" else [program]
    job = context.ftrun(
        mpi, 2, "bash", "-c", NEXT, "bash", *wrapper, gates=["app.compute:1", "agent.dying:1"], env={"HERE": context.work},
        hurry=10 if how == "undecided" else 1,
    )
    rank, going_on = job.at_gate("app.compute", 1), context.work / "next.1"
    scripts = [proc.stat(rank)[1]]
    if how == "timeout":
        scripts.append(proc.stat(scripts[0])[1])
    job.kill(rank)
    job.at_gate("agent.dying", 1)
    if how == "undecided":
        eventually(going_on.exists, "the script's next command")
    else:
        # A `timeout` may follow its command at once; the script that waits for it stands still.
        stopped = lambda: all((proc.stat(pid) or "Z")[0] in "TZ" for pid in scripts) and (proc.stat(scripts[-1]) or "-")[0] == "T"
        eventually(lambda: stopped() or going_on.exists(), "the script to be stopped")
        # Longer than it waits for itself.
        time.sleep(0.5)
        check(stopped() and not going_on.exists(), "the script went on")
    job.go("agent.dying", 1)
    job.expect(0, context.reference(mpi, 2, program))
    check(job.restored == [5], f"restored {job.restored}")
    check(how == "undecided" or not list(context.work.glob("next.*")), "a script went on")


@scenario("stopped-goes-on")
def stopped_goes_on(context):
    """A rank below a script is killed, and its shepherd when it has stopped script and filter: the filter goes on, and passes on what
    it has."""
    mpi, steps = context.mpi("mpich4"), 15
    wrapper = '"$@" | { until [ -e "$HERE/go" ]; do sleep 0.01; done; while read -r line; do echo "$line"; done; }; exit 0'
    command = [context.program(mpi, "lines.c"), str(steps), "4", "p"]
    gates = ["client.copied:1:3", "agent.dying:1", "shepherd.script-stopped:1"]
    job = context.ftrun(mpi, 2, "bash", "-c", wrapper, "bash", *command, gates=gates, env={"HERE": context.work})
    rank = job.at_gate("client.copied", 1)
    shepherd, script = job.shepherd_of(rank), proc.stat(rank)[1]
    filters = [pid for pid in proc.descendants(shepherd) if proc.stat(pid)[1] == script and pid != rank]
    # The rank's parent does not wait for it before its shepherd has seen how it ended.
    proc.freeze(script)
    job.kill(rank)
    job.at_gate("shepherd.script-stopped", 1)
    check(len(filters) == 1, f"one filter, not {filters}")
    # It has the signal, and stands still as soon as it is given a processor.
    eventually(lambda: proc.stat(filters[0])[0] == "T", "the filter to be stopped")
    (context.work / "go").touch()
    job.kill(shepherd)
    job.go("agent.dying", 1)
    job.expect(0)
    check_printed(job, 2, steps, 8)
    check("had not printed" not in job.err, job.err)


@scenario("late-for-its-world", each=[{"program": "places.c"}, {"program": "apionly.c"}])
def late_for_its_world(context, program):
    """A rank that comes to MPI_Init, or ft_init, when its world is over already and it is about to be killed hears nothing: it
    would print what is no longer so."""
    mpi = context.mpi("mpich4")
    binary = context.program(mpi, program)
    script = 'if [ "$FT_WORLD$FT_RANK" = 10 ]; then until [ -e "$HERE/go" ]; do sleep 0.01; done; fi; exec "$@"'
    gate = "mpi.before-init" if program == "places.c" else "client.copied"
    job = context.ftrun(mpi, 2, "bash", "-c", script, "bash", binary, gates=[f"{gate}:1", "shepherd.stop:0"],
                        env={"HERE": context.work})
    of_rank_0 = lambda: [pid for pid in job.below("bash") if proc.environ(pid).get("FT_RANK") == "0"]
    waiting = eventually(of_rank_0, "rank 0 to be there")[0]
    job.kill(job.at_gate(gate, 1))
    job.at_gate("shepherd.stop", 0)
    (context.work / "go").touch()
    # It waits for the agent's answer now.
    eventually(lambda: proc.name(waiting) == pathlib.Path(binary).name[:15] or not proc.alive(waiting), "its program")
    time.sleep(0.2)
    check(proc.alive(waiting), f"it has ended: {job.err}")
    job.go("shepherd.stop", 0)
    job.expect(0)
    check("refused" not in job.err and "has ended" not in job.err and "before ft_init" not in job.err, job.err)


@scenario("script-goes-on", each=[{"how": how} for how in ("well", "fails", "cancelled")])
def script_goes_on(context, how):
    """Nobody stops a script whose rank ended by itself, or after a signal that ends the job."""
    mpi = context.mpi("mpich4")
    script = 'trap : TERM; "$@"; code=$?; sleep 0.1; touch "$HERE/next.$FT_RANK"; exit $code'
    program, gates = {
        "cancelled": ([context.program(mpi, "places.c")], ["app.compute:1"]),
    }.get(how, ([context.program(mpi, "ending.c"), "ok"], []))
    if how == "fails":
        script = script.replace("exit $code", "exit 3")
    job = context.ftrun(
        mpi, 2, "bash", "-c", script, "bash", *program, env={"HERE": context.work},
        gates=[*gates, "shepherd.script-stopped:*:1:mark"],
    )
    if how == "cancelled":
        job.at_gate("app.compute", 1)
        job.interrupt(signal.SIGTERM)
    job.expect({"well": 0, "fails": 3, "cancelled": 143}[how])
    check(len(list(context.work.glob("next.*"))) >= (1 if how == "fails" else 2), "a script did not go on")
    check(not list(job.gate_dir.glob("shepherd.script-stopped.*")) and job.restored == [], job.err)


@scenario("leaves-monitor", each=[{"how": "well"}, {"how": "fails"}, {"how": "recovered"}, {"how": "api"}])
def leaves_monitor(context, how):
    """A wrapper starts a silent monitor first and then leaves: the program is the rank, not the monitor, whose end nobody
    waits for; it ends with the rank."""
    mpi = context.mpi("mpich4")
    script = 'bash -c "sleep 1000; true" >/dev/null 2>&1 & "$@" & exit 0'
    program = [context.program(mpi, "ending.c"), "ok"]
    if how == "fails":
        program = [program[0], "exit", "1", "7"]
    elif how == "recovered":
        program = [context.program(mpi, "places.c")]
    elif how == "api":
        program = without_mpi(context, "c")
    job = context.ftrun(mpi, 2, "bash", "-c", script, "bash", *program, gates=["app.compute:1"] if how == "recovered" else [])
    if how == "recovered":
        job.kill(job.at_gate("app.compute", 1))
    check(job.wait(20) == (7 if how == "fails" else 0), f"{job.err}")
    check(len(job.restored) == (how == "recovered"), job.err)
    check("had not printed" not in job.err, job.err)
