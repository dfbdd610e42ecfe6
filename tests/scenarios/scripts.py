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
    # A `sleep` of its loop may be over by now.
    filters = [pid for pid in proc.descendants(shepherd) if (proc.stat(pid) or (None, 0))[1] == script and pid != rank]
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


class LateRank:
    """A job of two ranks of which rank 0 waits below a script, in the first world, while rank 1 stands at its `gate`; the
    shepherd of rank 0 stops where it is about to kill."""

    def __init__(self, context, program, options=()):
        mpi = context.mpi("mpich4")
        self.binary = context.program(mpi, program)
        self.gate = "mpi.before-init" if program == "places.c" else "client.copied"
        self.go = context.work / "go"
        script = 'if [ "$FT_WORLD$FT_RANK" = 10 ]; then until [ -e "$HERE/go" ]; do sleep 0.01; done; fi; exec "$@"'
        self.job = context.ftrun(mpi, 2, "bash", "-c", script, "bash", self.binary, env={"HERE": context.work},
                                 gates=[f"{self.gate}:1", "shepherd.stop:0"], options=list(options))
        rank_0 = lambda: [pid for pid in self.job.below("bash") if proc.environ(pid).get("FT_RANK") == "0"]
        self.pid = eventually(rank_0, "rank 0 to be there")[0]

    def comes_in(self):
        """Lets it come to the agent, once its shepherd is about to kill it, and then lets it be killed."""
        self.job.at_gate("shepherd.stop", 0)
        self.go.touch()
        of_program = lambda: proc.name(self.pid) == pathlib.Path(self.binary).name[:15] or not proc.alive(self.pid)
        eventually(of_program, "its program")
        # It waits for the agent's answer now; that it goes on waiting shows in time alone.
        time.sleep(0.2)
        check(proc.alive(self.pid), f"it has ended: {self.job.err}")
        self.job.go("shepherd.stop", 0)


@scenario("late-for-its-world", each=[{"program": "places.c"}, {"program": "apionly.c"}])
def late_for_its_world(context, program):
    """A rank that comes to MPI_Init, or ft_init, when its world is over already and it is about to be killed hears nothing: it
    would print what is no longer so."""
    late = LateRank(context, program)
    late.job.kill(late.job.at_gate(late.gate, 1))
    late.comes_in()
    late.job.expect(0)
    err = late.job.err
    check("refused" not in err and "has ended" not in err and "before ft_init" not in err, err)


@scenario("late-for-a-cancelled-world", each=[{"program": "places.c"}, {"program": "apionly.c"}])
def late_for_a_cancelled_world(context, program):
    """The same when it is the job that is over: its user has ended it."""
    late = LateRank(context, program, options=["--ft-grace=0"])
    late.job.at_gate(late.gate, 1)
    late.job.interrupt(signal.SIGTERM)
    late.comes_in()
    late.job.expect(143)
    err = late.job.err
    check("world" not in err and "refused" not in err and "before ft_init" not in err, err)


BEFORE_INIT = "rank 1 on node 0 ended with status 0 before it called MPI_Init, for which the others wait"
# What a script makes of the death of its program, and what that is for ftd.
ENDS_BEFORE_INIT = {
    "pipe": ('"$@" | cat', BEFORE_INIT),
    "echo": ('"$@"; echo after $?', BEFORE_INIT),
    "status": ('"$@"; exit $?', "rank 1 on node 0 was killed by SIGKILL"),
}


def killed_before_init(context, mpi, how, first, **options):
    """A job whose rank 1 was killed below a script when it was about to call MPI_Init: before rank 0 did, or after it."""
    mpi = context.mpi(mpi)
    program = context.program(mpi, "ending.c")
    script = f'{ENDS_BEFORE_INIT[how][0]}; code=$?; touch "$HERE/ended.$FT_RANK"; exit $code'
    script = script if how != "status" else ENDS_BEFORE_INIT[how][0]
    gates = ["mpi.before-init:1", "mpi.before-init:0" if first else "mpi.in-init:0:1:mark"]
    job = context.ftrun(mpi, 2, "bash", "-c", script, "bash", program, "ok", gates=gates, env={"HERE": context.work}, **options)
    job.at_gate("mpi.before-init" if first else "mpi.in-init", 0)
    job.kill(job.at_gate("mpi.before-init", 1))
    if first:
        eventually((context.work / "ended.1").exists, "the end of rank 1's script")
        # It says so before it has ended.
        time.sleep(0.2)
        check(job.running(), f"the job has ended: {job.err}")
        job.go("mpi.before-init", 0)
    return job


@scenario("ends-before-init", each=[
    *({"mpi": m, "how": "pipe", "first": False} for m in ("openmpi4", "openmpi5", "mpich4", "mpich5", "impi")),
    {"mpi": "mpich4", "how": "pipe", "first": True}, {"mpi": "openmpi4", "how": "echo", "first": True},
    {"mpi": "mpich4", "how": "echo", "first": False}, {"mpi": "openmpi4", "how": "status", "first": False},
    {"mpi": "mpich4", "how": "status", "first": False},
])
def ends_before_init(context, mpi, how, first):
    """A rank is killed below a script before it has called MPI_Init, and the script ends with 0, or with the status that stands
    for the signal: the others, which wait for it, do not wait for ever, in whichever order the two happen."""
    job = killed_before_init(context, mpi, how, first)
    job.expect(0)
    check(job.output.results == ["of ending"], job.output.text)
    failed = re.findall(r"^ftd:   failed    (.*)$", job.err, re.M)
    check(failed == [ENDS_BEFORE_INIT[how][1]], f"{failed}: {job.err}")


@scenario("ends-before-init-none", each=[{"how": "pipe"}, {"how": "status"}])
def ends_before_init_none(context, how):
    """The same under --ft=none: the job ends, and says why."""
    job = killed_before_init(context, "mpich4", how, False, ft="none")
    check(job.wait(20) == (1 if how == "pipe" else 137), f"{job.err}")
    check(ENDS_BEFORE_INIT[how][1] in job.err, job.err)


@scenario("never-calls-init", each=[{"mpi": "openmpi4"}, {"mpi": "mpich4"}])
def never_calls_init(context, mpi):
    """One rank's script never starts the MPI program: that is the program's own doing, and ends the job when it has happened
    --ft-max-failures times. Where nobody calls MPI_Init, or who ended with 0 had called it, all is well."""
    mpi = context.mpi(mpi)
    program = context.program(mpi, "ending.c")
    script = 'if [ "$FT_RANK" = 1 ]; then exit 0; fi; exec "$0" ok'
    job = context.ftrun(mpi, 2, "bash", "-c", script, program, options=["--ft-max-failures=3"])
    check(job.wait(30) == 1, f"{job.err}")
    check("because the program died by itself 3 times in a row" in job.err, job.err)
    history = job.err[job.err.rindex("its history:"):]
    check(history.count(BEFORE_INIT) == 3 and job.err.count("ftd: recovery, epoch") == 2, job.err)
    job = context.ftrun(mpi, 2, "bash", "-c", 'if [ "$FT_RANK" = 1 ]; then exit 0; fi; sleep 0.5')
    job.expect(0)
    check(job.err == "", job.err)


@scenario("script-tells-of-a-signal")
def script_tells_of_a_signal(context):
    """A script that has waited for somebody and ends with 128 and the number of a signal tells of that signal: a program that no
    MPI and no library tells of is recovered below it as without it. Who has waited for nobody, or ends with another status, means
    what it says."""
    once = '[ -e "$HERE/was" ] && exit 0; touch "$HERE/was"; kill -{} $$'
    for signal_name, inner in (("KILL", once.format("KILL")), ("SEGV", once.format("SEGV"))):
        (context.work / "was").unlink(missing_ok=True)
        job = context.ftrun(None, 1, "bash", "-c", f"bash -c '{inner}'; exit $?", env={"HERE": context.work})
        job.expect(0)
        check(re.findall(r"^ftd:   failed    (.*)$", job.err, re.M) == [f"rank 0 on node 0 was killed by SIG{signal_name}"], job.err)
    for script, status in (("exit 137", 137), ("/bin/true; exit 145", 145), ("/bin/true; exit 200", 200), ("/bin/false; exit 3", 3)):
        job = context.ftrun(None, 1, "bash", "-c", script)
        check(job.wait(20) == status, job.err)
        check(f"rank 0 on node 0 exited with code {status}" in job.err and "recovery" not in job.err, job.err)


@scenario("mixed-mpis", each=[{"ft": "none"}, {"ft": "reinit"}])
def mixed_mpis(context, ft):
    """Ranks of one job use MPIs that do not understand each other: it ends at once, and says who uses what."""
    programs = [context.program(context.mpi(mpi), "ending.c") for mpi in ("openmpi4", "mpich4")]
    script = 'if [ "$FT_RANK" = 0 ]; then exec "$0" ok; else exec "$1" ok; fi'
    for order in (programs, programs[::-1]):
        job = context.ftrun(context.mpi("openmpi4"), 3, "bash", "-c", script, *order, ft=ft)
        check(job.wait(20) == 1, f"{job.err}")
        names = ("Open MPI", "MPICH or a relative of it")
        first, second = names if order is programs else names[::-1]
        said = re.findall(r"^ftrun: .*$", job.err, re.M)
        check(len(said) == 1 and f"rank 0 on node 0 uses {first}" in said[0] and re.search(f"rank [12] on node 0 uses {second}", said[0]), job.err)
        check("recovery" not in job.err, job.err)


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
