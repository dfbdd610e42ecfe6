"""A real Slurm on the nodes of a cluster: munge, a controller on a machine of its own, which is also where people log in, and a slurmd on
every node. Each node has its own /dev/shm and /tmp, as the cluster makes them; jobs are the ordinary user's."""

import os
import pathlib
import signal
import subprocess
import time

from .cluster import FIRST_PROCESSOR
from .job import check

# The machine of the controller, and where users log in: it runs no `ftd`.
LOGIN = "login"
GROUPS = pathlib.Path("/sys/fs/cgroup")
# As many tasks fit on a node, whatever this machine has.
CPUS = 4

CONFIGURATION = """\
ClusterName=test
SlurmctldHost={login}({address})
SlurmUser=root
SlurmdUser=root
SlurmctldPort=6817
SlurmdPort=6818
SrunPortRange=7000-7199
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation={directory}/state
# Sockets lie there, whose names must not be long.
SlurmdSpoolDir=/run/slurmd-%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
ProctrackType=proctrack/cgroup
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout={silence}
InactiveLimit=0
KillWait=5
MessageTimeout=5
KillOnBadExit=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=sched_min_interval=0
TmpFS=/tmp
SlurmdParameters=config_overrides
PlugStackConfig={directory}/plugstack.conf
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""

CGROUP = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainCores=no
ConstrainRAMSpace=no
"""

# The same where the kernel has one hierarchy of control groups and not one for each controller. There is no systemd to make Slurm's group.
UNIFIED = """\
CgroupPlugin=cgroup/v2
IgnoreSystemd=yes
"""

# Starts slurmd on a node in a group of its own, from where it finds that hierarchy as on a machine of its own, and no others.
IN_UNIFIED = """set -e
mkdir -p $1/machine
echo $$ > $1/machine/cgroup.procs
export LD_PRELOAD=$2
shift 2
exec unshare --cgroup /bin/sh -c 'mount -t cgroup2 cgroup2 /sys/fs/cgroup && mkdir -p /sys/fs/cgroup/system.slice && exec "$@"' sh "$@"
"""

# For jobs with a /tmp and a /dev/shm of their own, where slurm.conf has them. Each node has its own directory of that name.
CONTAINER = """\
AutoBasePath=true
BasePath=/run/containers
"""


class Slurm:
    """Slurm on the nodes of a cluster that has a machine called [`LOGIN`]. `plugins` are lines of its plugstack.conf. `silence`: seconds
    after which the controller gives up a node that says nothing. `lines` stand in slurm.conf, where they take the place of others, and `cgroup` in
    cgroup.conf. `unified`: the nodes have control groups of version 2 and no others."""

    def __init__(self, cluster, plugins=(), silence=5, lines="", cgroup="", unified=False):
        self.cluster, self.unified = cluster, unified and preloaded(cluster.context)
        self.directory = cluster.context.dir / "slurm"
        (self.login,) = [machine for machine in cluster.extra if machine.name == LOGIN]
        # Control groups are named after Slurm's names of the nodes, and belong to the whole machine.
        self.names = {node.name: f"t{os.getpid()}{node.name}" for node in cluster.nodes}
        self.environment = {"SLURM_CONF": str(self.directory / "slurm.conf")}
        self.daemons = {}
        # Of what starts slurmd there: steps make name spaces of mounts that they keep.
        self.pinned = ["taskset", "--cpu-list", str(FIRST_PROCESSOR)] if "JobContainerType" in lines else []
        self.directory.mkdir()
        (self.directory / "state").mkdir()
        nodes = "\n".join(
            f"NodeName={self.names[node.name]} NodeHostname={node.name} NodeAddr={node.address('store')} CPUs={CPUS} RealMemory=1000 State=UNKNOWN"
            for node in cluster.nodes
        )
        text = CONFIGURATION.format(login=LOGIN, address=self.login.address("store"), directory=self.directory, nodes=nodes, silence=silence)
        (self.directory / "slurm.conf").write_text(with_lines(text, lines))
        (self.directory / "cgroup.conf").write_text(with_lines(CGROUP, UNIFIED + cgroup if unified else cgroup))
        (self.directory / "job_container.conf").write_text(CONTAINER)
        self.plug(*plugins)
        (self.directory / "munge.key").write_bytes(os.urandom(128))
        (self.directory / "munge.key").chmod(0o400)
        self.start()

    def start(self):
        """Until all nodes are idle."""
        for machine in (self.login, *self.cluster.nodes):
            self._munge(machine)
        self._daemon(self.login, "slurmctld", "-c")
        for node in self.cluster.nodes:
            self._daemon(node, "slurmd", "-N", self.names[node.name])
        self.wait_for(len(self.cluster.nodes), "idle")

    def plug(self, *lines):
        """From the next command and the next step on these are the lines of its plugstack.conf."""
        (self.directory / "plugstack.conf").write_text("".join(f"{line}\n" for line in lines))

    def _munge(self, machine):
        said = machine.run(
            "/bin/sh", "-c", 'mkdir -p /run/munge && exec munged "$@"', "munged", "--force", f"--key-file={self.directory}/munge.key", "--pid-file=/run/munge.pid", "--seed-file=/run/munge.seed",
            f"--log-file={self.directory}/munge-{machine.name}.log", "--socket=/run/munge/munge.socket.2", env=self._env(),
        )
        check(said[0] == 0, f"munged on {machine.name}: {said}")

    def _daemon(self, machine, name, *words):
        with open(self.directory / f"{name}-{machine.name}.out", "ab") as log:
            before = self.pinned if name == "slurmd" else []
            if name == "slurmd" and self.unified:
                before = ["/bin/sh", "-c", IN_UNIFIED, "sh", machine.group, self.unified, *before]
            started = machine.start(*before, name, "-D", "-f", self.directory / "slurm.conf", *words, stdout=log, stderr=log, env=self._env())
        self.daemons[machine.name] = started

    def restart(self, machine):
        """Slurm's daemon of that machine ends, as its unit has it end, and is started again, with what it had stored. Until it answers."""
        name = "slurmctld" if machine is self.login else "slurmd"
        before = self.daemons[machine.name]
        before.kill(signal.SIGTERM)
        before.process.wait(20)
        self._daemon(machine, name, *(["-N", self.names[machine.name]] if name == "slurmd" else []))
        asked = ["ping"] if name == "slurmctld" else ["show", "slurmd", self.names[machine.name]]
        answers = lambda said: said[0] == 0 and ("is UP" in said[1] if name == "slurmctld" else f"= {self.names[machine.name]}" in said[1])
        deadline = time.monotonic() + 30
        while not answers(said := machine.run("scontrol", *asked, env=self._env())):
            check(time.monotonic() < deadline, f"{name} of {machine.name} does not answer: {said}; {self.logs()}")
            time.sleep(0.05)

    def _env(self):
        return {**self.cluster.context.env(None, self.environment), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

    def wait_for(self, count, state, patience=30.0):
        """Waits until so many nodes are in that state."""
        deadline = time.monotonic() + patience
        while (said := self.run("sinfo", "-h", "-N", "-p", "all", "-o", "%T"))[1].split().count(state) != count:
            check(time.monotonic() < deadline, f"{count} nodes are not {state}: {said}; {self.logs()}")
            time.sleep(0.05)

    def logs(self):
        """The last lines of what its daemons say."""
        lines = [f"{path.name}: {line}" for path in sorted(self.directory.glob("*.log")) for line in path.read_text(errors="replace").splitlines()[-8:]]
        return "\n".join(lines)

    def state(self, node, shown="%T"):
        """What Slurm says of a node."""
        said = self.login.run("sinfo", "-h", "-n", self.names[node.name], "-o", shown, env=self._env())
        check(said[0] == 0, f"sinfo: {said}")
        return said[1].strip()

    def run(self, *command, patience=60.0, env=None, mpi=None):
        """A command that the user types where they log in: status, output and error."""
        print("+", *command, flush=True)
        context = self.cluster.context
        return self.login.run(*command, user=self.cluster.user, env=context.env(mpi, {**self.environment, **(env or {})}), cwd=context.work, patience=patience)

    def update(self, *words):
        """What an administrator has Slurm's controller change."""
        self.administrator("scontrol", "update", *words)

    def administrator(self, *command):
        """What an administrator types."""
        said = self.login.run(*command, env=self._env())
        check(said[0] == 0, f"{command}: {said}")

    def job(self, *command, env=None, **options):
        """The same, as a job that runs."""
        return self.cluster.context.start(command, env={**self.environment, **(env or {})}, on=self.login, **options)

    def close(self):
        """Takes away the control groups that Slurm leaves, when its nodes are off: its daemons end with them."""
        for name in self.names.values():
            for top in GROUPS.glob(f"*/slurm_{name}"):
                for where, _, _ in os.walk(top, topdown=False):
                    # The kernel lets go of the dead a little later.
                    eventually_removed(where)


def preloaded(context):
    """The library that hides from slurmd the control groups of version 1 that this machine may have."""
    library = context.work / "unified.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, pathlib.Path(__file__).parent.parent / "programs" / "unified.c"], check=True)
    return library


def with_lines(text, lines):
    """A configuration with these lines in the place of those for the same."""
    given = {line.partition("=")[0] for line in lines.splitlines()}
    kept = [line for line in text.splitlines() if line.partition("=")[0] not in given]
    return "\n".join([*kept, lines, ""])


def eventually_removed(group, patience=5.0):
    """Removes a control group, whose processes are dead."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return os.rmdir(group)
        except FileNotFoundError:
            return None
        except OSError as error:
            check(time.monotonic() < deadline, f"{group} cannot be removed: {error}")
            time.sleep(0.02)
