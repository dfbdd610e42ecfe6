"""Failures beyond the matrix: many of them, ftrun's own death, examples, files, LAMMPS."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

from harness import proc
from harness.job import check
from harness.mpis import ALL
from harness.registry import scenario


@scenario("heat2d", each=[{"mpi": m, "source": "heat2d.c"} for m in ALL]
          + [{"mpi": m, "source": "heat2d.f90"} for m in ("openmpi4", "mpich4")])
def heat2d(context, mpi, source):
    """The example survives three kills, in C and in Fortran."""
    mpi = context.mpi(mpi)
    program = context.program(mpi, source)
    command = [program, "-g", "64", "-s", "60", "-c", "5", "-p", "20"]
    reference = context.reference(mpi, 4, *command)
    job = context.ftrun(mpi, 4, *command)
    for world in (1, 2, 3):
        pid = job.wait_ranks(4, world)[world]
        seen = len(job.output.steps)
        deadline = time.monotonic() + 20
        while len(job.output.steps) < seen + 8:
            check(job.running() and time.monotonic() < deadline, f"world {world} does not get on")
            time.sleep(0.005)
        job.kill(pid, f"rank {world} in world {world}")
    job.expect(0, reference)
    check(len(job.restored) == 3 and None not in job.restored, f"restored {job.restored}")
    check(job.restored == job.output.starts[-3:], f"ftd says {job.restored}, the program {job.output.starts}")
    check(job.restored == sorted(job.restored), f"versions went back: {job.restored}")


@scenario("montecarlo")
def montecarlo(context):
    """A program that knows nothing of ftd starts again from the beginning."""
    mpi = context.mpi("openmpi4")
    program = context.program(mpi, "montecarlo.c")
    command = [program, "60", "2000", "15"]
    reference = context.reference(mpi, 4, *command)
    job = context.ftrun(mpi, 4, *command)
    for world in (1, 2):
        pid = job.wait_ranks(4, world)[2]
        seen = len(job.output.steps)
        while len(job.output.steps) < seen + 5 and job.running():
            time.sleep(0.005)
        job.kill(pid, "rank 2")
    job.expect(0, reference)
    check(job.restored == [None, None], f"restored {job.restored}")


@scenario("resize", each=[{"mpi": "mpich4"}, {"mpi": "openmpi5"}])
def resize(context, mpi):
    """Protected regions that grow, shrink and move."""
    mpi = context.mpi(mpi)
    program = context.program(mpi, "resize.c")
    calm = context.ftrun(mpi, 3, program)
    calm.expect(0)
    job = context.ftrun(mpi, 3, program, gates=["app.compute:1"])
    job.kill(job.at_gate("app.compute", 1))
    job.expect(0, calm.output)
    check(job.restored == [8], f"restored {job.restored}")


def wait_noted(job, rank_pid, step, patience=10.0):
    """Waits until ftd has noted the restart file of that step as whole: it was closed while every rank lived."""
    directory = pathlib.Path(proc.environ(rank_pid)["FT_CHECKPOINT_DIR"])
    job.wait_whole(directory / f"restart.{step}", patience)


@scenario("files", each=[{"where": "half"}, {"where": "whole"}])
def files(context, where):
    """$FT_CHECKPOINT_DIR: the next world finds whole files only."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "files.c")
    calm = context.ftrun(mpi, 2, program)
    calm.expect(0)
    gate, rank = ("files.half", 0) if where == "half" else ("app.compute", 1)
    job = context.ftrun(mpi, 2, program, gates=[f"{gate}:{rank}"])
    victim = job.at_gate(gate, rank)
    wait_noted(job, victim, 5 if where == "half" else 6)
    job.kill(victim)
    job.expect(0, calm.output)
    starts = re.findall(r"^restart from (\d+)$", job.output.text, re.M)
    check(starts == ["0", "5" if where == "half" else "6"], f"restarts from {starts}")


@scenario("files-agent-killed")
def files_agent_killed(context):
    """... also when it is the agent that dies in the middle of a file."""
    mpi = context.mpi("openmpi4")
    program = context.program(mpi, "files.c")
    job = context.ftrun(mpi, 2, program, gates=["files.half:0"])
    wait_noted(job, job.at_gate("files.half", 0), 5)
    job.kill(job.one("ft-agent"))
    job.expect(0)
    starts = re.findall(r"^restart from (\d+)$", job.output.text, re.M)
    check(starts == ["0", "5"], f"restarts from {starts}")


@scenario("launcher-killed", each=[{"mpi": m, "place": p} for m in ("openmpi4", "openmpi5", "mpich4", "impi")
                                   for p in ("app.compute", "mpi.before-init", "agent.fence")]
          + [{"mpi": "mpich4", "place": p} for p in ("agent.noticed", "agent.agreed", "agent.released")])
def launcher_killed(context, mpi, place):
    """ftrun is killed with SIGKILL: nothing is left."""
    mpi = context.mpi(mpi)
    gates, rank = [f"{place}:1"], 1
    if place.startswith("agent."):
        rank = "-"
        gates = [f"{place}:*:{2 if place == 'agent.released' else 1}"]
    if place in ("agent.noticed", "agent.agreed", "agent.released"):
        gates.append("app.compute:1")
    job = context.ftrun(mpi, 4, context.program(mpi, "places.c"), gates=gates)
    if len(gates) == 2:
        job.kill(job.at_gate("app.compute", 1))
    job.at_gate(place, rank)
    job.kill(job.pid, "ftrun")
    # No go: whoever stands at the gate must be ended as well.
    context.assert_clean(5)


@scenario("stray", each=[{"who": "shepherd"}, {"who": "agent"}, {"who": "all"}])
def stray(context, who):
    """What a rank started in a session of its own ends with the job, also when ftrun and the only parent that knew of it
    are killed at the same time. When nobody is left to end it, the next ftrun does."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "places.c")
    job = context.ftrun(mpi, 3, "bash", "-c", f"setsid sleep 600 & exec {program}", gates=["app.compute:1"])
    rank = job.at_gate("app.compute", 1)
    sleepers = [pid for pid in proc.descendants(job.pid) if proc.name(pid) == "sleep"]
    check(len(sleepers) == 3, f"{len(sleepers)} processes in sessions of their own, not one per rank")
    launcher = job.launcher
    job.wait_noted(sleepers)
    victims = {"shepherd": job.below("ft-shepherd") if who == "all" else [job.shepherd_of(rank)]}
    if who != "shepherd":
        victims["agent"] = [job.one("ft-agent")]
    proc.kill_frozen(*sum(victims.values(), []), launcher, job.pid)
    if who == "all":
        job.wait(20)
        deadline = time.monotonic() + 5
        # Not before that the launcher's lock is free.
        while any(proc.alive(pid) for pid in [*sum(victims.values(), []), launcher]) and time.monotonic() < deadline:
            time.sleep(0.002)
        check(all(proc.alive(pid) for pid in sleepers), "somebody else ended them")
        context.ftrun(mpi, 2, program).expect(0)
    context.assert_clean(5)


@scenario("windows", each=[{"mpi": m, "victim": v} for m in ALL for v in ("rank", "agent", "shepherd", "ftrun")])
def windows(context, mpi, victim):
    """Windows of killed ranks go with the job, whoever else is killed. (The harness looks.)"""
    mpi = context.mpi(mpi)
    job = context.ftrun(mpi, 3, context.program(mpi, "windows.c"), gates=["app.compute:1"])
    rank = job.at_gate("app.compute", 1)
    job.kill({"rank": rank, "agent": job.one("ft-agent"), "shepherd": job.shepherd_of(rank), "ftrun": job.pid}[victim])
    if victim == "ftrun":
        job.wait(20)
    else:
        job.expect(0)
        check(job.output.results[-1] == "33", f"result {job.output.results}")
    context.assert_clean(5)


@scenario("windows-mask", each=[{"mpi": m} for m in ALL])
def windows_mask(context, mpi):
    """The same where nobody else may read what anybody makes (`umask 077`), so that an MPI's own files look like those of MPI-IO."""
    mpi = context.mpi(mpi)
    job = context.script(f"umask 077; exec $FTRUN -n 3 --ft=reinit {context.program(mpi, 'windows.c')}", mpi=mpi, gates=["app.compute:1"])
    job.kill(job.at_gate("app.compute", 1))
    job.expect(0)
    check("left in shared memory" not in job.err, job.err)
    context.assert_clean()


@scenario("everything-killed")
def everything_killed(context):
    """ftrun, agent and all shepherds at once: the next ftrun of the same user removes what is left, nothing else runs on."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "places.c")
    job = context.ftrun(mpi, 3, program, gates=["app.compute:1"])
    job.at_gate("app.compute", 1)
    job.wait_noted(job.ranks().values())
    for pid in [job.launcher, *job.below("ft-shepherd"), job.one("ft-agent"), job.pid]:
        os.kill(pid, signal.SIGKILL)
    job.wait(20)
    deadline = time.monotonic() + 5
    while any(proc.alive(pid) for pid in proc.descendants(os.getpid())):
        check(time.monotonic() < deadline, f"still there:\n{proc.describe(os.getpid())}")
        time.sleep(0.01)
    context.ftrun(mpi, 2, program).expect(0)


@scenario("keepers-killed", each=[{"size": 2}, {"size": 5}])
def keepers_killed(context, size):
    """All shepherds that kept checkpoints die, and two agents, one after the other, and no rank comes to call ft_init in
    between: the checkpoints are handed on all the same."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "places.c")
    reference = context.reference(mpi, size, program)
    job = context.ftrun(mpi, size, program, gates=["mpi.before-init:0", "app.compute:1"])
    job.at_gate("mpi.before-init", 0)
    job.go("mpi.before-init", 0)
    job.at_gate("app.compute", 1)
    job.gate_path("mpi.before-init", 0).with_suffix(".0.go").unlink()
    shepherds = job.below("ft-shepherd")
    check(len(shepherds) == size, f"{len(shepherds)} shepherds")
    for victim in [*shepherds[: size // 2], None, *shepherds[size // 2 :], None]:
        job.gate_path("mpi.before-init", 0).unlink()
        job.kill(victim or job.one("ft-agent"))
        job.at_gate("mpi.before-init", 0)
    job.go("mpi.before-init", 0)
    job.expect(0, reference)
    check(job.restored == [5], f"restored {job.restored}")


@scenario("agent-crash-loop", timeout=90)
def agent_crash_loop(context):
    """An agent that is killed again and again: the job goes on until the limit, then ends with a sentence; it never hangs."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "places.c")
    job = context.ftrun(mpi, 2, program, env={"PLACES_SLEEP": "5000"})
    killed = 0
    while job.running() and killed < 12:
        found = job.below("ft-agent")
        if found:
            try:
                job.kill(found[0])
                killed += 1
            except ProcessLookupError:
                pass
        time.sleep(0.15)
    status = job.wait(30)
    check(status != 0, "twelve killed agents within seconds, and yet status 0")
    check("agent" in job.err, f"the reason does not name the agent: {job.err}")


def least(pids):
    """What processes hold when they are at rest, by name: a look may fall into the moment in which one reads a directory."""
    looks = []
    for _ in range(8):
        looks.append({who: proc.resources(pid) for who, pid in pids.items()})
        time.sleep(0.1)
    return {who: {what: min(look[who][what] for look in looks) for what in looks[0][who]} for who in pids}


def least_files(directory):
    """Files below a directory when a world has settled: for a moment its predecessor's notes are there as well."""
    looks = []
    for _ in range(10):
        looks.append(sum(len(files) for _, _, files in os.walk(directory)))
        time.sleep(0.05)
    return min(looks)


# After so many failures `hundred-failures` looks at what is held: early, when caches are filled, and late.
MEASURED = (10, 30, 100)


@scenario("hundred-failures", timeout=400, weight=2, each=[{"mpi": "mpich4"}, {"mpi": "openmpi5"}])
def hundred_failures(context, mpi):
    """100 failures in one job; between the 10th and the 100th nothing grows."""
    mpi = context.mpi(mpi)
    program = context.program(mpi, "places.c")
    stop = context.dir / "stop"
    env = {"PLACES_STEPS": 1_000_000, "PLACES_STEP": 0, "PLACES_SLEEP": 2, "PLACES_STOP": stop}
    job = context.ftrun(mpi, 4, program, env=env)
    measured = {}
    for failure in range(1, 102):
        ranks = job.wait_ranks(4, failure)
        seen = len(job.output.steps)
        deadline = time.monotonic() + 30
        # Three steps further than ever: each world makes progress, so that no crash loop is seen.
        while not (job.output.steps[seen:] and len(job.output.steps) >= seen + 3):
            check(job.running(), f"the job ended before failure {failure}")
            check(time.monotonic() < deadline, f"no progress before failure {failure}")
            time.sleep(0.002)
        if failure in MEASURED:
            time.sleep(0.3)
            shepherds = job.below("ft-shepherd")
            measured[failure] = {
                **least({
                    "ftrun": job.launcher,
                    "agent": job.one("ft-agent"),
                    **{f"shepherd {i}": pid for i, pid in enumerate(shepherds)},
                }),
                "files": {"shm": least_files(context.memory)},
            }
        if failure <= 100:
            job.kill(ranks[failure % 4], f"failure {failure}")
    stop.touch()
    job.expect(0, patience=60)
    check(len(job.restored) == 100, f"{len(job.restored)} recovery blocks")
    check(None not in job.restored[1:], "a restart from the beginning")
    print("".join(f"after {failure} failures: {found}\n" for failure, found in measured.items()))
    first, settled, late = (measured[failure] for failure in MEASURED)
    check(first.keys() == settled.keys() == late.keys(), "there are other processes now")
    for who in first:
        for what, before in first[who].items():
            after = late[who][what]
            if what == "private_kb":
                continue
            if what == "resident_kb":
                # What is in use is constant soon; the allocator's caches fill for a while longer.
                check(after <= before * 1.1, f"{who}: {what} grew from {before} to {after}")
                check(after <= settled[who][what] * 1.05, f"{who}: {what} grew from {settled[who][what]} to {after}")
            else:
                # What was on its way when the first was counted may be gone since.
                check(after == settled[who][what] <= before, f"{who}: {what} was {before}, {settled[who][what]}, {after}")


# --- LAMMPS --------------------------------------------------------------------------------------------------------

LAMMPS_INPUT = """\
variable dir getenv FT_CHECKPOINT_DIR
variable have equal is_file(${dir}/melt.FIRST.restart)
if "${have} == 1" then "read_restart ${dir}/melt.*.restart" else "include melt.new"
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify every 20 delay 0 check no
fix 1 all nve
thermo 10
thermo_modify format float %20.15g flush yes
restart EVERY ${dir}/melt.*.restart
run STEPS upto
print "result done"
"""
LAMMPS_NEW = """\
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 SIDE 0 SIDE 0 SIDE
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287
"""


def _lammps_input(context, every, steps, side):
    def fill(text):
        return text.replace("FIRST", str(every)).replace("EVERY", str(every)).replace("STEPS", str(steps)) \
            .replace("SIDE", str(side))

    (context.work / "in.melt").write_text(fill(LAMMPS_INPUT))
    (context.work / "melt.new").write_text(fill(LAMMPS_NEW))


def _thermo(text):
    """Step -> thermo line, of the last world in the output."""
    world = text.rpartition("LAMMPS (")[2]
    return {int(m[1]): m[0] for m in re.finditer(r"^\s*(\d+)(?:\s+-?[\d.]+(?:e[+-]?\d+)?){5}\s*$", world, re.M)}


@scenario("lammps", timeout=150, weight=2, each=[{"how": h} for h in ("in", "stdin", "while-writing")])
def lammps(context, how):
    """LAMMPS from Debian, unmodified, with its own restart files."""
    mpi = context.mpi("openmpi4")
    if how == "while-writing":
        every, steps, side = 5, 120, 24
    else:
        every, steps, side = 50, 600, 10
    _lammps_input(context, every, steps, side)
    command = ["/usr/bin/lmp", "-log", "none"]
    stdin = None
    if how == "stdin":
        stdin = os.open(context.work / "in.melt", os.O_RDONLY)
    else:
        command += ["-in", "in.melt"]
    job = context.ftrun(mpi, 2, *command, stdin=stdin)
    directory = None
    deadline = time.monotonic() + 60
    victim = None
    while victim is None:
        check(job.running() and time.monotonic() < deadline, "LAMMPS wrote no restart file in time")
        ranks = job.ranks(1)
        if 0 not in ranks:
            continue
        directory = directory or pathlib.Path(proc.environ(ranks[0])["FT_CHECKPOINT_DIR"])
        if how == "while-writing":
            if (directory / f"melt.{3 * every}.restart").exists() and _open_restart(ranks[0]):
                proc.freeze(ranks[0])
                torn = _open_restart(ranks[0])
                if torn:
                    victim = ranks[0]
                else:
                    os.kill(ranks[0], signal.SIGCONT)
        elif (directory / f"melt.{2 * every}.restart").exists():
            victim = ranks[1]
            torn = None
    job.kill(victim, f"in the middle of writing {torn}" if torn else "")
    # The file from which the next world starts, for the restart by hand.
    read = None
    while read is None:
        check(job.running() and time.monotonic() < deadline, "the next world reads no restart file")
        read = re.search(r"Reading restart file|Reading restart", job.output.text)
        time.sleep(0.002)
    by_hand = context.work / "by-hand"
    by_hand.mkdir()
    for path in directory.glob("melt.*.restart"):
        try:
            shutil.copy(path, by_hand)
        except FileNotFoundError:
            pass
    job.expect(0, patience=100)
    again = _thermo(job.output.text)
    first = min(again)
    print(f"restarted at step {first}")
    check(first > 0 and first % every == 0, f"it began at step {first}")
    check(job.output.results == ["done"], f"results {job.output.results}")
    if torn:
        number = int(re.search(r"melt\.(\d+)\.restart", torn)[1])
        check(first < number, f"the torn file of step {number} was read")
    for path in by_hand.glob("melt.*.restart"):
        if int(path.name.split(".")[1]) > first:
            path.unlink()
    hand = subprocess.run(
        mpi.mpiexec(2, "/usr/bin/lmp", "-log", "none", "-in", "in.melt"), cwd=context.work, timeout=100,
        env=context.env(mpi, {"FT_CHECKPOINT_DIR": by_hand}), capture_output=True, text=True,
    )
    check(hand.returncode == 0, f"the restart by hand fails: {hand.stdout} {hand.stderr}")
    by_hand_again = _thermo(hand.stdout)
    for step in sorted(set(again) | set(by_hand_again)):
        check(
            again.get(step) == by_hand_again.get(step),
            f"step {step}: {again.get(step)} is not what a restart by hand gives: {by_hand_again.get(step)}",
        )


def _open_restart(pid):
    """Name of a restart file that the process has open."""
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            target = os.readlink(f"/proc/{pid}/fd/{number}")
            if ".restart" in target:
                return target
    except OSError:
        pass
    return None
