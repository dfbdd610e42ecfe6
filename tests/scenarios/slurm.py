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
            # No node is lost here by its silence, however much the machine has to do.
            slurm = Slurm(cluster, silence=60)
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
# What srun says when the nodes are not free yet of the step before.
WAITS = re.compile(r"srun: job \d+ (queued and waiting for|has been allocated) resources")


def complaints(err):
    """What has been said, without what differs from step to step."""
    return sorted(STEP.sub("StepId=", line) for line in err.splitlines() if not WAITS.fullmatch(line))


def told(slurm, *command):
    """Status, lines and complaints of an srun, without what differs from step to step."""
    status, out, err = slurm.run(*command)
    return status, sorted(out.splitlines()), complaints(err)


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
    return job.wait(20), sorted(job.output.text.splitlines()), complaints(job.err)


# The options of the plugin, in their order.
OPTIONS = ["ft", *(f"ft-{name}" for name in (
    "spares", "max-failures", "on-abort", "grace", "mpi", "wait", "oversubscribe", "copy-rate", "heartbeat", "inject", "standby", "flush", "degree"))]


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
        for program in ("srun", "sbatch", "salloc"):
            status, out, err = slurm.run(program, "--help")
            named = re.findall(r"^ +--(ft[a-z-]*)=\S", out, re.M)
            check(status == 0 and named == OPTIONS and re.search(r"--ft=MODE +keep the job going", out), f"{program}: {status}: {named}: {out}{err}")
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
    before = next_job(slurm)
    for mode, sentence in (
        ("spare", "--ft: the mode 'spare' is not built yet: this release has none and reinit"),
        ("rienit", "--ft: 'rienit' is no mode: choose none or reinit"),
        ("", "--ft: '' is no mode: choose none or reinit"),
    ):
        status, out, err = slurm.run("srun", f"--ft={mode}", "-n1", "/bin/echo", "ran")
        check((status, out, err) == (2, "", f"srun: error: {sentence}\n"), f"{status}: {out}{err}")
    check(next_job(slurm) == before, "Slurm was asked for a job")


# What the plugin has to do with ends here: who stands in srun's place says what it sees and starts the real srun, as ftd's front does.
FRONT = """\
#!/bin/sh
echo $$ $(ps -o pgid= -p $$) $(grep SigBlk: /proc/$$/status | cut -f2) >&2
for word in "$@"; do echo "word <$word>" >&2; done
while [ "$1" != -- ]; do shift; done
shift
srun=$1
shift
SLURM_FT_STEP=secret exec "$srun" --mpi=none --kill-on-bad-exit=0 "$@"
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
        # The step alone decides, not the option that slurmstepd is told, nor what ftrun goes by.
        plain = (0, "itself\n" * 2, "")
        for options, env in ((["--ft=none"], {}), ([], {}), ([], {"FT_MODE": "reinit", "FT_SPARES": "1"}), (["--ft=none"], {"SLURM_FT": "reinit"})):
            said = settled(slurm, "srun", *options, "-N2", "echo", "itself", env=env)
            check(said == plain, f"{options}: {said}")
        became(slurm, ["-N2", "-n", "2", "a"], ["--step", "--ft=reinit"], [], env={"SLURM_FT": "reinit"})
        # Nothing of the environment reaches the tasks then, but what is Slurm's.
        became(slurm, ["--ft=reinit", "--export=NONE", "-N2", "a"], ["--step", "--ft=reinit"], [])
        companions = ["--ft-spares=1", "--ft-grace=3s", "--ft-inject=rank=0,after=1s"]
        became(slurm, ["--ft=none", *companions, "-N2", "--ft=reinit", "-W9", "--", "a"], ["--step", "--ft=reinit", *companions, "-n1"],
               ["--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--no-kill", "--wait=0"])
        programs_apart(slurm)
        # What --bcast has put into a directory is there under another name, and that is what the shepherd is told.
        status, out, err = slurm.run("srun", "--ft=reinit", "-N2", "--bcast=/tmp/", "/usr/bin/env", "x")
        names = sorted(re.findall(r"shepherd \d <(/tmp/slurm_bcast_\d+\.0_\w+)> 1 <x>", out))
        check(status == 0 and [name.rpartition("_")[2] for name in names] == [slurm.names[f"node{n}"] for n in range(2)], f"{status}: {out}{err}")


def idle(slurm):
    """Waits until no job is left, for which Slurm would have the next one wait."""
    eventually(lambda: slurm.run("squeue", "-h")[1] == "", "the job before to be over", 30)
    slurm.wait_for(len(slurm.cluster.nodes), "idle")


def settled(slurm, *command, **options):
    """What a command says when no job is left from before."""
    idle(slurm)
    return slurm.run(*command, **options)


def became(slurm, words, own, more, env=None):
    """An srun with these words becomes ftrun with these own options, and srun's words with more before the program."""
    status, out, err = settled(slurm, "srun", *words, env=env)
    at = words.index("--") if "--" in words else words.index("a")
    expected = [*own, "--", shutil.which("srun"), *words[:at], *more, *words[at:]]
    _, *said = err.splitlines()
    check(status == 0 and said == [f"word <{word}>" for word in expected] and out.count("shepherd ") == 2, f"{status}: {out}{err}")


def programs_apart(slurm):
    """What an MPI's own launcher starts on the nodes, a program that somebody talks to, and a question are none of ftd's."""
    daemon = slurm.cluster.context.work / "orted"
    daemon.write_text("#!/bin/sh\necho itself\n")
    daemon.chmod(0o755)
    for words, expected in ((["-N2", daemon], "itself\n" * 2), (["-N1", "--pty", "echo", "itself"], "itself"), (["-N1", "--test-only", "/bin/true"], "")):
        status, out, err = settled(slurm, "srun", *words, env={"SLURM_FT": "reinit"})
        check(status == 0 and out.strip() == expected.strip() and "word" not in err, f"{words}: {status}: {out}{err}")


def next_job(slurm):
    """The number of Slurm's next job: nothing was asked of it where that stays."""
    return re.search(r"NEXT_JOB_ID += (\d+)", slurm.run("scontrol", "show", "config")[1])[1]


YET = "cannot be had together with --ft yet: leave one of them out (--ft=none where an allocation has it)"

# Words of srun's, with --ft=reinit before them, variables, and the sentence.
REFUSED = (
    (["-N1", "/bin/true", ":", "-N1", "/bin/true"], {}, f"':' between components of a job {YET}"),
    (["--het-group=0", "/bin/true"], {}, f"--het-group=0 {YET}"),
    (["/bin/true"], {"SLURM_HET_SIZE": "2"}, f"SLURM_HET_SIZE=2 {YET}"),
    (["--container=/nowhere", "/bin/true"], {}, f"--container=/nowhere {YET}"),
    (["--pty", "/bin/true"], {}, f"--pty {YET}"),
    (["-n1", "--multi-prog", "programs"], {}, f"--multi-prog {YET}"),
    (["-N1", "-n1", "-m", "arbitrary", "-w", "{node0}", "/bin/true"], {}, f"-marbitrary {YET}"),
    (["-n1", "/bin/true"], {"SLURM_DISTRIBUTION": "arbitrary"}, f"SLURM_DISTRIBUTION=arbitrary {YET}"),
    (["-N2", "-n4", "-m", "cyclic", "/bin/true"], {}, f"-mcyclic {YET}"),
    (["-N2", "-n4", "/bin/true"], {"SLURM_DISTRIBUTION": "plane", "SLURM_DIST_PLANESIZE": "1"}, f"SLURM_DISTRIBUTION=plane {YET}"),
    (["-n1", "/bin/true"], {"SLURM_HOSTFILE": "./hosts"}, f"SLURM_HOSTFILE=./hosts {YET}"),
    (["-n1", "/bin/true"], {"SRUN_CONTAINER": "/nowhere"}, f"SRUN_CONTAINER=/nowhere {YET}"),
    (["-n1", "/bin/true"], {"SLURM_NNODES": "1-2"}, "SLURM_NNODES=1-2: with --ft the number of nodes is one number yet, the spare ones included"),
    (["--mpi=pmix", "/bin/true"], {}, "--mpi=pmix cannot be had together with --ft: the ranks find each other through ftd, so leave it out"),
    (["-N1-2", "/bin/true"], {}, "-N1-2: with --ft the number of nodes is one number yet, the spare ones included"),
    (["--ft-spares=1", "/bin/true"], {}, "--ft-spares=1: of how many nodes? Say so with -N, the spare ones included"),
    (["-N2", "--ft-spares=2", "/bin/true"], {}, "--ft-spares=2 leaves none of 2 nodes for the ranks: -N counts the spare nodes too"),
    (["-N2", "-n7", "--ntasks-per-node=3", "/bin/true"], {"FT_SPARES": "1"},
     "7 ranks do not fit: 2 nodes less 1 spare, with 3 tasks each, hold 3; ask for more nodes or tasks of a node"),
)


@scenario("slurm-refusals", cluster=True)
def refusals(context):
    """What cannot be had together with `--ft` is refused by its name, in one sentence with status 2, before Slurm is asked for anything; so is a
    plugin that is installed without ftd. A node where it is gets no rank, and srun's status says so."""
    with slurm_of(context, 2) as slurm:
        place = front_and_shepherd(slurm, context)
        (context.work / "programs").write_text("0 /bin/true\n")
        (context.work / "hosts").write_text(slurm.names["node0"] + "\n")
        number = next_job(slurm)
        for words, env, sentence in REFUSED:
            words = [word.format(**slurm.names) for word in words]
            said = slurm.run("srun", "--ft=reinit", *words, env=env)
            check(said == (2, "", f"srun: error: {sentence}\n"), f"{words}: {said}")
        said = slurm.run("srun", "--ft-spares=1", "-N2", "/bin/true")
        sentence = "--ft-spares=1 says how a job is kept going, and nothing says that it is to be: add --ft=reinit"
        check(said == (2, "", f"srun: error: {sentence}\n"), said)
        for missing in ("bin/ftrun", "libexec/ftd/ft-shepherd"):
            (place / missing).rename(place / "away")
            said = slurm.run("srun", "--ft=reinit", "-N2", "/bin/true")
            sentence = f"{place / missing} is not there or cannot be executed: ftd has to be installed here, with this plugin in its libexec/ftd"
            check(said == (2, "", f"srun: error: --ft: {sentence}\n"), said)
            (place / "away").rename(place / missing)
        front = (place / "bin/ftrun").read_text()
        (place / "bin/ftrun").write_text(front.replace("SLURM_FT_STEP", "FT_STEP"))
        status, out, err = slurm.run("srun", "--ft=reinit", "-N2", "/bin/true")
        sentence = "--ft: ftrun has started srun as if the plugin were of another release: install both anew, from one"
        check((status, out, err.splitlines()[-1]) == (2, "", f"srun: error: {sentence}"), f"{status}: {out}{err}")
        (place / "bin/ftrun").write_text(front)
        check(next_job(slurm) == number, "Slurm was asked for a job")
        # Where srun is there is one, and where the tasks are there is none.
        installed = context.dir / "of-nodes"
        (installed / "libexec/ftd").mkdir(parents=True)
        shutil.copy(place / "libexec/ftd/ft_slurm.so", installed / "libexec/ftd")
        for node in slurm.cluster.nodes:
            said = node.run("mount", "--bind", installed, place)
            check(said[0] == 0, f"{said}")
        status, out, err = slurm.run("srun", "--ft=reinit", "-N1", "-n2", "/bin/echo", "ran")
        check(status != 0 and out == "", f"{status}: {out}{err}")
        check(err.count(f": the task cannot be started: {place}/libexec/ftd/ft-shepherd is not there or cannot be executed") == 1, err)


# A script for sbatch: whether it is touched itself, then a step with what the job was given, and one without.
SCRIPT = """\
#!/bin/sh
{options}
echo "script ${{FT_STEP_PROGRAM-itself}}"
srun -N2 /bin/echo "of a step" </dev/null
srun --ft=none -N2 /bin/echo "of another" </dev/null
"""

# What it writes; what stands in srun's place says its words besides.
WRITTEN = ["of another"] * 2 + ["script itself"] + [f"shepherd {n} </bin/echo> 1 <of a step> <>" for n in range(2)]


def written(text):
    """The lines of the script's own output, sorted, and the words of what stood in srun's place."""
    lines = [re.sub(" [0-9]+ *$", "", line) for line in text.splitlines() if re.match("script|shepherd|of another", line)]
    return sorted(lines), re.findall("^word <(.*)>$", text, re.M)


# How a job is told of `--ft`, with variables, a script on standard input, and the own options that ftrun has then.
ASKS, ASKED = ["--ft=reinit", "--ft-grace=3s"], {"SLURM_FT": "reinit", "FT_GRACE": "3s"}
GIVEN = {
    "words": (["-N2", *ASKS, "plain"], {}, ASKS),
    "script": (["with"], {}, ASKS),
    "wrapped": (["-N2", *ASKS, "--wrap", "sh plain"], {}, ASKS),
    "variable": (["-N2", "plain"], ASKED, ASKS[:1]),
    "input": (["-N2", *ASKS], {"input": "plain"}, ASKS),
    "pipe": (["-N2", *ASKS], {"input": "plain", "piped": "1", "SBATCH_NO_KILL": "set"}, ASKS),
    "taken-back": (["--ft=none", "with"], {}, None),
}


def scripts(slurm, context):
    """Puts the scripts where the jobs run. Where they write to."""
    front_and_shepherd(slurm, context)
    (context.work / "plain").write_text(SCRIPT.format(options=""))
    (context.work / "with").write_text(SCRIPT.format(options="#SBATCH --ft=reinit --ft-grace=3s\n#SBATCH -N2"))
    return context.work / "written"


@scenario("slurm-sbatch-option", cluster=True, each=[{"given": given} for given in GIVEN])
def sbatch_option(context, given):
    """`--ft` given to sbatch, in its script, or by a variable is the default of the sruns within, of which one with `--ft=none` is none of ftd's; the
    script itself is not touched."""
    words, variables, own = GIVEN[given]
    with slurm_of(context, 2) as slurm:
        output = scripts(slurm, context)
        text = handed_in(slurm, [f"--output={output}", *words], dict(variables), output)
        lines, passed = written(text)
        if own is None:
            check(sorted(lines) == sorted(WRITTEN[:3]) and text.count("of a step\n") == 2 and not passed, f"{lines}, {passed}: {text}")
        else:
            check(lines == WRITTEN and passed[: len(own) + 2] == ["--step", *own, "--"], f"{lines}, {passed}: {text}")


@scenario("slurm-allocations", cluster=True)
def allocations(context):
    """salloc's `--ft` is the default of the sruns within. A script that cannot be read again is refused in one sentence, and so is what cannot be
    had at all. Open MPI's mpirun in a job with `--ft` starts its daemons with srun, and they start the ranks as ever."""
    with slurm_of(context, 2) as slurm:
        output = scripts(slurm, context)
        number = next_job(slurm)
        sentence = ("with --ft sbatch needs --no-kill, and to add that the script would have to be read a second time, which a pipe cannot be: "
                    "give --no-kill yourself, or the script as a file")
        said = sbatch(slurm, ["-N2", *ASKS], {"input": "plain", "piped": "1"})
        check(said == (2, "", f"sbatch: error: {sentence}\n"), said)
        said = slurm.run("sbatch", "--no-kill=off", *ASKS, "plain")
        check(said[0] == 2 and said[2].startswith("sbatch: error: --no-kill=off has Slurm end the job with its first lost node"), said)
        for command in ("sbatch", "salloc"):
            said = slurm.run(command, "--ft=spare", "-N1", "plain")
            check(said == (2, "", f"{command}: error: --ft: the mode 'spare' is not built yet: this release has none and reinit\n"), said)
        said = slurm.run("salloc", "--ft=reinit", "-N1", ":", "-N1", "/bin/true")
        check(said == (2, "", f"salloc: error: several components of a job {YET}\n"), said)
        check(next_job(slurm) == number, "Slurm was asked for a job")
        status, out, err = slurm.run("salloc", "-N2", *ASKS, "/bin/sh", "plain")
        lines = sorted(re.sub(" [0-9]+ *$", "", line) for line in out.splitlines())
        check(status == 0 and lines == WRITTEN and "word <--ft-grace=3s>" in err, f"{status}: {out}{err}")
        mpi = context.mpi("openmpi4")
        program = slurm.cluster.program(mpi, "places.c")
        script = " ".join(map(str, mpi.mpiexec(2, program)))
        text = handed_in(slurm, ["-N2", f"--output={output}", "--ft=reinit", "--wrap", script], {}, output, mpi=mpi)
        reference = context.reference(mpi, 2, program, on=slurm.cluster.nodes[0])
        check(reference.results and Output(text).results == reference.results, f"{text}, and undisturbed {reference.text}")


@scenario("slurm-keeps-nodes", cluster=True)
def keeps_nodes(context):
    """A job with `--ft` goes on when it has lost a node, in sbatch and salloc, and one without does not."""
    with slurm_of(context, 2) as slurm:
        output = scripts(slurm, context)
        waits = "echo began; while [ ! -e gone ]; do sleep 0.05; done; echo went on"
        for command, goes_on in (
            (["sbatch", f"--output={output}", "--ft=reinit", "--wrap", waits], True),
            (["salloc", "--ft=reinit", "/bin/sh", "-c", waits], True),
            (["salloc", "/bin/sh", "-c", waits], False),
        ):
            loses_a_node(slurm, command, goes_on, output)


def loses_a_node(slurm, command, goes_on, output):
    """A job on two nodes of which Slurm is told that the last one is down."""
    idle(slurm)
    gone, last = slurm.cluster.context.work / "gone", slurm.names["node1"]
    # sbatch itself is over at once.
    job = None if command[0] == "sbatch" else slurm.job(command[0], "-N2", *command[1:])
    if not job:
        said = slurm.run(command[0], "-N2", *command[1:])
        check(said[0] == 0, f"{said}")
    text = lambda: job.output.text if job else output.read_text() if output.exists() else ""
    eventually(lambda: "began" in text(), "the job", 20)
    slurm.update(f"nodename={last}", "state=down", "reason=test")
    if job:
        eventually(lambda: "Node failure" in job.err and (goes_on or "revoked" in job.err), "Slurm to say so", 20)
        check(("revoked" not in job.err) == goes_on, job.err)
    # salloc waits for its command in any case, and its status is that one's.
    gone.touch()
    eventually(lambda: "went on" in text(), "the job to go on", 20)
    check(not job or job.wait(20) == 0, f"{text()}{job and job.err}")
    gone.unlink()
    eventually(lambda: slurm.run("squeue", "-h")[1] == "", f"the job that has lost {last} to be over", 30)
    # It may have come back by itself (ReturnToService).
    if "down" in slurm.run("sinfo", "-h", "-N", "-n", last, "-o", "%T")[1]:
        slurm.update(f"nodename={last}", "state=resume")


def handed_in(slurm, words, variables, output, mpi=None):
    """What a script has written that was handed in and ended well."""
    status, out, err = sbatch(slurm, words, variables, mpi)
    check(status == 0, f"{status}: {out}{err}")
    idle(slurm)
    text = output.read_text()
    said = slurm.run("scontrol", "show", "job", out.split()[-1])[1]
    check("JobState=COMPLETED" in said and "ExitCode=0:0" in said, f"{said}{text}")
    output.unlink()
    return text


def sbatch(slurm, words, variables, mpi=None):
    """Hands in a script: as a file among the words, or from standard input, which is that file or a pipe."""
    source, piped = variables.pop("input", None), variables.pop("piped", None)
    if source is None:
        return slurm.run("sbatch", *words, env=variables, mpi=mpi)
    if piped:
        return slurm.run("/bin/sh", "-c", 'cat "$0" | sbatch "$@"', source, *words, env=variables)
    # What is before the script in the file is none of it.
    work = slurm.cluster.context.work
    (work / "behind").write_text("a line before\n" + (work / source).read_text())
    return slurm.run("/bin/sh", "-c", '(read line; sbatch "$@") < "$0"', "behind", *words, env=variables)
