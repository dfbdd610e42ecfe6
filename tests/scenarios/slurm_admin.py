"""What an administrator of a Slurm cluster decides: nodes without a daemon are drained or not, how processes are held together, what a node's
users see of /tmp, how many tasks a node has."""

import os
import re
import time

from harness import proc
from harness.job import check
from harness.registry import scenario

from .admin_page import typed
from .copies import kept, wait_kept
from .hosts import ONE_CARD
from .nodes import key_of
from .processes import eventually
from .slurm_steps import Steps

LEASE = 2


@scenario("slurm-drain", cluster=True, timeout=150)
def drain(context):
    """Without `slurm.drain` a node stays in service whose ftd is gone. With it the node is drained when its own ftd's lease has expired, by one of the
    others, once, and its jobs run on; a daemon that is back in time, and a node that the agents of a job have given up, are not; none is taken down."""
    with Steps(context, 3, lease=f"{LEASE}s") as steps:
        slurm = steps.slurm
        far, daemon, name = steps.nodes[1], steps.daemons[1], slurm.names["node1"]
        state = lambda node=far: slurm.state(node, "%T|%E")

        def goes():
            daemon.kill()
            eventually(lambda: key_of(steps.store, "node1") is None, "the lease to expire", 30)

        goes()
        # With it four leases would be enough.
        time.sleep(7 * LEASE)
        check(state() == "idle|none", f"nobody was to drain it: {state()}")
        for node in steps.nodes:
            one = steps.daemons[node.number]
            if node is not far:
                one.kill()
            one.env = context.env(None, {**slurm.environment, "PATH": "/usr/bin:/bin"})
            one.file.write_text(one.file.read_text() + "\n".join(typed(context, "slurm-drain")) + f'\nnode = "{slurm.names[node.name]}"\n')
            check(far.run(one.program, "check-config", one.file)[0] == 0, "the configuration")
            one.start()
            eventually(lambda: key_of(steps.store, node.name), "the node's key", 20)
        # A job's agents give the node up, and its daemon is there.
        mpi = context.mpi("mpich5")
        program = steps.cluster.program(mpi, "places.c")
        job = steps.srun("-N3", "--ntasks-per-node=1", program, mpi=mpi, env={**ONE_CARD, "FT_SPARES": 1}, gates=["app.compute:1", *kept(5, range(2))])
        job.on = far
        job.at_gate("app.compute", 1)
        wait_kept(job, range(2))
        far.cut("mpi")
        job.expect(0)
        check("node node1 was silent for the heartbeat time-out" in job.err, job.err)
        far.heal("mpi")
        steps.empty(patience=40)
        # It is back before anybody gives it up.
        goes()
        daemon.start()
        eventually(lambda: key_of(steps.store, "node1"), "the node's key", 20)
        time.sleep(7 * LEASE)
        check(state().startswith("idle|"), f"it was drained, and nothing was to drain it: {state()}")
        # Nothing is there any more, and a job runs.
        job = steps.slurm.job("srun", "-N3", "--ntasks-per-node=1", "/bin/sh", "-c", "echo ready; until [ -e go ]; do sleep 0.05; done; echo went on")
        eventually(lambda: job.output.text.count("ready\n") == 3, "the tasks", 20)
        goes()
        eventually(lambda: state().startswith("draining|"), "the node to be drained", 40)
        check(state().endswith("|ftd: no ftd on this node (its lease in etcd has expired)"), state())
        (context.work / "go").touch()
        check(job.wait(20) == 0 and job.output.text.count("went on\n") == 3, f"{job.output.text}{job.err}")
        # Who asks Slurm in the second in which something changes is told the same for a long time.
        time.sleep(3)
        check(state().startswith("drained|"), state())
        others = [state(node) for node in steps.nodes if node is not far]
        check(not any("drain" in said for said in others), f"{others}")
        said = sum(steps.daemons[number].said().count("the node was drained in Slurm") for number in (0, 2))
        check(said == 1, f"{said} daemons have drained it")
        # Nobody but the administrator brings it back.
        daemon.start()
        eventually(lambda: key_of(steps.store, "node1"), "the node's key", 20)
        slurm.update(f"nodename={name}", "state=resume")
        check("drain" not in state(), state())


@scenario("slurm-proctrack", cluster=True, timeout=90)
def proctrack(context):
    """Where Slurm does not hold the processes of a step together in a control group, srun says in one sentence that it is to, and no rank has run."""
    with Steps(context, 1, slurm="ProctrackType=proctrack/linuxproc") as steps:
        status, out, err = steps.slurm.run("srun", "--ft=reinit", "-n2", "/bin/echo", "ran")
        said = [line for line in err.splitlines() if "Exited with exit code" not in line]
        check(status not in (0, None) and out == "" and len(said) == 1, f"{status}: {out}{err}")
        check("is in no control group of a step of Slurm's: ftd needs ProctrackType=proctrack/cgroup in slurm.conf" in said[0], err)
        steps.empty()


@scenario("slurm-noexec", cluster=True, timeout=90)
def noexec(context):
    """Where nothing in /tmp, /dev/shm and /run can be executed a job runs and survives the death of a rank all the same."""
    mpi = context.mpi("openmpi5")
    with Steps(context, 2) as steps:
        tries = "cp /bin/true {0}/x && {{ {0}/x; s=$?; rm {0}/x; exit $s; }}"
        for node in steps.nodes:
            for place in ("/tmp", "/dev/shm", "/run"):
                check(node.run("mount", "-o", "remount,noexec", place)[0] == 0, f"{place} on {node.name}")
                said = node.run("/bin/sh", "-c", tries.format(place))
                check(said[0] == 126, f"what is in {place} can be executed: {said}")
        program = steps.cluster.program(mpi, "places.c")
        survives(steps, mpi, program, steps.reference(mpi, 4, program))


@scenario("slurm-container", cluster=True, timeout=90)
def container(context):
    """With job_container/tmpfs a job has a /tmp and a /dev/shm of its own, and so have its agents and ranks: it survives the death of a rank, and
    nothing of it is left when Slurm has taken them away."""
    mpi = context.mpi("openmpi5")
    lines = "JobContainerType=job_container/tmpfs\nPrologFlags=Contain"
    with Steps(context, 2, slurm=lines) as steps:
        program = steps.cluster.program(mpi, "places.c")
        reference = steps.reference(mpi, 4, program)
        # What lies in everybody's /tmp such a job does not see.
        for machine in (*steps.nodes, steps.slurm.login):
            check(machine.run("mount", "--bind", context.scratch, ELSEWHERE)[0] == 0, machine.name)
        for daemon in steps.daemons.values():
            daemon.kill()
            daemon.program = elsewhere(context, daemon.program)
            daemon.start()
        steps.slurm.plug(f"required {elsewhere(context, context.prefix)}/libexec/ftd/ft_slurm.so")
        survives(steps, mpi, elsewhere(context, program), reference, apart=True)


ELSEWHERE = "/srv"


def elsewhere(context, path):
    """Where that is seen besides."""
    return str(path).replace(str(context.scratch), ELSEWHERE)


def survives(steps, mpi, program, reference, apart=False):
    """A rank on the second node is killed. `apart`: what the job has mounted is its own."""
    context, command, own = steps.context, ["srun"], {}
    if apart:
        gates = context.dir / f"job{len(context.jobs)}.gates"
        command = ["env", f"--chdir={elsewhere(context, context.work)}", "srun"]
        own = {"FT_GATE_DIR": elsewhere(context, gates), "HOME": elsewhere(context, context.dir), "TMPDIR": "/tmp",
               "LD_LIBRARY_PATH": elsewhere(context, context.prefix / "lib"), "PATH": elsewhere(context, context.env(mpi, {})["PATH"])}
    job = steps.slurm.job(*command, "--ft=reinit", "-N2", "--ntasks-per-node=2", program, mpi=mpi, env={**ONE_CARD, **own}, gates=["app.compute:3"])
    job.on = steps.nodes[1]
    victim = job.at_gate("app.compute", 3)
    if apart:
        (agent,) = steps.nodes[1].named("ft-agent")
        seen = {os.readlink(f"/proc/{pid}/ns/mnt") for pid in (victim, agent, steps.nodes[1].init)}
        check(len(seen) == 2 and os.readlink(f"/proc/{agent}/ns/mnt") == os.readlink(f"/proc/{victim}/ns/mnt"), f"{seen}")
        check(not steps.nodes[1].run("/bin/ls", "/dev/shm")[1], "the job's directory is in everybody's /dev/shm")
    job.kill(victim)
    job.expect(0, reference)
    check(job.restored == [5] and job.err.count("ftd: recovery, epoch") == 1, f"restored {job.restored}: {job.err}")
    steps.empty(patience=40)


MANY = 130


@scenario("slurm-many-ranks", cluster=True, timeout=150)
def many_ranks(context):
    """More ranks than one wait of the kernel's covers, on one node: the last one is killed, and all of the next world begin."""
    with Steps(context, 1) as steps:
        script = 'echo ready; until [ -e go ]; do sleep 0.2; done; echo "$FT_RANK done"'
        job = steps.srun("-O", f"-n{MANY}", "/bin/sh", "-c", script)
        eventually(lambda: job.output.text.count("ready\n") == MANY, "the ranks", 60)
        victim = [pid for pid in steps.nodes[0].named("sh") if proc.environ(pid).get("FT_RANK") == str(MANY - 1)]
        job.kill(victim[0])
        eventually(lambda: job.output.text.count("ready\n") == 2 * MANY, "the ranks of the next world", 60)
        (context.work / "go").touch()
        job.expect(0)
        said = sorted(int(line.split()[0]) for line in job.output.text.splitlines() if line.endswith(" done"))
        check(said == list(range(MANY)) and job.err.count("ftd: recovery, epoch") == 1, f"{said}: {job.err}")
        steps.empty(patience=40)


@scenario("slurm-cgroup-v2", cluster=True, timeout=120)
def unified(context):
    """On nodes whose control groups are of version 2 ranks and agents are in the group of their step, a node's death is recovered from, and when the
    step has ended its group is gone."""
    mpi = context.mpi("mpich5")
    with Steps(context, 3, unified=True) as steps:
        program = steps.cluster.program(mpi, "places.c")
        reference = steps.reference(mpi, 4, program)
        job = steps.srun("-N3", "--ntasks-per-node=2", program, mpi=mpi, env={**ONE_CARD, "FT_SPARES": 1}, gates=["app.compute:3", *kept(5)])
        job.on = steps.nodes[1]
        victim = job.at_gate("app.compute", 3)
        wait_kept(job)
        for node in steps.nodes:
            for name in ("ft-agent", "ft-shepherd"):
                found = [proc.group(pid) for pid in node.named(name)]
                check(found and all(re.search(r"_slurmstepd\.scope/job_1/step_0/user/task_\w+$", group) for group in found), f"{name} on {node.name}: {found}")
        check("/job_1/step_0/" in proc.group(victim), proc.group(victim))
        steps.nodes[1].crash()
        steps.expect(job, reference, 4)
        check(job.restored == [5] and "node node1 was silent for the heartbeat time-out" in job.err, job.err)
        steps.empty(steps.nodes[1])
        left = lambda: [str(found) for node in (steps.nodes[0], steps.nodes[2]) for found in node.group.rglob("job_*")]
        eventually(lambda: not left(), "the end of the step's control groups")


# Megabytes: what a step may have on a node, and what three versions of take more than that, but far less than the machine has.
STEPS_MEMORY, LARGE = 200, 100


@scenario("slurm-memory", cluster=True, timeout=120)
def memory(context):
    """Where Slurm limits a step's memory, checkpoints are counted against that and not against what the machine has: one that does not fit is refused in
    one sentence with its numbers, before any of it is taken; the job runs on, no rank is killed for it, and the version before is whole."""
    mpi = context.mpi("mpich5")
    lines = "TaskPlugin=task/cgroup\nSelectTypeParameters=CR_Core_Memory\nDefMemPerNode=100\n"
    with Steps(context, 2, slurm=lines, cgroup="ConstrainRAMSpace=yes") as steps:
        program = steps.cluster.program(mpi, "bigckpt.c")
        layout = ["-N2", "--ntasks-per-node=1", f"--mem={STEPS_MEMORY}"]
        job = steps.srun(*layout, program, str(LARGE), mpi=mpi, env=ONE_CARD, gates=["app.compute:1"])
        job.on = steps.nodes[1]
        victim = job.at_gate("app.compute", 1)
        check(victim in steps.nodes[1].pids(), "the rank is not on the node")
        found = job.wait_err(r"rank (\d) checkpoint code (-?\d+): (.+)", 2)
        check(all(int(code) != 0 for _, code, _ in found), f"it was accepted: {job.err}")
        said = job.wait_err(r"three versions of \d+\.\d MiB take \d+\.\d [MG]iB more memory, other ranks were promised .*, and (\d+\.\d) MiB are available", 2)
        check(all(float(available) <= STEPS_MEMORY for available in said), job.err)
        job.kill(victim)
        job.expect(0)
        check("restore code 0 version 2 value 22" in job.output.text and job.restored == [2], job.output.text + job.err)
        check(job.err.count("ftd: recovery, epoch") == 1, job.err)
        steps.empty()
