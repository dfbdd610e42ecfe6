"""What the guide tells a user of Slurm to type, typed, with a rank that dies."""

import re

from harness.job import Output, check
from harness.registry import scenario

from .admin_page import typed
from .command_line import code_of
from .slurm import idle
from .slurm_steps import Steps

# The lines of the guide, by their beginnings.
TYPED = {"srun": "srun -N2", "srun-spares": "srun -N3", "sbatch": "sbatch job", "wrapped": "sbatch -N3", "salloc": "salloc -N3"}


@scenario("slurm-guide", cluster=True, timeout=120, each=[{"line": line} for line in TYPED])
def guide(context, line):
    """The guide's lines for srun, sbatch and salloc: a rank on the second node dies, the job goes on with its state to the undisturbed result, and the
    block of the recovery stands where the job's errors do."""
    text = (context.prefix / "share/doc/ftd/guide.md").read_text()
    mpi = context.mpi("openmpi4")
    with Steps(context, 3) as steps:
        program = steps.cluster.program(mpi, "places.c")
        reference = steps.reference(mpi, 4, program)
        mine = lambda typed: typed.replace("./app input", str(program))
        script = [line for start in SCRIPT for line in code_of(text, start)]
        (context.work / "job.sh").write_text("".join(f"{mine(word)}\n" for word in ["#!/bin/sh", *script]))
        (typed,) = code_of(text, TYPED[line])
        # sbatch would be over before its job.
        job = steps.slurm.job("/bin/sh", "-c", mine(typed).replace("sbatch ", "sbatch --wait "), mpi=mpi, gates=["app.compute:3"])
        job.on = steps.nodes[1]
        victim = job.at_gate("app.compute", 3)
        check(victim in steps.nodes[1].pids(), "the rank is not on the node")
        job.kill(victim)
        status = job.wait(60)
        output = "".join(path.read_text() for path in context.work.glob("slurm-*.out"))
        said, blocks = job.output.text + output, (job.err + output).count("ftd: recovery, epoch")
        check((status, blocks, Output(said).results) == (0, 1, reference.results), f"{status}: {said}{job.err}, and undisturbed {reference.text}")
        check((context.work / "output").is_dir() == (line == "sbatch"), "a step of the script with --ft=none")
        steps.empty()


# What stands in the script, which its lines hand in.
SCRIPT = ("#SBATCH ", "srun --ft=none", r"srun \./app")


@scenario("slurm-guide-lines")
def lines(context):
    """Each line of the guide's part on Slurm is typed by the scenario above, or stands in its script."""
    text = (context.prefix / "share/doc/ftd/guide.md").read_text().partition("\n## Under Slurm\n")[2].partition("\n## ")[0]
    typed_by_nobody = [line for line in code_of(text, r"\S") if not any(re.match(start, line) for start in (*TYPED.values(), *SCRIPT))]
    check(not typed_by_nobody, f"nobody types {typed_by_nobody}")


@scenario("slurm-admin", cluster=True)
def admin(context):
    """What the administrators' page tells to type: the line of plugstack.conf, and how to see that it is there."""
    required, look = typed(context, "slurm-admin")
    with Steps(context, 1) as steps:
        steps.slurm.plug()
        status, out, _ = steps.slurm.run("/bin/sh", "-c", look)
        check((status, out) == (1, ""), f"without the plugin: {status}: {out}")
        steps.slurm.plug(required)
        status, out, err = steps.slurm.run("/bin/sh", "-c", look)
        check(status == 0 and re.search(r"--ft=MODE .*\n(.*\n)*.*--ft-spares=NODES", out), f"{status}: {out}{err}")
        idle(steps.slurm)
