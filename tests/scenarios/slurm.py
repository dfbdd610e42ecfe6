"""Jobs of a real Slurm cluster: slurmctld, a slurmd on each node, munge; srun where users log in."""

import contextlib

from harness import etcd
from harness.cluster import Cluster
from harness.job import Output, check
from harness.registry import scenario
from harness.slurm import LOGIN, Slurm


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
        check(slurm.run("squeue", "-h")[1] == "", "a job is left")
