"""Releases of ftd beside each other under Slurm: what cannot work together says so, what can does, and daemons are exchanged below jobs."""

import os
import shutil
import signal
import subprocess

from harness import proc
from harness.job import check
from harness.peer import VERSION
from harness.registry import scenario

from .hosts import ONE_CARD
from .hostile import other_build
from .processes import eventually
from .slurm_steps import Steps

# The control socket of a daemon of another release.
OTHER_RELEASE = """
import os, socket, struct, sys
path = "/run/ftd/ftd.sock"
if os.path.exists(path):
    os.unlink(path)
heard = socket.socket(socket.AF_UNIX)
heard.bind(path)
os.chmod(path, 0o666)
heard.listen()
print("here", flush=True)
while True:
    one, _ = heard.accept()
    one.sendall(b"ftdwire\\n" + struct.pack("<II", int(sys.argv[1]), 6))
    one.settimeout(5)
    try:
        while one.recv(1 << 16):
            pass
    except OSError:
        pass
    one.close()
"""


def refused(steps, *words, times=1):
    """An srun is refused with so many sentences, and nothing has run."""
    status, out, err = steps.slurm.run("srun", "--ft=reinit", "-N2", "--ntasks-per-node=2", "/bin/echo", "ran")
    said = [line for line in err.splitlines() if "Exited with exit code" not in line and "srun: launch/" not in line]
    check(status not in (0, None) and out == "" and len(said) == times, f"{status}: {out}{err}")
    check(all(word in line for line in said for word in words), f"{words} are not in {said}")
    steps.empty()


@scenario("slurm-versions", cluster=True, timeout=150)
def versions(context):
    """What srun starts on a node and that node's daemon are of releases, or of builds, that do not speak to each other, or srun's front is of another
    build than the node's shepherds: srun ends with a sentence that says so and what to do, and no rank has run."""
    with Steps(context, 2) as steps:
        far, daemon = steps.nodes[1], steps.daemons[1]
        daemon.kill()
        fake = far.start("/usr/bin/python3", "-c", OTHER_RELEASE, VERSION + 1, stdout=subprocess.PIPE, text=True)
        check(fake.process.stdout.readline() == "here\n", "the other release does not listen")
        refused(steps, "srun: error: node ", "node1: ", f"speaks protocol version {VERSION + 1}, this side speaks {VERSION}: install the same ftd release everywhere")
        fake.kill()
        daemon.program = other_build(daemon.program, context.work / "other")
        daemon.start()
        refused(steps, "srun: error: node node1: its ftd is of another build than what srun has started there: install all of ftd again")
        daemon.kill()
        daemon.program = context.prefix / "bin" / "ftd"
        daemon.start()
        # Where users log in there is another build.
        other = context.work / "prefix"
        shutil.copytree(context.prefix, other, symlinks=True)
        other_build(context.prefix / "bin" / "ftrun", other / "bin")
        said = steps.slurm.login.run("mount", "--bind", other, context.prefix)
        check(said[0] == 0, f"{said}")
        words = "the ftd where srun was called is of another build than this node's: install the same release everywhere"
        # Nobody there can reach the front, so each node's first task says it.
        refused(steps, "ftd: node ", words, times=2)
        steps.slurm.login.run("umount", context.prefix)
        status, out, err = steps.slurm.run("srun", "--ft=reinit", "-N2", "--ntasks-per-node=2", "/bin/echo", "ran")
        check((status, out, err) == (0, "ran\n" * 4, ""), f"{status}: {out}{err}")


# Stands before the store's socket of a daemon, and makes both ends, that of the daemon and that of the agent, ones of a release with another number of all
# messages.
BETWEEN = """
import os, socket, struct, sys, threading
path, version, uid = "/run/ftd/ftd.sock.store", int(sys.argv[1]), int(sys.argv[2])
os.rename(path, path + ".own")
heard = socket.socket(socket.AF_UNIX)
heard.bind(path)
os.chmod(path, 0o666)
heard.listen()
print("here", flush=True)

def pump(one, other):
    try:
        first = one.recv(16, socket.MSG_WAITALL)
        other.sendall(first[:8] + struct.pack("<I", version) + first[12:])
        while said := one.recv(1 << 16):
            other.sendall(said)
    except OSError:
        pass
    for each in (one, other):
        try:
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

while True:
    agent, _ = heard.accept()
    daemon = socket.socket(socket.AF_UNIX)
    os.seteuid(uid)
    daemon.connect(path + ".own")
    os.seteuid(0)
    print("dialled", flush=True)
    for pair in ((agent, daemon), (daemon, agent)):
        threading.Thread(target=pump, args=pair, daemon=True).start()
"""


@scenario("slurm-upgrade", cluster=True, timeout=150)
def upgrade(context):
    """The daemons are exchanged below a running job, one after the other, for those of another build and of a release with another number of all
    messages: nothing of the job is disturbed, its agents ask the store through the new ones when a rank has died, and it ends as if
    nothing had happened. Who asks for a job with the old release is told so."""
    mpi = context.mpi("mpich5")
    with Steps(context, 2) as steps:
        program = steps.cluster.program(mpi, "places.c")
        reference = steps.reference(mpi, 4, program)
        # For a while the agents stand still.
        job = steps.srun("--ft-heartbeat=100ms,20s", "-N2", "--ntasks-per-node=2", program, mpi=mpi, env=ONE_CARD, gates=["app.compute:3"])
        job.on = steps.nodes[1]
        victim = job.at_gate("app.compute", 3)
        between, new = [], other_build(context.prefix / "bin" / "ftd", context.work / "other")
        for node in steps.nodes:
            daemon = steps.daemons[node.number]
            (agent,) = node.named("ft-agent")
            daemon.kill()
            proc.freeze(agent)
            daemon.program = new
            daemon.start()
            words = ["/usr/bin/python3", "-c", BETWEEN, VERSION + 1, steps.cluster.user.pw_uid]
            stands = node.start(*words, stdout=subprocess.PIPE, text=True)
            check(stands.process.stdout.readline() == "here\n", "nobody stands before the store")
            between.append(stands)
            os.kill(agent, signal.SIGCONT)
            check("\njobs    slurm-" in daemon.status()[1], daemon.status()[1])
        check(job.running() and job.err == "", job.err)
        status, out, err = steps.slurm.run("srun", "--ft=reinit", "--overlap", "-N2", "--ntasks-per-node=1", "/bin/echo", "ran")
        check(status != 0 and out == "" and "its ftd is of another build than what srun has started there" in err, f"{status}: {out}{err}")
        job.kill(victim)
        job.expect(0, reference)
        check(job.restored == [5] and job.err.count("ftd: recovery, epoch") == 1, f"restored {job.restored}: {job.err}")
        for stands, node in zip(between, steps.nodes):
            check(stands.process.stdout.readline() == "dialled\n", f"nobody asks through {node.name}'s new daemon")
        asked = [steps.daemons[node.number].number("ftd_store_questions_total") for node in steps.nodes]
        check(all(asked), f"the new daemons were asked {asked} times")
        for stands in between:
            stands.kill()
        steps.empty()
