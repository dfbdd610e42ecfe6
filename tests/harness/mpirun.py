"""Open MPI 4's own `mpirun` over the nodes of a cluster, in which there is no shell for it to start something elsewhere."""

import itertools
import subprocess
import time

from .job import check

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# What is called as a remote shell is told where, and what. It writes that down for who can do it, and waits until it is taken.
AGENT = """\
#!/bin/sh
place=DIRECTORY/$1
shift
printf %s "$*" > $place.new
mv $place.new $place
while [ -e $place ]; do sleep 0.05; done
"""


def mpirun_over(mpi, placement, command, env, directory, patience=180):
    """Runs a program with a rank on each of these nodes, in this order, as root; what it prints. `directory` is the same on all nodes."""
    asked, env = directory / "mpirun", {**env, **AS_ROOT}
    asked.mkdir()
    agent = asked / "agent"
    agent.write_text(AGENT.replace("DIRECTORY", str(asked)))
    agent.chmod(0o755)
    line = [mpi.launcher, *mpi.launcher_options, "--mca", "oob_tcp_if_include", "mpi", "--mca", "plm_rsh_no_tree_spawn", "1",
            "--mca", "plm_rsh_agent", agent]
    for number, (node, ranks) in enumerate(itertools.groupby(placement)):
        line += [":"] * (number > 0) + ["-n", str(len(list(ranks))), "-host", node.name, *command]
    where = {"env": env, "cwd": directory, "stdin": subprocess.DEVNULL}
    with open(asked / "out", "w") as out, open(asked / "err", "w") as err:
        run = placement[0].start(*line, stdout=out, stderr=err, **where).process
        deadline = time.monotonic() + patience
        while run.poll() is None and time.monotonic() < deadline:
            for node in {node.name: node for node in placement}.values():
                if (asked / node.name).exists():
                    node.start("/bin/sh", "-c", (asked / node.name).read_text(), stdout=err, stderr=err, **where)
                    (asked / node.name).unlink()
            time.sleep(0.02)
    text = (asked / "out").read_text()
    check(run.poll() == 0, f"{command} by hand on {[node.name for node in placement]}: {run.poll()} {text[-2000:]}{(asked / 'err').read_text()}")
    return text
