"""Releases of ftd beside each other under Slurm: neighbours work together, others say why not, and daemons are exchanged below jobs."""

import os
import signal

from harness import proc
from harness.job import check
from harness.peer import VERSION
from harness.registry import scenario
from harness.releases import other_release

from .hosts import ONE_CARD
from .slurm_steps import Steps, sentences

APART = "and only neighbouring numbers work together: install the same ftd release everywhere"


def refused(steps, *words, most=1):
    """An srun is refused with one sentence, or with so many at most, and nothing has run."""
    status, out, err = steps.slurm.run("srun", "--ft=reinit", "-N2", "--ntasks-per-node=2", "/bin/echo", "ran")
    said = sentences(err)
    check(status not in (0, None) and out == "" and 1 <= len(said) <= most, f"{status}: {out}{err}")
    check(all(word in line for line in said for word in words), f"{words} are not in {said}")
    steps.empty()


def installs(steps, machine, release):
    """A machine has this release from now on; nothing: its own again. A node's daemon is started again with it."""
    daemon = next((steps.daemons[node.number] for node in steps.nodes if node is machine), None)
    if daemon:
        daemon.kill()
    prefix = steps.context.prefix
    said = machine.run("mount", "--bind", release, prefix) if release else machine.run("umount", prefix)
    check(said[0] == 0, f"{said}")
    if daemon:
        daemon.start()


@scenario("slurm-versions", cluster=True, timeout=150)
def versions(context):
    """A node, and then the machine where srun is called, has the whole of a release whose number is this one's neighbour: a job over both nodes runs
    and survives a rank's death on either. Where the numbers are no neighbours srun ends with a sentence that names both and says
    what to do, and no rank has run."""
    mpi = context.mpi("mpich5")
    neighbour, stranger = (other_release(context, VERSION + more) for more in (1, 2))
    with Steps(context, 2) as steps:
        program = steps.cluster.program(mpi, "places.c")
        reference = steps.reference(mpi, 4, program)
        far, daemon = steps.nodes[1], steps.daemons[1]

        def survives(rank):
            job = steps.srun("-N2", "--ntasks-per-node=2", program, mpi=mpi, env=ONE_CARD, gates=[f"app.compute:{rank}"])
            job.on = steps.nodes[rank // 2]
            job.kill(job.at_gate("app.compute", rank))
            job.expect(0, reference)
            check(job.restored == [5] and job.err.count("ftd: recovery, epoch") == 1, f"restored {job.restored}: {job.err}")
            steps.empty()

        installs(steps, far, neighbour)
        survives(3)
        survives(0)
        installs(steps, far, None)
        installs(steps, steps.slurm.login, neighbour)
        survives(3)
        installs(steps, steps.slurm.login, None)
        numbers = f"speaks protocol version {VERSION + 2}, this side speaks {VERSION}"
        daemon.kill()
        daemon.program = stranger / "bin" / "ftd"
        daemon.start()
        refused(steps, "srun: error: node ", "node1: ", numbers, APART)
        daemon.kill()
        daemon.program = context.prefix / "bin" / "ftd"
        daemon.start()
        # Its tasks are neighbours of both; its part would be none of the front's.
        plugins = context.work / "plugstack.conf"
        plugins.write_text(f"required {neighbour}/libexec/ftd/ft_slurm.so\n")
        of_slurm = steps.slurm.directory / "plugstack.conf"
        check(far.run("mount", "--bind", plugins, of_slurm)[0] == 0, "the plugin of another release")
        daemon.kill()
        daemon.program = stranger / "bin" / "ftd"
        daemon.start()
        refused(steps, "srun: error: node ", "node1: ", f"its ftd speaks protocol {VERSION + 2}, and the one where srun was called {VERSION}, {APART}")
        check(far.run("umount", of_slurm)[0] == 0, "the plugin of this release")
        daemon.kill()
        daemon.program = context.prefix / "bin" / "ftd"
        daemon.start()
        front = "the ftd where srun was called is of another release than this node's: it speaks protocol"
        installs(steps, steps.slurm.login, stranger)
        # Nobody there can reach the front, so each node's first task says it, until one ends the step.
        refused(steps, "ftd: node ", f"{front} {VERSION + 2}, and this node's {VERSION}, {APART}", most=2)
        installs(steps, steps.slurm.login, None)
        installs(steps, far, stranger)
        refused(steps, "ftd: node ", "node1: ", f"{front} {VERSION}, and this node's {VERSION + 2}, {APART}")


@scenario("slurm-upgrade", cluster=True, timeout=150)
def upgrade(context):
    """The daemons are exchanged below a running job, one after the other, for those of a release whose number is the neighbour's: nothing of the job is
    disturbed, its agents ask the store through the new ones when a rank has died, and it ends as if nothing had happened. A step that
    begins meanwhile, with the old release's shepherds and the new one's daemons, runs beside it."""
    mpi = context.mpi("mpich5")
    new = other_release(context, VERSION + 1) / "bin" / "ftd"
    with Steps(context, 2) as steps:
        program = steps.cluster.program(mpi, "places.c")
        reference = steps.reference(mpi, 4, program)
        # For a while the agents stand still.
        job = steps.srun("--ft-heartbeat=4s,20s", "-N2", "--ntasks-per-node=2", program, mpi=mpi, env=ONE_CARD, gates=["app.compute:3"])
        job.on = steps.nodes[1]
        victim = job.at_gate("app.compute", 3)
        for node in steps.nodes:
            daemon = steps.daemons[node.number]
            (agent,) = node.named("ft-agent")
            daemon.kill()
            proc.freeze(agent)
            daemon.program = new
            daemon.start()
            os.kill(agent, signal.SIGCONT)
            check("\njobs    slurm-" in daemon.status()[1], daemon.status()[1])
        check(job.running() and job.err == "", job.err)
        beside = steps.slurm.run("srun", "--ft=reinit", "--overlap", "-N2", "--ntasks-per-node=1", "/bin/echo", "ran")
        check(beside == (0, "ran\n" * 2, ""), f"{beside}")
        before = [steps.daemons[node.number].number("ftd_store_questions_total") for node in steps.nodes]
        job.kill(victim)
        job.expect(0, reference)
        check(job.restored == [5] and job.err.count("ftd: recovery, epoch") == 1, f"restored {job.restored}: {job.err}")
        asked = [steps.daemons[node.number].number("ftd_store_questions_total") for node in steps.nodes]
        check(all(later > sooner for later, sooner in zip(asked, before)), f"the new daemons were asked {before} times before the death, and {asked} times in all")
        steps.empty()
