"""Jobs of a real Slurm cluster: slurmctld, a slurmd on each node, munge; srun where users log in."""

import contextlib
import re
import shutil
import signal

from harness import etcd
from harness.cluster import Cluster
from harness.job import Output, check
from harness.registry import scenario
from harness.slurm import LOGIN, Slurm

from .processes import eventually


@contextlib.contextmanager
def slurm_of(context, size):
    """A cluster of so many nodes with Slurm, and nothing of ftd's."""
    slurm = None
    try:
        with Cluster(context, size, extra=[LOGIN]) as cluster:
            slurm = Slurm(cluster)
            yield slurm
    finally:
        if slurm:
            slurm.close()


@scenario("slurm-plain", cluster=True)
def plain(context):
    """The tests' own cluster is one: an MPI program that `srun` starts without ftd runs on all nodes as the user; its output, its exit status and
    its end are Slurm's, and nothing of it is left."""
    mpi = context.mpi("openmpi4")
    with slurm_of(context, 2) as slurm:
        status, out, err = slurm.run("srun", "-N2", "--ntasks-per-node=2", "/bin/sh", "-c", "echo $(hostname) $SLURM_PROCID $SLURM_LOCALID $(id -un)")
        user = slurm.cluster.user.pw_name
        expected = [f"node{rank // 2} {rank} {rank % 2} {user}" for rank in range(4)]
        check((status, sorted(out.splitlines()), err) == (0, expected, ""), f"{status}: {out}{err}")
        program = slurm.cluster.program(mpi, "places.c")
        reference = context.reference(mpi, 4, program, on=slurm.cluster.nodes[0])
        status, out, err = slurm.run("srun", "--mpi=pmix", "-N2", "--ntasks-per-node=2", program, mpi=mpi)
        check(status == 0, f"{status}: {out}{err}")
        check(reference.results and Output(out).results == reference.results, f"{out}, and undisturbed {reference.text}")
        # A rank's death is everybody's, without ftd.
        status, out, err = slurm.run("srun", "-N2", "--ntasks-per-node=1", "/bin/sh", "-c", "[ $SLURM_PROCID = 0 ] && kill -9 $$; sleep 60")
        check(status in (137, 143) and "task 0: Killed" in err, f"{status}: {out}{err}")
        # srun ends before Slurm has heard from all nodes that nothing is left there.
        eventually(lambda: slurm.run("squeue", "-h")[1] == "", "the job to be over", 20)


# Variables that are another step's in the next one, also where two happen to have the same.
VARIES = re.compile("(PORT|PID|JOBID|JOB_ID)$")
# What stands in error messages and differs from step to step.
STEP = re.compile(r"StepId=\d+\.\d+")


def told(slurm, *command):
    """Status, lines and complaints of an srun, without what differs from step to step."""
    status, out, err = slurm.run(*command)
    return status, sorted(out.splitlines()), sorted(STEP.sub("StepId=", err).splitlines())


def variables(slurm, *options):
    """The environment of the only task of an srun."""
    status, out, err = slurm.run("srun", "-n1", "-w", slurm.names["node0"], *options, "/usr/bin/env")
    check(status == 0, f"{status}: {out}{err}")
    return dict(line.partition("=")[::2] for line in out.splitlines())


def signalled(slurm, *options):
    """Status, lines and complaints of an srun that passes a signal on to its tasks, which end themselves at that."""
    waits = "trap 'echo usr1; exit 3' USR1; echo ready; while :; do sleep 0.05; done"
    job = slurm.job("srun", "-K0", "-l", "-N2", *options, "/bin/sh", "-c", waits)
    eventually(lambda: job.output.text.count("ready\n") == 2, "the tasks", 20)
    job.interrupt(signal.SIGUSR1)
    return job.wait(20), sorted(job.output.text.splitlines()), sorted(STEP.sub("StepId=", job.err).splitlines())


@scenario("slurm-plugin", cluster=True)
def plugin(context):
    """With the plugin srun knows `--ft`, and without that option, and with `--ft=none`, everything is as without the plugin: the environment of the
    tasks, their output, exit codes and signals. Modes that cannot be had are refused in one sentence before Slurm is asked for anything."""
    with slurm_of(context, 2) as slurm:
        lines = (
            ["/bin/sh", "-c", "echo $(hostname) $SLURM_PROCID; echo to-err >&2; exit $((SLURM_PROCID * 7))"],
            ["/bin/sh", "-c", "[ $SLURM_PROCID = 0 ] || kill -9 $$"],
            ["/no/such/program"],
        )
        all_of = lambda *options: [signalled(slurm, *options), *(told(slurm, "srun", "-K0", "-N2", *options, *line) for line in lines)]
        without, plain = all_of(), [variables(slurm) for _ in range(2)]
        check([status for status, *_ in without] == [3, 7, 137, 2] and without[0][1] == ["0: ready", "0: usr1", "1: ready", "1: usr1"], without)
        varies = {name for name in plain[0] if plain[0][name] != plain[1].get(name) or VARIES.search(name)}
        check("PATH" in plain[0] and not varies & {"PATH", "SLURM_PROCID", "SLURM_MPI_TYPE"}, f"{varies} differ between two steps")
        slurm.plug(f"required {context.prefix}/libexec/ftd/ft_slurm.so")
        status, out, err = slurm.run("srun", "--help")
        check(status == 0 and re.search(r"--ft=MODE +keep the job going", out), f"{status}: {out}{err}")
        for options in ([], ["--ft=none"]):
            now = all_of(*options)
            check(now == without, f"{options}: {now}, and without the plugin {without}")
            now = variables(slurm, *options)
            # Slurm itself tells an srun within the step of the option.
            own = {name for name in now if "SLURM_SPANK_" in name} if options else set()
            differ = {name for name in now.keys() | plain[0].keys() if now.get(name) != plain[0].get(name)} - varies - own
            check(not differ, f"{options}: {sorted((name, now.get(name), plain[0].get(name)) for name in differ)}")
        refused(slurm)


def refused(slurm):
    """What is no mode, or not built."""
    number = lambda: re.search(r"NEXT_JOB_ID += (\d+)", slurm.run("scontrol", "show", "config")[1])[1]
    before = number()
    for mode, sentence in (
        ("spare", "--ft: the mode 'spare' is not built yet: this release has none and reinit"),
        ("rienit", "--ft: 'rienit' is no mode: choose none or reinit"),
        ("", "--ft: '' is no mode: choose none or reinit"),
    ):
        status, out, err = slurm.run("srun", f"--ft={mode}", "-n1", "/bin/echo", "ran")
        check((status, out, err) == (2, "", f"srun: error: {sentence}\n"), f"{status}: {out}{err}")
    check(number() == before, "Slurm was asked for a job")


# What the plugin has to do with ends here: who stands in srun's place says what it sees and starts the real srun, as ftd's front does.
FRONT = """\
#!/bin/sh
echo $$ $(ps -o pgid= -p $$) $(grep SigBlk: /proc/$$/status | cut -f2) >&2
for word in "$@"; do echo "word <$word>" >&2; done
while [ "$1" != -- ]; do shift; done
shift
srun=$1
shift
FT_STEP=secret exec "$srun" --mpi=none --kill-on-bad-exit=0 "$@"
"""

# What stands in a task's place.
SHEPHERD = """\
#!/bin/sh
echo "shepherd $SLURM_PROCID <$FT_STEP_PROGRAM> $# <$1> <$2> $(ulimit -n) $PROLOGUE"
"""


def front_and_shepherd(slurm, context):
    """An installation of the plugin alone, with these two programs where it looks for ftd's. Its directory."""
    place = context.dir / "installed"
    for name, text in (("bin/ftrun", FRONT), ("libexec/ftd/ft-shepherd", SHEPHERD)):
        (place / name).parent.mkdir(parents=True)
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    shutil.copy(context.prefix / "libexec/ftd/ft_slurm.so", place / "libexec/ftd")
    # Where plugins usually lie: ftd is where the link leads to.
    link = context.dir / "ft_slurm.so"
    link.symlink_to(place / "libexec/ftd/ft_slurm.so")
    slurm.plug(f"required {link}")
    return place


@scenario("slurm-front", cluster=True)
def front(context):
    """`srun --ft=reinit` becomes `ftrun --step` with srun's own words, in its process and group, with no signal blocked. The tasks of the step that
    is started there are `ft-shepherd`, which is told the program; what comes after the plugin (TaskProlog, limits) still happens. No other task
    is touched."""
    with slurm_of(context, 2) as slurm:
        front_and_shepherd(slurm, context)
        prologue = context.dir / "prologue"
        prologue.write_text("#!/bin/sh\necho export PROLOGUE=ran\n")
        prologue.chmod(0o755)
        words = ["--ft=reinit", "-N2", f"--task-prolog={prologue}", "-l", "a program", "it's", "", "-n", "7"]
        status, out, err = slurm.run("/bin/sh", "-c", 'ulimit -Sn 77; echo $$ $(ps -o pgid= -p $$) >&2; exec srun "$@"', "sh", *words)
        srun, front, *said = err.splitlines()
        check(front == f"{srun} {0:016x}", f"process, group and blocked signals: {front}, and srun's {srun}")
        expected = ["--step", "--ft=reinit", "--", shutil.which("srun"), *words]
        check(said == [f"word <{word}>" for word in expected], f"{said}, and not {expected}")
        tasks = sorted(out.splitlines())
        check((status, tasks) == (0, [f"{n}: shepherd {n} <a program> 4 <it's> <> 77 ran" for n in range(2)]), f"{status}: {out}{err}")
        # The step alone decides, not the option that slurmstepd is told.
        for options, env in ((["--ft=none"], {}), ([], {}), ([], {"FT_MODE": "reinit"})):
            slurm.wait_for(2, "idle")
            status, out, err = slurm.run("srun", *options, "-N2", "echo", "itself", env=env)
            check((status, out, err) == (0, "itself\n" * 2, ""), f"{options}: {status}: {out}{err}")
