"""What stays Slurm's own under `--ft`: how tasks are started, what their files are called, what a node costs that waits, and what of Slurm is used
for that."""

import os
import pathlib
import re
import subprocess
import time

from harness import proc
from harness.job import check
from harness.registry import scenario

from .hosts import ONE_CARD
from .processes import eventually
from .slurm_steps import Steps

# What a task sees of how it was started.
SHOWS = """pwd; umask; nice; ulimit -S -a; ulimit -H -a; id -G; grep -e Cpus_allowed_list -e NoNewPrivs -e Seccomp: /proc/self/status; cat /proc/self/oom_score_adj
echo to the error >&2"""


@scenario("slurm-own-tasks", cluster=True, timeout=90)
def tasks(context):
    """Labels, working directory, umask, limits and binding are those of a plain step: as Slurm makes them, for each task."""
    with Steps(context, 2, slurm="TaskPlugin=task/affinity") as steps:
        directory = context.work / "a directory"
        directory.mkdir()
        steps.cluster.give(directory)
        processors = sorted(os.sched_getaffinity(0))
        bind = f"--cpu-bind=map_cpu:{processors[0]},{processors[-1]}"
        before = 'umask 027; ulimit -S -n 300; ulimit -H -n 700; ulimit -S -c 0; ulimit -S -u 5000; exec srun "$@"'
        layout = ["-l", "-N2", "--ntasks-per-node=2", f"--chdir={directory}", bind]

        def shown(*options):
            status, out, err = steps.slurm.run("/bin/bash", "-c", before, "bash", *options, *layout, "/bin/bash", "-c", SHOWS)
            check(status == 0, f"{status}: {out}{err}")
            return sorted(out.splitlines()), sorted(line for line in err.splitlines() if "resources" not in line)

        plain, now = shown(), shown("--ft=reinit")
        check(now == plain, f"{[sorted(set(one) ^ set(other)) for one, other in zip(plain, now)]}")
        expected = {f"{task}: {line}" for task in range(4) for line in (str(directory), "0027")}
        expected |= {f"{task}: Cpus_allowed_list:\t{processors[-(task % 2)]}" for task in range(4)}
        check(expected <= set(plain[0]), f"{sorted(expected - set(plain[0]))} are not in {plain[0]}")
        check(any("open files" in line and line.endswith(" 300") for line in plain[0]), f"{plain[0]}")
        check(plain[1] == [f"{task}: to the error" for task in range(4)], f"{plain[1]}")
        steps.empty()


@scenario("slurm-own-files", cluster=True, timeout=90)
def files(context):
    """The files of `-o` and `-e` are called after the tasks, and so are the labels of `-l`: a rank that goes on in a spare node's task writes there from then on."""
    tells = 'echo "rank $FT_RANK of world $FT_WORLD"; echo "error of $FT_RANK" >&2; until [ -e go ]; do sleep 0.05; done'
    with Steps(context, 3) as steps:
        env = {**ONE_CARD, "FT_SPARES": 1}
        job = steps.srun("-N3", "--ntasks-per-node=2", "-o", "out.%t", "-e", "err.%n.%t", "/bin/sh", "-c", tells, env=env)
        text = lambda name: path.read_text() if (path := context.work / name).exists() else ""
        begun = lambda world, tasks: all(text(f"out.{task}").endswith(f"rank {rank} of world {world}\n") for rank, task in enumerate(tasks))
        eventually(lambda: begun(1, range(4)), "the ranks", 30)
        check(text("out.4") == text("out.5") == "", "spare tasks have ranks")
        steps.nodes[1].crash()
        eventually(lambda: begun(2, (0, 1, 4, 5)), "the ranks of the next world", 30)
        (context.work / "go").touch()
        job.expect(0)
        check(text("out.4") == "rank 2 of world 2\n" and text("err.2.4") == "error of 2\n", f"{text('out.4')}{text('err.2.4')}")
        check(text("err.0.1") == "error of 1\nerror of 1\n" and text("err.1.3") == "error of 3\n", f"{text('err.0.1')}{text('err.1.3')}")
        check("ftd: recovery, epoch" in job.err and not job.output.text, f"{job.output.text}{job.err}")
        steps.empty(steps.nodes[1])


# Seconds in which it is measured, and nanoseconds that all parked slots of a node have at most then.
WHILE, AT_MOST = 5, 10_000_000


@scenario("slurm-own-parked", cluster=True, timeout=90)
def parked(context):
    """The slots of a spare node, which wait for another node to die, have no processor."""
    with Steps(context, 2) as steps:
        job = steps.srun("-N2", "--ntasks-per-node=4", "/bin/sh", "-c", "echo ready; until [ -e go ]; do sleep 0.05; done", env={**ONE_CARD, "FT_SPARES": 1})
        eventually(lambda: job.output.text.count("ready\n") == 4, "the ranks", 30)
        slots = steps.nodes[1].named("ft-shepherd")
        check(len(slots) == 4, f"{slots}")
        before = [on_processor(pid) for pid in slots]
        time.sleep(WHILE)
        took = [on_processor(pid) - then for pid, then in zip(slots, before)]
        print(f"  {took} ns", flush=True)
        check(sum(took) <= AT_MOST, f"{took} ns in {WHILE} s")
        (context.work / "go").touch()
        job.expect(0)
        steps.empty()


def on_processor(pid):
    """Nanoseconds that a process has run."""
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0])


# What plugins may use of Slurm (`slurm/spank.h`, and of `slurm/slurm.h` what srun has at hand), as far as this one does; those that it looks up by
# their names a release may not have.
PUBLIC = {"spank_context", "spank_get_item", "spank_option_register", "spank_setenv"}
LOOKED_UP = {"spank_prepend_task_argv", "slurm_load_ctl_conf", "slurm_print_ctl_conf", "slurm_free_ctl_conf"}
HEADERS = pathlib.Path("/usr/include/slurm")
# Of the C library and of the compiler's.
SYSTEM = re.compile(r"@(GLIBC|GCC)_[\w.]+$")


@scenario("plugin-symbols")
def symbols(context):
    """The plugin needs nothing of Slurm but a few public functions, so that it can be loaded by any program of a release, and by the next release."""
    plugin = context.prefix / "libexec/ftd/ft_slurm.so"
    run = lambda *command: subprocess.run(command, capture_output=True, text=True, errors="replace", check=True).stdout
    symbols = [line.split() for line in run("nm", "--dynamic", "--undefined-only", plugin).splitlines()]
    # A weak one may be there or not.
    needed = {name for kind, name in symbols if kind != "w"}
    of_slurm = {name for name in needed if not SYSTEM.search(name)}
    check(of_slurm == PUBLIC, f"{sorted(of_slurm ^ PUBLIC)}")
    libraries = set(re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "--dynamic", plugin)))
    check(all(re.match(r"(libc|libgcc_s|libdl|libpthread|libm|ld-linux\S*)\.so", name) for name in libraries), f"{libraries}")
    # Names that end with a zero, as `dlsym` wants them.
    looked_up = set(re.findall(r"((?:slurm|spank)_\w+)$", run("readelf", "--string-dump=.rodata", plugin), re.M))
    check(looked_up == LOOKED_UP, f"{sorted(looked_up ^ LOOKED_UP)}")
    if HEADERS.is_dir():
        text = "".join(path.read_text() for path in HEADERS.glob("*.h"))
        undeclared = {name for name in PUBLIC | LOOKED_UP if not re.search(rf"\b{name}\s*\(", text)}
        # It is younger than 22.05.
        check(undeclared <= {"spank_prepend_task_argv"}, f"{undeclared}")
