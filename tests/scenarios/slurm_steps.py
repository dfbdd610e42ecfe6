"""`srun --ft=reinit` on a real Slurm cluster, with the daemon on each node and etcd: what `ftrun --hosts` promises, as steps of Slurm's."""

import base64
import contextlib
import json
import os
import re
import signal
import subprocess
import time

from harness import etcd, proc
from harness.cluster import Cluster
from harness.job import check
from harness.registry import scenario
from harness.slurm import LOGIN, Slurm

from .copies import COPIES, kept, wait_kept
from .hosts import INSECURE, ONE_CARD
from .nodes import NodeDaemon, key_of
from .processes import eventually


# Seconds from the application's end to srun's.
PROMPT = 2.0


class Steps:
    """Nodes with Slurm, the plugin and ftd, and a machine where users log in, which has no ftd."""

    def __init__(self, context, size, jobs="", without=(), lease="10s", slurm="", silence=5, members=1, cgroup="", unified=False):
        """`without`: numbers of nodes where no ftd runs; `slurm`: further lines of slurm.conf, `cgroup`: of cgroup.conf; `silence`: see [`Slurm`];
        `members`: of etcd."""
        self.context, self.jobs, self.without, self.lease = context, jobs, without, lease
        self.of_slurm = {"silence": silence, "lines": slurm, "cgroup": cgroup, "unified": unified}
        self.cluster = Cluster(context, size, extra=[LOGIN, *etcd.NAMES[:members]])
        self.slurm = None

    def __enter__(self):
        self.cluster.__enter__()
        try:
            self.nodes = self.cluster.nodes
            self.store = etcd.Etcd(self.cluster)
            self.daemons = {node.number: self.daemon(node).start() for node in self.nodes if node.number not in self.without}
            plugins = [f"required {self.context.prefix}/libexec/ftd/ft_slurm.so"]
            self.slurm = Slurm(self.cluster, plugins=plugins, **self.of_slurm)
            for number in self.daemons:
                eventually(lambda: key_of(self.store, self.nodes[number].name), f"node{number}'s key", 20)
        except BaseException:
            self.__exit__()
            raise
        return self

    def daemon(self, node):
        more = f'store = "{node.address("store")}:9728"\n{INSECURE}{self.jobs}'
        return NodeDaemon(node, self.store, lease=self.lease, more=more)

    def __exit__(self, failure=None, *_):
        if failure and self.slurm:
            print(self.slurm.logs(), flush=True)
        self.cluster.close()
        if self.slurm:
            self.slurm.close()

    def srun(self, *words, mpi=None, env=None, **more):
        """Starts `srun --ft=reinit` where users log in."""
        return self.slurm.job("srun", "--ft=reinit", *words, mpi=mpi, env={**self.noting, **(env or {})}, **more)

    @property
    def noting(self):
        """What has `places` note when it has nothing left to do."""
        return {"PLACES_END": self.context.work / "ended"}

    def expect(self, job, reference, ranks, patience=60.0):
        """As the job's, and it is over within two seconds of the application's end."""
        job.expect(0, reference, patience)
        self.was_prompt(time.time(), ranks)

    def was_prompt(self, over, ranks):
        """Whether srun, which was over then, was so within two seconds of the end of the program's last process."""
        ends = [int(line) / 1e9 for line in self.noting["PLACES_END"].read_text().split()]
        check(len(ends) == ranks, f"{len(ends)} ranks have come to their end, not {ranks}")
        print(f"  srun was over {over - max(ends):.3f} s after the application", flush=True)
        check(0 <= over - max(ends) <= PROMPT, f"srun was over {over - max(ends):.3f} s after the application")
        self.noting["PLACES_END"].unlink()

    def reference(self, mpi, size, program, *words):
        return self.context.reference(mpi, size, program, *words, on=self.nodes[0])

    def of_job(self, node):
        """Processes of the user's on a node, by name."""
        return [proc.name(pid) for pid in node.pids() if proc.alive(pid) and proc.uid(pid) == self.cluster.user.pw_uid]

    def empty(self, *without, patience=15.0):
        """Waits until nothing of a job is on the nodes but these, nor where users log in: no process, socket, file in memory or System V segment,
        no mark of a job of ftd's; nor in etcd, nor in Slurm's queue. (Where all of its parts were killed at once its record is looked at after a while.)"""
        nodes = [node for node in self.nodes if node not in without]
        left = lambda: [f"{machine.name}: {found}" for machine in (*nodes, self.slurm.login) for found in self.left_on(machine)]
        for what, patience_with in ((left, patience), (self.keys, patience + 15)):
            with contextlib.suppress(Exception):
                eventually(lambda: not what(), "the nodes and etcd without the job", patience_with)
            check(not what(), f"there is still {what()}")
        # Slurm itself may wait for a node that is gone.
        running = lambda: [state for state in self.slurm.run("squeue", "-h", "-o", "%T")[1].split() if state != "COMPLETING" or not without]
        eventually(lambda: not running(), "an empty queue", patience)


    def left_on(self, machine):
        """What is there of a job."""
        files = machine.run("/bin/sh", "-c", "ls -A /dev/shm; ls -A /run/ftd/jobs 2>/dev/null")[1].split()
        sockets = [line.split()[-1] for line in machine.run("/bin/cat", "/proc/net/unix")[1].splitlines() if re.search(r"@ftd-|/ftd-", line)]
        segments = machine.run("/bin/sh", "-c", "tail -qn +2 /proc/sysvipc/shm /proc/sysvipc/sem /proc/sysvipc/msg")[1].splitlines()
        # Who waits with `sbatch --wait` for a job is none of it.
        return [*(name for name in self.of_job(machine) if name != "sbatch"), *files, *sockets, *segments]

    def keys(self):
        """Keys of jobs in etcd, but those that go by themselves: that a job has ended agents may still have to read that are cut off."""
        found = json.loads(self.store.get("/ftd/jobs/", "--prefix", "-w", "json")).get("kvs", [])
        return [base64.b64decode(each["key"]).decode() for each in found if not each.get("lease")]


# What Slurm says of a step that ends or is ended.
OF_SLURM = re.compile(r"slurmstepd|srun: (job \d+ |launch/|Job step|Terminating|error: \S+: tasks? )")


def sentences(err):
    """What was said beside that."""
    return [line for line in err.splitlines() if not OF_SLURM.match(line)]


def listening(machine):
    """The TCP ports on which somebody there waits for connections."""
    lines = [line.split() for line in machine.run("/bin/cat", "/proc/net/tcp", "/proc/net/tcp6")[1].splitlines()]
    return {int(words[1].rpartition(":")[2], 16) for words in lines if len(words) > 3 and words[3] == "0A"}


MPIS = [{"mpi": "mpich5"}, {"mpi": "openmpi4"}, {"mpi": "openmpi5"}]


@scenario("slurm-reinit-one", cluster=True, timeout=120, each=MPIS)
def one_node(context, mpi):
    """An MPI program in a step of one node computes what it does under its own launcher, and its output, its error and its status are srun's;
    when a rank is killed the job goes on with its state, the block is on srun's standard error once, and the result is the same."""
    mpi = context.mpi(mpi)
    with Steps(context, 1) as steps:
        program = steps.cluster.program(mpi, "places.c")
        reference = steps.reference(mpi, 2, program)
        job = steps.srun("-n2", program, mpi=mpi)
        steps.expect(job, reference, 2)
        check(job.err == "" and job.restored == [], job.err)
        steps.empty()
        job = steps.srun("-n2", program, mpi=mpi, gates=["app.compute:1"])
        job.on = steps.nodes[0]
        job.kill(job.at_gate("app.compute", 1))
        steps.expect(job, reference, 2)
        check(job.restored == [5] and job.err.count("ftd: recovery, epoch") == 1, f"restored {job.restored}: {job.err}")
        steps.empty()


@scenario("slurm-reinit-nodes", cluster=True, timeout=120, each=MPIS)
def over_nodes(context, mpi):
    """The same over two nodes, with the rank killed on the second one; each rank has the numbers of its own in Slurm's variables, and what
    the step has for itself alone no rank sees."""
    mpi = context.mpi(mpi)
    with Steps(context, 2) as steps:
        program = steps.cluster.program(mpi, "places.c")
        reference = steps.reference(mpi, 4, program)
        job = steps.srun("-N2", "--ntasks-per-node=2", program, mpi=mpi, gates=["app.compute:3"])
        job.on = steps.nodes[1]
        victim = job.at_gate("app.compute", 3)
        check(victim in steps.nodes[1].pids(), "the rank is not on the node")
        there = proc.environ(victim)
        expected = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "4", "SLURM_NODEID": "1", "FT_RANK": "3"}
        check({name: there.get(name) for name in expected} == expected, f"{there}")
        check(not [name for name in there if name.startswith(("FT_STEP", "SLURM_FT_STEP"))], f"{there}")
        # Those of srun, its front and slurmctld.
        ports = listening(steps.slurm.login) - {6817}
        check(len(ports) >= 2 and ports <= set(range(7000, 7200)), f"{ports} are not all in SrunPortRange")
        job.kill(victim)
        steps.expect(job, reference, 4)
        check(job.restored == [5] and job.err.count("ftd: recovery, epoch") == 1, f"restored {job.restored}: {job.err}")
        steps.empty()


DIES = [{"how": how, **mpi} for how in ("crash", "power_off") for mpi in MPIS]


@scenario("slurm-reinit-node-dies", cluster=True, timeout=120, each=DIES, spread=True)
def node_dies(context, how, mpi):
    """A node of a step dies, by crash or without a word, and its ranks go on in the tasks of the spare node, from their partners' copies: the
    result is the undisturbed one. srun is over within two seconds of the application's end, and the allocation with it, though Slurm waits for
    the dead node."""
    mpi = context.mpi(mpi)
    with Steps(context, 3) as steps:
        program = steps.cluster.program(mpi, "places.c")
        reference = steps.reference(mpi, 4, program)
        job = steps.srun("-N3", "--ntasks-per-node=2", program, mpi=mpi, env={**ONE_CARD, "FT_SPARES": 1}, gates=["app.compute:3", *kept(5)])
        job.on = steps.nodes[1]
        victim = job.at_gate("app.compute", 3)
        check(victim in steps.nodes[1].pids(), "the rank is not on the node")
        check(proc.environ(victim)["SLURM_NTASKS"] == "4", "the rank is told of the spare node's tasks")
        wait_kept(job)
        getattr(steps.nodes[1], how)()
        steps.expect(job, reference, 4)
        check(job.restored == [5] and "node node1 was silent for the heartbeat time-out" in job.err, job.err)
        check(COPIES in job.err and job.output.starts == [None, 5], f"{job.output.starts}: {job.err}")
        steps.empty(steps.nodes[1])


@scenario("slurm-reinit-six", cluster=True, timeout=150, each=MPIS)
def six_nodes(context, mpi):
    """A step of ten ranks on six nodes, one of them spare, and three members of etcd, of which one is killed: a node loses its power without a word, and the
    result is the undisturbed one."""
    mpi = context.mpi(mpi)
    with Steps(context, 6, members=3) as steps:
        program = steps.cluster.program(mpi, "places.c")
        reference = steps.reference(mpi, 10, program)
        gates = ["app.compute:9", *kept(5, range(10))]
        job = steps.srun("-N6", "--ntasks-per-node=2", program, mpi=mpi, env={**ONE_CARD, "FT_SPARES": 1}, gates=gates)
        job.on = steps.nodes[4]
        victim = job.at_gate("app.compute", 9)
        check(victim in steps.nodes[4].pids(), "the rank is not on the node")
        wait_kept(job, range(10))
        steps.store.kill(steps.store.machines[0])
        steps.nodes[4].power_off()
        steps.expect(job, reference, 10)
        check(job.restored == [5] and COPIES.replace("2-3", "8-9") in job.err and "node node4 was silent for the heartbeat time-out" in job.err, job.err)
        steps.empty(steps.nodes[4])


MANY = 24


@scenario("slurm-reinit-many", cluster=True, timeout=400)
def many_nodes(context):
    """A step of a rank on each of many nodes, and one that is spare: a node crashes, and the result is the undisturbed one."""
    mpi, ranks = context.mpi("mpich5"), MANY - 1
    with Steps(context, MANY, silence=300) as steps:
        program = steps.cluster.program(mpi, "places.c")
        reference = steps.reference(mpi, ranks, program)
        gates = [f"app.compute:{ranks - 1}", *kept(5, range(ranks))]
        job = steps.srun(f"-N{MANY}", "--ntasks-per-node=1", program, mpi=mpi, env={**ONE_CARD, "FT_SPARES": 1}, gates=gates)
        lost = steps.nodes[ranks - 1]
        job.on = lost
        victim = job.at_gate("app.compute", ranks - 1)
        check(victim in lost.pids(), "the rank is not on the node")
        wait_kept(job, range(ranks))
        lost.crash()
        job.expect(0, reference, patience=120)
        check(job.restored == [5] and job.output.starts == [None, 5] and job.err.count("ftd: recovery, epoch") == 1, f"{job.restored}: {job.err}")
        steps.empty(lost, patience=60)


@scenario("slurm-reinit-stepd", cluster=True, timeout=120, each=MPIS)
def stepd_dies(context, mpi):
    """A slurmstepd that is killed is a lost node for that job: nothing of the step stays there, also what had left its rank's session, and the job
    goes on elsewhere and ends with its own status, for which srun alone would wait for ever."""
    mpi = context.mpi(mpi)
    with Steps(context, 3) as steps:
        program = steps.cluster.program(mpi, "places.c")
        reference = steps.reference(mpi, 4, program)
        wrapper = ["/bin/sh", "-c", 'setsid sleep 600 < /dev/null > /dev/null 2>&1 & exec "$0"', program]
        job = steps.srun("-N3", "--ntasks-per-node=2", *wrapper, mpi=mpi, env={**ONE_CARD, "FT_SPARES": 1}, gates=["app.compute:3", *kept(5)])
        job.on = steps.nodes[1]
        victim = job.at_gate("app.compute", 3)
        check(victim in steps.nodes[1].pids(), "the rank is not on the node")
        check(proc.environ(victim)["SLURM_NTASKS"] == "4", "the rank is told of the spare node's tasks")
        wait_kept(job)
        for pid in steps.nodes[1].named("slurmstepd"):
            job.kill(pid)
        steps.expect(job, reference, 4)
        check(job.output.starts == [None, 5] and job.restored == [5], f"{job.output.starts}: {job.err}")
        steps.empty()


READS = """case $SLURM_PROCID in 0) cat;; 2) cksum;; esac
echo ready; until [ -e go ]; do sleep 0.02; done"""


@scenario("slurm-reinit-stdin", cluster=True, timeout=90, each=[{"dies": "rank"}, {"dies": "node"}])
def stdin(context, dies):
    """Standard input is each rank's, whole in each world, as srun sends it to each task, and who does not read it holds up nobody: a rank is killed when all has been read, or
    rank 0's node crashes when half of it has come."""
    with Steps(context, 3) as steps:
        text = "".join(f"line {number}\n" for number in range(30000)).encode()
        read, write = os.pipe()
        total = subprocess.run("cksum", input=text, capture_output=True, check=True).stdout.decode()
        job = steps.srun("-N3", "--ntasks-per-node=2", "/bin/sh", "-c", READS, stdin=read, env={**ONE_CARD, "FT_SPARES": 1})
        os.close(read)
        half = text.index(b"line 15000\n")
        with open(write, "wb") as pipe:
            pipe.write(text[:half])
            pipe.flush()
            eventually(lambda: "line 14999\n" in job.output.text, "half of the input", 30)
            if dies == "node":
                steps.nodes[0].crash()
                eventually(lambda: job.output.text.count("line 14999\n") == 2, "half of the input once more", 30)
            pipe.write(text[half:])
        # In the world that a node's death has cut short nobody has seen the end of it.
        said = lambda worlds: job.output.text.count(total) == worlds and job.output.text.count("line 29999\n") == worlds
        eventually(lambda: said(1), "the ranks", 30)
        if dies == "rank":
            (victim,) = [pid for pid in steps.nodes[1].named("sh") if proc.environ(pid).get("FT_RANK") == "3"]
            job.kill(victim)
            eventually(lambda: said(2), "the ranks of the next world", 30)
        (context.work / "go").touch()
        job.expect(0)
        worlds = [text[:half], text] if dies == "node" else [text, text]
        check(job.output.text.replace("ready\n", "").replace(total, "").encode() == b"".join(worlds), "the input is another one")
        steps.empty(*steps.nodes[:1] if dies == "node" else ())


TRAPS = """trap 'echo usr1' USR1; trap 'echo term; exit 5' TERM
echo ready; while :; do sleep 0.02; done"""


@scenario("slurm-reinit-signals", cluster=True, timeout=90)
def signals(context):
    """What srun passes on reaches the ranks, and what scancel sends as well: they have the time that they need to end by themselves."""
    with Steps(context, 2) as steps:
        job = steps.srun("-N2", "--ntasks-per-node=1", "/bin/sh", "-c", TRAPS)
        eventually(lambda: job.output.text.count("ready\n") == 2, "the ranks", 20)
        job.interrupt(signal.SIGUSR1)
        eventually(lambda: job.output.text.count("usr1\n") == 2, "the signal", 20)
        (number,) = steps.slurm.run("squeue", "-h", "-o", "%A")[1].split()
        status, _, err = steps.slurm.run("scancel", number)
        check(status == 0, err)
        ended = job.wait(20)
        check(ended == 5 and job.output.text.count("term\n") == 2, f"{ended}: {job.output.text}{job.err}")
        check("recovery" not in job.err and job.err.count("the job was cancelled by SIGTERM") == 1, job.err)
        steps.empty()


@scenario("slurm-reinit-no-ftd", cluster=True, timeout=90)
def no_ftd(context):
    """Where no ftd runs on a node of the step srun ends with one sentence that says so, and no rank has run."""
    with Steps(context, 2, without=(1,)) as steps:
        job = steps.srun("-N2", "--ntasks-per-node=2", "/bin/echo", "ran", hurry=10)
        status = job.wait(20)
        said = sentences(job.err)
        sentence = "no ftd answers on /run/ftd/ftd.sock: No such file or directory (os error 2); --ft needs it on every node of the step"
        check(status == 1 and len(said) == 1 and sentence in said[0] and said[0].startswith("srun: error: node "), f"{status}: {job.err}")
        check(job.output.text == "", job.output.text)
        steps.empty()


@scenario("slurm-reinit-half", cluster=True, timeout=120)
def half(context):
    """A node that cannot take part ends the step with one sentence long before the front would stop to wait for it: its tasks do not follow each
    other, or it has the plugin and no ft-shepherd. A node without the plugin is waited for, and the sentence says where to look."""
    with Steps(context, 2) as steps:
        node, none = steps.nodes[1], context.work / "none"
        none.touch()

        def refused(*words, said, begins, ran="", hurry=1):
            job = steps.srun(*words, "/bin/echo", "ran", hurry=hurry)
            status = job.wait(40)
            lines = sentences(job.err)
            check(status != 0 and len(lines) == 1 and said in lines[0] and lines[0].startswith(begins), f"{status}: {job.err}")
            check(job.output.text == ran, job.output.text)
            steps.empty()

        # Of how many nodes is not known to the plugin, which would refuse it by name.
        both = ",".join(steps.slurm.names[node.name] for node in steps.nodes)
        refused("-w", both, "-n4", "-m", "cyclic", said="--ft needs the tasks of a node to follow each other", begins="srun: error: node ")
        for hidden, said, more in (
            (context.prefix / "libexec/ftd/ft-shepherd", f"the task cannot be started: {context.prefix}/libexec/ftd/ft-shepherd is not there", {"begins": "ftd: node "}),
            (steps.slurm.directory / "plugstack.conf", "does plugstack.conf there have ftd's plugin", {"begins": "srun: error: node number 1 ", "ran": "ran\n" * 2, "hurry": 40}),
        ):
            check(node.run("mount", "--bind", none, hidden)[0] == 0, f"{hidden}")
            refused("-N2", "--ntasks-per-node=2", said=said, **more)
            check(node.run("umount", hidden)[0] == 0, f"{hidden}")


@scenario("slurm-reinit-words", cluster=True, timeout=60)
def words_for_nobody(context):
    """A failure that is asked for of a rank that the step does not have ends it as ftrun does, and a variable that means nothing is named."""
    with Steps(context, 1) as steps:
        job = steps.srun("--ft-inject=rank=2", "-n2", "/bin/echo", "ran")
        said = "srun: error: --ft-inject: 'rank=2' is not about a rank of this job: they are 0 to 1"
        check((job.wait(30), sentences(job.err), job.output.text) == (2, [said], ""), job.err)
        job = steps.srun("-n2", "/bin/echo", "ran", env={"FT_MAX_FAILURE": 3})
        said = "srun: FT_MAX_FAILURE is no variable of ftd's, and is not passed on; FT_MAX_FAILURES is one\n"
        check((job.wait(30), job.err, job.output.text) == (0, said, "ran\n" * 2), job.err)
        steps.empty()


@scenario("slurm-reinit-ftd-restarts", cluster=True, timeout=90)
def ftd_restarts(context):
    """A step that begins while a node's ftd is started again, after it was told to end or was killed, waits for it."""
    with Steps(context, 2) as steps:
        node, daemon = steps.nodes[1], steps.daemons[1]
        for number in (signal.SIGTERM, signal.SIGKILL):
            daemon.process.kill(number)
            daemon.process.process.wait(20)
            job = steps.srun("-N2", "--ntasks-per-node=2", "/bin/echo", "ran")
            eventually(lambda: node.named("ft-shepherd") or not job.running(), "the tasks", 20)
            daemon.start()
            status = job.wait(30)
            check((status, job.output.text, job.err) == (0, "ran\n" * 4, ""), f"{status}: {job.output.text}{job.err}")
            steps.empty()


def ended(err):
    """The tasks of which srun says that they have ended with an exit status."""
    ranges = [one.partition("-") for several in re.findall(r"tasks? ([\d,-]+): Exited with exit code", err) for one in several.split(",")]
    return {task for first, _, last in ranges for task in range(int(first), int(last or first) + 1)}


@scenario("slurm-reinit-no-program", cluster=True, timeout=90)
def no_program(context):
    """A program that is not there, or is none, is the end of the step with the status and the sentence that say so, and its tasks end by themselves, also one
    that only asks for its place when the node's part has refused the job."""
    with Steps(context, 2) as steps:
        (context.work / "text").write_text("no program\n")
        for name, expected, why in (("./nothing", 127, "there is no program"), ("./text", 126, "is not executable")):
            # One that is not its node's first task, and one that is.
            gates = [f"shepherd.asks:{slot}" for slot in (1, 2)]
            job = steps.srun("-N2", "--ntasks-per-node=2", name, gates=gates)
            for slot in (1, 2):
                eventually(lambda: job.gate_path("shepherd.asks", slot).exists(), f"task {slot} to be about to ask", 30)
            eventually(lambda: why in job.err, "the sentence", 20)
            for slot in (1, 2):
                job.go("shepherd.asks", slot)
            status = job.wait(30)
            said = [line for line in job.err.splitlines() if "Exited with exit code" not in line]
            check(status == expected and len(said) == 1 and why in said[0], f"{status}: {job.err}")
            # srun says so of each task that has ended by itself, and nothing when it is ended for want of that.
            check(ended(job.err) == {0, 1, 2, 3}, job.err)
            steps.empty()


@scenario("slurm-reinit-tasks-last", cluster=True, timeout=90)
def tasks_last(context):
    """A step's tasks end after all else that is ftd's in their step: where slurmstepd finds something beside them it looks again a second later."""
    with Steps(context, 1) as steps:
        job = steps.srun("-n2", "/bin/true", gates=["part.dismissed"])
        eventually(lambda: job.gate_path("part.dismissed").exists(), "the part's last moment", 30)
        # Both know the job's status by now; that they stay can only be seen by looking for a while.
        for _ in range(10):
            time.sleep(0.05)
            there = [steps.nodes[0].named(name) for name in ("ft-shepherd", "ftrun")]
            check([len(pids) for pids in there] == [2, 2], f"tasks and the part's processes: {there}")
        job.go("part.dismissed")
        check(job.wait(30) == 0 and job.err == "", job.err)
        steps.empty()


@scenario("slurm-reinit-two-steps", cluster=True, timeout=90)
def two_steps(context):
    """Two jobs of one user on the same nodes, whose parts listen for their tasks at the same time, know nothing of each other."""
    mpi = context.mpi("mpich5")
    with Steps(context, 2) as steps:
        program = steps.cluster.program(mpi, "places.c")
        reference = steps.reference(mpi, 4, program)
        jobs = [steps.srun("-N2", "--ntasks-per-node=2", program, mpi=mpi, gates=["app.compute:1", "part.door:0"], env=ONE_CARD) for _ in range(2)]
        for job in jobs:
            job.on = steps.nodes[0]
        eventually(lambda: all(job.gate_path("part.door", 0).exists() for job in jobs), "both steps' parts", 30)
        for job in jobs:
            job.go("part.door", 0)
        victims = [job.at_gate("app.compute", 1) for job in jobs]
        jobs[0].kill(victims[0])
        jobs[0].expect(0, reference)
        check(proc.alive(victims[1]) and jobs[0].restored == [5], jobs[0].err)
        jobs[1].go("app.compute", 1)
        jobs[1].expect(0, reference)
        check(jobs[1].err == "", jobs[1].err)
        steps.empty()


@scenario("slurm-reinit-killed", cluster=True, timeout=90, each=[{"who": "step"}, {"who": "front"}])
def killed(context, who):
    """A step that Slurm kills whole, and with it all who would have cleaned up, leaves nothing, for ftd removes it; nor does one whose front is
    killed."""
    with Steps(context, 1) as steps:
        job = steps.srun("-n2", "/bin/sh", "-c", "setsid sleep 600 & echo ready; sleep 601")
        eventually(lambda: job.output.text.count("ready\n") == 2, "the ranks", 20)
        check(steps.nodes[0].run("/bin/ls", "/dev/shm")[1], "the job has no directory")
        if who == "front":
            job.kill(job.pid)
        else:
            (number,) = steps.slurm.run("squeue", "-h", "-o", "%A")[1].split()
            status, _, err = steps.slurm.run("scancel", "--signal=KILL", number)
            check(status == 0, err)
        check(job.wait(20) != 0, job.err)
        steps.empty()
