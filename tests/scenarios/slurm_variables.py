"""What Slurm's variables say of a rank: as in a plain step on the nodes that have ranks, wherever the rank is."""

import re

from harness import proc
from harness.job import check
from harness.registry import scenario

from .hosts import ONE_CARD
from .processes import eventually
from .slurm_steps import Steps

# Each task notes Slurm's variables and its own number.
NOTES = """{ echo "SELF=$$"; env | grep ^SLURM; } > $1.${FT_WORLD:-0}.$SLURM_PROCID.new; mv $1.${FT_WORLD:-0}.$SLURM_PROCID.new $1.${FT_WORLD:-0}.$SLURM_PROCID
echo ready; until [ -e go ]; do sleep 0.05; done"""
# The allocation's, and what is another step's in the next one. (SLURM_JOBID is older than the rule for such names.)
OTHERS = re.compile("^SLURM_JOB_|^SLURM_JOBID$|_PORT$|^SLURM_STEP_?ID$")
# Of srun's options, which the sruns of a script have from it.
OPTION = re.compile("^SLURM_SPANK_|^SLURM_FT$|^SLURM_PRESERVE_ENV$")


def noted(steps, label, world, tasks=4):
    """What the tasks of a world have noted, in their order."""
    files = [steps.context.work / f"{label}.{world}.{task}" for task in range(tasks)]
    eventually(lambda: all(file.exists() for file in files), f"all of world {world} of {label}", 30)
    return [dict(line.partition("=")[::2] for line in file.read_text().splitlines()) for file in files]


def plain(steps, label, *command, tasks=4):
    """The same of tasks that need not wait, without ftd."""
    (steps.context.work / "go").touch()
    status, out, err = steps.slurm.run(*command, "/bin/sh", "-c", NOTES, "sh", label)
    check(status == 0, f"{status}: {out}{err}")
    (steps.context.work / "go").unlink()
    return noted(steps, label, 0, tasks)


def compare(found, plain):
    """Task for task alike, but for what is not the step's; and each knows its own number."""
    for rank, (here, there) in enumerate(zip(found, plain, strict=True)):
        check(here["SLURM_TASK_PID"] == here["SELF"], f"rank {rank} is process {here['SELF']}: {here['SLURM_TASK_PID']}")
        of_step = lambda all_: {name: value for name, value in all_.items() if not (OTHERS.search(name) or OPTION.search(name) or name in ("SELF", "SLURM_TASK_PID"))}
        differ = dict(of_step(here).items() ^ of_step(there).items())
        check(not differ, f"rank {rank}: {[(name, here.get(name), there.get(name)) for name in differ]}")
        check({"SLURM_PROCID", "SLURM_NODELIST", "SLURMD_NODENAME", "SLURM_GTIDS"} <= of_step(here).keys(), f"{here}")


@scenario("slurm-variables", cluster=True, timeout=120)
def variables(context):
    """Slurm's variables of a rank are those of a task of a plain step on the nodes that have ranks: beside a spare node, after the death of a rank, and when the
    spare node has taken the place of one that crashed. What is the allocation's, and what `-E` keeps of it, is as Slurm has it."""
    with Steps(context, 3) as steps:
        names = steps.slurm.names
        on = lambda *nodes: ["srun", "-N2", "--ntasks-per-node=2", "-w", ",".join(names[f"node{node}"] for node in nodes)]
        first, then = plain(steps, "first", *on(0, 1)), plain(steps, "then", *on(0, 2))
        # Slurm takes another node where that of the step before is not free yet.
        inner = f'srun -E -N1 -n2 -w {names["node0"]} "$@"; SLURM_FT=reinit FT_SPARES=1 srun -E -N2 -n2 "$@"'
        kept = plain(steps, "kept", "salloc", "-Q", "-N3", "--ntasks-per-node=2", "/bin/sh", "-c", inner, "sh", tasks=2)
        compare(noted(steps, "kept", 1, 2), kept)
        check(all(task["SLURM_NNODES"] == "3" and task["SLURM_STEP_NUM_NODES"] == "1" for task in kept), f"{kept}")
        job = steps.srun("-N3", "--ntasks-per-node=2", "/bin/sh", "-c", NOTES, "sh", "ft", env={**ONE_CARD, "FT_SPARES": 1})
        begun = noted(steps, "ft", 1)
        compare(begun, first)
        nodes = {task["SLURM_JOB_NODELIST"] for task in begun}
        check(nodes == {names["node0"].replace("node0", "node[0-2]")}, f"{nodes}")
        # A child that is about to execute something else looks like it for a moment.
        played = [pid for pid in steps.nodes[1].named("sh") if proc.environ(pid).get("FT_RANK") == "3"]
        (victim,) = set(played).difference(*map(proc.descendants, played))
        job.kill(victim)
        compare(noted(steps, "ft", 2), first)
        steps.nodes[1].crash()
        compare(noted(steps, "ft", 3), then)
        (context.work / "go").touch()
        job.expect(0)
        steps.empty(steps.nodes[1])
