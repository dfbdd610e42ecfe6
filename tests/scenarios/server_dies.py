"""The process that serves ftrun for its node's daemon dies, or stands still: the job goes on with another one."""

import collections
import hashlib
import os
import re
import signal
import threading
import time

from harness import proc
from harness.job import check
from harness.registry import scenario

from .hosts import Nodes, ended, near, serving, third_stands
from .processes import eventually

BACK = "a launcher whose connection was lost is here again"


class Job:
    """A job that was started on the first node, and what is done to who serves its ftrun."""

    def __init__(self, nodes, job):
        self.nodes, self.job, self.daemon = nodes, job, nodes.daemons[0]

    def goes_on(self, times):
        """So many processes have taken the job over."""
        self.daemon.says(BACK, times=times)
        check(self.job.process.poll() is None, f"the job has ended: {self.job.err}")

    def kill(self, times=1):
        os.kill(near(self.nodes), signal.SIGKILL)
        self.goes_on(times)


HOW = [{"how": how} for how in ("streams", "with-daemon", "stands-still", "in-recovery", "node-is-away", "all-on-node", "slow-reader", "ftrun-is-stopped")]


@scenario("hosts-server-dies", cluster=True, timeout=150, each=HOW)
def server_dies(context, how):
    """Who serves ftrun for its node's daemon may die, also again and again while input and output flow, with the daemon, in a recovery, while a
    node is away that comes back, and while nobody reads what ftrun writes; or stand still, and go on: another process takes its place, and nothing
    is lost or said twice. Where all that the node has of ftd is killed this costs its part of the job, and no more. A link goes on over another network
    also while ftrun is stopped."""
    run = {"streams": streams, "with-daemon": with_daemon, "stands-still": stands_still, "in-recovery": in_recovery,
           "node-is-away": node_is_away, "all-on-node": all_on_node, "slow-reader": slow_reader, "ftrun-is-stopped": ftrun_is_stopped}[how]
    with Nodes(context, 3) as nodes:
        run(context, nodes)
        for node in nodes.nodes:
            nodes.empty(node)
        kept = lambda: [name for kind in ("kept", "launchers", "links") for name in nodes.nodes[0].run("/bin/ls", "-A", f"/run/ftd/{kind}")[1].split()]
        eventually(lambda: not kept(), "nothing to be kept of the job", 20)


def streams(context, nodes):
    data, go = os.urandom(1 << 20) * 16, context.work / "go"
    read, write = os.pipe()
    script = f"echo ready; [ $FT_RANK = 0 ] && md5sum; seq 200000; until [ -e {go} ]; do sleep 0.05; done; exit 5"
    job = Job(nodes, nodes.sh("node0,node1,node2", 3, script, stdin=read))
    os.close(read)
    eventually(lambda: job.job.output.text.count("ready\n") == 3, "the ranks", 20)

    def feeds():
        with os.fdopen(write, "wb") as feed:
            for at in range(0, len(data), 1 << 16):
                feed.write(data[at:at + (1 << 16)])
                # The input lasts as long as they are killed.
                time.sleep(0.01)

    feeder = threading.Thread(target=feeds)
    feeder.start()
    for times in range(1, 7):
        job.kill(times)
    feeder.join(60)
    # A status other than 0 ends the job, and with it who has not said everything.
    eventually(lambda: job.job.output.text.count("\n") >= 600004, "all that the ranks say", 60)
    go.touch()
    ended(job.job, 5, patience=60)
    lines = job.job.output.text.splitlines()
    check(f"{hashlib.md5(data).hexdigest()}  -" in lines, lines[:1])
    numbers = collections.Counter(lines)
    check(len(lines) == 600004 and all(numbers[str(n)] == 3 for n in range(1, 200001)), f"{len(lines)} lines")
    check("ftd is gone" not in job.job.err and "broke" not in job.job.err, job.job.err)


def with_daemon(context, nodes):
    go = context.work / "go"
    script = f"trap 'echo usr1' USR1; echo ready; until [ -e {go} ]; do sleep 0.05; done"
    job = Job(nodes, nodes.sh("node1,node2", 2, script))
    eventually(lambda: job.job.output.text.count("ready\n") == 2, "the ranks", 20)
    serves = near(nodes)
    proc.freeze(serves)
    job.daemon.kill()
    os.kill(serves, signal.SIGKILL)
    # What is said meanwhile waits.
    job.job.interrupt(signal.SIGUSR1)
    time.sleep(4)
    check(job.job.output.text.count("usr1\n") == 0, "a signal has come through nobody")
    job.daemon.start()
    job.goes_on(1)
    eventually(lambda: job.job.output.text.count("usr1\n") == 2, "the signal", 20)
    check(re.search(r"\njobs    (?!none)", nodes.daemons[1].status()[1]), nodes.daemons[1].status()[1])
    go.touch()
    ended(job.job, 0)


def stands_still(context, nodes):
    go = context.work / "go"
    job = Job(nodes, nodes.sh("node0,node1", 2, f"echo ready; until [ -e {go} ]; do sleep 0.05; done; echo end"))
    eventually(lambda: job.job.output.text.count("ready\n") == 2, "the ranks", 20)
    serves = near(nodes)
    proc.freeze(serves)
    job.goes_on(1)
    os.kill(serves, signal.SIGCONT)
    eventually(lambda: not proc.alive(serves), "the end of the one that another has replaced", 20)
    # All that it could still end has had time to.
    time.sleep(3)
    check(job.job.process.poll() is None and len(serving(nodes, 0, b"serve-ftrun")) == 1, job.job.err)
    go.touch()
    ended(job.job, 0)
    check((job.job.output.text.count("end\n"), job.job.err) == (2, ""), f"{job.job.output.text}{job.job.err}")


def in_recovery(context, nodes):
    alone, job, victim = third_stands(context, nodes, context.mpi("mpich5"))
    serves = near(nodes)
    proc.freeze(serves)
    # What is said of the failure lies before nobody, or is under way.
    job.kill(victim)
    time.sleep(1)
    os.kill(serves, signal.SIGKILL)
    Job(nodes, job).goes_on(1)
    job.expect(0, alone.output)
    check(job.restored == [5], f"restored {job.restored}: {job.err}")


def node_is_away(context, nodes):
    go = context.work / "go"
    script = f'echo "rank $FT_RANK on $(hostname)"; until [ -e {go} ]; do sleep 0.05; done'
    job = Job(nodes, nodes.sh(nodes.each_one(), 2, script, ft="reinit", options=["--ft-spares", "1", "--ft-wait", "60"]))
    eventually(lambda: "rank 1 on node1\n" in job.job.output.text, "the ranks", 20)
    nodes.nodes[1].crash()
    eventually(lambda: "rank 1 on node2\n" in job.job.output.text, "the rank on the spare node", 20)
    # It has looked in vain.
    eventually(lambda: "node node1: the link to the part of the job there broke" in job.job.err, "the loss of the link", 40)
    job.kill(1)
    nodes.nodes[1].boot()
    nodes.daemons[1] = nodes.daemon(nodes.nodes[1]).start()
    eventually(lambda: "ftrun: node node1 has a part of the job again, as a spare node\n" in job.job.err, "the node", 40)
    job.kill(2)
    nodes.nodes[2].crash()
    eventually(lambda: job.job.output.text.count("rank 1 on node1\n") == 2, "the rank on the node that is back", 40)
    job.kill(3)
    go.touch()
    ended(job.job, 0, "moved     rank 1 from node node1 to node node2\n", "moved     rank 1 from node node2 to node node1 (again)\n",
          "has a part of the job again", patience=60)
    nodes.nodes[2].boot()


def all_on_node(context, nodes):
    go = context.work / "go"
    script = f'echo "rank $FT_RANK on $(hostname)"; until [ -e {go} ]; do sleep 0.05; done'
    job = Job(nodes, nodes.sh(nodes.each_one(), 2, script, ft="reinit", options=["--ft-spares", "1"]))
    eventually(lambda: "rank 0 on node0\n" in job.job.output.text and "rank 1 on node1\n" in job.job.output.text, "the ranks", 20)
    serve = serving(nodes, 0)
    check(len(serve) == 2, f"{serve}")
    proc.freeze(*serve)
    job.daemon.kill()
    proc.kill_frozen(*serve)
    time.sleep(1)
    job.daemon.start()
    job.goes_on(1)
    eventually(lambda: "ftrun: node node0 has a part of the job again, as a spare node\n" in job.job.err, "the node's next part", 40)
    go.touch()
    ended(job.job, 0, "node node0: the link to the part of the job there broke", patience=60)


def slow_reader(context, nodes):
    go = context.work / "go"
    script = (f"set -o pipefail; ftrun -n 1 --hosts node1 /bin/sh -c 'seq 2000000; echo end >&2' |"
              f" {{ until [ -e {go} ]; do sleep 0.05; done; md5sum; }}")
    job = Job(nodes, context.start(["/bin/bash", "-c", script], on=nodes.nodes[0]))
    eventually(lambda: any("pipe_write" in proc.waits_in(pid) for pid in nodes.nodes[1].named("seq")), "the writer to wait", 20)
    job.kill(1)
    # Longer than anybody waits for who is gone.
    time.sleep(20)
    check(job.job.process.poll() is None and nodes.nodes[1].named("seq"), f"the job has ended: {job.job.err}")
    job.kill(2)
    go.touch()
    ended(job.job, 0, "end")
    check(job.job.output.text.split() == [hashlib.md5("".join(f"{n}\n" for n in range(1, 2000001)).encode()).hexdigest(), "-"], job.job.output.text)


def ftrun_is_stopped(context, nodes):
    go = context.work / "go"
    job = nodes.sh("node1,node2", 2, f"echo ready; until [ -e {go} ]; do sleep 0.05; done")
    eventually(lambda: job.output.text.count("ready\n") == 2, "the ranks", 20)
    job.interrupt(signal.SIGTSTP)
    eventually(lambda: proc.stat(job.process.pid)[0] == "T", "the stop", 20)
    # Who asks is answered: a link on which nothing is said is in no doubt.
    time.sleep(6)
    check("goes on over another connection" not in nodes.daemons[0].said(), nodes.daemons[0].said())
    nodes.nodes[1].cut("store")
    # Longer than a lost connection is waited for, and then another one.
    nodes.daemons[0].says("the link of a job's part goes on over another connection", patience=40)
    time.sleep(20)
    nodes.nodes[1].heal("store")
    check("sh" in nodes.of_job(nodes.nodes[1]), "the cut has ended the job")
    go.touch()
    job.interrupt(signal.SIGCONT)
    os.kill(job.process.pid, signal.SIGCONT)
    ended(job, 0)
