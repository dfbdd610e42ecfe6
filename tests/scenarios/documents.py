"""What the guide tells a user to do, done."""

import os
import re
import shutil
import signal
import subprocess
import time

from harness.job import check
from harness.registry import scenario

from scenarios.command_line import code_of
from scenarios.output import until


@scenario("guide-try-it")
def guide_try_it(context):
    """The guide's first page, typed into two terminals: set the environment, build, run, kill a rank, compare."""
    guide = (context.prefix / "share/doc/ftd/guide.md").read_text().partition("## Words")[0]
    # Shorter, and with a name that no other heat on this machine has.
    own = f"heat{os.getpid()}"

    def mine(line):
        return re.sub(r"(-o |\./|-x )heat\b", rf"\g<1>{own}", line).replace("/opt/ftd", str(context.prefix)).replace("-s 500", "-s 100")

    words = ("export ", "cp -r ", "mpicc ", "ftrun ", "kill -9 ")
    export, copy, build, run, kill = (mine(code_of(guide, start)[0]) for start in words)
    compare = mine(re.search(r"`(ftrun -n 4 .*?)`", guide)[1])
    mpi = context.mpi("openmpi4")
    env = dict(mpi.env)
    prepared = context.start(["bash", "-ec", "; ".join([export, copy.replace("&& ", "; "), build, compare])], mpi=mpi, env=env)
    prepared.expect(0)
    job = context.start(["bash", "-ec", f"{export}; cd examples; exec {run}"], mpi=mpi, env=env)
    deadline = time.monotonic() + 30
    # Ten steps, or 0.2 s, after version 20 was taken.
    while "step 30 " not in job.output.text:
        check(job.running() and time.monotonic() < deadline, f"it does not compute: {job.err}")
        time.sleep(0.01)
    subprocess.run(["bash", "-ec", kill], check=True)
    job.expect(0)
    (version,) = job.restored
    check(version is not None and version >= 20, f"restored {version}")
    check(job.output.results == prepared.output.results and len(job.output.results) == 1, job.output.text)


@scenario("python-example")
def python_example(context):
    """The installed example in Python without mpi4py: its second rank dies between copy and commit of its fifth checkpoint, and
    no line is lost."""
    program = context.prefix / "share/doc/ftd/examples/walk/walk.py"
    env = {"PYTHONPATH": context.prefix / "share/ftd/python"}

    def lines(job):
        return {line for line in job.output.text.splitlines() if " hash " in line}

    undisturbed = context.ftrun(None, 2, "/usr/bin/python3", program, env=env)
    undisturbed.expect(0)
    job = context.ftrun(None, 2, "/usr/bin/python3", program, env=env, gates=["client.copied:1:5"])
    job.kill(job.at_gate("client.copied", 1))
    job.expect(0)
    # Nothing makes the other rank wait: it may be some steps behind.
    (version,) = job.restored
    check(version in (10, 20, 30, 40), f"restored {version}")
    check(job.output.text.count(f"goes on from version {version}\n") == 2, job.output.text)
    check(lines(job) == lines(undisturbed) and len(lines(job)) == 200, f"{sorted(lines(job) ^ lines(undisturbed))}")


@scenario("nested", each=[{"how": "ftrun"}, {"how": "told"}, {"how": "mpirun"}])
def nested(context, how):
    """A job within a job: ftrun recovers by itself, in the outer one's mode; mpirun does not work, and it is said what does."""
    mpi = context.mpi("openmpi4")
    if how == "ftrun":
        program = context.program(mpi, "places.c")
        inner = f'"$0" -n 3 {program}; echo "inner status $?"'
        job = context.ftrun(mpi, 1, "bash", "-c", inner, context.prefix / "bin/ftrun", gates=["app.compute:1"])
        job.kill(job.at_gate("app.compute", 1))
        job.expect(0, context.reference(mpi, 3, program))
        check(job.restored == [5] and "inner status 0" in job.output.text, f"{job.err}{job.output.text}")
    elif how == "told":
        # What the outer job would take for a job of one is served by the inner one.
        inner = f'"$0" -n 2 --ft-mpi=openmpi env -u LD_PRELOAD {context.program(mpi, "ending.c")} slow; echo "inner status $?"'
        job = context.ftrun(mpi, 1, "bash", "-c", inner, context.prefix / "bin/ftrun")
        job.expect(0)
        check(job.output.results == ["of ending"] and "inner status 0" in job.output.text, f"{job.err}{job.output.text}")
    else:
        inner = " ".join(map(str, mpi.mpiexec(2, context.program(mpi, "ending.c"), "ok")))
        job = context.ftrun(mpi, 1, "bash", "-c", f'{inner}; code=$?; echo "inner status $code"; exit $code')
        status = job.wait(40)
        check(status != 0 and f"inner status {status}\n" in job.output.text, f"status {status}: {job.output.text}")
        check(re.search(r"process \d+ is rank 0 already: .*with ftrun", job.err), job.err)


# Each rank's file of a step is written in two parts; rank 1 of world 1 stays between those of step 7.
MARKED = """
import os, sys, time
from mpi4py import MPI
world, here = MPI.COMM_WORLD, os.environ["FT_CHECKPOINT_DIR"]


def whole(step):
    where = f"{here}/step.{step}"
    return os.path.exists(f"{where}/complete") and all(os.path.exists(f"{where}/rank.{n}") for n in range(world.size))


def steps():
    return sorted(int(name.partition(".")[2]) for name in os.listdir(here))


begun, total = max(filter(whole, steps()), default=0), 0
if begun:
    with open(f"{here}/step.{begun}/rank.{world.rank}") as file:
        total = int(file.read())
world.barrier()
if world.rank == 0:
    print("from", begun, "of", steps())
for step in range(begun + 1, 11):
    total = (total * 31 + world.allreduce(world.rank * step)) % 1000003
    os.makedirs(f"{here}/step.{step}", exist_ok=True)
    with open(f"{here}/step.{step}/rank.{world.rank}", "w") as file:
        text = f"{total:020}"
        file.write(text[:10])
        file.flush()
        while step == 7 and world.rank == 1 and os.environ["FT_WORLD"] == "1":
            with open("half.new", "w") as half:
                half.write(str(os.getpid()))
            os.rename("half.new", "half")
            time.sleep(60)
        file.write(text[10:])
    world.barrier()
    if world.rank == 0:
        open(f"{here}/step.{step}/complete", "w").close()
if world.rank == 0:
    print("result", total)
"""


@scenario("marked-restart")
def marked_restart(context):
    """A restart of one file per rank, as the guide has it: a step of which one rank's file is not whole is not taken, though the
    other ranks' files of it are there."""
    mpi = context.mpi("openmpi4")
    (context.work / "program.py").write_text(MARKED)
    job = context.ftrun(mpi, 3, "/usr/bin/python3", "-m", "mpi4py", "program.py")
    half, deadline = context.work / "half", time.monotonic() + 30
    while not half.exists():
        check(job.running() and time.monotonic() < deadline, f"rank 1 does not come to its place: {job.err}")
        time.sleep(0.01)
    directory = next(path for path in context.memory.glob("ftd-*/ckpt") if (path / "step.6").exists())
    # The marker is younger than what it stands for, and so is the notice of it.
    for name in ("step.6/complete", "step.7/rank.0", "step.7/rank.2"):
        job.wait_whole(directory / name)
    job.kill(int(half.read_text()), "rank 1 in the midst of its file")
    job.expect(0)
    total = 0
    for step in range(1, 11):
        total = (total * 31 + 3 * step) % 1000003
    check(job.output.results == [str(total)], f"{job.output.results}, not {total}: {job.err}")
    check("from 6 of [1, 2, 3, 4, 5, 6, 7]" in job.output.text, job.output.text)
    check("step.7/rank.1" in job.err, f"it is not said what was set aside: {job.err}")


@scenario("fortran-kinds", each=[{"kind": "default"}, {"kind": "wide"}])
def fortran_kinds(context, kind):
    """The Fortran module takes integers of the default kind, whichever that is (-fdefault-integer-8), and those of 32 and 64 bits."""
    source = next((context.scratch / "src").rglob("wide.f90"))
    library, options = context.prefix / "lib", ["-fdefault-integer-8"] if kind == "wide" else []
    built = subprocess.run(
        ["gfortran", *options, "-o", "wide", context.prefix / "include/ft.f90", source, "-L", library, f"-Wl,-rpath,{library}",
         "-lftd_client"], cwd=context.work, capture_output=True, text=True)
    check(built.returncode == 0, built.stderr)
    job = context.ftrun(None, 1, context.work / "wide")
    job.expect(0)
    lines = job.output.text.splitlines()
    check(lines == ["state 0 version 0 counter 3 there is no complete checkpoint to restore", "state 1 version 9 counter 7 success",
                    "end 7"], f"{lines}: {job.err}")
    check(job.restored == [9], job.err)


EXAMPLES = {"heat": "openmpi4", "heat-f": "openmpi4", "heat2d.py": "openmpi4", "pi": "mpich4", "walk.py": None,
            "particles": "openmpi4", "particles-f": "openmpi4", "blocks": "openmpi4"}


FORTRAN_2003 = """
program standard
  use ft
  implicit none
  integer :: state, version, ierr
  integer, target :: step(3)
  step = 4
  call ft_init(state, ierr)
  call ft_protect(1, step, ierr)
  version = 7
  if (ierr == 0) call ft_checkpoint(version, ierr)
  print *, 'ierr', ierr
  call ft_finalize(ierr)
end program
"""


@scenario("fortran-standards")
def fortran_standards(context):
    """The guide's lines for a program that is compiled as Fortran 2003 or 2008: ft.f90 by itself, without that option."""
    guide = (context.prefix / "share/doc/ftd/guide.md").read_text()
    alone, program = (line.replace("mpif90", "gfortran") for line in code_of(guide, r"mpif90 (?:-c|-std)"))
    (context.work / "app.f90").write_text(FORTRAN_2003)
    for standard in ("f2003", "f2008", "f2018"):
        lines = "; ".join(["rm -f *.o *.mod app", alone, program.replace("f2008", standard)])
        built = subprocess.run(["bash", "-ec", lines], cwd=context.work, capture_output=True, text=True,
                               env=context.env(None, {"PKG_CONFIG_PATH": context.prefix / "lib/pkgconfig"}))
        check(built.returncode == 0, f"{standard}: {built.stderr}")
        job = context.ftrun(None, 1, "./app")
        job.expect(0)
        check(job.output.text.split() == ["ierr", "0"] and job.err == "", f"{standard}: {job.output.text}{job.err}")


@scenario("examples-readme", each=[{"name": name} for name in EXAMPLES])
def examples_readme(context, name):
    """The examples' README, typed: each runs long enough that a rank can be killed by hand, and recovers."""
    mpi = EXAMPLES[name] and context.mpi(EXAMPLES[name])
    examples = shutil.copytree(context.prefix / "share/doc/ftd/examples", context.work / "examples")
    lines = code_of((examples / "README.md").read_text().replace("/opt/ftd", str(context.prefix)), "")
    (run,) = [line for line in lines if re.search(rf"ftrun .*/{name} ", line)]
    # The pauses alone: whatever the machine computes comes besides.
    numbers = [float(number) for number in re.findall(r" ([\d.]+)\b", run.partition(name)[2])]
    steps, pause = numbers[0], numbers[-1] / (1 if name == "walk.py" else 1000)
    check(steps * pause >= 10, f"{run}: {steps * pause} s")
    env = {"PKG_CONFIG_PATH": context.prefix / "lib/pkgconfig", "PYTHONPATH": context.prefix / "share/ftd/python"}
    build = "; ".join(line for line in lines if f" -o {name} " in line)
    context.start(["bash", "-ec", f"cd {examples}; {build or 'true'}"], mpi=mpi, env=env).expect(0)
    job = context.start(["bash", "-ec", f"cd {examples}; exec env {run.replace('ftrun', str(context.prefix / 'bin/ftrun'))}"],
                        mpi=mpi, env=env)
    until(lambda: re.search(r"\bstep [5-9]0 ", job.output.text), f"{name} does not compute")
    ranks = job.ranks()
    job.kill(ranks[1])
    until(lambda: job.restored, "there is no recovery")
    check(len(ranks) == len(job.wait_ranks(len(ranks), 2)) >= 2, f"{ranks}")
    check(job.restored[0] is None if name == "pi" else job.restored[0] >= 10, f"restored {job.restored}: {job.err}")
    job.interrupt(signal.SIGTERM)
    job.wait(20)


# Each with the word behind which the guide's excerpts of it stand, and its compiler.
CONTAINERS = {"particles.cpp": "mpicxx", "particles.f90": "mpif90", "blocks.f90": "mpif90"}


def excerpts(guide, name):
    """The code that the guide has after it has named this example: each block as its lines."""
    after = guide.partition(f"`examples/containers/{name}`")[2].partition("`examples/containers/")[0].partition("\n### ")[0]
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", after, re.M)
    return [[line.strip() for line in block.splitlines() if line.strip()] for block in blocks]


@scenario("containers", each=[{"mpi": mpi, "name": name} for name in CONTAINERS for mpi in ("openmpi4", "mpich4")])
def containers(context, mpi, name):
    """The guide's ways to protect a growing std::vector, a std::map, and arrays of derived types: what it shows is text of the example,
    and that, whose second rank dies between copy and commit, ends as if nothing had been."""
    source = context.prefix / f"share/doc/ftd/examples/containers/{name}"
    lines = [line.strip() for line in source.read_text().splitlines() if line.strip()]
    shown = excerpts((context.prefix / "share/doc/ftd/guide.md").read_text(), name)
    check(shown, f"the guide shows nothing of {name}")
    for block in shown:
        check(any(lines[at : at + len(block)] == block for at in range(len(lines))), f"{name} has no such lines: {block}")
    module = [context.prefix / "include/ft.f90"] if name.endswith(".f90") else []
    library, mpi, program = context.prefix / "lib", context.mpi(mpi), context.work / "program"
    compiler = f"/usr/bin/{CONTAINERS[name]}.{'mpich' if mpi.name == 'mpich4' else 'openmpi'}"
    built = subprocess.run(
        [compiler, "-O2", "-o", program, *module, source, "-I", context.prefix / "include", "-L", library, f"-Wl,-rpath,{library}",
         "-lftd_client"], cwd=context.work, env=context.env(mpi, {}), capture_output=True, text=True)
    check(built.returncode == 0, built.stderr)
    calm = context.start(mpi.mpiexec(3, program), mpi=mpi)
    calm.expect(0)
    job = context.ftrun(mpi, 3, program, gates=["client.copied:1:5"])
    job.kill(job.at_gate("client.copied", 1))
    job.expect(0)
    check(job.restored and job.restored[0] in (4, 8, 12, 16), f"restored {job.restored}: {job.err}")
    check(f"restarted from version {job.restored[0]}\n" in job.output.text, job.output.text)
    steps = [step for step, _ in calm.output.steps]
    check(steps == list(range(1, 41)), f"{steps}")
    check(set(job.output.steps) == set(calm.output.steps), f"{sorted(set(job.output.steps) ^ set(calm.output.steps))}")


@scenario("walk-alone", each=[{"mpi": m} for m in ("openmpi4", "mpich4")])
def walk_alone(context, mpi):
    """Under the MPI's own launcher every rank of the example in Python is the rank that it is."""
    mpi, program = context.mpi(mpi), context.prefix / "share/doc/ftd/examples/walk/walk.py"
    job = context.start(mpi.mpiexec(2, "/usr/bin/python3", program, 3), mpi=mpi, env={"PYTHONPATH": context.prefix / "share/ftd/python"})
    job.expect(0)
    said = sorted(re.findall(r"^rank (\d) step 3 ", job.output.text, re.M))
    check(said == ["0", "1"], job.output.text)


@scenario("next-job")
def next_job(context):
    """A checkpoint ends with its job, as the guide says: the next one begins from the start."""
    mpi = context.mpi("mpich4")
    program = context.program(mpi, "places.c")
    job = context.ftrun(mpi, 2, program, gates=["app.compute:1"])
    job.at_gate("app.compute", 1)
    job.interrupt(signal.SIGTERM)
    check(job.wait(20) == 143, job.err)
    job = context.ftrun(mpi, 2, program)
    job.expect(0)
    check(job.output.starts == [None] and "step 1 " in job.output.text, job.output.text)
